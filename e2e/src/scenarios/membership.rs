//! Nodes that join, leave, are deleted and come back.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Node as ApiNode};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{
    auditor::Expectations,
    bed::{Bed, node::NodeSpec},
    cluster::product::{self, deployment_mark, four_nodes, rolling_update},
    eventually::eventually,
    load::{LoadOptions, Traffic},
    scenario::Scenario,
};

/// A name that is longer than a label and has dots.
const LONG_NAME: &str = "ip-198-18-1-5.a-rather-long-region-name-1.compute.internal.example.com";

/// While all serve, under load.
pub const WHILE_SERVING: Scenario = Scenario {
    name: "nodes_join_leave_and_come_back_while_serving",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(while_serving(bed)),
};

/// In the middle of a rollout.
pub const DURING_A_ROLLOUT: Scenario = Scenario {
    name: "nodes_join_leave_and_come_back_during_a_rollout",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(during_a_rollout(bed)),
};

const MINUTE: Duration = Duration::from_mins(1);

async fn while_serving(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &["n1", "n2", "n3", "n4"]).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    bed.add_node(NodeSpec::new(LONG_NAME).label("ingress", "true")).await?;
    product::is_complete(bed, 5, product::ROLLED_OUT).await?;
    bed.haproxy.serves(MINUTE, &["n1", "n2", "n3", "n4", LONG_NAME]).await?;
    bed.say("a fifth node joined");
    label(bed, "n1", false).await?;
    nothing_of_ours_is_on(bed, "n1").await?;
    product::is_complete(bed, 4, product::ROLLED_OUT).await?;
    bed.say("n1 left by its label");
    label(bed, "n1", true).await?;
    product::is_complete(bed, 5, product::ROLLED_OUT).await?;
    bed.say("n1 came back");
    traffic.all_served(bed).await?;
    bed.node("n2")?.re_register().await?;
    bed.say("n2 is another Node of the same name");
    eventually(MINUTE, "the new n2 is a member", async || {
        let labels = Api::<ApiNode>::all(bed.client.clone()).get("n2").await?.metadata.labels.unwrap_or_default();
        ensure!(labels.iter().any(|(key, value)| key.contains("/member-") && value == "serving"), "its labels are {labels:?}");
        Ok(())
    })
    .await?;
    product::is_complete(bed, 5, MINUTE * 5).await?;
    bed.haproxy.serves(MINUTE, &["n1", "n2", "n3", "n4", LONG_NAME]).await?;
    bed.node("n2")?.remove().await?;
    bed.say("n2 is gone");
    product::is_complete(bed, 4, MINUTE * 5).await
}

async fn during_a_rollout(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &["n1", "n2", "n3", "n4"]).await?;
    product::roll_to(bed, "2").await?;
    product::status_says(bed, "a node is under way", product::SAID, |status| status.nodes.detached > 0).await?;
    label(bed, "n1", false).await?;
    bed.node("n2")?.re_register().await?;
    bed.add_node(NodeSpec::new("n5").label("ingress", "true")).await?;
    bed.node("n3")?.remove().await?;
    bed.say("n1 left, n2 was replaced, n3 is gone, n5 joined");
    nothing_of_ours_is_on(bed, "n1").await?;
    product::is_complete(bed, 3, MINUTE * 6).await?;
    label(bed, "n1", true).await?;
    product::is_complete(bed, 4, MINUTE * 5).await?;
    bed.haproxy.serves(MINUTE, &["n1", "n2", "n4", "n5"]).await
}

async fn label(bed: &Bed, node: &str, on: bool) -> Result<()> {
    let value = if on { json!("true") } else { json!(null) };
    let patch = Patch::Merge(json!({ "metadata": { "labels": { "ingress": value } } }));
    Api::<ApiNode>::all(bed.client.clone()).patch(node, &PatchParams::default(), &patch).await.context("labelling a Node").map(drop)
}

/// Waits until neither the Node nor a Deployment carries anything of the product.
pub(super) async fn nothing_of_ours_is_on(bed: &Bed, node: &str) -> Result<()> {
    // The pods of a Node that is gone hold its place in the budget until the control plane takes them away, for 40 s and more.
    eventually(MINUTE * 5, &format!("nothing of the product is left on {node}"), async || {
        let meta = Api::<ApiNode>::all(bed.client.clone()).get(node).await?.metadata;
        let keys: Vec<_> = meta.labels.iter().flatten().chain(meta.annotations.iter().flatten()).map(|(key, _)| key.clone()).collect();
        ensure!(!keys.iter().any(|key| key.starts_with("ingressdaemonsets.")), "the Node has {keys:?}");
        let found = Api::<Deployment>::namespaced(bed.client.clone(), "default").get_opt(&format!("{}-{node}", product::NAME)).await?;
        ensure!(found.is_none(), "its Deployment is still there");
        Ok(())
    })
    .await
}
