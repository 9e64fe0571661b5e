//! What would happen: the planner decides, and a simulated cluster in which nothing goes wrong does what it says.
//!
//! `commands/plan.rs` gives a snapshot of the real cluster, with the resource of a file (`file.rs`) if there is one, and how long pods
//! take to be ready (`pace.rs`). The result is a `Forecast`, which the command prints; nothing is written to the real cluster. Begin
//! with `simulate` in `forecast.rs`, the loop of planner and `simulated_cluster`.

pub mod file;
pub mod forecast;
pub mod pace;
mod simulated_cluster;

#[cfg(test)]
mod forecast_tests;

pub use forecast::{Forecast, forecast};
