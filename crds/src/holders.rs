//! The annotation of a Node that says which resources hold it detached.
//!
//! One annotation for all resources on the node, so that the user's key is there exactly while one of them holds it.

use crate::duration::UnixSeconds;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What the annotation holds: an entry per resource, by the first 8 characters of the resource's UID.
pub type Holders = BTreeMap<String, Entry>;

/// Characters of a value that is put on a Node, at most: as many as a label's may have. All annotations of a Node together have 256 KiB, and each
/// resource keeps a value here on each of its nodes.
pub const VALUE_CHARACTERS: usize = 63;
/// Bytes of the annotation from which on it takes no further resource in: the other half of the 256 KiB is everybody's. An entry is shorter than
/// 1 KiB, so those of the 100 resources of a namespace that are looked after fit.
pub const MOST_BYTES: usize = 128 * 1024;

/// What one resource says of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Id of the grant; only grows.
    pub id: u64,
    /// Whether this resource holds the node.
    pub phase: EntryPhase,
    /// Key of the user's annotation; `label:` and its key where it is a label.
    pub key: String,
    /// Value of the user's annotation; may be empty.
    #[serde(default)]
    pub value: String,
    /// What the user's annotation was before the first holder set it; absent when it was not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    /// When the phase began, seconds since 1970. A second holder of the same key copies the first one's.
    pub time: UnixSeconds,
}

/// Whether a resource holds a node. Within one id it moves forward only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum EntryPhase {
    /// The resource holds the node out of the load balancer.
    Detached,
    /// The resource no longer holds the node.
    Attached,
}

/// The entries as the value of the annotation.
pub fn text(holders: &Holders) -> String {
    serde_json::to_string(holders).unwrap_or_default() // a map of plain structs: always serialisable
}

/// Reads the annotation; `Err` says what is wrong with it.
pub fn parse(annotation: Option<&str>) -> Result<Holders, serde_json::Error> {
    annotation.map_or_else(|| Ok(Holders::new()), serde_json::from_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespaces_longest_entries_leave_room_for_others() {
        let value = "\u{10FFFF}".repeat(VALUE_CHARACTERS);
        // A key has at most a domain of 253 characters, a slash, and 63 more.
        let key = format!("{}{}/{}", crate::names::LABEL_MARK, "d".repeat(253), "k".repeat(63));
        let previous = Some(value.clone());
        let longest = Entry { id: 1 << 53, phase: EntryPhase::Detached, key, value, previous, time: 99_999_999_999 };
        let of = |resources: u32| (0..resources).map(|index| (format!("{index:08x}"), longest.clone())).collect::<Holders>();
        assert!(text(&of(1)).len() < 1024, "{}", text(&of(1)).len());
        assert!(text(&of(100)).len() < MOST_BYTES);
        assert!(text(&of(101)).len() < MOST_BYTES);
    }
}
