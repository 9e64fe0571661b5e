//! What gates are made from: `NodeReadinessGates`, the field `nodeReadinessTaint` of `IngressDaemonSets`, a `ConfigMap`, a preset.

use super::hub::Fronts;
use crds::{
    IngressDaemonSet, NodeReadinessGate, NodeReadinessGateSpec,
    label_selector::LabelSelector,
    node_readiness_gate::{DeletionPolicy, DuringUpdate, IngressDaemonSetRequirement, Mode, Policy, Requirement},
};
use kube::ResourceExt as _;
use planner::gate::Gate;
use std::collections::BTreeMap;

/// What a `NodeReadinessGate` says.
pub fn gate(object: &NodeReadinessGate) -> Gate {
    Gate {
        name: object.name_any(),
        uid: object.metadata.uid.clone().unwrap_or_default(),
        generation: object.metadata.generation.unwrap_or(0),
        created: object.metadata.creation_timestamp.as_ref().map_or(0, crate::observe::seconds),
        deleting: object.metadata.deletion_timestamp.is_some(),
        spec: object.spec.clone(),
        completion_annotation: None,
    }
}

/// What `nodeReadinessTaint` stands for, where it is set. A resource that is being deleted needs no replicas any more.
pub fn implied(resource: &IngressDaemonSet) -> Option<Gate> {
    let taint = resource.spec.node_readiness_taint.clone()?;
    if resource.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let namespace = resource.namespace().unwrap_or_default();
    let mut labels = resource.spec.node_selector.clone();
    if let Some(selector) = resource.spec.template.pointer("/spec/nodeSelector").and_then(serde_json::Value::as_object) {
        labels.extend(selector.iter().filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))));
    }
    let all_nodes = labels.is_empty();
    let replicas = IngressDaemonSetRequirement {
        namespace: namespace.clone(),
        name: resource.name_any(),
        min_ready: None,
        during_update: DuringUpdate::Hold,
        max_hold: None,
    };
    let spec = NodeReadinessGateSpec {
        node_selector: (!all_nodes).then(|| LabelSelector { match_labels: labels, ..LabelSelector::default() }),
        all_nodes,
        taint,
        policy: Policy::AllOf,
        mode: Mode::Continuous,
        existing_nodes: None,
        regate_on: Vec::new(),
        requirements: vec![Requirement { name: "replicas".into(), ingress_daemon_set: Some(replicas), ..Requirement::default() }],
        release: None,
        retaint: None,
        admission: None,
        tolerations: None,
        deletion_policy: DeletionPolicy::RemoveTaints,
        dry_run: false,
    };
    Some(Gate {
        name: format!("{namespace}/{}", resource.name_any()),
        uid: format!("ids-{}", resource.metadata.uid.clone().unwrap_or_default()),
        generation: resource.metadata.generation.unwrap_or(0),
        created: resource.metadata.creation_timestamp.as_ref().map_or(0, crate::observe::seconds),
        deleting: false,
        spec,
        completion_annotation: None,
    })
}

/// All gates, by what names their records.
pub fn all<'a>(
    objects: impl Iterator<Item = &'a NodeReadinessGate>,
    resources: impl Iterator<Item = &'a IngressDaemonSet>,
    fronts: &Fronts,
) -> BTreeMap<String, Gate> {
    let elsewhere = [&fronts.config_map, &fronts.preset].into_iter().flatten().cloned();
    objects.map(gate).chain(resources.filter_map(implied)).chain(elsewhere).map(|gate| (gate.uid.clone(), gate)).collect()
}
