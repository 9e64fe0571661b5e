//! The loop: what has changed, what follows for which node, one patch for each.

mod named_resources;
mod one_pass;
mod report;
mod retaint;

pub use one_pass::NodesSeen;

use super::{
    act::{self, PatchOutcome},
    events::{Teller, Told, announce},
    policy_sync::{DesiredPolicies, NodePolicySync, PolicyHandle, Wanted},
    sources::Sources,
};
use crate::{
    backoff::pause_with_jitter,
    gates_shared::{Changes, GateState, WebhookService, definitions, follow::RefusedList, policy_sync},
    metrics::GateMetrics,
    readable::Readable,
    watch::{Observer, PAGE, WATCH_SECONDS},
};
use crds::{IngressDaemonSet, NodeReadinessGate, NodeReadinessGateStatus, UnixSeconds};
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use k8s_controller::events::EventRecorder;
use k8s_openapi::{
    api::core::v1::Node,
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta},
};
use kube::{
    Api, Client, ResourceExt as _,
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event},
    },
};
use planner::{
    facts::NodeFacts,
    node_gates::{
        Gate, GateClocks, Transition, World,
        decide::{GateView, decide},
        in_force::{Said, in_force},
        links::links,
        record::annotation_key,
        retaint_budget::RetaintBudget,
        satisfiable::unsatisfiable,
    },
};
use retaint::{tally, use_retaint_budget};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{sync::mpsc::Sender, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// What this loop lists.
const NODE_GATES: &str = "NodeReadinessGates";
/// Patches under way at once.
const PARALLEL: usize = 64;
/// Least time between two writes of status of one gate.
const STATUS_EVERY: Duration = Duration::from_secs(1);
/// So many refusals of patches of one node in a row are told in the status of its gates: one or two are the course of things.
const TOLD_AFTER: u32 = 5;
/// What gates are made from is read again at once, or, where that takes longer than this, after ten times as long: thousands of resources
/// that come one by one are to cost a tenth of a core.
const LONG: Duration = Duration::from_millis(5);
/// First and longest wait after a failed patch; doubled in between, and up to twice that, by chance.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_mins(1));

/// What the loop needs.
pub struct EngineOptions {
    /// API client without retries of its own.
    pub client: Client,
    /// The view of the cluster.
    pub observer: Arc<Observer>,
    /// The meeting point with passes over resources.
    pub state: Arc<GateState>,
    /// Metrics.
    pub metrics: GateMetrics,
    /// Events.
    pub recorder: EventRecorder,
    /// The webhook that the operator serves, if it does.
    pub webhook: Option<WebhookService>,
    /// `--admission-policies`.
    pub admission_policies: bool,
}

/// A node that could not be written to, or whose pods could not be listed.
struct NodeFailure {
    /// How often in a row.
    times: u32,
    /// The node is left alone until then.
    until: Instant,
    /// What was answered to the last write that failed, if one did.
    refusal: Option<RefusedPatch>,
}

struct RefusedPatch {
    /// Somebody does not allow the write.
    forbidden: bool,
    message: String,
}

impl NodeFailure {
    /// A refusal that is to be seen in the status of the node's gates: a single one is, if the write is forbidden.
    fn told(&self) -> Option<&RefusedPatch> {
        self.refusal.as_ref().filter(|refusal| refusal.forbidden || self.times >= TOLD_AFTER)
    }
}

/// The loop's state.
pub struct Engine {
    client: Client,
    observer: Arc<Observer>,
    state: Arc<GateState>,
    metrics: GateMetrics,
    told: Sender<Told>,
    /// Ends when all was told, after `told` was dropped.
    telling: JoinHandle<()>,
    sources: Sources,
    admission: Arc<PolicyHandle>,
    webhook: Option<WebhookService>,
    policy_versions: policy_sync::Versions,
    /// Gates as they were read last, by name; one that cannot be decoded any more keeps what it said.
    known: Readable<String, NodeReadinessGate>,
    listed: bool,
    refused: RefusedList,
    refresh: Refresh,
    /// What was listed is what the state knows: without its gates, records of theirs would seem to be left behind.
    refreshed: bool,
    unsatisfiable: BTreeMap<String, (&'static str, String)>,
    /// Since when gates are in force, by UID.
    in_force: BTreeMap<String, Said>,
    /// Nodes that came or changed, then all others that are to be looked at.
    urgent: BTreeSet<String>,
    swept: BTreeSet<String>,
    timers: BTreeMap<String, UnixSeconds>,
    clocks: BTreeMap<String, GateClocks>,
    views: BTreeMap<String, BTreeMap<String, GateView>>,
    under_way: BTreeSet<String>,
    failures: BTreeMap<String, NodeFailure>,
    /// Taints that an event said stay, by node.
    unknown: BTreeMap<String, BTreeSet<(String, String)>>,
    /// What is left of the retaint budget of each gate, by UID, and when that was counted.
    retaint_budgets: BTreeMap<String, (Instant, RetaintBudget)>,
    regressed: BTreeMap<String, VecDeque<UnixSeconds>>,
    reported: BTreeMap<String, NodeReadinessGateStatus>,
    /// What conditions of gates said last that have no status, by UID.
    said: BTreeMap<String, Vec<Condition>>,
    /// Names of gates of which there are metrics.
    shown: BTreeSet<String>,
    status_due: bool,
    finalizers: Finalizers,
    /// UIDs of gates that have not got it.
    unfinalized: BTreeSet<String>,
}

/// When what gates are made from is read again.
#[derive(Debug)]
struct Refresh {
    due: bool,
    /// Not before this time.
    after: Instant,
}

/// Whether gates have their finalizers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finalizers {
    /// They have.
    Kept,
    /// One was read that may lack it.
    Due,
    /// It could not be given to one: the tick tries again.
    Failed,
}

/// What ended.
enum Ended {
    Patch { node: String, outcome: PatchOutcome, transitions: Vec<Transition> },
    Idle { node: String, gates: BTreeSet<String>, idle: Option<bool> },
}

type Work = FuturesUnordered<BoxFuture<'static, Ended>>;
/// What is being written of gates: at most one at a time.
type Writing = FuturesUnordered<BoxFuture<'static, Vec<(report::GatePatch, bool)>>>;

impl Engine {
    /// Nothing is known yet.
    pub fn new(options: EngineOptions) -> Self {
        options.state.world().rights = options.observer.node_rights().clone();
        let (told, telling) = announce(options.client.clone(), options.metrics.clone(), Teller::new(options.recorder));
        Self {
            sources: Sources::new(options.client.clone(), Arc::clone(&options.state)),
            told,
            telling,
            admission: Arc::new(PolicyHandle::new(options.webhook.is_some())),
            webhook: options.webhook,
            policy_versions: policy_sync::versions(options.admission_policies),
            client: options.client,
            observer: options.observer,
            state: options.state,
            metrics: options.metrics,
            known: Readable::default(),
            listed: false,
            refused: RefusedList::of(NODE_GATES),
            refresh: Refresh { due: false, after: Instant::now() },
            refreshed: false,
            unsatisfiable: BTreeMap::new(),
            in_force: BTreeMap::new(),
            urgent: BTreeSet::new(),
            swept: BTreeSet::new(),
            timers: BTreeMap::new(),
            clocks: BTreeMap::new(),
            views: BTreeMap::new(),
            under_way: BTreeSet::new(),
            failures: BTreeMap::new(),
            unknown: BTreeMap::new(),
            retaint_budgets: BTreeMap::new(),
            regressed: BTreeMap::new(),
            reported: BTreeMap::new(),
            said: BTreeMap::new(),
            shown: BTreeSet::new(),
            status_due: false,
            finalizers: Finalizers::Kept,
            unfinalized: BTreeSet::new(),
        }
    }

    /// Decides for ever, or until it is to stop; what is being written is finished then.
    pub async fn run(mut self, stop: CancellationToken) {
        let api: Api<DeserializeGuard<NodeReadinessGate>> = Api::all(self.client.clone());
        let config = watcher::Config::default().timeout(WATCH_SECONDS).page_size(PAGE);
        let mut gates = watcher::watcher(api, config).default_backoff().boxed();
        let mut listing = BTreeMap::new();
        let mut work: Work = FuturesUnordered::new();
        let mut writing: Writing = FuturesUnordered::new();
        let mut ticks = tokio::time::interval(STATUS_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let state = Arc::clone(&self.state);
        // Ends with this function.
        let mut aside = tokio::task::JoinSet::new();
        aside.spawn(policy_sync::run(NodePolicySync::new(
            self.client.clone(),
            Arc::clone(&state),
            Arc::clone(&self.admission),
            self.webhook.clone(),
            self.policy_versions,
        )));
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(event) = gates.next() => self.gate_event(event, &mut listing),
                changes = state.changes() => self.note(changes).await,
                Some(ended) = work.next() => self.ended(ended),
                Some(writes) = writing.next() => self.written(writes),
                _ = ticks.tick() => self.tick(&mut writing).await,
            }
            self.look(&work);
        }
        while work.next().await.is_some() || writing.next().await.is_some() {}
    }

    /// What no event brings.
    async fn tick(&mut self, writing: &mut Writing) {
        self.wake_due();
        self.refresh_if_due().await;
        if self.finalizers == Finalizers::Failed {
            self.keep_finalizers().await;
        }
        self.status_due |= self.admission.has_news();
        self.report(writing);
    }

    fn gate_event(
        &mut self,
        event: watcher::Result<Event<DeserializeGuard<NodeReadinessGate>>>,
        listing: &mut BTreeMap<String, DeserializeGuard<NodeReadinessGate>>,
    ) {
        self.finalizers = Finalizers::Due;
        match event {
            Ok(Event::Init) => listing.clear(),
            Ok(Event::InitApply(gate)) => drop(listing.insert(gate.name_any(), gate)),
            Ok(Event::InitDone) => {
                self.known.replace(std::mem::take(listing));
                self.listed = true;
                self.cannot_list(None);
                self.state.gates();
            }
            Ok(Event::Apply(gate)) => {
                self.known.take(gate.name_any(), gate);
                self.state.gates();
            }
            Ok(Event::Delete(gate)) => {
                self.known.remove(&gate.name_any());
                self.state.gates();
            }
            // Without the definition there are no gates; resources with a taint of their own still have theirs.
            Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) if status.code == 404 => {
                if !self.listed {
                    tracing::warn!(
                        "there is no definition of NodeReadinessGate: install crds/manifests/nodereadinessgates.yaml to use gates"
                    );
                    self.listed = true;
                    self.cannot_list(None);
                    self.state.gates();
                }
            }
            // Passes wait for this list. If its refusal lasts, what can do without the list goes on, and status says what is wrong.
            Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) if !self.listed => {
                if let Some(why) = self.refused.lasts(&status) {
                    self.cannot_list(Some(why));
                }
            }
            Err(error) => tracing::warn!(%error, "watch of NodeReadinessGates failed; trying again"),
        }
    }

    /// Passes over resources say so, or that it is over.
    fn cannot_list(&self, why: Option<String>) {
        if self.state.cannot_list(NODE_GATES, why) {
            self.observer.wake(|_| true);
        }
    }

    async fn note(&mut self, changes: Changes) {
        self.urgent.extend(changes.nodes);
        self.refresh.due |= changes.gates;
        self.refresh_if_due().await;
        if changes.all {
            self.sweep();
        }
    }

    async fn refresh_if_due(&mut self) {
        let started = Instant::now();
        if !self.refresh.due || started < self.refresh.after {
            return;
        }
        self.refresh.due = false;
        self.refresh_gates().await;
        let took = started.elapsed();
        if took >= LONG {
            self.refresh.after = Instant::now() + took * 10;
        }
    }

    fn sweep(&mut self) {
        self.swept = self.observer.nodes().keys().cloned().collect();
        self.status_due = true;
    }

    /// Gates, what they ask for, and what they mean to resources.
    async fn refresh_gates(&mut self) {
        let compat = self.state.compat();
        if !self.listed || compat.awaited || !self.observer.missing().is_empty() {
            return;
        }
        if self.finalizers == Finalizers::Due {
            self.keep_finalizers().await;
        }
        let resources = self.observer.resources();
        let mut gates =
            definitions::all(self.known.objects.values(), resources.iter().map(AsRef::as_ref), &compat, self.observer.node_rights());
        for gate in gates.values_mut() {
            // Nodes are released when no new one can get the taint any more.
            gate.deleting &= !self.admission.is_present(&gate.uid);
        }
        let incomplete = !self.known.unreadable.is_empty() || self.observer.has_unreadable() || compat.unreadable;
        let changed = {
            // Also where no gate has changed: who owns it, and whether it is being deleted, is told to admission.
            let world = &mut *self.state.changing_world();
            // What one without a finalizer writes would stay when it is deleted: it does not begin, and one that has begun goes on.
            let all = gates.len();
            gates.retain(|uid, _| world.gates.contains_key(uid) || !self.unfinalized.contains(uid));
            let incomplete = incomplete || gates.len() < all;
            let changed = world.gates.len() != gates.len()
                || gates.iter().any(|(uid, gate)| world.gates.get(uid).is_none_or(|known| **known != *gate));
            if changed {
                world.gates = gates.into_iter().map(|(uid, gate)| (uid, Arc::new(gate))).collect();
            }
            self.remember_taints(world, &resources);
            let absent = named_resources::absent(world, &self.observer);
            let changed = std::mem::replace(&mut world.absent, absent.clone()) != absent || changed;
            let invalid = named_resources::invalid(world, &self.observer);
            let changed = std::mem::replace(&mut world.invalid, invalid.clone()) != invalid || changed;
            let tolerations = named_resources::tolerations(world, &self.observer);
            let changed = std::mem::replace(&mut world.tolerations, tolerations.clone()) != tolerations || changed;
            std::mem::replace(&mut world.incomplete, incomplete) != incomplete || changed
        };
        self.sources.adjust();
        // Gates of pods bear on resources, too, and are not among those above.
        self.link();
        if changed || !self.refreshed {
            self.refreshed = true;
            self.sweep();
        }
    }

    /// Which taints are the operator's own, see [`World::had_taint`].
    fn remember_taints(&self, world: &mut World, resources: &[Arc<IngressDaemonSet>]) {
        let of_objects = self.known.objects.values().filter_map(|gate| Some((gate.uid()?, gate.status.clone()?.taints)));
        let of_resources =
            resources.iter().filter_map(|resource| definitions::said_of_implied(resource)).map(|(uid, said)| (uid, said.taints));
        let nodes = self.observer.nodes();
        let is_recorded = |uid: &str| nodes.values().any(|node| node.annotations.contains_key(&annotation_key(uid)));
        world.remember_taints(of_objects.chain(of_resources), is_recorded);
    }

    /// What gates mean to the resources that they ask for.
    fn link(&self) {
        let followed = self.state.pods().wanted_attachments();
        let links = links(self.state.world().gates.values(), followed, |gate| self.unsatisfiable.contains_key(&gate.uid));
        match self.state.link(links) {
            None => self.observer.wake(|_| true),
            Some(changed) => changed.into_iter().for_each(|(namespace, name)| self.observer.requeue().mark(namespace, name)),
        }
    }

    /// Looks at as many nodes as there is room for patches.
    fn look(&mut self, work: &Work) {
        if !self.refreshed || !self.observer.missing().is_empty() || self.sources.are_listing() {
            return;
        }
        if self.state.is_unjudged() {
            self.judge_gates();
        }
        while work.len() < PARALLEL {
            let next = self.free(&self.urgent).or_else(|| self.free(&self.swept));
            let Some(name) = next else { break };
            self.urgent.remove(&name);
            self.swept.remove(&name);
            self.look_at(&name, work);
        }
    }

    /// The first of these that no patch is under way for.
    fn free(&self, names: &BTreeSet<String>) -> Option<String> {
        names.iter().find(|name| !self.under_way.contains(*name)).cloned()
    }

    fn judge_gates(&mut self) {
        let world = self.state.world();
        let found: BTreeMap<_, _> =
            world.gates.iter().filter_map(|(uid, gate)| Some((uid.clone(), unsatisfiable(&world, gate)?))).collect();
        for (uid, (reason, message)) in found.iter().filter(|(uid, _)| !self.unsatisfiable.contains_key(*uid)) {
            tracing::warn!(gate = world.gates.get(uid).map(|gate| gate.name.as_str()), reason, "{message}");
        }
        let wanted = world.gates.iter().map(|(uid, gate)| {
            let object = self.object(gate);
            let deleting = gate.deleting || object.is_some_and(|object| object.metadata.deletion_timestamp.is_some());
            let enforced = !found.contains_key(uid);
            (uid.clone(), Wanted { gate: Arc::clone(gate), deleting, enforced, owned: object.is_some() })
        });
        self.admission.want(DesiredPolicies { gates: wanted.collect(), incomplete: world.incomplete });
        drop(world);
        let same = found.keys().eq(self.unsatisfiable.keys());
        self.unsatisfiable = found;
        self.put_in_force();
        if !same {
            self.link();
            self.sweep();
        }
    }

    /// Which nodes are new to each gate: what its status says outlives this process.
    fn put_in_force(&mut self) {
        let now = chrono::Utc::now().timestamp();
        let gates: Vec<_> = self.state.world().gates.values().cloned().collect();
        let said = |gate: &Gate| self.in_force.get(&gate.uid).cloned().or_else(|| Said::of(&self.status_before(gate, self.object(gate))));
        let found = gates.iter().map(|gate| {
            let enforced = !self.unsatisfiable.contains_key(&gate.uid);
            let in_force = in_force(gate, enforced, said(gate).as_ref(), now);
            (gate.uid.clone(), Said { generation: gate.generation, in_force })
        });
        let found: BTreeMap<_, _> = found.collect();
        let since = found.iter().filter_map(|(uid, found)| Some((uid.clone(), found.in_force.as_ref()?.since.0.as_second())));
        self.state.world().in_force = since.collect();
        self.status_due |= self.in_force != found;
        self.in_force = found;
    }

    /// The object that the gate is made from, if it is a `NodeReadinessGate`.
    fn object(&self, gate: &Gate) -> Option<&NodeReadinessGate> {
        self.known.objects.get(&gate.name).filter(|object| object.metadata.uid.as_ref() == Some(&gate.uid))
    }

    fn look_at(&mut self, name: &str, work: &Work) {
        let Some(node) = self.observer.node(name) else { return self.forget(name) };
        if self.failures.get(name).is_some_and(|failure| failure.until > Instant::now()) {
            // The tick looks again.
            self.timers.insert(name.to_owned(), 0);
            return;
        }
        let now = chrono::Utc::now().timestamp();
        let clocks = self.clocks.remove(name).unwrap_or_default();
        let shut = self.unsatisfiable.keys().cloned().collect();
        let state = Arc::clone(&self.state);
        let world = state.world();
        let plan = {
            let (budgets, views, regressed) = (&mut self.retaint_budgets, &self.views, &mut self.regressed);
            let observer = &self.observer;
            let mut use_budget = |gate: &Gate| use_retaint_budget(budgets, || tally(gate, views, &observer.nodes()), regressed, gate, now);
            decide(&world, &shut, name, &node, &clocks, &mut use_budget, now)
        };
        drop(world);
        self.clocks.insert(name.to_owned(), plan.clocks);
        self.tell_of_unknown(name, &node, plan.unknown);
        match plan.recheck_at {
            Some(at) => drop(self.timers.insert(name.to_owned(), at)),
            None => drop(self.timers.remove(name)),
        }
        if self.views.get(name) != Some(&plan.views) {
            self.status_due = true;
            self.views.insert(name.to_owned(), plan.views);
        }
        // What other gates have decided does not wait for the answer: the node is looked at again when it is written.
        if plan.patch.is_none() && !plan.asks_whether_idle.is_empty() {
            let (client, node, gates) = (self.client.clone(), name.to_owned(), plan.asks_whether_idle);
            self.under_way.insert(node.clone());
            work.push(async move { Ended::Idle { idle: act::is_idle(&client, &node).await, node, gates } }.boxed());
            return;
        }
        let Some(patch) = plan.patch else {
            self.failures.remove(name);
            return;
        };
        self.under_way.insert(name.to_owned());
        let (client, metrics, node) = (self.client.clone(), self.metrics.clone(), name.to_owned());
        let transitions = plan.transitions;
        work.push(
            async move {
                let outcome = act::patch(&client, &metrics, &node, &patch).await;
                Ended::Patch { node, outcome, transitions }
            }
            .boxed(),
        );
    }

    fn forget(&mut self, name: &str) {
        self.clocks.remove(name);
        self.timers.remove(name);
        self.failures.remove(name);
        self.unknown.remove(name);
        self.status_due |= self.views.remove(name).is_some();
    }

    fn ended(&mut self, ended: Ended) {
        match ended {
            Ended::Idle { node, gates, idle } => {
                self.under_way.remove(&node);
                let clocks = self.clocks.entry(node.clone()).or_default();
                for gate in gates {
                    clocks.entry(gate).or_default().idle = idle;
                }
                if idle.is_some() {
                    self.urgent.insert(node);
                } else {
                    self.fail(&node, None);
                }
            }
            Ended::Patch { node, outcome, transitions } => {
                self.under_way.remove(&node);
                match outcome {
                    PatchOutcome::Done(now) => {
                        self.failures.remove(&node);
                        self.tell(&now, transitions);
                        self.observer.learn(*now);
                        self.urgent.insert(node);
                    }
                    PatchOutcome::Stale(now, message) => {
                        self.observer.learn(*now);
                        self.retaint_budgets.clear();
                        self.again(&node);
                        self.refused(&node, false, message);
                    }
                    PatchOutcome::Gone => self.forget(&node),
                    PatchOutcome::Forbidden(message) => {
                        tracing::error!(node, message, "the operator may not patch Nodes: install the ClusterRole of this release again");
                        self.fail(&node, Some(BACKOFF.1));
                        self.refused(&node, true, message);
                    }
                    PatchOutcome::Failed(message, after) => {
                        tracing::warn!(node, message, "patch failed; trying again");
                        self.retaint_budgets.clear();
                        self.fail(&node, after);
                        self.refused(&node, false, message);
                    }
                }
            }
        }
    }

    fn refused(&mut self, node: &str, forbidden: bool, message: String) {
        let Some(failure) = self.failures.get_mut(node) else { return };
        failure.refusal = Some(RefusedPatch { forbidden, message });
        self.status_due |= failure.told().is_some();
    }

    /// At once, up to five times: what was read live decides.
    fn again(&mut self, node: &str) {
        if self.failures.get(node).is_none_or(|failure| failure.times < 5) {
            self.failed(node, Instant::now());
            self.urgent.insert(node.to_owned());
        } else {
            self.fail(node, None);
        }
    }

    /// Later: nodes that fail together are not tried again together. `least`: as long as that.
    fn fail(&mut self, node: &str, least: Option<Duration>) {
        let wait = match least {
            Some(least) => pause_with_jitter((least, BACKOFF.1), 0),
            None => pause_with_jitter(BACKOFF, self.failures.get(node).map_or(0, |failure| failure.times)),
        };
        self.failed(node, Instant::now() + wait);
        self.timers.insert(node.to_owned(), 0);
    }

    fn failed(&mut self, node: &str, until: Instant) {
        let failure = self.failures.entry(node.to_owned()).or_insert(NodeFailure { times: 0, until, refusal: None });
        failure.times = failure.times.saturating_add(1);
        failure.until = until;
    }

    fn tell(&self, node: &Node, transitions: Vec<Transition>) {
        for transition in transitions {
            let Some(gate) = self.state.world().gates.get(&transition.gate).cloned() else { continue };
            self.metrics.happened(&gate.name, &transition);
            self.let_know(Told::Transition { node: Box::new(node.clone()), gate, transition });
        }
    }

    /// Taints that stay although a record calls them a gate's: each is told once.
    fn tell_of_unknown(&mut self, name: &str, node: &NodeFacts, unknown: BTreeSet<(String, String)>) {
        let told = self.unknown.remove(name).unwrap_or_default();
        for (key, effect) in unknown.difference(&told).cloned() {
            let metadata = ObjectMeta { name: Some(name.to_owned()), uid: Some(node.uid.clone()), ..ObjectMeta::default() };
            self.let_know(Told::Unknown { node: Box::new(Node { metadata, ..Node::default() }), key, effect });
        }
        if !unknown.is_empty() {
            self.unknown.insert(name.to_owned(), unknown);
        }
    }

    /// What is told too fast is left out, as events are.
    fn let_know(&self, told: Told) {
        if self.told.try_send(told).is_err() {
            self.metrics.events_dropped.inc();
        }
    }

    fn wake_due(&mut self) {
        let now = chrono::Utc::now().timestamp();
        let due: Vec<_> = self.timers.iter().filter(|(_, at)| **at <= now).map(|(name, _)| name.clone()).collect();
        for name in due {
            self.timers.remove(&name);
            self.urgent.insert(name);
        }
    }
}

#[cfg(test)]
mod tests;
