//! Readiness gates at the size of a large cluster: a thousand nodes that join at once, and a thousand whose requirement is met at once.
//!
//! What is measured how:
//! - Nodes are objects alone. Each moment is the one in which a watch of this process shows it: the Node, its condition, its taint
//!   coming and going. The time of a node is from the Node, or its condition, to the taint.
//! - The yardstick is a client that does nothing but patch: the same two patches, from a watch of its own, as many at once, against the
//!   same control plane in the same run, before the operator is started. It decides nothing and remembers nothing.
//! - Fifty status writes a second, spread over the nodes, stand for heartbeats while nodes are released.
//! - Writes and refusals are counted in the API server's audit log and in the operator's metrics; CPU is that of the API server's process.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt as _, watcher},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{
    Benchmark, Body, Figure, Goal, Report, print, report,
    scale::{audit::AuditLog, cluster::Cluster},
};
use crate::{eventually::eventually, namespaces, network};

/// A thousand nodes at once.
pub const GATES: Benchmark = Benchmark { name: "gates", body: Body::Alone(|| Box::pin(measure())) };

/// Requests under way at once, of the bench as of the yardstick; the operator's own bound is the same.
const PARALLEL: usize = 32;
const KEY: &str = "readiness.k8s.io/bench";
const WARM: &str = "example.com/Warm";
const PATIENCE: Duration = Duration::from_mins(5);
/// Heartbeats a second.
const BEATS: u64 = 50;

/// When something was seen of a node.
#[derive(Clone, Copy, Debug, Default)]
struct Moments {
    there: Option<Instant>,
    tainted: Option<Instant>,
    warm: Option<Instant>,
    released: Option<Instant>,
}

type Seen = Arc<Mutex<BTreeMap<String, Moments>>>;

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

async fn measure() -> Result<Report> {
    let begun = Instant::now();
    let say = |line: &str| println!("{:6.1}s {line}", begun.elapsed().as_secs_f32());
    let count: usize = std::env::var("BED_BENCH_NODES").unwrap_or_else(|_| "1000".into()).parse().context("BED_BENCH_NODES")?;
    network::create().await.context("making the network")?;
    let mut cluster = Cluster::start(Path::new(namespaces::STATE)).await?;
    let client = cluster.server.client.clone();
    let seen = Seen::default();
    let watch = tokio::spawn(observe(client.clone(), Arc::clone(&seen)));

    let raw = tokio::spawn(yardstick(client.clone()));
    let raw_join = join(&cluster, &seen, "raw", count).await?;
    let raw_release = release(&cluster, &seen, "raw", count).await?;
    raw.abort();
    say(&format!("the yardstick: {:.2} s and {:.2} s", raw_join.total, raw_release.total));

    cluster.apply(&gate()).await?;
    cluster.start_operator()?;
    eventually(PATIENCE, "the operator leads", async || {
        ensure!(cluster.operator_metrics().await?.lines().any(|line| line == "ids_leader 1"), "it does not yet");
        Ok(())
    })
    .await?;
    let before = cluster.operator_figures()?.resident_mib()?;
    let audit = AuditLog::from_now(Path::new(namespaces::STATE))?;
    let ours_join = join(&cluster, &seen, "ours", count).await?;
    let joined = patches(&audit)?;
    let ours_release = release(&cluster, &seen, "ours", count).await?;
    let released = patches(&audit)? - joined;
    let memory = cluster.operator_figures()?.resident_mib()?;
    let refused = refusals(&cluster.operator_metrics().await?);
    say(&format!("the operator: {:.2} s and {:.2} s", ours_join.total, ours_release.total));
    watch.abort();
    cluster.check()?;

    let figures = figures(count, [(&ours_join, &raw_join), (&ours_release, &raw_release)], [joined, released], refused, memory, before);
    print("gates", &figures);
    let mut report = report(&figures);
    report.json["nodes"] = count.into();
    cluster.end().await?;
    Ok(report)
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn figures(count: usize, phases: [(&Phase, &Phase); 2], writes: [usize; 2], refused: f64, memory: f64, before: f64) -> Vec<Figure> {
    let [(join, raw_join), (release, raw_release)] = phases;
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
        Figure {
            what: "writes per node, joining",
            value: writes[0] as f64 / count as f64,
            unit: "",
            goal: Goal::AtMost(1.0),
            yardstick: None,
        },
        Figure {
            what: "writes per node, released",
            value: writes[1] as f64 / count as f64,
            unit: "",
            goal: Goal::AtMost(1.0),
            yardstick: None,
        },
        Figure { what: "patches that had no effect", value: refused, unit: "", goal: Goal::AtMost(0.0), yardstick: None },
        figure("API server CPU, joining", join.cpu, "s", at_most_raw(1.5, raw_join.cpu), raw_join.cpu),
        figure("API server CPU, released", release.cpu, "s", at_most_raw(1.5, raw_release.cpu), raw_release.cpu),
        Figure { what: "operator memory", value: memory, unit: "MiB", goal: Goal::AtMost(64.0), yardstick: Some(("before", before)) },
    ]
}

fn gate() -> Value {
    json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "NodeReadinessGate", "metadata": { "name": "bench" },
        "spec": {
            "nodeSelector": { "matchLabels": { "set": "ours" } },
            // The yardstick taints a node when it sees it, and so does the operator here.
            "admission": { "onCreate": "None" },
            "taint": { "key": KEY, "effect": "NoSchedule" },
            "requirements": [{ "name": "warm", "condition": { "type": WARM } }],
        },
    })
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

fn lock(seen: &Seen) -> std::sync::MutexGuard<'_, BTreeMap<String, Moments>> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn has_taint(node: &Node) -> bool {
    node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()).any(|taint| taint.key == KEY)
}

fn is_warm(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == WARM && condition.status == "True")
}

/// Notes when what was first seen of each node.
async fn observe(client: Client, seen: Seen) {
    let mut events = watcher::watcher(Api::<Node>::all(client), watcher::Config::default()).default_backoff().applied_objects().boxed();
    while let Some(event) = events.next().await {
        let Ok(node) = event else { continue };
        let now = Instant::now();
        let mut seen = lock(&seen);
        let moments = seen.entry(node.name_any()).or_default();
        moments.there.get_or_insert(now);
        if has_taint(&node) {
            moments.tainted.get_or_insert(now);
        } else if moments.tainted.is_some() {
            moments.released.get_or_insert(now);
        }
        if is_warm(&node) {
            moments.warm.get_or_insert(now);
        }
    }
}

/// A client that patches, and nothing else.
async fn yardstick(client: Client) {
    let api = Api::<Node>::all(client.clone());
    let done = Mutex::new(BTreeSet::new());
    let events =
        watcher::watcher(api.clone(), watcher::Config::default()).default_backoff().applied_objects().filter_map(async |event| event.ok());
    let events = events.filter(|node| futures::future::ready(node.name_any().starts_with("raw-")));
    events
        .for_each_concurrent(PARALLEL, |node| {
            let name = node.name_any();
            let step = match (has_taint(&node), is_warm(&node)) {
                (false, false) => Some(false),
                (true, true) => Some(true),
                (true, false) | (false, true) => None,
            };
            let step = step.filter(|step| done.lock().unwrap_or_else(PoisonError::into_inner).insert((name.clone(), *step)));
            let api = api.clone();
            async move {
                let (Some(release), mut node) = (step, node) else { return };
                // Others add and remove taints of the node, too.
                for _ in 0..5 {
                    let Ok(patch) = serde_json::from_value(bare_patch(&node, release)) else { return };
                    if api.patch(&name, &PatchParams::default(), &Patch::<()>::Json(patch)).await.is_ok() {
                        return;
                    }
                    let Ok(now) = api.get(&name).await else { continue };
                    node = now;
                }
                println!("the yardstick gave {name} up");
            }
        })
        .await;
}

/// The least that adds or removes the taint.
fn bare_patch(node: &Node, release: bool) -> Value {
    let taints: Vec<_> = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()).collect();
    let taint = json!({ "key": KEY, "effect": "NoSchedule" });
    if release {
        let at = taints.iter().position(|taint| taint.key == KEY).unwrap_or(0);
        let path = format!("/spec/taints/{at}");
        json!([{ "op": "test", "path": format!("{path}/key"), "value": KEY }, { "op": "remove", "path": path }])
    } else if taints.is_empty() {
        json!([{ "op": "add", "path": "/spec/taints", "value": [taint] }])
    } else {
        json!([{ "op": "add", "path": "/spec/taints/-", "value": taint }])
    }
}

/// All nodes of a set come at once.
async fn join(cluster: &Cluster, seen: &Seen, set: &str, count: usize) -> Result<Phase> {
    let api = Api::<Node>::all(cluster.server.client.clone());
    let cpu = cluster.server.cpu_seconds()?;
    let create = |index: usize| {
        let api = api.clone();
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name(set, index), "labels": { "set": set } } });
        async move { api.create(&PostParams::default(), &serde_json::from_value(node)?).await.context("creating a Node") }
    };
    futures::stream::iter((0..count).map(create)).buffer_unordered(PARALLEL).try_collect::<Vec<_>>().await?;
    let moments = all(seen, set, count, |moments| moments.tainted).await?;
    phase(&moments, |moments| moments.there, |moments| moments.tainted, cluster.server.cpu_seconds()? - cpu)
}

/// What all nodes of a set need comes about at once, beside heartbeats.
async fn release(cluster: &Cluster, seen: &Seen, set: &str, count: usize) -> Result<Phase> {
    let client = &cluster.server.client;
    let cpu = cluster.server.cpu_seconds()?;
    let beats = heartbeats(client.clone(), set.to_owned(), count);
    let warm = |index: usize| condition(client.clone(), name(set, index), WARM);
    futures::stream::iter((0..count).map(warm)).buffer_unordered(PARALLEL).try_collect::<Vec<_>>().await?;
    let moments = all(seen, set, count, |moments| moments.released).await;
    beats.abort();
    phase(&moments?, |moments| moments.warm, |moments| moments.released, cluster.server.cpu_seconds()? - cpu)
}

fn heartbeats(client: Client, set: String, count: usize) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_millis(1000 / BEATS));
        for index in (0..count).cycle() {
            ticks.tick().await;
            // One that fails is a heartbeat less.
            let _ = condition(client.clone(), name(&set, index), "MemoryPressure").await;
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

async fn all(seen: &Seen, set: &str, count: usize, moment: fn(&Moments) -> Option<Instant>) -> Result<Vec<Moments>> {
    let prefix = format!("{set}-");
    eventually(PATIENCE, &format!("{count} nodes are where they should be"), async || {
        let moments: Vec<_> = lock(seen).iter().filter(|(name, _)| name.starts_with(&prefix)).map(|(_, moments)| *moments).collect();
        let there = moments.iter().filter(|moments| moment(moments).is_some()).count();
        ensure!(there == count, "{there} are");
        Ok(moments)
    })
    .await
}

fn phase(moments: &[Moments], from: fn(&Moments) -> Option<Instant>, to: fn(&Moments) -> Option<Instant>, cpu: f64) -> Result<Phase> {
    let spans: Vec<_> = moments.iter().filter_map(|moments| Some((from(moments)?, to(moments)?))).collect();
    let first = spans.iter().map(|(from, _)| *from).min().context("no node was seen")?;
    let last = spans.iter().map(|(_, to)| *to).max().context("no node was seen")?;
    // What became true of a node before the watch showed it took no time.
    let mut latencies: Vec<_> = spans.iter().map(|(from, to)| to.saturating_duration_since(*from).as_secs_f64()).collect();
    latencies.sort_by(f64::total_cmp);
    Ok(Phase { latencies, total: last.duration_since(first).as_secs_f64(), cpu })
}
