//! Patches of a Node: holders, the user's key, the member label.
//!
//! Every one tests the Node's UID and what it replaces, the whole holders annotation where it changes that, so that two resources, or two
//! operators, cannot write over each other.

use crate::{
    facts::NodeFacts,
    patch::{JsonPatch, annotation, label, mark as mark_path},
};
use crds::{
    UnixSeconds,
    holders::{self, Entry, EntryPhase, Holders, text},
    ledger::Annotation,
    names,
};
use serde_json::Value;

/// Entry `id Detached` and the user's key.
///
/// `time` and `previous` come from an entry that already holds the same key, ours or another's: a second holder must not
/// wait for a timestamp that the detacher wrote before, nor take our own value for the user's.
pub fn detach(node: &NodeFacts, holders: &Holders, uid8: &str, id: u64, mark: &Annotation, now: UnixSeconds) -> Value {
    // Where somebody took the key away meanwhile, the detacher may have attached the node: the time starts anew.
    let on = node.mark(&mark.key).is_some();
    let earlier = holders.values().find(|entry| on && entry.phase == EntryPhase::Detached && entry.key == mark.key);
    let current = node.mark(&mark.key).cloned();
    let entry = Entry {
        id,
        phase: EntryPhase::Detached,
        key: mark.key.clone(),
        value: mark.value.clone(),
        previous: earlier.map_or(current, |earlier| earlier.previous.clone()),
        time: earlier.map_or(now, |earlier| earlier.time),
    };
    // A changed key leaves the old one behind: put that back unless somebody else holds it.
    let dropped = holders.get(uid8).filter(|ours| ours.phase == EntryPhase::Detached && ours.key != mark.key).cloned();
    let mut after = holders.clone();
    after.insert(uid8.to_owned(), entry);
    let mut patch = write(node, holders, &after);
    if let Some(dropped) = dropped {
        patch = put_back(patch, node, &after, &dropped);
    }
    if node.mark(&mark.key) != Some(&mark.value) {
        patch = patch.add(&mark_path(&mark.key), mark.value.as_str());
    }
    patch.into_value()
}

/// Entry `id Attached`; the user's key goes, or goes back to what it was, when nobody holds it any more.
pub fn unmark(node: &NodeFacts, holders: &Holders, uid8: &str, id: u64, now: UnixSeconds) -> Value {
    let Some(ours) = holders.get(uid8).cloned() else { return fence(node, holders, uid8, id, now) };
    let mut after = holders.clone();
    let value = short(&ours.value);
    after.insert(uid8.to_owned(), Entry { id, phase: EntryPhase::Attached, value, previous: None, time: now, ..ours.clone() });
    let patch = write(node, holders, &after);
    if ours.phase == EntryPhase::Detached { put_back(patch, node, &after, &ours) } else { patch }.into_value()
}

/// Entry `id Attached` on a Node that we do not hold.
pub fn fence(node: &NodeFacts, holders: &Holders, uid8: &str, id: u64, now: UnixSeconds) -> Value {
    let mut after = holders.clone();
    let key = holders.get(uid8).map(|entry| entry.key.clone()).unwrap_or_default();
    let value = holders.get(uid8).map(|entry| short(&entry.value)).unwrap_or_default();
    after.insert(uid8.to_owned(), Entry { id, phase: EntryPhase::Attached, key, value, previous: None, time: now });
    write(node, holders, &after).into_value()
}

/// Our entry away; whatever it held is put back.
pub fn remove_entry(node: &NodeFacts, holders: &Holders, uid8: &str) -> Value {
    let mut after = holders.clone();
    let ours = after.remove(uid8);
    let patch = write(node, holders, &after);
    match ours {
        Some(ours) if ours.phase == EntryPhase::Detached => put_back(patch, node, &after, &ours),
        _ => patch,
    }
    .into_value()
}

/// The member label; `None` takes it away.
pub fn member(node: &NodeFacts, uid8: &str, value: Option<&str>) -> Value {
    let key = names::member_label(uid8);
    let at = label(&key);
    let old = node.labels.get(&key).map_or(Value::Null, |old| old.as_str().into());
    let patch = JsonPatch::of(&node.uid);
    match value {
        Some(value) => patch.test(&at, old).add(&at, value),
        // Whether the node is chosen was read from this version of it.
        None => patch.test("/metadata/resourceVersion", node.resource_version.as_str()).test(&at, old).remove(&at),
    }
    .into_value()
}

/// Tests the old annotation and writes the new one.
///
/// An entry that is there differs from each that was there before, by its id. A missing one does not: before an entry comes, the version
/// of the Node is tested, or a write from before the last one went would put it on again.
fn write(node: &NodeFacts, before: &Holders, after: &Holders) -> JsonPatch {
    let at = annotation(names::HOLDERS_ANNOTATION);
    let mut patch = JsonPatch::of(&node.uid);
    if after.len() > before.len() {
        patch = patch.test("/metadata/resourceVersion", node.resource_version.as_str());
    }
    if !node.has_annotations {
        return patch.test("/metadata/annotations", Value::Null).add("/metadata/annotations", serde_json::json!({})).add(&at, text(after));
    }
    let old = node.annotations.get(names::HOLDERS_ANNOTATION);
    patch = patch.test(&at, old.map_or(Value::Null, |old| old.as_str().into()));
    match (after.is_empty(), old) {
        (true, None) => patch,
        (true, Some(_)) => patch.remove(&at),
        (false, _) => patch.add(&at, text(after)),
    }
}

/// The annotation is so long that it takes in no further resource.
pub fn is_full(holders: &Holders, uid8: &str) -> bool {
    !holders.contains_key(uid8) && text(holders).len() > holders::MOST_BYTES
}

/// A value of an earlier release, when it could be longer, cannot be asked for again.
fn short(value: &str) -> String {
    if value.chars().count() > holders::VALUE_CHARACTERS { String::new() } else { value.to_owned() }
}

/// The user's key, when no holder of it is left: only if it still has the value that we gave it.
fn put_back(patch: JsonPatch, node: &NodeFacts, after: &Holders, ours: &Entry) -> JsonPatch {
    let held = after.values().any(|entry| entry.phase == EntryPhase::Detached && entry.key == ours.key);
    if held || node.mark(&ours.key) != Some(&ours.value) {
        return patch;
    }
    let at = mark_path(&ours.key);
    match &ours.previous {
        Some(previous) if *previous == ours.value => patch,
        Some(previous) => patch.add(&at, previous.as_str()),
        None => patch.remove(&at),
    }
}
