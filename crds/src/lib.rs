//! The custom resources, the names that the product writes into the API, and the small formats behind them.
//!
//! Texts of the API come in and values go out, or the other way round. No client and no I/O: the planner and every program share this
//! package. Nothing here decides what follows from a value.

pub mod duration;
pub mod hash;
pub mod holders;
pub mod in_place;
pub mod ingress_daemon_set;
pub mod label_selector;
pub mod ledger;
pub mod manifest;
pub mod names;
pub mod node_readiness_gate;
pub mod pod_readiness_gate;
mod schema;
pub mod status;
pub mod token;

pub use duration::{Duration, UnixSeconds};
pub use ingress_daemon_set::{IngressDaemonSet, IngressDaemonSetSpec};
pub use node_readiness_gate::{NodeReadinessGate, NodeReadinessGateSpec, NodeReadinessGateStatus};
pub use pod_readiness_gate::{PodReadinessGate, PodReadinessGateSpec, PodReadinessGateStatus};
pub use status::IngressDaemonSetStatus;
