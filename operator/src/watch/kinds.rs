//! What is kept of each kind, and whom an object that comes or goes concerns.

use super::{
    GuardedResource, Kind,
    bounds::{self, Kept, ResourceOrder},
    facts::{self, KeptReplicaSet},
    index::{Cut, Index, IndexedObject, Key, Observed, Touched},
    usage::Usages,
    version,
};
use crds::{hash, names};
use k8s_openapi::{
    api::{
        apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet},
        core::v1::{Node, Pod, Service},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use planner::facts::{
    DaemonSetFacts, DeploymentFacts, NodeFacts, PodFacts, RESOURCES_PER_NAMESPACE, RevisionFacts, Withheld, shared_spec::SpecInterner,
};
use std::{collections::BTreeMap, sync::Arc};

fn entry<T>(meta: &ObjectMeta, facts: T) -> IndexedObject<T> {
    let label = |key: &str| facts::text(meta.labels.as_ref(), key);
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
                Self::unbound(gone, &key.0, &mut index.usages);
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
            Self::unbound(entry, &key.0, &mut index.usages);
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
            entry.facts.orphans = facts::replicas(&self);
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
