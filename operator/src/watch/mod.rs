//! Watches of the cluster become one index in memory, and that becomes the snapshot of one resource.
//!
//! Objects come from the API server and are cut down to facts as they arrive; no snapshot exists before every watch has listed once.
//! Snapshots go to [`rollout`](crate::rollout), news to whoever listens. Nothing here decides, writes, or knows who listens.

mod bounds;
mod facts;
#[cfg(test)]
mod facts_tests;
mod held;
mod index;
mod initial;
mod kinds;
mod listing;
mod partial;
mod protobuf;
mod requeue;
mod shared;
mod snapshot;
#[cfg(test)]
mod tests;
mod usage;
#[cfg(test)]
mod view_tests;

pub use bounds::read_of_metadata;
pub use facts::{fresh_since, seconds};
pub use held::texts;
pub use index::Observed;
pub use initial::be_recent;
pub use partial::Partial;
pub use requeue::RequeueSet;

use crate::{pages, spawn_scoped::spawn_scoped};
use crds::{IngressDaemonSet, UnixSeconds};
use futures::StreamExt as _;
use index::{Cut, Index, Touched};
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet},
    core::v1::{Node, Pod, Service},
};
use kube::{
    Api, Client, Resource,
    api::ListParams,
    core::{DeserializeGuard, ObjectMeta, PartialObjectMeta},
    runtime::{
        reflector::store::Writer,
        watcher::{self, Event},
    },
};
use listing::Listing;
use parking_lot::{Mutex, MutexGuard};
use planner::{
    Snapshot,
    facts::{NodeFacts, shared_spec::SpecInterner},
    spec::node_rights::NodeRights,
};
use serde::de::DeserializeOwned;
use shared::{SharedBy, SharedWork};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use usage::Usages;

/// How long a watch lasts before it is opened again, in seconds.
pub(crate) const WATCH_SECONDS: u32 = 30;

/// How many objects an answer to a list has. Each is decoded whole before it is cut down, and memory that was taken once for a
/// longer answer is not given back.
pub(crate) const PAGE: u32 = 100;

/// How many resources, and gates, an answer to a list has: a user makes them as large as the API server takes them.
pub(crate) const SMALL_PAGE: u32 = 10;

/// A resource that may be undecodable.
pub type GuardedResource = DeserializeGuard<IngressDaemonSet>;

/// What of a resource is known beside the index: that it is there.
pub type Named = PartialObjectMeta<IngressDaemonSet>;

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Our resources.
    Resources,
    /// All Nodes.
    Nodes,
    /// Per-node Deployments.
    Deployments,
    /// Their `ReplicaSets`.
    ReplicaSets,
    /// Their pods.
    Pods,
    /// Health checkers.
    DaemonSets,
    /// Services, for their node ports.
    Services,
    /// Recorded revisions of templates.
    Revisions,
}

/// Their names, in the order of the kinds.
const KINDS: [&str; 8] =
    ["ingressdaemonsets", "nodes", "deployments", "replicasets", "pods", "daemonsets", "services", "controllerrevisions"];

impl Kind {
    fn name(self) -> &'static str {
        KINDS[self as usize]
    }
}

/// Who is told what the watches show, besides the passes over resources.
pub trait Listener: Debug + Send + Sync {
    /// These Nodes came, went or say something else than before, heartbeats left aside.
    fn nodes_changed(&self, names: BTreeSet<String>);
    /// Resources came, went or changed, or all of a kind has been listed.
    fn resources_changed(&self);
}

/// The view of the cluster.
#[derive(Debug, Default)]
pub struct Observer {
    index: Mutex<Index>,
    specs: Mutex<SpecInterner>,
    /// What objects of lists take that have not ended.
    listings: Mutex<Usages>,
    listed: [AtomicBool; KINDS.len()],
    seen: [AtomicU64; KINDS.len()],
    requeue: Arc<RequeueSet>,
    listener: OnceLock<Arc<dyn Listener>>,
    node_rights: Arc<NodeRights>,
    nodes_listed: SharedWork,
    /// By namespace.
    deployments_listed: SharedBy<String>,
}

impl Observer {
    /// How long an answer may pause: the API server ends each watch before.
    pub const SILENCE: Duration = Duration::from_secs(40);

    /// One for resources that may have this written to Nodes.
    pub fn with(node_rights: NodeRights) -> Self {
        Self { node_rights: Arc::new(node_rights), ..Self::default() }
    }

    /// What resources may have written to Nodes.
    pub fn node_rights(&self) -> &NodeRights {
        &self.node_rights
    }

    /// Resources to look at again, as they change.
    pub fn requeue(&self) -> Arc<RequeueSet> {
        Arc::clone(&self.requeue)
    }

    /// Has these resources looked at again.
    pub fn wake(&self, concerns: impl Fn(&IngressDaemonSet) -> bool) {
        let resources = self.index().resources.clone();
        for ((namespace, name), _) in resources.into_iter().filter(|(_, resource)| concerns(resource)) {
            self.requeue.mark(namespace, name);
        }
    }

    /// Watches that have not listed yet.
    pub fn missing(&self) -> Vec<&'static str> {
        KINDS.into_iter().zip(&self.listed).filter(|(_, listed)| !listed.load(Ordering::Acquire)).map(|(kind, _)| kind).collect()
    }

    /// The newest resourceVersion that the watch of this kind has delivered.
    pub fn seen(&self, kind: Kind) -> u64 {
        self.seen[kind as usize].load(Ordering::Acquire)
    }

    /// The snapshot of one resource; `None` when there is no such resource, or not everything was listed.
    pub fn snapshot(&self, namespace: &str, name: &str, now: UnixSeconds, health_checker_image: &str) -> Option<Snapshot> {
        if !self.missing().is_empty() {
            return None;
        }
        snapshot::build(&self.index(), namespace, name, now, health_checker_image, &self.node_rights)
    }

    /// The resource is looked after, and its spec is not known, because it was one too many of its namespace before.
    pub fn lacks_spec(&self, namespace: &str, name: &str) -> bool {
        self.index().lacks_spec(&(namespace.to_owned(), name.to_owned()))
    }

    /// Reads such a resource anew.
    pub async fn read_spec(&self, client: &Client, namespace: &str, name: &str) -> kube::Result<()> {
        let api = Api::<GuardedResource>::namespaced(client.clone(), namespace);
        for found in api.list(&ListParams::default().fields(&format!("metadata.name={name}"))).await? {
            let uid = found.meta().uid.clone();
            let found = Cut::of(found, &mut self.specs.lock());
            let touched = {
                let mut index = self.index();
                // One that the watch has shown to be gone would stay for ever.
                let is_there = index.resources.get(&found.key).is_some_and(|known| known.metadata.uid == uid);
                if is_there { index.apply::<GuardedResource>(found) } else { Touched::Nothing }
            };
            self.notify(true);
            self.trigger(&touched);
        }
        Ok(())
    }

    /// Why a resource cannot be decoded, when it cannot.
    pub fn unreadable(&self, namespace: &str, name: &str) -> Option<String> {
        self.index().unreadable.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// From now on this one is told; there is one for each observer.
    pub fn tell(&self, listener: Arc<dyn Listener>) {
        // A second one would be a mistake of this program, which its tests find.
        let _ = self.listener.set(listener);
    }

    /// Every Node, by name.
    pub fn nodes(&self) -> Arc<BTreeMap<String, Arc<NodeFacts>>> {
        Arc::clone(&self.index().nodes)
    }

    /// One Node.
    pub fn node(&self, name: &str) -> Option<Arc<NodeFacts>> {
        self.index().nodes.get(name).cloned()
    }

    /// Every resource that can be decoded.
    pub fn resources(&self) -> Vec<Arc<IngressDaemonSet>> {
        self.index().resources.values().cloned().collect()
    }

    /// One resource, if it can be decoded.
    pub fn resource(&self, namespace: &str, name: &str) -> Option<Arc<IngressDaemonSet>> {
        self.index().resources.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// Some resource cannot be decoded.
    pub fn has_unreadable(&self) -> bool {
        !self.index().unreadable.is_empty()
    }

    /// All resources that there are, by the first 8 characters of their UID; `None` while some watch has not listed, or a resource cannot be
    /// decoded.
    pub fn present(&self) -> Option<BTreeSet<String>> {
        let all_listed = self.missing().is_empty();
        let index = self.index();
        let uids = index.resources.values().filter_map(|resource| resource.metadata.uid.as_deref());
        (all_listed && index.unreadable.is_empty()).then(|| uids.map(|uid| crds::names::uid8(uid).to_owned()).collect())
    }

    /// A Node as the API server answered: newer than what the watch has shown, which will not be taken for news then.
    pub fn learn(&self, node: Node) {
        let node = Cut::of(node, &mut self.specs.lock());
        let touched = self.index().apply(node);
        self.notify(false);
        self.trigger(&touched);
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock()
    }

    /// Lists Deployments and Nodes consistently and takes the result for the truth: the cache may be older than what
    /// another process wrote before it died.
    pub async fn relist(&self, client: &Client, namespace: &str) -> kube::Result<()> {
        let deployments = Api::<Partial<Deployment>>::namespaced(client.clone(), namespace);
        let list = async || self.list_anew(&deployments, crds::names::RESOURCE_LABEL, |key| key.0 == namespace).await;
        self.deployments_listed.of(namespace).run(list).await?;
        let nodes = Api::<Partial<Node>>::all(client.clone());
        self.nodes_listed.run(async || self.list_anew(&nodes, "", |_| true).await).await
    }

    /// The same of one kind, over the keys in `scope`.
    async fn list_anew<K>(&self, api: &Api<K>, labels: &str, scope: impl Fn(&index::Key) -> bool) -> kube::Result<()>
    where
        K: Observed + Resource + Clone + DeserializeOwned + Debug,
    {
        let (listed, news, at) = self.pages(api, labels).await?;
        let seen = self.seen(K::KIND);
        let touched = self.index().reconcile_list(&listed, news, at, seen, scope);
        self.notify(false);
        for touched in touched {
            self.trigger(&touched);
        }
        Ok(())
    }

    /// Keys of all objects of one moment, and those that the index does not know as they are. Each is cut down before the next is
    /// decoded: five thousand Nodes are 90 MiB as they are sent, and five times as much as they are decoded. What is known is let go at
    /// once: held twice until the end of the list, it was a third of the most that the operator ever had.
    async fn pages<K>(&self, api: &Api<K>, labels: &str) -> kube::Result<(BTreeSet<index::Key>, Vec<Cut<K>>, u64)>
    where
        K: Observed + Resource + Clone + DeserializeOwned + Debug,
    {
        let parameters = ListParams::default().labels(labels);
        let (mut listed, mut news) = (BTreeSet::new(), Listing::new(&self.listings));
        let take = |object: K| {
            let object = Cut::of(object, &mut self.specs.lock());
            listed.insert(object.key.clone());
            if self.index().is_news(&object) {
                news.push(object);
            }
        };
        let list = pages::pages(api, parameters, PAGE, take).await?;
        Ok((listed, news.take(), version(list.resource_version.as_deref())))
    }

    /// Follows everything, for ever, and keeps `writer`'s store of which resources there are.
    ///
    /// `client` is to have the [layers](crate::client) of every request. It must give up an answer that does not begin, or pauses
    /// for [`Observer::SILENCE`]: a connection that is gone silently would otherwise be taken for a cluster in which nothing
    /// happens.
    pub async fn follow(self: Arc<Self>, client: Client, writer: Writer<Named>) {
        let writer = Mutex::new(writer);
        let all = || watcher::Config::default().timeout(WATCH_SECONDS).page_size(PAGE);
        let ours = || all().labels(crds::names::RESOURCE_LABEL);
        let checkers = all().labels(crds::names::HEALTH_CHECKER_LABEL);
        let resources =
            Arc::clone(&self).follow_kind(Api::<GuardedResource>::all(client.clone()), all().page_size(SMALL_PAGE), move |event| {
                writer.lock().apply_watcher_event(&named(event));
            });
        let compact = protobuf::client(&client);
        tokio::join!(
            spawn_scoped(resources),
            self.watch(Api::<Partial<Node>>::all(compact.clone()), all()),
            self.watch(Api::<Partial<Deployment>>::all(client.clone()), ours()),
            self.watch(Api::<Partial<ReplicaSet>>::all(client.clone()), ours()),
            self.watch(Api::<ControllerRevision>::all(client.clone()), ours()),
            self.watch(Api::<Partial<Pod>>::all(compact), ours()),
            self.watch(Api::<DaemonSet>::all(client.clone()), checkers),
            self.watch(Api::<Service>::all(client), all()),
        );
    }

    fn watch<K>(self: &Arc<Self>, api: Api<K>, config: watcher::Config) -> impl Future<Output = ()>
    where
        K: Observed + Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        K::Kept: Send,
    {
        spawn_scoped(Arc::clone(self).follow_kind(api, config, |_| {}))
    }

    async fn follow_kind<K>(self: Arc<Self>, api: Api<K>, config: watcher::Config, mut tee: impl FnMut(&Event<K>))
    where
        K: Observed + Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let mut listing = Listing::<K>::new(&self.listings);
        let mut events = initial::events(api, config).boxed();
        while let Some(event) = events.next().await {
            let event = match event {
                Ok(event) => event,
                Err(error) => {
                    tracing::warn!(kind = K::KIND.name(), %error, "watch failed; trying again");
                    continue;
                }
            };
            tee(&event);
            match event {
                Event::Init => drop(listing.take()),
                Event::InitApply(object) => {
                    let object = Cut::of(object, &mut self.specs.lock());
                    listing.push(object);
                    listing.thin(PAGE as usize);
                }
                Event::InitDone => {
                    self.replace(listing.take());
                    self.listed[K::KIND as usize].store(true, Ordering::Release);
                    // Whichever is listed last lets gates be made.
                    self.notify(true);
                    self.trigger(&Touched::All);
                }
                Event::Apply(object) => self.apply(object),
                Event::Delete(object) => self.delete(&object),
            }
        }
    }

    /// Exactly these objects of their kind exist: a view by lists, of one moment, for those who do not [`follow`](Self::follow).
    pub fn take<K: Observed + Resource>(&self, listed: Vec<K>) {
        let listed = self.cut(listed);
        self.replace(listed);
        self.listed[K::KIND as usize].store(true, Ordering::Release);
    }

    /// No objects of resources exist, as far as anybody asks: for those who read none of them.
    pub fn take_no_objects(&self) {
        self.take::<Deployment>(Vec::new());
        self.take::<ReplicaSet>(Vec::new());
        self.take::<ControllerRevision>(Vec::new());
        self.take::<Pod>(Vec::new());
        self.take::<DaemonSet>(Vec::new());
        self.take::<Service>(Vec::new());
    }

    fn cut<K: Observed + Resource>(&self, objects: Vec<K>) -> Vec<Cut<K>> {
        let (mut specs, mut listing) = (self.specs.lock(), Listing::new(&self.listings));
        for object in objects {
            listing.push(Cut::of(object, &mut specs));
        }
        listing.take()
    }

    fn note(&self, kind: Kind, version: u64) {
        self.seen[kind as usize].fetch_max(version, Ordering::AcqRel);
    }

    fn replace<K: Observed>(&self, objects: Vec<Cut<K>>) {
        let newest = objects.iter().map(|object| object.version).max().unwrap_or(0);
        self.index().replace(objects);
        self.note(K::KIND, newest);
    }

    fn apply<K: Observed + Resource>(&self, object: K) {
        let object = Cut::of(object, &mut self.specs.lock());
        let (version, key) = (object.version, object.key.clone());
        let (touched, is_news) = {
            let mut index = self.index();
            let before = index.made_from(K::KIND, &key);
            let touched = index.apply(object);
            (touched, index.made_from(K::KIND, &key) != before)
        };
        self.notify(is_news);
        self.note(K::KIND, version);
        self.trigger(&touched);
    }

    fn delete<K: Observed + Resource>(&self, object: &K) {
        let key = index::key(object.meta());
        let touched = self.index().delete::<K>(&key);
        self.notify(K::KIND == Kind::Resources);
        self.note(K::KIND, version(object.meta().resource_version.as_deref()));
        self.trigger(&touched);
        if K::KIND == Kind::Resources {
            // Nothing is decided for it any more; this lets its memory and metrics go.
            self.requeue.mark(key.0, key.1);
        }
    }

    /// Nodes that have changed; `is_news`: resources have, too.
    fn notify(&self, is_news: bool) {
        let news = std::mem::take(&mut self.index().node_news);
        let Some(listener) = self.listener.get() else { return };
        if !news.is_empty() {
            listener.nodes_changed(news);
        }
        if is_news {
            listener.resources_changed();
        }
    }

    fn trigger(&self, touched: &Touched) {
        for (namespace, name) in self.index().resources_of(touched) {
            self.requeue.mark(namespace, name);
        }
    }
}

/// The event, of whose resource no more than the name is kept.
fn named(event: &Event<GuardedResource>) -> Event<Named> {
    let name = |resource: &GuardedResource| {
        let meta = resource.meta();
        let meta =
            ObjectMeta { name: meta.name.clone(), namespace: meta.namespace.clone(), uid: meta.uid.clone(), ..ObjectMeta::default() };
        Named { types: None, metadata: meta, _phantom: std::marker::PhantomData }
    };
    match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(resource) => Event::InitApply(name(resource)),
        Event::Apply(resource) => Event::Apply(name(resource)),
        Event::Delete(resource) => Event::Delete(name(resource)),
    }
}

/// A resourceVersion as a number: comparable within one API server since 1.35, and in fact before.
pub fn version(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}
