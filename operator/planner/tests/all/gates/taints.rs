//! When the taint of a gate comes and goes.

use super::life::*;
use planner::{
    gates_shared::ReplicaHealth,
    node_gates::{Gate, record::Cause, retaint_budget::RetaintBudget, transition::Happened},
};
use serde_json::json;
use std::{collections::BTreeSet, sync::Arc};

#[test]
fn a_bootstrap_gate_never_taints_a_passed_node_again() {
    let mut life = Life::new(vec![gate("a", json!({}))]);
    warm(&mut life.node);
    life.settle();
    cold(&mut life.node);
    life.after(3_600);
    assert!(!life.is_tainted());
    assert_eq!(life.writes, 1, "the record alone");
}

#[test]
fn a_taint_that_returns_after_release_is_removed_again() {
    let mut life = Life::new(vec![gate("a", json!({}))]);
    life.settle();
    warm(&mut life.node);
    life.settle();
    life.node.taints.push(taint(KEY, "NoSchedule"));
    life.settle();
    assert!(!life.is_tainted());
}

#[test]
fn a_continuous_gate_taints_a_node_that_keeps_failing() {
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
fn a_requirement_that_flaps_every_second_causes_no_writes() {
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
fn nodes_keep_their_release_while_the_budget_is_exhausted() {
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
fn the_retaint_budget_limits_nodes_at_once_and_per_minute() {
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
fn the_taint_stays_for_its_minimum_hold_despite_met_requirements() {
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
fn nodes_unfinished_by_karpenter_or_cloud_are_not_released() {
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
fn nodes_held_beyond_the_timeout_are_reported_or_released() {
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
fn a_timed_out_release_lasts_until_first_readiness() {
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
fn the_existing_nodes_setting_decides_about_older_nodes() {
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
fn the_mode_gives_the_default_for_older_nodes() {
    for (mode, tainted) in [("Bootstrap", false), ("Continuous", true)] {
        let mut life = Life::new(vec![gate("a", json!({"mode": mode}))]);
        life.node.created = 500;
        life.settle();
        assert_eq!(life.after(10).is_tainted(), tainted, "{mode}");
    }
}

#[test]
fn a_reboot_or_replacement_regates_nodes_only_if_configured() {
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
fn a_spec_change_regates_released_nodes_only_if_configured() {
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
fn a_release_is_known_by_the_completion_annotation() {
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
fn a_release_is_reported_once_with_its_hold_time() {
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
fn a_ready_node_created_tainted_is_released_in_one_write() {
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
fn an_unseen_new_requirement_taints_no_passed_node() {
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
