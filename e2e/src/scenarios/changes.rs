//! What is wanted changes half-way.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use crds::names;
use serde_json::{Value, json};

use crate::{
    auditor::{Expectations, Kind, Observation},
    bed::Bed,
    cluster::{
        detacher::{DETACHED_KEY, Detacher, TIMESTAMP_KEY, Variant},
        operator_process::{self, OperatorProcess},
        product::{self, JUDGED_GRACE, deployment_mark, four_nodes, rolling_update},
    },
    eventually::{eventually, throughout},
    load::{LoadOptions, Traffic},
    scenario::Scenario,
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
const MINUTE: Duration = Duration::from_mins(1);

/// To a third version, and back to the first.
pub const TEMPLATE: Scenario = Scenario {
    name: "a_rollout_follows_a_template_changed_half_way_and_back",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(template(bed)),
};

async fn template(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    product::roll_to(bed, "2").await?;
    product::status_says(bed, "a node runs version 2", product::SAID, |status| status.nodes.updated == 1 && status.nodes.available == 3)
        .await?;
    product::roll_to(bed, "3").await?;
    bed.say("version 3 in the middle of version 2");
    product::status_says(bed, "two nodes run version 3", product::SAID, |status| status.nodes.updated == 2).await?;
    product::status_says(bed, "a node is detached", product::SAID, |status| status.nodes.detached == 1).await?;
    product::roll_to(bed, "1").await?;
    bed.say("back to version 1 in the middle of version 3");
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    traffic.all_served(bed).await
}

/// Marks, keys, budget, mode and pause change under way.
pub const SETTINGS: Scenario = Scenario {
    name: "marks_keys_budget_mode_and_pause_change_half_way",
    options: four_nodes,
    // The greatest budget of the scenario.
    expected: || Expectations::budget(2),
    body: |bed| Box::pin(settings(bed)),
};

async fn settings(bed: &mut Bed) -> Result<()> {
    let marks = json!({
        "annotateDeploymentToDetach": { "gracePeriodSeconds": JUDGED_GRACE },
        "annotateNodeToDetach": { "key": DETACHED_KEY, "value": "true", "gracePeriodSeconds": JUDGED_GRACE },
        "waitForDetachmentByAnnotatedTimestamp": { "key": TIMESTAMP_KEY, "format": "RFC3339", "gracePeriodSeconds": JUDGED_GRACE },
    });
    let one_mark = json!({ "annotateDeploymentToDetach": marks["annotateDeploymentToDetach"] });
    product::serve(bed, rolling_update(1, one_mark), &NODES).await?;
    let _detacher = Detacher::start(&bed.client, &bed.haproxy, Variant::Good);
    let watch = bed.haproxy.watch().await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let detached = |status: &crds::IngressDaemonSetStatus| status.nodes.detached > 0;
    product::roll_to(bed, "2").await?;
    product::status_says(bed, "a node is detached", product::SAID, detached).await?;
    product::change(bed, json!({ "updateStrategy": rolling_update(2, marks) })).await?;
    bed.say("both marks and a budget of 2");
    product::status_says(bed, "two nodes are detached", product::SAID, |status| status.nodes.detached == 2).await?;
    product::change(
        bed,
        json!({ "updateStrategy": { "rollingUpdate": { "annotateDeploymentToDetach": { "key": "example.com/out" } } }, "paused": true }),
    )
    .await?;
    bed.say("another key, and paused");
    product::status_says(bed, "nodes under way have finished", product::SAID, |status| {
        status.rollout.as_ref().is_some_and(|ledger| ledger.grants.is_empty())
            && product::has_condition(status, "Progressing", "False", "Paused")
    })
    .await?;
    // The greatest budget was 2.
    watch.at_least(NODES.len() - 2).await?;
    traffic.all_served(bed).await?;
    let watch = bed.haproxy.watch().await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    product::change(bed, json!({ "paused": false, "updateStrategy": rolling_update(0, json!({ "maxDegradedNodes": 1, "annotateDeploymentToDetach": null, "annotateNodeToDetach": null, "waitForDetachmentByAnnotatedTimestamp": null })) })).await?;
    bed.say("degrade mode");
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    // A node that was detached in the change of modes is attached at the latest before the next one is degraded.
    watch.at_least(NODES.len() - 1).await?;
    no_mark_is_left(bed).await?;
    traffic.loses_at_most(DEGRADED, bed).await
}

/// In degrade mode a node gets requests while its pods end one after the other, and nginx ends at once when it is told to: what is under
/// way at the node breaks. The nodes share 32 connections, and each of a node's two pods ends once.
pub(super) const DEGRADED: u64 = 2 * 32;

/// What the API server, or a webhook, makes of a template is no drift, whoever leads.
pub const REWRITTEN: Scenario = Scenario {
    name: "rewritten_templates_are_no_drift_and_removed_labels_come_back",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(rewritten(bed)),
};

async fn rewritten(bed: &mut Bed) -> Result<()> {
    bed.apply(&policy()).await?;
    // It holds as soon as the API server has heard of it: a Deployment made before would be changed by the next write to it.
    let probe = [
        "create",
        "deployment",
        "probe",
        "--image=nginx",
        "--dry-run=server",
        "-o",
        "jsonpath={.spec.template.spec.terminationGracePeriodSeconds}",
    ];
    eventually(MINUTE, "the policy changes templates", async || {
        let grace = bed.kubectl(&probe).await?;
        ensure!(grace.trim() == "11", "the grace is {grace}");
        Ok(())
    })
    .await?;
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    product::roll_to(bed, "2").await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.kubectl(&["delete", "pod", "-n", "ingress-daemonset-system", "--all"]).await?;
    at_rest(bed, "after the operator was restarted").await?;
    // A copy of a Deployment, as people make one to debug it, is nobody's business.
    product::hands_on(bed, &["n1", "n2"]).await?;
    let copy = bed.kubectl(&["get", "deployment", "edge-n2", "-o", "json"]).await?;
    let mut copy: Value = serde_json::from_str(&copy)?;
    for gone in ["uid", "ownerReferences", "resourceVersion"] {
        copy["metadata"].as_object_mut().context("no metadata")?.remove(gone);
    }
    copy["metadata"]["name"] = "zz-copy".into();
    copy["spec"]["replicas"] = 0.into();
    copy["spec"]["selector"]["matchLabels"] = json!({ "app": "copy" });
    copy["spec"]["template"]["metadata"]["labels"] = json!({ "app": "copy" });
    bed.apply(&[copy]).await?;
    let label = format!("{}-", names::RESOURCE_LABEL);
    bed.kubectl(&["label", "deployment", "edge-n1", &label]).await?;
    eventually(MINUTE, "the labels of edge-n1 are back", async || {
        let labels = bed.kubectl(&["get", "deployment", "edge-n1", "-o", "jsonpath={.metadata.labels}"]).await?;
        ensure!(labels.contains(names::RESOURCE_LABEL), "{labels}");
        Ok(())
    })
    .await?;
    at_rest(bed, "after labels came back").await?;
    product::hands_off(bed, &["n1", "n2"]).await?;
    let copy = bed.kubectl(&["get", "deployment", "zz-copy", "-o", "jsonpath={.metadata.generation} {.metadata.annotations}"]).await?;
    ensure!(copy.starts_with("1 "), "the copy was changed: {copy}");
    // Whose it is says its maker, who takes it away.
    bed.kubectl(&["delete", "deployment", "zz-copy"]).await.map(drop)
}

/// Nothing is under way, and no id is used for a while.
async fn at_rest(bed: &Bed, when: &str) -> Result<()> {
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    let next = async || -> Result<u64> {
        let status = product::api(bed).get(product::NAME).await?.status.context("no status")?;
        Ok(status.rollout.context("no ledger")?.next_id)
    };
    let before = next().await?;
    throughout(Duration::from_secs(8), when, async || {
        let now = next().await?;
        ensure!(now == before, "ids went from {before} to {now}");
        Ok(())
    })
    .await
}

/// A policy that changes every pod template of a Deployment a little.
fn policy() -> [Value; 2] {
    let name = "longer-grace";
    let rule = json!({ "apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["deployments"] });
    let patch = r#"[JSONPatch{op: "add", path: "/spec/template/spec/terminationGracePeriodSeconds", value: 11}]"#;
    [
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy", "metadata": { "name": name },
            "spec": {
                "matchConstraints": { "resourceRules": [rule] }, "failurePolicy": "Fail", "reinvocationPolicy": "Never",
                "mutations": [{ "patchType": "JSONPatch", "jsonPatch": { "expression": patch } }],
            },
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding", "metadata": { "name": name },
            "spec": { "policyName": name, "matchResources": { "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "default" } } } },
        }),
    ]
}

/// Neither the user's keys nor ours hold anything.
async fn no_mark_is_left(bed: &Bed) -> Result<()> {
    let deployments = bed.kubectl(&["get", "deployments", "-o", "json"]).await?;
    let nodes = bed.kubectl(&["get", "nodes", "-o", "json"]).await?;
    for key in [names::TO_BE_UPDATED_ANNOTATION, "example.com/out"] {
        ensure!(!deployments.contains(&format!("\"{key}\"")), "{key} is left on a Deployment");
    }
    ensure!(!nodes.contains("\"node-detacher.variant.run/detached\""), "the detach annotation is left on a Node");
    Ok(())
}

/// Pods per node change, and pods are replaced without detachment.
pub const DEGRADE: Scenario = Scenario {
    name: "degrade_mode_updates_within_its_budget_and_scale_works",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(degrade(bed)),
};

async fn degrade(bed: &mut Bed) -> Result<()> {
    let strategy = json!({ "rollingUpdate": { "maxDegradedNodes": 1, "attachSoakSeconds": 1, "maxUnavailablePodsPerNode": 1 } });
    product::serve(bed, strategy, &NODES).await?;
    // While one pod of a node is replaced the other serves on; its health check wants both.
    let watch = bed.haproxy.watch().await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    product::roll_to(bed, "2").await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    watch.at_least(NODES.len() - 1).await?;
    traffic.loses_at_most(DEGRADED, bed).await?;
    let from = bed.recorder.history().await?.len();
    let watch = bed.haproxy.watch().await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    product::change(bed, json!({ "updateStrategy": { "rollingUpdate": { "maxUnavailablePodsPerNode": 0, "maxSurgedPodsPerNode": 1 } } }))
        .await?;
    product::roll_to(bed, "3").await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    watch.at_least(NODES.len()).await?;
    traffic.loses_at_most(DEGRADED, bed).await?;
    let history = bed.recorder.history().await?;
    let members = || history[from..].iter().filter(|seen| seen.kind == Kind::Deployment && !is_operator(&seen.object));
    let ready = |seen: &Observation| seen.object["status"]["readyReplicas"].as_u64().unwrap_or(0);
    ensure!(members().all(|seen| ready(seen) >= 2) && members().any(|seen| ready(seen) == 3), "a new pod is ready before an old one goes");
    bed.say("a rollout with a surge has two ready pods on each node at any time");
    another_placement(bed).await?;
    for replicas in ["3", "1"] {
        bed.kubectl(&["scale", "ids", product::NAME, &format!("--replicas={replicas}")]).await?;
        product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
        let column = bed.kubectl(&["get", "ids", product::NAME, "-o", "jsonpath={.status.replicas} {.status.nodes.available}"]).await?;
        ensure!(column == format!("{replicas} 4"), "status says {column}");
        bed.say(&format!("{replicas} pods on each node"));
    }
    Ok(())
}

fn is_operator(deployment: &Value) -> bool {
    deployment["metadata"]["namespace"] != "default"
}

/// It comes with the next revision, and moves no pod by itself.
async fn another_placement(bed: &Bed) -> Result<()> {
    let from = bed.recorder.history().await?.len();
    product::change(bed, json!({ "placement": "NodeAffinity" })).await?;
    at_rest(bed, "after another placement").await?;
    let history = bed.recorder.history().await?;
    let began = |seen: &&Observation| {
        seen.kind == Kind::Pod || seen.object["status"]["rollout"]["grants"].as_object().is_some_and(|grants| !grants.is_empty())
    };
    let moved = history[from..].iter().find(|seen| seen.object["metadata"]["namespace"] == "default" && began(seen));
    ensure!(moved.is_none(), "another placement alone changed {moved:?}");
    product::roll_to(bed, "4").await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    let names = bed.kubectl(&["get", "deployments", "-o", "jsonpath={range .items[*]}[{.spec.template.spec.nodeName}]{end}"]).await?;
    ensure!(names == "[][][][]", "Deployments name their nodes: {names}");
    bed.say("another placement waited for the next revision");
    Ok(())
}

/// Deployments that people change, scale or delete come back to what the resource says, within the budget.
pub const DRIFT: Scenario = Scenario {
    name: "drift_is_repaired_within_the_budget",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(drift(bed)),
};

async fn drift(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let by_hand = ["n1", "n2", "n3"];
    // While nobody repairs it, the load shows the damage alone, and from then on the repair alone.
    operator_process::stop_pods(bed).await?;
    product::hands_on(bed, &by_hand).await?;
    bed.kubectl(&["set", "env", "deployment/edge-n1", "VERSION=tampered"]).await?;
    bed.kubectl(&["scale", "deployment/edge-n2", "--replicas=1"]).await?;
    bed.kubectl(&["delete", "deployment/edge-n3", "--wait=false"]).await?;
    let shown = "jsonpath={range .items[*]}{.spec.replicas}{.spec.template.spec.containers[0].env[0].value}-{.status.readyReplicas} {end}";
    eventually(MINUTE, "it is done", async || {
        let versions = bed.kubectl(&["get", "deployments", "-o", shown]).await?;
        ensure!(versions.trim() == "2tampered-2 11-1 21-2", "replicas, versions and ready pods are {versions}");
        Ok(())
    })
    .await?;
    bed.kubectl(&["rollout", "status", "deployment/edge-n1", "--timeout=1m"]).await?;
    bed.haproxy.serves(MINUTE, &["n1", "n2", "n4"]).await?;
    traffic.loses_at_most(by_hand.len() as u64 * UNANNOUNCED, bed).await?;
    product::hands_off(bed, &by_hand).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let mut operator = OperatorProcess::start_with(bed, "scenario", &[operator_process::SOLE]).await?;
    product::status_says(bed, "the operator has noticed", product::SAID, |status| status.nodes.available < 4).await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    let versions = bed.kubectl(&["get", "deployments", "-o", shown]).await?;
    ensure!(versions.trim() == "21-2 21-2 21-2 21-2", "replicas, versions and ready pods are {versions}");
    traffic.all_served(bed).await?;
    operator.check()
}

/// What a node takes with it whose pods end unannounced. The load balancer asks every 0.2 s and lets go of a node at the second bad answer,
/// within 0.6 s with the one that is under way. Of some 1,000 requests a second each of four nodes gets a quarter.
pub(super) const UNANNOUNCED: u64 = 250 * 6 / 10;
