//! The provider that runs pods as local processes.

use std::collections::{HashMap, HashSet};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{mpsc, watch};

use super::admission::admit;
use super::leftovers;
use super::site::{Site, claim};
use super::status::rejected;
use super::worker::{Order, PodNote, Published, Sink, Worker};
use crate::errdefs::ProviderError;
use crate::pod::{PodId, PodLifecycleHandler, PodNotifier, PodStatusSink};

/// What a container gets whose pod is known no more.
const LEFTOVER_GRACE: Duration = Duration::from_secs(30);

/// Runs each container of a pod as a process group with mounts of its own. Isolates nothing else.
///
/// See the [module](super) for how it is made and used.
///
/// ```no_run
/// use std::time::Duration;
///
/// use virtual_kubelet::process::ProcessProvider;
///
/// # fn example(provider: &ProcessProvider) {
/// for pod in provider.figures() {
///     println!("{}: {} containers, {} bytes in volumes", pod.id, pod.containers.len(), pod.volume_bytes);
/// }
/// // As if the agent had been restarted, and had forgotten what its probes knew.
/// provider.forget_readiness(Duration::from_secs(10));
/// # }
/// ```
pub struct ProcessProvider {
    _claim: std::fs::File,
    site: Arc<Site>,
    node_name: String,
    server_node: watch::Receiver<Option<Node>>,
    pods: Pods,
    sink: Sink,
}

type Pods = Arc<Mutex<HashMap<PodId, Entry>>>;

struct Entry {
    pod: Arc<Pod>,
    status: Published,
    /// Absent for a pod that was refused.
    orders: Option<mpsc::UnboundedSender<Order>>,
    /// Its files are being made; orders wait for that.
    is_new: bool,
}

impl Entry {
    fn status(&self) -> PodStatus {
        self.status.lock().clone()
    }

    fn is_active(&self) -> bool {
        !matches!(self.status().phase.as_deref(), Some("Succeeded" | "Failed"))
    }
}

fn locked(pods: &Pods) -> MutexGuard<'_, HashMap<PodId, Entry>> {
    pods.lock()
}

/// Makes the files of a pod that is among `pods` already, and begins to run it.
async fn begin(pods: Pods, site: Arc<Site>, pod: Arc<Pod>, published: Published, sink: Sink, inbox: Inbox) -> Result<(), ProviderError> {
    let id = PodId::of(&pod);
    let made = tokio::task::spawn_blocking(move || Worker::new(site, pod, published, sink)).await;
    let mut pods = locked(&pods);
    let worker = match made.map_err(std::io::Error::from).flatten() {
        Ok(worker) => worker,
        Err(error) => {
            pods.remove(&id);
            return Err(ProviderError::Other(error.into()));
        }
    };
    // One that was forgotten meanwhile is not run.
    if let Some(entry) = pods.get_mut(&id) {
        entry.is_new = false;
        tokio::spawn(worker.run(inbox));
    }
    Ok(())
}

type Inbox = mpsc::UnboundedReceiver<Order>;

impl ProcessProvider {
    /// A provider at `site`. Adopts the pods that an earlier agent ran in its directory: they are among
    /// [`get_pods`](PodLifecycleHandler::get_pods) from the first moment on. Has to be called in a tokio runtime.
    ///
    /// # Errors
    /// When another agent uses the directory, or it cannot be written.
    pub fn new(site: Site, node_name: String, server_node: watch::Receiver<Option<Node>>) -> std::io::Result<Self> {
        let claim = claim(&site.root)?;
        std::fs::create_dir_all(site.staging())?;
        // Secrets, tokens and logs of all users' pods: containers get mounts, and no way through.
        for directory in [site.root.join("pods"), site.root.join("volumes")] {
            std::fs::create_dir_all(&directory)?;
            std::fs::set_permissions(&directory, Permissions::from_mode(0o700))?;
        }
        let provider = Self { _claim: claim, site: Arc::new(site), node_name, server_node, pods: Pods::default(), sink: Sink::default() };
        let parent = provider.site.root.join("pods");
        for directory in std::fs::read_dir(parent).into_iter().flatten().flatten().map(|entry| entry.path()) {
            if let Some(note) = PodNote::read(&directory) {
                provider.adopt(note);
            }
        }
        Ok(provider)
    }

    fn adopt(&self, note: PodNote) {
        let pod = Arc::new(note.pod.clone());
        let (orders, inbox) = mpsc::unbounded_channel();
        let published = Published::default();
        let entry = Entry { pod: pod.clone(), status: published.clone(), orders: Some(orders), is_new: false };
        self.pods().insert(PodId::of(&pod), entry);
        let (site, sink) = (self.site.clone(), self.sink.clone());
        tokio::spawn(async move { Worker::adopt(site, note, published, sink).await.run(inbox).await });
    }

    /// Tells the controller anew what it may have missed before it knew the pods, and that they are wanted.
    fn confirm(&self, present: &HashSet<PodId>) {
        let sink = self.sink();
        for (id, entry) in &*self.pods() {
            let status = entry.status();
            if status.phase.is_some() {
                sink.notify(id.clone(), status);
            }
            if let Some(orders) = entry.orders.as_ref().filter(|_| present.contains(id)) {
                let _ = orders.send(Order::Confirm);
            }
        }
    }

    fn pods(&self) -> MutexGuard<'_, HashMap<PodId, Entry>> {
        locked(&self.pods)
    }

    pub(super) fn node_name(&self) -> &str {
        &self.node_name
    }

    pub(super) fn site(&self) -> &Site {
        &self.site
    }

    pub(super) fn known(&self, id: &PodId) -> Option<(Arc<Pod>, PodStatus)> {
        self.pods().get(id).map(|entry| (entry.pod.clone(), entry.status()))
    }

    pub(super) fn all(&self) -> Vec<(PodId, Arc<Pod>, PodStatus)> {
        self.pods().iter().map(|(id, entry)| (id.clone(), entry.pod.clone(), entry.status())).collect()
    }

    fn sink(&self) -> PodStatusSink {
        self.sink.lock().clone()
    }

    /// Makes every pod unready at once, for `time` at least and until its probes succeed again: what a
    /// restarted kubelet that forgot the results of its probes did.
    pub fn forget_readiness(&self, time: Duration) {
        for entry in self.pods().values() {
            if let Some(orders) = &entry.orders {
                let _ = orders.send(Order::ForgetReadiness(time));
            }
        }
    }
}

impl PodNotifier for ProcessProvider {
    fn notify_pods(&self, sink: PodStatusSink) {
        *self.sink.lock() = sink;
    }
}

impl PodLifecycleHandler for ProcessProvider {
    async fn create_pod(&self, pod: Arc<Pod>) -> Result<(), ProviderError> {
        let id = PodId::of(&pod);
        let sink = self.sink();
        let labels = self.server_node.borrow().as_ref().and_then(|node| node.metadata.labels.clone()).unwrap_or_default();
        let published = Published::default();
        let (orders, inbox) = mpsc::unbounded_channel();
        {
            let mut pods = self.pods();
            if let Some(entry) = pods.get_mut(&id) {
                entry.pod = pod.clone();
                if entry.is_new {
                    return Err(ProviderError::Other(anyhow::anyhow!("the agent is still creating the files of the pod")));
                }
                if let Some(orders) = &entry.orders {
                    let _ = orders.send(Order::Update(pod));
                    let _ = orders.send(Order::Confirm);
                }
                return Ok(());
            }
            let active = pods.values().filter(|entry| entry.is_active()).map(|entry| &*entry.pod);
            if let Err(refusal) = admit(&pod, &self.node_name, &labels, active) {
                tracing::warn!(pod = %id, reason = refusal.reason, message = refusal.message, "refused a pod");
                self.site.events.warning(&pod, refusal.reason, refusal.message.clone());
                let status = rejected(&pod, refusal.reason, &refusal.message);
                sink.notify(id.clone(), status.clone());
                pods.insert(id, Entry { pod, status: Arc::new(Mutex::new(status)), orders: None, is_new: false });
                return Ok(());
            }
            pods.insert(id, Entry { pod: pod.clone(), status: published.clone(), orders: Some(orders), is_new: true });
        }
        // Goes on when the caller gives up: half of a pod would be neither there nor not.
        let begun = tokio::spawn(begin(self.pods.clone(), self.site.clone(), pod, published, self.sink.clone(), inbox));
        begun.await.map_err(|error| ProviderError::Other(error.into()))?
    }

    async fn update_pod(&self, pod: Arc<Pod>) -> Result<(), ProviderError> {
        let id = PodId::of(&pod);
        let mut pods = self.pods();
        let entry = pods.get_mut(&id).ok_or_else(|| ProviderError::NotFound(id.to_string()))?;
        entry.pod = pod.clone();
        if let Some(orders) = &entry.orders {
            let _ = orders.send(Order::Update(pod));
        }
        Ok(())
    }

    async fn delete_pod(&self, pod: Arc<Pod>, grace_seconds: i64) -> Result<(), ProviderError> {
        let id = PodId::of(&pod);
        let mut pods = self.pods();
        let entry = pods.get_mut(&id).ok_or_else(|| ProviderError::NotFound(id.to_string()))?;
        entry.pod = pod.clone();
        if let Some(orders) = &entry.orders {
            // A kubelet gives a process one second even when told none.
            let grace = Duration::from_secs(u64::try_from(grace_seconds).unwrap_or_default().max(1));
            let _ = orders.send(Order::End(pod, grace));
        }
        Ok(())
    }

    async fn forget_pod(&self, id: &PodId) {
        self.pods().remove(id);
        let directories = [self.site.pod_dir(id), self.site.volumes_dir(id)];
        let _ = tokio::task::spawn_blocking(move || directories.map(std::fs::remove_dir_all)).await;
    }

    async fn retain(&self, present: &HashSet<PodId>) {
        self.confirm(present);
        let mut kept: HashSet<PathBuf> = HashSet::new();
        for id in present.iter().cloned().chain(self.pods().keys().cloned()) {
            kept.extend([self.site.pod_dir(&id), self.site.volumes_dir(&id)]);
        }
        let parents = [self.site.root.join("pods"), self.site.root.join("volumes")];
        let entries = parents.iter().flat_map(|parent| std::fs::read_dir(parent).into_iter().flatten().flatten());
        let stale: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| !kept.contains(path)).collect();
        if stale.is_empty() {
            return;
        }
        // Not waited for: what runs there, of a pod whose note is lost, has its grace.
        tokio::spawn(async move {
            for path in stale {
                leftovers::end_pod(&path, LEFTOVER_GRACE).await;
                let _ = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(path)).await;
            }
        });
    }

    /// Ports of the host are taken at creation.
    fn oldest_first(&self) -> bool {
        true
    }

    async fn get_pod(&self, id: &PodId) -> Result<Option<Arc<Pod>>, ProviderError> {
        Ok(self.pods().get(id).map(|entry| entry.pod.clone()))
    }

    async fn get_pod_status(&self, id: &PodId) -> Result<Option<PodStatus>, ProviderError> {
        // A pod that is being adopted has none yet, which is not an empty one.
        Ok(self.pods().get(id).map(Entry::status).filter(|status| status.phase.is_some()))
    }

    async fn get_pods(&self) -> Result<Vec<Arc<Pod>>, ProviderError> {
        Ok(self.pods().values().map(|entry| entry.pod.clone()).collect())
    }
}
