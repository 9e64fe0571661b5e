//! Supporting objects: health checkers, their rights, former revisions.

use crate::{Error, act, failure};
use planner::{Action, plan::Supporting};
use serde_json::{Value, json};

/// Kinds, each with the path of the object named `x`.
fn kinds() -> [(Supporting, &'static str); 5] {
    let name = || "x".to_owned();
    [
        (Supporting::DaemonSet(name()), "/apis/apps/v1/namespaces/edge/daemonsets/x?"),
        (Supporting::ServiceAccount(name()), "/api/v1/namespaces/edge/serviceaccounts/x?"),
        (Supporting::RoleBinding(name()), "/apis/rbac.authorization.k8s.io/v1/namespaces/edge/rolebindings/x?"),
        (Supporting::ClusterRoleBinding(name()), "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/x?"),
        (Supporting::ControllerRevision(name()), "/apis/apps/v1/namespaces/edge/controllerrevisions/x?"),
    ]
}

fn deleted() -> Value {
    json!({"apiVersion": "v1", "kind": "Status", "status": "Success", "code": 200})
}

#[tokio::test]
pub async fn a_supporting_object_is_deleted_where_its_kind_lives_and_only_that_one() {
    for (object, path) in kinds() {
        let body = json!({"propagationPolicy": "Background", "preconditions": {"uid": "s1"}});
        let action = Action::Delete { object, uid: Some("s1".into()) };
        act(action, vec![("DELETE", path.to_owned(), Some(body), 200, deleted())]).await.0.unwrap();
    }
}

#[tokio::test]
async fn one_that_was_never_seen_is_deleted_by_its_name() {
    for (object, path) in kinds() {
        let body = json!({"propagationPolicy": "Background"});
        act(Action::Delete { object, uid: None }, vec![("DELETE", path.to_owned(), Some(body), 200, deleted())]).await.0.unwrap();
    }
}

#[tokio::test]
async fn one_that_is_gone_or_another_by_now_is_left_alone() {
    for (code, reason) in [(404, "NotFound"), (409, "Conflict")] {
        let (object, path) = kinds()[0].clone();
        let action = Action::Delete { object, uid: Some("s1".into()) };
        let (result, mut memory) = act(action, vec![("DELETE", path.to_owned(), None, code, failure(code, reason, false))]).await;
        result.unwrap();
        assert!(memory.is_caught_up(&operator::observe::Observer::default()), "nothing was written");
    }
}

#[tokio::test]
async fn a_deletion_that_is_forbidden_or_not_answered_is_no_success() {
    let (object, path) = kinds()[3].clone();
    let delete = |code, reason| {
        let action = Action::Delete { object: object.clone(), uid: None };
        act(action, vec![("DELETE", path.to_owned(), None, code, failure(code, reason, false))])
    };
    let forbidden = delete(403, "Forbidden").await.0;
    assert!(matches!(forbidden, Err(Error::Forbidden(_))), "{forbidden:?}");
    let unanswered = delete(500, "InternalError").await.0;
    assert!(matches!(unanswered, Err(Error::Transient(_))), "{unanswered:?}");
    let refused = delete(400, "BadRequest").await.0;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
}
