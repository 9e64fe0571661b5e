//! What the loop of gates and the passes over resources tell each other, inside one process.

use super::{news::ChangeQueue, pod_state::PodGateState};
use crate::watch::{Listener, Observer};
use crds::NodeReadinessGateStatus;
use k8s_openapi::api::core::v1::ConfigMap;
use parking_lot::{Mutex, MutexGuard};
use planner::{
    gates_shared::{Key, ReplicaHealth},
    node_gates::{Gate, GateLinks, World},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// The meeting point.
#[derive(Debug, Default)]
pub struct GateState {
    news: ChangeQueue<Changes>,
    world: Mutex<World>,
    judged: AtomicBool,
    links: Mutex<Option<BTreeMap<Key, GateLinks>>>,
    unreadable: Mutex<BTreeMap<&'static str, String>>,
    statuses: Mutex<BTreeMap<Key, NodeReadinessGateStatus>>,
    compat: Mutex<CompatGates>,
    pods: Arc<PodGateState>,
}

/// Gates that come neither from `NodeReadinessGates` nor from `IngressDaemonSets`.
#[derive(Clone, Debug, Default)]
pub struct CompatGates {
    /// A `ConfigMap` is asked for that was neither read nor refused yet.
    pub awaited: bool,
    /// It cannot be read, and what it said before is not known: records of its gate stay.
    pub unreadable: bool,
    /// The gate of the `ConfigMap`, as it could be read last.
    pub config_map: Option<Gate>,
    /// The `ConfigMap` itself, without what it says: events are about it.
    pub config_map_object: Option<Box<ConfigMap>>,
    /// The gate that is built in.
    pub preset: Option<Gate>,
}

/// What has changed since the last look.
#[derive(Debug, Default, PartialEq)]
pub struct Changes {
    /// These nodes.
    pub nodes: BTreeSet<String>,
    /// A gate: every node is looked at, after those above.
    pub all: bool,
    /// What gates are made from.
    pub gates: bool,
}

impl Listener for GateState {
    fn nodes_changed(&self, names: BTreeSet<String>) {
        self.pods.nodes(names.iter().cloned());
        self.nodes(names);
    }

    fn resources_changed(&self) {
        self.gates();
    }
}

impl GateState {
    /// Nothing is known yet. From now on it hears what the observer sees.
    pub fn of(observer: &Observer) -> Arc<Self> {
        let state = Arc::new(Self::default());
        observer.tell(Arc::clone(&state) as Arc<dyn Listener>);
        state
    }

    /// Where readiness gates of pods meet what is seen here.
    pub fn pods(&self) -> Arc<PodGateState> {
        Arc::clone(&self.pods)
    }

    /// Something about these nodes has changed.
    pub fn nodes(&self, names: impl IntoIterator<Item = String>) {
        self.news.tell(|news| {
            if self.news.is_heard() {
                news.nodes.extend(names);
            } else {
                news.all = true;
            }
        });
    }

    /// Something that concerns every node has changed.
    pub fn every_node(&self) {
        self.news.tell(|news| news.all = true);
    }

    /// What gates are made from has changed.
    pub fn gates(&self) {
        self.pods.resources();
        self.news.tell(|news| news.gates = true);
    }

    /// What has changed; waits until there is something.
    pub async fn changes(&self) -> Changes {
        self.news.take().await
    }

    /// The world, for whoever changes it: whether gates can ever open is judged anew.
    pub(crate) fn changing_world(&self) -> MutexGuard<'_, World> {
        let world = self.world.lock();
        self.judged.store(false, Ordering::Release);
        world
    }

    /// Whether gates are to be judged anew: asked once for each change.
    pub(crate) fn is_unjudged(&self) -> bool {
        !self.judged.swap(true, Ordering::AcqRel)
    }

    /// What is known of everything but Nodes.
    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock()
    }

    /// Gates from elsewhere.
    pub(crate) fn compat(&self) -> CompatGates {
        self.compat.lock().clone()
    }

    /// Changes the gates from elsewhere.
    pub(crate) fn change_compat(&self, change: impl FnOnce(&mut CompatGates)) {
        change(&mut self.compat.lock());
        self.gates();
    }

    /// The replicas of a resource, as its pass sees them.
    pub fn replicas(&self, key: &Key, replicas: BTreeMap<String, ReplicaHealth>) {
        let mut world = self.world();
        let before = world.replicas.insert(key.clone(), Arc::default()).unwrap_or_default();
        let differs = |name: &&String| before.get(*name) != replicas.get(*name);
        let changed: Vec<_> = before.keys().chain(replicas.keys()).filter(differs).cloned().collect();
        let replicas = Arc::new(replicas);
        world.replicas.insert(key.clone(), Arc::clone(&replicas));
        drop(world);
        self.pods.replicas(key, &replicas);
        if !changed.is_empty() {
            self.nodes(changed);
        }
    }

    /// Why gates of a kind cannot be listed, as long as they never were: nobody waits for them. Whether that is news.
    pub(crate) fn cannot_list(&self, kind: &'static str, why: Option<String>) -> bool {
        let mut known = self.unreadable.lock();
        let before = known.get(kind).cloned();
        let is_news = before != why;
        match why {
            Some(why) => known.insert(kind, why),
            None => known.remove(kind),
        };
        is_news
    }

    /// How gates bear on a resource whose pods have these labels; `None` until they are known.
    pub fn links(&self, namespace: &str, name: &str, labels: &serde_json::Value) -> Option<GateLinks> {
        let of_nodes =
            self.links.lock().as_ref().map(|links| links.get(&(namespace.to_owned(), name.to_owned())).cloned().unwrap_or_default());
        let unreadable: Vec<_> = self.unreadable.lock().values().cloned().collect();
        if !unreadable.is_empty() {
            // Gates of nodes that are known go on asking for replicas.
            return Some(GateLinks { unreadable: Some(unreadable.join(", ")), ..of_nodes.unwrap_or_default() });
        }
        self.pods.links(of_nodes?, namespace, labels)
    }

    /// Notes how gates bear on resources; returns the resources for which that has changed, or nothing where all have waited for it.
    pub(crate) fn link(&self, links: BTreeMap<Key, GateLinks>) -> Option<BTreeSet<Key>> {
        let mut known = self.links.lock();
        let before = known.replace(links)?;
        let after = known.as_ref()?;
        let changed = before.keys().chain(after.keys()).filter(|key| before.get(*key) != after.get(*key));
        Some(changed.cloned().collect())
    }

    /// What is said of the gate that a resource's `nodeReadinessTaint` stands for.
    pub fn status(&self, namespace: &str, name: &str) -> Option<NodeReadinessGateStatus> {
        self.statuses.lock().get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// Says that of every such gate; returns the resources for which it has changed.
    pub(crate) fn say(&self, statuses: BTreeMap<Key, NodeReadinessGateStatus>) -> Vec<Key> {
        let mut known = self.statuses.lock();
        let changed = statuses.iter().filter(|(key, status)| known.get(*key) != Some(*status)).map(|(key, _)| key.clone()).collect();
        *known = statuses;
        changed
    }
}
