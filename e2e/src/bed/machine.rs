//! A machine: a node with a real kubelet, containerd and runc, in namespaces and a control group of its own.
//! Its disk is a file system of a fixed size, which survives a power cut; memory and processes do not.

use std::{
    ffi::OsString,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::{
    eventually::eventually,
    host::{
        self,
        archives::{self, PAUSE},
        certificates::Credentials,
        cgroups, images,
        machine::{BOOTED, KUBELET, unshare},
        network,
        process::{Process, run},
    },
};

/// Size of a machine's disk.
const DISK_MEBIBYTES: u32 = 1024;
/// Until a machine or its containerd has started. It takes half a second alone.
const BOOT: Duration = Duration::from_mins(1);
const CONTAINERD_SOCKET: &str = "run/containerd/containerd.sock";
/// Files of the machine that the bed runs on, without which its programs do not work on another root.
const ETC: [&str; 9] =
    ["alternatives", "group", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "nsswitch.conf", "passwd", "protocols", "services"];

/// A variable: with it, whatever its value, all nodes of a bed are machines.
pub const ON_MACHINES: &str = "BED_KUBELETS";

/// What each machine of a bed has in common.
#[derive(Clone, Debug)]
pub struct Fittings {
    kubelet: PathBuf,
    /// Images that are there without a registry.
    archives: Vec<PathBuf>,
}

impl Fittings {
    /// Makes the archives. Fails if something is missing, and says what.
    pub async fn make(state: &Path) -> Result<Self> {
        if let Some(missing) = missing() {
            bail!("machines with real kubelets need {missing}");
        }
        Ok(Self { kubelet: kubelet_binary(), archives: archives::make(state).await? })
    }
}

/// What this machine lacks for machines with real kubelets.
pub fn missing() -> Option<String> {
    let built = archives::of_product().into_iter().chain([kubelet_binary()]).filter(|path| !path.is_file());
    let built = built.map(|path| format!("{} (`make kubelet-bed` builds it)", path.display()));
    let old = archives::older_than_programs().into_iter();
    let old = old.map(|path| format!("a newer {}: the program has been built since (`make kubelet-bed` makes it)", path.display()));
    let all: Vec<_> = host::machine::missing().into_iter().chain(built).chain(old).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// What `make kubelet-bed` builds.
fn kubelet_binary() -> PathBuf {
    images::repository().join("target/bed/kubelet")
}

/// One that is switched on, or off.
pub struct Machine {
    name: String,
    root: PathBuf,
    logs: PathBuf,
    group: String,
    fittings: Fittings,
    /// While it is switched on: the parent of process 1.
    power: Option<Process>,
    /// The id of process 1, as the bed sees it.
    first: Option<u32>,
    containerd: Option<Process>,
}

impl Machine {
    /// A machine with an empty disk below `root`; switched off.
    pub fn create(name: &str, index: u8, credentials: &Credentials, (root, logs): (&Path, &Path), fittings: Fittings) -> Result<Self> {
        fs::create_dir_all(root).with_context(|| format!("making {}", root.display()))?;
        let size = format!("size={DISK_MEBIBYTES}m,mode=755");
        mount(Some("disk"), root, Some("tmpfs"), MsFlags::empty(), Some(size.as_str())).context("making the machine's disk")?;
        install(root, name, index, credentials).with_context(|| format!("installing {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            root: root.to_owned(),
            logs: logs.to_owned(),
            group: cgroups::make(name)?,
            fittings,
            power: None,
            first: None,
            containerd: None,
        })
    }

    /// What it was made of.
    pub fn fittings(&self) -> &Fittings {
        &self.fittings
    }

    /// Switches it on: process 1 and containerd run, the kubelet does not yet. The first time it gets its images.
    pub async fn boot(&mut self) -> Result<()> {
        ensure!(self.power.is_none(), "{} is switched on already", self.name);
        self.empty_group().await?;
        let booted = self.root.join(BOOTED);
        // It may be that of the last time.
        let _ = fs::remove_file(&booted);
        let mut command = cgroups::command(&self.group, "nsenter")?;
        command.arg(format!("--net={}", network::namespace_file(&self.name))).arg("unshare").args(unshare(
            &self.root,
            &self.name,
            &self.fittings.kubelet,
        )?);
        let process = self.power.insert(Process::start(&format!("machine-{}", self.name), &self.logs, command)?);
        let parent = process.id().context("a machine without a process")?;
        let first = eventually(BOOT, &format!("{} has booted", self.name), async || {
            process.check()?;
            ensure!(booted.exists(), "its file system is not made yet");
            let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
            children.trim().parse().with_context(|| format!("not one child: {children}"))
        })
        .await?;
        self.first = Some(first);
        self.start_containerd().await?;
        if !self.root.join("var/lib/containerd/images").exists() {
            self.load_images().await?;
            fs::write(self.root.join("var/lib/containerd/images"), "")?;
        }
        Ok(())
    }

    /// A power cut: all processes die at once.
    pub async fn power_off(&mut self) -> Result<()> {
        (self.containerd, self.first) = (None, None);
        match self.power.take() {
            Some(process) => process.kill().await,
            None => Ok(()),
        }
    }

    /// Starts containerd, and waits until it answers.
    pub async fn start_containerd(&mut self) -> Result<()> {
        let mut command = self.command(&["containerd", "--config", "/etc/containerd/config.toml"])?;
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        let mut process = Process::start(&format!("containerd-{}", self.name), &self.logs, command)?;
        eventually(BOOT, &format!("containerd of {} answers", self.name), async || {
            process.check()?;
            self.ctr(&["version"]).await.map(drop)
        })
        .await?;
        self.containerd = Some(process);
        Ok(())
    }

    /// Kills containerd (`SIGKILL`) and starts it again. What runs in containers runs on.
    pub async fn restart_containerd(&mut self) -> Result<()> {
        self.containerd.take().with_context(|| format!("containerd of {} does not run", self.name))?.kill().await?;
        self.start_containerd().await
    }

    /// Imports the images, as if a registry had been asked for them.
    pub async fn load_images(&self) -> Result<()> {
        for archive in &self.fittings.archives {
            let path = archive.to_string_lossy();
            self.ctr(&["images", "import", &path]).await.with_context(|| format!("loading {path} into {}", self.name))?;
        }
        Ok(())
    }

    /// Runs a command in the machine.
    pub async fn run(&self, arguments: &[&str]) -> Result<String> {
        let command = self.command(arguments)?;
        let command = command.as_std();
        run(command.get_program(), command.get_args()).await.with_context(|| format!("in {}", self.name))
    }

    /// What the kubelet is started with, in the machine. It dies with this command.
    pub fn kubelet(&self, flags: &[String]) -> Result<Command> {
        let fixed = [
            KUBELET,
            "--config=/etc/kubernetes/kubelet.json",
            "--kubeconfig=/etc/kubernetes/kubelet.conf",
            "--root-dir=/var/lib/kubelet",
            "--cert-dir=/var/lib/kubelet/pki",
            "--v=2",
        ];
        let arguments: Vec<_> = fixed.into_iter().chain(flags.iter().map(String::as_str)).collect();
        self.command(&arguments)
    }

    /// Its disk is gone. It must be switched off.
    pub async fn scrap(&self) -> Result<()> {
        self.empty_group().await?;
        umount2(&self.root, MntFlags::MNT_DETACH).with_context(|| format!("taking the disk of {} away", self.name))
    }

    /// A kubelet takes what it finds there for containers that run.
    async fn empty_group(&self) -> Result<()> {
        let group = self.group.clone();
        // The kernel may take seconds to let go of what was killed.
        tokio::task::spawn_blocking(move || cgroups::empty(&group)).await.context("emptying a control group")?
    }

    /// A command in all namespaces of the machine. What it starts is killed with it; what that one starts is not.
    fn command(&self, arguments: &[&str]) -> Result<Command> {
        let first = self.first.with_context(|| format!("{} is switched off", self.name))?;
        let mut command = cgroups::command(&self.group, "nsenter")?;
        let target = first.to_string();
        let enter = ["--target", &target, "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd", "--"];
        command.args(enter).args(["setpriv", "--pdeathsig", "KILL"]).args(arguments);
        Ok(command)
    }

    async fn ctr(&self, arguments: &[&str]) -> Result<String> {
        let socket = self.root.join(CONTAINERD_SOCKET);
        let to: [OsString; 4] = ["--address".into(), socket.into(), "--namespace".into(), "k8s.io".into()];
        run("ctr", to.into_iter().chain(arguments.iter().map(OsString::from))).await
    }
}

/// What is on the disk of a machine before it is switched on for the first time.
fn install(root: &Path, name: &str, index: u8, credentials: &Credentials) -> Result<()> {
    for directory in ["etc/containerd", "etc/cni/net.d", "etc/kubernetes", "var/lib/kubelet", "var/lib/containerd", "var/log/pods", "root"]
    {
        fs::create_dir_all(root.join(directory))?;
    }
    symlink("/run", root.join("var/run"))?;
    for file in ETC {
        copy(&Path::new("/etc").join(file), &root.join("etc").join(file))?;
    }
    let write = |path: &str, text: String| fs::write(root.join(path), text).with_context(|| format!("writing {path}"));
    write("etc/hostname", format!("{name}\n"))?;
    write("etc/machine-id", format!("{index:032x}\n"))?;
    write("etc/os-release", "PRETTY_NAME=\"Machine of the bed\"\nNAME=\"Debian GNU/Linux\"\nID=debian\n".to_owned())?;
    write("etc/hosts", format!("127.0.0.1 localhost\n{} {name}\n", network::node_address(index)))?;
    // Nobody answers: a program that asks learns so at once.
    write("etc/resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n".to_owned())?;
    write("etc/containerd/config.toml", containerd())?;
    write("etc/cni/net.d/10-bed.conflist", network_of_pods(index).to_string())?;
    for (from, file) in [(&credentials.kubeconfig, "kubelet.conf"), (&credentials.client_authority, "ca.crt")] {
        fs::copy(from, root.join("etc/kubernetes").join(file)).with_context(|| format!("copying {}", from.display()))?;
    }
    if let Some(serving) = &credentials.serving {
        fs::copy(&serving.certificate, root.join("etc/kubernetes/serving.crt"))?;
        fs::copy(&serving.key, root.join("etc/kubernetes/serving.key"))?;
    }
    write("etc/kubernetes/kubelet.json", kubelet(credentials.serving.is_some()).to_string())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if !from.is_dir() {
        return fs::copy(from, to).map(drop).with_context(|| format!("copying {}", from.display()));
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_symlink() {
            symlink(fs::read_link(entry.path())?, to)?;
        } else {
            copy(&entry.path(), &to)?;
        }
    }
    Ok(())
}

/// Debian's containerd 1.6. A bed may lack the right to lower `oom_score_adj`.
fn containerd() -> String {
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "/{CONTAINERD_SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
"#
    )
}

/// Pods without `hostNetwork`, such as the operator's, have addresses that the bed's routes lead to.
fn network_of_pods(index: u8) -> Value {
    json!({
        "cniVersion": "0.4.0", "name": "bed",
        "plugins": [{
            "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
            "ipam": {
                "type": "host-local", "ranges": [[{ "subnet": network::pod_network(index) }]], "routes": [{ "dst": "0.0.0.0/0" }],
            },
        }],
    })
}

fn kubelet(serving: bool) -> Value {
    let mut configuration = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": { "enabled": false }, "webhook": { "enabled": true }, "x509": { "clientCAFile": "/etc/kubernetes/ca.crt" },
        },
        "authorization": { "mode": "Webhook" },
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": format!("unix:///{CONTAINERD_SOCKET}"),
        "failCgroupV1": false,
        "failSwapOn": false,
        "resolvConf": "/etc/resolv.conf",
        "oomScoreAdj": 0,
        "evictionHard": {
            "memory.available": "50Mi", "nodefs.available": "10%", "nodefs.inodesFree": "1%", "imagefs.available": "10%",
        },
        "evictionPressureTransitionPeriod": "5s",
        // What a disk is full of in a scenario is not images.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
    });
    if serving {
        configuration["tlsCertFile"] = "/etc/kubernetes/serving.crt".into();
        configuration["tlsPrivateKeyFile"] = "/etc/kubernetes/serving.key".into();
    }
    configuration
}
