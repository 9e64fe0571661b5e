//! Clients that check without pause and count what goes wrong.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};

/// Load that is running.
pub struct Load {
    counts: Arc<Counts>,
    stop: Arc<AtomicBool>,
    clients: JoinSet<Vec<String>>,
}

#[derive(Default)]
struct Counts {
    asked: AtomicU64,
}

impl Load {
    /// So many clients that open a connection per check, and so many that keep theirs until told otherwise.
    pub fn start(port: u16, fresh: usize, kept: usize) -> Self {
        let (counts, stop) = (Arc::new(Counts::default()), Arc::new(AtomicBool::new(false)));
        let mut clients = JoinSet::new();
        for keeps in std::iter::repeat_n(false, fresh).chain(std::iter::repeat_n(true, kept)) {
            clients.spawn(client(port, keeps, counts.clone(), stop.clone()));
        }
        Self { counts, stop, clients }
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

    /// Ends it: checks made, and what went wrong.
    pub async fn stop(self) -> (u64, Vec<String>) {
        self.stop.store(true, Relaxed);
        let wrong = self.clients.join_all().await.concat();
        (self.counts.asked.load(Relaxed), wrong)
    }
}

async fn client(port: u16, keeps: bool, counts: Arc<Counts>, stop: Arc<AtomicBool>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut kept = None;
    while !stop.load(Relaxed) {
        match timeout(Duration::from_secs(5), check(port, keeps, &mut kept)).await {
            Ok(Ok(answer)) if answer.starts_with("HTTP/1.1 200 ") => {}
            Ok(Ok(answer)) => wrong.push(answer),
            Ok(Err(error)) => wrong.push(error.to_string()),
            Err(_) => wrong.push("no answer".into()),
        }
        counts.asked.fetch_add(1, Relaxed);
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
