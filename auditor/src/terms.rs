//! What a resource's own spec asks for before pods change: marks, graces, a detacher's answer.
//!
//! The operator goes by the spec that its watch has shown. One that was replaced a moment ago, or that status does not speak of as
//! replaced yet, may be the one that it knows: what it does has to be right by one of them.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use crds::{
    ingress_daemon_set::{IngressDaemonSetSpec, OnDetachTimeout},
    ledger::GrantReason,
    names,
};
use planner::spec::{Count, DEFAULT_GRACE, ResolvedSpec, resolve};
use serde_json::Value;

use super::{
    Audit, STALE, WATCH_DELAY,
    cluster_state::MarkedObjects,
    observation::{ObjectExt, Observation},
};

/// The detacher's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DetacherAnswer {
    /// Annotation of the Node.
    pub(super) key: String,
    /// From its time on.
    pub(super) grace: TimeDelta,
    /// So long it is waited for.
    pub(super) patience: TimeDelta,
    /// After that pods change without it.
    pub(super) proceeds: bool,
}

/// What one spec asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SpecTerms {
    /// Before an update, a repair, or another number of pods.
    update: MarkedObjects,
    /// Before a node that serves is emptied for good.
    removal: MarkedObjects,
    pub(super) deployment_grace: TimeDelta,
    pub(super) node_grace: TimeDelta,
    pub(super) answer: Option<DetacherAnswer>,
    /// Nodes that may be out of service at once; nothing where the spec is not valid.
    pub(super) budget: Option<Count>,
    /// Seconds for which a new revision must serve; 0 where it need not, or the spec is not valid.
    pub(super) proven_after: i64,
}

impl SpecTerms {
    /// A spec that is not valid: the operator takes nodes out by their health check alone, and waits for as long as it does by default.
    fn of(resource: &Value) -> Self {
        let spec = serde_json::from_value::<IngressDaemonSetSpec>(resource["spec"].clone());
        let Some(settings) = spec.ok().and_then(|spec| resolve(&spec).ok()) else {
            let grace = TimeDelta::seconds(DEFAULT_GRACE);
            let marked = MarkedObjects { deployment: true, node: false };
            return Self {
                update: marked,
                removal: marked,
                deployment_grace: grace,
                node_grace: grace,
                answer: None,
                budget: None,
                proven_after: 0,
            };
        };
        Self {
            update: MarkedObjects::of(&settings.update_marks()),
            removal: MarkedObjects::of(&settings.detach_marks()),
            deployment_grace: TimeDelta::seconds(settings.deployment_grace),
            node_grace: TimeDelta::seconds(settings.node_grace),
            answer: answer(&settings),
            budget: Some(settings.budget),
            proven_after: settings.rollout.proven_after,
        }
    }

    /// The marks that a change needs which is made for this reason. That a removed node serves no more its grant says.
    pub(super) fn marks_for(&self, kind: Option<GrantReason>) -> MarkedObjects {
        match kind {
            Some(GrantReason::Remove | GrantReason::Drain) => self.removal,
            Some(GrantReason::Abort) => MarkedObjects::default(),
            Some(GrantReason::Update | GrantReason::Repair | GrantReason::Shrink | GrantReason::Grow) | None => self.update,
        }
    }
}

fn answer(settings: &ResolvedSpec) -> Option<DetacherAnswer> {
    settings.timestamp.as_ref().map(|timestamp| DetacherAnswer {
        key: timestamp.key.clone(),
        grace: TimeDelta::seconds(timestamp.grace),
        patience: TimeDelta::seconds(settings.detach_timeout),
        proceeds: settings.on_detach_timeout == OnDetachTimeout::Proceed,
    })
}

/// A spec that was in force.
#[derive(Debug)]
struct Past {
    terms: SpecTerms,
    /// When it was replaced, and by which generation.
    until: DateTime<Utc>,
    replaced_by: i64,
}

#[derive(Debug)]
struct SpecHistory {
    spec: Value,
    terms: SpecTerms,
    past: Vec<Past>,
}

/// The specs of each resource.
#[derive(Debug, Default)]
pub(super) struct TermsMemory {
    resources: BTreeMap<String, SpecHistory>,
}

impl Audit<'_> {
    /// Remembers what a resource says, and what it said before.
    pub(super) fn note_terms(&mut self, observation: &Observation) {
        let (resource, at) = (&observation.object, observation.at);
        let of = names::uid8(resource.uid()).to_owned();
        let Some(history) = self.terms.resources.get_mut(&of) else {
            let history = SpecHistory { spec: resource["spec"].clone(), terms: SpecTerms::of(resource), past: Vec::new() };
            self.terms.resources.insert(of, history);
            return;
        };
        history.past.retain(|past| at - past.until < STALE);
        if history.spec == resource["spec"] {
            return;
        }
        let terms = std::mem::replace(&mut history.terms, SpecTerms::of(resource));
        if terms != history.terms {
            let replaced_by = resource["metadata"]["generation"].as_i64().unwrap_or(0);
            history.past.push(Past { terms, until: at, replaced_by });
        }
        history.spec = resource["spec"].clone();
    }

    /// The newest that a resource says; `None` for one that was never seen.
    pub(super) fn terms(&self, of: &str) -> Option<&SpecTerms> {
        self.terms.resources.get(of).map(|history| &history.terms)
    }

    /// By one of these the operator may go, the newest last.
    pub(super) fn terms_in_force(&self, of: &str, at: DateTime<Utc>) -> Vec<SpecTerms> {
        let Some(history) = self.terms.resources.get(of) else { return Vec::new() };
        let observed = self.cluster.resource(of).and_then(|resource| resource["status"]["observedGeneration"].as_i64()).unwrap_or(0);
        let may_be_known = |past: &&Past| at - past.until <= WATCH_DELAY || observed < past.replaced_by && at - past.until < STALE;
        history.past.iter().filter(may_be_known).map(|past| past.terms.clone()).chain([history.terms.clone()]).collect()
    }
}
