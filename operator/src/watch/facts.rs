//! Objects of the API, cut down to what decisions read.

use super::held::{PARTS, part, texts};
use crds::{UnixSeconds, hash, in_place::PodRecord, names, node_readiness_gate::ConditionStatus};
use k8s_openapi::{
    api::{
        apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet},
        core::v1::{ContainerState, ContainerStatus, Node, Pod, PodCondition, PodSpec, PodStatus, Service},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time},
};
use planner::facts::{
    ContainerFacts, DaemonSetFacts, DeploymentCounts, DeploymentFacts, InPlacePod, NodeCondition, NodeFacts, PodFacts, PullFacts,
    ReplicaSetFacts, RevisionFacts, SPEC_BYTES, SPEC_MAPPINGS, Unmet,
    shared_spec::{SharedSpec, SpecInterner},
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    net::Ipv4Addr,
    sync::Arc,
};

/// Characters that are kept of a message: why pods are refused, or do not run. A kubelet quotes images.
const MESSAGE: usize = 1024;
/// Characters that are kept of a UID. The API server takes any text for that of an owner.
pub(super) const UID: usize = 64;
/// The longest name that a Node can have.
pub(super) const NODE_NAME: usize = 253;

/// Seconds since 1970.
pub fn seconds(time: &Time) -> UnixSeconds {
    time.0.as_second()
}

/// The owner that controls an object.
pub(super) fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Some resource of ours is its controller.
pub(super) fn is_of_resource(meta: &ObjectMeta) -> bool {
    controller(meta).is_some_and(|owner| owner.kind == "IngressDaemonSet")
}

/// What is read of a Node.
pub fn node(node: Node, specs: &mut SpecInterner) -> NodeFacts {
    let spec = node.spec.unwrap_or_default();
    let status = node.status.unwrap_or_default();
    let info = status.node_info;
    let conditions = status.conditions.unwrap_or_default();
    let internal = || status.addresses.iter().flatten().filter(|address| address.type_ == "InternalIP").map(|address| &address.address);
    let address = internal().next().cloned();
    let is_ipv4 = |address: &&String| address.parse::<Ipv4Addr>().is_ok();
    let ipv4_address = internal().find(is_ipv4).filter(|found| address.as_ref() != Some(found)).cloned();
    let has_annotations = node.metadata.annotations.as_ref().is_some_and(|annotations| !annotations.is_empty());
    NodeFacts {
        uid: node.metadata.uid.unwrap_or_default(),
        resource_version: node.metadata.resource_version.unwrap_or_default(),
        labels: specs.keys.intern(node.metadata.labels.unwrap_or_default()),
        annotations: specs.keys.intern(node.metadata.annotations.unwrap_or_default()),
        has_annotations,
        taints: spec.taints.unwrap_or_default(),
        unschedulable: spec.unschedulable.unwrap_or(false),
        ready: conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"),
        silent: conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "Unknown"),
        deleting: node.metadata.deletion_timestamp.is_some(),
        address,
        ipv4_address,
        conditions: conditions.into_iter().map(|condition| node_condition(condition, specs)).collect(),
        boot_id: short(info.as_ref().map(|info| info.boot_id.as_str())),
        machine_id: short(
            info.as_ref().map(|info| if info.machine_id.is_empty() { info.system_uuid.as_str() } else { info.machine_id.as_str() }),
        ),
        created: node.metadata.creation_timestamp.as_ref().map_or(0, seconds),
    }
}

fn node_condition(condition: k8s_openapi::api::core::v1::NodeCondition, specs: &mut SpecInterner) -> NodeCondition {
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
    planner::node_gates::world::short(id.unwrap_or_default())
}

/// What is read of a per-node Deployment; `own` are the texts in which its spec differs from those of other nodes. Ownership is
/// judged when the snapshot is made.
pub fn deployment(deployment: Deployment, own: &[&str], specs: &mut SpecInterner) -> DeploymentFacts {
    let status = deployment.status.unwrap_or_default();
    let refused = status.conditions.iter().flatten().find(|condition| condition.type_ == "ReplicaFailure" && condition.status == "True");
    // Admission can name each container in it.
    let refusal = refused.map(|condition| condition.message.iter().flat_map(|message| message.chars()).take(MESSAGE).collect());
    let meta = deployment.metadata;
    DeploymentFacts {
        name: meta.name.unwrap_or_default(),
        uid: meta.uid.unwrap_or_default(),
        resource_version: meta.resource_version.unwrap_or_default(),
        generation: meta.generation.unwrap_or(0),
        labels: specs.keys.intern(texts(meta.labels)),
        annotations: specs.keys.intern(texts(meta.annotations)),
        spec: specs.intern(spec(deployment.spec), own),
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

/// Whether pods have the gate for updates in place.
fn is_gated(spec: &PodSpec) -> bool {
    spec.readiness_gates.iter().flatten().any(|gate| gate.condition_type == names::IN_PLACE_GATE)
}

/// What is kept of a `ReplicaSet`.
#[derive(Clone, Debug, Default)]
pub struct KeptReplicaSet {
    /// Its template, where it has no controller.
    pub orphan: Option<SharedSpec>,
    /// Pods that such a one is to have, or has.
    pub orphans: i32,
    /// More, where its pods have the gate for updates in place.
    pub gated: Option<ReplicaSetFacts>,
}

/// What is read of a `ReplicaSet` whose pods have the gate for updates in place; nothing of others.
pub fn replica_set(set: ReplicaSet, specs: &mut SpecInterner) -> Option<ReplicaSetFacts> {
    let owner = controller(&set.metadata)?.uid.chars().take(UID).collect();
    set.spec.as_ref().and_then(|spec| spec.template.as_ref()?.spec.as_ref()).filter(|spec| is_gated(spec))?;
    let template = template(&set);
    let (spec, replicas) = (intern(&template, &set, specs), replicas(&set));
    let meta = set.metadata;
    Some(ReplicaSetFacts {
        owner,
        hash: text(meta.labels.as_ref(), planner::objects::in_place::change::HASH_LABEL),
        token: meta.labels.as_ref().and_then(|labels| labels.get(names::IN_PLACE_TOKEN)).cloned(),
        replicas,
        spec,
        name: meta.name.unwrap_or_default(),
        uid: meta.uid.unwrap_or_default(),
    })
}

/// How many pods a `ReplicaSet` is to have or, where it has more, has.
pub fn replicas(set: &ReplicaSet) -> i32 {
    let wanted = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    wanted.max(set.status.as_ref().map_or(0, |status| status.replicas))
}

/// The pod template of a `ReplicaSet` without a controller, as a Deployment would carry it; nothing of one that is too large.
pub fn orphan(set: &ReplicaSet, specs: &mut SpecInterner) -> Option<SharedSpec> {
    let template = template(set);
    (!template.is_null()).then(|| intern(&template, set, specs))
}

/// What the template of a node has in common with those of others is held once.
fn intern(template: &Value, set: &ReplicaSet, specs: &mut SpecInterner) -> SharedSpec {
    let meta = &set.metadata;
    let node = text(meta.annotations.as_ref(), names::NODE_NAME_ANNOTATION);
    let own = [names::NODE_LABEL, names::NODE_HASH_LABEL].map(|key| text(meta.labels.as_ref(), key));
    let node = if node.len() <= NODE_NAME { node.as_str() } else { "" };
    specs.intern(serde_json::json!({ "template": template }), &[&own[0], node, &own[1]])
}

/// The value of a label or annotation; nothing if there is none.
pub(super) fn text(map: Option<&BTreeMap<String, String>>, key: &str) -> String {
    map.and_then(|map| map.get(key)).cloned().unwrap_or_default()
}

/// What is read of a pod that pulls images.
fn pull(pod: &Pod, status: &PodStatus) -> Option<Box<PullFacts>> {
    let revision = pod.metadata.labels.as_ref()?.get(names::PRE_PULL_LABEL)?.clone();
    let spec = pod.spec.as_ref()?;
    let shown = status.container_statuses.as_deref().unwrap_or_default();
    // Whatever is said of a container's start is said after its image was there.
    let has_image = |shown: &ContainerStatus| {
        let state = shown.state.as_ref();
        let waits = state.and_then(|state| state.waiting.as_ref()?.reason.as_deref());
        !shown.image_id.is_empty()
            || state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
            || matches!(waits, Some("CreateContainerError" | "RunContainerError" | "CrashLoopBackOff"))
    };
    let lacks = shown.iter().filter(|shown| !has_image(shown));
    let waiting = lacks.filter_map(|shown| shown.state.as_ref()?.waiting.as_ref());
    let trouble = waiting.filter_map(|waiting| {
        let reason = waiting.reason.clone().filter(|reason| !matches!(reason.as_str(), "ContainerCreating" | "PodInitializing"))?;
        Some((reason, waiting.message.clone().unwrap_or_default()))
    });
    let pulled = shown.len() == spec.containers.len() && shown.iter().all(has_image);
    let given_up = !pulled && matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"));
    let refusal = || (status.reason.clone().unwrap_or_default(), status.message.clone().unwrap_or_default());
    Some(Box::new(PullFacts {
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        node: spec.node_name.clone().unwrap_or_default(),
        revision,
        created: pod.metadata.creation_timestamp.as_ref().map_or(0, seconds),
        pulled,
        given_up,
        terminating: pod.metadata.deletion_timestamp.is_some(),
        trouble: trouble.into_iter().next().or_else(|| given_up.then(refusal)).map(in_short),
    }))
}

/// What an update in place reads of a pod that has the gate.
fn gated(pod: &Pod, status: &PodStatus, specs: &mut SpecInterner) -> Option<Box<InPlacePod>> {
    let spec = pod.spec.as_ref().filter(|spec| is_gated(spec))?;
    let meta = &pod.metadata;
    let condition = status.conditions.iter().flatten().find(|condition| condition.type_ == names::IN_PLACE_GATE);
    let containers = spec.containers.iter().take(SPEC_MAPPINGS).map(|container| {
        let shown = status.container_statuses.iter().flatten().find(|shown| shown.name == container.name);
        let running =
            |shown: &ContainerStatus| shown.started != Some(false) && shown.state.as_ref().is_some_and(|state| state.running.is_some());
        ContainerFacts {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            shown: shown.map(|shown| shown.image.clone()).unwrap_or_default(),
            image_id: shown.map(|shown| shown.image_id.clone()).unwrap_or_default(),
            started_at: shown.and_then(|shown| shown.state.as_ref()?.running.as_ref()?.started_at.as_ref().map(seconds)).unwrap_or(0),
            id: shown.and_then(|shown| shown.container_id.clone()).unwrap_or_default(),
            running: shown.is_some_and(running),
            ready: shown.is_some_and(|shown| shown.ready),
            restarts: shown.map_or(0, |shown| shown.restart_count),
        }
    });
    let record = record(pod);
    Some(Box::new(InPlacePod {
        uid: meta.uid.clone().unwrap_or_default(),
        resource_version: meta.resource_version.clone().unwrap_or_default(),
        generation: meta.generation.unwrap_or(0),
        observed_generation: status.observed_generation.unwrap_or(0),
        hash: text(meta.labels.as_ref(), planner::objects::in_place::change::HASH_LABEL),
        gate: condition.map(|condition| condition.status == "True"),
        containers: containers.collect(),
        termination_grace: spec.termination_grace_period_seconds.unwrap_or(30),
        labels: specs.keys.intern(texts(meta.labels.clone())),
        annotations: specs.keys.intern(texts(meta.annotations.clone())),
        record,
    }))
}

/// Conditions that somebody else is to set, and has not.
fn unmet(pod: &Pod, status: &PodStatus) -> Option<Box<Unmet>> {
    let is_true = |type_: &str| status.conditions.iter().flatten().any(|condition| condition.type_ == type_ && condition.status == "True");
    let listed = pod.spec.as_ref()?.readiness_gates.iter().flatten().map(|gate| &gate.condition_type);
    let unmet = listed.filter(|type_| *type_ != names::IN_PLACE_GATE && !is_true(type_));
    let conditions: Vec<_> = unmet.take(SPEC_MAPPINGS).cloned().collect();
    let (uid, resource_version) = (pod.metadata.uid.clone()?, pod.metadata.resource_version.clone()?);
    (!conditions.is_empty()).then(|| Box::new(Unmet { uid, resource_version, conditions }))
}

fn record(pod: &Pod) -> Option<PodRecord> {
    let text = pod.metadata.annotations.as_ref()?.get(names::IN_PLACE_TOKEN);
    PodRecord::parse(text.map(String::as_str).filter(|text| text.len() <= SPEC_BYTES))
}

/// How often containers were started again, but for what an update in place did, and what was before that.
fn restarts(pod: &Pod, status: &PodStatus) -> i32 {
    let record = record(pod);
    let of = |container: &ContainerStatus| {
        let before = record.as_ref().and_then(|record| record.before.get(&container.name));
        before.map_or(container.restart_count, |before| container.restart_count.saturating_sub(before.restarts.saturating_add(1)).max(0))
    };
    status.container_statuses.iter().flatten().map(of).sum()
}

/// Stands for the runs of all containers, those that start before the others included; 0 while one of them has not begun to run. A
/// runtime may forget how often a container restarted, so that its ID says so, too.
fn runs(status: &PodStatus) -> u64 {
    let all = || status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
    if status.container_statuses.iter().flatten().next().is_none() || all().any(|container| container.container_id.is_none()) {
        return 0;
    }
    let mut hasher = DefaultHasher::new();
    for container in all() {
        (&container.name, container.restart_count, &container.container_id).hash(&mut hasher);
    }
    hasher.finish().max(1)
}

/// The pod template of a `ReplicaSet`, as a Deployment would carry it.
pub(super) fn template(replica_set: &ReplicaSet) -> Value {
    let mut template = part(to_value(replica_set.spec.as_ref().and_then(|spec| spec.template.as_ref())));
    if let Some(labels) = template.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.remove("pod-template-hash");
    }
    template
}

/// What is read of a pod.
pub fn pod(pod: &Pod, specs: &mut SpecInterner) -> PodFacts {
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
    let evicted = evicted(status);
    // A kubelet that refuses a pod says why in the pod's own status; its containers never started.
    let rejected = phase == "Failed" && !started && status.reason.is_some() && !evicted;
    PodFacts {
        name: pod.metadata.name.clone().unwrap_or_default(),
        revision: text(pod.metadata.labels.as_ref(), names::REVISION_LABEL),
        ready: status.conditions.iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True"),
        terminating: pod.metadata.deletion_timestamp.is_some(),
        ended,
        fresh_since: fresh_since(status),
        // By the API server's clock, like all times that it is compared with: the kubelet's own (`startTime`) may be set wrong.
        rejected_at: created.filter(|_| rejected),
        created: created.unwrap_or(0),
        restarts: restarts(pod, status),
        runs: runs(status),
        evicted: ended && evicted,
        gated: gated(pod, status, specs),
        unmet: unmet(pod, status),
        pull: pull(pod, status),
        trouble: trouble(status, ended, pod.spec.as_ref().is_some_and(is_gated)).map(in_short),
        port_conflict: port_conflict(pod),
    }
}

/// When a pod last became ready, or a container of it was last started, whichever is later.
pub fn fresh_since(status: &PodStatus) -> UnixSeconds {
    let ready = status.conditions.iter().flatten().find(|condition| condition.type_ == "Ready");
    let became_ready = ready.and_then(|ready| ready.last_transition_time.as_ref()).map_or(0, seconds);
    let running = status.container_statuses.iter().flatten().filter_map(|container| container.state.as_ref()?.running.as_ref());
    let started = running.filter_map(|running| running.started_at.as_ref().map(seconds)).max().unwrap_or(0);
    became_ready.max(started)
}

/// Its kubelet ended it, because the node lacks disk or memory, or because the pod took too much of its own.
///
/// A kubelet that has too little refuses new pods with the same word: of those that it evicts it knows containers. A pod whose containers
/// end with exit code 0 as they are evicted has succeeded, without that word; a condition says so then. The same condition tells of nodes
/// that are shut down, and of pods that make way for others.
fn evicted(status: &PodStatus) -> bool {
    let by_kubelet = |condition: &&PodCondition| {
        condition.type_ == "DisruptionTarget" && condition.status == "True" && condition.reason.as_deref() == Some("TerminationByKubelet")
    };
    let lacks = |message: &str| message.contains("low on resource") || message.contains("exceed");
    let condition = status.conditions.iter().flatten().find(by_kubelet);
    let known = status.container_statuses.iter().flatten().next().is_some();
    known && (status.reason.as_deref() == Some("Evicted") || condition.is_some_and(|told| told.message.as_deref().is_some_and(lacks)))
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

/// The beginning of a reason and a message.
fn in_short((reason, message): (String, String)) -> (String, String) {
    let short = |text: String| if text.len() <= MESSAGE { text } else { text.chars().take(MESSAGE).collect() };
    (short(reason), short(message))
}

/// Reason and message of what keeps a pod from running. A kubelet shows the end of a container for some ten seconds before it says that it
/// waits to start it again, and that only for a moment. The first time it starts it again at once.
fn trouble(status: &PodStatus, ended: bool, gated: bool) -> Option<(String, String)> {
    if ended && let Some(reason) = &status.reason {
        return Some((reason.clone(), status.message.clone().unwrap_or_default()));
    }
    let containers = || status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
    let waiting = containers().filter_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.clone().filter(|reason| !matches!(reason.as_str(), "ContainerCreating" | "PodInitializing"))?;
        let mut message = waiting.message.clone().unwrap_or_default();
        if reason == CRASH_LOOP
            && let Some((cause, ended)) = container.last_state.as_ref().and_then(|last| end(&container.name, last))
        {
            message = format!("{message}; {ended} ({cause})");
        }
        Some((reason, message))
    });
    // An update in place, while which the gate is shut, ends the former container.
    let open = |condition: &PodCondition| condition.type_ == names::IN_PLACE_GATE && condition.status == "True";
    let in_place = gated && !status.conditions.iter().flatten().any(open);
    let ends = containers().filter(|container| container.restart_count > 0).filter_map(|container| {
        let state = container.state.as_ref()?;
        let failed = state.terminated.as_ref().is_some_and(|end| end.exit_code != 0);
        end(&container.name, state).filter(|(reason, _)| failed && (!in_place || reason == OUT_OF_MEMORY))
    });
    let scheduling = status
        .conditions
        .iter()
        .flatten()
        .filter(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
        .map(|condition| (condition.reason.clone().unwrap_or_default(), condition.message.clone().unwrap_or_default()));
    waiting.chain(ends).chain(scheduling).next()
}

/// Reason of a container that waits longer and longer to be started again.
const CRASH_LOOP: &str = "CrashLoopBackOff";
/// Reason of one that needed more memory than its limit.
const OUT_OF_MEMORY: &str = "OOMKilled";

/// Reason and message of a container that ended.
fn end(container: &str, state: &ContainerState) -> Option<(String, String)> {
    let end = state.terminated.as_ref()?;
    let reason = end.reason.clone().unwrap_or_else(|| "Error".to_owned());
    Some((reason, format!("container {container} ended with exit code {}", end.exit_code)))
}

/// What is read of a health-checker `DaemonSet`.
pub fn daemon_set(set: DaemonSet) -> DaemonSetFacts {
    let status = set.status.unwrap_or_default();
    let meta = set.metadata;
    let port =
        meta.annotations.as_ref().and_then(|annotations| annotations.get(names::HEALTH_PORT_ANNOTATION)).and_then(|port| port.parse().ok());
    let observed = status.observed_generation.unwrap_or(0) >= meta.generation.unwrap_or(0);
    DaemonSetFacts {
        name: meta.name.unwrap_or_default(),
        uid: meta.uid.unwrap_or_default(),
        port: port.unwrap_or(0),
        spec: Arc::new(spec(set.spec)),
        observed,
        desired: status.desired_number_scheduled,
        updated: status.updated_number_scheduled.unwrap_or(0),
        ready: status.number_ready,
        owned: false,
    }
}

/// A revision of ours; nothing for one that somebody else records.
pub fn revision(revision: &ControllerRevision) -> Option<RevisionFacts> {
    let meta = &revision.metadata;
    if !is_of_resource(meta) {
        return None;
    }
    let template = part(revision.data.as_ref()?.0.pointer("/spec/template")?.clone());
    if template.is_null() {
        return None;
    }
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

/// The spec of a Deployment or `DaemonSet`.
fn spec(spec: impl serde::Serialize) -> Value {
    let mut spec = to_value(spec);
    for field in PARTS {
        if let Some(value) = spec.get_mut(field) {
            *value = part(value.take());
        }
    }
    spec
}

fn to_value(value: impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default() // came from JSON
}
