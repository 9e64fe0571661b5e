//! How two pod templates differ, and the operations that make one of them the other.
//!
//! Templates are never sent back as they were read: whatever the operator does not know of them would be lost on the way, and a
//! Deployment whose template is not its `ReplicaSet`'s to the letter makes another `ReplicaSet`.

use crate::patch::{self, JsonPatch};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Label by which a Deployment tells its `ReplicaSets` and their pods apart.
pub const HASH_LABEL: &str = "pod-template-hash";

/// A container's image that changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Index of the container in the spec.
    pub place: usize,
    /// Name of the container.
    pub container: String,
    /// Current image.
    pub from: String,
    /// Wanted image.
    pub to: String,
}

/// Keys that change: what they had, and what they get.
type KeyChanges = BTreeMap<String, (Option<String>, Option<String>)>;

/// All that may change on a running pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Images that change.
    pub images: Vec<Image>,
    /// Labels that change.
    pub labels: KeyChanges,
    /// Annotations that change.
    pub annotations: KeyChanges,
    /// There are no annotations at all yet: JSON Patch cannot add into a missing map.
    pub lacks_annotations: bool,
}

/// What makes the template `from` the template `to`; `None` when that takes more than may change on a running pod.
pub fn between(from: &Value, to: &Value) -> Option<Change> {
    if bare(from) != bare(to) {
        return None;
    }
    let images = containers(from).zip(containers(to)).enumerate().filter_map(|(place, (from, to))| {
        let image = |container: &Value| container["image"].as_str().unwrap_or_default().to_owned();
        let container = from["name"].as_str().unwrap_or_default().to_owned();
        Some(Image { place, container, from: image(from), to: image(to) }).filter(|image| image.from != image.to)
    });
    let annotations = texts(from, "annotations");
    Some(Change {
        images: images.collect(),
        labels: keys(&texts(from, "labels"), &texts(to, "labels")),
        lacks_annotations: annotations.is_empty(),
        annotations: keys(&annotations, &texts(to, "annotations")),
    })
}

/// The containers of a template, in order.
pub fn containers(template: &Value) -> impl Iterator<Item = &Value> {
    template["spec"]["containers"].as_array().into_iter().flatten()
}

/// Labels or annotations of a template, but for the label that only the copy of a `ReplicaSet` has.
pub fn texts(template: &Value, what: &str) -> BTreeMap<String, String> {
    let all = template["metadata"][what].as_object().into_iter().flatten();
    let all = all.filter(|(key, _)| *key != HASH_LABEL);
    all.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// What two sets of keys differ in.
pub fn keys(from: &BTreeMap<String, String>, to: &BTreeMap<String, String>) -> KeyChanges {
    let all = from.keys().chain(to.keys());
    let pairs = all.map(|key| (key.clone(), (from.get(key).cloned(), to.get(key).cloned())));
    pairs.filter(|(_, (from, to))| from != to).collect()
}

/// A template without all that may change on a running pod.
fn bare(template: &Value) -> Value {
    let mut bare = template.clone();
    if let Some(metadata) = bare["metadata"].as_object_mut() {
        metadata.remove("labels");
        metadata.remove("annotations");
    }
    if bare["metadata"].as_object().is_some_and(Map::is_empty) {
        bare["metadata"] = Value::Null;
    }
    for container in bare["spec"]["containers"].as_array_mut().into_iter().flatten() {
        container["image"] = Value::Null;
    }
    bare
}

impl Change {
    /// No image, label or annotation changes.
    pub fn is_empty(&self) -> bool {
        self.images.is_empty() && self.labels.is_empty() && self.annotations.is_empty()
    }

    /// The operations, each with a test of what it replaces; `root` is empty for a pod.
    pub fn write(&self, mut patch: JsonPatch, root: &str) -> JsonPatch {
        for Image { place, container, from, to } in &self.images {
            let at = format!("{root}/spec/containers/{place}");
            patch = patch.test(&format!("{at}/name"), container.as_str()).test(&format!("{at}/image"), from.as_str());
            patch = patch.add(&format!("{at}/image"), to.as_str());
        }
        let none = |map: &KeyChanges| map.values().all(|(_, to)| to.is_none());
        if self.lacks_annotations && !none(&self.annotations) {
            let at = format!("{root}/metadata/annotations");
            patch = patch.test(&at, Value::Null).add(&at, Value::Object(Map::new()));
        }
        for (path, changed) in [(patch::label as fn(&str) -> String, &self.labels), (patch::annotation, &self.annotations)] {
            for (key, (from, to)) in changed {
                let at = format!("{root}{}", path(key));
                patch = patch.test(&at, from.as_deref().map_or(Value::Null, Into::into));
                patch = match to {
                    Some(to) => patch.add(&at, to.as_str()),
                    None => patch.remove(&at),
                };
            }
        }
        patch
    }

    /// The template that comes of it.
    pub fn apply(&self, template: &Value) -> Value {
        let mut changed = template.clone();
        for image in &self.images {
            changed["spec"]["containers"][image.place]["image"] = image.to.as_str().into();
        }
        for (what, keys) in [("labels", &self.labels), ("annotations", &self.annotations)] {
            for (key, (_, to)) in keys {
                match to {
                    Some(to) => changed["metadata"][what][key] = to.as_str().into(),
                    None => drop(changed["metadata"][what].as_object_mut().and_then(|map| map.remove(key))),
                }
            }
        }
        changed
    }
}
