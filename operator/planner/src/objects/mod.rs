//! What is written: Deployments, patches of Nodes and pods, health checkers, recorded revisions.
//!
//! A resolved spec and one node come in, bodies and patches go out. What is here says how an object looks, never whether it is to be
//! written now: that is `rollout` and `decide`.

pub mod deployment_writes;
pub mod health_checker;
pub mod in_place;
pub mod node_writes;
pub mod ownerless;
pub mod pre_pull;
pub mod render;
pub mod revisions;
