//! Every decision of the operator, as pure functions: no client, no clock, no log, no randomness.
//!
//! [`decide()`] takes a [`Snapshot`] of one `IngressDaemonSet` and of everything around it, and returns a [`Plan`]: what to do, what is
//! held back and why, and when to look again. Equal snapshots give equal plans. [`step()`] is the protocol that keeps the budget, small
//! enough for a model to search all of it. `lint/structure/layers.yaml` says what each module contains.

pub mod decide;
pub mod facts;
pub mod gates_shared;
pub mod memory;
pub mod node;
pub mod node_gates;
pub mod objects;
pub mod patch;
pub mod plan;
pub mod pod_gates;
pub mod protocol;
pub mod reason;
pub mod rollout;
pub mod snapshot;
pub mod spec;
pub mod status;

pub use decide::decide;
pub use plan::{Action, Plan};
pub use protocol::step::step;
pub use reason::Reason;
pub use snapshot::Snapshot;
