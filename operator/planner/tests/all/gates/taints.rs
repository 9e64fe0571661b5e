//! When the taint of a gate comes and goes.

use super::life::*;
use planner::{
    gates_shared::ReplicaHealth,
    node_gates::{Gate, record::Cause, retaint_budget::RetaintBudget, transition::Happened},
};
use serde_json::json;
use std::{collections::BTreeSet, sync::Arc};

#[test]
fn a_bootstrap_gate_never_taints_a_node_again_that_has_passed() {
    let mut life = Life::new(vec![gate("a", json!({}))]);
    warm(&mut life.node);
    life.settle();
    cold(&mut life.node);
    life.after(3_600);
    assert!(!life.is_tainted());
    assert_eq!(life.writes, 1, "the record alone");
}

#[test]
fn a_taint_that_comes_back_after_the_release_is_removed_again() {
    let mut life = Life::new(vec![gate("a", json!({}))]);
    life.settle();
    warm(&mut life.node);
    life.settle();
    life.node.taints.push(taint(KEY, "NoSchedule"));
    life.settle();
    assert!(!life.is_tainted());
}

#[test]
fn a_continuous_gate_taints_a_node_again_that_fails_for_long_enough() {
    let mut life = Life::new(vec![gate("a", json!({"mode": "Continuous", "retaint": {"failingFor": "10s"}}))]);
    warm(&mut life.node);
    life.settle();
    cold(&mut life.node);
    life.settle();
    life.after(9);
    assert!(!life.is_tainted());
    life.after(1);
    assert!(life.is_tainted());
    assert_eq!(life.record("a").unwrap().cause, Cause::Regression);
    warm(&mut life.node);
    life.settle();
    assert!(!life.is_tainted());
}

#[test]
fn what_flaps_every_second_causes_at_most_one_write_in_a_window() {
    let spec = json!({"mode": "Continuous", "release": {"stableFor": "5s"}, "retaint": {"failingFor": "5s"}});
    let mut life = Life::new(vec![gate("a", spec)]);
    life.settle();
    let before = life.writes;
    for second in 0..60 {
        if second % 2 == 0 {
            warm(&mut life.node);
        } else {
            cold(&mut life.node);
        }
        life.after(1);
    }
    assert_eq!(life.writes, before, "it was never steady for 5 s");
    assert!(life.is_tainted());
    warm(&mut life.node);
    life.settle();
    life.after(5);
    assert!(!life.is_tainted());
    let before = life.writes;
    for second in 0..60 {
        if second % 2 == 0 {
            cold(&mut life.node);
        } else {
            warm(&mut life.node);
        }
        life.after(1);
    }
    assert_eq!(life.writes, before, "it never failed for 5 s");
    assert!(!life.is_tainted());
}

#[test]
fn without_room_a_node_keeps_its_release_and_the_gate_says_so() {
    let mut life = Life::new(vec![gate("a", json!({"mode": "Continuous", "retaint": {"failingFor": "0s"}}))]);
    warm(&mut life.node);
    life.settle();
    cold(&mut life.node);
    life.room = false;
    let plan = life.pass();
    assert!(!life.is_tainted() && plan.views["a"].no_room && plan.recheck_at.is_some());
    life.room = true;
    life.settle();
    assert!(life.is_tainted());
}

#[test]
fn the_budget_counts_nodes_at_once_and_in_a_minute_and_is_smaller_where_pods_are_evicted() {
    let of = |more| gate("a", more);
    let room = |gate: &Gate, matched, regressed, lately| RetaintBudget::of(gate, matched, regressed, lately).is_open();
    let plain = of(json!({"mode": "Continuous"}));
    assert!(room(&plain, 100, 19, 0) && !room(&plain, 100, 20, 0) && room(&plain, 3, 0, 0) && !room(&plain, 3, 1, 0));
    assert!(room(&plain, 1_000, 29, 29) && !room(&plain, 1_000, 30, 30));
    let evicting = of(json!({"mode": "Continuous", "taint": {"key": KEY, "effect": "NoExecute"}}));
    assert!(room(&evicting, 100, 4, 0) && !room(&evicting, 100, 5, 0));
    let none = of(json!({"mode": "Continuous", "retaint": {"budget": {"maxNodes": 0}}}));
    assert!(!room(&none, 100, 0, 0));
}

#[test]
fn requirements_must_be_met_without_a_break_and_the_taint_stays_its_least_time() {
    let mut life = Life::new(vec![gate("a", json!({"release": {"stableFor": "5s", "minHold": "30s"}}))]);
    life.settle();
    life.after(20);
    warm(&mut life.node);
    life.settle();
    life.after(9);
    assert!(life.is_tainted(), "met for long enough, and held for 29 s");
    life.after(1);
    assert!(!life.is_tainted());
}

#[test]
fn a_node_that_karpenter_or_a_cloud_has_not_finished_is_not_released() {
    for unfinished in ["karpenter.sh/unregistered", "node.cloudprovider.kubernetes.io/uninitialized"] {
        let mut life = Life::new(vec![gate("a", json!({}))]);
        life.node.taints.push(taint(unfinished, "NoExecute"));
        warm(&mut life.node);
        life.settle();
        assert!(life.is_tainted() && life.is_held("a"), "{unfinished}");
        life.node.taints.retain(|taint| taint.key != unfinished);
        life.settle();
        assert!(!life.is_tainted());
    }
}

#[test]
fn a_node_that_is_held_for_too_long_is_reported_or_released_as_told() {
    let with = |action: &str| gate("a", json!({"release": {"timeout": {"after": "60s", "action": action}}}));
    let mut life = Life::new(vec![with("Report")]);
    life.settle();
    life.after(60);
    assert!(life.is_tainted() && life.plan().views["a"].stuck);
    let mut life = Life::new(vec![with("Release")]);
    life.settle();
    life.after(59);
    assert!(life.is_tainted());
    life.now += 1;
    assert_eq!(life.pass().transitions[0].happened, Happened::TimedOut);
    assert!(!life.is_tainted());
}

#[test]
fn a_node_that_was_released_for_the_time_it_took_stays_so_until_it_was_ready_once() {
    let spec = json!({
        "mode": "Continuous", "retaint": {"failingFor": "10s"}, "release": {"timeout": {"after": "60s", "action": "Release"}},
    });
    let mut life = Life::new(vec![gate("a", spec)]);
    cold(&mut life.node);
    life.settle();
    life.node.taints.push(taint("karpenter.sh/unregistered", "NoExecute"));
    life.after(60);
    assert!(life.is_tainted(), "others have not finished it");
    life.node.taints.retain(|taint| taint.key == KEY);
    life.settle();
    assert!(!life.is_tainted());
    let writes = life.writes;
    life.after(1000);
    assert!(!life.is_tainted() && life.writes == writes);
    warm(&mut life.node);
    life.settle();
    cold(&mut life.node);
    life.settle();
    life.after(10);
    assert!(life.is_tainted());
}

#[test]
fn an_older_node_is_gated_grandfathered_or_gated_while_it_is_idle_as_told() {
    let old = |existing: &str| {
        let mut life = Life::new(vec![gate("a", json!({"existingNodes": existing}))]);
        life.node.created = 500;
        life
    };
    assert!(old("Gate").settle().is_tainted());
    assert!(!old("Grandfather").settle().is_tainted());
    let mut life = old("GateIfIdle");
    assert_eq!(life.pass().asks_whether_idle, BTreeSet::from(["a".to_owned()]));
    assert!(life.record("a").is_none());
    for (idle, tainted) in [(true, true), (false, false)] {
        let mut life = old("GateIfIdle");
        life.clocks.entry("a".into()).or_default().idle = Some(idle);
        assert_eq!(life.settle().is_tainted(), tainted);
    }
}

#[test]
fn what_is_not_said_for_older_nodes_follows_from_the_mode() {
    for (mode, tainted) in [("Bootstrap", false), ("Continuous", true)] {
        let mut life = Life::new(vec![gate("a", json!({"mode": mode}))]);
        life.node.created = 500;
        life.settle();
        assert_eq!(life.after(10).is_tainted(), tainted, "{mode}");
    }
}

#[test]
fn another_boot_or_machine_makes_a_released_node_a_new_one_where_that_is_asked_for() {
    for (regate, cause) in [("Reboot", Cause::Reboot), ("Replaced", Cause::Replaced)] {
        let mut life = Life::new(vec![gate("a", json!({"regateOn": [regate]})), gate("b", json!({"taint": {"key": "other"}}))]);
        warm(&mut life.node);
        life.settle();
        life.node.boot_id = "boot-2".into();
        life.node.machine_id = "machine2".into();
        cold(&mut life.node);
        life.settle();
        assert!(life.is_held("a") && !life.is_held("b"));
        assert_eq!(life.record("a").unwrap().cause, cause);
    }
}

#[test]
fn a_change_of_the_spec_gates_released_nodes_again_only_where_that_is_asked_for() {
    for (regate, held) in [(json!(["Generation"]), true), (json!(["Reboot"]), false)] {
        let mut life = Life::new(vec![gate("a", json!({"regateOn": regate}))]);
        warm(&mut life.node);
        life.settle();
        cold(&mut life.node);
        let mut changed = Gate::clone(&life.world.gates["a"]);
        changed.generation = 2;
        life.world.gates.insert("a".into(), Arc::new(changed));
        assert_eq!(life.settle().is_held("a"), held);
    }
}

#[test]
fn a_taint_that_somebody_removes_comes_back_after_a_pause() {
    let mut life = Life::new(vec![gate("a", json!({}))]);
    life.settle();
    life.node.taints.clear();
    assert_eq!(life.pass().transitions[0].happened, Happened::PutBack);
    life.settle();
    life.node.taints.clear();
    life.settle();
    assert!(!life.is_tainted(), "at most once in ten seconds");
    life.after(10);
    assert!(life.is_tainted());
}

#[test]
fn a_release_leaves_the_annotation_that_says_so_where_one_is_asked_for_and_a_node_that_has_it_counts_as_released() {
    let with = || Gate { completion_annotation: Some("startup.k8s.io/completedAt".into()), ..gate("a", json!({})) };
    let mut life = Life::new(vec![with()]);
    life.settle();
    assert!(!life.node.annotations.contains_key("startup.k8s.io/completedAt"));
    warm(&mut life.node);
    life.settle();
    assert_eq!(life.node.annotations.get("startup.k8s.io/completedAt"), Some(&NOW.to_string()));
    let mut life = Life::new(vec![with()]);
    life.node.annotations.insert("startup.k8s.io/completedAt".into(), "1".into());
    assert!(!life.settle().is_tainted());
}

#[test]
fn a_release_is_told_once_with_the_time_for_which_the_node_was_held() {
    let mut life = Life::new(vec![gate("a", json!({}))]);
    life.settle();
    life.after(42);
    warm(&mut life.node);
    let plan = life.pass();
    let told: Vec<_> = plan.transitions.iter().map(|transition| (transition.happened, transition.held_for)).collect();
    assert_eq!(told, [(Happened::Removed, Some(42))]);
    for _ in 0..3 {
        life.now += 10;
        assert!(life.pass().transitions.is_empty());
    }
}

#[test]
fn a_node_that_comes_with_the_taint_and_is_ready_is_released_in_the_write_that_takes_it_off() {
    let mut life = Life::new(vec![gate("a", json!({}))]);
    life.node.taints.push(taint(KEY, "NoSchedule"));
    warm(&mut life.node);
    life.pass();
    assert!(!life.is_tainted() && life.record("a").is_some_and(|record| !record.is_held()), "never released and tainted");
    assert_eq!(life.writes, 1);
    let mut life = Life::new(vec![gate("a", json!({}))]);
    life.node.taints.push(taint(KEY, "NoSchedule"));
    assert_eq!(life.pass().transitions[0].happened, Happened::Adopted);
    assert!(life.is_tainted() && life.is_held("a"));
}

#[test]
fn a_gate_that_asks_for_something_else_taints_no_node_that_has_passed_while_that_cannot_be_seen() {
    let mut life = Life::new(vec![gate("a", json!({"regateOn": ["Generation"]}))]);
    warm(&mut life.node);
    life.settle();
    let replicas = json!({"name": "replicas", "ingressDaemonSet": {"namespace": "edge", "name": "web"}});
    let mut changed = gate("a", json!({"regateOn": ["Generation"], "requirements": [replicas]}));
    changed.generation = 2;
    life.world.gates.insert("a".into(), Arc::new(changed));
    life.world.absent.insert(("edge".into(), "web".into()));
    life.settle();
    assert!(!life.after(600).is_tainted(), "there is no such resource");
    let none = ReplicaHealth {
        node_uid: life.node.uid.clone(),
        labels_and_taints_hash: life.node.labels_and_taints_hash(),
        chosen: true,
        wanted: 2,
        ..ReplicaHealth::default()
    };
    life.world.absent.clear();
    life.world.replicas.insert(("edge".into(), "web".into()), Arc::new([(NODE.to_owned(), none)].into()));
    assert!(life.settle().is_tainted());
}
