//! Two operators: both act, or one leads and the other takes over, also from one that only seems dead.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use crds::names;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    auditor::{Kind, Observation},
    bed::{Bed, operator},
    cluster::{
        detacher::{Detacher, Variant},
        effects::Effects,
        operator_process::{self, OperatorProcess},
        product, workload,
    },
    eventually::eventually,
    faults::{Exchange, Fault, FaultProxy, Request},
    scenario::Scenario,
    scenarios::crashes::{self, Mode, NODES, expected, took_effect_once, two_nodes},
};

const MINUTE: Duration = Duration::from_mins(1);

/// Without leader election, each with its own delays.
pub const TWO_AT_ONCE: Scenario = Scenario {
    name: "two_operators_at_once_keep_the_budget_and_finish",
    options: two_nodes,
    expected: || expected().watches_hang(),
    body: |bed| Box::pin(two_at_once(bed)),
};

/// Writes of two operators that were taken, for each that one alone makes: a status may be written by both.
const TAKEN_AT_MOST: usize = 2;
/// Writes with those that were refused: a look at the past is refused once, and again every second while it lasts.
const WRITES_AT_MOST: usize = 4;

async fn two_at_once(bed: &mut Bed) -> Result<()> {
    let (first, mut operator) = crashes::serve(bed, &["--no-leader-election"]).await?;
    let _detacher = Detacher::start(&bed.client, &bed.haproxy, Variant::Good);
    let modes = || [Mode::both(), Mode::degrade()];
    let mut alone = Vec::new();
    for (version, mode) in (2..).zip(modes()) {
        let before = first.log().len();
        roll(bed, &mode, version).await?;
        alone.push(steps(&first, before).0);
    }
    let second = FaultProxy::start(bed).await?;
    let mut rival = OperatorProcess::start_behind(bed, "rival", &second, &["--no-leader-election"]).await?;
    watches(&second).await?;
    let mut version = 10;
    for (round, (of_first, of_second)) in [(slow_writes as Rule, slow_view as Rule), (slow_view, slow_writes)].into_iter().enumerate() {
        first.inject(of_first);
        second.inject(of_second);
        for (mode, alone) in modes().into_iter().zip(&alone) {
            let before = (first.log().len(), second.log().len());
            roll(bed, &mode, version).await?;
            let [(one, of_one), (other, of_other)] = [steps(&first, before.0), steps(&second, before.1)];
            let writes = format!("{one} and {other} writes, {of_one} and {of_other} of them taken, {alone} of one alone");
            bed.say(&format!("round {round}, {}: {writes}", mode.name));
            ensure!(one > 0 && other > 0, "one of the two did nothing");
            ensure!(of_one + of_other <= TAKEN_AT_MOST * alone && one + other <= WRITES_AT_MOST * alone, "{writes}");
            version += 1;
        }
    }
    operator.check()?;
    rival.check()
}

pub(super) type Rule = fn(&Request) -> Fault;

/// Waits until the operator behind the proxy has asked for what it decides by.
pub(super) async fn watches(proxy: &FaultProxy) -> Result<()> {
    eventually(MINUTE, "the operator watches", async || {
        let log = proxy.log();
        for path in ["/ingressdaemonsets", "/deployments", "/pods", "/nodes"] {
            let asked = |exchange: &Exchange| (exchange.request.watch || exchange.request.stream) && exchange.request.path.ends_with(path);
            ensure!(log.iter().any(asked), "it has not asked for {path}");
        }
        Ok(())
    })
    .await
}

/// What it does comes late.
pub(super) fn slow_writes(request: &Request) -> Fault {
    if request.is_write() { Fault::Delay(Duration::from_millis(300)) } else { Fault::None }
}

/// What it sees is of some time ago.
pub(super) fn slow_view(request: &Request) -> Fault {
    if request.watch { Fault::Delay(Duration::from_millis(800)) } else { Fault::None }
}

async fn roll(bed: &Bed, mode: &Mode, version: u32) -> Result<()> {
    product::change(bed, json!({ "updateStrategy": mode.strategy })).await?;
    product::is_complete(bed, 2, product::ROLLED_OUT).await?;
    let before = bed.recorder.history().await?.len();
    product::roll_to(bed, &version.to_string()).await?;
    product::is_complete(bed, 2, product::ROLLED_OUT).await?;
    took_effect_once(&bed.recorder.history().await?, before)
}

/// Writes, and how many of them the API server took.
fn steps(proxy: &FaultProxy, before: usize) -> (usize, usize) {
    let log = proxy.log();
    let taken = |exchange: &&Exchange| exchange.forwarded.is_some_and(|code| code < 400);
    let steps = log[before..].iter().filter(|exchange| exchange.request.is_step());
    (steps.clone().count(), steps.filter(taken).count())
}

/// Two operators behind proxies, one of which leads.
struct Pair {
    proxies: [FaultProxy; 2],
    operators: [OperatorProcess; 2],
}

/// Of the pairs here; the default is longer.
const LEASE: Duration = Duration::from_secs(6);

impl Pair {
    async fn start(bed: &Bed) -> Result<Self> {
        let seconds = LEASE.as_secs().to_string();
        let arguments = ["--lease-duration-seconds", &seconds];
        let (first, leading) = crashes::serve(bed, &arguments).await?;
        let second = FaultProxy::start(bed).await?;
        let waiting = OperatorProcess::start_behind(bed, "rival", &second, &arguments).await?;
        Ok(Self { proxies: [first, second], operators: [leading, waiting] })
    }

    /// Which of the two holds the lease.
    async fn leader(&self, bed: &Bed) -> Result<usize> {
        let api = Api::<Lease>::namespaced(bed.client.clone(), operator::NAMESPACE);
        let holder = api.get(operator::NAME).await?.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        self.operators.iter().position(|operator| operator.identity() == holder).with_context(|| format!("`{holder}` holds the lease"))
    }

    /// Waits until the other one leads; returns how long that took.
    async fn takes_over_from(&self, bed: &Bed, old: usize, deadline: Duration) -> Result<Duration> {
        let started = Instant::now();
        eventually(deadline, "the other operator leads", async || {
            let now = self.leader(bed).await?;
            ensure!(now != old, "{} still does", self.operators[old].identity());
            Ok(())
        })
        .await?;
        Ok(started.elapsed())
    }

    /// Both run.
    fn revive(&mut self) -> Result<()> {
        self.operators.iter_mut().try_for_each(OperatorProcess::revive)
    }

    /// The next request of either that is held, and whose it is.
    async fn caught(&mut self) -> Result<(usize, Request)> {
        let [first, second] = &mut self.proxies;
        let caught = async {
            tokio::select! {
                held = first.caught() => held.map(|held| (0, held)),
                held = second.caught() => held.map(|held| (1, held)),
            }
        };
        tokio::time::timeout(MINUTE * 3, caught).await.context("no such write was made")?
    }

    /// Waits until this one has ended by itself.
    async fn loses_its_lease(&mut self, index: usize) -> Result<()> {
        eventually(MINUTE, "the operator that lost the lease ends", async || {
            ensure!(self.operators[index].has_lost_its_lease()?, "it runs");
            Ok(())
        })
        .await
    }

    /// As its kubelet would.
    fn restart(&mut self, index: usize) -> Result<()> {
        self.proxies[index].forget_operator();
        self.operators[index].run()
    }
}

/// Rolls out a version until a node is detached.
async fn begin(bed: &Bed, version: &str) -> Result<()> {
    product::roll_to(bed, version).await?;
    product::status_says(bed, "a node is detached", product::SAID, |status| status.nodes.detached == 1).await.map(drop)
}

/// In the middle of a rollout the leader ends orderly, is killed, and is stopped. It is replaced within its lease.
pub const LEADERS: Scenario = Scenario {
    name: "a_leader_hands_over_in_a_second_or_is_replaced",
    options: two_nodes,
    expected: || expected().watches_hang(),
    body: |bed| Box::pin(leaders(bed)),
};

async fn leaders(bed: &mut Bed) -> Result<()> {
    let mut pair = Pair::start(bed).await?;
    let _detacher = Detacher::start(&bed.client, &bed.haproxy, Variant::Good);
    let endings = [(Signal::SIGTERM, Duration::from_secs(1)), (Signal::SIGKILL, LEASE), (Signal::SIGSTOP, LEASE)];
    for (version, (signal, within)) in (2..).zip(endings) {
        pair.revive()?;
        let before = bed.recorder.history().await?.len();
        begin(bed, &version.to_string()).await?;
        let old = pair.leader(bed).await?;
        pair.operators[old].signal(signal)?;
        let took = pair.takes_over_from(bed, old, within).await?;
        bed.say(&format!("{signal}: the other one leads after {:.2} s", took.as_secs_f32()));
        product::is_complete(bed, 2, product::ROLLED_OUT).await?;
        took_effect_once(&bed.recorder.history().await?, before)?;
        match signal {
            Signal::SIGTERM => pair.operators[old].ends().await?,
            Signal::SIGKILL => pair.operators[old].kill().await?,
            _ => {
                pair.operators[old].signal(Signal::SIGCONT)?;
                pair.loses_its_lease(old).await?;
            }
        }
        pair.restart(old)?;
    }
    Ok(())
}

/// A write of the old leader is under way when it stops, and arrives when another one leads.
pub const STOPPED: Scenario = Scenario {
    name: "a_leader_that_stopped_before_a_write_resumes_without_harm",
    options: two_nodes,
    expected: || expected().watches_hang(),
    body: |bed| Box::pin(stopped(bed)),
};

/// When the write arrives that was under way.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Arrives {
    /// As soon as the other one leads.
    AtOnce,
    /// When the other one has finished the rollout.
    AtTheEnd,
}

async fn stopped(bed: &mut Bed) -> Result<()> {
    let mut pair = Pair::start(bed).await?;
    let _detacher = Detacher::start(&bed.client, &bed.haproxy, Variant::Good);
    let writes = [
        ("/status", "\"grants\":{\"n", Arrives::AtTheEnd),
        ("/deployments/", ".Claimed.", Arrives::AtOnce),
        ("/nodes/", "Detached", Arrives::AtTheEnd),
        ("/deployments/", ".Updating.", Arrives::AtTheEnd),
        ("/deployments/", ".Closed.", Arrives::AtTheEnd),
    ];
    for (version, (path, says, arrives)) in (2..).zip(writes) {
        pair.revive()?;
        let before = bed.recorder.history().await?.len();
        // Whoever leads: on a machine that is slow the lease may go to the other one meanwhile.
        for proxy in &pair.proxies {
            proxy.inject(
                move |request| {
                    if request.is_step() && request.path.contains(path) && request.says(says) { Fault::Hold } else { Fault::None }
                },
            );
        }
        product::roll_to(bed, &version.to_string()).await?;
        let (old, held) = pair.caught().await?;
        pair.operators[old].signal(Signal::SIGSTOP)?;
        pair.proxies.iter().for_each(FaultProxy::pass);
        // That this is within the lease is shown where the machine is not shared.
        pair.takes_over_from(bed, old, MINUTE).await?;
        if arrives == Arrives::AtTheEnd {
            product::is_complete(bed, 2, product::ROLLED_OUT).await?;
        }
        pair.proxies[old].let_go();
        let late = arrived(&pair.proxies[old], held.number).await?;
        if arrives == Arrives::AtTheEnd {
            ensure!(matches!(late.forwarded, Some(409 | 422)), "a write of the past was taken: {:?}", late.forwarded);
        }
        let written = pair.proxies[old].log().len();
        pair.operators[old].signal(Signal::SIGCONT)?;
        pair.loses_its_lease(old).await?;
        let after: Vec<_> = pair.proxies[old].log().split_off(written).into_iter().filter(|later| later.request.is_step()).collect();
        // The pass that was under way goes on until the loss of the lease is noticed; what it writes is refused.
        let taken = after.iter().filter(|later| later.forwarded.is_some_and(|code| code < 400)).count();
        ensure!(arrives == Arrives::AtOnce || taken == 0, "{taken} of {} writes after it went on were taken", after.len());
        bed.say(&format!("{path} {says} {arrives:?}: answered {:?}, and {} writes after it went on", late.forwarded, after.len()));
        pair.restart(old)?;
        product::is_complete(bed, 2, product::ROLLED_OUT).await?;
        took_effect_once(&bed.recorder.history().await?, before)?;
    }
    Ok(())
}

async fn arrived(proxy: &FaultProxy, number: u64) -> Result<Exchange> {
    eventually(MINUTE, "the late write arrives", async || {
        let exchange = proxy.log().into_iter().find(|exchange| exchange.request.number == number).context("not in the log")?;
        ensure!(exchange.forwarded.is_some(), "it has not arrived");
        Ok(exchange)
    })
    .await
}

/// kubernetes #54096: a controller that had just taken over listed what an API server that lags behind had, and made pods twice.
pub const OLD_LIST: Scenario = Scenario {
    name: "a_new_leader_with_an_old_list_makes_nothing_twice",
    options: two_nodes,
    expected: || expected().watches_hang(),
    body: |bed| Box::pin(old_list(bed)),
};

/// How late the watches of a leader begin that has an old list, and what they deliver besides.
const LATE: Duration = Duration::from_secs(3);

async fn old_list(bed: &mut Bed) -> Result<()> {
    bed.install().await?;
    operator_process::stop_pods(bed).await?;
    let mut first = OperatorProcess::start(bed, "first").await?;
    let _detacher = Detacher::start(&bed.client, &bed.haproxy, Variant::Good);
    bed.apply(&[workload::config_map("default"), product::resource("1", &Mode::both().strategy)]).await?;
    product::is_complete(bed, 2, product::ROLLED_OUT).await?;
    let made = first_of(bed, 0, |seen| seen.kind == Kind::Deployment && is_of_a_node(&seen.object)).await?;
    first.stop().await?;
    let (proxy, mut second) = takes_over(bed, "second", made - 1).await?;
    refused(&proxy).await?;
    product::is_complete(bed, 2, product::ROLLED_OUT).await?;
    let before = bed.recorder.history().await?.len();
    product::roll_to(bed, "2").await?;
    product::status_says(bed, "a node is updated, the other one is under way", product::SAID, |status| {
        status.nodes.updated == 1 && status.rollout.as_ref().is_some_and(|ledger| !ledger.grants.is_empty())
    })
    .await?;
    let granted = first_of(bed, before, |seen| {
        let grants = seen.object["status"]["rollout"]["grants"].as_object();
        seen.kind == Kind::IngressDaemonSet && grants.is_some_and(|grants| !grants.is_empty())
    })
    .await?;
    second.stop().await?;
    let (proxy, mut third) = takes_over(bed, "third", granted - 1).await?;
    refused(&proxy).await?;
    product::is_complete(bed, 2, product::ROLLED_OUT).await?;
    let history = bed.recorder.history().await?;
    Effects::since(&history, before)?.changed_once(&NODES)?;
    let uids = |kind, is_ours: fn(&Value) -> bool| -> BTreeSet<&str> {
        let ours = history.iter().filter(|seen| seen.kind == kind && is_ours(&seen.object));
        ours.filter_map(|seen| seen.object["metadata"]["uid"].as_str()).collect()
    };
    let (deployments, pods) = (uids(Kind::Deployment, is_of_a_node).len(), uids(Kind::Pod, has_revision).len());
    ensure!((deployments, pods) == (2, 8), "{deployments} Deployments and {pods} pods of two versions were made for 2 nodes of 2");
    bed.say("from a list without Deployments and from one without grants nothing was made twice");
    third.check()
}

fn is_of_a_node(object: &Value) -> bool {
    object["metadata"]["annotations"][names::NODE_NAME_ANNOTATION].is_string()
}

fn has_revision(object: &Value) -> bool {
    object["metadata"]["labels"][names::REVISION_LABEL].is_string()
}

/// The resourceVersion of the first such change after the first `from`.
async fn first_of(bed: &Bed, from: usize, test: impl Fn(&Observation) -> bool) -> Result<u64> {
    let history = bed.recorder.history().await?;
    history[from..].iter().find(|seen| test(seen)).map(|seen| seen.revision).context("no such change")
}

/// Another one leads, and sees what was at this resourceVersion; it hears late of what was since.
async fn takes_over(bed: &Bed, name: &str, past: u64) -> Result<(FaultProxy, OperatorProcess)> {
    let proxy = FaultProxy::start(bed).await?;
    proxy.inject(move |request| match request {
        // Only a list can be asked for as of then.
        _ if request.stream => Fault::Answer(422),
        _ if request.is_list() => Fault::Past(past),
        _ if request.watch => Fault::Delay(LATE),
        _ => Fault::None,
    });
    let operator = OperatorProcess::start_behind(bed, name, &proxy, &[]).await?;
    Ok((proxy, operator))
}

/// It acted on what it saw, and the first write of all, which takes ids or gives grants, was refused because it was of the past.
async fn refused(proxy: &FaultProxy) -> Result<()> {
    eventually(MINUTE, "a status of the past is refused", async || {
        let log = proxy.log();
        let statuses = || log.iter().filter(|exchange| exchange.request.is_step() && exchange.request.path.ends_with("/status"));
        let refused = statuses().filter(|exchange| matches!(exchange.forwarded, Some(409 | 422))).count();
        ensure!(refused > 0, "of {} none was", statuses().count());
        Ok(())
    })
    .await
}
