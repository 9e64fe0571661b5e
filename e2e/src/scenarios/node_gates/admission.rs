//! Nodes that get a gate's taint as they are created: by policies inside the API server, compared with what the operator
//! says of the same nodes.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use crds::{
    NodeReadinessGate,
    label_selector::{LabelOperator, LabelRequirement, LabelSelector},
    names::{GATE_LABEL, GATE_RECORD_PREFIX},
};
use k8s_openapi::{
    api::{apps::v1::DaemonSet, core::v1::Node},
    jiff::Timestamp,
};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{
    auditor::Expectations,
    bed::{Bed, Options, node::NodeSpec, operator},
    cluster::{
        node_gates::{self, admission_policies, delete_gate, has_policies},
        operator_process::{self, OperatorProcess},
    },
    eventually::eventually,
    scenario::{Scenario, chance},
};

/// For the operator to write policies, and for the API server, which reads them once a second, to follow them.
const IN_FORCE: Duration = Duration::from_mins(2);
/// Longer than a webhook is given, which is 2 s, on a machine that is shared; shorter than the 10 s that it would get otherwise.
const GIVEN: Duration = Duration::from_secs(9);
/// As an argument of kubectl.
const WAIT: &str = "--timeout=120s";
/// The taint of most gates here.
const TAINT: &str = "readiness.k8s.io/edge";
/// Gates with a selector of chance, and nodes with labels of chance that are asked about.
const SELECTORS: usize = 24;
const NODES: usize = 80;

/// A mutating admission policy taints the selected nodes in the answer to their creation, and goes with its gate.
pub const POLICIES: Scenario = Scenario {
    name: "admission_policies_taint_exactly_the_selected_nodes_at_creation",
    options: || Options::default().with_infra(),
    expected: || Expectations::budget(0),
    body: |bed| Box::pin(policies(bed)),
};

/// While the webhook is down, nodes register all the same and the operator taints them a moment later.
pub const WEBHOOK: Scenario = Scenario {
    name: "the_webhook_taints_new_nodes_and_never_blocks_their_registration",
    options: || Options::default().with_infra(),
    expected: || Expectations::budget(0),
    body: |bed| Box::pin(webhook(bed)),
};

async fn webhook(bed: &mut Bed) -> Result<()> {
    bed.install().await?;
    // Without policies the webhook is what there is.
    let way = if has_policies(bed).await? { "Webhook" } else { "Auto" };
    let by_webhook = json!({ "admission": { "onCreate": way } });
    bed.apply(&[gate("edge", &json!({ "matchLabels": { "role": "edge" } }), TAINT, by_webhook)]).await?;
    active(bed, "edge", "Webhook").await?;
    is_in_force(bed, "role", "edge", TAINT).await?;
    let policies = admission_policies(bed, "").await?;
    ensure!(policies.trim().is_empty(), "a policy beside the webhook: {policies}");
    bed.say("the webhook is in force");
    created_nodes(bed).await?;

    operator_process::stop_pods(bed).await?;
    let began = Instant::now();
    let node = create(bed, "unanswered", &[("role", "edge")], json!({}), false).await?;
    let took = began.elapsed();
    bed.say(&format!("without a webhook a Node was created in {:.1} s", took.as_secs_f32()));
    ensure!(taints(&node, TAINT) == 0, "nobody could taint it: {:?}", node.spec);
    ensure!(took < GIVEN, "the webhook is given 2 s, and it took {took:?}");
    hangs(bed).await?;
    a_pod_lands(bed, "hung").await?;
    // It serves no webhook, so the gate has none.
    let mut operator = OperatorProcess::start(bed, "scenario").await?;
    for name in ["unanswered", "hung"] {
        eventually(IN_FORCE, "the Node is tainted when it is seen", async || {
            operator.revive()?;
            let node = nodes(bed).get(name).await?;
            ensure!(taints(&node, TAINT) == 1, "{:?}", node.spec);
            Ok(())
        })
        .await?;
    }
    eventually(IN_FORCE, "exactly the pod that landed before the taint is counted", async || {
        let metrics = operator.metrics().await?;
        let late: Vec<_> = metrics.lines().filter(|line| line.starts_with("ids_gate_late_taint_pods_total")).collect();
        ensure!(late == [r#"ids_gate_late_taint_pods_total{gate="edge"} 1"#], "{late:?}");
        Ok(())
    })
    .await?;
    bed.say("what landed before the taint was counted");
    eventually(IN_FORCE, "the gate says so, and the API server asks nobody any more", async || {
        let said = Api::<NodeReadinessGate>::all(bed.client.clone()).get("edge").await?.status.unwrap_or_default();
        let said = said.conditions.into_iter().find(|condition| condition.type_ == "AdmissionActive").context("nothing is said")?;
        ensure!(said.status == "False" && said.reason == "Reactive" && said.message.contains("--webhook-service"), "{said:?}");
        let left = bed.kubectl(&["get", "mutatingwebhookconfigurations", "-o", "name"]).await?;
        ensure!(left.trim().is_empty(), "{left}");
        Ok(())
    })
    .await?;
    delete_gate(bed, "edge").await?;
    for name in ["unanswered", "hung"] {
        ensure!(taints(&nodes(bed).get(name).await?, TAINT) == 0, "the taint goes with the gate");
    }
    operator.check()
}

/// A webhook that takes connections and never answers keeps no node from joining.
async fn hangs(bed: &Bed) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await.context("a port that never answers")?;
    let url = format!("https://{}/mutate-node", listener.local_addr()?);
    let taken = Arc::new(AtomicUsize::new(0));
    let connections = Arc::clone(&taken);
    // Ends with the bed.
    let silent = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            connections.fetch_add(1, Ordering::Relaxed);
            held.push(connection);
        }
    });
    let patch = json!([
        { "op": "remove", "path": "/webhooks/0/clientConfig/service" },
        { "op": "add", "path": "/webhooks/0/clientConfig/url", "value": url },
    ]);
    bed.kubectl(&["patch", "mutatingwebhookconfiguration", operator::NAME, "--type=json", "-p", &patch.to_string()]).await?;
    // The API server reads the configuration once a second.
    eventually(IN_FORCE, "the API server asks there", async || {
        create(bed, "would-hang", &[("role", "edge")], json!({}), true).await?;
        ensure!(taken.load(Ordering::Relaxed) > 0, "nobody has come");
        Ok(())
    })
    .await?;
    let began = Instant::now();
    let node = create(bed, "hung", &[("role", "edge")], json!({}), false).await?;
    let took = began.elapsed();
    ensure!(took >= Duration::from_millis(1500) && took < GIVEN, "it is given 2 s, and took {took:?}");
    ensure!(taints(&node, TAINT) == 0, "nobody could taint it: {:?}", node.spec);
    bed.say(&format!("a webhook that hangs: the Node was created after {:.1} s", took.as_secs_f32()));
    silent.abort();
    Ok(())
}

/// The node becomes Ready, so that nothing keeps pods away, and one is bound to it that does not bear the taint of the gate.
async fn a_pod_lands(bed: &Bed, node: &str) -> Result<()> {
    let now = Timestamp::now().to_string();
    let ready =
        json!({ "type": "Ready", "status": "True", "reason": "Bed", "message": "", "lastHeartbeatTime": now, "lastTransitionTime": now });
    let patch = Patch::Strategic(json!({ "status": { "conditions": [ready] } }));
    nodes(bed).patch_status(node, &PatchParams::default(), &patch).await.context("a node that says that it is ready")?;
    eventually(IN_FORCE, "the taint of a node that has not started is gone", async || {
        let node = nodes(bed).get(node).await?;
        ensure!(taints(&node, "node.kubernetes.io/not-ready") == 0, "{:?}", node.spec);
        Ok(())
    })
    .await?;
    let spec = json!({ "nodeName": node, "containers": [{ "name": "c", "image": "busybox:1.36" }] });
    bed.apply(&[json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "early", "namespace": "default" }, "spec": spec })]).await
}

async fn policies(bed: &mut Bed) -> Result<()> {
    bed.install().await?;
    bed.apply(&[gate("edge", &json!({ "matchLabels": { "role": "edge" } }), TAINT, json!({}))]).await?;
    active(bed, "edge", "Policy").await?;
    is_in_force(bed, "role", "edge", TAINT).await?;
    bed.say("a policy is in force");
    edited(bed).await?;
    created_nodes(bed).await?;
    shared_taint(bed).await?;
    references(bed).await?;
    chance(bed).await?;
    implied(bed).await?;
    gone(bed).await
}

/// With another selector, and with the former one again: the policy in between protects nobody, and is not said to.
async fn edited(bed: &Bed) -> Result<()> {
    for role in ["web", "edge", "web", "edge"] {
        bed.apply(&[gate("edge", &json!({ "matchLabels": { "role": role } }), TAINT, json!({}))]).await?;
        active(bed, "edge", "Policy").await?;
        is_in_force(bed, "role", role, TAINT).await?;
    }
    bed.say("an edited gate said that it is in force when it was");
    Ok(())
}

/// What the answer to the creation of a Node says.
async fn created_nodes(bed: &Bed) -> Result<()> {
    let selected = create(bed, "selected", &[("role", "edge")], json!({}), false).await?;
    ensure!(taints(&selected, TAINT) == 1, "selected: {:?}", selected.spec);
    let record = selected.annotations().iter().find(|(key, _)| key.starts_with(GATE_RECORD_PREFIX)).context("the taint is recorded")?.1;
    ensure!(record.contains(r#""s":"held","o":"applied""#), "{record}");
    let other = create(bed, "other", &[("role", "web")], json!({}), false).await?;
    ensure!(taints(&other, TAINT) == 0 && other.annotations().is_empty(), "not selected: {other:?}");
    let plain = create(bed, "plain", &[], json!({}), false).await?;
    ensure!(taints(&plain, TAINT) == 0, "without labels: {:?}", plain.spec);
    let theirs = json!({
        "metadata": { "annotations": { "example.com/theirs": "stays" } },
        "spec": { "taints": [{ "key": "example.com/other", "value": "stays", "effect": "NoExecute" }, { "key": TAINT, "effect": "NoExecute" }] },
    });
    let tainted = create(bed, "tainted", &[("role", "edge")], theirs, false).await?;
    ensure!(taints(&tainted, "example.com/other") == 1 && taints(&tainted, TAINT) == 2, "with taints of others: {:?}", tainted.spec);
    ensure!(tainted.annotations().get("example.com/theirs").is_some_and(|value| value == "stays"), "{:?}", tainted.annotations());
    let registered = json!({ "spec": { "taints": [{ "key": TAINT, "value": "by-the-kubelet", "effect": "NoSchedule" }] } });
    let registered = create(bed, "registered", &[("role", "edge")], registered, false).await?;
    ensure!(taints(&registered, TAINT) == 1, "tainted already: {:?}", registered.spec);
    for name in ["selected", "tainted", "registered"] {
        let patch = format!("{name} is ready");
        bed.kubectl(&["annotate", "node", name, "example.com/ready=true"]).await?;
        eventually(IN_FORCE, &patch, async || {
            let node = nodes(bed).get(name).await?;
            let ours = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
            ensure!(ours.filter(|taint| taint.key == TAINT && taint.effect == "NoSchedule").count() == 0, "{:?}", node.spec);
            Ok(())
        })
        .await?;
    }
    let tainted = nodes(bed).get("tainted").await?;
    ensure!(taints(&tainted, "example.com/other") == 1 && taints(&tainted, TAINT) == 1, "taints of others stay: {:?}", tainted.spec);
    bed.say("exactly the selected nodes were born with the taint, and lost it when they were ready");
    Ok(())
}

/// The second policy sees what the first one did.
async fn shared_taint(bed: &Bed) -> Result<()> {
    bed.apply(&[gate("twin", &json!({ "matchExpressions": [{ "key": "twin", "operator": "Exists" }] }), TAINT, json!({}))]).await?;
    active(bed, "twin", "Policy").await?;
    is_in_force(bed, "twin", "", TAINT).await?;
    let node = create(bed, "of-both", &[("role", "edge"), ("twin", "")], json!({}), true).await?;
    ensure!(taints(&node, TAINT) == 1, "{:?}", node.spec);
    delete_gate(bed, "twin").await
}

/// A `DaemonSet` that a gate waits for gets the toleration when it is written.
async fn references(bed: &Bed) -> Result<()> {
    let more = json!({
        "requirements": [{ "name": "dns", "daemonSet": { "namespace": "default", "name": "dns" } }],
        "tolerations": { "inject": "Referenced" },
    });
    let daemon_set = |name: &str| {
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": name, "namespace": "default" },
            "spec": {
                "selector": { "matchLabels": { "app": name } },
                "template": {
                    "metadata": { "labels": { "app": name } },
                    "spec": { "nodeSelector": { "nowhere": "true" }, "containers": [{ "name": "c", "image": "busybox:1.36" }] },
                },
            },
        })
    };
    bed.apply(&[daemon_set("dns")]).await?;
    bed.apply(&[gate("referring", &json!({ "matchLabels": { "role": "referring" } }), "readiness.k8s.io/dns", more)]).await?;
    let tolerations = async |name: &str| {
        bed.kubectl(&["get", "daemonset", name, "-n", "default", "-o", "jsonpath={.spec.template.spec.tolerations}"]).await
    };
    eventually(IN_FORCE, "the DaemonSet that was there has the toleration", async || {
        let found = tolerations("dns").await?;
        ensure!(found.matches("readiness.k8s.io/dns").count() == 1, "{found}");
        Ok(())
    })
    .await?;
    active(bed, "referring", "Policy").await?;
    bed.kubectl(&["delete", "daemonset", "dns", "-n", "default"]).await?;
    // The API server follows what the status tells of when it looks again. Nobody but the policy is there for a dry run.
    let sets = Api::<DaemonSet>::namespaced(bed.client.clone(), "default");
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    eventually(IN_FORCE, "one that is made anew would have the toleration", async || {
        let set = sets.create(&dry, &serde_json::from_value(daemon_set("dns"))?).await?;
        let found = set.spec.and_then(|spec| spec.template.spec).and_then(|pod| pod.tolerations).unwrap_or_default();
        ensure!(found.iter().any(|toleration| toleration.key.as_deref() == Some("readiness.k8s.io/dns")), "{found:?}");
        Ok(())
    })
    .await?;
    bed.apply(&[daemon_set("dns")]).await?;
    let anew = tolerations("dns").await?;
    ensure!(anew.matches("readiness.k8s.io/dns").count() == 1, "made anew: {anew}");
    bed.apply(&[daemon_set("web")]).await?;
    let others = tolerations("web").await?;
    ensure!(others.is_empty(), "a DaemonSet that no gate refers to: {others}");
    bed.say("the DaemonSet that a gate waits for bears its taint");
    delete_gate(bed, "referring").await
}

/// Selectors and labels of chance: the API server says of each node what the operator would.
async fn chance(bed: &Bed) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(chance::seed(bed)?);
    let selectors: Vec<_> = (0..SELECTORS).map(|_| selector(&mut random)).collect();
    let key = |index: usize| format!("readiness.k8s.io/chance-{index}");
    let mut gates = Vec::new();
    for (index, selector) in selectors.iter().enumerate() {
        gates.push(gate(&format!("chance-{index}"), &serde_json::to_value(selector)?, &key(index), json!({})));
    }
    bed.apply(&gates).await?;
    for index in 0..SELECTORS {
        active(bed, &format!("chance-{index}"), "Policy").await?;
    }
    for _ in 0..NODES {
        let labels = labels(&mut random);
        let pairs: Vec<_> = labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let node = create(bed, "by-chance", &pairs, json!({}), true).await?;
        for (index, selector) in selectors.iter().enumerate() {
            let (ours, theirs) = (selector.matches(|key| labels.get(key).map(String::as_str)), taints(&node, &key(index)) == 1);
            ensure!(ours == theirs, "{selector:?} of {labels:?}: the operator says {ours}, the API server {theirs}");
        }
    }
    bed.say(&format!("{SELECTORS} selectors and {NODES} nodes: the API server and the operator agree on each"));
    for index in 0..SELECTORS {
        bed.kubectl(&["delete", "nodereadinessgate", &format!("chance-{index}"), "--wait=false"]).await?;
    }
    Ok(())
}

/// The gate of an `IngressDaemonSet`, which cannot own what is not in its namespace.
async fn implied(bed: &mut Bed) -> Result<()> {
    bed.apply(&[json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet",
        "metadata": { "name": "web", "namespace": "default" },
        "spec": {
            "nodeSelector": { "role": "implied" },
            "nodeReadinessTaint": { "key": "readiness.k8s.io/web" },
            "template": { "spec": { "automountServiceAccountToken": false, "containers": [{ "name": "c", "image": "busybox:1.36" }] } },
        },
    })])
    .await?;
    let active = r#"--for=jsonpath={.status.nodeReadiness.conditions[?(@.type=="AdmissionActive")].status}=True"#;
    bed.kubectl(&["wait", active, "ingressdaemonset/web", "-n", "default", WAIT]).await?;
    is_in_force(bed, "role", "implied", "readiness.k8s.io/web").await?;
    // With an agent: a pod that has come to it meanwhile can end.
    bed.add_node(NodeSpec::new("implied").registering().label("role", "implied")).await?;
    bed.kubectl(&["delete", "ingressdaemonset", "web", "-n", "default", "--wait=false"]).await?;
    eventually(IN_FORCE, "what is left of the resource's gate is gone", async || {
        let node = nodes(bed).get("implied").await?;
        ensure!(taints(&node, "readiness.k8s.io/web") == 0, "{:?}", node.spec);
        ensure!(!node.annotations().keys().any(|key| key.starts_with(GATE_RECORD_PREFIX)), "{:?}", node.annotations());
        Ok(())
    })
    .await
}

/// With the gate go its policy, its binding and its taints.
async fn gone(bed: &Bed) -> Result<()> {
    create(bed, "last", &[("role", "edge")], json!({}), false).await?;
    delete_gate(bed, "edge").await?;
    // The operator may have seen the end of the gate before it saw the node.
    eventually(IN_FORCE, "the newest node has lost the taint", async || {
        let last = nodes(bed).get("last").await?;
        ensure!(taints(&last, TAINT) == 0, "{:?}", last.spec);
        Ok(())
    })
    .await?;
    eventually(IN_FORCE, "no policy is left", async || {
        let left = admission_policies(bed, GATE_LABEL).await?;
        ensure!(left.trim().is_empty(), "{left}");
        Ok(())
    })
    .await
}

/// A gate that waits for an annotation.
fn gate(name: &str, selector: &Value, key: &str, more: Value) -> Value {
    let mark = json!({ "name": "mark", "nodeAnnotation": { "key": "example.com/ready" } });
    let mut spec = json!({ "nodeSelector": selector, "requirements": [mark] });
    if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
        spec.extend(more);
    }
    node_gates::gate(name, key, spec)
}

fn nodes(bed: &Bed) -> Api<Node> {
    Api::all(bed.client.clone())
}

/// Makes a Node, or asks what it would be; `more` has other fields of it.
pub async fn create(bed: &Bed, name: &str, labels: &[(&str, &str)], more: Value, dry: bool) -> Result<Node> {
    let mut node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name }, "spec": more["spec"] });
    if !labels.is_empty() {
        node["metadata"]["labels"] =
            labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect::<serde_json::Map<_, _>>().into();
    }
    if more["metadata"]["annotations"].is_object() {
        node["metadata"]["annotations"] = more["metadata"]["annotations"].clone();
    }
    let params = PostParams { dry_run: dry, ..PostParams::default() };
    nodes(bed).create(&params, &serde_json::from_value(node)?).await.with_context(|| format!("creating Node {name}"))
}

/// How many taints with this key the Node has.
fn taints(node: &Node, key: &str) -> usize {
    node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()).filter(|taint| taint.key == key).count()
}

/// Waits as a user would until the gate says that its nodes are tainted as they are created; it is to say by what, and of which spec.
async fn active(bed: &Bed, name: &str, reason: &str) -> Result<()> {
    bed.kubectl(&["wait", "--for=condition=AdmissionActive", "nodereadinessgate", name, WAIT]).await?;
    let gate = Api::<NodeReadinessGate>::all(bed.client.clone()).get(name).await?;
    let status = gate.status.context("no status")?;
    let said = status.conditions.iter().find(|condition| condition.type_ == "AdmissionActive").context("nothing is said")?;
    ensure!(said.reason == reason && said.observed_generation == gate.metadata.generation, "{said:?}");
    Ok(())
}

/// A new node with this label gets the taint, as the gate has said.
async fn is_in_force(bed: &Bed, label: &str, value: &str, key: &str) -> Result<()> {
    let node = create(bed, "would-be", &[(label, value)], json!({}), true).await?;
    ensure!(taints(&node, key) == 1, "the gate says that new nodes are tainted: {:?}", node.spec);
    Ok(())
}

/// Waits until a new node with this label gets the taint of a gate that has no status to say so.
pub async fn in_force(bed: &Bed, label: &str, value: &str, key: &str) -> Result<()> {
    eventually(IN_FORCE, "a new node gets the taint", async || {
        let node = create(bed, "would-be", &[(label, value)], json!({}), true).await?;
        ensure!(taints(&node, key) == 1, "{:?}", node.spec);
        Ok(())
    })
    .await
}

const KEYS: [&str; 4] = ["role", "topology.kubernetes.io/zone", "example.com/a.b", "X_y"];
const VALUES: [&str; 5] = ["", "edge", "Edge", "a_b.c", "0"];
/// In a selector, where nothing forbids them: no label can have them, and no literal may end at them.
const ODD: [&str; 4] = ["it's", "\\", "'] || true || '' in ['", "a\nb\u{1f600}"];

fn labels(random: &mut fastrand::Rng) -> BTreeMap<String, String> {
    let any = |random: &mut fastrand::Rng, from: &[&str]| from[random.usize(..from.len())].to_owned();
    (0..random.usize(..5)).map(|_| (any(random, &KEYS), any(random, &VALUES))).collect()
}

fn selector(random: &mut fastrand::Rng) -> LabelSelector {
    let operators = [LabelOperator::In, LabelOperator::NotIn, LabelOperator::Exists, LabelOperator::DoesNotExist];
    let mut match_labels = labels(random);
    while match_labels.len() > 1 {
        match_labels.pop_first();
    }
    let count = random.usize(usize::from(match_labels.is_empty())..4);
    let match_expressions = (0..count)
        .map(|_| {
            let operator = operators[random.usize(..operators.len())];
            let listed = matches!(operator, LabelOperator::In | LabelOperator::NotIn);
            let all: Vec<_> = VALUES.iter().chain(&ODD).collect();
            let values =
                if listed { (0..random.usize(1..5)).map(|_| (*all[random.usize(..all.len())]).to_owned()).collect() } else { Vec::new() };
            LabelRequirement { key: KEYS[random.usize(..KEYS.len())].to_owned(), operator, values }
        })
        .collect();
    LabelSelector { match_labels, match_expressions }
}
