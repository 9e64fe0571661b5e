//! Pods as local processes, for development and tests. A container has mounts of its own and nothing
//! else: it shares the network, the processes, the users and the root file system of the agent.

mod admission;
mod attempt;
mod backoff;
mod container;
pub mod container_init;
mod credentials;
mod images;
mod logs;
mod mount_plan;
mod probe;
mod prober;
mod process_note;
mod provider;
mod site;
mod slot;
mod status;
mod token;
mod volume_keeper;
mod volumes;
mod worker;

pub use credentials::Powers;
pub use images::{Image, ImageError, ImageTable};
pub use provider::ProcessProvider;
pub use site::Site;
