//! A health port that does not answer: nobody knows what the load balancer is told, and silence is no consent.

use crate::{
    rollout_state::{annotate, at_rest, condition, edit, on, reasons, seconds},
    world::{
        World,
        audit::token,
        cluster::HEALTH_PORT,
        operator::Operator,
        wish::{Marks, Wish},
    },
};
use crds::{names, token::Phase};
use planner::{Action, Plan, Snapshot, decide, plan::Write, snapshot::PortAnswer};
use serde_json::{Value, json};
use std::sync::Arc;

fn silence(world: &mut World, nodes: &[&str]) {
    world.change(|cluster| cluster.silent = nodes.iter().map(|node| (*node).to_owned()).collect());
}

fn granted(world: &World) -> Vec<String> {
    world.cluster.ledger().map(|ledger| ledger.grants.keys().cloned().collect()).unwrap_or_default()
}

fn phase_on(world: &World, node: &str) -> Option<Phase> {
    world.cluster.deployment_on(node).and_then(token).map(|token| token.phase)
}

fn message(plan: &Plan, node: &str) -> String {
    plan.node_states.get(node).map(|state| state.reason.message()).unwrap_or_default()
}

const ALL: [&str; 3] = ["n0", "n1", "n2"];

#[test]
fn pods_stay_untouched_while_a_health_port_is_silent() {
    for marks in [Marks::Token, Marks::Deployment, Marks::Both, Marks::Timestamp] {
        let mut world = World::new(Wish::new(marks, 1), 3);
        let mut operator = Operator::default();
        world.run_until(&mut operator, 120, World::is_converged).unwrap();
        edit(&mut world, |wish| wish.image = 2);
        silence(&mut world, &ALL);
        let plan = seconds(&mut world, &mut operator, 300);
        assert_eq!((on(&world, 1), granted(&world).len()), (3, 1), "{marks:?}");
        let node = granted(&world).remove(0);
        assert_eq!(
            (plan.node_states[&node].phase, plan.node_states[&node].reason.word()),
            (crds::status::NodePhase::Blocked, "HealthPortSilent")
        );
        for word in ["10080", "192.0.2.1", "health checker", "network policy", "firewall", names::RELEASE_ANNOTATION] {
            assert!(message(&plan, &node).contains(word), "{word}: {}", message(&plan, &node));
        }
        for type_ in ["Degraded", "Stalled"] {
            assert_eq!(condition(&plan, type_), Some(("True", "HealthPortSilent")));
        }
        assert_eq!(plan.status.blocked.unwrap().reason, "HealthPortSilent");
        silence(&mut world, &[]);
        world.run_until(&mut operator, 120, World::is_converged).unwrap();
    }
}

#[test]
fn only_detachment_by_health_check_waits_for_a_silent_port() {
    for marks in [Marks::Node, Marks::Degrade] {
        let mut world = World::new(Wish::new(marks, 1), 1);
        let mut operator = Operator::default();
        world.run_until(&mut operator, 120, World::is_converged).unwrap();
        edit(&mut world, |wish| wish.image = 2);
        silence(&mut world, &ALL);
        seconds(&mut world, &mut operator, 60);
        assert_eq!(on(&world, 2), 1, "{marks:?}");
    }
}

#[test]
fn a_silence_of_moments_is_not_spoken_of() {
    let (mut world, mut operator) = at_rest(&Value::Null, 3, 1);
    edit(&mut world, |wish| wish.image = 2);
    silence(&mut world, &ALL);
    for _ in 0..14 {
        let plan = seconds(&mut world, &mut operator, 1);
        assert_eq!((condition(&plan, "Degraded").unwrap().0, condition(&plan, "Stalled")), ("False", None));
    }
    silence(&mut world, &[]);
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
}

#[test]
fn only_an_answering_port_or_a_person_frees_a_slot() {
    for by_person in [false, true] {
        let (mut world, mut operator) = at_rest(&Value::Null, 3, 1);
        edit(&mut world, |wish| wish.image = 2);
        world.run_until(&mut operator, 60, |world| on(world, 2) == 1).unwrap();
        let node = granted(&world).remove(0);
        silence(&mut world, &[&node]);
        let plan = seconds(&mut world, &mut operator, 300);
        assert_eq!((phase_on(&world, &node), granted(&world), on(&world, 2)), (Some(Phase::Closed), vec![node.clone()], 1));
        assert_eq!(plan.node_states[&node].reason.word(), "HealthPortSilent");
        if by_person {
            let id = world.cluster.ledger().unwrap().grants[&node].id;
            annotate(&mut world, &node, names::RELEASE_ANNOTATION, &format!("default/edge:{id}"));
        } else {
            silence(&mut world, &[]);
        }
        world.run_until(&mut operator, 120, World::is_converged).unwrap();
    }
}

#[test]
fn a_departing_node_waits_a_minute_for_a_silent_port() {
    let departures: [fn(&mut World); 2] = [
        |world| world.change(|cluster| cluster.edit_node("n1", |node| node["metadata"]["labels"]["ingress"] = "false".into())),
        |world| {
            let taints = json!([{"key": names::KARPENTER_TAINT, "effect": "NoSchedule"}]);
            world.change(|cluster| cluster.edit_node("n1", |node| node["spec"]["taints"] = taints));
        },
    ];
    let pods = |world: &World| world.cluster.pods.iter().filter(|pod| pod.node == "n1" && pod.ends_at.is_none()).count();
    for departs in departures {
        let (mut world, mut operator) = at_rest(&Value::Null, 3, 1);
        world.audit.disturbed.insert("n1".to_owned());
        silence(&mut world, &ALL);
        departs(&mut world);
        let plan = seconds(&mut world, &mut operator, 60);
        assert_eq!((pods(&world), reasons(&plan), condition(&plan, "Stalled")), (2, vec!["HealthPortSilent"], None));
        assert!(message(&plan, "n1").ends_with("after 60 s"), "{}", message(&plan, "n1"));
        seconds(&mut world, &mut operator, 20);
        assert_eq!(pods(&world), 0);
    }
    let (mut world, mut operator) = at_rest(&Value::Null, 3, 1);
    silence(&mut world, &ALL);
    world.change(|cluster| cluster.edit_resource(|resource| resource.deleting = true));
    world.run_until(&mut operator, 50, |world| world.cluster.resource.is_none()).unwrap();
}

#[test]
fn a_node_being_removed_drains_despite_its_silent_port() {
    let (mut world, mut operator) = at_rest(&Value::Null, 3, 1);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 60, |world| on(world, 2) == 1).unwrap();
    let node = granted(&world).remove(0);
    silence(&mut world, &[&node]);
    seconds(&mut world, &mut operator, 60);
    world.audit.disturbed.insert(node.clone());
    world.change(|cluster| {
        cluster.edit_node(&node, |node| node["spec"]["taints"] = json!([{"key": names::KARPENTER_TAINT, "effect": "NoSchedule"}]));
    });
    let plan = seconds(&mut world, &mut operator, 90);
    assert_eq!(plan.node_states[&node].reason.word(), "Draining");
    assert!(world.cluster.pods.iter().all(|pod| pod.node != node));
}

/// The second in which a health port is asked whether pods may change, with more time since the last look than is waited.
fn asking(more_ports: &[i64]) -> Snapshot {
    let (mut world, mut operator) = at_rest(&Value::Null, 3, 1);
    edit(&mut world, |wish| wish.image = 2);
    for _ in 0..60 {
        operator.catch_up(&world);
        let mut snapshot = operator.snapshot(&world).unwrap();
        snapshot.resource.spec.health_check_node_ports.extend(more_ports.iter().map(|port| i32::try_from(*port).unwrap()));
        if !decide(&snapshot).questions.is_empty() {
            return snapshot;
        }
        world.fair_second(&mut operator);
    }
    panic!("never asked");
}

fn is_held_silent(mut snapshot: Snapshot) -> bool {
    let first = decide(&snapshot);
    (snapshot.sights, snapshot.watched) = (first.sights.clone(), 30);
    let plan = decide(&snapshot);
    let updates = [&first, &plan].into_iter().flat_map(|plan| &plan.actions);
    let updates = updates.filter(|action| matches!(action, Action::PatchDeployment { write: Write::Update, .. })).count();
    let silent = plan.node_states.values().any(|state| state.reason.word() == "HealthPortSilent");
    assert_ne!(updates > 0, silent, "{:?}", plan.node_states);
    silent
}

#[test]
fn each_of_several_health_ports_has_to_answer() {
    let out = |port| PortAnswer { port, healthy: false, phase: Some(Phase::Claimed) };
    for (answers, silent) in [
        (vec![], true),
        (vec![out(HEALTH_PORT)], true),
        (vec![out(10081)], true),
        (vec![out(HEALTH_PORT), out(10081)], false),
        // Something else listens there, and says that nothing is to be had.
        (vec![out(HEALTH_PORT), PortAnswer { phase: None, ..out(10081) }], false),
    ] {
        let mut snapshot = asking(&[10081]);
        let asked = decide(&snapshot).questions.into_keys().next().unwrap();
        snapshot.answers.insert(asked, answers.clone());
        assert_eq!(is_held_silent(snapshot), silent, "{answers:?}");
    }
}

#[test]
fn a_node_without_an_address_counts_as_silent() {
    let mut snapshot = asking(&[]);
    let asked = decide(&snapshot).questions.into_keys().next().unwrap();
    let nodes = Arc::make_mut(&mut snapshot.nodes);
    Arc::make_mut(nodes.get_mut(&asked).unwrap()).address = None;
    assert!(decide(&snapshot).questions.is_empty());
    assert!(is_held_silent(snapshot.clone()));
    (snapshot.sights, snapshot.watched) = (decide(&snapshot).sights, 30);
    let plan = decide(&snapshot);
    assert!(message(&plan, &asked).contains("no InternalIP address"), "{}", message(&plan, &asked));
}

#[test]
fn an_ipv4_only_health_checker_is_asked_over_ipv4() {
    let (v4, v6) = ("192.0.2.7", "2001:db8::7");
    let cases = [
        (Some("0.0.0.0"), v6, Some(v4), Some(v4)),
        (Some("0.0.0.0"), v4, None, Some(v4)),
        (Some("0.0.0.0"), v6, None, None),
        (Some("::"), v6, Some(v4), Some(v6)),
        (None, v6, Some(v4), Some(v6)),
    ];
    for (bind, first, ipv4, asked_at) in cases {
        let mut snapshot = asking(&[]);
        snapshot.resource.spec.health_checker = serde_json::from_value(json!({"bindAddress": bind})).unwrap();
        let asked = decide(&snapshot).questions.into_keys().next().unwrap();
        let node = Arc::make_mut(Arc::make_mut(&mut snapshot.nodes).get_mut(&asked).unwrap());
        (node.address, node.ipv4_address) = (Some(first.into()), ipv4.map(Into::into));
        let questions = decide(&snapshot).questions;
        assert_eq!(questions.get(&asked).map(|question| question.address.as_str()), asked_at, "{bind:?} {first}");
        if asked_at.is_none() {
            assert!(is_held_silent(snapshot));
        }
    }
}

#[test]
fn pods_on_an_unready_node_stay_untouched_unless_it_drains() {
    let (mut world, mut operator) = at_rest(&Value::Null, 3, 1);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 60, |world| granted(world).len() == 1).unwrap();
    let node = granted(&world).remove(0);
    let ready =
        |world: &mut World, ready: bool| world.change(|cluster| cluster.edit_node(&node, |node| node["status"]["ready"] = ready.into()));
    ready(&mut world, false);
    let plan = seconds(&mut world, &mut operator, 120);
    assert_eq!((on(&world, 1), plan.node_states[&node].reason.word()), (3, "NodeNotReady"));
    assert_eq!(plan.status.blocked.unwrap().reason, "NodeNotReady");
    ready(&mut world, true);
    world.run_until(&mut operator, 60, |world| on(world, 2) == 1).unwrap();
    world.run_until(&mut operator, 120, World::is_converged).unwrap();

    ready(&mut world, false);
    world.audit.disturbed.insert(node.clone());
    world.change(|cluster| {
        cluster.edit_node(&node, |node| node["spec"]["taints"] = json!([{"key": names::OUT_OF_SERVICE_TAINT, "effect": "NoExecute"}]));
    });
    let replicas = |world: &World| world.cluster.deployment_on(&node).unwrap()["spec"]["replicas"].clone();
    world.run_until(&mut operator, 90, |world| replicas(world) == 0).unwrap();
}
