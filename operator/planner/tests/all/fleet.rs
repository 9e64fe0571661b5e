//! A sound revision in a fleet whose pods break by chance, as pods of every large fleet do: how long its rollout takes, and what is said of
//! the revision meanwhile.
#![allow(dead_code, reason = "the benchmark is another program, which uses a part of it")]

use crate::world;

use planner::{Plan, memory::Sights};
use proptest::{
    prelude::Rng as _,
    test_runner::{RngAlgorithm, TestRng},
};
use serde_json::json;
use std::{collections::BTreeMap, fmt, time::Instant};
use world::{
    World,
    cluster::{END, START},
    operator::Operator,
    wish::{Marks, Wish},
};

/// `provenAfterSeconds` where nothing else is asked for.
pub const PROVEN: i64 = 60;
/// The same noise every time, unless the environment asks for other (`PROPTEST_RNG_SEED`).
const SEED: u64 = 20_261_121;
/// A share of an hour, in hundredths.
const HOUR: u64 = 3600 * 100;

/// A fleet, of which one node in a hundred may be out at any time.
#[derive(Clone, Copy, Debug)]
pub struct Fleet {
    pub nodes: usize,
    /// On each of them.
    pub pods: i32,
    /// Seconds for which a node that is attached again keeps its slot: what a load balancer needs to notice it.
    pub soak: u32,
}

/// How pods break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breaks {
    /// A container ends, and its kubelet starts another.
    Restarts,
    /// Somebody deletes the pod.
    Deletions,
}

/// Pods that break, so many of a hundred in an hour, whatever they run.
pub struct Noise {
    chance: TestRng,
    breaks: Breaks,
    percent: u64,
    /// How many broke.
    pub broke: usize,
}

/// What came of a rollout.
#[derive(Debug)]
pub struct Outcome {
    pub is_complete: bool,
    /// Until it was said to be complete.
    pub seconds: usize,
    /// Falls that the operator has seen on nodes that it had updated.
    pub falls: usize,
    /// Anything at all that was held against the revision.
    pub blame: Vec<String>,
}

impl Fleet {
    fn budget(self) -> usize {
        self.nodes / 100
    }

    /// At rest: every node runs image 1, and what comes next has to prove itself.
    pub fn at_rest(self) -> (World, Operator) {
        let rollout = json!({"provenAfterSeconds": PROVEN, "autoRollback": true});
        let budget = i32::try_from(self.budget()).expect("a small number");
        let wish = Wish { pods: self.pods, attach_soak: self.soak, rollout, ..Wish::new(Marks::Both, budget) };
        let (mut world, mut operator) = (World::brief(wish, self.nodes), Operator::default());
        world.idle_until(&mut operator, 600, World::is_converged).expect("it comes to rest");
        (world, operator)
    }
}

impl Noise {
    pub fn new(breaks: Breaks, percent: u64) -> Self {
        let mut seed = [0; 32];
        let asked = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse().ok());
        seed[..8].copy_from_slice(&asked.unwrap_or(SEED).to_le_bytes());
        Self { chance: TestRng::from_seed(RngAlgorithm::ChaCha, &seed), breaks, percent, broke: 0 }
    }

    /// Any number below this one.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.chance.next_u64() % u64::try_from(end).expect("64 bits")).expect("it is below")
    }

    /// One second.
    pub fn second(&mut self, world: &mut World) {
        let pods = world.cluster.pods.len();
        let expected = u64::try_from(pods).expect("64 bits") * self.percent;
        assert!(expected < HOUR, "at most one pod breaks in a second");
        if self.chance.next_u64() % HOUR >= expected {
            return;
        }
        let index = self.below(pods);
        let breaks = self.breaks;
        self.broke += usize::from(world.change(|cluster| {
            let now = cluster.now;
            let pod = &mut cluster.pods[index];
            let lives = pod.is_active();
            match breaks {
                _ if !lives => {}
                Breaks::Restarts => {
                    pod.ready_at = now + START;
                    pod.crash();
                }
                Breaks::Deletions => pod.ends_at = Some(now + END),
            }
            lives
        }));
    }
}

/// Image 2, which is sound, comes to all nodes; what happens besides in each second is `second`'s.
pub fn roll_out(world: &mut World, operator: &mut Operator, longest: usize, mut second: impl FnMut(&mut World, usize)) -> Outcome {
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    let mut outcome = Outcome { is_complete: false, seconds: longest, falls: 0, blame: Vec::new() };
    let mut known = BTreeMap::new();
    for passed in 0..longest {
        second(world, passed);
        let Some(plan) = world.idle_second(operator) else { continue };
        let now = falls(&plan.sights);
        outcome.falls += now.iter().filter(|(node, falls)| **falls > known.get(*node).copied().unwrap_or(0)).count();
        known = now;
        outcome.blame.extend(blame(&plan));
        if is_complete(world, &plan) {
            (outcome.is_complete, outcome.seconds) = (true, passed);
            break;
        }
    }
    outcome.blame.append(&mut world.audit.violations.clone());
    outcome
}

/// Falls of suspects, by node.
fn falls(sights: &Sights) -> BTreeMap<String, u32> {
    sights.suspects().filter_map(|node| Some((node.to_owned(), sights.suspect(node)?.falls))).collect()
}

fn is_complete(world: &World, plan: &Plan) -> bool {
    let complete = plan.status.conditions.iter().any(|condition| condition.type_ == "Progressing" && condition.reason == "Complete");
    complete && plan.status.revisions.current == world.cluster.wish.revision_of(2)
}

/// What a plan holds against the revision.
fn blame(plan: &Plan) -> Vec<String> {
    let ledger = plan.status.rollout.as_ref();
    let rollout = ledger.and_then(|ledger| ledger.rollout_state.as_ref());
    let failed = rollout.into_iter().flat_map(|rollout| rollout.failed.iter().map(|(node, failure)| format!("{node}: {}", failure.reason)));
    let gone = rollout.into_iter().flat_map(|rollout| rollout.failed_nodes.values().map(|gone| format!("{}: {}", gone.node, gone.reason)));
    let lost = rollout.into_iter().flat_map(|rollout| rollout.lost.iter().map(|uid| format!("the Node {uid} is lost")));
    let back = ledger.and_then(|ledger| ledger.rolled_back.as_ref()).map(|back| format!("it is rolled back: {}", back.reason));
    failed.chain(gone).chain(lost).chain(back).collect()
}

/// A rollout beside the same one without noise.
#[derive(Debug)]
pub struct Measured {
    fleet: Fleet,
    percent: u64,
    pub ideal: Outcome,
    pub noisy: Outcome,
    /// How many containers restarted, on whatever nodes.
    restarts: usize,
    wall: [f32; 3],
}

/// The same rollout without noise, and with as many percent of the containers restarting in an hour.
pub fn measure(fleet: Fleet, percent: u64) -> Measured {
    let (mut began, mut wall) = (Instant::now(), [0.0; 3]);
    let (world, operator) = fleet.at_rest();
    let mut lap = |wall: &mut f32| *wall = std::mem::replace(&mut began, Instant::now()).elapsed().as_secs_f32();
    lap(&mut wall[0]);
    let longest = 4 * 3600;
    let ideal = roll_out(&mut world.clone(), &mut operator.clone(), longest, |_, _| {});
    lap(&mut wall[1]);
    let (mut world, mut operator, mut breaking) = (world, operator, Noise::new(Breaks::Restarts, percent));
    let noisy = roll_out(&mut world, &mut operator, longest, |world, _| breaking.second(world));
    lap(&mut wall[2]);
    Measured { fleet, percent, ideal, noisy, restarts: breaking.broke, wall }
}

impl Measured {
    /// The time without noise, in which every revision waits for its proof twice, at the first nodes and after the last: once of that.
    pub fn ideal_seconds(&self) -> usize {
        self.ideal.seconds - usize::try_from(PROVEN).expect("seconds")
    }

    /// It took at most a tenth longer, and nothing was held against the revision.
    pub fn is_met(&self) -> bool {
        let complete = self.ideal.is_complete && self.noisy.is_complete;
        complete && 10 * self.noisy.seconds <= 11 * self.ideal_seconds() && self.ideal.blame.is_empty() && self.noisy.blame.is_empty()
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fleet, percent, ideal, noisy, restarts, wall } = self;
        writeln!(f, "{} nodes of {} pods, of which {percent} % an hour restart", fleet.nodes, fleet.pods)?;
        writeln!(f, "without noise   {:>6} s  of which {PROVEN} s are waited for the proof again, after the last node", ideal.seconds)?;
        writeln!(f, "with noise      {:>6} s  complete: {}", noisy.seconds, noisy.is_complete)?;
        writeln!(f, "at most         {:>6} s", self.ideal_seconds() * 11 / 10)?;
        writeln!(f, "restarts        {restarts:>6}    of which the operator saw {} on nodes that it had updated", noisy.falls)?;
        for blamed in ideal.blame.iter().chain(&noisy.blame) {
            writeln!(f, "blamed: {blamed}")?;
        }
        let [rest, quiet, noise] = wall;
        write!(f, "simulated in {rest:.1} s to begin with, {quiet:.1} s without noise, {noise:.1} s with it")
    }
}
