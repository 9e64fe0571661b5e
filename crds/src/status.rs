//! Status of an `IngressDaemonSet`. Writer of every field: the operator.

use crate::{ledger::Ledger, node_readiness_gate::NodeReadinessGateStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What the operator last saw and did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IngressDaemonSetStatus {
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Pods wanted on each node, for the scale subresource.
    #[serde(default)]
    pub replicas: i32,
    /// Revisions of the pod template.
    #[serde(default)]
    pub revisions: Revisions,
    /// Numbers of nodes.
    #[serde(default)]
    pub nodes: NodeCounts,
    /// Valid, Available, Progressing, Degraded, Paused, `RolledBack`, Stalled.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]), length(max = 16))]
    pub conditions: Vec<Condition>,
    /// Why the rollout does not go on, while it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<Blocked>,
    /// When the rollout is expected to end, RFC 3339, at the pace of its nodes so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta: Option<String>,
    /// At most 100 of the nodes that are not idle, with the reason.
    #[serde(default)]
    #[schemars(length(max = 100))]
    pub node_states: Vec<NodeState>,
    /// With nodeReadinessTaint: which nodes keep the taint and why, as in the status of a `NodeReadinessGate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_readiness: Option<NodeReadinessGateStatus>,
    /// The grant ledger. Do not edit: it keeps the budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Ledger>,
}

/// Revisions of the pod template, as in the pods' label `ingressdaemonsets.mumoshu.github.io/revision`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Revisions {
    /// The last revision that every node ran: in service, with its update over, and with all steps of the rollout passed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub current: String,
    /// The revision of `spec.template`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub update: String,
    /// The revision that nodes are to run: that of `spec.template`, unless spec.rollbackTo or an automatic rollback says otherwise.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub effective: String,
}

/// Why the rollout does not go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Blocked {
    /// One word, as in nodeStates.
    pub reason: String,
    /// What it is about: `Node/<name>`, or the resource itself.
    pub object: String,
    /// Since when, RFC 3339.
    pub since: String,
    /// The same in a sentence, with what to do.
    pub message: String,
}

/// Numbers of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeCounts {
    /// Chosen by the spec.
    pub desired: u32,
    /// Have a Deployment.
    pub current: u32,
    /// Their pods are all of the effective revision, as many as wanted, and ready; they may be too young to be available (minReadySeconds), and the node not back in service yet.
    pub updated: u32,
    /// All their pods are ready.
    pub ready: u32,
    /// Serve: ready, and no mark holds them out of the load balancer.
    pub available: u32,
    /// Have served and do not now.
    pub unavailable: u32,
    /// Their pods are replaced while they stay attached.
    pub degraded: u32,
    /// Are held out of the load balancer by the operator.
    pub detached: u32,
    /// On these the revision failed.
    #[serde(default)]
    pub failed: u32,
}

/// Where a node stands that is not idle.
// In the API it is a string: an operator of another version may know more phases, and its status, with the ledger, must not be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum NodePhase {
    /// The node is new to the resource, and its pods are not ready yet.
    Joining,
    /// The node needs a change and waits for a slot or for its turn.
    Waiting,
    /// The node has a slot; its first mark is being written.
    Granted,
    /// The node is marked; its grace period or the detacher's answer is awaited.
    Detaching,
    /// The node is out of the load balancer; its pods change next.
    Detached,
    /// The node is out of the load balancer while its pods are replaced.
    Updating,
    /// The images of the node's pods change in place.
    UpdatingInPlace,
    /// The node stays in the load balancer while its pods are replaced (degrade mode).
    Degrading,
    /// The node's pods are new and ready; its marks are removed, and its slot is kept for the soak.
    Attaching,
    /// The node is in the load balancer again after a break; it must serve for a while before its revision counts as good there.
    Proving,
    /// The node is not chosen any more; its pods are removed.
    Removing,
    /// The Node is about to be deleted or drained; its pods leave first.
    Draining,
    /// The node served before and does not serve now, without an update.
    Unavailable,
    /// The revision failed on the node.
    Failed,
    /// The next step is impossible until what the reason names is mended.
    Blocked,
    /// A phase of another version of the operator.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl fmt::Display for NodePhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A node that is not idle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeState {
    /// The node's name.
    pub name: String,
    /// Where the node stands, in one word.
    #[schemars(transform = crate::manifest::phases)]
    pub phase: NodePhase,
    /// Unix time of the last change of phase, RFC 3339.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub since: String,
    /// One word: why it is not further.
    pub reason: String,
    /// The same in a sentence, with what to do where something is to be done.
    pub message: String,
}
