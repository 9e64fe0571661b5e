//! Updates in place, searched exhaustively: every order of writes, watches, crashes, rivals and mishaps around one node.
//!
//! What surrounds the node, budgets and marks, is what `model` searches; here the Deployment, its `ReplicaSets` and its pods are
//! what counts. Operators decide by the planner's own functions ([`planner::protocol::step()`],
//! [`planner::objects::in_place::moves`]).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says where")]
#![allow(clippy::unused_self, reason = "rules read alike, whether a mutation concerns them or not")]

mod environment;
mod operator;

use crds::token::Phase;
use planner::{objects::in_place::moves::Move, protocol::step::Step};
use std::{
    collections::{HashSet, VecDeque},
    hash::Hash,
};

/// Pods that the node is to have.
const PODS: usize = 2;
/// No id above this one is given out.
const IDS: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Deployment {
    id: u8,
    phase: Phase,
    revision: u8,
    paused: bool,
    generation: u8,
    /// What its controller says that it has seen.
    observed: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ReplicaSet {
    uid: u8,
    revision: u8,
    token: u8,
    /// What its own controller knows of its template.
    known: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pod {
    uid: u8,
    set: u8,
    image: u8,
    token: u8,
    gate: Option<bool>,
    /// What its container runs; none while it starts.
    runs: Option<u8>,
}

impl Pod {
    fn ready(self) -> bool {
        self.runs.is_some() && self.gate == Some(true)
    }
}

/// All there is of the node: in truth, or in the eyes of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Site {
    /// Id and revision of the grant, and the next id.
    grant: Option<(u8, u8)>,
    next: u8,
    wanted: u8,
    deployment: Deployment,
    sets: [Option<ReplicaSet>; 2],
    pods: [Option<Pod>; PODS],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Left {
    changes: u8,
    crashes: u8,
    deaths: u8,
    unpauses: u8,
    /// `podUpdate` becomes Recreate.
    recreates: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State<const K: usize> {
    truth: Site,
    seen: [Site; K],
    /// What the Deployment's controller knows: generation, paused, revision.
    controller: (u8, bool, u8),
    left: Left,
    /// `podUpdate` allows it.
    in_place: bool,
    /// Other pods may have been asked for.
    excused: bool,
    uids: u8,
    /// How many the node is to have.
    pods: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutation {
    /// The pause is not waited for.
    PauseNotAwaited,
    /// A `ReplicaSet` is written without a test of its token.
    ReplicaSetUnfenced,
    /// Pods are written without a test of theirs.
    PodsUnfenced,
    /// Pods that are as wanted are not claimed.
    PodsNotClaimed,
    /// The pause ends before the `ReplicaSet` has the template.
    ReplicaSetForgotten,
    /// The pause ends while containers restart.
    CompletionNotAwaited,
    /// Pods of a former template are left alone.
    StragglersLeft,
    /// Such pods are deleted whatever they have become.
    DeletedUntested,
}

#[derive(Clone, Copy)]
struct Setup {
    name: &'static str,
    allowed: usize,
    left: Left,
}

const NONE: Left = Left { changes: 0, crashes: 0, deaths: 0, unpauses: 0, recreates: 0 };

/// What a watch shows, and how.
type Watch = (&'static str, fn(&mut Site, &Site));

type Broken = Option<&'static str>;

struct Search {
    mutation: Option<Mutation>,
    allowed: usize,
    /// The second operator never sees anything new: all its writes are late ones.
    frozen: bool,
}

const PLAIN: Search = Search { mutation: None, allowed: 2, frozen: false };

/// Before an update to revision 1, with one pod or two.
fn start<const K: usize>(left: Left, pods: u8) -> State<K> {
    let pod = |uid| Some(Pod { uid, set: 1, image: 0, token: 0, gate: Some(true), runs: Some(0) });
    let truth = Site {
        grant: None,
        next: 2,
        wanted: 1,
        deployment: Deployment { id: 1, phase: Phase::Closed, revision: 0, paused: false, generation: 1, observed: 1 },
        sets: [Some(ReplicaSet { uid: 1, revision: 0, token: 0, known: 0 }), None],
        pods: [pod(2), pod(3).filter(|_| pods > 1)],
    };
    State { truth, seen: [truth; K], controller: (1, false, 0), left, in_place: true, excused: false, uids: 3, pods: pods.into() }
}

impl Site {
    fn live(&self) -> impl Iterator<Item = Pod> {
        self.pods.iter().flatten().copied()
    }

    fn set_of(&self, revision: u8) -> Option<ReplicaSet> {
        self.sets.iter().flatten().copied().filter(|set| set.revision == revision).min_by_key(|set| set.uid)
    }

    /// As the operator finds it: the one with a token, else the Deployment's own.
    fn current_set(&self) -> Option<ReplicaSet> {
        let claimed = self.sets.iter().flatten().copied().filter(|set| set.token > 0).max_by_key(|set| set.token);
        claimed.or_else(|| self.set_of(self.deployment.revision))
    }

    fn settled(&self, pods: usize) -> bool {
        let deployment = self.deployment;
        let exact = |pod: Pod| pod.image == deployment.revision && pod.ready() && pod.runs == Some(pod.image);
        deployment.observed == deployment.generation && self.live().count() == pods && self.live().all(exact)
    }

    fn is_over(&self, pods: usize) -> bool {
        let closed = self.deployment.phase == Phase::Closed && !self.deployment.paused;
        closed && self.grant.is_none() && self.deployment.revision == self.wanted && self.settled(pods)
    }
}

/// One write that an operator would make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    Admit,
    Retarget,
    Release,
    Deployment(Step, bool),
    Move(Move),
    /// Gate True on a pod that nothing keeps shut.
    Open(usize),
    Delete(usize),
}

impl Search {
    fn successors<const K: usize>(&self, state: &State<K>, stalest: &Site) -> Vec<(String, State<K>, Broken)> {
        let mut next: Vec<_> = self.natural(state).into_iter().map(|(what, after, broken)| (what.to_owned(), after, broken)).collect();
        next.extend(Self::disturbances(state).into_iter().map(|(what, after)| (what.to_owned(), after, None)));
        for k in 0..K {
            let (seen, truth) = (state.seen[k], state.truth);
            // One watch for each kind, each at its own pace.
            let looks: [Watch; 4] = [
                ("the resource", |seen, truth| (seen.grant, seen.next, seen.wanted) = (truth.grant, truth.next, truth.wanted)),
                ("the Deployment", |seen, truth| seen.deployment = truth.deployment),
                ("ReplicaSets", |seen, truth| seen.sets = truth.sets),
                ("pods", |seen, truth| seen.pods = truth.pods),
            ];
            let looks = looks.into_iter().filter(|_| k == 0 || !self.frozen);
            for (what, look) in looks {
                let mut after = *state;
                look(&mut after.seen[k], &truth);
                if after != *state {
                    next.push((format!("operator {k} sees {what}"), after, None));
                }
            }
            if state.left.crashes > 0 {
                let mut after = State { left: Left { crashes: state.left.crashes - 1, ..state.left }, ..*state };
                after.seen[k] = *stalest;
                next.push((format!("operator {k} is started anew with old lists"), after, None));
            }
            for write in self.writes(&seen, state.in_place, state.pods) {
                if let Some((after, broken)) = self.carry_out(state, k, write) {
                    next.push((format!("operator {k}: {write:?}"), after, broken));
                }
            }
        }
        next
    }

    /// Whether one operator that sees everything brings it to an end, once nothing goes wrong any more.
    fn ends<const K: usize>(&self, state: &State<K>) -> bool {
        let mut calm = State::<1> {
            truth: Site { next: state.truth.next.min(IDS - 2), ..state.truth },
            seen: [state.truth],
            controller: state.controller,
            left: NONE,
            in_place: state.in_place,
            excused: true,
            uids: state.uids,
            pods: state.pods,
        };
        // Ids do not run out for what has to end.
        let offset = calm.truth.next;
        for _ in 0..200 {
            if calm.truth.is_over(calm.pods) {
                return true;
            }
            calm.seen = [calm.truth];
            let natural = self.natural(&calm);
            let write = self.writes(&calm.truth, calm.in_place, calm.pods).into_iter().find_map(|write| {
                if matches!(write, Write::Admit | Write::Retarget) {
                    let largest = calm.truth.deployment.id.max(calm.truth.grant.map_or(0, |grant| grant.0)).max(offset);
                    let mut after = calm;
                    after.truth.grant = Some((largest + 1, calm.truth.wanted));
                    return Some(after);
                }
                self.carry_out(&calm, 0, write).map(|(after, _)| after)
            });
            match natural.into_iter().next().map(|(_, after, _)| after).or(write) {
                Some(after) => calm = after,
                None => return false,
            }
        }
        false
    }

    fn run<const K: usize>(&self, first: State<K>, cap: usize) -> Result<(usize, bool), String> {
        let stalest = first.truth;
        let mut known = HashSet::from([first]);
        let mut queue = VecDeque::from([(first, Vec::<u32>::new())]);
        let mut exhaustive = true;
        while let Some((state, way)) = queue.pop_front() {
            for (index, (_, after, broken)) in self.successors(&state, &stalest).into_iter().enumerate() {
                let mut way = way.clone();
                way.push(u32::try_from(index).unwrap());
                if let Some(broken) = broken {
                    return Err(format!("{broken}\n{}", self.tell(first, &way)));
                }
                if known.contains(&after) {
                    continue;
                }
                if known.len() >= cap {
                    exhaustive = false;
                    continue;
                }
                known.insert(after);
                if !self.ends(&after) {
                    return Err(format!("it never ends\n{}{after:#?}", self.tell(first, &way)));
                }
                queue.push_back((after, way));
            }
        }
        Ok((known.len(), exhaustive))
    }

    fn tell<const K: usize>(&self, mut state: State<K>, way: &[u32]) -> String {
        let stalest = state.truth;
        let mut text = String::new();
        for index in way {
            let (what, after, _) = self.successors(&state, &stalest).swap_remove(*index as usize);
            text.extend(["  ", &what, "\n"]);
            state = after;
        }
        text
    }
}

fn cap() -> usize {
    std::env::var("MODEL_STATES").ok().and_then(|number| number.parse().ok()).unwrap_or(150_000)
}

#[test]
fn pods_are_recreated_only_on_request_and_every_state_ends() {
    let setups = [
        Setup { name: "alone", allowed: 2, left: NONE },
        Setup { name: "one pod at a time, two changes", allowed: 1, left: Left { changes: 2, ..NONE } },
        Setup { name: "crash, a change", allowed: 2, left: Left { changes: 1, crashes: 1, ..NONE } },
        Setup { name: "a pod dies, a change", allowed: 2, left: Left { changes: 1, deaths: 1, ..NONE } },
        Setup { name: "somebody ends the pause, a change", allowed: 2, left: Left { changes: 1, unpauses: 1, ..NONE } },
        Setup { name: "podUpdate becomes Recreate, a change", allowed: 2, left: Left { changes: 1, recreates: 1, ..NONE } },
    ];
    for setup in setups {
        let search = Search { allowed: setup.allowed, ..PLAIN };
        match search.run(start::<1>(setup.left, 2), cap()) {
            Ok((states, exhaustive)) => println!("{}: {states} states, exhaustive: {exhaustive}", setup.name),
            Err(found) => panic!("{}: {found}", setup.name),
        }
    }
    for (name, left) in [("two operators", NONE), ("two operators, a change", Left { changes: 1, ..NONE })] {
        match PLAIN.run(start::<2>(left, 1), cap()) {
            Ok((states, exhaustive)) => println!("{name}: {states} states, exhaustive: {exhaustive}"),
            Err(found) => panic!("{name}: {found}"),
        }
    }
}

/// Beside an operator whose writes all come late, from every moment of an update that is taken back: how many states that were.
fn beside_the_past(mutation: Option<Mutation>) -> Result<usize, String> {
    let search = Search { mutation, frozen: true, ..PLAIN };
    let mut past = start::<1>(NONE, 1);
    let mut states = 0;
    for _ in 0..40 {
        past.seen = [past.truth];
        let first = State::<2> {
            truth: past.truth,
            seen: [past.truth; 2],
            controller: past.controller,
            left: Left { changes: 1, ..NONE },
            in_place: true,
            excused: false,
            uids: past.uids,
            pods: 1,
        };
        states += search.run(first, cap())?.0;
        let by_itself = PLAIN.natural(&past).into_iter().next().map(|(_, after, _)| after);
        let written = || PLAIN.writes(&past.truth, true, 1).into_iter().find_map(|write| PLAIN.carry_out(&past, 0, write));
        match by_itself.or_else(|| written().map(|(after, _)| after)) {
            Some(after) => past = after,
            None => return Ok(states),
        }
    }
    Err("the update never ended".into())
}

#[test]
fn late_writes_do_not_affect_a_node_that_serves_again() {
    match beside_the_past(None) {
        Ok(states) => println!("{states} states"),
        Err(found) => panic!("{found}"),
    }
}

#[test]
fn each_guard_of_the_update_in_place_is_needed() {
    let table: [(Mutation, Left); 4] = [
        (Mutation::PauseNotAwaited, NONE),
        (Mutation::ReplicaSetForgotten, NONE),
        (Mutation::CompletionNotAwaited, NONE),
        (Mutation::StragglersLeft, Left { deaths: 1, unpauses: 1, changes: 1, ..NONE }),
    ];
    let mut missed = Vec::new();
    for (mutation, left) in table {
        match (Search { mutation: Some(mutation), ..PLAIN }).run(start::<1>(left, 2), cap() * 4) {
            Err(found) => println!("{mutation:?}: {}", found.lines().next().unwrap_or_default()),
            Ok((states, exhaustive)) => missed.push(format!("{mutation:?} ({states} states, exhaustive: {exhaustive})")),
        }
    }
    match (Search { mutation: Some(Mutation::DeletedUntested), ..PLAIN }).run(start::<2>(NONE, 1), cap()) {
        Err(found) => println!("DeletedUntested: {}", found.lines().next().unwrap_or_default()),
        Ok((states, exhaustive)) => missed.push(format!("DeletedUntested ({states} states, exhaustive: {exhaustive})")),
    }
    for mutation in [Mutation::ReplicaSetUnfenced, Mutation::PodsUnfenced, Mutation::PodsNotClaimed] {
        match beside_the_past(Some(mutation)) {
            Err(found) => println!("{mutation:?}: {}", found.lines().next().unwrap_or_default()),
            Ok(states) => missed.push(format!("{mutation:?} ({states} states)")),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
