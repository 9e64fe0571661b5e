//! Clients that check without pause and count what goes wrong.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};

/// How long a load balancer waits for an answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Checks that each client makes in a second at least: an answer takes a tenth of [`PATIENCE`] at most, on average.
const LEAST_PER_SECOND: u64 = 10;

/// Load that is running.
pub struct Load {
    started: Instant,
    counts: Arc<Counts>,
    stop: Arc<AtomicBool>,
    clients: JoinSet<Vec<String>>,
}

#[derive(Default)]
struct Counts {
    asked: AtomicU64,
    late: AtomicU64,
}

impl Load {
    /// So many clients that open a connection per check, and so many that keep theirs until told otherwise.
    pub fn start(port: u16, fresh: usize, kept: usize) -> Self {
        let (counts, stop) = (Arc::new(Counts::default()), Arc::new(AtomicBool::new(false)));
        let mut clients = JoinSet::new();
        for keeps in std::iter::repeat_n(false, fresh).chain(std::iter::repeat_n(true, kept)) {
            clients.spawn(client(port, keeps, counts.clone(), stop.clone()));
        }
        Self { started: Instant::now(), counts, stop, clients }
    }

    /// Checks made so far.
    pub fn asked(&self) -> u64 {
        self.counts.asked.load(Relaxed)
    }

    /// Waits until that many more have been made.
    pub async fn asks(&self, more: u64) {
        let until = self.asked() + more;
        let reached = async {
            while self.asked() < until {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(Duration::from_secs(30), reached).await.expect("the load goes on");
    }

    /// Ends it. All checks were answered with 200, all but `may_be_late` of each client within [`PATIENCE`], and there were as many as in
    /// that time must be.
    pub async fn all_answered(self, may_be_late: u64) {
        let clients = u64::try_from(self.clients.len()).expect("few clients");
        let least = self.started.elapsed().as_secs() * clients * LEAST_PER_SECOND;
        self.stop.store(true, Relaxed);
        let wrong = self.clients.join_all().await.concat();
        let (asked, late) = (self.counts.asked.load(Relaxed), self.counts.late.load(Relaxed));
        assert!(wrong.is_empty(), "{} of {asked} checks failed, such as {:?}", wrong.len(), wrong.first());
        assert!(late <= may_be_late * clients, "{late} of {asked} checks took longer than {PATIENCE:?}");
        assert!(asked >= least, "{asked} checks, not {least}");
    }
}

async fn client(port: u16, keeps: bool, counts: Arc<Counts>, stop: Arc<AtomicBool>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut kept = None;
    while !stop.load(Relaxed) {
        let began = Instant::now();
        match timeout(Duration::from_secs(5), check(port, keeps, &mut kept)).await {
            Ok(Ok(answer)) if answer.starts_with("HTTP/1.1 200 ") => {}
            Ok(Ok(answer)) => wrong.push(answer),
            Ok(Err(error)) => wrong.push(error.to_string()),
            Err(_) => wrong.push("no answer".into()),
        }
        counts.asked.fetch_add(1, Relaxed);
        counts.late.fetch_add(u64::from(began.elapsed() > PATIENCE), Relaxed);
    }
    wrong
}

async fn check(port: u16, keeps: bool, kept: &mut Option<TcpStream>) -> io::Result<String> {
    let mut stream = match kept.take() {
        Some(stream) => stream,
        None => TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).await?,
    };
    let connection = if keeps { "keep-alive" } else { "close" };
    stream.write_all(format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: {connection}\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    while !answer.ends_with('}') {
        let mut piece = [0; 2048];
        let read = stream.read(&mut piece).await?;
        if read == 0 {
            return Err(io::Error::other(format!("closed after {answer:?}")));
        }
        answer.push_str(&String::from_utf8_lossy(&piece[..read]));
    }
    if keeps && !answer.contains("connection: close") {
        *kept = Some(stream);
    }
    Ok(answer)
}
