//! A running audit of a cluster that is in use, by the auditor of the scenarios.
//!
//! Watches of the API server and answers of health checkers (`answers.rs`) come in. A queue puts the changes in one order, and
//! `judgement.rs` judges each by what the resource promises (`expected.rs`). Violations and remarks go to `commands/audit.rs`, which
//! prints them. Begin with `RunningAudit::begin` and `RunningAudit::next`.

mod answers;
mod expected;
mod judgement;

#[cfg(test)]
mod judgement_tests;
#[cfg(test)]
mod rights_tests;

pub use expected::{expectations, loosened};
pub use judgement::{Judge, ResourceViolation};

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use answers::CheckerPorts;
use anyhow::{Result, bail};
use auditor::{
    Answer, Kind, Observation,
    order::Queue,
    watch::{self, Sink},
};
use chrono::Utc;
use crds::names;
use kube::{
    Api,
    api::{DynamicObject, ListParams, WatchParams},
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinSet,
};

use crate::{
    cluster::Cluster,
    failure::{RuleRequest, explain, is_forbidden},
};

/// How far watches may be apart.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often what has waited long enough is judged.
const TICK: Duration = Duration::from_millis(200);

/// What a watch delivers.
#[derive(Debug)]
enum Event {
    Seen(Observation),
    BeganAnew(Kind, BTreeSet<String>),
    Listed(Kind),
    Watching(Kind),
    NotWatching(Kind, String),
    /// Of a health checker of the resource whose UID begins like this.
    Heard(String, Answer),
    Remark(String),
}

struct Channel(UnboundedSender<Event>);

impl Channel {
    fn send(&self, event: Event) {
        // The receiver goes away last of all.
        let _ = self.0.send(event);
    }
}

impl Sink for Channel {
    fn see(&self, kind: Kind, deleted: bool, object: DynamicObject) {
        self.send(Event::Seen(Observation::of(kind, deleted, object)));
    }

    fn began_anew(&self, kind: Kind, listed: &BTreeSet<String>) {
        self.send(Event::BeganAnew(kind, listed.clone()));
    }

    fn listed(&self, kind: Kind) {
        self.send(Event::Listed(kind));
    }

    fn watching(&self, kind: Kind) {
        self.send(Event::Watching(kind));
    }

    fn not_watching(&self, kind: Kind, error: &kube::Error) {
        self.send(Event::NotWatching(kind, error.to_string()));
    }

    /// A watch that has to list again does not begin without its list.
    fn failed(&self, kind: Kind, error: &kube::Error) {
        self.not_watching(kind, error);
    }
}

/// How much was judged.
#[derive(Clone, Debug)]
pub struct AuditCounts {
    /// Changes of objects.
    pub changes: usize,
    /// Answers of health checkers.
    pub answers: usize,
    /// Kinds that are not watched at the end.
    pub unwatched: Vec<String>,
}

/// A running audit. Dropping it stops it.
pub struct RunningAudit {
    /// The judgement so far.
    pub judge: Judge,
    queue: Queue,
    events: UnboundedReceiver<Event>,
    /// Kinds whose watch lists anew just now.
    listing: BTreeSet<Kind>,
    /// Kinds that are not watched just now, whose changes nobody judges, and whether a remark has said why.
    unwatched: BTreeMap<Kind, bool>,
    /// Where health checkers answer.
    doors: CheckerPorts,
    /// What could not be judged, and why.
    pub remarks: Vec<String>,
    _tasks: JoinSet<()>,
}

impl RunningAudit {
    /// Begins with the objects that exist now. `name`: this resource only.
    pub async fn begin(cluster: &Cluster, name: Option<&str>) -> Result<Self> {
        let (sender, mut events) = unbounded_channel();
        let mut tasks = JoinSet::new();
        let (mut listing, mut remarks) = (BTreeSet::new(), Vec::new());
        for kind in Kind::ALL {
            let (api, labels) = api(cluster, kind);
            let refused = match api.list(&ListParams::default().limit(1)).await {
                // Who may list and not watch would be told that nothing changes.
                Ok(_) => api.watch(&WatchParams::default().timeout(1), "0").await.err().map(|error| (error, "watch")),
                Err(error) => Some((error, "list")),
            };
            match refused {
                None => {}
                Some((error, verb)) if is_forbidden(&error) && kind == Kind::ClusterRoleBinding => {
                    let request = request(cluster, kind, verb);
                    remarks.push(format!("you may not {request}: the audit does not judge whether they remain after deletion, or whether a node serves that is about to go"));
                    continue;
                }
                Some((error, verb)) => return Err(explain(error, request(cluster, kind, verb))),
            }
            let channel = Channel(sender.clone());
            listing.insert(kind);
            tasks.spawn(async move { watch::follow(kind, &api, labels, &channel).await });
        }
        let (mut queue, mut before, doors) = (Queue::new(PATIENCE), Vec::new(), CheckerPorts::default());
        let mut unwatched: BTreeMap<_, _> = listing.iter().map(|kind| (*kind, false)).collect();
        while !listing.is_empty() {
            match events.recv().await {
                Some(Event::Seen(observation)) => {
                    doors.see(&observation);
                    before.push(observation);
                }
                Some(Event::Listed(kind)) => {
                    listing.remove(&kind);
                }
                Some(Event::Watching(kind)) => {
                    unwatched.remove(&kind);
                }
                // Before its first list, nothing of it can be judged, and the right may not come back.
                Some(Event::NotWatching(kind, error)) if listing.contains(&kind) => bail!("cannot list {}: {error}", kind.as_str()),
                Some(Event::BeganAnew(..) | Event::Heard(..) | Event::Remark(_) | Event::NotWatching(..)) => {}
                None => bail!("the watches ended"),
            }
        }
        let mut judge = Judge::new(name.map(str::to_owned));
        queue.begin_at(judge.take_in(before));
        let (client, namespace, channel) = (cluster.asks_once.clone(), cluster.namespace.clone(), Channel(sender));
        let asked = doors.clone();
        tasks.spawn(async move { asked.ask(&client, &namespace, &channel).await });
        Ok(Self { judge, queue, events, listing, unwatched, doors, remarks, _tasks: tasks })
    }

    /// What was found next, after a moment at most.
    pub async fn next(&mut self) -> Vec<ResourceViolation> {
        // Nothing that was received is lost when the time is over first.
        let _ = tokio::time::timeout(TICK, async {
            while let Some(event) = self.events.recv().await {
                self.take(event);
            }
        })
        .await;
        let mut found = Vec::new();
        while let Some(next) = self.queue.next(Instant::now()) {
            found.extend(self.judge.judge(&next.observation, next.late));
        }
        found.extend(self.judge.judge_answers(Utc::now() - PATIENCE));
        found
    }

    /// The rest, when nothing is waited for any more.
    pub fn end(mut self) -> (Vec<ResourceViolation>, AuditCounts) {
        while let Ok(event) = self.events.try_recv() {
            self.take(event);
        }
        let mut found = Vec::new();
        while let Some(next) = self.queue.pop() {
            found.extend(self.judge.judge(&next.observation, next.late));
        }
        let unwatched = self.unwatched.keys().map(|kind| kind.as_str().to_owned()).collect();
        let judged = AuditCounts { changes: self.judge.judged, answers: self.judge.heard, unwatched };
        found.extend(self.judge.end());
        (found, judged)
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Seen(observation) => {
                self.doors.see(&observation);
                let late = self.listing.contains(&observation.kind);
                self.queue.push(observation, late, Instant::now());
            }
            Event::BeganAnew(kind, listed) => {
                self.remarks.push(format!("the watch of {} restarted: the audit does not judge changes in between", kind.as_str()));
                self.listing.insert(kind);
                self.judge.retain(kind, &listed);
            }
            Event::Listed(kind) => {
                self.listing.remove(&kind);
            }
            Event::Watching(kind) => {
                self.unwatched.remove(&kind);
            }
            Event::NotWatching(kind, error) => {
                if self.unwatched.insert(kind, true) != Some(true) {
                    self.remarks.push(format!("cannot watch {}: {error}; the audit does not judge changes meanwhile", kind.as_str()));
                }
            }
            Event::Heard(resource, answer) => self.judge.hear(&resource, answer),
            Event::Remark(remark) => self.remarks.push(remark),
        }
    }
}

/// Where a kind is watched, and by which label.
fn api(cluster: &Cluster, kind: Kind) -> (Api<DynamicObject>, Option<&'static str>) {
    let resource = watch::resource(kind);
    let client = cluster.client.clone();
    match kind {
        Kind::Node | Kind::ClusterRoleBinding => (Api::all_with(client, &resource), None),
        Kind::IngressDaemonSet => (Api::namespaced_with(client, &cluster.namespace, &resource), None),
        Kind::Deployment | Kind::ReplicaSet | Kind::Pod => {
            (Api::namespaced_with(client, &cluster.namespace, &resource), Some(names::RESOURCE_LABEL))
        }
    }
}

fn request<'a>(cluster: &'a Cluster, kind: Kind, verb: &'a str) -> RuleRequest<'a> {
    let namespace = Some(cluster.namespace.as_str());
    match kind {
        Kind::IngressDaemonSet => RuleRequest::ours(verb, &cluster.namespace),
        Kind::Deployment => RuleRequest::of(verb, "apps", "deployments", namespace),
        Kind::ReplicaSet => RuleRequest::of(verb, "apps", "replicasets", namespace),
        Kind::Pod => RuleRequest::of(verb, "", "pods", namespace),
        Kind::Node => RuleRequest::nodes(verb),
        Kind::ClusterRoleBinding => RuleRequest::of(verb, "rbac.authorization.k8s.io", "clusterrolebindings", None),
    }
}
