//! Pods and the `ReplicaSet` of a paused Deployment.

use crate::{Error, act, carry_out, failure, refused};
use k8s_openapi::api::{apps::v1::ReplicaSet, core::v1::Pod};
use operator::{rollout::Memory, watch::Observer};
use planner::{Action, reason::NodeObject};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/edge/pods";
const REPLICA_SETS: &str = "/apis/apps/v1/namespaces/edge/replicasets";

fn pod(version: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-p", "namespace": "edge", "uid": "p1", "resourceVersion": version}})
}

fn replica_set(version: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "spec": {"selector": {}},
        "metadata": {"name": "web-a-1", "namespace": "edge", "uid": "s1", "resourceVersion": version},
    })
}

/// No decision before the watch of pods has shown this version, whatever that of `ReplicaSet`s shows.
fn assert_waits_for_pod(mut memory: Memory, version: &str) {
    let observer = Observer::default();
    observer.take::<ReplicaSet>(vec![serde_json::from_value(replica_set(version)).unwrap()]);
    assert!(!memory.is_caught_up(&observer));
    observer.take::<Pod>(vec![serde_json::from_value(pod(version)).unwrap()]);
    assert!(memory.is_caught_up(&observer));
}

fn delete(uid: Option<&str>, resource_version: Option<&str>) -> Action {
    Action::DeletePod { name: "web-p".into(), uid: uid.map(Into::into), resource_version: resource_version.map(Into::into) }
}

#[tokio::test]
pub async fn a_pod_is_deleted_only_as_it_was_seen() {
    let preconditions = [
        (Some("p1"), Some("12"), json!({"preconditions": {"uid": "p1", "resourceVersion": "12"}})),
        (Some("p1"), None, json!({"preconditions": {"uid": "p1"}})),
        // One that the kubelet refused has ended, and its name is not given again.
        (None, None, json!({})),
    ];
    for (uid, version, body) in preconditions {
        let expected = vec![("DELETE", format!("{PODS}/web-p?"), Some(body), 200, pod("13"))];
        act(delete(uid, version), expected).await.0.unwrap();
    }
}

#[tokio::test]
async fn a_pod_that_is_gone_or_changed_is_left_alone() {
    for (code, reason) in [(404, "NotFound"), (409, "Conflict")] {
        let expected = vec![("DELETE", format!("{PODS}/web-p?"), None, code, failure(code, reason, false))];
        act(delete(Some("p1"), Some("12")), expected).await.0.unwrap();
    }
    let expected = vec![("DELETE", format!("{PODS}/web-p?"), None, 500, failure(500, "InternalError", false))];
    let (result, _) = act(delete(Some("p1"), Some("12")), expected).await;
    assert!(matches!(result, Err(Error::Transient(_))), "{result:?}");
}

fn create() -> (Action, Value) {
    let body = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-p", "namespace": "edge", "labels": {"a": "b"}},
        "spec": {"nodeName": "a", "containers": [{"name": "pull-0", "image": "i:2"}]},
    });
    (Action::CreatePod { node: "a".into(), name: "web-p".into(), body: Box::new(body.clone()) }, body)
}

#[tokio::test]
pub async fn a_pull_pod_is_created_once_and_waited_for() {
    let (action, body) = create();
    let (result, memory) = act(action, vec![("POST", format!("{PODS}?"), Some(body), 201, pod("41"))]).await;
    result.unwrap();
    assert_waits_for_pod(memory, "41");
    let (action, body) = create();
    let (result, memory) = act(action, vec![("POST", format!("{PODS}?"), Some(body), 409, failure(409, "AlreadyExists", false))]).await;
    assert!(matches!(result, Err(Error::Conflict)), "it is there already: {result:?}");
    assert!(memory.active_refusals(1).is_empty());
}

#[tokio::test]
async fn a_refused_pod_is_remembered_at_its_node() {
    for (code, reason) in [(403, "Forbidden"), (422, "Invalid")] {
        let (action, body) = create();
        let answer = failure(code, reason, true);
        let (result, memory) = act(action, vec![("POST", format!("{PODS}?"), Some(body), code, answer)]).await;
        assert!(matches!(result, Err(Error::Forbidden(_) | Error::Invalid(_))), "{code}: {result:?}");
        assert_eq!(memory.active_refusals(1), refused(NodeObject::PullPod), "{code}");
    }
}

/// Operations that test what they are based on, as the planner makes them.
fn operations(uid: &str) -> Value {
    json!([
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/metadata/labels/token", "value": "old"},
        {"op": "add", "path": "/metadata/labels/token", "value": "new"},
    ])
}

#[tokio::test]
pub async fn a_replica_set_is_patched_as_decided_and_waited_for() {
    let patch = operations("s1");
    let action = Action::PatchReplicaSet { node: "a".into(), name: "web-a-1".into(), patch: patch.clone() };
    let expected = vec![("PATCH", format!("{REPLICA_SETS}/web-a-1?"), Some(patch), 200, replica_set("41"))];
    let (result, mut memory) = act(action, expected).await;
    result.unwrap();
    let observer = Observer::default();
    observer.take::<Pod>(vec![serde_json::from_value(pod("41")).unwrap()]);
    assert!(!memory.is_caught_up(&observer), "the watch of pods says nothing of it");
    observer.take::<ReplicaSet>(vec![serde_json::from_value(replica_set("41")).unwrap()]);
    assert!(memory.is_caught_up(&observer));
}

#[tokio::test]
pub async fn a_pod_is_patched_as_decided_and_waited_for() {
    let patch = operations("p1");
    let action = Action::PatchPod { node: "a".into(), name: "web-p".into(), patch: patch.clone() };
    let (result, memory) = act(action, vec![("PATCH", format!("{PODS}/web-p?"), Some(patch), 200, pod("41"))]).await;
    result.unwrap();
    assert_waits_for_pod(memory, "41");
}

/// What the planner makes of a gate: its condition, for the pod that was seen.
fn gate() -> (Action, Value) {
    let patch = json!({
        "metadata": {"uid": "p1", "resourceVersion": "12"},
        "status": {"conditions": [{"type": "example.org/in-place", "status": "True", "lastTransitionTime": "1970-01-01T00:16:40Z"}]},
    });
    (Action::PatchPodStatus { node: "a".into(), name: "web-p".into(), patch: patch.clone() }, patch)
}

#[tokio::test]
pub async fn a_pods_gate_is_patched_by_its_condition_type() {
    let (action, patch) = gate();
    let (result, memory) = act(action, vec![("PATCH", format!("{PODS}/web-p/status?"), Some(patch), 200, pod("41"))]).await;
    result.unwrap();
    assert_waits_for_pod(memory, "41");
}

#[tokio::test]
async fn what_has_changed_or_gone_meanwhile_is_looked_at_again() {
    for (code, reason) in [(404, "NotFound"), (409, "Conflict"), (422, "Invalid")] {
        let cases = [
            (Action::PatchReplicaSet { node: "a".into(), name: "x".into(), patch: operations("s1") }, format!("{REPLICA_SETS}/x?")),
            (Action::PatchPod { node: "a".into(), name: "x".into(), patch: operations("p1") }, format!("{PODS}/x?")),
            (Action::PatchPodStatus { node: "a".into(), name: "x".into(), patch: gate().1 }, format!("{PODS}/x/status?")),
        ];
        for (action, path) in cases {
            let outcome = carry_out(action, vec![("PATCH", path.clone(), None, code, failure(code, reason, false))]).await;
            assert!(outcome.is_fenced(), "{path}: {code}: {:?}", outcome.result);
        }
    }
}

#[tokio::test]
async fn refused_patches_are_remembered_at_the_node() {
    let cases = [
        (Action::PatchReplicaSet { node: "a".into(), name: "x".into(), patch: operations("s1") }, format!("{REPLICA_SETS}/x?")),
        (Action::PatchPod { node: "a".into(), name: "x".into(), patch: operations("p1") }, format!("{PODS}/x?")),
        (Action::PatchPodStatus { node: "a".into(), name: "x".into(), patch: gate().1 }, format!("{PODS}/x/status?")),
    ];
    for (action, path) in cases {
        let (result, memory) = act(action, vec![("PATCH", path.clone(), None, 422, failure(422, "Invalid", true))]).await;
        assert!(matches!(result, Err(Error::Invalid(_))), "{path}: {result:?}");
        assert_eq!(memory.active_refusals(1), refused(NodeObject::Pods), "{path}");
    }
}
