//! `docs/migration.md` on moving to the product: its commands, as they are written there, on a cluster that serves.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Pod};
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::{Value, json};

use super::crashes::load_balancer;
use crate::{
    auditor::Expectations,
    bed::{Bed, INFRA_LABEL, Options, haproxy::Check},
    cluster::{
        detacher::DETACHED_KEY,
        guide::Guide,
        product::{self, HEALTH_PORT},
        workload,
    },
    eventually::eventually,
    load::{LoadOptions, Traffic},
    scenario::Scenario,
};

const GUIDE: &str = "docs/migration.md";
const NODES: [&str; 2] = ["n1", "n2"];
const MINUTE: Duration = Duration::from_mins(1);

/// Node by node, under load, and one of them there and back again.
pub const FROM_A_DAEMON_SET: Scenario = Scenario {
    name: "a_daemon_set_migrates_as_the_guide_says",
    options: || Options::with_nodes(2).with_infra().with_check(Check::on_port(workload::PORT)),
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(from_a_daemon_set(bed)),
};

async fn from_a_daemon_set(bed: &mut Bed) -> Result<()> {
    let guide = Guide::in_file(bed, GUIDE, Some("Migrate from a DaemonSet"), &NODES)?;
    bed.apply(&[workload::config_map("default"), daemon_set()]).await?;
    bed.haproxy.serves(MINUTE, &NODES).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    bed.install().await?;
    let old = pods(bed, "app=edge-old").await?;
    guide.run("2. ", |command| command).await?;
    bed.apply(&[resource(&guide.example()?)]).await?;
    product::is_complete(bed, 0, product::ROLLED_OUT).await?;
    ensure!(pods(bed, "app=edge-old").await? == old, "steps 1 to 3 touched a pod");
    bed.say("the DaemonSet gives way, and nothing has happened yet");

    hand_over(bed, &guide, "n1").await?;
    take_out(bed, "n1").await?;
    guide.run("To turn a node back", |command| command).await?;
    bed.haproxy.undrain("n1").await?;
    bed.haproxy.serves(MINUTE, &NODES).await?;
    ensure!(pods(bed, "app=edge").await?.is_empty(), "n1 was turned back and has pods of the new resource");
    bed.say("n1 went there and back again");
    for node in NODES {
        hand_over(bed, &guide, node).await?;
    }
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.say("both nodes were handed over");

    let told = guide.run("5. ", |command| command).await?;
    ensure!(!told.contains("is not in service"), "{told}");
    for node in NODES {
        bed.haproxy.check_on(node, HEALTH_PORT).await?;
    }
    let new = pods(bed, "app=edge").await?;
    guide.run("6. ", |command| command).await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    ensure!(pods(bed, "app=edge").await? == new, "cleaning up touched a pod");
    let labelled = bed.kubectl(&["get", "nodes", "-l", "ingress-by", "-o", "name"]).await?;
    ensure!(labelled.trim().is_empty(), "the label is left on {labelled}");
    ensure!(Api::<DaemonSet>::namespaced(bed.client.clone(), "default").get_opt("edge-old").await?.is_none(), "the DaemonSet is left");
    product::change(bed, json!({ "template": template("2") })).await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.say("the first rollout went through");
    traffic.all_served(bed).await
}

/// The state before: a pod on each node that declares no port.
fn daemon_set() -> Value {
    let mut pod = workload::pod_spec();
    pod["nodeSelector"] = json!({ "ingress": "true" });
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": { "name": "edge-old", "namespace": "default" },
        "spec": {
            "selector": { "matchLabels": { "app": "edge-old" } },
            "template": { "metadata": { "labels": { "app": "edge-old" } }, "spec": pod },
        },
    })
}

/// The guide's, with the bed's load balancer and the `DaemonSet`'s template, as the guide says; it is not about how long a revision is
/// proved.
fn resource(example: &Value) -> Value {
    let mut resource = example.clone();
    resource["metadata"]["namespace"] = "default".into();
    resource["spec"]["loadBalancer"] = load_balancer();
    resource["spec"]["template"] = template("1");
    resource["spec"]["updateStrategy"]["rollingUpdate"]["provenAfterSeconds"] = product::PROVEN.into();
    resource
}

fn template(version: &str) -> Value {
    let mut template = product::template(version);
    template["metadata"]["labels"]["app"] = "edge".into();
    template
}

/// UIDs of the pods with this label.
async fn pods(bed: &Bed, label: &str) -> Result<BTreeSet<String>> {
    let pods = Api::<Pod>::namespaced(bed.client.clone(), "default").list(&ListParams::default().labels(label)).await?;
    Ok(pods.items.iter().filter_map(ResourceExt::uid).collect())
}

/// Step 4 for one node; the guide shows `n1`.
async fn hand_over(bed: &Bed, guide: &Guide, node: &str) -> Result<()> {
    take_out(bed, node).await?;
    let address = bed.address(node)?.to_string();
    guide.run("4. ", |command| command.replace("n1", node).replace("ADDRESS", &address)).await?;
    let on_node = ListParams::default().labels("app=edge-old").fields(&format!("spec.nodeName={node}"));
    let left = Api::<Pod>::namespaced(bed.client.clone(), "default").list(&on_node).await?.items;
    ensure!(left.is_empty(), "{} pods of the DaemonSet are left on {node}", left.len());
    bed.haproxy.undrain(node).await?;
    bed.haproxy.serves(MINUTE, &NODES).await
}

/// Out of the load balancer by its own means, for as long as it needs.
async fn take_out(bed: &Bed, node: &str) -> Result<()> {
    bed.haproxy.drain(node).await?;
    eventually(MINUTE, &format!("{node} has no request in flight"), async || {
        let counters = bed.haproxy.counters().await?;
        let server = counters.servers.get(node).context("no such server")?;
        ensure!(server.sessions == 0 && !server.takes_traffic(), "{server:?}");
        Ok(())
    })
    .await
}

/// What the original made is kept, its CRD replaced, and its nodes handed over. The original itself does not run: its CRD can be
/// installed only on Kubernetes before 1.22. A resource and objects that it owns stand for it.
pub const FROM_THE_ORIGINAL: Scenario = Scenario {
    name: "resources_of_the_original_migrate_as_the_guide_says",
    options: || Options::with_nodes(2).with_infra().with_check(Check::on_port(workload::PORT)),
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(from_the_original(bed)),
};

/// Of the new resource, beside the original's.
const NEW: &str = "edge-2";
const NEW_PORT: u16 = 10081;
const SYSTEM: &str = "ingress-daemonset-controller-system";

async fn from_the_original(bed: &mut Bed) -> Result<()> {
    let guide = Guide::in_file(bed, GUIDE, Some("Migrate from ingress-daemonset-controller"), &NODES)?;
    let steps = Guide::in_file(bed, GUIDE, Some("Migrate from a DaemonSet"), &NODES)?;
    let as_is = |command: String| command;
    bed.apply_path("crds/manifests").await?;
    as_of_the_original(bed).await?;
    bed.haproxy.serves(MINUTE, &NODES).await?;
    let old = pods(bed, "of=the-original").await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;

    guide.run("1. ", as_is).await?;
    ensure!(pods(bed, "of=the-original").await? == old, "step 1 touched a pod");
    bed.say("the resource is gone, and what it owned is there");
    guide.run("2. ", as_is).await?;
    // The same once more, and what the bed needs besides.
    bed.install().await?;
    guide.run("3. ", as_is).await?;
    let marked = bed.kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.annotations}"]).await?;
    ensure!(!marked.contains("node-detacher"), "{marked}");
    let mut new = resource(&steps.example()?);
    new["metadata"]["name"] = NEW.into();
    new["spec"]["healthCheckNodePorts"] = json!([NEW_PORT]);
    bed.apply(&[new]).await?;
    product::is_complete_named(bed, NEW, 0, product::ROLLED_OUT).await?;
    ensure!(pods(bed, "of=the-original").await? == old, "the operator touched a pod of the original");
    bed.say("the operator runs and has touched nothing");

    let (port, new_port) = (HEALTH_PORT.to_string(), NEW_PORT.to_string());
    for node in NODES {
        take_out(bed, node).await?;
        guide.run("4. ", |command| command.replace("n1", node)).await?;
        let (labelled, address) = (format!("app=nginx-{node}"), bed.address(node)?.to_string());
        let of_node = |command: String| {
            command.replace("app=edge-old", &labelled).replace("n1", node).replace("ADDRESS", &address).replace(&port, &new_port)
        };
        steps.run("4. ", of_node).await?;
        bed.haproxy.undrain(node).await?;
        bed.haproxy.serves(MINUTE, &NODES).await?;
    }
    for node in NODES {
        bed.haproxy.check_on(node, NEW_PORT).await?;
    }
    guide.run("5. ", as_is).await?;
    bed.say("both nodes were handed over, and nothing of the original is left");
    product::change_named(bed, NEW, json!({ "template": template("2") })).await?;
    product::is_complete_named(bed, NEW, NODES.len(), product::ROLLED_OUT).await?;
    traffic.all_served(bed).await
}

/// A resource, a Deployment on each node and a health checker that it owns, a mark that it left, and its controller.
async fn as_of_the_original(bed: &Bed) -> Result<()> {
    let mut edge = product::resource("1", &json!({ "type": "RollingUpdate" }));
    edge["metadata"]["finalizers"] = json!(["ingressdaemonsets.mumoshu.github.io"]);
    // The API server serves a kind a moment after its CRD is there.
    let first = [workload::config_map("default"), edge];
    eventually(MINUTE, "the resource is taken", async || bed.apply(&first).await).await?;
    let uid = product::api(bed).get(product::NAME).await?.uid();
    let owner = json!([{
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet", "name": product::NAME, "uid": uid,
        "controller": true, "blockOwnerDeletion": true,
    }]);
    let mut objects = vec![json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": SYSTEM } })];
    for node in NODES {
        let mut deployment = workload::deployment("default", node, 2);
        deployment["metadata"]["name"] = format!("{}-{node}", product::NAME).into();
        deployment["metadata"]["ownerReferences"] = owner.clone();
        deployment["spec"]["template"]["metadata"]["labels"]["of"] = "the-original".into();
        objects.push(deployment);
    }
    let sleeps = |app: &str, nodes: Value| {
        let container = json!({ "name": "c", "image": "busybox:1.36", "args": ["-c", "exec sleep 3600"] });
        let pod = json!({ "nodeSelector": nodes, "terminationGracePeriodSeconds": 1, "containers": [container] });
        json!({ "selector": { "matchLabels": { "app": app } }, "template": { "metadata": { "labels": { "app": app } }, "spec": pod } })
    };
    let checker = format!("{}-{HEALTH_PORT}", product::NAME);
    objects.push(json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": { "name": checker, "namespace": "default", "ownerReferences": owner },
        "spec": sleeps(&checker, json!({ "ingress": "true" })),
    }));
    objects.push(json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "controller-manager", "namespace": SYSTEM },
        "spec": sleeps("controller-manager", json!({ INFRA_LABEL: "" })),
    }));
    bed.apply(&objects).await?;
    bed.kubectl(&["annotate", "node", "n1", &format!("{DETACHED_KEY}=true")]).await.map(drop)
}
