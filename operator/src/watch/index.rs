//! Everything that is known of the cluster, as facts.

use super::{
    Kind,
    bounds::{self, ResourceOrder},
    facts::KeptReplicaSet,
    usage::Usages,
    version,
};
use crds::{IngressDaemonSet, IngressDaemonSetStatus, hash, names};
use k8s_openapi::{api::apps::v1::Deployment, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use planner::{
    facts::{
        DaemonSetFacts, DeploymentFacts, NodeFacts, PodFacts, RESOURCES_PER_NAMESPACE, RevisionFacts, Withheld, shared_spec::SpecInterner,
    },
    spec::claims::{Claim, claims},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Namespace (empty for Nodes) and name.
pub type Key = (String, String);

/// Which resources an event concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touched {
    /// None.
    Nothing,
    /// This one.
    Resource(Key),
    /// The one of this namespace whose UID begins so.
    Owner(String, String),
    /// These.
    These(BTreeSet<Key>),
    /// All.
    All,
}

/// What of a namespace is in a map.
pub(super) fn of_namespace<'m, T>(map: &'m BTreeMap<Key, T>, namespace: &str) -> impl Iterator<Item = (&'m Key, &'m T)> + use<'m, T> {
    let namespace = namespace.to_owned();
    map.range((namespace.clone(), String::new())..).take_while(move |((known, _), _)| *known == namespace)
}

/// An object of one of our resources.
#[derive(Clone, Debug)]
pub struct IndexedObject<T> {
    /// First 8 characters of the resource's UID, from the label.
    pub uid8: String,
    /// Hash of the node name, from the label.
    pub node_hash: String,
    /// UID of the controller.
    pub controller: Option<String>,
    /// resourceVersion.
    pub version: u64,
    /// What is known of it.
    pub facts: T,
}

impl IndexedObject<()> {
    pub(super) fn with<T>(self, facts: T) -> IndexedObject<T> {
        IndexedObject { uid8: self.uid8, node_hash: self.node_hash, controller: self.controller, version: self.version, facts }
    }
}

/// What gates are made from, or say, of a resource. If it differs from before, gates are made anew.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MadeFrom {
    uid: Option<String>,
    generation: Option<i64>,
    deleting: bool,
    invalid: bool,
    withheld: Option<Withheld>,
}

/// Everything that is known of the cluster.
#[derive(Debug, Default)]
pub struct Index {
    pub(super) resources: BTreeMap<Key, Arc<IngressDaemonSet>>,
    pub(super) unreadable: BTreeMap<Key, String>,
    /// Resources whose spec is not held.
    pub(super) withheld: BTreeMap<Key, Withheld>,
    /// By namespace: the order in which its resources are looked after.
    places: BTreeMap<String, BTreeSet<ResourceOrder>>,
    /// Who claims what of nodes.
    claimants: BTreeMap<Claim, BTreeSet<Key>>,
    pub(super) nodes: Arc<BTreeMap<String, Arc<NodeFacts>>>,
    pub(super) node_names: BTreeMap<String, String>,
    pub(super) deployments: BTreeMap<Key, IndexedObject<(String, Arc<DeploymentFacts>)>>,
    pub(super) replica_sets: BTreeMap<Key, IndexedObject<KeptReplicaSet>>,
    pub(super) pods: BTreeMap<Key, IndexedObject<Arc<PodFacts>>>,
    pub(super) daemon_sets: BTreeMap<Key, IndexedObject<DaemonSetFacts>>,
    pub(super) services: BTreeMap<Key, Vec<u16>>,
    pub(super) revisions: BTreeMap<Key, IndexedObject<RevisionFacts>>,
    /// What objects of resources take.
    pub(super) usages: Usages,
    /// Nodes that came, went or say something else than before, heartbeats left aside.
    pub(super) node_news: BTreeSet<String>,
}

/// A kind that the index knows.
pub trait Observed: Sized {
    /// Which.
    const KIND: Kind;
    /// What is kept of an object.
    type Kept;
    /// Cuts an object down to that.
    fn keep(self, specs: &mut SpecInterner) -> Self::Kept;
    /// Takes an object in.
    fn insert(key: Key, kept: Self::Kept, index: &mut Index) -> Touched;
    /// Takes an object out.
    fn remove(index: &mut Index, key: &Key) -> Touched;
    /// Keys and versions of all that are in.
    fn entries(index: &Index) -> Vec<(Key, u64)>;
    /// Lets go of what will not be held, before all has been listed.
    fn thin(_: &mut [Cut<Self>]) {}
    /// Lets go of what is large of an object, where those of its namespace take too much. `former` is what was known of it.
    fn bound(kept: &mut Self::Kept, namespace: &str, former: Option<&Self::Kept>, usages: &mut Usages);
    /// The object that was bounded is held no more.
    fn unbound(kept: &Self::Kept, namespace: &str, usages: &mut Usages);
}

/// An object, cut down to what is kept of it.
pub struct Cut<K: Observed> {
    pub(super) key: Key,
    /// Its resourceVersion.
    pub version: u64,
    pub(super) kept: K::Kept,
}

impl<K: Observed + Resource> Cut<K> {
    /// Cuts it down.
    pub fn of(object: K, specs: &mut SpecInterner) -> Self {
        let meta = object.meta();
        Self { key: key(meta), version: version(meta.resource_version.as_deref()), kept: object.keep(specs) }
    }
}

/// Namespace and name.
pub fn key(meta: &ObjectMeta) -> Key {
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

impl Index {
    /// Takes in an object that a watch delivered.
    pub fn apply<K: Observed>(&mut self, object: Cut<K>) -> Touched {
        // After a consistent list the watch may still deliver what is older than that.
        if K::entries_version(self, &object.key) > object.version {
            return Touched::Nothing;
        }
        K::insert(object.key, object.kept, self)
    }

    /// Takes out an object.
    pub fn delete<K: Observed>(&mut self, key: &Key) -> Touched {
        K::remove(self, key)
    }

    /// Exactly these objects exist.
    pub fn replace<K: Observed>(&mut self, objects: Vec<Cut<K>>) {
        let listed: BTreeSet<&Key> = objects.iter().map(|object| &object.key).collect();
        for (gone, _) in K::entries(self).into_iter().filter(|(known, _)| !listed.contains(known)) {
            K::remove(self, &gone);
        }
        for object in objects {
            K::insert(object.key, object.kept, self);
        }
    }

    /// The object is newer than what the index has of it, or the index has nothing of it.
    pub fn is_news<K: Observed>(&self, object: &Cut<K>) -> bool {
        K::entries_version(self, &object.key) < object.version
    }

    /// A consistent list of version `at` over the keys in `scope`, of which `objects` were [news](Self::is_news): newer entries stay. The
    /// watch brings no news of what this takes in.
    pub fn reconcile_list<K: Observed>(
        &mut self,
        listed: &BTreeSet<Key>,
        objects: Vec<Cut<K>>,
        at: u64,
        seen: u64,
        scope: impl Fn(&Key) -> bool,
    ) -> Vec<Touched> {
        let entries: BTreeMap<_, _> = K::entries(self).into_iter().collect();
        let gone = entries.iter().filter(|(known, version)| scope(known) && !listed.contains(known) && **version <= at);
        let mut touched: Vec<_> = gone.map(|(gone, _)| K::remove(self, gone)).collect();
        for object in objects {
            // What the watch has shown, and is not there any more, was deleted while pages were read.
            if entries.get(&object.key).map_or(object.version > seen, |known| *known < object.version) {
                touched.push(self.apply(object));
            }
        }
        touched
    }

    /// What gates are made from, of a resource: a status that was written changes nothing of it, but for whether the spec is valid.
    pub(super) fn made_from(&self, kind: Kind, key: &Key) -> Option<MadeFrom> {
        let found = (kind == Kind::Resources).then(|| self.resources.get(key)).flatten();
        let of = |IngressDaemonSet { metadata, status, .. }: &IngressDaemonSet| MadeFrom {
            uid: metadata.uid.clone(),
            generation: metadata.generation,
            deleting: metadata.deletion_timestamp.is_some(),
            invalid: status.as_ref().is_some_and(IngressDaemonSetStatus::says_invalid),
            withheld: self.withheld.get(key).copied(),
        };
        found.map(|resource| of(resource.as_ref()))
    }

    /// A resource claims something else than before. Who claims any of it, itself left out.
    pub(super) fn take_claims(&mut self, key: &Key, before: Option<&IngressDaemonSet>, after: Option<&IngressDaemonSet>) -> BTreeSet<Key> {
        let (before, after) = (before.map(claims).unwrap_or_default(), after.map(claims).unwrap_or_default());
        let mut others = BTreeSet::new();
        for claim in before.union(&after) {
            let claimants = self.claimants.entry(claim.clone()).or_default();
            claimants.remove(key);
            others.extend(claimants.iter().cloned());
            if after.contains(claim) {
                claimants.insert(key.clone());
            } else if claimants.is_empty() {
                self.claimants.remove(claim);
            }
        }
        others
    }

    /// A resource has come, has changed or has gone. Those that lose their place in their namespace by that, or get one.
    pub(super) fn take_place(&mut self, key: &Key, before: Option<ResourceOrder>, after: Option<ResourceOrder>) -> BTreeSet<Key> {
        if before == after {
            return BTreeSet::new();
        }
        let places = self.places.entry(key.0.clone()).or_default();
        if let Some(before) = before {
            places.remove(&before);
        }
        places.extend(after);
        // The last that has a place, and the first that has none.
        let edge: Vec<_> =
            places.iter().skip(RESOURCES_PER_NAMESPACE - 1).take(2).map(|place| (key.0.clone(), place.name.clone())).collect();
        if places.is_empty() {
            self.places.remove(&key.0);
        }
        let mut concerned = BTreeSet::new();
        if let Some(last) = edge.first().filter(|last| self.withheld.get(*last) == Some(&Withheld::TooMany)) {
            concerned.insert(last.clone());
        }
        if let Some(first) = edge.get(1).filter(|first| *first != key) {
            concerned.extend(self.withhold(first));
        }
        concerned
    }

    /// The same of a resource that is there no more.
    pub(super) fn leave_place(&mut self, key: &Key, before: Option<&IngressDaemonSet>) -> BTreeSet<Key> {
        self.withheld.remove(key);
        self.take_place(key, before.map(ResourceOrder::of), None)
    }

    /// Whether a resource is one of those of its namespace that are looked after.
    pub(super) fn has_place(&self, key: &Key) -> bool {
        self.places.get(&key.0).is_some_and(|places| places.iter().take(RESOURCES_PER_NAMESPACE).any(|place| place.name == key.1))
    }

    /// The resource fits into its namespace, and its spec was let go when it did not.
    pub(super) fn lacks_spec(&self, key: &Key) -> bool {
        self.withheld.get(key) == Some(&Withheld::TooMany) && self.has_place(key)
    }

    /// Lets go of the spec of a resource that is one too many. Whom that concerns.
    fn withhold(&mut self, key: &Key) -> BTreeSet<Key> {
        if self.withheld.get(key) == Some(&Withheld::TooMany) {
            return BTreeSet::new();
        }
        let Some(before) = self.resources.get(key).cloned() else { return BTreeSet::new() };
        let after = Arc::new(bounds::without_spec(&before));
        self.resources.insert(key.clone(), Arc::clone(&after));
        self.withheld.insert(key.clone(), Withheld::TooMany);
        let mut concerned = self.take_claims(key, Some(&before), Some(&after));
        concerned.insert(key.clone());
        concerned
    }

    /// Resources with a health port among those that a Service has got or lost.
    pub(super) fn sharing_ports(&self, before: &[u16], after: &[u16]) -> Touched {
        let changed = before.iter().filter(|port| !after.contains(port)).chain(after.iter().filter(|port| !before.contains(port)));
        Touched::These(changed.filter_map(|port| self.claimants.get(&Claim::Port(*port))).flatten().cloned().collect())
    }

    /// Resources of a namespace that wait for a name that another object has.
    pub(super) fn without_a_name(&self, namespace: &str) -> impl Iterator<Item = Key> + use<'_> {
        let waits = |resource: &IngressDaemonSet| {
            let conditions = resource.status.iter().flat_map(|status| &status.conditions);
            conditions.into_iter().any(|condition| condition.type_ == "NameConflict" && condition.status == "True")
        };
        of_namespace(&self.resources, namespace).filter(move |(_, resource)| waits(resource)).map(|(key, _)| key.clone())
    }

    /// Resources that claim something that this one claims.
    pub(super) fn rivals(&self, key: &Key, resource: &IngressDaemonSet) -> BTreeSet<&Key> {
        let claimants = claims(resource).into_iter().filter_map(|claim| self.claimants.get(&claim));
        claimants.flatten().filter(|other| *other != key).collect()
    }

    /// Resources that a change of a Node may concern: those that may choose it now or did so before, and those that have something there.
    pub(super) fn concerned_by(&self, name: &str, before: Option<&NodeFacts>, after: Option<&NodeFacts>) -> Touched {
        let states = || [before, after].into_iter().flatten();
        let hash = hash::node_hash(name);
        let there =
            self.deployments.values().filter(|entry| entry.node_hash == hash || entry.facts.0 == name).map(|entry| entry.uid8.as_str());
        let pods = self.pods.values().filter(|entry| entry.node_hash == hash).map(|entry| entry.uid8.as_str());
        let there: BTreeSet<_> = there.chain(pods).collect();
        let is_concerned = |key: &Key, resource: &IngressDaemonSet| {
            let uid8 = names::uid8(resource.metadata.uid.as_deref().unwrap_or_default());
            let selector = &resource.spec.node_selector;
            let is_whole = !self.withheld.contains_key(key);
            let chooses = |node: &NodeFacts| is_whole && selector.iter().all(|(key, value)| node.labels.get(key) == Some(value));
            let holds = |node: &NodeFacts| node.annotations.get(names::HOLDERS_ANNOTATION).is_some_and(|holders| holders.contains(uid8));
            there.contains(uid8) || states().any(|node| chooses(node) || node.is_used_by(uid8) || holds(node))
        };
        let resources = self.resources.iter().filter(|(key, resource)| is_concerned(key, resource)).map(|(key, _)| key);
        Touched::These(resources.chain(self.unreadable.keys()).cloned().collect())
    }

    /// A node's name is kept as long as there is the Node, or a Deployment for it by annotation or label.
    pub(super) fn forget_name(&mut self, node: &str) {
        if self.nodes.contains_key(node) {
            return;
        }
        let hash = hash::node_hash(node);
        if !self.deployments.values().any(|entry| entry.facts.0 == node || entry.node_hash == hash) {
            self.node_names.remove(&hash);
        }
    }

    /// The names that a Deployment had, which has gone or says something else now.
    pub(super) fn forget_names_of(&mut self, before: &<Deployment as Observed>::Kept) {
        self.forget_name(&before.facts.0);
        if let Some(labelled) = self.node_names.get(&before.node_hash).cloned() {
            self.forget_name(&labelled);
        }
    }

    /// The resources that an event concerns.
    pub fn resources_of(&self, touched: &Touched) -> Vec<Key> {
        match touched {
            Touched::Nothing => Vec::new(),
            Touched::Resource(key) => {
                let is_there = self.resources.contains_key(key) || self.unreadable.contains_key(key);
                is_there.then(|| key.clone()).into_iter().collect()
            }
            Touched::Owner(namespace, uid8) => of_namespace(&self.resources, namespace)
                .filter(|(_, resource)| resource.metadata.uid.as_deref().is_some_and(|uid| names::uid8(uid) == uid8))
                .map(|(key, _)| key.clone())
                .collect(),
            Touched::These(keys) => keys.iter().cloned().collect(),
            Touched::All => self.resources.keys().chain(self.unreadable.keys()).cloned().collect(),
        }
    }
}

trait EntryVersion: Observed {
    fn entries_version(index: &Index, key: &Key) -> u64;
}

impl<K: Observed> EntryVersion for K {
    fn entries_version(index: &Index, key: &Key) -> u64 {
        // Only Deployments and Nodes are ever listed beside their watch.
        match K::KIND {
            Kind::Deployments => index.deployments.get(key).map_or(0, |entry| entry.version),
            Kind::Nodes => index.nodes.get(&key.1).map_or(0, |node| version(Some(&node.resource_version))),
            Kind::Resources | Kind::ReplicaSets | Kind::Pods | Kind::DaemonSets | Kind::Services | Kind::Revisions => 0,
        }
    }
}
