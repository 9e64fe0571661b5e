//! Faults in the requests of an operator: a proxy between it and the API server.
//! How a node breaks is in `bed/node.rs`, how a detacher does in `cluster/detacher.rs`.
//! A rule that the caller sets decides about each request. The log of requests and answers goes back to the caller.

mod fault;
mod log;
mod proxy;
mod request;
mod stream;

pub use fault::{Fault, Reached};
pub use log::Exchange;
pub use proxy::FaultProxy;
pub use request::Request;
