//! Readiness gates of nodes: what is decided about one node, and what its patch does to the object that the API server has by then.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test that cannot go on has failed")]
#![allow(clippy::needless_pass_by_value, reason = "cases are written where they are used")]
#![allow(clippy::wildcard_imports, reason = "the life of a node is the language of these tests")]

mod claims;
mod ends;
mod in_force;
mod life;
mod links;
mod page;
mod replicas;
mod requirements;
mod several;
mod status;
mod taints;
mod writes;
