//! The protocol that keeps the budget: one node's next step, what it needs, and the times of its marks.
//!
//! Small, over `Copy` types, so that a model can search it exhaustively. It reads no object; `node` gives it a view of one.

pub mod step;
pub mod target;
pub mod timing;
