//! What follows from each reason, in one table: the match over all reasons makes everyone who adds one decide.

use super::{Reason, StepState};

/// What follows from a reason, beside its word and its sentence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub struct Class {
    /// Rank among obstacles; `blocked` names the lowest: a pause, then failures and what is broken, then windows, steps and slots, last what
    /// the spec or a person leaves out. A grant whose reason has a rank is not under way, so that the clock of the progress deadline does
    /// not run for it. None for what is part of an update that goes on.
    pub rank: Option<u8>,
    /// It is about the rollout, not about one node.
    pub of_rollout: bool,
    /// A person, time or a window has to settle it before any node can begin.
    pub holds_all: bool,
    /// Only a person ends it: no time, no other node, no order of the spec.
    pub needs_somebody: bool,
    /// A node is in trouble that no step of the rollout mends.
    pub trouble: bool,
    /// One node with it makes the resource Stalled, though others may go on.
    pub stalls: bool,
}

impl Class {
    const NONE: Self = Self { rank: None, of_rollout: false, holds_all: false, needs_somebody: false, trouble: false, stalls: false };
    const TROUBLE: Self = Self { trouble: true, ..Self::NONE };
    const STALLS: Self = Self { stalls: true, ..Self::TROUBLE };
    const OF_ROLLOUT: Self = Self { of_rollout: true, ..Self::NONE };
    const HOLDS_ALL: Self = Self { holds_all: true, ..Self::OF_ROLLOUT };

    const fn at(self, rank: u8) -> Self {
        Self { rank: Some(rank), ..self }
    }

    const fn needs_somebody(self) -> Self {
        Self { needs_somebody: true, ..self }
    }
}

impl Reason {
    /// A wait for a turn that time alone ends: a window opens, a step has soaked, a revision has proved itself. Waits of a node that is under
    /// way, such as graces, are not asked about.
    pub fn ends_by_itself(&self) -> bool {
        let soaks = matches!(self, Self::Step { state: StepState::Soaking { .. }, .. });
        soaks || matches!(self, Self::OutsideWindow { opens: Some(_) } | Self::Proving { suspects: 0, .. })
    }

    /// What follows from this reason.
    pub fn class(&self) -> Class {
        match self {
            Self::Paused => Class::OF_ROLLOUT.at(0),
            Self::TooManyFailed { .. } => Class { trouble: true, ..Class::HOLDS_ALL }.at(1).needs_somebody(),
            Self::DetachTimeout => Class::STALLS.at(2),
            Self::BadTimestamp(_) => Class::TROUBLE.at(2).needs_somebody(),
            Self::AdmissionRejected { .. } => Class::TROUBLE.at(3),
            Self::Failed { .. } | Self::FailedBefore(_) | Self::PodsRefused(_) => Class::TROUBLE.at(3).needs_somebody(),
            Self::Refused { .. }
            | Self::NameConflict(_)
            | Self::HoldersUnreadable(_)
            | Self::HoldersFull
            | Self::DetachAnnotationConflict(_) => Class::STALLS.at(4),
            Self::StillHealthy { .. } | Self::StillUnhealthy { .. } => Class::NONE.at(4).needs_somebody(),
            Self::HealthPortSilent { leaves: false, .. } | Self::PrePulling(Some(_)) | Self::DetachAborted => {
                Class::TROUBLE.at(4).needs_somebody()
            }
            Self::NotInPlace(_) => Class { of_rollout: false, ..Class::HOLDS_ALL }.at(4).needs_somebody(),
            Self::OutsideWindow { .. } => Class::HOLDS_ALL.at(5),
            Self::Step { state: StepState::Updating { .. }, .. } | Self::Proving { suspects: 0, .. } => Class::OF_ROLLOUT,
            Self::Step { state: StepState::Soaking { .. }, .. } => Class::OF_ROLLOUT.at(6),
            Self::Step { state: StepState::AwaitingPromotion { .. }, .. } => Class::HOLDS_ALL.at(6),
            Self::Step { state: StepState::NoNodes { .. }, .. } => Class::HOLDS_ALL.at(6).needs_somebody(),
            // What takes the slot that others wait for comes before their wait.
            Self::Drained(_) => Class::NONE.at(7),
            Self::Budget { .. } | Self::MinAvailable { .. } | Self::Proving { .. } => Class::OF_ROLLOUT.at(8),
            // Others wait; the node that halts the rollout says why, and what to do.
            Self::Halted | Self::DomainBudget { .. } => Class::NONE.at(8),
            Self::NodeNotReady => Class::TROUBLE.at(9),
            Self::OnDelete => Class::HOLDS_ALL.at(10),
            Self::Partition => Class::HOLDS_ALL.at(11),
            Self::Skipped => Class::NONE.at(12),
            Self::PodsNotReady { trouble: Some(_), .. }
            | Self::Joining { trouble: Some(_) }
            | Self::UpdatingInPlace { trouble: Some(_), .. }
            | Self::Relabelled(_)
            | Self::HealthPortSilent { leaves: true, .. } => Class::TROUBLE,
            Self::InvalidSpec
            | Self::RebuildingLedger
            | Self::Suspect { .. }
            | Self::JoinsCurrent
            | Self::WithoutPods
            | Self::OtherDomain(_)
            | Self::Draining
            | Self::Granted
            | Self::WaitingForTaint { .. }
            | Self::GracePeriod { .. }
            | Self::WaitingForDetacher { .. }
            | Self::PodsNotReady { trouble: None, .. }
            | Self::PodsTerminating
            | Self::PodsTooYoung
            | Self::UpdatingInPlace { trouble: None, .. }
            | Self::PrePulling(None)
            | Self::TakenOut(_)
            | Self::AttachSoak { .. }
            | Self::WaitingForAttachment
            | Self::Joining { trouble: None }
            | Self::AskingHealthPort
            | Self::Writing => Class::NONE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_detachers_node_precedes_those_waiting_for_it() {
        assert!(Reason::DetachTimeout.class().rank < Reason::Halted.class().rank);
    }

    #[test]
    fn trouble_is_trouble_in_place_too() {
        let trouble = Some(("ImagePullBackOff".to_owned(), "no such image".to_owned()));
        assert!(Reason::UpdatingInPlace { updated: 0, of: 2, trouble, why: None }.class().trouble);
        assert!(!Reason::UpdatingInPlace { updated: 0, of: 2, trouble: None, why: None }.class().trouble);
    }
}
