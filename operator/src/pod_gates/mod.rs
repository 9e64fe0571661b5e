//! Readiness gates of pods: watches of what they ask for, one loop that decides pod by pod, one patch per pod and change.

mod admission;
mod engine;
mod facts;
mod http;
mod hub;
mod report;
mod sources;

pub use engine::{Engine, Options};
pub use facts::gate;
pub use hub::Hub;
