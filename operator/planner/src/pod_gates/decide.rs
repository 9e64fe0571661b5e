//! One look at one pod: all gates, at most one patch.

use super::{
    patch::{ConditionChange, patch},
    source::{SourceVerdict, verdict},
    world::{Gate, Pod, PodCondition, World},
};
use crate::{facts::NodeFacts, gates_shared::Key};
use crds::UnixSeconds;
use crds::pod_readiness_gate::{FailMode, GateDefault};
use serde_json::Value;
use std::collections::BTreeMap;

/// Reasons of conditions. One with another reason was written by somebody else.
pub mod reasons {
    /// The source says that the condition is True.
    pub const TRUE: &str = "SourceTrue";
    /// The source says that the condition is False.
    pub const FALSE: &str = "SourceFalse";
    /// The source says nothing, so the gate's default applies.
    pub const DEFAULT: &str = "Default";
    /// The source cannot be read.
    pub const UNREADABLE: &str = "SourceUnreadable";
    /// The list of holds cannot be read.
    pub const HOLDS: &str = "HoldsUnreadable";
    /// A container was started anew after the source spoke.
    pub const RESTARTED: &str = "ContainerRestarted";
    /// The gate that had the condition listed is gone.
    pub const GATE_GONE: &str = "GateGone";
    /// All reasons that the operator writes.
    pub const ALL: [&str; 7] = [TRUE, FALSE, DEFAULT, UNREADABLE, HOLDS, RESTARTED, GATE_GONE];
}

/// How one gate sees one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GateView {
    /// The pod lists the condition.
    pub gated: bool,
    /// What the condition is; none where there is none.
    pub status: Option<bool>,
    /// Machine-readable reason of the condition.
    pub reason: String,
    /// Human-readable message of the condition.
    pub message: String,
    /// The pod is to be written to for this gate.
    pub due: bool,
    /// Why the source cannot be read.
    pub unreadable: Option<String>,
    /// The gate that keeps the condition of this pod instead.
    pub beaten_by: Option<String>,
}

/// Change of a condition that a patch brings about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Name of the gate.
    pub gate: String,
    /// New status of the condition; none if the condition is removed.
    pub to: Option<bool>,
}

/// Actions for one pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodPlan {
    /// The patch of its status, where something changes.
    pub patch: Option<Value>,
    /// Changes of conditions that the patch brings about.
    pub transitions: Vec<Transition>,
    /// How each gate that selects it sees it, by name.
    pub views: BTreeMap<String, GateView>,
}

/// What a condition is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DesiredCondition {
    /// The condition stays unchanged.
    Same,
    /// The condition is removed, if the operator wrote it.
    Gone,
    /// The condition gets this status, reason and message.
    Is(bool, &'static str, String),
}

/// Decides about one pod. `node`: the pod's, if it is there; `now`: unix seconds.
pub fn decide(world: &World, key: &Key, node: Option<&NodeFacts>, now: UnixSeconds) -> PodPlan {
    let mut plan = PodPlan::default();
    let Some(pod) = world.pods.get(key) else { return plan };
    let mut changes = Vec::new();
    let mut winner: Option<&Gate> = None;
    for gate in world.gates_of(key, pod) {
        let type_ = gate.spec.condition_type.as_str();
        let current = pod.condition(type_);
        let mut view = GateView { gated: pod.gates.iter().any(|listed| listed == type_), ..GateView::of(current) };
        if let Some(winner) = winner.filter(|winner| winner.spec.condition_type == type_) {
            view.beaten_by = view.gated.then(|| winner.name.clone());
        } else {
            winner = Some(gate);
            if view.gated && !pod.ended {
                let verdict = verdict(world, gate, pod, node);
                view.note(&verdict);
                let before = changes.len();
                settle(&mut plan, &mut changes, gate, pod, verdict, now);
                view.due = changes.len() > before;
            }
        }
        plan.views.insert(gate.name.clone(), view);
    }
    plan.patch = patch(pod, &changes);
    if plan.patch.is_none() {
        plan.transitions.clear();
    }
    plan
}

impl Pod {
    /// A condition; the first, where there are several of the type: that is the one which a kubelet goes by.
    pub fn condition(&self, type_: &str) -> Option<&PodCondition> {
        self.conditions.iter().find(|condition| condition.type_ == type_)
    }
}

impl GateView {
    fn of(condition: Option<&PodCondition>) -> Self {
        condition.map_or_else(Self::default, |condition| Self {
            status: Some(condition.status == "True"),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            ..Self::default()
        })
    }

    fn note(&mut self, verdict: &SourceVerdict) {
        match verdict {
            SourceVerdict::Unreadable(why) => self.unreadable = Some(why.clone()),
            SourceVerdict::Pending if self.status.is_none() => {
                (self.reason, self.message) = ("Pending".into(), "the operator has not seen the source yet".into());
            }
            SourceVerdict::Silent(why) if self.status.is_none() => {
                (self.reason, self.message) = ("Unset".into(), format!("{why}, and the gate has no default"));
            }
            _ => {}
        }
    }
}

/// Compares what the condition is to be with what it is.
fn settle(plan: &mut PodPlan, changes: &mut Vec<ConditionChange>, gate: &Gate, pod: &Pod, verdict: SourceVerdict, now: UnixSeconds) {
    let type_ = gate.spec.condition_type.as_str();
    let current = pod.condition(type_);
    let of_type = || pod.conditions.iter().filter(|condition| condition.type_ == type_);
    let (change, to) = match wanted(gate, pod, current, verdict) {
        DesiredCondition::Same => return,
        DesiredCondition::Gone => {
            let ours = of_type().any(|condition| reasons::ALL.contains(&condition.reason.as_str()));
            if !ours {
                return;
            }
            (ConditionChange::gone(type_), None)
        }
        DesiredCondition::Is(status, reason, message) => {
            let observed_generation = pod.generation.filter(|_| pod.keeps_generation);
            let differs = current.is_none_or(|current| {
                (current.status == "True") != status
                    || current.status == "Unknown"
                    || (current.reason.as_str(), current.message.as_str()) != (reason, message.as_str())
                    || observed_generation.is_some() && current.observed_generation != observed_generation
            });
            let repeated = of_type().count() > 1;
            if !differs && !repeated {
                return;
            }
            let word = if status { "True" } else { "False" };
            let transition = match current {
                Some(current) if current.status == word => current.transition.clone(),
                _ => Some(jiff::Timestamp::from_second(now).unwrap_or_default().to_string()),
            };
            let condition = PodCondition {
                type_: type_.to_owned(),
                status: word.to_owned(),
                reason: reason.to_owned(),
                message,
                transition,
                observed_generation,
            };
            (ConditionChange::to(condition, repeated), Some(status))
        }
    };
    if current.map(|current| current.status == "True") != to {
        plan.transitions.push(Transition { gate: gate.name.clone(), to });
    }
    changes.push(change);
}

fn wanted(gate: &Gate, pod: &Pod, current: Option<&PodCondition>, verdict: SourceVerdict) -> DesiredCondition {
    match verdict {
        SourceVerdict::Pending => DesiredCondition::Same,
        SourceVerdict::Says(true, message) if gate.spec.reset_on_restart => after_restart(pod, current, &message),
        SourceVerdict::Says(true, message) => DesiredCondition::Is(true, reasons::TRUE, message),
        SourceVerdict::Says(false, message) => DesiredCondition::Is(false, reasons::FALSE, message),
        SourceVerdict::Garbled(message) => DesiredCondition::Is(false, reasons::HOLDS, message),
        SourceVerdict::Silent(message) => match gate.spec.default_ {
            GateDefault::True => DesiredCondition::Is(true, reasons::DEFAULT, message),
            GateDefault::False => DesiredCondition::Is(false, reasons::DEFAULT, message),
            GateDefault::Unset => DesiredCondition::Gone,
        },
        SourceVerdict::Unreadable(message) => match gate.spec.fail_mode {
            FailMode::Keep => DesiredCondition::Same,
            FailMode::Open => DesiredCondition::Is(true, reasons::UNREADABLE, message),
            FailMode::Closed => DesiredCondition::Is(false, reasons::UNREADABLE, message),
        },
    }
}

/// How the number of restarts stands in the message of a condition: no clock of a node is compared with ours.
const RESTARTS: &str = " (restarts: ";
/// How many of them are those of native sidecars; earlier releases counted none of these, and say none.
const OF_SIDECARS: &str = ", of sidecars: ";

/// What the source says is good for the containers that it spoke of.
fn after_restart(pod: &Pod, current: Option<&PodCondition>, message: &str) -> DesiredCondition {
    let counted = current.filter(|current| current.status == "True" && current.reason == reasons::TRUE).and_then(restarts);
    let was_reset = current.is_some_and(|current| current.status == "False" && current.reason == reasons::RESTARTED);
    let differs = |(containers, sidecars): (u32, Option<u32>)| {
        containers != pod.restarts || sidecars.is_some_and(|counted| pod.sidecar_restarts != Some(counted))
    };
    if was_reset || counted.is_some_and(differs) {
        let message = format!("a container restarted after the source said {message}: the source must say something else, then this again");
        return DesiredCondition::Is(false, reasons::RESTARTED, message);
    }
    let all = pod.restarts.saturating_add(pod.sidecar_restarts.unwrap_or(0));
    let of_sidecars = pod.sidecar_restarts.map(|sidecars| format!("{OF_SIDECARS}{sidecars}")).unwrap_or_default();
    DesiredCondition::Is(true, reasons::TRUE, format!("{message}{RESTARTS}{all}{of_sidecars})"))
}

/// Restarts that the message counts: of containers, and of native sidecars.
fn restarts(condition: &PodCondition) -> Option<(u32, Option<u32>)> {
    let (_, after) = condition.message.rsplit_once(RESTARTS)?;
    let counts = after.strip_suffix(')')?;
    let Some((all, sidecars)) = counts.split_once(OF_SIDECARS) else { return Some((counts.parse().ok()?, None)) };
    let (all, sidecars): (u32, u32) = (all.parse().ok()?, sidecars.parse().ok()?);
    Some((all.saturating_sub(sidecars), Some(sidecars)))
}
