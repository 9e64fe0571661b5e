//! In which order actions are carried out, what keeps one back, and what follows from an answer.

use super::*;
use crate::watch::GuardedResource;
use k8s_controller::events::{EventRecorder, Reporter};
use kube::client::Body;
use planner::{plan::Supporting, reason::NodeObject};
use serde_json::{Value, json};

type Mock = tower_test::mock::Handle<http::Request<Body>, http::Response<Body>>;

fn context() -> (Context, Mock) {
    let (service, server) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
    // Events go elsewhere.
    let (silent, handle) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
    drop(handle);
    let reporter = Reporter { controller: "test/operator".into(), instance: None };
    let context = Context {
        client: Client::new(service, "default"),
        observer: Arc::new(Observer::default()),
        gates: Arc::default(),
        metrics: Arc::new(Metrics::default()),
        announcer: Announcer::new(EventRecorder::new(Client::new(silent, "default"), reporter)),
        health_checker_image: "checker:1".into(),
        memories: Mutex::default(),
        turns: crate::turns::Turns::default(),
        failures: parking_lot::Mutex::default(),
    };
    (context, server)
}

fn snapshot(deleting: bool) -> Snapshot {
    let spec = serde_json::from_value(json!({ "template": { "spec": { "containers": [{ "name": "c", "image": "i:1" }] } } })).unwrap();
    let resource = Resource { resource_version: "7".into(), deleting, ..Resource::created(("edge", "web"), "0a1b2c3d-0000", spec, 0) };
    Snapshot::of(resource, 1_000)
}

/// What was asked, in order, and what came of it: an API server that answers each request with this code.
async fn carried_out(
    context: &Context,
    server: &mut Mock,
    snapshot: &Snapshot,
    actions: Vec<Action>,
    memory: &mut Memory,
    code: impl Fn(&str) -> u16,
) -> (Vec<String>, Result<Option<Duration>, Failed>) {
    let plan = Plan { actions, ..Plan::default() };
    let mut asked = Vec::new();
    let work = carry_out(context, snapshot, &plan, memory);
    tokio::pin!(work);
    let outcome = loop {
        tokio::select! {
            outcome = &mut work => break outcome,
            Some((request, reply)) = server.next_request() => {
                let request = format!("{} {}", request.method(), request.uri().path());
                let code = code(&request);
                let causes = json!([{ "reason": "FieldValueRequired", "message": "m", "field": "spec" }]);
                let body = match code {
                    200 => json!({ "metadata": { "name": "x", "resourceVersion": "9" }, "spec": { "template": {} } }),
                    422 => json!({ "status": "Failure", "code": 422, "reason": "Invalid", "message": "m", "details": { "causes": causes } }),
                    _ => json!({ "status": "Failure", "code": code, "reason": "r", "message": "m" }),
                };
                asked.push(request);
                reply.send_response(http::Response::builder().status(code).body(Body::from(serde_json::to_vec(&body).unwrap())).unwrap());
            }
        }
    };
    (asked, outcome)
}

fn status(urgent: bool) -> Action {
    Action::WriteStatus { status: Box::default(), urgent, live_absent: Vec::new(), reserve: Vec::new(), granted: Vec::new() }
}

fn patch(node: &str, write: Write) -> Action {
    Action::PatchDeployment { node: node.into(), name: format!("web-{node}"), patch: json!([]), write }
}

fn apply(object: Supporting) -> Action {
    Action::Apply { object, body: Box::new(json!({ "apiVersion": "v1", "kind": "X", "metadata": { "name": "x" } })) }
}

const STATUS: &str = "PATCH /apis/ingressdaemonsets.mumoshu.github.io/v1alpha1/namespaces/edge/ingressdaemonsets/web/status";
const RESOURCE: &str = "PATCH /apis/ingressdaemonsets.mumoshu.github.io/v1alpha1/namespaces/edge/ingressdaemonsets/web";
const A: &str = "PATCH /apis/apps/v1/namespaces/edge/deployments/web-a";
const B: &str = "PATCH /apis/apps/v1/namespaces/edge/deployments/web-b";
const RIGHT: &str = "PATCH /api/v1/namespaces/edge/serviceaccounts/x";
const CHECKER: &str = "PATCH /apis/apps/v1/namespaces/edge/daemonsets/x";

#[tokio::test]
async fn node_writes_precede_the_ledger_and_breakers_come_first() {
    let (context, mut server) = context();
    let actions = vec![status(true), patch("a", Write::Claim), patch("b", Write::Breaker)];
    let (asked, outcome) = carried_out(&context, &mut server, &snapshot(false), actions, &mut Memory::default(), |_| 200).await;
    assert_eq!(asked, [B, A, STATUS]);
    assert_eq!(outcome.unwrap(), None);
}

#[tokio::test]
async fn the_finalizer_goes_only_when_everything_before_it_went_well() {
    for (code, last) in [(200, true), (500, false), (403, false)] {
        let (context, mut server) = context();
        let delete = Action::Delete { object: Supporting::ServiceAccount("x".into()), uid: None };
        let actions = vec![delete, Action::SetFinalizers(Vec::new())];
        let answer = |request: &str| if request.starts_with("DELETE") { code } else { 200 };
        let (asked, outcome) = carried_out(&context, &mut server, &snapshot(true), actions, &mut Memory::default(), answer).await;
        assert_eq!(asked.last().is_some_and(|asked| asked == RESOURCE), last, "{code}: {asked:?}");
        assert_eq!(outcome.is_ok(), last, "{code}");
    }
}

#[tokio::test]
async fn a_health_checker_waits_for_its_rights() {
    for (code, asked) in [(200, vec![RIGHT, CHECKER]), (403, vec![RIGHT])] {
        let (context, mut server) = context();
        let actions = vec![apply(Supporting::DaemonSet("x".into())), apply(Supporting::ServiceAccount("x".into()))];
        let answer = |request: &str| if request == RIGHT { code } else { 200 };
        let (found, _) = carried_out(&context, &mut server, &snapshot(false), actions, &mut Memory::default(), answer).await;
        assert_eq!(found, asked, "{code}");
    }
}

#[tokio::test]
async fn a_status_is_written_once_a_second_unless_urgent() {
    for (urgent, asked) in [(true, vec![STATUS]), (false, vec![])] {
        let (context, mut server) = context();
        let mut memory = Memory::default();
        memory.status_written = Some(Instant::now());
        let (found, outcome) = carried_out(&context, &mut server, &snapshot(false), vec![status(urgent)], &mut memory, |_| 200).await;
        assert_eq!(found, asked);
        assert_eq!(outcome.unwrap().is_none(), urgent, "what was left is due soon");
    }
}

#[tokio::test]
async fn after_a_conflict_the_same_view_is_not_written_again() {
    let (context, mut server) = context();
    let mut memory = Memory::default();
    let (asked, outcome) = carried_out(&context, &mut server, &snapshot(false), vec![status(true)], &mut memory, |_| 409).await;
    assert_eq!((asked.len(), outcome.unwrap()), (1, Some(AFTER_CONFLICT)));
    let (asked, outcome) = carried_out(&context, &mut server, &snapshot(false), vec![status(true)], &mut memory, |_| 200).await;
    assert_eq!(asked, Vec::<String>::new());
    assert!(outcome.unwrap().is_some_and(|soon| soon <= Duration::from_secs(1)));
    let mut newer = snapshot(false);
    newer.resource.resource_version = "8".into();
    let (asked, _) = carried_out(&context, &mut server, &newer, vec![status(true)], &mut memory, |_| 200).await;
    assert_eq!(asked, [STATUS]);
}

#[tokio::test]
async fn a_refusal_for_one_node_stops_no_other_node() {
    let (context, mut server) = context();
    let actions = vec![patch("a", Write::Claim), patch("b", Write::Claim)];
    let answer = |request: &str| if request == A { 422 } else { 200 };
    let mut memory = Memory::default();
    let (asked, outcome) = carried_out(&context, &mut server, &snapshot(false), actions, &mut memory, answer).await;
    assert_eq!(asked.len(), 2);
    assert_eq!(outcome.unwrap(), Some(AFTER_CONFLICT));
    assert!(memory.active_refusals(1)[&NodeObject::Deployment].keys().eq(["a"]));
}

#[tokio::test]
async fn a_fault_of_the_api_server_fails_the_pass() {
    let (context, mut server) = context();
    let outcome =
        carried_out(&context, &mut server, &snapshot(false), vec![patch("a", Write::Claim)], &mut Memory::default(), |_| 500).await.1;
    assert!(outcome.is_err());
}

fn resource() -> Value {
    json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet",
        "metadata": { "name": "web", "namespace": "edge", "uid": "0a1b2c3d-0000", "resourceVersion": "7", "generation": 1 },
        "spec": { "template": { "spec": { "containers": [{ "name": "c", "image": "i:1" }] } } },
    })
}

/// The resource, in a view in which all has been listed.
fn observed(context: &Context, resource: &Value) -> Arc<Named> {
    use k8s_openapi::api::{apps::v1 as apps, core::v1 as core};
    let observer = &context.observer;
    observer.take::<GuardedResource>(vec![serde_json::from_value(resource.clone()).unwrap()]);
    observer.take::<core::Node>(Vec::new());
    observer.take::<apps::Deployment>(Vec::new());
    observer.take::<apps::ReplicaSet>(Vec::new());
    observer.take::<core::Pod>(Vec::new());
    observer.take::<apps::DaemonSet>(Vec::new());
    observer.take::<core::Service>(Vec::new());
    observer.take::<apps::ControllerRevision>(Vec::new());
    Arc::new(serde_json::from_value(resource.clone()).unwrap())
}

async fn remember(context: &Context, memory: Memory) {
    context.memories.lock().await.insert(("edge".into(), "web".into()), Arc::new(Mutex::new(memory)));
}

fn with_reserved(uid: &str) -> Memory {
    let mut memory = Memory::of(uid);
    memory.reserved.push(5);
    memory
}

/// Requests that a pass makes, all answered with this body.
async fn pass(context: Arc<Context>, mut server: Mock, resource: Arc<Named>, body: &Value) -> Vec<String> {
    let work = reconcile(resource, context);
    tokio::pin!(work);
    let mut asked = Vec::new();
    loop {
        tokio::select! {
            outcome = &mut work => {
                outcome.unwrap();
                return asked;
            }
            Some((request, reply)) = server.next_request() => {
                asked.push(format!("{} {}", request.method(), request.uri().path()));
                reply.send_response(http::Response::new(Body::from(serde_json::to_vec(body).unwrap())));
            }
        }
    }
}

async fn remembered<T>(context: &Context, read: impl FnOnce(&Memory) -> T) -> T {
    let memory = Arc::clone(&context.memories.lock().await[&("edge".to_owned(), "web".to_owned())]);
    let memory = memory.lock().await;
    read(&memory)
}

#[tokio::test]
async fn nothing_is_decided_until_watches_show_our_own_writes() {
    let (context, server) = context();
    let resource = observed(&context, &resource());
    let mut memory = Memory::of("0a1b2c3d-0000");
    memory.expect(crate::watch::Kind::Deployments, 9);
    remember(&context, memory).await;
    assert_eq!(pass(Arc::new(context), server, resource, &json!({})).await, Vec::<String>::new());
}

#[tokio::test]
async fn memory_of_a_former_resource_of_that_name_is_dropped() {
    let (context, server) = context();
    let context = Arc::new(context);
    let resource = observed(&context, &resource());
    remember(&context, with_reserved("ffffffff-0000")).await;
    pass(Arc::clone(&context), server, resource, &json!({})).await;
    let (uid, reserved) = remembered(&context, |memory| (memory.uid.clone(), memory.reserved.clone())).await;
    assert_eq!((uid.as_str(), reserved.len()), ("0a1b2c3d-0000", 0));
}

/// A pass while the ledger is rebuilt, which ends once there was found to be neither Deployment nor Node; and what it asked for.
async fn rebuilding(memory: Memory) -> (Arc<Context>, Vec<String>) {
    let (context, server) = context();
    let context = Arc::new(context);
    let mut resource = resource();
    resource["status"] = json!({ "rollout": { "nextId": 7, "rebuilding": 7 } });
    let resource = observed(&context, &resource);
    remember(&context, memory).await;
    let list = json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "9" }, "items": [] });
    let asked = pass(Arc::clone(&context), server, resource, &list).await;
    (context, asked)
}

#[tokio::test]
async fn removed_deployments_and_nodes_are_forgotten_by_the_next_pass() {
    let mut memory = Memory::of("0a1b2c3d-0000");
    memory.written_generations.insert("gone".into(), 3);
    memory.refuse("gone", NodeObject::Deployment, "exceeded quota", 1);
    let (context, _) = rebuilding(memory).await;
    let left = remembered(&context, |memory| (memory.written_generations.len(), memory.active_refusals(1).len())).await;
    assert_eq!(left, (0, 0));
}

#[tokio::test]
async fn a_rebuild_relists_the_view_and_drops_reserved_ids() {
    let (context, asked) = rebuilding(with_reserved("0a1b2c3d-0000")).await;
    assert_eq!(asked, ["GET /apis/apps/v1/namespaces/edge/deployments", "GET /api/v1/nodes"]);
    let known = remembered(&context, |memory| (memory.reserved.len(), memory.listed_for)).await;
    assert_eq!(known, (0, Some(7)));
}

#[tokio::test]
async fn nothing_stays_of_a_resource_that_is_gone() {
    let (context, _server) = context();
    remember(&context, Memory::of("0a1b2c3d-0000")).await;
    forget(&context, "edge", "web").await;
    assert!(context.memories.lock().await.is_empty());
}
