//! What watches, probes and passes over resources tell the loop, inside one process.

use super::news::ChangeQueue;
use parking_lot::{Mutex, MutexGuard};
use planner::{
    gates_shared::{Key, ReplicaHealth, Source},
    node_gates::GateLinks,
    pod_gates::{
        Pod, World,
        links::links,
        world::{Conditions, ObjectKey, Target},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Something that conditions of several pods may follow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Followed {
    /// A Service.
    Service(Key),
    /// An object.
    Object(ObjectKey),
    /// An HTTP server.
    Answer(Target),
    /// An `IngressDaemonSet`.
    Attachment(Key),
}

/// What has changed since the last look.
#[derive(Debug, Default, PartialEq)]
pub struct Changes {
    /// These pods.
    pub pods: BTreeSet<Key>,
    /// These Nodes.
    pub nodes: BTreeSet<String>,
    /// These sources.
    pub followed: BTreeSet<Followed>,
    /// Gates, or the `IngressDaemonSets` that there are.
    pub gates: bool,
    /// Whether pods can be seen.
    pub sight: bool,
}

/// What is known of everything but Nodes.
#[derive(Debug, Default)]
pub struct PodGateFacts {
    /// As decisions see it.
    pub world: World,
    /// The gates were listed, or their kind is not defined.
    pub has_gates: bool,
    /// All gates there are were read.
    pub has_all: bool,
    /// Slices of endpoints, by namespace.
    pub slices: BTreeMap<String, Slices>,
    /// Nodes of `IngressDaemonSets` that gates follow, as their passes told since.
    pub replicas: BTreeMap<Key, Option<Arc<BTreeMap<String, ReplicaHealth>>>>,
}

/// Slices of endpoints of a namespace.
#[derive(Debug, Default)]
pub struct Slices {
    /// They were listed.
    pub listed: bool,
    /// Service and ready endpoints of each, by name.
    pub of: BTreeMap<String, (String, usize)>,
    /// Why they cannot be seen.
    pub broken: Option<String>,
}

impl Slices {
    /// Ready endpoints of a Service; `None` before they were listed.
    pub fn ready(&self, service: &str) -> Option<usize> {
        self.listed.then(|| self.of.values().filter(|(of, _)| of == service).map(|(_, ready)| ready).sum())
    }

    /// What a gate that follows a Service knows of it.
    pub fn source(&self, service: &str) -> Source<usize> {
        let broken = self.broken.as_ref().map(|why| format!("endpoints of Service {service} cannot be seen: {why}"));
        Source { found: self.ready(service), broken }
    }
}

impl PodGateFacts {
    /// Takes a pod in that a watch has shown, unless a newer one is known; whether that is news.
    pub fn insert(&mut self, key: Key, pod: Pod) -> bool {
        if !self.world.pod_sources.contains_key(&key.0) || self.world.pods.get(&key).is_some_and(|known| known.version > pod.version) {
            return false;
        }
        let is_news = self.world.pods.get(&key).is_none_or(|before| Pod { version: pod.version, ..before.clone() } != pod);
        self.world.pods.insert(key, pod);
        is_news
    }

    /// Takes in how a pod is after a patch. One that no watch shows any more is gone.
    pub fn learn(&mut self, key: Key, pod: Pod) {
        if self.world.pods.contains_key(&key) {
            self.insert(key, pod);
        }
    }

    /// Exactly these pods are in a namespace; those that came, changed or went.
    pub fn replace(&mut self, namespace: &str, listed: BTreeMap<Key, Pod>) -> BTreeSet<Key> {
        let first = (namespace.to_owned(), String::new());
        let of_namespace = self.world.pods.range(first..).map(|(key, _)| key).take_while(|key| key.0 == namespace);
        let mut changed: BTreeSet<_> = of_namespace.filter(|key| !listed.contains_key(*key)).cloned().collect();
        for key in &changed {
            self.world.pods.remove(key);
        }
        changed.extend(listed.into_iter().filter_map(|(key, pod)| self.insert(key.clone(), pod).then_some(key)));
        changed
    }
}

/// The meeting point.
#[derive(Debug, Default)]
pub struct PodGateState {
    news: ChangeQueue<Changes>,
    known: Mutex<PodGateFacts>,
}

impl PodGateState {
    /// What is known.
    pub(crate) fn known(&self) -> MutexGuard<'_, PodGateFacts> {
        self.known.lock()
    }

    /// What has changed; waits until there is something.
    pub(crate) async fn changes(&self) -> Changes {
        self.news.take().await
    }

    /// Something has changed.
    pub(crate) fn tell(&self, change: impl FnOnce(&mut Changes)) {
        self.news.tell(change);
    }

    /// Something that conditions follow has changed.
    pub(crate) fn follow(&self, followed: Followed) {
        self.tell(|news| news.followed.extend([followed]));
    }

    /// Something about these Nodes has changed.
    pub fn nodes(&self, names: impl IntoIterator<Item = String>) {
        // Whoever begins looks at every pod.
        if self.news.is_heard() {
            self.tell(|news| news.nodes.extend(names));
        }
    }

    /// `IngressDaemonSets` came, went or changed.
    pub fn resources(&self) {
        self.tell(|news| news.gates = true);
    }

    /// The nodes of an `IngressDaemonSet`, as its pass sees them.
    pub fn replicas(&self, key: &Key, replicas: &Arc<BTreeMap<String, ReplicaHealth>>) {
        let mut known = self.known();
        let Some(entry) = known.replicas.get_mut(key) else { return };
        if entry.as_ref() != Some(replicas) {
            *entry = Some(Arc::clone(replicas));
            drop(known);
            self.follow(Followed::Attachment(key.clone()));
        }
    }

    /// How gates bear on a resource of a namespace whose pods have these labels, where those of nodes do so; `None` until gates of pods are
    /// known.
    pub fn links(&self, of_nodes: GateLinks, namespace: &str, labels: &serde_json::Value) -> Option<GateLinks> {
        let known = self.known();
        known.has_gates.then(|| links(of_nodes, &known.world, known.has_all, namespace, labels))
    }

    /// `IngressDaemonSets` that gates follow.
    pub fn wanted_attachments(&self) -> BTreeSet<Key> {
        self.known().replicas.keys().cloned().collect()
    }

    /// Changes what is known of the endpoints of a namespace; `service`: of this one alone.
    pub(crate) fn slices(&self, namespace: &str, service: Option<&str>, change: impl FnOnce(&mut Slices)) {
        let mut known = self.known();
        let PodGateFacts { slices, world, .. } = &mut *known;
        let Some(slices) = slices.get_mut(namespace) else { return };
        change(slices);
        let of_namespace = world.services.range_mut((namespace.to_owned(), String::new())..).take_while(|(key, _)| key.0 == namespace);
        for (key, source) in of_namespace.filter(|(key, _)| service.is_none_or(|service| key.1 == service)) {
            let seen = match slices.source(&key.1) {
                Source { broken: Some(why), .. } => Err(why),
                Source { found: Some(ready), .. } => Ok(ready),
                Source { found: None, broken: None } => continue,
            };
            if note(source, seen) {
                self.follow(Followed::Service(key.clone()));
            }
        }
    }

    /// The conditions of an object, or why they cannot be seen.
    pub(crate) fn object(&self, key: &ObjectKey, seen: Result<Option<Conditions>, String>) {
        let changed = self.known().world.objects.get_mut(key).is_some_and(|source| note(source, seen));
        if changed {
            self.follow(Followed::Object(key.clone()));
        }
    }

    /// What an HTTP server answered, or why it did not.
    pub(crate) fn answer(&self, target: &Target, seen: Result<u16, String>) {
        let changed = self.known().world.answers.get_mut(target).is_some_and(|source| note(source, seen));
        if changed {
            self.follow(Followed::Answer(target.clone()));
        }
    }
}

/// Notes what was seen; whether that is news.
fn note<T: PartialEq>(source: &mut Source<T>, seen: Result<T, String>) -> bool {
    let (found, broken) = match seen {
        Ok(found) => (Some(found), None),
        Err(why) => (source.found.take(), Some(why)),
    };
    let after = Source { found, broken };
    let changed = after.broken != source.broken || after.broken.is_none() && after != *source;
    *source = after;
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(version: u64) -> Pod {
        Pod { version, uid: version.to_string(), ..Pod::default() }
    }

    #[test]
    fn the_newer_pod_counts_and_unlisted_pods_are_removed() {
        let mut known = PodGateFacts::default();
        let (key, other) = (("a".to_owned(), "p".to_owned()), ("b".to_owned(), "p".to_owned()));
        assert!(!known.insert(key.clone(), pod(2)), "the namespace is not watched any more");
        for namespace in ["a", "b"] {
            known.world.pod_sources.insert(namespace.into(), Source::default());
        }
        assert!(known.insert(key.clone(), pod(2)) && known.insert(other.clone(), pod(7)));
        assert!(!known.insert(key.clone(), pod(1)), "older");
        assert!(!known.insert(key.clone(), pod(2)), "the same");
        known.learn(key.clone(), pod(3));
        assert_eq!(known.world.pods[&key].version, 3);
        assert_eq!(known.replace("a", BTreeMap::new()), BTreeSet::from([key.clone()]));
        assert_eq!(known.world.pods.keys().collect::<Vec<_>>(), [&other]);
        known.learn(key, pod(4));
        assert_eq!(known.world.pods.len(), 1, "it is gone");
    }

    #[test]
    fn a_services_endpoints_are_summed_over_all_listed_slices() {
        let of = [("a1", "a", 2), ("a2", "a", 1), ("b1", "b", 5)];
        let of = of.map(|(slice, service, ready)| (slice.to_owned(), (service.to_owned(), ready))).into();
        let mut slices = Slices { listed: false, of, broken: None };
        assert_eq!(slices.ready("a"), None);
        slices.listed = true;
        assert_eq!([slices.ready("a"), slices.ready("b"), slices.ready("c")], [Some(3), Some(5), Some(0)]);
    }

    #[test]
    fn a_broken_source_keeps_its_value_and_tells_once() {
        let mut source = Source::<usize>::default();
        assert!(note(&mut source, Ok(1)));
        assert!(!note(&mut source, Ok(1)));
        assert!(note(&mut source, Err("no".into())));
        assert!(!note(&mut source, Err("no".into())));
        assert_eq!(source.found, Some(1));
        assert!(note(&mut source, Ok(1)));
    }
}
