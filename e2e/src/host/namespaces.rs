//! Namespaces of the bed's own, and the promise that nothing outlives it.
//!
//! Three processes, each of which ends with the one before it:
//!
//! 1. *outside*: what the user started. Holds the write end of the lifeline, a pipe that is the standard input of
//! 2. *init*: process 1 of the new PID namespace. Mounts the tmpfs, reaps orphans, and exits when the lifeline closes;
//!    the kernel then kills everything in the namespace and drops the mounts and links with it.
//! 3. *inside*: the program proper, free to be killed or to crash like any other process.

use std::{
    ffi::{OsStr, OsString},
    io::Read,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitCode, Stdio},
    thread,
};

use anyhow::{Context, Result, bail, ensure};
use nix::{
    errno::Errno,
    mount::{MsFlags, mount},
    sys::{
        prctl,
        resource::{Resource, getrlimit, setrlimit},
        signal::Signal,
        wait::{WaitStatus, wait},
    },
    unistd::{Pid, Uid, getpid},
};

use super::cgroups;

/// First argument of the process that becomes process 1 of the namespaces.
pub const INIT_ARGUMENT: &str = "init";
/// First argument of the program proper, once it is inside.
pub const INSIDE_ARGUMENT: &str = "inside";
/// Where everything that the bed keeps lives: on a tmpfs that exists in its mount namespace only.
pub const STATE: &str = "/run/bed";

/// A bed that was started, seen from outside.
#[derive(Debug)]
pub struct Outside {
    child: Child,
    // Dropping it, or dying, ends the bed.
    lifeline: ChildStdin,
}

impl Outside {
    /// Starts this program again inside new namespaces, with `arguments`.
    ///
    /// Call it from the main thread: the kernel ends the bed when the *thread* that started it ends.
    pub fn start(arguments: &[OsString]) -> Result<Self> {
        // Whoever started us may be killed as well; without this the bed would go on with nobody to look at it.
        prctl::set_pdeathsig(Signal::SIGKILL).context("asking to die with the parent process")?;
        check_tools(&["setpriv", "unshare", "nsenter", "ip"])?;
        check_namespaces()?;
        cgroups::remove_left();
        let program = std::env::current_exe().context("finding this program's own path")?;
        let mut command = unshare();
        command.arg(program).arg(INIT_ARGUMENT).args(arguments).envs([cgroups::environment()]).stdin(Stdio::piped());
        let mut child = command.spawn().context("starting `setpriv`")?;
        let lifeline = child.stdin.take().context("the bed was started without a lifeline")?;
        Ok(Self { child, lifeline })
    }

    /// The bed's file system, seen from outside. `unshare` itself entered the mount namespace, so its root shows it.
    pub fn root(&self) -> PathBuf {
        Path::new("/proc").join(self.child.id().to_string()).join("root")
    }

    /// Waits for the bed to end and passes its exit code on.
    pub fn wait(mut self) -> Result<ExitCode> {
        let status = self.child.wait().context("waiting for the bed")?;
        drop(self.lifeline);
        cgroups::remove_own()?;
        Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
    }
}

/// Process 1 of the namespaces: runs the program proper with `arguments` until it ends or the lifeline closes.
pub fn init(arguments: &[OsString]) -> Result<ExitCode> {
    ensure!(getpid() == Pid::from_raw(1), "`bed {INIT_ARGUMENT}` is started by bed itself, in a PID namespace");
    thread::spawn(|| {
        let mut rest = Vec::new();
        // Both an end and an error mean that nobody is outside any more.
        let _ = std::io::stdin().read_to_end(&mut rest);
        std::process::exit(1);
    });
    mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some("mode=755"))
        .context("mounting a tmpfs on /run of the bed")?;
    std::fs::create_dir_all(STATE).with_context(|| format!("creating {STATE}"))?;
    raise_open_files();
    let program = std::env::current_exe().context("finding this program's own path")?;
    let child = Command::new(program)
        .arg(INSIDE_ARGUMENT)
        .args(arguments)
        .stdin(Stdio::null())
        .spawn()
        .context("starting the program inside the namespaces")?;
    let inside = Pid::from_raw(i32::try_from(child.id()).context("a process id out of range")?);
    // Orphans of killed agents come here. Nobody else reaps them, and an unreaped process still looks alive.
    loop {
        match wait() {
            Ok(WaitStatus::Exited(pid, code)) if pid == inside => {
                return Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)));
            }
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == inside => bail!("the bed was ended by {signal}"),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("waiting for the processes of the bed"),
        }
    }
}

/// `HAProxy`, etcd and wrk each want more files than the usual soft limit; the hard limit is the most we may take.
fn raise_open_files() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // A refusal only means that the soft limit stays, which is enough for small beds.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// The command in front of the program: each process dies with its parent, and the last one owns the namespaces.
fn unshare() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    if !Uid::effective().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command
}

/// Fails when one of `programs` is not installed, and says which package has it.
pub fn check_tools(programs: &[&str]) -> Result<()> {
    let missing: Vec<_> = programs.iter().filter(|program| find_program(program).is_none()).copied().collect();
    ensure!(
        missing.is_empty(),
        "not installed: {}. Run `make deps`, or install the packages util-linux, iproute2, haproxy, nginx-light and wrk",
        missing.join(", ")
    );
    Ok(())
}

/// Where a program is. Debian keeps daemons in directories that are not on a plain user's PATH.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

/// Tries the namespaces once, to say what to allow before anything else prints errors of its own.
fn check_namespaces() -> Result<()> {
    let output = unshare().arg("true").stdin(Stdio::null()).output().context("running `unshare`")?;
    if output.status.success() {
        return Ok(());
    }
    let mut advice = Vec::new();
    let root = Uid::effective().is_root();
    for (setting, wanted) in [
        ("kernel/unprivileged_userns_clone", "1"),
        ("kernel/apparmor_restrict_unprivileged_userns", "0"),
        ("user/max_user_namespaces", "10000"),
    ] {
        let now = std::fs::read_to_string(Path::new("/proc/sys").join(setting)).unwrap_or_default();
        let forbids = match setting {
            "user/max_user_namespaces" => now.trim() == "0",
            _ => !now.is_empty() && now.trim() != wanted,
        };
        if forbids && !root {
            advice.push(format!("`sysctl -w {}={wanted}` (as root) allows it", setting.replace('/', ".")));
        }
    }
    advice.push(if root {
        "in a container, start it with --privileged".to_owned()
    } else {
        "or run it as root; in a container, start that with --privileged".to_owned()
    });
    bail!(
        "this machine forbids the namespaces that the bed runs in ({}): {}",
        String::from_utf8_lossy(&output.stderr).trim(),
        advice.join("; ")
    )
}

/// Whether `arguments` (without the program's name) start with `word`; returns the rest.
pub fn after<'a>(arguments: &'a [OsString], word: &str) -> Option<&'a [OsString]> {
    match arguments.split_first() {
        Some((first, rest)) if first == OsStr::new(word) => Some(rest),
        _ => None,
    }
}
