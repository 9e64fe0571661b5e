//! An operator that looks after a large fleet at rest, and one that is started anew.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::time::sleep;

use super::{
    cluster::Cluster,
    findings::{Findings, Say},
    resource,
    settings::Settings,
};
use crate::{bench::benchmark::Goal, eventually::eventually, host::process_figures::by_program};

/// How long it may take until all nodes serve, and everything else.
const PATIENCE: Duration = Duration::from_mins(30);
/// From the last change until rest: controllers still clean up behind it.
const CALM: Duration = Duration::from_secs(10);

/// Of one restart it depends on luck when the API server has which watch ready.
const RESTARTS: usize = 5;

/// A variable: the path of another build of the operator, such as a former one. It is restarted on the same fleet in turn, and its figures
/// are the yardstick.
const BASELINE: &str = "BED_BENCH_BASELINE";

/// All of it, on a control plane of its own.
pub async fn run(settings: &Settings, state: &Path, say: Say<'_>, findings: &mut Findings) -> Result<()> {
    let nodes = settings.large_nodes;
    let baseline = std::env::var_os(BASELINE).map(PathBuf::from);
    if let Some(baseline) = &baseline {
        ensure!(baseline.is_file(), "{BASELINE}: there is no file {}", baseline.display());
    }
    let mut cluster = Cluster::start(state).await?;
    cluster.apply(&resource::ingress_daemon_set(1, settings.grace)).await?;
    cluster.start_operator()?;
    let begun = Instant::now();
    cluster.start_fleet(nodes)?;
    cluster.is_complete(nodes, PATIENCE, say).await?;
    let took = begun.elapsed().as_secs_f64();
    say(&format!("{nodes} nodes serve, {took:.1} s after the fleet was started"));
    sleep(CALM).await;
    let figures = cluster.operator_figures()?;
    let (memory, peak) = (figures.resident_mib()?, figures.peak_mib()?);
    let anonymous = figures.anonymous_mib()?;
    say(&format!("the operator that made all Deployments has {memory:.1} MiB, {anonymous:.1} without its program, at most {peak:.1} MiB"));
    let (cpu, since) = (figures.cpu_seconds()?, Instant::now());
    sleep(settings.rest).await;
    let rest = (figures.cpu_seconds()? - cpu) / since.elapsed().as_secs_f64();
    cluster.check()?;
    findings.add("operator memory, all nodes made by it", memory, "MiB", Goal::AtMost(64.0), Some(("peak", peak)));
    findings.add("operator CPU at rest", 100.0 * rest, "%", Goal::AtMost(1.0), None);
    let (mut ours, mut others) = (Vec::new(), Vec::new());
    for round in 1..=RESTARTS {
        if let Some(baseline) = &baseline {
            let restart = settled(&mut cluster, Some(baseline), nodes, say).await?;
            say(&format!("restart {round} of {RESTARTS} of {}: {}", baseline.display(), restart.said()));
            others.push(restart);
        }
        let restart = match &baseline {
            Some(_) => settled(&mut cluster, None, nodes, say).await?,
            None => restart(&mut cluster, nodes, say).await?,
        };
        say(&format!("restart {round} of {RESTARTS}: {}", restart.said()));
        ours.push(restart);
    }
    let peak = ours.iter().map(|restart| restart.peak).fold(0.0, f64::max);
    let mut add = |what, of: fn(&Restart) -> f64, unit, goal, beside: (&'static str, f64)| {
        let yardstick = if others.is_empty() { beside } else { ("baseline", median(&others, of)) };
        findings.add(what, median(&ours, of), unit, goal, Some(yardstick));
    };
    add("operator memory, after a restart", |restart| restart.memory, "MiB", Goal::AtMost(64.0), ("peak", peak));
    let slowest = |of: fn(&Restart) -> f64| ("slowest", ours.iter().map(of).fold(0.0, f64::max));
    add(
        "operator restart → first correct decision, median of 5",
        |restart| restart.first,
        "s",
        Goal::AtMost(5.0),
        slowest(|restart| restart.first),
    );
    add("operator restart → nothing to do, median of 5", |restart| restart.idle, "s", Goal::AtMost(5.0), slowest(|restart| restart.idle));
    // What else runs on the machine makes a start take longer, and costs the operator itself nothing.
    add(
        "CPU of the operator from its restart to that decision, median of 5",
        |restart| restart.cpu,
        "s",
        Goal::AtMost(5.0),
        slowest(|restart| restart.cpu),
    );
    let used = ours.pop().map(|restart| restart.used).unwrap_or_default();
    let pods = nodes * resource::PODS_PER_NODE;
    let details = json!({ "nodes": nodes, "pods": pods, "seconds until all serve": took, "CPU seconds until the grant": used });
    findings.details.insert("large fleet", details);
    cluster.end().await
}

/// What became of an operator that was restarted: twice, since a change of the template comes before the second time.
struct Restart {
    /// Seconds until it saw that nothing was to be done.
    idle: f64,
    /// MiB when it had seen that, and at most until then.
    memory: f64,
    peak: f64,
    /// MiB without its program.
    anonymous: f64,
    /// Seconds until it granted slots for the changed template, and the CPU seconds of all programs until then.
    first: f64,
    /// CPU seconds of its own until then.
    cpu: f64,
    used: BTreeMap<String, f64>,
}

impl Restart {
    fn said(&self) -> String {
        let Self { idle, memory, anonymous, first, cpu, used, .. } = self;
        let used: Vec<_> = used.iter().map(|(program, seconds)| format!("{program} {seconds:.1}")).collect();
        format!(
            "nothing to do seen after {idle:.2} s; {memory:.1} MiB, {anonymous:.1} without its program; a changed template is granted after \
             {first:.2} s, and {cpu:.2} s of its CPU, with CPU seconds of {}",
            used.join(", ")
        )
    }
}

/// Restarts a build, the first one where none is given, once it has written what it writes otherwise than another one.
async fn settled(cluster: &mut Cluster, build: Option<&Path>, nodes: usize, say: Say<'_>) -> Result<Restart> {
    cluster.kill_operator().await?;
    cluster.measure(build);
    let begun = cluster.start_operator()?;
    has_decided(cluster, nodes, begun).await?;
    // The status is the other build's at first.
    sleep(CALM).await;
    cluster.is_complete(nodes, PATIENCE, say).await?;
    sleep(CALM).await;
    restart(cluster, nodes, say).await
}

async fn restart(cluster: &mut Cluster, nodes: usize, say: Say<'_>) -> Result<Restart> {
    cluster.kill_operator().await?;
    let begun = cluster.start_operator()?;
    let idle = has_decided(cluster, nodes, begun).await?;
    sleep(CALM).await;
    let figures = cluster.operator_figures()?;
    let (memory, peak, anonymous) = (figures.resident_mib()?, figures.peak_mib()?, figures.anonymous_mib()?);
    cluster.kill_operator().await?;
    cluster.change(json!({ "template": resource::template(2) })).await?;
    let before = by_program()?;
    let begun = cluster.start_operator()?;
    let first = first_grant(cluster, begun).await?;
    let cpu = cluster.operator_figures()?.cpu_seconds()?;
    let used = used_since(&before)?;
    // It takes the change back before a pod is replaced.
    cluster.change(json!({ "template": resource::template(1) })).await?;
    cluster.is_complete(nodes, PATIENCE, say).await?;
    sleep(CALM).await;
    Ok(Restart { idle, memory, peak, anonymous, first, cpu, used })
}

fn median(restarts: &[Restart], of: fn(&Restart) -> f64) -> f64 {
    let mut figures: Vec<_> = restarts.iter().map(of).collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

/// CPU seconds of those programs that have used some.
fn used_since(before: &BTreeMap<String, f64>) -> Result<BTreeMap<String, f64>> {
    let used = by_program()?.into_iter().map(|(program, seconds)| {
        let since = seconds - before.get(&program).copied().unwrap_or_default();
        (program, since)
    });
    Ok(used.filter(|(_, seconds)| *seconds >= 0.05).collect())
}

/// How long a restarted operator takes to see that all nodes are as they should be.
async fn has_decided(cluster: &mut Cluster, nodes: usize, begun: Instant) -> Result<f64> {
    const AVAILABLE: &str = r#"ids_nodes{resource="default/edge",state="available"}"#;
    let line = format!("{AVAILABLE} {nodes}");
    eventually(PATIENCE, "the restarted operator has decided", async || {
        cluster.check()?;
        let metrics = cluster.operator_metrics().await?;
        ensure!(metrics.lines().any(|known| known == line), "{:?}", metrics.lines().find(|line| line.starts_with(AVAILABLE)));
        Ok(())
    })
    .await?;
    Ok(begun.elapsed().as_secs_f64())
}

/// How long a restarted operator takes to grant what a changed template needs.
async fn first_grant(cluster: &mut Cluster, begun: Instant) -> Result<f64> {
    eventually(PATIENCE, "the restarted operator grants", async || {
        cluster.check()?;
        let status = cluster.resource().await?.status.context("no status")?;
        ensure!(status.rollout.as_ref().is_some_and(|ledger| !ledger.grants.is_empty()), "{:?}", status.nodes);
        Ok(())
    })
    .await?;
    Ok(begun.elapsed().as_secs_f64())
}
