//! Nodes that join, then rollout after rollout over them, and the built-in `DaemonSet` beside it.

use std::{
    collections::HashMap,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::Client;
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{
    audit::{AuditLog, Writes},
    cluster::Cluster,
    findings::{Findings, Say, precise},
    resource::{self, Marks},
    settings::{ONE_BY_ONE, Settings},
};
use crate::{
    bench::{
        benchmark::Goal,
        fleet::{
            figures::percentile_millis,
            objects,
            raw::{self, Change},
        },
    },
    cluster::product,
    eventually::eventually,
};

/// How long a rollout may take beyond ten times the ideal, and everything else.
const PATIENCE: Duration = Duration::from_mins(10);
/// Writes of status that follow the end of a rollout still belong to it.
const SETTLE: Duration = Duration::from_millis(1500);
/// Requests under way at once.
const PARALLEL: usize = 64;

/// All of it, on one control plane.
pub async fn run(settings: &Settings, state: &Path, say: Say<'_>, findings: &mut Findings) -> Result<()> {
    let nodes = settings.rollout_nodes;
    let mut cluster = Cluster::start(state).await?;
    say("the control plane is ready");
    cluster.apply(&resource::ingress_daemon_set(1, settings.grace)).await?;
    cluster.start_operator()?;
    let joined = join(&mut cluster, settings, say).await.context("nodes that join")?;
    findings.add("new node → its Deployment, p99", joined[2], "s", Goal::AtMost(1.0), Some(("median", joined[0])));
    let details = json!({ "nodes per second": settings.join_rate, "p50, p90, p99, most in s": joined });
    findings.details.insert("join", details);
    cluster.start_fleet(nodes)?;
    cluster.nodes_are_ready(nodes).await?;
    cluster.is_complete(nodes, PATIENCE, say).await?;
    say(&format!("{nodes} nodes serve"));
    let mut version = 1;
    let mut slowest: f64 = 0.0;
    for &marks in &settings.marks {
        version += 1;
        let seconds =
            rollout(&mut cluster, settings, marks, version, say, findings).await.with_context(|| format!("rollout, {}", marks.name()))?;
        slowest = slowest.max(seconds);
    }
    let plain = daemon_set(&cluster, nodes).await.context("the built-in DaemonSet")?;
    say(&format!("built-in DaemonSet of {nodes} nodes, a pod each, no grace and no soak: {plain:.1} s"));
    findings.add("slowest of these rollouts", slowest, "s", Goal::None, Some(("built-in DaemonSet without grace, s", plain)));
    cluster.end().await
}

/// When the watches showed a Node, and when its Deployment.
#[derive(Debug, Default)]
struct Joins {
    nodes: HashMap<String, Instant>,
    deployments: HashMap<String, Instant>,
}

impl Joins {
    fn latencies(&self) -> Vec<Duration> {
        let made = |node: &String| self.deployments.get(&format!("{}-{node}", product::NAME)).copied();
        self.nodes.iter().filter_map(|(node, seen)| Some(made(node)?.saturating_duration_since(*seen))).collect()
    }
}

fn lock(joins: &Mutex<Joins>) -> MutexGuard<'_, Joins> {
    joins.lock()
}

/// A watch that ends when it is dropped.
struct Watch(JoinHandle<()>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn watch(client: &Client, path: &'static str, joins: &Arc<Mutex<Joins>>, which: fn(&mut Joins) -> &mut HashMap<String, Instant>) -> Watch {
    let (client, joins) = (client.clone(), Arc::clone(joins));
    Watch(tokio::spawn(async move {
        raw::follow(client, path, "", move |change| {
            let (now, mut joins) = (Instant::now(), lock(&joins));
            let objects = match change {
                Change::All(objects) => objects,
                Change::Is(object) => vec![object],
                Change::Gone(_) => Vec::new(),
            };
            for object in objects {
                which(&mut joins).entry(object.metadata.name).or_insert(now);
            }
        })
        .await;
    }))
}

/// Nodes register, evenly, as kubelets do that are ready at once. Returns p50, p90, p99 and the most, in seconds.
async fn join(cluster: &mut Cluster, settings: &Settings, say: Say<'_>) -> Result<[f64; 4]> {
    let nodes = settings.rollout_nodes;
    let joins = Arc::new(Mutex::new(Joins::default()));
    let client = cluster.server.client.clone();
    let _watches = [
        watch(&client, "/api/v1/nodes", &joins, |joins| &mut joins.nodes),
        watch(&client, "/apis/apps/v1/namespaces/default/deployments", &joins, |joins| &mut joins.deployments),
    ];
    eventually(PATIENCE, "the operator has decided", async || {
        cluster.check()?;
        anyhow::ensure!(cluster.operator_metrics().await?.contains("ids_passes_total{result=\"ok\"}"), "it has not");
        Ok(())
    })
    .await?;
    let begun = tokio::time::Instant::now();
    let requests = (0..nodes).map(|index| {
        let client = client.clone();
        async move {
            tokio::time::sleep_until(begun + Duration::from_secs_f64(precise(index) / settings.join_rate)).await;
            let mut node: Value = serde_json::from_str(&objects::node(index, true))?;
            node["metadata"]["labels"][resource::NODE_LABEL.0] = resource::NODE_LABEL.1.into();
            raw::send(&client, "POST", "/api/v1/nodes", "application/json", node.to_string()).await.context("making a node")?;
            anyhow::Ok(())
        }
    });
    stream::iter(requests).buffer_unordered(PARALLEL).try_collect::<()>().await?;
    eventually(PATIENCE, "each node has its Deployment", async || {
        cluster.check()?;
        let made = lock(&joins).latencies().len();
        anyhow::ensure!(made == nodes, "{made} have");
        Ok(())
    })
    .await?;
    let latencies = lock(&joins).latencies();
    let percentile = |percent| percentile_millis(latencies.clone(), percent).unwrap_or_default() / 1000.0;
    let most = latencies.iter().max().copied().unwrap_or_default().as_secs_f64();
    let all = [percentile(50), percentile(90), percentile(99), most];
    say(&format!("{nodes} nodes joined, {} a second; to the Deployment p50, p90, p99, most: {all:.3?} s", settings.join_rate));
    Ok(all)
}

/// One rollout; returns its time in seconds, without the nodes that were updated one at a time.
async fn rollout(
    cluster: &mut Cluster,
    settings: &Settings,
    marks: Marks,
    version: u32,
    say: Say<'_>,
    findings: &mut Findings,
) -> Result<f64> {
    let nodes = settings.rollout_nodes;
    cluster
        .change(json!({ "updateStrategy": resource::strategy(marks, &1.into(), settings.grace), "template": resource::template(version) }))
        .await?;
    let per_node = one_by_one(cluster).await.context("nodes one at a time")?;
    let log = AuditLog::from_now(&cluster.state)?;
    let cpu = cluster.operator_figures()?.cpu_seconds()?;
    let begun = Instant::now();
    cluster.change(json!({ "updateStrategy": { "rollingUpdate": { "maxUnavailableNodes": resource::BUDGET } } })).await?;
    let left = nodes - ONE_BY_ONE;
    let rounds = precise(left.div_ceil(resource::budget_of(nodes)));
    let ideal = rounds * per_node;
    cluster.is_complete(nodes, PATIENCE + Duration::from_secs_f64(ideal * 10.0), say).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let cpu = cluster.operator_figures()?.cpu_seconds()? - cpu;
    tokio::time::sleep(SETTLE).await;
    let writes = log.writes()?;
    let each = precise(writes.values().sum()) / precise(left);
    let ledger = precise(writes.get("patch ingressdaemonsets/status").copied().unwrap_or_default()) / precise(left);
    let least = least_per_node(settings);
    say(&format!(
        "{}: {seconds:.1} s for {left} nodes, {per_node:.2} s a node one at a time (at least {least} s), operator {cpu:.1} s of CPU, writes: {}",
        marks.name(),
        text(&writes)
    ));
    let (ratio, of_writes, most, detail) = match marks {
        Marks::Deployment => ("rollout ÷ ideal, Deployment mark", "writes per node, Deployment mark", 4.0, "Deployment mark"),
        Marks::Node => ("rollout ÷ ideal, Node mark", "writes per node, Node mark", 5.0, "Node mark"),
        Marks::Both => ("rollout ÷ ideal, both marks", "writes per node, both marks", 6.0, "both marks"),
    };
    findings.add(
        ratio,
        seconds / ideal,
        "",
        Goal::AtMost(1.05),
        Some(("÷ least that grace, pods and soak take", seconds / (rounds * least))),
    );
    findings.add(of_writes, each, "", Goal::AtMost(most), Some(("of these status and ledger", ledger)));
    let details = json!({ "seconds": seconds, "per node": per_node, "least per node": least, "operator CPU": cpu, "writes": writes });
    findings.details.insert(detail, details);
    Ok(seconds)
}

/// Grace, pods that stop and pods that become ready, soak.
fn least_per_node(settings: &Settings) -> f64 {
    let wait = settings.grace.unwrap_or(resource::DEFAULT_GRACE);
    f64::from(2 * wait + resource::STOP_SECONDS + resource::READY_SECONDS)
}

/// The mean time from one grant to the next, while there is one at a time.
async fn one_by_one(cluster: &mut Cluster) -> Result<f64> {
    let mut seen: Vec<(u64, Instant)> = Vec::new();
    let begun = Instant::now();
    while seen.len() <= ONE_BY_ONE {
        cluster.check()?;
        let resource = cluster.resource().await?;
        let now = Instant::now();
        let status = resource.status.unwrap_or_default();
        if let Some(grant) = status.rollout.iter().flat_map(|ledger| ledger.grants.values()).next()
            && seen.last().is_none_or(|(id, _)| *id != grant.id)
        {
            seen.push((grant.id, now));
        }
        if begun.elapsed() > PATIENCE {
            bail!("{} were begun within {PATIENCE:?}: {:?}", seen.len(), status.nodes);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (Some((_, first)), Some((_, last))) = (seen.first(), seen.last()) else { bail!("none was begun") };
    Ok(last.duration_since(*first).as_secs_f64() / precise(ONE_BY_ONE))
}

/// How long the built-in one takes, in seconds.
async fn daemon_set(cluster: &Cluster, nodes: usize) -> Result<f64> {
    cluster.apply(&resource::daemon_set(1)).await?;
    cluster.daemon_set_is_complete(nodes, PATIENCE).await?;
    let begun = Instant::now();
    cluster.apply(&resource::daemon_set(2)).await?;
    cluster.daemon_set_is_complete(nodes, PATIENCE * 3).await?;
    Ok(begun.elapsed().as_secs_f64())
}

fn text(writes: &Writes) -> String {
    writes.iter().map(|(kind, count)| format!("{kind} {count}")).collect::<Vec<_>>().join(", ")
}
