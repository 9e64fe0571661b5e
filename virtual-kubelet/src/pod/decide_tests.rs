use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::*;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn pod() -> Pod {
    Pod {
        metadata: ObjectMeta { name: Some("p".into()), uid: Some("u".into()), ..ObjectMeta::default() },
        spec: Some(PodSpec { termination_grace_period_seconds: Some(20), ..PodSpec::default() }),
        status: None,
    }
}

fn status(phase: &str) -> PodStatus {
    PodStatus { phase: Some(phase.into()), ..PodStatus::default() }
}

fn condition(type_: &str, status: &str) -> PodCondition {
    PodCondition { type_: type_.into(), status: status.into(), ..PodCondition::default() }
}

fn deleting(grace: i64) -> Pod {
    let mut pod = pod();
    pod.metadata.deletion_timestamp = Some(Time(NOW));
    pod.metadata.deletion_grace_period_seconds = Some(grace);
    pod
}

fn running(server: Pod, wanted: PodStatus) -> PodRecord {
    PodRecord { server: Some(Arc::new(server)), given: Some(Arc::new(pod())), status: Some(wanted), ..PodRecord::default() }
}

#[test]
fn a_new_pod_is_created_and_an_unchanged_one_left_alone() {
    let new = PodRecord { server: Some(Arc::new(pod())), ..PodRecord::default() };
    assert!(matches!(new.next(NOW), Some(Operation::Create(_))));
    let mut server = pod();
    server.status = Some(status("Running"));
    assert!(running(server, status("Running")).next(NOW).is_none());
}

#[test]
fn a_deleted_pod_leaves_the_api_as_soon_as_it_ended_and_its_last_status_is_written() {
    let mut record = running(deleting(20), status("Running"));
    assert!(matches!(record.next(NOW), Some(Operation::Delete(_, 20))));
    record.delete_sent = Some(20);
    record.status = Some(status("Succeeded"));
    assert!(matches!(record.next(NOW), Some(Operation::Patch(_))));
    let mut server = deleting(20);
    server.status = Some(status("Succeeded"));
    record.server = Some(Arc::new(server));
    assert!(matches!(record.next(NOW), Some(Operation::Remove)));
}

#[test]
fn a_shortened_grace_is_passed_on_and_a_longer_one_is_not() {
    let mut record = running(deleting(5), status("Running"));
    record.delete_sent = Some(20);
    assert!(matches!(record.next(NOW), Some(Operation::Delete(_, 5))));
    record.delete_sent = Some(3);
    assert!(!matches!(record.next(NOW), Some(Operation::Delete(..))));
}

#[test]
fn a_pod_that_vanished_from_the_api_is_ended_and_then_forgotten() {
    let mut record = PodRecord { given: Some(Arc::new(pod())), ..PodRecord::default() };
    assert!(matches!(record.next(NOW), Some(Operation::Delete(_, 20))));
    record.delete_sent = Some(20);
    assert!(record.next(NOW).is_none());
    record.status = Some(status("Failed"));
    assert!(matches!(record.next(NOW), Some(Operation::Forget)));
}

#[test]
fn the_status_of_a_pod_that_ended_is_never_overwritten() {
    let mut server = pod();
    server.status = Some(status("Failed"));
    let mut record = running(server, status("Running"));
    record.delete_sent = Some(20);
    assert!(record.next(NOW).is_none());
}

#[test]
fn a_pod_that_others_declared_failed_is_ended() {
    let mut server = pod();
    server.status = Some(status("Failed"));
    assert!(matches!(running(server, status("Running")).next(NOW), Some(Operation::Delete(_, 20))));
}

#[test]
fn a_ready_condition_changed_by_others_is_repaired_and_their_own_conditions_survive() {
    let mut server = pod();
    server.status =
        Some(PodStatus { conditions: Some(vec![condition("Ready", "False"), condition("example.org/gate", "True")]), ..status("Running") });
    let wanted = PodStatus { conditions: Some(vec![condition("Ready", "True")]), ..status("Running") };
    let Some(Operation::Patch(patch)) = running(server, wanted).next(NOW) else { panic!("no patch") };
    let conditions = patch["status"]["conditions"].as_array().unwrap();
    assert_eq!(conditions.len(), 1);
    assert_eq!(conditions[0]["lastTransitionTime"], "1970-01-01T00:00:00Z");
    assert_eq!(patch["metadata"]["uid"], "u");
}

#[test]
fn a_transition_time_stays_while_the_status_of_the_condition_does() {
    let mut server = pod();
    let then = Time(Timestamp::from_second(5).unwrap());
    let before = PodCondition { last_transition_time: Some(then), ..condition("Ready", "True") };
    server.status = Some(PodStatus { conditions: Some(vec![before]), ..status("Pending") });
    let wanted = PodStatus { conditions: Some(vec![condition("Ready", "True")]), ..status("Running") };
    let Some(Operation::Patch(patch)) = running(server, wanted).next(NOW) else { panic!("no patch") };
    assert_eq!(patch["status"]["conditions"][0]["lastTransitionTime"], "1970-01-01T00:00:05Z");
}

#[test]
fn a_terminating_pod_unknown_to_the_provider_is_removed() {
    let record = PodRecord { server: Some(Arc::new(deleting(20))), ..PodRecord::default() };
    assert!(matches!(record.next(NOW), Some(Operation::Remove)));
}
