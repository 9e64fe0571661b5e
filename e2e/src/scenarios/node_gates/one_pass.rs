//! One pass over all nodes (`--run-as-daemon=false`) with gates that ask for replicas, a `DaemonSet` and a CSI driver.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};

use super::originals::{becomes_ready, critical, operator};
use crate::{
    auditor::{Expectations, Kind},
    bed::{Bed, Options},
    cluster::{
        node_gates::{WARM, becomes, delete_gate, gate, has_condition, metrics, node, says, warm},
        operator_process, product,
    },
    eventually::{eventually, throughout},
    scenario::Scenario,
};

const MINUTE: Duration = Duration::from_mins(1);
/// Longer than an eviction takes to begin.
const WHILE: Duration = Duration::from_secs(3);
/// No key of which it is known that it goes by itself: it would keep a resource away that does not know the gate.
const KEYS: [(&str, &str); 3] = [("replicas", "example.com/replicas"), ("agent", "example.com/agent"), ("disks", "example.com/disks")];

/// One pass judges replicas, `DaemonSets` and CSI drivers as the operator does.
pub const ONE_PASS: Scenario = Scenario {
    name: "one_pass_mode_judges_nodes_as_the_operator_does",
    options: || Options::with_nodes(1).with_infra(),
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(once(bed)),
};

fn requirement(name: &str) -> Value {
    let kind = match name {
        "replicas" => json!({ "ingressDaemonSet": { "namespace": "default", "name": product::NAME } }),
        "agent" => json!({ "daemonSet": { "namespace": "kube-system", "name": "agent", "currentRevision": true } }),
        _ => json!({ "csiDriver": { "name": "disks.example.com" } }),
    };
    let mut requirement = json!({ "name": name });
    if let (Some(requirement), Value::Object(kind)) = (requirement.as_object_mut(), kind) {
        requirement.extend(kind);
    }
    json!({ "mode": "Continuous", "requirements": [requirement] })
}

/// One pass, and how it sees a node for each gate; the code with which it ends says whether one is held.
async fn pass(bed: &Bed, node: &str) -> Result<Vec<(String, String)>> {
    let once = operator(bed, &["run", "--run-as-daemon=false"], &[]).await?;
    let table = String::from_utf8_lossy(&once.stdout).into_owned();
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let states: Vec<_> = lines
        .filter(|words| words.first() == Some(&node))
        .filter_map(|words| Some((words.get(1)?.to_string(), words.get(2)?.to_string())))
        .collect();
    let held = table.lines().any(|line| line.split_whitespace().nth(2) == Some("held"));
    ensure!(once.status.code() == Some(i32::from(held)), "{once:?}");
    Ok(states)
}

fn states(of: [&str; 3]) -> Vec<(String, String)> {
    let mut states: Vec<_> = KEYS.iter().zip(of).map(|((_, key), state)| (format!("{key}=pending:NoSchedule"), state.to_owned())).collect();
    states.sort();
    states
}

async fn once(bed: &mut Bed) -> Result<()> {
    product::serve(bed, product::rolling_update(1, product::deployment_mark()), &["n1"]).await?;
    spared(bed).await?;
    bed.apply(&[critical(bed, "agent", KEYS[1].1)]).await?;
    operator_process::stop_pods(bed).await?;
    let gates: Vec<_> = KEYS.iter().map(|(name, key)| gate(name, key, requirement(name))).collect();
    bed.apply(&gates).await?;
    bed.kubectl(&["label", "node", "n1", "gate-replicas=yes", "gate-agent=yes", "gate-disks=yes"]).await?;
    // One that is to have replicas, and gets none while no operator makes them.
    node(bed, "bare", &["replicas"], json!([])).await?;
    bed.kubectl(&["label", "node", "bare", "ingress=true"]).await?;

    eventually(MINUTE, "replicas serve, and nothing else is there", async || {
        let seen = pass(bed, "n1").await?;
        ensure!(seen == states(["released", "held", "held"]), "{seen:?}");
        Ok(())
    })
    .await?;
    becomes(bed, "bare", KEYS[0].1, true, 1).await?;
    bed.say("replicas serve, the DaemonSet's pod is not ready, the driver is not registered");
    let seen = pass(bed, "bare").await?;
    ensure!(seen.iter().map(|(_, state)| state.as_str()).eq(["held"]), "its own taint keeps no replicas away: {seen:?}");

    becomes_ready(bed, "agent", "n1", true).await?;
    let driver = json!({ "name": "disks.example.com", "nodeID": "n1", "topologyKeys": [] });
    let driver =
        json!({ "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": { "name": "n1" }, "spec": { "drivers": [driver] } });
    bed.apply(&[driver]).await?;
    eventually(Duration::from_mins(1), "a pass releases the node", async || {
        let seen = pass(bed, "n1").await?;
        ensure!(seen == states(["released", "released", "released"]), "{seen:?}");
        Ok(())
    })
    .await?;
    Api::<Node>::all(bed.client.clone()).delete("bare", &DeleteParams::default()).await.context("deleting a Node")?;
    eventually(MINUTE, "no node is held", async || {
        let end = operator(bed, &["run", "--run-as-daemon=false"], &[]).await?;
        ensure!(end.status.success(), "{end:?}");
        Ok(())
    })
    .await?;
    bed.say("one pass released the node when the pod was ready and the driver registered, and ends with 0");
    Ok(())
}

/// A node that works is spared a taint that would evict its replicas, which are older than the gate, until they bear it.
async fn spared(bed: &Bed) -> Result<()> {
    const KEY: &str = "readiness.k8s.io/evicting";
    let replicas = json!({ "name": "replicas", "ingressDaemonSet": { "namespace": "default", "name": product::NAME } });
    let evicting = gate(
        "evicting",
        KEY,
        json!({
            "mode": "Continuous", "taint": { "key": KEY, "value": "pending", "effect": "NoExecute" }, "retaint": { "failingFor": "0s" },
            "requirements": [replicas, { "name": "warm", "condition": { "type": WARM } }],
        }),
    );
    warm(bed, "n1", "True").await?;
    bed.kubectl(&["label", "node", "n1", "gate-evicting=yes"]).await?;
    bed.apply(&[evicting]).await?;
    says(bed, "evicting", "the node works", |status| status.nodes.released == 1).await?;
    let before = replicas_of(bed).await?;
    let from = bed.recorder.history().await?.len();
    warm(bed, "n1", "False").await?;
    says(bed, "evicting", "the node is spared", |status| {
        let blocked = status.blocked.first();
        status.nodes.held == 0
            && has_condition(status, "TolerationMissing", "True", "PodsWouldBeEvicted")
            && blocked.is_some_and(|blocked| {
                blocked.requirement == "replicas" && blocked.sample == ["n1"] && blocked.reason.contains("would evict")
            })
    })
    .await?;
    eventually(MINUTE, "the metric says so", async || {
        let text = metrics(bed).await?;
        let of_gate: Vec<_> = text.lines().filter(|line| line.contains("gate=\"evicting\"")).collect();
        ensure!(of_gate.contains(&"ids_gate_nodes{gate=\"evicting\",state=\"spared\"} 1"), "{of_gate:?}");
        Ok(())
    })
    .await?;
    throughout(WHILE, "the replicas stay", async || {
        let now = replicas_of(bed).await?;
        ensure!(now == before, "{now:?}, and not {before:?}");
        Ok(())
    })
    .await?;
    let history = bed.recorder.history().await?;
    let mut versions = history.iter().skip(from).filter(|seen| seen.kind == Kind::Node);
    ensure!(versions.all(|seen| !seen.object["spec"]["taints"].to_string().contains(KEY)), "the node had the taint");
    bed.say("a working node whose replicas do not bear the taint is spared it, and the gate says so");

    // The template is the same but for this; pods of the new revision bear the taint.
    product::roll_to(bed, "2").await?;
    becomes(bed, "n1", KEY, true, 1).await?;
    says(bed, "evicting", "nobody is spared any more", |status| {
        status.nodes.held == 1 && has_condition(status, "TolerationMissing", "False", "NobodyEvicted")
    })
    .await?;
    product::is_complete(bed, 1, product::ROLLED_OUT).await?;
    let after = eventually(MINUTE, "there are two replicas, and both are new", async || {
        let after = replicas_of(bed).await?;
        ensure!(after.len() == 2 && after.is_disjoint(&before), "{after:?} after {before:?}");
        Ok(after)
    })
    .await?;
    throughout(WHILE, "they bear the taint", async || {
        let now = replicas_of(bed).await?;
        ensure!(now == after, "{now:?}, and not {after:?}");
        Ok(())
    })
    .await?;
    warm(bed, "n1", "True").await?;
    becomes(bed, "n1", KEY, false, 1).await?;
    delete_gate(bed, "evicting").await?;
    product::is_complete(bed, 1, product::ROLLED_OUT).await?;
    bed.say("its replicas of the next revision bear the taint, so it came");
    Ok(())
}

/// UIDs of the replicas that are not ending.
async fn replicas_of(bed: &Bed) -> Result<BTreeSet<String>> {
    let pods = Api::<Pod>::namespaced(bed.client.clone(), "default").list(&ListParams::default().labels("app=nginx")).await?.items;
    Ok(pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).filter_map(|pod| pod.metadata.uid).collect())
}
