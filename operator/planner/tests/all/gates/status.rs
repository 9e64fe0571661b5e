//! What gates say of themselves.

use super::life::*;
use planner::node_gates::{
    NodePlan,
    decide::GateView,
    status::{Circumstances, Deletion, Lingering, RefusedWrites, status},
};
use serde_json::json;

#[test]
fn a_status_over_five_thousand_nodes_stays_below_four_kilobytes() {
    let gate = gate("a", json!({}));
    let held = GateView {
        matched: true,
        held: true,
        blocked: vec![("warm".into(), "condition Warm is False, not True".into())],
        ..GateView::default()
    };
    let names: Vec<_> = (0..5_000).map(|index| format!("ip-10-0-{index}.eu-central-1.compute.internal")).collect();
    let status = status(&gate, &[], names.iter().map(|name| (name.as_str(), &held)), &Circumstances::default(), NOW);
    assert_eq!(
        (status.nodes.matched, status.nodes.held, status.blocked[0].nodes, status.blocked[0].sample.len()),
        (5_000, 5_000, 5_000, 10)
    );
    let size = serde_json::to_string(&status).unwrap().len();
    assert!(size < 4_096, "{size} bytes");
    assert_eq!(status.summary, "5000 of 5000 nodes held by warm");
}

#[test]
fn requirements_share_ten_names_and_each_has_one() {
    let gate = gate("a", json!({}));
    for (requirements, each) in [(1, 10), (3, 3), (10, 1), (32, 1)] {
        let blocked = (0..requirements).map(|index| (format!("r{index:02}"), "is not met".to_owned())).collect();
        let view = GateView { matched: true, held: true, blocked, ..GateView::default() };
        let names: Vec<_> = (0..100).map(|index| format!("n{index:03}")).collect();
        let said = status(&gate, &[], names.iter().map(|name| (name.as_str(), &view)), &Circumstances::default(), NOW);
        assert_eq!(said.blocked.len(), requirements);
        assert!(said.blocked.iter().all(|blocked| blocked.sample.len() == each && blocked.nodes == 100), "{requirements}");
    }
}

#[test]
fn an_unchanged_condition_of_a_gate_keeps_its_time() {
    let gate = gate("a", json!({}));
    let view = GateView { matched: true, released: true, ..GateView::default() };
    let views = || [("n1", &view)].into_iter();
    let first = status(&gate, &[], views(), &Circumstances::default(), NOW);
    let second = status(&gate, &first.conditions, views(), &Circumstances::default(), NOW + 60);
    assert_eq!(first, second);
    let trouble = Circumstances { unsatisfiable: Some(("NotTolerated", "give them the toleration".into())), ..Circumstances::default() };
    let third = status(&gate, &first.conditions, views(), &trouble, NOW + 60);
    let condition = third.conditions.iter().find(|condition| condition.type_ == "Satisfiable").unwrap();
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "NotTolerated"));
    assert_ne!(condition.last_transition_time, first.conditions[1].last_transition_time);
}

/// Every node decides as [`Life`] does; what they say together is the status.
#[test]
fn five_thousand_nodes_get_one_write_per_taint_and_release() {
    let name = |index: usize| format!("ip-10-0-{index}.eu-central-1.compute.internal");
    let mut lives: Vec<_> = (0..5_000).map(|_| Life::new(vec![gate("a", json!({}))])).collect();
    for writes in 1..=2 {
        let plans: Vec<NodePlan> = lives
            .iter_mut()
            .map(|life| {
                life.settle();
                life.pass()
            })
            .collect();
        assert!(lives.iter().all(|life| life.writes == writes));
        let views = plans.iter().enumerate().map(|(index, plan)| (name(index), &plan.views["a"])).collect::<Vec<_>>();
        let said =
            status(&gate("a", json!({})), &[], views.iter().map(|(name, view)| (name.as_str(), *view)), &Circumstances::default(), NOW);
        assert_eq!((said.nodes.held, said.nodes.released), if writes == 1 { (5_000, 0) } else { (0, 5_000) });
        assert!(serde_json::to_string(&said).unwrap().len() < 4_096);
        for life in &mut lives {
            warm(&mut life.node);
        }
    }
}

#[test]
fn status_counts_nodes_by_state_and_names_only_current_blockers() {
    let gate = gate("a", json!({}));
    let held = GateView {
        matched: true,
        held: true,
        blocked: vec![("warm".into(), "condition Warm is False, not True".into())],
        ..GateView::default()
    };
    let released = GateView { matched: true, released: true, ..GateView::default() };
    let said = |views: Vec<(&str, &GateView)>| status(&gate, &[], views.into_iter(), &Circumstances::default(), NOW);
    let before = said(vec![("n1", &held), ("n2", &released)]);
    assert_eq!((before.nodes.matched, before.nodes.held, before.nodes.released), (2, 1, 1));
    assert_eq!((before.blocked[0].requirement.as_str(), before.blocked[0].sample.as_slice()), ("warm", ["n1".to_owned()].as_slice()));
    assert_eq!(before.observed_generation, Some(1));
    let recovered = said(vec![("n1", &released), ("n2", &released)]);
    assert_eq!((recovered.nodes.held, recovered.blocked.len(), recovered.summary.as_str()), (0, 0, "2 of 2 nodes released"));
    let gone = said(vec![("n2", &released)]);
    assert_eq!((gone.nodes.matched, gone.nodes.released), (1, 1), "a node that is deleted is not counted");
}

#[test]
fn a_gate_being_deleted_says_what_it_waits_for() {
    let view = GateView { matched: true, held: true, ..GateView::default() };
    let refused = RefusedWrites { nodes: 1, node: "n1".into(), forbidden: true, message: "no".into() };
    for (nodes, admission, refused, reason, words) in [
        (3, None, None, "Deleting", vec!["3 nodes"]),
        (3, None, Some(refused.clone()), "DeletionBlocked", vec!["3 nodes", "including n1", "install the ClusterRole"]),
        (3, Some(Lingering::Waits), None, "Deleting", vec!["acts as before"]),
        (
            3,
            Some(Lingering::Refused("policy p: no".to_owned())),
            None,
            "DeletionBlocked",
            vec!["acts as before", "cannot delete its policy or webhook: policy p: no"],
        ),
    ] {
        let circumstances = Circumstances { deletion: Some(Deletion { nodes, admission }), refused, ..Circumstances::default() };
        let said = status(&gate("a", json!({})), &[], [("n1", &view)].into_iter(), &circumstances, NOW);
        let ready = said.conditions.iter().find(|condition| condition.type_ == "Ready").unwrap();
        assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", reason));
        assert!(words.iter().all(|word| ready.message.contains(word)), "{}", ready.message);
    }
}

#[test]
fn the_admission_condition_also_counts_nodes_tainted_late() {
    let said = |late| {
        let circumstances = Circumstances { admission: Some(("Policy", true, "by a policy".into())), ..Circumstances::default() };
        let view = GateView { matched: true, held: true, late, ..GateView::default() };
        let said = status(&gate("a", json!({})), &[], [("n1", &view)].into_iter(), &circumstances, NOW);
        said.conditions.iter().find(|condition| condition.type_ == "AdmissionActive").unwrap().message.clone()
    };
    assert_eq!(said(false), "by a policy");
    assert!(said(true).contains("1 nodes got the taint after their creation"), "{}", said(true));
}
