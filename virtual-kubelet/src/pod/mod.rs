//! The pods of one node, between the API server and a provider, which runs them.
//!
//! A watch gives the pods of the node, and the provider tells their statuses (`lifecycle.rs`). `decide.rs` chooses the next operation
//! for one pod, without I/O. `perform.rs` carries it out: one call of the provider, or one request to the API server, for example the
//! write of a status. Begin with `controller.rs`, which joins these parts.

mod config;
mod controller;
mod decide;
pub mod environment;
mod events;
mod identity;
mod lifecycle;
mod perform;
mod polling;
mod pools;
pub mod references;
mod resolved;
pub mod service_variables;

pub use config::{PodControllerConfig, PodEventFilterFunc, filter_pods_for_node_name, pod_filters, pod_informer_filter};
pub use controller::PodController;
use decide::{Operation, PodRecord};
pub(crate) use decide::{is_shown, status_body};
pub use events::Events;
pub use identity::PodId;
pub use lifecycle::{PodLifecycleHandler, PodNotifier, PodStatusSink};
pub use polling::{DEFAULT_POLL_INTERVAL, Polling};
