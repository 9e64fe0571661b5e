//! The operator's clock is set in the middle of a rollout. It counts the seconds for which it watched, and those do not step.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use crds::{
    IngressDaemonSetStatus, names,
    token::{Phase, Token},
};
use serde_json::{Value, json};

use crate::{
    auditor::{Expectations, Kind, Observation},
    bed::Bed,
    cluster::{
        effects::Effects,
        operator_process::{self, Clock, OperatorProcess, Program},
        product::{self, four_nodes, has_condition, rolling_update},
    },
    load::{LoadOptions, Traffic},
    scenario::Scenario,
    scenarios::outages::{roll_slowly_to, shows},
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
/// Seconds of each: long enough to be seen, and for the clock to be set within them.
const GRACE: u32 = 6;
const SOAK: u32 = 5;
const PROVEN: u32 = 8;
/// Seconds that a node may take, and that may pass between two that are finished: an hour is longer than both.
const NODE_DEADLINE: u32 = 60;
const PROGRESS_DEADLINE: u32 = 120;
/// Seconds by which the clock steps: forth, and back.
const FORTH: i64 = 3600;
const BACK: i64 = -FORTH;
/// By how much a time that the operator wrote may differ from the one at which it was seen, its clock aside.
const SEEN_WITHIN: i64 = 300;
/// What a watch may be late by, and what whole seconds cut off.
const LATE: TimeDelta = TimeDelta::milliseconds(1500);

/// The operator's clock steps by an hour, forth and back, each time while something is counted. The bed's certificates are valid from 1975
/// to 4096, so that TLS does not mind.
pub const STEPS: Scenario = Scenario {
    name: "clock_steps_shorten_no_wait_and_change_no_verdict",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(steps(bed)),
};

/// When the clock is set.
#[derive(Clone, Copy, Debug)]
enum When {
    /// A node's token shows this.
    Shows(Phase),
    /// A node's state has this reason.
    Waits(&'static str),
    /// All nodes are updated, and the revision is not the current one yet.
    Proves,
}

/// The moments, in the order in which a rollout has them, and how far the clock is ahead from then on.
const SETS: [(When, i64); 10] = [
    // The first node: its grace, its deadline, its soak, and the proof.
    (When::Shows(Phase::Claimed), FORTH),
    (When::Shows(Phase::Updating), 0),
    (When::Waits("AttachSoak"), BACK),
    (When::Waits("Proving"), FORTH),
    // The second one.
    (When::Shows(Phase::Claimed), 0),
    (When::Shows(Phase::Updating), FORTH),
    // The third one.
    (When::Shows(Phase::Claimed), BACK),
    (When::Waits("AttachSoak"), 0),
    // The fourth one.
    (When::Shows(Phase::Updating), FORTH),
    (When::Proves, BACK),
];

async fn steps(bed: &mut Bed) -> Result<()> {
    let strategy = rolling_update(
        1,
        json!({
            "annotateDeploymentToDetach": { "gracePeriodSeconds": GRACE }, "attachSoakSeconds": SOAK, "provenAfterSeconds": PROVEN,
            "nodeDeadlineSeconds": NODE_DEADLINE, "progressDeadlineSeconds": PROGRESS_DEADLINE, "autoRollback": true,
        }),
    );
    product::serve(bed, strategy, &NODES).await?;
    operator_process::stop_pods(bed).await?;
    let clock = Clock::new(bed, "operator")?;
    let mut operator = OperatorProcess::start_program(bed, "scenario", clock.over(Program::of_workspace()?)).await?;
    let from = bed.recorder.history().await?.len();
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let watch = bed.haproxy.watch().await?;
    roll_slowly_to(bed, "2").await?;
    for (when, ahead) in SETS {
        comes(bed, when).await?;
        clock.set(ahead)?;
        bed.say(&format!("{when:?}: the operator's clock is set {ahead:+} s"));
    }
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    operator.check()?;
    let history = bed.recorder.history().await?;
    Effects::since(&history, from)?.changed_once(&NODES)?;
    let history = &history[from..];
    stepped(history)?;
    waits_are_whole(bed, history)?;
    nobody_is_late(history)?;
    product::nothing_failed(bed, from).await?;
    watch.at_least(3).await?;
    traffic.all_served(bed).await
}

async fn comes(bed: &Bed, when: When) -> Result<()> {
    let says = |status: &IngressDaemonSetStatus| match when {
        When::Waits(reason) => status.node_states.iter().any(|state| state.reason == reason),
        _ => has_condition(status, "Progressing", "True", "Proving"),
    };
    match when {
        When::Shows(phase) => shows(bed, phase).await.map(drop),
        When::Waits(_) | When::Proves => product::status_says(bed, &format!("{when:?}"), product::SAID, says).await.map(drop),
    }
}

/// The operator believed the clock: what it wrote is of all three times.
fn stepped(history: &[Observation]) -> Result<()> {
    let tokens = history.iter().filter_map(|seen| Some((seen.at, token(seen)?.1)));
    let ahead: BTreeSet<_> = tokens.map(|(at, token)| token.since - at.timestamp()).collect();
    for wanted in [BACK, 0, FORTH] {
        let near = |ahead: &i64| ahead.abs_diff(wanted) <= SEEN_WITHIN.unsigned_abs();
        ensure!(ahead.iter().any(near), "no token was written {wanted:+} s ahead: {ahead:?}");
    }
    Ok(())
}

/// What each node was seen at, of its update.
#[derive(Debug, Default)]
struct Update {
    claimed: Option<DateTime<Utc>>,
    updating: Option<DateTime<Utc>>,
    closed: Option<DateTime<Utc>>,
    released: Option<DateTime<Utc>>,
}

/// The load balancer had its grace before the pods of each node changed, and its soak before the next node was begun.
fn waits_are_whole(bed: &Bed, history: &[Observation]) -> Result<()> {
    let mut updates: BTreeMap<&str, Update> = BTreeMap::new();
    for seen in history {
        if let Some((node, token)) = token(seen) {
            let update = updates.entry(node).or_default();
            match token.phase {
                Phase::Claimed => update.claimed.get_or_insert(seen.at),
                Phase::Updating => update.updating.get_or_insert(seen.at),
                // As it was before the rollout.
                Phase::Closed if update.updating.is_some() => update.closed.get_or_insert(seen.at),
                _ => continue,
            };
        }
        for (node, update) in updates.iter_mut().filter(|(_, update)| seen.kind == Kind::IngressDaemonSet && update.closed.is_some()) {
            if seen.object["status"]["rollout"]["grants"][*node].is_null() {
                update.released.get_or_insert(seen.at);
            }
        }
    }
    for node in NODES {
        let update = updates.get(node).with_context(|| format!("{node} was not updated"))?;
        let between = |from: Option<DateTime<Utc>>, to: Option<DateTime<Utc>>| Some(to? - from?);
        let grace = between(update.claimed, update.updating).with_context(|| format!("{node}: {update:?}"))?;
        let soak = between(update.closed, update.released).with_context(|| format!("{node}: {update:?}"))?;
        for (what, was, wanted) in [("grace period", grace, GRACE), ("soak", soak, SOAK)] {
            let seconds = was.as_seconds_f32();
            ensure!(was + LATE >= TimeDelta::seconds(wanted.into()), "the {what} of {node} took {seconds:.1} s, not {wanted}");
        }
        bed.say(&format!("{node}: a grace period of {:.1} s, a soak of {:.1} s", grace.as_seconds_f32(), soak.as_seconds_f32()));
    }
    Ok(())
}

/// The token that a node's Deployment shows.
fn token(seen: &Observation) -> Option<(&str, Token)> {
    let metadata = Some(&seen.object["metadata"]).filter(|_| seen.kind == Kind::Deployment)?;
    let node = metadata["annotations"][names::NODE_NAME_ANNOTATION].as_str()?;
    Some((node, metadata["labels"][names::TOKEN_LABEL].as_str()?.parse().ok()?))
}

/// Nothing was late, broken or stalled, for a moment.
fn nobody_is_late(history: &[Observation]) -> Result<()> {
    for seen in history.iter().filter(|seen| seen.kind == Kind::IngressDaemonSet) {
        let status = &seen.object["status"];
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let bad = |condition: &&Value| condition["type"] == "Stalled" && condition["status"] == "True";
        let stalled: Vec<_> = conditions.filter(bad).collect();
        ensure!(stalled.is_empty(), "{stalled:?}");
        ensure!(status["rollout"]["suspects"].is_null() && status["nodes"]["failed"] == 0, "{status}");
    }
    Ok(())
}
