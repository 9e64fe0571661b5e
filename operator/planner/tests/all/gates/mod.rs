//! Readiness gates of nodes: what is decided about one node, and what its patch does to the object that the API server has by then. The
//! tests that stand for those of other projects are in `gate_originals`, gates of pods in `pod_gates`.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test that cannot go on has failed")]
#![allow(clippy::needless_pass_by_value, reason = "cases are written where they are used")]
#![allow(clippy::wildcard_imports, reason = "the life of a node is the language of these tests")]

mod claims;
mod ends;
mod in_force;
mod life;
mod links;
mod page;
mod replicas;
mod requirements;
mod several;
mod status;
mod taints;
mod writes;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// What Helm, Flux and Argo CD read: which of Ready, Reconciling and Stalled are True.
pub fn standing(conditions: &[Condition]) -> Vec<&str> {
    let read = |condition: &&Condition| condition.status == "True" && ["Ready", "Reconciling", "Stalled"].contains(&&*condition.type_);
    conditions.iter().filter(read).map(|condition| condition.type_.as_str()).collect()
}
