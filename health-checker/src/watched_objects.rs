//! The parts of API objects that are read. Everything else is dropped while decoding: a node agent shall not hold whole
//! pods in memory, and a field that it does not know cannot break it.

use crate::{
    probe::{ProbeTarget, ReadinessProbe},
    view,
};
use crds::names;
use serde::{Deserialize, de::IgnoredAny};
use std::{collections::BTreeMap, time::Duration};

/// An object that a watch returns.
pub trait Watched: Clone + for<'de> Deserialize<'de> + Send + 'static {
    /// What is kept of it.
    type Kept: Send;

    /// Its metadata.
    fn metadata(&self) -> &Metadata;
    /// Drops what is not needed.
    fn keep(self) -> Self::Kept;
}

/// `metadata`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Name within its kind and namespace.
    pub name: String,
    /// Unique over time.
    pub uid: String,
    /// Where a watch goes on.
    pub resource_version: String,
    deletion_timestamp: Option<IgnoredAny>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

impl Metadata {
    fn label(&self, key: &str) -> Option<&str> {
        self.labels.as_ref()?.get(key).map(String::as_str)
    }

    fn has_annotation(&self, key: &str) -> bool {
        self.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(key))
    }
}

/// A list.
#[derive(Debug, Deserialize)]
pub struct List<K> {
    /// Where a watch goes on.
    #[serde(default)]
    pub metadata: ListMetadata,
    /// `null` for an empty list, from some servers.
    pub items: Option<Vec<K>>,
}

/// `metadata` of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListMetadata {
    /// Where a watch goes on.
    pub resource_version: String,
}

/// `apps/v1 Deployment`.
#[derive(Clone, Debug, Deserialize)]
pub struct Deployment {
    #[serde(default)]
    metadata: Metadata,
    spec: Option<DeploymentSpec>,
}

#[derive(Clone, Debug, Deserialize)]
struct DeploymentSpec {
    replicas: Option<i64>,
}

impl Watched for Deployment {
    type Kept = view::DeploymentFacts;

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn keep(self) -> view::DeploymentFacts {
        // The API server fills in 1 where nothing is said.
        let replicas = self.spec.and_then(|spec| spec.replicas).unwrap_or(1);
        view::DeploymentFacts {
            desired: u32::try_from(replicas.max(0)).unwrap_or(u32::MAX),
            token: self.metadata.label(names::TOKEN_LABEL).and_then(|token| token.parse().ok()),
            to_be_updated: self.metadata.has_annotation(names::TO_BE_UPDATED_ANNOTATION),
            deleting: self.metadata.deletion_timestamp.is_some(),
        }
    }
}

/// `v1 Node`.
#[derive(Clone, Debug, Deserialize)]
pub struct Node {
    #[serde(default)]
    metadata: Metadata,
    spec: Option<NodeSpec>,
}

#[derive(Clone, Debug, Deserialize)]
struct NodeSpec {
    taints: Option<Vec<Taint>>,
}

#[derive(Clone, Debug, Deserialize)]
struct Taint {
    #[serde(default)]
    key: String,
}

impl Watched for Node {
    type Kept = view::NodeFacts;

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn keep(self) -> view::NodeFacts {
        let taints = self.spec.and_then(|spec| spec.taints).unwrap_or_default();
        view::NodeFacts {
            to_be_deleted: taints.iter().any(|taint| names::is_departure(&taint.key)),
            deleting: self.metadata.deletion_timestamp.is_some(),
        }
    }
}

/// `v1 Pod`.
#[derive(Clone, Debug, Deserialize)]
pub struct Pod {
    #[serde(default)]
    metadata: Metadata,
    spec: Option<PodSpec>,
    status: Option<PodStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    containers: Option<Vec<Container>>,
    init_containers: Option<Vec<Container>>,
    readiness_gates: Option<Vec<ReadinessGate>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReadinessGate {
    #[serde(default)]
    condition_type: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    ports: Option<Vec<ContainerPort>>,
    readiness_probe: Option<Probe>,
    restart_policy: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerPort {
    name: Option<String>,
    container_port: Option<i64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Probe {
    http_get: Option<HttpGet>,
    tcp_socket: Option<TcpSocket>,
    period_seconds: Option<i64>,
    timeout_seconds: Option<i64>,
    failure_threshold: Option<i64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct HttpGet {
    host: Option<String>,
    port: Option<Port>,
    path: Option<String>,
    scheme: Option<String>,
    http_headers: Option<Vec<HttpHeader>>,
}

#[derive(Clone, Debug, Deserialize)]
struct HttpHeader {
    #[serde(default)]
    name: String,
    #[serde(default)]
    value: String,
}

#[derive(Clone, Debug, Deserialize)]
struct TcpSocket {
    host: Option<String>,
    port: Option<Port>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Port {
    Number(i64),
    Name(String),
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodStatus {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    conditions: Option<Vec<Condition>>,
}

#[derive(Clone, Debug, Deserialize)]
struct Condition {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    status: String,
}

impl Watched for Pod {
    type Kept = view::PodFacts;

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn keep(self) -> view::PodFacts {
        let status = self.status.unwrap_or_default();
        let ended = matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"));
        let conditions = status.conditions.unwrap_or_default();
        let is_true = |kind: &str| conditions.iter().any(|condition| condition.kind == kind && condition.status == "True");
        let spec = self.spec.unwrap_or_default();
        let ready = is_true("Ready");
        // The kubelet writes Ready from these; the node controller writes Ready alone, when it has not heard of the kubelet.
        let gates = spec.readiness_gates.unwrap_or_default();
        let disowned = !ready && is_true("ContainersReady") && gates.iter().all(|gate| is_true(&gate.condition_type));
        // Only init containers that keep running take part in the readiness of a pod.
        let sidecars = spec.init_containers.unwrap_or_default().into_iter().filter(|init| init.restart_policy.as_deref() == Some("Always"));
        let containers = spec.containers.unwrap_or_default().into_iter().chain(sidecars);
        let probes = containers.filter_map(|container| probe(container, status.pod_ip.as_deref())).collect();
        view::PodFacts {
            ready: ready && !ended,
            disowned: disowned && !ended,
            terminating: self.metadata.deletion_timestamp.is_some(),
            revision: self.metadata.label(names::REVISION_LABEL).map(str::to_owned),
            uid: self.metadata.uid,
            probes,
        }
    }
}

/// The container's readiness probe, if it can be repeated from the node.
fn probe(container: Container, pod_ip: Option<&str>) -> Option<ReadinessProbe> {
    let probe = container.readiness_probe?;
    let ports = container.ports.unwrap_or_default();
    let target = match (probe.http_get, probe.tcp_socket) {
        (Some(http), _) => http_target(http, &ports, pod_ip)?,
        (None, Some(tcp)) => ProbeTarget::Tcp { host: host(tcp.host, pod_ip)?, port: port(tcp.port?, &ports)? },
        (None, None) => return None,
    };
    let seconds = |value: Option<i64>, default: u64| {
        Duration::from_secs(value.and_then(|value| u64::try_from(value).ok()).unwrap_or(default).clamp(1, 3600))
    };
    // 10, 1 and 3 are the API's defaults.
    Some(ReadinessProbe {
        target,
        period: seconds(probe.period_seconds, 10),
        timeout: seconds(probe.timeout_seconds, 1),
        failure_threshold: probe.failure_threshold.and_then(|value| u32::try_from(value).ok()).unwrap_or(3).max(1),
    })
}

fn http_target(http: HttpGet, ports: &[ContainerPort], pod_ip: Option<&str>) -> Option<ProbeTarget> {
    let (host, port) = (host(http.host, pod_ip)?, port(http.port?, ports)?);
    if http.scheme.as_deref() == Some("HTTPS") {
        return Some(ProbeTarget::Tcp { host, port });
    }
    let path = http.path.filter(|path| !path.is_empty()).unwrap_or_else(|| "/".into());
    let path = if path.starts_with('/') { path } else { format!("/{path}") };
    let headers: Vec<_> = http.http_headers.unwrap_or_default().into_iter().map(|header| (header.name, header.value)).collect();
    let sendable = |text: &str| !text.chars().any(char::is_control);
    let sendable = sendable(&path) && !path.contains(' ') && headers.iter().all(|(name, value)| sendable(name) && sendable(value));
    sendable.then_some(ProbeTarget::Http { host, port, path, headers })
}

fn host(host: Option<String>, pod_ip: Option<&str>) -> Option<String> {
    host.filter(|host| !host.is_empty()).or_else(|| pod_ip.map(str::to_owned)).filter(|host| !host.is_empty())
}

fn port(port: Port, ports: &[ContainerPort]) -> Option<u16> {
    let number = match port {
        Port::Number(number) => number,
        Port::Name(name) => ports.iter().find(|port| port.name.as_deref() == Some(&name))?.container_port?,
    };
    u16::try_from(number).ok().filter(|number| *number > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(value: serde_json::Value) -> view::PodFacts {
        serde_json::from_value::<Pod>(value).expect("decodes").keep()
    }

    #[test]
    fn an_ended_pod_is_unready_despite_its_condition() {
        let conditions = json!([{"type": "Ready", "status": "True"}]);
        assert!(pod(json!({"metadata": {"name": "a", "uid": "1"}, "status": {"phase": "Running", "conditions": conditions}})).ready);
        assert!(!pod(json!({"metadata": {"name": "a", "uid": "1"}, "status": {"phase": "Failed", "conditions": conditions}})).ready);
        assert!(!pod(json!({"metadata": {"name": "a", "uid": "1"}})).ready);
    }

    #[test]
    fn disowned_pods_differ_from_those_the_kubelet_calls_unready() {
        let disowned = |conditions: &[(&str, &str)], gates: &[&str]| {
            let conditions: Vec<_> = conditions.iter().map(|(kind, status)| json!({"type": kind, "status": status})).collect();
            let gates: Vec<_> = gates.iter().map(|gate| json!({"conditionType": gate})).collect();
            let pod = pod(json!({"metadata": {"name": "a"}, "spec": {"readinessGates": gates}, "status": {"conditions": conditions}}));
            assert!(!pod.ready || !pod.disowned);
            pod.disowned
        };
        assert!(disowned(&[("Ready", "False"), ("ContainersReady", "True")], &[]));
        assert!(!disowned(&[("Ready", "True"), ("ContainersReady", "True")], &[]));
        assert!(!disowned(&[("Ready", "False"), ("ContainersReady", "False")], &[]), "by the kubelet");
        assert!(!disowned(&[("Ready", "False"), ("ContainersReady", "True")], &["g"]), "the gate has not opened");
        assert!(disowned(&[("Ready", "False"), ("ContainersReady", "True"), ("g", "True")], &["g"]));
    }

    #[test]
    fn missing_replicas_mean_one_and_negative_ones_none() {
        let desired = |spec| serde_json::from_value::<Deployment>(json!({"metadata": {}, "spec": spec})).expect("decodes").keep().desired;
        assert_eq!(desired(json!({})), 1);
        assert_eq!(desired(json!({"replicas": -3})), 0);
        assert_eq!(desired(json!({"replicas": 99_999_999_999_i64})), u32::MAX);
    }

    #[test]
    fn only_network_probes_outside_plain_init_containers_are_made() {
        let pod = pod(json!({
            "metadata": {"name": "a", "uid": "1"},
            "spec": {
                "containers": [
                    {"ports": [{"name": "web", "containerPort": 8080}], "readinessProbe": {"httpGet": {"port": "web", "path": "ok"}, "periodSeconds": 2}},
                    {"readinessProbe": {"exec": {"command": ["true"]}}},
                    {"readinessProbe": {"tcpSocket": {"port": "nowhere"}}},
                    {"readinessProbe": {"httpGet": {"port": 8443, "scheme": "HTTPS"}}},
                    {"readinessProbe": {"httpGet": {"port": 80, "path": "/a\r\nb"}}},
                ],
                "initContainers": [
                    {"restartPolicy": "Always", "readinessProbe": {"tcpSocket": {"port": 9000}}},
                    {"readinessProbe": {"tcpSocket": {"port": 9001}}},
                ],
            },
            "status": {"podIP": "10.0.0.1"},
        }));
        let host = || "10.0.0.1".to_owned();
        let targets: Vec<_> = pod.probes.iter().map(|probe| probe.target.clone()).collect();
        assert_eq!(
            targets,
            [
                ProbeTarget::Http { host: host(), port: 8080, path: "/ok".into(), headers: vec![] },
                ProbeTarget::Tcp { host: host(), port: 8443 },
                ProbeTarget::Tcp { host: host(), port: 9000 },
            ]
        );
        assert_eq!(
            (pod.probes[0].period, pod.probes[0].timeout, pod.probes[0].failure_threshold),
            (Duration::from_secs(2), Duration::from_secs(1), 3)
        );
    }

    #[test]
    fn only_departure_taints_announce_that_a_node_leaves() {
        let node = |spec| serde_json::from_value::<Node>(json!({"metadata": {"name": "n"}, "spec": spec})).expect("decodes").keep();
        // Written out: a key that is dropped from the list by mistake is missed.
        let announced = [
            "ToBeDeletedByClusterAutoscaler",
            "karpenter.sh/disrupted",
            "node.kubernetes.io/out-of-service",
            "cloud.google.com/impending-node-termination",
            "aws-node-termination-handler/spot-itn",
            "aws-node-termination-handler/asg-lifecycle-termination",
            "aws-node-termination-handler/scheduled-maintenance",
        ];
        assert_eq!(announced, names::DEPARTURE_TAINTS);
        for key in announced {
            assert!(node(json!({"taints": [{"key": key, "effect": "NoSchedule"}]})).to_be_deleted, "{key}");
        }
        let rebalanced = json!({"taints": [{"key": "aws-node-termination-handler/rebalance-recommendation", "effect": "NoSchedule"}]});
        assert!(!node(rebalanced).to_be_deleted, "nobody has decided that it goes");
        assert!(!node(json!({"unschedulable": true, "taints": [{"key": "node.kubernetes.io/not-ready"}]})).to_be_deleted);
        assert!(!node(json!({})).to_be_deleted);
    }
}
