//! What only machines have: kubelets and containerds that are killed, disks that are full, memory that is short. `bed kubelets` also runs
//! scenarios of other files on machines.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use crds::{names, status::NodeState};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use serde_json::{Value, json};

use crate::{
    auditor::{Expectations, Kind, Observation},
    bed::{Bed, INFRA_NODES, Options},
    cluster::product::{self, deployment_mark, four_nodes, rolling_update},
    eventually::eventually,
    host::images,
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

/// Somebody deletes the Node of a machine that serves, and its kubelet is restarted.
pub const REGISTERED_ANEW: Scenario = Scenario {
    name: "a_node_registered_anew_serves_again_and_disturbs_no_other",
    options: four_machines,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(registered_anew(bed)),
};

async fn registered_anew(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let watch = bed.haproxy.watch().await?;
    let uid = bed.node("n2")?.re_register().await?;
    bed.say(&format!("n2 is another Node, {uid}"));
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.haproxy.serves(product::ROLLED_OUT, &NODES).await?;
    watch.at_least(3).await?;
    // Its pods end unannounced.
    traffic.loses_at_most(2 * UNANNOUNCED, bed).await
}

/// The images of the plugin and of virtual-kubelet run in containerd as they do elsewhere.
pub const IMAGES: Scenario = Scenario {
    name: "images_of_plugin_and_virtual_kubelet_run_in_containerd",
    options: four_machines,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(images_run(bed)),
};

/// Until a pod has started, and the program in it has done its work.
const RUNS: Duration = Duration::from_mins(1);

async fn images_run(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    bed.kubectl(&["create", "clusterrolebinding", "everything", "--clusterrole=cluster-admin", "--serviceaccount=default:default"]).await?;
    let image = |name: &str| format!("{}{name}:{}", images::REGISTRY, env!("CARGO_PKG_VERSION"));
    let pod = |name: &str, spec: Value| json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "default" }, "spec": spec });

    // It finds the cluster by the pod's own account.
    let container = json!({ "name": "plugin", "image": image("kubectl-ids"), "args": ["status", product::NAME] });
    bed.apply(&[pod("plugin", json!({ "nodeName": "n1", "restartPolicy": "Never", "containers": [container] }))]).await?;
    let pods = Api::<Pod>::namespaced(bed.client.clone(), "default");
    let told = eventually(RUNS, "the plugin has ended", async || {
        let status = pods.get("plugin").await?.status.unwrap_or_default();
        ensure!(status.phase.as_deref() == Some("Succeeded"), "{status:?}");
        bed.kubectl(&["logs", "plugin"]).await
    })
    .await?;
    ensure!(told.contains(&format!("default/{}  Complete", product::NAME)), "{told}");
    bed.say("the plugin in a pod says that the rollout is complete");

    let file = format!("--from-file=admin={}", bed.control_plane.admin_kubeconfig().display());
    bed.kubectl(&["create", "secret", "generic", "kubeconfig", &file]).await?;
    let fleet = json!({
        "nodeName": "n1",
        "hostNetwork": true,
        "containers": [{
            "name": "fleet", "image": image("virtual-kubelet"), "args": ["fleet", "--simulate=3", "--kubeconfig=/cluster/admin"],
            "volumeMounts": [{ "name": "cluster", "mountPath": "/cluster" }],
        }],
        "volumes": [{ "name": "cluster", "secret": { "secretName": "kubeconfig" } }],
    });
    bed.apply(&[pod("fleet", fleet)]).await?;
    let nodes = Api::<Node>::all(bed.client.clone());
    eventually(RUNS, "three simulated nodes are Ready", async || {
        for name in ["sim-0", "sim-1", "sim-2"] {
            let conditions = nodes.get(name).await?.status.and_then(|status| status.conditions).unwrap_or_default();
            ensure!(conditions.iter().any(|found| found.type_ == "Ready" && found.status == "True"), "{name}: {conditions:?}");
        }
        Ok(())
    })
    .await?;
    bed.say("virtual-kubelet in a pod keeps three nodes");
    Ok(())
}

/// Kubelets and containerds are killed all the time, and the operator once in each of two rollouts.
pub const KILLED: Scenario = Scenario {
    name: "kubelets_and_containerds_killed_during_rollouts_lose_no_request",
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
            // Each alone, and both: over a round each node has another of the three.
            let which = (turn + turn / NODES.len()) % 3;
            // A kubelet that begins while there is no containerd ends, and nothing here starts it again as systemd would.
            if which != 0 {
                node.machine()?.restart_containerd().await?;
                containerds += 1;
            }
            if which != 1 {
                node.restart_agent().await?;
                kubelets += 1;
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
    for node in NODES {
        bed.node(node)?.ready().await.context("after the last kill")?;
    }
    // One is updated, and the pods of another may count as not ready until its new kubelet has asked them.
    watch.at_least(2).await?;
    traffic.all_served(bed).await
}

/// Its kubelet evicts what runs on it, the health checker stays and says so to the load balancer, and all comes back by itself.
pub const FULL_DISK: Scenario = Scenario {
    name: "a_full_disk_takes_pods_but_no_health_checker",
    options: four_machines,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(full_disk(bed)),
};

/// A kubelet looks at its disk every ten seconds, evicts one pod at a time, and waits before it trusts a disk that has room again.
const EVICTED: Duration = Duration::from_mins(3);

async fn full_disk(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    let from = bed.recorder.history().await?.len();
    let checker = health_checker_of(bed, "n1").await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let watch = bed.haproxy.watch().await?;
    let fill = "fallocate -l $(( $(stat --file-system --format='%a * %S' /) / 100 * 97 )) /var/full";
    bed.node("n1")?.machine()?.run(&["sh", "-c", fill]).await?;
    has_disk_pressure(bed, "True").await?;
    eventually(EVICTED, "the health checker takes n1 out, by an answer", async || {
        let counters = bed.haproxy.counters().await?;
        let server = counters.servers.get("n1").context("HAProxy does not know n1")?;
        ensure!(server.status.starts_with("DOWN") && server.last_check == "L7STS", "{server:?}");
        Ok(())
    })
    .await?;
    let status = product::status_says(bed, "n1 says what its kubelet refuses, and the others serve", EVICTED, |status| {
        let says = |state: &NodeState| state.name == "n1" && state.reason == "AdmissionRejected" && state.message.contains("DiskPressure");
        status.nodes.available == 3 && status.node_states.iter().any(says)
    })
    .await?;
    bed.say(&product::summary(&status));
    ensure!(health_checker_of(bed, "n1").await? == checker, "n1 has another health checker");
    let machine = bed.node("n1")?.machine()?;
    machine.run(&["rm", "/var/full"]).await?;
    // A kubelet removes the images that nothing uses before it evicts anything; there is no registry to ask.
    machine.load_images().await?;
    has_disk_pressure(bed, "False").await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.haproxy.serves(EVICTED, &NODES).await?;
    ensure!(health_checker_of(bed, "n1").await? == checker, "n1 has another health checker");
    let history = bed.recorder.history().await?;
    let told =
        |seen: &Observation| seen.kind == Kind::Pod && seen.object["status"]["conditions"].to_string().contains("TerminationByKubelet");
    ensure!(history.iter().skip(from).any(told), "no pod was evicted");
    watch.at_least(3).await?;
    // Both pods of the node end unannounced, the second one a second after the first.
    traffic.loses_at_most(2 * UNANNOUNCED, bed).await
}

/// What runs as the health checker of a node: the pod, and its container.
async fn health_checker_of(bed: &Bed, node: &str) -> Result<String> {
    let fields = format!("spec.nodeName={node}");
    let which = "jsonpath={.items[*].metadata.uid} {.items[*].status.containerStatuses[*].containerID}";
    let found = bed.kubectl(&["get", "pods", "-l", names::HEALTH_CHECKER_LABEL, "--field-selector", &fields, "-o", which]).await?;
    ensure!(found.split(' ').count() == 2, "{node} has not one health checker: {found}");
    Ok(found)
}

/// The kubelet of n1 says so of its disk.
async fn has_disk_pressure(bed: &Bed, wanted: &str) -> Result<()> {
    let nodes = Api::<Node>::all(bed.client.clone());
    eventually(EVICTED, &format!("DiskPressure is {wanted}"), async || {
        let conditions = nodes.get("n1").await?.status.and_then(|status| status.conditions).unwrap_or_default();
        let found = conditions.iter().find(|condition| condition.type_ == "DiskPressure").context("it says nothing of its disk")?;
        ensure!(found.status == wanted, "it is {}", found.status);
        Ok(())
    })
    .await
}

/// The kernel ends what needs more than its limit.
pub const OUT_OF_MEMORY: Scenario = Scenario {
    name: "a_revision_killed_for_memory_reaches_one_node",
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
    fails(bed, DEFAULTS, template, "CrashLoop", ONE_NODE).await?;
    let history = bed.recorder.history().await?;
    let resources = history.iter().skip(from).filter(|seen| seen.kind == Kind::IngressDaemonSet);
    let states: Vec<_> = resources.flat_map(|seen| seen.object["status"]["nodeStates"].as_array().cloned().unwrap_or_default()).collect();
    let named = states
        .iter()
        .find(|state| state["reason"] == "CrashLoop" && state["message"].as_str().is_some_and(|text| text.contains("OOMKilled")));
    bed.say(&format!("{}", named.context("no state of a node named the cause")?));
    Ok(())
}
