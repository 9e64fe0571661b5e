//! What a grant waits for: its marks to work, its pods, the soak.

use super::Pass;
use crate::{
    breaker,
    hold::Hold,
    readiness,
    timing::{self, Marked},
    wanted::Case,
};
use crds::{
    holders::EntryPhase,
    ledger::{Grant, Kind},
    token::Phase,
};

impl Pass<'_> {
    /// Until when a grant waits for its marks to work.
    pub(super) fn grace(&self, case: &Case<'_>) -> Option<Hold> {
        let grant = case.grant?;
        let token = case.token.as_ref().filter(|token| token.id == grant.id && token.phase == Phase::Claimed);
        let entry = case.entry.as_ref().filter(|entry| entry.id == grant.id && entry.phase == EntryPhase::Detached);
        if token.is_none() && entry.is_none() || grant.kind == Kind::Abort || case.is_updated() {
            return None;
        }
        let first_seen = self.snapshot.first_seen.get(&(case.name.to_owned(), grant.id)).copied().unwrap_or(self.snapshot.now);
        let Some(settings) = self.settings else {
            let stored = token.map(|token| token.since).max(entry.map(|entry| entry.time));
            return stored.and_then(|stored| timing::default_grace(self.snapshot.now, first_seen, stored));
        };
        let hold = timing::grace(settings, &Marked { now: self.snapshot.now, first_seen, token, entry, node: case.node })?;
        // Deletion is bounded: it never waits for a detacher for ever.
        (!(self.snapshot.resource.deleting && hold == Hold::DetachTimeout)).then_some(hold)
    }

    /// Until when a node that is attached again is left alone.
    pub(super) fn soak(&self, case: &Case<'_>, grant: &Grant) -> Option<Hold> {
        let settings = self.settings?;
        let closed = case.token.as_ref().filter(|token| token.id == grant.id && token.phase == Phase::Closed)?;
        let entry = case.entry.as_ref().filter(|entry| entry.id == grant.id && entry.phase == EntryPhase::Attached);
        let key = entry.map(|entry| entry.key.as_str()).unwrap_or_default();
        let alone = case
            .holders
            .as_ref()
            .is_ok_and(|holders| !holders.values().any(|other| other.phase == EntryPhase::Detached && other.key == key))
            && case.node.is_some_and(|node| !node.annotations.contains_key(key));
        timing::soak(settings, self.snapshot.now, closed.since, entry, alone, case.node)
    }

    /// Why a grant waits for its pods.
    pub(super) fn incomplete(&self, case: &Case<'_>, grant: &Grant) -> Hold {
        let Some(deployment) = case.deployment else { return Hold::Granted };
        if let Some(breaker) = breaker::read(deployment).filter(|breaker| breaker.until > self.snapshot.now) {
            return Hold::AdmissionRejected {
                until: breaker.until,
                message: breaker::refusal(case.pods).unwrap_or_else(|| "see the pods' events".into()),
            };
        }
        let wanted = match grant.kind {
            Kind::Remove => 0,
            _ => self.settings.map_or(deployment.replicas(), |settings| settings.pods_per_node),
        };
        let trouble = readiness::trouble(case.pods);
        if let Some(message) = deployment.refusal.clone().filter(|_| trouble.is_none()) {
            return Hold::PodsRefused(message);
        }
        if deployment.status.available >= wanted && trouble.is_none() {
            return Hold::PodsTerminating;
        }
        Hold::PodsNotReady { ready: deployment.status.ready, wanted, trouble }
    }
}
