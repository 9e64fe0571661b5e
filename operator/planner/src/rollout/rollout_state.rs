//! The course of one rollout: which nodes it has reached, which have failed, and whether it moves.

use crate::{
    facts::not_before,
    memory::Sights,
    node::{self, ManagedNode, RolloutTurn, clocks},
    objects::revisions::Targets,
    reason::{LOST_NODES, OUT_BEFORE, RELEASED, RESTARTS, Reason, StepState},
    rollout::proof,
    snapshot::Snapshot,
    spec::{ResolvedSpec, StepNodes},
};
use crds::{
    ledger::{Failure, GoneFailure, Grant, GrantReason, Ledger, RolledBack, RolloutState, WaitFor},
    names,
    token::Phase,
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

/// The revision of the spec has not served long enough.
pub(super) fn has_to_prove(targets: &Targets, rollout: Option<&RolloutState>) -> bool {
    targets.is_not_current() && targets.effective.rollout.proven_after > 0 && !rollout.is_some_and(|rollout| rollout.proved)
}

pub(super) fn has_labels(managed: &ManagedNode<'_>, labels: &BTreeMap<String, String>) -> bool {
    managed.node.is_some_and(|node| labels.iter().all(|(key, value)| node.labels.get(key) == Some(value)))
}

/// A step for labels that no node has would be passed without a look at the new revision.
fn selects_none(nodes: &StepNodes, managed_nodes: &[ManagedNode<'_>]) -> bool {
    let StepNodes::Labelled(labels) = nodes else { return false };
    !managed_nodes.iter().any(|managed| managed.chosen && has_labels(managed, labels))
}

/// Steps are for a revision of the spec that has another to fall back on.
pub(super) fn has_steps(targets: &Targets) -> bool {
    let rollout = &targets.effective.rollout;
    !rollout.steps.is_empty() && !rollout.on_delete && targets.is_not_current() && !targets.current.is_empty()
}

/// All steps are passed, or there are none.
fn is_past_steps(targets: &Targets, rollout: Option<&RolloutState>) -> bool {
    let done = rollout.map_or(0, |rollout| rollout.steps_done as usize);
    !has_steps(targets) || done >= targets.effective.rollout.steps.len()
}

/// All nodes run the revision and have served without a break, and nothing of its rollout is left that could fail: no node is under way,
/// none has failed, and no step is to be passed. As many nodes as may be out at any time may be missing, where a person leaves them out or
/// their Nodes are not Ready: one broken machine is no reason to have no revision to go back to.
pub fn is_through(targets: &Targets, ledger: &Ledger, sights: &Sights, managed_nodes: &[ManagedNode<'_>]) -> bool {
    let settings = &targets.effective;
    let runs = |managed: &ManagedNode<'_>| {
        let whole = managed.deployment.is_some_and(|deployment| deployment.replicas() == settings.pods_per_node);
        let attached = managed.phase() == Some(Phase::Closed) && !managed.holds_node();
        managed.is_at(&settings.revision) && whole && managed.settled && attached
    };
    let (run, missing): (Vec<_>, Vec<_>) = managed_nodes.iter().filter(|managed| managed.chosen).partition(|managed| runs(managed));
    let excused = |managed: &&ManagedNode<'_>| managed.is_skipped() || managed.is_lost();
    let rollout = targets.rollout_state(ledger);
    // What has no pods has not run.
    !run.is_empty()
        && !settings.is_without_pods()
        && missing.iter().all(excused)
        && missing.len() <= settings.budget.of(run.len() + missing.len())
        && sights.may_become_current(settings)
        && !ledger.grants.values().any(|grant| grant.kind == GrantReason::Update)
        && !rollout.is_some_and(|rollout| rollout.failed.values().any(condemns) || gone(rollout).next().is_some())
        && !rollout.is_some_and(|rollout| halt(settings, rollout, managed_nodes).is_some_and(|halt| halt.condemns))
        && is_past_steps(targets, rollout)
}

/// A failure for this reason counts among those that halt the rollout.
fn counts(reason: &str) -> bool {
    reason != RELEASED && reason != OUT_BEFORE
}

/// Pods of the revision failed.
fn condemns(failure: &Failure) -> bool {
    counts(&failure.reason) && failure.reason != Reason::DetachTimeout.word()
}

/// Its update to the revision is under way.
pub(super) fn is_granted(managed: &ManagedNode<'_>, settings: &ResolvedSpec) -> bool {
    managed.grant.is_some_and(|grant| grant.kind == GrantReason::Update && grant.revision == settings.revision)
}

/// Runs the revision, or is about to.
pub(super) fn runs(managed: &ManagedNode<'_>, settings: &ResolvedSpec) -> bool {
    managed.is_at(&settings.revision) || is_granted(managed, settings)
}

/// Nodes of the step that the partition keeps at what they run.
fn kept(settings: &ResolvedSpec, managed_nodes: &[ManagedNode<'_>]) -> usize {
    managed_nodes
        .iter()
        .filter(|managed| managed.chosen && managed.turn == RolloutTurn::HeldByPartition && !runs(managed, settings))
        .count()
}

/// What the present step waits for, while there is one.
pub fn step_state(
    snapshot: &Snapshot,
    targets: &Targets,
    rollout: Option<&RolloutState>,
    managed_nodes: &[ManagedNode<'_>],
) -> Option<Reason> {
    let steps = &targets.effective.rollout.steps;
    let done = rollout.map_or(0, |rollout| rollout.steps_done as usize);
    let step = steps.get(done).filter(|_| has_steps(targets))?;
    let soaked = rollout.and_then(|rollout| rollout.soaked);
    let revision = || targets.effective.revision.clone();
    let state = match soaked.map(|soaked| step.soak.saturating_sub(soaked)) {
        None if selects_none(&step.nodes, managed_nodes) => StepState::NoNodes { revision: revision() },
        None => StepState::Updating { kept: kept(&targets.effective, managed_nodes) },
        Some(left) if left > 0 => StepState::Soaking { until: snapshot.now.saturating_add(left) },
        Some(_) => StepState::AwaitingPromotion { revision: revision() },
    };
    Some(Reason::Step { step: done + 1, of: steps.len(), state })
}

/// Failures that halt the rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Halt {
    /// What the revision has done: the rest of a sentence that begins with the revision.
    pub why: String,
    /// How many failures the spec allows, in words; `None` where the cause is another one.
    pub limit: Option<String>,
    /// Pods of the revision failed, and not only a detacher, which says nothing of the revision.
    pub condemns: bool,
}

impl Halt {
    /// The reason for which nodes wait.
    pub fn reason(&self) -> Reason {
        let limit = self.limit.as_ref().map(|limit| format!("; {limit}"));
        Reason::TooManyFailed { why: format!("{}{}", self.why, limit.unwrap_or_default()) }
    }
}

/// The most lost machines that are named.
const NAMED: usize = 3;

/// Whether failures halt the rollout. Those that hold all slots do, too: no other node could be begun.
pub fn halt(settings: &ResolvedSpec, rollout: &RolloutState, managed_nodes: &[ManagedNode<'_>]) -> Option<Halt> {
    let here = rollout.failed.iter().map(|(node, failure)| (failure.at, node.as_str(), failure.reason.as_str()));
    let gone = gone(rollout).map(|gone| (gone.at, gone.node.as_str(), gone.reason.as_str()));
    let counted: Vec<_> = here.chain(gone).filter(|(.., reason)| counts(reason)).collect();
    let running = managed_nodes.iter().filter(|managed| managed.chosen && managed.is_at(&settings.revision)).count();
    let lost = rollout.lost.len();
    let too_many_lost = lost >= LOST && lost > proof::noise(running);
    let failed = counted.len();
    let restarts = counted.iter().any(|(.., reason)| *reason == RESTARTS);
    let slots = settings.budget.of(managed_nodes.iter().filter(|managed| managed.chosen).count()).max(1);
    let most = settings.rollout.max_failed.min(slots);
    let condemns = too_many_lost || counted.iter().any(|(.., reason)| *reason != Reason::DetachTimeout.word());
    let on = counted.iter().min().map(|(_, node, reason)| format!("failed on {failed} nodes, first on {node} ({reason})"));
    let machines = too_many_lost.then(|| {
        let known: BTreeSet<_> = rollout.lost_nodes.values().map(String::as_str).collect();
        let named: Vec<_> = known.into_iter().take(NAMED).collect();
        let among = if named.is_empty() { String::new() } else { format!(", among them {}", named.join(", ")) };
        format!("has lost {lost} machines ({LOST_NODES}){among}")
    });
    let limit = match restarts {
        _ if too_many_lost => None,
        true => Some("the step allows fewer restarts (maxRestarts)".to_owned()),
        false => Some(format!("the rollout halts at {most} (maxFailedNodes, or all slots of the budget)")),
    };
    let why: Vec<_> = on.into_iter().chain(machines).collect();
    (restarts || too_many_lost || failed >= most).then(|| Halt { why: why.join(", and "), limit, condemns })
}

/// Failures of Nodes that are not there any more, but for those that a person let pass.
pub fn gone(rollout: &RolloutState) -> impl Iterator<Item = &GoneFailure> {
    rollout.failed_nodes.values().filter(|gone| counts(&gone.reason) && !rollout.failed.contains_key(&gone.node))
}

/// The most failures of Nodes that are remembered.
const REMEMBERED: usize = 100;

/// Notes that the revision failed on a node: by its name, and where the revision may be why by the UID of its Node, which outlives it.
pub fn note(rollout: &mut RolloutState, managed: &ManagedNode<'_>, failure: Failure) {
    // Who frees its slot lets pass what failed there before. By its UID another machine of the same name is known for one.
    let released = failure.reason == RELEASED;
    if let Some(node) = managed.node.filter(|_| (released || condemns(&failure)) && rollout.failed_nodes.len() < REMEMBERED) {
        let gone = GoneFailure { node: managed.name.to_owned(), at: failure.at, reason: failure.reason.clone() };
        let known = rollout.failed_nodes.entry(node.uid.clone()).or_insert(gone);
        if released {
            known.reason.clone_from(&failure.reason);
        }
    }
    if released {
        rollout.failed.insert(managed.name.to_owned(), failure);
    } else {
        rollout.failed.entry(managed.name.to_owned()).or_insert(failure);
    }
}

/// A failure that is noted now.
pub fn failure(snapshot: &Snapshot, managed: &ManagedNode<'_>, reason: &str) -> Failure {
    Failure { at: snapshot.now, reason: reason.to_owned(), retry: retry_of(managed).to_owned() }
}

/// The slot was freed by a person's order.
pub fn released(snapshot: &Snapshot, managed: &ManagedNode<'_>) -> Failure {
    failure(snapshot, managed, RELEASED)
}

fn retry_of<'c>(managed: &'c ManagedNode<'_>) -> &'c str {
    managed.node.and_then(|node| node.annotations.get(names::RETRY_ANNOTATION)).map_or("", String::as_str)
}

/// A person asks to try the node again after this failure.
fn is_retried(managed: &ManagedNode<'_>, failure: &Failure) -> bool {
    let asked = retry_of(managed);
    !asked.is_empty() && asked != failure.retry
}

/// The rollout up to this moment, and the nodes that a person wants to be tried again.
pub fn observe(
    snapshot: &Snapshot,
    targets: &Targets,
    ledger: &Ledger,
    sights: &Sights,
    managed_nodes: &[ManagedNode<'_>],
) -> (RolloutState, BTreeSet<String>) {
    let settings = &targets.effective;
    let chosen = || managed_nodes.iter().filter(|managed| managed.chosen);
    let is_finished =
        |managed: &&ManagedNode<'_>| managed.is_at(&settings.revision) && managed.grant.is_none() && managed.phase() == Some(Phase::Closed);
    let finished = chosen().filter(is_finished).count();
    let finished = u32::try_from(finished).unwrap_or(u32::MAX);
    let mut rollout = targets.rollout_state(ledger).cloned().unwrap_or_else(|| RolloutState {
        revision: settings.revision.clone(),
        since: not_before(snapshot.now, managed_nodes.iter().flat_map(|managed| managed.pods)),
        progressed_at: snapshot.now,
        began_with: finished,
        finished,
        retry: snapshot.resource.retry.clone(),
        ..RolloutState::default()
    });
    if finished > rollout.finished {
        (rollout.progressed_at, rollout.idle, rollout.proving) = (snapshot.now, 0, 0);
    }
    rollout.finished = finished;
    let by_name: BTreeMap<&str, &ManagedNode<'_>> = managed_nodes.iter().map(|managed| (managed.name, managed)).collect();
    let (mut retried, mut forgiven) = (BTreeSet::new(), false);
    if snapshot.resource.is_retried(&rollout) {
        retried.extend(std::mem::take(&mut rollout.failed).into_keys());
        rollout.failed_nodes.clear();
        rollout.lost.clear();
        rollout.lost_nodes.clear();
        forgiven = true;
    }
    rollout.retry.clone_from(&snapshot.resource.retry);
    let chosen_before = |node: &&String| by_name.get(node.as_str()).is_some_and(|managed| managed.chosen);
    let failed_before: BTreeSet<String> = rollout.failed.keys().filter(chosen_before).cloned().collect();
    let remembered = &rollout.failed_nodes;
    rollout.failed.retain(|node, failure| {
        let Some(managed) = by_name.get(node.as_str()).filter(|managed| managed.chosen) else { return false };
        // Another machine of the same name.
        let uid = managed.node.map(|node| node.uid.as_str()).unwrap_or_default();
        if !remembered.contains_key(uid) && remembered.values().any(|gone| gone.node == *node) {
            return false;
        }
        if is_retried(managed, failure) {
            forgiven |= failure.reason == RESTARTS;
            retried.insert(node.clone());
            return false;
        }
        // A node that was given up is tried again once the detach settings change, and one that came through has not failed.
        match managed.grant {
            Some(grant) if grant.refused.is_some() => node::is_given_up(managed, grant, snapshot.now),
            Some(_) => true,
            None => {
                let kept = matches!(failure.reason.as_str(), RESTARTS | RELEASED) || !managed.is_at(&settings.revision);
                kept || is_out(settings, managed) || sights.condemns(settings, node)
            }
        }
    });
    reach(snapshot, targets, ledger, sights, &mut rollout, &by_name);
    note_losses(snapshot, sights, &mut rollout);
    let failed = &rollout.failed;
    rollout.failed_nodes.retain(|uid, gone| {
        let there =
            by_name.get(gone.node.as_str()).is_some_and(|managed| managed.chosen && managed.node.is_some_and(|node| node.uid == *uid));
        // What comes back to the pool has not been forgiven.
        !there || !failed_before.contains(&gone.node) || failed.contains_key(&gone.node)
    });
    if has_steps(targets) {
        observe_step(snapshot, settings, sights, managed_nodes, &mut rollout, forgiven);
    }
    (rollout, retried)
}

/// Nodes that were given the revision before it was proved; those that went, and nobody had said that they would.
fn reach(
    snapshot: &Snapshot,
    targets: &Targets,
    ledger: &Ledger,
    sights: &Sights,
    rollout: &mut RolloutState,
    managed_nodes: &BTreeMap<&str, &ManagedNode<'_>>,
) {
    if !has_to_prove(targets, Some(rollout)) {
        rollout.reached.clear();
        return;
    }
    let announced =
        |node: &String| ledger.grants.get(node).is_some_and(|grant| matches!(grant.kind, GrantReason::Drain | GrantReason::Remove));
    let uid = |node: &str| snapshot.nodes.get(node).map(|node| node.uid.as_str());
    let went: Vec<_> = rollout.reached.iter().filter(|(node, reached)| uid(node) != Some(reached)).collect();
    let lost = went.into_iter().filter(|(node, uid)| !announced(node) && !sights.excuses(uid));
    let lost: Vec<_> = lost.map(|(node, uid)| (uid.clone(), node.clone())).collect();
    rollout.lost.extend(lost.iter().map(|(uid, _)| uid.clone()));
    rollout.lost_nodes.extend(lost);
    // Whoever drains a node before it goes has cordoned it.
    let stays =
        |node: &str| managed_nodes.get(node).is_some_and(|managed| managed.chosen && managed.node.is_some_and(|node| !node.unschedulable));
    rollout.reached.retain(|node, reached| uid(node) == Some(reached) && stays(node));
    for managed in managed_nodes.values().filter(|managed| stays(managed.name)) {
        let grant = ledger.grants.get(managed.name).filter(|grant| grant.kind == GrantReason::Update && grant.revision == rollout.revision);
        if let Some(grant) = grant.filter(|grant| uid(managed.name) == Some(&grant.node_uid)) {
            rollout.reached.insert(managed.name.to_owned(), grant.node_uid.clone());
        }
    }
}

/// Machines that were lost: those that are back until it is forgotten, those that went for good.
fn note_losses(snapshot: &Snapshot, sights: &Sights, rollout: &mut RolloutState) {
    let revision = &rollout.revision;
    for (uid, node) in sights.lost(revision) {
        rollout.lost.insert(uid.clone());
        rollout.lost_nodes.insert(uid.clone(), node.clone());
    }
    rollout.lost.retain(|uid| sights.remembers(uid, revision) || !snapshot.nodes.values().any(|node| node.uid == *uid));
    while rollout.lost.len() > REMEMBERED {
        rollout.lost.pop_first();
    }
    rollout.lost_nodes.retain(|uid, _| rollout.lost.contains(uid));
}

/// Machines that were lost after they had been given the revision, at which it has failed: one may be by chance.
const LOST: usize = 2;

/// The node came through, was attached, and does not serve any more, by what is wrong with its pods.
fn is_out(settings: &ResolvedSpec, managed: &ManagedNode<'_>) -> bool {
    let attached = managed.phase() == Some(Phase::Closed) && managed.grant.is_none() && !managed.holds_node();
    managed.is_at(&settings.revision) && attached && !managed.is_lost() && managed.is_unavailable() && managed.taken_out().is_none()
}

/// Restarts of containers of the revision, on nodes where there were any.
fn restarts(settings: &ResolvedSpec, managed_nodes: &[ManagedNode<'_>]) -> BTreeMap<String, i64> {
    let on = |managed: &ManagedNode<'_>| -> i64 {
        let pods = managed.pods.iter().filter(|pod| pod.revision == settings.revision);
        pods.map(|pod| i64::from(pod.restarts)).sum()
    };
    let chosen = managed_nodes.iter().filter(|managed| managed.chosen).map(|managed| (managed.name.to_owned(), on(managed)));
    chosen.filter(|(_, restarts)| *restarts > 0).collect()
}

/// Restarts since the step began, or since a person let those before pass; the node with most of them.
fn restarts_in_step(rollout: &mut RolloutState, now: &BTreeMap<String, i64>, forgiven: bool) -> (i64, Option<String>) {
    if forgiven || rollout.counted_step != Some(rollout.steps_done) {
        rollout.counted_step = Some(rollout.steps_done);
        rollout.earlier_restarts.clone_from(now);
    }
    // A pod that was made anew has taken its restarts along: later ones count.
    rollout.earlier_restarts.retain(|node, earlier| {
        *earlier = (*earlier).min(now.get(node).copied().unwrap_or(0));
        *earlier > 0
    });
    let earlier = |node: &String| rollout.earlier_restarts.get(node).copied().unwrap_or(0);
    let since = || now.iter().map(|(node, restarts)| (restarts.saturating_sub(earlier(node)), node));
    let worst = since().filter(|(restarts, _)| *restarts > 0).max_by_key(|(restarts, node)| (*restarts, Reverse(*node)));
    (since().map(|(restarts, _)| restarts).sum(), worst.map(|(_, node)| node.clone()))
}

fn observe_step(
    snapshot: &Snapshot,
    settings: &ResolvedSpec,
    sights: &Sights,
    managed_nodes: &[ManagedNode<'_>],
    rollout: &mut RolloutState,
    forgiven: bool,
) {
    let done = rollout.steps_done as usize;
    let Some(step) = settings.rollout.steps.get(done) else { return };
    let now = restarts(settings, managed_nodes);
    let (sum, worst) = restarts_in_step(rollout, &now, forgiven);
    let too_many = step.max_restarts.is_some_and(|most| sum > most);
    if let Some(managed) = managed_nodes.iter().find(|managed| too_many && worst.as_deref() == Some(managed.name)) {
        let failure = failure(snapshot, managed, RESTARTS);
        note(rollout, managed, failure);
    }
    let promote = snapshot.resource.spec.promote.as_ref();
    let promoted = promote.is_some_and(|promote| promote.revision == settings.revision && promote.step as usize > done);
    // Those that the partition keeps, too: a step is proved by all its nodes. One that never served proves nothing, and holds nothing up.
    let counts = |managed: &ManagedNode<'_>| {
        managed.chosen && managed.turn != RolloutTurn::Later && managed.served() && managed.phase() != Some(Phase::New)
    };
    let asked_for: Vec<_> = managed_nodes.iter().filter(|managed| counts(managed)).collect();
    let proves_nothing = (asked_for.is_empty() || settings.is_without_pods() || selects_none(&step.nodes, managed_nodes)) && !promoted;
    let reached = asked_for.iter().all(|managed| managed.is_at(&settings.revision) && managed.grant.is_none());
    // In a large step some node is always out of service, or has just been.
    let out = asked_for.iter().filter(|managed| managed.is_unavailable() || sights.suspect(managed.name).is_some()).count();
    if proves_nothing || !reached || out > proof::noise(asked_for.len()) {
        rollout.soaked = None;
        return;
    }
    let soaked = *rollout.soaked.get_or_insert(0) >= step.soak;
    let halted = halt(settings, rollout, managed_nodes).is_some();
    if soaked && !halted && (!step.pause || promoted) {
        rollout.steps_done += 1;
        rollout.soaked = None;
        restarts_in_step(rollout, &now, false);
    }
}

/// No node was finished for too long, while some were under way or waited for the proof.
pub fn is_late(settings: &ResolvedSpec, rollout: &RolloutState) -> bool {
    rollout.idle.saturating_add(rollout.proving) > settings.rollout.progress_deadline
}

/// The seconds that are left of a node's deadline; nothing before its pods change.
pub fn until_deadline(settings: &ResolvedSpec, managed: &ManagedNode<'_>, grant: &Grant) -> Option<i64> {
    let since = managed.token.as_ref().filter(|_| managed.is_updated())?.since;
    Some(settings.rollout.node_deadline.saturating_sub(clocks::waited(grant, WaitFor::Pods, since)))
}

/// The way back when the rollout halts, where there is one.
pub fn roll_back(snapshot: &Snapshot, targets: &Targets, ledger: &Ledger, halt: &Halt) -> Option<RolledBack> {
    let effective = &targets.effective;
    // A guess is no revision to go back to by oneself.
    let is_current = snapshot.resource.status.as_ref().is_some_and(|status| status.revisions.current == targets.current);
    // Nor is one that the rest of the spec contradicts by now: nothing could run it.
    let known =
        is_current && snapshot.history.iter().any(|known| known.revision == targets.current) && targets.at(&targets.current).is_some();
    let possible = halt.condemns && effective.rollout.auto_rollback && targets.is_not_current() && ledger.rolled_back.is_none() && known;
    possible.then(|| RolledBack {
        from: effective.revision.clone(),
        to: targets.current.clone(),
        at: snapshot.now,
        reason: halt.why.clone(),
    })
}

/// The grant whose slot a person wants to be freed.
pub fn is_released(snapshot: &Snapshot, managed: &ManagedNode<'_>, grant: &Grant) -> bool {
    let wanted = format!("{}:{}", snapshot.resource.key(), grant.id);
    managed.node.and_then(|node| node.annotations.get(names::RELEASE_ANNOTATION)).is_some_and(|asked| asked.trim() == wanted)
}
