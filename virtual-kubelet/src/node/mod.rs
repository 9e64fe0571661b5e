//! The Node object and its Lease.

mod controller;
mod lease;
mod provider;
mod status;

pub use controller::{NodeController, NodeControllerError, NodeControllerOptions};
pub use lease::{DEFAULT_LEASE_DURATION, ErrConflictingLeaseControllerConfiguration, LeaseOptions, renew_interval};
pub use provider::{NaiveNodeProvider, NodeProvider, NodeStatusSink};
pub use status::{MachineFacts, new_node, ready_is_foreign};
