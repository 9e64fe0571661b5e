//! Whether the node takes a pod; no I/O.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Pod};

/// Why a pod is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reason in the pod's status.
    pub reason: &'static str,
    /// Message in the pod's status.
    pub message: String,
}

impl Refusal {
    fn predicate(reason: &'static str, description: &str) -> Self {
        Self { reason, message: format!("Predicate {reason} failed: {description}") }
    }
}

/// A port of the host that a pod takes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HostPort {
    ip: String,
    protocol: String,
    port: i32,
}

fn host_ports(pod: &Pod) -> Vec<HostPort> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let shares_host = spec.host_network == Some(true);
    let sidecars = spec.init_containers.iter().flatten().filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|container| container.ports.iter().flatten());
    ports
        .filter_map(|port| {
            let implied = shares_host.then_some(port.container_port);
            let number = port.host_port.filter(|port| *port > 0).or(implied)?;
            Some(HostPort {
                ip: port.host_ip.clone().filter(|ip| !ip.is_empty()).unwrap_or_else(|| "0.0.0.0".into()),
                protocol: port.protocol.clone().unwrap_or_else(|| "TCP".into()),
                port: number,
            })
        })
        .collect()
}

fn collide(a: &HostPort, b: &HostPort) -> bool {
    let every = |port: &HostPort| port.ip == "0.0.0.0" || port.ip == "::";
    a.protocol == b.protocol && a.port == b.port && (a.ip == b.ip || every(a) || every(b))
}

/// Checks `pod` against the node's labels and the pods that run on it, those that are ending included.
pub fn admit<'a>(
    pod: &Pod,
    node_name: &str,
    labels: &BTreeMap<String, String>,
    others: impl Iterator<Item = &'a Pod>,
) -> Result<(), Refusal> {
    if !selects(pod, node_name, labels) {
        return Err(Refusal::predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector"));
    }
    let wanted = host_ports(pod);
    let taken: Vec<HostPort> = if wanted.is_empty() { Vec::new() } else { others.flat_map(host_ports).collect() };
    if wanted.iter().any(|port| taken.iter().any(|other| collide(port, other))) {
        return Err(Refusal::predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports"));
    }
    Ok(())
}

fn selects(pod: &Pod, node_name: &str, labels: &BTreeMap<String, String>) -> bool {
    let Some(spec) = &pod.spec else { return true };
    if !spec.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value)) {
        return false;
    }
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    match affinity.and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref()) {
        Some(selector) => selector.node_selector_terms.iter().any(|term| term_matches(term, node_name, labels)),
        None => true,
    }
}

fn term_matches(term: &NodeSelectorTerm, node_name: &str, labels: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.iter().flatten();
    let fields = term.match_fields.iter().flatten();
    let empty = term.match_expressions.iter().flatten().next().is_none() && term.match_fields.iter().flatten().next().is_none();
    !empty
        && expressions.into_iter().all(|rule| rule_matches(rule, labels.get(&rule.key).map(String::as_str)))
        && fields.into_iter().all(|rule| rule_matches(rule, (rule.key == "metadata.name").then_some(node_name)))
}

fn rule_matches(rule: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let listed = || value.is_some_and(|value| rule.values.iter().flatten().any(|wanted| wanted == value));
    let compare = |wanted: std::cmp::Ordering| {
        let limit = rule.values.iter().flatten().next().and_then(|limit| limit.parse::<i64>().ok());
        matches!((value.and_then(|value| value.parse::<i64>().ok()), limit), (Some(value), Some(limit)) if value.cmp(&limit) == wanted)
    };
    match rule.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(std::cmp::Ordering::Greater),
        "Lt" => compare(std::cmp::Ordering::Less),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Affinity, Container, ContainerPort, NodeAffinity, NodeSelector, PodSpec};

    use super::*;

    fn pod(port: ContainerPort, host_network: bool) -> Pod {
        let container = Container { ports: Some(vec![port]), ..Container::default() };
        let spec = PodSpec { containers: vec![container], host_network: Some(host_network), ..PodSpec::default() };
        Pod { spec: Some(spec), ..Pod::default() }
    }

    fn port(container: i32, host: Option<i32>, protocol: &str, ip: &str) -> ContainerPort {
        let ip = (!ip.is_empty()).then(|| ip.to_owned());
        ContainerPort { container_port: container, host_port: host, host_ip: ip, protocol: Some(protocol.into()), name: None }
    }

    fn admitted(new: &Pod, old: &Pod) -> bool {
        admit(new, "n1", &BTreeMap::new(), std::iter::once(old)).is_ok()
    }

    #[test]
    fn a_taken_host_port_is_refused_with_the_kubelets_message() {
        let taken = pod(port(80, Some(8080), "TCP", ""), false);
        let refusal = admit(&taken, "n1", &BTreeMap::new(), std::iter::once(&taken)).unwrap_err();
        assert_eq!(refusal.reason, "NodePorts");
        assert_eq!(refusal.message, "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports");
    }

    #[test]
    fn declared_ports_collide_only_between_pods_with_host_network() {
        let (own, host) = (pod(port(80, None, "TCP", ""), false), pod(port(80, None, "TCP", ""), true));
        assert!(admitted(&own, &own));
        assert!(admitted(&own, &host));
        assert!(!admitted(&host, &host));
    }

    #[test]
    fn host_ports_collide_only_with_equal_protocol_and_overlapping_address() {
        let tcp = pod(port(53, Some(53), "TCP", "10.0.0.1"), false);
        assert!(admitted(&pod(port(53, Some(53), "UDP", "10.0.0.1"), false), &tcp));
        assert!(admitted(&pod(port(53, Some(53), "TCP", "10.0.0.2"), false), &tcp));
        assert!(!admitted(&pod(port(53, Some(53), "TCP", ""), false), &tcp));
    }

    #[test]
    fn a_pod_for_another_node_is_refused() {
        let rule = |values: &[&str]| NodeSelectorRequirement {
            key: "metadata.name".into(),
            operator: "In".into(),
            values: Some(values.iter().map(|value| (*value).to_owned()).collect()),
        };
        let bound = |name: &str| {
            let term = NodeSelectorTerm { match_fields: Some(vec![rule(&[name])]), match_expressions: None };
            let required = NodeSelector { node_selector_terms: vec![term] };
            let node = NodeAffinity { required_during_scheduling_ignored_during_execution: Some(required), ..NodeAffinity::default() };
            let affinity = Affinity { node_affinity: Some(node), ..Affinity::default() };
            Pod { spec: Some(PodSpec { affinity: Some(affinity), ..PodSpec::default() }), ..Pod::default() }
        };
        assert!(admit(&bound("n1"), "n1", &BTreeMap::new(), std::iter::empty()).is_ok());
        assert_eq!(admit(&bound("n2"), "n1", &BTreeMap::new(), std::iter::empty()).unwrap_err().reason, "NodeAffinity");
    }

    #[test]
    fn a_node_selector_must_match_the_nodes_labels() {
        let selector = [("zone".to_owned(), "a".to_owned())].into();
        let pod = Pod { spec: Some(PodSpec { node_selector: Some(selector), ..PodSpec::default() }), ..Pod::default() };
        let labels = |zone: &str| [("zone".to_owned(), zone.to_owned())].into();
        assert!(admit(&pod, "n1", &labels("a"), std::iter::empty()).is_ok());
        assert!(admit(&pod, "n1", &labels("b"), std::iter::empty()).is_err());
    }
}
