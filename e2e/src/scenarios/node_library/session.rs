//! A controller of the library that runs, and the pods that are asked of it.

use std::{fmt::Debug, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Preconditions},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{bed::Bed, eventually::eventually};

pub const SECOND: Duration = Duration::from_secs(1);
pub const MINUTE: Duration = Duration::from_mins(1);
/// At once, on a slow machine: before the grace of the pods, which is 30 s, and the next heartbeat of a node with a lease are over.
pub const SOON: Duration = Duration::from_secs(25);

/// A controller that runs in a task of its own.
pub struct Running<E> {
    task: JoinHandle<Result<(), Arc<E>>>,
    cancel: CancellationToken,
}

impl<E> Drop for Running<E> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<E: Debug + Send + Sync + 'static> Running<E> {
    pub fn new(run: impl Future<Output = Result<(), Arc<E>>> + Send + 'static, cancel: CancellationToken) -> Self {
        Self { task: tokio::spawn(run), cancel }
    }

    /// Ends it, and fails when it does not end cleanly.
    pub async fn stop(self) -> Result<()> {
        self.cancel.cancel();
        self.ends().await
    }

    /// It ends by itself, and cleanly.
    pub async fn ends(mut self) -> Result<()> {
        let ended = tokio::time::timeout(MINUTE, &mut self.task).await.context("the controller does not end")??;
        ended.map_err(|error| anyhow::anyhow!("{error:?}"))
    }
}

pub fn pods(bed: &Bed) -> Api<Pod> {
    Api::namespaced(bed.client.clone(), "default")
}

/// A pod that is bound to `node` already.
pub fn pod(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "labels": { "app": name } },
        "spec": {
            "nodeName": node, "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 30,
            "tolerations": [{ "operator": "Exists" }],
            "containers": [{ "name": "main", "image": "nothing" }],
        },
    })
}

/// Makes a pod that is bound to `node` already.
pub async fn make(bed: &Bed, name: &str, node: &str) -> Result<Pod> {
    make_as(bed, pod(name, node)).await
}

pub async fn make_as(bed: &Bed, object: Value) -> Result<Pod> {
    let pod: Pod = serde_json::from_value(object).context("reading a pod")?;
    pods(bed).create(&kube::api::PostParams::default(), &pod).await.context("making a pod")
}

pub fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

/// Waits until a pod runs and is ready.
pub async fn runs(bed: &Bed, name: &str) -> Result<Pod> {
    eventually(MINUTE * 2, &format!("pod {name} runs"), async || {
        let pod = pods(bed).get(name).await?;
        ensure!(phase(&pod) == Some("Running") && is_ready(&pod), "{:?}", pod.status);
        Ok(pod)
    })
    .await
}

pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Waits until the pod of this UID has left the API.
pub async fn is_gone(bed: &Bed, pod: &Pod, within: Duration) -> Result<()> {
    let name = pod.name_any();
    eventually(within, &format!("pod {name} is gone"), async || {
        let now = pods(bed).get_opt(&name).await?;
        ensure!(now.as_ref().and_then(ResourceExt::uid) != pod.uid(), "it is there: {:?}", now.map(|pod| pod.metadata));
        Ok(())
    })
    .await
}

pub async fn delete(bed: &Bed, pod: &Pod, grace: Option<u32>) -> Result<()> {
    let preconditions = Some(Preconditions { uid: pod.uid(), resource_version: None });
    let parameters = DeleteParams { grace_period_seconds: grace, preconditions, ..DeleteParams::default() };
    pods(bed).delete(&pod.name_any(), &parameters).await.map(drop).context("deleting a pod")
}
