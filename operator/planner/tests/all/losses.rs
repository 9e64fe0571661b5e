//! Machines that are lost one after the other: whether the revision is why, or people, other machines, another operator or time.

use crate::{
    hard_cases::{ROLLED_BACK, node_is_ready, pods_of, rolls_back, run, serving_with, with_updated},
    proof::{PROVEN, proving, release, serving},
    rollout_state::{annotate, condition, edit, on},
    world::{
        World, audit,
        cluster::{Cluster, node_of},
        operator::Operator,
        pods::Pod,
        wish::{Marks, Wish},
    },
};
use crds::{ledger::GrantReason, names, token::Phase};
use planner::Plan;
use serde_json::json;
use std::collections::BTreeSet;

/// The revision is rolled back within so many seconds.
pub fn is_rolled_back(world: &mut World, operator: &mut Operator, seconds: usize) -> bool {
    condition(&run(world, operator, seconds), "RolledBack") == ROLLED_BACK
}

/// So many nodes that are none of these.
pub fn without(world: &World, at: &[String], nodes: usize) -> Vec<String> {
    world.cluster.nodes.keys().filter(|name| !at.contains(name)).take(nodes).cloned().collect()
}

/// Another boot ID, and nothing else yet.
fn boots(cluster: &mut Cluster, node: &str) {
    let boot = cluster.uid();
    cluster.edit_node(node, |node| node["status"]["bootID"] = boot.into());
}

/// Nodes that are not Ready any more, nor are their pods.
pub fn go_down(world: &mut World, nodes: &[&str]) {
    for node in nodes {
        node_is_ready(world, node, false);
        world.change(|cluster| {
            let later = cluster.now + 3_600;
            pods_of(cluster, node).for_each(|pod| (pod.ready, pod.ready_at) = (false, later));
        });
    }
}

/// They are Ready again, and so are their pods some seconds later; `anew`: their machines have started anew.
pub fn are_back(world: &mut World, nodes: &[&str], anew: bool) {
    for node in nodes {
        node_is_ready(world, node, true);
        world.change(|cluster| {
            if anew {
                boots(cluster, node);
            }
            let soon = cluster.now + 5;
            for pod in pods_of(cluster, node) {
                if anew {
                    pod.crash();
                }
                (pod.ready, pod.ready_at) = (false, soon);
            }
        });
    }
}

/// Nodes on which a pod with image 2 has been ready for so many seconds.
fn due(world: &World, after: i64) -> BTreeSet<String> {
    let (now, bad) = (world.cluster.now, world.cluster.wish.revision_of(2));
    let old = |pod: &&Pod| pod.revision() == bad && pod.ready && now >= pod.ready_at + after;
    world.cluster.pods.iter().filter(old).map(|pod| pod.node.clone()).collect()
}

/// Machines with image 2, so many seconds after their pods were ready, are away for a while.
fn kill(world: &mut World, after: i64, away: i64) {
    let killed = due(world, after);
    world.change(|cluster| killed.iter().for_each(|node| cluster.machine_dies(node, away)));
}

/// Machines that are back.
pub fn come_back(world: &mut World) {
    let now = world.cluster.now;
    let is_back = |name: &&String| {
        let down = world.cluster.nodes[*name]["status"]["ready"] != true;
        down && world.cluster.pods.iter().all(|pod| pod.node != **name || pod.ready_at <= now)
    };
    for name in world.cluster.nodes.keys().filter(is_back).cloned().collect::<Vec<_>>() {
        world.change(|cluster| cluster.edit_node(&name, |node| node["status"]["ready"] = true.into()));
    }
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
fn flaps_or_reboots_elsewhere_excuse_no_revision_that_kills_machines() {
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

/// One of three machines dies for good while its pods are replaced.
#[test]
fn a_machine_dying_during_update_blocks_no_revision_for_good() {
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
fn an_idle_operator_condemns_nothing_when_long_updated_nodes_go() {
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
fn long_updated_nodes_lost_after_an_operator_restart_condemn_nothing() {
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
fn a_complete_revision_that_loses_two_machines_halts_with_advice() {
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
fn a_machine_that_died_before_operator_restart_delays_the_proof() {
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
fn a_node_changing_in_place_does_not_excuse_its_revision() {
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

/// When a person cordons a Node whose machine starts anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cordoned {
    /// Before; the cordon goes in the second in which the new boot is seen.
    Before,
    /// In the second in which the new boot is seen: nobody can tell which came first.
    Meanwhile,
    /// A second later.
    Afterwards,
}

#[test]
fn a_cordon_excuses_a_machine_loss_unless_it_comes_later() {
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

/// One machine reboots twice; its Node says so some seconds before its pods are started anew.
#[test]
fn a_machine_that_reboots_twice_condemns_nothing_despite_late_pods() {
    let mut said = Vec::new();
    for (cordoned, times) in [(false, 2), (true, 2), (true, 3)] {
        let (mut world, mut operator, at) = with_updated(&rolls_back(), 4, 1, 1);
        let mut plan = None;
        for _ in 0..times {
            if cordoned {
                world.change(|cluster| cluster.edit_node(&at[0], |node| node["spec"]["unschedulable"] = true.into()));
                run(&mut world, &mut operator, 2);
            }
            world.change(|cluster| boots(cluster, &at[0]));
            run(&mut world, &mut operator, 3);
            world.change(|cluster| {
                let now = cluster.now;
                pods_of(cluster, &at[0]).for_each(|pod| {
                    pod.crash();
                    (pod.ready, pod.ready_at) = (false, now + 15);
                });
            });
            run(&mut world, &mut operator, 40);
            world.change(|cluster| cluster.edit_node(&at[0], |node| node["spec"]["unschedulable"] = false.into()));
            plan = Some(run(&mut world, &mut operator, 100));
        }
        said.push((cordoned, times, condition(&plan.unwrap(), "RolledBack") == ROLLED_BACK));
    }
    assert!(said.iter().all(|(.., back)| !back), "cordoned, times, rolled back: {said:?}");
}

/// Two machines die after they got image 2; the template is corrected to image 3.
#[test]
fn losses_of_a_former_revision_condemn_no_other() {
    for both_back in [true, false] {
        let (mut world, mut operator, at) = with_updated(&json!({}), 6, 2, 4);
        for node in at.iter().take(2) {
            world.change(|cluster| cluster.machine_dies(node, 90));
            for _ in 0..200 {
                if both_back {
                    come_back(&mut world);
                }
                run(&mut world, &mut operator, 1);
            }
        }
        run(&mut world, &mut operator, 1);
        edit(&mut world, |wish| wish.image = 3);
        let plan = run(&mut world, &mut operator, 20);
        let rollout = world.cluster.ledger().unwrap().rollout_state.clone().unwrap();
        assert_ne!(condition(&plan, "Stalled"), Some(("True", "MaxFailedNodes")), "{both_back}: nobody has run it yet: {:?}", rollout.lost);
    }
}

/// Two of four machines that run it die for good; Nodes that are not Ready are ignored.
#[test]
fn ignored_dead_machines_keep_no_others_at_a_failed_revision() {
    let (mut world, mut operator) = proving(&rolls_back(), 8, 2);
    edit(&mut world, |wish| wish.ignores_not_ready = true);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 300, |world| serving_with(world, 2).len() == 4).unwrap();
    run(&mut world, &mut operator, 5);
    let at: Vec<_> = serving_with(&world, 2).into_iter().take(4).collect();
    for node in at.iter().take(2) {
        node_is_ready(&mut world, node, false);
    }
    let plan = run(&mut world, &mut operator, 900);
    assert_eq!(condition(&plan, "RolledBack"), ROLLED_BACK);
    assert_eq!(serving_with(&world, 2), Vec::<String>::new(), "{:#?}", plan.status.node_states);
}

/// The same for a sound revision: one machine dies for good after its update.
#[test]
fn an_ignored_dead_machine_blocks_no_revision_for_good() {
    let (mut world, mut operator) = proving(&json!({}), 6, 1);
    edit(&mut world, |wish| wish.ignores_not_ready = true);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 300, |world| serving_with(world, 2).len() == 3).unwrap();
    let at = serving_with(&world, 2);
    node_is_ready(&mut world, &at[0], false);
    let plan = run(&mut world, &mut operator, 1500);
    assert!(on(&world, 2) == 6, "{} of 6 after 25 minutes: {:#?}", on(&world, 2), plan.status.node_states);
}

/// Machines whose instance ends when it dies: their Nodes go within seconds. T is longer than the proof.
#[test]
fn a_proved_revision_fails_if_machines_go_afterwards() {
    let (mut said, mut lost) = (Vec::new(), 0);
    for notready in [0, 5, 20, 40] {
        let (mut world, mut operator) = proving(&rolls_back(), 6, 1);
        edit(&mut world, |wish| wish.image = 2);
        let bad = world.cluster.wish.revision_of(2);
        let (mut gone, mut plan, mut current, mut names) = (0, None, false, 0);
        let mut dying: Vec<(usize, String)> = Vec::new();
        for second in 0..900 {
            let now = world.cluster.now;
            let old = |pod: &&Pod| pod.revision() == bad && pod.ready && now >= pod.ready_at + 90;
            let killed: BTreeSet<String> = world.cluster.pods.iter().filter(old).map(|pod| pod.node.clone()).collect();
            for node in killed {
                if !dying.iter().any(|(_, other)| *other == node) {
                    node_is_ready(&mut world, &node, notready == 0);
                    dying.push((second + notready, node));
                }
            }
            for (_, node) in dying.iter().filter(|(at, _)| *at == second) {
                names += 1;
                world.change(|cluster| {
                    cluster.leave(node);
                    cluster.join(&format!("new{names}"));
                });
                gone += 1;
            }
            dying.retain(|(at, _)| *at > second);
            plan = world.fair_second(&mut operator).or(plan);
            current |= plan.as_ref().unwrap().status.revisions.current == bad;
            let rollout = world.cluster.ledger().and_then(|ledger| ledger.rollout_state.clone()).unwrap_or_default();
            lost += usize::from(!rollout.lost.is_empty());
            assert!(rollout.lost.iter().eq(rollout.lost_nodes.keys()), "{rollout:#?}");
        }
        let plan = plan.unwrap();
        said.push((notready, gone, current, condition(&plan, "RolledBack") == ROLLED_BACK));
    }
    assert!(said.iter().all(|(.., back)| *back), "not Ready for so long, machines that went, ever current, rolled back: {said:?}");
    assert_ne!(lost, 0, "none was in the ledger, with or without its name");
}

/// It kills the machine 70 s after readiness, which is back after 90 s.
#[test]
fn a_revision_that_kills_two_machines_in_two_minutes_fails() {
    let mut missed = Vec::new();
    for budget in [1, 2] {
        for after in [65, 80, 120] {
            for down in [60, 120] {
                let (mut world, mut operator) = proving(&rolls_back(), 8, budget);
                let outcome = release(&mut world, &mut operator, 1500, |world, _| {
                    come_back(world);
                    kill(world, after, down);
                });
                if condition(&outcome.plan, "RolledBack") != ROLLED_BACK {
                    missed.push((budget, after, down, outcome.reached, outcome.ever_current));
                }
            }
        }
    }
    assert!(missed.is_empty(), "not rolled back (budget, after, down, reached, current): {missed:?}");
}

/// It kills a machine that is back at once, every half a minute.
#[test]
fn a_machines_second_loss_counts_before_the_first_is_judged() {
    let (mut world, mut operator) = proving(&rolls_back(), 5, 1);
    let outcome = release(&mut world, &mut operator, 400, |world, _| kill(world, 15, 8));
    assert_eq!(condition(&outcome.plan, "RolledBack"), ROLLED_BACK, "{:#?}", world.cluster.ledger().unwrap().suspects);
}

/// A node is dead for days, and ignored; the operator is restarted every 100 s.
#[test]
fn after_a_restart_a_long_dead_node_excuses_no_revision() {
    let mut said = Vec::new();
    for restarted in [false, true] {
        let (mut world, mut operator) = proving(&rolls_back(), 8, 1);
        edit(&mut world, |wish| wish.ignores_not_ready = true);
        node_is_ready(&mut world, "n0", false);
        run(&mut world, &mut operator, 300);
        let bad = world.cluster.wish.revision_of(2);
        edit(&mut world, |wish| wish.image = 2);
        let mut plan = None;
        for second in 0..1500 {
            if restarted && second % 100 == 0 {
                operator.crash(&world, 0);
            }
            let now = world.cluster.now;
            let back: Vec<_> = world.cluster.nodes.keys().filter(|node| **node != "n0").cloned().collect();
            let dead_for_good = |pod: &Pod| pod.node == "n0";
            for node in back {
                if world.cluster.pods.iter().all(|pod| pod.node != node || pod.ready_at <= now) {
                    node_is_ready(&mut world, &node, true);
                }
            }
            let old = |pod: &&Pod| !dead_for_good(pod) && pod.revision() == bad && pod.ready && now >= pod.ready_at + 15;
            let killed: BTreeSet<_> = world.cluster.pods.iter().filter(old).map(|pod| pod.node.clone()).collect();
            world.change(|cluster| killed.iter().for_each(|node| cluster.machine_dies(node, 60)));
            plan = world.fair_second(&mut operator).or(plan);
        }
        said.push((restarted, condition(&plan.unwrap(), "RolledBack") == ROLLED_BACK));
    }
    assert_eq!(said, [(false, true), (true, true)], "restarted, rolled back");
}

/// It takes its machine down 15 s after it was ready; nobody repairs that.
#[test]
fn a_revision_that_kills_machines_for_good_reaches_one_node() {
    for ignores in [false, true] {
        let (mut world, mut operator) = proving(&rolls_back(), 4, 1);
        edit(&mut world, |wish| wish.ignores_not_ready = ignores);
        let bad = world.cluster.wish.revision_of(2);
        let outcome = release(&mut world, &mut operator, 600, |world, _| {
            let now = world.cluster.now;
            let old = |pod: &&Pod| pod.revision() == bad && pod.ready && now >= pod.ready_at + 15;
            let killed: BTreeSet<_> = world.cluster.pods.iter().filter(old).map(|pod| pod.node.clone()).collect();
            for node in &killed {
                node_is_ready(world, node, false);
            }
        });
        let what = format!("ignored: {ignores}: {outcome:?}");
        assert_eq!((outcome.reached, outcome.fewest, outcome.ever_current), (1, 3, false), "{what}");
    }
}

/// All nodes run it; two machines die after each other and go.
#[test]
fn a_revision_that_lost_two_machines_is_not_current() {
    let (mut world, mut operator, at) = with_updated(&json!({}), 6, 2, 6);
    for node in at.iter().take(2) {
        node_is_ready(&mut world, node, false);
        run(&mut world, &mut operator, 150);
    }
    for node in at.iter().take(2) {
        world.change(|cluster| cluster.leave(node));
    }
    let plan = run(&mut world, &mut operator, 200);
    let rollout = world.cluster.ledger().unwrap().rollout_state.clone().unwrap();
    assert_ne!(
        plan.status.revisions.current,
        world.cluster.wish.revision_of(2),
        "{:?}, lost {:?}",
        condition(&plan, "Progressing"),
        rollout.lost
    );
}

/// Nodes go that were given the revision; which after each other.
fn machines_go(announced: bool) -> (Vec<String>, Plan) {
    let (mut world, mut operator) = proving(&json!({}), 6, 1);
    edit(&mut world, |wish| wish.image = 2);
    let bad = world.cluster.wish.revision_of(2);
    let mut gone = Vec::new();
    let mut plan = None;
    for second in 0..400 {
        let has = |name: &&String| {
            let runs = |pod: &Pod| pod.node == **name && pod.revision() == bad && pod.ready;
            world.cluster.pods.iter().any(runs) && serving(&world).contains(*name)
        };
        if let Some(name) = world.cluster.nodes.keys().find(has).cloned() {
            if announced {
                world.change(|cluster| cluster.edit_node(&name, |node| node["spec"]["unschedulable"] = true.into()));
                plan = world.fair_second(&mut operator).or(plan);
            }
            world.change(|cluster| {
                cluster.leave(&name);
                cluster.join(&format!("new{second}"));
            });
            gone.push(name);
        }
        plan = world.fair_second(&mut operator).or(plan);
    }
    (gone, plan.unwrap())
}

#[test]
fn a_revision_after_which_two_machines_go_unannounced_has_failed() {
    let (mut gone, plan) = machines_go(false);
    assert_eq!((gone.len(), condition(&plan, "Stalled")), (2, Some(("True", "MaxFailedNodes"))));
    let stalled = plan.status.conditions.iter().find(|condition| condition.type_ == "Stalled").unwrap();
    // Their Nodes are not there any more to be asked for their names.
    gone.sort();
    let said = format!("the revision has lost 2 machines (NodesLost), among them {}: ", gone.join(", "));
    assert!(stalled.message.starts_with(&said), "{}", stalled.message);
}

#[test]
fn cordoned_machines_that_go_condemn_no_revision() {
    let (gone, plan) = machines_go(true);
    assert!(gone.len() > 2, "{gone:?}");
    assert_ne!(condition(&plan, "Stalled"), Some(("True", "MaxFailedNodes")));
}

#[test]
fn a_revision_that_kills_its_machine_repeatedly_is_rolled_back() {
    for (after, down) in [(15, 20), (15, 90), (50, 20), (200, 20), (200, 90)] {
        let (mut world, mut operator) = proving(&json!({"autoRollback": true}), 8, 1);
        let bad = world.cluster.wish.revision_of(2);
        let outcome = release(&mut world, &mut operator, 1500, |world, _| {
            come_back(world);
            let now = world.cluster.now;
            let old = |pod: &&Pod| pod.revision() == bad && pod.ready && now >= pod.ready_at + after;
            let killed: BTreeSet<_> = world.cluster.pods.iter().filter(old).map(|pod| pod.node.clone()).collect();
            world.change(|cluster| killed.iter().for_each(|node| cluster.machine_dies(node, down)));
        });
        let what = format!("dies after {after} s for {down} s: {outcome:?}");
        // What kills a machine later has been proved by then.
        if after < PROVEN {
            assert!(outcome.reached == 1 && outcome.fewest >= 7, "{what}");
        }
        assert!(!outcome.ever_current, "{what}");
        assert_eq!((condition(&outcome.plan, "RolledBack"), on(&world, 1)), (Some(("True", "RevisionFailed")), 8), "{what}");
    }
}
