//! What goes wrong on purpose.

mod log;
mod proxy;
mod request;
mod stream;

pub use log::Exchange;
pub use proxy::{Fault, FaultProxy, Reached};
pub use request::Request;
