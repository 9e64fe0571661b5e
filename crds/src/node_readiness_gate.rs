//! `NodeReadinessGate`: a taint stays on a node until what the node needs is ready.
#![allow(clippy::duplicated_attributes, reason = "printer columns repeat their words; clippy takes them for one attribute")]

use crate::{duration::Duration, label_selector::LabelSelector};
use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{Condition, Time},
    util::intstr::IntOrString,
};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which nodes stay tainted until what is ready. Writer: the user.
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
    doc = "Keeps a taint on nodes until what they need is ready, so that workloads do not land on a node whose network, DNS or ingress is not there yet.",
    selectable = ".spec.mode",
    selectable = ".spec.taint.key",
    selectable = ".spec.taint.effect",
    selectable = ".spec.dryRun",
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.mode"),
    printcolumn(name = "Taint", type_ = "string", json_path = ".spec.taint.key"),
    printcolumn(name = "Effect", type_ = "string", json_path = ".spec.taint.effect"),
    printcolumn(name = "Dry-run", type_ = "boolean", json_path = ".spec.dryRun"),
    printcolumn(name = "Held", type_ = "integer", json_path = ".status.nodes.held", description = "Nodes that the taint is kept on"),
    printcolumn(name = "Matched", type_ = "integer", json_path = ".status.nodes.matched", description = "Nodes that the gate selects"),
    printcolumn(name = "Summary", type_ = "string", json_path = ".status.summary"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.allNodes || has(self.nodeSelector) && (has(self.nodeSelector.matchLabels) && self.nodeSelector.matchLabels.size() > 0 || has(self.nodeSelector.matchExpressions) && self.nodeSelector.matchExpressions.size() > 0)")
    .message("nodeSelector must name a label: a gate for every node says allNodes: true"))]
#[x_kube(validation = Rule::new("!self.allNodes || !has(self.nodeSelector)")
    .message("allNodes: true and nodeSelector exclude each other: remove one"))]
#[x_kube(validation = Rule::new("self.mode == 'Bootstrap' || !has(self.regateOn)")
    .message("regateOn is for mode Bootstrap: with mode Continuous a node that is not ready gets the taint again anyway"))]
#[x_kube(validation = Rule::new("self.mode == 'Continuous' || !has(self.retaint)")
    .message("retaint is for mode Continuous: with mode Bootstrap a node that was released stays so"))]
#[x_kube(validation = Rule::new("self.taint == oldSelf.taint").message("the taint cannot be changed: make another gate with the new taint, then delete this one"))]
pub struct NodeReadinessGateSpec {
    /// Labels of the nodes that the gate is for. Must name at least one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<LabelSelector>,
    /// The gate is for every node.
    #[serde(default)]
    pub all_nodes: bool,
    /// The taint. It cannot be changed: make another gate, then delete this one.
    pub taint: GateTaint,
    /// Whether all requirements must be met, or any of them.
    #[serde(default)]
    pub policy: Policy,
    /// Bootstrap: a node is released once. Continuous: the taint comes back when the requirements cease to be met.
    #[serde(default)]
    pub mode: Mode,
    /// Nodes that were there before the gate was in force for them, see status.inForce. Gate: as new ones, with mode Continuous as far as retaint.failingFor and retaint.budget allow. Grandfather: they count as released. `GateIfIdle`: as new ones while nothing runs there but system pods and those of `DaemonSets`. Default: Grandfather with mode Bootstrap, Gate with Continuous.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing_nodes: Option<ExistingNodes>,
    /// With mode Bootstrap: what makes a released node a new one. Reboot: another boot ID. Replaced: another machine under the same Node. Generation: a change of this spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3), extend("x-kubernetes-list-type" = "set"))]
    pub regate_on: Vec<Regate>,
    /// What a node needs, 1 to 32.
    #[schemars(length(min = 1, max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub requirements: Vec<Requirement>,
    /// When the taint goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<Release>,
    /// With mode Continuous: when it comes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retaint: Option<Retaint>,
    /// How nodes are tainted as they are created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<Admission>,
    /// Which pods get a toleration of the taint from the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerations: Option<Tolerations>,
    /// What becomes of the taints when the gate is deleted.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// Decide and report, and write nothing to any node.
    #[serde(default)]
    pub dry_run: bool,
}

/// A taint that is kept until a node is ready.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GateTaint {
    /// Its key, such as readiness.k8s.io/ingress, which Karpenter knows as one that goes away, or startup-taint.cluster-autoscaler.kubernetes.io/ingress, which cluster-autoscaler does.
    #[schemars(schema_with = "crate::manifest::taint_key_schema")]
    pub key: String,
    /// Its value. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::label_value_schema")]
    pub value: Option<String>,
    /// `NoSchedule`, `PreferNoSchedule`, or `NoExecute`, which evicts what runs on the node and does not tolerate it.
    #[serde(default)]
    pub effect: Effect,
}

/// What a taint does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Effect {
    /// No pod is scheduled that does not tolerate it.
    #[default]
    NoSchedule,
    /// The same where it can be helped.
    PreferNoSchedule,
    /// Pods that do not tolerate it are evicted, too.
    NoExecute,
}

impl Effect {
    /// As in a Node.
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

    /// As in a Node.
    fn from_str(name: &str) -> Result<Self, String> {
        let all = [Self::NoSchedule, Self::PreferNoSchedule, Self::NoExecute];
        let found = all.into_iter().find(|effect| effect.as_str() == name);
        found.ok_or_else(|| format!("`{name}` is none of the effects NoSchedule, PreferNoSchedule and NoExecute"))
    }
}

/// How requirements are joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Policy {
    /// All must be met that apply to the node.
    #[default]
    AllOf,
    /// One that is met is enough.
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

/// What the gate means to nodes that were there before it was in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExistingNodes {
    /// As to new ones.
    Gate,
    /// They count as released.
    Grandfather,
    /// As to new ones while they are idle, else they count as released.
    GateIfIdle,
}

/// What makes a released node a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Regate {
    /// Another boot ID.
    Reboot,
    /// Another machine under the same Node.
    Replaced,
    /// A change of the gate's spec.
    Generation,
}

/// One thing that a node needs; exactly one kind of it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.condition), has(self.pods), has(self.daemonSet), has(self.ingressDaemonSet), has(self.csiDriver), has(self.gate), has(self.nodeAnnotation)].filter(given, given).size() == 1")
    .message("a requirement must have exactly one of condition, pods, daemonSet, ingressDaemonSet, csiDriver, gate and nodeAnnotation"))]
pub struct Requirement {
    /// A name of its own, for status and metrics.
    #[schemars(schema_with = "crate::manifest::short_name_schema")]
    pub name: String,
    /// A condition of the Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<ConditionRequirement>,
    /// Pods on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<PodsRequirement>,
    /// The pod of a `DaemonSet`, on nodes where it is to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daemon_set: Option<DaemonSetRequirement>,
    /// The replicas of an `IngressDaemonSet`, on nodes that it chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress_daemon_set: Option<IngressDaemonSetRequirement>,
    /// A CSI driver that is registered on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csi_driver: Option<CsiDriverRequirement>,
    /// Another gate that has released the node: taints that go one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<GateRequirement>,
    /// An annotation of the Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_annotation: Option<AnnotationRequirement>,
}

/// A condition of the Node, looked up by its type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConditionRequirement {
    /// Type of the condition, such as Ready.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 316))]
    pub type_: String,
    /// What it must say.
    #[serde(default)]
    pub status: ConditionStatus,
    /// What counts where the Node has no such condition.
    #[serde(rename = "default", default, skip_serializing_if = "Option::is_none")]
    pub default_: Option<ConditionStatus>,
    /// A condition whose last heartbeat is older counts as Unknown: whoever wrote it is gone. Default: it never grows old.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::duration_schema")]
    pub max_age: Option<Duration>,
}

/// What a condition says.
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
    /// As in a Node.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// Pods on the node; those that end, or have ended, do not count.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.annotationOnly) || !self.annotationOnly || has(self.readyAnnotation)")
    .message("annotationOnly needs readyAnnotation, the annotation that says that a pod is ready"))]
pub struct PodsRequirement {
    /// Their namespace: whoever may make pods there can release nodes.
    #[schemars(schema_with = "crate::manifest::object_name_schema")]
    pub namespace: String,
    /// Their labels.
    pub selector: LabelSelector,
    /// How many must be ready: a number, or All that match, of which there must be one. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::min_ready_schema")]
    pub min_ready: Option<IntOrString>,
    /// An annotation that makes a pod count as ready before Kubernetes calls it so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_annotation: Option<AnnotationRequirement>,
    /// Nothing but that annotation makes a pod count as ready.
    #[serde(default)]
    pub annotation_only: bool,
}

/// The pod of a `DaemonSet`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DaemonSetRequirement {
    /// Its namespace.
    #[schemars(schema_with = "crate::manifest::object_name_schema")]
    pub namespace: String,
    /// Its name.
    #[schemars(schema_with = "crate::manifest::object_name_schema")]
    pub name: String,
    /// The pod must be of the newest revision.
    #[serde(default)]
    pub current_revision: bool,
}

/// The replicas of an `IngressDaemonSet`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IngressDaemonSetRequirement {
    /// Its namespace.
    #[schemars(schema_with = "crate::manifest::object_name_schema")]
    pub namespace: String,
    /// Its name.
    #[schemars(schema_with = "crate::manifest::object_name_schema")]
    pub name: String,
    /// How many replicas of the node must be ready: a number, a percentage (rounded up), or All. Default All.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::min_ready_or_percent_schema")]
    pub min_ready: Option<IntOrString>,
    /// While the operator itself updates the node. Hold: what was found before stays. Strict: as at any other time. Taint: the node is tainted before anything on it changes, until it is attached again.
    #[serde(default)]
    pub during_update: DuringUpdate,
    /// With Hold: how long at most. Default 10m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::duration_schema")]
    pub max_hold: Option<Duration>,
}

/// What counts while the operator updates a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DuringUpdate {
    /// What was found before.
    #[default]
    Hold,
    /// What is found.
    Strict,
    /// The node is not ready.
    Taint,
}

/// A CSI driver that is registered on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CsiDriverRequirement {
    /// Its name, as in the node's `CSINode`.
    #[schemars(schema_with = "crate::manifest::object_name_schema")]
    pub name: String,
}

/// Another gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GateRequirement {
    /// Its name.
    #[schemars(schema_with = "crate::manifest::object_name_schema")]
    pub name: String,
}

/// An annotation with its value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnnotationRequirement {
    /// Its key.
    #[schemars(schema_with = "crate::manifest::any_annotation_key_schema")]
    pub key: String,
    /// Its value. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::annotation_value_schema")]
    pub value: Option<String>,
}

/// When the taint goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Release {
    /// The requirements must be met for this long without a break. Default 0s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::duration_schema")]
    pub stable_for: Option<Duration>,
    /// The taint stays at least this long. Default 0s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::duration_schema")]
    pub min_hold: Option<Duration>,
    /// Keys of taints of others that must be gone first. Default: those of a node that Karpenter or a cloud provider has not finished yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), inner(length(max = 317)))]
    pub wait_for_taints_gone: Option<Vec<String>>,
    /// What happens to a node that is held for too long. Default: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<ReleaseTimeout>,
}

/// What happens to a node that is held for too long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseTimeout {
    /// How long is too long.
    #[schemars(schema_with = "crate::manifest::duration_schema")]
    pub after: Duration,
    /// Report: status, event and metric say so. Release: the taint goes, too.
    #[serde(default)]
    pub action: TimeoutAction,
}

/// What is done about a node that is held for too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TimeoutAction {
    /// It is said.
    #[default]
    Report,
    /// The node is released.
    Release,
}

/// When the taint comes back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Retaint {
    /// The requirements must be unmet for this long without a break. Default 10s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::duration_schema")]
    pub failing_for: Option<Duration>,
    /// How many nodes may lose their release, so that a bad version of one component does not taint them all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<RetaintBudget>,
}

/// How many nodes may lose their release.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetaintBudget {
    /// At once: a number, or a percentage of the nodes that the gate selects, rounded down, at least 1 when above 0. Default 20%, with effect `NoExecute` 5%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::count_or_percent_schema")]
    pub max_nodes: Option<IntOrString>,
    /// In a minute. Default 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10000))]
    pub per_minute: Option<u32>,
}

/// How nodes are tainted as they are created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Admission {
    /// Auto: by a `MutatingAdmissionPolicy` where the server has them, else by the operator's webhook. None: the operator taints a node when it sees it, a moment later.
    #[serde(default)]
    pub on_create: OnCreate,
}

/// How nodes are tainted as they are created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnCreate {
    /// Policy where there are policies, else Webhook where the operator serves one, else None.
    #[default]
    Auto,
    /// By a `MutatingAdmissionPolicy`, inside the API server.
    Policy,
    /// By the operator's webhook.
    Webhook,
    /// Not at all: a moment later.
    None,
}

/// Which pods get a toleration from the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tolerations {
    /// Owned: those of an `IngressDaemonSet` that a requirement names. Referenced: those of a `DaemonSet` that one names, too: its template gets the toleration whenever it is written, where the API server has `MutatingAdmissionPolicies`; its pods are replaced then. None: no pods.
    #[serde(default)]
    pub inject: Inject,
}

/// Which pods get a toleration from the operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Inject {
    /// None.
    None,
    /// Those that the operator makes.
    #[default]
    Owned,
    /// Those of `DaemonSets` that a requirement names, too.
    Referenced,
}

/// What becomes of the taints when the gate is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    /// They go.
    #[default]
    RemoveTaints,
    /// They stay.
    Orphan,
}

/// What the operator last saw and did. Writer of every field: the operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeReadinessGateStatus {
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, Satisfiable, Overlapping, `BudgetExhausted`, `TolerationMissing`, `AdmissionActive`: new nodes have the taint from their creation on; `Settling` for 5 s after a change.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]), length(max = 16))]
    pub conditions: Vec<Condition>,
    /// Since when the gate is in force; none while it taints no node, for dryRun or Satisfiable=False.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_force: Option<InForce>,
    /// Taints that the gate has or had, the newest last, at most 16: no other one is taken from a node, whatever an annotation of the Node says, which its kubelet may write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub taints: Vec<GateTaint>,
    /// Numbers of nodes.
    #[serde(default)]
    pub nodes: GateCounts,
    /// Requirements that hold nodes, at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub blocked: Vec<BlockedRequirement>,
    /// The same in a few words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
}

/// Since when a gate is in force, and for which nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InForce {
    /// Nodes that were created before it are existing ones to the gate, see spec.existingNodes.
    pub since: Time,
    /// Hash of the nodes that it selects: with another selector it is in force anew.
    #[schemars(length(max = 16))]
    pub scope: String,
}

/// Numbers of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GateCounts {
    /// Selected by the gate.
    pub matched: u32,
    /// The taint is kept on them.
    pub held: u32,
    /// They have passed.
    pub released: u32,
    /// They got the taint after they had been created: pods that do not tolerate it may have come before, see the event `TaintedLate`.
    #[serde(default)]
    pub late: u32,
    /// Held for longer than release.timeout.
    pub stuck: u32,
    /// In a dry run: would get the taint.
    pub would_taint: u32,
    /// In a dry run: would lose it.
    pub would_release: u32,
}

/// A requirement that holds nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockedRequirement {
    /// Its name.
    pub requirement: String,
    /// How many nodes.
    pub nodes: u32,
    /// Why, on the first of them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Up to ten of them, by name.
    #[schemars(length(max = 10))]
    pub sample: Vec<String>,
}

impl NodeReadinessGateSpec {
    /// A gate for every node, with nothing else said than which taint stays until what is there.
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
