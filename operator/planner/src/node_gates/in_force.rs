//! Since when a gate is in force: which nodes are new to it.
//!
//! A gate that is switched on among nodes that run (`dryRun` taken away, another selector, `nodeReadinessTaint` set on a running
//! resource, requirements that can be met at last) must not take them for nodes that have just come. It would taint all of them
//! at once that are not ready at that moment. So the time since which it is in force, and for which nodes, is in its status.

use super::world::{Gate, World};
use crate::facts::NodeFacts;
use crds::{
    NodeReadinessGateStatus, UnixSeconds, hash,
    node_readiness_gate::{ConditionStatus, InForce},
    status::UNOBSERVED,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Taint of a Node that its kubelet has not called ready yet; the API server gives it to each new one.
pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// Seconds within which a new node's kubelet, or the controller of nodes in its place, has said for the first time that it is not
/// ready: that controller waits for 50 s.
const FIRST_WORD: i64 = 120;

/// What was said last of a gate's being in force.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    /// Generation of the spec that it was said of.
    pub generation: i64,
    /// Since when; none while the gate taints no node.
    pub in_force: Option<InForce>,
}

impl Said {
    /// As a status says it; nothing where nobody has looked at the gate yet.
    pub fn of(status: &NodeReadinessGateStatus) -> Option<Self> {
        let generation = status.observed_generation.filter(|generation| *generation != UNOBSERVED)?;
        Some(Self { generation, in_force: status.in_force.clone() })
    }
}

/// Since when the gate is in force. `before`: what was said of that last; `None` where nothing was ever said of the gate.
/// `enforced`: it could open.
pub fn in_force(gate: &Gate, enforced: bool, before: Option<&Said>, now: UnixSeconds) -> Option<InForce> {
    if gate.spec.dry_run || !enforced {
        return None;
    }
    let scope = scope(gate);
    let since = match before {
        Some(Said { in_force: Some(known), .. }) if known.scope == scope => return Some(known.clone()),
        // Nobody has looked at it yet, and it is as it was made: nodes that came meanwhile are new.
        None if gate.generation <= 1 => gate.created,
        // It was edited, and nodes that came since then are new, too.
        Some(Said { generation, .. }) if *generation < gate.generation => gate.edited.map_or(now, |at| at.clamp(gate.created, now)),
        _ => now,
    };
    Some(InForce { since: Time(Timestamp::from_second(since).unwrap_or_default()), scope })
}

/// Which nodes the gate is for, as 10 hexadecimal digits.
fn scope(gate: &Gate) -> String {
    let selector = gate.spec.node_selector.as_ref().filter(|_| !gate.spec.all_nodes);
    hash::hex(serde_json::to_string(&selector).unwrap_or_default().as_bytes(), 10) // plain data: always serialisable
}

/// The node came while the gate was in force, or after the gate was made and has never been ready: nothing runs there yet.
pub fn is_new(world: &World, gate: &Gate, node: &NodeFacts) -> bool {
    let since = world.in_force.get(&gate.uid).copied().unwrap_or(gate.created);
    node.created >= since || node.created >= gate.created && was_never_ready(node)
}

/// Its kubelet says that the node is ready, and so does the API server.
pub fn is_up(node: &NodeFacts) -> bool {
    let ready = node.conditions.iter().find(|condition| &*condition.type_ == "Ready");
    ready.is_some_and(|ready| ready.status == ConditionStatus::True) && !bears_not_ready(node)
}

fn was_never_ready(node: &NodeFacts) -> bool {
    let ready = node.conditions.iter().find(|condition| &*condition.type_ == "Ready");
    let first = |transition: UnixSeconds| transition.saturating_sub(node.created) < FIRST_WORD;
    bears_not_ready(node) && ready.is_none_or(|ready| ready.status != ConditionStatus::True && first(ready.transition))
}

fn bears_not_ready(node: &NodeFacts) -> bool {
    node.taints.iter().any(|taint| taint.key == NOT_READY && taint.effect == "NoSchedule")
}
