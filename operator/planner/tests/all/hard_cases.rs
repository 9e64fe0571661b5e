//! Hard cases of the proof: what looks like a fall of the revision and is none, what is one and does not look like it, what would be
//! forgotten, and what would be looked at too often.

use crate::{
    proof::{Flaps, proving, release, serving},
    rollout_state::{annotate, condition, edit, on},
    world::{World, cluster::Cluster, operator::Operator, pods::Pod},
};
use crds::names;
use planner::{Action, Plan};
use serde_json::{Value, json};

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

/// What the Node says of its kubelet.
pub fn node_is_ready(world: &mut World, node: &str, ready: bool) {
    world.change(|cluster| cluster.edit_node(node, |node| node["status"]["ready"] = ready.into()));
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
fn a_pod_sandbox_restart_counts_as_one_fall() {
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

/// The disk of a node is full for a minute, whoever has filled it: its kubelet evicts one pod, and refuses at admission all that are made
/// in its place (phase Failed, reason Evicted, no container was ever started).
#[test]
fn pods_refused_under_node_pressure_cause_no_rollback() {
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
fn a_recovered_node_is_good_after_sixty_seconds() {
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
fn one_dead_or_drained_node_does_not_prevent_proof() {
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

// --- a failure is forgotten, or the way back is late ---

#[test]
fn two_long_dead_nodes_do_not_excuse_a_flapping_revision() {
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
fn dead_nodes_do_not_excuse_flaps_late_in_a_rollout() {
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

/// Its pods have a readiness gate of a load balancer, which takes the node for bad as soon as it has fallen once.
#[test]
fn a_repeatedly_crashing_container_falls_despite_an_unmet_foreign_gate() {
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
fn a_serving_suspect_does_not_delay_the_rollback() {
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

/// One fall fails a node, and its pods serve again at once.
#[test]
fn a_node_failed_by_its_only_fall_remains_named() {
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
fn a_former_suspect_is_not_looked_at_every_second() {
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
fn failed_unready_nodes_are_not_looked_at_every_second() {
    let (mut world, mut operator, at) = with_updated(&json!({"nodeDeadlineSeconds": 60}), 4, 1, 1);
    world.change(|cluster| pods_of(cluster, &at[0]).for_each(|pod| pod.ready_at = i64::MAX));
    run(&mut world, &mut operator, 400);
    looks_less_than(60, &mut world, &mut operator, 200);
}

/// The same for a machine that is dead for good.
#[test]
fn a_dead_node_is_not_looked_at_every_second() {
    let (mut world, mut operator, at) = with_updated(&json!({"partition": "75%"}), 4, 1, 1);
    run(&mut world, &mut operator, 100);
    node_is_ready(&mut world, &at[0], false);
    run(&mut world, &mut operator, 700);
    looks_less_than(60, &mut world, &mut operator, 200);
}

/// All nodes run it. A pod of one falls three times, so that it has failed there. That node goes, and is not replaced.
#[test]
fn a_revision_failed_on_a_departed_node_is_not_current() {
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

/// A person takes the node on which it failed out of the pool for a while.
#[test]
fn a_failure_survives_removal_and_return_of_its_node() {
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
