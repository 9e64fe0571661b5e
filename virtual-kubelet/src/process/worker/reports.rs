//! What a worker makes of the reports of its tasks.

use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::history::{container_id, termination};
use super::{Begun, Report, Worker, prober};
use crate::api_call::retry_delay;
use crate::process::attempt::Target;
use crate::process::backoff::Backoff;
use crate::process::container::{Exit, StartError};
use crate::process::probe::ProbeKind;
use crate::process::slot::Active;
use crate::process::status::{State, is_over_by_policy};

impl Worker {
    pub(super) fn take(&mut self, report: Report) {
        let current = |worker: &Self, index: usize, attempt: u64| worker.slots[index].attempt == attempt;
        match report {
            Report::VolumesFilled => self.volumes_filled = true,
            Report::Started { index, attempt, begun, ended } if current(self, index, attempt) => self.started(index, begun, ended),
            Report::NotStarted { index, attempt, error } if current(self, index, attempt) => self.not_started(index, &error),
            Report::PostStarted { index, attempt, outcome } if current(self, index, attempt) => self.post_started(index, outcome),
            Report::Exited { index, attempt, exit } if current(self, index, attempt) => self.exited(index, exit),
            Report::Probed { index, attempt, kind, success, message } if current(self, index, attempt) => {
                self.probed(index, kind, success, &message);
            }
            _ => {}
        }
    }

    fn post_started(&mut self, index: usize, outcome: Result<(), String>) {
        let slot = &mut self.slots[index];
        slot.hook_runs = false;
        if let Err(error) = outcome {
            self.site.events.warning(&self.pod, "FailedPostStartHook", error.clone());
            return self.doom(index, format!("FailedPostStartHook: {error}"), None);
        }
        // With a startup probe, that probe says so; it may have done already.
        if slot.spec.startup_probe.is_none() {
            slot.record.started = true;
            if let Some(active) = &slot.active {
                active.startup.send_replace(true);
            }
        }
    }

    fn started(&mut self, index: usize, begun: Begun, ended: CancellationToken) {
        let slot = &mut self.slots[index];
        if let State::Terminated(end) = &slot.record.state {
            slot.record.last = Some(end.clone());
        }
        self.site.events.normal(&self.pod, "Started", format!("Container started: {}", slot.spec.name));
        (slot.starting, slot.config_failures, slot.readiness) = (None, 0, false);
        (slot.pull_backoff, slot.retry_at) = (Backoff::default(), None);
        let post_start = slot.spec.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.clone());
        slot.record.started = slot.spec.startup_probe.is_none() && post_start.is_none();
        slot.hook_runs = post_start.is_some();
        let attempt = slot.attempt;
        let target = self.run_begins(index, begun, &ended);
        self.replace_outdated(index);
        if let Some(hook) = post_start {
            let reports = self.reports.clone();
            tokio::spawn(async move {
                tokio::select! {
                    () = ended.cancelled() => {}
                    outcome = target.hook(&hook) => drop(reports.send(Report::PostStarted { index, attempt, outcome })),
                }
            });
        }
    }

    /// Takes up a run that lives, whoever started it.
    pub(super) fn run_begins(&mut self, index: usize, begun: Begun, ended: &CancellationToken) -> Target {
        let (site, id) = (self.site.clone(), self.id.clone());
        let slot = &mut self.slots[index];
        let target =
            Target { container: slot.spec.clone(), dir: site.container_dir(&id, &slot.spec.name), address: site.node.address.clone() };
        slot.record.state = State::Running { since: begun.started_at };
        slot.record.restart_count = slot.next_count;
        slot.record.id = Some(container_id(&id, &slot.spec.name, slot.record.restart_count));
        slot.record.shown = Some(site.images.shown(&begun.image));
        slot.record.image = begun.image;
        slot.record.forced = false;
        // Nothing else is probed before the start is over, its hook included.
        let startup = watch::Sender::new(slot.record.started);
        let age = Timestamp::now().duration_since(begun.started_at);
        let age = Duration::try_from(age).unwrap_or_default();
        prober::start(&target, age, index, slot.attempt, &startup, ended, &self.reports);
        slot.active = Some(Active { target: target.clone(), signal: begun.signal, ended: ended.clone(), stopping: false, startup });
        target
    }

    fn not_started(&mut self, index: usize, error: &StartError) {
        let now = Timestamp::now();
        let slot = &mut self.slots[index];
        slot.starting = None;
        tracing::warn!(pod = %self.id, container = slot.record.name, %error, "a container cannot start");
        self.site.events.warning(&self.pod, "Failed", format!("Error: {error}"));
        match error {
            StartError::Image(message) => {
                slot.wait("ErrImagePull", Some(message.clone()));
                slot.pull_failed_at = Some(now);
                slot.pull_backoff.repeat(now, now);
                slot.retry_at = slot.pull_backoff.wait(now).map(|(until, _)| until);
            }
            StartError::Config(message) | StartError::Create(message) => {
                let reason = if matches!(error, StartError::Config(_)) { "CreateContainerConfigError" } else { "CreateContainerError" };
                slot.wait(reason, Some(message.clone()));
                slot.config_failures += 1;
                let pause = retry_delay(slot.config_failures, Duration::from_secs(1), Duration::from_secs(10));
                slot.retry_at = now.saturating_add(pause).ok();
            }
        }
    }

    fn exited(&mut self, index: usize, exit: Exit) {
        let slot = &mut self.slots[index];
        tracing::info!(pod = %self.id, container = slot.record.name, code = exit.code, "a container ended");
        let finished_at = exit.finished_at;
        slot.record.state = State::Terminated(termination(exit, slot.record.id.clone()));
        if slot.record.forced && is_over_by_policy(&self.pod, &slot.record) {
            // It is on its way to its next run. Where a container is not restarted, an end that was shown cannot be taken back.
            slot.wait("ContainerCreating", None);
        }
        slot.active = None;
        slot.record.started = false;
        (slot.readiness, slot.hook_runs) = (false, false);
        slot.follows = Some(finished_at);
    }

    fn probed(&mut self, index: usize, kind: ProbeKind, success: bool, message: &str) {
        if !success {
            self.site.events.warning(&self.pod, "Unhealthy", format!("{kind:?} probe failed: {message}"));
        }
        let ending = self.kill_at.is_some();
        let slot = &mut self.slots[index];
        match (kind, success) {
            (ProbeKind::Readiness, _) => {
                if slot.readiness != success {
                    tracing::info!(pod = %self.id, container = slot.record.name, success, message, "readiness changed");
                }
                slot.readiness = success;
            }
            (ProbeKind::Startup, true) => {
                slot.record.started = true;
                if let Some(active) = &slot.active {
                    active.startup.send_replace(true);
                }
            }
            (ProbeKind::Startup | ProbeKind::Liveness, false) if !ending => {
                let probe = if kind == ProbeKind::Startup { &slot.spec.startup_probe } else { &slot.spec.liveness_probe };
                let grace = probe.as_ref().and_then(|probe| probe.termination_grace_period_seconds);
                let why = format!("Container {} failed {kind:?} probe, will be restarted: {message}", slot.record.name);
                self.doom(index, why, grace);
            }
            _ => {}
        }
    }
}
