//! Pods that are state machines: stages with delays, and faults. What they do follows from a seed.
//!
//! Rules of a file and annotations of the pod (`stages.rs`) say how a pod behaves, and its spec says what it contains (`template.rs`).
//! `status.rs` makes the status of the pod, and `history.rs` the log of a container. There is no I/O here: `fleet` passes in the time
//! and writes the statuses. Begin with `pod.rs`.

mod container;
mod delay;
mod history;
mod pod;
mod stages;
mod status;
mod template;

pub use delay::{Delay, DelayError};
pub use stages::{ANNOTATION_PREFIX, PodFault, Stages, StagesError};

pub(crate) use history::ContainerLog;
pub(crate) use pod::{SimulatedPod, pod_seed};
pub(crate) use stages::Plan;
pub(crate) use status::Whereabouts;
pub(crate) use template::{ContainerTemplate, Template, Templates};
