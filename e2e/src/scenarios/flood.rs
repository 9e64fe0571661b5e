//! A fleet of which every tenth node refuses the pods.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::{
    auditor::Expectations,
    bed::{Bed, Options, control_plane::Timing},
    cluster::{
        product,
        thin_nodes::{ThinNodes, name},
    },
    eventually::throughout,
    scenario::Scenario,
};

/// Nodes, unless the environment variable `BED_FLEET` names another number, of at most 1,000: the status names a hundred.
const NODES: usize = 300;
/// Every such node refuses.
const EVERY: usize = 10;
/// Pods on one refusing node until its breaker opens, and on average. A `ReplicaSet` makes the next one as soon as it sees the
/// last one fail, so this bounds how long the operator takes to notice while it makes all the Deployments.
const FLOOD: usize = 60;
const FLOOD_ON_AVERAGE: usize = 25;

/// Every tenth node refuses.
pub const FLEET: Scenario = Scenario {
    name: "a_fleet_with_nodes_that_refuse_pods_is_not_flooded",
    options: || Options {
        // Nobody renews the leases of nodes that are not there.
        timing: Timing { node_grace_seconds: 3600, ..Timing::default() },
        ..Options::default().with_infra()
    },
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(fleet(bed)),
};

async fn fleet(bed: &mut Bed) -> Result<()> {
    let nodes = std::env::var("BED_FLEET").map_or(Ok(NODES), |number| number.parse()).context("BED_FLEET is a number of nodes")?;
    bed.install().await?;
    let rejecting: BTreeSet<_> = (0..nodes).step_by(EVERY).map(name).collect();
    let fleet = ThinNodes::start(&bed.client, nodes, rejecting.clone()).await?;
    bed.say(&format!("{nodes} nodes are there"));
    let started = Instant::now();
    bed.apply(&[json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet",
        "metadata": { "name": product::NAME, "namespace": "default" },
        "spec": {
            "nodeSelector": { "ingress": "true" },
            "template": { "spec": { "automountServiceAccountToken": false, "containers": [{ "name": "c", "image": "busybox:1.36" }] } },
        },
    })])
    .await?;
    let available = u32::try_from(nodes - rejecting.len())?;
    // Breakers close one by one for another try, so that those of many nodes are hardly ever all open.
    let mut named = BTreeSet::new();
    let settled = |status: &crds::IngressDaemonSetStatus| {
        let refused = status.node_states.iter().filter(|state| state.reason == "AdmissionRejected" && state.message.contains("NodePorts"));
        named.extend(refused.map(|state| state.name.clone()));
        status.nodes.available == available && named == rejecting
    };
    product::status_says(bed, "all others serve, those that refuse are named", product::ROLLED_OUT, settled).await?;
    bed.say(&format!("settled {:.1} s after the resource was made", started.elapsed().as_secs_f32()));
    let made = fleet.pods_made();
    let on_rejecting: Vec<_> = made.iter().filter(|(node, _)| rejecting.contains(*node)).map(|(_, count)| *count).collect();
    let (total, most) = (on_rejecting.iter().sum::<usize>(), on_rejecting.iter().max().copied().unwrap_or(0));
    bed.say(&format!(
        "{total} pods were made on {} refusing nodes, {most} at most on one; operator: {} MiB",
        rejecting.len(),
        operator_memory()?
    ));
    ensure!(most <= FLOOD, "{most} pods were made on one node");
    ensure!(total <= FLOOD_ON_AVERAGE * rejecting.len(), "{total} pods were made on refusing nodes");
    let others = made.iter().filter(|(node, _)| !rejecting.contains(*node) && node.starts_with("thin-"));
    ensure!(others.map(|(_, count)| count).sum::<usize>() == nodes - rejecting.len(), "a node that serves got more than its pod");
    throughout(Duration::from_secs(10), "hardly any pod is made while the breakers are open", async || {
        let now: usize = fleet.pods_made().iter().filter(|(node, _)| rejecting.contains(*node)).map(|(_, count)| count).sum();
        // Breakers that opened first close meanwhile, one by one, for another try.
        ensure!(now <= total + rejecting.len() * 4, "{total} pods became {now}");
        Ok(())
    })
    .await
}

/// Resident memory of the greatest operator process, in MiB.
fn operator_memory() -> Result<u64> {
    let mut most = 0;
    for process in std::fs::read_dir("/proc")?.flatten() {
        let status = std::fs::read_to_string(process.path().join("status")).unwrap_or_default();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        // The kernel cuts names at 15 characters.
        if field("Name:") == Some("ingress-daemons") {
            let kib = field("VmRSS:").and_then(|size| size.split(' ').next()?.parse::<u64>().ok()).unwrap_or(0);
            most = most.max(kib / 1024);
        }
    }
    ensure!(most > 0, "no operator runs");
    Ok(most)
}
