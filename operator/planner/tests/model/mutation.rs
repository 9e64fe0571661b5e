//! Guards of the protocol, each to be dropped alone: the search must find what goes wrong then.

use crate::operator::Rules;
use crds::{holders::EntryPhase, ledger::GrantReason, token::Phase};
use planner::protocol::step::{EntryView, Step, StepView};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// The ledger is written without its resourceVersion.
    LedgerWithoutVersion,
    /// A Deployment is written without a test of its token.
    TokenNotTested,
    /// Only the id of the token is tested.
    PhaseNotTested,
    /// A Node is written without a test of its entry.
    EntryNotTested,
    /// The Node's mark has no id: `resourceVersion` alone guards it.
    EntryWithoutId,
    /// The same id may detach a node again.
    DetachTwice,
    /// Pods change before the grace is over.
    GraceSkipped,
    /// A timestamp that answered an earlier detachment counts.
    OldTimestampCounts,
    /// UPDATE does not wait for the Node's mark.
    NodeMarkNotAwaited,
    /// UPDATE does not wait for the Deployment's mark.
    ClaimSkipped,
    /// A late UPDATE is not fenced before a key comes off.
    KeyChangedWithoutClaim,
    /// Deployment status is believed whatever generation it is of.
    GenerationNotObserved,
    /// CLOSE and UNMARK do not wait for the pods.
    CompletionNotAwaited,
    /// UNMARK comes before a Deployment write of the same id: a timed-out node is attached straight away.
    AbortWithoutUpdate,
    /// RELEASE is content with any Closed token.
    ReleaseOnOtherId,
    /// A grant that is released early, while pods change.
    ReleaseOnComplete,
    /// RELEASE of a removal believes the watch that the Deployment is gone.
    AbsenceNotReadLive,
    /// A retarget forgets the marks of the grant that it replaces.
    RetargetDropsMarks,
    /// A retarget keeps the id.
    RetargetKeepsId,
    /// A re-created Node is taken for the old one.
    NodeUidIgnored,
    /// A Deployment of another id is not noticed.
    NewerIdIgnored,
    /// A Deployment is made anew with an id that was used.
    CreatedWithOldId,
    /// A Deployment around pods that were left may change its template at once.
    NewAroundOldPods,
    /// The first CLOSE does not test the generation.
    FirstCloseUntested,
    /// A lost ledger is rebuilt without fencing Deployments.
    DeploymentsNotFenced,
    /// A lost ledger is rebuilt without fencing Nodes.
    NodesNotFenced,
    /// A lost ledger is rebuilt from what the watches happened to show.
    RebuiltWithoutLists,
    /// A lost ledger starts over with the smallest ids.
    IdsStartOver,
    /// Unavailable nodes do not count against the budget.
    UnavailableNotCounted,
    /// Unavailable nodes need no slot.
    UnavailableBypass,
    /// Pause holds nothing back.
    PauseIgnored,
    /// A closed window holds nothing back.
    WindowIgnored,
    /// A closed window holds back what has no grant yet, and nothing else.
    WindowIgnoredOnceGranted,
    /// A failed revision goes on to further nodes.
    FailureIgnored,
    /// A slot is freed when its revision is rolled back, and is to be won again.
    RollbackGivesSlotUp,
    /// A domain may lose as many nodes as the fleet.
    DomainBudgetIgnored,
    /// A drained node is attached as soon as its pods are gone.
    DrainClosed,
    /// A drain takes the node out without marks.
    DrainUnmarked,
    /// Nodes are begun beside drains as if there were none.
    DrainsNotCounted,
    /// A node is begun though a person wants it left alone.
    SkipIgnored,
    /// A node is tried again while nothing may be begun.
    RetriedBehindGates,
    /// A node is begun again on the revision that failed there.
    FailedBeforeIgnored,
    /// A freed slot is whichever the node has by now.
    FreedIdIgnored,
    /// A freed slot is taken out of the ledger at once: no higher id fences the node.
    FreedWithoutId,
    /// With `OnDelete` nodes are updated though nobody deleted their pods.
    OrderNotAwaited,
    /// What is not the node's turn holds back grants, and not what grants turn into.
    TurnIgnoredOnceGranted,
    /// With `OnDelete` pods that the operator replaced are taken for deleted ones.
    OwnPodsTakenForOrders,
    /// A canary goes on to further nodes at once.
    StepIgnored,
    /// A step is over before its nodes serve.
    StepPassedEarly,
    /// Another placement is taken for a foreign edit.
    PlacementIsDrift,
    /// Nodes of a second domain are begun beside the first.
    DomainsTogether,
}

impl Rules {
    /// What a step without one of its guards would see.
    pub fn blind(&self, view: StepView) -> StepView {
        let id = view.grant.id;
        let before = view.token.is_none_or(|token| token.id < id || token.phase == Phase::Claimed);
        match self.mutation {
            Some(Mutation::NodeMarkNotAwaited) if before && view.entry.is_some_and(|entry| entry.id < id) => {
                StepView { entry: Some(EntryView { id, phase: EntryPhase::Detached, other_key: false }), ..view }
            }
            Some(Mutation::ClaimSkipped) => {
                StepView { grant: planner::protocol::step::GrantView { deployment_mark: false, ..view.grant }, ..view }
            }
            Some(Mutation::KeyChangedWithoutClaim) => {
                StepView { entry: view.entry.map(|entry| EntryView { other_key: false, ..entry }), ..view }
            }
            Some(Mutation::CompletionNotAwaited) => StepView { complete: true, ..view },
            Some(Mutation::EntryWithoutId) if before => {
                let told = |entry: EntryView| if entry.phase == EntryPhase::Detached { id } else { entry.id.min(id - 1) };
                StepView { entry: view.entry.map(|entry| EntryView { id: told(entry), ..entry }), ..view }
            }
            Some(Mutation::DetachTwice) if before => {
                StepView { entry: view.entry.filter(|entry| entry.phase == EntryPhase::Detached || entry.id != id), ..view }
            }
            Some(Mutation::NewerIdIgnored) => StepView {
                token: view.token.map(|token| planner::protocol::step::TokenView { id: token.id.min(id), ..token }),
                entry: view.entry.map(|entry| EntryView { id: entry.id.min(id), ..entry }),
                ..view
            },
            _ => view,
        }
    }

    /// What a step without one of its guards would say.
    pub fn bend(&self, view: &StepView, next: Step) -> Step {
        let id = view.grant.id;
        match self.mutation {
            Some(Mutation::AbortWithoutUpdate)
                if view.grant.kind == GrantReason::Abort
                    && view.entry.is_some_and(|entry| entry.phase == EntryPhase::Detached)
                    && matches!(next, Step::Claim | Step::Detach | Step::Update) =>
            {
                Step::Unmark
            }
            Some(Mutation::ReleaseOnOtherId)
                if view.complete && view.token.is_some_and(|token| token.phase == Phase::Closed && token.id != id) =>
            {
                Step::Release { live: false }
            }
            Some(Mutation::AbsenceNotReadLive) if next == (Step::Release { live: true }) => Step::Release { live: false },
            Some(Mutation::ReleaseOnComplete) if matches!(next, Step::Close | Step::Unmark) => Step::Release { live: false },
            _ => next,
        }
    }
}
