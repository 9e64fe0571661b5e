//! Node readiness gates: which taints a node keeps until what it needs is ready.
//!
//! [`decide`] looks at one node and all gates at once and returns at most one patch. A taint stays while any gate claims it. What a gate
//! has decided is recorded on the node in the same patch ([`record`]), so that no taint is left behind. [`in_force`] says which nodes are
//! new to a gate. Nothing here looks at a rollout or at a pod's own gates.

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
