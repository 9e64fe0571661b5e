//! How many nodes may lose their release, on the real API server: part of the scenario `gates_that_share_a_taint_never_flap_it`.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use serde_json::json;

use crate::{
    auditor::Kind,
    bed::Bed,
    cluster::node_gates::{becomes, delete_gate, gate, has_condition, metrics, node, says, warm},
    eventually::{eventually, throughout},
};

const KEY: &str = "readiness.k8s.io/fleet";
const MINUTE: Duration = Duration::from_mins(1);
/// Longer than what was counted of a budget is believed.
const WHILE: Duration = Duration::from_millis(2500);
const NODES: usize = 10;
/// A fifth of them, and no more.
const ROOM: usize = 2;

fn name(index: usize) -> String {
    format!("fleet-{index}")
}

/// Nodes of the fleet that have the taint.
async fn tainted(bed: &Bed) -> Result<BTreeSet<String>> {
    let nodes = Api::<Node>::all(bed.client.clone()).list(&ListParams::default().labels("gate-fleet=yes")).await?.items;
    let has = |node: &Node| node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()).any(|taint| taint.key == KEY);
    Ok(nodes.iter().filter(|node| has(node)).map(kube::ResourceExt::name_any).collect())
}

/// All nodes cease to be ready at once, as by a bad release of one component.
pub async fn bounds_regressions(bed: &Bed) -> Result<()> {
    let spec = json!({ "mode": "Continuous", "admission": { "onCreate": "None" }, "retaint": { "failingFor": "0s" } });
    bed.apply(&[gate("fleet", KEY, spec)]).await?;
    for index in 0..NODES {
        node(bed, &name(index), &["fleet"], json!([])).await?;
        warm(bed, &name(index), "True").await?;
    }
    let all = u32::try_from(NODES)?;
    says(bed, "fleet", "all are released", |status| (status.nodes.matched, status.nodes.released) == (all, all)).await?;
    let from = bed.recorder.history().await?.len();
    for index in 0..NODES {
        warm(bed, &name(index), "False").await?;
    }
    let exhausted = |status: &crds::NodeReadinessGateStatus| {
        let said = status.conditions.iter().find(|condition| condition.type_ == "BudgetExhausted");
        (usize::try_from(status.nodes.held), usize::try_from(status.nodes.released)) == (Ok(ROOM), Ok(NODES - ROOM))
            && has_condition(status, "BudgetExhausted", "True", "TooManyRegressions")
            && said.is_some_and(|said| said.message.starts_with(&format!("{} nodes", NODES - ROOM)))
    };
    says(bed, "fleet", "a fifth of them is held, and the budget is used up", exhausted).await?;
    // The status may tell of what is decided a moment before it is written.
    let first = eventually(MINUTE, "so many have the taint", async || {
        let first = tainted(bed).await?;
        ensure!(first.len() == ROOM, "{first:?}");
        Ok(first)
    })
    .await?;
    throughout(WHILE, "no other node is tainted", async || {
        let now = tainted(bed).await?;
        ensure!(now == first, "{now:?}");
        Ok(())
    })
    .await?;
    let blocked = format!("ids_gate_nodes{{gate=\"fleet\",state=\"budget_blocked\"}} {}", NODES - ROOM);
    eventually(MINUTE, "the metric says so", async || {
        let text = metrics(bed).await?;
        let of_gate: Vec<_> = text.lines().filter(|line| line.contains("gate=\"fleet\"")).collect();
        ensure!(of_gate.contains(&blocked.as_str()), "{of_gate:?}");
        Ok(())
    })
    .await?;
    // One that has just come has nothing to lose: the budget is not for it.
    node(bed, "fleet-new", &["fleet"], json!([])).await?;
    becomes(bed, "fleet-new", KEY, true, 1).await?;
    // First those that would take the room of the others.
    let (held, kept): (Vec<_>, Vec<_>) = (0..NODES).map(name).partition(|name| first.contains(name));
    for name in kept.iter().chain(&held) {
        warm(bed, name, "True").await?;
    }
    says(bed, "fleet", "only the new node is held, and there is room again", |status| {
        status.nodes.held == 1 && has_condition(status, "BudgetExhausted", "False", "WithinBudget")
    })
    .await?;
    let history = bed.recorder.history().await?;
    let versions = history.iter().skip(from).filter(|seen| seen.kind == Kind::Node);
    let ever: BTreeSet<_> = versions
        .filter(|seen| seen.object["spec"]["taints"].as_array().is_some_and(|taints| taints.iter().any(|taint| taint["key"] == KEY)))
        .filter_map(|seen| seen.object["metadata"]["name"].as_str().map(str::to_owned))
        .filter(|name| name != "fleet-new")
        .collect();
    ensure!(ever == first, "tainted at any time: {ever:?}, and not only {first:?}");
    bed.say(&format!("{NODES} nodes ceased to be ready at once: {ROOM} were tainted, the others kept their release, and the gate said so"));
    delete_gate(bed, "fleet").await?;
    let nodes = Api::<Node>::all(bed.client.clone());
    nodes.delete_collection(&DeleteParams::default(), &ListParams::default().labels("gate-fleet=yes")).await.map(drop)?;
    Ok(())
}
