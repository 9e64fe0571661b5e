//! Watches the pods of one node, gives them to a provider, and writes their statuses.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::watcher;
use tokio::sync::watch::error::RecvError;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::decide::PodReport;
use super::decide::{differ_in_environment_alone, is_news};
use super::perform::{ASK_AFTER, Had, Outcome, Performer, Refusal};
use super::pools::{Pool, Pools};
use super::{Operation, PodControllerConfig, PodId, PodLifecycleHandler, PodNotifier, PodRecord, PodStatusSink};
use crate::api_call::{TIMEOUT, retry_delay};
use crate::errdefs::ProviderError;
use crate::lifecycle::Lifecycle;
use crate::queue::{KeyedQueue, Retry, RetryPolicy};
use crate::reopening_watch;

/// Pauses before a provider that could not tell its pods is asked again.
const PODS_RETRY_FIRST: Duration = Duration::from_millis(250);
const PODS_RETRY_CAP: Duration = Duration::from_secs(30);

/// Longer than any program runs: a grace that ends would otherwise not be one that the clock can tell.
const LONGEST_GRACE: Duration = Duration::from_hours(24 * 365);

/// The controller of one node's pods.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use tokio_util::sync::CancellationToken;
/// # use virtual_kubelet::node::{NodeController, NodeProvider};
/// # use virtual_kubelet::pod::{PodController, PodLifecycleHandler, PodNotifier};
/// # async fn example<N: NodeProvider, P: PodLifecycleHandler + PodNotifier>(nodes: NodeController<N>, provider: Arc<P>) -> anyhow::Result<()> {
/// let controller = PodController::new(nodes.pods(provider))?;
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

    /// Runs until `cancel`, which is a clean end, with at most so many operations of each kind at a time, one per pod: creations
    /// and updates, ends, writes of statuses, deletions in the API. What has been begun then is finished, for 10 s at most. Pods keep
    /// running. Without workers it is invalid input.
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
            tracing::warn!("abandoned operations on pods that did not end");
        }
        Ok(())
    }
}

/// How far the look at all pods of the provider is.
enum Sweep {
    /// The provider is asked for its pods. An answer may still have those that it forgot meanwhile.
    Asking { forgotten: HashSet<PodId> },
    /// The provider is told which pods there are. Creations of others wait, or it would take theirs for what may go.
    Telling { present: HashSet<PodId> },
}

/// What a step of that look has brought.
enum Swept {
    Pods(Result<Vec<Had>, ProviderError>),
    Told,
}

struct Work<P> {
    performer: Arc<Performer<P>>,
    filter: super::PodEventFilterFunc,
    policies: [RetryPolicy<PodId>; 3],
    references: Option<watch::Receiver<u64>>,
    workers: usize,
    records: HashMap<PodId, PodRecord>,
    queue: KeyedQueue<PodId>,
    /// When the provider should have told the end of a pod.
    ends: KeyedQueue<PodId>,
    pools: Pools,
    operations: JoinSet<(PodId, Pool, Outcome)>,
    /// Pods in the latest complete list of the API server.
    listed: HashSet<PodId>,
    /// Nothing is done before the first list is complete and the provider has told its pods, or that it cannot.
    begun: bool,
    /// Pods of the first list that are created one after the other.
    in_turn: HashSet<PodId>,
    sweep: Option<Sweep>,
    sweep_again: bool,
    sweeps: JoinSet<Swept>,
    /// When the provider is asked again for its pods, and how often it could not tell.
    pods_retry: Option<Instant>,
    pods_failures: u32,
}

/// Resource versions of one kind grow; an older view than the one at hand says nothing new.
fn is_older(pod: &Pod, than: &Pod) -> bool {
    let version = |pod: &Pod| pod.resource_version().and_then(|version| version.parse::<u64>().ok());
    matches!((version(pod), version(than)), (Some(a), Some(b)) if a < b)
}

/// Waits for a change of what pods refer to, for ever where nobody notices any.
async fn change(references: &mut Option<watch::Receiver<u64>>) -> Result<(), RecvError> {
    match references {
        Some(references) => references.changed().await,
        None => std::future::pending().await,
    }
}

impl<P: PodLifecycleHandler> Work<P> {
    fn new(config: &PodControllerConfig<P>, workers: usize) -> Self {
        Self {
            performer: Arc::new(Performer::new(config)),
            filter: config.pod_event_filter.clone(),
            policies: [&config.sync_pods_from_kubernetes, &config.delete_pods_from_kubernetes, &config.sync_pod_status_from_provider]
                .map(Clone::clone),
            references: config.references.changes(),
            workers,
            records: HashMap::new(),
            queue: KeyedQueue::default(),
            ends: KeyedQueue::default(),
            pools: Pools::new(workers),
            operations: JoinSet::new(),
            listed: HashSet::new(),
            begun: false,
            in_turn: HashSet::new(),
            sweep: None,
            sweep_again: false,
            sweeps: JoinSet::new(),
            pods_retry: None,
            pods_failures: 0,
        }
    }

    async fn serve(&mut self, mut events: mpsc::Receiver<watcher::Event<Pod>>, sink: PodStatusSink, lifecycle: &Lifecycle<ProviderError>) {
        let mut listing: HashSet<PodId> = HashSet::new();
        loop {
            let pods_retry = self.pods_retry;
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
                        self.miss();
                        // A list is a look at everything: what failed before need not wait any longer.
                        self.all_due();
                        self.sweep();
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
                reports = sink.take(), if self.begun => {
                    for (id, report) in reports {
                        if let Some(record) = self.records.get_mut(&id) {
                            record.take(report);
                            self.due(id);
                        }
                    }
                }
                id = self.queue.next(), if self.begun => self.begin(&id),
                Ok(()) = change(&mut self.references) => {
                    let waiting = self.records.iter().filter(|(_, record)| record.waits_for_references());
                    for id in waiting.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
                        self.due(id);
                    }
                }
                id = self.ends.next() => {
                    self.ends.done(&id);
                    if let Some(record) = self.records.get_mut(&id) {
                        record.overdue = true;
                        self.due(id);
                    }
                }
                Some(done) = self.operations.join_next() => match done {
                    Ok((id, pool, outcome)) => {
                        self.finish(&id, pool, outcome);
                        self.pools.leave(pool);
                        while let Some(next) = self.pools.next(pool) {
                            self.begin(&next);
                        }
                    }
                    Err(error) => tracing::error!(%error, "an operation on a pod failed"),
                },
                Some(swept) = self.sweeps.join_next() => match swept {
                    Ok(Swept::Pods(pods)) => {
                        self.take_over(pods);
                        lifecycle.set_ready();
                    }
                    Ok(Swept::Told) => self.end_sweep(),
                    Err(error) => {
                        tracing::error!(%error, "listing the provider's pods failed");
                        self.end_sweep();
                    }
                },
                () = sleep_until(pods_retry.unwrap_or_else(Instant::now)), if pods_retry.is_some() => self.sweep(),
            }
        }
    }

    /// Something may be to be done for the pod.
    fn due(&mut self, id: PodId) {
        if self.pools.is_waiting(&id) {
            // It may be something else by now, which need not wait.
            self.begin(&id);
        } else if self.begun {
            self.queue.add(id);
        }
    }

    /// Oldest pods first.
    fn all_due(&mut self) {
        let created = |record: &PodRecord| Some(record.server.as_ref()?.metadata.creation_timestamp.as_ref()?.0);
        let mut ids: Vec<_> = self.records.iter().map(|(id, record)| (created(record), id.clone())).collect();
        ids.sort_unstable();
        for (_, id) in ids {
            self.due(id);
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
            self.due(id);
        }
    }

    fn gone(&mut self, id: &PodId) {
        if let Some(record) = self.records.get_mut(id) {
            record.server = None;
            self.due(id.clone());
        }
    }

    /// What the list no longer has was deleted in a gap of the watch.
    fn miss(&mut self) {
        let missing: Vec<PodId> = self.records.keys().filter(|id| !self.listed.contains(*id)).cloned().collect();
        for id in missing {
            self.gone(&id);
        }
    }

    /// Begins to ask the provider for its pods. It may take its time for that: everything else goes on.
    fn sweep(&mut self) {
        self.pods_retry = None;
        if self.sweep.is_some() {
            self.sweep_again = true;
            return;
        }
        self.sweep = Some(Sweep::Asking { forgotten: HashSet::new() });
        let known: HashSet<PodId> = self.records.iter().filter(|(_, record)| record.given.is_some()).map(|(id, _)| id.clone()).collect();
        let (performer, filter, workers) = (self.performer.clone(), self.filter.clone(), self.workers);
        self.sweeps.spawn(async move {
            let is_news = |pod: &Pod| filter(pod) && !known.contains(&PodId::of(pod));
            Swept::Pods(performer.pods(is_news, workers).await)
        });
    }

    /// Ends what the provider still runs from an earlier life, and what only the provider has; then tells it what there is.
    fn take_over(&mut self, pods: Result<Vec<Had>, ProviderError>) {
        let forgotten = match self.sweep.take() {
            Some(Sweep::Asking { forgotten }) => forgotten,
            _ => HashSet::new(),
        };
        match pods {
            Ok(pods) => {
                self.pods_failures = 0;
                for (pod, status) in pods.into_iter().filter(|(pod, _)| !forgotten.contains(&PodId::of(pod))) {
                    self.adopt(pod, status);
                }
            }
            Err(error) => {
                self.pods_failures += 1;
                let pause = retry_delay(self.pods_failures, PODS_RETRY_FIRST, PODS_RETRY_CAP);
                tracing::warn!(%error, "the provider cannot list its pods, retrying in {} ms", pause.as_millis());
                self.pods_retry = Some(Instant::now() + pause);
            }
        }
        self.miss();
        if !std::mem::replace(&mut self.begun, true) {
            self.line_up();
            self.all_due();
        }
        let (performer, present) = (self.performer.clone(), self.listed.clone());
        self.sweep = Some(Sweep::Telling { present: present.clone() });
        self.sweeps.spawn(async move {
            if let Err(error) = performer.retain(&present).await {
                tracing::error!(%error, "telling the provider its pods failed");
            }
            Swept::Told
        });
    }

    fn end_sweep(&mut self) {
        self.sweep = None;
        for id in self.pools.drain(Pool::Held) {
            self.begin(&id);
        }
        if std::mem::take(&mut self.sweep_again) {
            self.sweep();
        }
    }

    /// A pod that the provider has already, from an earlier life of this program.
    fn adopt(&mut self, pod: Arc<Pod>, status: Option<PodStatus>) {
        let id = PodId::of(&pod);
        let record = self.records.entry(id.clone()).or_default();
        if record.given.is_some() {
            return;
        }
        // It may have been given with a resolved environment, which is no change.
        let given = record.server.clone().filter(|server| differ_in_environment_alone(server, &pod));
        record.given = Some(given.unwrap_or(pod));
        if let Some(status) = status.filter(|_| record.status.is_none()) {
            record.take(PodReport { status, ..PodReport::default() });
        }
        self.due(id);
    }

    /// Pods of the first list are given in turn to a provider for which the order counts.
    fn line_up(&mut self) {
        if self.performer.provider.oldest_first() {
            let is_new = |record: &PodRecord| matches!(record.next(Timestamp::now()), Some(Operation::Create(_)));
            self.in_turn = self.records.iter().filter(|(_, record)| is_new(record)).map(|(id, _)| id.clone()).collect();
        }
    }

    fn pool(&self, id: &PodId, operation: &Operation) -> Pool {
        match (operation, &self.sweep) {
            (Operation::Create(_), Some(Sweep::Telling { present })) if !present.contains(id) => Pool::Held,
            (Operation::Create(_), _) if self.in_turn.contains(id) => Pool::InTurn,
            _ => Pool::of(operation),
        }
    }

    /// Does what is next for a pod, which was taken from the queue, as soon as there is a place for it.
    fn begin(&mut self, id: &PodId) {
        let Some(operation) = self.records.get(id).and_then(|record| record.next(Timestamp::now())) else {
            self.pools.quit(id);
            self.queue.done(id);
            return;
        };
        let pool = self.pool(id, &operation);
        if !self.pools.enter(pool, id) {
            return;
        }
        self.in_turn.remove(id);
        if let (Operation::Patch(_), Some(record)) = (&operation, self.records.get_mut(id)) {
            record.write();
        }
        let (performer, id) = (self.performer.clone(), id.clone());
        self.operations.spawn(async move {
            let outcome = performer.perform(&id, operation).await;
            (id, pool, outcome)
        });
    }

    /// What becomes of an operation of this kind that failed.
    fn policy(&self, pool: Pool) -> &RetryPolicy<PodId> {
        &self.policies[match pool {
            Pool::Held | Pool::InTurn | Pool::Give | Pool::End => 0,
            Pool::Remove => 1,
            Pool::Status => 2,
        }]
    }

    fn finish(&mut self, id: &PodId, pool: Pool, outcome: Outcome) {
        let policy = self.policy(pool).clone();
        let Some(record) = self.records.get_mut(id) else {
            self.queue.forget(id);
            self.queue.done(id);
            return;
        };
        if let Outcome::Unwritable(error) = &outcome {
            record.refused_write();
            let retry = self.queue.failed(id, &policy, error);
            tracing::error!(pod = %id, error, ?retry, "the API server refuses the status that the provider reports");
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
                tracing::warn!(pod = %id, error, "the provider refuses the pod");
                record.refused = Some(pod);
                self.queue.done(id);
                return;
            }
            if record.given.is_none() && !matches!(pool, Pool::Status | Pool::Remove) {
                record.attempted.clone_from(&record.server);
            }
            match self.queue.failed(id, &policy, &error) {
                Retry::After(pause) => tracing::warn!(pod = %id, error, "retrying in {} ms", pause.as_millis()),
                Retry::GiveUp => tracing::error!(pod = %id, error, "no retry until the pod changes"),
            }
            if news {
                self.due(id.clone());
            }
            return;
        }
        self.queue.done(id);
        match outcome {
            Outcome::Created(pod) | Outcome::Updated(pod) => record.give(pod),
            Outcome::EndOrdered(grace) => {
                record.delete_sent = Some(grace);
                let grace = Duration::from_secs(u64::try_from(grace).unwrap_or_default()).min(LONGEST_GRACE);
                self.ends.add_after(id.clone(), grace + ASK_AFTER);
            }
            Outcome::Kept(end) => {
                record.overdue = false;
                if let Some(status) = end {
                    record.take(PodReport { status: *status, ..PodReport::default() });
                }
                self.ends.add_after(id.clone(), ASK_AFTER);
            }
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
                if let Some(Sweep::Asking { forgotten }) = &mut self.sweep {
                    forgotten.insert(id.clone());
                }
                if record.server.is_none() {
                    self.records.remove(id);
                    self.queue.forget(id);
                    self.ends.forget(id);
                    return;
                }
                *record = PodRecord { server: record.server.take(), ..PodRecord::default() };
            }
            Outcome::Failed { .. } | Outcome::Unwritable(_) => {}
        }
        self.due(id.clone());
    }
}

#[cfg(test)]
#[path = "controller_tests.rs"]
mod tests;
