//! Pods that are state machines: stages with delays, and faults. What they do follows from a seed.

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
