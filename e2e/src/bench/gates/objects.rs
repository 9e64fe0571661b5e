//! The gate, and what is seen of its nodes.

use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

/// What the gate selects.
pub const SET: &str = "ours";
pub const KEY: &str = "readiness.k8s.io/bench";
pub const WARM: &str = "example.com/Warm";

pub fn gate() -> Value {
    json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "NodeReadinessGate", "metadata": { "name": "bench" },
        "spec": {
            "nodeSelector": { "matchLabels": { "set": SET } },
            // The yardstick taints a node when it sees it, and so does the operator here.
            "admission": { "onCreate": "None" },
            "taint": { "key": KEY, "effect": "NoSchedule" },
            "requirements": [{ "name": "warm", "condition": { "type": WARM } }],
        },
    })
}

pub fn has_taint(node: &Node) -> bool {
    node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()).any(|taint| taint.key == KEY)
}

pub fn is_warm(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == WARM && condition.status == "True")
}
