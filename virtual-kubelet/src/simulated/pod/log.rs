//! What a pod tells of its containers beside its status; no I/O.

use std::sync::Arc;

use jiff::Timestamp;

use super::SimulatedPod;
use crate::simulated::history::ContainerLog;

impl SimulatedPod {
    /// When its node took it up.
    pub fn start_time(&self) -> Timestamp {
        self.start_time
    }

    fn index_of(&self, container: &str) -> Option<usize> {
        self.template.containers.iter().position(|template| *template.name == *container)
    }

    /// The log of the container of this name, if there is one.
    pub fn log(&self, container: &str) -> Option<ContainerLog> {
        let index = self.index_of(container)?;
        let container = &self.containers[index];
        let over = !container.is_running() && (self.deadline.is_some() || self.is_over(index));
        Some(container.history.log(over))
    }

    /// Whether there is a container of this name, and it runs.
    pub fn is_running(&self, container: &str) -> bool {
        self.index_of(container).is_some_and(|index| self.containers[index].is_running())
    }

    /// What every command in one of its containers prints, if commands are answered.
    pub fn exec(&self) -> Option<Arc<str>> {
        self.plan.exec.clone()
    }
}
