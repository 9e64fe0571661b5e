//! Gates that could never open: what they wait for cannot come while their taint is there.

use super::{
    links::injects,
    world::{Gate, World, pod_source},
};
use crate::facts::scheduling::{daemon_tolerations, tolerates};
use crds::node_readiness_gate::{Effect, Policy, Requirement};
use k8s_openapi::api::core::v1::{Taint, Toleration};
use std::collections::BTreeSet;

/// Why a gate could never open, with the word for its condition; `None` when it can.
pub fn unsatisfiable(world: &World, gate: &Gate) -> Option<(&'static str, String)> {
    shut(world, gate, &mut Vec::new())
}

/// The same, while the gates of these UIDs wait for it.
fn shut<'w>(world: &'w World, gate: &'w Gate, waiting: &mut Vec<&'w str>) -> Option<(&'static str, String)> {
    let awaited = gate.spec.release.as_ref().and_then(|release| release.wait_for_taints_gone.as_ref());
    if awaited.is_some_and(|keys| keys.contains(&gate.spec.taint.key)) {
        return Some((
            "WaitsForOwnTaint",
            format!("release.waitForTaintsGone names the gate's own taint {}: remove the taint from the list", gate.spec.taint.key),
        ));
    }
    waiting.push(&gate.uid);
    let troubles = gate.spec.requirements.iter().map(|requirement| trouble(world, gate, requirement, waiting));
    let found = match gate.spec.policy {
        Policy::AllOf => troubles.flatten().next(),
        // One that can be met is enough.
        Policy::AnyOf => troubles.collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().next()),
    };
    waiting.pop();
    found
}

/// Why a requirement could never be met.
fn trouble<'w>(world: &'w World, gate: &'w Gate, requirement: &Requirement, waiting: &mut Vec<&'w str>) -> Option<(&'static str, String)> {
    if let Some(wanted) = &requirement.gate {
        let other = world.gates.values().find(|other| other.name == wanted.name)?;
        let cycle = ("GateCycle", "the gate requires itself through other gates: remove one of these requirements".into());
        if waiting.contains(&other.uid.as_str()) {
            return Some(cycle);
        }
        let why = if other.spec.dry_run { "its spec.dryRun is true".to_owned() } else { shut(world, other, waiting)?.1 };
        if leads_to(world, other, gate) {
            return Some(cycle);
        }
        return Some((
            "GateNotEnforced",
            format!("requirement {}: NodeReadinessGate {} releases no node: {why}", requirement.name, other.name),
        ));
    }
    if gate.spec.taint.effect == Effect::PreferNoSchedule {
        return None;
    }
    let what = if let Some(wanted) = &requirement.daemon_set {
        let key = (wanted.namespace.clone(), wanted.name.clone());
        locked_out_daemon_set(world, gate, &key).then(|| format!("the pods of DaemonSet {}/{}", key.0, key.1))?
    } else if let Some(wanted) = &requirement.ingress_daemon_set {
        let key = (wanted.namespace.clone(), wanted.name.clone());
        locked_out_replicas(world, gate, &key).then(|| format!("the pods of IngressDaemonSet {}/{}", key.0, key.1))?
    } else {
        let source = pod_source(requirement).filter(|_| requirement.pods.is_some())?;
        locked_out_pods(world, gate, requirement).then(|| format!("the {source}"))?
    };
    let taint = &gate.spec.taint;
    Some((
        "NotTolerated",
        format!(
            "requirement {}: {what} do not tolerate {}:{} and cannot start on a node with this taint: add the toleration; until then the gate taints no node",
            requirement.name,
            taint.key,
            taint.effect.as_str(),
        ),
    ))
}

/// Whether a gate requires another one, be it through others; each requires itself.
fn leads_to(world: &World, from: &Gate, to: &Gate) -> bool {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from.name.as_str()]);
    while let Some(name) = open.pop() {
        if name == to.name {
            return true;
        }
        if let (true, Some(gate)) = (seen.insert(name), world.gates.values().find(|gate| gate.name == name)) {
            open.extend(gate.spec.requirements.iter().filter_map(|requirement| Some(requirement.gate.as_ref()?.name.as_str())));
        }
    }
    false
}

fn locked_out_daemon_set(world: &World, gate: &Gate, key: &(String, String)) -> bool {
    let Some(Some(found)) = world.daemon_sets.get(key).and_then(|source| source.found.as_ref()) else { return false };
    // Also where the operator is to see to it: it makes no difference to a node before the template says so.
    !bears(gate, found.pod.tolerations.iter().flatten())
}

/// No gate gives its pods the toleration, and its template has none.
fn locked_out_replicas(world: &World, gate: &Gate, key: &(String, String)) -> bool {
    let Some(own) = world.tolerations.get(key) else { return false };
    let taint = &gate.spec.taint;
    let gives =
        |other: &Gate| other.has_taint(&taint.key, taint.effect.as_str()) && injects(other) && other.ingress_daemon_sets().next().is_some();
    !world.gates.values().any(|other| gives(other)) && !bears(gate, own.iter().chain(&daemon_tolerations(false)))
}

/// There are such pods, and none of them bears the taint. Pods of a `DaemonSet` that gets the toleration bear it.
fn locked_out_pods(world: &World, gate: &Gate, requirement: &Requirement) -> bool {
    let Some(pods) = pod_source(requirement).and_then(|source| world.pods.get(&source)?.found.as_ref()) else { return false };
    let mut all = pods.on.values().flat_map(|pods| pods.values()).filter(|pod| !pod.ended).peekable();
    all.peek().is_some() && all.all(|pod| !bears(gate, pod.tolerations.iter()))
}

fn bears<'a>(gate: &Gate, mut tolerations: impl Iterator<Item = &'a Toleration>) -> bool {
    let spec = &gate.spec.taint;
    let taint = Taint { key: spec.key.clone(), effect: spec.effect.as_str().to_owned(), value: spec.value.clone(), time_added: None };
    tolerations.any(|toleration| tolerates(toleration, &taint))
}
