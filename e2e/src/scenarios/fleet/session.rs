//! A fleet that runs, and the pods and nodes that are asked of it.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use virtual_kubelet::{
    fleet::{Fleet, FleetConfig, FleetError, FleetHandle},
    simulated::Stages,
};

use crate::{
    bed::{Bed, control_plane},
    eventually::eventually,
};

pub const SECOND: Duration = Duration::from_secs(1);
pub const MINUTE: Duration = Duration::from_mins(1);

/// A fleet that runs in a task of its own.
pub struct Running {
    pub handle: FleetHandle,
    cancel: CancellationToken,
    pub task: JoinHandle<Result<(), FleetError>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Running {
    pub async fn start(client: Client, config: FleetConfig) -> Result<Self> {
        let fleet = Fleet::new(client, config)?;
        let (handle, cancel) = (fleet.handle(), CancellationToken::new());
        let running = Self { task: tokio::spawn(fleet.run(cancel.clone())), handle, cancel };
        tokio::time::timeout(MINUTE, running.handle.registered()).await.context("the fleet does not register")?;
        Ok(running)
    }

    /// Ends it, and fails when it does not end.
    pub async fn stop(mut self) -> Result<()> {
        self.cancel.cancel();
        tokio::time::timeout(MINUTE, &mut self.task).await.context("the fleet does not end")??.context("the fleet crashed")
    }

    /// The sum of a counter or a gauge over all its labels that contain `labels`.
    pub fn metric(&self, name: &str, labels: &str) -> u64 {
        let text = self.handle.scrape();
        let of_metric = text.lines().filter(|line| line.starts_with(name) && line.contains(labels));
        of_metric.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }
}

/// A client as the binary has it, past `server`.
pub async fn client(bed: &Bed, server: &str) -> Result<Client> {
    client_of(&bed.control_plane.admin_kubeconfig_for(server)?).await
}

pub async fn client_of(kubeconfig: &Value) -> Result<Client> {
    let config = control_plane::config_without_retry(kubeconfig).await?;
    virtual_kubelet::fleet::client(&config).context("building a client")
}

pub fn fleet(nodes: u32, prefix: &str, stages: &str) -> Result<FleetConfig> {
    Ok(FleetConfig { name_prefix: prefix.into(), stages: Stages::from_yaml(stages)?, ..FleetConfig::new(nodes) })
}

pub fn pods(bed: &Bed) -> Api<Pod> {
    Api::namespaced(bed.client.clone(), "default")
}

pub fn nodes(bed: &Bed) -> Api<Node> {
    Api::all(bed.client.clone())
}

/// Makes a pod that is bound to `node` already.
pub async fn make(bed: &Bed, name: &str, node: &str, annotations: &[(&str, &str)]) -> Result<Pod> {
    let annotations: BTreeMap<_, _> =
        annotations.iter().map(|(key, value)| (format!("sim.virtual-kubelet.io/{key}"), (*value).to_owned())).collect();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "labels": { "app": name }, "annotations": annotations },
        "spec": {
            "nodeName": node, "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 30,
            "tolerations": [{ "operator": "Exists" }],
            "containers": [{ "name": "main", "image": "main:1" }, { "name": "other", "image": "other:1" }],
        },
    });
    let pod: Pod = serde_json::from_value(pod).context("reading a pod")?;
    pods(bed).create(&PostParams::default(), &pod).await.context("making a pod")
}

pub async fn annotate<K>(api: Api<K>, name: &str, key: &str, value: Value) -> Result<()>
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let patch = json!({ "metadata": { "annotations": { format!("sim.virtual-kubelet.io/{key}"): value } } });
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop).context("annotating")
}

pub async fn delete(bed: &Bed, name: &str, grace: Option<u32>) -> Result<()> {
    let parameters = DeleteParams { grace_period_seconds: grace, ..DeleteParams::default() };
    pods(bed).delete(name, &parameters).await.map(drop).context("deleting a pod")
}

/// Waits until the pod's status is as `fits` says.
pub async fn shows(bed: &Bed, name: &str, within: Duration, what: &str, fits: impl Fn(&Value) -> bool) -> Result<Pod> {
    eventually(within, &format!("pod {name} {what}"), async || {
        let pod = pods(bed).get(name).await?;
        let status = json!(pod.status);
        ensure!(fits(&status), "{status}");
        Ok(pod)
    })
    .await
}

pub async fn runs(bed: &Bed, name: &str) -> Result<Pod> {
    shows(bed, name, MINUTE * 2, "runs", |status| status["phase"] == "Running" && is_true(status, "Ready")).await
}

pub async fn is_gone(bed: &Bed, pod: &Pod, within: Duration) -> Result<()> {
    let name = pod.name_any();
    eventually(within, &format!("pod {name} is gone"), async || {
        let now = pods(bed).get_opt(&name).await?;
        ensure!(now.as_ref().and_then(ResourceExt::uid) != pod.uid(), "it is there");
        Ok(())
    })
    .await
}

pub fn condition<'a>(status: &'a Value, type_: &str) -> &'a Value {
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().find(|condition| condition["type"] == type_).unwrap_or(&Value::Null)
}

pub fn is_true(status: &Value, type_: &str) -> bool {
    condition(status, type_)["status"] == "True"
}

/// Waits until a Node's condition `Ready` has this status.
pub async fn node_is(bed: &Bed, name: &str, ready: &str, within: Duration) -> Result<()> {
    eventually(within, &format!("node {name} has Ready={ready}"), async || {
        let status = json!(nodes(bed).get(name).await?.status);
        ensure!(condition(&status, "Ready")["status"] == ready, "{}", condition(&status, "Ready"));
        Ok(())
    })
    .await
}
