//! What a gate has decided about a node: an annotation of the Node for each gate, by the gate's UID.

use crate::facts::label_map::LabelMap;
use crds::{UnixSeconds, names};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a gate has decided about a node. Names are short: every node carries one for each gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Name of the gate.
    #[serde(rename = "g")]
    pub gate: String,
    /// Key of the gate's taint.
    #[serde(rename = "k")]
    pub key: String,
    /// Effect of the gate's taint.
    #[serde(rename = "e")]
    pub effect: String,
    /// Whether the node is held.
    #[serde(rename = "s")]
    pub state: RecordState,
    /// Who put the taint there.
    #[serde(rename = "o")]
    pub origin: RecordOrigin,
    /// Why the node was held last.
    #[serde(rename = "c")]
    pub cause: Cause,
    /// First 8 characters of the boot ID that it speaks of.
    #[serde(rename = "b", default)]
    pub boot: String,
    /// First 8 characters of the ID of the machine that it speaks of.
    #[serde(rename = "m", default)]
    pub machine: String,
    /// Generation of the gate's spec.
    #[serde(rename = "n", default)]
    pub generation: i64,
    /// Unix seconds of the last change of state; 0: the creation of the Node, by somebody who could not tell the time.
    #[serde(rename = "t")]
    pub time: UnixSeconds,
    /// The node had been there without the taint when it got it.
    #[serde(rename = "l", default, skip_serializing_if = "std::ops::Not::not")]
    pub late: bool,
}

/// Whether a node is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordState {
    /// The gate keeps its taint on the node.
    Held,
    /// The gate has released the node.
    Released,
}

/// Who put the taint there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordOrigin {
    /// The operator put the taint on the node.
    Applied,
    /// The taint was on the node before the gate held it.
    Adopted,
}

/// Why a node was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// The gate had not released the node before.
    Fresh,
    /// It had passed, and then its requirements were not met any more.
    Regression,
    /// The operator itself updates it.
    Planned,
    /// The machine was restarted.
    Reboot,
    /// Another machine took the node's name.
    Replaced,
    /// The gate's spec has changed.
    Generation,
    /// It was released for the time it took, and has not been ready since.
    TimedOut,
}

impl Record {
    /// The gate keeps its taint on the node.
    pub fn is_held(&self) -> bool {
        self.state == RecordState::Held
    }

    /// The record as the value of its annotation.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() // a plain struct: always serialisable
    }
}

/// Key of the annotation in which a gate's record is.
pub fn annotation_key(gate_uid: &str) -> String {
    format!("{}{gate_uid}", names::GATE_RECORD_PREFIX)
}

/// The records on a node, by the UID of their gate; one that somebody made unreadable is none.
pub fn records(annotations: &LabelMap) -> BTreeMap<String, Record> {
    annotations
        .entries()
        .filter_map(|(key, text)| Some((key.strip_prefix(names::GATE_RECORD_PREFIX)?.to_owned(), serde_json::from_str(text).ok()?)))
        .collect()
}
