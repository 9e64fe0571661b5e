//! The operator's process: options, client, watches, leadership, web server.

use anyhow::Context as _;
use clap::Parser as _;
use futures::StreamExt as _;
use k8s_controller::events::{EventRecorder, Reporter};
use kube::{
    Client, Config,
    client::ClientBuilder,
    runtime::{
        Controller, controller,
        reflector::{ObjectRef, Store, store},
    },
};
use operator::{
    args::{Arguments, CleanupNodes, Command, CompatFlags, RemainingOptions, Run},
    client::layered,
    compat::{ConfigMapGate, one_pass},
    gates_shared::GateState,
    leader::{self, LeadershipEnd, LeaseTimes, act_while_leading},
    metrics::Metrics,
    node_gates, pod_gates,
    print::print,
    remaining,
    rights::{NoteRefusals, Rights},
    rollout::{self, Context, back_off, forget, reconcile},
    spawn_scoped::spawn_scoped,
    telemetry,
    trim::{trim, trim_to_conditions},
    uninstall,
    watch::{Named, Observer},
    web, webhook,
    write::Announcer,
};
use std::{io::stdout, process::ExitCode, sync::Arc, time::Duration};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

// Thousands of objects are decoded, cut down and let go at once: the C library's allocator keeps what that took for ever
// (`bed bench scale`, memory at 5,000 nodes).
#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

// More threads than a few would each keep memory of their own and decide no faster: one pass is one thread's work.
#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (result, on_error) = match arguments.command {
        Command::Crd => (print_crds().map(done), ExitCode::FAILURE),
        Command::Remaining(options) => (remaining(options).await, ExitCode::FAILURE),
        Command::CleanupNodes(options) => (Box::pin(clean_up(&options)).await.map(done), ExitCode::FAILURE),
        Command::Run(run) => match run.compat.clone().or_environment(|name| std::env::var(name).ok()) {
            Err(error) => (Err(anyhow::anyhow!(error)), ExitCode::from(2)),
            Ok(compat) if compat.run_as_daemon == Some(false) => (Box::pin(one_pass(*run, compat)).await, ExitCode::from(2)),
            // On the threads that do the requests: whatever the main thread waits for costs a switch between threads.
            Ok(compat) => (spawn_scoped(Box::pin(start(Run { compat, ..*run }))).await.map(done), ExitCode::FAILURE),
        },
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        on_error
    })
}

fn done((): ()) -> ExitCode {
    ExitCode::SUCCESS
}

fn print_crds() -> anyhow::Result<()> {
    print(&mut stdout(), &crds::manifest::FILES.map(|(_, yaml)| yaml).join("---\n"))
}

fn use_ring() -> anyhow::Result<()> {
    rustls::crypto::ring::default_provider().install_default().map_err(|_| anyhow::anyhow!("a TLS provider was installed before"))
}

fn reporter(run: &Run) -> Reporter {
    Reporter { controller: "ingressdaemonsets.mumoshu.github.io/operator".into(), instance: Some(run.identity.clone()) }
}

async fn clean_up(options: &CleanupNodes) -> anyhow::Result<()> {
    use_ring()?;
    uninstall::run(&connect(Duration::from_secs(10), &Arc::default()).await?, options).await
}

async fn remaining(options: RemainingOptions) -> anyhow::Result<ExitCode> {
    use_ring()?;
    let report = remaining::report(&connect(Duration::from_secs(10), &Arc::default()).await?, options.refuse).await;
    print(&mut stdout(), &report.text)?;
    Ok(if report.refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// One look at every node; the code says whether one is held.
async fn one_pass(run: Run, compat: CompatFlags) -> anyhow::Result<ExitCode> {
    telemetry::start(run.log_format, &run.log_level)?;
    use_ring()?;
    let client = connect(Duration::from_secs(run.request_timeout_seconds), &Arc::default()).await?;
    match leader::holder(&client, &run.lease_namespace, &run.lease_name).await {
        Ok(None) => {}
        Ok(Some(holder)) => {
            tracing::warn!(
                holder,
                "an operator leads and decides about the same nodes; each process counts the budgets of gates by itself"
            );
        }
        Err(error) => tracing::warn!(error = format!("{error:#}"), "cannot read the operator's lease: an operator may lead"),
    }
    let options = one_pass::OnePassOptions {
        reporter: reporter(&run),
        client,
        compat,
        node_rights: run.node_rights(),
        health_checker_image: run.health_checker_image,
    };
    let report = one_pass::run(options).await?;
    print(&mut stdout(), &report.to_string())?;
    Ok(if report.held { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// How long the webhook answers on after the signal to stop: so long API servers may still be sent to this pod. As long at most is waited
/// for those who read metrics.
const LINGERS: Duration = Duration::from_secs(3);

async fn start(run: Run) -> anyhow::Result<()> {
    telemetry::start(run.log_format, &run.log_level)?;
    use_ring()?;
    let times = LeaseTimes::of(&run)?;
    let stop = stop_on_signal()?;
    let listener = web::listen(run.listen_address, "--listen-address").await?;
    let patience = Duration::from_secs(run.request_timeout_seconds);
    let metrics = Arc::new(Metrics::default());
    let client = connect(patience, &metrics.rights).await?;
    // A lost answer must leave time for another try before the lease is lost, too.
    let lease_client = connect(patience.min(times.duration / 3), &metrics.rights).await?;
    let (resources, writer) = store();
    let observer = Arc::new(Observer::with(run.node_rights()));
    let gates = GateState::of(&observer);
    let server = tokio::spawn(web::serve(listener, Arc::clone(&metrics), Arc::clone(&observer), stop.clone()));
    let reporter = reporter(&run);
    let recorder = EventRecorder::new(client.clone(), reporter.clone());
    let config_map = ConfigMapGate::new(client.clone(), Arc::clone(&gates), recorder, &run.compat, |name| std::env::var(name).ok());
    // Whoever leads or not: the webhook of each replica acts for the gate of the ConfigMap, too.
    tokio::spawn(config_map.follow());
    let webhook_stop = CancellationToken::new();
    let webhook = serve_webhook(&run, &client, (&observer, &gates), &metrics, &webhook_stop).await?;
    let lingers = webhook.is_some().then(|| tokio::spawn(linger(stop.clone(), webhook_stop)));
    let node_gates = node_gates::EngineOptions {
        client: client.clone(),
        observer: Arc::clone(&observer),
        state: Arc::clone(&gates),
        metrics: metrics.gates.clone(),
        recorder: EventRecorder::new(client.clone(), reporter.clone()),
        webhook: webhook.as_ref().map(|secrets| secrets.webhook(webhook::PATH)),
        admission_policies: run.admission_policies,
    };
    let pod_gates = pod_gates::EngineOptions {
        client: client.clone(),
        of_named: connect_for_conditions(patience).await?,
        observer: Arc::clone(&observer),
        state: Arc::clone(&gates),
        metrics: metrics.pod_gates.clone(),
        recorder: EventRecorder::new(client.clone(), reporter.clone()),
        foreign_objects: run.allowed_foreign_objects.clone(),
        webhook: webhook.as_ref().map(|secrets| secrets.webhook(webhook::POD_PATH)),
        admission_policies: run.admission_policies,
    };
    let context = Arc::new(Context {
        announcer: Announcer::new(EventRecorder::new(client.clone(), reporter)),
        client: client.clone(),
        observer: Arc::clone(&observer),
        gates,
        metrics: Arc::clone(&metrics),
        health_checker_image: run.health_checker_image.clone(),
        memories: tokio::sync::Mutex::default(),
        turns: operator::turns::Turns::default(),
        failures: parking_lot::Mutex::default(),
    });
    let outcome = tokio::select! {
        outcome = act_while_leading(lease_client, &run, times, stop.clone(), act(context, resources, (node_gates, pod_gates), webhook, stop.clone())) => outcome,
        () = Arc::clone(&observer).follow(client, writer) => anyhow::bail!("the watches ended"),
    };
    stop.cancel();
    // The server ends with `stop`, once it has answered those who asked before.
    let _ = tokio::time::timeout(LINGERS, server).await;
    match outcome {
        LeadershipEnd::Stopped => {
            // Until nobody is sent here any more. The lease is given back, and another replica acts.
            if let Some(lingers) = lingers {
                let _ = lingers.await;
            }
            Ok(())
        }
        LeadershipEnd::LeaseLost => {
            anyhow::bail!("the lease went to another replica or could not be renewed; ending, so that nothing is written without it")
        }
    }
}

/// Stops the webhook a while after everything else.
async fn linger(stop: CancellationToken, webhook_stop: CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(LINGERS).await;
    webhook_stop.cancel();
}

/// Serves the webhook, if it is asked for, whether this replica leads or not.
async fn serve_webhook(
    run: &Run,
    client: &Client,
    (observer, gates): (&Arc<Observer>, &Arc<GateState>),
    metrics: &Metrics,
    stop: &CancellationToken,
) -> anyhow::Result<Option<webhook::Secrets>> {
    let Some(service) = &run.webhook_service else { return Ok(None) };
    let listener = web::listen(run.webhook_address, "--webhook-address").await?;
    let serving = webhook::Serving::default();
    let tls = webhook::tls(serving.clone())?;
    let secrets = webhook::Secrets::new(client.clone(), &run.lease_namespace, service, serving, metrics.gates.clone());
    let (answers, follow) = webhook::Answers::new(client.clone(), Arc::clone(observer), Arc::clone(gates), metrics.gates.clone());
    let (pods, follow_pods) = webhook::PodAnswers::new(client.clone(), metrics.pod_gates.clone());
    tokio::spawn(follow);
    tokio::spawn(follow_pods);
    tokio::spawn(secrets.clone().follow());
    tokio::spawn(webhook::serve(listener, tls, webhook::router(answers, pods), stop.clone()));
    Ok(Some(secrets))
}

/// Everything that only the replica that leads does.
async fn act(
    context: Arc<Context>,
    resources: Store<Named>,
    (node_gates, pod_gates): (node_gates::EngineOptions, pod_gates::EngineOptions),
    webhook: Option<webhook::Secrets>,
    stop: CancellationToken,
) {
    let keep_certificates = async {
        if let Some(secrets) = webhook {
            spawn_scoped(secrets.keep()).await;
        }
    };
    tokio::join!(
        keep_certificates,
        spawn_scoped(rollout::clean_nodes(context.client.clone(), Arc::clone(&context.observer))),
        decide_for_ever(context, resources),
        spawn_scoped(node_gates::Engine::new(node_gates).run(stop.clone())),
        spawn_scoped(pod_gates::Engine::new(pod_gates).run(stop))
    );
}

/// Decides for one resource at a time each, whenever something that concerns it has changed.
async fn decide_for_ever(context: Arc<Context>, resources: Store<Named>) {
    context.metrics.leading(true);
    tracing::info!("leading");
    // A standby has heard of changes without acting on them: look at everything once.
    let all: Vec<_> = resources.state().iter().map(|resource| ObjectRef::from_obj(resource.as_ref())).collect();
    let triggers = futures::stream::iter(all).chain(context.observer.requeue().stream());
    Controller::for_stream(futures::stream::pending(), resources)
        .reconcile_on(triggers)
        .run(reconcile, back_off, Arc::clone(&context))
        .for_each(|result| async {
            match result {
                Ok(_) => {}
                Err(controller::Error::ObjectNotFound(gone)) => forget(&context, &gone.namespace.unwrap_or_default(), &gone.name).await,
                Err(error) => tracing::debug!(%error, "pass not run"),
            }
        })
        .await;
}

/// A client that waits so long for the beginning of an answer, and does not retry by itself: the next pass does, with what
/// is true by then. `rights` are told what the API server refuses.
async fn connect(patience: Duration, rights: &Arc<Rights>) -> anyhow::Result<Client> {
    let builder = layered(ClientBuilder::try_from(config(patience).await?).context("client")?, patience, trim);
    Ok(builder.with_layer(&NoteRefusals(Arc::clone(rights))).build())
}

/// A client for objects that gates name: nobody is told what is refused, and it reads their conditions alone.
async fn connect_for_conditions(patience: Duration) -> anyhow::Result<Client> {
    Ok(layered(ClientBuilder::try_from(config(patience).await?).context("client")?, patience, trim_to_conditions).build())
}

async fn config(patience: Duration) -> anyhow::Result<Config> {
    let mut config = Config::infer().await.context("no cluster found: run inside a cluster, or set KUBECONFIG")?;
    config.default_retry = false;
    config.connect_timeout = Some(patience);
    // For the rest of an answer. Watches end before.
    config.read_timeout = Some(Observer::SILENCE);
    // The time that a connection was idle before is no silence.
    config.reset_reader_on_write = true;
    Ok(config)
}

fn stop_on_signal() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stopped = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
        stopped.cancel();
    });
    Ok(stop)
}
