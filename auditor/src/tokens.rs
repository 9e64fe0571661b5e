//! P5, P6 and P7: how tokens and entries move.

use std::collections::{BTreeMap, BTreeSet};

use crds::{
    holders::EntryPhase,
    token::{Phase, Token},
};
use serde_json::Value;

use super::{
    Audit, Property,
    cluster_state::{holders, is_complete, is_member, node_of, resource, token},
    observation::ObjectExt,
};

/// What each Deployment, place and Node has carried.
#[derive(Debug, Default)]
pub(super) struct TokensMemory {
    written: BTreeSet<(String, u64, Phase)>,
    /// Greatest id at a place, a resource on a node: a Deployment that is made again continues there.
    greatest: BTreeMap<(String, String), u64>,
    /// Deployments that were complete since their pods last changed. Not by generation: an annotation raises that too,
    /// and the write that closes removes one.
    complete: BTreeSet<String>,
    entries: BTreeMap<(String, String), (u64, EntryPhase)>,
}

impl Audit<'_> {
    /// Judges the token of a Deployment after a change.
    pub(super) fn judge_token(&mut self, before: Option<&Value>, after: &Value) {
        if !is_member(after) {
            return;
        }
        if before.is_some_and(|before| before["spec"] != after["spec"]) {
            self.tokens.complete.remove(after.uid());
        }
        let (old, new) = (before.and_then(token), token(after));
        if let Some(new) = new.filter(|new| old.as_ref() != Some(new) && !self.is_touched(node_of(after))) {
            self.judge_new_token(old.as_ref(), &new, after);
        }
        if is_complete(after) {
            self.tokens.complete.insert(after.uid().to_owned());
        }
    }

    fn judge_new_token(&mut self, old: Option<&Token>, new: &Token, deployment: &Value) {
        let node = node_of(deployment).to_owned();
        if !self.tokens.written.insert((deployment.uid().to_owned(), new.id, new.phase)) {
            self.report(Property::OnlyOnce, format!("the token of node {node} was written again as {new}"));
        }
        let place = (resource(deployment).to_owned(), node.clone());
        let greatest = self.tokens.greatest.entry(place).or_default();
        let last = *greatest;
        *greatest = last.max(new.id);
        if new.id < last || (old.is_none() && last > 0 && new.id == last) {
            self.report(Property::Monotone, format!("the token of node {node} is {new}, id {last} was there before"));
        }
        let Some(old) = old else { return };
        if old.id == new.id && new.phase < old.phase {
            self.report(Property::Monotone, format!("the token of node {node} went from {old} back to {new}"));
        }
        if new.phase == Phase::Closed && old.phase != Phase::Closed {
            let was_complete = self.was_complete(deployment);
            // A claim that is given up closes without having touched a pod.
            let untouched = old.phase == Phase::Claimed;
            if !was_complete && !untouched && !self.cluster.is_released(deployment, new.id) {
                let status = &deployment["status"];
                self.report(Property::CloseWhenComplete, format!("the token of node {node} closed at status {status}"));
            }
        }
    }

    /// It is complete, or was since its pods last changed.
    pub(super) fn was_complete(&self, deployment: &Value) -> bool {
        is_complete(deployment) || self.tokens.complete.contains(deployment.uid())
    }

    /// Remembers the token of a Deployment that was there before.
    pub(super) fn remember_token(&mut self, deployment: &Value) {
        let Some(token) = token(deployment).filter(|_| is_member(deployment)) else { return };
        self.tokens.written.insert((deployment.uid().to_owned(), token.id, token.phase));
        let greatest = self.tokens.greatest.entry((resource(deployment).to_owned(), node_of(deployment).to_owned())).or_default();
        *greatest = token.id.max(*greatest);
        if is_complete(deployment) {
            self.tokens.complete.insert(deployment.uid().to_owned());
        }
    }

    /// The same of a Node's entries.
    pub(super) fn remember_entries(&mut self, node: &Value) {
        for (resource, entry) in holders(node) {
            self.tokens.entries.insert((node.uid().to_owned(), resource), (entry.id, entry.phase));
        }
    }

    /// Judges the entries of a Node after a change.
    pub(super) fn judge_entries(&mut self, before: Option<&Value>, node: &Value) {
        if self.is_touched(node.name()) {
            return;
        }
        let old = before.map(holders).unwrap_or_default();
        for (resource, entry) in holders(node) {
            if old.get(&resource) == Some(&entry) {
                continue;
            }
            let key = (node.uid().to_owned(), resource);
            let last = self.tokens.entries.insert(key, (entry.id, entry.phase));
            let Some((id, phase)) = last else { continue };
            if entry.id < id || (entry.id == id && entry.phase < phase) {
                let what = format!("the entry on node {} went from {id} {phase:?} back to {} {:?}", node.name(), entry.id, entry.phase);
                self.report(Property::Monotone, what);
            } else if entry.id == id && entry.phase == phase {
                self.report(Property::OnlyOnce, format!("the entry {id} {phase:?} on node {} was written again", node.name()));
            }
        }
    }
}
