//! What a gate says of itself.

use super::{
    decide::View,
    world::{Gate, World, daemon_set_pods},
};
use crds::node_readiness_gate::{BlockedRequirement, GateCounts, NodeReadinessGateStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use std::collections::{BTreeMap, BTreeSet};

/// How many nodes a requirement names.
const SAMPLE: usize = 10;

/// What is reported of a gate besides how it sees nodes.
#[derive(Clone, Debug, Default)]
pub struct Circumstances {
    /// Why it could never open.
    pub unsatisfiable: Option<(&'static str, String)>,
    /// What it cannot see.
    pub unseen: Vec<String>,
    /// Names of other gates with its taint on nodes that it selects.
    pub overlaps: BTreeSet<String>,
    /// How nodes are tainted as they are created: a word for it, whether it works, and a sentence.
    pub admission: Option<(&'static str, bool, String)>,
}

/// The status of a gate.
pub fn status<'a>(
    gate: &Gate,
    before: &[Condition],
    views: impl Iterator<Item = (&'a str, &'a View)>,
    circumstances: &Circumstances,
    now: i64,
) -> NodeReadinessGateStatus {
    let mut nodes = GateCounts::default();
    let mut blocked: BTreeMap<&str, BlockedRequirement> = BTreeMap::new();
    let mut no_room = 0_u32;
    for (node, view) in views {
        let count = |counter: &mut u32, is: bool| *counter += u32::from(is);
        count(&mut nodes.matched, view.matched);
        count(&mut nodes.held, view.held);
        count(&mut nodes.released, view.released);
        count(&mut nodes.stuck, view.stuck);
        count(&mut nodes.would_taint, view.would_taint);
        count(&mut nodes.would_release, view.would_release);
        count(&mut no_room, view.no_room);
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
    let conditions = conditions(gate, before, &nodes, no_room, circumstances, &summary, now);
    let mut blocked: Vec<_> = blocked.into_values().collect();
    blocked.truncate(32);
    NodeReadinessGateStatus { observed_generation: Some(gate.generation), conditions, nodes, blocked, summary }
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
    no_room: u32,
    circumstances: &Circumstances,
    summary: &str,
    now: i64,
) -> Vec<Condition> {
    let mut conditions = Vec::new();
    let mut say = |type_: &str, status: bool, reason: &str, message: String| {
        let status = if status { "True" } else { "False" };
        let earlier = before.iter().find(|condition| condition.type_ == type_ && condition.status == status);
        let since = earlier
            .map_or_else(|| Time(Timestamp::from_second(now).unwrap_or_default()), |condition| condition.last_transition_time.clone());
        conditions.push(Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message,
            observed_generation: Some(gate.generation),
            last_transition_time: since,
        });
    };
    match (circumstances.unseen.first(), nodes.held) {
        (Some(unseen), _) => say("Ready", false, "SourceUnavailable", format!("{unseen}; nodes stay as they are until it can be seen")),
        (None, 0) => say("Ready", true, "NoNodeHeld", summary.to_owned()),
        (None, _) => say("Ready", true, "NodesHeld", summary.to_owned()),
    }
    match &circumstances.unsatisfiable {
        Some((reason, message)) => say("Satisfiable", false, reason, message.clone()),
        None => say("Satisfiable", true, "Satisfiable", "nothing is known that would keep the gate shut for ever".into()),
    }
    if circumstances.overlaps.is_empty() {
        say("Overlapping", false, "OnlyOne", "no other gate has this taint on a node of this one".into());
    } else {
        let others = circumstances.overlaps.iter().cloned().collect::<Vec<_>>().join(", ");
        say("Overlapping", true, "SharedTaint", format!("also on nodes of {others}: the taint stays until all of them release a node"));
    }
    if no_room > 0 {
        let message = format!(
            "{no_room} nodes are not ready any more and keep their release: spec.retaint.budget is used up; look at what changed on all of them before raising it"
        );
        say("BudgetExhausted", true, "TooManyRegressions", message);
    } else {
        say("BudgetExhausted", false, "WithinBudget", "every node that is not ready has the taint".into());
    }
    if let Some((reason, works, message)) = &circumstances.admission {
        say("AdmissionActive", *works, reason, message.clone());
    }
    conditions
}

/// What a gate cannot see.
pub fn unseen(world: &World, gate: &Gate) -> Vec<String> {
    let mut unseen = Vec::new();
    for source in gate.pod_sources() {
        if let Some(why) = world.pods.get(&source).and_then(|source| source.broken.as_ref()) {
            unseen.push(format!("{source} cannot be seen: {why}"));
        }
    }
    for key in gate.daemon_sets() {
        let Some(source) = world.daemon_sets.get(&key) else { continue };
        if let Some(why) = &source.broken {
            unseen.push(format!("DaemonSet {}/{} cannot be seen: {why}", key.0, key.1));
        } else if let Some(Some(found)) = &source.found
            && let Some(why) = world.pods.get(&daemon_set_pods(&key, found)).and_then(|pods| pods.broken.as_ref())
        {
            unseen.push(format!("pods of DaemonSet {}/{} cannot be seen: {why}", key.0, key.1));
        }
    }
    if let (Some(why), true) = (&world.csi_drivers.broken, gate.spec.requirements.iter().any(|wanted| wanted.csi_driver.is_some())) {
        unseen.push(format!("CSINodes cannot be seen: {why}"));
    }
    unseen
}
