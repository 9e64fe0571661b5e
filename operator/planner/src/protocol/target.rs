//! What a node needs, whether a grant still serves that, and whether a slot is free.
//!
//! Pure and over `Copy` types, like [`step`](crate::protocol::step()): the same functions run in the operator and in the model that
//! searches them.

use crds::{ledger::GrantReason, token::Phase};
use std::cmp::Ordering;

/// What the need of a node depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is an observation of its own, and the model enumerates them")]
pub struct NeedView {
    /// The node belongs to the resource.
    pub chosen: bool,
    /// The node is about to be taken away.
    pub draining: bool,
    /// Something of ours is on the node.
    pub has_anything: bool,
    /// Phase of the Deployment's token, an unreadable one counts as Closed; `None` when there is no Deployment.
    pub phase: Option<Phase>,
    /// The token can be read.
    pub readable: bool,
    /// The node has a grant.
    pub granted: bool,
    /// Our entry holds the node.
    pub detached: bool,
    /// The Deployment carries the wanted revision.
    pub current: bool,
    /// Somebody changed what we set.
    pub drifted: bool,
    /// The breaker is open: replicas are fewer than they should be on purpose.
    pub broken: bool,
    /// Replicas of the Deployment, compared with what is wanted.
    pub replicas: Ordering,
    /// The Deployment has no replicas.
    pub empty: bool,
}

/// What a node needs that takes a grant; `None` when nothing does.
pub fn need(view: &NeedView) -> Option<GrantReason> {
    if !view.chosen {
        return view.has_anything.then_some(GrantReason::Remove);
    }
    let phase = view.phase.filter(|phase| *phase != Phase::New)?;
    if view.draining {
        return Some(GrantReason::Drain);
    }
    let stuck = !view.readable || !view.granted && (phase != Phase::Closed || view.detached);
    match view.replicas {
        _ if !view.current => Some(GrantReason::Update),
        _ if view.drifted || stuck => Some(GrantReason::Repair),
        Ordering::Greater => Some(GrantReason::Shrink),
        Ordering::Less if view.broken => None,
        // A node without pods does not serve: they are added without a grant, unless one is under way and must say so.
        Ordering::Less if !view.empty || view.granted => Some(GrantReason::Grow),
        Ordering::Less | Ordering::Equal => None,
    }
}

/// Why grants may not go on to something new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is a reason of its own, and the model enumerates them")]
pub struct Stops {
    /// `spec.paused` is true.
    pub paused: bool,
    /// A detacher did not answer; policy Halt.
    pub halted: bool,
    /// No update window is open.
    pub closed: bool,
    /// The revision failed on too many nodes.
    pub failed: bool,
}

impl Stops {
    /// No work of this kind may begin.
    pub fn stops(self, kind: GrantReason) -> bool {
        match kind {
            GrantReason::Remove | GrantReason::Drain => false,
            GrantReason::Update => self.paused || self.halted || self.closed || self.failed,
            GrantReason::Repair | GrantReason::Shrink | GrantReason::Grow | GrantReason::Abort => self.paused || self.halted,
        }
    }
}

/// A grant, compared with what is wanted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is an observation of its own, and the model enumerates them")]
pub struct FitView {
    /// The node belongs to the resource.
    pub chosen: bool,
    /// Why the grant was given.
    pub kind: GrantReason,
    /// The grant's revision is the wanted one.
    pub current: bool,
    /// Its marks include all that an update needs.
    pub marked: bool,
    /// Its marks include all that a removal needs.
    pub marked_for_removal: bool,
    /// An update needs marks at all.
    pub detaches: bool,
    /// Phase of the Deployment's token; `None` when there is no Deployment.
    pub phase: Option<Phase>,
    /// The token carries this grant's id and says that pods change.
    pub updated: bool,
    /// The Deployment has no replicas.
    pub empty: bool,
    /// The token carries this grant's id and says that pods change in place: the Deployment is paused, with its former template.
    pub in_place: bool,
    /// Work that the node needs; `None` if it needs none.
    pub need: Option<GrantReason>,
    /// It gave up the wanted revision after a detach timeout.
    pub given_up: bool,
    /// Reasons for which new work may not begin.
    pub stops: Stops,
}

/// Whether a grant still fits, or what replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fit {
    /// The grant still does what the node needs.
    Fits,
    /// A grant of this kind takes its slot.
    Take(GrantReason),
    /// A grant of kind Abort takes its slot: the node keeps what it runs.
    TurnBack,
}

/// Whether the grant is still what is wanted.
pub fn fit(view: &FitView) -> Fit {
    // Whoever gives it replicas again while it is emptied would keep it from ever being empty.
    let emptied = if view.updated { view.empty } else { view.marked_for_removal };
    if !view.chosen {
        let fits = view.kind == GrantReason::Remove && emptied;
        return if fits { Fit::Fits } else { Fit::Take(GrantReason::Remove) };
    }
    if view.need == Some(GrantReason::Drain) {
        let fits = view.kind == GrantReason::Drain && emptied;
        return if fits { Fit::Fits } else { Fit::Take(GrantReason::Drain) };
    }
    if view.phase.is_none() && view.kind != GrantReason::Remove {
        return Fit::Fits; // It is made anew first, with a higher id.
    }
    if view.in_place {
        let fits = view.current && view.marked && view.need.is_none_or(|need| need == view.kind);
        return if fits { Fit::Fits } else { Fit::Take(view.need.unwrap_or(GrantReason::Repair)) };
    }
    if view.updated {
        let taken_away = matches!(view.kind, GrantReason::Remove | GrantReason::Drain);
        // A way back has changed no pods, and while paused none are: they become ready by themselves, or after the pause. Where there are
        // none, the node gets some of what it runs also while paused.
        let stays = !view.empty || view.need == Some(GrantReason::Update);
        let waits = view.kind == GrantReason::Abort && view.stops.paused && stays;
        let settled = waits || !taken_away && (view.need.is_none() || view.given_up) && (view.kind == GrantReason::Abort || view.current);
        let degrading_to_detach = view.phase == Some(Phase::Degrading) && view.detaches;
        return if settled && !degrading_to_detach { Fit::Fits } else { Fit::Take(view.need.unwrap_or(GrantReason::Repair)) };
    }
    match (view.kind, view.need) {
        (GrantReason::Abort, None) => Fit::Fits,
        (GrantReason::Abort, Some(need)) if view.stops.stops(need) || view.given_up => Fit::Fits,
        (kind, Some(need)) if need == kind && view.current && view.marked => Fit::Fits,
        (_, Some(need)) if !view.stops.stops(need) => Fit::Take(need),
        (_, Some(_) | None) => Fit::TurnBack,
    }
}

/// Whether the budget has a slot for one more node.
///
/// An available node needs `grants + unavailable nodes without a grant < budget`. An unavailable one (`down`) needs
/// `grants < budget`: its update takes nothing more away, and a broken fleet must stay repairable. It never bypasses the
/// budget, or a kubelet restart that makes every pod unready at once would replace them all.
pub fn has_slot(down: bool, grants: usize, unavailable: usize, budget: usize) -> bool {
    (if down { grants } else { grants + unavailable }) < budget
}
