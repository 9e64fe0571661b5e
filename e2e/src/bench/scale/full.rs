//! What the operator needs where Nodes are as large as real ones: their kubelets list the images that they have.
//!
//! The nodes of the other parts have no images and are a twentieth as large. Memory is measured when all Deployments of a resource are
//! made, when its ledger is lost, and at rest; each peak is of its own time.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    cluster::Cluster,
    findings::{Findings, Say, precise},
    resource,
    settings::Settings,
};
use crate::{
    bench::{
        benchmark::Goal,
        fleet::{objects, raw},
    },
    eventually::eventually,
};

/// Images of a Node that are told: 50, by default of `--node-status-max-images`.
const IMAGES: usize = 50;
/// What a Node has besides, as network plugins and cloud providers leave it there.
const ANNOTATIONS: usize = 20;
/// Resources, that of all nodes among them.
const RESOURCES: usize = 50;
/// Requests at once.
const PARALLEL: usize = 64;
/// How long it may take until all nodes serve, and everything else.
const PATIENCE: Duration = Duration::from_mins(30);
/// From the last change until rest.
const CALM: Duration = Duration::from_secs(30);
/// What the operator may have at any time.
const MOST: Goal = Goal::AtMost(128.0);

/// All of it, on a control plane of its own.
pub async fn run(settings: &Settings, state: &Path, say: Say<'_>, findings: &mut Findings) -> Result<()> {
    let nodes = settings.large_nodes;
    let mut cluster = Cluster::start(state).await?;
    cluster.start_fleet(nodes)?;
    cluster.nodes_are_ready(nodes).await?;
    let client = &cluster.server.client;
    let patches = (0..nodes).map(|index| async move {
        let node = format!("/api/v1/nodes/{}", objects::node_name(index));
        let send = async |path: &str, body: Value| raw::send(client, "PATCH", path, "application/merge-patch+json", body.to_string()).await;
        send(&node, json!({ "metadata": { "annotations": annotations() } })).await?;
        send(&format!("{node}/status"), json!({ "status": { "images": images(index) } })).await.map(drop)
    });
    stream::iter(patches).buffer_unordered(PARALLEL).try_collect::<()>().await.context("telling images of nodes")?;
    let size =
        raw::send(client, "GET", &format!("/api/v1/nodes/{}", objects::node_name(0)), "application/json", String::new()).await?.len();
    say(&format!("{nodes} nodes of {:.1} KB each", precise(size) / 1000.0));
    for number in 1..RESOURCES {
        let mut other = resource::ingress_daemon_set(1, settings.grace);
        other["metadata"]["name"] = format!("other-{number}").into();
        other["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": objects::node_name(number) });
        cluster.apply(&other).await?;
    }
    cluster.start_operator()?;
    sleep(CALM).await;
    let figures = cluster.operator_figures()?;
    figures.forget_peak()?;
    cluster.apply(&resource::ingress_daemon_set(1, settings.grace)).await?;
    cluster.is_complete(nodes, PATIENCE, say).await?;
    let created = figures.peak_mib()?;
    say(&format!("{nodes} nodes serve; the operator had at most {created:.1} MiB"));
    sleep(CALM).await;
    let resident = figures.resident_mib()?;
    figures.forget_peak()?;
    cluster.lose_ledger().await?;
    eventually(PATIENCE, "the ledger is there again", async || {
        cluster.check()?;
        let status = cluster.resource().await?.status.context("no status")?;
        ensure!(status.rollout.is_some_and(|ledger| ledger.rebuilding.is_none()), "it is being rebuilt");
        Ok(())
    })
    .await?;
    cluster.is_complete(nodes, PATIENCE, say).await?;
    let lost = figures.peak_mib()?;
    findings.add("operator memory, nodes of full size, resource made", created, "MiB", MOST, None);
    findings.add("operator memory, nodes of full size, ledger lost", lost, "MiB", MOST, None);
    findings.add("operator memory, nodes of full size, at rest", resident, "MiB", MOST, None);
    let details = json!({ "nodes": nodes, "bytes of a Node": size, "resources": RESOURCES });
    findings.details.insert("nodes of full size", details);
    cluster.end().await
}

/// Images as a kubelet tells them: by digest and by tag.
fn images(node: usize) -> Value {
    let image = |number: usize| {
        let name = format!("registry.example.com/platform-team/some-service-with-a-name-{number}");
        let digest = format!("{:064x}", node * IMAGES + number);
        json!({ "names": [format!("{name}@sha256:{digest}"), format!("{name}:v1.{number}.0-build.{node}")], "sizeBytes": 100_000_000 + number })
    };
    (0..IMAGES).map(image).collect()
}

fn annotations() -> Value {
    let annotation = |number: usize| (format!("network.example.com/setting-{number}"), Value::from("10.0.0.0/24 ".repeat(10)));
    Value::Object((0..ANNOTATIONS).map(annotation).collect())
}
