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
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::error::NodeControllerError;
use super::lease::LeaseKeeper;
use super::options::{LeaseSettings, NodeControllerOpt, Settings};
use super::ping::Pinger;
use super::provider::{NodeProvider, NodeStatusSink};
use super::status::{needs_repair, node_patch, registered, spec_patch};
use crate::api_call::{ApiCallError, Recoveries, retry_delay, within};
use crate::lifecycle::Lifecycle;
use crate::pod::environment::NodeFacts;
use crate::pod::{Events, PodControllerConfig};
use crate::reopening_watch;

/// Longest pause between attempts to reach the API server.
const RETRY_CAP: Duration = Duration::from_secs(5);
const RETRY_FIRST: Duration = Duration::from_millis(250);
/// Part of the renewal interval by which a renewal may come later, so that nodes that started together do not renew
/// together for ever; a kubelet's.
const RENEW_JITTER: f64 = 0.04;

/// The controller of one node: registers it, writes its status whenever it changes and as a heartbeat, keeps its lease,
/// and registers it again when it was deleted. See the [module](super) for how one begins and ends.
///
/// ```no_run
/// # use tokio_util::sync::CancellationToken;
/// # use virtual_kubelet::node::{NodeController, NodeProvider};
/// # async fn example<P: NodeProvider>(controller: NodeController<P>, cancel: CancellationToken) -> anyhow::Result<()> {
/// let mut server_node = controller.server_node();
/// tokio::spawn(controller.run(cancel));
/// if let Some(node) = server_node.wait_for(Option::is_some).await?.as_ref() {
///     println!("registered with the UID {:?}", node.metadata.uid);
/// }
/// # Ok(())
/// # }
/// ```
pub struct NodeController<P> {
    api: Api<Node>,
    leases: Api<Lease>,
    provider: Arc<P>,
    node: Node,
    settings: Settings,
    server: watch::Sender<Option<Node>>,
    lifecycle: Lifecycle<NodeControllerError>,
}

impl<P: NodeProvider> NodeController<P> {
    /// A controller for `node`, whose status is complete except for times. Nothing is done before [`NodeController::run`].
    /// Fails for a node without a name and for options that make no sense.
    pub fn new(
        client: Client,
        provider: Arc<P>,
        node: Node,
        options: impl IntoIterator<Item = NodeControllerOpt>,
    ) -> Result<Self, NodeControllerError> {
        if node.metadata.name.as_deref().is_none_or(str::is_empty) {
            return Err(NodeControllerError::InvalidOption("the node has no name".into()));
        }
        let mut settings = Settings::of(options)?;
        let leases = settings.lease_client.take();
        Ok(Self {
            leases: leases.unwrap_or_else(|| Api::namespaced(client.clone(), "kube-node-lease")),
            api: Api::all(client),
            provider,
            node,
            settings,
            server: watch::Sender::new(None),
            lifecycle: Lifecycle::default(),
        })
    }

    /// Settings for a controller of this node's pods: the same API server, the node's name and resources, events, and the same knowledge
    /// of when the server answers again. Without that a watch whose connection died silently is deaf for minutes. Has to be called in a
    /// tokio runtime, before [`NodeController::run`].
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use virtual_kubelet::node::{NodeController, NodeProvider};
    /// # use virtual_kubelet::pod::{PodController, PodLifecycleHandler, PodNotifier};
    /// # fn example<N: NodeProvider, P: PodLifecycleHandler + PodNotifier>(nodes: NodeController<N>, provider: P) -> anyhow::Result<()> {
    /// let pods = PodController::new(nodes.pods(Arc::new(provider)))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn pods<Q>(&self, provider: Arc<Q>) -> PodControllerConfig<Q> {
        let (client, name) = (self.api.clone().into_client(), self.node.name_any());
        PodControllerConfig {
            events: Events::start(client.clone(), name.clone()),
            node_facts: NodeFacts::of(&self.node),
            recoveries: self.settings.recoveries.clone(),
            ..PodControllerConfig::new(client, name, provider)
        }
    }

    /// The Node as the API server last showed it; `None` until the node is registered.
    pub fn server_node(&self) -> watch::Receiver<Option<Node>> {
        self.server.subscribe()
    }

    /// Ends once the node is registered; never when the controller ends before that. Take it before
    /// [`NodeController::run`].
    pub fn ready(&self) -> impl Future<Output = ()> + Send + 'static + use<P> {
        self.lifecycle.ready()
    }

    /// Ends with the controller, with what [`NodeController::run`] returns. Take it before that.
    pub fn done(&self) -> impl Future<Output = Result<(), Arc<NodeControllerError>>> + Send + 'static + use<P> {
        self.lifecycle.done()
    }

    /// Runs until `cancel`, which is a clean end, or until the node cannot be registered. The Node stays.
    pub async fn run(mut self, cancel: CancellationToken) -> Result<(), Arc<NodeControllerError>> {
        // Pings and renewals end with this set, also when this future is dropped.
        let mut tasks = JoinSet::new();
        let result = tokio::select! {
            () = cancel.cancelled() => Ok(()),
            ended = self.work(&mut tasks) => ended.map_err(Arc::new),
        };
        tasks.shutdown().await;
        self.lifecycle.set_done(result.clone());
        result
    }

    async fn work(&mut self, tasks: &mut JoinSet<()>) -> Result<(), NodeControllerError> {
        let (sink, mut wanted) = NodeStatusSink::new();
        // A provider that will never say anything may drop its own.
        let _kept = sink.clone();
        self.provider.notify_node_status(sink);
        let mut pinger = Pinger::new(self.provider.clone(), self.settings.ping_timeout);
        pinger.ping().await.map_err(NodeControllerError::Ping)?;
        let told = watch::Sender::new(true);
        let mut healthy = told.subscribe();
        tasks.spawn(pinger.keep_asking(self.settings.ping_interval, told));
        self.register().await?;
        if let Some(lease) = self.settings.lease {
            tasks.spawn(self.lease_task(lease, healthy.clone()));
        }
        let name = self.node.name_any();
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut events = reopening_watch::open(self.api.clone(), config, &self.settings.recoveries);
        self.lifecycle.set_ready();
        let mut next_beat = Instant::now() + self.settings.heartbeat();
        let mut failures = 0;
        let mut retry_at: Option<Instant> = None;
        let mut seen_in_list = false;
        loop {
            let mut write = false;
            tokio::select! {
                Ok(()) = wanted.changed() => {
                    if let Some(update) = wanted.borrow_and_update().clone() {
                        self.node.metadata.labels = update.metadata.labels;
                        self.node.metadata.annotations = update.metadata.annotations;
                        self.node.status = update.status;
                        write = true;
                    }
                }
                // A node that is healthy again says so at once.
                Ok(()) = healthy.changed() => write = true,
                () = sleep_until(next_beat) => write = true,
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
                        self.deleted(&name).await?;
                    }
                },
            }
            if !write {
                continue;
            }
            next_beat = Instant::now() + self.settings.heartbeat();
            // A node that is not healthy says nothing, and once it is, it writes anyway.
            retry_at = None;
            if *healthy.borrow_and_update() {
                retry_at = match self.update().await {
                    // The watch brings the deletion, and the node is registered again then.
                    Ok(()) | Err(ApiCallError::NotFound(_)) => {
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

    /// The Node is gone: it is registered again, unless there is a handler of errors and it says no.
    async fn deleted(&self, name: &str) -> Result<(), NodeControllerError> {
        if let Some(handler) = &self.settings.error_handler
            && let Err(error) = handler(ApiCallError::NotFound(format!("nodes \"{name}\" not found"))).await
        {
            tracing::warn!(node = name, %error, "the Node object was deleted, not registering again for now");
            return Ok(());
        }
        tracing::warn!(node = name, "the Node object was deleted, registering again");
        self.register().await
    }

    /// Takes the server's view over; true when something of ours has to be repaired.
    fn observe(&self, node: Node) -> bool {
        // The watch may be behind what our own write was answered with.
        if self.server.borrow().as_ref().is_some_and(|known| is_older(&node, known)) {
            return false;
        }
        let foreign = needs_repair(&self.node, &node) || (self.settings.reconcile_spec && spec_patch(&self.node, &node).is_some());
        self.server.send_replace(Some(node));
        foreign
    }

    fn lease_task(&self, lease: LeaseSettings, healthy: watch::Receiver<bool>) -> impl Future<Output = ()> + Send + 'static + use<P> {
        let keeper = LeaseKeeper {
            api: self.leases.clone(),
            node_name: self.node.name_any(),
            duration: lease.duration,
            foreign_holder: self.settings.foreign_holder,
            last: None,
            foreign: None,
        };
        keep_lease(keeper, lease.renew_interval, self.server.subscribe(), healthy, self.settings.recoveries.clone())
    }

    /// Creates the node, or makes the existing one ours. Repeats until the server accepts or refuses for good.
    async fn register(&self) -> Result<(), NodeControllerError> {
        let mut failures = 0;
        let new = registered(&self.node);
        loop {
            let error = match within(self.api.create(&PostParams::default(), &new)).await {
                Ok(created) => {
                    tracing::info!(node = created.name_any(), uid = created.uid(), "registered the node");
                    self.server.send_replace(Some(created));
                    return Ok(());
                }
                Err(ApiCallError::Conflict(_)) => match self.adopt().await {
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

    /// Makes the Node that exists already ours. It may be another one than the one that was known.
    async fn adopt(&self) -> Result<(), ApiCallError> {
        let node = within(self.api.get(&self.node.name_any())).await?;
        self.server.send_replace(Some(node));
        self.write().await
    }

    /// Writes what differs; a failure goes to the handler, if there is one, which may ask for one more try.
    async fn update(&self) -> Result<(), ApiCallError> {
        let Err(error) = self.write().await else { return Ok(()) };
        let Some(handler) = &self.settings.error_handler else { return Err(error) };
        handler(error).await?;
        self.write().await
    }

    async fn write(&self) -> Result<(), ApiCallError> {
        let name = self.node.name_any();
        let known = self.server.borrow().clone();
        let current = match known {
            Some(node) => node,
            None => within(self.api.get(&name)).await?,
        };
        let result = self.write_over(&name, &current).await;
        if let Err(ApiCallError::Conflict(_)) = &result
            // Another Node has the name now, or ours was changed at the same time: the next attempt begins with that.
            && let Ok(Some(node)) = within(self.api.get_opt(&name)).await
        {
            self.server.send_replace(Some(node));
        }
        result
    }

    async fn write_over(&self, name: &str, current: &Node) -> Result<(), ApiCallError> {
        let parameters = PatchParams::default();
        // Before the status, whose patch also records which taints are ours.
        if self.settings.reconcile_spec
            && let Some(patch) = spec_patch(&self.node, current)
        {
            within(self.api.patch(name, &parameters, &Patch::Merge(&patch))).await?;
        }
        let patch = node_patch(&self.node, current, Timestamp::now());
        let node = within(self.api.patch_status(name, &parameters, &Patch::Strategic(&patch))).await?;
        self.server.send_replace(Some(node));
        Ok(())
    }
}

async fn keep_lease(
    mut keeper: LeaseKeeper,
    every: Duration,
    mut server: watch::Receiver<Option<Node>>,
    mut healthy: watch::Receiver<bool>,
    recoveries: Recoveries,
) {
    let mut failures: u32 = 0;
    let mut unreachable = false;
    loop {
        let uid = server.borrow_and_update().as_ref().and_then(ResourceExt::uid);
        let mut pause = every.mul_f64(1.0 + RENEW_JITTER * fastrand::f64());
        if let Some(uid) = uid.as_deref().filter(|_| *healthy.borrow_and_update()) {
            match keeper.renew(uid).await {
                Ok(_) => {
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
                () = sleep_until(deadline) => break,
                changed = healthy.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
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
}

/// Resource versions of one kind grow; an older view than the one at hand says nothing new.
fn is_older(node: &Node, than: &Node) -> bool {
    let version = |node: &Node| node.resource_version().and_then(|version| version.parse::<u64>().ok());
    matches!((version(node), version(than)), (Some(a), Some(b)) if a < b)
}

async fn wait_until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

async fn next(events: &mut mpsc::Receiver<watcher::Event<Node>>) -> watcher::Event<Node> {
    match events.recv().await {
        Some(event) => event,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::super::lease::{DEFAULT_LEASE_DURATION, ForeignHolder};
    use super::super::{MachineFacts, NaiveNodeProvider, new_node, with_node_enable_lease_v1, with_node_lease_client};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failed_lease_renewal_is_retried_after_growing_pauses() {
        let tries = Arc::new(Mutex::new(Vec::new()));
        let noted = tries.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            noted.lock().unwrap().push(Instant::now());
            async { Ok::<_, Infallible>(Response::builder().status(500).body(Body::empty()).unwrap()) }
        });
        let keeper = LeaseKeeper {
            api: Api::namespaced(Client::new(service, "default"), "kube-node-lease"),
            node_name: "n1".into(),
            duration: DEFAULT_LEASE_DURATION,
            foreign_holder: ForeignHolder::TakeOver,
            last: None,
            foreign: None,
        };
        let mut node = Node::default();
        node.metadata.uid = Some("uid-1".into());
        let (server, healthy) = (watch::Sender::new(Some(node)), watch::Sender::new(true));
        let keeping = keep_lease(keeper, Duration::from_secs(10), server.subscribe(), healthy.subscribe(), Recoveries::default());
        // The end comes in the middle of the last pause.
        assert!(tokio::time::timeout(Duration::from_secs(20), keeping).await.is_err());
        let tries = tries.lock().unwrap();
        let pauses: Vec<_> = tries.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_millis()).collect();
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 5000, 5000]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_renewed_only_through_its_own_client() {
        let asks = |answer: fn(&str) -> String| {
            let asked = watch::Sender::new(Vec::new());
            let noted = asked.clone();
            let service = tower::service_fn(move |request: Request<Body>| {
                let path = request.uri().path().to_owned();
                let body = answer(&path);
                noted.send_modify(|asked| asked.push(path));
                async { Ok::<_, Infallible>(Response::new(Body::from(body.into_bytes()))) }
            });
            (Client::new(service, "default"), asked)
        };
        let (client, asked) = asks(|_| json!({ "metadata": { "name": "n1", "uid": "u", "resourceVersion": "1" } }).to_string());
        let (heartbeats, beaten) = asks(|_| json!({ "metadata": { "name": "n1", "resourceVersion": "1" } }).to_string());
        let machine = MachineFacts { name: "n1".into(), ..MachineFacts::default() };
        let options = [with_node_enable_lease_v1(Duration::ZERO), with_node_lease_client(Api::namespaced(heartbeats, "heartbeats"))];
        let node = new_node(&machine, Timestamp::UNIX_EPOCH);
        let nodes = NodeController::new(client, Arc::new(NaiveNodeProvider::default()), node, options).unwrap();
        let cancel = CancellationToken::new();
        let running = tokio::spawn(nodes.run(cancel.clone()));
        let mut beats = beaten.subscribe();
        let beats = beats.wait_for(|beats| beats.len() > 1);
        let beats = tokio::time::timeout(Duration::from_mins(2), beats).await.expect("it is renewed").unwrap().clone();
        let path = "/apis/coordination.k8s.io/v1/namespaces/heartbeats/leases/n1";
        assert!(beats.iter().all(|beat| beat == path), "{beats:?}");
        assert!(!asked.borrow().iter().any(|path| path.contains("leases")), "{asked:?}");
        cancel.cancel();
        running.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_pod_controller_knows_its_node_and_the_servers_recovery() {
        let service = tower::service_fn(|_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) });
        let machine = MachineFacts {
            name: "n1".into(),
            internal_ip: "198.18.0.1".into(),
            cpu: "8".into(),
            memory: "16Gi".into(),
            ..MachineFacts::default()
        };
        let node = new_node(&machine, Timestamp::UNIX_EPOCH);
        let nodes = NodeController::new(Client::new(service, "default"), Arc::new(NaiveNodeProvider::default()), node, []).unwrap();
        let config = nodes.pods(Arc::new(()));
        let facts = NodeFacts { address: "198.18.0.1".into(), cpu: "8".into(), memory: "16Gi".into() };
        assert_eq!((config.node_name.as_str(), config.node_facts), ("n1", facts));
        let recovered = config.recoveries.subscribe();
        nodes.settings.recoveries.report();
        assert!(recovered.has_changed().unwrap());
    }
}
