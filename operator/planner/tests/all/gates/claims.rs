//! Whose a taint is that several gates have, and what a gate knows that never wrote.

use super::life::*;
use planner::node_gates::{
    Gate,
    leftovers::{GatesAndResources, leftovers},
    policy_objects::record,
    record::{RecordOrigin, annotation_key},
    satisfiable::unsatisfiable,
    status::{Circumstances, status, unseen},
    transition::Happened,
};
use serde_json::{Value, json};
use std::sync::Arc;

#[test]
fn a_shared_taint_goes_with_the_last_gate() {
    let mut life = Life::new(vec![gate("a", json!({}))]);
    life.settle();
    life.world.gates.insert("b".into(), Arc::new(gate("b", json!({}))));
    life.settle();
    assert_eq!(life.record("b").unwrap().origin, RecordOrigin::Applied, "it is the operator's own");
    life.world.gates.remove("a");
    life.settle();
    assert!(life.is_tainted());
    let known = GatesAndResources { world: life.world.clone(), named: Vec::new() };
    let left = leftovers(&life.node, &std::collections::BTreeSet::new(), &known);
    assert_eq!((left.taints.len(), left.adopted.len()), (1, 0));
    life.world.gates.clear();
    assert!(!life.settle().is_tainted());
}

#[test]
fn deleting_a_gate_never_enforced_removes_no_foreign_taint() {
    for more in [json!({"dryRun": true}), json!({"requirements": [{"name": "itself", "gate": {"name": "gate-a"}}]})] {
        let mut life = Life::new(vec![gate("a", more)]);
        life.node.taints.push(taint(KEY, "NoSchedule"));
        life.settle();
        assert!(life.record("a").is_none());
        let going = Gate { deleting: true, ..Gate::clone(&life.world.gates["a"]) };
        life.world.gates.insert("a".into(), Arc::new(going));
        assert!(life.settle().is_tainted());
    }
}

#[test]
fn a_taint_takes_its_value_from_a_claiming_gate() {
    let value = |value: &str| json!({"key": KEY, "value": value, "effect": "NoSchedule"});
    let elsewhere = json!({"taint": value("theirs"), "allNodes": false, "nodeSelector": {"matchLabels": {"role": "edge"}}});
    let mut life = Life::new(vec![gate("a", elsewhere), gate("b", json!({"taint": value("ours")}))]);
    life.settle();
    assert_eq!(life.node.taints[0].value.as_deref(), Some("ours"));
    assert_eq!(life.node.taints.len(), 1);
}

#[test]
fn only_taints_of_new_nodes_may_be_late() {
    let mut new = Life::new(vec![gate("a", json!({}))]);
    assert_eq!(new.pass().transitions[0].happened, Happened::Added { late: true });
    assert_eq!(nodes_late(&new), 1);
    let mut existing = Life::new(vec![gate("a", json!({"existingNodes": "Gate"}))]);
    existing.node.created = 500;
    assert_eq!(existing.pass().transitions[0].happened, Happened::Added { late: false }, "workloads were there all the time");
    assert_eq!(nodes_late(&existing), 0);
    let mut born = Life::new(vec![gate("a", json!({}))]);
    let gate = Arc::clone(&born.world.gates["a"]);
    let annotation = (annotation_key(&gate.uid), record(&gate, 0).text());
    born.node.annotations = std::collections::BTreeMap::from([annotation]).into();
    born.node.taints.push(taint(KEY, "NoSchedule"));
    born.settle();
    assert!(born.is_tainted());
    assert_eq!(nodes_late(&born), 0, "it was created with the taint");
}

/// Policies taint Nodes that are created with the label alone.
#[test]
fn a_new_node_labelled_after_its_creation_is_late() {
    for (created, late) in [(None, true), (Some(500), false)] {
        let more = json!({"allNodes": false, "nodeSelector": {"matchLabels": {"role": "edge"}}, "existingNodes": "Gate"});
        let mut life = Life::new(vec![gate("a", more)]);
        life.node.created = created.unwrap_or(life.node.created);
        assert!(!life.settle().is_tainted());
        assert_eq!(nodes_late(&life), 0);
        life.node.labels = std::collections::BTreeMap::from([("role".to_owned(), "edge".to_owned())]).into();
        assert_eq!(life.pass().transitions[0].happened, Happened::Added { late });
        assert_eq!(nodes_late(&life), u32::from(late));
    }
}

#[test]
fn a_late_node_is_counted_until_its_machine_is_replaced() {
    let mut life = Life::new(vec![gate("a", json!({"regateOn": ["Reboot", "Replaced"]}))]);
    life.settle();
    assert_eq!(nodes_late(&life), 1);
    warm(&mut life.node);
    assert!(!life.settle().is_tainted());
    assert_eq!(nodes_late(&life), 1, "what had come before the taint has come");
    cold(&mut life.node);
    life.node.boot_id = "boot-2".into();
    assert!(life.settle().is_tainted());
    assert_eq!(nodes_late(&life), 1);
    warm(&mut life.node);
    life.settle();
    cold(&mut life.node);
    life.node.machine_id = "machine2".into();
    assert!(life.settle().is_tainted());
    assert_eq!(nodes_late(&life), 0);
}

/// What the status of the gate counts.
fn nodes_late(life: &Life) -> u32 {
    let views = life.plan().views;
    let views = views.get("a").map(|view| (NODE, view)).into_iter();
    status(&life.world.gates["a"], &[], views, &Circumstances::default(), NOW).nodes.late
}

fn dry(more: Value) -> Life {
    let mut spec = json!({"dryRun": true});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Life::new(vec![gate("a", spec)])
}

fn would_taint(life: &mut Life) -> bool {
    let plan = life.pass();
    assert!(plan.patch.is_none() && !plan.views["a"].held && plan.transitions.is_empty());
    plan.views["a"].would_taint
}

#[test]
fn a_dry_run_only_reports_what_would_happen() {
    assert!(would_taint(&mut dry(json!({}))), "a new node");
    let mut older = dry(json!({}));
    older.node.created = 500;
    assert!(!would_taint(&mut older), "it would count as released");
    let mut shut = dry(json!({"requirements": [{"name": "itself", "gate": {"name": "gate-a"}}]}));
    assert!(!would_taint(&mut shut), "the gate could never open");
    let mut passed = dry(json!({}));
    warm(&mut passed.node);
    assert!(!would_taint(&mut passed));
    cold(&mut passed.node);
    assert!(!would_taint(&mut passed), "mode Bootstrap: it has passed");
    let mut failing = dry(json!({"mode": "Continuous"}));
    warm(&mut failing.node);
    assert!(!would_taint(&mut failing));
    cold(&mut failing.node);
    assert!(!would_taint(&mut failing), "it may be back in a moment");
    failing.now += 10;
    failing.room = false;
    assert!(!would_taint(&mut failing), "the budget is used up");
    failing.room = true;
    assert!(would_taint(&mut failing));
    failing.room = false;
    assert!(would_taint(&mut failing), "it has its place in the budget");
    let mut tainted = dry(json!({}));
    tainted.node.taints.push(taint(KEY, "NoSchedule"));
    warm(&mut tainted.node);
    let plan = tainted.pass();
    assert!(plan.patch.is_none() && plan.views["a"].would_release && !plan.views["a"].would_taint);
}

#[test]
fn missing_objects_of_a_requirement_are_reported_by_name() {
    let resource = json!({"name": "ingress", "ingressDaemonSet": {"namespace": "edge", "name": "web"}});
    let other = json!({"name": "first", "gate": {"name": "network"}});
    let mut life = Life::new(vec![gate("a", json!({"requirements": [resource, other]}))]);
    life.world.absent.insert(("edge".into(), "web".into()));
    let gate = &life.world.gates["a"];
    let seen = Circumstances { unseen: unseen(&life.world, gate), ..Circumstances::default() };
    assert_eq!(seen.unseen, ["IngressDaemonSet edge/web does not exist", "NodeReadinessGate network does not exist"]);
    let said = status(gate, &[], std::iter::empty(), &seen, NOW);
    assert_eq!((said.conditions[0].status.as_str(), said.conditions[0].reason.as_str()), ("False", "SourceUnavailable"));
    life.settle();
    let blocked = &life.plan().views["a"].blocked;
    assert!(blocked.iter().any(|(_, reason)| reason == "IngressDaemonSet edge/web does not exist"), "{blocked:?}");
}

#[test]
fn a_gate_awaiting_its_taint_or_unenforced_gates_never_opens() {
    let reason = |gates: Vec<Gate>| {
        let life = Life::new(gates);
        unsatisfiable(&life.world, &life.world.gates["a"]).map(|(reason, _)| reason)
    };
    assert_eq!(reason(vec![gate("a", json!({"release": {"waitForTaintsGone": [KEY]}}))]), Some("WaitsForOwnTaint"));
    let after = |uid: &str| gate(uid, json!({"requirements": [{"name": "first", "gate": {"name": "gate-b"}}]}));
    assert_eq!(reason(vec![after("a"), gate("b", json!({}))]), None);
    assert_eq!(reason(vec![after("a"), gate("b", json!({"dryRun": true}))]), Some("GateNotEnforced"));
    assert_eq!(reason(vec![after("a"), after("b")]), Some("GateNotEnforced"), "the other waits for itself");
}

#[test]
fn an_any_of_gate_needs_only_one_satisfiable_requirement() {
    let any = |uid: &str, requirements: Value| gate(uid, json!({"policy": "AnyOf", "requirements": requirements}));
    let of = |other: &str| json!({"name": other, "gate": {"name": format!("gate-{other}")}});
    let warm = || json!({"name": "warm", "condition": {"type": "Warm"}});
    let reason = |gates: Vec<Gate>| {
        let life = Life::new(gates);
        unsatisfiable(&life.world, &life.world.gates["a"]).map(|(reason, _)| reason)
    };
    let dry = || gate("b", json!({"dryRun": true}));
    assert_eq!(reason(vec![any("a", json!([of("b"), warm()])), dry()]), None);
    assert_eq!(reason(vec![any("a", json!([of("b")])), dry()]), Some("GateNotEnforced"));
    assert_eq!(reason(vec![any("a", json!([of("b"), warm()])), any("b", json!([of("a"), warm()]))]), None, "each has a way out");
    assert_eq!(reason(vec![any("a", json!([of("b"), warm()])), gate("b", json!({"requirements": [of("a")]}))]), None);
    assert_eq!(reason(vec![gate("a", json!({"requirements": [of("b")]})), any("b", json!([of("a"), warm()]))]), None);
    assert_eq!(reason(vec![any("a", json!([of("b"), of("a")])), gate("b", json!({"requirements": [of("a")]}))]), Some("GateCycle"));
}
