//! A provider whose pods are entries of a table, which does what a scenario tells it to and remembers what it was asked.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use k8s_openapi::{
    api::core::v1::{ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStatus, Pod, PodCondition, PodStatus},
    jiff::Timestamp,
};
use parking_lot::{Mutex, MutexGuard};
use virtual_kubelet::{
    errdefs::ProviderError,
    pod::{PodId, PodLifecycleHandler, PodNotifier, PodStatusSink},
};

/// How a provider answers a deletion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deletion {
    /// The pod ends at once.
    #[default]
    Ends,
    /// The provider says that it does not know the pod.
    NotFound,
    /// Some other error.
    Fails,
    /// It takes note, and the pod goes on until it is told to end.
    Waits,
}

/// How a provider answers a creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Creation {
    /// The pod runs.
    #[default]
    Runs,
    /// An error that may pass.
    Fails,
    /// The pod is invalid input.
    Refuses,
    /// It panics.
    Panics,
}

#[derive(Default)]
struct State {
    pods: BTreeMap<PodId, (Arc<Pod>, PodStatus)>,
    calls: Vec<(&'static str, String)>,
    /// Pods of these names are unknown to it at their next change.
    unknown: BTreeSet<String>,
    /// When the pod of a name was forgotten last.
    forgotten: BTreeMap<String, Instant>,
    sink: PodStatusSink,
    creation: Creation,
    deletion: Deletion,
}

/// See the module.
#[derive(Default)]
pub struct Provider(Mutex<State>);

impl Provider {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// From now on creations are answered so.
    pub fn on_creation(&self, creation: Creation) {
        self.state().creation = creation;
    }

    /// From now on deletions are answered so.
    pub fn on_deletion(&self, deletion: Deletion) {
        self.state().deletion = deletion;
    }

    /// How often `call` was made about a pod of this name.
    pub fn calls(&self, call: &str, name: &str) -> usize {
        self.state().calls.iter().filter(|(made, of)| *made == call && of == name).count()
    }

    /// When the pod of this name was forgotten.
    pub fn forgotten_at(&self, name: &str) -> Option<Instant> {
        self.state().forgotten.get(name).copied()
    }

    /// It says of the next change of the pod of this name that it knows no such pod. Whoever asks for its status is answered as
    /// before: one that is unknown then has failed, and is not given again.
    pub fn does_not_know_the_change_of(&self, name: &str) {
        self.state().unknown.insert(name.to_owned());
    }

    /// How many calls there were.
    pub fn number_of_calls(&self) -> usize {
        self.state().calls.len()
    }

    /// The pods that it has, by name.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.state().pods.keys().map(|id| id.name.clone()).collect();
        names.sort_unstable();
        names
    }

    /// The pod of this name as it was given last.
    pub fn pod(&self, name: &str) -> Option<Arc<Pod>> {
        self.state().pods.iter().find(|(id, _)| id.name == name).map(|(_, (pod, _))| pod.clone())
    }

    /// It has had this pod from an earlier life.
    pub fn has_had(&self, pod: Pod) {
        self.state().pods.insert(PodId::of(&pod), (Arc::new(pod), running("")));
    }

    /// The containers of the pods of this name end.
    pub fn end(&self, name: &str) {
        let state = &mut *self.state();
        for (id, (_, status)) in state.pods.iter_mut().filter(|(id, _)| id.name == name) {
            *status = ended(status);
            state.sink.notify(id.clone(), status.clone());
        }
    }

    /// Tells the pod of this name, changed by `change`, as one that it has changed itself.
    pub fn tell(&self, name: &str, change: impl FnOnce(&mut Pod)) {
        let state = self.state();
        if let Some((_, (pod, status))) = state.pods.iter().find(|(id, _)| id.name == name) {
            let mut pod = Pod::clone(pod);
            pod.status = Some(status.clone());
            change(&mut pod);
            state.sink.notify_pod(&pod);
        }
    }
}

fn running(name: &str) -> PodStatus {
    let started_at = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(whole_second()));
    let state = ContainerState { running: Some(ContainerStateRunning { started_at }), ..ContainerState::default() };
    let container = ContainerStatus {
        name: name.to_owned(),
        ready: true,
        started: Some(true),
        state: Some(state),
        image: "nothing".into(),
        ..ContainerStatus::default()
    };
    let condition = |type_: &str| PodCondition { type_: type_.into(), status: "True".into(), ..PodCondition::default() };
    PodStatus {
        phase: Some("Running".into()),
        conditions: Some(["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition).into()),
        container_statuses: (!name.is_empty()).then(|| vec![container]),
        host_ip: Some("198.18.0.200".into()),
        pod_ip: Some("198.18.0.200".into()),
        ..PodStatus::default()
    }
}

/// As the API has times.
fn whole_second() -> Timestamp {
    Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default()
}

fn ended(status: &PodStatus) -> PodStatus {
    let mut status = status.clone();
    status.phase = Some("Succeeded".into());
    for container in status.container_statuses.iter_mut().flatten() {
        let end = ContainerStateTerminated { exit_code: 0, reason: Some("Completed".into()), ..ContainerStateTerminated::default() };
        container.state = Some(ContainerState { terminated: Some(end), ..ContainerState::default() });
        (container.ready, container.started) = (false, Some(false));
    }
    for condition in status.conditions.iter_mut().flatten().filter(|condition| condition.type_.ends_with("Ready")) {
        condition.status = "False".into();
    }
    status
}

fn unknown(id: &PodId) -> ProviderError {
    ProviderError::not_found(id.to_string())
}

impl PodNotifier for Provider {
    fn notify_pods(&self, sink: PodStatusSink) {
        self.state().sink = sink;
    }
}

#[expect(clippy::panic, reason = "the scenario asks for a provider that panics")]
fn panic_as_told() -> ! {
    panic!("the provider of this scenario panics, as it was told to")
}

impl PodLifecycleHandler for Provider {
    async fn create_pod(&self, pod: Arc<Pod>) -> Result<(), ProviderError> {
        let (id, state) = (PodId::of(&pod), &mut *self.state());
        state.calls.push(("create", id.name.clone()));
        match state.creation {
            Creation::Runs => {
                let container = pod.spec.as_ref().and_then(|spec| spec.containers.first()).map(|container| container.name.clone());
                let status = running(&container.unwrap_or_default());
                state.sink.notify(id.clone(), status.clone());
                state.pods.insert(id, (pod, status));
                Ok(())
            }
            Creation::Fails => Err(ProviderError::Other(anyhow::anyhow!("no room at the moment"))),
            Creation::Refuses => Err(ProviderError::invalid_input("no such machine")),
            Creation::Panics => panic_as_told(),
        }
    }

    async fn update_pod(&self, pod: Arc<Pod>) -> Result<(), ProviderError> {
        let (id, state) = (PodId::of(&pod), &mut *self.state());
        state.calls.push(("update", id.name.clone()));
        if state.unknown.remove(&id.name) {
            return Err(unknown(&id));
        }
        state.pods.get_mut(&id).ok_or_else(|| unknown(&id))?.0 = pod;
        Ok(())
    }

    async fn delete_pod(&self, pod: Arc<Pod>, _: i64) -> Result<(), ProviderError> {
        let (id, state) = (PodId::of(&pod), &mut *self.state());
        state.calls.push(("delete", id.name.clone()));
        match state.deletion {
            Deletion::Ends => {
                let (_, status) = state.pods.get_mut(&id).ok_or_else(|| unknown(&id))?;
                *status = ended(status);
                state.sink.notify(id, status.clone());
                Ok(())
            }
            Deletion::NotFound => Err(unknown(&id)),
            Deletion::Fails => Err(ProviderError::Other(anyhow::anyhow!("something went wrong"))),
            Deletion::Waits => Ok(()),
        }
    }

    async fn forget_pod(&self, id: &PodId) {
        let state = &mut *self.state();
        state.calls.push(("forget", id.name.clone()));
        state.forgotten.insert(id.name.clone(), Instant::now());
        state.pods.remove(id);
    }

    async fn get_pod(&self, id: &PodId) -> Result<Option<Arc<Pod>>, ProviderError> {
        Ok(self.state().pods.get(id).map(|(pod, _)| pod.clone()))
    }

    async fn get_pod_status(&self, id: &PodId) -> Result<Option<PodStatus>, ProviderError> {
        Ok(self.state().pods.get(id).map(|(_, status)| status.clone()))
    }

    async fn get_pods(&self) -> Result<Vec<Arc<Pod>>, ProviderError> {
        Ok(self.state().pods.values().map(|(pod, _)| pod.clone()).collect())
    }
}
