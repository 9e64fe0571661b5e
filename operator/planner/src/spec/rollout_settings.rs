//! Which nodes come when, and when it is enough.

use super::{Count, SpecProblem, milliseconds};
use crds::ingress_daemon_set::{IngressDaemonSetSpec, RollingUpdate, RolloutStep, UpdateStrategyType};
use std::collections::BTreeMap;

/// Seconds for a node to be complete after its pods began to change.
const NODE_DEADLINE: u32 = 600;
/// Seconds for any node to be finished.
const PROGRESS_DEADLINE: u32 = 3600;
/// Seconds for which a new revision must serve. In them fit three starts of a container that ends at once, by the back-off of its kubelet
/// (10 s, 20 s). The time after which the Node of a machine that died is no longer Ready (40 to 50 s) fits, too.
const PROVEN_AFTER: u32 = 60;
/// Falls of a node's worst pod, with evictions and losses of the node, that fail a revision there.
const MAX_FLAPS: u32 = 3;
/// Former revisions that are kept, as for a Deployment.
const HISTORY: u32 = 10;

/// Which nodes come when, and when it is enough.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RolloutSettings {
    /// Only nodes of which somebody has deleted a pod.
    pub on_delete: bool,
    /// Nodes that keep their revision: a number or a percentage.
    pub partition: Count,
    /// Canary steps, in their order.
    pub steps: Vec<StepSettings>,
    /// Seconds from the first change of a node's pods until it has failed.
    pub node_deadline: i64,
    /// Seconds without a finished node until the rollout is said not to progress.
    pub progress_deadline: i64,
    /// Number of failed nodes at which the rollout halts.
    pub max_failed: usize,
    /// Seconds for which a new revision must serve without a break to count as good; 0: from the first moment on.
    pub proven_after: i64,
    /// Falls of a node's worst pod, with evictions and losses of the node, at which the revision has failed there; 0: at none.
    pub max_flaps: u32,
    /// The rollout rolls back by itself when it halts.
    pub auto_rollback: bool,
    /// Number of former revisions to keep.
    pub history: usize,
}

/// One step of a canary.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSettings {
    /// Nodes that the step updates.
    pub nodes: StepNodes,
    /// Seconds for which they must serve without a break.
    pub soak: i64,
    /// Maximum number of restarts before the step fails.
    pub max_restarts: Option<i64>,
    /// The step waits for `spec.promote` after its soak.
    pub pause: bool,
}

/// Which nodes a step updates.
#[derive(Clone, Debug, PartialEq)]
pub enum StepNodes {
    /// So many in all, those of earlier steps included.
    Total(Count),
    /// Those with these labels, besides those of earlier steps.
    Labelled(BTreeMap<String, String>),
}

impl RolloutSettings {
    /// No node keeps what it runs when the template changes.
    pub fn lets_all_through(&self) -> bool {
        !self.on_delete && self.partition.is_zero() && self.steps.is_empty()
    }

    pub(super) fn of(spec: &IngressDaemonSetSpec, rolling: &RollingUpdate, attach_soak: i64) -> Result<Self, SpecProblem> {
        let seconds = |given: Option<u32>, default: u32| i64::from(given.unwrap_or(default));
        Ok(Self {
            on_delete: spec.update_strategy.as_ref().is_some_and(|strategy| strategy.type_ == UpdateStrategyType::OnDelete),
            partition: Count::parse("partition", rolling.partition.as_ref())?.unwrap_or_default(),
            steps: rolling.steps.iter().enumerate().map(|(index, step)| self::step(index, step)).collect::<Result<_, _>>()?,
            node_deadline: seconds(rolling.node_deadline_seconds, NODE_DEADLINE),
            progress_deadline: seconds(rolling.progress_deadline_seconds, PROGRESS_DEADLINE),
            max_failed: rolling.max_failed_nodes.map_or(1, |most| most.max(1) as usize),
            proven_after: match rolling.proven_after_seconds {
                Some(0) => 0,
                given => seconds(given, PROVEN_AFTER).max(attach_soak).max(i64::from(spec.min_ready_seconds)),
            },
            max_flaps: rolling.max_flaps.unwrap_or(MAX_FLAPS),
            auto_rollback: rolling.auto_rollback,
            history: spec.revision_history_limit.unwrap_or(HISTORY) as usize,
        })
    }
}

fn step(index: usize, step: &RolloutStep) -> Result<StepSettings, SpecProblem> {
    let field = |name: &str| format!("steps[{index}].{name}");
    let nodes = match (Count::parse(&field("nodes"), step.nodes.as_ref())?, &step.node_selector) {
        (Some(count), None) => StepNodes::Total(count),
        (None, Some(labels)) => StepNodes::Labelled(labels.clone()),
        (Some(_), Some(_)) | (None, None) => {
            let message = format!(
                "steps[{index}] needs either nodes (the total that runs the new revision) or nodeSelector (which nodes): set one of them"
            );
            return Err(SpecProblem { reason: "InvalidSpec", message });
        }
    };
    let soak = step.soak.as_ref().map_or(Ok(0), |text| milliseconds(&field("soak"), text))?;
    Ok(StepSettings { nodes, soak: soak.saturating_add(999) / 1000, max_restarts: step.max_restarts.map(i64::from), pause: step.pause })
}
