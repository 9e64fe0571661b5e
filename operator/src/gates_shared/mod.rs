//! What gates of nodes and gates of pods share: what is known of them in this process, what defines them, how watches are followed.
//!
//! The watches of the cluster tell [`GateState`] what has changed. Engines of gates take that, and passes over resources ask it how gates
//! bear on their nodes. What only one kind of gates needs is in [`node_gates`](crate::node_gates) or [`pod_gates`](crate::pod_gates).

pub mod definitions;
pub(crate) mod follow;
mod news;
pub(crate) mod pod_state;
pub(crate) mod policy_sync;
mod state;
pub(crate) mod webhook_sync;

pub use state::{Changes, CompatGates, GateState};
pub use webhook_sync::WebhookService;
