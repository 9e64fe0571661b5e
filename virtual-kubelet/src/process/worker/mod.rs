//! Runs one pod: a task that owns its containers.
//!
//! Orders of the provider and reports of the pod's processes come in, the status that follows goes out. Nothing here speaks with the API
//! server or knows another pod.

mod history;
mod prober;
mod reports;
mod steps;

pub(super) use history::PodNote;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};
use nix::sys::signal::Signal;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::backoff::Backoff;
use super::container::{self, Exit, Found, Run, StartError};
use super::probe::ProbeKind;
use super::site::Site;
use super::slot::{Health, Slot};
use super::status::{PodView, Role, State, pod_status};
use super::volume_keeper;
use crate::pod::{PodId, PodStatusSink};

/// How long a failed pull is shown as such before it is shown as backing off.
const PULL_ERROR_SHOWN: SignedDuration = SignedDuration::from_secs(2);
/// Grace period of a pod that names none.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// What the provider tells a worker.
pub(super) enum Order {
    Update(Arc<Pod>),
    End(Arc<Pod>, Duration),
    /// The API still has the pod, so what was adopted of it may be started again when it ends.
    Confirm,
    ForgetReadiness(Duration),
}

/// A run as its task tells of it.
pub(super) struct Begun {
    signal: Signal,
    image: String,
    started_at: Timestamp,
}

impl Begun {
    fn of(run: &Run) -> Self {
        Self { signal: run.stop_signal, image: run.image.clone(), started_at: run.started_at }
    }
}

/// What the tasks of a worker report.
pub(super) enum Report {
    VolumesFilled,
    Started { index: usize, attempt: u64, begun: Begun, ended: CancellationToken },
    NotStarted { index: usize, attempt: u64, error: StartError },
    PostStarted { index: usize, attempt: u64, outcome: Result<(), String> },
    Exited { index: usize, attempt: u64, exit: Exit },
    Probed { index: usize, attempt: u64, kind: ProbeKind, success: bool, message: String },
}

/// Where statuses go: nowhere until a controller listens.
pub(super) type Sink = Arc<Mutex<PodStatusSink>>;

/// The latest status of a pod, shared with the provider.
pub(super) type Published = Arc<Mutex<PodStatus>>;

/// Whether a pod was ended for having been active for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    Allowed,
    TooLong,
}

pub(super) struct Worker {
    site: Arc<Site>,
    id: PodId,
    pod: Arc<Pod>,
    pods: watch::Sender<Arc<Pod>>,
    slots: Vec<Slot>,
    sink: Sink,
    published: Published,
    start_time: Timestamp,
    volumes_filled: bool,
    /// Whether containers may be started.
    confirmed: bool,
    /// When what still runs is killed, once the pod is ending.
    kill_at: Option<tokio::time::Instant>,
    ended: bool,
    activity: Activity,
    unready_until: Option<tokio::time::Instant>,
    reports: mpsc::UnboundedSender<Report>,
    inbox: mpsc::UnboundedReceiver<Report>,
    cancel: CancellationToken,
}

fn containers(pod: &Pod) -> impl Iterator<Item = (Role, &Container)> {
    let init = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten()).map(|container| {
        let role = if container.restart_policy.as_deref() == Some("Always") { Role::Sidecar } else { Role::Init };
        (role, container)
    });
    init.chain(pod.spec.iter().flat_map(|spec| spec.containers.iter()).map(|container| (Role::Main, container)))
}

impl Worker {
    /// A worker for a new pod.
    pub fn new(site: Arc<Site>, pod: Arc<Pod>, published: Published, sink: Sink) -> std::io::Result<Self> {
        let start_time = pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map_or_else(Timestamp::now, |time| time.0);
        let worker = Self::build(site, pod, start_time, published, sink);
        for slot in &worker.slots {
            std::fs::create_dir_all(worker.dir(slot))?;
        }
        std::fs::create_dir_all(worker.site.volumes_dir(&worker.id))?;
        worker.keep()?;
        Ok(worker)
    }

    /// A worker for a pod that an earlier agent ran: what runs goes on, what ended meanwhile has ended. Nothing is started
    /// before the pod is known to be wanted still.
    pub async fn adopt(site: Arc<Site>, note: PodNote, published: Published, sink: Sink) -> Self {
        let mut worker = Self::build(site, Arc::new(note.pod), note.start_time, published, sink);
        worker.confirmed = false;
        for index in 0..worker.slots.len() {
            worker.adopt_container(index).await;
        }
        // Filled before anything was started; kept up by the volumes' keeper from now on.
        worker.volumes_filled = worker.slots.iter().any(|slot| slot.record.id.is_some());
        if note.past_deadline {
            worker.activity = Activity::TooLong;
        }
        if let Some(kill_at) = note.kill_at {
            let left = Duration::try_from(kill_at.duration_since(Timestamp::now())).unwrap_or_default();
            worker.end_within(left);
        }
        worker
    }

    async fn adopt_container(&mut self, index: usize) {
        let (id, slot) = (self.id.clone(), &mut self.slots[index]);
        let dir = self.site.container_dir(&id, &slot.spec.name);
        match container::find(&dir, &slot.spec).await {
            Found::Nothing => {}
            Found::Running(run) => {
                tracing::info!(pod = %id, container = slot.record.name, "adopted a running container");
                slot.attempt += 1;
                slot.next_count = run.restart_count;
                slot.record.last = history::end_before(&dir, &id, &slot.spec.name, run.restart_count);
                let health = Health::read(&dir).filter(|health| health.restart_count == run.restart_count);
                slot.readiness = health.is_some_and(|health| health.readiness);
                // A hook after the start is not repeated; a probe of the start is.
                slot.record.started = slot.spec.startup_probe.is_none() || health.is_some_and(|health| health.started);
                let (attempt, ended) = (slot.attempt, CancellationToken::new());
                self.run_begins(index, Begun::of(&run), &ended);
                tokio::spawn(steps::follow(*run, index, attempt, ended, self.reports.clone()));
            }
            Found::Ended { restart_count, image, exit } => {
                tracing::info!(pod = %id, container = slot.record.name, code = exit.code, "a container ended while the agent was down");
                slot.next_count = restart_count;
                slot.record.restart_count = restart_count;
                slot.record.shown = Some(self.site.images.shown(&image));
                slot.record.image = image;
                slot.record.last = history::end_before(&dir, &id, &slot.spec.name, restart_count);
                slot.record.id = Some(history::container_id(&id, &slot.spec.name, restart_count));
                slot.follows = Some(exit.finished_at);
                slot.record.state = State::Terminated(history::termination(exit, slot.record.id.clone()));
            }
        }
    }

    fn build(site: Arc<Site>, pod: Arc<Pod>, start_time: Timestamp, published: Published, sink: Sink) -> Self {
        let initializing = pod.spec.as_ref().is_some_and(|spec| spec.init_containers.iter().flatten().next().is_some());
        let slot = |(role, container): (Role, &Container)| Slot::new(container.clone(), role, initializing && role == Role::Main);
        let slots = containers(&pod).map(slot).collect();
        let (reports, inbox) = mpsc::unbounded_channel();
        Self {
            site,
            id: PodId::of(&pod),
            pods: watch::Sender::new(pod.clone()),
            pod,
            slots,
            sink,
            published,
            start_time,
            volumes_filled: false,
            confirmed: true,
            kill_at: None,
            ended: false,
            activity: Activity::Allowed,
            unready_until: None,
            reports,
            inbox,
            cancel: CancellationToken::new(),
        }
    }

    fn dir(&self, slot: &Slot) -> PathBuf {
        self.site.container_dir(&self.id, &slot.spec.name)
    }

    /// Keeps what the next agent has to know.
    fn keep(&self) -> std::io::Result<()> {
        let left = |at: tokio::time::Instant| at.saturating_duration_since(tokio::time::Instant::now());
        let kill_at = self.kill_at.and_then(|at| Timestamp::now().checked_add(left(at)).ok());
        let (start_time, past_deadline) = (self.start_time, self.activity == Activity::TooLong);
        PodNote { pod: (*self.pod).clone(), start_time, kill_at, past_deadline }.write(&self.site.pod_dir(&self.id))
    }

    fn keep_or_warn(&self) {
        if let Err(error) = self.keep() {
            tracing::warn!(pod = %self.id, %error, "cannot save the pod for the next start of the agent");
        }
    }

    pub async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        let reports = self.reports.clone();
        let filled = move || drop(reports.send(Report::VolumesFilled));
        tokio::spawn(volume_keeper::keep(self.site.clone(), self.pods.subscribe(), filled, self.cancel.clone()));
        loop {
            self.step();
            self.publish();
            if self.ended {
                break;
            }
            let wake = self.next_wake();
            tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => self.obey(order),
                    None => break,
                },
                Some(report) = self.inbox.recv() => self.take(report),
                () = tokio::time::sleep_until(wake) => {}
            }
        }
        self.cancel.cancel();
        let volumes = self.site.volumes_dir(&self.id);
        let _ = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(volumes)).await;
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Update(pod) => self.update(pod),
            Order::End(pod, grace) => {
                self.pod = pod;
                self.end_within(grace);
            }
            Order::Confirm => self.confirm(),
            Order::ForgetReadiness(time) => {
                self.unready_until = Some(tokio::time::Instant::now() + container::bounded(time));
                for slot in &mut self.slots {
                    slot.readiness = false;
                }
            }
        }
    }

    fn confirm(&mut self) {
        if std::mem::replace(&mut self.confirmed, true) {
            return;
        }
        for index in 0..self.slots.len() {
            self.replace_outdated(index);
        }
    }

    /// Stops a run whose image is no longer the wanted one.
    fn replace_outdated(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if slot.active.is_some() && slot.spec.image.clone().unwrap_or_default() != slot.record.image {
            slot.record.forced = true;
            let why = format!("Container {} definition changed, will be restarted", slot.spec.name);
            self.doom(index, why, None);
        }
    }

    fn end_within(&mut self, grace: Duration) {
        let kill_at = tokio::time::Instant::now() + container::bounded(grace);
        let shorter = self.kill_at.is_none_or(|before| kill_at < before);
        if !shorter {
            return;
        }
        let again = self.kill_at.replace(kill_at).is_some();
        self.keep_or_warn();
        for index in 0..self.slots.len() {
            if let Some(starting) = &self.slots[index].starting {
                starting.cancel();
            }
            if again && self.slots[index].active.as_ref().is_some_and(|active| active.stopping) {
                self.stop(index, grace, false);
            }
        }
    }

    fn update(&mut self, pod: Arc<Pod>) {
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            let Some((_, new)) = containers(&pod).find(|(_, new)| new.name == slot.spec.name) else { continue };
            let changed = new.image != slot.spec.image;
            slot.spec = new.clone();
            if changed {
                slot.backoff = Backoff::default();
                slot.pull_backoff = Backoff::default();
                slot.retry_at = None;
                if let Some(starting) = &slot.starting {
                    starting.cancel();
                }
                if slot.active.is_some() {
                    self.replace_outdated(index);
                } else {
                    slot.record.image = new.image.clone().unwrap_or_default();
                    slot.record.shown = None;
                }
            }
        }
        self.pods.send_replace(pod.clone());
        self.pod = pod;
        self.keep_or_warn();
    }

    /// Stops a run so that the next one can follow.
    fn doom(&mut self, index: usize, why: String, grace: Option<i64>) {
        let grace = grace.and_then(|seconds| u64::try_from(seconds).ok()).map_or_else(|| self.grace(), Duration::from_secs);
        let slot = &mut self.slots[index];
        if slot.active.as_ref().is_some_and(|active| !active.stopping) {
            tracing::info!(pod = %self.id, container = slot.record.name, "{why}");
            self.site.events.normal(&self.pod, "Killing", why);
            self.stop(index, grace, true);
        }
    }

    fn grace(&self) -> Duration {
        let seconds = self.pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
        seconds.and_then(|seconds| u64::try_from(seconds).ok()).map_or(DEFAULT_GRACE, Duration::from_secs)
    }

    fn stop(&mut self, index: usize, grace: Duration, with_hook: bool) {
        let slot = &mut self.slots[index];
        let Some(active) = &mut slot.active else { return };
        active.stopping = true;
        let hook = slot.spec.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.clone()).filter(|_| with_hook);
        tokio::spawn(container::stop(active.target.clone(), active.signal, grace, hook, active.ended.clone()));
    }

    /// When the pod will have been active for as long as it may.
    fn deadline(&self) -> Option<Timestamp> {
        let seconds = self.pod.spec.as_ref()?.active_deadline_seconds?;
        self.start_time.checked_add(SignedDuration::from_secs(seconds)).ok()
    }

    fn next_wake(&self) -> tokio::time::Instant {
        let now = Timestamp::now();
        let deadline = self.deadline().filter(|_| self.kill_at.is_none()).map(|at| at.duration_since(now));
        let retries = self.slots.iter().filter_map(|slot| slot.retry_at).map(|at| at.duration_since(now));
        let shown = self.slots.iter().any(|slot| matches!(&slot.record.state, State::Waiting { reason, .. } if reason == "ErrImagePull"));
        let soonest = retries.chain(shown.then_some(PULL_ERROR_SHOWN)).chain(deadline).min().unwrap_or(SignedDuration::from_hours(1));
        let soonest = Duration::try_from(soonest.max(SignedDuration::from_millis(10))).unwrap_or(Duration::from_secs(1));
        let wake = tokio::time::Instant::now() + soonest;
        self.unready_until.map_or(wake, |until| wake.min(until.max(tokio::time::Instant::now())))
    }

    fn publish(&mut self) {
        if self.unready_until.is_some_and(|until| until <= tokio::time::Instant::now()) {
            self.unready_until = None;
        }
        let counts = self.unready_until.is_none();
        for slot in &mut self.slots {
            slot.refresh_ready(counts);
            slot.keep_health(&self.site.container_dir(&self.id, &slot.spec.name));
        }
        let records: Vec<_> = self.slots.iter().map(|slot| slot.record.clone()).collect();
        let status = pod_status(&PodView {
            pod: &self.pod,
            containers: &records,
            address: &self.site.node.address,
            start_time: self.start_time,
            prepared: self.volumes_filled,
            ended: self.ended,
            past_deadline: self.activity == Activity::TooLong,
        });
        let mut published = self.published.lock();
        if *published != status {
            published.clone_from(&status);
            self.sink.lock().notify(self.id.clone(), status);
        }
    }
}
