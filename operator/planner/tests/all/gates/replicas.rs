//! What a node is asked for that an `IngressDaemonSet` chooses.

use super::life::*;
use crds::node_readiness_gate::{ConditionStatus, Regate};
use planner::{
    gates_shared::ReplicaHealth,
    node_gates::{
        Gate,
        satisfiable::unsatisfiable,
        status::{Circumstances, status, unseen},
    },
};
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc};

fn replicas_gate(during: &str) -> Gate {
    let wanted = json!({"namespace": "edge", "name": "web", "duringUpdate": during, "maxHold": "60s"});
    gate(
        "a",
        json!({"mode": "Continuous", "retaint": {"failingFor": "5s"}, "requirements": [{"name": "replicas", "ingressDaemonSet": wanted}]}),
    )
}

fn with_replicas(life: &mut Life, health: ReplicaHealth) {
    let health = ReplicaHealth { node_uid: life.node.uid.clone(), labels_and_taints_hash: life.node.labels_and_taints_hash(), ..health };
    life.world.replicas.insert(("edge".into(), "web".into()), Arc::new(BTreeMap::from([(NODE.to_owned(), health)])));
}

fn serving() -> ReplicaHealth {
    ReplicaHealth { chosen: true, wanted: 2, ready: 2, ..ReplicaHealth::default() }
}

#[test]
fn required_replicas_must_be_ready_and_in_service() {
    for (name, health, tainted) in [
        ("all ready", serving(), false),
        ("one of two", ReplicaHealth { ready: 1, ..serving() }, true),
        ("not in service", ReplicaHealth { detached: true, ..serving() }, true),
        ("not chosen", ReplicaHealth::default(), false),
    ] {
        let mut life = Life::new(vec![replicas_gate("Hold")]);
        with_replicas(&mut life, health);
        assert_eq!(life.settle().is_tainted(), tainted, "{name}");
    }
    let mut life = Life::new(vec![replicas_gate("Hold")]);
    assert!(life.settle().is_tainted(), "nobody has looked at a new node yet");
    let mut half = replicas_gate("Hold");
    half.spec.requirements[0].ingress_daemon_set.as_mut().unwrap().min_ready = serde_json::from_value(json!("50%")).ok();
    let mut life = Life::new(vec![half]);
    with_replicas(&mut life, ReplicaHealth { wanted: 3, ready: 1, ..serving() });
    assert!(life.settle().is_tainted(), "half of three is two");
}

#[test]
fn what_was_seen_before_the_labels_changed_says_nothing() {
    let mut life = Life::new(vec![replicas_gate("Hold")]);
    with_replicas(&mut life, ReplicaHealth::default());
    life.node.labels.insert("ingress".into(), "true".into());
    assert!(life.settle().is_tainted(), "whether the node is chosen now is not known yet");
    with_replicas(&mut life, serving());
    assert!(!life.settle().is_tainted());
}

#[test]
fn during_update_sets_when_own_updates_taint_their_node() {
    let updating = ReplicaHealth { ready: 0, detached: true, updating_since: Some(NOW), ..serving() };
    for (during, at_once, later, at_last) in [("Hold", false, false, true), ("Strict", false, true, true), ("Taint", true, true, true)] {
        let mut life = Life::new(vec![replicas_gate(during)]);
        with_replicas(&mut life, serving());
        life.settle();
        with_replicas(&mut life, updating.clone());
        assert_eq!(life.settle().is_tainted(), at_once, "{during}");
        assert_eq!(life.after(10).is_tainted(), later, "{during}");
        life.after(55);
        assert_eq!(life.after(5).is_tainted(), at_last, "{during}: an update may take a minute here");
        with_replicas(&mut life, serving());
        assert!(!life.settle().is_tainted(), "{during}");
    }
}

#[test]
fn a_taint_that_would_evict_replicas_is_withheld_and_reported() {
    let evicting = |mode: &str| {
        let mut gate = replicas_gate("Strict");
        gate.spec.taint.effect = crds::node_readiness_gate::Effect::NoExecute;
        gate.spec.requirements[0].ingress_daemon_set.as_mut().unwrap().during_update = serde_json::from_value(json!(mode)).unwrap();
        gate
    };
    for mode in ["Strict", "Hold", "Taint"] {
        let gate = evicting(mode);
        let bearing = ReplicaHealth { ready: 1, updating_since: (mode == "Taint").then_some(NOW), ..serving() };
        let evicted = ReplicaHealth { evicted_by: vec![gate.spec.taint.clone()], ..bearing.clone() };
        let mut life = Life::new(vec![gate.clone()]);
        with_replicas(&mut life, serving());
        life.settle();
        with_replicas(&mut life, evicted);
        life.settle();
        life.after(600);
        let plan = life.pass();
        let view = &plan.views["a"];
        assert!(!life.is_tainted() && view.spared && view.released && !view.no_room, "{mode}: {view:?}");
        let said = status(&gate, &[], [(NODE, view)].into_iter(), &Circumstances::default(), NOW);
        let condition = said.conditions.iter().find(|condition| condition.type_ == "TolerationMissing").unwrap();
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("True", "PodsWouldBeEvicted"));
        assert!(said.blocked[0].requirement == "replicas" && said.blocked[0].reason.contains("only pods of the next revision"), "{said:?}");
        with_replicas(&mut life, bearing);
        life.settle();
        life.after(10);
        assert!(life.is_tainted(), "{mode}: they bear it now");
    }
}

#[test]
fn evicting_taints_spare_working_nodes_until_tolerations_are_known() {
    let mut unknown = replicas_gate("Strict");
    unknown.spec.taint.effect = crds::node_readiness_gate::Effect::NoExecute;
    unknown.spec.requirements.push(serde_json::from_value(json!({"name": "warm", "condition": {"type": "Warm"}})).unwrap());
    let mut life = Life::new(vec![unknown.clone()]);
    warm(&mut life.node);
    with_replicas(&mut life, serving());
    life.settle();
    cold(&mut life.node);
    life.world.replicas.clear();
    life.settle();
    assert!(!life.after(600).is_tainted());
    with_replicas(&mut life, serving());
    assert!(life.settle().is_tainted());
    let mut older = Life::new(vec![unknown.clone()]);
    older.node.created = 500;
    assert!(!older.settle().is_tainted(), "one that was there before the gate");
    let mut new = Life::new(vec![unknown]);
    assert!(new.settle().is_tainted(), "nothing runs on a new one");
}

#[test]
fn an_evicting_taint_is_not_restored_over_intolerant_replicas() {
    let mut gate = replicas_gate("Strict");
    gate.spec.taint.effect = crds::node_readiness_gate::Effect::NoExecute;
    let mut life = Life::new(vec![gate.clone()]);
    life.settle();
    life.node.taints.clear();
    with_replicas(&mut life, ReplicaHealth { ready: 1, evicted_by: vec![gate.spec.taint], ..serving() });
    life.after(60);
    assert!(!life.is_tainted() && life.is_held("a"));
}

#[test]
fn replica_readiness_from_before_reboot_or_loss_is_ignored() {
    let mut rebooting = replicas_gate("Hold");
    rebooting.spec.regate_on = vec![Regate::Reboot];
    let mut life = Life::new(vec![rebooting]);
    says(&mut life.node, "Ready", ConditionStatus::True);
    with_replicas(&mut life, ReplicaHealth { fresh_since: NOW, ..serving() });
    assert!(!life.settle().is_tainted());
    life.node.boot_id = "boot-2".into();
    assert!(life.after(100).is_tainted());
    with_replicas(&mut life, ReplicaHealth { fresh_since: NOW, ..serving() });
    assert!(life.after(10).is_tainted(), "their kubelet has not checked them yet");
    assert_eq!(life.pass().views["a"].blocked[0].1, "0 of 2 replicas of IngressDaemonSet edge/web are ready");
    let fresh = ReplicaHealth { fresh_since: life.now, ..serving() };
    with_replicas(&mut life, fresh);
    assert!(!life.settle().is_tainted());
    says(&mut life.node, "Ready", ConditionStatus::Unknown);
    life.node.conditions[0].transition = life.now + 10;
    let fresh = ReplicaHealth { fresh_since: life.now, ..serving() };
    with_replicas(&mut life, fresh);
    life.after(20);
    assert!(life.after(20).is_tainted());
}

#[test]
fn gates_whose_taint_blocks_new_replicas_are_not_enforced() {
    let toleration = |key: &str| vec![serde_json::from_value(json!({"key": key, "operator": "Exists"})).unwrap()];
    let key = || ("edge".to_owned(), "web".to_owned());
    for (name, injects, effect, template, enforced) in [
        ("the operator adds it", true, "NoSchedule", Some(vec![]), true),
        ("nobody adds it", false, "NoSchedule", Some(vec![]), false),
        ("nobody adds it, and pods are evicted", false, "NoExecute", Some(vec![]), false),
        ("another one", false, "NoSchedule", Some(toleration("other")), false),
        ("the template has it", false, "NoSchedule", Some(toleration(KEY)), true),
        ("the template is not known", false, "NoSchedule", None, true),
        ("it keeps nobody away", false, "PreferNoSchedule", Some(vec![]), true),
    ] {
        let mut gate = replicas_gate("Hold");
        gate.spec.taint.effect = serde_json::from_value(json!(effect)).unwrap();
        if !injects {
            gate.spec.tolerations = serde_json::from_value(json!({"inject": "None"})).unwrap();
        }
        let mut life = Life::new(vec![gate.clone()]);
        life.world.tolerations.extend(template.map(|template| (key(), template)));
        let why = unsatisfiable(&life.world, &gate);
        assert_eq!((why.is_none(), life.settle().is_tainted()), (enforced, enforced), "{name}: {why:?}");
        if let Some((reason, message)) = why {
            assert!(reason == "NotTolerated" && message.contains("IngressDaemonSet edge/web"), "{message}");
        }
        // The pods get it all the same, for another gate that has the same taint.
        let mut other = replicas_gate("Hold");
        (other.uid, other.name, other.spec.taint.effect) = ("b".into(), "gate-b".into(), gate.spec.taint.effect);
        life.world.gates.insert("b".into(), Arc::new(other));
        assert_eq!(unsatisfiable(&life.world, &gate), None, "{name}");
    }
}

#[test]
fn an_invalid_resource_is_named_when_replicas_are_unknown() {
    let mut life = Life::new(vec![replicas_gate("Hold")]);
    let key = ("edge".to_owned(), "web".to_owned());
    let gate = Arc::clone(&life.world.gates["a"]);
    let why = |life: &mut Life| life.settle().pass().views["a"].blocked[0].1.clone();
    let said = why(&mut life);
    assert!(said.contains("has not checked"), "{said}");
    assert!(unseen(&life.world, &gate).is_empty());
    life.world.invalid.insert(key);
    let said = why(&mut life);
    assert!(said.contains("the spec of IngressDaemonSet edge/web is not valid") && !said.contains("checked"), "{said}");
    let unseen = unseen(&life.world, &gate);
    assert!(unseen[0].contains("the spec of IngressDaemonSet edge/web is not valid"), "{unseen:?}");
    // What it says of a node that it uses counts all the same.
    with_replicas(&mut life, serving());
    assert!(!life.settle().is_tainted());
}
