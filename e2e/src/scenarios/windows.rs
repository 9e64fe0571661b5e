//! A window that closes while a node is under way, and opens again.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use chrono::{DateTime, DurationRound as _, TimeDelta, Utc};
use crds::IngressDaemonSetStatus;
use serde_json::json;

use crate::{
    auditor::{Expectations, Kind, Observation},
    bed::Bed,
    cluster::product::{self, GRACE, four_nodes, rolling_update},
    load::{LoadOptions, Traffic},
    scenario::Scenario,
    scenarios::canaries::held,
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

/// Seconds that a node is detached, at first: it is still out when the window closes.
const LONG_GRACE: u32 = 20;
/// The rollout begins so long before that: enough for a busy machine to detach a node.
const BEFORE: TimeDelta = TimeDelta::seconds(15);
/// Shorter than the window stays closed, longer than one node takes.
const PROGRESS_DEADLINE: u32 = 45;

/// The node under way finishes, no other starts, clocks stand still, and all goes on when the window opens again. Schedules know minutes,
/// so this one takes some.
pub const CLOSES: Scenario = Scenario {
    name: "a_closing_window_finishes_its_node_and_starts_no_other",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(closes(bed)),
};

async fn closes(bed: &mut Bed) -> Result<()> {
    let strategy = |grace: u32| rolling_update(1, json!({ "annotateDeploymentToDetach": { "gracePeriodSeconds": grace } }));
    product::serve(bed, strategy(LONG_GRACE), &NODES).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let closes = (Utc::now() + BEFORE).duration_trunc(TimeDelta::minutes(1))? + TimeDelta::minutes(1);
    let opens = closes + TimeDelta::minutes(1);
    let never = json!({ "schedule": closes.format("%-M %-H * * *").to_string(), "duration": "1m", "timeZone": "UTC", "deny": true });
    let course = json!({ "windows": [never], "progressDeadlineSeconds": PROGRESS_DEADLINE });
    product::change(bed, json!({ "updateStrategy": { "rollingUpdate": course } })).await?;
    // What is waited for is a time of day.
    tokio::time::sleep((closes - BEFORE - Utc::now()).to_std().unwrap_or_default()).await;
    product::roll_to(bed, "2").await?;
    let detached = product::status_says(bed, "a node is detached", product::SAID, |status| status.nodes.detached == 1).await?;
    let first = detached.rollout.as_ref().and_then(|ledger| ledger.grants.keys().next()).context("no node is under way")?.clone();
    ensure!(Utc::now() < closes, "the machine is too slow: the window has closed before {first} was detached");
    bed.say(&format!("{first} is under way, and the window closes at {}", closes.format("%H:%M")));

    let others: Vec<_> = NODES.into_iter().filter(|node| *node != first).map(str::to_owned).collect();
    let finished = |status: &IngressDaemonSetStatus| {
        status.nodes.updated == 1
            && status.rollout.as_ref().is_some_and(|ledger| ledger.grants.is_empty())
            && held(status, "OutsideWindow").into_iter().eq(others.iter().cloned())
    };
    let blocked = product::status_says(bed, "the node under way has finished, the others wait", product::SAID, |status| {
        finished(status) && status.blocked.as_ref().is_some_and(|blocked| blocked.reason == "OutsideWindow")
    })
    .await?;
    ensure!(Utc::now() < opens, "the machine is too slow: the window has opened before {first} was finished");
    ensure!(blocked.nodes.available == 4, "{}", product::summary(&blocked));
    let rest = (opens - TimeDelta::seconds(5) - Utc::now()).to_std().unwrap_or_default();
    product::status_stays(bed, "no other node is started, and nothing is late", rest, |status| {
        finished(status) && !status.conditions.iter().any(|condition| condition.reason == "ProgressDeadlineExceeded")
    })
    .await?;
    bed.say("it finished, and no other was started");

    product::change(bed, json!({ "updateStrategy": strategy(GRACE) })).await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    let granted = granted(&bed.recorder.history().await?);
    ensure!(granted.get(&first).is_some_and(|at| *at < closes), "{granted:?}");
    ensure!(others.iter().all(|node| granted.get(node).is_some_and(|at| *at >= opens)), "the window opens at {opens}: {granted:?}");
    bed.say("when it opened, the others followed by themselves");
    traffic.all_served(bed).await
}

/// When each node got its last permission.
fn granted(history: &[Observation]) -> BTreeMap<String, DateTime<Utc>> {
    let resources = history.iter().filter(|seen| seen.kind == Kind::IngressDaemonSet);
    let grants = resources.filter_map(|seen| seen.object["status"]["rollout"]["grants"].as_object()).flatten();
    let times = grants.filter_map(|(node, grant)| Some((node.clone(), DateTime::from_timestamp(grant["grantedAt"].as_i64()?, 0)?)));
    times.collect()
}
