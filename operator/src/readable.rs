//! Objects of one kind as a watch shows them, of which some may be undecodable.

use kube::{Resource, ResourceExt as _, core::DeserializeGuard};
use std::collections::{BTreeMap, BTreeSet};

/// What can be decoded, by its key. Of what cannot be decoded any more, that which it said last stays.
#[derive(Debug)]
pub struct Readable<K, V> {
    /// Objects.
    pub objects: BTreeMap<K, V>,
    /// Keys of those that cannot be decoded as they are now.
    pub unreadable: BTreeSet<K>,
}

impl<K, V> Default for Readable<K, V> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), unreadable: BTreeSet::new() }
    }
}

impl<K: Ord, V: Resource> Readable<K, V> {
    /// An object has come, or has changed.
    pub fn take(&mut self, key: K, guarded: DeserializeGuard<V>) {
        let (namespace, name) = (guarded.namespace(), guarded.name_any());
        match guarded.0 {
            Ok(object) => {
                self.unreadable.remove(&key);
                self.objects.insert(key, object);
            }
            Err(error) => {
                tracing::error!(namespace, gate = name, %error, "cannot decode the gate; its last valid content stays in force");
                self.unreadable.insert(key);
            }
        }
    }

    /// Exactly these exist: what is not listed is gone, also what could not be decoded before.
    pub fn replace(&mut self, listed: BTreeMap<K, DeserializeGuard<V>>) {
        self.objects.retain(|key, _| listed.contains_key(key));
        self.unreadable.retain(|key| listed.contains_key(key));
        for (key, guarded) in listed {
            self.take(key, guarded);
        }
    }

    /// An object is gone.
    pub fn remove(&mut self, key: &K) {
        self.unreadable.remove(key);
        self.objects.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::NodeReadinessGate;
    use serde_json::json;

    fn gate(key: &str) -> DeserializeGuard<NodeReadinessGate> {
        let spec = json!({ "allNodes": true, "taint": { "key": key }, "requirements": [] });
        serde_json::from_value(json!({
            "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "NodeReadinessGate",
            "metadata": { "name": "edge" }, "spec": if key.is_empty() { json!(7) } else { spec },
        }))
        .unwrap()
    }

    #[test]
    fn an_undecodable_object_keeps_its_last_state_until_removed() {
        let mut known = Readable::<&str, NodeReadinessGate>::default();
        let key = |known: &Readable<&str, NodeReadinessGate>| known.objects.get("edge").map(|gate| gate.spec.taint.key.clone());
        known.take("edge", gate("a"));
        known.take("edge", gate(""));
        assert_eq!((key(&known).as_deref(), known.unreadable.len()), (Some("a"), 1));
        known.replace(BTreeMap::from([("edge", gate(""))]));
        assert_eq!((key(&known).as_deref(), known.unreadable.len()), (Some("a"), 1));
        known.take("edge", gate("b"));
        assert_eq!((key(&known).as_deref(), known.unreadable.len()), (Some("b"), 0));
        known.remove(&"edge");
        assert_eq!(key(&known), None);
    }
}
