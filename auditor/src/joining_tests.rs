//! Nodes that join while a revision proves itself.

use crds::{hash, names};
use serde_json::{Value, json};

use super::{
    Kind, Property, TOUCH_ANNOTATION, TOUCHED,
    history_tests::{Story, UID8, deployment},
    proof_tests::{everywhere, given, judged, judged_late, node_with, of, proving, template, updates},
};

/// A node whose Deployment is made at second 200 with this version.
fn joins(story: Story, version: u32, change: impl Fn(&mut Value)) -> Story {
    let mut node = node_with("n5", |node| node["metadata"]["labels"][names::member_label(UID8)] = "joining".into());
    change(&mut node);
    story.see(199, Kind::Node, node).see(200, Kind::Deployment, deployment("n5", "9.New.200", &of(version)))
}

#[test]
fn a_node_that_joins_gets_a_proved_revision() {
    let joining = |version: u32| judged(&joins(given(&["n1"]), version, |_| {}));
    assert_eq!((joining(2), joining(1), joining(3)), (vec![Property::JoinsCurrent], vec![], vec![]));
    let turned = joins(given(&["n1"]), 1, |_| {}).see(201, Kind::Deployment, deployment("n5", "9.New.200", &of(2)));
    assert_eq!(judged(&turned), [Property::JoinsCurrent], "nor does it change to one");
    let labelled = joins(given(&["n1"]), 2, |_| {}).see(201, Kind::Deployment, deployment("n5", "9.New.201", &of(2)));
    assert_eq!(judged(&labelled).iter().filter(|property| **property == Property::JoinsCurrent).count(), 1, "it is found once");
}

#[test]
fn nodes_join_with_the_newest_if_nothing_needs_proof() {
    let label = names::member_label(UID8);
    assert_eq!(judged(&joins(given(&["n1"]), 2, |node| node["metadata"]["labels"][&label] = "serving".into())), []);
    let other = |change: fn(&mut Value)| judged(&everywhere(joins(given(&["n1"]), 2, |_| {}), change));
    assert_eq!(other(|resource| resource["status"]["revisions"]["current"] = "".into()), []);
    assert_eq!(other(|resource| resource["status"]["revisions"]["current"] = of(2).into()), []);
    assert_eq!(other(|resource| resource["spec"]["rollbackTo"] = json!({ "revision": 2 })), []);
    assert_eq!(other(|resource| resource["spec"]["updateStrategy"]["rollingUpdate"]["provenAfterSeconds"] = 0.into()), []);
    let proved = given(&["n1"]).see(100, Kind::IngressDaemonSet, proving(json!({ "proved": true }), json!({})));
    assert_eq!(judged(&joins(proved, 2, |_| {})), []);
    let granted = given(&["n1"]).see(101, Kind::IngressDaemonSet, proving(json!({}), updates(&["n5"])));
    assert_eq!(judged(&joins(granted, 2, |_| {})), [], "its Deployment is made anew amid its update");
    let by_hand = |node: &mut Value| node["metadata"]["annotations"][TOUCH_ANNOTATION] = TOUCHED.into();
    assert_eq!(judged(&joins(given(&["n1"]), 2, by_hand)), []);
    let orphaned = given(&["n1"]).see(199, Kind::Node, node_with("n5", |node| node["metadata"]["labels"] = json!({})));
    let orphaned = orphaned.see(200, Kind::Deployment, deployment("n5", "9.Closed.200", &of(2)));
    assert_eq!(judged(&orphaned), [], "it is made for pods that are there");
}

#[test]
fn nodes_join_with_the_newest_if_rollback_is_impossible() {
    let ports = |seen: &mut Value| {
        let port = seen["spec"]["template"]["spec"]["containers"][0]["image"] == "nginx:2";
        seen["spec"]["healthCheckNodePorts"] = if port { json!([10080]) } else { json!([]) };
    };
    assert_eq!(judged(&everywhere(joins(given(&["n1"]), 2, |_| {}), ports)), [Property::JoinsCurrent]);
    // The template before it has the port that health checkers are to have now.
    let mut story = everywhere(joins(given(&["n1"]), 2, |_| {}), ports);
    let mut former = template(1);
    former["spec"]["hostNetwork"] = true.into();
    former["spec"]["containers"][0]["ports"] = json!([{ "containerPort": 10080 }]);
    let revision = hash::revision(&former);
    for seen in story.observations.iter_mut().filter(|seen| seen.kind == Kind::IngressDaemonSet) {
        seen.object["status"]["revisions"]["current"] = revision.clone().into();
        if seen.object["spec"]["template"] == template(1) {
            seen.object["spec"]["template"] = former.clone();
        }
    }
    assert_eq!(judged(&story), []);
    let mut other = proving(json!({}), json!({}));
    other["status"]["revisions"]["current"] = "b".into();
    let unknown = joins(given(&["n1"]).see(50, Kind::IngressDaemonSet, other), 2, |_| {});
    assert_eq!(judged(&unknown), [], "what it was nobody has seen");
}

#[test]
fn a_node_may_join_with_a_recently_allowed_revision() {
    let until = |second: i64, change: fn(&mut Value)| {
        let mut off = proving(json!({}), json!({}));
        change(&mut off);
        let story = given(&["n1"]).see(21, Kind::IngressDaemonSet, off).see(second, Kind::IngressDaemonSet, proving(json!({}), json!({})));
        judged(&joins(story, 2, |_| {}))
    };
    let pinned = |resource: &mut Value| {
        resource["spec"]["rollbackTo"] = json!({ "revision": 2 });
        resource["spec"]["template"] = template(3);
    };
    for (change, why) in [
        ((|resource| resource["spec"]["updateStrategy"]["rollingUpdate"]["provenAfterSeconds"] = 0.into()) as fn(&mut Value), "off"),
        (|resource| resource["status"]["revisions"]["current"] = "".into(), "wiped"),
        (pinned, "pinned to that revision"),
    ] {
        let found = [until(79, change), until(80, change), until(81, change)];
        assert_eq!(found, [vec![Property::JoinsCurrent], vec![Property::JoinsCurrent], vec![]], "{why}");
    }
}

#[test]
fn a_late_audit_judges_no_node_joining_at_once() {
    let story = joins(given(&["n1"]), 2, |_| {});
    assert_eq!((judged(&story), judged_late(&story)), (vec![Property::JoinsCurrent], vec![]));
}
