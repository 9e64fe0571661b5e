//! The port goes from process to process.

use crate::{
    agent::{Agent, DEADLINE, ask, free_port, taken_port, verdict},
    api::{Api, UID8},
    load::Load,
};
use health_checker::peer_proof::{Exchange, PeerKey, Side};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixSocket, UnixStream},
    time::timeout,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_hand_overs_under_load_lose_no_check() {
    let (api, port) = (Api::start().await, free_port());
    let mut old = Agent::start(&api, port, &[]);
    old.ready().await;
    let load = Load::start(port, 8, 8);
    load.asks(100).await;
    for _ in 0..60 {
        let new = Agent::start(&api, port, &[]);
        new.ready().await;
        old.end().await;
        old = new;
    }
    load.asks(100).await;
    // The machine may stand still some times; a health checker that is silent at each hand-over makes sixty.
    load.all_answered(5).await;
}

#[tokio::test]
async fn a_predecessor_goes_on_when_its_successor_is_killed() {
    let (api, port) = (Api::start().await, free_port());
    let old = Agent::start(&api, port, &[]);
    old.ready().await;
    for _ in 0..5 {
        let mut new = Agent::start(&api, port, &[]);
        new.ready().await;
        new.kill().await;
        assert_eq!(verdict(port).await.0, "200");
    }
}

#[tokio::test]
async fn every_living_predecessor_learns_that_the_last_successor_died() {
    let (api, port) = (Api::start().await, free_port());
    let first = Agent::start(&api, port, &[]);
    first.ready().await;
    let mut second = Agent::start(&api, port, &[]);
    second.ready().await;
    let mut third = Agent::start(&api, port, &[]);
    third.ready().await;
    second.kill().await;
    assert_eq!(verdict(port).await.0, "200");
    third.kill().await;
    assert_eq!(verdict(port).await.0, "200");
    let fourth = Agent::start(&api, port, &[]);
    fourth.ready().await;
    drop(first);
    assert_eq!(verdict(port).await.0, "200");
}

#[tokio::test]
async fn an_ending_process_hands_over_and_then_leaves() {
    let (api, port) = (Api::start().await, free_port());
    let mut old = Agent::start(&api, port, &["--shutdown-grace=25"]);
    old.ready().await;
    let load = Load::start(port, 2, 2);
    old.signal(Signal::SIGTERM);
    load.asks(100).await;
    assert!(old.runs(), "it answers on");
    let asked = Instant::now();
    let new = Agent::start(&api, port, &[]);
    new.ready().await;
    assert_eq!(old.ended().await.0, Some(0));
    assert!(asked.elapsed() < Duration::from_secs(20), "it waited for the end of its grace period");
    load.asks(100).await;
    // One hand-over cannot be told from a machine that stands still: the test of sixty judges that.
    load.all_answered(1).await;
}

#[tokio::test]
async fn a_process_without_successor_answers_until_its_grace_ends() {
    let (api, port) = (Api::start().await, free_port());
    let mut agent = Agent::start(&api, port, &["--shutdown-grace=1"]);
    agent.ready().await;
    agent.signal(Signal::SIGTERM);
    let asked = Instant::now();
    while agent.runs() {
        let answer = ask(port).await;
        assert!(answer.is_ok() || asked.elapsed() > Duration::from_millis(900), "{answer:?} after {:?}", asked.elapsed());
    }
    assert!(asked.elapsed() < Duration::from_secs(5));
    let next = Agent::start(&api, port, &[]);
    next.ready().await;
}

#[tokio::test]
async fn a_port_held_by_another_resource_is_a_conflict() {
    let (api, port) = (Api::start().await, free_port());
    let mut holder = Agent::start(&api, port, &[]);
    holder.ready().await;
    let mut other = Agent::start_for("other", &api, port, &[]);
    let (code, words) = other.ended().await;
    assert_eq!(code, Some(i32::from(crds::names::PORT_CONFLICT_EXIT_CODE)));
    assert!(words.starts_with(&format!("port {port} is taken")) && words.contains("IngressDaemonSet default/edge (0a1b2c3d)"), "{words}");
    assert!(holder.runs() && ask(port).await.expect("answers").contains(r#""name":"edge""#));
}

#[tokio::test]
async fn a_strangers_port_is_a_conflict_until_freed() {
    let (api, (stranger, port)) = (Api::start().await, taken_port());
    let (code, words) = Agent::start(&api, port, &[]).ended().await;
    assert_eq!(code, Some(i32::from(crds::names::PORT_CONFLICT_EXIT_CODE)));
    assert!(words.contains(&format!("`ss -ltnp sport = :{port}`")), "{words}");
    let patient = Agent::start(&api, port, &["--port-patience=20"]);
    patient.logs("the port is taken").await;
    drop(stranger);
    patient.ready().await;
}

#[tokio::test]
async fn a_free_port_is_served_despite_a_strangers_socket() {
    let (api, port) = (Api::start().await, free_port());
    let stranger = UnixListener::bind(format!("\0ingress-daemonset-health-checker/{port}")).expect("binds");
    let agent = Agent::start(&api, port, &[]);
    agent.ready().await;
    assert_eq!(verdict(port).await.0, "200");
    drop(stranger);
    let next = Agent::start(&api, port, &["--port-patience=20"]);
    next.ready().await;
}

#[tokio::test]
async fn another_address_waits_for_the_resources_old_one() {
    let (api, port) = (Api::start().await, free_port());
    let mut old = Agent::start(&api, port, &["--shutdown-grace=0"]);
    old.ready().await;
    let (code, words) = Agent::start(&api, port, &["--bind-address=::"]).ended().await;
    assert!(code == Some(i32::from(crds::names::PORT_CONFLICT_EXIT_CODE)) && words.contains("address 127.0.0.1"), "{words}");
    let patient = Agent::start(&api, port, &["--bind-address=::", "--port-patience=20"]);
    old.end().await;
    patient.ready().await;
}

#[tokio::test]
async fn a_successor_that_falls_silent_delays_others_only_briefly() {
    let (api, port) = (Api::start().await, free_port());
    let old = Agent::start(&api, port, &[]);
    old.ready().await;
    let mute = UnixStream::connect(format!("\0ingress-daemonset-health-checker/{port}")).await.expect("connects");
    let new = Agent::start(&api, port, &["--port-patience=20"]);
    timeout(DEADLINE, new.ready()).await.expect("in time");
    drop(mute);
}

/// An answer to these words.
async fn said(stream: &mut UnixStream, words: &Value) -> Value {
    stream.write_all(format!("{words}\n").as_bytes()).await.expect("is heard");
    let mut answer = [0; 2048];
    let read = stream.read(&mut answer).await.expect("is answered");
    serde_json::from_slice(&answer[..read]).expect("JSON")
}

/// A connection over which somebody asked by this protocol, and the answer.
async fn asked(port: u16, protocol: u32) -> (UnixStream, Value) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let door = format!("\0ingress-daemonset-health-checker/{port}");
    let socket = UnixSocket::new_stream().expect("a socket");
    // A process that another test is about to start has a copy of each socket for a moment, and keeps its name taken.
    socket.bind(format!("{door}/somebody-{}", NUMBER.fetch_add(1, Ordering::Relaxed))).expect("binds");
    let mut stream = socket.connect(door).await.expect("connects");
    let party = serde_json::json!({"protocol": protocol, "namespace": "default", "name": "edge", "uid8": UID8, "address": "127.0.0.1"});
    let answer = said(&mut stream, &party).await;
    (stream, answer)
}

#[tokio::test]
async fn another_program_of_the_user_cannot_get_the_port() {
    let (api, port) = (Api::start().await, free_port());
    let mut holder = Agent::start(&api, port, &[]);
    holder.ready().await;
    // As former releases asked, and as this one asks, with a proof that somebody made up.
    let (former, answer) = asked(port, 1).await;
    assert_eq!(answer["gives"], false, "{answer}");
    drop(former);
    let (mut stranger, _) = asked(port, 2).await;
    let answer = said(&mut stranger, &serde_json::json!(vec![0; 32])).await;
    assert_eq!(answer["gives"], false, "{answer}");
    let key = holder.key().with_file_name("another-key");
    std::fs::write(&key, "sixteen other bytes").expect("writes");
    let (code, words) = Agent::start(&api, port, &[&format!("--hand-over-key={}", key.display())]).ended().await;
    assert_eq!(code, Some(i32::from(crds::names::PORT_CONFLICT_EXIT_CODE)));
    assert!(words.contains("did not prove to each other"), "{words}");
    assert!(holder.runs() && ask(port).await.is_ok());
}

#[tokio::test]
async fn a_process_terminated_during_handover_still_completes_it() {
    let (api, port) = (Api::start().await, free_port());
    let mut old = Agent::start(&api, port, &["--shutdown-grace=25"]);
    old.ready().await;
    let (mut successor, challenge) = asked(port, 2).await;
    let newcomer = successor.local_addr().expect("bound").as_abstract_name().expect("has a name").to_vec();
    let challenge: Vec<u8> = serde_json::from_value(challenge["challenge"].clone()).expect("a challenge");
    let exchange = Exchange { newcomer: &newcomer, challenge: &challenge, node: "n1", port };
    let proof = PeerKey::read(&old.key()).expect("a key").prove(Side::Newcomer, &exchange);
    let given = said(&mut successor, &serde_json::json!(proof)).await;
    assert_eq!(given["gives"], true, "{given}");
    old.signal(Signal::SIGTERM);
    // It says so to its clients once it has noticed.
    while !ask(port).await.expect("answers").contains("connection: close") {}
    let asked = Instant::now();
    successor.write_all(b"taken\n").await.expect("has taken the port");
    assert_eq!(old.ended().await.0, Some(0));
    assert!(asked.elapsed() < Duration::from_secs(20), "it waited for the end of its grace period");
}
