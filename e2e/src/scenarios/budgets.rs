//! Budgets: zones with budgets of their own, one zone at a time, nodes that must stay available, nodes that
//! a person leaves out.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use crds::names::SKIP_ANNOTATION;
use serde_json::{Value, json};

use crate::{
    auditor::{Expectations, Kind},
    bed::{Bed, Options, node::NodeSpec},
    cluster::product::{self, deployment_mark, rolling_update},
    load::{LoadOptions, Traffic},
    scenario::Scenario,
};

const ZONES: [(&str, &str); 4] = [("n1", "a"), ("n2", "a"), ("n3", "b"), ("n4", "b")];
const ZONE_KEY: &str = "topology.kubernetes.io/zone";

/// Four nodes in two zones, under load: a budget of each zone, one zone after the other, nodes that must stay available, skipped nodes.
pub const BUDGETS: Scenario = Scenario {
    name: "budgets_of_zones_minimum_available_nodes_and_skipped_nodes_hold",
    options: || {
        let nodes = ZONES.map(|(name, zone)| NodeSpec::new(name).label("ingress", "true").zone(zone));
        Options { nodes: nodes.into(), ..Options::default() }.with_infra()
    },
    expected: || Expectations::budget(3),
    body: |bed| Box::pin(room(bed)),
};

fn zone(node: &str) -> &'static str {
    ZONES.iter().find(|(name, _)| *name == node).map_or("", |(_, zone)| zone)
}

/// What the ledger held at each moment since `from`, one set of nodes after the other.
pub(super) async fn ledgers(bed: &Bed, from: usize) -> Result<Vec<BTreeSet<String>>> {
    let history = bed.recorder.history().await?;
    let seen = history[from..].iter().filter(|seen| seen.kind == Kind::IngressDaemonSet);
    let grants = seen.filter_map(|seen| seen.object["status"]["rollout"]["grants"].as_object());
    let mut sets: Vec<BTreeSet<String>> = grants.map(|grants| grants.keys().cloned().collect()).collect();
    sets.dedup();
    Ok(sets)
}

async fn roll(bed: &Bed, version: &str, more: Value) -> Result<Vec<BTreeSet<String>>> {
    product::change(bed, json!({ "updateStrategy": rolling_update(3, more) })).await?;
    let from = bed.recorder.history().await?.len();
    product::roll_to(bed, version).await?;
    product::is_complete(bed, ZONES.len(), product::ROLLED_OUT).await?;
    ledgers(bed, from).await
}

fn in_zones(nodes: &BTreeSet<String>) -> BTreeMap<&'static str, usize> {
    let mut zones = BTreeMap::new();
    for node in nodes {
        *zones.entry(zone(node)).or_default() += 1;
    }
    zones
}

async fn room(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(3, deployment_mark()), &ZONES.map(|(name, _)| name)).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;

    let seen = roll(bed, "2", json!({ "topology": { "key": ZONE_KEY, "maxUnavailableNodes": 1 } })).await?;
    ensure!(seen.iter().all(|nodes| in_zones(nodes).values().all(|count| *count <= 1)), "a zone had more than one node out: {seen:?}");
    ensure!(seen.iter().any(|nodes| nodes.len() == 2), "zones waited for each other: {seen:?}");
    bed.say("one node of each zone at a time, both zones at once");

    let seen = roll(bed, "3", json!({ "topology": { "key": ZONE_KEY, "oneDomainAtATime": true } })).await?;
    let order: Vec<_> = seen.iter().map(in_zones).filter(|zones| !zones.is_empty()).collect();
    ensure!(order.iter().all(|zones| zones.len() == 1), "two zones at a time: {seen:?}");
    let turns: Vec<_> = order.iter().flat_map(BTreeMap::keys).collect();
    ensure!(turns.windows(2).filter(|pair| pair[0] != pair[1]).count() == 1, "a zone was left before it was finished: {turns:?}");
    bed.say("one zone after the other");

    let keep = json!({ "topology": null, "minAvailableNodes": ZONES.len() });
    product::change(bed, json!({ "updateStrategy": rolling_update(3, keep) })).await?;
    product::roll_to(bed, "4").await?;
    let waiting = |status: &crds::IngressDaemonSetStatus, reason: &str| {
        status.node_states.iter().filter(|node| node.reason == reason).map(|node| node.name.clone()).collect::<BTreeSet<_>>()
    };
    product::status_says(bed, "all wait for minAvailableNodes", product::SAID, |status| {
        waiting(status, "MinAvailableNodes").len() == ZONES.len() && status.nodes.updated == 0
    })
    .await?;
    let seen = roll(bed, "5", json!({ "minAvailableNodes": "75%" })).await?;
    ensure!(seen.iter().all(|nodes| nodes.len() <= 1), "fewer than three of four nodes were left: {seen:?}");
    bed.say("as many nodes as must be stay available");

    let annotation = format!("{SKIP_ANNOTATION}=default/{}", product::NAME);
    bed.kubectl(&["annotate", "node", "n3", &annotation]).await?;
    product::change(bed, json!({ "updateStrategy": rolling_update(3, json!({ "minAvailableNodes": 0 })) })).await?;
    product::roll_to(bed, "6").await?;
    let status = product::status_says(bed, "three are updated, the fourth is skipped", product::ROLLED_OUT, |status| {
        let rollout = status.rollout.as_ref().is_some_and(|ledger| ledger.grants.is_empty());
        rollout && status.nodes.updated == 3 && status.nodes.available == 4
    })
    .await?;
    ensure!(waiting(&status, "Skipped") == BTreeSet::from(["n3".to_owned()]), "{:?}", status.node_states);
    bed.kubectl(&["annotate", "node", "n3", &format!("{SKIP_ANNOTATION}-")]).await?;
    product::is_complete(bed, ZONES.len(), product::ROLLED_OUT).await?;
    bed.say("a node that a person left out stays as it is until it is not left out any more");

    traffic.all_served(bed).await
}
