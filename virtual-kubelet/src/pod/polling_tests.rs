use futures::FutureExt;
use k8s_openapi::api::core::v1::{ContainerStateRunning, ContainerStateWaiting};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::*;
use tokio::sync::oneshot;

/// A provider whose pods have the status that the test sets.
#[derive(Default)]
struct Scripted {
    statuses: Mutex<HashMap<PodId, PodStatus>>,
    refuse_deletion: Mutex<bool>,
    keep_on_deletion: Mutex<bool>,
    /// The next answer about a status is given when this comes.
    late: Mutex<Option<oneshot::Receiver<()>>>,
}

impl PodLifecycleHandler for Scripted {
    async fn create_pod(&self, pod: Arc<Pod>) -> Result<(), ProviderError> {
        self.statuses.lock().insert(PodId::of(&pod), running());
        Ok(())
    }

    async fn update_pod(&self, _: Arc<Pod>) -> Result<(), ProviderError> {
        Ok(())
    }

    async fn delete_pod(&self, pod: Arc<Pod>, _: i64) -> Result<(), ProviderError> {
        if *self.refuse_deletion.lock() {
            return Err(ProviderError::Other(anyhow::anyhow!("not now")));
        }
        if !*self.keep_on_deletion.lock() {
            self.statuses.lock().remove(&PodId::of(&pod));
        }
        Ok(())
    }

    async fn forget_pod(&self, _: &PodId) {}

    async fn get_pod(&self, _: &PodId) -> Result<Option<Arc<Pod>>, ProviderError> {
        Ok(None)
    }

    async fn get_pod_status(&self, id: &PodId) -> Result<Option<PodStatus>, ProviderError> {
        let answer = self.statuses.lock().get(id).cloned();
        let late = self.late.lock().take();
        if let Some(late) = late {
            late.await.unwrap();
        }
        Ok(answer)
    }

    async fn get_pods(&self) -> Result<Vec<Arc<Pod>>, ProviderError> {
        Ok(vec![])
    }
}

fn pod() -> Arc<Pod> {
    Arc::new(Pod { metadata: ObjectMeta { name: Some("p".into()), uid: Some("u".into()), ..ObjectMeta::default() }, ..Pod::default() })
}

fn running() -> PodStatus {
    let state = ContainerState { running: Some(ContainerStateRunning::default()), ..ContainerState::default() };
    let container = ContainerStatus { name: "main".into(), ready: true, state: Some(state), ..ContainerStatus::default() };
    PodStatus { phase: Some("Running".into()), container_statuses: Some(vec![container]), ..PodStatus::default() }
}

async fn started() -> (Polling<Scripted>, PodStatusSink) {
    let (polling, sink) = (Polling::new(Scripted::default()), PodStatusSink::default());
    polling.notify_pods(sink.clone());
    polling.create_pod(pod()).await.unwrap();
    assert_eq!(told(&sink).await.phase.as_deref(), Some("Running"));
    (polling, sink)
}

async fn told(sink: &PodStatusSink) -> PodStatus {
    sink.take().await.remove(&PodId::of(&pod())).unwrap().status
}

/// The one state that a container is in.
fn ended(status: &PodStatus) -> ContainerStateTerminated {
    let container = &status.container_statuses.as_ref().unwrap()[0];
    let state = container.state.clone().unwrap();
    assert_eq!((state.running, state.waiting, container.ready), (None, None, false));
    state.terminated.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_changed_status_is_reported_once_within_five_seconds() {
    let (polling, sink) = started().await;
    let failed = PodStatus { phase: Some("Failed".into()), ..PodStatus::default() };
    polling.provider().statuses.lock().insert(PodId::of(&pod()), failed);
    let before = Instant::now();
    assert_eq!(told(&sink).await.phase.as_deref(), Some("Failed"));
    assert!(before.elapsed() <= DEFAULT_POLL_INTERVAL);
    assert!(tokio::time::timeout(Duration::from_mins(1), sink.take()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_running_pod_that_the_provider_lost_has_failed() {
    let (polling, sink) = started().await;
    polling.provider().statuses.lock().clear();
    let status = told(&sink).await;
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("NotFound")));
    assert_eq!(status.message.as_deref(), Some("The pod status was not found and may have been deleted from the provider"));
    let end = ended(&status);
    assert_eq!((end.exit_code, end.reason.as_deref()), (137, Some("NotFound")));
}

#[tokio::test(start_paused = true)]
async fn a_pod_never_seen_running_is_missing_after_a_minute() {
    let (polling, sink) = started().await;
    let pending = PodStatus { phase: Some("Pending".into()), ..PodStatus::default() };
    polling.provider().statuses.lock().insert(PodId::of(&pod()), pending);
    assert_eq!(told(&sink).await.phase.as_deref(), Some("Pending"));
    polling.provider().statuses.lock().clear();
    let before = Instant::now();
    assert_eq!(told(&sink).await.reason.as_deref(), Some("NotFound"));
    assert!(before.elapsed() >= Duration::from_secs(50) && before.elapsed() <= Duration::from_secs(65), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_unknown_to_the_provider_has_ended() {
    let (polling, sink) = started().await;
    polling.delete_pod(pod(), 30).await.unwrap();
    let status = told(&sink).await;
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Succeeded"), Some("Terminated")));
    assert_eq!(ended(&status).reason.as_deref(), Some("Terminated"));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_that_still_runs_has_not_ended() {
    let (polling, sink) = started().await;
    *polling.provider().keep_on_deletion.lock() = true;
    polling.delete_pod(pod(), 30).await.unwrap();
    assert!(sink.take().now_or_never().is_none());
    polling.provider().statuses.lock().clear();
    assert_eq!(told(&sink).await.reason.as_deref(), Some("Terminated"));
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_failed_leaves_no_mark() {
    let (polling, sink) = started().await;
    *polling.provider().refuse_deletion.lock() = true;
    assert!(polling.delete_pod(pod(), 30).await.is_err());
    polling.provider().statuses.lock().clear();
    assert_eq!(told(&sink).await.reason.as_deref(), Some("NotFound"));
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_pod_leaves_nothing_behind() {
    let (polling, sink) = started().await;
    polling.delete_pod(pod(), 30).await.unwrap();
    told(&sink).await;
    polling.forget_pod(&PodId::of(&pod())).await;
    assert!(polling.0.known().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_task_that_asks_ends_with_the_wrapper() {
    let (polling, _sink) = started().await;
    let weak = Arc::downgrade(&polling.0);
    drop(polling);
    tokio::time::sleep(DEFAULT_POLL_INTERVAL * 2).await;
    assert!(weak.upgrade().is_none());
}

#[test]
fn an_ended_container_of_a_missing_pod_keeps_its_end() {
    let own = ContainerStateTerminated { exit_code: 7, ..ContainerStateTerminated::default() };
    let container = |state: ContainerState| ContainerStatus { state: Some(state), ..ContainerStatus::default() };
    let over = container(ContainerState { terminated: Some(own), ..ContainerState::default() });
    let waiting = container(ContainerState { waiting: Some(ContainerStateWaiting::default()), ..ContainerState::default() });
    let last = PodStatus { container_statuses: Some(vec![over, waiting]), ..PodStatus::default() };
    let containers = missing(&last, Timestamp::UNIX_EPOCH).container_statuses.unwrap();
    assert_eq!(containers[0].state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code, 7);
    let state = containers[1].state.as_ref().unwrap();
    assert!(state.waiting.is_none() && state.terminated.as_ref().unwrap().exit_code == KILLED);
}

#[tokio::test(start_paused = true)]
async fn a_status_answer_from_before_recreation_is_discarded() {
    let (polling, sink) = started().await;
    let (answer, late) = oneshot::channel();
    polling.provider().statuses.lock().clear();
    *polling.provider().late.lock() = Some(late);
    let id = PodId::of(&pod());
    let mut asking = Box::pin(polling.0.ask(&id));
    assert!((&mut asking).now_or_never().is_none());
    polling.create_pod(pod()).await.unwrap();
    assert_eq!(told(&sink).await.phase.as_deref(), Some("Running"), "it is told anew");
    answer.send(()).unwrap();
    asking.await;
    assert!(sink.take().now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_recreated_pod_is_reported_despite_an_unchanged_status() {
    let (polling, sink) = started().await;
    let again = Pod { status: Some(running()), ..Pod::clone(&pod()) };
    polling.create_pod(Arc::new(again)).await.unwrap();
    assert_eq!(told(&sink).await, running());
}

/// `count` pods, each of whose statuses takes a second to tell; those of the first `hung` are never told.
#[derive(Default)]
struct Slow {
    asked: Mutex<HashMap<PodId, u32>>,
    under_way: Mutex<(usize, usize)>,
    hung: usize,
    count: usize,
}

fn numbered(number: usize) -> Arc<Pod> {
    let mut pod = Pod::clone(&pod());
    pod.metadata.uid = Some(format!("{number}"));
    Arc::new(pod)
}

impl PodLifecycleHandler for Slow {
    async fn create_pod(&self, _: Arc<Pod>) -> Result<(), ProviderError> {
        Ok(())
    }

    async fn update_pod(&self, _: Arc<Pod>) -> Result<(), ProviderError> {
        Ok(())
    }

    async fn delete_pod(&self, _: Arc<Pod>, _: i64) -> Result<(), ProviderError> {
        Ok(())
    }

    async fn forget_pod(&self, _: &PodId) {}

    async fn get_pod(&self, _: &PodId) -> Result<Option<Arc<Pod>>, ProviderError> {
        Ok(None)
    }

    async fn get_pod_status(&self, id: &PodId) -> Result<Option<PodStatus>, ProviderError> {
        *self.asked.lock().entry(id.clone()).or_default() += 1;
        if id.uid.parse::<usize>().unwrap() < self.hung {
            return std::future::pending().await;
        }
        let count = |more: bool| {
            let (now, most) = &mut *self.under_way.lock();
            *now = if more { *now + 1 } else { *now - 1 };
            *most = (*most).max(*now);
        };
        count(true);
        tokio::time::sleep(Duration::from_secs(1)).await;
        count(false);
        Ok(Some(running()))
    }

    async fn get_pods(&self) -> Result<Vec<Arc<Pod>>, ProviderError> {
        Ok((0..self.count).map(numbered).collect())
    }
}

async fn polled(provider: Slow) -> Polling<Slow> {
    let polling = Polling::new(provider);
    polling.notify_pods(PodStatusSink::default());
    polling.get_pods().await.unwrap();
    polling
}

#[tokio::test(start_paused = true)]
async fn statuses_are_polled_concurrently_up_to_a_limit() {
    let polling = polled(Slow { count: 10 * AT_A_TIME, ..Slow::default() }).await;
    tokio::time::sleep(DEFAULT_POLL_INTERVAL + Duration::from_secs(11)).await;
    let asked = polling.provider().asked.lock().len();
    assert_eq!((asked, polling.provider().under_way.lock().1), (10 * AT_A_TIME, AT_A_TIME));
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_status_poll_is_abandoned_without_blocking_others() {
    let polling = polled(Slow { count: 2 * AT_A_TIME, hung: AT_A_TIME, ..Slow::default() }).await;
    tokio::time::sleep(4 * ANSWERS_WITHIN).await;
    let asked = polling.provider().asked.lock();
    assert!(asked.len() == 2 * AT_A_TIME && asked.values().all(|times| *times >= 3), "{asked:?}");
}
