//! The `ServiceAccount` that a resource names for its health checkers: asked about, never bound.

use crate::{Exchange, failure, server, snapshot};
use operator::rollout::{Memory, ask_rights};
use planner::{Snapshot, spec::node_rights::NodeRights};
use serde_json::{Value, json};
use std::sync::Arc;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews?";

/// Namespace, verb, group and resource of each question, in their order.
const ASKED: [(Option<&str>, &str, &str, &str); 6] = [
    (Some("edge"), "list", "apps", "deployments"),
    (Some("edge"), "watch", "apps", "deployments"),
    (Some("edge"), "list", "", "pods"),
    (Some("edge"), "watch", "", "pods"),
    (None, "list", "", "nodes"),
    (None, "watch", "", "nodes"),
];

fn naming(account: Option<&str>) -> Snapshot {
    let mut snapshot = snapshot();
    snapshot.resource.spec.health_check_node_ports = vec![10080];
    snapshot.resource.spec.health_checker = account.map(|name| serde_json::from_value(json!({"serviceAccountName": name})).unwrap());
    snapshot
}

/// The questions, and answers that deny those about `denied`.
fn reviews(denied: &str) -> Vec<Exchange> {
    let exchange = |(namespace, verb, group, resource): (Option<&str>, &str, &str, &str)| {
        let mut about = json!({"verb": verb, "group": group, "resource": resource});
        if let Some(namespace) = namespace {
            about["namespace"] = namespace.into();
        }
        let groups = ["system:serviceaccounts", "system:serviceaccounts:edge", "system:authenticated"];
        let spec = json!({"user": "system:serviceaccount:edge:checker", "groups": groups, "resourceAttributes": about});
        let review = |more: Value| json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {}, "spec": spec, "status": more});
        let mut asked = review(Value::Null);
        asked.as_object_mut().unwrap().remove("status");
        ("POST", REVIEWS.to_owned(), Some(asked), 201, review(json!({"allowed": resource != denied})))
    };
    ASKED.map(exchange).into()
}

/// Rights that are missing, after the server has seen exactly these requests.
async fn lacks(snapshot: &mut Snapshot, memory: &mut Memory, expected: Vec<Exchange>) -> Vec<String> {
    let (client, task) = server(expected);
    ask_rights(&client, memory, snapshot).await;
    drop(client);
    task.await.unwrap();
    snapshot.account_lacks.clone()
}

#[tokio::test]
async fn rights_of_a_named_account_are_reviewed_periodically() {
    let (mut snapshot, mut memory) = (naming(Some("checker")), Memory::of("0a1b2c3d-0000"));
    assert_eq!(lacks(&mut snapshot, &mut memory, reviews("nodes")).await, ["list nodes", "watch nodes"]);
    assert_eq!(lacks(&mut naming(Some("checker")), &mut memory, vec![]).await, ["list nodes", "watch nodes"], "it is remembered");
    // Half a minute later somebody has bound it.
    memory.account.as_mut().unwrap().ask_again = std::time::Instant::now();
    assert_eq!(lacks(&mut snapshot, &mut memory, reviews("")).await, [""; 0]);
    assert_eq!(lacks(&mut naming(Some("checker")), &mut memory, vec![]).await, [""; 0]);
}

#[tokio::test]
async fn without_an_answer_the_accounts_last_review_counts() {
    let refused = || vec![("POST", REVIEWS.to_owned(), None, 403, failure(403, "Forbidden", false))];
    let (mut snapshot, mut memory) = (naming(Some("checker")), Memory::of("0a1b2c3d-0000"));
    assert_eq!(lacks(&mut snapshot, &mut memory, refused()).await, [""; 0]);
    memory.account = None;
    assert_eq!(lacks(&mut snapshot, &mut memory, reviews("deployments")).await.len(), 2);
    memory.account.as_mut().unwrap().ask_again = std::time::Instant::now();
    assert_eq!(lacks(&mut snapshot, &mut memory, refused()).await, ["list deployments.apps", "watch deployments.apps"]);
    memory.account.as_mut().unwrap().ask_again = std::time::Instant::now();
    assert_eq!(lacks(&mut naming(Some("other")), &mut memory, refused()).await, [""; 0], "another account");
}

#[tokio::test]
async fn no_account_is_reviewed_without_a_name_or_health_ports() {
    let mut without_ports = naming(Some("checker"));
    without_ports.resource.spec.health_check_node_ports.clear();
    let mut of_the_original = naming(Some("default"));
    of_the_original.resource.spec.health_checker =
        serde_json::from_value(json!({"image": "mumoshu/ingress-daemonset-controller:latest", "serviceAccountName": "default"})).unwrap();
    for mut snapshot in [naming(None), without_ports, of_the_original] {
        assert_eq!(lacks(&mut snapshot, &mut Memory::of("0a1b2c3d-0000"), vec![]).await, [""; 0]);
    }
}

#[test]
fn reviewed_rights_equal_those_of_the_health_checker_roles() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/10-rbac.yaml");
    let objects: Vec<Value> = serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut granted = Vec::new();
    for (role, everywhere) in [(crds::names::HEALTH_CHECKER_ROLE, false), (crds::names::HEALTH_CHECKER_NODE_ROLE, true)] {
        let role = objects.iter().find(|object| object["kind"] == "ClusterRole" && object["metadata"]["name"] == role).unwrap();
        for rule in role["rules"].as_array().unwrap() {
            for verb in rule["verbs"].as_array().unwrap() {
                let text = |value: &Value| value.as_str().unwrap().to_owned();
                granted.push((text(verb), text(&rule["apiGroups"][0]), text(&rule["resources"][0]), everywhere));
            }
        }
    }
    let asked = |snapshot: &Snapshot| {
        planner::objects::health_checker::needed(snapshot)
            .map(|(verb, group, resource, all)| (verb.to_owned(), group.to_owned(), resource.to_owned(), all))
            .collect::<Vec<_>>()
    };
    let mut snapshot = snapshot();
    assert_eq!(asked(&snapshot), granted);
    // Where health checkers may not read Nodes, the right to is not missed.
    snapshot.node_rights = Arc::new(NodeRights { readers: vec![], ..NodeRights::default() });
    granted.retain(|(.., everywhere)| !everywhere);
    assert_eq!(asked(&snapshot), granted);
}
