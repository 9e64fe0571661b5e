//! `NodeReadinessGate`: a taint stays on a node until the components that the node needs are ready.
#![allow(clippy::duplicated_attributes, reason = "printer columns repeat their words; clippy takes them for one attribute")]

use crate::{duration::Duration, label_selector::LabelSelector};
use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{Condition, Time},
    util::intstr::IntOrString,
};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Nodes, their taint, and the requirements that release them.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "ingressdaemonsets.mumoshu.github.io",
    version = "v1alpha1",
    kind = "NodeReadinessGate",
    plural = "nodereadinessgates",
    singular = "nodereadinessgate",
    shortname = "nrg",
    derive = "PartialEq",
    status = "NodeReadinessGateStatus",
    doc = "Keeps a taint on nodes until their requirements are met, so that no workload is scheduled on a node before its network, DNS or ingress is ready.",
    selectable = ".spec.mode",
    selectable = ".spec.taint.key",
    selectable = ".spec.taint.effect",
    selectable = ".spec.dryRun",
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.mode"),
    printcolumn(name = "Taint", type_ = "string", json_path = ".spec.taint.key"),
    printcolumn(name = "Effect", type_ = "string", json_path = ".spec.taint.effect"),
    printcolumn(name = "Dry-run", type_ = "boolean", json_path = ".spec.dryRun"),
    printcolumn(name = "Held", type_ = "integer", json_path = ".status.nodes.held", description = "Nodes that keep the taint"),
    printcolumn(name = "Matched", type_ = "integer", json_path = ".status.nodes.matched", description = "Nodes that the gate selects"),
    printcolumn(name = "Summary", type_ = "string", json_path = ".status.summary"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.allNodes || has(self.nodeSelector) && (has(self.nodeSelector.matchLabels) && self.nodeSelector.matchLabels.size() > 0 || has(self.nodeSelector.matchExpressions) && self.nodeSelector.matchExpressions.size() > 0)")
    .message("nodeSelector must name a label: add one, or set allNodes: true for a gate of every node"))]
#[x_kube(validation = Rule::new("!self.allNodes || !has(self.nodeSelector)")
    .message("allNodes: true and nodeSelector exclude each other: remove one of them"))]
#[x_kube(validation = Rule::new("self.mode == 'Bootstrap' || !has(self.regateOn)")
    .message("regateOn is for mode Bootstrap: remove it, because in mode Continuous a node that is not ready gets the taint again anyway"))]
#[x_kube(validation = Rule::new("self.mode == 'Continuous' || !has(self.retaint)")
    .message("retaint is for mode Continuous: remove it, because in mode Bootstrap a released node stays released"))]
#[x_kube(validation = Rule::new("self.taint == oldSelf.taint").message("the taint cannot be changed: create another gate with the new taint, then delete this one"))]
pub struct NodeReadinessGateSpec {
    /// Labels of the nodes that the gate selects. Name at least one label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<LabelSelector>,
    /// Select every node.
    #[serde(default)]
    pub all_nodes: bool,
    /// Taint. It cannot be changed: create another gate, then delete this one.
    pub taint: GateTaint,
    /// `AllOf` (default): all requirements that apply must be met. `AnyOf`: one is enough.
    #[serde(default)]
    pub policy: Policy,
    /// Bootstrap (default): a node is released once. Continuous: the taint comes back when the requirements are no longer met.
    #[serde(default)]
    pub mode: Mode,
    /// Treatment of nodes that are older than the gate (status.inForce). Gate: as new nodes; in mode Continuous, retaint.failingFor and retaint.budget apply. Grandfather: they count as released. `GateIfIdle`: as new nodes while only system pods and pods of `DaemonSets` run there. Default: Grandfather in mode Bootstrap, Gate in mode Continuous.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing_nodes: Option<ExistingNodes>,
    /// Events that make a released node a new one, in mode Bootstrap. Reboot: another boot ID. Replaced: another machine under the same Node. Generation: a change of this spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3), extend("x-kubernetes-list-type" = "set"))]
    pub regate_on: Vec<Regate>,
    /// Requirements of a node, 1 to 32.
    #[schemars(length(min = 1, max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub requirements: Vec<Requirement>,
    /// When the operator removes the taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<Release>,
    /// When the taint comes back, in mode Continuous.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retaint: Option<Retaint>,
    /// How nodes get the taint at their creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<Admission>,
    /// Pods to which the operator adds a toleration of the taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerations: Option<Tolerations>,
    /// Treatment of the taints when the gate is deleted. `RemoveTaints` (default): the operator removes them. Orphan: they stay.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// Decide and report, but write nothing to any node.
    #[serde(default)]
    pub dry_run: bool,
}

/// Taint that stays until a node is ready.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GateTaint {
    /// Key of the taint. Autoscalers must know that it is temporary: readiness.k8s.io/ingress for Karpenter, startup-taint.cluster-autoscaler.kubernetes.io/ingress for cluster-autoscaler.
    #[schemars(schema_with = "crate::schema::taint_key_schema")]
    pub key: String,
    /// Value of the taint. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::label_value_schema")]
    pub value: Option<String>,
    /// Effect of the taint: `NoSchedule` (default), `PreferNoSchedule`, or `NoExecute`, which evicts running pods that do not tolerate the taint.
    #[serde(default)]
    pub effect: Effect,
}

/// Effect of a taint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Effect {
    /// Pods that do not tolerate the taint are not scheduled.
    #[default]
    NoSchedule,
    /// The scheduler avoids the node if it can.
    PreferNoSchedule,
    /// Running pods that do not tolerate the taint are evicted, too.
    NoExecute,
}

impl Effect {
    /// The effect as a Node's taint spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}

impl std::str::FromStr for Effect {
    type Err = String;

    /// Reads the spelling of a Node's taint.
    fn from_str(name: &str) -> Result<Self, String> {
        let all = [Self::NoSchedule, Self::PreferNoSchedule, Self::NoExecute];
        let found = all.into_iter().find(|effect| effect.as_str() == name);
        found.ok_or_else(|| format!("`{name}` is not an effect: use NoSchedule, PreferNoSchedule or NoExecute"))
    }
}

/// How requirements are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Policy {
    /// All requirements that apply to the node must be met.
    #[default]
    AllOf,
    /// One requirement that is met is enough.
    AnyOf,
}

/// How often a node passes the gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Mode {
    /// Once.
    #[default]
    Bootstrap,
    /// Whenever the requirements are not met.
    Continuous,
}

/// Treatment of nodes that are older than the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExistingNodes {
    /// As new nodes.
    Gate,
    /// They count as released.
    Grandfather,
    /// As new nodes while they are idle; else they count as released.
    GateIfIdle,
}

/// Event that makes a released node a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Regate {
    /// Another boot ID.
    Reboot,
    /// Another machine under the same Node.
    Replaced,
    /// A change of the gate's spec.
    Generation,
}

/// One requirement of a node, of exactly one kind.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.condition), has(self.pods), has(self.daemonSet), has(self.ingressDaemonSet), has(self.csiDriver), has(self.gate), has(self.nodeAnnotation)].filter(given, given).size() == 1")
    .message("a requirement must have exactly one of condition, pods, daemonSet, ingressDaemonSet, csiDriver, gate and nodeAnnotation: for several, list several requirements"))]
pub struct Requirement {
    /// Unique name, for status and metrics.
    #[schemars(schema_with = "crate::schema::short_name_schema")]
    pub name: String,
    /// Condition of the Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<ConditionRequirement>,
    /// Ready pods on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<PodsRequirement>,
    /// Ready pod of a `DaemonSet`, on nodes where the `DaemonSet` runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daemon_set: Option<DaemonSetRequirement>,
    /// Ready replicas of an `IngressDaemonSet`, on nodes that it chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress_daemon_set: Option<IngressDaemonSetRequirement>,
    /// CSI driver that is registered on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csi_driver: Option<CsiDriverRequirement>,
    /// Another gate that has released the node. Use it to order taints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<GateRequirement>,
    /// Annotation of the Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_annotation: Option<AnnotationRequirement>,
}

/// Condition of the Node, by its type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConditionRequirement {
    /// Type of the condition, such as Ready.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 316))]
    pub type_: String,
    /// Required status.
    #[serde(default)]
    pub status: ConditionStatus,
    /// Status that counts if the Node does not have the condition. Default: Unknown.
    #[serde(rename = "default", default, skip_serializing_if = "Option::is_none")]
    pub default_: Option<ConditionStatus>,
    /// Maximum age of the last heartbeat. An older condition counts as Unknown, because its writer no longer runs. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::duration_schema")]
    pub max_age: Option<Duration>,
}

/// Status of a condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    /// True.
    #[default]
    True,
    /// False.
    False,
    /// Unknown.
    Unknown,
}

impl ConditionStatus {
    /// The status as a Node's condition spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// Pods on the node. Pods that terminate or have ended do not count.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.annotationOnly) || !self.annotationOnly || has(self.readyAnnotation)")
    .message("annotationOnly needs readyAnnotation: set it to the annotation that a ready pod has"))]
pub struct PodsRequirement {
    /// Namespace of the pods. Anyone who may create pods there can release nodes.
    #[schemars(schema_with = "crate::schema::object_name_schema")]
    pub namespace: String,
    /// Labels of the pods.
    pub selector: LabelSelector,
    /// Number of pods that must be ready (1 to 1000), or All: every matching pod, at least one. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::min_ready_schema")]
    pub min_ready: Option<IntOrString>,
    /// Annotation that makes a pod count as ready before its condition Ready is True.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_annotation: Option<AnnotationRequirement>,
    /// Only readyAnnotation makes a pod count as ready; its condition Ready does not.
    #[serde(default)]
    pub annotation_only: bool,
}

/// Pod of a `DaemonSet`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DaemonSetRequirement {
    /// Namespace of the `DaemonSet`.
    #[schemars(schema_with = "crate::schema::object_name_schema")]
    pub namespace: String,
    /// Name of the `DaemonSet`.
    #[schemars(schema_with = "crate::schema::object_name_schema")]
    pub name: String,
    /// Require a pod of the newest revision.
    #[serde(default)]
    pub current_revision: bool,
}

/// Replicas of an `IngressDaemonSet`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IngressDaemonSetRequirement {
    /// Namespace of the `IngressDaemonSet`.
    #[schemars(schema_with = "crate::schema::object_name_schema")]
    pub namespace: String,
    /// Name of the `IngressDaemonSet`.
    #[schemars(schema_with = "crate::schema::object_name_schema")]
    pub name: String,
    /// Replicas of the node that must be ready: a number (1 to 100), a percentage (rounded up), or All. Default All.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::min_ready_or_percent_schema")]
    pub min_ready: Option<IntOrString>,
    /// Behaviour while the operator updates the node. Hold (default): the earlier result stays valid. Strict: the replicas are checked as at any other time. Taint: the node gets the taint before anything on it changes, and keeps it until the node is attached again.
    #[serde(default)]
    pub during_update: DuringUpdate,
    /// Maximum time of Hold. Default 10m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::duration_schema")]
    pub max_hold: Option<Duration>,
}

/// Behaviour while the operator updates a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DuringUpdate {
    /// The earlier result stays valid.
    #[default]
    Hold,
    /// The replicas are checked as at any other time.
    Strict,
    /// The node gets the taint before anything on it changes.
    Taint,
}

/// CSI driver that is registered on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CsiDriverRequirement {
    /// Name of the driver, as in the node's `CSINode`.
    #[schemars(schema_with = "crate::schema::object_name_schema")]
    pub name: String,
}

/// Another gate that must release the node first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GateRequirement {
    /// Name of the gate.
    #[schemars(schema_with = "crate::schema::object_name_schema")]
    pub name: String,
}

/// Annotation with its value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnnotationRequirement {
    /// Key of the annotation.
    #[schemars(schema_with = "crate::schema::any_annotation_key_schema")]
    pub key: String,
    /// Value of the annotation. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::annotation_value_schema")]
    pub value: Option<String>,
}

/// When the operator removes the taint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Release {
    /// Time for which the requirements must be met without a break. Default 0s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::duration_schema")]
    pub stable_for: Option<Duration>,
    /// Minimum time that the taint stays. Default 0s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::duration_schema")]
    pub min_hold: Option<Duration>,
    /// Keys of other taints that must be gone first. Default: taints of nodes that Karpenter has not registered or a cloud provider has not initialized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), inner(length(max = 317)))]
    pub wait_for_taints_gone: Option<Vec<String>>,
    /// Action for a node that keeps the taint for too long. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<ReleaseTimeout>,
}

/// Action for a node that keeps the taint for too long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseTimeout {
    /// Time after which the action applies.
    #[schemars(schema_with = "crate::schema::duration_schema")]
    pub after: Duration,
    /// Report (default): status and metric say so. Release: the operator also removes the taint.
    #[serde(default)]
    pub action: TimeoutAction,
}

/// Action for a node that keeps the taint for too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TimeoutAction {
    /// Status and metric say so.
    #[default]
    Report,
    /// The node is released, too.
    Release,
}

/// When the taint comes back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Retaint {
    /// Time for which the requirements must be unmet without a break. Default 10s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::duration_schema")]
    pub failing_for: Option<Duration>,
    /// Limit of nodes that may get the taint again, so that a bad version of one component does not taint all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<RetaintBudget>,
}

/// Limit of nodes that may get the taint again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetaintBudget {
    /// Maximum at once: a number, or a percentage of the selected nodes (rounded down, at least 1 if above 0%). Default 20%; 5% with effect `NoExecute`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::count_or_percent_schema")]
    pub max_nodes: Option<IntOrString>,
    /// Maximum per minute. Default 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10000))]
    pub per_minute: Option<u32>,
}

/// How nodes get the taint at their creation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Admission {
    /// Auto (default): Policy if the API server supports it, else Webhook if the operator serves one, else None. Policy: by a `MutatingAdmissionPolicy`. Webhook: by the operator's webhook. None: the operator taints a node when it sees the node, a moment after its creation.
    #[serde(default)]
    pub on_create: OnCreate,
}

/// How nodes get the taint at their creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnCreate {
    /// Policy if the API server supports it, else Webhook if the operator serves one, else None.
    #[default]
    Auto,
    /// By a `MutatingAdmissionPolicy`, inside the API server.
    Policy,
    /// By the operator's webhook.
    Webhook,
    /// By the operator when it sees the node, a moment after its creation.
    None,
}

/// Pods to which the operator adds a toleration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tolerations {
    /// Owned (default): pods of an `IngressDaemonSet` that a requirement names. Referenced: also pods of a `DaemonSet` that a requirement names. If the API server supports `MutatingAdmissionPolicies`, the template of that `DaemonSet` gets the toleration at each write, and its pods are replaced. None: no pods.
    #[serde(default)]
    pub inject: Inject,
}

/// Pods to which the operator adds a toleration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Inject {
    /// No pods.
    None,
    /// Pods that the operator creates.
    #[default]
    Owned,
    /// Also pods of `DaemonSets` that a requirement names.
    Referenced,
}

/// Treatment of the taints when the gate is deleted. `RemoveTaints` (default): the operator removes them. Orphan: they stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    /// The operator removes the taints.
    #[default]
    RemoveTaints,
    /// The taints stay.
    Orphan,
}

/// State as the operator last saw it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeReadinessGateStatus {
    /// Generation of the spec that this status describes. -1: the operator has not looked at the resource yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions: Ready (while it is False, also Reconciling while the operator tries again, or Stalled if somebody must act first), Satisfiable, Overlapping, `BudgetExhausted`, `TolerationMissing`, `AdmissionActive`. `AdmissionActive` is True if new nodes have the taint from their creation on. It is False with reason `Settling` until 5 s after the API server accepted a change, and with reason `Reactive` if the operator adds the taint when it sees the new node.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]), length(max = 16))]
    pub conditions: Vec<Condition>,
    /// Since when the gate is in force. Absent while it taints no node, because of dryRun or Satisfiable=False.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_force: Option<InForce>,
    /// Taints that the gate has or had, newest last, at most 16. The operator removes only these taints from nodes, and, for nodeReadinessTaint, taints whose key --allowed-node-taints names. Annotations of a Node do not count, because its kubelet may write them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub taints: Vec<GateTaint>,
    /// Numbers of nodes by state.
    #[serde(default)]
    pub nodes: GateCounts,
    /// Requirements for which nodes keep the taint, at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub blocked: Vec<BlockedRequirement>,
    /// Summary in a few words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
}

/// Time since which a gate is in force, and its nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InForce {
    /// Start time. Nodes that were created earlier are existing nodes, see spec.existingNodes.
    pub since: Time,
    /// Hash of the node selector. Another selector starts the time again.
    #[schemars(length(max = 16))]
    pub scope: String,
}

/// Numbers of nodes by state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GateCounts {
    /// Nodes that the gate selects.
    pub matched: u32,
    /// Nodes that keep the taint.
    pub held: u32,
    /// Nodes that the gate has released.
    pub released: u32,
    /// Nodes that got the taint after their creation. Pods that do not tolerate it may have been bound before, see event `TaintedLate`.
    #[serde(default)]
    pub late: u32,
    /// Nodes that keep the taint for longer than release.timeout.
    pub stuck: u32,
    /// Nodes that would get the taint, in a dry run.
    pub would_taint: u32,
    /// Nodes that would lose the taint, in a dry run.
    pub would_release: u32,
}

/// Requirement for which nodes keep the taint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockedRequirement {
    /// Name of the requirement.
    pub requirement: String,
    /// Number of nodes.
    pub nodes: u32,
    /// Reason, for the first of these nodes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Names of up to ten of these nodes.
    #[schemars(length(max = 10))]
    pub sample: Vec<String>,
}

impl NodeReadinessGateSpec {
    /// A gate for every node, that says only which taint stays until which condition is met.
    pub fn new(taint: GateTaint, requirements: Vec<Requirement>) -> Self {
        Self {
            node_selector: None,
            all_nodes: true,
            taint,
            policy: Policy::default(),
            mode: Mode::default(),
            existing_nodes: None,
            regate_on: Vec::new(),
            requirements,
            release: None,
            retaint: None,
            admission: None,
            tolerations: None,
            deletion_policy: DeletionPolicy::default(),
            dry_run: false,
        }
    }

    /// The same for nodes with these labels alone.
    #[must_use]
    pub fn on(self, nodes: LabelSelector) -> Self {
        Self { node_selector: Some(nodes), all_nodes: false, ..self }
    }

    /// What the gate means to nodes that are older than itself.
    pub fn existing_nodes(&self) -> ExistingNodes {
        self.existing_nodes.unwrap_or(match self.mode {
            Mode::Bootstrap => ExistingNodes::Grandfather,
            Mode::Continuous => ExistingNodes::Gate,
        })
    }

    /// Whether a node with these labels is meant.
    pub fn selects<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.all_nodes || self.node_selector.as_ref().is_some_and(|selector| !selector.is_empty() && selector.matches(label))
    }
}
