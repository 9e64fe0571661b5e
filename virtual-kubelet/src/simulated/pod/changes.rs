//! What a pod is told while it runs: another plan or image, to end, to forget what was ready; no I/O.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::{SimulatedPod, Stage, later};
use crate::process::status::Role;
use crate::simulated::container::{Phase, Wait};
use crate::simulated::history::{Event, KILLED, Why};
use crate::simulated::stages::{Plan, PodFault};
use crate::simulated::template::Template;

impl SimulatedPod {
    /// Its spec or its annotations have changed.
    pub fn update(&mut self, plan: Arc<Plan>, template: Arc<Template>, generation: Option<i64>, now: Timestamp) -> bool {
        if *plan == *self.plan && template == self.template && generation == self.generation {
            return false;
        }
        let before = std::mem::replace(&mut self.plan, plan);
        self.generation = generation;
        if template.containers.len() == self.containers.len() {
            self.template = template;
        }
        if self.deadline.is_none() {
            self.replan(&before, now);
            self.replace_images(now);
        }
        true
    }

    /// Something else is to go wrong with it, or nothing any more.
    pub fn change_plan(&mut self, plan: Arc<Plan>, now: Timestamp) -> bool {
        self.update(plan, self.template.clone(), self.generation, now)
    }

    /// Takes another plan up in the middle.
    fn replan(&mut self, before: &Plan, now: Timestamp) {
        for index in 0..self.containers.len() {
            let waits_for_correction = self.containers[index].phase == Phase::Waiting(Wait::Misconfigured);
            if waits_for_correction && self.plan.error.is_none() {
                self.make(index, now);
            }
            let Phase::Running { since } = self.containers[index].phase else { continue };
            if (before.fault, before.run) != (self.plan.fault, self.plan.run) && self.role(index) == Role::Main {
                self.arm_end(index, if self.plan.fault == before.fault { since } else { now });
            }
            if self.plan.fault == Some(PodFault::NeverReady) {
                self.lose_readiness(index, now);
            } else if !self.containers[index].ready && self.containers[index].next.is_none() {
                self.arm_ready(index, now);
            }
        }
    }

    /// A container whose image is another one now is ended, and only then is the image fetched.
    pub(super) fn replace_images(&mut self, now: Timestamp) {
        for index in 0..self.containers.len() {
            let wanted = &self.template.containers[index].image;
            let container = &self.containers[index];
            let over = self.role(index) == Role::Init && matches!(container.phase, Phase::Ended(_));
            if over || container.image == *wanted {
                continue;
            }
            if container.runs == 0 {
                let wanted = wanted.clone();
                let begun = !container.is_untouched();
                let container = &mut self.containers[index];
                (container.image, container.pull_backoff, container.pulled) = (wanted, None, false);
                if begun {
                    container.wait(Wait::Turn);
                    self.make(index, now);
                }
                continue;
            }
            if container.is_running() {
                if !matches!(container.end, Some((_, _, Why::Replaced))) {
                    let (at, code) = self.stops(index, now, later(now, Duration::from_secs(self.template.grace_seconds.into())));
                    self.containers[index].end = Some((at, code, Why::Replaced));
                }
            } else if container.pulled && !self.is_over(index) {
                let container = &mut self.containers[index];
                (container.backoff, container.pull_backoff, container.pulled) = Default::default();
                self.make(index, now);
            }
        }
    }

    /// When, and with which code, a container ends that is told to at `now`.
    fn stops(&self, index: usize, now: Timestamp, deadline: Timestamp) -> (Timestamp, i32) {
        let at = later(now, self.delay(index, Stage::Stop, self.plan.stop));
        if self.plan.fault == Some(PodFault::SlowStop) || at > deadline { (deadline, KILLED) } else { (at, 0) }
    }

    /// Ends it within `grace`: first what it is for, then its sidecars. A later call can only shorten that.
    pub fn stop(&mut self, now: Timestamp, grace: Duration) -> bool {
        let deadline = later(now, grace);
        let first = self.deadline.is_none();
        if self.deadline.is_some_and(|before| before <= deadline) {
            return false;
        }
        self.deadline = Some(deadline);
        let mut last = now;
        for of_sidecars in [false, true] {
            for index in 0..self.containers.len() {
                if (self.role(index) == Role::Sidecar) != of_sidecars || !self.containers[index].is_running() {
                    continue;
                }
                let (mut at, mut code) = match self.containers[index].end {
                    Some((at, code, Why::Stopped)) if !first => (at, code),
                    // A sidecar is told when nobody needs it any more.
                    _ => self.stops(index, if of_sidecars { last } else { now }, deadline),
                };
                if at > deadline {
                    (at, code) = (deadline, KILLED);
                }
                if !of_sidecars {
                    last = last.max(at);
                }
                if first {
                    self.containers[index].history.note(now, Event::Stopping);
                }
                self.containers[index].end = Some((at, code, Why::Stopped));
            }
        }
        for container in &mut self.containers {
            container.next = None;
        }
        true
    }

    fn lose_readiness(&mut self, index: usize, now: Timestamp) {
        let container = &mut self.containers[index];
        container.next = None;
        if std::mem::take(&mut container.ready) {
            container.history.note(now, Event::Unready);
        }
    }

    /// The node's agent starts again and has forgotten what was ready: nothing is for `unready`, and then as after a start.
    pub fn forget_readiness(&mut self, now: Timestamp, unready: Duration) -> bool {
        self.restarts_of_agent = self.restarts_of_agent.saturating_add(1);
        let mut changed = false;
        for index in 0..self.containers.len() {
            if self.containers[index].is_running() && self.role(index) != Role::Init && self.deadline.is_none() {
                changed = true;
                self.lose_readiness(index, now);
                self.arm_ready(index, later(now, unready));
            }
        }
        changed
    }
}
