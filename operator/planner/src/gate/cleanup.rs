//! What gates, and resources that are gone, have left on a Node, and the patch that takes it away.

use super::{
    patch::{Changes, patch},
    record::{Origin, records},
};
use crate::snapshot::NodeFacts;
use crds::{
    holders::{self, EntryPhase},
    names,
};
use serde_json::Value;
use std::collections::BTreeSet;

/// What goes from a Node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Leftovers {
    /// Taints that a record says the operator put there, as `key:effect`.
    pub taints: Vec<String>,
    /// Taints that stay although a gate held the node by them: they were there before, as `key:effect`.
    pub adopted: Vec<String>,
    /// Annotations with records, those included that nobody can read, and those that say that a resource holds the node detached.
    pub annotations: Vec<String>,
    /// Annotations and labels, in words, that are again what they were before a resource held the node by them.
    pub restored: Vec<String>,
    /// Labels that say that a resource uses the node, or holds it detached.
    pub labels: Vec<String>,
    /// The patch; none when there is nothing to take away.
    pub patch: Option<Value>,
}

/// What gates have left on a Node, whichever gates there are, and resources other than those that are `present`, by the first 8
/// characters of their UID: without their labels, those would lose their health checkers at once.
pub fn leftovers(node: &NodeFacts, present: &BTreeSet<String>) -> Leftovers {
    let (mut found, mut changes) = (Leftovers::default(), Changes::default());
    of_gates(node, &mut found, &mut changes);
    of_resources(node, present, &mut found, &mut changes);
    found.patch = patch(node, &changes);
    found
}

fn of_resources(node: &NodeFacts, present: &BTreeSet<String>, found: &mut Leftovers, changes: &mut Changes) {
    let members = node.labels.entries().filter_map(|(key, _)| Some((key, key.strip_prefix(names::MEMBER_LABEL_PREFIX)?)));
    found.labels.extend(members.filter(|(_, uid8)| !present.contains(*uid8)).map(|(key, _)| key.to_owned()));
    changes.labels = found.labels.iter().map(|key| (key.clone(), None)).collect();
    // An annotation that nobody can read may be somebody's.
    let Ok(all) = holders::parse(node.annotations.get(names::HOLDERS_ANNOTATION).map(String::as_str)) else { return };
    let (stay, gone): (holders::Holders, holders::Holders) = all.into_iter().partition(|(uid8, _)| present.contains(uid8));
    if gone.is_empty() {
        return;
    }
    let holds = |entry: &&holders::Entry| entry.phase == EntryPhase::Detached;
    let mut held: Vec<_> = gone.values().filter(holds).collect();
    held.sort_by_key(|entry| entry.time);
    for entry in held {
        let kept = stay.values().filter(holds).any(|other| other.key == entry.key);
        if kept || node.mark(&entry.key) != Some(&entry.value) {
            continue;
        }
        let (values, removed, key) = match entry.key.strip_prefix(names::LABEL_MARK) {
            Some(label) => (&mut changes.labels, &mut found.labels, label),
            None => (&mut changes.annotations, &mut found.annotations, entry.key.as_str()),
        };
        if values.contains_key(key) {
            continue;
        }
        match &entry.previous {
            Some(_) => found.restored.push(names::mark_in_words(&entry.key)),
            None => removed.push(key.to_owned()),
        }
        values.insert(key.to_owned(), entry.previous.clone());
    }
    let rest = (!stay.is_empty()).then(|| serde_json::to_string(&stay).unwrap_or_default()); // strings and numbers
    if rest.is_none() {
        found.annotations.push(names::HOLDERS_ANNOTATION.to_owned());
    } else {
        found.restored.push(names::mark_in_words(names::HOLDERS_ANNOTATION));
    }
    changes.annotations.insert(names::HOLDERS_ANNOTATION.to_owned(), rest);
}

fn of_gates(node: &NodeFacts, found: &mut Leftovers, changes: &mut Changes) {
    for (key, _) in node.annotations.entries().filter(|(key, _)| key.starts_with(names::GATE_RECORD_PREFIX)) {
        found.annotations.push(key.to_owned());
        changes.annotations.insert(key.to_owned(), None);
    }
    let records = records(&node.annotations);
    for (place, taint) in node.taints.iter().enumerate() {
        let mut held =
            records.values().filter(|record| record.is_held() && record.key == taint.key && record.effect == taint.effect).peekable();
        if held.peek().is_none() {
            continue;
        }
        let named = format!("{}:{}", taint.key, taint.effect);
        if held.any(|record| record.origin == Origin::Applied) {
            changes.removals.push(place);
            found.taints.push(named);
        } else {
            found.adopted.push(named);
        }
    }
}
