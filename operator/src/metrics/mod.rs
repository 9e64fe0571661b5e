//! Prometheus metrics, all in one registry. Who counts holds its own; `/metrics` shows them.
//!
//! Passes and gates tell it what they decided and wrote; [`web`](crate::web) asks for the text. Labels are resources, gates, and enums and
//! reasons from fixed lists, never names of nodes or pods, or error texts.

/// Sets of labels, and which values they have.
macro_rules! labels {
    ($($(#[$doc:meta])+ $name:ident { $($label:ident: $type:ty),+ })+) => {$(
        $(#[$doc])+
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prometheus_client::encoding::EncodeLabelSet)]
        #[allow(missing_docs)]
        pub struct $name {
            $(pub $label: $type,)+
        }
    )+};
}

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
    encoding::text,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Metric, Registry},
};
use std::{collections::BTreeMap, sync::Arc};

labels! {
    /// A resource, by namespace and name.
    Of { resource: String }
    /// A node state: desired, current, updated, ready, available, unavailable, degraded, detached or failed.
    State { resource: String, state: &'static str }
    /// A reason, from [`planner::Reason::word`].
    ByReason { resource: String, reason: &'static str }
    /// A condition: Ready, Reconciling or Stalled.
    ByCondition { resource: String, condition: &'static str }
    /// What a write is for: claim, detach, update, unmark, close and others.
    ByWrite { write: &'static str }
    /// Where a node stands, as in `status.nodeStates`.
    ByPhase { phase: String }
    /// What happened to a pod or machine after its node's update, from [`planner::reason::FALLS`].
    Fall { reason: &'static str }
    /// The outcome of a pass or an update: ok, closed or failed.
    Result { result: &'static str }
}

/// Reads how many nodes there are.
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

/// A counter that begins at 0 for each reason: what a rule sees first is then a growth.
fn zeros() -> Family<Fall, Counter> {
    let family = Family::default();
    for reason in reason::FALLS {
        drop(family.get_or_create(&Fall { reason }));
    }
    family
}

/// Conditions of which each resource has one.
const CONDITIONS: [&str; 3] = ["Ready", "Reconciling", "Stalled"];

/// All metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    nodes: Shown<State>,
    conditions: Shown<ByCondition>,
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
        // From a second to an hour: a grace period is seconds, a detacher may take minutes.
        let phase_seconds = || Histogram::new([1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0]);
        let falls = "Restarts, unready times, evictions and losses after a node's update, by reason";
        let fenced = "Writes that the API server refused because the object had changed";
        let of = &mut registry;
        Self {
            nodes: Shown::registered(of, "nodes", "Nodes by state"),
            conditions: Shown::registered(of, "conditions", "1 if the condition of the resource is True, else 0"),
            grants: Shown::registered(of, "grants", "Grants: nodes that the operator may disrupt now"),
            budget: Shown::registered(of, "budget", "Slots of the budget: nodes that may be disrupted at once"),
            waiting: Shown::registered(of, "waiting_nodes", "Nodes that are not idle, by reason"),
            writes: kept(of, "writes", "Writes to Deployments and Nodes, by step", Family::default()),
            fencing_rejections: kept(of, "fencing_rejections", fenced, Counter::default()),
            node_updates: kept(of, "node_updates", "Ended disruptions of nodes, by result", Family::default()),
            node_falls: kept(of, "node_falls", falls, zeros()),
            rollbacks: kept(of, "rollbacks", "Automatic rollbacks of failed revisions", Counter::default()),
            passes: kept(of, "passes", "Passes over a resource, by result; alert if only failed passes increase", Family::default()),
            phase_seconds: kept(
                of,
                "phase_duration_seconds",
                "Time that a node spent in a phase",
                Family::new_with_constructor(phase_seconds as fn() -> Histogram),
            ),
            leader: kept(of, "leader", "1 while this replica acts, else 0", Gauge::default()),
            rights: Rights::registered(of),
            gates: GateMetrics::registered(of),
            pod_gates: PodGateMetrics::registered(of),
            latest: Mutex::default(),
            registry,
        }
    }
}

/// What is made known to a registry is kept by whoever counts.
fn kept<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
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
            let (mut nodes, mut waiting, mut conditions) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
            for (resource, plan) in latest.iter() {
                for (state, of) in STATES {
                    nodes.insert(State { resource: resource.clone(), state }, i64::from(of(plan)));
                }
                for condition in CONDITIONS {
                    let is_true = plan.status.conditions.iter().any(|known| known.type_ == condition && known.status == "True");
                    conditions.insert(ByCondition { resource: resource.clone(), condition }, i64::from(is_true));
                }
                for state in plan.node_states.values() {
                    *waiting.entry(ByReason { resource: resource.clone(), reason: state.reason.word() }).or_default() += 1;
                }
            }
            self.nodes.replace(&nodes);
            self.conditions.replace(&conditions);
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
    fn each_fall_is_counted_once_per_revision() {
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
