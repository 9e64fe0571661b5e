//! Two resources on the same nodes that ask the detacher by the same key.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::{IngressDaemonSetStatus, holders::EntryPhase, names};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    auditor::{Expectations, Kind},
    bed::{Bed, Options, node::NodeSpec},
    cluster::{
        detacher::{DETACHED_KEY, Detacher, TIMESTAMP_KEY, Variant},
        product::{self, has_condition},
        workload,
    },
    eventually::eventually,
    load::{LoadOptions, Traffic},
    scenario::Scenario,
};

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const SHARING: [&str; 2] = ["one", "two"];
/// A resource with the same key and another value, on a node of its own.
const APART: &str = "apart";
const MINUTE: Duration = Duration::from_mins(1);
/// What a person writes as the key's value.
const BY_HAND: &str = "maintenance";

/// Held by both, held by a person, and in conflict.
pub const SHARED_KEY: Scenario = Scenario {
    name: "a_shared_key_stays_while_one_resource_holds_it",
    options: || {
        let node = |name| NodeSpec::new(name).label("ingress", "true");
        let apart = NodeSpec::new("n4").label("example.com/apart", "true");
        Options { nodes: NODES.into_iter().map(node).chain([apart]).collect(), ..Options::default() }.with_infra()
    },
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(shared_key(bed)),
};

async fn shared_key(bed: &mut Bed) -> Result<()> {
    bed.install().await?;
    let mut objects = vec![workload::config_map("default")];
    objects.extend((10080..).zip(SHARING).map(|(port, name)| resource(name, port, "true")));
    let mut apart = resource(APART, 10080, "elsewhere");
    apart["spec"]["nodeSelector"] = json!({ "example.com/apart": "true" });
    objects.push(apart);
    bed.apply(&objects).await?;
    let _detacher = Detacher::start(&bed.client, &bed.haproxy, Variant::Good);
    all_end(bed).await?;
    bed.haproxy.serves(MINUTE, &["n1", "n2", "n3", "n4"]).await?;
    together(bed).await?;
    let by_hand = held_by_a_person(bed).await?;
    contradict(bed).await?;
    each_keeps_new_nodes_tainted(bed).await?;
    key_follows_the_holders(bed, by_hand).await
}

fn resource(name: &str, port: u16, value: &str) -> Value {
    let mut resource = product::resource("1", &product::rolling_update(1, mark(value)));
    resource["metadata"]["name"] = name.into();
    resource["spec"]["podsPerNode"] = 1.into();
    resource["spec"]["healthCheckNodePorts"] = json!([port]);
    resource
}

fn mark(value: &str) -> Value {
    json!({
        "annotateNodeToDetach": { "key": DETACHED_KEY, "value": value, "gracePeriodSeconds": 0 },
        "waitForDetachmentByAnnotatedTimestamp": { "key": TIMESTAMP_KEY, "format": "RFC3339", "gracePeriodSeconds": product::JUDGED_GRACE },
    })
}

async fn roll(bed: &Bed, names: &[&str], version: &str) -> Result<()> {
    for name in names {
        product::change_named(bed, name, json!({ "template": product::template(version) })).await?;
    }
    Ok(())
}

async fn status(bed: &Bed, name: &str) -> Result<IngressDaemonSetStatus> {
    product::api(bed).get(name).await?.status.context("no status")
}

/// Waits until every resource has rolled out what it says.
async fn all_end(bed: &Bed) -> Result<()> {
    for (name, nodes) in SHARING.into_iter().map(|name| (name, NODES.len())).chain([(APART, 1)]) {
        product::is_complete_named(bed, name, nodes, product::ROLLED_OUT).await?;
    }
    Ok(())
}

/// Both at once, under load: the order of the nodes is the same, so they hold the same node together.
async fn together(bed: &Bed) -> Result<()> {
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    roll(bed, &SHARING, "2").await?;
    all_end(bed).await?;
    bed.say("both rolled at once");
    traffic.all_served(bed).await?;
    let history = bed.recorder.history().await?;
    let together = history.iter().filter(|seen| seen.kind == Kind::Node && holders(&seen.object) == 2).count();
    ensure!(together > 0, "the two never held a node at the same time");
    Ok(())
}

/// A person's key stays when both have held the node. Returns the revisions from which, and to which, it was there.
async fn held_by_a_person(bed: &Bed) -> Result<(u64, u64)> {
    let from = annotate(bed, "n3", BY_HAND.into()).await?;
    roll(bed, &SHARING, "3").await?;
    for name in SHARING {
        product::status_of_says(bed, name, "n3 is updated, and it says why it does not go on", product::ROLLED_OUT, |status| {
            let taken_out = |state: &crds::status::NodeState| state.name == "n3" && state.reason == "TakenOut";
            status.nodes.updated == 1 && status.node_states.iter().any(taken_out)
        })
        .await?;
    }
    let value = Api::<Node>::all(bed.client.clone()).get("n3").await?.annotations().get(DETACHED_KEY).cloned();
    ensure!(value.as_deref() == Some(BY_HAND), "the person's key is {value:?}");
    bed.say("a person's key stays");
    // Somebody who still holds the node would have to put the key back.
    eventually(MINUTE, "nobody holds n3", async || {
        let node = serde_json::to_value(Api::<Node>::all(bed.client.clone()).get("n3").await?)?;
        ensure!(holders(&node) == 0, "{}", node["metadata"]["annotations"]);
        Ok(())
    })
    .await?;
    let to = annotate(bed, "n3", Value::Null).await?;
    all_end(bed).await?;
    Ok((from, to))
}

/// Writes the key by hand, and returns the Node's revision before that.
async fn annotate(bed: &Bed, node: &str, value: Value) -> Result<u64> {
    let patch = json!({ "metadata": { "annotations": { DETACHED_KEY: value } } });
    let api = Api::<Node>::all(bed.client.clone());
    let after = api.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await?;
    after.resource_version().and_then(|version| version.parse().ok()).context("no resourceVersion")
}

/// Different values for the key on the same nodes; the third resource, elsewhere, is none of their business.
async fn contradict(bed: &Bed) -> Result<()> {
    let value = |value: &str| json!({ "updateStrategy": { "rollingUpdate": mark(value) } });
    let conflict = |status: &IngressDaemonSetStatus| {
        status.conditions.iter().any(|condition| condition.type_ == "DetachAnnotationConflict" && condition.status == "True")
    };
    for name in SHARING.into_iter().chain([APART]) {
        ensure!(!conflict(&status(bed, name).await?), "{name} has a conflict with nobody");
    }
    product::change_named(bed, "two", value("other")).await?;
    product::status_of_says(bed, "two", "there is a conflict", product::SAID, conflict).await?;
    roll(bed, &SHARING, "4").await?;
    roll(bed, &[APART], "4").await?;
    let stalled = |status: &IngressDaemonSetStatus| has_condition(status, "Stalled", "True", "DetachAnnotationConflict");
    // The status of before the new template speaks of the conflict as well.
    let waits = |status: &IngressDaemonSetStatus| stalled(status) && status.nodes.updated == 0;
    product::status_of_says(bed, "two", "it is stalled", product::SAID, waits).await?;
    // The one that has used its value goes on, and so does the one on another node.
    product::is_complete_named(bed, "one", NODES.len(), product::ROLLED_OUT).await?;
    product::is_complete_named(bed, APART, 1, product::ROLLED_OUT).await?;
    let two = status(bed, "two").await?;
    let idle = two.rollout.as_ref().is_some_and(|ledger| ledger.grants.is_empty());
    ensure!(idle && waits(&two) && two.nodes.available == 3, "two: {}", product::summary(&two));
    ensure!(!conflict(&status(bed, "one").await?), "one has a conflict");
    bed.say("different values: the one that has used its own goes on, and the other waits");
    product::change_named(bed, "two", value("true")).await?;
    all_end(bed).await?;
    for name in SHARING {
        ensure!(!conflict(&status(bed, name).await?), "{name} still has a conflict");
    }
    Ok(())
}

/// A node that joins has a taint for each of the two, which wait for replicas that must not wait for each other.
async fn each_keeps_new_nodes_tainted(bed: &mut Bed) -> Result<()> {
    const JOINS: &str = "n5";
    let key = |name: &str| format!("readiness.k8s.io/{name}");
    for name in SHARING {
        product::change_named(bed, name, json!({ "nodeReadinessTaint": { "key": key(name), "effect": "NoSchedule" } })).await?;
    }
    for name in SHARING {
        product::status_of_says(bed, name, "its gate is there, and protects new nodes", product::SAID, |status| {
            let active = |said: &crds::NodeReadinessGateStatus| {
                said.conditions.iter().any(|condition| condition.type_ == "AdmissionActive" && condition.status == "True")
            };
            status.node_readiness.as_ref().is_some_and(|said| said.nodes.matched == 3 && active(said))
        })
        .await?;
    }
    bed.add_node(NodeSpec::new(JOINS).label("ingress", "true").registering()).await?;
    bed.haproxy.serves(MINUTE, &["n1", "n2", "n3", "n4", JOINS]).await?;
    for name in SHARING {
        product::is_complete_named(bed, name, NODES.len() + 1, product::ROLLED_OUT).await?;
    }
    let has = |node: &Value, name: &str| {
        node["spec"]["taints"].as_array().is_some_and(|taints| taints.iter().any(|taint| taint["key"] == key(name).as_str()))
    };
    eventually(MINUTE, "it has lost both taints", async || {
        let node = serde_json::to_value(Api::<Node>::all(bed.client.clone()).get(JOINS).await?)?;
        ensure!(SHARING.into_iter().all(|name| !has(&node, name)), "{}", node["spec"]["taints"]);
        Ok(())
    })
    .await?;
    let history = bed.recorder.history().await?;
    let mut nodes = history.iter().filter(|seen| seen.kind == Kind::Node && seen.object["metadata"]["name"] == JOINS);
    ensure!(nodes.any(|seen| SHARING.into_iter().all(|name| has(&seen.object, name))), "{JOINS} never had both taints");
    bed.say(&format!("{JOINS} joined with a taint for each of the two, and lost both"));
    Ok(())
}

/// How many resources hold the Node.
fn holders(node: &Value) -> usize {
    let text = node["metadata"]["annotations"][names::HOLDERS_ANNOTATION].as_str();
    let holders = crds::holders::parse(text).unwrap_or_default();
    holders.values().filter(|entry| entry.phase == EntryPhase::Detached).count()
}

/// Every version of every Node that there was: the key is there when somebody holds it, and only then.
async fn key_follows_the_holders(bed: &Bed, by_hand: (u64, u64)) -> Result<()> {
    let mut changes = 0;
    for seen in bed.recorder.history().await?.iter().filter(|seen| seen.kind == Kind::Node && !seen.deleted) {
        let node = &seen.object;
        let of_a_person = node["metadata"]["name"] == "n3" && (by_hand.0..by_hand.1).contains(&seen.revision);
        let (present, wanted) = (node["metadata"]["annotations"][DETACHED_KEY].is_string(), of_a_person || holders(node) > 0);
        ensure!(present == wanted, "at {} the key is there: {present}, it should be: {wanted}: {}", seen.revision, node["metadata"]);
        changes += 1;
    }
    bed.say(&format!("the key followed its holders through {changes} versions of the Nodes"));
    Ok(())
}
