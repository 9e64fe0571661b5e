//! The course of one rollout: which nodes it has reached, which have failed, and whether it moves.

use crate::{
    breaker, clocks,
    node::{self, ManagedNode, Turn},
    proof::{self, Sights},
    reason::{Reason, StepState},
    revisions::Targets,
    snapshot::{NodeFacts, PodFacts, Snapshot},
    spec::{ResolvedSpec, StepNodes, Topology},
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

/// The failure of a canary whose pods restart too often.
pub(crate) const RESTARTS: &str = "Restarts";
/// Machines were lost after they had been given the revision.
pub(crate) const LOST_NODES: &str = "NodesLost";
/// A person freed the slot.
pub(crate) const RELEASED: &str = "Released";
/// The node was out of service when its update was granted: that it is so still says nothing of the revision.
pub(crate) const OUT_BEFORE: &str = "OutBefore";

/// The stored course, while it is the one of the effective revision.
pub fn stored<'a>(targets: &Targets, ledger: &'a Ledger) -> Option<&'a RolloutState> {
    ledger.rollout_state.as_ref().filter(|rollout| rollout.revision == targets.effective.revision)
}

/// Lets nodes keep what they run that it is not the turn of, and says why.
pub fn hold_back<'a>(snapshot: &Snapshot, targets: &'a Targets, ledger: &Ledger, cases: &mut [ManagedNode<'a>]) {
    let settings = &targets.effective;
    let rollout = stored(targets, ledger);
    let selective = !settings.rollout.lets_all_through() && targets.is_unproven();
    if selective && !settings.rollout.on_delete {
        let turns = turns(snapshot, targets, rollout, cases);
        cases.iter_mut().enumerate().for_each(|(index, case)| case.turn = turns.get(&index).copied().unwrap_or(Turn::Later));
    }
    let halt = rollout.and_then(|rollout| halt(settings, rollout, cases));
    let closed = targets.closed();
    let step = step_state(snapshot, targets, rollout, cases);
    // A revision that is not released, not proved or that failed is none for nodes that join, where there is another.
    let paused = snapshot.resource.spec.paused;
    let to_prove = has_to_prove(targets, rollout);
    let withheld = to_prove || targets.is_unproven() && (paused || halt.is_some());
    let joins_proven = withheld && targets.at(&targets.proven).is_some();
    let without_turn = if to_prove { without_turn(settings, rollout, cases) } else { BTreeSet::new() };
    let without_pods = settings.is_without_pods();
    let waits = if without_pods { Reason::WithoutPods } else { Reason::JoinsProven };
    for (index, case) in cases.iter_mut().enumerate().filter(|(_, case)| case.chosen) {
        // A machine that joins is no place to try a revision on.
        let is_given = case.grant.is_some_and(|grant| grant.kind == GrantReason::Update);
        case.joins = joins_proven && to_prove && has_joined_in_place(case, rollout);
        let joins = case.joins || joins_proven && is_new(case) && !is_given;
        if case.is_at(&settings.revision) && !joins {
            continue;
        }
        let stays = without_turn.contains(&index);
        let out_of_turn = if selective && settings.rollout.on_delete {
            let since = rollout.map_or(i64::MAX, |rollout| rollout.since);
            let allowed = is_new(case) || is_granted(case, settings) || lost_a_pod(case, settings, since);
            (!allowed).then_some(Reason::OnDelete)
        } else {
            match case.turn {
                Turn::Now => None,
                Turn::HeldByPartition => Some(Reason::Partition),
                Turn::Later => Some(step.clone().unwrap_or(Reason::Partition)),
            }
        };
        // What is under way goes on when the rollout halts or the window closes, to another revision, too, when the one that it
        // was for is wanted no more; new nodes need no window.
        let changing = is_changing(case);
        let given_up = case.grant.is_some_and(|grant| node::gave_up(grant, settings));
        let under_way = changing || given_up || is_granted(case, settings);
        let halted = || halt.as_ref().filter(|_| !under_way).map(Halt::reason);
        let closed = || closed.clone().filter(|_| !under_way && !is_new(case));
        let unproved = || (joins || stays).then(|| if paused { Reason::Paused } else { waits.clone() });
        let Some(why) = halted().or(out_of_turn).or_else(unproved).or_else(closed) else { continue };
        // What such a node began with may have failed there.
        let proven = joins || is_new(case) || changing && !targets.proven.is_empty();
        let kept = if proven { &targets.proven } else { case.deployment.map_or("", |found| found.revision()) };
        match targets.at(kept) {
            Some(settings) => case.settings = Some(settings),
            // Without a proven revision a new node cannot wait for one, nor one without pods for what it ran.
            None if is_new(case) || stays && (case.grant.is_none() || without_pods) => continue,
            None => case.former_unknown = true,
        }
        case.held_back = Some(why);
    }
}

/// The revision of the spec has not served long enough.
fn has_to_prove(targets: &Targets, rollout: Option<&RolloutState>) -> bool {
    targets.is_unproven() && targets.effective.rollout.proven_after > 0 && !rollout.is_some_and(|rollout| rollout.proved)
}

/// Nodes, by their index, that get pods again though the revision has not come to them: they came back from a drain, or had none. Such a
/// place was given for nothing that the budget bounds, so that they keep what they run while the budget has no place for them beside those
/// that have the revision. Without any pods nodes could prove nothing, and all keep it.
fn without_turn(settings: &ResolvedSpec, rollout: Option<&RolloutState>, cases: &[ManagedNode<'_>]) -> BTreeSet<usize> {
    let was_reached = |case: &ManagedNode<'_>| rollout.is_some_and(|rollout| rollout.reached.contains_key(case.name));
    let has_it =
        |case: &ManagedNode<'_>| is_granted(case, settings) || case.is_at(&settings.revision) && !is_new(case) || was_reached(case);
    let chosen = || cases.iter().filter(|case| case.chosen);
    let mut taken: Vec<&ManagedNode<'_>> = chosen().filter(|case| has_it(case)).collect();
    let has_room = |taken: &[&ManagedNode<'_>], case: &ManagedNode<'_>| {
        let domain = settings.topology.as_ref().and_then(|topology| Some((topology, topology.budget?)));
        let here = |topology: &Topology, other: &ManagedNode<'_>| other.domain(topology) == case.domain(topology);
        taken.len() < settings.budget.of(chosen().count())
            && domain.is_none_or(|(topology, budget)| {
                let nodes = chosen().filter(|other| here(topology, other)).count();
                taken.iter().filter(|other| here(topology, other)).count() < budget.of(nodes)
            })
    };
    let mut stay = BTreeSet::new();
    let others = cases.iter().enumerate().filter(|(_, case)| case.chosen && !is_new(case) && !case.is_at(&settings.revision));
    for (index, case) in others {
        let is_empty = || case.deployment.is_some_and(|found| found.replicas() <= 0 && breaker::read(found).is_none());
        let stays = match case.grant {
            _ if settings.is_without_pods() => true,
            None => is_empty(),
            Some(grant) if grant.kind == GrantReason::Update || grant.refused.is_some() || grant.released => false,
            Some(_) if was_reached(case) || case.is_draining() => false,
            Some(_) if has_room(&taken, case) => {
                taken.push(case);
                false
            }
            Some(_) => true,
        };
        if stays {
            stay.insert(index);
        }
    }
    stay
}

/// Its machine has taken the name of another: what that had is not its own. One that was given the revision has only lost its label.
fn has_joined_in_place(case: &ManagedNode<'_>, rollout: Option<&RolloutState>) -> bool {
    let was_given = |node: &NodeFacts| rollout.is_some_and(|rollout| rollout.reached.get(case.name) == Some(&node.uid));
    case.took_name() && !case.node.is_some_and(was_given)
}

fn is_new(case: &ManagedNode<'_>) -> bool {
    case.phase().is_none_or(|phase| phase == Phase::New)
}

/// Its update to the revision is under way.
fn is_granted(case: &ManagedNode<'_>, settings: &ResolvedSpec) -> bool {
    case.grant.is_some_and(|grant| grant.kind == GrantReason::Update && grant.revision == settings.revision)
}

/// An update, to whatever revision, is under way, and what runs is not what the Deployment says.
fn is_changing(case: &ManagedNode<'_>) -> bool {
    !case.settled && case.grant.is_some_and(|grant| matches!(grant.kind, GrantReason::Update | GrantReason::Abort))
}

/// Runs the revision, or is about to.
fn runs(case: &ManagedNode<'_>, settings: &ResolvedSpec) -> bool {
    case.is_at(&settings.revision) || is_granted(case, settings)
}

/// Somebody deleted a pod of an older revision since the newest became the wanted one. Pods that came while the operator was at work on
/// the node (more replicas, a repair, the way back from a drain) are its own doing, and more than there should be are nobody's loss.
fn lost_a_pod(case: &ManagedNode<'_>, settings: &ResolvedSpec, since: i64) -> bool {
    let Some(deployment) = case.deployment else { return false };
    if is_new(case) || case.grant.is_some_and(|grant| !matches!(grant.kind, GrantReason::Update | GrantReason::Abort)) {
        return false;
    }
    let closed = case.token.as_ref().filter(|token| token.phase == Phase::Closed).map_or(since, |token| token.since);
    let older = case.pods.iter().filter(|pod| pod.revision != settings.revision && !pod.ended && !pod.terminating);
    let left = older.filter(|pod| pod.created <= since.max(closed)).count();
    let wanted = deployment.replicas().min(settings.pods_per_node);
    usize::try_from(wanted).is_ok_and(|wanted| left < wanted)
}

/// The nodes, by their index, that the steps up to the present one ask for, and which of them the partition keeps. Those that the
/// rollout has reached already come first, so that a set stays what it is when nodes come and go.
fn turns(snapshot: &Snapshot, targets: &Targets, rollout: Option<&RolloutState>, cases: &[ManagedNode<'_>]) -> BTreeMap<usize, Turn> {
    let settings = &targets.effective;
    let mut order: Vec<_> = cases.iter().enumerate().filter(|(_, case)| case.chosen).collect();
    order.sort_by_cached_key(|(_, case)| (case.order_hash(&settings.revision), case.name));
    let urgency = |case: &ManagedNode<'_>| {
        let fit = case.node.is_some_and(|node| node.ready && !node.unschedulable) && !is_skipped(snapshot, case);
        // Next come those that are out of service already: what failed is mended first.
        (!runs(case, settings), !is_changing(case), !fit)
    };
    order.sort_by_cached_key(|(_, case)| urgency(case));
    if let Some(topology) = &settings.topology {
        // A step has nodes of every domain, or first those of one, as the rest of the rollout.
        let begun: BTreeSet<_> = order.iter().filter(|(_, case)| runs(case, settings)).map(|(_, case)| case.domain(topology)).collect();
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        let places = order.iter().map(|(index, case)| {
            let domain = case.domain(topology);
            let turn = seen.entry(domain).or_default();
            *turn += 1;
            (*index, if topology.one_at_a_time { (0, !begun.contains(domain), domain) } else { (*turn, false, "") })
        });
        let places: BTreeMap<_, _> = places.collect();
        order.sort_by_cached_key(|(index, case)| (urgency(case), places[index]));
    }
    let most = order.len() - settings.rollout.partition.at_least_of(order.len()).min(order.len());
    let mut asked_for: BTreeSet<usize> = BTreeSet::new();
    let steps = if has_steps(targets) { settings.rollout.steps.as_slice() } else { &[] };
    let done = rollout.map_or(0, |rollout| rollout.steps_done as usize);
    if done >= steps.len() {
        asked_for.extend(order.iter().map(|(index, _)| *index));
    }
    for step in steps.iter().take(done + 1) {
        match &step.nodes {
            StepNodes::Total(count) => asked_for.extend(order.iter().take(count.of(order.len())).map(|(index, _)| *index)),
            StepNodes::Labelled(labels) => {
                asked_for.extend(order.iter().filter(|(_, case)| has_labels(case, labels)).map(|(index, _)| *index));
            }
        }
    }
    let asked_for = order.iter().map(|(index, _)| *index).filter(|index| asked_for.contains(index));
    asked_for.enumerate().map(|(place, index)| (index, if place < most { Turn::Now } else { Turn::HeldByPartition })).collect()
}

fn has_labels(case: &ManagedNode<'_>, labels: &BTreeMap<String, String>) -> bool {
    case.node.is_some_and(|node| labels.iter().all(|(key, value)| node.labels.get(key) == Some(value)))
}

/// A step for labels that no node has would be passed without a look at the new revision.
fn selects_none(nodes: &StepNodes, cases: &[ManagedNode<'_>]) -> bool {
    let StepNodes::Labelled(labels) = nodes else { return false };
    !cases.iter().any(|case| case.chosen && has_labels(case, labels))
}

/// Steps are for a revision of the spec that has another to fall back on.
fn has_steps(targets: &Targets) -> bool {
    let rollout = &targets.effective.rollout;
    !rollout.steps.is_empty() && !rollout.on_delete && targets.is_unproven() && !targets.proven.is_empty()
}

/// All steps are passed, or there are none.
fn is_past_steps(targets: &Targets, rollout: Option<&RolloutState>) -> bool {
    let done = rollout.map_or(0, |rollout| rollout.steps_done as usize);
    !has_steps(targets) || done >= targets.effective.rollout.steps.len()
}

/// All nodes run the revision and have served without a break, and nothing of its rollout is left that could fail: no node is under way,
/// none has failed, and no step is to be passed. As many nodes as may be out at any time may be missing, where a person leaves them out or
/// their Nodes are not Ready: one broken machine is no reason to have no revision to go back to.
pub fn is_through(snapshot: &Snapshot, targets: &Targets, ledger: &Ledger, sights: &Sights, cases: &[ManagedNode<'_>]) -> bool {
    let settings = &targets.effective;
    let runs = |case: &ManagedNode<'_>| {
        let whole = case.deployment.is_some_and(|deployment| deployment.replicas() == settings.pods_per_node);
        let attached = case.phase() == Some(Phase::Closed) && !case.holds_node();
        case.is_at(&settings.revision) && whole && case.settled && attached
    };
    let (run, missing): (Vec<_>, Vec<_>) = cases.iter().filter(|case| case.chosen).partition(|case| runs(case));
    let excused = |case: &&ManagedNode<'_>| is_skipped(snapshot, case) || case.is_lost();
    let rollout = stored(targets, ledger);
    // What has no pods has not run.
    !run.is_empty()
        && !settings.is_without_pods()
        && missing.iter().all(excused)
        && missing.len() <= settings.budget.of(run.len() + missing.len())
        && sights.has_proved(settings)
        && !ledger.grants.values().any(|grant| grant.kind == GrantReason::Update)
        && !rollout.is_some_and(|rollout| rollout.failed.values().any(condemns) || gone(rollout).next().is_some())
        && !rollout.is_some_and(|rollout| halt(settings, rollout, cases).is_some_and(|halt| halt.condemns))
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

/// Nodes of the step that the partition keeps at what they run.
fn kept(settings: &ResolvedSpec, cases: &[ManagedNode<'_>]) -> usize {
    cases.iter().filter(|case| case.chosen && case.turn == Turn::HeldByPartition && !runs(case, settings)).count()
}

/// What the present step waits for, while there is one.
pub fn step_state(snapshot: &Snapshot, targets: &Targets, rollout: Option<&RolloutState>, cases: &[ManagedNode<'_>]) -> Option<Reason> {
    let steps = &targets.effective.rollout.steps;
    let done = rollout.map_or(0, |rollout| rollout.steps_done as usize);
    let step = steps.get(done).filter(|_| has_steps(targets))?;
    let soaked = rollout.and_then(|rollout| rollout.soaked);
    let revision = || targets.effective.revision.clone();
    let state = match soaked.map(|soaked| step.soak.saturating_sub(soaked)) {
        None if selects_none(&step.nodes, cases) => StepState::NoNodes { revision: revision() },
        None => StepState::Updating { kept: kept(&targets.effective, cases) },
        Some(left) if left > 0 => StepState::Soaking { until: snapshot.now.saturating_add(left) },
        Some(_) => StepState::AwaitingPromotion { revision: revision() },
    };
    Some(Reason::Step { step: done + 1, of: steps.len(), state })
}

/// The Node's annotation names the resource.
pub fn is_skipped(snapshot: &Snapshot, case: &ManagedNode<'_>) -> bool {
    let key = snapshot.resource.key();
    let listed = case.node.and_then(|node| node.annotations.get(names::SKIP_ANNOTATION));
    listed.is_some_and(|listed| listed.split(',').any(|one| one.trim() == key))
}

/// Failures that halt the rollout, with the number that does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Halt {
    /// Nodes on which the revision failed.
    pub failed: usize,
    /// How many make the rollout halt.
    pub most: usize,
    /// The first of them, with the reason.
    pub first: String,
    /// Pods of the revision failed, and not only a detacher, which says nothing of the revision.
    pub condemns: bool,
}

impl Halt {
    /// As a reason.
    pub fn reason(&self) -> Reason {
        Reason::TooManyFailed { failed: self.failed, most: self.most, first: self.first.clone() }
    }
}

/// Whether failures halt the rollout. Those that hold all places there are do, too: no other node could be begun.
pub fn halt(settings: &ResolvedSpec, rollout: &RolloutState, cases: &[ManagedNode<'_>]) -> Option<Halt> {
    let here = rollout.failed.iter().map(|(node, failure)| (failure.at, node.as_str(), failure.reason.as_str()));
    let gone = gone(rollout).map(|gone| (gone.at, gone.node.as_str(), gone.reason.as_str()));
    let mut counted: Vec<_> = here.chain(gone).filter(|(.., reason)| counts(reason)).collect();
    let running = cases.iter().filter(|case| case.chosen && case.is_at(&settings.revision)).count();
    let lost = rollout.lost.len() >= LOST && rollout.lost.len() > proof::noise(running);
    if lost {
        counted.push((i64::MAX, "machines that were lost", LOST_NODES));
    }
    let failed = counted.len();
    let restarts = counted.iter().any(|(.., reason)| *reason == RESTARTS);
    let (_, node, reason) = counted.iter().min()?;
    let first = format!("{node} ({reason})");
    let places = settings.budget.of(cases.iter().filter(|case| case.chosen).count()).max(1);
    let most = settings.rollout.max_failed.min(places);
    let condemns = counted.iter().any(|(.., reason)| *reason != Reason::DetachTimeout.word());
    (restarts || lost || failed >= most).then_some(Halt { failed, most, first, condemns })
}

/// Failures of Nodes that are not there any more.
pub fn gone(rollout: &RolloutState) -> impl Iterator<Item = &GoneFailure> {
    rollout.failed_nodes.values().filter(|gone| !rollout.failed.contains_key(&gone.node))
}

/// The most failures of Nodes that are remembered.
const REMEMBERED: usize = 100;

/// Notes that the revision failed on a node: by its name, and where the revision may be why by the UID of its Node, which outlives it.
pub fn note(rollout: &mut RolloutState, case: &ManagedNode<'_>, failure: Failure) {
    let condemns = condemns(&failure);
    if let Some(node) = case.node.filter(|_| condemns && rollout.failed_nodes.len() < REMEMBERED) {
        let gone = GoneFailure { node: case.name.to_owned(), at: failure.at, reason: failure.reason.clone() };
        rollout.failed_nodes.entry(node.uid.clone()).or_insert(gone);
    }
    rollout.failed.entry(case.name.to_owned()).or_insert(failure);
}

/// A failure that is noted now.
pub fn failure(snapshot: &Snapshot, case: &ManagedNode<'_>, reason: &str) -> Failure {
    Failure { at: snapshot.now, reason: reason.to_owned(), retry: retry_of(case).to_owned() }
}

/// The slot was freed by a person's order.
pub fn released(snapshot: &Snapshot, case: &ManagedNode<'_>) -> Failure {
    failure(snapshot, case, RELEASED)
}

fn retry_of<'c>(case: &'c ManagedNode<'_>) -> &'c str {
    case.node.and_then(|node| node.annotations.get(names::RETRY_ANNOTATION)).map_or("", String::as_str)
}

/// A person asks to try the node again after this failure.
fn is_retried(case: &ManagedNode<'_>, failure: &Failure) -> bool {
    let asked = retry_of(case);
    !asked.is_empty() && asked != failure.retry
}

/// A person lets pass all that failed.
pub fn is_retried_everywhere(snapshot: &Snapshot, rollout: &RolloutState) -> bool {
    let asked = &snapshot.resource.retry;
    !asked.is_empty() && *asked != rollout.retry
}

/// This time, or that of the newest of the pods: a clock that was set back makes no pod one that came later.
pub fn not_before<'p>(now: i64, pods: impl IntoIterator<Item = &'p PodFacts>) -> i64 {
    pods.into_iter().map(|pod| pod.created).fold(now, i64::max)
}

/// The rollout up to this moment, and the nodes that a person wants to be tried again.
pub fn observe(
    snapshot: &Snapshot,
    targets: &Targets,
    ledger: &Ledger,
    sights: &Sights,
    cases: &[ManagedNode<'_>],
) -> (RolloutState, BTreeSet<String>) {
    let settings = &targets.effective;
    let chosen = || cases.iter().filter(|case| case.chosen);
    let is_finished =
        |case: &&ManagedNode<'_>| case.is_at(&settings.revision) && case.grant.is_none() && case.phase() == Some(Phase::Closed);
    let finished = chosen().filter(is_finished).count();
    let finished = u32::try_from(finished).unwrap_or(u32::MAX);
    let mut rollout = stored(targets, ledger).cloned().unwrap_or_else(|| RolloutState {
        revision: settings.revision.clone(),
        since: not_before(snapshot.now, cases.iter().flat_map(|case| case.pods)),
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
    let by_name: BTreeMap<&str, &ManagedNode<'_>> = cases.iter().map(|case| (case.name, case)).collect();
    let (mut retried, mut forgiven) = (BTreeSet::new(), false);
    if is_retried_everywhere(snapshot, &rollout) {
        retried.extend(std::mem::take(&mut rollout.failed).into_keys());
        rollout.failed_nodes.clear();
        rollout.lost.clear();
        forgiven = true;
    }
    rollout.retry.clone_from(&snapshot.resource.retry);
    let chosen_before = |node: &&String| by_name.get(node.as_str()).is_some_and(|case| case.chosen);
    let failed_before: BTreeSet<String> = rollout.failed.keys().filter(chosen_before).cloned().collect();
    let remembered = &rollout.failed_nodes;
    rollout.failed.retain(|node, failure| {
        let Some(case) = by_name.get(node.as_str()).filter(|case| case.chosen) else { return false };
        // Another machine of the same name.
        let uid = case.node.map(|node| node.uid.as_str()).unwrap_or_default();
        if !remembered.contains_key(uid) && remembered.values().any(|gone| gone.node == *node) {
            return false;
        }
        if is_retried(case, failure) {
            forgiven |= failure.reason == RESTARTS;
            retried.insert(node.clone());
            return false;
        }
        // A node that was given up is tried again once the detach settings change, and one that came through has not failed.
        match case.grant {
            Some(grant) if grant.refused.is_some() => node::is_given_up(case, grant, snapshot.now),
            Some(_) => true,
            None => {
                let kept = matches!(failure.reason.as_str(), RESTARTS | RELEASED) || !case.is_at(&settings.revision);
                kept || is_out(settings, case) || sights.condemns(settings, node)
            }
        }
    });
    reach(snapshot, targets, ledger, sights, &mut rollout, &by_name);
    note_losses(snapshot, sights, &mut rollout);
    let failed = &rollout.failed;
    rollout.failed_nodes.retain(|uid, gone| {
        let there = by_name.get(gone.node.as_str()).is_some_and(|case| case.chosen && case.node.is_some_and(|node| node.uid == *uid));
        // What comes back to the pool has not been forgiven.
        !there || !failed_before.contains(&gone.node) || failed.contains_key(&gone.node)
    });
    if has_steps(targets) {
        observe_step(snapshot, settings, sights, cases, &mut rollout, forgiven);
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
    cases: &BTreeMap<&str, &ManagedNode<'_>>,
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
    let lost: Vec<_> = lost.map(|(_, uid)| uid.clone()).collect();
    rollout.lost.extend(lost);
    // Whoever drains a node before it goes has cordoned it.
    let stays = |node: &str| cases.get(node).is_some_and(|case| case.chosen && case.node.is_some_and(|node| !node.unschedulable));
    rollout.reached.retain(|node, reached| uid(node) == Some(reached) && stays(node));
    for case in cases.values().filter(|case| stays(case.name)) {
        let grant = ledger.grants.get(case.name).filter(|grant| grant.kind == GrantReason::Update && grant.revision == rollout.revision);
        if let Some(grant) = grant.filter(|grant| uid(case.name) == Some(&grant.node_uid)) {
            rollout.reached.insert(case.name.to_owned(), grant.node_uid.clone());
        }
    }
}

/// Machines that were lost: those that are back until it is forgotten, those that went for good.
fn note_losses(snapshot: &Snapshot, sights: &Sights, rollout: &mut RolloutState) {
    let revision = &rollout.revision;
    rollout.lost.extend(sights.lost(revision).map(str::to_owned));
    rollout.lost.retain(|uid| sights.remembers(uid, revision) || !snapshot.nodes.values().any(|node| node.uid == *uid));
    while rollout.lost.len() > REMEMBERED {
        rollout.lost.pop_first();
    }
}

/// Machines that were lost after they had been given the revision, at which it has failed: one may be by chance.
const LOST: usize = 2;

/// The node came through, was attached, and does not serve any more, by what is wrong with its pods.
fn is_out(settings: &ResolvedSpec, case: &ManagedNode<'_>) -> bool {
    let attached = case.phase() == Some(Phase::Closed) && case.grant.is_none() && !case.holds_node();
    case.is_at(&settings.revision) && attached && !case.is_lost() && case.is_unavailable() && case.taken_out().is_none()
}

/// Restarts of containers of the revision, on nodes where there were any.
fn restarts(settings: &ResolvedSpec, cases: &[ManagedNode<'_>]) -> BTreeMap<String, i64> {
    let on = |case: &ManagedNode<'_>| -> i64 {
        let pods = case.pods.iter().filter(|pod| pod.revision == settings.revision);
        pods.map(|pod| i64::from(pod.restarts)).sum()
    };
    let chosen = cases.iter().filter(|case| case.chosen).map(|case| (case.name.to_owned(), on(case)));
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
    cases: &[ManagedNode<'_>],
    rollout: &mut RolloutState,
    forgiven: bool,
) {
    let done = rollout.steps_done as usize;
    let Some(step) = settings.rollout.steps.get(done) else { return };
    let now = restarts(settings, cases);
    let (sum, worst) = restarts_in_step(rollout, &now, forgiven);
    let too_many = step.max_restarts.is_some_and(|most| sum > most);
    if let Some(case) = cases.iter().find(|case| too_many && worst.as_deref() == Some(case.name)) {
        let failure = failure(snapshot, case, RESTARTS);
        note(rollout, case, failure);
    }
    let promote = snapshot.resource.spec.promote.as_ref();
    let promoted = promote.is_some_and(|promote| promote.revision == settings.revision && promote.step as usize > done);
    // Those that the partition keeps, too: a step is proved by all its nodes. One that never served proves nothing, and holds nothing up.
    let counts = |case: &ManagedNode<'_>| case.chosen && case.turn != Turn::Later && case.served() && case.phase() != Some(Phase::New);
    let asked_for: Vec<_> = cases.iter().filter(|case| counts(case)).collect();
    let unproven = (asked_for.is_empty() || settings.is_without_pods() || selects_none(&step.nodes, cases)) && !promoted;
    let reached = asked_for.iter().all(|case| case.is_at(&settings.revision) && case.grant.is_none());
    // In a large step some node is always out of service, or has just been.
    let out = asked_for.iter().filter(|case| case.is_unavailable() || sights.suspect(case.name).is_some()).count();
    if unproven || !reached || out > proof::noise(asked_for.len()) {
        rollout.soaked = None;
        return;
    }
    let soaked = *rollout.soaked.get_or_insert(0) >= step.soak;
    let halted = halt(settings, rollout, cases).is_some();
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
pub fn until_deadline(settings: &ResolvedSpec, case: &ManagedNode<'_>, grant: &Grant) -> Option<i64> {
    let since = case.token.as_ref().filter(|_| case.is_updated())?.since;
    Some(settings.rollout.node_deadline.saturating_sub(clocks::waited(grant, WaitFor::Pods, since)))
}

/// The way back when the rollout halts, where there is one.
pub fn roll_back(snapshot: &Snapshot, targets: &Targets, ledger: &Ledger, halt: &Halt) -> Option<RolledBack> {
    let effective = &targets.effective;
    // A guess is no revision to go back to by oneself.
    let proven = snapshot.resource.status.as_ref().is_some_and(|status| status.revisions.current == targets.proven);
    let known = proven && snapshot.history.iter().any(|known| known.revision == targets.proven);
    let possible = halt.condemns && effective.rollout.auto_rollback && targets.is_unproven() && ledger.rolled_back.is_none() && known;
    possible.then(|| RolledBack {
        from: effective.revision.clone(),
        to: targets.proven.clone(),
        at: snapshot.now,
        reason: format!("failed on {} of at most {} nodes, first on {}", halt.failed, halt.most, halt.first),
    })
}

/// The grant whose slot a person wants to be freed.
pub fn is_released(snapshot: &Snapshot, case: &ManagedNode<'_>, grant: &Grant) -> bool {
    let wanted = format!("{}:{}", snapshot.resource.key(), grant.id);
    case.node.and_then(|node| node.annotations.get(names::RELEASE_ANNOTATION)).is_some_and(|asked| asked.trim() == wanted)
}
