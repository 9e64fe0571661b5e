//! Rules of Kubernetes about pods and nodes: selectors, affinity, taints, as for a `DaemonSet`.

use super::NodeFacts;
use crds::names;
use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration};

/// Whether a `DaemonSet`'s pod is to run on the node, taints left aside that `ignored` names.
pub fn daemon_set_runs(pod: &PodSpec, name: &str, node: &NodeFacts, ignored: impl Fn(&Taint) -> bool) -> bool {
    let added = daemon_tolerations(pod.host_network.unwrap_or(false));
    let bears = |taint: &Taint| pod.tolerations.iter().flatten().chain(&added).any(|toleration| tolerates(toleration, taint));
    pod.node_name.as_deref().is_none_or(|wanted| wanted == name)
        && pod.node_selector.iter().flatten().all(|(key, value)| node.labels.get(key) == Some(value))
        && affinity_allows(pod, name, node)
        && node.taints.iter().all(|taint| taint.effect == "PreferNoSchedule" || ignored(taint) || bears(taint))
}

/// Tolerations of a `DaemonSet`'s pods, and those for detached nodes.
/// Source of the list: the `DaemonSet` controller of Kubernetes 1.36.
pub fn daemon_tolerations(host_network: bool) -> Vec<Toleration> {
    let mut added = vec![
        exists("node.kubernetes.io/not-ready", "NoExecute"),
        exists("node.kubernetes.io/unreachable", "NoExecute"),
        exists("node.kubernetes.io/disk-pressure", "NoSchedule"),
        exists("node.kubernetes.io/memory-pressure", "NoSchedule"),
        exists("node.kubernetes.io/pid-pressure", "NoSchedule"),
        exists("node.kubernetes.io/unschedulable", "NoSchedule"),
        exists(names::DETACHER_TAINT, "NoSchedule"),
    ];
    if host_network {
        added.push(exists("node.kubernetes.io/network-unavailable", "NoSchedule"));
    }
    added
}

/// Bears every taint of this key and effect.
pub(crate) fn exists(key: &str, effect: &str) -> Toleration {
    Toleration { key: Some(key.into()), operator: Some("Exists".into()), effect: Some(effect.into()), ..Toleration::default() }
}

/// The taint of a node that is about to be taken away.
pub fn is_departure(taint: &Taint) -> bool {
    names::is_departure(&taint.key)
}

/// Beginnings of keys of taints that a node has while it starts, and that go by themselves.
/// Sources: the node lifecycle controller, cloud controllers, what Karpenter and cluster-autoscaler take for such.
const PASSING: [&str; 6] = [
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "karpenter.sh/unregistered",
    "readiness.k8s.io/",
    "startup-taint.cluster-autoscaler.kubernetes.io/",
    "startup.k8s.io/",
];

/// A taint that goes by itself once the node has started: no statement about which pods are meant for it.
pub fn is_passing(taint: &Taint) -> bool {
    taint.key != names::OUT_OF_SERVICE_TAINT
        && (PASSING.iter().any(|beginning| taint.key.starts_with(beginning)) || taint.key.ends_with("/agent-not-ready"))
}

/// Whether a pod with this toleration bears the taint.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    if !effect.is_empty() && effect != taint.effect || !key.is_empty() && key != taint.key {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or("Equal") {
        "Exists" => true,
        "" | "Equal" => !key.is_empty() && toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default(),
        _ => false,
    }
}

/// What a pod requires of its node.
pub(crate) fn affinity_allows(pod: &PodSpec, name: &str, node: &NodeFacts) -> bool {
    let required = pod
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    required.is_none_or(|selector| selector.node_selector_terms.iter().any(|term| term_matches(term, name, node)))
}

/// A term without requirements matches nothing, as in the scheduler.
fn term_matches(term: &NodeSelectorTerm, name: &str, node: &NodeFacts) -> bool {
    let fields = term.match_fields.iter().flatten();
    let expressions = term.match_expressions.iter().flatten();
    (fields.clone().next().is_some() || expressions.clone().next().is_some())
        && fields.clone().all(|requirement| requirement.key == "metadata.name" && requirement_matches(requirement, Some(name)))
        && expressions.clone().all(|requirement| requirement_matches(requirement, node.labels.get(&requirement.key).map(String::as_str)))
}

fn requirement_matches(requirement: &NodeSelectorRequirement, actual: Option<&str>) -> bool {
    let listed = |actual: &str| requirement.values.iter().flatten().any(|value| value == actual);
    let compare = |wanted: std::cmp::Ordering| {
        let limit = requirement.values.iter().flatten().next().and_then(|value| value.parse::<i64>().ok());
        actual.and_then(|actual| actual.parse::<i64>().ok()).zip(limit).is_some_and(|(actual, limit)| actual.cmp(&limit) == wanted)
    };
    match requirement.operator.as_str() {
        "In" => actual.is_some_and(listed),
        "NotIn" => !actual.is_some_and(listed),
        "Exists" => actual.is_some(),
        "DoesNotExist" => actual.is_none(),
        "Gt" => compare(std::cmp::Ordering::Greater),
        "Lt" => compare(std::cmp::Ordering::Less),
        _ => false,
    }
}
