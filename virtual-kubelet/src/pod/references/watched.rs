//! What pods refer to, kept up to date by watches.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Debug;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::serde::de::DeserializeOwned;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::{ApiReferences, ReferenceSource};
use crate::api_call::{ApiCallError, Recoveries};
use crate::reopening_watch;

/// How long an object is watched that nobody asks for. Longer than pods wait between two tries, so that what a pod waits for
/// wakes it.
const UNUSED_AFTER: Duration = Duration::from_mins(10);

/// The API server, with watches of what was asked for: an object is read once, pods that come later get it from memory, and one that a
/// pod waits for starts it as soon as it is there. Copies of Secrets are kept for ten minutes after they were last asked for.
///
/// Needs the rights to list and watch `ConfigMaps`, Secrets and Services, each by name as the Node authorizer grants them,
/// except for Services. Where they are missing everything is read each time, as by [`ApiReferences`].
///
/// ```no_run
/// # use std::sync::Arc;
/// # use virtual_kubelet::pod::PodControllerConfig;
/// use virtual_kubelet::pod::references::WatchedReferences;
///
/// # fn example<P>(config: &mut PodControllerConfig<P>) {
/// config.references = Arc::new(WatchedReferences::new(config.client.clone(), config.recoveries.clone()));
/// # }
/// ```
pub struct WatchedReferences {
    reader: ApiReferences,
    watcher: Watcher,
    config_maps: Watched<ConfigMap>,
    secrets: Watched<Secret>,
    services: Watched<Service>,
}

struct Watcher {
    client: Client,
    recoveries: Recoveries,
    changes: watch::Sender<u64>,
}

/// Objects by namespace and name, or all of a namespace.
type Watched<K> = Mutex<HashMap<(String, Option<String>), Kept<K>>>;

/// All of them, once they have been listed.
type Listed<K> = Option<BTreeMap<String, K>>;

struct Kept<K> {
    /// The watch ends with it.
    objects: watch::Receiver<Listed<K>>,
    used: Instant,
}

impl WatchedReferences {
    /// Asks with this client; `recoveries` are those of the controller, so that its watches are opened anew with the others.
    pub fn new(client: Client, recoveries: Recoveries) -> Self {
        let reader = ApiReferences::new(client.clone());
        let watcher = Watcher { client, recoveries, changes: watch::Sender::new(0) };
        Self { reader, watcher, config_maps: Mutex::default(), secrets: Mutex::default(), services: Mutex::default() }
    }
}

impl Watcher {
    /// What `read` makes of the objects, if they are known; otherwise their watch begins.
    fn look<K, T>(
        &self,
        watched: &Watched<K>,
        namespace: &str,
        name: Option<&str>,
        read: impl FnOnce(&BTreeMap<String, K>) -> T,
    ) -> Option<T>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Keyed + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        let mut watched = watched.lock();
        let now = Instant::now();
        watched.retain(|_, kept| now.duration_since(kept.used) < UNUSED_AFTER);
        let kept = watched.entry((namespace.to_owned(), name.map(str::to_owned))).or_insert_with(|| {
            let config =
                name.map_or_else(watcher::Config::default, |name| watcher::Config::default().fields(&format!("metadata.name={name}")));
            let events = reopening_watch::open(Api::<K>::namespaced(self.client.clone(), namespace), config, &self.recoveries);
            let (sender, objects) = watch::channel(None);
            tokio::spawn(keep(events, sender, self.changes.clone()));
            Kept { objects, used: now }
        });
        kept.used = now;
        kept.objects.borrow().as_ref().map(read)
    }
}

/// What of an object can be missing.
trait Keyed {
    fn keys(&self) -> BTreeSet<&str>;
}

impl Keyed for ConfigMap {
    fn keys(&self) -> BTreeSet<&str> {
        self.data.iter().flatten().map(|(key, _)| key.as_str()).collect()
    }
}

impl Keyed for Secret {
    fn keys(&self) -> BTreeSet<&str> {
        self.data.iter().flatten().map(|(key, _)| key.as_str()).collect()
    }
}

impl Keyed for Service {
    fn keys(&self) -> BTreeSet<&str> {
        BTreeSet::new()
    }
}

/// Whether somebody may have waited for it. Values that change often are no reason to try again as often.
fn is_news<K: Keyed>(before: Option<&K>, now: &K) -> bool {
    before.is_none_or(|before| !now.keys().is_subset(&before.keys()))
}

/// Keeps the objects as the watch tells them, for as long as somebody may ask.
async fn keep<K: Resource + Keyed>(mut events: mpsc::Receiver<Event<K>>, objects: watch::Sender<Listed<K>>, changes: watch::Sender<u64>) {
    let mut listing = BTreeMap::new();
    loop {
        let event = tokio::select! {
            () = objects.closed() => return,
            event = events.recv() => event,
        };
        let mut news = false;
        match event {
            Some(Event::Init) => listing.clear(),
            Some(Event::InitApply(object)) => drop(listing.insert(object.name_any(), object)),
            Some(Event::InitDone) => {
                news = !listing.is_empty();
                objects.send_replace(Some(std::mem::take(&mut listing)));
            }
            Some(Event::Apply(object)) => objects.send_modify(|all| {
                let all = all.get_or_insert_default();
                news = is_news(all.get(&object.name_any()), &object);
                all.insert(object.name_any(), object);
            }),
            Some(Event::Delete(object)) => objects.send_modify(|all| drop(all.get_or_insert_default().remove(&object.name_any()))),
            // Only when the runtime ends.
            None => return,
        }
        if news {
            changes.send_modify(|count| *count += 1);
        }
    }
}

impl ReferenceSource for WatchedReferences {
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<ConfigMap>, ApiCallError>> {
        match self.watcher.look(&self.config_maps, namespace, Some(name), |all| all.get(name).cloned()) {
            Some(found) => Box::pin(async { Ok(found) }),
            None => self.reader.config_map(namespace, name),
        }
    }

    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<Secret>, ApiCallError>> {
        match self.watcher.look(&self.secrets, namespace, Some(name), |all| all.get(name).cloned()) {
            Some(found) => Box::pin(async { Ok(found) }),
            None => self.reader.secret(namespace, name),
        }
    }

    fn services<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<Vec<Service>, ApiCallError>> {
        let Some(mut found) = self.watcher.look(&self.services, namespace, None, |all| all.values().cloned().collect::<Vec<_>>()) else {
            return self.reader.services(namespace);
        };
        Box::pin(async move {
            if namespace != "default" {
                found.extend(self.service("default", "kubernetes").await?);
            }
            Ok(found)
        })
    }

    fn service<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<Service>, ApiCallError>> {
        match self.watcher.look(&self.services, namespace, Some(name), |all| all.get(name).cloned()) {
            Some(found) => Box::pin(async { Ok(found) }),
            None => self.reader.service(namespace, name),
        }
    }

    fn changes(&self) -> Option<watch::Receiver<u64>> {
        Some(self.watcher.changes.subscribe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_objects_and_new_keys_are_news() {
        let map = |data: &[(&str, &str)]| ConfigMap {
            data: Some(data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()),
            ..ConfigMap::default()
        };
        assert!(is_news(None, &map(&[])));
        assert!(is_news(Some(&map(&[("a", "1")])), &map(&[("a", "1"), ("b", "1")])));
        assert!(!is_news(Some(&map(&[("a", "1"), ("b", "1")])), &map(&[("a", "2")])));
    }
}
