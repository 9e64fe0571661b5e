//! What the webhook answers about a pod that is created.

use super::world::Gate;
use crate::gates_shared::review::Request;
use crds::pod_readiness_gate::InjectOnCreate;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// What an answer says; all of them allow the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PodAnswered {
    /// The answer adds readiness gates to the pod.
    Injected,
    /// The answer adds none.
    Unchanged,
    /// The pod cannot be decoded: it is created without.
    Undecodable,
}

/// What is read of a pod that is created.
#[derive(Default, Deserialize)]
#[serde(default)]
struct NewPod {
    metadata: PodMetadata,
    spec: Option<Spec>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodMetadata {
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    readiness_gates: Option<Vec<ListedGate>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListedGate {
    condition_type: String,
}

/// The `AdmissionReview` that answers the one in `body`; `None` when `body` has none. `gates`, of a namespace: those that a webhook may act
/// for there.
pub fn review(body: &[u8], gates: impl FnOnce(&str) -> Vec<Arc<Gate>>) -> Option<(Value, PodAnswered)> {
    let mut request = Request::read(body)?;
    let object = std::mem::take(&mut request.object);
    let (operations, answered) = match request.creates("Pod").then(|| serde_json::from_value::<NewPod>(object)) {
        Some(Ok(pod)) => match mutate(&pod, &request.namespace, gates(&request.namespace).iter().map(AsRef::as_ref)) {
            operations if operations.is_empty() => (operations, PodAnswered::Unchanged),
            operations => (operations, PodAnswered::Injected),
        },
        Some(Err(_)) => (Vec::new(), PodAnswered::Undecodable),
        None => (Vec::new(), PodAnswered::Unchanged),
    };
    Some((request.allowed(operations), answered))
}

/// Whether a webhook may act for the gate.
pub fn is_for_webhook(gate: &Gate) -> bool {
    matches!(gate.on_create(), InjectOnCreate::Auto | InjectOnCreate::Webhook) && gate.injects()
}

/// Operations of a JSON Patch: each condition once that a gate asks for and that the pod does not list yet, by the same rule as
/// [`policy`](super::policy_objects::policy).
fn mutate<'a>(pod: &NewPod, namespace: &str, gates: impl Iterator<Item = &'a Gate>) -> Vec<Value> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let listed = spec.readiness_gates.as_deref().unwrap_or_default();
    let label = |key: &str| pod.metadata.labels.as_ref().and_then(|labels| labels.get(key)).map(String::as_str);
    let wanted: BTreeSet<&str> = gates
        .filter(|gate| gate.injects() && gate.namespace == namespace && gate.spec.selects(label))
        .map(|gate| gate.spec.condition_type.as_str())
        .filter(|type_| listed.iter().all(|gate| gate.condition_type != *type_))
        .collect();
    let added = wanted.into_iter().map(|type_| json!({"conditionType": type_}));
    if listed.is_empty() {
        let all: Vec<_> = added.collect();
        return if all.is_empty() { all } else { vec![json!({"op": "add", "path": "/spec/readinessGates", "value": all})] };
    }
    added.map(|gate| json!({"op": "add", "path": "/spec/readinessGates/-", "value": gate})).collect()
}
