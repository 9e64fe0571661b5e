//! Probes of every kind, with the consequences they have.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, getsockname, listen, socket};
use serde_json::{Value, json};

use crate::place::{Agent, Place, container, eventually, pod};
use virtual_kubelet::pod::PodId;

fn probed(place: &Place, agent: &Agent, container: &Value) -> PodId {
    let mut whole = json!({ "name": "c", "image": "shell", "args": ["exec sleep 1000"] });
    whole.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
    agent.create(&pod(place, "p", &json!({ "containers": [whole], "terminationGracePeriodSeconds": 1 })))
}

/// A server that answers every request with the present code.
fn http_server(code: &Arc<AtomicU16>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let code = code.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let mut request = [0; 1024];
            let _ = stream.read(&mut request);
            let _ = write!(stream, "HTTP/1.1 {} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n", code.load(Ordering::Relaxed));
        }
    });
    port
}

#[test]
fn readiness_follows_an_http_endpoint_both_ways_and_restarts_nothing() {
    let place = Place::new();
    let agent = place.agent();
    let code = Arc::new(AtomicU16::new(503));
    let probe = json!({ "httpGet": { "port": http_server(&code) }, "periodSeconds": 1, "failureThreshold": 1 });
    let id = probed(&place, &agent, &json!({ "readinessProbe": probe }));
    let status = agent.runs(&id);
    assert!(!container(&status, "c").ready);
    code.store(200, Ordering::Relaxed);
    agent.until(&id, "ready", |status| container(status, "c").ready);
    code.store(500, Ordering::Relaxed);
    let status = agent.until(&id, "unready again", |status| !container(status, "c").ready);
    assert_eq!((container(&status, "c").restart_count, status.phase.as_deref()), (0, Some("Running")));
}

/// A TLS server with a certificate that nobody knows.
fn https_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let made = rcgen::generate_simple_self_signed(vec!["nobody.example".into()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap());
    std::thread::spawn(move || {
        for tcp in listener.incoming().flatten() {
            let mut stream = rustls::StreamOwned::new(rustls::ServerConnection::new(config.clone()).unwrap(), tcp);
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 204 X\r\nconnection: close\r\n\r\n");
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
    });
    port
}

/// A gRPC health service that serves exactly `web`.
fn grpc_server(runtime: &tokio::runtime::Runtime) -> u16 {
    use http_body_util::{BodyExt, Full};
    use hyper::body::Bytes;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let port = listener.local_addr().unwrap().port();
    let answer = |request: hyper::Request<hyper::body::Incoming>| async move {
        assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
        let asked = request.into_body().collect().await?.to_bytes();
        let status = if asked[..] == [0, 0, 0, 0, 5, 0x0a, 3, b'w', b'e', b'b'] { 1 } else { 2 };
        let trailers = http::HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), http::HeaderValue::from_static("0"))]);
        let body = Full::new(Bytes::from(vec![0, 0, 0, 0, 2, 8, status])).with_trailers(async { Some(Ok(trailers)) });
        Ok::<_, hyper::Error>(hyper::Response::builder().header("content-type", "application/grpc").body(body).unwrap())
    };
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = hyper::service::service_fn(answer);
            tokio::spawn(hyper::server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service));
        }
    });
    port
}

#[test]
fn a_grpc_probe_succeeds_only_for_a_serving_service() {
    let place = Place::new();
    let agent = place.agent();
    let port = grpc_server(&agent.runtime);
    let one = |name: &str, service: &str| {
        let probe = json!({ "grpc": { "port": port, "service": service }, "periodSeconds": 1 });
        json!({ "name": name, "image": "shell", "args": ["exec sleep 1000"], "readinessProbe": probe })
    };
    let spec = json!({ "containers": [one("good", "web"), one("bad", "other")], "terminationGracePeriodSeconds": 1 });
    let id = agent.create(&pod(&place, "p", &spec));
    let status = agent.until(&id, "ready", |status| container(status, "good").ready);
    assert!(!container(&status, "bad").ready);
}

#[test]
fn an_https_endpoint_with_any_certificate_makes_ready() {
    let place = Place::new();
    let agent = place.agent();
    let probe = json!({ "httpGet": { "port": https_server(), "scheme": "HTTPS" }, "periodSeconds": 1 });
    let id = probed(&place, &agent, &json!({ "readinessProbe": probe }));
    agent.until(&id, "ready", |status| container(status, "c").ready);
}

#[test]
fn an_adopted_container_stays_ready_until_its_probe_fails() {
    let place = Place::new();
    let code = Arc::new(AtomicU16::new(200));
    let first = place.agent();
    // So many failures that the next agent is looked at before they are all there.
    let probe = json!({ "httpGet": { "port": http_server(&code) }, "periodSeconds": 1, "failureThreshold": 8 });
    let id = probed(&place, &first, &json!({ "readinessProbe": probe }));
    first.until(&id, "ready", |status| container(status, "c").ready);
    drop(first);
    code.store(500, Ordering::Relaxed);
    let second = place.agent();
    let adopted = second.until(&id, "adopted", |_| true);
    assert!(container(&adopted, "c").ready);
    second.until(&id, "unready by its probe", |status| !container(status, "c").ready);
}

#[test]
fn a_port_that_opens_makes_ready() {
    let place = Place::new();
    let agent = place.agent();
    // Bound, so that nobody else gets the port; it answers once it listens.
    let door = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(door.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
    let port = getsockname::<SockaddrIn>(door.as_raw_fd()).unwrap().port();
    let probe = json!({ "tcpSocket": { "port": "named" }, "periodSeconds": 1 });
    let id = probed(&place, &agent, &json!({ "readinessProbe": probe, "ports": [{ "name": "named", "containerPort": port }] }));
    assert!(!container(&agent.runs(&id), "c").ready);
    listen(&door, Backlog::new(16).unwrap()).unwrap();
    agent.until(&id, "ready", |status| container(status, "c").ready);
}

#[test]
fn a_failed_liveness_probe_restarts_within_its_own_grace() {
    let place = Place::new();
    let agent = place.agent();
    let probe = json!({ "exec": { "command": ["sh", "-c", "test -e PLACE/well"] }, "periodSeconds": 1, "failureThreshold": 1, "terminationGracePeriodSeconds": 1 });
    let whole = json!({
        "terminationGracePeriodSeconds": 1000,
        "containers": [{ "name": "c", "image": "shell", "args": ["trap '' TERM; while :; do sleep 0.01; done"], "livenessProbe": probe }],
    });
    let id = agent.create(&pod(&place, "p", &whole));
    let status = agent.until(&id, "a restart", |status| container(status, "c").restart_count == 1);
    let last = container(&status, "c").last_state.clone().unwrap().terminated.unwrap();
    assert_eq!(last.exit_code, 137);
}

#[test]
fn nothing_else_is_probed_before_the_startup_probe_succeeded() {
    let place = Place::new();
    let agent = place.agent();
    let startup = json!({ "exec": { "command": ["sh", "-c", "echo x >> PLACE/tried; test -e PLACE/started"] }, "periodSeconds": 1, "failureThreshold": 1000 });
    let liveness = json!({ "exec": { "command": ["false"] }, "periodSeconds": 1, "failureThreshold": 1 });
    let readiness = json!({ "exec": { "command": ["sh", "-c", "echo x >> PLACE/probed"] }, "periodSeconds": 1 });
    let id = probed(&place, &agent, &json!({ "startupProbe": startup, "livenessProbe": liveness, "readinessProbe": readiness }));
    let status = agent.runs(&id);
    assert_eq!((container(&status, "c").started, container(&status, "c").ready), (Some(false), false));
    eventually("it was tried twice", || (place.read("tried").lines().count() >= 2).then_some(()));
    assert_eq!(place.read("probed"), "");
    std::fs::write(place.root.join("started"), "").unwrap();
    agent.until(&id, "liveness counts now", |status| container(status, "c").restart_count == 1);
}

#[test]
fn a_hanging_probe_counts_as_failed_and_its_processes_end() {
    let place = Place::new();
    let agent = place.agent();
    let command = json!(["sh", "-c", "echo $$ >> PLACE/pids; sleep 1000 & wait"]);
    let probe = json!({ "exec": { "command": command }, "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 2 });
    let id = probed(&place, &agent, &json!({ "livenessProbe": probe }));
    agent.until(&id, "a restart", |status| container(status, "c").restart_count == 1);
    let first = place.read("pids").lines().next().unwrap().to_owned();
    assert!(!std::path::Path::new(&format!("/proc/{first}/exe")).exists());
}
