//! The steps of a canary: what each waits for, what halts it, and when its revision is the last that all nodes ran; each on a whole
//! simulated cluster.

use crate::{
    rollout_state::{annotate, at_rest, condition, edit, on, reasons, seconds},
    world::{
        World,
        operator::Operator,
        wish::{Marks, Wish},
    },
};
use crds::names;
use planner::{Plan, Reason, reason::StepState};
use serde_json::{Value, json};

#[test]
fn a_canary_soaks_between_steps_and_waits_for_promotion() {
    let steps = json!({"steps": [{"nodes": 1, "soak": "20s"}, {"nodes": "50%", "pause": true}]});
    let (mut world, mut operator) = at_rest(&steps, 6, 3);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 60, |world| on(world, 2) == 1).unwrap();
    let plan = seconds(&mut world, &mut operator, 25);
    assert_eq!(on(&world, 2), 1, "the second step begins only after the first has soaked");
    assert!(
        plan.node_states.values().any(|state| matches!(state.reason, Reason::Step { step: 1, of: 2, state: StepState::Soaking { .. } })),
        "{plan:#?}"
    );
    let plan = seconds(&mut world, &mut operator, 100);
    assert_eq!(on(&world, 2), 3);
    assert_eq!(condition(&plan, "Progressing"), Some(("False", "AwaitingPromotion")));
    edit(&mut world, |wish| wish.promote = Some((1, 2)));
    seconds(&mut world, &mut operator, 60);
    assert_eq!(on(&world, 2), 3, "leave for another revision is none");
    edit(&mut world, |wish| wish.promote = Some((2, 1)));
    seconds(&mut world, &mut operator, 60);
    assert_eq!(on(&world, 2), 3, "leave for an earlier step is none");
    edit(&mut world, |wish| wish.promote = Some((2, 2)));
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
    let plan = seconds(&mut world, &mut operator, 2);
    assert_eq!(condition(&plan, "Progressing"), Some(("False", "Complete")));
}

/// Steps of the canary that are done.
fn steps_done(world: &World) -> u32 {
    world.cluster.ledger().unwrap().rollout_state.as_ref().unwrap().steps_done
}

#[test]
fn a_partition_that_keeps_all_nodes_passes_no_step() {
    let steps = json!([{"nodes": 1, "soak": "5s"}, {"nodes": "50%", "pause": true}]);
    let (mut world, mut operator) = at_rest(&json!({"steps": steps, "partition": "100%"}), 4, 2);
    edit(&mut world, |wish| wish.image = 2);
    let plan = seconds(&mut world, &mut operator, 60);
    assert_eq!((on(&world, 2), steps_done(&world)), (0, 0));
    assert_eq!(reasons(&plan), ["CanaryUpdating", "Partition"]);
    assert_eq!(condition(&plan, "Progressing"), Some(("False", "Partition")));
    assert_eq!(plan.status.blocked.unwrap().reason, "Partition");
    edit(&mut world, |wish| wish.rollout = json!({"steps": steps}));
    for _ in 0..60 {
        seconds(&mut world, &mut operator, 1);
        assert!(on(&world, 2) <= 1 || steps_done(&world) == 1, "the second step begins only after the first");
    }
    assert_eq!((on(&world, 2), steps_done(&world)), (2, 1));
}

#[test]
fn a_step_beyond_the_partition_waits_until_it_is_lowered() {
    let steps = json!([{"nodes": 1, "soak": "2s"}, {"nodes": "50%", "soak": "2s"}]);
    let (mut world, mut operator) = at_rest(&json!({"steps": steps, "partition": 3}), 4, 2);
    edit(&mut world, |wish| wish.image = 2);
    let plan = seconds(&mut world, &mut operator, 100);
    assert_eq!((on(&world, 2), steps_done(&world)), (1, 1));
    let waiting =
        |word: &str| plan.node_states.values().map(|state| &state.reason).filter(|reason| reason.word() == word).collect::<Vec<_>>();
    assert_eq!((waiting("Partition").len(), waiting("CanaryUpdating").len()), (1, 2), "{:?}", plan.node_states);
    assert!(waiting("CanaryUpdating")[0].message().contains("partition keeps 1 of them"), "{}", waiting("CanaryUpdating")[0].message());
    edit(&mut world, |wish| wish.rollout = json!({"steps": steps, "partition": 2}));
    let plan = seconds(&mut world, &mut operator, 100);
    assert_eq!((on(&world, 2), steps_done(&world), reasons(&plan)), (2, 2, vec!["Partition"]));
    edit(&mut world, |wish| wish.rollout = json!({"steps": steps}));
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
}

#[test]
fn steps_are_not_passed_without_nodes_to_prove_them() {
    let (mut world, mut operator) = at_rest(&json!({"steps": [{"nodes": 1, "soak": "5s"}]}), 3, 3);
    let ingress = |world: &mut World, value: &str| {
        for node in ["n0", "n1", "n2"] {
            world.change(|cluster| cluster.edit_node(node, |node| node["metadata"]["labels"]["ingress"] = value.into()));
        }
    };
    ingress(&mut world, "false");
    world.run_until(&mut operator, 120, |world| world.cluster.deployments.is_empty()).unwrap();
    edit(&mut world, |wish| wish.image = 2);
    seconds(&mut world, &mut operator, 30);
    assert_eq!(steps_done(&world), 0);
    ingress(&mut world, "true");
    world.run_until(&mut operator, 60, |world| on(world, 1) + on(world, 2) == 3).unwrap();
    assert_eq!(on(&world, 2), 1);
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
}

/// What `status.revisions.current` says.
fn current(plan: &Plan) -> &str {
    &plan.status.revisions.current
}

/// All nodes serve with this image.
fn serve(world: &World, image: u8) -> bool {
    let revision = world.cluster.wish.revision_of(image);
    let idle = world.cluster.ledger().is_some_and(|ledger| ledger.grants.is_empty());
    idle && world.cluster.pods.iter().all(|pod| pod.ready && pod.revision() == revision)
}

#[test]
fn a_step_of_all_nodes_soaks_before_it_is_passed() {
    let (mut world, mut operator) = at_rest(&json!({"steps": [{"nodes": "100%", "soak": "400s"}]}), 2, 1);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 120, |world| serve(world, 2)).unwrap();
    let plan = seconds(&mut world, &mut operator, 100);
    assert_eq!((current(&plan), steps_done(&world)), (world.cluster.wish.revision_of(1).as_str(), 0));
    assert_eq!(condition(&plan, "Progressing"), Some(("True", "RollingOut")));
    let blocked = plan.status.blocked.as_ref().unwrap();
    assert_eq!((blocked.reason.as_str(), blocked.object.as_str()), ("CanarySoaking", "IngressDaemonSet/edge"));
    assert!(blocked.message.contains("step 1 of 1"), "{}", blocked.message);
    world.run_until(&mut operator, 400, |world| steps_done(world) == 1).unwrap();
    let plan = seconds(&mut world, &mut operator, 2);
    assert_eq!(current(&plan), world.cluster.wish.revision_of(2));
    assert_eq!(condition(&plan, "Progressing"), Some(("False", "Complete")));
    assert_eq!(plan.status.blocked, None);
}

#[test]
fn a_sleeping_operator_wakes_when_the_last_step_has_soaked() {
    let (mut world, mut operator) = at_rest(&json!({"steps": [{"nodes": "100%", "soak": "20s"}]}), 2, 2);
    edit(&mut world, |wish| wish.image = 2);
    world.idle_until(&mut operator, 120, |world| serve(world, 2)).unwrap();
    world.idle_until(&mut operator, 25, |world| steps_done(world) == 1).unwrap();
}

#[test]
fn a_pausing_step_of_all_nodes_waits_for_promotion() {
    let (mut world, mut operator) = at_rest(&json!({"steps": [{"nodes": 2, "pause": true}]}), 2, 2);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 120, |world| serve(world, 2)).unwrap();
    let plan = seconds(&mut world, &mut operator, 30);
    assert_eq!(current(&plan), world.cluster.wish.revision_of(1));
    assert_eq!(condition(&plan, "Progressing"), Some(("False", "AwaitingPromotion")));
    let blocked = plan.status.blocked.as_ref().unwrap();
    assert!(blocked.reason == "AwaitingPromotion" && blocked.message.contains("spec.promote"), "{blocked:?}");
    edit(&mut world, |wish| wish.promote = Some((2, 1)));
    let plan = seconds(&mut world, &mut operator, 5);
    assert_eq!((current(&plan), condition(&plan, "Progressing")), (&*world.cluster.wish.revision_of(2), Some(("False", "Complete"))));
}

#[test]
fn too_many_restarts_roll_back_a_step_of_all_nodes() {
    let steps = json!({"steps": [{"nodes": "100%", "soak": "60s", "maxRestarts": 0}], "autoRollback": true});
    let (mut world, mut operator) = at_rest(&steps, 2, 2);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 120, |world| serve(world, 2)).unwrap();
    seconds(&mut world, &mut operator, 10);
    restart(&mut world, 2, 1);
    let plan = seconds(&mut world, &mut operator, 120);
    assert_eq!((condition(&plan, "RolledBack"), on(&world, 1)), (Some(("True", "RevisionFailed")), 2));
}

#[test]
fn a_halted_step_of_all_nodes_waits_for_a_retry() {
    let (mut world, mut operator) = at_rest(&json!({"steps": [{"nodes": "100%", "soak": "20s", "maxRestarts": 0}]}), 2, 2);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 120, |world| serve(world, 2)).unwrap();
    restart(&mut world, 2, 1);
    let plan = seconds(&mut world, &mut operator, 60);
    assert_eq!((current(&plan), steps_done(&world)), (&*world.cluster.wish.revision_of(1), 0));
    assert_eq!(condition(&plan, "Progressing"), Some(("False", "MaxFailedNodes")));
    assert_eq!(condition(&plan, "Stalled"), Some(("True", "MaxFailedNodes")));
    let blocked = plan.status.blocked.as_ref().unwrap();
    assert_eq!(blocked.reason, "MaxFailedNodes");
    assert!(blocked.message.contains("maxRestarts") && !blocked.message.contains("maxFailedNodes"), "{}", blocked.message);
    let node = world.cluster.ledger().unwrap().rollout_state.as_ref().unwrap().failed.keys().next().unwrap().clone();
    annotate(&mut world, &node, names::RETRY_ANNOTATION, "1");
    let plan = seconds(&mut world, &mut operator, 40);
    assert_eq!((current(&plan), condition(&plan, "Stalled")), (&*world.cluster.wish.revision_of(2), None));
}

#[test]
fn a_last_node_failing_within_min_ready_seconds_causes_rollback() {
    let (mut world, mut operator) = at_rest(&json!({"nodeDeadlineSeconds": 60, "autoRollback": true}), 2, 1);
    edit(&mut world, |wish| (wish.image, wish.min_ready) = (2, 30));
    let ready = |world: &World| {
        let new = world.cluster.wish.revision_of(2);
        world.cluster.pods.iter().filter(|pod| pod.ready && pod.ends_at.is_none() && pod.revision() == new).count()
    };
    world.run_until(&mut operator, 120, |world| ready(world) == 4).unwrap();
    seconds(&mut world, &mut operator, 10);
    let last = world.cluster.ledger().unwrap().grants.keys().next().unwrap().clone();
    world.change(|cluster| cluster.pods.iter_mut().filter(|pod| pod.node == last).for_each(|pod| pod.ready_at = i64::MAX));
    let plan = seconds(&mut world, &mut operator, 200);
    assert_eq!((condition(&plan, "RolledBack"), on(&world, 1)), (Some(("True", "RevisionFailed")), 2));
}

#[test]
fn a_revision_is_current_once_the_last_node_has_soaked() {
    let mut world = World::new(Wish { attach_soak: 15, ..Wish::new(Marks::Both, 1) }, 3);
    let mut operator = Operator::default();
    world.run_until(&mut operator, 200, World::is_converged).unwrap();
    edit(&mut world, |wish| wish.image = 2);
    for _ in 0..300 {
        let plan = seconds(&mut world, &mut operator, 1);
        let under_way = !world.cluster.ledger().unwrap().grants.is_empty();
        assert!(!(under_way && current(&plan) == world.cluster.wish.revision_of(2)), "{:?}", plan.node_states);
    }
    let plan = seconds(&mut world, &mut operator, 1);
    assert_eq!(current(&plan), world.cluster.wish.revision_of(2));
}

#[test]
fn a_revision_that_a_partition_holds_back_is_not_current() {
    let (mut world, mut operator) = at_rest(&Value::Null, 3, 3);
    edit(&mut world, |wish| (wish.image, wish.rollout) = (2, json!({"partition": 1})));
    let plan = seconds(&mut world, &mut operator, 60);
    assert_eq!((on(&world, 2), current(&plan)), (2, &*world.cluster.wish.revision_of(1)));
}

#[test]
fn a_pinned_revision_is_current_once_it_is_everywhere() {
    let (mut world, mut operator) = at_rest(&Value::Null, 2, 2);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
    edit(&mut world, |wish| wish.rollback_to = Some(0));
    let plan = seconds(&mut world, &mut operator, 60);
    assert_eq!((on(&world, 1), current(&plan)), (2, &*world.cluster.wish.revision_of(1)));
    edit(&mut world, |wish| (wish.rollback_to, wish.on_delete) = (None, true));
    let plan = seconds(&mut world, &mut operator, 5);
    assert_eq!((on(&world, 1), current(&plan)), (2, &*world.cluster.wish.revision_of(1)));
    for node in ["n0", "n1"] {
        world.audit.disturbed.insert(node.to_owned());
        let pod = world.cluster.pods.iter().find(|pod| pod.node == node).unwrap().name.clone();
        world.change(|cluster| cluster.delete_pod(&pod, None, None));
    }
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
}

/// Containers of this image are restarted, so many in all.
fn restart(world: &mut World, image: u8, times: i32) {
    let revision = world.cluster.wish.revision_of(image);
    world.change(|cluster| cluster.pods.iter_mut().find(|pod| pod.revision() == revision).unwrap().restarts += times);
}

#[test]
fn restarts_of_an_earlier_step_do_not_halt_the_next() {
    let steps = json!({"steps": [{"nodes": 1, "soak": "30s", "maxRestarts": 2}, {"nodes": 2, "soak": "30s", "maxRestarts": 0}]});
    let (mut world, mut operator) = at_rest(&steps, 4, 2);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 60, |world| on(world, 2) == 1).unwrap();
    seconds(&mut world, &mut operator, 20);
    restart(&mut world, 2, 2);
    world.run_until(&mut operator, 60, |world| steps_done(world) == 1).unwrap();
    let plan = seconds(&mut world, &mut operator, 20);
    assert_eq!((on(&world, 2), plan.status.nodes.failed), (2, 0));
    restart(&mut world, 2, 1);
    let plan = seconds(&mut world, &mut operator, 5);
    assert_eq!(condition(&plan, "Progressing"), Some(("False", "MaxFailedNodes")), "its own restarts count");
}

#[test]
fn restarts_before_a_rollout_count_in_none_of_its_steps() {
    let (mut world, mut operator) = at_rest(&Value::Null, 4, 2);
    edit(&mut world, |wish| (wish.image, wish.rollout) = (2, json!({"partition": 2})));
    seconds(&mut world, &mut operator, 60);
    restart(&mut world, 2, 3);
    edit(&mut world, |wish| wish.image = 3);
    seconds(&mut world, &mut operator, 1);
    let left = on(&world, 2);
    edit(&mut world, |wish| (wish.image, wish.rollout) = (2, json!({"steps": [{"nodes": 3, "soak": "5s", "maxRestarts": 0}]})));
    let plan = seconds(&mut world, &mut operator, 60);
    assert!(left > 0 && plan.status.nodes.failed == 0, "{left} {:?}", plan.node_states);
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
}

#[test]
fn restarts_count_from_zero_once_their_pod_is_replaced() {
    let steps = json!({"steps": [{"nodes": 1, "soak": "30s", "maxRestarts": 3}, {"nodes": 2, "soak": "90s", "maxRestarts": 1}]});
    let (mut world, mut operator) = at_rest(&steps, 4, 2);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 60, |world| on(world, 2) == 1).unwrap();
    seconds(&mut world, &mut operator, 20);
    restart(&mut world, 2, 3);
    world.run_until(&mut operator, 120, |world| on(world, 2) == 2).unwrap();
    seconds(&mut world, &mut operator, 20);
    let anew = world.cluster.pods.iter().find(|pod| pod.restarts == 3).unwrap().name.clone();
    world.change(|cluster| cluster.delete_pod(&anew, None, None));
    let plan = seconds(&mut world, &mut operator, 20);
    assert_eq!(plan.status.nodes.failed, 0);
    restart(&mut world, 2, 1);
    let plan = seconds(&mut world, &mut operator, 5);
    assert_eq!(plan.status.nodes.failed, 0, "one is allowed");
    restart(&mut world, 2, 1);
    let plan = seconds(&mut world, &mut operator, 5);
    assert_eq!((plan.status.nodes.failed, condition(&plan, "Progressing")), (1, Some(("False", "MaxFailedNodes"))));
}
