//! The protocol, searched exhaustively: every order of steps, watches, crashes, rivals and disturbances within bounds.
//!
//! Operators decide by the planner's own functions ([`planner::protocol::step()`], [`planner::protocol::target`]); what surrounds them is
//! as small as it can be. Every state must keep the promises, and must come to rest once the faults end. The same search with one guard
//! dropped must find what that guard is for. `MODEL_STATES` raises the bound on the states of one search.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says where")]
#![allow(clippy::trivially_copy_pass_by_ref, clippy::unused_self, reason = "rules and grants read alike everywhere, whatever their size")]

mod api;
mod environment;
mod mutation;
mod operator;
mod search;
mod setups;
mod state;

use crds::{holders::EntryPhase, token::Phase};
use mutation::Mutation;
use operator::{Domains, KINDS, Rules, STEPS};
use planner::protocol::step::Step;
use search::{Outcome, Search};
use setups::{Setup, setups};
use state::{Age, Column, Deployment, Entry, Health, Member, Memory, Node, Order, Owner, Pods, Resource, Site, Stamp, State};
use std::{
    io::Write as _,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

fn search<const N: usize, const K: usize>(setup: &Setup, mutation: Option<Mutation>, liveness: bool, cap: usize) -> Outcome {
    let entry = Entry { id: 1, phase: EntryPhase::Attached, key: 1, age: Age::Fresh };
    let site = Site {
        grant: None,
        failed: None,
        node: Some(Node {
            uid: 1,
            domain: 0,
            chosen: true,
            draining: false,
            skipped: false,
            retried: false,
            to_free: 0,
            member: Member::Serving,
            entry: (setup.marks.key > 0).then_some(entry),
            stamp: Stamp::Absent,
        }),
        deployment: Some(Deployment {
            uid: 1,
            id: 1,
            phase: Phase::Closed,
            age: Age::Fresh,
            revision: 0,
            replicas: 1,
            drifted: false,
            placement: 0,
            observed: true,
            counted: true,
            served: true,
            superseded: false,
        }),
        pods: Pods { revision: 0, drifted: false, count: 1, health: Health::Ready, owner: Owner::Deployment, order: Order::None },
    };
    let resource = Resource {
        revision: 0,
        replicas: 1,
        marks: setup.marks,
        budget: setup.budget,
        paused: false,
        closed: false,
        failed: false,
        placement: 0,
        promoted: false,
        stepped: false,
        next: 2,
        rebuilding: 0,
    };
    let in_domain = |i: usize| {
        let domain = u8::from((setup.domains != Domains::Ignored) && i % 2 == 1);
        Site { node: site.node.map(|node| Node { domain, ..node }), ..site }
    };
    let nothing = Site { grant: None, failed: None, node: site.node, deployment: None, pods: state::NO_PODS };
    let stalest = if setup.blank { nothing } else { site };
    let start: State<N, K> = State {
        columns: std::array::from_fn(|i| Column { truth: in_domain(i), seen: [in_domain(i); K] }),
        truth: resource,
        seen: [resource; K],
        memory: [Memory::default(); K],
        left: setup.left,
        largest: 1,
        allowance: setup.budget,
    };
    let Setup { detacher, history, domains, on_delete, step, .. } = *setup;
    let rules = Rules { detacher, ids: setup.ids + 1, history, domains, on_delete, step, mutation };
    Search { rules, start, stalest, cap, liveness }.run()
}

fn run(setup: &Setup, mutation: Option<Mutation>, liveness: bool, cap: usize) -> Outcome {
    match (setup.nodes, setup.operators) {
        (1, 1) => search::<1, 1>(setup, mutation, liveness, cap),
        (1, 2) => search::<1, 2>(setup, mutation, liveness, cap),
        (2, 1) => search::<2, 1>(setup, mutation, liveness, cap),
        (2, 2) => search::<2, 2>(setup, mutation, liveness, cap),
        (3, 1) => search::<3, 1>(setup, mutation, liveness, cap),
        other => panic!("no model of {other:?}"),
    }
}

/// At most so many states, if the environment says so: a search that is cut short proves less.
fn cut_short() -> Option<usize> {
    std::env::var("MODEL_STATES").ok().and_then(|states| states.parse().ok())
}

fn cap(default: usize) -> usize {
    cut_short().unwrap_or(default)
}

/// Does all of it on as many threads as there are cores; the results come in order.
fn in_parallel<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        return;
                    }
                    let result = work(index);
                    results.lock().unwrap().push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap();
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Tests that pass are silent; this is for people to read.
fn show(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

#[test]
fn every_promise_holds_in_every_state_and_each_world_ends() {
    let only = std::env::var("MODEL_ONLY").ok();
    let setups: Vec<_> = setups().into_iter().filter(|setup| only.as_ref().is_none_or(|only| setup.name.contains(only.as_str()))).collect();
    let outcomes = in_parallel(setups.len(), |index| {
        let started = Instant::now();
        let outcome = run(&setups[index], None, true, cap(1_250_000));
        (outcome, started.elapsed().as_secs_f32())
    });
    show(&format!("\n{:<50} {:>9} {:>10} {:>5} {:>7}  result", "what may happen", "states", "moves", "depth", "s"));
    let mut failures = Vec::new();
    for (setup, (outcome, seconds)) in setups.iter().zip(&outcomes) {
        let result = match &outcome.found {
            Some(found) => found.violation.as_str(),
            None if outcome.exhaustive => "holds, all states seen",
            None => "holds as far as searched",
        };
        let Outcome { states, moves, depth, .. } = outcome;
        show(&format!("{:<50} {states:>9} {moves:>10} {depth:>5} {seconds:>7.1}  {result}", setup.name));
        if let Some(found) = &outcome.found {
            failures.push(format!("{}: {}\n  {}", setup.name, found.violation, found.trace.join("\n  ")));
        } else if setup.operators == 1 && setup.left.leaves == 0 && !outcome.exhaustive && cut_short().is_none() {
            failures.push(format!("{}: too many states to see all; it was once searched to its end", setup.name));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    show(&format!("\n{:<10} steps decided for it", "kind"));
    let covered: Vec<_> = (0..KINDS.len()).map(operator::covered).collect();
    for (kind, steps) in KINDS.iter().zip(&covered) {
        show(&format!("{:<10} {}", format!("{kind:?}"), steps.iter().map(|step| format!("{step:?}")).collect::<Vec<_>>().join(", ")));
    }
    if only.is_none() && cut_short().is_none() {
        let never: Vec<_> = STEPS.iter().filter(|step| !covered.iter().any(|steps| steps.contains(step))).collect();
        assert_eq!(never, NEVER.iter().collect::<Vec<_>>(), "steps that no search comes to");
        assert!(covered.iter().all(|steps| steps.contains(&Step::Update)), "a kind whose pods never change");
    }
}

/// There are no clocks for the soak: it is over at once.
const NEVER: [Step; 1] = [Step::AwaitSoak];

/// Where each dropped guard is found soonest.
const FINDERS: [(Mutation, &str); 51] = [
    (Mutation::LedgerWithoutVersion, "crash, two changes; Deployment mark"),
    (Mutation::TokenNotTested, "crash, two changes; Deployment mark"),
    (Mutation::PhaseNotTested, "crash, two changes; Deployment mark"),
    (Mutation::EntryNotTested, "crash, two changes; Node mark"),
    (Mutation::EntryWithoutId, "crash, two changes; Node mark"),
    (Mutation::DetachTwice, "crash, two changes; Node mark"),
    (Mutation::GraceSkipped, "crash, two changes; Deployment mark"),
    (Mutation::OldTimestampCounts, "detacher, Halt"),
    (Mutation::NodeMarkNotAwaited, "crash, two changes; Node mark"),
    (Mutation::ClaimSkipped, "crash, two changes; Deployment mark"),
    (Mutation::KeyChangedWithoutClaim, "key changes, two operators, one node"),
    (Mutation::GenerationNotObserved, "crash, two changes; Deployment mark"),
    (Mutation::CompletionNotAwaited, "crash, two changes; Deployment mark"),
    (Mutation::AbortWithoutUpdate, "detacher, Abort"),
    (Mutation::ReleaseOnOtherId, "crash, two changes; Deployment mark"),
    (Mutation::ReleaseOnComplete, "crash, two changes; Deployment mark"),
    (Mutation::AbsenceNotReadLive, "nodes leave and return; a blank list"),
    (Mutation::RetargetDropsMarks, "crash, two changes; Node mark"),
    (Mutation::RetargetKeepsId, "crash, two changes; Deployment mark"),
    (Mutation::NodeUidIgnored, "Node re-created, two operators, one node"),
    (Mutation::NewerIdIgnored, "Deployment deleted"),
    (Mutation::CreatedWithOldId, "Deployment deleted, two operators, one node"),
    (Mutation::NewAroundOldPods, "Deployment deleted"),
    (Mutation::FirstCloseUntested, "Deployment deleted, two operators, one node"),
    (Mutation::DeploymentsNotFenced, "ledger lost, two operators, one node; Deployment mark"),
    (Mutation::NodesNotFenced, "ledger lost, two operators, one node; Node mark"),
    (Mutation::RebuiltWithoutLists, "ledger lost, two operators, one node; a blank list"),
    (Mutation::IdsStartOver, "ledger lost; Deployment mark"),
    (Mutation::UnavailableNotCounted, "pods become unready"),
    (Mutation::UnavailableBypass, "crash, two changes; Deployment mark"),
    (Mutation::PauseIgnored, "paused and resumed"),
    (Mutation::WindowIgnored, "windows close and open; no history"),
    (Mutation::WindowIgnoredOnceGranted, "drained and back outside the windows; no history"),
    (Mutation::FailureIgnored, "a revision fails and is rolled back; no history"),
    (Mutation::RollbackGivesSlotUp, "a revision fails, is tried again, is rolled back"),
    (Mutation::DomainBudgetIgnored, "two domains"),
    (Mutation::DrainClosed, "drained and back; Deployment mark"),
    (Mutation::DrainUnmarked, "drained and back; Deployment mark"),
    (Mutation::DrainsNotCounted, "drained and back; Deployment mark"),
    (Mutation::SkipIgnored, "a node is skipped"),
    (Mutation::RetriedBehindGates, "a node fails and is tried again while paused"),
    (Mutation::FailedBeforeIgnored, "a stuck slot is freed; both marks"),
    (Mutation::FreedIdIgnored, "a stuck slot is freed; both marks"),
    (Mutation::FreedWithoutId, "a stuck slot is freed; both marks"),
    (Mutation::OrderNotAwaited, "OnDelete"),
    (Mutation::TurnIgnoredOnceGranted, "a canary, drained and back; no history"),
    (Mutation::OwnPodsTakenForOrders, "OnDelete, drained and back"),
    (Mutation::StepIgnored, "a canary is promoted"),
    (Mutation::StepPassedEarly, "a canary is promoted"),
    (Mutation::PlacementIsDrift, "another placement"),
    (Mutation::DomainsTogether, "one domain at a time"),
];

#[test]
fn each_guard_that_is_dropped_is_missed() {
    let setups = setups();
    let outcomes = in_parallel(FINDERS.len(), |index| {
        let (mutation, name) = FINDERS[index];
        let setup = setups.iter().find(|setup| setup.name == name).unwrap_or_else(|| panic!("no setup {name}"));
        run(setup, Some(mutation), false, cap(2_000_000))
    });
    show(&format!("\n{:<24} {:>9} {:>6}  {:<50} {}", "dropped guard", "states", "moves", "found by", "as"));
    for ((mutation, name), outcome) in FINDERS.iter().zip(&outcomes) {
        let (moves, as_what) = outcome.found.as_ref().map_or((0, "NOT FOUND"), |found| (found.trace.len(), found.violation.as_str()));
        show(&format!("{:<24} {:>9} {moves:>6}  {name:<50} {as_what}", format!("{mutation:?}"), outcome.states));
    }
    let missed: Vec<_> =
        FINDERS.iter().zip(&outcomes).filter(|(_, outcome)| outcome.found.is_none()).map(|((mutation, _), _)| mutation).collect();
    assert!(missed.is_empty(), "nothing goes wrong without {missed:?}: is it a guard, or can the search not see it?");
}
