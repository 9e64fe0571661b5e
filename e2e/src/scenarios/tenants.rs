//! A tenant who may edit one namespace, beside another who serves.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use crds::{IngressDaemonSet, IngressDaemonSetStatus, NodeReadinessGate, PodReadinessGate};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Namespace, Node, Pod},
    events::v1::Event,
};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    auditor::{Expectations, Kind},
    bed::{Bed, Options, control_plane},
    cluster::{
        detacher::{DETACHED_KEY, Detacher, Variant},
        operator_process::{self, OperatorProcess},
        product,
    },
    eventually::eventually,
    load::{LoadOptions, Traffic},
    scenario::Scenario,
    scenarios::ownership::is_allowed,
};

/// The tenant's namespace and name.
const TENANT: &str = "tenant";
/// Objects that it makes of each kind.
const OBJECTS: usize = 2_000;
/// Selectors that differ.
const SELECTORS: usize = 500;
/// Requests of the tenant at once.
const AT_ONCE: usize = 16;
/// How much longer the other's rollout may take beside all that.
const SLOWER: f64 = 1.2;
/// Resources of the tenant that are older than the other's: one is to claim its port, one its key.
const OLDER: [&str; 2] = ["port", "key"];
/// Deployments that look like the other's.
const LOOK_ALIKES: usize = 300;
/// Large Deployments that the tenant's gates name.
const NAMED: usize = 32;
/// How many of them get a pod. More make the API server of a machine with two cores so slow that no operator keeps its lease.
const WITH_PODS: usize = 4;
/// Label of their pods.
const LARGE_LABEL: &str = "large";
/// Of an object that the API server just takes: etcd accepts 1.5 MiB.
const LARGE_BYTES: usize = 1_400_000;
/// What the operator may take, in MiB: half of what its container may have by its manifest.
const MEMORY: f64 = 128.0;
/// A key that each namespace may use by default, and that nobody else asks for.
const EXCLUDED: &str = "alpha.service-controller.kubernetes.io/exclude-balancer";
/// A word in everything that the tenant would have on Nodes.
const OWN: &str = "tenant.example.com";

/// The roles view, edit and admin of a namespace cover its resources and gates.
pub const ROLES: Scenario = Scenario {
    name: "roles_of_a_namespace_cover_its_resources_and_gates",
    options: || Options { takes_rights_away: true, ..Options::default().with_infra() },
    expected: Expectations::default,
    body: |bed| Box::pin(rights_are_passed_on(bed)),
};

/// A tenant makes thousands of objects and tries every field, beside the rollout of another.
pub const HOSTILE: Scenario = Scenario {
    name: "a_hostile_tenant_writes_nothing_to_nodes_nor_delays_neighbours",
    options: || Options { takes_rights_away: true, ..product::four_nodes() },
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(hostile(bed)),
};

/// Resources of a tenant that are older, and used the nodes before, ask for the health port and the detach key of another who serves, beside
/// Deployments that look like those of the other.
pub const CLAIMS: Scenario = Scenario {
    name: "a_tenant_takes_no_port_or_key_from_serving_neighbours",
    options: || Options::with_nodes(3).with_infra(),
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(claims(bed)),
};

/// A tenant's gates name Deployments that are as large as the API server takes them, and so are their `ReplicaSets` and pods.
pub const LARGE: Scenario = Scenario {
    name: "large_objects_of_a_tenant_stay_out_of_operator_memory",
    options: || Options::with_nodes(3).with_infra(),
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(large_objects(bed)),
};

async fn hostile(bed: &mut Bed) -> Result<()> {
    product::serve(bed, product::rolling_update(1, product::deployment_mark()), &["n1", "n2", "n3", "n4"]).await?;
    let tenant = tenant(bed).await?;
    foul_resources(&tenant).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let alone = rollout(bed, "2").await?;
    bed.say(&format!("a rollout alone: {:.1} s", alone.as_secs_f32()));
    refused(&tenant).await?;
    // A gate looks at its object while there is a pod that waits for it.
    create(&Api::<Pod>::namespaced(tenant.clone(), TENANT), 1, waiting_pod).await.context("a pod")?;
    let (sets, gates) = (Api::<IngressDaemonSet>::namespaced(tenant.clone(), TENANT), Api::namespaced(tenant.clone(), TENANT));
    create(&gates, OBJECTS, gate).await.context("gates of pods")?;
    create(&sets, OBJECTS, set).await.context("resources")?;
    bed.say(&format!("the tenant has {OBJECTS} resources and {OBJECTS} gates of pods"));
    let beside = rollout(bed, "3").await?;
    bed.say(&format!(
        "a rollout beside them: {:.1} s, {:.2} × that alone",
        beside.as_secs_f32(),
        beside.as_secs_f64() / alone.as_secs_f64()
    ));
    let ratio = beside.as_secs_f64() / alone.as_secs_f64();
    ensure!(ratio <= SLOWER, "the rollout took {ratio:.2} × as long as alone");
    for (name, reason) in [("key", "DetachKeyNotAllowed"), ("taint", "TaintNotAllowed"), ("large", "TooLarge")] {
        said(&sets, name, reason).await?;
    }
    left_out(&sets).await?;
    told_nothing(&gates).await?;
    let events = Api::<Event>::namespaced(bed.client.clone(), TENANT).list(&ListParams::default()).await?;
    let too_many = events.iter().filter(|event| event.reason.as_ref().is_some_and(|reason| reason.starts_with("TooMany"))).count();
    ensure!(too_many == 0, "{too_many} events say that there are too many");
    account_reads_no_nodes(bed).await?;
    traffic.all_served(bed).await?;
    for seen in bed.recorder.history().await?.iter().filter(|seen| seen.kind == Kind::Node) {
        ensure!(!seen.object.to_string().contains(OWN), "something of the tenant is on a Node: {}", seen.object["metadata"]);
    }
    Ok(())
}

/// How long the other's rollout takes.
async fn rollout(bed: &Bed, version: &str) -> Result<Duration> {
    let started = Instant::now();
    product::roll_to(bed, version).await?;
    product::is_complete(bed, 4, product::ROLLED_OUT).await?;
    Ok(started.elapsed())
}

/// What Kubernetes' own roles for people have of our kinds: `view` reads, `edit` and `admin` write, and none writes a status or what has no
/// namespace.
async fn rights_are_passed_on(bed: &mut Bed) -> Result<()> {
    const NAMESPACE: &str = "default";
    bed.install().await?;
    for role in ["view", "edit", "admin"] {
        let user = format!("who-may-{role}");
        let (role_named, user_named) = (format!("--clusterrole={role}"), format!("--user={user}"));
        bed.kubectl(&["create", "rolebinding", &user, "-n", NAMESPACE, &role_named, &user_named]).await?;
        let writes = role != "view";
        for (verb, resource, subresource, expected) in [
            ("get", "ingressdaemonsets", "", true),
            ("list", "podreadinessgates", "", true),
            ("create", "ingressdaemonsets", "", writes),
            ("delete", "podreadinessgates", "", writes),
            ("patch", "ingressdaemonsets", "status", false),
            ("patch", "podreadinessgates", "status", false),
            ("create", "nodereadinessgates", "", false),
        ] {
            let attributes = json!({
                "namespace": NAMESPACE, "verb": verb, "group": crds::names::GROUP, "resource": resource, "subresource": subresource,
            });
            // Roles are put together a moment after they were made.
            eventually(Duration::from_mins(1), &format!("{role}: {verb} {resource} {subresource}: {expected}"), async || {
                ensure!(is_allowed(bed, &user, &attributes).await? == expected, "it is not so");
                Ok(())
            })
            .await?;
        }
        bed.kubectl(&["delete", "rolebinding", &user, "-n", NAMESPACE]).await?;
    }
    bed.say("view reads resources and gates, edit and admin write them, and none writes a status or gates of nodes");
    bed.kubectl(&["create", "namespace", TENANT]).await?;
    bed.apply(&[port()]).await?;
    account_reads_no_nodes(bed).await
}

/// A client of somebody who may edit one namespace.
async fn tenant(bed: &Bed) -> Result<Client> {
    Api::<Namespace>::all(bed.client.clone())
        .create(&PostParams::default(), &serde_json::from_value(json!({ "metadata": { "name": TENANT } }))?)
        .await
        .context("the tenant's namespace")?;
    let user = format!("--user={TENANT}");
    bed.kubectl(&["create", "rolebinding", TENANT, "-n", TENANT, "--clusterrole=edit", &user]).await?;
    let path = bed.control_plane.kubeconfig_of(TENANT)?;
    let text = tokio::fs::read_to_string(&path).await.with_context(|| format!("reading {}", path.display()))?;
    let client = control_plane::client(&serde_json::from_str(&text)?).await?;
    let sets = Api::<IngressDaemonSet>::namespaced(client.clone(), TENANT);
    eventually(Duration::from_mins(1), "the tenant may make resources", async || {
        sets.list(&ListParams::default()).await?;
        Ok(())
    })
    .await?;
    Ok(client)
}

/// Resources that ask for what is not allowed, and one with health checkers. They are the oldest of their namespace.
async fn foul_resources(tenant: &Client) -> Result<()> {
    let sets = Api::<IngressDaemonSet>::namespaced(tenant.clone(), TENANT);
    create(&sets, 1, |_| {
        foul(
            "key",
            &json!({ "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": {
        "maxUnavailableNodes": 1, "annotateNodeToDetach": { "key": format!("{OWN}/key"), "value": "true" },
    } } }),
        )
    })
    .await?;
    create(&sets, 1, |_| foul("taint", &json!({ "nodeReadinessTaint": { "key": format!("{OWN}/taint"), "effect": "NoExecute" } }))).await?;
    create(&sets, 1, |_| port()).await?;
    create(&sets, 1, |_| {
        let container = json!({ "name": "c", "image": "busybox:1.36", "env": [{ "name": "X", "value": "x".repeat(1 << 20) }] });
        foul("large", &json!({ "template": { "metadata": { "labels": { "app": "x" } }, "spec": { "containers": [container] } } }))
    })
    .await
}

/// A resource with health checkers, and so with an account that has rights from the operator.
fn port() -> Value {
    let mut set = set(0);
    set["metadata"]["name"] = "port".into();
    set["spec"]["healthCheckNodePorts"] = json!([product::HEALTH_PORT + 1]);
    set
}

/// Who may edit a namespace may use each account there: that of its health checkers may read what they must, and no Node.
async fn account_reads_no_nodes(bed: &Bed) -> Result<()> {
    let uid = Api::<IngressDaemonSet>::namespaced(bed.client.clone(), TENANT).get("port").await?.metadata.uid.context("no UID")?;
    let account = format!("system:serviceaccount:{TENANT}:health-checker-{}", crds::names::uid8(&uid));
    eventually(Duration::from_mins(1), "there are health checkers, and their account has rights", async || {
        let made = bed.kubectl(&["get", "daemonsets", "-n", TENANT, "-o", "name"]).await?;
        let pods = json!({ "namespace": TENANT, "verb": "list", "resource": "pods" });
        ensure!(!made.is_empty() && is_allowed(bed, &account, &pods).await?, "not yet");
        Ok(())
    })
    .await?;
    ensure!(!is_allowed(bed, &account, &json!({ "verb": "list", "resource": "nodes" })).await?, "{account} may read Nodes");
    Ok(())
}

/// A resource for all nodes that asks for what is not allowed.
fn foul(name: &str, more: &Value) -> Value {
    let mut set = set(0);
    set["metadata"]["name"] = name.into();
    set["spec"]["nodeSelector"] = json!({ "ingress": "true" });
    if let (Some(spec), Some(more)) = (set["spec"].as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    set
}

/// Claims of the tenant, one after the other, and the other's rollouts beside them.
async fn claims(bed: &mut Bed) -> Result<()> {
    const NODES: [&str; 3] = ["n1", "n2", "n3"];
    bed.install().await?;
    let tenant = tenant(bed).await?;
    let sets = Api::<IngressDaemonSet>::namespaced(tenant.clone(), TENANT);
    let older = |number: usize| {
        let other_key =
            product::rolling_update(3, json!({ "annotateNodeToDetach": { "key": EXCLUDED, "value": "true", "gracePeriodSeconds": 1 } }));
        foul(OLDER[number], &json!({ "updateStrategy": other_key, "template": sleeps("1") }))
    };
    create(&sets, OLDER.len(), older).await.context("older resources")?;
    for name in OLDER {
        says(&sets, name, "it uses all nodes", |status| status.nodes.available as usize == NODES.len()).await?;
    }
    let _detacher = Detacher::start(&bed.client, &bed.haproxy, Variant::Good);
    product::serve_installed(bed, product::resource("1", &product::rolling_update(1, product::node_mark())), &NODES).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    // The other has used its port, and has detached no node by its key so far.
    let mark = json!({ "annotateNodeToDetach": { "key": DETACHED_KEY, "value": TENANT, "gracePeriodSeconds": 1 } });
    let key = json!({ "updateStrategy": product::rolling_update(3, mark), "template": sleeps("2") });
    for (name, claim) in OLDER.into_iter().zip([json!({ "healthCheckNodePorts": [product::HEALTH_PORT] }), key.clone()]) {
        sets.patch(name, &PatchParams::default(), &Patch::Merge(json!({ "spec": claim }))).await.context("a claim")?;
    }
    let claims_key = |status: &IngressDaemonSetStatus| status.observed_generation == Some(2) && status.nodes.updated == 0;
    said(&sets, "port", "HealthCheckPortConflict").await?;
    said(&sets, "key", "DetachAnnotationConflict").await?;
    says(&sets, "key", "it waits", claims_key).await?;
    look_alikes(bed, &tenant).await?;
    product::roll_to(bed, "2").await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await.context("beside older claims")?;
    says(&sets, "key", "it still waits", claims_key).await?;
    bed.say(&format!("the neighbour rolled out beside older claims, and {LOOK_ALIKES} Deployments that look like its own"));
    let conditions = product::api(bed).get(product::NAME).await?.status.unwrap_or_default().conditions;
    ensure!(conditions.iter().any(|condition| condition.type_ == "Valid" && condition.status == "True"), "{conditions:?}");
    traffic.all_served(bed).await?;
    for seen in bed.recorder.history().await?.iter().filter(|seen| seen.kind == Kind::Node) {
        let value = &seen.object["metadata"]["annotations"][DETACHED_KEY];
        ensure!(value != TENANT, "the tenant detached a node: {}", seen.object["metadata"]);
    }
    Ok(())
}

/// The other rolls out while the tenant's objects come, change and are read again by an operator that starts.
async fn large_objects(bed: &mut Bed) -> Result<()> {
    const NODES: [&str; 3] = ["n1", "n2", "n3"];
    bed.install().await?;
    operator_process::stop_pods(bed).await?;
    let mut operator = OperatorProcess::start_with(bed, "scenario", &[operator_process::SOLE]).await?;
    product::serve_installed(bed, product::resource("1", &product::rolling_update(1, product::deployment_mark())), &NODES).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let before = operator.figures()?.peak_mib()?;
    let tenant = tenant(bed).await?;
    let deployments = Api::<Deployment>::namespaced(tenant.clone(), TENANT);
    create(&deployments, NAMED, large_deployment).await.context("large Deployments")?;
    create(&Api::<PodReadinessGate>::namespaced(tenant.clone(), TENANT), NAMED, gate_of_large).await.context("gates")?;
    let pods = Api::<Pod>::namespaced(tenant.clone(), TENANT);
    create(&pods, 1, |_| pod_of_all_gates()).await.context("a pod")?;
    waits_for(&pods, 0).await?;
    product::roll_to(bed, "2").await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    // The operator reads all pods of the namespace, for the gates may choose each.
    let scale = async |numbers: Range<usize>, replicas: usize, waits: usize| {
        let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
        for number in numbers {
            deployments.patch_metadata(&format!("large-{number}"), &PatchParams::default(), &patch).await.context("scaling")?;
        }
        waits_for(&pods, waits).await
    };
    scale(0..WITH_PODS, 1, WITH_PODS).await?;
    has_large_pods(&pods).await?;
    // It has seen one more Deployment change beside those pods.
    scale(WITH_PODS..WITH_PODS + 1, 1, WITH_PODS + 1).await?;
    let first = operator.figures()?.peak_mib()?;
    operator.stop().await?;
    operator.run()?;
    scale(WITH_PODS..WITH_PODS + 1, 0, WITH_PODS).await?;
    has_large_pods(&pods).await?;
    let again = operator.figures()?.peak_mib()?;
    bed.say(&format!("the operator took at most {before:.0} MiB without them, {first:.0} MiB with them, {again:.0} MiB after a restart"));
    ensure!(first.max(again) < MEMORY, "the operator took {first:.0} and {again:.0} MiB, at most {MEMORY} MiB are allowed");
    product::roll_to(bed, "3").await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    traffic.all_served(bed).await
}

/// An environment as large as the API server takes it. An answer has six bytes for each of these characters.
fn large_container() -> Value {
    json!({ "name": "c", "image": "busybox:1.36", "env": [{ "name": "X", "value": "<".repeat(LARGE_BYTES) }] })
}

/// Its pods fit on no node.
fn large_deployment(number: usize) -> Value {
    let pod = json!({ "nodeSelector": { format!("{OWN}/pool"): "none" }, "containers": [large_container()] });
    let labels = json!({ LARGE_LABEL: number.to_string() });
    json!({
        "metadata": { "name": format!("large-{number}"), "namespace": TENANT },
        "spec": {
            "replicas": 0, "selector": { "matchLabels": labels }, "template": { "metadata": { "labels": labels }, "spec": pod },
        },
    })
}

/// Pods wait until the Deployment of this number is available.
fn gate_of_large(number: usize) -> Value {
    let object = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": format!("large-{number}"), "type": "Available" });
    json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "PodReadinessGate",
        "metadata": { "name": format!("gate-{number}"), "namespace": TENANT },
        "spec": {
            "conditionType": format!("{OWN}/c{number}"), "source": { "objectCondition": object },
            "selector": { "matchLabels": { "app": "waits" } },
        },
    })
}

fn pod_of_all_gates() -> Value {
    let gates: Vec<_> = (0..NAMED).map(|number| json!({ "conditionType": format!("{OWN}/c{number}") })).collect();
    json!({
        "metadata": { "name": "waiting", "namespace": TENANT, "labels": { "app": "waits" } },
        "spec": {
            "nodeSelector": { format!("{OWN}/pool"): "none" }, "readinessGates": gates,
            "containers": [{ "name": "c", "image": "busybox:1.36" }],
        },
    })
}

async fn has_large_pods(pods: &Api<Pod>) -> Result<()> {
    eventually(Duration::from_mins(2), "there are large pods", async || {
        let large = pods.list_metadata(&ListParams::default().labels(LARGE_LABEL)).await?.items.len();
        ensure!(large >= WITH_PODS, "{large} of {WITH_PODS}");
        Ok(())
    })
    .await
}

/// The pod says of so many of its Deployments that they are not available, of all others that they are.
async fn waits_for(pods: &Api<Pod>, deployments: usize) -> Result<()> {
    eventually(Duration::from_mins(3), &format!("the pod waits for {deployments} Deployments"), async || {
        let conditions = pods.get("waiting").await?.status.and_then(|status| status.conditions).unwrap_or_default();
        let say = |status: &str| conditions.iter().filter(|one| one.type_.starts_with(OWN) && one.status == status).count();
        let (available, others) = (say("True"), say("False"));
        ensure!(available == NAMED - deployments && others == deployments, "{available} are available, {others} are not");
        Ok(())
    })
    .await
}

/// Pods that take no port of the node.
fn sleeps(version: &str) -> Value {
    let container = json!({
        "name": "c", "image": "busybox:1.36", "command": ["/bin/sh", "-c", "sleep 3600"], "env": [{ "name": "VERSION", "value": version }],
    });
    let spec = json!({ "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1, "containers": [container] });
    json!({ "metadata": { "labels": { "app": "x" } }, "spec": spec })
}

/// Deployments in the tenant's namespace with the labels of those of the other resource.
async fn look_alikes(bed: &Bed, tenant: &Client) -> Result<()> {
    let (real, of_resources) =
        (Api::<Deployment>::namespaced(bed.client.clone(), "default"), ListParams::default().labels(crds::names::RESOURCE_LABEL));
    let mut model = serde_json::to_value(real.list(&of_resources).await?.items.first().context("the other has Deployments")?)?;
    model["metadata"] = json!({ "labels": model["metadata"]["labels"] });
    model["spec"]["replicas"] = 0.into();
    let alike = |number: usize| {
        let mut alike = model.clone();
        alike["metadata"]["name"] = format!("edge-{number}").into();
        alike
    };
    create(&Api::<Deployment>::namespaced(tenant.clone(), TENANT), LOOK_ALIKES, alike).await.context("Deployments that look alike")
}

/// A resource's status becomes like this.
async fn says(sets: &Api<IngressDaemonSet>, name: &str, what: &str, test: impl Fn(&IngressDaemonSetStatus) -> bool) -> Result<()> {
    eventually(product::SAID, &format!("{name}: {what}"), async || {
        let status = sets.get(name).await?.status.unwrap_or_default();
        ensure!(test(&status), "{}", product::summary(&status));
        Ok(())
    })
    .await
}

/// What the API server does not let the tenant do.
async fn refused(tenant: &Client) -> Result<()> {
    let gate = json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "NodeReadinessGate", "metadata": { "name": TENANT },
        "spec": { "allNodes": true, "taint": { "key": format!("{OWN}/gate") }, "requirements": [] },
    });
    let made = Api::<NodeReadinessGate>::all(tenant.clone()).create(&PostParams::default(), &serde_json::from_value(gate)?).await;
    is_forbidden(made.map(drop), "makes a gate of nodes")?;
    let label = Patch::Merge(json!({ "metadata": { "labels": { format!("{OWN}/label"): "x" } } }));
    let labelled = Api::<Node>::all(tenant.clone()).patch("n1", &PatchParams::default(), &label).await;
    is_forbidden(labelled.map(drop), "labels a Node")?;
    let others = Api::<IngressDaemonSet>::namespaced(tenant.clone(), "default");
    is_forbidden(others.get(product::NAME).await.map(drop), "reads another's resource")?;
    let own = Api::<IngressDaemonSet>::namespaced(tenant.clone(), TENANT);
    let status = Patch::Merge(json!({ "status": { "observedGeneration": 1 } }));
    is_forbidden(own.patch_status("key", &PatchParams::default(), &status).await.map(drop), "writes a status")
}

fn is_forbidden(result: kube::Result<()>, what: &str) -> Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(()),
        result => anyhow::bail!("the tenant {what}: {result:?}"),
    }
}

/// A resource that chooses no node, by one of many selectors.
fn set(number: usize) -> Value {
    json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet",
        "metadata": { "name": format!("set-{number}"), "namespace": TENANT },
        "spec": {
            "nodeSelector": { format!("{OWN}/pool"): format!("p{}", number % SELECTORS) },
            "template": { "metadata": { "labels": { "app": "x" } }, "spec": { "containers": [{ "name": "c", "image": "busybox:1.36" }] } },
        },
    })
}

/// A pod of the first gate, for which there is no node.
fn waiting_pod(_: usize) -> Value {
    json!({
        "metadata": { "name": "waiting", "namespace": TENANT, "labels": { "app": "nginx", "pool": "p0" } },
        "spec": {
            "nodeSelector": { format!("{OWN}/pool"): "none" }, "readinessGates": [{ "conditionType": format!("{OWN}/c0") }],
            "containers": [{ "name": "c", "image": "busybox:1.36" }],
        },
    })
}

/// A gate of pods: of the other's pods by their labels, or of an object of the other's namespace.
fn gate(number: usize) -> Value {
    let source = if number == 0 {
        json!({ "objectCondition": {
            "apiVersion": "apps/v1", "kind": "Deployment", "namespace": "default", "name": "edge-n1", "type": "Available", "status": "True",
        } })
    } else {
        json!({ "service": { "name": format!("service-{}", number % SELECTORS) } })
    };
    json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "PodReadinessGate",
        "metadata": { "name": format!("gate-{number}"), "namespace": TENANT },
        "spec": {
            "conditionType": format!("{OWN}/c{number}"), "source": source,
            "selector": { "matchLabels": { "app": "nginx", "pool": format!("p{}", number % SELECTORS) } },
        },
    })
}

async fn create<K>(api: &Api<K>, count: usize, object: impl Fn(usize) -> Value) -> Result<()>
where
    K: Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let objects: Vec<K> = (0..count).map(|number| serde_json::from_value(object(number))).collect::<Result<_, _>>()?;
    let params = PostParams::default();
    let created = stream::iter(&objects).map(|object| api.create(&params, object)).buffer_unordered(AT_ONCE);
    created.try_for_each(|_| async { Ok(()) }).await.map_err(Into::into)
}

/// A resource says why it is not obeyed.
async fn said(sets: &Api<IngressDaemonSet>, name: &str, reason: &str) -> Result<()> {
    eventually(Duration::from_mins(1), &format!("{name} says {reason}"), async || {
        let conditions = sets.get(name).await?.status.unwrap_or_default().conditions;
        ensure!(conditions.iter().any(|condition| condition.reason == reason), "{conditions:?}");
        Ok(())
    })
    .await
}

/// Of too many resources those that are left out say so, and get no finalizer, since they have nothing to clean up: but for those that had
/// a place for a moment. Of one second the resources with the first UIDs have it, so a later one can take it.
async fn left_out(sets: &Api<IngressDaemonSet>) -> Result<()> {
    eventually(Duration::from_mins(3), "resources say that they are not looked after", async || {
        let all = sets.list(&ListParams::default()).await?.items;
        let says = |set: &&IngressDaemonSet| {
            let status = set.status.clone().unwrap_or_default();
            status.conditions.iter().any(|condition| condition.reason == "TooManyResources")
        };
        let left_out: Vec<_> = all.iter().filter(says).collect();
        ensure!(left_out.len() == all.len() - 100, "{} of {} say that there are too many", left_out.len(), all.len());
        let finalizers = left_out.iter().filter(|set| set.metadata.finalizers.is_some()).count();
        ensure!(finalizers < OBJECTS / 10, "{finalizers} of them have a finalizer");
        Ok(())
    })
    .await
}

/// Of an object of another namespace a gate learns nothing, and says why; of too many gates those that are left out say so.
async fn told_nothing(gates: &Api<PodReadinessGate>) -> Result<()> {
    eventually(Duration::from_mins(3), "gates say that they are not followed", async || {
        let all = gates.list(&ListParams::default()).await?.items;
        let says = |gate: &PodReadinessGate, reason: &str| {
            let status = gate.status.clone().unwrap_or_default();
            status.conditions.iter().any(|condition| condition.reason == reason)
        };
        let left_out = all.iter().filter(|gate| says(gate, "TooManyGates")).count();
        ensure!(left_out == OBJECTS - 100, "{left_out} say that there are too many");
        let first = all.iter().find(|gate| gate.metadata.name.as_deref() == Some("gate-0")).context("no gate-0")?;
        let status = first.status.clone().unwrap_or_default();
        ensure!(!format!("{status:?}").contains("MinimumReplicas"), "it learns of the other's Deployment: {status:?}");
        ensure!(format!("{status:?}").contains("allowed-foreign-objects") || says(first, "TooManyGates"), "{status:?}");
        Ok(())
    })
    .await
}
