//! What the kernel counts of a process.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use nix::unistd::{SysconfVar, sysconf};

/// A process, by its directory below `/proc`.
#[derive(Clone, Debug)]
pub struct ProcessFigures {
    directory: PathBuf,
}

impl ProcessFigures {
    /// The process with this id.
    pub fn of(id: u32) -> Self {
        Self::at(Path::new("/proc").join(id.to_string()))
    }

    /// The process whose directory this is.
    pub fn at(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Seconds of CPU that it has used so far, in user and kernel mode, its children not included.
    pub fn cpu_seconds(&self) -> Result<f64> {
        let path = self.directory.join("stat");
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let ticks = cpu_ticks(&text).with_context(|| format!("{} has an unknown form", path.display()))?;
        let per_second = sysconf(SysconfVar::CLK_TCK).context("asking for the clock's ticks")?.context("no ticks per second")?;
        #[expect(clippy::cast_precision_loss, reason = "ticks of hundredths of a second")]
        Ok(ticks as f64 / per_second as f64)
    }

    /// Resident memory, its program included: how much of that is resident depends on what else the machine has read lately.
    pub fn resident_mib(&self) -> Result<f64> {
        self.memory_mib("VmRSS:")
    }

    /// Resident memory without files, such as its program: what it holds itself.
    pub fn anonymous_mib(&self) -> Result<f64> {
        self.memory_mib("RssAnon:")
    }

    /// The most resident memory that it ever had.
    pub fn peak_mib(&self) -> Result<f64> {
        self.memory_mib("VmHWM:")
    }

    /// From now on the peak is that of what comes.
    pub fn forget_peak(&self) -> Result<()> {
        // proc(5): 5 resets the peak of the resident set.
        fs::write(self.directory.join("clear_refs"), "5").context("resetting the peak of its memory")
    }

    fn memory_mib(&self, field: &'static str) -> Result<f64> {
        let status = fs::read_to_string(self.directory.join("status")).context("reading what memory it has")?;
        let line = status.lines().find_map(|line| line.strip_prefix(field)).context(field)?;
        let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kib / 1024.0)
    }

    /// Established TCP connections to a port of someone else's, for example 443.
    pub fn connections_to(&self, port: u16) -> Result<u32> {
        let remote = format!(":{port:04X}");
        let own: Vec<_> = fs::read_dir(self.directory.join("fd"))?
            .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
            .filter_map(|target| Some(target.to_str()?.strip_prefix("socket:[")?.trim_end_matches(']').to_owned()))
            .collect();
        let mut count = 0_u32;
        for table in ["net/tcp", "net/tcp6"] {
            for line in fs::read_to_string(self.directory.join(table))?.lines().skip(1) {
                let fields: Vec<_> = line.split_whitespace().collect();
                let (Some(address), Some(state), Some(inode)) = (fields.get(2), fields.get(3), fields.get(9)) else { continue };
                let established = *state == "01" && address.ends_with(&remote);
                count += u32::from(established && own.iter().any(|socket| socket == inode));
            }
        }
        Ok(count)
    }
}

/// CPU seconds that each program has used so far, by its name and, where one file is several programs, its first word. Programs that have
/// ended are left out.
pub fn by_program() -> Result<BTreeMap<String, f64>> {
    let mut programs = BTreeMap::new();
    for entry in fs::read_dir("/proc").context("listing processes")? {
        let directory = entry.context("listing processes")?.path();
        let line = fs::read(directory.join("cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        let Some(program) = words.next().filter(|program| !program.is_empty()) else { continue };
        let name = program.rsplit('/').next().unwrap_or_default().to_owned();
        let name = words.next().filter(|_| name == "control-plane").map_or(name, Into::into);
        // It may end in this moment.
        *programs.entry(name).or_default() += ProcessFigures::at(directory).cpu_seconds().unwrap_or_default();
    }
    Ok(programs)
}

/// User and system time from `/proc/PID/stat`. The name of the program, in parentheses, may contain anything.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let fields: Vec<_> = stat.get(stat.rfind(')')? + 1..)?.split_whitespace().collect();
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_despite_odd_program_names() {
        let stat = "4242 (a) b (c) S 1 4242 4242 0 -1 4194560 100 0 0 0 731 269 5 6 20 0 9 0 123 456 789";
        assert_eq!(cpu_ticks(stat), Some(1000));
    }

    #[test]
    fn a_process_that_burns_cpu_has_used_some() {
        let own = ProcessFigures::of(std::process::id());
        while own.cpu_seconds().unwrap() < 0.05 {
            std::hint::black_box((0..10_000_u64).sum::<u64>());
        }
        let (resident, anonymous) = (own.resident_mib().unwrap(), own.anonymous_mib().unwrap());
        assert!(anonymous > 0.5 && resident > anonymous, "{resident} MiB, {anonymous} MiB without files");
    }
}
