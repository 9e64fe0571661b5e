//! The protocol that keeps the budget: one node's next step, what it needs, and the times of its marks.
//!
//! Small, over `Copy` types, so that a model can search it exhaustively. `node` gives it a view of one node, and it returns one step, a
//! need or a reason to wait. It reads no object.

pub mod step;
pub mod target;
pub mod timing;
