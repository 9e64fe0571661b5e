//! The operator as a process of the bed instead of a pod, so that a scenario can kill it at a chosen moment.
//!
//! It has the `ServiceAccount` of `deploy/`, and so exactly its rights.

use std::path::PathBuf;

use anyhow::{Context, Result};
use tokio::process::Command;

use crate::{bed::Bed, images, process::Process};

const NAMESPACE: &str = "ingress-daemonset-system";
const NAME: &str = "ingress-daemonset-operator";

/// An operator that the scenario starts and kills.
pub struct OperatorProcess {
    kubeconfig: PathBuf,
    logs: PathBuf,
    identity: String,
    process: Option<Process>,
}

impl OperatorProcess {
    /// Stops the operator that `deploy/` runs, for good, and starts one as a process.
    pub async fn instead_of_pods(bed: &Bed) -> Result<Self> {
        bed.kubectl(&["scale", "deployment", NAME, "-n", NAMESPACE, "--replicas=0"]).await?;
        bed.kubectl(&["wait", "--for=delete", "pod", "-n", NAMESPACE, "--all", "--timeout=60s"]).await?;
        Self::start(bed, "scenario").await
    }

    /// Starts another one.
    pub async fn start(bed: &Bed, identity: &str) -> Result<Self> {
        let token = bed.kubectl(&["create", "token", NAME, "-n", NAMESPACE, "--duration=1h"]).await?;
        let mut config = bed.control_plane.admin_kubeconfig_for(&crate::control_plane::server())?;
        config["users"][0]["user"] = serde_json::json!({ "token": token.trim() });
        let kubeconfig = bed.state().join(format!("operator-{identity}.json"));
        tokio::fs::write(&kubeconfig, serde_json::to_vec(&config)?).await.context("writing the operator's kubeconfig")?;
        let mut operator = Self { kubeconfig, logs: bed.state().join("logs"), identity: identity.to_owned(), process: None };
        operator.run()?;
        Ok(operator)
    }

    /// Starts it again after it was killed. It has the same name in the lease, as a container has that is restarted.
    pub fn run(&mut self) -> Result<()> {
        let mut command = Command::new(images::workspace_binary("ingress-daemonset-operator")?);
        command.args(["run", "--lease-namespace", NAMESPACE, "--identity", &self.identity, "--listen-address", "127.0.0.1:0"]);
        command.args(["--log-level", "info,operator=debug"]).env("KUBECONFIG", &self.kubeconfig);
        self.process = Some(Process::start(&format!("operator-{}", self.identity), &self.logs, command)?);
        Ok(())
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: nix::sys::signal::Signal) -> Result<()> {
        self.process.as_ref().context("the operator does not run")?.signal(signal)
    }

    /// Fails, with the end of its log, when it has ended.
    pub fn check(&mut self) -> Result<()> {
        self.process.as_mut().context("the operator does not run")?.check()
    }

    /// Kills it (`SIGKILL`).
    pub async fn kill(&mut self) -> Result<()> {
        match self.process.take() {
            Some(process) => process.kill().await,
            None => Ok(()),
        }
    }
}
