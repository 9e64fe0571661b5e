//! Command line and environment.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::net::SocketAddr;

/// Runs N pods on every chosen node behind an external load balancer, and takes a node out of the load balancer before it
/// updates the pods on it.
#[derive(Debug, Parser)]
#[command(name = "ingress-daemonset-operator", version)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the operator.
    Run(Box<Run>),
    /// Print the `CustomResourceDefinition`s as YAML, for `kubectl apply -f -`.
    Crd,
}

/// Options of `run`.
#[derive(Clone, Debug, Args)]
pub struct Run {
    /// Image of the health checker for resources that name none.
    #[arg(long, env = "HEALTH_CHECKER_IMAGE", default_value = concat!("ingress-daemonset/health-checker:", env!("CARGO_PKG_VERSION")))]
    pub health_checker_image: String,
    /// Address of /livez, /readyz and /metrics.
    #[arg(long, env = "LISTEN_ADDRESS", default_value = "[::]:8080")]
    pub listen_address: SocketAddr,
    /// Name of the Service, in the namespace of the lease, behind which the API server finds the webhook that taints nodes as
    /// they are created, where it has no `MutatingAdmissionPolicies`. Without it there is no webhook. The certificates are
    /// kept in a Secret of the same name.
    #[arg(long, env = "WEBHOOK_SERVICE")]
    pub webhook_service: Option<String>,
    /// Address of that webhook; the Service's port 443 leads there.
    #[arg(long, env = "WEBHOOK_ADDRESS", default_value = "[::]:8443")]
    pub webhook_address: SocketAddr,
    /// Namespace of the lease with which replicas of the operator agree on one that acts.
    #[arg(long, env = "POD_NAMESPACE", default_value = "default")]
    pub lease_namespace: String,
    /// Name of that lease.
    #[arg(long, env = "LEASE_NAME", default_value = "ingress-daemonset-operator")]
    pub lease_name: String,
    /// Name of this replica in the lease; must be unique.
    #[arg(long, env = "POD_NAME", default_value = "ingress-daemonset-operator")]
    pub identity: String,
    /// Seconds within which another replica leads after one that was killed or hangs. The lease itself is shorter by three
    /// times --lease-retry-milliseconds, the time to notice; a replica gives up when it could not renew for two thirds of that.
    #[arg(long, env = "LEASE_DURATION_SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(3..=300))]
    pub lease_duration_seconds: u64,
    /// Milliseconds between two looks at the lease: how fast another replica takes over from one that ends orderly.
    #[arg(long, env = "LEASE_RETRY_MILLISECONDS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(50..=900))]
    pub lease_retry_milliseconds: u64,
    /// Act without a lease. Safe for the budget, but two replicas then do the same work twice.
    #[arg(long, env = "NO_LEADER_ELECTION")]
    pub no_leader_election: bool,
    /// Seconds without an answer of the API server after which a request is given up, and decided on again.
    #[arg(long, env = "REQUEST_TIMEOUT_SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10))]
    pub request_timeout_seconds: u64,
    /// Format of the log, on standard error.
    #[arg(long, env = "LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// What is logged: a level (error, warn, info, debug, trace), or directives such as operator=debug,kube=info.
    #[arg(long, env = "LOG_LEVEL", default_value = "info")]
    pub log_level: String,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
