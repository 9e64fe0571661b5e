//! The protocol: what the holder of a grant does next on one node.
//!
//! Pure and over `Copy` types, without times: `timing` has turned them into yes and no. The same function runs in the
//! operator and in the model that searches it.

use crds::{holders::EntryPhase, ledger::GrantReason, token::Phase};

/// A grant, as far as the protocol needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GrantView {
    /// Id of the grant, by which objects refuse late writes of earlier grants.
    pub id: u64,
    /// Reason of the grant.
    pub kind: GrantReason,
    /// The grant marks the Deployment.
    pub deployment_mark: bool,
    /// The grant marks the Node.
    pub node_mark: bool,
}

/// Token of a node's Deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenView {
    /// Id that the token carries.
    pub id: u64,
    /// Phase that the token carries.
    pub phase: Phase,
}

/// Our entry on the Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EntryView {
    /// Id that the entry carries.
    pub id: u64,
    /// Whether the entry detaches the node.
    pub phase: EntryPhase,
    /// It holds the node by another key than the grant's, which a detachment takes off.
    pub other_key: bool,
}

/// The Node object, compared with the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeView {
    /// The Node for which the grant was given.
    Same,
    /// Another Node of that name.
    Replaced,
    /// There is no Node of that name.
    Absent,
}

/// Everything that the next step depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is an observation of its own, and the model enumerates them")]
pub struct StepView {
    /// Grant whose next step is asked for.
    pub grant: GrantView,
    /// The token of the node's Deployment; `None` when there is no Deployment. An unreadable token reads as id 0, Closed.
    pub token: Option<TokenView>,
    /// Entry of this resource on the Node.
    pub entry: Option<EntryView>,
    /// The Node object, compared with the grant.
    pub node: NodeView,
    /// Reason, revision and marks of the grant are what is wanted now.
    pub wanted: bool,
    /// The Deployment runs exactly what the grant is to bring about, and nothing else.
    pub complete: bool,
    /// The update begins with a pause of the Deployment, for pods that change in place.
    pub pauses: bool,
    /// The pods have changed in place, or cannot: the pause may end.
    pub replaced: bool,
    /// Grace periods and the detacher's timestamp are over, each counted from the mark of this id.
    pub graced: bool,
    /// The attach soak is over, and the detacher has let go where no holder is left.
    pub soaked: bool,
    /// Pods, or a `ReplicaSet` of ours without its Deployment, are left on the node.
    pub pods_left: bool,
    /// The member label is on the Node.
    pub member: bool,
}

/// The next step: one write, or what to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Deployment: token `id.Claimed`, with which the health check answers 503.
    Claim,
    /// Node: entry `id Detached`, the user's key.
    Detach,
    /// Deployment: token `id.InPlace`, and pauses it.
    Pause,
    /// `ReplicaSet` and pods: what [`moves`](crate::objects::in_place::moves::moves) says.
    Replace,
    /// Deployment: what the kind changes, and `id.Updating` or `id.Degrading`.
    Update,
    /// Node: entry `id Attached`, without the user's key.
    Unmark,
    /// Deployment: token `id.Closed`; the node is back in rotation.
    Close,
    /// Delete the Deployment (kind Remove).
    DeleteDeployment,
    /// Node: our entry away (kind Remove).
    RemoveEntry,
    /// Node: the member label away (kind Remove).
    RemoveMember,
    /// Ledger: this id away. `live`: only after the Deployment's absence was read live.
    Release {
        /// The Deployment must be absent.
        live: bool,
    },
    /// Ledger: a new id in the same slot.
    Retarget,
    /// The Deployment is missing with pods left, or while the node is wanted: it is created first.
    AwaitDeployment,
    /// Marks are on; the grace is not over.
    AwaitGrace,
    /// Pods are not what they should be yet.
    AwaitComplete,
    /// Attached again; not soaked yet.
    AwaitSoak,
}

/// The next step of a grant.
pub fn step(view: &StepView) -> Step {
    if view.node == NodeView::Replaced {
        return Step::Retarget;
    }
    let Some(token) = view.token else { return without_deployment(view) };
    let grant = view.grant;
    let entry_id = view.entry.map_or(0, |entry| entry.id);
    let ours = token.id == grant.id;
    let made_anew = ours && token.phase == Phase::New;
    if token.id > grant.id || entry_id > grant.id || made_anew {
        return Step::Retarget;
    }
    if ours && token.phase == Phase::Closed {
        return closed(view);
    }
    // Before the pods have changed a grant that is no longer wanted always gives way; afterwards only while it is not
    // complete: a node that is complete goes on to Closed and passes admission anew.
    let updating = ours && matches!(token.phase, Phase::Updating | Phase::Degrading);
    let finished = updating && view.complete;
    if !view.wanted && !finished {
        return Step::Retarget;
    }
    if ours && token.phase == Phase::InPlace {
        return in_place(view);
    }
    if updating { updated(view, token.phase) } else { marked(view, token) }
}

/// The marks in use: those of the grant, and a mark that is found holding.
fn marks(view: &StepView, token: TokenView) -> (bool, bool) {
    let holding = matches!(token.phase, Phase::Claimed | Phase::InPlace | Phase::Updating);
    let detached = view.entry.is_some_and(|entry| entry.phase == EntryPhase::Detached);
    (view.grant.deployment_mark || holding && token.id < view.grant.id, view.node == NodeView::Same && (view.grant.node_mark || detached))
}

/// Not updated yet: mark, wait, update.
fn marked(view: &StepView, token: TokenView) -> Step {
    let id = view.grant.id;
    let (deployment_mark, node_mark) = marks(view, token);
    // A key comes off only when no late UPDATE of an earlier grant, which relied on it, can arrive any more.
    let rekeyed = node_mark && view.entry.is_some_and(|entry| entry.other_key && entry.phase == EntryPhase::Detached);
    if (deployment_mark || rekeyed) && token.id < id {
        return Step::Claim;
    }
    if node_mark {
        match view.entry {
            Some(entry) if entry.id == id && entry.phase == EntryPhase::Detached => {}
            // Attached at this id before the update was written: somebody else wrote it.
            Some(entry) if entry.id == id => return Step::Retarget,
            Some(_) | None => return Step::Detach,
        }
    }
    let may_change = view.graced || view.grant.kind == GrantReason::Abort || !deployment_mark && !node_mark;
    match may_change {
        true if view.pauses => Step::Pause,
        true => Step::Update,
        false => Step::AwaitGrace,
    }
}

/// Paused at this id: the pods change, then the Deployment goes on.
fn in_place(view: &StepView) -> Step {
    let id = view.grant.id;
    let detached = view.entry.is_some_and(|entry| entry.phase == EntryPhase::Detached);
    let held = view.entry.is_some_and(|entry| entry.id == id && entry.phase == EntryPhase::Detached);
    if view.node == NodeView::Same && (view.grant.node_mark || detached) && !held {
        // The mark of this id is gone before the pods were done: mark the node again under a new one.
        return Step::Retarget;
    }
    if view.replaced { Step::Update } else { Step::Replace }
}

/// Updated at this id: wait for the pods, unmark, close.
fn updated(view: &StepView, phase: Phase) -> Step {
    let id = view.grant.id;
    let detached = view.entry.is_some_and(|entry| entry.phase == EntryPhase::Detached);
    if phase == Phase::Updating && view.node == NodeView::Same && (view.grant.node_mark || detached) {
        match view.entry {
            Some(entry) if entry.id == id && entry.phase == EntryPhase::Attached => {}
            Some(entry) if entry.id == id => return if view.complete { Step::Unmark } else { Step::AwaitComplete },
            // The entry of this id is gone: mark the node again under a new one.
            Some(_) | None => return Step::Retarget,
        }
    }
    if view.complete { Step::Close } else { Step::AwaitComplete }
}

/// `id.Closed`: nothing is retargeted any more.
fn closed(view: &StepView) -> Step {
    if view.entry.is_some_and(|entry| entry.phase == EntryPhase::Detached && entry.id < view.grant.id) {
        return Step::Retarget;
    }
    if view.entry.is_some_and(|entry| entry.phase == EntryPhase::Detached) {
        return Step::Unmark;
    }
    if view.grant.kind == GrantReason::Remove {
        // A node that was chosen again meanwhile keeps its Deployment, with no pods, and passes admission anew.
        if view.wanted { Step::DeleteDeployment } else { Step::Release { live: false } }
    } else if view.soaked {
        Step::Release { live: false }
    } else {
        Step::AwaitSoak
    }
}

/// The next step while the node has no Deployment.
fn without_deployment(view: &StepView) -> Step {
    if view.pods_left {
        return Step::AwaitDeployment;
    }
    if !view.wanted {
        return Step::Retarget;
    }
    if view.grant.kind != GrantReason::Remove {
        return Step::AwaitDeployment;
    }
    match view.entry {
        Some(entry) if view.node == NodeView::Same => {
            if entry.phase == EntryPhase::Detached {
                Step::Unmark
            } else {
                Step::RemoveEntry
            }
        }
        _ if view.member && view.node == NodeView::Same => Step::RemoveMember,
        _ => Step::Release { live: true },
    }
}
