//! The patch of a Node: taints and records, all or nothing.
//!
//! Each removal tests the key and effect at its place, not the whole taint: the API server may fill in more of it. There is no
//! resourceVersion, so a heartbeat is no conflict; the API server evaluates the tests on the object that it replaces, so no
//! taint of anybody else is lost.

use crate::{
    facts::NodeFacts,
    patch::{JsonPatch, annotation, label},
};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// A taint to add.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Addition {
    /// Key of the taint.
    pub key: String,
    /// Effect of the taint.
    pub effect: String,
    /// Value of the taint, if any.
    pub value: Option<String>,
}

/// Changes that one patch makes to a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeChanges {
    /// Places of taints that go.
    pub removals: Vec<usize>,
    /// Taints to add.
    pub additions: Vec<Addition>,
    /// Annotations with their new value; none: it goes.
    pub annotations: BTreeMap<String, Option<String>>,
    /// Labels with their new value; none: it goes.
    pub labels: BTreeMap<String, Option<String>>,
}

/// The patch; `None` when nothing changes.
pub fn patch(node: &NodeFacts, changes: &NodeChanges) -> Option<Value> {
    let annotations: BTreeMap<_, _> =
        changes.annotations.iter().filter(|(key, value)| node.annotations.get(key) != value.as_ref()).collect();
    if changes.removals.is_empty() && changes.additions.is_empty() && annotations.is_empty() && changes.labels.is_empty() {
        return None;
    }
    let patch = taints(JsonPatch::of(&node.uid), node, changes);
    let patch = changes.labels.iter().fold(patch, |patch, (key, value)| {
        let at = label(key);
        let patch = patch.test(&at, node.labels.get(key).map_or(Value::Null, |old| old.as_str().into()));
        match value {
            Some(value) => patch.add(&at, value.as_str()),
            None => patch.remove(&at),
        }
    });
    Some(write_annotations(patch, node, &annotations).into_value())
}

fn taints(mut patch: JsonPatch, node: &NodeFacts, changes: &NodeChanges) -> JsonPatch {
    let mut places = changes.removals.clone();
    places.sort_unstable();
    // From the last: those before keep their place.
    for place in places.into_iter().rev() {
        let Some(taint) = node.taints.get(place) else { continue };
        let at = format!("/spec/taints/{place}");
        patch = patch.test(&format!("{at}/key"), taint.key.as_str()).test(&format!("{at}/effect"), taint.effect.as_str()).remove(&at);
    }
    let additions: Vec<_> = changes.additions.iter().map(addition).collect();
    if node.taints.is_empty() && !additions.is_empty() {
        // One cannot append to a list that is not there; without the test, a list that came meanwhile would be written over.
        return patch.test("/spec/taints", Value::Null).add("/spec/taints", additions);
    }
    additions.into_iter().fold(patch, |patch, taint| patch.add("/spec/taints/-", taint))
}

fn addition(taint: &Addition) -> Value {
    let mut object = json!({"key": taint.key, "effect": taint.effect});
    if let Some(value) = &taint.value {
        object["value"] = value.as_str().into();
    }
    object
}

fn write_annotations(mut patch: JsonPatch, node: &NodeFacts, annotations: &BTreeMap<&String, &Option<String>>) -> JsonPatch {
    if !node.has_annotations {
        let map: Map<_, _> = annotations.iter().filter_map(|(key, value)| Some(((*key).clone(), value.as_deref()?.into()))).collect();
        if map.is_empty() {
            return patch;
        }
        return patch.test("/metadata/annotations", Value::Null).add("/metadata/annotations", Value::Object(map));
    }
    for (key, value) in annotations {
        let at = annotation(key);
        patch = patch.test(&at, node.annotations.get(key).map_or(Value::Null, |old| old.as_str().into()));
        patch = match value {
            Some(value) => patch.add(&at, value.as_str()),
            None => patch.remove(&at),
        };
    }
    patch
}
