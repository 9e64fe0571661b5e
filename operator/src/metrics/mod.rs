//! Prometheus metrics. Labels are resources, and enums and reasons from fixed lists, never names of nodes or error texts.

pub mod node_gates;
pub mod pod_gates;
mod shown;

pub use node_gates::GateMetrics;
pub use pod_gates::PodGateMetrics;
pub use shown::Shown;

use crate::rights::Rights;
use crds::{ledger::Ledger, status::NodePhase};
use parking_lot::Mutex;
use planner::{
    plan::{Plan, Write},
    reason,
};
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use std::{collections::BTreeMap, sync::Arc};

/// A resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub struct Of {
    /// `namespace/name`.
    pub resource: String,
}

/// A node state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub struct State {
    /// `namespace/name` of the resource.
    pub resource: String,
    /// desired, current, updated, ready, available, unavailable, degraded, detached or failed.
    pub state: &'static str,
}

/// A reason, from [`planner::Reason::word`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub struct ByReason {
    /// `namespace/name` of the resource.
    pub resource: String,
    /// The reason.
    pub reason: &'static str,
}

/// What a write is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ByWrite {
    /// claim, detach, update, unmark, close and others.
    pub write: &'static str,
}

/// Where a node stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ByPhase {
    /// As in `status.nodeStates`.
    pub phase: String,
}

/// What happened to a pod or machine after its node's update, from [`planner::reason::FALLS`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Fall {
    /// `CrashLoop`, `Flapping`, `Evicted` or `NodeLost`.
    pub reason: &'static str,
}

/// The outcome of a pass.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Result {
    /// ok or failed.
    pub result: &'static str,
}

/// Reads a number of nodes.
type CountOf = fn(&Plan) -> u32;

const STATES: [(&str, CountOf); 9] = [
    ("desired", |plan| plan.status.nodes.desired),
    ("current", |plan| plan.status.nodes.current),
    ("updated", |plan| plan.status.nodes.updated),
    ("ready", |plan| plan.status.nodes.ready),
    ("available", |plan| plan.status.nodes.available),
    ("unavailable", |plan| plan.status.nodes.unavailable),
    ("degraded", |plan| plan.status.nodes.degraded),
    ("detached", |plan| plan.status.nodes.detached),
    ("failed", |plan| plan.status.nodes.failed),
];

/// All metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    nodes: Shown<State>,
    grants: Shown<Of>,
    budget: Shown<Of>,
    waiting: Shown<ByReason>,
    writes: Family<ByWrite, Counter>,
    fencing_rejections: Counter,
    node_updates: Family<Result, Counter>,
    node_falls: Family<Fall, Counter>,
    rollbacks: Counter,
    passes: Family<Result, Counter>,
    phase_seconds: Family<ByPhase, Histogram>,
    leader: Gauge,
    /// Rights that the operator lacks.
    pub rights: Arc<Rights>,
    /// Those of readiness gates.
    pub gates: GateMetrics,
    /// Those of readiness gates of pods.
    pub pod_gates: PodGateMetrics,
    latest: Mutex<BTreeMap<String, Plan>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("ids");
        let nodes = Shown::registered(&mut registry, "nodes", "Nodes by state");
        let grants = Shown::registered(&mut registry, "grants", "Grants: nodes that the operator may disrupt now");
        let budget = Shown::registered(&mut registry, "budget", "Slots of the budget: nodes that may be disrupted at once");
        let waiting = Shown::registered(&mut registry, "waiting_nodes", "Nodes that are not idle, by reason");
        let writes = Family::<ByWrite, Counter>::default();
        registry.register("writes", "Writes to Deployments and Nodes, by step", writes.clone());
        let fencing_rejections = Counter::default();
        registry.register(
            "fencing_rejections",
            "Writes that the API server refused because the object had changed",
            fencing_rejections.clone(),
        );
        let node_updates = Family::<Result, Counter>::default();
        registry.register("node_updates", "Ended disruptions of nodes, by result", node_updates.clone());
        let node_falls = Family::<Fall, Counter>::default();
        registry.register(
            "node_falls",
            "Restarts, unready times, evictions and losses after a node's update, by reason",
            node_falls.clone(),
        );
        let rollbacks = Counter::default();
        registry.register("rollbacks", "Automatic rollbacks of failed revisions", rollbacks.clone());
        let passes = Family::<Result, Counter>::default();
        registry.register("passes", "Passes over a resource, by result; alert if only failed passes increase", passes.clone());
        let phase_seconds = Family::<ByPhase, Histogram>::new_with_constructor(|| {
            // From a second to an hour: a grace period is seconds, a detacher may take minutes.
            Histogram::new([1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0])
        });
        registry.register("phase_duration_seconds", "Time that a node spent in a phase", phase_seconds.clone());
        let leader = Gauge::default();
        registry.register("leader", "1 while this replica acts, else 0", leader.clone());
        let rights = Rights::registered(&mut registry);
        let gates = GateMetrics::registered(&mut registry);
        let pod_gates = PodGateMetrics::registered(&mut registry);
        Self {
            rights,
            gates,
            pod_gates,
            registry,
            nodes,
            grants,
            budget,
            waiting,
            writes,
            fencing_rejections,
            node_updates,
            node_falls,
            rollbacks,
            passes,
            phase_seconds,
            leader,
            latest: Mutex::default(),
        }
    }
}

impl Metrics {
    /// Remembers what was decided for a resource; `None` when it is gone.
    pub fn decided(&self, key: &str, plan: Option<&Plan>) {
        let mut latest = self.latest.lock();
        match plan {
            Some(plan) => {
                let summary = Plan { actions: Vec::new(), ..plan.clone() };
                latest.insert(key.to_owned(), summary);
            }
            None => {
                latest.remove(key);
            }
        }
    }

    /// A write was made.
    pub fn wrote(&self, write: Write) {
        self.writes.get_or_create(&ByWrite { write: write.as_str() }).inc();
        if write == Write::Close {
            self.node_updates.get_or_create(&Result { result: "closed" }).inc();
        }
    }

    /// A ledger was written over another.
    pub fn ledger_written(&self, before: Option<&Ledger>, after: &Ledger) {
        let failed = |ledger: Option<&Ledger>| {
            ledger.and_then(|ledger| ledger.rollout_state.clone()).map(|rollout| rollout.failed).unwrap_or_default()
        };
        let known = failed(before);
        for _ in failed(Some(after)).keys().filter(|node| !known.contains_key(*node)) {
            self.node_updates.get_or_create(&Result { result: "failed" }).inc();
        }
        for (node, suspect) in &after.suspects {
            let known = before.and_then(|before| before.suspects.get(node));
            let known = known.filter(|known| (&known.node_uid, &known.revision) == (&suspect.node_uid, &suspect.revision));
            let falls = suspect.falls.saturating_sub(known.map_or(0, |known| known.falls));
            if let Some(reason) = reason::FALLS.into_iter().find(|reason| falls > 0 && *reason == suspect.last) {
                self.node_falls.get_or_create(&Fall { reason }).inc_by(falls.into());
            }
        }
        if after.rolled_back.is_some() && before.is_none_or(|before| before.rolled_back != after.rolled_back) {
            self.rollbacks.inc();
        }
    }

    /// A node left a phase in which it spent this long.
    pub fn spent(&self, phase: NodePhase, seconds: f64) {
        self.phase_seconds.get_or_create(&ByPhase { phase: phase.to_string() }).observe(seconds);
    }

    /// The API server refused a write because a test in it failed.
    pub fn fenced(&self) {
        self.fencing_rejections.inc();
    }

    /// A pass ended.
    pub fn passed(&self, ok: bool) {
        self.passes.get_or_create(&Result { result: if ok { "ok" } else { "failed" } }).inc();
    }

    /// This replica acts, or does not.
    pub fn leading(&self, leading: bool) {
        self.leader.set(i64::from(leading));
    }

    /// The text that Prometheus scrapes; gauges are computed now.
    pub fn scrape(&self) -> String {
        {
            let latest = self.latest.lock();
            let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
            let of = |of: &dyn Fn(&Plan) -> usize| {
                latest.iter().map(|(resource, plan)| (Of { resource: resource.clone() }, count(of(plan)))).collect()
            };
            self.grants.replace(&of(&|plan| plan.gauges.grants));
            self.budget.replace(&of(&|plan| plan.gauges.budget));
            let (mut nodes, mut waiting) = (BTreeMap::new(), BTreeMap::new());
            for (resource, plan) in latest.iter() {
                for (state, of) in STATES {
                    nodes.insert(State { resource: resource.clone(), state }, i64::from(of(plan)));
                }
                for state in plan.node_states.values() {
                    *waiting.entry(ByReason { resource: resource.clone(), reason: state.reason.word() }).or_default() += 1;
                }
            }
            self.nodes.replace(&nodes);
            self.waiting.replace(&waiting);
        }
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::ledger::Suspect;

    fn ledger(revision: &str, falls: u32) -> Ledger {
        let suspect = Suspect { revision: revision.to_owned(), falls, last: "Flapping".to_owned(), ..Suspect::default() };
        Ledger { suspects: [("n1".to_owned(), suspect)].into(), ..Ledger::default() }
    }

    #[test]
    fn each_fall_is_counted_once_and_those_of_another_revision_anew() {
        let metrics = Metrics::default();
        let ledgers = [ledger("a", 1), ledger("a", 1), ledger("a", 3), ledger("a", 0), ledger("b", 2)];
        let mut before = None;
        for after in &ledgers {
            metrics.ledger_written(before, after);
            before = Some(after);
        }
        let text = metrics.scrape();
        assert!(text.contains("ids_node_falls_total{reason=\"Flapping\"} 5\n"), "{text}");
    }
}
