//! `kubectl ids`: what goes on in an `IngressDaemonSet`, why, what would go on, and how to steer it.
//!
//! What is printed is made by pure functions over objects ([`status_view`], [`why`], [`plan`]); only [`cluster`] and [`commands`] speak
//! with an API server.

pub mod arguments;
pub mod audit;
pub mod cluster;
pub mod commands;
pub mod failure;
#[cfg(test)]
mod fixtures;
pub mod history;
pub mod output;
pub mod plan;
pub mod shell_completion;
pub mod status_view;
pub mod why;
