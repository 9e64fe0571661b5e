//! What people see, from fixed objects.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use crds::{
    IngressDaemonSet,
    ledger::{Grant, GrantReason, Ledger, RolloutState},
};
use insta::assert_snapshot;
use kubectl_ids::{forecast::Forecast, output::Style, status_view::StatusView, why::NodeExplanation};
use serde_json::{Value, json};

/// 2026-01-01T00:10:00Z.
const NOW: i64 = 1_767_226_200;
const PIPE: Style = Style { colour: false, size: None };
const TERMINAL: Style = Style { colour: true, size: Some((80, 24)) };

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({ "type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z" })
}

fn state(name: &str, phase: &str, since: &str, reason: &str, message: &str) -> Value {
    json!({ "name": name, "phase": phase, "since": since, "reason": reason, "message": message })
}

fn grant(id: u64, granted_at: i64) -> Grant {
    Grant { id, kind: GrantReason::Update, revision: "7c9d1f2a".into(), granted_at, ..Grant::default() }
}

fn resource(status: &Value) -> IngressDaemonSet {
    let object = json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1",
        "kind": "IngressDaemonSet",
        "metadata": { "name": "edge", "namespace": "web", "generation": 3, "uid": "0a1b2c3d-0000-4000-8000-000000000000" },
        "spec": {
            "podsPerNode": 2,
            "template": { "spec": { "containers": [{ "name": "nginx", "image": "nginx:1.29" }] } },
            "updateStrategy": { "rollingUpdate": { "maxUnavailableNodes": "50%", "steps": [{ "nodes": 1, "pause": true }, { "nodes": "50%" }] } },
        },
        "status": status,
    });
    serde_json::from_value(object).unwrap()
}

/// One node under way, one that waits, one in trouble, one done.
fn rolling() -> IngressDaemonSet {
    let rollout = RolloutState { revision: "7c9d1f2a".into(), steps_done: 1, ..RolloutState::default() };
    let grants = [("n3".to_owned(), grant(8, NOW - 15))].into();
    let ledger = Ledger { next_id: 9, grants, rollout_state: Some(rollout), ..Ledger::default() };
    resource(&json!({
        "observedGeneration": 3,
        "revisions": { "current": "5b0e8a11", "update": "7c9d1f2a" },
        "nodes": { "desired": 4, "current": 4, "updated": 1, "ready": 3, "available": 2, "unavailable": 2, "degraded": 0, "detached": 1 },
        "conditions": [
            condition("Valid", "True", "Accepted", "the spec is valid"),
            condition("Available", "True", "MinimumNodesAvailable", "2 of 4 nodes serve"),
            condition("Progressing", "True", "RollingOut", "1 of 4 nodes run the newest revision, 1 under way"),
            condition("Degraded", "True", "CrashLoop", "node n4: 1 of 2 pods ready; CrashLoopBackOff: back-off 40s"),
            condition("Paused", "False", "NotPaused", "spec.paused is false"),
            condition("Ready", "False", "RollingOut", "1 of 4 nodes run the newest revision, 1 under way"),
            condition("Reconciling", "True", "RollingOut", "1 of 4 nodes run the newest revision, 1 under way"),
        ],
        "eta": "2026-01-01T00:12:30Z",
        "blocked": { "reason": "Budget", "object": "IngressDaemonSet/edge", "since": "2026-01-01T00:09:00Z", "message": "1 unavailable nodes use up the budget" },
        "nodeStates": [
            state("n4", "Unavailable", "2026-01-01T00:05:18Z", "CrashLoop", "1 of 2 pods ready; CrashLoopBackOff: back-off 40s"),
            state("n3", "Detaching", "2026-01-01T00:09:48Z", "GracePeriod", "marked: the load balancer has until 2026-01-01T00:10:03Z to take it out"),
            state("n1", "Waiting", "2026-01-01T00:09:00Z", "Budget", "waiting for a free slot: 2 of 2 in use (1 updating, 1 unavailable)"),
        ],
        "rollout": ledger,
    }))
}

fn complete() -> IngressDaemonSet {
    resource(&json!({
        "observedGeneration": 3,
        "revisions": { "current": "7c9d1f2a", "update": "7c9d1f2a" },
        "nodes": { "desired": 4, "current": 4, "updated": 4, "ready": 4, "available": 4, "unavailable": 0, "degraded": 0, "detached": 0 },
        "conditions": [
            condition("Progressing", "False", "Complete", "4 of 4 nodes run the newest revision, 0 under way"),
            condition("Ready", "True", "Complete", "all 4 nodes serve the wanted revision"),
        ],
        "rollout": Ledger { next_id: 9, ..Ledger::default() },
    }))
}

#[test]
fn a_rollout_under_way_is_readable_in_a_pipe() {
    assert_snapshot!(StatusView::of(&rolling()).render(PIPE, NOW));
}

#[test]
fn a_terminal_of_80_columns_gets_colours_and_fitting_lines() {
    let text = StatusView::of(&rolling()).render(TERMINAL, NOW);
    assert_snapshot!(text.replace('\x1b', "ESC"));
}

#[test]
fn a_finished_rollout_has_no_table() {
    let view = StatusView::of(&complete());
    assert!(view.complete && view.stalled.is_none());
    assert_snapshot!(view.render(PIPE, NOW));
}

#[test]
fn a_resource_that_no_operator_has_seen_says_so() {
    assert_snapshot!(StatusView::of(&resource(&json!({}))).render(PIPE, NOW));
}

#[test]
fn programs_get_the_same_as_json() {
    assert_snapshot!(serde_json::to_string_pretty(&StatusView::of(&rolling())).unwrap());
}

#[test]
fn output_that_cannot_be_rewritten_gets_a_line_per_change() {
    let (before, after) = (StatusView::of(&rolling()), StatusView::of(&complete()));
    assert_eq!(before.changes(Some(&before)), Vec::<String>::new());
    assert_snapshot!(format!("{}\n--\n{}", before.changes(None).join("\n"), after.changes(Some(&before)).join("\n")));
}

/// Containers and webhooks write messages, too.
#[test]
fn a_message_of_several_lines_adds_no_line() {
    let hostile = "x\nn9  Idle";
    let resource = resource(&json!({
        "conditions": [condition("Degraded", "True", "CrashLoop", hostile)],
        "blocked": { "reason": "Budget", "object": "IngressDaemonSet/edge", "since": "2026-01-01T00:09:00Z", "message": hostile },
        "nodeStates": [state("n4", "Unavailable", "2026-01-01T00:05:18Z", "CrashLoop", hostile)],
    }));
    let view = StatusView::of(&resource);
    let why = NodeExplanation {
        phase: "Unavailable".into(),
        since: None,
        reason: ("CrashLoop".into(), hostile.into()),
        details: vec![("Pod", hostile.into())],
    };
    let invalid = Forecast { invalid: vec![hostile.into()], ..Forecast::default() };
    let remarked = Forecast { remark: Some(("TaintNotAllowed".into(), hostile.into())), ..Forecast::default() };
    for (text, times) in [
        (view.render(PIPE, NOW), 3),
        (view.changes(None).join("\n"), 2),
        (why.render(&resource, "n4", PIPE, NOW), 2),
        (invalid.render(PIPE), 1),
        (remarked.render(PIPE), 1),
    ] {
        assert_eq!(text.matches("n9  Idle").count(), times, "{text}");
        assert!(!text.lines().any(|line| line.starts_with("n9")), "{text}");
    }
}
