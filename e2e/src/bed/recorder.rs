//! Watches the API and keeps every change, in the order in which the API server made them; and what health checkers answer.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use kube::{
    Client,
    api::{DynamicObject, ListParams},
};
use parking_lot::Mutex;
use tokio::{sync::broadcast, task::JoinSet, time::timeout};

pub use crate::auditor::watch::api;
use crate::{
    auditor::{
        Answer, Audit, AuditReport, Expectations, Kind, Observation, Property, Violation, audit,
        order::Queue,
        revision_of,
        watch::{self, Sink, is_unknown_kind},
    },
    bed::listener::Listener,
    eventually::eventually,
};

/// How long the API server may take to show the recorder what a list shows.
const SETTLE: Duration = Duration::from_mins(1);
/// How far kinds may be apart where they are judged as they come in.
const IN_ORDER: Duration = Duration::from_secs(5);
/// How often they are.
const TICK: Duration = Duration::from_millis(500);
/// Observations that a slow reader of the live view may be behind.
const LIVE_BUFFER: usize = 65_536;

/// A running recorder. Dropping it stops it.
pub struct Recorder {
    client: Client,
    shared: Arc<Shared>,
    listener: Listener,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    history: Mutex<History>,
    live: broadcast::Sender<Arc<Observation>>,
}

#[derive(Debug, Default)]
struct History {
    observations: BTreeMap<u64, Arc<Observation>>,
    /// Newest revision of each object, also of one that is gone.
    latest: BTreeMap<(Kind, String), (u64, bool)>,
    gaps: Vec<String>,
}

impl Recorder {
    /// Starts watching.
    pub fn start(client: &Client) -> Self {
        let (live, _) = broadcast::channel(LIVE_BUFFER);
        let shared = Arc::new(Shared { history: Mutex::default(), live });
        // Before the first list, or nodes would be missed.
        let listener = Listener::start(shared.live.subscribe());
        let mut tasks = JoinSet::new();
        for kind in Kind::ALL {
            let (api, shared) = (api(client, kind), Arc::clone(&shared));
            tasks.spawn(async move { watch::follow(kind, &api, None, &*shared).await });
        }
        Self { client: client.clone(), shared, listener, _tasks: tasks }
    }

    /// What is seen from now on, as it comes in. Kinds overtake each other by a little; only
    /// [`Recorder::history`] is in order.
    pub fn live(&self) -> broadcast::Receiver<Arc<Observation>> {
        self.shared.live.subscribe()
    }

    /// What health checkers have answered up to now, in order.
    pub fn answers(&self) -> Vec<Answer> {
        self.listener.answers_from(0)
    }

    /// What the auditor says of everything up to now.
    pub async fn judge(&self, expected: &Expectations) -> Result<AuditReport> {
        let answers = self.answers();
        Ok(audit(&self.history().await?, answers, expected))
    }

    /// The same of what came after the first `from` observations: to those before others were held, and health checkers are left out.
    pub async fn judge_since(&self, from: usize, expected: &Expectations) -> Result<AuditReport> {
        let mut audit = Audit::new(expected);
        for (place, observation) in self.history().await?.iter().enumerate() {
            if place < from { audit.take_in(observation) } else { audit.observe(observation) }
        }
        Ok(audit.finish())
    }

    /// Judges what comes in, and ends at the first violation. A kind that lags too far behind the others ends the judgement: then it is for
    /// [`Recorder::judge`], which has everything in order.
    pub fn first_violation(&self, expected: Expectations) -> impl Future<Output = Violation> + use<> {
        let (mut live, heard) = (self.live(), self.listener.clone());
        // What comes in from now on may be in both.
        let history = self.shared.history.lock();
        let before: Vec<_> = history.observations.values().cloned().collect();
        drop(history);
        async move {
            let (mut audit, mut queue, mut answers) = (Audit::owned(expected.except(Property::History)), Queue::new(IN_ORDER), 0);
            for observation in before {
                queue.push(Observation::clone(&observation), false, Instant::now());
            }
            loop {
                let more = timeout(TICK, async {
                    while let Ok(observation) = live.recv().await {
                        queue.push(Observation::clone(&observation), false, Instant::now());
                    }
                });
                if more.await.is_ok() {
                    return pending().await;
                }
                let new = heard.answers_from(answers);
                answers += new.len();
                for answer in new {
                    audit.hear(answer);
                }
                while let Some(next) = queue.next(Instant::now()) {
                    if next.late {
                        return pending().await;
                    }
                    audit.observe(&next.observation);
                }
                if let Some(violation) = audit.take_violations().into_iter().next() {
                    return violation;
                }
            }
        }
    }

    /// Everything up to now, in order. First waits until all that the API server has by now was seen.
    pub async fn history(&self) -> Result<Vec<Observation>> {
        for kind in Kind::ALL {
            let what = format!("the recorder has seen every {}", kind.as_str());
            // What was missed will not be seen by waiting.
            self.complete()?;
            eventually(SETTLE, &what, async || self.settled(kind).await).await?;
        }
        self.complete()?;
        let history = self.shared.history.lock();
        Ok(history.observations.values().map(|observation| Observation::clone(observation)).collect())
    }

    fn complete(&self) -> Result<()> {
        let history = self.shared.history.lock();
        ensure!(history.gaps.is_empty(), "the recorder missed changes: {}", history.gaps.join("; "));
        Ok(())
    }

    async fn settled(&self, kind: Kind) -> Result<()> {
        let list = match api(&self.client, kind).list(&ListParams::default()).await {
            Err(error) if is_unknown_kind(&error) => return Ok(()),
            other => other.with_context(|| format!("listing every {}", kind.as_str()))?,
        };
        let now = revision_of(list.metadata.resource_version.as_deref());
        let listed: BTreeMap<_, _> = list
            .items
            .iter()
            .filter_map(|object| Some((object.metadata.uid.clone()?, revision_of(object.metadata.resource_version.as_deref()))))
            .collect();
        let history = self.shared.history.lock();
        for (uid, revision) in &listed {
            let seen = history.latest.get(&(kind, uid.clone())).map_or(0, |(seen, _)| *seen);
            ensure!(seen >= *revision, "{} {uid} was seen at {seen}, it is at {revision}", kind.as_str());
        }
        for ((other, uid), (revision, gone)) in &history.latest {
            let missed = *other == kind && !gone && *revision <= now && !listed.contains_key(uid);
            ensure!(!missed, "{} {uid} is gone, which was not seen yet", kind.as_str());
        }
        Ok(())
    }
}

impl Sink for Shared {
    fn see(&self, kind: Kind, deleted: bool, object: DynamicObject) {
        let uid = object.metadata.uid.clone().unwrap_or_default();
        let observation = Arc::new(Observation::of(kind, deleted, object));
        {
            let mut history = self.history.lock();
            let latest = history.latest.entry((kind, uid)).or_default();
            if latest.0 >= observation.revision {
                return;
            }
            *latest = (observation.revision, deleted);
            history.observations.insert(observation.revision, Arc::clone(&observation));
        }
        // Nobody has to be listening.
        let _ = self.live.send(observation);
    }

    /// The end of an object that a new list does not show was missed.
    fn began_anew(&self, kind: Kind, listed: &BTreeSet<String>) {
        let mut history = self.history.lock();
        if history.latest.iter().any(|((other, uid), (_, gone))| *other == kind && !gone && !listed.contains(uid)) {
            history.gaps.push(format!("the watch of {} had to begin anew", kind.as_str()));
        }
    }
}
