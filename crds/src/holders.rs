//! The annotation of a Node that says which resources hold it detached.
//!
//! One annotation for all resources on the node, so that the user's key is there exactly while one of them holds it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What the annotation holds: an entry per resource, by the first 8 characters of the resource's UID.
pub type Holders = BTreeMap<String, Entry>;

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
    pub time: i64,
}

/// Whether a resource holds a node. Within one id it moves forward only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum EntryPhase {
    /// The resource holds the node out of the load balancer.
    Detached,
    /// It does not.
    Attached,
}

/// Reads the annotation; `Err` says what is wrong with it.
pub fn parse(annotation: Option<&str>) -> Result<Holders, serde_json::Error> {
    annotation.map_or_else(|| Ok(Holders::new()), serde_json::from_str)
}
