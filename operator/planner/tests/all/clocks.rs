//! Time in the course of a rollout: deadlines, clocks that stand still, the expected end, windows.

use crate::{
    proof::Flaps,
    rollout_state::{at_rest, condition, edit, on, reasons, seconds},
    world::{
        World, audit,
        operator::Operator,
        wish::{Marks, Wish},
    },
};
use crds::{names, token::Phase};
use planner::spec::DEFAULT_GRACE;
use serde_json::{Value, json};

/// The rest of the rollout takes as long as `status.eta` says, give or take so many seconds.
fn ends_when_expected(world: &mut World, operator: &mut Operator, within: i64) {
    let plan = seconds(world, operator, 3);
    let eta = chrono::DateTime::parse_from_rfc3339(plan.status.eta.as_deref().unwrap()).unwrap().timestamp();
    let began = world.cluster.now;
    world.run_until(operator, 200, World::is_converged).unwrap();
    let took = world.cluster.now - began;
    assert!((eta - began - took).abs() <= within, "expected {} s, took {took} s", eta - began);
}

#[test]
fn a_node_past_its_deadline_fails_and_keeps_its_slot() {
    let (mut world, mut operator) = at_rest(&json!({"nodeDeadlineSeconds": 30}), 5, 2);
    edit(&mut world, |wish| wish.image = 99);
    let plan = seconds(&mut world, &mut operator, 120);
    assert_eq!(on(&world, 99), 2, "no more than the budget");
    assert_eq!(condition(&plan, "Progressing"), Some(("False", "MaxFailedNodes")));
    assert_eq!(condition(&plan, "Stalled"), Some(("True", "MaxFailedNodes")));
    assert!(
        plan.node_states.values().any(|state| state.phase == crds::status::NodePhase::Failed && state.reason.word() == "NotReady"),
        "{plan:#?}"
    );
    assert_eq!(plan.status.blocked.as_ref().unwrap().reason, "MaxFailedNodes");
    assert_eq!(world.cluster.ledger().unwrap().grants.len(), 2);
    // The corrected template goes through, beginning with the nodes that failed.
    let failed: Vec<_> = world.cluster.ledger().unwrap().grants.keys().cloned().collect();
    edit(&mut world, |wish| wish.image = 3);
    seconds(&mut world, &mut operator, 2);
    assert_eq!(world.cluster.ledger().unwrap().grants.keys().cloned().collect::<Vec<_>>(), failed);
    world.run_until(&mut operator, 240, World::is_converged).unwrap();
    let plan = seconds(&mut world, &mut operator, 2);
    assert_eq!((plan.status.nodes.failed, condition(&plan, "Stalled")), (0, None));
}

#[test]
fn a_change_of_min_ready_seconds_reaches_granted_nodes() {
    let (mut world, mut operator) = at_rest(&json!({"nodeDeadlineSeconds": 30}), 3, 1);
    edit(&mut world, |wish| wish.image = 99);
    for (min_ready, waited, failed) in [(300, 20, 0), (700, 5, 0), (5, 60, 1)] {
        let plan = seconds(&mut world, &mut operator, waited);
        assert_eq!((plan.status.nodes.failed, world.cluster.ledger().unwrap().grants.len()), (failed, 1));
        world.change(|cluster| {
            cluster.edit_resource(|resource| {
                resource.spec.min_ready_seconds = min_ready;
                resource.generation += 1;
            });
        });
        seconds(&mut world, &mut operator, 3);
        let told: Vec<_> = world.cluster.deployments.values().map(|deployment| deployment["spec"]["minReadySeconds"].as_i64()).collect();
        assert_eq!(told, [Some(min_ready.into()); 3]);
    }
}

#[test]
fn a_nodes_clock_stops_while_paused_or_not_ready() {
    let (mut world, mut operator) = at_rest(&json!({"nodeDeadlineSeconds": 30}), 2, 1);
    edit(&mut world, |wish| wish.image = 99);
    world.run_until(&mut operator, 30, |world| on(world, 99) == 1).unwrap();
    edit(&mut world, |wish| wish.paused = true);
    let plan = seconds(&mut world, &mut operator, 60);
    assert_eq!(plan.status.nodes.failed, 0);
    edit(&mut world, |wish| wish.paused = false);
    let node = world.cluster.ledger().unwrap().grants.keys().next().unwrap().clone();
    world.change(|cluster| cluster.edit_node(&node, |node| node["status"]["ready"] = false.into()));
    let plan = seconds(&mut world, &mut operator, 60);
    assert_eq!(plan.status.nodes.failed, 0);
    world.change(|cluster| cluster.edit_node(&node, |node| node["status"]["ready"] = true.into()));
    let plan = seconds(&mut world, &mut operator, 40);
    assert_eq!(plan.status.nodes.failed, 1);
}

#[test]
fn a_rollout_past_its_progress_deadline_says_so() {
    let (mut world, mut operator) = at_rest(&json!({"progressDeadlineSeconds": 40, "maxFailedNodes": 5}), 2, 1);
    edit(&mut world, |wish| {
        wish.image = 99;
        wish.paused = true;
    });
    let plan = seconds(&mut world, &mut operator, 100);
    assert_eq!(condition(&plan, "Progressing"), Some(("False", "Paused")));
    edit(&mut world, |wish| wish.paused = false);
    let plan = seconds(&mut world, &mut operator, 30);
    assert_eq!(condition(&plan, "Progressing"), Some(("True", "RollingOut")));
    let plan = seconds(&mut world, &mut operator, 30);
    assert_eq!(condition(&plan, "Progressing"), Some(("False", "ProgressDeadlineExceeded")));
    assert_eq!(condition(&plan, "Stalled"), Some(("True", "ProgressDeadlineExceeded")));
}

#[test]
fn a_blocked_rollout_names_the_cause_however_long_it_lasts() {
    let (mut world, mut operator) = at_rest(&json!({"progressDeadlineSeconds": 40, "nodeDeadlineSeconds": 20}), 3, 1);
    edit(&mut world, |wish| wish.image = 99);
    let plan = seconds(&mut world, &mut operator, 300);
    assert_eq!(condition(&plan, "Progressing"), Some(("False", "MaxFailedNodes")));
    assert_eq!(condition(&plan, "Stalled"), Some(("True", "MaxFailedNodes")));
}

#[test]
fn the_expected_end_follows_from_the_pace_so_far() {
    let (mut world, mut operator) = at_rest(&Value::Null, 6, 1);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 120, |world| world.cluster.ledger().unwrap().rollout_state.as_ref().unwrap().finished == 3).unwrap();
    ends_when_expected(&mut world, &mut operator, 5);
    assert_eq!(seconds(&mut world, &mut operator, 2).status.eta, None);
}

#[test]
fn an_expected_end_that_has_passed_is_not_shown() {
    let (mut world, mut operator) = at_rest(&Value::Null, 6, 1);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 120, |world| world.cluster.ledger().unwrap().rollout_state.as_ref().unwrap().finished == 3).unwrap();
    let plan = seconds(&mut world, &mut operator, 2);
    let eta = chrono::DateTime::parse_from_rfc3339(plan.status.eta.as_deref().unwrap()).unwrap().timestamp();
    assert!(plan.recheck_at.is_some_and(|at| at <= eta), "{:?} is after {eta}", plan.recheck_at);
    // The next node takes its time.
    while world.cluster.now < eta + 20 {
        world.change(|cluster| {
            let wanted = cluster.wish.revision_of(2);
            cluster.pods.iter_mut().filter(|pod| pod.revision() == wanted && !pod.was_ready).for_each(|pod| pod.ready_at = i64::MAX);
        });
        let now = world.cluster.now;
        let plan = seconds(&mut world, &mut operator, 1);
        assert_eq!(plan.status.eta.is_some(), now < eta, "{} s after it", now - eta);
        assert_eq!(plan.status.blocked, None);
    }
}

#[test]
fn paused_time_does_not_count_for_the_expected_end() {
    let (mut world, mut operator) = at_rest(&Value::Null, 6, 1);
    edit(&mut world, |wish| wish.image = 2);
    let finished = |world: &World| world.cluster.ledger().unwrap().rollout_state.as_ref().unwrap().finished;
    world.run_until(&mut operator, 120, |world| finished(world) == 2).unwrap();
    edit(&mut world, |wish| wish.paused = true);
    seconds(&mut world, &mut operator, 1000);
    edit(&mut world, |wish| wish.paused = false);
    world.run_until(&mut operator, 120, |world| finished(world) == 4).unwrap();
    ends_when_expected(&mut world, &mut operator, 10);
}

#[test]
fn no_pause_sets_the_progress_clock_to_the_future() {
    let (mut world, mut operator) = at_rest(&Value::Null, 3, 1);
    edit(&mut world, |wish| wish.image = 2);
    let rollout = |world: &World| world.cluster.ledger().unwrap().rollout_state.clone().unwrap();
    world.run_until(&mut operator, 120, |world| on(world, 2) == 1).unwrap();
    edit(&mut world, |wish| wish.paused = true);
    world.run_until(&mut operator, 120, |world| rollout(world).finished == 1).unwrap();
    seconds(&mut world, &mut operator, 60);
    edit(&mut world, |wish| wish.paused = false);
    world.run_until(&mut operator, 120, |world| rollout(world).finished == 2).unwrap();
    let Some(ahead) = rollout(&world).progressed_at.checked_sub(world.cluster.now) else { panic!("no time") };
    assert!((-5..=0).contains(&ahead), "{ahead} s after now");
}

#[test]
fn a_window_gates_only_the_start_of_node_updates() {
    // The world begins on 1970-01-12 at 13:46:40 UTC.
    let windows = json!({"windows": [{"schedule": "48 13 * * *", "duration": "1m", "timeZone": "Etc/UTC"}]});
    let (mut world, mut operator) = at_rest(&windows, 3, 1);
    world.run_until(&mut operator, 300, |world| world.cluster.now >= 1_000_150).unwrap();
    edit(&mut world, |wish| wish.image = 2);
    let plan = seconds(&mut world, &mut operator, 20);
    assert_eq!((on(&world, 1), reasons(&plan)), (3, vec!["OutsideWindow"]));
    let message = plan.node_states["n0"].reason.message();
    assert!(message.contains("1970-01-13T13:48:00Z"), "{message}");
    assert_eq!(condition(&plan, "Progressing"), Some(("False", "OutsideWindow")));
    // Repairs and what was begun need no window.
    world.change(|cluster| {
        cluster.edit_deployment("edge-n0", |deployment| deployment["spec"]["replicas"] = 5.into());
    });
    seconds(&mut world, &mut operator, 60);
    assert_eq!(world.cluster.deployments["edge-n0"]["spec"]["replicas"], 2);
    world.change(|cluster| cluster.now = 1_000_000 + 86_400 + 80);
    world.run_until(&mut operator, 3, |world| world.cluster.ledger().is_some_and(|ledger| ledger.grants.len() == 1)).unwrap();
    world.change(|cluster| cluster.now += 60);
    let plan = seconds(&mut world, &mut operator, 60);
    assert_eq!((on(&world, 2), reasons(&plan)), (1, vec!["OutsideWindow"]));
}

/// A rollout of one node after the other, in which this happens to the cluster after so many seconds: how long it takes, and whether the
/// revision is condemned.
fn disturbed(after: usize, disturb: impl Fn(&mut World)) -> (i64, bool) {
    let (mut world, mut operator) = at_rest(&json!({"nodeDeadlineSeconds": 40, "autoRollback": true}), 3, 1);
    edit(&mut world, |wish| wish.image = 2);
    let began = world.cluster.passed;
    let mut plan = seconds(&mut world, &mut operator, after);
    let away = world.cluster.passed;
    disturb(&mut world);
    let away = world.cluster.passed - away;
    while !world.is_converged() && world.cluster.passed - began - away < 600 {
        plan = seconds(&mut world, &mut operator, 1);
    }
    (world.cluster.passed - began - away, condition(&plan, "RolledBack").is_some())
}

#[test]
fn neither_absent_operators_nor_clock_steps_condemn_a_revision() {
    let (usual, _) = disturbed(1, |_| ());
    for after in (1..usize::try_from(usual).unwrap()).step_by(3) {
        for step in [700, -3600, 86_400] {
            let (took, condemned) = disturbed(after, |world| world.change(|cluster| cluster.set_clock(step)));
            assert!(!condemned && took <= usual + 2, "the clock is set by {step} s after {after} s: took {took} s, usually {usual}");
        }
        // Controllers are away, too: kubelets go on.
        let (took, condemned) = disturbed(after, |world| (0..700).for_each(|_| world.change(|cluster| cluster.tick(|_| false))));
        assert!(!condemned && took <= usual + 35, "nobody is there for 700 s after {after} s: took {took} s, usually {usual}");
    }
}

#[test]
fn setting_the_clock_shortens_no_grace_period() {
    for step in [-3600, 5, 3600] {
        for after in 0..8 {
            let (mut world, mut operator) = at_rest(&Value::Null, 3, 1);
            edit(&mut world, |wish| wish.image = 2);
            let claimed =
                |world: &World| world.cluster.deployments.values().filter_map(audit::token).any(|token| token.phase == Phase::Claimed);
            world.run_until(&mut operator, 60, claimed).unwrap();
            let began = world.cluster.passed;
            (0..after).for_each(|_| drop(world.fair_second(&mut operator)));
            world.change(|cluster| cluster.set_clock(step));
            world.run_until(&mut operator, 60, |world| on(world, 2) == 1).unwrap();
            let took = world.cluster.passed - began;
            assert!((DEFAULT_GRACE..DEFAULT_GRACE + 3).contains(&took), "set by {step} s after {after} s: pods change after {took} s");
        }
    }
}

#[test]
fn waiting_times_add_up_across_restarts_of_the_operator() {
    let rollout = |image| {
        let (mut world, mut operator) = at_rest(&json!({"nodeDeadlineSeconds": 40, "provenAfterSeconds": 20}), 3, 1);
        edit(&mut world, |wish| wish.image = image);
        for second in 0..900 {
            if second % 8 == 0 {
                operator.crash(&world, 0);
            }
            // It sleeps for as long as it says, and is ended in its sleep.
            world.idle_second(&mut operator);
        }
        let plan = seconds(&mut world, &mut operator, 2);
        (on(&world, image), plan.status.nodes.failed, world.is_converged())
    };
    assert_eq!(rollout(2), (3, 0, true));
    assert_eq!(rollout(99), (1, 1, false));
}

#[test]
fn the_progress_deadline_runs_while_nodes_wait_for_proof() {
    let (mut world, mut operator) = at_rest(&json!({"provenAfterSeconds": 60, "progressDeadlineSeconds": 120}), 4, 1);
    edit(&mut world, |wish| wish.image = 2);
    // It falls never: no time without readiness is longer than that of a kubelet that starts anew.
    let flaps = Flaps { good: 25, bad: 8, crashes: false };
    let mut late = None;
    for second in 0..300 {
        flaps.second(&mut world, 2);
        let plan = world.fair_second(&mut operator).unwrap();
        if condition(&plan, "Progressing") == Some(("False", "ProgressDeadlineExceeded")) {
            late.get_or_insert(second);
        }
    }
    assert!(late.is_some_and(|second| (120..220).contains(&second)), "{late:?}");
    assert_eq!(on(&world, 2), 1);
}

#[test]
fn setting_the_clock_back_before_a_change_orders_no_update() {
    let mut world = World::new(Wish { on_delete: true, ..Wish::new(Marks::Token, 1) }, 3);
    let mut operator = Operator::default();
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
    world.change(|cluster| cluster.set_clock(-3600));
    edit(&mut world, |wish| wish.image = 2);
    seconds(&mut world, &mut operator, 60);
    assert_eq!(on(&world, 2), 0);
    // An order is an order once the clock is right again.
    world.change(|cluster| cluster.set_clock(3600));
    seconds(&mut world, &mut operator, 5);
    world.change(|cluster| {
        let now = cluster.now;
        cluster.pods.iter_mut().filter(|pod| pod.node == "n1").take(1).for_each(|pod| pod.ends_at = Some(now + 1));
    });
    world.run_until(&mut operator, 60, |world| on(world, 2) == 1).unwrap();
}

#[test]
fn setting_the_clock_back_after_a_drain_orders_no_update() {
    let mut world = World::new(Wish { on_delete: true, ..Wish::new(Marks::Token, 1) }, 3);
    let mut operator = Operator::default();
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
    edit(&mut world, |wish| wish.image = 2);
    seconds(&mut world, &mut operator, 5);
    let taint = |world: &mut World, taints: Value| world.change(|cluster| cluster.edit_node("n1", |node| node["spec"]["taints"] = taints));
    let pods = |world: &World| world.cluster.pods.iter().filter(|pod| pod.node == "n1").count();
    taint(&mut world, json!([{"key": names::KARPENTER_TAINT, "effect": "NoSchedule"}]));
    world.run_until(&mut operator, 60, |world| pods(world) == 0).unwrap();
    taint(&mut world, json!([]));
    world.run_until(&mut operator, 60, |world| pods(world) == 2).unwrap();
    world.change(|cluster| cluster.set_clock(-3600));
    seconds(&mut world, &mut operator, 60);
    assert!(world.cluster.ledger().unwrap().grants.is_empty());
    assert_eq!(on(&world, 2), 0);
}

#[test]
fn nodes_leaving_one_by_one_do_not_stall_the_rollout() {
    let (mut world, mut operator) = at_rest(&json!({"progressDeadlineSeconds": 40}), 10, 1);
    world.change(|cluster| {
        for node in 0..8 {
            cluster.edit_node(&format!("n{node}"), |node| node["metadata"]["labels"]["ingress"] = "false".into());
        }
    });
    for second in 0..300 {
        let plan = seconds(&mut world, &mut operator, 1);
        assert_eq!(condition(&plan, "Stalled"), None, "after {second} s: {:?}", world.cluster.ledger().unwrap().rollout_state);
    }
    assert_eq!(world.cluster.deployments.len(), 2);
}
