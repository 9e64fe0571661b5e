//! The operator of `IngressDaemonSet`: watches become snapshots ([`observe`]), the planner decides, [`act`] makes one API
//! call per action.

pub mod act;
pub mod args;
pub mod ask;
pub mod beside;
pub mod client;
pub mod deployed;
pub mod gate;
pub mod leader;
pub mod memory;
pub mod metrics;
pub mod observe;
pub mod pages;
pub mod pod_gate;
mod readable;
pub mod reconcile;
pub mod rights;
pub mod shared;
pub mod telemetry;
pub mod turns;
pub mod web;
pub mod webhook;
