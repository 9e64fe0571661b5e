//! What node-readiness-controller is tested for and the API server has a part in: what it refuses of a gate, and a gate's life on it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, Node};
use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, ListParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};

use crate::{
    bed::Bed,
    cluster::node_gates::{WARM, becomes, delete_gate, gate, node, says, warm},
    eventually::{eventually, throughout},
};

const KEY: &str = "readiness.k8s.io/upstream";
const MINUTE: Duration = Duration::from_mins(1);

/// Each mistake, and what the API server says of it.
fn mistakes() -> Vec<(&'static str, Value, &'static str)> {
    let key = |key: &str| json!({ "taint": { "key": key } });
    let long = "a".repeat(64);
    let requirement = json!({ "type": "Warm" });
    vec![
        ("no selector", json!({ "nodeSelector": null }), "nodeSelector must name a label"),
        ("an empty selector", json!({ "nodeSelector": {} }), "nodeSelector must name a label"),
        (
            "an operator that there is not",
            json!({ "nodeSelector": { "matchExpressions": [{ "key": "a", "operator": "Gt", "values": ["1"] }] } }),
            "Unsupported value",
        ),
        (
            "an operator without its values",
            json!({ "nodeSelector": { "matchExpressions": [{ "key": "a", "operator": "In" }] } }),
            "operators In and NotIn need values",
        ),
        ("a selector beside allNodes", json!({ "allNodes": true }), "exclude each other"),
        ("regateOn with mode Continuous", json!({ "mode": "Continuous", "regateOn": ["Reboot"] }), "regateOn is for mode Bootstrap"),
        ("retaint with mode Bootstrap", json!({ "retaint": { "failingFor": "1s" } }), "retaint is for mode Continuous"),
        ("no requirement", json!({ "requirements": [] }), "should have at least 1 items"),
        (
            "two requirements of one name",
            json!({ "requirements": [{ "name": "a", "condition": requirement }, { "name": "a", "condition": requirement }] }),
            "Duplicate value",
        ),
        (
            "two kinds in one requirement",
            json!({ "requirements": [{ "name": "a", "condition": requirement, "csiDriver": { "name": "b" } }] }),
            "exactly one of",
        ),
        ("no key", key(""), "at least 1 chars"),
        ("a key with two slashes", key("readiness.k8s.io/a/b"), "must be the key of a taint"),
        ("a key without a name", key("readiness.k8s.io/"), "must be the key of a taint"),
        ("a key whose name is too long", key(&format!("readiness.k8s.io/{long}")), "must be the key of a taint"),
        ("a key whose domain is none", key("Readiness_k8s/a"), "must be the key of a taint"),
        ("a taint of Kubernetes", key("node.kubernetes.io/not-ready"), "must not be a taint of Kubernetes"),
        ("a value that is too long", json!({ "taint": { "key": KEY, "value": long } }), "may not be more than 63"),
        ("an effect that there is not", json!({ "taint": { "key": KEY, "effect": "NoEntry" } }), "Unsupported value"),
    ]
}

fn gates(bed: &Bed) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("ingressdaemonsets.mumoshu.github.io", "v1alpha1", "NodeReadinessGate");
    Api::all_with(bed.client.clone(), &ApiResource::from_gvk_with_plural(&kind, "nodereadinessgates"))
}

/// What is wrong is refused, all of it in one answer, and what must not change stays.
pub async fn is_refused(bed: &Bed) -> Result<()> {
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let create = async |spec: Value| {
        let refused = gates(bed).create(&dry, &serde_json::from_value(gate("wrong", KEY, spec))?).await;
        Ok::<_, anyhow::Error>(refused.err().map(|error| error.to_string()))
    };
    ensure!(create(json!({})).await?.is_none(), "one without a mistake is refused");
    for (mistake, spec, said) in mistakes() {
        let refusal = create(spec).await?.with_context(|| format!("{mistake} is accepted"))?;
        ensure!(refusal.contains(said), "{mistake}: {refusal}");
    }
    let two = create(json!({ "taint": { "key": "node.kubernetes.io/x" }, "retaint": { "failingFor": "1s" } })).await?.unwrap_or_default();
    ensure!(two.contains("retaint is for mode Continuous") && two.contains("must not be a taint of Kubernetes"), "both are named: {two}");

    bed.apply(&[gate("fixed", KEY, json!({ "dryRun": true }))]).await?;
    let change = async |spec: Value| {
        let patch = json!({ "spec": spec }).to_string();
        bed.kubectl(&["patch", "nrg", "fixed", "--type=merge", "--dry-run=server", "-p", &patch]).await
    };
    for taint in [json!({ "key": "readiness.k8s.io/other" }), json!({ "effect": "NoExecute" }), json!({ "value": "other" })] {
        let refusal = change(json!({ "taint": taint })).await.err().with_context(|| format!("{taint} is accepted"))?;
        ensure!(format!("{refusal:#}").contains("the taint cannot be changed"), "{refusal:#}");
    }
    let further = json!([{ "name": "other", "condition": { "type": "Other" } }]);
    for more in [
        json!({ "nodeSelector": { "matchLabels": { "other": "yes" } } }),
        json!({ "requirements": further }),
        json!({ "mode": "Continuous" }),
        json!({ "policy": "AnyOf" }),
    ] {
        change(more.clone()).await.with_context(|| format!("what a record on each Node makes safe to change: {more}"))?;
    }
    delete_gate(bed, "fixed").await?;
    bed.say("what is wrong with a gate is refused with what to do, and its taint cannot be changed");
    Ok(())
}

/// A gate of mode Continuous over one node, with the events that tell of it, among gates that are looked for by their fields.
pub async fn follows(bed: &Bed) -> Result<()> {
    let spec = json!({ "mode": "Continuous", "retaint": { "failingFor": "0s" }, "admission": { "onCreate": "None" } });
    bed.apply(&[gate("cycle", KEY, spec), gate("once", "readiness.k8s.io/once", json!({ "dryRun": true }))]).await?;
    for (selector, found) in
        [("spec.mode=Continuous", "cycle"), ("spec.taint.key=readiness.k8s.io/once", "once"), ("spec.dryRun=true", "once")]
    {
        let listed = bed.kubectl(&["get", "nrg", "--field-selector", selector, "-o", "jsonpath={.items[*].metadata.name}"]).await?;
        ensure!(listed == found, "{selector}: {listed}");
    }
    node(bed, "c1", &["cycle"], json!([])).await?;
    becomes(bed, "c1", KEY, true, 1).await.context("it has no such condition")?;
    for ready in [true, false, true] {
        warm(bed, "c1", if ready { "True" } else { "False" }).await?;
        becomes(bed, "c1", KEY, !ready, 1).await?;
    }
    let events = Api::<Event>::all(bed.client.clone());
    eventually(MINUTE, "events tell of it", async || {
        let about = events.list(&ListParams::default().fields("involvedObject.kind=Node,involvedObject.name=c1")).await?.items;
        let told = |reason: &str, type_: &str| {
            about.iter().any(|event| event.reason.as_deref() == Some(reason) && event.type_.as_deref() == Some(type_))
        };
        ensure!(
            told("TaintAdded", "Normal") && told("TaintAdded", "Warning") && told("TaintRemoved", "Normal"),
            "{:?}",
            about.iter().map(|event| (&event.reason, &event.type_)).collect::<Vec<_>>()
        );
        Ok(())
    })
    .await?;
    says(bed, "cycle", "it has released the node", |status| status.nodes.released == 1).await?;
    unchanged(bed).await?;
    Api::<Node>::all(bed.client.clone()).delete("c1", &kube::api::DeleteParams::default()).await?;
    says(bed, "cycle", "a node that is gone is not counted", |status| status.nodes.matched == 0).await?;
    for name in ["cycle", "once"] {
        delete_gate(bed, name).await?;
    }
    bed.say("a gate of mode Continuous follows its node, and events tell of it");
    Ok(())
}

/// A condition that nobody says any more is believed for `maxAge`: the operator looks again by itself.
pub async fn grows_old(bed: &Bed) -> Result<()> {
    const OLD: &str = "readiness.k8s.io/old";
    /// Several times as long as the operator may take to see the condition and to release the node: it must be seen released.
    const AGE: u64 = 15;
    let wants = json!([{ "name": "warm", "condition": { "type": WARM, "maxAge": format!("{AGE}s") } }]);
    let spec =
        json!({ "mode": "Continuous", "retaint": { "failingFor": "0s" }, "admission": { "onCreate": "None" }, "requirements": wants });
    bed.apply(&[gate("old", OLD, spec)]).await?;
    node(bed, "o1", &["old"], json!([])).await?;
    becomes(bed, "o1", OLD, true, 1).await?;
    let said = Instant::now();
    warm(bed, "o1", "True").await?;
    let released = becomes(bed, "o1", OLD, false, 1).await?;
    // Nothing but time makes the operator look again.
    let held = becomes(bed, "o1", OLD, true, 1).await?;
    ensure!(said.elapsed() >= Duration::from_secs(AGE), "tainted {:?} after the heartbeat", said.elapsed());
    let conditions = |node: &Node| node.status.as_ref().and_then(|status| status.conditions.clone());
    ensure!(conditions(&released) == conditions(&held), "what the node says has changed: {:?}", held.status);
    delete_gate(bed, "old").await?;
    bed.say("a condition that has grown old holds its node");
    Ok(())
}

/// What is no part of the spec makes nobody write.
async fn unchanged(bed: &Bed) -> Result<()> {
    let nodes = Api::<Node>::all(bed.client.clone());
    let before = nodes.get("c1").await?.resource_version();
    bed.kubectl(&["annotate", "nrg", "cycle", "example.com/seen=yes"]).await?;
    throughout(Duration::from_secs(1), "an annotation of the gate is no change of it", async || {
        let gate = gates(bed).get("cycle").await?;
        let observed = gate.data["status"]["observedGeneration"].as_i64();
        ensure!(observed == gate.metadata.generation && observed == Some(1), "{:?} of {:?}", observed, gate.metadata.generation);
        ensure!(nodes.get("c1").await?.resource_version() == before, "the node was written to");
        Ok(())
    })
    .await
}
