//! Nodes that are about to be taken away, while the spec is not valid, and for longer than a rollout waits.

use crate::{
    rollout_state::{at_rest, condition, edit, on, reasons, seconds},
    world::{
        World,
        cluster::{Detacher, node_of, revision},
        operator::Operator,
        wish::{Marks, Wish},
    },
};
use crds::{ledger::GrantReason, names};
use planner::{Action, Reason, plan::Write};
use serde_json::{Value, json};

fn taint(world: &mut World, node: &str, key: Option<&str>) {
    let taints: Vec<Value> = key.into_iter().map(|key| json!({"key": key, "effect": "NoSchedule"})).collect();
    world.audit.disturbed.insert(node.to_owned());
    world.change(|cluster| cluster.edit_node(node, |node| node["spec"]["taints"] = taints.into()));
}

fn delete_node(world: &mut World, node: &str) {
    world.audit.disturbed.insert(node.to_owned());
    world.change(|cluster| cluster.edit_node(node, |node| node["metadata"]["deletionTimestamp"] = "1970-01-12T13:46:40Z".into()));
}

/// No revision of this number is recorded.
fn invalidate(world: &mut World) {
    edit(world, |wish| wish.rollback_to = Some(7));
}

fn pods_on(world: &World, node: &str) -> usize {
    world.cluster.pods.iter().filter(|pod| pod.node == node).count()
}

fn grant(world: &World, node: &str) -> Option<GrantReason> {
    world.cluster.ledger()?.grants.get(node).map(|grant| grant.kind)
}

/// A world at rest whose spec is no longer valid.
fn invalid(marks: Marks) -> (World, Operator) {
    let mut world = World::new(Wish::new(marks, 1), 3);
    let mut operator = Operator::default();
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
    invalidate(&mut world);
    let plan = seconds(&mut world, &mut operator, 3);
    assert_eq!(condition(&plan, "Valid"), Some(("False", "RevisionNotFound")));
    (world, operator)
}

#[test]
fn a_departing_node_is_detached_first_despite_an_invalid_spec() {
    let departures: [fn(&mut World); 4] = [
        |world| taint(world, "n1", Some(names::CLUSTER_AUTOSCALER_TAINT)),
        |world| taint(world, "n1", Some(names::KARPENTER_TAINT)),
        |world| taint(world, "n1", Some(names::OUT_OF_SERVICE_TAINT)),
        |world| delete_node(world, "n1"),
    ];
    for marks in [Marks::Token, Marks::Node, Marks::Degrade] {
        for departs in departures {
            let (mut world, mut operator) = invalid(marks);
            departs(&mut world);
            world.run_until(&mut operator, 5, |world| grant(world, "n1") == Some(GrantReason::Drain)).unwrap();
            seconds(&mut world, &mut operator, 5);
            assert_eq!(pods_on(&world, "n1"), 2, "{marks:?}: its grace is not over");
            let plan = seconds(&mut world, &mut operator, 20);
            assert_eq!((pods_on(&world, "n1"), on(&world, 1)), (0, 3), "{marks:?}");
            assert_eq!(reasons(&plan), ["Draining"], "{marks:?}");
            // Its machine goes.
            world.change(|cluster| {
                cluster.version += 1;
                cluster.nodes.remove("n1");
            });
            world.run_until(&mut operator, 60, |world| grant(world, "n1").is_none()).unwrap();
            assert!(!world.cluster.deployments.contains_key("edge-n1"), "{marks:?}");
        }
    }
}

#[test]
fn a_vanished_node_is_forgotten_despite_an_invalid_spec() {
    let (mut world, mut operator) = invalid(Marks::Token);
    world.audit.disturbed.insert("n1".to_owned());
    world.change(|cluster| {
        cluster.version += 1;
        cluster.nodes.remove("n1");
    });
    world.run_until(&mut operator, 60, |world| !world.cluster.deployments.contains_key("edge-n1")).unwrap();
    let plan = seconds(&mut world, &mut operator, 10);
    assert_eq!((reasons(&plan), world.cluster.ledger().unwrap().grants.len()), (Vec::new(), 0));
}

#[test]
fn a_node_under_update_is_drained_despite_an_invalid_spec() {
    for pods_changed in [false, true] {
        let (mut world, mut operator) = at_rest(&Value::Null, 3, 1);
        edit(&mut world, |wish| wish.image = 99);
        let begun = |world: &World| world.cluster.ledger().is_some_and(|ledger| !ledger.grants.is_empty());
        world.run_until(&mut operator, 60, |world| begun(world) && (!pods_changed || on(world, 99) == 1)).unwrap();
        let node = world.cluster.ledger().unwrap().grants.keys().next().unwrap().clone();
        invalidate(&mut world);
        seconds(&mut world, &mut operator, 1);
        taint(&mut world, &node, Some(names::KARPENTER_TAINT));
        seconds(&mut world, &mut operator, 40);
        assert_eq!((grant(&world, &node), pods_on(&world, &node)), (Some(GrantReason::Drain), 0), "{pods_changed}");
    }
}

#[test]
fn a_cancelled_drain_restores_the_node_despite_an_invalid_spec() {
    for marks in [Marks::Token, Marks::Both, Marks::Degrade] {
        // While it is marked, and without pods.
        for after in [3, 40] {
            let (mut world, mut operator) = invalid(marks);
            taint(&mut world, "n1", Some(names::CLUSTER_AUTOSCALER_TAINT));
            seconds(&mut world, &mut operator, after);
            assert_eq!(grant(&world, "n1"), Some(GrantReason::Drain));
            taint(&mut world, "n1", None);
            let plan = seconds(&mut world, &mut operator, 60);
            assert_eq!((grant(&world, "n1"), pods_on(&world, "n1"), reasons(&plan)), (None, 2, Vec::new()), "{marks:?}, {after} s");
            assert_eq!(plan.status.nodes.available, 3, "{marks:?}, {after} s");
            edit(&mut world, |wish| (wish.rollback_to, wish.image) = (None, 2));
            world.run_until(&mut operator, 200, World::is_converged).unwrap();
        }
    }
}

/// Somebody wiped the status, which says how many pods there were.
#[test]
fn a_cancelled_drain_with_unknown_pod_count_awaits_valid_spec() {
    let (mut world, mut operator) = invalid(Marks::Token);
    taint(&mut world, "n1", Some(names::CLUSTER_AUTOSCALER_TAINT));
    seconds(&mut world, &mut operator, 40);
    operator.forget_reserved();
    world.change(|cluster| cluster.edit_resource(|resource| resource.status = None));
    seconds(&mut world, &mut operator, 20);
    taint(&mut world, "n1", None);
    let plan = seconds(&mut world, &mut operator, 40);
    assert_eq!((pods_on(&world, "n1"), plan.node_states["n1"].reason.word()), (0, "InvalidSpec"));
    edit(&mut world, |wish| wish.rollback_to = None);
    world.run_until(&mut operator, 200, World::is_converged).unwrap();
}

#[test]
fn a_node_given_up_after_detach_timeout_may_still_leave() {
    let leaves = |world: &mut World, node: &str, kind| match kind {
        GrantReason::Drain => taint(world, node, Some(names::CLUSTER_AUTOSCALER_TAINT)),
        _ => world.change(|cluster| cluster.edit_node(node, |node| node["metadata"]["labels"]["ingress"] = "false".into())),
    };
    for kind in [GrantReason::Drain, GrantReason::Remove] {
        for valid in [true, false] {
            let mut world = World::new(Wish { on_timeout: "Abort", ..Wish::new(Marks::Timestamp, 3) }, 3);
            let mut operator = Operator::default();
            world.run_until(&mut operator, 120, World::is_converged).unwrap();
            world.change(|cluster| cluster.detacher = Detacher::Silent);
            edit(&mut world, |wish| wish.image = 2);
            let plan = seconds(&mut world, &mut operator, 60);
            let (node, _) = plan.node_states.iter().find(|(_, state)| state.reason == Reason::DetachAborted).unwrap();
            if !valid {
                invalidate(&mut world);
            }
            leaves(&mut world, node, kind);
            // Whether a node is chosen is not known without a valid spec.
            let expected = if valid || kind == GrantReason::Drain { kind } else { GrantReason::Abort };
            let plan = seconds(&mut world, &mut operator, 5);
            assert_eq!(grant(&world, node), Some(expected), "{valid}: {:?}", plan.node_states[node]);
        }
    }
}

#[test]
fn a_long_drain_blocks_the_rollout_and_stops_the_clock() {
    let (mut world, mut operator) = at_rest(&json!({"progressDeadlineSeconds": 60}), 4, 1);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 60, |world| on(world, 2) == 1).unwrap();
    world.run_until(&mut operator, 60, |world| world.cluster.ledger().unwrap().rollout_state.as_ref().unwrap().finished == 1).unwrap();
    let drained =
        world.cluster.deployments.values().find(|found| revision(&found["spec"]["template"]) == world.cluster.wish.revision_of(1));
    let drained = node_of(drained.unwrap()).to_owned();
    taint(&mut world, &drained, Some(names::CLUSTER_AUTOSCALER_TAINT));
    world.run_until(&mut operator, 5, |world| grant(world, &drained) == Some(GrantReason::Drain)).unwrap();
    while pods_on(&world, &drained) > 0 {
        let plan = seconds(&mut world, &mut operator, 1);
        assert_eq!(plan.status.blocked, None, "it has not done its part");
    }
    // Whoever was under way is finished.
    let plan = seconds(&mut world, &mut operator, 30);
    let blocked = plan.status.blocked.unwrap();
    assert_eq!((blocked.reason.as_str(), blocked.object), ("Draining", format!("Node/{drained}")));
    assert!(
        blocked.message.contains("until the Node is deleted") && blocked.message.contains(names::CLUSTER_AUTOSCALER_TAINT),
        "{}",
        blocked.message
    );
    assert_eq!(plan.status.eta, None);
    let plan = seconds(&mut world, &mut operator, 300);
    assert_eq!((condition(&plan, "Stalled"), reasons(&plan)), (None, vec!["Budget", "Draining"]));
    assert_ne!(condition(&plan, "Progressing").unwrap().1, "ProgressDeadlineExceeded");
    // Time that stood still is no pace either.
    taint(&mut world, &drained, None);
    let plan = seconds(&mut world, &mut operator, 5);
    assert_eq!((&plan.status.blocked, condition(&plan, "Progressing")), (&None, Some(("True", "RollingOut"))));
    world.run_until(&mut operator, 200, World::is_converged).unwrap();
}

#[test]
fn a_long_drain_does_not_block_while_other_nodes_proceed() {
    let (mut world, mut operator) = at_rest(&Value::Null, 4, 2);
    taint(&mut world, "n1", Some(names::KARPENTER_TAINT));
    seconds(&mut world, &mut operator, 40);
    edit(&mut world, |wish| wish.image = 2);
    for _ in 0..20 {
        let plan = seconds(&mut world, &mut operator, 1);
        assert_eq!(plan.status.blocked, None);
    }
    let plan = seconds(&mut world, &mut operator, 200);
    assert_eq!((on(&world, 2), plan.status.blocked.unwrap().reason.as_str()), (3, "Draining"));
}

#[test]
fn a_deleted_node_without_kubelet_counts_as_drained_despite_pods() {
    let (mut world, mut operator) = at_rest(&Value::Null, 3, 1);
    delete_node(&mut world, "n1");
    world.run_until(&mut operator, 40, |world| world.cluster.deployments["edge-n1"]["spec"]["replicas"] == 0).unwrap();
    // Its kubelet is gone.
    world.change(|cluster| {
        cluster.edit_node("n1", |node| node["status"]["ready"] = false.into());
        cluster.pods.iter_mut().filter(|pod| pod.node == "n1").for_each(|pod| pod.ends_at = Some(i64::MAX));
    });
    let plan = seconds(&mut world, &mut operator, 5);
    assert_eq!(pods_on(&world, "n1"), 2);
    let blocked = plan.status.blocked.unwrap();
    assert_eq!((blocked.reason.as_str(), blocked.object.as_str()), ("Draining", "Node/n1"));
    assert!(blocked.message.contains("finalizers"), "{}", blocked.message);
}

#[test]
fn a_closed_window_is_named_before_a_long_drain() {
    let never = json!({"windows": [{"schedule": "0 0 1 7 *", "duration": "1m", "timeZone": "Etc/UTC"}]});
    let (mut world, mut operator) = at_rest(&Value::Null, 4, 2);
    taint(&mut world, "n1", Some(names::KARPENTER_TAINT));
    seconds(&mut world, &mut operator, 40);
    edit(&mut world, |wish| (wish.image, wish.rollout) = (2, never));
    let plan = seconds(&mut world, &mut operator, 5);
    assert_eq!(plan.status.blocked.as_ref().unwrap().reason, "OutsideWindow");
    assert_eq!(condition(&plan, "Progressing"), Some(("False", "OutsideWindow")));
}

#[test]
fn a_node_remade_under_its_grant_is_granted_anew() {
    let (mut world, mut operator) = at_rest(&Value::Null, 2, 1);
    edit(&mut world, |wish| wish.image = 2);
    seconds(&mut world, &mut operator, 3);
    let granted = |world: &World| {
        let (node, grant) = world.cluster.ledger().unwrap().grants.first_key_value().unwrap();
        (node.clone(), grant.id, grant.node_uid.clone())
    };
    let (node, id, _) = granted(&world);
    world.audit.disturbed.insert(node.clone());
    world.change(|cluster| cluster.edit_node(&node, |node| node["metadata"]["uid"] = "another".into()));
    seconds(&mut world, &mut operator, 3);
    let (after, newer, uid) = granted(&world);
    assert_eq!((after, uid.as_str()), (node, "another"));
    assert!(newer > id, "a new place, with marks of its own");
    world.run_until(&mut operator, 300, World::is_converged).unwrap();
}

#[test]
fn the_first_close_of_a_deployment_tests_its_generation() {
    let (mut world, mut operator) = at_rest(&Value::Null, 1, 1);
    world.change(|cluster| cluster.join("n9"));
    let first_close = (0..60).find_map(|_| {
        let plan = world.fair_second(&mut operator)?;
        plan.actions.into_iter().find_map(|action| match action {
            Action::PatchDeployment { write: Write::FirstClose, patch, .. } => Some(patch),
            _ => None,
        })
    });
    let patch = first_close.unwrap();
    let tests = |path: &str| patch.as_array().unwrap().iter().any(|step| step["op"] == "test" && step["path"] == path);
    assert!(tests("/metadata/generation"), "{patch}");
}
