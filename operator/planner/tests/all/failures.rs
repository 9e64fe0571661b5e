//! What fails where the course of a rollout does not look first: after a node came through, before the first one did, by a detacher
//! alone, beside zones.

use crate::{
    rollout_state::{annotate, at_rest, condition, edit, on, reasons, seconds},
    world,
};

use crds::names;
use planner::{Action, Plan, Reason, reason::NodeObject};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use world::{
    World,
    cluster::{Detacher, revision},
    operator::Operator,
    settled,
    wish::{Marks, Wish, ZONE, Zones},
};

/// Pods of this image are ready, or not for a while.
fn ready_pods(world: &mut World, image: u8, ready: bool) {
    let wanted = world.cluster.wish.revision_of(image);
    world.change(|cluster| {
        let at = if ready { cluster.now } else { i64::MAX };
        cluster.pods.iter_mut().filter(|pod| pod.revision() == wanted).for_each(|pod| pod.ready_at = at);
    });
}

fn failed(world: &World) -> Vec<String> {
    let rollout = world.cluster.ledger().unwrap().rollout_state.clone().unwrap();
    rollout.failed.into_keys().collect()
}

fn steps_done(world: &World) -> u32 {
    world.cluster.ledger().unwrap().rollout_state.as_ref().unwrap().steps_done
}

/// The canary serves and soaks.
fn soaking(rollout: &Value) -> (World, Operator, String) {
    let (mut world, mut operator) = at_rest(rollout, 4, 1);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 60, |world| on(world, 2) == 1).unwrap();
    seconds(&mut world, &mut operator, 20);
    let wanted = world.cluster.wish.revision_of(2);
    let canary = world.cluster.pods.iter().find(|pod| pod.revision() == wanted).unwrap().node.clone();
    world.audit.disturbed.insert(canary.clone());
    (world, operator, canary)
}

fn blocked(plan: &Plan) -> Option<(&str, &str)> {
    plan.status.blocked.as_ref().map(|blocked| (blocked.reason.as_str(), blocked.object.as_str()))
}

#[test]
fn a_canary_that_stops_serving_causes_a_rollback() {
    let rollout = json!({"nodeDeadlineSeconds": 30, "autoRollback": true, "steps": [{"nodes": 1, "soak": "300s"}]});
    let (mut world, mut operator, canary) = soaking(&rollout);
    ready_pods(&mut world, 2, false);
    let plan = seconds(&mut world, &mut operator, 5);
    assert_eq!(blocked(&plan), Some(("PodsNotReady", &*format!("Node/{canary}"))));
    let plan = seconds(&mut world, &mut operator, 80);
    assert_eq!((condition(&plan, "RolledBack"), on(&world, 1)), (Some(("True", "RevisionFailed")), 4));
}

#[test]
fn a_failed_canary_halts_until_it_serves_or_is_retried() {
    let rollout = json!({"nodeDeadlineSeconds": 30, "steps": [{"nodes": 1, "soak": "40s"}]});
    let (mut world, mut operator, canary) = soaking(&rollout);
    ready_pods(&mut world, 2, false);
    let plan = seconds(&mut world, &mut operator, 35);
    assert_eq!((failed(&world), condition(&plan, "Stalled")), (vec![canary.clone()], Some(("True", "MaxFailedNodes"))));
    // Asked to try again, it gets its time anew.
    annotate(&mut world, &canary, names::RETRY_ANNOTATION, "1");
    seconds(&mut world, &mut operator, 25);
    assert_eq!(failed(&world), Vec::<String>::new());
    seconds(&mut world, &mut operator, 15);
    assert_eq!(failed(&world), [canary]);
    ready_pods(&mut world, 2, true);
    world.run_until(&mut operator, 240, World::is_converged).unwrap();
}

#[test]
fn a_pause_stops_the_clock_of_an_unready_canary() {
    let (mut world, mut operator, canary) = soaking(&json!({"nodeDeadlineSeconds": 30, "steps": [{"nodes": 1, "soak": "300s"}]}));
    ready_pods(&mut world, 2, false);
    seconds(&mut world, &mut operator, 20);
    edit(&mut world, |wish| wish.paused = true);
    seconds(&mut world, &mut operator, 60);
    edit(&mut world, |wish| wish.paused = false);
    seconds(&mut world, &mut operator, 5);
    assert_eq!(failed(&world), Vec::<String>::new());
    seconds(&mut world, &mut operator, 10);
    assert_eq!(failed(&world), [canary]);
}

#[test]
fn a_node_that_breaks_after_the_rollout_fails_nothing() {
    let (mut world, mut operator) = at_rest(&json!({"nodeDeadlineSeconds": 20, "autoRollback": true}), 3, 1);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 200, World::is_converged).unwrap();
    world.audit.disturbed.insert("n1".into());
    world.change(|cluster| cluster.pods.iter_mut().filter(|pod| pod.node == "n1").for_each(|pod| pod.ready_at = i64::MAX));
    let plan = seconds(&mut world, &mut operator, 60);
    assert_eq!(blocked(&plan), Some(("PodsNotReady", "Node/n1")));
    assert_eq!(condition(&plan, "Progressing"), Some(("False", "NodesUnavailable")));
    assert_eq!((condition(&plan, "RolledBack"), failed(&world)), (None, Vec::new()));
}

#[test]
fn failures_that_hold_all_slots_halt_and_roll_back() {
    let (mut world, mut operator) = at_rest(&json!({"nodeDeadlineSeconds": 20, "maxFailedNodes": 2, "autoRollback": true}), 4, 1);
    edit(&mut world, |wish| wish.image = 99);
    let plan = seconds(&mut world, &mut operator, 120);
    assert_eq!((condition(&plan, "RolledBack"), on(&world, 1)), (Some(("True", "RevisionFailed")), 4));
}

/// The detacher is silent, and the operator has given up on the first nodes that it began to update.
fn given_up(wish: Wish, nodes: usize) -> (World, Operator, Plan) {
    let mut world = World::new(Wish { on_timeout: "Abort", ..wish }, nodes);
    let mut operator = Operator::default();
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
    world.change(|cluster| cluster.detacher = Detacher::Silent);
    edit(&mut world, |wish| wish.image = 2);
    let plan = seconds(&mut world, &mut operator, 90);
    (world, operator, plan)
}

#[test]
fn a_silent_detacher_halts_without_condemning_the_revision() {
    let rollout = json!({"autoRollback": true});
    let (mut world, mut operator, plan) = given_up(Wish { rollout, ..Wish::new(Marks::Timestamp, 1) }, 3);
    assert_eq!((condition(&plan, "RolledBack"), failed(&world).len()), (None, 1));
    assert_eq!(condition(&plan, "Stalled"), Some(("True", "MaxFailedNodes")));
    world.change(|cluster| cluster.detacher = Detacher::Good);
    edit(&mut world, |wish| wish.on_timeout = "Halt");
    world.run_until(&mut operator, 240, World::is_converged).unwrap();
}

#[test]
fn a_first_revision_that_comes_up_nowhere_is_late() {
    let rollout = json!({"progressDeadlineSeconds": 60});
    let mut world = World::new(Wish { image: 99, rollout, ..Wish::new(Marks::Token, 1) }, 3);
    let mut operator = Operator::default();
    let plan = seconds(&mut world, &mut operator, 30);
    assert_eq!(condition(&plan, "Progressing"), Some(("True", "NodesJoining")));
    let plan = seconds(&mut world, &mut operator, 60);
    assert_eq!(condition(&plan, "Progressing"), Some(("False", "ProgressDeadlineExceeded")));
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
    let plan = seconds(&mut world, &mut operator, 2);
    assert_eq!((condition(&plan, "Stalled"), condition(&plan, "Progressing")), (None, Some(("False", "Complete"))));
}

#[test]
fn ready_reconciling_and_stalled_follow_a_rollout() {
    let told = |plan: &Plan| {
        ["Ready", "Reconciling", "Stalled"].map(|type_| condition(plan, type_).map(|(status, reason)| format!("{status} {reason}")))
    };
    let ready = |reason: &str| [Some(format!("True {reason}")), None, None];
    let waits = |reason: &str| [Some(format!("False {reason}")), Some(format!("True {reason}")), None];
    let stalled = |reason: &str| [Some(format!("False {reason}")), None, Some(format!("True {reason}"))];
    let (mut world, mut operator) = at_rest(&json!({"autoRollback": true, "nodeDeadlineSeconds": 60, "provenAfterSeconds": 30}), 3, 1);
    let plan = seconds(&mut world, &mut operator, 5);
    assert_eq!(told(&plan), ready("Complete"));
    edit(&mut world, |wish| wish.image = 2);
    let plan = seconds(&mut world, &mut operator, 5);
    assert_eq!(told(&plan), waits("RollingOut"));
    world.run_until(&mut operator, 600, |world| on(world, 2) == 3).unwrap();
    let plan = seconds(&mut world, &mut operator, 20);
    assert_eq!(told(&plan), waits("Proving"));
    let plan = seconds(&mut world, &mut operator, 60);
    assert_eq!(told(&plan), ready("Complete"));

    // A node that goes makes it unready, though no update is behind.
    ready_pods(&mut world, 2, false);
    let plan = seconds(&mut world, &mut operator, 5);
    assert_eq!(told(&plan), waits("NodesUnavailable"));
    ready_pods(&mut world, 2, true);
    let plan = seconds(&mut world, &mut operator, 5);
    assert_eq!(told(&plan), ready("Complete"));

    edit(&mut world, |wish| wish.paused = true);
    edit(&mut world, |wish| wish.image = 99);
    let plan = seconds(&mut world, &mut operator, 5);
    assert_eq!(told(&plan), waits("Paused"));
    edit(&mut world, |wish| wish.paused = false);
    let plan = seconds(&mut world, &mut operator, 600);
    assert_eq!(told(&plan), stalled("RolledBack"));
    edit(&mut world, |wish| (wish.image, wish.rollout["partition"]) = (3, 2.into()));
    let plan = seconds(&mut world, &mut operator, 600);
    assert_eq!((told(&plan), on(&world, 3)), (ready("Partition"), 1));
    edit(&mut world, |wish| (wish.pods, wish.paused) = (0, true));
    let plan = seconds(&mut world, &mut operator, 60);
    assert!(told(&plan)[0].as_deref().is_some_and(|said| said.starts_with("False ")), "pods run while it is paused: {:?}", told(&plan));
    edit(&mut world, |wish| wish.paused = false);
    let plan = seconds(&mut world, &mut operator, 600);
    assert_eq!(told(&plan), ready("ScaledToZero"));
    // The same by the older name.
    world.change(|cluster| {
        cluster.edit_resource(|resource| {
            (resource.spec.pods_per_node, resource.spec.replicas) = (1, Some(0));
            resource.generation += 1;
        });
    });
    let plan = seconds(&mut world, &mut operator, 60);
    assert_eq!(told(&plan), ready("ScaledToZero"));
}

#[test]
fn an_invalid_spec_holds_only_nodes_that_would_change() {
    let (mut world, mut operator) = at_rest(&Value::Null, 2, 1);
    let mut held = |pods: i32, alias: Option<i32>| {
        world.change(|cluster| {
            cluster.edit_resource(|resource| {
                (resource.spec.pods_per_node, resource.spec.replicas) = (pods, alias);
                resource.spec.rollback_to = Some(serde_json::from_value(json!({"revision": 7})).unwrap());
                resource.generation += 1;
            });
        });
        let plan = seconds(&mut world, &mut operator, 3);
        assert_eq!(condition(&plan, "Valid"), Some(("False", "RevisionNotFound")));
        plan.node_states.len()
    };
    assert_eq!([held(2, None), held(1, Some(2)), held(0, None), held(1, Some(0))], [0, 0, 2, 2]);
}

#[test]
fn a_step_of_all_nodes_passes_despite_joining_nodes() {
    let (mut world, mut operator) = at_rest(&json!({"steps": [{"nodes": "100%", "soak": "60s"}]}), 3, 2);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 120, |world| on(world, 2) == 3).unwrap();
    for joined in 3..8 {
        world.change(|cluster| cluster.join(&format!("n{joined}")));
        seconds(&mut world, &mut operator, 20);
    }
    assert_eq!(steps_done(&world), 1);
}

#[test]
fn zone_settings_decide_which_nodes_a_step_takes() {
    for (zones, of_each) in [(Zones::OneEach, [1, 1]), (Zones::OneAtATime, [2, 0])] {
        let rollout = json!({"steps": [{"nodes": 2, "pause": true}]});
        let mut world = World::new(Wish { zones, rollout, ..Wish::new(Marks::Token, 2) }, 4);
        let mut operator = Operator::default();
        world.run_until(&mut operator, 200, World::is_converged).unwrap();
        for image in 2..8 {
            edit(&mut world, |wish| wish.image = image);
            seconds(&mut world, &mut operator, 60);
            let wanted = world.cluster.wish.revision_of(image);
            let zone = |node: &str| world.cluster.nodes[node]["metadata"]["labels"][ZONE].as_str().unwrap_or_default().to_owned();
            let reached = world.cluster.deployments.iter().filter(|(_, found)| revision(&found["spec"]["template"]) == wanted);
            let mut zones: std::collections::BTreeMap<String, usize> = world.cluster.nodes.keys().map(|node| (zone(node), 0)).collect();
            for (name, _) in reached {
                *zones.entry(zone(name.trim_start_matches("edge-"))).or_default() += 1;
            }
            let mut counts: Vec<_> = zones.into_values().collect();
            counts.sort_unstable_by(|a, b| b.cmp(a));
            assert_eq!(counts, of_each, "{zones:?}", zones = world.cluster.wish.zones);
            edit(&mut world, |wish| wish.promote = Some((image, 1)));
            world.run_until(&mut operator, 240, World::is_converged).unwrap();
        }
    }
}

#[test]
fn no_clock_runs_while_the_spec_is_not_valid() {
    let (mut world, mut operator) = at_rest(&json!({"progressDeadlineSeconds": 60}), 3, 1);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 30, |world| !world.cluster.ledger().unwrap().grants.is_empty()).unwrap();
    edit(&mut world, |wish| wish.rollback_to = Some(7));
    seconds(&mut world, &mut operator, 300);
    edit(&mut world, |wish| wish.rollback_to = None);
    for _ in 0..40 {
        let plan = seconds(&mut world, &mut operator, 1);
        assert_eq!(condition(&plan, "Stalled"), None, "{:?}", plan.status.conditions);
    }
}

#[test]
fn an_unused_node_that_is_removed_blocks_nothing() {
    let (mut world, mut operator) = at_rest(&Value::Null, 4, 1);
    world.change(|cluster| {
        cluster.join("n4");
        cluster.edit_node("n4", |node| node["spec"]["taints"] = json!([{"key": names::KARPENTER_TAINT, "effect": "NoSchedule"}]));
    });
    let plan = seconds(&mut world, &mut operator, 10);
    assert_eq!((blocked(&plan), reasons(&plan)), (None, vec!["Draining"]));
    world.audit.disturbed.insert("n1".into());
    world.change(|cluster| cluster.pods.iter_mut().filter(|pod| pod.node == "n1").for_each(|pod| pod.ready_at = i64::MAX));
    let plan = seconds(&mut world, &mut operator, 5);
    assert_eq!(blocked(&plan), Some(("PodsNotReady", "Node/n1")));
}

#[test]
fn too_many_restarts_fail_only_the_node_that_had_them() {
    let steps = json!({"steps": [{"nodes": 1, "soak": "30s", "maxRestarts": 5}, {"nodes": 2, "soak": "60s", "maxRestarts": 0}]});
    let (mut world, mut operator) = at_rest(&steps, 4, 2);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 60, |world| on(world, 2) == 1).unwrap();
    seconds(&mut world, &mut operator, 20);
    let wanted = world.cluster.wish.revision_of(2);
    let first = world.cluster.pods.iter().find(|pod| pod.revision() == wanted).unwrap().node.clone();
    world.change(|cluster| cluster.pods.iter_mut().find(|pod| pod.node == first).unwrap().restarts = 5);
    world.run_until(&mut operator, 120, |world| on(world, 2) == 2).unwrap();
    seconds(&mut world, &mut operator, 20);
    let second = world.cluster.pods.iter().find(|pod| pod.revision() == wanted && pod.node != first).unwrap().node.clone();
    world.change(|cluster| cluster.pods.iter_mut().find(|pod| pod.node == second).unwrap().restarts = 1);
    seconds(&mut world, &mut operator, 5);
    assert_eq!(failed(&world), [second]);
}

#[test]
fn restarts_before_somebody_added_the_steps_do_not_count() {
    let (mut world, mut operator) = at_rest(&json!({"partition": 2}), 4, 1);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 120, |world| on(world, 2) == 2).unwrap();
    seconds(&mut world, &mut operator, 20);
    let wanted = world.cluster.wish.revision_of(2);
    let restart = |world: &mut World| {
        let wanted = wanted.clone();
        world.change(|cluster| cluster.pods.iter_mut().find(|pod| pod.revision() == wanted).unwrap().restarts += 2);
    };
    restart(&mut world);
    edit(&mut world, |wish| wish.rollout = json!({"steps": [{"nodes": 2, "soak": "60s", "maxRestarts": 0}]}));
    seconds(&mut world, &mut operator, 20);
    assert_eq!(failed(&world), Vec::<String>::new());
    restart(&mut world);
    seconds(&mut world, &mut operator, 5);
    assert_eq!(failed(&world).len(), 1);
}

#[test]
fn min_ready_seconds_and_partition_are_named_as_reasons() {
    let (mut world, mut operator) = at_rest(&Value::Null, 2, 1);
    edit(&mut world, |wish| wish.min_ready = 500);
    let plan = seconds(&mut world, &mut operator, 5);
    assert_eq!(reasons(&plan), ["MinReadySeconds"]);
    edit(&mut world, |wish| (wish.image, wish.rollout) = (2, json!({"partition": "100%"})));
    let plan = seconds(&mut world, &mut operator, 5);
    assert_eq!(reasons(&plan), ["Partition"]);
}

/// Whatever runs on a node does not become ready.
fn broken(world: &mut World, node: &str) {
    world.change(|cluster| cluster.pods.iter_mut().filter(|pod| pod.node == node).for_each(|pod| pod.ready_at = i64::MAX));
}

#[test]
fn a_node_out_before_its_update_condemns_no_revision() {
    for budget in [1, 2] {
        let rollout = json!({"provenAfterSeconds": 30, "nodeDeadlineSeconds": 20, "autoRollback": true});
        let (mut world, mut operator) = at_rest(&rollout, 4, budget);
        world.audit.disturbed.insert("n0".to_owned());
        broken(&mut world, "n0");
        seconds(&mut world, &mut operator, 3);
        edit(&mut world, |wish| wish.image = 2);
        let mut plan = None;
        for _ in 0..400 {
            broken(&mut world, "n0");
            plan = world.fair_second(&mut operator);
        }
        let plan = plan.unwrap();
        assert_eq!(condition(&plan, "RolledBack"), None, "budget {budget}");
        assert_eq!(plan.node_states["n0"].phase, crds::status::NodePhase::Failed);
        assert!(plan.node_states["n0"].reason.message().contains("before its update"), "{}", plan.node_states["n0"].reason.message());
        assert_eq!(on(&world, 2), if budget == 1 { 1 } else { 4 });
        if budget == 1 {
            assert_eq!(blocked(&plan), Some(("NotReady", "Node/n0")));
        }
        world.change(|cluster| {
            let now = cluster.now;
            cluster.pods.iter_mut().filter(|pod| pod.node == "n0").for_each(|pod| pod.ready_at = now);
        });
        world.run_until(&mut operator, 400, World::is_converged).unwrap();
        assert_eq!(on(&world, 2), 4);
    }
}

/// The first node with a grant, and the annotation's value that frees its slot.
fn release(world: &mut World) -> String {
    let (node, id) = world.cluster.ledger().unwrap().grants.iter().map(|(node, grant)| (node.clone(), grant.id)).next().unwrap();
    world.audit.disturbed.insert(node.clone());
    annotate(world, &node, names::RELEASE_ANNOTATION, &format!("default/edge:{id}"));
    node
}

#[test]
fn a_serving_node_proves_the_revision_despite_its_freed_slot() {
    let (mut world, mut operator) = at_rest(&json!({"provenAfterSeconds": 30}), 3, 1);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 60, |world| on(world, 2) == 1).unwrap();
    for _ in 0..10 {
        ready_pods(&mut world, 2, false);
        seconds(&mut world, &mut operator, 1);
    }
    let node = release(&mut world);
    seconds(&mut world, &mut operator, 10);
    assert!(!world.cluster.ledger().unwrap().grants.contains_key(&node));
    assert_eq!((failed(&world), on(&world, 2)), (vec![node], 1));
    ready_pods(&mut world, 2, true);
    world.run_until(&mut operator, 300, World::is_converged).unwrap();
}

/// Rolls image 2 out; one node is halted with it, and its slot is freed.
fn halted_and_released() -> (World, Operator, String) {
    let (mut world, mut operator) = at_rest(&json!({"nodeDeadlineSeconds": 20}), 4, 2);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 60, |world| on(world, 2) > 0).unwrap();
    let node = world.cluster.ledger().unwrap().grants.keys().next().unwrap().clone();
    let wanted = world.cluster.wish.revision_of(2);
    let mut plan = seconds(&mut world, &mut operator, 1);
    for _ in 0..40 {
        world.change(|cluster| {
            let pods = cluster.pods.iter_mut().filter(|pod| pod.node == node && pod.revision() == wanted);
            pods.for_each(|pod| pod.ready_at = i64::MAX);
        });
        plan = seconds(&mut world, &mut operator, 1);
    }
    assert_eq!((condition(&plan, "Stalled"), failed(&world)), (Some(("True", "MaxFailedNodes")), vec![node.clone()]));
    assert_eq!(release(&mut world), node);
    (world, operator, node)
}

#[test]
fn a_failed_node_with_freed_slot_no_longer_halts_rollouts() {
    let (mut world, mut operator, _) = halted_and_released();
    world.run_until(&mut operator, 120, |world| on(world, 2) == 4).unwrap();
    let plan = seconds(&mut world, &mut operator, 10);
    assert_ne!(condition(&plan, "Stalled"), Some(("True", "MaxFailedNodes")));
}

#[test]
fn removing_a_failed_node_without_slot_halts_no_rollout() {
    let (mut world, mut operator, node) = halted_and_released();
    seconds(&mut world, &mut operator, 1);
    world.change(|cluster| cluster.leave(&node));
    world.run_until(&mut operator, 240, World::is_converged).unwrap();
    assert_eq!(on(&world, 2), 3);
}

#[test]
fn a_retry_annotation_detaches_a_given_up_node_again() {
    let (mut world, mut operator, plan) = given_up(Wish::new(Marks::Timestamp, 1), 3);
    assert_eq!(condition(&plan, "Stalled"), Some(("True", "MaxFailedNodes")));
    // It keeps its slot, but nothing is under way.
    assert_eq!(condition(&plan, "Progressing"), Some(("False", "MaxFailedNodes")));
    let node = failed(&world).remove(0);
    world.change(|cluster| cluster.detacher = Detacher::Good);
    annotate(&mut world, &node, names::RETRY_ANNOTATION, "1");
    world.run_until(&mut operator, 240, World::is_converged).unwrap();
}

/// One node of two may fail, and the other has the revision, which is proved as if nothing were wrong.
#[test]
fn a_rollout_goes_on_beside_a_given_up_node() {
    let rollout = json!({"provenAfterSeconds": 60, "maxFailedNodes": 2, "partition": 3});
    let mut world = World::new(Wish { on_timeout: "Abort", rollout, ..Wish::new(Marks::Timestamp, 2) }, 4);
    let mut operator = Operator::default();
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
    edit(&mut world, |wish| wish.image = 2);
    seconds(&mut world, &mut operator, 40);
    world.change(|cluster| cluster.detacher = Detacher::Silent);
    edit(&mut world, |wish| wish.rollout["partition"] = 0.into());
    let given_up = |plan: &Plan| plan.node_states.values().any(|state| state.reason == Reason::DetachAborted);
    assert!((0..120).any(|_| given_up(&seconds(&mut world, &mut operator, 1))));
    let plan = seconds(&mut world, &mut operator, 5);
    assert!(plan.node_states.values().any(|state| state.reason.word() == "Proving"), "{:#?}", plan.node_states);
    assert_eq!(condition(&plan, "Progressing"), Some(("True", "RollingOut")));
}

/// No other node waits, by which the rollout would say that it has halted.
#[test]
fn progressing_is_false_once_the_last_node_is_given_up() {
    let (mut world, mut operator, plan) = given_up(Wish::new(Marks::Timestamp, 1), 1);
    assert_eq!(condition(&plan, "Progressing"), Some(("False", "DetachAborted")));
    assert_eq!(condition(&plan, "Stalled"), Some(("True", "DetachAborted")));
    edit(&mut world, |wish| wish.paused = true);
    assert_eq!(condition(&seconds(&mut world, &mut operator, 5), "Progressing"), Some(("False", "Paused")));
}

#[test]
fn a_node_whose_slot_is_freed_before_update_awaits_retry() {
    let (mut world, mut operator, _) = given_up(Wish::new(Marks::Timestamp, 1), 3);
    let node = release(&mut world);
    assert_eq!(failed(&world), [node.as_str()]);
    world.change(|cluster| cluster.detacher = Detacher::Good);
    world.run_until(&mut operator, 240, |world| on(world, 2) == 2).unwrap();
    let plan = seconds(&mut world, &mut operator, 60);
    assert_eq!((plan.node_states[&node].reason.word(), on(&world, 2)), ("FailedBefore", 2));
    annotate(&mut world, &node, names::RETRY_ANNOTATION, "1");
    world.run_until(&mut operator, 240, World::is_converged).unwrap();
}

#[test]
fn departing_nodes_do_not_hide_a_stalled_first_revision() {
    let rollout = json!({"progressDeadlineSeconds": 60});
    let mut world = World::new(Wish { image: 99, rollout, ..Wish::new(Marks::Token, 1) }, 8);
    let mut operator = Operator::default();
    let mut plan = seconds(&mut world, &mut operator, 10);
    for node in ["n0", "n1", "n2", "n3"] {
        world.change(|cluster| cluster.edit_node(node, |node| node["metadata"]["labels"]["ingress"] = "false".into()));
        plan = seconds(&mut world, &mut operator, 25);
    }
    assert_eq!(condition(&plan, "Stalled"), Some(("True", "ProgressDeadlineExceeded")));
}

#[test]
fn only_a_window_that_opens_ends_a_wait_by_itself() {
    let ends = |opens| Reason::OutsideWindow { opens }.ends_by_itself();
    assert_eq!((ends(Some(1)), ends(None)), (true, false));
}

#[test]
fn an_api_server_refusal_holds_only_the_refused_object() {
    let (mut world, mut operator) = settled(Wish::new(Marks::Both, 1), 2);
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    let writes = |plan: &Plan, object| {
        let written = |action: &&Action| match action {
            Action::PatchNode { node, .. } => node == "n0" && object == NodeObject::Node,
            Action::PatchDeployment { node, .. } | Action::DeleteDeployment { node, .. } => {
                node == "n0" && object == NodeObject::Deployment
            }
            _ => false,
        };
        plan.actions.iter().filter(written).count()
    };
    let mut held = BTreeSet::new();
    for second in 0..160 {
        if second == 100 {
            world.change(|cluster| cluster.edit_node("n0", |node| node["metadata"]["labels"]["ingress"] = "false".into()));
        }
        operator.catch_up(&world);
        let mut snapshot = operator.snapshot(&world).unwrap();
        let plan = planner::decide(&snapshot);
        for object in [NodeObject::Node, NodeObject::Deployment, NodeObject::Pods, NodeObject::PullPod] {
            snapshot.refusals = [(object, [("n0".to_owned(), "no such thing".to_owned())].into())].into();
            let refused = planner::decide(&snapshot);
            if writes(&plan, object) > 0 {
                held.insert((object, second >= 100));
                assert_eq!(writes(&refused, object), 0, "{object:?}, {second} s");
                let reason = &refused.node_states["n0"].reason;
                assert!(matches!(reason, Reason::Refused { object: of, .. } if *of == object), "{second} s: {reason:?}");
                assert!(reason.message().contains(&format!("refuses {object}: no such thing")), "{}", reason.message());
                assert!(refused.recheck_at.is_some_and(|at| at <= snapshot.now + 5), "{second} s: {:?}", refused.recheck_at);
            } else if object != NodeObject::Deployment {
                assert_eq!(
                    (refused.actions, refused.node_states),
                    (plan.actions.clone(), plan.node_states.clone()),
                    "{object:?}, {second} s"
                );
            }
        }
        world.fair_second(&mut operator);
    }
    let both = [NodeObject::Node, NodeObject::Deployment].map(|object| [(object, false), (object, true)]);
    assert_eq!(held, both.into_iter().flatten().collect(), "in an update, and where it leaves");
    assert_eq!(world.audit.violations, Vec::<String>::new());
}

#[test]
fn successive_departures_beside_a_drain_are_not_late() {
    let (mut world, mut operator) = at_rest(&json!({"progressDeadlineSeconds": 60}), 8, 2);
    let taints = json!([{"key": names::KARPENTER_TAINT, "effect": "NoSchedule"}]);
    world.change(|cluster| cluster.edit_node("n7", |node| node["spec"]["taints"] = taints));
    seconds(&mut world, &mut operator, 30);
    for node in ["n0", "n1", "n2", "n3"] {
        world.change(|cluster| cluster.edit_node(node, |node| node["metadata"]["labels"]["ingress"] = "false".into()));
        let plan = seconds(&mut world, &mut operator, 25);
        assert_ne!(condition(&plan, "Stalled"), Some(("True", "ProgressDeadlineExceeded")));
    }
}

#[test]
fn a_namesake_of_a_node_with_freed_slot_is_updated() {
    let (mut world, mut operator, node) = halted_and_released();
    seconds(&mut world, &mut operator, 1);
    world.change(|cluster| {
        cluster.leave(&node);
        cluster.join(&node);
    });
    world.run_until(&mut operator, 300, World::is_converged).unwrap();
    assert_eq!(on(&world, 2), 4);
    assert_eq!(failed(&world), Vec::<String>::new());
}
