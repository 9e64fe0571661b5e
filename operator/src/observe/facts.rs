//! Objects of the API, cut down to what decisions read.

use crds::{hash, names, node_readiness_gate::ConditionStatus};
use k8s_openapi::{
    api::{
        apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet},
        core::v1::{Node, Pod, PodStatus, Service},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use planner::{
    snapshot::{DaemonSetFacts, DeploymentCounts, DeploymentFacts, NodeCondition, NodeFacts, PodFacts, RevisionFacts},
    stored::Specs,
};
use serde_json::Value;
use std::sync::Arc;

/// Seconds since 1970.
pub fn seconds(time: &Time) -> i64 {
    time.0.as_second()
}

/// What is read of a Node.
pub fn node(node: Node, specs: &mut Specs) -> NodeFacts {
    let spec = node.spec.unwrap_or_default();
    let status = node.status.unwrap_or_default();
    let info = status.node_info;
    let conditions = status.conditions.unwrap_or_default();
    let address = status.addresses.iter().flatten().find(|address| address.type_ == "InternalIP").map(|address| address.address.clone());
    let has_annotations = node.metadata.annotations.as_ref().is_some_and(|annotations| !annotations.is_empty());
    NodeFacts {
        uid: node.metadata.uid.unwrap_or_default(),
        resource_version: node.metadata.resource_version.unwrap_or_default(),
        labels: specs.keys.hold(node.metadata.labels.unwrap_or_default()),
        annotations: specs.keys.hold(node.metadata.annotations.unwrap_or_default()),
        has_annotations,
        taints: spec.taints.unwrap_or_default(),
        unschedulable: spec.unschedulable.unwrap_or(false),
        ready: conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"),
        deleting: node.metadata.deletion_timestamp.is_some(),
        address,
        conditions: conditions.into_iter().map(|condition| node_condition(condition, specs)).collect(),
        boot_id: short(info.as_ref().map(|info| info.boot_id.as_str())),
        machine_id: short(
            info.as_ref().map(|info| if info.machine_id.is_empty() { info.system_uuid.as_str() } else { info.machine_id.as_str() }),
        ),
        created: node.metadata.creation_timestamp.as_ref().map_or(0, seconds),
    }
}

fn node_condition(condition: k8s_openapi::api::core::v1::NodeCondition, specs: &mut Specs) -> NodeCondition {
    NodeCondition {
        type_: specs.keys.share(condition.type_),
        status: match condition.status.as_str() {
            "True" => ConditionStatus::True,
            "False" => ConditionStatus::False,
            _ => ConditionStatus::Unknown,
        },
        heartbeat: condition.last_heartbeat_time.as_ref().map_or(0, seconds),
        transition: condition.last_transition_time.as_ref().map_or(0, seconds),
    }
}

/// Enough of an ID to tell it from others.
fn short(id: Option<&str>) -> String {
    planner::gate::world::short(id.unwrap_or_default())
}

/// What is read of a per-node Deployment; `own` are the texts in which its spec differs from those of other nodes. Ownership is
/// judged when the snapshot is made.
pub fn deployment(deployment: Deployment, own: &[&str], specs: &mut Specs) -> DeploymentFacts {
    let status = deployment.status.unwrap_or_default();
    let refused = status.conditions.iter().flatten().find(|condition| condition.type_ == "ReplicaFailure" && condition.status == "True");
    let refusal = refused.map(|condition| condition.message.clone().unwrap_or_default());
    let meta = deployment.metadata;
    DeploymentFacts {
        name: meta.name.unwrap_or_default(),
        uid: meta.uid.unwrap_or_default(),
        resource_version: meta.resource_version.unwrap_or_default(),
        generation: meta.generation.unwrap_or(0),
        labels: specs.keys.hold(meta.labels.unwrap_or_default()),
        annotations: specs.keys.hold(meta.annotations.unwrap_or_default()),
        spec: specs.hold(to_value(deployment.spec), own),
        status: DeploymentCounts {
            observed_generation: status.observed_generation.unwrap_or(0),
            replicas: status.replicas.unwrap_or(0),
            updated: status.updated_replicas.unwrap_or(0),
            ready: status.ready_replicas.unwrap_or(0),
            available: status.available_replicas.unwrap_or(0),
            terminating: status.terminating_replicas.unwrap_or(0),
        },
        refusal,
        deleting: meta.deletion_timestamp.is_some(),
    }
}

/// The pod template of a `ReplicaSet`, as a Deployment would carry it.
pub fn orphan_template(replica_set: &ReplicaSet) -> Value {
    let mut template = to_value(replica_set.spec.as_ref().and_then(|spec| spec.template.as_ref()));
    if let Some(labels) = template.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.remove("pod-template-hash");
    }
    template
}

/// What is read of a pod.
pub fn pod(pod: &Pod) -> PodFacts {
    let empty = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&empty);
    let phase = status.phase.as_deref().unwrap_or_default();
    let ended = matches!(phase, "Failed" | "Succeeded");
    let started = status
        .container_statuses
        .iter()
        .flatten()
        .any(|container| container.state.as_ref().is_some_and(|state| state.running.is_some() || state.terminated.is_some()));
    let created = pod.metadata.creation_timestamp.as_ref().map(seconds);
    // A kubelet that refuses a pod says why in the pod's own status; its containers never started.
    let rejected = phase == "Failed" && !started && status.reason.is_some() && status.reason.as_deref() != Some("Evicted");
    PodFacts {
        name: pod.metadata.name.clone().unwrap_or_default(),
        revision: pod.metadata.labels.as_ref().and_then(|labels| labels.get(names::REVISION_LABEL)).cloned().unwrap_or_default(),
        ready: status.conditions.iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True"),
        terminating: pod.metadata.deletion_timestamp.is_some(),
        ended,
        rejected_at: status.start_time.as_ref().map(seconds).or(created).filter(|_| rejected),
        created: created.unwrap_or(0),
        restarts: status.container_statuses.iter().flatten().map(|container| container.restart_count).sum(),
        trouble: trouble(status, ended),
        port_conflict: port_conflict(pod),
    }
}

/// What a health checker said when it gave up on its port, until it is ready again.
fn port_conflict(pod: &Pod) -> Option<String> {
    pod.metadata.labels.as_ref()?.get(names::HEALTH_CHECKER_LABEL)?;
    let container = pod.status.as_ref()?.container_statuses.as_ref()?.first().filter(|container| !container.ready)?;
    let ends = [&container.state, &container.last_state].into_iter().filter_map(|state| state.as_ref()?.terminated.as_ref());
    let end = ends.into_iter().find(|end| end.exit_code == i32::from(names::PORT_CONFLICT_EXIT_CODE))?;
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    Some(format!("node {node}: {}", end.message.as_deref().unwrap_or("the health port is taken").trim()))
}

/// Reason and message of what keeps a pod from running.
fn trouble(status: &PodStatus, ended: bool) -> Option<(String, String)> {
    if ended && let Some(reason) = &status.reason {
        return Some((reason.clone(), status.message.clone().unwrap_or_default()));
    }
    let containers = status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
    let waiting = containers.filter_map(|container| container.state.as_ref()?.waiting.as_ref());
    let known = waiting.filter_map(|waiting| {
        let reason = waiting.reason.clone().filter(|reason| !matches!(reason.as_str(), "ContainerCreating" | "PodInitializing"))?;
        Some((reason, waiting.message.clone().unwrap_or_default()))
    });
    let scheduling = status
        .conditions
        .iter()
        .flatten()
        .filter(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
        .map(|condition| (condition.reason.clone().unwrap_or_default(), condition.message.clone().unwrap_or_default()));
    known.chain(scheduling).next()
}

/// What is read of a health-checker `DaemonSet`.
pub fn daemon_set(set: DaemonSet) -> DaemonSetFacts {
    let status = set.status.unwrap_or_default();
    let meta = set.metadata;
    let port =
        meta.annotations.as_ref().and_then(|annotations| annotations.get(names::HEALTH_PORT_ANNOTATION)).and_then(|port| port.parse().ok());
    let desired = status.desired_number_scheduled;
    let observed = status.observed_generation.unwrap_or(0) >= meta.generation.unwrap_or(0);
    DaemonSetFacts {
        name: meta.name.unwrap_or_default(),
        uid: meta.uid.unwrap_or_default(),
        port: port.unwrap_or(0),
        spec: Arc::new(to_value(set.spec)),
        settled: observed && status.updated_number_scheduled.unwrap_or(0) >= desired && status.number_ready >= desired,
        desired,
        ready: status.number_ready,
        owned: false,
    }
}

/// A revision of ours; nothing for one that somebody else records.
pub fn revision(revision: &ControllerRevision) -> Option<RevisionFacts> {
    let meta = &revision.metadata;
    let owner = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    owner.filter(|owner| owner.kind == "IngressDaemonSet")?;
    let template = revision.data.as_ref()?.0.pointer("/spec/template")?.clone();
    Some(RevisionFacts {
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        number: revision.revision,
        revision: hash::revision(&template),
        template: Arc::new(template),
    })
}

/// The node ports of a Service.
pub fn node_ports(service: &Service) -> Vec<u16> {
    let spec = service.spec.as_ref();
    let ports = spec.and_then(|spec| spec.ports.as_ref()).into_iter().flatten().filter_map(|port| port.node_port);
    let check = spec.and_then(|spec| spec.health_check_node_port);
    ports.chain(check).filter_map(|port| u16::try_from(port).ok()).filter(|port| *port > 0).collect()
}

fn to_value(value: impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default() // came from JSON
}
