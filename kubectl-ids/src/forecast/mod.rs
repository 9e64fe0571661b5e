//! What would happen: the planner decides, and a simulated cluster in which nothing goes wrong does what it says.
//!
//! `commands/plan.rs` gives a snapshot of the real cluster, with the resource of a file (`file.rs`) if there is one, and how long pods
//! take to be ready (`pace.rs`). A [`Forecast`] goes out, which the command prints. Nothing is written to the real cluster. Begin with
//! `simulate` in `simulation.rs`, the loop of planner and `simulated_cluster`.

pub mod file;
pub mod pace;
mod simulated_cluster;
mod simulation;

#[cfg(test)]
mod simulation_tests;

pub use simulation::{Forecast, forecast};
