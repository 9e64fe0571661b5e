//! Answers of health checkers, against what was there.

use crds::{names, token::Phase};
use serde_json::{Value, json};

use super::{
    Answer, Expectations, Kind, Property,
    history_tests::{Story, UID8, deployment, node, pod, resource},
};

/// A resource whose nodes serve since second 1.
fn serving() -> Story {
    Story::default().see(0, Kind::IngressDaemonSet, resource(false, json!({}))).and(Story::two_nodes())
}

/// The same; from second 100 to 200 the token of `n1` says that it is updated.
fn updated() -> Story {
    serving()
        .see(100, Kind::Deployment, deployment("n1", "2.Claimed.100", "a"))
        .see(110, Kind::Deployment, deployment("n1", "2.Updating.110", "a"))
        .see(200, Kind::Deployment, deployment("n1", "2.Closed.200", "a"))
}

fn found(story: &Story) -> Vec<Property> {
    let mut found = story.violations(&Expectations::budget(1));
    // Only `Closed` of a Deployment that nobody changed is of interest here.
    found.retain(|property| *property == Property::HealthVerdict);
    found
}

fn unready() -> Value {
    pod("n1", "a", false)
}

#[test]
fn answers_that_follow_the_token_violate_nothing() {
    let story = updated()
        .answers(50, "Serving", 3)
        .answers(101, "DetachRequested", 0)
        .answers(150, "Updating", 30)
        .answers(202, "Serving", 1)
        .answers(260, "Serving", 50);
    assert_eq!(found(&story), []);
}

#[test]
fn answering_200_throughout_an_update_is_found_once() {
    assert_eq!(found(&updated().answers(150, "Serving", 3).answers(151, "Serving", 4)), [Property::HealthVerdict]);
}

#[test]
fn an_answer_may_be_as_old_as_it_says() {
    assert_eq!(found(&updated().answers(150, "Serving", 60)), [], "it was lost to the API and stays as it was");
    assert_eq!(found(&updated().answers(150, "Serving", 30)), [Property::HealthVerdict]);
}

#[test]
fn answers_are_judged_only_after_lagging_watches_catch_up() {
    let one_lags = serving()
        .see(100, Kind::Deployment, deployment("n1", "2.Claimed.100", "a"))
        .see(130, Kind::IngressDaemonSet, resource(false, json!({})))
        .see(110, Kind::Deployment, deployment("n1", "2.Updating.110", "a"))
        .see(200, Kind::Deployment, deployment("n1", "2.Closed.200", "a"));
    assert_eq!(found(&one_lags.answers(112, "Updating", 2)), []);
}

#[test]
fn nodes_begin_to_serve_only_on_a_recent_view() {
    let beginning = |age| updated().answers(99, "Serving", 1).answers(205, "Updating", 20).answers(206, "Serving", age);
    assert_eq!(found(&beginning(5)), []);
    assert_eq!(found(&beginning(14)), [Property::HealthVerdict], "it was 503 a second before");
}

#[test]
fn a_view_may_age_after_serving_has_begun() {
    assert_eq!(found(&updated().answers(199, "Updating", 5).answers(240, "Serving", 38)), []);
}

#[test]
fn a_reason_that_was_at_no_moment_true_is_found() {
    for reason in
        ["DeploymentMissing", "NodeBeingDeleted", "NeverComplete", "TakenOutByHand", "NoReplicasWanted", "PodsNotReady", "Updating"]
    {
        assert_eq!(found(&serving().answers(50, reason, 3)), [Property::HealthVerdict], "{reason}");
    }
    for reason in ["NotSynced", "ProbesFailHere", "AnotherRelease"] {
        assert_eq!(found(&serving().answers(50, reason, 3)), [], "{reason}");
    }
}

#[test]
fn a_reason_inconsistent_with_its_answer_is_found() {
    let during = || updated().answers(150, "Serving", 60);
    assert_eq!(found(&during().with_phase(Phase::Closed)), []);
    assert_eq!(found(&during().with_phase(Phase::Updating)), [Property::HealthVerdict]);
    let unready = updated().see(120, Kind::Pod, unready()).answers(150, "PodsNotReady", 60);
    assert_eq!(found(&unready.with_phase(Phase::Updating)), [Property::HealthVerdict], "the token comes first");
}

#[test]
fn a_view_that_is_called_stale_is() {
    assert_eq!(found(&serving().answers(50, "StaleView", 11)), []);
    assert_eq!(found(&serving().answers(50, "StaleView", 3)), [Property::HealthVerdict]);
}

#[test]
fn unready_pods_keep_a_node_serving_only_if_disowned() {
    let mut disowned = unready();
    disowned["status"]["conditions"] = json!([{ "type": "Ready", "status": "False" }, { "type": "ContainersReady", "status": "True" }]);
    let unready = serving().see(30, Kind::Pod, unready());
    assert_eq!(found(&unready.answers(50, "Serving", 3)), [Property::HealthVerdict]);
    let disowned = || serving().see(30, Kind::Pod, disowned.clone());
    assert_eq!(found(&disowned().answers(50, "Serving", 3)), []);
    assert_eq!(found(&disowned().answers(49, "PodsNotReady", 3).answers(50, "Serving", 3)), [Property::HealthVerdict]);
}

#[test]
fn fewer_pods_are_enough_where_the_resource_says_so() {
    let mut told = resource(false, json!({}));
    told["spec"]["healthChecker"] = json!({ "readyPolicy": { "type": "AtLeast", "minReady": 1 } });
    let mut wants_two = deployment("n1", "1.Closed.1", "a");
    wants_two["spec"]["replicas"] = 2.into();
    let all = serving().see(20, Kind::Deployment, wants_two.clone());
    assert_eq!(found(&all.answers(50, "Serving", 3)), [Property::HealthVerdict]);
    let one = Story::default().see(0, Kind::IngressDaemonSet, told).and(Story::two_nodes()).see(20, Kind::Deployment, wants_two);
    assert_eq!(found(&one.answers(50, "Serving", 3)), []);
}

#[test]
fn a_node_that_is_about_to_go_does_not_serve() {
    let mut going = node("n1", None);
    going["spec"] = json!({ "taints": [{ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" }] });
    let story = || serving().see(30, Kind::Node, going.clone());
    assert_eq!(found(&story().answers(50, "NodeBeingDeleted", 3)), []);
    assert_eq!(found(&story().answers(50, "Serving", 3)), [], "its health checker may not read Nodes");
    let binding = json!({ "metadata": { "name": "checker", "uid": "b", "labels": { names::RESOURCE_LABEL: UID8 } } });
    let bound = serving().see(20, Kind::ClusterRoleBinding, binding).see(30, Kind::Node, going);
    assert_eq!(found(&bound.answers(50, "Serving", 3)), [Property::HealthVerdict]);
}

#[test]
fn only_health_checkers_are_heard() {
    let at = chrono::DateTime::UNIX_EPOCH;
    let body = r#"{"service":{"namespace":"web","name":"ids"},"localEndpoints":1,"serviceProxyHealthy":true,"reason":"Serving",
        "desired":1,"phase":"Closed","grant":7,"revision":"a","node":"n1","since":"2026-01-02T03:04:06Z","viewAgeSeconds":4}"#;
    let answer = Answer::read(at, 9000, 200, body).expect("a health checker");
    assert_eq!((answer.serving, answer.reason.as_str(), answer.age, answer.node.as_str()), (true, "Serving", Some(4), "n1"));
    let proxy = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"ServiceUnavailable","code":503}"#;
    assert_eq!(Answer::read(at, 9000, 503, proxy), None);
    assert_eq!(Answer::read(at, 9000, 200, "<html>"), None);
}
