//! Random schedules against the audit of every state: lagging watches, lost and repeated writes, crashes, two operators,
//! and users who change their minds. Then the faults end, and everything must come to rest.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says where")]

mod world;

use planner::{Action, Plan, Snapshot};
use proptest::{prelude::*, test_runner::RngSeed};
use std::{collections::BTreeMap, sync::OnceLock};
use world::{
    World,
    cluster::Detacher,
    operator::{Operator, Request, STORES},
    wish::{Marks, Wish, Zones},
};

const MARKS: [Marks; 6] = [Marks::Token, Marks::Deployment, Marks::Node, Marks::Both, Marks::Timestamp, Marks::Degrade];
const NODES: u8 = 4;

#[derive(Clone, Debug)]
enum Event {
    /// Time passes; the bits say whose Deployment controller keeps up.
    Seconds(u8, u8),
    /// A watch of an operator delivers this many versions.
    Observe {
        who: bool,
        store: u8,
        versions: u8,
    },
    CatchUp(bool),
    /// An operator decides; the bits say which of its writes arrive now. All may arrive later, patches more than once.
    Act {
        who: bool,
        arrives: u16,
    },
    /// Both at once, the usual case.
    CatchUpAndAct(bool),
    /// A write of long ago arrives.
    Late(u8),
    Crash {
        who: bool,
        behind: u8,
    },
    Image(u8),
    Budget(u8),
    Marks(u8),
    Key(bool),
    Pods(u8),
    Pause(bool),
    OnTimeout(u8),
    Detacher(u8),
    Leave(u8),
    Return(u8),
    Vanish(u8),
    Recreate(u8),
    Ready(u8, bool),
    Unready,
    DeleteDeployment(u8, bool),
    Wipe,
}

/// What operators and networks do.
fn course() -> impl Strategy<Value = Event> {
    prop_oneof![
        20 => (1..6u8, any::<u8>()).prop_map(|(seconds, synced)| Event::Seconds(seconds, synced)),
        4 => (3..9u8).prop_map(|seconds| Event::Seconds(seconds, u8::MAX)),
        12 => (any::<bool>(), 0..4u8, 1..8u8).prop_map(|(who, store, versions)| Event::Observe { who, store, versions }),
        6 => any::<bool>().prop_map(Event::CatchUp),
        14 => (any::<bool>(), any::<u16>()).prop_map(|(who, arrives)| Event::Act { who, arrives }),
        22 => any::<bool>().prop_map(Event::CatchUpAndAct),
        4 => any::<u8>().prop_map(Event::Late),
        2 => (any::<bool>(), 0..60u8).prop_map(|(who, behind)| Event::Crash { who, behind }),
    ]
}

/// What users change.
fn order() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1..4u8).prop_map(Event::Image),
        2 => (1..3u8).prop_map(Event::Budget),
        1 => (0..6u8).prop_map(Event::Marks),
        1 => any::<bool>().prop_map(Event::Key),
        2 => (0..4u8).prop_map(Event::Pods),
        2 => any::<bool>().prop_map(Event::Pause),
        1 => (0..3u8).prop_map(Event::OnTimeout),
    ]
}

/// What befalls the cluster.
fn accident() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => (0..3u8).prop_map(Event::Detacher),
        3 => (0..NODES).prop_map(Event::Leave),
        3 => (0..NODES).prop_map(Event::Return),
        1 => (0..NODES).prop_map(Event::Vanish),
        2 => (0..NODES).prop_map(Event::Recreate),
        2 => (0..NODES, any::<bool>()).prop_map(|(node, ready)| Event::Ready(node, ready)),
        1 => Just(Event::Unready),
        2 => (0..NODES, any::<bool>()).prop_map(|(node, orphan)| Event::DeleteDeployment(node, orphan)),
        1 => Just(Event::Wipe),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![30 => course(), 2 => order(), 1 => accident()]
}

const ZONES: [Zones; 3] = [Zones::Ignored, Zones::OneEach, Zones::OneAtATime];

/// A world at rest for each set of marks and each use of zones, made once.
fn at_rest(marks: Marks, budget: i32, zones: Zones) -> World {
    static WORLDS: OnceLock<BTreeMap<String, World>> = OnceLock::new();
    let make = |(marks, budget, zones): (Marks, i32, Zones)| {
        let mut world = World::new(Wish { zones, ..Wish::new(marks, budget) }, usize::from(NODES));
        world.run_until(&mut Operator::default(), 120, World::is_converged).unwrap();
        (format!("{marks:?}{budget}{zones:?}"), world)
    };
    let all = || MARKS.into_iter().flat_map(|marks| [1, 2].into_iter().flat_map(move |budget| ZONES.map(|zones| (marks, budget, zones))));
    WORLDS.get_or_init(|| all().map(make).collect())[&format!("{marks:?}{budget}{zones:?}")].clone()
}

struct Run {
    world: World,
    operators: [Operator; 2],
    late: Vec<Request>,
}

impl Run {
    fn new(world: World) -> Self {
        let mut operators = [Operator::default(), Operator::default()];
        for operator in &mut operators {
            operator.catch_up(&world);
        }
        Self { world, operators, late: Vec::new() }
    }

    fn act(&mut self, who: bool, arrives: u16) {
        let Some(planned) = self.operators[usize::from(who)].plan(&self.world) else { return };
        self.world.audit.violations.extend(held_without_a_reason(&planned.snapshot, &planned.plan));
        for (index, request) in planned.requests.into_iter().enumerate() {
            let now = arrives >> (index % 16) & 1 == 1;
            if now {
                self.operators[usize::from(who)].send(&mut self.world, &request);
            }
            // A creation is sent once; anything else may come again.
            if !now || !matches!(request.action, Action::CreateDeployment { .. }) {
                self.late.push(request);
            }
        }
    }

    fn late(&mut self, which: u8) {
        if self.late.is_empty() {
            return;
        }
        let index = usize::from(which) % self.late.len();
        let request = self.late[index].clone();
        if matches!(request.action, Action::CreateDeployment { .. }) {
            self.late.remove(index);
        }
        self.world.apply(&request);
    }

    fn happen(&mut self, event: &Event) {
        let name = |node: u8| format!("n{node}");
        match *event {
            Event::Seconds(seconds, synced) => {
                for _ in 0..seconds {
                    self.world.change(|cluster| cluster.tick(|index| synced >> (index % 8) & 1 == 1));
                }
            }
            Event::Observe { who, store, versions } => {
                self.operators[usize::from(who)].advance(&self.world, STORES[usize::from(store)], usize::from(versions));
            }
            Event::CatchUp(who) => self.operators[usize::from(who)].catch_up(&self.world),
            Event::Act { who, arrives } => self.act(who, arrives),
            Event::CatchUpAndAct(who) => {
                self.operators[usize::from(who)].catch_up(&self.world);
                self.act(who, u16::MAX);
            }
            Event::Late(which) => self.late(which),
            Event::Crash { who, behind } => self.operators[usize::from(who)].crash(&self.world, usize::from(behind)),
            Event::Image(image) => self.world.change(|cluster| cluster.edit_wish(|wish| wish.image = image)),
            Event::Budget(budget) => self.world.change(|cluster| cluster.edit_wish(|wish| wish.budget = budget.into())),
            Event::Marks(marks) => self.world.change(|cluster| cluster.edit_wish(|wish| wish.marks = MARKS[usize::from(marks)])),
            Event::Key(other) => self.world.change(|cluster| cluster.edit_wish(|wish| wish.key = other.into())),
            Event::Pods(pods) => self.world.change(|cluster| cluster.edit_wish(|wish| wish.pods = pods.into())),
            Event::Pause(paused) => self.world.change(|cluster| cluster.edit_wish(|wish| wish.paused = paused)),
            Event::OnTimeout(policy) => {
                self.world.change(|cluster| cluster.edit_wish(|wish| wish.on_timeout = ["Halt", "Proceed", "Abort"][usize::from(policy)]));
            }
            Event::Detacher(kind) => {
                self.world.change(|cluster| cluster.detacher = [Detacher::Good, Detacher::Silent, Detacher::Stale][usize::from(kind)]);
            }
            Event::Leave(node) => {
                self.world.change(|cluster| cluster.edit_node(&name(node), |node| node["metadata"]["labels"]["ingress"] = "false".into()));
            }
            Event::Return(node) => {
                self.world.change(|cluster| cluster.edit_node(&name(node), |node| node["metadata"]["labels"]["ingress"] = "true".into()));
            }
            Event::Vanish(node) | Event::Recreate(node) => {
                self.world.audit.disturbed.insert(name(node));
                self.world.change(|cluster| {
                    cluster.version += 1;
                    cluster.nodes.remove(&name(node));
                    if matches!(event, Event::Recreate(_)) {
                        cluster.join(&name(node));
                    }
                });
            }
            Event::Ready(node, ready) => {
                self.world.change(|cluster| cluster.edit_node(&name(node), |node| node["status"]["ready"] = ready.into()));
            }
            Event::Unready => self.world.change(|cluster| {
                let later = cluster.now + 8;
                cluster.pods.iter_mut().for_each(|pod| pod.ready_at = pod.ready_at.max(later));
            }),
            Event::DeleteDeployment(node, orphan) => {
                self.world.audit.disturbed.insert(name(node));
                self.world.change(|cluster| cluster.delete_deployment(&format!("edge-n{node}"), orphan));
            }
            Event::Wipe => {
                // An id that was reserved from a ledger must not outlive it.
                self.operators.iter_mut().for_each(Operator::forget_reserved);
                self.late.retain(|request| !matches!(request.action, Action::CreateDeployment { .. }));
                self.world.change(|cluster| cluster.edit_resource(|resource| resource.status = None));
            }
        }
    }

    /// The faults end: one operator, fresh watches, a detacher that works, Nodes that are Ready.
    fn faults_end(&mut self) -> Operator {
        self.world.change(|cluster| {
            cluster.detacher = Detacher::Good;
            cluster.answered.clear();
            // What was given up is tried again only when somebody changes the template or the policy.
            cluster.edit_wish(|wish| {
                wish.paused = false;
                wish.on_timeout = "Halt";
            });
            for name in cluster.nodes.keys().cloned().collect::<Vec<_>>() {
                cluster.edit_node(&name, |node| node["status"]["ready"] = true.into());
            }
        });
        Operator::default()
    }
}

/// P14: a node that is not done, and of which the plan does not say why.
fn held_without_a_reason(snapshot: &Snapshot, plan: &Plan) -> Option<String> {
    if !snapshot.resource.finalizers.iter().any(|finalizer| finalizer == crds::names::FINALIZER) {
        return None;
    }
    let revision = crds::hash::revision(&snapshot.resource.spec.template);
    let ledger = snapshot.resource.status.as_ref().and_then(|status| status.rollout.as_ref());
    let mut chosen = snapshot.nodes.iter().filter(|(_, node)| node.labels.get("ingress").map(String::as_str) == Some("true"));
    let silent = chosen.find(|(name, _)| {
        let done = snapshot.deployments.get(*name).is_some_and(|deployment| {
            let wanted = deployment.revision() == revision && deployment.replicas() == snapshot.resource.spec.pods_per_node;
            wanted && planner::readiness::is_settled(deployment, snapshot.pods_on(name))
        });
        let granted = ledger.is_some_and(|ledger| ledger.grants.contains_key(*name));
        !(done && !granted || plan.held.contains_key(*name) || granted && releases(plan, name))
    });
    silent.map(|(name, node)| format!("P14: {name} is held without a reason: {node:?}, {:?}", snapshot.deployments.get(name)))
}

/// The plan takes the node's grant away: it is done.
fn releases(plan: &Plan, node: &str) -> bool {
    plan.status.rollout.as_ref().is_some_and(|ledger| !ledger.grants.contains_key(node))
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
            world.fair_second(operator);
        }
        if world.cluster.version == version && world.is_converged() {
            return Ok(());
        }
    }
    let plan = world.fair_second(operator);
    prop_assert!(false, "it is written again and again though nothing happens: {:?}", plan.map(|plan| plan.actions));
    Ok(())
}

fn survive(marks: usize, budget: i32, zones: usize, events: &[Event]) -> Result<(), TestCaseError> {
    let mut run = Run::new(at_rest(MARKS[marks], budget, ZONES[zones]));
    for event in events {
        run.happen(event);
        check(&run.world, event)?;
    }
    let mut operator = run.faults_end();
    // Until the last fault has shown in the pods.
    for _ in 0..10 {
        run.world.fair_second(&mut operator);
    }
    let end = Event::CatchUp(false);
    if let Err(why) = run.world.run_until(&mut operator, 600, World::is_converged) {
        prop_assert!(false, "{why}");
    }
    check(&run.world, &end)?;
    comes_to_rest(&mut run.world, &mut operator)?;
    run.world.change(|cluster| cluster.edit_resource(|resource| resource.deleting = true));
    if let Err(why) = run.world.run_until(&mut operator, 300, |world| world.cluster.resource.is_none()) {
        prop_assert!(false, "deletion: {why}");
    }
    check(&run.world, &end)?;
    prop_assert_eq!(run.world.leftovers(), Vec::<String>::new());
    Ok(())
}

/// The same runs every time, unless the environment asks for others (`PROPTEST_RNG_SEED`) or for more (`PROPTEST_CASES`).
fn runs(default: u32) -> ProptestConfig {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let cases = number("PROPTEST_CASES").and_then(|cases| u32::try_from(cases).ok()).unwrap_or(default);
    let rng_seed = RngSeed::Fixed(number("PROPTEST_RNG_SEED").unwrap_or(20_261_121));
    ProptestConfig {
        cases,
        rng_seed,
        max_shrink_iters: 3000,
        max_shrink_time: 12_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(runs(300))]

    #[test]
    fn no_schedule_breaks_the_budget_and_every_rollout_ends(marks in 0..6usize, budget in 1..3i32, events in prop::collection::vec(event(), 20..160)) {
        survive(marks, budget, 0, &events)?;
    }

    #[test]
    fn no_schedule_breaks_the_budget_of_a_zone_or_begins_a_second_zone(marks in 0..6usize, zones in 1..3usize, events in prop::collection::vec(event(), 20..160)) {
        survive(marks, 2, zones, &events)?;
    }
}

#[test]
fn a_slot_in_which_pods_have_changed_is_taken_over_while_paused_though_its_node_was_closed_meanwhile() {
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
    survive(3, 1, 0, &events).unwrap();
}

#[test]
fn a_changed_key_does_not_come_off_the_node_while_a_late_update_of_the_old_grant_could_still_arrive() {
    let (first, second) = (false, true);
    let mut events = vec![
        Event::Marks(2),
        Event::Image(2),
        Event::CatchUpAndAct(first),
        Event::CatchUpAndAct(second),
        Event::Observe { who: second, store: 1, versions: 1 },
        Event::Key(true),
        Event::CatchUpAndAct(first),
        Event::Seconds(5, 0),
        Event::CatchUpAndAct(first),
        Event::Act { who: second, arrives: 20221 },
    ];
    events.extend(std::iter::repeat_n(Event::Seconds(1, 0), 10));
    survive(0, 1, 0, &events).unwrap();
}
