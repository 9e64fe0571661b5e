//! All nodes of a resource, each with what it is to run and why that is not the newest template.

use crate::{
    facts::NodeFacts,
    node::{self, ManagedNode, RolloutTurn, breaker},
    objects::{render::Rendered, revisions::Targets},
    reason::Reason,
    rollout::rollout_state::{Halt, halt, has_labels, has_steps, has_to_prove, is_granted, runs, step_state},
    snapshot::Snapshot,
    spec::{ResolvedSpec, StepNodes, Topology},
};
use crds::{
    UnixSeconds,
    ledger::{GrantReason, Ledger, RolloutState},
    token::Phase,
};
use std::collections::{BTreeMap, BTreeSet};

/// All nodes that concern the resource, by name.
pub fn managed_nodes<'a>(snapshot: &'a Snapshot, targets: Option<&'a Targets>, ledger: &'a Ledger) -> Vec<ManagedNode<'a>> {
    let mut managed_nodes = node::all(snapshot, targets.map(|targets| &targets.effective), ledger);
    if let Some(targets) = targets {
        hold_back(snapshot, targets, ledger, &mut managed_nodes);
    }
    let mut rendered: BTreeMap<&str, Rendered<'_>> = BTreeMap::new();
    for managed in &mut managed_nodes {
        let Some((deployment, settings)) = managed.deployment.zip(managed.settings) else { continue };
        let rendered = rendered.entry(&settings.revision).or_insert_with(|| Rendered::new(snapshot, settings));
        managed.drifted = rendered.has_drifted(managed.name, deployment);
    }
    managed_nodes
}

/// Lets nodes whose turn it is not keep what they run, and says why.
fn hold_back<'a>(snapshot: &Snapshot, targets: &'a Targets, ledger: &Ledger, managed_nodes: &mut [ManagedNode<'a>]) {
    let settings = &targets.effective;
    let rollout = targets.rollout_state(ledger);
    let selective = !settings.rollout.lets_all_through() && targets.is_not_current();
    if selective && !settings.rollout.on_delete {
        let turns = turns(targets, rollout, managed_nodes);
        managed_nodes
            .iter_mut()
            .enumerate()
            .for_each(|(index, managed)| managed.turn = turns.get(&index).copied().unwrap_or(RolloutTurn::Later));
    }
    let halt = rollout.and_then(|rollout| halt(settings, rollout, managed_nodes));
    let closed = targets.closed();
    let step = step_state(snapshot, targets, rollout, managed_nodes);
    // A revision that is not released, not proved or that failed is none for nodes that join, where there is another.
    let paused = snapshot.resource.spec.paused;
    let to_prove = has_to_prove(targets, rollout);
    let withheld = to_prove || targets.is_not_current() && (paused || halt.is_some());
    let joins_current = withheld && targets.at(&targets.current).is_some();
    let without_turn = if to_prove { without_turn(settings, rollout, managed_nodes) } else { BTreeSet::new() };
    let without_pods = settings.is_without_pods();
    let waits = if without_pods { Reason::WithoutPods } else { Reason::JoinsCurrent };
    for (index, managed) in managed_nodes.iter_mut().enumerate().filter(|(_, managed)| managed.chosen) {
        // A machine that joins is no place to try a revision on.
        let is_given = managed.grant.is_some_and(|grant| grant.kind == GrantReason::Update);
        managed.joins = joins_current && to_prove && has_joined_in_place(managed, rollout);
        let joins = managed.joins || joins_current && is_new(managed) && !is_given;
        if managed.is_at(&settings.revision) && !joins {
            continue;
        }
        let stays = without_turn.contains(&index);
        let out_of_turn = if selective && settings.rollout.on_delete {
            let since = rollout.map_or(i64::MAX, |rollout| rollout.since);
            let allowed = is_new(managed) || is_granted(managed, settings) || lost_a_pod(managed, settings, since);
            (!allowed).then_some(Reason::OnDelete)
        } else {
            match managed.turn {
                RolloutTurn::Now => None,
                RolloutTurn::HeldByPartition => Some(Reason::Partition),
                RolloutTurn::Later => Some(step.clone().unwrap_or(Reason::Partition)),
            }
        };
        // What is under way goes on when the rollout halts or the window closes, to another revision, too, when the one that it
        // was for is wanted no more; new nodes need no window.
        let changing = is_changing(managed);
        let given_up = managed.grant.is_some_and(|grant| node::gave_up(grant, settings));
        let under_way = changing || given_up || is_granted(managed, settings);
        let halted = || halt.as_ref().filter(|_| !under_way).map(Halt::reason);
        let closed = || closed.clone().filter(|_| !under_way && !is_new(managed));
        let unproved = || (joins || stays).then(|| if paused { Reason::Paused } else { waits.clone() });
        let Some(why) = halted().or(out_of_turn).or_else(unproved).or_else(closed) else { continue };
        // What such a node began with may have failed there.
        let goes_back = joins || is_new(managed) || changing && !targets.current.is_empty();
        let kept = if goes_back { &targets.current } else { managed.deployment.map_or("", |found| found.revision()) };
        match targets.at(kept) {
            Some(settings) => managed.settings = Some(settings),
            // Without a current revision a new node cannot wait for one, nor one without pods for what it ran.
            None if is_new(managed) || stays && (managed.grant.is_none() || without_pods) => continue,
            None => managed.former_unknown = true,
        }
        managed.held_back = Some(why);
    }
}

/// Nodes, by their index, that get pods again though the revision has not come to them: they came back from a drain, or had none. The
/// budget bounds nothing of that, so that they keep what they run while it has no slot for them beside those that have the revision.
/// Without any pods nodes could prove nothing, and all keep it.
fn without_turn(settings: &ResolvedSpec, rollout: Option<&RolloutState>, managed_nodes: &[ManagedNode<'_>]) -> BTreeSet<usize> {
    let was_reached = |managed: &ManagedNode<'_>| rollout.is_some_and(|rollout| rollout.reached.contains_key(managed.name));
    let has_it = |managed: &ManagedNode<'_>| {
        is_granted(managed, settings) || managed.is_at(&settings.revision) && !is_new(managed) || was_reached(managed)
    };
    let chosen = || managed_nodes.iter().filter(|managed| managed.chosen);
    let mut taken: Vec<&ManagedNode<'_>> = chosen().filter(|managed| has_it(managed)).collect();
    let has_room = |taken: &[&ManagedNode<'_>], managed: &ManagedNode<'_>| {
        let domain = settings.topology.as_ref().and_then(|topology| Some((topology, topology.budget?)));
        let here = |topology: &Topology, other: &ManagedNode<'_>| other.domain(topology) == managed.domain(topology);
        taken.len() < settings.budget.of(chosen().count())
            && domain.is_none_or(|(topology, budget)| {
                let nodes = chosen().filter(|other| here(topology, other)).count();
                taken.iter().filter(|other| here(topology, other)).count() < budget.of(nodes)
            })
    };
    let mut stay = BTreeSet::new();
    let others =
        managed_nodes.iter().enumerate().filter(|(_, managed)| managed.chosen && !is_new(managed) && !managed.is_at(&settings.revision));
    for (index, managed) in others {
        let is_empty = || managed.deployment.is_some_and(|found| found.replicas() <= 0 && breaker::read(found).is_none());
        let stays = match managed.grant {
            _ if settings.is_without_pods() => true,
            None => is_empty(),
            Some(grant) if grant.kind == GrantReason::Update || grant.refused.is_some() || grant.released => false,
            Some(_) if was_reached(managed) || managed.is_draining() => false,
            Some(_) if has_room(&taken, managed) => {
                taken.push(managed);
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
fn has_joined_in_place(managed: &ManagedNode<'_>, rollout: Option<&RolloutState>) -> bool {
    let was_given = |node: &NodeFacts| rollout.is_some_and(|rollout| rollout.reached.get(managed.name) == Some(&node.uid));
    managed.took_name() && !managed.node.is_some_and(was_given)
}

fn is_new(managed: &ManagedNode<'_>) -> bool {
    managed.phase().is_none_or(|phase| phase == Phase::New)
}

/// An update, to whatever revision, is under way, and what runs is not what the Deployment says.
fn is_changing(managed: &ManagedNode<'_>) -> bool {
    !managed.settled && managed.grant.is_some_and(|grant| matches!(grant.kind, GrantReason::Update | GrantReason::Abort))
}

/// Somebody deleted a pod of an older revision since the newest became the wanted one. Pods that came while the operator was at work on
/// the node (more replicas, a repair, the way back from a drain) are its own doing, and more than there should be are nobody's loss.
fn lost_a_pod(managed: &ManagedNode<'_>, settings: &ResolvedSpec, since: UnixSeconds) -> bool {
    let Some(deployment) = managed.deployment else { return false };
    if is_new(managed) || managed.grant.is_some_and(|grant| !matches!(grant.kind, GrantReason::Update | GrantReason::Abort)) {
        return false;
    }
    let closed = managed.token.as_ref().filter(|token| token.phase == Phase::Closed).map_or(since, |token| token.since);
    let older = managed.pods.iter().filter(|pod| pod.revision != settings.revision && !pod.ended && !pod.terminating);
    let left = older.filter(|pod| pod.created <= since.max(closed)).count();
    let wanted = deployment.replicas().min(settings.pods_per_node);
    usize::try_from(wanted).is_ok_and(|wanted| left < wanted)
}

/// The nodes, by their index, that the steps up to the present one ask for, and which of them the partition keeps. Those that the
/// rollout has reached already come first, so that a set stays what it is when nodes come and go.
fn turns(targets: &Targets, rollout: Option<&RolloutState>, managed_nodes: &[ManagedNode<'_>]) -> BTreeMap<usize, RolloutTurn> {
    let settings = &targets.effective;
    let mut order: Vec<_> = managed_nodes.iter().enumerate().filter(|(_, managed)| managed.chosen).collect();
    order.sort_by_cached_key(|(_, managed)| (managed.order_hash(&settings.revision), managed.name));
    let urgency = |managed: &ManagedNode<'_>| {
        let fit = managed.node.is_some_and(|node| node.ready && !node.unschedulable) && !managed.is_skipped();
        // Those under way come next: a step counts them as its own.
        (!runs(managed, settings), !is_changing(managed), !fit)
    };
    order.sort_by_cached_key(|(_, managed)| urgency(managed));
    if let Some(topology) = &settings.topology {
        // A step has nodes of every domain, or first those of one, as the rest of the rollout.
        let begun: BTreeSet<_> =
            order.iter().filter(|(_, managed)| runs(managed, settings)).map(|(_, managed)| managed.domain(topology)).collect();
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        let places = order.iter().map(|(index, managed)| {
            let domain = managed.domain(topology);
            let turn = seen.entry(domain).or_default();
            *turn += 1;
            (*index, if topology.one_at_a_time { (0, !begun.contains(domain), domain) } else { (*turn, false, "") })
        });
        let places: BTreeMap<_, _> = places.collect();
        order.sort_by_cached_key(|(index, managed)| (urgency(managed), places[index]));
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
                asked_for.extend(order.iter().filter(|(_, managed)| has_labels(managed, labels)).map(|(index, _)| *index));
            }
        }
    }
    let asked_for = order.iter().map(|(index, _)| *index).filter(|index| asked_for.contains(index));
    asked_for
        .enumerate()
        .map(|(place, index)| (index, if place < most { RolloutTurn::Now } else { RolloutTurn::HeldByPartition }))
        .collect()
}
