//! Nodes that leave, and nodes that are no better for a budget that is used up.
#![allow(clippy::needless_pass_by_value)] // values are built in the call, by `json!`

use serde_json::{Value, json};

use super::{
    Expectations, Kind, Property,
    history_tests::{Story, node, pod, saying, zoned},
};

/// Grants of this kind for these nodes.
fn grants(kind: &str, nodes: &[&str]) -> Value {
    let grant = |node: &&str| {
        let grant = json!({ "id": 2, "kind": kind, "nodeUID": format!("node-{node}"), "marks": { "deployment": true } });
        ((*node).to_owned(), grant)
    };
    nodes.iter().map(grant).collect()
}

/// So many nodes are chosen, of three that serve; so many have to.
fn keeping(minimum: Value, chosen: u64, grants: Value) -> Value {
    let mut resource = saying(json!({ "minAvailableNodes": minimum }), grants, [1, 1]);
    resource["status"]["nodes"]["desired"] = chosen.into();
    resource
}

fn three_nodes(resource: Value) -> Story {
    let story = Story::default().see(0, Kind::IngressDaemonSet, resource);
    ["n1", "n2", "n3"].into_iter().fold(story, |story, name| story.with_node(zoned(name, "a", None), "a"))
}

fn judged(story: &Story) -> Vec<Property> {
    story.violations(&Expectations::budget(3))
}

/// These leave while all three serve.
fn leave(minimum: Value, kind: &str, nodes: &[&str]) -> Vec<Property> {
    let chosen = 3 - nodes.len() as u64;
    let story = three_nodes(keeping(minimum.clone(), 3, json!({})));
    judged(&story.see(10, Kind::IngressDaemonSet, keeping(minimum, chosen, grants(kind, nodes))))
}

#[test]
fn a_removal_waits_until_enough_other_nodes_serve() {
    assert_eq!(leave(json!(2), "Remove", &["n1"]), []);
    assert_eq!(leave(json!(3), "Remove", &["n1"]), [Property::Budget]);
    assert_eq!(leave(json!(2), "Remove", &["n1", "n2"]), [Property::Budget; 2]);
    assert_eq!(leave(json!(3), "Drain", &["n1"]), [], "what is taken away does not wait");
}

#[test]
fn a_minimum_percentage_counts_chosen_and_leaving_nodes() {
    // Of three, not of two.
    assert_eq!(leave(json!("67%"), "Remove", &["n1"]), [Property::Budget]);
    assert_eq!(leave(json!("66%"), "Remove", &["n1"]), []);
}

#[test]
fn only_serving_nodes_of_live_resources_wait_to_leave() {
    let story = || three_nodes(keeping(json!(3), 3, json!({})));
    let removed = || keeping(json!(3), 2, grants("Remove", &["n1"]));
    assert_eq!(judged(&story().see(9, Kind::Pod, pod("n1", "a", false)).see(10, Kind::IngressDaemonSet, removed())), []);
    assert_eq!(judged(&story().gone(9, Kind::Node, zoned("n1", "a", None)).see(10, Kind::IngressDaemonSet, removed())), []);
    let mut replaced = removed();
    replaced["status"]["rollout"]["grants"]["n1"]["nodeUID"] = "node-before".into();
    assert_eq!(judged(&story().see(10, Kind::IngressDaemonSet, replaced)), [], "its Node has gone, and this one is new");
    let deleted = |mut resource: Value| {
        resource["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        resource
    };
    let going = story().see(9, Kind::IngressDaemonSet, deleted(keeping(json!(3), 3, json!({}))));
    assert_eq!(judged(&going.see(10, Kind::IngressDaemonSet, deleted(removed()))), []);
}

#[test]
fn a_used_up_budget_blocks_down_nodes_too() {
    let told = |nodes: &[&str]| saying(json!({ "maxUnavailableNodes": 1 }), grants("Update", nodes), [1, 1]);
    let story = |nodes: &[&str]| {
        let story = Story::two_nodes_of(told(&[])).see(2, Kind::Node, node("n2", None)).see(3, Kind::Pod, pod("n2", "a", false));
        judged(&story.see(4, Kind::IngressDaemonSet, told(&["n1"])).see(5, Kind::IngressDaemonSet, told(nodes)))
    };
    assert_eq!(story(&["n2"]), [], "the place was handed over");
    assert_eq!(story(&["n1", "n2"]), [Property::Budget]);
}

#[test]
fn a_node_not_yet_seen_may_count_as_serving() {
    let story = |chosen: u64| {
        let story = three_nodes(keeping(json!(3), 3, json!({})));
        judged(&story.see(10, Kind::IngressDaemonSet, keeping(json!(3), chosen, grants("Remove", &["n1"]))))
    };
    assert_eq!((story(2), story(3)), (vec![Property::Budget], vec![]));
}

#[test]
fn chosen_nodes_down_for_long_use_up_the_budget() {
    let told = |zone: &str, nodes: &[&str]| {
        let mut resource = saying(json!({ "maxUnavailableNodes": 1 }), grants("Update", nodes), [1, 1]);
        resource["spec"]["nodeSelector"] = json!({ "topology.kubernetes.io/zone": zone });
        resource
    };
    let story = |zone: &str, down: &[&str], second: i64| {
        let story = three_nodes(told(zone, &[]));
        let story = down.iter().fold(story, |story, name| story.see(3, Kind::Pod, pod(name, "a", false)));
        story.see(second, Kind::IngressDaemonSet, told(zone, &["n2"]))
    };
    let begun = |zone: &str, down: &[&str]| judged(&story(zone, down, 14));
    assert_eq!((begun("a", &["n1"]), begun("b", &["n1"])), (vec![Property::Budget], vec![]));
    assert_eq!(begun("a", &["n1", "n2"]), [], "it is down itself");
    assert_eq!(judged(&story("a", &["n1"], 12)), [], "the operator may not have seen it");
    let after = |second| story("a", &["n1"], second).violations(&Expectations::budget(3).watches_hang());
    assert_eq!((after(122), after(124)), (vec![], vec![Property::Budget]), "a watch may have hung");
}
