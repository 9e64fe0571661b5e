//! `kubectl ids`: what goes on in an `IngressDaemonSet`, why, what would go on, and how to steer it.
//!
//! A command line and objects of the API come in, text, JSON and orders go out. What is printed is made by pure functions over objects
//! ([`status_view`], [`why`], [`forecast`]), which ask no API server. No rule of a rollout is here: a forecast is what the planner decides
//! in a simulated cluster.

pub mod arguments;
pub mod audit;
pub mod cluster;
pub mod commands;
pub mod failure;
#[cfg(test)]
mod fixtures;
pub mod forecast;
pub mod history;
pub mod output;
pub mod shell_completion;
pub mod status_view;
pub mod why;
