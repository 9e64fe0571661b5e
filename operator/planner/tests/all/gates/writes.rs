//! What is written to a Node, and what the API server makes of it.

use super::life::*;
use crds::node_readiness_gate::Mode;
use planner::{
    facts::NodeFacts,
    node_gates::{
        record::{RecordOrigin, RecordState, annotation_key},
        transition::Happened,
    },
};
use serde_json::{Value, json};
use std::sync::Arc;

#[test]
fn one_write_covers_taint_or_release_and_its_record() {
    let mut life = Life::new(vec![gate("a", json!({}))]);
    let plan = life.pass();
    assert_eq!(plan.transitions[0].happened, Happened::Added { late: true });
    assert!(life.is_tainted() && life.is_held("a"));
    assert_eq!(life.node.taints[0].value.as_deref(), Some("pending"));
    warm(&mut life.node);
    life.settle();
    assert!(!life.is_tainted() && !life.is_held("a"));
    assert_eq!(life.record("a").unwrap().state, RecordState::Released);
    assert_eq!(life.writes, 2);
}

#[test]
fn a_patch_amid_foreign_taints_applies_correctly_or_fails() {
    let mut life = Life::new(vec![gate("a", json!({}))]);
    life.node.taints = vec![taint("theirs", "NoSchedule")];
    let add = life.plan().patch.unwrap();
    let mut meanwhile = life.node.clone();
    meanwhile.taints.push(taint("another", "NoExecute"));
    let after = patched(&meanwhile, &add).unwrap();
    assert_eq!(after.taints.iter().map(|taint| taint.key.as_str()).collect::<Vec<_>>(), ["theirs", "another", KEY]);
    life.settle();
    warm(&mut life.node);
    let remove = life.plan().patch.unwrap();
    let mut shifted = life.node.clone();
    shifted.taints.remove(0);
    assert!(patched(&shifted, &remove).is_none(), "at that place there is another taint by now");
    let mut appended = life.node.clone();
    appended.taints.push(taint("another", "NoExecute"));
    let after = patched(&appended, &remove).unwrap();
    assert_eq!(after.taints.iter().map(|taint| taint.key.as_str()).collect::<Vec<_>>(), ["theirs", "another"]);
}

#[test]
fn a_first_taint_does_not_overwrite_a_concurrent_taint_list() {
    let life = Life::new(vec![gate("a", json!({}))]);
    let patch = life.plan().patch.unwrap();
    let mut meanwhile = life.node.clone();
    meanwhile.taints.push(taint("theirs", "NoSchedule"));
    assert!(patched(&meanwhile, &patch).is_none());
    assert!(patched(&life.node, &patch).is_some());
    let mut life = Life { node: meanwhile, ..life };
    life.settle();
    assert_eq!(life.node.taints.iter().map(|taint| taint.key.as_str()).collect::<Vec<_>>(), ["theirs", KEY], "both are there");
}

#[test]
fn a_node_without_any_annotation_gets_its_first_one() {
    let mut life = Life::new(vec![gate("a", json!({}))]);
    life.node.has_annotations = false;
    life.settle();
    assert!(life.is_tainted() && life.is_held("a"));
}

#[test]
fn another_node_of_the_same_name_is_not_touched() {
    let life = Life::new(vec![gate("a", json!({}))]);
    let patch = life.plan().patch.unwrap();
    let other = NodeFacts { uid: "another".into(), ..life.node };
    assert!(patched(&other, &patch).is_none());
}

#[test]
fn time_added_by_the_api_server_does_not_prevent_removal() {
    let mut life = Life::new(vec![gate("a", json!({}))]);
    life.settle();
    life.node.taints[0].time_added = serde_json::from_value(json!("2026-01-01T00:00:00Z")).ok();
    warm(&mut life.node);
    life.settle();
    assert!(!life.is_tainted());
}

#[test]
fn a_restart_never_leaves_a_released_node_tainted() {
    // What is remembered beside the Node is lost before every single pass.
    let mut life = Life::new(vec![gate("a", json!({"release": {"minHold": "3s"}}))]);
    for second in 0..10 {
        life.clocks.clear();
        if second == 4 {
            warm(&mut life.node);
        }
        life.after(1);
        assert_eq!(life.is_tainted(), life.is_held("a"));
    }
    assert!(!life.is_tainted());
    assert_eq!(life.writes, 2);
}

/// The beginning of a node's life, second by second: it comes, gets warm, has the taint put back by somebody, and gets cold.
fn bootstrap(restarts: &dyn Fn(i64) -> bool) -> Life {
    let mut life = Life::new(vec![gate("a", json!({"release": {"stableFor": "2s", "minHold": "5s"}}))]);
    for second in 0..24 {
        match second {
            4 => warm(&mut life.node),
            14 => life.node.taints.push(taint(KEY, "NoSchedule")),
            18 => cold(&mut life.node),
            _ => {}
        }
        for _ in 0..2 {
            // Before a write and after it.
            if restarts(second) {
                life.clocks.clear();
            }
            life.pass();
            assert_eq!(life.is_tainted(), life.is_held("a"), "at second {second}");
        }
        life.now += 1;
    }
    life
}

#[test]
fn restarts_during_a_bootstrap_do_not_change_its_outcome() {
    let without = bootstrap(&|_| false);
    assert_eq!((without.is_tainted(), without.writes), (false, 3), "the taint, the release, and what somebody put back");
    for first in 0..24 {
        for second in first..24 {
            let life = bootstrap(&|now| now == first || now == second);
            assert_eq!((life.is_tainted(), life.writes), (false, 3), "restarts at {first} and {second}");
            let state = |life: &Life| life.record("a").map(|record| (record.state, record.origin, record.cause));
            assert_eq!(state(&life), state(&without));
        }
    }
}

#[test]
fn a_record_that_somebody_made_unreadable_is_written_anew() {
    let mut life = Life::new(vec![gate("a", json!({}))]);
    life.settle();
    life.node.annotations.insert(annotation_key("a"), "{".into());
    life.settle();
    assert!(life.is_held("a") && life.is_tainted());
    assert_eq!(life.record("a").unwrap().origin, RecordOrigin::Adopted);
}

#[test]
fn a_node_that_is_being_deleted_is_left_alone() {
    let mut life = Life::new(vec![gate("a", json!({}))]);
    life.node.deleting = true;
    assert!(life.pass().patch.is_none());
}

#[test]
fn stale_patches_are_decided_again_from_the_newest_object() {
    let mut life = Life::new(vec![gate("a", json!({}))]);
    life.node.taints = vec![taint("theirs", "NoSchedule")];
    life.settle();
    warm(&mut life.node);
    let late = life.plan().patch.unwrap();
    life.node.taints.remove(0);
    assert!(patched(&life.node, &late).is_none(), "its place in the list is another one by now");
    life.settle();
    assert!(life.node.taints.is_empty() && !life.is_held("a"));
}

#[test]
fn taint_and_release_from_one_view_exclude_each_other() {
    let seen = Life::new(vec![gate("a", json!({}))]);
    let mut ready = seen.node.clone();
    warm(&mut ready);
    let hold = seen.plan().patch.unwrap();
    let release = Life { node: ready, ..Life::new(vec![gate("a", json!({}))]) }.plan().patch.unwrap();
    for (first, second) in [(&hold, &release), (&release, &hold)] {
        let after = patched(&seen.node, first).unwrap();
        assert!(patched(&after, second).is_none(), "{second} after {first}");
    }
}

#[test]
fn a_taint_that_is_gone_already_is_not_removed() {
    let mut life = Life::new(vec![gate("a", json!({}))]);
    life.settle();
    life.node.taints.clear();
    warm(&mut life.node);
    let patch = life.pass().patch.unwrap().to_string();
    assert!(!patch.contains("/spec/taints"), "the record alone: {patch}");
    assert!(life.pass().patch.is_none(), "nothing is left to write");
}

#[test]
fn a_record_is_kept_by_gate_uid_despite_equal_names() {
    let named = |uid: &str| planner::node_gates::Gate { name: "n".repeat(253), ..gate(uid, json!({})) };
    let mut life = Life::new(vec![named("0a1b2c3d-0000-4000-8000-000000000001")]);
    warm(&mut life.node);
    life.settle();
    let keys: Vec<_> = life.node.annotations.entries().map(|(key, _)| key.to_owned()).collect();
    assert_eq!(keys, [annotation_key("0a1b2c3d-0000-4000-8000-000000000001")]);
    assert!(keys[0].split_once('/').is_some_and(|(_, name)| name.len() <= 63), "the API server takes 63 characters");
    let anew = named("0a1b2c3d-0000-4000-8000-000000000002");
    life.world.gates = [(anew.uid.clone(), Arc::new(anew))].into();
    cold(&mut life.node);
    life.settle();
    assert!(life.is_tainted() && life.node.annotations.entries().count() == 1, "that it passed once was said of another gate");
}

#[test]
fn every_transition_takes_exactly_one_write() {
    let spec = json!({"mode": "Continuous", "retaint": {"failingFor": "0s"}});
    let mut life = Life::new(vec![gate("a", spec.clone()), gate("b", spec)]);
    assert_eq!(life.world.gates["a"].spec.mode, Mode::Continuous);
    for (transition, is_warm) in [false, true, false, true].into_iter().enumerate() {
        if is_warm {
            warm(&mut life.node);
        } else {
            cold(&mut life.node);
        }
        let patch: Value = life.pass().patch.unwrap();
        let touches = |path: &str| {
            patch.as_array().unwrap().iter().any(|step| step["op"] != "test" && step["path"].as_str().unwrap().starts_with(path))
        };
        assert!(touches("/spec/taints") && touches("/metadata/annotations"), "{patch}");
        life.after(60);
        assert_eq!(life.writes, transition + 1, "both gates, taint and records");
    }
}
