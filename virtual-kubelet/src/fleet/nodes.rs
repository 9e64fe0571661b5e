//! The Nodes of a fleet and their leases: one task that knows them all and starts every request about them.

mod faults;

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::config::FleetConfig;
use super::faults::{AskedFaults, Told};
use super::leases::{Holder, Known, LeaseRecord, Renewal};
use super::limiter::{Limiter, Slot};
use super::requests::{Call, Failure, Requests, Written, bytes};
use super::schedule::Schedule;
use super::shard::Order;
use super::slim::SlimNode;
use super::watch::Event;
use crate::api_call::retry_delay;
use crate::node::{needs_repair, node_patch, registered};
use crate::simulated::pod_seed;

/// Part of a lease's duration after which it is renewed.
const RENEWALS_PER_DURATION: u32 = 4;
/// How far a renewal may be off its time, so that those of nodes that were made together drift apart.
const JITTER: f64 = 0.04;
/// As kubelets report a status that has not changed.
const STATUS_INTERVAL: Duration = Duration::from_mins(5);
/// A renewal so late is a sign that the API server has more to do than it can.
const LATE: Duration = Duration::from_secs(1);
/// A renewal that failed is tried again soon: how many are, the limit of requests says.
const FIRST_RETRY: Duration = Duration::from_millis(250);
const LONGEST_LEASE_RETRY: Duration = Duration::from_secs(2);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, and all combinations occur")]
struct NodeRecord {
    /// UID in the API; none while it is not there.
    uid: Option<String>,
    lease: LeaseRecord,
    has_lease: bool,
    lease_failures: u32,
    /// When its next renewal is to be.
    planned: Option<Instant>,
    /// When its last one was sent.
    renewed: Option<Instant>,
    /// Kept while the server shows something else than it should.
    deviates: Option<Box<Node>>,
    busy: bool,
    failures: u32,
    asked: AskedFaults,
    told_lost: bool,
    told_late: Duration,
    /// By the list that is under way.
    seen: bool,
    /// Ever seen: what an annotation asked for before that was done by another process.
    met: bool,
}

impl NodeRecord {
    /// How much later than planned its lease is to be renewed.
    fn late(&self) -> Duration {
        self.asked.late_lease.max(self.told_late)
    }

    fn is_lost(&self) -> bool {
        self.asked.lost || self.told_lost
    }
}

/// What a request ended with.
#[derive(Debug)]
pub(super) enum Done {
    Node(u32, Result<NodeAnswer, Failure>, Option<Box<Node>>),
    Lease(u32, LeaseRecord, Renewal, Times),
}

/// When a renewal was to be, and when it was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    planned: Instant,
    sent: Instant,
}

#[derive(Debug)]
pub(super) enum NodeAnswer {
    Created(String),
    Exists(Box<SlimNode>),
    Gone,
    Patched,
}

pub(super) struct Keeper {
    config: Arc<FleetConfig>,
    requests: Arc<Requests>,
    leases: Arc<Limiter>,
    writes: Arc<Limiter>,
    nodes: Vec<NodeRecord>,
    renewals: Schedule,
    work: Schedule,
    done: (mpsc::UnboundedSender<Done>, mpsc::UnboundedReceiver<Done>),
    shards: Vec<mpsc::Sender<Order>>,
    registered: watch::Sender<bool>,
    there: i64,
}

impl Keeper {
    pub fn new(
        config: Arc<FleetConfig>,
        requests: Arc<Requests>,
        leases: Arc<Limiter>,
        writes: Arc<Limiter>,
        shards: Vec<mpsc::Sender<Order>>,
        registered: watch::Sender<bool>,
    ) -> Self {
        let nodes = (0..config.nodes).map(|_| NodeRecord::default()).collect();
        let (renewals, work) = Default::default();
        let done = mpsc::unbounded_channel();
        Self { config, requests, leases, writes, nodes, renewals, work, done, shards, registered, there: 0 }
    }

    pub async fn run(
        mut self,
        mut events: mpsc::Receiver<Event<SlimNode>>,
        mut faults: mpsc::UnboundedReceiver<Told>,
        stop: CancellationToken,
    ) {
        let mut recovered = self.requests.recoveries.subscribe();
        loop {
            let now = Instant::now();
            while self.renewals.has_ready(now)
                && let Some(slot) = self.leases.try_slot()
            {
                self.renew(slot, now);
            }
            while self.work.has_ready(now)
                && let Some(slot) = self.writes.try_slot()
            {
                self.work_on(slot, now);
            }
            let waits = (self.renewals.has_ready(now), self.work.has_ready(now));
            let wake = [self.renewals.wakes_at(), self.work.wakes_at()].into_iter().flatten().min();
            tokio::select! {
                () = stop.cancelled() => return,
                Some(done) = self.done.1.recv() => self.finish(done).await,
                Some(event) = events.recv() => self.see(event).await,
                // Whoever asks a fleet that was told to end is not to be answered by what it still knows.
                Some(told) = faults.recv() => if stop.is_cancelled() { return } else { self.strike(told).await },
                slot = self.leases.slot(), if waits.0 => self.renew(slot, Instant::now()),
                slot = self.writes.slot(), if waits.1 => self.work_on(slot, Instant::now()),
                Ok(()) = recovered.changed() => self.hurry(),
                () = tokio::time::sleep_until(wake.unwrap_or(now)), if wake.is_some() => {}
            }
        }
    }

    /// What failed in an outage is tried again at once.
    fn hurry(&mut self) {
        let now = Instant::now();
        for index in 0..self.config.nodes {
            let record = &self.nodes[index as usize];
            if record.failures > 0 && !record.busy {
                self.work.insert(index, now, now);
            }
            // All of them at once, so that the oldest is among those that may be tried.
            if record.lease_failures > 0 && self.renewals.contains(index) {
                self.renewals.insert(index, record.renewed.unwrap_or(now), now);
            }
        }
    }

    fn interval(&self) -> Duration {
        self.config.lease_duration / RENEWALS_PER_DURATION
    }

    /// Spreads nodes over an interval, each always to the same place.
    fn phase(&self, index: u32, interval: Duration, of: &str) -> Duration {
        let place = pod_seed(self.config.seed, of, &self.config.node_name(index), 0);
        interval.mul_f64(f64::from(u32::try_from(place >> 32).unwrap_or_default()) / f64::from(u32::MAX))
    }

    fn plan_renewal(&mut self, index: u32, planned: Instant) {
        let record = &mut self.nodes[index as usize];
        record.planned = Some(planned);
        // Of those that are due the oldest comes first, whatever its place in the interval is.
        self.renewals.insert(index, record.renewed.unwrap_or(planned), planned + record.late());
    }

    fn renew(&mut self, slot: Slot, now: Instant) {
        let Some((index, _)) = self.renewals.pop(now) else { return };
        let record = &mut self.nodes[index as usize];
        let Some(node_uid) = record.uid.clone().filter(|_| !record.is_lost()) else { return };
        let mut lease = std::mem::take(&mut record.lease);
        let planned = record.planned.unwrap_or(now);
        let holder = Holder {
            node: self.config.node_name(index),
            node_uid,
            duration: self.config.lease_duration,
            policy: self.config.foreign_holder,
        };
        let (requests, done) = (self.requests.clone(), self.done.0.clone());
        tokio::spawn(async move {
            let renewal = lease.renew(&requests, &slot, &holder).await;
            drop(slot);
            // Nobody listens any more when the fleet ends.
            let _ = done.send(Done::Lease(index, lease, renewal, Times { planned, sent: now }));
        });
    }

    fn work_on(&mut self, slot: Slot, now: Instant) {
        let Some((index, _)) = self.work.pop(now) else { return };
        let record = &mut self.nodes[index as usize];
        if record.is_lost() {
            return;
        }
        let name = self.config.node_name(index);
        let call =
            |method: Method, path: String, body: Vec<u8>, whole| Call { method, resource: "nodes", path, node: name.clone(), body, whole };
        let (path, timestamp) = (format!("/api/v1/nodes/{name}"), Timestamp::now());
        let ours = self.config.node(index, timestamp);
        let write = match (&record.uid, &record.deviates) {
            (None, _) => call(Method::POST, "/api/v1/nodes".into(), bytes(&registered(&ours)), false),
            (Some(_), Some(server)) => call(Method::PATCH, format!("{path}/status"), bytes(&node_patch(&ours, server, timestamp)), false),
            (Some(uid), None) => call(Method::PATCH, format!("{path}/status"), bytes(&heartbeat(&ours, uid)), false),
        };
        let read = call(Method::GET, path, Vec::new(), true);
        record.busy = true;
        let deviates = record.deviates.take();
        let (requests, done) = (self.requests.clone(), self.done.0.clone());
        tokio::spawn(async move {
            let creates = write.method == Method::POST;
            let answer = match requests.call::<Written>(&slot, write).await {
                Ok(written) if creates => Ok(NodeAnswer::Created(written.metadata.uid)),
                Ok(_) => Ok(NodeAnswer::Patched),
                Err(failure) if creates && failure.code == Some(409) => {
                    requests.call::<SlimNode>(&slot, read).await.map(|node| NodeAnswer::Exists(Box::new(node)))
                }
                Err(failure) if failure.code == Some(404) => Ok(NodeAnswer::Gone),
                Err(failure) => Err(failure),
            };
            drop(slot);
            let _ = done.send(Done::Node(index, answer, deviates));
        });
    }

    async fn finish(&mut self, done: Done) {
        match done {
            Done::Lease(index, lease, renewal, times) => self.lease_done(index, lease, renewal, times),
            Done::Node(index, answer, deviates) => {
                self.nodes[index as usize].busy = false;
                let now = Instant::now();
                let mut pause = Duration::ZERO;
                let mut beat = STATUS_INTERVAL.mul_f64(1.0 + JITTER * (2.0 * fastrand::f64() - 1.0));
                match answer {
                    Ok(NodeAnswer::Created(uid)) => {
                        self.is_there(index, uid, true);
                        beat = STATUS_INTERVAL / 2 + self.phase(index, STATUS_INTERVAL, "status");
                    }
                    Ok(NodeAnswer::Exists(node)) => {
                        self.node_is(index, *node).await;
                        let record = &mut self.nodes[index as usize];
                        // It is being deleted, and something keeps it for now.
                        if record.uid.is_none() {
                            record.failures += 1;
                            pause = retry_delay(record.failures, FIRST_RETRY, LONGEST_RETRY);
                        }
                    }
                    Ok(NodeAnswer::Gone) => self.is_gone(index),
                    Ok(NodeAnswer::Patched) => self.nodes[index as usize].failures = 0,
                    Err(failure) => {
                        let record = &mut self.nodes[index as usize];
                        record.failures += 1;
                        record.deviates = record.deviates.take().or(deviates);
                        self.requests.metrics.retries();
                        let pause = retry_delay(record.failures, FIRST_RETRY, LONGEST_RETRY).max(failure.retry_after.unwrap_or_default());
                        tracing::debug!(node = self.config.node_name(index), why = failure.message, "writing the Node failed");
                        return self.work.insert(index, now, now + pause);
                    }
                }
                let record = &self.nodes[index as usize];
                if record.uid.is_none() || record.deviates.is_some() {
                    self.work.insert(index, now, now + pause);
                } else {
                    self.work.insert(index, now + beat, now + beat);
                }
            }
        }
    }

    fn lease_done(&mut self, index: u32, lease: LeaseRecord, renewal: Renewal, times: Times) {
        let (now, interval) = (Instant::now(), self.interval());
        let record = &mut self.nodes[index as usize];
        let asked_for = record.late();
        record.lease = lease;
        match renewal {
            Renewal::Done => {
                record.lease_failures = 0;
                record.renewed = Some(times.sent);
                if record.deviates.is_some() && !record.busy {
                    self.work.insert(index, now, now);
                }
                if std::mem::replace(&mut record.has_lease, true) {
                    let late = now.saturating_duration_since(times.planned);
                    self.requests.metrics.renewed(late);
                    // An API server that cannot do both gets heartbeats first: pods can wait, a lost node moves them all.
                    if late > LATE && asked_for.is_zero() {
                        self.writes.hold_back();
                    }
                } else {
                    // From here on at its own place in the interval: a lease lasts four of them, so that the first may be longer.
                    let place = times.planned + interval / 2 + self.phase(index, interval, "lease");
                    self.requests.metrics.lease_made(now.saturating_duration_since(times.planned));
                    self.count(1);
                    return self.plan_renewal(index, place);
                }
                let planned = times.planned + interval.mul_f64(1.0 + JITTER * (2.0 * fastrand::f64() - 1.0));
                // What was missed is not made up for.
                let next = if planned > now { planned } else { now + interval.mul_f64(0.5 + fastrand::f64() / 2.0) };
                self.plan_renewal(index, next);
            }
            Renewal::Foreign => self.plan_renewal(index, now + interval),
            Renewal::Failed(failure) => {
                record.lease_failures += 1;
                let failures = record.lease_failures;
                let oldest = record.renewed.unwrap_or(times.planned);
                self.requests.metrics.retries();
                tracing::debug!(node = self.config.node_name(index), why = failure.message, "renewing the lease failed");
                let pause = retry_delay(failures, FIRST_RETRY, LONGEST_LEASE_RETRY).max(failure.retry_after.unwrap_or_default());
                self.renewals.insert(index, oldest, now + pause.mul_f64(0.75 + fastrand::f64() / 2.0));
            }
        }
    }

    /// A Node is in the API, with this UID.
    fn is_there(&mut self, index: u32, uid: String, new: bool) {
        let now = Instant::now();
        let record = &mut self.nodes[index as usize];
        record.failures = 0;
        if record.uid.as_deref() == Some(uid.as_str()) {
            return;
        }
        record.uid = Some(uid);
        // The lease of an earlier Node of the name goes with it, unless it is given the new owner in time.
        let had_lease = std::mem::take(&mut record.has_lease);
        if new && matches!(record.lease.known, Known::Unknown) {
            record.lease.known = Known::Missing;
        }
        self.plan_renewal(index, now);
        self.count(-i64::from(had_lease));
    }

    fn is_gone(&mut self, index: u32) {
        let now = Instant::now();
        let record = &mut self.nodes[index as usize];
        if record.uid.take().is_some() {
            tracing::warn!(node = self.config.node_name(index), "the Node was deleted; creating it again");
        }
        record.deviates = None;
        let had_lease = std::mem::take(&mut record.has_lease);
        self.renewals.remove(index);
        if !record.busy {
            self.work.insert(index, now, now);
        }
        self.count(-i64::from(had_lease));
    }

    /// So many more Nodes are there, each with its lease.
    fn count(&mut self, more: i64) {
        self.there += more;
        self.requests.metrics.nodes.set(self.there);
        if self.there == i64::from(self.config.nodes) {
            self.registered.send_if_modified(|registered| !std::mem::replace(registered, true));
        }
    }

    async fn see(&mut self, event: Event<SlimNode>) {
        match event {
            Event::ListBegins => self.nodes.iter_mut().for_each(|node| node.seen = false),
            Event::ListEnds => {
                let now = Instant::now();
                for index in 0..self.config.nodes {
                    let record = &self.nodes[index as usize];
                    if record.seen || record.busy {
                        continue;
                    }
                    if record.uid.is_some() {
                        self.is_gone(index);
                    } else {
                        self.work.insert(index, now, now);
                    }
                }
            }
            Event::Applied(node) => {
                if let Some(index) = node.metadata.name.as_deref().and_then(|name| self.config.index_of(name)) {
                    self.node_is(index, node).await;
                }
            }
            Event::Deleted(node) => {
                if let Some(index) = node.metadata.name.as_deref().and_then(|name| self.config.index_of(name))
                    && self.nodes[index as usize].uid.as_ref().is_none_or(|known| Some(known) == node.metadata.uid.as_ref())
                {
                    self.is_gone(index);
                }
            }
        }
    }

    /// The API shows a Node.
    async fn node_is(&mut self, index: u32, node: SlimNode) {
        let now = Instant::now();
        let (asked, wrong) = AskedFaults::of(node.metadata.annotations.as_ref());
        self.nodes[index as usize].seen = true;
        // The answer to our own request will say so.
        let is_being_made = self.nodes[index as usize].busy && self.nodes[index as usize].uid.is_none();
        if node.metadata.deletion_timestamp.is_none() && !is_being_made {
            let known = self.nodes[index as usize].uid.is_some();
            self.is_there(index, node.metadata.uid.clone().unwrap_or_default(), false);
            if !known {
                let beat = now + self.phase(index, STATUS_INTERVAL, "status");
                self.work.insert(index, beat, beat);
            }
        }
        self.ask(index, asked, wrong).await;
        self.nodes[index as usize].met = true;
        let server = node.into_node();
        let record = &mut self.nodes[index as usize];
        let ours = self.config.node(index, Timestamp::now());
        if needs_repair(&ours, &server) || (self.config.kubelet.is_some() && kubelet_of(&ours) != kubelet_of(&server)) {
            record.deviates = Some(Box::new(server));
            // Who is late with its lease is with the rest, too: a status is a sign of life like a renewal.
            if !record.busy && record.failures == 0 && record.late().is_zero() {
                self.work.insert(index, now, now);
            }
        } else {
            record.deviates = None;
        }
    }
}

/// Where the API server looks for the node's kubelet API.
fn kubelet_of(node: &Node) -> Option<(Option<&str>, i32)> {
    let status = node.status.as_ref()?;
    let address = status.addresses.iter().flatten().find(|address| address.type_ == "InternalIP");
    let port = status.daemon_endpoints.as_ref()?.kubelet_endpoint.as_ref()?.port;
    Some((address.map(|address| address.address.as_str()), port))
}

/// Says that the node's status is as it was.
fn heartbeat(ours: &Node, uid: &str) -> Value {
    let conditions = ours.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let beats: Vec<_> = conditions.map(|own| json!({ "type": own.type_, "lastHeartbeatTime": own.last_heartbeat_time })).collect();
    json!({ "metadata": { "uid": uid }, "status": { "conditions": beats } })
}

#[cfg(test)]
#[path = "nodes_tests.rs"]
mod tests;
