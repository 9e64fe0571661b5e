//! Every decision of the operator, as pure functions: no client, no clock, no log, no randomness.
//!
//! [`decide()`] takes a [`Snapshot`] of one `IngressDaemonSet` and of everything around it, and returns a [`Plan`]: what to
//! do, what is held back and why, and when to look again. Equal snapshots give equal plans.
//!
//! The protocol that keeps the budget is [`step()`]: small, over `Copy` types, so that a model can search it exhaustively.

mod blocked;
pub mod breaker;
pub mod claims;
pub mod clocks;
pub mod decide;
pub mod deployment_writes;
mod direct_changes;
pub mod eligibility;
pub mod evidence;
pub mod grants;
pub mod health_checker;
pub mod in_place;
pub mod label_map;
pub mod load_balancer;
pub mod mark_conflicts;
pub mod node;
pub mod node_gates;
pub mod node_rights;
pub mod node_writes;
pub mod patch;
pub mod plan;
pub mod pod_gates;
pub mod pre_pull;
pub mod proof;
pub mod readiness;
pub mod reason;
pub mod rebuild;
pub mod render;
pub mod replicas;
pub mod revisions;
pub mod rollout_state;
pub mod shared_spec;
pub mod slots;
pub mod snapshot;
pub mod spec;
pub mod status;
pub mod step;
pub mod target;
pub mod template_check;
pub mod timing;

pub use decide::decide;
pub use plan::{Action, Plan};
pub use reason::Reason;
pub use rollout_windows as window;
pub use snapshot::Snapshot;
pub use step::step;
