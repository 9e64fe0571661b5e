//! Computation of Node objects and of the patches on them; no I/O.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeSpec, NodeStatus, NodeSystemInfo, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::{Value, json};

/// Version that the node claims to run; the version whose behaviour is imitated.
const KUBELET_VERSION: &str = "v1.36.3";

/// What a new Node says about its machine.
#[derive(Clone, Debug)]
pub struct MachineFacts {
    /// Name of the node.
    pub name: String,
    /// Address reported as `InternalIP`.
    pub internal_ip: String,
    /// Labels beside `kubernetes.io/hostname`, `/os` and `/arch`.
    pub labels: BTreeMap<String, String>,
    /// Taints set when the node is created; never touched afterwards.
    pub taints: Vec<Taint>,
    /// CPUs, as a quantity.
    pub cpu: String,
    /// Memory, as a quantity.
    pub memory: String,
    /// Most pods at a time.
    pub pods: String,
    /// The machine's boot id.
    pub boot_id: String,
    /// The kernel's release.
    pub kernel_version: String,
}

/// The Node that `facts` describe, ready as of `now`.
pub fn new_node(facts: &MachineFacts, now: Timestamp) -> Node {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let mut labels = facts.labels.clone();
    labels.insert("kubernetes.io/hostname".into(), host_name(&facts.name));
    labels.insert("kubernetes.io/os".into(), "linux".into());
    labels.insert("kubernetes.io/arch".into(), architecture.into());
    let resources: BTreeMap<String, Quantity> = [("cpu", &facts.cpu), ("memory", &facts.memory), ("pods", &facts.pods)]
        .into_iter()
        .map(|(name, quantity)| (name.to_owned(), Quantity(quantity.clone())))
        .collect();
    let address = |type_: &str, address: &str| NodeAddress { type_: type_.into(), address: address.into() };
    Node {
        metadata: ObjectMeta { name: Some(facts.name.clone()), labels: Some(labels), ..ObjectMeta::default() },
        spec: Some(NodeSpec { taints: (!facts.taints.is_empty()).then(|| facts.taints.clone()), ..NodeSpec::default() }),
        status: Some(NodeStatus {
            addresses: Some(vec![address("InternalIP", &facts.internal_ip), address("Hostname", &facts.name)]),
            allocatable: Some(resources.clone()),
            capacity: Some(resources),
            conditions: Some(conditions(now)),
            daemon_endpoints: Some(NodeDaemonEndpoints::default()),
            node_info: Some(NodeSystemInfo {
                architecture: architecture.into(),
                boot_id: facts.boot_id.clone(),
                container_runtime_version: concat!("process://", env!("CARGO_PKG_VERSION")).into(),
                kernel_version: facts.kernel_version.clone(),
                kube_proxy_version: String::new(),
                kubelet_version: KUBELET_VERSION.into(),
                machine_id: facts.name.clone(),
                operating_system: "linux".into(),
                os_image: "virtual-kubelet".into(),
                system_uuid: facts.name.clone(),
                swap: None,
            }),
            ..NodeStatus::default()
        }),
    }
}

fn conditions(now: Timestamp) -> Vec<NodeCondition> {
    [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ]
    .into_iter()
    .map(|(type_, status, reason, message)| NodeCondition {
        type_: type_.into(),
        status: status.into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    })
    .collect()
}

fn node_conditions(node: &Node) -> &[NodeCondition] {
    node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default()
}

/// Whether somebody else changed one of the conditions that `ours` carries (the node controller does
/// when the lease was late).
pub fn ready_is_foreign(ours: &Node, server: &Node) -> bool {
    node_conditions(ours).iter().any(|own| {
        !node_conditions(server)
            .iter()
            .any(|theirs| theirs.type_ == own.type_ && theirs.status == own.status && theirs.reason == own.reason)
    })
}

/// Strategic merge patch of the status: only keys of our own, so that conditions and addresses of
/// others survive. A condition's transition time moves only when its status differs from `server`'s.
pub fn status_patch(ours: &Node, server: &Node, now: Timestamp) -> Value {
    let mut status = ours.status.clone().unwrap_or_default();
    for condition in status.conditions.iter_mut().flatten() {
        let before = node_conditions(server).iter().find(|theirs| theirs.type_ == condition.type_);
        condition.last_heartbeat_time = Some(Time(now));
        condition.last_transition_time = match before {
            Some(before) if before.status == condition.status => before.last_transition_time.clone(),
            _ => Some(Time(now)),
        };
    }
    json!({ "metadata": { "uid": server.metadata.uid }, "status": status })
}

/// Merge patch of labels and annotations, or nothing when the server has them all.
pub fn metadata_patch(ours: &Node, server: &Node) -> Option<Value> {
    let missing = |want: &Option<BTreeMap<String, String>>, have: &Option<BTreeMap<String, String>>| {
        let have = have.clone().unwrap_or_default();
        want.iter()
            .flatten()
            .filter(|(key, value)| have.get(*key) != Some(value))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect::<BTreeMap<_, _>>()
    };
    let labels = missing(&ours.metadata.labels, &server.metadata.labels);
    let annotations = missing(&ours.metadata.annotations, &server.metadata.annotations);
    (!labels.is_empty() || !annotations.is_empty())
        .then(|| json!({ "metadata": { "uid": server.metadata.uid, "labels": labels, "annotations": annotations } }))
}

/// A machine's host name has at most 63 characters, a Node's name may have 253: the label takes what fits.
fn host_name(node_name: &str) -> String {
    let cut: String = node_name.chars().take(63).collect();
    cut.trim_end_matches(['-', '.']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> MachineFacts {
        MachineFacts {
            name: "n1".into(),
            internal_ip: "198.18.0.1".into(),
            labels: BTreeMap::new(),
            taints: vec![],
            cpu: "8".into(),
            memory: "16Gi".into(),
            pods: "110".into(),
            boot_id: String::new(),
            kernel_version: String::new(),
        }
    }

    fn node(second: i64) -> Node {
        new_node(&facts(), Timestamp::from_second(second).unwrap())
    }

    fn set_ready(node: &mut Node, status: &str) {
        let conditions = node.status.as_mut().unwrap().conditions.as_mut().unwrap();
        conditions.iter_mut().find(|c| c.type_ == "Ready").unwrap().status = status.into();
    }

    #[test]
    fn a_ready_condition_set_unknown_by_the_node_controller_is_foreign() {
        let (ours, mut server) = (node(1), node(1));
        assert!(!ready_is_foreign(&ours, &server));
        set_ready(&mut server, "Unknown");
        assert!(ready_is_foreign(&ours, &server));
    }

    #[test]
    fn a_heartbeat_moves_no_transition_time_and_a_repair_does() {
        let (ours, mut server) = (node(1), node(1));
        let now = Timestamp::from_second(100).unwrap();
        let ready =
            |patch: &Value| patch["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Ready").unwrap().clone();
        let beat = ready(&status_patch(&ours, &server, now));
        assert_eq!(beat["lastTransitionTime"], "1970-01-01T00:00:01Z");
        assert_eq!(beat["lastHeartbeatTime"], "1970-01-01T00:01:40Z");
        set_ready(&mut server, "Unknown");
        assert_eq!(ready(&status_patch(&ours, &server, now))["lastTransitionTime"], "1970-01-01T00:01:40Z");
    }

    #[test]
    fn labels_of_others_are_not_touched() {
        let (ours, mut server) = (node(1), node(1));
        server.metadata.labels.as_mut().unwrap().insert("theirs".into(), "1".into());
        assert_eq!(metadata_patch(&ours, &server), None);
        server.metadata.labels.as_mut().unwrap().remove("kubernetes.io/os");
        let patch = metadata_patch(&ours, &server).unwrap();
        assert_eq!(patch["metadata"]["labels"], json!({"kubernetes.io/os": "linux"}));
    }
}
