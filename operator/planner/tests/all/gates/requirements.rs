//! What a node can be asked for.

use super::life::*;
use crds::{
    label_selector::LabelSelector,
    node_readiness_gate::{ConditionStatus, Effect},
};
use planner::{
    facts::NodeCondition,
    gates_shared::Source,
    node_gates::{
        Gate,
        satisfiable::unsatisfiable,
        status::{Circumstances, status},
        world::{DaemonSet, NOWHERE, Pod, PodSource, Pods},
    },
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

#[test]
fn a_condition_is_found_by_type_despite_newer_heartbeats() {
    let mut life = Life::new(vec![gate("a", json!({"requirements": [{"name": "ready", "condition": {"type": "Ready"}}]}))]);
    life.node.conditions = vec![
        NodeCondition { type_: "Ready".into(), status: ConditionStatus::True, heartbeat: NOW - 60, transition: 0 },
        NodeCondition { type_: "GPUProblem".into(), status: ConditionStatus::False, heartbeat: NOW, transition: 0 },
    ];
    assert!(!life.settle().is_tainted());
}

#[test]
fn a_condition_with_a_stale_heartbeat_counts_as_unknown() {
    let mut life = Life::new(vec![gate("a", json!({"requirements": [{"name": "warm", "condition": {"type": "Warm", "maxAge": "60s"}}]}))]);
    warm(&mut life.node);
    life.node.conditions[0].heartbeat = NOW - 61;
    life.settle();
    assert!(life.is_tainted());
    assert_eq!(life.pass().recheck_at, Some(life.now + 10), "a heartbeat alone wakes nobody");
    life.node.conditions[0].heartbeat = life.now;
    let plan = life.pass();
    assert_eq!(plan.recheck_at, Some(life.now + 61));
    assert!(!life.is_tainted());
}

#[test]
fn working_nodes_are_tainted_when_their_condition_grows_stale() {
    let old = json!({"name": "warm", "condition": {"type": "Warm", "maxAge": "60s"}});
    let spec = json!({"mode": "Continuous", "retaint": {"failingFor": "5s"}, "requirements": [old]});
    let mut life = Life::new(vec![gate("a", spec)]);
    warm(&mut life.node);
    assert!(!life.settle().is_tainted());
    // Nobody says anything more: it is looked at exactly when it was asked for.
    let mut looks = Vec::new();
    while !life.is_tainted() {
        life.now = life.pass().recheck_at.unwrap();
        looks.push(life.now - NOW);
        life.pass();
        assert!(looks.len() < 9, "{looks:?}");
    }
    assert_eq!(looks, [61, 66], "a minute old, and for five seconds so");
    assert_eq!(life.pass().views["a"].blocked[0].1, "condition Warm is Unknown, not True");
    warm(&mut life.node);
    life.node.conditions[0].heartbeat = life.now + 3;
    life.now = life.pass().recheck_at.unwrap();
    assert!(!life.settle().is_tainted());
}

#[test]
fn a_missing_condition_counts_as_its_default_or_unknown() {
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
fn pods_count_only_while_ready_and_not_ending() {
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
fn a_continuous_gate_taints_a_node_whose_pod_vanishes() {
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
fn pod_readiness_from_before_reboot_or_loss_is_ignored() {
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
fn pods_count_once_rechecked_after_a_late_noticed_reboot() {
    let mut rebooting = pods_gate(json!({}));
    rebooting.spec.regate_on = vec![crds::node_readiness_gate::Regate::Reboot];
    let mut life = Life::new(vec![rebooting]);
    says(&mut life.node, "Ready", ConditionStatus::True);
    with_pods(&mut life, vec![ready_pod()]);
    life.settle();
    // The machine started, the pod became ready, and only then an operator looked.
    life.node.boot_id = "boot-2".into();
    with_pods(&mut life, vec![Pod { fresh_since: NOW + 60, ..ready_pod() }]);
    assert!(life.after(300).is_tainted());
    let held_at = life.now;
    assert!(life.after(119).is_tainted());
    assert_eq!(life.pass().recheck_at, Some(held_at + 120), "nothing else wakes it");
    says(&mut life.node, "Ready", ConditionStatus::Unknown);
    assert!(life.after(1).is_tainted(), "its kubelet is away");
    says(&mut life.node, "Ready", ConditionStatus::True);
    life.node.boot_id = "boot-3".into();
    assert!(life.settle().is_tainted(), "it has started once more");
    life.node.boot_id = "boot-2".into();
    assert!(!life.settle().is_tainted());
}

#[test]
fn unreadable_pods_cause_only_first_taints_of_new_nodes() {
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
fn a_daemon_set_counts_only_where_it_would_run() {
    let mut life = Life::new(vec![daemon_set_gate(false)]);
    with_daemon_set(&mut life, tolerant(), vec![]);
    assert!(life.settle().is_tainted());
    with_daemon_set(&mut life, tolerant(), vec![ready_pod()]);
    assert!(!life.settle().is_tainted());

    let terms = json!([{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]);
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
    for (field, value) in [("nodeSelector", json!({"gpu": "true"})), ("affinity", affinity)] {
        let mut elsewhere = tolerant();
        elsewhere[field] = value;
        let mut life = Life::new(vec![daemon_set_gate(false)]);
        with_daemon_set(&mut life, elsewhere.clone(), vec![]);
        assert!(!life.settle().is_tainted(), "it is not meant for this node: {field}");
        life.node.labels.insert("gpu".into(), "true".into());
        let mut life = Life { node: life.node, ..Life::new(vec![daemon_set_gate(false)]) };
        life.node.annotations = BTreeMap::new().into();
        with_daemon_set(&mut life, elsewhere, vec![]);
        assert!(life.settle().is_tainted(), "it is: {field}");
    }
}

#[test]
fn a_daemon_set_applies_despite_a_passing_taint() {
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
fn a_gate_can_require_the_newest_daemon_set_revision() {
    let of = |revision: &str| {
        let mut life = Life::new(vec![daemon_set_gate(true)]);
        with_daemon_set(&mut life, tolerant(), vec![Pod { revision: revision.into(), ..ready_pod() }]);
        life
    };
    assert!(of("old").settle().is_tainted() && !of("new").settle().is_tainted());
}

/// The right to list `ControllerRevision`s is missing, or the API server is busy for a moment.
#[test]
fn unseen_revisions_neither_release_nodes_nor_taint_released_ones() {
    let wanted = json!({"namespace": "kube-system", "name": "dns", "currentRevision": true});
    let continuous =
        gate("a", json!({"mode": "Continuous", "retaint": {"failingFor": "0s"}, "requirements": [{"name": "dns", "daemonSet": wanted}]}));
    let mut life = Life::new(vec![continuous]);
    let is_seen = |life: &mut Life, seen: bool| {
        let source = life.world.daemon_sets.values_mut().next().unwrap();
        let found = source.found.as_mut().unwrap().as_mut().unwrap();
        found.revision = seen.then(|| "new".to_owned());
    };
    with_daemon_set(&mut life, tolerant(), vec![Pod { revision: "new".into(), ..ready_pod() }]);
    is_seen(&mut life, false);
    assert!(life.settle().is_tainted(), "it was never released");
    is_seen(&mut life, true);
    assert!(!life.settle().is_tainted());
    is_seen(&mut life, false);
    assert!(!life.settle().is_tainted(), "nothing is known against it");
}

#[test]
fn gates_with_an_intolerant_daemon_set_are_not_enforced() {
    let mut life = Life::new(vec![daemon_set_gate(false)]);
    with_daemon_set(&mut life, tolerant(), vec![]);
    assert!(life.settle().is_tainted());
    with_daemon_set(&mut life, json!({"containers": []}), vec![]);
    let (reason, message) = unsatisfiable(&life.world, &life.world.gates["a"]).unwrap();
    assert!(reason == "NotTolerated" && message.contains("kube-system/dns") && message.contains(KEY), "{message}");
    assert!(!life.settle().is_tainted());
}

#[test]
fn a_gate_whose_taint_blocks_all_waiting_pods_is_unenforced() {
    for (waiting, tainted) in [(vec![Pod::default()], false), (vec![Pod::default(), bearing(KEY, "NoSchedule")], true)] {
        let mut gate = pods_gate(json!({}));
        gate.spec.taint.effect = Effect::NoSchedule;
        let mut life = Life::new(vec![gate]);
        with_pods(&mut life, waiting);
        for source in life.world.pods.values_mut() {
            let on = &mut source.found.as_mut().unwrap().on;
            *on = std::mem::take(on).into_values().map(|pods| (NOWHERE.to_owned(), pods)).collect();
        }
        assert_eq!(life.settle().is_tainted(), tainted);
    }
}

fn bearing(key: &str, effect: &str) -> Pod {
    let toleration = json!({"key": key, "operator": "Exists", "effect": effect});
    Pod { tolerations: Arc::new(vec![serde_json::from_value(toleration).unwrap()]), ..Pod::default() }
}

#[test]
fn a_gate_is_unenforced_while_all_pods_are_intolerant() {
    let bears = || bearing(KEY, "NoSchedule");
    for (name, effect, pods, enforced) in [
        ("nobody knows yet", "NoSchedule", vec![], true),
        ("none bears it", "NoSchedule", vec![Pod::default(), Pod::default()], false),
        ("they run, and could not start again", "NoSchedule", vec![ready_pod()], false),
        ("one bears it", "NoSchedule", vec![Pod::default(), bears()], true),
        ("another taint", "NoSchedule", vec![bearing("other", "NoSchedule")], false),
        ("another effect", "NoExecute", vec![bears()], false),
        ("what bears it has ended", "NoSchedule", vec![Pod::default(), Pod { ended: true, ..bears() }], false),
        ("all have ended", "NoSchedule", vec![Pod { ended: true, ..Pod::default() }], true),
        ("a taint that keeps nobody away", "PreferNoSchedule", vec![Pod::default()], true),
    ] {
        let mut gate = pods_gate(json!({}));
        gate.spec.taint.effect = serde_json::from_value(json!(effect)).unwrap();
        let mut life = Life::new(vec![gate.clone()]);
        with_pods(&mut life, pods);
        let why = unsatisfiable(&life.world, &gate);
        assert_eq!(why.is_none(), enforced, "{name}: {why:?}");
        life.settle();
        assert_eq!((life.is_tainted(), life.record("a").is_some(), life.writes), (enforced, enforced, usize::from(enforced)), "{name}");
        let Some((reason, message)) = why else { continue };
        let parts = ["requirement pods", "pods app=init in namespace ops", KEY, effect];
        assert!(reason == "NotTolerated" && parts.iter().all(|part| message.contains(part)), "{message}");
        let plan = life.pass();
        let circumstances = Circumstances { unsatisfiable: Some((reason, message.clone())), ..Circumstances::default() };
        let said = status(&gate, &[], plan.views.get("a").map(|view| (NODE, view)).into_iter(), &circumstances, NOW);
        let condition = said.conditions.iter().find(|condition| condition.type_ == "Satisfiable").unwrap();
        assert_eq!((condition.status.as_str(), &*condition.reason, &condition.message), ("False", "NotTolerated", &message));
        assert_eq!((said.nodes.matched, said.nodes.held), (1, 0));
    }
}

#[test]
fn passed_nodes_stay_released_while_their_gate_is_unenforced() {
    let mut life = Life::new(vec![gate("a", json!({"mode": "Bootstrap"}))]);
    warm(&mut life.node);
    life.settle();
    let passed = life.record("a");
    let shut = std::collections::BTreeSet::from(["a".to_owned()]);
    cold(&mut life.node);
    let plan = planner::node_gates::decide(&life.world, &shut, NODE, &life.node, &life.clocks, &mut |_| true, life.now);
    assert_eq!(plan.patch, None);
    assert!(!life.settle().is_tainted());
    assert_eq!(life.record("a"), passed);
}

#[test]
fn gates_can_require_a_csi_driver_or_an_annotation() {
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
fn one_requirement_is_enough_only_under_the_any_of_policy() {
    let both = json!([{"name": "warm", "condition": {"type": "Warm"}}, {"name": "mark", "nodeAnnotation": {"key": "mark"}}]);
    for (policy, is_warm, is_marked, tainted) in [
        ("AllOf", true, true, false),
        ("AllOf", true, false, true),
        ("AllOf", false, false, true),
        ("AnyOf", true, true, false),
        ("AnyOf", true, false, false),
        ("AnyOf", false, false, true),
    ] {
        let mut life = Life::new(vec![gate("a", json!({"policy": policy, "requirements": both}))]);
        if is_warm {
            warm(&mut life.node);
        }
        if is_marked {
            life.node.annotations.insert("mark".into(), String::new());
        }
        assert_eq!(life.settle().is_tainted(), tainted, "{policy} {is_warm} {is_marked}");
    }
}

#[test]
fn a_condition_is_met_only_by_the_requested_status() {
    let all = [ConditionStatus::True, ConditionStatus::False, ConditionStatus::Unknown];
    for wanted in all {
        for found in all {
            let condition = json!({"type": "Warm", "status": wanted.as_str()});
            let mut life = Life::new(vec![gate("a", json!({"requirements": [{"name": "warm", "condition": condition}]}))]);
            says(&mut life.node, "Warm", found);
            assert_eq!(life.settle().is_tainted(), wanted != found, "{wanted:?} is asked for, {found:?} is found");
        }
    }
}

#[test]
fn pods_lost_in_watch_gaps_mark_their_node_changed() {
    let on = |pods: Vec<(&str, Pod)>| Pods {
        on: BTreeMap::from([(NODE.to_owned(), pods.into_iter().map(|(name, pod)| (("ops".to_owned(), name.to_owned()), pod)).collect())]),
    };
    let (before, after) = (on(vec![("a", ready_pod()), ("b", ready_pod())]), on(vec![("a", ready_pod())]));
    assert_eq!(before.differing(&after), BTreeSet::from([NODE.to_owned()]));
    assert_eq!(before.differing(&Pods::default()), BTreeSet::from([NODE.to_owned()]), "the last one of its node");
    assert_eq!(Pods::default().differing(&after), BTreeSet::from([NODE.to_owned()]));
    assert!(before.differing(&before).is_empty());
}
