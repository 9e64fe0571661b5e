//! Recorded revisions of the template.

use crate::{Error, Exchange, act, carry_out, failure};
use k8s_openapi::api::apps::v1::ControllerRevision;
use operator::watch::Observer;
use planner::Action;
use serde_json::{Value, json};

const REVISIONS: &str = "/apis/apps/v1/namespaces/edge/controllerrevisions";

fn revision(version: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 4, "data": {},
        "metadata": {"name": "web-1a", "namespace": "edge", "uid": "r1", "resourceVersion": version},
    })
}

fn record() -> (Action, Value) {
    let body = json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 4, "data": {"spec": {}},
        "metadata": {"name": "web-1a", "namespace": "edge"},
    });
    (Action::RecordRevision { name: "web-1a".into(), body: Box::new(body.clone()) }, body)
}

/// The name is taken, and this is what is found under it.
fn taken(found: (u16, Value)) -> Vec<Exchange> {
    let (code, found) = found;
    vec![
        ("POST", format!("{REVISIONS}?"), Some(record().1), 409, failure(409, "AlreadyExists", false)),
        ("GET", format!("{REVISIONS}/web-1a"), None, code, found),
    ]
}

#[tokio::test]
pub async fn a_revision_is_recorded_and_waited_for() {
    let (action, body) = record();
    let (result, mut memory) = act(action, vec![("POST", format!("{REVISIONS}?"), Some(body), 201, revision("41"))]).await;
    result.unwrap();
    let observer = Observer::default();
    assert!(!memory.is_caught_up(&observer), "no decision before the watch has shown the write");
    observer.take::<ControllerRevision>(vec![serde_json::from_value(revision("41")).unwrap()]);
    assert!(memory.is_caught_up(&observer));
}

#[tokio::test]
async fn an_unseen_revision_of_ours_is_a_conflict() {
    let mut found = revision("9");
    found["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "x/v1", "kind": "IngressDaemonSet", "name": "web", "uid": "0a1b2c3d-0000", "controller": true}]);
    let (result, memory) = act(record().0, taken((200, found))).await;
    assert!(matches!(result, Err(Error::Conflict)), "{result:?}");
    assert!(memory.foreign_names.is_empty());
}

#[tokio::test]
async fn a_foreign_revision_is_left_alone_and_remembered() {
    let (result, memory) = act(record().0, taken((200, revision("9")))).await;
    assert!(matches!(&result, Err(Error::Foreign(name)) if name == "web-1a"), "{result:?}");
    assert!(memory.foreign_names.contains("web-1a"));
}

#[tokio::test]
async fn recording_is_retried_after_a_blocking_revision_disappears() {
    let (result, memory) = act(record().0, taken((404, failure(404, "NotFound", false)))).await;
    assert!(matches!(result, Err(Error::Conflict)), "{result:?}");
    assert!(memory.foreign_names.is_empty());
}

#[tokio::test]
async fn a_revision_refused_by_the_api_server_is_no_conflict() {
    let answer = failure(422, "Invalid", true);
    let (result, _) = act(record().0, vec![("POST", format!("{REVISIONS}?"), None, 422, answer)]).await;
    assert!(matches!(result, Err(Error::Invalid(_))), "{result:?}");
}

fn renumber() -> (Action, Value) {
    let patch = json!([
        {"op": "test", "path": "/metadata/uid", "value": "r1"},
        {"op": "test", "path": "/revision", "value": 2},
        {"op": "add", "path": "/revision", "value": 4},
    ]);
    (Action::RenumberRevision { name: "web-1a".into(), patch: patch.clone() }, patch)
}

#[tokio::test]
pub async fn a_revision_is_renumbered_only_as_it_was_seen() {
    let (action, patch) = renumber();
    let (result, mut memory) = act(action, vec![("PATCH", format!("{REVISIONS}/web-1a?"), Some(patch), 200, revision("41"))]).await;
    result.unwrap();
    let observer = Observer::default();
    assert!(!memory.is_caught_up(&observer));
    observer.take::<ControllerRevision>(vec![serde_json::from_value(revision("41")).unwrap()]);
    assert!(memory.is_caught_up(&observer));
}

#[tokio::test]
async fn a_revision_that_is_gone_or_renumbered_is_read_again() {
    for (code, reason) in [(404, "NotFound"), (409, "Conflict"), (422, "Invalid")] {
        let (action, patch) = renumber();
        let answer = failure(code, reason, false);
        let outcome = carry_out(action, vec![("PATCH", format!("{REVISIONS}/web-1a?"), Some(patch), code, answer)]).await;
        assert!(outcome.is_fenced(), "{code}: {:?}", outcome.result);
    }
}
