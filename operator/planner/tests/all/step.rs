//! The table of steps: each row, and what must hold it back.

use crds::{holders::EntryPhase, ledger::GrantReason, token::Phase};
use planner::protocol::step::{EntryView, GrantView, NodeView, Step, StepView, TokenView, step};

const ID: u64 = 7;

/// A grant of id 7 with both marks, on a node that nothing was done to yet.
fn granted() -> StepView {
    StepView {
        grant: GrantView { id: ID, kind: GrantReason::Update, deployment_mark: true, node_mark: true },
        token: token(3, Phase::Closed),
        entry: entry(3, EntryPhase::Attached),
        node: NodeView::Same,
        wanted: true,
        complete: true,
        pauses: false,
        replaced: false,
        graced: true,
        soaked: true,
        pods_left: true,
        member: true,
    }
}

#[expect(clippy::unnecessary_wraps, reason = "what a view holds")]
fn token(id: u64, phase: Phase) -> Option<TokenView> {
    Some(TokenView { id, phase })
}

#[expect(clippy::unnecessary_wraps, reason = "what a view holds")]
fn entry(id: u64, phase: EntryPhase) -> Option<EntryView> {
    Some(EntryView { id, phase, other_key: false })
}

fn marks(deployment_mark: bool, node_mark: bool) -> StepView {
    let view = granted();
    StepView { grant: GrantView { deployment_mark, node_mark, ..view.grant }, ..view }
}

fn kind(view: StepView, kind: GrantReason) -> StepView {
    StepView { grant: GrantView { kind, ..view.grant }, ..view }
}

#[test]
fn with_both_marks_the_steps_come_in_this_order() {
    let (old, detached, attached) = (granted().entry, entry(ID, EntryPhase::Detached), entry(ID, EntryPhase::Attached));
    let rows = [
        (token(3, Phase::Closed), old, Step::Claim),
        (token(ID, Phase::Claimed), old, Step::Detach),
        (token(ID, Phase::Claimed), detached, Step::Update),
        (token(ID, Phase::Updating), detached, Step::Unmark),
        (token(ID, Phase::Updating), attached, Step::Close),
        (token(ID, Phase::Closed), attached, Step::Release { live: false }),
    ];
    for (token, entry, wanted) in rows {
        assert_eq!(step(&StepView { token, entry, ..granted() }), wanted, "{token:?} {entry:?}");
    }
}

#[test]
fn with_one_mark_the_other_object_is_left_alone() {
    let claimed = token(ID, Phase::Claimed);
    let detached = entry(ID, EntryPhase::Detached);
    assert_eq!(step(&StepView { entry: None, ..marks(true, false) }), Step::Claim);
    assert_eq!(step(&StepView { token: claimed, entry: None, ..marks(true, false) }), Step::Update);
    assert_eq!(step(&StepView { entry: None, ..marks(false, true) }), Step::Detach);
    assert_eq!(step(&StepView { entry: detached, ..marks(false, true) }), Step::Update);
    assert_eq!(step(&StepView { token: token(ID, Phase::Updating), entry: None, ..marks(true, false) }), Step::Close);
}

#[test]
fn without_marks_pods_change_without_waiting_for_grace() {
    let view = StepView { entry: None, graced: false, ..marks(false, false) };
    assert_eq!(step(&view), Step::Update);
    assert_eq!(step(&StepView { token: token(ID, Phase::Degrading), ..view }), Step::Close);
}

#[test]
fn a_mark_found_holding_is_used_despite_the_grant() {
    for phase in [Phase::Claimed, Phase::Updating] {
        assert_eq!(step(&StepView { token: token(3, phase), entry: None, ..marks(false, false) }), Step::Claim, "{phase:?}");
    }
    assert_eq!(step(&StepView { entry: entry(3, EntryPhase::Detached), ..marks(false, false) }), Step::Detach);
    assert_eq!(step(&StepView { token: token(3, Phase::Degrading), entry: None, ..marks(false, false) }), Step::Update);
}

#[test]
fn pods_change_only_after_the_grace_except_on_abort() {
    let view = StepView { token: token(ID, Phase::Claimed), entry: entry(ID, EntryPhase::Detached), graced: false, ..granted() };
    assert_eq!(step(&view), Step::AwaitGrace);
    assert_eq!(step(&kind(view, GrantReason::Abort)), Step::Update);
}

#[test]
fn a_node_is_attached_and_closed_only_when_complete() {
    for entry in [entry(ID, EntryPhase::Detached), entry(ID, EntryPhase::Attached)] {
        assert_eq!(step(&StepView { token: token(ID, Phase::Updating), entry, complete: false, ..granted() }), Step::AwaitComplete);
    }
    let degrading = StepView { token: token(ID, Phase::Degrading), entry: None, complete: false, ..marks(false, false) };
    assert_eq!(step(&degrading), Step::AwaitComplete);
}

#[test]
fn a_grant_is_released_only_from_closed_attached_and_soaked() {
    let closed = StepView { token: token(ID, Phase::Closed), entry: entry(ID, EntryPhase::Attached), ..granted() };
    assert_eq!(step(&StepView { soaked: false, ..closed }), Step::AwaitSoak);
    assert_eq!(step(&StepView { entry: entry(ID, EntryPhase::Detached), ..closed }), Step::Unmark);
    assert_eq!(step(&StepView { entry: entry(3, EntryPhase::Detached), ..closed }), Step::Retarget);
    assert_eq!(step(&StepView { wanted: false, ..closed }), Step::Release { live: false }, "what is closed is never retargeted");
}

#[test]
fn an_unwanted_or_outdated_grant_is_retargeted_before_it_completes() {
    let unwanted = StepView { wanted: false, ..granted() };
    let ahead = |id| StepView { token: token(id, Phase::Closed), ..granted() };
    let rows = [
        ("not begun", unwanted),
        ("claimed", StepView { token: token(ID, Phase::Claimed), ..unwanted }),
        ("updating and not complete", StepView { token: token(ID, Phase::Updating), complete: false, ..unwanted }),
        ("the Deployment is ahead", ahead(ID + 1)),
        ("the Node is ahead", StepView { entry: entry(ID + 1, EntryPhase::Attached), ..granted() }),
        ("the Deployment was made anew with this id", StepView { token: token(ID, Phase::New), ..granted() }),
        ("the Node is another", StepView { node: NodeView::Replaced, ..granted() }),
        (
            "attached at this id before the update",
            StepView { token: token(ID, Phase::Claimed), entry: entry(ID, EntryPhase::Attached), ..granted() },
        ),
        ("the entry is gone while pods change", StepView { token: token(ID, Phase::Updating), entry: None, ..granted() }),
    ];
    for (name, view) in rows {
        assert_eq!(step(&view), Step::Retarget, "{name}");
    }
    let complete = StepView { token: token(ID, Phase::Updating), entry: entry(ID, EntryPhase::Attached), ..unwanted };
    assert_eq!(step(&complete), Step::Close, "a complete node passes admission anew instead");
}

#[test]
fn a_removal_takes_deployment_entry_label_and_slot_in_order() {
    let remove = kind(StepView { pods_left: false, ..granted() }, GrantReason::Remove);
    let attached = entry(ID, EntryPhase::Attached);
    let rows = [
        (token(ID, Phase::Closed), attached, true, Step::DeleteDeployment),
        (None, entry(ID, EntryPhase::Detached), true, Step::Unmark),
        (None, attached, true, Step::RemoveEntry),
        (None, None, true, Step::RemoveMember),
        (None, None, false, Step::Release { live: true }),
    ];
    for (token, entry, member, wanted) in rows {
        assert_eq!(step(&StepView { token, entry, member, ..remove }), wanted, "{token:?} {entry:?} {member}");
    }
    let closed = StepView { token: token(ID, Phase::Closed), entry: attached, ..remove };
    assert_eq!(step(&StepView { wanted: false, ..closed }), Step::Release { live: false }, "chosen again: it keeps its Deployment");
    assert_eq!(step(&StepView { token: None, entry: attached, node: NodeView::Absent, ..remove }), Step::Release { live: true });
}

#[test]
fn a_missing_deployment_is_made_anew_before_anything_else() {
    assert_eq!(step(&StepView { token: None, ..granted() }), Step::AwaitDeployment);
    assert_eq!(step(&kind(StepView { token: None, ..granted() }, GrantReason::Remove)), Step::AwaitDeployment, "pods are left");
    let gone = StepView { token: None, pods_left: false, wanted: false, ..granted() };
    assert_eq!(step(&gone), Step::Retarget, "the node has left meanwhile: nobody makes its Deployment anew");
    assert_eq!(step(&kind(StepView { token: None, pods_left: false, wanted: false, ..granted() }, GrantReason::Remove)), Step::Retarget);
}
