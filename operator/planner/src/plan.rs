//! What a decision says: what to do, what is held back and why, when to look again.

use crate::reason::RecreateReason;
use crate::{
    gates_shared::ReplicaHealth,
    memory::{Clocks, Sights},
    reason::Reason,
};
use crds::UnixSeconds;
use crds::status::{IngressDaemonSetStatus, NodePhase};
use serde_json::Value;
use std::collections::BTreeMap;

/// The outcome of a decision.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// What to do: each is one API call. Most are made at once, and what follows from another comes in a later pass.
    pub actions: Vec<Action>,
    /// Nodes that are not idle and why, with the phase that people see.
    pub node_states: BTreeMap<String, NodeProgress>,
    /// What the rollout waits for, also when no node is held by it because all run the new revision already: what halts it, or what the
    /// present step of the canary waits for.
    pub step: Option<Reason>,
    /// When to look again even if nothing changes.
    pub recheck_at: Option<UnixSeconds>,
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
    /// That the API server refuses something that health checkers need and that is to be written.
    pub checkers_refused: Option<CheckersRefused>,
    /// Replicas by node, where a readiness gate asks for them and they can be judged.
    pub replicas: Option<BTreeMap<String, ReplicaHealth>>,
}

/// What the API server refuses of what health checkers need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckersRefused {
    /// The object, and what the API server said.
    pub message: String,
    /// Health checkers are to change, and cannot.
    pub holds_up: bool,
}

/// Health ports of a node that the operator has to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// IP address of the node.
    pub address: String,
    /// Health ports of the node.
    pub ports: Vec<u16>,
    /// Namespace of the resource that their answers should be of.
    pub namespace: String,
    /// Name of that resource.
    pub name: String,
}

impl Plan {
    /// Looks again at this time or earlier.
    pub fn recheck(&mut self, at: UnixSeconds) {
        self.recheck_at = Some(self.recheck_at.map_or(at, |other| other.min(at)));
    }
}

/// Numbers that metrics show beside the status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Number of slots: nodes that may be disrupted at once.
    pub budget: usize,
    /// Number of grants in the ledger.
    pub grants: usize,
}

/// A node that is not idle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeProgress {
    /// Phase of the node in the status.
    pub phase: NodePhase,
    /// Why the node is not finished.
    pub reason: Reason,
    /// Why the node is suspect, if it also broke after its update.
    pub suspect: Option<Reason>,
}

impl NodeProgress {
    /// A sentence, with what to do where something is to be done.
    pub fn message(&self) -> String {
        let suspect = self.suspect.as_ref().map(|suspect| format!("; {}", suspect.message())).unwrap_or_default();
        format!("{}{suspect}", self.reason.message())
    }
}

/// One API call that the operator makes.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Write the status, ledger included, with the `resourceVersion` that was read.
    WriteStatus {
        /// Complete status, ledger included.
        status: Box<IngressDaemonSetStatus>,
        /// The ledger changes: at once, not when the next status is due.
        urgent: bool,
        /// Deployments whose absence must be read live first.
        live_absent: Vec<String>,
        /// Ids that this write takes from the ledger for creations.
        reserve: Vec<u64>,
        /// Names of the nodes that get a grant, for events.
        granted: Vec<String>,
    },
    /// Replace the finalizers, with the `resourceVersion` that was read.
    SetFinalizers(Vec<String>),
    /// Create a node's Deployment.
    CreateDeployment {
        /// Name of the node.
        node: String,
        /// The id in its token, used up whatever comes of the call.
        id: u64,
        /// Name of the Deployment.
        name: String,
        /// Manifest of the Deployment.
        body: Box<Value>,
    },
    /// JSON Patch of a node's Deployment.
    PatchDeployment {
        /// Name of the node.
        node: String,
        /// Name of the Deployment.
        name: String,
        /// JSON Patch, as an array of operations.
        patch: Value,
        /// Step of the protocol that the patch makes.
        write: Write,
    },
    /// Record a revision of the template.
    RecordRevision {
        /// Name of the `ControllerRevision`.
        name: String,
        /// Manifest of the `ControllerRevision`.
        body: Box<Value>,
    },
    /// JSON Patch of a recorded revision: its number.
    RenumberRevision {
        /// Name of the `ControllerRevision`.
        name: String,
        /// JSON Patch, as an array of operations.
        patch: Value,
    },
    /// Delete a node's Deployment with these preconditions.
    DeleteDeployment {
        /// Name of the node.
        node: String,
        /// Name of the Deployment.
        name: String,
        /// Precondition: UID of the Deployment.
        uid: String,
        /// Precondition: `resourceVersion` of the Deployment.
        resource_version: String,
    },
    /// JSON Patch of a Node.
    PatchNode {
        /// Name of the node.
        node: String,
        /// JSON Patch, as an array of operations.
        patch: Value,
        /// Step of the protocol that the patch makes.
        write: Write,
        /// A Deployment whose absence must be read live first.
        live_absent: Option<String>,
    },
    /// Put back the labels and the annotation by which a Deployment of ours is known, if it is there and ours.
    Reclaim {
        /// Name of the node.
        node: String,
        /// Name of the Deployment.
        name: String,
        /// The operations, to be made with the UID that is found.
        identity: Value,
    },
    /// Server-side apply of a supporting object (health checker and its rights).
    Apply {
        /// Kind and name of the object.
        object: Supporting,
        /// Manifest to apply.
        body: Box<Value>,
    },
    /// Delete a supporting object (health checker and its rights).
    Delete {
        /// Kind and name of the object.
        object: Supporting,
        /// UID, where it is known.
        uid: Option<String>,
    },
    /// Delete a pod that nothing else cleans up: one that the kubelet refused, or one of a former template.
    DeletePod {
        /// Name of the pod.
        name: String,
        /// UID, where it matters that it is no other.
        uid: Option<String>,
        /// `resourceVersion`, where it matters that it is as it was seen.
        resource_version: Option<String>,
    },
    /// Create a pod that pulls images for a node.
    CreatePod {
        /// Name of the node.
        node: String,
        /// Name of the pod.
        name: String,
        /// Manifest of the pod.
        body: Box<Value>,
    },
    /// JSON Patch of the `ReplicaSet` of a paused Deployment.
    PatchReplicaSet {
        /// Name of the node.
        node: String,
        /// Name of the `ReplicaSet`.
        name: String,
        /// JSON Patch, as an array of operations.
        patch: Value,
    },
    /// JSON Patch of a pod: its images, labels and annotations.
    PatchPod {
        /// Name of the node.
        node: String,
        /// Name of the pod.
        name: String,
        /// JSON Patch, as an array of operations.
        patch: Value,
    },
    /// Strategic merge patch of a pod's status: the condition of its gate.
    PatchPodStatus {
        /// Name of the node.
        node: String,
        /// Name of the pod.
        name: String,
        /// Strategic merge patch of the status.
        patch: Value,
    },
}

/// Which write of the protocol a patch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Write {
    /// Deployment: token `Claimed`, with which the health check answers 503.
    Claim,
    /// Node: entry `Detached`, with the user's mark.
    Detach,
    /// Deployment: token `InPlace`, and pauses it.
    Pause,
    /// Deployment: `Updating` or `Degrading`, after its pods have changed in place.
    Resume,
    /// Deployment: `Updating` or `Degrading`, and what changes.
    Update,
    /// The same, where pods should have changed in place, and why they do not.
    Recreate(RecreateReason),
    /// Node: entry `Attached`, without the user's mark.
    Unmark,
    /// Deployment: token `Closed`; the node is back in rotation.
    Close,
    /// Deployment: the first `Closed` of a new one.
    FirstClose,
    /// Deployment: what needs no grant.
    Direct,
    /// Deployment or Node: the fence of a rebuilt ledger.
    Fence,
    /// Deployment: the admission-failure breaker opens.
    Breaker,
    /// Node: sets the member label.
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
    /// `DaemonSet` of the health checkers of one port.
    DaemonSet(String),
    /// `ServiceAccount` of the health checkers.
    ServiceAccount(String),
    /// The key by which it knows others of its resource. It is made with a random value where there is none, and never read or changed.
    Secret(String),
    /// Rights of the health checkers in the namespace.
    RoleBinding(String),
    /// Rights of the health checkers on Nodes.
    ClusterRoleBinding(String),
    /// A recorded revision of the template.
    ControllerRevision(String),
}

impl Supporting {
    /// `Kind/name` of the object.
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
