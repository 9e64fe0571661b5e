//! What a judgement on a revision outlasts, and what it does not rest on: absences of the operator, pods that somebody deletes, nodes that
//! others have taken out, and what a person lets pass.

use crate::{
    losses::come_back,
    proof::{Flaps, PROVEN, proving, release},
    rollout_state::{condition, edit, on, seconds},
    world::{self, World, operator::Operator},
};
use crds::names;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Image 2 came to two of six nodes, which then go together with the operator, and others come; `claimed`: before their pods changed.
fn two_go_unseen(claimed: bool) -> (World, Operator) {
    let (mut world, mut operator) = proving(&json!({"autoRollback": true}), 6, 2);
    edit(&mut world, |wish| wish.image = 2);
    let begun = |world: &World| {
        let ledger = world.cluster.ledger().unwrap();
        let reached = ledger.rollout_state.as_ref().map_or(0, |rollout| rollout.reached.len());
        reached == 2 && if claimed { on(world, 2) == 0 } else { on(world, 2) == 2 && ledger.grants.is_empty() }
    };
    world.run_until(&mut operator, 60, begun).unwrap();
    let reached: Vec<_> = world.cluster.ledger().unwrap().rollout_state.as_ref().unwrap().reached.keys().cloned().collect();
    if !claimed {
        operator.crash(&world, 0);
    }
    for node in reached {
        world.audit.disturbed.insert(node.clone());
        world.change(|cluster| {
            cluster.leave(&node);
            cluster.join(&format!("new-{node}"));
        });
    }
    (world, operator)
}

#[test]
fn nodes_that_go_unseen_or_unchanged_condemn_no_revision() {
    for claimed in [false, true] {
        let (mut world, mut operator) = two_go_unseen(claimed);
        let plan = seconds(&mut world, &mut operator, 30);
        assert_eq!(condition(&plan, "RolledBack"), None, "claimed: {claimed}: {:#?}", plan.status);
        let lost = &world.cluster.ledger().unwrap().rollout_state.as_ref().unwrap().lost;
        assert!(lost.is_empty(), "claimed: {claimed}: {lost:?}");
        world.run_until(&mut operator, 900, |world| on(world, 2) == 6 && world.is_converged()).unwrap();
    }
}

/// A write that is lost between the look that saw them go and the ledger.
#[test]
fn departed_nodes_reach_the_ledger_despite_a_lost_write() {
    let (mut world, mut operator) = proving(&json!({}), 6, 2);
    edit(&mut world, |wish| wish.image = 2);
    let attached = |world: &World| on(world, 2) == 2 && world.cluster.ledger().unwrap().grants.is_empty();
    world.run_until(&mut operator, 60, attached).unwrap();
    seconds(&mut world, &mut operator, 5);
    let gone: Vec<_> = world.cluster.ledger().unwrap().rollout_state.as_ref().unwrap().reached.keys().cloned().collect();
    for node in &gone {
        world.audit.disturbed.insert(node.clone());
        world.change(|cluster| cluster.leave(node));
    }
    operator.catch_up(&world);
    // It looks, and nothing of its plan arrives.
    drop(operator.plan(&world).unwrap());
    let plan = seconds(&mut world, &mut operator, 3);
    assert_eq!(world.cluster.ledger().unwrap().rollout_state.as_ref().unwrap().lost.len(), 2, "{:#?}", plan.status);
}

#[test]
fn who_deletes_a_pod_that_fell_lets_nothing_pass() {
    let (mut world, mut operator) = proving(&json!({}), 4, 1);
    let flaps = Flaps { good: 12, bad: 12, crashes: true };
    let outcome = release(&mut world, &mut operator, 300, |world, _| flaps.second(world, 2));
    let halted = Some(("True", "MaxFailedNodes"));
    assert_eq!((outcome.reached, condition(&outcome.plan, "Stalled")), (1, halted));
    let bad = world.cluster.wish.revision_of(2);
    let fell: Vec<_> = world.cluster.pods.iter().filter(|pod| pod.revision() == bad).map(|pod| pod.name.clone()).collect();
    for name in fell {
        world.change(|cluster| cluster.delete_pod(&name, None, None));
    }
    // Those that come in their place serve for half of the time that falls are remembered.
    for second in 0..300 {
        let plan = world.fair_second(&mut operator).unwrap();
        assert_eq!((on(&world, 2), condition(&plan, "Stalled")), (1, halted), "after {second} s");
    }
    let falls: Vec<_> = world.cluster.ledger().unwrap().suspects.values().map(|suspect| suspect.falls).collect();
    assert!(falls.iter().all(|falls| *falls >= 3) && falls.len() == 1, "{falls:?}");
    world.run_until(&mut operator, 900, World::is_converged).unwrap();
}

#[test]
fn a_suspect_taken_out_by_another_does_not_become_good() {
    let (mut world, mut operator) = proving(&json!({}), 6, 1);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 200, |world| on(world, 2) == 2).unwrap();
    let wanted = world.cluster.wish.revision_of(2);
    let node = world.cluster.pods.iter().find(|pod| pod.revision() == wanted && pod.ready).unwrap().node.clone();
    world.change(|cluster| cluster.pods.iter_mut().filter(|pod| pod.node == node).take(1).for_each(world::pods::Pod::crash));
    seconds(&mut world, &mut operator, 3);
    let key = names::TO_BE_UPDATED_ANNOTATION;
    let annotate = |world: &mut World, edit: fn(&mut serde_json::Map<String, Value>)| {
        world.audit.disturbed.insert(node.clone());
        world.change(|cluster| {
            cluster.edit_deployment(&format!("edge-{node}"), |deployment| {
                edit(deployment["metadata"]["annotations"].as_object_mut().unwrap());
            });
        });
    };
    annotate(&mut world, |annotations| drop(annotations.insert(names::TO_BE_UPDATED_ANNOTATION.to_owned(), "".into())));
    seconds(&mut world, &mut operator, 200);
    annotate(&mut world, |annotations| drop(annotations.remove(names::TO_BE_UPDATED_ANNOTATION)));
    for second in 0..PROVEN - 15 {
        world.fair_second(&mut operator);
        assert_eq!(on(&world, 2), 2, "{second} s after {key} went");
    }
    world.run_until(&mut operator, 900, |world| on(world, 2) == 6).unwrap();
}

#[test]
fn a_pod_unready_before_its_reported_eviction_counts_as_evicted() {
    let (mut world, mut operator) = proving(&json!({"autoRollback": true}), 4, 1);
    let bad = world.cluster.wish.revision_of(2);
    let outcome = release(&mut world, &mut operator, 600, |world, _| {
        world.change(|cluster| {
            let now = cluster.now;
            for pod in cluster.pods.iter_mut().filter(|pod| pod.revision() == bad && pod.is_active()) {
                if pod.ready && now >= pod.ready_at + 15 {
                    pod.ready_at = now + 1000;
                } else if !pod.ready && pod.ready_at > now + 900 && pod.ready_at < now + 997 {
                    pod.evict(now);
                }
            }
        });
    });
    assert_eq!((outcome.reached, outcome.ever_current), (1, false), "{outcome:?}");
    assert_eq!((condition(&outcome.plan, "RolledBack"), on(&world, 1)), (Some(("True", "RevisionFailed")), 4), "{outcome:?}");
    let message = outcome.plan.status.conditions.iter().find(|condition| condition.type_ == "RolledBack").unwrap().message.clone();
    assert!(message.contains("Evicted"), "{message}");
}

#[test]
fn a_retry_after_lost_machines_takes_effect_at_once() {
    let (mut world, mut operator) = proving(&json!({"autoRollback": true}), 8, 2);
    let bad = world.cluster.wish.revision_of(2);
    let outcome = release(&mut world, &mut operator, 400, |world, _| {
        let now = world.cluster.now;
        let old = |pod: &&world::pods::Pod| pod.revision() == bad && pod.ready && now >= pod.ready_at + 15;
        let killed: BTreeSet<_> = world.cluster.pods.iter().filter(old).map(|pod| pod.node.clone()).collect();
        world.change(|cluster| killed.iter().for_each(|node| cluster.machine_dies(node, 10_000)));
    });
    assert_eq!(condition(&outcome.plan, "RolledBack"), Some(("True", "RevisionFailed")), "{outcome:?}");
    world.change(|cluster| cluster.retry("1"));
    let plan = seconds(&mut world, &mut operator, 5);
    assert_eq!(condition(&plan, "RolledBack"), None, "{:#?}", plan.status);
    come_back(&mut world);
}

#[test]
fn a_suspect_is_named_as_such_during_the_attach_soak() {
    let (mut world, mut operator) = proving(&json!({}), 3, 1);
    edit(&mut world, |wish| (wish.image, wish.attach_soak) = (2, 40));
    let wanted = world.cluster.wish.revision_of(2);
    let soaks = |world: &World| {
        let states = &world.cluster.resource.as_ref().unwrap().status.as_ref().unwrap().node_states;
        states.iter().find(|state| state.reason == "AttachSoak").map(|state| state.message.clone())
    };
    world.run_until(&mut operator, 60, |world| soaks(world).is_some()).unwrap();
    world.change(|cluster| cluster.pods.iter_mut().filter(|pod| pod.revision() == wanted).take(1).for_each(world::pods::Pod::crash));
    world.run_until(&mut operator, 10, |world| soaks(world).is_some_and(|message| message.contains("; suspect since"))).unwrap();
}

#[test]
fn a_failure_stays_although_its_node_serves_again_briefly() {
    let (mut world, mut operator) = proving(&json!({}), 4, 1);
    let flaps = Flaps { good: 12, bad: 12, crashes: false };
    let outcome = release(&mut world, &mut operator, 400, |world, _| flaps.second(world, 2));
    assert_eq!((outcome.reached, condition(&outcome.plan, "Stalled")), (1, Some(("True", "MaxFailedNodes"))));
    // It serves for half of the time that falls are remembered.
    for _ in 0..300 {
        outcome_is_halted(&mut world, &mut operator);
    }
}

fn outcome_is_halted(world: &mut World, operator: &mut Operator) {
    let plan = world.fair_second(operator).unwrap();
    assert_eq!(condition(&plan, "Stalled"), Some(("True", "MaxFailedNodes")));
    assert_eq!(on(world, 2), 1);
}

#[test]
fn a_retry_on_a_failed_node_lets_the_rollout_complete() {
    let (mut world, mut operator) = proving(&json!({}), 3, 1);
    let flaps = Flaps { good: 12, bad: 12, crashes: false };
    release(&mut world, &mut operator, 200, |world, _| flaps.second(world, 2));
    let node = world.cluster.ledger().unwrap().rollout_state.as_ref().unwrap().failed.keys().next().unwrap().clone();
    world.change(|cluster| {
        cluster.edit_node(&node, |node| node["metadata"]["annotations"][names::RETRY_ANNOTATION] = "1".into());
    });
    mend(&mut world);
    world.run_until(&mut operator, 600, World::is_converged).unwrap();
}

/// The backend of image 2 is there again: its pods are ready from now on.
fn mend(world: &mut World) {
    world.change(|cluster| {
        let now = cluster.now;
        cluster.pods.iter_mut().for_each(|pod| pod.ready_at = pod.ready_at.min(now));
    });
}

#[test]
fn a_retry_on_the_resource_clears_failures_of_departed_nodes() {
    let (mut world, mut operator) = proving(&json!({}), 4, 1);
    let flaps = Flaps { good: 12, bad: 12, crashes: false };
    // The value of another rollout asks for nothing.
    world.change(|cluster| cluster.retry("1"));
    release(&mut world, &mut operator, 200, |world, _| flaps.second(world, 2));
    outcome_is_halted(&mut world, &mut operator);
    let node = world.cluster.ledger().unwrap().rollout_state.as_ref().unwrap().failed.keys().next().unwrap().clone();
    world.change(|cluster| cluster.leave(&node));
    world.change(|cluster| cluster.join("new"));
    mend(&mut world);
    let plan = seconds(&mut world, &mut operator, 700);
    assert_eq!(condition(&plan, "Stalled"), Some(("True", "MaxFailedNodes")));
    world.change(|cluster| cluster.retry("2"));
    world.run_until(&mut operator, 600, World::is_converged).unwrap();
    assert_eq!(on(&world, 2), 4);
}

#[test]
fn a_rolled_back_revision_is_judged_again_on_request() {
    let (mut world, mut operator) = proving(&json!({"autoRollback": true}), 3, 1);
    let flaps = Flaps { good: 12, bad: 12, crashes: false };
    let rolled_back = Some(("True", "RevisionFailed"));
    let outcome = release(&mut world, &mut operator, 600, |world, _| flaps.second(world, 2));
    assert_eq!(condition(&outcome.plan, "RolledBack"), rolled_back);
    for asked in ["1", "2"] {
        world.change(|cluster| cluster.retry(asked));
        let outcome = release(&mut world, &mut operator, 600, |world, _| flaps.second(world, 2));
        assert_eq!((outcome.reached, condition(&outcome.plan, "RolledBack")), (1, rolled_back), "{asked}");
    }
    world.change(|cluster| cluster.retry("3"));
    world.run_until(&mut operator, 600, |world| on(world, 2) == 3 && world.is_converged()).unwrap();
}
