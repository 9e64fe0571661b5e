//! Why a rollout does not go on, in one word, and when it will be over.

use crate::{
    plan::{NodeProgress, Plan},
    reason::{Reason, clock},
    snapshot::Snapshot,
    spec::ResolvedSpec,
};
use crds::{
    UnixSeconds,
    ledger::Ledger,
    status::{Blocked, NodeCounts, NodePhase},
};

/// What the rollout waits for, while no node can go on before somebody or something else acts: the node's name, empty where it is
/// no single one, and why.
pub fn obstacle<'p>(plan: &'p Plan, ledger: &Ledger, nodes: &NodeCounts) -> Option<(&'p str, &'p Reason)> {
    // Nodes that leave are none of those that are wanted.
    let kept = plan.node_states.values().any(|state| matches!(state.reason, Reason::MinAvailable { .. }));
    if nodes.updated == nodes.desired && ledger.grants.is_empty() && plan.step.is_none() && !kept {
        return None;
    }
    if is_under_way(plan, ledger) || only_proves(plan, ledger, nodes) {
        return None;
    }
    let goes_on = goes_on_by_itself(plan);
    // A node that was lost with its slot is what the others wait for when they wait for the budget.
    let lost = |node: &String, reason: &Reason| *reason == Reason::NodeNotReady && ledger.grants.contains_key(node);
    let rank_of = |node: &String, state: &NodeProgress| match state.reason.class().rank {
        _ if goes_on && state.reason == Reason::Partition => None,
        Some(_) if lost(node, &state.reason) => Some(LOST_WITH_ITS_SLOT),
        None if ledger.grants.contains_key(node) => None,
        None if state.phase == NodePhase::Unavailable => Some(OUT_BY_ITSELF),
        None if matches!(state.reason, Reason::Joining { trouble: Some(_) }) => Some(DOES_NOT_JOIN),
        rank => rank,
    };
    let of_nodes = plan.node_states.iter().filter_map(|(node, state)| Some((rank_of(node, state)?, node.as_str(), &state.reason)));
    // All nodes of a step may be all nodes there are, and none of them is held.
    let obstacles = of_nodes.chain(plan.step.iter().filter_map(|reason| Some((reason.class().rank?, "", reason))));
    obstacles.min_by_key(|(rank, node, _)| (*rank, *node)).map(|(_, node, reason)| (node, reason))
}

/// The obstacle of the rollout as `status.blocked` shows it.
pub fn blocked(
    snapshot: &Snapshot,
    settings: &ResolvedSpec,
    obstacle: Option<(&str, &Reason)>,
    earlier: Option<&Blocked>,
) -> Option<Blocked> {
    let (node, reason) = obstacle?;
    let Snapshot { resource, now, .. } = snapshot;
    let object = if reason.class().of_rollout { format!("IngressDaemonSet/{}", resource.name) } else { format!("Node/{node}") };
    let word = reason.word().to_owned();
    let since = earlier.filter(|earlier| earlier.reason == word && earlier.object == object).map(|earlier| earlier.since.clone());
    let message = match reason {
        Reason::Budget { grants: 0, unavailable, .. } => {
            format!(
                "{unavailable} unavailable nodes use up the budget ({}), though the rollout did not take them out: repair these nodes, see nodeStates",
                settings.budget.to_json()
            )
        }
        _ => reason.message_of_rollout(),
    };
    Some(Blocked { reason: word, object, since: since.unwrap_or_else(|| clock(*now)), message })
}

/// A node works: that is enough for the rollout to go on when it is through.
pub fn is_under_way(plan: &Plan, ledger: &Ledger) -> bool {
    ledger.grants.keys().any(|node| plan.node_states.get(node).is_none_or(|state| state.reason.class().rank.is_none()))
}

/// Why all nodes that are behind keep their revision, where the user wants that of each of them. As for a `StatefulSet`, the rest counts.
pub fn held_by_spec(plan: &Plan) -> Option<&'static str> {
    let is_kept = |state: &NodeProgress| matches!(state.reason, Reason::Partition | Reason::OnDelete | Reason::Skipped);
    plan.node_states.values().all(is_kept).then(|| plan.node_states.values().next().map(|state| state.reason.word())).flatten()
}

/// Only time has to pass until the revision is proved on the nodes that run it; the spec keeps all others.
pub fn only_proves(plan: &Plan, ledger: &Ledger, nodes: &NodeCounts) -> bool {
    let unproved = ledger.rollout_state.as_ref().is_some_and(|rollout| !rollout.proved);
    let idle = ledger.grants.is_empty() && plan.step.is_none() && held_by_spec(plan).is_some();
    unproved && plan.sights.is_proving() && idle && nodes.updated > 0 && nodes.unavailable == 0 && plan.sights.suspects().next().is_none()
}

/// A wait ends by itself, so that the rollout goes on though a partition holds other nodes.
pub fn goes_on_by_itself(plan: &Plan) -> bool {
    plan.node_states.values().map(|state| &state.reason).chain(&plan.step).any(Reason::ends_by_itself)
}

/// Rank of a node that is not Ready and has a grant: with what is broken.
const LOST_WITH_ITS_SLOT: u8 = 4;
/// Rank of a node that is out of service by itself: it uses a slot that others wait for, or is what a step waits for.
const OUT_BY_ITSELF: u8 = 7;
/// Rank of a new node whose pods are in trouble: nobody waits for it.
const DOES_NOT_JOIN: u8 = 13;

/// When the rollout will be over if it goes on as it did since it began, time apart for which it stood still; nothing before a node is
/// finished, when all are, or once that time is over.
///
/// It is reckoned from the last node that was finished, so that it changes with each node and not with each look.
pub fn eta(nodes: &NodeCounts, ledger: &Ledger, now: UnixSeconds) -> Option<UnixSeconds> {
    let rollout = ledger.rollout_state.as_ref().filter(|_| !ledger.grants.is_empty())?;
    let finished = i64::from(rollout.finished.checked_sub(rollout.began_with).filter(|finished| *finished > 0)?);
    let left = i64::from(nodes.desired.checked_sub(rollout.finished).filter(|left| *left > 0)?);
    let spent = Some(rollout.spent.saturating_sub(rollout.idle)).filter(|spent| *spent > 0)?;
    let since = rollout.progressed_at.saturating_add(rollout.proving);
    Some(since.saturating_add(spent.saturating_mul(left) / finished)).filter(|at| *at > now)
}
