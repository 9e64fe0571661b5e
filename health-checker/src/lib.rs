//! The node agent that answers the load balancer for its node.
//!
//! Watches feed a [`view::View`], [`verdict::verdict`] decides, [`answer`] renders, and [`server`] answers. What decides and renders does
//! no I/O. Objects of the API and probes of local pods come in, answers and metrics go out. Nothing here writes to the API server.

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
