//! What only machines have: kubelets and containerds that are killed, disks that are full, memory that is short. Their nodes are machines with
//! real kubelets. What the scenarios of `bed kubelets` besides these are about, virtual kubelets have, too.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use serde_json::json;

use crate::{
    auditor::{Expectations, Kind},
    bed::{Bed, INFRA_NODES, Options},
    cluster::product::{self, deployment_mark, four_nodes, rolling_update},
    eventually::eventually,
    load::{LoadOptions, Traffic},
    scenario::Scenario,
    scenarios::{
        changes::UNANNOUNCED,
        proof::{DEFAULTS, ONE_NODE, fails},
    },
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

fn four_machines() -> Options {
    four_nodes().with_kubelets()
}

/// Somebody restarts everything that runs containers, all the time.
pub const KILLED: Scenario = Scenario {
    name: "kubelets_containerds_and_operators_killed_again_and_again_in_two_rollouts_lose_no_request",
    options: four_machines,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(killed(bed)),
};

/// From one kill to the next: a kubelet has some time to work before its turn comes again.
const BETWEEN_KILLS: Duration = Duration::from_secs(3);

async fn killed(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let watch = bed.haproxy.watch().await?;
    let mut ticks = tokio::time::interval(BETWEEN_KILLS);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut kubelets, mut containerds, mut operators) = (0, 0, 0);
    for version in ["2", "3"] {
        product::roll_to(bed, version).await?;
        for turn in 0.. {
            ticks.tick().await;
            let resource = product::api(bed).get(product::NAME).await?;
            if turn > NODES.len() && product::has_ended(&resource, NODES.len()) {
                break;
            }
            let node = bed.node(NODES[turn % NODES.len()])?;
            node.restart_agent().await?;
            kubelets += 1;
            if turn % 2 == 1 {
                node.machine()?.restart_containerd().await?;
                containerds += 1;
            }
            // A container that ends again and again is started again later and later.
            if turn == 1 {
                for infra in INFRA_NODES {
                    bed.node(infra)?.machine()?.run(&["pkill", "-KILL", "ingress-daemons"]).await?;
                    operators += 1;
                }
            }
        }
        bed.say(&format!(
            "version {version} is everywhere; killed so far: {kubelets} kubelets, {containerds} containerds, {operators} operators"
        ));
    }
    // One is updated, and the pods of another may count as not ready until its new kubelet has asked them.
    watch.at_least(2).await?;
    traffic.all_served(bed).await
}

/// Its kubelet evicts what runs on it, the health checker stays and says so to the load balancer, and all comes back by itself.
pub const FULL_DISK: Scenario = Scenario {
    name: "a_node_whose_disk_is_full_loses_its_pods_but_not_its_health_checker_and_serves_again_when_there_is_room",
    options: four_machines,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(full_disk(bed)),
};

/// A kubelet looks at its disk every ten seconds, evicts one pod at a time, and waits before it trusts a disk that has room again.
const EVICTED: Duration = Duration::from_mins(3);

async fn full_disk(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let watch = bed.haproxy.watch().await?;
    let fill = "fallocate -l $(( $(stat --file-system --format='%a * %S' /) / 100 * 97 )) /var/full";
    bed.node("n1")?.machine()?.run(&["sh", "-c", fill]).await?;
    let nodes = Api::<Node>::all(bed.client.clone());
    let pressure = async |wanted: &str| -> Result<()> {
        let conditions = nodes.get("n1").await?.status.and_then(|status| status.conditions).unwrap_or_default();
        let found = conditions.iter().find(|condition| condition.type_ == "DiskPressure").context("it says nothing of its disk")?;
        ensure!(found.status == wanted, "DiskPressure is {}", found.status);
        Ok(())
    };
    eventually(EVICTED, "the kubelet says that the disk is full", async || pressure("True").await).await?;
    // The health checker tells the load balancer that the node is out of service.
    bed.haproxy.serves(EVICTED, &NODES[1..]).await?;
    let status = product::status_says(bed, "three nodes serve", EVICTED, |status| status.nodes.available == 3).await?;
    bed.say(&product::summary(&status));
    let machine = bed.node("n1")?.machine()?;
    machine.run(&["rm", "/var/full"]).await?;
    // A kubelet removes the images that nothing uses before it evicts anything; there is no registry to ask.
    machine.load_images().await?;
    eventually(EVICTED, "the kubelet says that there is room", async || pressure("False").await).await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.haproxy.serves(EVICTED, &NODES).await?;
    watch.at_least(3).await?;
    traffic.loses_at_most(UNANNOUNCED, bed).await
}

/// The kernel ends what needs more than its limit.
pub const OUT_OF_MEMORY: Scenario = Scenario {
    name: "a_revision_that_is_killed_for_want_of_memory_reaches_one_node_and_is_rolled_back",
    options: four_machines,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(out_of_memory(bed)),
};

async fn out_of_memory(bed: &mut Bed) -> Result<()> {
    let from = bed.recorder.history().await?.len();
    let mut template = product::template("2");
    template["spec"]["containers"].as_array_mut().context("no containers")?.push(json!({
        "name": "beside", "image": "busybox:1.36", "command": ["/bin/sh", "-c", "sleep 2; tail /dev/zero"],
        "resources": { "limits": { "memory": "32Mi" } },
    }));
    // Each end is a break; with this memory the pods come up no better the third time.
    fails(bed, DEFAULTS, template, "Flapping", ONE_NODE).await?;
    let history = bed.recorder.history().await?;
    let resources = history.iter().skip(from).filter(|seen| seen.kind == Kind::IngressDaemonSet);
    let states: Vec<_> = resources.flat_map(|seen| seen.object["status"]["nodeStates"].as_array().cloned().unwrap_or_default()).collect();
    let named = states
        .iter()
        .find(|state| state["reason"] == "CrashLoop" && state["message"].as_str().is_some_and(|text| text.contains("OOMKilled")));
    bed.say(&format!("{}", named.context("no state of a node named the cause")?));
    Ok(())
}
