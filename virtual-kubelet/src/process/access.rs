//! What the kubelet's API asks about containers: their streams, their logs, their figures.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

use super::figures::{self, ContainerFigures, PodFigures};
use super::process_table::ProcessTable;
use super::provider::ProcessProvider;
use super::shim::{self, LogFiles, Open, RunNote, Session, SessionError, ShimOrder, TerminalSize};
use crate::pod::PodId;

/// Why something cannot be had of a container.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// This node has no such pod, or the pod no such container.
    #[error("{0}")]
    NotFound(String),
    /// It cannot be had in the container's present state; the text says what a kubelet says.
    #[error("{0}")]
    Unavailable(String),
    /// There is no session.
    #[error(transparent)]
    Session(#[from] SessionError),
}

// Users have the kubelet's API for streams and logs (`KubeletHandlers`); the tests look closer.
impl ProcessProvider {
    fn container(&self, id: &PodId, container: &str) -> Result<(PathBuf, Option<ContainerStatus>), AccessError> {
        let (pod, status) = self.known(id).ok_or_else(|| AccessError::NotFound(format!("pod \"{}\" not found", id.name)))?;
        let spec = pod.spec.as_ref();
        let mut all = spec.into_iter().flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
        if !all.any(|known| known.name == container) {
            let text = format!("container {container} is not valid for pod {}", id.name);
            return Err(AccessError::NotFound(text));
        }
        Ok((self.site().container_dir(id, container), status_of(&status, container)))
    }

    /// The log of a container's present run or, while none has begun, of its last one; with `previous` the
    /// log of the run before.
    ///
    /// # Errors
    /// [`AccessError::NotFound`] for an unknown container, [`AccessError::Unavailable`] when the run that is asked for
    /// never was.
    #[doc(hidden)]
    pub fn log_files(&self, id: &PodId, container: &str, previous: bool) -> Result<LogFiles, AccessError> {
        let (directory, status) = self.container(id, container)?;
        if previous {
            let before = status.as_ref().and_then(ended_before).filter(|count| LogFiles::of(&directory, *count).current.exists());
            let missing =
                || AccessError::Unavailable(format!("previous terminated container \"{container}\" in pod \"{}\" not found", id.name));
            return Ok(LogFiles::of(&directory, before.ok_or_else(missing)?));
        }
        let Some(restart_count) = shim::last_begun(&directory) else {
            let reason = status.and_then(|status| status.state?.waiting?.reason).unwrap_or_else(|| "ContainerCreating".into());
            let text = format!("container \"{container}\" in pod \"{}\" is waiting to start: {reason}", id.name);
            return Err(AccessError::Unavailable(text));
        };
        Ok(LogFiles::of(&directory, restart_count))
    }

    /// Attaches to the streams of a running container: what it prints from now on, and its standard input if it
    /// has `stdin`. With `tty` everything comes as [`Output::Stdout`](super::shim::Output::Stdout).
    ///
    /// # Errors
    /// [`AccessError::NotFound`] for an unknown container, [`AccessError::Session`] when it does not run.
    #[doc(hidden)]
    pub async fn attach(&self, id: &PodId, container: &str) -> Result<Session, AccessError> {
        let (directory, _) = self.container(id, container)?;
        Ok(Session::open(&directory, Open::Attach).await?)
    }

    /// Runs a further process in a running container: with its mounts, user, environment and working directory.
    /// Dropping the session kills it.
    ///
    /// # Errors
    /// [`AccessError::NotFound`] for an unknown container, [`AccessError::Session`] when it does not run. A program that cannot
    /// be started is no error here: the session ends with code 126, and the reason is on its standard error.
    #[doc(hidden)]
    pub async fn exec(
        &self,
        id: &PodId,
        container: &str,
        argv: Vec<String>,
        stdin: bool,
        tty: Option<TerminalSize>,
    ) -> Result<Session, AccessError> {
        let (directory, _) = self.container(id, container)?;
        Ok(Session::open(&directory, Open::Exec { argv, stdin, tty }).await?)
    }

    /// What the containers that run use, by pod. Reads `/proc` once: tens of milliseconds with thousands of
    /// processes; call it in a blocking task.
    pub fn figures(&self) -> Vec<PodFigures> {
        let table = ProcessTable::read();
        let pods = self.all();
        pods.into_iter()
            .map(|(id, pod, status)| {
                let spec = pod.spec.as_ref();
                let all = spec.into_iter().flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
                let containers = all
                    .filter_map(|container| {
                        let directory = self.site().container_dir(&id, &container.name);
                        figures_of(&container.name, &directory, &table)
                    })
                    .collect();
                let started_at = status.start_time.map(|time| time.0);
                let volume_bytes = figures::size_below(&self.site().volumes_dir(&id));
                PodFigures { id, started_at, containers, volume_bytes }
            })
            .collect()
    }
}

fn status_of(status: &PodStatus, container: &str) -> Option<ContainerStatus> {
    let all = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
    all.into_iter().find(|shown| shown.name == container).cloned()
}

/// The restart count of the run whose end the status shows as the last one.
fn ended_before(status: &ContainerStatus) -> Option<i32> {
    let id = status.last_state.as_ref()?.terminated.as_ref()?.container_id.as_ref()?;
    id.rsplit_once('/')?.1.parse().ok()
}

fn figures_of(name: &str, directory: &Path, table: &ProcessTable) -> Option<ContainerFigures> {
    let order = ShimOrder::read(directory)?;
    let note = RunNote::read(directory, order.restart_count)?;
    let shim = table.row(note.shim.pid).filter(|row| row.start_ticks == note.shim.start_ticks)?;
    let log = LogFiles::of(directory, order.restart_count);
    let log_bytes = log.rotated.iter().chain([&log.current]).filter_map(|path| Some(path.metadata().ok()?.len())).sum();
    Some(figures::of_container(name, note.started_at, shim, &table.descendants(shim.pid), log_bytes))
}
