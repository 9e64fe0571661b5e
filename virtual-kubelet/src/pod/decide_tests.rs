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
fn new_pods_are_created_and_unchanged_pods_left_alone() {
    let new = PodRecord { server: Some(Arc::new(pod())), ..PodRecord::default() };
    assert!(matches!(new.next(NOW), Some(Operation::Create(_))));
    let mut server = pod();
    server.status = Some(status("Running"));
    assert!(running(server, status("Running")).next(NOW).is_none());
}

#[test]
fn a_deleted_pod_leaves_after_its_last_status_is_written() {
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
fn a_deleted_pod_stays_in_the_api_until_its_end() {
    let mut server = deleting(20);
    server.status = Some(status("Running"));
    let mut record = running(server, status("Running"));
    record.delete_sent = Some(20);
    assert!(record.next(NOW).is_none());
}

#[test]
fn a_changed_grace_is_passed_on_only_if_shorter() {
    let mut record = running(deleting(5), status("Running"));
    record.delete_sent = Some(20);
    assert!(matches!(record.next(NOW), Some(Operation::Delete(_, 5))));
    record.delete_sent = Some(3);
    assert!(!matches!(record.next(NOW), Some(Operation::Delete(..))));
}

#[test]
fn a_vanished_pod_is_ended_before_it_is_forgotten() {
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
fn own_ready_condition_is_repaired_and_foreign_conditions_survive() {
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
fn an_unchanged_condition_status_keeps_its_transition_time() {
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

#[test]
fn a_refused_pod_is_given_again_only_after_changing() {
    let mut record = PodRecord { server: Some(Arc::new(pod())), refused: Some(Arc::new(pod())), ..PodRecord::default() };
    assert!(record.next(NOW).is_none());
    let mut changed = pod();
    changed.metadata.labels = Some([("a".to_owned(), "1".to_owned())].into());
    record.server = Some(Arc::new(changed));
    assert!(matches!(record.next(NOW), Some(Operation::Create(_))));
    record.server = Some(Arc::new(deleting(20)));
    assert!(matches!(record.next(NOW), Some(Operation::Remove)));
}

#[test]
fn a_pod_not_given_is_pending_unless_never_restarted() {
    let mut pod = pod();
    let status = not_given_status(&pod, "why");
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Pending"), Some("ProviderFailed")));
    assert_eq!(status.message.as_deref(), Some("why"));
    pod.spec.as_mut().unwrap().restart_policy = Some("Never".into());
    assert_eq!(not_given_status(&pod, "why").phase.as_deref(), Some("Failed"));
}

#[test]
fn a_pod_ended_by_the_provider_is_evicted_once() {
    let mut server = pod();
    server.status = Some(status("Running"));
    let mut record = running(server, status("Running"));
    record.evicted = Some(7);
    assert!(matches!(record.next(NOW), Some(Operation::Evict(7))));
    let mut server = deleting(7);
    server.status = Some(status("Running"));
    record.server = Some(Arc::new(server));
    assert!(matches!(record.next(NOW), Some(Operation::Delete(_, 7))));
}

#[test]
fn provider_annotations_are_written_and_foreign_annotations_stay() {
    let mut server = pod();
    server.status = Some(status("Running"));
    server.metadata.annotations = Some([("theirs".to_owned(), "1".to_owned()), ("same".to_owned(), "1".to_owned())].into());
    let mut record = PodRecord { given: Some(Arc::new(server.clone())), ..running(server.clone(), status("Running")) };
    record.annotations = Some([("ours".to_owned(), "1".to_owned()), ("same".to_owned(), "1".to_owned())].into());
    let Some(Operation::Patch(patch)) = record.next(NOW) else { panic!("no patch") };
    assert_eq!(patch["metadata"]["annotations"], json!({ "ours": "1" }));
    server.metadata.annotations.as_mut().unwrap().insert("ours".into(), "1".into());
    record.server = Some(Arc::new(server.clone()));
    record.given = Some(Arc::new(server));
    assert!(record.next(NOW).is_none());
}

#[test]
fn without_a_status_of_the_provider_nothing_is_written() {
    let record = PodRecord { server: Some(Arc::new(pod())), given: Some(Arc::new(pod())), ..PodRecord::default() };
    assert!(record.next(NOW).is_none());
}

/// The fields that make a provider be asked to update, and some that do not.
#[test]
fn only_spec_label_and_annotation_changes_update_the_provider() {
    use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Toleration};
    type Change = fn(&mut Pod);
    let changes: [(&str, Change); 7] = [
        ("image", |pod| pod.spec.as_mut().unwrap().containers = vec![Container { image: Some("b".into()), ..Container::default() }]),
        ("initContainers", |pod| pod.spec.as_mut().unwrap().init_containers = Some(vec![Container::default()])),
        ("ephemeralContainers", |pod| pod.spec.as_mut().unwrap().ephemeral_containers = Some(vec![EphemeralContainer::default()])),
        ("activeDeadlineSeconds", |pod| pod.spec.as_mut().unwrap().active_deadline_seconds = Some(5)),
        ("tolerations", |pod| pod.spec.as_mut().unwrap().tolerations = Some(vec![Toleration::default()])),
        ("labels", |pod| pod.metadata.labels = Some([("a".to_owned(), "1".to_owned())].into())),
        ("annotations", |pod| pod.metadata.annotations = Some([("a".to_owned(), "1".to_owned())].into())),
    ];
    for (name, change) in changes {
        let mut server = pod();
        change(&mut server);
        let record = PodRecord { server: Some(Arc::new(server)), given: Some(Arc::new(pod())), ..PodRecord::default() };
        assert!(matches!(record.next(NOW), Some(Operation::Update(_))), "{name}");
    }
    let mut server = pod();
    server.status = Some(status("Running"));
    server.metadata.resource_version = Some("2".into());
    let record = PodRecord { server: Some(Arc::new(server)), given: Some(Arc::new(pod())), ..PodRecord::default() };
    assert!(record.next(NOW).is_none());
}

#[test]
fn a_missing_deletion_grace_comes_from_spec_or_default() {
    let mut server = deleting(0);
    server.metadata.deletion_grace_period_seconds = None;
    assert!(matches!(running(server.clone(), status("Running")).next(NOW), Some(Operation::Delete(_, 20))));
    server.spec = None;
    assert!(matches!(running(server, status("Running")).next(NOW), Some(Operation::Delete(_, 30))));
}

#[test]
fn reported_annotations_survive_a_later_report_without_annotations() {
    let mut record = PodRecord::default();
    let annotations: BTreeMap<String, String> = [("a".to_owned(), "1".to_owned())].into();
    record.take(PodReport { status: status("Running"), annotations: Some(annotations.clone()), evicted: Some(3) });
    record.take(PodReport { status: status("Failed"), ..PodReport::default() });
    assert_eq!((record.annotations, record.evicted), (Some(annotations), Some(3)));
    assert_eq!(record.status.unwrap().phase.as_deref(), Some("Failed"));
}

#[test]
fn a_status_normalised_by_the_server_is_not_written_again() {
    let fine = Timestamp::from_nanosecond(1_700_000_000_123_456_789).unwrap();
    let mut told = status("Running");
    told.start_time = Some(Time(fine));
    told.pod_ip = Some(String::new());
    told.conditions = Some(vec![condition("Ready", "False"), condition("Ready", "True")]);
    let mut record = running(pod(), status("Pending"));
    record.take(PodReport { status: told.clone(), ..PodReport::default() });
    assert!(matches!(record.next(NOW), Some(Operation::Patch(_))));
    // What a server makes of it: whole seconds, one condition of a type, no empty texts.
    let mut server = pod();
    told.start_time = Some(Time(Timestamp::from_second(1_700_000_000).unwrap()));
    (told.pod_ip, told.conditions) = (None, Some(vec![condition("Ready", "True")]));
    server.status = Some(told);
    record.server = Some(Arc::new(server));
    assert!(record.next(NOW).is_none());
}

#[test]
fn a_status_not_shown_is_written_once_per_pod_version() {
    let mut told = status("Running");
    told.observed_generation = Some(1);
    let mut record = running(pod(), told.clone());
    assert!(matches!(record.next(NOW), Some(Operation::Patch(_))));
    record.write();
    let answered = |version: &str| {
        let mut pod = pod();
        pod.metadata.resource_version = Some(version.into());
        pod.status = Some(status("Running"));
        pod
    };
    record.written(&answered("2"), NOW);
    record.server = Some(Arc::new(answered("2")));
    assert!(record.next(NOW).is_none());
    // Somebody changed something: it may be shown now.
    record.server = Some(Arc::new(answered("3")));
    assert!(matches!(record.next(NOW), Some(Operation::Patch(_))));
}

#[test]
fn an_annotation_reported_during_a_status_write_is_written_next() {
    let mut record = running(pod(), status("Running"));
    assert!(matches!(record.next(NOW), Some(Operation::Patch(_))));
    record.write();
    let told = Some([("provider".to_owned(), "1".to_owned())].into());
    record.take(PodReport { status: status("Running"), annotations: told, evicted: None });
    let mut answer = pod();
    answer.metadata.resource_version = Some("2".into());
    answer.status = Some(status("Running"));
    record.written(&answer, NOW);
    record.server = Some(Arc::new(answer));
    let Some(Operation::Patch(patch)) = record.next(NOW) else { panic!("the annotation is lost") };
    assert_eq!(patch["metadata"]["annotations"]["provider"], "1");
}

#[test]
fn an_unwritable_status_does_not_keep_an_ended_pod() {
    let mut record = running(deleting(20), status("Succeeded"));
    record.delete_sent = Some(20);
    assert!(matches!(record.next(NOW), Some(Operation::Patch(_))));
    record.unwritable = record.status.clone();
    assert!(matches!(record.next(NOW), Some(Operation::Remove)));
    // As long as it stays, another try may be lucky.
    let mut record = running(pod(), status("Running"));
    record.unwritable = record.status.clone();
    assert!(matches!(record.next(NOW), Some(Operation::Patch(_))));
}

#[test]
fn a_failed_creation_is_ended_in_the_provider_before_removal() {
    for server in [Some(Arc::new(deleting(20))), None] {
        let mut record = PodRecord { server, attempted: Some(Arc::new(pod())), ..PodRecord::default() };
        assert!(matches!(record.next(NOW), Some(Operation::Delete(_, 20))));
        record.delete_sent = Some(20);
        assert!(matches!(record.next(NOW), Some(Operation::Remove | Operation::Forget)));
        (record.delete_sent, record.lost) = (None, true);
        assert!(matches!(record.next(NOW), Some(Operation::Remove | Operation::Forget)));
    }
}

#[test]
fn addresses_are_replaced_and_not_merged_with_earlier_ones() {
    let ips = |ip: &str| Some(vec![k8s_openapi::api::core::v1::PodIP { ip: ip.into() }]);
    let mut server = pod();
    server.status = Some(PodStatus { pod_ips: ips("10.0.0.1"), ..status("Running") });
    let Some(Operation::Patch(patch)) = running(server, PodStatus { pod_ips: ips("10.0.0.2"), ..status("Running") }).next(NOW) else {
        panic!("no patch");
    };
    assert_eq!(patch["status"]["podIPs"], json!([{ "ip": "10.0.0.2" }, { "$patch": "replace" }]));
}

#[test]
fn a_resolved_environment_is_no_change_and_another_image_is() {
    let with = |image: &str, env: &str| -> Pod {
        let container = json!({ "name": "c", "image": image, "env": [{ "name": "A", "value": env }] });
        serde_json::from_value(json!({ "spec": { "containers": [container], "initContainers": [container] } })).unwrap()
    };
    assert!(differ_in_environment_alone(&with("i", "$(B)"), &with("i", "b")));
    assert!(!differ_in_environment_alone(&with("i", "b"), &with("j", "b")));
}

#[test]
fn a_status_is_no_news_and_a_deletion_is() {
    let mut changed = pod();
    changed.status = Some(status("Pending"));
    assert!(!is_news(&pod(), &changed) && is_news(&pod(), &deleting(5)) && is_news(&deleting(5), &deleting(1)));
}

#[test]
fn a_failed_or_evicted_pod_counts_as_ended() {
    assert!(!running(pod(), status("Running")).has_ended());
    assert!(running(pod(), status("Failed")).has_ended());
    assert!(PodRecord { evicted: Some(5), ..running(pod(), status("Running")) }.has_ended());
}

#[test]
fn an_annotation_reported_back_unchanged_stays_foreign() {
    let with = |value: &str| {
        let mut pod = pod();
        pod.status = Some(status("Running"));
        pod.metadata.annotations = Some([("theirs".to_owned(), value.to_owned())].into());
        Arc::new(pod)
    };
    // Told as in Go: the pod as it was given, with another status.
    let told = |value: &str, own: Option<&str>| {
        let own = own.map(|own| ("own".to_owned(), own.to_owned()));
        let annotations = [("theirs".to_owned(), value.to_owned())].into_iter().chain(own).collect();
        PodReport { status: status("Running"), annotations: Some(annotations), evicted: None }
    };
    let mut record = PodRecord { server: Some(with("1")), given: Some(with("1")), ..PodRecord::default() };
    record.take(told("1", None));
    record.server = Some(with("2"));
    assert!(matches!(record.next(NOW), Some(Operation::Update(_))));
    // Before the update and while it is under way, the provider tells either.
    for value in ["1", "2"] {
        record.take(told(value, None));
    }
    record.give(with("2"));
    // What it told before is taken late.
    record.take(told("1", None));
    assert!(record.next(NOW).is_none(), "{:?}", record.annotations);
    // It takes updates, and tells for ever what it was first given.
    for value in ["3", "4"] {
        record.server = Some(with(value));
        assert!(matches!(record.next(NOW), Some(Operation::Update(_))));
        record.give(with(value));
        record.take(told("1", None));
        assert!(record.next(NOW).is_none(), "{value}: {:?}", record.annotations);
    }
    // One of its own goes on being its own, also when it was given back and has its former value again.
    record.take(told("4", Some("1")));
    let mut shown = Pod::clone(&with("4"));
    shown.metadata.annotations.as_mut().unwrap().insert("own".into(), "1".into());
    (record.server, record.given) = (Some(Arc::new(shown.clone())), Some(Arc::new(shown.clone())));
    record.take(told("4", Some("2")));
    record.take(told("4", Some("1")));
    shown.metadata.annotations.as_mut().unwrap().insert("own".into(), "3".into());
    (record.server, record.given) = (Some(Arc::new(shown.clone())), Some(Arc::new(shown)));
    let Some(Operation::Patch(patch)) = record.next(NOW) else { panic!("no patch") };
    assert_eq!(patch["metadata"]["annotations"], json!({ "own": "1" }));
}

#[test]
fn a_status_is_shown_only_with_every_reported_field() {
    let base = json!({ "phase": "Running", "containerStatuses": [
        { "name": "main", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "started": true, "state": { "running": {} } },
    ] });
    let read = |status: &Value| -> PodStatus { serde_json::from_value(status.clone()).unwrap() };
    for (path, value) in [
        ("/containerStatuses/0/resources", json!({ "limits": { "cpu": "1" } })),
        ("/containerStatuses/0/allocatedResources", json!({ "cpu": "1" })),
        ("/containerStatuses/0/allocatedResourcesStatus", json!([{ "name": "example.com/gpu" }])),
        ("/containerStatuses/0/user", json!({ "linux": { "uid": 7, "gid": 7 } })),
        ("/containerStatuses/0/volumeMounts", json!([{ "name": "v", "mountPath": "/v" }])),
        ("/containerStatuses/0/stopSignal", json!("SIGINT")),
        ("/containerStatuses/0/lastState", json!({ "terminated": { "exitCode": 1 } })),
        ("/resize", json!("Deferred")),
        ("/resourceClaimStatuses", json!([{ "name": "claim", "resourceClaimName": "c" }])),
        ("/qosClass", json!("BestEffort")),
        ("/observedGeneration", json!(2)),
        ("/hostIPs", json!([{ "ip": "10.0.0.1" }])),
        ("/startTime", json!("2026-01-01T00:00:00Z")),
        ("/conditions", json!([{ "type": "Ready", "status": "True" }])),
    ] {
        let mut told = base.clone();
        let (parent, key) = path.rsplit_once('/').unwrap();
        told.pointer_mut(parent).unwrap()[key] = value;
        assert!(!is_shown(&read(&base), &read(&told)), "{path}");
        assert!(is_shown(&read(&told), &read(&told)), "{path}");
    }
}

#[test]
fn foreign_parts_of_a_status_are_left_alone() {
    let read = |status: Value| -> PodStatus { serde_json::from_value(status).unwrap() };
    let told = read(json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }],
        "resourceClaimStatuses": [{ "name": "ours" }] }));
    let shown = read(json!({ "phase": "Running", "nominatedNodeName": "n2", "qosClass": "BestEffort",
        "conditions": [{ "type": "Gate", "status": "True" }, { "type": "Ready", "status": "True", "lastProbeTime": "2026-01-01T00:00:00Z" }],
        "resourceClaimStatuses": [{ "name": "theirs" }, { "name": "ours" }] }));
    assert!(is_shown(&shown, &told));
    // A reason that is no longer told is taken away.
    assert!(!is_shown(&PodStatus { reason: Some("Evicted".into()), ..shown }, &told));
}
