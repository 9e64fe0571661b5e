//! Marks, graces and answers of detachers, as the spec in force asks for; and what is unready by the operator.
#![allow(clippy::needless_pass_by_value)] // values are built in the call, by `json!`

use crds::names;
use serde_json::{Value, json};

use super::{
    Expectations, Kind, Property, TOUCH_ANNOTATION, TOUCHED, UNTOUCHED,
    history_tests::{Story, UID8, deployment, going, in_zones, incomplete, node, of_one, pod, resource, saying, zoned},
};

/// The grant 2 of `n1` with these marks.
fn grant(kind: &str, marks: Value) -> Value {
    json!({ "n1": { "id": 2, "nodeUID": "node-n1", "kind": kind, "revision": "b", "marks": marks } })
}

fn by_deployment() -> Value {
    json!({ "deployment": true })
}

/// `n1` is claimed at second 10, and its template changes at that second, under this phase.
fn updated_at(story: Story, second: i64, phase: &str) -> Story {
    story.see(10, Kind::Deployment, deployment("n1", "2.Claimed.10", "a")).see(
        second,
        Kind::Deployment,
        deployment("n1", &format!("2.{phase}.{second}"), "b"),
    )
}

fn grace(seconds: u64) -> Value {
    json!({ "annotateDeploymentToDetach": { "gracePeriodSeconds": seconds } })
}

#[test]
fn the_grace_comes_from_the_spec_or_the_default() {
    let found =
        |spec: Value, second| updated_at(Story::two_nodes_of(saying(spec, json!({}), [1, 1])), second, "Updating").violations(&of_one());
    assert_eq!(found(grace(20), 28), [Property::DetachFirst]);
    assert_eq!(found(grace(20), 29), [], "the watch may be late by a second");
    assert_eq!(found(json!({ "annotateDeploymentToDetach": {} }), 18), [Property::DetachFirst], "it is 10 s where none is given");
    assert_eq!(found(json!({ "annotateDeploymentToDetach": {} }), 19), []);
    assert_eq!(
        found(json!({ "annotateDeploymentToDetach": null }), 18),
        [Property::DetachFirst],
        "the token is the mark where none is named"
    );
    let invalid = json!({ "annotateDeploymentToDetach": {}, "maxUnavailableNodes": "no number" });
    assert_eq!(found(invalid, 12), [Property::DetachFirst], "nor may less be done by a spec that is not valid");
}

/// The grace becomes another one at second 15, five seconds after the mark. The status says so, or not yet.
fn changed(from: u64, to: u64, told: bool, second: i64) -> Vec<Property> {
    let grants = || grant("Update", by_deployment());
    let story = Story::two_nodes_of(saying(grace(from), grants(), [1, 1]))
        .see(10, Kind::Deployment, deployment("n1", "2.Claimed.10", "a"))
        .see(15, Kind::IngressDaemonSet, saying(grace(to), grants(), [2, 1]));
    let story = if told { story.see(16, Kind::IngressDaemonSet, saying(grace(to), grants(), [2, 2])) } else { story };
    story.see(second, Kind::Deployment, deployment("n1", "2.Updating.20", "b")).violations(&of_one())
}

#[test]
fn a_changed_grace_binds_once_the_operator_knows_it() {
    assert_eq!(changed(5, 30, true, 17), [Property::DetachFirst], "it has said that it knows of 30 s");
    assert_eq!(changed(5, 30, true, 39), []);
    assert_eq!(changed(5, 30, false, 17), [], "it may not know yet");
    assert_eq!(changed(5, 600, false, 140), [Property::DetachFirst], "two minutes later it does");
    assert_eq!(changed(30, 5, true, 17), [], "the shorter one is over");
    assert_eq!(changed(30, 20, true, 17), [Property::DetachFirst], "neither is over");
    assert_eq!(changed(30, 20, false, 28), [Property::DetachFirst]);
}

#[test]
fn only_a_spec_without_marks_permits_updating_attached_nodes() {
    let degrade = || json!({ "maxUnavailableNodes": 0, "annotateDeploymentToDetach": null });
    let found = |spec: Value, marks: Value, phase: &str| {
        let story = Story::two_nodes_of(saying(spec, grant("Update", marks), [1, 1]));
        story.see(10, Kind::Deployment, deployment("n1", &format!("2.{phase}.10"), "b")).violations(&of_one())
    };
    assert_eq!(found(degrade(), json!({}), "Degrading"), []);
    assert_eq!(found(json!({}), json!({}), "Degrading"), [Property::DetachFirst], "a grant cannot do without what the spec asks for");
    assert_eq!(found(degrade(), by_deployment(), "Degrading"), [Property::DetachFirst], "nor the token without what its grant says");
    assert_eq!(found(json!({}), json!({}), "Updating"), [Property::DetachFirst]);
}

fn on_node(more: Value) -> Value {
    let mut spec =
        json!({ "annotateDeploymentToDetach": null, "annotateNodeToDetach": { "key": "detached", "value": "", "gracePeriodSeconds": 5 } });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

fn detached(story: Story) -> Story {
    story.see(10, Kind::Node, node("n1", Some((2, "Detached"))))
}

#[test]
fn a_node_mark_needs_the_update_id_and_grace() {
    let found = |token: &str, second| {
        let story = detached(Story::two_nodes_of(saying(on_node(json!({})), json!({}), [1, 1])));
        story.see(second, Kind::Deployment, deployment("n1", token, "b")).violations(&of_one())
    };
    assert_eq!(found("2.Updating.15", 15), []);
    assert_eq!(found("2.Updating.13", 13), [Property::DetachFirst]);
    assert_eq!(found("3.Updating.15", 15), [Property::DetachFirst]);
}

#[test]
fn another_key_on_the_node_is_another_mark() {
    let keyed = |id: u64, key: &str| {
        let mut node = node("n1", None);
        node["metadata"]["annotations"][names::HOLDERS_ANNOTATION] =
            json!({ UID8: { "id": id, "phase": "Detached", "key": key, "time": 0 } }).to_string().into();
        node
    };
    let found = |key: &str| {
        let story = Story::two_nodes_of(saying(on_node(json!({})), json!({}), [1, 1]));
        let story = story.see(5, Kind::Node, keyed(1, "old")).see(10, Kind::Node, keyed(2, key));
        story.see(12, Kind::Deployment, deployment("n1", "2.Updating.12", "b")).violations(&of_one())
    };
    assert_eq!(found("old"), []);
    assert_eq!(found("new"), [Property::DetachFirst]);
}

#[test]
fn the_spec_says_how_long_detachers_are_awaited() {
    let found = |policy: &str, answered: Option<&str>, second| {
        let wait = json!({ "key": "answered", "format": "RFC3339", "gracePeriodSeconds": 10 });
        let more = json!({ "waitForDetachmentByAnnotatedTimestamp": wait, "onDetachTimeout": policy, "detachTimeoutSeconds": 30 });
        let mut node = node("n1", Some((2, "Detached")));
        node["metadata"]["annotations"]["answered"] = answered.into();
        let story = Story::two_nodes_of(saying(on_node(more), json!({}), [1, 1])).see(10, Kind::Node, node);
        story.see(second, Kind::Deployment, deployment("n1", "2.Updating.20", "b")).violations(&of_one())
    };
    let (before, after) = (Some("1970-01-01T00:00:01Z"), Some("1970-01-01T00:00:12Z"));
    assert_eq!(found("Halt", None, 100), [Property::DetachFirst]);
    assert_eq!(found("Halt", before, 100), [Property::DetachFirst], "that was the answer to something else");
    assert_eq!(found("Halt", after, 20), [Property::DetachFirst], "its grace is not over");
    assert_eq!(found("Halt", after, 22), []);
    assert_eq!(found("Proceed", None, 37), [Property::DetachFirst]);
    assert_eq!(found("Proceed", None, 38), [], "the watch may be late by a second, and the operator counts whole seconds");
}

#[test]
fn a_key_removed_by_hand_excuses_a_missing_answer() {
    let found = |by_hand: bool, key: Option<&str>| {
        let wait = json!({ "key": "answered", "format": "RFC3339", "gracePeriodSeconds": 0 });
        let mut node = node("n1", Some((2, "Detached")));
        node["metadata"]["annotations"]["detached"] = key.into();
        node["metadata"]["annotations"][TOUCH_ANNOTATION] = if by_hand { TOUCHED } else { UNTOUCHED }.into();
        let story = Story::two_nodes_of(saying(on_node(json!({ "waitForDetachmentByAnnotatedTimestamp": wait })), json!({}), [1, 1]));
        let story = story.see(10, Kind::Node, node).see(20, Kind::Deployment, deployment("n1", "2.Updating.20", "b"));
        story.violations(&of_one())
    };
    assert_eq!(found(true, None), []);
    assert_eq!(found(true, Some("")), [Property::DetachFirst], "the key is there, and the detacher is silent");
    assert_eq!(found(false, None), [Property::DetachFirst], "nobody's hand was there");
}

/// `n1` loses its pods for good at second 20, claimed since 10 and under a grant with these marks.
fn emptied(marks: Value, phase: &str, second: i64, node_is_there: bool) -> Vec<Property> {
    let mut empty = deployment("n1", &format!("2.{phase}.20"), "a");
    empty["spec"]["replicas"] = 0.into();
    let story = Story::two_nodes_of(saying(json!({}), grant("Remove", marks), [1, 1]));
    let story = if node_is_there { story } else { story.gone(5, Kind::Node, node("n1", None)) };
    let story = if phase == "Updating" { story.see(10, Kind::Deployment, deployment("n1", "2.Claimed.10", "a")) } else { story };
    story.see(second, Kind::Deployment, empty).violations(&of_one())
}

#[test]
fn a_serving_node_is_detached_before_it_is_removed() {
    assert_eq!(emptied(by_deployment(), "Updating", 20, true), []);
    assert_eq!(emptied(by_deployment(), "Updating", 15, true), [Property::DetachFirst]);
    assert_eq!(emptied(json!({}), "Degrading", 20, true), [Property::DetachFirst]);
    assert_eq!(emptied(json!({}), "Degrading", 20, false), [], "there is nobody whom it serves");
}

/// The Deployment of `n1` goes at second 20, in this state.
fn deleted(before: Story, last: Value) -> Vec<Property> {
    before.see(19, Kind::Deployment, last.clone()).gone(20, Kind::Deployment, last).violations(&of_one())
}

fn with_replicas(token: &str, replicas: u64) -> Value {
    let mut deployment = deployment("n1", token, "a");
    deployment["spec"]["replicas"] = replicas.into();
    deployment
}

#[test]
fn a_breaker_may_remove_only_pods_not_serving() {
    let scaled = |breaker: Option<&str>, serves: bool, replicas: u64| {
        let mut deployment = with_replicas("1.Closed.1", replicas);
        if let Some(breaker) = breaker {
            deployment["metadata"]["labels"][names::BREAKER_LABEL] = breaker.into();
        }
        let story = Story::two_nodes().see(19, Kind::Pod, pod("n1", "a", serves));
        story.see(20, Kind::Deployment, deployment).violations(&of_one())
    };
    assert_eq!(scaled(Some("1.80"), false, 0), []);
    assert_eq!(scaled(Some("1.80"), true, 0), [Property::NoBypass], "what serves stays");
    assert_eq!(scaled(None, false, 0), [Property::NoBypass], "nothing was refused");
}

#[test]
fn deleting_deployments_with_pods_is_judged_like_other_changes() {
    let claimed = || Story::two_nodes().see(8, Kind::Deployment, deployment("n1", "2.Claimed.8", "a"));
    assert_eq!(deleted(Story::two_nodes(), with_replicas("1.Closed.1", 1)), [Property::NoBypass]);
    assert_eq!(deleted(claimed(), with_replicas("2.Claimed.8", 1)), [Property::NoBypass]);
    assert_eq!(deleted(claimed(), with_replicas("2.Updating.19", 1)), []);
    let late = Story::two_nodes().see(15, Kind::Deployment, deployment("n1", "2.Claimed.15", "a"));
    assert_eq!(deleted(late, with_replicas("2.Updating.19", 1)), [Property::DetachFirst]);
    let never_complete = Story::default().see(0, Kind::IngressDaemonSet, resource(false, json!({})));
    assert_eq!(deleted(never_complete, with_replicas("2.New.0", 1)), []);
    let mut going = with_replicas("1.Closed.1", 1);
    going["metadata"]["deletionTimestamp"] = "1970-01-01T00:00:20Z".into();
    let in_the_foreground = Story::two_nodes().see(20, Kind::Deployment, going.clone()).gone(30, Kind::Deployment, going);
    assert_eq!(in_the_foreground.violations(&of_one()), [Property::NoBypass], "once, as it begins to go");
}

#[test]
fn an_empty_or_garbage_collected_deployment_may_be_deleted() {
    let emptied = Story::two_nodes().see(8, Kind::Deployment, deployment("n1", "2.Claimed.8", "a")).see(
        18,
        Kind::Deployment,
        with_replicas("2.Updating.18", 0),
    );
    assert_eq!(deleted(emptied, with_replicas("2.Closed.19", 0)), [Property::CloseWhenComplete, Property::NoBypass], "its pod stays on");
    let emptied = Story::two_nodes()
        .see(8, Kind::Deployment, deployment("n1", "2.Claimed.8", "a"))
        .see(18, Kind::Deployment, incomplete(with_replicas("2.Updating.18", 0)))
        .gone(19, Kind::Pod, going(pod("n1", "a", true)));
    let mut complete = with_replicas("2.Closed.19", 0);
    complete["status"] = json!({ "observedGeneration": 1 });
    assert_eq!(deleted(emptied, complete), []);
    let orphaned = Story::two_nodes().gone(18, Kind::IngressDaemonSet, resource(false, json!({})));
    let orphaned = orphaned.gone(20, Kind::Deployment, with_replicas("1.Closed.1", 1));
    assert_eq!(orphaned.violations(&of_one().except(Property::NothingRemains)), []);
    let mut owner = resource(false, json!({}));
    owner["metadata"]["deletionTimestamp"] = "1970-01-01T00:00:18Z".into();
    let waiting = |finalizers: Value| {
        owner["metadata"]["finalizers"] = finalizers;
        deleted(Story::two_nodes().see(18, Kind::IngressDaemonSet, owner.clone()), with_replicas("1.Closed.1", 1))
    };
    let [in_foreground, by_us] = [json!(["foregroundDeletion"]), json!(["ours"])].map(waiting);
    assert_eq!(in_foreground, []);
    assert_eq!(by_us, [Property::NoBypass], "the operator detaches them first");
}

/// `n1` was updated at second 20, and its token is closed at second 25 while this is so; then `n2` is claimed.
fn closed_at(story: Story, closed: Value, then: impl Fn(Story) -> Story) -> Vec<Property> {
    let story = story
        .see(10, Kind::Deployment, deployment("n1", "2.Claimed.10", "a"))
        .see(20, Kind::Deployment, incomplete(deployment("n1", "2.Updating.20", "b")))
        .gone(21, Kind::Pod, going(pod("n1", "a", true)))
        .see(22, Kind::Pod, pod("n1", "b", false));
    let story = then(story.see(25, Kind::Deployment, closed));
    let all = story.see(30, Kind::Deployment, deployment("n2", "3.Claimed.30", "a")).violations(&of_one());
    all.into_iter().filter(|property| *property == Property::Budget).collect()
}

#[test]
fn a_node_left_unready_is_out_until_complete() {
    let unready = || {
        let mut deployment = deployment("n1", "2.Closed.25", "b");
        deployment["status"]["readyReplicas"] = 0.into();
        deployment
    };
    assert_eq!(closed_at(Story::two_nodes(), unready(), |story| story), [Property::Budget]);
    let ready =
        |story: Story| story.see(28, Kind::Pod, pod("n1", "b", true)).see(28, Kind::Deployment, deployment("n1", "2.Closed.25", "b"));
    assert_eq!(closed_at(Story::two_nodes(), unready(), ready), []);
    let fallen = |story: Story| ready(story).see(29, Kind::Pod, pod("n1", "b", false));
    assert_eq!(closed_at(Story::two_nodes(), unready(), fallen), [], "what was complete has fallen by itself");
}

#[test]
fn lost_nodes_and_freed_slots_use_no_budget() {
    let unready = || {
        let mut deployment = deployment("n1", "2.Closed.25", "b");
        deployment["status"]["readyReplicas"] = 0.into();
        deployment
    };
    let lost = |story: Story| {
        let mut node = node("n1", None);
        node["status"] = json!({ "conditions": [{ "type": "Ready", "status": "Unknown" }] });
        story.see(26, Kind::Node, node)
    };
    assert_eq!(closed_at(Story::two_nodes(), unready(), lost), []);
    let freed = |released: bool| {
        let mut resource = saying(json!({}), grant("Abort", by_deployment()), [1, 1]);
        resource["status"]["rollout"]["grants"]["n1"]["released"] = released.into();
        closed_at(Story::two_nodes_of(resource), unready(), |story| story)
    };
    assert_eq!(freed(true), []);
    assert_eq!(freed(false), [Property::Budget]);
}

#[test]
fn a_node_unready_by_itself_counts_against_new_grants() {
    let both = Story::two_nodes().see(9, Kind::Pod, pod("n2", "a", false)).see(10, Kind::Deployment, deployment("n1", "2.Claimed.10", "a"));
    assert_eq!(both.violations(&of_one()), []);
    let begun = |down: &str, begun: &str, second: i64, budget: u64| {
        let told = |grants: Value| saying(json!({ "maxUnavailableNodes": budget }), grants, [1, 1]);
        let grants = json!({ begun: { "id": 2, "kind": "Update", "revision": "b", "marks": by_deployment() } });
        let story = in_zones(["a", "a"]).see(3, Kind::IngressDaemonSet, told(json!({}))).see(10, Kind::Pod, pod(down, "a", false));
        story.see(second, Kind::IngressDaemonSet, told(grants)).violations(&Expectations::budget(2))
    };
    assert_eq!(begun("n2", "n1", 19, 1), [], "the operator may not have seen it yet");
    assert_eq!(begun("n2", "n1", 20, 1), [Property::Budget]);
    assert_eq!(begun("n2", "n1", 20, 2), []);
    assert_eq!(begun("n2", "n2", 20, 1), [], "it takes nothing away");
    let lost = {
        let told = |grants: Value| saying(json!({ "maxUnavailableNodes": 1 }), grants, [1, 1]);
        let mut gone = zoned("n2", "a", None);
        gone["status"]["conditions"][0]["status"] = "Unknown".into();
        let story = in_zones(["a", "a"]).see(3, Kind::IngressDaemonSet, told(json!({}))).see(9, Kind::Node, gone);
        let story = story.see(10, Kind::Pod, pod("n2", "a", false));
        story.see(200, Kind::IngressDaemonSet, told(grant("Update", by_deployment()))).violations(&of_one())
    };
    assert_eq!(lost, [], "it may be told to ignore nodes that are not ready");
}
