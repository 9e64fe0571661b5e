//! Gates that could never open: what they wait for cannot come while their taint is there.

use super::world::{Gate, World, pod_source};
use crate::eligibility::tolerates;
use crds::node_readiness_gate::Effect;
use k8s_openapi::api::core::v1::{Taint, Toleration};
use std::collections::BTreeSet;

/// Why a gate could never open, with the word for its condition; `None` when it can.
pub fn unsatisfiable(world: &World, gate: &Gate) -> Option<(&'static str, String)> {
    if is_circular(world, gate) {
        return Some((
            "GateCycle",
            "the gate waits for itself through the gates that it requires: remove one of those requirements".into(),
        ));
    }
    if gate.spec.taint.effect == Effect::PreferNoSchedule {
        return None;
    }
    gate.spec.requirements.iter().find_map(|requirement| {
        let what = if let Some(wanted) = &requirement.daemon_set {
            let key = (wanted.namespace.clone(), wanted.name.clone());
            locked_out_daemon_set(world, gate, &key).then(|| format!("the pods of DaemonSet {}/{}", key.0, key.1))?
        } else if requirement.pods.is_some() {
            let source = pod_source(requirement)?;
            locked_out_pods(world, gate, requirement).then(|| format!("the {source}"))?
        } else {
            return None;
        };
        let taint = &gate.spec.taint;
        Some((
            "NotTolerated",
            format!(
                "requirement {}: {what} do not tolerate {}:{}, so they could not start on a node that waits for them: give them that toleration; until then no node is tainted",
                requirement.name,
                taint.key,
                taint.effect.as_str(),
            ),
        ))
    })
}

fn is_circular(world: &World, gate: &Gate) -> bool {
    let next = |gate: &Gate| -> Vec<String> {
        gate.spec.requirements.iter().filter_map(|requirement| Some(requirement.gate.as_ref()?.name.clone())).collect()
    };
    let (mut seen, mut open) = (BTreeSet::new(), next(gate));
    while let Some(name) = open.pop() {
        if name == gate.name {
            return true;
        }
        if let (true, Some(other)) = (seen.insert(name.clone()), world.gates.values().find(|other| other.name == name)) {
            open.extend(next(other));
        }
    }
    false
}

fn locked_out_daemon_set(world: &World, gate: &Gate, key: &(String, String)) -> bool {
    let Some(Some(found)) = world.daemon_sets.get(key).and_then(|source| source.found.as_ref()) else { return false };
    // Also where the operator is to see to it: it makes no difference to a node before the template says so.
    !bears(gate, found.pod.tolerations.iter().flatten())
}

/// There are such pods, and none of them bears the taint. Pods of a `DaemonSet` that gets the toleration bear it.
fn locked_out_pods(world: &World, gate: &Gate, requirement: &crds::node_readiness_gate::Requirement) -> bool {
    let Some(pods) = pod_source(requirement).and_then(|source| world.pods.get(&source)?.found.as_ref()) else { return false };
    let mut all = pods.on.values().flat_map(|pods| pods.values()).filter(|pod| !pod.ended).peekable();
    all.peek().is_some() && all.all(|pod| !bears(gate, pod.tolerations.iter()))
}

fn bears<'a>(gate: &Gate, mut tolerations: impl Iterator<Item = &'a Toleration>) -> bool {
    let spec = &gate.spec.taint;
    let taint = Taint { key: spec.key.clone(), effect: spec.effect.as_str().to_owned(), value: spec.value.clone(), time_added: None };
    tolerations.any(|toleration| tolerates(toleration, &taint))
}
