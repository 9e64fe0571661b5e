//! Which nodes are chosen, and what the pods on them tolerate.

use super::ResolvedSpec;
use crate::facts::{
    NodeFacts,
    scheduling::{affinity_allows, daemon_tolerations, exists, is_departure, tolerates},
};
use crds::ingress_daemon_set::IngressDaemonSetSpec;
use k8s_openapi::api::core::v1::{Taint, Toleration};

/// Whether the node belongs to the resource. A node that is already a member (`member`) stays one whatever
/// `NoSchedule` taints it gets.
pub fn is_chosen(spec: &IngressDaemonSetSpec, settings: &ResolvedSpec, name: &str, node: &NodeFacts, member: bool) -> bool {
    let has = |(key, value): (&String, &String)| node.labels.get(key) == Some(value);
    spec.node_selector.iter().all(has)
        && settings.pod.node_selector.iter().flatten().all(has)
        && affinity_allows(&settings.pod, name, node)
        && node.taints.iter().all(|taint| match taint.effect.as_str() {
            "NoExecute" => is_tolerated(settings, taint),
            "NoSchedule" => member || is_tolerated(settings, taint),
            _ => true,
        })
}

/// Tolerations that the operator adds to the pods: those of a `DaemonSet`'s, and those for taints of gates that wait for them.
pub fn added_tolerations(settings: &ResolvedSpec) -> Vec<Toleration> {
    let mut added = daemon_tolerations(settings.pod.host_network.unwrap_or(false));
    added.extend(settings.gate_taints.iter().map(|(key, effect)| exists(key, effect)));
    added
}

fn is_tolerated(settings: &ResolvedSpec, taint: &Taint) -> bool {
    let added = added_tolerations(settings);
    // The wish to drain is no statement about which pods fit.
    is_departure(taint) || settings.pod.tolerations.iter().flatten().chain(&added).any(|toleration| tolerates(toleration, taint))
}
