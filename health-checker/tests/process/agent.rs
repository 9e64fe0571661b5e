//! One health-checker process.

use crate::api::{Api, UID8};
use health_checker::ready;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    net::{Ipv6Addr, SocketAddr, TcpListener},
    path::PathBuf,
    process::Stdio,
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::{Child, Command},
    time::timeout,
};

/// For everything that is to happen at all.
pub const DEADLINE: Duration = Duration::from_mins(2);

/// Of the resource's health checkers.
const KEY: &str = "sixteen bytes, or more";

static STARTED: AtomicU32 = AtomicU32::new(0);

/// Held while an agent is started, and while a port is tried: until a child has its program, it shares every socket of this process, and
/// the port would stay taken.
static STARTS: Mutex<()> = Mutex::new(());

/// A process, killed when dropped.
pub struct Agent {
    child: Child,
    directory: PathBuf,
}

/// A port that is free now.
pub fn free_port() -> u16 {
    let _no_child = STARTS.lock().expect("nothing panics with it");
    let (listener, port) = taken_port();
    drop(listener);
    port
}

/// A port that was free, and who took it.
pub fn taken_port() -> (TcpListener, u16) {
    // Not from the ephemeral range, out of which clients of other tests could take it.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let offset = (std::process::id() + NEXT.fetch_add(1, Relaxed)) % 9000;
        let port = 20_000 + u16::try_from(offset).expect("below 9000");
        if let Ok(listener) = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)) {
            return (listener, port);
        }
    }
}

impl Agent {
    /// Starts one for the resource `edge`, with these arguments beside the necessary ones.
    pub fn start(api: &Api, port: u16, more: &[&str]) -> Self {
        Self::start_for("edge", api, port, more)
    }

    /// Starts one for a resource.
    pub fn start_for(resource: &str, api: &Api, port: u16, more: &[&str]) -> Self {
        let number = STARTED.fetch_add(1, Relaxed);
        let directory = std::env::temp_dir().join(format!("health-checker-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("creates");
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: \"{}\"}}}}]\n\
             users: [{{name: c, user: {{}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: c}}}}]\n",
            api.url
        );
        std::fs::write(directory.join("kubeconfig"), kubeconfig).expect("writes");
        std::fs::write(directory.join("termination-log"), "").expect("writes");
        std::fs::write(directory.join("key"), KEY).expect("writes");
        let starts = STARTS.lock().expect("nothing panics with it");
        let child = Command::new(env!("CARGO_BIN_EXE_health-checker"))
            .args(["run", "--namespace=default", "--node-name=n1"])
            .arg(format!("--ingress-daemonset={resource}"))
            .arg(format!("--resource-uid8={UID8}"))
            .arg(format!("--port={port}"))
            .arg(format!("--ready-socket={}", directory.join("ready.sock").display()))
            .arg(format!("--termination-log={}", directory.join("termination-log").display()))
            .args(more)
            .env("BIND_ADDRESS", "127.0.0.1")
            .env("PORT_PATIENCE", "1")
            .env("HAND_OVER_KEY", directory.join("key"))
            .env("KUBECONFIG", directory.join("kubeconfig"))
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(directory.join("log")).expect("creates"))
            .kill_on_drop(true)
            .spawn()
            .expect("starts");
        drop(starts);
        Self { child, directory }
    }

    /// Waits until it is synced and holds the port.
    pub async fn ready(&self) {
        let socket = self.directory.join("ready.sock");
        let ready = async {
            while ready::ask(&socket, DEADLINE).await.is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(DEADLINE, ready).await.expect("becomes ready in time");
    }

    /// The file with its key.
    pub fn key(&self) -> PathBuf {
        self.directory.join("key")
    }

    /// Waits until it has logged these words.
    pub async fn logs(&self, words: &str) {
        let logged = async {
            while !self.log().contains(words) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(DEADLINE, logged).await.expect("logs it in time");
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|id| i32::try_from(id).ok()).expect("runs");
        kill(Pid::from_raw(pid), signal).expect("is signalled");
    }

    /// Waits for its end: the exit code, and its termination message.
    pub async fn ended(&mut self) -> (Option<i32>, String) {
        let status = timeout(DEADLINE, self.child.wait()).await.expect("ends in time").expect("is waited for");
        (status.code(), std::fs::read_to_string(self.directory.join("termination-log")).expect("reads"))
    }

    /// Asks it to end and waits until it has.
    pub async fn end(&mut self) {
        self.signal(Signal::SIGTERM);
        assert_eq!(self.ended().await.0, Some(0));
    }

    /// Kills it.
    pub async fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.ended().await;
    }

    /// It has not ended.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("is waited for").is_none()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// One check on a connection of its own.
pub async fn ask(port: u16) -> std::io::Result<String> {
    let exchange = async {
        let mut stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    };
    timeout(DEADLINE, exchange).await.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
}

/// Code and reason of an answer.
pub async fn verdict(port: u16) -> (String, String) {
    let answer = ask(port).await.expect("is answered");
    let code = answer.split(' ').nth(1).unwrap_or_default().to_owned();
    let reason = answer.split(r#""reason":""#).nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default().to_owned();
    (code, reason)
}
