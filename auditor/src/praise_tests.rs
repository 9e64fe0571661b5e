//! When a revision is called proved, and the one that all nodes run.
#![allow(clippy::needless_pass_by_value)] // values are built in the call, by `json!`

use chrono::TimeDelta;
use crds::names;
use serde_json::{Value, json};

use super::{
    Expectations, Kind, Property,
    history_tests::{Story, deployment, going, incomplete, pod, zoned},
    proof_tests::{asked_for, at_version, everywhere, judged, judged_late, node_with, of, proving, updates},
};

/// Version 2 on one node after the other, by the book: each takes 15 s.
fn updated(nodes: &[&str]) -> Story {
    let (old, new) = (of(1), of(2));
    let one = |story: Story, (number, name): (usize, &&str)| {
        let (second, id) = (20 * i64::try_from(number).unwrap() + 11, u64::from(name.as_bytes()[1] - b'0') + 1);
        let token = |phase: &str, after: i64| format!("{id}.{phase}.{}", second + after);
        let proved = if number > 0 { json!({ "proved": true, "proof": 60 }) } else { json!({}) };
        story
            .see(second, Kind::IngressDaemonSet, proving(proved, updates(&[name])))
            .see(second, Kind::Deployment, deployment(name, &token("Claimed", 0), &old))
            .see(second + 10, Kind::Deployment, incomplete(deployment(name, &token("Updating", 10), &new)))
            .see(second + 11, Kind::Pod, going(pod(name, &old, true)))
            .gone(second + 12, Kind::Pod, going(pod(name, &old, false)))
            .see(second + 13, Kind::Pod, pod(name, &new, true))
            .see(second + 14, Kind::Deployment, deployment(name, &token("Updating", 10), &new))
            .see(second + 15, Kind::Deployment, deployment(name, &token("Closed", 15), &new))
    };
    nodes.iter().enumerate().fold(asked_for(nodes), one)
}

/// Version 2 becomes the revision that all nodes run, in a write that says so.
fn becomes_current(change: impl Fn(&mut Value)) -> Value {
    let mut resource = proving(json!({ "proved": true, "proof": 60 }), json!({}));
    resource["status"]["revisions"]["current"] = of(2).into();
    change(&mut resource);
    resource
}

#[test]
fn a_revision_becomes_current_by_its_proof_alone() {
    // Attached at second 26.
    let story = || updated(&["n1"]).see(30, Kind::IngressDaemonSet, proving(json!({}), json!({})));
    let becomes = |second: i64, change: fn(&mut Value)| judged(&story().see(second, Kind::IngressDaemonSet, becomes_current(change)));
    assert_eq!(becomes(86, |_| {}), []);
    assert_eq!(becomes(84, |_| {}), [], "whole seconds are counted, and the watch may lag");
    assert_eq!(becomes(83, |_| {}), [Property::ProofFirst], "too early");
    let said = |course: Value| {
        let with = |resource: &mut Value| resource["status"]["rollout"]["course"] = course.clone();
        judged(&story().see(86, Kind::IngressDaemonSet, becomes_current(with)))
    };
    assert_eq!(said(json!({ "revision": of(2), "since": 11, "proof": 60 })), []);
    assert_eq!(said(json!({ "revision": of(2), "since": 11, "proof": 59 })), [Property::ProofFirst]);
    assert_eq!(said(json!({ "revision": of(1), "since": 11, "proof": 60, "proved": true })), [Property::ProofFirst]);
    assert_eq!(said(Value::Null), [Property::ProofFirst]);
    assert_eq!(becomes(86, |resource| resource["status"]["rollout"]["grants"] = updates(&["n1"])), [Property::ProofFirst], "n1 is updated");
    let fell = |resource: &mut Value, revision: String, falls: u32| {
        resource["status"]["rollout"]["suspects"] = json!({ "n1": { "nodeUID": "node-n1", "revision": revision, "falls": falls } });
    };
    assert_eq!(
        judged(&story().see(86, Kind::IngressDaemonSet, becomes_current(|resource| fell(resource, of(2), 2)))),
        [Property::ProofFirst]
    );
    assert_eq!(judged(&story().see(86, Kind::IngressDaemonSet, becomes_current(|resource| fell(resource, of(2), 1)))), []);
    assert_eq!(judged(&story().see(86, Kind::IngressDaemonSet, becomes_current(|resource| fell(resource, of(0), 2)))), []);
}

#[test]
fn a_revision_is_proved_only_after_serving_long_enough() {
    let proved = |second: i64| judged(&updated(&["n1"]).see(second, Kind::IngressDaemonSet, proving(json!({ "proved": true }), json!({}))));
    assert_eq!(proved(30), [Property::ProofFirst], "at the attach");
    assert_eq!((proved(83), proved(84)), (vec![Property::ProofFirst], vec![]));
    let at_once = |seconds: u64| {
        let story = updated(&["n1"]).see(30, Kind::IngressDaemonSet, proving(json!({ "proved": true }), json!({})));
        judged(&everywhere(story, |resource| resource["spec"]["updateStrategy"]["rollingUpdate"]["provenAfterSeconds"] = seconds.into()))
    };
    assert_eq!((at_once(10), at_once(0)), (vec![Property::ProofFirst], vec![]));
}

#[test]
fn proved_revisions_must_serve_again_after_their_last_node() {
    let said = |course: Value, grants: Value| proving(course, grants);
    let proved = || json!({ "proved": true, "proof": 60 });
    let story = |second: i64| {
        let story = updated(&["n1"]).with_node(zoned("n2", "a", None), &of(1)).see(90, Kind::IngressDaemonSet, said(proved(), json!({})));
        let story = story.see(91, Kind::IngressDaemonSet, said(proved(), updates(&["n2"])));
        let story = story.see(92, Kind::Deployment, deployment("n2", "3.Claimed.92", &of(1)));
        let story = story.see(102, Kind::Deployment, deployment("n2", "3.Updating.102", &of(2)));
        let story = story.see(106, Kind::Deployment, deployment("n2", "3.Closed.106", &of(2)));
        // That it stays proved is nothing new.
        let story = story.see(107, Kind::IngressDaemonSet, said(proved(), json!({})));
        judged(&story.see(second, Kind::IngressDaemonSet, becomes_current(|_| {})))
    };
    assert_eq!((story(163), story(164)), (vec![Property::ProofFirst], vec![]));
}

#[test]
fn only_updates_to_the_revision_delay_its_proof() {
    let story = |kind: &str, version: u32| {
        let mut grants = updates(&["n2"]);
        (grants["n2"]["kind"], grants["n2"]["revision"]) = (kind.into(), of(version).into());
        let story = updated(&["n1"]).with_node(zoned("n2", "a", None), &of(1));
        let story = story.see(50, Kind::IngressDaemonSet, proving(json!({}), grants));
        let story = story.see(51, Kind::Deployment, deployment("n2", "3.Claimed.51", &of(1)));
        let story = story.see(61, Kind::Deployment, deployment("n2", "3.Updating.61", &of(version)));
        let story = story.see(65, Kind::Deployment, deployment("n2", "3.Closed.65", &of(version)));
        let story = story.see(90, Kind::IngressDaemonSet, proving(json!({ "proved": true }), json!({})));
        story.violations(&Expectations::budget(4)).into_iter().filter(|property| *property == Property::ProofFirst).count()
    };
    assert_eq!((story("Update", 2), story("Repair", 2), story("Update", 3)), (1, 0, 0));
}

#[test]
fn a_first_installation_also_needs_its_proof_time() {
    let first = |second: i64| {
        let nothing = |resource: &mut Value| resource["status"]["revisions"]["current"] = "".into();
        let story = everywhere(asked_for(&["n1"]), nothing);
        judged(&story.see(second, Kind::IngressDaemonSet, becomes_current(|_| {})))
    };
    // Version 2 was asked for at second 10; that n1 does not run it the operator may not have seen yet.
    assert_eq!((first(67), first(68)), (vec![Property::ProofFirst], vec![]));
}

#[test]
fn no_serving_node_is_left_behind_with_another_revision() {
    let left = |second: i64, change: fn(&mut Value)| {
        let story = updated(&["n1"]).with_node(zoned("n2", "a", None), &of(1)).see(44, Kind::Node, node_with("n2", change));
        judged(&story.see(second, Kind::IngressDaemonSet, becomes_current(|_| {})))
    };
    // It was made late, at a second 1 that this history has after the others.
    assert_eq!(left(200, |_| {}), [Property::ProofFirst]);
    assert_eq!(left(110, |_| {}), [], "the operator may not know it yet");
    for (change, why) in [
        ((|node| node["metadata"]["annotations"][names::SKIP_ANNOTATION] = "web/ids".into()) as fn(&mut Value), "skipped"),
        (|node| node["status"]["conditions"][0]["status"] = "False".into(), "not ready"),
        (|node| node["spec"]["taints"] = json!([{ "key": "batch", "effect": "NoExecute" }]), "not chosen"),
    ] {
        assert_eq!(left(200, change), [], "{why}");
    }
}

#[test]
fn no_durations_are_judged_after_late_start_or_clock_reversal() {
    let hour = TimeDelta::hours(1);
    let mut story = updated(&["n1"]).see(30, Kind::IngressDaemonSet, proving(json!({ "proved": true }), json!({})));
    story.observations.last_mut().unwrap().at -= hour;
    assert_eq!(judged(&story), [], "by a clock that went back");
    let story = updated(&["n1"]).see(30, Kind::IngressDaemonSet, proving(json!({ "proved": true }), json!({})));
    assert_eq!(judged_late(&story), [], "by an audit that began late");
}

#[test]
fn from_afar_proofs_count_from_the_tokens_closing_time() {
    let afar = |second: i64| {
        let story = updated(&["n1"]).see(second, Kind::IngressDaemonSet, proving(json!({ "proved": true }), json!({})));
        story.violations(&Expectations { from_afar: true, ..Expectations::budget(4) })
    };
    assert_eq!((afar(73), afar(74)), (vec![Property::ProofFirst], vec![]));
    let mut story = updated(&["n1"]);
    story.observations.last_mut().unwrap().at += TimeDelta::seconds(10);
    let story = story.see(74, Kind::IngressDaemonSet, proving(json!({ "proved": true }), json!({})));
    assert_eq!(story.violations(&Expectations { from_afar: true, ..Expectations::budget(4) }), [], "it was seen late");
}

#[test]
fn a_revision_serving_while_pinned_needs_no_more_time() {
    let becomes = |pinned: bool| {
        let mut before = at_version(1, json!({}));
        before["spec"]["rollbackTo"] = json!({ "revision": 2 });
        before["status"]["rollout"]["course"] = json!({ "revision": of(if pinned { 2 } else { 3 }), "since": 0 });
        let story = Story::default().see(0, Kind::IngressDaemonSet, before);
        let story = story.with_node(zoned("n1", "a", None), &of(2)).see(200, Kind::IngressDaemonSet, proving(json!({}), json!({})));
        judged(&story.see(210, Kind::IngressDaemonSet, becomes_current(|_| {})))
    };
    assert_eq!((becomes(true), becomes(false)), (vec![], vec![Property::ProofFirst]));
}
