//! Pods and Nodes as far as a fleet reads them: what is not named here is skipped while it is decoded.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeStatus, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use kube::core::{ClusterResourceScope, NamespaceResourceScope};
use serde::{Deserialize, Deserializer};

/// Above all without `managedFields`, which are half of a Pod.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    finalizers: Option<Vec<String>>,
}

fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let slim = Metadata::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: slim.name,
        namespace: slim.namespace,
        uid: slim.uid,
        resource_version: slim.resource_version,
        generation: slim.generation,
        deletion_timestamp: slim.deletion_timestamp,
        deletion_grace_period_seconds: slim.deletion_grace_period_seconds,
        labels: slim.labels,
        annotations: slim.annotations,
        finalizers: slim.finalizers,
        ..ObjectMeta::default()
    })
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SlimContainer {
    pub name: String,
    #[serde(default)]
    pub image: String,
    pub restart_policy: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SlimGate {
    pub condition_type: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SlimPodSpec {
    pub node_name: String,
    pub containers: Vec<SlimContainer>,
    pub init_containers: Vec<SlimContainer>,
    pub restart_policy: Option<String>,
    pub readiness_gates: Vec<SlimGate>,
    pub termination_grace_period_seconds: Option<i64>,
    pub host_network: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct SlimPod {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: SlimPodSpec,
    #[serde(default)]
    pub status: PodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SlimNodeStatus {
    #[serde(default)]
    conditions: Vec<NodeCondition>,
    /// Those of others must stay.
    #[serde(default)]
    addresses: Vec<NodeAddress>,
    daemon_endpoints: Option<NodeDaemonEndpoints>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct SlimNode {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    status: SlimNodeStatus,
}

impl SlimNode {
    pub fn into_node(self) -> Node {
        let SlimNodeStatus { conditions, addresses, daemon_endpoints } = self.status;
        let status = NodeStatus { conditions: Some(conditions), addresses: Some(addresses), daemon_endpoints, ..NodeStatus::default() };
        Node { metadata: self.metadata, spec: None, status: Some(status) }
    }
}

macro_rules! resource {
    ($slim:ty, $scope:ty, $kind:literal, $plural:literal) => {
        impl Resource for $slim {
            type DynamicType = ();
            type Scope = $scope;

            fn kind((): &()) -> Cow<'_, str> {
                $kind.into()
            }

            fn group((): &()) -> Cow<'_, str> {
                "".into()
            }

            fn version((): &()) -> Cow<'_, str> {
                "v1".into()
            }

            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

resource!(SlimPod, NamespaceResourceScope, "Pod", "pods");
resource!(SlimNode, ClusterResourceScope, "Node", "nodes");

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_fleet_does_not_read_is_skipped() {
        let pod = json!({
            "metadata": { "name": "a", "namespace": "n", "uid": "u", "managedFields": [{ "manager": "m", "fieldsV1": {} }], "ownerReferences": "x" },
            "spec": { "nodeName": "sim-0", "containers": [{ "name": "c", "image": "i", "env": 5 }], "volumes": 7, "hostNetwork": true },
            "status": { "phase": "Pending" },
        });
        let pod: SlimPod = serde_json::from_value(pod).unwrap();
        assert!(pod.metadata.managed_fields.is_none() && pod.spec.host_network);
        assert_eq!((pod.spec.containers[0].image.as_str(), pod.status.phase.as_deref()), ("i", Some("Pending")));
        let node: SlimNode = serde_json::from_value(json!({ "metadata": { "name": "a" }, "spec": 5, "status": { "images": 3 } })).unwrap();
        assert_eq!(node.into_node().metadata.name.as_deref(), Some("a"));
    }
}
