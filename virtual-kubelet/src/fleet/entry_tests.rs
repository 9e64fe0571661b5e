use k8s_openapi::api::core::v1::ContainerStatus;

use super::*;
use crate::fleet::slim::SlimGate;
use crate::simulated::{Stages, Templates, pod_seed};

const NOW: i64 = 1_000;
const UID: &str = "0a1b";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(NOW + second).unwrap()
}

fn site() -> Site<'static> {
    Site { uid: UID, host_ip: "198.19.0.1" }
}

fn pod(version: u64) -> SlimPod {
    let pod = json!({
        "metadata": { "name": "a", "namespace": "web", "uid": UID, "resourceVersion": version.to_string(), "generation": 1 },
        "spec": { "nodeName": "sim-0", "containers": [{ "name": "main", "image": "i:1" }] },
        "status": { "phase": "Pending", "conditions": [
            { "type": "PodScheduled", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z" },
            { "type": "theirs", "status": "True" },
        ] },
    });
    serde_json::from_value(pod).unwrap()
}

struct World {
    stages: Stages,
    templates: Templates,
    entry: Entry,
}

impl World {
    fn new(stages: &str, pod: &SlimPod) -> Self {
        let (stages, mut templates) = (Stages::from_yaml(stages).unwrap(), Templates::default());
        let behaviour = Behaviour {
            seed: pod_seed(0, "web", "a", 0),
            plan: stages.plan("web", None, None),
            template: templates.intern(template_of(pod)),
        };
        let mut entry = Entry::new(pod, "web".into(), 0, behaviour, at(0));
        entry.pod_ip = Some(Ipv4Addr::new(10, 64, 0, 1));
        Self { stages, templates, entry }
    }

    fn see(&mut self, pod: &SlimPod, second: i64) -> bool {
        let plan = self.stages.plan("web", None, pod.metadata.annotations.as_ref());
        self.entry.see(pod, site(), plan, self.templates.intern(template_of(pod)), at(second))
    }

    fn write(&mut self, second: i64) -> Option<Write> {
        if let Some(machine) = &mut self.entry.machine {
            machine.advance(at(second));
        }
        self.entry.write(site(), at(second))
    }

    /// The patch that is due, which the server takes in `version`; and the pod as it then shows it.
    fn patched(&mut self, pod: &SlimPod, second: i64, version: u64) -> SlimPod {
        let Some(Write::Patch(body, sign)) = self.write(second) else { panic!("no patch is due") };
        self.entry.patched(&body, sign, version);
        let mut pod = pod.clone();
        let mut shown = body["status"].clone();
        for list in ["hostIPs", "podIPs"] {
            shown[list].as_array_mut().into_iter().for_each(|list| list.retain(|address| address.get("$patch").is_none()));
        }
        pod.status = serde_json::from_value(shown).unwrap();
        pod.metadata.resource_version = Some(version.to_string());
        pod
    }
}

fn deleted(pod: &SlimPod, version: u64, grace: i64) -> SlimPod {
    let mut pod = pod.clone();
    pod.metadata.deletion_timestamp = Some(Time(at(0)));
    pod.metadata.deletion_grace_period_seconds = Some(grace);
    pod.metadata.resource_version = Some(version.to_string());
    pod
}

#[test]
fn a_pod_without_delays_becomes_ready_with_one_patch() {
    let mut world = World::new("", &pod(1));
    assert!(world.see(&pod(1), 0));
    let shown = world.patched(&pod(1), 0, 2);
    assert_eq!((shown.status.phase.as_deref(), world.write(0)), (Some("Running"), None));
    assert!(!world.see(&shown, 0));
    assert_eq!(world.write(100), None);
}

#[test]
fn a_patch_carries_the_uid_without_foreign_conditions() {
    let mut world = World::new("", &pod(1));
    world.see(&pod(1), 0);
    let Some(Write::Patch(body, _)) = world.write(5) else { panic!("no patch") };
    assert_eq!(body["metadata"], json!({ "uid": UID }));
    let conditions = body["status"]["conditions"].as_array().unwrap();
    let since =
        |type_: &str| conditions.iter().find(|condition| condition["type"] == type_).map(|found| found["lastTransitionTime"].clone());
    assert_eq!(since("theirs"), None);
    assert_eq!(since("PodScheduled"), Some(json!("2020-01-01T00:00:00Z")));
    assert_eq!(since("Ready"), Some(json!(at(5).to_string())));
}

#[test]
fn a_changed_ready_condition_is_repaired_and_older_events_ignored() {
    let mut world = World::new("", &pod(1));
    world.see(&pod(1), 0);
    let mut shown = world.patched(&pod(1), 0, 5);
    assert!(!world.see(&pod(3), 1), "it is older than what was written");
    assert_eq!(world.write(1), None);
    shown.status.conditions.as_mut().unwrap().iter_mut().find(|condition| condition.type_ == "Ready").unwrap().status = "False".into();
    shown.metadata.resource_version = Some("6".into());
    assert!(world.see(&shown, 60));
    let repaired = world.patched(&shown, 60, 7);
    assert!(repaired.status.conditions.unwrap().iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"));
}

#[test]
fn a_foreign_change_during_our_write_is_written_over() {
    let mut world = World::new("", &pod(1));
    world.see(&pod(1), 0);
    let Some(Write::Patch(body, sign)) = world.write(0) else { panic!("no patch") };
    world.entry.is_busy = true;
    world.see(&pod(9), 0);
    world.entry.patched(&body, sign, 8);
    assert!(matches!(world.write(0), Some(Write::Patch(..))));
    // An event that is the echo of the write, and came before its answer, is none.
    let Some(Write::Patch(body, sign)) = world.write(0) else { panic!("no patch") };
    world.entry.is_busy = true;
    world.see(&pod(10), 0);
    world.entry.patched(&body, sign, 10);
    assert_eq!(world.write(0), None);
}

#[test]
fn states_that_nobody_wrote_are_replaced_by_the_latest() {
    let mut world = World::new("pods:\n- {pull: 1s, ready: 1s}\n", &pod(1));
    world.see(&pod(1), 0);
    let written = world.patched(&pod(1), 10, 2);
    assert!(written.status.container_statuses.unwrap()[0].ready);
    assert_eq!(world.write(20), None);
}

#[test]
fn a_deleted_pod_leaves_once_its_containers_have_ended() {
    let mut world = World::new("pods:\n- {stop: 3s}\n", &pod(1));
    world.see(&pod(1), 0);
    let shown = world.patched(&pod(1), 0, 2);
    world.see(&deleted(&shown, 3, 30), 10);
    assert_eq!(world.write(12), None);
    let Some(Write::Delete(options)) = world.write(13) else { panic!("it does not leave") };
    assert_eq!((&options["gracePeriodSeconds"], &options["preconditions"]["uid"]), (&json!(0), &json!(UID)));
    world.entry.is_removed = true;
    assert_eq!(world.write(14), None);
}

#[test]
fn a_deleted_pod_with_a_finalizer_shows_its_last_status() {
    let mut world = World::new("", &pod(1));
    world.see(&pod(1), 0);
    let shown = world.patched(&pod(1), 0, 2);
    let mut kept = deleted(&shown, 3, 30);
    kept.metadata.finalizers = Some(vec!["batch.kubernetes.io/job-tracking".into()]);
    world.see(&kept, 1);
    let last = world.patched(&kept, 1, 4);
    assert_eq!(last.status.phase.as_deref(), Some("Succeeded"));
    assert!(matches!(world.write(1), Some(Write::Delete(_))));
}

#[test]
fn a_pod_deleted_before_it_ran_leaves_at_once() {
    let mut world = World::new("pods:\n- {stop: 30s}\n", &deleted(&pod(1), 1, 30));
    assert!(world.see(&deleted(&pod(1), 1, 30), 0));
    assert!(matches!(world.write(0), Some(Write::Delete(_))));
}

#[test]
fn the_status_of_a_pod_that_ended_is_never_overwritten() {
    let ended = |mut pod: SlimPod, version: u64| {
        (pod.status.phase, pod.metadata.resource_version) = (Some("Failed".into()), Some(version.to_string()));
        pod
    };
    let mut world = World::new("", &ended(pod(1), 1));
    assert!(!world.see(&ended(pod(1), 1), 0));
    assert_eq!(world.write(0), None);
    let mut world = World::new("", &pod(1));
    world.see(&pod(1), 0);
    let shown = world.patched(&pod(1), 0, 2);
    world.see(&ended(shown.clone(), 3), 1);
    assert_eq!(world.write(1), None);
    world.see(&deleted(&ended(shown, 4), 4, 30), 2);
    assert!(matches!(world.write(2), Some(Write::Delete(_))));
}

#[test]
fn after_a_restart_of_the_program_nothing_is_written_anew() {
    let mut first = World::new("", &pod(1));
    first.see(&pod(1), 0);
    let shown = first.patched(&pod(1), 0, 2);
    let mut second = World::new("", &shown);
    assert!(!second.see(&shown, 500));
    assert_eq!(second.write(500), None);
    let restarts = |pod: &SlimPod| {
        pod.status.container_statuses.clone().unwrap_or_default().iter().map(|c: &ContainerStatus| c.restart_count).sum::<i32>()
    };
    assert_eq!(restarts(&shown), 0);
}

#[test]
fn a_failed_write_is_repeated_with_the_current_status() {
    let mut world = World::new("pods:\n- {ready: 5s}\n", &pod(1));
    world.see(&pod(1), 0);
    assert!(matches!(world.write(0), Some(Write::Patch(..))));
    world.entry.failed(false);
    assert_eq!(world.entry.failures, 1);
    let written = world.patched(&pod(1), 6, 2);
    assert!(written.status.container_statuses.unwrap()[0].ready);
    assert_eq!(world.entry.failures, 0);
}

#[test]
fn a_gate_opened_during_our_write_is_noticed() {
    let mut pod = pod(1);
    pod.spec.readiness_gates = vec![SlimGate { condition_type: "example.com/open".into() }];
    let mut world = World::new("", &pod);
    assert!(world.see(&pod, 0));
    // Somebody opens the gate in version 2; the answer to our patch, version 3, comes before the events of both.
    let mut shown = world.patched(&pod, 0, 3);
    let open = PodCondition { type_: "example.com/open".into(), status: "True".into(), ..PodCondition::default() };
    shown.status.conditions.get_or_insert_default().push(open);
    assert!(world.see(&shown, 0));
    let Some(Write::Patch(body, _)) = world.write(0) else { panic!("no patch is due") };
    let ready = body["status"]["conditions"].as_array().unwrap().iter().find(|condition| condition["type"] == "Ready").unwrap();
    assert_eq!(ready["status"], "True");
}

#[test]
fn an_ended_pod_leaves_despite_a_refused_last_status() {
    let mut pod = pod(1);
    pod.metadata.finalizers = Some(vec!["example.com/reads-it".into()]);
    let mut world = World::new("", &pod);
    world.see(&pod, 0);
    let shown = world.patched(&pod, 0, 2);
    world.see(&shown, 0);
    world.see(&deleted(&shown, 3, 0), 1);
    let Some(Write::Patch(body, sign)) = world.write(40) else { panic!("no last status") };
    for list in ["hostIPs", "podIPs"] {
        assert_eq!(body["status"][list].as_array().unwrap().last(), Some(&json!({ "$patch": "replace" })), "{list}");
    }
    world.entry.writing = Some(sign);
    world.entry.failed(true);
    assert!(matches!(world.write(41), Some(Write::Delete(_))));
}
