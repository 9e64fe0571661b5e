//! The objects of the workload, the same for all: as text, because each is written thousands of times.

use serde_json::{Value, json};

/// What the names of all nodes begin with.
pub const PREFIX: &str = "sim-";
/// How long a lease is good for, in seconds: a kubelet's default.
pub const LEASE_SECONDS: u32 = 40;

/// Name of a node.
pub fn node_name(index: usize) -> String {
    format!("{PREFIX}{index}")
}

/// Name of a pod.
pub fn pod_name(index: usize) -> String {
    format!("pod-{index}")
}

/// A node as somebody makes it who leaves the rest to KWOK: everything but conditions. With `ready`, as a kubelet registers itself.
pub fn node(index: usize, ready: bool) -> String {
    let name = node_name(index);
    let room = json!({ "cpu": "32", "memory": "256Gi", "pods": "110" });
    let mut node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name, "labels": {
            "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        } },
        "status": {
            "capacity": room, "allocatable": room,
            "addresses": [{ "type": "InternalIP", "address": "198.18.0.1" }, { "type": "Hostname", "address": name }],
            "nodeInfo": {
                "architecture": "amd64", "operatingSystem": "linux", "kubeletVersion": "v1.36.3", "bootID": "", "machineID": "",
                "systemUUID": "", "kernelVersion": "", "osImage": "", "containerRuntimeVersion": "", "kubeProxyVersion": "",
            },
        },
    });
    if ready {
        let now = jiff::Timestamp::now().to_string();
        let condition = |kind: &str, status: &str| json!({ "type": kind, "status": status, "reason": "Simulated", "message": "", "lastHeartbeatTime": now, "lastTransitionTime": now });
        node["status"]["conditions"] = json!([
            condition("Ready", "True"),
            condition("MemoryPressure", "False"),
            condition("DiskPressure", "False"),
            condition("PIDPressure", "False"),
            condition("NetworkUnavailable", "False"),
        ]);
    }
    node.to_string()
}

/// A node's lease, renewed now. Without a version it is a new one.
pub fn lease(node: &str, uid: &str, version: &str) -> String {
    let version = if version.is_empty() { Value::Null } else { version.into() };
    // Kubernetes reads these times with exactly six digits.
    let now = format!("{:.6}", jiff::Timestamp::now());
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": node, "namespace": "kube-node-lease", "resourceVersion": version,
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": node, "uid": uid }] },
        "spec": { "holderIdentity": node, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now },
    })
    .to_string()
}

/// A pod that is bound to a node from the start. It has no token, because none of the three would mount it.
pub fn pod(index: usize, nodes: usize) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": pod_name(index), "namespace": "default", "labels": { "app": "bench" } },
        "spec": {
            "nodeName": node_name(index % nodes.max(1)), "automountServiceAccountToken": false, "enableServiceLinks": false,
            "containers": [{ "name": "app", "image": "app:1" }],
        },
    })
    .to_string()
}

/// What makes a pod Running and Ready, as a merge patch of its status.
pub fn running(ip: u32) -> String {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = |kind: &str| json!({ "type": kind, "status": "True", "lastTransitionTime": now });
    let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition);
    let ip = std::net::Ipv4Addr::from(0x0a00_0001_u32.wrapping_add(ip)).to_string();
    json!({ "status": {
        "phase": "Running", "startTime": now, "hostIP": "198.18.0.1", "hostIPs": [{ "ip": "198.18.0.1" }], "podIP": ip, "podIPs": [{ "ip": ip }],
        "conditions": conditions,
        "containerStatuses": [{
            "name": "app", "image": "app:1", "imageID": "", "ready": true, "started": true, "restartCount": 0,
            "state": { "running": { "startedAt": now } },
        }],
    } })
    .to_string()
}

/// What a node agent sends when a pod has ended: it is this pod's end, and at once.
pub fn end(uid: &str) -> String {
    json!({ "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "preconditions": { "uid": uid } }).to_string()
}
