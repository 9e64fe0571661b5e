//! What gates are made from: `NodeReadinessGates`, the field `nodeReadinessTaint` of `IngressDaemonSets`, a `ConfigMap`, a preset.

use super::CompatGates;
use crate::{pages, watch::PAGE};
use anyhow::Context as _;
use crds::{
    IngressDaemonSet, NodeReadinessGate, NodeReadinessGateSpec, NodeReadinessGateStatus, UnixSeconds,
    label_selector::LabelSelector,
    node_readiness_gate::{DuringUpdate, IngressDaemonSetRequirement, Mode, Requirement},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, ObjectMeta},
    core::DeserializeGuard,
};
use planner::{
    node_gates::{Gate, world::IMPLIED},
    spec::node_rights::NodeRights,
};
use std::collections::BTreeMap;

/// What a `NodeReadinessGate` says.
pub fn gate(object: &NodeReadinessGate) -> Gate {
    let deleting = object.metadata.deletion_timestamp.is_some();
    Gate { deleting, ..of(&object.metadata, object.name_any(), object.metadata.uid.clone().unwrap_or_default(), object.spec.clone()) }
}

/// What `nodeReadinessTaint` stands for, where it is set and allowed. A resource that is being deleted needs no replicas any more.
pub fn implied(resource: &IngressDaemonSet, rights: &NodeRights) -> Option<Gate> {
    let (namespace, name) = (resource.namespace().unwrap_or_default(), resource.name_any());
    let taint = resource.spec.node_readiness_taint.clone().filter(|taint| rights.allows_taint(&namespace, taint))?;
    if resource.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let mut labels = resource.spec.node_selector.clone();
    if let Some(selector) = resource.spec.template.pointer("/spec/nodeSelector").and_then(serde_json::Value::as_object) {
        labels.extend(selector.iter().filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))));
    }
    let replicas = IngressDaemonSetRequirement {
        namespace: namespace.clone(),
        name: name.clone(),
        min_ready: None,
        during_update: DuringUpdate::Hold,
        max_hold: None,
    };
    let replicas = Requirement { name: "replicas".into(), ingress_daemon_set: Some(replicas), ..Requirement::default() };
    let spec = NodeReadinessGateSpec { mode: Mode::Continuous, ..NodeReadinessGateSpec::new(taint, vec![replicas]) };
    let spec = if labels.is_empty() { spec } else { spec.on(LabelSelector { match_labels: labels, ..LabelSelector::default() }) };
    let uid = format!("{IMPLIED}{}", resource.metadata.uid.clone().unwrap_or_default());
    Some(of(&resource.metadata, format!("{namespace}/{name}"), uid, spec))
}

/// What the gate that `nodeReadinessTaint` stands for said of itself, also where the field is not set any more, by UID.
pub fn said_of_implied(resource: &IngressDaemonSet) -> Option<(String, NodeReadinessGateStatus)> {
    let uid = format!("{IMPLIED}{}", resource.metadata.uid.as_deref()?);
    Some((uid, resource.status.as_ref()?.node_readiness.clone()?))
}

fn of(metadata: &ObjectMeta, name: String, uid: String, spec: NodeReadinessGateSpec) -> Gate {
    Gate {
        name,
        uid,
        generation: metadata.generation.unwrap_or(0),
        created: metadata.creation_timestamp.as_ref().map_or(0, crate::watch::seconds),
        edited: edited(metadata),
        deleting: false,
        spec,
        completion_annotation: None,
    }
}

/// When somebody but the operator last wrote more than the status of an object.
fn edited(metadata: &ObjectMeta) -> Option<UnixSeconds> {
    let managed = metadata.managed_fields.iter().flatten();
    let by_others = managed.filter(|entry| {
        let is_ours = entry.manager.as_deref().is_some_and(|manager| manager.starts_with("ingress-daemonset-operator"));
        !is_ours && entry.subresource.as_deref().unwrap_or_default().is_empty()
    });
    by_others.filter_map(|entry| entry.time.as_ref().map(crate::watch::seconds)).max()
}

/// All `NodeReadinessGates`. Without the definition there are none.
pub async fn list(client: &Client) -> anyhow::Result<Vec<DeserializeGuard<NodeReadinessGate>>> {
    match pages::all(&Api::all(client.clone()), ListParams::default(), PAGE).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        result => result.context("listing NodeReadinessGates"),
    }
}

/// All gates, by what names their records.
pub fn all<'a>(
    objects: impl Iterator<Item = &'a NodeReadinessGate>,
    resources: impl Iterator<Item = &'a IngressDaemonSet>,
    compat: &CompatGates,
    rights: &NodeRights,
) -> BTreeMap<String, Gate> {
    let elsewhere = [&compat.config_map, &compat.preset].into_iter().flatten().cloned();
    objects
        .map(gate)
        .chain(resources.filter_map(|resource| implied(resource, rights)))
        .chain(elsewhere)
        .map(|gate| (gate.uid.clone(), gate))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use planner::spec::node_rights::NamespaceTaints;
    use serde_json::json;

    fn resource(taint: &serde_json::Value) -> IngressDaemonSet {
        serde_json::from_value(json!({
            "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet",
            "metadata": {"name": "edge", "namespace": "web", "uid": "u", "generation": 1},
            "spec": {"template": {"spec": {"nodeSelector": {"role": "edge"}}}, "nodeReadinessTaint": taint},
        }))
        .unwrap()
    }

    /// Nodes that were there before an edit count as existing. The operator's own writes and those of a status are no edits.
    #[test]
    fn what_the_operator_or_a_status_changes_is_no_edit() {
        let entry = |manager: &str, second: u8, subresource: Option<&str>| {
            json!({
                "manager": manager, "operation": "Update", "apiVersion": "v1", "time": format!("2026-11-24T00:00:{second:02}Z"),
                "fieldsType": "FieldsV1", "fieldsV1": {}, "subresource": subresource,
            })
        };
        let managed = [
            entry("ingress-daemonset-operator/gates", 30, None),
            entry("kubectl", 40, Some("status")),
            entry("kubectl", 10, None),
            entry("helm", 20, None),
        ];
        let metadata: ObjectMeta = serde_json::from_value(json!({ "name": "g", "managedFields": managed })).unwrap();
        let of_helm = metadata.managed_fields.as_ref().unwrap()[3].time.as_ref().map(crate::watch::seconds);
        assert_eq!(edited(&metadata), of_helm);
        assert_eq!(edited(&crate::watch::read_of_metadata(metadata)), of_helm, "as it is kept of a resource");
        assert_eq!(edited(&ObjectMeta::default()), None);
    }

    /// The taint of a namespace's resource becomes one of every Node that it chooses, whoever else has pods there.
    #[test]
    fn a_resource_taint_makes_a_gate_only_with_namespace_rights() {
        let taint = |effect: &str| json!({"key": "example.com/edge", "effect": effect});
        let made = |rights: &NodeRights, taint: &serde_json::Value| implied(&resource(taint), rights);
        assert_eq!(made(&NodeRights::default(), &taint("NoSchedule")), None, "by default no namespace has a right");
        for (right, effect, has_gate) in [
            ("web=example.com/edge", "NoSchedule", true),
            ("web=example.com/edge", "NoExecute", false),
            ("web=example.com/edge:NoExecute", "NoExecute", true),
            ("dns=example.com/edge", "NoSchedule", false),
            ("web=example.com/other", "NoSchedule", false),
        ] {
            let taints = vec![right.parse::<NamespaceTaints>().unwrap()];
            let gate = made(&NodeRights { taints, ..NodeRights::default() }, &taint(effect));
            assert_eq!(gate.map(|gate| gate.name), has_gate.then(|| "web/edge".to_owned()), "{right}, {effect}");
        }
    }
}
