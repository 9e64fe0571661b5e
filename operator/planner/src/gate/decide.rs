//! One look at one node: all gates, at most one patch.

use super::{
    judge::{Case, Judgement},
    patch::{Addition, Changes, patch},
    record::{Cause, Origin, Record, annotation_key, records},
    requirement::{Finding, Subject, Verdict, find},
    world::{Gate, World},
};
use crate::snapshot::NodeFacts;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What is remembered of a gate and a node between two looks; losing it costs time, never a taint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// Since when the requirements are met without a break, unix seconds.
    pub passing_since: Option<i64>,
    /// Since when they are not, unix seconds.
    pub failing_since: Option<i64>,
    /// When the taint was last put back that somebody else had taken away, unix seconds.
    pub put_back_at: Option<i64>,
    /// Whether the node was found to be idle.
    pub idle: Option<bool>,
}

/// By the UID of the gate.
pub type Clocks = BTreeMap<String, Clock>;

/// What came about on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// The taint came; `late` when the node had been there without it.
    Added {
        /// Pods may have come meanwhile.
        late: bool,
    },
    /// The taint was there before.
    Adopted,
    /// The taint came back that somebody else had taken away.
    PutBack,
    /// The taint went.
    Removed,
    /// The taint went because the node had been held for too long.
    TimedOut,
}

/// What came about for one gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// UID of the gate.
    pub gate: String,
    /// What.
    pub happened: Happened,
    /// Seconds for which the node was held, where it was released now.
    pub held_for: Option<i64>,
    /// Since when the requirements are met or not met that led to it, unix seconds.
    pub since: Option<i64>,
    /// It had passed, and lost its release for ceasing to be ready.
    pub regression: bool,
}

/// How one gate sees one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is counted by itself")]
pub struct View {
    /// Selected by the gate.
    pub matched: bool,
    /// The taint is kept on it.
    pub held: bool,
    /// It has passed.
    pub released: bool,
    /// Held for longer than `release.timeout`.
    pub stuck: bool,
    /// In a dry run: would get the taint.
    pub would_taint: bool,
    /// In a dry run: would lose it.
    pub would_release: bool,
    /// Held for having ceased to be ready.
    pub regressed: bool,
    /// It would lose its release, if there were room.
    pub no_room: bool,
    /// What is not met, with the reason.
    pub blocked: Vec<(String, String)>,
}

/// What is to be done about one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodePlan {
    /// The patch, where something changes.
    pub patch: Option<Value>,
    /// What comes about with it.
    pub transitions: Vec<Transition>,
    /// How each gate sees the node, by UID; only those that select it.
    pub views: BTreeMap<String, View>,
    /// Gates that must know whether the node is idle.
    pub asks_whether_idle: BTreeSet<String>,
    /// What to remember.
    pub clocks: Clocks,
    /// When to look again although nothing changes, unix seconds.
    pub recheck_at: Option<i64>,
}

/// Decides about one node. `has_room` says for a gate, by UID, whether another node may lose its release; `unsatisfiable` holds
/// the UIDs of gates that could never open.
pub fn decide(
    world: &World,
    unsatisfiable: &BTreeSet<String>,
    name: &str,
    node: &NodeFacts,
    clocks: &Clocks,
    has_room: &mut dyn FnMut(&Gate) -> bool,
    now: i64,
) -> NodePlan {
    let mut plan = NodePlan::default();
    if node.deleting {
        return plan;
    }
    let records = records(&node.annotations);
    let mut judged: Vec<(&str, &str, Judgement)> = Vec::new();
    let mut changes = Changes::default();
    for (uid, gate) in &world.gates {
        let subject = Subject { name, facts: node, record: records.get(uid), records: &records, now };
        let matched = gate.selects(node);
        if !matched && subject.record.is_none() {
            continue;
        }
        let finding = find(world, gate, &subject);
        let clock = clocks.get(uid).cloned().unwrap_or_default();
        let enforced = !unsatisfiable.contains(uid);
        let mut case = Case { gate, enforced, node: subject, finding: &finding, clock, has_room: false };
        let mut judgement = case.judge();
        if judgement.no_room && has_room(gate) {
            // Room is asked for where it is needed only: whoever asks takes it.
            case.has_room = true;
            judgement = case.judge();
        }
        if matched {
            plan.views.insert(uid.clone(), view(gate, &subject, &judgement, finding));
        }
        plan.recheck_at = [plan.recheck_at, judgement.recheck_at].into_iter().flatten().min();
        if judgement.asks_whether_idle {
            plan.asks_whether_idle.insert(uid.clone());
        }
        note(&mut plan, &mut changes, gate, &subject, &judgement);
        plan.clocks.insert(uid.clone(), judgement.clock.clone());
        judged.push((gate.spec.taint.key.as_str(), gate.spec.taint.effect.as_str(), judgement));
    }
    let gone = let_orphans_go(world, &records, &mut changes);
    settle_taints(world, node, &judged, &gone, &mut changes);
    plan.patch = patch(node, &changes);
    if plan.patch.is_none() {
        plan.transitions.clear();
    }
    plan
}

/// The record, what a release leaves behind, and what to tell of it.
fn note(plan: &mut NodePlan, changes: &mut Changes, gate: &Gate, subject: &Subject<'_>, judgement: &Judgement) {
    let now = subject.now;
    changes.annotations.insert(annotation_key(&gate.uid), judgement.record.as_ref().map(Record::text));
    let Some(happened) = judgement.happened else { return };
    let release = matches!(happened, Happened::Removed | Happened::TimedOut);
    if let (true, Some(key), false) = (release, &gate.completion_annotation, gate.deleting) {
        changes.annotations.insert(key.clone(), Some(now.to_string()));
    }
    plan.transitions.push(Transition {
        gate: gate.uid.clone(),
        happened,
        held_for: subject.record.filter(|record| release && record.is_held()).map(|record| now - subject.since(record)),
        since: if release { judgement.clock.passing_since } else { judgement.clock.failing_since },
        regression: judgement.record.as_ref().is_some_and(|record| record.cause == Cause::Regression) && !release,
    });
}

/// Records of gates that are no more: they go, and so do taints that were ours.
fn let_orphans_go(world: &World, records: &BTreeMap<String, Record>, changes: &mut Changes) -> BTreeSet<(String, String)> {
    let mut gone = BTreeSet::new();
    for (uid, record) in records.iter().filter(|(uid, _)| !world.incomplete && !world.gates.contains_key(*uid)) {
        changes.annotations.insert(annotation_key(uid), None);
        if record.is_held() && record.origin == Origin::Applied {
            gone.insert((record.key.clone(), record.effect.clone()));
        }
    }
    gone
}

/// The union: a taint stays while any gate claims it.
fn settle_taints(
    world: &World,
    node: &NodeFacts,
    judged: &[(&str, &str, Judgement)],
    gone: &BTreeSet<(String, String)>,
    changes: &mut Changes,
) {
    let is = |taint: &k8s_openapi::api::core::v1::Taint, key: &str, effect: &str| taint.key == key && taint.effect == effect;
    let claimed = |key: &str, effect: &str| judged.iter().any(|(k, e, judgement)| (*k, *e) == (key, effect) && judgement.claims);
    for (place, taint) in node.taints.iter().enumerate() {
        let released = judged.iter().any(|(key, effect, judgement)| judgement.lets_go && is(taint, key, effect));
        let orphaned = gone.iter().any(|(key, effect)| is(taint, key, effect));
        if (released || orphaned) && !claimed(&taint.key, &taint.effect) {
            changes.removals.push(place);
        }
    }
    let wanted: BTreeSet<_> = judged.iter().filter(|(_, _, judgement)| judgement.claims).map(|(key, effect, _)| (*key, *effect)).collect();
    for (key, effect) in wanted {
        if node.taints.iter().any(|taint| is(taint, key, effect)) {
            continue;
        }
        // Where gates differ in the value only, the first by UID has its way.
        let value = world.gates.values().find(|gate| gate.has_taint(key, effect)).and_then(|gate| gate.spec.taint.value.clone());
        changes.additions.push(Addition { key: key.to_owned(), effect: effect.to_owned(), value });
    }
}

fn view(gate: &Gate, subject: &Subject<'_>, judgement: &Judgement, finding: Finding) -> View {
    let has_taint = subject.facts.taints.iter().any(|taint| gate.has_taint(&taint.key, &taint.effect));
    let held = judgement.record.as_ref().is_some_and(Record::is_held);
    let released = judgement.record.as_ref().is_some_and(|record| !record.is_held());
    let passes = finding.verdict.passes();
    let unmet = matches!(finding.verdict, Verdict::Unmet(_));
    View {
        matched: true,
        held,
        released,
        stuck: judgement.stuck,
        regressed: judgement.record.as_ref().is_some_and(|record| record.is_held() && record.cause == Cause::Regression),
        would_taint: gate.spec.dry_run && !has_taint && unmet,
        would_release: gate.spec.dry_run && has_taint && passes,
        no_room: judgement.no_room,
        blocked: if held || gate.spec.dry_run || judgement.no_room { finding.blocked } else { Vec::new() },
    }
}
