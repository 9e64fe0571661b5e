//! What would happen: the planner decides, and a simulated cluster in which nothing goes wrong does what it says.

pub mod forecast;
pub mod manifest;
pub mod pace;
mod world;

#[cfg(test)]
mod forecast_tests;

pub use forecast::{Forecast, forecast};
