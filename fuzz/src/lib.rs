//! What bytes can become, and what must hold of it whatever they are: nothing panics, everything ends, an answer comes.
//!
//! `tests/short.rs` runs every target with made-up bytes, the same ones each time; `make fuzz` runs them under libFuzzer,
//! which looks for bytes that reach new code (`guided`).
#![allow(clippy::missing_panics_doc, reason = "a panic is a finding")]

#[path = "../../operator/planner/tests/all/world/mod.rs"]
#[allow(missing_docs, clippy::unwrap_used, reason = "written for tests, which it is part of")]
mod world;

pub mod expansion;
pub mod formats;
pub mod http;
pub mod json;
pub mod kubelet;
pub mod snapshot;
pub mod spec;

/// A target: its name, and what it does with bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 8] = [
    ("spec", spec::run),
    ("snapshot", snapshot::run),
    ("http", http::run),
    ("formats", formats::run),
    ("expansion", expansion::run),
    ("spdy", kubelet::spdy),
    ("websocket", kubelet::websocket),
    ("logs", kubelet::logs),
];
