//! Giving pods the readiness gate as they are created: what the API server is told to do by itself, as CEL.

use super::world::Gate;
use crate::node_gates::admission::{API, Policy, quote, selector};
use crds::{hash, names};
use serde_json::{Value, json};

/// How much of a gate's name is in the name of its policy: with prefix and hash it stays below 63 characters.
const NAME: usize = 32;

/// The policy of a gate; nothing where it asks for none, or selects by no label.
pub fn policy(gate: &Gate) -> Option<Policy> {
    if !gate.injects() {
        return None;
    }
    let selected = selector(gate.spec.selector.as_ref()?);
    let type_ = quote(&gate.spec.condition_type);
    let gates = "object.spec.readinessGates";
    let value = format!("{{'conditionType': {type_}}}");
    let spec = json!({
        // A pod that cannot get the gate is created without it: nothing else in the namespace may depend on this policy.
        "failurePolicy": "Ignore",
        "reinvocationPolicy": "IfNeeded",
        "matchConstraints": {"resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"], "scope": "Namespaced"},
        ]},
        "matchConditions": [
            {"name": "selected", "expression": selected},
            {"name": "not-listed", "expression": format!("!(has({gates}) && {gates}.exists(gate, gate.conditionType == {type_}))")},
        ],
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": format!(
            "has({gates}) && size({gates}) > 0 \
             ? [JSONPatch{{op: 'add', path: '/spec/readinessGates/-', value: {value}}}] \
             : [JSONPatch{{op: 'add', path: '/spec/readinessGates', value: [{value}]}}]"
        )}}],
    });
    let name = policy_name(gate);
    let metadata = json!({"name": name, "labels": {names::POD_GATE_LABEL: gate.uid}});
    // The gate has a say in its own namespace only, and there only if whoever owns the namespace agreed.
    let namespaces = json!({"matchLabels": {
        "kubernetes.io/metadata.name": gate.namespace,
        names::INJECT_LABEL: names::INJECT_LABEL_VALUE,
    }});
    Some(Policy {
        policy: object("MutatingAdmissionPolicy", &metadata, &spec),
        binding: object(
            "MutatingAdmissionPolicyBinding",
            &metadata,
            &json!({"policyName": name, "matchResources": {"namespaceSelector": namespaces}}),
        ),
        name,
    })
}

fn object(kind: &str, metadata: &Value, spec: &Value) -> Value {
    json!({"apiVersion": API, "kind": kind, "metadata": metadata, "spec": spec})
}

/// Name of a gate's policy: what people know it by, and a hash of its UID, so that a gate made anew has another.
fn policy_name(gate: &Gate) -> String {
    let known: String =
        format!("{}-{}", gate.namespace, gate.name).chars().map(|letter| if letter == '.' { '-' } else { letter }).take(NAME).collect();
    format!("pod-gate-{}-{}", known.trim_end_matches('-'), hash::hex(gate.uid.as_bytes(), 10))
}
