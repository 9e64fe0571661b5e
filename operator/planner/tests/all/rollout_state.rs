//! The course of a rollout: partition, failures, rollback, history, drain; each on a whole simulated cluster.

use crate::hard_cases::pods_of;
use crate::world;

use crds::{ledger::GrantReason, names};
use planner::{Plan, decide};
use serde_json::{Value, json};
use world::{
    World,
    cluster::{Cluster, revision},
    operator::Operator,
    wish::{Marks, Wish},
};

/// A cluster at rest in which every node runs image 1.
pub fn at_rest(rollout: &Value, nodes: usize, budget: i32) -> (World, Operator) {
    let mut world = World::new(Wish { rollout: rollout.clone(), ..Wish::new(Marks::Token, budget) }, nodes);
    let mut operator = Operator::default();
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
    (world, operator)
}

pub fn edit(world: &mut World, edit: impl FnOnce(&mut Wish)) {
    world.change(|cluster| cluster.edit_wish(edit));
}

/// Nodes whose Deployment carries the revision of this image.
pub fn on(world: &World, image: u8) -> usize {
    let wanted = world.cluster.wish.revision_of(image);
    world.cluster.deployments.values().filter(|deployment| revision(&deployment["spec"]["template"]) == wanted).count()
}

pub fn seconds(world: &mut World, operator: &mut Operator, seconds: usize) -> Plan {
    let mut last = None;
    for _ in 0..seconds {
        last = world.fair_second(operator).or(last);
    }
    assert_eq!(world.audit.violations, Vec::<String>::new());
    last.unwrap()
}

pub fn reasons(plan: &Plan) -> Vec<&'static str> {
    let mut reasons: Vec<_> = plan.node_states.values().map(|state| state.reason.word()).collect();
    reasons.sort_unstable();
    reasons.dedup();
    reasons
}

pub fn condition<'p>(plan: &'p Plan, type_: &str) -> Option<(&'p str, &'p str)> {
    let found = plan.status.conditions.iter().find(|condition| condition.type_ == type_)?;
    Some((found.status.as_str(), found.reason.as_str()))
}

pub fn annotate(world: &mut World, node: &str, key: &str, value: &str) {
    world.change(|cluster| cluster.edit_node(node, |node| node["metadata"]["annotations"][key] = value.into()));
}

#[test]
fn a_partition_keeps_its_share_of_nodes_rounded_up() {
    let (mut world, mut operator) = at_rest(&json!({"partition": "50%"}), 5, 2);
    edit(&mut world, |wish| wish.image = 2);
    let plan = seconds(&mut world, &mut operator, 120);
    assert_eq!((on(&world, 1), on(&world, 2)), (3, 2));
    assert_eq!(reasons(&plan), ["Partition"]);
    assert_eq!(condition(&plan, "Progressing"), Some(("False", "Partition")));
    assert_eq!(plan.status.blocked.unwrap().reason, "Partition");
    edit(&mut world, |wish| wish.rollout = Value::Null);
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
}

#[test]
fn a_proving_rollout_goes_on_beside_nodes_kept_by_partition() {
    let (mut world, mut operator) = at_rest(&json!({"partition": 1, "provenAfterSeconds": 60}), 4, 1);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 240, |world| on(world, 2) == 1).unwrap();
    let waits = |plan: &Plan, word| plan.node_states.values().any(|state| state.reason.word() == word);
    let plan = seconds(&mut world, &mut operator, 10);
    assert!(waits(&plan, "Proving") && waits(&plan, "Partition"), "{:#?}", plan.node_states);
    assert_eq!((condition(&plan, "Progressing"), &plan.status.blocked), (Some(("True", "RollingOut")), &None));
    world.run_until(&mut operator, 600, |world| on(world, 2) == 3).unwrap();
    let plan = seconds(&mut world, &mut operator, 90);
    assert_eq!(condition(&plan, "Progressing"), Some(("False", "Partition")));
}

#[test]
fn a_partitioned_rollout_reports_that_its_revision_is_proving() {
    let (mut world, mut operator) = at_rest(&json!({"partition": 3, "provenAfterSeconds": 60}), 4, 1);
    edit(&mut world, |wish| wish.image = 2);
    let is_through = |world: &World| on(world, 2) == 1 && world.cluster.ledger().is_some_and(|ledger| ledger.grants.is_empty());
    world.run_until(&mut operator, 240, is_through).unwrap();
    let plan = seconds(&mut world, &mut operator, 10);
    assert_eq!(reasons(&plan), ["Partition"]);
    assert_eq!((condition(&plan, "Progressing"), &plan.status.blocked), (Some(("True", "Proving")), &None));
    assert_eq!(condition(&plan, "Ready"), Some(("False", "Proving")));
    // A node proves nothing while a person leaves it out, or after it broke.
    let updated = ["n0", "n1", "n2", "n3"].into_iter().find(|node| !plan.node_states.contains_key(*node)).unwrap();
    annotate(&mut world, updated, names::SKIP_ANNOTATION, "default/edge");
    let plan = seconds(&mut world, &mut operator, 90);
    assert_eq!(condition(&plan, "Progressing"), Some(("False", "Partition")));
    annotate(&mut world, updated, names::SKIP_ANNOTATION, "");
    let plan = seconds(&mut world, &mut operator, 5);
    assert_eq!(condition(&plan, "Progressing"), Some(("True", "Proving")));
    world.change(|cluster| {
        let now = cluster.now;
        pods_of(cluster, updated).for_each(|pod| {
            pod.crash();
            pod.ready_at = now + 3;
        });
    });
    for second in 0..60 {
        let plan = seconds(&mut world, &mut operator, 1);
        assert_ne!(condition(&plan, "Progressing"), Some(("True", "Proving")), "{second} s after it broke");
    }
    let plan = seconds(&mut world, &mut operator, 90);
    assert_eq!(condition(&plan, "Progressing"), Some(("False", "Partition")));
    assert_eq!(condition(&plan, "Ready"), Some(("True", "Partition")));
}

#[test]
fn nodes_kept_by_a_partition_are_repaired_with_their_template() {
    let (mut world, mut operator) = at_rest(&json!({"partition": "100%"}), 2, 1);
    edit(&mut world, |wish| wish.image = 2);
    seconds(&mut world, &mut operator, 10);
    world.change(|cluster| {
        cluster.edit_deployment("edge-n0", |deployment| deployment["spec"]["template"]["spec"]["containers"][0]["image"] = "evil:1".into());
    });
    seconds(&mut world, &mut operator, 60);
    let image = |world: &World| world.cluster.deployments["edge-n0"]["spec"]["template"]["spec"]["containers"][0]["image"].clone();
    assert_eq!(image(&world), "app:1");
    edit(&mut world, |wish| wish.pods = 3);
    seconds(&mut world, &mut operator, 60);
    assert_eq!(world.cluster.deployments["edge-n1"]["spec"]["replicas"], 3);
    assert_eq!(on(&world, 1), 2);
}

#[test]
fn a_raised_partition_turns_back_nodes_with_unchanged_pods() {
    let (mut world, mut operator) = at_rest(&Value::Null, 4, 1);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 30, |world| world.cluster.ledger().is_some_and(|ledger| !ledger.grants.is_empty())).unwrap();
    edit(&mut world, |wish| wish.rollout = json!({"partition": 4}));
    seconds(&mut world, &mut operator, 60);
    assert_eq!(on(&world, 1), 4);
    assert!(world.cluster.ledger().unwrap().grants.is_empty());
}

#[test]
fn a_step_with_labels_reaches_these_nodes_alone() {
    let (mut world, mut operator) = at_rest(&json!({"steps": [{"nodeSelector": {"canary": "true"}, "pause": true}]}), 5, 2);
    world.change(|cluster| cluster.edit_node("n3", |node| node["metadata"]["labels"]["canary"] = "true".into()));
    edit(&mut world, |wish| wish.image = 2);
    seconds(&mut world, &mut operator, 100);
    let wanted = world.cluster.wish.revision_of(2);
    let reached: Vec<_> = world
        .cluster
        .deployments
        .iter()
        .filter(|(_, found)| revision(&found["spec"]["template"]) == wanted)
        .map(|(name, _)| name)
        .collect();
    assert_eq!(reached, ["edge-n3"]);
}

#[test]
fn nodes_joining_under_an_unproven_canary_run_the_proven_revision() {
    let (mut world, mut operator) = at_rest(&json!({"steps": [{"nodes": 2, "pause": true}]}), 4, 2);
    edit(&mut world, |wish| wish.image = 2);
    seconds(&mut world, &mut operator, 60);
    assert_eq!(on(&world, 2), 2);
    for node in ["n4", "n5", "n6", "n7"] {
        world.change(|cluster| cluster.join(node));
    }
    seconds(&mut world, &mut operator, 60);
    assert_eq!((on(&world, 1), on(&world, 2)), (6, 2));
}

#[test]
fn a_canary_whose_pods_restart_more_often_than_allowed_halts() {
    let steps = json!({"steps": [{"nodes": 1, "soak": "60s", "maxRestarts": 0}]});
    let (mut world, mut operator) = at_rest(&steps, 4, 2);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 60, |world| on(world, 2) == 1).unwrap();
    seconds(&mut world, &mut operator, 20);
    let canary = world.cluster.wish.revision_of(2);
    world.change(|cluster| cluster.pods.iter_mut().filter(|pod| pod.revision() == canary).for_each(|pod| pod.restarts = 1));
    let plan = seconds(&mut world, &mut operator, 120);
    assert_eq!(on(&world, 2), 1);
    assert_eq!(condition(&plan, "Progressing"), Some(("False", "MaxFailedNodes")));
    assert_eq!(plan.status.blocked.as_ref().unwrap().reason, "MaxFailedNodes");
    assert_eq!(plan.status.nodes.failed, 1);
    // A person has looked at it.
    let node = world.cluster.ledger().unwrap().rollout_state.as_ref().unwrap().failed.keys().next().unwrap().clone();
    annotate(&mut world, &node, names::RETRY_ANNOTATION, "1");
    world.run_until(&mut operator, 240, World::is_converged).unwrap();
}

#[test]
fn a_failed_node_keeps_its_reason_despite_new_pod_trouble() {
    let (mut world, mut operator) = at_rest(&json!({"nodeDeadlineSeconds": 30}), 3, 1);
    edit(&mut world, |wish| wish.image = 99);
    seconds(&mut world, &mut operator, 120);
    let failed = world.cluster.ledger().unwrap().grants.keys().next().unwrap().clone();
    let mut snapshot = operator.snapshot(&world).unwrap();
    for pod in snapshot.pods.get_mut(&failed).unwrap().iter_mut().map(std::sync::Arc::make_mut) {
        pod.trouble = Some(("CrashLoopBackOff".into(), "back-off 5m0s".into()));
    }
    let plan = decide(&snapshot);
    let state = &plan.node_states[&failed];
    assert_eq!((state.phase, state.reason.word()), (crds::status::NodePhase::Failed, "NotReady"));
    assert!(state.reason.message().contains("CrashLoopBackOff: back-off 5m0s"), "{}", state.reason.message());
}

#[test]
fn a_rollout_that_allows_more_failures_goes_on_past_one() {
    for proven_after in [0, 30] {
        let rollout = json!({"nodeDeadlineSeconds": 20, "maxFailedNodes": 2, "provenAfterSeconds": proven_after});
        let (mut world, mut operator) = at_rest(&rollout, 4, 3);
        edit(&mut world, |wish| wish.image = 2);
        let runs = |world: &World| {
            let wanted = world.cluster.wish.revision_of(2);
            world.cluster.pods.iter().find(|pod| pod.revision() == wanted).map(|pod| pod.node.clone())
        };
        world.run_until(&mut operator, 30, |world| runs(world).is_some()).unwrap();
        let stuck = runs(&world).unwrap();
        let mut proves = 0;
        for _ in 0..120 {
            world.change(|cluster| {
                let wanted = cluster.wish.revision_of(2);
                let pods = cluster.pods.iter_mut().filter(|pod| pod.node == stuck && pod.revision() == wanted);
                pods.for_each(|pod| pod.ready_at = i64::MAX);
            });
            let plan = seconds(&mut world, &mut operator, 1);
            let failed = plan.status.nodes.failed > 0;
            if failed && reasons(&plan).contains(&"Proving") {
                proves += 1;
                assert_eq!(condition(&plan, "Stalled"), None, "time alone lets the others go on");
                assert_eq!(condition(&plan, "Degraded").unwrap().0, "True");
            }
        }
        assert_eq!(on(&world, 2), 4, "{proven_after} s");
        assert_eq!(proves > 0, proven_after > 0, "{proves} s of proof");
        assert_eq!(world.cluster.ledger().unwrap().grants.keys().collect::<Vec<_>>(), [&stuck]);
        // Nobody can tell whether it is the revision or the node: the way back stays what it was.
        let plan = seconds(&mut world, &mut operator, 1);
        assert_eq!(plan.status.revisions.current, world.cluster.wish.revision_of(1));
    }
}

#[test]
fn a_failed_revision_is_rolled_back_within_the_held_slots() {
    let (mut world, mut operator) = at_rest(&json!({"nodeDeadlineSeconds": 20, "autoRollback": true}), 5, 2);
    edit(&mut world, |wish| wish.image = 99);
    let mut most = 0;
    for _ in 0..200 {
        seconds(&mut world, &mut operator, 1);
        most = most.max(on(&world, 99));
    }
    assert_eq!((most, on(&world, 1), on(&world, 99)), (2, 5, 0));
    let plan = seconds(&mut world, &mut operator, 1);
    assert_eq!(condition(&plan, "RolledBack"), Some(("True", "RevisionFailed")));
    let revisions = &plan.status.revisions;
    assert_eq!((&revisions.effective, &revisions.current), (&world.cluster.wish.revision_of(1), &world.cluster.wish.revision_of(1)));
    assert_eq!(revisions.update, world.cluster.wish.revision_of(99));
    assert!(world.cluster.ledger().unwrap().grants.is_empty());
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 240, World::is_converged).unwrap();
    let plan = seconds(&mut world, &mut operator, 2);
    assert_eq!(condition(&plan, "RolledBack"), None);
}

#[test]
fn no_rollback_goes_to_a_revision_that_the_spec_contradicts() {
    let (mut world, mut operator) = at_rest(&json!({"nodeDeadlineSeconds": 20, "autoRollback": true}), 3, 1);
    // Two pods of a node can have no host port.
    let port = |cluster: &mut Cluster, ports: Value, pods: i32| {
        cluster.edit_resource(|resource| {
            resource.spec.template["spec"]["containers"][0]["ports"] = ports;
            resource.spec.pods_per_node = pods;
            resource.generation += 1;
        });
    };
    world.change(|cluster| port(cluster, json!([{"containerPort": 80, "hostPort": 8080}]), 1));
    seconds(&mut world, &mut operator, 120);
    let former = seconds(&mut world, &mut operator, 1).status.revisions.current;
    world.change(|cluster| {
        port(cluster, json!([]), 2);
        cluster.edit_resource(|resource| resource.spec.template["spec"]["containers"][0]["image"] = "app:99".into());
    });
    let plan = seconds(&mut world, &mut operator, 120);
    assert_eq!(plan.status.revisions.current, former);
    assert_eq!(condition(&plan, "Stalled"), Some(("True", "MaxFailedNodes")));
    assert_eq!((condition(&plan, "Valid").unwrap().0, condition(&plan, "RolledBack")), ("True", None));
}

#[test]
fn a_retry_abandons_a_former_revision_that_the_spec_contradicts() {
    let (mut world, mut operator) = at_rest(&json!({"nodeDeadlineSeconds": 20, "autoRollback": true}), 3, 1);
    let edit = |cluster: &mut Cluster, image: &str, ports: Value, pods: i32| {
        cluster.edit_resource(|resource| {
            resource.spec.template["spec"]["containers"][0]["image"] = image.into();
            resource.spec.template["spec"]["containers"][0]["ports"] = ports;
            resource.spec.pods_per_node = pods;
            resource.generation += 1;
        });
    };
    world.change(|cluster| edit(cluster, "app:1", json!([{"containerPort": 80, "hostPort": 8080}]), 1));
    seconds(&mut world, &mut operator, 120);
    world.change(|cluster| edit(cluster, "app:99", json!([]), 1));
    let plan = seconds(&mut world, &mut operator, 200);
    assert_eq!(condition(&plan, "RolledBack"), Some(("True", "RevisionFailed")));
    let (failed, runs) = (plan.status.revisions.update.clone(), plan.status.revisions.effective.clone());
    // Two pods of a node can have no host port, which spec.template has none of.
    world.change(|cluster| edit(cluster, "app:99", json!([]), 2));
    let plan = seconds(&mut world, &mut operator, 10);
    let valid = plan.status.conditions.iter().find(|condition| condition.type_ == "Valid").unwrap();
    assert_eq!((valid.status.as_str(), valid.reason.as_str()), ("False", "HostPortConflict"));
    assert!(valid.message.starts_with(&format!("revision {runs}, which runs instead of {failed}: ")), "{}", valid.message);
    world.change(|cluster| cluster.edit_resource(|resource| resource.retry = "1".into()));
    let plan = seconds(&mut world, &mut operator, 10);
    assert_eq!((condition(&plan, "Valid").unwrap().0, condition(&plan, "RolledBack")), ("True", None));
    assert_eq!(plan.status.revisions.effective, failed);
    assert_eq!(world.cluster.ledger().unwrap().rolled_back, None);
}

#[test]
fn a_rollback_by_number_pins_the_revision_while_set() {
    let (mut world, mut operator) = at_rest(&Value::Null, 3, 1);
    for image in [2, 3] {
        edit(&mut world, |wish| wish.image = image);
        world.run_until(&mut operator, 200, World::is_converged).unwrap();
    }
    edit(&mut world, |wish| wish.rollback_to = Some(0));
    seconds(&mut world, &mut operator, 120);
    assert_eq!(on(&world, 2), 3);
    edit(&mut world, |wish| wish.rollback_to = Some(1));
    seconds(&mut world, &mut operator, 120);
    assert_eq!(on(&world, 1), 3);
    edit(&mut world, |wish| wish.rollback_to = Some(7));
    let plan = seconds(&mut world, &mut operator, 20);
    assert_eq!((on(&world, 1), condition(&plan, "Valid")), (3, Some(("False", "RevisionNotFound"))));
    edit(&mut world, |wish| wish.rollback_to = None);
    world.run_until(&mut operator, 200, World::is_converged).unwrap();
    assert_eq!(on(&world, 3), 3);
}

#[test]
fn history_keeps_its_limit_and_the_revisions_in_use() {
    let (mut world, mut operator) = at_rest(&Value::Null, 2, 1);
    edit(&mut world, |wish| wish.history = Some(1));
    for image in [2, 3, 4, 1] {
        edit(&mut world, |wish| wish.image = image);
        world.run_until(&mut operator, 200, World::is_converged).unwrap();
        seconds(&mut world, &mut operator, 2);
    }
    let mut known: Vec<_> = world.cluster.revisions.iter().map(|known| (known.number, known.revision.clone())).collect();
    known.sort_unstable();
    let wish = &world.cluster.wish;
    assert_eq!(known, [(4, wish.revision_of(4)), (5, wish.revision_of(1))]);
}

#[test]
fn a_revision_kept_by_partition_stays_recorded_beyond_the_limit() {
    let (mut world, mut operator) = at_rest(&json!({"partition": 1}), 3, 2);
    edit(&mut world, |wish| wish.history = Some(0));
    // Which node is kept follows from hashes of names and revisions. Image 1 is that of the revision that all nodes ran last.
    for (image, kept, at, recorded) in [(2, "n2", 1, vec![1, 2]), (3, "n1", 2, vec![1, 2, 3]), (4, "n0", 3, vec![1, 3, 4])] {
        edit(&mut world, |wish| wish.image = image);
        seconds(&mut world, &mut operator, 120);
        let of = |image: &u8| world.cluster.wish.revision_of(*image);
        let template = &world.cluster.deployments[&format!("edge-{kept}")]["spec"]["template"];
        assert_eq!((on(&world, image), revision(template)), (2, of(&at).as_str()), "{image}");
        let sorted = |mut revisions: Vec<String>| {
            revisions.sort_unstable();
            revisions
        };
        let known = world.cluster.revisions.iter().map(|known| known.revision.clone()).collect();
        assert_eq!(sorted(known), sorted(recorded.iter().map(of).collect()), "{image}");
    }
}

#[test]
fn on_delete_updates_only_a_node_whose_pod_somebody_deleted() {
    let mut world = World::new(Wish { on_delete: true, ..Wish::new(Marks::Token, 1) }, 3);
    let mut operator = Operator::default();
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
    edit(&mut world, |wish| wish.image = 2);
    let plan = seconds(&mut world, &mut operator, 60);
    assert_eq!((on(&world, 1), reasons(&plan)), (3, vec!["OnDelete"]));
    world.change(|cluster| {
        let now = cluster.now;
        cluster.pods.iter_mut().find(|pod| pod.node == "n1").unwrap().ends_at = Some(now + 1);
    });
    // The Deployment makes the pod anew at the old revision before the operator looks.
    for _ in 0..6 {
        world.change(|cluster| cluster.tick(|_| true));
    }
    seconds(&mut world, &mut operator, 60);
    assert_eq!(on(&world, 2), 1);
    assert_eq!(revision(&world.cluster.deployments["edge-n1"]["spec"]["template"]), world.cluster.wish.revision_of(2));
}

#[test]
fn on_delete_updates_no_node_whose_pods_the_operator_recreated() {
    let mut world = World::new(Wish { on_delete: true, ..Wish::new(Marks::Token, 1) }, 3);
    let mut operator = Operator::default();
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
    edit(&mut world, |wish| (wish.image, wish.pods) = (2, 3));
    seconds(&mut world, &mut operator, 120);
    let replicas =
        |world: &World| world.cluster.deployments.values().map(|deployment| deployment["spec"]["replicas"].clone()).collect::<Vec<_>>();
    assert_eq!((on(&world, 1), replicas(&world)), (3, vec![json!(3); 3]), "more pods are no order to update");
    world.change(|cluster| cluster.edit_deployment("edge-n0", |deployment| deployment["spec"]["replicas"] = 5.into()));
    seconds(&mut world, &mut operator, 120);
    assert_eq!((on(&world, 1), replicas(&world)), (3, vec![json!(3); 3]), "nor is a repair");
    let taint = |taints: Value| move |cluster: &mut Cluster| cluster.edit_node("n1", |node| node["spec"]["taints"] = taints);
    world.audit.disturbed.insert("n1".to_owned());
    world.change(taint(json!([{"key": names::CLUSTER_AUTOSCALER_TAINT, "effect": "NoSchedule"}])));
    seconds(&mut world, &mut operator, 60);
    world.change(taint(json!([])));
    let plan = seconds(&mut world, &mut operator, 120);
    assert_eq!((on(&world, 1), reasons(&plan)), (3, vec!["OnDelete"]), "nor is the way back from a drain");
}

#[test]
fn a_canary_step_that_selects_no_node_proves_nothing() {
    let (mut world, mut operator) = at_rest(&json!({"steps": [{"nodeSelector": {"canary": "ture"}}]}), 4, 2);
    edit(&mut world, |wish| wish.image = 2);
    let plan = seconds(&mut world, &mut operator, 60);
    assert_eq!((on(&world, 1), reasons(&plan)), (4, vec!["CanaryWithoutNodes"]));
    let blocked = plan.status.blocked.unwrap();
    assert!(blocked.reason == "CanaryWithoutNodes" && blocked.message.contains("nodeSelector"), "{blocked:?}");
    world.change(|cluster| cluster.edit_node("n2", |node| node["metadata"]["labels"]["canary"] = "ture".into()));
    world.run_until(&mut operator, 200, World::is_converged).unwrap();
    edit(&mut world, |wish| {
        wish.rollout = json!({"steps": [{"nodeSelector": {"canary": "none"}}]});
        wish.image = 3;
    });
    seconds(&mut world, &mut operator, 30);
    assert_eq!(on(&world, 2), 4);
    edit(&mut world, |wish| wish.promote = Some((3, 1)));
    world.run_until(&mut operator, 200, World::is_converged).unwrap();
    assert_eq!(on(&world, 3), 4);
}

#[test]
fn an_autoscalers_drain_exceeds_the_budget_and_blocks_others() {
    for taint in names::DEPARTURE_TAINTS {
        let (mut world, mut operator) = at_rest(&Value::Null, 3, 1);
        edit(&mut world, |wish| wish.image = 2);
        world.run_until(&mut operator, 30, |world| world.cluster.ledger().is_some_and(|ledger| !ledger.grants.is_empty())).unwrap();
        let granted = world.cluster.ledger().unwrap().grants.keys().next().unwrap().clone();
        let drained = ["n0", "n1", "n2"].into_iter().find(|name| *name != granted).unwrap();
        world.change(|cluster| {
            cluster.edit_node(drained, |node| node["spec"]["taints"] = json!([{"key": taint, "effect": "NoSchedule"}]));
        });
        world.audit.disturbed.insert(drained.to_owned());
        seconds(&mut world, &mut operator, 60);
        let ledger = world.cluster.ledger().unwrap();
        assert_eq!(ledger.grants[drained].kind, GrantReason::Drain, "{taint}");
        assert_eq!(ledger.grants.len(), 1, "{taint}: nothing else is begun");
        assert_eq!(world.cluster.pods.iter().filter(|pod| pod.node == drained).count(), 0, "{taint}");
        world.change(|cluster| cluster.edit_node(drained, |node| node["spec"]["taints"] = json!([])));
        world.run_until(&mut operator, 200, World::is_converged).unwrap();
    }
}

#[test]
fn a_retry_on_a_failed_node_restarts_its_deadline() {
    let (mut world, mut operator) = at_rest(&json!({"nodeDeadlineSeconds": 20}), 3, 1);
    edit(&mut world, |wish| wish.image = 99);
    seconds(&mut world, &mut operator, 60);
    let (node, id) = world.cluster.ledger().unwrap().grants.iter().map(|(node, grant)| (node.clone(), grant.id)).next().unwrap();
    annotate(&mut world, &node, names::RETRY_ANNOTATION, "1");
    let plan = seconds(&mut world, &mut operator, 3);
    assert_eq!(plan.status.nodes.failed, 0);
    assert!(world.cluster.ledger().unwrap().grants[&node].id > id);
    let plan = seconds(&mut world, &mut operator, 60);
    assert_eq!(plan.status.nodes.failed, 1, "the same value asks once");
}

#[test]
fn a_retry_while_paused_begins_nothing_anew() {
    let (mut world, mut operator) = at_rest(&json!({"nodeDeadlineSeconds": 20}), 3, 1);
    edit(&mut world, |wish| wish.image = 99);
    seconds(&mut world, &mut operator, 60);
    // The failed node's slot goes to another kind of work, whose first step has not been made.
    edit(&mut world, |wish| wish.pods = 3);
    seconds(&mut world, &mut operator, 1);
    let (node, grant) = world.cluster.ledger().unwrap().grants.iter().map(|(node, grant)| (node.clone(), grant.clone())).next().unwrap();
    assert_eq!(grant.kind, GrantReason::Grow);
    edit(&mut world, |wish| wish.paused = true);
    annotate(&mut world, &node, names::RETRY_ANNOTATION, "1");
    seconds(&mut world, &mut operator, 1);
    assert_eq!(world.cluster.ledger().unwrap().grants[&node].id, grant.id);
    edit(&mut world, |wish| (wish.paused, wish.image) = (false, 3));
    world.run_until(&mut operator, 240, World::is_converged).unwrap();
}

#[test]
fn nodes_left_behind_by_an_invalid_spec_say_so() {
    let (mut world, mut operator) = at_rest(&Value::Null, 3, 1);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 60, |world| on(world, 2) == 1).unwrap();
    edit(&mut world, |wish| wish.rollback_to = Some(7));
    let plan = seconds(&mut world, &mut operator, 60);
    assert_eq!((on(&world, 1), reasons(&plan)), (2, vec!["InvalidSpec"]));
    edit(&mut world, |wish| wish.rollback_to = None);
    world.run_until(&mut operator, 200, World::is_converged).unwrap();
}

#[test]
fn a_leaving_node_is_released_after_grace_despite_invalid_spec() {
    for marks in [Marks::Token, Marks::Node] {
        let mut world = World::new(Wish::new(marks, 1), 3);
        let mut operator = Operator::default();
        world.run_until(&mut operator, 120, World::is_converged).unwrap();
        world.change(|cluster| cluster.edit_node("n0", |node| node["metadata"]["labels"]["ingress"] = "false".into()));
        world.run_until(&mut operator, 10, |world| world.cluster.ledger().is_some_and(|ledger| ledger.grants.contains_key("n0"))).unwrap();
        edit(&mut world, |wish| wish.rollback_to = Some(7));
        seconds(&mut world, &mut operator, 60);
        assert!(!world.cluster.deployments.contains_key("edge-n0") && world.cluster.ledger().unwrap().grants.is_empty());
        world.change(|cluster| cluster.edit_resource(|resource| resource.deleting = true));
        world.run_until(&mut operator, 120, |world| world.cluster.resource.is_none()).unwrap();
        assert_eq!(world.leftovers(), Vec::<String>::new());
    }
}

#[test]
fn a_resource_with_invalid_spec_is_deleted_during_an_update() {
    for marks in [Marks::Token, Marks::Node] {
        for pods_changed in [false, true] {
            let mut world = World::new(Wish::new(marks, 1), 3);
            let mut operator = Operator::default();
            world.run_until(&mut operator, 120, World::is_converged).unwrap();
            edit(&mut world, |wish| wish.image = 99);
            let begun = |world: &World| world.cluster.ledger().is_some_and(|ledger| !ledger.grants.is_empty());
            world.run_until(&mut operator, 60, |world| begun(world) && (!pods_changed || on(world, 99) == 1)).unwrap();
            edit(&mut world, |wish| wish.rollback_to = Some(7));
            world.change(|cluster| cluster.edit_resource(|resource| resource.deleting = true));
            world
                .run_until(&mut operator, 120, |world| world.cluster.resource.is_none())
                .unwrap_or_else(|why| panic!("{marks:?}, {pods_changed}: {why}"));
            assert_eq!(world.leftovers(), Vec::<String>::new());
        }
    }
}

#[test]
fn leaving_nodes_are_released_despite_invalid_spec_and_new_replicas() {
    let (mut world, mut operator) = at_rest(&Value::Null, 2, 1);
    world.change(|cluster| cluster.edit_node("n0", |node| node["metadata"]["labels"]["ingress"] = "false".into()));
    world.run_until(&mut operator, 60, |world| world.cluster.deployments["edge-n0"]["spec"]["replicas"] == 0).unwrap();
    edit(&mut world, |wish| wish.rollback_to = Some(7));
    world.edit_deployment("edge-n0", |deployment| deployment["spec"]["replicas"] = 1.into());
    world.run_until(&mut operator, 120, |world| !world.cluster.deployments.contains_key("edge-n0")).unwrap();
}

#[test]
fn an_unready_nodes_return_becomes_no_update_while_paused() {
    let (mut world, mut operator) = at_rest(&Value::Null, 3, 1);
    world.change(|cluster| {
        let later = cluster.now + 200;
        cluster.pods.iter_mut().filter(|pod| pod.node == "n0").for_each(|pod| pod.ready_at = later);
    });
    seconds(&mut world, &mut operator, 3);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 30, |world| world.cluster.ledger().unwrap().grants.contains_key("n0")).unwrap();
    edit(&mut world, |wish| {
        wish.paused = true;
        wish.image = 3;
    });
    seconds(&mut world, &mut operator, 60);
    assert_eq!((on(&world, 1), on(&world, 2), on(&world, 3)), (3, 0, 0));
    edit(&mut world, |wish| wish.paused = false);
    world.run_until(&mut operator, 200, World::is_converged).unwrap();
}

#[test]
fn a_release_annotation_frees_only_the_slot_that_it_names() {
    let (mut world, mut operator) = at_rest(&json!({"nodeDeadlineSeconds": 20, "maxFailedNodes": 3}), 3, 2);
    edit(&mut world, |wish| wish.image = 99);
    seconds(&mut world, &mut operator, 60);
    let (node, id) = world.cluster.ledger().unwrap().grants.iter().map(|(node, grant)| (node.clone(), grant.id)).next().unwrap();
    world.audit.disturbed.insert(node.clone());
    annotate(&mut world, &node, names::RELEASE_ANNOTATION, &format!("default/edge:{}", id + 100));
    seconds(&mut world, &mut operator, 5);
    assert!(world.cluster.ledger().unwrap().grants.contains_key(&node), "another grant is meant");
    annotate(&mut world, &node, names::RELEASE_ANNOTATION, &format!("default/edge:{id}"));
    seconds(&mut world, &mut operator, 20);
    assert!(!world.cluster.ledger().unwrap().grants.contains_key(&node));
    edit(&mut world, |wish| wish.image = 4);
    world.run_until(&mut operator, 240, World::is_converged).unwrap();
}

#[test]
fn a_ledger_that_has_to_be_rebuilt_remembers_what_failed() {
    let (mut world, mut operator) = at_rest(&json!({"nodeDeadlineSeconds": 20}), 3, 1);
    edit(&mut world, |wish| wish.image = 99);
    seconds(&mut world, &mut operator, 60);
    let failed = world.cluster.ledger().unwrap().rollout_state.clone().unwrap().failed;
    assert_eq!(failed.len(), 1);
    // Somebody restores a Deployment with a token of the future.
    let other = ["n0", "n1", "n2"].into_iter().find(|name| !failed.contains_key(*name)).unwrap();
    world.audit.disturbed.insert(other.to_owned());
    world.change(|cluster| {
        cluster.edit_deployment(&format!("edge-{other}"), |deployment| {
            let token = &mut deployment["metadata"]["labels"][names::TOKEN_LABEL];
            *token = token.as_str().unwrap().replacen('.', ".9", 1).into();
        });
    });
    let plan = seconds(&mut world, &mut operator, 60);
    let ledger = world.cluster.ledger().unwrap().clone();
    assert_eq!((ledger.rebuilding, ledger.rollout_state.unwrap().failed.keys().collect::<Vec<_>>()), (None, failed.keys().collect()));
    assert_eq!((on(&world, 99), condition(&plan, "Progressing")), (1, Some(("False", "MaxFailedNodes"))));
}

#[test]
fn a_failed_node_gets_the_corrected_template_first_despite_windows() {
    let never = json!([{"schedule": "0 0 29 2 *", "duration": "1m", "timeZone": "Etc/UTC"}]);
    for more in [json!({"windows": never}), json!({"steps": [{"nodes": 1, "pause": true}]})] {
        let (mut world, mut operator) = at_rest(&json!({"nodeDeadlineSeconds": 20}), 4, 1);
        edit(&mut world, |wish| wish.image = 99);
        seconds(&mut world, &mut operator, 60);
        assert_eq!(on(&world, 99), 1);
        edit(&mut world, |wish| {
            wish.image = 2;
            wish.rollout = more.clone();
        });
        seconds(&mut world, &mut operator, 60);
        assert_eq!((on(&world, 1), on(&world, 2), on(&world, 99)), (3, 1, 0), "{more}");
    }
}

#[test]
fn failed_nodes_outside_the_canary_return_to_the_proven_revision() {
    let (mut world, mut operator) = at_rest(&json!({"nodeDeadlineSeconds": 20}), 5, 2);
    edit(&mut world, |wish| wish.image = 99);
    seconds(&mut world, &mut operator, 60);
    assert_eq!(on(&world, 99), 2);
    edit(&mut world, |wish| {
        wish.image = 2;
        wish.rollout = json!({"steps": [{"nodes": 1, "pause": true}]});
    });
    seconds(&mut world, &mut operator, 60);
    assert_eq!((on(&world, 1), on(&world, 2), on(&world, 99)), (4, 1, 0));
}

#[test]
fn a_canary_with_wiped_status_stays_within_its_first_step() {
    let (mut world, mut operator) = at_rest(&json!({"steps": [{"nodes": 2, "pause": true}]}), 5, 2);
    edit(&mut world, |wish| wish.image = 2);
    seconds(&mut world, &mut operator, 60);
    assert_eq!(on(&world, 2), 2);
    operator.forget_reserved();
    world.change(|cluster| cluster.edit_resource(|resource| resource.status = None));
    seconds(&mut world, &mut operator, 100);
    assert_eq!(on(&world, 2), 2);
}

/// Somebody has deleted the `ControllerRevision` of what the node runs.
#[test]
fn a_cancelled_drain_keeps_an_unrecorded_revision_outside_the_canary() {
    let (mut world, mut operator) = at_rest(&json!({"steps": [{"nodes": 1, "pause": true}]}), 3, 1);
    edit(&mut world, |wish| wish.image = 2);
    seconds(&mut world, &mut operator, 60);
    assert_eq!(on(&world, 2), 1, "the canary");
    let former = world.cluster.wish.revision_of(1);
    let left = world.cluster.deployments.values().find(|deployment| revision(&deployment["spec"]["template"]) == former);
    let node = world::cluster::node_of(left.unwrap()).to_owned();
    let taint = |world: &mut World, taints: Value| world.change(|cluster| cluster.edit_node(&node, |node| node["spec"]["taints"] = taints));
    world.change(|cluster| std::sync::Arc::make_mut(&mut cluster.revisions).retain(|known| known.revision != former));
    taint(&mut world, json!([{"key": names::CLUSTER_AUTOSCALER_TAINT, "effect": "NoSchedule"}]));
    let granted = |world: &World| {
        world.cluster.ledger().is_some_and(|ledger| ledger.grants.get(&node).is_some_and(|grant| grant.kind == GrantReason::Drain))
    };
    world.run_until(&mut operator, 10, granted).unwrap();
    taint(&mut world, json!([]));
    let plan = seconds(&mut world, &mut operator, 60);
    assert_eq!(on(&world, 2), 1, "{:?}", plan.node_states);
    assert!(world.cluster.ledger().unwrap().grants.is_empty());
    assert!(reasons(&plan).contains(&"AwaitingPromotion"), "{:?}", reasons(&plan));
}
