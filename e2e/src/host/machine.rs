//! Process 1 of a machine: a node with a root file system and all namespaces of its own, for a kubelet and containerd.
//! What it shares with the machine that the bed runs on is the kernel, `/dev`, and `/usr`, which it cannot write.

use std::{ffi::OsString, fs, os::unix::fs::symlink, path::Path, process::ExitCode};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::{
        signal::{SigSet, Signal},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{AccessFlags, Pid, access, chdir, getpid, pivot_root, sethostname},
};

/// First argument of the process that becomes process 1 of a machine; its root and its name follow.
pub const MACHINE_ARGUMENT: &str = "machine";
/// The kubelet's place in the machine.
pub const KUBELET: &str = "/opt/kubelet";
/// Is there, in the machine's root, once it has booted.
pub const BOOTED: &str = "run/booted";
/// Where the machine's former root is while the new one is made.
const FORMER: &str = "former";
/// Kernel settings that a kubelet insists on, and would change for all that runs on this kernel, a panic after an oops among them. In a
/// machine they are files with the wanted values.
const SETTINGS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];
/// By this a kubelet knows that the machine was booted again.
const BOOT_ID: &str = "kernel/random/boot_id";

/// Makes the machine's file system, and stays to reap orphans. It must be process 1 of namespaces that are all new.
pub fn init(arguments: &[OsString]) -> Result<ExitCode> {
    ensure!(getpid() == Pid::from_raw(1), "`bed {MACHINE_ARGUMENT}` is started by bed itself, in namespaces of its own");
    let [root, name, kubelet] = arguments else { bail!("`bed {MACHINE_ARGUMENT}` is started by bed itself") };
    let mut children = SigSet::empty();
    children.add(Signal::SIGCHLD);
    children.thread_block().context("blocking SIGCHLD")?;
    sethostname(name).context("naming the machine")?;
    file_system(Path::new(root), Path::new(kubelet)).with_context(|| format!("making the file system of {}", name.display()))?;
    fs::write(Path::new("/").join(BOOTED), "").context("saying that the machine has booted")?;
    loop {
        children.wait().context("waiting for the machine's processes")?;
        while !matches!(waitpid(None, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive) | Err(_)) {}
    }
}

fn file_system(root: &Path, kubelet: &Path) -> Result<()> {
    let none = None::<&str>;
    for directory in ["usr", "dev", "proc", "sys", "tmp", "run", FORMER] {
        fs::create_dir_all(root.join(directory))?;
    }
    // As after any boot.
    for directory in ["run", "tmp"] {
        for entry in fs::read_dir(root.join(directory))? {
            let path = entry?.path();
            if path.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
        }
    }
    fs::create_dir_all(root.join("run/lock"))?;
    for link in ["bin", "sbin", "lib", "lib64"] {
        if fs::symlink_metadata(root.join(link)).is_err() {
            symlink(Path::new("usr").join(link), root.join(link))?;
        }
    }
    mount(Some(root), root, none, MsFlags::MS_BIND, none).context("the root")?;
    read_only(Path::new("/usr"), &root.join("usr"))?;
    let place = root.join(KUBELET.trim_start_matches('/'));
    fs::create_dir_all(place.parent().unwrap_or(root))?;
    fs::write(&place, "")?;
    read_only(kubelet, &place)?;
    mount(Some("/dev"), &root.join("dev"), none, MsFlags::MS_BIND | MsFlags::MS_REC, none).context("/dev")?;
    mount(Some("proc"), &root.join("proc"), Some("proc"), MsFlags::empty(), none).context("/proc")?;
    mount(Some("sysfs"), &root.join("sys"), Some("sysfs"), MsFlags::empty(), none).context("/sys")?;
    control_groups(root)?;
    settings(root)?;
    chdir(root)?;
    pivot_root(".", FORMER).context("changing the root")?;
    chdir("/")?;
    mount(Some("tmpfs"), "/dev/shm", Some("tmpfs"), MsFlags::empty(), Some("mode=1777")).context("/dev/shm")?;
    umount2(Path::new("/").join(FORMER).as_path(), MntFlags::MNT_DETACH).context("letting go of the former root")?;
    // Volumes that a kubelet mounts are seen by the containers that run already.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SHARED, none).context("sharing mounts")
}

fn read_only(from: &Path, to: &Path) -> Result<()> {
    let none = None::<&str>;
    mount(Some(from), to, none, MsFlags::MS_BIND, none).with_context(|| format!("{}", to.display()))?;
    mount(none, to, none, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, none)
        .with_context(|| format!("{} without writing", to.display()))
}

/// Each hierarchy, with the machine's own group as its root.
fn control_groups(root: &Path) -> Result<()> {
    let top = root.join("sys/fs/cgroup");
    mount(Some("cgroup"), &top, Some("tmpfs"), MsFlags::empty(), Some("mode=755,size=1m")).context("/sys/fs/cgroup")?;
    for line in fs::read_to_string("/proc/self/cgroup")?.lines() {
        let Some(controllers) = line.split(':').nth(1).filter(|controllers| !controllers.is_empty()) else { continue };
        let (place, options) = match controllers.strip_prefix("name=") {
            Some(name) => (name, format!("none,{controllers}")),
            None => (controllers, controllers.to_owned()),
        };
        fs::create_dir_all(top.join(place))?;
        mount(Some("cgroup"), &top.join(place), Some("cgroup"), MsFlags::empty(), Some(options.as_str()))
            .with_context(|| format!("the control groups of {controllers}"))?;
    }
    Ok(())
}

fn settings(root: &Path) -> Result<()> {
    let none = None::<&str>;
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    let files = root.join("etc/kernel-settings");
    fs::create_dir_all(&files)?;
    for (setting, value) in SETTINGS.into_iter().chain([(BOOT_ID, boot_id.trim())]) {
        let file = files.join(setting.replace('/', "."));
        fs::write(&file, format!("{value}\n"))?;
        let place = root.join("proc/sys").join(setting);
        mount(Some(&file), &place, none, MsFlags::MS_BIND, none).with_context(|| format!("the kernel setting {setting}"))?;
    }
    Ok(())
}

/// The arguments of `unshare` that start process 1, for a machine that has its network already.
pub fn unshare(root: &Path, name: &str, kubelet: &Path) -> Result<Vec<OsString>> {
    let program = std::env::current_exe().context("finding this program's own path")?;
    let flags = ["--mount", "--uts", "--ipc", "--pid", "--cgroup", "--fork", "--kill-child"].map(OsString::from);
    let init = [program.into(), MACHINE_ARGUMENT.into(), root.into(), name.into(), kubelet.into()];
    Ok(flags.into_iter().chain(init).collect())
}

/// Controllers of control groups by which a kubelet limits what containers take.
const CONTROLLERS: [&str; 6] = ["cpu", "cpuset", "devices", "freezer", "memory", "pids"];

/// What of the tools and rights that machines need is missing here.
pub fn missing() -> Vec<String> {
    let tools = ["containerd", "ctr", "runc", "iptables", "pkill"];
    let mut missing: Vec<_> = tools.into_iter().filter(|tool| super::namespaces::find_program(tool).is_none()).map(str::to_owned).collect();
    for file in ["/usr/lib/cni/bridge", super::archives::BUSYBOX] {
        if !Path::new(file).exists() {
            missing.push(file.to_owned());
        }
    }
    let hierarchies = super::cgroups::hierarchies().unwrap_or_default();
    let mounted = |controller: &str| hierarchies.iter().any(|path| path.ends_with(controller));
    let others: Vec<_> = CONTROLLERS.into_iter().filter(|controller| !mounted(controller)).collect();
    if !others.is_empty() {
        missing.push(format!("control groups of version 1 for {}", others.join(", ")));
    } else if hierarchies.iter().any(|path| access(path, AccessFlags::W_OK).is_err()) {
        missing.push("the rights of root".to_owned());
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn make_looks_for_the_cgroup_controllers_that_machines_need() {
        let script = std::fs::read_to_string(super::super::images::repository().join(".ci/deps")).unwrap();
        assert!(script.contains(&format!("for controller in {}; do", CONTROLLERS.join(" "))), "{script}");
    }
}
