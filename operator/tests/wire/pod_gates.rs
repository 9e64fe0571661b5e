//! Gates of pods of several namespaces: the API server may be slow with the objects of one of them.

use http::{Method, Request, Response};
use k8s_controller::events::{EventRecorder, Reporter};
use k8s_openapi::api::core::v1::Node;
use kube::{Client, client::Body};
use operator::{
    gates_shared::GateState,
    metrics::Metrics,
    pod_gates,
    watch::{GuardedResource, Observer},
};
use serde_json::{Value, json};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const GATES: &str = "/apis/ingressdaemonsets.mumoshu.github.io/v1alpha1/podreadinessgates";
const NAMESPACES: [&str; 2] = ["a", "b"];

fn gate(namespace: &str) -> Value {
    json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "PodReadinessGate",
        "metadata": {"name": "open", "namespace": namespace, "uid": format!("g-{namespace}"), "generation": 1, "resourceVersion": "1"},
        "spec": {"conditionType": "example.com/open", "source": {"label": {"key": "open"}}},
    })
}

fn pod(namespace: &str) -> Value {
    json!({
        "metadata": {
            "name": "p", "namespace": namespace, "uid": format!("p-{namespace}"), "resourceVersion": "1", "labels": {"open": "true"},
        },
        "spec": {"containers": [], "nodeName": "n1", "readinessGates": [{"conditionType": "example.com/open"}]},
    })
}

/// How often the status of the gate of namespace `b` was written, and of how many pods it said last that the gate is open for them.
type Written = (u32, i64);

/// Answers everything but a write of the status of the gate of namespace `a`; that of `b` has to be written twice.
async fn answer(request: Request<Body>, written: &watch::Sender<Written>) -> (u16, Value) {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    if request.uri().query().is_some_and(|query| query.contains("watch=true")) {
        std::future::pending::<()>().await;
    }
    if path.contains("/mutatingwebhookconfigurations/") {
        return (404, json!({"kind": "Status", "status": "Failure", "message": "none", "reason": "NotFound", "code": 404}));
    }
    if method == Method::GET {
        let pods = NAMESPACES.iter().find(|namespace| path == format!("/api/v1/namespaces/{namespace}/pods"));
        let items = match pods {
            Some(namespace) => vec![pod(namespace)],
            None if path == GATES => NAMESPACES.map(gate).to_vec(),
            None => Vec::new(),
        };
        return (200, json!({"metadata": {"resourceVersion": "1"}, "items": items}));
    }
    let body: Value = serde_json::from_slice(&request.into_body().collect_bytes().await.unwrap()).unwrap();
    let namespace = NAMESPACES.into_iter().find(|namespace| path.contains(&format!("/namespaces/{namespace}/"))).unwrap();
    let is_gate = path.contains("/podreadinessgates/");
    if is_gate && namespace == "a" {
        std::future::pending::<()>().await;
    }
    if is_gate {
        let open = body["status"]["pods"]["true"].as_i64().unwrap_or(0);
        written.send_modify(|written| *written = (written.0 + 1, open));
        if written.borrow().0 == 1 {
            return (500, json!({"kind": "Status", "status": "Failure", "message": "no", "reason": "InternalError", "code": 500}));
        }
    }
    let mut object = if is_gate { gate(namespace) } else { pod(namespace) };
    object["metadata"]["resourceVersion"] = "2".into();
    object["status"] = body["status"].clone();
    (200, object)
}

fn observer() -> Arc<Observer> {
    let observer = Observer::default();
    observer.take::<Node>(Vec::new());
    observer.take::<GuardedResource>(Vec::new());
    observer.take_no_objects();
    Arc::new(observer)
}

#[tokio::test(start_paused = true)]
async fn a_hanging_status_write_delays_no_other_namespace() {
    let (written, mut told) = watch::channel(Written::default());
    let service = tower::service_fn(move |request: Request<Body>| {
        let written = written.clone();
        async move {
            let (code, answer) = answer(request, &written).await;
            let body = Body::from(answer.to_string().into_bytes());
            Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
        }
    });
    let (client, observer, metrics) = (Client::new(service, "default"), observer(), Metrics::default());
    let options = pod_gates::EngineOptions {
        recorder: EventRecorder::new(client.clone(), Reporter { controller: "test/operator".into(), instance: None }),
        of_named: client.clone(),
        client,
        state: GateState::of(&observer),
        observer,
        metrics: metrics.pod_gates.clone(),
        foreign_objects: Vec::new(),
        webhook: None,
        admission_policies: true,
    };
    tokio::select! {
        () = Box::pin(pod_gates::Engine::new(options).run(CancellationToken::new())) => unreachable!("it runs for ever"),
        written = tokio::time::timeout(Duration::from_mins(1), told.wait_for(|written| *written >= (2, 1))) => {
            written.unwrap().unwrap();
        }
    }
}
