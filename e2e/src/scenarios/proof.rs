//! Revisions that are good for a moment: they reach one node only, fail, and the former revision comes back by itself.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use chrono::{DateTime, Utc};
use crds::{IngressDaemonSetStatus, names};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::{Value, json};

use crate::{
    auditor::{Expectations, Kind},
    bed::{Bed, haproxy::Watch},
    cluster::product::{self, deployment_mark, four_nodes, has_condition, rolling_update},
    eventually::{eventually, throughout},
    load::{LoadOptions, Traffic},
    scenario::Scenario,
    scenarios::outages::{CUT_OFF, is_lost},
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
/// What a user gets who says nothing.
pub(super) const DEFAULTS: Value = Value::Null;
/// Three falls take six minutes at most: of a container that ends after 70 s its kubelet begins the next after 10 and 20 seconds.
pub(super) const FAILS: Duration = Duration::from_mins(7);

/// All serve, with a first revision that was proved in a moment: it is one to go back to. From now on these fields of the rolling update
/// hold.
pub(super) async fn serve(bed: &Bed, template: Value, more: Value) -> Result<()> {
    let mut resource = product::resource("1", &rolling_update(1, deployment_mark()));
    resource["spec"]["template"] = template;
    product::serve_resource(bed, resource, &NODES).await?;
    product::change(bed, json!({ "updateStrategy": { "rollingUpdate": more } })).await
}

/// What a revision that fails may do before it is gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// So many of the four nodes serve at every moment.
    pub floor: usize,
    /// The further nodes that it reaches at most: each so many seconds after the first one at the earliest.
    pub further: &'static [i64],
    /// So many requests fail.
    pub lost: u64,
}

/// A revision that leaves nginx alone breaks one node and no request: its health check takes the node out while nginx serves on.
pub(super) const ONE_NODE: Bounds = Bounds { floor: 3, further: &[], lost: 0 };

/// Seconds by which the recorder may have seen the first node late.
const SEEN_LATE: i64 = 3;

/// A resource that serves, under load, in its first revision.
pub(super) struct Trial {
    first: String,
    /// Observations before the other revision.
    pub from: usize,
    traffic: Traffic,
    watch: Watch,
}

impl Trial {
    pub(super) async fn begin(bed: &Bed) -> Result<Self> {
        let status = product::api(bed).get(product::NAME).await?.status.context("no status")?;
        let from = bed.recorder.history().await?.len();
        let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
        Ok(Self { first: status.revisions.current, from, traffic, watch: bed.haproxy.watch().await? })
    }

    /// The other revision fails, the former one comes back by itself, and nothing went beyond the bounds until it was everywhere.
    pub(super) async fn ends(self, bed: &Bed, reason: &str, bounds: Bounds) -> Result<()> {
        let failed = product::status_says(bed, "it has failed, and the former revision comes back", FAILS, |status| {
            has_condition(status, "RolledBack", "True", "RevisionFailed") && status.revisions.effective == self.first
        })
        .await?;
        let rolled_back = failed.rollout.and_then(|ledger| ledger.rolled_back).context("nothing says why")?;
        ensure!(rolled_back.reason.contains(reason), "{rolled_back:?}");
        bed.say(&format!("rolled back: {}", rolled_back.reason));
        product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
        self.watch.at_least(bounds.floor).await?;
        let reached = reached(bed, self.from, &failed.revisions.update).await?;
        bed.say(&format!("the revision reached {reached:?}; {} nodes served at every moment", bounds.floor));
        let mut times: Vec<_> = reached.values().collect();
        times.sort();
        let (first, others) = times.split_first().context("the revision reached no node")?;
        let after: Vec<_> = others.iter().map(|at| (**at - **first).num_seconds() + SEEN_LATE).collect();
        let in_time = after.len() <= bounds.further.len() && after.iter().zip(bounds.further).all(|(after, least)| after >= least);
        ensure!(in_time, "the revision reached {reached:?}; further nodes may be reached after {:?} s", bounds.further);
        was_never_current(bed, self.from, &failed.revisions.update).await?;
        self.traffic.loses_at_most(bounds.lost, bed).await
    }
}

/// The revision comes, fails, and goes; `proven`: seconds for which it must serve.
pub(super) async fn fails(bed: &Bed, proven: Value, template: Value, reason: &str, bounds: Bounds) -> Result<()> {
    serve(bed, product::template("1"), json!({ "autoRollback": true, "provenAfterSeconds": proven })).await?;
    let trial = Trial::begin(bed).await?;
    product::change(bed, json!({ "template": template })).await?;
    trial.ends(bed, reason, bounds).await
}

/// Nodes whose Deployments ever had the revision, and since when.
pub(super) async fn reached(bed: &Bed, from: usize, revision: &str) -> Result<BTreeMap<String, DateTime<Utc>>> {
    let history = bed.recorder.history().await?;
    let deployments = history.iter().skip(from).filter(|seen| seen.kind == Kind::Deployment);
    let mut reached = BTreeMap::new();
    for seen in deployments.filter(|seen| seen.object["spec"]["template"]["metadata"]["labels"][names::REVISION_LABEL] == revision) {
        let name = seen.object["metadata"]["name"].as_str().context("no name")?;
        reached.entry(name.to_owned()).or_insert(seen.at);
    }
    Ok(reached)
}

pub(super) async fn was_never_current(bed: &Bed, from: usize, revision: &str) -> Result<()> {
    for seen in bed.recorder.history().await?.iter().skip(from).filter(|seen| seen.kind == Kind::IngressDaemonSet) {
        ensure!(seen.object["status"]["revisions"]["current"] != revision, "{}", seen.object["status"]);
    }
    Ok(())
}

/// A container beside nginx ends two seconds after each start; it has no probe. The revision is rolled back.
pub const CRASHES: Scenario = Scenario {
    name: "a_revision_that_crashes_after_two_seconds_reaches_one_node",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(async move { fails(bed, DEFAULTS, crashes_after(2)?, "CrashLoop", ONE_NODE).await }),
};

pub(super) fn crashes_after(seconds: u32) -> Result<Value> {
    let mut template = product::template("2");
    let command = format!("sleep {seconds}; exit 1");
    let crashes = json!({ "name": "beside", "image": "busybox:1.36", "command": ["/bin/sh", "-c", command] });
    template["spec"]["containers"].as_array_mut().context("no containers")?.push(crashes);
    Ok(template)
}

/// Seconds after each start, more than the minute after which a revision counts as good.
const LATE: u32 = 70;
/// The minute; two nodes can be through before the first one breaks. From then on no further one gets it until that one has served for a
/// minute again.
const ONE_BY_ONE: [i64; 3] = [60, 60, 70 + 60];

/// The revision crashes seventy seconds after each start, when it has been proved. Each node breaks in its own time, so that two of four
/// may be out at once, which no operator can foresee.
pub const CRASHES_LATE: Scenario = Scenario {
    name: "a_revision_that_crashes_after_its_proof_is_rolled_back",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| {
        let bounds = Bounds { floor: 2, further: &ONE_BY_ONE, lost: 0 };
        Box::pin(async move { fails(bed, DEFAULTS, crashes_after(LATE)?, "CrashLoop", bounds).await })
    },
};

/// The same crash after seventy seconds, where a revision must serve for ninety.
pub const CRASHES_IN_TIME: Scenario = Scenario {
    name: "a_crash_within_a_longer_proof_reaches_one_node",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(async move { fails(bed, (LATE + 20).into(), crashes_after(LATE)?, "CrashLoop", ONE_NODE).await }),
};

/// The probe is good for twelve seconds, and bad for as many. The revision is rolled back.
pub const FLAPS: Scenario = Scenario {
    name: "a_revision_that_flaps_every_twelve_seconds_reaches_one_node",
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
            fails(bed, DEFAULTS, template, "Flapping", ONE_NODE).await
        })
    },
};

/// A machine dies fifteen seconds after the pods of a revision were ready on it, as often as it comes back. The revision is rolled back.
pub const MACHINE_DIES: Scenario = Scenario {
    name: "a_revision_that_kills_its_machine_reaches_no_other_node",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(machine_dies(bed, "CountAgainst")),
};

/// The machine dies so long after its pods were ready: time itself is what the scenario is about.
const DIES_AFTER: Duration = Duration::from_secs(15);
/// Longer than a node must serve to count as good: what is not given to another node for so long is not given.
const LONGER_THAN_PROOF: Duration = Duration::from_secs(75);
/// So long a machine is away that is lost again.
const AGAIN: Duration = Duration::from_secs(10);

/// `not_ready`: what becomes of Nodes that are not Ready.
pub(super) async fn machine_dies(bed: &mut Bed, not_ready: &str) -> Result<()> {
    let more = json!({ "autoRollback": true, "provenAfterSeconds": DEFAULTS, "notReadyNodes": not_ready });
    serve(bed, product::template("1"), more).await?;
    let trial = Trial::begin(bed).await?;
    product::roll_to(bed, "2").await?;
    let update = product::status_says(bed, "the newest revision is known", product::SAID, |status| {
        status.revisions.update != status.revisions.current
    })
    .await?
    .revisions
    .update;
    let serves_and_dies = async |bed: &mut Bed, back_after| -> Result<()> {
        let node = eventually(product::SAID, "one node runs the revision and serves", async || first_ready(bed, &update).await).await?;
        tokio::time::sleep(DIES_AFTER).await;
        dies(bed, &node, back_after, trial.from, &update).await
    };
    serves_and_dies(bed, LONGER_THAN_PROOF).await?;
    serves_and_dies(bed, AGAIN).await?;
    let says = |status: &IngressDaemonSetStatus| status.node_states.iter().any(|state| state.reason == "Suspect");
    product::status_says(bed, "the node is suspect", product::SAID, says).await?;
    bed.say("the node is back, and suspect");
    serves_and_dies(bed, AGAIN).await?;
    trial.ends(bed, "NodeLost", Bounds { lost: 3 * CUT_OFF, ..ONE_NODE }).await
}

/// The machine of the node that has the revision dies, and is back some time after its Node is lost; meanwhile no other node gets the
/// revision.
pub(super) async fn dies(bed: &mut Bed, node: &str, back_after: Duration, from: usize, revision: &str) -> Result<()> {
    bed.node(node)?.die().await?;
    bed.say(&format!("the machine of {node} dies"));
    is_lost(bed, node).await?;
    throughout(back_after, "no other node gets the revision", async || {
        let reached = reached(bed, from, revision).await?;
        ensure!(reached.len() == 1, "{reached:?}");
        Ok(())
    })
    .await?;
    bed.node(node)?.come_back().await
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
