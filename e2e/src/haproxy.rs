//! `HAProxy` as the external load balancer: health checks, no retries, no redispatch, so that nothing is hidden.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    process::Command,
};

use crate::{eventually::eventually, namespaces::find_program, network, process::Process};

/// The one backend.
const BACKEND: &str = "nodes";
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
    check: Check,
}

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
        ensure!(columns.contains_key("svname"), "HAProxy's statistics have no column `svname`: {header}");
        let mut counters = Self::default();
        for line in lines.filter(|line| !line.is_empty()) {
            let fields: Vec<_> = line.split(',').collect();
            let field = |name: &str| columns.get(name).and_then(|index| fields.get(*index)).copied().unwrap_or_default();
            let count = |name: &str| field(name).parse::<u64>().unwrap_or_default();
            match (field("pxname"), field("svname")) {
                (_, "FRONTEND") => {
                    counters.requests += count("req_tot");
                    counters.server_errors += count("hrsp_5xx");
                }
                (BACKEND, "BACKEND") => {
                    counters.connection_errors += count("econ");
                    counters.response_errors += count("eresp");
                }
                (BACKEND, server) => {
                    let server_counters = Server {
                        status: field("status").to_owned(),
                        last_check: field("check_status").to_owned(),
                        sessions: count("scur"),
                        requests: count("stot"),
                        connection_errors: count("econ"),
                        response_errors: count("eresp"),
                        server_errors: count("hrsp_5xx"),
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
        let this = Self { socket: directory.join("admin.sock"), check };
        let config = directory.join("haproxy.cfg");
        std::fs::write(&config, this.configuration(nodes)).with_context(|| format!("writing {}", config.display()))?;
        let mut command = Command::new(program);
        command.arg("-db").arg("-f").arg(&config);
        let mut process = Process::start("haproxy", &state.join("logs"), command)?;
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
             defaults\n  mode http\n  maxconn 4000\n  timeout connect 2s\n  timeout client 30s\n  timeout server 30s\n  \
             timeout check 1s\n  retries 0\n  no option redispatch\n\n\
             frontend web\n  bind {bed}:80\n  default_backend {BACKEND}\n\n\
             backend {BACKEND}\n  balance roundrobin\n  option httpchk GET /\n",
            socket = self.socket.display(),
            bed = network::BED,
        );
        for (name, address) in nodes {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  server {name} {address}:80 {}", self.check_words());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CSV: &str = "# pxname,svname,scur,stot,econ,eresp,status,hrsp_5xx,req_tot,\n\
                       web,FRONTEND,3,9,,,OPEN,4,1000,\n\
                       nodes,n1,1,500,1,2,UP,3,,\n\
                       nodes,n2,0,500,0,0,DRAIN,0,,\n\
                       nodes,BACKEND,1,1000,1,2,UP,3,1000,\n";

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
}
