//! The command line.
// Comments here become the text of --help, where back quotes around names only disturb.
#![allow(clippy::doc_markdown)]

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use health_checker::{admin::AdminAddress, view::ReadyPolicy};
use std::{net::IpAddr, path::PathBuf};

/// Answers the load balancer for its node: 200 if the node's pods are ready and no change of them is scheduled, else 503.
#[derive(Debug, Parser)]
#[command(name = "health-checker", version)]
pub struct Arguments {
    /// Subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Watch the node's Deployment and pods, and its Node if that is allowed, and answer on the health port.
    Run(Box<Run>),
    /// Exit with 0 if the serving process of this pod is synced and holds its port. For the pod's readiness probe.
    Check(Check),
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct Run {
    /// Namespace of the IngressDaemonSet.
    #[arg(long, env = "NAMESPACE")]
    pub namespace: String,

    /// Name of the IngressDaemonSet, for the body of answers.
    #[arg(long, env = "INGRESS_DAEMONSET")]
    pub ingress_daemonset: String,

    /// First 8 characters of the UID of the IngressDaemonSet: the value of a label of its Deployments and pods.
    #[arg(long, env = "RESOURCE_UID8", value_parser = label_value)]
    pub resource_uid8: String,

    /// Name of the node that this process runs on.
    #[arg(long, env = "NODE_NAME", value_parser = node_name)]
    pub node_name: String,

    /// Port to answer on.
    #[arg(long, env = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,

    /// Address to answer on. `::` is every IPv6 and IPv4 address; on nodes without IPv6, every IPv4 address.
    #[arg(long, env = "BIND_ADDRESS", default_value = "::")]
    pub bind_address: IpAddr,

    /// Number of pods that must be ready: `all` that the Deployment wants, or `at-least=N`.
    #[arg(long, env = "READY_POLICY", default_value = "all")]
    pub ready_policy: ReadyPolicy,

    /// Unix socket (absolute path), or loopback address with port, that serves /livez, /readyz, /metrics and /probes. Default: none.
    #[arg(long, env = "ADMIN_SOCKET")]
    pub admin_socket: Option<AdminAddress>,

    /// Unix socket that `check` uses. Its directory must belong to this pod alone.
    #[arg(long, env = "READY_SOCKET", default_value = "/tmp/health-checker-ready.sock")]
    pub ready_socket: PathBuf,

    /// false: do not watch the Node, for which this process then needs no right. Only the operator tells it then that the node is about
    /// to be taken away.
    #[arg(long, env = "WATCH_NODE", value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    pub watch_node: bool,

    /// Seconds without news from the API server after which this process repeats the readiness probes of the pods. 0: never.
    #[arg(long, env = "PROBE_AFTER", default_value_t = 10)]
    pub probe_after: u32,

    /// Seconds without data from a watch, bookmarks included, after which this process restarts the watch. The API server sends a
    /// bookmark each minute.
    #[arg(long, env = "WATCH_SILENCE", default_value_t = 75, value_parser = clap::value_parser!(u32).range(1..))]
    pub watch_silence: u32,

    /// Maximum number of open connections on the health port. Beyond it, the least useful connection is closed.
    #[arg(long, env = "MAX_CONNECTIONS", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub max_connections: u32,

    /// File with the key that proves to other health checkers of the resource that this process is one of them. Without the key, this
    /// process neither hands over its port nor takes one over.
    #[arg(long, env = "HAND_OVER_KEY", default_value = "/run/hand-over/key")]
    pub hand_over_key: PathBuf,

    /// Also take over the port from a health checker of a release without proof. Use it only to update from such a release.
    #[arg(long, env = "TAKE_UNPROVED")]
    pub take_unproved: bool,

    /// Seconds to wait for a port that another process has and does not hand over. After that, this process ends with exit code 3.
    #[arg(long, env = "PORT_PATIENCE", default_value_t = 10)]
    pub port_patience: u32,

    /// File for the kubelet with the reason of a failed end. It is written only if it exists.
    #[arg(long, env = "TERMINATION_LOG", default_value = "/dev/termination-log")]
    pub termination_log: PathBuf,

    /// Seconds to keep answering after SIGTERM, or less if another process has taken over the port. A second signal ends the process
    /// at once.
    #[arg(long, env = "SHUTDOWN_GRACE", default_value_t = 5)]
    pub shutdown_grace: u32,

    /// Format of the log.
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// Log level (error, warn, info, debug, trace), or directives such as `info,health_checker=debug`.
    #[arg(long, env = "LOG_LEVEL", default_value = "info", value_parser = log_level)]
    pub log_level: String,
}

/// Arguments of `check`.
#[derive(Debug, Args)]
pub struct Check {
    /// Socket of `run`, its --ready-socket.
    #[arg(long, env = "READY_SOCKET", default_value = "/tmp/health-checker-ready.sock")]
    pub ready_socket: PathBuf,
}

/// Format of the log.
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
