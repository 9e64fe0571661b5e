//! P3, P4 and P15: pods change only under a token that allows it, and only on a node that was detached before, for the grace; those that
//! are updated in place stay.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use crds::{
    holders::{Entry, EntryPhase},
    ledger::GrantReason,
    names,
    token::{Phase, Token},
};
use serde_json::Value;

use super::{
    Audit, Property, ROUNDED, WATCH_DELAY,
    cluster_state::{MarkedObjects, has_ended, holders, is_at_work, is_member, is_ready, node_of, replicas, resource, token},
    observation::{ObjectExt, Observation},
    terms::SpecTerms,
};

/// How far the clock of a detacher may be off, and what of a time is cut off: that much the operator allows, too.
const SKEW: TimeDelta = TimeDelta::seconds(7);

/// A Node mark that stands without interruption.
#[derive(Clone, Debug)]
struct StandingMark {
    since: DateTime<Utc>,
    /// The key that whoever is to detach the node looks for.
    key: String,
}

/// Since when marks have stood without interruption, and which pods were seen going.
#[derive(Debug, Default)]
pub(super) struct ChangesMemory {
    claimed: BTreeMap<String, DateTime<Utc>>,
    detached: BTreeMap<(String, String), StandingMark>,
    going: BTreeSet<String>,
}

/// What takes something from a node.
struct PodChange<'a> {
    what: &'a str,
    /// The Deployment, with the token under which it happens.
    deployment: &'a Value,
    token: Option<Token>,
    at: DateTime<Utc>,
}

impl PodChange<'_> {
    fn node(&self) -> &str {
        node_of(self.deployment)
    }

    fn id(&self) -> u64 {
        self.token.as_ref().map_or(0, |token| token.id)
    }
}

impl Audit<'_> {
    /// Judges what changed on a Deployment, then remembers its mark.
    pub(super) fn judge_deployment(&mut self, before: Option<&Value>, observation: &Observation) {
        let after = &observation.object;
        if !is_member(after) {
            return;
        }
        let held = token(after);
        // Only the operator moves a token on and changes pods in one write: that is judged whoever else has his hands on the node.
        let steps = held.as_ref().is_some_and(|token| is_at_work(token.phase)) && before.and_then(token) != held;
        if let Some(before) = before.filter(|_| steps || !self.is_touched(node_of(after))) {
            let template = before["spec"]["template"] != after["spec"]["template"];
            // A breaker takes back what a kubelet refuses, and leaves what serves.
            let refused = || after.label(names::BREAKER_LABEL).is_some() && self.serving(after) <= replicas(after);
            let fewer = replicas(after) < replicas(before) && !refused();
            if template || fewer {
                let what = if template { "the pod template changed" } else { "replicas were removed" };
                self.judge_change(&PodChange { what, deployment: after, token: held.clone(), at: observation.at });
            }
        }
        match held.filter(|token| matches!(token.phase, Phase::Claimed | Phase::InPlace | Phase::Updating)) {
            Some(token) => {
                // From afar a watch may lag by more than is allowed for here: then the token's own time counts.
                let since = if self.expected.from_afar { earlier(token.since, observation.at) } else { observation.at };
                self.changes.claimed.entry(after.uid().to_owned()).or_insert(since);
            }
            None => {
                self.changes.claimed.remove(after.uid());
            }
        }
    }

    /// How many pods of the Deployment are ready.
    fn serving(&self, deployment: &Value) -> u64 {
        let serves = |pod: &&Value| is_ready(pod) && !pod.being_deleted() && !has_ended(pod);
        self.cluster.pods_of(deployment).filter(serves).count() as u64
    }

    /// Judges that a Deployment begins to go. The garbage collector takes those whose resource is gone, or goes in the foreground.
    pub(super) fn judge_deletion(&mut self, before: Option<&Value>, observation: &Observation) {
        let Some(before) = before.filter(|before| is_member(before) && !before.being_deleted()) else { return };
        if !observation.deleted && !observation.object.being_deleted() || self.is_touched(node_of(before)) {
            return;
        }
        let Some(owner) = self.cluster.resource(resource(before)) else { return };
        let finalizers = owner["metadata"]["finalizers"].as_array();
        let collected = finalizers.is_some_and(|all| all.iter().any(|finalizer| finalizer == "foregroundDeletion"));
        let stays = |pod: &Value| !pod.being_deleted() && !has_ended(pod);
        let empty = replicas(before) == 0 && !self.cluster.pods_of(before).any(stays);
        if !collected && !empty {
            let before = before.clone();
            self.judge_change(&PodChange {
                what: "the Deployment was deleted",
                deployment: &before,
                token: token(&before),
                at: observation.at,
            });
        }
    }

    fn judge_change(&mut self, change: &PodChange<'_>) {
        let marks = self.cluster.marks_of(change.deployment, change.id());
        let without = marks == Some(MarkedObjects::default());
        let phase = change.token.as_ref().map(|token| token.phase);
        let marked = match phase {
            // Never complete: the node has not served yet.
            Some(Phase::New) => return,
            Some(Phase::Updating) => true,
            Some(Phase::InPlace) => !without,
            Some(Phase::Degrading) => false,
            phase => {
                let PodChange { what, .. } = change;
                return self.report(Property::NoBypass, format!("{what} on node {} under the token phase {phase:?}", change.node()));
            }
        };
        let objections = |terms: &SpecTerms| if marked { self.lacks_marks(change, terms) } else { self.is_attached(change, terms) };
        let mut by_terms: Vec<_> = self.terms_in_force(resource(change.deployment), change.at).iter().map(objections).collect();
        // It has to be right by one of them.
        if by_terms.iter().any(Vec::is_empty) {
            return;
        }
        for what in by_terms.pop().unwrap_or_default() {
            self.report(Property::DetachFirst, format!("{} on node {} {what}", change.what, change.node()));
        }
    }

    /// The marks that a change needs: those of its grant, and those that its resource asks for.
    fn needed(&self, change: &PodChange<'_>, terms: &SpecTerms) -> MarkedObjects {
        let kind = self.cluster.kind_of(change.deployment, change.id());
        let of_grant = self.cluster.marks_of(change.deployment, change.id()).unwrap_or_default();
        let leaves = matches!(kind, Some(GrantReason::Remove | GrantReason::Drain));
        // What leaves and serves nobody needs none.
        let asked = if leaves && !self.serves(change) { MarkedObjects::default() } else { terms.marks_for(kind) };
        let needed = of_grant.and(asked);
        // What leaves must not wait for somebody to mend the Node's annotation: its health check takes it out.
        if leaves && needed.node && self.is_unmarkable(change) { MarkedObjects { deployment: true, node: false } } else { needed }
    }

    /// Its annotation cannot be read, or another resource holds the Node by the same key with another value.
    fn is_unmarkable(&self, change: &PodChange<'_>) -> bool {
        let Some(node) = self.cluster.node(change.node()) else { return false };
        let Ok(holders) = crds::holders::parse(node.annotation(names::HOLDERS_ANNOTATION)) else { return true };
        let mark = self.cluster.grant_of(change.deployment, change.id()).map(|grant| &grant["marks"]["node"]);
        let rivals = |mark: &Value| {
            let others = holders.iter().filter(|(of, _)| *of != resource(change.deployment)).map(|(_, entry)| entry);
            others.into_iter().any(|entry| entry.phase == EntryPhase::Detached && mark["key"] == entry.key && mark["value"] != entry.value)
        };
        mark.is_some_and(rivals)
    }

    /// Its Node is there, the one for which the grant was given, and serves.
    fn serves(&self, change: &PodChange<'_>) -> bool {
        let label = names::member_label(resource(change.deployment));
        self.granted_node(change).is_some_and(|node| node.label(&label) == Some("serving"))
    }

    /// The Node for which the grant was given, if it is there: one of the same name that was registered later was never asked to go.
    fn granted_node(&self, change: &PodChange<'_>) -> Option<&Value> {
        let granted = self.cluster.grant_of(change.deployment, change.id()).and_then(|grant| grant["nodeUID"].as_str());
        self.cluster.node(change.node()).filter(|node| granted.is_none_or(|uid| uid.is_empty() || uid == node.uid()))
    }

    /// Pods change while the node stays attached.
    fn is_attached(&self, change: &PodChange<'_>, terms: &SpecTerms) -> Vec<String> {
        if self.needed(change, terms).is_none() { Vec::new() } else { vec!["while it was attached".to_owned()] }
    }

    fn lacks_marks(&self, change: &PodChange<'_>, terms: &SpecTerms) -> Vec<String> {
        let needed = self.needed(change, terms);
        let mut lacks = Vec::new();
        if needed.deployment {
            let since = self.changes.claimed.get(change.deployment.uid()).copied();
            lacks.extend(Self::lacks_grace(change, "Deployment mark", since, terms.deployment_grace));
        }
        if let Some(node) = self.granted_node(change).filter(|_| needed.node) {
            let key = (change.node().to_owned(), resource(change.deployment).to_owned());
            let since = self.changes.detached.get(&key).map(|standing| standing.since);
            if since.is_none() && self.is_touched(change.node()) {
                // Somebody may have taken it off while the write was on its way.
                return lacks;
            }
            lacks.extend(Self::lacks_grace(change, "Node mark", since, terms.node_grace));
            let entry = holders(node).remove(&key.1);
            // A detacher takes its answer back as soon as somebody has taken the key off; the write may be on its way then.
            let is_taken_off = entry.as_ref().is_some_and(|entry| node.annotation(&entry.key).is_none());
            if !(is_taken_off && self.is_touched(change.node())) {
                lacks.extend(since.and_then(|since| lacks_answer(change, node, since, terms, self.is_given_up(change))));
            }
            let other = entry.filter(|entry| entry.id != change.id());
            lacks.extend(other.map(|entry| format!("with id {}, the Node's entry is {entry:?}", change.id())));
        }
        lacks
    }

    /// A resource that is deleted waits for no detacher for ever.
    fn is_given_up(&self, change: &PodChange<'_>) -> bool {
        self.cluster.is_being_deleted(resource(change.deployment))
    }

    fn lacks_grace(change: &PodChange<'_>, mark: &str, since: Option<DateTime<Utc>>, grace: TimeDelta) -> Option<String> {
        let Some(since) = since else { return Some(format!("without the {mark}")) };
        let stood = change.at - since;
        (stood + WATCH_DELAY < grace)
            .then(|| format!("{:.1} s after the {mark}, the grace is {} s", stood.as_seconds_f32(), grace.num_seconds()))
    }

    /// Judges the entries of a Node, then remembers since when they hold.
    pub(super) fn judge_holders(&mut self, before: Option<&Value>, observation: &Observation) {
        let node = &observation.object;
        let now = holders(node);
        self.judge_entries(before, node);
        let detached = &mut self.changes.detached;
        detached.retain(|(name, resource), standing| {
            let holds = |entry: &Entry| entry.phase == EntryPhase::Detached && entry.key == standing.key;
            name != node.name() || now.get(resource).is_some_and(holds)
        });
        for (resource, entry) in now.iter().filter(|(_, entry)| entry.phase == EntryPhase::Detached) {
            // A second holder of a key that is set already need not wait again.
            let earlier = now.iter().filter(|(_, other)| other.key == entry.key && other.phase == EntryPhase::Detached);
            let since = earlier
                .filter_map(|(other, _)| Some(detached.get(&(node.name().to_owned(), other.clone()))?.since))
                .min()
                .unwrap_or(observation.at);
            let standing = StandingMark { since, key: entry.key.clone() };
            detached.entry((node.name().to_owned(), resource.clone())).or_insert(standing);
        }
    }

    /// Since when the mark of a Deployment stands that was there before, as its token says.
    pub(super) fn remember_claim(&mut self, observation: &Observation) {
        let object = &observation.object;
        let held =
            token(object).filter(|token| is_member(object) && matches!(token.phase, Phase::Claimed | Phase::InPlace | Phase::Updating));
        if let Some(token) = held {
            self.changes.claimed.insert(object.uid().to_owned(), earlier(token.since, observation.at));
        }
    }

    /// The same of a Node's entries.
    pub(super) fn remember_holders(&mut self, observation: &Observation) {
        let node = &observation.object;
        for (resource, entry) in holders(node).into_iter().filter(|(_, entry)| entry.phase == EntryPhase::Detached) {
            let standing = StandingMark { since: earlier(entry.time, observation.at), key: entry.key };
            self.changes.detached.insert((node.name().to_owned(), resource), standing);
        }
    }

    /// A pod that went before anybody looked.
    pub(super) fn remember_pod(&mut self, pod: &Value) {
        if pod.being_deleted() {
            self.changes.going.insert(pod.uid().to_owned());
        }
    }

    /// Images of a pod change only while its Deployment is paused for that.
    pub(super) fn judge_images(&mut self, before: Option<&Value>, observation: &Observation) {
        let pod = &observation.object;
        let images = |pod: &Value| -> Vec<String> {
            let all = pod["spec"]["containers"].as_array().into_iter().flatten();
            all.map(|container| container["image"].as_str().unwrap_or_default().to_owned()).collect()
        };
        let Some(before) = before.filter(|before| images(before) != images(pod)) else { return };
        let Some(deployment) = self.cluster.deployment_of(before).filter(|deployment| is_member(deployment)).cloned() else { return };
        if self.is_touched(node_of(&deployment)) {
            return;
        }
        let held = token(&deployment);
        if held.as_ref().is_some_and(|token| token.phase == Phase::InPlace) && deployment["spec"]["paused"] != true {
            let what = format!("images of pod {} of node {} changed while its Deployment was not paused", pod.name(), node_of(&deployment));
            self.report(Property::InPlace, what);
        }
        match held.as_ref().map(|token| token.phase) {
            Some(Phase::InPlace) => {
                let change = PodChange { what: "images of a pod changed", deployment: &deployment, token: held, at: observation.at };
                self.judge_change(&change);
            }
            phase => {
                let what = format!("images of pod {} of node {} changed under {phase:?}", pod.name(), node_of(&deployment));
                self.report(Property::NoBypass, what);
            }
        }
    }

    /// No `ReplicaSet` is made for a Deployment that is updated in place.
    pub(super) fn judge_replica_set(&mut self, replica_set: &Value) {
        let owner = replica_set.controller_uid().and_then(|uid| self.cluster.get(super::Kind::Deployment, uid));
        let Some(deployment) = owner.filter(|deployment| is_member(deployment)) else { return };
        let in_place = token(deployment).is_some_and(|token| token.phase == Phase::InPlace);
        if in_place && !self.is_touched(node_of(deployment)) {
            let what = format!("ReplicaSet {} of node {} was made while its pods change in place", replica_set.name(), node_of(deployment));
            self.report(Property::InPlace, what);
        }
    }

    /// A pod that begins to go because its Deployment has another revision by now.
    pub(super) fn judge_pod(&mut self, observation: &Observation) {
        let pod = &observation.object;
        let goes = pod.being_deleted() || observation.deleted;
        if !goes || !self.changes.going.insert(pod.uid().to_owned()) {
            return;
        }
        let Some(deployment) = self.cluster.deployment_of(pod).filter(|deployment| is_member(deployment)) else { return };
        let wanted = deployment["spec"]["template"]["metadata"]["labels"][names::REVISION_LABEL].as_str();
        if pod.label(names::REVISION_LABEL) == wanted || self.is_touched(node_of(deployment)) {
            return;
        }
        let phase = token(deployment).map(|token| token.phase);
        // Pods that change in place are ahead of their Deployment. While it is paused, it replaces none; who deletes one is somebody else.
        let ahead = phase == Some(Phase::InPlace) && deployment["spec"]["paused"] == true;
        if !ahead && !matches!(phase, Some(Phase::New | Phase::Degrading | Phase::Updating)) {
            let what = format!("pod {} of node {} is replaced under the token phase {phase:?}", pod.name(), node_of(deployment));
            self.report(Property::NoBypass, what);
        }
    }
}

/// The detacher has not answered the mark, or only just.
fn lacks_answer(change: &PodChange<'_>, node: &Value, since: DateTime<Utc>, terms: &SpecTerms, given_up: bool) -> Option<String> {
    let answer = terms.answer.as_ref()?;
    // How long a detacher may be silent protects nobody, so a second less is no harm.
    if (answer.proceeds || given_up) && change.at - since + WATCH_DELAY + ROUNDED >= answer.patience {
        return None;
    }
    let written = node.annotation(&answer.key).and_then(|text| DateTime::parse_from_rfc3339(text).ok());
    let Some(written) = written.filter(|written| *written >= since - SKEW) else {
        return Some(format!("with the detacher's timestamp {written:?}"));
    };
    let stood = change.at - written.to_utc();
    let early = stood >= TimeDelta::zero() && stood + WATCH_DELAY < answer.grace;
    let said = || format!("{:.1} s after the detacher's timestamp, the grace is {} s", stood.as_seconds_f32(), answer.grace.num_seconds());
    early.then(said)
}

/// A stored time in seconds since 1970, but never one of the future.
pub(super) fn earlier(stored: i64, now: DateTime<Utc>) -> DateTime<Utc> {
    DateTime::from_timestamp(stored, 0).map_or(now, |stored| stored.min(now))
}
