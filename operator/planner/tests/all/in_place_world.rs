//! Updates in place in a whole cluster, second by second, and conditions of pods that nobody keeps any more.

use std::sync::Arc;

use crate::{
    rollout_state::{reasons, seconds},
    world,
};

use world::{
    World,
    operator::Operator,
    settled,
    wish::{ALL_MARKS, Marks, Wish},
};

fn staying(marks: Marks) -> Wish {
    Wish { pod_update: "InPlaceIfPossible", ..Wish::new(marks, 1) }
}

/// UIDs of the pods of a node, and of the `ReplicaSet` that they are of.
fn pods_of(world: &World, node: &str) -> Vec<(String, String)> {
    world.cluster.pods.iter().filter(|pod| pod.node == node).map(|pod| (pod.uid.clone(), pod.set.clone())).collect()
}

fn roll(world: &mut World, operator: &mut Operator, marks: Marks, image: u8) {
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = image));
    world.run_until(operator, 300, World::is_converged).unwrap_or_else(|why| panic!("{marks:?} {why}"));
    assert_eq!(world.audit.violations, Vec::<String>::new(), "{marks:?}");
}

#[test]
fn pods_that_can_stay_do_in_every_mode() {
    for marks in ALL_MARKS {
        let (mut world, mut operator) = settled(staying(marks), 2);
        let before = [pods_of(&world, "n0"), pods_of(&world, "n1")];
        roll(&mut world, &mut operator, marks, 2);
        assert_eq!([pods_of(&world, "n0"), pods_of(&world, "n1")], before, "{marks:?}");
        assert!(world.audit.seen.contains("updated in place"));
    }
}

#[test]
fn a_former_replica_set_with_wanted_images_takes_the_pods() {
    for marks in ALL_MARKS {
        let (mut world, mut operator) = settled(staying(marks), 2);
        roll(&mut world, &mut operator, marks, 2);
        let former = world.cluster.sets.iter().find(|set| set.node == "n0").unwrap().template.clone();
        roll(&mut world, &mut operator, marks, 1);
        world.change(|cluster| {
            cluster.keeps_sets = true;
            cluster.leave_set("n0", former);
        });
        let (former, before) = (world.cluster.sets[0].uid.clone(), pods_of(&world, "n1"));
        roll(&mut world, &mut operator, marks, 2);
        let after = pods_of(&world, "n0");
        assert!(after.len() == 2 && after.iter().all(|(_, set)| *set == former), "{marks:?}: {after:?}");
        assert_eq!(pods_of(&world, "n1"), before, "{marks:?}: nothing is in the way there");
    }
}

#[test]
fn the_former_replica_set_reverts_a_change_that_recreated_pods() {
    for marks in ALL_MARKS {
        let (mut world, mut operator) = settled(staying(marks), 1);
        world.change(|cluster| cluster.keeps_sets = true);
        let before = pods_of(&world, "n0");
        let mut edit = |version: &str| {
            let environment = serde_json::json!([{"name": "VERSION", "value": version}]);
            world.change(|cluster| {
                cluster.edit_resource(|resource| {
                    resource.spec.template["spec"]["containers"][0]["env"] = environment.clone();
                    resource.generation += 1;
                });
            });
            world.run_until(&mut operator, 300, World::is_converged).unwrap_or_else(|why| panic!("{marks:?} {why}"));
            assert_eq!(world.audit.violations, Vec::<String>::new(), "{marks:?}");
            pods_of(&world, "n0")
        };
        let (first, second, again) = (edit("1"), edit("2"), edit("1"));
        assert!(first.iter().all(|(_, set)| *set != before[0].1) && second.iter().all(|(_, set)| *set != first[0].1), "{marks:?}");
        assert!(again.len() == 2 && again.iter().all(|(_, set)| *set == first[0].1), "{marks:?}: {again:?}");
        // Only the image differs from here on, and the former ReplicaSets of other environments are not in its way.
        let uids = pods_of(&world, "n0");
        world.change(|cluster| {
            cluster.edit_resource(|resource| {
                resource.spec.template["spec"]["containers"][0]["image"] = "app:2".into();
                resource.generation += 1;
            });
        });
        world.run_until(&mut operator, 300, World::is_converged).unwrap_or_else(|why| panic!("{marks:?} {why}"));
        assert_eq!(pods_of(&world, "n0"), uids, "{marks:?}");
    }
}

#[test]
fn an_in_place_only_node_needing_recreation_goes_back_once() {
    for marks in [Marks::Deployment, Marks::Both] {
        let (mut world, mut operator) = settled(Wish { pod_update: "InPlaceOnly", ..staying(marks) }, 2);
        world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
        let claimed = |world: &World| {
            let token = |deployment: &serde_json::Value| deployment["metadata"]["labels"][crds::names::TOKEN_LABEL].to_string();
            world.cluster.deployments.values().any(|deployment| token(deployment).contains(".Claimed."))
        };
        world.run_until(&mut operator, 60, claimed).unwrap_or_else(|why| panic!("{marks:?} {why}"));
        let before = pods_of(&world, "n0");
        change_environment(&mut world);
        seconds(&mut world, &mut operator, 60);
        let ids = world.cluster.ledger().unwrap().next_id;
        let plan = seconds(&mut world, &mut operator, 60);
        let ledger = world.cluster.ledger().unwrap();
        assert_eq!((ledger.next_id, ledger.grants.len()), (ids, 0), "{marks:?}: {:?}", ledger.grants);
        assert_eq!(reasons(&plan), ["NotInPlace"], "{marks:?}");
        assert!(!claimed(&world), "{marks:?}: it serves");
        assert_eq!(pods_of(&world, "n0"), before, "{marks:?}");
    }
}

#[test]
fn an_image_that_never_starts_is_rolled_back_in_place() {
    for marks in ALL_MARKS {
        let (mut world, mut operator) = settled(staying(marks), 3);
        let nodes = ["n0", "n1", "n2"];
        let before = nodes.map(|node| pods_of(&world, node));
        world.change(|cluster| {
            cluster.edit_wish(|wish| {
                wish.image = 99;
                wish.rollout = serde_json::json!({"nodeDeadlineSeconds": 8, "autoRollback": true, "steps": [{"nodes": 1, "soak": "2s"}]});
            });
        });
        let back = |world: &World| {
            let ledger = world.cluster.ledger().unwrap();
            let ready = world.cluster.pods.iter().all(|pod| pod.ready && pod.template["spec"]["containers"][0]["image"] == "app:1");
            ledger.rolled_back.is_some() && ledger.grants.is_empty() && ready
        };
        world.run_until(&mut operator, 300, back).unwrap_or_else(|why| panic!("{marks:?} {why}"));
        assert_eq!(nodes.map(|node| pods_of(&world, node)), before, "{marks:?}: no pod was made");
        assert!(world.cluster.pods.iter().filter(|pod| pod.restarts > 0).count() <= 2, "{marks:?}: of one node");
        assert_eq!(world.audit.violations, Vec::<String>::new(), "{marks:?}");
    }
}

#[test]
fn an_evicted_former_pod_does_not_concern_in_place_updates() {
    let (mut world, mut operator) = settled(staying(Marks::Token), 1);
    world.change(|cluster| {
        cluster.edit_wish(|wish| {
            wish.image = 2;
            wish.rollout = serde_json::json!({"nodeDeadlineSeconds": 8});
        });
    });
    operator.catch_up(&world);
    let former = operator.snapshot(&world).unwrap().pods["n0"][0].as_ref().clone();
    let evicted = Arc::new(planner::facts::PodFacts {
        name: "edge-n0-evicted".into(),
        ready: false,
        ended: true,
        gated: None,
        trouble: Some(("Evicted".into(), "The node was low on resource: memory".into())),
        ..former
    });
    let (mut seen, mut failed) = (0, None);
    for _ in 0..60 {
        operator.catch_up(&world);
        let mut snapshot = operator.snapshot(&world).unwrap();
        snapshot.pods.get_mut("n0").unwrap().push(Arc::clone(&evicted));
        let plan = planner::decide(&snapshot);
        if let Some(planner::Reason::UpdatingInPlace { trouble, .. }) = plan.node_states.get("n0").map(|state| &state.reason) {
            assert_eq!(*trouble, None);
            seen += 1;
        }
        let rollout = plan.status.rollout.unwrap().rollout_state.unwrap();
        failed = failed.or_else(|| rollout.failed.get("n0").map(|failure| failure.reason.clone()));
        world.fair_second(&mut operator);
        // Its pods are never ready again.
        let wanted = world.cluster.wish.revision_of(2);
        world.change(|cluster| {
            cluster.pods.iter_mut().filter(|pod| pod.revision() == wanted).for_each(|pod| pod.ready_at = i64::MAX);
        });
    }
    assert!(seen > 5, "{seen} s in place");
    assert_eq!(failed.as_deref(), Some("NotReady"));
}

#[test]
fn a_foreign_deployment_change_is_repaired_by_recreating_pods() {
    for marks in ALL_MARKS {
        let (mut world, mut operator) = settled(staying(marks), 2);
        let before = pods_of(&world, "n1");
        world.change(|cluster| {
            cluster
                .edit_deployment("edge-n0", |deployment| deployment["spec"]["template"]["spec"]["containers"][0]["image"] = "app:7".into());
        });
        let repaired = |world: &World| {
            let wanted = world.cluster.pods.iter().all(|pod| pod.template["spec"]["containers"][0]["image"] == "app:1");
            world.is_converged()
                && wanted
                && world.cluster.deployments["edge-n0"]["spec"]["template"]["spec"]["containers"][0]["image"] == "app:1"
        };
        // Its controller acts before anybody else does: that is no update of ours.
        world.audit.violations.clear();
        world.run_until(&mut operator, 300, repaired).unwrap_or_else(|why| panic!("{marks:?} {why}"));
        let repaired = [pods_of(&world, "n0"), pods_of(&world, "n1")];
        assert_eq!(repaired[1], before, "{marks:?}");
        roll(&mut world, &mut operator, marks, 2);
        assert_eq!([pods_of(&world, "n0"), pods_of(&world, "n1")], repaired, "{marks:?}");
    }
}

#[test]
fn a_pod_that_dies_while_updated_in_place_returns_updated() {
    for second in 0..25 {
        let (mut world, mut operator) = settled(staying(Marks::Token), 1);
        let sets = pods_of(&world, "n0")[0].1.clone();
        world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
        for _ in 0..second {
            world.fair_second(&mut operator);
        }
        world.audit.disturbed.insert("n0".to_owned());
        world.change(|cluster| cluster.pods.remove(0));
        world.run_until(&mut operator, 300, World::is_converged).unwrap_or_else(|why| panic!("after {second} s: {why}"));
        assert_eq!(world.audit.violations, Vec::<String>::new(), "after {second} s");
        let after = pods_of(&world, "n0");
        assert!(after.len() == 2 && after.iter().all(|(_, set)| *set == sets), "after {second} s: {after:?}");
    }
}

#[test]
fn only_the_condition_of_a_removed_gate_becomes_true() {
    let (world, mut operator) = settled(Wish::new(Marks::Token, 1), 1);
    operator.catch_up(&world);
    let mut snapshot = operator.snapshot(&world).unwrap();
    let mut template = |types: &[&str]| {
        let gates: Vec<_> = types.iter().map(|type_| serde_json::json!({"conditionType": type_})).collect();
        let deployment = Arc::make_mut(snapshot.deployments.get_mut("n0").unwrap());
        let mut spec = deployment.spec.to_value();
        spec["template"]["spec"]["readinessGates"] = gates.into();
        deployment.spec = spec.into();
        for pod in snapshot.pods.get_mut("n0").unwrap().iter_mut().map(Arc::make_mut) {
            let conditions = types.iter().map(|type_| (*type_).to_owned()).collect();
            pod.unmet = Some(Box::new(planner::facts::Unmet { uid: "u".into(), resource_version: "7".into(), conditions }));
        }
        snapshot.clone()
    };
    let snapshot = template(&["example.com/gone", "example.com/kept"]);
    let opened = |kept: Option<&[&str]>| -> Vec<_> {
        let mut snapshot = snapshot.clone();
        snapshot.gates.kept = kept.map(|kept| kept.iter().map(|type_| (*type_).to_owned()).collect());
        let patches = planner::decide(&snapshot).actions.into_iter().filter_map(|action| match action {
            planner::Action::PatchPodStatus { patch, .. } => Some(patch),
            _ => None,
        });
        patches.collect()
    };
    assert_eq!(opened(None), Vec::<serde_json::Value>::new(), "gates that cannot be read may keep any of them");
    let patches = opened(Some(&["example.com/kept"]));
    assert_eq!(patches.len(), 2, "one for each pod");
    for patch in patches {
        assert_eq!(patch["metadata"], serde_json::json!({"uid": "u", "resourceVersion": "7"}));
        let conditions = patch["status"]["conditions"].as_array().unwrap();
        assert_eq!((conditions.len(), &conditions[0]["type"], &conditions[0]["status"]), (1, &"example.com/gone".into(), &"True".into()));
    }
    assert_eq!(opened(Some(&["example.com/kept", "example.com/gone"])), Vec::<serde_json::Value>::new());
}

#[test]
fn an_unready_in_place_only_node_goes_back_once() {
    for marks in [Marks::Deployment, Marks::Both] {
        let (mut world, mut operator) = settled(Wish { pod_update: "InPlaceOnly", ..staying(marks) }, 2);
        world.audit.disturbed.insert("n0".to_owned());
        world.change(|cluster| cluster.pods.iter_mut().find(|pod| pod.node == "n0").unwrap().ready_at = i64::MAX);
        world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
        let claimed = |world: &World| {
            let label = |deployment: &serde_json::Value| deployment["metadata"]["labels"][crds::names::TOKEN_LABEL].to_string();
            label(&world.cluster.deployments["edge-n0"]).contains(".Claimed.")
        };
        world.run_until(&mut operator, 60, claimed).unwrap_or_else(|why| panic!("{marks:?} {why}"));
        change_environment(&mut world);
        seconds(&mut world, &mut operator, 60);
        let ids = world.cluster.ledger().unwrap().next_id;
        seconds(&mut world, &mut operator, 60);
        assert_eq!(world.cluster.ledger().unwrap().next_id, ids, "{marks:?}");
        world.change(|cluster| cluster.pods.iter_mut().for_each(|pod| pod.ready_at = pod.ready_at.min(cluster.now)));
        let plan = seconds(&mut world, &mut operator, 60);
        assert_eq!((reasons(&plan), world.cluster.ledger().unwrap().grants.len()), (vec!["NotInPlace"], 0), "{marks:?}");
    }
}

/// Asks for a change that cannot be made in place.
fn change_environment(world: &mut World) {
    world.change(|cluster| {
        cluster.edit_resource(|resource| {
            resource.spec.template["spec"]["containers"][0]["env"] = serde_json::json!([{"name": "VERSION", "value": "1"}]);
            resource.generation += 1;
        });
    });
}

#[test]
fn a_node_without_pods_gets_them_despite_in_place_only() {
    let (mut world, mut operator) = settled(Wish { pod_update: "InPlaceOnly", ..staying(Marks::Both) }, 3);
    change_environment(&mut world);
    let taint = |taints: serde_json::Value| move |node: &mut serde_json::Value| node["spec"]["taints"] = taints;
    let drained = serde_json::json!([{"key": crds::names::KARPENTER_TAINT, "effect": "NoSchedule"}]);
    world.change(|cluster| cluster.edit_node("n1", taint(drained)));
    world.run_until(&mut operator, 120, |world| pods_of(world, "n1").is_empty()).unwrap();
    world.change(|cluster| cluster.edit_node("n1", taint(serde_json::json!([]))));
    world.run_until(&mut operator, 120, |world| pods_of(world, "n1").len() == 2).unwrap();
    seconds(&mut world, &mut operator, 30);
    assert_eq!(pods_of(&world, "n1").len(), 2);
}

#[test]
fn in_place_only_does_not_hinder_repair_of_deployments() {
    let (mut world, mut operator) = settled(Wish { pod_update: "InPlaceOnly", ..staying(Marks::Both) }, 2);
    world.audit.disturbed.insert("n0".to_owned());
    world.change(|cluster| cluster.pods.iter_mut().find(|pod| pod.node == "n0").unwrap().ready_at = i64::MAX);
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    world.run_until(&mut operator, 60, |world| !world.cluster.ledger().unwrap().grants.is_empty()).unwrap();
    change_environment(&mut world);
    seconds(&mut world, &mut operator, 30);
    world.change(|cluster| {
        cluster.edit_deployment("edge-n0", |deployment| deployment["spec"]["template"]["spec"]["containers"][0]["image"] = "app:7".into());
        cluster.edit_wish(|wish| wish.image = 1);
    });
    world.run_until(&mut operator, 300, World::is_converged).unwrap();
}

/// An update in place is over but for its token, and a pod is of the former template: its `ReplicaSet`'s controller had not seen the
/// other one when it made the pod.
fn with_a_former_pod() -> (World, Operator) {
    let (mut world, mut operator) = settled(staying(Marks::Token), 1);
    let former = Arc::clone(&world.cluster.pods[0].template);
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    let goes_on = |world: &World| world.cluster.deployments["edge-n0"]["spec"]["template"]["spec"]["containers"][0]["image"] == "app:2";
    world.run_until(&mut operator, 120, goes_on).unwrap();
    world.audit.disturbed.insert("n0".to_owned());
    world.change(|cluster| cluster.pods[0].template = former);
    (world, operator)
}

#[test]
fn a_former_pod_of_the_current_replica_set_is_replaced() {
    let (mut world, mut operator) = with_a_former_pod();
    let before = pods_of(&world, "n0");
    world.run_until(&mut operator, 300, World::is_converged).unwrap();
    assert_eq!(world.audit.violations, Vec::<String>::new());
    let after = pods_of(&world, "n0");
    assert!(after.len() == 2 && !after.contains(&before[0]) && after.contains(&before[1]), "{before:?}: {after:?}");
}

#[test]
fn a_former_pod_is_deleted_only_as_it_was_seen() {
    let (world, mut operator) = with_a_former_pod();
    operator.catch_up(&world);
    let planned = operator.plan(&world).unwrap();
    let deleted = planned.plan.actions.iter().filter_map(|action| match action {
        planner::Action::DeletePod { name, uid, resource_version } => Some((name.clone(), uid.clone(), resource_version.clone())),
        _ => None,
    });
    let deleted: Vec<_> = deleted.collect();
    let wanted = world.cluster.wish.revision_of(2);
    let former = planned.snapshot.pods["n0"].iter().find(|pod| pod.revision != wanted).unwrap();
    let gated = former.gated.as_ref().unwrap();
    assert_eq!(deleted, [(former.name.clone(), Some(gated.uid.clone()), Some(gated.resource_version.clone()))]);
}
