//! Control groups of machines, of version 1. The kernel does not remove them with the namespaces, so the bed does when it has ended, and the
//! next one does for a bed that was killed.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail, ensure};

/// First argument of a process that joins a group, and becomes the program that follows.
pub const JOIN_ARGUMENT: &str = "in-cgroup";
/// The group that all machines of a bed are in: what is outside of the namespaces tells what is inside.
const BED_GROUP: &str = "BED_CGROUP";
const PREFIX: &str = "ingress-daemonset-bed-";
const ROOT: &str = "/sys/fs/cgroup";

/// The directories of the hierarchies, one for each controller, or for some that are mounted together.
pub fn hierarchies() -> Result<Vec<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("reading the mounts")?;
    let of_version_1 = |line: &str| {
        let mut fields = line.split(' ');
        let (path, kind) = (fields.nth(1)?, fields.next()?);
        (kind == "cgroup" && Path::new(path).starts_with(ROOT)).then(|| PathBuf::from(path))
    };
    let mut found: Vec<_> = mounts.lines().filter_map(of_version_1).collect();
    found.sort();
    found.dedup();
    Ok(found)
}

/// What a bed inside gets from this process outside: the name of its group.
pub fn environment() -> (&'static str, String) {
    (BED_GROUP, format!("{PREFIX}{}", std::process::id()))
}

/// Makes the group of a machine and returns its name, for [`join`].
pub fn make(machine: &str) -> Result<String> {
    let bed = std::env::var(BED_GROUP).with_context(|| format!("{BED_GROUP} is not set: the bed is not inside its namespaces"))?;
    let group = format!("{bed}/{machine}");
    for hierarchy in hierarchies()? {
        for directory in [hierarchy.join(&bed), hierarchy.join(&group)] {
            fs::create_dir_all(&directory).with_context(|| format!("making the control group {}", directory.display()))?;
            // A group without processors or memory takes no process.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let (own, above) = (directory.join(file), directory.with_file_name(file));
                if own.exists() && fs::read_to_string(&own)?.trim().is_empty() {
                    fs::copy(&above, &own).with_context(|| format!("copying {}", above.display()))?;
                }
            }
        }
    }
    Ok(group)
}

/// A command that runs `program` in a group that was made.
pub fn command(group: &str, program: &str) -> Result<tokio::process::Command> {
    let mut command = tokio::process::Command::new(std::env::current_exe().context("finding this program's own path")?);
    command.args([JOIN_ARGUMENT, group, program]);
    Ok(command)
}

/// Joins the group that the first argument names, and becomes the program that the others are.
pub fn join(arguments: &[OsString]) -> Result<ExitCode> {
    let [group, program, arguments @ ..] = arguments else { bail!("`bed {JOIN_ARGUMENT}` is started by bed itself") };
    for hierarchy in hierarchies()? {
        let file = hierarchy.join(group).join("cgroup.procs");
        fs::write(&file, std::process::id().to_string()).with_context(|| format!("joining {}", file.display()))?;
    }
    // It returns only if it fails.
    Err(Command::new(program).args(arguments).exec()).with_context(|| format!("becoming {}", program.display()))
}

/// Removes the groups of beds that have ended, this process's own among them.
pub fn remove_unused() -> Result<()> {
    let mut left = Vec::new();
    for hierarchy in hierarchies()? {
        for entry in fs::read_dir(&hierarchy).with_context(|| format!("reading {}", hierarchy.display()))? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(id) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
            let runs = id != std::process::id().to_string() && Path::new("/proc").join(id).exists();
            if !runs && let Err(error) = remove(&entry.path()) {
                left.push(format!("{}: {error}", entry.path().display()));
            }
        }
    }
    ensure!(left.is_empty(), "control groups are left: {}", left.join(", "));
    Ok(())
}

/// The groups below one come first. The kernel takes a moment to let go of one whose processes were killed.
fn remove(group: &Path) -> io::Result<()> {
    for entry in fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    let mut tries = 0;
    loop {
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && tries < 50 => {
                tries += 1;
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            other => return other,
        }
    }
}

/// Empties the group of a machine whose processes are gone: a kubelet takes what it finds there for containers that run.
pub fn empty(group: impl AsRef<OsStr>) -> Result<()> {
    for hierarchy in hierarchies()? {
        let directory = hierarchy.join(group.as_ref());
        for entry in fs::read_dir(&directory).with_context(|| format!("reading {}", directory.display()))? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                remove(&entry.path()).with_context(|| format!("removing the control group {}", entry.path().display()))?;
            }
        }
    }
    Ok(())
}
