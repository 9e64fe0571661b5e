//! One Kubernetes node that runs its pods as local processes, or a fleet of nodes that run nothing.

mod fleet_command;
mod kubelet_api;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;
use virtual_kubelet::node::{MachineFacts, NaiveNodeProvider, NodeController, new_node, with_node_enable_lease_v1};
use virtual_kubelet::pod::environment::NodeFacts;
use virtual_kubelet::pod::{Events, PodController};
use virtual_kubelet::process::{ImageTable, KubeletHandlers, Powers, ProcessProvider, Site, claim, container_init, end_all, shim};

#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Register a node and run the pods that land on it as local processes.
    Run(Box<RunArgs>),
    /// Register many nodes whose pods are simulated.
    Fleet(Box<fleet_command::FleetArgs>),
    /// End all pods of a node that does not return. Its agent must have ended before, because an agent that ends leaves pods running.
    EndPods {
        /// The node's directory, as given to `run`.
        #[arg(long, env = "ROOT_DIR")]
        root_dir: PathBuf,
        /// Seconds from the stop signal of each container to its kill.
        #[arg(long, default_value_t = 30)]
        grace_seconds: u64,
    },
    /// Supervise a container (internal, for `run`).
    #[command(hide = true)]
    ContainerShim {
        /// The container's directory.
        directory: PathBuf,
    },
    /// Become a container (internal, for `run`).
    #[command(hide = true)]
    ContainerInit {
        /// File with the container's order.
        order: PathBuf,
    },
    /// Run a command beside a container (internal, for `run`).
    #[command(hide = true)]
    ContainerExec {
        /// File with the container's order.
        order: PathBuf,
        /// Process id of the container.
        pid: i32,
        /// Command and arguments.
        #[arg(last = true)]
        argv: Vec<String>,
    },
}

#[derive(Args)]
struct RunArgs {
    /// Name of the node.
    #[arg(long, env = "NODE_NAME")]
    node_name: String,
    /// Address of the node and of its pods. It must exist on this machine.
    #[arg(long, env = "NODE_IP")]
    node_ip: String,
    /// Kubeconfig with the identity system:node:<name>.
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: PathBuf,
    /// JSON file: image name -> {"command": [...], ...}. It is read again at each start of a container.
    #[arg(long, env = "IMAGES")]
    images: PathBuf,
    /// Directory for volumes, logs and records of processes. It must belong to this node alone.
    #[arg(long, env = "ROOT_DIR")]
    root_dir: PathBuf,
    #[command(flatten)]
    node: NodeArgs,
    /// Size in bytes at which a container's log file is rotated.
    #[arg(long, env = "CONTAINER_LOG_MAX_BYTES", default_value_t = shim::LogRotation::default().max_bytes)]
    container_log_max_bytes: u64,
    /// Maximum number of log files of one run of a container, including the present one.
    #[arg(long, env = "CONTAINER_LOG_MAX_FILES", default_value_t = shim::LogRotation::default().max_files)]
    container_log_max_files: usize,
    /// Minimum seconds for which all pods are unready after SIGHUP, as after the restart of a kubelet that forgot the results of its
    /// probes.
    #[arg(long, env = "RESTART_UNREADY_SECONDS", default_value_t = 10)]
    restart_unready_seconds: u64,
    #[command(flatten)]
    api: kubelet_api::ApiArgs,
}

/// Properties of a node, whether it is one or one of thousands.
#[derive(Args)]
struct NodeArgs {
    /// Labels of each node: key=value,…
    #[arg(long, env = "NODE_LABELS", value_delimiter = ',', value_parser = parse_label)]
    labels: Vec<(String, String)>,
    /// Taints of a node at its creation: key[=value]:Effect,…
    #[arg(long, env = "NODE_TAINTS", value_delimiter = ',', value_parser = parse_taint)]
    taints: Vec<Taint>,
    /// CPUs that a node reports.
    #[arg(long, env = "NODE_CPU", default_value = "8")]
    cpu: String,
    /// Memory that a node reports.
    #[arg(long, env = "NODE_MEMORY", default_value = "16Gi")]
    memory: String,
    /// Maximum number of pods that a node reports.
    #[arg(long, env = "NODE_PODS", default_value = "110")]
    pods: String,
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected key=value")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn parse_taint(text: &str) -> Result<Taint, String> {
    let (name, effect) = text.rsplit_once(':').ok_or("expected key[=value]:Effect")?;
    let (key, value) = name.split_once('=').map_or((name, None), |(key, value)| (key, Some(value.to_owned())));
    Ok(Taint { key: key.to_owned(), value, effect: effect.to_owned(), time_added: None })
}

fn main() -> Result<()> {
    // The container subcommands must stay single-threaded: the kernel lets only such a process join mounts.
    match Cli::parse().command {
        Action::EndPods { root_dir, grace_seconds } => {
            let _claim = claim(&root_dir).context("claiming the directory")?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(end_all(&root_dir, Duration::from_secs(grace_seconds)));
            Ok(())
        }
        Action::ContainerShim { directory } => std::process::exit(shim::run(&directory)),
        Action::ContainerInit { order } => std::process::exit(container_init::run(&order)),
        Action::ContainerExec { order, pid, argv } => std::process::exit(container_init::exec_beside(&order, pid, &argv)),
        Action::Run(args) => with_runtime("info,kube_client=error", run(*args)),
        // Thousands of requests fail in the same way, of which the fleet itself tells once.
        Action::Fleet(args) => with_runtime("info,kube_client=off", fleet_command::run(*args)),
    }
}

fn with_runtime(default_filter: &str, command: impl Future<Output = Result<()>>) -> Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default_filter));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(command)
}

async fn connect(kubeconfig: &Path) -> Result<Client> {
    Ok(Client::try_from(configured(kubeconfig).await?)?)
}

async fn configured(kubeconfig: &Path) -> Result<Config> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // Retries are decided where the request is made.
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    Ok(config)
}

async fn run(args: RunArgs) -> Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = connect(&args.kubeconfig).await.context("connecting to the API server")?;
    std::fs::create_dir_all(&args.root_dir).context("making the root directory")?;
    let root = args.root_dir.canonicalize()?;
    let facts = MachineFacts {
        name: args.node_name.clone(),
        internal_ip: args.node_ip.clone(),
        labels: args.node.labels.into_iter().collect::<BTreeMap<_, _>>(),
        taints: args.node.taints,
        cpu: args.node.cpu.clone(),
        memory: args.node.memory.clone(),
        pods: args.node.pods,
        kubelet_port: args.api.port(),
        boot_id: shim::boot_id(),
        kernel_version: std::fs::read_to_string("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()).unwrap_or_default(),
        container_runtime_version: concat!("process://", env!("CARGO_PKG_VERSION")).into(),
        ..MachineFacts::default()
    };
    let cancel = CancellationToken::new();
    let node = new_node(&facts, Timestamp::now());
    let options = [with_node_enable_lease_v1(Duration::ZERO)];
    let nodes = NodeController::new(client.clone(), Arc::new(NaiveNodeProvider::default()), node, options)?;
    let site = Site {
        client: client.clone(),
        events: Events::start(client.clone(), args.node_name.clone()),
        node: NodeFacts { address: args.node_ip.clone(), cpu: args.node.cpu, memory: args.node.memory },
        root: root.clone(),
        images: ImageTable::new(args.images),
        powers: Powers::of_this_process(),
        init_program: PathBuf::from("/proc/self/exe"),
        log_rotation: shim::LogRotation { max_bytes: args.container_log_max_bytes, max_files: args.container_log_max_files },
    };
    let mut registered = nodes.server_node();
    let provider = Arc::new(ProcessProvider::new(site, args.node_name.clone(), registered.clone())?);
    let mut config = nodes.pods(provider.clone());
    // The provider resolves it at each start of a container, and tells of its pods by itself.
    (config.skip_downward_api_resolution, config.events) = (true, Events::none());
    let handlers = Arc::new(KubeletHandlers::new(provider.clone()));
    let address = args.node_ip.parse().context("--node-ip must be an IP address")?;
    args.api.serve(client, Some(&args.node_name), address, Some(root.join("pki")), handlers, cancel.clone()).await?;
    let mut node_task = tokio::spawn(nodes.run(cancel.clone()));
    tokio::select! {
        ended = &mut node_task => return Ok(ended??),
        known = registered.wait_for(Option::is_some) => drop(known?),
    }
    let mut pod_task = tokio::spawn(PodController::new(config)?.run(16, cancel.clone()));
    let (mut hangup, mut terminate) = (signal(SignalKind::hangup())?, signal(SignalKind::terminate())?);
    loop {
        tokio::select! {
            ended = &mut node_task => return Ok(ended??),
            ended = &mut pod_task => return Ok(ended??),
            _ = hangup.recv() => {
                tracing::warn!("SIGHUP: forgetting the readiness of all pods");
                provider.forget_readiness(Duration::from_secs(args.restart_unready_seconds));
            }
            _ = terminate.recv() => break,
            _ = tokio::signal::ctrl_c() => break,
        }
    }
    cancel.cancel();
    Ok(())
}
