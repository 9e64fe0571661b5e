//! Updates in place: what can be done so, when it is done, and what is written for it.

use crds::{
    in_place::{Instance, PodRecord},
    names,
};
use planner::{
    facts::{ContainerFacts, InPlacePod, ReplicaSetFacts},
    objects::in_place::{
        classify::templates,
        completion::is_complete,
        moves::{InPlaceFacts, Move, PodView, ReplicaSetView, moves},
        writes,
    },
    reason::RecreateReason,
};
use serde_json::{Value, json};

fn template(image: &str) -> Value {
    let variable =
        |label: &str| json!({ "name": "SHOWN", "valueFrom": { "fieldRef": { "fieldPath": format!("metadata.labels['{label}']") } } });
    json!({
        "metadata": { "labels": { "app": "edge" } },
        "spec": {
            "initContainers": [
                { "name": "init", "image": "init:1", "env": [variable("team")] },
                { "name": "sidecar", "image": "sidecar:1", "restartPolicy": "Always", "env": [variable("zone")] },
            ],
            "containers": [{ "name": "proxy", "image": image, "args": ["-v"], "env": [variable("track")] }],
        },
    })
}

#[test]
fn only_changes_that_running_pods_accept_are_made_in_place() {
    type Edit = fn(&mut Value);
    let table: [(&str, Edit, Result<(), RecreateReason>); 11] = [
        ("an image", |t| t["spec"]["containers"][0]["image"] = "proxy:2".into(), Ok(())),
        ("a label", |t| t["metadata"]["labels"]["team"] = "web".into(), Ok(())),
        ("a label less", |t| t["metadata"]["labels"] = json!({}), Ok(())),
        ("an annotation", |t| t["metadata"]["annotations"] = json!({ "note": "x" }), Ok(())),
        ("an argument", |t| t["spec"]["containers"][0]["args"] = json!([]), Err(RecreateReason::MoreThanImages)),
        (
            "a container",
            |t| t["spec"]["containers"].as_array_mut().unwrap().push(json!({ "name": "b", "image": "b:1" })),
            Err(RecreateReason::MoreThanImages),
        ),
        ("an init container's image", |t| t["spec"]["initContainers"][0]["image"] = "init:2".into(), Err(RecreateReason::InitImage)),
        (
            "a restart",
            |t| t["metadata"]["annotations"] = json!({ "kubectl.kubernetes.io/restartedAt": "now" }),
            Err(RecreateReason::RestartedAt),
        ),
        ("a label that a variable shows", |t| t["metadata"]["labels"]["track"] = "b".into(), Err(RecreateReason::Environment)),
        ("a label that a sidecar's variable shows", |t| t["metadata"]["labels"]["zone"] = "b".into(), Err(RecreateReason::Environment)),
        ("the tag that is always pulled", |t| t["spec"]["containers"][0]["image"] = "proxy:latest".into(), Err(RecreateReason::PullPolicy)),
    ];
    for (what, edit, expected) in table {
        let mut wanted = template("proxy:1");
        edit(&mut wanted);
        assert_eq!(templates(&template("proxy:1"), &wanted), expected, "{what}");
        assert_eq!(templates(&wanted, &template("proxy:1")), expected, "{what}, taken back");
    }
}

#[test]
fn a_digest_or_registry_port_is_no_tag() {
    for (image, latest) in [("a", true), ("a:latest", true), ("r:5000/a", true), ("r:5000/a:1", false), ("a@sha256:0", false)] {
        let expected = if latest { Err(RecreateReason::PullPolicy) } else { Ok(()) };
        assert_eq!(templates(&template("proxy:1"), &template(image)), expected, "{image}");
    }
}

/// When the pod was changed.
const CHANGED: i64 = 1_700_000_000;
/// Seconds that its containers have to end, and as long again as a kubelet takes at most to look at it.
const SETTLED: i64 = CHANGED + 30 + 60;

/// A pod that runs `proxy:2` in place of `proxy:1`.
fn updated() -> InPlacePod {
    let ran =
        Instance { container: "c://1".into(), image: "proxy:1".into(), shown: "proxy:1".into(), image_id: "sha256:1".into(), restarts: 0 };
    let record = PodRecord { id: 7, at: CHANGED, before: [("proxy".to_owned(), ran)].into() };
    let runs = ContainerFacts {
        name: "proxy".into(),
        image: "proxy:2".into(),
        shown: "proxy:2".into(),
        image_id: "sha256:2".into(),
        id: "c://2".into(),
        started_at: CHANGED + 1,
        running: true,
        ready: true,
        restarts: 1,
    };
    InPlacePod {
        uid: "pod".into(),
        resource_version: "12".into(),
        generation: 2,
        observed_generation: 2,
        gate: Some(false),
        termination_grace: 30,
        containers: vec![runs],
        annotations: std::collections::BTreeMap::from([(names::IN_PLACE_TOKEN.to_owned(), record.to_string())]).into(),
        record: Some(record),
        ..InPlacePod::default()
    }
}

#[test]
fn a_pod_completes_when_kubelet_and_containers_follow_its_change() {
    type Edit = fn(&mut InPlacePod);
    let table: [(&str, Edit, bool); 11] = [
        ("as it should be", |_| {}, true),
        ("the kubelet has not seen it", |pod| pod.observed_generation = 1, false),
        ("the same run as before: it has not been ended yet", |pod| pod.containers[0].id = "c://1".into(), false),
        ("a run that has not begun", |pod| pod.containers[0].id = String::new(), false),
        ("it does not run", |pod| pod.containers[0].running = false, false),
        ("it is not ready", |pod| pod.containers[0].ready = false, false),
        (
            "it was changed back before anybody noticed",
            |pod| {
                (pod.containers[0].id, pod.containers[0].image, pod.containers[0].shown) =
                    ("c://1".into(), "proxy:1".into(), "proxy:1".into());
            },
            true,
        ),
        (
            "it was changed back while the other image was fetched, which runs now and is about to be ended",
            |pod| pod.containers[0].image = "proxy:1".into(),
            false,
        ),
        (
            "it was changed back, and the former image runs again",
            |pod| {
                pod.containers[0].image = "proxy:1".into();
                shows_the_former(pod);
            },
            true,
        ),
        ("a kubelet that says nothing of generations, and shows the image", |pod| pod.observed_generation = 0, true),
        (
            "a kubelet that says nothing of generations, and shows another image",
            |pod| {
                pod.observed_generation = 0;
                (pod.containers[0].shown, pod.containers[0].image_id) = ("proxy:1".into(), "sha256:1".into());
            },
            false,
        ),
    ];
    for (what, edit, expected) in table {
        let mut pod = updated();
        edit(&mut pod);
        assert_eq!(is_complete(&pod, CHANGED + 5), expected, "{what}");
    }
}

/// What a container runtime shows that goes by the first name of an image, which both tags have.
fn shows_the_former(pod: &mut InPlacePod) {
    (pod.containers[0].shown, pod.containers[0].image_id) = ("proxy:1".into(), "sha256:1".into());
}

#[test]
fn a_change_of_tag_alone_completes_by_a_later_run() {
    type Edit = fn(&mut InPlacePod);
    let table: [(&str, Edit, i64, bool); 8] = [
        ("a run of after the change", |_| {}, CHANGED + 5, true),
        ("a run of the second of the change", |pod| pod.containers[0].started_at = CHANGED, CHANGED + 5, true),
        // It crashed, and began with the former tag before the kubelet ended it for the new one.
        ("a run of before the change, which the kubelet has seen", |pod| pod.containers[0].started_at = CHANGED - 1, CHANGED + 5, false),
        ("the same, by a clock that is behind", |pod| pod.containers[0].started_at = CHANGED - 1, SETTLED, true),
        ("the run of before", |pod| pod.containers[0].id = "c://1".into(), SETTLED, false),
        ("a kubelet that does not say what it has seen", |pod| pod.observed_generation = 0, CHANGED + 5, false),
        ("the same, when it must have", |pod| pod.observed_generation = 0, SETTLED, true),
        ("it is not ready", |pod| pod.containers[0].ready = false, SETTLED, false),
    ];
    for (what, edit, now, expected) in table {
        let mut pod = updated();
        shows_the_former(&mut pod);
        edit(&mut pod);
        assert_eq!(is_complete(&pod, now), expected, "{what}");
    }
}

#[test]
fn a_crash_just_before_the_kubelet_acts_completes_no_update() {
    let mut pod = updated();
    shows_the_former(&mut pod);
    pod.containers[0].started_at = CHANGED - 1;
    assert!(!is_complete(&pod, CHANGED + 1), "its image is the former one, and the kubelet has only seen the change");
}

#[test]
fn a_record_without_times_completes_by_container_id() {
    let mut pod = updated();
    let record = r#"{"id":7,"before":{"proxy":{"container":"c://1","image":"proxy:1","restarts":0}}}"#;
    pod.record = PodRecord::parse(Some(record));
    assert!(pod.record.is_some() && is_complete(&pod, CHANGED));
    pod.containers[0].id = "c://1".into();
    assert!(!is_complete(&pod, CHANGED));
}

/// Operations of a patch, in a line each.
fn lines(patch: &Value) -> Vec<String> {
    let line =
        |operation: &Value| format!("{} {} {}", operation["op"].as_str().unwrap(), operation["path"].as_str().unwrap(), operation["value"]);
    patch.as_array().unwrap().iter().map(line).collect()
}

#[test]
fn one_write_changes_a_pod_and_tests_its_former_state() {
    let (before, target) = (template("proxy:1"), template("proxy:3"));
    let mut pod = updated();
    pod.labels = std::collections::BTreeMap::from([("app".to_owned(), "edge".to_owned())]).into();
    let lines = lines(&writes::change(&pod, 8, &target, &before, CHANGED + 9).unwrap());
    assert_eq!(lines[0], "test /metadata/uid \"pod\"");
    assert!(lines.contains(&"test /spec/containers/0/image \"proxy:2\"".to_owned()), "{lines:#?}");
    assert!(lines.contains(&"add /spec/containers/0/image \"proxy:3\"".to_owned()), "{lines:#?}");
    let token = "/metadata/annotations/ingressdaemonsets.mumoshu.github.io~1in-place";
    let of = |op: &str| lines.iter().position(|line| line.starts_with(&format!("{op} {token} "))).unwrap();
    assert!(of("test") < of("add"), "{lines:#?}");
    assert!(lines[of("add")].contains("c://2") && lines[of("add")].contains("\\\"id\\\":8"), "{lines:#?}");
    assert!(lines[of("add")].contains(&format!("\\\"at\\\":{}", CHANGED + 9)) && lines[of("add")].contains("sha256:2"), "{lines:#?}");
}

#[test]
fn a_replica_set_claim_writes_only_label_and_changed_fields() {
    let set = ReplicaSetFacts {
        name: "edge-n1-abc".into(),
        uid: "set".into(),
        owner: "deployment".into(),
        hash: "abc".into(),
        token: None,
        replicas: 2,
        spec: json!({ "template": template("proxy:1") }).into(),
    };
    let spec = serde_json::from_value(json!({ "template": template("proxy:1") })).unwrap();
    let resource = planner::facts::Resource::created(("default", "edge"), "0a1b2c3d-0000", spec, 0);
    let label = "/metadata/labels/ingressdaemonsets.mumoshu.github.io~1in-place";
    let claimed = ["test /metadata/uid \"set\"".to_owned(), format!("test {label} null"), format!("add {label} \"0a1b2c3d.7\"")];
    assert_eq!(lines(&writes::claim(&resource, &set, 7, None).unwrap()), claimed);
    let rewritten = [
        "test /spec/template/spec/containers/0/name \"proxy\"",
        "test /spec/template/spec/containers/0/image \"proxy:1\"",
        "add /spec/template/spec/containers/0/image \"proxy:2\"",
    ];
    let patch = lines(&writes::claim(&resource, &set, 7, Some(&template("proxy:2"))).unwrap());
    assert_eq!(patch[..3], claimed);
    assert_eq!(patch[3..], rewritten);
    let mut other = template("proxy:2");
    other["spec"]["containers"][0]["args"] = json!([]);
    assert_eq!(writes::claim(&resource, &set, 7, Some(&other)), None);
}

#[test]
fn only_the_gate_condition_is_written_to_pod_status() {
    for open in [false, true] {
        let patch = writes::gate(&updated(), open, 1_700_000_000);
        let conditions = patch["status"]["conditions"].as_array().unwrap();
        assert_eq!(conditions.len(), 1);
        assert_eq!(conditions[0]["type"], names::IN_PLACE_GATE);
        assert_eq!(conditions[0]["status"], if open { "True" } else { "False" });
        assert_eq!(patch["metadata"], json!({ "uid": "pod", "resourceVersion": "12" }));
        assert_eq!(patch["status"].as_object().unwrap().len(), 1);
    }
}

/// Else its Deployment would go on with the former template, and the former pods would come back.
#[test]
fn a_replica_set_changed_back_ends_the_in_place_update() {
    let pod = PodView { claimed: true, imaged: true, wanted: true, gate: Some(true), ready: true, complete: true };
    let next = |wanted| {
        let replica_set = Some(ReplicaSetView { token: 7, wanted });
        moves(&InPlaceFacts { id: 7, paused: true, observed: true, possible: true, replica_set, pods: &[pod], allowed: 1, drained: true })
    };
    assert_eq!(next(true), [Move::Finish { in_place: true }]);
    assert_eq!(next(false), [Move::Finish { in_place: false }]);
}
