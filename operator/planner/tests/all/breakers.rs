//! A kubelet that refuses a node's pods: what is said of the node, when it is tried again, and how many pods are made.

use crate::{
    rollout_state::{annotate, at_rest, condition, edit, on, seconds},
    world::{
        World,
        audit::token,
        operator::Operator,
        settled,
        wish::{ALL_MARKS, Marks, Wish},
    },
};
use crds::{names, token::Phase};
use planner::{Plan, Reason};
use serde_json::{Value, json};

const NODE: &str = "n1";

/// The kubelet of a node that serves begins to refuse pods, and so many of those that it has end.
fn refuse(world: &mut World, ends: usize) {
    world.audit.disturbed.insert(NODE.to_owned());
    world.change(|cluster| (0..ends).for_each(|_| cluster.refuse(NODE, true)));
}

/// When the breaker is over, while it is open.
fn open_until(world: &World) -> Option<i64> {
    let label = &world.cluster.deployments[&format!("edge-{NODE}")]["metadata"]["labels"][names::BREAKER_LABEL];
    let until = label.as_str()?.split_once('.')?.1.parse().ok()?;
    (until > world.cluster.now).then_some(until)
}

fn ready(world: &World) -> usize {
    world.cluster.pods.iter().filter(|pod| pod.node == NODE && pod.ready).count()
}

/// A node whose pods are being replaced.
fn updating(world: &World) -> Option<String> {
    let phase = |name: &String| token(&world.cluster.deployments[name]).map(|token| token.phase);
    let name = world.cluster.deployments.keys().find(|name| phase(name) == Some(Phase::Updating))?;
    Some(name.trim_start_matches("edge-").to_owned())
}

/// Runs until the breaker is open; a moment later it shows in the pods.
fn run_until_open(world: &mut World, operator: &mut Operator) -> (i64, Plan) {
    world.run_until(operator, 60, |world| open_until(world).is_some()).unwrap();
    let plan = seconds(world, operator, 4);
    (open_until(world).unwrap(), plan)
}

#[test]
fn a_node_whose_kubelet_refuses_pods_says_when_it_retries() {
    for ends in [1, 2] {
        let (mut world, mut operator) = at_rest(&Value::Null, 3, 1);
        refuse(&mut world, ends);
        let (until, mut plan) = run_until_open(&mut world, &mut operator);
        assert_eq!(ready(&world), 2 - ends, "what is ready stays");
        // Also after what was refused has been cleared away.
        while world.cluster.now + 1 < until {
            let reason =
                &plan.node_states.get(NODE).unwrap_or_else(|| panic!("{ends}, {} s before the end", until - world.cluster.now)).reason;
            assert!(matches!(reason, Reason::AdmissionRejected { until: at, .. } if *at == until), "{ends}: {reason:?}");
            assert_eq!(condition(&plan, "Degraded"), Some(("True", "AdmissionRejected")));
            let blocked = plan.status.blocked.as_ref().unwrap();
            assert_eq!((blocked.reason.as_str(), blocked.object.as_str()), ("AdmissionRejected", "Node/n1"));
            assert!(plan.recheck_at.is_some_and(|at| at <= until), "{:?} is after {until}", plan.recheck_at);
            plan = seconds(&mut world, &mut operator, 1);
        }
        // It is mended meanwhile.
        world.change(|cluster| cluster.refusing.clear());
        world.idle_until(&mut operator, 60, World::is_converged).unwrap();
    }
}

#[test]
fn a_held_node_is_still_checked_when_its_breaker_ends() {
    let (mut world, mut operator) = at_rest(&Value::Null, 3, 1);
    refuse(&mut world, 1);
    let (until, _) = run_until_open(&mut world, &mut operator);
    edit(&mut world, |wish| (wish.image, wish.paused) = (2, true));
    let plan = seconds(&mut world, &mut operator, 2);
    assert_eq!(plan.node_states[NODE].reason, Reason::Paused);
    assert!(plan.recheck_at.is_some_and(|at| at <= until), "{:?} is after {until}", plan.recheck_at);
}

#[test]
fn pods_that_a_kubelet_refuses_are_not_made_endlessly() {
    for valid in [true, false] {
        let (mut world, mut operator) = at_rest(&Value::Null, 3, 1);
        operator.gates.watched = true;
        if !valid {
            edit(&mut world, |wish| wish.rollback_to = Some(7));
            seconds(&mut world, &mut operator, 2);
        }
        refuse(&mut world, 2);
        let before = world.cluster.made[NODE];
        let plan = seconds(&mut world, &mut operator, 30);
        assert_eq!(plan.node_states[NODE].reason.word(), "AdmissionRejected", "{valid}");
        let told = &plan.replicas.unwrap()[NODE];
        assert_eq!((told.wanted, told.ready), (2, 0), "{valid}: no gate takes a node without pods for one that needs none");
        for minute in 1..=30 {
            seconds(&mut world, &mut operator, 60);
            let made = world.cluster.made[NODE] - before;
            assert!(made <= 10 * minute, "{made} pods in {minute} minutes, {valid}");
        }
        edit(&mut world, |wish| wish.rollback_to = None);
        world.change(|cluster| cluster.refusing.clear());
        world.idle_until(&mut operator, 1200, World::is_converged).unwrap();
    }
}

#[test]
fn unwanted_pods_are_removed_while_the_breaker_is_open() {
    let (mut world, mut operator) = at_rest(&Value::Null, 3, 1);
    refuse(&mut world, 1);
    let (until, _) = run_until_open(&mut world, &mut operator);
    edit(&mut world, |wish| wish.pods = 0);
    world.run_until(&mut operator, 50, World::is_converged).unwrap();
    assert!(world.cluster.now < until);
}

/// Its kubelet is alive enough to refuse pods, and the control plane does not hear of it.
#[test]
fn an_unready_node_gets_only_few_refused_pods() {
    for open_before in [false, true] {
        let (mut world, mut operator) = at_rest(&Value::Null, 3, 1);
        let lose = |world: &mut World| world.change(|cluster| cluster.edit_node(NODE, |node| node["status"]["ready"] = false.into()));
        if open_before {
            refuse(&mut world, 1);
            run_until_open(&mut world, &mut operator);
            lose(&mut world);
        } else {
            lose(&mut world);
            refuse(&mut world, 1);
        }
        let before = world.cluster.made[NODE];
        refuse(&mut world, 1);
        seconds(&mut world, &mut operator, 120);
        let made = world.cluster.made[NODE] - before;
        assert!(made <= 10, "{made} pods in two minutes, open before: {open_before}");
        world.change(|cluster| {
            cluster.refusing.clear();
            cluster.edit_node(NODE, |node| node["status"]["ready"] = true.into());
        });
        world.idle_until(&mut operator, 1200, World::is_converged).unwrap();
    }
}

#[test]
fn a_node_waiting_to_leave_gets_only_few_refused_pods() {
    let (mut world, mut operator) = at_rest(&Value::Null, 3, 1);
    // Another node holds the only place: it never comes up.
    edit(&mut world, |wish| wish.image = 99);
    let holds = |world: &World| world.cluster.ledger().is_some_and(|ledger| ledger.grants.keys().any(|name| name != NODE));
    let other = |world: &World| !world.cluster.ledger().is_some_and(|ledger| ledger.grants.contains_key(NODE));
    world.run_until(&mut operator, 60, holds).unwrap();
    assert!(other(&world));
    refuse(&mut world, 1);
    world.change(|cluster| cluster.edit_node(NODE, |node| node["metadata"]["labels"]["ingress"] = "false".into()));
    let before = world.cluster.made[NODE];
    seconds(&mut world, &mut operator, 120);
    let made = world.cluster.made[NODE] - before;
    assert!(made <= 6, "{made} pods in two minutes");
}

#[test]
fn an_open_breaker_limits_remaking_of_pods_that_ended() {
    let (mut world, mut operator) = at_rest(&Value::Null, 3, 1);
    refuse(&mut world, 1);
    let (until, _) = run_until_open(&mut world, &mut operator);
    let before = world.cluster.made[NODE];
    refuse(&mut world, 1);
    seconds(&mut world, &mut operator, 30);
    assert!(world.cluster.now < until);
    let made = world.cluster.made[NODE] - before;
    assert!(made <= 5, "{made} pods in half a minute");
    assert_eq!(open_until(&world), Some(until), "it is tried again when it was to be");
    world.change(|cluster| cluster.refusing.clear());
    world.idle_until(&mut operator, 600, World::is_converged).unwrap();
}

#[test]
fn a_briefly_unready_pod_stays_while_the_breaker_is_open() {
    let (mut world, mut operator) = at_rest(&Value::Null, 3, 1);
    refuse(&mut world, 1);
    run_until_open(&mut world, &mut operator);
    let pods = |world: &World| -> Vec<String> {
        world.cluster.pods.iter().filter(|pod| pod.node == NODE && pod.is_active()).map(|pod| pod.uid.clone()).collect()
    };
    let before = pods(&world);
    assert_eq!(before.len(), 1);
    world.change(|cluster| {
        let later = cluster.now + 8;
        cluster.pods.iter_mut().for_each(|pod| pod.ready_at = later);
        // The flood went on until the controller had heard of the breaker.
        cluster.pods.iter_mut().filter(|pod| pod.rejected_at.is_some()).for_each(|pod| pod.rejected_at = Some(later - 7));
    });
    assert!(world.cluster.pods.iter().filter(|pod| pod.rejected_at.is_some()).count() >= 3);
    seconds(&mut world, &mut operator, 12);
    assert_eq!(pods(&world), before);
}

#[test]
fn a_node_keeps_its_serving_pods_while_it_tries_again() {
    for marks in ALL_MARKS {
        let (mut world, mut operator) = settled(Wish::new(marks, 1), 3);
        refuse(&mut world, 1);
        let (mut tries, mut out) = (0, 0);
        for _ in 0..900 {
            let before = open_until(&world);
            seconds(&mut world, &mut operator, 1);
            tries += usize::from(before.is_none() && open_until(&world).is_some());
            assert!(ready(&world) > 0, "{marks:?}: it has no pod left, {tries} tries");
            let deployment = &world.cluster.deployments[&format!("edge-{NODE}")];
            out += usize::from(token(deployment).is_none_or(|token| token.phase != Phase::Closed));
        }
        // After 1, 2, 4 and 8 minutes.
        assert!((3..=4).contains(&tries), "{marks:?}: {tries} tries");
        assert!(out < 200, "{marks:?}: it is out for {out} s of 900");
        world.change(|cluster| cluster.refusing.clear());
        world.idle_until(&mut operator, 1200, World::is_converged).unwrap_or_else(|why| panic!("{marks:?}: {why}"));
        assert_eq!(world.audit.violations, Vec::<String>::new());
    }
}

#[test]
fn a_revision_that_a_kubelet_keeps_refusing_has_one_deadline() {
    // Longer than the breaker is ever open.
    let (mut world, mut operator) = at_rest(&json!({"nodeDeadlineSeconds": 1000, "autoRollback": true}), 3, 1);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 60, |world| updating(world).is_some()).unwrap();
    let node = updating(&world).unwrap();
    world.audit.disturbed.insert(node.clone());
    world.change(|cluster| (0..2).for_each(|_| cluster.refuse(&node, true)));
    let plan = seconds(&mut world, &mut operator, 980);
    assert_eq!(condition(&plan, "RolledBack"), None);
    let plan = seconds(&mut world, &mut operator, 120);
    assert_eq!(
        condition(&plan, "RolledBack"),
        Some(("True", "RevisionFailed")),
        "{:?} {:?}",
        plan.node_states,
        world.cluster.ledger().unwrap().grants
    );
}

/// Tries image 2 on the first node, whose kubelet refuses its pods until it has failed.
fn failed_by_its_kubelet() -> (World, Operator, String) {
    let (mut world, mut operator) = settled(Wish { rollout: json!({"nodeDeadlineSeconds": 100}), ..Wish::new(Marks::Both, 1) }, 3);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 60, |world| updating(world).is_some()).unwrap();
    let node = updating(&world).unwrap();
    world.audit.disturbed.insert(node.clone());
    world.change(|cluster| (0..2).for_each(|_| cluster.refuse(&node, true)));
    let failed = |world: &World| world.cluster.ledger().unwrap().rollout_state.as_ref().is_some_and(|rollout| !rollout.failed.is_empty());
    world.run_until(&mut operator, 300, failed).unwrap();
    (world, operator, node)
}

fn breaker_until(world: &World, node: &str) -> i64 {
    let label = world.cluster.deployments[&format!("edge-{node}")]["metadata"]["labels"][names::BREAKER_LABEL].as_str();
    label.and_then(|label| label.split_once('.')?.1.parse().ok()).unwrap_or(0)
}

#[test]
fn a_retry_during_an_open_breaker_attaches_no_empty_node() {
    let (mut world, mut operator, node) = failed_by_its_kubelet();
    world.run_until(&mut operator, 600, |world| breaker_until(world, &node) > world.cluster.now + 20).unwrap();
    annotate(&mut world, &node, names::RETRY_ANNOTATION, "1");
    for _ in 0..40 {
        seconds(&mut world, &mut operator, 1);
        let deployment = &world.cluster.deployments[&format!("edge-{node}")];
        let attached = token(deployment).is_some_and(|token| token.phase == Phase::Closed);
        assert!(!attached || deployment["spec"]["replicas"] != 0, "it is attached without a pod");
    }
}

#[test]
fn a_node_retried_as_its_breaker_ends_gets_full_time() {
    let (mut world, mut operator, node) = failed_by_its_kubelet();
    let until = breaker_until(&world, &node);
    world.run_until(&mut operator, 900, |world| world.cluster.now > until).unwrap();
    annotate(&mut world, &node, names::RETRY_ANNOTATION, "1");
    let plan = seconds(&mut world, &mut operator, 60);
    assert_eq!(plan.status.nodes.failed, 0, "{:?}", plan.node_states);
}

/// A person retries a node without pods while its breaker is open.
fn retried_while_open() -> (World, Operator, String) {
    let (mut world, mut operator, node) = failed_by_its_kubelet();
    world.run_until(&mut operator, 600, |world| breaker_until(world, &node) > world.cluster.now + 20).unwrap();
    annotate(&mut world, &node, names::RETRY_ANNOTATION, "1");
    seconds(&mut world, &mut operator, 5);
    (world, operator, node)
}

#[test]
fn an_emptied_node_is_done_once_no_pods_are_wanted() {
    let (mut world, mut operator, _) = retried_while_open();
    edit(&mut world, |wish| wish.pods = 0);
    let all_gone = |world: &World| {
        let ledger = world.cluster.ledger().unwrap();
        ledger.grants.is_empty() && world.cluster.deployments.values().all(|deployment| deployment["spec"]["replicas"] == 0)
    };
    world.run_until(&mut operator, 1200, all_gone).unwrap();
}

#[test]
fn an_emptied_node_gets_pods_even_while_paused() {
    let (mut world, mut operator, node) = retried_while_open();
    edit(&mut world, |wish| wish.paused = true);
    world.change(|cluster| cluster.refusing.clear());
    let deployment = format!("edge-{node}");
    world.run_until(&mut operator, 1200, |world| world.cluster.deployments[&deployment]["spec"]["replicas"] == 2).unwrap();
}

#[test]
fn an_emptied_node_gets_no_other_revision_while_paused() {
    let (mut world, mut operator, _) = retried_while_open();
    edit(&mut world, |wish| (wish.paused, wish.image) = (true, 3));
    world.change(|cluster| cluster.refusing.clear());
    seconds(&mut world, &mut operator, 300);
    assert_eq!(on(&world, 3), 0);
    edit(&mut world, |wish| wish.paused = false);
    world.run_until(&mut operator, 1200, World::is_converged).unwrap();
}
