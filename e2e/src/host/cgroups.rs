//! Control groups of machines, of version 1. The kernel does not remove them with the namespaces: the process outside does when a bed has
//! ended, and the next bed does for one that was killed.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail};

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

/// More than a machine of a scenario takes, disk included, and less than would harm the computer: a pod needs no limit of its own.
const LIMITS: [(&str, &str); 2] = [("memory.limit_in_bytes", "4294967296"), ("pids.max", "8192")];

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
        for (file, limit) in LIMITS {
            let path = hierarchy.join(&group).join(file);
            if path.exists() {
                fs::write(&path, limit).with_context(|| format!("writing {}", path.display()))?;
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

/// Removes the group of the bed that this process started, which has ended.
pub fn remove_own() -> Result<()> {
    let (_, own) = environment();
    for hierarchy in hierarchies()? {
        let group = hierarchy.join(&own);
        if group.exists() {
            remove(&group).with_context(|| format!("removing the control group {}", group.display()))?;
        }
    }
    Ok(())
}

/// Removes what beds that were killed have left. What cannot be removed is somebody else's matter.
pub fn remove_left() {
    for hierarchy in hierarchies().unwrap_or_default() {
        for entry in fs::read_dir(&hierarchy).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(id) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
            if !Path::new("/proc").join(id).exists() {
                let _ = remove_at_once(&entry.path());
            }
        }
    }
}

/// The groups below one come first.
fn remove_at_once(group: &Path) -> io::Result<()> {
    for entry in fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_at_once(&entry.path())?;
        }
    }
    fs::remove_dir(group)
}

/// As [`remove_at_once`], again and again: the kernel takes a moment to let go of a group whose processes were killed.
fn remove(group: &Path) -> io::Result<()> {
    let mut tries = 0;
    loop {
        match remove_at_once(group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && tries < 50 => {
                tries += 1;
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            other => return other,
        }
    }
}

/// Empties the group of a machine whose processes are gone: a kubelet takes what it finds there for containers that run.
pub fn empty(group: &str) -> Result<()> {
    for hierarchy in hierarchies()? {
        let directory = hierarchy.join(group);
        for entry in fs::read_dir(&directory).with_context(|| format!("reading {}", directory.display()))? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                remove(&entry.path()).with_context(|| format!("removing the control group {}", entry.path().display()))?;
            }
        }
    }
    Ok(())
}
