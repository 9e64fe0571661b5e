//! Every order of what may befall a revision while it is to be proved, in a small fleet with one pod a node: exhaustive where the random
//! schedules are wide.

use crate::{
    proof::proving,
    schedule::promises,
    world::{World, operator::Operator},
};
use serde_json::json;
use std::collections::BTreeSet;

/// Seconds for which the revision has to serve.
const PROVEN: i64 = 15;
/// What may happen happens at the beginning of each slot of so many seconds: a revision that breaks in each breaks sooner than it is
/// proved.
const SLOT: usize = 10;
/// Seconds within which a revision is current, or rolled back, after the last slot.
const LATER: usize = 240;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Slot {
    Calm,
    /// Containers of the revision end, and begin anew.
    Restarts,
    /// Its pods are not ready for so long that each has fallen.
    Unready,
    /// The first machine that runs it loses power.
    MachineDies,
    /// The operator is away for a moment, and starts anew.
    OperatorAway,
    /// Clocks are set.
    ClockSteps,
}

const ALL: [Slot; 6] = [Slot::Calm, Slot::Restarts, Slot::Unready, Slot::MachineDies, Slot::OperatorAway, Slot::ClockSteps];

impl Slot {
    fn breaks(self) -> bool {
        matches!(self, Self::Restarts | Self::Unready | Self::MachineDies)
    }

    /// Seconds from one to the next: what does not serve for most of a slot has to serve for a moment before it falls again.
    fn again(self) -> usize {
        if self == Self::Restarts { SLOT } else { 2 * SLOT }
    }
}

#[derive(Clone)]
struct Fleet {
    world: World,
    operator: Operator,
    revision: String,
    past: Vec<Slot>,
    /// Nodes that were given the revision.
    reached: BTreeSet<String>,
    /// When it last broke or came to a first node, by a clock that nobody sets.
    broke: Option<i64>,
}

impl Fleet {
    /// A first node gets the revision, and is attached.
    fn begin(nodes: usize) -> Self {
        let (mut world, operator) = proving(&json!({"provenAfterSeconds": PROVEN, "autoRollback": true}), nodes, 1);
        world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
        let revision = world.cluster.wish.revision_of(2);
        let mut fleet = Self { world, operator, revision, past: Vec::new(), reached: BTreeSet::new(), broke: None };
        while fleet.reached.is_empty() || !fleet.world.cluster.ledger().is_some_and(|ledger| ledger.grants.is_empty()) {
            fleet.second();
        }
        fleet
    }

    fn befalls(&mut self, slot: Slot) {
        self.past.push(slot);
        self.strikes(slot);
        let away = if slot == Slot::OperatorAway { 5 } else { 0 };
        (0..away).for_each(|_| self.world.tick());
        if away > 0 {
            self.operator.crash(&self.world, 0);
        }
        (away..SLOT).for_each(|_| self.second());
    }

    /// What happens in the first moment of a slot.
    fn strikes(&mut self, slot: Slot) {
        let (mut broke, revision) = (false, &self.revision);
        self.world.change(|cluster| {
            let now = cluster.now;
            let runs: Vec<_> =
                cluster.pods.iter().filter(|pod| pod.revision() == revision && pod.is_active()).map(|pod| pod.node.clone()).collect();
            let pods = cluster.pods.iter_mut().filter(|pod| pod.revision() == revision && pod.is_active());
            broke = !runs.is_empty() && slot.breaks();
            match slot {
                Slot::Restarts => pods.for_each(crate::world::pods::Pod::crash),
                Slot::Unready => pods.for_each(|pod| pod.ready_at = pod.ready_at.max(now + 13)),
                Slot::MachineDies => runs.first().into_iter().for_each(|node| cluster.machine_dies(node, 8)),
                Slot::ClockSteps => cluster.set_clock(3600),
                Slot::Calm | Slot::OperatorAway => {}
            }
        });
        if broke {
            self.broke = Some(self.world.cluster.passed);
        }
    }

    /// One of the operator, with all that it promises.
    fn second(&mut self) {
        let before = self.is_current_in(&self.world);
        let world = &mut self.world;
        self.operator.catch_up(world);
        let planned = self.operator.plan(world).unwrap();
        world.audit.violations.extend(promises::broken(&planned.snapshot, &planned.plan));
        for request in &planned.requests {
            self.operator.send(world, request);
        }
        let passed = world.cluster.passed;
        let runs = world.cluster.pods.iter().filter(|pod| pod.revision() == self.revision);
        self.reached.extend(runs.map(|pod| pod.node.clone()));
        if !self.reached.is_empty() {
            self.broke.get_or_insert(passed);
        }
        let unbroken = self.broke.map_or(0, |broke| passed - broke);
        if !before && self.is_current_in(&self.world) && unbroken < PROVEN {
            self.world.audit.violations.push(format!("P17: it is current {unbroken} s after it broke"));
        }
        // Where machines are lost, the node that loses one may be out already when the next is begun.
        let lost = usize::from(self.past.contains(&Slot::MachineDies));
        if self.past.iter().all(|slot| slot.breaks()) && self.reached.len() > 1 + lost {
            self.world.audit.violations.push(format!("P16: it breaks within {SLOT} s, and has reached {:?}", self.reached));
        }
        self.world.tick();
    }

    fn is_current_in(&self, world: &World) -> bool {
        let status = world.cluster.resource.as_ref().and_then(|resource| resource.status.as_ref());
        status.is_some_and(|status| status.revisions.current == self.revision)
    }

    /// All that may come from here; how many ends there are, and at how many the revision is current, and has failed.
    fn go_on(&self, left: usize) -> [usize; 3] {
        assert_eq!(self.world.audit.violations, Vec::<String>::new(), "after {:?}", self.past);
        if left == 0 {
            return self.end();
        }
        let next = ALL.map(|slot| {
            let mut next = self.clone();
            next.befalls(slot);
            next.go_on(left - 1)
        });
        next.into_iter().fold([0; 3], sum)
    }
}

impl Fleet {
    fn is_rolled_back(&self) -> bool {
        self.world.cluster.ledger().is_some_and(|ledger| ledger.rolled_back.is_some())
    }

    /// P18 where nothing broke, P16 where it broke in each slot; what came of the revision by the end of the last slot.
    fn end(&self) -> [usize; 3] {
        let ended = [1, usize::from(self.is_current_in(&self.world)), usize::from(self.is_rolled_back())];
        let breaks = self.past.iter().filter(|slot| slot.breaks()).count();
        if breaks > 0 && breaks < self.past.len() {
            return ended;
        }
        let mut later = self.clone();
        let mut was_current = ended[1] > 0;
        for second in 0..LATER {
            if later.is_current_in(&later.world) || later.is_rolled_back() {
                break;
            }
            // What has broken in each slot goes on as it did last.
            if let Some(slot) = later.past.last().copied().filter(|slot| slot.breaks() && (second + SLOT).is_multiple_of(slot.again())) {
                later.strikes(slot);
            }
            later.second();
            was_current |= later.is_current_in(&later.world);
        }
        assert_eq!(later.world.audit.violations, Vec::<String>::new(), "after {:?}", later.past);
        let (current, back) = (later.is_current_in(&later.world), later.is_rolled_back());
        if breaks == 0 {
            assert!(current && !back, "P18: it never broke, and after {:?} it is current: {current}, rolled back: {back}", self.past);
        } else {
            assert!(
                back && !was_current,
                "P16: it broke in each slot, and after {:?} it is rolled back: {back}, current: {was_current}",
                self.past
            );
        }
        ended
    }
}

/// How many ends there are after so many slots, at how many the revision is current, and at how many it was rolled back.
fn search(nodes: usize, slots: usize) -> [usize; 3] {
    let first = Fleet::begin(nodes);
    std::thread::scope(|scope| {
        let each = ALL.map(|slot| {
            let mut fleet = first.clone();
            scope.spawn(move || {
                fleet.befalls(slot);
                fleet.go_on(slots - 1)
            })
        });
        each.map(|thread| thread.join().unwrap()).into_iter().fold([0; 3], sum)
    })
}

fn sum(one: [usize; 3], other: [usize; 3]) -> [usize; 3] {
    std::array::from_fn(|i| one[i] + other[i])
}

#[test]
fn in_no_order_a_revision_that_breaks_reaches_a_second_node_or_is_current_before_it_is_proved() {
    let [ends, current, rolled_back] = search(2, 5);
    assert_eq!(ends, ALL.len().pow(5));
    assert!(current > 0 && rolled_back > 0, "of {ends} orders {current} end with the revision, {rolled_back} without it");
    search(3, 4);
}
