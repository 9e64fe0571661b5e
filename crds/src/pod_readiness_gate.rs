//! `PodReadinessGate`: one condition of pods that they list as a readiness gate, and what it follows.
#![allow(clippy::duplicated_attributes, reason = "printer columns repeat their words; clippy takes them for one attribute")]

use crate::{
    duration::Duration,
    label_selector::LabelSelector,
    names,
    node_readiness_gate::{ConditionStatus, Effect},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Conditions that Kubernetes writes itself; none of them is ever written for a gate.
pub const RESERVED_CONDITIONS: [&str; 10] = [
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
];

/// Which condition of which pods follows what. Writer: the user.
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
    doc = "Keeps a condition of pods that list it in spec.readinessGates: True or False as a label, an annotation, a node, a Service, another object, an HTTP server or people say.",
    printcolumn(name = "Condition", type_ = "string", json_path = ".spec.conditionType"),
    printcolumn(name = "True", type_ = "integer", json_path = ".status.pods.true", description = "Pods whose condition is True"),
    printcolumn(name = "False", type_ = "integer", json_path = ".status.pods.false", description = "Pods whose condition is False"),
    printcolumn(
        name = "Matched",
        type_ = "integer",
        json_path = ".status.pods.matched",
        description = "Pods that are selected and list the condition"
    ),
    printcolumn(name = "Summary", type_ = "string", json_path = ".status.summary"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.conditionType == oldSelf.conditionType")
    .message("conditionType cannot be changed: make another gate with the new one, then delete this one"))]
#[x_kube(validation = Rule::new("!has(self.resetOnRestart) || !self.resetOnRestart || has(self.source.label) || has(self.source.annotation) || has(self.source.manual)")
    .message("resetOnRestart is for the sources label, annotation and manual, which speak of the pod: the others are asked all the time, and know nothing of its containers"))]
#[x_kube(validation = Rule::new("!has(self.admission) || self.admission.onCreate == 'None' || has(self.selector) && (has(self.selector.matchLabels) && self.selector.matchLabels.size() > 0 || has(self.selector.matchExpressions) && self.selector.matchExpressions.size() > 0)")
    .message("selector must name a label where admission.onCreate is Policy: pods get the readiness gate for good"))]
pub struct PodReadinessGateSpec {
    /// Labels of the pods, in the gate's own namespace. Default: every pod that lists the condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// The type of the condition, such as www.example.com/feature-1. Pods that do not list it in spec.readinessGates are left alone. It cannot be changed.
    #[schemars(schema_with = "crate::manifest::condition_type_schema")]
    pub condition_type: String,
    /// What the condition follows; exactly one.
    pub source: GateSource,
    /// What the condition is while the source says nothing: no such label, no such object. Unset: a condition that the gate has set is taken away, which counts as False.
    #[serde(rename = "default", default)]
    pub default_: GateDefault,
    /// What the condition is while the source cannot be read. Keep: what it was. Open: True. Closed: False.
    #[serde(default)]
    pub fail_mode: FailMode,
    /// A condition that was True becomes False when a container of the pod starts anew, until the source has said something else in between: whoever found the pod good did not see the new container. For the sources label, annotation and manual.
    #[serde(default)]
    pub reset_on_restart: bool,
    /// Which pods get the readiness gate as they are created. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<PodAdmission>,
}

/// What a condition follows.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.label), has(self.annotation), has(self.ingressDaemonSet), has(self.nodeCondition), has(self.nodeTaint), has(self.service), has(self.objectCondition), has(self.http), has(self.manual)].filter(given, given).size() == 1")
    .message("a source must have exactly one of label, annotation, ingressDaemonSet, nodeCondition, nodeTaint, service, objectCondition, http and manual"))]
pub struct GateSource {
    /// A label of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<LabelSource>,
    /// An annotation of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotation: Option<AnnotationSource>,
    /// An `IngressDaemonSet`: True while the pod's node is attached to the load balancer. Its own pods are always True: the node waits for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress_daemon_set: Option<NamedSource>,
    /// A condition of the pod's node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_condition: Option<NodeConditionSource>,
    /// A taint of the pod's node: True while it is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_taint: Option<NodeTaintSource>,
    /// A Service of the namespace: True while it has a ready endpoint. Not one that the pods themselves are behind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<NamedSource>,
    /// A condition of any object that the operator may list and watch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_condition: Option<ObjectConditionSource>,
    /// An HTTP server: True while it answers as expected. No answer at all is a source that cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpSource>,
    /// People and programs that hold a pod, in an annotation: True while nobody does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manual: Option<ManualSource>,
}

/// What a value stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum GateValue {
    /// The condition is True.
    True,
    /// The condition is False.
    False,
}

/// A label of the pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelSource {
    /// Its key.
    #[schemars(schema_with = "crate::manifest::label_key_schema")]
    pub key: String,
    /// What its values stand for; any other says nothing. Default: "true" is True, "false" is False.
    #[serde(default = "default_values")]
    #[schemars(schema_with = "crate::manifest::gate_values_schema")]
    pub values: BTreeMap<String, GateValue>,
}

/// An annotation of the pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnnotationSource {
    /// Its key.
    #[schemars(schema_with = "crate::manifest::any_annotation_key_schema")]
    pub key: String,
    /// What its values stand for; any other says nothing. Default: "true" is True, "false" is False.
    #[serde(default = "default_values")]
    #[schemars(schema_with = "crate::manifest::gate_values_schema")]
    pub values: BTreeMap<String, GateValue>,
}

fn default_values() -> BTreeMap<String, GateValue> {
    BTreeMap::from([("true".to_owned(), GateValue::True), ("false".to_owned(), GateValue::False)])
}

/// An object of the gate's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamedSource {
    /// Its name.
    #[schemars(schema_with = "crate::manifest::object_name_schema")]
    pub name: String,
}

/// A condition of the pod's node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeConditionSource {
    /// Type of the condition, such as Ready. A node without it says nothing.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 316))]
    pub type_: String,
    /// What it must say.
    #[serde(default)]
    pub status: ConditionStatus,
}

/// A taint of the pod's node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeTaintSource {
    /// Its key.
    #[schemars(schema_with = "crate::manifest::any_taint_key_schema")]
    pub key: String,
    /// Its effect. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
}

/// A condition of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectConditionSource {
    /// Its apiVersion, such as apps/v1.
    #[schemars(schema_with = "crate::manifest::api_version_schema")]
    pub api_version: String,
    /// Its kind, such as Deployment.
    #[schemars(schema_with = "crate::manifest::kind_schema")]
    pub kind: String,
    /// Its name. An object that is not there says nothing.
    #[schemars(schema_with = "crate::manifest::object_name_schema")]
    pub name: String,
    /// Its namespace, where its kind has namespaces. Default: the gate's own. Another one, and a kind without namespaces, only where the operator's flag --allowed-foreign-objects allows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::object_name_schema")]
    pub namespace: Option<String>,
    /// Type of the condition, such as Available. An object without it says nothing.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 316))]
    pub type_: String,
    /// What it must say.
    #[serde(default)]
    pub status: ConditionStatus,
}

/// An HTTP server. It is asked by the operator, without encryption; redirections are not followed.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.url) != has(self.port)")
    .message("an http source must have exactly one of url, which is asked once for all pods, and port, at which each pod is asked"))]
#[x_kube(validation = Rule::new("!has(self.path) || has(self.port)")
    .message("path goes with port: a url has its own"))]
pub struct HttpSource {
    /// Asked once for all pods, such as <http://config.tools.svc:8080/ready>.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::http_url_schema")]
    pub url: Option<String>,
    /// Port at which each pod is asked, 1 to 65535.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// What is asked for at that port. Default /.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::http_path_schema")]
    pub path: Option<String>,
    /// How often, 1s to 1h. Default 10s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::period_schema")]
    pub period: Option<Duration>,
    /// How long an answer may take, 100ms to 30s. Default 1s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::timeout_schema")]
    pub timeout: Option<Duration>,
    /// The status that the answer must have, 100 to 599. Default: any from 200 to 299.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 100, max = 599))]
    pub expected_status: Option<u16>,
}

/// Holds in an annotation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ManualSource {
    /// The annotation of the pod with the list of holds, as JSON: [{"owner": …, "key": …}, …]. Default ingressdaemonsets.mumoshu.github.io/readiness-holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::any_annotation_key_schema")]
    pub annotation: Option<String>,
}

impl ManualSource {
    /// Key of the annotation with the holds.
    pub fn key(&self) -> &str {
        self.annotation.as_deref().unwrap_or(names::READINESS_HOLDS_ANNOTATION)
    }
}

/// What counts while a source says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum GateDefault {
    /// The condition is True.
    True,
    /// The condition is False.
    False,
    /// There is no condition.
    #[default]
    Unset,
}

/// What counts while a source cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum FailMode {
    /// What the condition was.
    #[default]
    Keep,
    /// It is True.
    Open,
    /// It is False.
    Closed,
}

/// Which pods get the readiness gate as they are created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodAdmission {
    /// Policy: those that are selected, by a `MutatingAdmissionPolicy`, if the namespace has the label ingressdaemonsets.mumoshu.github.io/inject-readiness-gates: enabled. None: those whose author listed it.
    #[serde(default)]
    pub on_create: InjectOnCreate,
}

/// How pods get a readiness gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum InjectOnCreate {
    /// Not at all.
    #[default]
    None,
    /// By a `MutatingAdmissionPolicy`, inside the API server.
    Policy,
}

/// What the operator last saw and did. Writer of every field: the operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodReadinessGateStatus {
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready: the source can be read and the gate can be kept. Conflicting: another gate keeps the same condition of the same pods. `AdmissionActive`: pods get the readiness gate as they are created.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]), length(max = 16))]
    pub conditions: Vec<Condition>,
    /// Numbers of pods.
    #[serde(default)]
    pub pods: PodCounts,
    /// Pods whose condition is not True, at most ten, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub held: Vec<HeldPod>,
    /// The same in a few words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
}

/// Numbers of pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodCounts {
    /// Selected, and they list the condition.
    pub matched: u32,
    /// The condition is True.
    #[serde(rename = "true")]
    pub true_: u32,
    /// The condition is False.
    #[serde(rename = "false")]
    pub false_: u32,
    /// There is no condition, which counts as False.
    pub unset: u32,
    /// Selected, but they do not list the condition: nothing is written to them.
    pub not_gated: u32,
}

/// A pod whose condition is not True.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeldPod {
    /// Its name.
    pub pod: String,
    /// Why, in a word.
    pub reason: String,
    /// Why, in a sentence.
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
        self.admission.as_ref().is_some_and(|admission| admission.on_create == InjectOnCreate::Policy)
    }
}
