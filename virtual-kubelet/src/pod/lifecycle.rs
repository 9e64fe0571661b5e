//! What a pod controller asks of a provider.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::PodId;
use super::decide::PodReport;
use crate::errdefs::ProviderError;

/// Runs pods. Every method may be repeated; none may wait for a pod to start or to end.
///
/// Errors are sorted as [`errdefs`](crate::errdefs) says: "not found" means that there is nothing left to do, "invalid
/// input" that the pod is not offered again before it changes, and everything else is tried again.
///
/// A provider whose pods do nothing, and end when told to:
///
/// ```
/// use std::collections::{HashMap, HashSet};
/// use std::sync::{Arc, Mutex};
///
/// use k8s_openapi::api::core::v1::{Pod, PodStatus};
/// use virtual_kubelet::errdefs::ProviderError;
/// use virtual_kubelet::pod::{PodId, PodLifecycleHandler, PodNotifier, PodStatusSink};
///
/// #[derive(Default)]
/// struct Nothing {
///     pods: Mutex<HashMap<PodId, Arc<Pod>>>,
///     sink: Mutex<PodStatusSink>,
/// }
///
/// impl Nothing {
///     fn tell(&self, id: PodId, phase: &str) {
///         self.sink.lock().unwrap().notify(id, PodStatus { phase: Some(phase.into()), ..PodStatus::default() });
///     }
/// }
///
/// impl PodNotifier for Nothing {
///     fn notify_pods(&self, sink: PodStatusSink) {
///         *self.sink.lock().unwrap() = sink;
///     }
/// }
///
/// impl PodLifecycleHandler for Nothing {
///     async fn create_pod(&self, pod: Arc<Pod>) -> Result<(), ProviderError> {
///         let id = PodId::of(&pod);
///         self.pods.lock().unwrap().insert(id.clone(), pod);
///         self.tell(id, "Running");
///         Ok(())
///     }
///
///     async fn update_pod(&self, pod: Arc<Pod>) -> Result<(), ProviderError> {
///         self.pods.lock().unwrap().insert(PodId::of(&pod), pod);
///         Ok(())
///     }
///
///     async fn delete_pod(&self, pod: Arc<Pod>, _grace_seconds: i64) -> Result<(), ProviderError> {
///         self.tell(PodId::of(&pod), "Succeeded");
///         Ok(())
///     }
///
///     async fn forget_pod(&self, id: &PodId) {
///         self.pods.lock().unwrap().remove(id);
///     }
///
///     async fn get_pod(&self, id: &PodId) -> Result<Option<Arc<Pod>>, ProviderError> {
///         Ok(self.pods.lock().unwrap().get(id).cloned())
///     }
///
///     async fn get_pod_status(&self, _id: &PodId) -> Result<Option<PodStatus>, ProviderError> {
///         Ok(None)
///     }
///
///     async fn get_pods(&self) -> Result<Vec<Arc<Pod>>, ProviderError> {
///         Ok(self.pods.lock().unwrap().values().cloned().collect())
///     }
///
///     // May be left out by a provider that keeps nothing of its pods.
///     async fn retain(&self, present: &HashSet<PodId>) {
///         self.pods.lock().unwrap().retain(|id, _| present.contains(id));
///     }
///
///     // May be left out by a provider whose pods have nothing to share.
///     fn oldest_first(&self) -> bool {
///         false
///     }
/// }
/// ```
pub trait PodLifecycleHandler: Send + Sync + 'static {
    /// Starts to run a pod. A pod that cannot be admitted is no error: its status becomes `Failed`.
    fn create_pod(&self, pod: Arc<Pod>) -> impl Future<Output = Result<(), ProviderError>> + Send;

    /// The pod's spec, labels or annotations changed.
    fn update_pod(&self, pod: Arc<Pod>) -> impl Future<Output = Result<(), ProviderError>> + Send;

    /// Starts to end a pod within `grace_seconds`; a shorter grace may follow. When everything of the
    /// pod has ended its status' phase becomes `Succeeded` or `Failed`, and only then. Of one whose end was not told 30 s after its
    /// grace, status and pod are asked for: it has ended if neither is known.
    fn delete_pod(&self, pod: Arc<Pod>, grace_seconds: i64) -> impl Future<Output = Result<(), ProviderError>> + Send;

    /// Forgets a pod that has ended and left the API.
    fn forget_pod(&self, id: &PodId) -> impl Future<Output = ()> + Send;

    /// The pod as it was given.
    fn get_pod(&self, id: &PodId) -> impl Future<Output = Result<Option<Arc<Pod>>, ProviderError>> + Send;

    /// The pod's present status.
    fn get_pod_status(&self, id: &PodId) -> impl Future<Output = Result<Option<PodStatus>, ProviderError>> + Send;

    /// All pods of the node are these, as a complete list has shown: what is kept of others may go. Others are not created before
    /// it is answered.
    fn retain(&self, present: &HashSet<PodId>) -> impl Future<Output = ()> + Send {
        let _ = present;
        std::future::ready(())
    }

    /// Whether pods of the first list are created one after the other, oldest first. Where two want the same thing of the node,
    /// the older one gets it so: it had it before this program started. By default they are created beside one another.
    fn oldest_first(&self) -> bool {
        false
    }

    /// All pods that the provider knows.
    fn get_pods(&self) -> impl Future<Output = Result<Vec<Arc<Pod>>, ProviderError>> + Send;
}

/// A provider that tells changes of status by itself.
///
/// ```
/// use std::sync::Mutex;
///
/// use virtual_kubelet::pod::{PodNotifier, PodStatusSink};
///
/// struct Provider {
///     /// Used at each change of a pod.
///     sink: Mutex<PodStatusSink>,
/// }
///
/// impl PodNotifier for Provider {
///     fn notify_pods(&self, sink: PodStatusSink) {
///         *self.sink.lock().unwrap() = sink;
///     }
/// }
/// ```
pub trait PodNotifier {
    /// Called once, before any pod is created. Must not block; the sink may be used at any time afterwards.
    fn notify_pods(&self, sink: PodStatusSink);
}

impl<P: PodNotifier> PodNotifier for Arc<P> {
    fn notify_pods(&self, sink: PodStatusSink) {
        (**self).notify_pods(sink);
    }
}

impl<P: PodLifecycleHandler> PodLifecycleHandler for Arc<P> {
    async fn create_pod(&self, pod: Arc<Pod>) -> Result<(), ProviderError> {
        (**self).create_pod(pod).await
    }

    async fn update_pod(&self, pod: Arc<Pod>) -> Result<(), ProviderError> {
        (**self).update_pod(pod).await
    }

    async fn delete_pod(&self, pod: Arc<Pod>, grace_seconds: i64) -> Result<(), ProviderError> {
        (**self).delete_pod(pod, grace_seconds).await
    }

    async fn forget_pod(&self, id: &PodId) {
        (**self).forget_pod(id).await;
    }

    async fn get_pod(&self, id: &PodId) -> Result<Option<Arc<Pod>>, ProviderError> {
        (**self).get_pod(id).await
    }

    async fn get_pod_status(&self, id: &PodId) -> Result<Option<PodStatus>, ProviderError> {
        (**self).get_pod_status(id).await
    }

    async fn retain(&self, present: &HashSet<PodId>) {
        (**self).retain(present).await;
    }

    fn oldest_first(&self) -> bool {
        (**self).oldest_first()
    }

    async fn get_pods(&self) -> Result<Vec<Arc<Pod>>, ProviderError> {
        (**self).get_pods().await
    }
}

/// Takes statuses of pods. The latest of a pod wins, so it holds at most one status per pod.
///
/// ```
/// use k8s_openapi::api::core::v1::PodStatus;
/// use virtual_kubelet::pod::{PodId, PodStatusSink};
///
/// let sink = PodStatusSink::default();
/// let id = PodId { namespace: "web".into(), name: "a".into(), uid: "0a1b2c3d".into() };
/// sink.notify(id, PodStatus { phase: Some("Running".into()), ..PodStatus::default() });
/// // With an annotation.
/// # let mut pod = k8s_openapi::api::core::v1::Pod::default();
/// pod.metadata.annotations = Some([("example.com/address".to_owned(), "10.0.0.7".to_owned())].into());
/// sink.notify_pod(&pod);
/// ```
#[derive(Clone, Debug, Default)]
pub struct PodStatusSink {
    waiting: Arc<Mutex<HashMap<PodId, PodReport>>>,
    filled: Arc<Notify>,
}

impl PodStatusSink {
    /// Reports the status of a pod. Never blocks.
    pub fn notify(&self, id: PodId, status: PodStatus) {
        self.put(id, PodReport { status, ..PodReport::default() });
    }

    /// Reports a pod's status and annotations. Annotations that are as the provider was given them are of others, who may
    /// change them; those that differ are the provider's, and what somebody else makes of them is put right. A pod with a
    /// `deletionTimestamp` is being ended by the provider itself: it is deleted in the API, with its `deletionGracePeriodSeconds`. Never
    /// blocks.
    pub fn notify_pod(&self, pod: &Pod) {
        let grace = || pod.metadata.deletion_grace_period_seconds.unwrap_or_default();
        let report = PodReport {
            status: pod.status.clone().unwrap_or_default(),
            annotations: pod.metadata.annotations.clone(),
            evicted: pod.metadata.deletion_timestamp.as_ref().map(|_| grace()),
        };
        self.put(PodId::of(pod), report);
    }

    fn put(&self, id: PodId, report: PodReport) {
        let mut waiting = self.waiting.lock();
        let before = waiting.remove(&id).unwrap_or_default();
        let report = PodReport {
            annotations: report.annotations.or(before.annotations),
            evicted: report.evicted.or(before.evicted),
            status: report.status,
        };
        waiting.insert(id, report);
        drop(waiting);
        self.filled.notify_one();
    }

    /// Waits for reports and takes them all.
    pub(super) async fn take(&self) -> HashMap<PodId, PodReport> {
        loop {
            let taken = std::mem::take(&mut *self.waiting.lock());
            if !taken.is_empty() {
                return taken;
            }
            self.filled.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

    #[tokio::test]
    async fn an_eviction_report_survives_a_later_status_report() {
        let sink = PodStatusSink::default();
        let mut pod = Pod::default();
        pod.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        pod.metadata.deletion_grace_period_seconds = Some(7);
        sink.notify_pod(&pod);
        let status = PodStatus { phase: Some("Failed".into()), ..PodStatus::default() };
        sink.notify(PodId::of(&pod), status.clone());
        let report = sink.take().await.remove(&PodId::of(&pod)).unwrap();
        assert_eq!((report.status, report.evicted), (status, Some(7)));
    }
}
