//! The rollout over all nodes: whose turn it is, slots, grants, the proof of a revision, failures.
//!
//! Nodes with their needs come in from `node`; grants, reasons to wait and the course of the rollout go out to `decide`. It decides who may
//! begin; how one node goes on is `protocol`, and what is written is `objects`.

pub mod evidence;
pub mod grants;
mod losses;
pub mod managed_nodes;
pub mod mark_conflicts;
pub(crate) mod periods;
pub mod proof;
pub mod rebuild;
pub mod rollout_state;
pub mod slots;
pub mod template_check;
