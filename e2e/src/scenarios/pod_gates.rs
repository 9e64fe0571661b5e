//! Readiness gates of pods on the real API server, with the examples of `docs/pod-readiness.md`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use crds::{PodReadinessGate, PodReadinessGateStatus, names};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    auditor::{Expectations, Kind},
    bed::{Bed, Options, control_plane::API_SERVER_FLAGS},
    cluster::{
        guide::Guide,
        node_gates::{admission_policies, has_policies, metrics, warm},
        product::{self, deployment_mark, rolling_update},
    },
    eventually::{eventually, throughout},
    host::network,
    scenario::Scenario,
    scenarios::node_gates::originals::admission_objects,
};

const MINUTE: Duration = Duration::from_mins(1);
/// Longer than the operator takes to see a change and to write what follows from it.
const WHILE: Duration = Duration::from_secs(2);
/// The guide whose examples are used.
const GUIDE: &str = "docs/pod-readiness.md";
/// The condition of the original demo.
const DEMO: &str = "www.example.com/feature-1";
/// Where a server answers to gates.
const PORT: u16 = 18_080;

/// The pod and label of the demo work unchanged. Pods are held, injected and reset as the guide says.
pub const DEMO_AND_HOLDS: Scenario = Scenario {
    name: "the_readiness_gate_demo_works_unchanged_and_pods_are_held",
    options: || Options::with_nodes(1).with_infra(),
    expected: Expectations::default,
    body: |bed| Box::pin(demo_and_holds(bed)),
};

/// One pod with a condition for each other source.
pub const SOURCES: Scenario = Scenario {
    name: "pod_conditions_follow_nodes_services_objects_servers_and_load_balancers",
    options: || Options::with_nodes(1).with_infra(),
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(sources(bed)),
};

fn pods(bed: &Bed) -> Api<Pod> {
    Api::namespaced(bed.client.clone(), "default")
}

fn gates(bed: &Bed) -> Api<PodReadinessGate> {
    Api::namespaced(bed.client.clone(), "default")
}

/// A gate with this source and what else its spec has.
fn gate(name: &str, type_: &str, source: &Value, more: &Value) -> Value {
    let mut spec = json!({ "conditionType": type_, "source": source });
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "PodReadinessGate",
        "metadata": { "name": name, "namespace": "default" }, "spec": spec,
    })
}

/// The kind, for `kubectl`.
const KIND: &str = "podreadinessgate";

/// A pod that sleeps on the bed's node and lists these conditions; what it was started as is in `/info/pid`.
fn sleeper(name: &str, app: &str, types: &[&str]) -> Value {
    let listed: Vec<_> = types.iter().map(|type_| json!({ "conditionType": type_ })).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "labels": { "app": app } },
        "spec": {
            // What its own address answers is its node.
            "hostNetwork": true,
            "nodeSelector": { "ingress": "true" },
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "c", "image": "busybox:1.36",
                // A kubelet makes one `$` of two.
                "args": ["-c", "echo $$$$ > /info/pid; exec sleep 1000"],
                "volumeMounts": [{ "name": "info", "mountPath": "/info" }],
            }],
            "volumes": [{ "name": "info", "emptyDir": {} }],
            "readinessGates": listed,
        },
    })
}

/// Status and reason of all conditions of a type.
fn conditions(pod: &Pod, type_: &str) -> Vec<(String, String)> {
    let all = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let of_type = all.filter(|condition| condition.type_ == type_);
    of_type.map(|condition| (condition.status.clone(), condition.reason.clone().unwrap_or_default())).collect()
}

/// Waits until a pod has exactly this condition of the type, or none.
async fn becomes(bed: &Bed, pod: &str, type_: &str, wanted: Option<(&str, &str)>) -> Result<Pod> {
    let wanted: Vec<_> = wanted.into_iter().map(|(status, reason)| (status.to_owned(), reason.to_owned())).collect();
    eventually(MINUTE, &format!("{type_} of {pod} is {wanted:?}"), async || {
        let found = pods(bed).get(pod).await?;
        ensure!(conditions(&found, type_) == wanted, "{:?}", found.status.and_then(|status| status.conditions));
        Ok(found)
    })
    .await
}

async fn is_ready(bed: &Bed, pod: &str, ready: bool) -> Result<()> {
    let wanted = if ready { "True" } else { "False" };
    eventually(MINUTE, &format!("Ready of {pod} is {wanted}"), async || {
        let found = pods(bed).get(pod).await?;
        ensure!(conditions(&found, "Ready").first().is_some_and(|(status, _)| status == wanted), "{:?}", found.status);
        Ok(())
    })
    .await
}

/// Waits until a gate says what `test` looks for.
async fn says(bed: &Bed, name: &str, what: &str, test: impl Fn(&PodReadinessGateStatus) -> bool) -> Result<()> {
    eventually(MINUTE, &format!("gate {name}: {what}"), async || {
        let status = gates(bed).get(name).await?.status.context("no status")?;
        ensure!(test(&status), "{status:?}");
        Ok(())
    })
    .await
}

fn has(status: &PodReadinessGateStatus, type_: &str, value: &str, reason: &str) -> bool {
    status.conditions.iter().any(|condition| condition.type_ == type_ && condition.status == value && condition.reason == reason)
}

async fn demo_and_holds(bed: &mut Bed) -> Result<()> {
    bed.install().await?;
    bad_gates(bed).await?;
    the_demo(bed).await?;
    holds(bed).await?;
    restarts(bed).await?;
    staged(bed).await?;
    conflict(bed).await?;
    injection(bed).await
}

/// What the API server says of gates that make no sense.
async fn bad_gates(bed: &Bed) -> Result<()> {
    let label = || json!({ "label": { "key": "example" } });
    for (what, gate) in [
        ("must not be a condition that Kubernetes or the operator writes itself", gate("g", "Ready", &label(), &json!({}))),
        ("must not be a condition that Kubernetes or the operator writes itself", gate("g", "ContainersReady", &label(), &json!({}))),
        ("must not be a condition that Kubernetes or the operator writes itself", gate("g", names::IN_PLACE_GATE, &label(), &json!({}))),
        ("must be the type of a condition", gate("g", "a b", &label(), &json!({}))),
        ("a source must have exactly one of", gate("g", DEMO, &json!({}), &json!({}))),
        ("a source must have exactly one of", gate("g", DEMO, &json!({ "label": { "key": "a" }, "manual": {} }), &json!({}))),
        ("must have exactly one of url", gate("g", DEMO, &json!({ "http": {} }), &json!({}))),
        ("there is no https", gate("g", DEMO, &json!({ "http": { "url": "https://a/" } }), &json!({}))),
        ("from 1s to 1h", gate("g", DEMO, &json!({ "http": { "port": 80, "period": "10ms" } }), &json!({}))),
        ("resetOnRestart is for the sources", gate("g", DEMO, &json!({ "service": { "name": "db" } }), &json!({ "resetOnRestart": true }))),
        ("selector must name a label", gate("g", DEMO, &label(), &json!({ "admission": { "onCreate": "Policy" } }))),
    ] {
        let path = bed.state().join("bad-gate.json");
        tokio::fs::write(&path, gate.to_string()).await?;
        let told = bed.kubectl(&["apply", "--server-side", "--dry-run=server", "-f", &path.to_string_lossy()]).await;
        let told = told.err().with_context(|| format!("it was taken: {gate}"))?;
        ensure!(format!("{told:#}").contains(what), "no `{what}` in: {told:#}");
    }
    bed.say("gates that make no sense are refused, with the reason");
    Ok(())
}

async fn the_demo(bed: &Bed) -> Result<()> {
    let guide = Guide::in_file(bed, GUIDE, None, &[])?;
    let [gate, pod] = [guide.named("PodReadinessGate", "feature-1")?, guide.named("Pod", "centos")?];
    bed.apply(&[pod]).await?;
    eventually(MINUTE, "the container runs", async || {
        let pod = pods(bed).get("centos").await?;
        ensure!(conditions(&pod, "ContainersReady").first().is_some_and(|(status, _)| status == "True"), "{:?}", pod.status);
        Ok(())
    })
    .await?;
    bed.apply(std::slice::from_ref(&gate)).await?;
    throughout(WHILE, "without the label there is no condition", async || {
        let pod = pods(bed).get("centos").await?;
        ensure!(conditions(&pod, DEMO).is_empty() && conditions(&pod, "Ready")[0].0 == "False", "{:?}", pod.status);
        Ok(())
    })
    .await?;
    guide.run_all().await?;
    bed.say("the label of the demo makes its pod Ready and takes that back");
    becomes(bed, "centos", DEMO, Some(("False", "SourceFalse"))).await?;

    // Word for word what the demo's controller sends, and what it may send twice.
    let append = |type_: &str, status: &str| {
        let operations =
            json!([{"op": "add", "path": "/status/conditions/-", "value": {"type": type_, "status": status, "lastProbeTime": null}}]);
        Ok::<_, anyhow::Error>(Patch::<Value>::Json(serde_json::from_value(operations)?))
    };
    for (type_, status) in [("example.com/theirs", "True"), (DEMO, "True"), (DEMO, "True")] {
        pods(bed).patch_status("centos", &PatchParams::default(), &append(type_, status)?).await.context("appending a condition")?;
    }
    bed.kubectl(&["label", "pod", "centos", "example=true", "--overwrite"]).await?;
    let pod = becomes(bed, "centos", DEMO, Some(("True", "SourceTrue"))).await?;
    ensure!(conditions(&pod, "example.com/theirs").len() == 1, "{:?}", pod.status);
    is_ready(bed, "centos", true).await?;
    bed.kubectl(&["label", "pod", "centos", "example-"]).await?;
    let pod = becomes(bed, "centos", DEMO, None).await?;
    ensure!(conditions(&pod, "example.com/theirs").len() == 1, "{:?}", pod.status);
    bed.kubectl(&["label", "pod", "centos", "example=true"]).await?;
    is_ready(bed, "centos", true).await?;
    says(bed, "feature-1", "True on the only pod", |status| {
        status.pods.true_ == 1 && status.pods.matched == 1 && has(status, "Ready", "True", "NoPodHeld")
    })
    .await?;
    bed.kstatus_says(KIND, "feature-1", "Current").await?;
    let table = bed.kubectl(&["get", "prg", "feature-1"]).await?;
    ensure!(table.contains("CONDITION") && table.contains("True on 1 of 1 pods"), "{table}");
    bed.say("conditions of others stay, and what was appended twice is there once");

    bed.kubectl(&["label", "pod", "centos", "example=false", "--overwrite"]).await?;
    becomes(bed, "centos", DEMO, Some(("False", "SourceFalse"))).await?;
    says(bed, "feature-1", "the pod is held", |status| status.held.iter().any(|held| held.pod == "centos")).await?;
    let told = Guide::in_file(bed, GUIDE, Some("Find out why a pod is held"), &[])?.run_all().await?;
    ensure!(told.contains("label example=false") && told.contains("centos SourceFalse: "), "{told}");
    becomes(bed, "centos", DEMO, Some(("True", "SourceTrue"))).await?;
    is_ready(bed, "centos", true).await?;
    bed.say("the guide tells why a pod is held, and lets all pods pass");
    let back = json!({"spec": {"source": {"manual": null, "label": gate["spec"]["source"]["label"]}}});
    bed.kubectl(&["patch", "prg", "feature-1", "--type=merge", "-p", &back.to_string()]).await?;
    becomes(bed, "centos", DEMO, Some(("False", "SourceFalse"))).await?;
    bed.kubectl(&["label", "pod", "centos", "example=true", "--overwrite"]).await?;
    is_ready(bed, "centos", true).await?;
    Ok(())
}

async fn holds(bed: &Bed) -> Result<()> {
    const TYPE: &str = "example.com/not-held";
    let guide = Guide::in_file(bed, GUIDE, Some("Let several owners hold a pod"), &[])?;
    bed.apply(&[guide.named("PodReadinessGate", "holds")?, sleeper("web", "web", &[TYPE])]).await?;
    becomes(bed, "web", TYPE, Some(("True", "SourceTrue"))).await?;
    is_ready(bed, "web", true).await?;
    guide.run_all().await?;
    let holds = |text: &str| format!("{}={text}", names::READINESS_HOLDS_ANNOTATION);
    let annotate = async |text: &str| bed.kubectl(&["annotate", "pod", "web", "--overwrite", &holds(text)]).await.map(drop);
    annotate(r#"[{"owner":"a"},{"owner":"b","key":"1"},{"owner":"b","key":"2"}]"#).await?;
    eventually(MINUTE, "the condition says who holds the pod", async || {
        let held = becomes(bed, "web", TYPE, Some(("False", "SourceFalse"))).await?;
        let message = held.status.and_then(|status| status.conditions).unwrap_or_default().into_iter().find(|found| found.type_ == TYPE);
        let message = message.and_then(|found| found.message).unwrap_or_default();
        ensure!(message == "held by a, b (1), b (2)", "{message}");
        Ok(())
    })
    .await?;
    annotate(r#"[{"owner":"b","key":"2"}]"#).await?;
    says(bed, "holds", "the pod is named with who holds it", |status| {
        status.held.first().is_some_and(|held| held.pod == "web" && held.message == "held by b (2)") && status.pods.false_ == 1
    })
    .await?;
    annotate("mine").await?;
    becomes(bed, "web", TYPE, Some(("False", "HoldsUnreadable"))).await?;
    annotate("[]").await?;
    becomes(bed, "web", TYPE, Some(("True", "SourceTrue"))).await?;
    bed.say("a pod is held while anybody holds it");
    Ok(())
}

async fn restarts(bed: &Bed) -> Result<()> {
    const TYPE: &str = "example.com/approved";
    let guide = Guide::in_file(bed, GUIDE, None, &[])?;
    bed.apply(&[guide.named("PodReadinessGate", "approved")?, sleeper("shop", "shop", &[TYPE])]).await?;
    becomes(bed, "shop", TYPE, Some(("False", "Default"))).await?;
    bed.kubectl(&["label", "pod", "shop", "approved=yes"]).await?;
    becomes(bed, "shop", TYPE, Some(("True", "SourceTrue"))).await?;
    is_ready(bed, "shop", true).await?;
    // What is run there may end with the container, before it can say that it has done it.
    let kill = "until [ -s /info/pid ]; do sleep 0.1; done; kill -9 $(cat /info/pid)";
    let told = bed.kubectl(&["exec", "shop", "--", "/bin/sh", "-c", kill]).await;
    let anew = becomes(bed, "shop", TYPE, Some(("False", "ContainerRestarted"))).await;
    anew.with_context(|| format!("after {told:?}"))?;
    eventually(MINUTE, "another container runs", async || {
        let pod = pods(bed).get("shop").await?;
        ensure!(conditions(&pod, "ContainersReady").first().is_some_and(|(status, _)| status == "True"), "{:?}", pod.status);
        Ok(())
    })
    .await?;
    becomes(bed, "shop", TYPE, Some(("False", "ContainerRestarted"))).await?;
    bed.kubectl(&["label", "pod", "shop", "approved=no", "--overwrite"]).await?;
    becomes(bed, "shop", TYPE, Some(("False", "SourceFalse"))).await?;
    bed.kubectl(&["label", "pod", "shop", "approved=yes", "--overwrite"]).await?;
    is_ready(bed, "shop", true).await?;
    bed.say("a container that starts anew must be approved anew");
    Ok(())
}

/// The guide's staged update: a Deployment stops at new pods that nobody has approved.
async fn staged(bed: &Bed) -> Result<()> {
    pods(bed).delete("shop", &DeleteParams::default()).await?;
    let mut shop = Guide::in_file(bed, GUIDE, None, &[])?.named("Deployment", "shop")?;
    shop["spec"]["replicas"] = 3.into();
    shop["spec"]["strategy"]["rollingUpdate"]["maxSurge"] = 1.into();
    shop["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 0.into();
    shop["spec"]["template"]["spec"]["containers"] = sleeper("", "", &[])["spec"]["containers"].clone();
    shop["spec"]["template"]["spec"]["volumes"] = sleeper("", "", &[])["spec"]["volumes"].clone();
    bed.apply(&[shop]).await?;
    let deployments = Api::<Deployment>::namespaced(bed.client.clone(), "default");
    let counts = async || {
        let status = deployments.get("shop").await?.status.context("no status")?;
        anyhow::Ok((status.updated_replicas.unwrap_or(0), status.available_replicas.unwrap_or(0)))
    };
    let approve = async |wanted: (i32, i32)| {
        eventually(MINUTE, &format!("(updated, available) pods are {wanted:?} once new ones are approved"), async || {
            // There may be none for the moment.
            drop(bed.kubectl(&["label", "pod", "-l", "app=shop,approved!=yes", "approved=yes"]).await);
            let counts = counts().await?;
            ensure!(counts == wanted, "{counts:?}");
            Ok(())
        })
        .await
    };
    approve((3, 3)).await?;
    bed.kubectl(&["set", "env", "deployment/shop", "VERSION=2"]).await?;
    eventually(MINUTE, "a pod of the new template is there", async || {
        let counts = counts().await?;
        ensure!(counts == (1, 3), "{counts:?}");
        Ok(())
    })
    .await?;
    throughout(WHILE, "it waits, and all old pods serve", async || {
        let counts = counts().await?;
        ensure!(counts == (1, 3), "{counts:?}");
        Ok(())
    })
    .await?;
    approve((3, 3)).await?;
    bed.kubectl(&["rollout", "status", "deployment/shop", "--timeout=60s"]).await?;
    deployments.delete("shop", &DeleteParams::default()).await?;
    bed.say("a Deployment stopped at the first pod of a new template until somebody approved it");
    Ok(())
}

async fn conflict(bed: &Bed) -> Result<()> {
    bed.apply(&[gate("a-rival", DEMO, &json!({ "manual": {} }), &json!({ "selector": { "matchLabels": { "run": "centos" } } }))]).await?;
    says(bed, "a-rival", "the older gate has its way", |status| has(status, "Conflicting", "True", "SameConditionType")).await?;
    bed.kubectl(&["label", "pod", "centos", "example=false", "--overwrite"]).await?;
    becomes(bed, "centos", DEMO, Some(("False", "SourceFalse"))).await?;
    gates(bed).delete("feature-1", &DeleteParams::default()).await?;
    becomes(bed, "centos", DEMO, Some(("True", "SourceTrue"))).await?;
    says(bed, "a-rival", "it is alone", |status| has(status, "Conflicting", "False", "OnlyOne")).await?;
    bed.say("of two gates with one condition the older had its way, and then the other");
    Ok(())
}

/// Conditions that a pod would list if it were created now.
async fn listed(bed: &Bed, pod: &Value) -> Result<Vec<String>> {
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let made = pods(bed).create(&params, &serde_json::from_value(pod.clone())?).await.context("creating a pod in a dry run")?;
    Ok(made.spec.and_then(|spec| spec.readiness_gates).unwrap_or_default().into_iter().map(|gate| gate.condition_type).collect())
}

async fn injection(bed: &Bed) -> Result<()> {
    const TYPE: &str = "example.com/injected";
    let guide = Guide::in_file(bed, GUIDE, Some("Add the readiness gate to pods"), &[])?;
    let gate = guide.named("PodReadinessGate", "injected")?;
    bed.apply(std::slice::from_ref(&gate)).await?;
    // By the best way that the API server has.
    let way = if has_policies(bed).await? { "Policy" } else { "Webhook" };
    // Whoever switches policies on wants to see them.
    let switched_on = std::env::var(API_SERVER_FLAGS).is_ok_and(|flags| flags.contains("MutatingAdmissionPolicy=true"));
    ensure!(way == "Policy" || !switched_on, "the API server has no policies, though they were switched on");
    says(bed, "injected", way, |status| has(status, "AdmissionActive", "True", way)).await?;
    let selected = sleeper("injected", "injected", &[]);
    let is_listed = async |pod: &Value, wanted: &[&str]| {
        eventually(MINUTE, &format!("pods list {wanted:?}"), async || {
            let found = listed(bed, pod).await?;
            ensure!(found == wanted, "{found:?}");
            Ok(())
        })
        .await
    };
    is_listed(&selected, &[]).await?;
    bed.kubectl(&["label", "namespace", "default", "ingressdaemonsets.mumoshu.github.io/inject-readiness-gates=enabled"]).await?;
    is_listed(&selected, &[TYPE]).await?;
    is_listed(&sleeper("other", "other", &[]), &[]).await?;
    is_listed(&sleeper("both", "injected", &["example.com/own"]), &["example.com/own", TYPE]).await?;
    is_listed(&sleeper("listed", "injected", &[TYPE]), &[TYPE]).await?;
    bed.say(&format!("selected pods get the readiness gate as they are created, where the Namespace agreed: {way}"));
    by_webhook(bed, gate).await?;
    for (pod, wanted) in
        [(sleeper("both", "injected", &["example.com/own"]), &["example.com/own", TYPE][..]), (selected.clone(), &[TYPE][..])]
    {
        is_listed(&pod, wanted).await?;
    }
    is_listed(&sleeper("other", "other", &[]), &[]).await?;
    bed.apply(std::slice::from_ref(&selected)).await?;
    becomes(bed, "injected", TYPE, Some(("True", "SourceTrue"))).await?;
    is_ready(bed, "injected", true).await?;
    gates(bed).delete("injected", &DeleteParams::default()).await?;
    eventually(MINUTE, "what injects went with its gate", async || {
        let left = admission_objects(bed).await?;
        ensure!(left.trim().is_empty(), "{left}");
        Ok(())
    })
    .await?;
    is_listed(&sleeper("later", "injected", &[]), &[]).await?;
    bed.say("the webhook does the same, and goes with the last gate");
    Ok(())
}

/// The same gate, which now asks for the webhook: its policy is gone when pods get the readiness gate again.
async fn by_webhook(bed: &Bed, mut gate: Value) -> Result<()> {
    gate["spec"]["admission"]["onCreate"] = "Webhook".into();
    bed.apply(&[gate]).await?;
    says(bed, "injected", "by the webhook", |status| has(status, "AdmissionActive", "True", "Webhook")).await?;
    eventually(MINUTE, "the policy is gone", async || {
        let left = admission_policies(bed, "").await?;
        ensure!(left.trim().is_empty(), "{left}");
        Ok(())
    })
    .await
}

/// Answers every request with a status that may change, until it is dropped.
struct Server {
    status: Arc<AtomicU16>,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    async fn start() -> Result<Self> {
        let listener = tokio::net::TcpListener::bind((network::BED, PORT)).await.context("listening")?;
        let status = Arc::new(AtomicU16::new(503));
        let answered = Arc::clone(&status);
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 1024];
                let _ = stream.read(&mut request).await;
                let answer = format!("HTTP/1.1 {} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n", answered.load(Ordering::Relaxed));
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        Ok(Self { status, task })
    }
}

/// What a source says that is met, and one that is not.
const ON: Option<(&str, &str)> = Some(("True", "SourceTrue"));
const OFF: Option<(&str, &str)> = Some(("False", "SourceFalse"));

/// Waits until the condition of a gate is this.
async fn follows(bed: &Bed, name: &str, wanted: Option<(&str, &str)>) -> Result<()> {
    becomes(bed, "all", &format!("example.com/{name}"), wanted).await.map(drop)
}

async fn there_and_back(bed: &Bed, server: &Server) -> Result<()> {
    for (light, wanted) in [("=green", ON), ("=red", OFF), ("=amber", None), ("=green", ON), ("-", None)] {
        bed.kubectl(&["annotate", "pod", "all", "-n", "default", "--overwrite", &format!("example.com/light{light}")]).await?;
        follows(bed, "annotation", wanted).await?;
    }
    bed.kubectl(&["taint", "node", "n1", "example.com/out:PreferNoSchedule"]).await?;
    follows(bed, "node-taint", OFF).await?;
    bed.kubectl(&["taint", "node", "n1", "example.com/out-"]).await?;
    follows(bed, "node-taint", ON).await?;
    warm(bed, "n1", "False").await?;
    follows(bed, "node-condition", OFF).await?;
    warm(bed, "n1", "True").await?;
    follows(bed, "node-condition", ON).await?;
    bed.apply(&[slice(true)]).await?;
    follows(bed, "service", ON).await?;
    bed.apply(&[slice(false)]).await?;
    follows(bed, "service", OFF).await?;
    bed.apply(&[deployment(0)]).await?;
    follows(bed, "object", ON).await?;
    bed.apply(&[deployment(1)]).await?;
    follows(bed, "object", OFF).await?;
    bed.kubectl(&["delete", "deployment", "db", "-n", "default"]).await?;
    follows(bed, "object", Some(("False", "Default"))).await?;
    server.status.store(204, Ordering::Relaxed);
    follows(bed, "http", ON).await?;
    server.task.abort();
    follows(bed, "http", Some(("False", "SourceUnreadable"))).await?;
    bed.say("each followed its source there and back");
    Ok(())
}

async fn sources(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &["n1"]).await?;
    let server = Server::start().await?;
    let object =
        |kind: &str, name: &str| json!({ "objectCondition": { "apiVersion": "apps/v1", "kind": kind, "name": name, "type": "Available" } });
    let nothing = json!({ "objectCondition": { "apiVersion": "example.com/v1", "kind": "Nothing", "name": "x", "type": "Ready" } });
    let url = format!("http://{}:{PORT}/ready", network::BED);
    let all = [
        ("node-taint", json!({ "nodeTaint": { "key": "example.com/out" } }), json!({})),
        ("node-condition", json!({ "nodeCondition": { "type": "example.com/Warm" } }), json!({})),
        ("service", json!({ "service": { "name": "db" } }), json!({})),
        ("object", object("Deployment", "db"), json!({ "default": "False" })),
        ("http", json!({ "http": { "url": url, "period": "1s" } }), json!({ "failMode": "Closed" })),
        // What the pod's own address answers there: its node's health checker, while the node is in service.
        ("http-port", json!({ "http": { "port": product::HEALTH_PORT, "path": "/", "period": "1s", "expectedStatus": 200 } }), json!({})),
        ("annotation", json!({ "annotation": { "key": "example.com/light", "values": { "green": "True", "red": "False" } } }), json!({})),
        ("attached", json!({ "ingressDaemonSet": { "name": product::NAME } }), json!({})),
        ("kept", nothing.clone(), json!({})),
        ("open", nothing.clone(), json!({ "failMode": "Open" })),
        ("closed", nothing, json!({ "failMode": "Closed" })),
    ];
    let types: Vec<_> = all.iter().map(|(name, ..)| format!("example.com/{name}")).collect();
    let made: Vec<_> = all.iter().zip(&types).map(|((name, source, more), type_)| gate(name, type_, source, more)).collect();
    bed.apply(&made).await?;
    bed.apply(&[sleeper("all", "all", &types.iter().map(String::as_str).collect::<Vec<_>>())]).await?;
    for (name, wanted) in [
        ("node-taint", ON),
        ("node-condition", None),
        ("service", OFF),
        ("object", Some(("False", "Default"))),
        ("http", OFF),
        ("http-port", ON),
        ("annotation", None),
        ("attached", ON),
        ("kept", None),
        ("open", Some(("True", "SourceUnreadable"))),
        ("closed", Some(("False", "SourceUnreadable"))),
    ] {
        follows(bed, name, wanted).await?;
    }
    for name in ["kept", "open", "closed"] {
        says(bed, name, "the source cannot be read", |status| has(status, "Ready", "False", "SourceUnreadable")).await?;
        bed.kstatus_says(KIND, name, "InProgress").await?;
    }
    // Events and metrics are told a moment after the status that they are about.
    eventually(MINUTE, "an event tells of the source", async || {
        let kinds = "jsonpath={.items[*].involvedObject.kind}";
        let events = ["get", "events", "-n", "default", "--field-selector=reason=SourceUnreadable", "-o", kinds];
        let events = bed.kubectl(&events).await?;
        ensure!(events.contains("PodReadinessGate") && !events.split_whitespace().any(|kind| kind == "Pod"), "{events}");
        Ok(())
    })
    .await?;
    eventually(MINUTE, "the metrics count the pod", async || {
        let metrics = metrics(bed).await?;
        ensure!(metrics.contains(r#"ids_pod_gate_pods{gate="default/closed",state="false"} 1"#), "{metrics}");
        Ok(())
    })
    .await?;
    bed.say("eleven conditions of one pod say what their sources say, or what is to hold where they say nothing");

    there_and_back(bed, &server).await?;
    template(bed).await
}

/// Pods of the resource get a gate with its next revision, and not before.
async fn template(bed: &Bed) -> Result<()> {
    const TYPE: &str = "example.com/by-template";
    let more = json!({ "selector": { "matchLabels": { "app": "nginx" } }, "admission": { "onCreate": "Policy" } });
    bed.apply(&[gate("by-template", TYPE, &json!({ "manual": {} }), &more)]).await?;
    says(bed, "by-template", "its policy is there", |status| has(status, "AdmissionActive", "True", "Policy")).await?;
    let all = async || {
        let listed = pods(bed).list(&ListParams::default().labels("app=nginx")).await?.items;
        ensure!(listed.len() == 2, "{} pods", listed.len());
        Ok(listed)
    };
    let names = |pods: &[Pod]| pods.iter().map(|pod| pod.metadata.uid.clone()).collect::<BTreeSet<_>>();
    let serving = eventually(MINUTE, "there are two pods", async || all().await).await?;
    let before = names(&serving);
    throughout(WHILE, "no pod is replaced for it", async || {
        ensure!(names(&all().await?) == before, "pods were replaced");
        Ok(())
    })
    .await?;
    load_balancer(bed).await?;
    // The former ones may still be going.
    let serving = eventually(MINUTE, "there are two pods, which list the gate", async || {
        let found = all().await?;
        for pod in &found {
            let listed = pod.spec.iter().flat_map(|spec| spec.readiness_gates.iter().flatten());
            ensure!(listed.filter(|gate| gate.condition_type == TYPE).count() == 1, "{:?}", pod.spec);
            ensure!(conditions(pod, TYPE) == [("True".to_owned(), "SourceTrue".to_owned())], "{:?}", pod.status);
        }
        Ok(names(&found))
    })
    .await?;
    bed.say("its pods list the gate with the next revision");
    ownerless(bed, TYPE, &serving).await
}

/// Pods that are replaced after the gate is gone still list its condition, and nobody sets it: they are ready all the same.
async fn ownerless(bed: &Bed, type_: &str, before: &BTreeSet<Option<String>>) -> Result<()> {
    gates(bed).delete("by-template", &DeleteParams::default()).await?;
    // It answers for new pods until the operator has seen that it is gone, and takes its policy away then.
    eventually(MINUTE, "its policy is gone", async || {
        let left = admission_objects(bed).await?;
        ensure!(!left.contains("by-template"), "{left}");
        Ok(())
    })
    .await?;
    let serving = pods(bed).list(&ListParams::default().labels("app=nginx")).await?.items;
    let one = serving.into_iter().find_map(|pod| pod.metadata.name).context("no pod")?;
    pods(bed).delete(&one, &DeleteParams::default().grace_period(0)).await?;
    eventually(MINUTE, "the pod that takes its place is ready", async || {
        let listed = pods(bed).list(&ListParams::default().labels("app=nginx")).await?.items;
        let new = listed.iter().find(|pod| !before.contains(&pod.metadata.uid)).context("there is none yet")?;
        ensure!(conditions(new, type_) == [("True".to_owned(), "GateGone".to_owned())], "{:?}", new.status);
        ensure!(conditions(new, "Ready").first().is_some_and(|(status, _)| status == "True"), "{:?}", new.status);
        Ok(())
    })
    .await?;
    bed.say("a pod that lists the condition of a gate that is gone is ready");
    Ok(())
}

/// While its node is detached, the pod that follows it, or asks its health port, is not Ready; and neither its own condition nor
/// anybody else's is there twice.
async fn load_balancer(bed: &Bed) -> Result<()> {
    product::roll_to(bed, "2").await?;
    product::is_complete(bed, 1, product::ROLLED_OUT).await?;
    becomes(bed, "all", "example.com/attached", Some(("True", "SourceTrue"))).await?;
    becomes(bed, "all", "example.com/http-port", ON).await?;
    let history = bed.recorder.history().await?;
    let mut seen: BTreeMap<String, Vec<bool>> = BTreeMap::new();
    for pod in history.iter().filter(|seen| seen.kind == Kind::Pod) {
        let conditions = pod.object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let mut types: Vec<_> = conditions.iter().filter_map(|condition| condition["type"].as_str()).collect();
        types.sort_unstable();
        ensure!(types.windows(2).all(|pair| pair[0] != pair[1]), "a condition is there twice: {types:?}");
        for condition in conditions.iter().filter(|_| pod.object["metadata"]["name"] == "all") {
            let which = condition["type"].as_str().unwrap_or_default();
            seen.entry(which.to_owned()).or_default().push(condition["status"] == "True");
        }
    }
    for which in ["example.com/attached", "example.com/http-port"] {
        let mut seen = seen.remove(which).unwrap_or_default();
        seen.dedup();
        ensure!(seen == [true, false, true], "{which}: {seen:?}");
    }
    bed.say("the pod followed its node out of the load balancer and back, and so did what asked the health port");
    Ok(())
}

/// An endpoint of the Service `db`, as its controller would write it.
fn slice(ready: bool) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": { "name": "db-1", "namespace": "default", "labels": { "kubernetes.io/service-name": "db" } },
        "addressType": "IPv4", "endpoints": [{ "addresses": ["192.0.2.1"], "conditions": { "ready": ready } }],
    })
}

/// One that is available with no replica, and not with one that no node takes.
fn deployment(replicas: u8) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "db", "namespace": "default" },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": "db" } },
            "strategy": { "type": "Recreate" },
            "template": {
                "metadata": { "labels": { "app": "db" } },
                "spec": { "nodeSelector": { "nowhere": "true" }, "containers": [{ "name": "c", "image": "busybox:1.36" }] },
            },
        },
    })
}
