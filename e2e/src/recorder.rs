//! Watches the API and keeps every change, in the order in which the API server made them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use chrono::Utc;
use crds::names;
use futures::StreamExt;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, WatchEvent, WatchParams},
};
use tokio::{sync::broadcast, task::JoinSet};

use crate::{
    auditor::{Kind, Observation},
    eventually::eventually,
};

/// How soon a watch that broke, or a kind that does not exist yet, is tried again.
const RETRY: Duration = Duration::from_millis(200);
/// How long the API server may take to show the recorder what a list shows.
const SETTLE: Duration = Duration::from_secs(20);
/// Observations that a slow reader of the live view may be behind.
const LIVE_BUFFER: usize = 65_536;

/// A running recorder. Dropping it stops it.
pub struct Recorder {
    client: Client,
    shared: Arc<Shared>,
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
        let mut tasks = JoinSet::new();
        for kind in Kind::ALL {
            tasks.spawn(follow(kind, api(client, kind), Arc::clone(&shared)));
        }
        Self { client: client.clone(), shared, _tasks: tasks }
    }

    /// What is seen from now on, as it comes in. Kinds overtake each other by a little; only
    /// [`Recorder::history`] is in order.
    pub fn live(&self) -> broadcast::Receiver<Arc<Observation>> {
        self.shared.live.subscribe()
    }

    /// Everything up to now, in order. First waits until all that the API server has by now was seen.
    pub async fn history(&self) -> Result<Vec<Observation>> {
        for kind in Kind::ALL {
            let what = format!("the recorder has seen every {}", kind.as_str());
            eventually(SETTLE, &what, async || self.settled(kind).await).await?;
        }
        let history = self.shared.history.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(history.gaps.is_empty(), "the recorder missed changes: {}", history.gaps.join("; "));
        Ok(history.observations.values().map(|observation| Observation::clone(observation)).collect())
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
        let history = self.shared.history.lock().unwrap_or_else(PoisonError::into_inner);
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

impl Shared {
    fn see(&self, kind: Kind, deleted: bool, mut object: DynamicObject) {
        object.metadata.managed_fields = None;
        let revision = revision_of(object.metadata.resource_version.as_deref());
        let uid = object.metadata.uid.clone().unwrap_or_default();
        let Ok(object) = serde_json::to_value(object) else { return };
        let observation = Arc::new(Observation { revision, at: Utc::now(), kind, deleted, object });
        {
            let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
            let latest = history.latest.entry((kind, uid)).or_default();
            if latest.0 >= revision {
                return;
            }
            *latest = (revision, deleted);
            history.observations.insert(revision, Arc::clone(&observation));
        }
        // Nobody has to be listening.
        let _ = self.live.send(observation);
    }

    fn gap(&self, what: String) {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).gaps.push(what);
    }

    /// Whether the kind has objects that a new list does not show: their end was missed.
    fn vanished(&self, kind: Kind, listed: &BTreeSet<String>) -> bool {
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.latest.iter().any(|((other, uid), (_, gone))| *other == kind && !gone && !listed.contains(uid))
    }
}

/// Lists once, then watches from there for ever.
async fn follow(kind: Kind, api: Api<DynamicObject>, shared: Arc<Shared>) {
    let mut first = true;
    loop {
        match follow_once(kind, &api, &shared, first).await {
            // The API server has forgotten where we were: what happened meanwhile is lost.
            Ok(()) => first = false,
            Err(error) => tracing::debug!("recorder: {}: {error:#}", kind.as_str()),
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn follow_once(kind: Kind, api: &Api<DynamicObject>, shared: &Shared, first: bool) -> Result<()> {
    let list = api.list(&ListParams::default()).await?;
    let uids = list.items.iter().filter_map(|object| object.metadata.uid.clone()).collect();
    if !first && shared.vanished(kind, &uids) {
        shared.gap(format!("the watch of {} had to begin anew", kind.as_str()));
    }
    let mut revision = list.metadata.resource_version.unwrap_or_default();
    for object in list.items {
        shared.see(kind, false, object);
    }
    loop {
        let parameters = WatchParams::default().timeout(280);
        let stream = match api.watch(&parameters, &revision).await {
            Ok(stream) => stream,
            Err(error) if is_expired(&error) => return Ok(()),
            Err(_) => {
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        let mut stream = std::pin::pin!(stream);
        while let Some(Ok(event)) = stream.next().await {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    revision = object.metadata.resource_version.clone().unwrap_or(revision);
                    shared.see(kind, false, object);
                }
                WatchEvent::Deleted(object) => {
                    revision = object.metadata.resource_version.clone().unwrap_or(revision);
                    shared.see(kind, true, object);
                }
                WatchEvent::Bookmark(bookmark) => revision = bookmark.metadata.resource_version,
                WatchEvent::Error(status) if status.code == 410 => return Ok(()),
                WatchEvent::Error(_) => break,
            }
        }
    }
}

fn is_expired(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 410)
}

fn is_unknown_kind(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

fn revision_of(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The API of a kind, in all namespaces.
pub fn api(client: &Client, kind: Kind) -> Api<DynamicObject> {
    let (group, version, plural) = match kind {
        Kind::IngressDaemonSet => (names::GROUP, names::VERSION, "ingressdaemonsets"),
        Kind::Deployment => ("apps", "v1", "deployments"),
        Kind::ReplicaSet => ("apps", "v1", "replicasets"),
        Kind::Pod => ("", "v1", "pods"),
        Kind::Node => ("", "v1", "nodes"),
        Kind::ClusterRoleBinding => ("rbac.authorization.k8s.io", "v1", "clusterrolebindings"),
    };
    let kind = GroupVersionKind::gvk(group, version, kind.as_str());
    Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&kind, plural))
}
