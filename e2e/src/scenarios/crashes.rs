//! The operator dies at every write of a rollout in turn, or is down in the middle of one.

use std::{
    collections::BTreeSet,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use crds::names;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::{
    auditor::{Expectations, Kind, Observation},
    bed::{Bed, Options},
    cluster::{
        detacher::{DETACHED_KEY, Detacher, Variant},
        effects::Effects,
        operator_process::{self, OperatorProcess},
        product::{self, both_marks, deployment_mark, node_mark, rolling_update},
        workload,
    },
    eventually::{eventually, throughout},
    faults::{Fault, FaultProxy, Reached, Request},
    load::{LoadOptions, Traffic},
    scenario::Scenario,
    scenarios::changes::DEGRADED,
};

pub(super) const NODES: [&str; 2] = ["n1", "n2"];
const MINUTE: Duration = Duration::from_mins(1);
/// Grace of every mark.
const GRACE: Duration = Duration::from_secs(product::GRACE as u64);

/// How soon an operator that ended is started again.
const REVIVE: Duration = Duration::from_secs(1);

pub(super) fn two_nodes() -> Options {
    Options::with_nodes(2).with_infra()
}

/// A way to take a node out of service, and the update strategy for it.
pub(super) struct Mode {
    pub(super) name: &'static str,
    pub(super) strategy: Value,
    /// Requests that may fail in a rollout: none where nodes are detached before their pods change.
    pub(super) may_fail: u64,
}

impl Mode {
    pub(super) fn both() -> Self {
        Self { name: "both marks", strategy: rolling_update(1, both_marks()), may_fail: 0 }
    }

    /// Without an annotation: the health check alone.
    pub(super) fn token() -> Self {
        let mut none = deployment_mark();
        none["annotateDeploymentToDetach"] = Value::Null;
        Self { name: "token alone", strategy: rolling_update(1, none), may_fail: 0 }
    }

    pub(super) fn degrade() -> Self {
        let without = json!({
            "maxDegradedNodes": 1, "maxUnavailablePodsPerNode": 1,
            "annotateDeploymentToDetach": null, "annotateNodeToDetach": null, "waitForDetachmentByAnnotatedTimestamp": null,
        });
        Self { name: "degrade mode", strategy: rolling_update(0, without), may_fail: DEGRADED }
    }

    pub(super) fn all() -> [Self; 6] {
        let detaching = |name, marks| Self { name, strategy: rolling_update(1, marks), may_fail: 0 };
        let mut node_alone = node_mark();
        node_alone["annotateNodeToDetach"] = json!({ "key": DETACHED_KEY, "value": "true", "gracePeriodSeconds": GRACE.as_secs() });
        node_alone["waitForDetachmentByAnnotatedTimestamp"] = Value::Null;
        [
            detaching("Deployment mark", deployment_mark()),
            Self::token(),
            detaching("Node mark", node_alone),
            detaching("Node mark with the detacher's time", node_mark()),
            Self::both(),
            Self::degrade(),
        ]
    }
}

/// What `HAProxy` needs to notice: the grace where no mark has one of its own, and how long a node must be back before the
/// other one goes.
pub(super) fn load_balancer() -> Value {
    json!({ "preset": "Custom", "interval": "500ms", "unhealthyThreshold": 2, "healthyThreshold": 1, "timeout": "1s" })
}

/// Every write of six rollouts, in all modes, is a moment at which the operator dies.
pub const AFTER_EVERY_WRITE: Scenario = Scenario {
    name: "an_operator_killed_after_every_write_repeats_none_of_them",
    options: two_nodes,
    expected,
    body: |bed| Box::pin(after_every_write(bed)),
};

pub(super) fn expected() -> Expectations {
    Expectations::budget(1)
}

async fn after_every_write(bed: &mut Bed) -> Result<()> {
    let (mut proxy, mut operator) = serve(bed, &[]).await?;
    let mut restarts = 0;
    for (version, mode) in (2..).zip(Mode::all()) {
        let rule = |request: &Request| if request.is_step() { Fault::Crash(Reached::ApiServer) } else { Fault::None };
        restarts += roll_through_crashes(bed, &mut proxy, &mut operator, &mode, version, rule).await?;
    }
    bed.say(&format!("{restarts} restarts"));
    ensure!(restarts >= 80, "only {restarts} writes were followed by a crash");
    is_quiet(bed, &proxy, NODES.len()).await
}

/// The same, but the API server does not get the write.
pub const BEFORE_EVERY_WRITE: Scenario = Scenario {
    name: "an_operator_killed_before_a_write_makes_it_next_time",
    options: two_nodes,
    expected,
    body: |bed| Box::pin(before_every_write(bed)),
};

async fn before_every_write(bed: &mut Bed) -> Result<()> {
    let (mut proxy, mut operator) = serve(bed, &[]).await?;
    let mut restarts = 0;
    for (version, mode) in (2..).zip([Mode::both(), Mode::degrade()]) {
        let rule = |request: &Request| if request.is_step() && request.is_first() { Fault::Crash(Reached::Nothing) } else { Fault::None };
        restarts += roll_through_crashes(bed, &mut proxy, &mut operator, &mode, version, rule).await?;
    }
    bed.say(&format!("{restarts} restarts"));
    ensure!(restarts >= 20, "only {restarts} writes were prevented by a crash");
    is_quiet(bed, &proxy, NODES.len()).await
}

/// The same from the first write for a resource to the last one, when it goes.
pub const FROM_FIRST_TO_LAST: Scenario = Scenario {
    name: "an_operator_killed_after_every_write_creates_and_removes_once",
    options: two_nodes,
    // Everything goes in the end: that is no rolling update.
    expected: || Expectations { budget: NODES.len(), ..expected() },
    body: |bed| Box::pin(from_first_to_last(bed)),
};

async fn from_first_to_last(bed: &mut Bed) -> Result<()> {
    bed.install().await?;
    operator_process::stop_pods(bed).await?;
    let mut proxy = FaultProxy::start(bed).await?;
    let mut operator = OperatorProcess::start_behind(bed, "scenario", &proxy, &[operator_process::SOLE]).await?;
    let _detacher = Detacher::start(&bed.client, &bed.haproxy, Variant::Good);
    // The health checker's objects are applied anew by each operator, so that only the first time is another step.
    let is_object = |request: &Request| request.is_write() && !["/leases", "/events"].iter().any(|other| request.path.contains(other));
    // Ids that a status write reserves are lost with the operator: dying at each of them it would do nothing but reserve.
    let statuses = Arc::new(AtomicU32::new(0));
    let rule = move |request: &Request| {
        let crashes = if request.path.ends_with("/status") {
            statuses.fetch_add(1, Ordering::Relaxed).is_multiple_of(2)
        } else {
            request.is_step() || is_object(request) && request.is_first()
        };
        if crashes { Fault::Crash(Reached::ApiServer) } else { Fault::None }
    };
    proxy.inject(rule.clone());
    bed.apply(&[workload::config_map("default"), product::resource("1", &Mode::both().strategy)]).await?;
    let made = while_crashing(&mut proxy, &mut operator, product::is_complete(bed, NODES.len(), product::ROLLED_OUT)).await?;
    let seen = |history: &[Observation], kind| -> BTreeSet<String> {
        let ours = history.iter().filter(|seen| seen.kind == kind && !seen.object["metadata"]["labels"][names::REVISION_LABEL].is_null());
        ours.filter_map(|seen| seen.object["metadata"]["uid"].as_str().map(str::to_owned)).collect()
    };
    let history = bed.recorder.history().await?;
    let (deployments, pods) = (seen(&history, Kind::Deployment).len(), seen(&history, Kind::Pod).len());
    ensure!(pods == 2 * NODES.len(), "{pods} pods were made for {} nodes of 2", NODES.len());
    let members = bed.kubectl(&["get", "deployments", "-o", "name"]).await?.lines().count();
    ensure!(members == NODES.len(), "there are {members} Deployments");
    ensure!(deployments <= NODES.len(), "{deployments} Deployments were made");
    bed.haproxy.serves(MINUTE, &NODES).await?;

    proxy.inject(rule);
    product::api(bed).delete(product::NAME, &DeleteParams::default()).await?;
    let gone = eventually(MINUTE * 4, "the resource and what belongs to it are gone", async || {
        ensure!(product::api(bed).get_opt(product::NAME).await?.is_none(), "the resource is still there");
        let left = bed.kubectl(&["get", "deployments,daemonsets,pods", "-o", "name"]).await?;
        ensure!(left.trim().is_empty(), "{left}");
        Ok(())
    });
    let removed = while_crashing(&mut proxy, &mut operator, gone).await?;
    bed.say(&format!("{made} restarts until it served, {removed} until it was gone"));
    ensure!(made >= 10 && removed >= 5, "too few writes were followed by a crash");
    Ok(())
}

/// Nothing acts for a minute.
pub const DOWN: Scenario =
    Scenario { name: "a_minute_without_an_operator_makes_nothing_worse", options: two_nodes, expected, body: |bed| Box::pin(down(bed)) };

async fn down(bed: &mut Bed) -> Result<()> {
    let (proxy, mut operator) = serve(bed, &[]).await?;
    let _detacher = Detacher::start(&bed.client, &bed.haproxy, Variant::Good);
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let before = bed.recorder.history().await?.len();
    product::roll_to(bed, "2").await?;
    product::status_says(bed, "a node is detached", product::SAID, |status| status.nodes.detached == 1).await?;
    operator.kill().await?;
    proxy.forget_operator();
    let serving = async || -> Result<Vec<String>> {
        let servers = bed.haproxy.counters().await?.servers;
        Ok(servers.into_iter().filter(|(_, server)| server.takes_traffic()).map(|(name, _)| name).collect())
    };
    eventually(MINUTE, "the load balancer has noticed", async || {
        let now = serving().await?;
        ensure!(now.len() == 1, "{now:?} serve");
        Ok(())
    })
    .await?;
    let noticed = serving().await?;
    let watch = bed.haproxy.watch().await?;
    throughout(MINUTE, "the bed is whole while nothing acts", async || bed.check()).await?;
    let noticed: Vec<_> = noticed.iter().map(String::as_str).collect();
    watch.exactly(&noticed).await?;
    operator.run()?;
    completes(bed, &mut operator, NODES.len(), product::ROLLED_OUT).await?;
    traffic.all_served(bed).await?;
    took_effect_once(&bed.recorder.history().await?, before)
}

/// Version 1 serves, made by an operator behind a proxy.
pub(super) async fn serve(bed: &Bed, arguments: &[&str]) -> Result<(FaultProxy, OperatorProcess)> {
    serve_on(bed, &NODES, arguments).await
}

/// The same on these nodes.
pub(super) async fn serve_on(bed: &Bed, nodes: &[&str], arguments: &[&str]) -> Result<(FaultProxy, OperatorProcess)> {
    product::serve(bed, Mode::both().strategy, nodes).await?;
    product::change(bed, json!({ "loadBalancer": load_balancer() })).await?;
    operator_process::stop_pods(bed).await?;
    let proxy = FaultProxy::start(bed).await?;
    let operator = OperatorProcess::start_behind(bed, "scenario", &proxy, arguments).await?;
    Ok((proxy, operator))
}

/// Rolls out a version; returns how often the operator was killed meanwhile.
async fn roll_through_crashes(
    bed: &Bed,
    proxy: &mut FaultProxy,
    operator: &mut OperatorProcess,
    mode: &Mode,
    version: u32,
    rule: fn(&Request) -> Fault,
) -> Result<u32> {
    product::change(bed, json!({ "updateStrategy": mode.strategy })).await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    let _detacher = Detacher::start(&bed.client, &bed.haproxy, Variant::Good);
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let before = bed.recorder.history().await?.len();
    proxy.inject(rule);
    product::roll_to(bed, &version.to_string()).await?;
    let restarts = while_crashing(proxy, operator, product::is_complete(bed, NODES.len(), product::ROLLED_OUT)).await?;
    let history = bed.recorder.history().await?;
    took_effect_once(&history, before)?;
    bed.say(&format!("{}: {restarts} restarts", mode.name));
    traffic.loses_at_most(mode.may_fail, bed).await?;
    Ok(restarts)
}

/// Kills the operator at each write that is caught and starts it again, until this has come about; then everything passes. Returns how
/// often.
pub(super) async fn while_crashing(
    proxy: &mut FaultProxy,
    operator: &mut OperatorProcess,
    done: impl Future<Output = Result<()>>,
) -> Result<u32> {
    let mut restarts = 0;
    let mut done = pin!(done);
    loop {
        tokio::select! {
            done = &mut done => {
                done?;
                proxy.pass();
                // The last write itself may be what brought it about: it was caught, too.
                if !proxy.is_crashing() {
                    return Ok(restarts);
                }
                proxy.caught().await?;
                operator.kill().await?;
                proxy.forget_operator();
                operator.run()?;
                return Ok(restarts + 1);
            }
            caught = proxy.caught() => caught?,
            () = tokio::time::sleep(REVIVE) => {
                operator.revive()?;
                continue;
            }
        };
        operator.kill().await?;
        proxy.forget_operator();
        operator.run()?;
        restarts += 1;
    }
}

/// As [`product::is_complete`], with an operator that is started again when it ends.
pub(super) async fn completes(bed: &Bed, operator: &mut OperatorProcess, nodes: usize, deadline: Duration) -> Result<()> {
    let mut complete = Box::pin(product::is_complete(bed, nodes, deadline));
    loop {
        match tokio::time::timeout(REVIVE, &mut complete).await {
            Ok(done) => return done,
            Err(_) => operator.revive()?,
        }
    }
}

/// Since `before` observations there was one rollout, in which every node got one grant, one new template and its pods once.
pub(super) fn took_effect_once(history: &[Observation], before: usize) -> Result<()> {
    Effects::since(history, before)?.are_of_one_rollout(&NODES)
}

/// Nothing more is written once everything is complete on so many nodes.
pub(super) async fn is_quiet(bed: &Bed, proxy: &FaultProxy, nodes: usize) -> Result<()> {
    product::is_complete(bed, nodes, product::ROLLED_OUT).await?;
    let steps = || proxy.log().iter().filter(|exchange| exchange.request.is_step()).count();
    // What was complete may still be said, once.
    let before = steps();
    throughout(Duration::from_secs(4), "nothing is written", async || {
        let now = steps();
        ensure!(now <= before + 1, "{} writes", now - before);
        Ok(())
    })
    .await
}
