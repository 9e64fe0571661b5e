//! `PodReadinessGate`: one condition of pods that list it as a readiness gate, and the source that it follows.
#![allow(clippy::duplicated_attributes, reason = "printer columns repeat their words; clippy takes them for one attribute")]

use crate::{
    duration::Duration,
    label_selector::LabelSelector,
    names,
    node_readiness_gate::{ConditionStatus, Effect},
    schema::{KEY, checked},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// Conditions that Kubernetes writes itself, and the one of updates in place; none of them is ever written for a gate.
pub const RESERVED_CONDITIONS: [&str; 11] = [
    "Ready",
    "ContainersReady",
    "PodScheduled",
    "Initialized",
    "PodReadyToStartContainers",
    "PodHasNetwork",
    "DisruptionTarget",
    "PodResizePending",
    "PodResizeInProgress",
    "AllContainersRestarting",
    names::IN_PLACE_GATE,
];

/// Type of a condition of pods that neither Kubernetes nor an update in place writes.
fn condition_type_schema(_: &mut SchemaGenerator) -> Schema {
    let qualified = (KEY, "must be the type of a condition such as www.example.com/feature-1");
    let reserved = format!("!(self in ['{}'])", RESERVED_CONDITIONS.join("', '"));
    let foreign = (
        reserved.as_str(),
        "must not be a condition that Kubernetes or the operator writes itself, such as Ready: choose one in your own domain, such as www.example.com/feature-1",
    );
    checked(json!({"type": "string", "minLength": 1, "maxLength": 317}), &[qualified, foreign])
}

/// Pods, their condition, and the source that the condition follows.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "ingressdaemonsets.mumoshu.github.io",
    version = "v1alpha1",
    kind = "PodReadinessGate",
    plural = "podreadinessgates",
    singular = "podreadinessgate",
    shortname = "prg",
    namespaced,
    derive = "PartialEq",
    status = "PodReadinessGateStatus",
    doc = "Sets a condition of pods that list it in spec.readinessGates: True or False, by a label, an annotation, a node, a Service, another object, an HTTP server or people.",
    printcolumn(name = "Condition", type_ = "string", json_path = ".spec.conditionType"),
    printcolumn(name = "True", type_ = "integer", json_path = ".status.pods.true", description = "Pods whose condition is True"),
    printcolumn(name = "False", type_ = "integer", json_path = ".status.pods.false", description = "Pods whose condition is False"),
    printcolumn(
        name = "Matched",
        type_ = "integer",
        json_path = ".status.pods.matched",
        description = "Selected pods that list the condition"
    ),
    printcolumn(name = "Summary", type_ = "string", json_path = ".status.summary"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.conditionType == oldSelf.conditionType")
    .message("conditionType cannot be changed: create another gate with the new type, then delete this one"))]
#[x_kube(validation = Rule::new("!has(self.resetOnRestart) || !self.resetOnRestart || has(self.source.label) || has(self.source.annotation) || has(self.source.manual)")
    .message("resetOnRestart is for the sources label, annotation and manual: remove it, because the operator checks other sources all the time"))]
#[x_kube(validation = Rule::new("!has(self.admission) || self.admission.onCreate == 'None' || has(self.selector) && (has(self.selector.matchLabels) && self.selector.matchLabels.size() > 0 || has(self.selector.matchExpressions) && self.selector.matchExpressions.size() > 0)")
    .message("selector must name a label unless admission.onCreate is None: add one, because pods keep the readiness gate permanently"))]
pub struct PodReadinessGateSpec {
    /// Labels of the pods, in the namespace of the gate. Default: every pod that lists the condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Type of the condition, such as www.example.com/feature-1. The gate ignores pods that do not list it in spec.readinessGates. It cannot be changed.
    #[schemars(schema_with = "condition_type_schema")]
    pub condition_type: String,
    /// Source that the condition follows; exactly one.
    pub source: GateSource,
    /// Condition while the source has no value, for example without the label or the object. True, False, or Unset (default): the gate removes a condition that it has set, which counts as False.
    #[serde(rename = "default", default)]
    pub default_: GateDefault,
    /// Condition while the operator cannot read the source. Keep (default): unchanged. Open: True. Closed: False.
    #[serde(default)]
    pub fail_mode: FailMode,
    /// When a container of the pod restarts, a True condition becomes False. It stays False until the source has had another value in between, because the present value describes the earlier container. For the sources label, annotation and manual.
    #[serde(default)]
    pub reset_on_restart: bool,
    /// Pods that get the readiness gate at their creation. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<PodAdmission>,
}

/// Source that a condition follows.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.label), has(self.annotation), has(self.ingressDaemonSet), has(self.nodeCondition), has(self.nodeTaint), has(self.service), has(self.objectCondition), has(self.http), has(self.manual)].filter(given, given).size() == 1")
    .message("a source must have exactly one of label, annotation, ingressDaemonSet, nodeCondition, nodeTaint, service, objectCondition, http and manual: create a gate for each further source"))]
pub struct GateSource {
    /// Label of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<LabelSource>,
    /// Annotation of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotation: Option<AnnotationSource>,
    /// `IngressDaemonSet`: True while the pod's node is attached to the load balancer. Always True for pods of the `IngressDaemonSet` itself, because the node waits for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress_daemon_set: Option<NamedSource>,
    /// Condition of the pod's node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_condition: Option<NodeConditionSource>,
    /// Taint of the pod's node: True while the node does not have the taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_taint: Option<NodeTaintSource>,
    /// Service of the namespace: True while it has a ready endpoint. Do not name a Service that selects the gate's own pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<NamedSource>,
    /// Condition of any object that the operator may list and watch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_condition: Option<ObjectConditionSource>,
    /// HTTP server: True while it answers as expected. Without an answer, the source counts as unreadable, see failMode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpSource>,
    /// Holds of people and programs in an annotation of the pod: True while there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manual: Option<ManualSource>,
}

/// Meaning of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum GateValue {
    /// The condition is True.
    True,
    /// The condition is False.
    False,
}

/// Label of the pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelSource {
    /// Key of the label.
    #[schemars(schema_with = "crate::schema::label_key_schema")]
    pub key: String,
    /// Meaning of its values. Any other value counts as no value. Default: "true" is True, "false" is False.
    #[serde(default = "default_values")]
    #[schemars(schema_with = "crate::schema::gate_values_schema")]
    pub values: BTreeMap<String, GateValue>,
}

/// Annotation of the pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnnotationSource {
    /// Key of the annotation.
    #[schemars(schema_with = "crate::schema::any_annotation_key_schema")]
    pub key: String,
    /// Meaning of its values. Any other value counts as no value. Default: "true" is True, "false" is False.
    #[serde(default = "default_values")]
    #[schemars(schema_with = "crate::schema::gate_values_schema")]
    pub values: BTreeMap<String, GateValue>,
}

fn default_values() -> BTreeMap<String, GateValue> {
    BTreeMap::from([("true".to_owned(), GateValue::True), ("false".to_owned(), GateValue::False)])
}

/// Object of the gate's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamedSource {
    /// Name of the object.
    #[schemars(schema_with = "crate::schema::object_name_schema")]
    pub name: String,
}

/// Condition of the pod's node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeConditionSource {
    /// Type of the condition, such as Ready. Without this condition of the node, the source has no value.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 316))]
    pub type_: String,
    /// Required status.
    #[serde(default)]
    pub status: ConditionStatus,
}

/// Taint of the pod's node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeTaintSource {
    /// Key of the taint.
    #[schemars(schema_with = "crate::schema::any_taint_key_schema")]
    pub key: String,
    /// Effect of the taint. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
}

/// Condition of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectConditionSource {
    /// API version of the object, such as apps/v1.
    #[schemars(schema_with = "crate::schema::api_version_schema")]
    pub api_version: String,
    /// Kind of the object, such as Deployment.
    #[schemars(schema_with = "crate::schema::kind_schema")]
    pub kind: String,
    /// Name of the object. If it does not exist, the source has no value.
    #[schemars(schema_with = "crate::schema::object_name_schema")]
    pub name: String,
    /// Namespace of the object, for a kind with namespaces. Default: the gate's namespace. The operator's flag --allowed-foreign-objects must allow any other namespace, and any kind without namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::object_name_schema")]
    pub namespace: Option<String>,
    /// Type of the condition, such as Available. Without this condition of the object, the source has no value.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 316))]
    pub type_: String,
    /// Required status.
    #[serde(default)]
    pub status: ConditionStatus,
}

/// HTTP server. The operator sends requests without encryption, and does not follow redirects.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.url) != has(self.port)")
    .message("an http source must have exactly one of url (one request for all pods) and port (a request to each pod)"))]
#[x_kube(validation = Rule::new("!has(self.path) || has(self.port)")
    .message("path needs port: with url, add the path to the url"))]
pub struct HttpSource {
    /// URL of one request for all pods, such as <http://config.tools.svc:8080/ready>.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::http_url_schema")]
    pub url: Option<String>,
    /// Port of a request to each pod, 1 to 65535.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// Path of the request to that port. Default /.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::http_path_schema")]
    pub path: Option<String>,
    /// Time between two requests, 1s to 1h. Default 10s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::period_schema")]
    pub period: Option<Duration>,
    /// Maximum time of an answer, 100ms to 30s. Default 1s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::timeout_schema")]
    pub timeout: Option<Duration>,
    /// Required HTTP status, 100 to 599. Default: any from 200 to 299.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 100, max = 599))]
    pub expected_status: Option<u16>,
}

/// Holds in an annotation of the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ManualSource {
    /// Key of the pod's annotation with the list of holds as JSON: [{"owner": …, "key": …}, …]. Default ingressdaemonsets.mumoshu.github.io/readiness-holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::any_annotation_key_schema")]
    pub annotation: Option<String>,
}

impl ManualSource {
    /// Key of the annotation with the holds.
    pub fn key(&self) -> &str {
        self.annotation.as_deref().unwrap_or(names::READINESS_HOLDS_ANNOTATION)
    }
}

/// Condition while a source has no value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum GateDefault {
    /// The condition is True.
    True,
    /// The condition is False.
    False,
    /// The pod has no condition.
    #[default]
    Unset,
}

/// Condition while the operator cannot read a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum FailMode {
    /// The condition stays unchanged.
    #[default]
    Keep,
    /// The condition is True.
    Open,
    /// The condition is False.
    Closed,
}

/// Pods that get the readiness gate at their creation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodAdmission {
    /// How selected pods get the readiness gate, if the namespace has the label ingressdaemonsets.mumoshu.github.io/inject-readiness-gates: enabled. Auto: Policy if the API server supports it, else Webhook if the operator serves one. Policy: by a `MutatingAdmissionPolicy`. Webhook: by the operator's webhook. None (default): only pods whose author lists the gate have it.
    #[serde(default)]
    pub on_create: InjectOnCreate,
}

/// How pods get a readiness gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum InjectOnCreate {
    /// Pods do not get it.
    #[default]
    None,
    /// Policy if the API server supports it, else Webhook if the operator serves one.
    Auto,
    /// By a `MutatingAdmissionPolicy`, inside the API server.
    Policy,
    /// By the operator's webhook.
    Webhook,
}

/// State as the operator last saw it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodReadinessGateStatus {
    /// Generation of the spec that this status describes. -1: the operator has not looked at the resource yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions. Ready: the operator can read the source and write the condition; if not, Reconciling is True while it tries again, and Stalled if somebody must act first. Conflicting: another gate sets the same condition of the same pods. `AdmissionActive`: pods get the readiness gate at their creation. It is False with reason `Settling` until 5 s after the API server accepted a change.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]), length(max = 16))]
    pub conditions: Vec<Condition>,
    /// Numbers of pods by state.
    #[serde(default)]
    pub pods: PodCounts,
    /// Pods whose condition is not True, by name; at most ten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub held: Vec<HeldPod>,
    /// Summary in a few words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
}

/// Numbers of pods by state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodCounts {
    /// Selected pods that list the condition.
    pub matched: u32,
    /// Pods whose condition is True.
    #[serde(rename = "true")]
    pub true_: u32,
    /// Pods whose condition is False.
    #[serde(rename = "false")]
    pub false_: u32,
    /// Pods without the condition, which counts as False.
    pub unset: u32,
    /// Selected pods that do not list the condition. The gate does not change them.
    pub not_gated: u32,
}

/// Pod whose condition is not True.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeldPod {
    /// Name of the pod.
    pub pod: String,
    /// Machine-readable reason.
    pub reason: String,
    /// Human-readable reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl PodReadinessGateSpec {
    /// Whether a pod with these labels is meant.
    pub fn selects<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.selector.as_ref().is_none_or(|selector| selector.matches(label))
    }

    /// Whether pods are to get the readiness gate as they are created.
    pub fn injects(&self) -> bool {
        self.admission.as_ref().is_some_and(|admission| admission.on_create != InjectOnCreate::None)
    }
}
