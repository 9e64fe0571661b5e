//! Everything that is known of the cluster, as facts.

use super::{
    GuardedResource, Kind,
    bounds::{self, Kept, ResourceOrder},
    facts,
    usage::{Lightened, Usages, Weighed},
    version,
};
use crds::{IngressDaemonSet, IngressDaemonSetStatus, hash, names};
use k8s_openapi::{
    api::{
        apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet},
        core::v1::{Node, Pod, Service},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::Resource;
use parking_lot::Mutex;
use planner::{
    facts::{
        DaemonSetFacts, DeploymentFacts, NodeFacts, PodFacts, RESOURCES_PER_NAMESPACE, ReplicaSetFacts, RevisionFacts, Withheld,
        shared_spec::{SharedSpec, SpecInterner},
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
    fn with<T>(self, facts: T) -> IndexedObject<T> {
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

/// What is kept of a `ReplicaSet`.
#[derive(Clone, Debug, Default)]
pub struct KeptReplicaSet {
    /// Its template, where it has no controller.
    pub orphan: Option<SharedSpec>,
    /// More, where its pods have the gate for updates in place.
    pub gated: Option<ReplicaSetFacts>,
}

impl Weighed for KeptReplicaSet {
    const FREE: usize = 0;

    fn own(&self) -> usize {
        self.shared().map_or(0, SharedSpec::own_bytes)
    }

    fn shared(&self) -> Option<&SharedSpec> {
        self.orphan.as_ref().or(self.gated.as_ref().map(|gated| &gated.spec))
    }
}

impl Lightened for KeptReplicaSet {
    fn lighten(&mut self) {
        *self = Self::default();
    }
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
    kept: K::Kept,
}

impl<K: Observed + Resource> Cut<K> {
    /// Cuts it down.
    pub fn of(object: K, specs: &mut SpecInterner) -> Self {
        let meta = object.meta();
        Self { key: key(meta), version: version(meta.resource_version.as_deref()), kept: object.keep(specs) }
    }
}

/// Objects of a list that has not ended. What is large of them is bounded together with what other lists have.
pub struct Listing<'u, K: Observed> {
    objects: Vec<Cut<K>>,
    usages: &'u Mutex<Usages>,
}

impl<'u, K: Observed> Listing<'u, K> {
    /// One without objects; `usages` are those of all lists.
    pub fn new(usages: &'u Mutex<Usages>) -> Self {
        Self { objects: Vec::new(), usages }
    }

    /// Takes an object in.
    pub fn push(&mut self, mut object: Cut<K>) {
        K::bound(&mut object.kept, &object.key.0, None, &mut self.usages.lock());
        self.objects.push(object);
    }

    /// Lets go of what will not be held, after each page of so many.
    pub fn thin(&mut self, page: usize) {
        if self.objects.len().is_multiple_of(page) {
            K::thin(&mut self.objects);
        }
    }

    /// All objects; the list begins anew.
    pub fn take(&mut self) -> Vec<Cut<K>> {
        let mut usages = self.usages.lock();
        self.objects.iter().for_each(|object| K::unbound(&object.kept, &object.key.0, &mut usages));
        std::mem::take(&mut self.objects)
    }
}

impl<K: Observed> Drop for Listing<'_, K> {
    fn drop(&mut self) {
        self.take();
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
    fn take_claims(&mut self, key: &Key, before: Option<&IngressDaemonSet>, after: Option<&IngressDaemonSet>) -> BTreeSet<Key> {
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
    fn take_place(&mut self, key: &Key, before: Option<ResourceOrder>, after: Option<ResourceOrder>) -> BTreeSet<Key> {
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
    fn leave_place(&mut self, key: &Key, before: Option<&IngressDaemonSet>) -> BTreeSet<Key> {
        self.withheld.remove(key);
        self.take_place(key, before.map(ResourceOrder::of), None)
    }

    /// Whether a resource is one of those of its namespace that are looked after.
    fn has_place(&self, key: &Key) -> bool {
        self.places.get(&key.0).is_some_and(|places| places.iter().take(RESOURCES_PER_NAMESPACE).any(|place| place.name == key.1))
    }

    /// The resource has a place, and its spec was let go when it had none.
    pub(super) fn lacks_spec(&self, key: &Key) -> bool {
        self.withheld.get(key) == Some(&Withheld::TooMany) && self.has_place(key)
    }

    /// Lets go of the spec of a resource that has no place. Whom that concerns.
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
    fn sharing_ports(&self, before: &[u16], after: &[u16]) -> Touched {
        let changed = before.iter().filter(|port| !after.contains(port)).chain(after.iter().filter(|port| !before.contains(port)));
        Touched::These(changed.filter_map(|port| self.claimants.get(&Claim::Port(*port))).flatten().cloned().collect())
    }

    /// Resources of a namespace that wait for a name that another object has.
    fn without_a_name(&self, namespace: &str) -> impl Iterator<Item = Key> + use<'_> {
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
    fn concerned_by(&self, name: &str, before: Option<&NodeFacts>, after: Option<&NodeFacts>) -> Touched {
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
    fn forget_name(&mut self, node: &str) {
        if self.nodes.contains_key(node) {
            return;
        }
        let hash = hash::node_hash(node);
        if !self.deployments.values().any(|entry| entry.facts.0 == node || entry.node_hash == hash) {
            self.node_names.remove(&hash);
        }
    }

    /// The names that a Deployment had, which has gone or says something else now.
    fn forget_names_of(&mut self, before: &<Deployment as Observed>::Kept) {
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

fn entry<T>(meta: &ObjectMeta, facts: T) -> IndexedObject<T> {
    let label = |key: &str| meta.labels.as_ref().and_then(|labels| labels.get(key)).cloned().unwrap_or_default();
    IndexedObject {
        uid8: label(names::RESOURCE_LABEL),
        node_hash: label(names::NODE_HASH_LABEL),
        controller: facts::controller(meta).map(|owner| owner.uid.chars().take(facts::UID).collect()),
        version: version(meta.resource_version.as_deref()),
        facts,
    }
}

fn owner<T>(key: &Key, entry: Option<&IndexedObject<T>>) -> Touched {
    entry.map_or(Touched::Nothing, |entry| Touched::Owner(key.0.clone(), entry.uid8.clone()))
}

fn versions<T>(map: &BTreeMap<Key, IndexedObject<T>>) -> Vec<(Key, u64)> {
    map.iter().map(|(key, entry)| (key.clone(), entry.version)).collect()
}

/// Objects that no tenant can make, or of which no more is held than is bounded elsewhere.
macro_rules! unbounded {
    () => {
        fn bound(_: &mut Self::Kept, _: &str, _: Option<&Self::Kept>, _: &mut Usages) {}

        fn unbound(_: &Self::Kept, _: &str, _: &mut Usages) {}
    };
}

/// Objects that somebody can make large, and many.
macro_rules! bounded {
    () => {
        fn bound(kept: &mut Self::Kept, namespace: &str, former: Option<&Self::Kept>, usages: &mut Usages) {
            usages.exchange(namespace, former.map(|former| &former.facts), &mut kept.facts);
        }

        fn unbound(kept: &Self::Kept, namespace: &str, usages: &mut Usages) {
            usages.remove(namespace, &kept.facts);
        }
    };
}

/// Objects of resources, which concern nobody else.
macro_rules! kept_in {
    ($map:ident) => {
        fn insert(key: Key, mut entry: Self::Kept, index: &mut Index) -> Touched {
            Self::bound(&mut entry, &key.0, index.$map.get(&key), &mut index.usages);
            index.$map.insert(key.clone(), entry);
            owner(&key, index.$map.get(&key))
        }

        fn remove(index: &mut Index, key: &Key) -> Touched {
            let gone = index.$map.remove(key);
            if let Some(gone) = &gone {
                index.usages.remove(&key.0, &gone.facts);
            }
            owner(key, gone.as_ref())
        }

        bounded!();

        fn entries(index: &Index) -> Vec<(Key, u64)> {
            versions(&index.$map)
        }
    };
}

impl Observed for GuardedResource {
    const KIND: Kind = Kind::Resources;
    type Kept = Kept;

    fn keep(self, _: &mut SpecInterner) -> Kept {
        Kept::of(self)
    }

    fn insert(key: Key, kept: Kept, index: &mut Index) -> Touched {
        match kept.object {
            Ok(resource) => {
                index.unreadable.remove(&key);
                let place = ResourceOrder::of(&resource);
                let moved = index.take_place(&key, index.resources.get(&key).map(|before| ResourceOrder::of(before)), Some(place));
                let surplus = !index.has_place(&key);
                let resource = Arc::new(if surplus { bounds::without_spec(&resource) } else { resource });
                match if surplus { Some(Withheld::TooMany) } else { kept.withheld } {
                    Some(why) => index.withheld.insert(key.clone(), why),
                    None => index.withheld.remove(&key),
                };
                let before = index.resources.insert(key.clone(), Arc::clone(&resource));
                let mut concerned = index.take_claims(&key, before.as_deref(), Some(&resource));
                if before.is_some_and(|before| before.spec == resource.spec) && moved.is_empty() {
                    return Touched::Resource(key);
                }
                concerned.extend(moved);
                concerned.insert(key);
                Touched::These(concerned)
            }
            Err(error) => {
                let before = index.resources.remove(&key);
                index.take_claims(&key, before.as_deref(), None);
                let mut concerned = index.leave_place(&key, before.as_deref());
                index.unreadable.insert(key.clone(), error);
                concerned.insert(key);
                Touched::These(concerned)
            }
        }
    }

    fn remove(index: &mut Index, key: &Key) -> Touched {
        let before = index.resources.remove(key);
        index.unreadable.remove(key);
        let mut concerned = index.take_claims(key, before.as_deref(), None);
        concerned.extend(index.leave_place(key, before.as_deref()));
        concerned.extend(index.without_a_name(&key.0));
        Touched::These(concerned)
    }

    fn entries(index: &Index) -> Vec<(Key, u64)> {
        index.resources.keys().chain(index.unreadable.keys()).map(|key| (key.clone(), 0)).collect()
    }

    fn thin(listing: &mut [Cut<Self>]) {
        let mut of_namespaces: BTreeMap<String, BTreeMap<ResourceOrder, usize>> = BTreeMap::new();
        for (index, cut) in listing.iter().enumerate() {
            if let Some(place) = cut.kept.place() {
                of_namespaces.entry(cut.key.0.clone()).or_default().insert(place, index);
            }
        }
        for index in of_namespaces.values().flat_map(|places| places.values().skip(RESOURCES_PER_NAMESPACE)) {
            listing[*index].kept.withhold();
        }
    }

    unbounded!();
}

impl Observed for Node {
    const KIND: Kind = Kind::Nodes;
    type Kept = NodeFacts;

    fn keep(self, specs: &mut SpecInterner) -> NodeFacts {
        facts::node(self, specs)
    }

    fn insert((_, name): Key, after: NodeFacts, index: &mut Index) -> Touched {
        // Heartbeats change the resourceVersion alone; at thousands of nodes they must not wake anybody.
        let before = index.nodes.get(&name);
        let same = before.is_some_and(|before| before.is_same_but_conditions(&after));
        if before.is_none_or(|before| !before.equals_ignoring_heartbeats(&after)) {
            index.node_news.insert(name.clone());
        }
        index.node_names.insert(hash::node_hash(&name), name.clone());
        let touched = if same { Touched::Nothing } else { index.concerned_by(&name, before.map(AsRef::as_ref), Some(&after)) };
        Arc::make_mut(&mut index.nodes).insert(name, Arc::new(after));
        touched
    }

    fn remove(index: &mut Index, key: &Key) -> Touched {
        let gone = Arc::make_mut(&mut index.nodes).remove(&key.1);
        let touched = index.concerned_by(&key.1, gone.as_deref(), None);
        index.node_news.insert(key.1.clone());
        index.forget_name(&key.1);
        touched
    }

    fn entries(index: &Index) -> Vec<(Key, u64)> {
        index.nodes.iter().map(|(name, node)| ((String::new(), name.clone()), version(Some(&node.resource_version)))).collect()
    }

    unbounded!();
}

impl Observed for Deployment {
    const KIND: Kind = Kind::Deployments;
    type Kept = IndexedObject<(String, Arc<DeploymentFacts>)>;

    fn keep(self, specs: &mut SpecInterner) -> Self::Kept {
        // Of a stranger's no more than the name is read: whoever may make one with our labels can make it large.
        if !facts::is_of_resource(&self.metadata) {
            let facts = DeploymentFacts { name: self.metadata.name.clone().unwrap_or_default(), ..DeploymentFacts::default() };
            return IndexedObject { controller: None, ..entry(&self.metadata, ()) }.with((String::new(), Arc::new(facts)));
        }
        let node = self.metadata.annotations.as_ref().and_then(|annotations| annotations.get(names::NODE_NAME_ANNOTATION)).cloned();
        let node = node.filter(|name| name.len() <= facts::NODE_NAME).unwrap_or_default();
        let name = self.metadata.name.clone().unwrap_or_default();
        let entry = entry(&self.metadata, ());
        let facts = facts::deployment(self, &[&name, &node, &entry.node_hash], specs);
        entry.with((node, Arc::new(facts)))
    }

    fn insert(key: Key, mut entry: Self::Kept, index: &mut Index) -> Touched {
        Self::bound(&mut entry, &key.0, index.deployments.get(&key), &mut index.usages);
        if !entry.facts.0.is_empty() {
            index.node_names.insert(hash::node_hash(&entry.facts.0), entry.facts.0.clone());
        }
        let (node, hash) = (entry.facts.0.clone(), entry.node_hash.clone());
        // Hardly ever is there another name, and to look who has the former one takes all Deployments.
        if let Some(before) =
            index.deployments.insert(key.clone(), entry).filter(|before| before.facts.0 != node || before.node_hash != hash)
        {
            index.forget_names_of(&before);
        }
        owner(&key, index.deployments.get(&key))
    }

    fn remove(index: &mut Index, key: &Key) -> Touched {
        let gone = index.deployments.remove(key);
        if let Some(entry) = &gone {
            index.usages.remove(&key.0, &entry.facts);
            index.forget_names_of(entry);
        }
        owner(key, gone.as_ref())
    }

    fn entries(index: &Index) -> Vec<(Key, u64)> {
        versions(&index.deployments)
    }

    bounded!();
}

impl Observed for ReplicaSet {
    const KIND: Kind = Kind::ReplicaSets;
    type Kept = IndexedObject<KeptReplicaSet>;

    fn keep(self, specs: &mut SpecInterner) -> Self::Kept {
        let mut entry = entry(&self.metadata, KeptReplicaSet::default());
        if entry.controller.is_none() {
            entry.facts.orphan = facts::orphan(&self, specs);
        } else {
            entry.facts.gated = facts::replica_set(self, specs);
        }
        entry
    }

    kept_in!(replica_sets);
}

impl Observed for Pod {
    const KIND: Kind = Kind::Pods;
    type Kept = IndexedObject<Arc<PodFacts>>;

    fn keep(self, specs: &mut SpecInterner) -> Self::Kept {
        entry(&self.metadata, Arc::new(facts::pod(&self, specs)))
    }

    kept_in!(pods);
}

impl Observed for DaemonSet {
    const KIND: Kind = Kind::DaemonSets;
    type Kept = IndexedObject<DaemonSetFacts>;

    fn keep(mut self, _: &mut SpecInterner) -> Self::Kept {
        let mut entry = entry(&self.metadata, ());
        if !facts::is_of_resource(&self.metadata) {
            (self.spec, entry.controller) = (None, None);
        }
        entry.with(facts::daemon_set(self))
    }

    kept_in!(daemon_sets);
}

impl Observed for ControllerRevision {
    const KIND: Kind = Kind::Revisions;
    /// Nothing of those of a `DaemonSet` of ours, which copies our label to them.
    type Kept = Option<IndexedObject<RevisionFacts>>;

    fn keep(self, _: &mut SpecInterner) -> Self::Kept {
        facts::revision(&self).map(|facts| entry(&self.metadata, facts))
    }

    fn insert(key: Key, kept: Self::Kept, index: &mut Index) -> Touched {
        let gone = Self::remove(index, &key);
        let Some(kept) = kept.filter(|kept| index.usages.admit(&key.0, &kept.facts)) else { return gone };
        index.revisions.insert(key.clone(), kept);
        owner(&key, index.revisions.get(&key))
    }

    fn remove(index: &mut Index, key: &Key) -> Touched {
        let gone = index.revisions.remove(key);
        if let Some(gone) = &gone {
            index.usages.remove(&key.0, &gone.facts);
        }
        owner(key, gone.as_ref())
    }

    fn entries(index: &Index) -> Vec<(Key, u64)> {
        versions(&index.revisions)
    }

    /// Nothing is rolled back to one without a template: one for which there is no room is not known.
    fn bound(kept: &mut Self::Kept, namespace: &str, _: Option<&Self::Kept>, usages: &mut Usages) {
        kept.take_if(|kept| !usages.admit(namespace, &kept.facts));
    }

    fn unbound(kept: &Self::Kept, namespace: &str, usages: &mut Usages) {
        if let Some(kept) = kept {
            usages.remove(namespace, &kept.facts);
        }
    }
}

impl Observed for Service {
    const KIND: Kind = Kind::Services;
    type Kept = Vec<u16>;

    fn keep(self, _: &mut SpecInterner) -> Vec<u16> {
        facts::node_ports(&self)
    }

    fn insert(key: Key, ports: Vec<u16>, index: &mut Index) -> Touched {
        let before = if ports.is_empty() { index.services.remove(&key) } else { index.services.insert(key, ports.clone()) };
        index.sharing_ports(&before.unwrap_or_default(), &ports)
    }

    fn remove(index: &mut Index, key: &Key) -> Touched {
        let gone = index.services.remove(key).unwrap_or_default();
        index.sharing_ports(&gone, &[])
    }

    fn entries(index: &Index) -> Vec<(Key, u64)> {
        index.services.keys().map(|key| (key.clone(), 0)).collect()
    }

    unbounded!();
}
