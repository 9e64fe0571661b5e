//! What istio-cni-taint is used for, with the operator in its place: its objects and its taint.

use std::{
    collections::BTreeSet,
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use crds::names;
use k8s_openapi::api::core::v1::{Event, Node, Taint};
use kube::{Api, ResourceExt, api::ListParams};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::{
    auditor::{Expectations, Kind},
    bed::{Bed, Options, control_plane, operator},
    cluster::{node_gates, operator_process::OperatorProcess, product},
    eventually::eventually,
    host::images,
    scenario::Scenario,
};

const MINUTE: Duration = Duration::from_mins(1);
/// How long nothing may happen that must not.
const WHILE: Duration = Duration::from_secs(3);
/// How long an operator may take to end on a machine that is shared; its kubelet gives it 15 s.
const IN_TIME: Duration = Duration::from_secs(10);

/// The example of istio-cni-taint's guide.
const SINGLE: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata:
  name: "istio-cni-taint"
  namespace: "kube-system"
  labels:
    app: istio-cni
data:
  config: |
    - name: istio-cni
      selector: app=istio
      namespace: kube-system
"#;

/// The same with two labels in one selector.
fn multi() -> String {
    SINGLE.replace("selector: app=istio", "selector: app=istio, app=istio-cni")
}

/// The taint of the `ConfigMap`.
const READINESS: (&str, &str) = ("NodeReadiness", "");

/// The `ConfigMap` of istio-cni-taint works unchanged, and so do its changes.
pub const CONFIG_MAP: Scenario = Scenario {
    name: "the_config_map_of_istio_cni_taint_works_unchanged",
    options: || Options::with_nodes(2).with_infra(),
    expected: || Expectations::budget(0),
    body: |bed| Box::pin(config_map(bed)),
};

async fn config_map(bed: &mut Bed) -> Result<()> {
    bed.install().await?;
    bed.apply_path("deploy/optional/legacy-configmap.yaml").await?;
    let nodes = node_names(bed);
    let all: Vec<_> = nodes.iter().map(String::as_str).collect();
    apply_yaml(bed, SINGLE).await?;
    run_with(bed, &["--legacy-configmap"]).await?;
    held_are(bed, READINESS, &all).await.context("without a critical pod")?;
    bed.say("every node has the taint, none has a critical pod");

    bed.apply(&[critical(bed, "istio", "NodeReadiness")]).await?;
    eventually(MINUTE, "critical pods run on tainted nodes", async || {
        let pods =
            bed.kubectl(&["get", "pods", "-n", "kube-system", "-l", "app=istio", "--field-selector=status.phase=Running", "-o", "name"]);
        let running = pods.await?.lines().count();
        ensure!(running == nodes.len(), "{running} of {} do", nodes.len());
        Ok(())
    })
    .await?;
    held_are(bed, READINESS, &all).await?;
    becomes_ready(bed, "istio", "n1", true).await?;
    let others: Vec<_> = all.iter().copied().filter(|name| *name != "n1").collect();
    held_are(bed, READINESS, &others).await.context("one critical pod is ready")?;
    for name in &others {
        becomes_ready(bed, "istio", name, true).await?;
    }
    held_are(bed, READINESS, &[]).await.context("each critical pod is ready")?;
    becomes_ready(bed, "istio", "n2", false).await?;
    held_are(bed, READINESS, &["n2"]).await.context("a critical pod is not ready any more")?;
    becomes_ready(bed, "istio", "n2", true).await?;
    held_are(bed, READINESS, &[]).await?;
    bed.say("the taint goes where the critical pod is ready, and comes back where it is not");
    let events = Api::<Event>::namespaced(bed.client.clone(), "kube-system");
    eventually(MINUTE, "events on the ConfigMap say what its gate, which has no status, does", async || {
        let events = events.list(&ListParams::default()).await?.items;
        let of = events.iter().filter(|event| event.involved_object.kind.as_deref() == Some("ConfigMap"));
        let reasons: BTreeSet<_> = of.filter_map(|event| event.reason.as_deref()).collect();
        ensure!(reasons.is_superset(&["NodesHeld", "NoNodeHeld"].into()), "{reasons:?}");
        Ok(())
    })
    .await?;

    apply_yaml(bed, &multi()).await?;
    held_are(bed, READINESS, &all).await.context("the second label has no pod")?;
    bed.apply(&[critical(bed, "istio-cni", "NodeReadiness")]).await?;
    becomes_ready(bed, "istio-cni", "n1", true).await?;
    held_are(bed, READINESS, &others).await.context("each label needs a pod of its own")?;
    bed.say("a change of the ConfigMap took effect at once; the comma separates requirements");
    cannot_be_read(bed, &others).await?;
    once_and_cleaned_up(bed, &others).await
}

/// What it said last stays in force; after a start, nothing changes.
async fn cannot_be_read(bed: &Bed, held: &[&str]) -> Result<()> {
    apply_yaml(bed, &multi().replace("app=istio, app=istio-cni", "app in (istio, istio-cni)")).await?;
    let events = Api::<Event>::namespaced(bed.client.clone(), "kube-system");
    eventually(MINUTE, "an event says what is wrong", async || {
        let events = events.list(&ListParams::default()).await?.items;
        let found = events.iter().find(|event| event.reason.as_deref() == Some("InvalidConfiguration")).context("there is none")?;
        let note = found.message.clone().unwrap_or_default();
        ensure!(found.involved_object.kind.as_deref() == Some("ConfigMap") && note.contains("begins a new requirement"), "{note}");
        Ok(())
    })
    .await?;
    let before = bed.recorder.history().await?.len();
    bed.kubectl(&["rollout", "restart", "deployment", operator::NAME, "-n", operator::NAMESPACE]).await?;
    is_rolled_out(bed).await?;
    stay_held(bed, READINESS, held, "nodes stay as they are").await?;
    product::stayed(bed, before, Kind::Node, "and they did since the start", |node| is_as_held(node, READINESS, held)).await?;
    apply_yaml(bed, &multi()).await?;
    bed.say("a ConfigMap that cannot be read changes nothing, before and after a start of the operator");
    Ok(())
}

/// One pass as the original's flag and names of variables ask for it, an end in time, and nothing that is left.
async fn once_and_cleaned_up(bed: &Bed, held: &[&str]) -> Result<()> {
    // After its start: while nobody leads, there is nobody to refuse for.
    eventually(MINUTE, "the operator leads", async || node_gates::metrics(bed).await.map(drop)).await?;
    let refused = clean_up(bed, &[]).await?;
    let error = String::from_utf8_lossy(&refused.stderr);
    ensure!(!refused.status.success() && error.contains("holds the lease"), "{refused:?}");
    let mut process = OperatorProcess::instead_of_pods(bed).await?;
    eventually(MINUTE, "it leads", async || {
        let holder = holder(bed).await?;
        ensure!(holder == process.identity(), "{holder} does");
        Ok(())
    })
    .await?;
    held_are(bed, READINESS, &[]).await.context("an operator without the flag takes its taints away")?;
    eventually(MINUTE, "nothing of it taints new nodes", async || {
        let left = admission_objects(bed).await?;
        ensure!(left.trim().is_empty(), "left: {left}");
        Ok(())
    })
    .await?;
    let asked = Instant::now();
    process.signal(Signal::SIGTERM)?;
    eventually(IN_TIME, "it ends", async || if process.check().is_ok() { bail!("it runs") } else { Ok(()) }).await?;
    let took = asked.elapsed();
    ensure!(took < Duration::from_secs(2), "it took {took:?}");
    ensure!(holder(bed).await?.is_empty(), "{} still holds the lease", holder(bed).await?);
    bed.say(&format!("SIGTERM: ended after {:.2} s, and the lease is free", took.as_secs_f32()));

    let variables =
        [("TAINT_RUN-AS-DAEMON", "false"), ("TAINT_CONFIGMAP-NAME", "istio-cni-taint"), ("TAINT_CONFIGMAP-NAMESPACE", "kube-system")];
    let once = operator(bed, &["run"], &variables).await?;
    let table = String::from_utf8_lossy(&once.stdout).into_owned();
    ensure!(once.status.code() == Some(1), "{once:?}");
    let line =
        |name: &str, state: &str| table.lines().any(|line| line.split_whitespace().take(3).eq([name, "NodeReadiness:NoSchedule", state]));
    ensure!(held.iter().all(|name| line(name, "held")) && line("n1", "released"), "{table}");
    is_held(bed, READINESS, held).await?;
    println!("{table}");
    for name in held {
        becomes_ready(bed, "istio-cni", name, true).await?;
    }
    let flag = ["run", "--run-as-daemon=false", "--legacy-configmap=kube-system/istio-cni-taint"];
    eventually(MINUTE, "another pass releases every node", async || {
        let once = operator(bed, &flag, &[]).await?;
        ensure!(once.status.success(), "{}", String::from_utf8_lossy(&once.stdout));
        Ok(())
    })
    .await?;
    is_held(bed, READINESS, &[]).await?;
    let missing = operator(bed, &["run", "--run-as-daemon=false", "--legacy-configmap=kube-system/node.readiness"], &[]).await?;
    ensure!(missing.status.code() == Some(2) && String::from_utf8_lossy(&missing.stderr).contains("there is no ConfigMap"), "{missing:?}");
    bed.say("one pass ends with 1 while a node is held, with 0 when none is, with 2 when it cannot be told");

    becomes_ready(bed, "istio", "n1", false).await?;
    eventually(MINUTE, "a pass holds the node", async || {
        let once = operator(bed, &flag, &[]).await?;
        ensure!(once.status.code() == Some(1), "{}", String::from_utf8_lossy(&once.stdout));
        Ok(())
    })
    .await?;
    left_behind(bed).await?;
    clean_up_unheard(bed).await?;
    let dry = clean_up(bed, &["--dry-run"]).await?;
    ensure!(
        dry.status.success() && String::from_utf8_lossy(&dry.stdout).contains("would: node n1: taint NodeReadiness:NoSchedule removed"),
        "{dry:?}"
    );
    is_held(bed, READINESS, &["n1"]).await?;
    ensure!(admission_objects(bed).await?.lines().count() == 3, "only told: {}", admission_objects(bed).await?);
    let cleaned = clean_up(bed, &[]).await?;
    ensure!(cleaned.status.success(), "{cleaned:?}");
    println!("{}", String::from_utf8_lossy(&cleaned.stdout));
    is_held(bed, READINESS, &[]).await?;
    nothing_is_left(bed).await?;
    bed.say("nothing is left on any node");
    Ok(())
}

/// A policy, its binding and the configuration of the webhook, as of an operator that was killed.
async fn left_behind(bed: &Bed) -> Result<()> {
    let of_gate = json!({ "name": "left-behind", "labels": { (names::GATE_LABEL): "gone" } });
    let never =
        json!([{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nodes"], "resourceNames": ["none"] }]);
    let object = |kind: &str, metadata: &Value, more: (&str, Value)| json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": metadata, more.0: more.1 });
    let test = "[JSONPatch{op: 'test', path: '/metadata/name', value: 'none'}]";
    let policy = json!({
        "reinvocationPolicy": "Never", "failurePolicy": "Ignore", "matchConstraints": { "resourceRules": never },
        "mutations": [{ "patchType": "JSONPatch", "jsonPatch": { "expression": test } }],
    });
    let webhook = json!([{
        "name": "nodes.left-behind.example.com", "rules": [], "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Ignore",
        "clientConfig": { "url": "https://127.0.0.1:1/" },
    }]);
    bed.apply(&[
        object("MutatingAdmissionPolicy", &of_gate, ("spec", policy)),
        object("MutatingAdmissionPolicyBinding", &of_gate, ("spec", json!({ "policyName": "left-behind" }))),
        object("MutatingWebhookConfiguration", &json!({ "name": operator::NAME }), ("webhooks", webhook)),
    ])
    .await
}

/// What makes the API server change objects, by kind and name.
pub async fn admission_objects(bed: &Bed) -> Result<String> {
    Ok(node_gates::admission_policies(bed, "").await? + &bed.kubectl(&["get", "mutatingwebhookconfigurations", "-o", "name"]).await?)
}

/// Neither a record on a node nor anything that would taint new ones.
pub async fn nothing_is_left(bed: &Bed) -> Result<()> {
    let left = recorded(bed).await?;
    ensure!(left.is_empty(), "records are left on {left:?}");
    let left = admission_objects(bed).await?;
    ensure!(left.trim().is_empty(), "left: {left}");
    Ok(())
}

/// Who holds the operator's lease.
async fn holder(bed: &Bed) -> Result<String> {
    let (name, namespace) = (operator::NAME, operator::NAMESPACE);
    bed.kubectl(&["get", "lease", name, "-n", namespace, "-o", "jsonpath={.spec.holderIdentity}"]).await
}

pub fn node_names(bed: &Bed) -> BTreeSet<String> {
    bed.nodes().keys().cloned().collect()
}

async fn apply_yaml(bed: &Bed, yaml: &str) -> Result<()> {
    let object: Value = serde_saphyr::from_str(yaml).context("reading the example")?;
    bed.apply(&[object]).await
}

/// Gives the operator's Deployment further arguments.
pub async fn run_with(bed: &Bed, arguments: &[&str]) -> Result<()> {
    let mut patch: Vec<_> = arguments
        .iter()
        .map(|argument| json!({ "op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": argument }))
        .collect();
    // Pods share their node's ports here: new ones start when the old ones have ended.
    patch.push(json!({ "op": "add", "path": "/spec/strategy", "value": { "type": "Recreate" } }));
    let patch = Value::from(patch).to_string();
    bed.kubectl(&["patch", "deployment", operator::NAME, "-n", operator::NAMESPACE, "--type=json", "-p", &patch]).await?;
    is_rolled_out(bed).await
}

async fn is_rolled_out(bed: &Bed) -> Result<()> {
    let deployment = format!("deployment/{}", operator::NAME);
    bed.kubectl(&["rollout", "status", &deployment, "-n", operator::NAMESPACE, "--timeout=180s"]).await.map(drop)
}

/// A `DaemonSet` in kube-system whose pods bear the taint, and are ready where the scenario says so.
pub fn critical(bed: &Bed, app: &str, taint: &str) -> Value {
    let file = format!("{}/ready-{app}-", bed.state().display());
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": { "name": app, "namespace": "kube-system" },
        "spec": {
            "selector": { "matchLabels": { "app": app } },
            "template": {
                "metadata": { "labels": { "app": app, "startup.k8s.io/component": app } },
                "spec": {
                    "tolerations": [{ "key": taint, "operator": "Exists", "effect": "NoSchedule" }],
                    "automountServiceAccountToken": false,
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "c", "image": "busybox:1.36", "args": ["-c", "while sleep 1; do :; done"],
                        "env": [{ "name": "NODE", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } }],
                        "readinessProbe": {
                            "exec": { "command": ["/bin/sh", "-c", format!("test -e {file}$NODE")] },
                            // A shell that takes long to start, on a machine that is shared, says nothing of the pod.
                            "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 30,
                        },
                    }],
                },
            },
        },
    })
}

pub async fn becomes_ready(bed: &Bed, app: &str, node: &str, ready: bool) -> Result<()> {
    let file = bed.state().join(format!("ready-{app}-{node}"));
    let done = if ready { tokio::fs::write(&file, "").await } else { tokio::fs::remove_file(&file).await };
    done.with_context(|| format!("changing {}", file.display()))
}

/// Exactly these nodes have the taint, with the effect `NoSchedule`.
pub async fn is_held(bed: &Bed, taint: (&str, &str), wanted: &[&str]) -> Result<()> {
    let nodes = Api::<Node>::all(bed.client.clone()).list(&ListParams::default()).await?.items;
    let held: BTreeSet<_> = nodes.iter().filter(|node| bears(node, taint)).map(ResourceExt::name_any).collect();
    ensure!(
        held.iter().map(String::as_str).eq(wanted.iter().copied().collect::<BTreeSet<_>>()),
        "{taint:?} is on {held:?}, not on {wanted:?}"
    );
    Ok(())
}

fn bears(node: &Node, (key, value): (&str, &str)) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let same = |taint: &Taint| taint.key == key && taint.effect == "NoSchedule" && taint.value.as_deref().unwrap_or_default() == value;
    taints.into_iter().flatten().any(same)
}

/// Only these nodes have the taint for a while.
pub async fn stay_held(bed: &Bed, taint: (&str, &str), wanted: &[&str], what: &str) -> Result<()> {
    node_gates::nodes_stay(bed, WHILE, what, |node| is_as_held(node, taint, wanted)).await
}

fn is_as_held(node: &Node, taint: (&str, &str), wanted: &[&str]) -> Result<()> {
    let name = node.name_any();
    ensure!(bears(node, taint) == wanted.contains(&name.as_str()), "{name}: {:?}", node.spec);
    Ok(())
}

pub async fn held_are(bed: &Bed, taint: (&str, &str), wanted: &[&str]) -> Result<()> {
    eventually(MINUTE, "the right nodes have the taint", async || is_held(bed, taint, wanted).await).await
}

/// Nodes with a record of a gate.
pub async fn recorded(bed: &Bed) -> Result<BTreeSet<String>> {
    let nodes = Api::<Node>::all(bed.client.clone()).list(&ListParams::default()).await?.items;
    Ok(nodes
        .iter()
        .filter(|node| node.annotations().keys().any(|key| key.starts_with(names::GATE_RECORD_PREFIX)))
        .map(ResourceExt::name_any)
        .collect())
}

/// Cleans up as admin, with the rights that uninstalling takes.
pub async fn clean_up(bed: &Bed, more: &[&str]) -> Result<Output> {
    let lease = ["--lease-namespace", operator::NAMESPACE, "--lease-name", operator::NAME];
    let arguments = [&["cleanup-nodes"][..], more, &lease].concat();
    to_its_end(bed, &bed.control_plane.admin_kubeconfig_for(&control_plane::server())?, &arguments, &[]).await
}

/// Says what it would clean up to a reader that has left, as `head` does.
async fn clean_up_unheard(bed: &Bed) -> Result<()> {
    let config = bed.control_plane.admin_kubeconfig_for(&control_plane::server())?;
    let mut child = program(bed, &config, &["cleanup-nodes", "--dry-run"], &[]).await?.stdout(Stdio::piped()).spawn()?;
    drop(child.stdout.take());
    let status = child.wait().await.context("waiting for cleanup-nodes")?;
    ensure!(status.success(), "cleanup-nodes that nobody listens to ended with {status}");
    Ok(())
}

/// Runs the operator's program with the operator's rights.
pub async fn operator(bed: &Bed, arguments: &[&str], variables: &[(&str, &str)]) -> Result<Output> {
    let token = bed.kubectl(&["create", "token", operator::NAME, "-n", operator::NAMESPACE, "--duration=1h"]).await?;
    let mut config = bed.control_plane.admin_kubeconfig_for(&control_plane::server())?;
    config["users"][0]["user"] = json!({ "token": token.trim() });
    // As in its pod.
    let variables = [variables, &[("POD_NAMESPACE", operator::NAMESPACE)]].concat();
    to_its_end(bed, &config, arguments, &variables).await
}

async fn to_its_end(bed: &Bed, config: &Value, arguments: &[&str], variables: &[(&str, &str)]) -> Result<Output> {
    program(bed, config, arguments, variables).await?.output().await.context("running the operator")
}

async fn program(bed: &Bed, config: &Value, arguments: &[&str], variables: &[(&str, &str)]) -> Result<Command> {
    let kubeconfig = bed.state().join("operator-once.json");
    tokio::fs::write(&kubeconfig, serde_json::to_vec(config)?).await.context("writing the kubeconfig")?;
    let mut command = Command::new(images::workspace_binary("ingress-daemonset-operator")?);
    command.args(arguments).env("KUBECONFIG", &kubeconfig).envs(variables.iter().copied()).kill_on_drop(true);
    Ok(command)
}
