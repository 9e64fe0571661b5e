//! The operator of `IngressDaemonSet`: watches become snapshots ([`observe`]), the planner decides, [`act`] makes one API
//! call per action.

pub mod args;
pub mod client;
pub mod deployed;
pub mod health_ports;
pub mod leader;
pub mod memory;
pub mod metrics;
pub mod node_gates;
pub mod pages;
pub mod pod_gates;
mod readable;
pub mod reconcile;
pub mod rights;
pub mod shared;
pub mod spawn_scoped;
pub mod telemetry;
pub mod turns;
pub mod watch;
pub mod web;
pub mod webhook;
pub mod write;
