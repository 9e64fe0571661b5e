//! Computation of Node objects and of the patches on them; no I/O.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeSpec, NodeStatus, NodeSystemInfo, Taint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Version that a node says it runs when nobody says another: the one whose behaviour is imitated.
const KUBELET_VERSION: &str = "v1.36.3";
/// What a node says its pods run in when nobody says anything else.
const RUNTIME_VERSION: &str = concat!("virtual-kubelet://", env!("CARGO_PKG_VERSION"));

/// Annotation that names what this crate has put on a Node, so that what is dropped later is taken away again and what
/// others put on stays, also after a restart. Written by the node controller alone; changes only when names do.
///
/// ```
/// use k8s_openapi::api::core::v1::Node;
/// use virtual_kubelet::node::APPLIED_KEYS_ANNOTATION;
///
/// /// Whether this crate registered the node.
/// fn is_virtual(node: &Node) -> bool {
///     node.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(APPLIED_KEYS_ANNOTATION))
/// }
/// assert!(!is_virtual(&Node::default()));
/// ```
pub const APPLIED_KEYS_ANNOTATION: &str = "virtual-kubelet.io/applied-keys";

/// What a new Node says about its machine.
///
/// ```
/// use k8s_openapi::api::core::v1::Taint;
/// use virtual_kubelet::node::MachineFacts;
///
/// let facts = MachineFacts {
///     name: "n1".into(),
///     internal_ip: "198.18.0.1".into(),
///     labels: [("topology.kubernetes.io/zone".to_owned(), "a".to_owned())].into(),
///     taints: vec![Taint { key: "example.com/virtual".into(), effect: "NoSchedule".into(), ..Taint::default() }],
///     cpu: "8".into(),
///     memory: "16Gi".into(),
///     pods: "110".into(),
///     kubelet_port: Some(10250),
///     container_runtime_version: "example-cloud://2.1".into(),
///     ..MachineFacts::default()
/// };
/// ```
#[derive(Clone, Debug, Default)]
pub struct MachineFacts {
    /// Name of the node.
    pub name: String,
    /// Address reported as `InternalIP`.
    pub internal_ip: String,
    /// Labels beside `kubernetes.io/hostname`, `/os` and `/arch`.
    pub labels: BTreeMap<String, String>,
    /// Taints set when the node is created; never touched afterwards.
    pub taints: Vec<Taint>,
    /// CPUs, as a quantity: `8`, `500m`.
    pub cpu: String,
    /// Memory, as a quantity: `16Gi`.
    pub memory: String,
    /// Most pods at a time, as a quantity: `110`.
    pub pods: String,
    /// Port of the kubelet's API on `internal_ip`, if it is served.
    pub kubelet_port: Option<u16>,
    /// The machine's boot id.
    pub boot_id: String,
    /// The kernel's release.
    pub kernel_version: String,
    /// Version of Kubernetes that the node says it runs, such as `v1.36.3`; when empty, the one whose kubelet this crate imitates.
    pub kubelet_version: String,
    /// What the provider's pods run in, with its version, such as `process://0.1.0`; when empty, this crate and its version.
    pub container_runtime_version: String,
}

/// The Node that `facts` describe, ready as of `now`.
///
/// ```
/// use virtual_kubelet::node::{MachineFacts, new_node};
///
/// let facts = MachineFacts { name: "n1".into(), internal_ip: "198.18.0.1".into(), pods: "110".into(), ..MachineFacts::default() };
/// let node = new_node(&facts, jiff::Timestamp::now());
/// assert_eq!(node.metadata.labels.unwrap()["kubernetes.io/hostname"], "n1");
/// ```
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
            daemon_endpoints: Some(NodeDaemonEndpoints {
                kubelet_endpoint: facts.kubelet_port.map(|port| DaemonEndpoint { port: port.into() }),
            }),
            // API servers from 1.36 on then hand on WebSockets as they are, instead of translating them to SPDY.
            declared_features: facts.kubelet_port.map(|_| vec!["ExtendWebSocketsToKubelet".into()]),
            node_info: Some(NodeSystemInfo {
                architecture: architecture.into(),
                boot_id: facts.boot_id.clone(),
                container_runtime_version: or(&facts.container_runtime_version, RUNTIME_VERSION),
                kernel_version: facts.kernel_version.clone(),
                kube_proxy_version: String::new(),
                kubelet_version: or(&facts.kubelet_version, KUBELET_VERSION),
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

fn or(text: &str, default: &str) -> String {
    if text.is_empty() { default } else { text }.to_owned()
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
fn ready_is_foreign(ours: &Node, server: &Node) -> bool {
    node_conditions(ours).iter().any(|own| {
        !node_conditions(server)
            .iter()
            .any(|theirs| theirs.type_ == own.type_ && theirs.status == own.status && theirs.reason == own.reason)
    })
}

/// Names of what is ours on a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct AppliedKeys {
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    labels: BTreeSet<String>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    annotations: BTreeSet<String>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    conditions: BTreeSet<String>,
    /// Each `key:effect`.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    taints: BTreeSet<String>,
    /// Types of addresses.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    addresses: BTreeSet<String>,
    /// Names in `capacity` and `allocatable`.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    resources: BTreeSet<String>,
}

impl AppliedKeys {
    fn of(ours: &Node) -> Self {
        let keys = |map: &Option<BTreeMap<String, String>>| map.iter().flatten().map(|(key, _)| key.clone()).collect();
        Self {
            labels: keys(&ours.metadata.labels),
            annotations: keys(&ours.metadata.annotations),
            conditions: node_conditions(ours).iter().map(|condition| condition.type_.clone()).collect(),
            taints: taints(ours).iter().map(taint_key).collect(),
            addresses: addresses(ours).iter().map(|address| address.type_.clone()).collect(),
            resources: RESOURCES.iter().filter_map(|(_, of)| of(ours)).flatten().map(|(name, _)| name.clone()).collect(),
        }
    }

    /// What was put on `server`. An annotation that cannot be read names nothing: then nothing is taken away.
    fn on(server: &Node) -> Self {
        let text = server.metadata.annotations.as_ref().and_then(|annotations| annotations.get(APPLIED_KEYS_ANNOTATION));
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    fn text(&self) -> String {
        json!(self).to_string()
    }
}

fn addresses(node: &Node) -> &[NodeAddress] {
    node.status.as_ref().and_then(|status| status.addresses.as_deref()).unwrap_or_default()
}

/// What a node has and what of it pods may have, by its field.
type Resources = fn(&Node) -> Option<&BTreeMap<String, Quantity>>;
const RESOURCES: [(&str, Resources); 2] =
    [("capacity", |node| node.status.as_ref()?.capacity.as_ref()), ("allocatable", |node| node.status.as_ref()?.allocatable.as_ref())];

fn taints(node: &Node) -> &[Taint] {
    node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
}

fn taint_key(taint: &Taint) -> String {
    format!("{}:{}", taint.key, taint.effect)
}

/// Annotations as they shall be, with the names of what is ours.
fn annotations(ours: &Node) -> BTreeMap<String, String> {
    let mut annotations = ours.metadata.annotations.clone().unwrap_or_default();
    annotations.insert(APPLIED_KEYS_ANNOTATION.into(), AppliedKeys::of(ours).text());
    annotations
}

/// The node as it is created.
pub(crate) fn registered(ours: &Node) -> Node {
    let mut node = ours.clone();
    node.metadata.annotations = Some(annotations(ours));
    node
}

/// What differs: keys to set, and keys of ours that are not wanted any more as null.
fn changed(
    want: Option<&BTreeMap<String, String>>,
    have: Option<&BTreeMap<String, String>>,
    before: &BTreeSet<String>,
) -> Map<String, Value> {
    let has = |key: &String| have.and_then(|have| have.get(key));
    let set = want.into_iter().flatten().filter(|(key, value)| has(key) != Some(value));
    let dropped = before.iter().filter(|key| has(key).is_some() && want.is_none_or(|want| !want.contains_key(*key)));
    set.map(|(key, value)| (key.clone(), json!(value))).chain(dropped.map(|key| (key.clone(), Value::Null))).collect()
}

fn metadata_changes(ours: &Node, server: &Node) -> (Map<String, Value>, Map<String, Value>) {
    let before = AppliedKeys::on(server);
    let labels = changed(ours.metadata.labels.as_ref(), server.metadata.labels.as_ref(), &before.labels);
    (labels, changed(Some(&annotations(ours)), server.metadata.annotations.as_ref(), &before.annotations))
}

/// Whether somebody else changed what is ours, or something of ours is still to be taken away.
pub(crate) fn needs_repair(ours: &Node, server: &Node) -> bool {
    let (labels, annotations) = metadata_changes(ours, server);
    ready_is_foreign(ours, server) || !labels.is_empty() || !annotations.is_empty()
}

/// Strategic merge patch of the status, which also takes labels and annotations: only keys of our own, so that labels,
/// annotations, conditions and addresses of others survive. A condition's transition time moves only when its status
/// differs from `server`'s.
pub(crate) fn node_patch(ours: &Node, server: &Node, now: Timestamp) -> Value {
    let mut status = ours.status.clone().unwrap_or_default();
    for condition in status.conditions.iter_mut().flatten() {
        let before = node_conditions(server).iter().find(|theirs| theirs.type_ == condition.type_);
        condition.last_heartbeat_time = Some(Time(now));
        condition.last_transition_time = match before {
            Some(before) if before.status == condition.status => before.last_transition_time.clone(),
            _ => Some(Time(now)),
        };
    }
    let mut status = json!(status);
    let dropped = AppliedKeys::on(server).conditions;
    let dropped = dropped.iter().filter(|type_| !node_conditions(ours).iter().any(|own| own.type_ == **type_));
    let dropped: Vec<_> = dropped.map(|type_| json!({ "$patch": "delete", "type": type_ })).collect();
    if !dropped.is_empty() {
        match status["conditions"].as_array_mut() {
            Some(conditions) => conditions.extend(dropped),
            None => status["conditions"] = Value::Array(dropped),
        }
    }
    set_addresses(&mut status, ours, server);
    for (field, of) in RESOURCES {
        let is_ours = |name: &str| of(ours).is_some_and(|own| own.contains_key(name));
        for name in AppliedKeys::on(server).resources.iter().filter(|name| !is_ours(name)) {
            if of(server).is_some_and(|have| have.contains_key(name)) {
                status[field][name] = Value::Null;
            }
        }
    }
    let mut metadata = json!({ "uid": server.metadata.uid });
    let (labels, annotations) = metadata_changes(ours, server);
    for (field, changes) in [("labels", labels), ("annotations", annotations)] {
        if !changes.is_empty() {
            metadata[field] = Value::Object(changes);
        }
    }
    json!({ "metadata": metadata, "status": status })
}

/// Merged by type, as the API server does it, of two addresses of one type one would be lost: so the list is written whole,
/// with those of others, and only if it changes.
fn set_addresses(status: &mut Value, ours: &Node, server: &Node) {
    let before = AppliedKeys::on(server).addresses;
    let is_ours = |address: &&NodeAddress| before.contains(&address.type_) || addresses(ours).iter().any(|own| own.type_ == address.type_);
    let of_others = addresses(server).iter().filter(|address| !is_ours(address));
    let wanted: Vec<&NodeAddress> = addresses(ours).iter().chain(of_others).collect();
    let Some(status) = status.as_object_mut() else { return };
    if wanted.iter().copied().eq(addresses(server)) {
        status.remove("addresses");
        return;
    }
    let mut list: Vec<Value> = wanted.into_iter().map(|address| json!(address)).collect();
    list.push(json!({ "$patch": "replace" }));
    status.insert("addresses".into(), Value::Array(list));
}

/// Merge patch that puts our taints and our provider id on, and takes taints of ours away that are not wanted any more;
/// nothing when that is so already. The list is written whole, hence the version.
pub(super) fn spec_patch(ours: &Node, server: &Node) -> Option<Value> {
    let before = AppliedKeys::on(server).taints;
    let wanted = |taint: &Taint| taints(ours).iter().any(|own| taint_key(own) == taint_key(taint));
    let of_others = |taint: &&Taint| !wanted(taint) && !before.contains(&taint_key(taint));
    let mut list: Vec<Taint> = taints(server).iter().filter(of_others).cloned().collect();
    list.extend(taints(ours).iter().cloned());
    let shown = |taint: &Taint| taints(server).iter().any(|have| taint_key(have) == taint_key(taint) && have.value == taint.value);
    let provider_id = |node: &Node| node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).filter(|id| !id.is_empty());
    let mut spec = Map::new();
    if list.len() != taints(server).len() || !list.iter().all(shown) {
        spec.insert("taints".into(), json!(list));
    }
    // It cannot be changed once it is set.
    if let Some(id) = provider_id(ours).filter(|_| provider_id(server).is_none()) {
        spec.insert("providerID".into(), json!(id));
    }
    let metadata = json!({ "uid": server.metadata.uid, "resourceVersion": server.metadata.resource_version });
    (!spec.is_empty()).then(|| json!({ "metadata": metadata, "spec": spec }))
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
            cpu: "8".into(),
            memory: "16Gi".into(),
            pods: "110".into(),
            kubelet_port: Some(10250),
            ..MachineFacts::default()
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
    fn a_provider_says_which_kubelet_and_runtime_its_node_has() {
        let info = |facts: &MachineFacts| new_node(facts, Timestamp::UNIX_EPOCH).status.and_then(|status| status.node_info).unwrap();
        let (kubelet_version, container_runtime_version) = ("v1.34.1".to_owned(), "example-cloud://2.1".to_owned());
        let own = info(&MachineFacts { kubelet_version, container_runtime_version, ..facts() });
        assert_eq!((own.kubelet_version.as_str(), own.container_runtime_version.as_str()), ("v1.34.1", "example-cloud://2.1"));
        let unsaid = info(&facts());
        assert!(unsaid.container_runtime_version.starts_with("virtual-kubelet://"), "{}", unsaid.container_runtime_version);
        assert_eq!(unsaid.kubelet_version, KUBELET_VERSION);
    }

    #[test]
    fn an_unknown_ready_condition_on_the_server_is_foreign() {
        let (ours, mut server) = (node(1), node(1));
        assert!(!ready_is_foreign(&ours, &server));
        set_ready(&mut server, "Unknown");
        assert!(ready_is_foreign(&ours, &server));
    }

    #[test]
    fn a_heartbeat_moves_no_transition_time_and_a_repair_does() {
        let (ours, mut server) = (node(1), registered(&node(1)));
        let now = Timestamp::from_second(100).unwrap();
        let ready =
            |patch: &Value| patch["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Ready").unwrap().clone();
        let beat = node_patch(&ours, &server, now);
        assert_eq!(ready(&beat)["lastTransitionTime"], "1970-01-01T00:00:01Z");
        assert_eq!(ready(&beat)["lastHeartbeatTime"], "1970-01-01T00:01:40Z");
        set_ready(&mut server, "Unknown");
        assert_eq!(ready(&node_patch(&ours, &server, now))["lastTransitionTime"], "1970-01-01T00:01:40Z");
    }

    #[test]
    fn a_heartbeat_writes_no_metadata_of_the_node() {
        let (ours, server) = (node(1), registered(&node(1)));
        assert_eq!(node_patch(&ours, &server, Timestamp::UNIX_EPOCH)["metadata"], json!({ "uid": null }));
        let annotations = server.metadata.annotations.unwrap();
        assert_eq!(annotations.keys().collect::<Vec<_>>(), [APPLIED_KEYS_ANNOTATION]);
        assert_eq!(
            annotations[APPLIED_KEYS_ANNOTATION],
            "{\"addresses\":[\"Hostname\",\"InternalIP\"],\"conditions\":[\"DiskPressure\",\"MemoryPressure\",\"PIDPressure\",\"Ready\"],\
             \"labels\":[\"kubernetes.io/arch\",\"kubernetes.io/hostname\",\"kubernetes.io/os\"],\"resources\":[\"cpu\",\"memory\",\"pods\"]}"
        );
    }

    #[test]
    fn labels_annotations_and_conditions_of_others_are_not_touched() {
        let (ours, mut server) = (node(1), registered(&node(1)));
        server.metadata.labels.as_mut().unwrap().insert("theirs".into(), "1".into());
        server.metadata.annotations.as_mut().unwrap().insert("theirs".into(), "1".into());
        let theirs = NodeCondition { type_: "Theirs".into(), status: "True".into(), ..NodeCondition::default() };
        server.status.as_mut().unwrap().conditions.as_mut().unwrap().push(theirs);
        assert!(!needs_repair(&ours, &server));
        assert!(!node_patch(&ours, &server, Timestamp::UNIX_EPOCH).to_string().to_lowercase().contains("theirs"));
        server.metadata.labels.as_mut().unwrap().remove("kubernetes.io/os");
        assert!(needs_repair(&ours, &server));
        assert_eq!(node_patch(&ours, &server, Timestamp::UNIX_EPOCH)["metadata"]["labels"], json!({"kubernetes.io/os": "linux"}));
    }

    #[test]
    fn dropped_own_entries_are_removed_even_after_a_restart() {
        let mut before = node(1);
        before.metadata.labels.as_mut().unwrap().insert("ours".into(), "1".into());
        before.metadata.annotations = Some([("ours".to_owned(), "1".to_owned())].into());
        let ours = NodeCondition { type_: "Ours".into(), status: "True".into(), ..NodeCondition::default() };
        before.status.as_mut().unwrap().conditions.as_mut().unwrap().push(ours);
        let server = registered(&before);
        let patch = node_patch(&node(1), &server, Timestamp::UNIX_EPOCH);
        assert!(needs_repair(&node(1), &server));
        assert_eq!(patch["metadata"]["labels"], json!({ "ours": null }));
        assert_eq!(patch["metadata"]["annotations"]["ours"], Value::Null);
        let conditions = patch["status"]["conditions"].as_array().unwrap();
        assert_eq!(conditions.last(), Some(&json!({ "$patch": "delete", "type": "Ours" })));
        let mut unreadable = server;
        unreadable.metadata.annotations.as_mut().unwrap().insert(APPLIED_KEYS_ANNOTATION.into(), "?".into());
        assert!(node_patch(&node(1), &unreadable, Timestamp::UNIX_EPOCH)["metadata"].get("labels").is_none());
    }

    #[test]
    fn own_taints_and_provider_id_are_restored_beside_foreign_taints() {
        let taint =
            |key: &str, value: &str| Taint { key: key.into(), value: Some(value.into()), effect: "NoSchedule".into(), ..Taint::default() };
        let with = |taints: &[Taint], id: Option<&str>| {
            let spec = NodeSpec { taints: Some(taints.to_vec()), provider_id: id.map(Into::into), ..NodeSpec::default() };
            Node { spec: Some(spec), ..node(1) }
        };
        let ours = with(&[taint("a", "1")], Some("vk://1"));
        let mut server = registered(&with(&[taint("a", "1"), taint("dropped", "1")], Some("vk://1")));
        server.spec.as_mut().unwrap().taints.as_mut().unwrap().push(taint("theirs", "1"));
        let patch = spec_patch(&ours, &server).unwrap();
        assert_eq!(patch["spec"], json!({ "taints": [taint("theirs", "1"), taint("a", "1")] }));
        assert_eq!(spec_patch(&ours, &with(&[taint("theirs", "1"), taint("a", "1")], Some("vk://1"))), None);
        let patch = spec_patch(&ours, &with(&[taint("a", "2")], None)).unwrap();
        assert_eq!(patch["spec"], json!({ "taints": [taint("a", "1")], "providerID": "vk://1" }));
    }

    #[test]
    fn foreign_addresses_stay_while_dropped_own_addresses_are_removed() {
        let address = |type_: &str, address: &str| NodeAddress { type_: type_.into(), address: address.into() };
        let with = |list: &[NodeAddress]| {
            let mut node = node(1);
            node.status.as_mut().unwrap().addresses = Some(list.to_vec());
            node
        };
        let (four, six) = (address("InternalIP", "198.18.0.1"), address("InternalIP", "fd00::1"));
        let ours = with(&[four.clone(), six.clone()]);
        let mut server = registered(&with(&[four.clone(), six.clone(), address("ExternalDNS", "dropped")]));
        server.status.as_mut().unwrap().addresses.as_mut().unwrap().push(address("ExternalIP", "theirs"));
        let patch = node_patch(&ours, &server, Timestamp::UNIX_EPOCH);
        assert_eq!(patch["status"]["addresses"], json!([four, six, address("ExternalIP", "theirs"), { "$patch": "replace" }]));
        assert!(node_patch(&ours, &registered(&ours), Timestamp::UNIX_EPOCH)["status"].get("addresses").is_none());
    }

    #[test]
    fn dropped_resources_are_removed_while_foreign_ones_stay() {
        let quantity = || Quantity("1".into());
        let mut before = node(1);
        before.status.as_mut().unwrap().capacity.as_mut().unwrap().insert("example.com/gpu".into(), quantity());
        let mut server = registered(&before);
        server.status.as_mut().unwrap().capacity.as_mut().unwrap().insert("example.com/theirs".into(), quantity());
        let capacity = node_patch(&node(1), &server, Timestamp::UNIX_EPOCH)["status"]["capacity"].clone();
        assert_eq!(capacity["example.com/gpu"], Value::Null);
        assert!(capacity.as_object().unwrap().contains_key("example.com/gpu"));
        assert!(!capacity.as_object().unwrap().contains_key("example.com/theirs"));
    }
}
