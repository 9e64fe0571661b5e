//! How far revisions reach that are not proved.
#![allow(clippy::needless_pass_by_value)] // values are built in the call, by `json!`

use crds::{hash, names};
use serde_json::{Value, json};

use super::{
    Audit, Expectations, Kind, Observation, Property, TOUCHED,
    history_tests::{Story, deployment, pod, saying, touched, zoned},
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

pub(super) fn template(version: u32) -> Value {
    json!({ "spec": { "containers": [{ "name": "nginx", "image": format!("nginx:{version}") }] } })
}

/// The revision of that version.
pub(super) fn of(version: u32) -> String {
    hash::revision(&template(version))
}

/// An update of each node to version 2, with the id that its number says.
pub(super) fn updates(nodes: &[&str]) -> Value {
    let update = |node: &&str| {
        let id = u64::from(node.as_bytes()[1] - b'0') + 1;
        let grant = json!({
            "id": id, "kind": "Update", "nodeUID": format!("node-{node}"), "revision": of(2), "marks": { "deployment": true },
        });
        ((*node).to_owned(), grant)
    };
    nodes.iter().map(update).collect()
}

/// The resource of four nodes that all ran version 1, at a version that has to serve for 60 s; one node may be out.
pub(super) fn at_version(version: u32, grants: Value) -> Value {
    let mut resource = saying(json!({ "maxUnavailableNodes": 1, "provenAfterSeconds": 60 }), grants, [1, 1]);
    resource["spec"]["template"] = template(version);
    resource["status"]["nodes"]["desired"] = 4.into();
    resource["status"]["revisions"] = json!({ "current": of(1), "update": of(version), "effective": of(version) });
    resource
}

/// The course of version 2, with these fields besides.
pub(super) fn proving(more: Value, grants: Value) -> Value {
    let mut resource = at_version(2, grants);
    resource["status"]["rollout"]["course"] = json!({ "revision": of(2), "since": 11, "progressedAt": 11 });
    for (key, value) in more.as_object().unwrap() {
        resource["status"]["rollout"]["course"][key] = value.clone();
    }
    resource
}

/// These nodes run version 1, and version 2 is asked for at second 10.
pub(super) fn asked_for(nodes: &[&str]) -> Story {
    let story = Story::default().see(0, Kind::IngressDaemonSet, at_version(1, json!({})));
    let story = nodes.iter().fold(story, |story, name| story.with_node(zoned(name, "a", None), &of(1)));
    story.see(10, Kind::IngressDaemonSet, at_version(2, json!({})))
}

/// The operator has begun with these.
fn begun(nodes: &[&str]) -> Story {
    asked_for(&NODES).see(11, Kind::IngressDaemonSet, proving(json!({}), updates(nodes)))
}

/// The same, and they came through.
pub(super) fn given(nodes: &[&str]) -> Story {
    begun(nodes).see(20, Kind::IngressDaemonSet, proving(json!({}), json!({})))
}

pub(super) fn judged(story: &Story) -> Vec<Property> {
    story.violations(&Expectations::budget(4))
}

/// By an audit that begins right before the last change.
pub(super) fn judged_late(story: &Story) -> Vec<Property> {
    let (last, before) = story.observations.split_last().unwrap();
    let expected = Expectations::budget(4);
    let mut audit = Audit::new(&expected);
    for observation in before {
        audit.take_in(observation);
    }
    audit.observe(last);
    audit.take_violations().into_iter().map(|violation| violation.property).collect()
}

/// Changes every state of the resource.
pub(super) fn everywhere(mut story: Story, change: impl Fn(&mut Value)) -> Story {
    let resources = story.observations.iter_mut().filter(|seen| seen.kind == Kind::IngressDaemonSet);
    resources.for_each(|seen| change(&mut seen.object));
    story
}

/// And then another one is begun.
fn another(story: Story, node: &str) -> Story {
    story.see(30, Kind::IngressDaemonSet, proving(json!({}), updates(&[node])))
}

#[test]
fn unproved_revisions_reach_no_more_nodes_than_the_budget() {
    assert_eq!(judged(&given(&["n1"])), []);
    assert_eq!(judged(&another(given(&["n1"]), "n2")), [Property::UnprovedBounded]);
    assert_eq!(judged(&another(given(&["n1"]), "n1")), [], "it is the same node");
    let proved = |nodes: &[&str]| proving(json!({ "proved": true }), updates(nodes));
    let story = given(&["n1"]).see(80, Kind::IngressDaemonSet, proved(&[])).see(81, Kind::IngressDaemonSet, proved(&["n2"]));
    assert_eq!(judged(&story), [], "it is proved");
    let two =
        |story: Story| everywhere(story, |resource| resource["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailableNodes"] = 2.into());
    assert_eq!(judged(&two(another(given(&["n1"]), "n2"))), []);
    assert_eq!(judged(&two(another(given(&["n1", "n2"]), "n3"))), [Property::UnprovedBounded]);
    assert_eq!(judged(&two(begun(&["n1", "n2", "n3"]))), [Property::Budget, Property::Budget, Property::Budget, Property::UnprovedBounded]);
    let share = |story: Story| {
        everywhere(story, |resource| resource["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailableNodes"] = "50%".into())
    };
    assert_eq!(judged(&share(another(given(&["n1"]), "n2"))), []);
    assert_eq!(judged(&share(another(given(&["n1", "n2"]), "n3"))), [Property::UnprovedBounded]);
}

#[test]
fn a_changed_budget_binds_later_grants_of_unproved_revisions() {
    let of_budget = |budget: u64, nodes: &[&str]| {
        let mut resource = proving(json!({}), updates(nodes));
        resource["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailableNodes"] = budget.into();
        resource
    };
    let story = |budgets: [u64; 2]| {
        let story = asked_for(&NODES).see(11, Kind::IngressDaemonSet, of_budget(budgets[0], &[]));
        let first: &[&str] = if budgets[0] == 2 { &["n1", "n2"] } else { &["n1"] };
        let story = story.see(12, Kind::IngressDaemonSet, of_budget(budgets[0], first));
        let story = story.see(20, Kind::IngressDaemonSet, of_budget(budgets[0], &[]));
        story.see(21, Kind::IngressDaemonSet, of_budget(budgets[1], &[]))
    };
    let then = |story: Story, budget: u64| judged(&story.see(30, Kind::IngressDaemonSet, of_budget(budget, &["n3"])));
    assert_eq!(judged(&story([2, 1])), [], "what was given stays");
    assert_eq!(then(story([2, 1]), 1), [Property::UnprovedBounded]);
    assert_eq!(then(story([1, 2]), 2), []);
}

#[test]
fn a_cancelled_drain_gives_unproved_revisions_no_slot() {
    let mut drains = updates(&["n2"]);
    (drains["n2"]["kind"], drains["n2"]["revision"]) = ("Drain".into(), "".into());
    let drained = |nodes: &[&str]| given(nodes).see(25, Kind::IngressDaemonSet, proving(json!({}), drains.clone()));
    assert_eq!(judged(&another(drained(&["n1"]), "n2")), [Property::UnprovedBounded]);
    assert_eq!(judged(&another(drained(&[]), "n2")), []);
}

#[test]
fn what_needs_no_proof_is_given_to_every_node() {
    let other = |change: fn(&mut Value)| judged(&everywhere(another(given(&["n1"]), "n2"), change));
    assert_eq!(other(|_| {}), [Property::UnprovedBounded]);
    assert_eq!(
        other(|resource| resource["spec"]["updateStrategy"]["rollingUpdate"]["provenAfterSeconds"] = 0.into()),
        [],
        "the rule is off"
    );
    assert_eq!(other(|resource| resource["spec"]["rollbackTo"] = json!({ "revision": 2 })), [], "a person asks for it");
    assert_eq!(other(|resource| resource["status"]["revisions"]["current"] = of(2).into()), [], "all nodes ran it");
    assert_eq!(other(|resource| resource["status"]["rollout"]["course"]["revision"] = of(1).into()), [], "it is the way back");
}

#[test]
fn an_update_needs_proof_even_before_anything_was_proved() {
    let nothing = |resource: &mut Value| resource["status"]["revisions"]["current"] = "".into();
    assert_eq!(judged(&everywhere(another(given(&["n1"]), "n2"), nothing)), [Property::UnprovedBounded]);
}

#[test]
fn a_new_course_of_a_revision_counts_from_zero() {
    let in_between = given(&["n1"]).see(22, Kind::IngressDaemonSet, at_version(1, json!({})));
    for story in [given(&["n1"]), in_between] {
        let story = story.see(40, Kind::IngressDaemonSet, again(&["n2"]));
        assert_eq!(judged(&story), []);
        let story = story.see(41, Kind::IngressDaemonSet, again(&[])).see(42, Kind::IngressDaemonSet, again(&["n3"]));
        assert_eq!(judged(&story), [Property::UnprovedBounded]);
    }
}

/// The Node says so of itself.
pub(super) fn node_with(name: &str, change: impl Fn(&mut Value)) -> Value {
    let mut node = zoned(name, "a", None);
    change(&mut node);
    node
}

#[test]
fn slots_of_unproved_revisions_are_freed_only_by_leaving_nodes() {
    let leaves = |change: fn(&mut Value)| judged(&another(given(&["n1"]).see(25, Kind::Node, node_with("n1", change)), "n2"));
    for (change, why) in [
        ((|node| node["spec"]["unschedulable"] = true.into()) as fn(&mut Value), "cordoned"),
        (|node| node["spec"]["taints"] = json!([{ "key": names::KARPENTER_TAINT, "effect": "NoSchedule" }]), "about to be taken away"),
        (|node| node["spec"]["taints"] = json!([{ "key": "batch", "effect": "NoExecute" }]), "of other pods"),
        (|node| node["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into(), "being deleted"),
    ] {
        assert_eq!(leaves(change), [], "{why}");
    }
    assert_eq!(leaves(|node| node["metadata"]["labels"]["any"] = "thing".into()), [Property::UnprovedBounded]);
    let silent = |node: &mut Value| {
        node["status"] = json!({ "conditions": [{ "type": "Ready", "status": "Unknown" }] });
        node["spec"]["taints"] = json!([
            { "key": "node.kubernetes.io/unreachable", "effect": "NoSchedule" },
            { "key": "node.kubernetes.io/unreachable", "effect": "NoExecute" },
        ]);
    };
    assert_eq!(leaves(silent), [Property::UnprovedBounded]);
    let removed = |kind: &str| {
        let mut grants = updates(&["n1"]);
        grants["n1"]["kind"] = kind.into();
        judged(&another(begun(&["n1"]).see(19, Kind::IngressDaemonSet, proving(json!({}), grants)), "n2"))
    };
    assert_eq!((removed("Drain"), removed("Remove"), removed("Abort")), (vec![], vec![], vec![Property::UnprovedBounded]));
    let unselected = |resource: &mut Value| resource["spec"]["nodeSelector"] = json!({ "topology.kubernetes.io/zone": "a" });
    let moved = |zone: &str| everywhere(another(given(&["n1"]).see(25, Kind::Node, zoned("n1", zone, None)), "n2"), unselected);
    assert_eq!((judged(&moved("a")), judged(&moved("b"))), (vec![Property::UnprovedBounded], vec![]));
    let selected = |zone: &str| {
        let mut resource = proving(json!({}), json!({}));
        resource["spec"]["nodeSelector"] = json!({ "topology.kubernetes.io/zone": zone });
        resource
    };
    let back = |zone: &str| given(&["n1"]).see(25, Kind::IngressDaemonSet, selected(zone)).see(26, Kind::IngressDaemonSet, selected("a"));
    let then = |zone: &str| judged(&another(back(zone), "n2"));
    assert_eq!((then("a"), then("b")), (vec![Property::UnprovedBounded], vec![]));
}

#[test]
fn only_one_unannounced_node_loss_per_course_frees_its_slot() {
    let reached = |nodes: &[&str], now: &[&str]| {
        let reached = nodes.iter().map(|node| ((*node).to_owned(), format!("node-{node}"))).collect::<std::collections::BTreeMap<_, _>>();
        proving(json!({ "reached": reached }), updates(now))
    };
    let vanishes = |story: Story, second: i64, name: &str| {
        story.see(second, Kind::IngressDaemonSet, reached(&[name], &[])).gone(second + 1, Kind::Node, zoned(name, "a", None))
    };
    let once = || vanishes(begun(&["n1"]), 20, "n1").see(30, Kind::IngressDaemonSet, reached(&[], &["n2"]));
    assert_eq!(judged(&once()), []);
    let twice = vanishes(once(), 40, "n2").see(50, Kind::IngressDaemonSet, reached(&[], &["n3"]));
    assert_eq!(judged(&twice), [Property::UnprovedBounded]);
    let in_between = |story: Story| judged(&story.see(50, Kind::IngressDaemonSet, reached(&[], &["n3"])));
    let unnoted = |story: Story, second: i64, name: &str| story.gone(second, Kind::Node, zoned(name, "a", None));
    let early = unnoted(begun(&["n1"]), 15, "n1").see(30, Kind::IngressDaemonSet, reached(&[], &["n2"]));
    assert_eq!(in_between(unnoted(early, 35, "n2")), [], "they had not reached it");
    let cordoned = |story: Story, second: i64, name: &str| {
        let story = story.see(second, Kind::IngressDaemonSet, reached(&[name], &[]));
        story.see(second + 1, Kind::Node, node_with(name, |node| node["spec"]["unschedulable"] = true.into()))
    };
    let announced = cordoned(begun(&["n1"]), 20, "n1").see(30, Kind::IngressDaemonSet, reached(&[], &["n2"]));
    assert_eq!(in_between(cordoned(announced, 40, "n2")), [], "somebody cordoned them");
    let anew = |nodes: &[&str]| {
        let mut resource = reached(&[], nodes);
        resource["status"]["rollout"]["course"]["since"] = 45.into();
        resource
    };
    let another_course = vanishes(once(), 40, "n2").see(45, Kind::IngressDaemonSet, anew(&[]));
    assert_eq!(judged(&another_course.see(50, Kind::IngressDaemonSet, anew(&["n3"]))), []);
    let asks = |mut resource: Value| {
        resource["metadata"]["annotations"][names::RETRY_ANNOTATION] = "1".into();
        resource
    };
    let retried = vanishes(once(), 40, "n2").see(49, Kind::IngressDaemonSet, asks(reached(&[], &[])));
    let retried = retried.see(50, Kind::IngressDaemonSet, asks(reached(&[], &["n3"])));
    assert_eq!(judged(&retried), [], "a person lets it pass");
}

#[test]
fn nodes_that_have_a_slot_already_take_none_of_another() {
    let mut repair = updates(&["n2"]);
    repair["n2"]["kind"] = "Repair".into();
    let held = given(&["n1"]).see(25, Kind::IngressDaemonSet, proving(json!({}), repair));
    assert_eq!(judged(&another(held, "n2")), [], "it takes its place along");
    let down = given(&["n1"]).see(25, Kind::Pod, pod("n2", &of(1), false));
    assert_eq!(judged(&another(down, "n2")), [], "it is out of service");
    let suspects = |count: usize, node: &str| {
        let all: Value = (0..count).map(|number| (format!("{node}{number}"), json!({ "nodeUID": "", "revision": "x" }))).collect();
        let suspect = move |resource: &mut Value| resource["status"]["rollout"]["suspects"] = all.clone();
        judged(&everywhere(another(given(&["n1"]), "n2"), suspect))
    };
    assert_eq!(suspects(3, "n"), [], "n2 is suspect");
    assert_eq!(suspects(99, "other"), [Property::UnprovedBounded]);
    assert_eq!(suspects(100, "other"), [], "it may be one that is not listed");
}

/// Another course of version 2.
fn again(nodes: &[&str]) -> Value {
    let mut resource = proving(json!({}), updates(nodes));
    resource["status"]["rollout"]["course"]["since"] = 40.into();
    resource
}

/// The template went back and forth, and `n1` got version 2 in between.
fn there_and_back() -> Story {
    let held = |phase: &str| deployment("n1", &format!("2.{phase}.20"), &of(2));
    let story = begun(&["n1"]).see(12, Kind::Deployment, deployment("n1", "2.Claimed.12", &of(1)));
    let story = story.see(22, Kind::Deployment, held("Updating")).see(23, Kind::Deployment, held("Closed"));
    story.see(30, Kind::IngressDaemonSet, at_version(1, json!({}))).see(40, Kind::IngressDaemonSet, again(&[]))
}

#[test]
fn nodes_reached_before_the_course_keep_their_slots() {
    let then = |story: Story, second: i64| judged(&story.see(second, Kind::IngressDaemonSet, again(&["n2"])));
    assert_eq!((then(there_and_back(), 100), then(there_and_back(), 150)), (vec![], vec![Property::UnprovedBounded]));
    let gone = there_and_back().see(50, Kind::Node, touched("n1", TOUCHED));
    let gone = gone.gone(51, Kind::Deployment, deployment("n1", "2.Closed.20", &of(2)));
    assert_eq!(then(gone, 150), [], "its Deployment is gone");
    let made = deployment("n1", "9.New.52", &of(2));
    let new = there_and_back().see(50, Kind::Node, touched("n1", TOUCHED)).see(52, Kind::Deployment, made);
    assert!(!then(new, 180).contains(&Property::UnprovedBounded), "it does not serve yet");
}

#[test]
fn node_changes_during_a_watch_gap_are_not_known() {
    let found = |listed: &[&str], second: i64| {
        let story = there_and_back();
        let expected = Expectations::budget(4);
        let mut audit = Audit::new(&expected);
        for observation in &story.observations {
            audit.observe(observation);
        }
        audit.retain(Kind::Deployment, &listed.iter().map(|node| format!("deployment-{node}")).collect());
        // It was not ready for a moment.
        let more = Story::default().see(199, Kind::Pod, pod("n2", &of(1), false)).see(200, Kind::Pod, pod("n2", &of(1), true));
        let more = more.see(second, Kind::IngressDaemonSet, again(&["n2"]));
        for (revision, observation) in (1000..).zip(more.observations) {
            audit.observe(&Observation { revision, ..observation });
        }
        audit.take_violations().into_iter().filter(|found| found.property == Property::UnprovedBounded).count()
    };
    assert_eq!((found(&NODES, 330), found(&["n2", "n3", "n4"], 330)), (1, 0));
    assert_eq!(found(&NODES, 318), 0, "nor what the operator saw then");
}

#[test]
fn a_late_audit_counts_reached_nodes_by_the_ledger() {
    let found = |second: i64, uid: &str| {
        let told = |nodes: &[&str]| proving(json!({ "reached": { "n1": uid } }), updates(nodes));
        let story = given(&["n1"]).see(20, Kind::IngressDaemonSet, told(&[]));
        judged_late(&story.see(second, Kind::IngressDaemonSet, told(&["n2"])))
    };
    assert_eq!(found(150, "node-n1"), [Property::UnprovedBounded]);
    assert_eq!(found(139, "node-n1"), [], "what was before it the operator may still see");
    assert_eq!(found(150, "node-before"), [], "that Node has gone");
    let cordoned = |second: i64| {
        let told = |nodes: &[&str]| proving(json!({ "reached": { "n1": "node-n1" } }), updates(nodes));
        let story = given(&["n1"]).see(40, Kind::IngressDaemonSet, told(&[]));
        let story = story.see(41, Kind::Node, node_with("n1", |node| node["spec"]["unschedulable"] = true.into()));
        judged(&story.see(42, Kind::Node, zoned("n1", "a", None)).see(second, Kind::IngressDaemonSet, told(&["n2"])))
    };
    assert_eq!((cordoned(160), cordoned(161)), (vec![], vec![Property::UnprovedBounded]), "it may be seen cordoned still");
}

#[test]
fn grants_withdrawn_under_an_invalid_spec_free_their_slots() {
    let says = |status: &str| {
        let mut resource = proving(json!({}), json!({}));
        resource["status"]["conditions"] = json!([{ "type": "Valid", "status": status }]);
        resource
    };
    let story = |status: &str| judged(&another(begun(&["n1"]).see(20, Kind::IngressDaemonSet, says(status)), "n2"));
    assert_eq!((story("True"), story("False")), (vec![Property::UnprovedBounded], vec![]));
}

#[test]
fn only_grants_in_a_rebuilt_ledger_count_as_begun() {
    let rebuilding = || {
        let mut resource = proving(json!({}), json!({}));
        resource["status"]["rollout"]["rebuilding"] = 9.into();
        resource
    };
    let rebuilt = |nodes: &[&str]| {
        begun(&["n1"]).see(20, Kind::IngressDaemonSet, rebuilding()).see(25, Kind::IngressDaemonSet, proving(json!({}), updates(nodes)))
    };
    assert_eq!(judged(&rebuilt(&["n1", "n2"])), []);
    assert_eq!(judged(&another(rebuilt(&[]), "n2")), []);
    assert_eq!(
        judged(&another(rebuilt(&["n1"]).see(27, Kind::IngressDaemonSet, proving(json!({}), json!({}))), "n2")),
        [Property::UnprovedBounded]
    );
}

#[test]
fn grants_for_leaving_or_former_machines_take_no_slot() {
    let mut grants = updates(&["n1"]);
    grants["n1"]["nodeUID"] = "node-before".into();
    let story = asked_for(&NODES).see(11, Kind::IngressDaemonSet, proving(json!({}), grants));
    assert_eq!(judged(&another(story.see(20, Kind::IngressDaemonSet, proving(json!({}), json!({}))), "n2")), []);
    let cordoned = node_with("n1", |node| node["spec"]["unschedulable"] = true.into());
    let story = asked_for(&NODES).see(10, Kind::Node, cordoned).see(11, Kind::IngressDaemonSet, proving(json!({}), updates(&["n1"])));
    let story = story.see(20, Kind::IngressDaemonSet, proving(json!({}), json!({}))).see(21, Kind::Node, zoned("n1", "a", None));
    assert_eq!(judged(&story.see(170, Kind::IngressDaemonSet, proving(json!({}), updates(&["n2"])))), []);
}
