//! What one gate decides about one node.

use super::{
    in_force,
    record::{Cause, Record, RecordOrigin, RecordState},
    requirement::{Finding, RequirementVerdict, Subject},
    transition::{GateClock, Happened},
    world::{Gate, short},
};
use crate::facts::NodeFacts;
use crds::{
    Duration, UnixSeconds,
    node_readiness_gate::{DeletionPolicy, ExistingNodes, Mode, Regate, TimeoutAction},
};

/// Taints of a node that others have not finished yet: released before, it would be taken for a failed one.
/// Sources: Karpenter restores startup taints that are gone before it registers the node; cloud controllers finish the node's addresses.
const UNFINISHED: [&str; 2] = ["karpenter.sh/unregistered", "node.cloudprovider.kubernetes.io/uninitialized"];
/// Seconds for which requirements must be unmet before a node loses its release, by default.
const FAILING_FOR: i64 = 10;
/// A taint that somebody else takes away is put back at most this often, in seconds.
const REASSERT_EVERY: i64 = 10;

/// What one gate decides about one node.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Judgement {
    /// The record to be there; none: it goes.
    pub record: Option<Record>,
    /// The taint is to be there.
    pub claims: bool,
    /// The taint may go, if no other gate claims it.
    pub lets_go: bool,
    /// Change of the taint that the decision brings about.
    pub happened: Option<Happened>,
    /// Held for longer than `release.timeout`.
    pub stuck: bool,
    /// In a dry run: it would have the taint, which it has not.
    pub would_taint: bool,
    /// In a dry run: it would lose the taint.
    pub would_release: bool,
    /// It would lose its release, if there were room.
    pub no_room: bool,
    /// It would get the taint, if that did not evict the pods that are waited for.
    pub spares: bool,
    /// Somebody must be asked whether the node is idle.
    pub asks_whether_idle: bool,
    /// What is remembered until the next look.
    pub clock: GateClock,
    /// When to look again although nothing changes.
    pub recheck_at: Option<UnixSeconds>,
}

/// Everything that a gate's decision about one node depends on.
pub struct JudgedNode<'a> {
    /// Gate that decides.
    pub gate: &'a Gate,
    /// The gate's requirements can be met, so that the gate may taint nodes.
    pub enforced: bool,
    /// Node to decide about.
    pub node: Subject<'a>,
    /// State of the gate's requirements on the node.
    pub finding: &'a Finding,
    /// Clock of the gate for the node, from the decision before.
    pub clock: GateClock,
    /// Another node may lose its release.
    pub has_room: bool,
}

impl JudgedNode<'_> {
    fn facts(&self) -> &NodeFacts {
        self.node.facts
    }

    fn has_taint(&self) -> bool {
        self.facts().taints.iter().any(|taint| self.gate.has_taint(&taint.key, &taint.effect))
    }

    /// Who has put the taint there, or will have: one that another gate has put there is the operator's own.
    fn origin(&self) -> RecordOrigin {
        let is_ours = |record: &Record| {
            record.is_held() && record.origin == RecordOrigin::Applied && self.gate.has_taint(&record.key, &record.effect)
        };
        if !self.has_taint() || self.node.records.values().any(is_ours) { RecordOrigin::Applied } else { RecordOrigin::Adopted }
    }

    /// A record as of now.
    fn record(&self, state: RecordState, origin: RecordOrigin, cause: Cause) -> Record {
        Record {
            gate: self.gate.name.clone(),
            key: self.gate.spec.taint.key.clone(),
            effect: self.gate.spec.taint.effect.as_str().to_owned(),
            state,
            origin,
            cause,
            boot: short(&self.facts().boot_id),
            machine: short(&self.facts().machine_id),
            generation: self.gate.generation,
            time: self.node.now,
            // Of another machine, nothing is known yet.
            late: cause != Cause::Replaced && self.node.record.is_some_and(|before| before.late),
        }
    }

    /// Decides whether the gate holds or releases the node.
    pub fn judge(&self) -> Judgement {
        let mut judgement = self.decide();
        judgement.clock.passing_since = self.finding.verdict.passes().then(|| self.clock.passing_since.unwrap_or(self.node.now));
        judgement.clock.failing_since =
            matches!(self.finding.verdict, RequirementVerdict::Unmet(_)).then(|| self.clock.failing_since.unwrap_or(self.node.now));
        judgement.clock.idle = self.clock.idle;
        judgement.clock.put_back_at = judgement.clock.put_back_at.or(self.clock.put_back_at);
        judgement.recheck_at = [judgement.recheck_at, self.finding.recheck_at].into_iter().flatten().min();
        judgement
    }

    fn decide(&self) -> Judgement {
        if self.gate.spec.dry_run && !self.gate.deleting { self.try_out() } else { self.decide_in_earnest() }
    }

    /// A dry run writes nothing, and takes nothing from what was there before it; what it would have written is remembered instead.
    fn try_out(&self) -> Judgement {
        let remembered = self.clock.trial.clone();
        let node = Subject { record: remembered.as_ref().or(self.node.record), ..self.node };
        let trial = JudgedNode { node, clock: self.clock.clone(), ..*self }.decide_in_earnest();
        let held = trial.record.as_ref().is_some_and(Record::is_held);
        Judgement {
            record: self.node.record.cloned(),
            claims: self.node.record.is_some_and(Record::is_held) && self.has_taint(),
            would_taint: held && !self.has_taint(),
            would_release: trial.lets_go && self.has_taint(),
            lets_go: false,
            happened: None,
            clock: GateClock { trial: trial.record, put_back_at: trial.clock.put_back_at, ..GateClock::default() },
            ..trial
        }
    }

    fn decide_in_earnest(&self) -> Judgement {
        let selected = self.gate.selects(self.facts());
        if self.gate.deleting || !selected || !self.enforced {
            return self.leave(selected);
        }
        match self.node.record {
            None => self.first_sight(),
            Some(record) if record.is_held() => self.held(record),
            Some(record) => self.released(record),
        }
    }

    /// The gate has nothing more to say about the node.
    fn leave(&self, selected: bool) -> Judgement {
        if selected && !self.gate.deleting && self.node.record.is_some_and(|record| !record.is_held()) {
            // Not enforced for a while: what has passed is not to pass again.
            return Judgement { record: self.node.record.cloned(), ..Judgement::default() };
        }
        let removes = self.gate.spec.deletion_policy == DeletionPolicy::RemoveTaints;
        let lets_go = match self.node.record {
            // Put there at its creation, and not seen before the gate went.
            None => self.gate.deleting && self.enforced && selected && removes && !self.gate.spec.dry_run && self.has_taint(),
            Some(record) if !record.is_held() => false,
            Some(_) if self.gate.deleting => removes,
            Some(record) => record.origin == RecordOrigin::Applied || removes,
        };
        // Nobody has seen that the node is ready.
        let happened = (lets_go && self.has_taint()).then_some(Happened::LetGo);
        Judgement { lets_go, happened, ..Judgement::default() }
    }

    fn first_sight(&self) -> Judgement {
        if self.has_taint() {
            let adopted = self.record(RecordState::Held, self.origin(), Cause::Fresh);
            let next = self.held(&adopted);
            // Released in the same write, it was never held.
            let happened = next.happened.or(Some(Happened::Adopted));
            return Judgement { happened, ..next };
        }
        let passed =
            || Judgement { record: Some(self.record(RecordState::Released, RecordOrigin::Applied, Cause::Fresh)), ..Judgement::default() };
        let completed = self.gate.completion_annotation.as_ref().is_some_and(|key| self.facts().annotations.contains_key(key));
        // Where others have not finished the node, a DaemonSet may not be meant for it only as long as their taints are there.
        if completed || self.finding.verdict.passes() && !self.is_unfinished() {
            return passed();
        }
        // What cannot be seen is no reason to touch a node that works, also one that came while nobody looked.
        let unseen = matches!(self.finding.verdict, RequirementVerdict::NoData(_));
        if self.node.is_new {
            return if unseen && in_force::is_up(self.facts()) { Judgement::default() } else { self.hold(Cause::Fresh) };
        }
        match (self.gate.spec.existing_nodes(), self.clock.idle) {
            (ExistingNodes::Grandfather, _) | (ExistingNodes::GateIfIdle, Some(false)) => passed(),
            (ExistingNodes::GateIfIdle, None) => Judgement { asks_whether_idle: true, ..Judgement::default() },
            (ExistingNodes::Gate, _) if unseen => Judgement::default(),
            // It has worked so far as one that has passed.
            (ExistingNodes::Gate, _) if self.gate.spec.mode == Mode::Continuous => self.fails(Judgement::default()),
            (ExistingNodes::Gate, _) | (ExistingNodes::GateIfIdle, Some(true)) => self.hold(Cause::Fresh),
        }
    }

    /// Holds the node: puts the taint on it, unless the taint would evict pods that the gate waits for.
    fn hold(&self, cause: Cause) -> Judgement {
        if self.finding.evicts.is_some() && !self.has_taint() {
            return Judgement { record: self.node.record.cloned(), spares: true, ..Judgement::default() };
        }
        let late = cause == Cause::Fresh && self.node.is_new;
        let happened = if self.has_taint() { Happened::Adopted } else { Happened::Added { late } };
        let mut record = self.record(RecordState::Held, self.origin(), cause);
        record.late |= happened == Happened::Added { late: true };
        Judgement {
            record: Some(record),
            claims: true,
            happened: Some(happened),
            recheck_at: self.timeout().map(|after| self.node.now.saturating_add(after)),
            ..Judgement::default()
        }
    }

    fn timeout(&self) -> Option<i64> {
        self.gate.spec.release.as_ref().and_then(|release| release.timeout.as_ref()).map(|timeout| seconds(Some(&timeout.after), 0))
    }

    fn held(&self, record: &Record) -> Judgement {
        let now = self.node.now;
        let release = self.gate.spec.release.as_ref();
        let too_long = self.timeout().map(|after| self.node.since(record).saturating_add(after));
        let stuck = too_long.is_some_and(|at| at <= now);
        let mut recheck_at = too_long.filter(|at| *at > now);
        let mut why = None;
        if self.finding.verdict.passes() {
            let stable = seconds(release.and_then(|release| release.stable_for.as_ref()), 0);
            let least = seconds(release.and_then(|release| release.min_hold.as_ref()), 0);
            let due = self.clock.passing_since.unwrap_or(now).saturating_add(stable).max(self.node.since(record).saturating_add(least));
            if due > now {
                recheck_at = [recheck_at, Some(due)].into_iter().flatten().min();
            } else if !self.is_unfinished() {
                why = Some(Happened::Removed);
            }
        } else if stuck
            && !self.is_unfinished()
            && release.and_then(|release| release.timeout.as_ref()).is_some_and(|timeout| timeout.action == TimeoutAction::Release)
        {
            why = Some(Happened::TimedOut);
        }
        if why.is_some() {
            let cause = if why == Some(Happened::TimedOut) { Cause::TimedOut } else { record.cause };
            let record = self.record(RecordState::Released, record.origin, cause);
            return Judgement { record: Some(record), lets_go: true, happened: why, ..Judgement::default() };
        }
        let held = Judgement { record: Some(record.clone()), claims: true, stuck, recheck_at, ..Judgement::default() };
        match (self.gate.has_taint(&record.key, &record.effect), self.has_taint()) {
            (true, true) => held,
            (true, false) => self.put_back(held),
            (false, _) => self.hold_by_another(record, held),
        }
    }

    /// The gate has another taint than when the node was held: that comes, and the former one goes with the same write.
    fn hold_by_another(&self, record: &Record, held: Judgement) -> Judgement {
        if self.finding.evicts.is_some() && !self.has_taint() {
            return Judgement { claims: false, spares: true, ..held };
        }
        let happened = if self.has_taint() { Happened::Adopted } else { Happened::Added { late: false } };
        let Record { key, effect, origin, .. } = self.record(RecordState::Held, self.origin(), record.cause);
        Judgement { record: Some(Record { key, effect, origin, ..record.clone() }), happened: Some(happened), ..held }
    }

    /// Somebody took the taint away.
    fn put_back(&self, held: Judgement) -> Judgement {
        if self.finding.evicts.is_some() {
            return Judgement { claims: false, spares: true, ..held };
        }
        let again = self.clock.put_back_at.map_or(self.node.now, |at| at.saturating_add(REASSERT_EVERY));
        if again > self.node.now {
            let recheck_at = [held.recheck_at, Some(again)].into_iter().flatten().min();
            return Judgement { claims: false, recheck_at, ..held };
        }
        let clock = GateClock { put_back_at: Some(self.node.now), ..GateClock::default() };
        Judgement { happened: Some(Happened::PutBack), clock, ..held }
    }

    /// Taints of others say that they have not finished the node.
    fn is_unfinished(&self) -> bool {
        let given = self.gate.spec.release.as_ref().and_then(|release| release.wait_for_taints_gone.as_ref());
        self.facts().taints.iter().any(|taint| match given {
            Some(keys) => keys.contains(&taint.key),
            None => UNFINISHED.contains(&taint.key.as_str()),
        })
    }

    fn released(&self, record: &Record) -> Judgement {
        let kept = Judgement { record: Some(record.clone()), ..Judgement::default() };
        match self.regates(record) {
            // It has passed what was asked before, and what is asked now cannot be seen.
            Some(Cause::Generation) if matches!(self.finding.verdict, RequirementVerdict::NoData(_)) => return kept,
            // Readiness that was seen before another start says nothing.
            Some(cause) if cause != Cause::Generation || !self.finding.verdict.passes() => return self.hold(cause),
            Some(_) => {
                let record = self.record(RecordState::Released, record.origin, record.cause);
                return Judgement { record: Some(record), lets_go: self.has_taint(), ..kept };
            }
            None => {}
        }
        let was_given_up = record.cause == Cause::TimedOut;
        if self.finding.verdict.passes() {
            // Back although the node has passed: a node group's manager or Karpenter put it on once more.
            let back = self.has_taint();
            let record = if was_given_up { self.record(RecordState::Released, record.origin, Cause::Fresh) } else { record.clone() };
            return Judgement { record: Some(record), lets_go: back, happened: back.then_some(Happened::Removed), ..kept };
        }
        if was_given_up {
            // Held once more it would only be given up once more.
            return kept;
        }
        if self.gate.spec.mode == Mode::Bootstrap || !matches!(self.finding.verdict, RequirementVerdict::Unmet(_)) {
            return kept;
        }
        self.fails(kept)
    }

    /// A node that works so far does not meet the requirements.
    fn fails(&self, kept: Judgement) -> Judgement {
        if self.finding.planned {
            return self.hold(Cause::Planned);
        }
        let failing_for = self.gate.spec.retaint.as_ref().and_then(|retaint| retaint.failing_for.as_ref());
        let due = self.clock.failing_since.unwrap_or(self.node.now).saturating_add(seconds(failing_for, FAILING_FOR));
        if due > self.node.now {
            Judgement { recheck_at: Some(due), ..kept }
        } else if self.has_room || self.has_taint() || self.finding.evicts.is_some() {
            self.hold(Cause::Regression)
        } else {
            // Room comes with a release elsewhere, or with the minute.
            Judgement { no_room: true, recheck_at: Some(self.node.now.saturating_add(REASSERT_EVERY)), ..kept }
        }
    }

    /// Why a released node is a new one again.
    fn regates(&self, record: &Record) -> Option<Cause> {
        let differs = |before: &str, now: &str| !before.is_empty() && !now.is_empty() && before != short(now);
        self.gate.spec.regate_on.iter().find_map(|regate| match regate {
            Regate::Reboot => differs(&record.boot, &self.facts().boot_id).then_some(Cause::Reboot),
            Regate::Replaced => differs(&record.machine, &self.facts().machine_id).then_some(Cause::Replaced),
            Regate::Generation => (record.generation != self.gate.generation).then_some(Cause::Generation),
        })
    }
}

/// Rounded up, so that nothing comes early.
fn seconds(duration: Option<&Duration>, default: i64) -> i64 {
    duration.and_then(Duration::milliseconds).map_or(default, |milliseconds| milliseconds.saturating_add(999) / 1000)
}
