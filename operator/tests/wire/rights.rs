//! Each rule of the operator's `ClusterRole` is taken away in its turn, by an API server that grants what `deploy/10-rbac.yaml` says
//! without it. What only a rollout asks for is refused to single actions; whole rollouts without a right are scenarios
//! (`missing_rights.rs`).

use crate::{carried_out, snapshot};
use http::{Method, Request, Response, Uri};
use k8s_controller::events::{EventRecorder, Reporter};
use k8s_openapi::{api::rbac::v1::PolicyRule, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{
    Client,
    client::{Body, ClientBuilder},
    runtime::reflector::store,
};
use operator::{
    gates_shared::GateState,
    metrics::Metrics,
    node_gates, pod_gates,
    rights::NoteRefusals,
    rollout::{Memory, ask_rights},
    watch::{Named, Observer},
    web,
    write::Error,
};
use planner::{
    Action,
    facts::NodeFacts,
    plan::{Supporting, Write},
    reason::NodeObject,
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::CancellationToken;

/// What comes of it that the operator lacks a right to something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    /// It has not seen everything, is not ready and decides nothing.
    NotReady,
    /// It is ready, and what needs the right waits.
    Ready,
}
use Without::{NotReady, Ready};

/// What counts each request that was refused, and what the alert for it is called.
const COUNTER: &str = "ids_forbidden_requests_total";
const ALERT: &str = "OperatorLacksRight";

/// What the operator reads and writes by itself, and what comes of a refusal. `/readyz` tells of it, and it is counted; what gates say
/// of themselves is `CONDITIONS`.
const ASKED_FOR: [(&str, Without); 18] = [
    ("ingressdaemonsets.mumoshu.github.io/ingressdaemonsets", NotReady),
    ("/nodes", NotReady),
    ("apps/deployments", NotReady),
    ("apps/replicasets", NotReady),
    ("apps/controllerrevisions", NotReady),
    ("apps/daemonsets", NotReady),
    ("/pods", NotReady),
    ("/services", NotReady),
    ("ingressdaemonsets.mumoshu.github.io/nodereadinessgates", Ready),
    ("ingressdaemonsets.mumoshu.github.io/nodereadinessgates/status", Ready),
    ("ingressdaemonsets.mumoshu.github.io/podreadinessgates", Ready),
    ("ingressdaemonsets.mumoshu.github.io/podreadinessgates/status", Ready),
    ("/pods/status", Ready),
    ("discovery.k8s.io/endpointslices", Ready),
    ("admissionregistration.k8s.io/mutatingadmissionpolicies", Ready),
    ("admissionregistration.k8s.io/mutatingwebhookconfigurations", Ready),
    ("storage.k8s.io/csinodes", Ready),
    ("events.k8s.io/events", Ready),
];

/// Where a gate waits for what needs the right: of which kind, by which condition it says so, for which reason, and a part of the message.
const CONDITIONS: [(&str, [&str; 4]); 3] = [
    ("discovery.k8s.io/endpointslices", ["podreadinessgates", "Ready", "SourceUnreadable", "endpointslices is forbidden"]),
    ("storage.k8s.io/csinodes", ["nodereadinessgates", "Ready", "SourceUnavailable", "csinodes is forbidden"]),
    (
        "admissionregistration.k8s.io/mutatingadmissionpolicies",
        ["nodereadinessgates", "AdmissionActive", "Reactive", "or the operator may not list or use them"],
    ),
];

/// What single actions ask for: verb and resource, and whether a node is held for it, whose state and condition say why.
fn actions() -> Vec<(&'static str, &'static str, bool, Action)> {
    let name = || "x".to_owned();
    let apply = |object| Action::Apply { object, body: Box::new(json!({ "apiVersion": "v1", "kind": "X", "metadata": { "name": "x" } })) };
    let delete = |object| Action::Delete { object, uid: None };
    let status = Action::WriteStatus { status: Box::default(), urgent: true, live_absent: vec![], reserve: vec![], granted: vec![] };
    let create =
        || Action::CreateDeployment { node: "a".into(), id: 5, name: name(), body: Box::new(json!({ "metadata": { "name": "x" } })) };
    let patch = || json!([{ "op": "test", "path": "/metadata/uid", "value": "u" }]);
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "x" } });
    vec![
        ("patch", "ingressdaemonsets.mumoshu.github.io/ingressdaemonsets/status", false, status),
        ("patch", "ingressdaemonsets.mumoshu.github.io/ingressdaemonsets", false, Action::SetFinalizers(vec![])),
        ("update", "ingressdaemonsets.mumoshu.github.io/ingressdaemonsets/finalizers", true, create()),
        ("create", "apps/deployments", true, create()),
        (
            "patch",
            "apps/deployments",
            true,
            Action::PatchDeployment { node: "a".into(), name: name(), patch: patch(), write: Write::Update },
        ),
        (
            "delete",
            "apps/deployments",
            true,
            Action::DeleteDeployment { node: "a".into(), name: name(), uid: "u".into(), resource_version: "1".into() },
        ),
        ("get", "apps/deployments", true, Action::Reclaim { node: "a".into(), name: name(), identity: json!([]) }),
        ("patch", "/nodes", true, Action::PatchNode { node: "a".into(), patch: patch(), write: Write::Clean, live_absent: None }),
        (
            "create",
            "apps/controllerrevisions",
            false,
            Action::RecordRevision { name: name(), body: Box::new(json!({ "metadata": { "name": "x" } })) },
        ),
        ("patch", "apps/controllerrevisions", false, Action::RenumberRevision { name: name(), patch: patch() }),
        ("delete", "apps/controllerrevisions", false, delete(Supporting::ControllerRevision(name()))),
        ("patch", "apps/daemonsets", false, apply(Supporting::DaemonSet(name()))),
        ("delete", "apps/daemonsets", false, delete(Supporting::DaemonSet(name()))),
        ("patch", "/serviceaccounts", false, apply(Supporting::ServiceAccount(name()))),
        ("create", "/secrets", false, apply(Supporting::Secret(name()))),
        ("patch", "rbac.authorization.k8s.io/rolebindings", false, apply(Supporting::RoleBinding(name()))),
        ("patch", "rbac.authorization.k8s.io/clusterrolebindings", false, apply(Supporting::ClusterRoleBinding(name()))),
        ("delete", "rbac.authorization.k8s.io/clusterrolebindings", false, delete(Supporting::ClusterRoleBinding(name()))),
        ("delete", "/pods", false, Action::DeletePod { name: name(), uid: None, resource_version: None }),
        ("create", "/pods", true, Action::CreatePod { node: "a".into(), name: name(), body: Box::new(pod) }),
        ("patch", "/pods", true, Action::PatchPod { node: "a".into(), name: name(), patch: patch() }),
        ("patch", "/pods/status", true, Action::PatchPodStatus { node: "a".into(), name: name(), patch: json!({ "status": {} }) }),
        ("patch", "apps/replicasets", true, Action::PatchReplicaSet { node: "a".into(), name: name(), patch: patch() }),
    ]
}

/// The rules of the operator's `ClusterRole`.
fn rules() -> Vec<PolicyRule> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/10-rbac.yaml");
    let objects: Vec<Value> = serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap();
    let role = |object: &&Value| object["kind"] == "ClusterRole" && object["metadata"]["name"] == "ingress-daemonset-operator";
    serde_json::from_value(objects.iter().find(role).unwrap()["rules"].clone()).unwrap()
}

/// `group/resource` of each resource of a rule.
fn keys(rule: &PolicyRule) -> impl Iterator<Item = String> {
    let groups = rule.api_groups.iter().flatten();
    groups.flat_map(|group| rule.resources.iter().flatten().map(move |resource| format!("{group}/{resource}")))
}

/// What a request asks for: verb, `group/resource`, and the name.
fn asked(method: &Method, uri: &Uri) -> (&'static str, String, Option<String>) {
    let mut parts: Vec<_> = uri.path().trim_matches('/').split('/').collect();
    let group = if parts[0] == "api" { String::new() } else { parts[1].to_owned() };
    parts.drain(..if parts[0] == "api" { 2 } else { 3 });
    assert!(!parts.is_empty(), "nobody asks what kinds there are: {uri}");
    if parts[0] == "namespaces" && parts.len() > 2 {
        parts.drain(..2);
    }
    let name = parts.get(1).map(|name| (*name).to_owned());
    let resource = parts.get(2).map_or_else(|| parts[0].to_owned(), |part| format!("{}/{part}", parts[0]));
    let verb = match (method.as_str(), uri.query()) {
        ("GET", _) if name.is_some() => "get",
        ("GET", Some(query)) if query.contains("watch=true") => "watch",
        ("GET", _) => "list",
        ("POST", _) => "create",
        ("PATCH", _) => "patch",
        ("DELETE", _) => "delete",
        (other, _) => unreachable!("{other}"),
    };
    (verb, format!("{group}/{resource}"), name)
}

/// An API server with one node, a gate for it, a pod and a gate for that.
struct Server {
    rules: Vec<PolicyRule>,
    /// Without the right to set finalizers, no owner may block deletion.
    sets_finalizers: bool,
    done: Mutex<BTreeSet<(&'static str, String)>>,
    /// Conditions that were written last, by what they were written to.
    said: Mutex<BTreeMap<String, Vec<Condition>>>,
}

impl Server {
    fn without(key: &str, verb: Option<&str>) -> Arc<Self> {
        let mut rules = rules();
        for rule in &mut rules {
            if keys(rule).any(|one| one == key) {
                match verb {
                    Some(verb) => rule.verbs.retain(|one| one != verb),
                    None => rule.verbs.clear(),
                }
            }
        }
        Arc::new(Self { rules, sets_finalizers: !key.ends_with("/finalizers"), done: Mutex::default(), said: Mutex::default() })
    }

    fn grants(&self, verb: &str, key: &str, name: Option<&str>) -> bool {
        let names = |rule: &PolicyRule| {
            rule.resource_names.as_ref().is_none_or(|names| name.is_some_and(|name| names.iter().any(|one| one == name)))
        };
        self.rules.iter().any(|rule| rule.verbs.iter().any(|one| one == verb) && keys(rule).any(|one| one == key) && names(rule))
    }

    /// A gate of this kind says so of itself.
    fn says(&self, [plural, type_, reason, part]: &[&str; 4]) -> bool {
        let said = self.said.lock().unwrap();
        said.get(&format!("{}/{plural}/status", crds::names::GROUP)).into_iter().flatten().any(|condition| {
            condition.type_ == *type_ && condition.status == "False" && condition.reason == *reason && condition.message.contains(part)
        })
    }

    async fn answer(&self, request: Request<Body>) -> (u16, Value) {
        let (verb, key, name) = asked(request.method(), request.uri());
        let (group, resource) = key.split_once('/').unwrap();
        let refusal = |code: u16, reason: &str, message: String| {
            (code, json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message }))
        };
        let user = "system:serviceaccount:ingress-daemonset-system:ingress-daemonset-operator";
        if !self.grants(verb, &key, name.as_deref()) {
            let said = format!(
                "{resource} is forbidden: User \"{user}\" cannot {verb} resource \"{resource}\" in API group \"{group}\" at the cluster scope"
            );
            return refusal(403, "Forbidden", said);
        }
        if !self.sets_finalizers && verb == "create" {
            let said = "x is forbidden: cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: , <nil>";
            return refusal(403, "Forbidden", said.to_owned());
        }
        self.done.lock().unwrap().insert((verb, key.clone()));
        let streams = request.uri().query().is_some_and(|query| query.contains("sendInitialEvents"));
        match verb {
            "watch" if streams => refusal(422, "Invalid", "sendInitialEvents is forbidden".into()),
            "watch" => std::future::pending().await,
            "list" => (200, json!({ "metadata": { "resourceVersion": "1" }, "items": objects(&key) })),
            "get" => refusal(404, "NotFound", "there is none".into()),
            "delete" => (200, json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" })),
            "create" => {
                let mut object: Value = serde_json::from_slice(&request.into_body().collect_bytes().await.unwrap()).unwrap();
                object["metadata"]["resourceVersion"] = "2".into();
                (201, object)
            }
            _ => {
                let sent: Value = serde_json::from_slice(&request.into_body().collect_bytes().await.unwrap()).unwrap();
                if let Ok(conditions) = serde_json::from_value(sent["status"]["conditions"].clone()) {
                    self.said.lock().unwrap().insert(key.clone(), conditions);
                }
                let known =
                    objects(&key.replace("/status", "")).into_iter().find(|object| object["metadata"]["name"].as_str() == name.as_deref());
                let mut object = known.unwrap_or_else(|| json!({ "metadata": { "name": name } }));
                object["metadata"]["resourceVersion"] = "2".into();
                (200, object)
            }
        }
    }
}

/// What there is of a kind.
fn objects(key: &str) -> Vec<Value> {
    let meta = |name: &str, more: Value| {
        let mut meta = json!({ "name": name, "uid": format!("uid-{name}"), "resourceVersion": "1", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z" });
        meta.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        meta
    };
    let api = "ingressdaemonsets.mumoshu.github.io/v1alpha1";
    let condition = "example.com/endpoint";
    match key {
        "/nodes" => vec![json!({
            "apiVersion": "v1", "kind": "Node", "metadata": meta("n1", json!({ "creationTimestamp": "2026-01-01T00:00:10Z" })),
            "status": { "conditions": [{ "type": "Ready", "status": "False" }] },
        })],
        "ingressdaemonsets.mumoshu.github.io/nodereadinessgates" => vec![json!({
            "apiVersion": api, "kind": "NodeReadinessGate", "metadata": meta("csi", json!({ "finalizers": [crds::names::FINALIZER] })),
            "spec": {
                "allNodes": true, "taint": { "key": "readiness.k8s.io/csi" }, "existingNodes": "Gate",
                "requirements": [{ "name": "driver", "csiDriver": { "name": "csi.example.com" } }],
            },
        })],
        "ingressdaemonsets.mumoshu.github.io/podreadinessgates" => vec![json!({
            "apiVersion": api, "kind": "PodReadinessGate", "metadata": meta("endpoint", json!({ "namespace": "edge" })),
            "spec": { "conditionType": condition, "source": { "service": { "name": "web" } }, "selector": { "matchLabels": { "app": "web" } } },
        })],
        "/pods" => vec![json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": meta("web-1", json!({ "namespace": "edge", "labels": { "app": "web" } })),
            "spec": { "nodeName": "n1", "containers": [], "readinessGates": [{ "conditionType": condition }] },
            "status": { "podIP": "192.0.2.1", "conditions": [] },
        })],
        _ => vec![],
    }
}

fn client(server: &Arc<Server>, metrics: &Metrics) -> Client {
    let server = Arc::clone(server);
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&server);
        async move {
            let (code, body) = server.answer(request).await;
            let body = Body::from(serde_json::to_vec(&body).unwrap());
            Ok::<_, Infallible>(Response::builder().status(code).header("content-type", "application/json").body(body).unwrap())
        }
    });
    ClientBuilder::new(service, "default").with_layer(&NoteRefusals(Arc::clone(&metrics.rights))).build()
}

/// What an HTTP server answers, headers included.
async fn get(at: std::net::SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Watches and gates of an operator.
async fn run(server: &Arc<Server>, metrics: &Arc<Metrics>, listener: TcpListener, stop: CancellationToken) {
    let client = client(server, metrics);
    let observer = Arc::new(Observer::default());
    let state = GateState::of(&observer);
    let recorder = || EventRecorder::new(client.clone(), Reporter { controller: "test/operator".into(), instance: None });
    let gates = node_gates::EngineOptions {
        client: client.clone(),
        observer: Arc::clone(&observer),
        state: Arc::clone(&state),
        metrics: metrics.gates.clone(),
        recorder: recorder(),
        webhook: None,
        admission_policies: true,
    };
    let pod_gates = pod_gates::EngineOptions {
        client: client.clone(),
        of_named: client.clone(),
        observer: Arc::clone(&observer),
        state: Arc::clone(&state),
        metrics: metrics.pod_gates.clone(),
        recorder: recorder(),
        foreign_objects: vec![],
        webhook: None,
        admission_policies: true,
    };
    let (_resources, writer) = store::<Named>();
    let pages = web::serve(listener, Arc::clone(metrics), Arc::clone(&observer), stop.clone());
    tokio::select! {
        () = Box::pin(Arc::clone(&observer).follow(client.clone(), writer)) => {}
        () = Box::pin(node_gates::Engine::new(gates).run(stop.clone())) => {}
        () = Box::pin(pod_gates::Engine::new(pod_gates).run(stop)) => {}
        () = pages => {}
    }
}

/// How the operator names a kind: `daemonsets.apps`, `pods/status`.
fn kind(key: &str) -> String {
    let (group, resource) = key.split_once('/').unwrap();
    let (plural, part) = resource.split_at(resource.find('/').unwrap_or(resource.len()));
    if group.is_empty() { resource.to_owned() } else { format!("{plural}.{group}{part}") }
}

/// Writes of gates that the others make all the same: of a gate's status.
const WRITES: [(&str, &str); 2] = [
    ("patch", "ingressdaemonsets.mumoshu.github.io/nodereadinessgates/status"),
    ("patch", "ingressdaemonsets.mumoshu.github.io/podreadinessgates/status"),
];

/// Nothing, or what is missing.
async fn is_told(key: &str, without: Without) -> Result<(), String> {
    let (server, metrics) = (Server::without(key, None), Arc::new(Metrics::default()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let (group, resource) = key.split_once('/').unwrap();
    let counted = format!("resource=\"{resource}\",group=\"{group}\"");
    let look = async {
        loop {
            let (ready, scraped) = (get(at, "/readyz").await, get(at, "/metrics").await);
            let says = ready.lines().any(|line| {
                line.starts_with("the operator may not ") && line.contains(&format!(" {}: install the ClusterRole", kind(key)))
            });
            let counts = scraped.lines().any(|line| line.starts_with(COUNTER) && line.contains(&counted));
            let others = ready.lines().filter(|line| line.starts_with("waiting for the first list of: ")).collect::<Vec<_>>();
            let waits = match without {
                NotReady => ready.contains("503 Service Unavailable") && others == [format!("waiting for the first list of: {resource}")],
                Ready => ready.contains("200 OK") && others.is_empty(),
            };
            let goes_on = without == NotReady
                || WRITES.iter().any(|(verb, one)| *one != key && server.done.lock().unwrap().contains(&(*verb, (*one).to_owned())));
            let is_said = CONDITIONS.iter().filter(|(one, _)| *one == key).all(|(_, condition)| server.says(condition));
            if says && counts && waits && goes_on && is_said {
                break;
            }
            // Nothing tells when a request was refused.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let told = tokio::select! {
        told = tokio::time::timeout(Duration::from_mins(5), look) => told.is_ok(),
        () = Box::pin(run(&server, &metrics, listener, stop)) => unreachable!("without {key} the operator ended"),
    };
    let (missing, done, said) = (metrics.rights.missing(), server.done.lock().unwrap(), server.said.lock().unwrap());
    if told { Ok(()) } else { Err(format!("without {key}: missing {missing:?}, done {done:?}, said {said:?}")) }
}

#[tokio::test]
async fn without_a_right_the_operator_names_it_and_continues() {
    let cases = ASKED_FOR.map(|(key, without)| Box::pin(is_told(key, without)));
    let untold: Vec<_> = futures::future::join_all(cases).await.into_iter().filter_map(Result::err).collect();
    assert!(untold.is_empty(), "{}", untold.join("\n"));
}

/// What the status says of node `a` while this is refused: phase, reason and message.
fn said_of_a_node(refusals: BTreeMap<NodeObject, BTreeMap<String, String>>) -> (String, String, String) {
    let mut snapshot = snapshot();
    snapshot.resource.finalizers = vec![crds::names::FINALIZER.to_owned()];
    let node = NodeFacts { uid: "n".into(), ready: true, has_annotations: true, ..NodeFacts::default() };
    snapshot.nodes = Arc::new([("a".to_owned(), Arc::new(node))].into());
    // The ledger is made first.
    for _ in 0..2 {
        snapshot.resource.status = Some(planner::decide(&snapshot).status);
        snapshot.listed_since_rebuild = true;
    }
    snapshot.refusals = refusals;
    let states = planner::decide(&snapshot).status.node_states;
    let state = states.iter().find(|state| state.name == "a").unwrap();
    (state.phase.to_string(), state.reason.clone(), state.message.clone())
}

#[tokio::test]
async fn an_action_without_its_right_is_refused_counted_and_told() {
    for (verb, key, is_held, action) in actions() {
        let (server, metrics) = (Server::without(key, Some(verb)), Metrics::default());
        let mut memory = Memory::of("0a1b2c3d-0000");
        memory.reserved.push(5);
        let result = carried_out(&client(&server, &metrics), &metrics, &action, &mut memory).await;
        assert!(matches!(result, Err(Error::Forbidden(_))), "{verb} {key}: {result:?}");
        assert_eq!(
            metrics.rights.missing(),
            [format!("the operator may not {verb} {}: install the ClusterRole of this release again", kind(key))]
        );
        let (group, resource) = key.split_once('/').unwrap();
        let line = format!("{COUNTER}{{verb=\"{verb}\",resource=\"{resource}\",group=\"{group}\"}} 1");
        assert!(metrics.scrape().contains(&line), "{line}");
        let refusals = memory.active_refusals(1);
        assert_eq!(refusals.values().any(|nodes| nodes.contains_key("a")), is_held, "{verb} {key}");
        // A new node has no pods yet.
        if is_held && !refusals.contains_key(&NodeObject::Pods) && !refusals.contains_key(&NodeObject::PullPod) {
            let (state, reason, message) = said_of_a_node(refusals);
            assert_eq!((state.as_str(), reason.as_str()), ("Blocked", "Refused"), "{verb} {key}");
            assert!(message.contains("forbidden"), "{verb} {key}: {message}");
        }
    }
}

#[tokio::test]
async fn an_account_that_cannot_be_reviewed_counts_as_fit() {
    let key = "authorization.k8s.io/subjectaccessreviews";
    let (server, metrics) = (Server::without(key, None), Metrics::default());
    let mut snapshot = snapshot();
    snapshot.resource.spec.health_check_node_ports = vec![10080];
    snapshot.resource.spec.health_checker = Some(serde_json::from_value(json!({ "serviceAccountName": "checker" })).unwrap());
    ask_rights(&client(&server, &metrics), &mut Memory::of("0a1b2c3d-0000"), &mut snapshot).await;
    assert_eq!(snapshot.account_lacks, [""; 0]);
    let told = format!("the operator may not create {}: install the ClusterRole of this release again", kind(key));
    assert_eq!(metrics.rights.missing(), [told]);
}

/// Who is alerted learns of every right above by the same counter.
#[test]
fn the_alert_for_missing_rights_counts_refusals_by_right() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/optional/alerts.rules.yaml");
    let rules: Value = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let alerts: Vec<&Value> =
        rules["groups"].as_array().into_iter().flatten().filter_map(|group| group["rules"].as_array()).flatten().collect();
    let alert = alerts.into_iter().find(|rule| rule["alert"] == ALERT).unwrap();
    assert_eq!(alert["expr"], format!("sum by (verb, resource, group) (increase({COUNTER}[15m])) > 0"));
}

#[test]
fn each_rule_is_taken_away_by_a_case() {
    let mut cases: BTreeSet<String> = ASKED_FOR.iter().map(|(key, _)| (*key).to_owned()).collect();
    cases.extend(actions().into_iter().map(|(_, key, ..)| key.to_owned()));
    cases.insert("authorization.k8s.io/subjectaccessreviews".into());
    // Of the same rule as the policies, and written after them.
    cases.insert("admissionregistration.k8s.io/mutatingadmissionpolicybindings".into());
    let granted: BTreeSet<String> = rules().iter().flat_map(keys).collect();
    assert_eq!(cases, granted);
}
