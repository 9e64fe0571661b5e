//! The first moments of a container's process: a mount namespace of its own, its volumes, its user, and
//! then the program itself. Runs as a subcommand of the own binary, so that no code has to run between
//! fork and exec, and single-threaded, as the kernel demands for joining a mount namespace.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::IsTerminal;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Uid, fchown, pivot_root, setgid, setgroups, setsid, setuid};
use rustix::fs::StatVfsMountFlags;
use serde::{Deserialize, Serialize};

use super::images::find_program;
use super::mount_plan::{Kind, Laid, Place, Step};

/// Exit code of a container whose program could not be started, as container runtimes have it.
pub const START_FAILED: i32 = 128;

/// Subcommand that becomes a container.
pub const INIT_COMMAND: &str = "container-init";
/// Subcommand that becomes a further process in a container.
pub const EXEC_COMMAND: &str = "container-exec";
/// Subcommand that supervises a container.
pub const SHIM_COMMAND: &str = "container-shim";

/// `PATH` of a container that has none.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// One mount of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// File or directory outside.
    pub source: PathBuf,
    /// Path in the container.
    pub target: PathBuf,
    /// Whether writing is refused.
    pub read_only: bool,
}

/// User and groups of a container's processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// User id.
    pub user: u32,
    /// Primary group id.
    pub group: u32,
    /// Further group ids.
    pub groups: Vec<u32>,
}

/// Everything needed to start a container, kept in a file of the container's directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartOrder {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: BTreeMap<String, String>,
    /// Working directory.
    pub working_dir: PathBuf,
    /// Whose processes; the agent's own without.
    pub credentials: Option<Credentials>,
    /// Mounts, parents before children.
    pub mounts: Vec<Mount>,
    /// An existing directory that is covered while mounting.
    pub staging: PathBuf,
    /// Where the reason is left when the program cannot be started.
    pub error_file: PathBuf,
}

fn read_order(path: &Path) -> Result<StartOrder> {
    let text = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(serde_json::from_slice(&text)?)
}

/// Becomes the container that the order in `path` describes. Returns only on failure.
pub fn run(path: &Path) -> i32 {
    lead_session();
    let order = match read_order(path) {
        Ok(order) => order,
        Err(error) => {
            eprintln!("{error:#}");
            return START_FAILED;
        }
    };
    // Opened before the mounts, which may hide the place.
    let report = File::create(&order.error_file);
    let error = match prepare(&order) {
        Ok(()) => become_program(&order, &order.argv),
        Err(error) => error,
    };
    if let Ok(mut report) = report {
        let _ = std::io::Write::write_all(&mut report, format!("{error:#}").as_bytes());
    }
    START_FAILED
}

/// Runs `argv` beside the container's process `pid`, in its mounts. Returns only on failure.
pub fn exec_beside(path: &Path, pid: i32, argv: &[String]) -> i32 {
    lead_session();
    let attempt = || -> Result<()> {
        let order = read_order(path)?;
        let namespace = File::open(format!("/proc/{pid}/ns/mnt")).context("the container has ended")?;
        setns(namespace, CloneFlags::CLONE_NEWNS).context("joining the container's mounts")?;
        assume(order.credentials.as_ref())?;
        Err(become_program(&order, argv))
    };
    if let Err(error) = attempt() {
        eprintln!("{error:#}");
    }
    126
}

fn prepare(order: &StartOrder) -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("making a mount namespace")?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).context("making mounts private")?;
    if !order.mounts.is_empty() {
        mount_all(&order.mounts, &order.staging)?;
    }
    assume(order.credentials.as_ref())
}

fn assume(credentials: Option<&Credentials>) -> Result<()> {
    let Some(credentials) = credentials else { return Ok(()) };
    let (user, group) = (Uid::from_raw(credentials.user), Gid::from_raw(credentials.group));
    // So that a program may open its own /dev/stdout and /dev/stderr again.
    for stream in [std::os::fd::AsFd::as_fd(&std::io::stdout()), std::os::fd::AsFd::as_fd(&std::io::stderr())] {
        let _ = fchown(stream, Some(user), Some(group));
    }
    let groups: Vec<Gid> = credentials.groups.iter().copied().map(Gid::from_raw).collect();
    setgroups(&groups).context("setting groups")?;
    setgid(group).context("setting the group")?;
    setuid(user).context("setting the user")
}

/// A session of its own, so that its processes can be told from others, with its terminal if it has one.
fn lead_session() {
    let _ = setsid();
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        let _ = rustix::process::ioctl_tiocsctty(&stdin);
    }
}

fn become_program(order: &StartOrder, argv: &[String]) -> anyhow::Error {
    let Some((program, arguments)) = argv.split_first() else {
        return anyhow!("no command specified");
    };
    let path = order.env.get("PATH").map_or(DEFAULT_PATH, String::as_str);
    let Some(file) = find_program(program, path, Path::exists) else {
        return anyhow!("exec: \"{program}\": executable file not found in $PATH");
    };
    let mut command = Command::new(&file);
    command.arg0(program).args(arguments).env_clear().env("PATH", path).envs(&order.env);
    command.current_dir(&order.working_dir);
    if std::io::stdin().is_terminal() && !order.env.contains_key("TERM") {
        command.env("TERM", "xterm");
    }
    // A shim that is killed takes its container along: nobody would know of it any more. After a change of
    // user the kernel forgets this wish, so it comes last.
    if let Err(error) = set_pdeathsig(Signal::SIGKILL) {
        return anyhow!("tying the process to its supervisor: {error}");
    }
    anyhow!("exec: \"{}\": {}", file.display(), command.exec())
}

fn kind_of(path: &Path) -> Result<Kind> {
    let metadata = fs::metadata(path).with_context(|| format!("mount source {}", path.display()))?;
    Ok(if metadata.is_dir() { Kind::Directory } else { Kind::File })
}

fn bind(source: &Path, target: &Path) -> Result<()> {
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
        .with_context(|| format!("binding {} to {}", source.display(), target.display()))
}

fn tmpfs(at: &Path) -> Result<()> {
    mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::empty(), Some("mode=0755"))
        .with_context(|| format!("mounting tmpfs at {}", at.display()))
}

fn make(path: &Path, kind: Kind) -> Result<()> {
    match kind {
        Kind::Directory => fs::create_dir(path),
        Kind::File => OpenOptions::new().create_new(true).write(true).open(path).map(drop),
    }
    .with_context(|| format!("making {}", path.display()))
}

/// Sources are bound into the staging area first, because a mount may hide another one's source. It may hide the staging area, too,
/// which is therefore reached by a descriptor.
fn mount_all(mounts: &[Mount], staging: &Path) -> Result<()> {
    tmpfs(staging)?;
    let mut kinds = Vec::new();
    for (index, wanted) in mounts.iter().enumerate() {
        let (kind, at) = (kind_of(&wanted.source)?, staging.join(index.to_string()));
        make(&at, kind)?;
        bind(&wanted.source, &at)?;
        kinds.push(kind);
    }
    let open = || File::open(staging).with_context(|| format!("opening {}", staging.display()));
    let mut area = open()?;
    let mut laid = Laid::default();
    let mut mirrors = 0;
    for (index, (wanted, kind)) in mounts.iter().zip(kinds).enumerate() {
        let steps = laid.plan(&look(&wanted.target)?, kind, !wanted.read_only).map_err(|reason| anyhow!(reason))?;
        for step in steps {
            match step {
                Step::Mirror(directory) => {
                    mirrors += 1;
                    cover(&directory, &inside(&area).join(format!("mirror-{mirrors}")))?;
                    if directory == Path::new("/") {
                        // What was opened before is below the root that was left.
                        area = open()?;
                    }
                }
                Step::MakeDirectory(path) => make(&path, Kind::Directory)?,
                Step::MakeFile(path) => make(&path, Kind::File)?,
                Step::Bind(path) => {
                    bind(&inside(&area).join(index.to_string()), &path)?;
                    if wanted.read_only {
                        refuse_writing(&path)?;
                    }
                }
            }
        }
    }
    umount2(&inside(&area), MntFlags::MNT_DETACH).context("leaving the staging area")
}

/// The path of an open directory, wherever it is.
fn inside(directory: &File) -> PathBuf {
    format!("/proc/self/fd/{}", directory.as_raw_fd()).into()
}

/// Finds the existing part of `target`, links resolved.
fn look(target: &Path) -> Result<Place> {
    if !target.is_absolute() {
        bail!("mount path {} is not absolute", target.display());
    }
    let mut missing = Vec::new();
    let mut path = target.to_path_buf();
    loop {
        match path.canonicalize() {
            Ok(existing) => {
                let kind = kind_of(&existing)?;
                missing.reverse();
                return Ok(Place { existing, kind, missing });
            }
            Err(error) => {
                let Some(name) = path.file_name() else { return Err(error).context("looking for a mount point") };
                missing.push(name.to_owned());
                path.pop();
            }
        }
    }
}

/// Covers `directory` by a file system that shows the same children and in which names can be made.
fn cover(directory: &Path, mirror: &Path) -> Result<()> {
    make(mirror, Kind::Directory)?;
    tmpfs(mirror)?;
    let original = fs::metadata(directory)?;
    for entry in fs::read_dir(directory).with_context(|| format!("reading {}", directory.display()))? {
        let entry = entry?;
        let (from, to, kind) = (entry.path(), mirror.join(entry.file_name()), entry.file_type()?);
        if kind.is_symlink() {
            symlink(fs::read_link(&from)?, &to)?;
        } else {
            let kind = if kind.is_dir() { Kind::Directory } else { Kind::File };
            make(&to, kind)?;
            if let Err(error) = bind(&from, &to) {
                // A file that vanished meanwhile, for example a socket of another process.
                if from.exists() {
                    return Err(error);
                }
            }
        }
    }
    fs::set_permissions(mirror, Permissions::from_mode(original.mode() & 0o7777))?;
    if directory == Path::new("/") {
        // The root cannot be covered, only exchanged.
        std::env::set_current_dir(mirror)?;
        pivot_root(".", ".").context("exchanging the root")?;
        umount2(".", MntFlags::MNT_DETACH).context("leaving the old root")?;
        std::env::set_current_dir("/")?;
        return Ok(());
    }
    bind(mirror, directory)
}

/// Keeps the flags that the mount has: a user namespace may not drop them.
fn refuse_writing(path: &Path) -> Result<()> {
    // nix does not know the last one with musl as the C library.
    let has = rustix::fs::statvfs(path)?.f_flag;
    let mut flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    for (present, keep) in [
        (StatVfsMountFlags::NOSUID, MsFlags::MS_NOSUID),
        (StatVfsMountFlags::NODEV, MsFlags::MS_NODEV),
        (StatVfsMountFlags::NOEXEC, MsFlags::MS_NOEXEC),
        (StatVfsMountFlags::NOATIME, MsFlags::MS_NOATIME),
        (StatVfsMountFlags::NODIRATIME, MsFlags::MS_NODIRATIME),
        (StatVfsMountFlags::RELATIME, MsFlags::MS_RELATIME),
    ] {
        if has.contains(present) {
            flags |= keep;
        }
    }
    mount(None::<&str>, path, None::<&str>, flags, None::<&str>).with_context(|| format!("making {} read-only", path.display()))
}
