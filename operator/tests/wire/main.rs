//! What goes over the wire for each action: exact method, path, query, kind of patch and body, and no further call.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod account;
mod each_action;
mod owners;
mod pod_gates;
mod pods;
mod revisions;
mod rights;
mod supporting;

use crds::{
    ingress_daemon_set::{IngressDaemonSet, IngressDaemonSetSpec},
    status::IngressDaemonSetStatus,
};
use k8s_controller::events::{EventRecorder, Reporter};
use kube::{Client, client::Body};
use operator::{
    metrics::Metrics,
    rollout::{Actor, Memory, try_template},
    watch::Kind,
    write::{Announcer, Error},
};
use planner::{
    Action, Snapshot,
    facts::Resource,
    plan::{Supporting, Write},
    reason::NodeObject,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokio::sync::Mutex;

/// A request as it was sent, and the answer to give.
type Exchange = (&'static str, String, Option<Value>, u16, Value);

/// An API server that expects exactly these requests in this order.
fn server(expected: Vec<Exchange>) -> (Client, tokio::task::JoinHandle<()>) {
    let (service, mut handle) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
    let task = tokio::spawn(async move {
        for (method, path, body, code, answer) in expected {
            let (request, reply) = handle.next_request().await.expect("a request is expected");
            assert_eq!((request.method().as_str(), request.uri().to_string()), (method, path));
            let (parts, body_sent) = request.into_parts();
            let bytes = body_sent.collect_bytes().await.unwrap();
            let sent: Option<Value> = (!bytes.is_empty()).then(|| serde_json::from_slice(&bytes).unwrap());
            if method == "PATCH" {
                let kind = parts.headers.get(http::header::CONTENT_TYPE).unwrap().to_str().unwrap();
                assert_eq!(kind, kind_of_patch(&parts.uri, sent.as_ref().unwrap()));
            }
            if let Some(body) = body {
                assert_eq!(sent, Some(body));
            }
            reply.send_response(http::Response::builder().status(code).body(Body::from(serde_json::to_vec(&answer).unwrap())).unwrap());
        }
        assert!(handle.next_request().await.is_none(), "no further call is expected");
    });
    (Client::new(service, "default"), task)
}

/// Operations are a JSON Patch, what names a field manager is applied, and the rest is merged by the lists' keys.
fn kind_of_patch(uri: &http::Uri, body: &Value) -> &'static str {
    match body {
        Value::Array(_) => "application/json-patch+json",
        _ if uri.query().is_some_and(|query| query.contains("fieldManager=")) => "application/apply-patch+yaml",
        _ => "application/strategic-merge-patch+json",
    }
}

fn snapshot() -> Snapshot {
    let spec: IngressDaemonSetSpec =
        serde_json::from_value(json!({"template": {"spec": {"containers": [{"name": "c", "image": "i:1"}]}}})).unwrap();
    let resource = Resource { resource_version: "7".into(), ..Resource::created(("edge", "web"), "0a1b2c3d-0000", spec, 0) };
    Snapshot::of(resource, 1_000)
}

/// What came of an action.
struct Outcome {
    result: Result<(), Error>,
    memory: Memory,
    metrics: Metrics,
}

impl Outcome {
    /// Refused because the object had changed: looked at again, counted as fenced, and no refusal that people are told of.
    fn is_fenced(&self) -> bool {
        let counted = self.metrics.scrape().lines().any(|line| line == "ids_fencing_rejections_total 1");
        matches!(self.result, Err(Error::Conflict)) && counted && self.memory.active_refusals(1).is_empty()
    }
}

/// What is remembered when the server has refused this object of node `a`.
fn refused(object: NodeObject) -> BTreeMap<NodeObject, BTreeMap<String, String>> {
    [(object, [("a".to_owned(), "because".to_owned())].into())].into()
}

/// Carries out one action against a server that expects exactly `expected`.
async fn act(action: Action, expected: Vec<Exchange>) -> (Result<(), Error>, Memory) {
    let Outcome { result, memory, .. } = carry_out(action, expected).await;
    (result, memory)
}

async fn carry_out(action: Action, expected: Vec<Exchange>) -> Outcome {
    each_action::note(&action);
    let (client, task) = server(expected);
    let mut memory = Memory::of("0a1b2c3d-0000");
    memory.reserved.push(5);
    let metrics = Metrics::default();
    let result = carried_out(&client, &metrics, &action, &mut memory).await;
    drop(client);
    task.await.unwrap();
    Outcome { result, memory, metrics }
}

/// With what is remembered already.
async fn carry_out_with(client: &Client, action: &Action, memory: &mut Memory) -> Result<(), Error> {
    carried_out(client, &Metrics::default(), action, memory).await
}

async fn carried_out(client: &Client, metrics: &Metrics, action: &Action, memory: &mut Memory) -> Result<(), Error> {
    let reporter = Reporter { controller: "test/operator".into(), instance: None };
    // Events go elsewhere: they are not part of what is asserted here.
    let (silent, handle) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
    drop(handle);
    let announcer = Announcer::new(EventRecorder::new(Client::new(silent, "default"), reporter));
    let snapshot = snapshot();
    let shared = Mutex::new(memory);
    Actor { client, metrics, announcer: &announcer, snapshot: &snapshot }.act(action, &shared).await
}

fn resource(version: &str) -> Value {
    let mut object = serde_json::to_value(IngressDaemonSet::new("web", snapshot().resource.spec)).unwrap();
    object["metadata"] = json!({"name": "web", "namespace": "edge", "resourceVersion": version});
    object
}

fn deployment(version: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web-a", "namespace": "edge", "uid": "d1", "resourceVersion": version, "generation": 3}})
}

fn failure(code: u16, reason: &str, causes: bool) -> Value {
    let details = if causes {
        json!({"causes": [{"reason": "FieldValueRequired", "message": "Required value", "field": "spec"}]})
    } else {
        json!({})
    };
    // As the API server says it of a test that failed.
    let message = if code == 422 && !causes { "the server rejected our request due to an error in our request" } else { "because" };
    json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message, "details": details})
}

const RESOURCE: &str = "/apis/ingressdaemonsets.mumoshu.github.io/v1alpha1/namespaces/edge/ingressdaemonsets/web";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/edge/deployments";

#[tokio::test]
async fn a_ledger_write_tests_its_version_and_then_reserves_ids() {
    let status = IngressDaemonSetStatus { replicas: 2, ..Default::default() };
    let body = json!([
        {"op": "test", "path": "/metadata/uid", "value": "0a1b2c3d-0000"},
        {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "add", "path": "/status", "value": serde_json::to_value(&status).unwrap()},
    ]);
    let action = Action::WriteStatus {
        status: Box::new(status),
        urgent: true,
        live_absent: vec!["web-a".into()],
        reserve: vec![8, 9],
        granted: vec![],
    };
    let expected = vec![
        ("GET", format!("{DEPLOYMENTS}/web-a"), None, 404, failure(404, "NotFound", false)),
        ("PATCH", format!("{RESOURCE}/status?"), Some(body), 200, resource("8")),
    ];
    let (result, memory) = act(action, expected).await;
    result.unwrap();
    assert_eq!(memory.reserved, [5, 8, 9]);
}

#[tokio::test]
async fn no_release_is_written_while_its_deployment_exists() {
    let mut found = deployment("3");
    found["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "x/v1", "kind": "IngressDaemonSet", "name": "web", "uid": "0a1b2c3d-0000", "controller": true}]);
    let action =
        Action::WriteStatus { status: Box::default(), urgent: true, live_absent: vec!["web-a".into()], reserve: vec![8], granted: vec![] };
    let (result, memory) = act(action, vec![("GET", format!("{DEPLOYMENTS}/web-a"), None, 200, found)]).await;
    assert!(matches!(result, Err(Error::Conflict)), "{result:?}");
    assert_eq!(memory.reserved, [5]);
}

#[tokio::test]
async fn a_deployment_is_patched_as_decided_and_waited_for() {
    let patch = json!([{"op": "test", "path": "/metadata/uid", "value": "d1"}, {"op": "add", "path": "/spec/template", "value": {}}]);
    let action = Action::PatchDeployment { node: "a".into(), name: "web-a".into(), patch: patch.clone(), write: Write::Update };
    let (result, mut memory) = act(action, vec![("PATCH", format!("{DEPLOYMENTS}/web-a?"), Some(patch), 200, deployment("41"))]).await;
    result.unwrap();
    assert_eq!(memory.written_generations, BTreeMap::from([("d1".to_owned(), 3)]));
    let observer = operator::watch::Observer::default();
    assert_eq!(observer.seen(Kind::Deployments), 0);
    assert!(!memory.is_caught_up(&observer), "no decision before the watch has shown the write");
}

#[tokio::test]
async fn a_failed_patch_test_is_a_conflict_not_a_refusal() {
    let patch = json!([{"op": "test", "path": "/metadata/uid", "value": "d1"}]);
    let action = || Action::PatchDeployment { node: "a".into(), name: "web-a".into(), patch: patch.clone(), write: Write::Claim };
    let exchange = |answer| vec![("PATCH", format!("{DEPLOYMENTS}/web-a?"), Some(patch.clone()), 422, answer)];
    let (result, memory) = act(action(), exchange(failure(422, "Invalid", false))).await;
    assert!(matches!(result, Err(Error::Conflict)), "{result:?}");
    assert!(memory.active_refusals(1).is_empty());
    let (result, memory) = act(action(), exchange(failure(422, "Invalid", true))).await;
    assert!(matches!(result, Err(Error::Invalid(_))), "{result:?}");
    assert_eq!(memory.active_refusals(1), refused(NodeObject::Deployment));
    assert!(memory.active_refusals(2).is_empty(), "another spec is tried at once");
    // An admission webhook gives no causes.
    let mut denied = failure(422, "", false);
    denied["message"] = "admission webhook \"images.example.com\" denied the request: no tag".into();
    let (result, memory) = act(action(), exchange(denied)).await;
    assert!(matches!(result, Err(Error::Invalid(_))), "{result:?}");
    assert!(memory.active_refusals(1)[&NodeObject::Deployment]["a"].contains("denied the request: no tag"));
}

#[tokio::test]
async fn an_id_is_used_up_even_when_its_creation_fails() {
    let body = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web-a", "namespace": "edge"}});
    let action = Action::CreateDeployment { node: "a".into(), id: 5, name: "web-a".into(), body: Box::new(body.clone()) };
    let (result, memory) =
        act(action, vec![("POST", format!("{DEPLOYMENTS}?"), Some(body), 500, failure(500, "InternalError", false))]).await;
    assert!(matches!(result, Err(Error::Transient(_))), "{result:?}");
    assert!(memory.reserved.is_empty());
}

#[tokio::test]
async fn an_object_of_somebody_else_is_never_adopted() {
    let body = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web-a"}});
    let action = Action::CreateDeployment { node: "a".into(), id: 5, name: "web-a".into(), body: Box::new(body) };
    let expected = vec![
        ("POST", format!("{DEPLOYMENTS}?"), None, 409, failure(409, "AlreadyExists", false)),
        ("GET", format!("{DEPLOYMENTS}/web-a"), None, 200, deployment("9")),
    ];
    let (result, memory) = act(action, expected).await;
    assert!(matches!(result, Err(Error::Foreign(_))), "{result:?}");
    assert!(memory.foreign_names.contains("web-a"));
}

#[tokio::test]
async fn a_deployment_is_deleted_only_as_it_was_seen() {
    let body = json!({"propagationPolicy": "Background", "preconditions": {"uid": "d1", "resourceVersion": "12"}});
    let action = Action::DeleteDeployment { node: "a".into(), name: "web-a".into(), uid: "d1".into(), resource_version: "12".into() };
    act(action, vec![("DELETE", format!("{DEPLOYMENTS}/web-a?"), Some(body), 200, deployment("13"))]).await.0.unwrap();
}

#[tokio::test]
async fn a_member_label_goes_only_when_the_deployment_is_gone() {
    let patch = json!([{"op": "test", "path": "/metadata/uid", "value": "n1"}]);
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "resourceVersion": "5"}});
    let action = Action::PatchNode { node: "a".into(), patch: patch.clone(), write: Write::Clean, live_absent: Some("web-a".into()) };
    let expected = vec![
        ("GET", format!("{DEPLOYMENTS}/web-a"), None, 404, failure(404, "NotFound", false)),
        ("PATCH", "/api/v1/nodes/a?".to_owned(), Some(patch), 200, node),
    ];
    act(action, expected).await.0.unwrap();
}

#[tokio::test]
async fn supporting_objects_are_applied_under_their_own_field_manager() {
    let body = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "health-checker-0a1b2c3d"}});
    let action = Action::Apply { object: Supporting::ServiceAccount("health-checker-0a1b2c3d".into()), body: Box::new(body.clone()) };
    let path = "/api/v1/namespaces/edge/serviceaccounts/health-checker-0a1b2c3d?&force=true&fieldManager=ingress-daemonset-operator%2Fhealth-checker";
    let (result, memory) = act(action, vec![("PATCH", path.to_owned(), Some(body.clone()), 200, body)]).await;
    result.unwrap();
    assert_eq!(memory.asserted().len(), 1);
}

#[tokio::test]
async fn finalizers_are_replaced_with_the_version_that_was_read() {
    let body = json!([
        {"op": "test", "path": "/metadata/uid", "value": "0a1b2c3d-0000"},
        {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "add", "path": "/metadata/finalizers", "value": ["a/b"]},
    ]);
    act(Action::SetFinalizers(vec!["a/b".into()]), vec![("PATCH", format!("{RESOURCE}?"), Some(body), 200, resource("8"))])
        .await
        .0
        .unwrap();
}

#[tokio::test]
async fn a_refused_creation_uses_up_no_id() {
    let body = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web-a"}});
    let action = Action::CreateDeployment { node: "a".into(), id: 5, name: "web-a".into(), body: Box::new(body) };
    let (result, memory) = act(action, vec![("POST", format!("{DEPLOYMENTS}?"), None, 422, failure(422, "Invalid", true))]).await;
    assert!(matches!(result, Err(Error::Invalid(_))), "{result:?}");
    assert_eq!(memory.reserved, [5]);
}

#[tokio::test]
async fn a_deployment_of_ours_gets_its_labels_back() {
    let mut found = deployment("9");
    found["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "x/v1", "kind": "IngressDaemonSet", "name": "web", "uid": "0a1b2c3d-0000", "controller": true}]);
    let label = json!({"op": "add", "path": "/metadata/labels/x", "value": "y"});
    let patch = json!([
        {"op": "test", "path": "/metadata/uid", "value": "d1"},
        {"op": "add", "path": "/metadata/labels", "value": {}},
        {"op": "add", "path": "/metadata/annotations", "value": {}},
        label.clone(),
    ]);
    let action = Action::Reclaim { node: "a".into(), name: "web-a".into(), identity: json!([label]) };
    let expected = vec![
        ("GET", format!("{DEPLOYMENTS}/web-a"), None, 200, found),
        ("PATCH", format!("{DEPLOYMENTS}/web-a?"), Some(patch), 200, deployment("10")),
    ];
    act(action, expected).await.0.unwrap();
}

/// What is known of the template after it was tried against this server, for a resource without Deployments.
async fn tried(expected: Vec<Exchange>) -> (Option<String>, Memory) {
    let (client, task) = server(expected);
    let mut memory = Memory::of("0a1b2c3d-0000");
    let mut snapshot = snapshot();
    try_template(&client, &mut memory, &mut snapshot).await;
    let refusal = snapshot.template_refusal.clone();
    // What is known is not asked again.
    if memory.tried.is_some() || refusal.is_some() {
        try_template(&client, &mut memory, &mut snapshot).await;
    }
    drop(client);
    task.await.unwrap();
    (refusal, memory)
}

fn dry_run(code: u16, answer: Value) -> Vec<Exchange> {
    vec![("POST", format!("{DEPLOYMENTS}?&dryRun=All"), None, code, answer)]
}

#[tokio::test]
async fn a_template_is_tried_once_by_a_dry_run() {
    let (refusal, memory) = tried(dry_run(201, deployment("1"))).await;
    assert_eq!((refusal, memory.tried), (None, Some(1)));
}

#[tokio::test]
async fn a_refused_template_is_remembered_until_the_spec_changes() {
    let (refusal, memory) = tried(dry_run(422, failure(422, "Invalid", true))).await;
    assert_eq!((refusal.as_deref(), memory.tried), (Some("because"), None));
    assert_eq!(memory.template_refusal(1), Some("because"));
    assert_eq!(memory.template_refusal(2), None, "another spec is tried at once");
}

#[tokio::test]
async fn a_quota_or_taken_name_does_not_refuse_the_template() {
    let mut webhook = failure(400, "BadRequest", false);
    webhook["message"] = "admission webhook \"w\" does not support dry run".into();
    for (code, answer) in [(403, failure(403, "Forbidden", false)), (409, failure(409, "AlreadyExists", false)), (400, webhook)] {
        let (refusal, memory) = tried(dry_run(code, answer)).await;
        assert_eq!((refusal, memory.tried), (None, Some(1)), "{code}");
    }
}

#[tokio::test]
async fn without_an_answer_the_template_is_tried_again_later() {
    let (refusal, memory) = tried(dry_run(500, failure(500, "InternalError", false))).await;
    assert_eq!((refusal, memory.tried), (None, None));
}

#[test]
fn a_write_refused_as_outdated_waits_until_its_view_changes() {
    let mut memory = Memory::default();
    assert_eq!(memory.stale_for("status", "7"), None);
    memory.note_stale("status".into(), "7".into());
    assert!(memory.stale_for("status", "7").is_some_and(|wait| wait <= std::time::Duration::from_secs(1)));
    assert_eq!(memory.stale_for("status", "8"), None, "there is a newer view");
    assert_eq!(memory.stale_for("close Deployment web-n1", "7"), None, "another object");
}
