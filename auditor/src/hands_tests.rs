//! What is excused while somebody has his hands on a node, and what is not.

use serde_json::{Value, json};

use super::{
    Expectations, Kind, Property, TOUCHED, UNTOUCHED,
    history_tests::{Story, deployment, of_one, pod, resource, touched},
};

/// `n1` with hands on it, from second 5 on.
fn by_hand() -> Story {
    Story::two_nodes().see(5, Kind::Node, touched("n1", TOUCHED))
}

fn edited(story: Story, second: i64, revision: &str) -> Story {
    story.see(second, Kind::Deployment, deployment("n1", "1.Closed.1", revision))
}

#[test]
fn edits_are_excused_only_while_the_node_is_touched() {
    // The Node is written again meanwhile, without the word.
    let during = || edited(by_hand().see(6, Kind::Node, super::history_tests::node("n1", None)), 7, "b");
    assert_eq!(during().violations(&of_one()), []);
    assert_eq!(edited(during().see(8, Kind::Node, touched("n1", UNTOUCHED)), 9, "c").violations(&of_one()), [Property::NoBypass]);
    let elsewhere = by_hand().see(7, Kind::Deployment, deployment("n2", "1.Closed.1", "b"));
    assert_eq!(elsewhere.violations(&of_one()), [Property::NoBypass]);
}

#[test]
fn no_hand_is_excused_in_a_cluster_in_use() {
    let expected = Expectations { from_afar: true, ..of_one() };
    assert_eq!(edited(by_hand(), 7, "b").violations(&expected), [Property::NoBypass]);
}

#[test]
fn a_deployment_may_be_deleted_by_hand() {
    let last = || deployment("n1", "1.Closed.1", "a");
    assert_eq!(by_hand().gone(7, Kind::Deployment, last()).violations(&of_one()), []);
    let afterwards = by_hand().see(6, Kind::Node, touched("n1", UNTOUCHED)).gone(7, Kind::Deployment, last());
    assert_eq!(afterwards.violations(&of_one()), [Property::NoBypass]);
}

#[test]
fn the_operator_keeps_the_grace_on_touched_nodes() {
    let stepped = |second: i64| {
        let claimed = edited(by_hand(), 7, "x").see(10, Kind::Deployment, deployment("n1", "2.Claimed.10", "x"));
        claimed.see(second, Kind::Deployment, deployment("n1", &format!("2.Updating.{second}"), "b")).violations(&of_one())
    };
    assert_eq!(stepped(20), []);
    assert_eq!(stepped(15), [Property::DetachFirst]);
    let unclaimed = edited(by_hand(), 7, "x").see(10, Kind::Deployment, deployment("n1", "2.Updating.10", "b"));
    assert_eq!(unclaimed.violations(&of_one()), [Property::DetachFirst]);
}

#[test]
fn a_touched_node_takes_a_slot_only_once_claimed() {
    let held = |story: Story| {
        let story = story.see(10, Kind::Deployment, deployment("n1", "2.Claimed.10", "a"));
        story.see(11, Kind::Deployment, deployment("n2", "3.Claimed.11", "a")).violations(&of_one())
    };
    assert_eq!(held(by_hand()), [Property::Budget]);
    let unready = by_hand().see(9, Kind::Pod, pod("n1", "a", false)).see(11, Kind::Deployment, deployment("n2", "3.Claimed.11", "a"));
    assert_eq!(unready.violations(&of_one()), [], "its pods are unready by that hand");
}

#[test]
fn a_grant_for_a_touched_node_gets_no_exemption() {
    let paused = |grants: Value| resource(true, grants);
    let story = by_hand().see(6, Kind::IngressDaemonSet, paused(json!({}))).see(
        7,
        Kind::IngressDaemonSet,
        paused(json!({ "n1": { "id": 2, "kind": "Repair" } })),
    );
    assert_eq!(story.violations(&of_one()), [Property::HeldStartsNothing]);
}
