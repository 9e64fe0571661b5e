//! The webhook over real TLS: its certificates are replaced under handshakes, and its answers are those of HTTP.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use kube::{Client, client::Body};
use operator::{
    gates_shared::GateState,
    metrics::{GateMetrics, PodGateMetrics},
    watch::{GuardedResource, Observer},
    webhook::{Answers, Certificates, PATH, POD_PATH, PodAnswers, Serving, router, serve, tls},
};
use planner::spec::node_rights::NodeRights;
use prometheus_client::registry::Registry;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
    time_provider::TimeProvider,
};
use serde_json::{Value, json};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::sync::CancellationToken;

const NAME: &str = "hook.system.svc";
const DAY: i64 = 24 * 3600;
/// 2026-01-01, unix seconds.
const START: i64 = 1_767_225_600;
/// How late an API server or a replica may learn of something here: less than certificates wait for.
const LAG: i64 = 540;

#[derive(Debug)]
struct Clock(i64);

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(self.0.try_into().ok()?)))
    }
}

fn names() -> Vec<String> {
    vec![NAME.to_owned()]
}

/// A client that trusts what an API server was told to trust.
async fn shake_hands(address: SocketAddr, trusted: &str, now: i64) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(trusted.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let builder = ClientConfig::builder_with_details(Arc::new(default_provider()), Arc::new(Clock(now)));
    let config = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots).with_no_client_auth();
    let stream = TcpStream::connect(address).await?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(NAME).unwrap(), stream).await
}

/// The webhook with the certificates that `Serving` has, and gates that `client` reads.
async fn start(serving: Serving, client: Client) -> (SocketAddr, CancellationToken) {
    start_with(serving, client, nobody(), Observer::default()).await
}

async fn start_with(serving: Serving, client: Client, of_pods: Client, observer: Observer) -> (SocketAddr, CancellationToken) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    let (state, metrics) = (GateState::of(&observer), GateMetrics::registered(&mut Registry::default()));
    let (answers, follow) = Answers::new(client, Arc::new(observer), state, metrics);
    let (pods, follow_pods) = PodAnswers::new(of_pods, PodGateMetrics::registered(&mut Registry::default()));
    tokio::spawn(follow);
    tokio::spawn(follow_pods);
    tokio::spawn(serve(listener, tls(serving).unwrap(), router(answers, pods), stop.clone()));
    (address, stop)
}

fn nobody() -> Client {
    let (service, handle) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
    drop(handle);
    Client::new(service, "default")
}

#[tokio::test]
async fn certificate_rotations_fail_no_handshake_despite_minutes_of_delay() {
    let serving = Serving::default();
    let (address, _stop) = start(serving.clone(), nobody()).await;
    let mut now = START;
    let mut history = vec![(now, Certificates::new(&names(), now).unwrap())];
    let (mut shaken, mut authorities, mut leaves) = (0, 0, 0);
    while now < START + 3 * 365 * DAY {
        let (_, newest) = history.last().unwrap();
        let next = newest.next(&names(), now).unwrap();
        if let Some(next) = next {
            authorities += usize::from(next.authority_key != newest.authority_key);
            leaves += usize::from(next.leaf != newest.leaf);
            history.push((now, next));
        }
        // Whatever was the newest at some time of the last minutes, somebody still serves, and somebody still trusts.
        while history.len() > 1 && history[1].0 <= now - LAG {
            history.remove(0);
        }
        let changed_lately = now - history.last().unwrap().0 < 3600;
        for (_, served) in history.iter().filter(|_| changed_lately) {
            serving.set(served).unwrap();
            for (_, known) in &history {
                shake_hands(address, &known.trusted, now).await.unwrap_or_else(|error| panic!("day {}: {error}", (now - START) / DAY));
                shaken += 1;
            }
        }
        now += if changed_lately { 300 } else { DAY };
    }
    assert!(authorities >= 4 && leaves >= 50, "{authorities} authorities and {leaves} leaves followed the first ones");
    assert!(shaken > 12 * leaves, "{shaken} handshakes");
    let (_, last) = history.last().unwrap();
    assert_eq!(last.trusted.matches("BEGIN CERTIFICATE").count(), 1, "former authorities are trusted no more");
}

#[tokio::test]
async fn clients_connect_without_failures_during_a_rotation() {
    let serving = Serving::default();
    let first = Certificates::new(&names(), START).unwrap();
    serving.set(&first).unwrap();
    let (address, _stop) = start(serving.clone(), nobody()).await;
    let trusted = first.trusted.clone();
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let trusted = trusted.clone();
            tokio::spawn(async move {
                for _ in 0..50 {
                    shake_hands(address, &trusted, START + 21 * DAY).await.unwrap();
                }
            })
        })
        .collect();
    let mut newest = first;
    while !clients.iter().all(tokio::task::JoinHandle::is_finished) {
        newest = newest.next(&names(), START + 21 * DAY).unwrap().unwrap_or(newest);
        serving.set(&newest).unwrap();
        tokio::task::yield_now().await;
    }
    for client in clients {
        client.await.unwrap();
    }
}

#[test]
fn certificates_that_expired_or_name_another_service_are_unusable() {
    let certificates = Certificates::new(&names(), START).unwrap();
    assert!(certificates.next(&["other.system.svc".to_owned()], START).is_err());
    assert!(certificates.next(&names(), START + 31 * DAY).is_err());
    assert!(Certificates { leaf: "no".into(), ..certificates.clone() }.next(&names(), START).is_err());
    assert_eq!(certificates.next(&names(), START + 19 * DAY).unwrap(), None);
    assert_eq!(certificates.expires().unwrap(), START + 30 * DAY);
}

/// One request over a connection of its own: the status, and the body.
async fn post(address: SocketAddr, trusted: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = shake_hands(address, trusted, START).await.unwrap();
    let head = format!("POST {path} HTTP/1.1\r\nhost: {NAME}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // The server may close without a word of TLS.
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

#[tokio::test]
async fn the_webhook_taints_new_nodes_only_for_enforced_gates() {
    let gate = |name: &str, satisfiable: &str| {
        json!({
            "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "NodeReadinessGate",
            "metadata": {"name": name, "uid": name, "resourceVersion": "1"},
            "spec": {
                "nodeSelector": {"matchLabels": {"role": "edge"}}, "taint": {"key": format!("readiness.k8s.io/{name}")},
                "requirements": [{"name": "mark", "nodeAnnotation": {"key": "example.com/ready"}}],
            },
            "status": {"conditions": [{
                "type": "Satisfiable", "status": satisfiable, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]},
        })
    };
    let list = json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "NodeReadinessGateList", "metadata": {"resourceVersion": "1"},
        "items": [gate("open", "True"), gate("shut", "False")],
    });
    let (service, mut handle) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
    let server = tokio::spawn(async move {
        let (request, reply) = handle.next_request().await.unwrap();
        assert!(request.uri().path().ends_with("/nodereadinessgates"), "{}", request.uri());
        reply.send_response(http::Response::new(Body::from(serde_json::to_vec(&list).unwrap())));
        // The watch that follows shows nothing more.
        handle.next_request().await
    });
    let serving = Serving::default();
    let certificates = Certificates::new(&names(), START).unwrap();
    serving.set(&certificates).unwrap();
    let resource = |name: &str, namespace: &str, satisfiable: &str| {
        let condition = json!({
            "type": "Satisfiable", "status": satisfiable, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let template = json!({"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let resource = json!({
            "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet",
            "metadata": {"name": name, "namespace": namespace, "uid": name},
            "spec": {
                "nodeSelector": {"role": "edge"}, "selector": {"matchLabels": {"app": name}}, "template": template,
                "nodeReadinessTaint": {"key": format!("readiness.k8s.io/of-{name}")},
            },
            "status": {"nodeReadiness": {"conditions": [condition]}},
        });
        serde_json::from_value::<GuardedResource>(resource).unwrap()
    };
    let observer = Observer::with(NodeRights { taints: vec!["default=readiness.k8s.io/*".parse().unwrap()], ..NodeRights::default() });
    observer.take(vec![resource("open", "default", "True"), resource("shut", "default", "False"), resource("hostile", "tenant", "True")]);
    let (address, _stop) = start_with(serving, Client::new(service, "default"), nobody(), observer).await;
    let _watch = server.await.unwrap();
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "r", "operation": "CREATE", "kind": {"group": "", "version": "v1", "kind": "Node"},
        "object": {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"role": "edge"}}},
    }});
    let (status, body) = post(address, &certificates.trusted, PATH, &review.to_string()).await;
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &answer["response"]["uid"], &answer["response"]["allowed"]), (200, &json!("r"), &json!(true)));
    let patch: k8s_openapi::ByteString = serde_json::from_value(answer["response"]["patch"].clone()).unwrap();
    let patch = String::from_utf8(patch.0).unwrap();
    assert!(patch.contains("readiness.k8s.io/open") && !patch.contains("readiness.k8s.io/shut"), "{patch}");
    assert!(patch.contains("readiness.k8s.io/of-open") && !patch.contains("readiness.k8s.io/of-shut"), "{patch}");
    assert!(!patch.contains("hostile"), "its namespace may not taint nodes: {patch}");
    assert_eq!(post(address, &certificates.trusted, PATH, "{").await.0, 400);
    let (status, body) = post(address, &certificates.trusted, PATH, "{}").await;
    assert_eq!((status, serde_json::from_str::<Value>(&body).unwrap()["response"]["allowed"].clone()), (200, json!(true)));
}

#[tokio::test]
async fn the_webhook_adds_only_gate_conditions_of_the_pods_namespace() {
    let gate = |namespace: &str, index: usize, type_: &str, more: Value| {
        let mut spec = json!({
            "conditionType": type_, "source": {"manual": {}}, "selector": {"matchLabels": {"app": "web"}}, "admission": {"onCreate": "Auto"},
        });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({
            "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "PodReadinessGate",
            "metadata": {"name": format!("g{index:03}"), "namespace": namespace, "uid": format!("{namespace}{index}"), "resourceVersion": "1"},
            "spec": spec,
        })
    };
    let mut items = vec![
        gate("web", 0, "example.com/open", json!({})),
        gate("web", 1, "example.com/by-policy", json!({"admission": {"onCreate": "Policy"}})),
        gate("other", 0, "example.com/elsewhere", json!({})),
        json!({"apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "PodReadinessGate", "metadata": {"name": "odd", "namespace": "web"}, "spec": 7}),
    ];
    items.extend((2..100).map(|index| gate("web", index, "example.com/asks-not", json!({"admission": {"onCreate": "None"}}))));
    items.push(gate("web", 100, "example.com/surplus", json!({})));
    let list = json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "PodReadinessGateList", "metadata": {"resourceVersion": "1"},
        "items": items,
    });
    let (service, mut handle) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
    let server = tokio::spawn(async move {
        let (request, reply) = handle.next_request().await.unwrap();
        assert!(request.uri().path().ends_with("/podreadinessgates"), "{}", request.uri());
        reply.send_response(http::Response::new(Body::from(serde_json::to_vec(&list).unwrap())));
        // The watch that follows shows nothing more.
        handle.next_request().await
    });
    let serving = Serving::default();
    let certificates = Certificates::new(&names(), START).unwrap();
    serving.set(&certificates).unwrap();
    let (address, _stop) = start_with(serving, nobody(), Client::new(service, "default"), Observer::default()).await;
    let _watch = server.await.unwrap();
    let ask = async |namespace: &str, app: &str, listed: Value| -> Vec<String> {
        let object = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "p-", "labels": {"app": app}},
            "spec": {"containers": [], "readinessGates": listed},
        });
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "r", "operation": "CREATE", "namespace": namespace, "kind": {"group": "", "version": "v1", "kind": "Pod"}, "object": object,
        }});
        let (status, body) = post(address, &certificates.trusted, POD_PATH, &review.to_string()).await;
        let answer: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, &answer["response"]["uid"], &answer["response"]["allowed"]), (200, &json!("r"), &json!(true)));
        let mut pod = object;
        if !answer["response"]["patch"].is_null() {
            let patch: k8s_openapi::ByteString = serde_json::from_value(answer["response"]["patch"].clone()).unwrap();
            json_patch::patch(&mut pod, &serde_json::from_slice::<json_patch::Patch>(&patch.0).unwrap()).unwrap();
        }
        let listed = pod["spec"]["readinessGates"].as_array().cloned().unwrap_or_default();
        listed.iter().map(|gate| gate["conditionType"].as_str().unwrap().to_owned()).collect()
    };
    let own = json!([{"conditionType": "example.com/own"}]);
    assert_eq!(ask("web", "web", Value::Null).await, ["example.com/open"]);
    assert_eq!(ask("web", "web", own).await, ["example.com/own", "example.com/open"]);
    assert_eq!(ask("web", "web", json!([{"conditionType": "example.com/open"}])).await, ["example.com/open"]);
    assert_eq!(ask("web", "dns", Value::Null).await, [""; 0]);
    assert_eq!(ask("other", "web", Value::Null).await, ["example.com/elsewhere"]);
    assert_eq!(ask("", "web", Value::Null).await, [""; 0]);
    assert_eq!(post(address, &certificates.trusted, POD_PATH, "{").await.0, 400);
}

#[tokio::test]
async fn an_incomplete_request_times_out_and_frees_its_connection() {
    let serving = Serving::default();
    let certificates = Certificates::new(&names(), START).unwrap();
    serving.set(&certificates).unwrap();
    let (address, _stop) = start(serving, nobody()).await;
    let mut stream = shake_hands(address, &certificates.trusted, START).await.unwrap();
    stream.write_all(format!("POST {POD_PATH} HTTP/1.1\r\nHost: {NAME}\r\nContent-Length: 1000000\r\n\r\nx").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // Until the end of the connection; whether it says goodbye in TLS is of no interest.
    let _ = tokio::time::timeout(Duration::from_mins(1), stream.read_to_end(&mut answer)).await.expect("it ends");
    assert!(answer.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer));
}
