//! Rollouts as people meet them, second by second.

use crate::world;

use crds::{node_readiness_gate::Effect, token::Phase};
use planner::{
    Action,
    facts::PullFacts,
    node_gates::{Gate, GateLinks},
    plan::Write,
    reason::NodeObject,
};
use serde_json::json;
use world::{
    World,
    operator::Operator,
    settled,
    wish::{ALL_MARKS, GRACE, Marks, Wish},
};

#[test]
fn a_fresh_resource_gets_through_rebuilding_and_starts_every_node() {
    for marks in ALL_MARKS {
        settled(Wish::new(marks, 1), 3);
    }
}

#[test]
fn a_template_change_reaches_every_node_and_the_ledger_empties() {
    for marks in ALL_MARKS {
        let (mut world, mut operator) = settled(Wish::new(marks, 1), 3);
        world.audit.expects_stamp = marks == Marks::Timestamp;
        world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
        let seconds = world.run_until(&mut operator, 300, World::is_converged).unwrap_or_else(|why| panic!("{marks:?} {why}"));
        println!("{marks:?}: {seconds} s");
        assert_eq!(world.audit.violations, Vec::<String>::new());
    }
}

/// Nodes whose pods are not those of the first plan any more.
fn replaced(world: &World, before: &[String]) -> std::collections::BTreeSet<String> {
    let alive = |name: &String| world.cluster.pods.iter().any(|pod| pod.name == *name && pod.ends_at.is_none());
    before.iter().filter(|name| !alive(name)).map(|name| name.rsplit_once('-').unwrap().0.to_owned()).collect()
}

#[test]
fn mass_unreadiness_replaces_pods_only_within_the_budget() {
    for marks in ALL_MARKS {
        let (mut world, mut operator) = settled(Wish::new(marks, 2), 8);
        let before: Vec<_> = world.cluster.pods.iter().map(|pod| pod.name.clone()).collect();
        // Pods that will not be ready for an hour, as after a restart of every kubelet with a bad certificate.
        world.change(|cluster| {
            let later = cluster.now + 3600;
            cluster.pods.iter_mut().for_each(|pod| pod.ready_at = later);
            cluster.edit_wish(|wish| wish.image = 2);
        });
        for _ in 0..60 {
            let pods: Vec<_> = world.cluster.pods.iter().map(|pod| pod.name.clone()).collect();
            world.fair_second(&mut operator);
            let later = world.cluster.now + 3600;
            world.cluster.pods.iter_mut().filter(|pod| !pods.contains(&pod.name)).for_each(|pod| pod.ready_at = later);
        }
        let replaced = replaced(&world, &before);
        assert_eq!(replaced.len(), 2, "{marks:?}: {replaced:?}");
        assert_eq!(world.audit.violations, Vec::<String>::new());
    }
}

#[test]
fn a_leaving_node_whose_deployment_is_missing_is_released() {
    let (mut world, mut operator) = settled(Wish::new(Marks::Both, 1), 1);
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    for _ in 0..3 {
        world.fair_second(&mut operator);
    }
    world.change(|cluster| {
        cluster.delete_deployment("edge-n0", false);
        cluster.edit_node("n0", |node| node["metadata"]["labels"]["ingress"] = "false".into());
    });
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
}

#[test]
fn pods_lost_in_an_update_return_when_wanted_again() {
    let (mut world, mut operator) = settled(Wish::new(Marks::Deployment, 1), 1);
    world.change(|cluster| cluster.edit_wish(|wish| wish.pods = 0));
    world.run_until(&mut operator, 60, |world| world.cluster.pods.is_empty()).unwrap();
    world.change(|cluster| cluster.edit_wish(|wish| wish.pods = 1));
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
}

#[test]
fn a_paused_grant_does_not_restart_on_a_recreated_deployment() {
    let (mut world, mut operator) = settled(Wish::new(Marks::Token, 1), 2);
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    world.fair_second(&mut operator);
    world.change(|cluster| cluster.edit_wish(|wish| wish.paused = true));
    let node = world.cluster.ledger().unwrap().grants.keys().next().unwrap().clone();
    world.change(|cluster| cluster.delete_deployment(&format!("edge-{node}"), true));
    for _ in 0..60 {
        world.fair_second(&mut operator);
    }
    assert_eq!(world.audit.violations, Vec::<String>::new());
    let running: Vec<_> = world
        .cluster
        .pods
        .iter()
        .filter(|pod| pod.node == node)
        .map(|pod| pod.template["spec"]["containers"][0]["image"].clone())
        .collect();
    assert_eq!(running, ["app:1", "app:1"], "its pods were not touched");
}

#[test]
fn a_foreign_template_edit_is_corrected_despite_an_orphaning_deletion() {
    for pod_update in ["Recreate", "InPlaceIfPossible"] {
        let (mut world, mut operator) = settled(Wish { pod_update, ..Wish::new(Marks::Token, 1) }, 2);
        world.edit_deployment("edge-n1", |deployment| deployment["spec"]["template"]["metadata"]["labels"]["app"] = "other".into());
        world.audit.disturbed.insert("n1".into());
        world.change(|cluster| cluster.delete_deployment("edge-n1", true));
        world.run_until(&mut operator, 120, World::is_converged).unwrap();
    }
}

#[test]
fn a_removal_waits_for_a_slot_once_the_node_serves() {
    let (mut world, mut operator) = settled(Wish::new(Marks::Token, 1), 3);
    world.change(|cluster| cluster.join("n9"));
    for _ in 0..4 {
        world.fair_second(&mut operator);
    }
    // What this operator knows of the node stays at: new, and never served.
    let mut late = operator.clone();
    late.catch_up(&world);
    world.run_until(&mut operator, 60, World::is_converged).unwrap();
    world.change(|cluster| {
        cluster.edit_node("n9", |node| node["metadata"]["labels"]["ingress"] = "false".into());
        cluster.edit_wish(|wish| wish.image = 2);
    });
    for _ in 0..3 {
        world.fair_second(&mut operator);
    }
    let newest = world.history.len();
    late.advance(&world, world::operator::Store::Resource, newest);
    let planned = late.plan(&world).unwrap();
    for request in &planned.requests {
        late.send(&mut world, request);
    }
    world.run_until(&mut operator, 300, World::is_converged).unwrap();
    assert_eq!(world.audit.violations, Vec::<String>::new());
}

/// What an operator has sent to take a node out arrives after the ledger was lost and another operator has taken out a node of its own;
/// nothing where that is the same node.
fn arrives_late(marks: Marks, image: u8) -> Option<bool> {
    let (mut world, mut first) = settled(Wish::new(marks, 1), 4);
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    let (node, sent) = (0..10)
        .find_map(|_| {
            first.catch_up(&world);
            let planned = first.plan(&world)?;
            let takes_out = planned.requests.iter().find_map(|request| match &request.action {
                Action::PatchDeployment { node, write: Write::Claim, .. } | Action::PatchNode { node, write: Write::Detach, .. } => {
                    Some((node.clone(), request.clone()))
                }
                _ => None,
            });
            if takes_out.is_none() {
                for request in &planned.requests {
                    first.send(&mut world, request);
                }
                world.tick();
            }
            takes_out
        })
        .expect("it takes a node out");
    world.change(|cluster| {
        cluster.edit_resource(|resource| resource.status = None);
        cluster.edit_wish(|wish| wish.image = image);
    });
    let is_out = |world: &World| {
        let ledger = world.cluster.ledger().filter(|ledger| ledger.rebuilding.is_none());
        ledger.and_then(|ledger| ledger.grants.keys().next().cloned())
    };
    let mut second = Operator::default();
    world.run_until(&mut second, 30, |world| is_out(world).is_some()).unwrap();
    if is_out(&world).as_ref() == Some(&node) {
        return None;
    }
    let arrived = world.apply(&sent);
    world.run_until(&mut second, 300, World::is_converged).unwrap();
    assert_eq!(world.audit.violations, Vec::<String>::new(), "{marks:?}");
    Some(arrived)
}

#[test]
fn late_writes_from_a_lost_ledger_take_no_node_out() {
    for marks in [Marks::Token, Marks::Node] {
        let arrived: Vec<_> = (3..15).filter_map(|image| arrives_late(marks, image)).collect();
        assert!(arrived.len() >= 3, "{marks:?}: another node was next {} times", arrived.len());
        assert!(!arrived.contains(&true), "{marks:?}: it was not fenced");
    }
}

#[test]
fn a_lost_ledger_of_many_nodes_is_fenced_in_parts() {
    let nodes = 150;
    let (mut world, mut operator) = settled(Wish::new(Marks::Node, 1), nodes);
    world.change(|cluster| cluster.edit_resource(|resource| resource.status = None));
    let mut fences = Vec::new();
    while fences.is_empty() || world.cluster.ledger().is_none_or(|ledger| ledger.rebuilding.is_some()) {
        assert!(fences.len() < 60, "it does not come back: {fences:?}");
        let plan = world.fair_second(&mut operator).unwrap_or_default();
        let is_fence = |action: &&Action| {
            matches!(action, Action::PatchDeployment { write: Write::Fence, .. } | Action::PatchNode { write: Write::Fence, .. })
        };
        fences.push(plan.actions.iter().filter(is_fence).count());
    }
    assert_eq!(fences.iter().sum::<usize>(), 2 * nodes, "each Deployment and each Node once: {fences:?}");
    assert!(fences.iter().all(|fences| *fences <= planner::rollout::rebuild::FENCES), "{fences:?}");
    assert_eq!(world.audit.violations, Vec::<String>::new());
}

#[test]
fn a_lost_ledger_is_rebuilt_only_from_lists() {
    let (mut world, mut operator) = settled(Wish::new(Marks::Token, 1), 3);
    world.change(|cluster| cluster.edit_resource(|resource| resource.status = None));
    let mut rebuilt = None;
    for _ in 0..10 {
        operator.catch_up(&world);
        let snapshot = operator.snapshot(&world).unwrap();
        let ends = |snapshot: &planner::Snapshot| {
            let mut actions = planner::decide(snapshot).actions.into_iter();
            actions.any(|action| matches!(action, Action::WriteStatus { status, .. } if status.rollout.as_ref().is_some_and(|ledger| ledger.rebuilding.is_none())))
        };
        let unlisted = planner::Snapshot { listed_since_rebuild: false, ..snapshot.clone() };
        assert!(!ends(&unlisted), "nothing was listed since it was lost");
        if ends(&snapshot) {
            rebuilt = Some(snapshot);
            break;
        }
        world.fair_second(&mut operator);
    }
    assert!(rebuilt.is_some_and(|snapshot| snapshot.listed_since_rebuild), "it is rebuilt from lists");
}

#[test]
fn a_silent_detacher_halts_aborts_or_proceeds_as_configured() {
    for (policy, touched) in [("Halt", 0), ("Abort", 0), ("Proceed", 3)] {
        let wish = Wish { on_timeout: policy, ..Wish::new(Marks::Timestamp, 1) };
        let (mut world, mut operator) = settled(wish, 3);
        world.change(|cluster| {
            cluster.detacher = world::cluster::Detacher::Silent;
            cluster.edit_wish(|wish| wish.image = 2);
        });
        for _ in 0..400 {
            world.fair_second(&mut operator);
        }
        let updated = world.cluster.pods.iter().filter(|pod| pod.template["spec"]["containers"][0]["image"] == "app:2").count();
        assert_eq!(updated, touched * 2, "{policy}");
        world.change(|cluster| cluster.edit_wish(|wish| wish.on_timeout = "Proceed"));
        world.run_until(&mut operator, 300, World::is_converged).unwrap_or_else(|why| panic!("{policy} {why}"));
        assert_eq!(world.audit.violations, Vec::<String>::new());
    }
}

#[test]
fn an_aborted_node_frees_its_slot_after_the_template_reverts() {
    let wish = Wish { on_timeout: "Abort", ..Wish::new(Marks::Timestamp, 1) };
    let (mut world, mut operator) = settled(wish, 3);
    world.change(|cluster| {
        cluster.detacher = world::cluster::Detacher::Silent;
        cluster.edit_wish(|wish| wish.image = 2);
    });
    for _ in 0..100 {
        world.fair_second(&mut operator);
    }
    assert_eq!(world.cluster.ledger().unwrap().grants.len(), 1, "the node is given up");
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 1));
    world.run_until(&mut operator, 100, World::is_converged).unwrap();
    assert_eq!(world.audit.violations, Vec::<String>::new());
}

/// The index of the label in [`world::wish::KEYS`].
const LABEL: usize = 1;

#[test]
fn a_label_takes_nodes_out_until_their_pods_are_ready() {
    let (mut world, mut operator) = settled(Wish { key: LABEL, ..Wish::new(Marks::Node, 1) }, 3);
    let key = world::wish::KEYS[LABEL].strip_prefix(crds::names::LABEL_MARK).unwrap();
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    let out = |world: &World| -> Vec<String> {
        let nodes = world.cluster.nodes.iter();
        nodes.filter(|(_, node)| node["metadata"]["labels"].get(key).is_some()).map(|(name, _)| name.clone()).collect()
    };
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..120 {
        seen.extend(out(&world));
        assert!(out(&world).len() <= 1, "the budget is one node");
        world.fair_second(&mut operator);
    }
    assert_eq!(seen.len(), 3);
    assert!(world.is_converged() && out(&world).is_empty());
    assert_eq!(world.audit.violations, Vec::<String>::new());
}

#[test]
fn a_foreign_label_is_named_in_the_status_and_stays() {
    let (mut world, mut operator) = settled(Wish { key: LABEL, ..Wish::new(Marks::Node, 2) }, 3);
    let key = world::wish::KEYS[LABEL].strip_prefix(crds::names::LABEL_MARK).unwrap();
    world.change(|cluster| cluster.edit_node("n1", |node| node["metadata"]["labels"][key] = "by-hand".into()));
    let says = |world: &World| {
        let status = world.cluster.resource.as_ref().and_then(|resource| resource.status.as_ref());
        let nodes = status.map(|status| status.node_states.as_slice()).unwrap_or_default();
        nodes.iter().any(|state| state.name == "n1" && state.reason == "TakenOut" && state.message.contains(&format!("label {key}")))
    };
    world.run_until(&mut operator, 30, says).unwrap();
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    for _ in 0..120 {
        world.fair_second(&mut operator);
    }
    let label = |world: &World, node: &str| world.cluster.nodes[node]["metadata"]["labels"].get(key).cloned();
    assert_eq!(label(&world, "n1"), Some("by-hand".into()), "what was there before is there again");
    assert_eq!((label(&world, "n0"), label(&world, "n2")), (None, None));
    assert!(world.cluster.pods.iter().all(|pod| pod.ready && pod.template["spec"]["containers"][0]["image"] == "app:2"));
    assert_eq!(world.audit.violations, Vec::<String>::new());
}

#[test]
fn deletion_leaves_nothing_and_puts_the_users_own_annotation_back() {
    for marks in ALL_MARKS {
        let (mut world, mut operator) = settled(Wish::new(marks, 1), 3);
        let key = world::wish::KEYS[0];
        world.change(|cluster| cluster.edit_node("n1", |node| node["metadata"]["annotations"]["example.com/own"] = "kept".into()));
        world.change(|cluster| cluster.edit_resource(|resource| resource.deleting = true));
        world.run_until(&mut operator, 200, |world| world.cluster.resource.is_none()).unwrap_or_else(|why| panic!("{marks:?} {why}"));
        assert_eq!(world.leftovers(), Vec::<String>::new());
        let annotations = &world.cluster.nodes["n1"]["metadata"]["annotations"];
        assert_eq!(annotations["example.com/own"], "kept");
        assert!(annotations.get(key).is_none());
        assert_eq!(world.audit.violations, Vec::<String>::new());
    }
}

#[test]
fn a_claim_annotation_is_removed_despite_its_missing_token() {
    for phase in [Phase::Claimed, Phase::Updating] {
        let (mut world, mut operator) = settled(Wish::new(Marks::Deployment, 1), 1);
        world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
        let shows = |world: &World| world::audit::token(&world.cluster.deployments["edge-n0"]).is_some_and(|token| token.phase == phase);
        world.run_until(&mut operator, 60, shows).unwrap();
        let labels = "/metadata/labels";
        let token = crds::names::TOKEN_LABEL;
        world.change(|cluster| {
            cluster.edit_deployment("edge-n0", |deployment| {
                deployment.pointer_mut(labels).unwrap().as_object_mut().unwrap().remove(token);
            });
        });
        world.run_until(&mut operator, 120, World::is_converged).unwrap();
        let annotations = &world.cluster.deployments["edge-n0"]["metadata"]["annotations"];
        assert!(annotations.get("example.com/out").is_none(), "{phase:?}: {annotations}");
    }
}

#[test]
fn nodes_taken_out_by_hand_are_named_with_their_annotation() {
    let (mut world, mut operator) = settled(Wish::new(Marks::Token, 1), 2);
    let key = crds::names::TO_BE_UPDATED_ANNOTATION;
    world.change(|cluster| cluster.edit_deployment("edge-n0", |deployment| deployment["metadata"]["annotations"][key] = "".into()));
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    let says = |world: &World| {
        let status = world.cluster.resource.as_ref().and_then(|resource| resource.status.as_ref());
        let nodes = status.map(|status| status.node_states.as_slice()).unwrap_or_default();
        nodes.iter().any(|state| state.name == "n0" && state.reason == "TakenOut" && state.message.contains(key))
    };
    world.run_until(&mut operator, 120, says).unwrap();
    world.change(|cluster| {
        cluster.edit_deployment("edge-n0", |deployment| {
            deployment.pointer_mut("/metadata/annotations").unwrap().as_object_mut().unwrap().remove(key);
        });
    });
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
}

fn answer(healthy: bool, phase: crds::token::Phase) -> planner::snapshot::PortAnswer {
    planner::snapshot::PortAnswer { port: 10080, healthy, phase: Some(phase) }
}

/// The reason for which a node is held after so many seconds.
fn held_after(world: &mut World, operator: &mut Operator, seconds: usize, node: &str) -> Option<&'static str> {
    let mut last = None;
    for _ in 0..seconds {
        last = world.fair_second(operator);
    }
    last.and_then(|plan| plan.node_states.get(node).map(|state| state.reason.word()))
}

#[test]
fn pods_stay_unchanged_while_the_health_port_answers_200() {
    let (mut world, mut operator) = settled(Wish::new(Marks::Deployment, 1), 1);
    world.change(|cluster| {
        cluster.hanging.insert("n0".into(), answer(true, crds::token::Phase::Closed));
        cluster.edit_wish(|wish| wish.image = 2);
    });
    assert_eq!(held_after(&mut world, &mut operator, 60, "n0"), Some("HealthPortContradicts"));
    assert!(world.cluster.pods.iter().all(|pod| pod.template["spec"]["containers"][0]["image"] == "app:1"));
    world.change(|cluster| cluster.hanging.clear());
    world.run_until(&mut operator, 60, World::is_converged).unwrap();
}

#[test]
fn a_health_port_answering_an_earlier_phase_keeps_the_slot() {
    let (mut world, mut operator) = settled(Wish::new(Marks::Deployment, 1), 2);
    world.change(|cluster| {
        for node in ["n0", "n1"] {
            cluster.hanging.insert(node.into(), answer(false, crds::token::Phase::Updating));
        }
        cluster.edit_wish(|wish| wish.image = 2);
    });
    for _ in 0..60 {
        world.fair_second(&mut operator);
    }
    assert_eq!(world.cluster.ledger().unwrap().grants.len(), 1, "the first node keeps its slot, the second waits");
    world.change(|cluster| cluster.hanging.clear());
    world.run_until(&mut operator, 60, World::is_converged).unwrap();
}

#[test]
fn deletion_does_not_wait_for_a_health_port_that_contradicts() {
    let (mut world, mut operator) = settled(Wish::new(Marks::Deployment, 1), 2);
    world.change(|cluster| {
        cluster.hanging.insert("n0".into(), answer(true, crds::token::Phase::Closed));
        cluster.edit_resource(|resource| resource.deleting = true);
    });
    world.run_until(&mut operator, 100, |world| world.cluster.resource.is_none()).unwrap();
}

/// A gate that taints every node before it is updated.
fn tainting() -> GateLinks {
    let spec = serde_json::json!({
        "allNodes": true, "mode": "Continuous", "taint": {"key": GATE},
        "requirements": [{"name": "edge", "ingressDaemonSet": {"namespace": "default", "name": "edge", "duringUpdate": "Taint"}}],
    });
    let gate = Gate {
        name: "drain".into(),
        uid: "u".into(),
        generation: 1,
        created: 0,
        edited: None,
        deleting: false,
        spec: serde_json::from_value(spec).unwrap(),
        completion_annotation: None,
    };
    GateLinks { watched: true, tainting: vec![gate.into()], ..GateLinks::default() }
}

const GATE: &str = "readiness.k8s.io/drain";

fn taint_by_gate(world: &mut World, node: &str, effect: &str) {
    let taints = serde_json::json!([{"key": GATE, "effect": effect}]);
    world.change(|cluster| cluster.edit_node(node, |node| node["spec"]["taints"] = taints));
}

#[test]
fn a_granted_node_changes_only_after_the_gate_taints_it() {
    for marks in ALL_MARKS {
        let (mut world, mut operator) = settled(Wish::new(marks, 1), 2);
        operator.gates = tainting();
        world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
        let before = (world.cluster.deployments.clone(), world.cluster.nodes.clone());
        // Whose turn it is does not matter here.
        let granted = |world: &World| world.cluster.ledger().is_some_and(|ledger| !ledger.grants.is_empty());
        world.run_until(&mut operator, 60, granted).unwrap_or_else(|why| panic!("{marks:?} {why}"));
        let (first, second) = if world.cluster.ledger().unwrap().grants.contains_key("n0") { ("n0", "n1") } else { ("n1", "n0") };
        assert_eq!(held_after(&mut world, &mut operator, 30, first), Some("WaitingForTaint"), "{marks:?}");
        assert_eq!((&world.cluster.deployments, &world.cluster.nodes), (&before.0, &before.1), "{marks:?}: neither mark nor pods");
        let began = world.cluster.now;
        world.audit.expects_stamp = marks == Marks::Timestamp;
        taint_by_gate(&mut world, first, "NoSchedule");
        let finished = |world: &World| world.cluster.ledger().is_some_and(|ledger| ledger.grants.contains_key(second));
        world.run_until(&mut operator, 60, finished).unwrap_or_else(|why| panic!("{marks:?} {why}"));
        assert!(
            marks == Marks::Token || marks == Marks::Degrade || world.cluster.now - began >= GRACE,
            "the grace is counted from the taint on"
        );
        taint_by_gate(&mut world, second, "NoSchedule");
        world.run_until(&mut operator, 60, World::is_converged).unwrap_or_else(|why| panic!("{marks:?} {why}"));
        assert_eq!(world.audit.violations, Vec::<String>::new());
    }
}

#[test]
fn an_update_continues_without_the_taint_after_a_minute() {
    let (mut world, mut operator) = settled(Wish::new(Marks::Deployment, 1), 1);
    operator.gates = tainting();
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    let seconds = world.run_until(&mut operator, 120, World::is_converged).unwrap();
    assert!((60..120).contains(&seconds), "{seconds} s");
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 3));
    assert_eq!(held_after(&mut world, &mut operator, 10, "n0"), Some("WaitingForTaint"));
    operator.gates = GateLinks::default();
    let seconds = world.run_until(&mut operator, 120, World::is_converged).unwrap();
    assert!(seconds < 50, "{seconds} s: the minute was not waited for");
}

#[test]
fn a_new_node_tainted_by_any_gate_has_wanted_replicas() {
    for (key, passing, awaited) in [("example.com/cni", true, true), ("example.com/cni", false, false), ("readiness.k8s.io/x", false, true)]
    {
        let (mut world, mut operator) = settled(Wish::new(Marks::Deployment, 1), 1);
        let passing = if passing { vec![(key.to_owned(), "NoSchedule".to_owned())] } else { Vec::new() };
        operator.gates = GateLinks { watched: true, passing, ..GateLinks::default() };
        let taints = serde_json::json!([{"key": key, "effect": "NoSchedule"}]);
        world.change(|cluster| {
            cluster.join("n9");
            cluster.edit_node("n9", |node| node["spec"]["taints"] = taints);
        });
        let plan = world.fair_second(&mut operator).unwrap();
        let found = plan.replicas.unwrap()["n9"].clone();
        assert_eq!((found.chosen, found.wanted > 0), (awaited, awaited), "{key}");
    }
}

#[test]
fn gates_see_running_replicas_while_the_spec_is_invalid() {
    let (mut world, mut operator) = settled(Wish::new(Marks::Deployment, 1), 1);
    operator.gates = GateLinks { watched: true, ..GateLinks::default() };
    let mut told = |world: &mut World| world.fair_second(&mut operator).unwrap().replicas.unwrap();
    let before = told(&mut world)["n0"].clone();
    world.change(|cluster| {
        cluster.edit_resource(|resource| {
            resource.spec.node_selector.insert("a".into(), "b c".into());
            resource.generation += 1;
        });
        cluster.join("n9");
    });
    let found = told(&mut world);
    assert_eq!((&found["n0"], found.get("n9")), (&before, None));
    assert!(before.chosen && before.wanted > 0 && before.ready == before.wanted && !before.detached, "{before:?}");
    world.change(|cluster| {
        let later = cluster.now + 3600;
        cluster.pods.iter_mut().for_each(|pod| pod.ready_at = later);
    });
    let ready: Vec<_> = (0..20).map(|_| told(&mut world)["n0"].ready).collect();
    assert_eq!(ready.last(), Some(&0), "{ready:?}");
}

#[test]
fn deletion_and_an_autoscaler_wait_for_no_gate() {
    for leave in [
        |world: &mut World| world.change(|cluster| cluster.edit_resource(|resource| resource.deleting = true)),
        |world: &mut World| world.change(|cluster| cluster.edit_node("n0", |node| node["metadata"]["labels"]["ingress"] = "no".into())),
    ] {
        let (mut world, mut operator) = settled(Wish::new(Marks::Deployment, 1), 1);
        operator.gates = tainting();
        leave(&mut world);
        let gone = |world: &World| world.cluster.deployment_on("n0").is_none();
        let seconds = world.run_until(&mut operator, 120, gone).unwrap();
        assert!(seconds < 60, "{seconds} s");
    }
}

#[test]
fn an_evicting_taint_is_reported_until_a_tolerating_revision_runs() {
    let (mut world, mut operator) = settled(Wish::new(Marks::Deployment, 1), 1);
    let mut gates = tainting();
    let mut gate = Gate::clone(&gates.tainting[0]);
    gate.spec.taint.effect = Effect::NoExecute;
    let taint = gate.spec.taint.clone();
    gates.tainting = vec![gate.into()];
    gates.taints = vec![(GATE.into(), "NoExecute".into())];
    gates.evicting = vec![taint.clone()];
    operator.gates = gates;
    let told = |world: &World, operator: &mut Operator| {
        operator.catch_up(world);
        let snapshot = operator.snapshot(world).unwrap();
        planner::decide(&snapshot).replicas.unwrap()["n0"].evicted_by.clone()
    };
    assert_eq!(told(&world, &mut operator), [taint]);
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    let seconds = world.run_until(&mut operator, 120, World::is_converged).unwrap();
    assert!(seconds < 60, "{seconds} s");
    assert_eq!(told(&world, &mut operator), []);
}

#[test]
fn a_refused_pull_pod_is_replaced_after_a_pause() {
    let (mut world, mut operator) = settled(Wish::new(Marks::Deployment, 1), 2);
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    operator.catch_up(&world);
    let mut snapshot = operator.snapshot(&world).unwrap();
    let rolling = json!({"rollingUpdate": {"maxUnavailableNodes": 1, "prePull": true}});
    snapshot.resource.spec.update_strategy = serde_json::from_value(rolling).unwrap();
    let begun = |plan: &planner::Plan| {
        let pods = plan.actions.iter().filter_map(|action| match action {
            Action::CreatePod { node, body, .. } => Some((node.clone(), body["metadata"]["labels"][crds::names::PRE_PULL_LABEL].clone())),
            _ => None,
        });
        pods.collect::<Vec<_>>()
    };
    let deleted = |plan: &planner::Plan| plan.actions.iter().any(|action| matches!(action, Action::DeletePod { name, .. } if name == "p"));
    let plan = planner::decide(&snapshot);
    let first = begun(&plan);
    assert_eq!(first.len(), 2, "a pass begins as many as may be under way");
    let since = plan.status.rollout.as_ref().unwrap().rollout_state.as_ref().unwrap().since;
    snapshot.resource.status = Some(plan.status);
    let refused = PullFacts {
        name: "p".into(),
        revision: first[0].1.as_str().unwrap().into(),
        created: snapshot.now,
        given_up: true,
        trouble: Some(("OutOfpods".into(), "Node didn't have enough resource: pods".into())),
        ..PullFacts::default()
    };
    snapshot.pulls = [("n0".to_owned(), vec![PullFacts { node: "n0".into(), ..refused.clone() }])].into();
    let plan = planner::decide(&snapshot);
    assert!(!deleted(&plan), "not at once");
    assert_eq!(plan.recheck_at.unwrap().min(snapshot.now + 60), plan.recheck_at.unwrap());
    snapshot.now += 60;
    assert!(deleted(&planner::decide(&snapshot)));
    snapshot.pulls.values_mut().flatten().for_each(|pull| pull.terminating = true);
    let again = begun(&planner::decide(&snapshot));
    assert!(again.iter().any(|(node, _)| node == "n0"), "{again:?}");

    // The longer the node cannot be updated, the longer the pauses.
    let given_up = snapshot.clone();
    for (after, pause) in [(0, 60), (200, 200), (50_000, 900)] {
        let mut snapshot = given_up.clone();
        snapshot.pulls.values_mut().flatten().for_each(|pull| (pull.terminating, pull.created) = (false, since + after));
        snapshot.now = since + after + pause - 1;
        let plan = planner::decide(&snapshot);
        assert!(!deleted(&plan) && plan.recheck_at.is_some_and(|at| at <= snapshot.now + 1), "{after} s: {:?}", plan.recheck_at);
        snapshot.now += 1;
        assert!(deleted(&planner::decide(&snapshot)), "{after} s");
    }

    // Nor does the rollout wait without a word where the API server takes no such pod.
    snapshot.pulls.clear();
    let refused_pods = ["n0", "n1"].map(|node| (node.to_owned(), "exceeded quota".to_owned()));
    snapshot.refusals = [(NodeObject::PullPod, refused_pods.into())].into();
    let plan = planner::decide(&snapshot);
    assert_eq!(begun(&plan), []);
    assert!(plan.recheck_at.is_some_and(|at| at <= snapshot.now + 5), "{:?}", plan.recheck_at);
    let blocked = plan.status.blocked.unwrap();
    assert!(blocked.message.contains("exceeded quota"), "{blocked:?}");
    world.run_until(&mut operator, 300, World::is_converged).unwrap();
    operator.catch_up(&world);
    let mut back = operator.snapshot(&world).unwrap();
    back.resource.spec.update_strategy = snapshot.resource.spec.update_strategy.clone();
    back.resource.spec.rollback_to = Some(serde_json::from_value(json!({"revision": 0})).unwrap());
    back.refusals = snapshot.refusals.clone();
    let granted = planner::decide(&back).status.rollout.unwrap().grants;
    assert_eq!(granted.len(), 1, "the way back does not wait for images");
    back.refusals.clear();
    let begun = begun(&planner::decide(&back));
    assert_eq!(begun.len(), 2, "they come first where they can");
    let given_up = |(node, revision): &(String, serde_json::Value)| {
        let revision = revision.as_str().unwrap().to_owned();
        (node.clone(), vec![PullFacts { node: node.clone(), revision, created: back.now, ..refused.clone() }])
    };
    back.pulls = begun.iter().map(given_up).collect();
    let granted = planner::decide(&back).status.rollout.unwrap().grants;
    assert_eq!(granted.len(), 1, "nor for a kubelet that refuses the pod");
}

#[test]
fn a_removal_ends_though_somebody_gives_the_deployment_replicas_again() {
    for marks in [Marks::Token, Marks::Both] {
        let (mut world, mut operator) = settled(Wish::new(marks, 1), 2);
        world.change(|cluster| cluster.edit_node("n0", |node| node["metadata"]["labels"]["ingress"] = "false".into()));
        world.run_until(&mut operator, 60, |world| world.cluster.deployments["edge-n0"]["spec"]["replicas"] == 0).unwrap();
        world.edit_deployment("edge-n0", |deployment| deployment["spec"]["replicas"] = 1.into());
        world.run_until(&mut operator, 120, World::is_converged).unwrap_or_else(|why| panic!("{marks:?}: {why}"));
        assert_eq!(world.audit.violations, Vec::<String>::new(), "{marks:?}");
    }
}

#[test]
fn unreadable_gates_are_reported_and_hold_updates_until_readable() {
    let (mut world, mut operator) = settled(Wish::new(Marks::Token, 1), 3);
    operator.gates.unreadable = Some("NodeReadinessGates (nodereadinessgates is forbidden)".into());
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    for _ in 0..30 {
        let plan = world.fair_second(&mut operator).unwrap();
        let valid = plan.status.conditions.iter().find(|condition| condition.type_ == "Valid").unwrap();
        assert_eq!((valid.status.as_str(), valid.reason.as_str()), ("False", "GatesUnreadable"));
        assert!(valid.message.contains("forbidden"), "{}", valid.message);
        assert!(!plan.actions.iter().any(|action| matches!(action, Action::PatchDeployment { .. })), "{:?}", plan.actions);
    }
    operator.gates.unreadable = None;
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
    // It can be deleted all the same.
    operator.gates.unreadable = Some("NodeReadinessGates (nodereadinessgates is forbidden)".into());
    world.change(|cluster| cluster.edit_resource(|resource| resource.deleting = true));
    world.run_until(&mut operator, 120, |world| world.cluster.resource.is_none()).unwrap();
    assert_eq!((world.leftovers(), &world.audit.violations), (Vec::new(), &Vec::new()));
}
