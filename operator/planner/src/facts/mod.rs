//! Kubernetes objects as the operator keeps them, and rules about one object alone: ready, schedulable.
//!
//! What is here knows neither the resource's wishes nor the rollout. The watches of the operator make the facts
//! (`operator/src/watch`); everything else reads them.

pub mod label_map;
mod node_facts;
mod pod;
pub mod readiness;
mod resource;
pub mod scheduling;
pub mod shared_spec;
mod workload;

pub use node_facts::{NodeCondition, NodeFacts};
pub use pod::{ContainerFacts, InPlacePod, PodFacts, PullFacts, Unmet, not_before};
pub use resource::{OtherResource, RESOURCES_PER_NAMESPACE, Resource, SPEC_BYTES, SPEC_MAPPINGS, TOO_MANY_RESOURCES, Withheld};
pub use workload::{DaemonSetFacts, DeploymentCounts, DeploymentFacts, ReplicaSetFacts, RevisionFacts};
