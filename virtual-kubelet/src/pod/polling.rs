//! Providers that do not tell changes by themselves are asked.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, timeout};

use super::perform::caught;
use super::{PodId, PodLifecycleHandler, PodNotifier, PodStatusSink};
use crate::errdefs::ProviderError;

/// Time between two questions for a pod's status.
///
/// ```
/// use virtual_kubelet::pod::{DEFAULT_POLL_INTERVAL, PodLifecycleHandler, Polling};
///
/// /// Asks half as often as usual.
/// fn lazy<P: PodLifecycleHandler>(provider: P) -> Polling<P> {
///     Polling::every(2 * DEFAULT_POLL_INTERVAL, provider)
/// }
/// assert_eq!(DEFAULT_POLL_INTERVAL.as_secs(), 5);
/// ```
pub const DEFAULT_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Age from which a pod that the provider does not know has failed, when it was never seen running.
const MISSING_AFTER: Duration = Duration::from_mins(1);
/// Questions for statuses that are under way at a time.
const AT_A_TIME: usize = 16;
/// Time after which a question without an answer is given up; it is asked again with the others.
const ANSWERS_WITHIN: Duration = Duration::from_mins(1);
/// What a process has that was killed: 128 + `SIGKILL`.
const KILLED: i32 = 137;

/// Makes a [`PodNotifier`] of a provider that is none: its pods' statuses are read every 5 s.
///
/// At most 16 pods are asked about at a time, and a question without an answer is given up after a minute.
///
/// A pod that the provider does not know any more has failed (reason `NotFound`); one that is unknown after
/// [`PodLifecycleHandler::delete_pod`] has ended.
///
/// ```
/// # use virtual_kubelet::pod::{PodLifecycleHandler, PodNotifier, Polling};
/// fn notifying<P: PodLifecycleHandler>(provider: P) -> impl PodLifecycleHandler + PodNotifier {
///     Polling::new(provider)
/// }
///
/// /// One whose answers are cheap; `unwrap` what only the provider itself can do.
/// fn soon<P: PodLifecycleHandler>(provider: P, unwrap: impl Fn(&P)) -> impl PodLifecycleHandler + PodNotifier {
///     let polling = Polling::every(std::time::Duration::from_secs(1), provider);
///     unwrap(polling.provider());
///     polling
/// }
/// ```
#[derive(Debug)]
pub struct Polling<P>(Arc<Inner<P>>);

#[derive(Debug)]
struct Inner<P> {
    provider: P,
    interval: Duration,
    known: Mutex<HashMap<PodId, Known>>,
    sink: Mutex<PodStatusSink>,
    creations: AtomicU64,
}

#[derive(Debug)]
struct Known {
    /// Another one each time the pod is created: answers to earlier questions are about what was there before.
    creation: u64,
    since: Instant,
    last: PodStatus,
    /// Whether anything was told of it since it was created; whoever listens has forgotten what was told before.
    told: bool,
    deleted: bool,
}

impl Known {
    fn new(pod: &Pod, creation: u64) -> Self {
        Self { creation, since: Instant::now(), last: pod.status.clone().unwrap_or_default(), told: creation == 0, deleted: false }
    }

    fn is_over(&self) -> bool {
        matches!(self.last.phase.as_deref(), Some("Succeeded" | "Failed"))
    }
}

impl<P: PodLifecycleHandler> Polling<P> {
    /// Asks every [`DEFAULT_POLL_INTERVAL`].
    pub fn new(provider: P) -> Self {
        Self::every(DEFAULT_POLL_INTERVAL, provider)
    }

    /// Asks at this interval.
    pub fn every(interval: Duration, provider: P) -> Self {
        Self(Arc::new(Inner { provider, interval, known: Mutex::default(), sink: Mutex::default(), creations: AtomicU64::new(0) }))
    }

    /// The provider itself.
    pub fn provider(&self) -> &P {
        &self.0.provider
    }
}

impl<P: PodLifecycleHandler> Inner<P> {
    fn known(&self) -> MutexGuard<'_, HashMap<PodId, Known>> {
        self.known.lock()
    }

    async fn ask_all(&self) {
        let ids: Vec<PodId> = self.known().iter().filter(|(_, known)| !known.is_over()).map(|(id, _)| id.clone()).collect();
        let questions: Vec<_> = ids.iter().map(|id| self.ask(id).boxed()).collect();
        stream::iter(questions).for_each_concurrent(AT_A_TIME, |question| question).await;
    }

    async fn ask(&self, id: &PodId) {
        let Some(creation) = self.known().get(id).map(|known| known.creation) else { return };
        let question = caught("get_pod_status", Some(id), self.provider.get_pod_status(id));
        let too_late = |_| ProviderError::Other(anyhow::anyhow!("no answer within {} s", ANSWERS_WITHIN.as_secs()));
        let answer = match timeout(ANSWERS_WITHIN, question).await.map_err(too_late).flatten() {
            Ok(status) => status,
            Err(error) if error.is_not_found() => None,
            Err(error) => {
                tracing::warn!(pod = %id, %error, "the provider cannot report the pod's status");
                return;
            }
        };
        let sink = self.sink.lock().clone();
        let mut all = self.known();
        let Some(known) = all.get_mut(id).filter(|known| known.creation == creation) else { return };
        let status = match answer {
            Some(status) => status,
            None if known.deleted => terminated(&known.last, Timestamp::now()),
            None if known.last.phase.as_deref() == Some("Running") || known.since.elapsed() >= MISSING_AFTER => {
                missing(&known.last, Timestamp::now())
            }
            None => return,
        };
        let first = !std::mem::replace(&mut known.told, true);
        if first || known.last != status {
            known.last = status.clone();
            sink.notify(id.clone(), status);
        }
    }
}

impl<P: PodLifecycleHandler> PodNotifier for Polling<P> {
    fn notify_pods(&self, sink: PodStatusSink) {
        *self.0.sink.lock() = sink;
        let (weak, interval): (Weak<Inner<P>>, _) = (Arc::downgrade(&self.0), self.0.interval);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(interval).await;
                // The wrapper is gone, and nobody listens.
                let Some(inner) = weak.upgrade() else { return };
                inner.ask_all().await;
            }
        });
    }
}

impl<P: PodLifecycleHandler> PodLifecycleHandler for Polling<P> {
    async fn create_pod(&self, pod: Arc<Pod>) -> Result<(), ProviderError> {
        let (id, known) = (PodId::of(&pod), Known::new(&pod, self.0.creations.fetch_add(1, Ordering::Relaxed) + 1));
        self.0.provider.create_pod(pod).await?;
        self.0.known().insert(id.clone(), known);
        self.0.ask(&id).await;
        Ok(())
    }

    async fn update_pod(&self, pod: Arc<Pod>) -> Result<(), ProviderError> {
        self.0.provider.update_pod(pod).await
    }

    async fn delete_pod(&self, pod: Arc<Pod>, grace_seconds: i64) -> Result<(), ProviderError> {
        let id = PodId::of(&pod);
        let mark = |deleted: bool| {
            if let Some(known) = self.0.known().get_mut(&id) {
                known.deleted = deleted;
            }
        };
        mark(true);
        let result = self.0.provider.delete_pod(pod, grace_seconds).await;
        match &result {
            Ok(()) => self.0.ask(&id).await,
            Err(_) => mark(false),
        }
        result
    }

    async fn forget_pod(&self, id: &PodId) {
        self.0.known().remove(id);
        self.0.provider.forget_pod(id).await;
    }

    async fn get_pod(&self, id: &PodId) -> Result<Option<Arc<Pod>>, ProviderError> {
        self.0.provider.get_pod(id).await
    }

    async fn get_pod_status(&self, id: &PodId) -> Result<Option<PodStatus>, ProviderError> {
        self.0.provider.get_pod_status(id).await
    }

    async fn retain(&self, present: &HashSet<PodId>) {
        self.0.provider.retain(present).await;
    }

    fn oldest_first(&self) -> bool {
        self.0.provider.oldest_first()
    }

    async fn get_pods(&self) -> Result<Vec<Arc<Pod>>, ProviderError> {
        let pods = self.0.provider.get_pods().await?;
        let mut known = self.0.known();
        for pod in &pods {
            known.entry(PodId::of(pod)).or_insert_with(|| Known::new(pod, 0));
        }
        Ok(pods)
    }
}

/// Every container that had not ended ends now, and is in that one state.
fn all_ended(last: &PodStatus, end: &ContainerStateTerminated) -> Option<Vec<ContainerStatus>> {
    let end = |container: &ContainerStatus| {
        let mut container = container.clone();
        let state = container.state.take().unwrap_or_default();
        if state.terminated.is_some() {
            container.state = Some(state);
            return container;
        }
        let started_at = state.running.and_then(|running| running.started_at);
        let container_id = container.container_id.clone();
        container.state = Some(ContainerState {
            terminated: Some(ContainerStateTerminated { started_at, container_id, ..end.clone() }),
            ..ContainerState::default()
        });
        container.ready = false;
        container.started = Some(false);
        container
    };
    last.container_statuses.as_ref().map(|containers| containers.iter().map(end).collect())
}

/// Status of a pod that was ended as asked.
fn terminated(last: &PodStatus, now: Timestamp) -> PodStatus {
    let end = ContainerStateTerminated {
        exit_code: 0,
        reason: Some("Terminated".into()),
        message: Some("Container was terminated. The exit code may not reflect the real exit code".into()),
        finished_at: Some(Time(now)),
        ..ContainerStateTerminated::default()
    };
    PodStatus {
        phase: Some("Succeeded".into()),
        reason: Some("Terminated".into()),
        container_statuses: all_ended(last, &end),
        ..last.clone()
    }
}

/// Status of a pod that the provider lost.
fn missing(last: &PodStatus, now: Timestamp) -> PodStatus {
    let message = "The pod status was not found and may have been deleted from the provider";
    let end = ContainerStateTerminated {
        exit_code: KILLED,
        reason: Some("NotFound".into()),
        message: Some(message.into()),
        finished_at: Some(Time(now)),
        ..ContainerStateTerminated::default()
    };
    PodStatus {
        phase: Some("Failed".into()),
        reason: Some("NotFound".into()),
        message: Some(message.into()),
        container_statuses: all_ended(last, &end),
        ..last.clone()
    }
}

#[cfg(test)]
#[path = "polling_tests.rs"]
mod tests;
