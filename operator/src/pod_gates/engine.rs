//! The loop: what has changed, what follows for which pod, one patch for each.

use super::{
    facts,
    policy_sync::{PodPolicySync, PolicyHandle},
    report::{Reporter, Written},
    sources::Sources,
};
use crate::{
    backoff,
    gates_shared::{
        GateState, WebhookService,
        follow::RefusedList,
        pod_state::{Changes, Followed, PodGateState},
        policy_sync,
    },
    metrics::pod_gates::{PodGateMetrics, Refused},
    readable::Readable,
    watch::{Observer, SMALL_PAGE, WATCH_SECONDS, read_of_metadata},
    write::{self, Error},
};
use crds::{IngressDaemonSetStatus, PodReadinessGate, PodReadinessGateSpec, pod_readiness_gate::GateSource};
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use k8s_controller::events::EventRecorder;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event},
    },
};
use planner::{
    gates_shared::{Key, Source},
    pod_gates::{
        Gate, World,
        decide::{GateView, Transition, decide},
        world::{Attachment, GATES_PER_NAMESPACE, Target},
    },
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

/// Patches under way at once.
const PARALLEL: usize = 32;
/// How often it is looked whether something is due, and least time between two writes of status of one gate.
const TICK: Duration = Duration::from_secs(1);
/// First and longest wait after a failed patch; doubled in between.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_mins(1));

/// What the loop needs.
pub struct EngineOptions {
    /// API client without retries of its own.
    pub client: Client,
    /// The same for objects that gates name: that the API server refuses these is for the gate to say, and no right that the operator
    /// needs.
    pub of_named: Client,
    /// The view of the cluster.
    pub observer: Arc<Observer>,
    /// The meeting point with the gates of nodes, and with passes over resources.
    pub state: Arc<GateState>,
    /// Metrics.
    pub metrics: PodGateMetrics,
    /// Events.
    pub recorder: EventRecorder,
    /// Namespaces whose gates may follow objects of other namespaces, and of none; `*` for all.
    pub foreign_objects: Vec<String>,
    /// The webhook that the operator serves for pods, if it does.
    pub webhook: Option<WebhookService>,
    /// `--admission-policies`.
    pub admission_policies: bool,
}

/// What this loop lists.
const POD_GATES: &str = "PodReadinessGates";

/// The loop's state.
pub struct Engine {
    client: Client,
    observer: Arc<Observer>,
    gates: Arc<GateState>,
    state: Arc<PodGateState>,
    metrics: PodGateMetrics,
    sources: Sources,
    admission: Arc<PolicyHandle>,
    webhook: Option<WebhookService>,
    policy_versions: policy_sync::Versions,
    reporter: Reporter,
    /// Gates as they were read last; one that cannot be decoded any more keeps what it said.
    known: Readable<Key, PodReadinessGate>,
    listed: bool,
    refused: RefusedList,
    /// Those of them whose spec was let go, because their namespace has too many.
    without_spec: BTreeSet<Key>,
    /// The same of those that are just listed.
    thinned: BTreeSet<Key>,
    /// Those of them that are one of their namespace's first now, and are read anew.
    lacking: BTreeSet<Key>,
    /// Pods that are to be looked at.
    due: BTreeSet<Key>,
    /// Gates came, went or changed since they were taken in: thousands may at once.
    refresh_due: bool,
    /// Pods that are to be asked came, went or changed.
    asked_due: bool,
    /// The namespace that had its turn last.
    served: String,
    under_way: BTreeSet<Key>,
    failures: BTreeMap<Key, (u32, Instant)>,
    /// Pods whose patch somebody does not allow, with the answer.
    forbidden: BTreeMap<Key, String>,
    /// How gates see pods, by pod and by name of the gate.
    views: BTreeMap<Key, BTreeMap<String, GateView>>,
}

/// A patch that ended.
struct Ended {
    key: Key,
    outcome: Result<Box<Pod>, Error>,
    transitions: Vec<Transition>,
}

type Work = FuturesUnordered<BoxFuture<'static, Ended>>;
type Reports = FuturesUnordered<BoxFuture<'static, Written>>;
type GuardedGate = DeserializeGuard<PodReadinessGate>;

impl Engine {
    /// Nothing is known yet.
    pub fn new(options: EngineOptions) -> Self {
        let state = options.state.pods();
        Self {
            sources: Sources::new(options.client.clone(), options.of_named, Arc::clone(&state), options.foreign_objects),
            admission: Arc::new(PolicyHandle::new(options.webhook.as_ref().map(|webhook| webhook.namespace.clone()))),
            webhook: options.webhook,
            policy_versions: policy_sync::versions(options.admission_policies),
            reporter: Reporter::new(options.client.clone(), options.metrics.clone(), options.recorder),
            client: options.client,
            observer: options.observer,
            gates: options.state,
            state,
            metrics: options.metrics,
            known: Readable::default(),
            listed: false,
            refused: RefusedList::of(POD_GATES),
            without_spec: BTreeSet::new(),
            thinned: BTreeSet::new(),
            lacking: BTreeSet::new(),
            due: BTreeSet::new(),
            refresh_due: false,
            asked_due: false,
            served: String::new(),
            under_way: BTreeSet::new(),
            failures: BTreeMap::new(),
            forbidden: BTreeMap::new(),
            views: BTreeMap::new(),
        }
    }

    /// Decides for ever, or until it is to stop; patches under way are finished then.
    pub async fn run(mut self, stop: CancellationToken) {
        let config = watcher::Config::default().timeout(WATCH_SECONDS).page_size(SMALL_PAGE);
        let mut gates = watcher::watcher(Api::<GuardedGate>::all(self.client.clone()), config).default_backoff().boxed();
        let mut listing = BTreeMap::new();
        let mut work: Work = FuturesUnordered::new();
        let mut reports: Reports = FuturesUnordered::new();
        let mut reads = FuturesUnordered::new();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let state = Arc::clone(&self.state);
        // Ends with this function.
        let mut aside = tokio::task::JoinSet::new();
        let (client, admission) = (self.client.clone(), Arc::clone(&self.admission));
        aside.spawn(policy_sync::run(PodPolicySync::new(client, admission, self.webhook.clone(), self.policy_versions)));
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(event) = gates.next() => self.gate_event(event, &mut listing),
                changes = state.changes() => self.note(changes),
                Some(ended) = work.next() => self.ended(ended),
                Some(written) = reports.next() => self.reporter.written(written),
                Some(read) = reads.next() => self.read(read),
                _ = ticks.tick() => self.tick(&reports),
            }
            self.look(&work);
            let (client, lacking) = (&self.client, std::mem::take(&mut self.lacking));
            reads.extend(lacking.into_iter().map(|key| read(client.clone(), key)));
        }
        while work.next().await.is_some() {}
    }

    fn gate_event(&mut self, event: watcher::Result<Event<GuardedGate>>, listing: &mut BTreeMap<Key, GuardedGate>) {
        match event {
            Ok(Event::Init) => {
                listing.clear();
                self.thinned.clear();
            }
            Ok(Event::InitApply(gate)) => {
                listing.insert(key(&gate), lean(gate));
                if listing.len().is_multiple_of(GATES_PER_NAMESPACE) {
                    self.thin(listing);
                }
            }
            Ok(Event::InitDone) => {
                for gone in self.known.objects.keys().filter(|key| !listing.contains_key(*key)) {
                    self.metrics.forget(gone);
                }
                self.known.replace(std::mem::take(listing));
                self.without_spec = std::mem::take(&mut self.thinned);
                self.listed = true;
                self.refresh();
            }
            Ok(Event::Apply(gate)) => {
                let version = |meta: &ObjectMeta| (meta.uid.clone(), meta.generation, meta.deletion_timestamp.is_some());
                let before = self.known.objects.get(&key(&gate)).map(|known| version(&known.metadata));
                // A status that was written, by this loop most likely, changes nothing.
                self.refresh_due |= gate.0.as_ref().map_or(true, |gate| before != Some(version(&gate.metadata)));
                self.take(gate);
            }
            Ok(Event::Delete(gate)) => {
                self.without_spec.remove(&key(&gate));
                self.known.remove(&key(&gate));
                self.metrics.forget(&key(&gate));
                self.refresh_due = true;
            }
            Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) if status.code == 404 => {
                if !self.listed {
                    tracing::warn!(
                        "there is no definition of PodReadinessGate: install crds/manifests/podreadinessgates.yaml to use gates of pods"
                    );
                    self.listed = true;
                    self.refresh();
                }
            }
            // Passes wait for this list: without it, pods would be made that lack the conditions of gates.
            Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) if !self.listed => {
                if let Some(why) = self.refused.lasts(&status) {
                    self.cannot_list(Some(why));
                }
            }
            Err(error) => tracing::warn!(%error, "watch of PodReadinessGates failed; trying again"),
        }
    }

    /// Lets go of the specs of those that are too many, before all have been listed.
    fn thin(&mut self, listing: &mut BTreeMap<Key, GuardedGate>) {
        let mut world = World::default();
        let gate = |(key, gate): (&Key, &GuardedGate)| Some((key.clone(), Arc::new(facts::gate(gate.0.as_ref().ok()?))));
        world.take_gates(listing.iter().filter_map(gate).collect());
        for key in world.surplus.into_keys() {
            if let Some(Ok(gate)) = listing.get_mut(&key).map(|gate| &mut gate.0) {
                strip(&mut gate.spec);
                self.thinned.insert(key);
            }
        }
    }

    /// A gate was read anew that had been one too many.
    fn read(&mut self, (key, found): (Key, kube::Result<Vec<GuardedGate>>)) {
        match found {
            Ok(found) => {
                for gate in found {
                    let uid = |meta: &ObjectMeta| meta.uid.clone();
                    // One that the watch has shown to be gone would stay for ever.
                    if self.known.objects.get(&key).is_some_and(|known| uid(&known.metadata) == uid(gate.meta())) {
                        self.take(gate);
                        self.refresh_due = true;
                    }
                }
            }
            Err(error) => {
                tracing::warn!(namespace = key.0, gate = key.1, %error, "the gate cannot be read; trying again");
                self.refresh_due = true;
            }
        }
    }

    fn take(&mut self, gate: GuardedGate) {
        let key = key(&gate);
        if gate.0.is_ok() {
            self.without_spec.remove(&key);
        }
        self.known.take(key, lean(gate));
    }

    /// Gates, and what they ask for.
    fn refresh(&mut self) {
        if !self.listed || !self.observer.missing().is_empty() {
            // Whichever is listed last tells.
            return;
        }
        let changed = self.settle();
        let relinked = {
            let mut known = self.state.known();
            known.has_all = self.known.unreadable.is_empty();
            // Pods may wait for the condition of one that is gone, and for nobody.
            self.observer.wake(|resource| resource.namespace().is_some_and(|own| changed.contains(&own)));
            if !changed.is_empty() {
                self.reporter.due();
                self.due.extend(known.world.pods.keys().filter(|key| changed.contains(&key.0)).cloned());
            }
            let wanted = known.world.wanted_attachments();
            let relinked = !wanted.iter().eq(known.replicas.keys());
            known.replicas.retain(|key, _| wanted.contains(key));
            known.world.attachments.retain(|key, _| wanted.contains(key));
            for key in wanted {
                known.replicas.entry(key).or_default();
            }
            relinked
        };
        self.gates_are_known();
        self.attach();
        self.sources.adjust();
        self.admission.want(self.state.known().world.gates.values().map(Arc::clone).collect(), !self.known.unreadable.is_empty());
        if relinked {
            // Passes over these resources are to tell of their nodes.
            self.gates.gates();
        }
    }

    /// Takes gates in as they are known, and lets go of the specs of those that are too many. The namespaces in which one has changed.
    fn settle(&mut self) -> BTreeSet<String> {
        let mut known = self.state.known();
        let world = &mut known.world;
        let gates = self.known.objects.iter().map(|(key, object)| (key.clone(), kept(world, key, object))).collect();
        let changed = world.take_gates(gates);
        self.lacking = world.without(&self.without_spec);
        for (key, gate) in &mut world.surplus {
            if let Some(object) = self.known.objects.get_mut(key).filter(|_| self.without_spec.insert(key.clone())) {
                strip(&mut object.spec);
                *gate = Arc::new(Gate { spec: object.spec.clone(), ..(**gate).clone() });
            }
        }
        changed
    }

    /// Passes over resources say so, or that it is over.
    fn cannot_list(&self, why: Option<String>) {
        if self.gates.cannot_list(POD_GATES, why) {
            self.observer.wake(|_| true);
        }
    }

    /// Passes over resources need not wait any more.
    fn gates_are_known(&self) {
        self.cannot_list(None);
        if !std::mem::replace(&mut self.state.known().has_gates, true) {
            self.observer.wake(|_| true);
        }
    }

    /// What is known of the `IngressDaemonSets` that gates follow.
    fn attach(&mut self) {
        let mut known = self.state.known();
        if known.replicas.is_empty() {
            return;
        }
        let resources: BTreeMap<_, _> =
            self.observer.resources().into_iter().map(|found| ((found.namespace().unwrap_or_default(), found.name_any()), found)).collect();
        let known = &mut *known;
        for (key, nodes) in &mut known.replicas {
            let source = known.world.attachments.entry(key.clone()).or_default();
            let before = source.clone();
            if let Some(why) = self.observer.unreadable(&key.0, &key.1) {
                source.broken = Some(format!("IngressDaemonSet {} cannot be decoded: {why}", key.1));
            } else if let Some(resource) = resources.get(key) {
                let uid8 = crds::names::uid8(resource.metadata.uid.as_deref().unwrap_or_default()).to_owned();
                let invalid = resource.status.as_ref().is_some_and(IngressDaemonSetStatus::says_invalid);
                let found = nodes.as_ref().map(|nodes| Some(Attachment { uid8, invalid, nodes: Arc::clone(nodes) }));
                *source = Source { found, broken: None };
            } else {
                *nodes = None;
                *source = Source { found: Some(None), broken: None };
            }
            if *source != before {
                self.state.follow(Followed::Attachment(key.clone()));
            }
        }
    }

    fn note(&mut self, changes: Changes) {
        // Once in a tick, however many resources come; the first time at once, since passes wait for it.
        self.refresh_due |= changes.gates;
        if !self.state.known().has_gates && std::mem::take(&mut self.refresh_due) {
            self.refresh();
        }
        if changes.followed.iter().any(|followed| matches!(followed, Followed::Attachment(_))) {
            self.attach();
        }
        if changes.sight {
            self.reporter.due();
        }
        let known = self.state.known();
        let world = &known.world;
        // Another address is asked, and one that is gone no longer.
        let namespaces: BTreeSet<_> = changes.pods.iter().map(|key| key.0.as_str()).collect();
        let asks = |gate: &Arc<Gate>| gate.spec.source.http.is_some() && namespaces.contains(gate.namespace.as_str());
        self.asked_due |= !namespaces.is_empty() && world.gates.values().any(asks);
        if !changes.nodes.is_empty() && world.gates.values().any(|gate| gate.follows_nodes()) {
            let on_them = world.pods.iter().filter(|(_, pod)| changes.nodes.contains(&pod.node));
            self.due.extend(on_them.map(|(key, _)| key.clone()));
        }
        // Each gate once, however many of what it follows has changed.
        let has_news = |gate: &&Arc<Gate>| changes.followed.iter().any(|followed| follows(gate, followed));
        for gate in world.gates.values().filter(|_| !changes.followed.is_empty()).filter(has_news) {
            self.due.extend(world.pods_of(gate).map(|(key, _)| key.clone()));
        }
        self.due.extend(changes.pods);
    }

    /// Looks at as many pods as there is room for patches.
    fn look(&mut self, work: &Work) {
        if !self.listed || !self.observer.missing().is_empty() {
            return;
        }
        while work.len() < PARALLEL {
            let Some(key) = self.next() else { break };
            self.due.remove(&key);
            self.served.clone_from(&key.0);
            self.look_at(key, work);
        }
    }

    /// The pod whose turn it is: namespaces take turns, so that none waits for all pods of another.
    fn next(&self) -> Option<Key> {
        let free = |key: &&Key| !self.under_way.contains(*key);
        // After every pod of the namespace that was served, and before those of any other.
        let after = (format!("{}\0", self.served), String::new());
        self.due.range(after..).find(free).or_else(|| self.due.iter().find(free)).cloned()
    }

    fn look_at(&mut self, key: Key, work: &Work) {
        if self.failures.get(&key).is_some_and(|(_, until)| *until > Instant::now()) {
            // The tick looks again.
            return;
        }
        let known = self.state.known();
        let Some(pod) = known.world.pods.get(&key) else {
            drop(known);
            self.forget(&key);
            return;
        };
        let node = self.observer.node(&pod.node);
        let plan = decide(&known.world, &key, node.as_deref(), chrono::Utc::now().timestamp());
        drop(known);
        if self.views.get(&key) != Some(&plan.views) {
            self.reporter.due();
            self.views.insert(key.clone(), plan.views);
        }
        let Some(patch) = plan.patch else {
            self.recovered(&key);
            return;
        };
        self.under_way.insert(key.clone());
        let (client, metrics, transitions) = (self.client.clone(), self.metrics.clone(), plan.transitions);
        work.push(async move { Ended { outcome: write(&client, &metrics, &key, patch).await, key, transitions } }.boxed());
    }

    /// Nothing stands in the way of a pod's patches, as far as is known.
    fn recovered(&mut self, key: &Key) {
        self.failures.remove(key);
        if self.forbidden.remove(key).is_some() {
            self.reporter.due();
        }
    }

    fn forget(&mut self, key: &Key) {
        self.recovered(key);
        if self.views.remove(key).is_some() {
            self.reporter.due();
        }
    }

    fn ended(&mut self, Ended { key, outcome, transitions }: Ended) {
        self.under_way.remove(&key);
        match outcome {
            Ok(pod) => {
                self.recovered(&key);
                for Transition { gate, to } in transitions {
                    tracing::info!(namespace = key.0, pod = key.1, gate, ?to, "condition changed");
                    let gate = (key.0.clone(), gate);
                    // One that is gone by now would be counted for ever.
                    if self.known.objects.contains_key(&gate) {
                        self.metrics.changed(&gate, to);
                    }
                }
                let mut known = self.state.known();
                let (_, pod) = facts::pod(*pod, &known.world.read_of_pods(&key.0));
                known.learn(key.clone(), pod);
                drop(known);
                self.due.insert(key);
            }
            Err(error) => {
                match &error {
                    Error::Conflict => tracing::debug!(namespace = key.0, pod = key.1, "the pod is gone, or another one"),
                    Error::Forbidden(message) => {
                        tracing::error!(
                            namespace = key.0,
                            message,
                            "the operator may not patch the status of pods: install the ClusterRole of this release again"
                        );
                        self.reporter.due();
                        self.forbidden.insert(key.clone(), message.clone());
                    }
                    error => tracing::warn!(namespace = key.0, pod = key.1, %error, "status not patched; trying again"),
                }
                let (times, _) = self.failures.get(&key).copied().unwrap_or((0, Instant::now()));
                let wait = backoff::pause(BACKOFF, times);
                self.failures.insert(key, (times.saturating_add(1), Instant::now() + wait));
            }
        }
    }

    fn tick(&mut self, reports: &Reports) {
        let now = Instant::now();
        if std::mem::take(&mut self.refresh_due) {
            self.refresh();
        }
        if std::mem::take(&mut self.asked_due) {
            self.sources.adjust_asked();
        }
        self.due.extend(self.failures.iter().filter(|(_, (_, until))| *until <= now).map(|(key, _)| key.clone()));
        if self.admission.has_news() {
            self.reporter.due();
        }
        if self.listed && self.reporter.is_due() {
            let changes = {
                let known = self.state.known();
                self.views.retain(|key, _| known.world.pods.contains_key(key));
                self.reporter.changed(&known.world, &self.known.objects, &self.views, &self.admission, &self.forbidden)
            };
            for (namespace, changes) in changes {
                reports.push(self.reporter.write(namespace, changes).boxed());
            }
        }
    }
}

/// A gate as it is now.
async fn read(client: Client, key: Key) -> (Key, kube::Result<Vec<GuardedGate>>) {
    let api = Api::<GuardedGate>::namespaced(client, &key.0);
    let found = api.list(&ListParams::default().fields(&format!("metadata.name={}", key.1))).await;
    (key, found.map(|list| list.items))
}

/// Without what nobody reads of its metadata.
fn lean(gate: GuardedGate) -> GuardedGate {
    DeserializeGuard(gate.0.map(|gate| PodReadinessGate { metadata: read_of_metadata(gate.metadata), ..gate }))
}

/// Leaves of a spec what one that is too many says of itself.
fn strip(spec: &mut PodReadinessGateSpec) {
    (spec.selector, spec.source, spec.admission) = (None, GateSource::default(), None);
}

/// Namespace and name.
fn key(gate: &GuardedGate) -> Key {
    (gate.namespace().unwrap_or_default(), gate.name_any())
}

/// The same as is known, where nothing of it has changed.
fn kept(world: &World, key: &Key, object: &PodReadinessGate) -> Arc<Gate> {
    let same = |gate: &&Arc<Gate>| {
        (Some(&gate.uid), Some(gate.generation), gate.deleting)
            == (object.metadata.uid.as_ref(), object.metadata.generation, object.metadata.deletion_timestamp.is_some())
    };
    let before = world.gates.get(key).or_else(|| world.surplus.get(key)).filter(same);
    before.map_or_else(|| Arc::new(facts::gate(object)), Arc::clone)
}

fn follows(gate: &Gate, followed: &Followed) -> bool {
    match followed {
        Followed::Service(key) => gate.service().as_ref() == Some(key),
        Followed::Object(key) => gate.object().as_ref() == Some(key),
        Followed::Attachment(key) => gate.ingress_daemon_set().as_ref() == Some(key),
        Followed::Answer(Target { namespace, url, .. }) => {
            gate.namespace == *namespace
                && gate.spec.source.http.as_ref().is_some_and(|http| http.port.is_some() || http.url.as_ref() == Some(url))
        }
    }
}

/// Patches the status of a pod.
async fn write(client: &Client, metrics: &PodGateMetrics, key: &Key, patch: Value) -> Result<Box<Pod>, Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &key.0);
    let began = Instant::now();
    metrics.patches.inc();
    let result = api.patch_status(&key.1, &PatchParams::default(), &Patch::Strategic(patch)).await.map_err(write::classify);
    metrics.patch_seconds.observe(began.elapsed().as_secs_f64());
    let refused = |reason| {
        metrics.refused.get_or_create(&Refused { reason }).inc();
    };
    match &result {
        Ok(_) => {}
        Err(Error::Conflict) => refused("conflict"),
        Err(Error::Forbidden(_)) => refused("forbidden"),
        Err(_) => refused("other"),
    }
    result.map(Box::new)
}

#[cfg(test)]
mod tests;
