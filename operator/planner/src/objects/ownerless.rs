//! Conditions that our pods list because a gate asked for that, which is gone: nobody else would ever set them.

use crate::{
    facts::{PodFacts, Unmet},
    node::ManagedNode,
    objects::revisions::Targets,
    pod_gates::decide::reasons,
    snapshot::Snapshot,
};
use crds::{UnixSeconds, pod_readiness_gate::RESERVED_CONDITIONS};
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc};

/// Pods of a node that wait for such conditions, with the patches that make them True. A template is rendered without them with the
/// next revision; until then pods that are replaced list them.
pub fn patches<'a>(snapshot: &Snapshot, managed: &ManagedNode<'a>, targets: Option<&Targets>) -> Vec<(&'a PodFacts, Value)> {
    let live = managed.pods.iter().map(Arc::as_ref).filter(|pod| !pod.ended && !pod.terminating);
    let mut waiting: Vec<_> = live.filter_map(|pod| Some((pod, pod.unmet.as_deref()?))).collect();
    if waiting.is_empty() {
        return Vec::new();
    }
    waiting.sort_by_key(|(pod, _)| &pod.name);
    let Some(ownerless) = ownerless(snapshot, managed, targets).filter(|ownerless| !ownerless.is_empty()) else { return Vec::new() };
    let patch = |(pod, unmet): (&'a PodFacts, &Unmet)| {
        let types: Vec<_> = unmet.conditions.iter().filter(|type_| ownerless.contains(*type_)).collect();
        (!types.is_empty()).then(|| (pod, set(unmet, &types, snapshot.now)))
    };
    waiting.into_iter().filter_map(patch).collect()
}

/// What the node's Deployment lists and the user's template does not, and no gate keeps.
fn ownerless(snapshot: &Snapshot, managed: &ManagedNode<'_>, targets: Option<&Targets>) -> Option<BTreeSet<String>> {
    let kept = snapshot.gates.kept.as_ref()?;
    let deployment = managed.deployment?;
    let written = listed(&targets?.at(deployment.revision())?.template);
    let mut ownerless = listed(deployment.spec.held("template"));
    let is_ours = |type_: &String| !RESERVED_CONDITIONS.contains(&type_.as_str());
    ownerless.retain(|type_| is_ours(type_) && !written.contains(type_) && !kept.contains(type_));
    Some(ownerless)
}

fn listed(template: &Value) -> BTreeSet<String> {
    let gates = template["spec"]["readinessGates"].as_array().into_iter().flatten();
    gates.filter_map(|gate| gate["conditionType"].as_str().map(str::to_owned)).collect()
}

fn set(unmet: &Unmet, types: &[&String], now: UnixSeconds) -> Value {
    let time = chrono::DateTime::from_timestamp(now, 0).unwrap_or_default().to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
    let conditions = types.iter().map(|type_| {
        json!({
            "type": type_, "status": "True", "reason": reasons::GATE_GONE, "lastTransitionTime": time,
            "message": "the PodReadinessGate that asked for this condition is gone",
        })
    });
    json!({
        "metadata": { "uid": unmet.uid, "resourceVersion": unmet.resource_version },
        "status": { "conditions": conditions.collect::<Vec<_>>() },
    })
}
