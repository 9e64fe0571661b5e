//! Metrics of readiness gates of pods. Labels are names of gates and fixed words, never names of pods.

use super::{Shown, kept};
use planner::pod_gates::review::PodAnswered;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

labels! {
    /// Pods of a gate, by its namespace and name: true, false, unset or `not_gated`.
    Pods { gate: String, state: &'static str }
    /// Changes of conditions to true, false or unset.
    Became { gate: String, to: &'static str }
    /// Why a patch had no effect: conflict, forbidden or other.
    Refused { reason: &'static str }
    /// How the webhook answered: injected, unchanged or undecodable.
    WebhookAnswer { answer: &'static str }
}

/// What a condition becomes, as a label.
fn word(to: Option<bool>) -> &'static str {
    match to {
        Some(true) => "true",
        Some(false) => "false",
        None => "unset",
    }
}

/// All of them.
#[derive(Clone, Debug)]
pub struct PodGateMetrics {
    /// Pods by gate and state.
    pub pods: Shown<Pods>,
    /// Changes of conditions.
    transitions: Family<Became, Counter>,
    /// Patches that were sent.
    pub patches: Counter,
    /// Patches that had no effect.
    pub refused: Family<Refused, Counter>,
    /// Seconds that a patch took.
    pub patch_seconds: Histogram,
    webhook_answers: Family<WebhookAnswer, Counter>,
}

impl PodGateMetrics {
    /// In this registry.
    pub fn registered(registry: &mut Registry) -> Self {
        let refused = "Patches of pod status by gates that had no effect, by reason";
        let patch_seconds = Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]);
        let of = registry;
        Self {
            pods: Shown::registered(of, "pod_gate_pods", "Pods of a readiness gate, by state of the condition"),
            transitions: kept(of, "pod_gate_transitions", "Changes of pod conditions by gates, by new value", Family::default()),
            patches: kept(of, "pod_gate_patches", "Patches of pod status by gates", Counter::default()),
            refused: kept(of, "pod_gate_patch_refusals", refused, Family::default()),
            patch_seconds: kept(of, "pod_gate_patch_duration_seconds", "Duration of a patch of pod status", patch_seconds),
            webhook_answers: kept(of, "pod_webhook_answers", "Answers of the webhook for new pods, by answer", Family::default()),
        }
    }

    /// The gate of this namespace and name is gone.
    pub fn forget(&self, (namespace, name): &(String, String)) {
        for to in [Some(true), Some(false), None].map(word) {
            self.transitions.remove(&Became { gate: format!("{namespace}/{name}"), to });
        }
    }

    /// A gate changed a condition.
    pub fn changed(&self, (namespace, name): &(String, String), to: Option<bool>) {
        self.transitions.get_or_create(&Became { gate: format!("{namespace}/{name}"), to: word(to) }).inc();
    }

    /// The webhook has answered.
    pub fn webhook_answered(&self, answered: PodAnswered) {
        let answer = match answered {
            PodAnswered::Injected => "injected",
            PodAnswered::Unchanged => "unchanged",
            PodAnswered::Undecodable => "undecodable",
        };
        self.webhook_answers.get_or_create(&WebhookAnswer { answer }).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_of_a_gate_goes_with_it() {
        let mut registry = Registry::default();
        let metrics = PodGateMetrics::registered(&mut registry);
        let counted = |registry: &Registry| {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
            text.lines().filter(|line| line.contains("gate=")).count()
        };
        let [one, other] = ["one", "other"].map(|name| ("web".to_owned(), name.to_owned()));
        for to in [Some(true), Some(false), None] {
            metrics.changed(&one, to);
        }
        metrics.changed(&other, None);
        assert_eq!(counted(&registry), 4);
        metrics.forget(&one);
        assert_eq!(counted(&registry), 1);
    }
}
