//! Watches the pods of one node, gives them to a provider, and writes their statuses.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::environment::NodeFacts;
use super::{Operation, PodId, PodLifecycleHandler, PodNotifier, PodRecord, PodStatusSink, resolved};
use crate::api_call::{ApiCallError, Recoveries, retry_delay, within};
use crate::errdefs::ProviderError;
use crate::reopening_watch;

const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_CAP: Duration = Duration::from_secs(30);

/// What a pod controller needs to know.
#[derive(Clone, Debug)]
pub struct PodControllerOptions {
    /// The node whose pods are run.
    pub node_name: String,
    /// Most operations in flight; one per pod at a time in any case.
    pub workers: usize,
    /// Facts with which the controller resolves the environment before the provider gets a pod; `None`
    /// leaves that to the provider, which can then do it at each start of a container.
    pub resolve_environment: Option<NodeFacts>,
}

/// The controller of one node's pods.
pub struct PodController<P> {
    client: Client,
    provider: Arc<P>,
    options: PodControllerOptions,
    recoveries: Recoveries,
}

/// A record with its place in the work.
#[derive(Default)]
struct Entry {
    record: PodRecord,
    busy: bool,
    failures: u32,
    not_before: Option<Instant>,
}

enum Outcome {
    Created(Arc<Pod>),
    Updated(Arc<Pod>),
    EndOrdered(i64),
    /// The provider does not know the pod.
    Lost,
    Written(Box<Pod>),
    /// Gone from the API, or another pod has the name now.
    Gone,
    Forgotten,
    Failed(String),
    /// The pause after a failure is over.
    Wake,
}

impl<P: PodLifecycleHandler + PodNotifier> PodController<P> {
    /// A controller for the pods of `options.node_name`.
    pub fn new(client: Client, provider: Arc<P>, options: PodControllerOptions, recoveries: Recoveries) -> Self {
        Self { client, provider, options, recoveries }
    }

    /// Runs until `cancel`. Pods keep running when it ends.
    pub async fn run(self, cancel: CancellationToken) {
        let sink = PodStatusSink::default();
        self.provider.notify_pods(sink.clone());
        let config = watcher::Config::default().fields(&format!("spec.nodeName={}", self.options.node_name));
        let mut events = reopening_watch::open(Api::<Pod>::all(self.client.clone()), config, &self.recoveries);
        let mut work = Work {
            client: self.client,
            slots: Arc::new(Semaphore::new(self.options.workers.max(1))),
            node: self.options.resolve_environment.map(Arc::new),
            provider: self.provider,
            entries: HashMap::new(),
            operations: JoinSet::new(),
            listed_once: false,
        };
        let mut listed: HashSet<PodId> = HashSet::new();
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                event = events.recv() => match event {
                    Some(watcher::Event::Init) => listed.clear(),
                    Some(watcher::Event::InitApply(pod)) => {
                        listed.insert(PodId::of(&pod));
                        work.observe(pod);
                    }
                    Some(watcher::Event::InitDone) => work.sweep(&listed).await,
                    Some(watcher::Event::Apply(pod)) => work.observe(pod),
                    Some(watcher::Event::Delete(pod)) => work.gone(&PodId::of(&pod)),
                    None => return,
                },
                statuses = sink.take() => {
                    for (id, status) in statuses {
                        if let Some(entry) = work.entries.get_mut(&id) {
                            entry.record.status = Some(status);
                            entry.not_before = None;
                            work.advance(&id);
                        }
                    }
                }
                Some(done) = work.operations.join_next() => match done {
                    Ok((id, outcome)) => work.finish(&id, outcome),
                    Err(error) => tracing::error!(%error, "an operation on a pod broke off"),
                },
            }
        }
    }
}

struct Work<P> {
    client: Client,
    slots: Arc<Semaphore>,
    node: Option<Arc<NodeFacts>>,
    provider: Arc<P>,
    entries: HashMap<PodId, Entry>,
    operations: JoinSet<(PodId, Outcome)>,
    /// Nothing is done before the first list is complete.
    listed_once: bool,
}

/// Resource versions of one kind grow; an older view than the one at hand says nothing new.
fn is_older(pod: &Pod, than: &Pod) -> bool {
    let version = |pod: &Pod| pod.resource_version().and_then(|version| version.parse::<u64>().ok());
    matches!((version(pod), version(than)), (Some(a), Some(b)) if a < b)
}

impl<P: PodLifecycleHandler> Work<P> {
    fn observe(&mut self, mut pod: Pod) {
        pod.metadata.managed_fields = None;
        let id = PodId::of(&pod);
        let entry = self.entries.entry(id.clone()).or_default();
        if entry.record.server.as_ref().is_some_and(|known| is_older(&pod, known)) {
            return;
        }
        entry.record.server = Some(Arc::new(pod));
        entry.not_before = None;
        self.advance(&id);
    }

    fn gone(&mut self, id: &PodId) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.record.server = None;
            entry.not_before = None;
            self.advance(id);
        }
    }

    /// Ends what the list no longer has: pods deleted in a gap of the watch, and pods that the provider
    /// still runs from an earlier life.
    async fn sweep(&mut self, listed: &HashSet<PodId>) {
        for pod in self.provider.get_pods().await.unwrap_or_default() {
            let entry = self.entries.entry(PodId::of(&pod)).or_default();
            entry.record.given.get_or_insert(pod);
        }
        let missing: Vec<PodId> = self.entries.keys().filter(|id| !listed.contains(*id)).cloned().collect();
        for id in missing {
            self.gone(&id);
        }
        if !std::mem::replace(&mut self.listed_once, true) {
            self.create_oldest_first().await;
        }
        self.provider.retain(listed).await;
    }

    /// Where two pods want the same thing of the node, the older one must get it: it had it before this
    /// agent started.
    async fn create_oldest_first(&mut self) {
        let mut ids: Vec<_> = self
            .entries
            .iter()
            .map(|(id, entry)| {
                let created = entry.record.server.as_ref().and_then(|pod| pod.metadata.creation_timestamp.as_ref()).map(|time| time.0);
                (created, id.clone())
            })
            .collect();
        ids.sort();
        for (_, id) in ids {
            let operation = self.entries.get(&id).and_then(|entry| entry.record.next(Timestamp::now()));
            match operation {
                Some(operation @ Operation::Create(_)) => {
                    let outcome = perform(&self.client, &*self.provider, self.node.as_deref(), &id, operation).await;
                    self.finish(&id, outcome);
                }
                _ => self.advance(&id),
            }
        }
    }

    fn finish(&mut self, id: &PodId, outcome: Outcome) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        let wake = matches!(outcome, Outcome::Wake);
        if !wake {
            entry.busy = false;
        }
        let failed = matches!(outcome, Outcome::Failed(_));
        match outcome {
            Outcome::Created(pod) | Outcome::Updated(pod) => entry.record.given = Some(pod),
            Outcome::EndOrdered(grace) => entry.record.delete_sent = Some(grace),
            Outcome::Lost => entry.record.lost = true,
            Outcome::Written(pod) => {
                if entry.record.server.as_ref().is_some_and(|known| !is_older(&pod, known)) {
                    entry.record.server = Some(Arc::from(pod));
                }
            }
            Outcome::Gone => entry.record.server = None,
            Outcome::Forgotten => {
                if entry.record.server.is_none() {
                    self.entries.remove(id);
                    return;
                }
                entry.record = PodRecord { server: entry.record.server.take(), ..PodRecord::default() };
            }
            Outcome::Failed(error) => {
                entry.failures += 1;
                let pause = retry_delay(entry.failures, RETRY_FIRST, RETRY_CAP);
                tracing::warn!(pod = %id, error, "will try again in {} ms", pause.as_millis());
                let until = Instant::now() + pause;
                entry.not_before = Some(until);
                let id = id.clone();
                self.operations.spawn(async move {
                    sleep_until(until).await;
                    (id, Outcome::Wake)
                });
            }
            Outcome::Wake => {}
        }
        if !failed {
            if !wake {
                entry.failures = 0;
            }
            self.advance(id);
        }
    }

    fn advance(&mut self, id: &PodId) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        if !self.listed_once || entry.busy || entry.not_before.is_some_and(|at| at > Instant::now()) {
            return;
        }
        let Some(operation) = entry.record.next(Timestamp::now()) else { return };
        entry.busy = true;
        let (client, provider, slots, id) = (self.client.clone(), self.provider.clone(), self.slots.clone(), id.clone());
        let node = self.node.clone();
        self.operations.spawn(async move {
            let _slot = slots.acquire().await;
            let outcome = perform(&client, &*provider, node.as_deref(), &id, operation).await;
            (id, outcome)
        });
    }
}

async fn perform<P: PodLifecycleHandler>(
    client: &Client,
    provider: &P,
    node: Option<&NodeFacts>,
    id: &PodId,
    operation: Operation,
) -> Outcome {
    let ready = async |pod: &Arc<Pod>| match node {
        Some(node) => resolved::resolve(client, pod, node).await.map_err(|error| error.to_string()),
        None => Ok(pod.clone()),
    };
    let api = || Api::<Pod>::namespaced(client.clone(), &id.namespace);
    match operation {
        Operation::Create(pod) => match ready(&pod).await {
            Ok(given) => match provider.create_pod(given).await {
                Ok(()) => Outcome::Created(pod),
                Err(error) => Outcome::Failed(error.to_string()),
            },
            Err(error) => Outcome::Failed(error),
        },
        Operation::Update(pod) => match ready(&pod).await {
            Ok(given) => match provider.update_pod(given).await {
                Ok(()) => Outcome::Updated(pod),
                Err(ProviderError::NotFound(_)) => Outcome::Lost,
                Err(error) => Outcome::Failed(error.to_string()),
            },
            Err(error) => Outcome::Failed(error),
        },
        Operation::Delete(pod, grace) => match provider.delete_pod(pod, grace).await {
            Ok(()) => Outcome::EndOrdered(grace),
            Err(ProviderError::NotFound(_)) => Outcome::Lost,
            Err(error) => Outcome::Failed(error.to_string()),
        },
        Operation::Patch(patch) => match within(api().patch_status(&id.name, &PatchParams::default(), &Patch::Strategic(&patch))).await {
            Ok(pod) => Outcome::Written(Box::new(pod)),
            Err(ApiCallError::NotFound(_)) => Outcome::Gone,
            Err(error) => Outcome::Failed(error.to_string()),
        },
        Operation::Remove => {
            let parameters = DeleteParams {
                grace_period_seconds: Some(0),
                preconditions: Some(Preconditions { uid: Some(id.uid.clone()), resource_version: None }),
                ..DeleteParams::default()
            };
            match within(api().delete(&id.name, &parameters)).await {
                Ok(_) | Err(ApiCallError::NotFound(_) | ApiCallError::Conflict(_)) => Outcome::Gone,
                Err(error) => Outcome::Failed(error.to_string()),
            }
        }
        Operation::Forget => {
            provider.forget_pod(id).await;
            Outcome::Forgotten
        }
    }
}
