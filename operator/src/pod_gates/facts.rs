//! Objects that gates ask for, cut down to what decisions read.

use crate::watch::{seconds, version};
use crds::PodReadinessGate;
use k8s_openapi::api::{core::v1 as core, discovery::v1::EndpointSlice};
use kube::{ResourceExt as _, api::DynamicObject};
use planner::{
    gates_shared::Key,
    pod_gates::{
        Gate, Pod,
        world::{Conditions, PodCondition, ReadOfPods},
    },
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Conditions of an object that are kept, and readiness gates of a pod.
const CONDITIONS: usize = 256;
/// Characters of a condition's type and status, at most.
const WORD: usize = 316;

/// What a `PodReadinessGate` says.
pub fn gate(object: &PodReadinessGate) -> Gate {
    Gate {
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
        uid: object.metadata.uid.clone().unwrap_or_default(),
        generation: object.metadata.generation.unwrap_or(0),
        created: object.metadata.creation_timestamp.as_ref().map_or(0, seconds),
        deleting: object.metadata.deletion_timestamp.is_some(),
        spec: object.spec.clone(),
    }
}

/// What is read of a pod, with its namespace and name. Of its labels and annotations, which can be long, those alone that gates read.
pub fn pod(pod: core::Pod, read: &ReadOfPods) -> (Key, Pod) {
    let key = (pod.namespace().unwrap_or_default(), pod.name_any());
    let (spec, status) = (pod.spec.unwrap_or_default(), pod.status.unwrap_or_default());
    let listed = spec.readiness_gates.into_iter().flatten().map(|gate| gate.condition_type);
    let gates: Vec<_> = listed.filter(|type_| type_.len() <= WORD).take(CONDITIONS).collect();
    let conditions = status.conditions.unwrap_or_default();
    let keeps_generation =
        status.observed_generation.is_some() || conditions.iter().any(|condition| condition.observed_generation.is_some());
    let listed = conditions.into_iter().filter(|condition| gates.contains(&condition.type_));
    let (labels, annotations) = (pod.metadata.labels.into_iter().flatten(), pod.metadata.annotations.into_iter().flatten());
    // A container that starts before the others and stays restarts like them; one that ends is run again with a new sandbox alone.
    let stays = |container: &core::Container| container.restart_policy.as_deref() == Some("Always");
    let sidecars: BTreeSet<_> = spec.init_containers.iter().flatten().filter(|container| stays(container)).map(|it| &it.name).collect();
    let shown = status.init_container_statuses.iter().flatten().filter(|container| sidecars.contains(&container.name));
    let sidecar_restarts = (!sidecars.is_empty()).then(|| restarts(shown));
    let facts = Pod {
        uid: pod.metadata.uid.unwrap_or_default(),
        version: version(pod.metadata.resource_version.as_deref()),
        generation: pod.metadata.generation,
        labels: labels.filter(|(key, _)| read.labels.contains(key)).collect::<BTreeMap<_, _>>().into(),
        // Of a pod that lists no condition nothing more is asked.
        annotations: annotations
            .filter(|(key, _)| !gates.is_empty() && read.annotations.contains(key))
            .map(|(key, value)| (key, cut(value)))
            .collect::<BTreeMap<_, _>>()
            .into(),
        node: spec.node_name.unwrap_or_default(),
        address: status.pod_ip.unwrap_or_default(),
        ended: matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")),
        restarts: restarts(status.container_statuses.iter().flatten()),
        sidecar_restarts,
        conditions: listed.map(condition).collect(),
        gates,
        keeps_generation,
    };
    (key, facts)
}

/// The most bytes of an annotation that are kept. A gate's values are shorter, and so are lists of a hundred holds; a list that was cut is
/// not readable, and its pod counts as held.
const LONGEST_ANNOTATION: usize = 16 * 1024;

fn cut(text: String) -> String {
    if text.len() > LONGEST_ANNOTATION { text[..text.floor_char_boundary(LONGEST_ANNOTATION)].to_owned() } else { text }
}

fn restarts<'a>(containers: impl Iterator<Item = &'a core::ContainerStatus>) -> u32 {
    containers.map(|container| u32::try_from(container.restart_count).unwrap_or(0)).fold(0, u32::saturating_add)
}

fn condition(condition: core::PodCondition) -> PodCondition {
    PodCondition {
        type_: condition.type_,
        status: condition.status,
        reason: condition.reason.unwrap_or_default(),
        message: condition.message.unwrap_or_default(),
        transition: condition.last_transition_time.map(|time| time.0.to_string()),
        observed_generation: condition.observed_generation,
    }
}

/// How many endpoints of a slice are ready; those that say nothing are.
pub fn ready_endpoints(slice: &EndpointSlice) -> usize {
    let endpoints = slice.endpoints.iter().flatten();
    endpoints.filter(|endpoint| endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)).count()
}

/// The conditions of any object.
pub fn conditions(object: &DynamicObject) -> Conditions {
    let listed = object.data.pointer("/status/conditions").and_then(Value::as_array);
    let text = |condition: &Value, key: &str| condition.get(key).and_then(Value::as_str).map(str::to_owned);
    let said = listed.into_iter().flatten().filter_map(|condition| Some((text(condition, "type")?, text(condition, "status")?)));
    // A user may write into the status of some kinds.
    said.filter(|(type_, status)| type_.len() <= WORD && status.len() <= WORD).take(CONDITIONS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_object_keeps_only_some_of_many_or_long_conditions() {
        let mut conditions: Vec<_> = (0..1_000).map(|index| json!({"type": format!("T{index}"), "status": "True"})).collect();
        conditions[0] = json!({"type": "T0", "status": "x".repeat(100_000)});
        let object = json!({"apiVersion": "x/v1", "kind": "K", "metadata": {}, "status": {"conditions": conditions}});
        let kept = super::conditions(&serde_json::from_value(object).unwrap());
        assert_eq!((kept.len(), kept.contains_key("T0"), kept.contains_key("T1")), (CONDITIONS, false, true));
    }

    #[test]
    fn only_listed_conditions_and_read_annotations_of_pods_are_kept() {
        let object = json!({
            "metadata": {
                "namespace": "web", "name": "p", "uid": "u", "resourceVersion": "7", "generation": 2, "labels": {"app": "web", "other": "x"},
                "annotations": {"example.com/read": "true", "example.com/long": "x".repeat(1_000)},
            },
            "spec": {
                "containers": [], "readinessGates": [{"conditionType": "example.com/a"}],
                "initContainers": [{"name": "init"}, {"name": "sidecar", "restartPolicy": "Always"}],
            },
            "status": {
                "conditions": [
                    {"type": "Ready", "status": "True", "observedGeneration": 2},
                    {"type": "example.com/a", "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-11-22T12:00:00Z"},
                    {"type": "example.com/b", "status": "True"},
                ],
                "containerStatuses": [
                    {"name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 2},
                    {"name": "b", "image": "", "imageID": "", "ready": true, "restartCount": 1},
                ],
                "initContainerStatuses": [
                    {"name": "init", "image": "", "imageID": "", "ready": true, "restartCount": 100},
                    {"name": "sidecar", "image": "", "imageID": "", "ready": true, "restartCount": 4},
                ],
            },
        });
        let (key, pod) = pod(serde_json::from_value(object).unwrap(), &read());
        assert_eq!(["app", "other"].map(|key| pod.labels.contains_key(key)), [true, false]);
        let kept = ["example.com/read", "example.com/long"].map(|key| pod.annotations.get(key).map(String::as_str));
        assert_eq!(kept, [Some("true"), None]);
        assert_eq!(key, ("web".into(), "p".into()));
        assert_eq!((pod.version, pod.restarts, pod.sidecar_restarts, pod.keeps_generation), (7, 3, Some(4), true));
        let kept: Vec<_> = pod.conditions.iter().map(|condition| (condition.type_.as_str(), condition.transition.as_deref())).collect();
        assert_eq!(kept, [("example.com/a", Some("2026-11-22T12:00:00Z"))]);
    }

    fn read() -> ReadOfPods {
        ReadOfPods { annotations: ["example.com/read".to_owned()].into(), labels: ["app".to_owned()].into() }
    }

    #[test]
    fn of_a_long_annotation_the_beginning_is_kept() {
        let object = json!({
            "metadata": {"namespace": "web", "name": "p", "annotations": {"example.com/read": "é".repeat(LONGEST_ANNOTATION)}},
            "spec": {"containers": [], "readinessGates": [{"conditionType": "example.com/a"}]},
        });
        let (_, pod) = super::pod(serde_json::from_value(object).unwrap(), &read());
        assert_eq!(pod.annotations.get("example.com/read").map(String::len), Some(LONGEST_ANNOTATION));
    }

    #[test]
    fn endpoints_that_say_nothing_of_their_readiness_are_ready() {
        let slice = json!({"addressType": "IPv4", "endpoints": [
            {"addresses": ["10.0.0.1"]},
            {"addresses": ["10.0.0.2"], "conditions": {"ready": true}},
            {"addresses": ["10.0.0.3"], "conditions": {"ready": false, "serving": true}},
        ]});
        assert_eq!(ready_endpoints(&serde_json::from_value(slice).unwrap()), 2);
    }
}
