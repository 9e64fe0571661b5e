//! A control plane of its own for each run, and what it counts.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use http::Request;
use kube::{Client, client::Body};
use serde_json::json;

use super::{
    exposition::{self, Requests},
    raw,
};
use crate::{
    bed::control_plane::{ControlPlane, Timing},
    eventually::eventually,
    host::process_figures::ProcessFigures,
};

/// Who all agents are. A user of their own, so that the API server counts their requests apart from everybody else's. It has no
/// limit on requests at once, because what is measured is what they ask for, not how long they are made to wait.
const AGENT: &str = "bench-agent";
const DISPATCHED: &str = "apiserver_flowcontrol_dispatched_requests_total";

/// A control plane with rights for an agent.
pub struct Server {
    control_plane: ControlPlane,
    /// The API as admin.
    pub client: Client,
    processes: [ProcessFigures; 2],
}

/// What was counted up to a moment.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Requests of the agent, all of them.
    pub agent: f64,
    /// Requests of everybody.
    pub all: Requests,
}

impl Server {
    /// Starts one, with the delays that Kubernetes has by default.
    pub async fn start(state: &Path) -> Result<Self> {
        let timing = Timing { node_grace_seconds: 50, eviction_seconds: 300 };
        let control_plane = ControlPlane::start(state, &timing, false).await?;
        let client = control_plane.admin_client().await?;
        let process = |name| control_plane.id(name).map(ProcessFigures::of).with_context(|| format!("{name} has ended"));
        let processes = [process("kube-apiserver")?, process("etcd")?];
        let this = Self { control_plane, client, processes };
        this.let_agent_in().await?;
        Ok(this)
    }

    async fn let_agent_in(&self) -> Result<()> {
        let subject = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": AGENT });
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": AGENT },
            "subjects": [subject],
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
        });
        let everything = json!({
            "subjects": [{ "kind": "User", "user": { "name": AGENT } }],
            "resourceRules": [{ "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true, "namespaces": ["*"] }],
            "nonResourceRules": [{ "verbs": ["*"], "nonResourceURLs": ["*"] }],
        });
        let schema = json!({
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": { "name": AGENT },
            "spec": { "priorityLevelConfiguration": { "name": "exempt" }, "matchingPrecedence": 2, "rules": [everything] },
        });
        for (path, object) in [
            ("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding),
            ("/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas", schema),
        ] {
            raw::send(&self.client, "POST", path, "application/json", object.to_string()).await.with_context(|| format!("POST {path}"))?;
        }
        let agent = crate::bed::control_plane::client(&serde_json::from_str(&std::fs::read_to_string(self.kubeconfig()?)?)?).await?;
        eventually(Duration::from_secs(30), "the agent's requests are counted apart", async || {
            let before = self.counts().await?.agent;
            let answer = agent.send(Request::get("/api/v1/nodes").body(Body::empty())?).await?;
            ensure!(answer.status().is_success(), "{}", answer.status());
            ensure!(self.counts().await?.agent > before, "they are not");
            Ok(())
        })
        .await
    }

    /// The control plane itself.
    pub fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    /// The agent's kubeconfig.
    pub fn kubeconfig(&self) -> Result<std::path::PathBuf> {
        self.control_plane.kubeconfig_of(AGENT)
    }

    /// Stops the API server's process, or lets it go on.
    pub fn stand_still(&self, still: bool) -> Result<()> {
        use nix::sys::signal::Signal::{SIGCONT, SIGSTOP};
        self.control_plane.signal("kube-apiserver", if still { SIGSTOP } else { SIGCONT })
    }

    /// CPU seconds of API server and etcd so far.
    pub fn cpu_seconds(&self) -> Result<f64> {
        self.processes.iter().map(ProcessFigures::cpu_seconds).sum()
    }

    /// Requests so far.
    pub async fn counts(&self) -> Result<Counts> {
        let text = self.client.request_text(Request::get("/metrics").body(Vec::new())?).await.context("the API server's metrics")?;
        Ok(Counts { agent: exposition::sum(&text, DISPATCHED, &[("flow_schema", AGENT)]), all: Requests::of_api_server(&text) })
    }

    /// Ends it and forgets everything.
    pub async fn end(self) -> Result<()> {
        self.control_plane.end().await
    }
}
