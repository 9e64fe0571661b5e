//! Since when the API server goes by what the operator told it about new objects: not as soon as it has accepted a policy or a
//! configuration, but when every API server has read it.
//!
//! An API server reads policies and configurations of webhooks again about once a second, and tells nobody. Until then a new object
//! is changed as the body before it says, or not at all. So the operator counts from the answer to its own write, by a clock that
//! nobody sets. An operator that has just started knows of no write of its own: it writes all of it anew, which changes nothing where
//! nothing differs, and counts from there.

use super::policy_objects::AdmissionPolicy;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// How long after its acceptance a policy or a configuration counts as in force. An API server reads them again a second after it
/// has done so last, from a watch that may lag behind, and a busy one compiles them more slowly: five times as long leaves room.
pub const SETTLES: Duration = Duration::from_secs(5);

/// Word of condition `AdmissionActive` until what the gate asks for is in force.
pub const SETTLING: &str = "Settling";

/// What the API server has accepted from this operator and nobody has changed since, as far as is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Accepted {
    /// Policies with their bindings, by name, and when the last of the two was accepted.
    pub policies: BTreeMap<String, (AdmissionPolicy, Instant)>,
    /// Since when the webhook is asked for the objects of each clause.
    pub clauses: BTreeMap<String, Instant>,
}

impl Accepted {
    /// When exactly this policy was accepted; nothing while the API server has another one of its name.
    pub fn policy(&self, wanted: &AdmissionPolicy) -> Option<Instant> {
        self.policies.get(&wanted.name).filter(|(accepted, _)| accepted == wanted).map(|(_, at)| *at)
    }

    /// Since when the webhook is asked for the objects of this clause.
    pub fn clause(&self, clause: &str) -> Option<Instant> {
        self.clauses.get(clause).copied()
    }

    /// Whether something has settled after `before`, and not after `now`: conditions say something else then.
    pub fn has_settled(&self, before: Option<Instant>, now: Instant) -> bool {
        let settled = |at: &Instant| *at + SETTLES <= now && before.is_none_or(|before| *at + SETTLES > before);
        self.policies.values().map(|(_, at)| at).chain(self.clauses.values()).any(settled)
    }
}

/// Since when the webhook is asked for each clause, where its configuration with these was accepted `now`. `before`: the same of the
/// configuration that it replaces, empty where that trusted other authorities or is not known. A clause that both have was never
/// without effect, whichever of the two an API server goes by.
pub fn asked_since(before: &BTreeMap<String, Instant>, clauses: &[String], now: Instant) -> BTreeMap<String, Instant> {
    clauses.iter().map(|clause| (clause.clone(), before.get(clause).copied().unwrap_or(now))).collect()
}
