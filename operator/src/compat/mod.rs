//! What stands in for istio-cni-taint and nodetaintshandler: gates of a `ConfigMap` and of a preset, and the mode with one pass.
//!
//! The command line says which. A `ConfigMap` is watched and becomes a gate; gates go to [`gates_shared`](crate::gates_shared) and are
//! decided on as all others are. Nothing here writes to a Node but the mode with one pass.

mod config_map;
pub mod one_pass;

pub use config_map::{ConfigMapGate, gates_of_flags};
