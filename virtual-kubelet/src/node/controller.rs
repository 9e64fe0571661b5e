//! Registers a node, keeps its status true and its lease fresh.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::lease::{LeaseKeeper, LeaseOptions, renew_interval};
use super::provider::{NodeProvider, NodeStatusSink};
use super::status::{metadata_patch, ready_is_foreign, status_patch};
use crate::api_call::{ApiCallError, Recoveries, retry_delay, within};
use crate::reopening_watch;

/// Longest pause between attempts to reach the API server.
const RETRY_CAP: Duration = Duration::from_secs(5);
const RETRY_FIRST: Duration = Duration::from_millis(250);

/// How often things are done.
#[derive(Clone, Debug)]
pub struct NodeControllerOptions {
    /// Between two pings.
    pub ping_interval: Duration,
    /// After which a ping counts as failed.
    pub ping_timeout: Duration,
    /// Between two writes of an unchanged status.
    pub status_interval: Duration,
    /// The lease; none means no lease is kept.
    pub lease: Option<LeaseOptions>,
}

impl Default for NodeControllerOptions {
    fn default() -> Self {
        Self {
            ping_interval: Duration::from_secs(10),
            ping_timeout: Duration::from_secs(10),
            status_interval: Duration::from_mins(1),
            lease: Some(LeaseOptions::default()),
        }
    }
}

/// Why a node controller could not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeControllerError {
    /// The provider's first ping failed.
    #[error("the node's provider does not answer: {0}")]
    Ping(String),
    /// The API server refuses the node; repeating does not help.
    #[error("registering the node: {0}")]
    Refused(#[source] ApiCallError),
}

/// The controller of one node.
pub struct NodeController<P> {
    api: Api<Node>,
    leases: Api<Lease>,
    provider: Arc<P>,
    node: Node,
    options: NodeControllerOptions,
    recoveries: Recoveries,
    server: watch::Sender<Option<Node>>,
}

impl<P: NodeProvider> NodeController<P> {
    /// A controller for `node`, whose status is complete except for times.
    pub fn new(client: Client, provider: Arc<P>, node: Node, options: NodeControllerOptions, recoveries: Recoveries) -> Self {
        Self {
            api: Api::all(client.clone()),
            leases: Api::namespaced(client, "kube-node-lease"),
            provider,
            node,
            options,
            recoveries,
            server: watch::Sender::new(None),
        }
    }

    /// The Node as the API server last showed it; `None` until the node is registered.
    pub fn server_node(&self) -> watch::Receiver<Option<Node>> {
        self.server.subscribe()
    }

    /// Runs until `cancel`.
    pub async fn run(mut self, cancel: CancellationToken) -> Result<(), NodeControllerError> {
        let (sink, mut wanted) = NodeStatusSink::new();
        self.provider.notify_node_status(sink);
        let healthy = self.start_pings(&cancel).await?;
        tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            registered = self.register() => registered?,
        }
        if let Some(lease) = self.options.lease {
            self.start_lease(lease, healthy.clone(), &cancel);
        }
        let name = self.node.name_any();
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut events = reopening_watch::open(self.api.clone(), config, &self.recoveries);
        let mut beat = interval(self.options.status_interval);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        beat.tick().await;
        let mut failures = 0;
        let mut retry_at: Option<Instant> = None;
        let mut seen_in_list = false;
        loop {
            let mut write = false;
            tokio::select! {
                () = cancel.cancelled() => return Ok(()),
                changed = wanted.changed() => {
                    let update = wanted.borrow_and_update().clone();
                    match (changed, update) {
                        (Ok(()), Some(update)) => {
                            self.node.metadata.labels = update.metadata.labels;
                            self.node.metadata.annotations = update.metadata.annotations;
                            self.node.status = update.status;
                            write = true;
                        }
                        (Err(_), _) => std::future::pending().await,
                        _ => {}
                    }
                }
                _ = beat.tick() => write = true,
                () = wait_until(retry_at) => write = true,
                event = next(&mut events) => match event {
                    watcher::Event::Init => seen_in_list = false,
                    watcher::Event::InitApply(node) => {
                        seen_in_list = true;
                        write = self.observe(node);
                    }
                    watcher::Event::Apply(node) => write = self.observe(node),
                    watcher::Event::InitDone if seen_in_list => {}
                    watcher::Event::InitDone | watcher::Event::Delete(_) => {
                        tracing::warn!(node = name, "the Node object was deleted, registering again");
                        tokio::select! {
                            () = cancel.cancelled() => return Ok(()),
                            registered = self.register() => registered?,
                        }
                    }
                },
            }
            if write && *healthy.borrow() {
                retry_at = match self.write_status().await {
                    Ok(()) => {
                        failures = 0;
                        None
                    }
                    Err(error) => {
                        tracing::warn!(%error, "writing the node's status failed");
                        failures += 1;
                        Some(Instant::now() + retry_delay(failures, RETRY_FIRST, RETRY_CAP))
                    }
                };
            }
        }
    }

    /// Takes the server's view over; true when something of ours has to be repaired.
    fn observe(&self, node: Node) -> bool {
        let foreign = ready_is_foreign(&self.node, &node) || metadata_patch(&self.node, &node).is_some();
        self.server.send_replace(Some(node));
        foreign
    }

    async fn start_pings(&self, cancel: &CancellationToken) -> Result<watch::Receiver<bool>, NodeControllerError> {
        let timeout = self.options.ping_timeout;
        let provider = self.provider.clone();
        match tokio::time::timeout(timeout, provider.ping()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(NodeControllerError::Ping(error.to_string())),
            Err(_) => return Err(NodeControllerError::Ping("no answer in time".into())),
        }
        let (sender, receiver) = watch::channel(true);
        let (mut ticks, cancel) = (interval(self.options.ping_interval), cancel.clone());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = cancel.cancelled() => return,
                    _ = ticks.tick() => {}
                }
                let healthy = matches!(tokio::time::timeout(timeout, provider.ping()).await, Ok(Ok(())));
                if !healthy {
                    tracing::warn!("the node's provider does not answer, holding back status and lease");
                }
                sender.send_replace(healthy);
            }
        });
        Ok(receiver)
    }

    fn start_lease(&self, options: LeaseOptions, healthy: watch::Receiver<bool>, cancel: &CancellationToken) {
        let mut keeper = LeaseKeeper { api: self.leases.clone(), node_name: self.node.name_any(), duration: options.duration, last: None };
        let every = renew_interval(options.duration);
        let (mut server, recoveries, cancel) = (self.server.subscribe(), self.recoveries.clone(), cancel.clone());
        tokio::spawn(async move {
            let mut failures: u32 = 0;
            let mut unreachable = false;
            loop {
                let uid = server.borrow_and_update().as_ref().and_then(ResourceExt::uid);
                let mut pause = every;
                if let Some(uid) = uid.as_deref().filter(|_| *healthy.borrow()) {
                    match keeper.renew(uid).await {
                        Ok(()) => {
                            failures = 0;
                            if std::mem::take(&mut unreachable) {
                                tracing::info!("the API server answers again");
                                recoveries.report();
                            }
                        }
                        Err(error) => {
                            failures += 1;
                            unreachable |= matches!(error, ApiCallError::Transient(_));
                            pause = retry_delay(failures, RETRY_FIRST, RETRY_CAP);
                            tracing::warn!(%error, "renewing the lease failed");
                        }
                    }
                }
                let deadline = Instant::now() + pause;
                loop {
                    tokio::select! {
                        () = cancel.cancelled() => return,
                        () = tokio::time::sleep_until(deadline) => break,
                        changed = server.changed() => {
                            if changed.is_err() {
                                return;
                            }
                            let now = server.borrow_and_update().as_ref().and_then(ResourceExt::uid);
                            if now.is_some() && now != uid {
                                break;
                            }
                        }
                    }
                }
            }
        });
    }

    /// Creates the node, or makes the existing one ours. Repeats until the server accepts or refuses for good.
    async fn register(&self) -> Result<(), NodeControllerError> {
        let mut failures = 0;
        loop {
            let error = match within(self.api.create(&PostParams::default(), &self.node)).await {
                Ok(created) => {
                    tracing::info!(node = created.name_any(), uid = created.uid(), "registered the node");
                    self.server.send_replace(Some(created));
                    return Ok(());
                }
                Err(ApiCallError::Conflict(_)) => match self.write_status().await {
                    Ok(()) => return Ok(()),
                    Err(error) => error,
                },
                Err(error @ ApiCallError::Invalid(_)) => return Err(NodeControllerError::Refused(error)),
                Err(error) => error,
            };
            failures += 1;
            tracing::warn!(%error, "registering the node failed, retrying");
            sleep(retry_delay(failures, RETRY_FIRST, RETRY_CAP)).await;
        }
    }

    async fn write_status(&self) -> Result<(), ApiCallError> {
        let name = self.node.name_any();
        let known = self.server.borrow().clone();
        let current = match known {
            Some(node) => node,
            None => within(self.api.get(&name)).await?,
        };
        let parameters = PatchParams::default();
        if let Some(patch) = metadata_patch(&self.node, &current) {
            within(self.api.patch(&name, &parameters, &Patch::Merge(&patch))).await?;
        }
        let patch = status_patch(&self.node, &current, Timestamp::now());
        match within(self.api.patch_status(&name, &parameters, &Patch::Strategic(&patch))).await {
            Ok(node) => {
                self.server.send_replace(Some(node));
                Ok(())
            }
            // Another Node took the name meanwhile: read it at the next attempt.
            Err(error @ ApiCallError::Conflict(_)) => {
                if let Ok(Some(node)) = within(self.api.get_opt(&name)).await {
                    self.server.send_replace(Some(node));
                }
                Err(error)
            }
            // The watch brings the deletion, and the node is registered again then.
            Err(ApiCallError::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

async fn wait_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

async fn next(events: &mut mpsc::Receiver<watcher::Event<Node>>) -> watcher::Event<Node> {
    match events.recv().await {
        Some(event) => event,
        None => std::future::pending().await,
    }
}
