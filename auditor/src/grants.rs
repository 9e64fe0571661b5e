//! P8: nothing starts while the resource is paused.

use serde_json::Value;

use super::{Audit, Property, observation::Object};

/// Grants that need no admission: they take over a slot, or serve nodes that go anyway.
const WITHOUT_ADMISSION: [&str; 3] = ["Abort", "Drain", "Remove"];

impl Audit<'_> {
    /// Looks for nodes that got a grant although the state that the operator wrote over was paused.
    pub(super) fn judge_grants(&mut self, before: Option<&Value>, after: &Value) {
        let Some(before) = before else { return };
        if before["spec"]["paused"].as_bool() != Some(true) {
            return;
        }
        let old = &before["status"]["rollout"]["grants"];
        let Some(new) = after["status"]["rollout"]["grants"].as_object() else { return };
        for (node, grant) in new {
            let kind = grant["kind"].as_str().unwrap_or_default();
            if old[node].is_null() && !WITHOUT_ADMISSION.contains(&kind) {
                self.report(Property::PausedStartsNothing, format!("node {node} got a grant of {} while it is paused", after.name()));
            }
        }
    }
}
