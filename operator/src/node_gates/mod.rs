//! Readiness gates of nodes: watches of what they ask for, one loop that decides node by node, one patch per node and change.
//!
//! The gates and the nodes come from [`watch`](crate::watch), what gates mean to resources goes to
//! [`gates_shared`](crate::gates_shared). Nothing here reads the objects of a rollout.

pub(crate) mod act;
mod engine;
mod events;
mod facts;
mod policy_sync;
mod sources;

pub use engine::{Engine, EngineOptions, NodesSeen};
