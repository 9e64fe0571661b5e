//! The patch of a pod's status: conditions by their type, and nothing else.
//!
//! A strategic merge: conditions that are not named stay, whoever writes them meanwhile. With the pod's UID, so that another pod
//! of the same name is not taken for it.

use super::world::{Pod, PodCondition};
use crds::pod_readiness_gate::RESERVED_CONDITIONS;
use serde_json::{Value, json};

/// Change of one condition in a pod's status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionChange {
    type_: String,
    /// What it becomes; none: it goes.
    condition: Option<PodCondition>,
    /// Those of the type that are there go first: there may be several.
    replaces: bool,
}

impl ConditionChange {
    /// Removes the condition of this type.
    pub fn gone(type_: &str) -> Self {
        Self { type_: type_.to_owned(), condition: None, replaces: true }
    }

    /// The condition becomes this. `replaces`: all of its type go first.
    pub fn to(condition: PodCondition, replaces: bool) -> Self {
        Self { type_: condition.type_.clone(), condition: Some(condition), replaces }
    }
}

/// The patch; `None` when nothing changes.
pub fn patch(pod: &Pod, changes: &[ConditionChange]) -> Option<Value> {
    let mut conditions = Vec::new();
    for change in changes.iter().filter(|change| !RESERVED_CONDITIONS.contains(&change.type_.as_str())) {
        if change.replaces {
            conditions.push(json!({"$patch": "delete", "type": change.type_}));
        }
        if let Some(condition) = &change.condition {
            conditions.push(entry(condition));
        }
    }
    (!conditions.is_empty()).then(|| json!({"metadata": {"uid": pod.uid}, "status": {"conditions": conditions}}))
}

fn entry(condition: &PodCondition) -> Value {
    let mut entry = json!({"type": condition.type_, "status": condition.status, "reason": condition.reason, "message": condition.message});
    if let Some(transition) = &condition.transition {
        entry["lastTransitionTime"] = transition.as_str().into();
    }
    if let Some(generation) = condition.observed_generation {
        entry["observedGeneration"] = generation.into();
    }
    entry
}
