//! What is told when something takes too long or is too short, and how long former revisions are kept.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use crds::{IngressDaemonSetStatus, ledger::RolloutState, names::SKIP_ANNOTATION};
use serde_json::{Value, json};

use crate::{
    auditor::Expectations,
    bed::{Bed, Options, control_plane::Timing},
    cluster::{
        product::{self, GRACE, deployment_mark, has_condition, rolling_update},
        thin_nodes::ThinNodes,
    },
    eventually::eventually,
    scenario::Scenario,
    scenarios::{
        canaries::{held, recorded},
        crashes::{load_balancer, two_nodes},
    },
};

const MINUTE: Duration = Duration::from_mins(1);

/// Seconds without any node being finished.
const PROGRESS_DEADLINE: u32 = 5;
/// Longer than what is left of them when a node has been detached for the grace.
const PAUSE: Duration = Duration::from_secs(4);

/// A node that gets stuck is reported, a paused rollout is not. A grace period shorter than the load balancer needs is reported and holds
/// nothing.
pub const TOLD: Scenario = Scenario {
    name: "stalled_rollouts_are_reported_and_paused_ones_are_not",
    options: two_nodes,
    expected: || Expectations::budget(2),
    body: |bed| Box::pin(told(bed)),
};

fn is_late(status: &IngressDaemonSetStatus) -> bool {
    status.conditions.iter().any(|condition| condition.reason == "ProgressDeadlineExceeded")
}

fn rollout_state(status: &IngressDaemonSetStatus) -> Result<&RolloutState> {
    status.rollout.as_ref().and_then(|ledger| ledger.rollout_state.as_ref()).context("the ledger has no course")
}

async fn told(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &["n1", "n2"]).await?;
    // Its preset needs 8 s.
    let preset = json!({ "preset": "HAProxy" });
    let strategy = rolling_update(1, json!({ "progressDeadlineSeconds": PROGRESS_DEADLINE }));
    product::change(bed, json!({ "loadBalancer": preset, "updateStrategy": strategy })).await?;
    product::roll_to_missing_image(bed).await?;
    let begun = product::status_says(bed, "the short grace is named, and a node is begun", product::SAID, |status| {
        has_condition(status, "Valid", "True", "GracePeriodTooShort") && status.nodes.unavailable == 1
    })
    .await?;
    let valid = begun.conditions.iter().find(|condition| condition.type_ == "Valid").context("no condition Valid")?;
    let words =
        format!("annotateDeploymentToDetach.gracePeriodSeconds is {GRACE}, but the load balancer may send requests to a node for 8 s");
    ensure!(valid.message.contains(&words), "{}", valid.message);
    bed.say("a grace period that ends too soon is named, with the figure that it needs, and holds nothing");

    product::change(bed, json!({ "paused": true })).await?;
    let paused = product::status_says(bed, "it is paused", product::SAID, |status| {
        has_condition(status, "Paused", "True", "Paused") && rollout_state(status).is_ok()
    })
    .await?;
    product::status_stays(bed, "nothing is late while it is paused", PAUSE, |status| !is_late(status)).await?;
    product::change(bed, json!({ "paused": false })).await?;
    let late = product::status_says(bed, "no node was finished in time", product::SAID, |status| {
        has_condition(status, "Progressing", "False", "ProgressDeadlineExceeded")
            && has_condition(status, "Stalled", "True", "ProgressDeadlineExceeded")
    })
    .await?;
    let moved = rollout_state(&late)?.progressed_at - rollout_state(&paused)?.progressed_at;
    // Both ends are cut off to seconds.
    ensure!(moved + 1 >= i64::try_from(PAUSE.as_secs())?, "the clock was set back by {moved} s for a pause of {PAUSE:?}");
    ensure!(late.nodes.failed == 0 && late.nodes.available == 1, "{}", product::summary(&late));
    bed.say("a rollout that does not get on says so, and a pause does not count");

    let both = rolling_update(2, json!({}));
    product::change(bed, json!({ "template": product::template("2"), "loadBalancer": load_balancer(), "updateStrategy": both })).await?;
    product::is_complete(bed, 2, product::ROLLED_OUT).await?;
    product::status_says(bed, "nothing is told any more of deadline and grace", product::SAID, |status| {
        has_condition(status, "Valid", "True", "BudgetCoversAllNodes")
            && has_condition(status, "Progressing", "False", "Complete")
            && status.conditions.iter().all(|condition| condition.type_ != "Stalled")
    })
    .await?;
    bed.say("it halted nothing: the corrected template went through");
    Ok(())
}

const NODES: usize = 3;

/// Former revisions beyond the limit go; those that a node runs, or that a person pinned, stay. The nodes are simulated.
pub const HISTORY: Scenario = Scenario {
    name: "the_history_limit_keeps_revisions_in_use_and_pinned_ones",
    // Nobody renews the leases of nodes that are not there.
    options: || Options { timing: Timing { node_grace_seconds: 3600, ..Timing::default() }, ..Options::default().with_infra() },
    // All nodes at once, and none detached.
    expected: || Expectations::budget(NODES),
    body: |bed| Box::pin(history(bed)),
};

fn template(version: u32) -> Value {
    let container = json!({ "name": "c", "image": "busybox:1.36", "env": [{ "name": "VERSION", "value": version.to_string() }] });
    json!({ "spec": { "automountServiceAccountToken": false, "containers": [container] } })
}

async fn roll_to(bed: &Bed, version: u32) -> Result<()> {
    product::change(bed, json!({ "template": template(version) })).await
}

/// Rolls to each of these versions as soon as the one before is recorded. Their numbers are the same.
async fn record(bed: &Bed, versions: RangeInclusive<u32>) -> Result<()> {
    for version in versions {
        roll_to(bed, version).await?;
        eventually(MINUTE, &format!("version {version} is recorded"), async || {
            ensure!(recorded(bed).await?.contains_key(&version.into()), "it is not");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Waits until just these are recorded; of each number, the version.
async fn keeps(bed: &Bed, what: &str, wanted: &[(i64, u32)]) -> Result<()> {
    let wanted: BTreeMap<_, _> = wanted.iter().map(|(number, version)| (*number, version.to_string())).collect();
    eventually(MINUTE, &format!("{what}: {wanted:?}"), async || {
        let now: BTreeMap<_, _> = recorded(bed).await?.into_iter().map(|(number, template)| (number, version(&template))).collect();
        ensure!(now == wanted, "recorded are {now:?}");
        Ok(())
    })
    .await
}

fn version(template: &Value) -> String {
    template["spec"]["containers"][0]["env"][0]["value"].as_str().unwrap_or_default().to_owned()
}

async fn history(bed: &mut Bed) -> Result<()> {
    bed.install().await?;
    let _fleet = ThinNodes::start(&bed.client, NODES, BTreeSet::new()).await?;
    bed.apply(&[json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet",
        "metadata": { "name": product::NAME, "namespace": "default" },
        "spec": {
            "nodeSelector": { "ingress": "true" }, "revisionHistoryLimit": 2,
            "updateStrategy": { "rollingUpdate": { "maxUnavailableNodes": 0, "maxDegradedNodes": NODES, "attachSoakSeconds": 0, "provenAfterSeconds": 1 } },
            "template": template(1),
        },
    })])
    .await?;
    product::is_complete(bed, NODES, product::ROLLED_OUT).await?;
    for version in 2..=5 {
        roll_to(bed, version).await?;
        product::is_complete(bed, NODES, product::ROLLED_OUT).await?;
    }
    keeps(bed, "the newest and two former ones", &[(3, 3), (4, 4), (5, 5)]).await?;
    bed.say("of five revisions the one that runs and two former ones are left");

    // A person keeps one node at what it runs. With a partition each revision chooses anew which nodes it comes to: when the nodes of one
    // are updated before the next comes, it can be another one that is kept, at a revision in between.
    let kept = bed.kubectl(&["get", "nodes", "-l", "ingress=true", "-o", "jsonpath={.items[0].metadata.name}"]).await?;
    bed.kubectl(&["annotate", "node", &kept, &format!("{SKIP_ANNOTATION}=default/{}", product::NAME)]).await?;
    // When this is seen, the annotation has long been seen as well.
    product::change(bed, json!({ "revisionHistoryLimit": 1 })).await?;
    keeps(bed, "the newest and a former one", &[(4, 4), (5, 5)]).await?;
    record(bed, 6..=8).await?;
    product::status_says(bed, "one node stays behind", product::SAID, |status| {
        status.nodes.updated == 2 && held(status, "Skipped") == BTreeSet::from([kept.clone()])
    })
    .await?;
    keeps(bed, "what a node runs stays beyond the limit, which counts unused ones", &[(5, 5), (7, 7), (8, 8)]).await?;
    product::change(bed, json!({ "revisionHistoryLimit": 0 })).await?;
    keeps(bed, "without a limit but none", &[(5, 5), (8, 8)]).await?;
    bed.say("a revision that one node runs stays, whatever the limit");

    roll_to(bed, 5).await?;
    product::is_complete(bed, NODES, product::ROLLED_OUT).await?;
    keeps(bed, "a former template is the newest under another number", &[(9, 5)]).await?;
    bed.kubectl(&["annotate", "node", &kept, &format!("{SKIP_ANNOTATION}-")]).await?;
    product::change(bed, json!({ "revisionHistoryLimit": 1 })).await?;
    roll_to(bed, 10).await?;
    product::is_complete(bed, NODES, product::ROLLED_OUT).await?;
    product::change(bed, json!({ "rollbackTo": { "revision": 9 } })).await?;
    record(bed, 11..=13).await?;
    keeps(bed, "what is pinned stays beyond the limit", &[(9, 5), (12, 12), (13, 13)]).await?;
    product::is_complete(bed, NODES, product::ROLLED_OUT).await?;
    let status = product::api(bed).get(product::NAME).await?.status.context("no status")?;
    ensure!(status.revisions.effective != status.revisions.update, "{:?}", status.revisions);
    product::change(bed, json!({ "rollbackTo": null })).await?;
    product::is_complete(bed, NODES, product::ROLLED_OUT).await?;
    keeps(bed, "and goes when it is neither pinned nor run", &[(12, 12), (13, 13)]).await?;
    bed.say("a revision that is pinned stays while it is");
    Ok(())
}
