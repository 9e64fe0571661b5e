//! Supporting objects: health checkers, their rights, former revisions.

use crate::{Error, act, carry_out_with, failure, server, snapshot};
use kube::{Client, client::Body};
use operator::rollout::Memory;
use planner::{Action, plan::Supporting};
use serde_json::{Value, json};

/// Kinds, each with the path of the object named `x`.
fn kinds() -> [(Supporting, &'static str); 6] {
    let name = || "x".to_owned();
    [
        (Supporting::DaemonSet(name()), "/apis/apps/v1/namespaces/edge/daemonsets/x?"),
        (Supporting::ServiceAccount(name()), "/api/v1/namespaces/edge/serviceaccounts/x?"),
        (Supporting::RoleBinding(name()), "/apis/rbac.authorization.k8s.io/v1/namespaces/edge/rolebindings/x?"),
        (Supporting::ClusterRoleBinding(name()), "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/x?"),
        (Supporting::ControllerRevision(name()), "/apis/apps/v1/namespaces/edge/controllerrevisions/x?"),
        (Supporting::Secret(name()), "/api/v1/namespaces/edge/secrets/x?"),
    ]
}

fn deleted() -> Value {
    json!({"apiVersion": "v1", "kind": "Status", "status": "Success", "code": 200})
}

#[tokio::test]
pub async fn a_supporting_object_that_was_seen_is_deleted_by_uid() {
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
        let is_asked_again = !matches!(object, Supporting::ClusterRoleBinding(_));
        let (result, memory) =
            act(Action::Delete { object, uid: None }, vec![("DELETE", path.to_owned(), Some(body), 200, deleted())]).await;
        result.unwrap();
        assert_eq!(memory.asserted().is_empty(), is_asked_again, "where nobody watches for it, a pass does not ask again");
    }
}

#[tokio::test]
async fn a_supporting_object_gone_or_replaced_is_left_alone() {
    for (code, reason) in [(404, "NotFound"), (409, "Conflict")] {
        let (object, path) = kinds()[0].clone();
        let action = Action::Delete { object, uid: Some("s1".into()) };
        let (result, mut memory) = act(action, vec![("DELETE", path.to_owned(), None, code, failure(code, reason, false))]).await;
        result.unwrap();
        assert!(memory.is_caught_up(&operator::watch::Observer::default()), "nothing was written");
    }
}

#[tokio::test]
async fn a_forbidden_or_unanswered_deletion_is_no_success() {
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

/// What is sent to make the Secret with the health checkers' key, and what came of it, when the API server answers with this code.
async fn made(code: u16, reason: &str) -> (String, Value, Result<(), Error>, usize) {
    let body = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "health-checker-0a1b2c3d"}, "type": "Opaque"});
    let action = Action::Apply { object: Supporting::Secret("health-checker-0a1b2c3d".into()), body: Box::new(body) };
    let (service, mut handle) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
    let (client, mut memory) = (Client::new(service, "default"), Memory::of("0a1b2c3d-0000"));
    let serve = async {
        let (request, reply) = handle.next_request().await.unwrap();
        let asked = format!("{} {}", request.method(), request.uri());
        let sent: Value = serde_json::from_slice(&request.into_body().collect_bytes().await.unwrap()).unwrap();
        let answer = if code == 201 { sent.clone() } else { failure(code, reason, false) };
        reply.send_response(http::Response::builder().status(code).body(Body::from(serde_json::to_vec(&answer).unwrap())).unwrap());
        (asked, sent)
    };
    let (result, (asked, sent)) = tokio::join!(carry_out_with(&client, &action, &mut memory), serve);
    (asked, sent, result, memory.asserted().len())
}

#[tokio::test]
async fn a_new_secret_has_its_own_key_and_replaces_none() {
    let (asked, first, result, asserted) = made(201, "").await;
    assert_eq!((asked.as_str(), asserted), ("POST /api/v1/namespaces/edge/secrets?", 1));
    result.unwrap();
    let (_, second, result, asserted) = made(409, "AlreadyExists").await;
    result.unwrap();
    assert_eq!(asserted, 1, "it is not tried again at once");
    let key = |sent: &Value| sent["data"]["key"].as_str().unwrap().to_owned();
    assert_eq!(key(&first).len(), 44, "32 bytes in base64");
    assert_ne!(key(&first), key(&second));
    let (_, _, forbidden, asserted) = made(403, "Forbidden").await;
    assert!(matches!(forbidden, Err(Error::Forbidden(_))), "{forbidden:?}");
    assert_eq!(asserted, 0);
}

#[tokio::test]
async fn refused_health_checkers_are_remembered_until_accepted_or_changed() {
    let body = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "web-10080", "resourceVersion": "9"}});
    let action = Action::Apply { object: Supporting::DaemonSet("web-10080".into()), body: Box::new(body.clone()) };
    let path = "/apis/apps/v1/namespaces/edge/daemonsets/web-10080?&force=true&fieldManager=ingress-daemonset-operator%2Fhealth-checker";
    let answers = [(422, failure(422, "Invalid", true)), (403, failure(403, "Forbidden", false)), (200, body)];
    let (client, task) = server(answers.into_iter().map(|(code, answer)| ("PATCH", path.to_owned(), None, code, answer)).collect());
    let mut memory = Memory::of("0a1b2c3d-0000");
    let refusal = |memory: &Memory, generation: i64| {
        let mut snapshot = snapshot();
        snapshot.resource.generation = generation;
        memory.complete(&mut snapshot);
        snapshot.checkers_refusals.into_values().map(|refusal| (refusal.message, refusal.waits > 0)).collect::<Vec<_>>()
    };
    let first = carry_out_with(&client, &action, &mut memory).await;
    assert!(matches!(first, Err(Error::Invalid(_))), "{first:?}");
    assert_eq!(refusal(&memory, 1), [("DaemonSet/web-10080: because".into(), true)]);
    assert_eq!(refusal(&memory, 2), [], "another spec is tried at once");
    let again = carry_out_with(&client, &action, &mut memory).await;
    assert!(matches!(again, Err(Error::Known)), "nobody is told twice: {again:?}");
    carry_out_with(&client, &action, &mut memory).await.unwrap();
    assert_eq!(refusal(&memory, 1), []);
    drop(client);
    task.await.unwrap();
    // So is what they need, each by itself.
    let apply = |object: Supporting| {
        let body = json!({"apiVersion": "v1", "kind": "X", "metadata": {"name": "x"}});
        Action::Apply { object, body: Box::new(body) }
    };
    let (key, account) = (apply(Supporting::Secret("x".into())), apply(Supporting::ServiceAccount("x".into())));
    let steps = [
        (&action, 403, vec!["DaemonSet/web-10080"]),
        (&key, 403, vec!["DaemonSet/web-10080", "Secret/x"]),
        (&account, 403, vec!["DaemonSet/web-10080", "Secret/x", "ServiceAccount/x"]),
        (&key, 409, vec!["DaemonSet/web-10080", "ServiceAccount/x"]),
        (&account, 200, vec!["DaemonSet/web-10080"]),
        (&action, 200, vec![]),
    ];
    for (action, code, said) in steps {
        let (service, mut handle) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
        let client = Client::new(service, "default");
        let serve = async {
            let (request, reply) = handle.next_request().await.unwrap();
            let sent = request.into_body().collect_bytes().await.unwrap();
            let reason = if code == 409 { "AlreadyExists" } else { "Forbidden" };
            let answer = if code == 200 { sent.to_vec() } else { failure(code, reason, false).to_string().into_bytes() };
            reply.send_response(http::Response::builder().status(code).body(Body::from(answer)).unwrap());
        };
        let (_, ()) = tokio::join!(carry_out_with(&client, action, &mut memory), serve);
        let refused: Vec<_> = refusal(&memory, 1).into_iter().map(|(message, _)| message).collect();
        assert_eq!(refused, said.iter().map(|object| format!("{object}: because")).collect::<Vec<_>>(), "{code}");
    }
}
