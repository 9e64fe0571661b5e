//! An API server with one Deployment, one pod and one Node, which can hang.

use parking_lot::{Mutex, MutexGuard};
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{broadcast, watch},
    task::JoinHandle,
};

/// UID of the resource, as far as names need it.
pub const UID8: &str = "0a1b2c3d";

/// The server.
pub struct Api {
    /// `http://127.0.0.1:…`.
    pub url: String,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Hung {
    Nothing,
    Requests,
    All,
}

struct Shared {
    phase: Mutex<&'static str>,
    events: broadcast::Sender<String>,
    hung: watch::Sender<Hung>,
    requests: Mutex<Vec<String>>,
}

impl Drop for Api {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl Api {
    /// Starts it; the node may serve.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let shared = Arc::new(Shared {
            phase: Mutex::new("Closed"),
            events: broadcast::channel(16).0,
            hung: watch::channel(Hung::Nothing).0,
            requests: Mutex::default(),
        });
        let all = shared.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(talk(stream, all.clone()));
            }
        });
        Self { url, shared, task }
    }

    /// Writes a token. A server that hangs altogether tells nobody.
    pub fn write_token(&self, phase: &'static str) {
        *locked(&self.shared.phase) = phase;
        if *self.shared.hung.borrow() != Hung::All {
            let _ = self.shared.events.send(format!(r#"{{"type":"MODIFIED","object":{}}}"#, deployment(phase)));
        }
    }

    /// From now on nothing is answered and no watch says anything, though all connections stay open; or the contrary.
    /// Watches that hung before stay silent for ever.
    pub fn hang(&self, hung: bool) {
        self.shared.hung.send_replace(if hung { Hung::All } else { Hung::Nothing });
    }

    /// New requests are not answered, while watches go on.
    pub fn hang_lists(&self) {
        self.shared.hung.send_replace(Hung::Requests);
    }

    /// Paths asked for so far.
    pub fn requests(&self) -> Vec<String> {
        locked(&self.shared.requests).clone()
    }
}

async fn talk(mut stream: TcpStream, shared: Arc<Shared>) -> Option<()> {
    loop {
        let path = read_path(&mut stream).await?;
        locked(&shared.requests).push(path.clone());
        shared.hung.subscribe().wait_for(|hung| *hung == Hung::Nothing).await.ok()?;
        if path.contains("watch=true") {
            return say_events(stream, &path, &shared).await;
        }
        let body = list(&path, *locked(&shared.phase));
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(answer.as_bytes()).await.ok()?;
    }
}

async fn read_path(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8_lossy(&head).split(' ').nth(1).map(str::to_owned)
}

async fn say_events(mut stream: TcpStream, path: &str, shared: &Shared) -> Option<()> {
    let mut events = shared.events.subscribe();
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n").await.ok()?;
    loop {
        let event = if path.contains("/deployments") { events.recv().await.ok()? } else { std::future::pending().await };
        stream.write_all(format!("{:x}\r\n{event}\n\r\n", event.len() + 1).as_bytes()).await.ok()?;
        // A chunk per event; this server speaks seldom.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn list(path: &str, phase: &str) -> String {
    let (kind, item) = if path.contains("/deployments") {
        ("DeploymentList", deployment(phase))
    } else if path.contains("/pods") {
        ("PodList", POD.to_owned())
    } else {
        ("NodeList", r#"{"metadata":{"name":"n1","uid":"n","resourceVersion":"5"}}"#.to_owned())
    };
    format!(r#"{{"kind":"{kind}","apiVersion":"v1","metadata":{{"resourceVersion":"7"}},"items":[{item}]}}"#)
}

fn deployment(phase: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"edge-n1","uid":"d","resourceVersion":"6","labels":{{"{}":"{UID8}.1.{phase}.0"}}}},"spec":{{"replicas":1}}}}"#,
        crds::names::TOKEN_LABEL
    )
}

const POD: &str = r#"{"metadata":{"name":"p","uid":"p","resourceVersion":"5"},
    "status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}"#;
