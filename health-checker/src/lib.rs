//! The node agent that answers the load balancer for its node.
//!
//! Watches feed a [`view::View`]; [`verdict::verdict`] decides; [`answer`] renders; [`server`] answers. Only the
//! first and the last of these do I/O.

pub mod admin;
pub mod answer;
pub mod connections;
pub mod feed;
pub mod handover;
pub mod listener;
pub mod local_probes;
pub mod metrics;
pub mod peer_proof;
pub mod port;
pub mod probe;
pub mod probers;
pub mod proxy_protocol;
pub mod published_verdict;
pub mod ready;
pub mod server;
pub mod verdict;
pub mod view;
pub mod watched_objects;
