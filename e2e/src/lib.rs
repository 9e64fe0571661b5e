//! The test bed, and what runs on it: scenarios, the demo and benchmarks.
//!
//! A bed is a real Kubernetes control plane, nodes made of processes, `HAProxy` and load, inside namespaces of its own. The product's own
//! programs come in. Verdicts, figures and dumps go out, to the terminal and to `target`. The product uses nothing of this package.

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
