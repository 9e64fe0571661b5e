//! What the operator saw: the only input of a decision.

use crate::{
    facts::{label_map::LabelMap, shared_spec::SharedSpec},
    node::clocks::Clocks,
    node_gates::Gate,
    rollout::proof::Sights,
    spec::{SpecProblem, node_rights::NodeRights},
};
use crds::{
    IngressDaemonSet,
    holders::Holders,
    in_place::PodRecord,
    ingress_daemon_set::IngressDaemonSetSpec,
    ledger::Ledger,
    names,
    node_readiness_gate::{ConditionStatus, GateTaint, NodeReadinessGateStatus},
    status::IngressDaemonSetStatus,
    token::{ParseTokenError, Token},
};
use k8s_openapi::api::core::v1::Taint;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

/// One `IngressDaemonSet` and everything around it at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The time of the decision, seconds since 1970.
    pub now: i64,
    /// The resource itself.
    pub resource: Resource,
    /// Image of this release's health checker.
    pub health_checker_image: String,
    /// What the resource may have written to Nodes.
    pub node_rights: Arc<NodeRights>,
    /// Every Node, by name.
    pub nodes: Arc<BTreeMap<String, Arc<NodeFacts>>>,
    /// The resource's Deployments, by the name of their node.
    pub deployments: BTreeMap<String, Arc<DeploymentFacts>>,
    /// The resource's pods, by the name of their node.
    pub pods: BTreeMap<String, Vec<PodFacts>>,
    /// Pods that pull images, by the name of their node.
    pub pulls: BTreeMap<String, Vec<PullFacts>>,
    /// `ReplicaSets` whose pods have the gate for updates in place, by the name of their node.
    pub replica_sets: BTreeMap<String, Vec<ReplicaSetFacts>>,
    /// `ReplicaSets` of ours without a Deployment above them: the template and node of each, by node name.
    pub orphans: BTreeMap<String, Value>,
    /// The resource's health-checker `DaemonSets`.
    pub daemon_sets: Vec<DaemonSetFacts>,
    /// Health checkers whose port belongs to somebody else on their node: what they said, with the node.
    pub port_conflicts: BTreeSet<String>,
    /// Rights that health checkers need and that the `ServiceAccount` which the resource names for them lacks, in words such as `list nodes`.
    pub account_lacks: Vec<String>,
    /// Recorded revisions of the template, in any order.
    pub history: Vec<RevisionFacts>,
    /// Other resources of the same kind.
    pub others: Vec<OtherResource>,
    /// Node ports that Services use, with the Service's `namespace/name`.
    pub service_ports: Arc<BTreeMap<u16, String>>,
    /// Names in the namespace that belong to somebody who is not a resource of this kind.
    pub foreign_names: BTreeSet<String>,
    /// Names in the namespace that belong to another resource of this kind.
    pub taken_names: BTreeSet<String>,
    /// What health ports said in this pass, by node: only of nodes that were asked. Ports that did not answer are left out; of a node where
    /// none did the list is empty.
    pub answers: BTreeMap<String, Vec<PortAnswer>>,
    /// Ids taken from the ledger by this process and not used yet.
    pub reserved: Vec<u64>,
    /// Seconds since this process last looked at the resource, by a clock that nobody sets; 0 at first.
    pub watched: i64,
    /// What this process has counted so far.
    pub clocks: Clocks,
    /// What this process has seen so far of nodes whose revision is not proved.
    pub sights: Sights,
    /// Deployments and Nodes were listed consistently after the ledger said `rebuilding`.
    pub listed_since_rebuild: bool,
    /// Supporting objects that this process has written lately.
    pub asserted: BTreeSet<String>,
    /// What the API server said when it refused a write for a node, by node name, or the template as such, by [`TEMPLATE`].
    pub refusals: BTreeMap<String, String>,
    /// Generation of each Deployment, by UID, that this process's last full write gave it: while it stands, nobody else
    /// has changed the spec, whatever the API server made of it.
    pub written_generations: BTreeMap<String, i64>,
    /// How readiness gates bear on the resource.
    pub gates: GateLinks,
    /// What is to be said of the gate that `nodeReadinessTaint` stands for; nothing before it was looked at.
    pub node_readiness: Option<NodeReadinessGateStatus>,
}

/// How readiness gates, of nodes and of pods, bear on a resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GateLinks {
    /// A gate asks for the resource's replicas.
    pub watched: bool,
    /// Taints, by key and effect, of gates that ask for replicas: they keep no pod of the resource away.
    pub taints: Vec<(String, String)>,
    /// Taints of all gates: they go by themselves, and are no statement about which pods a node is meant for.
    pub passing: Vec<(String, String)>,
    /// Gates that taint a node before it is updated (`duringUpdate: Taint`): nothing changes there before.
    pub tainting: Vec<Arc<Gate>>,
    /// Taints of gates that ask for them and evict what does not bear them (`NoExecute`).
    pub evicting: Vec<GateTaint>,
    /// Conditions that gates of pods ask to have listed in the pods, in order.
    pub conditions: Vec<String>,
    /// Conditions that gates of pods of the namespace keep; nothing while not all of these gates could be read.
    pub kept: Option<BTreeSet<String>>,
    /// Why gates of nodes cannot be read, when they cannot: nothing else is known of them then.
    pub unreadable: Option<String>,
}

/// Stands for the template among the refusals, where no node's name can.
pub const TEMPLATE: &str = "";

/// The resource.
#[derive(Clone, Debug)]
pub struct Resource {
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// UID.
    pub uid: String,
    /// `resourceVersion` that the status is written with.
    pub resource_version: String,
    /// Generation of the spec.
    pub generation: i64,
    /// Seconds since 1970.
    pub created: i64,
    /// Is being deleted.
    pub deleting: bool,
    /// Carries our finalizer, or the original's.
    pub finalizers: Vec<String>,
    /// Its annotation `…/retry`; empty when there is none.
    pub retry: String,
    /// The spec.
    pub spec: IngressDaemonSetSpec,
    /// Why the spec is not there, but for a few fields.
    pub withheld: Option<Withheld>,
    /// The status, absent when never written or wiped.
    pub status: Option<IngressDaemonSetStatus>,
}

/// Resources of a namespace that are looked after: those that run something, then the oldest.
pub const RESOURCES_PER_NAMESPACE: usize = 100;
/// Bytes of a spec as JSON, at most.
pub const SPEC_BYTES: usize = 64 * 1024;
/// Mappings in a template, at most.
pub const SPEC_MAPPINGS: usize = 1000;

/// Why the spec of a resource is not held: whoever may make resources could fill the operator's memory with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withheld {
    /// It is longer than [`SPEC_BYTES`], or its template has more than [`SPEC_MAPPINGS`] mappings.
    TooLarge {
        /// Bytes as JSON.
        bytes: usize,
        /// Mappings of the template.
        mappings: usize,
    },
    /// Its namespace has [`RESOURCES_PER_NAMESPACE`] that come first.
    TooMany,
}

impl Withheld {
    /// The same as what is wrong with the spec.
    pub fn invalid(self) -> SpecProblem {
        match self {
            Self::TooLarge { bytes, mappings } => SpecProblem {
                reason: "TooLarge",
                message: format!(
                    "the spec is {} KiB long as JSON, with {mappings} mappings in its template; at most {} KiB and {SPEC_MAPPINGS} mappings are \
                     looked after, and the last good state keeps running: move what is long into a ConfigMap",
                    bytes.div_ceil(1024),
                    SPEC_BYTES / 1024,
                ),
            },
            Self::TooMany => SpecProblem {
                reason: "TooManyResources",
                message: format!(
                    "of a namespace {RESOURCES_PER_NAMESPACE} IngressDaemonSets are looked after, those that run something and then the oldest, and \
                     this is none of them; what it runs keeps running: delete others, or make it in another namespace"
                ),
            },
        }
    }
}

impl Resource {
    /// One that was just made at this time, seconds since 1970, and that no operator has seen yet.
    pub fn created(key: (&str, &str), uid: &str, spec: IngressDaemonSetSpec, at: i64) -> Self {
        Self {
            name: key.1.to_owned(),
            namespace: key.0.to_owned(),
            uid: uid.to_owned(),
            resource_version: "1".to_owned(),
            generation: 1,
            created: at,
            deleting: false,
            finalizers: Vec::new(),
            retry: String::new(),
            spec,
            withheld: None,
            status: None,
        }
    }

    /// `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// What has this key, `namespace/name`, for those who may read this resource: they may read nothing of other namespaces.
    pub fn name_for_its_readers(&self, kind: &str, key: &str) -> String {
        let is_near = key.split_once('/').is_some_and(|(namespace, _)| namespace == self.namespace);
        if is_near { format!("{kind} {key}") } else { format!("a {kind} of another namespace") }
    }

    /// The grant ledger; absent when never written or wiped.
    pub fn ledger(&self) -> Option<&Ledger> {
        self.status.as_ref()?.rollout.as_ref()
    }

    /// Pods of a node by the last spec that was valid, where the status still says so.
    pub fn last_replicas(&self) -> Option<i32> {
        self.status.as_ref().filter(|status| !status.revisions.effective.is_empty()).map(|status| status.replicas)
    }

    /// The first 8 characters of the UID.
    pub fn uid8(&self) -> &str {
        crds::names::uid8(&self.uid)
    }
}

/// What is read of a Node.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field or condition of the object")]
pub struct NodeFacts {
    /// UID.
    pub uid: String,
    /// `resourceVersion`.
    pub resource_version: String,
    /// Labels.
    pub labels: LabelMap,
    /// Annotations.
    pub annotations: LabelMap,
    /// Has an annotation map at all: JSON Patch cannot add into a missing one.
    pub has_annotations: bool,
    /// Taints.
    pub taints: Vec<Taint>,
    /// Cordoned.
    pub unschedulable: bool,
    /// Ready condition is True.
    pub ready: bool,
    /// Is being deleted.
    pub deleting: bool,
    /// IP address at which the node is reached inside the cluster.
    pub address: Option<String>,
    /// Conditions.
    pub conditions: Vec<NodeCondition>,
    /// Boot ID: another one after each start of the machine.
    pub boot_id: String,
    /// ID of the machine.
    pub machine_id: String,
    /// Seconds since 1970.
    pub created: i64,
}

/// A condition of a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCondition {
    /// Its type.
    pub type_: Arc<str>,
    /// What it says.
    pub status: ConditionStatus,
    /// When it was last said, seconds since 1970.
    pub heartbeat: i64,
    /// When it last changed, seconds since 1970.
    pub transition: i64,
}

impl NodeFacts {
    /// The resource of this UID, of which these are the first characters, uses the node, as its label says.
    pub fn is_used_by(&self, uid8: &str) -> bool {
        self.labels.contains_key(&names::member_label(uid8))
    }

    /// The same, but for what changes with every heartbeat.
    pub fn equals_ignoring_heartbeats(&self, other: &Self) -> bool {
        let said = |condition: &NodeCondition| NodeCondition { heartbeat: 0, ..condition.clone() };
        self.conditions.len() == other.conditions.len()
            && self.conditions.iter().map(said).eq(other.conditions.iter().map(said))
            && self.is_same_but_conditions(other)
    }

    /// The same to whom conditions other than Ready mean nothing.
    pub fn is_same_but_conditions(&self, other: &Self) -> bool {
        *self == Self { resource_version: self.resource_version.clone(), conditions: self.conditions.clone(), ..other.clone() }
    }

    /// What decides on who may use the node, its labels and taints, as a number; equal for equal ones within one process.
    pub fn labels_and_taints_hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (key, value) in self.labels.entries() {
            (key, value).hash(&mut hasher);
        }
        for taint in &self.taints {
            (&taint.key, &taint.effect, &taint.value).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Value of what marks the Node: an annotation, or a label.
    pub fn mark(&self, key: &str) -> Option<&String> {
        key.strip_prefix(crds::names::LABEL_MARK).map_or_else(|| self.annotations.get(key), |key| self.labels.get(key))
    }

    /// The holders annotation; `Err` when somebody made it unreadable.
    pub fn holders(&self) -> Result<Holders, serde_json::Error> {
        crds::holders::parse(self.annotations.get(crds::names::HOLDERS_ANNOTATION).map(String::as_str))
    }
}

/// What is read of a per-node Deployment.
#[derive(Clone, Debug, PartialEq)]
pub struct DeploymentFacts {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// `resourceVersion`.
    pub resource_version: String,
    /// Generation.
    pub generation: i64,
    /// Labels.
    pub labels: LabelMap,
    /// Annotations.
    pub annotations: LabelMap,
    /// `spec` as stored, API defaults included.
    pub spec: SharedSpec,
    /// `status`.
    pub status: DeploymentCounts,
    /// Message of the condition `ReplicaFailure` when it is True: the API refused pods.
    pub refusal: Option<String>,
    /// Is being deleted.
    pub deleting: bool,
}

/// Counters of a Deployment's status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeploymentCounts {
    /// observedGeneration.
    pub observed_generation: i64,
    /// replicas.
    pub replicas: i32,
    /// updatedReplicas.
    pub updated: i32,
    /// readyReplicas.
    pub ready: i32,
    /// availableReplicas.
    pub available: i32,
    /// terminatingReplicas; 0 where the API server does not report it, the pods tell then.
    pub terminating: i32,
}

impl DeploymentFacts {
    /// The token; `None` when there is none.
    pub fn token(&self) -> Option<Result<Token, ParseTokenError>> {
        self.labels.get(crds::names::TOKEN_LABEL).map(|text| text.parse())
    }

    /// The token when it is readable.
    pub fn readable_token(&self) -> Option<Token> {
        self.token().and_then(Result::ok)
    }

    /// `spec.replicas`; the API server's default is 1.
    pub fn replicas(&self) -> i32 {
        self.spec.number("replicas").and_then(|n| i32::try_from(n).ok()).unwrap_or(1)
    }

    /// A label of the pod template.
    pub fn template_label(&self, key: &str) -> Option<&str> {
        self.spec.template_label(key)
    }

    /// The revision that the pod template carries.
    pub fn revision(&self) -> &str {
        self.template_label(crds::names::REVISION_LABEL).unwrap_or_default()
    }
}

/// What a health port said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAnswer {
    /// The port.
    pub port: u16,
    /// It answered 200.
    pub healthy: bool,
    /// The phase of the token that it has seen, where it is a health checker of the resource.
    pub phase: Option<crds::token::Phase>,
}

/// What is read of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field or condition of the object")]
pub struct PodFacts {
    /// Name.
    pub name: String,
    /// Revision label.
    pub revision: String,
    /// Condition Ready.
    pub ready: bool,
    /// Is being deleted.
    pub terminating: bool,
    /// Phase Failed or Succeeded: holds nothing any more.
    pub ended: bool,
    /// Seconds since 1970.
    pub created: i64,
    /// How often its containers were started again.
    pub restarts: i32,
    /// Stands for the runs of all its containers: another number once one of them was started again.
    pub runs: u64,
    /// Its kubelet evicted it.
    pub evicted: bool,
    /// Seconds since 1970 when the kubelet refused it at admission.
    pub rejected_at: Option<i64>,
    /// What an update in place reads, where the pod has the gate for it.
    pub gated: Option<Box<InPlacePod>>,
    /// Conditions that it lists as readiness gates and that are not True, where there are any.
    pub unmet: Option<Box<Unmet>>,
    /// It is there to pull images.
    pub pull: Option<Box<PullFacts>>,
    /// Why it does not run: reason and message of a waiting container, of scheduling, or of the refusal.
    pub trouble: Option<(String, String)>,
    /// It is a health checker that ended because its port belongs to somebody else: what it said, with its node.
    pub port_conflict: Option<String>,
}

/// What is read of a pod that pulls images before a node's update.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PullFacts {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Name of its node.
    pub node: String,
    /// Whose images it pulls.
    pub revision: String,
    /// All of them are there.
    pub pulled: bool,
    /// Is being deleted.
    pub terminating: bool,
    /// Why one is not: reason and message.
    pub trouble: Option<(String, String)>,
}

/// What is read of a pod that can be updated in place: one that has the gate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InPlacePod {
    /// UID.
    pub uid: String,
    /// `resourceVersion`.
    pub resource_version: String,
    /// Generation; 0 where the API server counts none for pods.
    pub generation: i64,
    /// The generation that the kubelet has seen; 0 where it does not say.
    pub observed_generation: i64,
    /// Which `ReplicaSet` made it: the label `pod-template-hash`.
    pub hash: String,
    /// The condition of the gate; absent when there is none.
    pub gate: Option<bool>,
    /// The containers, in the order of the spec.
    pub containers: Vec<ContainerFacts>,
    /// Seconds that its containers have to end.
    pub termination_grace: i64,
    /// Labels.
    pub labels: LabelMap,
    /// Annotations.
    pub annotations: LabelMap,
    /// What the last update in place left on it.
    pub record: Option<PodRecord>,
}

/// Conditions that keep a pod from being ready, but for that of updates in place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unmet {
    /// UID of the pod.
    pub uid: String,
    /// Its `resourceVersion`.
    pub resource_version: String,
    /// Their types.
    pub conditions: Vec<String>,
}

/// What is read of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerFacts {
    /// Name.
    pub name: String,
    /// Image in the pod's spec.
    pub image: String,
    /// Image that its status shows.
    pub shown: String,
    /// ID of that.
    pub image_id: String,
    /// ID of its run; empty when none has begun.
    pub id: String,
    /// When its run began, seconds since 1970 by the node's clock; 0 when none does.
    pub started_at: i64,
    /// It runs, and its startup probe has succeeded.
    pub running: bool,
    /// Ready.
    pub ready: bool,
    /// How often it was started again.
    pub restarts: i32,
}

/// What is read of a `ReplicaSet` whose pods have the gate.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaSetFacts {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// UID of its Deployment.
    pub owner: String,
    /// The label `pod-template-hash`.
    pub hash: String,
    /// Label by which updates in place are fenced.
    pub token: Option<String>,
    /// Pods that it wants, or has.
    pub replicas: i32,
    /// Holds `template`, without the label above.
    pub spec: SharedSpec,
}

impl ReplicaSetFacts {
    /// Its pod template, as its Deployment's is.
    pub fn template(&self) -> Value {
        self.spec.get("template").unwrap_or_default()
    }
}

/// What is read of a health-checker `DaemonSet`.
#[derive(Clone, Debug, PartialEq)]
pub struct DaemonSetFacts {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Port that it serves.
    pub port: u16,
    /// `metadata.labels`, and `spec` as stored.
    pub spec: Arc<Value>,
    /// All its pods are of the newest generation and ready.
    pub settled: bool,
    /// Nodes it should run on.
    pub desired: i32,
    /// Nodes on which it is ready.
    pub ready: i32,
    /// Has our resource as its controller.
    pub owned: bool,
}

/// A recorded revision of the template: a `ControllerRevision` of ours.
#[derive(Clone, Debug, PartialEq)]
pub struct RevisionFacts {
    /// Object name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Its number: the newest has the highest.
    pub number: i64,
    /// Hash of the template, see [`crds::hash::revision`].
    pub revision: String,
    /// The template as it was in the spec.
    pub template: Arc<Value>,
}

/// What must be known of another resource.
#[derive(Clone, Debug)]
pub struct OtherResource {
    /// `namespace/name`.
    pub key: String,
    /// UID.
    pub uid: String,
    /// Seconds since 1970.
    pub created: i64,
    /// Itself.
    pub resource: Arc<IngressDaemonSet>,
    /// Its spec was found to be valid when the operator last looked. One that was edited since is that until it is looked at again: meanwhile
    /// nobody takes what it uses.
    pub accepted: bool,
}

impl Snapshot {
    /// The resource alone: nothing else is known, nothing is there, and nothing is forbidden.
    pub fn of(resource: Resource, now: i64) -> Self {
        Self {
            now,
            resource,
            health_checker_image: String::new(),
            node_rights: Arc::new(NodeRights::all()),
            nodes: Arc::default(),
            deployments: BTreeMap::new(),
            pods: BTreeMap::new(),
            pulls: BTreeMap::new(),
            replica_sets: BTreeMap::new(),
            orphans: BTreeMap::new(),
            daemon_sets: Vec::new(),
            port_conflicts: BTreeSet::new(),
            account_lacks: Vec::new(),
            history: Vec::new(),
            others: Vec::new(),
            service_ports: Arc::default(),
            foreign_names: BTreeSet::new(),
            taken_names: BTreeSet::new(),
            answers: BTreeMap::new(),
            reserved: Vec::new(),
            watched: 0,
            clocks: Clocks::default(),
            sights: Sights::default(),
            listed_since_rebuild: false,
            asserted: BTreeSet::new(),
            refusals: BTreeMap::new(),
            written_generations: BTreeMap::new(),
            gates: GateLinks::default(),
            node_readiness: None,
        }
    }

    /// The pods on a node.
    pub fn pods_on(&self, node: &str) -> &[PodFacts] {
        self.pods.get(node).map_or(&[], Vec::as_slice)
    }
}
