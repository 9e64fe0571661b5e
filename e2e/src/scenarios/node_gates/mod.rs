//! Readiness gates of nodes on the real API server.
//! Gates of pods are in `pod_gates.rs`. How a gate is made, and waited for, is in `cluster/node_gates.rs`.
//! Conditions come from the scenario in the place of a kubelet, gates from the scenario. What the operator wrote is read from the history.

pub mod admission;
mod budget;
pub mod life;
pub mod one_pass;
pub mod originals;
pub mod races;
pub mod startup;
mod upstream;
