//! Whether new pods of a gate list its condition: when what adds it at their creation is in force.

use super::{
    policy_objects::{Means, clause, policy},
    world::Gate,
};
use crate::gates_shared::accepted::{Accepted, SETTLES, SETTLING};
use crds::names;
use std::time::{Duration, Instant};

impl Means {
    /// When exactly what adds the gate's condition to new pods was accepted; nothing while that is something else.
    pub fn accepted_at(&self, accepted: &Accepted, gate: &Gate) -> Option<Instant> {
        match self {
            Self::Policy => accepted.policy(&policy(gate)?),
            Self::Webhook => accepted.clause(&clause(gate)?),
            Self::Missing(..) => None,
        }
    }

    /// For condition `AdmissionActive`: a word for it, whether new pods list the gate's condition, and a sentence. `accepted`: how long ago
    /// the API server has accepted exactly what does that. `refused`: its answer where it has refused that.
    pub fn condition(&self, gate: &Gate, accepted: Option<Duration>, refused: Option<&str>) -> (&'static str, bool, String) {
        let agreed = format!("where Namespace {} has the label {}: {}", gate.namespace, names::INJECT_LABEL, names::INJECT_LABEL_VALUE);
        let settled = accepted.is_some_and(|age| age >= SETTLES);
        match (self, refused) {
            (Self::Missing(reason, why), _) => (reason, false, (*why).into()),
            (Self::Policy, _) if settled => {
                ("Policy", true, format!("a MutatingAdmissionPolicy gives the readiness gate to selected pods at their creation, {agreed}"))
            }
            (Self::Webhook, _) if settled => (
                "Webhook",
                true,
                format!(
                    "the operator's webhook gives the readiness gate to selected pods at their creation, {agreed}, and while the API server can reach the operator"
                ),
            ),
            (Self::Policy | Self::Webhook, _) if accepted.is_some() => (
                SETTLING,
                false,
                format!(
                    "written less than {} s ago, so an API server may not have read it yet: until then a new pod may be created without the readiness gate",
                    SETTLES.as_secs()
                ),
            ),
            (Self::Policy, Some(why)) => ("PolicyRefused", false, format!("the API server refused the policy: {why}")),
            (Self::Webhook, Some(why)) => {
                ("WebhookRefused", false, format!("the API server refused the configuration of the webhook: {why}"))
            }
            (Self::Policy, None) => (SETTLING, false, "the operator is writing the policy".into()),
            (Self::Webhook, None) => {
                (SETTLING, false, "the operator is creating the configuration of the webhook and its certificates".into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_was_accepted_counts_once_settled_despite_a_refusal() {
        let gate = Gate {
            namespace: "web".into(),
            name: "open".into(),
            uid: "uid".into(),
            generation: 1,
            created: 0,
            deleting: false,
            spec: serde_json::from_value(json!({"conditionType": "example.com/open", "source": {"manual": {}}})).unwrap(),
        };
        let just_before = SETTLES.saturating_sub(Duration::from_nanos(1));
        let rows = [(None, SETTLING), (Some(Duration::ZERO), SETTLING), (Some(just_before), SETTLING)];
        for (means, word, refused) in [(Means::Policy, "Policy", "PolicyRefused"), (Means::Webhook, "Webhook", "WebhookRefused")] {
            let said = |accepted, refused| {
                let (reason, works, _) = means.condition(&gate, accepted, refused);
                (reason, works)
            };
            for (accepted, wanted) in rows {
                assert_eq!(said(accepted, None), (wanted, false), "{accepted:?}");
            }
            assert_eq!((said(Some(SETTLES), None), said(Some(SETTLES), Some("no"))), ((word, true), (word, true)));
            assert_eq!((said(None, Some("no")), said(Some(just_before), Some("no"))), ((refused, false), (SETTLING, false)));
        }
        assert_eq!(Means::Missing("NoWebhook", "").condition(&gate, Some(SETTLES), None).0, "NoWebhook");
    }
}
