//! Random schedules against the audit of every state: lagging watches, lost and repeated writes, crashes, two operators,
//! users who change their minds, canaries, failures, rollbacks, drains. Then the faults end, and everything must come to rest.

use crate::proof;
use crate::rollout_state::on;
use crate::schedule;
use crate::world;

use crds::ledger::Failure;
use proptest::{
    prelude::*,
    sample::select,
    test_runner::{RngSeed, TestRunner},
};
use schedule::{
    Event, NODES, POD_UPDATES, Run,
    breaks::{Record, breaking, breaks},
    guided, has_failed, plain, sound,
};
use serde_json::json;
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    sync::OnceLock,
    time::Instant,
};
use world::{
    World,
    operator::Operator,
    pods::{Breaks, Flaps},
    wish::{ALL_MARKS, Marks, Wish, Zones},
};

const ZONES: [Zones; 3] = [Zones::Ignored, Zones::OneEach, Zones::OneAtATime];
/// Schedules of all tests that draw some, unless the environment asks for others (`SCHEDULES`).
const SCHEDULES: u32 = 10_000;
/// A share of the schedules is a quarter of what most of these tests draw. Five draw four shares; one, whose schedules are long, draws one.
const SHARES: u32 = 21;
/// What most of these tests draw.
const FOUR_SHARES: u32 = 4;

/// A world at rest for each set of marks and each use of zones, made once; in it, pods stay or are made anew as `pod_update` says.
fn at_rest(marks: Marks, budget: i32, zones: Zones, pod_update: &'static str) -> World {
    static WORLDS: OnceLock<BTreeMap<String, World>> = OnceLock::new();
    let make = |(marks, budget, zones): (Marks, i32, Zones)| {
        let mut world = World::new(Wish { zones, ..Wish::new(marks, budget) }, usize::from(NODES));
        world.run_until(&mut Operator::default(), 120, World::is_converged).unwrap();
        (format!("{marks:?}{budget}{zones:?}"), world)
    };
    let all =
        || ALL_MARKS.into_iter().flat_map(|marks| [1, 2, 3].into_iter().flat_map(move |budget| ZONES.map(|zones| (marks, budget, zones))));
    let mut world = WORLDS.get_or_init(|| all().map(make).collect())[&format!("{marks:?}{budget}{zones:?}")].clone();
    world.change(|cluster| cluster.edit_wish(|wish| wish.pod_update = pod_update));
    world.run_until(&mut Operator::default(), 20, World::is_converged).unwrap();
    world
}

fn check(world: &World, event: &Event) -> Result<(), TestCaseError> {
    prop_assert!(world.audit.violations.is_empty(), "after {event:?}: {:#?}\nledger {:#?}", world.audit.violations, world.cluster.ledger());
    Ok(())
}

/// Nothing is written any more when nothing happens.
fn comes_to_rest(world: &mut World, operator: &mut Operator) -> Result<(), TestCaseError> {
    for _ in 0..20 {
        let version = world.cluster.version;
        for _ in 0..15 {
            world.idle_second(operator);
        }
        if world.cluster.version == version && world.is_converged() {
            return Ok(());
        }
    }
    let plan = world.fair_second(operator);
    prop_assert!(false, "it is written again and again though nothing happens: {:?}", plan.map(|plan| plan.actions));
    Ok(())
}

/// Pods that are made at most on a node in the two minutes after an operator came to it whose kubelet refuses them all. These are two a
/// second until it has seen three refusals and the Deployment controller its answer, and the same when it tries again after a minute, or
/// another template.
const MOST_MADE: usize = 20;

/// P11: pods are not made without end.
fn is_no_flood(world: &mut World) -> Result<(), TestCaseError> {
    let refusing: Vec<String> = world.cluster.refusing.iter().cloned().collect();
    if refusing.is_empty() {
        return Ok(());
    }
    let made = |world: &World, node: &String| world.cluster.made.get(node).copied().unwrap_or(0);
    let before: Vec<_> = refusing.iter().map(|node| made(world, node)).collect();
    let mut operator = Operator::default();
    for _ in 0..120 {
        world.fair_second(&mut operator);
    }
    for (node, before) in refusing.iter().zip(before) {
        let made = made(world, node) - before;
        prop_assert!(made <= MOST_MADE, "P11: {made} pods are made for {node}, whose kubelet refuses them");
    }
    Ok(())
}

/// The world at the end of it all, for its counts.
fn survive(marks: usize, budget: i32, zones: usize, pods: usize, events: &[Event]) -> Result<World, TestCaseError> {
    let mut run = Run::new(at_rest(ALL_MARKS[marks], budget, ZONES[zones], POD_UPDATES[pods]));
    for event in events {
        run.happen(event);
        check(&run.world, event)?;
    }
    is_no_flood(&mut run.world)?;
    let mut operator = run.faults_end();
    // Until the last fault has shown in the pods.
    for _ in 0..10 {
        run.world.fair_second(&mut operator);
    }
    let end = Event::CatchUp(false);
    // A breaker stays open for a quarter of an hour at most.
    if let Err(why) = run.world.idle_until(&mut operator, 1800, World::is_converged) {
        prop_assert!(false, "{why}");
    }
    run.all_serve();
    check(&run.world, &end)?;
    comes_to_rest(&mut run.world, &mut operator)?;
    run.world.change(|cluster| cluster.edit_resource(|resource| resource.deleting = true));
    if let Err(why) = run.world.idle_until(&mut operator, 300, |world| world.cluster.resource.is_none()) {
        prop_assert!(false, "deletion: {why}");
    }
    check(&run.world, &end)?;
    prop_assert_eq!(run.world.leftovers(), Vec::<String>::new());
    Ok(run.world)
}

/// P18 and P19: a revision on which nothing but noise falls has not failed, at any time, and ends as that of all nodes.
fn survive_noise(marks: usize, budget: i32, pods: usize, events: &[Event]) -> Result<World, TestCaseError> {
    let mut run = Run::new(at_rest(ALL_MARKS[marks], budget, Zones::Ignored, POD_UPDATES[pods]));
    run.world.change(|cluster| cluster.edit_wish(|wish| wish.rollout = json!({"provenAfterSeconds": 60, "autoRollback": true})));
    for event in events {
        run.happen(event);
        check(&run.world, event)?;
        condemns_nothing(&run.world, event)?;
    }
    let mut operator = run.is_left_alone();
    if let Err(why) = run.world.idle_until(&mut operator, 3600, World::is_converged) {
        prop_assert!(false, "{why}");
    }
    let end = Event::CatchUp(false);
    check(&run.world, &end)?;
    condemns_nothing(&run.world, &end)?;
    Ok(run.world)
}

/// Seconds that a node takes to go back at most.
const BACK: i64 = 45;
/// Seconds until a revision that breaks must have failed, and its nodes have gone back, when nothing else happens.
const AT_MOST: usize = 1800;
/// The same where machines die: those that die at the same moment look like an outage, and only that they do so again and again tells.
const AT_MOST_OF_MACHINES: usize = 3 * AT_MOST;

/// P16, P17, P20 and P22, by what the world itself knows. A revision that breaks again and again reaches no more nodes than the budget
/// before it was seen to serve for as long as it must. It is not that of all nodes, fails, and is rolled back at once.
fn survive_breaks(marks: usize, budget: i32, pods: usize, proven: i64, breaks: Breaks, events: &[Event]) -> Result<World, TestCaseError> {
    let mut run = Run::new(at_rest(ALL_MARKS[marks], budget, Zones::Ignored, POD_UPDATES[pods]));
    let rollout = json!({"provenAfterSeconds": proven, "autoRollback": true, "nodeDeadlineSeconds": 90});
    run.world.change(|cluster| cluster.edit_wish(|wish| wish.rollout = rollout));
    run.happen(&Event::Calm(false, 5));
    run.record = Some(Record::new(&run.world.cluster, proven, breaks));
    let comes = Event::Breaks(breaks);
    for event in std::iter::once(&comes).chain(events) {
        run.happen(event);
        check(&run.world, event)?;
    }
    run.is_left_alone();
    let gone_back = |run: &Run| {
        run.record.as_ref().is_some_and(|record| record.rolled_back.is_some()) && on(&run.world, 1) == run.world.cluster.nodes.len()
    };
    let began = run.world.cluster.passed;
    let end = Event::Calm(false, 1);
    let (at_most, back) = match breaks {
        Breaks::Pods(_) => (AT_MOST, BACK),
        // A machine that is back may die once more before its pods are replaced.
        Breaks::Machine { down, .. } => (AT_MOST_OF_MACHINES, BACK + 2 * down),
    };
    for _ in 0..at_most {
        if gone_back(&run) || run.record.as_ref().is_some_and(|record| record.current) {
            break;
        }
        run.happen(&end);
        check(&run.world, &end)?;
    }
    let record = run.record.as_ref().expect("it was made");
    // What nobody saw break counts as good.
    if record.current && record.proved {
        return Ok(run.world);
    }
    // With all places taken by nodes that were out before, it stays there, and says so by their names: they condemn nothing.
    let failed = run.world.cluster.ledger().and_then(|ledger| ledger.rollout_state.as_ref()).map(|rollout| &rollout.failed);
    let blocked = |failed: &BTreeMap<_, Failure>| !failed.is_empty() && failed.values().all(|failure| failure.reason == "OutBefore");
    if record.rolled_back.is_none() && failed.is_some_and(blocked) {
        return Ok(run.world);
    }
    let Some(rolled_back) = record.rolled_back.filter(|_| gone_back(&run)) else {
        let status = run.world.cluster.resource.as_ref().and_then(|resource| resource.status.as_ref());
        prop_assert!(false, "P16: it does not end as failed and rolled back: {record:#?}\n{status:#?}");
        return Ok(run.world);
    };
    let took = run.world.cluster.passed - rolled_back.max(began);
    prop_assert!(took <= back * i64::try_from(record.with_it()).unwrap_or(0), "P22: it takes {took} s to go back from {record:#?}");
    Ok(run.world)
}

fn condemns_nothing(world: &World, event: &Event) -> Result<(), TestCaseError> {
    let Some(ledger) = world.cluster.ledger() else { return Ok(()) };
    let sound = ledger.rolled_back.is_none() && !ledger.rollout_state.as_ref().is_some_and(has_failed);
    prop_assert!(sound, "P18: a sound revision is condemned after {event:?}: {ledger:#?}");
    Ok(())
}

/// The same runs every time, unless the environment asks for others (`PROPTEST_RNG_SEED`, which `.cargo/config.toml` sets to this).
const SEED: u64 = 20_261_121;

fn number<N: std::str::FromStr>(name: &str, default: N) -> N {
    std::env::var(name).ok().and_then(|number| number.parse().ok()).unwrap_or(default)
}

/// What a test runs that draws so many shares of the schedules.
fn runs(shares: u32) -> ProptestConfig {
    ProptestConfig {
        cases: number("SCHEDULES", SCHEDULES).saturating_mul(shares).div_ceil(SHARES),
        rng_seed: RngSeed::Fixed(number("PROPTEST_RNG_SEED", SEED)),
        max_shrink_iters: 3000,
        max_shrink_time: 12_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Runs so many shares of the schedules, and says how many these are; what came about in them, by how many, is returned.
fn simulate<S: Strategy>(
    what: &str,
    shares: u32,
    schedules: &S,
    survive: impl Fn(S::Value) -> Result<World, TestCaseError>,
) -> BTreeMap<&'static str, u32> {
    let (config, started) = (runs(shares), Instant::now());
    let cases = config.cases;
    let (states, seen) = (RefCell::new(0), RefCell::new(BTreeMap::new()));
    let outcome = TestRunner::new(config).run(schedules, |schedule| {
        let audit = survive(schedule)?.audit;
        *states.borrow_mut() += audit.states;
        audit.seen.into_iter().for_each(|what| *seen.borrow_mut().entry(what).or_default() += 1);
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}\nPROPTEST_RNG_SEED={} draws the same schedules", number("PROPTEST_RNG_SEED", SEED));
    }
    let (states, seen) = (states.into_inner(), seen.into_inner());
    let list: Vec<_> = seen.iter().map(|(what, count)| format!("{what} {count}")).collect();
    // Tests that pass are silent; this is for people to read.
    let line = format!(
        "{what}: {cases} schedules of seed {}, {states} states audited, {:.1} s; {}",
        number("PROPTEST_RNG_SEED", SEED),
        started.elapsed().as_secs_f32(),
        list.join(", ")
    );
    let _ = writeln!(std::io::stdout().lock(), "{line}");
    seen
}

fn events(event: impl Strategy<Value = Event>) -> impl Strategy<Value = Vec<Event>> {
    prop::collection::vec(event, 10..52)
}

#[test]
fn no_schedule_breaks_the_budget_and_every_rollout_ends() {
    simulate("budget", FOUR_SHARES, &(0..6usize, 1..3i32, 0..2usize, events(plain())), |(marks, budget, pods, events)| {
        survive(marks, budget, 0, pods, &events)
    });
}

#[test]
fn no_schedule_breaks_zone_budgets_or_begins_a_second_zone() {
    let schedules = (0..6usize, 1..3usize, 0..2usize, events(plain()));
    simulate("zones", FOUR_SHARES, &schedules, |(marks, zones, pods, events)| survive(marks, 2, zones, pods, &events));
}

/// What the schedules with guidance must have come to, lest they prove nothing.
fn all_came_about(seen: &BTreeMap<&str, u32>, cases: u32) {
    let known = BTreeSet::from([
        "began to serve",
        "ceased to serve",
        "changed in place",
        "clock set",
        "drained",
        "evicted",
        "failed",
        "kept available",
        "kept out",
        "machine down",
        "mended",
        "proving",
        "refused",
        "rebuilt",
        "released",
        "replaced",
        "rolled back",
        "served on",
        "served through silence",
        "skipped",
        "stepped",
        "suspect",
        "updated in place",
        "waited for a silent port",
        "waited for news",
    ]);
    if cases >= 1000 {
        // What takes a proof of a minute and three falls is what other schedules are about.
        let common = seen.keys().copied().filter(|what| !["fell", "lost"].contains(what));
        assert_eq!(common.collect::<BTreeSet<_>>(), known);
    }
}

#[test]
fn no_canary_rollback_window_or_drain_breaks_the_budget() {
    let schedules = (0..6usize, 1..3i32, 0..2usize, events(guided()));
    let seen = simulate("guided", FOUR_SHARES, &schedules, |(marks, budget, pods, events)| survive(marks, budget, 0, pods, &events));
    all_came_about(&seen, runs(FOUR_SHARES).cases);
}

#[test]
fn no_canary_rollback_window_or_drain_breaks_a_zones_budget() {
    let schedules = (0..6usize, 2..4i32, 1..3usize, 0..2usize, events(guided()));
    let seen = simulate("guided, zones", FOUR_SHARES, &schedules, |(marks, budget, zones, pods, events)| {
        survive(marks, budget, zones, pods, &events)
    });
    all_came_about(&seen, runs(FOUR_SHARES).cases);
}

#[test]
fn no_noise_or_clock_step_condemns_a_sound_revision() {
    let schedules = (0..6usize, 1..3i32, 0..2usize, sound());
    let seen = simulate("noise", FOUR_SHARES, &schedules, |(marks, budget, pods, events)| survive_noise(marks, budget, pods, &events));
    let known = ["proving", "suspect", "fell", "evicted", "clock set", "machine down"];
    assert!(runs(FOUR_SHARES).cases < 100 || known.iter().all(|what| seen.contains_key(what)), "{seen:?}");
}

#[test]
fn no_revision_that_breaks_reaches_more_than_the_budget() {
    let schedules = (0..6usize, 1..3i32, 0..2usize, select(vec![15, 60])).prop_flat_map(|(marks, budget, pods, proven)| {
        (Just((marks, budget, pods, proven)), prop_oneof![3 => breaks(1..proven), 1 => breaks(proven..2 * proven)], breaking())
    });
    let seen = simulate("breaks", 1, &schedules, |((marks, budget, pods, proven), breaks, events)| {
        survive_breaks(marks, budget, pods, proven, breaks, &events)
    });
    assert!(["failed", "lost", "proving", "rolled back"].iter().all(|what| seen.contains_key(what)), "{seen:?}");
}

/// P16 for what breaks after it was proved, but sooner than falls are forgotten.
#[test]
fn a_revision_breaking_soon_after_its_proof_is_rolled_back() {
    /// Seconds that a node takes at least, most of them its soak.
    const NODE: i64 = 35;
    let flaps = (60..240i64, 11..40i64, any::<bool>()).prop_map(|(good, bad, crashes)| Flaps { good, bad, crashes });
    let config = ProptestConfig { cases: 8, ..runs(1) };
    let outcome = TestRunner::new(config).run(&(flaps, 1..3i32), |(flaps, budget)| {
        let (mut world, mut operator) = proof::proving(&json!({"autoRollback": true}), 12, budget);
        world.change(|cluster| cluster.edit_wish(|wish| wish.attach_soak = 30));
        let outcome = proof::release(&mut world, &mut operator, 2000, |world, _| flaps.second(world, 2));
        let most = 2 * i64::from(budget) * (1 + flaps.good / NODE);
        prop_assert!(i64::try_from(outcome.reached).unwrap() <= most, "P16: it reaches {}, of {most} that it may", outcome.reached);
        prop_assert!(!outcome.ever_current, "P16: it was current");
        prop_assert_eq!(on(&world, 1), 12, "P16: it is not rolled back: {:#?}", outcome.plan.node_states);
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn a_slot_with_changed_pods_is_taken_over_while_paused() {
    let second = Event::Seconds(1, 0);
    let events = [
        Event::Image(3),
        second.clone(),
        second.clone(),
        second.clone(),
        second.clone(),
        Event::CatchUpAndAct(false),
        Event::Pause(true),
        Event::CatchUpAndAct(false),
        Event::CatchUpAndAct(false),
        Event::Seconds(5, u8::MAX),
        Event::CatchUpAndAct(false),
        Event::Seconds(4, u8::MAX),
        Event::CatchUpAndAct(true),
        Event::CatchUp(false),
        Event::Recreate(0),
        Event::Recreate(2),
        Event::CatchUp(true),
        Event::Act { who: false, arrives: 641 },
        Event::Act { who: true, arrives: 19340 },
        second,
    ];
    survive(3, 1, 0, 0, &events).unwrap();
}

#[test]
fn a_former_key_stays_while_an_old_update_may_arrive() {
    let (first, second) = (false, true);
    let mut events = vec![
        Event::Marks(2),
        Event::Image(2),
        Event::CatchUpAndAct(first),
        Event::CatchUpAndAct(second),
        Event::Observe { who: second, store: 1, versions: 1 },
        Event::Key(2),
        Event::CatchUpAndAct(first),
        Event::Seconds(5, 0),
        Event::CatchUpAndAct(first),
        Event::Act { who: second, arrives: 20221 },
    ];
    events.extend(std::iter::repeat_n(Event::Seconds(1, 0), 10));
    survive(0, 1, 0, 0, &events).unwrap();
}

#[test]
fn a_departed_node_regains_no_mark_without_an_entry() {
    let (first, second) = (false, true);
    let events = [
        Event::Fails(true),
        Event::Calm(first, 10),
        Event::Pool(2),
        Event::Calm(first, 19),
        Event::RollbackTo(Some(3)),
        Event::CatchUpAndAct(first),
        Event::CatchUpAndAct(first),
        Event::CatchUpAndAct(second),
        Event::Calm(first, 12),
        Event::Act { who: second, arrives: 514 },
    ];
    survive(3, 2, 2, 0, &events).unwrap();
}

/// A load balancer hears of a mark when it arrives, not when the operator decided to write it; whoever starts afterwards reads of that
/// time alone.
#[test]
fn a_late_claim_has_its_whole_grace_despite_another_operator() {
    let (first, second) = (false, true);
    let events = [
        Event::CatchUpAndAct(first),
        Event::Act { who: first, arrives: 0 },
        Event::Act { who: second, arrives: 5 },
        Event::Pods(0),
        Event::CatchUpAndAct(second),
        Event::CatchUp(first),
        Event::Act { who: first, arrives: 1360 },
        Event::Seconds(2, 0),
        Event::Late(11),
        Event::Seconds(1, 0),
        Event::Observe { who: first, store: 0, versions: 1 },
    ];
    for pods in 0..2 {
        survive(1, 2, 0, pods, &events).unwrap();
    }
}
