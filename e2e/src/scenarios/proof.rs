//! Revisions that are good for a moment: they reach one node and no other, fail, and the former revision comes back by itself.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use crds::{IngressDaemonSetStatus, names};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::{Value, json};

use crate::{
    auditor::{Expectations, Kind},
    bed::Bed,
    eventually::{eventually, throughout},
    load::LoadOptions,
    scenario::Scenario,
    scenarios::{
        outages::is_lost,
        product::{self, deployment_mark, four_nodes, has_condition, rolling_update},
    },
    traffic::Traffic,
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
/// What a user gets who says nothing.
pub(super) const DEFAULTS: Value = Value::Null;
/// Three falls take six minutes at most: of a container that ends after 70 s its kubelet begins the next after 10 and 20 seconds.
pub(super) const FAILS: Duration = Duration::from_mins(7);

/// The spec of most users: nothing is said of how long a revision must serve. `more`: fields of the rolling update.
async fn serve(bed: &Bed, more: Value) -> Result<String> {
    let strategy = rolling_update(1, json!({ "autoRollback": true, "provenAfterSeconds": DEFAULTS }));
    product::serve(bed, strategy, &NODES).await?;
    product::change(bed, json!({ "updateStrategy": { "rollingUpdate": more } })).await?;
    product::change(bed, json!({ "updateStrategy": { "rollingUpdate": deployment_mark() } })).await?;
    // The first revision is one to go back to once it has been proved itself.
    let status =
        product::status_says(bed, "the first revision is proved", product::ROLLED_OUT, |status| !status.revisions.current.is_empty());
    Ok(status.await?.revisions.current)
}

/// The revision comes, fails on one node, and goes; all the time so many of the four nodes serve at least. It reaches `most`.
pub(super) async fn fails(bed: &Bed, template: Value, reason: &str, floor: usize, most: usize) -> Result<()> {
    let first = serve(bed, json!({})).await?;
    let from = bed.recorder.history().await?.len();
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let watch = bed.haproxy.watch().await?;
    product::change(bed, json!({ "template": template })).await?;
    let failed = product::status_says(bed, "it has failed, and the former revision comes back", FAILS, |status| {
        has_condition(status, "RolledBack", "True", "RevisionFailed") && status.revisions.effective == first
    })
    .await?;
    let rolled_back = failed.rollout.and_then(|ledger| ledger.rolled_back).context("nothing says why")?;
    ensure!(rolled_back.reason.contains(reason), "{rolled_back:?}");
    bed.say(&format!("rolled back: {}", rolled_back.reason));
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    watch.at_least(floor).await?;
    let outcome = traffic.figures().await?;
    bed.say(&format!("{} requests, {} failed; {floor} nodes served at every moment", outcome.clients.requests, outcome.failed()));
    let reached = reached(bed, from, &failed.revisions.update).await?;
    bed.say(&format!("the revision reached {reached:?}"));
    ensure!((1..=most).contains(&reached.len()), "the revision reached {reached:?}");
    was_never_current(bed, from, &failed.revisions.update).await
}

/// Nodes whose Deployments ever had the revision.
pub(super) async fn reached(bed: &Bed, from: usize, revision: &str) -> Result<BTreeSet<String>> {
    let history = bed.recorder.history().await?;
    let deployments = history.iter().skip(from).filter(|seen| seen.kind == Kind::Deployment);
    let at = deployments.filter(|seen| seen.object["spec"]["template"]["metadata"]["labels"][names::REVISION_LABEL] == revision);
    Ok(at.filter_map(|seen| Some(seen.object["metadata"]["name"].as_str()?.to_owned())).collect())
}

pub(super) async fn was_never_current(bed: &Bed, from: usize, revision: &str) -> Result<()> {
    for seen in bed.recorder.history().await?.iter().skip(from).filter(|seen| seen.kind == Kind::IngressDaemonSet) {
        ensure!(seen.object["status"]["revisions"]["current"] != revision, "{}", seen.object["status"]);
    }
    Ok(())
}

/// A container beside nginx that ends two seconds after each start; it has no probe.
pub const CRASHES: Scenario = Scenario {
    name: "a_revision_that_crashes_two_seconds_after_each_start_reaches_one_node_and_is_rolled_back",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(async move { fails(bed, crashes_after(2)?, "CrashLoop", 3, 1).await }),
};

pub(super) fn crashes_after(seconds: u32) -> Result<Value> {
    let mut template = product::template("2");
    let command = format!("sleep {seconds}; exit 1");
    let crashes = json!({ "name": "beside", "image": "busybox:1.36", "command": ["/bin/sh", "-c", command] });
    template["spec"]["containers"].as_array_mut().context("no containers")?.push(crashes);
    Ok(template)
}

/// It has been proved by then, and goes on to the nodes that are begun before the first of them breaks. Then each breaks in its own time: one
/// may wait for its kubelet while another starts again, or while the next is updated, which no operator can foresee.
pub const CRASHES_LATE: Scenario = Scenario {
    name: "a_revision_that_crashes_seventy_seconds_after_each_start_takes_no_more_nodes_out_than_the_budget_and_is_rolled_back",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(async move { fails(bed, crashes_after(70)?, "CrashLoop", 2, NODES.len()).await }),
};

/// Pods whose probe is good for twelve seconds, and bad for as many.
pub const FLAPS: Scenario = Scenario {
    name: "a_revision_that_is_ready_for_twelve_seconds_and_not_for_twelve_reaches_one_node_and_is_rolled_back",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| {
        Box::pin(async move {
            let mut template = product::template("2");
            let probe = json!({
                "exec": { "command": ["/bin/sh", "-c", "[ $(( $(date +%s) % 24 )) -lt 12 ]"] },
                "periodSeconds": 1, "failureThreshold": 1,
            });
            template["spec"]["containers"].as_array_mut().context("no containers")?.push(json!({
                "name": "beside", "image": "busybox:1.36", "command": ["/bin/sh", "-c", "sleep 3600"], "readinessProbe": probe,
            }));
            fails(bed, template, "Flapping", 3, 1).await
        })
    },
};

/// A machine that dies fifteen seconds after the pods of a revision were ready on it, as often as it comes back.
pub const MACHINE_DIES: Scenario = Scenario {
    name: "a_revision_whose_machine_dies_fifteen_seconds_after_it_was_ready_reaches_no_other_node",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(machine_dies(bed, json!({}))),
};

/// The machine dies so long after its pods were ready: time itself is what the scenario is about.
const DIES_AFTER: Duration = Duration::from_secs(15);
/// Longer than a node must serve to count as good: what is not given to another node for so long is not given.
const LONGER_THAN_PROOF: Duration = Duration::from_secs(75);

/// `more`: fields of the rolling update.
pub(super) async fn machine_dies(bed: &mut Bed, more: Value) -> Result<()> {
    serve(bed, more).await?;
    let from = bed.recorder.history().await?.len();
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let watch = bed.haproxy.watch().await?;
    product::roll_to(bed, "2").await?;
    let update = product::status_says(bed, "the newest revision is known", product::SAID, |status| {
        status.revisions.update != status.revisions.current
    })
    .await?
    .revisions
    .update;
    for _ in 0..2 {
        let node = eventually(product::SAID, "one node runs the revision and serves", async || first_ready(bed, &update).await).await?;
        tokio::time::sleep(DIES_AFTER).await;
        dies(bed, &node, LONGER_THAN_PROOF, from, &update).await?;
    }
    let says = |status: &IngressDaemonSetStatus| status.node_states.iter().any(|state| state.reason == "NodesFlapping");
    product::status_says(bed, "the node is suspect", product::SAID, says).await?;
    bed.say("the node is back, and suspect");
    was_never_current(bed, from, &update).await?;
    // The way back waits for no proof.
    product::roll_to(bed, "1").await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    watch.at_least(3).await?;
    let outcome = traffic.figures().await?;
    bed.say(&format!("{} requests, {} failed, all on the machine that died twice", outcome.clients.requests, outcome.failed()));
    Ok(())
}

/// The machine of the node that has the revision dies, and is back some time after its Node is lost; meanwhile no other node gets the
/// revision.
pub(super) async fn dies(bed: &mut Bed, node: &str, back_after: Duration, from: usize, revision: &str) -> Result<()> {
    bed.node(node)?.cut().await?;
    bed.node(node)?.stop_agent().await?;
    bed.say(&format!("the machine of {node} dies"));
    is_lost(bed, node).await?;
    throughout(back_after, "no other node gets the revision", async || {
        let reached = reached(bed, from, revision).await?;
        ensure!(reached.len() == 1, "{reached:?}");
        Ok(())
    })
    .await?;
    bed.node(node)?.start_agent()?;
    bed.node(node)?.heal().await
}

/// A node on which a pod of the revision is ready.
async fn first_ready(bed: &Bed, revision: &str) -> Result<String> {
    let labelled = ListParams::default().labels(&format!("{}={revision}", names::REVISION_LABEL));
    let pods = Api::<Pod>::namespaced(bed.client.clone(), "default").list(&labelled).await?;
    let found = pods.items.iter().find(|pod| is_ready(pod)).with_context(|| format!("none of {} pods is ready", pods.items.len()))?;
    found.spec.as_ref().and_then(|spec| spec.node_name.clone()).with_context(|| format!("{} is nowhere", found.name_any()))
}

pub(super) fn is_ready(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
