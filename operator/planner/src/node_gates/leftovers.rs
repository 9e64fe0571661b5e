//! What gates, and resources that are gone, have left on a Node, and the patch that takes it away.

use super::{
    patch::{NodeChanges, patch},
    record::{Record, RecordOrigin, annotation_key, records},
    world::World,
};
use crate::facts::NodeFacts;
use crds::{
    holders::{self, EntryPhase},
    names,
    node_readiness_gate::GateTaint,
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// How long a resource must be missing until it counts as gone: a watch that lags catches up sooner.
pub const MISSING_FOR: Duration = Duration::from_mins(5);
/// Resources of which one patch removes what they left on a Node: each label takes two operations, of which the API server takes 10,000.
const PER_PATCH: usize = 1_000;

/// What may be an operator's. A kubelet may annotate its own Node, and may change neither its taints nor many of its labels: what an
/// annotation says of those is no reason to take them away.
#[derive(Clone, Debug, Default)]
pub struct GatesAndResources {
    /// Gates that are there, with the taints that they have or had, and the keys by which resources may hold nodes detached.
    pub world: World,
    /// Taints of gates that are gone, as whoever cleans up names them.
    pub named: Vec<GateTaint>,
}

impl GatesAndResources {
    fn has_put(&self, gate_uid: &str, record: &Record) -> bool {
        let is_it = |taint: &GateTaint| taint.key == record.key && taint.effect.as_str() == record.effect;
        self.world.had_taint(gate_uid, &record.key, &record.effect) || self.named.iter().any(is_it)
    }

    fn may_hold(&self, entry: &holders::Entry) -> bool {
        self.world.rights.names_mark(&entry.key)
    }
}

/// What uninstalling removes from a Node, and what it leaves there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Leftovers {
    /// Taints that a record says the operator put there, as `key:effect`.
    pub taints: Vec<String>,
    /// Taints that stay although a gate held the node by them: they were there before, as `key:effect`.
    pub adopted: Vec<String>,
    /// Taints that stay, with their records, because no gate is known to have put them there, as `key:effect`.
    pub unknown: Vec<String>,
    /// Annotations and labels, in words, that stay, with what is recorded of them, because no resource may hold a node by them.
    pub unknown_marks: Vec<String>,
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
pub fn leftovers(node: &NodeFacts, present: &BTreeSet<String>, known: &GatesAndResources) -> Leftovers {
    let (mut found, mut changes) = (Leftovers::default(), NodeChanges::default());
    of_gates(node, known, &mut found, &mut changes);
    of_resources(node, present, known, &mut found, &mut changes);
    found.patch = patch(node, &changes);
    found
}

/// The same of resources alone, and only of these that are `gone`. Others may be missing, too, and keep what is theirs.
pub fn of_gone(node: &NodeFacts, gone: &BTreeSet<String>, known: &GatesAndResources) -> Leftovers {
    let all: BTreeSet<_> = resources_on(node).collect();
    let going: BTreeSet<_> = all.intersection(gone).take(PER_PATCH).cloned().collect();
    let (mut found, mut changes) = (Leftovers::default(), NodeChanges::default());
    of_resources(node, &(&all - &going), known, &mut found, &mut changes);
    found.patch = patch(node, &changes);
    found
}

/// Resources that are not `present` and have a label or an entry on a Node, each with the time since which it has been missing: that
/// of `before`, or `now`, by a clock that never goes back.
pub fn missing<'n>(
    nodes: impl IntoIterator<Item = &'n NodeFacts>,
    present: &BTreeSet<String>,
    before: &BTreeMap<String, Duration>,
    now: Duration,
) -> BTreeMap<String, Duration> {
    let absent = nodes.into_iter().flat_map(resources_on).filter(|uid8| !present.contains(uid8));
    let with_time = |uid8: String| {
        let since = before.get(&uid8).copied().unwrap_or(now);
        (uid8, since)
    };
    absent.map(with_time).collect()
}

/// Those of the missing resources that count as gone.
pub fn gone(missing: &BTreeMap<String, Duration>, now: Duration) -> BTreeSet<String> {
    missing.iter().filter(|(_, since)| now.saturating_sub(**since) >= MISSING_FOR).map(|(uid8, _)| uid8.clone()).collect()
}

/// Whose label or entry a Node has, by the first 8 characters of the UID. Of an annotation that nobody can read there is no entry.
fn resources_on(node: &NodeFacts) -> impl Iterator<Item = String> {
    members(node).map(|(_, uid8)| uid8.to_owned()).chain(entries(node).unwrap_or_default().into_keys())
}

/// Keys of labels that say that a resource uses the Node, and which one.
fn members(node: &NodeFacts) -> impl Iterator<Item = (&str, &str)> {
    node.labels.entries().filter_map(|(key, _)| Some((key, key.strip_prefix(names::MEMBER_LABEL_PREFIX)?)))
}

fn entries(node: &NodeFacts) -> Option<holders::Holders> {
    holders::parse(node.annotations.get(names::HOLDERS_ANNOTATION).map(String::as_str)).ok()
}

fn of_resources(node: &NodeFacts, present: &BTreeSet<String>, known: &GatesAndResources, found: &mut Leftovers, changes: &mut NodeChanges) {
    found.labels.extend(members(node).filter(|(_, uid8)| !present.contains(*uid8)).map(|(key, _)| key.to_owned()));
    changes.labels = found.labels.iter().map(|key| (key.clone(), None)).collect();
    // An annotation that nobody can read may be somebody's.
    let Some(all) = entries(node) else { return };
    let holds = |entry: &&holders::Entry| entry.phase == EntryPhase::Detached;
    let is_unknown = |entry: &holders::Entry| holds(&entry) && node.mark(&entry.key) == Some(&entry.value) && !known.may_hold(entry);
    let (stay, gone): (holders::Holders, holders::Holders) =
        all.into_iter().partition(|(uid8, entry)| present.contains(uid8) || is_unknown(entry));
    let unknown: BTreeSet<_> = stay.iter().filter(|(uid8, _)| !present.contains(*uid8)).map(|(_, entry)| entry.key.as_str()).collect();
    found.unknown_marks = unknown.into_iter().map(names::mark_in_words).collect();
    if gone.is_empty() {
        return;
    }
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

fn of_gates(node: &NodeFacts, known: &GatesAndResources, found: &mut Leftovers, changes: &mut NodeChanges) {
    let records = records(&node.annotations);
    let mut kept = BTreeSet::new();
    for (place, taint) in node.taints.iter().enumerate() {
        let is_it = |record: &Record| record.is_held() && record.key == taint.key && record.effect == taint.effect;
        let held: Vec<_> = records.iter().filter(|(_, record)| is_it(record)).collect();
        let applied: Vec<_> = held.iter().filter(|(_, record)| record.origin == RecordOrigin::Applied).collect();
        let named = format!("{}:{}", taint.key, taint.effect);
        if applied.iter().any(|(uid, record)| known.has_put(uid, record)) {
            changes.removals.push(place);
            found.taints.push(named);
        } else if !applied.is_empty() {
            kept.extend(applied.iter().map(|(uid, _)| annotation_key(uid)));
            found.unknown.push(named);
        } else if !held.is_empty() {
            found.adopted.push(named);
        }
    }
    let gone = |key: &&str| key.starts_with(names::GATE_RECORD_PREFIX) && !kept.contains(*key);
    for key in node.annotations.entries().map(|(key, _)| key).filter(gone) {
        found.annotations.push(key.to_owned());
        changes.annotations.insert(key.to_owned(), None);
    }
}
