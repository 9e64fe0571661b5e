//! One container of a pod as its worker keeps it.

use std::path::Path;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Container;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::attempt::Target;
use super::backoff::Backoff;
use super::shim::{read_json, write_json};
use super::status::{ContainerRecord, Role, State};

/// A run that lives.
pub(super) struct Active {
    pub target: Target,
    pub signal: Signal,
    /// Cancelled when the process is gone.
    pub ended: CancellationToken,
    pub stopping: bool,
    /// Turns true when the startup probe has succeeded.
    pub startup: watch::Sender<bool>,
}

/// What probes said of a run, kept so that an agent that starts anew need not make it unready first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Health {
    /// Which run.
    pub restart_count: i32,
    /// Whether it has started, as startup probes and hooks see it.
    pub started: bool,
    /// The last verdict of the readiness probe.
    pub readiness: bool,
}

impl Health {
    const FILE: &str = "health.json";

    /// What was last kept of the container in `directory`.
    pub fn read(directory: &Path) -> Option<Self> {
        read_json(&directory.join(Self::FILE))
    }
}

/// A container, its present run and what decides about the next one.
pub(super) struct Slot {
    pub spec: Container,
    pub record: ContainerRecord,
    /// Tells reports of the present run from those of an earlier one.
    pub attempt: u64,
    /// Present while a run is being prepared.
    pub starting: Option<CancellationToken>,
    pub active: Option<Active>,
    /// The restart count that the next run will have.
    pub next_count: i32,
    /// When the run ended that the next one follows.
    pub follows: Option<Timestamp>,
    /// The hook after the start has not ended.
    pub hook_runs: bool,
    pub backoff: Backoff,
    pub pull_backoff: Backoff,
    /// When the last pull failed.
    pub pull_failed_at: Option<Timestamp>,
    pub config_failures: u32,
    pub retry_at: Option<Timestamp>,
    /// The last verdict of the readiness probe.
    pub readiness: bool,
    /// What is kept of that.
    pub kept: Option<Health>,
}

impl Slot {
    pub fn new(spec: Container, role: Role, initializing: bool) -> Self {
        let reason = if initializing { "PodInitializing" } else { "ContainerCreating" };
        Self {
            record: ContainerRecord {
                name: spec.name.clone(),
                image: spec.image.clone().unwrap_or_default(),
                shown: None,
                role,
                state: State::waiting(reason, None),
                last: None,
                restart_count: 0,
                ready: false,
                started: false,
                id: None,
                forced: false,
            },
            spec,
            attempt: 0,
            starting: None,
            active: None,
            next_count: 0,
            follows: None,
            hook_runs: false,
            backoff: Backoff::default(),
            pull_backoff: Backoff::default(),
            pull_failed_at: None,
            config_failures: 0,
            retry_at: None,
            readiness: false,
            kept: None,
        }
    }

    /// Keeps what probes said, if it changed.
    pub fn keep_health(&mut self, directory: &Path) {
        let Some(_) = &self.active else { return };
        let (restart_count, started, readiness) = (self.record.restart_count, self.record.started, self.readiness);
        let health = Health { restart_count, started, readiness };
        if self.kept != Some(health) && write_json(&directory.join(Health::FILE), &health).is_ok() {
            self.kept = Some(health);
        }
    }

    pub fn has_post_start(&self) -> bool {
        self.spec.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.post_start.is_some())
    }

    pub fn is_busy(&self) -> bool {
        self.active.is_some() || self.starting.is_some()
    }

    /// A waiting state takes the end that was shown so far along as the last one.
    pub fn wait(&mut self, reason: &str, message: Option<String>) {
        if let State::Terminated(end) = &self.record.state {
            self.record.last = Some(end.clone());
        }
        self.record.state = State::waiting(reason, message);
    }

    /// Whether traffic may come, given whether readiness counts at all now.
    pub fn refresh_ready(&mut self, counts: bool) {
        let has_probe = self.spec.readiness_probe.is_some();
        self.record.ready = match self.record.role {
            Role::Init => matches!(&self.record.state, State::Terminated(end) if end.exit_code == 0),
            _ => self.active.is_some() && self.record.started && counts && (self.readiness || !has_probe),
        };
    }
}
