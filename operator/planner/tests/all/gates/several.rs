//! Several gates and one node.

use super::life::*;
use planner::node_gates::{Gate, NodePlan, satisfiable::unsatisfiable, transition::Happened};
use serde_json::json;

#[test]
fn two_gates_with_one_taint_never_flap_it() {
    let mut life =
        Life::new(vec![gate("a", json!({})), gate("b", json!({"requirements": [{"name": "m", "nodeAnnotation": {"key": "mark"}}]}))]);
    life.settle();
    assert_eq!(life.node.taints.len(), 1);
    warm(&mut life.node);
    life.settle();
    assert!(life.is_tainted() && !life.is_held("a") && life.is_held("b"));
    life.node.annotations.insert("mark".into(), String::new());
    life.settle();
    assert!(!life.is_tainted());
    assert_eq!(life.writes, 3, "taint and both records, one release, the other with the taint");
}

#[test]
fn a_gate_yields_a_shared_taint_once_without_further_writes() {
    let mark = json!({"requirements": [{"name": "m", "nodeAnnotation": {"key": "mark"}}]});
    let first = Gate { completion_annotation: Some("done".into()), ..gate("a", json!({})) };
    let mut life = Life::new(vec![first, gate("b", mark)]);
    life.settle();
    warm(&mut life.node);
    let happened = |plan: &NodePlan| plan.transitions.iter().map(|one| (one.gate.clone(), one.happened)).collect::<Vec<_>>();
    assert_eq!(happened(&life.pass()), [("a".to_owned(), Happened::Yielded)]);
    let done = life.node.annotations.get("done").cloned();
    assert!(done.is_some());
    life.after(60);
    assert_eq!(life.writes, 2);
    life.node.annotations.insert("mark".into(), String::new());
    assert_eq!(happened(&life.pass()), [("b".to_owned(), Happened::Removed)], "the taint goes with the last who needs it");
    assert_eq!(life.node.annotations.get("done").cloned(), done);
}

#[test]
fn gates_that_wait_for_each_other_are_not_enforced() {
    let waits = |uid: &str, other: &str, key: &str| {
        gate(uid, json!({"taint": {"key": key}, "requirements": [{"name": "other", "gate": {"name": format!("gate-{other}")}}]}))
    };
    let mut life = Life::new(vec![waits("a", "b", KEY), waits("b", "a", "other")]);
    assert!(life.settle().node.taints.is_empty());
    assert_eq!(unsatisfiable(&life.world, &life.world.gates["a"]).unwrap().0, "GateCycle");
}

#[test]
fn taints_of_dependent_gates_are_removed_one_by_one() {
    let second = gate("b", json!({"taint": {"key": "second"}, "requirements": [{"name": "first", "gate": {"name": "gate-a"}}]}));
    let mut life = Life::new(vec![gate("a", json!({})), second]);
    life.settle();
    assert_eq!(life.node.taints.len(), 2);
    warm(&mut life.node);
    life.pass();
    assert_eq!(life.node.taints.iter().map(|taint| taint.key.as_str()).collect::<Vec<_>>(), ["second"]);
    life.settle();
    assert!(life.node.taints.is_empty());
}

#[test]
fn two_effects_of_one_key_are_two_taints() {
    let mark = json!({"taint": {"key": KEY, "effect": "NoExecute"}, "requirements": [{"name": "m", "nodeAnnotation": {"key": "mark"}}]});
    let mut life = Life::new(vec![gate("a", json!({})), gate("b", mark)]);
    life.settle();
    let effects = |life: &Life| life.node.taints.iter().map(|taint| taint.effect.clone()).collect::<Vec<_>>();
    assert_eq!(effects(&life), ["NoExecute", "NoSchedule"]);
    warm(&mut life.node);
    life.settle();
    assert_eq!(effects(&life), ["NoExecute"], "the other one waits for something else");
}
