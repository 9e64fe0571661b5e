//! The pods of one node, between the API server and a provider.

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
