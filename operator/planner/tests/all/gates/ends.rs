//! Gates that go, nodes that leave them, and gates that run dry.

use super::life::*;
use planner::gate::{Gate, record::Origin};
use serde_json::json;
use std::sync::Arc;

#[test]
fn a_node_that_leaves_the_selector_loses_only_a_taint_that_was_ours_or_that_the_policy_gives_up() {
    let spec = |policy: &str| json!({"allNodes": false, "nodeSelector": {"matchLabels": {"role": "edge"}}, "deletionPolicy": policy});
    for (adopted, policy, stays) in
        [(false, "RemoveTaints", false), (false, "Orphan", false), (true, "RemoveTaints", false), (true, "Orphan", true)]
    {
        let mut life = Life::new(vec![gate("a", spec(policy))]);
        life.node.labels.insert("role".into(), "edge".into());
        if adopted {
            life.node.taints.push(taint(KEY, "NoSchedule"));
        }
        life.settle();
        assert_eq!(life.record("a").unwrap().origin, if adopted { Origin::Adopted } else { Origin::Applied });
        life.node.labels.remove("role");
        life.settle();
        assert_eq!((life.is_tainted(), life.record("a")), (stays, None), "adopted: {adopted}, {policy}");
    }
}

#[test]
fn a_gate_that_is_deleted_leaves_no_record_and_its_taints_only_where_it_says_so() {
    for (policy, stays) in [("RemoveTaints", false), ("Orphan", true)] {
        let mut life = Life::new(vec![gate("a", json!({"deletionPolicy": policy}))]);
        life.settle();
        let mut deleted = Gate::clone(&life.world.gates["a"]);
        deleted.deleting = true;
        life.world.gates.insert("a".into(), Arc::new(deleted));
        life.settle();
        assert_eq!((life.is_tainted(), life.record("a")), (stays, None));
    }
}

#[test]
fn what_a_vanished_gate_left_behind_goes_unless_it_may_only_be_unreadable() {
    let mut life = Life::new(vec![gate("a", json!({}))]);
    life.settle();
    life.world.gates.clear();
    life.world.incomplete = true;
    life.settle();
    assert!(life.is_tainted() && life.is_held("a"));
    life.world.incomplete = false;
    life.settle();
    assert!(!life.is_tainted() && life.record("a").is_none());
}

#[test]
fn a_dry_run_writes_nothing_and_counts() {
    let mut life = Life::new(vec![gate("a", json!({"dryRun": true}))]);
    let plan = life.pass();
    assert!(plan.patch.is_none() && plan.views["a"].would_taint);
    life.node.taints.push(taint(KEY, "NoSchedule"));
    warm(&mut life.node);
    let plan = life.pass();
    assert!(plan.patch.is_none() && plan.views["a"].would_release);
    let mut deleted = Gate::clone(&life.world.gates["a"]);
    deleted.deleting = true;
    life.world.gates.insert("a".into(), Arc::new(deleted));
    assert!(life.pass().patch.is_none(), "a taint of somebody else is not removed with it");
}

#[test]
fn a_gate_that_is_being_deleted_taints_no_node() {
    let mut life = Life::new(vec![Gate { deleting: true, ..gate("a", json!({"existingNodes": "Gate"})) }]);
    assert!(life.pass().patch.is_none());
}

#[test]
fn a_node_that_the_selector_does_not_choose_is_neither_written_to_nor_counted() {
    let spec = json!({"allNodes": false, "nodeSelector": {"matchLabels": {"role": "edge"}}});
    for role in [None, Some("web")] {
        let mut life = Life::new(vec![gate("a", spec.clone())]);
        if let Some(role) = role {
            life.node.labels.insert("role".into(), role.into());
        }
        life.node.taints.push(taint(KEY, "NoSchedule"));
        for is_warm in [false, true] {
            if is_warm {
                warm(&mut life.node);
            }
            let plan = life.pass();
            assert!(plan.patch.is_none() && plan.views.is_empty(), "{plan:?}");
        }
    }
}

#[test]
fn a_dry_run_counts_over_the_nodes_that_it_selects_what_would_come_and_go_and_leaves_other_gates_alone() {
    let condition = |more: serde_json::Value| {
        let mut wanted = json!({"type": "Warm"});
        wanted.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"dryRun": true, "requirements": [{"name": "warm", "condition": wanted}]})
    };
    // Tainted, what the condition says if it is there, what counts if it is not; then whether the taint would come, and go.
    for (tainted, says, default, comes, goes) in [
        (false, Some("False"), None, true, false),
        (false, Some("True"), None, false, false),
        (true, Some("True"), None, false, true),
        (true, Some("False"), None, false, false),
        (false, None, None, true, false),
        (false, None, Some("True"), false, false),
        (true, None, Some("True"), false, true),
    ] {
        let more = default.map_or(json!({}), |default| json!({"default": default}));
        let mut life = Life::new(vec![gate("a", condition(more)), gate("b", json!({"taint": {"key": "other"}}))]);
        if tainted {
            life.node.taints.push(taint(KEY, "NoSchedule"));
        }
        match says {
            Some("True") => warm(&mut life.node),
            Some(_) => cold(&mut life.node),
            None => {}
        }
        let plan = life.pass();
        let view = &plan.views["a"];
        assert_eq!((view.would_taint, view.would_release), (comes, goes), "{tainted} {says:?} {default:?}");
        assert_eq!(!view.blocked.is_empty(), comes || tainted && !goes, "a missing condition is named: {view:?}");
        assert_eq!(life.is_tainted(), tainted);
        assert!(life.record("a").is_none() && life.record("b").is_some());
    }
}

#[test]
fn a_held_node_gets_the_new_taint_of_its_gate_and_loses_the_former_one_in_one_write() {
    let keys = |life: &Life| life.node.taints.iter().map(|taint| taint.key.clone()).collect::<Vec<_>>();
    let moved = || Arc::new(gate("a", json!({"taint": {"key": "other", "effect": "NoSchedule"}})));
    let mut life = Life::new(vec![gate("a", json!({}))]);
    life.settle();
    life.world.gates.insert("a".into(), moved());
    life.settle();
    assert_eq!((keys(&life), life.writes), (vec!["other".to_owned()], 2));
    let record = life.record("a").unwrap();
    assert!(record.is_held() && record.key == "other" && record.time == NOW, "held since it was first held: {record:?}");
    warm(&mut life.node);
    life.settle();
    assert!(life.node.taints.is_empty() && !life.is_held("a"));
    // It was released while nobody looked, and the gate was changed.
    let mut ready = Life::new(vec![gate("a", json!({}))]);
    ready.settle();
    warm(&mut ready.node);
    ready.world.gates.insert("a".into(), moved());
    assert!(ready.settle().node.taints.is_empty());
    // What is not ours stays, and so does what another gate needs.
    let mut shared = Life::new(vec![gate("a", json!({})), gate("b", json!({}))]);
    shared.settle();
    shared.world.gates.insert("a".into(), moved());
    shared.settle();
    assert_eq!(keys(&shared), [KEY, "other"]);
    let mut adopted = Life::new(vec![gate("a", json!({}))]);
    adopted.node.taints.push(taint(KEY, "NoSchedule"));
    adopted.settle();
    adopted.world.gates.insert("a".into(), moved());
    adopted.settle();
    assert_eq!(keys(&adopted), [KEY, "other"]);
}
