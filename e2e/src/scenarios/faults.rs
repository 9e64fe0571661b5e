//! The API server's answers fail in every way, at every request of the operator. Watches hang, or nothing is reached.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::{Result, ensure};
use serde_json::json;

use crate::{
    bed::Bed,
    cluster::{
        detacher::{Detacher, Variant},
        operator_process::OperatorProcess,
        product,
    },
    eventually::throughout,
    faults::{Exchange, Fault, FaultProxy, Reached, Request},
    load::{LoadOptions, Traffic},
    scenario::Scenario,
    scenarios::crashes::{self, Mode, NODES, completes, expected, took_effect_once, two_nodes},
};

/// Each answer at the first attempt of every distinct request of an operator that starts and rolls out a version.
pub const EVERY_ANSWER: Scenario = Scenario {
    name: "every_request_may_fail_once_in_every_way",
    options: two_nodes,
    expected: || expected().watches_hang(),
    body: |bed| Box::pin(every_answer(bed)),
};

/// So short that a rollout of answers that never come is over within a test.
const SHORT: [&str; 2] = ["--request-timeout-seconds", "1"];

const FAULTS: [(&str, Fault); 8] = [
    ("409", Fault::Answer(409)),
    ("429", Fault::Answer(429)),
    ("500", Fault::Answer(500)),
    ("500 after the write", Fault::AnswerInstead(500)),
    ("no answer", Fault::Swallow(Reached::Nothing)),
    ("no answer after the write", Fault::Swallow(Reached::ApiServer)),
    ("reset", Fault::Reset(Reached::Nothing)),
    ("reset after the write", Fault::Reset(Reached::ApiServer)),
];

async fn every_answer(bed: &mut Bed) -> Result<()> {
    let (proxy, mut operator) = crashes::serve(bed, &SHORT).await?;
    let _detacher = Detacher::start(&bed.client, &bed.haproxy, Variant::Good);
    for (version, (name, fault)) in (2..).zip(FAULTS) {
        roll_through(bed, &proxy, &mut operator, version, name, fault).await?;
    }
    proxy.inject(|request| if request.is_write() && request.is_first() { Fault::Answer(422) } else { Fault::None });
    let before = proxy.log().len();
    roll(bed, &proxy, &mut operator, "422", 0, 10).await?;
    writes_met(&met(&proxy.log()[before..]), &["/status", "/deployments/", "/nodes/"])
}

fn writes_met(met: &BTreeSet<(String, String)>, paths: &[&str]) -> Result<()> {
    for path in paths {
        ensure!(met.iter().any(|(by, at)| by == "PATCH" && at.contains(path)), "no PATCH of {path} met the fault: {met:?}");
    }
    Ok(())
}

/// A new operator meets the fault at each first attempt, from its first list to the end of a rollout.
async fn roll_through(bed: &Bed, proxy: &FaultProxy, operator: &mut OperatorProcess, version: u32, name: &str, fault: Fault) -> Result<()> {
    operator.kill().await?;
    proxy.forget_operator();
    proxy.inject(move |request| if request.is_first() { fault } else { Fault::None });
    let before = proxy.log().len();
    operator.run()?;
    roll(bed, proxy, operator, name, 0, version).await?;
    let met = met(&proxy.log()[before..]);
    for path in ["/nodes", "/deployments", "/pods", "/replicasets", "/services", "/daemonsets", "/ingressdaemonsets"] {
        ensure!(met.iter().any(|(by, at)| by == "STREAM" && at.ends_with(path)), "no stream of all {path} met the fault: {met:?}");
    }
    ensure!(met.iter().any(|(by, at)| by == "PUT" && at.contains("/leases/")), "no lease met the fault: {met:?}");
    writes_met(&met, &["/status", "/deployments/", "/nodes/"])
}

/// Rolls out a version under load, of which so many requests may fail.
async fn roll(bed: &Bed, proxy: &FaultProxy, operator: &mut OperatorProcess, name: &str, may_fail: u64, version: u32) -> Result<()> {
    let started = std::time::Instant::now();
    let (before, log) = (bed.recorder.history().await?.len(), proxy.log().len());
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    product::roll_to(bed, &version.to_string()).await?;
    completes(bed, operator, NODES.len(), product::ROLLED_OUT).await?;
    traffic.loses_at_most(may_fail, bed).await?;
    took_effect_once(&bed.recorder.history().await?, before)?;
    let faults = proxy.log()[log..].iter().filter(|exchange| exchange.fault != Fault::None).count();
    bed.say(&format!("{name}: {faults} faults, {:.1} s", started.elapsed().as_secs_f32()));
    Ok(())
}

/// Every write of a rollout fails twice, in each mode; how, changes from write to write.
pub const EVERY_MODE: Scenario = Scenario {
    name: "writes_that_fail_twice_take_effect_once_in_every_mode",
    options: two_nodes,
    expected: || expected().watches_hang(),
    body: |bed| Box::pin(every_mode(bed)),
};

async fn every_mode(bed: &mut Bed) -> Result<()> {
    let (proxy, mut operator) = crashes::serve(bed, &SHORT).await?;
    let _detacher = Detacher::start(&bed.client, &bed.haproxy, Variant::Good);
    let mut ways = BTreeSet::new();
    for (version, mode) in (2..).zip(Mode::all()) {
        product::change(bed, json!({ "updateStrategy": mode.strategy })).await?;
        product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
        let turn = AtomicUsize::new(0);
        proxy.inject(move |request| {
            if request.is_step() && request.attempt <= 2 {
                FAULTS[turn.fetch_add(1, Ordering::Relaxed) % FAULTS.len()].1
            } else {
                Fault::None
            }
        });
        let before = proxy.log().len();
        roll(bed, &proxy, &mut operator, mode.name, mode.may_fail, version).await?;
        proxy.pass();
        let faulted = proxy.log().split_off(before).into_iter().filter(|exchange| exchange.fault != Fault::None);
        ways.extend(faulted.map(|exchange| format!("{:?}", exchange.fault)));
    }
    ensure!(ways.len() == FAULTS.len(), "only {ways:?} were met");
    Ok(())
}

/// Method and path of the requests that a fault met.
fn met(log: &[Exchange]) -> BTreeSet<(String, String)> {
    let faulted = log.iter().filter(|exchange| exchange.fault != Fault::None).map(|exchange| &exchange.request);
    let asked = |request: &Request| match (request.stream, request.watch) {
        (true, _) => "STREAM".to_owned(),
        (false, true) => "WATCH".to_owned(),
        (false, false) => request.method.to_string(),
    };
    faulted.map(|request| (asked(request), request.path.clone())).collect()
}

/// Watches that stay open and say nothing, and connections that are refused.
pub const CUT_OFF: Scenario = Scenario {
    name: "an_operator_with_hanging_watches_or_no_network_recovers",
    options: two_nodes,
    expected: || expected().watches_hang(),
    body: |bed| Box::pin(cut_off(bed)),
};

async fn cut_off(bed: &mut Bed) -> Result<()> {
    let (mut proxy, mut operator) = crashes::serve(bed, &[]).await?;
    let _detacher = Detacher::start(&bed.client, &bed.haproxy, Variant::Good);
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let under_way = |status: &crds::IngressDaemonSetStatus| status.nodes.detached == 1;
    product::roll_to(bed, "2").await?;
    product::status_says(bed, "a node is detached", product::SAID, under_way).await?;
    proxy.silence_watches();
    let silent = std::time::Instant::now();
    completes(bed, &mut operator, NODES.len(), product::ROLLED_OUT).await?;
    bed.say(&format!("complete {:.1} s after the watches had fallen silent", silent.elapsed().as_secs_f32()));

    product::roll_to(bed, "3").await?;
    product::status_says(bed, "a node is detached", product::SAID, under_way).await?;
    let watch = bed.haproxy.watch().await?;
    proxy.stop();
    throughout(Duration::from_secs(10), "the bed is whole while the operator reaches nothing", async || bed.check()).await?;
    watch.at_least(1).await?;
    proxy.resume().await?;
    let reached = std::time::Instant::now();
    completes(bed, &mut operator, NODES.len(), product::ROLLED_OUT).await?;
    bed.say(&format!("complete {:.1} s after the API server was reached again", reached.elapsed().as_secs_f32()));
    traffic.all_served(bed).await
}
