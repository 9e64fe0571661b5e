//! Metrics of readiness gates of pods. Labels are names of gates and fixed words, never names of pods.

use super::Shown;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

/// Pods of a gate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub struct Pods {
    /// Namespace and name of the gate.
    pub gate: String,
    /// true, false, unset or `not_gated`.
    pub state: &'static str,
}

/// Changes of conditions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Became {
    /// Namespace and name of the gate.
    pub gate: String,
    /// true, false or unset.
    pub to: &'static str,
}

/// Why a patch had no effect.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Refused {
    /// conflict, forbidden or other.
    pub reason: &'static str,
}

/// All of them.
#[derive(Clone, Debug)]
pub struct PodGateMetrics {
    /// Pods by gate and state.
    pub pods: Shown<Pods>,
    /// Changes of conditions.
    pub transitions: Family<Became, Counter>,
    /// Patches that were sent.
    pub patches: Counter,
    /// Patches that had no effect.
    pub refused: Family<Refused, Counter>,
    /// Seconds that a patch took.
    pub patch_seconds: Histogram,
}

impl PodGateMetrics {
    /// In this registry.
    pub fn registered(registry: &mut Registry) -> Self {
        let metrics = Self {
            pods: Shown::registered(registry, "pod_gate_pods", "Pods of a readiness gate, by state of the condition"),
            transitions: Family::default(),
            patches: Counter::default(),
            refused: Family::default(),
            patch_seconds: Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]),
        };
        registry.register("pod_gate_transitions", "Changes of pod conditions by gates, by new value", metrics.transitions.clone());
        registry.register("pod_gate_patches", "Patches of pod status by gates", metrics.patches.clone());
        registry.register(
            "pod_gate_patch_refusals",
            "Patches of pod status by gates that had no effect, by reason",
            metrics.refused.clone(),
        );
        registry.register("pod_gate_patch_duration_seconds", "Duration of a patch of pod status", metrics.patch_seconds.clone());
        metrics
    }
}
