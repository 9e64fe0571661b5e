//! One run of one contender: the workload, and what it cost.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use tokio::time::sleep;

use super::{
    agent::Agent,
    driver::Driver,
    exposition::{Histogram, Requests},
    figures::{Contender, Phase, Run, Size, What, percentile_millis},
    observer::{Observer, Seen},
    raw,
    server::{Counts, Server},
};
use crate::eventually::eventually;

/// How long a phase may take.
const DEADLINE: Duration = Duration::from_mins(5);
/// Requests that were under way when the last node or pod was seen to be done still belong to the phase.
const SETTLE: Duration = Duration::from_secs(1);
/// From the last deletion until rest: controllers still clean up behind it.
const CALM: Duration = Duration::from_secs(5);
/// How long pod events come in the step that asks for a rate.
const EVENTS: Duration = Duration::from_secs(5);
/// How long leases may take to be renewed after a stand-still; who has not done it by then has lost nodes.
const CATCH_UP: Duration = Duration::from_mins(1);
/// How often that is looked at.
const LOOK: Duration = Duration::from_secs(2);
/// From then on until nodes are counted: the node controller looks every 5 s, and the agent puts right what it says.
const JUDGED: Duration = Duration::from_secs(7);
/// How often leases are looked at while at rest.
const LOOKS: u32 = 4;
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const RENEW_SECONDS: f64 = 10.0;

/// What a run consists of besides nodes to Ready.
#[derive(Clone, Debug)]
pub struct Steps {
    /// Pods.
    pub pods: bool,
    /// Rest for so long.
    pub rest: Option<Duration>,
    /// Stand-stills, and how long.
    pub stalls: Vec<Duration>,
    /// The memory step.
    pub memory: bool,
}

/// What a run has found out.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The figures.
    pub figures: Run,
    /// Requests of everybody but the driver, by phase.
    pub requests: Vec<(Phase, Requests)>,
    /// Why there are not more of them.
    pub failure: Option<anyhow::Error>,
}

/// Says a line of progress.
pub type Say<'a> = &'a dyn Fn(&str);

/// Runs it on a control plane of its own.
pub async fn run(contender: Contender, size: Size, steps: Steps, state: &Path, say: Say<'_>) -> Result<Outcome> {
    let server = Server::start(state).await.context("starting the control plane")?;
    let driver = Driver::new(server.client.clone());
    let observer = Observer::start(&server.client);
    let (before, cpu_before) = (server.counts().await?, server.cpu_seconds()?);
    let begun = Instant::now();
    let agent = Agent::start(contender, &server, size.nodes, state)?;
    let mut bench = Bench { contender, size, server, driver, observer, agent, say, outcome: Outcome::default() };
    let result = match bench.nodes(begun, before, cpu_before).await {
        Ok(()) => bench.rest_of(steps).await,
        Err(error) => Err(error),
    };
    let Bench { server, agent, observer, mut outcome, .. } = bench;
    // Also where the run got no further than that.
    outcome.figures.entry(What::NotReady).or_insert_with(|| count(observer.seen().lost.len()));
    drop(observer);
    outcome.failure = result.err().map(|error| anyhow!("{error:#}; the end of its log:\n{}", agent.tail()));
    // It may have ended by itself, which is then the failure.
    let _ = agent.end().await;
    server.end().await?;
    Ok(outcome)
}

struct Bench<'a> {
    contender: Contender,
    size: Size,
    server: Server,
    driver: Driver,
    observer: Observer,
    agent: Agent,
    say: Say<'a>,
    outcome: Outcome,
}

/// The beginning of a phase.
struct Lap {
    begun: Instant,
    before: Counts,
    driver: Requests,
    cpu: f64,
    server_cpu: f64,
}

impl Bench<'_> {
    async fn nodes(&mut self, begun: Instant, before: Counts, server_cpu: f64) -> Result<()> {
        let lap = Lap { begun, before, driver: Requests::default(), cpu: 0.0, server_cpu };
        if self.contender == Contender::Kwok {
            self.driver.create_nodes(self.size.nodes).await.context("making nodes for KWOK")?;
        }
        let nodes = self.size.nodes;
        let done = self.sees("all nodes are Ready", |seen| seen.ready >= nodes).await?;
        // A node is Ready before it has a lease, which is part of the work all the same.
        eventually(DEADLINE, "all nodes have leases", async || {
            let leases = raw::how_many(&self.server.client, LEASES).await?;
            ensure!(leases >= nodes, "{leases} have one");
            Ok(())
        })
        .await?;
        self.end_of(Phase::Nodes, lap, done).await
    }

    async fn rest_of(&mut self, steps: Steps) -> Result<()> {
        if steps.pods {
            self.pods().await?;
        }
        if let Some(period) = steps.rest {
            self.rest(period).await?;
        }
        if steps.pods {
            self.events().await?;
        }
        let lost = self.observer.seen().lost.len();
        self.set(What::NotReady, count(lost));
        for stall in steps.stalls {
            self.stall(stall).await?;
        }
        if steps.memory {
            self.memory().await?;
        }
        self.set(What::Connections, self.agent.connections().into());
        Ok(())
    }

    async fn pods(&mut self) -> Result<()> {
        let pods = self.size.pods;
        let lap = self.lap().await?;
        self.driver.create_pods(0..pods, self.size.nodes, None).await.context("making pods")?;
        let done = self.sees("all pods are Running", |seen| seen.running >= pods).await?;
        self.end_of(Phase::Running, lap, done).await?;
        self.set(What::Resident, self.agent.figures.resident_mib()?);
        let lap = self.lap().await?;
        self.driver.delete_pods(0..pods).await.context("deleting pods")?;
        let done = self.sees("all pods are gone", |seen| seen.pods() == 0).await?;
        self.end_of(Phase::Deleted, lap, done).await
    }

    async fn rest(&mut self, period: Duration) -> Result<()> {
        sleep(CALM).await;
        let before = self.server.counts().await?.all.renewals();
        let (cpu, server_cpu, begun) = (self.agent.figures.cpu_seconds()?, self.server.cpu_seconds()?, Instant::now());
        let mut ages = Vec::new();
        for _ in 0..LOOKS {
            sleep(period / LOOKS).await;
            ages.extend(self.lease_ages().await?);
        }
        let seconds = begun.elapsed().as_secs_f64();
        self.set(What::RestCpu, (self.agent.figures.cpu_seconds()? - cpu) / seconds);
        self.set(What::RestServerCpu, (self.server.cpu_seconds()? - server_cpu) / seconds);
        self.set(What::Renewals, (self.server.counts().await?.all.renewals() - before) / seconds);
        if let Some(millis) = percentile_millis(ages, 99) {
            self.set(What::LeaseAge, millis / 1000.0);
        }
        if let Some(late) = self.own("virtual_kubelet_lease_lateness_seconds").await?.quantile(0.99) {
            self.set(What::LeaseLateness, late);
        }
        if let Some(late) = self.own("virtual_kubelet_lease_creation_lateness_seconds").await?.quantile(0.99) {
            self.set(What::LeaseCreation, late);
        }
        Ok(())
    }

    /// By how much each lease is older now than the interval at which it ought to be renewed.
    async fn lease_ages(&self) -> Result<Vec<Duration>> {
        let leases = raw::list(&self.server.client, LEASES).await?;
        let now = jiff::Timestamp::now();
        let ages = leases.iter().filter_map(|lease| lease.spec.renew_time).map(|renewed| {
            let age = (now.as_microsecond() - renewed.as_microsecond()).unsigned_abs();
            Duration::from_micros(age).saturating_sub(Duration::from_secs_f64(RENEW_SECONDS))
        });
        Ok(ages.collect())
    }

    /// Pods at a rate: each is two events, since the patch of its status comes back as one.
    async fn events(&mut self) -> Result<()> {
        let rate = f64::from(self.size.events) / 2.0;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some thousands")]
        let pods = (rate * EVENTS.as_secs_f64()) as usize;
        let own = "virtual_kubelet_pod_event_to_patch_seconds";
        let before = self.own(own).await?;
        self.observer.seen().starts.clear();
        let begun = Instant::now();
        self.driver.create_pods(0..pods, self.size.nodes, Some(rate)).await.context("making pods at a rate")?;
        let seconds = begun.elapsed().as_secs_f64();
        self.sees("all pods are Running", |seen| seen.running >= pods).await?;
        self.set(What::Events, 2.0 * count(pods) / seconds);
        let starts = std::mem::take(&mut self.observer.seen().starts);
        if let Some(millis) = percentile_millis(starts, 99) {
            self.set(What::SeenRunning, millis);
        }
        if let Some(seconds) = self.own(own).await?.since(&before).quantile(0.99) {
            self.set(What::EventToPatch, seconds * 1000.0);
        }
        Ok(())
    }

    async fn stall(&mut self, lasts: Duration) -> Result<()> {
        let seconds = lasts.as_secs();
        self.observer.seen().lost.clear();
        self.server.stand_still(true)?;
        sleep(lasts).await;
        self.server.stand_still(false)?;
        let (back, now) = (Instant::now(), jiff::Timestamp::now());
        let missing = loop {
            // One that has just come back may refuse a list.
            let leases = raw::list(&self.server.client, &format!("{LEASES}?resourceVersion=0")).await.unwrap_or_default();
            let renewed = leases.iter().filter(|lease| lease.spec.renew_time.is_some_and(|renewed| renewed >= now)).count();
            if renewed >= self.size.nodes || back.elapsed() > CATCH_UP {
                break self.size.nodes.saturating_sub(renewed);
            }
            self.agent.check()?;
            sleep(LOOK).await;
        };
        let caught_up = back.elapsed().as_secs_f64();
        sleep(JUDGED).await;
        let (ready, lost) = {
            let seen = self.observer.seen();
            (seen.ready, seen.lost.len())
        };
        let not_ready = self.size.nodes.saturating_sub(ready);
        (self.say)(&format!(
            "the API server stood still for {seconds} s: {lost} nodes called NotReady, {missing} leases not renewed after {caught_up:.1} s, \
             {not_ready} nodes NotReady {} s later",
            JUDGED.as_secs()
        ));
        self.set(What::LostInStall(seconds), count(lost));
        self.set(What::NotReadyAfterStall(seconds), count(not_ready));
        self.set(What::CaughtUp(seconds), caught_up);
        Ok(())
    }

    async fn memory(&mut self) -> Result<()> {
        let (made, wanted) = (self.observer.seen().pods(), self.size.memory_pods);
        (self.say)(&format!("making {} more pods, to see what memory they take", wanted.saturating_sub(made)));
        self.driver.create_pods(made..wanted, self.size.nodes, None).await.context("making pods for the memory step")?;
        self.sees("all pods are Running", |seen| seen.running >= wanted).await?;
        self.set(What::ResidentFull, self.agent.figures.resident_mib()?);
        Ok(())
    }

    /// Waits for what `observer` is to see; fails at once when the agent ends.
    async fn sees(&mut self, what: &str, fact: impl Fn(&Seen) -> bool) -> Result<Instant> {
        let agent = &mut self.agent;
        let ended = async {
            loop {
                agent.check()?;
                sleep(SETTLE).await;
            }
        };
        tokio::select! {
            seen = self.observer.sees(DEADLINE, what, fact) => seen,
            ended = ended => ended,
        }
    }

    async fn lap(&self) -> Result<Lap> {
        let before = self.server.counts().await?;
        let (cpu, server_cpu) = (self.agent.figures.cpu_seconds()?, self.server.cpu_seconds()?);
        Ok(Lap { begun: Instant::now(), before, driver: self.driver.requests(), cpu, server_cpu })
    }

    async fn end_of(&mut self, phase: Phase, lap: Lap, done: Instant) -> Result<()> {
        let time = done.saturating_duration_since(lap.begun).as_secs_f64();
        sleep(SETTLE).await;
        let (cpu, server_cpu) = (self.agent.figures.cpu_seconds()?, self.server.cpu_seconds()?);
        let after = self.server.counts().await?;
        let everybody = after.all.without(&lap.before.all).without(&self.driver.requests().without(&lap.driver));
        let requests = after.agent - lap.before.agent - everybody.renewals();
        self.set(What::Time(phase), time);
        self.set(What::Cpu(phase), cpu - lap.cpu);
        self.set(What::ServerCpu(phase), server_cpu - lap.server_cpu);
        self.set(What::Requests(phase), requests);
        let title = What::Time(phase).title(self.size);
        (self.say)(&format!("{title}: {time:.2}, own CPU {:.2} s, {requests:.0} requests", cpu - lap.cpu));
        self.outcome.requests.push((phase, everybody));
        Ok(())
    }

    /// A histogram of the agent's own; empty where it has none.
    async fn own(&self, name: &str) -> Result<Histogram> {
        Ok(self.agent.metrics().await?.map(|text| Histogram::read(&text, name)).unwrap_or_default())
    }

    fn set(&mut self, what: What, value: f64) {
        self.outcome.figures.insert(what, value);
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn count(number: usize) -> f64 {
    number as f64
}
