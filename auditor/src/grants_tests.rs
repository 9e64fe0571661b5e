//! When nothing may be begun, and how many at once in a domain.
#![allow(clippy::needless_pass_by_value)] // values are built in the call, by `json!`

use chrono::DateTime;
use serde_json::{Value, json};

use super::{
    Expectations, Kind, Property, Share, TOUCH_ANNOTATION, TOUCHED,
    history_tests::{Story, deployment, node, of_one, resource},
};

/// Seconds from 1970 to a day in the middle of a month; the windows are of that day.
fn at(time: &str) -> i64 {
    DateTime::parse_from_rfc3339(&format!("2026-03-12T{time}Z")).unwrap().timestamp()
}

fn grant(kind: &str) -> Value {
    json!({ "n1": { "id": 2, "kind": kind, "revision": "b", "grantedAt": 0 } })
}

/// With these windows: open from 02:00 to 03:00, but not from 02:30 to 02:40.
fn in_windows(grants: Value) -> Value {
    let mut resource = resource(false, grants);
    resource["spec"]["updateStrategy"]["rollingUpdate"]["windows"] = json!([
        { "schedule": "0 2 * * *", "duration": "1h", "timeZone": "UTC" },
        { "schedule": "30 2 * * *", "duration": "10m", "timeZone": "UTC", "deny": true },
    ]);
    resource
}

fn granted_at(time: &str, kind: &str) -> Vec<Property> {
    let (empty, given) = (in_windows(json!({})), in_windows(grant(kind)));
    let story = Story::default().see(at("00:00:00"), Kind::IngressDaemonSet, empty).see(at(time), Kind::IngressDaemonSet, given);
    story.violations(&of_one())
}

#[test]
fn an_update_granted_while_windows_are_closed_is_found() {
    for time in ["01:00:00", "01:59:54", "02:30:11", "02:35:00", "03:00:11", "23:00:00"] {
        assert_eq!(granted_at(time, "Update"), [Property::HeldStartsNothing], "at {time}");
    }
}

#[test]
fn a_grant_seen_seconds_outside_a_window_is_accepted() {
    // 02:30:00 and 03:00:00 are the seconds in which it closes.
    for time in ["02:00:00", "02:10:00", "02:30:00", "02:30:09", "03:00:00", "03:00:09", "01:59:55", "02:39:55"] {
        assert_eq!(granted_at(time, "Update"), [], "at {time}");
    }
}

#[test]
fn windows_are_for_updates_and_hold_nothing_else() {
    for kind in ["Repair", "Shrink", "Grow", "Remove", "Drain", "Abort"] {
        assert_eq!(granted_at("12:00:00", kind), [], "{kind}");
    }
}

#[test]
fn an_update_begun_in_a_window_continues_after_it() {
    let again = |id: u64| json!({ "n1": { "id": id, "kind": "Update", "revision": "c" } });
    let story = Story::default()
        .see(at("02:10:00"), Kind::IngressDaemonSet, in_windows(json!({})))
        .see(at("02:20:00"), Kind::IngressDaemonSet, in_windows(again(2)))
        .see(at("04:00:00"), Kind::IngressDaemonSet, in_windows(again(3)));
    assert_eq!(story.violations(&of_one()), []);
}

#[test]
fn from_afar_a_grant_counts_by_its_own_time() {
    let given = |granted: i64| {
        let mut grants = grant("Update");
        grants["n1"]["grantedAt"] = granted.into();
        let story = Story::default().see(at("00:00:00"), Kind::IngressDaemonSet, in_windows(json!({}))).see(
            at("03:05:00"),
            Kind::IngressDaemonSet,
            in_windows(grants),
        );
        story.violations(&Expectations { from_afar: true, ..of_one() })
    };
    assert_eq!(given(at("02:59:59")), []);
    assert_eq!(given(at("03:00:11")), [Property::HeldStartsNothing]);
    assert_eq!(given(at("04:00:00")), [Property::HeldStartsNothing], "a time of the future is none");
}

#[test]
fn windows_added_later_do_not_bind_an_existing_grant() {
    let changed = Story::default()
        .see(at("12:00:00"), Kind::IngressDaemonSet, resource(false, json!({})))
        .see(at("12:00:01"), Kind::IngressDaemonSet, resource(false, grant("Update")))
        .see(at("12:00:02"), Kind::IngressDaemonSet, in_windows(grant("Update")));
    assert_eq!(changed.violations(&of_one()), []);
}

#[test]
fn what_a_rebuilt_ledger_has_again_was_begun_before() {
    let mut rebuilding = in_windows(json!({}));
    rebuilding["status"]["rollout"]["rebuilding"] = 8.into();
    let story = Story::default().see(at("12:00:00"), Kind::IngressDaemonSet, rebuilding).see(
        at("12:00:01"),
        Kind::IngressDaemonSet,
        in_windows(grant("Update")),
    );
    assert_eq!(story.violations(&of_one()), []);
}

/// The course of revision `b`, in which these nodes have failed for these reasons; two of them halt it.
fn failed(nodes: &[(&str, &str)], grants: Value) -> Value {
    let mut resource = resource(false, grants);
    resource["spec"]["updateStrategy"]["rollingUpdate"]["maxFailedNodes"] = 2.into();
    let failed: serde_json::Map<_, _> = nodes.iter().map(|(node, reason)| ((*node).to_owned(), json!({ "reason": reason }))).collect();
    resource["status"]["rollout"]["course"] = json!({ "revision": "b", "failed": failed });
    resource
}

fn begun_after(before: &[(&str, &str)], after: &[(&str, &str)], kind: &str) -> Vec<Property> {
    let story = Story::default().see(0, Kind::IngressDaemonSet, failed(before, json!({})));
    story.see(1, Kind::IngressDaemonSet, failed(after, grant(kind))).violations(&of_one())
}

#[test]
fn an_update_begun_after_its_revision_failed_is_found() {
    let two = [("n2", "Progressing"), ("n3", "ImagePull")];
    let restarts = [("n2", "Restarts")];
    for failed in [&two[..], &restarts[..]] {
        assert_eq!(begun_after(failed, failed, "Update"), [Property::HeldStartsNothing], "{failed:?}");
        assert_eq!(begun_after(failed, failed, "Repair"), [], "repairs go on: {failed:?}");
    }
}

#[test]
fn too_few_earlier_failures_of_a_revision_halt_nothing() {
    let two = [("n2", "Progressing"), ("n3", "ImagePull")];
    assert_eq!(begun_after(&two[..1], &two[..1], "Update"), []);
    let freed = [("n2", "Progressing"), ("n3", "Released")];
    assert_eq!(begun_after(&freed, &freed, "Update"), []);
    assert_eq!(begun_after(&two[..1], &two, "Update"), [], "it failed in the write in which the next one was begun");
    assert_eq!(begun_after(&two, &two[..1], "Update"), [], "a person asked to try it again");
    let other = |mut resource: Value| {
        resource["status"]["rollout"]["course"]["revision"] = "a".into();
        resource
    };
    let story = Story::default().see(0, Kind::IngressDaemonSet, other(failed(&two, json!({}))));
    let story = story.see(1, Kind::IngressDaemonSet, other(failed(&two, grant("Update"))));
    assert_eq!(story.violations(&of_one()), [], "another revision failed");
}

#[test]
fn silent_detachers_block_new_updates_only_under_policy_halt() {
    let begun = |policy: Value, reasons: [&str; 2], kind: &str| {
        let silent = |reason: &str, grants: Value| {
            let mut resource = resource(false, grants);
            resource["spec"]["updateStrategy"]["rollingUpdate"]["onDetachTimeout"] = policy.clone();
            resource["status"]["nodeStates"] = json!([{ "name": "n2", "phase": "Blocked", "reason": reason }]);
            resource
        };
        let story = Story::default().see(0, Kind::IngressDaemonSet, silent(reasons[0], json!({})));
        story.see(1, Kind::IngressDaemonSet, silent(reasons[1], grant(kind))).violations(&of_one())
    };
    let still = ["DetachTimeout"; 2];
    for (policy, kind) in [(json!("Halt"), "Update"), (Value::Null, "Update"), (json!("Halt"), "Repair")] {
        assert_eq!(begun(policy, still, kind), [Property::HeldStartsNothing], "{kind}");
    }
    for (policy, kind) in [(json!("Abort"), "Update"), (json!("Proceed"), "Update"), (json!("Halt"), "Remove")] {
        assert_eq!(begun(policy, still, kind), [], "{kind}");
    }
    assert_eq!(begun(json!("Halt"), ["DetachTimeout", "GracePeriod"], "Update"), [], "it has answered");
}

/// Four nodes in a zone, of which half may be out.
fn half_of_a_zone(nodes: &[&str]) -> (Expectations, Story) {
    let expected = Expectations { domain: Some(("zone".into(), Share::Percent(50))), ..Expectations::budget(9) };
    let story = nodes.iter().fold(Story::default(), |story, name| {
        story.see(0, Kind::Node, zoned(name)).see(0, Kind::Deployment, deployment(name, "1.Closed.1", "a"))
    });
    (expected, story)
}

/// Without the label of nodes that serve: only tokens count.
fn zoned(name: &str) -> Value {
    let mut node = node(name, None);
    node["metadata"]["labels"] = json!({ "zone": "a" });
    node
}

#[test]
fn a_domain_percentage_counts_the_nodes_of_the_domain() {
    let claimed = |story: Story, nodes: &[&str]| {
        nodes.iter().fold(story, |story, name| story.see(10, Kind::Deployment, deployment(name, "2.Claimed.10", "a")))
    };
    let (expected, story) = half_of_a_zone(&["n1", "n2", "n3", "n4"]);
    assert_eq!(claimed(story, &["n1", "n2"]).violations(&expected), []);
    let (_, story) = half_of_a_zone(&["n1", "n2", "n3"]);
    assert_eq!(claimed(story, &["n1", "n2"]).violations(&expected), [Property::DomainBudget], "half of three is one");
    let (_, story) = half_of_a_zone(&["n1"]);
    assert_eq!(claimed(story, &["n1"]).violations(&expected), [], "at least one");
}

#[test]
fn a_domain_that_shrinks_binds_what_is_granted_afterwards() {
    let told = |nodes: &[&str]| {
        let grants: Value = nodes.iter().map(|node| ((*node).to_owned(), json!({ "id": 2, "domain": "a", "kind": "Update" }))).collect();
        resource(false, grants)
    };
    let shrunk = |granted: &[&str]| {
        let mut by_hand = zoned("n4");
        by_hand["metadata"]["annotations"][TOUCH_ANNOTATION] = TOUCHED.into();
        let (expected, story) = half_of_a_zone(&["n1", "n2", "n3", "n4"]);
        let story = story
            .see(9, Kind::IngressDaemonSet, told(granted))
            .see(10, Kind::Deployment, deployment("n1", "2.Claimed.10", "a"))
            .see(11, Kind::Node, by_hand)
            .gone(11, Kind::Deployment, deployment("n4", "1.Closed.1", "a"))
            .see(12, Kind::IngressDaemonSet, told(&["n1", "n2"]))
            .see(13, Kind::Deployment, deployment("n2", "2.Claimed.13", "a"));
        story.violations(&expected)
    };
    assert_eq!(shrunk(&["n1", "n2"]), []);
    assert_eq!(shrunk(&["n1"]), [Property::DomainBudget]);
}
