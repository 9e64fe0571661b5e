//! What a gate says of itself.

use super::{
    decide::GateView,
    world::{Gate, World, daemon_set_pods},
};
use crate::gates_shared::conditions::{GateConditions, GateReadiness};
use crds::UnixSeconds;
use crds::node_readiness_gate::{BlockedRequirement, Effect, GateCounts, GateTaint, InForce, NodeReadinessGateStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use std::collections::{BTreeMap, BTreeSet};

/// How many nodes a requirement names.
const SAMPLE: usize = 10;

/// What is reported of a gate besides how it sees nodes.
#[derive(Clone, Debug, Default)]
pub struct Circumstances {
    /// Why the gate could never open: reason and message.
    pub unsatisfiable: Option<(&'static str, String)>,
    /// Sources of its requirements that the operator cannot see, in sentences.
    pub unseen: Vec<String>,
    /// Names of other gates with its taint on nodes that it selects.
    pub overlaps: BTreeSet<String>,
    /// Nodes that could not be written to.
    pub refused: Option<RefusedWrites>,
    /// Since when it is in force.
    pub in_force: Option<InForce>,
    /// How nodes are tainted as they are created: a word for it, whether it works, and a sentence.
    pub admission: Option<(&'static str, bool, String)>,
    /// Taints that it has or had.
    pub taints: Vec<GateTaint>,
    /// It is being deleted; what it waits for.
    pub deletion: Option<Deletion>,
}

/// What the deletion of a gate waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deletion {
    /// Nodes that have a record of it.
    pub nodes: u32,
    /// Its policy or its part of the webhook is still there: until it is gone the gate goes on as before.
    pub admission: Option<Lingering>,
}

/// What taints new nodes and is to be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lingering {
    /// The operator has not sent the deletion yet, or waits for its result.
    Waits,
    /// The API server refused the deletion, with this message.
    Refused(String),
}

impl Deletion {
    /// How the gate stands, a word for it, and what the deletion waits for. `refused`: writes to nodes that were.
    fn said(&self, refused: Option<&RefusedWrites>) -> (GateReadiness, &'static str, String) {
        let waits = match &self.admission {
            Some(_) => "the gate acts as before until its policy or webhook is gone".to_owned(),
            None => format!("{} nodes still have the gate's taint or record", self.nodes),
        };
        let policy = match &self.admission {
            Some(Lingering::Refused(why)) => Some(format!("the operator cannot delete its policy or webhook: {why}")),
            Some(Lingering::Waits) | None => None,
        };
        let hindrances: Vec<_> = policy.into_iter().chain(refused.map(|refused| refused.said().2)).collect();
        let (readiness, reason) =
            if hindrances.is_empty() { (GateReadiness::Reconciling, "Deleting") } else { (GateReadiness::Stalled, "DeletionBlocked") };
        (readiness, reason, std::iter::once(format!("being deleted: {waits}")).chain(hindrances).collect::<Vec<_>>().join("; "))
    }
}

/// Writes to nodes that were refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedWrites {
    /// Number of nodes whose patch was refused.
    pub nodes: u32,
    /// Name of one of these nodes.
    pub node: String,
    /// The answer was that somebody does not allow it.
    pub forbidden: bool,
    /// Message of the API server.
    pub message: String,
}

impl RefusedWrites {
    /// How the gate stands, a word for it, and what to do.
    fn said(&self) -> (GateReadiness, &'static str, String) {
        let (readiness, reason, remedy) = if self.forbidden {
            (
                GateReadiness::Stalled,
                "PatchForbidden",
                "install the ClusterRole of this release again, so that the operator may patch Nodes, or make admission control allow the patch",
            )
        } else {
            (
                GateReadiness::Reconciling,
                "PatchFailed",
                "the operator retries; check why the API server or its admission control refuses the write",
            )
        };
        let Self { nodes, node, message, .. } = self;
        (
            readiness,
            reason,
            format!("the operator cannot write to {nodes} nodes, including {node}: {message}; {remedy}. These nodes do not change"),
        )
    }
}

/// Nodes that are not ready and stay without the taint.
#[derive(Clone, Copy, Debug, Default)]
struct UntaintedNodes {
    /// The budget is used up.
    no_room: u32,
    /// The taint would evict the pods that are waited for.
    spared: u32,
}

/// The status of a gate.
pub fn status<'a>(
    gate: &Gate,
    before: &[Condition],
    views: impl Iterator<Item = (&'a str, &'a GateView)>,
    circumstances: &Circumstances,
    now: UnixSeconds,
) -> NodeReadinessGateStatus {
    let mut nodes = GateCounts::default();
    let mut blocked: BTreeMap<&str, BlockedRequirement> = BTreeMap::new();
    let mut kept = UntaintedNodes::default();
    for (node, view) in views {
        let count = |counter: &mut u32, is: bool| *counter += u32::from(is);
        count(&mut nodes.matched, view.matched);
        count(&mut nodes.held, view.held);
        count(&mut nodes.released, view.released);
        count(&mut nodes.late, view.late);
        count(&mut nodes.stuck, view.stuck);
        count(&mut nodes.would_taint, view.would_taint);
        count(&mut nodes.would_release, view.would_release);
        count(&mut kept.no_room, view.no_room);
        count(&mut kept.spared, view.spared);
        for (requirement, reason) in &view.blocked {
            let entry = blocked.entry(requirement).or_insert_with(|| BlockedRequirement {
                requirement: requirement.clone(),
                reason: reason.clone(),
                ..BlockedRequirement::default()
            });
            entry.nodes += 1;
            if entry.sample.len() < SAMPLE {
                entry.sample.push(node.to_owned());
            }
        }
    }
    let summary = summary(gate, &nodes, &blocked);
    let conditions = conditions(gate, before, &nodes, kept, circumstances, &summary, now);
    let mut blocked: Vec<_> = blocked.into_values().collect();
    blocked.truncate(32);
    // So many names are enough to go on with, however many requirements share them; each has one.
    let each = (SAMPLE / blocked.len().max(1)).max(1);
    for entry in &mut blocked {
        entry.sample.truncate(each);
    }
    let (in_force, taints) = (circumstances.in_force.clone(), circumstances.taints.clone());
    NodeReadinessGateStatus { observed_generation: Some(gate.generation), conditions, in_force, taints, nodes, blocked, summary }
}

fn summary(gate: &Gate, nodes: &GateCounts, blocked: &BTreeMap<&str, BlockedRequirement>) -> String {
    if gate.spec.dry_run {
        return format!("dry run: would taint {} and release {} of {} nodes", nodes.would_taint, nodes.would_release, nodes.matched);
    }
    let by = blocked.keys().copied().collect::<Vec<_>>().join(", ");
    match (nodes.held, by.is_empty()) {
        (0, _) => format!("{} of {} nodes released", nodes.released, nodes.matched),
        (held, true) => format!("{held} of {} nodes held", nodes.matched),
        (held, false) => format!("{held} of {} nodes held by {by}", nodes.matched),
    }
}

fn conditions(
    gate: &Gate,
    before: &[Condition],
    nodes: &GateCounts,
    kept: UntaintedNodes,
    circumstances: &Circumstances,
    summary: &str,
    now: UnixSeconds,
) -> Vec<Condition> {
    let mut conditions = GateConditions::new(gate.generation, before, now);
    match (&circumstances.deletion, &circumstances.refused, circumstances.unseen.first(), nodes.held) {
        (Some(deletion), refused, ..) => {
            let (readiness, reason, message) = deletion.said(refused.as_ref());
            conditions.say_ready(readiness, reason, message);
        }
        (None, Some(refused), ..) => {
            let (readiness, reason, message) = refused.said();
            conditions.say_ready(readiness, reason, message);
        }
        (None, None, Some(unseen), _) => {
            conditions.say_ready(
                GateReadiness::Reconciling,
                "SourceUnavailable",
                format!("{unseen}; until the source is available the requirement decides nothing, and the others still count"),
            );
        }
        (None, None, None, 0) => conditions.say_ready(GateReadiness::Ready, "NoNodeHeld", summary.to_owned()),
        (None, None, None, _) => conditions.say_ready(GateReadiness::Ready, "NodesHeld", summary.to_owned()),
    }
    match &circumstances.unsatisfiable {
        Some((reason, message)) => conditions.say("Satisfiable", false, reason, message.clone()),
        None => conditions.say("Satisfiable", true, "Satisfiable", "no obstacle found".into()),
    }
    if circumstances.overlaps.is_empty() {
        conditions.say("Overlapping", false, "OnlyOne", "no other gate has this taint on the same nodes".into());
    } else {
        let others = circumstances.overlaps.iter().cloned().collect::<Vec<_>>().join(", ");
        conditions.say(
            "Overlapping",
            true,
            "SharedTaint",
            format!("gates with the same taint on the same nodes: {others}; the taint stays until all gates release the node"),
        );
    }
    if kept.no_room > 0 {
        let message = format!(
            "{} nodes are not ready and stay without the taint, because spec.retaint.budget is used up: check what changed on these nodes before you raise the budget",
            kept.no_room
        );
        conditions.say("BudgetExhausted", true, "TooManyRegressions", message);
    } else {
        conditions.say("BudgetExhausted", false, "WithinBudget", "no node stays without the taint because of spec.retaint.budget".into());
    }
    if gate.spec.taint.effect == Effect::NoExecute && gate.ingress_daemon_sets().next().is_some() {
        if kept.spared > 0 {
            let message = format!(
                "{} nodes are not ready and do not get the taint, which would evict the pods that the gate waits for (see blocked): change the template to roll out a revision whose pods tolerate the taint",
                kept.spared
            );
            conditions.say("TolerationMissing", true, "PodsWouldBeEvicted", message);
        } else {
            conditions.say(
                "TolerationMissing",
                false,
                "NobodyEvicted",
                "no node stays without the taint to protect the pods that the gate waits for".into(),
            );
        }
    }
    if let Some((reason, works, message)) = &circumstances.admission {
        let late = match nodes.late {
            0 => String::new(),
            late => format!(
                "; {late} nodes got the taint after their creation, because their labels came later or admission was not active yet: pods may have started before, see events TaintedLate"
            ),
        };
        conditions.say("AdmissionActive", *works, reason, format!("{message}{late}"));
    }
    conditions.into_said()
}

/// Sources of a gate that the operator cannot see, in sentences.
pub fn unseen(world: &World, gate: &Gate) -> Vec<String> {
    let mut unseen = Vec::new();
    for source in gate.pod_sources() {
        if let Some(why) = world.pods.get(&source).and_then(|source| source.broken.as_ref()) {
            unseen.push(format!("the operator cannot see {source}: {why}"));
        }
    }
    for key in gate.daemon_sets() {
        let Some(source) = world.daemon_sets.get(&key) else { continue };
        if let Some(why) = &source.broken {
            unseen.push(format!("the operator cannot see DaemonSet {}/{}: {why}", key.0, key.1));
        } else if let Some(Some(found)) = &source.found
            && let Some(why) = world.pods.get(&daemon_set_pods(&key, found)).and_then(|pods| pods.broken.as_ref())
        {
            unseen.push(format!("the operator cannot see pods of DaemonSet {}/{}: {why}", key.0, key.1));
        }
    }
    if let (Some(why), true) = (&world.csi_drivers.broken, gate.spec.requirements.iter().any(|wanted| wanted.csi_driver.is_some())) {
        unseen.push(format!("the operator cannot see CSINodes: {why}"));
    }
    for (namespace, name) in gate.ingress_daemon_sets().filter(|key| world.absent.contains(key)) {
        unseen.push(format!("IngressDaemonSet {namespace}/{name} does not exist"));
    }
    for (namespace, name) in gate.ingress_daemon_sets().filter(|key| world.invalid.contains(key)) {
        unseen.push(format!(
            "the spec of IngressDaemonSet {namespace}/{name} is not valid, so it is not known which other nodes it is to use: see its condition Valid"
        ));
    }
    for wanted in gate.spec.requirements.iter().filter_map(|requirement| requirement.gate.as_ref()) {
        if !world.gates.values().any(|other| other.name == wanted.name) {
            unseen.push(format!("NodeReadinessGate {} does not exist", wanted.name));
        }
    }
    unseen
}
