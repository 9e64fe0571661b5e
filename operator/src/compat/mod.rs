//! What stands in for istio-cni-taint and nodetaintshandler: gates of a `ConfigMap` and of a preset, and the mode with one pass.
//!
//! The command line says which. Gates go to [`gates_shared`](crate::gates_shared) and are decided on as all others are.

mod config_map;
pub mod one_pass;

pub use config_map::{ConfigMapGate, gates_of_flags};
