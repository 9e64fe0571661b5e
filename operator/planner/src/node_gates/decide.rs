//! One look at one node: all gates, at most one patch.

use super::{
    in_force,
    judge::{JudgedNode, Judgement},
    patch::{Addition, NodeChanges, patch},
    record::{Cause, Record, RecordOrigin, annotation_key, records},
    requirement::{Finding, Subject, find},
    transition::{GateClocks, Happened, Transition},
    world::{Gate, World},
};
use crate::facts::NodeFacts;
use crds::{UnixSeconds, node_readiness_gate::GateTaint};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// How one gate sees one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is counted by itself")]
pub struct GateView {
    /// The gate selects the node.
    pub matched: bool,
    /// The taint is kept on it, as the Node says.
    pub held: bool,
    /// The gate has released the node, as its record says.
    pub released: bool,
    /// The Node is to be written to for this gate.
    pub due: bool,
    /// It had been there without the taint when it got it.
    pub late: bool,
    /// Held for longer than `release.timeout`.
    pub stuck: bool,
    /// In a dry run: would get the taint.
    pub would_taint: bool,
    /// In a dry run: would lose the taint.
    pub would_release: bool,
    /// Held for having ceased to be ready, or about to be: it counts against the budget.
    pub regressed: bool,
    /// It would lose its release, if there were room.
    pub no_room: bool,
    /// It would get the taint, if that did not evict the pods that are waited for.
    pub spared: bool,
    /// What is not met, with the reason.
    pub blocked: Vec<(String, String)>,
}

/// Actions for one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodePlan {
    /// The patch, where something changes.
    pub patch: Option<Value>,
    /// Changes of taints that the patch brings about.
    pub transitions: Vec<Transition>,
    /// How each gate sees the node, by UID; only those that select it.
    pub views: BTreeMap<String, GateView>,
    /// Gates that must know whether the node is idle.
    pub asks_whether_idle: BTreeSet<String>,
    /// Clocks of the gates, to be kept for the next decision.
    pub clocks: GateClocks,
    /// When to look again although nothing changes.
    pub recheck_at: Option<UnixSeconds>,
    /// Taints that stay on the node although a record says that a gate had put them there: no gate is known that ever had them.
    pub unknown: BTreeSet<(String, String)>,
}

/// Decides about one node. `has_room` says for a gate, by UID, whether another node may lose its release; `unsatisfiable` holds
/// the UIDs of gates that could never open.
pub fn decide(
    world: &World,
    unsatisfiable: &BTreeSet<String>,
    name: &str,
    node: &NodeFacts,
    clocks: &GateClocks,
    has_room: &mut dyn FnMut(&Gate) -> bool,
    now: UnixSeconds,
) -> NodePlan {
    let mut plan = NodePlan::default();
    if node.deleting {
        return plan;
    }
    let records = records(&node.annotations);
    let mut judged: Vec<Judged<'_>> = Vec::new();
    let mut changes = NodeChanges::default();
    for (uid, gate) in &world.gates {
        let is_new = in_force::is_new(world, gate, node);
        let subject = Subject { name, facts: node, record: records.get(uid), records: &records, is_new, now };
        let matched = gate.selects(node);
        if !matched && subject.record.is_none() {
            continue;
        }
        let finding = find(world, gate, &subject);
        let clock = clocks.get(uid).cloned().unwrap_or_default();
        let enforced = !unsatisfiable.contains(uid);
        let mut case = JudgedNode { gate, enforced, node: subject, finding: &finding, clock, has_room: false };
        let mut judgement = case.judge();
        if judgement.no_room && has_room(gate) {
            // Room is asked for where it is needed only: whoever asks takes it.
            case.has_room = true;
            judgement = case.judge();
        }
        judged.push(Judged { gate, subject, finding, judgement, matched });
    }
    yield_to_others(&mut judged);
    let former = judged.iter().filter_map(|one| Some((one.gate.uid.as_str(), one.former_taint()?)));
    let (mut gone, mut unknown) = (BTreeSet::new(), BTreeSet::new());
    for (uid, (key, effect)) in let_orphans_go(world, node, &records, &mut changes).into_iter().chain(former) {
        if world.had_taint(uid, &key, &effect) {
            gone.insert((key, effect));
        } else {
            unknown.insert((key, effect));
        }
    }
    let has_gate = |key: &str, effect: &str| judged.iter().any(|one| one.gate.has_taint(key, effect));
    unknown
        .retain(|(key, effect)| !gone.contains(&(key.clone(), effect.clone())) && !has_gate(key, effect) && has_taint(node, key, effect));
    plan.unknown = unknown;
    settle_taints(node, &judged, &gone, &mut changes);
    for Judged { gate, subject, finding, judgement, matched } in judged {
        plan.recheck_at = [plan.recheck_at, judgement.recheck_at].into_iter().flatten().min();
        if judgement.asks_whether_idle {
            plan.asks_whether_idle.insert(gate.uid.clone());
        }
        note(&mut plan, &mut changes, gate, &subject, &judgement);
        if matched {
            plan.views.insert(gate.uid.clone(), view(&subject, &judgement, finding));
        }
        plan.clocks.insert(gate.uid.clone(), judgement.clock);
    }
    plan.patch = patch(node, &changes);
    if plan.patch.is_none() {
        plan.transitions.clear();
    }
    plan
}

/// What one gate decided about the node.
struct Judged<'a> {
    gate: &'a Gate,
    subject: Subject<'a>,
    finding: Finding,
    judgement: Judgement,
    matched: bool,
}

impl Judged<'_> {
    /// A taint that the node was held by, where the gate has another one by now and does not keep the node as it was.
    fn former_taint(&self) -> Option<(String, String)> {
        let before = self.subject.record.filter(|record| record.is_held() && record.origin == RecordOrigin::Applied)?;
        let is_kept =
            self.judgement.record.as_ref().is_some_and(|now| now.is_held() && (&now.key, &now.effect) == (&before.key, &before.effect));
        (!is_kept && !self.gate.has_taint(&before.key, &before.effect)).then(|| (before.key.clone(), before.effect.clone()))
    }
}

/// A taint does not go while another gate claims it: who gives it up says so once, and not that it went. A gate that had given it up
/// before says nothing when the taint goes at last.
fn yield_to_others(judged: &mut [Judged<'_>]) {
    let claims = |one: &Judged<'_>| one.judgement.claims;
    let held =
        |one: &Judged<'_>| one.subject.record.is_some_and(|record| record.is_held() && one.gate.has_taint(&record.key, &record.effect));
    let by = |test: &dyn Fn(&Judged<'_>) -> bool| -> BTreeSet<_> {
        judged.iter().filter(|one| test(one)).map(|one| taint_of(one.gate)).collect()
    };
    let (claimed, held) = (by(&claims), by(&held));
    // The taint stays, and the gate has no word for a node that is none of its own any more.
    for one in judged.iter_mut().filter(|one| one.judgement.happened == Some(Happened::LetGo) && claimed.contains(&taint_of(one.gate))) {
        one.judgement.happened = None;
    }
    for one in judged.iter_mut().filter(|one| one.judgement.happened == Some(Happened::Removed)) {
        let taint = taint_of(one.gate);
        let gives_up = one.subject.record.is_none_or(Record::is_held);
        one.judgement.happened = match (gives_up, claimed.contains(&taint), held.contains(&taint)) {
            (true, false, _) | (false, false, false) => Some(Happened::Removed),
            (true, true, _) => Some(Happened::Yielded),
            (false, true, _) | (false, false, true) => None,
        };
    }
}

fn taint_of(gate: &Gate) -> (String, &'static str) {
    (gate.spec.taint.key.clone(), gate.spec.taint.effect.as_str())
}

/// The record, what a release leaves behind, and what to tell of it.
fn note(plan: &mut NodePlan, changes: &mut NodeChanges, gate: &Gate, subject: &Subject<'_>, judgement: &Judgement) {
    let now = subject.now;
    changes.annotations.insert(annotation_key(&gate.uid), judgement.record.as_ref().map(Record::text));
    let Some(happened) = judgement.happened else { return };
    let release = matches!(happened, Happened::Removed | Happened::Yielded | Happened::TimedOut);
    if let (true, Some(key), false) = (release, &gate.completion_annotation, gate.deleting) {
        changes.annotations.insert(key.clone(), Some(now.to_string()));
    }
    plan.transitions.push(Transition {
        gate: gate.uid.clone(),
        happened,
        held_for: subject
            .record
            .filter(|record| (release || happened == Happened::LetGo) && record.is_held())
            .map(|record| now.saturating_sub(subject.since(record))),
        since: if release { judgement.clock.passing_since } else { judgement.clock.failing_since },
        regression: judgement.record.as_ref().is_some_and(|record| record.cause == Cause::Regression) && !release,
    });
}

fn has_taint(node: &NodeFacts, key: &str, effect: &str) -> bool {
    node.taints.iter().any(|taint| (taint.key.as_str(), taint.effect.as_str()) == (key, effect))
}

/// Records of gates that are no more: they go, but for those of taints that stay because no gate is known to have had them. Whoever
/// cleans up finds these by the record. The taints that records say were ours, with the UID of the gate.
fn let_orphans_go<'r>(
    world: &World,
    node: &NodeFacts,
    records: &'r BTreeMap<String, Record>,
    changes: &mut NodeChanges,
) -> Vec<(&'r str, (String, String))> {
    let mut gone = Vec::new();
    for (uid, record) in records.iter().filter(|(uid, _)| !world.incomplete && !world.gates.contains_key(*uid)) {
        let is_ours = record.is_held() && record.origin == RecordOrigin::Applied;
        if is_ours {
            gone.push((uid.as_str(), (record.key.clone(), record.effect.clone())));
        }
        let stays = is_ours && has_taint(node, &record.key, &record.effect) && !world.had_taint(uid, &record.key, &record.effect);
        if !stays {
            changes.annotations.insert(annotation_key(uid), None);
        }
    }
    gone
}

/// The union: a taint stays while any gate claims it.
fn settle_taints(node: &NodeFacts, judged: &[Judged<'_>], gone: &BTreeSet<(String, String)>, changes: &mut NodeChanges) {
    let with = |test: fn(&Judgement) -> bool, key: &str, effect: &str| {
        judged.iter().any(|one| test(&one.judgement) && one.gate.has_taint(key, effect))
    };
    for (place, taint) in node.taints.iter().enumerate() {
        let released = with(|judgement| judgement.lets_go, &taint.key, &taint.effect);
        let orphaned = gone.iter().any(|(key, effect)| (key, effect) == (&taint.key, &taint.effect));
        if (released || orphaned) && !with(|judgement| judgement.claims, &taint.key, &taint.effect) {
            changes.removals.push(place);
        }
    }
    for one in judged.iter().filter(|one| one.judgement.claims) {
        let GateTaint { key, value, effect } = &one.gate.spec.taint;
        let is = |found: &str, of: &str| found == key && of == effect.as_str();
        // Where gates that claim it differ in the value only, the first by UID has its way.
        let is_there = node.taints.iter().any(|taint| is(&taint.key, &taint.effect))
            || changes.additions.iter().any(|addition| is(&addition.key, &addition.effect));
        if !is_there {
            changes.additions.push(Addition { key: key.clone(), effect: effect.as_str().to_owned(), value: value.clone() });
        }
    }
    changes.additions.sort_by(|one, other| (&one.key, &one.effect).cmp(&(&other.key, &other.effect)));
}

fn view(subject: &Subject<'_>, judgement: &Judgement, finding: Finding) -> GateView {
    let decided = judgement.clock.trial.as_ref().or(judgement.record.as_ref());
    // What is decided may be refused: what the Node says counts.
    let held = subject.record.is_some_and(Record::is_held);
    let released = subject.record.is_some_and(|record| !record.is_held());
    let would_hold = judgement.clock.trial.as_ref().is_some_and(Record::is_held);
    let blocked = match finding.evicts.filter(|_| judgement.spares) {
        Some(evicts) => vec![evicts],
        None if held || would_hold || judgement.no_room => finding.blocked,
        None => Vec::new(),
    };
    GateView {
        matched: true,
        held,
        released,
        late: subject.record.is_some_and(|record| record.late),
        due: judgement.happened.is_some() || judgement.record.as_ref() != subject.record,
        stuck: judgement.stuck,
        regressed: decided.is_some_and(|record| record.is_held() && record.cause == Cause::Regression),
        would_taint: judgement.would_taint,
        would_release: judgement.would_release,
        no_room: judgement.no_room,
        spared: judgement.spares,
        blocked,
    }
}
