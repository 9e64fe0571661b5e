//! Who gets the next grant.

use crate::{
    hold::Hold,
    rivals::Rivals,
    settings::Settings,
    snapshot::Snapshot,
    target::{Gates, has_slot},
    wanted::{Case, is_free},
};
use crds::{
    hash,
    ledger::{Grant, Kind, Marks},
};
use std::collections::BTreeMap;

/// The outcome: grants without ids, and why the others wait.
#[derive(Debug, Default)]
pub struct Admission {
    /// Nodes that get a grant, in order.
    pub admitted: Vec<(String, Grant)>,
    /// Nodes that need one and wait.
    pub waiting: BTreeMap<String, Hold>,
    /// The budget in nodes.
    pub budget: usize,
}

/// Decides over all nodes that have no grant.
///
/// `taken` slots are held already.
pub fn admit(snapshot: &Snapshot, settings: &Settings, cases: &[Case<'_>], rivals: &Rivals<'_>, gates: Gates, taken: usize) -> Admission {
    let budget = budget(settings, cases);
    let mut grants = taken;
    let holds_slot = |case: &Case<'_>| case.grant.is_some_and(|grant| !is_free(grant));
    let mut unavailable = cases.iter().filter(|case| !holds_slot(case) && case.chosen && case.is_unavailable(settings)).count();
    let mut admission = Admission { budget, ..Admission::default() };
    for (case, kind) in candidates(snapshot, settings, cases) {
        let down = case.chosen && case.is_unavailable(settings);
        let marks = if kind == Kind::Remove { case.removal_marks(settings) } else { settings.update_marks() };
        let free = kind == Kind::Remove && (snapshot.resource.deleting || !case.serves());
        let hold = if free {
            None
        } else {
            gate(rivals, case, kind, gates, &marks)
                .or_else(|| (!has_slot(down, grants, unavailable, budget)).then_some(Hold::Budget { grants, unavailable, budget }))
        };
        if let Some(hold) = hold {
            admission.waiting.insert(case.name.to_owned(), hold);
            continue;
        }
        if !free {
            grants += 1;
            unavailable -= usize::from(down);
        }
        admission.admitted.push((case.name.to_owned(), grant(snapshot, settings, case, kind, marks)));
    }
    admission
}

/// The budget in nodes.
pub fn budget(settings: &Settings, cases: &[Case<'_>]) -> usize {
    settings.budget.of(cases.iter().filter(|case| case.chosen).count())
}

/// Unavailable nodes first, cordoned last, then by a hash: the order of the input never matters.
fn candidates<'a, 'b>(snapshot: &Snapshot, settings: &Settings, cases: &'b [Case<'a>]) -> Vec<(&'b Case<'a>, Kind)> {
    let mut candidates: Vec<_> = cases
        .iter()
        .filter(|case| case.grant.is_none())
        .filter_map(|case| case.need(settings, snapshot.now).map(|kind| (case, kind)))
        .collect();
    candidates.sort_by_cached_key(|(case, _)| {
        let cordoned = case.node.is_some_and(|node| node.unschedulable);
        let order = hash::hex(format!("{}/{}", case.name, settings.revision).as_bytes(), 16);
        (!case.is_unavailable(settings), cordoned, order, case.name)
    });
    candidates
}

fn gate(rivals: &Rivals<'_>, case: &Case<'_>, kind: Kind, gates: Gates, marks: &Marks) -> Option<Hold> {
    if gates.paused && kind != Kind::Remove {
        return Some(Hold::Paused);
    }
    if gates.halted {
        return Some(Hold::Halted);
    }
    if matches!(kind, Kind::Update | Kind::Repair) && !case.node.is_some_and(|node| node.ready) {
        return Some(Hold::NodeNotReady);
    }
    if marks.node.is_some()
        && let Err(error) = &case.holders
    {
        return Some(Hold::HoldersUnreadable(error.clone()));
    }
    rivals.on(case, marks).map(Hold::DetachAnnotationConflict)
}

fn grant(snapshot: &Snapshot, settings: &Settings, case: &Case<'_>, kind: Kind, marks: Marks) -> Grant {
    Grant {
        id: 0,
        node_uid: case.node.map(|node| node.uid.clone()).unwrap_or_default(),
        kind,
        revision: if kind == Kind::Remove { String::new() } else { settings.revision.clone() },
        marks,
        granted_at: snapshot.now,
        refused: None,
    }
}
