//! P16, P17 and P20: until a revision is proved it reaches few nodes, is not called good, and is nothing for machines that join.
//!
//! A write of the status carries the resourceVersion of what it went over: the operator had read just that spec, and just that ledger.
//! Nodes and Deployments it may have seen as they were [`STALE`] ago, and so the resource, too, where it makes a Deployment; whether a
//! node was up, as it was [`super::Expectations::lag`] ago. What has changed since then counts in its favour.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chrono::{DateTime, TimeDelta, Utc};
use crds::{hash, ingress_daemon_set::IngressDaemonSetSpec, ledger, names, token::Phase};
use planner::spec::resolve_with;
use serde_json::Value;

use super::{
    Audit, Kind, Property, ROUNDED, STALE, WATCH_DELAY,
    budget::taken_away,
    changes::earlier,
    cluster_state::{is_member, node_of, resource, revision, token},
    observation::{ObjectExt, Observation},
    slots::is_selected,
};

/// How much further than in a test bed watches may be apart in a cluster that is far away.
const FAR: TimeDelta = TimeDelta::seconds(10);
/// With so many suspects in the ledger there may be more, which are not listed.
const LISTED: usize = 100;
/// Taints that pods bear for as long as a kubelet is silent.
const BORNE: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
/// A machine may have joined with any revision.
const ANY: &str = "*";

/// How the revision of each resource's spec has fared.
#[derive(Debug, Default)]
pub(super) struct ProofMemory {
    rollouts: BTreeMap<String, SeenRollout>,
    /// What was before this is not known.
    known_since: Option<DateTime<Utc>>,
    /// Something was missed, and nothing seen since.
    blind: bool,
    /// The latest time there was, until the clock went back.
    latest: DateTime<Utc>,
}

/// What was seen of the rollout of one resource.
#[derive(Debug, Default)]
struct SeenRollout {
    /// Revision of the spec.
    newest: String,
    /// Since when, where that was seen.
    since: Option<DateTime<Utc>>,
    /// The last node that an update has attached: with which revision, and when.
    attached: Option<(String, DateTime<Utc>)>,
    /// The last revision that all nodes ran, with its template, where that was seen.
    former: Option<(String, Arc<Value>)>,
    /// Revisions that a machine may join with, and those that it might before, with when it last might.
    joins: BTreeSet<String>,
    joined: BTreeMap<String, DateTime<Utc>>,
    /// The course in which a revision has to prove itself: its revision and beginning.
    course: Option<(String, i64)>,
    /// Nodes that were given that revision and have not left since, with the UID of their Node.
    given: BTreeMap<String, String>,
    /// UIDs of Nodes among them that vanished though nobody had announced it.
    lost: BTreeSet<String>,
    /// Nodes that were about to leave, or not wanted, and when they last were.
    away: BTreeMap<String, DateTime<Utc>>,
    /// What Deployments of nodes that have served say, and since when.
    says: BTreeMap<String, (String, DateTime<Utc>)>,
}

fn ledger(resource: &Value) -> &Value {
    &resource["status"]["rollout"]
}

fn current(resource: &Value) -> &str {
    resource["status"]["revisions"]["current"].as_str().unwrap_or_default()
}

/// Revision and beginning.
fn course(resource: &Value) -> Option<(String, i64)> {
    let course = &ledger(resource)["course"];
    Some((course["revision"].as_str()?.to_owned(), course["since"].as_i64()?))
}

fn is_proved(resource: &Value, revision: &str) -> bool {
    let course = &ledger(resource)["course"];
    course["revision"] == revision && course["proved"] == true
}

/// The operator has not said otherwise: what it cannot carry out it takes back, and keeps no count of it.
fn is_valid(resource: &Value) -> bool {
    let conditions = resource["status"]["conditions"].as_array();
    !conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Valid" && one["status"] == "False"))
}

/// Nodes with updates under way, to this revision or to any.
fn updates<'a>(resource: &'a Value, to: Option<&'a str>) -> impl Iterator<Item = (&'a String, &'a Value)> {
    let grants = ledger(resource)["grants"].as_object().into_iter().flatten();
    grants.filter(move |(_, grant)| grant["kind"] == "Update" && to.is_none_or(|to| grant["revision"] == to))
}

impl Audit<'_> {
    /// What a write of the status gives, and what it says of a revision.
    pub(super) fn judge_proof(&mut self, before: Option<&Value>, observation: &Observation) {
        self.note_clock(observation.at);
        let Some(before) = before.filter(|before| !before.being_deleted()) else { return };
        // What a ledger has that was rebuilt had been begun before.
        if !ledger(before).is_object() || !ledger(before)["rebuilding"].is_null() {
            return;
        }
        let (after, at) = (&observation.object, observation.at);
        let mut found: Vec<_> = self.praise(before, after, at).into_iter().map(|what| (Property::ProofFirst, what)).collect();
        found.extend(self.reaches_too_many(before, after, at).map(|what| (Property::UnprovedBounded, what)));
        for (property, what) in found {
            self.report(property, format!("{what}, of {}", after.name()));
        }
    }

    /// The revision of the spec, where it has to prove itself, and for how many seconds it must serve.
    fn has_to_prove(&self, resource: &Value) -> Option<(String, i64)> {
        let seconds = self.terms(names::uid8(resource.uid()))?.proven_after;
        if seconds == 0 || !resource["spec"]["rollbackTo"].is_null() {
            return None;
        }
        let newest = hash::revision(&resource["spec"]["template"]);
        (newest != current(resource)).then_some((newest, seconds))
    }

    /// P17: what is said too early, or against grants, suspects and Deployments.
    fn praise(&self, before: &Value, after: &Value, at: DateTime<Utc>) -> Vec<String> {
        let (of, now) = (names::uid8(after.uid()), current(after));
        let becomes = now != current(before) && !now.is_empty();
        let mut found = Vec::new();
        if let Some((revision, seconds)) = self.has_to_prove(before) {
            let made = becomes && now == revision;
            let course = &ledger(after)["course"];
            let proof = course["proof"].as_i64().filter(|_| course["revision"] == *revision).unwrap_or(0);
            // `proved` stays once it is true; the seconds begin anew when what runs the revision breaks.
            if made && proof < seconds {
                found.push(format!("the ledger says that {revision} has proved itself for {proof} of {seconds} s, and it became current"));
            }
            if made || is_proved(after, &revision) && !is_proved(before, &revision) {
                found.extend(self.is_too_early(of, &revision, seconds, at));
            }
        }
        if becomes {
            found.extend(updates(after, None).map(|(node, _)| format!("{now} became current while {node} is updated")));
            let suspects = ledger(after)["suspects"].as_object().into_iter().flatten();
            let fallen = suspects.filter(|(_, suspect)| suspect["revision"] == now && suspect["falls"].as_u64() > Some(1));
            found.extend(fallen.map(|(node, _)| format!("{now} became current though it fell on {node} again and again")));
            found.extend(self.behind(of, now, at).map(|node| format!("{now} became current though {node} runs another revision")));
        }
        found
    }

    /// The time from the last node that was attached with the revision, or from when anybody could know it, by the clock of the audit.
    fn is_too_early(&self, of: &str, revision: &str, seconds: i64, at: DateTime<Utc>) -> Option<String> {
        let rollout = self.proof.rollouts.get(of)?;
        let attached = rollout.attached.as_ref().filter(|(attached, _)| attached == revision).map(|(_, at)| *at);
        let since = rollout.since.filter(|_| rollout.newest == revision).max(attached)?;
        let served = at - since;
        let what = || format!("{revision} counts as proved after {:.1} s, it must serve for {seconds} s", served.as_seconds_f32());
        (served + self.slack() < TimeDelta::seconds(seconds)).then(what)
    }

    fn slack(&self) -> TimeDelta {
        WATCH_DELAY + ROUNDED + if self.expected.from_afar { FAR } else { TimeDelta::zero() }
    }

    /// Nodes that serve with another revision, and have for so long that the operator must know.
    fn behind<'a>(&'a self, of: &'a str, current: &'a str, at: DateTime<Utc>) -> impl Iterator<Item = &'a str> {
        let says = self.proof.rollouts.get(of).into_iter().flat_map(|rollout| &rollout.says);
        let others = says.filter(move |(_, (says, since))| says != current && at - *since >= STALE);
        others.map(|(node, _)| node.as_str()).filter(move |node| self.has_stayed(of, node, at) && self.is_surely_up(of, node, at))
    }

    /// P16: an update to an unproved revision begins on a node that serves and does not have it yet, although as many nodes as the budget
    /// allows have it already. Or a node gets it in the slot of a drain.
    fn reaches_too_many(&self, before: &Value, after: &Value, at: DateTime<Utc>) -> Option<String> {
        let of = names::uid8(after.uid());
        let (revision, _) = self.has_to_prove(before)?;
        let suspects = [before, after].map(|resource| ledger(resource)["suspects"].as_object());
        let overflows = suspects.iter().flatten().any(|suspects| suspects.len() >= LISTED);
        if is_proved(after, &revision) || overflows {
            return None;
        }
        let rollout = self.proof.rollouts.get(of)?;
        let goes_on = rollout.course.is_some() && rollout.course == course(after) && course(before) == rollout.course;
        let (none, old) = (BTreeMap::new(), &ledger(before)["grants"]);
        let given = if goes_on { &rollout.given } else { &none };
        let told = ledger(before)["course"]["reached"].as_object().filter(|_| goes_on);
        let runs = rollout.says.iter().filter(|(_, (says, since))| *says == revision && at - *since >= STALE);
        let mut holders: BTreeSet<String> = given.keys().chain(runs.map(|(node, _)| node)).cloned().collect();
        let same = |(node, uid): &(&String, &Value)| self.cluster.node(node).is_some_and(|live| **uid == live.uid());
        holders.extend(told.into_iter().flatten().filter(same).map(|(node, _)| node.clone()));
        let has_place = |node: &String| {
            let suspect = suspects.iter().flatten().any(|suspects| suspects.contains_key(node));
            suspect || holders.contains(node) || rollout.says.get(node).is_some_and(|(says, _)| *says == revision)
        };
        // One that is out by its drain is not out anyway: what it had was no place for a revision.
        let drained = |node: &String| old[node]["kind"] == "Drain";
        let up = |node: &String| old[node].is_null() && self.is_surely_up(of, node, at);
        let begun = updates(after, Some(&revision)).map(|(node, _)| node).filter(|node| !has_place(node));
        let begun: Vec<_> = begun.filter(|node| drained(node) || up(node)).collect();
        let keep: Vec<_> = holders.iter().filter(|node| self.has_stayed(of, node, at)).collect();
        let lost = if goes_on { rollout.lost.len() } else { 0 };
        let budget = self.budget_of(of, before, after)?;
        let too_many = !begun.is_empty() && keep.len() + begun.len() + lost > budget + lost.min(1);
        let gone = if lost == 0 { String::new() } else { format!(" and {lost} that vanished") };
        too_many.then(|| format!("{begun:?} are given {revision}, which is not proved, beside {keep:?}{gone}; the budget is {budget}"))
    }

    /// P20: the Deployment of a node that has not served yet.
    pub(super) fn judge_joining(&mut self, before: Option<&Value>, observation: &Observation) {
        let (after, at) = (&observation.object, observation.at);
        let (of, node, gets) = (resource(after), node_of(after), revision(after));
        let is_new = is_member(after) && token(after).is_some_and(|token| token.phase == Phase::New);
        if !is_new || before.is_some_and(|before| revision(before) == gets) || self.is_touched(node) || !self.knows(at) {
            return;
        }
        let Some(rollout) = self.proof.rollouts.get(of).filter(|rollout| rollout.newest == gets) else { return };
        let (Some(owner), Some(live)) = (self.cluster.resource(of), self.cluster.node(node)) else { return };
        let served = live.label(&names::member_label(of)) == Some("serving");
        let back = rollout.former.as_ref().is_some_and(|(former, template)| former == current(owner) && fits(owner, template));
        if served || !back || !ledger(owner)["grants"][node].is_null() || rollout.might_join(gets, at) {
            return;
        }
        let what = format!("node {node} joins with {gets} of {}, which is not proved: all nodes ran {}", owner.name(), current(owner));
        self.report(Property::JoinsCurrent, what);
    }

    /// All that the operator may still have seen was seen here, too.
    fn knows(&self, at: DateTime<Utc>) -> bool {
        !self.proof.blind && self.proof.known_since.is_none_or(|since| at - since >= STALE)
    }

    /// The node is there, and nobody has been about to take it away: it gives no place back.
    fn has_stayed(&self, of: &str, node: &str, at: DateTime<Utc>) -> bool {
        let away = self.proof.rollouts.get(of).and_then(|rollout| rollout.away.get(node));
        self.knows(at) && self.stays(of, node) && away.is_none_or(|away| at - *away >= STALE)
    }

    fn stays(&self, of: &str, node: &str) -> bool {
        let (Some(owner), Some(live)) = (self.cluster.resource(of), self.cluster.node(node)) else { return false };
        let mut taints = live["spec"]["taints"].as_array().into_iter().flatten();
        let borne = taints.all(|taint| taint["effect"] != "NoExecute" || taint["key"].as_str().is_some_and(|key| BORNE.contains(&key)));
        let apart = live["spec"]["unschedulable"] == true || live.annotation(names::SKIP_ANNOTATION).is_some();
        is_selected(owner, live) && borne && !apart && !taken_away(live)
    }

    /// What was before `observation` is not known.
    pub(super) fn note_proof_half_way(&mut self, observation: &Observation) {
        self.forget_proof();
        self.proof.blind = false;
        self.proof.known_since = self.proof.known_since.max(Some(observation.at));
    }

    /// Something was missed: places may have been given back.
    pub(super) fn forget_proof(&mut self) {
        self.proof.blind = true;
        for (of, rollout) in &mut self.proof.rollouts {
            rollout.given.clear();
            rollout.lost.clear();
            rollout.says.retain(|node, _| self.cluster.members_at(&(of.clone(), node.clone())).next().is_some());
        }
    }

    /// It was seen as it happened.
    fn is_seen(&self, at: DateTime<Utc>) -> bool {
        self.proof.known_since.is_none_or(|since| since < at)
    }

    /// A clock that goes back does not say how long anything took.
    fn note_clock(&mut self, at: DateTime<Utc>) {
        if at + self.slack() < self.proof.latest {
            self.proof.rollouts.values_mut().for_each(|rollout| (rollout.since, rollout.attached) = (None, None));
            self.proof.latest = at;
        }
        self.proof.latest = self.proof.latest.max(at);
    }

    /// Remembers what an observation shows, after it was applied.
    pub(super) fn note_proof(&mut self, before: Option<&Value>, observation: &Observation) {
        let (object, at) = (&observation.object, observation.at);
        if std::mem::take(&mut self.proof.blind) {
            self.proof.known_since = Some(at);
        }
        self.note_clock(at);
        match observation.kind {
            Kind::IngressDaemonSet if observation.deleted => drop(self.proof.rollouts.remove(names::uid8(object.uid()))),
            Kind::IngressDaemonSet => self.note_rollout(before, observation),
            Kind::Deployment if is_member(object) => self.note_revision(before, observation),
            Kind::Node => {
                for of in self.proof.rollouts.keys().cloned().collect::<Vec<_>>() {
                    self.note_departure(&of, object.name(), at, observation.deleted);
                }
            }
            _ => {}
        }
    }

    fn note_revision(&mut self, before: Option<&Value>, observation: &Observation) {
        let (object, at) = (&observation.object, observation.at);
        let phase = |deployment: &Value| token(deployment).map(|token| token.phase);
        let closes = phase(object) == Some(Phase::Closed) && before.is_some_and(|before| phase(before) != Some(Phase::Closed));
        let seen = closes && !observation.deleted && self.is_seen(at);
        let updated = token(object).filter(|token| seen && self.cluster.kind_of(object, token.id) == Some(ledger::GrantReason::Update));
        let rollout = self.proof.rollouts.entry(resource(object).to_owned()).or_default();
        if let Some(token) = updated {
            let since = if self.expected.from_afar { earlier(token.since, at) } else { at };
            rollout.attached = Some((revision(object).to_owned(), since));
        }
        if observation.deleted || phase(object) == Some(Phase::New) {
            rollout.says.remove(node_of(object));
        } else if rollout.says.get(node_of(object)).is_none_or(|(says, _)| says != revision(object)) {
            rollout.says.insert(node_of(object).to_owned(), (revision(object).to_owned(), at));
        }
    }

    /// A node that leaves gives its place back, and one that vanishes with the revision is lost.
    fn note_departure(&mut self, of: &str, node: &str, at: DateTime<Utc>, vanished: bool) {
        if !vanished && self.stays(of, node) {
            return;
        }
        let reached = self.cluster.resource(of).map(|owner| ledger(owner)["course"]["reached"][node].clone());
        let Some(rollout) = self.proof.rollouts.get_mut(of) else { return };
        rollout.away.retain(|_, away| at - *away < STALE);
        rollout.away.insert(node.to_owned(), at);
        if let Some(uid) = rollout.given.remove(node).filter(|uid| vanished && reached.is_some_and(|reached| reached == **uid)) {
            rollout.lost.insert(uid);
        }
    }

    fn note_rollout(&mut self, before: Option<&Value>, observation: &Observation) {
        let (owner, at) = (&observation.object, observation.at);
        let of = names::uid8(owner.uid());
        let newest = hash::revision(&owner["spec"]["template"]);
        let proving = self.has_to_prove(owner).filter(|(revision, _)| !is_proved(owner, revision));
        let joins = joins(owner, &newest, proving.is_some());
        let is_about = |revision: &str| ledger(owner)["rebuilding"].is_null() && ledger(owner)["course"]["revision"] == revision;
        let judged = proving.filter(|(revision, _)| is_valid(owner) && is_about(revision));
        let seen = self.is_seen(at);
        let retried = before.is_some_and(|before| before.annotation(names::RETRY_ANNOTATION) != owner.annotation(names::RETRY_ANNOTATION));
        let rollout = self.proof.rollouts.entry(of.to_owned()).or_default();
        rollout.joined.retain(|_, last| at - *last < STALE);
        let former = std::mem::replace(&mut rollout.joins, joins);
        rollout.joined.extend(former.into_iter().map(|revision| (revision, at)));
        if newest == current(owner) {
            rollout.former = Some((newest.clone(), Arc::new(owner["spec"]["template"].clone())));
        }
        if rollout.newest != newest {
            // One that was there before the audit, or was pinned to before, may have served for as long as anybody likes.
            let known = before.is_some_and(|before| ledger(before)["course"]["revision"] == *newest);
            rollout.since = (seen && !known).then_some(at);
            rollout.newest = newest;
        }
        let course = judged.as_ref().and_then(|_| course(owner));
        if rollout.course != course || retried {
            rollout.lost.clear();
        }
        if rollout.course != course {
            rollout.course = course;
            rollout.given.clear();
        }
        if before.is_none_or(|before| before["spec"] != owner["spec"]) {
            for node in self.cluster.members_of(of).map(|member| node_of(member).to_owned()).collect::<Vec<_>>() {
                self.note_departure(of, &node, at, false);
            }
        }
        let Some((revision, _)) = judged else { return };
        let live = |node: &String, grant: &Value| self.cluster.node(node).is_some_and(|live| grant["nodeUID"] == live.uid());
        let begun: Vec<_> = updates(owner, Some(&revision)).filter(|(node, grant)| live(node, grant) && self.stays(of, node)).collect();
        let Some(rollout) = self.proof.rollouts.get_mut(of) else { return };
        rollout
            .given
            .extend(begun.into_iter().map(|(node, grant)| (node.clone(), grant["nodeUID"].as_str().unwrap_or_default().to_owned())));
        let grants = &ledger(owner)["grants"];
        rollout.given.retain(|node, _| grants[node]["kind"] != "Remove" && grants[node]["kind"] != "Drain");
    }
}

/// What a machine gets that joins while the resource says this: while a revision proves itself, the last that all nodes ran.
fn joins(owner: &Value, newest: &str, proving: bool) -> BTreeSet<String> {
    let current = current(owner);
    let anything = if owner["spec"]["rollbackTo"].is_null() { newest } else { ANY };
    let all = if proving && !current.is_empty() { vec![current] } else { vec![anything, newest, current] };
    all.into_iter().filter(|revision| !revision.is_empty()).map(str::to_owned).collect()
}

/// The spec is valid with this template, too.
fn fits(owner: &Value, template: &Arc<Value>) -> bool {
    serde_json::from_value::<IngressDaemonSetSpec>(owner["spec"].clone()).is_ok_and(|spec| resolve_with(&spec, template).is_ok())
}

impl SeenRollout {
    /// A machine that joined with this revision did as the operator may have seen it.
    fn might_join(&self, revision: &str, at: DateTime<Utc>) -> bool {
        let might = |revision: &str| self.joins.contains(revision) || self.joined.get(revision).is_some_and(|last| at - *last < STALE);
        might(revision) || might(ANY)
    }
}
