//! Whether new nodes of a gate are protected: not as soon as the API server has accepted what is to protect them, but when every
//! API server goes by it.
//!
//! An API server reads policies and configurations of webhooks again about once a second, and tells nobody. Until then a new node
//! is tainted as the body before it says, or not at all. So the operator counts from the answer to its own write, by a clock that
//! nobody sets. An operator that has just started knows of no write of its own: it writes all of it anew, which changes nothing where
//! nothing differs, and counts from there.

use super::{
    policy_objects::{Means, clause, node_policy},
    world::Gate,
};
use crate::gates_shared::policy_objects::AdmissionPolicy;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// How long after its acceptance a policy or a configuration counts as in force. An API server reads them again a second after it
/// has done so last, from a watch that may lag behind, and a busy one compiles them more slowly: five times as long leaves room.
pub const SETTLES: Duration = Duration::from_secs(5);

/// What the API server has accepted from this operator and nobody has changed since, as far as is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Accepted {
    /// Policies with their bindings, by name, and when the last of the two was accepted.
    pub policies: BTreeMap<String, (AdmissionPolicy, Instant)>,
    /// Since when the webhook is asked for the nodes of each [`clause`].
    pub clauses: BTreeMap<String, Instant>,
}

impl Accepted {
    /// When exactly what taints the gate's new nodes was accepted; nothing while that is something else. `owned`: as for
    /// [`node_policy`].
    pub fn at(&self, means: &Means, gate: &Gate, owned: bool) -> Option<Instant> {
        match means {
            Means::Policy => {
                let wanted = node_policy(gate, owned)?;
                self.policies.get(&wanted.name).filter(|(accepted, _)| *accepted == wanted).map(|(_, at)| *at)
            }
            Means::Webhook => self.clauses.get(&clause(gate)?).copied(),
            Means::Reactive(_) => None,
        }
    }

    /// Whether something has settled after `before`, and not after `now`: conditions say something else then.
    pub fn has_settled(&self, before: Option<Instant>, now: Instant) -> bool {
        let settled = |at: &Instant| *at + SETTLES <= now && before.is_none_or(|before| *at + SETTLES > before);
        self.policies.values().map(|(_, at)| at).chain(self.clauses.values()).any(settled)
    }
}

/// Since when the webhook is asked for each clause, where its configuration with these was accepted `now`. `before`: the same of the
/// configuration that it replaces, empty where that trusted other authorities or is not known. A clause that both have was never
/// without effect, whichever of the two an API server goes by.
pub fn asked_since(before: &BTreeMap<String, Instant>, clauses: &[String], now: Instant) -> BTreeMap<String, Instant> {
    clauses.iter().map(|clause| (clause.clone(), before.get(clause).copied().unwrap_or(now))).collect()
}

impl Means {
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
            Self::Policy if accepted.is_none() => ("Settling", false, "the operator is writing the policy".into()),
            Self::Webhook if accepted.is_none() => {
                ("Settling", false, "the operator is creating the configuration of the webhook and its certificates".into())
            }
            Self::Policy | Self::Webhook => (
                "Settling",
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
    use serde_json::{Value, json};

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
        let condition = means.condition(accepted.at(&means, gate, true).map(|at| now - at));
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
