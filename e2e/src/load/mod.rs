//! Load on a bed, and what it showed.

pub mod checks;
pub(crate) mod outage;
mod traffic;
mod wrk;

pub use traffic::{Outcome, Traffic};
pub use wrk::{Load, LoadOptions, Summary};
