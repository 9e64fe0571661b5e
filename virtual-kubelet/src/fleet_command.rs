//! The subcommand `fleet`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::Router;
use axum::routing::get;
use clap::Args;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use virtual_kubelet::fleet::{self, Cidr, Fleet, FleetConfig, FleetHandle};
use virtual_kubelet::simulated::Stages;

use crate::kubelet_api::ApiArgs;
use crate::{NodeArgs, configured};

#[derive(Args)]
pub struct FleetArgs {
    /// Number of nodes.
    #[arg(long, env = "SIMULATE", value_name = "N")]
    simulate: u32,
    /// Kubeconfig with an identity that has the rights of deploy/virtual-kubelet/fleet.yaml.
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: PathBuf,
    /// Prefix of the nodes' names; a number from 0 follows it.
    #[arg(long, env = "NAME_PREFIX", default_value = "sim-")]
    name_prefix: String,
    /// Values of the label topology.kubernetes.io/zone, given to the nodes in turn: a,b,…
    #[arg(long, env = "ZONES", value_delimiter = ',')]
    zones: Vec<String>,
    #[command(flatten)]
    node: NodeArgs,
    /// YAML file with the behaviour of pods. Without it, all pods run and are ready at once, and never end.
    #[arg(long, env = "STAGES")]
    stages: Option<PathBuf>,
    /// Seed of all delays. With the same seed, each pod gets the same delays.
    #[arg(long, env = "SEED", default_value_t = 0)]
    seed: u64,
    /// Send each request as system:node:<name>, so that the rights of a node apply. Needs the right to impersonate.
    #[arg(long, env = "IMPERSONATE")]
    impersonate: bool,
    /// Address range that the nodes report.
    #[arg(long, env = "NODE_CIDR", default_value = "198.19.0.0/16")]
    node_cidr: Cidr,
    /// Address range that the pods report.
    #[arg(long, env = "POD_CIDR", default_value = "10.64.0.0/10")]
    pod_cidr: Cidr,
    /// Address that serves /metrics. Default: none.
    #[arg(long, env = "METRICS_ADDRESS", value_name = "IP:PORT")]
    metrics_address: Option<SocketAddr>,
    /// Address of this machine that serves the kubelet API of all nodes. The nodes report it as theirs. Without it, logs and exec do
    /// not work. With 0.0.0.0, nodes report addresses of their own, which you must route to this machine.
    #[arg(long, env = "KUBELET_ADDRESS", value_name = "IP")]
    kubelet_address: Option<IpAddr>,
    #[command(flatten)]
    api: ApiArgs,
}

pub async fn run(args: FleetArgs) -> Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let stages = match &args.stages {
        None => Stages::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| format!("reading the stages in {}", path.display()))?;
            Stages::from_yaml(&text).with_context(|| path.display().to_string())?
        }
    };
    let config = FleetConfig {
        name_prefix: args.name_prefix,
        zones: args.zones,
        labels: args.node.labels.into_iter().collect(),
        taints: args.node.taints,
        cpu: args.node.cpu,
        memory: args.node.memory,
        pods: args.node.pods,
        stages,
        seed: args.seed,
        impersonate: args.impersonate,
        node_cidr: args.node_cidr,
        pod_cidr: args.pod_cidr,
        kubelet: args.kubelet_address.zip(args.api.port()).map(SocketAddr::from),
        ..FleetConfig::new(args.simulate)
    };
    let (nodes, first, last) = (config.nodes, format!("{}0", config.name_prefix), config.nodes.saturating_sub(1));
    let kubeconfig = configured(&args.kubeconfig).await.context("reading the kubeconfig")?;
    let client = fleet::client(&kubeconfig).context("connecting to the API server")?;
    let fleet = Fleet::new(client.clone(), config)?;
    let (handle, cancel) = (fleet.handle(), CancellationToken::new());
    if let Some(address) = args.kubelet_address {
        args.api.serve(client, None, address, None, Arc::new(handle.clone()), cancel.clone()).await?;
    }
    if let Some(address) = args.metrics_address {
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| format!("cannot listen on {address}: choose another address with --metrics-address"))?;
        tokio::spawn(serve_metrics(listener, handle.clone(), cancel.clone()));
    }
    let (mut registered, mut terminate) = (Box::pin(handle.registered()), signal(SignalKind::terminate())?);
    let mut is_registered = false;
    let mut running = tokio::spawn(fleet.run(cancel.clone()));
    loop {
        tokio::select! {
            ended = &mut running => return Ok(ended.context("the fleet ended")??),
            () = &mut registered, if !is_registered => {
                is_registered = true;
                println!("all {nodes} nodes are registered: {first} to …{last}");
            }
            _ = terminate.recv() => break,
            _ = tokio::signal::ctrl_c() => break,
        }
    }
    cancel.cancel();
    running.await.context("the fleet ended")??;
    println!("the {nodes} nodes stay in the API and become NotReady; delete them with kubectl if you no longer need them");
    Ok(())
}

async fn serve_metrics(listener: TcpListener, handle: FleetHandle, stop: CancellationToken) {
    const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let router = Router::new().route("/metrics", get(async move || ([("content-type", TEXT)], handle.scrape())));
    if let Err(error) = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await {
        tracing::warn!(%error, "serving the metrics ended");
    }
}
