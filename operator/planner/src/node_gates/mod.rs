//! Node readiness gates: which taints a node keeps until what it needs is ready.
//!
//! [`decide`] looks at one node and all gates at once and returns at most one patch. A taint, by key and effect, stays while
//! any gate claims it, so two gates that share one cannot flap it. What a gate has decided about a node is recorded on the
//! node in the same patch as the taint, see [`record`]: so no taint of ours is left behind when a gate or its selector goes.
//! Which nodes are new to a gate, [`force`] says.

pub mod accepted;
pub mod decide;
pub mod in_force;
mod judge;
mod known_taints;
pub mod leftovers;
pub mod legacy;
pub mod links;
pub mod patch;
pub mod policy_objects;
pub mod preset;
pub mod record;
pub mod requirement;
pub mod retaint_budget;
pub mod review;
pub mod satisfiable;
pub mod status;
pub mod transition;
pub mod world;

pub use decide::{NodePlan, decide};
pub use links::GateLinks;
pub use record::Record;
pub use requirement::RequirementVerdict;
pub use transition::{GateClocks, Transition};
pub use world::{Gate, World};
