//! What goes wrong on purpose.

mod fault;
mod log;
mod proxy;
mod request;
mod stream;

pub use fault::{Fault, Reached};
pub use log::Exchange;
pub use proxy::FaultProxy;
pub use request::Request;
