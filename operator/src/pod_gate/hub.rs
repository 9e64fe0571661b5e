//! What watches, probes and passes over resources tell the loop, inside one process.

use planner::{
    gate::world::{Key, PodSource, ReplicaHealth, Source},
    pod_gate::{
        Gate, Pod, World,
        world::{Conditions, ObjectKey, Target},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Notify;

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
#[derive(Debug, Default)]
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

impl Changes {
    fn are_some(&self) -> bool {
        self.gates || self.sight || !self.pods.is_empty() || !self.nodes.is_empty() || !self.followed.is_empty()
    }
}

/// What is known of everything but Nodes.
#[derive(Debug, Default)]
pub struct Known {
    /// As decisions see it.
    pub world: World,
    /// The gates were listed, or must not be.
    pub has_gates: bool,
    /// All gates there are were read.
    pub has_all: bool,
    /// By which watches a pod is seen.
    seen_by: BTreeMap<Key, BTreeSet<PodSource>>,
    /// Nodes of `IngressDaemonSets` that gates follow, as their passes told since.
    pub replicas: BTreeMap<Key, Option<Arc<BTreeMap<String, ReplicaHealth>>>>,
}

impl Known {
    /// Takes a pod in that a watch has shown; whether that is news.
    pub fn insert(&mut self, source: &PodSource, key: Key, pod: Pod) -> bool {
        self.seen_by.entry(key.clone()).or_default().insert(source.clone());
        self.learn(key, pod)
    }

    /// Takes a pod in, unless a newer one is known; whether that is news.
    pub fn learn(&mut self, key: Key, pod: Pod) -> bool {
        if !self.seen_by.contains_key(&key) || self.world.pods.get(&key).is_some_and(|known| known.version > pod.version) {
            return false;
        }
        let is_news = self.world.pods.get(&key).is_none_or(|before| Pod { version: pod.version, ..before.clone() } != pod);
        self.world.pods.insert(key, pod);
        is_news
    }

    /// A watch shows a pod no longer; whether none does.
    pub fn remove(&mut self, source: &PodSource, key: &Key) -> bool {
        let Some(sources) = self.seen_by.get_mut(key) else { return false };
        sources.remove(source);
        let gone = sources.is_empty();
        if gone {
            self.seen_by.remove(key);
            self.world.pods.remove(key);
        }
        gone
    }

    /// A watch shows exactly these pods; those that came, changed or went.
    pub fn replace(&mut self, source: &PodSource, listed: BTreeMap<Key, Pod>) -> BTreeSet<Key> {
        let gone: Vec<_> =
            self.seen_by.iter().filter(|(key, by)| by.contains(source) && !listed.contains_key(*key)).map(|(key, _)| key.clone()).collect();
        let mut changed: BTreeSet<_> = gone.into_iter().filter(|key| self.remove(source, key)).collect();
        for (key, pod) in listed {
            if self.insert(source, key.clone(), pod) {
                changed.insert(key);
            }
        }
        changed
    }
}

/// The meeting point.
#[derive(Debug, Default)]
pub struct Hub {
    news: Mutex<Changes>,
    wake: Notify,
    known: Mutex<Known>,
}

impl Hub {
    /// What is known.
    pub(super) fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }

    /// What has changed; waits until there is something.
    pub(super) async fn changes(&self) -> Changes {
        loop {
            {
                let mut news = lock(&self.news);
                if news.are_some() {
                    return std::mem::take(&mut *news);
                }
            }
            self.wake.notified().await;
        }
    }

    /// Something has changed.
    pub(super) fn tell(&self, change: impl FnOnce(&mut Changes)) {
        change(&mut lock(&self.news));
        self.wake.notify_one();
    }

    /// Something that conditions follow has changed.
    pub(super) fn follow(&self, followed: Followed) {
        self.tell(|news| news.followed.extend([followed]));
    }

    /// Something about these Nodes has changed.
    pub fn nodes(&self, names: impl IntoIterator<Item = String>) {
        self.tell(|news| news.nodes.extend(names));
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

    /// Conditions that gates ask to have listed in pods of a namespace with these labels, in order; `None` until the gates are
    /// known.
    pub fn conditions(&self, namespace: &str, labels: &serde_json::Value) -> Option<Vec<String>> {
        let known = self.known();
        if !known.has_gates {
            return None;
        }
        let selects = |gate: &&Arc<Gate>| gate.namespace == namespace && gate.spec.selects(|key| labels.get(key)?.as_str());
        let asking = known.world.gates.values().filter(|gate| gate.injects());
        let conditions: BTreeSet<_> = asking.filter(selects).map(|gate| gate.spec.condition_type.clone()).collect();
        Some(conditions.into_iter().collect())
    }

    /// Conditions that gates of a namespace keep; `None` while there may be others.
    pub fn kept(&self, namespace: &str) -> Option<BTreeSet<String>> {
        let known = self.known();
        let of_namespace = known.world.gates.values().filter(|gate| gate.namespace == namespace && !gate.deleting);
        known.has_all.then(|| of_namespace.map(|gate| gate.spec.condition_type.clone()).collect())
    }

    /// `IngressDaemonSets` that gates follow.
    pub fn wanted_attachments(&self) -> BTreeSet<Key> {
        self.known().replicas.keys().cloned().collect()
    }

    /// How many ready endpoints a Service has, or why that cannot be seen.
    pub(super) fn service(&self, key: &Key, seen: Result<usize, String>) {
        let changed = self.known().world.services.get_mut(key).is_some_and(|source| note(source, seen));
        if changed {
            self.follow(Followed::Service(key.clone()));
        }
    }

    /// The conditions of an object, or why they cannot be seen.
    pub(super) fn object(&self, key: &ObjectKey, seen: Result<Option<Conditions>, String>) {
        let changed = self.known().world.objects.get_mut(key).is_some_and(|source| note(source, seen));
        if changed {
            self.follow(Followed::Object(key.clone()));
        }
    }

    /// What an HTTP server answered, or why it did not.
    pub(super) fn answer(&self, target: &Target, seen: Result<u16, String>) {
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change under a lock is complete before it is left.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(namespace: &str) -> PodSource {
        PodSource { namespace: namespace.into(), selector: crds::label_selector::LabelSelector::default() }
    }

    fn pod(version: u64) -> Pod {
        Pod { version, uid: version.to_string(), ..Pod::default() }
    }

    #[test]
    fn a_pod_that_two_watches_show_is_known_until_neither_does_and_the_newer_counts() {
        let mut known = Known::default();
        let (one, other, key) = (source("a"), source("b"), ("a".to_owned(), "p".to_owned()));
        assert!(known.insert(&one, key.clone(), pod(2)));
        assert!(!known.insert(&other, key.clone(), pod(1)), "older");
        assert!(!known.insert(&other, key.clone(), pod(2)), "the same");
        assert_eq!(known.world.pods[&key].version, 2);
        assert!(!known.remove(&one, &key));
        assert!(known.world.pods.contains_key(&key));
        assert_eq!(known.replace(&other, BTreeMap::new()), BTreeSet::from([key.clone()]));
        assert!(known.world.pods.is_empty());
        assert!(!known.learn(key, pod(3)), "what no watch shows is gone");
    }

    #[test]
    fn a_source_that_breaks_keeps_what_was_found_and_tells_once() {
        let mut source = Source::<usize>::default();
        assert!(note(&mut source, Ok(1)));
        assert!(!note(&mut source, Ok(1)));
        assert!(note(&mut source, Err("no".into())));
        assert!(!note(&mut source, Err("no".into())));
        assert_eq!(source.found, Some(1));
        assert!(note(&mut source, Ok(1)));
    }
}
