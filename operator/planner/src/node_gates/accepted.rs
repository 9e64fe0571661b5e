//! Whether new nodes of a gate are protected: when what taints them at their creation is in force.

use super::{
    policy_objects::{Means, clause, node_policy},
    world::Gate,
};
use crate::gates_shared::accepted::{Accepted, SETTLES, SETTLING};
use std::time::{Duration, Instant};

impl Means {
    /// When exactly what taints the gate's new nodes was accepted; nothing while that is something else. `owned`: as for
    /// [`node_policy`].
    pub fn accepted_at(&self, accepted: &Accepted, gate: &Gate, owned: bool) -> Option<Instant> {
        match self {
            Self::Policy => accepted.policy(&node_policy(gate, owned)?),
            Self::Webhook => accepted.clause(&clause(gate)?),
            Self::Reactive(_) => None,
        }
    }

    /// For condition `AdmissionActive`: a word for it, whether new nodes are tainted as they are created, and a sentence. `accepted`:
    /// how long ago the API server has accepted exactly what does that.
    pub fn condition(&self, accepted: Option<Duration>) -> (&'static str, bool, String) {
        let settled = accepted.is_some_and(|age| age >= SETTLES);
        match self {
            Self::Reactive(why) => ("Reactive", false, (*why).into()),
            Self::Policy if settled => ("Policy", true, "a MutatingAdmissionPolicy taints nodes at their creation".into()),
            Self::Webhook if settled => (
                "Webhook",
                true,
                "the operator's webhook taints nodes at their creation, while the API server can reach the operator".into(),
            ),
            Self::Policy if accepted.is_none() => (SETTLING, false, "the operator is writing the policy".into()),
            Self::Webhook if accepted.is_none() => {
                (SETTLING, false, "the operator is creating the configuration of the webhook and its certificates".into())
            }
            Self::Policy | Self::Webhook => (
                SETTLING,
                false,
                format!(
                    "written less than {} s ago, so an API server may not have read it yet: until then a new node may get the taint a moment after its creation",
                    SETTLES.as_secs()
                ),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::policy_objects::{Offers, means, policies},
        *,
    };
    use crate::gates_shared::{accepted::asked_since, policy_objects::AdmissionPolicy};
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    const POLICIES: Offers = Offers { policies: true, webhook: true };
    const WEBHOOK: Offers = Offers { policies: false, webhook: true };

    fn gate(more: &Value) -> Gate {
        let mut spec = json!({
            "nodeSelector": {"matchLabels": {"role": "edge"}}, "taint": {"key": "readiness.k8s.io/edge"},
            "requirements": [{"name": "dns", "daemonSet": {"namespace": "kube-system", "name": "dns"}}],
        });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let spec = serde_json::from_value(spec).unwrap();
        Gate {
            name: "edge".into(),
            uid: "0a1b".into(),
            generation: 1,
            created: 0,
            edited: None,
            deleting: false,
            spec,
            completion_annotation: None,
        }
    }

    fn accepted(policies: Vec<AdmissionPolicy>, at: Instant) -> Accepted {
        Accepted { policies: policies.into_iter().map(|policy| (policy.name.clone(), (policy, at))).collect(), ..Accepted::default() }
    }

    /// The condition of a gate at this time: word and value.
    fn said(accepted: &Accepted, gate: &Gate, offers: Offers, now: Instant) -> (&'static str, bool) {
        let means = means(gate, true, offers);
        let condition = means.condition(means.accepted_at(accepted, gate, true).map(|at| now - at));
        (condition.0, condition.1)
    }

    #[test]
    fn a_policy_is_in_force_only_some_time_after_acceptance() {
        let (gate, at) = (gate(&json!({})), Instant::now());
        let known = accepted(policies(&gate, true, POLICIES, true), at);
        assert_eq!(said(&known, &gate, POLICIES, at), ("Settling", false));
        assert_eq!(said(&known, &gate, POLICIES, at + SETTLES.saturating_sub(Duration::from_nanos(1))), ("Settling", false));
        assert_eq!(said(&known, &gate, POLICIES, at + SETTLES), ("Policy", true));
    }

    #[test]
    fn a_policy_older_than_its_gates_edit_does_not_count() {
        let (before, at) = (gate(&json!({})), Instant::now());
        let known = accepted(policies(&before, true, POLICIES, true), at);
        for edit in [
            json!({"nodeSelector": {"matchLabels": {"role": "web"}}}),
            json!({"taint": {"key": "readiness.k8s.io/other"}}),
            json!({"taint": {"key": "readiness.k8s.io/edge", "value": "x"}}),
            json!({"allNodes": true, "nodeSelector": null}),
        ] {
            assert_eq!(said(&known, &gate(&edit), POLICIES, at + 100 * SETTLES), ("Settling", false), "{edit}");
        }
        let anew = Gate { uid: "2c3d".into(), ..before };
        assert_eq!(said(&known, &anew, POLICIES, at + 100 * SETTLES), ("Settling", false), "made anew under the same name");
    }

    #[test]
    fn a_policy_for_tolerations_alone_taints_no_node() {
        let gate = gate(&json!({"tolerations": {"inject": "Referenced"}}));
        let (others, at) = (policies(&gate, false, POLICIES, true), Instant::now());
        assert_eq!(others.len(), 1);
        assert!(others[0].name.ends_with("-t0"), "{}", others[0].name);
        assert_eq!(said(&accepted(others, at), &gate, POLICIES, at + 100 * SETTLES), ("Settling", false));
    }

    #[test]
    fn an_operator_that_has_just_started_has_written_nothing() {
        let (gate, now) = (gate(&json!({})), Instant::now());
        for offers in [POLICIES, WEBHOOK] {
            assert_eq!(said(&Accepted::default(), &gate, offers, now), ("Settling", false));
        }
    }

    #[test]
    fn a_webhook_protects_a_gate_some_time_after_naming_it() {
        let (edge, at) = (gate(&json!({})), Instant::now());
        let web = gate(&json!({"nodeSelector": {"matchLabels": {"role": "web"}}}));
        let [of_edge, of_web] = [&edge, &web].map(|gate| clause(gate).unwrap());
        let first = asked_since(&BTreeMap::new(), std::slice::from_ref(&of_edge), at);
        let known = Accepted { clauses: first.clone(), ..Accepted::default() };
        assert_eq!(said(&known, &edge, WEBHOOK, at + SETTLES.saturating_sub(Duration::from_nanos(1))), ("Settling", false));
        assert_eq!(said(&known, &edge, WEBHOOK, at + SETTLES), ("Webhook", true));
        assert_eq!(said(&known, &web, WEBHOOK, at + 100 * SETTLES), ("Settling", false), "an earlier configuration does not name it");
        let later = at + 10 * SETTLES;
        let both = [of_edge, of_web];
        let known = Accepted { clauses: asked_since(&first, &both, later), ..Accepted::default() };
        assert_eq!(said(&known, &edge, WEBHOOK, later), ("Webhook", true), "either configuration names it");
        assert_eq!(said(&known, &web, WEBHOOK, later), ("Settling", false));
        assert_eq!(said(&known, &web, WEBHOOK, later + SETTLES), ("Webhook", true));
        let known = Accepted { clauses: asked_since(&BTreeMap::new(), &both, later), ..Accepted::default() };
        assert_eq!(said(&known, &edge, WEBHOOK, later), ("Settling", false), "nothing is known of the one before");
    }

    #[test]
    fn what_settles_is_told_once() {
        let (gate, at) = (gate(&json!({})), Instant::now());
        let known = accepted(policies(&gate, true, POLICIES, true), at);
        let due = at + SETTLES;
        let second = Duration::from_secs(1);
        let before = at + SETTLES.saturating_sub(second);
        assert!(!known.has_settled(None, before));
        assert!(known.has_settled(Some(before), due));
        assert!(known.has_settled(Some(before), due + second));
        assert!(!known.has_settled(Some(due), due + second));
        assert!(!Accepted::default().has_settled(None, due));
    }
}
