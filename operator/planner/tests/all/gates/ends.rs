//! Gates that go, nodes that leave them, and gates that run dry.

use super::life::*;
use crds::node_readiness_gate::{Effect, GateTaint};
use planner::node_gates::{
    Gate, legacy, preset,
    record::{RecordOrigin, annotation_key},
    transition::Happened,
};
use serde_json::json;
use std::{collections::BTreeSet, sync::Arc};

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
        assert_eq!(life.record("a").unwrap().origin, if adopted { RecordOrigin::Adopted } else { RecordOrigin::Applied });
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
fn a_node_that_is_let_go_without_being_ready_is_told_as_such_and_does_not_count_as_completed() {
    for cause in ["selector", "deleted", "not enforced"] {
        let spec = json!({"allNodes": false, "nodeSelector": {"matchLabels": {"role": "edge"}}});
        let mut life = Life::new(vec![Gate { completion_annotation: Some("completed".into()), ..gate("a", spec) }]);
        life.node.labels.insert("role".into(), "edge".into());
        life.settle();
        assert!(life.is_tainted());
        let mut changed = Gate::clone(&life.world.gates["a"]);
        match cause {
            "selector" => drop(life.node.labels.remove("role")),
            "deleted" => changed.deleting = true,
            _ => changed.spec.release = serde_json::from_value(json!({"waitForTaintsGone": [KEY]})).unwrap(),
        }
        life.world.gates.insert("a".into(), Arc::new(changed));
        let plan = life.pass();
        let happened: Vec<_> = plan.transitions.iter().map(|transition| transition.happened).collect();
        assert_eq!(happened, [Happened::LetGo], "{cause}");
        assert!(!life.is_tainted() && life.node.annotations.get("completed").is_none(), "{cause}");
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

/// A node with a taint that is not the operator's, and a record that its kubelet may have written.
fn isolated(uid: &str, key: &str) -> Life {
    let mut life = Life::new(vec![gate("a", json!({}))]);
    warm(&mut life.node);
    life.settle();
    life.node.taints.push(taint(key, "NoExecute"));
    let text = json!({"g": "gate-a", "k": key, "e": "NoExecute", "s": "held", "o": "applied", "c": "fresh", "t": 0}).to_string();
    let mut annotations: std::collections::BTreeMap<String, String> =
        life.node.annotations.entries().map(|(key, text)| (key.to_owned(), text.to_owned())).collect();
    annotations.insert(annotation_key(uid), text);
    life.node.annotations = annotations.into();
    life
}

#[test]
fn a_record_takes_no_taint_from_a_node_that_no_gate_is_known_to_have_had() {
    for uid in ["a", "gone", "ids-0a1b", legacy::UID, preset::UID] {
        let mut life = isolated(uid, "quarantine");
        let plan = life.pass();
        assert_eq!(plan.unknown, BTreeSet::from([("quarantine".to_owned(), "NoExecute".to_owned())]), "{uid}");
        life.settle();
        assert!(life.node.taints.iter().any(|taint| taint.key == "quarantine"), "{uid}");
        // Whoever cleans up finds it by its record, for as long as it is there.
        assert!(life.pass().patch.is_none() && life.record(uid).is_some(), "{uid}");
        life.node.taints.retain(|taint| taint.key != "quarantine");
        life.settle();
        assert!(life.plan().unknown.is_empty() && (uid == "a" || life.record(uid).is_none()), "{uid}");
    }
}

#[test]
fn nobody_is_told_to_remove_a_taint_that_a_gate_holds_though_a_record_calls_it_that_of_an_unknown_one() {
    let mut life = isolated("gone", "quarantine");
    let taint = json!({"key": "quarantine", "effect": "NoExecute"});
    life.world.gates.insert("b".into(), Arc::new(gate("b", json!({"taint": taint}))));
    assert_eq!(life.pass().unknown, BTreeSet::new());
}

#[test]
fn a_record_takes_the_taint_that_its_gate_had_before_as_status_and_rights_say() {
    let had = GateTaint { key: "former".into(), value: None, effect: Effect::NoExecute };
    // By the status that an operator wrote before this one started, of a gate that is there or of a resource without the field.
    for uid in ["a", "gone", "ids-0a1b"] {
        let mut life = isolated(uid, "former");
        life.world.taints.clear();
        life.world.remember_taints([(uid.to_owned(), vec![had.clone()])].into_iter(), |_| true);
        assert!(life.settle().node.taints.is_empty(), "{uid}");
    }
    // Of a resource that is gone, with a right that names keys; one for every key names none.
    for (right, stays) in [("edge=former", false), ("edge=*", true), ("edge=other", true)] {
        let mut life = isolated("ids-0a1b", "former");
        life.world.rights.taints = vec![right.parse().unwrap()];
        assert_eq!(!life.settle().node.taints.is_empty(), stays, "{right}");
    }
}

#[test]
fn what_taints_a_gate_had_is_remembered_while_it_is_there_or_a_node_has_its_record() {
    let mut life = Life::new(vec![gate("a", json!({}))]);
    for number in 0..20 {
        let moved = gate("a", json!({"taint": {"key": format!("key-{}", number % 18), "effect": "NoSchedule"}}));
        life.world.gates.insert("a".into(), Arc::new(moved));
        life.world.remember_taints(std::iter::empty(), |_| false);
    }
    let keys: Vec<_> = life.world.taints["a"].iter().map(|taint| taint.key.clone()).collect();
    assert_eq!((keys.len(), keys.last().map(String::as_str), keys.iter().filter(|key| *key == "key-1").count()), (16, Some("key-1"), 1));
    life.world.gates.clear();
    life.world.remember_taints(std::iter::empty(), |uid| uid == "a");
    assert!(life.world.taints.contains_key("a"));
    life.world.remember_taints(std::iter::empty(), |_| false);
    assert!(life.world.taints.is_empty());
    life.world.gates.insert("dry".into(), Arc::new(gate("dry", json!({"dryRun": true}))));
    life.world.remember_taints(std::iter::empty(), |_| false);
    assert!(life.world.taints.is_empty(), "a gate that runs dry has put nothing on any node");
}
