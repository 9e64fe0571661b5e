//! A controller between a provider and an API server of a few objects.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard};

use futures::StreamExt;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use k8s_openapi::api::core::v1::PodStatus;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::DropGuard;

use super::*;
use crate::pod::Events;
use crate::pod::environment::NodeFacts;

#[path = "controller_environment_tests.rs"]
mod environments;

/// Longer than anything waits, in a time that passes when nothing else happens.
const NEVER: Duration = Duration::from_hours(1);

#[derive(Default)]
struct State {
    pods: BTreeMap<String, Value>,
    config_maps: BTreeMap<String, Value>,
    events: Vec<Value>,
    /// What was read of objects that pods refer to.
    reads: Vec<String>,
    /// How often Services were listed.
    services_listed: u32,
    version: u64,
    /// What watches were told, by version.
    history: Vec<(u64, Value)>,
    watches: Vec<(&'static str, UnboundedSender<Bytes>)>,
    /// What the provider has.
    had: BTreeMap<PodId, (Arc<Pod>, PodStatus)>,
    /// What the provider was asked, in this order.
    calls: Vec<String>,
    /// Calls that are never answered, with the name of their pod where they are about one.
    hangs: BTreeSet<String>,
    sink: PodStatusSink,
}

/// The API server and the provider, with all that is to be seen of them.
#[derive(Clone)]
struct World {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<()>,
}

fn facts() -> NodeFacts {
    NodeFacts { address: "198.18.0.1".into(), cpu: "8".into(), memory: "16Gi".into() }
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "uid": format!("uid-{name}"), "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": { "nodeName": "n1", "terminationGracePeriodSeconds": 5, "containers": [{ "name": "main", "image": "i" }] },
        "status": { "phase": "Pending" },
    })
}

/// As a server merges it, as far as the fields go that are here.
fn merge(target: &mut Value, patch: &Value) {
    match patch {
        Value::Object(fields) => {
            if !target.is_object() {
                *target = json!({});
            }
            for (key, value) in fields {
                if value.is_null() {
                    target.as_object_mut().unwrap().remove(key);
                } else {
                    merge(&mut target[key], value);
                }
            }
        }
        other => *target = other.clone(),
    }
}

impl State {
    /// Puts an object into the API, or tells of its deletion.
    fn put(&mut self, change: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let objects = if object["kind"] == "Pod" { &mut self.pods } else { &mut self.config_maps };
        if change == "DELETED" {
            objects.remove(&name);
        } else {
            objects.insert(name, object.clone());
        }
        let event = json!({ "type": change, "object": object });
        self.tell(&event);
        self.history.push((self.version, event));
        object
    }

    fn tell(&mut self, event: &Value) {
        let of = |kind: &str| event["type"] == "ERROR" || event["object"]["kind"] == kind;
        self.watches.retain(|(kind, watch)| !of(kind) || watch.unbounded_send(line(event)).is_ok());
    }
}

fn line(event: &Value) -> Bytes {
    Bytes::from(format!("{event}\n"))
}

impl World {
    fn new() -> Self {
        Self { state: Arc::default(), changed: watch::Sender::new(()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state());
        self.changed.send_replace(());
        result
    }

    fn make(&self, pod: Value) {
        self.change(|state| state.put("ADDED", pod));
    }

    /// A user deletes the pod.
    fn delete(&self, name: &str) {
        self.change(|state| {
            let mut pod = state.pods[name].clone();
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            pod["metadata"]["deletionGracePeriodSeconds"] = 5.into();
            state.put("MODIFIED", pod);
        });
    }

    /// All watches break off, so that everything is listed anew.
    fn expire(&self) {
        self.change(|state| state.tell(&json!({ "type": "ERROR", "object": { "kind": "Status", "code": 410, "reason": "Expired" } })));
    }

    fn hang(&self, call: &str) {
        self.change(|state| state.hangs.insert(call.to_owned()));
    }

    async fn until(&self, what: &str, holds: impl Fn(&State) -> bool) {
        let mut changed = self.changed.subscribe();
        let wait = async {
            while !holds(&self.state()) {
                changed.changed().await.unwrap();
            }
        };
        if tokio::time::timeout(NEVER, wait).await.is_err() {
            let state = self.state();
            panic!("{what}: never; {:?} {:?} {:?}", state.calls, state.pods, state.events);
        }
    }

    fn answer(&self, method: &str, path: &str, query: &str, body: &Value) -> (u16, Value) {
        let of_pod = path.strip_prefix("/api/v1/namespaces/default/pods/").map(|rest| rest.trim_end_matches("/status"));
        match (method, of_pod) {
            ("GET", None) if path == "/api/v1/pods" => {
                let state = self.state();
                let items: Vec<_> = state.pods.values().collect();
                let list = json!({ "apiVersion": "v1", "kind": "PodList",
                    "metadata": { "resourceVersion": state.version.to_string() }, "items": items });
                assert!(!query.contains("watch=true"));
                (200, list)
            }
            ("GET", None) if path.ends_with("/services") && self.state().hangs.contains("services") => {
                (500, json!({ "code": 500, "message": "no services" }))
            }
            ("GET", None) if path.ends_with("/services/kubernetes") => {
                let spec = json!({ "clusterIP": "10.0.0.1", "ports": [{ "port": 443 }] });
                let metadata = json!({ "name": "kubernetes", "namespace": "default" });
                (200, json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec }))
            }
            ("GET", None) if path.ends_with("/configmaps") => {
                let state = self.state();
                let items: Vec<_> = state.config_maps.values().collect();
                (
                    200,
                    json!({ "apiVersion": "v1", "kind": "ConfigMapList",
                    "metadata": { "resourceVersion": state.version.to_string() }, "items": items }),
                )
            }
            ("GET", None) if path.contains("/configmaps/") => self.change(|state| {
                state.reads.push(path.to_owned());
                let found = path.rsplit('/').next().and_then(|name| state.config_maps.get(name)).cloned();
                found.map_or_else(
                    || (404, json!({ "status": "Failure", "reason": "NotFound", "code": 404, "message": "not found" })),
                    |found| (200, found),
                )
            }),
            ("GET", None) if path.ends_with("/services") => self.change(|state| {
                state.services_listed += 1;
                let metadata = json!({ "resourceVersion": state.version.to_string() });
                (200, json!({ "apiVersion": "v1", "kind": "ServiceList", "metadata": metadata, "items": [] }))
            }),
            ("POST", None) if path.ends_with("/events") => {
                self.change(|state| state.events.push(body.clone()));
                (201, body.clone())
            }
            ("PATCH", Some(name)) => self.change(|state| match state.pods.get(name).cloned() {
                Some(mut pod) => {
                    merge(&mut pod, body);
                    (200, state.put("MODIFIED", pod))
                }
                None => (404, json!({ "status": "Failure", "reason": "NotFound", "code": 404, "message": "not found" })),
            }),
            ("DELETE", Some(name)) => self.change(|state| match state.pods.get(name).cloned() {
                Some(pod) => (200, state.put("DELETED", pod)),
                None => (404, json!({ "status": "Failure", "reason": "NotFound", "code": 404, "message": "not found" })),
            }),
            _ => (404, json!({ "status": "Failure", "reason": "NotFound", "code": 404, "message": format!("{method} {path}") })),
        }
    }

    /// A watch from this version on, which never ends by itself.
    fn watch(&self, path: &str, query: &str) -> UnsyncBoxBody<Bytes, Infallible> {
        let from = query.split("resourceVersion=").nth(1).and_then(|rest| rest.split('&').next()?.parse().ok()).unwrap_or(0);
        let kind = match path.rsplit('/').next() {
            Some("pods") => "Pod",
            Some("services") => "Service",
            _ => "ConfigMap",
        };
        let (sender, lines) = unbounded();
        self.change(|state| {
            for (_, event) in state.history.iter().filter(|(version, event)| *version > from && event["object"]["kind"] == kind) {
                sender.unbounded_send(line(event)).unwrap();
            }
            state.watches.push((kind, sender));
        });
        StreamBody::new(lines.map(|line| Ok(Frame::data(line)))).boxed_unsync()
    }

    fn client(&self) -> Client {
        let world = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let world = world.clone();
            async move {
                let (method, uri) = (request.method().clone(), request.uri().clone());
                let query = uri.query().unwrap_or_default();
                if query.contains("watch=true") {
                    return Ok::<_, kube::Error>(Response::new(world.watch(uri.path(), query)));
                }
                let body = request.into_body().collect().await?.to_bytes();
                let (code, answer) = world.answer(method.as_str(), uri.path(), query, &serde_json::from_slice(&body).unwrap_or_default());
                Ok(Response::builder().status(code).body(Full::from(answer.to_string()).boxed_unsync()).unwrap())
            }
        });
        Client::new(service, "default")
    }

    /// A controller with two workers, which ends with what is returned.
    async fn start(&self, change: impl FnOnce(&mut PodControllerConfig<Self>)) -> DropGuard {
        self.start_with(Arc::new(self.clone()), change).await
    }

    async fn start_with<P: PodLifecycleHandler + PodNotifier>(
        &self,
        provider: Arc<P>,
        change: impl FnOnce(&mut PodControllerConfig<P>),
    ) -> DropGuard {
        let mut config = PodControllerConfig::new(self.client(), "n1", provider);
        config.node_facts = facts();
        config.events = Events::start(self.client(), "n1".into());
        change(&mut config);
        let (controller, cancel) = (PodController::new(config).unwrap(), CancellationToken::new());
        let ready = controller.ready();
        tokio::spawn(controller.run(2, cancel.clone()));
        tokio::time::timeout(NEVER, ready).await.expect("it becomes ready");
        cancel.drop_guard()
    }

    /// Notes a call, and does not come back from one that hangs.
    async fn called(&self, call: &str, name: &str) {
        let call = format!("{call} {name}").trim_end().to_owned();
        tracing::info!("the provider does {call}");
        let hangs = self.change(|state| {
            state.calls.push(call.clone());
            state.hangs.contains(&call)
        });
        if hangs {
            std::future::pending::<()>().await;
        }
    }

    fn phase(&self, id: &PodId, phase: &str) {
        let status = PodStatus { phase: Some(phase.into()), ..PodStatus::default() };
        self.change(|state| {
            if let Some((_, had)) = state.had.get_mut(id) {
                had.clone_from(&status);
                state.sink.notify(id.clone(), status);
            }
        });
    }
}

impl State {
    fn was_called(&self, call: &str) -> bool {
        self.calls.iter().any(|made| made == call)
    }

    fn status(&self, name: &str) -> Value {
        self.pods.get(name).map(|pod| pod["status"].clone()).unwrap_or_default()
    }

    fn runs(&self, name: &str) -> bool {
        self.status(name)["phase"] == "Running"
    }

    fn has_event(&self, name: &str, reason: &str) -> bool {
        self.events.iter().any(|event| event["involvedObject"]["name"] == name && event["reason"] == reason)
    }
}

impl PodNotifier for World {
    fn notify_pods(&self, sink: PodStatusSink) {
        self.state().sink = sink;
    }
}

/// Pods run and end as they are told to, except those that are named for what they do.
impl PodLifecycleHandler for World {
    async fn create_pod(&self, pod: Arc<Pod>) -> Result<(), ProviderError> {
        let id = PodId::of(&pod);
        self.called("create", &id.name).await;
        assert!(id.name != "startling", "told to");
        self.change(|state| state.had.insert(id.clone(), (pod, PodStatus::default())));
        self.phase(&id, "Running");
        Ok(())
    }

    async fn update_pod(&self, pod: Arc<Pod>) -> Result<(), ProviderError> {
        self.called("update", &PodId::of(&pod).name).await;
        Ok(())
    }

    async fn delete_pod(&self, pod: Arc<Pod>, _: i64) -> Result<(), ProviderError> {
        let id = PodId::of(&pod);
        self.called("delete", &id.name).await;
        if id.name != "endless" {
            self.phase(&id, "Succeeded");
        }
        Ok(())
    }

    async fn forget_pod(&self, id: &PodId) {
        self.called("forget", &id.name).await;
        self.change(|state| state.had.remove(id));
    }

    async fn get_pod(&self, id: &PodId) -> Result<Option<Arc<Pod>>, ProviderError> {
        self.called("get", &id.name).await;
        Ok(self.state().had.get(id).map(|(pod, _)| pod.clone()))
    }

    async fn get_pod_status(&self, id: &PodId) -> Result<Option<PodStatus>, ProviderError> {
        self.called("status", &id.name).await;
        Ok(self.state().had.get(id).map(|(_, status)| status.clone()))
    }

    async fn retain(&self, _: &HashSet<PodId>) {
        self.called("retain", "").await;
    }

    async fn get_pods(&self) -> Result<Vec<Arc<Pod>>, ProviderError> {
        self.called("list", "").await;
        Ok(self.state().had.values().map(|(pod, _)| pod.clone()).collect())
    }
}

/// More creations than there are workers.
fn hanging(world: &World) -> [&'static str; 3] {
    let names = ["hung-1", "hung-2", "hung-3"];
    for name in names {
        world.hang(&format!("create {name}"));
        world.make(pod(name));
    }
    names
}

#[tokio::test(start_paused = true)]
async fn hanging_creations_block_no_deletions_and_no_status_writes() {
    let world = World::new();
    world.make(pod("web"));
    world.make(pod("leaving"));
    let _controller = world.start(|_| {}).await;
    world.until("both run", |state| state.runs("web") && state.runs("leaving")).await;
    hanging(&world);
    world.until("two creations hang", |state| state.was_called("create hung-1") && state.was_called("create hung-2")).await;
    world.delete("leaving");
    world.until("it is ended and leaves", |state| !state.pods.contains_key("leaving")).await;
    let id = world.state().had.keys().find(|id| id.name == "web").unwrap().clone();
    world.phase(&id, "Failed");
    world.until("a status is written", |state| state.status("web")["phase"] == "Failed").await;
    // One that was not given to the provider waits for nobody to leave.
    world.delete("hung-3");
    world.until("it leaves", |state| !state.pods.contains_key("hung-3")).await;
    assert!(!world.state().was_called("create hung-3"));
}

#[tokio::test(start_paused = true)]
async fn pods_of_the_first_list_are_created_beside_one_another() {
    let world = World::new();
    world.hang("create hung");
    world.make(pod("hung"));
    world.make(pod("web"));
    let _controller = world.start(|_| {}).await;
    world.until("the other one runs", |state| state.runs("web") && state.was_called("create hung")).await;
}

#[tokio::test(start_paused = true)]
async fn a_hanging_provider_list_blocks_no_creations_or_deletions() {
    let world = World::new();
    world.make(pod("web"));
    let _controller = world.start(|_| {}).await;
    world.until("it runs", |state| state.runs("web")).await;
    world.hang("list");
    let lists = |state: &State| state.calls.iter().filter(|call| *call == "list").count();
    let before = lists(&world.state());
    world.expire();
    world.until("the provider is asked and does not answer", |state| lists(state) > before).await;
    world.make(pod("new"));
    world.until("a new pod runs", |state| state.runs("new")).await;
    world.delete("web");
    world.until("an old one leaves", |state| !state.pods.contains_key("web")).await;
}

#[tokio::test(start_paused = true)]
async fn a_hanging_provider_delays_startup_only_until_the_limit() {
    for call in ["list", "status old"] {
        let world = World::new();
        let old: Pod = serde_json::from_value(pod("old")).unwrap();
        world.change(|state| state.had.insert(PodId::of(&old), (Arc::new(old), PodStatus::default())));
        world.make(pod("old"));
        world.make(pod("web"));
        world.hang(call);
        let begun = Instant::now();
        let _controller = world.start(|config| config.call_limit = Some(Duration::from_mins(2))).await;
        assert_eq!(begun.elapsed().as_secs(), 120, "{call}");
        world.until("another pod runs", |state| state.runs("web")).await;
    }
}

/// The same provider, which wants the pods of the first list in turn.
struct InTurn(World);

impl PodNotifier for InTurn {
    fn notify_pods(&self, sink: PodStatusSink) {
        self.0.notify_pods(sink);
    }
}

impl PodLifecycleHandler for InTurn {
    async fn create_pod(&self, pod: Arc<Pod>) -> Result<(), ProviderError> {
        self.0.create_pod(pod).await
    }

    async fn update_pod(&self, pod: Arc<Pod>) -> Result<(), ProviderError> {
        self.0.update_pod(pod).await
    }

    async fn delete_pod(&self, pod: Arc<Pod>, grace: i64) -> Result<(), ProviderError> {
        self.0.delete_pod(pod, grace).await
    }

    async fn forget_pod(&self, id: &PodId) {
        self.0.forget_pod(id).await;
    }

    async fn get_pod(&self, id: &PodId) -> Result<Option<Arc<Pod>>, ProviderError> {
        self.0.get_pod(id).await
    }

    async fn get_pod_status(&self, id: &PodId) -> Result<Option<PodStatus>, ProviderError> {
        self.0.get_pod_status(id).await
    }

    fn oldest_first(&self) -> bool {
        true
    }

    async fn get_pods(&self) -> Result<Vec<Arc<Pod>>, ProviderError> {
        self.0.get_pods().await
    }
}

#[tokio::test(start_paused = true)]
async fn an_ordered_provider_gets_the_first_list_oldest_first() {
    let world = World::new();
    for (name, day) in [("a", 4), ("b", 2), ("c", 1), ("d", 3)] {
        let mut object = pod(name);
        object["metadata"]["creationTimestamp"] = format!("2026-01-0{day}T00:00:00Z").into();
        world.make(object);
    }
    world.hang("create d");
    let _controller = world.start_with(Arc::new(InTurn(world.clone())), |_| {}).await;
    world.until("the third oldest has its turn", |state| state.was_called("create d")).await;
    let creations = |state: &State| state.calls.iter().filter(|call| call.starts_with("create")).cloned().collect::<Vec<_>>();
    assert_eq!(creations(&world.state()), ["create c", "create b", "create d"]);
    // One that comes later has no turn, and one that goes waits for none.
    world.make(pod("new"));
    world.until("a new one runs", |state| state.runs("new")).await;
    world.delete("a");
    world.until("the youngest leaves", |state| !state.pods.contains_key("a")).await;
    assert!(!world.state().was_called("create a"));
}

#[tokio::test(start_paused = true)]
async fn a_hanging_call_is_reported_then_abandoned_at_the_limit() {
    let world = World::new();
    world.hang("create hung");
    world.make(pod("hung"));
    let begun = Instant::now();
    let _controller = world.start(|config| config.call_limit = Some(Duration::from_mins(2))).await;
    world.until("it is told", |state| state.has_event("hung", "ProviderCallSlow")).await;
    assert_eq!(begun.elapsed().as_secs(), 30);
    world.until("it is given up", |state| state.has_event("hung", "ProviderCreateFailed")).await;
    assert_eq!(begun.elapsed().as_secs(), 120);
    let told = "the provider has not answered create_pod within 120 s";
    world.until("the status says why", |state| state.status("hung")["message"] == told).await;
}

#[tokio::test(start_paused = true)]
async fn a_hanging_retain_call_delays_only_new_pods() {
    let world = World::new();
    world.hang("retain");
    world.make(pod("web"));
    let _controller = world.start(|config| config.call_limit = Some(Duration::from_mins(2))).await;
    world.until("it runs", |state| state.runs("web")).await;
    // It might be taken for what may go.
    world.make(pod("new"));
    world.delete("web");
    world.until("the old one leaves", |state| !state.pods.contains_key("web")).await;
    assert!(!world.state().was_called("create new"));
    world.until("the new one runs in the end", |state| state.runs("new")).await;
}

/// A pod that the provider was told to end, and about which it says nothing.
async fn ending(world: &World) -> DropGuard {
    world.make(pod("endless"));
    let controller = world.start(|_| {}).await;
    world.until("it runs", |state| state.runs("endless")).await;
    world.delete("endless");
    world.until("the provider is told", |state| state.was_called("delete endless")).await;
    controller
}

#[tokio::test(start_paused = true)]
async fn a_pod_lost_while_ending_leaves_thirty_seconds_after_grace() {
    let world = World::new();
    let _controller = ending(&world).await;
    let told = Instant::now();
    world.change(|state| state.had.clear());
    world.until("it leaves", |state| !state.pods.contains_key("endless")).await;
    assert_eq!(told.elapsed().as_secs(), 35);
    world.until("it is forgotten", |state| state.was_called("forget endless")).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_outliving_its_grace_stays_and_raises_an_event() {
    let world = World::new();
    let _controller = ending(&world).await;
    world.until("an event says so", |state| state.has_event("endless", "ProviderDeleteOverdue")).await;
    assert!(world.state().pods.contains_key("endless"));
    // It ends, and the provider tells nobody by itself.
    world.change(|state| state.had.values_mut().for_each(|(_, status)| status.phase = Some("Failed".into())));
    world.until("it leaves", |state| !state.pods.contains_key("endless")).await;
}

#[tokio::test(start_paused = true)]
async fn a_provider_panic_is_reported_by_status_and_event() {
    let world = World::new();
    world.make(pod("startling"));
    let _controller = world.start(|_| {}).await;
    world.until("an event says so", |state| state.has_event("startling", "ProviderCreateFailed")).await;
    world.until("so does the status", |state| state.status("startling")["message"] == "the provider panicked in create_pod").await;
    let status = world.state().status("startling");
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Pending"), &json!("ProviderFailed")));
}

thread_local! {
    /// What is logged by this thread, as text.
    static LOGGED: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Writes to [`LOGGED`].
struct Logged;

impl std::io::Write for Logged {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        LOGGED.with_borrow_mut(|logged| logged.extend_from_slice(text));
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn provider_logs_are_in_spans_naming_call_and_pod() {
    // For all threads: where others have none, what one of them asked for first is taken to interest nobody.
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(|| Logged).finish();
    tracing::subscriber::set_global_default(subscriber).expect("no other test logs");
    let world = World::new();
    world.make(pod("web"));
    let _controller = world.start(|_| {}).await;
    world.until("it runs", |state| state.runs("web")).await;
    world.delete("web");
    world.until("it is forgotten", |state| state.was_called("forget web")).await;
    let logged = String::from_utf8(LOGGED.with_borrow(Clone::clone)).unwrap();
    let in_span = |does: &str| logged.lines().find(|line| line.ends_with(&format!("the provider does {does}"))).expect(does).to_owned();
    for (does, call) in [("create web", "create_pod"), ("delete web", "delete_pod"), ("forget web", "forget_pod")] {
        let span = format!("provider_call{{call=\"{call}\" otel.name=\"{call}\" namespace=\"default\" pod=\"web\" uid=\"uid-web\"}}");
        assert!(in_span(does).contains(&span), "{}", in_span(does));
    }
    assert!(in_span("list").contains("provider_call{call=\"get_pods\" otel.name=\"get_pods\"}"), "{}", in_span("list"));
}
