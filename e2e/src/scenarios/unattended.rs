//! Rollouts that nobody looks after: a canary, a budget for each zone, and the way back by itself, while operators die or rival.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use crate::{
    auditor::{Expectations, Kind, Observation, Share},
    bed::Bed,
    cluster::{
        detacher::{Detacher, Variant},
        effects::Effects,
        operator_process::OperatorProcess,
        product::{self, both_marks, four_nodes, has_condition, rolling_update},
    },
    faults::{Fault, FaultProxy, Reached, Request},
    load::{LoadOptions, Traffic},
    scenario::Scenario,
    scenarios::{
        crashes::{self, is_quiet, serve_on, while_crashing},
        two_operators::{Rule, slow_view, slow_writes, watches},
    },
};

/// `n1` and `n3` are in one zone, `n2` and `n4` in the other.
const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
const ZONE_KEY: &str = "topology.kubernetes.io/zone";
/// Nodes in all, and seconds, of each step.
const STEPS: [(usize, i64); 2] = [(1, 2), (3, 1)];
/// Seconds in which a node is complete, also while the operator dies all the time.
const LONG: u32 = 60;
/// Seconds after which a node has failed that cannot be complete.
const SHORT: u32 = 4;

fn strategy(node_deadline: u32) -> Value {
    let mut rolling = both_marks();
    rolling["topology"] = json!({ "key": ZONE_KEY, "maxUnavailableNodes": "50%" });
    rolling["steps"] = STEPS.iter().map(|(nodes, soak)| json!({ "nodes": nodes, "soak": format!("{soak}s") })).collect();
    rolling["nodeDeadlineSeconds"] = node_deadline.into();
    rolling["autoRollback"] = true.into();
    rolling_update(2, rolling)
}

fn expected() -> Expectations {
    Expectations { budget: 2, domain: Some((ZONE_KEY.into(), Share::Percent(50))), ..crashes::expected() }
}

/// A canary with zones and a bad revision that is rolled back: every write is a moment at which the operator dies.
pub const KILLED: Scenario = Scenario {
    name: "an_operator_killed_after_every_write_finishes_canary_and_rollback",
    options: four_nodes,
    expected,
    body: |bed| Box::pin(killed(bed)),
};

async fn killed(bed: &mut Bed) -> Result<()> {
    let (mut proxy, mut operator) = serve_on(bed, &NODES, &[]).await?;
    let _detacher = Detacher::start(&bed.client, &bed.haproxy, Variant::Good);
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let crash = |request: &Request| if request.is_step() { Fault::Crash(Reached::ApiServer) } else { Fault::None };

    let from = prepare(bed, LONG).await?;
    proxy.inject(crash);
    product::roll_to(bed, "2").await?;
    let forth = while_crashing(&mut proxy, &mut operator, product::is_complete(bed, NODES.len(), product::ROLLED_OUT)).await?;
    went_through(&bed.recorder.history().await?, from)?;
    bed.say(&format!("a good revision went through steps and zones: {forth} restarts"));

    let from = prepare(bed, SHORT).await?;
    proxy.inject(crash);
    let good = roll_to_a_bad_one(bed).await?;
    let back = while_crashing(&mut proxy, &mut operator, is_back(bed, &good)).await?;
    went_back(&bed.recorder.history().await?, from, &good)?;
    bed.say(&format!("a bad one failed on its canary and was taken back: {back} restarts"));

    ensure!(forth >= 30 && back >= 12, "only {forth} and {back} writes were followed by a crash");
    traffic.all_served(bed).await?;
    is_quiet(bed, &proxy, NODES.len()).await
}

/// A canary with zones and a bad revision that is rolled back, by two operators at once, each with its own delays.
pub const RIVALS: Scenario = Scenario {
    name: "two_operators_at_once_finish_canary_and_rollback",
    options: four_nodes,
    expected: || expected().watches_hang(),
    body: |bed| Box::pin(rivals(bed)),
};

async fn rivals(bed: &mut Bed) -> Result<()> {
    let (first, mut operator) = serve_on(bed, &NODES, &["--no-leader-election"]).await?;
    let second = FaultProxy::start(bed).await?;
    let mut rival = OperatorProcess::start_behind(bed, "rival", &second, &["--no-leader-election"]).await?;
    watches(&second).await?;
    let _detacher = Detacher::start(&bed.client, &bed.haproxy, Variant::Good);
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let both_act = |before: (usize, usize)| {
        let steps = |proxy: &FaultProxy, before: usize| proxy.log()[before..].iter().filter(|exchange| exchange.request.is_step()).count();
        let (one, other) = (steps(&first, before.0), steps(&second, before.1));
        ensure!(one > 0 && other > 0, "one of the two did nothing: {one} and {other} writes");
        Ok(format!("{one} and {other} writes"))
    };

    let from = prepare(bed, LONG).await?;
    first.inject(slow_writes as Rule);
    second.inject(slow_view as Rule);
    let before = (first.log().len(), second.log().len());
    product::roll_to(bed, "2").await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    went_through(&bed.recorder.history().await?, from)?;
    bed.say(&format!("a good revision went through steps and zones: {}", both_act(before)?));

    let from = prepare(bed, SHORT).await?;
    first.inject(slow_view as Rule);
    second.inject(slow_writes as Rule);
    let before = (first.log().len(), second.log().len());
    let good = roll_to_a_bad_one(bed).await?;
    is_back(bed, &good).await?;
    went_back(&bed.recorder.history().await?, from, &good)?;
    bed.say(&format!("a bad one failed on its canary and was taken back: {}", both_act(before)?));

    traffic.all_served(bed).await?;
    operator.check()?;
    rival.check()
}

/// All is complete under these settings; returns the length of the history.
async fn prepare(bed: &Bed, node_deadline: u32) -> Result<usize> {
    product::change(bed, json!({ "updateStrategy": strategy(node_deadline) })).await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    Ok(bed.recorder.history().await?.len())
}

/// Returns the revision that all nodes run before that.
async fn roll_to_a_bad_one(bed: &Bed) -> Result<String> {
    let good = product::api(bed).get(product::NAME).await?.status.context("no status")?.revisions.current;
    product::roll_to_missing_image(bed).await?;
    Ok(good)
}

async fn is_back(bed: &Bed, good: &str) -> Result<()> {
    product::status_says(bed, "the revision fails and the one before runs in its place", product::ROLLED_OUT, |status| {
        has_condition(status, "RolledBack", "True", "RevisionFailed")
            && status.revisions.effective == good
            && status.revisions.update != good
    })
    .await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await
}

/// Each node got the new revision once, and none before its step.
fn went_through(history: &[Observation], from: usize) -> Result<()> {
    Effects::since(history, from)?.are_of_one_rollout(&NODES)?;
    let mut reached: BTreeSet<&str> = BTreeSet::new();
    // The present step, and since when its nodes were seen to soak.
    let mut last: (usize, Option<DateTime<Utc>>) = (0, None);
    for seen in history[from..].iter().filter(|seen| seen.kind == Kind::IngressDaemonSet) {
        let status = &seen.object["status"];
        ensure!(status["rollout"]["rolledBack"].is_null(), "a good revision was taken back: {status}");
        let (course, grants) = (&status["rollout"]["course"], &status["rollout"]["grants"]);
        if course["revision"] != status["revisions"]["update"] || status["revisions"]["update"] == status["revisions"]["current"] {
            continue;
        }
        reached.extend(grants.as_object().into_iter().flat_map(|grants| grants.keys().map(String::as_str)));
        let done = usize::try_from(course["stepsDone"].as_u64().unwrap_or(0))?;
        let known = last.1.filter(|_| last.0 == done);
        let since = (!course["soaked"].is_null()).then(|| known.unwrap_or(seen.at));
        let may = STEPS.get(done).map_or(NODES.len(), |(nodes, _)| *nodes);
        ensure!(reached.len() <= may, "{reached:?} were reached when {done} steps were done");
        if done != last.0 {
            let soak = last.1.zip(STEPS.get(last.0)).map(|(since, (_, soak))| since + TimeDelta::seconds(*soak));
            // Either may have been seen a moment late.
            let soaked = soak.is_some_and(|until| seen.at >= until - TimeDelta::seconds(1));
            ensure!(done == last.0 + 1 && soaked, "after step {} with {:?} came {done} at {}", last.0, last.1, seen.at);
        }
        last = (done, since);
    }
    ensure!(reached.len() == NODES.len() && last.0 == STEPS.len(), "{reached:?}, {} steps", last.0);
    Ok(())
}

/// One node got the bad revision, once, and went back, once; no other was touched.
fn went_back(history: &[Observation], from: usize, good: &str) -> Result<()> {
    let effects = Effects::since(history, from)?;
    let granted = effects.granted();
    let [canary] = granted[..] else { anyhow::bail!("the bad revision reached {granted:?}") };
    let ran = effects.revisions(canary);
    ensure!(matches!(ran[..], [before, bad, after] if before == good && after == good && bad != good), "{canary} ran {ran:?}");
    // The one back takes the place of the one forth.
    ensure!(effects.grants(canary) == 2, "{canary} got {} grants", effects.grants(canary));
    for node in NODES.iter().filter(|node| **node != canary) {
        ensure!(effects.revisions(node) == [good], "{node} ran {:?}", effects.revisions(node));
    }
    let made = effects.pods();
    ensure!(made.len() == 2 && made.values().all(|pods| *pods == 2), "pods were {made:?}");
    let resources = history[from..].iter().filter(|seen| seen.kind == Kind::IngressDaemonSet);
    let decided: BTreeSet<_> =
        resources.map(|seen| &seen.object["status"]["rollout"]["rolledBack"]).filter(|one| !one.is_null()).map(Value::to_string).collect();
    ensure!(decided.len() == 1, "it was decided to go back more than once: {decided:?}");
    Ok(())
}
