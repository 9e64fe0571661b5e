use super::*;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::io::copy_bidirectional;

const PATIENCE: Duration = Duration::from_secs(10);

/// A key in a file, which is gone when this is dropped.
struct KeyFile(PathBuf);

impl KeyFile {
    fn new(name: &str, key: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // Tests that run at once have the same process.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("hand-over-{name}-{}-{number}", std::process::id()));
        std::fs::write(&path, key).expect("writes");
        Self(path)
    }

    fn member(&self, node: &str) -> Member {
        let party = Party::new("edge", "contour", "0a1b2c3d", IpAddr::from([127, 0, 0, 1]));
        Member { party, node: node.into(), key: self.0.clone(), takes_unproved: false }
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Port and door of a member, and both numbers.
async fn holder(member: &Member) -> (Held, u16) {
    let port = bind_exclusively(SocketAddr::from(([127, 0, 0, 1], 0))).expect("binds").local_addr().expect("bound").port();
    (take(member, port, PATIENCE).await.expect("nobody has it"), port)
}

/// The answer to a newcomer that comes by this door, which passes on to the holder's whatever is said, if it is not the holder's.
async fn asked_through(relay: Option<&str>, newcomer: &Member) -> (Result<bool, Obstacle>, bool) {
    let keys = KeyFile::new(relay.unwrap_or("directly"), "sixteen bytes, or more");
    let (mut held, port) = holder(&keys.member("n1")).await;
    let door = UnixListener::bind(door_name(port)).expect("nobody listens there");
    held.door.listener = Some(door);
    let relayed = relay.map(|name| {
        let name = format!("\0{name}/{port}");
        let listener = UnixListener::bind(&name).expect("binds");
        let stranger = tokio::spawn(async move {
            let (mut newcomer, _) = listener.accept().await.expect("somebody comes");
            let mut holder = connect(&door_name(port)).await.expect("connects");
            let _ = copy_bidirectional(&mut newcomer, &mut holder).await;
        });
        (name, stranger)
    });
    let door = relayed.as_ref().map_or_else(|| door_name(port), |(name, _)| name.clone());
    let asks = async {
        let stream = connect(&door).await.expect("connects");
        ask_holder(stream, newcomer, PROTOCOL, port).await.map(|held| held.from_another())
    };
    let answers = async {
        let Held { port, door } = &mut held;
        let stream = door.knock().await;
        door.answer(stream, port).await.is_ok_and(|line| line.is_some())
    };
    let outcome = tokio::join!(asks, answers);
    if let Some((_, stranger)) = relayed {
        stranger.abort();
    }
    outcome
}

#[tokio::test]
async fn a_health_checker_that_has_the_key_gets_the_port() {
    let keys = KeyFile::new("same", "sixteen bytes, or more");
    assert_eq!(asked_through(None, &keys.member("n1")).await, (Ok(true), true));
}

/// It listened on the door before the holder did, and asks the holder while a newcomer asks it.
#[tokio::test]
async fn a_relay_between_two_health_checkers_gets_nothing() {
    let keys = KeyFile::new("relayed", "sixteen bytes, or more");
    assert_eq!(asked_through(Some("relay"), &keys.member("n1")).await, (Err(Obstacle::Unproved), false));
}

#[tokio::test]
async fn a_proof_from_another_node_or_key_is_refused() {
    let (keys, others) = (KeyFile::new("here", "sixteen bytes, or more"), KeyFile::new("elsewhere", "sixteen other bytes"));
    for member in [keys.member("n2"), others.member("n1")] {
        assert_eq!(asked_through(None, &member).await, (Err(Obstacle::Unproved), false));
    }
}

#[tokio::test]
async fn without_a_key_takeover_fails_and_names_the_file() {
    let none = KeyFile::new("empty", "");
    let (asked, given) = asked_through(None, &none.member("n1")).await;
    assert!(matches!(&asked, Err(Obstacle::NoKey(why)) if why.contains("hand-over-empty")), "{asked:?}");
    assert!(!given);
}

/// Gives the socket of a port to whoever asks by the protocol of former releases, and with a proof that it made up to others. It may be one
/// of them, or whoever took the port before anybody else.
async fn gives_without_proof(port: TcpListener, door: UnixListener, knows_proofs: bool) {
    let me = Party { protocol: UNPROVED, ..Party::new("edge", "contour", "0a1b2c3d", IpAddr::from([127, 0, 0, 1])) };
    loop {
        let (mut stream, _) = door.accept().await.expect("somebody comes");
        let asker: Party = serde_json::from_slice(&read_line(&mut stream).await.expect("asks")).expect("a party");
        let mut reply = Reply { holder: me.clone(), gives: false, challenge: vec![1; 16], proof: vec![1; 32] };
        if knows_proofs {
            stream.write_all(&message(&reply)).await.expect("answers");
            let _ = read_line(&mut stream).await;
        }
        reply.challenge.clear();
        reply.gives = knows_proofs || asker.protocol == UNPROVED;
        let gives = reply.gives;
        let sockets = [port.as_fd(), door.as_fd()];
        send(&stream, &message(&reply), if gives { &sockets } else { &[] }).await.expect("answers");
        if gives {
            let _ = read_line(&mut stream).await;
            std::future::pending::<()>().await;
        }
    }
}

#[tokio::test]
async fn unproved_sockets_are_taken_only_from_releases_without_proofs() {
    let keys = KeyFile::new("former", "sixteen bytes, or more");
    for (takes_unproved, knows_proofs, outcome) in [
        (false, false, Err(Obstacle::OtherProtocol(UNPROVED))),
        (true, false, Ok(true)),
        (false, true, Err(Obstacle::Unproved)),
        (true, true, Err(Obstacle::Unproved)),
    ] {
        let port = bind_exclusively(SocketAddr::from(([127, 0, 0, 1], 0))).expect("binds");
        let number = port.local_addr().expect("bound").port();
        let door = UnixListener::bind(door_name(number)).expect("nobody listens there");
        let former = tokio::spawn(gives_without_proof(port, door, knows_proofs));
        let member = Member { takes_unproved, ..keys.member("n1") };
        let taken = take(&member, number, Duration::ZERO).await.map(|held| held.from_another());
        former.abort();
        match taken {
            Err(TakeError::Conflict { obstacle, .. }) => assert_eq!(Err(obstacle), outcome),
            other => assert_eq!(other.ok(), outcome.ok(), "{takes_unproved} {knows_proofs}"),
        }
    }
}
