//! Nodes out of thin air: Node objects, and one watch that says of their pods what a kubelet would. For fleets.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use backon::{ConstantBuilder, Retryable as _};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    runtime::watcher,
};
use parking_lot::Mutex;
use serde_json::{Value, json};

/// Requests under way at once.
const PARALLEL: usize = 32;
/// How long after an answer that was refused it is given again.
const AGAIN: Duration = Duration::from_secs(1);

/// A fleet; dropping it stops its kubelet.
#[derive(Debug)]
pub struct ThinNodes {
    kubelet: tokio::task::JoinHandle<()>,
    seen: Seen,
}

/// UIDs of all pods that ever were, by node.
type Seen = Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>;

impl Drop for ThinNodes {
    fn drop(&mut self) {
        self.kubelet.abort();
    }
}

/// Name of the node number `index`.
pub fn name(index: usize) -> String {
    format!("thin-{index:04}")
}

impl ThinNodes {
    /// Makes `count` Ready nodes labelled `ingress=true`. Pods on the `rejecting` ones fail at admission, as on a kubelet whose
    /// ports are taken; all others are Ready at once. Nobody renews their leases: the bed's grace must outlast them.
    pub async fn start(client: &Client, count: usize, rejecting: BTreeSet<String>) -> Result<Self> {
        let api = Api::<Node>::all(client.clone());
        futures::stream::iter((0..count).map(|index| create(&api, name(index)))).buffer_unordered(PARALLEL).try_collect::<Vec<_>>().await?;
        let seen = Seen::default();
        let kubelet = tokio::spawn(run(client.clone(), rejecting, Arc::clone(&seen)));
        Ok(Self { kubelet, seen })
    }

    /// How many pods were ever made, by node.
    pub fn pods_made(&self) -> BTreeMap<String, usize> {
        let seen = self.seen.lock();
        seen.iter().map(|(node, pods)| (node.clone(), pods.len())).collect()
    }
}

async fn create(api: &Api<Node>, name: String) -> Result<()> {
    let now = Timestamp::now().to_string();
    let room = json!({ "cpu": "8", "memory": "16Gi", "pods": "110" });
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name, "labels": { "ingress": "true", "kubernetes.io/hostname": name } },
    });
    let ready = json!({
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "out of thin air",
        "lastHeartbeatTime": now, "lastTransitionTime": now,
    });
    let status = json!({ "status": { "capacity": room, "allocatable": room, "conditions": [ready] } });
    api.create(&PostParams::default(), &serde_json::from_value(node)?).await.with_context(|| format!("creating Node {name}"))?;
    api.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.with_context(|| format!("{name} becomes Ready"))?;
    Ok(())
}

/// The kubelet of them all.
async fn run(client: Client, rejecting: BTreeSet<String>, seen: Seen) {
    let mine = watcher::Config::default();
    let changes = watcher::watcher(Api::<Pod>::all(client.clone()), mine).filter_map(async |event| match event {
        Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) => Some(pod),
        _ => None,
    });
    let answers = changes.map(|pod| {
        if let (Some(node), Some(uid)) = (pod.spec.as_ref().and_then(|spec| spec.node_name.clone()), pod.uid()) {
            seen.lock().entry(node).or_default().insert(uid);
        }
        answer(&client, pod, &rejecting)
    });
    let answers = answers.buffer_unordered(PARALLEL);
    answers
        .for_each(async |result| {
            if let Err(error) = result {
                tracing::debug!(%error, "a pod went away");
            }
        })
        .await;
}

/// What a kubelet says of a pod that it sees for the first time, or for the last.
async fn answer(client: &Client, pod: Pod, rejecting: &BTreeSet<String>) -> kube::Result<()> {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    if !node.starts_with("thin-") {
        return Ok(());
    }
    let api = Api::<Pod>::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let name = pod.name_any();
    // A pod is seen for the first and for the last time once: an answer that the API server refused would be missing for good.
    let again = ConstantBuilder::default().with_delay(AGAIN).without_max_times();
    if pod.metadata.deletion_timestamp.is_some() {
        let delete = async || api.delete(&name, &DeleteParams::default().grace_period(0)).await.map(drop);
        return delete.retry(again).when(|error| !is_gone(error)).await;
    }
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
    if phase != "Pending" {
        return Ok(());
    }
    let status = json!({ "status": if rejecting.contains(&node) { rejected() } else { running(&pod) } });
    let patch = async || api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await.map(drop);
    patch.retry(again).when(|error| !is_gone(error)).await
}

fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

fn rejected() -> Value {
    json!({ "phase": "Failed", "reason": "NodePorts", "message": "Pod was rejected: Predicate NodePorts failed", "startTime": Timestamp::now() })
}

fn running(pod: &Pod) -> Value {
    let now = Timestamp::now();
    let condition = |kind: &str| json!({ "type": kind, "status": "True", "lastTransitionTime": now });
    let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition);
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers).map(|container| {
        json!({
            "name": container.name, "image": container.image, "imageID": "", "ready": true, "started": true, "restartCount": 0,
            "state": { "running": { "startedAt": now } },
        })
    });
    json!({
        "phase": "Running", "startTime": now, "podIP": "198.18.255.1", "hostIP": "198.18.255.1",
        "conditions": conditions,
        "containerStatuses": containers.collect::<Vec<_>>(),
    })
}
