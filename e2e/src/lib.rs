//! The test bed: a real Kubernetes control plane, nodes made of processes, `HAProxy` and load, all inside namespaces of
//! their own; and what is run on it: scenarios, the demo and benchmarks.

pub mod bed;
pub mod bench;
pub mod cluster;
pub mod demo;
pub mod eventually;
pub mod faults;
pub mod host;
pub mod load;
pub mod runs;
pub mod scenario;
pub mod scenarios;

pub use auditor;
