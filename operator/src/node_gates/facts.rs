//! Objects that gates ask for, cut down to what decisions read.

use crate::watch::{fresh_since, texts};
use crds::label_selector::{LabelOperator, LabelRequirement, LabelSelector};
use k8s_openapi::{
    api::{apps::v1::DaemonSet, core::v1::Pod},
    apimachinery::pkg::apis::meta::v1 as meta,
};
use planner::node_gates::world;
use std::{collections::BTreeMap, sync::Arc};

/// What is read of a pod, with its node; the name is empty while it waits for one.
pub fn pod(pod: Pod) -> (String, world::Pod) {
    let spec = pod.spec.unwrap_or_default();
    let node = spec.node_name.unwrap_or_default();
    let status = pod.status.unwrap_or_default();
    let ready = status.conditions.iter().flatten().find(|condition| condition.type_ == "Ready");
    let is_ready = ready.is_some_and(|ready| ready.status == "True");
    let controller = pod.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    let facts = world::Pod {
        ready: is_ready,
        containers_ready: status.container_statuses.iter().flatten().all(|container| container.ready),
        terminating: pod.metadata.deletion_timestamp.is_some(),
        ended: matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")),
        fresh_since: fresh_since(&status),
        revision: pod.metadata.labels.as_ref().and_then(|labels| labels.get("controller-revision-hash")).cloned().unwrap_or_default(),
        controller: controller.map(|owner| owner.uid.clone()).unwrap_or_default(),
        annotations: texts(pod.metadata.annotations).into(),
        tolerations: Arc::new(spec.tolerations.unwrap_or_default()),
    };
    (node, facts)
}

/// What is read of a `DaemonSet`.
pub fn daemon_set(daemon_set: DaemonSet) -> world::DaemonSet {
    let spec = daemon_set.spec.unwrap_or_default();
    world::DaemonSet {
        uid: daemon_set.metadata.uid.unwrap_or_default(),
        selector: selector(&spec.selector),
        pod: spec.template.spec.unwrap_or_default(),
        revision: None,
    }
}

/// A selector of the API as one of ours.
pub fn selector(selector: &meta::LabelSelector) -> LabelSelector {
    let requirement = |requirement: &meta::LabelSelectorRequirement| LabelRequirement {
        key: requirement.key.clone(),
        operator: match requirement.operator.as_str() {
            "In" => LabelOperator::In,
            "NotIn" => LabelOperator::NotIn,
            "DoesNotExist" => LabelOperator::DoesNotExist,
            _ => LabelOperator::Exists,
        },
        values: requirement.values.clone().unwrap_or_default(),
    };
    LabelSelector {
        match_labels: selector.match_labels.clone().unwrap_or_default().into_iter().collect::<BTreeMap<_, _>>(),
        match_expressions: selector.match_expressions.iter().flatten().map(requirement).collect(),
    }
}
