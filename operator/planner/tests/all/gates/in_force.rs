//! Which nodes are new to a gate that was made long ago and switched on just now.

use super::{life::*, standing};
use crds::{
    NodeReadinessGateStatus,
    node_readiness_gate::{ConditionStatus, InForce},
    status::UNOBSERVED,
};
use planner::node_gates::{
    Gate,
    decide::GateView,
    in_force::{NOT_READY, Said, in_force},
    record::Cause,
    status::{Circumstances, RefusedWrites, status},
};
use serde_json::{Value, json};
use std::sync::Arc;

/// Its gate was made before the node, and is in force since after it.
fn switched_on(more: Value) -> Life {
    let mut life = Life::new(vec![gate("a", more)]);
    life.world.in_force.insert("a".into(), NOW - 10);
    life
}

fn says_ready(life: &mut Life, status: ConditionStatus, transition: i64) {
    says(&mut life.node, "Ready", status);
    life.node.conditions.last_mut().unwrap().transition = transition;
}

#[test]
fn nodes_older_than_enforcement_by_the_gate_count_as_existing() {
    let mut life = switched_on(json!({}));
    assert!(!life.settle().is_tainted() && life.record("a").is_some(), "mode Bootstrap: it counts as released");
    let mut life = switched_on(json!({"mode": "Continuous"}));
    assert!(!life.settle().is_tainted(), "it may be back in a moment");
    life.room = false;
    let plan = {
        life.now += 10;
        life.pass()
    };
    assert!(!life.is_tainted() && plan.views["a"].no_room, "the budget bounds how many of them are tainted");
    life.room = true;
    assert!(life.settle().is_tainted());
    assert_eq!(life.record("a").unwrap().cause, Cause::Regression, "it counts against the budget");
    let mut life = Life::new(vec![gate("a", json!({"mode": "Continuous"}))]);
    assert!(life.settle().is_tainted(), "one that came while it was in force is held at once");
}

#[test]
fn never_ready_nodes_are_new_to_an_older_gate() {
    for (name, ready, new) in [
        ("its kubelet has said nothing", None, true),
        ("it has said no since it came", Some((ConditionStatus::False, 2_003)), true),
        ("nobody has heard of it", Some((ConditionStatus::Unknown, 2_050)), true),
        ("it worked, and was lost", Some((ConditionStatus::Unknown, 9_000)), false),
        ("it is ready by now", Some((ConditionStatus::True, 9_999)), false),
    ] {
        let mut life = switched_on(json!({}));
        life.node.taints.push(taint(NOT_READY, "NoSchedule"));
        if let Some((status, transition)) = ready {
            says_ready(&mut life, status, transition);
        }
        assert_eq!(life.settle().is_tainted(), new, "{name}");
        life.node.created = 500;
        life.node.annotations = planner::facts::label_map::LabelMap::default();
        life.node.taints.retain(|taint| taint.key == NOT_READY);
        assert!(!life.settle().is_tainted(), "{name}: one that is older than the gate itself");
    }
}

#[test]
fn a_working_node_stays_untainted_until_replicas_are_seen() {
    let wanted = json!({"namespace": "edge", "name": "web"});
    for effect in ["NoSchedule", "NoExecute"] {
        let gate = gate(
            "a",
            json!({
                "mode": "Continuous", "taint": {"key": KEY, "effect": effect},
                "requirements": [{"name": "replicas", "ingressDaemonSet": wanted}],
            }),
        );
        let mut life = Life::new(vec![gate]);
        says_ready(&mut life, ConditionStatus::True, 2_030);
        let plan = life.pass();
        assert!(plan.patch.is_none(), "{effect}: it came while the operator was down, whose passes begin now");
        life.node.taints.push(taint(NOT_READY, "NoSchedule"));
        life.settle();
        assert!(life.is_tainted(), "{effect}: nothing runs there yet");
    }
}

#[test]
fn a_gate_enabled_during_an_update_does_not_taint_yet() {
    let wanted = json!({"namespace": "edge", "name": "web", "maxHold": "60s"});
    let mut life = switched_on(json!({"mode": "Continuous", "requirements": [{"name": "replicas", "ingressDaemonSet": wanted}]}));
    let health = planner::gates_shared::ReplicaHealth {
        node_uid: life.node.uid.clone(),
        labels_and_taints_hash: life.node.labels_and_taints_hash(),
        chosen: true,
        wanted: 2,
        updating_since: Some(NOW),
        ..Default::default()
    };
    life.world.replicas.insert(("edge".into(), "web".into()), Arc::new([(NODE.to_owned(), health)].into()));
    life.settle();
    assert!(!life.after(30).is_tainted() && life.record("a").is_some());
}

#[test]
fn gates_are_in_force_from_creation_edit_or_satisfiability() {
    let since = |found: &Option<InForce>| found.as_ref().map(|found| found.since.0.as_second());
    let said = |generation, in_force: &Option<InForce>| Said { generation, in_force: in_force.clone() };
    let fresh = gate("a", json!({}));
    let first = in_force(&fresh, true, None, NOW);
    assert_eq!(since(&first), Some(1_000), "nobody has looked at it before");
    let unobserved = NodeReadinessGateStatus { observed_generation: Some(UNOBSERVED), ..NodeReadinessGateStatus::default() };
    assert_eq!(Said::of(&unobserved), None, "the API server wrote this status, and no operator");
    let edited = Gate { generation: 2, edited: Some(NOW - 30), ..fresh.clone() };
    assert_eq!(since(&in_force(&edited, true, None, NOW)), Some(NOW), "what it was before nobody knows");
    assert_eq!(in_force(&edited, true, Some(&said(1, &first)), NOW), first, "another spec for the same nodes");
    assert_eq!(in_force(&fresh, false, Some(&said(1, &first)), NOW), None, "it could never open");
    assert_eq!(since(&in_force(&fresh, true, Some(&said(1, &None)), NOW)), Some(NOW), "it can open now, and nobody edited it");
    let others = gate("a", json!({"allNodes": false, "nodeSelector": {"matchLabels": {"role": "edge"}}})).spec;
    let narrowed = Gate { spec: others, ..edited.clone() };
    let dry = gate("a", json!({"dryRun": true}));
    assert_eq!(in_force(&dry, true, None, NOW), None);
    for (gate, before) in [(&narrowed, &first), (&edited, &None)] {
        let found = in_force(gate, true, Some(&said(1, before)), NOW);
        assert_eq!(since(&found), Some(NOW - 30), "nodes that came between the edit and this look are new to it");
        assert_eq!(in_force(gate, true, Some(&said(2, &found)), NOW + 60), found, "also after another start of the operator");
        for (edited, counts) in [(None, NOW), (Some(0), 1_000), (Some(NOW + 5), NOW)] {
            let gate = Gate { edited, ..gate.clone() };
            assert_eq!(since(&in_force(&gate, true, Some(&said(1, before)), NOW)), Some(counts), "edited at {edited:?}");
        }
    }
}

#[test]
fn refused_writes_are_reported_and_not_counted_as_held() {
    let mut life = Life::new(vec![gate("a", json!({}))]);
    let plan = life.plan();
    assert!(plan.patch.is_some());
    let said = |view: &GateView, refused| {
        status(&life.world.gates["a"], &[], [(NODE, view)].into_iter(), &Circumstances { refused, ..Circumstances::default() }, NOW)
    };
    let refused = RefusedWrites { nodes: 1, node: NODE.into(), forbidden: true, message: "nodes \"n1\" is forbidden".into() };
    let status = said(&plan.views["a"], Some(refused.clone()));
    assert_eq!((status.nodes.matched, status.nodes.held), (1, 0), "{status:?}");
    let ready = |said: &crds::NodeReadinessGateStatus| said.conditions.iter().find(|condition| condition.type_ == "Ready").unwrap().clone();
    assert_eq!((ready(&status).status.as_str(), ready(&status).reason.as_str()), ("False", "PatchForbidden"));
    assert!(ready(&status).message.contains("install the ClusterRole") && ready(&status).message.contains("including n1"));
    let failed = said(&plan.views["a"], Some(RefusedWrites { forbidden: false, ..refused }));
    assert_eq!(ready(&failed).reason, "PatchFailed");
    // What programs read that do not know these words: somebody must act, or the operator tries again.
    assert_eq!((standing(&status.conditions), standing(&failed.conditions)), (vec!["Stalled"], vec!["Reconciling"]));
    assert_eq!(standing(&said(&plan.views["a"], None).conditions), ["Ready"]);
    life.settle();
    let view = &life.plan().views["a"];
    assert!(view.held && !view.due);
}
