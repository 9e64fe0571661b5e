//! The process that is measured.

use std::{
    path::{Path, PathBuf},
    process::Command as Probe,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    process::Command,
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{
    figures::Contender,
    objects::{LEASE_SECONDS, PREFIX},
    server::Server,
};
use crate::host::{images, network, process::Process, process_figures::ProcessFigures};

/// Where our own serves its metrics.
const METRICS: &str = "127.0.0.1:9355";
const API_SERVER_PORT: u16 = 443;
/// How often connections are counted.
const COUNT: Duration = Duration::from_millis(500);

/// A contender that runs.
pub struct Agent {
    contender: Contender,
    process: Process,
    /// What it costs.
    pub figures: ProcessFigures,
    connections: Arc<AtomicU32>,
    counting: JoinHandle<()>,
}

/// Why a contender cannot be measured here, if so.
pub fn missing(contender: Contender) -> Option<String> {
    match contender {
        Contender::Limit => None,
        Contender::Kwok => {
            let path = kwok();
            (!path.is_file()).then(|| format!("{} is not there; `make kwok` builds it", path.display()))
        }
        Contender::Ours => {
            let knows_fleets = images::workspace_binary("virtual-kubelet")
                .ok()
                .is_some_and(|path| Probe::new(path).args(["fleet", "--help"]).output().is_ok_and(|output| output.status.success()));
            (!knows_fleets).then(|| "no virtual-kubelet was built that has the command `fleet`".to_owned())
        }
    }
}

fn kwok() -> PathBuf {
    images::repository().join("target/bed/kwok")
}

/// KWOK as it is shipped, and where that is a choice, the choice that costs it least:
/// - Its fast stages, built in (`e2e/kwok`): a node is Ready, and a pod Running and Ready, in one patch without delay. From a
///   file and not as objects, which it would have to watch.
/// - `--manage-all-nodes`, since all nodes are for it: no selector to evaluate.
/// - `--node-lease-duration-seconds=40`, as its own manifests and `kwokctl` say: renewals every 10 s, as kubelets make them.
/// - The numbers of workers stay its own (four each for leases, pods and nodes); only a configuration file could change them.
/// - Nothing is logged of what works: by default it writes a line for each renewal.
/// - No `--node-port`: no kubelet API to serve.
/// - A range of pod addresses that is as large as the number of pods; its default of 254 is exceeded silently.
fn kwok_arguments() -> Vec<String> {
    [
        "--manage-all-nodes",
        &format!("--node-lease-duration-seconds={LEASE_SECONDS}"),
        &format!("--node-ip={}", network::BED),
        "--cidr=10.0.0.0/8",
        "--v=ERROR",
    ]
    .map(str::to_owned)
    .to_vec()
}

impl Agent {
    /// Starts it.
    pub fn start(contender: Contender, server: &Server, nodes: usize, state: &Path) -> Result<Self> {
        let (program, arguments) = match contender {
            Contender::Ours => {
                let words = ["fleet", "--simulate", &nodes.to_string(), "--name-prefix", PREFIX, "--metrics-address", METRICS];
                (images::workspace_binary("virtual-kubelet")?, words.map(str::to_owned).to_vec())
            }
            Contender::Limit => (std::env::current_exe()?, vec!["fleet-limit".to_owned(), format!("--nodes={nodes}")]),
            Contender::Kwok => (kwok(), kwok_arguments()),
        };
        let mut command = Command::new(program);
        // Kubeconfigs of the user's own are not for it.
        command.args(arguments).arg("--kubeconfig").arg(server.kubeconfig()?).env("HOME", state).env_remove("KUBECONFIG");
        let process = Process::start(contender.name(), &state.join("logs"), command)?;
        let figures = ProcessFigures::of(process.id().context("it has ended at once")?);
        let connections = Arc::new(AtomicU32::new(0));
        let counting = tokio::spawn(count(figures.clone(), Arc::clone(&connections)));
        Ok(Self { contender, process, figures, connections, counting })
    }

    /// Fails, with the end of its log, when it has ended.
    pub fn check(&mut self) -> Result<()> {
        self.process.check()
    }

    /// The end of its log.
    pub fn tail(&self) -> String {
        self.process.tail()
    }

    /// The most connections to the API server that it was seen to have.
    pub fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Its own metrics, where it is ours.
    pub async fn metrics(&self) -> Result<Option<String>> {
        if self.contender != Contender::Ours {
            return Ok(None);
        }
        let mut stream = TcpStream::connect(METRICS).await.context("connecting to its metrics")?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: metrics\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        timeout(Duration::from_secs(10), stream.read_to_string(&mut answer)).await.context("its metrics")??;
        match answer.split_once("\r\n\r\n") {
            Some((head, body)) if head.split(' ').nth(1) == Some("200") => Ok(Some(body.to_owned())),
            _ => bail!("its metrics: {}", answer.lines().next().unwrap_or_default()),
        }
    }

    /// Ends it.
    pub async fn end(self) -> Result<()> {
        self.counting.abort();
        self.process.signal(Signal::SIGTERM)?;
        self.process.kill().await
    }
}

async fn count(figures: ProcessFigures, most: Arc<AtomicU32>) {
    loop {
        most.fetch_max(figures.connections_to(API_SERVER_PORT).unwrap_or_default(), Ordering::Relaxed);
        sleep(COUNT).await;
    }
}
