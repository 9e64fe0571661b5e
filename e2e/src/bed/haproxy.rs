//! `HAProxy` as the external load balancer: health checks, no retries, no redispatch, so that nothing is hidden.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    process::Command,
};

use crate::{
    eventually::eventually,
    host::{namespaces::find_program, network, process::Process},
};

/// The one backend.
const BACKEND: &str = "nodes";
/// What is read of its statistics.
const COLUMNS: [&str; 10] = ["pxname", "svname", "status", "check_status", "scur", "stot", "req_tot", "hrsp_5xx", "econ", "eresp"];
/// How long its start, and what it does with a server, may take. It takes a second on a machine that is idle.
const START: Duration = Duration::from_mins(1);

/// How nodes are asked for their health.
#[derive(Clone, Debug)]
pub struct Check {
    /// The port asked, which is the health checker's or the workload's own.
    pub port: u16,
    /// Time between two checks.
    pub interval: Duration,
    /// So many bad answers take a node out.
    pub fall: u32,
    /// So many good answers take it back.
    pub rise: u32,
}

impl Default for Check {
    fn default() -> Self {
        Self { port: 10080, interval: Duration::from_millis(200), fall: 2, rise: 2 }
    }
}

impl Check {
    /// The default check on another port.
    pub fn on_port(port: u16) -> Self {
        Self { port, ..Self::default() }
    }
}

/// The load balancer, shareable between the detacher, the scenario and the live view.
#[derive(Clone, Debug)]
pub struct HaProxy {
    socket: PathBuf,
    log: PathBuf,
    check: Check,
    /// Load through it was dropped, so that nobody knows what became of its requests.
    unjudged: Arc<AtomicBool>,
}

/// How long a request may take in all, as with load balancers elsewhere. Then it has failed: the client gets a 504.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// What `HAProxy` says about one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Server {
    /// `UP`, `DOWN`, `DRAIN`, `UP 1/2`, `MAINT`, …
    pub status: String,
    /// Outcome of the last check: `L7OK`, `L4CON`, `INI` before the first one, …
    pub last_check: String,
    /// Requests in flight.
    pub sessions: u64,
    /// Requests so far.
    pub requests: u64,
    /// Failed connections.
    pub connection_errors: u64,
    /// Connections that broke before or in the answer.
    pub response_errors: u64,
    /// Answers with a 5xx status, `HAProxy`'s own included.
    pub server_errors: u64,
}

impl Server {
    /// New requests are sent to it.
    pub fn takes_traffic(&self) -> bool {
        self.status.starts_with("UP") || self.status == "no check"
    }
}

/// A reading of the counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// By server, which is named as its node.
    pub servers: BTreeMap<String, Server>,
    /// Requests that reached the frontend.
    pub requests: u64,
    /// 5xx answers that clients got.
    pub server_errors: u64,
    /// Failed connections to servers, and requests that found no server at all.
    pub connection_errors: u64,
    /// Broken answers of servers.
    pub response_errors: u64,
}

impl Counters {
    /// Failures since an `earlier` reading, by their greatest count: one failed request shows up in several counters.
    pub fn failures_since(&self, earlier: &Self) -> u64 {
        (self.server_errors.saturating_sub(earlier.server_errors))
            .max(self.connection_errors.saturating_sub(earlier.connection_errors))
            .max(self.response_errors.saturating_sub(earlier.response_errors))
    }

    /// Reads the CSV of `show stat`.
    pub fn parse(csv: &str) -> Result<Self> {
        let mut lines = csv.lines();
        let header = lines.next().unwrap_or_default().trim_start_matches("# ");
        let columns: BTreeMap<_, _> = header.split(',').enumerate().map(|(index, name)| (name, index)).collect();
        for name in COLUMNS {
            ensure!(columns.contains_key(name), "HAProxy's statistics have no column `{name}`: {header}");
        }
        let mut counters = Self::default();
        for line in lines.filter(|line| !line.is_empty()) {
            let fields: Vec<_> = line.split(',').collect();
            let field = |name: &str| columns.get(name).and_then(|index| fields.get(*index)).copied().unwrap_or_default();
            // A counter that a line does not have is empty. Of one that cannot be read nothing is known.
            let count = |name: &str| match field(name) {
                "" => Ok(0),
                number => number.parse::<u64>().with_context(|| format!("HAProxy's `{name}` is {number}")),
            };
            match (field("pxname"), field("svname")) {
                (_, "FRONTEND") => {
                    counters.requests += count("req_tot")?;
                    counters.server_errors += count("hrsp_5xx")?;
                }
                (BACKEND, "BACKEND") => {
                    counters.connection_errors += count("econ")?;
                    counters.response_errors += count("eresp")?;
                }
                (BACKEND, server) => {
                    let server_counters = Server {
                        status: field("status").to_owned(),
                        last_check: field("check_status").to_owned(),
                        sessions: count("scur")?,
                        requests: count("stot")?,
                        connection_errors: count("econ")?,
                        response_errors: count("eresp")?,
                        server_errors: count("hrsp_5xx")?,
                    };
                    counters.servers.insert(server.to_owned(), server_counters);
                }
                _ => {}
            }
        }
        Ok(counters)
    }
}

impl HaProxy {
    /// Starts it on port 80 of the bed with these nodes as servers.
    pub async fn start(state: &Path, nodes: &[(String, Ipv4Addr)], check: Check) -> Result<(Self, Process)> {
        let program = find_program("haproxy").context("haproxy is not installed; `make deps` installs it")?;
        let directory = state.join("haproxy");
        std::fs::create_dir_all(&directory).with_context(|| format!("creating {}", directory.display()))?;
        let logs = state.join("logs");
        let this = Self { socket: directory.join("admin.sock"), log: logs.join("haproxy.log"), check, unjudged: Arc::default() };
        let config = directory.join("haproxy.cfg");
        std::fs::write(&config, this.configuration(nodes)).with_context(|| format!("writing {}", config.display()))?;
        let mut command = Command::new(program);
        command.arg("-db").arg("-f").arg(&config);
        let mut process = Process::start("haproxy", &logs, command)?;
        eventually(START, "HAProxy answers", async || {
            process.check()?;
            this.counters().await.map(drop)
        })
        .await?;
        Ok((this, process))
    }

    /// Adds a node while it runs. `HAProxy` 2.6 opens a connection per request to such a server and closes it again; load
    /// that is measured goes to the nodes given at the start.
    pub async fn add(&self, node: &str, address: Ipv4Addr) -> Result<()> {
        // HAProxy takes a new server for healthy until its checks say otherwise: no weight before they have spoken.
        self.command(&format!("add server {BACKEND}/{node} {address}:80 weight 0 {}", self.check_words())).await?;
        self.command(&format!("enable health {BACKEND}/{node}")).await?;
        self.command(&format!("set server {BACKEND}/{node} state ready")).await?;
        eventually(START, &format!("HAProxy has checked {node}"), async || {
            let counters = self.counters().await?;
            let server = counters.servers.get(node).context("it does not know the server")?;
            ensure!(server.last_check == "L7OK" || server.status.starts_with("DOWN"), "{server:?}");
            Ok(())
        })
        .await?;
        self.command(&format!("set server {BACKEND}/{node} weight 1")).await
    }

    /// Takes a node out for good; connections to it are cut.
    pub async fn remove(&self, node: &str) -> Result<()> {
        self.command(&format!("set server {BACKEND}/{node} state maint")).await?;
        self.command(&format!("shutdown sessions server {BACKEND}/{node}")).await?;
        let what = format!("HAProxy lets go of server {node}");
        eventually(START, &what, async || self.command(&format!("del server {BACKEND}/{node}")).await).await
    }

    /// Sends no new requests to a node; those in flight finish.
    pub async fn drain(&self, node: &str) -> Result<()> {
        self.command(&format!("set server {BACKEND}/{node} state drain")).await
    }

    /// Lets health checks decide again whether the node gets requests.
    pub async fn undrain(&self, node: &str) -> Result<()> {
        self.command(&format!("set server {BACKEND}/{node} state ready")).await
    }

    /// Asks a node for its health on another port from now on.
    pub async fn check_on(&self, node: &str, port: u16) -> Result<()> {
        self.command(&format!("set server {BACKEND}/{node} check-port {port}")).await
    }

    /// Reads all counters.
    pub async fn counters(&self) -> Result<Counters> {
        Counters::parse(&self.ask("show stat").await?)
    }

    /// Waits until exactly these nodes get requests.
    pub async fn serves(&self, deadline: Duration, nodes: &[&str]) -> Result<()> {
        eventually(deadline, &format!("HAProxy sends requests to exactly {nodes:?}"), async || {
            let counters = self.counters().await?;
            let serving: Vec<_> =
                counters.servers.iter().filter(|(_, server)| server.takes_traffic()).map(|(name, _)| name.as_str()).collect();
            let mut wanted = nodes.to_vec();
            wanted.sort_unstable();
            ensure!(serving == wanted, "it sends them to {serving:?}");
            Ok(())
        })
        .await
    }

    /// Nodes that get requests now.
    async fn serving(&self) -> Result<BTreeSet<String>> {
        let servers = self.counters().await?.servers;
        Ok(servers.into_iter().filter(|(_, server)| server.takes_traffic()).map(|(name, _)| name).collect())
    }

    /// Notes what comes and goes from now on.
    pub async fn watch(&self) -> Result<Watch> {
        // In this order a change between the two is in both.
        let from = self.lines().await?.len();
        Ok(Watch { haproxy: self.clone(), from, at_first: self.serving().await? })
    }

    async fn lines(&self) -> Result<Vec<String>> {
        let text = tokio::fs::read(&self.log).await.with_context(|| format!("reading {}", self.log.display()))?;
        Ok(String::from_utf8_lossy(&text).lines().map(str::to_owned).collect())
    }

    /// Somebody drops load without a look at what became of its requests.
    pub(crate) fn loses_load(&self) {
        self.unjudged.store(true, Relaxed);
    }

    /// Fails when load was dropped without a look at what became of its requests.
    pub fn check(&self) -> Result<()> {
        ensure!(!self.unjudged.load(Relaxed), "load was dropped, and nobody judged what became of its requests");
        Ok(())
    }

    /// Runs a command of the runtime API that answers nothing, or one of its good words, when it worked.
    async fn command(&self, command: &str) -> Result<()> {
        let answer = self.ask(command).await?;
        let answer = answer.trim();
        let good = answer.is_empty() || answer.contains("registered") || answer.contains("deleted") || answer.contains("updated");
        ensure!(good, "HAProxy refused `{command}`: {answer}");
        Ok(())
    }

    async fn ask(&self, command: &str) -> Result<String> {
        let mut stream = UnixStream::connect(&self.socket).await.with_context(|| format!("connecting to {}", self.socket.display()))?;
        stream.write_all(format!("{command}\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.with_context(|| format!("reading HAProxy's answer to `{command}`"))?;
        Ok(answer)
    }

    fn check_words(&self) -> String {
        let Check { port, interval, fall, rise } = &self.check;
        format!("check port {port} inter {}ms fall {fall} rise {rise}", interval.as_millis())
    }

    fn configuration(&self, nodes: &[(String, Ipv4Addr)]) -> String {
        let mut text = format!(
            "global\n  stats socket {socket} mode 600 level admin\n  stats timeout 10m\n  maxconn 4000\n  nbthread 1\n\n\
             defaults\n  mode http\n  maxconn 4000\n  timeout connect {patience}s\n  timeout client 30s\n  timeout server {patience}s\n  \
             timeout check 1s\n  retries 0\n  no option redispatch\n\n\
             frontend web\n  bind {bed}:80\n  default_backend {BACKEND}\n\n\
             backend {BACKEND}\n  balance roundrobin\n  option httpchk GET /\n",
            socket = self.socket.display(),
            bed = network::BED,
            patience = PATIENCE.as_secs(),
        );
        for (name, address) in nodes {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  server {name} {address}:80 {}", self.check_words());
        }
        text
    }
}

/// Which nodes got requests since a moment, by `HAProxy`'s own log: it has a line for each change, so that none goes unseen however
/// short it was.
#[derive(Debug)]
pub struct Watch {
    haproxy: HaProxy,
    /// Lines of the log at that moment.
    from: usize,
    at_first: BTreeSet<String>,
}

/// A node begins or ceases to get requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The server, which is named as its node.
    pub node: String,
    /// Nodes that get requests from then on.
    pub serving: usize,
    /// In `HAProxy`'s words, with the reason.
    pub words: String,
}

impl Change {
    /// `Server nodes/n1 is DOWN, reason: …. 3 active and 0 backup servers left. …`
    fn parse(line: &str) -> Option<Self> {
        let (_, words) = line.split_once(&format!("Server {BACKEND}/"))?;
        let (before, _) = words.split_once(" active and ")?;
        let serving = before.rsplit(' ').next()?.parse().ok()?;
        let node = words.split([' ', ',']).next()?.to_owned();
        Some(Self { node, serving, words: words.to_owned() })
    }
}

impl Watch {
    /// Every change since then, in order.
    pub async fn changes(&self) -> Result<Vec<Change>> {
        eventually(START, "HAProxy's log has what its statistics say", async || {
            let changes: Vec<_> = self.haproxy.lines().await?.iter().skip(self.from).filter_map(|line| Change::parse(line)).collect();
            let now = self.haproxy.serving().await?.len();
            let logged = changes.last().map_or(self.at_first.len(), |change| change.serving);
            ensure!(now == logged, "{now} nodes get requests, by the log {logged}: {changes:?}");
            Ok(changes)
        })
        .await
    }

    /// Fails when fewer nodes than these got requests at any time since then.
    pub async fn at_least(&self, nodes: usize) -> Result<()> {
        ensure!(self.at_first.len() >= nodes, "only {:?} got requests at first", self.at_first);
        let changes = self.changes().await?;
        let fewer: Vec<_> = changes.iter().filter(|change| change.serving < nodes).collect();
        ensure!(fewer.is_empty(), "fewer than {nodes} nodes got requests: {fewer:?}");
        Ok(())
    }

    /// Fails when others than these got requests at any time since then.
    pub async fn exactly(&self, nodes: &[&str]) -> Result<()> {
        let at_first = self.at_first.iter().map(String::as_str);
        ensure!(at_first.eq(nodes.iter().copied().collect::<BTreeSet<_>>()), "{:?} got requests at first", self.at_first);
        let changes = self.changes().await?;
        ensure!(changes.is_empty(), "it did not stay so: {changes:?}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CSV: &str = "# pxname,svname,scur,stot,econ,eresp,status,hrsp_5xx,req_tot,check_status,\n\
                       web,FRONTEND,3,9,,,OPEN,4,1000,,\n\
                       nodes,n1,1,500,1,2,UP,3,,L7OK,\n\
                       nodes,n2,0,500,0,0,DRAIN,0,,L7OK,\n\
                       nodes,BACKEND,1,1000,1,2,UP,3,1000,,\n";

    #[test]
    fn statistics_tell_servers_from_totals() {
        let counters = Counters::parse(CSV).unwrap();
        assert_eq!(counters.requests, 1000);
        assert_eq!((counters.server_errors, counters.connection_errors, counters.response_errors), (4, 1, 2));
        assert_eq!(counters.servers.keys().collect::<Vec<_>>(), ["n1", "n2"]);
        assert!(counters.servers["n1"].takes_traffic());
        assert!(!counters.servers["n2"].takes_traffic());
        assert_eq!(counters.failures_since(&Counters::default()), 4);
        assert_eq!(counters.failures_since(&counters), 0);
    }

    #[test]
    fn something_else_than_statistics_is_an_error() {
        assert!(Counters::parse("Unknown command\n").is_err());
    }

    #[test]
    fn a_missing_or_unreadable_counter_is_an_error() {
        assert!(Counters::parse(&CSV.replace("hrsp_5xx", "renamed")).is_err());
        assert!(Counters::parse(&CSV.replace("OPEN,4,", "OPEN,many,")).is_err());
    }

    #[test]
    fn log_lines_tell_the_changed_node_and_serving_count() {
        let down = "[WARNING]  (12) : Server nodes/n1 is DOWN, reason: Layer7 wrong status, code: 503, info: \"Service Unavailable\", check \
                    duration: 0ms. 3 active and 0 backup servers left. 0 sessions active, 0 requeued, 0 remaining in queue.";
        let change = Change::parse(down).unwrap();
        assert_eq!((change.node.as_str(), change.serving), ("n1", 3));
        let up = "[WARNING]  (12) : Server nodes/n1 is UP, reason: Layer7 check passed, code: 200, check duration: 0ms. 4 active and 0 \
                  backup servers online. 0 sessions requeued, 0 total in queue.";
        assert_eq!(Change::parse(up).unwrap().serving, 4);
        assert_eq!(Change::parse("[NOTICE]   (12) : Loading success."), None);
    }
}
