//! What a decision says: what to do, what is held back and why, when to look again.

use crate::reason::RecreateReason;
use crate::{
    gates_shared::ReplicaHealth,
    memory::{Clocks, Sights},
    reason::Reason,
};
use crds::status::{IngressDaemonSetStatus, NodePhase};
use serde_json::Value;
use std::collections::BTreeMap;

/// The outcome of a decision.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// What to do, in this order; each is one API call.
    pub actions: Vec<Action>,
    /// Nodes that are not idle and why, with the phase that people see.
    pub node_states: BTreeMap<String, NodeProgress>,
    /// What the present step of the canary waits for, also when no node is held by it because all run the new revision already.
    pub step: Option<Reason>,
    /// When to look again even if nothing changes, seconds since 1970.
    pub recheck_at: Option<i64>,
    /// The status to show; its ledger is the one of the snapshot unless an action writes another.
    pub status: IngressDaemonSetStatus,
    /// What metrics show beside the status.
    pub gauges: Gauges,
    /// Health ports to ask, by node. The decision is made again with what they say, before anything is done.
    pub questions: BTreeMap<String, Question>,
    /// What this process has counted so far: for the next decision.
    pub clocks: Clocks,
    /// What this process has seen so far: for the next decision.
    pub sights: Sights,
    /// Replicas by node, where a readiness gate asks for them and they can be judged.
    pub replicas: Option<BTreeMap<String, ReplicaHealth>>,
}

/// Where a node's health checkers listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// IP address of the node.
    pub address: String,
    /// Its health ports.
    pub ports: Vec<u16>,
    /// Namespace of the resource that their answers should be of.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Plan {
    /// Looks again at this time or earlier.
    pub fn recheck(&mut self, at: i64) {
        self.recheck_at = Some(self.recheck_at.map_or(at, |other| other.min(at)));
    }
}

/// Numbers for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// The budget in nodes.
    pub budget: usize,
    /// Grants.
    pub grants: usize,
}

/// A node that is not idle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeProgress {
    /// What goes on.
    pub phase: NodePhase,
    /// Why it is not further.
    pub reason: Reason,
    /// It broke after its update, too.
    pub suspect: Option<Reason>,
}

impl NodeProgress {
    /// A sentence, with what to do where something is to be done.
    pub fn message(&self) -> String {
        let suspect = self.suspect.as_ref().map(|suspect| format!("; {}", suspect.message())).unwrap_or_default();
        format!("{}{suspect}", self.reason.message())
    }
}

/// One API call.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Write the status, ledger included, with the `resourceVersion` that was read.
    WriteStatus {
        /// The whole status.
        status: Box<IngressDaemonSetStatus>,
        /// The ledger changes: at once, not when the next status is due.
        urgent: bool,
        /// Deployments whose absence must be read live first.
        live_absent: Vec<String>,
        /// Ids that this write takes from the ledger for creations.
        reserve: Vec<u64>,
        /// What happened, for events.
        granted: Vec<String>,
    },
    /// Replace the finalizers, with the `resourceVersion` that was read.
    SetFinalizers(Vec<String>),
    /// Create a node's Deployment.
    CreateDeployment {
        /// The node.
        node: String,
        /// The id in its token, used up whatever comes of the call.
        id: u64,
        /// Object name.
        name: String,
        /// The object.
        body: Box<Value>,
    },
    /// JSON Patch of a node's Deployment.
    PatchDeployment {
        /// The node.
        node: String,
        /// Object name.
        name: String,
        /// The operations.
        patch: Value,
        /// Which step it is.
        write: Write,
    },
    /// Record a revision of the template.
    RecordRevision {
        /// Object name.
        name: String,
        /// The object.
        body: Box<Value>,
    },
    /// JSON Patch of a recorded revision: its number.
    RenumberRevision {
        /// Object name.
        name: String,
        /// The operations.
        patch: Value,
    },
    /// Delete a node's Deployment with these preconditions.
    DeleteDeployment {
        /// The node.
        node: String,
        /// Object name.
        name: String,
        /// UID.
        uid: String,
        /// `resourceVersion`.
        resource_version: String,
    },
    /// JSON Patch of a Node.
    PatchNode {
        /// The node.
        node: String,
        /// The operations.
        patch: Value,
        /// Which step it is.
        write: Write,
        /// A Deployment whose absence must be read live first.
        live_absent: Option<String>,
    },
    /// Put back the labels and the annotation by which a Deployment of ours is known, if it is there and ours.
    Reclaim {
        /// The node.
        node: String,
        /// Object name.
        name: String,
        /// The operations, to be made with the UID that is found.
        identity: Value,
    },
    /// Server-side apply of a supporting object (health checker and its rights).
    Apply {
        /// Which.
        object: Supporting,
        /// The object.
        body: Box<Value>,
    },
    /// Delete a supporting object.
    Delete {
        /// Which.
        object: Supporting,
        /// UID, where it is known.
        uid: Option<String>,
    },
    /// Delete a pod that nothing else cleans up: one that the kubelet refused, or one of a former template.
    DeletePod {
        /// Object name.
        name: String,
        /// UID, where it matters that it is no other.
        uid: Option<String>,
        /// `resourceVersion`, where it matters that it is as it was seen.
        resource_version: Option<String>,
    },
    /// Create a pod that pulls images for a node.
    CreatePod {
        /// The node.
        node: String,
        /// Object name.
        name: String,
        /// The object.
        body: Box<Value>,
    },
    /// JSON Patch of the `ReplicaSet` of a paused Deployment.
    PatchReplicaSet {
        /// The node.
        node: String,
        /// Object name.
        name: String,
        /// The operations.
        patch: Value,
    },
    /// JSON Patch of a pod: its images, labels and annotations.
    PatchPod {
        /// The node.
        node: String,
        /// Object name.
        name: String,
        /// The operations.
        patch: Value,
    },
    /// Strategic merge patch of a pod's status: the condition of its gate.
    PatchPodStatus {
        /// The node.
        node: String,
        /// Object name.
        name: String,
        /// The patch.
        patch: Value,
    },
}

/// Which write of the protocol a patch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Write {
    /// Deployment: `Claimed`.
    Claim,
    /// Node: `Detached`.
    Detach,
    /// Deployment: `InPlace`, paused.
    Pause,
    /// Deployment: `Updating` or `Degrading`, after its pods have changed in place.
    Resume,
    /// Deployment: `Updating` or `Degrading`, and what changes.
    Update,
    /// The same, where pods should have changed in place, and why they do not.
    Recreate(RecreateReason),
    /// Node: `Attached`.
    Unmark,
    /// Deployment: `Closed`.
    Close,
    /// Deployment: the first `Closed` of a new one.
    FirstClose,
    /// Deployment: what needs no grant.
    Direct,
    /// Deployment or Node: the fence of a rebuilt ledger.
    Fence,
    /// Deployment: the admission-failure breaker opens or closes.
    Breaker,
    /// Node: the member label.
    Member,
    /// Node: our entry or label goes away.
    Clean,
}

impl Write {
    /// A stable word for metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Detach => "detach",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Update | Self::Recreate(_) => "update",
            Self::Unmark => "unmark",
            Self::Close => "close",
            Self::FirstClose => "first_close",
            Self::Direct => "direct",
            Self::Fence => "fence",
            Self::Breaker => "breaker",
            Self::Member => "member",
            Self::Clean => "clean",
        }
    }
}

/// A supporting object: kind and name, in the resource's namespace unless it is cluster-wide.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Supporting {
    /// Health checker of one port.
    DaemonSet(String),
    /// Its account.
    ServiceAccount(String),
    /// The key by which it knows others of its resource. It is made with a random value where there is none, and never read or changed.
    Secret(String),
    /// Its rights in the namespace.
    RoleBinding(String),
    /// Its rights on Nodes.
    ClusterRoleBinding(String),
    /// A recorded revision of the template.
    ControllerRevision(String),
}

impl Supporting {
    /// Kind and name.
    pub fn key(&self) -> String {
        match self {
            Self::DaemonSet(name) => format!("DaemonSet/{name}"),
            Self::ServiceAccount(name) => format!("ServiceAccount/{name}"),
            Self::Secret(name) => format!("Secret/{name}"),
            Self::RoleBinding(name) => format!("RoleBinding/{name}"),
            Self::ClusterRoleBinding(name) => format!("ClusterRoleBinding/{name}"),
            Self::ControllerRevision(name) => format!("ControllerRevision/{name}"),
        }
    }
}
