//! What nodetaintshandler is used for, with the operator in its place: a node that arrives has the taint, which its startup pod ends.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::{Value, json};

use super::{
    admission::{create, in_force},
    originals::{
        admission_objects, becomes_ready, clean_up, critical, held_are, is_held, node_names, nothing_is_left, operator, recorded, run_with,
        stay_held,
    },
};
use crate::{
    auditor::{Expectations, Kind, Observation},
    bed::{Bed, Options, node::NodeSpec},
    cluster::operator_process,
    eventually::eventually,
    scenario::Scenario,
};

const MINUTE: Duration = Duration::from_mins(1);
/// Key and value of the taint of the preset.
const INITIALIZING: (&str, &str) = ("startup.k8s.io/initializing", "wait");

/// A new node waits for its startup pod, as with nodetaintshandler.
pub const STARTUP: Scenario = Scenario {
    name: "new_nodes_wait_for_their_startup_pod_as_with_nodetaintshandler",
    options: || Options::with_nodes(1).with_infra(),
    expected: || Expectations::budget(0),
    body: |bed| Box::pin(startup(bed)),
};

async fn startup(bed: &mut Bed) -> Result<()> {
    bed.install().await?;
    run_with(bed, &["--preset=startup.k8s.io"]).await?;
    bed.apply(&[critical(bed, "init", INITIALIZING.0)]).await?;
    let there = node_names(bed);
    eventually(MINUTE, "nodes that were there count as released", async || {
        let known = recorded(bed).await?;
        ensure!(known == there, "{known:?} do");
        is_held(bed, INITIALIZING, &[]).await
    })
    .await?;
    in_force(bed, "role", "worker", INITIALIZING.0).await?;
    let system = create(bed, "would-be", &[("kubernetes.azure.com/mode", "system")], json!({}), true).await?;
    ensure!(taint_of(&serde_json::to_value(&system)?, INITIALIZING.0).is_none(), "a node of a system pool: {:?}", system.spec);
    bed.apply(&[workload("workload", "n5")]).await?;
    // One that nobody has tainted, and one that comes with the taint.
    bed.add_node(NodeSpec::new("n5")).await?;
    bed.add_node(NodeSpec::new("n6").taint("startup.k8s.io/initializing=wait:NoSchedule")).await?;
    born_tainted(bed, &["n5", "n6"]).await?;
    let startup_pods = Api::<Pod>::namespaced(bed.client.clone(), "kube-system");
    eventually(MINUTE, "startup pods run on the new nodes", async || {
        let pods = startup_pods.list(&ListParams::default().labels("app=init")).await?.items;
        let on = |name: &str| pods.iter().any(|pod| is_on(pod, name) && is_running(pod));
        ensure!(on("n5") && on("n6"), "{pods:?}");
        Ok(())
    })
    .await?;
    let workloads = Api::<Pod>::namespaced(bed.client.clone(), "default");
    stay_held(bed, INITIALIZING, &["n5", "n6"], "they wait").await?;
    // Had it landed, it would be there still.
    let waiting = workloads.get("workload").await?;
    ensure!(!is_on(&waiting, "n5"), "{:?}", waiting.spec);
    let began = chrono::Utc::now().timestamp();
    // By its annotation, while its container is not ready.
    let pods = startup_pods.list(&ListParams::default().labels("app=init")).await?.items;
    let early = pods.iter().find(|pod| is_on(pod, "n6")).context("no startup pod on n6")?.name_any();
    bed.kubectl(&["annotate", "pod", &early, "--namespace=kube-system", "startup.k8s.io/ready=true"]).await?;
    held_are(bed, INITIALIZING, &["n5"]).await?;
    becomes_ready(bed, "init", "n5", true).await?;
    held_are(bed, INITIALIZING, &[]).await?;
    eventually(MINUTE, "the workload lands", async || {
        let landed = workloads.get("workload").await?;
        ensure!(is_on(&landed, "n5"), "{:?}", landed.status);
        Ok(())
    })
    .await?;
    let nodes = Api::<Node>::all(bed.client.clone());
    for name in ["n5", "n6"] {
        let node = nodes.get(name).await?;
        let at: i64 = node.annotations().get("startup.k8s.io/completedAt").context("no completion annotation")?.parse()?;
        let now = chrono::Utc::now().timestamp();
        ensure!((began - 1..=now + 1).contains(&at), "{name} was completed at {at}, not from {began} to {now}");
    }
    ensure!(!nodes.get("n1").await?.annotations().contains_key("startup.k8s.io/completedAt"), "n1 was never initialized");
    bed.say("new nodes had the taint from the first moment, and were released, and annotated, when their startup pod was ready");
    becomes_ready(bed, "init", "n5", false).await?;
    stay_held(bed, INITIALIZING, &[], "a released node stays so").await?;
    let writes = taint_writes(bed).await?;
    ensure!(writes.get("n5") == Some(&1) && writes.get("n6") == Some(&1), "the taint only went: {writes:?}");
    uninstalled(bed).await
}

/// A pod that bears no taint, for one node.
fn workload(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "nodeSelector": { "kubernetes.io/hostname": node }, "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "c", "image": "busybox:1.36", "args": ["-c", "while sleep 1; do :; done"] }],
        },
    })
}

fn is_on(pod: &Pod, node: &str) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node)
}

fn is_running(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
}

/// The taint of a Node with this key.
fn taint_of<'n>(node: &'n Value, key: &str) -> Option<&'n Value> {
    node["spec"]["taints"].as_array().into_iter().flatten().find(|taint| taint["key"] == key)
}

/// These nodes had the taint in their first version: there was no moment at which something else could have landed.
async fn born_tainted(bed: &Bed, names: &[&str]) -> Result<()> {
    let history = bed.recorder.history().await?;
    for name in names {
        let of = |seen: &&Observation| seen.kind == Kind::Node && seen.object["metadata"]["name"] == *name;
        let first = history.iter().find(of).with_context(|| format!("{name} was never seen"))?;
        let taint = taint_of(&first.object, INITIALIZING.0).with_context(|| format!("{name} came without the taint: {}", first.object))?;
        ensure!(taint["value"] == INITIALIZING.1 && taint["effect"] == "NoSchedule", "{name}: {taint}");
    }
    Ok(())
}

/// With a node that is held and a policy that taints new ones, the operator goes, and is cleaned up after.
async fn uninstalled(bed: &Bed) -> Result<()> {
    create(bed, "held", &[], json!({}), false).await?;
    held_are(bed, INITIALIZING, &["held"]).await?;
    let before = admission_objects(bed).await?;
    for kind in ["mutatingadmissionpolicy", "mutatingadmissionpolicybinding"] {
        ensure!(before.lines().any(|line| line.starts_with(&format!("{kind}."))), "there is no {kind}: {before}");
    }
    operator_process::stop_pods(bed).await?;
    let cleaned = clean_up(bed, &[]).await?;
    ensure!(cleaned.status.success(), "{cleaned:?}");
    is_held(bed, INITIALIZING, &[]).await?;
    nothing_is_left(bed).await?;
    backfilled(bed).await?;
    let cleaned = clean_up(bed, &[]).await?;
    ensure!(cleaned.status.success(), "{cleaned:?}");
    is_held(bed, INITIALIZING, &[]).await?;
    nothing_is_left(bed).await?;
    eventually(MINUTE, "a new node gets no taint any more", async || {
        let node = create(bed, "would-be", &[], json!({}), true).await?;
        ensure!(taint_of(&serde_json::to_value(&node)?, INITIALIZING.0).is_none(), "{:?}", node.spec);
        Ok(())
    })
    .await?;
    bed.say("uninstalled: no taint, no record and no policy is left, and new nodes come without the taint");
    Ok(())
}

/// Where it is asked for, nodes that were there get the taint, but those that were completed and those that have work.
async fn backfilled(bed: &Bed) -> Result<()> {
    bed.apply(&[workload("working", "n1")]).await?;
    let pods = Api::<Pod>::namespaced(bed.client.clone(), "default");
    eventually(MINUTE, "n1 works", async || {
        let working = pods.get("working").await?;
        ensure!(is_on(&working, "n1"), "{:?}", working.status);
        Ok(())
    })
    .await?;
    let once = operator(bed, &["run", "--run-as-daemon=false", "--preset=startup.k8s.io"], &[("STARTUP_BACKFILL", "1")]).await?;
    ensure!(once.status.code() == Some(1), "{once:?}");
    // n6 is idle, and completed.
    is_held(bed, INITIALIZING, &["held", "infra1", "infra2"]).await?;
    bed.say("backfill taints idle nodes that were never completed");
    Ok(())
}

/// How often the taint of the preset came or went, by node.
async fn taint_writes(bed: &Bed) -> Result<BTreeMap<String, usize>> {
    let (mut had, mut changes) = (BTreeMap::new(), BTreeMap::<String, usize>::new());
    for seen in bed.recorder.history().await?.iter().filter(|seen| seen.kind == Kind::Node) {
        let name = seen.object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let taints = seen.object["spec"]["taints"].as_array();
        let has = taints.is_some_and(|taints| taints.iter().any(|taint| taint["key"] == INITIALIZING.0));
        let before = had.insert(name.clone(), has);
        *changes.entry(name).or_default() += usize::from(before.is_some_and(|before| before != has));
    }
    Ok(changes)
}
