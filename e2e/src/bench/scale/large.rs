//! An operator that looks after a large fleet at rest, and one that is started anew.

use std::{
    collections::BTreeMap,
    path::Path,
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
use crate::{
    bench::{benchmark::Goal, process_figures::by_program},
    eventually::eventually,
};

/// How long it may take until all nodes serve, and everything else.
const PATIENCE: Duration = Duration::from_mins(30);
/// From the last change until rest: controllers still clean up behind it.
const CALM: Duration = Duration::from_secs(10);

/// Of one restart it depends on luck when the API server has which watch ready.
const RESTARTS: usize = 5;

/// All of it, on a control plane of its own.
pub async fn run(settings: &Settings, state: &Path, say: Say<'_>, findings: &mut Findings) -> Result<()> {
    let nodes = settings.large_nodes;
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
    cluster.kill_operator().await?;
    let begun = cluster.start_operator()?;
    let decided = has_decided(&mut cluster, nodes, begun).await?;
    sleep(CALM).await;
    let figures = cluster.operator_figures()?;
    let (restarted, restarted_peak) = (figures.resident_mib()?, figures.peak_mib()?);
    let anonymous = figures.anonymous_mib()?;
    findings.add("operator memory, after a restart", restarted, "MiB", Goal::AtMost(64.0), Some(("peak", restarted_peak)));
    say(&format!("restarted: nothing to do seen after {decided:.2} s; {restarted:.1} MiB, {anonymous:.1} without its program"));
    let mut firsts = Vec::new();
    let mut used = BTreeMap::new();
    for round in 1..=RESTARTS {
        cluster.kill_operator().await?;
        cluster.change(json!({ "template": resource::template(2) })).await?;
        let before = by_program()?;
        let begun = cluster.start_operator()?;
        let first = first_grant(&mut cluster, begun).await?;
        used = used_since(&before)?;
        say(&format!("restart {round} of {RESTARTS}: a changed template is granted after {first:.2} s"));
        firsts.push(first);
        // It takes the change back before a pod is replaced.
        cluster.change(json!({ "template": resource::template(1) })).await?;
        cluster.is_complete(nodes, PATIENCE, say).await?;
        sleep(CALM).await;
    }
    firsts.sort_by(f64::total_cmp);
    let (first, worst) = (firsts[RESTARTS / 2], firsts[RESTARTS - 1]);
    findings.add("operator restart → first correct decision, median of 5", first, "s", Goal::AtMost(5.0), Some(("slowest", worst)));
    findings.add("operator restart → nothing to do", decided, "s", Goal::AtMost(5.0), None);
    let shares: Vec<_> = used.iter().map(|(program, seconds)| format!("{program} {seconds:.1}")).collect();
    say(&format!("CPU seconds until the grant: {}", shares.join(", ")));
    let pods = nodes * resource::PODS_PER_NODE;
    let details = json!({ "nodes": nodes, "pods": pods, "seconds until all serve": took, "CPU seconds until the grant": used });
    findings.details.insert("large fleet", details);
    cluster.end().await
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
