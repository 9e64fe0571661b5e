//! Every state that can be reached, breadth first, so that what is found is found by the shortest way.

use crate::{
    api::Violation,
    environment::{Event, disturbances, natural},
    operator::{Domains, Eyes, Intent, Rules},
    state::{Column, Resource, Site, State},
};
use crds::{holders::EntryPhase, ingress_daemon_set::OnDetachTimeout, token::Phase};
use foldhash::fast::FixedState;
use std::collections::{HashMap, HashSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thing {
    Resource,
    Node(usize),
    Deployment(usize),
    Pods(usize),
}

/// One thing that happens. Operators are numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    Event(Event),
    /// A watch delivers.
    Observe(usize, Thing),
    /// A new process whose lists are as old as can be.
    Crash(usize),
    Intent(usize, usize, Intent),
    /// The ledger is lost: all is fenced with a new id.
    StartRebuild(usize),
    List(usize),
    Fence(usize, usize, bool),
    EndRebuild(usize),
}

/// A successor, and what the move broke.
pub type Next<const N: usize, const K: usize> = (Move, State<N, K>, Option<Violation>);

/// By which state each was first reached, both by their fingerprints.
type Parents = HashMap<u64, u64, FixedState>;

/// Where a search begins, and what a new process is shown first.
pub struct Search<const N: usize, const K: usize> {
    pub rules: Rules,
    pub start: State<N, K>,
    /// What the first lists of a new process show of a node.
    pub stalest: Site,
    /// No more states than these are looked at.
    pub cap: usize,
    /// Every state must come to rest once the faults end.
    pub liveness: bool,
}

/// How a search ended.
pub struct Outcome {
    pub states: usize,
    pub moves: usize,
    pub depth: usize,
    /// Every reachable state was seen.
    pub exhaustive: bool,
    pub found: Option<Found>,
}

pub struct Found {
    pub violation: String,
    pub trace: Vec<String>,
}

impl<const N: usize, const K: usize> Search<N, K> {
    pub fn run(&self) -> Outcome {
        let root = self.start.fingerprint();
        let mut parents = Parents::from_iter([(root, root)]);
        let mut calm = Calm { rules: self.rules, converging: HashSet::default() };
        let (mut level, mut next, mut successors) = (vec![self.start], Vec::new(), Vec::new());
        let mut outcome = Outcome { states: 1, moves: 0, depth: 0, exhaustive: true, found: None };
        while !level.is_empty() {
            for state in level.drain(..) {
                let hashes = state.hashes(None);
                let from = hashes.fingerprint(&state);
                successors.clear();
                self.successors(&state, &mut successors);
                outcome.moves += successors.len();
                for (step, after, broken) in &successors {
                    let to = after.hashes(Some((&state, &hashes))).fingerprint(after);
                    assert!(outcome.states > 1_000 || to == after.fingerprint(), "{step:?} changes more than what is hashed anew");
                    let broken = broken.map(str::to_owned).or_else(|| over_budget(&self.rules, after));
                    let new = !parents.contains_key(&to);
                    let stuck = || (self.liveness && new && outcome.states < self.cap).then(|| calm.stuck(after)).flatten();
                    if let Some(violation) = broken.or_else(stuck) {
                        let mut trace = self.trace(&parents, from);
                        trace.push(format!("{step:?}"));
                        outcome.found = Some(Found { violation, trace });
                        return outcome;
                    }
                    if new {
                        if outcome.states >= self.cap {
                            outcome.exhaustive = false;
                            continue;
                        }
                        parents.insert(to, from);
                        outcome.states += 1;
                        next.push(*after);
                    }
                }
            }
            std::mem::swap(&mut level, &mut next);
            outcome.depth += 1;
        }
        outcome
    }

    /// The moves from the start to a state, done once more.
    fn trace(&self, parents: &Parents, to: u64) -> Vec<String> {
        let root = self.start.fingerprint();
        let mut path = vec![to];
        while path.last() != Some(&root) {
            path.push(parents[&path[path.len() - 1]]);
        }
        let (mut state, mut trace) = (self.start, Vec::new());
        for wanted in path.iter().rev().skip(1) {
            let mut successors = Vec::new();
            self.successors(&state, &mut successors);
            if let Some((step, after, _)) = successors.into_iter().find(|(_, after, _)| after.fingerprint() == *wanted) {
                trace.push(format!("{step:?}"));
                state = after;
            }
        }
        trace
    }

    fn successors(&self, state: &State<N, K>, out: &mut Vec<Next<N, K>>) {
        for k in 0..K {
            moves_of(&self.rules, state, k, out);
            observations(state, k, out);
            if state.left.crashes > 0 {
                let mut after = *state;
                after.left.crashes -= 1;
                after.memory[k] = crate::state::Memory::default();
                after.seen[k] = self.start.truth;
                after.columns.iter_mut().for_each(|column| {
                    let (domain, stalest) = (column.truth.domain(), self.stalest);
                    column.seen[k] = Site { node: stalest.node.map(|node| crate::state::Node { domain, ..node }), ..stalest };
                });
                out.push((Move::Crash(k), after, None));
            }
        }
        let events = std::iter::once(Event::Tick).chain((0..N).flat_map(natural)).chain(disturbances(state));
        for event in events {
            if let Some(mut after) = self.rules.happen(state, event) {
                after.allowance = allowance(&after);
                out.push((Move::Event(event), after, None));
            }
        }
    }
}

/// What an operator may do, by what it has seen.
fn moves_of<const N: usize, const K: usize>(rules: &Rules, state: &State<N, K>, k: usize, out: &mut Vec<Next<N, K>>) {
    let eyes: Eyes<N> = Eyes { rules, resource: &state.seen[k], sites: std::array::from_fn(|i| &state.columns[i].seen[k]) };
    let mut push = |step: Move, written: Option<(State<N, K>, Option<Violation>)>| {
        if let Some((mut after, broken)) = written.filter(|(after, broken)| after != state || broken.is_some()) {
            after.allowance = allowance(&after);
            out.push((step, after, broken));
        }
    };
    if !eyes.is_sound() {
        push(Move::StartRebuild(k), start_rebuild(rules, state, k));
        return;
    }
    let fence = state.seen[k].rebuilding;
    if fence == 0 {
        for i in 0..N {
            for intent in eyes.intents(i) {
                push(Move::Intent(k, i, intent), rules.carry_out(state, k, i, intent));
            }
        }
        if eyes.passes_step() {
            push(Move::Intent(k, 0, Intent::PassStep), rules.carry_out(state, k, 0, Intent::PassStep));
        }
        return;
    }
    if state.memory[k].listed != fence && !rules.breaks(crate::mutation::Mutation::RebuiltWithoutLists) {
        let mut after = *state;
        after.memory[k] = crate::state::Memory { reserved: 0, listed: fence };
        for column in &mut after.columns {
            let Site { grant, failed, pods, .. } = column.seen[k];
            column.seen[k] = Site { grant, failed, pods, ..column.truth };
        }
        push(Move::List(k), Some((after, None)));
        return;
    }
    if eyes.largest() > fence {
        push(Move::StartRebuild(k), start_rebuild(rules, state, k));
        return;
    }
    let mut done = true;
    for i in 0..N {
        let (deployment, node) = eyes.fences(i);
        done &= !deployment && !node;
        if deployment {
            push(Move::Fence(k, i, false), rules.fence(state, k, i, false));
        }
        if node {
            push(Move::Fence(k, i, true), rules.fence(state, k, i, true));
        }
    }
    if done {
        let grants: [_; N] = std::array::from_fn(|i| eyes.rebuilt(i));
        let written = rules.write_ledger(state, k, |after| {
            (after.truth.next, after.truth.rebuilding) = (fence + 1, 0);
            for (column, grant) in after.columns.iter_mut().zip(grants) {
                column.truth.grant = grant.map(|grant| {
                    after.truth.next += 1;
                    crate::state::Grant { id: after.truth.next - 1, ..grant }
                });
            }
        });
        push(Move::EndRebuild(k), written);
    }
}

fn start_rebuild<const N: usize, const K: usize>(rules: &Rules, state: &State<N, K>, k: usize) -> Option<(State<N, K>, Option<Violation>)> {
    let mut written = rules.write_ledger(state, k, |after| {
        // Milliseconds since 1970 lie above every id that was ever given out.
        let fence = if rules.breaks(crate::mutation::Mutation::IdsStartOver) { 1 } else { after.largest + 1 };
        (after.truth.next, after.truth.rebuilding) = (fence, fence);
        after.columns.iter_mut().for_each(|column| column.truth.grant = None);
    })?;
    written.0.memory[k].reserved = 0;
    written.0.largest = written.0.largest.max(written.0.truth.rebuilding);
    Some(written)
}

fn observations<const N: usize, const K: usize>(state: &State<N, K>, k: usize, out: &mut Vec<Next<N, K>>) {
    let mut push = |thing: Thing, after: State<N, K>| {
        if after != *state {
            out.push((Move::Observe(k, thing), after, None));
        }
    };
    push(Thing::Resource, see_resource(*state, k));
    for i in 0..N {
        let truth = state.columns[i].truth;
        let mut see = |thing: Thing, show: fn(&mut Site, &Site)| {
            let mut after = *state;
            show(&mut after.columns[i].seen[k], &truth);
            push(thing, after);
        };
        see(Thing::Node(i), |seen, truth| seen.node = truth.node);
        see(Thing::Deployment(i), |seen, truth| seen.deployment = truth.deployment);
        see(Thing::Pods(i), |seen, truth| seen.pods = truth.pods);
    }
}

fn see_resource<const N: usize, const K: usize>(mut state: State<N, K>, k: usize) -> State<N, K> {
    state.seen[k] = state.truth;
    for Column { truth, seen } in &mut state.columns {
        (seen[k].grant, seen[k].failed) = (truth.grant, truth.failed);
    }
    if state.truth.next == 0 || state.truth.rebuilding > 0 {
        state.memory[k].reserved = 0;
    }
    state
}

/// The node is held out of service by the operator, and has served.
fn is_out(site: &Site, grant: Option<&crate::state::Grant>) -> bool {
    let free = grant.is_some_and(crate::state::Grant::is_free);
    let holding = site
        .deployment
        .is_some_and(|deployment| deployment.served && matches!(deployment.phase, Phase::Claimed | Phase::Degrading | Phase::Updating));
    let detached = site.entry().is_some_and(|entry| entry.phase == EntryPhase::Detached);
    site.node.is_some() && !free && (holding || detached)
}

/// P1 and P2. Drains are above every budget, until their nodes are back.
fn over_budget<const N: usize, const K: usize>(rules: &Rules, state: &State<N, K>) -> Option<String> {
    let above = |site: &Site| site.grant.is_some_and(|grant| grant.above);
    let out = || state.columns.iter().map(|column| &column.truth).filter(|site| is_out(site, site.grant.as_ref()) && !above(site));
    let in_domain = |domain: u8| out().filter(|site| site.domain() == domain).count();
    let (fleet, crowded) = (out().count(), rules.domains == Domains::Budgets && (0..2).any(|domain| in_domain(domain) > 1));
    let both = (rules.domains == Domains::InTurn && (0..2).all(|domain| in_domain(domain) > 0))
        .then(|| "P2: nodes of two domains are out".to_owned());
    let over = (fleet > state.allowance.into()).then(|| format!("P1: {fleet} nodes are out, the budget is {}", state.allowance));
    over.or(both).or(crowded.then(|| "P2: two nodes of a domain are out, its budget is 1".to_owned()))
}

/// A lowered budget interrupts nobody: it counts once no more grants than it are left.
fn allowance<const N: usize, const K: usize>(state: &State<N, K>) -> u8 {
    let Resource { next, rebuilding, budget, .. } = state.truth;
    let grants = state.columns.iter().filter_map(|column| column.truth.grant).filter(|grant| !grant.is_free() && !grant.above).count();
    if next > 0 && rebuilding == 0 && grants <= budget.into() { budget } else { state.allowance.max(budget) }
}

/// The faults end: one operator that sees everything, controllers and detachers that work.
struct Calm {
    rules: Rules,
    /// States, without what operators believe, from which everything came to rest.
    converging: HashSet<u64, FixedState>,
}

impl Calm {
    /// Says where it does not come to rest from here.
    fn stuck<const N: usize, const K: usize>(&mut self, state: &State<N, K>) -> Option<String> {
        let mut state = *state;
        (state.truth.paused, state.truth.closed, state.truth.failed) = (false, false, false);
        state.truth.promoted = true;
        for site in state.columns.iter_mut().map(|column| &mut column.truth) {
            site.failed = None;
            if let Some(node) = &mut site.node {
                *node = crate::state::Node { draining: false, skipped: false, retried: false, to_free: 0, ..*node };
            }
        }
        let mut state = state.calm();
        let rules = Rules { detacher: self.rules.detacher.map(|_| OnDetachTimeout::Halt), ids: 200, on_delete: false, ..self.rules };
        let mut path = Vec::new();
        for _ in 0..120 {
            let fingerprint = state.fingerprint();
            if self.converging.contains(&fingerprint) || is_at_rest(&state) {
                self.converging.extend(path);
                self.converging.insert(fingerprint);
                return None;
            }
            path.push(fingerprint);
            state = fair_round(&rules, state);
        }
        Some(format!("it never comes to rest: {state:?}"))
    }
}

/// The operator does all that it can, then everybody else.
fn fair_round<const N: usize>(rules: &Rules, mut state: State<N, 1>) -> State<N, 1> {
    for _ in 0..30 {
        let mut moves = Vec::new();
        moves_of(rules, &state, 0, &mut moves);
        let Some((_, after, _)) = moves.into_iter().next() else { break };
        state = after;
        let memory = state.memory;
        state = State { memory, ..state.calm() };
    }
    for i in 0..N {
        for event in natural(i) {
            state = rules.happen(&state, event).unwrap_or(state);
        }
    }
    state = rules.happen(&state, Event::Tick).unwrap_or(state);
    State { memory: state.memory, ..state.calm() }
}

/// Every chosen node runs what is wanted and serves. Nothing of ours is on the others. No node has a grant.
fn is_at_rest<const N: usize>(state: &State<N, 1>) -> bool {
    let wanted = state.truth;
    let at_rest = |site: &Site| {
        if !site.chosen() {
            return !site.has_anything() && site.pods.count == 0;
        }
        let current = |deployment: crate::state::Deployment| {
            let same = deployment.revision == wanted.revision && !deployment.drifted && deployment.replicas == wanted.replicas;
            deployment.phase == Phase::Closed && same
        };
        let healthy = site.pods.health == crate::state::Health::Ready;
        site.grant.is_none() && site.deployment.is_some_and(current) && site.is_exact() && healthy && !site.detached()
    };
    wanted.next > 0 && wanted.rebuilding == 0 && state.columns.iter().all(|column| at_rest(&column.truth))
}
