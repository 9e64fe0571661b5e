//! `health-checker run` answers the load balancer for its node; `health-checker check` is the readiness probe of its pod.

mod args;

use anyhow::{Context, Result};
use args::{Arguments, Command, LogFormat, Run};
use clap::Parser;
use crds::names::{NODE_HASH_LABEL, PORT_CONFLICT_EXIT_CODE, RESOURCE_LABEL};
use health_checker::{
    admin::{Admin, AdminAddress},
    answer::{Answer, Identity},
    connections::{Limits, Table},
    feed::{self, Collection},
    handover::{self, Member, Party, TakeError},
    listener::bind_unix,
    local_probes::{self, Candidates},
    metrics::Metrics,
    port::{self, Ending, PortServer},
    probers::Probers,
    published_verdict::{Outputs, PublishedVerdict},
    ready::{self, Readiness},
    server::{self, HealthPort},
    verdict::VerdictReason,
    view::{Update, View, Watch},
    watched_objects,
};
use std::{collections::BTreeMap, path::Path, process::ExitCode, sync::Arc, time::Duration};
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    sync::{Notify, mpsc, watch},
    time,
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(2).build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    match arguments.command {
        Command::Check(check) => {
            let outcome = runtime.block_on(ready::ask(&check.ready_socket, Duration::from_secs(1)));
            // The kubelet shows it in the event of the failed probe.
            outcome.inspect_err(|error| eprintln!("{error}")).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
        }
        Command::Run(run) => {
            start_log(&run);
            let termination_log = run.termination_log.clone();
            let outcome = runtime.block_on(serve(*run));
            runtime.shutdown_background();
            outcome.map_or_else(|error| fail(&error, &termination_log), |()| ExitCode::SUCCESS)
        }
    }
}

fn start_log(run: &Run) {
    let filter = tracing_subscriber::EnvFilter::try_new(&run.log_level);
    let filter = filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match run.log_format {
        LogFormat::Text => log.with_ansi(false).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}

fn fail(error: &anyhow::Error, termination_log: &Path) -> ExitCode {
    error!("{error:#}");
    if termination_log.is_file() {
        let _ = std::fs::write(termination_log, format!("{error:#}"));
    }
    match error.downcast_ref() {
        Some(TakeError::Conflict { .. }) => PORT_CONFLICT_EXIT_CODE.into(),
        _ => ExitCode::FAILURE,
    }
}

async fn serve(run: Run) -> Result<()> {
    let mut signals = Signals::new()?;
    let client = client().await?;
    let identity = Identity { namespace: run.namespace.clone(), name: run.ingress_daemonset.clone(), node: run.node_name.clone() };
    let watches: &'static [Watch] = if run.watch_node { &Watch::ALL } else { Watch::WITHOUT_NODE };
    let view = View { watches, probe_after: Duration::from_secs(run.probe_after.into()), ..View::new(run.ready_policy) };
    let (published, unsynced) = PublishedVerdict::new(identity, view);
    let (answers, mut answer) = watch::channel(unsynced);
    let (states, state) = watch::channel(Readiness::Syncing);
    let sockets = open_sockets(&run, answer.clone(), state).await?;
    start_watching(&run, &client, published, answers);

    tokio::select! {
        synced = answer.wait_for(|answer| answer.verdict.reason != VerdictReason::NotSynced) => drop(synced.context("the view is gone")?),
        () = signals.next() => return Ok(()),
    }
    states.send_replace(Readiness::NoPort);
    let me = Member {
        party: Party::new(&run.namespace, &run.ingress_daemonset, &run.resource_uid8, run.bind_address),
        node: run.node_name.clone(),
        key: run.hand_over_key.clone(),
        takes_unproved: run.take_unproved,
    };
    let held = tokio::select! {
        held = handover::take(&me, run.port, Duration::from_secs(run.port_patience.into())) => held?,
        () = signals.next() => return Ok(()),
    };
    sockets.metrics.handovers.taken.inc_by(held.from_another().into());
    // It stays ready when it gives the port away: a successor of the same resource answers then.
    states.send_replace(Readiness::Ready);
    info!(port = run.port, reason = answer.borrow().verdict.reason.as_str(), handed_over = held.from_another(), "answering");

    let respond = HealthPort { answer, probers: sockets.probers, requests: sockets.metrics.requests.clone(), leaving: Arc::default() };
    let service = PortServer { respond: Arc::new(respond), table: sockets.table, metrics: sockets.metrics };
    let ending = Ending::default();
    let leave = async {
        signals.next().await;
        ending.asked.cancel();
        info!(seconds = run.shutdown_grace, "ending; still answering until the shutdown grace is over");
        let _ = time::timeout(Duration::from_secs(run.shutdown_grace.into()), signals.next()).await;
        ending.now.cancel();
        std::future::pending().await
    };
    tokio::select! {
        () = port::serve(held, &service, &ending) => Ok(()),
        never = leave => never,
    }
}

async fn client() -> Result<kube::Client> {
    // Another provider is installed only if this function is called twice, and then it is the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut config = kube::Config::infer().await.context("no configuration for the API server")?;
    config.connect_timeout = Some(Duration::from_secs(3));
    // The feeds have their own pauses, which know that a node is waiting.
    config.default_retry = false;
    kube::Client::try_from(config).context("cannot use the configuration for the API server")
}

struct Sockets {
    probers: Arc<Probers>,
    metrics: Arc<Metrics>,
    table: Arc<Table>,
}

/// Opens what is asked before the port is held: the ready socket and the admin socket.
async fn open_sockets(run: &Run, answer: watch::Receiver<Arc<Answer>>, state: watch::Receiver<Readiness>) -> Result<Sockets> {
    let ready_socket = ready::open(&run.ready_socket).with_context(|| format!("cannot open {}", run.ready_socket.display()))?;
    tokio::spawn(ready::tell(ready_socket, state.clone()));
    let connections = usize::try_from(run.max_connections).unwrap_or(512);
    let sockets =
        Sockets { probers: Arc::new(Probers::default()), metrics: Arc::new(Metrics::new()), table: Table::new(Limits::new(connections)) };
    let admin = Arc::new(Admin {
        answer,
        state,
        probers: sockets.probers.clone(),
        metrics: sockets.metrics.clone(),
        health_port: sockets.table.clone(),
    });
    let never = CancellationToken::new();
    match &run.admin_socket {
        None => {}
        Some(AdminAddress::Path(path)) => {
            let listener = bind_unix(path).with_context(|| format!("cannot open {}", path.display()))?;
            tokio::spawn(server::serve(listener, server::small_table(), admin, never));
        }
        Some(AdminAddress::Loopback(address)) => {
            let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
            tokio::spawn(server::serve(listener, server::small_table(), admin, never));
        }
    }
    Ok(sockets)
}

fn start_watching(run: &Run, client: &kube::Client, published: PublishedVerdict, answer: watch::Sender<Arc<Answer>>) {
    let (news, inbox) = mpsc::channel(64);
    let refresh: BTreeMap<Watch, Arc<Notify>> = Watch::ALL.into_iter().map(|watch| (watch, Arc::default())).collect();
    let hash = crds::hash::node_hash(&run.node_name);
    let labels = Some(format!("{RESOURCE_LABEL}={},{NODE_HASH_LABEL}={hash}", run.resource_uid8));
    // From 240 to 289 s, by the node: a fleet that starts together shall not come back together for ever.
    let watch_seconds = 240 + hash.bytes().fold(0_u32, |sum, byte| (sum * 31 + u32::from(byte)) % 50);
    let source = |watch: Watch, path: String, labels: Option<String>, fields: Option<String>| {
        let silence = Duration::from_secs(run.watch_silence.into());
        (Collection { name: watch.as_str(), path, labels, fields, watch_seconds, silence }, refresh[&watch].clone())
    };
    let namespace = &run.namespace;
    let (deployments, again) =
        source(Watch::Deployments, format!("/apis/apps/v1/namespaces/{namespace}/deployments"), labels.clone(), None);
    tokio::spawn(feed::follow::<watched_objects::Deployment>(client.clone(), deployments, again, Update::Deployments, news.clone()));
    let on_node = Some(format!("spec.nodeName={}", run.node_name));
    let (pods, again) = source(Watch::Pods, format!("/api/v1/namespaces/{namespace}/pods"), labels, on_node);
    tokio::spawn(feed::follow::<watched_objects::Pod>(client.clone(), pods, again, Update::Pods, news.clone()));
    if run.watch_node {
        let itself = Some(format!("metadata.name={}", run.node_name));
        let (node, again) = source(Watch::Node, "/api/v1/nodes".into(), None, itself);
        tokio::spawn(feed::follow::<watched_objects::Node>(client.clone(), node, again, Update::Node, news.clone()));
    }
    let (candidates, to_probe) = watch::channel(Candidates::default());
    if run.probe_after > 0 {
        tokio::spawn(local_probes::gather(to_probe, Duration::from_secs(run.probe_after.into()), news));
    }
    tokio::spawn(published.run(inbox, Outputs { answer, candidates, refresh }));
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
