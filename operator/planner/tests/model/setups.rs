//! What is searched: worlds, and how often each thing may happen in them.

use crate::{
    operator::Domains,
    state::{BOTH, DEGRADE, Left, Marks, NODE, TOKEN},
};
use crds::ingress_daemon_set::OnDetachTimeout;

/// One search: so many nodes and operators, and what may happen.
#[derive(Clone, Copy)]
pub struct Setup {
    pub name: &'static str,
    pub nodes: usize,
    pub operators: usize,
    pub marks: Marks,
    pub budget: u8,
    pub detacher: Option<OnDetachTimeout>,
    /// Grants and other ids that may be given out.
    pub ids: u8,
    pub left: Left,
    /// A new process is shown nothing at first, instead of how it all began.
    pub blank: bool,
    /// Former revisions are recorded.
    pub history: bool,
    /// Nodes are in two topology domains by turns.
    pub domains: Domains,
    /// Nodes are updated when somebody deletes their pods.
    pub on_delete: bool,
    /// So many nodes are updated before somebody promotes the rollout.
    pub step: Option<u8>,
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
pub fn setups() -> Vec<Setup> {
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
