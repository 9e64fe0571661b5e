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
fn nodes_leaving_the_selector_keep_only_orphaned_foreign_taints() {
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
fn deleted_gates_leave_no_record_and_only_orphaned_taints() {
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
fn nodes_let_go_unready_do_not_count_as_completed() {
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
fn leftovers_of_vanished_gates_go_unless_gates_are_unreadable() {
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
fn nodes_outside_the_selector_are_neither_written_nor_counted() {
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
fn dry_runs_predict_taint_changes_without_affecting_other_gates() {
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
fn one_write_replaces_the_taint_of_a_held_node() {
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
fn a_record_alone_removes_no_taint_of_unknown_origin() {
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
fn a_taint_held_by_gates_is_not_called_unknown() {
    let mut life = isolated("gone", "quarantine");
    let taint = json!({"key": "quarantine", "effect": "NoExecute"});
    life.world.gates.insert("b".into(), Arc::new(gate("b", json!({"taint": taint}))));
    assert_eq!(life.pass().unknown, BTreeSet::new());
}

#[test]
fn records_remove_former_taints_known_by_status_or_rights() {
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
fn former_taints_are_remembered_while_gate_or_record_exists() {
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
