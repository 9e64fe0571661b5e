//! What a worker does next: starts, restarts and ends of containers, in their order.

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Activity, Begun, PULL_ERROR_SHOWN, Report, Worker};
use crate::process::backoff::printed;
use crate::process::container::{self, Run, StartError};
use crate::process::slot::Slot;
use crate::process::status::{Role, State, is_over};

impl Worker {
    pub(super) fn step(&mut self) {
        if self.kill_at.is_some() {
            self.step_ending();
            return;
        }
        if self.deadline().is_some_and(|at| at <= Timestamp::now()) && !self.is_done() {
            let message = "Pod was active on the node longer than the specified deadline";
            self.site.events.normal(&self.pod, "DeadlineExceeded", message);
            self.activity = Activity::TooLong;
            self.end_within(self.grace());
            self.step_ending();
            return;
        }
        if !self.volumes_filled {
            return;
        }
        let begun = self.slots.iter().any(|slot| slot.record.role == Role::Main && slot.record.id.is_some());
        for index in 0..self.slots.len() {
            match self.slots[index].record.role {
                Role::Init if begun => {}
                Role::Init => {
                    if !matches!(&self.slots[index].record.state, State::Terminated(end) if end.exit_code == 0) {
                        self.ensure(index);
                        break;
                    }
                }
                Role::Sidecar => {
                    self.ensure(index);
                    if !begun && !self.slots[index].record.started {
                        break;
                    }
                }
                Role::Main => {
                    self.ensure(index);
                    // As with a kubelet, the next one starts when the hook after this one's start has ended.
                    let slot = &self.slots[index];
                    if slot.has_post_start() && (slot.starting.is_some() || slot.hook_runs) {
                        break;
                    }
                }
            }
        }
        if self.is_done() {
            // Sidecars have nothing left to serve.
            self.end_within(self.grace());
            self.step_ending();
        }
    }

    /// Whether the pod has come to its end by itself.
    fn is_done(&self) -> bool {
        let over = |slot: &Slot| !slot.is_busy() && is_over(&self.pod, &slot.record);
        let failed = |slot: &Slot| matches!(&slot.record.state, State::Terminated(end) if end.exit_code != 0);
        let mut mains = self.slots.iter().filter(|slot| slot.record.role == Role::Main).peekable();
        let init_failed = self.slots.iter().any(|slot| slot.record.role == Role::Init && over(slot) && failed(slot));
        init_failed || (mains.peek().is_some() && mains.all(over))
    }

    /// Main containers first, then sidecars in the reverse of their order.
    fn step_ending(&mut self) {
        let left = self.kill_at.map(|at| at.saturating_duration_since(tokio::time::Instant::now())).unwrap_or_default();
        let mut busy = false;
        for index in 0..self.slots.len() {
            if self.slots[index].record.role != Role::Sidecar && self.slots[index].is_busy() {
                busy = true;
                if self.slots[index].active.as_ref().is_some_and(|active| !active.stopping) {
                    self.stop(index, left, true);
                }
            }
        }
        if busy {
            return;
        }
        for index in (0..self.slots.len()).rev() {
            if self.slots[index].is_busy() {
                if self.slots[index].active.as_ref().is_some_and(|active| !active.stopping) {
                    self.stop(index, left, true);
                }
                return;
            }
        }
        for slot in &mut self.slots {
            if let (State::Waiting { .. }, Some(last)) = (&slot.record.state, slot.record.last.take()) {
                slot.record.state = State::Terminated(last);
            }
        }
        self.ended = true;
    }

    /// Begins a run when the container has none, is due for one, and is not waiting for its turn.
    fn ensure(&mut self, index: usize) {
        let now = Timestamp::now();
        let slot = &mut self.slots[index];
        if slot.is_busy() || !self.confirmed {
            return;
        }
        if slot.retry_at.is_some_and(|at| at > now) {
            let is_shown = matches!(&slot.record.state, State::Waiting { reason, .. } if reason == "ErrImagePull");
            if is_shown && slot.pull_failed_at.is_none_or(|at| now.duration_since(at) >= PULL_ERROR_SHOWN) {
                slot.wait(
                    "ImagePullBackOff",
                    Some(format!("Back-off pulling image \"{}\"", slot.spec.image.as_deref().unwrap_or_default())),
                );
            }
            return;
        }
        if let Some(ended_at) = slot.follows {
            if !slot.record.forced {
                if is_over(&self.pod, &slot.record) {
                    return;
                }
                if let Some((until, pause)) = slot.backoff.wait(ended_at).filter(|(until, _)| *until > now) {
                    let message = format!(
                        "back-off {} restarting failed container={} pod={}_{}({})",
                        printed(pause),
                        slot.record.name,
                        self.id.name,
                        self.id.namespace,
                        self.id.uid
                    );
                    self.site.events.warning(&self.pod, "BackOff", message.clone());
                    slot.wait("CrashLoopBackOff", Some(message));
                    slot.retry_at = Some(until);
                    return;
                }
                slot.backoff.repeat(ended_at, now);
            }
            slot.follows = None;
            slot.next_count = slot.record.restart_count + 1;
        }
        self.begin(index);
    }

    fn begin(&mut self, index: usize) {
        let (site, pod, reports) = (self.site.clone(), self.pod.clone(), self.reports.clone());
        let slot = &mut self.slots[index];
        slot.attempt += 1;
        slot.retry_at = None;
        let (attempt, count, spec) = (slot.attempt, slot.next_count, slot.spec.clone());
        let given_up = CancellationToken::new();
        slot.starting = Some(given_up.clone());
        tokio::spawn(async move {
            let begun = tokio::select! {
                () = given_up.cancelled() => Err(StartError::Create("cancelled".into())),
                begun = container::start(&site, &pod, &spec, count) => begun,
            };
            // From here on there is a process to account for, whatever was decided meanwhile.
            let begun = match begun {
                Ok(starting) => starting.begun().await,
                Err(error) => Err(error),
            };
            match begun {
                Ok(run) => {
                    let ended = CancellationToken::new();
                    let _ = reports.send(Report::Started { index, attempt, begun: Begun::of(&run), ended: ended.clone() });
                    follow(run, index, attempt, ended, reports).await;
                }
                Err(error) => drop(reports.send(Report::NotStarted { index, attempt, error })),
            }
        });
    }
}

/// Waits for the end of a run and reports it.
pub(super) async fn follow(run: Run, index: usize, attempt: u64, ended: CancellationToken, reports: mpsc::UnboundedSender<Report>) {
    let exit = run.wait().await;
    ended.cancel();
    let _ = reports.send(Report::Exited { index, attempt, exit });
}
