//! An update in place on simulated nodes: to the operator their agent is a kubelet.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use crds::names;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use serde_json::json;
use virtual_kubelet::fleet::FleetConfig;

use super::session::{Running, client, fleet, pods};
use crate::{
    bed::{Bed, control_plane},
    cluster::product,
};

const NAME: &str = "simulated";
const NODES: u32 = 2;
/// Two tags of one image.
const TAGS: [&str; 2] = ["app:1@sha256:ab", "app:2@sha256:ab"];

/// Names, UIDs and what is shown of the container of each pod.
async fn shown(bed: &Bed) -> Result<BTreeMap<String, (String, String, i32)>> {
    let listed = pods(bed).list(&ListParams::default().labels("app=simulated")).await?.items;
    let shown = |pod: Pod| {
        let container = pod.status?.container_statuses?.into_iter().next()?;
        Some((pod.metadata.uid?, (container.image, container.image_id, container.restart_count)))
    };
    Ok(listed.into_iter().filter_map(shown).collect())
}

/// Needs the operator.
pub async fn run(bed: &Bed) -> Result<()> {
    let config =
        FleetConfig { labels: [("simulated".to_owned(), "true".to_owned())].into(), ..fleet(NODES, "sim-", "pods:\n- stop: 1s\n")? };
    let running = Running::start(client(bed, &control_plane::server()).await?, config).await?;
    let template = |image: &str| {
        json!({
            "metadata": { "labels": { "app": "simulated" } },
            "spec": { "containers": [{ "name": "app", "image": image, "imagePullPolicy": "IfNotPresent" }] },
        })
    };
    let rolling = json!({ "maxUnavailableNodes": 1, "attachSoakSeconds": 1, "provenAfterSeconds": 1, "podUpdate": "InPlaceIfPossible", "annotateDeploymentToDetach": { "gracePeriodSeconds": 3 } });
    bed.apply(&[json!({
        "apiVersion": format!("{}/{}", names::GROUP, names::VERSION), "kind": "IngressDaemonSet",
        "metadata": { "name": NAME, "namespace": "default" },
        "spec": {
            "podsPerNode": 2, "nodeSelector": { "simulated": "true" },
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": rolling }, "template": template(TAGS[0]),
        },
    })])
    .await?;
    let nodes = usize::try_from(NODES)?;
    product::is_complete_named(bed, NAME, nodes, product::ROLLED_OUT).await?;
    let before = shown(bed).await?;
    product::change_named(bed, NAME, json!({ "template": template(TAGS[1]) })).await?;
    product::is_complete_named(bed, NAME, nodes, product::ROLLED_OUT).await?;
    let after = shown(bed).await?;
    ensure!(before.len() == 2 * nodes && after.keys().eq(before.keys()), "pods were {before:?} and are {after:?}");
    for (uid, (image, id, restarts)) in &after {
        let (_, former, earlier) = before.get(uid).context("another pod")?;
        ensure!((image.as_str(), id, *restarts) == (TAGS[1], former, earlier + 1), "pods were {before:?} and are {after:?}");
    }
    bed.kubectl(&["delete", "ingressdaemonset", NAME, "-n", "default", "--timeout=180s"]).await?;
    bed.say("simulated pods took another tag of the same image in place");
    running.stop().await
}
