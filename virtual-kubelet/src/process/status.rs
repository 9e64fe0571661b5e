//! The status of a pod from the states of its containers; no I/O.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, HostIP, Pod, PodCondition,
    PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::images::Shown;

/// What part a container plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Runs to its end before the next one starts.
    Init,
    /// Starts in the order of init containers and stays.
    Sidecar,
    /// One of the pod's containers proper.
    Main,
}

/// How a run of a container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Termination {
    /// Exit code, 128 + signal when killed.
    pub exit_code: i32,
    /// `Completed`, `Error` or what else is known.
    pub reason: String,
    /// Details, if any.
    pub message: Option<String>,
    /// When the run started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Timestamp,
    /// Which run.
    pub container_id: Option<String>,
}

/// What a container does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Not running, and not over.
    Waiting {
        /// Such as `ContainerCreating` or `CrashLoopBackOff`.
        reason: String,
        /// Details, if any.
        message: Option<String>,
    },
    /// Its process lives.
    Running {
        /// Since then.
        since: Timestamp,
    },
    /// Its process has ended.
    Terminated(Termination),
}

impl State {
    /// A waiting state.
    pub fn waiting(reason: &str, message: Option<String>) -> Self {
        Self::Waiting { reason: reason.into(), message }
    }
}

/// One container as its pod's status shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRecord {
    /// Name of the container.
    pub name: String,
    /// Image of the present or next run, as the pod names it.
    pub image: String,
    /// What the runtime calls the image of the present run, where that is not what the pod does.
    pub shown: Option<Shown>,
    /// Part it plays.
    pub role: Role,
    /// What it does.
    pub state: State,
    /// How the run before ended.
    pub last: Option<Termination>,
    /// Runs begun beyond the first.
    pub restart_count: i32,
    /// Whether it is ready.
    pub ready: bool,
    /// Whether it has started, as startup probes see it.
    pub started: bool,
    /// Id of the present run.
    pub id: Option<String>,
    /// Runs again whatever the restart policy says: its definition changed.
    pub forced: bool,
}

/// All that a pod's status follows from.
pub struct PodView<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Init containers first, in the order of the spec.
    pub containers: &'a [ContainerRecord],
    /// The node's address.
    pub address: &'a str,
    /// When the node took the pod up.
    pub start_time: Timestamp,
    /// Whether volumes and the like are in place.
    pub prepared: bool,
    /// Whether nothing of the pod will run any more.
    pub ended: bool,
    /// Whether it was ended for having been active for too long.
    pub past_deadline: bool,
}

/// Whether a container of this role and outcome runs again.
pub fn restarts(role: Role, pod_policy: &str, own_policy: Option<&str>, exit_code: i32) -> bool {
    match (role, own_policy.unwrap_or(pod_policy)) {
        (Role::Main, "Never") => false,
        (Role::Main, "OnFailure") => exit_code != 0,
        (Role::Sidecar | Role::Main, _) => true,
        (Role::Init, policy) => exit_code != 0 && policy != "Never",
    }
}

/// The API has times of whole seconds; a finer one would never compare equal to what the server shows.
fn time(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

fn terminated(end: &Termination) -> ContainerStateTerminated {
    ContainerStateTerminated {
        exit_code: end.exit_code,
        reason: Some(end.reason.clone()),
        message: end.message.clone(),
        started_at: end.started_at.map(time),
        finished_at: Some(time(end.finished_at)),
        container_id: end.container_id.clone(),
        signal: None,
    }
}

fn container_status(record: &ContainerRecord) -> ContainerStatus {
    let mut state = ContainerState::default();
    match &record.state {
        State::Waiting { reason, message } => {
            state.waiting = Some(ContainerStateWaiting { reason: Some(reason.clone()), message: message.clone() });
        }
        State::Running { since } => state.running = Some(ContainerStateRunning { started_at: Some(time(*since)) }),
        State::Terminated(end) => state.terminated = Some(terminated(end)),
    }
    let last = record.last.as_ref().map(terminated);
    let (image, id) = match &record.shown {
        Some(shown) => (shown.image.clone(), shown.id.clone()),
        None => (record.image.clone(), format!("process-image://{}", record.image)),
    };
    ContainerStatus {
        name: record.name.clone(),
        image,
        image_id: record.id.as_ref().map(|_| id).unwrap_or_default(),
        container_id: record.id.clone(),
        ready: record.ready,
        started: Some(record.started),
        restart_count: record.restart_count,
        state: Some(state),
        last_state: Some(ContainerState { terminated: last, ..ContainerState::default() }),
        ..ContainerStatus::default()
    }
}

/// The pod's status.
pub fn pod_status(view: &PodView<'_>) -> PodStatus {
    let statuses = |init: bool| {
        let of_kind = view.containers.iter().filter(|record| (record.role != Role::Main) == init);
        let list: Vec<_> = of_kind.map(container_status).collect();
        (!list.is_empty()).then_some(list)
    };
    let phase = phase(view);
    let failure = (view.ended && view.past_deadline)
        .then(|| ("DeadlineExceeded".to_owned(), "Pod was active on the node longer than the specified deadline".to_owned()));
    let (reason, message) = failure.unzip();
    PodStatus {
        reason,
        message,
        conditions: Some(conditions(view, phase)),
        container_statuses: statuses(false),
        init_container_statuses: statuses(true),
        host_ip: Some(view.address.into()),
        host_ips: Some(vec![HostIP { ip: view.address.into() }]),
        pod_ip: Some(view.address.into()),
        pod_ips: Some(vec![PodIP { ip: view.address.into() }]),
        observed_generation: view.pod.metadata.generation,
        phase: Some(phase.into()),
        start_time: Some(time(view.start_time)),
        ..PodStatus::default()
    }
}

/// The status of a pod that was not admitted.
pub fn rejected(pod: &Pod, reason: &str, message: &str) -> PodStatus {
    PodStatus {
        phase: Some("Failed".into()),
        reason: Some(reason.into()),
        message: Some(format!("Pod was rejected: {message}")),
        observed_generation: pod.metadata.generation,
        ..PodStatus::default()
    }
}

/// The end of the run that counts: the present one, or the one before while the next one waits.
fn latest_end(record: &ContainerRecord) -> Option<&Termination> {
    match &record.state {
        State::Terminated(end) => Some(end),
        State::Waiting { .. } => record.last.as_ref(),
        State::Running { .. } => None,
    }
}

fn policies<'a>(pod: &'a Pod, name: &str) -> (&'a str, Option<&'a str>) {
    let spec = pod.spec.as_ref();
    let of_pod = spec.and_then(|spec| spec.restart_policy.as_deref()).unwrap_or("Always");
    let all = spec.map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    let own = all.and_then(|mut all| all.find(|container| container.name == name)).and_then(|c| c.restart_policy.as_deref());
    (of_pod, own)
}

/// Whether this container will not run again after its latest end.
pub fn is_over(pod: &Pod, record: &ContainerRecord) -> bool {
    !record.forced && is_over_by_policy(pod, record)
}

/// Whether the restart policy alone says so.
pub fn is_over_by_policy(pod: &Pod, record: &ContainerRecord) -> bool {
    let (of_pod, own) = policies(pod, &record.name);
    latest_end(record).is_some_and(|end| !restarts(record.role, of_pod, own, end.exit_code))
}

fn phase(view: &PodView<'_>) -> &'static str {
    let of = |role: Role| view.containers.iter().filter(move |record| record.role == role);
    let initialized = of(Role::Main).any(|record| record.id.is_some());
    let failed_init = of(Role::Init).any(|record| latest_end(record).is_some_and(|end| end.exit_code != 0) && is_over(view.pod, record));
    if failed_init || (view.ended && view.past_deadline) {
        return "Failed";
    }
    let all_succeeded = of(Role::Main).all(|record| latest_end(record).is_some_and(|end| end.exit_code == 0));
    let all_stopped = of(Role::Main).all(|record| latest_end(record).is_some());
    if view.ended {
        return if all_stopped && all_succeeded { "Succeeded" } else { "Failed" };
    }
    let init_pending = of(Role::Init).any(|record| latest_end(record).is_none());
    let sidecar_pending = of(Role::Sidecar).any(|record| !record.started && latest_end(record).is_none());
    let waiting = of(Role::Main).any(|record| matches!(record.state, State::Waiting { .. }) && record.last.is_none());
    if init_pending || (sidecar_pending && !initialized) || waiting {
        return "Pending";
    }
    let sidecar_runs = of(Role::Sidecar).any(|record| matches!(record.state, State::Running { .. }));
    if !all_stopped || sidecar_runs {
        return "Running";
    }
    match of(Role::Main).all(|record| is_over(view.pod, record)) {
        true if all_succeeded => "Succeeded",
        true => "Failed",
        false => "Running",
    }
}

fn list(names: &[&str]) -> String {
    format!("[{}]", names.join(" "))
}

fn conditions(view: &PodView<'_>, phase: &str) -> Vec<PodCondition> {
    let condition = |type_: &str, outcome: Result<Option<&str>, (&str, String)>| {
        let (status, reason, message) = match outcome {
            Ok(reason) => ("True", reason.map(str::to_owned), None),
            Err((reason, message)) => ("False", Some(reason.to_owned()), Some(message)),
        };
        PodCondition {
            type_: type_.into(),
            status: status.into(),
            reason: reason.filter(|reason| !reason.is_empty()),
            message: message.filter(|message| !message.is_empty()),
            observed_generation: view.pod.metadata.generation,
            ..PodCondition::default()
        }
    };
    let containers_ready = containers_ready(view, phase);
    let ready = containers_ready.clone().and_then(|()| gates_open(view.pod));
    let sandbox = if view.prepared && !view.ended { Ok(None) } else { Err(("", String::new())) };
    vec![
        condition("PodReadyToStartContainers", sandbox),
        condition("Initialized", initialized(view, phase)),
        condition("Ready", ready.map(|()| None)),
        condition("ContainersReady", containers_ready.map(|()| None)),
        condition("PodScheduled", Ok(None)),
    ]
}

fn initialized(view: &PodView<'_>, phase: &str) -> Result<Option<&'static str>, (&'static str, String)> {
    if phase == "Succeeded" {
        return Ok(Some("PodCompleted"));
    }
    let begun = view.containers.iter().any(|record| record.role == Role::Main && record.id.is_some());
    let incomplete: Vec<&str> = view
        .containers
        .iter()
        .filter(|record| match record.role {
            Role::Main => false,
            Role::Sidecar => !record.started,
            Role::Init => !record.ready,
        })
        .map(|record| record.name.as_str())
        .collect();
    if begun || incomplete.is_empty() {
        return Ok(None);
    }
    Err(("ContainersNotInitialized", format!("containers with incomplete status: {}", list(&incomplete))))
}

fn containers_ready(view: &PodView<'_>, phase: &str) -> Result<(), (&'static str, String)> {
    match phase {
        "Succeeded" => return Err(("PodCompleted", String::new())),
        "Failed" => return Err(("PodFailed", String::new())),
        _ => {}
    }
    let unready: Vec<&str> =
        view.containers.iter().filter(|record| record.role != Role::Init && !record.ready).map(|record| record.name.as_str()).collect();
    if unready.is_empty() {
        return Ok(());
    }
    Err(("ContainersNotReady", format!("containers with unready status: {}", list(&unready))))
}

fn gates_open(pod: &Pod) -> Result<(), (&'static str, String)> {
    let gates = pod.spec.as_ref().and_then(|spec| spec.readiness_gates.as_deref()).unwrap_or_default();
    let present = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let closed: Vec<String> = gates
        .iter()
        .filter_map(|gate| {
            let kind = &gate.condition_type;
            match present.iter().find(|condition| condition.type_ == *kind) {
                None => Some(format!("corresponding condition of pod readiness gate \"{kind}\" does not exist.")),
                Some(condition) if condition.status == "True" => None,
                Some(condition) => Some(format!("the status of pod readiness gate \"{kind}\" is not \"True\", but {}", condition.status)),
            }
        })
        .collect();
    if closed.is_empty() { Ok(()) } else { Err(("ReadinessGatesNotReady", closed.join(", "))) }
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
