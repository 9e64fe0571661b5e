//! What is heard of a node before a step is taken there: its health port, and its kubelet.

use super::Pass;
use crate::{
    node::ManagedNode,
    protocol::step::Step,
    reason::{LEAVES_AFTER, Reason},
    rollout::evidence::{Evidence, evidence},
};
use crds::ledger::{Grant, GrantReason};

/// Seconds after which a silent port is spoken of: a health checker that is made anew has its port back by then.
const SAID_AFTER: i64 = 5;
/// Seconds of silence after which a port is asked less often: each question to a machine that is out of reach holds the pass up.
const ASKED_OFTEN: i64 = 30;

impl Pass<'_> {
    /// Why a step must wait for what the node or its health port says.
    pub(super) fn unheard(&mut self, managed: &ManagedNode<'_>, grant: &Grant, next: Step) -> Option<Reason> {
        if grant.released {
            // A person has decided.
            return None;
        }
        let leaves = matches!(grant.kind, GrantReason::Remove | GrantReason::Drain);
        let changes = matches!(next, Step::Pause | Step::Update) && !leaves && grant.kind != GrantReason::Abort;
        if changes && managed.is_lost() {
            return Some(Reason::NodeNotReady);
        }
        match evidence(self.snapshot, self.settings, managed, grant, next) {
            Evidence::None => None,
            Evidence::Ask(question) => {
                self.plan.questions.insert(managed.name.to_owned(), question);
                Some(Reason::AskingHealthPort)
            }
            Evidence::Contradicts(reason) => {
                self.plan.recheck(self.snapshot.now.saturating_add(1));
                Some(reason)
            }
            Evidence::Silent { address, ports } => {
                let silent = self.plan.sights.note_silence(&self.snapshot.sights, managed.name, self.snapshot.watched);
                if leaves && silent >= LEAVES_AFTER {
                    return None;
                }
                self.plan.recheck(self.snapshot.now.saturating_add(if silent < ASKED_OFTEN { 1 } else { 5 }));
                let says = Reason::HealthPortSilent { address, ports, leaves };
                Some(if silent < SAID_AFTER { Reason::AskingHealthPort } else { says })
            }
        }
    }
}
