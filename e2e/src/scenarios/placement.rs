//! Which nodes: another choice of nodes while all serve, and a Node that is deleted and lives on until somebody lets go of it.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use crds::{IngressDaemonSetStatus, ledger::GrantReason, names};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Node as ApiNode, Pod},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;

use crate::{
    auditor::{Expectations, Kind as Seen},
    bed::{Bed, Options, node::NodeSpec},
    cluster::{
        effects::Effects,
        product::{self, deployment_mark, has_condition, rolling_update},
    },
    eventually::eventually,
    load::{LoadOptions, Traffic},
    scenario::Scenario,
    scenarios::{budgets::ledgers, canaries::held, membership::nothing_of_ours_is_on},
};

const MINUTE: Duration = Duration::from_mins(1);
/// Not of the first choice.
const LATER: &str = "n4";

/// By `nodeSelector`, then by the template's required affinity, under load. Nodes that leave do so within the budget, and nodes that come
/// get the newest revision.
pub const CHOICE: Scenario = Scenario {
    name: "another_node_selector_moves_pods_within_the_budget",
    options: || {
        let node = |name: &str, labels: &[&str]| labels.iter().fold(NodeSpec::new(name), |node, key| node.label(key, "true"));
        let nodes = vec![node("n1", &["ingress"]), node("n2", &["ingress"]), node("n3", &["ingress", "edge"]), node(LATER, &["edge"])];
        Options { nodes, ..Options::default() }.with_infra()
    },
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(choice(bed)),
};

async fn choice(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &["n1", "n2", "n3"]).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let from = bed.recorder.history().await?.len();
    product::change(bed, json!({ "nodeSelector": { "ingress": null, "edge": "true" } })).await?;
    for node in ["n1", "n2"] {
        nothing_of_ours_is_on(bed, node).await?;
    }
    product::is_complete(bed, 2, product::ROLLED_OUT).await?;
    bed.haproxy.serves(MINUTE, &["n3", LATER]).await?;
    let history = bed.recorder.history().await?;
    let effects = Effects::since(&history, from)?;
    ensure!(effects.granted() == ["n1", "n2"], "places in the budget went to {:?}", effects.granted());
    ensure!(effects.grants("n1") == 1 && effects.grants("n2") == 1, "{effects:?}");
    one_at_a_time(bed, from).await?;
    bed.say("another nodeSelector: two nodes left one after the other, one came, the one of both choices was not touched");

    let from = history.len();
    let before = product::api(bed).get(product::NAME).await?.status.context("no status")?.revisions.current;
    let mut template = product::template("2");
    // Terms are alternatives.
    template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] = json!([
        { "matchExpressions": [{ "key": "edge", "operator": "Exists" }],
          "matchFields": [{ "key": "metadata.name", "operator": "NotIn", "values": ["n3"] }] },
        { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n1"] }] },
    ]);
    // Of the two chosen ones the first is not updated before the other one serves.
    let strategy = rolling_update(1, json!({ "minAvailableNodes": 1 }));
    product::change(bed, json!({ "nodeSelector": null, "template": template, "updateStrategy": strategy })).await?;
    nothing_of_ours_is_on(bed, "n3").await?;
    product::is_complete(bed, 2, product::ROLLED_OUT).await?;
    bed.haproxy.serves(MINUTE, &["n1", LATER]).await?;
    let newest = product::api(bed).get(product::NAME).await?.status.context("no status")?.revisions.current;
    let history = bed.recorder.history().await?;
    let effects = Effects::since(&history, from)?;
    ensure!(effects.revisions(LATER) == [&before, &newest], "{LATER}, which stayed, ran {:?}", effects.revisions(LATER));
    let of_n1 = history[from..]
        .iter()
        .map(|seen| (seen.kind, &seen.object))
        .filter(|(kind, object)| *kind == Seen::Deployment && object["metadata"]["annotations"][names::NODE_NAME_ANNOTATION] == "n1");
    let ran: BTreeSet<_> =
        of_n1.filter_map(|(_, object)| object["spec"]["template"]["metadata"]["labels"][names::REVISION_LABEL].as_str()).collect();
    // Who comes while the newest is not proved gets what all have run, and is updated in its turn.
    ensure!(ran == BTreeSet::from([before.as_str(), newest.as_str()]), "n1, which came, ran {ran:?}, and the newest is {newest}");
    ensure!(effects.granted() == ["n1", "n3", LATER], "places in the budget went to {:?}", effects.granted());
    one_at_a_time(bed, from).await?;
    bed.say("another affinity: one node left, one came with what all had run, and both were updated");
    traffic.all_served(bed).await
}

async fn one_at_a_time(bed: &Bed, from: usize) -> Result<()> {
    let seen = ledgers(bed, from).await?;
    ensure!(seen.iter().all(|nodes| nodes.len() <= 1), "the budget is one node: {seen:?}");
    Ok(())
}

/// A Node is deleted under load, also while the rollout is paused: it is detached before its pods go, and nothing of ours keeps it.
pub const DELETED: Scenario = Scenario {
    name: "a_deleted_node_is_detached_before_its_pods_go",
    options: product::four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(deleted(bed)),
};

/// Which nodes have a slot, and what for.
fn grants(status: &IngressDaemonSetStatus) -> Vec<(&str, GrantReason)> {
    let grants = status.rollout.iter().flat_map(|ledger| &ledger.grants);
    grants.map(|(node, grant)| (node.as_str(), grant.kind)).collect()
}

/// Of a cloud's controller, that takes the machine away when it lets go.
const FOREIGN: &str = "example.com/machine";

async fn deleted(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &["n1", "n2", "n3", LATER]).await?;
    let nodes = Api::<ApiNode>::all(bed.client.clone());
    let finalizers = async |node: &str, list: &[&str]| -> Result<()> {
        let patch = Patch::Merge(json!({ "metadata": { "finalizers": list } }));
        nodes.patch(node, &PatchParams::default(), &patch).await.context("finalizers of the Node").map(drop)
    };
    let pods = Api::<Pod>::namespaced(bed.client.clone(), "default");
    let is_empty = async |node: &str| {
        eventually(MINUTE, "no pod of ours is left on it", async || {
            let left = pods.list(&ListParams::default().labels("app=nginx").fields(&format!("spec.nodeName={node}"))).await?.items;
            ensure!(left.is_empty(), "{} are", left.len());
            Ok(())
        })
        .await
    };
    let is_gone = async |node: &str| {
        eventually(MINUTE, "the Node is gone", async || {
            ensure!(nodes.get_opt(node).await?.is_none(), "it is there");
            Ok(())
        })
        .await
    };
    finalizers(LATER, &[FOREIGN]).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    product::change(bed, json!({ "paused": true })).await?;
    product::status_says(bed, "it is paused", product::SAID, |status| has_condition(status, "Paused", "True", "Paused")).await?;

    nodes.delete(LATER, &DeleteParams::default()).await?;
    let drains = |status: &IngressDaemonSetStatus, node: &str| {
        grants(status) == [(node, GrantReason::Drain)] && held(status, "Draining").contains(node)
    };
    product::status_says(bed, "the node is drained", product::SAID, |status| drains(status, LATER)).await?;
    // That the mark stood for the grace before the pods went is the auditor's to judge.
    is_empty(LATER).await?;
    let meta = nodes.get(LATER).await?.metadata;
    ensure!(meta.deletion_timestamp.is_some() && meta.finalizers == Some(vec![FOREIGN.to_owned()]), "{meta:?}");
    bed.say("detached, then drained, while it was paused; nobody but the foreign finalizer holds the Node");

    bed.node(LATER)?.remove().await?;
    finalizers(LATER, &[]).await?;
    is_gone(LATER).await?;
    product::is_complete(bed, 3, product::ROLLED_OUT).await?;
    let deployments = Api::<Deployment>::namespaced(bed.client.clone(), "default");
    let left = deployments.list(&ListParams::default().labels(names::TOKEN_LABEL)).await?.items;
    ensure!(left.len() == 3, "Deployments of {} nodes are left", left.len());
    let status = product::api(bed).get(product::NAME).await?.status.context("no status")?;
    ensure!(status.nodes.available == 3 && has_condition(&status, "Available", "True", "MinimumNodesAvailable"), "{status:?}");
    bed.say("it went as soon as it was let go of, and its Deployment with it");

    product::change(bed, json!({ "paused": false })).await?;
    product::roll_to_missing_image(bed).await?;
    let updates =
        |status: &IngressDaemonSetStatus| held(status, "ImagePull").len() == 1 && matches!(grants(status)[..], [(_, GrantReason::Update)]);
    let status = product::status_says(bed, "an update hangs", product::SAID, updates).await?;
    let (node, _) = grants(&status)[0];
    finalizers(node, &[FOREIGN]).await?;
    nodes.delete(node, &DeleteParams::default()).await?;
    product::status_says(bed, "its Node is deleted, and drained in the place that it has", product::SAID, |status| drains(status, node))
        .await?;
    is_empty(node).await?;
    product::roll_to(bed, "2").await?;
    bed.node(node)?.remove().await?;
    finalizers(node, &[]).await?;
    is_gone(node).await?;
    product::is_complete(bed, 2, product::ROLLED_OUT).await?;
    bed.say("a Node that was deleted in the middle of its update gave its place to the others");
    traffic.all_served(bed).await
}
