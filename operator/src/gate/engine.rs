//! The loop: what has changed, what follows for which node, one patch for each.

use super::{
    act::{self, Outcome, Teller},
    admission::{Admission, Keeper, Wanted, Wish},
    fronts,
    hub::{Changes, Hub},
    metrics::{Blocked, GateMetrics, Nodes, OfGate},
    sources::Sources,
};
use crate::{
    observe::{Observer, PAGE, WATCH_SECONDS},
    webhook::Secrets,
};
use crds::{NodeReadinessGate, NodeReadinessGateStatus, names};
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use k8s_controller::events::EventRecorder;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt as _,
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event},
    },
};
use planner::gate::{
    Clocks, Gate, Transition,
    decide::{Happened, View, decide},
    room::Room,
    satisfiable::unsatisfiable,
    status::{Circumstances, status, unseen},
};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::sync::CancellationToken;

/// Patches under way at once.
const PARALLEL: usize = 32;
/// Least time between two writes of status of one gate.
const STATUS_EVERY: Duration = Duration::from_secs(1);
/// How long a room that was counted is believed, less what was given away of it.
const ROOM_FOR: Duration = Duration::from_secs(1);
/// First and longest wait after a failed patch; doubled in between.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_mins(1));

/// What the loop needs.
pub struct Options {
    /// API client without retries of its own.
    pub client: Client,
    /// The view of the cluster.
    pub observer: Arc<Observer>,
    /// The meeting point with passes over resources.
    pub hub: Arc<Hub>,
    /// Metrics.
    pub metrics: GateMetrics,
    /// Events.
    pub recorder: EventRecorder,
    /// The webhook that the operator serves, if it does.
    pub webhook: Option<Secrets>,
}

/// The loop's state.
pub struct Engine {
    client: Client,
    observer: Arc<Observer>,
    hub: Arc<Hub>,
    metrics: GateMetrics,
    told: UnboundedSender<Told>,
    sources: Sources,
    admission: Arc<Admission>,
    webhook: Option<Secrets>,
    /// Gates as they were read last, by name; one that cannot be decoded any more keeps what it said.
    objects: BTreeMap<String, NodeReadinessGate>,
    unreadable: BTreeSet<String>,
    listed: bool,
    /// What was listed is what the hub knows: without its gates, records of theirs would seem to be left behind.
    refreshed: bool,
    unsatisfiable: BTreeMap<String, (&'static str, String)>,
    /// Nodes that came or changed, then all others that are to be looked at.
    urgent: BTreeSet<String>,
    swept: BTreeSet<String>,
    timers: BTreeMap<String, i64>,
    clocks: BTreeMap<String, Clocks>,
    views: BTreeMap<String, BTreeMap<String, View>>,
    under_way: BTreeSet<String>,
    failures: BTreeMap<String, (u32, Instant)>,
    rooms: BTreeMap<String, (Instant, Room)>,
    regressed: BTreeMap<String, VecDeque<i64>>,
    reported: BTreeMap<String, NodeReadinessGateStatus>,
    status_due: bool,
}

/// What ended.
enum Ended {
    Patch { node: String, outcome: Outcome, transitions: Vec<Transition> },
    Idle { node: String, gates: BTreeSet<String>, idle: Option<bool> },
}

/// What came about on a node for a gate.
struct Told {
    node: Box<Node>,
    gate: Arc<Gate>,
    transition: Transition,
}

/// Counts and tells what came about, beside the loop: no decision waits for an event. Ends with its sender.
fn announce(client: Client, metrics: GateMetrics, teller: Teller) -> UnboundedSender<Told> {
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel::<Told>();
    tokio::spawn(async move {
        while let Some(Told { node, gate, transition }) = receiver.recv().await {
            if transition.happened == (Happened::Added { late: true })
                && let Some(strangers) = act::strangers(&client, &gate, &node).await
            {
                let late = metrics.late_pods.get_or_create(&OfGate { gate: gate.name.clone() });
                late.inc_by(u64::try_from(strangers).unwrap_or(u64::MAX));
            }
            teller.tell(&metrics, &node, &gate, &transition).await;
        }
    });
    sender
}

type Work = FuturesUnordered<BoxFuture<'static, Ended>>;

impl Engine {
    /// Nothing is known yet.
    pub fn new(options: Options) -> Self {
        Self {
            sources: Sources::new(options.client.clone(), Arc::clone(&options.hub)),
            told: announce(options.client.clone(), options.metrics.clone(), Teller::new(options.recorder)),
            admission: Arc::new(Admission::new(options.webhook.is_some())),
            webhook: options.webhook,
            client: options.client,
            observer: options.observer,
            hub: options.hub,
            metrics: options.metrics,
            objects: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            listed: false,
            refreshed: false,
            unsatisfiable: BTreeMap::new(),
            urgent: BTreeSet::new(),
            swept: BTreeSet::new(),
            timers: BTreeMap::new(),
            clocks: BTreeMap::new(),
            views: BTreeMap::new(),
            under_way: BTreeSet::new(),
            failures: BTreeMap::new(),
            rooms: BTreeMap::new(),
            regressed: BTreeMap::new(),
            reported: BTreeMap::new(),
            status_due: false,
        }
    }

    /// Decides for ever, or until it is to stop; patches under way are finished then.
    pub async fn run(mut self, stop: CancellationToken) {
        let api: Api<DeserializeGuard<NodeReadinessGate>> = Api::all(self.client.clone());
        let config = watcher::Config::default().timeout(WATCH_SECONDS).page_size(PAGE);
        let mut gates = watcher::watcher(api, config).default_backoff().boxed();
        let mut listing = BTreeMap::new();
        let mut work: Work = FuturesUnordered::new();
        let mut ticks = tokio::time::interval(STATUS_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let hub = Arc::clone(&self.hub);
        // Ends with this function.
        let mut aside = tokio::task::JoinSet::new();
        aside.spawn(Keeper::new(self.client.clone(), Arc::clone(&hub), Arc::clone(&self.admission), self.webhook.as_ref()).run());
        if let Some(secrets) = self.webhook.clone() {
            aside.spawn(secrets.keep());
        }
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(event) = gates.next() => self.gate_event(event, &mut listing),
                changes = hub.changes() => self.note(changes).await,
                Some(ended) = work.next() => self.ended(ended),
                _ = ticks.tick() => {
                    self.wake_due();
                    self.status_due |= self.admission.has_news();
                    self.report().await;
                }
            }
            self.look(&work);
        }
        while work.next().await.is_some() {}
    }

    fn gate_event(
        &mut self,
        event: watcher::Result<Event<DeserializeGuard<NodeReadinessGate>>>,
        listing: &mut BTreeMap<String, NodeReadinessGate>,
    ) {
        let take = |guarded: DeserializeGuard<NodeReadinessGate>,
                    known: &mut BTreeMap<String, NodeReadinessGate>,
                    unreadable: &mut BTreeSet<String>| {
            let name = guarded.name_any();
            match guarded.0 {
                Ok(gate) => {
                    unreadable.remove(&name);
                    known.insert(name, gate);
                }
                Err(error) => {
                    tracing::error!(gate = name, %error, "the gate cannot be decoded; what it said last stays in force");
                    unreadable.insert(name);
                }
            }
        };
        match event {
            Ok(Event::Init) => listing.clear(),
            Ok(Event::InitApply(gate)) => take(gate, listing, &mut self.unreadable),
            Ok(Event::InitDone) => {
                let mut objects = std::mem::take(listing);
                for name in &self.unreadable {
                    if let Some(last) = self.objects.remove(name) {
                        objects.entry(name.clone()).or_insert(last);
                    }
                }
                self.objects = objects;
                self.listed = true;
                self.hub.gates();
            }
            Ok(Event::Apply(gate)) => {
                take(gate, &mut self.objects, &mut self.unreadable);
                self.hub.gates();
            }
            Ok(Event::Delete(gate)) => {
                self.unreadable.remove(&gate.name_any());
                self.objects.remove(&gate.name_any());
                self.hub.gates();
            }
            // Without the definition there are no gates; resources with a taint of their own still have theirs.
            Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) if status.code == 404 => {
                if !self.listed {
                    tracing::warn!(
                        "there is no definition of NodeReadinessGate: install crds/manifests/nodereadinessgates.yaml to use gates"
                    );
                    self.listed = true;
                    self.hub.gates();
                }
            }
            Err(error) => tracing::warn!(%error, "watch of NodeReadinessGates failed; trying again"),
        }
    }

    async fn note(&mut self, changes: Changes) {
        self.urgent.extend(changes.nodes);
        if changes.gates {
            self.refresh_gates().await;
        }
        if changes.all {
            self.sweep();
        }
    }

    fn sweep(&mut self) {
        self.swept = self.observer.nodes().keys().cloned().collect();
        self.status_due = true;
    }

    /// Gates, what they ask for, and what they mean to resources.
    async fn refresh_gates(&mut self) {
        if !self.listed || !self.observer.missing().is_empty() {
            return;
        }
        let resources = self.observer.resources();
        let mut gates = fronts::all(self.objects.values(), resources.iter().map(AsRef::as_ref));
        for gate in gates.values_mut() {
            // Nodes are released when no new one can get the taint any more.
            gate.deleting &= !self.admission.is_present(&gate.uid);
        }
        let linked = {
            let mut world = self.hub.world();
            world.incomplete = !self.unreadable.is_empty() || self.observer.has_unreadable();
            let changed = world.gates.len() != gates.len()
                || gates.iter().any(|(uid, gate)| world.gates.get(uid).is_none_or(|known| **known != *gate));
            if changed {
                world.gates = gates.into_iter().map(|(uid, gate)| (uid, Arc::new(gate))).collect();
            }
            let world = world.clone();
            self.hub.link(&world)
        };
        for (namespace, name) in linked {
            self.observer.dirty().mark(namespace, name);
        }
        self.sources.adjust();
        self.refreshed = true;
        self.sweep();
        self.keep_finalizers().await;
    }

    /// A gate that may write to nodes must be able to clean up; one that only ever ran dry need not.
    async fn keep_finalizers(&mut self) {
        let api: Api<NodeReadinessGate> = Api::all(self.client.clone());
        for gate in self.objects.values() {
            let mut finalizers = gate.metadata.finalizers.clone().unwrap_or_default();
            let ours = finalizers.iter().any(|name| name == names::FINALIZER);
            if ours || gate.spec.dry_run || gate.metadata.deletion_timestamp.is_some() {
                continue;
            }
            finalizers.push(names::FINALIZER.to_owned());
            let body = act::finalizers(&finalizers, gate.metadata.resource_version.as_deref());
            if let Err(error) = act::merge(&api, &gate.name_any(), false, &body).await {
                tracing::warn!(gate = gate.name_any(), %error, "finalizer not set; trying again");
                self.hub.gates();
            }
        }
    }

    /// Looks at as many nodes as there is room for patches.
    fn look(&mut self, work: &Work) {
        if !self.refreshed || !self.observer.missing().is_empty() || self.sources.are_listing() {
            return;
        }
        self.judge_gates();
        if self.hub.world().gates.is_empty() && self.views.is_empty() && self.urgent.is_empty() && self.swept.is_empty() {
            return;
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
        let world = self.hub.world();
        let found: BTreeMap<_, _> =
            world.gates.iter().filter_map(|(uid, gate)| Some((uid.clone(), unsatisfiable(&world, gate)?))).collect();
        let wanted = world.gates.iter().map(|(uid, gate)| {
            let object = self.objects.get(&gate.name).filter(|object| object.metadata.uid.as_ref() == Some(uid));
            let deleting = gate.deleting || object.is_some_and(|object| object.metadata.deletion_timestamp.is_some());
            let enforced = !found.contains_key(uid);
            (uid.clone(), Wanted { gate: Arc::clone(gate), deleting, enforced, owned: object.is_some() })
        });
        self.admission.want(Wish { gates: wanted.collect(), incomplete: world.incomplete });
        drop(world);
        let same = found.keys().eq(self.unsatisfiable.keys());
        self.unsatisfiable = found;
        if !same {
            self.sweep();
        }
    }

    fn look_at(&mut self, name: &str, work: &Work) {
        let Some(node) = self.observer.node(name) else { return self.forget(name) };
        if self.failures.get(name).is_some_and(|(_, until)| *until > Instant::now()) {
            // The tick looks again.
            self.timers.insert(name.to_owned(), 0);
            return;
        }
        let now = chrono::Utc::now().timestamp();
        let clocks = self.clocks.remove(name).unwrap_or_default();
        let shut = self.unsatisfiable.keys().cloned().collect();
        let hub = Arc::clone(&self.hub);
        let world = hub.world();
        let plan = {
            let (rooms, views, regressed) = (&mut self.rooms, &self.views, &mut self.regressed);
            let mut has_room = |gate: &Gate| take_room(rooms, views, regressed, gate, now);
            decide(&world, &shut, name, &node, &clocks, &mut has_room, now)
        };
        drop(world);
        self.clocks.insert(name.to_owned(), plan.clocks);
        match plan.recheck_at {
            Some(at) => drop(self.timers.insert(name.to_owned(), at)),
            None => drop(self.timers.remove(name)),
        }
        if self.views.get(name) != Some(&plan.views) {
            self.status_due = true;
            self.views.insert(name.to_owned(), plan.views);
        }
        if !plan.asks_whether_idle.is_empty() {
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
        let (client, metrics, node, transitions) = (self.client.clone(), self.metrics.clone(), name.to_owned(), plan.transitions);
        work.push(async move { Ended::Patch { outcome: act::patch(&client, &metrics, &node, &patch).await, node, transitions } }.boxed());
    }

    fn forget(&mut self, name: &str) {
        self.clocks.remove(name);
        self.timers.remove(name);
        self.failures.remove(name);
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
                    self.fail(&node);
                }
            }
            Ended::Patch { node, outcome, transitions } => {
                self.under_way.remove(&node);
                match outcome {
                    Outcome::Done(now) => {
                        self.failures.remove(&node);
                        self.tell(&now, transitions);
                        self.observer.learn(*now);
                        self.urgent.insert(node);
                    }
                    Outcome::Stale(now) => {
                        self.observer.learn(*now);
                        self.rooms.clear();
                        self.again(&node);
                    }
                    Outcome::Gone => self.forget(&node),
                    Outcome::Forbidden(message) => {
                        tracing::error!(node, message, "the operator must not patch Nodes: install deploy/10-rbac.yaml");
                        self.failures.insert(node.clone(), (10, Instant::now() + BACKOFF.1));
                        self.timers.insert(node, 0);
                    }
                    Outcome::Failed(message) => {
                        tracing::warn!(node, message, "patch failed; trying again");
                        self.rooms.clear();
                        self.fail(&node);
                    }
                }
            }
        }
    }

    /// At once, up to five times: what was read live decides.
    fn again(&mut self, node: &str) {
        let (times, _) = self.failures.get(node).copied().unwrap_or((0, Instant::now()));
        if times < 5 {
            self.failures.insert(node.to_owned(), (times + 1, Instant::now()));
            self.urgent.insert(node.to_owned());
        } else {
            self.fail(node);
        }
    }

    fn fail(&mut self, node: &str) {
        let (times, _) = self.failures.get(node).copied().unwrap_or((0, Instant::now()));
        let wait = BACKOFF.0.saturating_mul(1 << times.min(10)).min(BACKOFF.1);
        self.failures.insert(node.to_owned(), (times.saturating_add(1), Instant::now() + wait));
        self.timers.insert(node.to_owned(), 0);
    }

    fn tell(&self, node: &Node, transitions: Vec<Transition>) {
        for transition in transitions {
            let Some(gate) = self.hub.world().gates.get(&transition.gate).cloned() else { continue };
            self.metrics.happened(&gate.name, &transition);
            // Its receiver lives as long as this sender.
            let _ = self.told.send(Told { node: Box::new(node.clone()), gate, transition });
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

    /// Status of gates that changed, metrics, and finalizers of gates that have left every node.
    async fn report(&mut self) {
        if !std::mem::take(&mut self.status_due) || !self.listed {
            return;
        }
        let world = self.hub.world().clone();
        let now = chrono::Utc::now().timestamp();
        // Of gates that are gone nothing is shown.
        self.metrics.blocked.clear();
        self.metrics.nodes.clear();
        for (uid, gate) in &world.gates {
            let seen = || self.views.iter().filter_map(|(node, views)| Some((node.as_str(), views.get(uid)?)));
            let object = self.objects.get(&gate.name).filter(|object| object.metadata.uid.as_deref() == Some(uid)).cloned();
            let before = object.as_ref().and_then(|object| object.status.clone()).unwrap_or_default();
            let circumstances = Circumstances {
                unsatisfiable: self.unsatisfiable.get(uid).cloned(),
                unseen: unseen(&world, gate),
                overlaps: overlaps(&world, &self.views, uid),
                admission: self.admission.condition(gate, !self.unsatisfiable.contains_key(uid)),
            };
            let status = status(gate, &before.conditions, seen(), &circumstances, now);
            self.show(gate, &status, seen().filter(|(_, view)| view.no_room).count());
            let Some(object) = object else { continue };
            if gate.deleting {
                self.let_go(&object, uid).await;
                continue;
            }
            // What was written may not have come back through the watch yet.
            if status == before || self.reported.get(uid).is_some_and(|last| *last == status) {
                continue;
            }
            let api: Api<NodeReadinessGate> = Api::all(self.client.clone());
            match act::merge(&api, &gate.name, true, &json!({"status": replaced(&before, &status)})).await {
                Ok(_) => drop(self.reported.insert(uid.clone(), status)),
                Err(error) => {
                    tracing::warn!(gate = gate.name, %error, "status not written; trying again");
                    self.status_due = true;
                }
            }
        }
    }

    fn show(&self, gate: &Gate, status: &NodeReadinessGateStatus, no_room: usize) {
        let set = |state, count: u32| {
            self.metrics.nodes.get_or_create(&Nodes { gate: gate.name.clone(), state }).set(i64::from(count));
        };
        set("matched", status.nodes.matched);
        set("held", status.nodes.held);
        set("released", status.nodes.released);
        set("stuck", status.nodes.stuck);
        set("budget_blocked", u32::try_from(no_room).unwrap_or(u32::MAX));
        for blocked in &status.blocked {
            let labels = Blocked { gate: gate.name.clone(), requirement: blocked.requirement.clone() };
            self.metrics.blocked.get_or_create(&labels).set(i64::from(blocked.nodes));
        }
    }

    /// The finalizer goes when no node carries anything of the gate any more.
    async fn let_go(&mut self, object: &NodeReadinessGate, uid: &str) {
        let key = planner::gate::record::annotation_key(uid);
        let nodes = self.observer.nodes();
        // Nodes that were tainted at their creation and not seen before are in the sweep that began with the deletion.
        if !self.swept.is_empty() || nodes.values().any(|node| node.annotations.contains_key(&key)) {
            self.status_due = true;
            return;
        }
        let finalizers: Vec<_> = object.finalizers().iter().filter(|name| *name != names::FINALIZER).cloned().collect();
        if finalizers.len() == object.finalizers().len() {
            return;
        }
        let api: Api<NodeReadinessGate> = Api::all(self.client.clone());
        let body = act::finalizers(&finalizers, object.metadata.resource_version.as_deref());
        if let Err(error) = act::merge(&api, &object.name_any(), false, &body).await {
            tracing::warn!(gate = object.name_any(), %error, "finalizer not removed; trying again");
            self.status_due = true;
        }
    }
}

/// Whether another node may lose its release; the room is taken with the answer.
fn take_room(
    rooms: &mut BTreeMap<String, (Instant, Room)>,
    views: &BTreeMap<String, BTreeMap<String, View>>,
    regressed: &mut BTreeMap<String, VecDeque<i64>>,
    gate: &Gate,
    now: i64,
) -> bool {
    let lately = regressed.entry(gate.uid.clone()).or_default();
    while lately.front().is_some_and(|at| now - at >= 60) {
        lately.pop_front();
    }
    let count = || {
        let of = || views.values().filter_map(|views| views.get(&gate.uid));
        Room::of(gate, of().count(), of().filter(|view| view.regressed).count(), lately.len())
    };
    let entry = rooms.entry(gate.uid.clone()).or_insert_with(|| (Instant::now(), count()));
    if entry.0.elapsed() >= ROOM_FOR {
        *entry = (Instant::now(), count());
    }
    let open = entry.1.is_open();
    if open {
        entry.1.nodes -= 1;
        entry.1.this_minute -= 1;
        lately.push_back(now);
    }
    open
}

/// Names of other gates with the same taint on a node of this one.
fn overlaps(world: &planner::gate::World, views: &BTreeMap<String, BTreeMap<String, View>>, uid: &str) -> BTreeSet<String> {
    let Some(gate) = world.gates.get(uid) else { return BTreeSet::new() };
    let rivals: Vec<_> = world
        .gates
        .iter()
        .filter(|(other, found)| *other != uid && found.has_taint(&gate.spec.taint.key, gate.spec.taint.effect.as_str()))
        .collect();
    if rivals.is_empty() {
        return BTreeSet::new();
    }
    let shared = |other: &str| views.values().any(|views| views.contains_key(uid) && views.contains_key(other));
    rivals.into_iter().filter(|(other, _)| shared(other)).map(|(_, gate)| gate.name.clone()).collect()
}

/// The body of a merge patch that leaves exactly `after`: lists that became empty are not serialised, and would stay.
fn replaced(before: &NodeReadinessGateStatus, after: &NodeReadinessGateStatus) -> serde_json::Value {
    let mut body = serde_json::to_value(after).unwrap_or_default(); // plain data: always serialisable
    if after.blocked.is_empty() && !before.blocked.is_empty() {
        body["blocked"] = json!(null);
    }
    body
}
