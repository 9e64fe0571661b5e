//! Fleets of simulated nodes against the real API server. Their code runs in this process.
//! Nodes with processes are in `node_library/`; how fast a fleet is, is in `bench/fleet/`.
//! The settings of a fleet are in the scenario. What it wrote is read from the API server.

mod faults;
mod holes;
pub(super) mod in_place;
mod kubelet;
mod outages;

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
    auditor::Expectations,
    bed::{
        Bed, Options,
        control_plane::{self, Timing},
    },
    eventually::eventually,
    scenario::Scenario,
};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);

/// What goes wrong with simulated pods and nodes, and what follows from a seed.
pub const FAULTS: Scenario = Scenario {
    name: "simulated_faults_look_like_those_of_a_kubelet_and_a_seed_repeats_a_history",
    options: || Options { timing: Timing { node_grace_seconds: 12, ..Timing::default() }, ..Options::default() },
    expected: Expectations::default,
    body: |bed| Box::pin(faults::run(bed)),
};

/// What kubelets that are none get wrong.
pub const HOLES: Scenario = Scenario {
    name: "a_fleet_loses_no_deletion_and_no_lease_and_repairs_what_others_change",
    options: Options::default,
    expected: Expectations::default,
    body: |bed| Box::pin(holes::run(bed)),
};

/// What `kubectl` is told of simulated pods; two processes with one fleet.
pub const KUBELET: Scenario = Scenario {
    name: "kubectl_reads_logs_of_simulated_pods_also_from_the_process_that_takes_a_fleet_over",
    options: Options::default,
    expected: Expectations::default,
    body: |bed| Box::pin(kubelet::run(bed)),
};

/// An API server that stands still under a thousand nodes.
pub const OUTAGES: Scenario = Scenario {
    name: "a_thousand_simulated_nodes_outlive_an_api_server_that_stands_still",
    options: || Options {
        // As Kubernetes has it: an API server that stands still for 20 s must cost no node.
        timing: Timing { node_grace_seconds: 50, ..Timing::default() },
        ..Options::default()
    },
    expected: Expectations::default,
    body: |bed| Box::pin(outages::run(bed)),
};

/// A fleet that runs in a task of its own.
struct Running {
    handle: FleetHandle,
    cancel: CancellationToken,
    task: JoinHandle<Result<(), FleetError>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Running {
    async fn start(client: Client, config: FleetConfig) -> Result<Self> {
        let fleet = Fleet::new(client, config)?;
        let (handle, cancel) = (fleet.handle(), CancellationToken::new());
        let running = Self { task: tokio::spawn(fleet.run(cancel.clone())), handle, cancel };
        tokio::time::timeout(MINUTE, running.handle.registered()).await.context("the fleet does not register")?;
        Ok(running)
    }

    /// Ends it, and fails when it does not end.
    async fn stop(mut self) -> Result<()> {
        self.cancel.cancel();
        tokio::time::timeout(MINUTE, &mut self.task).await.context("the fleet does not end")??.context("the fleet crashed")
    }

    /// The sum of a counter or a gauge over all its labels that contain `labels`.
    fn metric(&self, name: &str, labels: &str) -> u64 {
        let text = self.handle.scrape();
        let of_metric = text.lines().filter(|line| line.starts_with(name) && line.contains(labels));
        of_metric.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }
}

/// A client as the binary has it, past `server`.
async fn client(bed: &Bed, server: &str) -> Result<Client> {
    client_of(&bed.control_plane.admin_kubeconfig_for(server)?).await
}

async fn client_of(kubeconfig: &Value) -> Result<Client> {
    let config = control_plane::config_without_retry(kubeconfig).await?;
    virtual_kubelet::fleet::client(&config).context("building a client")
}

fn fleet(nodes: u32, prefix: &str, stages: &str) -> Result<FleetConfig> {
    Ok(FleetConfig { name_prefix: prefix.into(), stages: Stages::from_yaml(stages)?, ..FleetConfig::new(nodes) })
}

fn pods(bed: &Bed) -> Api<Pod> {
    Api::namespaced(bed.client.clone(), "default")
}

fn nodes(bed: &Bed) -> Api<Node> {
    Api::all(bed.client.clone())
}

/// Makes a pod that is bound to `node` already.
async fn make(bed: &Bed, name: &str, node: &str, annotations: &[(&str, &str)]) -> Result<Pod> {
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

async fn annotate<K>(api: Api<K>, name: &str, key: &str, value: Value) -> Result<()>
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let patch = json!({ "metadata": { "annotations": { format!("sim.virtual-kubelet.io/{key}"): value } } });
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop).context("annotating")
}

async fn delete(bed: &Bed, name: &str, grace: Option<u32>) -> Result<()> {
    let parameters = DeleteParams { grace_period_seconds: grace, ..DeleteParams::default() };
    pods(bed).delete(name, &parameters).await.map(drop).context("deleting a pod")
}

/// Waits until the pod's status is as `fits` says.
async fn shows(bed: &Bed, name: &str, within: Duration, what: &str, fits: impl Fn(&Value) -> bool) -> Result<Pod> {
    eventually(within, &format!("pod {name} {what}"), async || {
        let pod = pods(bed).get(name).await?;
        let status = json!(pod.status);
        ensure!(fits(&status), "{status}");
        Ok(pod)
    })
    .await
}

async fn runs(bed: &Bed, name: &str) -> Result<Pod> {
    shows(bed, name, MINUTE * 2, "runs", |status| status["phase"] == "Running" && is_true(status, "Ready")).await
}

async fn is_gone(bed: &Bed, pod: &Pod, within: Duration) -> Result<()> {
    let name = pod.name_any();
    eventually(within, &format!("pod {name} is gone"), async || {
        let now = pods(bed).get_opt(&name).await?;
        ensure!(now.as_ref().and_then(ResourceExt::uid) != pod.uid(), "it is there");
        Ok(())
    })
    .await
}

fn condition<'a>(status: &'a Value, type_: &str) -> &'a Value {
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().find(|condition| condition["type"] == type_).unwrap_or(&Value::Null)
}

fn is_true(status: &Value, type_: &str) -> bool {
    condition(status, type_)["status"] == "True"
}

/// Waits until a Node's condition `Ready` has this status.
async fn node_is(bed: &Bed, name: &str, ready: &str, within: Duration) -> Result<()> {
    eventually(within, &format!("node {name} has Ready={ready}"), async || {
        let status = json!(nodes(bed).get(name).await?.status);
        ensure!(condition(&status, "Ready")["status"] == ready, "{}", condition(&status, "Ready"));
        Ok(())
    })
    .await
}
