//! A share of the pods of a fleet: one task that alone knows them, and starts every request about them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use http::Method;
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use serde::de::IgnoredAny;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::addresses::Pool;
use super::config::FleetConfig;
use super::entry::{Behaviour, Entry, Site, Write, template_of};
use super::limiter::{Limiter, Slot};
use super::occurrences::Occurrences;
use super::requests::{Call, Failure, Requests, Written, bytes};
use super::slim::SlimPod;
use super::watch::Event;
use crate::api::{ContainerTarget, HandlerError};
use crate::api_call::retry_delay;
use crate::errdefs::ProviderError;
use crate::simulated::{ContainerLog, Plan, PodFault, SimulatedPod, Templates, pod_seed};

const FIRST_RETRY: Duration = Duration::from_millis(250);
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// When a pod without an address asks for one again.
const ADDRESS_RETRY: Duration = Duration::from_secs(5);
/// Two moments that are closer are one.
const TICK: Duration = Duration::from_millis(1);
/// Timers that count no more are kept up to so many beyond twice the number of pods.
const STALE_TIMERS: usize = 1024;
/// How long a pod that somebody looks at is still shown when it has left the API: who follows a log sees its end.
const SHOWN_AFTER: Duration = Duration::from_secs(5);
/// Messages that are taken in before requests are started again.
const BATCH: usize = 64;

/// What a shard is told.
#[derive(Clone, Debug)]
pub(super) enum Order {
    /// Something of a pod, or of the list.
    Pod(Arc<Event<SlimPod>>, Instant),
    /// A node says nothing any more, or does again.
    Silence(u32, bool),
    /// A node's agent has forgotten which pods were ready.
    ForgetReadiness(u32, Duration),
    /// A call asks for a fault of the pods of this namespace and name, or takes it back.
    PodFault(Arc<str>, Arc<str>, Option<PodFault>),
    /// Somebody wants to see a container.
    Look(Look),
}

/// Which container somebody wants to see, and who.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub target: ContainerTarget,
    pub reply: mpsc::Sender<Result<View, HandlerError>>,
}

/// What there is to see of a container.
#[derive(Debug)]
pub(super) struct View {
    /// The pod's.
    pub uid: Uid,
    pub log: ContainerLog,
    pub is_running: bool,
    /// What commands print, if they are answered.
    pub exec: Option<Arc<str>>,
}

/// A pod that found no address.
struct Homeless {
    pod: Box<SlimPod>,
    /// Which of its name it is: counted once, however often it asks.
    occurrence: u32,
    /// Which list showed it last.
    list: u32,
    /// Who came first asks first.
    turn: u64,
}

type Uid = Arc<str>;

struct Done {
    uid: Uid,
    result: Result<Answer, Failure>,
}

enum Answer {
    Patched { body: Value, sign: u64, version: u64 },
    Removed,
}

pub(super) struct Shard {
    config: Arc<FleetConfig>,
    requests: Arc<Requests>,
    writes: Arc<Limiter>,
    addresses: Arc<Mutex<Pool>>,
    pods: HashMap<Uid, Box<Entry>>,
    /// Those that have left the API while somebody looked at them, and when.
    left: Vec<(Instant, Uid, Box<Entry>)>,
    queue: VecDeque<Uid>,
    /// An entry whose moment is not the pod's `wake` counts no more. Those are thrown away when they are most of all.
    timers: BinaryHeap<Reverse<(Instant, Uid)>>,
    templates: Templates,
    namespaces: HashSet<Arc<str>>,
    occurrences: Occurrences,
    silent: HashSet<u32>,
    homeless: HashMap<Uid, Homeless>,
    next_turn: u64,
    next_address: Option<Instant>,
    /// Faults that calls ask for, by namespace and name.
    told: HashMap<(Arc<str>, Arc<str>), PodFault>,
    list: u32,
    done: (mpsc::UnboundedSender<Done>, mpsc::UnboundedReceiver<Done>),
}

impl Shard {
    pub fn new(config: Arc<FleetConfig>, requests: Arc<Requests>, writes: Arc<Limiter>, addresses: Arc<Mutex<Pool>>) -> Self {
        Self {
            config,
            requests,
            writes,
            addresses,
            pods: HashMap::new(),
            left: Vec::new(),
            queue: VecDeque::new(),
            timers: BinaryHeap::new(),
            templates: Templates::default(),
            namespaces: HashSet::new(),
            occurrences: Occurrences::default(),
            silent: HashSet::new(),
            homeless: HashMap::new(),
            next_turn: 0,
            next_address: None,
            told: HashMap::new(),
            list: 0,
            done: mpsc::unbounded_channel(),
        }
    }

    pub async fn run(mut self, mut orders: mpsc::Receiver<Order>, stop: CancellationToken) {
        let mut recovered = self.requests.recoveries.subscribe();
        loop {
            while !self.queue.is_empty()
                && let Some(slot) = self.writes.try_slot()
            {
                self.start_next(slot);
            }
            let wake = self.timers.peek().map(|Reverse((at, _))| *at).into_iter().chain(self.next_address).min();
            tokio::select! {
                () = stop.cancelled() => return,
                Some(done) = self.done.1.recv() => self.finish(done),
                Some(order) = orders.recv() => {
                    self.obey(order);
                    for _ in 0..BATCH {
                        let Ok(order) = orders.try_recv() else { break };
                        self.obey(order);
                    }
                }
                slot = self.writes.slot(), if !self.queue.is_empty() => self.start_next(slot),
                Ok(()) = recovered.changed() => self.hurry(),
                () = tokio::time::sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => self.wake_up(),
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Pod(event, at) => match &*event {
                Event::ListBegins => self.list = self.list.wrapping_add(1),
                Event::Applied(pod) => self.see(pod, at, self.list),
                Event::Deleted(pod) => self.forget(pod.metadata.uid.as_deref().unwrap_or_default()),
                Event::ListEnds => {
                    let gone: Vec<Uid> =
                        self.pods.iter().filter(|(_, entry)| entry.list != self.list).map(|(uid, _)| uid.clone()).collect();
                    for uid in gone {
                        self.forget(&uid);
                    }
                    self.homeless.retain(|_, homeless| homeless.list == self.list);
                }
            },
            Order::Silence(node, true) => drop(self.silent.insert(node)),
            Order::Silence(node, false) => {
                self.silent.remove(&node);
                for uid in self.pods_of(node) {
                    self.enqueue(&uid, Instant::now());
                }
            }
            Order::PodFault(namespace, name, fault) => self.strike(&namespace, &name, fault),
            Order::Look(Look { target, reply }) => {
                // Whoever asked may wait no longer.
                let _ = reply.try_send(self.view(&target));
            }
            Order::ForgetReadiness(node, unready) => {
                let now = Timestamp::now();
                for uid in self.pods_of(node) {
                    let machine = self.pods.get_mut(&uid).and_then(|entry| entry.machine.as_mut());
                    if machine.is_some_and(|machine| machine.advance(now) | machine.forget_readiness(now, unready)) {
                        self.enqueue(&uid, Instant::now());
                        self.plan(&uid);
                    }
                }
            }
        }
    }

    /// What is asked for by a call goes before what rules and annotations say.
    fn with_told(&self, plan: Arc<Plan>, namespace: &Arc<str>, name: &str) -> Arc<Plan> {
        // Mostly there is none.
        if self.told.is_empty() {
            return plan;
        }
        let name: Arc<str> = name.into();
        let told = self.told.get(&(namespace.clone(), name));
        told.map_or_else(|| plan.clone(), |fault| Arc::new(Plan { fault: Some(*fault), ..Plan::clone(&plan) }))
    }

    fn strike(&mut self, namespace: &Arc<str>, name: &Arc<str>, fault: Option<PodFault>) {
        let key = (namespace.clone(), name.clone());
        match fault {
            Some(fault) => self.told.insert(key, fault),
            None => self.told.remove(&key),
        };
        let now = Timestamp::now();
        let of_name = self.pods.iter().filter(|(_, entry)| *entry.name == **name && entry.namespace == *namespace);
        let uids: Vec<Uid> = of_name.map(|(uid, _)| uid.clone()).collect();
        for uid in uids {
            let Some(plan) = self.pods.get(&uid).map(|entry| entry.plan.clone()) else { continue };
            let plan = self.with_told(plan, namespace, name);
            let machine = self.pods.get_mut(&uid).and_then(|entry| entry.machine.as_mut());
            if machine.is_some_and(|machine| machine.advance(now) | machine.change_plan(plan, now) | machine.advance(now)) {
                self.enqueue(&uid, Instant::now());
                self.plan(&uid);
            }
        }
    }

    /// What there is to see of a container. Of several pods of one name the newest counts.
    fn view(&mut self, ContainerTarget { pod, container }: &ContainerTarget) -> Result<View, HandlerError> {
        let has_name = |entry: &Entry| *entry.name == *pod.name && *entry.namespace == *pod.namespace;
        self.left.retain(|(at, ..)| at.elapsed() < SHOWN_AFTER);
        let left = self.left.iter_mut().map(|(_, uid, entry)| (&*uid, entry)).filter(|_| pod.uid.is_some());
        let is_meant = |uid: &Uid, entry: &Entry| has_name(entry) && pod.uid.as_deref().is_none_or(|meant| *meant == **uid);
        let found = self.pods.iter_mut().chain(left).filter(|(uid, entry)| is_meant(uid, entry));
        let found = found.max_by_key(|(_, entry)| entry.machine.as_ref().map(SimulatedPod::start_time));
        let (uid, entry) = found.ok_or_else(|| HandlerError::not_found(format!("pod \"{}\" does not exist", pod.name)))?;
        entry.looked_at = Some(Instant::now());
        if self.silent.contains(&entry.node) {
            let why = anyhow!("node {} is lost (simulated fault)", self.config.node_name(entry.node));
            return Err(ProviderError::Other(why).into());
        }
        let machine = entry.machine.as_ref().ok_or_else(|| {
            HandlerError::not_found(format!("pod \"{}\" ended before this fleet started, so its history is unknown", pod.name))
        })?;
        let log = machine.log(container);
        let log = log.ok_or_else(|| HandlerError::not_found(format!("container {container} not found in pod {}", pod.name)))?;
        Ok(View { uid: uid.clone(), log, is_running: machine.is_running(container), exec: machine.exec() })
    }

    fn pods_of(&self, node: u32) -> Vec<Uid> {
        self.pods.iter().filter(|(_, entry)| entry.node == node).map(|(uid, _)| uid.clone()).collect()
    }

    fn addresses(&self) -> MutexGuard<'_, Pool> {
        self.addresses.lock()
    }

    /// The API showed a pod, at last in this list.
    fn see(&mut self, pod: &SlimPod, at: Instant, list: u32) {
        let Some(node) = self.config.index_of(&pod.spec.node_name) else { return };
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let homeless = self.homeless.remove(uid);
        let now = Timestamp::now();
        let namespace = self.intern(pod.metadata.namespace.as_deref().unwrap_or_default());
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let asked = self.config.stages.plan(&namespace, pod.metadata.labels.as_ref(), pod.metadata.annotations.as_ref());
        let plan = self.with_told(asked.clone(), &namespace, name);
        let template = self.templates.intern(template_of(pod));
        let uid: Uid = if let Some((uid, _)) = self.pods.get_key_value(uid) {
            uid.clone()
        } else {
            let occurrence = match &homeless {
                Some(homeless) => homeless.occurrence,
                None => self.occurrences.next(&namespace, name),
            };
            let seed = pod_seed(self.config.seed, &namespace, name, occurrence);
            let behaviour = Behaviour { seed, plan: plan.clone(), template: template.clone() };
            let mut entry = Box::new(Entry::new(pod, namespace, node, behaviour, now));
            if entry.machine.is_some() && !template.host_network {
                let known = pod.status.pod_ip.as_deref().and_then(|address| address.parse::<Ipv4Addr>().ok());
                if let Some(address) = known {
                    self.addresses().adopt(address);
                }
                entry.pod_ip = known.or_else(|| self.addresses().take(seed));
                if entry.pod_ip.is_none() && pod.metadata.deletion_timestamp.is_none() {
                    let turn = homeless.map(|homeless| homeless.turn);
                    return self.wait_for_address(pod, occurrence, list, turn);
                }
            }
            let uid: Uid = uid.into();
            self.pods.insert(uid.clone(), entry);
            self.requests.metrics.pods.inc();
            uid
        };
        let Some(entry) = self.pods.get_mut(&uid) else { return };
        entry.list = list;
        entry.plan = asked;
        let host_ip = self.config.node_ip(node);
        if entry.see(pod, Site { uid: &uid, host_ip: &host_ip }, plan, template, now) {
            self.enqueue(&uid, at);
        }
        self.plan(&uid);
    }

    /// The range is used up: the pod waits, as on a node whose range is.
    fn wait_for_address(&mut self, pod: &SlimPod, occurrence: u32, list: u32, turn: Option<u64>) {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if turn.is_none() && self.homeless.is_empty() {
            tracing::warn!(range = %self.config.pod_cidr, "no address is free; pods wait for one");
        }
        let turn = turn.unwrap_or_else(|| {
            self.next_turn += 1;
            self.next_turn
        });
        self.homeless.insert(uid.into(), Homeless { pod: Box::new(pod.clone()), occurrence, list, turn });
        self.next_address.get_or_insert_with(|| Instant::now() + ADDRESS_RETRY);
    }

    fn try_addresses(&mut self) {
        self.next_address = None;
        let mut waiting: Vec<_> = self.homeless.iter().map(|(uid, homeless)| (homeless.turn, uid.clone())).collect();
        waiting.sort_unstable();
        for (_, uid) in waiting {
            let Some((pod, list)) = self.homeless.get(&uid).map(|homeless| (homeless.pod.clone(), homeless.list)) else { continue };
            self.see(&pod, Instant::now(), list);
        }
    }

    fn intern(&mut self, namespace: &str) -> Arc<str> {
        if let Some(known) = self.namespaces.get(namespace) {
            return known.clone();
        }
        self.namespaces.retain(|namespace| Arc::strong_count(namespace) > 1);
        let namespace: Arc<str> = namespace.into();
        self.namespaces.insert(namespace.clone());
        namespace
    }

    /// The pod has left the API.
    fn forget(&mut self, uid: &str) {
        self.homeless.remove(uid);
        if let Some((uid, entry)) = self.pods.remove_entry(uid) {
            self.requests.metrics.pods.dec();
            if let Some(address) = entry.pod_ip {
                self.addresses().release(address);
            }
            self.left.retain(|(at, ..)| at.elapsed() < SHOWN_AFTER);
            if entry.looked_at.is_some_and(|at| at.elapsed() < SHOWN_AFTER) {
                self.left.push((Instant::now(), uid, entry));
            }
            self.prune_timers();
        }
    }

    /// Throws timers away that count no more, once they are most of all.
    fn prune_timers(&mut self) {
        if self.timers.len() > 2 * self.pods.len() + STALE_TIMERS {
            let pods = &self.pods;
            self.timers.retain(|Reverse((at, uid))| pods.get(uid).is_some_and(|entry| entry.wake == Some(*at)));
        }
    }

    /// Something may be to be written about the pod.
    fn enqueue(&mut self, uid: &Uid, since: Instant) {
        let Some(entry) = self.pods.get_mut(uid) else { return };
        entry.due_since.get_or_insert(since);
        let waits = entry.not_before.is_some_and(|at| at > Instant::now());
        if !entry.is_queued && !entry.is_busy && !waits && !self.silent.contains(&entry.node) {
            entry.is_queued = true;
            self.queue.push_back(uid.clone());
        }
    }

    /// Sets the pod's timer to what comes next of it.
    fn plan(&mut self, uid: &Uid) {
        let Some(entry) = self.pods.get_mut(uid) else { return };
        let due = entry.machine.as_ref().and_then(SimulatedPod::due).map(|due| {
            let ahead = due.duration_since(Timestamp::now());
            // A moment later, so that it is certainly due by the other clock as well.
            Instant::now() + Duration::try_from(ahead).unwrap_or_default() + TICK
        });
        let wake = [due, entry.not_before].into_iter().flatten().min();
        let planned = |wake: Instant| entry.wake.is_some_and(|planned| planned <= wake && wake.duration_since(planned) < TICK * 4);
        if !wake.is_some_and(planned) {
            entry.wake = wake;
            if let Some(at) = wake {
                self.timers.push(Reverse((at, uid.clone())));
                self.prune_timers();
            }
        }
    }

    fn wake_up(&mut self) {
        let now = Instant::now();
        if self.next_address.is_some_and(|at| at <= now) {
            self.try_addresses();
        }
        while let Some(Reverse((at, _))) = self.timers.peek()
            && *at <= now
            && let Some(Reverse((at, uid))) = self.timers.pop()
        {
            let Some(entry) = self.pods.get_mut(&uid).filter(|entry| entry.wake == Some(at)) else { continue };
            entry.wake = None;
            let retries = entry.not_before.take_if(|not_before| *not_before <= now).is_some();
            let changed = entry.machine.as_mut().is_some_and(|machine| machine.advance(Timestamp::now()));
            if retries || changed {
                self.enqueue(&uid, at);
            }
            self.plan(&uid);
        }
    }

    /// What failed in an outage is tried again at once.
    fn hurry(&mut self) {
        let failed: Vec<Uid> = self.pods.iter().filter(|(_, entry)| entry.failures > 0).map(|(uid, _)| uid.clone()).collect();
        for uid in failed {
            if let Some(entry) = self.pods.get_mut(&uid) {
                entry.not_before = None;
            }
            self.enqueue(&uid, Instant::now());
        }
    }

    fn start_next(&mut self, slot: Slot) {
        let Some(uid) = self.queue.pop_front() else { return };
        let Some(entry) = self.pods.get_mut(&uid) else { return };
        entry.is_queued = false;
        if entry.is_busy || self.silent.contains(&entry.node) {
            return;
        }
        let since = entry.due_since.take();
        let now = Timestamp::now();
        if let Some(machine) = &mut entry.machine {
            machine.advance(now);
        }
        let host_ip = self.config.node_ip(entry.node);
        let Some(write) = entry.write(Site { uid: &uid, host_ip: &host_ip }, now) else {
            return self.plan(&uid);
        };
        entry.is_busy = true;
        entry.writing = match &write {
            Write::Patch(_, sign) => Some(*sign),
            Write::Delete(_) => None,
        };
        let path = format!("/api/v1/namespaces/{}/pods/{}", entry.namespace, entry.name);
        let node = self.config.node_name(entry.node);
        let (requests, done) = (self.requests.clone(), self.done.0.clone());
        self.plan(&uid);
        tokio::spawn(async move {
            let result = match write {
                Write::Patch(body, sign) => {
                    if let Some(since) = since {
                        requests.metrics.patching(since.elapsed());
                    }
                    let (path, sent) = (format!("{path}/status"), bytes(&body));
                    let call = Call { method: Method::PATCH, resource: "pods", path, node, body: sent, whole: false };
                    requests.call::<Written>(&slot, call).await.map(|written| {
                        let version = written.metadata.resource_version.parse().unwrap_or_default();
                        Answer::Patched { body, sign, version }
                    })
                }
                Write::Delete(body) => {
                    let call = Call { method: Method::DELETE, resource: "pods", path, node, body: bytes(&body), whole: false };
                    match requests.call::<IgnoredAny>(&slot, call).await {
                        Ok(_) => Ok(Answer::Removed),
                        Err(failure) if failure.code == Some(404) => Ok(Answer::Removed),
                        Err(failure) => Err(failure),
                    }
                }
            };
            drop(slot);
            // Nobody listens any more when the fleet ends.
            let _ = done.send(Done { uid, result });
        });
    }

    fn finish(&mut self, done: Done) {
        let Some(entry) = self.pods.get_mut(&done.uid) else { return };
        match done.result {
            Ok(Answer::Patched { body, sign, version }) => entry.patched(&body, sign, version),
            Ok(Answer::Removed) => {
                (entry.is_busy, entry.is_removed, entry.failures) = (false, true, 0);
                return;
            }
            Err(failure) => {
                entry.failed(matches!(failure.code, Some(400 | 422)));
                self.requests.metrics.retries();
                let pause = retry_delay(entry.failures, FIRST_RETRY, LONGEST_RETRY).mul_f64(0.75 + fastrand::f64() / 2.0);
                entry.not_before = Some(Instant::now() + pause.max(failure.retry_after.unwrap_or_default()));
                tracing::debug!(namespace = &*entry.namespace, pod = &*entry.name, why = failure.message, "a write about a pod failed");
                return self.plan(&done.uid);
            }
        }
        // What changed meanwhile replaces nothing that waits: it is written now.
        let host_ip = self.config.node_ip(entry.node);
        if entry.write(Site { uid: &done.uid, host_ip: &host_ip }, Timestamp::now()).is_some() {
            self.enqueue(&done.uid, Instant::now());
        } else {
            entry.due_since = None;
        }
        self.plan(&done.uid);
    }
}

#[cfg(test)]
#[path = "shard_tests.rs"]
mod tests;
