//! The Node object and its Lease.
//!
//! A [`NodeProvider`] says whether the node is well, options say how often that is written; the Node's status and the Lease go to the API
//! server. Pods are in [`pod`](crate::pod).
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use tokio_util::sync::CancellationToken;
//! use virtual_kubelet::node::{self, NaiveNodeProvider, NodeController};
//!
//! # async fn example(client: kube::Client) -> anyhow::Result<()> {
//! let facts = node::MachineFacts { name: "n1".into(), internal_ip: "198.18.0.1".into(), ..Default::default() };
//! let provider = Arc::new(NaiveNodeProvider::default());
//! let options = [node::with_node_enable_lease_v1(Duration::ZERO), node::with_node_ping_interval(Duration::from_secs(5))];
//! let controller = NodeController::new(client, provider, node::new_node(&facts, jiff::Timestamp::now()), options)?;
//! let (ready, done, cancel) = (controller.ready(), controller.done(), CancellationToken::new());
//! tokio::spawn(controller.run(cancel.clone()));
//! tokio::select! {
//!     () = ready => println!("the node is registered"),
//!     ended = done => ended?,
//! }
//! cancel.cancel();
//! # Ok(())
//! # }
//! ```
//!
//! A controller works as if it was told this, except that it keeps no lease unless it is told to:
//!
//! ```
//! use virtual_kubelet::node::{self, DEFAULT_LEASE_DURATION, DEFAULT_RENEW_INTERVAL_FRACTION, ForeignHolder, NodeControllerOpt};
//!
//! let renew_interval = DEFAULT_LEASE_DURATION.mul_f64(DEFAULT_RENEW_INTERVAL_FRACTION);
//! assert_eq!((DEFAULT_LEASE_DURATION.as_secs(), renew_interval.as_secs()), (40, 10));
//! let defaults: [NodeControllerOpt; 5] = [
//!     node::with_node_ping_interval(node::DEFAULT_PING_INTERVAL),
//!     node::with_node_ping_timeout(node::DEFAULT_PING_TIMEOUT),
//!     node::with_node_status_update_interval(node::DEFAULT_STATUS_UPDATE_INTERVAL),
//!     node::with_node_enable_lease_v1_with_renew_interval(DEFAULT_LEASE_DURATION, renew_interval),
//!     node::with_node_lease_foreign_holder(ForeignHolder::TakeOver),
//! ];
//! ```

mod controller;
mod error;
mod lease;
mod options;
mod ping;
mod provider;
mod status;

pub use controller::NodeController;
pub use error::NodeControllerError;
pub use lease::{DEFAULT_LEASE_DURATION, DEFAULT_RENEW_INTERVAL_FRACTION, ErrConflictingLeaseControllerConfiguration, ForeignHolder};
pub use options::{
    DEFAULT_PING_INTERVAL, DEFAULT_PING_TIMEOUT, DEFAULT_STATUS_UPDATE_INTERVAL, ErrorHandler, NodeControllerOpt,
    with_node_enable_lease_v1, with_node_enable_lease_v1_with_renew_interval, with_node_lease_client, with_node_lease_foreign_holder,
    with_node_ping_interval, with_node_ping_timeout, with_node_reconcile_spec, with_node_status_update_error_handler,
    with_node_status_update_interval, with_recoveries,
};
pub use provider::{NaiveNodeProvider, NodeProvider, NodeStatusSink};
pub use status::{APPLIED_KEYS_ANNOTATION, MachineFacts, new_node};
pub(crate) use status::{needs_repair, node_patch, registered};
