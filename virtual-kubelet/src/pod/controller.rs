//! Watches the pods of one node, gives them to a provider, and writes their statuses.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::watcher;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::decide::PodReport;
use super::decide::{differ_in_environment_alone, is_news};
use super::perform::{Outcome, Performer, Refusal, caught};
use super::{Operation, PodControllerConfig, PodId, PodLifecycleHandler, PodNotifier, PodRecord, PodStatusSink};
use crate::api_call::{TIMEOUT, retry_delay};
use crate::errdefs::ProviderError;
use crate::lifecycle::Lifecycle;
use crate::queue::{KeyedQueue, Retry, RetryPolicy};
use crate::reopening_watch;

/// Pauses before a provider that could not tell its pods is asked again.
const PODS_RETRY_FIRST: Duration = Duration::from_millis(250);
const PODS_RETRY_CAP: Duration = Duration::from_secs(30);

/// The controller of one node's pods.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use tokio_util::sync::CancellationToken;
/// # use virtual_kubelet::pod::{PodController, PodControllerConfig, PodLifecycleHandler, PodNotifier};
/// # async fn example<P: PodLifecycleHandler + PodNotifier>(client: kube::Client, provider: Arc<P>) -> anyhow::Result<()> {
/// let controller = PodController::new(PodControllerConfig::new(client, "n1", provider))?;
/// let (ready, done, cancel) = (controller.ready(), controller.done(), CancellationToken::new());
/// tokio::spawn(controller.run(16, cancel.clone()));
/// tokio::select! {
///     () = ready => println!("all pods of the node have been seen"),
///     ended = done => ended?,
/// }
/// // Pods keep running.
/// cancel.cancel();
/// # Ok(())
/// # }
/// ```
pub struct PodController<P> {
    config: PodControllerConfig<P>,
    lifecycle: Lifecycle<ProviderError>,
}

impl<P: PodLifecycleHandler + PodNotifier> PodController<P> {
    /// A controller as configured, or invalid input. Nothing is done before [`PodController::run`].
    pub fn new(config: PodControllerConfig<P>) -> Result<Self, ProviderError> {
        config.check()?;
        Ok(Self { config, lifecycle: Lifecycle::default() })
    }

    /// Ends once all pods of the node have been seen and the work begins; never when the controller ends before that.
    /// Take it before [`PodController::run`].
    pub fn ready(&self) -> impl Future<Output = ()> + Send + 'static + use<P> {
        self.lifecycle.ready()
    }

    /// Ends with the controller, with what [`PodController::run`] returns. Take it before that.
    pub fn done(&self) -> impl Future<Output = Result<(), Arc<ProviderError>>> + Send + 'static + use<P> {
        self.lifecycle.done()
    }

    /// Runs until `cancel`, which is a clean end, with at most `workers` operations at a time, one per pod. What has been
    /// begun then is finished, for 10 s at most. Pods keep running. Without workers it is invalid input.
    pub async fn run(self, workers: usize, cancel: CancellationToken) -> Result<(), Arc<ProviderError>> {
        let result = self.serve(workers, &cancel).await.map_err(Arc::new);
        self.lifecycle.set_done(result.clone());
        result
    }

    async fn serve(&self, workers: usize, cancel: &CancellationToken) -> Result<(), ProviderError> {
        if workers == 0 {
            return Err(ProviderError::invalid_input("a pod controller needs a worker"));
        }
        let config = &self.config;
        let sink = PodStatusSink::default();
        config.provider.notify_pods(sink.clone());
        let events = reopening_watch::open(Api::<Pod>::all(config.client.clone()), config.pod_watch.clone(), &config.recoveries);
        let mut work = Work::new(config, workers);
        tokio::select! {
            () = cancel.cancelled() => {}
            () = work.serve(events, sink, &self.lifecycle) => {}
        }
        let finish = async { while work.operations.join_next().await.is_some() {} };
        if tokio::time::timeout(TIMEOUT, finish).await.is_err() {
            tracing::warn!("gave up operations on pods that did not end");
        }
        Ok(())
    }
}

/// Which retry policy an operation's failure falls under.
#[derive(Clone, Copy)]
enum Queue {
    Sync,
    Delete,
    Status,
}

impl Queue {
    fn of(operation: &Operation) -> Self {
        match operation {
            Operation::Create(_) | Operation::Update(_) | Operation::Delete(..) | Operation::Forget => Self::Sync,
            Operation::Remove | Operation::Evict(_) => Self::Delete,
            Operation::Patch(_) => Self::Status,
        }
    }
}

struct Work<P> {
    performer: Arc<Performer<P>>,
    filter: super::PodEventFilterFunc,
    policies: [RetryPolicy<PodId>; 3],
    workers: usize,
    records: HashMap<PodId, PodRecord>,
    queue: KeyedQueue<PodId>,
    operations: JoinSet<(PodId, Queue, Outcome)>,
    /// Pods in the latest complete list of the API server.
    listed: HashSet<PodId>,
    /// Nothing is done before the first list is complete.
    listed_once: bool,
    /// Pods of the first list, oldest first, that have not had their turn.
    first: VecDeque<PodId>,
    /// The one of them whose turn it is.
    turn: Option<PodId>,
    /// Those that the queue gave out before their turn.
    early: HashSet<PodId>,
    /// When the provider is asked again for its pods, and how often it could not tell.
    pods_retry: Option<(Instant, u32)>,
}

/// Resource versions of one kind grow; an older view than the one at hand says nothing new.
fn is_older(pod: &Pod, than: &Pod) -> bool {
    let version = |pod: &Pod| pod.resource_version().and_then(|version| version.parse::<u64>().ok());
    matches!((version(pod), version(than)), (Some(a), Some(b)) if a < b)
}

impl<P: PodLifecycleHandler> Work<P> {
    fn new(config: &PodControllerConfig<P>, workers: usize) -> Self {
        Self {
            performer: Arc::new(Performer::new(config)),
            filter: config.pod_event_filter.clone(),
            policies: [&config.sync_pods_from_kubernetes, &config.delete_pods_from_kubernetes, &config.sync_pod_status_from_provider]
                .map(Clone::clone),
            workers,
            records: HashMap::new(),
            queue: KeyedQueue::default(),
            operations: JoinSet::new(),
            listed: HashSet::new(),
            listed_once: false,
            first: VecDeque::new(),
            turn: None,
            early: HashSet::new(),
            pods_retry: None,
        }
    }

    async fn serve(&mut self, mut events: mpsc::Receiver<watcher::Event<Pod>>, sink: PodStatusSink, lifecycle: &Lifecycle<ProviderError>) {
        let mut listing: HashSet<PodId> = HashSet::new();
        loop {
            self.take_turns();
            let pods_retry = self.pods_retry.map(|(at, _)| at);
            tokio::select! {
                event = events.recv() => match event {
                    Some(watcher::Event::Init) => listing.clear(),
                    Some(watcher::Event::InitApply(pod)) => {
                        listing.insert(PodId::of(&pod));
                        // A sweep before the list is complete must not take it for gone.
                        self.listed.insert(PodId::of(&pod));
                        self.observe(pod);
                    }
                    Some(watcher::Event::InitDone) => {
                        self.listed = std::mem::take(&mut listing);
                        self.sweep().await;
                        lifecycle.set_ready();
                    }
                    Some(watcher::Event::Apply(pod)) => {
                        self.listed.insert(PodId::of(&pod));
                        self.observe(pod);
                    }
                    Some(watcher::Event::Delete(pod)) => {
                        let id = PodId::of(&pod);
                        self.listed.remove(&id);
                        self.gone(&id);
                    }
                    // Only when the runtime ends.
                    None => return,
                },
                // Before the first list a pod that the provider tells of may just not have been seen yet.
                reports = sink.take(), if self.listed_once => {
                    for (id, report) in reports {
                        if let Some(record) = self.records.get_mut(&id) {
                            record.take(report);
                            self.queue.add(id);
                        }
                    }
                }
                id = self.queue.next(), if self.listed_once && self.operations.len() < self.workers => self.begin(&id),
                Some(done) = self.operations.join_next() => match done {
                    Ok((id, queue, outcome)) => self.finish(&id, queue, outcome),
                    Err(error) => tracing::error!(%error, "an operation on a pod broke off"),
                },
                () = sleep_until(pods_retry.unwrap_or_else(Instant::now)), if pods_retry.is_some() => self.sweep().await,
            }
        }
    }

    fn observe(&mut self, mut pod: Pod) {
        if !(self.filter)(&pod) {
            return;
        }
        pod.metadata.managed_fields = None;
        let id = PodId::of(&pod);
        let record = self.records.entry(id.clone()).or_default();
        if record.server.as_ref().is_some_and(|known| is_older(&pod, known)) {
            return;
        }
        let news = record.server.as_ref().is_none_or(|known| is_news(known, &pod));
        record.server = Some(Arc::new(pod));
        // What failed waits for its next try, also when the failure itself was just shown in the pod's status.
        if news || !self.queue.is_failing(&id) {
            self.queue.add(id);
        }
    }

    fn gone(&mut self, id: &PodId) {
        if let Some(record) = self.records.get_mut(id) {
            record.server = None;
            self.queue.add(id.clone());
        }
    }

    /// Ends what the list no longer has: pods deleted in a gap of the watch, and pods that the provider
    /// still runs from an earlier life.
    async fn sweep(&mut self) {
        match caught(self.performer.provider.get_pods()).await.flatten() {
            Ok(pods) => {
                self.pods_retry = None;
                for pod in pods {
                    self.adopt(pod).await;
                }
            }
            Err(error) => {
                let failures = self.pods_retry.map_or(0, |(_, failures)| failures) + 1;
                let pause = retry_delay(failures, PODS_RETRY_FIRST, PODS_RETRY_CAP);
                tracing::warn!(%error, "the provider cannot tell its pods, asking again in {} ms", pause.as_millis());
                self.pods_retry = Some((Instant::now() + pause, failures));
            }
        }
        let missing: Vec<PodId> = self.records.keys().filter(|id| !self.listed.contains(*id)).cloned().collect();
        for id in missing {
            self.gone(&id);
        }
        if !std::mem::replace(&mut self.listed_once, true) {
            self.line_up();
        }
        // A list is a look at everything: what failed before need not wait any longer.
        for id in self.records.keys() {
            self.queue.add(id.clone());
        }
        if let Err(error) = caught(self.performer.provider.retain(&self.listed)).await {
            tracing::error!(%error, "telling the provider which pods there are broke off");
        }
    }

    /// A pod that the provider has already, from an earlier life of this program.
    async fn adopt(&mut self, pod: Arc<Pod>) {
        let id = PodId::of(&pod);
        if !(self.filter)(&pod) || self.records.get(&id).is_some_and(|record| record.given.is_some()) {
            return;
        }
        let status = caught(self.performer.provider.get_pod_status(&id)).await.flatten().unwrap_or_default();
        let record = self.records.entry(id.clone()).or_default();
        // It may have been given with a resolved environment, which is no change.
        let given = record.server.clone().filter(|server| differ_in_environment_alone(server, &pod));
        record.given = Some(given.unwrap_or(pod));
        if let Some(status) = status.filter(|_| record.status.is_none()) {
            record.take(PodReport { status, ..PodReport::default() });
        }
        self.queue.add(id);
    }

    /// Where two pods want the same thing of the node, the older one must get it: it had it before this
    /// agent started. So pods of the first list are given to the provider one after the other, oldest first; whatever else
    /// is to be done goes on beside that.
    fn line_up(&mut self) {
        let mut ids: Vec<_> = self
            .records
            .iter()
            .filter(|(_, record)| matches!(record.next(Timestamp::now()), Some(Operation::Create(_))))
            .map(|(id, record)| {
                let created = record.server.as_ref().and_then(|pod| pod.metadata.creation_timestamp.as_ref()).map(|time| time.0);
                (created, id.clone())
            })
            .collect();
        ids.sort();
        self.first = ids.into_iter().map(|(_, id)| id).collect();
    }

    fn take_turns(&mut self) {
        while self.turn.is_none()
            && let Some(id) = self.first.pop_front()
        {
            if self.early.remove(&id) || self.queue.take(&id) {
                self.turn = Some(id.clone());
                self.begin(&id);
            }
        }
    }

    /// Does what is next for a pod, which was taken from the queue.
    fn begin(&mut self, id: &PodId) {
        if self.first.contains(id) {
            self.early.insert(id.clone());
            return;
        }
        let Some(record) = self.records.get_mut(id) else {
            return self.end_turn(id);
        };
        let Some(operation) = record.next(Timestamp::now()) else {
            return self.end_turn(id);
        };
        if let Operation::Patch(_) = &operation {
            record.write();
        }
        let (performer, id, queue) = (self.performer.clone(), id.clone(), Queue::of(&operation));
        self.operations.spawn(async move {
            let outcome = performer.perform(&id, operation).await;
            (id, queue, outcome)
        });
    }

    /// Nothing is to be done.
    fn end_turn(&mut self, id: &PodId) {
        self.queue.done(id);
        self.turn.take_if(|turn| turn == id);
    }

    fn finish(&mut self, id: &PodId, queue: Queue, outcome: Outcome) {
        self.turn.take_if(|turn| turn == id);
        let Some(record) = self.records.get_mut(id) else {
            self.queue.forget(id);
            self.queue.done(id);
            return;
        };
        if let Outcome::Unwritable(error) = &outcome {
            record.refused_write();
            let retry = self.queue.failed(id, &self.policies[queue as usize], error);
            tracing::error!(pod = %id, error, ?retry, "the API server does not take the status that the provider tells");
            return;
        }
        if let Outcome::Failed { error, shown, refusal } = outcome {
            // The answer to our own write may tell a change before the watch does, which is no news then.
            let mut news = false;
            if let Some((pod, known)) = shown.zip(record.server.as_ref()).filter(|(pod, known)| !is_older(pod, known)) {
                news = is_news(known, &pod);
                record.server = Some(Arc::from(pod));
            }
            if let Some(Refusal(pod)) = refusal {
                tracing::warn!(pod = %id, error, "the provider refuses the pod as it is");
                record.refused = Some(pod);
                self.queue.done(id);
                return;
            }
            if record.given.is_none() && matches!(queue, Queue::Sync) {
                record.attempted.clone_from(&record.server);
            }
            match self.queue.failed(id, &self.policies[queue as usize], &error) {
                Retry::After(pause) => tracing::warn!(pod = %id, error, "will try again in {} ms", pause.as_millis()),
                Retry::GiveUp => tracing::error!(pod = %id, error, "given up until the pod changes"),
            }
            if news {
                self.queue.add(id.clone());
            }
            return;
        }
        self.queue.done(id);
        match outcome {
            Outcome::Created(pod) | Outcome::Updated(pod) => record.give(pod),
            Outcome::EndOrdered(grace) => record.delete_sent = Some(grace),
            Outcome::Lost => record.lost = true,
            // What the provider has ended meanwhile is not given again.
            Outcome::Unknown if record.has_ended() => record.lost = true,
            Outcome::Unknown => *record = PodRecord { server: record.server.take(), ..PodRecord::default() },
            Outcome::Written(pod) => {
                record.written(&pod, Timestamp::now());
                if record.server.as_ref().is_some_and(|known| !is_older(&pod, known)) {
                    record.server = Some(Arc::from(pod));
                }
            }
            Outcome::Evicted => record.evicted = None,
            Outcome::Gone => record.server = None,
            Outcome::Forgotten => {
                if record.server.is_none() {
                    self.records.remove(id);
                    self.queue.forget(id);
                    return;
                }
                *record = PodRecord { server: record.server.take(), ..PodRecord::default() };
            }
            Outcome::Failed { .. } | Outcome::Unwritable(_) => {}
        }
        self.queue.add(id.clone());
    }
}
