//! Where a rollout has room: zones, nodes that must stay available, nodes that do not count, nodes that are left out.

use crate::{
    proof::proving,
    rollout_state::{edit, on, seconds},
    world,
};

use crds::{names, token::Phase};
use planner::facts::PullFacts;
use serde_json::json;
use std::collections::BTreeSet;
use world::{
    World, audit,
    operator::Operator,
    settled,
    wish::{Marks, Wish, Zones},
};

/// Nodes with a grant.
fn granted(world: &World) -> BTreeSet<String> {
    world.cluster.ledger().map(|ledger| ledger.grants.keys().cloned().collect()).unwrap_or_default()
}

/// Rolls a version out; returns the nodes that had a grant, second by second.
fn roll_out(world: &mut World, operator: &mut Operator) -> Vec<BTreeSet<String>> {
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    let mut seen = Vec::new();
    for _ in 0..600 {
        world.fair_second(operator);
        seen.push(granted(world));
        if world.is_converged() {
            assert_eq!(world.audit.violations, Vec::<String>::new());
            return seen;
        }
    }
    panic!("it does not end: {:#?}", world.cluster.ledger());
}

fn reason(world: &mut World, operator: &mut Operator, node: &str) -> Option<&'static str> {
    world.fair_second(operator).and_then(|plan| plan.node_states.get(node).map(|state| state.reason.word()))
}

#[test]
fn zones_take_turns_within_zone_and_fleet_budgets() {
    for (budget, at_once) in [(6, 2), (2, 2), (1, 1)] {
        let (mut world, mut operator) = settled(Wish { zones: Zones::OneEach, ..Wish::new(Marks::Token, budget) }, 6);
        let seen = roll_out(&mut world, &mut operator);
        assert_eq!(seen.iter().map(BTreeSet::len).max(), Some(at_once), "a budget of {budget}");
        // Nobody waits for the other zone to be through.
        let order: Vec<_> = first_grants(&seen);
        assert_ne!(is_even(&order[0]), is_even(&order[1]), "{order:?}");
    }
}

fn is_even(node: &str) -> bool {
    node.ends_with(['0', '2', '4'])
}

/// Nodes in the order of their first grants.
fn first_grants(seen: &[BTreeSet<String>]) -> Vec<String> {
    let mut order: Vec<String> = Vec::new();
    for node in seen.iter().flatten() {
        if !order.contains(node) {
            order.push(node.clone());
        }
    }
    order
}

#[test]
fn a_zone_is_finished_before_the_next_one_begins() {
    for budget in [1, 2, 6] {
        let (mut world, mut operator) = settled(Wish { zones: Zones::OneAtATime, ..Wish::new(Marks::Both, budget) }, 6);
        let seen = roll_out(&mut world, &mut operator);
        let order = first_grants(&seen);
        assert_eq!(order.len(), 6);
        assert!(order[..3].iter().all(|node| is_even(node)) && !order[3..].iter().any(|node| is_even(node)), "{order:?}");
        assert_eq!(seen.iter().map(BTreeSet::len).max(), Some(usize::try_from(budget).unwrap().min(3)));
    }
}

#[test]
fn a_node_that_waits_for_another_zone_says_for_which() {
    let (mut world, mut operator) = settled(Wish { zones: Zones::OneAtATime, ..Wish::new(Marks::Token, 1) }, 4);
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    let plan = world.fair_second(&mut operator).unwrap();
    let state = &plan.node_states["n1"].reason;
    assert_eq!((state.word(), state.message().contains("topology.kubernetes.io/zone=even")), ("OtherDomain", true), "{state:?}");
}

#[test]
fn a_node_waiting_for_its_zones_budget_says_so() {
    let (mut world, mut operator) = settled(Wish { zones: Zones::OneEach, ..Wish::new(Marks::Token, 4) }, 4);
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    let plan = world.fair_second(&mut operator).unwrap();
    let waiting: Vec<_> = plan.node_states.values().filter(|state| state.reason.word() == "DomainBudget").collect();
    assert_eq!(waiting.len(), 2, "{:?}", plan.node_states);
    assert!(waiting[0].reason.message().contains("topology.kubernetes.io/zone="), "{waiting:?}");
}

#[test]
fn a_relabelled_node_takes_a_slot_in_both_zones() {
    let (mut world, mut operator) = settled(Wish { zones: Zones::OneEach, ..Wish::new(Marks::Token, 4) }, 4);
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    world.fair_second(&mut operator);
    let moved = granted(&world).into_iter().find(|node| is_even(node)).unwrap();
    world.change(|cluster| cluster.edit_node(&moved, |node| node["metadata"]["labels"][world::wish::ZONE] = "odd".into()));
    let plan = world.fair_second(&mut operator).unwrap();
    let waiting = plan.node_states.values().filter(|state| state.reason.word() == "DomainBudget").count();
    assert_eq!((granted(&world).len(), waiting), (2, 2), "{:?}", plan.node_states);
}

#[test]
fn as_many_nodes_as_must_stay_available_do() {
    let (mut world, mut operator) = settled(Wish { minimum: 3, ..Wish::new(Marks::Token, 4) }, 4);
    let seen = roll_out(&mut world, &mut operator);
    assert_eq!(seen.iter().map(BTreeSet::len).max(), Some(1));

    let (mut world, mut operator) = settled(Wish { minimum: 4, ..Wish::new(Marks::Token, 4) }, 4);
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    for _ in 0..30 {
        assert_eq!(reason(&mut world, &mut operator, "n0"), Some("MinAvailableNodes"));
    }
    assert_eq!(granted(&world).len(), 0);
    // One that is unavailable anyway takes nothing away, and is repaired by its update.
    world.change(|cluster| {
        let later = cluster.now + 3600;
        cluster.pods.iter_mut().filter(|pod| pod.node == "n2").for_each(|pod| pod.ready_at = later);
    });
    world.fair_second(&mut operator);
    world.fair_second(&mut operator);
    assert_eq!(granted(&world), BTreeSet::from(["n2".to_owned()]));
}

#[test]
fn a_lost_kubelet_uses_the_budget_unless_ignored() {
    for ignored in [false, true] {
        let (mut world, mut operator) = settled(Wish { ignores_not_ready: ignored, ..Wish::new(Marks::Token, 1) }, 3);
        world.change(|cluster| {
            let later = cluster.now + 36_000;
            cluster.pods.iter_mut().filter(|pod| pod.node == "n0").for_each(|pod| pod.ready_at = later);
            cluster.edit_node("n0", |node| node["status"]["ready"] = false.into());
        });
        world.fair_second(&mut operator);
        assert_eq!(reason(&mut world, &mut operator, "n0"), Some("NodeNotReady"), "also while nothing is rolled out");
        world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
        let mut updated = BTreeSet::new();
        for _ in 0..120 {
            world.fair_second(&mut operator);
            updated.extend(granted(&world));
        }
        assert_eq!(updated.len(), if ignored { 2 } else { 0 }, "ignored: {ignored}, {updated:?}");
        assert_eq!(reason(&mut world, &mut operator, "n0"), Some("NodeNotReady"));
        assert_eq!(world.audit.violations, Vec::<String>::new());
    }
}

#[test]
fn a_node_lost_in_its_update_keeps_its_slot() {
    for ignored in [false, true] {
        let (mut world, mut operator) = settled(Wish { ignores_not_ready: ignored, ..Wish::new(Marks::Token, 1) }, 3);
        world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
        let updating = |world: &World| {
            let token = |deployment: &serde_json::Value| deployment["metadata"]["labels"][crds::names::TOKEN_LABEL].to_string();
            world.cluster.deployments.values().any(|deployment| token(deployment).contains(".Updating."))
        };
        world.run_until(&mut operator, 60, updating).unwrap();
        let lost = granted(&world);
        let node = lost.first().unwrap().clone();
        let mut plan = None;
        for _ in 0..60 {
            world.change(|cluster| {
                cluster.pods.iter_mut().filter(|pod| pod.node == node).for_each(|pod| pod.ready_at = i64::MAX);
                cluster.edit_node(&node, |node| node["status"]["ready"] = false.into());
            });
            plan = world.fair_second(&mut operator).or(plan);
            assert_eq!(granted(&world), lost);
        }
        let plan = plan.unwrap();
        assert_eq!(plan.node_states[&node].reason.word(), "NodeNotReady");
        let blocked = plan.status.blocked.as_ref().unwrap();
        assert_eq!((blocked.reason.as_str(), blocked.object.as_str()), ("NodeNotReady", format!("Node/{node}").as_str()));
        assert_eq!(world.audit.violations, Vec::<String>::new());
    }
}

#[test]
fn a_skipped_node_stays_unchanged_without_delaying_others() {
    let (mut world, mut operator) = settled(Wish::new(Marks::Token, 1), 3);
    let skip = |world: &mut World, value: Option<&str>| {
        world.change(|cluster| {
            cluster.edit_node("n1", |node| match value {
                Some(value) => node["metadata"]["annotations"][crds::names::SKIP_ANNOTATION] = value.into(),
                None => drop(node["metadata"]["annotations"].as_object_mut().unwrap().remove(crds::names::SKIP_ANNOTATION)),
            });
        });
    };
    skip(&mut world, Some("other/edge, default/edge"));
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    let mut updated = BTreeSet::new();
    for _ in 0..120 {
        world.fair_second(&mut operator);
        updated.extend(granted(&world));
    }
    assert_eq!(updated, BTreeSet::from(["n0".to_owned(), "n2".to_owned()]));
    assert_eq!(reason(&mut world, &mut operator, "n1"), Some("Skipped"));
    // Another resource is not this one.
    skip(&mut world, Some("default/edge-2"));
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
    skip(&mut world, None);
    assert_eq!(world.audit.violations, Vec::<String>::new());
}

#[test]
fn one_zone_at_a_time_holds_despite_a_drain_elsewhere() {
    let (mut world, mut operator) = settled(Wish { zones: Zones::OneAtATime, ..Wish::new(Marks::Token, 3) }, 4);
    let drain = |world: &mut World, node: &str| {
        let taints = serde_json::json!([{"key": crds::names::CLUSTER_AUTOSCALER_TAINT, "effect": "NoSchedule"}]);
        world.change(|cluster| cluster.edit_node(node, |node| node["spec"]["taints"] = taints));
    };
    drain(&mut world, "n1");
    world.fair_second(&mut operator);
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    world.run_until(&mut operator, 5, |world| granted(world).contains("n3")).unwrap();
    drain(&mut world, "n2");
    for _ in 0..10 {
        world.fair_second(&mut operator);
        assert_eq!(world.audit.violations, Vec::<String>::new());
    }
}

#[test]
fn down_nodes_filling_the_budget_update_before_their_zones_turn() {
    let (mut world, mut operator) = settled(Wish { zones: Zones::OneAtATime, ..Wish::new(Marks::Token, 1) }, 4);
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    world
        .run_until(&mut operator, 120, |world| {
            world.cluster.ledger().is_some_and(|ledger| ledger.rollout_state.as_ref().unwrap().finished == 1)
        })
        .unwrap();
    let first = if granted(&world).iter().any(|node| is_even(node)) { "even" } else { "odd" };
    world.change(|cluster| {
        for pod in cluster.pods.iter_mut().filter(|pod| is_even(&pod.node) != (first == "even")) {
            pod.ready_at = i64::MAX;
        }
    });
    world.run_until(&mut operator, 240, World::is_converged).unwrap();
}

#[test]
fn a_freed_slot_is_granted_in_the_same_write() {
    for marks in [Marks::Token, Marks::Both] {
        let (mut world, mut operator) = settled(Wish::new(marks, 1), 3);
        let seen = roll_out(&mut world, &mut operator);
        let under_way: Vec<_> = seen.iter().map(BTreeSet::len).skip_while(|count| *count == 0).collect();
        let ended = under_way.iter().rposition(|count| *count > 0).unwrap();
        assert!(under_way[..=ended].iter().all(|count| *count == 1), "{seen:?}");
    }
}

#[test]
fn drains_take_their_slots_before_updates_in_a_pass() {
    for drained in ["n0", "n1", "n2", "n3"] {
        let (mut world, mut operator) = settled(Wish { minimum: 2, ..Wish::new(Marks::Token, 2) }, 4);
        let taint = serde_json::json!([{"key": crds::names::CLUSTER_AUTOSCALER_TAINT, "effect": "NoSchedule"}]);
        world.change(|cluster| {
            cluster.edit_node(drained, |node| node["spec"]["taints"] = taint);
            cluster.edit_wish(|wish| wish.image = 2);
        });
        world.fair_second(&mut operator);
        let grants = &world.cluster.ledger().unwrap().grants;
        assert!(grants.contains_key(drained), "{drained}: {grants:?}");
        assert_eq!(grants.len(), 2, "{drained}: {grants:?}");
    }
}

/// Nodes that are attached, and whose pods are ready.
fn serving(world: &World) -> usize {
    let cluster = &world.cluster;
    let closed = |node: &String| {
        cluster.deployment_on(node).is_some_and(|found| audit::token(found).is_some_and(|token| token.phase == Phase::Closed))
    };
    let ready = |node: &String| cluster.pods.iter().any(|pod| pod.node == *node && pod.ready);
    cluster.nodes.keys().filter(|node| closed(node) && ready(node)).count()
}

/// The nodes are chosen no more.
fn leave(world: &mut World, nodes: &[&str]) {
    for node in nodes {
        world.change(|cluster| cluster.edit_node(node, |node| node["metadata"]["labels"]["ingress"] = "false".into()));
    }
}

#[test]
fn leaving_nodes_serve_until_the_minimum_serves_without_them() {
    let (mut world, mut operator) = settled(Wish { minimum: 3, ..Wish::new(Marks::Token, 2) }, 4);
    let joining = ["m0", "m1", "m2", "m3"];
    for node in joining {
        world.change(|cluster| {
            cluster.join(node);
            cluster.refuse(node, true);
        });
        world.audit.disturbed.insert(node.to_owned());
    }
    leave(&mut world, &["n0", "n1", "n2", "n3"]);
    for _ in 0..400 {
        let plan = world.fair_second(&mut operator).unwrap();
        assert!(serving(&world) >= 3, "{} serve", serving(&world));
        assert!(plan.node_states.values().all(|state| state.reason.word() != "Budget"));
    }
    let plan = seconds(&mut world, &mut operator, 1);
    let waits = |node: &&str| plan.node_states.get(*node).is_some_and(|state| state.reason.word() == "MinAvailableNodes");
    assert_eq!(["n0", "n1", "n2", "n3"].iter().filter(|node| waits(node)).count(), 3, "{:?}", plan.node_states);
    for node in joining {
        world.change(|cluster| cluster.refuse(node, false));
    }
    for _ in 0..1800 {
        world.fair_second(&mut operator);
        assert!(serving(&world) >= 3);
    }
    assert!(world.is_converged(), "{:?}", world.cluster.ledger());
}

/// Of four nodes a share must stay.
fn settled_with_a_share() -> (World, Operator) {
    settled(Wish { minimum_share: Some("75%"), ..Wish::new(Marks::Token, 4) }, 4)
}

#[test]
fn a_minimum_share_counts_chosen_and_leaving_nodes() {
    let (mut world, mut operator) = settled_with_a_share();
    for node in ["m0", "m1"] {
        world.change(|cluster| {
            cluster.join(node);
            cluster.refuse(node, true);
        });
        world.audit.disturbed.insert(node.to_owned());
    }
    leave(&mut world, &["n0", "n1", "n2", "n3"]);
    for _ in 0..200 {
        world.fair_second(&mut operator);
    }
    // Of six nodes five must serve.
    assert_eq!(serving(&world), 4);
    for node in ["m0", "m1"] {
        world.change(|cluster| cluster.refuse(node, false));
    }
    for _ in 0..1800 {
        world.fair_second(&mut operator);
        assert!(serving(&world) >= 2);
    }
    assert!(world.is_converged(), "{:?}", world.cluster.ledger());
}

#[test]
fn a_minimum_share_releases_leaving_nodes_once_all_chosen_serve() {
    let (mut world, mut operator) = settled_with_a_share();
    // Two are left, of whom and one more 75 % would be three.
    leave(&mut world, &["n0", "n1"]);
    world.run_until(&mut operator, 60, World::is_converged).unwrap();
}

#[test]
fn a_last_leaving_node_waits_for_a_lower_minimum() {
    let (mut world, mut operator) = settled(Wish { minimum: 2, ..Wish::new(Marks::Token, 2) }, 3);
    leave(&mut world, &["n0", "n1"]);
    let plan = seconds(&mut world, &mut operator, 120);
    assert_eq!(serving(&world), 2);
    let blocked = plan.status.blocked.unwrap();
    assert_eq!((blocked.reason.as_str(), blocked.object.as_str()), ("MinAvailableNodes", "IngressDaemonSet/edge"));
    world.change(|cluster| cluster.edit_wish(|wish| wish.minimum = 1));
    world.run_until(&mut operator, 60, World::is_converged).unwrap();
}

#[test]
fn no_minimum_keeps_what_goes_anyway_or_does_not_serve() {
    let settled = || settled(Wish { minimum: 3, ..Wish::new(Marks::Token, 3) }, 3);
    // The resource is deleted.
    let (mut world, mut operator) = settled();
    world.change(|cluster| cluster.edit_resource(|resource| resource.deleting = true));
    world.run_until(&mut operator, 60, |world| world.cluster.resource.is_none()).unwrap();
    // The Node is gone.
    let (mut world, mut operator) = settled();
    world.audit.disturbed.insert("n1".to_owned());
    world.change(|cluster| cluster.leave("n1"));
    world.run_until(&mut operator, 60, |world| world.cluster.deployment_on("n1").is_none()).unwrap();
    // Its machine is about to be taken away.
    for chosen in [true, false] {
        let (mut world, mut operator) = settled();
        world.audit.disturbed.insert("n1".to_owned());
        if !chosen {
            leave(&mut world, &["n1"]);
        }
        let taints = json!([{"key": names::KARPENTER_TAINT, "effect": "NoSchedule"}]);
        world.change(|cluster| cluster.edit_node("n1", |node| node["spec"]["taints"] = taints));
        world.run_until(&mut operator, 60, |world| world.cluster.pods.iter().all(|pod| pod.node != "n1")).unwrap();
    }
    // It does not serve.
    let (mut world, mut operator) = settled();
    world.change(|cluster| cluster.pods.iter_mut().filter(|pod| pod.node == "n1").for_each(|pod| pod.ready_at = i64::MAX));
    world.tick();
    leave(&mut world, &["n1"]);
    world.run_until(&mut operator, 60, |world| world.cluster.deployment_on("n1").is_none()).unwrap();
    // Nothing is to serve anywhere.
    let (mut world, mut operator) = settled();
    world.change(|cluster| cluster.edit_wish(|wish| wish.minimum = 0));
    world.change(|cluster| cluster.edit_wish(|wish| wish.pods = 0));
    world.run_until(&mut operator, 60, |world| world.cluster.pods.is_empty()).unwrap();
    seconds(&mut world, &mut operator, 30);
    world.change(|cluster| cluster.edit_wish(|wish| wish.minimum = 3));
    leave(&mut world, &["n1"]);
    world.run_until(&mut operator, 60, |world| world.cluster.deployment_on("n1").is_none()).unwrap();
}

#[test]
fn a_node_broken_before_proof_does_not_count_as_available() {
    let (mut world, mut operator) = proving(&json!({}), 3, 2);
    edit(&mut world, |wish| (wish.minimum, wish.image) = (2, 2));
    world.run_until(&mut operator, 60, |world| on(world, 2) == 1).unwrap();
    // Nothing is begun while it comes up and breaks.
    edit(&mut world, |wish| wish.paused = true);
    seconds(&mut world, &mut operator, 30);
    let wanted = world.cluster.wish.revision_of(2);
    world.change(|cluster| {
        let later = cluster.now + 2;
        for pod in cluster.pods.iter_mut().filter(|pod| pod.revision() == wanted) {
            pod.crash();
            pod.ready_at = pod.ready_at.max(later);
        }
    });
    seconds(&mut world, &mut operator, 10);
    edit(&mut world, |wish| wish.paused = false);
    for second in 0..30 {
        let plan = seconds(&mut world, &mut operator, 1);
        let waiting = plan.node_states.values().filter(|state| state.reason.word() == "MinAvailableNodes").count();
        assert_eq!((on(&world, 2), granted(&world).len(), waiting), (1, 0, 2), "{second} s after the pause: {:?}", plan.node_states);
    }
    world.run_until(&mut operator, 600, World::is_converged).unwrap();
}

#[test]
fn a_zone_whose_images_are_still_pulled_keeps_its_turn() {
    let (mut world, mut operator) = settled(Wish { zones: Zones::OneAtATime, ..Wish::new(Marks::Token, 1) }, 4);
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    operator.catch_up(&world);
    let mut snapshot = operator.snapshot(&world).unwrap();
    let strategy = snapshot.resource.spec.update_strategy.as_mut().unwrap();
    strategy.rolling_update.as_mut().unwrap().pre_pull = true;
    let revision = world.cluster.wish.revision_of(2);
    let pull =
        |node: &str, pulled| PullFacts { name: node.into(), node: node.into(), revision: revision.clone(), pulled, ..PullFacts::default() };
    let of = |node: &str, pulled| (node.to_owned(), vec![pull(node, pulled)]);
    snapshot.pulls = [of("n0", false), of("n1", true), of("n2", false), of("n3", true)].into();
    let plan = planner::decide(&snapshot);
    assert_eq!(plan.node_states["n1"].reason.word(), "OtherDomain", "{:?}", plan.node_states);
    assert_eq!(plan.status.rollout.unwrap().grants.len(), 0);
}
