//! Whatever people and other programs write into the objects: a plan comes out, and the same one for the same facts.

use crate::world;

use crds::{
    ledger::{Wait, WaitFor},
    names,
};
use planner::{
    Action, Snapshot, decide,
    facts::{DaemonSetFacts, Withheld},
};
use proptest::{prelude::*, sample::select};
use std::sync::Arc;
use world::{
    World,
    cluster::UID8,
    operator::Operator,
    wish::{KEYS, Marks, Wish},
};

/// A snapshot in the middle of a rollout.
fn under_way(marks: Marks, seconds: usize) -> Snapshot {
    let mut world = World::new(Wish::new(marks, 2), 4);
    let mut operator = Operator::default();
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    for _ in 0..seconds {
        world.fair_second(&mut operator);
    }
    operator.catch_up(&world);
    operator.snapshot(&world).unwrap()
}

fn number() -> impl Strategy<Value = String> {
    select(vec![
        "0",
        "1",
        "-1",
        "18446744073709551615",
        "9223372036854775807",
        "-9223372036854775808",
        "9007199254740991",
        "1000000",
        "x",
        "",
    ])
    .prop_map(str::to_owned)
}

fn phase() -> impl Strategy<Value = &'static str> {
    select(vec!["New", "Claimed", "Degrading", "Updating", "Closed", "Open"])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_token_holder_or_ledger_makes_the_planner_panic(
        id in number(), since in number(), phase in phase(), entry in number(), time in number(), detached: bool,
        next in any::<Option<u64>>(), fence in prop::option::of(any::<u64>()), rejected in prop::option::of(select(vec![i64::MIN, 0, i64::MAX])), breaker in number(),
        marks in select(vec![Marks::Both, Marks::Timestamp, Marks::Degrade]), seconds in 0..12usize, now in select(vec![1_000_020, i64::MAX, 0]),
    ) {
        let mut snapshot = under_way(marks, seconds);
        snapshot.now = now;
        for deployment in snapshot.deployments.values_mut().map(std::sync::Arc::make_mut) {
            deployment.labels.insert(crds::names::TOKEN_LABEL.into(), format!("{UID8}.{id}.{phase}.{since}"));
            deployment.labels.insert(crds::names::BREAKER_LABEL.into(), format!("1.{breaker}"));
        }
        let mut nodes = (*snapshot.nodes).clone();
        let phase = if detached { "Detached" } else { "Attached" };
        for node in nodes.values_mut().map(std::sync::Arc::make_mut) {
            let holders = format!(r#"{{"{UID8}":{{"id":{entry},"phase":"{phase}","key":"{}","value":"","time":{time}}}}}"#, KEYS[0]);
            node.annotations.insert(crds::names::HOLDERS_ANNOTATION.into(), holders);
        }
        snapshot.nodes = nodes.into();
        for pod in snapshot.pods.values_mut().flatten().map(std::sync::Arc::make_mut) {
            pod.rejected_at = rejected;
        }
        if let Some(ledger) = snapshot.resource.status.as_mut().and_then(|status| status.rollout.as_mut()) {
            ledger.next_id = next.unwrap_or(ledger.next_id);
            ledger.rebuilding = fence;
            if let Some(rollout) = &mut ledger.rollout_state {
                (rollout.since, rollout.progressed_at, rollout.soaked) = (now, rejected.unwrap_or(0), rejected);
                (rollout.idle, rollout.spent, rollout.proof) = (now, rejected.unwrap_or(0), now);
                (rollout.steps_done, rollout.finished, rollout.began_with) = (u32::MAX, u32::MAX, 0);
            }
            for grant in ledger.grants.values_mut() {
                let what = [WaitFor::DeploymentMark, WaitFor::NodeMark, WaitFor::Pods, WaitFor::Attached];
                grant.waited = what.map(|what| Wait { what, since: now, seconds: rejected.unwrap_or(7) }).into();
            }
        }
        let plan = decide(&snapshot);
        prop_assert_eq!(plan, decide(&snapshot));
    }

    #[test]
    fn plans_do_not_depend_on_the_order_of_the_input(marks in select(vec![Marks::Token, Marks::Both, Marks::Degrade]), seconds in 0..20usize, seed: u64) {
        let snapshot = under_way(marks, seconds);
        let mut shuffled = snapshot.clone();
        for pods in shuffled.pods.values_mut() {
            let turn = usize::try_from(seed % 7).unwrap() % pods.len().max(1);
            pods.rotate_left(turn);
        }
        shuffled.daemon_sets.reverse();
        prop_assert_eq!(decide(&snapshot), decide(&shuffled));
    }
}

/// A kubelet may annotate its own Node.
#[test]
fn a_forged_id_on_one_node_stops_no_rollout() {
    let mut stopped = Vec::new();
    for id in [(1_u64 << 52) - 1, (1 << 52) - 2, 1 << 52, 1 << 51, 1_000_000_000 + 2 * 24 * 3600 * 1000] {
        for marks in [Marks::Token, Marks::Both] {
            let mut world = World::new(Wish::new(marks, 1), 3);
            let mut operator = Operator::default();
            world.run_until(&mut operator, 120, World::is_converged).unwrap();
            let text = format!(r#"{{"{UID8}":{{"id":{id},"phase":"Attached","key":"","value":"","time":0}}}}"#);
            world.change(|cluster| {
                cluster.edit_node("n0", |node| node["metadata"]["annotations"][names::HOLDERS_ANNOTATION] = text.into());
                cluster.edit_wish(|wish| wish.image = 2);
            });
            let end = world.run_until(&mut operator, 600, World::is_converged);
            let ledger = world.cluster.ledger().unwrap();
            if end.is_err() || ledger.rebuilding.is_some() || ledger.next_id > id {
                stopped.push((id, marks, ledger.next_id));
            }
        }
    }
    assert!(stopped.is_empty(), "{stopped:?}");
}

#[test]
fn a_withheld_spec_neither_undoes_nor_begins_anything() {
    for withheld in [Withheld::TooMany, Withheld::TooLarge { bytes: 1 << 20, mappings: 1 }] {
        for seconds in [0, 8] {
            let whole = under_way(Marks::Token, seconds);
            let mut snapshot = whole.clone();
            snapshot.resource.withheld = Some(withheld);
            snapshot.resource.spec.template = serde_json::Value::Null;
            let plan = decide(&snapshot);
            let valid = plan.status.conditions.iter().find(|condition| condition.type_ == "Valid").unwrap();
            assert_eq!((valid.status.as_str(), valid.reason.as_str()), ("False", withheld.invalid().reason));
            let takes = |action: &&Action| {
                matches!(
                    action,
                    Action::DeleteDeployment { .. } | Action::Delete { .. } | Action::DeletePod { .. } | Action::CreateDeployment { .. }
                )
            };
            assert_eq!(plan.actions.iter().filter(takes).count(), 0, "{:?}", plan.actions);
            let grants = |status: &crds::IngressDaemonSetStatus| status.rollout.as_ref().unwrap().grants.len();
            assert!(grants(&plan.status) <= grants(whole.resource.status.as_ref().unwrap()));
            assert_eq!(plan.status.nodes.current, whole.resource.status.unwrap().nodes.current);
        }
    }
}

#[test]
fn a_surplus_resource_gets_a_finalizer_only_for_cleanup() {
    let finalizers = |snapshot: &Snapshot| decide(snapshot).actions.iter().any(|action| matches!(action, Action::SetFinalizers(_)));
    let with = |withheld: Option<Withheld>, mut snapshot: Snapshot| {
        snapshot.resource.finalizers.clear();
        snapshot.resource.withheld = withheld;
        snapshot
    };
    let without_objects = |mut snapshot: Snapshot| {
        snapshot.deployments.clear();
        snapshot.daemon_sets.clear();
        snapshot
    };
    let never_served = |snapshot: Snapshot| {
        let mut snapshot = without_objects(snapshot);
        let status = snapshot.resource.status.as_mut().unwrap();
        status.revisions.effective.clear();
        status.rollout.as_mut().unwrap().grants.clear();
        snapshot
    };
    let runs = under_way(Marks::Token, 8);
    let too_many = Some(Withheld::TooMany);
    let check = |case, expected, snapshot: &Snapshot| assert_eq!(finalizers(snapshot), expected, "{case}");
    check("never served", false, &with(too_many, never_served(runs.clone())));
    let mut served = without_objects(runs.clone());
    served.resource.status.as_mut().unwrap().rollout.as_mut().unwrap().grants.clear();
    check("it has served", true, &with(too_many, served));
    let mut has_grants = without_objects(runs.clone());
    has_grants.resource.status.as_mut().unwrap().revisions.effective.clear();
    check("it has grants", true, &with(too_many, has_grants));
    let has_deployments = Snapshot { deployments: runs.deployments.clone(), ..never_served(runs.clone()) };
    check("it has Deployments", true, &with(too_many, has_deployments));
    for owned in [true, false] {
        let spec = Arc::default();
        let (name, uid) = (String::new(), String::new());
        let checkers = DaemonSetFacts { name, uid, port: 80, spec, observed: true, desired: 1, updated: 1, ready: 1, owned };
        let has_checkers = Snapshot { daemon_sets: vec![checkers], ..never_served(runs.clone()) };
        check("it has health checkers", owned, &with(too_many, has_checkers));
    }
    check("it has a place", true, &with(None, never_served(runs.clone())));
    check("too large", true, &with(Some(Withheld::TooLarge { bytes: 1 << 20, mappings: 1 }), never_served(runs.clone())));
    // It says so, and does nothing else: no right can be there that is to be taken away.
    let mut told =
        Snapshot { known_for: 1 << 20, node_rights: Arc::default(), listed_since_rebuild: true, ..with(too_many, never_served(runs)) };
    let takes_right_away = |snapshot: &Snapshot| decide(snapshot).actions.iter().any(|action| matches!(action, Action::Delete { .. }));
    let mut finalized = told.clone();
    finalized.resource.finalizers.push(names::FINALIZER.to_owned());
    assert!(takes_right_away(&finalized) && !takes_right_away(&told));
    told.resource.status = None;
    let mut passes = 0;
    while let [Action::WriteStatus { status, .. }] = decide(&told).actions.as_slice() {
        told.resource.status = Some((**status).clone());
        passes += 1;
        assert!(passes < 5, "{:?}", told.resource.status);
    }
    assert_eq!(decide(&told).actions, []);
    assert_ne!(passes, 0);
    // The controller that would remove this finalizer is gone.
    told.resource.finalizers.push(names::FINALIZER_OF_ORIGINAL.to_owned());
    told.resource.deleting = true;
    told.nodes = Arc::default();
    assert!(decide(&told).actions.contains(&Action::SetFinalizers(Vec::new())));
}
