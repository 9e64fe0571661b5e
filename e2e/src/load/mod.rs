//! Load on a bed: requests through the load balancer, health checks without pause, and how long nodes are out.
//! Nothing here makes or changes an object of the API.
//! It reads what wrk prints, answers of nodes, and counters of the load balancer. It returns figures, or an error if a request failed.

pub mod checks;
pub(crate) mod outage;
mod traffic;
mod wrk;

pub use traffic::{Outcome, Traffic};
pub use wrk::{Load, LoadOptions, Summary};
