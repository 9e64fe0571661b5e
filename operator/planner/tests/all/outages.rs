//! Machines that are lost together: an outage condemns no revision, however it is seen, and outages that come again and again do.

use crate::{
    hard_cases::{ROLLED_BACK, node_is_ready, rolls_back, run, with_updated},
    losses::{are_back, come_back, go_down, is_rolled_back, without},
    proof::{proving, release},
    rollout_state::{condition, edit, on},
    world::World,
};
use crds::status::NodePhase;
use serde_json::json;

/// A rack goes whose nodes have all been updated; one node elsewhere has not.
#[test]
fn an_outage_of_only_updated_nodes_condemns_nothing() {
    for lost in [2, 4] {
        let rollout = json!({"autoRollback": true, "partition": 1});
        let (mut world, mut operator, at) = with_updated(&rollout, 10, 1, 9);
        let rack: Vec<&str> = at.iter().rev().take(lost).map(String::as_str).collect();
        go_down(&mut world, &rack);
        run(&mut world, &mut operator, 60);
        are_back(&mut world, &rack, true);
        assert!(!is_rolled_back(&mut world, &mut operator, 200), "{lost}: {:#?}", world.cluster.ledger());
    }
}

/// A machine is dead for days, and the control plane hears of none of the others for 45 s.
#[test]
fn brief_unreadiness_everywhere_condemns_nothing_despite_a_dead_node() {
    let (mut world, mut operator) = proving(&rolls_back(), 4, 3);
    edit(&mut world, |wish| wish.ignores_not_ready = true);
    node_is_ready(&mut world, "n0", false);
    run(&mut world, &mut operator, 700);
    edit(&mut world, |wish| wish.image = 2);
    let serve = |world: &World| {
        let new = world.cluster.wish.revision_of(2);
        let ready = |node: &str| world.cluster.pods.iter().any(|pod| pod.node == node && pod.ready && pod.revision() == new);
        ["n1", "n2", "n3"].into_iter().all(ready) && world.cluster.ledger().is_some_and(|ledger| ledger.grants.is_empty())
    };
    world.run_until(&mut operator, 300, serve).unwrap();
    go_down(&mut world, &["n1", "n2", "n3"]);
    run(&mut world, &mut operator, 45);
    are_back(&mut world, &["n1", "n2", "n3"], false);
    assert!(!is_rolled_back(&mut world, &mut operator, 60), "{:#?}", world.cluster.ledger());
}

/// Power of a rack is away for 20 s: too short for its Nodes to turn not Ready.
#[test]
fn joint_reboots_without_unready_nodes_condemn_nothing() {
    let (mut world, mut operator, at) = with_updated(&rolls_back(), 12, 3, 3);
    let old: Vec<String> = world.cluster.nodes.keys().filter(|name| !at.contains(name)).take(3).cloned().collect();
    world.change(|cluster| at.iter().chain(&old).for_each(|node| cluster.machine_dies(node, 20)));
    let plan = run(&mut world, &mut operator, 120);
    assert_ne!(condition(&plan, "RolledBack"), ROLLED_BACK, "{:#?}", world.cluster.ledger().unwrap().rolled_back);
}

/// All nodes run it when two machines lose their power. Their Nodes are not Ready for the last 15 s of the time for which they are away.
#[test]
fn joint_reboots_reported_only_afterwards_condemn_nothing() {
    let (mut world, mut operator, at) = with_updated(&rolls_back(), 4, 1, 4);
    let two: Vec<&str> = at.iter().take(2).map(String::as_str).collect();
    go_down(&mut world, &two);
    run(&mut world, &mut operator, 15);
    are_back(&mut world, &two, true);
    let plan = run(&mut world, &mut operator, 400);
    assert_eq!(condition(&plan, "Progressing"), Some(("False", "Complete")), "{:#?}", world.cluster.ledger());
}

/// The network of a rack comes and goes, each time for all of its machines.
#[test]
fn two_outages_of_the_same_machines_condemn_nothing() {
    for gap in [12, 80, 140, 300] {
        let (mut world, mut operator, at) = with_updated(&rolls_back(), 4, 1, 4);
        let two: Vec<&str> = at.iter().take(2).map(String::as_str).collect();
        for _ in 0..2 {
            go_down(&mut world, &two);
            run(&mut world, &mut operator, 20);
            are_back(&mut world, &two, false);
            run(&mut world, &mut operator, gap);
        }
        let plan = run(&mut world, &mut operator, 700);
        let ledger = world.cluster.ledger();
        assert_eq!(condition(&plan, "Progressing"), Some(("False", "Complete")), "after {gap} s: {ledger:#?}");
    }
}

/// Machines are lost together, and their Nodes are deleted later, one after the other.
#[test]
fn nodes_of_an_outage_that_are_deleted_later_condemn_nothing() {
    for (nodes, budget, updated) in [(8, 2, 2), (4, 1, 4)] {
        let (mut world, mut operator, at) = with_updated(&rolls_back(), nodes, budget, updated);
        let old = world.cluster.nodes.keys().find(|name| !at.contains(name)).cloned();
        let lost: Vec<&str> = at.iter().take(2).chain(&old).map(String::as_str).collect();
        go_down(&mut world, &lost);
        run(&mut world, &mut operator, 40);
        for node in &lost {
            world.change(|cluster| cluster.leave(node));
            run(&mut world, &mut operator, 30);
        }
        let plan = run(&mut world, &mut operator, 120);
        assert_ne!(condition(&plan, "RolledBack"), ROLLED_BACK, "{nodes} nodes: {:#?}", world.cluster.ledger().unwrap().rolled_back);
    }
}

/// All machines of a zone go at once, with their Nodes.
#[test]
fn nodes_that_go_together_condemn_nothing() {
    let (mut world, mut operator, at) = with_updated(&rolls_back(), 8, 2, 2);
    let old: Vec<String> = world.cluster.nodes.keys().filter(|name| !at.contains(name)).take(2).cloned().collect();
    world.change(|cluster| at.iter().chain(&old).for_each(|node| cluster.leave(node)));
    let plan = run(&mut world, &mut operator, 120);
    assert_ne!(condition(&plan, "RolledBack"), ROLLED_BACK, "{:#?}", world.cluster.ledger().unwrap().rolled_back);
}

/// For 45 s the control plane hears of no node.
#[test]
fn brief_unreadiness_everywhere_condemns_nothing_at_full_budget() {
    let (mut world, mut operator, _) = with_updated(&rolls_back(), 3, 3, 3);
    for node in ["n0", "n1", "n2"] {
        node_is_ready(&mut world, node, false);
    }
    run(&mut world, &mut operator, 45);
    for node in ["n0", "n1", "n2"] {
        node_is_ready(&mut world, node, true);
    }
    let plan = run(&mut world, &mut operator, 10);
    assert_ne!(condition(&plan, "RolledBack"), ROLLED_BACK);
}

/// A rack loses power twice; one of its nodes is not updated yet.
#[test]
fn two_outages_within_minutes_condemn_nothing() {
    for (gap, anew) in [(60, false), (80, false), (100, false), (140, false), (80, true), (140, true)] {
        let (mut world, mut operator, at) = with_updated(&json!({"autoRollback": true, "partition": 7}), 10, 3, 3);
        let old = without(&world, &at, 1);
        let rack = [&*at[0], &*at[1], &*old[0]];
        for _ in 0..2 {
            go_down(&mut world, &rack);
            run(&mut world, &mut operator, 45);
            are_back(&mut world, &rack, anew);
            assert!(!is_rolled_back(&mut world, &mut operator, gap), "{gap} s apart: {:#?}", world.cluster.ledger());
        }
    }
}

/// Two nodes without the revision were lost together, and serve again.
#[test]
fn two_machines_dying_together_condemn_a_revision_despite_earlier_losses() {
    let (mut world, mut operator, at) = with_updated(&json!({"autoRollback": true, "partition": 2}), 4, 3, 2);
    let old = without(&world, &at, 2);
    for nodes in [&old, &at] {
        let nodes: Vec<_> = nodes.iter().map(String::as_str).collect();
        go_down(&mut world, &nodes);
        run(&mut world, &mut operator, 45);
        are_back(&mut world, &nodes, false);
        run(&mut world, &mut operator, 200);
    }
    assert!(is_rolled_back(&mut world, &mut operator, 1), "{:#?}", world.cluster.ledger());
    let reason = &world.cluster.ledger().unwrap().rolled_back.as_ref().unwrap().reason;
    assert!(at.iter().all(|node| reason.contains(node)), "{reason}");
}

/// A zone goes down, the operator's own machine with it; the cloud deletes its Nodes.
#[test]
fn nodes_down_at_operator_start_condemn_nothing_when_deleted() {
    let (mut world, mut operator, at) = with_updated(&rolls_back(), 8, 2, 2);
    let old = without(&world, &at, 2);
    let zone: Vec<&str> = at.iter().chain(&old).map(String::as_str).collect();
    go_down(&mut world, &zone);
    operator.crash(&world, 0);
    run(&mut world, &mut operator, 40);
    for node in zone {
        world.change(|cluster| cluster.leave(node));
        run(&mut world, &mut operator, 30);
    }
    assert!(!is_rolled_back(&mut world, &mut operator, 120), "{:#?}", world.cluster.ledger().unwrap().rolled_back);
}

/// The machine of a node with the revision is lost three times, each time together with another one that has it not.
#[test]
fn a_node_failed_by_outages_keeps_its_slot_until_forgotten() {
    let (mut world, mut operator, at) = with_updated(&json!({"partition": 7}), 10, 3, 3);
    let old = without(&world, &at, 3);
    for other in &old {
        go_down(&mut world, &[&at[0], other]);
        run(&mut world, &mut operator, 45);
        are_back(&mut world, &[&at[0], other], false);
        run(&mut world, &mut operator, 80);
    }
    for (seconds, is_named) in [(40, true), (380, true), (150, false)] {
        let plan = run(&mut world, &mut operator, seconds);
        let states = plan.status.node_states.iter().filter(|state| state.name == at[0] && state.phase == NodePhase::Failed);
        let said: Vec<_> = states.map(|state| state.message.matches("lost together with others, 3 times").count()).collect();
        assert_eq!(said, if is_named { vec![1] } else { vec![] }, "{seconds}: {:#?}", plan.status);
        assert_eq!(plan.status.nodes.failed, u32::from(is_named));
        assert_eq!(world.cluster.ledger().unwrap().suspects.get(&at[0]).is_some_and(|suspect| suspect.since > 0), is_named);
    }
}

/// All nodes run it. It kills machines in pairs that are back after 34 s, so that each loss looks like an outage; between two of them each
/// node serves for longer than it has to.
#[test]
fn machines_that_die_together_again_and_again_condemn_the_revision() {
    let rollout = json!({"provenAfterSeconds": 15, "autoRollback": true, "nodeDeadlineSeconds": 90});
    let (mut world, mut operator) = proving(&rollout, 4, 1);
    let bad = world.cluster.wish.revision_of(2);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 300, |world| on(world, 2) == 4).unwrap();
    let mut plan = None;
    for second in 0..400 {
        let dying: &[&str] = match second % 62 {
            0 => &["n0", "n1"],
            31 => &["n2", "n3"],
            _ => &[],
        };
        let runs_it = |node: &&&str| world.cluster.pods.iter().any(|pod| pod.node == **node && pod.revision() == bad);
        let killed: Vec<_> = dying.iter().filter(runs_it).collect();
        world.change(|cluster| killed.iter().for_each(|node| cluster.machine_dies(node, 34)));
        plan = world.fair_second(&mut operator).or(plan);
    }
    assert_eq!(condition(&plan.unwrap(), "RolledBack"), ROLLED_BACK, "{:#?}", world.cluster.ledger());
    assert_eq!(on(&world, 1), 4);
}

/// All nodes run it. It kills machines in pairs whose Nodes are not Ready for a minute: never do all of them serve for as long as they
/// must. The operator may start anew between two of these losses.
#[test]
fn repeated_outages_condemn_the_revision_despite_operator_restarts() {
    for restarted in [false, true] {
        let (mut world, mut operator, at) = with_updated(&rolls_back(), 4, 1, 4);
        let bad = world.cluster.wish.revision_of(2);
        let [one, other] = [&at[..2], &at[2..]].map(|pair| pair.iter().map(String::as_str).collect::<Vec<_>>());
        let mut plan = None;
        for second in 0..1200 {
            let (pair, comes) = match second % 225 {
                0 => (&one, false),
                60 => (&one, true),
                112 => (&other, false),
                172 => (&other, true),
                _ => (&Vec::new(), true),
            };
            let runs_it = |node: &&str| world.cluster.pods.iter().any(|pod| pod.node == *node && pod.revision() == bad);
            let is_down = |node: &&str| world.cluster.nodes.get(*node).is_some_and(|node| node["status"]["ready"] == false);
            let pair: Vec<&str> = pair.iter().copied().filter(|node| if comes { is_down(node) } else { runs_it(node) }).collect();
            if comes {
                are_back(&mut world, &pair, true);
            } else {
                go_down(&mut world, &pair);
            }
            if restarted && second % 225 == 200 {
                operator.crash(&world, 0);
            }
            plan = world.fair_second(&mut operator).or(plan);
        }
        let ledger = world.cluster.ledger();
        assert_eq!(condition(&plan.unwrap(), "RolledBack"), ROLLED_BACK, "restarted: {restarted}, {ledger:#?}");
        assert_eq!(on(&world, 1), 4);
    }
}

#[test]
fn machines_that_die_together_or_by_themselves_condemn_no_revision() {
    // By name of the node: the second at which it dies, and for how long.
    let outage: &[(usize, &str)] = &[(100, "n1"), (110, "n3"), (120, "n2")];
    let twice: &[(usize, &str)] = &[(40, "n1"), (140, "n1")];
    for deaths in [outage, twice] {
        for down in [20, 90] {
            let (mut world, mut operator) = proving(&json!({"autoRollback": true}), 6, 1);
            let outcome = release(&mut world, &mut operator, 1800, |world, second| {
                come_back(world);
                for (_, node) in deaths.iter().filter(|(at, _)| *at == second) {
                    world.change(|cluster| cluster.machine_dies(node, down));
                }
            });
            assert_eq!(on(&world, 2), 6, "{deaths:?}, {down} s: {outcome:?}");
            assert_eq!(condition(&outcome.plan, "Progressing"), Some(("False", "Complete")), "{deaths:?}, {down} s: {outcome:?}");
        }
    }
}
