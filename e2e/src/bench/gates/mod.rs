//! Readiness gates at the size of a large cluster: a thousand nodes that join at once, and a thousand whose requirement is met at once.
//!
//! The operator and a yardstick take turns at one control plane; figures of both go out. What a gate does is tested in
//! `scenarios/node_gates/`.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use crds::NodeReadinessGate;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::{
    process::Command,
    task::{JoinHandle, JoinSet},
};

use super::{
    benchmark::{Benchmark, Body, Figure, Goal, Report, print, report},
    scale::{audit::AuditLog, cluster::Cluster},
};
use crate::{
    eventually::eventually,
    host::{namespaces, network, process::Process},
};

pub mod limit;
mod objects;

use objects::{SET, WARM, gate, has_taint};

/// A thousand nodes at once.
///
/// What is measured how:
/// - Nodes are objects alone. The time of a node is from the answer to the request that makes it, or its condition, to the end of the
///   request that adds, or removes, its taint, as the API server's audit log has it. (What a watch shows comes up to half a second later on
///   a machine that is this busy, for reasons of the API server's own: that would be measured otherwise.)
/// - The yardstick is a client that does nothing but patch: the same two patches, from a watch of its own, as many at once, against the
///   same control plane in the same run, with nodes of its own. It decides nothing and remembers nothing. As the operator is, it is a
///   process of its own with the operator's user: the API server checks and records its requests alike.
/// - Yardstick and operator take turns, and the times of all rounds are taken together: on a machine that is this busy, those of one round
///   are by a half longer or shorter than those of the next.
/// - Fifty status writes a second, spread over the nodes, stand for heartbeats while nodes are released.
/// - Writes and refusals are counted in the API server's audit log and in the operator's metrics; CPU is that of the API server's process.
pub const GATES: Benchmark = Benchmark { name: "gates", body: Body::Alone(|| Box::pin(measure())) };

/// How often the operator has its turn; the yardstick comes before each and after the last.
const ROUNDS: usize = 3;
/// Requests of the bench under way at once, which make nodes and conditions.
const PARALLEL: usize = 32;
const PATIENCE: Duration = Duration::from_mins(5);
/// Heartbeats a second.
const BEATS: u64 = 50;

/// What one phase took, by node, in seconds.
struct Phase {
    latencies: Vec<f64>,
    /// From the first to the last.
    total: f64,
    cpu: f64,
}

impl Phase {
    fn quantile(&self, share: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "an index below a few thousand"
        )]
        let at = ((last as f64) * share).round() as usize;
        self.latencies.get(at).copied().unwrap_or(f64::NAN)
    }
}

/// What the operator did with one set of nodes.
struct Ours {
    phases: [Phase; 2],
    /// Patches of Nodes, joining and released.
    writes: [usize; 2],
    refused: f64,
    /// Resident memory before and after, in MiB.
    memory: [f64; 2],
}

async fn measure() -> Result<Report> {
    let begun = Instant::now();
    let say = |line: &str| println!("{:6.1}s {line}", begun.elapsed().as_secs_f32());
    let spent = |[join, release]: &[Phase; 2]| format!("{:.2} s and {:.2} s", join.total, release.total);
    let count: usize = std::env::var("BED_BENCH_NODES").unwrap_or_else(|_| "1000".into()).parse().context("BED_BENCH_NODES")?;
    network::create().await.context("making the network")?;
    let mut cluster = Cluster::start(Path::new(namespaces::STATE)).await?;
    cluster.apply(&gate()).await?;
    let (mut raw, mut ours) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let phases = with_yardstick(&cluster, &format!("raw{round}"), count).await?;
        say(&format!("the yardstick: {}", spent(&phases)));
        raw.push(phases);
        if round < ROUNDS {
            let found = with_operator(&mut cluster, count).await?;
            say(&format!("the operator: {}", spent(&found.phases)));
            ours.push(found);
        }
    }
    let figures = figures(count, ours, raw);
    print("gates", &figures);
    let mut report = report(&figures);
    report.json["nodes"] = count.into();
    report.json["rounds"] = ROUNDS.into();
    cluster.end().await?;
    Ok(report)
}

/// Both phases with nodes that the operator looks after.
async fn with_operator(cluster: &mut Cluster, count: usize) -> Result<Ours> {
    let gates = Api::<NodeReadinessGate>::all(cluster.server.client.clone());
    cluster.start_operator()?;
    eventually(PATIENCE, "the operator leads", async || {
        ensure!(cluster.operator_metrics().await?.lines().any(|line| line == "ids_leader 1"), "it does not yet");
        Ok(())
    })
    .await?;
    // It leads before it has listed anything; its start is not what is measured.
    eventually(PATIENCE, "the gate is in force", async || {
        let status = gates.get("bench").await?.status;
        ensure!(status.is_some_and(|status| status.observed_generation.is_some()), "nobody has looked at it yet");
        Ok(())
    })
    .await?;
    let before = cluster.operator_figures()?.resident_mib()?;
    let audit = AuditLog::from_now(Path::new(namespaces::STATE))?;
    let joined = join(cluster, SET, count).await?;
    let writes = patches(&audit)?;
    let released = release(cluster, SET, count).await?;
    let all_writes = patches(&audit)?;
    let memory = cluster.operator_figures()?.resident_mib()?;
    let refused = refusals(&cluster.operator_metrics().await?);
    cluster.check()?;
    cluster.kill_operator().await?;
    remove(cluster, SET).await?;
    Ok(Ours { phases: [joined, released], writes: [writes, all_writes - writes], refused, memory: [before, memory] })
}

/// Both phases with nodes of their own that the yardstick looks after.
async fn with_yardstick(cluster: &Cluster, set: &str, count: usize) -> Result<[Phase; 2]> {
    let mut command = Command::new(std::env::current_exe().context("finding this program's own path")?);
    command.args(["gates-limit", "--set", set, "--kubeconfig"]).arg(cluster.operator_kubeconfig());
    let logs = cluster.state.join("logs");
    let mut raw = Process::start(set, &logs, command)?;
    eventually(PATIENCE, "the yardstick watches", async || {
        raw.check()?;
        let log = std::fs::read_to_string(logs.join(format!("{set}.log")))?;
        ensure!(log.contains(limit::WATCHES), "{log}");
        Ok(())
    })
    .await?;
    let phases = [join(cluster, set, count).await?, release(cluster, set, count).await?];
    raw.check()?;
    raw.kill().await?;
    remove(cluster, set).await?;
    Ok(phases)
}

/// Makes room for the next set: what a control plane costs changes with what it holds.
async fn remove(cluster: &Cluster, set: &str) -> Result<()> {
    let (api, params) = (Api::<Node>::all(cluster.server.client.clone()), ListParams::default().labels(&format!("set={set}")));
    api.delete_collection(&DeleteParams::default(), &params).await.context("deleting Nodes")?;
    eventually(PATIENCE, "the nodes are gone", async || {
        let left = api.list_metadata(&params.clone().limit(1)).await?.items.len();
        ensure!(left == 0, "some are left");
        Ok(())
    })
    .await
}

/// All latencies, and the means of what is of a whole phase.
fn taken_together(phases: Vec<Phase>) -> Phase {
    #[expect(clippy::cast_precision_loss, reason = "a handful")]
    let many = phases.len() as f64;
    let mean = |of: fn(&Phase) -> f64| phases.iter().map(of).sum::<f64>() / many;
    let (total, cpu) = (mean(|phase| phase.total), mean(|phase| phase.cpu));
    let mut latencies: Vec<_> = phases.into_iter().flat_map(|phase| phase.latencies).collect();
    latencies.sort_by(f64::total_cmp);
    Phase { latencies, total, cpu }
}

fn in_phases(all: Vec<[Phase; 2]>) -> [Phase; 2] {
    let (join, release) = all.into_iter().map(|[join, release]| (join, release)).unzip();
    [taken_together(join), taken_together(release)]
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn figures(count: usize, ours: Vec<Ours>, raw: Vec<[Phase; 2]>) -> Vec<Figure> {
    let nodes = (count * ours.len()) as f64;
    let refused = ours.iter().map(|ours| ours.refused).sum::<f64>();
    let [writes_joining, writes_released] = [0, 1].map(|at| ours.iter().map(|ours| ours.writes[at]).sum::<usize>() as f64 / nodes);
    let [before, memory] = [0, 1].map(|at| ours.iter().map(|ours| ours.memory[at]).fold(0.0, f64::max));
    let [join, release] = in_phases(ours.into_iter().map(|ours| ours.phases).collect());
    let [raw_join, raw_release] = in_phases(raw);
    let figure = |what, value, unit, goal, yardstick: f64| Figure { what, value, unit, goal, yardstick: Some(("raw client", yardstick)) };
    let at_most_raw = |factor: f64, raw: f64| Goal::AtMost((factor * raw * 100.0).round() / 100.0);
    vec![
        figure("node there → tainted, p50", join.quantile(0.5), "s", Goal::None, raw_join.quantile(0.5)),
        figure("node there → tainted, p99", join.quantile(0.99), "s", Goal::AtMost(1.0), raw_join.quantile(0.99)),
        figure("all tainted, from the first node", join.total, "s", Goal::AtMost(5.0), raw_join.total),
        figure("requirement met → taint gone, p50", release.quantile(0.5), "s", Goal::None, raw_release.quantile(0.5)),
        figure(
            "requirement met → taint gone, p99",
            release.quantile(0.99),
            "s",
            at_most_raw(1.3, raw_release.quantile(0.99)),
            raw_release.quantile(0.99),
        ),
        figure("requirement met → taint gone, max", release.quantile(1.0), "s", Goal::None, raw_release.quantile(1.0)),
        figure("all released, from the first", release.total, "s", Goal::AtMost(5.0), raw_release.total),
        Figure { what: "writes per node, joining", value: writes_joining, unit: "", goal: Goal::AtMost(1.0), yardstick: None },
        Figure { what: "writes per node, released", value: writes_released, unit: "", goal: Goal::AtMost(1.0), yardstick: None },
        Figure { what: "patches that had no effect", value: refused, unit: "", goal: Goal::AtMost(0.0), yardstick: None },
        figure("API server CPU, joining", join.cpu, "s", at_most_raw(1.5, raw_join.cpu), raw_join.cpu),
        figure("API server CPU, released", release.cpu, "s", at_most_raw(1.5, raw_release.cpu), raw_release.cpu),
        Figure { what: "operator memory", value: memory, unit: "MiB", goal: Goal::AtMost(64.0), yardstick: Some(("before", before)) },
    ]
}

/// Patches of Nodes by the operator.
fn patches(audit: &AuditLog) -> Result<usize> {
    Ok(audit.writes()?.get("patch nodes").copied().unwrap_or(0))
}

fn refusals(metrics: &str) -> f64 {
    let lines = metrics.lines().filter(|line| line.starts_with("ids_gate_patch_refusals_total"));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).fold(0.0, std::ops::Add::add)
}

fn name(set: &str, index: usize) -> String {
    format!("{set}-{index:04}")
}

/// All nodes of a set come at once.
async fn join(cluster: &Cluster, set: &str, count: usize) -> Result<Phase> {
    let client = cluster.server.client.clone();
    let make = |name: String| create(client.clone(), name, set.to_owned());
    phase(cluster, set, count, true, make).await
}

/// What all nodes of a set need comes about at once, beside heartbeats.
async fn release(cluster: &Cluster, set: &str, count: usize) -> Result<Phase> {
    let client = cluster.server.client.clone();
    let beats = heartbeats(client.clone(), set.to_owned(), count);
    let phase = phase(cluster, set, count, false, |name| condition(client.clone(), name, WARM)).await;
    beats.abort();
    phase
}

/// A node comes as a kubelet registers it: not ready, so that the control plane's own taint stays, and with its annotation.
async fn create(client: Client, name: String, set: String) -> Result<()> {
    let now = Timestamp::now().to_string();
    let ready = json!({
        "type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "bench", "lastHeartbeatTime": now, "lastTransitionTime": now,
    });
    let annotations = json!({ "volumes.kubernetes.io/controller-managed-attach-detach": "true" });
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": { "set": set }, "annotations": annotations },
        "status": { "conditions": [ready] },
    });
    Api::<Node>::all(client).create(&PostParams::default(), &serde_json::from_value(node)?).await.context("creating a Node").map(drop)
}

fn heartbeats(client: Client, set: String, count: usize) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_millis(1000 / BEATS));
        // One that takes long delays no other, as those of different kubelets; all end with this.
        let mut beats = JoinSet::new();
        for index in (0..count).cycle() {
            ticks.tick().await;
            while beats.try_join_next().is_some() {}
            beats.spawn(condition(client.clone(), name(&set, index), "MemoryPressure"));
        }
    })
}

async fn condition(client: Client, name: String, type_: &str) -> Result<()> {
    let now = Timestamp::now().to_string();
    let condition =
        json!({ "type": type_, "status": "True", "reason": "Bench", "message": now, "lastHeartbeatTime": now, "lastTransitionTime": now });
    let patch = Patch::Strategic(json!({ "status": { "conditions": [condition] } }));
    Api::<Node>::all(client)
        .patch_status(&name, &PatchParams::default(), &patch)
        .await
        .with_context(|| format!("condition of {name}"))
        .map(drop)
}

/// Does something to every node of a set at once, and waits until all of them have got the taint, or have lost it.
async fn phase<F: Future<Output = Result<()>>>(
    cluster: &Cluster,
    set: &str,
    count: usize,
    tainted: bool,
    act: impl Fn(String) -> F,
) -> Result<Phase> {
    let cpu = cluster.server.cpu_seconds()?;
    let audit = AuditLog::from_now(&cluster.state)?;
    let actions = (0..count).map(|index| {
        let acting = act(name(set, index));
        async move { acting.await.map(|()| (name(set, index), Timestamp::now())) }
    });
    let done: Vec<_> = futures::stream::iter(actions).buffer_unordered(PARALLEL).try_collect().await?;
    let patched = eventually(PATIENCE, &format!("{count} nodes are patched"), async || {
        let patched = audit.patched_nodes()?;
        let there = done.iter().filter(|(name, _)| patched.contains_key(name)).count();
        ensure!(there == count, "{there} are");
        Ok(patched)
    })
    .await?;
    let cpu = cluster.server.cpu_seconds()? - cpu;
    let nodes = Api::<Node>::all(cluster.server.client.clone()).list(&ListParams::default().labels(&format!("set={set}"))).await?;
    let wrong = nodes.iter().filter(|node| has_taint(node) != tainted).count();
    ensure!(wrong == 0, "{wrong} nodes were patched, and have the taint or lack it");
    let spans: Vec<_> = done.iter().filter_map(|(name, from)| Some((*from, *patched.get(name)?))).collect();
    let first = spans.iter().map(|(from, _)| *from).min().context("there are no nodes")?;
    let last = spans.iter().map(|(_, to)| *to).max().context("there are no nodes")?;
    // What was patched before the answer had come took no time.
    let mut latencies: Vec<_> = spans.iter().map(|(from, to)| to.duration_since(*from).as_secs_f64().max(0.0)).collect();
    latencies.sort_by(f64::total_cmp);
    Ok(Phase { latencies, total: last.duration_since(first).as_secs_f64(), cpu })
}
