//! How many nodes may lose their release: a bad version of one component must not taint the fleet.

use super::world::Gate;
use crds::node_readiness_gate::Effect;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Default share of a gate's nodes that may be held because they are no longer ready, in percent.
const SHARE: usize = 20;
/// Default of that share if the taint evicts pods, in percent.
const SHARE_EVICTING: usize = 5;
/// Nodes that may lose their release in a minute, by default.
const PER_MINUTE: u32 = 30;

/// What is left of a gate's budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetaintBudget {
    /// Nodes that may be held besides those that are.
    pub nodes: usize,
    /// Nodes that may lose their release in this minute.
    pub this_minute: usize,
}

impl RetaintBudget {
    /// What is left when so many nodes are selected, so many held for having ceased to be ready, and so many of them since a
    /// minute ago.
    pub fn of(gate: &Gate, matched: usize, regressed: usize, lately: usize) -> Self {
        let budget = gate.spec.retaint.as_ref().and_then(|retaint| retaint.budget.as_ref());
        let share = |percent: usize| if percent == 0 { 0 } else { (matched * percent / 100).max(1) };
        let most = match budget.and_then(|budget| budget.max_nodes.as_ref()) {
            Some(IntOrString::Int(number)) => usize::try_from(*number).unwrap_or(0),
            Some(IntOrString::String(text)) => share(text.strip_suffix('%').and_then(|percent| percent.parse().ok()).unwrap_or(0)),
            None => share(if gate.spec.taint.effect == Effect::NoExecute { SHARE_EVICTING } else { SHARE }),
        };
        let per_minute = budget.and_then(|budget| budget.per_minute).unwrap_or(PER_MINUTE);
        Self {
            nodes: most.saturating_sub(regressed),
            this_minute: usize::try_from(per_minute).unwrap_or(usize::MAX).saturating_sub(lately),
        }
    }

    /// Whether another node may lose its release.
    pub fn is_open(self) -> bool {
        self.nodes > 0 && self.this_minute > 0
    }
}
