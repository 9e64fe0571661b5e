use k8s_openapi::api::core::v1::{Container, PodReadinessGate, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::*;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn pod(policy: &str) -> Pod {
    let container = |name: &str| Container { name: name.into(), ..Container::default() };
    let spec = PodSpec {
        restart_policy: Some(policy.into()),
        init_containers: Some(vec![container("init")]),
        containers: vec![container("a"), container("b")],
        ..PodSpec::default()
    };
    Pod { metadata: ObjectMeta { generation: Some(4), ..ObjectMeta::default() }, spec: Some(spec), status: None }
}

fn end(exit_code: i32) -> Termination {
    let reason = if exit_code == 0 { "Completed" } else { "Error" };
    Termination { exit_code, reason: reason.into(), message: None, started_at: Some(NOW), finished_at: NOW, container_id: None }
}

fn record(name: &str, role: Role, state: State) -> ContainerRecord {
    let begun = !matches!(state, State::Waiting { .. });
    ContainerRecord {
        name: name.into(),
        image: "i:1".into(),
        shown: None,
        role,
        state,
        last: None,
        restart_count: 0,
        ready: false,
        started: false,
        id: begun.then(|| "process://x".to_owned()),
        forced: false,
    }
}

fn running(name: &str, ready: bool) -> ContainerRecord {
    ContainerRecord { ready, started: true, ..record(name, Role::Main, State::Running { since: NOW }) }
}

fn ended(name: &str, exit_code: i32) -> ContainerRecord {
    record(name, Role::Main, State::Terminated(end(exit_code)))
}

fn creating(name: &str, role: Role) -> ContainerRecord {
    record(name, role, State::waiting("ContainerCreating", None))
}

fn status(pod: &Pod, containers: &[ContainerRecord], ended: bool) -> PodStatus {
    pod_status(&PodView { pod, containers, address: "198.18.0.1", start_time: NOW, prepared: true, ended, past_deadline: false })
}

fn phase_of(policy: &str, containers: &[ContainerRecord], ended: bool) -> String {
    status(&pod(policy), containers, ended).phase.unwrap()
}

fn condition(status: &PodStatus, type_: &str) -> (String, String, String) {
    let all = status.conditions.as_ref().unwrap();
    let found = all.iter().find(|condition| condition.type_ == type_).unwrap();
    (found.status.clone(), found.reason.clone().unwrap_or_default(), found.message.clone().unwrap_or_default())
}

#[test]
fn a_pod_is_pending_until_every_container_has_started() {
    assert_eq!(phase_of("Always", &[running("a", true), creating("b", Role::Main)], false), "Pending");
    assert_eq!(phase_of("Always", &[running("a", true), running("b", false)], false), "Running");
}

#[test]
fn a_pod_stays_running_while_crashed_containers_await_restart() {
    assert_eq!(phase_of("Always", &[ended("a", 1), ended("b", 0)], false), "Running");
    assert_eq!(phase_of("OnFailure", &[ended("a", 1), ended("b", 0)], false), "Running");
    let waiting = ContainerRecord { last: Some(end(1)), ..record("a", Role::Main, State::waiting("CrashLoopBackOff", None)) };
    assert_eq!(phase_of("Always", &[waiting, running("b", true)], false), "Running");
}

#[test]
fn a_finished_pod_succeeds_only_if_every_container_did() {
    assert_eq!(phase_of("Never", &[ended("a", 0), ended("b", 0)], false), "Succeeded");
    assert_eq!(phase_of("Never", &[ended("a", 0), ended("b", 2)], false), "Failed");
    assert_eq!(phase_of("OnFailure", &[ended("a", 0), ended("b", 0)], false), "Succeeded");
}

#[test]
fn an_ended_pod_is_over_despite_its_restart_policy() {
    assert_eq!(phase_of("Always", &[ended("a", 0), ended("b", 0)], true), "Succeeded");
    assert_eq!(phase_of("Always", &[ended("a", 0), ended("b", 137)], true), "Failed");
    assert_eq!(phase_of("Always", &[creating("a", Role::Main), ended("b", 0)], true), "Failed");
}

#[test]
fn a_failed_init_container_fails_the_pod_unless_it_repeats() {
    let failed = record("init", Role::Init, State::Terminated(end(1)));
    let rest = [creating("a", Role::Main), creating("b", Role::Main)];
    let all = [vec![failed], rest.to_vec()].concat();
    assert_eq!(phase_of("Never", &all, false), "Failed");
    assert_eq!(phase_of("Always", &all, false), "Pending");
}

#[test]
fn unready_containers_are_named_in_both_ready_conditions() {
    let status = status(&pod("Always"), &[running("a", false), running("b", true)], false);
    let expected = ("False".into(), "ContainersNotReady".into(), "containers with unready status: [a]".into());
    assert_eq!(condition(&status, "Ready"), expected);
    assert_eq!(condition(&status, "ContainersReady"), expected);
}

#[test]
fn a_readiness_gate_holds_ready_back_but_not_containers_ready() {
    let mut pod = pod("Always");
    pod.spec.as_mut().unwrap().readiness_gates = Some(vec![PodReadinessGate { condition_type: "example.org/in".into() }]);
    let containers = [running("a", true), running("b", true)];
    let closed = status(&pod, &containers, false);
    assert_eq!(condition(&closed, "Ready").1, "ReadinessGatesNotReady");
    assert_eq!(condition(&closed, "ContainersReady").0, "True");
    let open = PodCondition { type_: "example.org/in".into(), status: "True".into(), ..PodCondition::default() };
    pod.status = Some(PodStatus { conditions: Some(vec![open]), ..PodStatus::default() });
    assert_eq!(condition(&status(&pod, &containers, false), "Ready").0, "True");
}

#[test]
fn a_pod_that_has_ended_says_so_in_its_conditions() {
    let failed = status(&pod("Never"), &[ended("a", 1), ended("b", 0)], true);
    assert_eq!(condition(&failed, "Ready").1, "PodFailed");
    assert_eq!(condition(&failed, "PodReadyToStartContainers").0, "False");
    let succeeded = status(&pod("Never"), &[ended("a", 0), ended("b", 0)], true);
    assert_eq!(condition(&succeeded, "ContainersReady").1, "PodCompleted");
    assert_eq!(condition(&succeeded, "Initialized").1, "PodCompleted");
}

#[test]
fn a_pod_is_initialized_when_its_init_containers_have_succeeded() {
    let waiting = [creating("init", Role::Init), creating("a", Role::Main), creating("b", Role::Main)];
    let status_before = status(&pod("Always"), &waiting, false);
    assert_eq!(condition(&status_before, "Initialized").2, "containers with incomplete status: [init]");
    let done = ContainerRecord { ready: true, ..record("init", Role::Init, State::Terminated(end(0))) };
    let after = [done, creating("a", Role::Main), creating("b", Role::Main)];
    assert_eq!(condition(&status(&pod("Always"), &after, false), "Initialized").0, "True");
}

#[test]
fn status_and_conditions_carry_the_generation_that_was_seen() {
    let status = status(&pod("Always"), &[running("a", true), running("b", true)], false);
    assert_eq!(status.observed_generation, Some(4));
    assert!(status.conditions.unwrap().iter().all(|condition| condition.observed_generation == Some(4)));
}

#[test]
fn times_are_whole_seconds_as_the_api_has_them() {
    let mut container = running("a", true);
    container.state = State::Running { since: Timestamp::from_millisecond(1_999).unwrap() };
    let status = status(&pod("Always"), &[container, running("b", true)], false);
    let state = status.container_statuses.unwrap()[0].state.clone().unwrap();
    assert_eq!(state.running.unwrap().started_at.unwrap().0, Timestamp::from_second(1).unwrap());
}

#[test]
fn restart_policies_decide_by_role_and_exit_code() {
    assert!(restarts(Role::Sidecar, "Never", None, 0));
    assert!(restarts(Role::Main, "Always", None, 0));
    assert!(!restarts(Role::Main, "OnFailure", None, 0));
    assert!(!restarts(Role::Main, "Always", Some("Never"), 1));
    assert!(restarts(Role::Init, "Always", None, 1));
    assert!(!restarts(Role::Init, "Always", None, 0));
    assert!(!restarts(Role::Init, "Never", None, 1));
}

#[test]
fn a_container_changing_image_keeps_its_never_restarted_pod_running() {
    let waiting = State::waiting("ContainerCreating", None);
    let mut changing = ContainerRecord { last: Some(end(143)), id: Some("process://x".into()), ..record("a", Role::Main, waiting) };
    let never = pod("Never");
    let phase = |record: &ContainerRecord| {
        let view = PodView {
            pod: &never,
            containers: std::slice::from_ref(record),
            address: "198.18.0.1",
            start_time: NOW,
            prepared: true,
            ended: false,
            past_deadline: false,
        };
        pod_status(&view).phase
    };
    assert_eq!(phase(&changing).as_deref(), Some("Failed"));
    changing.forced = true;
    assert_eq!(phase(&changing).as_deref(), Some("Running"));
}
