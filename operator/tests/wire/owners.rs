//! Whose an object is, read live where it matters, and the template tried on the existing object.

use crate::{Error, Exchange, act, deployment, failure, resource, server, snapshot};
use operator::{
    rollout::{Memory, try_template},
    write::still_foreign,
};
use planner::{
    Action, Snapshot,
    facts::{DeploymentCounts, DeploymentFacts},
    plan::Write,
    reason::NodeObject,
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/edge/deployments/web-a";

/// A Deployment of a resource of this UID.
fn owned_by(kind: &str, uid: &str) -> Value {
    let mut found = deployment("9");
    found["metadata"]["ownerReferences"] = json!([{"apiVersion": "x/v1", "kind": kind, "name": "web", "uid": uid, "controller": true}]);
    found
}

fn create() -> Action {
    let body = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web-a"}});
    Action::CreateDeployment { node: "a".into(), id: 5, name: "web-a".into(), body: Box::new(body) }
}

/// The name is taken by this object.
fn taken_by(found: Value) -> Vec<Exchange> {
    vec![
        ("POST", "/apis/apps/v1/namespaces/edge/deployments?".to_owned(), None, 409, failure(409, "AlreadyExists", false)),
        ("GET", DEPLOYMENT.to_owned(), None, 200, found),
    ]
}

#[tokio::test]
async fn a_name_taken_by_our_other_resource_is_not_foreign() {
    let (result, memory) = act(create(), taken_by(owned_by("IngressDaemonSet", "another"))).await;
    assert!(matches!(&result, Err(Error::Taken(name)) if name == "web-a"), "{result:?}");
    assert!(memory.foreign_names.is_empty(), "another name is found for it, by what the watch shows");
}

#[tokio::test]
async fn an_unseen_deployment_of_ours_first_gets_its_labels_back() {
    let found = owned_by("IngressDaemonSet", "0a1b2c3d-0000");
    let mut expected = taken_by(found.clone());
    expected.push(("GET", DEPLOYMENT.to_owned(), None, 200, found));
    expected.push(("PATCH", format!("{DEPLOYMENT}?"), None, 200, deployment("10")));
    let (result, memory) = act(create(), expected).await;
    assert!(matches!(result, Err(Error::Conflict)), "{result:?}");
    assert!(memory.foreign_names.is_empty());
}

#[tokio::test]
async fn labels_are_put_on_objects_of_ours_only() {
    let action = Action::Reclaim { node: "a".into(), name: "web-a".into(), identity: json!([]) };
    let (result, memory) = act(action, vec![("GET", DEPLOYMENT.to_owned(), None, 200, owned_by("IngressDaemonSet", "another"))]).await;
    assert!(matches!(result, Err(Error::Foreign(_))), "{result:?}");
    assert!(memory.foreign_names.contains("web-a"));
}

#[tokio::test]
async fn without_an_answer_a_deployment_counts_as_there() {
    let read = || ("GET", DEPLOYMENT.to_owned(), None, 500, failure(500, "InternalError", false));
    let status =
        Action::WriteStatus { status: Box::default(), urgent: true, live_absent: vec!["web-a".into()], reserve: vec![], granted: vec![] };
    let result = act(status, vec![read()]).await.0;
    assert!(matches!(result, Err(Error::Transient(_))), "{result:?}");
    let clean = Action::PatchNode { node: "a".into(), patch: json!([]), write: Write::Clean, live_absent: Some("web-a".into()) };
    let result = act(clean, vec![read()]).await.0;
    assert!(matches!(result, Err(Error::Transient(_))), "{result:?}");
}

#[tokio::test]
async fn a_foreign_name_stays_foreign_until_its_object_is_gone() {
    let ours = owned_by("IngressDaemonSet", "0a1b2c3d-0000");
    let answers = [
        (200, deployment("9"), true),
        (500, failure(500, "InternalError", false), true),
        (404, failure(404, "NotFound", false), false),
        (200, ours, false),
    ];
    for (code, answer, stays) in answers {
        let (client, task) = server(vec![("GET", DEPLOYMENT.to_owned(), None, code, answer)]);
        let names = BTreeSet::from(["web-a".to_owned()]);
        assert_eq!(!still_foreign(&client, &snapshot(), &names).await.is_empty(), stays, "{code}");
        drop(client);
        task.await.unwrap();
    }
}

#[tokio::test]
async fn an_accepted_write_ends_only_its_own_refusal() {
    let action = Action::PatchDeployment { node: "a".into(), name: "web-a".into(), patch: json!([]), write: Write::Claim };
    let (client, task) = server(vec![("PATCH", format!("{DEPLOYMENT}?"), None, 200, deployment("10"))]);
    let mut memory = Memory::of("0a1b2c3d-0000");
    memory.refuse("a", NodeObject::Deployment, "because", 1);
    memory.refuse("a", NodeObject::PullPod, "because", 1);
    memory.refuse("b", NodeObject::Deployment, "because", 1);
    crate::carry_out_with(&client, &action, &mut memory).await.unwrap();
    let left = memory.active_refusals(1);
    assert!(left[&NodeObject::Deployment].keys().eq(["b"]));
    assert!(left[&NodeObject::PullPod].keys().eq(["a"]), "the quota of pods is what it was");
    drop(client);
    task.await.unwrap();
}

/// A resource with a Deployment.
fn with_deployment() -> Snapshot {
    let mut snapshot = snapshot();
    let facts = DeploymentFacts {
        name: "web-a".into(),
        uid: "d1".into(),
        resource_version: "9".into(),
        generation: 1,
        labels: BTreeMap::new().into(),
        annotations: BTreeMap::new().into(),
        spec: json!({}).into(),
        status: DeploymentCounts::default(),
        refusal: None,
        deleting: false,
    };
    snapshot.deployments.insert("a".into(), Arc::new(facts));
    snapshot
}

#[tokio::test]
async fn webhooks_refuse_a_template_and_missing_rights_do_not() {
    let user = "User \"system:serviceaccount:ingress-daemonset-system:ingress-daemonset-operator\"";
    let lacks = format!("{user} cannot patch resource \"deployments\" in API group \"apps\" in the namespace \"edge\"");
    let denies = "admission webhook \"images.example.com\" denied the request: no tag".to_owned();
    for (message, refused) in [(lacks, false), (denies, true)] {
        let mut answer = failure(403, "Forbidden", false);
        answer["message"] = message.clone().into();
        let (client, task) = server(vec![("PATCH", format!("{DEPLOYMENT}?&dryRun=All"), None, 403, answer)]);
        let (mut memory, mut snapshot) = (Memory::of("0a1b2c3d-0000"), with_deployment());
        assert_eq!(try_template(&client, &mut memory, &mut snapshot).await, refused, "{message}");
        assert_eq!((snapshot.template_refusal.is_some(), memory.untried), (refused, u32::from(!refused)), "{message}");
        drop(client);
        task.await.unwrap();
    }
}

#[tokio::test]
async fn a_template_is_tried_on_an_existing_deployment_without_change() {
    let mut snapshot = with_deployment();
    let (client, task) = server(vec![("PATCH", format!("{DEPLOYMENT}?&dryRun=All"), None, 200, deployment("9"))]);
    let mut memory = Memory::of("0a1b2c3d-0000");
    assert!(try_template(&client, &mut memory, &mut snapshot).await);
    assert_eq!(memory.tried, Some(1));
    drop(client);
    task.await.unwrap();
}

#[tokio::test]
async fn a_template_is_used_untried_after_six_failed_dry_runs() {
    let attempt = || ("POST", "/apis/apps/v1/namespaces/edge/deployments?&dryRun=All".to_owned(), None, 500, resource("8"));
    let (client, task) = server((0..6).map(|_| attempt()).collect());
    let (mut memory, mut snapshot) = (Memory::of("0a1b2c3d-0000"), snapshot());
    for passes in [false, false, false, false, false, true] {
        assert_eq!(try_template(&client, &mut memory, &mut snapshot).await, passes, "{}", memory.untried);
    }
    drop(client);
    task.await.unwrap();
}

#[test]
fn of_two_writes_the_later_one_is_waited_for() {
    use k8s_openapi::api::core::v1::Pod;
    use operator::watch::{Kind, Observer};
    let pod = |version: &str| -> Pod { serde_json::from_value(json!({"metadata": {"name": "p", "resourceVersion": version}})).unwrap() };
    let (mut memory, observer) = (Memory::default(), Observer::default());
    memory.expect(Kind::Pods, 7);
    memory.expect(Kind::Pods, 9);
    memory.expect(Kind::Pods, 8);
    observer.take(vec![pod("8")]);
    assert!(!memory.is_caught_up(&observer));
    observer.take(vec![pod("9")]);
    assert!(memory.is_caught_up(&observer));
}
