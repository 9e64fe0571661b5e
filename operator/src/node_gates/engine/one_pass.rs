//! The loop of one pass: decides on what is listed now until no write is due.

use super::{Engine, EngineOptions, NodeFailure, Work};
use crds::NodeReadinessGate;
use futures::StreamExt as _;
use kube::{ResourceExt as _, core::DeserializeGuard};
use planner::node_gates::{Gate, decide::GateView, record::annotation_key, transition::GateClock};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::time::Instant;

/// How often it is looked whether all has been listed: many watches begin at once, and none of them tells this loop.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long events are waited for in the end: one for each of thousands of nodes would hold up the answer.
const TOLD_WITHIN: Duration = Duration::from_secs(10);

/// How nodes are seen at the end of one pass.
pub struct NodesSeen {
    /// The gates, by UID.
    pub gates: BTreeMap<String, Arc<Gate>>,
    /// Why gates could not open, by UID.
    pub unsatisfiable: BTreeMap<String, (&'static str, String)>,
    /// How gates see nodes, by node, then by UID of the gate.
    pub views: BTreeMap<String, BTreeMap<String, GateView>>,
    /// Why nodes could not be changed.
    pub failures: BTreeMap<String, String>,
}

impl Engine {
    /// One that knows these gates, which are all, and follows what they ask for. It keeps no policies, and writes to no gate.
    pub async fn of_one_pass(options: EngineOptions, gates: Vec<DeserializeGuard<NodeReadinessGate>>) -> Self {
        let mut engine = Self::new(options);
        engine.admission.rule_out();
        engine.known.replace(gates.into_iter().map(|gate| (gate.name_any(), gate)).collect());
        engine.listed = true;
        engine.refresh_gates().await;
        engine
    }

    /// Returns when everything has been listed that gates ask for; at `deadline`, why something was not.
    pub async fn everything_listed(&mut self, deadline: Instant) -> Result<(), String> {
        loop {
            let listed = !self.sources.are_listing();
            // A DaemonSet that was found says which pods are its own.
            self.sources.adjust();
            let why = match self.sources.broken() {
                None if listed && !self.sources.are_listing() => return Ok(()),
                why => why.unwrap_or_else(|| "not everything that gates ask for was listed in time".into()),
            };
            if Instant::now() >= deadline || why.contains("is forbidden") {
                return Err(why);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Changes nodes until no change is due.
    pub async fn run_once(mut self) -> NodesSeen {
        let gates = self.state.world().gates.clone();
        // One pass cannot watch a node that was there before a gate for `retaint.failingFor`: it takes what it sees for what has been.
        for (name, node) in &*self.observer.nodes() {
            let unknown = gates.keys().filter(|uid| !node.annotations.contains_key(&annotation_key(uid)));
            let clocks = unknown.map(|uid| (uid.clone(), GateClock { failing_since: Some(0), ..GateClock::default() }));
            self.clocks.insert(name.clone(), clocks.collect());
        }
        let mut work = Work::new();
        self.look(&work);
        while let Some(ended) = work.next().await {
            self.ended(ended);
            self.look(&work);
        }
        let Self { told, telling, unsatisfiable, views, failures, .. } = self;
        drop(told);
        // Events are no reason to fail.
        let _ = tokio::time::timeout(TOLD_WITHIN, telling).await;
        let why = |failure: NodeFailure| failure.refusal.map_or_else(|| "its pods cannot be listed".to_owned(), |refusal| refusal.message);
        let failures = failures.into_iter().map(|(node, failure)| (node, why(failure))).collect();
        NodesSeen { gates, unsatisfiable, views, failures }
    }
}
