//! The files through which agent and shim know of each other, in the directory of a container.
//!
//! | file | writer | content |
//! |---|---|---|
//! | `shim.lock` | agent, handed to the shim | locked from before the shim's first instruction until its end |
//! | `order.json`, `shim.json` | agent | [`StartOrder`](crate::process::container_init::StartOrder), [`ShimOrder`] of the present run |
//! | `run-N.json` | shim | [`RunNote`]: processes and start of the run with restart count N |
//! | `exit-N.json` | shim | [`ExitNote`]: how that run ended; exists before the shim ends |
//! | `N.log`, `N.log.<time>` | shim | its log in CRI format, and rotated parts of it |
//! | `shim.sock` | shim | takes [`Session`](super::Session)s while the run lives |
//! | `shim.log` | shim | what the shim itself complains about |

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::process::process_table;

const LOCK: &str = "shim.lock";
const ORDER: &str = "shim.json";
/// Socket of a living shim.
pub(super) const SOCKET: &str = "shim.sock";

/// How a log is kept from growing.
///
/// ```
/// use virtual_kubelet::process::LogRotation;
///
/// // At most 3 MiB of each run.
/// let rotation = LogRotation { max_bytes: 1 << 20, max_files: 3 };
/// assert_eq!(LogRotation::default(), LogRotation { max_bytes: 10 << 20, max_files: 5 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogRotation {
    /// Size in bytes at which a file is put aside.
    pub max_bytes: u64,
    /// Files of one run, the present one included; at least one.
    pub max_files: usize,
}

impl Default for LogRotation {
    /// A kubelet's `containerLogMaxSize` and `containerLogMaxFiles`: 10 MiB, 5 files.
    fn default() -> Self {
        Self { max_bytes: 10 << 20, max_files: 5 }
    }
}

/// What a shim has to know beyond how to start its container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShimOrder {
    /// Restarts of the container before this run.
    pub restart_count: i32,
    /// Image of this run.
    pub image: String,
    /// Whether the container has a standard input that clients may attach to.
    pub stdin: bool,
    /// Whether the first client to leave closes it.
    pub stdin_once: bool,
    /// Whether its streams are a terminal.
    pub tty: bool,
    /// Number of the signal that asks it to end.
    pub stop_signal: i32,
    /// Seconds between that and its kill, if the agent that decides knows nothing else.
    pub grace_seconds: u64,
    /// How its log is kept from growing.
    pub log: LogRotation,
}

impl ShimOrder {
    /// Writes the order for the next run in `directory`.
    pub fn write(&self, directory: &Path) -> std::io::Result<()> {
        write_json(&directory.join(ORDER), self)
    }

    /// The order of the present or last run in `directory`.
    pub fn read(directory: &Path) -> Option<Self> {
        read_json(&directory.join(ORDER))
    }
}

/// A process, told apart from a later one of the same number by its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessId {
    /// Its number.
    pub pid: i32,
    /// Its start in clock ticks since boot, as the kernel shows it.
    pub start_ticks: u64,
}

impl ProcessId {
    /// The living process `pid`.
    pub fn of(pid: i32) -> Option<Self> {
        Some(Self { pid, start_ticks: process_table::look(pid)?.start_ticks })
    }

    /// Whether it still lives, a zombie included.
    pub fn lives(&self) -> bool {
        Self::of(self.pid) == Some(*self)
    }
}

/// A run that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunNote {
    /// Its shim.
    pub shim: ProcessId,
    /// The container's first process, leader of a session.
    pub main: ProcessId,
    /// When it was started.
    pub started_at: Timestamp,
    /// The boot of the machine in which that was: numbers of processes mean nothing in another one.
    #[serde(default)]
    pub boot_id: String,
}

/// The present boot of the machine.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|text| text.trim().to_owned()).unwrap_or_default()
}

impl RunNote {
    fn path(directory: &Path, restart_count: i32) -> PathBuf {
        directory.join(format!("run-{restart_count}.json"))
    }

    pub(super) fn write(&self, directory: &Path, restart_count: i32) -> std::io::Result<()> {
        write_json(&Self::path(directory, restart_count), self)
    }

    /// The note about a run, if its process was started.
    pub fn read(directory: &Path, restart_count: i32) -> Option<Self> {
        read_json(&Self::path(directory, restart_count))
    }
}

/// A run that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExitNote {
    /// Exit code, 128 + signal when killed.
    pub code: i32,
    /// Why the program could not even be started.
    pub start_error: Option<String>,
    /// Whether the agent wrote this because the shim had ended silently.
    #[serde(default)]
    pub unseen: bool,
    /// When it was started.
    pub started_at: Timestamp,
    /// When its first process ended.
    pub finished_at: Timestamp,
}

impl ExitNote {
    fn path(directory: &Path, restart_count: i32) -> PathBuf {
        directory.join(format!("exit-{restart_count}.json"))
    }

    /// Notes the end of a run.
    pub(in crate::process) fn write(&self, directory: &Path, restart_count: i32) -> std::io::Result<()> {
        write_json(&Self::path(directory, restart_count), self)
    }

    /// The note about the end of a run, if it has ended.
    pub fn read(directory: &Path, restart_count: i32) -> Option<Self> {
        read_json(&Self::path(directory, restart_count))
    }
}

/// The restart count of the last run that was begun in `directory`: an agent may have died between its order
/// and the start of the shim.
pub fn last_begun(directory: &Path) -> Option<i32> {
    let ordered = ShimOrder::read(directory)?.restart_count;
    let begun = |count: &i32| RunNote::read(directory, *count).is_some() || ExitNote::read(directory, *count).is_some();
    [ordered, ordered - 1].into_iter().find(begun)
}

/// The log of one run of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFiles {
    /// Parts that were put aside, the oldest first.
    pub rotated: Vec<PathBuf>,
    /// The file that is written to. When it is put aside it gets another name, and this one is made anew;
    /// a run that printed nothing has an empty one, one that never began has none.
    pub current: PathBuf,
    /// Which run: its restart count.
    pub restart_count: i32,
}

impl LogFiles {
    /// The log of the run with this restart count.
    pub fn of(directory: &Path, restart_count: i32) -> Self {
        let current = directory.join(format!("{restart_count}.log"));
        let prefix = format!("{restart_count}.log.");
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let mut rotated: Vec<_> =
            entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).map(|entry| entry.path()).collect();
        rotated.sort();
        Self { rotated, current, restart_count }
    }
}

/// Path of the order that a container is started with.
pub fn order_file(directory: &Path) -> PathBuf {
    directory.join("order.json")
}

/// The lock that a shim inherits; `None` while another one lives. It is held until the last copy of the
/// file is closed, and no copy reaches the container.
pub fn lock(directory: &Path) -> std::io::Result<Option<File>> {
    let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).mode(0o600).open(directory.join(LOCK))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}

/// Removes what belongs to runs before `keep_from`.
pub fn prune(directory: &Path, keep_from: i32) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let number = name.split_once(".log").map(|(number, _)| number).or_else(|| {
            let inner = name.strip_prefix("run-").or_else(|| name.strip_prefix("exit-"))?;
            inner.strip_suffix(".json")
        });
        if number.and_then(|number| number.parse::<i32>().ok()).is_some_and(|number| number < keep_from) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Writes a file that is whole at every moment, readable by its owner only: it may hold secrets.
pub fn write_json(path: &Path, value: &impl Serialize) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let fresh = path.with_file_name(name);
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&fresh)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    fs::rename(fresh, path)
}

pub(in crate::process) fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}
