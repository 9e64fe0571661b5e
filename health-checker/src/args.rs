//! The command line.
// Comments here become the text of --help, where back quotes around names only disturb.
#![allow(clippy::doc_markdown)]

use clap::{Args, Parser, Subcommand, ValueEnum};
use health_checker::{admin::AdminAddress, view::ReadyPolicy};
use std::{net::IpAddr, path::PathBuf};

/// Answers the load balancer for its node: 200 when the node's pods are ready and nothing is about to change them, else 503.
#[derive(Debug, Parser)]
#[command(name = "health-checker", version)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Watch the node's Deployment, pods and Node, and answer on the health port.
    Run(Box<Run>),
    /// Exit with 0 when the serving process of this pod is synced and holds its port. For the pod's readiness probe.
    Check(Check),
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct Run {
    /// Namespace of the IngressDaemonSet.
    #[arg(long, env = "NAMESPACE")]
    pub namespace: String,

    /// Name of the IngressDaemonSet, for the answer's body.
    #[arg(long, env = "INGRESS_DAEMONSET")]
    pub ingress_daemonset: String,

    /// First 8 characters of the UID of the IngressDaemonSet: the value of the label that its Deployments and pods carry.
    #[arg(long, env = "RESOURCE_UID8", value_parser = label_value)]
    pub resource_uid8: String,

    /// Name of the node that this process runs on.
    #[arg(long, env = "NODE_NAME", value_parser = node_name)]
    pub node_name: String,

    /// Port to answer on.
    #[arg(long, env = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,

    /// Address to answer on. `::` is every address, IPv4 as well, and IPv4 alone on nodes without IPv6.
    #[arg(long, env = "BIND_ADDRESS", default_value = "::")]
    pub bind_address: IpAddr,

    /// How many pods must be ready: `all` that the Deployment wants, or `at-least=N`.
    #[arg(long, env = "READY_POLICY", default_value = "all")]
    pub ready_policy: ReadyPolicy,

    /// Unix socket (absolute path) or loopback address with port for /livez, /readyz, /metrics and /probes. None by default.
    #[arg(long, env = "ADMIN_SOCKET")]
    pub admin_socket: Option<AdminAddress>,

    /// Unix socket on which `check` asks. The directory must belong to this pod alone.
    #[arg(long, env = "READY_SOCKET", default_value = "/tmp/health-checker-ready.sock")]
    pub ready_socket: PathBuf,

    /// Seconds without news from the API server after which the pods' readiness probes are repeated from here; 0 never does.
    #[arg(long, env = "PROBE_AFTER", default_value_t = 10)]
    pub probe_after: u32,

    /// Seconds without a word from a watch, bookmarks included, after which it is given up and made anew. The API server
    /// sends a bookmark a minute.
    #[arg(long, env = "WATCH_SILENCE", default_value_t = 75, value_parser = clap::value_parser!(u32).range(1..))]
    pub watch_silence: u32,

    /// Connections that the health port serves at a time; beyond it the least useful one is closed.
    #[arg(long, env = "MAX_CONNECTIONS", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub max_connections: u32,

    /// File with the key that proves to other health checkers of the resource that this is one. Without it the port is neither given nor
    /// taken over.
    #[arg(long, env = "HAND_OVER_KEY", default_value = "/run/hand-over/key")]
    pub hand_over_key: PathBuf,

    /// Take the port over from a health checker of a release that proves nothing, too. For the update from such a release alone.
    #[arg(long, env = "TAKE_UNPROVED")]
    pub take_unproved: bool,

    /// Seconds to wait for a port that somebody else has, and does not hand over, before giving up with exit code 3.
    #[arg(long, env = "PORT_PATIENCE", default_value_t = 10)]
    pub port_patience: u32,

    /// Where the reason of a failed end is written for the kubelet, if the file exists.
    #[arg(long, env = "TERMINATION_LOG", default_value = "/dev/termination-log")]
    pub termination_log: PathBuf,

    /// Seconds to go on answering after SIGTERM, less when another process has taken the port; a second signal ends it at once.
    #[arg(long, env = "SHUTDOWN_GRACE", default_value_t = 5)]
    pub shutdown_grace: u32,

    /// Form of the log.
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// Least level of the log: error, warn, info, debug, trace, or directives such as `info,health_checker=debug`.
    #[arg(long, env = "LOG_LEVEL", default_value = "info", value_parser = log_level)]
    pub log_level: String,
}

/// Arguments of `check`.
#[derive(Debug, Args)]
pub struct Check {
    /// The socket given to `run`.
    #[arg(long, env = "READY_SOCKET", default_value = "/tmp/health-checker-ready.sock")]
    pub ready_socket: PathBuf,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

fn log_level(text: &str) -> Result<String, String> {
    tracing_subscriber::EnvFilter::try_new(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// It becomes part of a selector.
fn label_value(text: &str) -> Result<String, String> {
    let fine = !text.is_empty() && text.len() <= 63 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if fine { Ok(text.to_owned()) } else { Err("not a label value".into()) }
}

/// It becomes part of a field selector.
fn node_name(text: &str) -> Result<String, String> {
    let fine = !text.is_empty() && text.len() <= 253 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    if fine { Ok(text.to_owned()) } else { Err("not a node name".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn values_that_would_change_a_selector_are_refused() {
        assert!(label_value("0a1b2c3d").is_ok() && label_value("a,b=c").is_err() && label_value("").is_err());
        assert!(node_name("ip-10-0-0-1.ec2.internal").is_ok() && node_name("a,metadata.name!=b").is_err());
    }
}
