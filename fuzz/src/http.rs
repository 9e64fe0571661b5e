//! Bytes on a connection to the health port: whatever they are, the next client is answered.

use health_checker::{
    answer::Identity,
    connections::{Limits, Table},
    listener::Accept,
    metrics::Metrics,
    probers::Probers,
    published_verdict::PublishedVerdict,
    server::{HealthPort, serve},
    view::{ReadyPolicy, View},
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, LazyLock, atomic::AtomicBool},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    runtime::{Builder, Runtime},
    sync::{Mutex, mpsc, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(10);

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Builder::new_current_thread().enable_all().build().expect("a runtime"));

/// Connections that are made here instead of by a network.
struct Clients(Mutex<mpsc::Receiver<DuplexStream>>);

impl Accept for Clients {
    type Stream = DuplexStream;

    async fn accept_one(&self) -> io::Result<(DuplexStream, Option<IpAddr>)> {
        match self.0.lock().await.recv().await {
            Some(stream) => Ok((stream, Some(IpAddr::from(Ipv4Addr::LOCALHOST)))),
            None => std::future::pending().await,
        }
    }
}

/// The bytes arrive in two pieces, the first as long as the first byte says; then somebody else asks.
pub fn run(data: &[u8]) {
    RUNTIME.block_on(async {
        let (connect, clients) = mpsc::channel(4);
        let identity = Identity { namespace: "edge".into(), name: "web".into(), node: "n1".into() };
        let (_answers, answer) = watch::channel(PublishedVerdict::new(identity, View::new(ReadyPolicy::All)).1);
        let respond = HealthPort {
            answer,
            probers: Arc::new(Probers::default()),
            requests: Metrics::new().requests,
            leaving: Arc::new(AtomicBool::new(false)),
        };
        let stop = CancellationToken::new();
        let table = Table::new(Limits::new(4));
        let server = tokio::spawn(serve(Clients(Mutex::new(clients)), table, Arc::new(respond), stop.clone()));
        let (first, rest) = data.split_at(data.first().map_or(0, |length| usize::from(*length).min(data.len())));
        let answer = exchange(&connect, &[first, rest]).await;
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{:?}", String::from_utf8_lossy(&answer));
        let answer = exchange(&connect, &[b"GET / HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n\r\n"]).await;
        assert!(answer.starts_with(b"HTTP/1.1 503 "), "{:?}", String::from_utf8_lossy(&answer));
        stop.cancel();
        timeout(DEADLINE, server).await.expect("the server ends").expect("without a panic");
    });
}

async fn exchange(connect: &mpsc::Sender<DuplexStream>, pieces: &[&[u8]]) -> Vec<u8> {
    let (mut client, server) = tokio::io::duplex(64);
    connect.send(server).await.expect("the server accepts");
    let (mut reader, mut writer) = tokio::io::split(&mut client);
    let write = async {
        for piece in pieces {
            // The server may have had enough.
            if writer.write_all(piece).await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
        let _ = writer.shutdown().await;
    };
    let mut answer = Vec::new();
    let read = async {
        let _ = timeout(DEADLINE, reader.read_to_end(&mut answer)).await.expect("the connection ends");
    };
    tokio::join!(write, read);
    answer
}
