//! What a new worker takes over from the worker of an agent that died.

use std::path::Path;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

use crate::pod::PodId;
use crate::process::container::Exit;
use crate::process::shim::{ExitNote, read_json, write_json};
use crate::process::status::Termination;

/// A pod as its worker keeps it on disk for an agent that starts anew.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::process) struct PodNote {
    /// The pod as it was last given.
    pub pod: Pod,
    /// When the node took it up.
    pub start_time: Timestamp,
    /// When what still runs is killed, once the pod is ending.
    pub kill_at: Option<Timestamp>,
    /// Whether it is ending for having been active for too long.
    pub past_deadline: bool,
}

impl PodNote {
    const FILE: &str = "pod.json";

    /// Keeps it in the pod's directory.
    pub fn write(&self, directory: &Path) -> std::io::Result<()> {
        write_json(&directory.join(Self::FILE), self)
    }

    /// What is kept in a pod's directory.
    pub fn read(directory: &Path) -> Option<Self> {
        read_json(&directory.join(Self::FILE))
    }
}

/// Id of one run of a container.
pub(super) fn container_id(pod: &PodId, container: &str, restart_count: i32) -> String {
    format!("process://{}/{container}/{restart_count}", pod.uid)
}

/// The end of a run as the pod's status shows it.
pub(super) fn termination(exit: Exit, container_id: Option<String>) -> Termination {
    Termination {
        exit_code: exit.code,
        reason: exit.reason.unwrap_or(if exit.code == 0 { "Completed" } else { "Error" }).into(),
        message: exit.message,
        started_at: exit.started_at,
        finished_at: exit.finished_at,
        container_id,
    }
}

/// The end of the run before `restart_count`. Its message was read when it was new.
pub(super) fn end_before(directory: &Path, pod: &PodId, container: &str, restart_count: i32) -> Option<Termination> {
    let before = restart_count - 1;
    ExitNote::read(directory, before)?;
    let mut exit = Exit::of(directory, before, false);
    if exit.reason.is_none() {
        exit.message = None;
    }
    Some(termination(exit, Some(container_id(pod, container, before))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(code: i32, reason: Option<&'static str>) -> Exit {
        Exit { code, reason, message: None, started_at: None, finished_at: Timestamp::UNIX_EPOCH }
    }

    #[test]
    fn an_end_without_reason_is_completed_or_an_error() {
        assert_eq!(termination(exit(0, None), None).reason, "Completed");
        assert_eq!(termination(exit(3, None), None).reason, "Error");
        assert_eq!(termination(exit(137, Some("ContainerStatusUnknown")), None).reason, "ContainerStatusUnknown");
    }
}
