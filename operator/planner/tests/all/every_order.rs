//! Every order of what may befall a revision while it is to be proved, in a small fleet with one pod a node: exhaustive where the random
//! schedules are wide.

use crate::{
    proof::{proving, serving},
    schedule::promises,
    world::{
        World,
        cluster::{Cluster, END, node_of, revision},
        operator::Operator,
        pods::Pod,
    },
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
/// Seconds that a node takes to go back at most, and that an operator takes to begin it.
const BACK: usize = 45;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Slot {
    Calm,
    /// Containers of the revision end, and start again.
    Restarts,
    /// Its pods are not ready for so long that each has fallen.
    Unready,
    /// The first machine that runs it loses power.
    MachineDies,
    /// The operator is away for a moment, and starts anew.
    OperatorAway,
    /// Clocks are set.
    ClockSteps,
    /// Somebody deletes its pods.
    PodsDeleted,
    /// Another node comes.
    NodeJoins,
    /// The newest node is no longer chosen.
    NodeLeaves,
}

/// What may befall a fleet of a fixed number of nodes.
const FIXED: [Slot; 6] = [Slot::Calm, Slot::Restarts, Slot::Unready, Slot::MachineDies, Slot::OperatorAway, Slot::ClockSteps];
/// What may befall one whose nodes come and go.
const CHANGING: [Slot; 6] = [Slot::Calm, Slot::Restarts, Slot::Unready, Slot::PodsDeleted, Slot::NodeJoins, Slot::NodeLeaves];

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
    /// When it last broke, was not ready, or came to a first node, by a clock that nobody sets.
    broke: Option<i64>,
    /// On all of the first nodes that run it it has been ready for as long as it must, at least once.
    proved: bool,
    /// Nodes that were there from the beginning.
    first: BTreeSet<String>,
    /// Seconds of the operator since it was rolled back.
    back: usize,
}

impl Fleet {
    /// A first node gets the revision, and is attached.
    fn begin(nodes: usize, minimum: i32) -> Self {
        let (mut world, operator) = proving(&json!({"provenAfterSeconds": PROVEN, "autoRollback": true}), nodes, 1);
        world.change(|cluster| cluster.edit_wish(|wish| (wish.image, wish.minimum) = (2, minimum)));
        let revision = world.cluster.wish.revision_of(2);
        let first = world.cluster.nodes.keys().cloned().collect();
        let (past, reached) = (Vec::new(), BTreeSet::new());
        let mut fleet = Self { world, operator, revision, past, reached, broke: None, proved: false, first, back: 0 };
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
            broke = !runs.is_empty() && (slot.breaks() || slot == Slot::PodsDeleted);
            match slot {
                Slot::Restarts => pods.for_each(Pod::crash),
                Slot::Unready => pods.for_each(|pod| pod.ready_at = pod.ready_at.max(now + 13)),
                Slot::MachineDies => runs.first().into_iter().for_each(|node| cluster.machine_dies(node, 8)),
                Slot::ClockSteps => cluster.set_clock(3600),
                Slot::PodsDeleted => pods.for_each(|pod| pod.ends_at = Some(now + END)),
                Slot::NodeJoins => cluster.join(&format!("n{}", cluster.nodes.len())),
                Slot::NodeLeaves => leaves(cluster),
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
        // Those of a node that joins prove nothing, and are no break.
        let of_first = |pod: &&Pod| pod.revision() == self.revision && pod.is_active() && self.first.contains(&pod.node);
        let mut runs = world.cluster.pods.iter().filter(of_first);
        if runs.any(|pod| !pod.ready) {
            self.broke = Some(passed);
        }
        let unbroken = self.broke.map_or(0, |broke| passed - broke);
        self.proved |= unbroken >= PROVEN;
        self.membership();
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

    /// P20, P21 and P22 by the objects of the world, besides what [`promises`] says of plans.
    fn membership(&mut self) {
        let cluster = &self.world.cluster;
        let mut wrong = Vec::new();
        let joined = self.reached.iter().find(|node| !self.first.contains(*node));
        if let Some(node) = joined.filter(|_| !self.proved) {
            wrong.push(format!("P20: {node} joins, and is given what is not proved"));
        }
        let has_pods = |node: &&String| cluster.pods.iter().any(|pod| pod.node == **node);
        let serve = serving(&self.world).iter().filter(has_pods).count();
        let undisturbed = self.past.iter().all(|slot| matches!(slot, Slot::Calm | Slot::NodeJoins | Slot::NodeLeaves));
        if undisturbed && serve < self.minimum() {
            wrong.push(format!("P21: {serve} nodes serve, {} must", self.minimum()));
        }
        self.back += usize::from(self.is_rolled_back());
        if self.back > BACK * self.reached.len()
            && let Some(node) = self.has_it()
        {
            wrong.push(format!("P22: {} s after it was rolled back {node} has it", self.back));
        }
        self.world.audit.violations.extend(wrong);
    }

    /// A node that is to run it.
    fn has_it(&self) -> Option<&str> {
        let mut deployments = self.world.cluster.deployments.values();
        deployments.find(|deployment| revision(&deployment["spec"]["template"]) == self.revision).map(node_of)
    }

    fn minimum(&self) -> usize {
        usize::try_from(self.world.cluster.wish.minimum).unwrap()
    }

    fn is_current_in(&self, world: &World) -> bool {
        let status = world.cluster.resource.as_ref().and_then(|resource| resource.status.as_ref());
        status.is_some_and(|status| status.revisions.current == self.revision)
    }

    /// All that may come from here; how many ends there are, and at how many the revision is current, and has failed.
    fn go_on(&self, slots: [Slot; 6], left: usize) -> [usize; 3] {
        assert_eq!(self.world.audit.violations, Vec::<String>::new(), "after {:?}", self.past);
        if left == 0 {
            return self.end();
        }
        let next = slots.map(|slot| {
            let mut next = self.clone();
            next.befalls(slot);
            next.go_on(slots, left - 1)
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
        let chosen = self.world.cluster.nodes.values().filter(|node| self.world.cluster.is_chosen(node)).count();
        // With no more nodes than must stay available, none is updated.
        let mixed = breaks > 0 && breaks < self.past.len();
        if mixed && !self.is_rolled_back() || chosen <= self.minimum() {
            return ended;
        }
        let mut later = self.clone();
        let mut was_current = ended[1] > 0;
        for second in 0..LATER {
            if later.is_current_in(&later.world) || later.is_rolled_back() && later.has_it().is_none() {
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
            assert!(back && later.has_it().is_none(), "P16: it broke, and after {:?} it is rolled back: {back}", self.past);
            assert!(mixed || !was_current, "P16: it broke in each slot, and after {:?} it was current", self.past);
        }
        ended
    }
}

/// A node is no longer for ingress, while more than one is.
fn leaves(cluster: &mut Cluster) {
    let chosen: Vec<_> = cluster.nodes.iter().filter(|(_, node)| cluster.is_chosen(node)).map(|(name, _)| name.clone()).collect();
    if let [_, .., newest] = chosen.as_slice() {
        cluster.edit_node(newest, |node| node["metadata"]["labels"]["ingress"] = "false".into());
    }
}

/// Each order of so many slots; after how many the revision is current, and after how many it was rolled back.
fn search((nodes, minimum): (usize, i32), slots: [Slot; 6], length: usize) -> [usize; 2] {
    let first = Fleet::begin(nodes, minimum);
    let [ends, current, rolled_back] = std::thread::scope(|scope| {
        let each = slots.map(|slot| {
            let mut fleet = first.clone();
            scope.spawn(move || {
                fleet.befalls(slot);
                fleet.go_on(slots, length - 1)
            })
        });
        each.map(|thread| thread.join().unwrap()).into_iter().fold([0; 3], sum)
    });
    assert_eq!(ends, slots.len().pow(u32::try_from(length).unwrap()));
    [current, rolled_back]
}

fn sum(one: [usize; 3], other: [usize; 3]) -> [usize; 3] {
    std::array::from_fn(|i| one[i] + other[i])
}

#[test]
fn no_order_of_events_makes_an_unproved_revision_current() {
    let [current, rolled_back] = search((2, 0), FIXED, 5);
    assert!(current > 0 && rolled_back > 0, "{current} orders end with the revision, {rolled_back} without it");
    search((3, 0), FIXED, 4);
}

#[test]
fn no_order_of_events_gives_joiners_an_unproved_revision() {
    let [_, rolled_back] = search((3, 2), CHANGING, 4);
    assert!(rolled_back > 0, "in none of them has it failed");
}
