//! What the operator stands on fails in the middle of a rollout, and comes back.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use chrono::{DateTime, Utc};
use crds::{
    IngressDaemonSetStatus, names,
    status::NodePhase,
    token::{Phase, Token},
};
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::Pod,
};
use kube::{Api, api::ListParams};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    auditor::{Expectations, Kind, Observation},
    bed::Bed,
    cluster::{
        operator_process::OperatorProcess,
        product::{self, deployment_mark, four_nodes, rolling_update},
    },
    eventually::{eventually, throughout},
    load::{LoadOptions, Traffic},
    scenario::Scenario,
    scenarios::crashes::completes,
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
const MINUTE: Duration = Duration::from_mins(1);

/// `SIGSTOP` for 20 s and for 60 s.
pub const API_SERVER_STOPPED: Scenario = Scenario {
    name: "a_rollout_resumes_after_the_api_server_stood_still",
    options: four_nodes,
    expected: || Expectations::budget(1).watches_hang(),
    body: |bed| Box::pin(api_server_stopped(bed)),
};

async fn api_server_stopped(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, slow_mark()), &NODES).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    roll_slowly_to(bed, "2").await?;
    for (phase, seconds) in [(Phase::Claimed, 20), (Phase::Updating, 60)] {
        let watch = bed.haproxy.watch().await?;
        let node = shows(bed, phase).await?;
        // The recorder has seen it, too.
        bed.recorder.history().await?;
        bed.control_plane.signal("kube-apiserver", Signal::SIGSTOP)?;
        bed.say(&format!("{node} is {phase:?}; the API server stands still for {seconds} s"));
        let whole = throughout(Duration::from_secs(seconds), "the bed is whole", async || bed.check()).await;
        let goes_on = Utc::now();
        bed.control_plane.signal("kube-apiserver", Signal::SIGCONT)?;
        whole?;
        was(bed, &node, phase, goes_on).await?;
        // The control plane has heard of no kubelet for so long that it calls Nodes lost, and their pods unready.
        throughout(Duration::from_secs(5), "the bed is whole", async || bed.check()).await?;
        watch.at_least(3).await?;
    }
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    traffic.all_served(bed).await?;
    let history = bed.recorder.history().await?;
    let lost = history.iter().filter(|seen| seen.kind == Kind::Node && ready(&seen.object) == Some("Unknown"));
    let lost: BTreeSet<_> = lost.filter_map(|seen| seen.object["metadata"]["name"].as_str()).collect();
    bed.say(&format!("Nodes that the control plane took for lost meanwhile: {lost:?}"));
    Ok(())
}

/// Status of a Node's condition Ready.
fn ready(node: &Value) -> Option<&str> {
    let conditions = node["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == "Ready")?["status"].as_str()
}

/// etcd is killed, and forgets.
pub const ETCD: Scenario = Scenario {
    name: "a_rollout_resumes_after_etcd_was_killed_and_compacted",
    options: four_nodes,
    expected: || Expectations::budget(1).watches_hang(),
    body: |bed| Box::pin(etcd(bed)),
};

async fn etcd(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, slow_mark()), &NODES).await?;
    let mut operator = OperatorProcess::instead_of_pods(bed).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    product::roll_to(bed, "2").await?;
    let node = shows(bed, Phase::Claimed).await?;
    let killed = bed.control_plane.kill("etcd").await?;
    bed.say(&format!("{node} is claimed; etcd is killed"));
    let watch = bed.haproxy.watch().await?;
    throughout(Duration::from_secs(6), "HAProxy runs", async || bed.haproxy.check()).await?;
    watch.at_least(3).await?;
    let is_back = Utc::now();
    bed.control_plane.start_again(killed)?;
    // Without etcd it cannot renew its lease, and ends; its kubelet would start it again.
    completes(bed, &mut operator, NODES.len(), product::ROLLED_OUT).await?;
    was(bed, &node, Phase::Claimed, is_back).await?;
    bed.say("etcd is back, and the rollout has ended");
    // With a lease, its successor might end, once it goes on after it was stopped, before it has tried to watch on.
    operator.stop().await?;
    let mut operator = OperatorProcess::start_with(bed, "stopped", &["--no-leader-election"]).await?;
    roll_slowly_to(bed, "3").await?;
    let node = shows(bed, Phase::Updating).await?;
    let goes_on = miss_the_history(bed, &operator).await?;
    completes(bed, &mut operator, NODES.len(), product::ROLLED_OUT).await?;
    was(bed, &node, Phase::Updating, goes_on).await?;
    traffic.all_served(bed).await?;
    let log = tokio::fs::read_to_string(bed.state().join("logs/operator-stopped.log")).await?;
    let expired = log.lines().filter(|line| line.contains("watch failed") && line.contains("too old resource version")).count();
    bed.say(&format!("{expired} watches of the operator had missed too much and began anew"));
    ensure!(expired > 0, "the operator's watches missed nothing");
    Ok(())
}

/// The operator is stopped while things change, and what changed can no longer be watched afterwards: the API server
/// is started again, and etcd has dropped its history. When the operator goes on.
async fn miss_the_history(bed: &mut Bed, operator: &OperatorProcess) -> Result<DateTime<Utc>> {
    operator.signal(Signal::SIGSTOP)?;
    bed.say("the operator is stopped, the history is compacted");
    // The Deployment controller goes on alone: nobody closes the token.
    let api = Api::<Deployment>::namespaced(bed.client.clone(), "default");
    let newest = eventually(MINUTE, "every Deployment is complete", async || {
        let list = api.list(&ListParams::default()).await?;
        for deployment in &list.items {
            let status = deployment.status.clone().unwrap_or_default();
            ensure!(
                status.observed_generation == deployment.metadata.generation && status.updated_replicas == status.ready_replicas,
                "{status:?}"
            );
        }
        // Afterwards nothing ends any more whose end the recorder could miss.
        let sets = Api::<ReplicaSet>::namespaced(bed.client.clone(), "default").list(&ListParams::default()).await?;
        ensure!(sets.items.len() == list.items.len(), "{} ReplicaSets of {} Deployments", sets.items.len(), list.items.len());
        let pods = Api::<Pod>::namespaced(bed.client.clone(), "default").list(&ListParams::default()).await?;
        ensure!(pods.items.iter().all(|pod| pod.metadata.deletion_timestamp.is_none()), "a pod is ending");
        pods.metadata.resource_version.and_then(|version| version.parse::<u64>().ok()).context("a list without a version")
    })
    .await?;
    // What ended before must have been seen.
    bed.recorder.history().await?;
    let killed = bed.control_plane.kill("kube-apiserver").await?;
    bed.control_plane.compact(newest).await?;
    bed.control_plane.start_again(killed)?;
    eventually(MINUTE, "the API server is back", async || api.list(&ListParams::default()).await.map(drop).context("listing")).await?;
    let goes_on = Utc::now();
    operator.signal(Signal::SIGCONT)?;
    Ok(goes_on)
}

/// A mark that stands so long that what is done to a claimed node comes in time.
fn slow_mark() -> Value {
    json!({ "annotateDeploymentToDetach": { "gracePeriodSeconds": 5 } })
}

/// Rolls out a version whose pods take so long to be ready that what is done to a node in the middle of its update comes in time.
pub(super) async fn roll_slowly_to(bed: &Bed, version: &str) -> Result<()> {
    let mut template = product::template(version);
    template["spec"]["containers"][0]["readinessProbe"]["initialDelaySeconds"] = 5.into();
    product::change(bed, json!({ "template": template })).await
}

/// The first node whose token shows this phase.
pub(super) async fn shows(bed: &Bed, phase: Phase) -> Result<String> {
    let api = Api::<Deployment>::namespaced(bed.client.clone(), "default");
    eventually(MINUTE * 3, &format!("a node is {phase:?}"), async || {
        let shows = |deployment: &Deployment| {
            let labels = deployment.metadata.labels.as_ref()?;
            let token: Token = labels.get(names::TOKEN_LABEL)?.parse().ok()?;
            (token.phase == phase).then(|| deployment.metadata.annotations.as_ref()?.get(names::NODE_NAME_ANNOTATION).cloned())?
        };
        api.list(&ListParams::default()).await?.items.iter().find_map(shows).context("none is")
    })
    .await
}

/// The node's token still showed this phase before that moment: what was done to the node came in time.
async fn was(bed: &Bed, node: &str, phase: Phase, before: DateTime<Utc>) -> Result<()> {
    let history = bed.recorder.history().await?;
    let of_node = |seen: &&Observation| {
        seen.kind == Kind::Deployment && seen.object["metadata"]["annotations"][names::NODE_NAME_ANNOTATION] == node && seen.at < before
    };
    let last = history.iter().rev().find(of_node).with_context(|| format!("{node} has no Deployment"))?;
    let token: Token = last.object["metadata"]["labels"][names::TOKEN_LABEL].as_str().unwrap_or_default().parse()?;
    ensure!(token.phase == phase, "{node} was no longer {phase:?}: {token}");
    Ok(())
}

/// A node loses its agent, or its network.
pub const LOST_NODES: Scenario = Scenario {
    name: "a_rollout_resumes_after_a_node_lost_agent_or_network",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(lost_nodes(bed)),
};

/// What one that serves takes with it. The load balancer lets go of it when two checks of a second each have failed, 2.4 s after it was cut
/// off at most; meanwhile each of 32 connections can wait in vain twice, for 2 s each.
pub(super) const CUT_OFF: u64 = 2 * 32;

async fn lost_nodes(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    roll_slowly_to(bed, "2").await?;
    let node = shows(bed, Phase::Updating).await?;
    bed.node(&node)?.stop_agent().await?;
    bed.say(&format!("the agent of {node} is killed in the middle of its update"));
    waits_for(bed, &node, Duration::from_secs(5)).await?;
    bed.node(&node)?.start_agent()?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.say("its agent is back, and the rollout has ended");

    roll_slowly_to(bed, "3").await?;
    let node = shows(bed, Phase::Updating).await?;
    bed.node(&node)?.cut().await?;
    bed.say(&format!("{node} is cut off in the middle of its update"));
    is_lost(bed, &node).await?;
    waits_for(bed, &node, Duration::from_secs(3)).await?;
    bed.node(&node)?.heal().await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    traffic.all_served(bed).await?;

    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    bed.node("n4")?.cut().await?;
    is_lost(bed, "n4").await?;
    traffic.loses_at_most(CUT_OFF, bed).await?;
    bed.say("n4 is cut off while nothing is under way");
    // The load balancer has let go of it.
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    product::roll_to(bed, "4").await?;
    let says = |status: &IngressDaemonSetStatus| {
        status.node_states.iter().any(|state| state.name == "n4" && state.reason == "NodeNotReady")
            && status.rollout.as_ref().is_some_and(|ledger| ledger.grants.is_empty())
            && product::has_condition(status, "Degraded", "True", "NodeNotReady")
    };
    product::status_says(bed, "n4 is what the rollout waits for", product::SAID, says).await?;
    bed.node("n4")?.heal().await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.haproxy.serves(MINUTE, &NODES).await?;
    traffic.all_served(bed).await
}

pub(super) async fn is_lost(bed: &Bed, node: &str) -> Result<()> {
    let lost = bed.kubectl(&["wait", "--for=condition=Ready=unknown", &format!("node/{node}"), "--timeout=180s"]).await;
    lost.map(drop)
}

/// Nothing else begins, and status says what it waits for.
async fn waits_for(bed: &Bed, node: &str, period: Duration) -> Result<()> {
    let says = |status: &IngressDaemonSetStatus| {
        let stuck = status.node_states.iter().any(|state| state.name == node && state.phase != NodePhase::Waiting);
        stuck && status.rollout.as_ref().is_some_and(|ledger| ledger.grants.keys().all(|granted| granted == node))
    };
    product::status_says(bed, "the rollout waits for the node", product::SAID, says).await?;
    product::status_stays(bed, "the rollout waits for the node", period, says).await
}
