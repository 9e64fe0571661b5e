//! `kubectl ids`: what goes on in an `IngressDaemonSet`, why, what would go on, and how to steer it.
//!
//! What is printed is made by pure functions over objects ([`view`], [`why`], [`plan`]); only [`cluster`] and [`commands`] speak
//! with an API server.

pub mod arguments;
pub mod audit;
pub mod cluster;
pub mod commands;
pub mod completion;
pub mod failure;
#[cfg(test)]
mod fixtures;
pub mod history;
pub mod output;
pub mod plan;
pub mod view;
pub mod why;
