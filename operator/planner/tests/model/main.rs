//! The protocol, searched exhaustively: every order of steps, watches, crashes, rivals and disturbances within bounds.
//!
//! Operators decide by the planner's own functions ([`planner::step()`], [`planner::target`]); what surrounds them is as
//! small as it can be. Every state must keep the promises, and must come to rest once the faults end. The same search with
//! one guard dropped must find what that guard is for. `MODEL_STATES` raises the bound on the states of one search.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says where")]
#![allow(clippy::trivially_copy_pass_by_ref, clippy::unused_self, reason = "rules and grants read alike everywhere, whatever their size")]

mod api;
mod environment;
mod mutation;
mod operator;
mod search;
mod state;

use crds::{holders::EntryPhase, ingress_daemon_set::OnDetachTimeout, token::Phase};
use mutation::Mutation;
use operator::{Domains, KINDS, Rules, STEPS};
use planner::step::Step;
use search::{Outcome, Search};
use state::{
    Age, BOTH, Column, DEGRADE, Deployment, Entry, Health, Left, Marks, Member, Memory, NODE, Node, Order, Owner, Pods, Resource, Site,
    Stamp, State, TOKEN,
};
use std::{
    io::Write as _,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

/// One search: so many nodes and operators, and what may happen.
#[derive(Clone, Copy)]
struct Setup {
    name: &'static str,
    nodes: usize,
    operators: usize,
    marks: Marks,
    budget: u8,
    detacher: Option<OnDetachTimeout>,
    /// Grants and other ids that may be given out.
    ids: u8,
    left: Left,
    /// A new process is shown nothing at first, instead of how it all began.
    blank: bool,
    /// Former revisions are recorded.
    history: bool,
    /// Nodes are in two topology domains by turns.
    domains: Domains,
    /// Nodes are updated when somebody deletes their pods.
    on_delete: bool,
    /// So many nodes are updated before somebody promotes the rollout.
    step: Option<u8>,
}

const NONE: Left = Left {
    templates: 0,
    marks: 0,
    keys: 0,
    budgets: 0,
    pauses: 0,
    scalings: 0,
    crashes: 0,
    deletions: 0,
    recreations: 0,
    leaves: 0,
    edits: 0,
    outages: 0,
    wipes: 0,
    drains: 0,
    closings: 0,
    failures: 0,
    rollbacks: 0,
    skips: 0,
    node_failures: 0,
    retries: 0,
    releases: 0,
    pod_deletions: 0,
    placements: 0,
    promotions: 0,
};
const PLAIN: Setup = Setup {
    name: "",
    nodes: 2,
    operators: 1,
    marks: TOKEN,
    budget: 1,
    detacher: None,
    ids: 4,
    left: NONE,
    blank: false,
    history: true,
    domains: Domains::Ignored,
    on_delete: false,
    step: None,
};

#[expect(clippy::too_many_lines, reason = "a table")]
fn setups() -> Vec<Setup> {
    let halt = Some(OnDetachTimeout::Halt);
    let abort = Some(OnDetachTimeout::Abort);
    let proceed = Some(OnDetachTimeout::Proceed);
    vec![
        Setup { name: "crash, two changes; Deployment mark", left: Left { templates: 2, crashes: 1, ..NONE }, ..PLAIN },
        Setup { name: "crash, two changes; Node mark", marks: NODE, left: Left { templates: 2, crashes: 1, ..NONE }, ..PLAIN },
        Setup { name: "crash, two changes; both marks", marks: BOTH, left: Left { templates: 2, crashes: 1, ..NONE }, ..PLAIN },
        Setup { name: "crash, two changes; no mark", marks: DEGRADE, left: Left { templates: 2, crashes: 1, ..NONE }, ..PLAIN },
        Setup { name: "two operators, a change; Deployment mark", operators: 2, ids: 3, left: Left { templates: 1, ..NONE }, ..PLAIN },
        Setup {
            name: "two operators, a change; Node mark",
            operators: 2,
            ids: 3,
            marks: NODE,
            left: Left { templates: 1, ..NONE },
            ..PLAIN
        },
        Setup {
            name: "two operators, a change; both marks",
            operators: 2,
            ids: 3,
            marks: BOTH,
            left: Left { templates: 1, ..NONE },
            ..PLAIN
        },
        Setup {
            name: "two operators, a change; no mark",
            operators: 2,
            ids: 3,
            marks: DEGRADE,
            left: Left { templates: 1, ..NONE },
            ..PLAIN
        },
        Setup {
            name: "two operators, a change, a crash; no mark",
            operators: 2,
            ids: 2,
            marks: DEGRADE,
            left: Left { templates: 1, crashes: 1, ..NONE },
            ..PLAIN
        },
        Setup {
            name: "two operators, a change, a crash; Deployment mark",
            operators: 2,
            ids: 2,
            left: Left { templates: 1, crashes: 1, ..NONE },
            ..PLAIN
        },
        Setup { name: "three nodes, budget 2", nodes: 3, budget: 2, left: Left { templates: 1, crashes: 1, ..NONE }, ..PLAIN },
        Setup { name: "budget changes", budget: 2, left: Left { templates: 1, budgets: 2, crashes: 1, ..NONE }, ..PLAIN },
        Setup { name: "marks change", marks: NODE, ids: 5, left: Left { templates: 1, marks: 1, crashes: 1, ..NONE }, ..PLAIN },
        Setup {
            name: "marks change, two operators, one node",
            nodes: 1,
            operators: 2,
            marks: NODE,
            ids: 4,
            left: Left { templates: 1, marks: 1, ..NONE },
            ..PLAIN
        },
        Setup {
            name: "key changes, two operators, one node",
            nodes: 1,
            operators: 2,
            marks: NODE,
            ids: 4,
            left: Left { templates: 1, keys: 1, ..NONE },
            ..PLAIN
        },
        Setup { name: "paused and resumed", left: Left { templates: 2, pauses: 2, crashes: 1, ..NONE }, ..PLAIN },
        Setup { name: "more and fewer replicas", marks: BOTH, left: Left { templates: 1, scalings: 2, ..NONE }, ..PLAIN },
        Setup { name: "Deployment deleted", marks: BOTH, left: Left { templates: 1, deletions: 1, ..NONE }, ..PLAIN },
        Setup {
            name: "Deployment deleted, two operators, one node",
            nodes: 1,
            operators: 2,
            marks: TOKEN,
            left: Left { templates: 1, deletions: 1, ..NONE },
            ..PLAIN
        },
        Setup { name: "Node re-created", marks: BOTH, left: Left { templates: 1, recreations: 1, crashes: 1, ..NONE }, ..PLAIN },
        Setup {
            name: "Node re-created, two operators, one node",
            nodes: 1,
            operators: 2,
            marks: NODE,
            left: Left { templates: 1, recreations: 1, ..NONE },
            ..PLAIN
        },
        Setup { name: "nodes leave and return", marks: BOTH, ids: 5, left: Left { templates: 1, leaves: 2, ..NONE }, ..PLAIN },
        Setup { name: "nodes leave and return; a blank list", blank: true, left: Left { leaves: 2, crashes: 1, ..NONE }, ..PLAIN },
        Setup {
            name: "nodes leave and return, two operators, one node",
            nodes: 1,
            operators: 2,
            left: Left { templates: 1, leaves: 2, ..NONE },
            ..PLAIN
        },
        Setup { name: "somebody edits a Deployment", left: Left { templates: 1, edits: 1, crashes: 1, ..NONE }, ..PLAIN },
        Setup { name: "pods become unready", budget: 1, left: Left { templates: 1, outages: 2, ..NONE }, ..PLAIN },
        Setup { name: "detacher, Halt", marks: NODE, detacher: halt, left: Left { templates: 2, crashes: 1, ..NONE }, ..PLAIN },
        Setup { name: "detacher, Abort", marks: NODE, detacher: abort, ids: 5, left: Left { templates: 2, ..NONE }, ..PLAIN },
        Setup {
            name: "detacher, Abort, two operators, one node",
            nodes: 1,
            operators: 2,
            marks: NODE,
            detacher: abort,
            left: Left { templates: 1, ..NONE },
            ..PLAIN
        },
        Setup { name: "detacher, Proceed", marks: BOTH, detacher: proceed, left: Left { templates: 1, crashes: 1, ..NONE }, ..PLAIN },
        Setup { name: "ledger lost; Deployment mark", ids: 6, left: Left { templates: 1, wipes: 1, ..NONE }, ..PLAIN },
        Setup { name: "ledger lost; both marks", marks: BOTH, ids: 6, left: Left { templates: 1, wipes: 1, ..NONE }, ..PLAIN },
        Setup {
            name: "ledger lost, two operators, one node; Deployment mark",
            nodes: 1,
            operators: 2,
            ids: 5,
            left: Left { templates: 1, wipes: 1, ..NONE },
            ..PLAIN
        },
        Setup {
            name: "ledger lost, two operators, one node; a blank list",
            nodes: 1,
            operators: 2,
            ids: 5,
            blank: true,
            left: Left { crashes: 1, wipes: 1, templates: 1, ..NONE },
            ..PLAIN
        },
        Setup {
            name: "ledger lost, two operators, one node; Node mark",
            nodes: 1,
            operators: 2,
            ids: 5,
            marks: NODE,
            left: Left { templates: 1, wipes: 1, ..NONE },
            ..PLAIN
        },
        Setup { name: "drained and back; Deployment mark", left: Left { templates: 1, drains: 2, ..NONE }, ..PLAIN },
        Setup { name: "drained and back; both marks", marks: BOTH, left: Left { drains: 2, crashes: 1, ..NONE }, ..PLAIN },
        Setup { name: "drained and back; no mark", marks: DEGRADE, left: Left { templates: 1, drains: 2, ..NONE }, ..PLAIN },
        Setup {
            name: "drained and back, two operators, one node",
            nodes: 1,
            operators: 2,
            marks: NODE,
            ids: 3,
            left: Left { drains: 2, ..NONE },
            ..PLAIN
        },
        Setup { name: "drained while paused", left: Left { templates: 1, drains: 1, pauses: 2, ..NONE }, ..PLAIN },
        Setup {
            name: "drained and back outside the windows; no history",
            history: false,
            left: Left { templates: 1, drains: 2, closings: 1, ..NONE },
            ..PLAIN
        },
        Setup { name: "windows close and open", left: Left { templates: 2, closings: 2, crashes: 1, ..NONE }, ..PLAIN },
        Setup {
            name: "windows close and open; no history",
            history: false,
            left: Left { templates: 2, closings: 2, crashes: 1, ..NONE },
            ..PLAIN
        },
        Setup {
            name: "a revision fails, is tried again, is rolled back",
            left: Left { templates: 1, failures: 2, rollbacks: 1, crashes: 1, ..NONE },
            ..PLAIN
        },
        Setup {
            name: "a revision fails and is rolled back; both marks",
            marks: BOTH,
            left: Left { templates: 1, failures: 1, rollbacks: 1, ..NONE },
            ..PLAIN
        },
        Setup {
            name: "a revision fails and is rolled back; no history",
            history: false,
            left: Left { templates: 1, failures: 1, rollbacks: 1, crashes: 1, ..NONE },
            ..PLAIN
        },
        Setup {
            name: "a revision fails, is rolled back, two operators",
            nodes: 1,
            operators: 2,
            ids: 3,
            left: Left { templates: 1, failures: 1, rollbacks: 1, ..NONE },
            ..PLAIN
        },
        Setup {
            name: "two domains",
            nodes: 3,
            budget: 2,
            domains: Domains::Budgets,
            left: Left { templates: 1, crashes: 1, ..NONE },
            ..PLAIN
        },
        Setup {
            name: "two domains, a drain; no mark",
            nodes: 3,
            budget: 2,
            domains: Domains::Budgets,
            marks: DEGRADE,
            ids: 3,
            left: Left { templates: 1, drains: 1, ..NONE },
            ..PLAIN
        },
        Setup {
            name: "one domain at a time",
            nodes: 3,
            budget: 2,
            domains: Domains::InTurn,
            ids: 3,
            left: Left { templates: 1, crashes: 1, ..NONE },
            ..PLAIN
        },
        Setup { name: "a node is skipped", left: Left { templates: 1, skips: 2, crashes: 1, ..NONE }, ..PLAIN },
        Setup {
            name: "a node is skipped and drained; no mark",
            marks: DEGRADE,
            left: Left { templates: 1, skips: 1, drains: 1, ..NONE },
            ..PLAIN
        },
        Setup { name: "a node fails and is tried again", left: Left { templates: 1, node_failures: 1, retries: 1, ..NONE }, ..PLAIN },
        Setup {
            name: "a node fails and is tried again while paused",
            nodes: 1,
            left: Left { templates: 1, node_failures: 1, retries: 1, edits: 1, pauses: 1, ..NONE },
            ..PLAIN
        },
        Setup {
            name: "a stuck slot is freed; both marks",
            marks: BOTH,
            left: Left { templates: 1, releases: 1, crashes: 1, ..NONE },
            ..PLAIN
        },
        Setup { name: "a stuck slot is freed, and tried again", left: Left { templates: 1, releases: 1, retries: 1, ..NONE }, ..PLAIN },
        Setup {
            name: "a stuck slot is freed, two operators, one node",
            nodes: 1,
            operators: 2,
            ids: 3,
            left: Left { templates: 1, releases: 1, ..NONE },
            ..PLAIN
        },
        Setup { name: "OnDelete", on_delete: true, left: Left { templates: 1, pod_deletions: 2, crashes: 1, ..NONE }, ..PLAIN },
        Setup { name: "OnDelete, drained and back", on_delete: true, left: Left { templates: 1, drains: 2, ..NONE }, ..PLAIN },
        Setup {
            name: "OnDelete, drained and back; no history",
            on_delete: true,
            history: false,
            left: Left { templates: 1, drains: 2, ..NONE },
            ..PLAIN
        },
        Setup { name: "another placement", left: Left { templates: 1, placements: 1, edits: 1, ..NONE }, ..PLAIN },
        Setup { name: "a canary is promoted", step: Some(1), left: Left { templates: 1, promotions: 1, crashes: 1, ..NONE }, ..PLAIN },
        Setup {
            name: "a canary of two of three nodes",
            nodes: 3,
            budget: 2,
            step: Some(2),
            ids: 3,
            left: Left { templates: 1, promotions: 1, ..NONE },
            ..PLAIN
        },
        Setup {
            name: "a canary, drained and back; no history",
            step: Some(1),
            history: false,
            left: Left { templates: 1, drains: 2, ..NONE },
            ..PLAIN
        },
    ]
}

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

fn cap(default: usize) -> usize {
    std::env::var("MODEL_STATES").ok().and_then(|states| states.parse().ok()).unwrap_or(default)
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
fn every_promise_holds_in_every_state_and_each_comes_to_rest() {
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
        } else if setup.operators == 1 && setup.left.leaves == 0 && !outcome.exhaustive {
            failures.push(format!("{}: too many states to see all; it was once searched to its end", setup.name));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    show(&format!("\n{:<10} steps decided for it", "kind"));
    let covered: Vec<_> = (0..KINDS.len()).map(operator::covered).collect();
    for (kind, steps) in KINDS.iter().zip(&covered) {
        show(&format!("{:<10} {}", format!("{kind:?}"), steps.iter().map(|step| format!("{step:?}")).collect::<Vec<_>>().join(", ")));
    }
    if only.is_none() {
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
