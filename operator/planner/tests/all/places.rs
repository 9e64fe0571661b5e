//! Which nodes get a revision that is not proved: those that had a turn, and no others that come back, come anew or get pods again.

use crate::{
    proof::{Flaps, PROVEN, proving, release, serving},
    rollout_state::{condition, edit, on, reasons, seconds},
    world::{
        World,
        cluster::{node_of, revision},
        operator::Operator,
        wish::{Marks, Wish},
    },
};
use crds::{ledger::GrantReason, names};
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
    world.cluster.ledger().is_some_and(|ledger| ledger.grants.get(node).is_some_and(|grant| grant.kind == GrantReason::Drain))
}

fn is_emptied(world: &World, node: &str) -> bool {
    is_granted(world, node) && world.cluster.pods.iter().all(|pod| pod.node != node)
}

#[test]
fn a_cancelled_drain_gives_its_node_no_unproved_revision() {
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
fn a_node_with_drain_cancelled_while_paused_keeps_its_revision() {
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
fn a_cancelled_drain_brings_the_revision_if_slots_are_free() {
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

/// All nodes lose their pods at the user's word, and a revision comes meanwhile.
fn scaled_to_zero(rollout: &Value, seconds_before: usize) -> (World, Operator) {
    let (mut world, mut operator) = proving(rollout, 4, 1);
    if seconds_before > 0 {
        release(&mut world, &mut operator, seconds_before, |_, _| {});
    }
    edit(&mut world, |wish| (wish.pods, wish.image) = (0, 2));
    seconds(&mut world, &mut operator, 200);
    assert!(world.cluster.pods.is_empty(), "{:?}", world.cluster.pods.len());
    (world, operator)
}

fn current(world: &World) -> String {
    world.cluster.resource.as_ref().unwrap().status.as_ref().unwrap().revisions.current.clone()
}

#[test]
fn a_revision_without_pods_is_not_proved_by_time() {
    for (rollout, before) in
        [(json!({}), 0), (json!({}), 25), (json!({"steps": [{"nodes": 1, "soak": "5s"}]}), 0), (json!({"provenAfterSeconds": 0}), 0)]
    {
        let (mut world, mut operator) = scaled_to_zero(&rollout, before);
        let plan = seconds(&mut world, &mut operator, 300);
        assert_eq!(current(&world), world.cluster.wish.revision_of(1), "{rollout}, {before} s before");
        // With zero seconds none has to be proved, and it is on all nodes.
        if rollout["provenAfterSeconds"] != 0 {
            let so_far = world.cluster.ledger().unwrap().rollout_state.clone().unwrap();
            assert!((so_far.proof, so_far.steps_done) == (0, 0) && !so_far.proved, "{so_far:?}");
            assert_eq!(condition(&plan, "Progressing"), Some(("False", "ScaledToZero")), "{:?}", plan.node_states);
        }
    }
}

#[test]
fn a_revision_set_at_zero_pods_proves_itself_later() {
    for before in [0, 25] {
        let (mut world, mut operator) = scaled_to_zero(&json!({}), before);
        edit(&mut world, |wish| wish.pods = 2);
        for second in 0..40 {
            seconds(&mut world, &mut operator, 1);
            let runs: BTreeSet<_> =
                with(&world, 2).into_iter().filter(|node| world.cluster.pods.iter().any(|pod| pod.node == *node)).collect();
            // One more that is out of service at the moment of its turn: its pods are about to start.
            assert!(runs.len() <= 2, "{runs:?} after {second} s");
            assert!(second < 15 || serving(&world).len() >= 3, "{second} s");
        }
        world.run_until(&mut operator, 600, World::is_converged).unwrap();
        assert_eq!((on(&world, 2), current(&world)), (4, world.cluster.wish.revision_of(2)));
    }
}

#[test]
fn a_broken_revision_set_at_zero_pods_is_rolled_back() {
    let (mut world, mut operator) = scaled_to_zero(&json!({"autoRollback": true}), 0);
    edit(&mut world, |wish| wish.pods = 2);
    let flaps = Flaps { good: 12, bad: 12, crashes: true };
    let mut plan = None;
    for _ in 0..600 {
        flaps.second(&mut world, 2);
        plan = world.fair_second(&mut operator);
        assert!(on(&world, 2) <= 1);
    }
    assert_eq!((condition(&plan.unwrap(), "RolledBack"), on(&world, 1)), (Some(("True", "RevisionFailed")), 4));
}

/// Nodes that serve with all their pods.
fn full(world: &World) -> usize {
    let pods = |node: &str| world.cluster.pods.iter().filter(|pod| pod.node == node && pod.ready).count();
    serving(world).iter().filter(|node| pods(node) == 2).count()
}

#[test]
fn nodes_serve_soon_despite_a_template_changed_at_zero_pods() {
    for at_once in [false, true] {
        let (mut world, mut operator) = proving(&json!({}), 12, 1);
        edit(&mut world, |wish| wish.pods = 0);
        // One node after the other.
        seconds(&mut world, &mut operator, 400);
        assert!(world.cluster.pods.is_empty());
        if !at_once {
            edit(&mut world, |wish| wish.image = 2);
            seconds(&mut world, &mut operator, 30);
        }
        assert_eq!(on(&world, 2), 0, "nothing proves it at 0");
        edit(&mut world, |wish| (wish.pods, wish.image) = (2, 2));
        let (mut served, mut had) = (None, None);
        for second in 0..400 {
            seconds(&mut world, &mut operator, 1);
            served = served.or((full(&world) == 12).then_some(second));
            had = had.or((on(&world, 2) == 12).then_some(second));
            assert!(second < 15 || full(&world) >= 11, "{} serve after {second} s", full(&world));
            assert!(second >= 60 || on(&world, 2) <= 1, "{} have it after {second} s, unproved", on(&world, 2));
        }
        assert!(served.is_some_and(|second| second <= 20), "{served:?}");
        assert!(had.is_some_and(|second| (60..=300).contains(&second)), "{had:?}");
        assert_eq!(current(&world), world.cluster.wish.revision_of(2));
    }
}

#[test]
fn without_pods_templates_needing_no_proof_go_node_by_node() {
    let (mut world, mut operator) = proving(&json!({"provenAfterSeconds": 0}), 12, 1);
    edit(&mut world, |wish| wish.pods = 0);
    seconds(&mut world, &mut operator, 400);
    assert!(world.cluster.pods.is_empty());
    edit(&mut world, |wish| wish.image = 2);
    let took = world.run_until(&mut operator, 300, |world| on(world, 2) == 12).unwrap();
    assert!((120..=200).contains(&took), "{took} s");
    // The last one is attached yet.
    seconds(&mut world, &mut operator, 20);
    edit(&mut world, |wish| wish.pods = 2);
    world.run_until(&mut operator, 15, |world| full(world) == 12).unwrap();
}

/// How the machine of a node is replaced by one of the same name before its Deployment is gone.
#[derive(Clone, Copy, Debug)]
enum Replaced {
    /// Its kubelet is registered anew, and keeps its pods.
    WithPods,
    /// A machine comes that has none.
    WithoutPods,
    /// It comes so many seconds after its predecessor went.
    After(usize),
}

impl Replaced {
    fn happens(self, world: &mut World, operator: &mut Operator, node: &str) {
        world.audit.disturbed.insert(node.to_owned());
        world.change(|cluster| match self {
            Self::WithPods => drop(cluster.nodes.remove(node)),
            Self::WithoutPods | Self::After(_) => cluster.leave(node),
        });
        if let Self::After(seconds) = self {
            (0..seconds).for_each(|_| drop(world.fair_second(operator)));
            assert!(world.cluster.deployment_on(node).is_some(), "its Deployment is gone {seconds} s after it");
        }
        world.change(|cluster| cluster.join(node));
    }
}

#[test]
fn a_machine_replacing_an_unproved_node_gets_the_current_revision() {
    let all = [Replaced::WithPods, Replaced::WithoutPods, Replaced::After(1), Replaced::After(2)];
    for (how, image, later) in
        all.into_iter().flat_map(|how| [(2, 0), (2, 15), (99, 0), (99, 60)].map(|(image, later)| (how, image, later)))
    {
        let what = format!("{how:?}, image {image}, {later} s after it got it");
        let (mut world, mut operator) = proving(&json!({"nodeDeadlineSeconds": 20}), 4, 1);
        edit(&mut world, |wish| wish.image = image);
        world.run_until(&mut operator, 60, |world| on(world, image) == 1).unwrap();
        (0..later).for_each(|_| drop(world.fair_second(&mut operator)));
        let node = with(&world, image).into_iter().next().unwrap();
        how.happens(&mut world, &mut operator, &node);
        let gets = |world: &World| {
            let grant = world.cluster.ledger().and_then(|ledger| ledger.grants.get(&node));
            assert!(
                !grant.is_some_and(|grant| grant.out_before),
                "{what}: not before its update, but by the revision that is to prove itself"
            );
            with(world, 1).contains(&node) && serving(world).contains(&node)
        };
        // Once it has served with that it waits for its turn as others do.
        world.run_until(&mut operator, 60, gets).unwrap_or_else(|why| panic!("{what}: {why}"));
        if image == 2 {
            world.run_until(&mut operator, 600, World::is_converged).unwrap_or_else(|why| panic!("{what}: {why}"));
        } else if later > 0 {
            // It has failed, and is tried nowhere else.
            seconds(&mut world, &mut operator, 60);
            assert_eq!((on(&world, 1), serving(&world).len()), (4, 4), "{what}");
        }
        assert_eq!(world.audit.violations, Vec::<String>::new(), "{what}");
    }
}

#[test]
fn a_machine_replacing_a_node_serves_before_an_unproved_revision() {
    for how in [Replaced::WithoutPods, Replaced::After(1)] {
        let (mut world, mut operator) = proving(&json!({}), 4, 1);
        assert_eq!(release(&mut world, &mut operator, 25, |_, _| {}).reached, 1);
        let node = with(&world, 1).into_iter().next().unwrap();
        how.happens(&mut world, &mut operator, &node);
        for second in 0..15 {
            seconds(&mut world, &mut operator, 1);
            assert_eq!(on(&world, 2), 1, "{how:?}, {second} s after it came");
        }
        assert_eq!(serving(&world).len(), 4, "{how:?}");
        world.run_until(&mut operator, 600, World::is_converged).unwrap();
    }
}

#[test]
fn a_machine_replacing_a_node_keeps_its_revision_until_unpaused() {
    let (mut world, mut operator) = proving(&json!({}), 4, 1);
    assert_eq!(release(&mut world, &mut operator, 25, |_, _| {}).reached, 1);
    let node = with(&world, 2).into_iter().next().unwrap();
    edit(&mut world, |wish| wish.paused = true);
    Replaced::WithPods.happens(&mut world, &mut operator, &node);
    seconds(&mut world, &mut operator, 90);
    assert_eq!(with(&world, 2), BTreeSet::from([node.clone()]));
    assert!(!world.cluster.ledger().unwrap().rollout_state.as_ref().unwrap().proved, "a machine that joins proves nothing");
    edit(&mut world, |wish| wish.paused = false);
    world.run_until(&mut operator, 40, |world| with(world, 1).contains(&node) && serving(world).contains(&node)).unwrap();
    world.run_until(&mut operator, 600, World::is_converged).unwrap();
}

#[test]
fn a_node_without_its_label_keeps_its_unproved_revision() {
    let (mut world, mut operator) = proving(&json!({}), 4, 1);
    assert_eq!(release(&mut world, &mut operator, 25, |_, _| {}).reached, 1);
    let node = with(&world, 2).into_iter().next().unwrap();
    world.change(|cluster| {
        cluster.edit_node(&node, |node| node["metadata"]["labels"].as_object_mut().unwrap().retain(|key, _| !key.contains("/member-")));
    });
    for _ in 0..20 {
        seconds(&mut world, &mut operator, 1);
        assert_eq!(with(&world, 2), BTreeSet::from([node.clone()]));
    }
    let label = names::member_label(crate::world::cluster::UID8);
    assert_eq!(world.cluster.nodes[&node]["metadata"]["labels"][&label], "serving");
}

#[test]
fn a_revision_fails_after_the_second_replaced_machine() {
    let (mut world, mut operator) = proving(&json!({}), 6, 1);
    edit(&mut world, |wish| wish.image = 2);
    let mut replaced = 0;
    let mut plan = None;
    for _ in 0..600 {
        let attached = world.cluster.ledger().is_some_and(|ledger| ledger.grants.is_empty());
        if let Some(node) = with(&world, 2).into_iter().next().filter(|_| attached) {
            Replaced::WithPods.happens(&mut world, &mut operator, &node);
            replaced += 1;
        }
        plan = world.fair_second(&mut operator).or(plan);
    }
    assert_eq!((replaced, condition(&plan.unwrap(), "Stalled")), (2, Some(("True", "MaxFailedNodes"))));
    assert_eq!((on(&world, 2), serving(&world).len()), (0, 6));
}

#[test]
fn replacements_of_failed_nodes_get_no_trial_of_the_revision() {
    let (mut world, mut operator) = proving(&json!({"nodeDeadlineSeconds": 20}), 6, 1);
    edit(&mut world, |wish| wish.image = 99);
    let mut reached: BTreeSet<String> = BTreeSet::new();
    for round in 0..6 {
        for _ in 0..120 {
            world.fair_second(&mut operator);
            let grants = world.cluster.ledger().unwrap().grants.values().filter(|grant| grant.kind == GrantReason::Update);
            reached.extend(grants.map(|grant| grant.node_uid.clone()));
        }
        let Some(node) = world.cluster.ledger().unwrap().grants.keys().next().cloned() else { continue };
        world.change(|cluster| cluster.leave(&node));
        // With another name, and with the same one.
        let name = if round % 2 == 0 { format!("new{round}") } else { node };
        world.change(|cluster| cluster.join(&name));
    }
    assert_eq!(reached.len(), 1, "{reached:?}");
    let plan = world.fair_second(&mut operator).unwrap();
    assert_eq!(condition(&plan, "Stalled"), Some(("True", "MaxFailedNodes")));
}

#[test]
fn a_joining_machine_gets_no_unproved_revision() {
    let (mut world, mut operator) = proving(&json!({}), 3, 1);
    release(&mut world, &mut operator, 20, |_, _| {});
    world.change(|cluster| cluster.join("n9"));
    let former = world.cluster.wish.revision_of(1);
    for _ in 0..20 {
        world.fair_second(&mut operator);
        let runs = world.cluster.deployment_on("n9").map(|deployment| revision(&deployment["spec"]["template"]).to_owned());
        assert!(runs.is_none_or(|runs| runs == former));
    }
    world.run_until(&mut operator, 600, World::is_converged).unwrap();
}

#[test]
fn a_node_that_joins_while_paused_runs_the_others_revision() {
    for proven_after in [0, PROVEN] {
        let (mut world, mut operator) = proving(&json!({"provenAfterSeconds": proven_after}), 3, 1);
        edit(&mut world, |wish| (wish.image, wish.paused) = (2, true));
        world.change(|cluster| cluster.join("j0"));
        let mut plan = None;
        for _ in 0..60 {
            plan = world.fair_second(&mut operator);
        }
        assert_eq!((on(&world, 1), on(&world, 2), serving(&world).len()), (4, 0, 4));
        assert_eq!(reasons(&plan.unwrap()), ["Paused"]);
        edit(&mut world, |wish| wish.paused = false);
        world.run_until(&mut operator, 600, World::is_converged).unwrap();
        assert_eq!((on(&world, 2), world.audit.violations.clone()), (4, Vec::<String>::new()));
    }
}

#[test]
fn without_current_revision_nodes_joining_while_paused_run_the_newest() {
    let mut world = World::new(Wish { paused: true, ..Wish::new(Marks::Token, 1) }, 2);
    let mut operator = Operator::default();
    for _ in 0..60 {
        world.fair_second(&mut operator);
    }
    assert_eq!((on(&world, 1), serving(&world).len()), (2, 2));
}

#[test]
fn nodes_joined_with_a_failed_revision_get_the_former_one() {
    for proven_after in [0, PROVEN] {
        let (mut world, mut operator) = proving(&json!({"provenAfterSeconds": proven_after, "nodeDeadlineSeconds": 60}), 3, 1);
        edit(&mut world, |wish| wish.image = 99);
        world.run_until(&mut operator, 60, |world| on(world, 99) == 1).unwrap();
        world.change(|cluster| {
            cluster.join("j0");
            cluster.join("j1");
        });
        for _ in 0..200 {
            world.fair_second(&mut operator);
        }
        world.change(|cluster| cluster.join("k0"));
        for _ in 0..60 {
            world.fair_second(&mut operator);
        }
        let serving = serving(&world);
        assert!(["j0", "j1", "k0"].iter().all(|node| serving.contains(*node)), "{proven_after}: {serving:?}");
        assert_eq!((on(&world, 99), world.audit.violations.clone()), (1, Vec::<String>::new()));
    }
}
