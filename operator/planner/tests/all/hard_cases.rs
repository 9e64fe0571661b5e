//! Hard cases of the proof: what looks like a fall of the revision and is none, what is one and does not look like it, what would be
//! forgotten, and what would be looked at too often.

use crate::{
    proof::{Flaps, come_back, proving, release, serving},
    rollout_state::{annotate, condition, edit, on},
    world::{World, cluster::Cluster, operator::Operator, pods::Pod},
};
use crds::names;
use planner::{Action, Plan};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The condition `RolledBack`, once a revision was taken back.
pub const ROLLED_BACK: Option<(&str, &str)> = Some(("True", "RevisionFailed"));

/// A revision that failed is taken back.
pub fn rolls_back() -> Value {
    json!({"autoRollback": true})
}

/// Nodes that serve with this image, by name.
pub fn serving_with(world: &World, image: u8) -> Vec<String> {
    let revision = world.cluster.wish.revision_of(image);
    let runs = |name: &String| world.cluster.pods.iter().any(|pod| pod.node == *name && pod.revision() == revision && pod.ready);
    serving(world).into_iter().filter(runs).collect()
}

/// Pods of a node that are not on their way out.
pub fn pods_of<'c>(cluster: &'c mut Cluster, node: &str) -> impl Iterator<Item = &'c mut Pod> {
    cluster.pods.iter_mut().filter(move |pod| pod.node == node && pod.ends_at.is_none())
}

/// Another boot ID, and nothing else yet.
pub fn boots(cluster: &mut Cluster, node: &str) {
    let boot = cluster.uid();
    cluster.edit_node(node, |node| node["status"]["bootID"] = boot.into());
}

/// What the Node says of its kubelet.
pub fn node_is_ready(world: &mut World, node: &str, ready: bool) {
    world.change(|cluster| cluster.edit_node(node, |node| node["status"]["ready"] = ready.into()));
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
pub fn due(world: &World, after: i64) -> BTreeSet<String> {
    let (now, bad) = (world.cluster.now, world.cluster.wish.revision_of(2));
    let old = |pod: &&Pod| pod.revision() == bad && pod.ready && now >= pod.ready_at + after;
    world.cluster.pods.iter().filter(old).map(|pod| pod.node.clone()).collect()
}

/// Machines with image 2, so many seconds after their pods were ready, are away for a while.
fn kill(world: &mut World, after: i64, away: i64) {
    let killed = due(world, after);
    world.change(|cluster| killed.iter().for_each(|node| cluster.machine_dies(node, away)));
}

/// A world in which so many nodes have just got image 2, and serve.
pub fn with_updated(rollout: &Value, nodes: usize, budget: i32, updated: usize) -> (World, Operator, Vec<String>) {
    let (mut world, mut operator) = proving(rollout, nodes, budget);
    edit(&mut world, |wish| wish.image = 2);
    world
        .run_until(&mut operator, 300, |world| {
            serving_with(world, 2).len() >= updated && world.cluster.ledger().is_some_and(|ledger| ledger.grants.is_empty())
        })
        .unwrap();
    let at = serving_with(&world, 2);
    (world, operator, at)
}

/// So many seconds, in each of which the operator looks; its last plan.
pub fn run(world: &mut World, operator: &mut Operator, seconds: usize) -> Plan {
    let mut last = None;
    for _ in 0..seconds {
        last = world.fair_second(operator).or(last);
    }
    last.unwrap()
}

// --- a sound revision is condemned by noise ---

/// A pod sandbox is made anew: its three containers start one after the other, once.
#[test]
fn one_event_that_starts_all_containers_of_a_pod_anew_is_one_fall() {
    let (mut world, mut operator, at) = with_updated(&rolls_back(), 3, 1, 1);
    for second in 0..4 {
        world.change(|cluster| {
            let now = cluster.now;
            let pod = pods_of(cluster, &at[0]).next().unwrap();
            pod.ready_at = now + 4 - second;
            pod.crash();
        });
        run(&mut world, &mut operator, 1);
    }
    let plan = run(&mut world, &mut operator, 5);
    let suspects = &world.cluster.ledger().unwrap().suspects;
    assert_ne!(condition(&plan, "RolledBack"), ROLLED_BACK, "{suspects:#?}");
    assert_eq!(suspects.values().map(|suspect| suspect.falls).max(), Some(1));
}

/// One machine reboots twice; its Node says so some seconds before its pods are started anew.
#[test]
fn a_machine_that_reboots_twice_condemns_nothing_though_its_pods_start_after_its_kubelet() {
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

/// Power of a rack is away for 20 s: too short for its Nodes to turn not Ready.
#[test]
fn machines_that_start_anew_together_before_their_nodes_are_not_ready_condemn_nothing() {
    let (mut world, mut operator, at) = with_updated(&rolls_back(), 12, 3, 3);
    let old: Vec<String> = world.cluster.nodes.keys().filter(|name| !at.contains(name)).take(3).cloned().collect();
    world.change(|cluster| at.iter().chain(&old).for_each(|node| cluster.machine_dies(node, 20)));
    let plan = run(&mut world, &mut operator, 120);
    assert_ne!(condition(&plan, "RolledBack"), ROLLED_BACK, "{:#?}", world.cluster.ledger().unwrap().rolled_back);
}

/// All nodes run it when two machines lose their power. Their Nodes are not Ready for the last 15 s of the time for which they are away.
#[test]
fn two_machines_whose_nodes_say_only_when_they_are_back_that_they_started_anew_condemn_nothing() {
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
fn all_nodes_not_ready_for_a_moment_condemn_nothing_whatever_the_budget() {
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
        let plan = run(&mut world, &mut operator, 1);
        eprintln!("{both_back}: {:?}", condition(&plan, "Stalled"));
        edit(&mut world, |wish| wish.image = 3);
        let plan = run(&mut world, &mut operator, 20);
        let rollout = world.cluster.ledger().unwrap().rollout_state.clone().unwrap();
        assert_ne!(condition(&plan, "Stalled"), Some(("True", "MaxFailedNodes")), "{both_back}: nobody has run it yet: {:?}", rollout.lost);
    }
}

/// The disk of a node is full for a minute, whoever has filled it: its kubelet evicts one pod, and refuses at admission all that are made
/// in its place (phase Failed, reason Evicted, no container was ever started).
#[test]
fn pods_that_a_kubelet_refuses_for_the_pressure_of_one_event_are_one_fall() {
    let (mut world, mut operator, at) = with_updated(&rolls_back(), 4, 1, 1);
    let mut plan = None;
    for second in 0..60 {
        world.change(|cluster| {
            let now = cluster.now;
            for (index, pod) in pods_of(cluster, &at[0]).filter(|pod| pod.rejected_at.is_none()).enumerate() {
                if second == 0 && index == 0 || !pod.ready && !pod.was_ready && now > pod.created {
                    pod.evict(now);
                }
            }
        });
        plan = world.fair_second(&mut operator).or(plan);
    }
    let failed = world.cluster.pods.iter().filter(|pod| pod.rejected_at.is_some()).count();
    let suspects = &world.cluster.ledger().unwrap().suspects;
    assert_ne!(condition(&plan.unwrap(), "RolledBack"), ROLLED_BACK, "{failed} pods were refused; {suspects:?}");
}

/// Two of four machines that run it die for good; Nodes that are not Ready are ignored.
#[test]
fn dead_machines_that_are_ignored_do_not_keep_others_at_the_failed_revision() {
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
fn a_dead_machine_that_is_ignored_does_not_hold_a_revision_up_for_good() {
    let (mut world, mut operator) = proving(&json!({}), 6, 1);
    edit(&mut world, |wish| wish.ignores_not_ready = true);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 300, |world| serving_with(world, 2).len() == 3).unwrap();
    let at = serving_with(&world, 2);
    node_is_ready(&mut world, &at[0], false);
    let plan = run(&mut world, &mut operator, 1500);
    assert!(on(&world, 2) == 6, "{} of 6 after 25 minutes: {:#?}", on(&world, 2), plan.status.node_states);
}

#[test]
fn a_garbled_proof_in_the_ledger_ends_no_operator() {
    let (mut world, mut operator, _) = with_updated(&json!({}), 4, 1, 1);
    run(&mut world, &mut operator, 10);
    operator.crash(&world, 0);
    world.change(|cluster| {
        cluster.edit_resource(|resource| {
            resource.status.as_mut().unwrap().rollout.as_mut().unwrap().rollout_state.as_mut().unwrap().proof = i64::MIN;
        });
    });
    run(&mut world, &mut operator, 10);
}

// --- a sound revision is held up for good ---

/// A pod that was deleted takes long to come up, once, so that the node is out for longer than its deadline. Then all is well.
#[test]
fn a_node_that_was_out_and_serves_again_is_good_after_sixty_seconds_and_nothing_is_written_every_second() {
    let (mut world, mut operator, at) = with_updated(&json!({"nodeDeadlineSeconds": 40}), 3, 1, 1);
    world.change(|cluster| {
        let pod = pods_of(cluster, &at[0]).next().unwrap().name.clone();
        cluster.delete_pod(&pod, None, None);
    });
    run(&mut world, &mut operator, 1);
    world.change(|cluster| {
        let now = cluster.now;
        pods_of(cluster, &at[0]).filter(|pod| !pod.ready).for_each(|pod| pod.ready_at = now + 50);
    });
    run(&mut world, &mut operator, 55);
    assert_eq!(serving_with(&world, 2), at);
    run(&mut world, &mut operator, 70);
    let (mut writes, mut failed) = (0, 0);
    for _ in 0..60 {
        let plan = run(&mut world, &mut operator, 1);
        writes += plan.actions.iter().filter(|action| matches!(action, Action::WriteStatus { urgent: true, .. })).count();
        failed += usize::from(plan.status.nodes.failed > 0);
    }
    assert!(writes < 10 && failed == 0, "{writes} urgent writes of status in 60 s; the node counts as failed in {failed} of them");
}

/// Budget 3: a machine dies for good, or is drained, or is taken out by somebody, while the revision is being proved.
#[test]
fn one_node_that_is_out_for_a_reason_of_its_own_does_not_keep_a_revision_from_being_proved() {
    type Way = fn(&mut World, &str);
    let ways: [(&str, Way); 3] = [
        ("dead", |world, node| node_is_ready(world, node, false)),
        ("drained", |world, node| {
            let taints = json!([{"key": names::CLUSTER_AUTOSCALER_TAINT, "effect": "NoSchedule"}]);
            world.change(|cluster| cluster.edit_node(node, |node| node["spec"]["taints"] = taints));
        }),
        ("skipped and dead", |world, node| {
            annotate(world, node, names::SKIP_ANNOTATION, "default/edge");
            node_is_ready(world, node, false);
        }),
    ];
    let mut stuck = Vec::new();
    for (what, hinder) in ways {
        let (mut world, mut operator, at) = with_updated(&json!({}), 9, 3, 3);
        hinder(&mut world, &at[0]);
        run(&mut world, &mut operator, 1500);
        if on(&world, 2) < 9 {
            stuck.push((what, on(&world, 2)));
        }
    }
    assert!(stuck.is_empty(), "nodes with the revision after 25 minutes: {stuck:?}");
}

// --- a bad revision reaches more nodes ---

/// Machines whose instance ends when it dies: their Nodes go within seconds. T is longer than the proof.
#[test]
fn a_revision_after_which_machines_go_fails_though_they_go_after_it_was_proved() {
    let mut said = Vec::new();
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
        }
        let plan = plan.unwrap();
        said.push((notready, gone, current, condition(&plan, "RolledBack") == ROLLED_BACK));
    }
    assert!(said.iter().all(|(.., back)| *back), "not Ready for so long, machines that went, ever current, rolled back: {said:?}");
}

// --- a failure is forgotten, or the way back is late ---

#[test]
fn two_nodes_that_are_dead_for_days_are_no_common_trouble() {
    let mut said = Vec::new();
    for dead in [0, 2] {
        let (mut world, mut operator) = proving(&rolls_back(), 5, 1);
        edit(&mut world, |wish| wish.ignores_not_ready = true);
        for node in ["n3", "n4"].iter().take(dead) {
            node_is_ready(&mut world, node, false);
        }
        run(&mut world, &mut operator, 900);
        let flaps = Flaps { good: 12, bad: 12, crashes: true };
        let outcome = release(&mut world, &mut operator, 1800, |world, _| flaps.second(world, 2));
        said.push((dead, outcome.reached, condition(&outcome.plan, "RolledBack") == ROLLED_BACK));
    }
    assert_eq!(said, [(0, 1, true), (2, 1, true)], "dead, reached, rolled back");
}

/// The same with nodes that the budget bears, at the end of a rollout: what is left are the dead.
#[test]
fn at_the_end_of_a_rollout_dead_nodes_do_not_excuse_what_flaps() {
    let (mut world, mut operator) = proving(&rolls_back(), 8, 3);
    for node in ["n6", "n7"] {
        node_is_ready(&mut world, node, false);
    }
    run(&mut world, &mut operator, 300);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 600, |world| serving_with(world, 2).len() >= 5).unwrap();
    let flaps = Flaps { good: 12, bad: 12, crashes: true };
    let outcome = release(&mut world, &mut operator, 1200, |world, _| flaps.second(world, 2));
    assert_eq!(condition(&outcome.plan, "RolledBack"), ROLLED_BACK, "{:#?}", outcome.plan.status.node_states);
}

/// It kills the machine 70 s after readiness, which is back after 90 s.
#[test]
fn a_revision_that_kills_machines_fails_though_two_of_them_are_lost_within_two_minutes() {
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

/// All nodes run it. It kills machines in pairs that are back after 34 s, so that each loss looks like an outage; between two of them each node
/// serves for longer than it has to.
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

/// All nodes run it. It kills machines in pairs whose Nodes are not Ready for a minute: never do all of them serve for as long as they must.
/// The operator may start anew between two of these losses.
#[test]
fn outages_that_come_again_and_again_condemn_the_revision_whether_or_not_the_operator_starts_anew() {
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

/// It kills a machine that is back at once, every half a minute.
#[test]
fn a_machine_that_dies_again_before_its_last_loss_was_judged_was_lost_twice() {
    let (mut world, mut operator) = proving(&rolls_back(), 5, 1);
    let outcome = release(&mut world, &mut operator, 400, |world, _| kill(world, 15, 8));
    assert_eq!(condition(&outcome.plan, "RolledBack"), ROLLED_BACK, "{:#?}", world.cluster.ledger().unwrap().suspects);
}

/// A node is dead for days, and ignored; the operator is restarted every 100 s.
#[test]
fn a_restart_of_the_operator_makes_no_company_of_nodes_that_are_dead_for_long() {
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

/// Its pods have a readiness gate of a load balancer, which takes the node for bad as soon as it has fallen once.
#[test]
fn a_container_that_ends_again_and_again_falls_though_a_gate_of_somebody_else_is_not_met() {
    let (mut world, mut operator) = proving(&rolls_back(), 4, 1);
    let bad = world.cluster.wish.revision_of(2);
    let outcome = release(&mut world, &mut operator, 400, |world, _| {
        world.change(|cluster| {
            let now = cluster.now;
            for pod in cluster.pods.iter_mut().filter(|pod| pod.revision() == bad && now >= pod.ready_at + 12) {
                pod.crash();
                pod.unmet = true;
                pod.ready_at = now + 12;
            }
        });
    });
    assert_eq!(condition(&outcome.plan, "RolledBack"), ROLLED_BACK, "{:#?}", world.cluster.ledger().unwrap().suspects);
}

#[test]
fn a_ledger_that_is_rebuilt_keeps_its_suspects() {
    let (mut world, mut operator, at) = with_updated(&json!({}), 4, 1, 1);
    for _ in 0..2 {
        world.change(|cluster| {
            let now = cluster.now;
            pods_of(cluster, &at[0]).for_each(|pod| {
                pod.crash();
                pod.ready_at = now + 3;
            });
        });
        run(&mut world, &mut operator, 20);
    }
    let falls = |world: &World| world.cluster.ledger().unwrap().suspects.values().map(|suspect| suspect.falls).max().unwrap_or(0);
    assert_eq!(falls(&world), 2);
    // A backup is put back: ids are older than those on objects.
    world.change(|cluster| {
        cluster.edit_resource(|resource| resource.status.as_mut().unwrap().rollout.as_mut().unwrap().next_id = 1);
    });
    run(&mut world, &mut operator, 15);
    assert!(world.cluster.ledger().unwrap().rebuilding.is_none());
    assert_eq!(falls(&world), 2);
}

/// A container of each pod of the node ends, and its successor is ready at once.
fn restart(world: &mut World, node: &str) {
    world.change(|cluster| pods_of(cluster, node).for_each(Pod::crash));
}

/// It restarts three times, and is ready at every look.
#[test]
fn a_suspect_that_serves_makes_way_for_the_way_back_at_once() {
    let (mut world, mut operator, at) = with_updated(&rolls_back(), 4, 1, 1);
    for _ in 0..3 {
        restart(&mut world, &at[0]);
        run(&mut world, &mut operator, 15);
    }
    let plan = run(&mut world, &mut operator, 30);
    assert_eq!((condition(&plan, "RolledBack"), on(&world, 1)), (ROLLED_BACK, 4), "{:#?}", plan.node_states);
}

/// A person pauses the resource after the second of three falls.
#[test]
fn a_pause_forgives_no_fall() {
    let (mut world, mut operator, at) = with_updated(&json!({}), 4, 1, 1);
    for paused in [false, true, false] {
        edit(&mut world, |wish| wish.paused = paused);
        restart(&mut world, &at[0]);
        run(&mut world, &mut operator, 15);
    }
    let rollout = world.cluster.ledger().unwrap().rollout_state.clone().unwrap();
    assert_eq!(rollout.failed.keys().collect::<Vec<_>>(), [&at[0]], "{:#?}", world.cluster.ledger().unwrap().suspects);
}

/// It takes its machine down 15 s after it was ready; nobody repairs that.
#[test]
fn a_revision_that_takes_its_machine_down_for_good_reaches_one_node_whether_dead_nodes_are_ignored_or_not() {
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

// --- at rest ---

/// An operator that does only what it must looks less often than that, in so many seconds.
fn looks_less_than(most: usize, world: &mut World, operator: &mut Operator, seconds: usize) {
    let (mut looks, mut writes) = (0, 0);
    for _ in 0..seconds {
        if let Some(plan) = world.idle_second(operator) {
            looks += 1;
            writes += plan.actions.iter().filter(|action| matches!(action, Action::WriteStatus { .. })).count();
        }
    }
    assert!(looks < most, "{looks} looks and {writes} writes in {seconds} s");
}

#[test]
fn a_node_that_fell_once_and_is_suspect_no_more_is_not_looked_at_every_second() {
    let (mut world, mut operator, at) = with_updated(&json!({"partition": "75%"}), 4, 1, 1);
    run(&mut world, &mut operator, 100);
    world.change(|cluster| {
        let now = cluster.now;
        let pod = pods_of(cluster, &at[0]).next().unwrap();
        pod.crash();
        pod.ready_at = now + 3;
    });
    run(&mut world, &mut operator, 90);
    looks_less_than(60, &mut world, &mut operator, 200);
}

#[test]
fn a_node_that_failed_and_stays_out_is_not_looked_at_every_second() {
    let (mut world, mut operator, at) = with_updated(&json!({"nodeDeadlineSeconds": 60}), 4, 1, 1);
    world.change(|cluster| pods_of(cluster, &at[0]).for_each(|pod| pod.ready_at = i64::MAX));
    run(&mut world, &mut operator, 400);
    looks_less_than(60, &mut world, &mut operator, 200);
}

/// The same for a machine that is dead for good.
#[test]
fn a_node_that_is_dead_is_not_looked_at_every_second() {
    let (mut world, mut operator, at) = with_updated(&json!({"partition": "75%"}), 4, 1, 1);
    run(&mut world, &mut operator, 100);
    node_is_ready(&mut world, &at[0], false);
    run(&mut world, &mut operator, 700);
    looks_less_than(60, &mut world, &mut operator, 200);
}

/// All nodes run it; a pod of one falls three times, so that it has failed there; that node goes, and nobody comes in its place.
#[test]
fn a_revision_that_failed_on_a_node_that_left_is_not_that_of_all_nodes() {
    let (mut world, mut operator, at) = with_updated(&json!({}), 4, 1, 4);
    for _ in 0..3 {
        world.change(|cluster| {
            let now = cluster.now;
            pods_of(cluster, &at[0]).for_each(|pod| {
                pod.crash();
                pod.ready_at = now + 3;
            });
        });
        run(&mut world, &mut operator, 15);
    }
    let rollout = world.cluster.ledger().unwrap().rollout_state.clone().unwrap();
    assert_eq!(rollout.failed.len(), 1, "{rollout:#?}");
    world.change(|cluster| cluster.leave(&at[0]));
    let plan = run(&mut world, &mut operator, 200);
    let rollout = world.cluster.ledger().unwrap().rollout_state.clone().unwrap();
    assert_ne!(
        plan.status.revisions.current,
        world.cluster.wish.revision_of(2),
        "{:?}, remembered {:?}",
        condition(&plan, "Progressing"),
        rollout.failed_nodes
    );
}

/// All nodes run it; two machines die after each other and go.
#[test]
fn a_revision_that_has_lost_two_machines_is_not_that_of_all_nodes() {
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

/// A person takes the node on which it failed out of the pool for a while.
#[test]
fn a_failure_is_not_forgotten_when_its_node_is_taken_out_of_the_pool_and_put_back() {
    let (mut world, mut operator) = proving(&json!({}), 5, 1);
    let flaps = Flaps { good: 12, bad: 12, crashes: true };
    let outcome = release(&mut world, &mut operator, 200, |world, _| flaps.second(world, 2));
    let stalled = Some(("True", "MaxFailedNodes"));
    assert_eq!(condition(&outcome.plan, "Stalled"), stalled);
    let node = world.cluster.ledger().unwrap().rollout_state.as_ref().unwrap().failed.keys().next().unwrap().clone();
    world.change(|cluster| cluster.edit_node(&node, |node| node["metadata"]["labels"]["ingress"] = "false".into()));
    run(&mut world, &mut operator, 60);
    assert!(world.cluster.deployment_on(&node).is_none());
    world.change(|cluster| cluster.edit_node(&node, |node| node["metadata"]["labels"]["ingress"] = "true".into()));
    let plan = run(&mut world, &mut operator, 60);
    assert_eq!((condition(&plan, "Stalled"), on(&world, 2)), (stalled, 0));
}

#[test]
fn a_paused_resource_is_not_looked_at_every_few_seconds() {
    let (mut world, mut operator) = proving(&json!({}), 4, 1);
    edit(&mut world, |wish| (wish.image, wish.paused) = (2, true));
    run(&mut world, &mut operator, 400);
    looks_less_than(10, &mut world, &mut operator, 600);
}
