//! A control plane with the product's types and rights in it, an operator and a fleet.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use crds::IngressDaemonSet;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    process::Command,
};

use super::{findings::Say, resource};
use crate::{
    bed::{self, control_plane, operator},
    bench::fleet::{objects::PREFIX, server::Server},
    cluster::product,
    eventually::eventually,
    host::{images, process::Process, process_figures::ProcessFigures},
};

/// Where the operator serves its metrics.
const METRICS: &str = "127.0.0.1:9356";
/// A variable: the path of another build of the operator, such as a former one, that is measured in its place.
const OPERATOR: &str = "BED_BENCH_OPERATOR";
/// How long things take that are no part of what is measured.
const PATIENCE: Duration = Duration::from_mins(2);

/// The control plane and what runs beside it.
pub struct Cluster {
    /// Control plane, and rights of the fleet.
    pub server: Server,
    /// Where everything is kept.
    pub state: PathBuf,
    operator_kubeconfig: PathBuf,
    operator: Option<Process>,
    build: Option<PathBuf>,
    fleet: Option<Process>,
}

impl Cluster {
    /// Starts a control plane with the product's types and the operator's rights. Neither operator nor fleet runs.
    pub async fn start(state: &Path) -> Result<Self> {
        let server = Server::start(state).await.context("starting the control plane")?;
        let control_plane = server.control_plane();
        for path in ["crds/manifests", "deploy/00-namespace.yaml", "deploy/10-rbac.yaml"] {
            let file = images::repository().join(path);
            control_plane.kubectl(&["apply", "--server-side", "-f", &file.to_string_lossy()]).await.with_context(|| path.to_owned())?;
        }
        control_plane.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"]).await?;
        bed::owner_references_are_known(control_plane, state).await?;
        let token = control_plane.kubectl(&["create", "token", operator::NAME, "-n", operator::NAMESPACE, "--duration=6h"]).await?;
        let mut config = control_plane.admin_kubeconfig_for(&control_plane::server())?;
        config["users"][0]["user"] = serde_json::json!({ "token": token.trim() });
        let operator_kubeconfig = state.join("operator.json");
        tokio::fs::write(&operator_kubeconfig, serde_json::to_vec(&config)?).await.context("writing the operator's kubeconfig")?;
        std::fs::write(state.join("stages.yaml"), resource::stages()).context("writing the stages")?;
        Ok(Self { server, state: state.to_owned(), operator_kubeconfig, operator: None, build: None, fleet: None })
    }

    /// From now on starts this build of the operator; the usual one where none is given.
    pub fn measure(&mut self, build: Option<&Path>) {
        self.build = build.map(Path::to_owned);
    }

    /// Starts the operator, as `deploy/` starts it; returns when that was.
    pub fn start_operator(&mut self) -> Result<Instant> {
        let build = self.build.clone().or_else(|| std::env::var_os(OPERATOR).map(PathBuf::from));
        let program = build.map_or_else(|| images::workspace_binary("ingress-daemonset-operator"), Ok)?;
        let mut command = Command::new(program);
        command.args(["run", "--lease-namespace", operator::NAMESPACE, "--identity", "bench", "--listen-address", METRICS]);
        command.env("KUBECONFIG", &self.operator_kubeconfig);
        let begun = Instant::now();
        self.operator = Some(Process::start("operator", &self.state.join("logs"), command)?);
        Ok(begun)
    }

    /// How the operator reaches the API server, as its own user.
    pub fn operator_kubeconfig(&self) -> &Path {
        &self.operator_kubeconfig
    }

    /// Kills the operator.
    pub async fn kill_operator(&mut self) -> Result<()> {
        self.operator.take().context("the operator was not started")?.kill().await
    }

    /// What the operator costs.
    pub fn operator_figures(&self) -> Result<ProcessFigures> {
        let operator = self.operator.as_ref().context("the operator was not started")?;
        Ok(ProcessFigures::of(operator.id().context("the operator has ended")?))
    }

    /// The operator's metrics.
    pub async fn operator_metrics(&self) -> Result<String> {
        let mut stream = TcpStream::connect(METRICS).await.context("connecting to the operator's metrics")?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: metrics\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        tokio::time::timeout(Duration::from_secs(10), stream.read_to_string(&mut answer)).await.context("the operator's metrics")??;
        Ok(answer)
    }

    /// Starts a fleet of so many nodes, which takes over those that are there.
    pub fn start_fleet(&mut self, nodes: usize) -> Result<()> {
        let label = format!("{}={}", resource::NODE_LABEL.0, resource::NODE_LABEL.1);
        let mut command = Command::new(images::workspace_binary("virtual-kubelet")?);
        command.args(["fleet", "--simulate", &nodes.to_string(), "--name-prefix", PREFIX, "--labels", &label]);
        command.arg("--stages").arg(self.state.join("stages.yaml")).arg("--kubeconfig").arg(self.server.kubeconfig()?);
        command.env("HOME", &self.state).env_remove("KUBECONFIG");
        self.fleet = Some(Process::start("fleet", &self.state.join("logs"), command)?);
        Ok(())
    }

    /// Fails, with the end of its log, when operator or fleet has ended.
    pub fn check(&mut self) -> Result<()> {
        self.operator.iter_mut().chain(&mut self.fleet).try_for_each(Process::check)
    }

    /// Makes an object, or changes the one that exists to this.
    pub async fn apply(&self, object: &Value) -> Result<()> {
        let path = self.state.join("apply.json");
        tokio::fs::write(&path, serde_json::to_vec(object)?).await?;
        let apply = ["apply", "--server-side", "--force-conflicts", "--field-manager=bed", "-f", &path.to_string_lossy()];
        self.server.control_plane().kubectl(&apply).await.map(drop)
    }

    /// The resource.
    pub async fn resource(&self) -> Result<IngressDaemonSet> {
        self.api().get(product::NAME).await.context("reading the resource")
    }

    /// Changes the resource's spec; `null` removes a field.
    pub async fn change(&self, spec: Value) -> Result<()> {
        let patch = Patch::Merge(serde_json::json!({ "spec": spec }));
        self.api().patch(product::NAME, &PatchParams::default(), &patch).await.context("changing the resource").map(drop)
    }

    /// Loses the resource's grant ledger.
    pub async fn lose_ledger(&self) -> Result<()> {
        let patch = Patch::Merge(serde_json::json!({ "status": { "rollout": null } }));
        self.api().patch_status(product::NAME, &PatchParams::default(), &patch).await.context("losing the ledger").map(drop)
    }

    fn api(&self) -> Api<IngressDaemonSet> {
        Api::namespaced(self.server.client.clone(), "default")
    }

    /// Waits until the status says that all of `nodes` run the newest revision and nothing is under way; says how far it is.
    pub async fn is_complete(&mut self, nodes: usize, deadline: Duration, say: Say<'_>) -> Result<()> {
        let mut said = Instant::now();
        eventually(deadline, &format!("all of {nodes} nodes are updated and serve"), async || {
            self.check()?;
            let resource = self.resource().await?;
            if product::has_ended(&resource, nodes) {
                return Ok(());
            }
            let status = resource.status.unwrap_or_default();
            if said.elapsed() > Duration::from_secs(20) {
                said = Instant::now();
                say(&format!("  {:?}", status.nodes));
            }
            anyhow::bail!("{:?}", status.nodes)
        })
        .await
    }

    /// Waits until a built-in `DaemonSet` has all its pods updated and available.
    pub async fn daemon_set_is_complete(&self, nodes: usize, deadline: Duration) -> Result<()> {
        let api = Api::<k8s_openapi::api::apps::v1::DaemonSet>::namespaced(self.server.client.clone(), "default");
        let nodes = i32::try_from(nodes)?;
        eventually(deadline, "the built-in DaemonSet is updated", async || {
            let set = api.get("plain").await?;
            let status = set.status.unwrap_or_default();
            ensure!(status.observed_generation >= set.metadata.generation, "not seen yet");
            let (updated, available) = (status.updated_number_scheduled.unwrap_or(0), status.number_available.unwrap_or(0));
            ensure!(
                status.desired_number_scheduled == nodes && updated == nodes && available == nodes,
                "{updated} updated, {available} available"
            );
            Ok(())
        })
        .await
    }

    /// Waits until all nodes of the fleet are Ready.
    pub async fn nodes_are_ready(&mut self, nodes: usize) -> Result<()> {
        eventually(PATIENCE, &format!("{nodes} nodes are Ready"), async || {
            self.check()?;
            let listed = crate::bench::fleet::raw::list(&self.server.client, "/api/v1/nodes").await?;
            let ready = listed.iter().filter(|node| node.is_ready()).count();
            ensure!(ready >= nodes, "{ready} are");
            Ok(())
        })
        .await
    }

    /// Ends everything.
    pub async fn end(mut self) -> Result<()> {
        if let Some(operator) = self.operator.take() {
            operator.kill().await?;
        }
        if let Some(fleet) = self.fleet.take() {
            // It may have ended by itself.
            let _ = fleet.signal(Signal::SIGTERM);
            fleet.kill().await?;
        }
        self.server.end().await
    }
}
