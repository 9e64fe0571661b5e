//! Kubernetes objects as the operator keeps them, and rules about one object alone: ready, schedulable.
//!
//! What is here knows neither the resource's wishes nor the rollout. The watches of the operator make the facts
//! (`operator/src/watch`); everything else reads them.

pub mod label_map;
pub mod readiness;
pub mod scheduling;
pub mod shared_spec;
