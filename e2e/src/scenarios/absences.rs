//! Operators that are away, or live shortly, in the middle of a rollout: what nobody watched counts for nothing, and what was watched adds
//! up.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::{ledger::GrantReason, status::NodePhase};
use serde_json::{Value, json};

use crate::{
    auditor::Expectations,
    bed::Bed,
    cluster::{
        operator_process::OperatorProcess,
        product::{self, deployment_mark, four_nodes, rolling_update},
    },
    load::{LoadOptions, Traffic},
    scenario::Scenario,
    scenarios::{
        noise::first_attached,
        proof::{self, DEFAULTS, ONE_NODE, Trial, crashes_after},
    },
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
/// Seconds that a node may take.
const DEADLINE: u32 = 60;
/// How long the operator is away: longer than that.
const AWAY: Duration = Duration::from_secs(90);
/// Seconds after which pods are ready, by the clock: a moment after the operator is back.
const READY_AFTER: u64 = 110;
/// How long an operator lives that is killed again and again: shorter than the grace period.
const LIFE: Duration = Duration::from_secs(8);
/// Seconds.
const GRACE: u32 = 10;

/// Pods are ready at a time by the clock at which nobody has watched them for longer than `nodeDeadlineSeconds`.
pub const LATE: Scenario = Scenario {
    name: "an_operator_away_past_the_node_deadline_condemns_no_revision",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(late(bed)),
};

async fn late(bed: &mut Bed) -> Result<()> {
    let mut strategy = rolling_update(1, deployment_mark());
    strategy["rollingUpdate"]["nodeDeadlineSeconds"] = DEADLINE.into();
    strategy["rollingUpdate"]["autoRollback"] = true.into();
    product::serve(bed, strategy, &NODES).await?;
    let mut operator = OperatorProcess::instead_of_pods(bed).await?;
    let from = bed.recorder.history().await?.len();
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let watch = bed.haproxy.watch().await?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).context("the time")?.as_secs();
    let mut template = product::template("2");
    let is_time = format!("[ $(date +%s) -ge {} ]", now + READY_AFTER);
    template["spec"]["containers"].as_array_mut().context("no containers")?.push(json!({
        "name": "beside", "image": "busybox:1.36", "command": ["/bin/sh", "-c", "sleep 3600"],
        "readinessProbe": { "exec": { "command": ["/bin/sh", "-c", is_time] }, "periodSeconds": 1, "failureThreshold": 1 },
    }));
    product::change(bed, json!({ "template": template })).await?;
    product::status_says(bed, "the pods of a node change", product::SAID, |status| {
        status.node_states.iter().any(|state| state.phase == NodePhase::Updating)
    })
    .await?;
    is_away(&mut operator).await?;
    bed.say(&format!("the operator is back after {} s; a node may take {DEADLINE}", AWAY.as_secs()));
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    watch.at_least(3).await?;
    product::nothing_failed(bed, from).await?;
    traffic.all_served(bed).await
}

/// The operator is killed, and comes back later: time itself is what these scenarios are about.
async fn is_away(operator: &mut OperatorProcess) -> Result<()> {
    operator.kill().await?;
    tokio::time::sleep(AWAY).await;
    operator.run()
}

/// The revision crashes on the first node while the operator is away. It reaches no other node and is rolled back.
pub const CRASHES_UNSEEN: Scenario = Scenario {
    name: "a_revision_that_crashes_unwatched_reaches_one_node",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(crashes_unseen(bed)),
};

/// Its kubelet starts it again ever later: who waits for a third fall beside the unseen ones waits for five minutes.
const FLAPS: u32 = 2;

async fn crashes_unseen(bed: &mut Bed) -> Result<()> {
    let more = json!({ "autoRollback": true, "provenAfterSeconds": DEFAULTS, "maxFlaps": FLAPS });
    proof::serve(bed, product::template("1"), more).await?;
    let mut operator = OperatorProcess::instead_of_pods(bed).await?;
    let trial = Trial::begin(bed).await?;
    product::change(bed, json!({ "template": crashes_after(2)? })).await?;
    let (node, _) = first_attached(bed).await?;
    bed.say(&format!("{node} was attached, and the operator is killed"));
    is_away(&mut operator).await?;
    bed.say("the operator is back");
    trial.ends(bed, "CrashLoop", ONE_NODE).await
}

/// Grace periods, soaks and a proof that are longer than each life of the operator add up over its lives.
pub const SHORT_LIVES: Scenario = Scenario {
    name: "an_operator_killed_every_eight_seconds_finishes_a_rollout",
    options: four_nodes,
    expected: || Expectations::budget(2),
    body: |bed| Box::pin(short_lives(bed)),
};

async fn short_lives(bed: &mut Bed) -> Result<()> {
    let mut strategy = rolling_update(2, deployment_mark());
    strategy["rollingUpdate"]["annotateDeploymentToDetach"]["gracePeriodSeconds"] = GRACE.into();
    strategy["rollingUpdate"]["autoRollback"] = true.into();
    product::serve(bed, strategy, &NODES).await?;
    let mut operator = OperatorProcess::instead_of_pods(bed).await?;
    let from = bed.recorder.history().await?.len();
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let before = product::api(bed).get(product::NAME).await?.status.context("no status")?.revisions.current;
    let watch = bed.haproxy.watch().await?;
    product::roll_to(bed, "2").await?;
    let mut lives = 1;
    let over = async || -> Result<bool> {
        let status = product::api(bed).get(product::NAME).await?.status.context("no status")?;
        let revisions = &status.revisions;
        Ok(revisions.current != before && revisions.current == revisions.update && status.nodes.updated as usize == NODES.len())
    };
    let began = tokio::time::Instant::now();
    while !over().await? {
        ensure!(began.elapsed() < product::ROLLED_OUT, "not through after {lives} lives");
        tokio::time::sleep(LIFE).await;
        operator.kill().await?;
        operator.run()?;
        lives += 1;
    }
    bed.say(&format!("the rollout took {lives} lives of an operator"));
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    // The budget is 2.
    watch.at_least(NODES.len() - 2).await?;
    product::nothing_failed(bed, from).await?;
    traffic.all_served(bed).await
}

/// The node selector moves to nodes that never serve.
pub const DEAD_POOL: Scenario = Scenario {
    name: "minimum_available_nodes_hold_when_the_new_nodes_never_serve",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(dead_pool(bed)),
};

/// Nodes that must serve.
const MINIMUM: usize = 2;

async fn dead_pool(bed: &mut Bed) -> Result<()> {
    let serving = ["n1", "n2", "n3"];
    bed.kubectl(&["label", "node", "n4", "ingress-", "pool=dead"]).await?;
    let mut strategy = rolling_update(1, deployment_mark());
    strategy["rollingUpdate"]["minAvailableNodes"] = MINIMUM.into();
    product::serve(bed, strategy, &serving).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let watch = bed.haproxy.watch().await?;
    bed.node("n4")?.stop_agent().await?;
    let pool = |pool: Value, ingress: Value| json!({ "nodeSelector": { "pool": pool, "ingress": ingress } });
    product::change(bed, pool("dead".into(), Value::Null)).await?;
    let waits = |kind: &str, status: &crds::IngressDaemonSetStatus| status.node_states.iter().filter(|state| state.reason == kind).count();
    let status = product::status_says(bed, "nodes that must serve wait", product::SAID, |status| {
        let removing = status.rollout.iter().flat_map(|ledger| ledger.grants.values()).any(|grant| grant.kind == GrantReason::Remove);
        waits("MinAvailableNodes", status) == MINIMUM && !removing
    })
    .await?;
    bed.say(&format!("{MINIMUM} nodes serve on though they are chosen no more: {:?}", status.blocked.map(|blocked| blocked.message)));
    watch.at_least(MINIMUM).await?;
    product::change(bed, pool(Value::Null, "true".into())).await?;
    bed.node("n4")?.start_agent()?;
    product::is_complete(bed, serving.len(), product::ROLLED_OUT).await?;
    traffic.all_served(bed).await
}
