//! Deleting the resource, and names that are taken.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Node as ApiNode};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;

use crate::{
    auditor::{Expectations, Kind, Property},
    bed::{Bed, node::NodeSpec, operator},
    cluster::{
        detacher::{Detacher, Variant},
        guide::Guide,
        node_gates::admission_policies,
        product::{self, both_marks, deployment_mark, four_nodes, has_condition, rolling_update},
        workload,
    },
    eventually::{eventually, throughout},
    load::{LoadOptions, Traffic},
    scenario::Scenario,
    scenarios::node_gates::originals::clean_up,
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
const MINUTE: Duration = Duration::from_mins(1);

/// Under load that another workload takes over: nodes are detached before their pods go, so that no request is lost, and only what is
/// ours goes.
pub const DELETED_UNDER_LOAD: Scenario = Scenario {
    name: "deleting_the_resource_under_load_detaches_first_and_leaves_nothing",
    options: || {
        let mut options = four_nodes();
        options.nodes.push(NodeSpec::new(OTHER));
        options
    },
    // Everything goes: that is no rolling update.
    expected: || Expectations::budget(4),
    body: |bed| Box::pin(deleted_under_load(bed)),
};

/// A node that the resource does not choose.
const OTHER: &str = "n5";

/// A plain workload on a node of its own, in a namespace of its own, which the load balancer asks for its health itself.
async fn another_workload_serves(bed: &Bed) -> Result<()> {
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": OTHER } });
    bed.apply(&[namespace]).await?;
    bed.apply(&[workload::config_map(OTHER), workload::deployment(OTHER, OTHER, 1)]).await?;
    bed.deployment_available(OTHER, &format!("nginx-{OTHER}")).await?;
    bed.haproxy.check_on(OTHER, workload::PORT).await?;
    let all: Vec<_> = NODES.into_iter().chain([OTHER]).collect();
    bed.haproxy.serves(MINUTE, &all).await
}

async fn deleted_under_load(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, both_marks()), &NODES).await?;
    another_workload_serves(bed).await?;
    let _detacher = Detacher::start(&bed.client, &bed.haproxy, Variant::Good);
    let nodes = Api::<ApiNode>::all(bed.client.clone());
    let foreign = json!({ "metadata": { "annotations": { "example.com/kept": "yes" }, "labels": { "example.com/kept": "yes" } } });
    nodes.patch("n1", &PatchParams::default(), &Patch::Merge(foreign)).await?;
    product::roll_to(bed, "2").await?;
    product::status_says(bed, "a node is detached", product::SAID, |status| status.nodes.detached == 1).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    product::api(bed).delete(product::NAME, &DeleteParams::default()).await?;
    let gone = eventually(MINUTE * 4, "the resource is gone", async || {
        ensure!(product::api(bed).get_opt(product::NAME).await?.is_none(), "it is still there");
        Ok(())
    });
    gone.await?;
    traffic.all_served(bed).await?;
    bed.haproxy.serves(MINUTE, &[OTHER]).await?;
    eventually(MINUTE * 2, "nothing of the product is left", async || {
        let left = bed.kubectl(&["get", "deployments,replicasets,daemonsets,serviceaccounts,rolebindings,pods", "-o", "name"]).await?;
        let left: Vec<_> = left.lines().filter(|line| *line != "serviceaccount/default").collect();
        ensure!(left.is_empty(), "{left:?}");
        let bindings = bed.kubectl(&["get", "clusterrolebindings", "-o", "name"]).await?;
        ensure!(!bindings.contains("health-checker"), "{bindings}");
        for node in NODES {
            nothing_of_ours(&nodes, node).await?;
        }
        Ok(())
    })
    .await?;
    let kept = nodes.get("n1").await?.metadata;
    ensure!(kept.annotations.context("no annotations")?.contains_key("example.com/kept"), "a foreign annotation went");
    ensure!(kept.labels.context("no labels")?.contains_key("example.com/kept"), "a foreign label went");
    Ok(())
}

/// The operator is gone before its resource, in the middle of a rollout; a command removes what the resource leaves.
pub const WITHOUT_OPERATOR: Scenario = Scenario {
    name: "a_command_cleans_up_resources_deleted_without_an_operator",
    options: four_nodes,
    // Nobody detaches nodes first, and nobody cleans up before the command does.
    expected: || Expectations::budget(4).except(Property::NothingRemains).except(Property::NoBypass),
    body: |bed| Box::pin(without_operator(bed)),
};

async fn without_operator(bed: &mut Bed) -> Result<()> {
    // Nobody answers the mark on the node.
    product::serve(bed, rolling_update(1, both_marks()), &NODES).await?;
    product::roll_to(bed, "2").await?;
    product::status_says(bed, "a node is detached", product::SAID, |status| status.nodes.detached == 1).await?;
    bed.apply(&[Guide::in_file(bed, "docs/pod-readiness.md", None, &NODES)?.named("PodReadinessGate", "injected")?]).await?;
    eventually(MINUTE, "the gate of pods has its policy", async || {
        let made = admission_policies(bed, crds::names::POD_GATE_LABEL).await?;
        ensure!(made.lines().count() == 2, "{made}");
        Ok(())
    })
    .await?;
    let report = bed.recorder.judge(&Expectations::budget(1)).await?;
    ensure!(report.violations.is_empty(), "while the operator was there: {:?}", report.violations);
    bed.kubectl(&["delete", "namespace", operator::NAMESPACE]).await?;
    let there = eventually_cleaned(bed, &["--dry-run"], "IngressDaemonSet default/edge is there").await?;
    ensure!(!there.contains("member-") && !there.contains("detach-holders"), "what is of use would go: {there}");

    bed.kubectl(&["patch", "ids", product::NAME, "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#]).await?;
    bed.kubectl(&["delete", "ids", product::NAME]).await?;
    let said = eventually_cleaned(bed, &[], "4 of 6 nodes cleaned up").await?;
    for part in [
        "label ingressdaemonsets.mumoshu.github.io/member-",
        "detach-holders removed",
        "ClusterRoleBinding ingress-daemonset-health-checker-",
        "PodReadinessGate default/injected is there",
    ] {
        ensure!(said.contains(part), "{part} is missing: {said}");
    }
    let left = admission_policies(bed, crds::names::POD_GATE_LABEL).await?;
    ensure!(left.is_empty(), "new pods would get a condition that nobody sets: {left}");
    let nodes = Api::<ApiNode>::all(bed.client.clone());
    for node in NODES {
        nothing_of_ours(&nodes, node).await?;
    }
    let bindings = bed.kubectl(&["get", "clusterrolebindings", "-o", "name"]).await?;
    ensure!(!bindings.contains("ingress-daemonset-health-checker-"), "{bindings}");
    bed.say("nothing is left");
    Ok(())
}

/// The manifests of the operator are deleted first, and then the definitions with their resources. Pods serve on, and the operator ends the
/// deletion when it is back.
pub const WRONG_ORDER: Scenario = Scenario {
    name: "pods_serve_on_when_manifests_are_deleted_in_wrong_order",
    options: four_nodes,
    // With the operator back, all nodes go at once.
    expected: || Expectations::budget(4),
    body: |bed| Box::pin(wrong_order(bed)),
};

/// How long what serves is watched without an operator and without definitions.
const WITHOUT: Duration = Duration::from_secs(20);

async fn wrong_order(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let watch = bed.haproxy.watch().await?;
    let commands = Guide::in_file(bed, "docs/operations.md", Some("Uninstall"), &NODES)?;
    let deletes = |what: &str| commands.commands().into_iter().find(|command| command.ends_with(what)).context("no such command");
    commands.shell(&deletes("-f deploy/")?).await?;
    commands.shell(&format!("{} --wait=false", deletes("-f crds/manifests/")?)).await?;
    eventually(MINUTE, "the resource is being deleted", async || {
        let resource = product::api(bed).get(product::NAME).await?;
        ensure!(resource.metadata.deletion_timestamp.is_some(), "it is not");
        Ok(())
    })
    .await?;
    throughout(WITHOUT, "the resource and its pods are there", async || {
        bed.kubectl(&["get", "ids", product::NAME]).await?;
        let pods = bed.kubectl(&["get", "pods", "-l", "app=nginx", "-o", "name"]).await?;
        ensure!(pods.lines().count() == 2 * NODES.len(), "{pods}");
        Ok(())
    })
    .await?;
    watch.at_least(NODES.len()).await?;
    traffic.all_served(bed).await?;
    bed.say("without an operator and with definitions that are being deleted, all nodes serve on");

    bed.install().await?;
    eventually(MINUTE * 4, "the resource and its definition are gone", async || {
        let left = bed.kubectl(&["get", "crds", "-o", "name"]).await?;
        ensure!(!left.contains("/ingressdaemonsets."), "{left}");
        Ok(())
    })
    .await?;
    let nodes = Api::<ApiNode>::all(bed.client.clone());
    for node in NODES {
        nothing_of_ours(&nodes, node).await?;
    }
    bed.say("the operator came back and ended the deletion");
    bed.install().await?;
    product::serve_installed(bed, product::resource("2", &rolling_update(1, deployment_mark())), &NODES).await
}

/// The command, once the lease of the operator is over.
async fn eventually_cleaned(bed: &Bed, more: &[&str], expected: &str) -> Result<String> {
    let mut said = String::new();
    eventually(MINUTE, "the command cleans up", async || {
        let output = clean_up(bed, more).await?;
        said = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success() && said.contains(expected), "{said}{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    })
    .await?;
    Ok(said)
}

async fn nothing_of_ours(nodes: &Api<ApiNode>, node: &str) -> Result<()> {
    let meta = nodes.get(node).await?.metadata;
    let keys: Vec<_> = meta.labels.iter().flatten().chain(meta.annotations.iter().flatten()).map(|(key, _)| key.clone()).collect();
    ensure!(!keys.iter().any(|key| key.starts_with("ingressdaemonsets.") || key.starts_with("node-detacher.")), "{node} has {keys:?}");
    Ok(())
}

/// A Deployment of somebody else has the name that one of ours should get.
pub const NAME_TAKEN: Scenario = Scenario {
    name: "an_object_of_somebody_else_is_never_adopted",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(name_taken(bed)),
};

async fn name_taken(bed: &mut Bed) -> Result<()> {
    bed.kubectl(&["create", "deployment", "edge-n1", "--image=busybox:1.36", "--replicas=0"]).await?;
    let foreign = Api::<Deployment>::namespaced(bed.client.clone(), "default").get("edge-n1").await?;
    bed.install().await?;
    bed.apply(&[workload::config_map("default"), product::resource("1", &rolling_update(1, deployment_mark()))]).await?;
    bed.haproxy.serves(MINUTE, &["n2", "n3", "n4"]).await?;
    product::status_says(bed, "the condition NameConflict", product::SAID, |status| {
        has_condition(status, "NameConflict", "True", "NameConflict")
    })
    .await?;
    let stays = throughout(Duration::from_secs(5), "the name is taken", async || {
        let status = product::api(bed).get(product::NAME).await?.status.unwrap_or_default();
        ensure!(has_condition(&status, "NameConflict", "True", "NameConflict"), "{status:?}");
        Ok(())
    });
    stays.await?;
    bed.kubectl(&["delete", "deployment", "edge-n1"]).await?;
    product::is_complete(bed, 4, product::ROLLED_OUT).await?;
    product::stayed(bed, 0, Kind::Deployment, "the foreign Deployment", |seen: &Deployment| {
        let is_foreign = seen.uid() == foreign.uid();
        let is_the_same = seen.owner_references().is_empty() && seen.labels() == foreign.labels() && seen.spec == foreign.spec;
        ensure!(!is_foreign || is_the_same, "it became {seen:?}");
        Ok(())
    })
    .await
}
