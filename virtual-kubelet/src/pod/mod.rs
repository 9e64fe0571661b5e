//! The pods of one node, between the API server and a provider.

mod controller;
mod decide;
pub mod environment;
mod events;
mod identity;
mod lifecycle;
pub mod references;
mod resolved;
mod resource_field;
pub mod service_variables;

pub use controller::{PodController, PodControllerOptions};
pub use decide::{Operation, PodRecord};
pub use events::Events;
pub use identity::PodId;
pub use lifecycle::{PodLifecycleHandler, PodNotifier, PodStatusSink};
