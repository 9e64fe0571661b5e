//! Slow and many clients.

use crate::{
    agent::{Agent, DEADLINE, ask, free_port, verdict},
    api::Api,
};
use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{interval, timeout},
};

/// Limit of simultaneous connections.
const MOST: usize = 512;
const SLOW: usize = 1000;

/// Sends a header a byte at a time, or nothing at all; returns when the server has closed the connection.
async fn dawdle(port: u16, speaks: bool) {
    let mut stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).await.expect("connects");
    let header = b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    let mut seconds = interval(Duration::from_secs(1));
    for byte in header.iter().take(if speaks { header.len() } else { 0 }) {
        seconds.tick().await;
        let mut nothing = [0; 1];
        if stream.write_all(&[*byte]).await.is_err() || stream.try_read(&mut nothing).is_ok() {
            return;
        }
    }
    // A reset is an end, too.
    let _ = stream.read(&mut [0; 1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_slow_clients_are_closed_and_delay_no_check() {
    let (api, port) = (Api::start().await, free_port());
    let agent = Agent::start(&api, port, &[&format!("--max-connections={MOST}")]);
    agent.ready().await;
    let mut slow = JoinSet::new();
    for number in 0..SLOW {
        slow.spawn(dawdle(port, number % 2 == 0));
    }
    // More than fit: the first ones have been closed when all are connected.
    let closed = timeout(DEADLINE, async {
        for _ in 0..SLOW - MOST {
            slow.join_next().await;
        }
    });
    closed.await.expect("those above the limit are closed");
    let mut times = Vec::new();
    for _ in 0..200 {
        let asked = Instant::now();
        assert_eq!(verdict(port).await.0, "200");
        times.push(asked.elapsed());
    }
    times.sort();
    println!("answers beside {} slow clients: median {:?}, longest {:?}", slow.len(), times[100], times[199]);
    assert!(times[100] < Duration::from_millis(500), "{:?}", times[100]);
    let closed = timeout(2 * DEADLINE, slow.join_all());
    closed.await.expect("every slow client is closed in the end");
    assert!(ask(port).await.is_ok());
}

#[tokio::test]
async fn slow_clients_do_not_close_the_balancers_connection() {
    let (api, port) = (Api::start().await, free_port());
    let agent = Agent::start(&api, port, &["--max-connections=16"]);
    agent.ready().await;
    let mut balancer = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).await.expect("connects");
    let mut check = async || {
        balancer.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("writes");
        let mut answer = [0; 2048];
        let read = timeout(DEADLINE, balancer.read(&mut answer)).await.expect("in time").expect("reads");
        assert!(answer[..read].starts_with(b"HTTP/1.1 200 "));
    };
    check().await;
    let mut slow = JoinSet::new();
    for number in 0..100 {
        slow.spawn(dawdle(port, number % 2 == 0));
    }
    for _ in 0..80 {
        timeout(DEADLINE, slow.join_next()).await.expect("those above the limit are closed");
        check().await;
    }
}
