//! Node readiness gates: watches of what they ask for, one loop that decides node by node, one patch per node and change.

mod act;
mod admission;
pub mod cleanup;
mod engine;
mod facts;
pub mod fronts;
mod hub;
mod legacy;
pub mod once;
mod sources;
mod tell;

pub use engine::{Engine, Options};
pub(crate) use fronts::all as gates_of;
pub use hub::{Fronts, Hub};
pub use legacy::Legacy;
pub(crate) use sources::{follow, keep};
