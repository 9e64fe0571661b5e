//! P3 and P4: pods change only under a token that allows it, and only on a node that was detached before, for the grace.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use chrono::{DateTime, Utc};
use crds::{
    holders::EntryPhase,
    names,
    token::{Phase, Token},
};
use serde_json::Value;

use super::{
    Audit, Property, WATCH_DELAY,
    observation::{Object, Observation},
    world::{holders, is_member, node_of, replicas, resource, token},
};

/// Since when marks have stood without interruption, and which pods were seen going.
#[derive(Debug, Default)]
pub(super) struct Memory {
    claimed: BTreeMap<String, DateTime<Utc>>,
    detached: BTreeMap<(String, String), DateTime<Utc>>,
    going: BTreeSet<String>,
}

impl Audit<'_> {
    /// Judges what changed on a Deployment, then remembers its mark.
    pub(super) fn judge_deployment(&mut self, before: Option<&Value>, observation: &Observation) {
        let after = &observation.object;
        if !is_member(after) {
            return;
        }
        let held = token(after);
        if let Some(before) = before.filter(|_| !self.edited(node_of(after))) {
            let template = before["spec"]["template"] != after["spec"]["template"];
            let fewer = replicas(after) < replicas(before);
            if template || fewer {
                let change = if template { "the pod template changed" } else { "replicas were removed" };
                self.judge_change(change, after, held.as_ref(), observation.at);
            }
        }
        match held.filter(|token| matches!(token.phase, Phase::Claimed | Phase::InPlace | Phase::Updating)) {
            Some(token) => {
                // Over a long way a watch may lag by more than is allowed for here: then the token's own time counts.
                let since = if self.expected.marks_alone { earlier(token.since, observation.at) } else { observation.at };
                self.changes.claimed.entry(after.uid().to_owned()).or_insert(since);
            }
            None => {
                self.changes.claimed.remove(after.uid());
            }
        }
    }

    fn judge_change(&mut self, change: &str, deployment: &Value, token: Option<&Token>, at: DateTime<Utc>) {
        let name = node_of(deployment);
        let id = token.map_or(0, |token| token.id);
        match token.map(|token| token.phase) {
            // Never complete: the node has not served yet.
            Some(Phase::New) => {}
            Some(Phase::InPlace) if self.world.marks_of(deployment, id) != Some((false, false)) => {
                self.judge_marks(change, deployment, id, at);
            }
            Some(Phase::Updating) => self.judge_marks(change, deployment, id, at),
            Some(Phase::Degrading | Phase::InPlace) => {
                // A scenario may have gone over to degrade mode: then the grant has no marks.
                let without_marks = self.world.marks_of(deployment, id) == Some((false, false));
                if !without_marks && (self.expected.claim_grace.is_some() || self.expected.detach_grace.is_some()) {
                    self.report(Property::DetachFirst, format!("{change} on node {name} while it was attached"));
                }
            }
            phase => self.report(Property::NoBypass, format!("{change} on node {name} under the token phase {phase:?}")),
        }
    }

    fn judge_marks(&mut self, change: &str, deployment: &Value, id: u64, at: DateTime<Utc>) {
        let name = node_of(deployment).to_owned();
        // A scenario may change the marks between two rollouts: the grant says which ones this change must respect.
        let (claims, detaches) = self.world.marks_of(deployment, id).unwrap_or((true, true));
        if !claims && !detaches {
            self.report(Property::DetachFirst, format!("{change} on node {name} under a grant without marks"));
        }
        if let Some(grace) = self.expected.claim_grace.filter(|_| claims) {
            let since = self.changes.claimed.get(deployment.uid()).copied();
            self.judge_grace(change, &name, "Deployment mark", since, grace, at);
        }
        if let Some(grace) = self.expected.detach_grace.filter(|_| detaches) {
            let key = (name.clone(), resource(deployment).to_owned());
            let since = self.changes.detached.get(&key).copied();
            self.judge_grace(change, &name, "Node mark", since, grace, at);
            self.judge_timestamp(change, &name, since);
            let entry = self.world.node(&name).and_then(|node| holders(node).get(&key.1).cloned());
            if entry.as_ref().is_some_and(|entry| entry.id != id) {
                self.report(Property::DetachFirst, format!("{change} on node {name} with id {id}, the Node's entry is {entry:?}"));
            }
        }
    }

    fn judge_grace(&mut self, change: &str, node: &str, mark: &str, since: Option<DateTime<Utc>>, grace: Duration, at: DateTime<Utc>) {
        match since.map(|since| (at - since).to_std().unwrap_or_default()) {
            None => self.report(Property::DetachFirst, format!("{change} on node {node} without the {mark}")),
            Some(stood) if stood + WATCH_DELAY < grace => {
                let what = format!("{change} on node {node} {:.1} s after the {mark}, the grace is {grace:?}", stood.as_secs_f32());
                self.report(Property::DetachFirst, what);
            }
            Some(_) => {}
        }
    }

    fn judge_timestamp(&mut self, change: &str, node: &str, since: Option<DateTime<Utc>>) {
        let (Some(key), Some(since)) = (&self.expected.timestamp_key, since) else { return };
        let written =
            self.world.node(node).and_then(|object| object.annotation(key)).and_then(|text| DateTime::parse_from_rfc3339(text).ok());
        // Clocks of detachers may be off by five seconds; that much the operator allows too.
        let new_enough = written.is_some_and(|written| written >= since - chrono::TimeDelta::seconds(6));
        if !new_enough {
            self.report(Property::DetachFirst, format!("{change} on node {node} with the detacher's timestamp {written:?}"));
        }
    }

    /// Judges the entries of a Node, then remembers since when they hold.
    pub(super) fn judge_holders(&mut self, before: Option<&Value>, observation: &Observation) {
        let node = &observation.object;
        let now = holders(node);
        self.judge_entries(before, node);
        let detached = &mut self.changes.detached;
        detached.retain(|(name, resource), _| {
            name != node.name() || now.get(resource).is_some_and(|entry| entry.phase == EntryPhase::Detached)
        });
        for (resource, entry) in now.iter().filter(|(_, entry)| entry.phase == EntryPhase::Detached) {
            // A second holder of a key that is set already need not wait again.
            let earlier = now.iter().filter(|(_, other)| other.key == entry.key && other.phase == EntryPhase::Detached);
            let since = earlier
                .filter_map(|(other, _)| detached.get(&(node.name().to_owned(), other.clone())).copied())
                .min()
                .unwrap_or(observation.at);
            detached.entry((node.name().to_owned(), resource.clone())).or_insert(since);
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
            self.changes.detached.insert((node.name().to_owned(), resource), earlier(entry.time, observation.at));
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
        let Some(deployment) = self.world.deployment_of(before).filter(|deployment| is_member(deployment)).cloned() else { return };
        if self.edited(node_of(&deployment)) {
            return;
        }
        let held = token(&deployment);
        if held.as_ref().is_some_and(|token| token.phase == Phase::InPlace) && deployment["spec"]["paused"] != true {
            let what = format!("images of pod {} of node {} changed while its Deployment was not paused", pod.name(), node_of(&deployment));
            self.report(Property::InPlace, what);
        }
        match held.as_ref().map(|token| token.phase) {
            Some(Phase::InPlace) => self.judge_change("images of a pod changed", &deployment, held.as_ref(), observation.at),
            phase => {
                let what = format!("images of pod {} of node {} changed under {phase:?}", pod.name(), node_of(&deployment));
                self.report(Property::NoBypass, what);
            }
        }
    }

    /// No `ReplicaSet` is made for a Deployment that is updated in place.
    pub(super) fn judge_replica_set(&mut self, replica_set: &Value) {
        let owner = replica_set.controller_uid().and_then(|uid| self.world.get(super::Kind::Deployment, uid));
        let Some(deployment) = owner.filter(|deployment| is_member(deployment)) else { return };
        let in_place = token(deployment).is_some_and(|token| token.phase == Phase::InPlace);
        if in_place && !self.edited(node_of(deployment)) {
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
        let Some(deployment) = self.world.deployment_of(pod).filter(|deployment| is_member(deployment)) else { return };
        let wanted = deployment["spec"]["template"]["metadata"]["labels"][names::REVISION_LABEL].as_str();
        if pod.label(names::REVISION_LABEL) == wanted || self.edited(node_of(deployment)) {
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

/// A stored time in seconds since 1970, but never one of the future.
pub(super) fn earlier(stored: i64, now: DateTime<Utc>) -> DateTime<Utc> {
    DateTime::from_timestamp(stored, 0).map_or(now, |stored| stored.min(now))
}
