//! The control: the same nginx, load and load balancer, with a plain `DaemonSet`.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::Api;
use serde_json::{Value, json};

use crate::{
    bed::Bed,
    cluster::workload,
    eventually::eventually,
    load::{Traffic, outage},
};

use super::table::{Column, load, thousands};

const NAME: &str = "plain";
const ROLLOUT: Duration = Duration::from_mins(3);

/// One rollout under load.
pub(crate) async fn run(bed: &Bed, nodes: &[String]) -> Result<Column> {
    // Without a health checker the load balancer can only ask the workload itself.
    for node in nodes {
        bed.haproxy.check_on(node, workload::PORT).await?;
    }
    bed.apply(&[daemon_set("1")]).await?;
    complete(bed, nodes.len()).await?;
    let names: Vec<_> = nodes.iter().map(String::as_str).collect();
    bed.haproxy.serves(Duration::from_secs(30), &names).await?;
    bed.say("the DaemonSet serves; load begins and its template changes");
    let since = chrono::Utc::now();
    let traffic = Traffic::start(&bed.haproxy, &load()).await?;
    bed.apply(&[daemon_set("2")]).await?;
    complete(bed, nodes.len()).await?;
    bed.haproxy.serves(Duration::from_secs(30), &names).await?;
    let outcome = traffic.figures().await?;
    let worst = outage::by_pods(&bed.recorder.history().await?, NAME, since);
    bed.say(&format!("{} requests, {} failed", thousands(outcome.clients.requests), thousands(outcome.failed())));
    bed.kubectl(&["delete", "daemonset", NAME, "--cascade=foreground", "--timeout=60s"]).await?;
    let kept = format!("{} ({} of 1 at once)", if worst.most <= 1 { "yes" } else { "NO" }, worst.most);
    Ok(Column { name: "plain DaemonSet", rollouts: 1, outcome, worst, kept })
}

/// Two nginx per node, which a `DaemonSet` can only have as two containers of one pod.
fn daemon_set(version: &str) -> Value {
    let mut pod = workload::pod_spec();
    pod["nodeSelector"] = json!({ "ingress": "true" });
    pod["containers"][0]["env"] = json!([{ "name": "VERSION", "value": version }]);
    let mut second = pod["containers"][0].clone();
    second["name"] = "second".into();
    second["volumeMounts"][1]["name"] = "second-cache".into();
    if let (Some(containers), Some(volumes)) = (pod["containers"].as_array().cloned(), pod["volumes"].as_array().cloned()) {
        pod["containers"] = containers.into_iter().chain([second]).collect();
        pod["volumes"] = volumes.into_iter().chain([json!({ "name": "second-cache", "emptyDir": {} })]).collect();
    }
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": { "name": NAME, "namespace": "default" },
        "spec": {
            "selector": { "matchLabels": { "app": NAME } },
            "template": { "metadata": { "labels": { "app": NAME } }, "spec": pod },
        },
    })
}

async fn complete(bed: &Bed, nodes: usize) -> Result<()> {
    let api = Api::<DaemonSet>::namespaced(bed.client.clone(), "default");
    let wanted = i32::try_from(nodes)?;
    eventually(ROLLOUT, "the DaemonSet is rolled out", async || {
        let daemon_set = api.get(NAME).await?;
        let status = daemon_set.status.unwrap_or_default();
        let current = status.observed_generation >= daemon_set.metadata.generation;
        let updated = status.updated_number_scheduled.unwrap_or(0);
        let available = status.number_available.unwrap_or(0);
        ensure!(current && updated == wanted && available == wanted, "{updated} are updated, {available} available");
        Ok(())
    })
    .await
}
