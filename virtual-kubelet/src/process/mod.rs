//! Pods as local processes, for development and tests. A container has mounts of its own and nothing
//! else: it shares the network, the processes, the users and the root file system of the agent.

mod access;
mod admission;
mod any_certificate;
mod attempt;
pub(crate) mod backoff;
mod container;
pub mod container_init;
mod credentials;
mod figures;
mod grpc_health;
mod images;
mod kubelet;
mod leftovers;
mod log_tail;
mod mount_plan;
mod probe;
mod prober;
mod process_table;
mod provider;
pub mod shim;
mod site;
mod slot;
pub(crate) mod status;
mod summary;
mod token;
mod volume_keeper;
mod volumes;
mod worker;

pub use access::AccessError;
pub use credentials::Powers;
pub use figures::{ContainerFigures, PodFigures};
pub use images::{Image, ImageError, ImageTable};
pub use kubelet::KubeletHandlers;
pub use leftovers::end_all;
pub use provider::ProcessProvider;
pub use site::{Site, claim};
