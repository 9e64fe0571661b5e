//! Readiness gates of nodes: gates and their Nodes, which are objects alone, and waiting for what becomes of them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::{NodeReadinessGate, names::GATE_RECORD_PREFIX};
use k8s_openapi::{
    api::core::v1::{Node, Taint},
    jiff::Timestamp,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{auditor::Kind, bed::Bed, cluster::product, eventually::eventually};

const MINUTE: Duration = Duration::from_mins(1);
/// The condition that gates wait for here.
pub const WARM: &str = "example.com/Warm";

/// A gate with this spec; labels of the nodes that it selects are `gate=<name>`.
pub fn gate(name: &str, key: &str, more: Value) -> Value {
    let mut spec = json!({
        "nodeSelector": { "matchLabels": { format!("gate-{name}"): "yes" } },
        "taint": { "key": key, "value": "pending", "effect": "NoSchedule" },
        "requirements": [{ "name": "warm", "condition": { "type": WARM } }],
    });
    if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
        spec.extend(more);
    }
    json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "NodeReadinessGate",
        "metadata": { "name": name }, "spec": spec,
    })
}

/// Whether the API server has policies that change what is created; else the operator's webhook does so.
pub async fn has_policies(bed: &Bed) -> Result<bool> {
    let kinds = bed.kubectl(&["api-resources", "--api-group=admissionregistration.k8s.io", "-o", "name"]).await?;
    Ok(kinds.contains("mutatingadmissionpolicies"))
}

/// Admission policies and their bindings with these labels, by kind and name, in the best version that the API server has of them:
/// `kubectl` asks for no other than the first.
pub async fn admission_policies(bed: &Bed, labels: &str) -> Result<String> {
    for version in ["v1", "v1beta1"] {
        let kinds = ["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"];
        let kinds = kinds.map(|kind| format!("{kind}.{version}.admissionregistration.k8s.io")).join(",");
        let is_unknown = |error: &anyhow::Error| {
            let error = format!("{error:#}");
            error.contains("could not find the requested resource") || error.contains("doesn't have a resource type")
        };
        match bed.kubectl(&["get", &kinds, "-l", labels, "-o", "name"]).await {
            Err(error) if is_unknown(&error) => {}
            listed => return listed,
        }
    }
    Ok(String::new())
}

/// The API of Nodes.
pub fn nodes(bed: &Bed) -> Api<Node> {
    Api::all(bed.client.clone())
}

/// Makes a Node that the gates of these names select.
pub async fn node(bed: &Bed, name: &str, gates: &[&str], taints: Value) -> Result<Node> {
    let labels: serde_json::Map<_, _> = gates.iter().map(|gate| (format!("gate-{gate}"), json!("yes"))).collect();
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": labels }, "spec": { "taints": taints },
        "status": { "nodeInfo": info("boot-1") },
    });
    nodes(bed).create(&PostParams::default(), &serde_json::from_value(node)?).await.with_context(|| format!("creating Node {name}"))
}

/// What a Node says of its machine, at this start of it.
pub fn info(boot: &str) -> Value {
    let mut info = json!({ "bootID": boot, "machineID": "machine-1" });
    let others = [
        "architecture",
        "containerRuntimeVersion",
        "kernelVersion",
        "kubeProxyVersion",
        "kubeletVersion",
        "operatingSystem",
        "osImage",
        "systemUUID",
    ];
    for key in others {
        info[key] = "".into();
    }
    info
}

/// What the Node says of [`WARM`] from now on.
pub async fn warm(bed: &Bed, name: &str, status: &str) -> Result<()> {
    let now = Timestamp::now().to_string();
    let condition =
        json!({ "type": WARM, "status": status, "reason": "Bed", "message": "", "lastHeartbeatTime": now, "lastTransitionTime": now });
    let patch = Patch::Strategic(json!({ "status": { "conditions": [condition] } }));
    nodes(bed).patch_status(name, &PatchParams::default(), &patch).await.with_context(|| format!("condition of {name}")).map(drop)
}

/// Taints of a Node.
pub fn taints(node: &Node) -> Vec<Taint> {
    node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default()
}

/// Whether a Node has a taint with this key.
pub fn has_taint(node: &Node, key: &str) -> bool {
    taints(node).iter().any(|taint| taint.key == key)
}

/// Records of gates on a Node.
pub fn records(node: &Node) -> Vec<String> {
    node.annotations().iter().filter(|(key, _)| key.starts_with(GATE_RECORD_PREFIX)).map(|(_, value)| value.clone()).collect()
}

/// Waits until a Node has a taint, or has it not, with so many records.
pub async fn becomes(bed: &Bed, name: &str, key: &str, tainted: bool, recorded: usize) -> Result<Node> {
    let what = format!("{name} has {}{key} and {recorded} records", if tainted { "" } else { "no " });
    eventually(MINUTE, &what, async || {
        let node = nodes(bed).get(name).await?;
        let found = (has_taint(&node, key), records(&node).len());
        ensure!(found == (tainted, recorded), "taints {:?}, records {:?}", taints(&node), records(&node));
        Ok(node)
    })
    .await
}

/// Every Node fulfils `test` for the whole of `period`, by the history: also between two looks.
pub async fn nodes_stay(bed: &Bed, period: Duration, what: &str, test: impl Fn(&Node) -> Result<()>) -> Result<()> {
    product::stays(bed, (Kind::Node, &nodes(bed)), what, period, test).await
}

/// Waits until the status of a gate fulfils `test`.
pub async fn says(bed: &Bed, name: &str, what: &str, test: impl Fn(&crds::NodeReadinessGateStatus) -> bool) -> Result<()> {
    eventually(MINUTE, &format!("gate {name}: {what}"), async || {
        let gate = Api::<NodeReadinessGate>::all(bed.client.clone()).get(name).await?;
        let status = gate.status.context("no status")?;
        ensure!(test(&status), "{status:?}");
        Ok(())
    })
    .await
}

/// Deletes a gate, and waits until it is gone.
pub async fn delete_gate(bed: &Bed, name: &str) -> Result<()> {
    let api = Api::<NodeReadinessGate>::all(bed.client.clone());
    api.delete(name, &DeleteParams::default()).await.context("deleting a gate")?;
    eventually(MINUTE, &format!("gate {name} is gone"), async || {
        ensure!(api.get_opt(name).await?.is_none(), "it is still there");
        Ok(())
    })
    .await
}

/// Whether a condition of a gate has this status and reason.
pub fn has_condition(status: &crds::NodeReadinessGateStatus, type_: &str, value: &str, reason: &str) -> bool {
    status.conditions.iter().any(|condition| condition.type_ == type_ && condition.status == value && condition.reason == reason)
}

/// Patches of the operator that had no effect.
pub async fn refusals(bed: &Bed) -> Result<Vec<String>> {
    // While the lease changes hands, nobody leads.
    let metrics = eventually(MINUTE, "metrics of the operator that leads", async || metrics(bed).await).await?;
    Ok(metrics.lines().filter(|line| line.starts_with("ids_gate_patch_refusals_total")).map(str::to_owned).collect())
}

/// Metrics of the operator that leads.
pub async fn metrics(bed: &Bed) -> Result<String> {
    let names = bed.kubectl(&["get", "pods", "-n", "ingress-daemonset-system", "-o", "jsonpath={.items[*].metadata.name}"]).await?;
    for name in names.split_whitespace() {
        let path = format!("/api/v1/namespaces/ingress-daemonset-system/pods/{name}:8080/proxy/metrics");
        let text = bed.kubectl(&["get", "--raw", &path]).await?;
        if text.lines().any(|line| line == "ids_leader 1") {
            return Ok(text);
        }
    }
    anyhow::bail!("no operator leads: {names}")
}
