//! Giving pods the readiness gate as they are created: what the API server is told to do by itself, as CEL.

use super::world::Gate;
use crate::gates_shared::policy_objects::{AdmissionPolicy, append, quote, selector};
use crds::{hash, names};
use serde_json::json;

/// How much of a gate's name is in the name of its policy: with prefix and hash it stays below 63 characters.
const NAME: usize = 32;

/// The policy of a gate; nothing where it asks for none, or selects by no label.
pub fn policy(gate: &Gate) -> Option<AdmissionPolicy> {
    if !gate.injects() {
        return None;
    }
    let selected = selector(gate.spec.selector.as_ref()?);
    let type_ = quote(&gate.spec.condition_type);
    let gates = "object.spec.readinessGates";
    let value = format!("{{'conditionType': {type_}}}");
    let spec = json!({
        "matchConstraints": {"resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"], "scope": "Namespaced"},
        ]},
        "matchConditions": [
            {"name": "selected", "expression": selected},
            {"name": "not-listed", "expression": format!("!(has({gates}) && {gates}.exists(gate, gate.conditionType == {type_}))")},
        ],
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": append("object.spec", "readinessGates", "/spec", &value)}}],
    });
    let metadata = json!({"name": policy_name(gate), "labels": {names::POD_GATE_LABEL: gate.uid}});
    // The gate has a say in its own namespace only, and there only if whoever owns the namespace agreed.
    let namespaces = json!({"matchLabels": {
        "kubernetes.io/metadata.name": gate.namespace,
        names::INJECT_LABEL: names::INJECT_LABEL_VALUE,
    }});
    Some(AdmissionPolicy::new(&metadata, spec, Some(json!({"namespaceSelector": namespaces}))))
}

/// Name of a gate's policy: what people know it by, and a hash of its UID, so that a gate made anew has another.
fn policy_name(gate: &Gate) -> String {
    let known: String =
        format!("{}-{}", gate.namespace, gate.name).chars().map(|letter| if letter == '.' { '-' } else { letter }).take(NAME).collect();
    format!("pod-gate-{}-{}", known.trim_end_matches('-'), hash::hex(gate.uid.as_bytes(), 10))
}
