//! What is seen around a resource is what the operator sees: gates of every kind, and what its flags allow.

use super::Cluster;
use crate::{
    forecast::{Forecast, forecast, pace::Pace},
    output::Style,
    why::why,
};
use crds::{IngressDaemonSet, names};
use http::{Request, Response};
use kube::{Client, client::Body};
use planner::Snapshot;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const GROUP: &str = "/apis/ingressdaemonsets.mumoshu.github.io/v1alpha1";
const OPERATOR: &str = "/apis/apps/v1/namespaces/ids/deployments";

/// An API server with these lists, by path; `null` is a list that the user may not have, and every other list is empty.
fn cluster(lists: impl IntoIterator<Item = (String, Value)>) -> Cluster {
    let lists: BTreeMap<String, Value> = lists.into_iter().collect();
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    tokio::spawn(async move {
        while let Some((request, reply)) = handle.next_request().await {
            let nothing = json!([]);
            let items = lists.get(request.uri().path()).unwrap_or(&nothing);
            let (code, body) = if items.is_null() {
                (
                    403,
                    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "message": "no", "code": 403}),
                )
            } else {
                (200, json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}))
            };
            reply.send_response(Response::builder().status(code).body(Body::from(body.to_string().into_bytes())).expect("a response"));
        }
    });
    let client = Client::new(service, "web");
    Cluster { client: client.clone(), asks_once: client, namespace: "web".into(), operator_namespace: "ids".into() }
}

/// Everything is there that the operator has, with these arguments.
fn with_operator(arguments: &[&str], more: impl IntoIterator<Item = (String, Value)>) -> Cluster {
    let container = json!({"name": "operator", "command": ["/ingress-daemonset-operator"], "args": arguments});
    let labels = json!({"app.kubernetes.io/name": "ingress-daemonset-operator"});
    let operator = json!({
        "metadata": {"name": "operator", "namespace": "ids", "labels": labels},
        "spec": {"selector": {}, "template": {"metadata": {}, "spec": {"containers": [container]}}},
    });
    let node = json!({"metadata": {"name": "n1", "uid": "n", "labels": {"role": "edge"}}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let lists = [(OPERATOR.to_owned(), json!([operator])), ("/api/v1/nodes".to_owned(), json!([node]))];
    cluster(lists.into_iter().chain(more))
}

fn resource(more: &Value) -> IngressDaemonSet {
    let mut object = json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet",
        "metadata": {
            "name": "edge", "namespace": "web", "uid": "0a1b2c3d-0000-4000-8000-000000000000", "finalizers": [names::FINALIZER], "generation": 1,
        },
        "spec": {
            "nodeSelector": {"role": "edge"},
            "template": {"metadata": {"labels": {"app": "edge"}}, "spec": {"containers": [{"name": "nginx", "image": "nginx:1.29"}]}},
            "updateStrategy": {"rollingUpdate": {"maxUnavailableNodes": 1, "minAvailableNodes": 0}},
        },
    });
    for (pointer, value) in more.as_object().into_iter().flatten() {
        object["spec"][pointer] = value.clone();
    }
    serde_json::from_value(object).unwrap()
}

async fn observed(cluster: &Cluster, resource: &IngressDaemonSet) -> (Snapshot, Vec<String>) {
    let (view, remarks) = cluster.observe(Some(resource)).await.unwrap();
    (view.snapshot(resource).unwrap(), remarks)
}

async fn planned(cluster: &Cluster, resource: &IngressDaemonSet) -> (Forecast, String) {
    let forecast = forecast(observed(cluster, resource).await.0, Pace::of(Some(1), &[]));
    let text = forecast.render(Style::default());
    (forecast, text)
}

fn pod_gate(name: &str, namespace: &str, selected: &str, injected: bool) -> Value {
    json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "PodReadinessGate",
        "metadata": {"name": name, "namespace": namespace, "uid": name},
        "spec": {
            "conditionType": format!("example.com/{name}"), "source": {"label": {"key": "open"}},
            "selector": {"matchLabels": {"app": selected}}, "admission": {"onCreate": if injected { "Policy" } else { "None" }},
        },
    })
}

#[tokio::test]
async fn pods_list_the_conditions_that_their_gates_ask_for() {
    let gates = json!([
        pod_gate("open", "web", "edge", true),
        pod_gate("asks-not", "web", "edge", false),
        pod_gate("for-others", "web", "dns", true),
        pod_gate("elsewhere", "dns", "edge", true),
    ]);
    let cluster = with_operator(&["run"], [(format!("{GROUP}/podreadinessgates"), gates)]);
    let (snapshot, remarks) = observed(&cluster, &resource(&json!({}))).await;
    assert_eq!(snapshot.gates.conditions, ["example.com/open"]);
    let kept: Vec<_> = snapshot.gates.kept.iter().flatten().map(String::as_str).collect();
    assert_eq!(kept, ["example.com/asks-not", "example.com/for-others", "example.com/open"]);
    assert_eq!(remarks, Vec::<String>::new());
}

#[tokio::test]
async fn a_remark_says_when_pod_gates_may_not_be_listed() {
    let cluster = with_operator(&["run"], [(format!("{GROUP}/podreadinessgates"), Value::Null)]);
    let (snapshot, remarks) = observed(&cluster, &resource(&json!({}))).await;
    assert_eq!((snapshot.gates.conditions.len(), snapshot.gates.kept), (0, None));
    assert!(remarks.iter().any(|remark| remark.contains("list podreadinessgates: the plugin ignores them")), "{remarks:?}");
}

#[tokio::test]
async fn operator_flags_decide_whether_config_map_and_preset_gates_count() {
    let wanted = json!({"namespace": "web", "name": "edge"});
    let gate = json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "NodeReadinessGate", "metadata": {"name": "edge", "uid": "g"},
        "spec": {"allNodes": true, "taint": {"key": "example.com/edge"}, "requirements": [{"name": "replicas", "ingressDaemonSet": wanted}]},
    });
    let passing = async |arguments: &[&str]| {
        let gates = [(format!("{GROUP}/nodereadinessgates"), json!([gate.clone()]))];
        let (snapshot, _) = observed(&with_operator(arguments, gates), &resource(&json!({}))).await;
        snapshot.gates.passing.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
    };
    assert_eq!(passing(&["run"]).await, ["example.com/edge"]);
    let all = passing(&["run", "--legacy-configmap", "kube-system", "--preset=startup.k8s.io"]).await;
    assert_eq!(all, ["NodeReadiness", "example.com/edge", "startup.k8s.io/initializing"]);
}

fn detaching_by(key: &str) -> IngressDaemonSet {
    resource(&json!({"updateStrategy": {"rollingUpdate": {
        "maxUnavailableNodes": 1, "minAvailableNodes": 0, "annotateNodeToDetach": {"key": key, "gracePeriodSeconds": 1},
    }}}))
}

#[tokio::test]
async fn a_detach_key_is_refused_unless_the_operator_allows_it() {
    let resource = detaching_by("example.com/out");
    let refused = with_operator(&["run"], []);
    let (forecast, text) = planned(&refused, &resource).await;
    assert!(text.contains("DetachKeyNotAllowed") && text.contains("add web=example.com/out to --allowed-detach-keys"), "{text}");
    assert!(forecast.turns.is_empty() && text.contains("nothing would change"), "{text}");
    let answer = why(&resource, &observed(&refused, &resource).await.0, "n1").unwrap();
    assert_eq!((answer.phase.as_str(), answer.reason.0.as_str()), ("Idle", "DetachKeyNotAllowed"), "{answer:?}");
    assert!(answer.reason.1.contains("add web=example.com/out to --allowed-detach-keys"), "{answer:?}");
    for arguments in
        [&["run", "--allowed-detach-keys=example.com/*"][..], &["run", "--new-flag", "5", "--allowed-detach-keys", "a/b,example.com/out"]]
    {
        let (forecast, text) = planned(&with_operator(arguments, []), &resource).await;
        assert!(forecast.invalid.is_empty() && forecast.turns.len() == 1, "{arguments:?}: {text}");
    }
}

#[tokio::test]
async fn a_taint_that_is_not_allowed_only_causes_a_remark() {
    let resource =
        resource(&json!({"healthCheckNodePorts": [10080], "nodeReadinessTaint": {"key": "example.com/edge", "effect": "NoSchedule"}}));
    let (forecast, text) = planned(&with_operator(&["run"], []), &resource).await;
    assert!(text.contains("TaintNotAllowed") && text.contains("add web=example.com/edge to --allowed-node-taints"), "{text}");
    assert!(forecast.invalid.is_empty() && forecast.turns.len() == 1, "{text}");
    let (_, text) = planned(&with_operator(&["run", "--allowed-node-taints=web=example.com/*"], []), &resource).await;
    assert!(!text.contains("TaintNotAllowed"), "{text}");
}

#[tokio::test]
async fn a_remark_says_what_is_assumed_without_the_operators_flags() {
    let resource = detaching_by("example.com/out");
    for (what, operators) in [("may not list deployments in namespace ids", Value::Null), ("no operator in namespace ids", json!([]))] {
        let (snapshot, remarks) = observed(&with_operator(&["run"], [(OPERATOR.to_owned(), operators)]), &resource).await;
        assert!(
            remarks.iter().any(|remark| remark.contains(what) && remark.contains("assumes that every key and taint is allowed")),
            "{remarks:?}"
        );
        assert!(forecast(snapshot, Pace::of(Some(1), &[])).invalid.is_empty());
    }
}

#[tokio::test]
async fn a_remark_says_when_other_namespaces_may_not_be_listed() {
    let refused = [(format!("{GROUP}/ingressdaemonsets"), Value::Null)];
    let (_, remarks) = observed(&with_operator(&["run"], refused), &resource(&json!({}))).await;
    assert!(remarks.iter().any(|remark| remark.contains("ingressdaemonsets of other namespaces")), "{remarks:?}");
}

#[tokio::test]
async fn the_plan_refuses_a_spec_beyond_the_operators_size_limit() {
    let template = |env: Value| {
        let container = json!({"name": "nginx", "image": "nginx:1.29", "env": env});
        resource(&json!({"template": {"metadata": {"labels": {"app": "edge"}}, "spec": {"containers": [container]}}}))
    };
    let text = json!([{"name": "X", "value": "x".repeat(70_000)}]);
    let mappings = (0..1_000).map(|number| json!({"name": format!("X{number}"), "value": ""})).collect();
    for large in [text, mappings] {
        let (forecast, text) = planned(&with_operator(&["run"], []), &template(large)).await;
        assert!(forecast.turns.is_empty() && forecast.invalid.len() == 1, "{text}");
        assert!(text.starts_with("not valid: TooLarge: the spec is ") && text.contains("nothing would change"), "{text}");
    }
    let fits = json!([{"name": "X", "value": "x".repeat(60_000)}]);
    let (forecast, text) = planned(&with_operator(&["run"], []), &template(fits)).await;
    assert!(forecast.invalid.is_empty() && forecast.turns.len() == 1, "{text}");
}

#[tokio::test]
async fn the_plan_refuses_a_resource_beyond_its_namespaces_limit() {
    let made = |name: &str, at: u32| {
        let mut made = resource(&json!({}));
        let created = format!("2026-01-01T{:02}:{:02}:00Z", at / 60, at % 60);
        made.metadata = serde_json::from_value(json!({
            "name": name, "namespace": "web", "uid": format!("{at:08}-0000-4000-8000-000000000000"), "finalizers": [names::FINALIZER],
            "generation": 1, "creationTimestamp": created,
        }))
        .unwrap();
        made
    };
    let (new, without) = (made("new", 200), "TooManyResources");
    for (others, has_place) in [(99, true), (100, false)] {
        let others: Vec<_> = (0..others).map(|at| made(&format!("r{at}"), at)).collect();
        let cluster = with_operator(&["run"], [(format!("{GROUP}/ingressdaemonsets"), serde_json::to_value(others).unwrap())]);
        let (forecast, text) = planned(&cluster, &new).await;
        assert_eq!(forecast.invalid.is_empty(), has_place, "{text}");
        assert_eq!(text.starts_with(&format!("not valid: {without}: of a namespace 100 IngressDaemonSets")), !has_place, "{text}");
        // One that is older keeps its place, whatever others there are.
        let (forecast, text) = planned(&cluster, &made("r0", 0)).await;
        assert!(forecast.invalid.is_empty(), "{text}");
    }
}
