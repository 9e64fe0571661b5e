//! The operator as a process of the bed instead of a pod, so that a scenario can kill it at a chosen moment.
//!
//! It has the `ServiceAccount` of `deploy/`, and so exactly its rights.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    process::Command,
};

use crate::{bed::Bed, control_plane, fault_proxy::FaultProxy, images, process::Process};

/// Namespace of the operator and its lease.
pub const NAMESPACE: &str = "ingress-daemonset-system";
/// Name of the operator's Deployment, `ServiceAccount` and lease.
pub const NAME: &str = "ingress-daemonset-operator";

/// For an operator without a rival in a scenario that does not [`OperatorProcess::revive`] it: a machine that several beds share may stand
/// still for as long as a lease lasts, and no kubelet starts again what ends because it could not renew it.
pub const SOLE: &str = "--lease-duration-seconds=120";

/// An operator that the scenario starts and kills. Dropping it kills it.
pub struct OperatorProcess {
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
        Self::start_at(bed, identity, &control_plane::server(), &[]).await
    }

    /// Starts one that reaches the API server through `proxy` only, with further arguments.
    pub async fn start_behind(bed: &Bed, identity: &str, proxy: &FaultProxy, arguments: &[&str]) -> Result<Self> {
        Self::start_at(bed, identity, &proxy.server(), arguments).await
    }

    async fn start_at(bed: &Bed, identity: &str, server: &str, arguments: &[&str]) -> Result<Self> {
        let token = bed.kubectl(&["create", "token", NAME, "-n", NAMESPACE, "--duration=1h"]).await?;
        let mut config = bed.control_plane.admin_kubeconfig_for(server)?;
        config["users"][0]["user"] = serde_json::json!({ "token": token.trim() });
        let kubeconfig = bed.state().join(format!("operator-{identity}.json"));
        tokio::fs::write(&kubeconfig, serde_json::to_vec(&config)?).await.context("writing the operator's kubeconfig")?;
        let arguments = arguments.iter().map(ToString::to_string).collect();
        let logs = bed.state().join("logs");
        // Free in the bed, where nobody else takes ports by chance; given back here for the operator to take.
        let metrics = std::net::TcpListener::bind("127.0.0.1:0").and_then(|taken| taken.local_addr()).context("a port for metrics")?;
        let mut operator = Self { kubeconfig, logs, identity: identity.to_owned(), arguments, metrics, process: None };
        operator.run()?;
        Ok(operator)
    }

    /// Starts it again after it has ended. It has the same name in the lease, as a container has that is restarted.
    pub fn run(&mut self) -> Result<()> {
        let mut command = Command::new(images::workspace_binary("ingress-daemonset-operator")?);
        let listen = self.metrics.to_string();
        command.args(["run", "--lease-namespace", NAMESPACE, "--identity", &self.identity, "--listen-address", &listen]);
        command.args(["--log-level", "info,operator=debug"]).args(&self.arguments).env("KUBECONFIG", &self.kubeconfig);
        command.kill_on_drop(true);
        self.process = Some(Process::start(&format!("operator-{}", self.identity), &self.logs, command)?);
        Ok(())
    }

    /// Starts it again if it has ended by itself, as its kubelet would: it does so when it cannot renew the lease, which
    /// happens on a machine that is slow.
    pub fn revive(&mut self) -> Result<()> {
        if self.check().is_err() { self.run() } else { Ok(()) }
    }

    /// Its metrics.
    pub async fn metrics(&self) -> Result<String> {
        let mut stream = TcpStream::connect(self.metrics).await.context("connecting to the operator's metrics")?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: metrics\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        tokio::time::timeout(Duration::from_mins(1), stream.read_to_string(&mut answer)).await.context("the operator's metrics")??;
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

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.as_ref().context("the operator was not started")?.signal(signal)
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
