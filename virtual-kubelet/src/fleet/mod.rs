//! Thousands of simulated nodes in one process: one watch of pods, one of Nodes, one schedule of leases.
//!
//! A [`FleetConfig`] and faults come in; Nodes, leases and statuses of pods go to the API server. How a pod behaves is in
//! [`simulated`](crate::simulated), nodes with processes in [`node`](crate::node) and [`pod`](crate::pod).
//!
//! ```no_run
//! use tokio_util::sync::CancellationToken;
//! use virtual_kubelet::fleet::{Fleet, FleetConfig, NodeFault};
//!
//! # async fn example(client: kube::Client) -> Result<(), Box<dyn std::error::Error>> {
//! let fleet = Fleet::new(client, FleetConfig::new(1_000))?;
//! let (handle, cancel) = (fleet.handle(), CancellationToken::new());
//! tokio::spawn(fleet.run(cancel.clone()));
//! handle.registered().await;
//! handle.inject("sim-7", NodeFault::Lost)?;
//! println!("{}", handle.scrape());
//! cancel.cancel();
//! # Ok(())
//! # }
//! ```

mod addresses;
mod config;
mod connections;
mod entry;
#[cfg(test)]
mod fake;
mod faults;
mod hold;
mod kubelet;
mod leases;
mod limiter;
mod metrics;
mod nodes;
mod occurrences;
mod requests;
mod schedule;
mod shard;
mod slim;
mod watch;

use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use addresses::Cidr;
pub use config::{FleetConfig, FleetError};
pub use connections::client;
pub use faults::NodeFault;

use addresses::Pool;
use faults::Told;
use hold::Hold;
use limiter::Limiter;
use metrics::Metrics;
use nodes::Keeper;
use requests::Requests;
use shard::{Order, Shard};
use slim::SlimPod;
use watch::{Disturbance, Event, follow};

use crate::simulated::PodFault;

/// Requests about leases under way at once, at least (of a small fleet) and at most. Each is a connection, because the client speaks
/// HTTP/1.1; [`connections`] bounds those.
const LEASE_SLOTS: (u8, u8) = (4, 48);
/// For so many nodes there is a slot for leases at least, whatever the API server says.
///
/// N leases have to be renewed in an interval of 10 s, which is N/10 a second. N/250 slots do that as long as a renewal takes 40 ms
/// or less, which is several times what it takes. The API server of 5,000 nodes that stood still has 20 slots at least, and 48 after
/// 28 answers, less than 100 ms later:
/// - After 20 s the oldest lease was renewed 30 s ago. 10 s of a grace period of 40 s are left (20 s of the 50 s that are the default since
///   Kubernetes 1.32). In them 3/4 of the fleet and more are overdue or become so. They are renewed in the order of their age, so that
///   the last one of them has had the most time left. 500 a second are enough, which 20 slots do at 40 ms.
/// - After 60 s every lease has run out, also for the controller manager, which may have called nodes `NotReady` before the first
///   renewal; nobody can help that. All 5,000 are renewed within 10 s at 40 ms each, and within 4.2 s with 48 slots, oldest first.
///
/// From 12,000 nodes on it is the most at all times.
const NODES_PER_LEASE_SLOT: u32 = 250;
/// Requests about Nodes and pods: apart from the leases', so that no flood of pods holds up a heartbeat.
const WRITE_SLOTS: (u8, u8) = (4, 64);
/// Shares of the pods.
const SHARDS: usize = 4;
/// Events that wait for a share before the watch does.
const BUFFER: usize = 256;

/// Requests about leases under way at once, at least and at most.
fn lease_slots(nodes: u32) -> (u8, u8) {
    let (least, most) = LEASE_SLOTS;
    (u8::try_from(nodes.div_ceil(NODES_PER_LEASE_SLOT)).unwrap_or(u8::MAX).clamp(least, most), most)
}

/// A fleet that does not run yet; the [module](self) has an example.
pub struct Fleet {
    handle: FleetHandle,
    leases: Arc<Limiter>,
    writes: Arc<Limiter>,
    faults: mpsc::UnboundedReceiver<Told>,
}

/// What can be asked of a fleet, and done to it, while it runs.
///
/// ```no_run
/// use virtual_kubelet::fleet::{Fleet, FleetHandle};
///
/// # async fn example(fleet: Fleet) {
/// let handle: FleetHandle = fleet.handle();
/// tokio::spawn(fleet.run(tokio_util::sync::CancellationToken::new()));
/// handle.registered().await;
/// handle.drop_watches(std::time::Duration::from_secs(10));
/// assert!(handle.scrape().contains("virtual_kubelet_nodes_registered"));
/// # }
/// ```
///
/// It also answers the kubelet API, of all nodes at once, at the address that [`FleetConfig::kubelet`] tells:
///
/// ```no_run
/// use std::sync::Arc;
///
/// use axum::middleware::from_fn_with_state;
/// use tokio::net::TcpListener;
/// use tokio_util::sync::CancellationToken;
/// use virtual_kubelet::api::{self, Api, ApiReviews, Auth, NodeIdentity, ServingCertificate, WebhookAuth};
/// use virtual_kubelet::fleet::{Fleet, FleetConfig};
///
/// # async fn example(client: kube::Client, authority: &std::path::Path, stop: CancellationToken) -> anyhow::Result<()> {
/// let address = "192.0.2.7:10250".parse()?;
/// let fleet = Fleet::new(client.clone(), FleetConfig { kubelet: Some(address), ..FleetConfig::new(1_000) })?;
/// let certificate = ServingCertificate::self_signed(&NodeIdentity { name: "fleet".into(), addresses: vec![address.ip()] })?;
/// // Without the name of a node: whoever may use those of all.
/// let auth = Auth::Webhook(Arc::new(WebhookAuth::new(ApiReviews { client, node: String::new() })));
/// let routes = api::router(&Api::new(Arc::new(fleet.handle()), stop.clone()), false).layer(from_fn_with_state(auth, api::authorize));
/// let (listener, tls) = (TcpListener::bind(address).await?, api::tls(Arc::new(certificate), Some(authority))?);
/// tokio::spawn(api::serve(listener, tls, routes, stop.clone()));
/// fleet.run(stop).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct FleetHandle {
    config: Arc<FleetConfig>,
    requests: Arc<Requests>,
    registered: tokio::sync::watch::Sender<bool>,
    faults: mpsc::UnboundedSender<Told>,
}

impl Fleet {
    /// A fleet as `config` describes it. [`client`] makes the client for it; another one should
    /// not repeat requests by itself (`Config::default_retry`).
    pub fn new(client: Client, config: FleetConfig) -> Result<Self, FleetError> {
        config.check()?;
        let (least, most) = lease_slots(config.nodes);
        let leases = Limiter::new(least, most);
        let writes = Limiter::new(WRITE_SLOTS.0, WRITE_SLOTS.1);
        let metrics = Arc::new(Metrics::new(&leases, &writes));
        let requests = Arc::new(Requests::new(client, config.impersonate, metrics));
        let (sender, faults) = mpsc::unbounded_channel();
        let registered = tokio::sync::watch::Sender::new(false);
        let handle = FleetHandle { config: Arc::new(config), requests, registered, faults: sender };
        Ok(Self { handle, leases, writes, faults })
    }

    /// What can be asked of the fleet while it runs.
    pub fn handle(&self) -> FleetHandle {
        self.handle.clone()
    }

    /// Runs the fleet until `cancel`; its Nodes and pods stay in the API as they are then. Of fleets with one prefix one acts at a
    /// time: the others wait until it has ended, or for 15 s after it has died. One that was taken for dead ends with
    /// [`FleetError::TakenOver`].
    pub async fn run(self, cancel: CancellationToken) -> Result<(), FleetError> {
        let mut hold = Hold::new(self.handle.requests.client(), &self.handle.config.name_prefix);
        tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            () = hold.acquire() => {}
        }
        let ended = tokio::select! {
            ended = self.act(cancel) => ended,
            other = hold.keep() => Err(FleetError::TakenOver(other)),
        };
        hold.release().await;
        ended
    }

    async fn act(self, cancel: CancellationToken) -> Result<(), FleetError> {
        let FleetHandle { config, requests, registered, .. } = self.handle;
        // Whatever ends this, all tasks end with it.
        let _stop = cancel.clone().drop_guard();
        let mut tasks = JoinSet::new();
        let addresses = Arc::new(Mutex::new(Pool::new(config.pod_cidr)));
        let mut shards = Vec::new();
        for _ in 0..SHARDS {
            let (sender, orders) = mpsc::channel(BUFFER);
            shards.push(sender);
            let shard = Shard::new(config.clone(), requests.clone(), self.writes.clone(), addresses.clone());
            tasks.spawn(shard.run(orders, cancel.clone()));
        }
        let (sink, nodes) = mpsc::channel(BUFFER);
        tasks.spawn(follow(Api::all(requests.client()), None, requests.disturbance.subscribe(), sink));
        let (sink, pods) = mpsc::channel(BUFFER);
        tasks.spawn(follow(Api::all(requests.client()), Some("spec.nodeName!="), requests.disturbance.subscribe(), sink));
        tasks.spawn(hand_out(pods, config.clone(), shards.clone()));
        let keeper = Keeper::new(config, requests, self.leases, self.writes, shards, registered);
        tasks.spawn(keeper.run(nodes, self.faults, cancel.clone()));
        let ended = tokio::select! {
            () = cancel.cancelled() => Ok(()),
            // None of them ends by itself.
            Some(ended) = tasks.join_next() => ended.map_err(|error| FleetError::Crashed(error.to_string())),
        };
        cancel.cancel();
        tasks.shutdown().await;
        ended
    }
}

/// Which share has the pods of this namespace and name.
fn share_of(namespace: &str, name: &str, shares: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    (namespace, name).hash(&mut hasher);
    usize::try_from(hasher.finish() % shares.max(1) as u64).unwrap_or_default()
}

/// Gives each pod of the fleet to its share, always the same for the same name.
async fn hand_out(mut pods: mpsc::Receiver<Event<SlimPod>>, config: Arc<FleetConfig>, shards: Vec<mpsc::Sender<Order>>) {
    while let Some(event) = pods.recv().await {
        let now = Instant::now();
        let share = match &event {
            Event::Applied(pod) | Event::Deleted(pod) => {
                if config.index_of(&pod.spec.node_name).is_none() {
                    continue;
                }
                let (namespace, name) = (pod.metadata.namespace.as_deref(), pod.metadata.name.as_deref());
                Some(share_of(namespace.unwrap_or_default(), name.unwrap_or_default(), shards.len()))
            }
            Event::ListBegins | Event::ListEnds => None,
        };
        let event = Arc::new(event);
        for (index, shard) in shards.iter().enumerate() {
            if share.is_none_or(|share| share == index) && shard.send(Order::Pod(event.clone(), now)).await.is_err() {
                return;
            }
        }
    }
}

impl FleetHandle {
    /// Ends once every Node was in the API together with its lease.
    pub fn registered(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let mut registered = self.registered.subscribe();
        async move {
            if registered.wait_for(|registered| *registered).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Lets something go wrong with a node of the fleet.
    pub fn inject(&self, node: &str, fault: NodeFault) -> Result<(), FleetError> {
        let index = self.config.index_of(node);
        let index = index.ok_or_else(|| FleetError::Invalid(format!("`{node}` is no node of this fleet")))?;
        // A fleet that has ended has no faults any more.
        let _ = self.faults.send(Told::Node(index, fault));
        Ok(())
    }

    /// Lets something go wrong with the pod of this namespace and name, as its annotation `sim.virtual-kubelet.io/fault` would,
    /// before which it goes; `None` takes that back. It holds for pods of that name that come later, too, whichever node of the fleet
    /// they are on, and until this process ends.
    ///
    /// ```no_run
    /// use virtual_kubelet::fleet::FleetHandle;
    /// use virtual_kubelet::simulated::PodFault;
    ///
    /// # fn example(handle: &FleetHandle) {
    /// handle.inject_pod("default", "web-0", Some(PodFault::CrashLoop));
    /// handle.inject_pod("default", "web-0", None);
    /// # }
    /// ```
    pub fn inject_pod(&self, namespace: &str, name: &str, fault: Option<PodFault>) {
        // A fleet that has ended has no faults any more.
        let _ = self.faults.send(Told::Pod(namespace.into(), name.into(), fault));
    }

    /// Cuts the watches, for so long: nothing is seen meanwhile, and what was missed is noticed afterwards.
    pub fn drop_watches(&self, blind: Duration) {
        let until = Instant::now() + blind.min(faults::LONGEST);
        self.requests.disturbance.send_modify(|Disturbance { reopen, blind_until }| (*reopen, *blind_until) = (*reopen + 1, Some(until)));
    }

    /// The fleet's figures as Prometheus reads them.
    pub fn scrape(&self) -> String {
        self.requests.metrics.scrape()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_slots_renew_twelve_thousand_leases_in_time() {
        assert_eq!([1, 1_000, 5_000, 12_000, 100_000].map(|nodes| lease_slots(nodes).0), [4, 4, 20, 48, 48]);
        for nodes in 1..=12_000 {
            let seconds = f64::from(nodes) * 0.04 / f64::from(lease_slots(nodes).0);
            assert!(seconds <= 10.0, "{nodes} nodes take {seconds} s");
        }
    }
}
