//! The decision: one pass over one resource and all its nodes.
//!
//! It joins the rules of the other modules into one plan: each node's next step, then new grants, then the status. The snapshot
//! comes in, the plan goes out; rules of their own belong to the modules below.

mod direct_changes;
mod heard;
mod progress;
mod replace;
mod waits;

use crate::{
    facts::Withheld,
    node::{ManagedNode, again, fits, give_up, is_free, is_kept, renew, replicas, set_free, turn_back},
    objects::{
        deployment_writes, health_checker,
        in_place::{self, Progress, moves::Move},
        node_writes, pre_pull, render,
        revisions::{self, Targets},
    },
    plan::{Action, Gauges, NodeProgress, Plan, Write},
    protocol::{
        step::{EntryView, GrantView, NodeView, Step, StepView, TokenView, step},
        target::Stops,
    },
    reason::{NodeObject, Reason, StepState},
    rollout::{
        grants::{Blockers, GrantPlan, GrantRules},
        managed_nodes::managed_nodes,
        mark_conflicts::MarkConflicts,
        rebuild::{Rebuild, rebuild},
        rollout_state::{self, Halt},
        slots::{SlotPool, Wants},
        template_check,
    },
    snapshot::{REFUSED_AGAIN, Snapshot},
    spec::{ResolvedSpec, SpecProblem, claims, node_rights},
    status::{self, blocked},
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
    if snapshot.template_refusal.is_some() {
        plan.recheck(snapshot.now.saturating_add(TRY_AGAIN));
    }
    let (clocks, ledger) = snapshot.clocks.look(snapshot, targets.as_ref().ok().map(|targets| &targets.effective));
    plan.clocks = clocks;
    let mut pass = Pass::new(snapshot, &targets, ledger.clone(), plan);
    let managed_nodes = managed_nodes(snapshot, targets.as_ref().ok(), &ledger);
    match rebuild(snapshot, pass.settings, stored, &managed_nodes) {
        Rebuild::No => pass.rollout(&managed_nodes),
        Rebuild::Write(ledger) => {
            pass.ledger = *ledger;
            pass.hold_all(&managed_nodes);
        }
        Rebuild::Fence(fences) => {
            pass.plan.actions = fences;
            pass.hold_all(&managed_nodes);
        }
        Rebuild::Wait => pass.hold_all(&managed_nodes),
    }
    pass.finish(&managed_nodes)
}

/// Why a spec that is sound by itself is not carried out here.
fn refusal(snapshot: &Snapshot, settings: &ResolvedSpec) -> Option<SpecProblem> {
    // None of it is a reason to leave without detaching.
    if snapshot.resource.deleting {
        return None;
    }
    let unreadable = || {
        let why = snapshot.gates.unreadable.as_ref()?;
        let message = format!("the operator updates nothing until it can read {why}");
        Some(SpecProblem { reason: "GatesUnreadable", message })
    };
    node_rights::refused_mark(&snapshot.node_rights, &snapshot.resource)
        .or_else(unreadable)
        .or_else(|| health_checker::port_conflict(snapshot, settings))
        .or_else(|| template_check::refusal(snapshot))
}

/// A status without what only counts seconds.
fn without_seconds(status: &IngressDaemonSetStatus) -> IngressDaemonSetStatus {
    IngressDaemonSetStatus { rollout: status.rollout.as_ref().map(Ledger::without_seconds), ..status.clone() }
}

/// The finalizers with ours, which comes before any object that is to be cleaned up; without the original's, whose controller is gone.
/// Nothing if the resource has ours, or if it was always one too many.
fn missing_finalizer(snapshot: &Snapshot) -> Option<Vec<String>> {
    let resource = &snapshot.resource;
    if resource.deleting || resource.has_finalizer() || never_had_a_place(snapshot) {
        return None;
    }
    let mut finalizers: Vec<_> =
        resource.finalizers.iter().filter(|finalizer| *finalizer != names::FINALIZER_OF_ORIGINAL).cloned().collect();
    finalizers.push(names::FINALIZER.to_owned());
    Some(finalizers)
}

/// It is one too many of its namespace and always was, so that nothing of it is anywhere. What the operator has recorded says so: who may
/// edit resources cannot write their status, and could remove the finalizer.
fn never_had_a_place(snapshot: &Snapshot) -> bool {
    let resource = &snapshot.resource;
    let is_recorded = resource.last_replicas().is_some() || resource.ledger().is_some_and(|ledger| !ledger.grants.is_empty());
    let has_objects = !snapshot.deployments.is_empty() || snapshot.daemon_sets.iter().any(|set| set.owned);
    resource.withheld == Some(Withheld::TooMany) && !resource.has_finalizer() && !is_recorded && !has_objects
}

/// The annotation to set: the grant's, or the one that a mark was found holding with.
fn node_mark(managed: &ManagedNode<'_>, grant: &Grant) -> Option<Annotation> {
    let found = || managed.entry.as_ref().map(|entry| Annotation { key: entry.key.clone(), value: entry.value.clone() });
    grant.marks.node.clone().or_else(found)
}

/// One decision under way.
pub(crate) struct Pass<'a> {
    pub(crate) snapshot: &'a Snapshot,
    targets: &'a Result<Targets, Vec<SpecProblem>>,
    /// The spec with the template of the rollout. [`ManagedNode::settings`] has the template that one node is to run.
    pub(crate) settings: Option<&'a ResolvedSpec>,
    pub(crate) plan: Plan,
    ledger: Ledger,
    mark_conflicts: MarkConflicts<'a>,
    pub(crate) reserved: std::vec::IntoIter<u64>,
    pub(crate) unserved: u64,
    live_absent: Vec<String>,
    granted: Vec<String>,
    /// What holds back whole kinds of work.
    blockers: Blockers,
    /// Slots held by grants, those of this pass included; one that is released is free at once, for it goes in the same write.
    slots: SlotPool<'a>,
}

impl<'a> Pass<'a> {
    fn new(snapshot: &'a Snapshot, targets: &'a Result<Targets, Vec<SpecProblem>>, ledger: Ledger, plan: Plan) -> Self {
        let settings = targets.as_ref().ok().map(|targets| &targets.effective);
        Self {
            snapshot,
            targets,
            settings,
            plan,
            mark_conflicts: MarkConflicts::of(snapshot, settings, &ledger),
            ledger,
            reserved: snapshot.reserved.clone().into_iter(),
            unserved: 0,
            live_absent: Vec::new(),
            granted: Vec::new(),
            blockers: Blockers::default(),
            slots: SlotPool::default(),
        }
    }

    pub(crate) fn set(&mut self, node: &str, phase: NodePhase, reason: Reason) {
        self.plan.node_states.insert(node.to_owned(), NodeProgress { phase, reason, suspect: None });
    }

    fn hold_all(&mut self, managed_nodes: &[ManagedNode<'_>]) {
        for managed in managed_nodes {
            self.set(managed.name, NodePhase::Blocked, Reason::RebuildingLedger);
        }
    }

    /// Everything but the rebuilding of a lost ledger.
    fn rollout(&mut self, managed_nodes: &[ManagedNode<'a>]) {
        let graces: BTreeMap<&str, Option<Reason>> = managed_nodes.iter().map(|managed| (managed.name, self.grace(managed))).collect();
        let policy = self.settings.map(|settings| settings.on_detach_timeout);
        self.blockers.stops = Stops {
            paused: self.snapshot.resource.spec.paused,
            halted: policy == Some(OnDetachTimeout::Halt) && graces.values().any(|grace| *grace == Some(Reason::DetachTimeout)),
            ..Stops::default()
        };
        self.look_at_windows();
        let retried = self.judge(managed_nodes);
        self.slots = match self.targets.as_ref().ok().zip(self.ledger.rollout_state.as_ref()) {
            Some((targets, rollout)) => {
                SlotPool::of(&targets.effective, self.plan.sights.proof(targets, rollout, managed_nodes), managed_nodes)
            }
            None => SlotPool::closed(managed_nodes),
        };
        for managed in managed_nodes {
            self.in_place_condition(managed);
            self.release_ownerless(managed);
            if let Some(grant) = managed.grant {
                // Nothing is begun anew outside of windows or while paused: what has not changed its pods goes on as it is.
                let may_begin = managed.is_updated() || !self.blockers.stops.stops(grant.kind);
                let is_retried = retried.contains(managed.name);
                if is_retried && managed.phase() != Some(Phase::Closed) && may_begin {
                    self.retarget(managed, again(managed, grant, self.snapshot.now));
                } else {
                    if let Some(given_up) = self.ledger.grants.get_mut(managed.name).filter(|_| is_retried) {
                        // It has its turn again, from the next pass on.
                        given_up.refused = None;
                    }
                    self.advance(managed, graces.get(managed.name).cloned().flatten());
                }
            }
            self.change_directly(managed);
        }
        if let Some(settings) = self.settings {
            let rollout = self.ledger.rollout_state.as_ref();
            let rules = GrantRules {
                snapshot: self.snapshot,
                settings,
                targets: self.valid_targets(),
                mark_conflicts: &self.mark_conflicts,
                blockers: &self.blockers,
                rollout,
            };
            let grant_plan = rules.admit(managed_nodes, &mut self.slots);
            self.plan.actions.extend(grant_plan.pulls.iter().cloned());
            self.grant(grant_plan, managed_nodes);
            let over = pre_pull::over(self.snapshot, managed_nodes);
            self.plan.actions.extend(over);
            if self.snapshot.refusals.contains_key(&NodeObject::PullPod) {
                self.plan.recheck(self.snapshot.now.saturating_add(REFUSED_AGAIN));
            }
            if let Some(at) = pre_pull::again_at(self.snapshot) {
                self.plan.recheck(at);
            }
            self.keep_time();
            health_checker::plan(self.snapshot, settings, &mut self.plan);
            if let Ok(targets) = self.targets
                && !self.snapshot.resource.deleting
            {
                revisions::record(self.snapshot, targets, &self.ledger, &mut self.plan);
            }
        } else {
            self.let_go_without_settings(managed_nodes);
            if !self.snapshot.resource.deleting {
                self.hold_for_spec(managed_nodes);
            }
        }
        self.ledger.next_id += self.unserved;
    }

    /// One step of a node that has a grant.
    fn advance(&mut self, managed: &ManagedNode<'a>, grace: Option<Reason>) {
        let Some(grant) = managed.grant else { return };
        if rollout_state::is_released(self.snapshot, managed, grant)
            && !grant.released
            && !matches!(grant.kind, GrantReason::Remove | GrantReason::Drain)
        {
            self.note_failure(managed, rollout_state::released(self.snapshot, managed));
            return self.retarget(managed, set_free(managed, grant));
        }
        let timed_out =
            grace == Some(Reason::DetachTimeout) && !matches!(grant.kind, GrantReason::Abort | GrantReason::Remove | GrantReason::Drain);
        if let Some(settings) = managed.settings.filter(|settings| timed_out && settings.on_detach_timeout == OnDetachTimeout::Abort) {
            self.note_failure(managed, rollout_state::failure(self.snapshot, managed, Reason::DetachTimeout.word()));
            return self.retarget(managed, give_up(managed, grant, &settings.revision));
        }
        let refused_in_place = self.is_refused_in_place(managed, grant);
        let stops = managed.stops(self.blockers.stops);
        // Once it has turned back it waits as if it were not its turn, and for its pods as in a pause.
        let waits = refused_in_place && managed.is_updated() && managed.need(self.snapshot.now) == Some(GrantReason::Update);
        let stops = Stops { closed: stops.closed || refused_in_place, paused: stops.paused || waits, ..stops };
        let fit = fits(managed, grant, stops, self.snapshot.now);
        let soak = self.soak(managed, grant).filter(|_| !grant.released);
        if fit.is_ok() && refused_in_place && grant.kind == GrantReason::Update {
            return self.retarget(managed, turn_back(managed, grant));
        }
        let progress = self.progress(managed, grant);
        let view = StepView {
            wanted: fit.is_ok(),
            graced: grace.is_none(),
            soaked: soak.is_none(),
            pauses: in_place::pauses(managed, grant, self.valid_targets()),
            replaced: progress.as_ref().is_some_and(|progress| matches!(progress.moves[..], [Move::Finish { .. }])),
            ..self.view(managed, grant)
        };
        let next = step(&view);
        if let Some(reason) = self.untainted(managed, grant, next) {
            return self.set(managed.name, NodePhase::Granted, reason);
        }
        let given_up = matches!(next, Step::Release { .. }) && is_kept(managed, grant, self.snapshot.now);
        if given_up {
            return self.set(managed.name, NodePhase::Blocked, Reason::DetachAborted);
        }
        if let Some(reason) = self.unheard(managed, grant, next) {
            return self.set(managed.name, NodePhase::Blocked, reason);
        }
        match next {
            Step::Claim | Step::Pause | Step::Update | Step::Close | Step::DeleteDeployment => {
                self.write_deployment(managed, grant, next, progress.as_ref());
            }
            Step::Replace => {
                if let Some(progress) = progress {
                    self.replace(managed, grant, &progress);
                }
            }
            Step::Detach | Step::Unmark | Step::RemoveEntry | Step::RemoveMember => self.write_node(managed, grant, next),
            Step::Release { live } => {
                if live {
                    self.live_absent.push(self.deployment_name(managed.name));
                } else {
                    self.slots.give_back(managed);
                }
                self.ledger.grants.remove(managed.name);
                // A node that has left is as good as one that was finished, where nothing but nodes that leave is under way.
                let rolls_out = self.valid_targets().is_some_and(|targets| targets.current.is_empty())
                    || self.ledger.grants.values().any(|other| !matches!(other.kind, GrantReason::Remove | GrantReason::Drain));
                if let Some(rollout) = self.ledger.rollout_state.as_mut().filter(|_| !managed.chosen && !rolls_out) {
                    rollout.idle = 0;
                }
            }
            Step::Retarget => {
                self.retarget(managed, fit.err().map_or_else(|| renew(managed, grant, stops), |next| *next));
            }
            Step::AwaitDeployment => self.set(managed.name, NodePhase::Blocked, Reason::PodsTerminating),
            Step::AwaitGrace => self.set(managed.name, NodePhase::Detaching, grace.unwrap_or(Reason::Granted)),
            Step::AwaitComplete => {
                self.delete_stragglers(managed);
                if grant.kind == GrantReason::Drain {
                    return self.hold_drained(managed);
                }
                if let Some(failure) = self.failure(managed) {
                    let reason = Reason::failed(&failure.reason, self.incomplete(managed, grant));
                    return self.set(managed.name, NodePhase::Failed, reason);
                }
                let phase = match grant.kind {
                    GrantReason::Remove => NodePhase::Removing,
                    _ if managed.phase() == Some(Phase::Degrading) => NodePhase::Degrading,
                    _ => NodePhase::Updating,
                };
                let why = if managed.is_lost() { Reason::NodeNotReady } else { self.incomplete(managed, grant) };
                self.set(managed.name, phase, why);
            }
            Step::AwaitSoak => self.set(managed.name, NodePhase::Attaching, soak.unwrap_or(Reason::Granted)),
        }
    }

    /// The node and its grant as the protocol reads them; evidence and waits are added where they are judged.
    fn view(&self, managed: &ManagedNode<'_>, grant: &Grant) -> StepView {
        let node = match managed.node {
            None => NodeView::Absent,
            Some(node) if node.uid == grant.node_uid => NodeView::Same,
            Some(_) => NodeView::Replaced,
        };
        // Somebody took the user's key off the Node before the pods changed: what our entry says is no longer so.
        let unheld = managed.entry.as_ref().is_some_and(|entry| {
            entry.id == grant.id
                && managed.holds_node()
                && !managed.is_updated()
                && managed.node.is_some_and(|node| node.mark(&entry.key).is_none())
        });
        // A node that leaves must not wait for somebody to mend its annotation: its health check takes it out.
        let rivalled = || managed.holders.is_err() || !managed.holds_node() && self.mark_conflicts.on(managed, &grant.marks).is_some();
        let forbidden = |mark: &Annotation| !self.snapshot.node_rights.allows_mark(&self.snapshot.resource.namespace, &mark.key);
        let unmarkable = grant.marks.node.as_ref().is_some_and(|mark| forbidden(mark) || grant.kind == GrantReason::Remove && rivalled());
        StepView {
            grant: GrantView {
                id: grant.id,
                kind: grant.kind,
                deployment_mark: grant.marks.deployment || unmarkable,
                node_mark: grant.marks.node.is_some() && !unmarkable,
            },
            token: managed.deployment.map(|_| {
                managed
                    .token
                    .as_ref()
                    .map_or(TokenView { id: 0, phase: Phase::Closed }, |token| TokenView { id: token.id, phase: token.phase })
            }),
            entry: managed.entry.as_ref().map(|entry| EntryView {
                id: entry.id,
                phase: if unheld { EntryPhase::Attached } else { entry.phase },
                other_key: grant.marks.node.as_ref().is_some_and(|mark| mark.key != entry.key),
            }),
            node,
            wanted: false,
            pauses: false,
            replaced: false,
            complete: grant.released || managed.is_complete(grant),
            graced: false,
            soaked: false,
            pods_left: managed.orphaned || managed.pods.iter().any(|pod| !pod.ended),
            member: managed.member.is_some(),
        }
    }

    fn write_deployment(&mut self, managed: &ManagedNode<'a>, grant: &Grant, next: Step, progress: Option<&Progress<'a>>) {
        let Some(deployment) = managed.deployment else { return };
        if let Some(reason) = self.refused(managed, NodeObject::Deployment) {
            return self.set(managed.name, NodePhase::Blocked, reason);
        }
        let patch = |patch, write| Action::PatchDeployment { node: managed.name.to_owned(), name: deployment.name.clone(), patch, write };
        let (action, phase) = match next {
            Step::Claim => (patch(deployment_writes::claim(self.snapshot, managed, deployment, grant), Write::Claim), NodePhase::Granted),
            Step::Pause => (patch(deployment_writes::pause(self.snapshot, managed, deployment, grant), Write::Pause), NodePhase::Detached),
            Step::Update => {
                let resumed = progress.and_then(|progress| self.unpause(managed, grant, deployment, progress));
                if let Some(resumed) = resumed {
                    (patch(resumed, Write::Resume), NodePhase::UpdatingInPlace)
                } else if managed.is_in_place() && managed.settings.is_none() {
                    // The pause cannot end in another way without a template that is wanted.
                    return self.set(managed.name, NodePhase::Blocked, Reason::InvalidSpec);
                } else {
                    let write = self.recreates(managed, grant, progress).map_or(Write::Update, Write::Recreate);
                    (patch(deployment_writes::update(self.snapshot, managed, deployment, grant), write), NodePhase::Detached)
                }
            }
            Step::Close => (patch(deployment_writes::close(self.snapshot, managed, deployment, grant), Write::Close), NodePhase::Attaching),
            _ => (
                Action::DeleteDeployment {
                    node: managed.name.to_owned(),
                    name: deployment.name.clone(),
                    uid: deployment.uid.clone(),
                    resource_version: deployment.resource_version.clone(),
                },
                NodePhase::Removing,
            ),
        };
        self.plan.actions.push(action);
        self.set(managed.name, phase, Reason::Writing);
    }

    fn write_node(&mut self, managed: &ManagedNode<'_>, grant: &Grant, next: Step) {
        let Some(node) = managed.node else { return };
        if let Some(reason) = self.refused(managed, NodeObject::Node) {
            return self.set(managed.name, NodePhase::Blocked, reason);
        }
        let nobody = Holders::new();
        let holders = match &managed.holders {
            Ok(holders) => holders,
            Err(_) if next == Step::RemoveMember => &nobody,
            Err(error) => return self.set(managed.name, NodePhase::Blocked, Reason::HoldersUnreadable(error.clone())),
        };
        let (uid8, now) = (self.snapshot.resource.uid8(), self.snapshot.now);
        let (patch, write, phase) = match next {
            Step::Detach => {
                if let Some(other) = self.mark_conflicts.on(managed, &grant.marks) {
                    return self.set(managed.name, NodePhase::Blocked, Reason::DetachAnnotationConflict(other));
                }
                if node_writes::is_full(holders, uid8) {
                    return self.set(managed.name, NodePhase::Blocked, Reason::HoldersFull);
                }
                let Some(mark) = node_mark(managed, grant) else { return };
                (node_writes::detach(node, holders, uid8, grant.id, &mark, now), Write::Detach, NodePhase::Granted)
            }
            Step::Unmark => (node_writes::unmark(node, holders, uid8, grant.id, now), Write::Unmark, NodePhase::Attaching),
            Step::RemoveEntry => (node_writes::remove_entry(node, holders, uid8), Write::Clean, NodePhase::Removing),
            _ => (node_writes::member(node, uid8, None), Write::Clean, NodePhase::Removing),
        };
        let live_absent = (next == Step::RemoveMember).then(|| self.deployment_name(managed.name));
        self.plan.actions.push(Action::PatchNode { node: managed.name.to_owned(), patch, write, live_absent });
        self.set(managed.name, phase, Reason::Writing);
    }

    /// A new id in the same slot.
    fn retarget(&mut self, managed: &ManagedNode<'_>, next: Grant) {
        if managed.grant.is_some_and(is_free) && !is_free(&next) {
            // It began to serve after its removal was granted for nothing, and uses no slot yet.
            let Wants { domain, available, suspect, .. } = self.slots.wants(managed);
            let missed = available && next.kind != GrantReason::Drain && !managed.is_draining();
            let lacks = self.slots.lacks(Wants { domain, down: true, available: missed, ..Wants::default() });
            if let Some(reason) = lacks.filter(|_| !self.snapshot.resource.deleting) {
                return self.set(managed.name, NodePhase::Waiting, reason);
            }
            self.slots.take(Wants { domain, available, suspect, leaves: !managed.chosen, ..Wants::default() });
        }
        let id = self.ledger.next_id;
        self.ledger.next_id += 1;
        self.ledger.grants.insert(managed.name.to_owned(), Grant { id, ..next });
        self.set(managed.name, NodePhase::Granted, Reason::Writing);
    }

    fn grant(&mut self, grant_plan: GrantPlan, managed_nodes: &[ManagedNode<'_>]) {
        self.plan.gauges.budget = self.slots.budget;
        for (node, grant) in grant_plan.admitted {
            let id = self.ledger.next_id;
            self.ledger.next_id += 1;
            self.ledger.grants.insert(node.clone(), Grant { id, ..grant });
            self.set(&node, NodePhase::Granted, Reason::Granted);
            self.granted.push(node);
        }
        for (node, reason) in grant_plan.waiting {
            self.set(&node, NodePhase::Waiting, reason);
        }
        self.hold_rejected(managed_nodes);
        for managed in managed_nodes.iter().filter(|managed| managed.chosen && managed.settled) {
            let busy = self.ledger.grants.contains_key(managed.name) || self.plan.node_states.contains_key(managed.name);
            if let Some(reason) = managed.held_back.clone().filter(|_| !busy) {
                self.set(managed.name, NodePhase::Waiting, reason);
            }
        }
        let Some(settings) = self.settings else { return };
        for managed in managed_nodes.iter().filter(|managed| managed.chosen && managed.grant.is_none()) {
            let Some(deployment) = managed.deployment.filter(|_| !self.plan.node_states.contains_key(managed.name)) else { continue };
            if !managed.is_unavailable() {
                let suspect = self.suspicion(managed, settings).filter(|_| managed.settled);
                match (managed.held_back.clone(), suspect) {
                    (None, Some(suspect)) => self.hold_attached(managed, settings, NodePhase::Suspect, suspect),
                    _ if managed.settled => {}
                    _ if !managed.is_ready() => self.set(managed.name, NodePhase::Updating, Reason::PodsTerminating),
                    (Some(reason), _) => self.set(managed.name, NodePhase::Waiting, reason),
                    (None, _) => self.set(managed.name, NodePhase::Updating, Reason::PodsTooYoung),
                }
                continue;
            }
            let by_others = managed.taken_out().filter(|_| managed.is_ready()).map(|key| Reason::TakenOut(key.to_owned()));
            let unready = || {
                if managed.is_lost() {
                    return Reason::NodeNotReady;
                }
                let (ready, wanted) = (deployment.status.ready, settings.pods_per_node);
                managed.refusal().unwrap_or_else(|| Reason::PodsNotReady { ready, wanted, trouble: managed.trouble() })
            };
            self.hold_attached(managed, settings, NodePhase::Unavailable, by_others.unwrap_or_else(unready));
        }
        for managed in managed_nodes.iter().filter(|managed| managed.chosen) {
            let suspect = self.suspicion(managed, settings);
            let says_so = |reason: &Reason| match reason {
                Reason::Failed { now, .. } => matches!(**now, Reason::Suspect { .. }),
                reason => matches!(reason, Reason::Suspect { .. }),
            };
            if let Some(state) = self.plan.node_states.get_mut(managed.name).filter(|state| !says_so(&state.reason)) {
                state.suspect = suspect;
            }
        }
    }

    /// While the spec is not valid: what leaves is taken out by the mark that every health checker knows. Nothing else is begun.
    fn let_go_without_settings(&mut self, managed_nodes: &[ManagedNode<'_>]) {
        for (managed, kind) in managed_nodes
            .iter()
            .filter(|managed| managed.grant.is_none())
            .filter_map(|managed| Some((managed, managed.need(self.snapshot.now)?)))
        {
            let id = self.ledger.next_id;
            self.ledger.next_id += 1;
            let node_uid = managed.node.map(|node| node.uid.clone()).unwrap_or_default();
            let marks = managed.removal_marks_without_settings();
            let grant = Grant { id, node_uid, kind, marks, granted_at: self.snapshot.now, ..Grant::default() };
            self.ledger.grants.insert(managed.name.to_owned(), grant);
            self.set(managed.name, NodePhase::Granted, Reason::Granted);
            self.granted.push(managed.name.to_owned());
        }
    }

    pub(crate) fn deployment_name(&self, node: &str) -> String {
        match self.snapshot.deployments.get(node) {
            Some(deployment) => deployment.name.clone(),
            None => render::object_name(&self.snapshot.resource.name, node, &self.snapshot.taken_names),
        }
    }

    /// What the present step of the canary waits for, or why the rollout is halted. A revision that failed halts it also when all nodes have
    /// that revision.
    fn canary_step(&self, managed_nodes: &[ManagedNode<'_>]) -> Option<Reason> {
        let targets = self.valid_targets().filter(|_| managed_nodes.iter().any(|managed| managed.chosen))?;
        let step = rollout_state::step_state(self.snapshot, targets, targets.rollout_state(&self.ledger), managed_nodes);
        let condemned = |halt: &&Halt| halt.condemns && targets.is_not_current() && self.ledger.rolled_back.is_none();
        let halt = self.blockers.halt.as_ref().filter(|halt| step.is_some() || condemned(halt));
        halt.map(Halt::reason).or(step)
    }

    /// Status, ledger, finalizer, and when to look again.
    fn finish(mut self, managed_nodes: &[ManagedNode<'_>]) -> Plan {
        self.plan.step = self.canary_step(managed_nodes);
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
        if deleting && managed_nodes.is_empty() && self.ledger.grants.is_empty() {
            health_checker::clean(self.snapshot, &mut self.plan);
            let finalizers =
                self.snapshot.resource.finalizers.iter().filter(|name| *name != names::FINALIZER && *name != names::FINALIZER_OF_ORIGINAL);
            self.plan.actions.push(Action::SetFinalizers(finalizers.cloned().collect()));
            return self.plan;
        }
        // Whatever the spec is.
        if !never_had_a_place(self.snapshot) {
            health_checker::revoke(self.snapshot, false, &mut self.plan);
        }
        if self.snapshot.gates.watched {
            self.plan.replicas = Some(replicas::of(self.snapshot, self.settings, managed_nodes));
        }
        if let Some(settings) = self.settings.filter(|_| !deleting) {
            let resource = &self.snapshot.resource;
            let uses_nodes = || self.snapshot.nodes.values().any(|node| node.is_used_by(resource.uid8()));
            claims::record(resource, settings, uses_nodes, self.snapshot.now, &mut self.ledger);
        }
        self.plan.gauges = Gauges { grants: self.ledger.grants.len(), ..self.plan.gauges };
        let stored = self.snapshot.resource.status.clone().unwrap_or_default();
        let urgent = stored.rollout.as_ref().is_none_or(|stored| !stored.equals_ignoring_seconds(&self.ledger));
        let first = self.ledger.next_id - self.unserved.min(self.ledger.next_id);
        let reserve = (first..self.ledger.next_id).collect();
        self.plan.status = status::status(self.snapshot, self.targets, managed_nodes, &self.plan, self.ledger);
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
