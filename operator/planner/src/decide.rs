//! The decision: one pass over one resource and all its nodes.

mod heard;
mod progress;
mod replace;
mod waits;

use crate::{
    blocked, deployment_writes,
    grants::{Blockers, GrantPlan, GrantRules},
    health_checker,
    in_place::{self, Progress, protocol::Move},
    mark_conflicts::MarkConflicts,
    node::{ManagedNode, again, cases, fits, give_up, is_free, is_kept, renew, set_free, turn_back},
    node_rights, node_writes,
    plan::{Action, Gauges, NodeProgress, Plan, Write},
    pre_pull, readiness,
    reason::{Reason, StepState},
    rebuild::{Rebuild, rebuild},
    render, replicas,
    revisions::{self, Targets},
    rollout_state,
    slots::{SlotPool, Wants},
    snapshot::{Snapshot, TEMPLATE},
    spec::{ResolvedSpec, SpecProblem},
    status,
    step::{EntryView, GrantView, NodeView, Step, StepView, TokenView, step},
    target::Stops,
    template_check,
};
use crds::{
    holders::{EntryPhase, Holders},
    ingress_daemon_set::OnDetachTimeout,
    ledger::{Annotation, Grant, GrantReason, Ledger},
    names,
    status::{IngressDaemonSetStatus, NodePhase},
    token::Phase,
};
use std::collections::BTreeMap;

pub(crate) use heard::LEAVES_AFTER;

/// Seconds after which an unchanged resource is looked at again.
const RESYNC: i64 = 300;
/// Seconds after which a refused template is looked at again.
const TRY_AGAIN: i64 = 10;

/// Decides what to do for one resource.
pub fn decide(snapshot: &Snapshot) -> Plan {
    let mut plan = Plan::default();
    plan.recheck(snapshot.now.saturating_add(RESYNC));
    if let Some(finalizers) = missing_finalizer(snapshot) {
        plan.actions.push(Action::SetFinalizers(finalizers));
        return plan;
    }
    let stored = snapshot.resource.ledger();
    let targets = Targets::of(snapshot).and_then(|targets| match refusal(snapshot, &targets.effective) {
        Some(refusal) => Err(vec![refusal]),
        None => Ok(targets),
    });
    if snapshot.refusals.contains_key(TEMPLATE) {
        plan.recheck(snapshot.now.saturating_add(TRY_AGAIN));
    }
    let (clocks, ledger) = snapshot.clocks.look(snapshot, targets.as_ref().ok().map(|targets| &targets.effective));
    plan.clocks = clocks;
    let mut pass = Pass::new(snapshot, &targets, ledger.clone(), plan);
    let cases = cases(snapshot, targets.as_ref().ok(), &ledger);
    match rebuild(snapshot, pass.settings, stored, &cases) {
        Rebuild::No => pass.rollout(&cases),
        Rebuild::Write(ledger) => {
            pass.ledger = *ledger;
            pass.hold_all(&cases);
        }
        Rebuild::Fence(fences) => {
            pass.plan.actions = fences;
            pass.hold_all(&cases);
        }
        Rebuild::Wait => pass.hold_all(&cases),
    }
    pass.finish(&cases)
}

/// Why a spec that is sound by itself is not carried out here.
fn refusal(snapshot: &Snapshot, settings: &ResolvedSpec) -> Option<SpecProblem> {
    // None of it is a reason to leave without detaching.
    if snapshot.resource.deleting {
        return None;
    }
    let unreadable = || {
        let why = snapshot.gates.unreadable.as_ref()?;
        let message =
            format!("NodeReadinessGates cannot be read, and what they mean for the pods is not known, so nothing is updated: {why}");
        Some(SpecProblem { reason: "GatesUnreadable", message })
    };
    node_rights::refused_mark(snapshot)
        .or_else(unreadable)
        .or_else(|| health_checker::port_conflict(snapshot, settings))
        .or_else(|| template_check::refusal(snapshot))
}

/// A status without what only counts seconds.
fn without_seconds(status: &IngressDaemonSetStatus) -> IngressDaemonSetStatus {
    IngressDaemonSetStatus { rollout: status.rollout.as_ref().map(Ledger::without_seconds), ..status.clone() }
}

/// Ours, before anything is made that it must clean up; the original's goes, it has no slash and its controller is gone.
fn missing_finalizer(snapshot: &Snapshot) -> Option<Vec<String>> {
    let resource = &snapshot.resource;
    let ours = resource.finalizers.iter().any(|finalizer| finalizer == names::FINALIZER);
    if resource.deleting || ours {
        return None;
    }
    let mut finalizers: Vec<_> =
        resource.finalizers.iter().filter(|finalizer| *finalizer != names::FINALIZER_OF_ORIGINAL).cloned().collect();
    finalizers.push(names::FINALIZER.to_owned());
    Some(finalizers)
}

/// The annotation to set: the grant's, or the one that a mark was found holding with.
fn node_mark(case: &ManagedNode<'_>, grant: &Grant) -> Option<Annotation> {
    let found = || case.entry.as_ref().map(|entry| Annotation { key: entry.key.clone(), value: entry.value.clone() });
    grant.marks.node.clone().or_else(found)
}

/// One decision under way.
pub(crate) struct Pass<'a> {
    pub(crate) snapshot: &'a Snapshot,
    targets: &'a Result<Targets, Vec<SpecProblem>>,
    /// The spec with the template of the rollout; what a single node is to run, its case says.
    pub(crate) settings: Option<&'a ResolvedSpec>,
    pub(crate) plan: Plan,
    ledger: Ledger,
    rivals: MarkConflicts<'a>,
    pub(crate) reserved: std::vec::IntoIter<u64>,
    pub(crate) unserved: u64,
    live_absent: Vec<String>,
    granted: Vec<String>,
    /// What holds back whole kinds of work.
    shut: Blockers,
    /// Slots held by grants, those of this pass included; one that is released is free at once, for it goes in the same write.
    room: SlotPool<'a>,
}

impl<'a> Pass<'a> {
    fn new(snapshot: &'a Snapshot, targets: &'a Result<Targets, Vec<SpecProblem>>, ledger: Ledger, plan: Plan) -> Self {
        let settings = targets.as_ref().ok().map(|targets| &targets.effective);
        Self {
            snapshot,
            targets,
            settings,
            plan,
            rivals: MarkConflicts::of(snapshot, settings, &ledger),
            ledger,
            reserved: snapshot.reserved.clone().into_iter(),
            unserved: 0,
            live_absent: Vec::new(),
            granted: Vec::new(),
            shut: Blockers::default(),
            room: SlotPool::default(),
        }
    }

    pub(crate) fn set(&mut self, node: &str, phase: NodePhase, reason: Reason) {
        self.plan.node_states.insert(node.to_owned(), NodeProgress { phase, reason, suspect: None });
    }

    fn hold_all(&mut self, cases: &[ManagedNode<'_>]) {
        for case in cases {
            self.set(case.name, NodePhase::Blocked, Reason::RebuildingLedger);
        }
    }

    /// Everything but the rebuilding of a lost ledger.
    fn rollout(&mut self, cases: &[ManagedNode<'a>]) {
        let graces: BTreeMap<&str, Option<Reason>> = cases.iter().map(|case| (case.name, self.grace(case))).collect();
        let policy = self.settings.map(|settings| settings.on_detach_timeout);
        self.shut.gates = Stops {
            paused: self.snapshot.resource.spec.paused,
            halted: policy == Some(OnDetachTimeout::Halt) && graces.values().any(|grace| *grace == Some(Reason::DetachTimeout)),
            ..Stops::default()
        };
        self.look_at_windows();
        let retried = self.judge(cases);
        self.room = match self.targets.as_ref().ok().zip(self.ledger.rollout_state.as_ref()) {
            Some((targets, rollout)) => SlotPool::of(&targets.effective, self.plan.sights.proof(targets, rollout, cases), cases),
            None => SlotPool::closed(cases),
        };
        for case in cases {
            self.in_place_condition(case);
            self.release_ownerless(case);
            if let Some(grant) = case.grant {
                // Nothing is begun anew behind a closed gate: what has not changed its pods goes on as it is.
                let may_begin = case.is_updated() || !self.shut.gates.shut(grant.kind);
                if retried.contains(case.name) && case.phase() != Some(Phase::Closed) && may_begin {
                    self.retarget(case, again(case, grant, self.snapshot.now));
                } else {
                    self.advance(case, graces.get(case.name).cloned().flatten());
                }
            }
            self.supply(case);
        }
        if let Some(settings) = self.settings {
            let rollout = self.ledger.rollout_state.as_ref();
            let terms = GrantRules {
                snapshot: self.snapshot,
                settings,
                targets: self.valid_targets(),
                rivals: &self.rivals,
                shut: &self.shut,
                rollout,
            };
            let admission = terms.admit(cases, &mut self.room);
            self.plan.actions.extend(admission.pulls.iter().cloned());
            self.grant(admission, cases);
            let over = pre_pull::over(self.snapshot, cases);
            self.plan.actions.extend(over);
            self.keep_time();
            health_checker::plan(self.snapshot, settings, &mut self.plan);
            if let Ok(targets) = self.targets
                && !self.snapshot.resource.deleting
            {
                revisions::record(self.snapshot, targets, &self.ledger, &mut self.plan);
            }
        } else {
            self.let_go_without_settings(cases);
            if !self.snapshot.resource.deleting {
                self.hold_for_spec(cases);
            }
        }
        self.ledger.next_id += self.unserved;
    }

    /// One step of a node that has a grant.
    fn advance(&mut self, case: &ManagedNode<'a>, grace: Option<Reason>) {
        let Some(grant) = case.grant else { return };
        if rollout_state::is_released(self.snapshot, case, grant)
            && !grant.released
            && !matches!(grant.kind, GrantReason::Remove | GrantReason::Drain)
        {
            self.note_failure(case, rollout_state::released(self.snapshot, case));
            return self.retarget(case, set_free(case, grant));
        }
        let timed_out =
            grace == Some(Reason::DetachTimeout) && !matches!(grant.kind, GrantReason::Abort | GrantReason::Remove | GrantReason::Drain);
        if let Some(settings) = case.settings.filter(|settings| timed_out && settings.on_detach_timeout == OnDetachTimeout::Abort) {
            self.note_failure(case, rollout_state::failure(self.snapshot, case, Reason::DetachTimeout.word()));
            return self.retarget(case, give_up(case, grant, &settings.revision));
        }
        let gates = case.gates(self.shut.gates);
        let fit = fits(case, grant, gates, self.snapshot.now);
        let soak = self.soak(case, grant).filter(|_| !grant.released);
        if fit.is_ok() && self.is_refused_in_place(case, grant) {
            return self.retarget(case, turn_back(case, grant));
        }
        let progress = self.progress(case, grant);
        let view = StepView {
            wanted: fit.is_ok(),
            graced: grace.is_none(),
            soaked: soak.is_none(),
            pauses: in_place::pauses(case, grant, self.valid_targets()),
            replaced: progress.as_ref().is_some_and(|progress| matches!(progress.moves[..], [Move::Finish { .. }])),
            ..self.view(case, grant)
        };
        let next = step(&view);
        if let Some(reason) = self.untainted(case, grant, next) {
            return self.set(case.name, NodePhase::Granted, reason);
        }
        let given_up = matches!(next, Step::Release { .. }) && is_kept(case, grant, self.snapshot.now);
        if given_up {
            return self.set(case.name, NodePhase::Blocked, Reason::GivenUp);
        }
        if let Some(reason) = self.unheard(case, grant, next) {
            return self.set(case.name, NodePhase::Blocked, reason);
        }
        match next {
            Step::Claim | Step::Pause | Step::Update | Step::Close | Step::DeleteDeployment => {
                self.write_deployment(case, grant, next, progress.as_ref());
            }
            Step::Replace => {
                if let Some(progress) = progress {
                    self.replace(case, grant, &progress);
                }
            }
            Step::Detach | Step::Unmark | Step::RemoveEntry | Step::RemoveMember => self.write_node(case, grant, next),
            Step::Release { live } => {
                if live {
                    self.live_absent.push(self.deployment_name(case.name));
                } else {
                    self.room.give_back(case);
                }
                self.ledger.grants.remove(case.name);
            }
            Step::Retarget => {
                self.retarget(case, fit.err().map_or_else(|| renew(case, grant, gates), |next| *next));
            }
            Step::AwaitDeployment => self.set(case.name, NodePhase::Blocked, Reason::PodsTerminating),
            Step::AwaitGrace => self.set(case.name, NodePhase::Detaching, grace.unwrap_or(Reason::Granted)),
            Step::AwaitComplete => {
                self.delete_stragglers(case);
                if grant.kind == GrantReason::Drain {
                    return self.hold_drained(case);
                }
                if let Some(failure) = self.failure(case) {
                    let reason = Reason::failed(&failure.reason, self.incomplete(case, grant));
                    return self.set(case.name, NodePhase::Failed, reason);
                }
                let phase = match grant.kind {
                    GrantReason::Remove => NodePhase::Removing,
                    _ if case.phase() == Some(Phase::Degrading) => NodePhase::Degrading,
                    _ => NodePhase::Updating,
                };
                let why = if case.is_lost() { Reason::NodeNotReady } else { self.incomplete(case, grant) };
                self.set(case.name, phase, why);
            }
            Step::AwaitSoak => self.set(case.name, NodePhase::Attaching, soak.unwrap_or(Reason::Granted)),
        }
    }

    /// Without what is judged apart.
    fn view(&self, case: &ManagedNode<'_>, grant: &Grant) -> StepView {
        let node = match case.node {
            None => NodeView::Absent,
            Some(node) if node.uid == grant.node_uid => NodeView::Same,
            Some(_) => NodeView::Replaced,
        };
        // Somebody took the user's key off the Node before the pods changed: what our entry says is no longer so.
        let unheld = case.entry.as_ref().is_some_and(|entry| {
            entry.id == grant.id && case.holds_node() && !case.is_updated() && case.node.is_some_and(|node| node.mark(&entry.key).is_none())
        });
        // A node that leaves must not wait for somebody to mend its annotation: its health check takes it out.
        let rivalled = || case.holders.is_err() || !case.holds_node() && self.rivals.on(case, &grant.marks).is_some();
        let forbidden = |mark: &Annotation| !self.snapshot.node_rights.allows_mark(&self.snapshot.resource.namespace, mark);
        let unmarkable = grant.marks.node.as_ref().is_some_and(|mark| forbidden(mark) || grant.kind == GrantReason::Remove && rivalled());
        StepView {
            grant: GrantView {
                id: grant.id,
                kind: grant.kind,
                deployment_mark: grant.marks.deployment || unmarkable,
                node_mark: grant.marks.node.is_some() && !unmarkable,
            },
            token: case.deployment.map(|_| {
                case.token
                    .as_ref()
                    .map_or(TokenView { id: 0, phase: Phase::Closed }, |token| TokenView { id: token.id, phase: token.phase })
            }),
            entry: case.entry.as_ref().map(|entry| EntryView {
                id: entry.id,
                phase: if unheld { EntryPhase::Attached } else { entry.phase },
                other_key: grant.marks.node.as_ref().is_some_and(|mark| mark.key != entry.key),
            }),
            node,
            wanted: false,
            pauses: false,
            replaced: false,
            complete: grant.released || case.is_complete(grant),
            graced: false,
            soaked: false,
            pods_left: case.orphaned || case.pods.iter().any(|pod| !pod.ended),
            member: case.member.is_some(),
        }
    }

    fn write_deployment(&mut self, case: &ManagedNode<'a>, grant: &Grant, next: Step, progress: Option<&Progress<'a>>) {
        let Some(deployment) = case.deployment else { return };
        if let Some(message) = self.snapshot.refusals.get(case.name) {
            self.plan.recheck(self.snapshot.now.saturating_add(5));
            return self.set(case.name, NodePhase::Blocked, Reason::Refused(message.clone()));
        }
        let patch = |patch, write| Action::PatchDeployment { node: case.name.to_owned(), name: deployment.name.clone(), patch, write };
        let (action, phase) = match next {
            Step::Claim => {
                (patch(deployment_writes::claim(self.snapshot, case.settings, case, deployment, grant), Write::Claim), NodePhase::Granted)
            }
            Step::Pause => (patch(deployment_writes::pause(self.snapshot, case, deployment, grant), Write::Pause), NodePhase::Detached),
            Step::Update => {
                let resumed = progress.and_then(|progress| self.unpause(case, grant, deployment, progress));
                if let Some(resumed) = resumed {
                    (patch(resumed, Write::Resume), NodePhase::UpdatingInPlace)
                } else if case.is_in_place() && case.settings.is_none() {
                    // The pause cannot end in another way without a template that is wanted.
                    return self.set(case.name, NodePhase::Blocked, Reason::InvalidSpec);
                } else {
                    let write = self.recreates(case, grant, progress).map_or(Write::Update, Write::Recreate);
                    (patch(deployment_writes::update(self.snapshot, case.settings, case, deployment, grant), write), NodePhase::Detached)
                }
            }
            Step::Close => {
                (patch(deployment_writes::close(self.snapshot, case.settings, case, deployment, grant), Write::Close), NodePhase::Attaching)
            }
            _ => (
                Action::DeleteDeployment {
                    node: case.name.to_owned(),
                    name: deployment.name.clone(),
                    uid: deployment.uid.clone(),
                    resource_version: deployment.resource_version.clone(),
                },
                NodePhase::Removing,
            ),
        };
        self.plan.actions.push(action);
        self.set(case.name, phase, Reason::Writing);
    }

    fn write_node(&mut self, case: &ManagedNode<'_>, grant: &Grant, next: Step) {
        let Some(node) = case.node else { return };
        let nobody = Holders::new();
        let holders = match &case.holders {
            Ok(holders) => holders,
            Err(_) if next == Step::RemoveMember => &nobody,
            Err(error) => return self.set(case.name, NodePhase::Blocked, Reason::HoldersUnreadable(error.clone())),
        };
        let (uid8, now) = (self.snapshot.resource.uid8(), self.snapshot.now);
        let (patch, write, phase) = match next {
            Step::Detach => {
                if let Some(other) = self.rivals.on(case, &grant.marks) {
                    return self.set(case.name, NodePhase::Blocked, Reason::DetachAnnotationConflict(other));
                }
                if node_writes::is_full(holders, uid8) {
                    return self.set(case.name, NodePhase::Blocked, Reason::HoldersFull);
                }
                let Some(mark) = node_mark(case, grant) else { return };
                (node_writes::detach(node, holders, uid8, grant.id, &mark, now), Write::Detach, NodePhase::Granted)
            }
            Step::Unmark => (node_writes::unmark(node, holders, uid8, grant.id, now), Write::Unmark, NodePhase::Attaching),
            Step::RemoveEntry => (node_writes::remove_entry(node, holders, uid8), Write::Clean, NodePhase::Removing),
            _ => (node_writes::member(node, uid8, None), Write::Clean, NodePhase::Removing),
        };
        let live_absent = (next == Step::RemoveMember).then(|| self.deployment_name(case.name));
        self.plan.actions.push(Action::PatchNode { node: case.name.to_owned(), patch, write, live_absent });
        self.set(case.name, phase, Reason::Writing);
    }

    /// A new id in the same slot.
    fn retarget(&mut self, case: &ManagedNode<'_>, next: Grant) {
        if case.grant.is_some_and(is_free) && !is_free(&next) {
            // It began to serve after its removal was granted for nothing, and takes no place yet.
            let Wants { domain, available, suspect, .. } = self.room.wants(case);
            let missed = available && next.kind != GrantReason::Drain && !case.is_draining();
            let lacks = self.room.lacks(Wants { domain, down: true, available: missed, ..Wants::default() });
            if let Some(reason) = lacks.filter(|_| !self.snapshot.resource.deleting) {
                return self.set(case.name, NodePhase::Waiting, reason);
            }
            self.room.take(Wants { domain, available, suspect, leaves: !case.chosen, ..Wants::default() });
        }
        let id = self.ledger.next_id;
        self.ledger.next_id += 1;
        self.ledger.grants.insert(case.name.to_owned(), Grant { id, ..next });
        self.set(case.name, NodePhase::Granted, Reason::Writing);
    }

    fn grant(&mut self, admission: GrantPlan, cases: &[ManagedNode<'_>]) {
        self.plan.gauges.budget = self.room.budget;
        for (node, grant) in admission.admitted {
            let id = self.ledger.next_id;
            self.ledger.next_id += 1;
            self.ledger.grants.insert(node.clone(), Grant { id, ..grant });
            self.set(&node, NodePhase::Granted, Reason::Granted);
            self.granted.push(node);
        }
        for (node, reason) in admission.waiting {
            self.set(&node, NodePhase::Waiting, reason);
        }
        self.hold_rejected(cases);
        for case in cases.iter().filter(|case| case.chosen && case.settled) {
            let busy = self.ledger.grants.contains_key(case.name) || self.plan.node_states.contains_key(case.name);
            if let Some(reason) = case.held_back.clone().filter(|_| !busy) {
                self.set(case.name, NodePhase::Waiting, reason);
            }
        }
        let Some(settings) = self.settings else { return };
        for case in cases.iter().filter(|case| case.chosen && case.grant.is_none()) {
            let Some(deployment) = case.deployment.filter(|_| !self.plan.node_states.contains_key(case.name)) else { continue };
            let trouble = readiness::trouble(case.pods);
            if !case.is_unavailable() {
                let suspect = self.suspicion(case, settings, true).filter(|_| case.settled);
                match (case.held_back.clone(), suspect) {
                    (None, Some(suspect)) => self.hold_attached(case, settings, NodePhase::Proving, suspect),
                    _ if case.settled => {}
                    _ if !case.is_ready() => self.set(case.name, NodePhase::Updating, Reason::PodsTerminating),
                    (Some(reason), _) => self.set(case.name, NodePhase::Waiting, reason),
                    (None, _) => self.set(case.name, NodePhase::Updating, Reason::PodsTooYoung),
                }
                continue;
            }
            let by_others = case.taken_out().filter(|_| case.is_ready()).map(|key| Reason::TakenOut(key.to_owned()));
            let unready = || {
                if case.is_lost() {
                    return Reason::NodeNotReady;
                }
                Reason::PodsNotReady { ready: deployment.status.ready, wanted: settings.pods_per_node, trouble }
            };
            self.hold_attached(case, settings, NodePhase::Unavailable, by_others.unwrap_or_else(unready));
            let suspect = self.suspicion(case, settings, false);
            self.plan.node_states.entry(case.name.to_owned()).and_modify(|state| state.suspect = suspect);
        }
    }

    /// While the spec is not valid: what leaves is taken out by the mark that every health checker knows. Nothing else is begun.
    fn let_go_without_settings(&mut self, cases: &[ManagedNode<'_>]) {
        for (case, kind) in cases.iter().filter(|case| case.grant.is_none()).filter_map(|case| Some((case, case.need(self.snapshot.now)?)))
        {
            let id = self.ledger.next_id;
            self.ledger.next_id += 1;
            let node_uid = case.node.map(|node| node.uid.clone()).unwrap_or_default();
            let marks = case.removal_marks_without_settings();
            let grant = Grant { id, node_uid, kind, marks, granted_at: self.snapshot.now, ..Grant::default() };
            self.ledger.grants.insert(case.name.to_owned(), grant);
            self.set(case.name, NodePhase::Granted, Reason::Granted);
            self.granted.push(case.name.to_owned());
        }
    }

    pub(crate) fn deployment_name(&self, node: &str) -> String {
        match self.snapshot.deployments.get(node) {
            Some(deployment) => deployment.name.clone(),
            None => render::object_name(&self.snapshot.resource.name, node, &self.snapshot.taken_names),
        }
    }

    /// What the present step of the canary waits for.
    fn step(&self, cases: &[ManagedNode<'_>]) -> Option<Reason> {
        let targets = self.valid_targets().filter(|_| cases.iter().any(|case| case.chosen))?;
        let step = rollout_state::step_state(self.snapshot, targets, rollout_state::stored(targets, &self.ledger), cases)?;
        Some(self.shut.halt.as_ref().map_or(step, rollout_state::Halt::reason))
    }

    /// Status, ledger, finalizer, and when to look again.
    fn finish(mut self, cases: &[ManagedNode<'_>]) -> Plan {
        self.plan.step = self.step(cases);
        for reason in self.plan.node_states.values().map(|state| &state.reason).chain(&self.plan.step) {
            let (Reason::GracePeriod { until: at }
            | Reason::WaitingForTaint { until: at, .. }
            | Reason::Step { state: StepState::Soaking { until: at }, .. }
            | Reason::OutsideWindow { opens: Some(at) }
            | Reason::WaitingForDetacher { until: at }
            | Reason::AttachSoak { until: at }
            | Reason::AdmissionRejected { until: at, .. }) = *reason
            else {
                continue;
            };
            self.plan.recheck_at = self.plan.recheck_at.map(|earlier| earlier.min(at.max(self.snapshot.now.saturating_add(1))));
        }
        let deleting = self.snapshot.resource.deleting;
        if deleting && cases.is_empty() && self.ledger.grants.is_empty() {
            health_checker::clean(self.snapshot, &mut self.plan);
            let finalizers =
                self.snapshot.resource.finalizers.iter().filter(|name| *name != names::FINALIZER && *name != names::FINALIZER_OF_ORIGINAL);
            self.plan.actions.push(Action::SetFinalizers(finalizers.cloned().collect()));
            return self.plan;
        }
        if let Some(settings) = self.settings.filter(|_| self.snapshot.gates.watched) {
            self.plan.replicas = Some(replicas::of(self.snapshot, settings, cases));
        }
        if let Some(settings) = self.settings.filter(|_| !deleting) {
            self.ledger.served_ports = health_checker::served_ports(self.snapshot, settings);
        }
        self.plan.gauges = Gauges { grants: self.ledger.grants.len(), ..self.plan.gauges };
        let stored = self.snapshot.resource.status.clone().unwrap_or_default();
        let urgent = stored.rollout.as_ref().is_none_or(|stored| !stored.equals_ignoring_seconds(&self.ledger));
        let first = self.ledger.next_id - self.unserved.min(self.ledger.next_id);
        let reserve = (first..self.ledger.next_id).collect();
        self.plan.status = status::status(self.snapshot, self.targets, cases, &self.plan, self.ledger);
        let eta = self.plan.status.rollout.as_ref().and_then(|ledger| blocked::eta(&self.plan.status.nodes, ledger, self.snapshot.now));
        if let Some(eta) = eta.filter(|_| self.plan.status.eta.is_some()) {
            self.plan.recheck(eta);
        }
        let known = stored.rollout.clone().unwrap_or_default();
        let far_ahead = self.plan.status.rollout.as_ref().is_some_and(|ledger| self.plan.clocks.is_far_ahead(&known, ledger));
        if far_ahead || without_seconds(&self.plan.status) != without_seconds(&stored) {
            self.plan.actions.push(Action::WriteStatus {
                status: Box::new(self.plan.status.clone()),
                urgent,
                live_absent: self.live_absent,
                reserve,
                granted: self.granted,
            });
        }
        self.plan
    }
}
