//! Readiness gates of pods: what the conditions say that pods list in `spec.readinessGates`.
//!
//! [`decide`] looks at one pod and all gates of its namespace at once and returns at most one patch of its status. Only conditions that a
//! gate keeps and the pod lists are in it, by [`patch`] never one of Kubernetes' own. All that is remembered is in the conditions
//! themselves. Nothing here makes a request or writes to nodes.

pub mod accepted;
pub mod decide;
pub mod links;
pub mod owners;
pub mod patch;
pub mod policy_objects;
pub mod review;
pub mod source;
pub mod status;
pub mod world;

pub use decide::{PodPlan, decide};
pub use source::SourceVerdict;
pub use world::{Gate, Pod, World};
