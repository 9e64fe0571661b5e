//! Readiness gates of pods: watches of what they ask for, one loop that decides pod by pod, one patch per pod and change.
//!
//! Pods, endpoints and answers of HTTP servers go to [`gates_shared`](crate::gates_shared), the conditions that follow to the pods' status.
//! Nothing here writes to nodes.

mod engine;
mod facts;
mod http;
mod policy_sync;
mod report;
mod sources;

pub use engine::{Engine, EngineOptions};
pub use facts::gate;
