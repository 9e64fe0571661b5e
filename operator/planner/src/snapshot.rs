//! What the operator saw: the only input of a decision.

use crate::{
    facts::{
        DaemonSetFacts, DeploymentFacts, NodeFacts, OtherResource, PodFacts, PullFacts, ReplicaSetFacts, Resource, RevisionFacts,
        shared_spec::SharedSpec,
    },
    memory::{Clocks, Sights},
    node_gates::GateLinks,
    reason::NodeObject,
    spec::node_rights::NodeRights,
};
use crds::{UnixSeconds, node_readiness_gate::NodeReadinessGateStatus};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// One `IngressDaemonSet` and everything around it at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The time of the decision.
    pub now: UnixSeconds,
    /// Resource to decide about.
    pub resource: Resource,
    /// Image of this release's health checker.
    pub health_checker_image: String,
    /// What the resource may have written to Nodes.
    pub node_rights: Arc<NodeRights>,
    /// All Nodes of the cluster, by name.
    pub nodes: Arc<BTreeMap<String, Arc<NodeFacts>>>,
    /// The resource's Deployments, by the name of their node.
    pub deployments: BTreeMap<String, Arc<DeploymentFacts>>,
    /// The resource's pods, by the name of their node.
    pub pods: BTreeMap<String, Vec<Arc<PodFacts>>>,
    /// Pods that pull images, by the name of their node.
    pub pulls: BTreeMap<String, Vec<PullFacts>>,
    /// `ReplicaSets` whose pods have the gate for updates in place, by the name of their node.
    pub replica_sets: BTreeMap<String, Vec<ReplicaSetFacts>>,
    /// `ReplicaSets` of ours without a Deployment above them, by node name: `template` of each.
    pub orphans: BTreeMap<String, SharedSpec>,
    /// `DaemonSets` of the resource's health checkers.
    pub daemon_sets: Vec<DaemonSetFacts>,
    /// Health checkers whose port belongs to somebody else on their node: what they said, with the node.
    pub port_conflicts: BTreeSet<String>,
    /// Rights that health checkers need and that the `ServiceAccount` which the resource names for them lacks, in words such as `list
    /// nodes`.
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
    /// Seconds since this process first looked at it, by the same clock.
    pub known_for: i64,
    /// What this process has counted so far.
    pub clocks: Clocks,
    /// What this process has seen so far of nodes whose revision is not proved.
    pub sights: Sights,
    /// Deployments and Nodes were listed consistently after the ledger said `rebuilding`.
    pub listed_since_rebuild: bool,
    /// Supporting objects that this process has written or deleted lately.
    pub asserted: BTreeSet<String>,
    /// What the API server said when it refused a write for a node, by the object that was to be written and the node's name.
    pub refusals: BTreeMap<NodeObject, BTreeMap<String, String>>,
    /// What the API server said when it refused the template as such.
    pub template_refusal: Option<String>,
    /// What the API server has refused of what health checkers need, and has not taken since, by the object's key.
    pub checkers_refusals: BTreeMap<String, CheckersRefusal>,
    /// Generation of each Deployment, by UID, that this process's last full write gave it: while it stands, nobody else
    /// has changed the spec, whatever the API server made of it.
    pub written_generations: BTreeMap<String, i64>,
    /// How readiness gates bear on the resource.
    pub gates: GateLinks,
    /// State of the gate that `nodeReadinessTaint` stands for; `None` before the first look at it.
    pub node_readiness: Option<NodeReadinessGateStatus>,
}

/// Seconds after which it is looked again whether what was refused may be tried again.
pub(crate) const REFUSED_AGAIN: i64 = 5;

/// That the API server refused an object that the health checkers of this spec need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckersRefusal {
    /// The object, and what the API server said.
    pub message: String,
    /// Seconds for which it is not to be tried again.
    pub waits: i64,
}

/// Answer of a health port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAnswer {
    /// Health port that answered.
    pub port: u16,
    /// The answer was 200.
    pub healthy: bool,
    /// The phase of the token that it has seen, where it is a health checker of the resource.
    pub phase: Option<crds::token::Phase>,
}

impl Snapshot {
    /// The resource alone: nothing else is known, nothing is there, and nothing is forbidden.
    pub fn of(resource: Resource, now: UnixSeconds) -> Self {
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
            known_for: 0,
            clocks: Clocks::default(),
            sights: Sights::default(),
            listed_since_rebuild: false,
            asserted: BTreeSet::new(),
            refusals: BTreeMap::new(),
            template_refusal: None,
            checkers_refusals: BTreeMap::new(),
            written_generations: BTreeMap::new(),
            gates: GateLinks::default(),
            node_readiness: None,
        }
    }

    /// Why this object of a node is not to be written now.
    pub fn refusal(&self, node: &str, object: NodeObject) -> Option<&String> {
        self.refusals.get(&object)?.get(node)
    }

    /// The pods on a node.
    pub fn pods_on(&self, node: &str) -> &[Arc<PodFacts>] {
        self.pods.get(node).map_or(&[], Vec::as_slice)
    }
}
