//! Readiness gates of nodes: what is decided about one node, and what its patch does to the object that the API server has by then.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test that cannot go on has failed")]
#![allow(clippy::needless_pass_by_value, reason = "cases are written where they are used")]

use crds::{label_selector::LabelSelector, node_readiness_gate::ConditionStatus};
use k8s_openapi::api::core::v1::Taint;
use planner::{
    gate::{
        Clocks, Gate, NodePlan, World,
        decide::{Happened, View, decide},
        record::{Cause, Origin, Record, State, annotation_key, records},
        room::Room,
        satisfiable::unsatisfiable,
        status::{Circumstances, status},
        world::{DaemonSet, Pod, PodSource, Pods, ReplicaHealth, Source},
    },
    snapshot::{NodeCondition, NodeFacts},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

const KEY: &str = "readiness.k8s.io/edge";
const NODE: &str = "n1";
/// Seconds; gates are of 1,000, nodes of 2,000.
const NOW: i64 = 10_000;

/// A gate that waits for the condition Warm.
fn gate(uid: &str, more: Value) -> Gate {
    let mut spec = json!({
        "allNodes": true,
        "taint": {"key": KEY, "value": "pending", "effect": "NoSchedule"},
        "requirements": [{"name": "warm", "condition": {"type": "Warm"}}],
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Gate {
        name: format!("gate-{uid}"),
        uid: uid.into(),
        generation: 1,
        created: 1_000,
        deleting: false,
        spec: serde_json::from_value(spec).unwrap(),
        completion_annotation: None,
    }
}

fn world(gates: Vec<Gate>) -> World {
    World { gates: gates.into_iter().map(|gate| (gate.uid.clone(), Arc::new(gate))).collect(), ..World::default() }
}

fn node() -> NodeFacts {
    NodeFacts {
        uid: "node-uid".into(),
        has_annotations: true,
        created: 2_000,
        boot_id: "boot-1".into(),
        machine_id: "machine1".into(),
        ..NodeFacts::default()
    }
}

fn taint(key: &str, effect: &str) -> Taint {
    Taint { key: key.into(), effect: effect.into(), ..Taint::default() }
}

fn says(node: &mut NodeFacts, type_: &str, status: ConditionStatus) {
    node.conditions.retain(|condition| &*condition.type_ != type_);
    node.conditions.push(NodeCondition { type_: type_.into(), status, heartbeat: NOW, transition: NOW });
}

fn warm(node: &mut NodeFacts) {
    says(node, "Warm", ConditionStatus::True);
}

fn cold(node: &mut NodeFacts) {
    says(node, "Warm", ConditionStatus::False);
}

/// One node in the hands of the operator, with everything that happens to it.
struct Life {
    world: World,
    node: NodeFacts,
    clocks: Clocks,
    room: bool,
    now: i64,
    writes: usize,
}

impl Life {
    fn new(gates: Vec<Gate>) -> Self {
        Self { world: world(gates), node: node(), clocks: Clocks::new(), room: true, now: NOW, writes: 0 }
    }

    fn plan(&self) -> NodePlan {
        let shut: BTreeSet<_> =
            self.world.gates.values().filter(|gate| unsatisfiable(&self.world, gate).is_some()).map(|gate| gate.uid.clone()).collect();
        decide(&self.world, &shut, NODE, &self.node, &self.clocks, &mut |_| self.room, self.now)
    }

    /// Decides and writes, once.
    fn pass(&mut self) -> NodePlan {
        let plan = self.plan();
        self.clocks = plan.clocks.clone();
        if let Some(patch) = &plan.patch {
            self.writes += 1;
            self.node = patched(&self.node, patch).unwrap();
        }
        plan
    }

    /// The same, as long as there is something to write.
    fn settle(&mut self) -> &mut Self {
        for _ in 0..10 {
            if self.pass().patch.is_none() {
                return self;
            }
        }
        panic!("it never comes to rest");
    }

    fn after(&mut self, seconds: i64) -> &mut Self {
        self.now += seconds;
        self.settle()
    }

    fn is_tainted(&self) -> bool {
        self.node.taints.iter().any(|taint| taint.key == KEY)
    }

    fn record(&self, uid: &str) -> Option<Record> {
        records(&self.node.annotations).remove(uid)
    }

    fn is_held(&self, uid: &str) -> bool {
        self.record(uid).is_some_and(|record| record.is_held())
    }
}

fn object(node: &NodeFacts) -> Value {
    let mut object = json!({"metadata": {"uid": node.uid}, "spec": {}});
    if node.has_annotations {
        object["metadata"]["annotations"] =
            node.annotations.entries().map(|(key, value)| (key.to_owned(), Value::from(value))).collect::<serde_json::Map<_, _>>().into();
    }
    if !node.taints.is_empty() {
        object["spec"]["taints"] = serde_json::to_value(&node.taints).unwrap();
    }
    object
}

/// What the API server makes of a patch; `None` when a test in it fails.
fn patched(node: &NodeFacts, patch: &Value) -> Option<NodeFacts> {
    let mut object = object(node);
    for operation in patch.as_array().unwrap() {
        // To the API server a missing member equals null.
        if operation["op"] == "test" && operation["value"].is_null() {
            if object.pointer(operation["path"].as_str().unwrap()).is_some() {
                return None;
            }
            continue;
        }
        let operation: json_patch::Patch = serde_json::from_value(json!([operation])).unwrap();
        json_patch::patch(&mut object, &operation).ok()?;
    }
    let annotations: BTreeMap<String, String> = serde_json::from_value(object["metadata"]["annotations"].clone()).unwrap_or_default();
    Some(NodeFacts {
        has_annotations: !annotations.is_empty(),
        annotations: annotations.into(),
        taints: serde_json::from_value(object["spec"]["taints"].clone()).unwrap_or_default(),
        ..node.clone()
    })
}

#[test]
fn a_new_node_is_tainted_and_recorded_in_one_write_and_so_is_its_release() {
    let mut life = Life::new(vec![gate("a", json!({}))]);
    let plan = life.pass();
    assert_eq!(plan.transitions[0].happened, Happened::Added { late: true });
    assert!(life.is_tainted() && life.is_held("a"));
    assert_eq!(life.node.taints[0].value.as_deref(), Some("pending"));
    warm(&mut life.node);
    life.settle();
    assert!(!life.is_tainted() && !life.is_held("a"));
    assert_eq!(life.record("a").unwrap().state, State::Released);
    assert_eq!(life.writes, 2);
}

#[test]
fn a_patch_survives_foreign_taints_that_come_or_go_meanwhile_or_has_no_effect() {
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
fn the_first_taint_of_a_node_does_not_write_over_a_list_that_came_meanwhile() {
    let life = Life::new(vec![gate("a", json!({}))]);
    let patch = life.plan().patch.unwrap();
    let mut meanwhile = life.node.clone();
    meanwhile.taints.push(taint("theirs", "NoSchedule"));
    assert!(patched(&meanwhile, &patch).is_none());
    assert!(patched(&life.node, &patch).is_some());
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
fn a_time_that_the_api_server_fills_into_the_taint_is_no_obstacle() {
    let mut life = Life::new(vec![gate("a", json!({}))]);
    life.settle();
    life.node.taints[0].time_added = serde_json::from_value(json!("2026-01-01T00:00:00Z")).ok();
    warm(&mut life.node);
    life.settle();
    assert!(!life.is_tainted());
}

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
    let room = |gate: &Gate, matched, regressed, lately| Room::of(gate, matched, regressed, lately).is_open();
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
        assert_eq!(life.settle().is_tainted(), tainted, "{mode}");
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
fn a_taint_that_somebody_takes_away_comes_back_but_not_without_a_pause() {
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
fn a_condition_is_looked_up_by_its_type_whatever_heartbeat_others_have() {
    let mut life = Life::new(vec![gate("a", json!({"requirements": [{"name": "ready", "condition": {"type": "Ready"}}]}))]);
    life.node.conditions = vec![
        NodeCondition { type_: "Ready".into(), status: ConditionStatus::True, heartbeat: NOW - 60, transition: 0 },
        NodeCondition { type_: "GPUProblem".into(), status: ConditionStatus::False, heartbeat: NOW, transition: 0 },
    ];
    assert!(!life.settle().is_tainted());
}

#[test]
fn a_condition_whose_heartbeat_is_too_old_counts_as_unknown_and_is_looked_at_when_it_grows_old() {
    let mut life = Life::new(vec![gate("a", json!({"requirements": [{"name": "warm", "condition": {"type": "Warm", "maxAge": "60s"}}]}))]);
    warm(&mut life.node);
    life.node.conditions[0].heartbeat = NOW - 61;
    life.settle();
    assert!(life.is_tainted());
    life.node.conditions[0].heartbeat = life.now;
    let plan = life.pass();
    assert_eq!(plan.recheck_at, Some(life.now + 61));
    assert!(!life.is_tainted());
}

#[test]
fn a_missing_condition_counts_as_what_is_given_for_it_else_as_unknown() {
    let of = |more: Value| {
        let mut condition = json!({"type": "Warm"});
        condition.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Life::new(vec![gate("a", json!({"requirements": [{"name": "warm", "condition": condition}]}))])
    };
    assert!(of(json!({})).settle().is_tainted());
    assert!(!of(json!({"default": "True"})).settle().is_tainted());
    assert!(!of(json!({"status": "Unknown"})).settle().is_tainted());
}

fn ready_pod() -> Pod {
    Pod { ready: true, containers_ready: true, fresh_since: NOW, ..Pod::default() }
}

fn pods_gate(more: Value) -> Gate {
    let mut pods = json!({"namespace": "ops", "selector": {"matchLabels": {"app": "init"}}});
    pods.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let taint = json!({"key": KEY, "effect": "PreferNoSchedule"});
    gate("a", json!({"taint": taint, "requirements": [{"name": "pods", "pods": pods}]}))
}

fn with_pods(life: &mut Life, pods: Vec<Pod>) {
    let source = PodSource {
        namespace: "ops".into(),
        selector: LabelSelector { match_labels: BTreeMap::from([("app".to_owned(), "init".to_owned())]), ..LabelSelector::default() },
    };
    let pods = pods.into_iter().enumerate().map(|(index, pod)| (("ops".to_owned(), index.to_string()), pod)).collect();
    let found = Pods { on: BTreeMap::from([(NODE.to_owned(), pods)]) };
    life.world.pods.insert(source, Source { found: Some(found), broken: None });
}

#[test]
fn pods_count_that_are_ready_and_neither_end_nor_have_ended() {
    for (name, more, pods, tainted) in [
        ("none", json!({}), vec![], true),
        ("one ready", json!({}), vec![ready_pod()], false),
        ("terminating", json!({}), vec![Pod { terminating: true, ..ready_pod() }], true),
        ("ended", json!({}), vec![Pod { ended: true, ..ready_pod() }], true),
        ("a container unready", json!({}), vec![Pod { containers_ready: false, ..ready_pod() }], true),
        ("one of two", json!({}), vec![Pod::default(), ready_pod()], false),
        ("two wanted", json!({"minReady": 2}), vec![Pod::default(), ready_pod()], true),
        ("all wanted", json!({"minReady": "All"}), vec![Pod::default(), ready_pod()], true),
        ("all are there", json!({"minReady": "All"}), vec![ready_pod(), ready_pod()], false),
        ("all of none", json!({"minReady": "All"}), vec![], true),
        (
            "annotated",
            json!({"readyAnnotation": {"key": "done", "value": "true"}}),
            vec![Pod { annotations: BTreeMap::from([("done".to_owned(), "true".to_owned())]).into(), ..Pod::default() }],
            false,
        ),
        ("annotation alone", json!({"readyAnnotation": {"key": "done"}, "annotationOnly": true}), vec![ready_pod()], true),
    ] {
        let mut life = Life::new(vec![pods_gate(more)]);
        with_pods(&mut life, pods);
        assert_eq!(life.settle().is_tainted(), tainted, "{name}");
    }
}

#[test]
fn a_pod_that_vanishes_taints_its_node_again_where_the_gate_is_continuous() {
    let mut gate = pods_gate(json!({}));
    gate.spec.mode = crds::node_readiness_gate::Mode::Continuous;
    let mut life = Life::new(vec![gate]);
    with_pods(&mut life, vec![ready_pod()]);
    assert!(!life.settle().is_tainted());
    with_pods(&mut life, vec![]);
    life.settle();
    assert!(life.after(10).is_tainted());
}

#[test]
fn readiness_from_before_the_node_was_lost_or_started_again_is_not_believed() {
    let mut life = Life::new(vec![pods_gate(json!({}))]);
    with_pods(&mut life, vec![ready_pod()]);
    life.node.conditions =
        vec![NodeCondition { type_: "Ready".into(), status: ConditionStatus::Unknown, heartbeat: NOW, transition: NOW + 40 }];
    assert!(life.settle().is_tainted());
    life.node.conditions[0].status = ConditionStatus::True;
    assert!(!life.settle().is_tainted());

    let mut rebooting = pods_gate(json!({}));
    rebooting.spec.regate_on = vec![crds::node_readiness_gate::Regate::Reboot];
    let mut life = Life::new(vec![rebooting]);
    with_pods(&mut life, vec![ready_pod()]);
    life.settle();
    life.now += 100;
    life.node.boot_id = "boot-2".into();
    assert!(life.settle().is_tainted(), "its pods' status is from before the start");
    with_pods(&mut life, vec![Pod { fresh_since: NOW + 130, ..ready_pod() }]);
    assert!(!life.after(40).is_tainted());
}

#[test]
fn what_cannot_be_seen_changes_nothing_but_that_a_new_node_gets_its_first_taint() {
    let broken = Source { found: None, broken: Some("forbidden".to_owned()) };
    let mut life = Life::new(vec![pods_gate(json!({}))]);
    let source = life.world.wanted_pods().pop_first().unwrap();
    life.world.pods.insert(source.clone(), broken.clone());
    assert!(life.settle().is_tainted());
    with_pods(&mut life, vec![ready_pod()]);
    assert!(!life.settle().is_tainted());

    let mut continuous = pods_gate(json!({}));
    continuous.spec.mode = crds::node_readiness_gate::Mode::Continuous;
    let mut life = Life::new(vec![continuous]);
    with_pods(&mut life, vec![ready_pod()]);
    life.settle();
    life.world.pods.insert(source.clone(), broken.clone());
    life.settle();
    assert!(!life.after(3_600).is_tainted(), "a working node keeps its release");
    let mut life = Life::new(vec![pods_gate(json!({}))]);
    life.world.pods.insert(source, broken);
    life.node.created = 500;
    let mut old = Gate::clone(&life.world.gates["a"]);
    old.spec.existing_nodes = Some(crds::node_readiness_gate::ExistingNodes::Gate);
    life.world.gates.insert("a".into(), Arc::new(old));
    assert!(!life.settle().is_tainted(), "nor is an older node tainted blindly");
}

fn with_daemon_set(life: &mut Life, pod: Value, pods: Vec<Pod>) {
    let key = ("kube-system".to_owned(), "dns".to_owned());
    let selector = LabelSelector { match_labels: BTreeMap::from([("app".to_owned(), "dns".to_owned())]), ..LabelSelector::default() };
    let found = DaemonSet { uid: "ds".into(), selector, pod: serde_json::from_value(pod).unwrap(), revision: Some("new".into()) };
    life.world.daemon_sets.insert(key, Source { found: Some(Some(found)), broken: None });
    let source = life.world.wanted_pods().pop_first().unwrap();
    let pods = pods
        .into_iter()
        .enumerate()
        .map(|(index, pod)| (("kube-system".to_owned(), index.to_string()), Pod { controller: "ds".into(), ..pod }))
        .collect();
    let found = Pods { on: BTreeMap::from([(NODE.to_owned(), pods)]) };
    life.world.pods.insert(source, Source { found: Some(found), broken: None });
}

fn daemon_set_gate(current: bool) -> Gate {
    let wanted = json!({"namespace": "kube-system", "name": "dns", "currentRevision": current});
    gate("a", json!({"requirements": [{"name": "dns", "daemonSet": wanted}]}))
}

fn tolerant() -> Value {
    json!({"containers": [], "tolerations": [{"operator": "Exists"}]})
}

#[test]
fn a_daemon_set_counts_where_it_is_to_run_and_its_own_ready_pod_meets_it() {
    let mut life = Life::new(vec![daemon_set_gate(false)]);
    with_daemon_set(&mut life, tolerant(), vec![]);
    assert!(life.settle().is_tainted());
    with_daemon_set(&mut life, tolerant(), vec![ready_pod()]);
    assert!(!life.settle().is_tainted());

    let mut elsewhere = tolerant();
    elsewhere["nodeSelector"] = json!({"gpu": "true"});
    let mut life = Life::new(vec![daemon_set_gate(false)]);
    with_daemon_set(&mut life, elsewhere, vec![]);
    assert!(!life.settle().is_tainted(), "it is not meant for this node");
}

#[test]
fn a_taint_that_passes_by_itself_does_not_make_a_daemon_set_not_apply() {
    let mut life = Life::new(vec![daemon_set_gate(false)]);
    let pod = json!({"containers": [], "tolerations": [{"key": KEY, "operator": "Exists"}]});
    life.node.taints.push(taint("node.kubernetes.io/not-ready", "NoSchedule"));
    with_daemon_set(&mut life, pod.clone(), vec![]);
    assert!(life.settle().is_tainted(), "the node has not started yet");
    let mut life = Life::new(vec![daemon_set_gate(false)]);
    life.node.taints.push(taint("nvidia.com/gpu", "NoSchedule"));
    with_daemon_set(&mut life, pod, vec![]);
    assert!(!life.settle().is_tainted(), "the node is for others");
}

#[test]
fn the_newest_revision_of_a_daemon_set_can_be_asked_for() {
    let of = |revision: &str| {
        let mut life = Life::new(vec![daemon_set_gate(true)]);
        with_daemon_set(&mut life, tolerant(), vec![Pod { revision: revision.into(), ..ready_pod() }]);
        life
    };
    assert!(of("old").settle().is_tainted() && !of("new").settle().is_tainted());
}

#[test]
fn a_gate_whose_pods_do_not_tolerate_its_taint_is_not_enforced_and_lets_go() {
    let mut life = Life::new(vec![daemon_set_gate(false)]);
    with_daemon_set(&mut life, tolerant(), vec![]);
    assert!(life.settle().is_tainted());
    with_daemon_set(&mut life, json!({"containers": []}), vec![]);
    let (reason, message) = unsatisfiable(&life.world, &life.world.gates["a"]).unwrap();
    assert!(reason == "NotTolerated" && message.contains("kube-system/dns") && message.contains(KEY), "{message}");
    assert!(!life.settle().is_tainted());
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
fn taints_come_off_one_after_the_other_where_gates_wait_for_gates() {
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
fn a_csi_driver_must_be_registered_and_an_annotation_must_be_there() {
    let mut life = Life::new(vec![gate("a", json!({"requirements": [{"name": "ebs", "csiDriver": {"name": "ebs.csi.aws.com"}}]}))]);
    life.world.csi_drivers.found = Some(BTreeMap::new());
    assert!(life.settle().is_tainted());
    life.world.csi_drivers.found = Some(BTreeMap::from([(NODE.to_owned(), BTreeSet::from(["ebs.csi.aws.com".to_owned()]))]));
    assert!(!life.settle().is_tainted());
    let mut life = Life::new(vec![gate("a", json!({"requirements": [{"name": "m", "nodeAnnotation": {"key": "mark", "value": "yes"}}]}))]);
    life.node.annotations.insert("mark".into(), "no".into());
    assert!(life.settle().is_tainted());
    life.node.annotations.insert("mark".into(), "yes".into());
    assert!(!life.settle().is_tainted());
}

#[test]
fn any_of_several_requirements_is_enough_where_the_policy_says_so() {
    let both = json!([{"name": "warm", "condition": {"type": "Warm"}}, {"name": "mark", "nodeAnnotation": {"key": "mark"}}]);
    for (policy, tainted) in [("AllOf", true), ("AnyOf", false)] {
        let mut life = Life::new(vec![gate("a", json!({"policy": policy, "requirements": both}))]);
        warm(&mut life.node);
        assert_eq!(life.settle().is_tainted(), tainted, "{policy}");
    }
}

fn replicas_gate(during: &str) -> Gate {
    let wanted = json!({"namespace": "edge", "name": "web", "duringUpdate": during, "maxHold": "60s"});
    gate(
        "a",
        json!({"mode": "Continuous", "retaint": {"failingFor": "5s"}, "requirements": [{"name": "replicas", "ingressDaemonSet": wanted}]}),
    )
}

fn with_replicas(life: &mut Life, health: ReplicaHealth) {
    let health = ReplicaHealth { node_uid: life.node.uid.clone(), standing: life.node.standing(), ..health };
    life.world.replicas.insert(("edge".into(), "web".into()), Arc::new(BTreeMap::from([(NODE.to_owned(), health)])));
}

fn serving() -> ReplicaHealth {
    ReplicaHealth { chosen: true, wanted: 2, ready: 2, ..ReplicaHealth::default() }
}

#[test]
fn replicas_of_a_node_must_be_ready_and_in_service_where_the_resource_chooses_it() {
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
fn an_update_of_our_own_is_held_followed_or_tainted_for_as_told() {
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
fn a_restart_at_any_moment_leaves_no_node_that_is_both_released_and_tainted_for_ever() {
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

#[test]
fn a_record_that_somebody_made_unreadable_is_written_anew() {
    let mut life = Life::new(vec![gate("a", json!({}))]);
    life.settle();
    life.node.annotations.insert(annotation_key("a"), "{".into());
    life.settle();
    assert!(life.is_held("a") && life.is_tainted());
    assert_eq!(life.record("a").unwrap().origin, Origin::Adopted);
}

#[test]
fn a_node_that_is_being_deleted_is_left_alone() {
    let mut life = Life::new(vec![gate("a", json!({}))]);
    life.node.deleting = true;
    assert!(life.pass().patch.is_none());
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
fn the_status_of_a_gate_over_five_thousand_nodes_has_counts_and_ten_names_and_less_than_four_kilobytes() {
    let gate = gate("a", json!({}));
    let held =
        View { matched: true, held: true, blocked: vec![("warm".into(), "condition Warm is False, not True".into())], ..View::default() };
    let names: Vec<_> = (0..5_000).map(|index| format!("ip-10-0-{index}.eu-central-1.compute.internal")).collect();
    let status = status(&gate, &[], names.iter().map(|name| (name.as_str(), &held)), &Circumstances::default(), NOW);
    assert_eq!(
        (status.nodes.matched, status.nodes.held, status.blocked[0].nodes, status.blocked[0].sample.len()),
        (5_000, 5_000, 5_000, 10)
    );
    let size = serde_json::to_string(&status).unwrap().len();
    assert!(size < 4_096, "{size} bytes");
    assert_eq!(status.summary, "5000 of 5000 nodes held by warm");
}

#[test]
fn a_condition_of_a_gate_keeps_its_time_while_it_says_the_same() {
    let gate = gate("a", json!({}));
    let view = View { matched: true, released: true, ..View::default() };
    let views = || [("n1", &view)].into_iter();
    let first = status(&gate, &[], views(), &Circumstances::default(), NOW);
    let second = status(&gate, &first.conditions, views(), &Circumstances::default(), NOW + 60);
    assert_eq!(first, second);
    let trouble = Circumstances { unsatisfiable: Some(("NotTolerated", "give them the toleration".into())), ..Circumstances::default() };
    let third = status(&gate, &first.conditions, views(), &trouble, NOW + 60);
    let condition = third.conditions.iter().find(|condition| condition.type_ == "Satisfiable").unwrap();
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "NotTolerated"));
    assert_ne!(condition.last_transition_time, first.conditions[1].last_transition_time);
}
