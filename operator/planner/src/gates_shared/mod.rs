//! What gates of nodes and gates of pods share: what is known of watched objects, conditions, and policies of the API server.
//!
//! Conditions of watched objects come in, as `operator` cut them down; what they mean to a gate goes out, and the admission policies that
//! gates ask for. Both kinds of gates use these types and functions. Nothing here knows either kind, or a rollout.

pub mod accepted;
pub mod conditions;
pub mod policy_objects;
pub mod review;

use crds::{UnixSeconds, node_readiness_gate::GateTaint};

/// Namespace and name of an object.
pub type Key = (String, String);

/// What is known of something that is watched.
#[derive(Clone, Debug, PartialEq)]
pub struct Source<T> {
    /// What was seen last; none before the first list.
    pub found: Option<T>,
    /// Why the operator cannot see the source now; absent while it can.
    pub broken: Option<String>,
}

impl<T> Default for Source<T> {
    fn default() -> Self {
        Self { found: None, broken: None }
    }
}

impl<T> Source<T> {
    /// What is in force, when it can be seen; else what hinders it.
    pub fn live(&self) -> Result<&T, &str> {
        match (&self.found, &self.broken) {
            (Some(found), None) => Ok(found),
            (_, Some(why)) => Err(why),
            (None, None) => Err("the first list is pending"),
        }
    }

    /// Neither listed nor refused yet.
    pub fn is_listing(&self) -> bool {
        self.found.is_none() && self.broken.is_none()
    }
}

/// The replicas of an `IngressDaemonSet` on one node. Writer: its own pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaHealth {
    /// UID of the Node that it speaks of.
    pub node_uid: String,
    /// How the Node stood when it was looked at, see [`NodeFacts::labels_and_taints_hash`].
    pub labels_and_taints_hash: u64,
    /// The resource chooses the node.
    pub chosen: bool,
    /// Pods that are to run.
    pub wanted: u32,
    /// Pods that are ready and not ending.
    pub ready: u32,
    /// When the pod that has been ready for longest became so; readiness from before a restart of the node does not count.
    pub fresh_since: UnixSeconds,
    /// Since when the operator itself disrupts the node.
    pub updating_since: Option<UnixSeconds>,
    /// The operator holds the node out of the load balancer, or has not put it in yet.
    pub detached: bool,
    /// Taints of gates that would evict pods of the resource from the node, see [`crate::node_gates::GateLinks`].
    pub evicted_by: Vec<GateTaint>,
}
