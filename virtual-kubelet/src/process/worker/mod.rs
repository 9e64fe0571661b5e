//! Runs one pod: a task that owns its containers, takes orders and reports of its processes, and
//! publishes the status that follows.

mod history;
mod reports;
mod steps;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};
use nix::sys::signal::Signal;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::backoff::Backoff;
use super::container::{self, Exit, StartError};
use super::probe::ProbeKind;
use super::process_note::ProcessNote;
use super::site::Site;
use super::slot::Slot;
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
    ForgetReadiness(Duration),
}

/// What the tasks of a worker report.
pub(super) enum Report {
    VolumesFilled,
    Started { index: usize, attempt: u64, pid: i32, signal: Signal, ended: CancellationToken },
    NotStarted { index: usize, attempt: u64, error: StartError },
    PostStarted { index: usize, attempt: u64, outcome: Result<(), String> },
    Exited { index: usize, attempt: u64, exit: Exit },
    Probed { index: usize, attempt: u64, kind: ProbeKind, success: bool, message: String },
}

/// The latest status of a pod, shared with the provider.
pub(super) type Published = Arc<Mutex<PodStatus>>;

pub(super) struct Worker {
    site: Arc<Site>,
    id: PodId,
    pod: Arc<Pod>,
    pods: watch::Sender<Arc<Pod>>,
    slots: Vec<Slot>,
    sink: PodStatusSink,
    published: Published,
    start_time: Timestamp,
    volumes_filled: bool,
    /// When what still runs is killed, once the pod is ending.
    kill_at: Option<tokio::time::Instant>,
    ended: bool,
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
    /// A worker for `pod`, which goes on where an earlier agent's worker ended.
    pub fn new(site: Arc<Site>, pod: Arc<Pod>, sink: PodStatusSink) -> std::io::Result<Self> {
        let id = PodId::of(&pod);
        let initializing = pod.spec.as_ref().is_some_and(|spec| spec.init_containers.iter().flatten().next().is_some());
        let mut slots = Vec::new();
        for (role, container) in containers(&pod) {
            let dir = site.container_dir(&id, &container.name);
            std::fs::create_dir_all(&dir)?;
            let mut slot = Slot::new(container.clone(), role, initializing && role == Role::Main);
            history::restore(&mut slot, pod.status.as_ref(), ProcessNote::read(&dir).as_ref(), Timestamp::now());
            slots.push(slot);
        }
        std::fs::create_dir_all(site.volumes_dir(&id))?;
        let (reports, inbox) = mpsc::unbounded_channel();
        let start_time = pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map_or_else(Timestamp::now, |time| time.0);
        Ok(Self {
            site,
            id,
            pods: watch::Sender::new(pod.clone()),
            pod,
            slots,
            sink,
            published: Published::default(),
            start_time,
            volumes_filled: false,
            kill_at: None,
            ended: false,
            unready_until: None,
            reports,
            inbox,
            cancel: CancellationToken::new(),
        })
    }

    pub fn published(&self) -> Published {
        self.published.clone()
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
            Order::ForgetReadiness(time) => {
                self.unready_until = Some(tokio::time::Instant::now() + time);
                for slot in &mut self.slots {
                    slot.readiness = false;
                }
            }
        }
    }

    fn end_within(&mut self, grace: Duration) {
        let kill_at = tokio::time::Instant::now() + grace;
        let shorter = self.kill_at.is_none_or(|before| kill_at < before);
        if !shorter {
            return;
        }
        let again = self.kill_at.replace(kill_at).is_some();
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
                    slot.forced = true;
                    self.doom(index, format!("Container {} definition changed, will be restarted", new.name), None);
                } else {
                    slot.record.image = new.image.clone().unwrap_or_default();
                }
            }
        }
        self.pods.send_replace(pod.clone());
        self.pod = pod;
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

    fn next_wake(&self) -> tokio::time::Instant {
        let now = Timestamp::now();
        let retries = self.slots.iter().filter_map(|slot| slot.retry_at).map(|at| at.duration_since(now));
        let shown = self.slots.iter().any(|slot| matches!(&slot.record.state, State::Waiting { reason, .. } if reason == "ErrImagePull"));
        let soonest = retries.chain(shown.then_some(PULL_ERROR_SHOWN)).min().unwrap_or(SignedDuration::from_hours(1));
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
        }
        let records: Vec<_> = self.slots.iter().map(|slot| slot.record.clone()).collect();
        let status = pod_status(&PodView {
            pod: &self.pod,
            containers: &records,
            address: &self.site.node.address,
            start_time: self.start_time,
            prepared: self.volumes_filled,
            ended: self.ended,
        });
        let Ok(mut published) = self.published.lock() else { return };
        if *published != status {
            published.clone_from(&status);
            self.sink.notify(self.id.clone(), status);
        }
    }
}
