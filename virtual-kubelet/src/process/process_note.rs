//! The note about a container's process that outlives the agent, and what is done about processes that
//! a dead agent left behind.

use std::path::Path;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

const FILE: &str = "process.json";

/// A process, told apart from a later one of the same number by its start time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessNote {
    /// Process id, which is the process group's too.
    pub pid: i32,
    /// Start time in clock ticks since boot, as the kernel shows it.
    pub start_ticks: u64,
    /// The container's restarts when it was started.
    pub restart_count: i32,
}

/// The start time in the text of `/proc/<pid>/stat`.
fn start_ticks(stat: &str) -> Option<u64> {
    // The command's name may contain anything, so fields count from its closing parenthesis.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn start_ticks_of(pid: i32) -> Option<u64> {
    start_ticks(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

impl ProcessNote {
    /// Notes the living process `pid`.
    pub fn write(directory: &Path, pid: i32, restart_count: i32) -> std::io::Result<()> {
        let note = Self { pid, start_ticks: start_ticks_of(pid).unwrap_or_default(), restart_count };
        std::fs::write(directory.join(FILE), serde_json::to_vec(&note)?)
    }

    /// Reads the note of a container, if it was ever started.
    pub fn read(directory: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(directory.join(FILE)).ok()?).ok()
    }

    fn lives(&self) -> bool {
        start_ticks_of(self.pid) == Some(self.start_ticks)
    }
}

/// Kills every process group that notes below `pods` name and that still lives.
pub fn end_leftovers(pods: &Path) {
    let directories = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect::<Vec<_>>();
    for container in directories(pods).iter().flat_map(|pod| directories(pod)) {
        let Some(note) = ProcessNote::read(&container).filter(ProcessNote::lives) else { continue };
        tracing::info!(pid = note.pid, container = %container.display(), "ending a process that an earlier agent left");
        if let Err(error) = killpg(Pid::from_raw(note.pid), Signal::SIGKILL)
            && error != Errno::ESRCH
        {
            tracing::warn!(pid = note.pid, %error, "could not end it");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_a_name_with_spaces_and_parentheses() {
        let stat = "42 (a) b) c) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 777 1000 10";
        assert_eq!(start_ticks(stat), Some(777));
    }

    #[test]
    fn a_process_of_the_same_number_but_another_start_time_is_not_ours() {
        let own = i32::try_from(std::process::id()).unwrap();
        let ticks = start_ticks_of(own).unwrap();
        assert!(ProcessNote { pid: own, start_ticks: ticks, restart_count: 0 }.lives());
        assert!(!ProcessNote { pid: own, start_ticks: ticks + 1, restart_count: 0 }.lives());
    }
}
