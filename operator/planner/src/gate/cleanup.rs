//! What gates have left on a Node, and the patch that takes it away.

use super::{
    patch::{Changes, patch},
    record::{Origin, records},
};
use crate::snapshot::NodeFacts;
use crds::names;
use serde_json::Value;

/// What goes from a Node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Leftovers {
    /// Taints that a record says the operator put there, as `key:effect`.
    pub taints: Vec<String>,
    /// Taints that stay although a gate held the node by them: they were there before, as `key:effect`.
    pub adopted: Vec<String>,
    /// Annotations with records, those included that nobody can read.
    pub annotations: Vec<String>,
    /// The patch; none when there is nothing to take away.
    pub patch: Option<Value>,
}

/// What gates have left on a Node, whichever gates there are.
pub fn leftovers(node: &NodeFacts) -> Leftovers {
    let (mut found, mut changes) = (Leftovers::default(), Changes::default());
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
    found.patch = patch(node, &changes);
    found
}
