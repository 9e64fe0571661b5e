//! The grant ledger, `status.rollout`: who may disrupt which node. Writer: the operator, with the resourceVersion it read.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Permissions to disrupt nodes, and the source of ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ledger {
    /// The next id that was never used. Ids only grow; one that was reserved and not used is lost.
    #[serde(default)]
    pub next_id: u64,
    /// The grants, by node name.
    #[serde(default)]
    pub grants: BTreeMap<String, Grant>,
    /// Set while a lost ledger is rebuilt: every object is first fenced with this id, and no grant is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuilding: Option<u64>,
}

/// Permission to disrupt one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// Fencing id: objects carry it while the grant works on them.
    pub id: u64,
    /// UID of the Node for which it was given; empty when there was no Node object.
    #[serde(rename = "nodeUID")]
    pub node_uid: String,
    /// Why the node is disrupted.
    pub kind: Kind,
    /// Revision that the node gets; for Abort, what it runs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// How the node is taken out of the load balancer.
    #[serde(default)]
    pub marks: Marks,
    /// Topology domain in which it takes a place, when there were domains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Unix seconds of the grant; a retarget keeps it.
    pub granted_at: i64,
    /// Abort after a detach timeout: the revision that was given up. The slot stays taken until something else is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// Why a node is disrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Kind {
    /// The node runs another revision than it should.
    Update,
    /// Somebody changed what the operator sets, or a token is stuck.
    Repair,
    /// Fewer replicas.
    Shrink,
    /// More replicas on a node that serves.
    Grow,
    /// The node is no longer chosen.
    Remove,
    /// The way back: nothing but the token changes.
    Abort,
}

/// Which objects carry a grant's mark.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Marks {
    /// The Deployment: its token makes the health check fail.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deployment: bool,
    /// Annotation keys on the Deployment that CLOSE removes: the user's, and those of grants that this one replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deployment_keys: Vec<String>,
    /// The Node: the annotation that asks a detacher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Annotation>,
}

/// An annotation that is set; the value may be empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Annotation {
    /// Its key.
    pub key: String,
    /// Its value.
    #[serde(default)]
    pub value: String,
}
