//! Watches of what gates ask for: only what a gate asks for is watched, and each of it once.

use super::{
    facts,
    http::follow_answers,
    hub::{Hub, Known},
};
use crate::{
    gate::{follow, keep},
    observe::{PAGE, WATCH_SECONDS},
};
use k8s_openapi::api::{core::v1::Pod, discovery::v1::EndpointSlice};
use kube::{
    Api, Client, ResourceExt as _,
    api::DynamicObject,
    core::GroupVersionKind,
    discovery::{ApiResource, Scope, pinned_kind},
    runtime::watcher::{self, Event},
};
use planner::{
    gate::world::{Key, PodSource, Source},
    pod_gate::world::{Conditions, ObjectKey, Target},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::Semaphore,
    task::{AbortHandle, JoinSet},
};

/// How often a kind is looked for again that the API server does not know: what it does not serve cannot be watched for.
const KIND_AGAIN: Duration = Duration::from_secs(15);
/// HTTP servers that are asked at once.
const ASKED_AT_ONCE: usize = 64;
/// Label of the slices of a Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// The watches and probes under way.
pub struct Sources {
    client: Client,
    hub: Arc<Hub>,
    tasks: JoinSet<()>,
    pods: BTreeMap<PodSource, AbortHandle>,
    services: BTreeMap<Key, AbortHandle>,
    objects: BTreeMap<ObjectKey, AbortHandle>,
    answers: BTreeMap<Target, AbortHandle>,
    asking: Arc<Semaphore>,
}

impl Sources {
    /// None yet.
    pub fn new(client: Client, hub: Arc<Hub>) -> Self {
        Self {
            client,
            hub,
            tasks: JoinSet::new(),
            pods: BTreeMap::new(),
            services: BTreeMap::new(),
            objects: BTreeMap::new(),
            answers: BTreeMap::new(),
            asking: Arc::new(Semaphore::new(ASKED_AT_ONCE)),
        }
    }

    /// Watches exactly what the gates ask for.
    pub fn adjust(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        let hub = Arc::clone(&self.hub);
        let known = &mut *hub.known();
        let wanted = known.world.wanted_pods();
        for source in keep(&mut self.pods, &wanted) {
            known.replace(&source, BTreeMap::new());
            known.world.pod_sources.remove(&source);
        }
        for source in missing(&self.pods, wanted) {
            known.world.pod_sources.insert(source.clone(), Source::default());
            let task = self.tasks.spawn(follow_pods(self.client.clone(), Arc::clone(&hub), source.clone()));
            self.pods.insert(source, task);
        }
        let wanted = known.world.wanted_services();
        settle(&mut self.services, &mut known.world.services, wanted, |key| {
            self.tasks.spawn(follow_service(self.client.clone(), Arc::clone(&hub), key))
        });
        let wanted = known.world.wanted_objects();
        settle(&mut self.objects, &mut known.world.objects, wanted, |key| {
            self.tasks.spawn(follow_object(self.client.clone(), Arc::clone(&hub), key))
        });
        self.adjust_answers(&hub, known);
    }

    /// Asks exactly the HTTP servers that the pods of gates need.
    pub fn adjust_asked(&mut self) {
        let hub = Arc::clone(&self.hub);
        let known = &mut *hub.known();
        self.adjust_answers(&hub, known);
    }

    fn adjust_answers(&mut self, hub: &Arc<Hub>, known: &mut Known) {
        let wanted = known.world.wanted_answers();
        settle(&mut self.answers, &mut known.world.answers, wanted, |target| {
            self.tasks.spawn(follow_answers(Arc::clone(hub), Arc::clone(&self.asking), target))
        });
    }
}

/// A task, and what it has found, for exactly what is wanted.
fn settle<K: Ord + Clone, T>(
    tasks: &mut BTreeMap<K, AbortHandle>,
    sources: &mut BTreeMap<K, Source<T>>,
    wanted: BTreeSet<K>,
    mut start: impl FnMut(K) -> AbortHandle,
) where
    Source<T>: Default,
{
    for key in keep(tasks, &wanted) {
        sources.remove(&key);
    }
    for key in missing(tasks, wanted) {
        sources.insert(key.clone(), Source::default());
        tasks.insert(key.clone(), start(key));
    }
}

fn missing<K: Ord>(tasks: &BTreeMap<K, AbortHandle>, wanted: BTreeSet<K>) -> Vec<K> {
    wanted.into_iter().filter(|key| !tasks.contains_key(key)).collect()
}

fn config() -> watcher::Config {
    watcher::Config::default().timeout(WATCH_SECONDS).page_size(PAGE)
}

async fn follow_pods(client: Client, hub: Arc<Hub>, source: PodSource) {
    let api: Api<Pod> = Api::namespaced(client, &source.namespace);
    let mut listing = BTreeMap::new();
    let seen = |event: Event<Pod>| {
        let changed = match event {
            Event::Init => {
                listing.clear();
                return;
            }
            Event::InitApply(pod) => {
                listing.extend([facts::pod(pod)]);
                return;
            }
            Event::InitDone => {
                let mut known = hub.known();
                let changed = known.replace(&source, std::mem::take(&mut listing));
                if let Some(source) = known.world.pod_sources.get_mut(&source) {
                    source.found = Some(());
                }
                changed
            }
            Event::Apply(pod) => {
                let (key, pod) = facts::pod(pod);
                let news = hub.known().insert(&source, key.clone(), pod);
                news.then_some(key).into_iter().collect()
            }
            Event::Delete(pod) => {
                let (key, _) = facts::pod(pod);
                // A pod that another gate still selects is seen otherwise by this one.
                hub.known().remove(&source, &key);
                BTreeSet::from([key])
            }
        };
        if !changed.is_empty() {
            hub.tell(|news| news.pods.extend(changed));
        }
    };
    let broken = |broken: Option<String>| {
        let mut known = hub.known();
        let Some(source) = known.world.pod_sources.get_mut(&source) else { return };
        let changed = source.broken.is_some() != broken.is_some();
        if changed && let Some(why) = &broken {
            tracing::warn!(why, "the pods of a readiness gate cannot be seen; their conditions stay as they are");
        }
        source.broken = broken;
        drop(known);
        if changed {
            hub.tell(|news| news.sight = true);
        }
    };
    follow(api, config().labels(&source.selector.to_string()), seen, broken).await;
}

async fn follow_service(client: Client, hub: Arc<Hub>, key: Key) {
    let api: Api<EndpointSlice> = Api::namespaced(client, &key.0);
    let mut slices: BTreeMap<String, usize> = BTreeMap::new();
    let seen = |event: Event<EndpointSlice>| {
        match event {
            Event::Init => {
                slices.clear();
                return;
            }
            Event::InitApply(slice) => {
                slices.insert(slice.name_any(), facts::ready_endpoints(&slice));
                return;
            }
            Event::InitDone => {}
            Event::Apply(slice) => slices.extend([(slice.name_any(), facts::ready_endpoints(&slice))]),
            Event::Delete(slice) => slices.retain(|name, _| *name != slice.name_any()),
        }
        hub.service(&key, Ok(slices.values().sum()));
    };
    let broken = |broken: Option<String>| {
        if let Some(why) = broken {
            hub.service(&key, Err(format!("endpoints of Service {} cannot be seen: {why}", key.1)));
        } else {
            let last = hub.known().world.services.get(&key).and_then(|source| source.found);
            if let Some(last) = last {
                hub.service(&key, Ok(last));
            }
        }
    };
    follow(api, config().labels(&format!("{SERVICE_LABEL}={}", key.1)), seen, broken).await;
}

async fn follow_object(client: Client, hub: Arc<Hub>, key: ObjectKey) {
    let resource = loop {
        match find_kind(&client, &key).await {
            Ok(found) => break found,
            Err(why) => hub.object(&key, Err(format!("kind {} of {} cannot be found: {why}", key.kind, key.api_version))),
        }
        tokio::time::sleep(KIND_AGAIN).await;
    };
    let api: Api<DynamicObject> = match &resource {
        (resource, Scope::Namespaced) => Api::namespaced_with(client, &key.namespace, resource),
        (resource, Scope::Cluster) => Api::all_with(client, resource),
    };
    let mut found: Option<Conditions> = None;
    let seen = |event: Event<DynamicObject>| {
        match event {
            Event::Init => {
                found = None;
                return;
            }
            Event::InitApply(object) => {
                found = Some(facts::conditions(&object));
                return;
            }
            Event::InitDone => {}
            Event::Apply(object) => found = Some(facts::conditions(&object)),
            Event::Delete(_) => found = None,
        }
        hub.object(&key, Ok(found.clone()));
    };
    let broken = |broken: Option<String>| {
        if let Some(why) = broken {
            hub.object(&key, Err(format!("{} {} cannot be seen: {why}", key.kind, key.name)));
        } else {
            let last = hub.known().world.objects.get(&key).and_then(|source| source.found.clone());
            if let Some(last) = last {
                hub.object(&key, Ok(last));
            }
        }
    };
    follow(api, config().fields(&format!("metadata.name={}", key.name)), seen, broken).await;
}

async fn find_kind(client: &Client, key: &ObjectKey) -> Result<(ApiResource, Scope), String> {
    let (group, version) = key.api_version.split_once('/').unwrap_or(("", &key.api_version));
    let kind = GroupVersionKind::gvk(group, version, &key.kind);
    let (resource, capabilities) = pinned_kind(client, &kind).await.map_err(|error| error.to_string())?;
    Ok((resource, capabilities.scope))
}
