use super::*;
use crate::watch::GuardedResource;
use k8s_controller::events::Reporter;
use kube::client::Body;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use std::sync::Mutex;

/// A node that a gate held, without its taint, and nothing else.
fn observer() -> Arc<Observer> {
    let record = json!({"g": "edge", "k": "edge", "e": "NoSchedule", "s": "held", "o": "applied", "c": "fresh", "t": 1});
    let node = json!({
        "metadata": {"name": "n1", "uid": "u1", "annotations": {planner::node_gates::record::annotation_key("g1"): record.to_string()}},
    });
    let observer = Observer::default();
    observer.take::<Node>(vec![serde_json::from_value(node).unwrap()]);
    observer.take::<GuardedResource>(Vec::new());
    observer.take_no_objects();
    Arc::new(observer)
}

fn engine(client: Client, observer: Arc<Observer>) -> Engine {
    let reporter = Reporter { controller: "operator".into(), instance: None };
    Engine::new(EngineOptions {
        recorder: EventRecorder::new(client.clone(), reporter),
        client,
        state: GateState::of(&observer),
        observer,
        metrics: GateMetrics::registered(&mut Registry::default()),
        webhook: None,
        admission_policies: true,
    })
}

#[tokio::test]
async fn records_of_missing_gates_stay_until_all_gates_are_known() {
    let (service, _server) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
    let (client, observer) = (Client::new(service, "default"), observer());
    let mut engine = engine(client, observer);
    let work = Work::new();
    engine.urgent.insert("n1".into());
    engine.look(&work);
    assert_eq!(work.len(), 0, "gates were not listed");
    engine.gate_event(Ok(Event::InitDone), &mut BTreeMap::new());
    engine.look(&work);
    assert_eq!(work.len(), 0, "they were listed, and not made yet");
    engine.state.change_compat(|compat| compat.awaited = true);
    engine.refresh_gates().await;
    engine.look(&work);
    assert_eq!(work.len(), 0, "one may come from the command line");
    engine.state.change_compat(|compat| compat.awaited = false);
    engine.refresh_gates().await;
    engine.look(&work);
    assert_eq!(work.len(), 1, "there is none: what it left goes");
}

/// An API server that has Nodes: what is asked of it is noted, and refused where that is asked for.
#[derive(Default)]
struct Server {
    nodes: BTreeMap<String, Value>,
    /// Method, path and body.
    requests: Vec<(String, String, Value)>,
    /// Requests of this method and beginning of a path are answered so: code, and whether that is all that is left of it.
    refuses: Option<(&'static str, &'static str, u16)>,
    /// The operator dies at the patch of a Node with this number, before it has an effect or after.
    dies_at: Option<(usize, bool)>,
    died: bool,
    /// Pods, as lists show them.
    pods: Vec<Value>,
    /// What else there is, by path of the list.
    lists: BTreeMap<&'static str, Vec<Value>>,
    /// Told when it has forgotten what a watch of pods begins with.
    forgets: Arc<tokio::sync::Notify>,
}

/// To the API server a missing member equals null.
fn test_holds(object: &Value, operation: &Value) -> bool {
    let path = operation["path"].as_str().unwrap();
    operation["op"] != "test" || *object.pointer(path).unwrap_or(&Value::Null) == operation["value"]
}

impl Server {
    fn answer(&mut self, method: &str, path: &str, body: Value) -> (u16, Value) {
        self.requests.push((method.to_owned(), path.to_owned(), body.clone()));
        if let Some((_, _, code)) = self.refuses.filter(|(refused, beginning, _)| *refused == method && path.starts_with(beginning)) {
            return (code, json!({"kind": "Status", "status": "Failure", "message": "no", "reason": "No", "code": code}));
        }
        let Some(node) = path.strip_prefix("/api/v1/nodes/").and_then(|name| self.nodes.get(name)) else {
            return match (method, path) {
                ("GET", path) if self.lists.contains_key(path) => {
                    (200, json!({"metadata": {"resourceVersion": "1"}, "items": self.lists[path]}))
                }
                ("GET", "/api/v1/pods") => (200, json!({"metadata": {}, "items": []})),
                ("GET", "/api/v1/namespaces/ops/pods") => (200, json!({"metadata": {"resourceVersion": "1"}, "items": self.pods})),
                ("GET", _) => (404, json!({"kind": "Status", "status": "Failure", "message": "none", "reason": "NotFound", "code": 404})),
                _ if body["status"].is_object() || body["metadata"]["finalizers"].is_array() => {
                    (200, json!({"metadata": {"name": "edge"}, "spec": gate().spec}))
                }
                _ => (200, body),
            };
        };
        let message = "the server rejected our request due to an error in our request";
        let failure = |code| (code, json!({"kind": "Status", "status": "Failure", "message": message, "reason": "No", "code": code}));
        let mut after = node.clone();
        for operation in body.as_array().into_iter().flatten() {
            if !test_holds(&after, operation) {
                return failure(422);
            }
            if operation["op"] != "test" {
                let operation: json_patch::Patch = serde_json::from_value(json!([operation])).unwrap();
                json_patch::patch(&mut after, &operation).unwrap();
            }
        }
        let death = self.dies_at.filter(|(number, _)| method == "PATCH" && self.patches_of_nodes().len() == *number);
        if death.is_none_or(|(_, too_late)| too_late) {
            self.nodes.insert(path.rsplit('/').next().unwrap().to_owned(), after.clone());
        }
        if death.is_some() {
            (self.dies_at, self.died) = (None, true);
            return failure(500);
        }
        (200, after)
    }

    fn patches_of_nodes(&self) -> Vec<&Value> {
        self.requests
            .iter()
            .filter(|(method, path, _)| method == "PATCH" && path.starts_with("/api/v1/nodes/"))
            .map(|request| &request.2)
            .collect()
    }

    fn asked(&self, method: &str, beginning: &str) -> usize {
        self.requests.iter().filter(|(asked, path, _)| asked == method && path.starts_with(beginning)).count()
    }
}

fn serve(server: &Arc<Mutex<Server>>) -> Client {
    let (service, mut handle) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
    let server = Arc::clone(server);
    tokio::spawn(async move {
        while let Some((request, reply)) = handle.next_request().await {
            let (parts, body) = request.into_parts();
            if parts.uri.query().is_some_and(|query| query.contains("watch=true")) {
                let forgets = Arc::clone(&server.lock().unwrap().forgets);
                tokio::spawn(async move {
                    forgets.notified().await;
                    let gone =
                        json!({"type": "ERROR", "object": {"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410}});
                    reply.send_response(http::Response::new(Body::from(format!("{gone}\n").into_bytes())));
                });
                continue;
            }
            let body = body.collect_bytes().await.unwrap();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let (code, answer) = server.lock().unwrap().answer(parts.method.as_str(), parts.uri.path(), body);
            reply.send_response(http::Response::builder().status(code).body(Body::from(answer.to_string().into_bytes())).unwrap());
        }
    });
    Client::new(service, "default")
}

/// A gate that waits for the condition Warm.
fn gate() -> NodeReadinessGate {
    let spec = json!({"allNodes": true, "taint": {"key": "edge"}, "requirements": [{"name": "warm", "condition": {"type": "Warm"}}]});
    let metadata =
        json!({"name": "edge", "uid": "g1", "generation": 1, "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"});
    serde_json::from_value(json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "NodeReadinessGate", "metadata": metadata, "spec": spec,
    }))
    .unwrap()
}

/// A Node that has just come.
fn fresh(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "uid": format!("u-{name}"), "creationTimestamp": "2026-01-02T00:00:00Z", "annotations": {"a": "b"}},
        "spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]},
    })
}

/// An engine that knows the gate, and these nodes alone.
async fn with_nodes(server: &Arc<Mutex<Server>>, names: &[String]) -> Engine {
    server.lock().unwrap().nodes = names.iter().map(|name| (name.clone(), fresh(name))).collect();
    started(server, gate()).await
}

/// An engine that knows this gate, all Nodes as they are now, and nothing that another one has remembered.
async fn started(server: &Arc<Mutex<Server>>, gate: NodeReadinessGate) -> Engine {
    let observer = observer();
    let nodes = server.lock().unwrap().nodes.values().cloned().map(|node| serde_json::from_value(node).unwrap()).collect();
    observer.take::<Node>(nodes);
    let mut engine = engine(serve(server), observer);
    engine.known.objects.insert("edge".into(), gate);
    engine.listed = true;
    engine.refresh_gates().await;
    engine
}

/// The gate of mode Continuous, with these further fields; it waits for nothing before it taints.
fn continuous(more: &Value) -> NodeReadinessGate {
    let mut spec = json!({
        "allNodes": true, "mode": "Continuous", "taint": {"key": "edge"},
        "requirements": [{"name": "warm", "condition": {"type": "Warm"}}], "retaint": {"failingFor": "0s"},
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    NodeReadinessGate { spec: serde_json::from_value(spec).unwrap(), ..gate() }
}

/// The Node with this name says so of Warm from now on, as the watch shows.
fn say(engine: &Engine, server: &Mutex<Server>, name: &str, status: &str) {
    let mut asked = server.lock().unwrap();
    let node = asked.nodes.get_mut(name).unwrap();
    node["status"] = json!({"conditions": [{"type": "Warm", "status": status}]});
    engine.observer.learn(serde_json::from_value(node.clone()).unwrap());
}

/// Nodes with the taint of the gate.
fn tainted(server: &Mutex<Server>) -> BTreeSet<String> {
    let has = |node: &Value| node["spec"]["taints"].as_array().is_some_and(|taints| taints.iter().any(|taint| taint["key"] == "edge"));
    server.lock().unwrap().nodes.iter().filter(|(_, node)| has(node)).map(|(name, _)| name.clone()).collect()
}

mod budget;
mod interruptions;
mod life;
mod revisions;

/// Looks at every node until there is nothing more to write.
async fn settle(engine: &mut Engine) {
    let mut work = Work::new();
    loop {
        engine.look(&work);
        match work.next().await {
            Some(ended) => engine.ended(ended),
            None => return,
        }
    }
}

/// Lets tasks that send events go on until each has sent what it has: they run on this thread, and the mock answers at once.
async fn events_are_sent() {
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
}

/// Writes the statuses of gates, until each is written or refused.
async fn report(engine: &mut Engine) {
    let mut writing = Writing::new();
    engine.report(&writing);
    while let Some(writes) = writing.next().await {
        engine.written(writes);
    }
}

/// Each node was written to once in each round so far, its status says so, and every node gets warm.
fn check(engine: &Engine, server: &Mutex<Server>, round: usize, held: bool) {
    let mut asked = server.lock().unwrap();
    let patches = asked.patches_of_nodes();
    assert_eq!(patches.len(), round * 5_000);
    let touches = |patch: &Value, path: &str| {
        patch.as_array().unwrap().iter().any(|step| step["op"] != "test" && step["path"].as_str().unwrap().starts_with(path))
    };
    assert!(patches.iter().all(|patch| touches(patch, "/spec/taints") && touches(patch, "/metadata/annotations")));
    assert_eq!(asked.asked("GET", "/api/v1/nodes"), 0, "nothing is read that the watch shows");
    let (_, _, status) = asked.requests.iter().rfind(|(_, path, _)| path.ends_with("/nodereadinessgates/edge/status")).unwrap();
    assert!(status.to_string().len() < 4_096, "{status}");
    assert_eq!(status["status"]["nodes"]["held"], if held { 5_000 } else { 0 });
    for node in asked.nodes.values_mut() {
        let tainted = node["spec"]["taints"].as_array().unwrap().iter().any(|taint| taint["key"] == "edge");
        assert_eq!(tainted, held);
        node["status"] = json!({"conditions": [{"type": "Warm", "status": "True"}]});
        engine.observer.learn(serde_json::from_value(node.clone()).unwrap());
    }
}

#[tokio::test]
async fn five_thousand_nodes_cost_one_request_each_way() {
    let server = Arc::new(Mutex::new(Server::default()));
    let names: Vec<_> = (0..5_000).map(|index| format!("ip-10-0-{index}.eu-central-1.compute.internal")).collect();
    let mut engine = with_nodes(&server, &names).await;
    for (round, held) in [(1, true), (2, false)] {
        settle(&mut engine).await;
        engine.status_due = true;
        report(&mut engine).await;
        check(&engine, &server, round, held);
        let changes = engine.state.changes().await;
        engine.note(changes).await;
    }
}

#[test]
fn the_guide_states_how_many_nodes_are_written_concurrently() {
    let guide = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/node-readiness-migration.md")).unwrap();
    let guide = guide.split_whitespace().collect::<Vec<_>>().join(" ");
    let says = format!("one write a node, {PARALLEL} at once");
    assert!(guide.contains(&says), "{says}");
}

#[tokio::test]
async fn a_stale_patch_is_counted_and_answered_with_newest_object() {
    let server = Arc::new(Mutex::new(Server::default()));
    server.lock().unwrap().nodes.insert("n1".into(), fresh("n1"));
    let (client, metrics) = (serve(&server), GateMetrics::registered(&mut Registry::default()));
    let counted = |reason| metrics.refused.get_or_create(&crate::metrics::node_gates::Refused { reason }).get();
    let patch = json!([{"op": "test", "path": "/metadata/uid", "value": "another"}]);
    // 422: a test in the patch failed, or the taint is there already; 409: the object moved on.
    for (times, code) in [(1, 422), (2, 409)] {
        server.lock().unwrap().refuses = Some(("PATCH", "/api/v1/nodes", code));
        let PatchOutcome::Stale(now, _) = act::patch(&client, &metrics, "n1", &patch).await else { panic!("{code}") };
        assert_eq!(now.metadata.uid.as_deref(), Some("u-n1"), "read live");
        assert_eq!((counted("test"), counted("forbidden"), counted("other")), (times, 0, 0));
    }
    server.lock().unwrap().nodes.clear();
    assert!(matches!(act::patch(&client, &metrics, "n1", &patch).await, PatchOutcome::Gone));
    server.lock().unwrap().refuses = Some(("PATCH", "/api/v1/nodes", 403));
    assert!(matches!(act::patch(&client, &metrics, "n1", &patch).await, PatchOutcome::Forbidden(_)));
    server.lock().unwrap().refuses = Some(("PATCH", "/api/v1/nodes", 500));
    assert!(matches!(act::patch(&client, &metrics, "n1", &patch).await, PatchOutcome::Failed(..)));
    assert_eq!((counted("test"), counted("forbidden"), counted("other")), (3, 1, 1));
    assert_eq!(server.lock().unwrap().asked("GET", "/api/v1/nodes/n1"), 3, "not after what a look would not change");
}

#[tokio::test]
async fn a_node_changed_during_its_patch_waits_for_the_answer() {
    let server = Arc::new(Mutex::new(Server::default()));
    let mut engine = with_nodes(&server, &["n1".to_owned()]).await;
    let mut work = Work::new();
    engine.look(&work);
    assert_eq!(work.len(), 1);
    say(&engine, &server, "n1", "True");
    engine.urgent.insert("n1".into());
    engine.look(&work);
    assert_eq!(work.len(), 1, "a second one would be made from the same view");
    let patched = work.next().await.unwrap();
    engine.ended(patched);
    engine.look(&work);
    assert_eq!(work.len(), 1, "it is not forgotten");
}

#[tokio::test]
async fn a_successful_patch_ends_a_row_of_failures() {
    let server = Arc::new(Mutex::new(Server::default()));
    let mut engine = with_nodes(&server, &["n1".to_owned()]).await;
    server.lock().unwrap().refuses = Some(("PATCH", "/api/v1/nodes", 403));
    settle(&mut engine).await;
    server.lock().unwrap().refuses = None;
    engine.failures.get_mut("n1").unwrap().until = Instant::now();
    engine.urgent.insert("n1".into());
    let mut work = Work::new();
    engine.look(&work);
    let patched = work.next().await.unwrap();
    engine.ended(patched);
    assert!(engine.failures.is_empty());
}

#[tokio::test]
async fn a_node_with_failed_patch_waits_despite_new_observations() {
    let server = Arc::new(Mutex::new(Server::default()));
    let mut engine = with_nodes(&server, &["n1".to_owned()]).await;
    server.lock().unwrap().refuses = Some(("PATCH", "/api/v1/nodes", 403));
    settle(&mut engine).await;
    server.lock().unwrap().refuses = None;
    engine.timers.clear();
    engine.urgent.insert("n1".into());
    settle(&mut engine).await;
    assert_eq!(server.lock().unwrap().patches_of_nodes().len(), 1);
    assert!(engine.timers.contains_key("n1"), "the tick looks again");
    engine.failures.get_mut("n1").unwrap().until = Instant::now();
    engine.tick(&mut Writing::new()).await;
    settle(&mut engine).await;
    assert_eq!(server.lock().unwrap().patches_of_nodes().len(), 2);
}

#[tokio::test]
async fn a_node_is_rechecked_when_its_release_is_to_end() {
    let server = Arc::new(Mutex::new(Server::default()));
    server.lock().unwrap().nodes.insert("n1".into(), fresh("n1"));
    let mut engine = started(&server, continuous(&json!({"retaint": {"failingFor": "1h"}}))).await;
    say(&engine, &server, "n1", "True");
    settle(&mut engine).await;
    assert!(engine.timers.is_empty());
    let before = chrono::Utc::now().timestamp();
    say(&engine, &server, "n1", "False");
    engine.sweep();
    settle(&mut engine).await;
    assert!(tainted(&server).is_empty());
    assert!(engine.timers.get("n1").is_some_and(|at| *at >= before + 3_600), "{:?}", engine.timers);
}

#[tokio::test]
async fn a_refused_status_is_retried_and_an_equal_one_skipped() {
    let server = Arc::new(Mutex::new(Server::default()));
    let mut engine = with_nodes(&server, &["n1".to_owned()]).await;
    settle(&mut engine).await;
    let asked =
        || server.lock().unwrap().asked("PATCH", "/apis/ingressdaemonsets.mumoshu.github.io/v1alpha1/nodereadinessgates/edge/status");
    server.lock().unwrap().refuses = Some(("PATCH", "/apis/ingressdaemonsets.mumoshu.github.io", 500));
    report(&mut engine).await;
    assert!(engine.status_due && asked() == 1);
    server.lock().unwrap().refuses = None;
    report(&mut engine).await;
    assert!(!engine.status_due && asked() == 2);
    // As the watch shows it then.
    let written = engine.reported.get("g1").cloned();
    engine.known.objects.get_mut("edge").unwrap().status = written;
    engine.status_due = true;
    report(&mut engine).await;
    assert_eq!(asked(), 2, "it says the same");
}

#[tokio::test]
async fn nodes_do_not_wait_for_a_slow_status_write() {
    let server = Arc::new(Mutex::new(Server::default()));
    let mut engine = with_nodes(&server, &["n1".to_owned()]).await;
    settle(&mut engine).await;
    let mut writing = Writing::new();
    engine.report(&writing);
    assert_eq!(writing.len(), 1);
    server.lock().unwrap().nodes.insert("n2".into(), fresh("n2"));
    engine.observer.learn(serde_json::from_value(fresh("n2")).unwrap());
    let changes = engine.state.changes().await;
    engine.note(changes).await;
    settle(&mut engine).await;
    assert_eq!(server.lock().unwrap().patches_of_nodes().len(), 2);
    engine.report(&writing);
    assert!(writing.len() == 1 && engine.status_due);
    while let Some(writes) = writing.next().await {
        engine.written(writes);
    }
    assert_eq!(engine.reported["g1"].nodes.held, 1, "what was known when it began");
    report(&mut engine).await;
    assert_eq!(engine.reported["g1"].nodes.held, 2);
}

#[tokio::test]
async fn all_nodes_are_rechecked_only_when_a_gate_changes() {
    let server = Arc::new(Mutex::new(Server::default()));
    let mut engine = with_nodes(&server, &["n1".to_owned()]).await;
    settle(&mut engine).await;
    let mut other = gate();
    other.metadata.annotations = Some([("example.com/seen".to_owned(), "yes".to_owned())].into());
    for (now, swept) in [
        (gate(), 0),
        (other, 0),
        (
            NodeReadinessGate {
                spec: crds::NodeReadinessGateSpec { policy: crds::node_readiness_gate::Policy::AnyOf, ..gate().spec },
                ..gate()
            },
            1,
        ),
    ] {
        engine.gate_event(Ok(Event::Apply(DeserializeGuard(Ok(now)))), &mut BTreeMap::new());
        engine.refresh_gates().await;
        assert_eq!(engine.swept.len(), swept);
    }
    let changed: Vec<_> = engine.state.world().gates.values().map(|gate| gate.spec.policy).collect();
    assert_eq!(changed, [crds::node_readiness_gate::Policy::AnyOf]);
    engine.gate_event(Ok(Event::Delete(DeserializeGuard(Ok(gate())))), &mut BTreeMap::new());
    engine.refresh_gates().await;
    assert!(engine.state.world().gates.is_empty() && engine.swept.len() == 1);
}

#[tokio::test]
async fn a_node_that_is_gone_is_counted_no_more() {
    let server = Arc::new(Mutex::new(Server::default()));
    let mut engine = with_nodes(&server, &["n1".to_owned(), "n2".to_owned()]).await;
    settle(&mut engine).await;
    assert_eq!(engine.views.len(), 2);
    engine.observer.take::<Node>(vec![serde_json::from_value(server.lock().unwrap().nodes["n1"].clone()).unwrap()]);
    engine.urgent.insert("n2".into());
    engine.status_due = false;
    settle(&mut engine).await;
    assert!(engine.views.keys().eq(["n1"]) && engine.status_due);
}

fn condition(server: &Mutex<Server>, type_: &str) -> (String, String, Value) {
    let asked = server.lock().unwrap();
    let (_, _, body) = asked.requests.iter().rfind(|(_, path, _)| path.ends_with("/nodereadinessgates/edge/status")).unwrap();
    let conditions = body["status"]["conditions"].as_array().unwrap();
    let found = conditions.iter().find(|condition| condition["type"] == type_).unwrap();
    (found["status"].as_str().unwrap().to_owned(), found["reason"].as_str().unwrap().to_owned(), body["status"].clone())
}

#[tokio::test]
async fn a_missing_right_is_reported_in_status_until_it_exists() {
    let server = Arc::new(Mutex::new(Server::default()));
    let mut engine = with_nodes(&server, &["n1".to_owned(), "n2".to_owned()]).await;
    server.lock().unwrap().refuses = Some(("PATCH", "/api/v1/nodes", 403));
    settle(&mut engine).await;
    report(&mut engine).await;
    let (ready, reason, status) = condition(&server, "Ready");
    assert_eq!((ready.as_str(), reason.as_str()), ("False", "PatchForbidden"));
    let told = || server.lock().unwrap().asked("POST", "/apis/events.k8s.io");
    events_are_sent().await;
    assert_eq!(told(), 1, "an event tells of it");
    engine.status_due = true;
    report(&mut engine).await;
    events_are_sent().await;
    assert_eq!(told(), 1, "once");
    assert_eq!((&status["nodes"]["matched"], &status["nodes"]["held"]), (&json!(2), &json!(0)), "{status}");
    server.lock().unwrap().refuses = None;
    engine.failures.clear();
    engine.sweep();
    settle(&mut engine).await;
    report(&mut engine).await;
    let (ready, reason, status) = condition(&server, "Ready");
    assert_eq!((ready.as_str(), reason.as_str()), ("True", "NodesHeld"));
    assert_eq!(status["nodes"]["held"], 2);
}

#[tokio::test]
async fn a_taint_claimed_only_by_annotation_stays_with_an_event() {
    let server = Arc::new(Mutex::new(Server::default()));
    let mut engine = with_nodes(&server, &["n1".to_owned()]).await;
    settle(&mut engine).await;
    {
        let mut server = server.lock().unwrap();
        let node = server.nodes.get_mut("n1").unwrap();
        let record = json!({"g": "gone", "k": "quarantine", "e": "NoExecute", "s": "held", "o": "applied", "c": "fresh", "t": 1});
        node["metadata"]["annotations"][annotation_key("gone")] = record.to_string().into();
        node["spec"]["taints"].as_array_mut().unwrap().push(json!({"key": "quarantine", "effect": "NoExecute"}));
        engine.observer.learn(serde_json::from_value(node.clone()).unwrap());
    }
    let told = |(method, path, body): &&(String, String, Value)| {
        method == "POST" && path.starts_with("/apis/events.k8s.io") && body["reason"] == "TaintOfUnknownGate"
    };
    let is_recorded = || server.lock().unwrap().nodes["n1"]["metadata"]["annotations"].get(annotation_key("gone")).is_some();
    for _ in 0..3 {
        engine.sweep();
        settle(&mut engine).await;
        events_are_sent().await;
        let server = server.lock().unwrap();
        let node = &server.nodes["n1"];
        assert!(node["spec"]["taints"].as_array().unwrap().iter().any(|taint| taint["key"] == "quarantine"), "{node}");
        assert_eq!(server.requests.iter().filter(told).count(), 1, "once");
    }
    assert!(is_recorded(), "whoever cleans up finds the taint by it");
    {
        let mut server = server.lock().unwrap();
        let node = server.nodes.get_mut("n1").unwrap();
        node["spec"]["taints"].as_array_mut().unwrap().retain(|taint| taint["key"] != "quarantine");
        engine.observer.learn(serde_json::from_value(node.clone()).unwrap());
    }
    engine.sweep();
    settle(&mut engine).await;
    assert!(!is_recorded());
}

#[tokio::test]
async fn an_event_counts_intolerant_pods_that_preceded_the_taint() {
    let pod = |name: &str, owner: &str, tolerations: Value| {
        let owner = json!({"apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "o"});
        json!({"metadata": {"name": name, "ownerReferences": [owner]}, "spec": {"containers": [], "tolerations": tolerations}})
    };
    let bears = json!([{"key": "edge", "operator": "Exists"}]);
    let pods = vec![pod("early", "ReplicaSet", json!([])), pod("bears", "ReplicaSet", bears), pod("own", "DaemonSet", json!([]))];
    // Its kubelet has called n1 ready before anybody looked. To n2 no pod can have come yet.
    let mut ready = fresh("n1");
    ready["spec"] = json!({});
    let nodes = [("n1".to_owned(), ready), ("n2".to_owned(), fresh("n2"))].into();
    let server = Arc::new(Mutex::new(Server { nodes, lists: [("/api/v1/pods", pods)].into(), ..Server::default() }));
    let mut engine = started(&server, gate()).await;
    settle(&mut engine).await;
    assert_eq!(tainted(&server).len(), 2);
    events_are_sent().await;
    let asked = server.lock().unwrap();
    let told: Vec<_> = asked
        .requests
        .iter()
        .filter(|(method, path, body)| method == "POST" && path.starts_with("/apis/events.k8s.io") && body["reason"] == "TaintedLate")
        .map(|(.., event)| (&event["regarding"]["name"], &event["type"], event["note"].as_str().unwrap_or_default()))
        .collect();
    let words =
        "gate edge: edge:NoSchedule added late: 1 pods that do not tolerate it came first; see condition AdmissionActive of the gate";
    assert_eq!(told, [(&json!("n1"), &json!("Warning"), words)]);
    let counted = engine.metrics.late_pods.get_or_create(&crate::metrics::node_gates::OfGate { gate: "edge".into() }).get();
    assert_eq!(counted, 1);
}

/// An `IngressDaemonSet` whose template has this beside a container.
fn resource(more: &Value, status: &Value) -> GuardedResource {
    let mut pod = json!({"containers": [{"name": "c", "image": "i"}]});
    pod.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": pod});
    let resource = json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet",
        "metadata": {"name": "web", "namespace": "edge", "uid": "u", "resourceVersion": "7", "generation": 1},
        "spec": {"template": template}, "status": status,
    });
    serde_json::from_value(resource).unwrap()
}

/// Passes wait for the gates, and would look again after a second.
#[tokio::test(start_paused = true)]
async fn all_resources_are_rechecked_as_soon_as_gates_are_known() {
    let (service, _server) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
    let observer = observer();
    observer.take(vec![resource(&json!({}), &Value::Null)]);
    let mut engine = engine(Client::new(service, "default"), Arc::clone(&observer));
    let mut marked = observer.requeue().stream().boxed();
    for is_first in [true, false] {
        engine.gate_event(Ok(Event::InitDone), &mut BTreeMap::new());
        engine.refresh_gates().await;
        let next = tokio::time::timeout(Duration::from_millis(500), marked.next()).await;
        assert_eq!(next.ok().flatten().map(|resource| resource.name), is_first.then(|| "web".to_owned()));
    }
}

/// The gate, that waits for the replicas of that resource and gives them no toleration.
fn of_replicas() -> NodeReadinessGate {
    let spec = json!({
        "allNodes": true, "taint": {"key": "edge"}, "tolerations": {"inject": "None"},
        "requirements": [{"name": "replicas", "ingressDaemonSet": {"namespace": "edge", "name": "web"}}],
    });
    NodeReadinessGate { spec: serde_json::from_value(spec).unwrap(), ..gate() }
}

#[tokio::test]
async fn an_oversized_template_is_not_reported_as_lacking_a_toleration() {
    let bears = json!([{"key": "edge", "operator": "Exists"}]);
    let large = json!([{"name": "x", "configMap": {"name": "x".repeat(planner::facts::SPEC_BYTES)}}]);
    for (more, wanted) in
        [(json!({}), Some("NotTolerated")), (json!({"tolerations": bears}), None), (json!({"tolerations": bears, "volumes": large}), None)]
    {
        let server = Arc::new(Mutex::new(Server::default()));
        let mut engine = started(&server, of_replicas()).await;
        engine.observer.take(vec![resource(&more, &Value::Null)]);
        engine.refresh_gates().await;
        engine.look(&Work::new());
        assert_eq!(engine.unsatisfiable.get("g1").map(|(reason, _)| *reason), wanted);
    }
}

#[tokio::test]
async fn a_gate_reports_an_invalid_spec_of_its_awaited_resource() {
    let status = |valid: &str| json!({"conditions": [{"type": "Valid", "status": valid, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    let server = Arc::new(Mutex::new(Server::default()));
    let mut engine = started(&server, of_replicas()).await;
    for (valid, ready) in [("True", "True"), ("False", "False"), ("True", "True")] {
        engine.observer.take(vec![resource(&json!({"tolerations": [{"operator": "Exists"}]}), &status(valid))]);
        engine.refresh_gates().await;
        settle(&mut engine).await;
        report(&mut engine).await;
        let (said, reason, whole) = condition(&server, "Ready");
        let is_named = whole.to_string().contains("the spec of IngressDaemonSet edge/web is not valid");
        assert_eq!((said.as_str(), reason == "SourceUnavailable", is_named), (ready, ready == "False", ready == "False"), "{whole}");
    }
}
