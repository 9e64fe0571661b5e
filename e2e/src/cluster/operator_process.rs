//! The operator as a process of the bed instead of a pod, so that a scenario can kill it at a chosen moment.
//!
//! It has the `ServiceAccount` of `deploy/`, and so exactly its rights.

use std::{ffi::OsString, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    process::Command,
};

use crate::{
    bed::{
        Bed, control_plane,
        operator::{NAME, NAMESPACE, NODE_READERS, NODE_TAINTS},
    },
    eventually::eventually,
    faults::FaultProxy,
    host::{images, process::Process, process_figures::ProcessFigures},
};

/// For an operator without a rival in a scenario that does not [`OperatorProcess::revive`] it. A machine that several beds share may stand
/// still for as long as a lease lasts, and no kubelet starts again what ends because it could not renew it.
pub const SOLE: &str = "--lease-duration-seconds=120";

/// The last line of an operator that ends because it cannot renew its lease, and wants to be started again, has this.
const LOST_ITS_LEASE: &str = "error: the lease went to another replica or could not be renewed";

/// Until an operator has ended that was asked to: it takes two seconds at most on a machine that is idle.
const STOPS: Duration = Duration::from_mins(1);

/// What runs as the operator.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    environment: Vec<(String, OsString)>,
}

impl Program {
    /// This one.
    pub fn at(path: PathBuf) -> Self {
        Self { path, environment: Vec::new() }
    }

    /// Today's.
    pub fn of_workspace() -> Result<Self> {
        images::workspace_binary("ingress-daemonset-operator").map(Self::at)
    }

    /// With a variable in its environment.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }
}

/// A clock that a process believes in the place of the machine's, and that can be set while it runs. What nobody sets, the monotonic
/// clock, stays the machine's.
#[derive(Debug)]
pub struct Clock {
    library: PathBuf,
    /// How far it is ahead; read whenever the process asks for the time.
    file: PathBuf,
}

impl Clock {
    /// One that goes as the machine's does; `name` tells it from others of the bed.
    pub fn new(bed: &Bed, name: &str) -> Result<Self> {
        let clock = Self { library: faketime()?, file: bed.state().join(format!("clock-{name}")) };
        clock.set(0)?;
        Ok(clock)
    }

    /// Sets it to be so many seconds ahead of the machine's, or behind.
    pub fn set(&self, ahead: i64) -> Result<()> {
        // In one step: from a file that is half written the process would read another time.
        let new = self.file.with_extension("new");
        std::fs::write(&new, format!("{ahead:+}\n")).with_context(|| format!("writing {}", new.display()))?;
        std::fs::rename(&new, &self.file).with_context(|| format!("setting {}", self.file.display()))
    }

    /// The program, under this clock.
    pub fn over(&self, program: Program) -> Program {
        program
            .with("LD_PRELOAD", &self.library)
            .with("FAKETIME_TIMESTAMP_FILE", &self.file)
            .with("FAKETIME_NO_CACHE", "1")
            .with("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    }
}

/// Where Debian has libfaketime, in its variant for programs of many threads.
pub fn faketime() -> Result<PathBuf> {
    let directories = std::fs::read_dir("/usr/lib").context("reading /usr/lib")?;
    let libraries = directories.flatten().map(|directory| directory.path().join("faketime/libfaketimeMT.so.1"));
    libraries.filter(|library| library.is_file()).min().context(
        "libfaketime is not installed: `.ci/deps soak` installs it, or as root: apt-get install --no-install-recommends libfaketime",
    )
}

/// An operator that the scenario starts and kills. Dropping it kills it.
pub struct OperatorProcess {
    program: Program,
    kubeconfig: PathBuf,
    logs: PathBuf,
    identity: String,
    arguments: Vec<String>,
    /// Where it serves its metrics.
    metrics: SocketAddr,
    process: Option<Process>,
}

impl OperatorProcess {
    /// Stops the operator that `deploy/` runs, for good, and starts one as a process.
    pub async fn instead_of_pods(bed: &Bed) -> Result<Self> {
        stop_pods(bed).await?;
        Self::start(bed, "scenario").await
    }

    /// Starts another one.
    pub async fn start(bed: &Bed, identity: &str) -> Result<Self> {
        Self::start_program(bed, identity, Program::of_workspace()?).await
    }

    /// Starts one with further arguments.
    pub async fn start_with(bed: &Bed, identity: &str, arguments: &[&str]) -> Result<Self> {
        Self::start_at(bed, identity, Program::of_workspace()?, &control_plane::server(), arguments).await
    }

    /// Starts one that is another program, or that runs in another environment.
    pub async fn start_program(bed: &Bed, identity: &str, program: Program) -> Result<Self> {
        Self::start_at(bed, identity, program, &control_plane::server(), &[]).await
    }

    /// Starts one that reaches the API server through `proxy` only, with further arguments.
    pub async fn start_behind(bed: &Bed, identity: &str, proxy: &FaultProxy, arguments: &[&str]) -> Result<Self> {
        Self::start_at(bed, identity, Program::of_workspace()?, &proxy.server(), arguments).await
    }

    async fn start_at(bed: &Bed, identity: &str, program: Program, server: &str, arguments: &[&str]) -> Result<Self> {
        let token = bed.kubectl(&["create", "token", NAME, "-n", NAMESPACE, "--duration=1h"]).await?;
        let mut config = bed.control_plane.admin_kubeconfig_for(server)?;
        config["users"][0]["user"] = serde_json::json!({ "token": token.trim() });
        let kubeconfig = bed.state().join(format!("operator-{identity}.json"));
        tokio::fs::write(&kubeconfig, serde_json::to_vec(&config)?).await.context("writing the operator's kubeconfig")?;
        let arguments = arguments.iter().map(ToString::to_string).collect();
        let logs = bed.state().join("logs");
        // Free in the bed, where nobody else takes ports by chance; given back here for the operator to take.
        let metrics = std::net::TcpListener::bind("127.0.0.1:0").and_then(|taken| taken.local_addr()).context("a port for metrics")?;
        let mut operator = Self { program, kubeconfig, logs, identity: identity.to_owned(), arguments, metrics, process: None };
        operator.run()?;
        Ok(operator)
    }

    /// Starts it again after it has ended. It has the same name in the lease, as a container has that is restarted.
    pub fn run(&mut self) -> Result<()> {
        let mut command = Command::new(&self.program.path);
        command.envs(self.program.environment.iter().map(|(name, value)| (name, value)));
        let listen = self.metrics.to_string();
        command.args(["run", "--lease-namespace", NAMESPACE, "--identity", &self.identity, "--listen-address", &listen]);
        command.envs([NODE_TAINTS, NODE_READERS]);
        command.args(["--log-level", "info,operator=debug"]).args(&self.arguments).env("KUBECONFIG", &self.kubeconfig);
        command.kill_on_drop(true);
        self.process = Some(Process::start(&format!("operator-{}", self.identity), &self.logs, command)?);
        Ok(())
    }

    /// Starts it again if it has ended by itself, as its kubelet would, because it could not renew the lease: that happens on a machine
    /// that is slow. Any other end is a failure.
    pub fn revive(&mut self) -> Result<()> {
        if self.has_lost_its_lease()? { self.run() } else { Ok(()) }
    }

    /// Whether it has ended by itself because it could not renew the lease. Any other end is a failure.
    pub fn has_lost_its_lease(&mut self) -> Result<bool> {
        let process = self.process.as_mut().context("the operator was not started")?;
        let lost = process.ended()?.is_some() && process.tail().lines().last().is_some_and(|line| line.contains(LOST_ITS_LEASE));
        if !lost {
            self.check()?;
        }
        Ok(lost)
    }

    /// Its metrics.
    pub async fn metrics(&self) -> Result<String> {
        self.get("/metrics").await
    }

    /// What its web server answers, headers included.
    pub async fn get(&self, path: &str) -> Result<String> {
        let mut stream = TcpStream::connect(self.metrics).await.context("connecting to the operator's web server")?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: operator\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        tokio::time::timeout(Duration::from_mins(1), stream.read_to_string(&mut answer)).await.context("the operator's web server")??;
        Ok(answer)
    }

    /// Its name in the lease.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Fails, with the end of its log, when it runs no more.
    pub fn check(&mut self) -> Result<()> {
        self.process.as_mut().context("the operator was not started")?.check()
    }

    /// What the kernel counts of it.
    pub fn figures(&self) -> Result<ProcessFigures> {
        let process = self.process.as_ref().context("the operator was not started")?;
        Ok(ProcessFigures::of(process.id().context("the operator has ended")?))
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.as_ref().context("the operator was not started")?.signal(signal)
    }

    /// Asks it to end (`SIGTERM`), as a kubelet does, and waits until it has: it leaves its lease to whoever wants it.
    pub async fn stop(&mut self) -> Result<()> {
        self.signal(Signal::SIGTERM)?;
        self.ends().await
    }

    /// Waits until it has ended that was asked to. An error is a failure.
    pub async fn ends(&mut self) -> Result<()> {
        let mut process = self.process.take().context("the operator was not started")?;
        let status = eventually(STOPS, "the operator has ended", async || process.ended()?.context("it runs")).await?;
        ensure!(status.success(), "the operator ended with {status}; the end of its log:\n{}", process.tail());
        Ok(())
    }

    /// Kills it (`SIGKILL`).
    pub async fn kill(&mut self) -> Result<()> {
        match self.process.take() {
            Some(process) => process.kill().await,
            None => Ok(()),
        }
    }
}

/// Stops the operator that `deploy/` runs, for good.
pub async fn stop_pods(bed: &Bed) -> Result<()> {
    bed.kubectl(&["scale", "deployment", NAME, "-n", NAMESPACE, "--replicas=0"]).await?;
    bed.kubectl(&["wait", "--for=delete", "pod", "-n", NAMESPACE, "--all", "--timeout=180s"]).await.map(drop)
}
