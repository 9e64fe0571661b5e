//! Metrics of gates. Labels are names of gates and fixed words, never names of nodes.

use super::{Shown, kept};
use crds::UnixSeconds;
use planner::node_gates::{Transition, review::Answered, transition::Happened};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

labels! {
    /// A gate, by name.
    OfGate { gate: String }
    /// Nodes of a gate: matched, held, released, stuck, `budget_blocked`, spared or refused.
    Nodes { gate: String, state: &'static str }
    /// Nodes that a requirement holds, by its name.
    Blocked { gate: String, requirement: String }
    /// Changes of taints, as [`operation`] names them.
    Operation { gate: String, operation: &'static str }
    /// Why a patch had no effect: test, conflict, forbidden or other.
    Refused { reason: &'static str }
    /// How the webhook answered: tainted, unchanged or undecodable.
    WebhookAnswer { answer: &'static str }
}

/// All of them.
#[derive(Clone, Debug)]
pub struct GateMetrics {
    /// Nodes by gate and state.
    pub nodes: Shown<Nodes>,
    /// Nodes that a requirement holds.
    pub blocked: Shown<Blocked>,
    operations: Family<Operation, Counter>,
    /// Patches that had no effect.
    pub refused: Family<Refused, Counter>,
    /// Patches that were sent.
    pub patches: Counter,
    /// Pods that were on a node before its taint, and do not bear it.
    pub late_pods: Family<OfGate, Counter>,
    hold: Family<OfGate, Histogram>,
    /// Seconds from the decision to the end of its patch.
    pub patch_seconds: Histogram,
    /// Events on Nodes that were left out because there were too many at once.
    pub events_dropped: Counter,
    webhook_answers: Family<WebhookAnswer, Counter>,
    webhook_expiry: Gauge,
}

impl GateMetrics {
    /// In this registry.
    pub fn registered(registry: &mut Registry) -> Self {
        // From a second to an hour: an image may have to be fetched.
        let hold = || Histogram::new([1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0]);
        let patch_seconds = Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]);
        let late = "Pods that were bound to a node before its taint and do not tolerate it";
        let expiry = "Unix time at which the webhook's certificate expires; 0 without a webhook";
        let hold = Family::new_with_constructor(hold as fn() -> Histogram);
        let patch_help = "Time from a decision about a node to the end of its patch";
        let of = registry;
        Self {
            nodes: Shown::registered(of, "gate_nodes", "Nodes of a readiness gate, by state"),
            blocked: Shown::registered(of, "gate_blocked_nodes", "Nodes that a gate holds, by requirement"),
            operations: kept(of, "gate_taint_operations", "Taint changes by gates, by operation", Family::default()),
            patches: kept(of, "gate_patches", "Patches of Nodes by gates", Counter::default()),
            refused: kept(of, "gate_patch_refusals", "Patches of Nodes by gates that had no effect, by reason", Family::default()),
            late_pods: kept(of, "gate_late_taint_pods", late, Family::default()),
            hold: kept(of, "gate_hold_duration_seconds", "Time for which a gate held a node", hold),
            patch_seconds: kept(of, "gate_patch_duration_seconds", patch_help, patch_seconds),
            events_dropped: kept(of, "gate_events_dropped", "Events on Nodes that the rate limit dropped", Counter::default()),
            webhook_answers: kept(of, "webhook_answers", "Answers of the webhook for new nodes, by answer", Family::default()),
            webhook_expiry: kept(of, "webhook_cert_expiry_seconds", expiry, Gauge::default()),
        }
    }

    /// There is such a gate: what counts up begins at 0, or an alert would miss the first of a kind.
    pub fn begin(&self, gate: &str) {
        drop(self.late_pods.get_or_create(&OfGate { gate: gate.to_owned() }));
        for operation in OPERATIONS.map(operation) {
            drop(self.operations.get_or_create(&Operation { gate: gate.to_owned(), operation }));
        }
    }

    /// The gate is gone.
    pub fn forget(&self, gate: &str) {
        let of = OfGate { gate: gate.to_owned() };
        self.late_pods.remove(&of);
        self.hold.remove(&of);
        for operation in OPERATIONS.map(operation) {
            self.operations.remove(&Operation { gate: gate.to_owned(), operation });
        }
    }

    /// The webhook has answered.
    pub fn webhook_answered(&self, answered: Answered) {
        let answer = match answered {
            Answered::Tainted => "tainted",
            Answered::Unchanged => "unchanged",
            Answered::Undecodable => "undecodable",
        };
        self.webhook_answers.get_or_create(&WebhookAnswer { answer }).inc();
    }

    /// Until when the certificate that the webhook serves is good, unix seconds.
    pub fn webhook_expires(&self, at: UnixSeconds) {
        self.webhook_expiry.set(at);
    }

    /// Something came about for a gate.
    pub fn happened(&self, gate: &str, transition: &Transition) {
        self.operations.get_or_create(&Operation { gate: gate.to_owned(), operation: operation(transition.happened) }).inc();
        if let Some(seconds) = transition.held_for.and_then(|seconds| u32::try_from(seconds).ok()) {
            self.hold.get_or_create(&OfGate { gate: gate.to_owned() }).observe(f64::from(seconds));
        }
    }
}

/// One of each word that [`operation`] has.
const OPERATIONS: [Happened; 7] = [
    Happened::Added { late: false },
    Happened::Adopted,
    Happened::PutBack,
    Happened::Removed,
    Happened::LetGo,
    Happened::Yielded,
    Happened::TimedOut,
];

fn operation(happened: Happened) -> &'static str {
    match happened {
        Happened::Added { .. } => "add",
        Happened::Adopted => "adopt",
        Happened::PutBack => "put_back",
        Happened::Removed => "remove",
        Happened::LetGo => "let_go",
        Happened::Yielded => "yield",
        Happened::TimedOut => "time_out",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;

    #[test]
    fn metrics_of_a_removed_gate_are_not_shown() {
        let mut registry = Registry::default();
        let metrics = GateMetrics::registered(&mut registry);
        let shown = |registry: &Registry| {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
            text.lines().filter(|line| line.contains("gate=\"edge\"")).map(str::to_owned).collect::<Vec<_>>()
        };
        metrics.begin("edge");
        // Prometheus sees an increase only of what was there before.
        assert!(shown(&registry).iter().any(|line| line.ends_with("operation=\"remove\"} 0")), "{:?}", shown(&registry));
        for happened in OPERATIONS.into_iter().chain([Happened::Added { late: true }]) {
            let transition = Transition { gate: "u1".to_owned(), happened, held_for: Some(7), since: None, regression: false };
            metrics.happened("edge", &transition);
        }
        assert!(shown(&registry).len() > 6, "{:?}", shown(&registry));
        metrics.forget("edge");
        assert_eq!(shown(&registry), [""; 0]);
    }
}
