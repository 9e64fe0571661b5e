//! Kubernetes nodes without machines: a node that registers itself with a real API server, keeps its
//! lease, and hands the pods that land on it to a *provider*.
//!
//! [`node::NodeController`] owns the Node and Lease objects, [`pod::PodController`] owns the pods of one
//! node, and [`process::ProcessProvider`] runs those pods as local processes. [`fleet::Fleet`] is thousands of nodes whose
//! pods are [`simulated`].

pub mod api;
pub mod api_call;
pub mod errdefs;
pub mod fleet;
mod lifecycle;
pub mod node;
pub mod pod;
pub mod process;
pub mod queue;
mod reopening_watch;
pub mod simulated;
