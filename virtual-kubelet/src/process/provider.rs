//! The provider that runs pods as local processes.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use tokio::sync::{mpsc, watch};

use super::admission::admit;
use super::process_note::end_leftovers;
use super::site::Site;
use super::status::rejected;
use super::worker::{Order, Published, Worker};
use crate::errdefs::ProviderError;
use crate::pod::{PodId, PodLifecycleHandler, PodNotifier, PodStatusSink};

/// Runs each container of a pod as a process group with mounts of its own. Isolates nothing else.
pub struct ProcessProvider {
    site: Arc<Site>,
    node_name: String,
    server_node: watch::Receiver<Option<Node>>,
    pods: Mutex<HashMap<PodId, Entry>>,
    sink: Mutex<PodStatusSink>,
}

struct Entry {
    pod: Arc<Pod>,
    status: Published,
    /// Absent for a pod that was refused.
    orders: Option<mpsc::UnboundedSender<Order>>,
}

impl Entry {
    fn status(&self) -> PodStatus {
        self.status.lock().map(|status| status.clone()).unwrap_or_default()
    }

    fn is_active(&self) -> bool {
        !matches!(self.status().phase.as_deref(), Some("Succeeded" | "Failed"))
    }
}

impl ProcessProvider {
    /// A provider at `site`. Ends the processes that an earlier agent left in its directory.
    pub fn new(site: Site, node_name: String, server_node: watch::Receiver<Option<Node>>) -> std::io::Result<Self> {
        end_leftovers(&site.root.join("pods"));
        std::fs::create_dir_all(site.staging())?;
        Ok(Self { site: Arc::new(site), node_name, server_node, pods: Mutex::default(), sink: Mutex::default() })
    }

    fn pods(&self) -> MutexGuard<'_, HashMap<PodId, Entry>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sink(&self) -> PodStatusSink {
        self.sink.lock().map(|sink| sink.clone()).unwrap_or_default()
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
        if let Ok(mut slot) = self.sink.lock() {
            *slot = sink;
        }
    }
}

impl PodLifecycleHandler for ProcessProvider {
    async fn create_pod(&self, pod: Arc<Pod>) -> Result<(), ProviderError> {
        let id = PodId::of(&pod);
        let sink = self.sink();
        let labels = self.server_node.borrow().as_ref().and_then(|node| node.metadata.labels.clone()).unwrap_or_default();
        let mut pods = self.pods();
        if pods.contains_key(&id) {
            return Ok(());
        }
        let active = pods.values().filter(|entry| entry.is_active()).map(|entry| &*entry.pod);
        if let Err(refusal) = admit(&pod, &self.node_name, &labels, active) {
            tracing::warn!(pod = %id, reason = refusal.reason, message = refusal.message, "refused a pod");
            self.site.events.warning(&pod, refusal.reason, refusal.message.clone());
            let status = rejected(&pod, refusal.reason, &refusal.message);
            sink.notify(id.clone(), status.clone());
            pods.insert(id, Entry { pod, status: Arc::new(Mutex::new(status)), orders: None });
            return Ok(());
        }
        let worker = Worker::new(self.site.clone(), pod.clone(), sink).map_err(|error| ProviderError::Other(error.into()))?;
        let (orders, inbox) = mpsc::unbounded_channel();
        pods.insert(id, Entry { pod, status: worker.published(), orders: Some(orders) });
        tokio::spawn(worker.run(inbox));
        Ok(())
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
        let mut kept: HashSet<PathBuf> = HashSet::new();
        for id in present.iter().cloned().chain(self.pods().keys().cloned()) {
            kept.extend([self.site.pod_dir(&id), self.site.volumes_dir(&id)]);
        }
        let root = self.site.root.clone();
        let sweep = move || {
            let parents = [root.join("pods"), root.join("volumes")];
            let entries = parents.iter().flat_map(|parent| std::fs::read_dir(parent).into_iter().flatten().flatten());
            for path in entries.map(|entry| entry.path()).filter(|path| !kept.contains(path)) {
                let _ = std::fs::remove_dir_all(path);
            }
        };
        let _ = tokio::task::spawn_blocking(sweep).await;
    }

    async fn get_pod(&self, id: &PodId) -> Result<Option<Arc<Pod>>, ProviderError> {
        Ok(self.pods().get(id).map(|entry| entry.pod.clone()))
    }

    async fn get_pod_status(&self, id: &PodId) -> Result<Option<PodStatus>, ProviderError> {
        Ok(self.pods().get(id).map(Entry::status))
    }

    async fn get_pods(&self) -> Result<Vec<Arc<Pod>>, ProviderError> {
        Ok(self.pods().values().map(|entry| entry.pod.clone()).collect())
    }
}
