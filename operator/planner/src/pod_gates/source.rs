//! What a source says of a pod.

use super::{
    owners,
    world::{Gate, Pod, Target, World},
};
use crate::{
    facts::{NodeFacts, label_map::LabelMap},
    gates_shared::Source,
};
use crds::{
    names,
    pod_readiness_gate::{GateValue, HttpSource, ManualSource, NamedSource, NodeConditionSource, NodeTaintSource, ObjectConditionSource},
};
use std::collections::BTreeMap;

/// What the source of a gate says about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceVerdict {
    /// The condition is to be this, and why.
    Says(bool, String),
    /// Somebody wrote what cannot be understood, and meant to hold the pod.
    Garbled(String),
    /// The source says nothing about the pod, and why.
    Silent(String),
    /// The operator cannot read the source, and why.
    Unreadable(String),
    /// The operator has not read the source yet.
    Pending,
}

/// Asks the source of a gate about a pod. `node`: the pod's, if it is there.
pub fn verdict(world: &World, gate: &Gate, pod: &Pod, node: Option<&NodeFacts>) -> SourceVerdict {
    let source = &gate.spec.source;
    if let Some(label) = &source.label {
        value("label", &label.key, &label.values, &pod.labels)
    } else if let Some(annotation) = &source.annotation {
        value("annotation", &annotation.key, &annotation.values, &pod.annotations)
    } else if let Some(manual) = &source.manual {
        held(manual, pod)
    } else if let Some(wanted) = &source.ingress_daemon_set {
        attached(world, gate, wanted, pod)
    } else if let Some(wanted) = &source.node_condition {
        on_node(pod, node, |node| node_condition(wanted, pod, node))
    } else if let Some(wanted) = &source.node_taint {
        on_node(pod, node, |node| node_taint(wanted, pod, node))
    } else if let Some(wanted) = &source.service {
        service(world, gate, wanted)
    } else if let Some(wanted) = &source.object_condition {
        object(world, gate, wanted)
    } else if let Some(wanted) = &source.http {
        http(world, gate, wanted, pod)
    } else {
        // A source that a newer version of the definition knows.
        SourceVerdict::Unreadable("update the operator: this release does not know the source".into())
    }
}

fn value(what: &str, key: &str, values: &BTreeMap<String, GateValue>, texts: &LabelMap) -> SourceVerdict {
    let Some(found) = texts.get(key) else { return SourceVerdict::Silent(format!("the pod has no {what} {key}")) };
    let shown: String = found.chars().take(64).collect();
    match values.get(found) {
        Some(meaning) => SourceVerdict::Says(*meaning == GateValue::True, format!("{what} {key}={shown}")),
        None => SourceVerdict::Silent(format!("{what} {key}={shown} is not among the gate's values")),
    }
}

fn held(manual: &ManualSource, pod: &Pod) -> SourceVerdict {
    let key = manual.key();
    match owners::parse(pod.annotations.get(key).map(String::as_str)) {
        Ok(holds) if holds.is_empty() => SourceVerdict::Says(true, "nobody holds the pod".into()),
        Ok(holds) => {
            let shown =
                |hold: &owners::PodHold| if hold.key.is_empty() { hold.owner.clone() } else { format!("{} ({})", hold.owner, hold.key) };
            let first: Vec<_> = holds.iter().take(5).map(shown).collect();
            let more = if holds.len() > first.len() { format!(" and {} more", holds.len() - first.len()) } else { String::new() };
            SourceVerdict::Says(false, format!("held by {}{more}", first.join(", ")))
        }
        Err(owners::UnreadableHolds(why)) => SourceVerdict::Garbled(format!(
            "annotation {key} is not a list of holds such as [{{\"owner\": \"me\", \"key\": \"why\"}}], so the pod counts as held: {why}"
        )),
    }
}

fn on_node(pod: &Pod, node: Option<&NodeFacts>, says: impl FnOnce(&NodeFacts) -> SourceVerdict) -> SourceVerdict {
    match node {
        _ if pod.node.is_empty() => SourceVerdict::Silent("the pod is on no node yet".into()),
        None => SourceVerdict::Silent(format!("Node {} does not exist", pod.node)),
        Some(node) => says(node),
    }
}

fn node_condition(wanted: &NodeConditionSource, pod: &Pod, node: &NodeFacts) -> SourceVerdict {
    match node.conditions.iter().find(|condition| *condition.type_ == *wanted.type_) {
        None => SourceVerdict::Silent(format!("Node {} has no condition {}", pod.node, wanted.type_)),
        Some(found) => {
            let message = format!("condition {} of Node {} is {}", wanted.type_, pod.node, found.status.as_str());
            SourceVerdict::Says(found.status == wanted.status, message)
        }
    }
}

fn node_taint(wanted: &NodeTaintSource, pod: &Pod, node: &NodeFacts) -> SourceVerdict {
    let is_meant = |effect: &str| wanted.effect.is_none_or(|wanted| wanted.as_str() == effect);
    match node.taints.iter().find(|taint| taint.key == wanted.key && is_meant(&taint.effect)) {
        Some(taint) => SourceVerdict::Says(false, format!("Node {} has taint {}:{}", pod.node, taint.key, taint.effect)),
        None => SourceVerdict::Says(true, format!("Node {} has no taint {}", pod.node, wanted.key)),
    }
}

fn attached(world: &World, gate: &Gate, wanted: &NamedSource, pod: &Pod) -> SourceVerdict {
    let name = &wanted.name;
    let resource = match live(gate.ingress_daemon_set().and_then(|key| world.attachments.get(&key))) {
        Err(verdict) => return verdict,
        Ok(None) => return SourceVerdict::Silent(format!("IngressDaemonSet {name} does not exist")),
        Ok(Some(resource)) => resource,
    };
    if pod.labels.get(names::RESOURCE_LABEL).is_some_and(|uid8| *uid8 == resource.uid8) {
        // The node is attached again when its replicas are ready: they cannot wait for it.
        return SourceVerdict::Says(true, format!("the pod is a replica of IngressDaemonSet {name}"));
    }
    match resource.nodes.get(&pod.node) {
        _ if pod.node.is_empty() => SourceVerdict::Silent("the pod is on no node yet".into()),
        Some(health) if health.chosen && health.detached => {
            SourceVerdict::Says(false, format!("IngressDaemonSet {name} has not attached Node {}, or is about to detach it", pod.node))
        }
        Some(health) if health.chosen => SourceVerdict::Says(true, format!("IngressDaemonSet {name} has attached Node {}", pod.node)),
        None if resource.invalid => SourceVerdict::Unreadable(format!("the spec of IngressDaemonSet {name} is not valid")),
        _ => SourceVerdict::Silent(format!("IngressDaemonSet {name} does not use Node {}", pod.node)),
    }
}

fn service(world: &World, gate: &Gate, wanted: &NamedSource) -> SourceVerdict {
    let name = &wanted.name;
    match live(gate.service().and_then(|key| world.services.get(&key))) {
        Err(verdict) => verdict,
        Ok(0) => SourceVerdict::Says(false, format!("Service {name} has no ready endpoint")),
        Ok(_) => SourceVerdict::Says(true, format!("Service {name} has a ready endpoint")),
    }
}

fn object(world: &World, gate: &Gate, wanted: &ObjectConditionSource) -> SourceVerdict {
    let shown = format!("{} {}", wanted.kind, wanted.name);
    let conditions = match live(gate.object().and_then(|key| world.objects.get(&key))) {
        Err(verdict) => return verdict,
        Ok(None) => return SourceVerdict::Silent(format!("{shown} does not exist")),
        Ok(Some(conditions)) => conditions,
    };
    match conditions.get(&wanted.type_) {
        None => SourceVerdict::Silent(format!("{shown} has no condition {}", wanted.type_)),
        Some(status) => SourceVerdict::Says(status == wanted.status.as_str(), format!("condition {} of {shown} is {status}", wanted.type_)),
    }
}

fn http(world: &World, gate: &Gate, wanted: &HttpSource, pod: &Pod) -> SourceVerdict {
    let Some(target) = Target::of(&gate.namespace, wanted, pod) else { return SourceVerdict::Silent("the pod has no address yet".into()) };
    match live(world.answers.get(&target)) {
        Err(verdict) => verdict,
        Ok(status) => {
            let expected = wanted.expected_status.map_or((200..300).contains(status), |expected| expected == *status);
            SourceVerdict::Says(expected, format!("{} answered {status}", target.url))
        }
    }
}

/// What was seen, or what follows from that it was not.
fn live<T>(source: Option<&Source<T>>) -> Result<&T, SourceVerdict> {
    match source {
        Some(source) if source.is_listing() => Err(SourceVerdict::Pending),
        Some(source) => source.live().map_err(|why| SourceVerdict::Unreadable(why.to_owned())),
        None => Err(SourceVerdict::Pending),
    }
}
