//! When the new version does not work, the kubelet restarts, the detacher is silent, or the operator dies.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use crds::{names, status::NodePhase};
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    coordination::v1::Lease,
    core::v1::Pod,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};

use crate::{
    auditor::{Expectations, Kind},
    bed::Bed,
    cluster::{
        detacher::{Detacher, Variant},
        operator_process::OperatorProcess,
        product::{self, both_marks, deployment_mark, four_nodes, has_condition, node_mark, rolling_update},
        workload,
    },
    eventually::{eventually, throughout},
    load::{LoadOptions, Traffic},
    scenario::Scenario,
    scenarios::crashes::completes,
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
const MINUTE: Duration = Duration::from_mins(1);

/// The template's image does not exist.
pub const MISSING_IMAGE: Scenario = Scenario {
    name: "a_missing_image_stays_within_budget_and_its_correction_completes",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(missing_image(bed)),
};

async fn missing_image(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    let watch = bed.haproxy.watch().await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    product::roll_to_missing_image(bed).await?;
    let status = product::status_says(bed, "the status names the node and the image", product::SAID, |status| {
        has_condition(status, "Degraded", "True", "ImagePull")
            && status.node_states.iter().any(|state| state.reason == "ImagePull" && state.message.contains("nginx:does-not-exist"))
    })
    .await?;
    bed.say(&format!("{:?}", status.node_states.first().map(|state| (&state.name, &state.reason))));
    product::status_stays(bed, "one node is under way", Duration::from_secs(5), |status| {
        status.rollout.as_ref().is_some_and(|ledger| ledger.grants.len() == 1) && status.nodes.updated == 0
    })
    .await?;
    watch.at_least(3).await?;
    product::roll_to(bed, "3").await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    traffic.all_served(bed).await
}

/// Every pod is unready at once, while a new version waits.
pub const KUBELET_RESTART: Scenario = Scenario {
    name: "a_kubelet_restart_replaces_no_more_nodes_than_the_budget",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(kubelet_restart(bed)),
};

async fn kubelet_restart(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    // With it pods are not available for a while after they are ready again.
    product::change(bed, json!({ "minReadySeconds": 3 })).await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    for node in NODES {
        bed.node(node)?.forget_readiness()?;
    }
    product::status_says(bed, "no node is ready", product::SAID, |status| status.nodes.ready == 0).await?;
    product::roll_to(bed, "2").await?;
    product::status_says(bed, "one node has a grant", product::SAID, |status| {
        status.rollout.as_ref().is_some_and(|ledger| ledger.grants.len() == 1)
    })
    .await?;
    // The auditor judges every moment between here and the end.
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    let history = bed.recorder.history().await?;
    let ours = history.iter().filter(|seen| seen.kind == Kind::Pod && seen.object["metadata"]["labels"][names::REVISION_LABEL].is_string());
    let made: BTreeSet<_> = ours.filter_map(|seen| seen.object["metadata"]["uid"].as_str()).collect();
    ensure!(made.len() == 4 * NODES.len(), "{} pods were made of two versions for 4 nodes of 2", made.len());
    Ok(())
}

/// The detacher does not answer.
pub const SILENT_DETACHER: Scenario = Scenario {
    name: "a_silent_detacher_halts_aborts_or_is_skipped_by_policy",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(silent_detacher(bed)),
};

async fn silent_detacher(bed: &mut Bed) -> Result<()> {
    let strategy = |policy: &str| {
        let mut strategy = rolling_update(1, node_mark());
        strategy["rollingUpdate"]["detachTimeoutSeconds"] = 3.into();
        strategy["rollingUpdate"]["onDetachTimeout"] = policy.into();
        strategy
    };
    product::serve(bed, strategy("Halt"), &NODES).await?;
    product::roll_to(bed, "2").await?;
    let halted = product::status_says(bed, "the rollout halts and says so", product::SAID, |status| {
        has_condition(status, "Stalled", "True", "DetachTimeout")
    })
    .await?;
    ensure!(halted.nodes.detached == 1 && halted.nodes.updated == 0, "{:?}", halted.nodes);
    bed.say("halted");
    product::change(bed, json!({ "updateStrategy": strategy("Abort") })).await?;
    let aborted = product::status_says(bed, "the node is attached again and given up", product::SAID, |status| {
        let given_up = status.node_states.iter().any(|state| state.phase == NodePhase::Blocked && state.reason == "DetachAborted");
        given_up && status.nodes.detached == 0 && status.nodes.available == 4
    })
    .await?;
    ensure!(aborted.nodes.updated == 0, "{:?}", aborted.nodes);
    bed.say("aborted, its pods untouched");
    product::change(bed, json!({ "updateStrategy": strategy("Proceed") })).await?;
    product::roll_to(bed, "3").await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.say("proceeded without the detacher");
    Ok(())
}

/// Ten times in one rollout.
pub const OPERATOR_KILLED: Scenario = Scenario {
    name: "an_operator_killed_ten_times_replaces_no_pod_twice",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(operator_killed(bed)),
};

async fn operator_killed(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, both_marks()), &NODES).await?;
    let _detacher = Detacher::start(&bed.client, &bed.haproxy, Variant::Good);
    let mut operator = OperatorProcess::instead_of_pods(bed).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let mut live = bed.recorder.live();
    product::roll_to(bed, "2").await?;
    let mut written = BTreeSet::new();
    let mut kills = 0;
    while kills < 10 {
        let seen = tokio::time::timeout(MINUTE, live.recv()).await.context("no write of the operator within a minute")??;
        // Each write of the protocol leaves another token or entry; after every second one the operator dies.
        let mark = match seen.kind {
            Kind::Deployment => seen.object["metadata"]["labels"][names::TOKEN_LABEL].as_str(),
            Kind::Node => seen.object["metadata"]["annotations"][names::HOLDERS_ANNOTATION].as_str(),
            _ => None,
        };
        let new = mark.is_some_and(|mark| written.insert(mark.to_owned()));
        if new && written.len() % 2 == 0 {
            operator.kill().await?;
            kills += 1;
            operator.run()?;
        }
    }
    bed.say("killed ten times");
    completes(bed, &mut operator, NODES.len(), product::ROLLED_OUT).await?;
    traffic.all_served(bed).await?;
    let revision = product::api(bed).get(product::NAME).await?.status.context("no status")?.revisions.update;
    let history = bed.recorder.history().await?;
    let replaced: BTreeSet<_> = history
        .iter()
        .filter(|observation| {
            observation.kind == Kind::Pod && observation.object["metadata"]["labels"][names::REVISION_LABEL] == revision.as_str()
        })
        .filter_map(|observation| observation.object["metadata"]["uid"].as_str())
        .collect();
    ensure!(replaced.len() == 8, "{} pods of the new version were made for 4 nodes of 2", replaced.len());
    Ok(())
}

/// The replica that leads ends orderly; the other one goes on.
pub const HAND_OVER: Scenario = Scenario {
    name: "a_leader_that_ends_hands_over_at_once",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(hand_over(bed)),
};

async fn hand_over(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    let holder = async || -> Result<String> {
        let api = Api::<Lease>::namespaced(bed.client.clone(), "ingress-daemonset-system");
        let holder = api.get("ingress-daemonset-operator").await?.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        ensure!(!holder.is_empty(), "nobody holds the lease");
        Ok(holder)
    };
    let first = holder().await?;
    product::roll_to(bed, "2").await?;
    product::status_says(bed, "a node is detached", product::SAID, |status| status.nodes.detached == 1).await?;
    Api::<Pod>::namespaced(bed.client.clone(), "ingress-daemonset-system").delete(&first, &DeleteParams::default()).await?;
    let started = std::time::Instant::now();
    let second = eventually(Duration::from_secs(5), "another replica holds the lease", async || {
        let now = holder().await?;
        ensure!(now != first, "{now} still holds it");
        Ok(now)
    })
    .await?;
    bed.say(&format!("{second} took over {:.2} s after the deletion of {first}", started.elapsed().as_secs_f32()));
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await
}

/// A kubelet refuses the pods, which the Deployment would make again without end.
pub const REFUSED_PODS: Scenario = Scenario {
    name: "pods_that_a_kubelet_refuses_are_not_made_without_end",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(refused_pods(bed)),
};

/// Pods made on the refusing node before the breaker opens, and at each try: a `ReplicaSet` makes the next one as soon as
/// it sees the last one fail, so this bounds how long the operator takes to notice.
const FLOOD: usize = 40;

async fn refused_pods(bed: &mut Bed) -> Result<()> {
    let port = json!([{ "containerPort": 80 }]);
    let mut squatter = workload::deployment("default", "n1", 1);
    squatter["spec"]["template"]["spec"]["containers"][0]["ports"] = port.clone();
    bed.install().await?;
    bed.apply(&[workload::config_map("default"), squatter]).await?;
    bed.deployment_available("default", "nginx-n1").await?;
    let mut resource = product::resource("1", &rolling_update(1, deployment_mark()));
    resource["spec"]["podsPerNode"] = 1.into();
    resource["spec"]["placement"] = "NodeName".into();
    resource["spec"]["template"]["spec"]["containers"][0]["ports"] = port;
    bed.apply(&[resource]).await?;
    let refused = |status: &crds::IngressDaemonSetStatus| {
        status.nodes.available == 3
            && status
                .node_states
                .iter()
                .any(|state| state.name == "n1" && state.reason == "AdmissionRejected" && state.message.contains("NodePorts"))
    };
    product::status_says(bed, "n1 is named with the kubelet's reason, the others serve", product::SAID, refused).await?;
    let made = async || -> Result<usize> {
        let history = bed.recorder.history().await?;
        let of_n1 = |object: &Value| object["metadata"]["labels"][names::NODE_LABEL] == "edge-n1";
        let pods: BTreeSet<_> = history
            .iter()
            .filter(|observation| observation.kind == Kind::Pod && of_n1(&observation.object))
            .filter_map(|observation| observation.object["metadata"]["uid"].as_str())
            .collect();
        Ok(pods.len())
    };
    // Pods are made until the Deployment's ReplicaSet has heard of the breaker, and again at the next try.
    eventually(MINUTE * 3, "the breaker of n1 is open, for longer than is looked at", async || {
        let name = format!("{}-n1", product::NAME);
        let deployment = Api::<Deployment>::namespaced(bed.client.clone(), "default").get(&name).await?;
        let breaker = deployment.metadata.labels.as_ref().and_then(|labels| labels.get(names::BREAKER_LABEL)).context("it is closed")?;
        let until: i64 = breaker.split_once('.').context("it has no end")?.1.parse()?;
        ensure!(until > chrono::Utc::now().timestamp() + 20, "the next try is near: {breaker}");
        let of_n1 = ListParams::default().labels(&format!("{}={name}", names::NODE_LABEL));
        let sets = Api::<ReplicaSet>::namespaced(bed.client.clone(), "default").list(&of_n1).await?.items;
        ensure!(!sets.is_empty(), "n1 has no ReplicaSet");
        for set in sets {
            let wanted = set.spec.and_then(|spec| spec.replicas);
            let heard = set.status.and_then(|status| status.observed_generation) == set.metadata.generation;
            ensure!(wanted == Some(0) && heard, "{wanted:?} pods are wanted, known: {heard}");
        }
        Ok(())
    })
    .await?;
    let first = made().await?;
    bed.say(&format!("{first} pods were made on n1 before the breaker opened"));
    ensure!(first <= FLOOD, "{first} pods were made");
    throughout(Duration::from_secs(10), "no further pod is made", async || {
        let now = made().await?;
        ensure!(now == first, "there are {now} by now");
        Ok(())
    })
    .await?;
    bed.kubectl(&["delete", "deployment", "nginx-n1"]).await?;
    bed.say("the port is free");
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await
}

/// A template that the API server refuses is asked for once in a while, not in a loop, and nothing is made for it.
async fn refused_template(bed: &Bed) -> Result<()> {
    let spec = json!({ "nodeSelector": { "ingress": "true" }, "template": { "spec": { "containers": [{ "name": "c" }] } } });
    let resource = json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet",
        "metadata": { "name": "refused", "namespace": "default" }, "spec": spec,
    });
    bed.apply(&[resource]).await?;
    let reason = ["get", "ids", "refused", "-o", "jsonpath={.status.conditions[?(@.type==\"Valid\")].reason}"];
    eventually(MINUTE, "the condition says that the API server refuses it", async || {
        let reason = bed.kubectl(&reason).await?;
        ensure!(reason == "TemplateRefused", "{reason}");
        Ok(())
    })
    .await?;
    let version = ["get", "ids", "refused", "-o", "jsonpath={.status.rollout.nextId}"];
    let before = bed.kubectl(&version).await?;
    throughout(Duration::from_secs(5), "no id is used for what was refused", async || {
        let now = bed.kubectl(&version).await?;
        ensure!(now == before, "ids went from {before} to {now}");
        Ok(())
    })
    .await?;
    bed.kubectl(&["delete", "ids", "refused"]).await.map(drop)
}

/// A bad edit while all serve.
pub const BAD_EDIT: Scenario = Scenario {
    name: "a_bad_edit_is_named_and_the_former_state_stays",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(bad_edit(bed)),
};

async fn bad_edit(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    let invalid = |reason: &'static str| move |status: &crds::IngressDaemonSetStatus| has_condition(status, "Valid", "False", reason);
    let edits: [(&str, Value, Value); 3] = [
        ("ConflictingAliases", json!({ "replicas": 5 }), json!({ "replicas": null })),
        ("ReservedKey", json!({ "selector": { "matchLabels": { names::NODE_LABEL: "x" } } }), json!({ "selector": null })),
        ("InvalidSpec", json!({ "healthChecker": { "bindAddress": "999.1.1.1" } }), json!({ "healthChecker": null })),
    ];
    let watch = bed.haproxy.watch().await?;
    for (reason, edit, repair) in edits {
        product::change(bed, edit).await?;
        product::status_says(bed, reason, product::SAID, invalid(reason)).await?;
        product::change(bed, repair).await?;
        product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    }
    refused_template(bed).await?;
    watch.exactly(&NODES).await
}
