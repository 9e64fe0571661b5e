//! Judges what the operator did, by what the API server recorded: a pure function over an ordered history.
//!
//! Observations come in, from [`watch`] and in the order of [`order`]; violations go out. A scenario's history begins with an empty
//! cluster, that of `kubectl ids audit` half-way ([`Audit::take_in`]), and it never ends. Nothing here asks how the operator decided: only
//! what the spec promises, and what objects show, counts.

mod budget;
mod changes;
mod cluster_state;
mod deletion;
mod flood;
mod grants;
mod health;
mod observation;
pub mod order;
mod proof;
mod slots;
mod terms;
mod tokens;
pub mod watch;

#[cfg(test)]
mod detachment_tests;
#[cfg(test)]
mod grants_tests;
#[cfg(test)]
mod hands_tests;
#[cfg(test)]
mod health_tests;
#[cfg(test)]
mod history_tests;
#[cfg(test)]
mod joining_tests;
#[cfg(test)]
mod praise_tests;
#[cfg(test)]
mod proof_tests;
#[cfg(test)]
mod slots_tests;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use budget::resources_at;
use chrono::{DateTime, TimeDelta, Utc};
use cluster_state::ClusterState;
pub use health::Answer;
use observation::ObjectExt;
pub use observation::{Kind, Observation, revision_of};

/// The watch's own delay: what was first seen this much too late may still have been in time.
const WATCH_DELAY: TimeDelta = TimeDelta::seconds(1);

/// The operator counts whole seconds: by so much it may be ahead.
const ROUNDED: TimeDelta = TimeDelta::seconds(1);

/// How old what a write rests on may be when it takes effect. The operator notices within 40 s that a watch hangs, then has to
/// list, and the write itself may be on its way for as long as requests may take.
const STALE: TimeDelta = TimeDelta::seconds(120);

/// The same where no watch hangs and nobody stops the operator: it sees a change within a second, and ten times that on a machine
/// with more to do than it can.
const PROMPT: TimeDelta = TimeDelta::seconds(10);

/// Annotation of a Node on which a scenario is changing Deployments, tokens or pods itself: [`TOUCHED`] from before that until
/// it has let go of them, then [`UNTOUCHED`]. What that hand can have caused is not judged meanwhile: changes of objects that no
/// step of the operator's protocol makes, tokens and entries that are written again, pods that are unready. What is: marks, graces,
/// grants, their order and the budget.
pub const TOUCH_ANNOTATION: &str = "bed.example.com/by-hand";
/// Somebody's hands are on it.
pub const TOUCHED: &str = "now";
/// Nobody's any more.
pub const UNTOUCHED: &str = "before";

/// A property of what must always hold: the list of promises in `docs/architecture.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Property {
    /// Never more nodes out of service by the operator than the budget, and none begun that must stay available, nor taken away.
    Budget,
    /// The same within one topology domain, and one domain at a time where that is asked for.
    DomainBudget,
    /// Pods are replaced only under a token that allows it.
    NoBypass,
    /// Nodes are detached, for the grace, before any pod changes.
    DetachFirst,
    /// A token closes only when the node is complete.
    CloseWhenComplete,
    /// Each phase of each id is written once.
    OnlyOnce,
    /// Ids never fall, and phases only move forward within one.
    Monotone,
    /// Nothing starts while the resource is paused, outside its windows, or while its rollout halts.
    HeldStartsNothing,
    /// A revision that was rolled back, or has failed on a node, is not begun again.
    FailedOnce,
    /// Health checkers answer by the objects that exist, and begin to serve on nothing that is out of date.
    HealthVerdict,
    /// Pods are not made without end.
    BoundedCreation,
    /// Nothing of ours remains after deletion.
    NothingRemains,
    /// Pods that are updated in place stay, and no `ReplicaSet` is made meanwhile.
    InPlace,
    /// A revision that is not proved reaches no more nodes than the budget.
    UnprovedBounded,
    /// A revision is called proved, and the one that all nodes run, only after it has served for as long as it must.
    ProofFirst,
    /// Nodes that join get proved revisions only.
    JoinsCurrent,
    /// The auditor itself missed something.
    History,
}

/// Something that must not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What did not hold.
    pub property: Property,
    /// Where in the history.
    pub revision: u64,
    /// What was seen.
    pub what: String,
}

impl Property {
    /// Its number in `docs/kubectl-ids.md`.
    pub fn code(self) -> &'static str {
        match self {
            Self::Budget => "P1",
            Self::DomainBudget => "P2",
            Self::NoBypass => "P3",
            Self::DetachFirst => "P4",
            Self::CloseWhenComplete => "P5",
            Self::OnlyOnce => "P6",
            Self::Monotone => "P7",
            Self::HeldStartsNothing => "P8",
            Self::FailedOnce => "P9",
            Self::HealthVerdict => "P10",
            Self::BoundedCreation => "P11",
            Self::NothingRemains => "P12",
            Self::InPlace => "P15",
            Self::UnprovedBounded => "P16",
            Self::ProofFirst => "P17",
            Self::JoinsCurrent => "P20",
            Self::History => "P0",
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at resourceVersion {}: {}", self.property, self.revision, self.what)
    }
}

/// What the history does not tell: marks, graces, windows and the like are in the resource's own spec.
#[derive(Clone, Debug, Default)]
pub struct Expectations {
    /// Nodes that may be out of service at once, for each resource. The greatest one when the scenario changes it: what the
    /// resource itself says at the time is judged besides.
    pub budget: usize,
    /// Label of Nodes that names their topology domain, and the budget within one.
    pub domain: Option<(String, Share)>,
    /// The cluster is in use, and far away. A watch may lag there by more than a second, so that times which the operator wrote
    /// count; and nobody's hand on a Node is excused.
    pub from_afar: bool,
    /// Watches of the operator hang, or somebody stops it: whether there was a slot for a node, and whether one was up, is judged
    /// by what it must have seen in two minutes, and not in ten seconds.
    pub watches_hang: bool,
    /// Properties that this scenario cannot keep, with the reason next to where it says so.
    pub except: BTreeSet<Property>,
}

impl Expectations {
    /// So many nodes of each resource.
    pub fn budget(budget: usize) -> Self {
        Self { budget, ..Self::default() }
    }

    /// With watches that hang.
    #[must_use]
    pub fn watches_hang(self) -> Self {
        Self { watches_hang: true, ..self }
    }

    /// How old what the operator acts on may be.
    fn lag(&self) -> TimeDelta {
        if self.from_afar || self.watches_hang { STALE } else { PROMPT }
    }

    /// Without this property.
    #[must_use]
    pub fn except(mut self, property: Property) -> Self {
        self.except.insert(property);
        self
    }
}

/// How many of some nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// This many.
    Nodes(usize),
    /// This percentage, rounded down, but at least one.
    Percent(usize),
}

impl Share {
    /// How many of `total`.
    pub fn of(self, total: usize) -> usize {
        match self {
            Self::Nodes(nodes) => nodes,
            Self::Percent(percent) => (total * percent / 100).max(1),
        }
    }
}

/// What was found, and the greatest numbers on the way.
#[derive(Clone, Debug, Default)]
pub struct AuditReport {
    /// What must not have happened.
    pub violations: Vec<Violation>,
    /// Most nodes of one resource that were out of service by the operator at once.
    pub most_out: usize,
    /// The longest time that a node was out of service by the operator.
    pub longest_out: Duration,
    /// Observations judged.
    pub observations: usize,
    /// Answers of health checkers judged.
    pub answers: usize,
}

/// Judges a history, which must be sorted by revision, and what was answered meanwhile, sorted by time.
pub fn audit(history: &[Observation], answers: Vec<Answer>, expected: &Expectations) -> AuditReport {
    let mut audit = Audit::new(expected);
    for answer in answers {
        audit.hear(answer);
    }
    // A watch that lags shows an object late: no answer is judged before what it rests on is shown, too. That happened no later
    // than anything with a higher revision was seen.
    let mut earliest = DateTime::<Utc>::MAX_UTC;
    let times = history.iter().rev().map(|observation| {
        earliest = earliest.min(observation.at);
        earliest
    });
    let times: Vec<_> = times.collect();
    for (observation, at) in history.iter().zip(times.into_iter().rev()) {
        audit.observe_heard(observation, at);
    }
    audit.finish()
}

/// The judgement under way: the state of the cluster so far, and what each property has to remember.
#[derive(Debug)]
pub struct Audit<'a> {
    expected: Cow<'a, Expectations>,
    cluster: ClusterState,
    budget: budget::BudgetMemory,
    changes: changes::ChangesMemory,
    tokens: tokens::TokensMemory,
    slots: slots::SlotMemory,
    terms: terms::TermsMemory,
    flood: flood::FloodMemory,
    health: health::HealthMemory,
    proof: proof::ProofMemory,
    deleted_resources: BTreeMap<String, u64>,
    /// Nodes that a scenario has its hands on; a Node that is registered again stays here.
    touched: BTreeSet<String>,
    verdict: AuditReport,
    now: u64,
}

impl<'a> Audit<'a> {
    /// Begins with an empty cluster.
    pub fn new(expected: &'a Expectations) -> Self {
        Self::of(Cow::Borrowed(expected))
    }

    /// The same, to be told of other expectations later: [`Audit::expect`].
    pub fn owned(expected: Expectations) -> Self {
        Self::of(Cow::Owned(expected))
    }

    fn of(expected: Cow<'a, Expectations>) -> Self {
        Self {
            expected,
            cluster: ClusterState::default(),
            budget: budget::BudgetMemory::default(),
            changes: changes::ChangesMemory::default(),
            tokens: tokens::TokensMemory::default(),
            slots: slots::SlotMemory::default(),
            terms: terms::TermsMemory::default(),
            flood: flood::FloodMemory::default(),
            health: health::HealthMemory::default(),
            proof: proof::ProofMemory::default(),
            deleted_resources: BTreeMap::new(),
            touched: BTreeSet::new(),
            verdict: AuditReport::default(),
            now: 0,
        }
    }

    /// Holds the operator to something else from now on: the resource has changed.
    pub fn expect(&mut self, expected: Expectations) {
        self.expected = Cow::Owned(expected);
    }

    /// Takes an object in without judging it: it was there before the audit began, or its turn in the order was missed.
    ///
    /// Since when its marks stand it says itself; whoever forges these times deceives the audit.
    pub fn take_in(&mut self, observation: &Observation) {
        self.now = self.now.max(observation.revision);
        self.note_beginning();
        self.note_half_way(observation);
        let before = self.cluster.get(observation.kind, observation.object.uid()).cloned();
        match observation.kind {
            Kind::Deployment if !observation.deleted => {
                self.remember_claim(observation);
                self.remember_token(&observation.object);
            }
            Kind::Node if !observation.deleted => {
                self.remember_entries(&observation.object);
                self.remember_holders(observation);
            }
            Kind::Pod => {
                self.remember_pod(&observation.object);
                self.count_pod(before.as_ref(), observation);
            }
            Kind::IngressDaemonSet if !observation.deleted => self.note_terms(observation),
            Kind::IngressDaemonSet => {
                self.deleted_resources.insert(crds::names::uid8(observation.object.uid()).to_owned(), self.now);
            }
            _ => {}
        }
        self.cluster.apply(observation);
        let places = self.cluster.places(before.as_ref(), observation);
        self.note_health(&places, before.as_ref(), observation);
        self.note_standing(&places);
        self.note_facts(&places, observation);
        self.note_proof_half_way(observation);
        self.note_proof(before.as_ref(), observation);
    }

    /// Only these objects of the kind are there: the end of the others was missed.
    pub fn retain(&mut self, kind: Kind, listed: &BTreeSet<String>) {
        self.cluster.retain(kind, listed);
        self.forget_health();
        self.note_every_standing();
        self.forget_facts();
        self.forget_proof();
    }

    /// What was found since this was last asked.
    pub fn take_violations(&mut self) -> Vec<Violation> {
        std::mem::take(&mut self.verdict.violations)
    }

    /// Takes the next observation.
    pub fn observe(&mut self, observation: &Observation) {
        self.observe_heard(observation, observation.at);
    }

    /// The same; answers until `heard` are judged by what was seen before.
    fn observe_heard(&mut self, observation: &Observation, heard: DateTime<Utc>) {
        if observation.revision <= self.now {
            let what = format!("revision {} was seen after it", observation.revision);
            self.report(Property::History, what);
        }
        self.judge_answers(heard);
        self.now = observation.revision;
        self.verdict.observations += 1;
        let before = self.cluster.get(observation.kind, observation.object.uid()).cloned();
        if observation.kind == Kind::Deployment {
            self.judge_deletion(before.as_ref(), observation);
        }
        match observation.kind {
            Kind::Deployment if !observation.deleted => {
                self.judge_deployment(before.as_ref(), observation);
                self.judge_token(before.as_ref(), &observation.object);
                self.judge_joining(before.as_ref(), observation);
            }
            Kind::Node if !observation.deleted => {
                self.note_touch(&observation.object);
                self.judge_holders(before.as_ref(), observation);
            }
            Kind::Pod => {
                self.judge_images(before.as_ref(), observation);
                self.judge_creation(before.as_ref(), observation);
                self.judge_pod(observation);
            }
            Kind::ReplicaSet if before.is_none() && !observation.deleted => self.judge_replica_set(&observation.object),
            Kind::IngressDaemonSet if !observation.deleted => {
                self.judge_grants(before.as_ref(), observation);
                self.judge_slots(before.as_ref(), observation);
                self.judge_proof(before.as_ref(), observation);
                self.note_terms(observation);
            }
            _ => {}
        }
        self.cluster.apply(observation);
        let places = self.cluster.places(before.as_ref(), observation);
        self.note_health(&places, before.as_ref(), observation);
        self.note_facts(&places, observation);
        self.note_proof(before.as_ref(), observation);
        if observation.kind == Kind::IngressDaemonSet && observation.deleted {
            self.judge_remains(&observation.object);
        }
        self.note_standing(&places);
        let resources = resources_at(&places, observation);
        if matches!(observation.kind, Kind::IngressDaemonSet | Kind::Deployment | Kind::Node) {
            for resource in &resources {
                let held = self.held_out(resource);
                self.judge_told_domains(resource, &held, observation.at);
            }
        }
        self.judge_budget(&resources, observation.at);
    }

    /// Ends it.
    pub fn finish(mut self) -> AuditReport {
        self.judge_late_remains();
        self.judge_late_answers();
        self.verdict
    }

    fn report(&mut self, property: Property, what: String) {
        if !self.expected.except.contains(&property) {
            self.verdict.violations.push(Violation { property, revision: self.now, what });
        }
    }

    fn note_touch(&mut self, node: &serde_json::Value) {
        match node.annotation(TOUCH_ANNOTATION).filter(|_| !self.expected.from_afar) {
            Some(TOUCHED) => {
                self.touched.insert(node.name().to_owned());
            }
            Some(UNTOUCHED) => {
                self.touched.remove(node.name());
            }
            _ => {}
        }
    }

    fn is_touched(&self, node: &str) -> bool {
        self.touched.contains(node)
    }
}
