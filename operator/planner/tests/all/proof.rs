//! A revision counts as good after it has served for a while without a break. What breaks sooner, or again and again, reaches no more
//! nodes than the budget, fails, and is rolled back; a sound one is never held up for good.

use crate::{
    rollout_state::{condition, edit, on, reasons, seconds},
    world,
};

use crds::{names, token::Phase};
use planner::Plan;
use serde_json::{Value, json};
use std::collections::BTreeSet;
pub use world::pods::Flaps;
use world::{
    World, audit,
    operator::Operator,
    wish::{Marks, Wish},
};

/// Seconds that these tests ask for.
pub const PROVEN: i64 = 60;

/// A cluster at rest in which every node runs image 1, and which proves what comes next.
pub fn proving(rollout: &Value, nodes: usize, budget: i32) -> (World, Operator) {
    let mut all = json!({"provenAfterSeconds": PROVEN});
    all.as_object_mut().unwrap().extend(rollout.as_object().unwrap().clone());
    let mut world = World::new(Wish { rollout: all, ..Wish::new(Marks::Token, budget) }, nodes);
    let mut operator = Operator::default();
    world.run_until(&mut operator, 240, World::is_converged).unwrap();
    (world, operator)
}

pub fn serving(world: &World) -> BTreeSet<String> {
    let cluster = &world.cluster;
    let closed = |name: &String| {
        cluster.deployment_on(name).is_some_and(|deployment| audit::token(deployment).is_some_and(|token| token.phase == Phase::Closed))
    };
    let ready = |name: &String| cluster.pods.iter().filter(|pod| pod.node == *name).all(|pod| pod.ready);
    cluster.nodes.keys().filter(|name| closed(name) && ready(name)).cloned().collect()
}

impl Flaps {
    /// One second of all pods of this image.
    pub fn second(self, world: &mut World, image: u8) {
        let wanted = world.cluster.wish.revision_of(image);
        world.change(|cluster| {
            let now = cluster.now;
            cluster.pods.iter_mut().filter(|pod| pod.revision() == wanted).for_each(|pod| self.live(pod, now));
        });
    }
}

/// What came of a revision.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Nodes on which it was at most.
    pub reached: usize,
    /// Nodes that served at the worst moment.
    pub fewest: usize,
    pub ever_current: bool,
    pub plan: Plan,
}

/// Image 2 comes and behaves in this way.
pub fn release(world: &mut World, operator: &mut Operator, seconds: usize, mut second: impl FnMut(&mut World, usize)) -> Outcome {
    edit(world, |wish| wish.image = 2);
    let bad = world.cluster.wish.revision_of(2);
    let mut outcome = Outcome { fewest: usize::MAX, ..Outcome::default() };
    for passed in 0..seconds {
        second(world, passed);
        if let Some(plan) = world.fair_second(operator) {
            outcome.plan = plan;
        }
        outcome.reached = outcome.reached.max(on(world, 2));
        outcome.fewest = outcome.fewest.min(serving(world).len());
        outcome.ever_current |= outcome.plan.status.revisions.current == bad;
    }
    outcome
}

#[test]
fn a_flapping_revision_reaches_only_the_budget_and_fails() {
    let kinds = [(2, 5, true), (2, 20, true), (12, 12, false), (12, 12, true), (30, 12, false), (50, 15, true), (3, 30, false)];
    for (good, bad, crashes) in kinds {
        for budget in [1, 2] {
            let (mut world, mut operator) = proving(&json!({"autoRollback": true, "nodeDeadlineSeconds": 120}), 5, budget);
            let flaps = Flaps { good, bad, crashes };
            let outcome = release(&mut world, &mut operator, 600, |world, _| flaps.second(world, 2));
            let what = format!("good for {good} s, bad for {bad} s, crashes: {crashes}, budget {budget}: {outcome:?}");
            let budget = usize::try_from(budget).unwrap();
            assert!(outcome.reached <= budget, "{what}");
            assert!(outcome.fewest >= 5 - budget, "{what}");
            assert!(!outcome.ever_current, "{what}");
            assert_eq!((condition(&outcome.plan, "RolledBack"), on(&world, 1)), (Some(("True", "RevisionFailed")), 5), "{what}");
            assert_eq!(condition(&outcome.plan, "Progressing"), Some(("False", "RolledBack")), "{what}");
            assert_eq!(condition(&outcome.plan, "Stalled"), Some(("True", "RolledBack")), "{what}");
            let reason = &world.cluster.ledger().unwrap().rolled_back.as_ref().unwrap().reason;
            assert!(reason.starts_with("failed on ") && !reason.contains("halts"), "{reason}");
        }
    }
}

#[test]
fn a_revision_that_breaks_after_its_proof_stops_and_fails() {
    let (mut world, mut operator) = proving(&json!({"autoRollback": true}), 8, 1);
    let flaps = Flaps { good: 70, bad: 15, crashes: true };
    let outcome = release(&mut world, &mut operator, 900, |world, _| flaps.second(world, 2));
    assert!(outcome.reached <= 4, "{outcome:?}");
    assert!(!outcome.ever_current, "{outcome:?}");
    assert_eq!((condition(&outcome.plan, "RolledBack"), on(&world, 1)), (Some(("True", "RevisionFailed")), 8), "{outcome:?}");
}

#[test]
fn a_sound_revision_completes_after_its_last_nodes_proof() {
    let (mut world, mut operator) = proving(&json!({}), 4, 1);
    edit(&mut world, |wish| wish.image = 2);
    let reached = world.run_until(&mut operator, 400, |world| on(world, 2) == 4).unwrap();
    assert!(reached >= usize::try_from(PROVEN).unwrap(), "the first node has not served for {PROVEN} s after {reached} s");
    let plan = world.fair_second(&mut operator).unwrap();
    assert_eq!(condition(&plan, "Progressing").unwrap().0, "True");
    let complete = |world: &World| {
        let status = world.cluster.resource.as_ref().unwrap().status.as_ref().unwrap();
        status.revisions.current == world.cluster.wish.revision_of(2)
    };
    let passed = world.run_until(&mut operator, 200, complete).unwrap();
    assert!((50..90).contains(&passed), "{passed}");
    let plan = world.fair_second(&mut operator).unwrap();
    assert_eq!(condition(&plan, "Progressing"), Some(("False", "Complete")));
    assert!(world.cluster.ledger().unwrap().suspects.is_empty());
}

#[test]
fn a_node_waits_for_the_proof_and_says_so() {
    let (mut world, mut operator) = proving(&json!({}), 3, 1);
    let outcome = release(&mut world, &mut operator, 40, |_, _| {});
    assert_eq!((outcome.reached, reasons(&outcome.plan)), (1, vec!["Proving"]));
    assert_eq!(outcome.plan.status.blocked, None, "it passes by itself");
}

#[test]
fn one_restart_makes_a_node_suspect_but_halts_no_rollout() {
    let (mut world, mut operator) = proving(&json!({}), 3, 1);
    let mut crashed = false;
    let outcome = release(&mut world, &mut operator, 100, |world, second| {
        if second == 50 {
            let wanted = world.cluster.wish.revision_of(2);
            world.change(|cluster| {
                let pod = cluster.pods.iter_mut().find(|pod| pod.revision() == wanted).unwrap();
                pod.ready_at = cluster.now + 2;
                pod.crash();
            });
            crashed = true;
        }
    });
    assert!(crashed);
    assert_eq!(outcome.reached, 1);
    assert_eq!(outcome.plan.status.node_states.iter().filter(|state| state.reason == "Suspect").count(), 1, "{:#?}", outcome.plan.status);
    world.run_until(&mut operator, 400, World::is_converged).unwrap();
    let plan = world.fair_second(&mut operator).unwrap();
    assert_eq!(condition(&plan, "Progressing"), Some(("False", "Complete")));
}

#[test]
fn a_container_restarted_after_a_while_fell_only_once() {
    let (mut world, mut operator) = proving(&json!({}), 3, 1);
    release(&mut world, &mut operator, 60, |world, second| {
        let wanted = world.cluster.wish.revision_of(2);
        world.change(|cluster| {
            let now = cluster.now;
            let pod = cluster.pods.iter_mut().find(|pod| pod.revision() == wanted);
            match (second, pod) {
                (30, Some(pod)) => pod.ready_at = now + 18,
                (45, Some(pod)) => pod.crash(),
                _ => {}
            }
        });
    });
    let suspects = &world.cluster.ledger().unwrap().suspects;
    let found: Vec<_> = suspects.values().map(|suspect| (suspect.falls, suspect.last.as_str())).collect();
    assert_eq!(found, [(1, "CrashLoop")]);
}

#[test]
fn long_unreadiness_counts_as_crash_if_the_container_ended() {
    for (says, cause) in [
        (Some("CrashLoopBackOff"), "CrashLoop"),
        (Some("OOMKilled"), "CrashLoop"),
        (Some("Error"), "CrashLoop"),
        (Some("ErrImagePull"), "Flapping"),
        (None, "Flapping"),
    ] {
        let (mut world, mut operator) = proving(&json!({}), 3, 1);
        release(&mut world, &mut operator, 45, |world, second| {
            let wanted = world.cluster.wish.revision_of(2);
            world.change(|cluster| {
                let now = cluster.now;
                let pod = cluster.pods.iter_mut().find(|pod| pod.revision() == wanted);
                if let (30, Some(pod)) = (second, pod) {
                    (pod.ready_at, pod.trouble) = (now + 60, says);
                }
            });
        });
        let suspects = &world.cluster.ledger().unwrap().suspects;
        let found: Vec<_> = suspects.values().map(|suspect| (suspect.falls, suspect.last.as_str())).collect();
        assert_eq!(found, [(1, cause)], "{says:?}");
    }
}

/// Nothing fell: its pods took longer than they had.
#[test]
fn a_node_ready_after_its_deadline_stays_failed_until_proved() {
    let (mut world, mut operator) = proving(&json!({"nodeDeadlineSeconds": 20}), 3, 1);
    edit(&mut world, |wish| wish.image = 2);
    let wanted = world.cluster.wish.revision_of(2);
    let comes_up_at = |world: &mut World, at: i64| {
        world.change(|cluster| cluster.pods.iter_mut().filter(|pod| pod.revision() == wanted).for_each(|pod| pod.ready_at = at));
    };
    let failed = |world: &World| world.cluster.ledger().unwrap().rollout_state.as_ref().is_some_and(|rollout| !rollout.failed.is_empty());
    for _ in 0..120 {
        comes_up_at(&mut world, i64::MAX);
        world.fair_second(&mut operator);
    }
    assert!(failed(&world));
    let now = world.cluster.now;
    comes_up_at(&mut world, now);
    let attached = |world: &World| world.cluster.ledger().unwrap().grants.is_empty();
    world.run_until(&mut operator, 60, attached).unwrap();
    for second in 0..PROVEN - 5 {
        assert!(failed(&world) && attached(&world), "{second} s after its attach");
        world.fair_second(&mut operator);
    }
    world.run_until(&mut operator, 20, |world| !failed(world)).unwrap();
    world.run_until(&mut operator, 600, World::is_converged).unwrap();
}

/// A fleet of three in which one node has image 2, broke once since, and serves.
fn with_a_suspect_that_serves() -> (World, Operator, String) {
    let (mut world, mut operator) = proving(&json!({}), 3, 1);
    edit(&mut world, |wish| wish.image = 2);
    let attached = |world: &World| on(world, 2) == 1 && world.cluster.ledger().unwrap().grants.is_empty();
    world.run_until(&mut operator, 60, attached).unwrap();
    let wanted = world.cluster.wish.revision_of(2);
    let suspect = world.cluster.pods.iter().find(|pod| pod.revision() == wanted).unwrap().node.clone();
    world.change(|cluster| cluster.pods.iter_mut().filter(|pod| pod.revision() == wanted).take(1).for_each(world::pods::Pod::crash));
    seconds(&mut world, &mut operator, 3);
    assert!(world.cluster.ledger().unwrap().suspects.contains_key(&suspect) && serving(&world).len() == 3);
    (world, operator, suspect)
}

#[test]
fn a_serving_suspect_is_updated_at_once_in_its_slot() {
    let (mut world, mut operator, suspect) = with_a_suspect_that_serves();
    edit(&mut world, |wish| wish.image = 1);
    seconds(&mut world, &mut operator, 3);
    let granted: Vec<_> = world.cluster.ledger().unwrap().grants.keys().cloned().collect();
    assert_eq!(granted, [suspect]);
}

#[test]
fn a_suspect_keeps_its_slot_whatever_is_wanted_now() {
    let (mut world, mut operator, suspect) = with_a_suspect_that_serves();
    world.change(|cluster| {
        cluster.edit_node(&suspect, |node| node["metadata"]["annotations"][names::SKIP_ANNOTATION] = "default/edge".into());
    });
    edit(&mut world, |wish| wish.image = 3);
    for _ in 0..PROVEN - 10 {
        seconds(&mut world, &mut operator, 1);
        assert_eq!(on(&world, 3), 0);
    }
    world.run_until(&mut operator, 120, |world| on(world, 3) > 0).unwrap();
}

#[test]
fn a_machine_inherits_no_failure_of_its_former_namesake() {
    let (mut world, mut operator) = proving(&json!({}), 4, 1);
    let flaps = Flaps { good: 12, bad: 12, crashes: false };
    release(&mut world, &mut operator, 200, |world, _| flaps.second(world, 2));
    let node = world.cluster.ledger().unwrap().rollout_state.as_ref().unwrap().failed.keys().next().unwrap().clone();
    world.audit.disturbed.insert(node.clone());
    world.change(|cluster| {
        cluster.version += 1;
        cluster.nodes.remove(&node);
        cluster.join(&node);
    });
    let plan = seconds(&mut world, &mut operator, 2);
    let ledger = world.cluster.ledger().unwrap();
    let rollout = ledger.rollout_state.as_ref().unwrap();
    assert_eq!((rollout.failed.len(), rollout.failed_nodes.len()), (0, 1));
    assert_eq!(condition(&plan, "Stalled"), Some(("True", "MaxFailedNodes")));
}

#[test]
fn a_revision_whose_pods_are_evicted_repeatedly_is_rolled_back() {
    let (mut world, mut operator) = proving(&json!({"autoRollback": true}), 4, 1);
    let bad = world.cluster.wish.revision_of(2);
    let outcome = release(&mut world, &mut operator, 600, |world, _| {
        world.change(|cluster| {
            let now = cluster.now;
            let old = |pod: &&mut world::pods::Pod| pod.revision() == bad && pod.ready && now >= pod.ready_at + 15;
            cluster.pods.iter_mut().filter(old).for_each(|pod| pod.evict(now));
        });
    });
    assert_eq!((outcome.reached, outcome.ever_current), (1, false), "{outcome:?}");
    assert_eq!((condition(&outcome.plan, "RolledBack"), on(&world, 1)), (Some(("True", "RevisionFailed")), 4), "{outcome:?}");
}

#[test]
fn what_restarts_while_no_operator_watches_is_not_proved() {
    let (mut world, mut operator) = proving(&json!({}), 4, 1);
    edit(&mut world, |wish| wish.image = 2);
    let bad = world.cluster.wish.revision_of(2);
    let mut looks_from = 0;
    for second in 0..1500 {
        // It lives for eight seconds; after every fourth life pods break in the four seconds before the next.
        if second % 12 == 8 {
            looks_from = second + 4;
            operator.crash(&world, 0);
            world.change(|cluster| {
                let ready_at = cluster.now + 2;
                let broken = cluster.pods.iter_mut().filter(|pod| second % 48 == 8 && pod.revision() == bad && pod.ready);
                broken.for_each(|pod| {
                    pod.crash();
                    pod.ready_at = ready_at;
                });
            });
        }
        if second < looks_from {
            world.tick();
        } else {
            world.idle_second(&mut operator);
        }
        assert!(on(&world, 2) <= 1, "after {second} s");
    }
    assert_eq!(on(&world, 2), 1);
}

#[test]
fn a_step_of_many_nodes_soaks_despite_steady_restarts() {
    for (nodes, step, soaks) in [(110, 104, true), (6, 3, false)] {
        let budget = i32::try_from(nodes / 2).unwrap();
        let steps = json!({"provenAfterSeconds": 20, "maxFlaps": 0, "steps": [{"nodes": step, "soak": "60s"}]});
        let (mut world, mut operator) = proving(&steps, nodes, budget);
        let bad = world.cluster.wish.revision_of(2);
        release(&mut world, &mut operator, 400, |world, second| {
            if second % 40 != 39 {
                return;
            }
            world.change(|cluster| {
                // Of another node each time, and ready again before anybody looks.
                let mut pods: Vec<_> = cluster.pods.iter_mut().filter(|pod| pod.revision() == bad && pod.ready).collect();
                let at = second % pods.len().max(1);
                pods.iter_mut().skip(at).take(1).for_each(|pod| pod.crash());
            });
        });
        assert_eq!(on(&world, 2) == nodes, soaks, "{} of {nodes} nodes run the revision", on(&world, 2));
    }
}

#[test]
fn more_broken_nodes_than_listed_suspend_a_revisions_proof() {
    let (mut world, mut operator) = proving(&json!({"maxFlaps": 0, "partition": "50%"}), 204, 102);
    release(&mut world, &mut operator, 90, |_, _| {});
    let proved = |world: &World| world.cluster.ledger().unwrap().rollout_state.as_ref().unwrap().proved;
    assert_eq!((on(&world, 2), proved(&world)), (102, true));
    let bad = world.cluster.wish.revision_of(2);
    world.change(|cluster| cluster.pods.iter_mut().filter(|pod| pod.revision() == bad).for_each(world::pods::Pod::crash));
    seconds(&mut world, &mut operator, 2);
    assert!(!proved(&world), "more nodes broke than the ledger lists");
    // They are suspect for a minute, and after that it is proved once more.
    seconds(&mut world, &mut operator, 130);
    assert!(proved(&world));
}

#[test]
fn restarted_operators_prove_sound_and_condemn_flapping_revisions() {
    for flapping in [false, true] {
        let (mut world, mut operator) = proving(&json!({"autoRollback": true}), 4, 1);
        let flaps = Flaps { good: 12, bad: 12, crashes: true };
        let outcome = release(&mut world, &mut operator, 25, |_, _| {});
        assert_eq!(outcome.reached, 1);
        let mut fewest = 4;
        for second in 0..1500 {
            if second % 30 == 0 {
                operator.crash(&world, 0);
            }
            if flapping {
                flaps.second(&mut world, 2);
            }
            world.fair_second(&mut operator);
            fewest = fewest.min(serving(&world).len());
        }
        assert!(fewest >= 3, "{fewest} served");
        assert_eq!(on(&world, 2), if flapping { 0 } else { 4 }, "flapping: {flapping}, {:#?}", world.cluster.ledger());
    }
}

#[test]
fn a_rollback_begins_at_once() {
    let (mut world, mut operator) = proving(&json!({}), 3, 1);
    let outcome = release(&mut world, &mut operator, 30, |_, _| {});
    assert_eq!(outcome.reached, 1);
    edit(&mut world, |wish| wish.image = 1);
    world.run_until(&mut operator, 30, |world| on(world, 2) == 0).unwrap();
}

#[test]
fn a_rollout_with_zero_proof_seconds_waits_for_no_proof() {
    let (mut world, mut operator) = proving(&json!({"provenAfterSeconds": 0}), 4, 1);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 100, World::is_converged).unwrap();
}

/// From a moment on, pods on all nodes are not ready for so long: what they need is away.
fn with_backend_away(nodes: usize, on_all: bool) -> (Outcome, World, Operator) {
    let (mut world, mut operator) = proving(&json!({"autoRollback": true, "nodeDeadlineSeconds": 40}), nodes, 1);
    let back = world.cluster.now + 140;
    let outcome = release(&mut world, &mut operator, 400, |world, second| {
        let wanted = world.cluster.wish.revision_of(2);
        world.change(|cluster| {
            let away = (40..140).contains(&second);
            let pods = cluster.pods.iter_mut().filter(|pod| away && (on_all || pod.revision() == wanted));
            pods.for_each(|pod| pod.ready_at = pod.ready_at.max(back));
        });
    });
    (outcome, world, operator)
}

#[test]
fn a_backend_that_all_nodes_lack_condemns_no_revision() {
    let (outcome, mut world, mut operator) = with_backend_away(4, true);
    assert_eq!(condition(&outcome.plan, "RolledBack"), None, "{:#?}", outcome.plan.status);
    assert!(outcome.plan.status.nodes.failed == 0 && world.cluster.ledger().unwrap().suspects.values().all(|suspect| suspect.falls == 0));
    world.run_until(&mut operator, 600, World::is_converged).unwrap();
    // The same where only what was updated lacks it: that is the revision.
    let (outcome, ..) = with_backend_away(4, false);
    assert_eq!(condition(&outcome.plan, "RolledBack"), Some(("True", "RevisionFailed")));
}

/// Whether the newest revision has become the one that all nodes ran, though those nodes are missing, and what is said of the rollout.
fn without(missing: &[&str], hinder: fn(&mut serde_json::Value)) -> (bool, &'static str) {
    let (mut world, mut operator) = proving(&json!({}), 4, 1);
    for node in missing {
        world.change(|cluster| cluster.edit_node(node, hinder));
    }
    edit(&mut world, |wish| wish.image = 2);
    let mut plan = None;
    for _ in 0..900 {
        plan = world.fair_second(&mut operator);
    }
    assert_eq!((on(&world, 2), world.audit.violations.clone()), (4 - missing.len(), Vec::<String>::new()));
    let plan = plan.unwrap();
    let through = plan.status.revisions.current == world.cluster.wish.revision_of(2);
    let complete = plan.status.conditions.iter().any(|condition| condition.type_ == "Progressing" && condition.reason == "Complete");
    (through, if complete { "complete" } else { "not complete" })
}

#[test]
fn a_revision_is_current_despite_skipped_nodes_within_the_budget() {
    let skip = |node: &mut Value| node["metadata"]["annotations"][names::SKIP_ANNOTATION] = "default/edge".into();
    assert_eq!(without(&[], skip), (true, "complete"));
    assert_eq!(without(&["n0"], skip), (true, "not complete"));
    assert_eq!(without(&["n0", "n1"], skip), (false, "not complete"));
}

#[test]
fn a_revision_becomes_current_despite_a_machine_that_is_down() {
    let (mut world, mut operator) = proving(&json!({}), 4, 1);
    edit(&mut world, |wish| (wish.image, wish.ignores_not_ready) = (2, true));
    world.change(|cluster| cluster.edit_node("n0", |node| node["status"]["ready"] = false.into()));
    for _ in 0..900 {
        world.fair_second(&mut operator);
    }
    let status = world.cluster.resource.as_ref().unwrap().status.clone().unwrap();
    assert_eq!((on(&world, 2), status.revisions.current), (3, world.cluster.wish.revision_of(2)));
    world.change(|cluster| cluster.edit_node("n0", |node| node["status"]["ready"] = true.into()));
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
}

/// A watch of Deployments that lags, after a start of the operator: what the ledger says was reached counts, whatever is seen there.
#[test]
fn a_reached_node_keeps_its_slot_despite_a_lagging_watch() {
    let (mut world, mut operator) = proving(&json!({}), 5, 1);
    edit(&mut world, |wish| wish.image = 2);
    let seen_by_another = |world: &World| {
        let mut another = Operator::default();
        another.catch_up(world);
        another.snapshot(world).unwrap()
    };
    let mut snapshot = seen_by_another(&world);
    let is_closed = |world: &World| on(world, 2) == 1 && world.cluster.ledger().is_some_and(|ledger| ledger.grants.is_empty());
    world.run_until(&mut operator, 120, is_closed).unwrap();
    snapshot.resource = seen_by_another(&world).resource;
    let (name, uid) = snapshot.nodes.last_key_value().map(|(name, node)| (name.clone(), node.uid.clone())).unwrap();
    // Not the one whose turn would come first.
    let status = snapshot.resource.status.as_mut().unwrap();
    status.rollout.as_mut().unwrap().rollout_state.as_mut().unwrap().reached = [(name.clone(), uid)].into();
    let plan = planner::decide(&snapshot);
    let granted = plan.status.rollout.unwrap().grants;
    assert!(granted.keys().all(|node| *node == name), "{granted:?}");
}
