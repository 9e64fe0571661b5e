//! Machines that are lost, where something beside them tells whether the revision is why: other machines, people, other operators, time.

use crate::{
    hard_cases::{ROLLED_BACK, are_back, boots, due, go_down, node_is_ready, pods_of, rolls_back, run, serving_with, with_updated},
    proof::{come_back, proving, release},
    rollout_state::{annotate, condition, edit, on},
    world::{
        World, audit,
        cluster::node_of,
        operator::Operator,
        wish::{Marks, Wish},
    },
};
use crds::{ledger::GrantReason, names, status::NodePhase, token::Phase};
use serde_json::json;
use std::collections::BTreeSet;

/// The revision is rolled back within so many seconds.
fn is_rolled_back(world: &mut World, operator: &mut Operator, seconds: usize) -> bool {
    condition(&run(world, operator, seconds), "RolledBack") == ROLLED_BACK
}

/// So many nodes that are none of these.
fn without(world: &World, at: &[String], nodes: usize) -> Vec<String> {
    world.cluster.nodes.keys().filter(|name| !at.contains(name)).take(nodes).cloned().collect()
}

/// A rack goes whose nodes have all been updated; one node elsewhere has not.
#[test]
fn an_outage_of_updated_nodes_alone_condemns_nothing_though_one_node_is_left_to_update() {
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
fn all_nodes_not_ready_for_a_moment_condemn_nothing_though_one_is_dead_for_days() {
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

/// What happens to a node without the revision.
#[derive(Clone, Copy, Debug)]
enum Beside {
    /// Its kubelet is silent for 45 s, every so many seconds.
    Flaps(i64),
    /// A person cordons it, starts its machine anew, and takes the cordon away, every two minutes.
    Reboots,
    /// It is cordoned, and its machine starts anew in the second in which another one is killed.
    RebootsWithIt,
}

/// The revision kills its machine 90 s after readiness, `once` or whenever it is ready for so long; it is back after a minute.
#[test]
fn a_node_that_flaps_or_is_rebooted_beside_it_excuses_no_revision_that_kills_machines() {
    for (beside, once) in [(Beside::Flaps(120), false), (Beside::Reboots, false), (Beside::Flaps(155), true), (Beside::RebootsWithIt, true)]
    {
        let (mut world, mut operator) = proving(&json!({"autoRollback": true, "partition": 1}), 8, 1);
        let order: Vec<String> = world.cluster.nodes.keys().cloned().collect();
        let other = order.last().unwrap().clone();
        // It does not get the revision, not even when it is out of service and would come first.
        annotate(&mut world, &other, names::SKIP_ANNOTATION, "default/edge");
        let mut killed = BTreeSet::new();
        let outcome = release(&mut world, &mut operator, 1800, |world, passed| {
            let every = if let Beside::Flaps(every) = beside { every } else { 120 };
            let second = world.cluster.now % every;
            if !(world.cluster.nodes[&other]["status"]["ready"] == false && matches!(beside, Beside::Flaps(_))) {
                come_back(world);
            }
            let dies: Vec<_> = due(world, 90).into_iter().filter(|node| killed.insert(node.clone()) || !once).collect();
            world.change(|cluster| dies.iter().for_each(|node| cluster.machine_dies(node, 60)));
            let cordon = |world: &mut World, cordoned: bool| {
                world.change(|cluster| cluster.edit_node(&other, |node| node["spec"]["unschedulable"] = cordoned.into()));
            };
            match (beside, second) {
                (Beside::Flaps(_), 0) => go_down(world, &[&other]),
                (Beside::Flaps(_), 45) => are_back(world, &[&other], false),
                (Beside::Reboots, 0) => cordon(world, true),
                (Beside::Reboots, 5) => world.change(|cluster| cluster.machine_dies(&other, 30)),
                (Beside::Reboots, 60) => cordon(world, false),
                (Beside::RebootsWithIt, _) if passed == 0 => cordon(world, true),
                (Beside::RebootsWithIt, _) if !dies.is_empty() => world.change(|cluster| cluster.machine_dies(&other, 30)),
                _ => {}
            }
        });
        let ledger = world.cluster.ledger();
        assert_eq!(condition(&outcome.plan, "RolledBack"), ROLLED_BACK, "{beside:?}: reached {}, {ledger:#?}", outcome.reached);
    }
}

/// A rack loses power twice; one of its nodes is not updated yet.
#[test]
fn two_outages_within_minutes_condemn_nothing() {
    for gap in [60, 80, 100, 140] {
        let (mut world, mut operator, at) = with_updated(&json!({"autoRollback": true, "partition": 7}), 10, 3, 3);
        let old = without(&world, &at, 1);
        let rack = [&*at[0], &*at[1], &*old[0]];
        for _ in 0..2 {
            go_down(&mut world, &rack);
            run(&mut world, &mut operator, 45);
            are_back(&mut world, &rack, false);
            assert!(!is_rolled_back(&mut world, &mut operator, gap), "{gap} s apart: {:#?}", world.cluster.ledger());
        }
    }
}

/// Two nodes without the revision were lost together, and serve again.
#[test]
fn two_machines_that_die_at_once_condemn_a_revision_though_others_were_lost_minutes_before() {
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
fn nodes_that_were_down_when_the_operator_began_condemn_nothing_when_they_are_deleted() {
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

/// One of three machines dies for good while its pods are replaced.
#[test]
fn a_machine_that_dies_in_its_update_does_not_hold_a_revision_up_for_good() {
    let (mut world, mut operator) = proving(&json!({}), 9, 3);
    edit(&mut world, |wish| wish.image = 2);
    let updating = |world: &World| {
        let ledger = world.cluster.ledger()?;
        let node = ledger.grants.iter().find(|(_, grant)| grant.kind == GrantReason::Update)?.0.clone();
        let new = world.cluster.wish.revision_of(2);
        world.cluster.pods.iter().any(|pod| pod.node == node && pod.revision() == new).then_some(node)
    };
    world.run_until(&mut operator, 200, |world| updating(world).is_some()).unwrap();
    let dead = updating(&world).unwrap();
    node_is_ready(&mut world, &dead, false);
    world.change(|cluster| pods_of(cluster, &dead).for_each(|pod| (pod.ready, pod.ready_at) = (false, i64::MAX)));
    run(&mut world, &mut operator, 1500);
    assert_eq!(on(&world, 2), 9, "{:#?}", world.cluster.ledger());
}

/// Two canaries serve for half an hour, in which nothing happens, and go.
#[test]
fn nodes_that_go_long_after_their_update_condemn_nothing_however_seldom_the_operator_looks() {
    let (mut world, mut operator, at) = with_updated(&json!({"autoRollback": true, "partition": "75%"}), 8, 2, 2);
    run(&mut world, &mut operator, 100);
    for node in &at {
        for _ in 0..1800 {
            world.idle_second(&mut operator);
        }
        world.change(|cluster| cluster.leave(node));
    }
    assert!(!is_rolled_back(&mut world, &mut operator, 60), "{:#?}", world.cluster.ledger().unwrap().rolled_back);
}

/// Two canaries served for half an hour, then the operator started anew, and did not see their update.
#[test]
fn nodes_that_are_lost_long_after_their_update_condemn_nothing_though_the_operator_has_just_started() {
    for reboot in [false, true] {
        let (mut world, mut operator, at) = with_updated(&json!({"autoRollback": true, "partition": "75%"}), 8, 2, 2);
        run(&mut world, &mut operator, 100);
        for _ in 0..1800 {
            world.idle_second(&mut operator);
        }
        operator.crash(&world, 0);
        run(&mut world, &mut operator, 5);
        for node in &at {
            world.change(|cluster| if reboot { cluster.machine_dies(node, 20) } else { cluster.leave(node) });
            assert!(!is_rolled_back(&mut world, &mut operator, 150), "{reboot}: {:#?}", world.cluster.ledger().unwrap().rolled_back);
        }
    }
}

/// Two machines are deleted and not replaced; all others have the revision already, so that no node waits for anything.
#[test]
fn a_revision_that_lost_two_machines_of_a_fleet_that_has_it_everywhere_is_said_to_halt_and_what_to_do() {
    let (mut world, mut operator, at) = with_updated(&json!({}), 4, 1, 4);
    for node in at.iter().take(2) {
        world.change(|cluster| cluster.leave(node));
        run(&mut world, &mut operator, 20);
    }
    let plan = run(&mut world, &mut operator, 100);
    for (kind, is) in [("Progressing", "False"), ("Stalled", "True"), ("Degraded", "True")] {
        assert_eq!(condition(&plan, kind), Some((is, "MaxFailedNodes")), "{:#?}", plan.status);
    }
    let blocked = plan.status.blocked.unwrap();
    assert!(blocked.message.contains("NodesLost") && blocked.message.contains(names::RETRY_ANNOTATION), "{blocked:?}");
    world.change(|cluster| cluster.edit_resource(|resource| resource.retry = "1".into()));
    let plan = run(&mut world, &mut operator, 100);
    assert_eq!((condition(&plan, "Progressing"), condition(&plan, "Stalled")), (Some(("False", "Complete")), None));
}

/// One of two machines with the revision dies for good, and then the operator starts anew.
#[test]
fn a_machine_that_died_just_before_the_operator_started_still_keeps_the_proof_up() {
    let (mut world, mut operator, at) = with_updated(&json!({}), 6, 2, 2);
    go_down(&mut world, &[&at[0]]);
    run(&mut world, &mut operator, 40);
    operator.crash(&world, 0);
    run(&mut world, &mut operator, 400);
    assert_eq!(on(&world, 2), 2, "{:#?}", world.cluster.ledger());
    run(&mut world, &mut operator, 300);
    assert!(on(&world, 2) > 2, "for good: {:#?}", world.cluster.ledger());
}

/// The revision kills a machine whose pods have just changed in place, and two that were attached with it before.
#[test]
fn a_node_whose_pods_change_in_place_is_no_witness_for_the_revision_that_it_gets() {
    let rollout = json!({"autoRollback": true, "provenAfterSeconds": 60});
    let wish = Wish { pod_update: "InPlaceIfPossible", rollout, ..Wish::new(Marks::Deployment, 3) };
    let mut world = World::new(wish, 8);
    let mut operator = Operator::default();
    world.run_until(&mut operator, 240, World::is_converged).unwrap();
    edit(&mut world, |wish| wish.image = 2);
    let in_place = |world: &World| {
        let mut phases = world.cluster.deployments.values().filter_map(|deployment| Some((node_of(deployment), audit::token(deployment)?)));
        phases.find(|(_, token)| token.phase == Phase::InPlace).map(|(node, _)| node.to_owned())
    };
    world.run_until(&mut operator, 100, |world| in_place(world).is_some()).unwrap();
    let dead = in_place(&world).unwrap();
    go_down(&mut world, &[&dead]);
    world.run_until(&mut operator, 60, |world| serving_with(world, 2).len() == 2).unwrap();
    run(&mut world, &mut operator, 20);
    for node in serving_with(&world, 2) {
        go_down(&mut world, &[&node]);
        run(&mut world, &mut operator, 20);
    }
    assert!(is_rolled_back(&mut world, &mut operator, 30), "{:#?}", world.cluster.ledger());
}

/// The machine of a node with the revision is lost three times, each time together with another one that has it not.
#[test]
fn a_node_that_failed_by_outages_is_named_and_keeps_its_slot_until_that_is_forgotten() {
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

/// One fall fails a node, and its pods serve again at once.
#[test]
fn a_node_that_failed_by_its_only_fall_is_named_until_that_is_forgotten() {
    let (mut world, mut operator, at) = with_updated(&json!({"maxFlaps": 1, "partition": 2}), 4, 1, 1);
    world.change(|cluster| {
        let soon = cluster.now + 2;
        let pod = pods_of(cluster, &at[0]).next().unwrap();
        pod.crash();
        pod.ready_at = soon;
    });
    let plan = run(&mut world, &mut operator, 200);
    let states: Vec<_> = plan.status.node_states.iter().filter(|state| state.name == at[0]).collect();
    assert!(matches!(states[..], [state] if state.reason == "CrashLoop"), "{:#?}", plan.status);
    assert!(states[0].message.contains("after 600 s without a break"), "{}", states[0].message);
}

/// When a person cordons a Node whose machine starts anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cordoned {
    /// Before; the cordon goes in the very second in which the new boot is seen.
    Before,
    /// In the second in which the new boot is seen: nobody can tell which came first.
    Meanwhile,
    /// A second later.
    Afterwards,
}

#[test]
fn a_cordon_excuses_the_loss_of_a_machine_unless_it_comes_later() {
    for when in [Cordoned::Before, Cordoned::Meanwhile, Cordoned::Afterwards] {
        let (mut world, mut operator, at) = with_updated(&rolls_back(), 8, 2, 2);
        let mut rolled_back = false;
        for node in &at {
            let cordon = |world: &mut World, cordoned: bool, anew: bool| {
                world.change(|cluster| {
                    cluster.edit_node(node, |node| node["spec"]["unschedulable"] = cordoned.into());
                    if anew {
                        boots(cluster, node);
                    }
                });
            };
            cordon(&mut world, when == Cordoned::Before, false);
            run(&mut world, &mut operator, 2);
            cordon(&mut world, when == Cordoned::Meanwhile, true);
            run(&mut world, &mut operator, 1);
            cordon(&mut world, when != Cordoned::Before, false);
            rolled_back |= is_rolled_back(&mut world, &mut operator, 60);
            cordon(&mut world, false, false);
            rolled_back |= is_rolled_back(&mut world, &mut operator, 70);
        }
        assert_eq!(rolled_back, when == Cordoned::Afterwards, "{when:?}: {:#?}", world.cluster.ledger());
    }
}
