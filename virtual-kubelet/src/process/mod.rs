//! Pods as local processes, for development and tests. A container has mounts of its own and nothing else: it shares the network, the
//! processes, the users and the root file system of the agent.
//!
//! Pods come from [`pod`](crate::pod), their statuses go back there. Nothing here is a boundary for programs that one does not trust.
//!
//! ```no_run
//! use std::path::PathBuf;
//! use std::sync::Arc;
//!
//! use tokio_util::sync::CancellationToken;
//! use virtual_kubelet::node::NodeController;
//! use virtual_kubelet::pod::environment::NodeFacts;
//! use virtual_kubelet::pod::{Events, PodController};
//! use virtual_kubelet::process::{ImageTable, KubeletHandlers, LogRotation, Powers, ProcessProvider, Site};
//! # use virtual_kubelet::node::NodeProvider;
//!
//! # async fn example<P: NodeProvider>(client: kube::Client, nodes: NodeController<P>, cancel: CancellationToken) -> anyhow::Result<()> {
//! let site = Site {
//!     client: client.clone(),
//!     events: Events::start(client.clone(), "n1".into()),
//!     node: NodeFacts { address: "198.18.0.1".into(), cpu: "8".into(), memory: "16Gi".into() },
//!     root: PathBuf::from("/var/lib/virtual-kubelet"),
//!     images: ImageTable::new("/etc/virtual-kubelet/images.json".into()),
//!     powers: Powers::of_this_process(),
//!     init_program: PathBuf::from("/usr/local/bin/virtual-kubelet"),
//!     log_rotation: LogRotation::default(),
//! };
//! let provider = Arc::new(ProcessProvider::new(site, "n1".into(), nodes.server_node())?);
//! // For `api::router`.
//! let handlers = KubeletHandlers::new(provider.clone());
//! let mut config = nodes.pods(provider);
//! // The provider does that at each start of a container.
//! config.skip_downward_api_resolution = true;
//! PodController::new(config)?.run(16, cancel).await?;
//! # Ok(())
//! # }
//! ```

mod access;
mod admission;
mod any_certificate;
mod attempt;
pub(crate) mod backoff;
mod container;
// For the binary, whose subcommands these are, and for its tests.
#[doc(hidden)]
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
mod process_table;
mod provider;
#[doc(hidden)]
pub mod shim;
mod site;
mod slot;
pub(crate) mod status;
mod summary;
mod token;
mod volume_keeper;
mod volumes;
mod worker;

// For the tests of the provider: users have the kubelet's API.
#[doc(hidden)]
pub use access::AccessError;
pub use credentials::Powers;
pub use figures::{ContainerFigures, PodFigures};
pub use images::{Image, ImageError, ImageTable, Shown};
pub use kubelet::KubeletHandlers;
pub use leftovers::end_all;
pub use provider::ProcessProvider;
pub use shim::LogRotation;
pub use site::{Site, claim};
