//! Objects of which the watches decode no more than is read of them.
//!
//! A restarted operator decodes four objects per node before it decides, and most of their bytes are what nobody reads: who
//! manages which field, images, volumes, probes. What is not decoded costs neither the time nor the memory for it.

use super::{
    Kind,
    index::{Index, Key, Observed, Touched},
    usage::Usages,
};
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec, DeploymentStatus, ReplicaSet, ReplicaSetSpec, ReplicaSetStatus},
        core::v1::{
            Container, ContainerState, ContainerStatus, Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, NodeSystemInfo, Pod,
            PodCondition, PodReadinessGate, PodSpec, PodStatus, PodTemplateSpec, Taint,
        },
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time},
};
use kube::Resource;
use planner::facts::shared_spec::SpecInterner;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use std::{borrow::Cow, collections::BTreeMap};

/// A kind of object that is read in part.
pub trait Partly: Sized {
    /// What is read.
    type Part: DeserializeOwned + Into<Self>;
}

/// An object that has those fields alone that are read of it; the others have their defaults.
#[derive(Clone, Debug)]
pub struct Partial<K>(pub K);

impl<'de, K: Partly> Deserialize<'de> for Partial<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        K::Part::deserialize(deserializer).map(|part| Self(part.into()))
    }
}

impl<K: Resource> Resource for Partial<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dynamic)
    }

    fn group(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dynamic)
    }

    fn version(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dynamic)
    }

    fn plural(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

impl<K: Observed> Observed for Partial<K> {
    const KIND: Kind = K::KIND;
    type Kept = K::Kept;

    fn keep(self, specs: &mut SpecInterner) -> Self::Kept {
        self.0.keep(specs)
    }

    fn insert(key: Key, kept: Self::Kept, index: &mut Index) -> Touched {
        K::insert(key, kept, index)
    }

    fn remove(index: &mut Index, key: &Key) -> Touched {
        K::remove(index, key)
    }

    fn entries(index: &Index) -> Vec<(Key, u64)> {
        K::entries(index)
    }

    fn bound(kept: &mut Self::Kept, namespace: &str, former: Option<&Self::Kept>, usages: &mut Usages) {
        K::bound(kept, namespace, former, usages);
    }

    fn unbound(kept: &Self::Kept, namespace: &str, usages: &mut Usages) {
        K::unbound(kept, namespace, usages);
    }
}

/// What is read of an object: its metadata, and parts of the others.
#[derive(Deserialize)]
pub struct Object<Spec, Status> {
    metadata: Option<Meta>,
    spec: Option<Spec>,
    status: Option<Status>,
}

/// Structs with some of the fields of others, which they become: fields that are optional there, too, and those that are not.
macro_rules! parts {
    ($($part:ident of $whole:ident {
        $($(#[$optional_key:meta])? $optional:ident: $type:ty),* $(,)?
        $(; required: $($(#[$key:meta])? $required:ident: $required_type:ty),+ $(,)?)?
    })+) => {$(
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $part {
            $($(#[$optional_key])? $optional: Option<$type>,)*
            $($($(#[$key])? $required: Option<$required_type>,)+)?
        }

        impl From<$part> for $whole {
            fn from(part: $part) -> Self {
                Self {
                    $($optional: part.$optional,)*
                    $($($required: part.$required.unwrap_or_default(),)+)?
                    ..Self::default()
                }
            }
        }
    )+};
}

parts! {
    Meta of ObjectMeta {
        name: String,
        namespace: String,
        uid: String,
        resource_version: String,
        generation: i64,
        creation_timestamp: Time,
        deletion_timestamp: Time,
        labels: BTreeMap<String, String>,
        annotations: BTreeMap<String, String>,
        owner_references: Vec<OwnerReference>,
    }
    NodeSpecPart of NodeSpec { taints: Vec<Taint>, unschedulable: bool }
    NodeConditionPart of NodeCondition {
        last_heartbeat_time: Time,
        last_transition_time: Time;
        required: #[serde(rename = "type")] type_: String, status: String,
    }
    SystemPart of NodeSystemInfo {
        ;
        required:
            #[serde(rename = "bootID")] boot_id: String,
            #[serde(rename = "machineID")] machine_id: String,
            #[serde(rename = "systemUUID")] system_uuid: String,
    }
    ReplicaSetSpecPart of ReplicaSetSpec { replicas: i32, template: PodTemplateSpec }
    ReplicaSetStatusPart of ReplicaSetStatus { ; required: replicas: i32 }
    ContainerPart of Container { image: String; required: name: String }
    ContainerStatusPart of ContainerStatus {
        #[serde(rename = "containerID")]
        container_id: String,
        started: bool,
        state: ContainerState,
        last_state: ContainerState;
        required:
            name: String,
            ready: bool,
            image: String,
            restart_count: i32,
            #[serde(rename = "imageID")] image_id: String,
    }
    PodConditionPart of PodCondition {
        reason: String,
        message: String,
        last_transition_time: Time;
        required: #[serde(rename = "type")] type_: String, status: String,
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatusPart {
    addresses: Option<Vec<NodeAddress>>,
    conditions: Option<Vec<NodeConditionPart>>,
    node_info: Option<SystemPart>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpecPart {
    node_name: Option<String>,
    containers: Option<Vec<ContainerPart>>,
    readiness_gates: Option<Vec<PodReadinessGate>>,
    termination_grace_period_seconds: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStatusPart {
    phase: Option<String>,
    reason: Option<String>,
    message: Option<String>,
    observed_generation: Option<i64>,
    conditions: Option<Vec<PodConditionPart>>,
    container_statuses: Option<Vec<ContainerStatusPart>>,
    init_container_statuses: Option<Vec<ContainerStatusPart>>,
}

fn each<P: Into<W>, W>(parts: Option<Vec<P>>) -> Option<Vec<W>> {
    parts.map(|parts| parts.into_iter().map(Into::into).collect())
}

impl From<NodeStatusPart> for NodeStatus {
    fn from(part: NodeStatusPart) -> Self {
        Self { addresses: part.addresses, conditions: each(part.conditions), node_info: part.node_info.map(Into::into), ..Self::default() }
    }
}

impl From<PodSpecPart> for PodSpec {
    fn from(part: PodSpecPart) -> Self {
        Self {
            node_name: part.node_name,
            containers: each(part.containers).unwrap_or_default(),
            readiness_gates: part.readiness_gates,
            termination_grace_period_seconds: part.termination_grace_period_seconds,
            ..Self::default()
        }
    }
}

impl From<PodStatusPart> for PodStatus {
    fn from(part: PodStatusPart) -> Self {
        Self {
            phase: part.phase,
            reason: part.reason,
            message: part.message,
            observed_generation: part.observed_generation,
            conditions: each(part.conditions),
            container_statuses: each(part.container_statuses),
            init_container_statuses: each(part.init_container_statuses),
            ..Self::default()
        }
    }
}

/// Kinds whose metadata, spec and status are optional or have defaults.
macro_rules! partly {
    ($($kind:ident { $spec:ident, $status:ident })+) => {$(
        impl Partly for $kind {
            type Part = Object<$spec, $status>;
        }

        impl From<Object<$spec, $status>> for $kind {
            fn from(part: Object<$spec, $status>) -> Self {
                Self {
                    metadata: part.metadata.map(Into::into).unwrap_or_default(),
                    spec: part.spec.map(Into::into),
                    status: part.status.map(Into::into),
                }
            }
        }
    )+};
}

partly! {
    Node { NodeSpecPart, NodeStatusPart }
    Deployment { DeploymentSpec, DeploymentStatus }
    ReplicaSet { ReplicaSetSpecPart, ReplicaSetStatusPart }
    Pod { PodSpecPart, PodStatusPart }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::fmt::Debug;

    fn meta() -> Value {
        json!({
            "name": "edge-n1", "namespace": "default", "uid": "u", "resourceVersion": "7", "generation": 3,
            "creationTimestamp": "2026-11-22T00:00:00Z", "deletionTimestamp": "2026-11-22T00:00:09Z",
            "labels": {
                crds::names::RESOURCE_LABEL: "a1b2c3d4", crds::names::NODE_HASH_LABEL: "h", crds::names::REVISION_LABEL: "r",
                crds::names::PRE_PULL_LABEL: "r2", crds::names::HEALTH_CHECKER_LABEL: "x", "pod-template-hash": "5d",
            },
            "annotations": { crds::names::NODE_NAME_ANNOTATION: "n1", crds::names::IN_PLACE_TOKEN: "{}" },
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Owner", "name": "edge", "uid": "o", "controller": true }],
            "managedFields": [{ "manager": "operator", "operation": "Update", "fieldsV1": { "f:spec": {} } }],
        })
    }

    /// Read whole and in part it is kept as the same.
    fn is_kept_the_same<K>(object: Value)
    where
        K: Partly + Observed + DeserializeOwned,
        K::Kept: Debug,
    {
        let whole: K = serde_json::from_value(object.clone()).unwrap();
        let part: Partial<K> = serde_json::from_value(object).unwrap();
        assert_eq!(format!("{:#?}", part.keep(&mut SpecInterner::default())), format!("{:#?}", whole.keep(&mut SpecInterner::default())));
    }

    #[test]
    fn a_partial_read_keeps_the_same_as_a_full_one() {
        let state = json!({ "terminated": { "exitCode": 98, "reason": "Error", "message": "port 8080 is taken", "startedAt": null, "finishedAt": null } });
        let waiting = json!({ "waiting": { "reason": "ImagePullBackOff", "message": "no such image" } });
        let container = |state: &Value| {
            json!({
                "name": "c", "image": "i:1", "imageID": "sha256:1", "containerID": "containerd://1", "ready": false, "started": true,
                "restartCount": 4, "state": state, "lastState": {}, "resources": { "limits": { "cpu": "1" } }, "volumeMounts": [],
            })
        };
        let template = json!({
            "metadata": { "labels": { "app": "edge", "pod-template-hash": "5d" } },
            "spec": { "nodeName": "n1", "readinessGates": [{ "conditionType": crds::names::IN_PLACE_GATE }], "containers": [{ "name": "c", "image": "i:1" }] },
        });
        is_kept_the_same::<Node>(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": meta(),
            "spec": { "unschedulable": true, "podCIDR": "10.0.0.0/24", "taints": [{ "key": "k", "value": "v", "effect": "NoSchedule", "timeAdded": "2026-11-22T00:00:00Z" }] },
            "status": {
                "addresses": [{ "type": "Hostname", "address": "n1" }, { "type": "InternalIP", "address": "10.0.0.1" }],
                "conditions": [{ "type": "Ready", "status": "True", "reason": "r", "message": "m", "lastHeartbeatTime": "2026-11-22T00:00:01Z", "lastTransitionTime": "2026-11-22T00:00:02Z" }],
                "nodeInfo": {
                    "bootID": "boot", "machineID": "machine", "systemUUID": "system", "architecture": "amd64", "containerRuntimeVersion": "", "kernelVersion": "",
                    "kubeProxyVersion": "", "kubeletVersion": "", "operatingSystem": "linux", "osImage": "",
                },
                "images": [{ "names": ["i:1"], "sizeBytes": 1 }], "capacity": { "pods": "110" },
            },
        }));
        is_kept_the_same::<Deployment>(json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta(),
            "spec": { "replicas": 2, "selector": { "matchLabels": { "app": "edge" } }, "template": template },
            "status": {
                "observedGeneration": 3, "replicas": 2, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1, "terminatingReplicas": 1,
                "conditions": [{ "type": "ReplicaFailure", "status": "True", "message": "quota" }],
            },
        }));
        let owned = json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": meta(),
            "spec": { "replicas": 2, "selector": { "matchLabels": { "app": "edge" } }, "template": template }, "status": { "replicas": 3 },
        });
        let mut orphan = owned.clone();
        orphan["metadata"]["ownerReferences"] = json!([]);
        is_kept_the_same::<ReplicaSet>(owned);
        is_kept_the_same::<ReplicaSet>(orphan);
        for (phase, state) in
            [("Running", &state), ("Failed", &waiting), ("Pending", &json!({ "running": { "startedAt": "2026-11-22T00:00:00Z" } }))]
        {
            is_kept_the_same::<Pod>(json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": meta(),
                "spec": {
                    "nodeName": "n1", "containers": [{ "name": "c", "image": "i:2", "env": [{ "name": "A", "value": "b" }] }], "volumes": [{ "name": "v", "emptyDir": {} }],
                    "readinessGates": [{ "conditionType": crds::names::IN_PLACE_GATE }, { "conditionType": "example.com/unmet" }],
                    "terminationGracePeriodSeconds": 7,
                },
                "status": {
                    "phase": phase, "reason": "NodeAffinity", "message": "no", "startTime": "2026-11-22T00:00:03Z", "observedGeneration": 3,
                    "conditions": [
                        { "type": "Ready", "status": "True", "lastTransitionTime": "2026-11-22T00:00:02Z" }, { "type": crds::names::IN_PLACE_GATE, "status": "True" },
                        { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node" },
                    ],
                    "containerStatuses": [container(state)], "initContainerStatuses": [container(&waiting)], "podIP": "10.1.0.1",
                },
            }));
        }
    }

    #[test]
    fn an_object_without_anything_can_be_read() {
        assert!(serde_json::from_value::<Partial<Pod>>(json!({})).is_ok());
        assert!(
            serde_json::from_value::<Partial<Node>>(
                json!({ "metadata": { "labels": null }, "spec": {}, "status": { "conditions": null } })
            )
            .is_ok()
        );
    }
}
