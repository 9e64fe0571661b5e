//! The operator as a process of the bed instead of a pod, so that a scenario can kill it at a chosen moment.
//!
//! It has the `ServiceAccount` of `deploy/`, and so exactly its rights.

use std::path::PathBuf;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use tokio::process::Command;

use crate::{bed::Bed, control_plane, fault_proxy::FaultProxy, images, process::Process};

/// Namespace of the operator and its lease.
pub const NAMESPACE: &str = "ingress-daemonset-system";
/// Name of the operator's Deployment, `ServiceAccount` and lease.
pub const NAME: &str = "ingress-daemonset-operator";

/// An operator that the scenario starts and kills.
pub struct OperatorProcess {
    kubeconfig: PathBuf,
    logs: PathBuf,
    identity: String,
    arguments: Vec<String>,
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
        let mut operator = Self { kubeconfig, logs: bed.state().join("logs"), identity: identity.to_owned(), arguments, process: None };
        operator.run()?;
        Ok(operator)
    }

    /// Starts it again after it has ended. It has the same name in the lease, as a container has that is restarted.
    pub fn run(&mut self) -> Result<()> {
        let mut command = Command::new(images::workspace_binary("ingress-daemonset-operator")?);
        command.args(["run", "--lease-namespace", NAMESPACE, "--identity", &self.identity, "--listen-address", "127.0.0.1:0"]);
        command.args(["--log-level", "info,operator=debug"]).args(&self.arguments).env("KUBECONFIG", &self.kubeconfig);
        self.process = Some(Process::start(&format!("operator-{}", self.identity), &self.logs, command)?);
        Ok(())
    }

    /// Starts it again if it has ended by itself, as its kubelet would: it does so when it cannot renew the lease, which
    /// happens on a machine that is slow.
    pub fn revive(&mut self) -> Result<()> {
        if self.check().is_err() { self.run() } else { Ok(()) }
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
    bed.kubectl(&["wait", "--for=delete", "pod", "-n", NAMESPACE, "--all", "--timeout=60s"]).await.map(drop)
}
