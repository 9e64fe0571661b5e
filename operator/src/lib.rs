//! The operator of `IngressDaemonSet`: watches become snapshots ([`watch`]), the planner decides, [`write`](mod@write) makes one API call
//! per action.
//!
//! Flags ([`args`]) and objects of the API come in; writes, events and metrics go out. The package `planner` has every rule: nothing here
//! decides what becomes of a node or pod.

pub mod args;
mod backoff;
mod callers;
pub mod client;
pub mod compat;
pub mod deployed;
pub mod gates_shared;
pub mod leader;
pub mod metrics;
pub mod node_gates;
pub mod pages;
pub mod pod_gates;
pub mod print;
mod readable;
pub mod remaining;
pub mod rights;
pub mod rollout;
pub mod spawn_scoped;
pub mod telemetry;
#[cfg(test)]
mod tests;
pub mod trim;
pub mod turns;
pub mod uninstall;
pub mod watch;
pub mod web;
pub mod webhook;
pub mod write;
