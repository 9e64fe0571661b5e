//! One container of a simulated pod; no I/O.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::history::{History, Why};
use super::template::ContainerTemplate;
use crate::process::backoff::{Backoff, printed};
use crate::process::status::{ContainerRecord, Role, State, Termination};

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub code: i32,
    pub started_at: Option<Timestamp>,
    pub finished_at: Timestamp,
    pub id: Option<Box<str>>,
}

/// Why a container waits, beside what is natural.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Its image or its turn.
    Turn,
    /// The pull failed just now.
    PullFailed,
    /// Until the next pull.
    PullBackOff,
    /// Until the next start.
    CrashLoop(SignedDuration),
    /// Until somebody corrects the pod's annotations.
    Misconfigured,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Waiting(Wait),
    Running { since: Timestamp },
    Ended(Box<End>),
}

/// What happens next to a container by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// The pull ends.
    Pulled,
    /// The agent looks again after a failed pull.
    PullBackOff,
    /// Another pull.
    Pull,
    /// It starts.
    Started,
    /// It becomes ready.
    Ready,
    /// The agent looks again after an end.
    AfterEnd,
    /// It is made again.
    Again,
}

#[derive(Clone, Debug)]
pub(super) struct Container {
    /// Image of the latest run.
    pub image: Arc<str>,
    pub pulled: bool,
    /// Runs begun.
    pub runs: u32,
    pub phase: Phase,
    pub last: Option<Box<End>>,
    pub ready: bool,
    /// It ended for another image, and has not begun with that: it does, whatever the restart policy says.
    pub replaced: bool,
    pub id: Option<Box<str>>,
    pub next: Option<(Timestamp, Step)>,
    pub end: Option<(Timestamp, i32, Why)>,
    pub backoff: Backoff,
    pub pull_backoff: Option<Box<Backoff>>,
    pub history: History,
}

impl Container {
    pub fn new(template: &ContainerTemplate) -> Self {
        Self {
            image: template.image.clone(),
            pulled: false,
            runs: 0,
            phase: Phase::Waiting(Wait::Turn),
            last: None,
            ready: false,
            replaced: false,
            id: None,
            next: None,
            end: None,
            backoff: Backoff::default(),
            pull_backoff: None,
            history: History::default(),
        }
    }

    pub fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running { .. })
    }

    /// Nothing was begun for it yet.
    pub fn is_untouched(&self) -> bool {
        self.runs == 0 && self.next.is_none() && self.phase == Phase::Waiting(Wait::Turn)
    }

    /// The latest end, while the next run has not begun.
    pub fn latest_end(&self) -> Option<&End> {
        match &self.phase {
            Phase::Ended(end) => Some(end),
            Phase::Waiting(_) => self.last.as_deref(),
            Phase::Running { .. } => None,
        }
    }

    /// Leaves an end behind as the one before.
    pub fn wait(&mut self, wait: Wait) {
        if let Phase::Ended(end) = std::mem::replace(&mut self.phase, Phase::Waiting(wait)) {
            self.last = Some(end);
        }
    }

    /// As its pod's status shows it.
    pub fn record(&self, template: &ContainerTemplate, initializing: bool, pod: &str, error: Option<&str>) -> ContainerRecord {
        let image = if self.runs == 0 { &template.image } else { &self.image };
        let state = match &self.phase {
            Phase::Running { since } => State::Running { since: *since },
            Phase::Ended(end) => State::Terminated(termination(end)),
            Phase::Waiting(wait) => waiting(wait, template, initializing, pod, error),
        };
        ContainerRecord {
            name: template.name.to_string(),
            image: image.to_string(),
            shown: None,
            role: template.role,
            state,
            last: self.last.as_deref().map(termination),
            restart_count: i32::try_from(self.runs.saturating_sub(1)).unwrap_or(i32::MAX),
            ready: self.ready,
            started: self.is_running() && (template.role != Role::Init),
            id: self.id.as_deref().map(str::to_owned),
            forced: self.replaced,
        }
    }
}

fn termination(end: &End) -> Termination {
    Termination {
        exit_code: end.code,
        reason: if end.code == 0 { "Completed" } else { "Error" }.into(),
        message: None,
        started_at: end.started_at,
        finished_at: end.finished_at,
        container_id: end.id.as_deref().map(str::to_owned),
    }
}

fn waiting(wait: &Wait, template: &ContainerTemplate, initializing: bool, pod: &str, error: Option<&str>) -> State {
    let image = &template.image;
    match wait {
        Wait::Turn => State::waiting(if initializing { "PodInitializing" } else { "ContainerCreating" }, None),
        Wait::PullFailed => {
            let why =
                format!("failed to pull and unpack image \"{image}\": failed to resolve reference \"{image}\": not found (simulated)");
            State::waiting("ErrImagePull", Some(why))
        }
        Wait::PullBackOff => State::waiting("ImagePullBackOff", Some(format!("Back-off pulling image \"{image}\""))),
        Wait::CrashLoop(pause) => {
            let why = format!("back-off {} restarting failed container={} pod={pod}", printed(*pause), template.name);
            State::waiting("CrashLoopBackOff", Some(why))
        }
        Wait::Misconfigured => State::waiting("CreateContainerConfigError", error.map(str::to_owned)),
    }
}
