//! What may be written to Nodes is what the operator's flags say, whoever may edit a resource.

use crate::{
    rollout_state::{condition, edit, on, seconds},
    world::{
        World,
        cluster::{UID8, is_marked},
        settled,
        wish::{KEYS, Marks, Wish},
    },
};
use crds::names;
use planner::spec::node_rights::NodeRights;
use serde_json::json;

fn is_marked_anywhere(world: &World) -> bool {
    world.cluster.nodes.values().any(|node| KEYS.iter().any(|key| is_marked(node, key)))
}

#[test]
fn a_key_that_is_not_allowed_is_never_written() {
    for marks in [Marks::Node, Marks::Both] {
        // An annotation, and a label.
        for key in [0, 1] {
            let (mut world, mut operator) = settled(Wish { key, ..Wish::new(marks, 1) }, 3);
            operator.node_rights = Some(NodeRights::default());
            edit(&mut world, |wish| wish.image = 2);
            for _ in 0..60 {
                let plan = seconds(&mut world, &mut operator, 1);
                assert!(!is_marked_anywhere(&world), "{marks:?}");
                assert_eq!(condition(&plan, "Valid"), Some(("False", "DetachKeyNotAllowed")));
            }
            assert_eq!(on(&world, 1), 3, "the last good state keeps running");
            world.change(|cluster| cluster.edit_resource(|resource| resource.deleting = true));
            for _ in 0..60 {
                if world.cluster.resource.is_some() {
                    world.fair_second(&mut operator);
                }
                assert!(!is_marked_anywhere(&world), "{marks:?}");
            }
            assert!(world.cluster.resource.is_none(), "{marks:?}: it is deleted all the same");
            assert_eq!((world.leftovers(), &world.audit.violations), (Vec::new(), &Vec::new()));
        }
    }
}

#[test]
fn a_key_that_is_allowed_detaches_nodes() {
    for (key, allowed) in [(0, KEYS[0]), (1, "detacher.example.com/*")] {
        let (mut world, mut operator) = settled(Wish { key, ..Wish::new(Marks::Node, 1) }, 3);
        operator.node_rights = Some(NodeRights { detach_keys: vec![allowed.parse().unwrap()], ..NodeRights::default() });
        edit(&mut world, |wish| wish.image = 2);
        world.run_until(&mut operator, 60, is_marked_anywhere).unwrap();
        world.run_until(&mut operator, 120, World::is_converged).unwrap();
        assert_eq!(world.audit.violations, Vec::<String>::new());
    }
}

#[test]
fn a_mark_is_removed_after_its_key_becomes_forbidden() {
    let (mut world, mut operator) = settled(Wish::new(Marks::Node, 1), 3);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 60, is_marked_anywhere).unwrap();
    operator.node_rights = Some(NodeRights::default());
    world.run_until(&mut operator, 120, |world| !is_marked_anywhere(world)).unwrap();
    seconds(&mut world, &mut operator, 60);
    assert!(!is_marked_anywhere(&world) && on(&world, 2) <= 1);
    assert_eq!(world.audit.violations, Vec::<String>::new());
}

#[test]
fn a_mark_goes_although_its_key_was_forbidden_and_replaced() {
    for (former, newer) in [(0, 2), (1, 3)] {
        let (mut world, mut operator) = settled(Wish { key: former, ..Wish::new(Marks::Node, 1) }, 3);
        edit(&mut world, |wish| wish.image = 2);
        world.run_until(&mut operator, 60, is_marked_anywhere).unwrap();
        operator.node_rights = Some(NodeRights {
            detach_keys: vec![KEYS[newer].trim_start_matches(names::LABEL_MARK).parse().unwrap()],
            ..NodeRights::default()
        });
        edit(&mut world, |wish| wish.key = newer);
        world.run_until(&mut operator, 240, World::is_converged).unwrap();
        assert!(!is_marked_anywhere(&world), "{former}");
        assert_eq!((on(&world, 2), &world.audit.violations), (3, &Vec::new()), "{former}");
    }
}

#[test]
fn a_key_forbidden_after_the_grant_is_not_written() {
    for (marks, leaves) in [(Marks::Node, false), (Marks::Node, true), (Marks::Both, false)] {
        let (mut world, mut operator) = settled(Wish::new(marks, 1), 3);
        if leaves {
            world.change(|cluster| cluster.edit_node("n0", |node| node["metadata"]["labels"]["ingress"] = "false".into()));
        } else {
            edit(&mut world, |wish| wish.image = 2);
        }
        let granted = |world: &World| world.cluster.ledger().is_some_and(|ledger| !ledger.grants.is_empty());
        world.run_until(&mut operator, 60, granted).unwrap();
        assert!(!is_marked_anywhere(&world), "it comes with the next write");
        operator.node_rights = Some(NodeRights::default());
        world.audit.forbids_node_marks = true;
        for _ in 0..60 {
            world.fair_second(&mut operator);
            assert!(!is_marked_anywhere(&world), "{marks:?} {leaves}");
        }
        assert_eq!(world.audit.violations, Vec::<String>::new());
        assert!(!granted(&world), "{marks:?} {leaves}: {:?}", world.cluster.ledger());
    }
}

/// A kubelet may annotate its own Node, and must not change such a label there.
#[test]
fn a_forged_entry_changes_no_forbidden_label() {
    const LABEL: &str = "node-restriction.kubernetes.io/tenant";
    for marks in [Marks::Token, Marks::Both, Marks::Degrade] {
        for (value, previous) in [("theirs", json!("other")), ("theirs", json!(null)), ("other", json!(null))] {
            let (mut world, mut operator) = settled(Wish::new(marks, 1), 3);
            operator.node_rights = Some(NodeRights { detach_keys: vec![KEYS[0].parse().unwrap()], ..NodeRights::default() });
            let key = format!("{}{LABEL}", names::LABEL_MARK);
            let entry = json!({"id": 1, "phase": "Detached", "key": key, "value": value, "previous": previous, "time": 0});
            let holders = json!({UID8: entry}).to_string();
            world.change(|cluster| {
                cluster.edit_node("n1", |node| {
                    node["metadata"]["labels"][LABEL] = "theirs".into();
                    node["metadata"]["annotations"][names::HOLDERS_ANNOTATION] = holders.into();
                });
            });
            edit(&mut world, |wish| wish.image = 2);
            for _ in 0..200 {
                world.fair_second(&mut operator);
                assert_eq!(world.cluster.nodes["n1"]["metadata"]["labels"][LABEL], "theirs", "{marks:?} {value} {previous}");
            }
            assert_eq!(on(&world, 2), 3, "{marks:?} {value} {previous}");
        }
    }
}

#[test]
fn a_taint_that_is_not_allowed_holds_up_no_rollout() {
    let (mut world, mut operator) = settled(Wish::new(Marks::Token, 1), 2);
    let taint = json!({"key": "node-role.kubernetes.io/control-plane", "effect": "NoExecute"});
    let wanted = Some(serde_json::from_value(taint.clone()).unwrap());
    world.change(|cluster| cluster.edit_resource(|resource| resource.spec.node_readiness_taint = wanted));
    for (rights, reason) in [(NodeRights::all(), "Accepted"), (NodeRights::default(), "TaintNotAllowed")] {
        operator.node_rights = Some(rights);
        let plan = seconds(&mut world, &mut operator, 2);
        assert_eq!(condition(&plan, "Valid"), Some(("True", reason)));
    }
    // A kubelet may have put it on: its pods bear it as before, and stay.
    world.change(|cluster| cluster.edit_node("n0", |node| node["spec"]["taints"] = json!([taint])));
    for _ in 0..60 {
        world.fair_second(&mut operator);
    }
    assert!(world.cluster.deployments.contains_key("edge-n0") && world.cluster.ledger().unwrap().grants.is_empty());
}
