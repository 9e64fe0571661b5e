//! Watches of all objects that are judged.

use std::{collections::BTreeSet, time::Duration};

use crds::names;
use futures::StreamExt as _;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, WatchEvent, WatchParams},
};

use crate::Kind;

/// How soon a watch that broke, or a kind that does not exist yet, is tried again.
const RETRY: Duration = Duration::from_millis(200);
/// How long a watch lasts before it is opened again, in seconds.
const WATCH_SECONDS: u32 = 280;

/// Who is told what the watches deliver.
pub trait Sink: Sync {
    /// An object that a list showed, or that has changed.
    fn see(&self, kind: Kind, deleted: bool, object: DynamicObject);
    /// A list was made once more, because the API server had forgotten where the watch was: what happened in between is lost.
    /// `listed` are the UIDs of all objects; the objects themselves follow.
    fn began_anew(&self, kind: Kind, listed: &BTreeSet<String>);
    /// All objects of a list were seen, the first or a later one.
    fn listed(&self, _kind: Kind) {}
    /// A list failed; it is tried again.
    fn failed(&self, _kind: Kind, _error: &kube::Error) {}
    /// A watch is open: from now on changes are delivered.
    fn watching(&self, _kind: Kind) {}
    /// A watch could not be opened; it is tried again.
    fn not_watching(&self, _kind: Kind, _error: &kube::Error) {}
}

/// Lists once, then watches from there for ever; only objects with the label `labels`, where one is given.
pub async fn follow(kind: Kind, api: &Api<DynamicObject>, labels: Option<&str>, sink: &impl Sink) {
    let mut first = true;
    loop {
        match follow_once(kind, api, labels, sink, first).await {
            Ok(()) => first = false,
            Err(error) => {
                tracing::debug!(kind = kind.as_str(), %error, "list failed; trying again");
                sink.failed(kind, &error);
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Until the API server has forgotten where we were.
async fn follow_once(kind: Kind, api: &Api<DynamicObject>, labels: Option<&str>, sink: &impl Sink, first: bool) -> kube::Result<()> {
    let (mut lists, mut watches) = (ListParams::default(), WatchParams::default().timeout(WATCH_SECONDS));
    if let Some(labels) = labels {
        (lists, watches) = (lists.labels(labels), watches.labels(labels));
    }
    let list = api.list(&lists).await?;
    if !first {
        sink.began_anew(kind, &list.items.iter().filter_map(|object| object.metadata.uid.clone()).collect());
    }
    let mut revision = list.metadata.resource_version.unwrap_or_default();
    for object in list.items {
        sink.see(kind, false, object);
    }
    sink.listed(kind);
    loop {
        let stream = match api.watch(&watches, &revision).await {
            Ok(stream) => stream,
            Err(error) if is_expired(&error) => return Ok(()),
            Err(error) => {
                sink.not_watching(kind, &error);
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        sink.watching(kind);
        let mut stream = std::pin::pin!(stream);
        while let Some(Ok(event)) = stream.next().await {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    revision = object.metadata.resource_version.clone().unwrap_or(revision);
                    sink.see(kind, false, object);
                }
                WatchEvent::Deleted(object) => {
                    revision = object.metadata.resource_version.clone().unwrap_or(revision);
                    sink.see(kind, true, object);
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

/// The API server does not know the kind.
pub fn is_unknown_kind(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// The API of a kind, in all namespaces.
pub fn api(client: &Client, kind: Kind) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &resource(kind))
}

/// What the API calls a kind.
pub fn resource(kind: Kind) -> ApiResource {
    let (group, version, plural) = match kind {
        Kind::IngressDaemonSet => (names::GROUP, names::VERSION, "ingressdaemonsets"),
        Kind::Deployment => ("apps", "v1", "deployments"),
        Kind::ReplicaSet => ("apps", "v1", "replicasets"),
        Kind::Pod => ("", "v1", "pods"),
        Kind::Node => ("", "v1", "nodes"),
        Kind::ClusterRoleBinding => ("rbac.authorization.k8s.io", "v1", "clusterrolebindings"),
    };
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind.as_str()), plural)
}
