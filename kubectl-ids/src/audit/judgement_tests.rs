//! Histories that begin half-way.

use auditor::{Answer, Kind, Observation, Property};
use chrono::{DateTime, TimeDelta, Utc};
use crds::names;
use serde_json::{Value, json};

use super::Judge;

const UID8: &str = "0a1b2c3d";

/// The audit begins at second 1,000.
fn at(second: i64) -> DateTime<Utc> {
    DateTime::<Utc>::UNIX_EPOCH + TimeDelta::seconds(second)
}

fn seen(revision: u64, second: i64, kind: Kind, object: Value) -> Observation {
    Observation { revision, at: at(second), kind, deleted: false, object }
}

#[expect(clippy::needless_pass_by_value, reason = "values are built in the call, by `json!`")]
fn resource(name: &str, uid8: &str, budget: impl Into<Value>, grace: u64, grants: Value) -> Value {
    let budget: Value = budget.into();
    json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet",
        "metadata": { "name": name, "namespace": "web", "uid": format!("{uid8}-0000"), "generation": 1 },
        "spec": {
            "template": { "spec": { "containers": [{ "name": "nginx", "image": "nginx" }] } },
            "updateStrategy": { "rollingUpdate": { "maxUnavailableNodes": budget, "annotateDeploymentToDetach": { "gracePeriodSeconds": grace } } },
        },
        "status": {
            "nodes": { "desired": 4, "current": 4, "updated": 0, "ready": 4, "available": 4, "unavailable": 0, "degraded": 0, "detached": 0 },
            "rollout": { "nextId": 9, "grants": grants },
        },
    })
}

fn grants(nodes: &[&str]) -> Value {
    let one = |node: &&str| {
        let grant = json!({ "id": 5, "nodeUID": "", "kind": "Update", "revision": "b", "marks": { "deployment": true }, "grantedAt": 990 });
        ((*node).to_owned(), grant)
    };
    nodes.iter().map(one).collect::<serde_json::Map<_, _>>().into()
}

fn deployment(node: &str, token: &str, revision: &str) -> Value {
    json!({
        "metadata": {
            "name": format!("edge-{node}"), "uid": format!("deployment-{node}"), "generation": 1,
            "labels": { names::TOKEN_LABEL: format!("{UID8}.{token}"), names::RESOURCE_LABEL: UID8 },
            "annotations": { names::NODE_NAME_ANNOTATION: node },
        },
        "spec": { "replicas": 0, "template": { "metadata": { "labels": { names::REVISION_LABEL: revision } } } },
        "status": { "observedGeneration": 1 },
    })
}

fn node(name: &str) -> Value {
    json!({ "metadata": { "name": name, "uid": format!("node-{name}"), "labels": { names::member_label(UID8): "serving" } } })
}

/// Two nodes: n1 was claimed at second 995 by grant 5, n2 has no grant.
fn half_way(budget: impl Into<Value>, grace: u64) -> Judge {
    half_way_with(budget, grace, &["n1"])
}

/// The same, with grants for these nodes.
fn half_way_with(budget: impl Into<Value>, grace: u64, granted: &[&str]) -> Judge {
    let mut judge = Judge::new(None);
    // The status of a resource is newer than what it speaks of.
    let before = [
        (Kind::Node, node("n1")),
        (Kind::Node, node("n2")),
        (Kind::Deployment, deployment("n1", "5.Claimed.995", "a")),
        (Kind::Deployment, deployment("n2", "4.Closed.900", "a")),
        (Kind::IngressDaemonSet, resource("edge", UID8, budget, grace, grants(granted))),
    ];
    let before = (1..).zip(before).map(|(revision, (kind, object))| seen(revision, 1000, kind, object)).collect();
    assert_eq!(judge.take_in(before), 5);
    judge
}

fn found(judge: &mut Judge, observation: &Observation) -> Vec<Property> {
    judge.judge(observation, false).into_iter().map(|finding| finding.violation.property).collect()
}

#[test]
fn an_audit_counts_an_earlier_grace_from_its_token() {
    let updating = seen(11, 1003, Kind::Deployment, deployment("n1", "5.Updating.1003", "b"));
    assert_eq!(found(&mut half_way(1, 8), &updating), []);
    assert_eq!(found(&mut half_way(1, 20), &updating), [Property::DetachFirst]);
}

#[test]
fn manual_pod_changes_and_exceeded_budgets_are_found() {
    let mut judge = half_way(1, 8);
    let by_hand = seen(11, 1001, Kind::Deployment, deployment("n2", "4.Closed.900", "b"));
    assert_eq!(found(&mut judge, &by_hand), [Property::NoBypass]);
    let claimed = seen(12, 1002, Kind::Deployment, deployment("n2", "6.Claimed.1002", "b"));
    assert_eq!(found(&mut judge, &claimed), [Property::Budget]);
    assert_eq!(judge.judged, 2);
}

#[test]
fn a_node_that_became_unready_by_itself_is_nobodys_violation() {
    let mut judge = half_way(1, 8);
    // It has no ready pod, and wants one.
    let mut unready = deployment("n2", "4.Closed.900", "a");
    unready["spec"]["replicas"] = 1.into();
    let mut before = deployment("n2", "4.Closed.900", "a");
    before["spec"]["replicas"] = 1.into();
    judge.judge(&seen(11, 1001, Kind::Deployment, before), true);
    assert_eq!(found(&mut judge, &seen(12, 1002, Kind::Deployment, unready)), []);
}

#[test]
fn a_node_left_unready_by_the_operator_uses_the_budget() {
    let mut judge = half_way(1, 8);
    let of_one_pod = |token: &str, revision: &str| {
        let mut deployment = deployment("n1", token, revision);
        deployment["spec"]["replicas"] = 1.into();
        deployment
    };
    judge.judge(&seen(11, 1001, Kind::Deployment, of_one_pod("5.Claimed.995", "a")), true);
    assert_eq!(found(&mut judge, &seen(12, 1004, Kind::Deployment, of_one_pod("5.Updating.1004", "b"))), []);
    let closed = found(&mut judge, &seen(13, 1005, Kind::Deployment, of_one_pod("5.Closed.1005", "b")));
    assert_eq!(closed, [Property::CloseWhenComplete]);
    assert_eq!(found(&mut judge, &seen(14, 1006, Kind::Deployment, deployment("n2", "6.Claimed.1006", "a"))), [Property::Budget]);
}

/// What is found of changes that come one after the other.
fn found_in(judge: &mut Judge, changes: impl IntoIterator<Item = (Kind, Value)>) -> Vec<Vec<Property>> {
    (11..).zip(changes).map(|(revision, (kind, object))| found(judge, &seen(revision, 1001, kind, object))).collect()
}

#[test]
fn a_lowered_budget_binds_once_earlier_grants_have_ended() {
    for (two, one) in [(json!(2), json!(1)), (json!("50%"), json!("25%"))] {
        let lowered = |granted: &[&str]| (Kind::IngressDaemonSet, resource("edge", UID8, one.clone(), 8, grants(granted)));
        let changed = |node: &str, token: &str| (Kind::Deployment, deployment(node, token, "a"));
        let mut judge = half_way(two, 8);
        let before = [
            changed("n2", "6.Claimed.1001"),
            lowered(&["n1", "n2"]),
            changed("n1", "5.Closed.1001"),
            changed("n2", "6.Closed.1001"),
            lowered(&[]),
            changed("n1", "7.Claimed.1001"),
        ];
        assert!(found_in(&mut judge, before).iter().all(Vec::is_empty), "{one}");
        assert_eq!(found_in(&mut judge, [changed("n2", "8.Claimed.1001")]), [[Property::Budget]], "{one}");
    }
}

#[test]
fn a_budget_that_is_raised_allows_more_at_once() {
    for (one, two) in [(json!(1), json!(2)), (json!("25%"), json!("50%"))] {
        let raised = |granted: &[&str]| (Kind::IngressDaemonSet, resource("edge", UID8, two.clone(), 8, grants(granted)));
        let claimed = (Kind::Deployment, deployment("n2", "6.Claimed.1001", "a"));
        let found = found_in(&mut half_way(one, 8), [raised(&["n1"]), raised(&["n1", "n2"]), claimed]);
        assert!(found.iter().all(Vec::is_empty), "{two}: {found:?}");
    }
}

#[test]
fn grants_given_before_the_audit_may_exceed_the_budget() {
    for budget in [json!(1), json!("25%")] {
        let claimed = (Kind::Deployment, deployment("n2", "6.Claimed.1001", "a"));
        let mut judge = half_way_with(budget.clone(), 8, &["n1", "n2"]);
        assert_eq!(found_in(&mut judge, [claimed]), [[]], "{budget}");
    }
}

#[test]
fn a_late_change_is_taken_in_without_being_judged() {
    let mut judge = half_way(1, 20);
    let late = seen(6, 1001, Kind::Deployment, deployment("n2", "4.Closed.900", "b"));
    assert!(judge.judge(&late, true).is_empty());
    let same = seen(13, 1004, Kind::Deployment, deployment("n2", "4.Closed.900", "b"));
    assert_eq!(found(&mut judge, &same), [], "its template is no news any more");
}

#[test]
fn only_the_named_resource_is_judged() {
    let mut judge = Judge::new(Some("dns".into()));
    judge.take_in(vec![seen(1, 1000, Kind::IngressDaemonSet, resource("edge", UID8, 1, 8, json!({})))]);
    assert_eq!(judge.resources(), Vec::<String>::new());
    judge.judge(&seen(2, 1001, Kind::IngressDaemonSet, resource("dns", "ffffffff", 1, 8, json!({}))), false);
    assert_eq!(judge.resources(), ["dns"]);
    judge.judge(&seen(3, 1001, Kind::Deployment, deployment("n1", "1.New.1001", "a")), false);
    assert_eq!(judge.judge(&seen(4, 1002, Kind::Deployment, deployment("n1", "1.New.1001", "b")), false), []);
}

/// The node says so of the resource with this UID.
fn entry(uid8: &str, phase: &str) -> Value {
    let holders = json!({ uid8: { "id": 2, "phase": phase, "key": "detached", "time": 0 } }).to_string();
    json!({ "metadata": { "name": "n1", "uid": "node-n1", "annotations": { names::HOLDERS_ANNOTATION: holders } } })
}

#[test]
fn a_later_resource_is_judged_by_earlier_node_annotations() {
    let mut judge = Judge::new(Some("dns".into()));
    let changes = [
        (Kind::Node, entry("ffffffff", "Attached")),
        (Kind::IngressDaemonSet, resource("dns", "ffffffff", 1, 8, json!({}))),
        (Kind::Node, entry("ffffffff", "Detached")),
    ];
    let found = found_in(&mut judge, changes);
    assert!(found[2].contains(&Property::Monotone), "{found:?}");
}

#[test]
fn a_violation_is_attributed_only_to_its_own_resource() {
    let mut judge = half_way(1, 8);
    let of_dns = |revision: &str| {
        let mut object = deployment("n2", "4.Closed.900", revision);
        object["metadata"]["uid"] = "another".into();
        object["metadata"]["labels"] = json!({ names::TOKEN_LABEL: "ffffffff.4.Closed.900", names::RESOURCE_LABEL: "ffffffff" });
        object
    };
    judge.judge(&seen(11, 1001, Kind::IngressDaemonSet, resource("dns", "ffffffff", 1, 8, json!({}))), true);
    judge.judge(&seen(12, 1001, Kind::Deployment, of_dns("a")), true);
    let found = judge.judge(&seen(13, 1002, Kind::Deployment, of_dns("b")), false);
    let found: Vec<_> = found.iter().map(|finding| (finding.resource.as_str(), finding.violation.property)).collect();
    assert_eq!(found, [("dns", Property::NoBypass)]);
}

/// A health checker says of a resource of this namespace and name that it has no Deployment on n2.
fn answer(namespace: &str, name: &str) -> Answer {
    let body = json!({
        "service": { "namespace": namespace, "name": name }, "node": "n2", "serviceProxyHealthy": false, "reason": "DeploymentMissing",
        "desired": 0, "localEndpoints": 0, "viewAgeSeconds": 0,
    });
    Answer::read(at(1020), 10080, 503, &body.to_string()).expect("an answer")
}

#[test]
fn an_answer_is_judged_by_its_health_checkers_resource() {
    let mut judge = half_way(1, 8);
    // Deleted and made again under its name: the former one is still judged.
    judge.judge(&seen(11, 1001, Kind::IngressDaemonSet, resource("edge", "00000000", 1, 8, json!({}))), false);
    for (uid8, namespace, name, heard) in [
        (UID8, "web", "edge", 1),
        ("00000000", "web", "edge", 2),
        ("ffffffff", "web", "edge", 2),
        (UID8, "dns", "edge", 2),
        (UID8, "web", "dns", 2),
    ] {
        judge.hear(uid8, answer(namespace, name));
        assert_eq!(judge.heard, heard, "{uid8} {namespace}/{name}");
    }
    // Each among its own: the former one has a Deployment there, the new one has none.
    let accused: Vec<_> = judge.judge_answers(at(1100)).into_iter().map(|finding| finding.violation.property).collect();
    assert_eq!(accused, [Property::HealthVerdict]);
}
