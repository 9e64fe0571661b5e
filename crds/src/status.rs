//! Status of an `IngressDaemonSet`. Writer of every field: the operator.

use crate::{ledger::Ledger, node_readiness_gate::NodeReadinessGateStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// `observedGeneration` of a status that no operator has written yet.
pub const UNOBSERVED: i64 = -1;

/// State as the operator last saw it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IngressDaemonSetStatus {
    /// Generation of the spec that this status describes. -1: the operator has not looked at the resource yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Wanted pods on each node, for the scale subresource.
    #[serde(default)]
    pub replicas: i32,
    /// Revisions of the pod template.
    #[serde(default)]
    pub revisions: Revisions,
    /// Numbers of nodes by state.
    #[serde(default)]
    pub nodes: NodeCounts,
    /// Conditions by type. Valid, Available, Progressing, Degraded, Paused and Ready are always present. Reconciling is True while the operator works or waits; Stalled is True while somebody must act first. `RolledBack` is True while an earlier revision replaces one that failed. `HealthCheckersReady` is present while a valid spec has health check ports. `NameConflict`, `HealthCheckPortConflict` and `DetachAnnotationConflict` are present only while there is such a conflict.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]), length(max = 16))]
    pub conditions: Vec<Condition>,
    /// Reason why the rollout does not proceed. Absent while it proceeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<Blocked>,
    /// Expected end of the rollout (RFC 3339), at the pace so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta: Option<String>,
    /// Nodes that are not idle, with the reason; at most 100.
    #[serde(default)]
    #[schemars(length(max = 100))]
    pub node_states: Vec<NodeState>,
    /// With nodeReadinessTaint: nodes that keep the taint, with the reason, as in the status of a `NodeReadinessGate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_readiness: Option<NodeReadinessGateStatus>,
    /// Ledger of grants. Do not edit it: the operator keeps the budget by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Ledger>,
}

impl IngressDaemonSetStatus {
    /// The spec was not valid when the operator last looked.
    pub fn says_invalid(&self) -> bool {
        self.conditions.iter().any(|condition| condition.type_ == "Valid" && condition.status == "False")
    }
}

/// Revisions of the pod template, as in the pods' label `ingressdaemonsets.mumoshu.github.io/revision`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Revisions {
    /// Last revision that every node ran in service, after its update had ended and all steps of the rollout were done.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub current: String,
    /// Revision of `spec.template`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub update: String,
    /// Wanted revision of nodes: that of `spec.template`, unless spec.rollbackTo or an automatic rollback sets another.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub effective: String,
}

/// Reason why the rollout does not proceed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Blocked {
    /// Machine-readable reason, as in nodeStates.
    pub reason: String,
    /// Object that blocks the rollout: `Node/<name>`, or the resource itself.
    pub object: String,
    /// When the rollout stopped proceeding for this reason (RFC 3339).
    pub since: String,
    /// Human-readable reason, with what to do.
    pub message: String,
}

/// Numbers of nodes by state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeCounts {
    /// Nodes chosen by the spec.
    pub desired: u32,
    /// Nodes with a Deployment.
    pub current: u32,
    /// Nodes with the wanted number of pods, all ready and of the effective revision. The pods may not be available yet (minReadySeconds), and the node may not be back in service yet.
    pub updated: u32,
    /// Nodes whose pods are all ready.
    pub ready: u32,
    /// Nodes in service: ready, and no mark keeps them out of the load balancer.
    pub available: u32,
    /// Nodes that served before and do not serve now.
    pub unavailable: u32,
    /// Nodes whose pods are being replaced while the nodes stay attached.
    pub degraded: u32,
    /// Nodes that the operator keeps out of the load balancer.
    pub detached: u32,
    /// Nodes on which the revision failed.
    #[serde(default)]
    pub failed: u32,
}

/// Phase of a node that is not idle.
// In the API it is a string: an operator of another version may know more phases, and its status, with the ledger, must not be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum NodePhase {
    /// The node is new to the resource, and its pods are not ready yet.
    Joining,
    /// The node needs a change and waits for a slot or for its turn.
    Waiting,
    /// The node has a slot; its first mark is being written.
    Granted,
    /// The node is marked; the operator waits for the grace period to end or for the detacher's answer.
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
    /// The node is in the load balancer again after a break; it must serve for a while before it counts as good.
    Suspect,
    /// The node is no longer chosen; its pods are removed.
    Removing,
    /// The Node is being deleted, or has a taint that says so, such as an autoscaler's; it is detached, then its pods leave.
    Draining,
    /// The node served before and does not serve now, without an update.
    Unavailable,
    /// The revision failed on the node.
    Failed,
    /// The next step is impossible until you fix the problem that the reason names.
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
    /// Name of the node.
    pub name: String,
    /// Phase of the node.
    #[schemars(transform = crate::schema::phases)]
    pub phase: NodePhase,
    /// When the phase last changed (RFC 3339).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub since: String,
    /// Machine-readable reason the node is not finished.
    pub reason: String,
    /// Human-readable reason, with what to do if you have to act.
    pub message: String,
}
