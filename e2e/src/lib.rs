//! The test bed: a real Kubernetes control plane, nodes made of processes, `HAProxy` and load, all inside namespaces of
//! their own; and what is run on it: scenarios, the demo and benchmarks.

pub mod bed;
pub mod bench;
pub mod chance;
pub mod demo;
pub mod detacher;
pub mod dump;
pub mod eventually;
pub mod faults;
pub mod former;
pub mod front;
pub mod host;
pub mod load;
pub mod operator_process;
pub mod panics;
pub mod runs;
pub mod scenario;
pub mod scenarios;
pub mod thin_nodes;

pub use auditor;
