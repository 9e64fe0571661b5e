//! What the loop of gates and the passes over resources tell each other, inside one process.

use crds::node_readiness_gate::Inject;
use planner::{
    gate::{
        Gate, World,
        world::{Key, ReplicaHealth},
    },
    snapshot::GateLinks,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Notify;

/// Nodes to look at again.
#[derive(Debug, Default)]
struct News {
    /// Something about these has changed.
    nodes: BTreeSet<String>,
    /// A gate has changed: every node is looked at, after those above.
    all: bool,
    /// What gates are made from has changed.
    gates: bool,
}

/// The meeting point.
#[derive(Debug, Default)]
pub struct Hub {
    news: Mutex<News>,
    wake: Notify,
    world: Mutex<World>,
    links: Mutex<Option<BTreeMap<Key, GateLinks>>>,
    fronts: Mutex<Fronts>,
}

/// Gates that come neither from `NodeReadinessGates` nor from `IngressDaemonSets`.
#[derive(Clone, Debug, Default)]
pub struct Fronts {
    /// A `ConfigMap` is asked for that was neither read nor refused yet.
    pub awaited: bool,
    /// It cannot be read, and what it said before is not known: records of its gate stay.
    pub unreadable: bool,
    /// The gate of the `ConfigMap`, as it could be read last.
    pub config_map: Option<Gate>,
    /// The gate that is built in.
    pub preset: Option<Gate>,
}

/// What has changed since the last look.
#[derive(Debug, Default)]
pub struct Changes {
    /// These nodes.
    pub nodes: BTreeSet<String>,
    /// Every node.
    pub all: bool,
    /// What gates are made from.
    pub gates: bool,
}

impl Hub {
    /// Something about a node has changed.
    pub fn node(&self, name: &str) {
        lock(&self.news).nodes.insert(name.to_owned());
        self.wake.notify_one();
    }

    /// Something about these nodes has changed.
    pub fn nodes(&self, names: impl IntoIterator<Item = String>) {
        lock(&self.news).nodes.extend(names);
        self.wake.notify_one();
    }

    /// Something that concerns every node has changed.
    pub fn every_node(&self) {
        lock(&self.news).all = true;
        self.wake.notify_one();
    }

    /// What gates are made from has changed.
    pub fn gates(&self) {
        lock(&self.news).gates = true;
        self.wake.notify_one();
    }

    /// What has changed; waits until there is something.
    pub async fn changes(&self) -> Changes {
        loop {
            {
                let mut news = lock(&self.news);
                if news.all || news.gates || !news.nodes.is_empty() {
                    let news = std::mem::take(&mut *news);
                    return Changes { nodes: news.nodes, all: news.all, gates: news.gates };
                }
            }
            self.wake.notified().await;
        }
    }

    /// What is known of everything but Nodes.
    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    /// Gates from elsewhere.
    pub(crate) fn fronts(&self) -> Fronts {
        lock(&self.fronts).clone()
    }

    /// Changes the gates from elsewhere.
    pub(super) fn change_fronts(&self, change: impl FnOnce(&mut Fronts)) {
        change(&mut lock(&self.fronts));
        self.gates();
    }

    /// The replicas of a resource, as its pass sees them.
    pub fn replicas(&self, key: &Key, replicas: BTreeMap<String, ReplicaHealth>) {
        let mut world = self.world();
        let before = world.replicas.insert(key.clone(), Arc::default()).unwrap_or_default();
        let differs = |name: &&String| before.get(*name) != replicas.get(*name);
        let changed: Vec<_> = before.keys().chain(replicas.keys()).filter(differs).cloned().collect();
        world.replicas.insert(key.clone(), Arc::new(replicas));
        drop(world);
        if !changed.is_empty() {
            self.nodes(changed);
        }
    }

    /// How gates bear on a resource; `None` until they are known.
    pub fn links(&self, namespace: &str, name: &str) -> Option<GateLinks> {
        Some(lock(&self.links).as_ref()?.get(&(namespace.to_owned(), name.to_owned())).cloned().unwrap_or_default())
    }

    /// Notes how gates bear on resources; returns the resources for which that has changed.
    pub(super) fn link(&self, world: &World) -> BTreeSet<Key> {
        let mut links: BTreeMap<Key, GateLinks> = BTreeMap::new();
        for gate in world.gates.values() {
            let injected = gate.spec.tolerations.as_ref().is_none_or(|tolerations| tolerations.inject != Inject::None);
            for key in gate.ingress_daemon_sets() {
                let link = links.entry(key).or_default();
                link.watched = true;
                let taint = (gate.spec.taint.key.clone(), gate.spec.taint.effect.as_str().to_owned());
                if injected && !link.taints.contains(&taint) {
                    link.taints.push(taint);
                }
            }
        }
        for link in links.values_mut() {
            link.taints.sort();
        }
        let mut known = lock(&self.links);
        let before = known.replace(links.clone());
        let changed = |key: &&Key| before.as_ref().is_none_or(|before| before.get(*key) != links.get(*key));
        let gone = before.iter().flat_map(BTreeMap::keys);
        links.keys().chain(gone).filter(changed).cloned().collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change under a lock is one assignment: nothing is left half-way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
