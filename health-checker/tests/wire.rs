//! What clients of the health port see on the wire.

use health_checker::{
    answer::{Answer, Identity},
    connections::{Limits, Table},
    listener::{BindError, bind_exclusively},
    metrics::Metrics,
    probers::Probers,
    published_verdict::PublishedVerdict,
    server::{HealthPort, serve},
    view::{ReadyPolicy, View},
};
use hyper::StatusCode;
use std::{
    net::{Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(10);

struct Server {
    address: SocketAddr,
    answers: watch::Sender<Arc<Answer>>,
    table: Arc<Table>,
    probers: Arc<Probers>,
    leaving: Arc<AtomicBool>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

fn start(limits: Limits) -> Server {
    let listener = bind_exclusively("127.0.0.1:0".parse().expect("an address")).expect("binds");
    let address = listener.local_addr().expect("bound");
    let identity = Identity { namespace: "edge".into(), name: "contour".into(), node: "n1".into() };
    let (answers, answer) = watch::channel(PublishedVerdict::new(identity, View::new(ReadyPolicy::All)).1);
    let (table, stop, probers, leaving) =
        (Table::new(limits), CancellationToken::new(), Arc::new(Probers::default()), Arc::new(AtomicBool::new(false)));
    let respond = HealthPort { answer, probers: probers.clone(), requests: Metrics::new().requests, leaving: leaving.clone() };
    let task = tokio::spawn(serve(listener, table.clone(), Arc::new(respond), stop.clone()));
    Server { address, answers, table, probers, leaving, stop, task }
}

impl Server {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("connects")
    }

    /// Sends the text and reads until the server closes.
    async fn exchange(&self, text: &str) -> String {
        let mut stream = self.connect().await;
        stream.write_all(text.as_bytes()).await.expect("writes");
        until_closed(&mut stream).await
    }

    fn now_serves(&self) {
        self.answers.send_modify(|answer| Arc::make_mut(answer).status = StatusCode::OK);
    }
}

async fn until_closed(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset is an end, too.
    let _ = timeout(DEADLINE, stream.read_to_end(&mut answer)).await.expect("the server closes");
    String::from_utf8_lossy(&answer).into_owned()
}

/// One request on a connection that stays open.
async fn ask(stream: &mut TcpStream) -> String {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("writes");
    let mut answer = String::new();
    while !answer.contains("\r\n\r\n") || !answer.ends_with('}') {
        let mut piece = [0; 4096];
        let read = timeout(DEADLINE, stream.read(&mut piece)).await.expect("in time").expect("reads");
        assert!(read > 0, "closed after {answer:?}");
        answer.push_str(&String::from_utf8_lossy(&piece[..read]));
    }
    answer
}

#[tokio::test]
async fn any_path_answers_the_latest_verdict_at_once() {
    let server = start(Limits::new(8));
    let mut stream = server.connect().await;
    assert!(ask(&mut stream).await.starts_with("HTTP/1.1 503 Service Unavailable\r\n"));
    server.now_serves();
    assert!(ask(&mut stream).await.starts_with("HTTP/1.1 200 OK\r\n"));
    for path in ["/", "/ok", "/healthz?x=y", "/a/b/c"] {
        let answer = server.exchange(&format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")).await;
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains(r#""service":{"namespace":"edge","name":"contour"}"#),
            "{answer}"
        );
    }
    assert_eq!(server.probers.snapshot()[0].probes, 6);
}

#[tokio::test]
async fn head_has_the_headers_of_get_and_no_body() {
    let server = start(Limits::new(8));
    let answer = server.exchange("HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("\r\n\r\n"), "{answer}");
    for header in [
        "content-type: application/json",
        "cache-control: no-store",
        "x-content-type-options: nosniff",
        "x-load-balancing-endpoint-weight: 0",
    ] {
        assert!(answer.contains(header), "{answer}");
    }
    assert!(!answer.contains("content-length: 0"), "{answer}");
}

#[tokio::test]
async fn http_1_0_without_a_host_is_answered_and_closed() {
    let answer = start(Limits::new(8)).exchange("GET /ok HTTP/1.0\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.0 503 ") && answer.ends_with('}'), "{answer}");
}

#[tokio::test]
async fn other_methods_are_refused_and_their_bodies_not_waited_for() {
    let server = start(Limits::new(8));
    for request in
        ["POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n", "DELETE / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"]
    {
        let answer = server.exchange(request).await;
        assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains("allow: GET, HEAD"), "{answer}");
    }
    assert!(server.probers.snapshot().is_empty());
}

#[tokio::test]
async fn garbage_is_refused_and_the_next_client_is_served() {
    let server = start(Limits::new(8));
    let long = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", "a".repeat(100_000));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(100));
    for garbage in ["\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET\r\n\r\n", &long, &many] {
        let answer = server.exchange(garbage).await;
        assert!(!answer.contains("serviceProxyHealthy"), "{answer}");
    }
    assert!(ask(&mut server.connect().await).await.contains("serviceProxyHealthy"));
}

#[tokio::test]
async fn slow_clients_are_cut_off_while_others_are_served() {
    let server = start(Limits { header: Duration::from_millis(300), ..Limits::new(8) });
    let mut regular = server.connect().await;
    ask(&mut regular).await;
    let mut slow = server.connect().await;
    slow.write_all(b"GET / HTTP/1.1\r\nHost: ").await.expect("writes");
    ask(&mut server.connect().await).await;
    assert_eq!(until_closed(&mut slow).await, "");
    assert_eq!(server.table.timed_out.load(Relaxed), 1);
    ask(&mut regular).await;
}

#[tokio::test]
async fn silent_clients_at_the_limit_do_not_block_balancers() {
    let server = start(Limits::new(4));
    let mut balancer = server.connect().await;
    ask(&mut balancer).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(server.connect().await);
    }
    ask(&mut server.connect().await).await;
    ask(&mut balancer).await;
    assert!(server.table.len() <= 4);
    assert_eq!(until_closed(&mut silent[0]).await, "");
}

#[tokio::test]
async fn a_client_that_never_reads_does_not_delay_others() {
    let server = start(Limits::new(8));
    let mut greedy = server.connect().await;
    let requests = "GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(50_000);
    let _ = timeout(Duration::from_millis(500), greedy.write_all(requests.as_bytes())).await;
    ask(&mut server.connect().await).await;
}

#[tokio::test]
async fn at_shutdown_answers_say_so_and_idle_connections_close() {
    let server = start(Limits::new(8));
    let mut idle = server.connect().await;
    ask(&mut idle).await;
    server.leaving.store(true, Relaxed);
    let mut other = server.connect().await;
    assert!(ask(&mut other).await.contains("connection: close"));
    server.stop.cancel();
    assert_eq!(until_closed(&mut idle).await, "");
    timeout(DEADLINE, server.task).await.expect("ends in time").expect("does not panic");
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn the_port_is_taken_exclusively_and_conflicts_are_explained() {
    let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
    let first = bind_exclusively(any).expect("binds");
    let port = first.local_addr().expect("bound").port();
    let v4 = SocketAddr::new([127, 0, 0, 1].into(), port);
    assert!(TcpStream::connect(v4).await.is_ok(), "`::` is IPv4, too");
    for address in [SocketAddr::new(any.ip(), port), v4] {
        let error = bind_exclusively(address).expect_err("is taken");
        assert!(matches!(error, BindError::InUse { .. }) && error.to_string().contains(&format!("ss -ltnp sport = :{port}")), "{error}");
    }
}

/// With proxy protocol on, an NLB's health checks carry a header without addresses (`LOCAL`), others one of the balancer's connection.
#[tokio::test]
async fn a_check_behind_a_proxy_protocol_header_is_answered() {
    let server = start(Limits { header: Duration::from_millis(200), ..Limits::new(8) });
    server.now_serves();
    let get = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    for header in [
        b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00".to_vec(),
        [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c"[..], &[10, 0, 0, 1, 10, 0, 0, 2, 1, 1, 2, 2]].concat(),
        b"PROXY TCP4 10.0.0.1 10.0.0.2 1000 2000\r\n".to_vec(),
    ] {
        let mut stream = server.connect().await;
        stream.write_all(&[&header[..], get].concat()).await.expect("writes");
        let answer = until_closed(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{header:?}: {answer}");
    }
    assert_eq!(server.exchange("PROXY TCP4 and no end").await, "", "within the limits of a header, for it is one");
}

/// The table is full of clients that ask; the load balancer's new connection has a round trip to go before its request arrives.
#[tokio::test]
async fn asking_clients_do_not_displace_a_newly_connected_balancer() {
    let server = start(Limits::new(4));
    server.now_serves();
    let mut rude = Vec::new();
    for _ in 0..4 {
        let mut stream = server.connect().await;
        ask(&mut stream).await;
        rude.push(stream);
    }
    let mut balancer = server.connect().await;
    // Its place is taken when somebody else has lost one.
    while server.table.displaced.load(Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    let mut one_more = server.connect().await;
    ask(&mut one_more).await;
    balancer.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.expect("writes");
    let answer = until_closed(&mut balancer).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "the balancer's check failed: {answer:?}");
}
