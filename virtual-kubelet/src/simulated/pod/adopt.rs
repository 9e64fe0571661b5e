//! Going on with a pod that an earlier process ran; no I/O.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, PodStatus};

use super::SimulatedPod;
use crate::simulated::container::{Container, End, Phase, Step};
use crate::simulated::history::{Event, Why};
use crate::simulated::stages::Plan;
use crate::simulated::template::Template;

impl SimulatedPod {
    /// A pod that an earlier process ran already, as its status in the API tells.
    pub fn adopt(seed: u64, plan: Arc<Plan>, template: Arc<Template>, generation: Option<i64>, status: &PodStatus, now: Timestamp) -> Self {
        let Some(start_time) = status.start_time.as_ref() else { return Self::new(seed, plan, template, generation, now) };
        let containers = template.containers.iter().map(Container::new).collect();
        let start_time = start_time.0;
        let mut pod = Self { seed, plan, template, generation, start_time, containers, deadline: None, restarts_of_agent: 0 };
        let shown = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
        for shown in shown {
            if let Some(index) = pod.template.containers.iter().position(|container| *container.name == shown.name) {
                pod.adopt_container(index, shown, now);
            }
        }
        pod.replace_images(now);
        pod.go_on(now);
        pod
    }

    fn adopt_container(&mut self, index: usize, shown: &ContainerStatus, now: Timestamp) {
        let end = |state: &Option<ContainerState>| {
            let ended = state.as_ref()?.terminated.as_ref()?;
            Some(Box::new(End {
                code: ended.exit_code,
                started_at: ended.started_at.as_ref().map(|time| time.0),
                finished_at: ended.finished_at.as_ref().map_or(now, |time| time.0),
                id: ended.container_id.as_deref().map(Into::into),
            }))
        };
        let Some(id) = shown.container_id.as_deref().filter(|id| !id.is_empty()) else { return };
        let container = &mut self.containers[index];
        container.id = Some(id.into());
        container.image = shown.image.as_str().into();
        container.pulled = true;
        container.runs = u32::try_from(shown.restart_count).unwrap_or_default().saturating_add(1);
        container.last = end(&shown.last_state);
        container.ready = shown.ready;
        // All that is known of what went before.
        if let Some(last) = &container.last {
            container.history.note(last.finished_at, Event::Ended(last.code, Why::Own));
        }
        if let Some(running) = shown.state.as_ref().and_then(|state| state.running.as_ref()) {
            let since = running.started_at.as_ref().map_or(now, |time| time.0);
            container.phase = Phase::Running { since };
            container.history.note(since, Event::Started(container.runs));
            self.arm_end(index, since);
            if !self.containers[index].ready {
                self.arm_ready(index, now);
            }
        } else if let Some(end) = end(&shown.state) {
            let code = end.code;
            container.history.note(end.finished_at, Event::Ended(code, Why::Own));
            container.phase = Phase::Ended(end);
            if self.runs_again(index, code) {
                self.containers[index].next = Some((now, Step::AfterEnd));
            }
        } else {
            container.next = Some((now, Step::Again));
        }
    }
}
