//! One judgement for each resource, each by what that resource promises.

use std::collections::{BTreeMap, BTreeSet};

use auditor::{Answer, Audit, Expectations, Kind, Observation, Violation};
use chrono::{DateTime, Utc};
use crds::{IngressDaemonSet, names};
use serde_json::Value;

use super::{expectations, loosened};

/// What must not have happened, to which resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceViolation {
    /// Its name.
    pub resource: String,
    /// What.
    pub violation: Violation,
}

/// The judgement under way.
#[derive(Debug, Default)]
pub struct Judge {
    only: Option<String>,
    cases: BTreeMap<String, ResourceAudit>,
    /// The newest of each object that concerns every resource: one that is made later is judged by them, too.
    shared: BTreeMap<(Kind, String), Observation>,
    /// Changes judged.
    pub judged: usize,
    /// Answers of health checkers that came in.
    pub heard: usize,
}

#[derive(Debug)]
struct ResourceAudit {
    namespace: String,
    name: String,
    audit: Audit<'static>,
    /// What every spec allows under which something was begun that is not over.
    allowed: Expectations,
}

impl Judge {
    /// Of the resource of this name, or of all.
    pub fn new(only: Option<String>) -> Self {
        Self { only, ..Self::default() }
    }

    /// Names of the resources that are judged.
    pub fn resources(&self) -> Vec<String> {
        self.cases.values().map(|case| case.name.clone()).collect()
    }

    /// What was there before; returns the newest revision of it.
    pub fn take_in(&mut self, mut before: Vec<Observation>) -> u64 {
        // Of what belongs to a resource, nothing is kept before the resource itself is known.
        before.sort_by_key(|observation| (observation.kind != Kind::IngressDaemonSet, observation.revision));
        for observation in &before {
            self.judge(observation, true);
        }
        self.judged = 0;
        before.iter().map(|observation| observation.revision).max().unwrap_or(0)
    }

    /// A change, in its turn; `late`: it is not known what was before it.
    pub fn judge(&mut self, observation: &Observation, late: bool) -> Vec<ResourceViolation> {
        self.judged += 1;
        if observation.kind == Kind::IngressDaemonSet {
            self.note_resource(observation);
        }
        if matches!(observation.kind, Kind::Node | Kind::ClusterRoleBinding) {
            self.shared.insert((observation.kind, uid(&observation.object).to_owned()), observation.clone());
        }
        let mut found: Vec<ResourceViolation> = Vec::new();
        for case in self.cases.iter_mut().filter(|(uid8, _)| concerns(observation, uid8)).map(|(_, case)| case) {
            if late {
                case.audit.take_in(observation);
                continue;
            }
            case.audit.observe(observation);
            for violation in case.audit.take_violations() {
                // What is wrong with a Node is seen in the judgement of each resource on it.
                if !found.iter().any(|finding| finding.violation == violation) {
                    found.push(ResourceViolation { resource: case.name.clone(), violation });
                }
            }
        }
        found
    }

    /// An answer of a health checker of the resource whose UID begins like this; it is judged when all is known that it can rest on. One
    /// that speaks of another resource came from somebody else on the same port of the node.
    pub fn hear(&mut self, uid8: &str, answer: Answer) {
        let speaks_of = |case: &&mut ResourceAudit| (&case.namespace, &case.name) == (&answer.resource.0, &answer.resource.1);
        if let Some(case) = self.cases.get_mut(uid8).filter(speaks_of) {
            self.heard += 1;
            case.audit.hear(answer);
        }
    }

    /// Everything that happened until then was seen.
    pub fn judge_answers(&mut self, until: DateTime<Utc>) -> Vec<ResourceViolation> {
        let mut found = Vec::new();
        for ResourceAudit { name, audit, .. } in self.cases.values_mut() {
            audit.judge_answers(until);
            found.extend(audit.take_violations().into_iter().map(|violation| ResourceViolation { resource: name.clone(), violation }));
        }
        found
    }

    /// The end of all other objects of the kind was missed.
    pub fn retain(&mut self, kind: Kind, listed: &BTreeSet<String>) {
        self.shared.retain(|(other, uid), _| *other != kind || listed.contains(uid));
        for case in self.cases.values_mut() {
            case.audit.retain(kind, listed);
        }
    }

    /// What only the end shows.
    pub fn end(self) -> Vec<ResourceViolation> {
        let findings = self.cases.into_values().flat_map(|case| {
            let name = case.name;
            case.audit.finish().violations.into_iter().map(move |violation| ResourceViolation { resource: name.clone(), violation })
        });
        findings.collect()
    }

    /// A resource is judged from now on, or promises something else.
    fn note_resource(&mut self, observation: &Observation) {
        let Ok(resource) = serde_json::from_value::<IngressDaemonSet>(observation.object.clone()) else { return };
        let name = resource.metadata.name.clone().unwrap_or_default();
        if observation.deleted || self.only.as_ref().is_some_and(|only| *only != name) {
            return;
        }
        let Some(now) = expectations(&resource) else { return };
        let uid8 = names::uid8(resource.metadata.uid.as_deref().unwrap_or_default()).to_owned();
        let idle = resource.ledger().is_none_or(|ledger| ledger.grants.is_empty());
        if let Some(case) = self.cases.get_mut(&uid8) {
            case.allowed = if idle { now } else { loosened(&case.allowed, now) };
            case.audit.expect(case.allowed.clone());
            return;
        }
        let mut audit = Audit::owned(now.clone());
        self.shared.values().for_each(|observation| audit.take_in(observation));
        let namespace = resource.metadata.namespace.unwrap_or_default();
        self.cases.insert(uid8, ResourceAudit { namespace, name, audit, allowed: now });
    }
}

fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

/// Nodes and bindings concern every resource; all else is of one.
fn concerns(observation: &Observation, uid8: &str) -> bool {
    match observation.kind {
        Kind::Node | Kind::ClusterRoleBinding => true,
        Kind::IngressDaemonSet => names::uid8(uid(&observation.object)) == uid8,
        Kind::Deployment | Kind::ReplicaSet | Kind::Pod => observation.object["metadata"]["labels"][names::RESOURCE_LABEL] == uid8,
    }
}
