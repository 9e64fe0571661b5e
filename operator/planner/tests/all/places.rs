//! Which nodes get a revision that is not proved: those that had a turn, and no others that come back, come anew or get pods again.

use crate::{
    course::{edit, on, seconds},
    proof::{proving, release, serving},
    world::{
        World,
        cluster::{node_of, revision},
        operator::Operator,
    },
};
use crds::{ledger::Kind, names};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Nodes whose Deployment says the revision of this image.
fn with(world: &World, image: u8) -> BTreeSet<String> {
    let wanted = world.cluster.wish.revision_of(image);
    let mut found = BTreeSet::new();
    for deployment in world.cluster.deployments.values().filter(|deployment| revision(&deployment["spec"]["template"]) == wanted) {
        found.insert(node_of(deployment).to_owned());
    }
    found
}

fn taint(world: &mut World, node: &str, taints: Value) {
    world.change(|cluster| cluster.edit_node(node, |node| node["spec"]["taints"] = taints));
}

/// A drain is announced, goes so far, and is called off, while another node runs a revision that is not proved.
fn drain_is_called_off(until: fn(&World, &str) -> bool, orders: impl Fn(&mut World)) -> (World, Operator) {
    let (mut world, mut operator) = proving(&json!({}), 3, 1);
    let outcome = release(&mut world, &mut operator, 25, |_, _| {});
    assert_eq!(outcome.reached, 1);
    let drained = with(&world, 1).into_iter().next().unwrap();
    taint(&mut world, &drained, json!([{"key": names::CLUSTER_AUTOSCALER_TAINT, "effect": "NoSchedule"}]));
    world.run_until(&mut operator, 20, |world| until(world, &drained)).unwrap();
    orders(&mut world);
    taint(&mut world, &drained, json!([]));
    (world, operator)
}

fn is_granted(world: &World, node: &str) -> bool {
    world.cluster.ledger().is_some_and(|ledger| ledger.grants.get(node).is_some_and(|grant| grant.kind == Kind::Drain))
}

fn is_emptied(world: &World, node: &str) -> bool {
    is_granted(world, node) && world.cluster.pods.iter().all(|pod| pod.node != node)
}

#[test]
fn a_node_whose_drain_is_called_off_gets_no_unproved_revision_in_the_place_of_its_drain() {
    for until in [is_granted, is_emptied] {
        let (mut world, mut operator) = drain_is_called_off(until, |_| {});
        for second in 0..25 {
            seconds(&mut world, &mut operator, 1);
            assert_eq!(on(&world, 2), 1, "{second} s after the drain was called off");
        }
        assert_eq!(serving(&world).len(), 3, "it serves with what it ran");
        world.run_until(&mut operator, 400, World::is_converged).unwrap();
        assert_eq!(on(&world, 2), 3);
    }
}

#[test]
fn a_node_whose_drain_is_called_off_while_paused_serves_with_what_it_ran() {
    let (mut world, mut operator) = drain_is_called_off(is_emptied, |world| edit(world, |wish| wish.paused = true));
    seconds(&mut world, &mut operator, 20);
    assert_eq!((on(&world, 2), serving(&world).len()), (1, 3));
    edit(&mut world, |wish| wish.paused = false);
    for _ in 0..5 {
        seconds(&mut world, &mut operator, 1);
        assert_eq!(on(&world, 2), 1);
    }
    world.run_until(&mut operator, 400, World::is_converged).unwrap();
}

#[test]
fn a_node_whose_drain_is_called_off_gets_the_revision_at_once_where_the_budget_has_a_place_for_it() {
    let (mut world, mut operator) = proving(&json!({}), 4, 2);
    taint(&mut world, "n0", json!([{"key": names::CLUSTER_AUTOSCALER_TAINT, "effect": "NoSchedule"}]));
    world.run_until(&mut operator, 20, |world| is_emptied(world, "n0")).unwrap();
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 30, |world| on(world, 2) == 1).unwrap();
    taint(&mut world, "n0", json!([]));
    let ran = |world: &World| with(world, 2).contains("n0");
    world.run_until(&mut operator, 20, ran).unwrap();
    assert_eq!(on(&world, 2), 2);
}
