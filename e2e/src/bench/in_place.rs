//! Images that change in place, beside pods that are re-created: what an update writes, how long it takes, and for how long a node
//! is out of the load balancer.
//!
//! What is measured how:
//! - Four nodes of two pods each, one node at a time, with the same marks, grace and soak; nothing but the image changes.
//! - Writes are the versions that the resource, Deployments, `ReplicaSets` and pods got, whoever wrote them: the operator, the
//!   controllers, the node agents. The operator's own are counted by a proxy in front of it, without leases and events.
//! - A node is out while `HAProxy` sends it nothing.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::benchmark::{Benchmark, Body, Figure, Goal};
use crate::{
    auditor::Kind,
    bed::Bed,
    cluster::{
        operator_process::{self, OperatorProcess},
        product::{self, deployment_mark, four_nodes, rolling_update},
    },
    faults::FaultProxy,
    host::images,
    load::outage::Outages,
};

/// Four nodes, three times.
pub const IN_PLACE: Benchmark =
    Benchmark { name: "inplace", body: Body::InBed { options: four_nodes, measure: |bed| Box::pin(measure(bed)) } };

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
const PATIENCE: Duration = Duration::from_mins(3);

/// What one rollout took, for each node.
struct Cost {
    writes: f64,
    own: f64,
    seconds: f64,
    out: f64,
}

async fn measure(bed: &mut Bed) -> Result<Vec<Figure>> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    operator_process::stop_pods(bed).await?;
    let proxy = FaultProxy::start(bed).await?;
    let mut operator = OperatorProcess::start_behind(bed, "bench", &proxy, &[]).await?;
    product::is_complete(bed, NODES.len(), PATIENCE).await?;
    let again = roll(bed, &proxy, images::NEWER_NGINX).await.context("re-creation")?;
    set(bed, json!({ "podUpdate": "InPlaceIfPossible" })).await?;
    // Pods get the gate, once.
    product::roll_to(bed, "2").await?;
    product::is_complete(bed, NODES.len(), PATIENCE).await?;
    product::roll_to(bed, "1").await?;
    product::is_complete(bed, NODES.len(), PATIENCE).await?;
    let stays = roll(bed, &proxy, images::NEWER_NGINX).await.context("in place")?;
    set(bed, json!({ "prePull": true })).await?;
    let pulled = roll(bed, &proxy, images::NGINX).await.context("in place with prePull")?;
    operator.check()?;
    let row = |what, value, unit, other| Figure { what, value, unit, goal: Goal::None, yardstick: Some(("re-created", other)) };
    Ok(vec![
        row("writes per node, in place", stays.writes, "", again.writes),
        row("of the operator", stays.own, "", again.own),
        row("time per node, in place", stays.seconds, "s", again.seconds),
        row("longest time a node was out, in place", stays.out, "s", again.out),
        row("writes per node, in place with prePull", pulled.writes, "", again.writes),
        row("of the operator", pulled.own, "", again.own),
        row("time per node, in place with prePull", pulled.seconds, "s", again.seconds),
        row("longest time a node was out, in place with prePull", pulled.out, "s", again.out),
    ])
}

async fn set(bed: &Bed, more: Value) -> Result<()> {
    product::change(bed, json!({ "updateStrategy": { "rollingUpdate": more } })).await?;
    product::is_complete(bed, NODES.len(), PATIENCE).await
}

async fn roll(bed: &Bed, proxy: &FaultProxy, image: &str) -> Result<Cost> {
    let (before, own) = (bed.recorder.history().await?.len(), writes(proxy));
    let outages = Outages::start(&bed.haproxy);
    let started = Instant::now();
    let mut template = product::template("1");
    template["spec"]["containers"][0]["image"] = image.into();
    product::change(bed, json!({ "template": template })).await?;
    product::is_complete(bed, NODES.len(), PATIENCE).await?;
    let seconds = started.elapsed().as_secs_f64();
    let out = outages.stop().await?.longest.as_secs_f64();
    let history = bed.recorder.history().await?;
    let counted = history.iter().skip(before).filter(|seen| !matches!(seen.kind, Kind::Node | Kind::ClusterRoleBinding)).count();
    let nodes = f64::from(u8::try_from(NODES.len()).unwrap_or(u8::MAX));
    let each = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / nodes;
    Ok(Cost { writes: each(counted), own: each(writes(proxy).saturating_sub(own)), seconds: seconds / nodes, out })
}

/// Writes of the operator so far.
fn writes(proxy: &FaultProxy) -> usize {
    let log = proxy.log();
    let others = ["/leases", "/events"];
    log.iter().filter(|exchange| exchange.request.is_write() && !others.iter().any(|other| exchange.request.path.contains(other))).count()
}
