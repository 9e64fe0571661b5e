//! What containers use, from the machine's processes.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use nix::unistd::{SysconfVar, sysconf};

use super::process_table::ProcessRow;
use crate::pod::PodId;

/// What a running container uses. It counts all processes that it started, exec'd ones included.
///
/// ```
/// use virtual_kubelet::process::ContainerFigures;
///
/// fn line(figures: &ContainerFigures) -> String {
///     let ContainerFigures { name, cpu, resident_bytes, processes, .. } = figures;
///     format!("{name}: {:.1} s, {} MiB, {processes} processes", cpu.as_secs_f64(), resident_bytes >> 20)
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerFigures {
    /// Name of the container.
    pub name: String,
    /// When its present run was started.
    pub started_at: Timestamp,
    /// Processor time since then, of ended processes too; it never goes down during a run.
    pub cpu: Duration,
    /// Resident memory in bytes. Pages that processes share count once for each.
    pub resident_bytes: u64,
    /// Mapped memory in bytes.
    pub virtual_bytes: u64,
    /// Processes that live.
    pub processes: u64,
    /// Size of the files of its log in bytes.
    pub log_bytes: u64,
}

/// What a pod uses.
///
/// ```no_run
/// use virtual_kubelet::process::{PodFigures, ProcessProvider};
///
/// /// The pod whose containers have most memory.
/// fn largest(provider: &ProcessProvider) -> Option<PodFigures> {
///     let memory = |pod: &PodFigures| pod.containers.iter().map(|container| container.resident_bytes).sum::<u64>();
///     provider.figures().into_iter().max_by_key(memory)
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFigures {
    /// The pod.
    pub id: PodId,
    /// When the node took it up.
    pub started_at: Option<Timestamp>,
    /// Its containers that run, init containers first, in the order of the spec.
    pub containers: Vec<ContainerFigures>,
    /// Size of its own volumes in bytes.
    pub volume_bytes: u64,
}

/// The kernel's units, asked once per call: they are constants of the machine.
fn setting(variable: SysconfVar, usual: u64) -> u64 {
    sysconf(variable).ok().flatten().and_then(|value| u64::try_from(value).ok()).unwrap_or(usual)
}

/// Sums up the processes below a shim. What the shim reaped were the container's.
pub fn of_container(name: &str, started_at: Timestamp, shim: &ProcessRow, below: &[ProcessRow], log_bytes: u64) -> ContainerFigures {
    let (ticks_per_second, page) = (setting(SysconfVar::CLK_TCK, 100).max(1), setting(SysconfVar::PAGE_SIZE, 4096));
    let living = || below.iter().filter(|row| !row.zombie);
    let ticks = shim.reaped_ticks + below.iter().map(|row| row.cpu_ticks + row.reaped_ticks).sum::<u64>();
    ContainerFigures {
        name: name.to_owned(),
        started_at,
        cpu: Duration::from_nanos(ticks.saturating_mul(1_000_000_000 / ticks_per_second)),
        resident_bytes: living().map(|row| row.resident_pages * page).sum(),
        virtual_bytes: living().map(|row| row.virtual_bytes).sum(),
        processes: living().count() as u64,
        log_bytes,
    }
}

/// Size of all files below `directory`, links not followed.
pub fn size_below(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => size_below(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cpu_ticks: u64, reaped_ticks: u64, resident_pages: u64, zombie: bool) -> ProcessRow {
        ProcessRow { pid: 1, parent: 0, session: 1, start_ticks: 0, cpu_ticks, reaped_ticks, resident_pages, virtual_bytes: 1, zombie }
    }

    #[test]
    fn cpu_time_counts_ended_processes_but_excludes_the_supervisor() {
        let shim = row(1_000_000, 5, 1000, false);
        let figures = of_container("c", Timestamp::UNIX_EPOCH, &shim, &[row(10, 1, 2, false), row(4, 0, 0, true)], 7);
        let ticks = setting(SysconfVar::CLK_TCK, 100);
        assert_eq!(figures.cpu, Duration::from_nanos(20 * (1_000_000_000 / ticks)));
        assert_eq!((figures.processes, figures.resident_bytes), (1, 2 * setting(SysconfVar::PAGE_SIZE, 4096)));
        assert_eq!((figures.virtual_bytes, figures.log_bytes), (1, 7));
    }
}
