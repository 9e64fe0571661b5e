use axum::http::Method;
use futures::future::BoxFuture;
use http_body_util::BodyExt as _;
use hyper::client::conn::http1;
use hyper::server::conn::http1::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use super::*;
use crate::errdefs::ProviderError;

struct Nothing;
impl PodHandlers for Nothing {}

/// Has all of it, or fails.
struct Full {
    fails: bool,
}

impl PodHandlers for Full {
    fn container_logs<'a>(
        &'a self,
        target: &'a ContainerTarget,
        options: options::LogOptions,
    ) -> BoxFuture<'a, Result<crate::api::BoxRead, HandlerError>> {
        let text = format!("{target} {:?}", options.tail).into_bytes();
        let missing = target.container == "none";
        Box::pin(async move {
            if missing { Err(HandlerError::not_found("container not found")) } else { Ok(Box::new(std::io::Cursor::new(text)) as _) }
        })
    }

    fn exec<'a>(&'a self, target: &'a ContainerTarget, _: Vec<String>) -> BoxFuture<'a, Result<Session, HandlerError>> {
        let uid = target.pod.uid.clone();
        Box::pin(async move {
            let stuck: Session = Box::new(|_io| Box::pin(std::future::pending()));
            if uid.as_deref() == Some("other") { Err(HandlerError::not_found("pod not found")) } else { Ok(stuck) }
        })
    }

    fn pods(&self) -> BoxFuture<'_, Result<Vec<Pod>, HandlerError>> {
        Box::pin(async { Ok(vec![Pod::default()]) })
    }

    fn running_pods(&self) -> BoxFuture<'_, Result<Vec<Pod>, HandlerError>> {
        self.pods()
    }

    fn stats_summary(&self) -> BoxFuture<'_, Result<serde_json::Value, HandlerError>> {
        let fails = self.fails;
        Box::pin(async move {
            if fails { Err(ProviderError::Other(anyhow::anyhow!("broken")).into()) } else { Ok(serde_json::json!({ "node": {} })) }
        })
    }

    fn resource_metrics(&self) -> BoxFuture<'_, Result<String, HandlerError>> {
        let fails = self.fails;
        Box::pin(async move { if fails { Err(ProviderError::Other(anyhow::anyhow!("broken")).into()) } else { Ok("a 1\n".into()) } })
    }
}

fn serve(api: &Api, debug: bool) -> DuplexStream {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let service = TowerToHyperService::new(router(api, debug));
    tokio::spawn(async move {
        let _ = Builder::new().serve_connection(TokioIo::new(theirs), service).with_upgrades().await;
    });
    ours
}

async fn ask(handlers: impl PodHandlers, method: Method, path: &str) -> (u16, String, String) {
    let api = Api::new(Arc::new(handlers), CancellationToken::new());
    let (mut sender, connection) = http1::handshake(TokioIo::new(serve(&api, true))).await.unwrap();
    tokio::spawn(connection);
    let request = hyper::Request::builder().method(method).uri(path).body(String::new()).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    let kind = answer.headers().get(CONTENT_TYPE).map(|kind| kind.to_str().unwrap().to_owned()).unwrap_or_default();
    let (code, body) = (answer.status().as_u16(), answer.into_body().collect().await.unwrap().to_bytes());
    (code, kind, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn resource_metrics_are_prometheus_text_or_501_or_500() {
    let path = "/metrics/resource";
    let kind = "text/plain; version=0.0.4".to_owned();
    assert_eq!(ask(Full { fails: false }, Method::GET, path).await, (200, kind, "a 1\n".into()));
    let (code, _, text) = ask(Nothing, Method::GET, path).await;
    assert_eq!((code, text.as_str()), (501, "501 not implemented"));
    let (code, _, text) = ask(Full { fails: true }, Method::GET, path).await;
    assert_eq!((code, text.as_str()), (500, "error getting metrics from provider: broken"));
    let (code, _, text) = ask(Full { fails: true }, Method::GET, "/stats/summary").await;
    assert_eq!((code, text.as_str()), (500, "error getting status from provider: broken"));
}

#[tokio::test]
async fn routes_exist_with_and_without_a_final_slash() {
    for path in ["/pods", "/pods/", "/runningpods/", "/stats/summary/", "/metrics/resource/", "/containerLogs/ns/pod/c/"] {
        assert_eq!(ask(Full { fails: false }, Method::GET, path).await.0, 200, "{path}");
        assert_eq!(ask(Nothing, Method::GET, path).await.0, 501, "{path}");
    }
    let (code, _, text) = ask(Nothing, Method::GET, "/nothing").await;
    assert_eq!((code, text.as_str()), (404, "404 request not found"));
    let (code, _, text) = ask(Nothing, Method::DELETE, "/pods").await;
    assert_eq!((code, text.as_str()), (405, "405 method not allowed"));
}

#[tokio::test]
async fn bad_requests_are_told_what_is_bad() {
    let logs = |query: &'static str| ask(Full { fails: false }, Method::GET, query);
    assert_eq!(logs("/containerLogs/ns/pod/c?tailLines=5").await.2, "ns/pod/c Some(5)");
    assert_eq!(logs("/containerLogs/ns/pod/c?tailLines=-5").await, (400, "text/plain; charset=utf-8".into(), "\"tailLines\" is -5".into()));
    assert_eq!(logs("/containerLogs/ns/pod/none").await.0, 404);
    let exec = |query: &'static str| ask(Full { fails: false }, Method::POST, query);
    assert_eq!(exec("/exec/ns/pod/c?command=a").await.2, "you must specify at least one of stdin, stdout, stderr");
    assert_eq!(exec("/exec/ns/pod/c?output=1").await.2, "you must specify a command");
    assert_eq!(
        exec("/exec/ns/pod/c?output=1&command=a").await,
        (400, "text/plain; charset=utf-8".into(), "Upgrade request required".into())
    );
    assert_eq!(exec("/portForward/ns/pod").await.0, 400);
}

async fn head(stream: &mut DuplexStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap().to_ascii_lowercase()
}

fn handshake(path: &str, more: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: n\r\nConnection: keep-alive, Upgrade\r\n{more}\r\n\r\n")
}

const WEBSOCKET: &str = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

#[tokio::test]
async fn handshakes_choose_a_protocol_or_say_which_there_are() {
    let api = Api::new(Arc::new(Full { fails: false }), CancellationToken::new());
    let answer = async |path: &str, more: String| {
        let mut stream = serve(&api, false);
        stream.write_all(handshake(path, &more).as_bytes()).await.unwrap();
        head(&mut stream).await
    };
    let exec = "/exec/ns/pod/c?output=1&command=a";
    let head = answer(exec, format!("{WEBSOCKET}Sec-WebSocket-Protocol: v5.channel.k8s.io, v4.channel.k8s.io")).await;
    assert!(head.starts_with("http/1.1 101"), "{head}");
    assert!(head.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "{head}");
    assert!(head.contains("sec-websocket-protocol: v5.channel.k8s.io"), "{head}");
    let head = answer(exec, "Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io".into()).await;
    assert!(head.starts_with("http/1.1 101") && head.contains("x-stream-protocol-version: v4.channel.k8s.io"), "{head}");
    let head = answer(exec, "Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v9.channel.k8s.io".into()).await;
    assert!(head.starts_with("http/1.1 403"), "{head}");
    let head = answer("/exec/ns/pod/other/c?output=1&command=a", format!("{WEBSOCKET}Sec-WebSocket-Protocol: v5.channel.k8s.io")).await;
    assert!(head.starts_with("http/1.1 404"), "{head}");
}

#[tokio::test]
async fn a_stuck_command_ends_with_its_client_or_server() {
    let stop = CancellationToken::new();
    let api = Api::new(Arc::new(Full { fails: false }), stop.clone());
    let begin = async || {
        let mut stream = serve(&api, false);
        let more = format!("{WEBSOCKET}Sec-WebSocket-Protocol: v5.channel.k8s.io");
        stream.write_all(handshake("/exec/ns/pod/c?output=1&command=a", &more).as_bytes()).await.unwrap();
        assert!(head(&mut stream).await.starts_with("http/1.1 101"));
        stream
    };
    api.sessions.close();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let (first, second) = (begin().await, begin().await);
    assert_eq!(api.open_sessions(), 2);
    drop(first);
    while api.open_sessions() != 1 {
        tokio::task::yield_now().await;
    }
    stop.cancel();
    api.sessions.wait().await;
    drop(second);
    while tasks() != before {
        tokio::task::yield_now().await;
    }
}
