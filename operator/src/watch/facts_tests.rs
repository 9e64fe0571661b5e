//! What is kept of objects: what their fields say, and what they mean.

use super::{
    facts,
    view_tests::{UID, node, observer, of, pod},
};
use crds::names;
use planner::facts::{NodeFacts, shared_spec::SpecInterner};
use serde_json::{Value, json};

fn node_facts(status: &Value) -> std::sync::Arc<NodeFacts> {
    let mut object = node("a", "1");
    object["status"] = status.clone();
    observer(vec![object], Vec::new(), Vec::new()).node("a").unwrap()
}

#[test]
fn silent_nodes_are_unready_and_asked_at_their_internal_address() {
    for (status, ready, silent) in [("True", true, false), ("False", false, false), ("Unknown", false, true)] {
        let node = node_facts(&json!({ "conditions": [{ "type": "Ready", "status": status }] }));
        assert_eq!((node.ready, node.silent), (ready, silent), "{status}");
    }
    let addresses = json!([
        { "type": "Hostname", "address": "a.example.com" },
        { "type": "ExternalIP", "address": "203.0.113.1" },
        { "type": "InternalIP", "address": "10.0.0.1" },
    ]);
    assert_eq!(node_facts(&json!({ "addresses": addresses })).address.as_deref(), Some("10.0.0.1"));
    let both = |addresses: &[&str]| {
        let addresses: Vec<_> = addresses.iter().map(|address| json!({ "type": "InternalIP", "address": address })).collect();
        let node = node_facts(&json!({ "addresses": addresses }));
        (node.address.clone(), node.ipv4_address.clone())
    };
    let texts = |first: &str, second: Option<&str>| (Some(first.to_owned()), second.map(str::to_owned));
    assert_eq!(both(&["10.0.0.1", "2001:db8::1"]), texts("10.0.0.1", None));
    assert_eq!(both(&["2001:db8::1", "2001:db8::2", "10.0.0.1", "10.0.0.2"]), texts("2001:db8::1", Some("10.0.0.1")));
    assert_eq!(both(&["2001:db8::1"]), texts("2001:db8::1", None));
}

#[test]
fn a_failed_pod_was_refused_only_if_it_never_ran() {
    let started = json!([{ "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": { "terminated": { "exitCode": 1 } } }]);
    let waits = json!([{ "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": { "waiting": {} } }]);
    for (phase, reason, containers, refused) in [
        ("Failed", Some("OutOfcpu"), json!([]), true),
        ("Failed", Some("OutOfcpu"), started.clone(), false),
        ("Failed", Some("Evicted"), started, false),
        ("Failed", Some("Evicted"), waits, false),
        // "Pod was rejected: The node had condition: [DiskPressure]."
        ("Failed", Some("Evicted"), json!([]), true),
        ("Failed", None, json!([]), false),
        ("Pending", Some("OutOfcpu"), json!([]), false),
    ] {
        let mut object = pod("edge", "p", "a");
        object["metadata"]["creationTimestamp"] = "1970-01-01T00:00:07Z".into();
        // A kubelet whose clock is set wrong.
        object["status"] =
            json!({ "phase": phase, "reason": reason, "startTime": "1970-01-01T00:10:00Z", "containerStatuses": containers });
        let facts = facts::pod(&of(object.clone()), &mut SpecInterner::default());
        assert_eq!(facts.rejected_at, refused.then_some(7), "{object}");
        assert_eq!(facts.evicted, reason == Some("Evicted") && !refused, "{object}");
    }
}

#[test]
fn an_ended_pull_pod_without_all_images_gave_up() {
    let shown = |state: Value| json!([{ "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state }]);
    let waits = || shown(json!({ "waiting": { "reason": "ContainerCreating" } }));
    for (phase, reason, containers, pulled, given_up) in [
        ("Pending", None, json!([]), false, false),
        ("Pending", None, waits(), false, false),
        ("Failed", Some("OutOfpods"), json!([]), false, true),
        ("Failed", Some("Evicted"), waits(), false, true),
        ("Failed", None, shown(json!({ "terminated": { "exitCode": 128, "reason": "StartError" } })), true, false),
    ] {
        let mut object = pod("edge", "p", "a");
        object["metadata"]["creationTimestamp"] = "1970-01-01T00:00:07Z".into();
        object["metadata"]["labels"][names::PRE_PULL_LABEL] = "r1".into();
        object["spec"]["containers"] = json!([{ "name": "c", "image": "i:2" }]);
        object["status"] = json!({ "phase": phase, "reason": reason, "message": "no room", "containerStatuses": containers });
        let pull = facts::pod(&of(object.clone()), &mut SpecInterner::default()).pull.unwrap();
        assert_eq!((pull.created, pull.pulled, pull.given_up), (7, pulled, given_up), "{object}");
        let trouble = given_up.then(|| (reason.unwrap_or_default().to_owned(), "no room".to_owned()));
        assert_eq!(pull.trouble, trouble, "{object}");
    }
}

#[test]
fn a_succeeded_pod_that_its_kubelet_evicted_counts_as_evicted() {
    let low = "The node was low on resource: ephemeral-storage. Threshold quantity: 107374184, available: 28956Ki. ";
    for (phase, type_, reason, message, evicted) in [
        ("Succeeded", "DisruptionTarget", "TerminationByKubelet", low, true),
        ("Failed", "DisruptionTarget", "TerminationByKubelet", "Usage of EmptyDir volume \"cache\" exceeds the limit \"1Mi\". ", true),
        ("Running", "DisruptionTarget", "TerminationByKubelet", low, false),
        ("Failed", "DisruptionTarget", "TerminationByKubelet", "Pod was terminated in response to imminent node shutdown.", false),
        ("Failed", "DisruptionTarget", "TerminationByKubelet", "Pod was preempted by Kubelet to accommodate a critical pod", false),
        ("Failed", "DisruptionTarget", "EvictionByEvictionAPI", low, false),
        ("Succeeded", "Ready", "PodCompleted", low, false),
    ] {
        let mut object = pod("edge", "p", "a");
        let ended = json!([{ "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": { "terminated": { "exitCode": 0 } } }]);
        let condition = json!([{ "type": type_, "status": "True", "reason": reason, "message": message }]);
        object["status"] = json!({ "phase": phase, "containerStatuses": ended, "conditions": condition });
        assert_eq!(facts::pod(&of(object.clone()), &mut SpecInterner::default()).evicted, evicted, "{object}");
    }
}

#[test]
fn a_restarting_pods_trouble_says_how_its_container_ended() {
    let killed = json!({ "exitCode": 137, "reason": "OOMKilled", "startedAt": null, "finishedAt": null });
    let asked = json!({ "exitCode": 143, "reason": "Error", "startedAt": null, "finishedAt": null });
    let done = json!({ "exitCode": 0, "reason": "Completed", "startedAt": null, "finishedAt": null });
    let waits = json!({ "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 10s" } });
    let oom = Some(("OOMKilled".to_owned(), "container c ended with exit code 137".to_owned()));
    let gate = |status: &str| json!([{ "type": names::IN_PLACE_GATE, "status": status }]);
    let error = || Some(("Error".to_owned(), "container c ended with exit code 143".to_owned()));
    for (gate, restarts, state, last, trouble) in [
        (None, 1, json!({ "terminated": killed }), json!({}), oom.clone()),
        // It is started again at once.
        (None, 0, json!({ "terminated": killed }), json!({}), None),
        (Some(gate("False")), 1, json!({ "terminated": killed }), json!({}), oom),
        (
            None,
            1,
            waits.clone(),
            json!({ "terminated": killed }),
            Some(("CrashLoopBackOff".to_owned(), "back-off 10s; container c ended with exit code 137 (OOMKilled)".to_owned())),
        ),
        (
            None,
            1,
            waits.clone(),
            json!({ "terminated": done }),
            Some(("CrashLoopBackOff".to_owned(), "back-off 10s; container c ended with exit code 0 (Completed)".to_owned())),
        ),
        (None, 0, waits, json!({}), Some(("CrashLoopBackOff".to_owned(), "back-off 10s".to_owned()))),
        (None, 1, json!({ "terminated": asked }), json!({}), error()),
        (Some(gate("True")), 1, json!({ "terminated": asked }), json!({}), error()),
        // An update in place ends the former container.
        (Some(gate("False")), 1, json!({ "terminated": asked }), json!({}), None),
        (None, 1, json!({ "terminated": done }), json!({}), None),
        (None, 1, json!({ "running": {} }), json!({ "terminated": killed }), None),
    ] {
        let mut object = pod("edge", "p", "a");
        if gate.is_some() {
            object["spec"]["readinessGates"] = json!([{ "conditionType": names::IN_PLACE_GATE }]);
        }
        let status =
            json!({ "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": restarts, "state": state, "lastState": last });
        object["status"] = json!({ "phase": "Running", "containerStatuses": [status], "conditions": gate.unwrap_or(json!([])) });
        assert_eq!(facts::pod(&of(object.clone()), &mut SpecInterner::default()).trouble, trouble, "{object}");
    }
}

#[test]
fn the_template_of_an_orphan_is_that_of_its_deployment() {
    let labels = json!({ "app": "web", "pod-template-hash": "1a" });
    let set = json!({ "metadata": {}, "spec": { "selector": {}, "template": { "metadata": { "labels": labels } } } });
    assert_eq!(facts::template(&of(set))["metadata"]["labels"], json!({ "app": "web" }));
}

#[test]
fn settled_health_checkers_are_observed_updated_and_ready() {
    let settled = |observed: i64, updated: i32, ready: i32| {
        let status = json!({
            "observedGeneration": observed, "desiredNumberScheduled": 2, "updatedNumberScheduled": updated, "numberReady": ready,
            "currentNumberScheduled": 2, "numberMisscheduled": 0,
        });
        facts::daemon_set(of(json!({ "metadata": { "generation": 4 }, "status": status }))).is_settled(0)
    };
    assert!(settled(4, 2, 2));
    assert!(!settled(3, 2, 2) && !settled(4, 1, 2) && !settled(4, 2, 1));
}

#[test]
fn a_revision_owned_by_a_daemon_set_is_ignored() {
    let recorded = |kind: &str| {
        let owner = json!([{ "apiVersion": "x/v1", "kind": kind, "name": "web", "uid": UID, "controller": true }]);
        let data = json!({ "spec": { "template": { "spec": {} } } });
        facts::revision(&of(json!({ "metadata": { "name": "r", "ownerReferences": owner }, "revision": 1, "data": data }))).is_some()
    };
    assert!(recorded("IngressDaemonSet") && !recorded("DaemonSet"));
}

#[test]
fn node_ports_of_a_service_include_its_health_check_port() {
    let service = json!({ "spec": { "ports": [{ "port": 80, "nodePort": 30_080 }, { "port": 81 }], "healthCheckNodePort": 30_081 } });
    assert_eq!(facts::node_ports(&of(service)), [30_080, 30_081]);
}
