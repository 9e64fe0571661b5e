//! The health checkers are replaced while the load balancer asks them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Pod, events::v1::Event};
use kube::{Api, api::ListParams};
use serde_json::{Value, json};

use crate::{
    auditor::Expectations,
    bed::Bed,
    cluster::product::{self, HEALTH_PORT, deployment_mark, four_nodes, rolling_update},
    eventually::eventually,
    load::{LoadOptions, Traffic, checks::Checks},
    scenario::Scenario,
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
const ROLLOUTS: usize = 15;
/// Of a rollout over four nodes, one at a time, whose readiness is asked every two seconds.
const ROLLED_OUT: Duration = Duration::from_mins(5);

/// Sixty hand-overs: each of four health checkers is replaced fifteen times.
pub const NO_CHECK_LOST: Scenario = Scenario {
    name: "sixty_hand_overs_of_health_checkers_lose_no_check",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(no_check_is_lost(bed)),
};

/// A second health port is one that the workload itself listens on: a condition and an event say so.
pub const PORT_TAKEN: Scenario = Scenario {
    name: "a_taken_health_port_is_reported_by_condition_and_event",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(port_taken(bed)),
};

async fn no_check_is_lost(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    health_checkers_are(bed, &Value::Null).await?;
    let addresses = bed.nodes().values().filter(|node| NODES.contains(&node.name())).map(|node| (node.address(), HEALTH_PORT).into());
    let checks = Checks::start(addresses.collect());
    let watch = bed.haproxy.watch().await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    for rollout in 1..=ROLLOUTS {
        let requests = json!({ "cpu": format!("{}m", 10 + rollout) });
        product::change(bed, json!({ "healthChecker": { "resources": { "requests": requests } } })).await?;
        health_checkers_are(bed, &requests).await?;
        bed.say(&format!("every health checker replaced {rollout} times, {} checks so far", checks.asked()));
    }
    let asked = checks.all_answered().await?;
    bed.say(&format!("{} hand-overs: {asked} checks, none failed", ROLLOUTS * NODES.len()));
    traffic.all_served(bed).await?;
    // HAProxy asks on connections of its own.
    watch.exactly(&NODES).await
}

/// Waits until each node has one health checker, ready and with these requests (`null`: any).
async fn health_checkers_are(bed: &Bed, requests: &Value) -> Result<()> {
    let sets = Api::<DaemonSet>::namespaced(bed.client.clone(), "default");
    let pods = Api::<Pod>::namespaced(bed.client.clone(), "default");
    let params = ListParams::default().labels(crds::names::HEALTH_CHECKER_LABEL);
    eventually(ROLLED_OUT, &format!("each node has one health checker with requests {requests}"), async || {
        let set = sets.list(&params).await?.items.pop().context("there is no DaemonSet")?;
        let status = set.status.unwrap_or_default();
        let ready = status.number_ready;
        ensure!(status.observed_generation >= set.metadata.generation && ready == 4, "{ready} of 4 are ready");
        let pods = pods.list(&params).await?.items;
        ensure!(pods.len() == 4, "there are {} pods", pods.len());
        for pod in pods {
            let container = pod.spec.and_then(|spec| spec.containers.into_iter().next()).context("no container")?;
            let found = serde_json::to_value(container.resources.and_then(|resources| resources.requests))?;
            ensure!(requests.is_null() || found == *requests, "one still has requests {found}");
        }
        Ok(())
    })
    .await
}

async fn port_taken(bed: &mut Bed) -> Result<()> {
    const TYPE: &str = "HealthCheckPortConflict";
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    let watch = bed.haproxy.watch().await?;
    product::change(bed, json!({ "healthCheckNodePorts": [HEALTH_PORT, 80] })).await?;
    let status = product::status_says(bed, "a node names the port that is taken", product::ROLLED_OUT, |status| {
        product::has_condition(status, TYPE, "True", TYPE)
    })
    .await?;
    let message = status.conditions.iter().find(|condition| condition.type_ == TYPE).map(|condition| condition.message.clone());
    let message = message.context("no condition")?;
    bed.say(&message);
    ensure!(message.starts_with("node n") && message.contains("port 80 is taken: another process uses the port"), "{message}");
    let events = Api::<Event>::namespaced(bed.client.clone(), "default");
    eventually(Duration::from_mins(1), "there is an event", async || {
        let events = events.list(&ListParams::default()).await?.items;
        ensure!(events.iter().any(|event| event.reason.as_deref() == Some(TYPE)), "none of {} events", events.len());
        Ok(())
    })
    .await?;
    product::change(bed, json!({ "healthCheckNodePorts": [HEALTH_PORT] })).await?;
    product::status_says(bed, "the condition is gone", product::ROLLED_OUT, |status| {
        status.conditions.iter().all(|condition| condition.type_ != TYPE)
    })
    .await?;
    watch.exactly(&NODES).await
}
