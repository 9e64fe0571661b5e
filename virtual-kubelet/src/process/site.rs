//! What all pods of a process-backed node share.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::Client;

use super::credentials::Powers;
use super::images::ImageTable;
use super::shim::LogRotation;
use crate::pod::environment::NodeFacts;
use crate::pod::{Events, PodId};

/// The place where pods run.
///
/// ```no_run
/// use virtual_kubelet::process::{ImageTable, Powers, Site};
/// use virtual_kubelet::pod::Events;
///
/// /// A place below a directory of one's own, for tests.
/// fn below(directory: &std::path::Path, client: kube::Client) -> Site {
///     Site {
///         client,
///         events: Events::none(),
///         node: Default::default(),
///         root: directory.join("root"),
///         images: ImageTable::new(directory.join("images.json")),
///         powers: Powers::of_this_process(),
///         init_program: "target/debug/virtual-kubelet".into(),
///         log_rotation: Default::default(),
///     }
/// }
/// ```
#[derive(Clone)]
pub struct Site {
    /// Access to the API server with the node's identity.
    pub client: Client,
    /// Where events about pods go.
    pub events: Events,
    /// The node's facts.
    pub node: NodeFacts,
    /// Where pods' directories are.
    pub root: PathBuf,
    /// From image names to programs.
    pub images: ImageTable,
    /// Who containers may run as.
    pub powers: Powers,
    /// A binary that has the subcommands `container-shim`, `container-init` and `container-exec`: the `virtual-kubelet` of this
    /// crate, in the same version.
    pub init_program: PathBuf,
    /// How the logs of containers are kept from growing.
    pub log_rotation: LogRotation,
}

impl Site {
    /// The directory of a pod.
    pub(super) fn pod_dir(&self, id: &PodId) -> PathBuf {
        self.root.join("pods").join(format!("{}_{}_{}", id.namespace, id.name, id.uid))
    }

    /// The directory of a pod's volumes.
    pub(super) fn volumes_dir(&self, id: &PodId) -> PathBuf {
        self.root.join("volumes").join(format!("{}_{}_{}", id.namespace, id.name, id.uid))
    }

    /// The directory of a container: its logs and the notes about its process.
    pub(super) fn container_dir(&self, id: &PodId, container: &str) -> PathBuf {
        self.pod_dir(id).join(container)
    }

    /// A directory that exists and is covered by every container's mounts while they are made.
    pub(super) fn staging(&self) -> PathBuf {
        self.root.join("staging")
    }
}

/// Claims a root directory for one agent: two would start every container twice. The claim lasts as long as the file is
/// open, and ends with the process however that ends. Waits for up to a second.
///
/// ```
/// use std::io::ErrorKind;
/// use virtual_kubelet::process::claim;
///
/// let root = std::env::temp_dir().join(format!("claimed-{}", std::process::id()));
/// let claimed = claim(&root)?;
/// assert_eq!(claim(&root).unwrap_err().kind(), ErrorKind::AddrInUse);
/// drop(claimed);
/// assert!(claim(&root).is_ok());
/// # std::fs::remove_dir_all(root)?;
/// # Ok::<_, std::io::Error>(())
/// ```
///
/// # Errors
/// `AddrInUse` when another agent has it, else what the file system says.
pub fn claim(root: &Path) -> std::io::Result<File> {
    /// A process that an agent was starting when it died holds its files for a moment longer.
    const TRIES: usize = 100;
    std::fs::create_dir_all(root)?;
    let file = File::options().create(true).truncate(false).write(true).open(root.join("agent.lock"))?;
    for _ in 0..TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(10)),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    let text = format!("another agent uses the directory {}", root.display());
    Err(std::io::Error::new(std::io::ErrorKind::AddrInUse, text))
}
