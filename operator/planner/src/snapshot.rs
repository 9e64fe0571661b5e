//! What the operator saw: the only input of a decision.

use crate::{stored::StoredSpec, texts::Texts};
use crds::{
    holders::Holders,
    ingress_daemon_set::IngressDaemonSetSpec,
    ledger::Ledger,
    node_readiness_gate::ConditionStatus,
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
    /// Every Node, by name.
    pub nodes: Arc<BTreeMap<String, Arc<NodeFacts>>>,
    /// The resource's Deployments, by the name of their node.
    pub deployments: BTreeMap<String, Arc<DeploymentFacts>>,
    /// The resource's pods, by the name of their node.
    pub pods: BTreeMap<String, Vec<PodFacts>>,
    /// `ReplicaSets` of ours without a Deployment above them: the template and node of each, by node name.
    pub orphans: BTreeMap<String, Value>,
    /// The resource's health-checker `DaemonSets`.
    pub daemon_sets: Vec<DaemonSetFacts>,
    /// Health checkers whose port belongs to somebody else on their node: what they said, with the node.
    pub port_conflicts: BTreeSet<String>,
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
    /// What health ports said in this pass, by node: only of nodes that were asked. Ports that did not answer are left out.
    pub answers: BTreeMap<String, Vec<PortAnswer>>,
    /// Ids taken from the ledger by this process and not used yet.
    pub reserved: Vec<u64>,
    /// When this process first saw a mark: by (node, id). For stored times that lie in the future.
    pub first_seen: BTreeMap<(String, u64), i64>,
    /// Deployments and Nodes were listed consistently after the ledger said `rebuilding`.
    pub listed_since_rebuild: bool,
    /// Supporting objects that this process has written lately.
    pub asserted: BTreeSet<String>,
    /// What the API server said when it refused a write for a node, by node name, or the template as such, by [`TEMPLATE`].
    pub refusals: BTreeMap<String, String>,
    /// Generation of each Deployment, by UID, that this process's last full write gave it: while it stands, nobody else
    /// has changed the spec, whatever the API server made of it.
    pub written_generations: BTreeMap<String, i64>,
    /// How readiness gates of nodes bear on the resource.
    pub gates: GateLinks,
}

/// How readiness gates of nodes bear on a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GateLinks {
    /// A gate asks for the resource's replicas.
    pub watched: bool,
    /// Taints, by key and effect, of gates that ask for them: they keep no pod of the resource away.
    pub taints: Vec<(String, String)>,
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
    /// The spec.
    pub spec: IngressDaemonSetSpec,
    /// The status, absent when never written or wiped.
    pub status: Option<IngressDaemonSetStatus>,
}

impl Resource {
    /// `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// The grant ledger; absent when never written or wiped.
    pub fn ledger(&self) -> Option<&Ledger> {
        self.status.as_ref()?.rollout.as_ref()
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
    pub labels: Texts,
    /// Annotations.
    pub annotations: Texts,
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
    /// The same, but for what changes with every heartbeat.
    pub fn says_the_same(&self, other: &Self) -> bool {
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
    pub fn standing(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (key, value) in self.labels.entries() {
            (key, value).hash(&mut hasher);
        }
        for taint in &self.taints {
            (&taint.key, &taint.effect, &taint.value).hash(&mut hasher);
        }
        hasher.finish()
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
    pub labels: Texts,
    /// Annotations.
    pub annotations: Texts,
    /// `spec` as stored, API defaults included.
    pub spec: StoredSpec,
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
    /// Seconds since 1970 when the kubelet refused it at admission.
    pub rejected_at: Option<i64>,
    /// Why it does not run: reason and message of a waiting container, of scheduling, or of the refusal.
    pub trouble: Option<(String, String)>,
    /// It is a health checker that ended because its port belongs to somebody else: what it said, with its node.
    pub port_conflict: Option<String>,
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
    /// Its spec.
    pub spec: Arc<IngressDaemonSetSpec>,
}

impl Snapshot {
    /// The resource alone: nothing else is known, and nothing is there.
    pub fn of(resource: Resource, now: i64) -> Self {
        Self {
            now,
            resource,
            health_checker_image: String::new(),
            nodes: Arc::default(),
            deployments: BTreeMap::new(),
            pods: BTreeMap::new(),
            orphans: BTreeMap::new(),
            daemon_sets: Vec::new(),
            port_conflicts: BTreeSet::new(),
            history: Vec::new(),
            others: Vec::new(),
            service_ports: Arc::default(),
            foreign_names: BTreeSet::new(),
            taken_names: BTreeSet::new(),
            answers: BTreeMap::new(),
            reserved: Vec::new(),
            first_seen: BTreeMap::new(),
            listed_since_rebuild: false,
            asserted: BTreeSet::new(),
            refusals: BTreeMap::new(),
            written_generations: BTreeMap::new(),
            gates: GateLinks::default(),
        }
    }

    /// The pods on a node.
    pub fn pods_on(&self, node: &str) -> &[PodFacts] {
        self.pods.get(node).map_or(&[], Vec::as_slice)
    }
}
