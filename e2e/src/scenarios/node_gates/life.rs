//! Readiness gates of nodes on the real API server. The nodes are objects alone: what a kubelet would say of them, the scenario says.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::{
    NodeReadinessGate,
    names::{self, GATE_RECORD_PREFIX},
};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    auditor::{Expectations, Kind, Observation},
    bed::{Bed, Options, operator},
    cluster::{
        joining,
        node_gates::{
            becomes, delete_gate, gate, has_condition, has_taint, info, node, nodes, nodes_stay, records, refusals, says, taints, warm,
        },
        operator_process::{self, OperatorProcess},
        product,
    },
    eventually::{eventually, throughout},
    load::{LoadOptions, Traffic},
    scenario::Scenario,
    scenarios::node_gates::{budget, upstream},
};

const MINUTE: Duration = Duration::from_mins(1);
/// Longer than the operator takes to see a change and to write what follows from it.
const WHILE: Duration = Duration::from_secs(2);
/// Nodes come, get ready, change their labels, start again and go. The gate releases each in one write and leaves alone what others wrote.
pub const LIFE: Scenario = Scenario {
    name: "a_gate_releases_nodes_in_one_write_and_leaves_nothing",
    options: || Options::default().with_infra(),
    expected: Expectations::default,
    body: |bed| Box::pin(life(bed)),
};

/// Several gates share a taint. Gates in dry run, and gates that can never open, write nothing.
pub const TOGETHER: Scenario = Scenario {
    name: "gates_that_share_a_taint_never_flap_it",
    options: || Options::default().with_infra(),
    expected: Expectations::default,
    body: |bed| Box::pin(together(bed)),
};

/// A node joins under load: workloads land on it only when its replicas serve.
pub const JOINING: Scenario = Scenario {
    name: "a_joining_node_stays_tainted_until_its_replicas_serve",
    options: || Options::with_nodes(2).with_infra(),
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(joining(bed)),
};

async fn joining(bed: &mut Bed) -> Result<()> {
    product::serve(bed, product::rolling_update(1, product::deployment_mark()), &["n1", "n2"]).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    joining::a_node_joins(bed, &["n1", "n2"]).await?;
    product::roll_to(bed, "2").await?;
    product::is_complete(bed, 3, product::ROLLED_OUT).await?;
    let history = bed.recorder.history().await?;
    let nodes = history.iter().filter(|seen| seen.kind == Kind::Node && seen.object["metadata"]["name"] != joining::JOINS);
    let tainted = nodes.filter(|seen| seen.object["spec"]["taints"].to_string().contains("readiness.k8s.io/")).count();
    ensure!(tainted == 0, "a planned update tainted a node");
    bed.say("a planned update taints no node");
    product::status_says(bed, "nodeReadiness says that every node is released", product::SAID, |status| {
        let said = status.node_readiness.clone().unwrap_or_default();
        (said.nodes.matched, said.nodes.held, said.nodes.released) == (3, 0, 3)
            && has_condition(&said, "Ready", "True", "NoNodeHeld")
            && said.summary == "3 of 3 nodes released"
    })
    .await?;
    followed_and_tainted_first(bed).await?;
    traffic.all_served(bed).await
}

/// What gates of the replicas do while a node is updated: with `Taint` it has the taint before anything of its replicas changes, with
/// `Strict` when they have ceased to serve, in either case until all of them serve again.
async fn followed_and_tainted_first(bed: &Bed) -> Result<()> {
    const DRAIN: &str = "readiness.k8s.io/drain";
    const STRICT: &str = "readiness.k8s.io/strict";
    let of_replicas = |name: &str, key: &str, during: &str| {
        let replicas = json!({ "namespace": "default", "name": product::NAME, "duringUpdate": during });
        let spec = json!({
            "nodeSelector": { "matchLabels": { "ingress": "true" } }, "mode": "Continuous", "retaint": { "failingFor": "0s" },
            "requirements": [{ "name": "replicas", "ingressDaemonSet": replicas }],
        });
        gate(name, key, spec)
    };
    bed.apply(&[of_replicas("drain", DRAIN, "Taint"), of_replicas("strict", STRICT, "Strict")]).await?;
    for name in ["drain", "strict"] {
        says(bed, name, "every node is released", |status| status.nodes.released == 3).await?;
    }
    let from = bed.recorder.history().await?.len();
    // One node is enough to see it.
    product::change(bed, json!({ "updateStrategy": { "rollingUpdate": { "partition": 2 } } })).await?;
    product::roll_to(bed, "3").await?;
    product::status_says(bed, "one node is updated", product::ROLLED_OUT, |status| {
        status.nodes.updated == 1 && status.rollout.as_ref().is_some_and(|ledger| ledger.grants.is_empty())
    })
    .await?;
    for (name, key) in [("drain", DRAIN), ("strict", STRICT)] {
        says(bed, name, "every node is released again", |status| status.nodes.released == 3).await?;
        // A status may tell of what is decided a moment before it is written, and of one second at a time.
        eventually(MINUTE, "no node has the taint any more", async || {
            let tainted: Vec<_> =
                nodes(bed).list(&ListParams::default()).await?.items.into_iter().filter(|node| has_taint(node, key)).collect();
            ensure!(tainted.is_empty(), "{:?} have", tainted.iter().map(kube::ResourceExt::name_any).collect::<Vec<_>>());
            Ok(())
        })
        .await?;
    }
    let history = bed.recorder.history().await?;
    let of = |kind| history.iter().skip(from).filter(move |seen| seen.kind == kind);
    let token =
        |seen: &&Observation| seen.object["metadata"]["labels"][names::TOKEN_LABEL].as_str().is_some_and(|token| token.contains("Claimed"));
    let claimed = of(Kind::Deployment).find(token).context("no Deployment was claimed")?;
    let updated = claimed.object["metadata"]["annotations"][names::NODE_NAME_ANNOTATION].as_str().context("its node")?;
    for (key, before) in [(DRAIN, true), (STRICT, false)] {
        let is_tainted = |seen: &Observation| {
            seen.object["spec"]["taints"].as_array().is_some_and(|taints| taints.iter().any(|taint| taint["key"] == key))
        };
        let tainted = of(Kind::Node).find(|seen| is_tainted(seen)).with_context(|| format!("no node got {key}"))?;
        ensure!(
            tainted.object["metadata"]["name"] == updated,
            "{updated} was updated, and {key} is on {}",
            tainted.object["metadata"]["name"]
        );
        let order = (tainted.revision < claimed.revision) == before;
        ensure!(order, "{key} came at {}, and the Deployment was claimed at {}", tainted.revision, claimed.revision);
        let others = of(Kind::Node).filter(|seen| is_tainted(seen) && seen.object["metadata"]["name"] != updated).count();
        ensure!(others == 0, "a node got {key} that was not updated");
        let last = of(Kind::Node).rfind(|seen| seen.object["metadata"]["name"] == updated).context("the node")?;
        ensure!(!is_tainted(last), "{}", last.object["spec"]);
    }
    bed.say(&format!(
        "{updated}: with Taint it was tainted before its health check was turned, with Strict when its replicas stopped; neither stayed"
    ));
    for name in ["drain", "strict"] {
        delete_gate(bed, name).await?;
    }
    Ok(())
}

async fn label(bed: &Bed, name: &str, gate: &str, on: bool) -> Result<()> {
    let value = if on { json!("yes") } else { json!(null) };
    let patch = Patch::Merge(json!({ "metadata": { "labels": { format!("gate-{gate}"): value } } }));
    nodes(bed).patch(name, &PatchParams::default(), &patch).await.context("labelling a Node").map(drop)
}

/// Adds a taint as somebody would who knows nothing of gates.
async fn add_taint(bed: &Bed, name: &str, taint: &str) -> Result<()> {
    bed.kubectl(&["taint", "node", name, taint, "--overwrite"]).await.map(drop)
}

/// A Node keeps a taint, or stays without it.
async fn stays(bed: &Bed, name: &str, key: &str, tainted: bool) -> Result<()> {
    let what = format!("{name} {} {key}", if tainted { "keeps" } else { "stays without" });
    nodes_stay(bed, WHILE, &what, |node| {
        let holds = node.name_any() != name || has_taint(node, key) == tainted;
        ensure!(holds, "taints {:?}, records {:?}", taints(node), records(node));
        Ok(())
    })
    .await
}

async fn life(bed: &mut Bed) -> Result<()> {
    const KEY: &str = "readiness.k8s.io/warm";
    bed.install().await?;
    node(bed, "old", &["warm"], json!([])).await?;
    // A second is the finest that tells an older node from a newer one.
    let made = Timestamp::now().as_second();
    eventually(MINUTE, "another second", async || {
        ensure!(Timestamp::now().as_second() > made, "the same");
        Ok(())
    })
    .await?;
    bed.apply(&[gate("warm", KEY, json!({ "regateOn": ["Reboot"] }))]).await?;
    becomes(bed, "old", KEY, false, 1).await?;
    bed.say("a node that is older than the gate counts as released");

    let foreign = json!([{ "key": "example.com/theirs", "value": "x", "effect": "NoExecute" }]);
    node(bed, "r1", &["warm"], foreign).await?;
    node(bed, "other", &[], json!([])).await?;
    let held = becomes(bed, "r1", KEY, true, 1).await?;
    ensure!(has_taint(&held, "example.com/theirs"), "{:?}", taints(&held));
    says(bed, "warm", "one of two nodes is held", |status| {
        (status.nodes.matched, status.nodes.held, status.nodes.released) == (2, 1, 1)
            && status.blocked.first().is_some_and(|blocked| blocked.requirement == "warm" && blocked.sample == ["r1"])
    })
    .await?;
    stays(bed, "other", KEY, false).await?;
    bed.kstatus_says("nodereadinessgate", "warm", "Current").await?;
    bed.say("a new node is held, and the status says why");

    storm(bed, "r1").await?;
    let released = becomes(bed, "r1", KEY, false, 1).await?;
    ensure!(has_taint(&released, "example.com/theirs"), "{:?}", taints(&released));
    let history: Vec<_> = bed.recorder.history().await?;
    for seen in history.iter().filter(|seen| seen.kind == Kind::Node && seen.object["metadata"]["name"] == "r1") {
        let tainted = seen.object["spec"]["taints"].as_array().is_some_and(|taints| taints.iter().any(|taint| taint["key"] == KEY));
        let annotations = seen.object["metadata"]["annotations"].as_object();
        let held = annotations
            .into_iter()
            .flatten()
            .any(|(key, text)| key.starts_with(GATE_RECORD_PREFIX) && text.as_str().is_some_and(|text| text.contains("\"held\"")));
        ensure!(tainted == held, "taint and record did not travel together: {}", seen.object);
    }
    bed.say("released in one write beside fifty status writes a second, without a conflict");

    warm(bed, "r1", "False").await?;
    stays(bed, "r1", KEY, false).await?;
    warm(bed, "r1", "True").await?;
    add_taint(bed, "r1", &format!("{KEY}=pending:NoSchedule")).await?;
    becomes(bed, "r1", KEY, false, 1).await?;
    bed.say("a node that has passed stays so, and a taint that somebody puts back goes again");

    // Bound by hand: it bears what somebody else put on the node, and not the gate's taint.
    let bears = json!([{ "operator": "Exists", "effect": "NoExecute" }]);
    let spec = json!({ "nodeName": "r1", "tolerations": bears, "containers": [{ "name": "c", "image": "busybox:1.36" }] });
    bed.apply(&[json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "bound", "namespace": "default" }, "spec": spec })])
        .await?;
    let patch = Patch::Merge(json!({ "status": { "nodeInfo": info("boot-2") } }));
    warm(bed, "r1", "False").await?;
    nodes(bed).patch_status("r1", &PatchParams::default(), &patch).await?;
    becomes(bed, "r1", KEY, true, 1).await?;
    let pods = Api::<Pod>::namespaced(bed.client.clone(), "default");
    throughout(WHILE, "the pod stays", async || {
        let bound = pods.get("bound").await?;
        ensure!(bound.metadata.deletion_timestamp.is_none(), "{:?}", bound.metadata);
        Ok(())
    })
    .await?;
    warm(bed, "r1", "True").await?;
    becomes(bed, "r1", KEY, false, 1).await?;
    bed.say("another start is another beginning, and what was bound there stays");

    nodes(bed).delete("r1", &DeleteParams::default()).await?;
    node(bed, "r1", &["warm"], json!([{ "key": "karpenter.sh/unregistered", "effect": "NoExecute" }])).await?;
    becomes(bed, "r1", KEY, true, 1).await?;
    warm(bed, "r1", "True").await?;
    stays(bed, "r1", KEY, true).await?;
    add_taint(bed, "r1", "karpenter.sh/unregistered:NoExecute-").await?;
    becomes(bed, "r1", KEY, false, 1).await?;
    bed.say("another node of the same name is held anew, and not released before it is registered");

    writes_are_refused(bed, KEY).await?;
    node(bed, "r2", &["warm"], json!([])).await?;
    becomes(bed, "r2", KEY, true, 1).await?;
    label(bed, "r2", "warm", false).await?;
    becomes(bed, "r2", KEY, false, 0).await?;
    node(bed, "r3", &["warm"], json!([])).await?;
    becomes(bed, "r3", KEY, true, 1).await?;
    operator_process::stop_pods(bed).await?;
    label(bed, "r3", "warm", false).await?;
    let deletion = Api::<NodeReadinessGate>::all(bed.client.clone()).delete("warm", &DeleteParams::default()).await;
    deletion.context("deleting the gate")?;
    let mut operator = gates_come_last(bed, KEY).await?;
    for name in ["old", "r1", "r2", "r3"] {
        becomes(bed, name, KEY, false, 0).await?;
    }
    eventually(MINUTE, "the gate is gone", async || {
        ensure!(Api::<NodeReadinessGate>::all(bed.client.clone()).get_opt("warm").await?.is_none(), "it is still there");
        Ok(())
    })
    .await?;
    bed.say("nothing is left, neither on a node that was relabelled nor of a gate that was deleted while no operator ran");
    operator.check()
}

/// While admission control refuses writes to Nodes, the gate says that somebody must act; it goes on once it allows them.
async fn writes_are_refused(bed: &Bed, key: &str) -> Result<()> {
    let rules = json!([{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"] }]);
    let of_the_operator = json!([{ "name": "operator", "expression": format!("request.userInfo.username == '{}'", operator::USER) }]);
    let validations = json!([{ "expression": "false", "reason": "Forbidden", "message": "no Node is written today" }]);
    let api = "admissionregistration.k8s.io/v1";
    let [policy, binding] = ["validatingadmissionpolicies", "validatingadmissionpolicybindings"];
    bed.apply(&[
        json!({
            "apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": { "name": "no-nodes" },
            "spec": {
                "matchConstraints": { "resourceRules": rules }, "matchConditions": of_the_operator, "validations": validations,
            },
        }),
        json!({
            "apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", "metadata": { "name": "no-nodes" },
            "spec": { "policyName": "no-nodes", "validationActions": ["Deny"] },
        }),
    ])
    .await?;
    let account = format!("--as={}", operator::USER);
    eventually(MINUTE, "the policy is enforced", async || {
        let label = ["label", "node", "old", "example.com/asked=yes", "--dry-run=server", &account];
        let answer = bed.kubectl(&label).await.err().context("it was allowed")?;
        ensure!(format!("{answer:#}").contains("no Node is written today"), "{answer:#}");
        Ok(())
    })
    .await?;
    node(bed, "refused", &["warm"], json!([])).await?;
    warm(bed, "refused", "True").await?;
    says(bed, "warm", "the write is refused", |status| {
        has_condition(status, "Ready", "False", "PatchForbidden") && has_condition(status, "Stalled", "True", "PatchForbidden")
    })
    .await?;
    bed.kstatus_says("nodereadinessgate", "warm", "Failed").await?;
    for kind in [binding, policy] {
        bed.kubectl(&["delete", kind, "no-nodes"]).await?;
    }
    // What was forbidden is tried again after one to two minutes.
    eventually(3 * MINUTE, "the Node is released", async || {
        let node = nodes(bed).get("refused").await?;
        ensure!(!has_taint(&node, key), "{:?}", taints(&node));
        Ok(())
    })
    .await?;
    says(bed, "warm", "it goes on", |status| status.conditions.iter().all(|condition| condition.type_ != "Stalled")).await?;
    nodes(bed).delete("refused", &DeleteParams::default()).await.context("deleting the Node")?;
    bed.say("a write that admission control refuses needs somebody, says the gate, and kstatus with it");
    Ok(())
}

/// An operator that knows the nodes, and not yet which gates there are, does nothing to them.
async fn gates_come_last(bed: &Bed, key: &str) -> Result<OperatorProcess> {
    let role: Value = serde_json::from_str(&bed.kubectl(&["get", "clusterrole", operator::NAME, "-o", "json"]).await?)?;
    let rules = role["rules"].as_array().context("a role has rules")?;
    let blind: Vec<_> = rules.iter().filter(|rule| rule["resources"] != json!(["nodereadinessgates"])).collect();
    ensure!(blind.len() + 1 == rules.len(), "one rule lets gates be read: {role}");
    let with = async |rules: Value| {
        let patch = json!({ "rules": rules }).to_string();
        bed.kubectl(&["patch", "clusterrole", operator::NAME, "--type=merge", "-p", &patch]).await
    };
    with(json!(blind)).await?;
    eventually(MINUTE, "the operator may not read gates", async || {
        let account = format!("--as={}", operator::USER);
        let may = bed.kubectl(&["auth", "can-i", "list", "nodereadinessgates", &account]).await;
        ensure!(!may.is_ok_and(|may| may.trim() == "yes"), "it may");
        Ok(())
    })
    .await?;
    let operator = OperatorProcess::start(bed, "scenario").await?;
    eventually(MINUTE, "it leads", async || {
        let metrics = operator.metrics().await?;
        ensure!(metrics.lines().any(|line| line == "ids_leader 1"), "it does not");
        Ok(())
    })
    .await?;
    stays(bed, "r3", key, true).await?;
    let waiting = nodes(bed).get("r3").await?;
    ensure!(records(&waiting).len() == 1, "{:?}", waiting.annotations());
    bed.say("an operator that has seen the nodes and no list of gates leaves what it finds");
    with(role["rules"].clone()).await?;
    Ok(operator)
}

/// Says fifty times a second for three seconds what a kubelet says with its heartbeats, and in the middle that the node is warm.
async fn storm(bed: &Bed, name: &str) -> Result<()> {
    // The first annotation that somebody else writes on a new Node may have come between a look and its patch.
    let before = refusals(bed).await?;
    let mut beats = tokio::time::interval(Duration::from_millis(20));
    for beat in 0..150_u32 {
        beats.tick().await;
        let now = Timestamp::now().to_string();
        let heartbeat = json!({ "type": "MemoryPressure", "status": "False", "reason": "Bed", "message": beat.to_string(), "lastHeartbeatTime": now, "lastTransitionTime": now });
        nodes(bed)
            .patch_status(name, &PatchParams::default(), &Patch::Strategic(json!({ "status": { "conditions": [heartbeat] } })))
            .await?;
        if beat == 75 {
            warm(bed, name, "True").await?;
        }
    }
    let after = refusals(bed).await?;
    ensure!(before == after, "{before:?}, and then {after:?}");
    Ok(())
}

async fn together(bed: &mut Bed) -> Result<()> {
    const KEY: &str = "readiness.k8s.io/shared";
    bed.install().await?;
    upstream::is_refused(bed).await?;
    upstream::follows(bed).await?;
    upstream::grows_old(bed).await?;
    let shared = json!({ "requirements": [{ "name": "mark", "nodeAnnotation": { "key": "example.com/mark", "value": "yes" } }] });
    bed.apply(&[gate("one", KEY, json!({})), gate("two", KEY, shared)]).await?;
    let dry = json!({ "dryRun": true, "existingNodes": "Gate" });
    bed.apply(&[gate("dry", "readiness.k8s.io/dry", dry)]).await?;
    node(bed, "s1", &["one", "two", "dry"], json!([])).await?;
    becomes(bed, "s1", KEY, true, 2).await?;
    says(bed, "one", "the taint is shared", |status| has_condition(status, "Overlapping", "True", "SharedTaint")).await?;
    says(bed, "dry", "a dry run", |status| (status.nodes.matched, status.nodes.would_taint, status.nodes.held) == (1, 1, 0)).await?;
    warm(bed, "s1", "True").await?;
    says(bed, "one", "it has released the node", |status| status.nodes.released == 1).await?;
    stays(bed, "s1", KEY, true).await?;
    let annotate = Patch::Merge(json!({ "metadata": { "annotations": { "example.com/mark": "yes" } } }));
    nodes(bed).patch("s1", &PatchParams::default(), &annotate).await?;
    becomes(bed, "s1", KEY, false, 2).await?;
    let history = bed.recorder.history().await?;
    let versions = history.iter().filter(|seen| seen.kind == Kind::Node && seen.object["metadata"]["name"] == "s1");
    let tainted: Vec<_> = versions
        .map(|seen| seen.object["spec"]["taints"].as_array().is_some_and(|taints| taints.iter().any(|taint| taint["key"] == KEY)))
        .collect();
    let gone = tainted.windows(2).filter(|pair| pair[0] && !pair[1]).count();
    ensure!(gone == 1, "the taint went {gone} times: {tainted:?}");
    bed.say("two gates with one taint: it stays until both have released the node");

    let before = nodes(bed).get("s1").await?;
    ensure!(!has_taint(&before, "readiness.k8s.io/dry"), "{:?}", taints(&before));
    delete_gate(bed, "dry").await?;
    let after = nodes(bed).get("s1").await?;
    ensure!(before.resource_version() == after.resource_version(), "a dry run wrote to the node");
    bed.say("a dry run writes nothing, and neither does its end");

    could_not_start(bed).await?;
    budget::bounds_regressions(bed).await?;

    let wants = json!({ "requirements": [{ "name": "disks", "csiDriver": { "name": "disks.example.com" } }] });
    bed.apply(&[gate("csi", "readiness.k8s.io/csi", wants)]).await?;
    node(bed, "s3", &["csi"], json!([])).await?;
    becomes(bed, "s3", "readiness.k8s.io/csi", true, 1).await?;
    let driver = json!({ "name": "disks.example.com", "nodeID": "s3", "topologyKeys": [] });
    bed.apply(&[
        json!({ "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": { "name": "s3" }, "spec": { "drivers": [driver] } }),
    ])
    .await?;
    becomes(bed, "s3", "readiness.k8s.io/csi", false, 1).await?;
    bed.say("a node waits for its CSI driver");

    for name in ["one", "two", "agent", "helpers", "csi"] {
        delete_gate(bed, name).await?;
    }
    for name in ["s1", "s2", "s3"] {
        let left = nodes(bed).get(name).await?;
        ensure!(records(&left).is_empty() && !taints(&left).iter().any(|taint| taint.key.starts_with("readiness.k8s.io/")), "{left:?}");
    }
    bed.say("nothing is left");
    Ok(())
}

/// A gate whose pods could not start on its nodes taints none of them.
async fn could_not_start(bed: &Bed) -> Result<()> {
    let pod = |labels: Value, on: Value| {
        let container = json!({ "name": "agent", "image": "agent:1" });
        json!({ "metadata": { "labels": labels }, "spec": { "nodeSelector": on, "containers": [container] } })
    };
    let daemon_set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": "agent", "namespace": "default" },
        "spec": {
            "selector": { "matchLabels": { "app": "agent" } },
            "template": pod(json!({ "app": "agent" }), json!({ "gate-agent": "yes" })),
        },
    });
    let mut helper = pod(json!({ "app": "helper" }), json!({ "gate-helpers": "yes" }));
    helper["apiVersion"] = "v1".into();
    helper["kind"] = "Pod".into();
    helper["metadata"]["name"] = "helper".into();
    helper["metadata"]["namespace"] = "default".into();
    // On a node that the gate does not select: what its pods tolerate can be seen there.
    helper["spec"]["nodeName"] = "s1".into();
    helper["spec"]["nodeSelector"] = json!({});
    let agent = json!({ "requirements": [{ "name": "agent", "daemonSet": { "namespace": "default", "name": "agent" } }] });
    let labels = json!({ "matchLabels": { "app": "helper" } });
    let helpers = json!({ "requirements": [{ "name": "helpers", "pods": { "namespace": "default", "selector": labels } }] });
    bed.apply(&[daemon_set, helper, gate("agent", "readiness.k8s.io/agent", agent), gate("helpers", "readiness.k8s.io/helpers", helpers)])
        .await?;
    for name in ["agent", "helpers"] {
        says(bed, name, "it could never open", |status| has_condition(status, "Satisfiable", "False", "NotTolerated")).await?;
    }
    node(bed, "s2", &["agent", "helpers"], json!([])).await?;
    nodes_stay(bed, WHILE, "s2 is not tainted", |node| {
        let holds = node.name_any() != "s2" || !taints(node).iter().any(|taint| taint.key.starts_with("readiness.k8s.io/"));
        ensure!(holds, "{:?}", taints(node));
        Ok(())
    })
    .await?;
    let tolerate = json!([{ "key": "readiness.k8s.io/agent", "operator": "Exists" }]).to_string();
    let patch = format!("{{\"spec\":{{\"template\":{{\"spec\":{{\"tolerations\":{tolerate}}}}}}}}}");
    bed.kubectl(&["patch", "daemonset", "agent", "--type=merge", "-p", &patch]).await?;
    // Those of a pod can be added to while it is there.
    let tolerate =
        json!([{ "op": "add", "path": "/spec/tolerations/-", "value": { "key": "readiness.k8s.io/helpers", "operator": "Exists" } }]);
    bed.kubectl(&["patch", "pod", "helper", "--type=json", "-p", &tolerate.to_string()]).await?;
    for name in ["agent", "helpers"] {
        says(bed, name, "it can open", |status| has_condition(status, "Satisfiable", "True", "Satisfiable")).await?;
    }
    // It was there before the gates were in force.
    for name in ["agent", "helpers"] {
        becomes(bed, "s2", &format!("readiness.k8s.io/{name}"), false, 2).await?;
    }
    node(bed, "s9", &["agent", "helpers"], json!([])).await?;
    for name in ["agent", "helpers"] {
        becomes(bed, "s9", &format!("readiness.k8s.io/{name}"), true, 2).await?;
    }
    bed.say("a gate whose pods could not start is not enforced before they can");
    Ok(())
}
