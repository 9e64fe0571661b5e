//! Every decision of the operator, as pure functions: no client, no clock, no log, no randomness.
//!
//! [`decide()`] takes a [`Snapshot`] of one `IngressDaemonSet` and of everything around it, and returns a [`Plan`]: what to
//! do, what is held back and why, and when to look again. Equal snapshots give equal plans.
//!
//! The protocol that keeps the budget is [`step()`]: small, over `Copy` types, so that a model can search it exhaustively.

pub mod admission;
mod blocked;
pub mod breaker;
pub mod claims;
pub mod clocks;
pub mod course;
pub mod decide;
pub mod deployment_writes;
pub mod eligibility;
pub mod evidence;
pub mod gate;
pub mod health_checker;
pub mod hold;
pub mod in_place;
pub mod load_balancer;
pub mod node_rights;
pub mod node_writes;
pub mod patch;
pub mod plan;
pub mod pod_gate;
pub mod pre_pull;
pub mod proof;
pub mod readiness;
pub mod rebuild;
pub mod render;
pub mod replicas;
pub mod revisions;
pub mod rivals;
pub mod room;
pub mod settings;
pub mod snapshot;
pub mod status;
pub mod step;
pub mod stored;
mod supply;
pub mod target;
pub mod texts;
pub mod timing;
pub mod trial;
pub mod wanted;

pub use decide::decide;
pub use hold::Hold;
pub use plan::{Action, Plan};
pub use rollout_windows as window;
pub use snapshot::Snapshot;
pub use step::step;
