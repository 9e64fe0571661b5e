//! Health checks as load balancers make them, without pause: each node on connections made for one check, and on
//! connections that are kept as long as the node keeps them.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;

/// Time between two checks of one client.
const EVERY: Duration = Duration::from_millis(5);
/// A load balancer would not wait longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Checks under way.
pub struct Checks {
    asked: Arc<AtomicU64>,
    stop: CancellationToken,
    clients: JoinSet<Vec<String>>,
}

impl Checks {
    /// Starts two clients of each kind for each address.
    pub fn start(addresses: Vec<SocketAddr>) -> Self {
        let (asked, stop, mut clients) = (Arc::<AtomicU64>::default(), CancellationToken::new(), JoinSet::new());
        for address in addresses {
            for keeps in [false, false, true, true] {
                clients.spawn(check_on(address, keeps, asked.clone(), stop.clone()));
            }
        }
        Self { asked, stop, clients }
    }

    /// Checks made so far.
    pub fn asked(&self) -> u64 {
        self.asked.load(Relaxed)
    }

    /// Ends them: how many were made, and what was wrong with those that were not answered 200.
    pub async fn stop(self) -> (u64, Vec<String>) {
        self.stop.cancel();
        let wrong = self.clients.join_all().await.concat();
        (self.asked.load(Relaxed), wrong)
    }
}

async fn check_on(address: SocketAddr, keeps: bool, asked: Arc<AtomicU64>, stop: CancellationToken) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut kept = None;
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !stop.is_cancelled() {
        ticks.tick().await;
        match timeout(PATIENCE, check(address, keeps, &mut kept)).await {
            Ok(Ok(answer)) if answer.starts_with("HTTP/1.1 200 ") => {}
            Ok(Ok(answer)) => wrong.push(format!("{address}: {answer}")),
            Ok(Err(error)) => wrong.push(format!("{address}: {error}")),
            Err(_) => wrong.push(format!("{address}: no answer within {PATIENCE:?}")),
        }
        asked.fetch_add(1, Relaxed);
    }
    wrong
}

/// One check, on the kept connection if there is one.
async fn check(address: SocketAddr, keeps: bool, kept: &mut Option<TcpStream>) -> io::Result<String> {
    let mut stream = match kept.take() {
        Some(stream) => stream,
        None => TcpStream::connect(address).await?,
    };
    let connection = if keeps { "keep-alive" } else { "close" };
    stream.write_all(format!("GET / HTTP/1.1\r\nHost: node\r\nConnection: {connection}\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    while !answer.ends_with('}') {
        let mut piece = [0; 2048];
        let read = stream.read(&mut piece).await?;
        if read == 0 {
            return Err(io::Error::other(format!("closed after {answer:?}")));
        }
        answer.push_str(&String::from_utf8_lossy(piece.get(..read).unwrap_or_default()));
    }
    if keeps && !answer.contains("connection: close") {
        *kept = Some(stream);
    }
    Ok(answer)
}
