//! The main job: rolling updates that lose no request.

use anyhow::{Result, ensure};
use crds::names;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::json;

use crate::{
    auditor::Expectations,
    bed::Bed,
    cluster::{
        detacher::{Detacher, Variant},
        product::{self, GRACE, both_marks, deployment_mark, four_nodes, node_mark, rolling_update},
    },
    load::{LoadOptions, Traffic},
    scenario::Scenario,
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

/// Each mark set in turn, over one resource. The demo and `bed bench rollouts` make as many requests as the machine can; a thousand a
/// second notice a gap of a millisecond, and leave the other beds their share of it.
pub const THREE_ROLLOUTS: Scenario = Scenario {
    name: "three_rollouts_in_a_row_lose_no_request",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(three_rollouts(bed)),
};

async fn three_rollouts(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    let _detacher = Detacher::start(&bed.client, &bed.haproxy, Variant::Good);
    let marks = [("Deployment mark", deployment_mark()), ("Node mark and timestamp", node_mark()), ("both marks", both_marks())];
    for (version, (what, marks)) in (2..).zip(marks) {
        product::change(bed, json!({ "updateStrategy": rolling_update(1, marks) })).await?;
        let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
        product::roll_to(bed, &version.to_string()).await?;
        product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
        bed.say(&format!("{what}: the rollout has ended"));
        traffic.all_served(bed).await?;
    }
    Ok(())
}

/// The mark is a label, and nothing answers.
pub const LABELLED: Scenario = Scenario {
    name: "a_label_takes_nodes_out_of_a_cloud_load_balancer",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(labelled(bed)),
};

async fn labelled(bed: &mut Bed) -> Result<()> {
    let mark = json!({ "labelNodeToDetach": { "gracePeriodSeconds": GRACE } });
    product::serve(bed, rolling_update(1, mark), &NODES).await?;
    let _cloud = Detacher::start(&bed.client, &bed.haproxy, Variant::Cloud);
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    product::roll_to(bed, "2").await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    traffic.all_served(bed).await?;
    let nodes = Api::<Node>::all(bed.client.clone()).list(&ListParams::default()).await?;
    let left: Vec<_> = nodes
        .iter()
        .filter(|node| node.labels().contains_key(names::EXCLUDE_FROM_LOAD_BALANCERS_LABEL))
        .map(ResourceExt::name_any)
        .collect();
    ensure!(left.is_empty(), "{left:?} keep the label");
    Ok(())
}
