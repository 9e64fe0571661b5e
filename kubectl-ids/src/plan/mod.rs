//! What would happen: the planner decides, and a simulated cluster in which nothing goes wrong does what it says.

pub mod file;
pub mod forecast;
pub mod pace;
mod simulated_cluster;

#[cfg(test)]
mod forecast_tests;

pub use forecast::{Forecast, forecast};
