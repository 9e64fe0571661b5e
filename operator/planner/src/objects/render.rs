//! The Deployment of one node, and whether a stored one still is what was rendered.

use crate::{
    facts::{DeploymentFacts, Resource, shared_spec::SharedSpec},
    patch::{self, JsonPatch},
    snapshot::Snapshot,
    spec::{ResolvedSpec, node_selection::added_tolerations},
};
use crds::{
    hash,
    ingress_daemon_set::{Placement, PodUpdate},
    names,
    token::{Phase, Token},
};
use serde_json::{Map, Value, json};
use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
};

/// Longest object name made of user's names. A Deployment's name becomes a label value (63) and a `ReplicaSet`'s name
/// adds 11 characters to it.
const NAME_LENGTH: usize = 52;
/// Longest value of a label.
const LABEL_LENGTH: usize = 63;
/// Bumped when the rendering of the template changes in a way that existing pods need not follow.
const RENDERING: u32 = 1;

/// The name of an object that belongs to `resource` and `part`: both joined while that is short enough and not taken by
/// another resource, else a prefix and a hash.
pub fn object_name(resource: &str, part: &str, taken: &BTreeSet<String>) -> String {
    let plain = format!("{resource}-{part}");
    if plain.len() <= NAME_LENGTH && !taken.contains(&plain) {
        return plain;
    }
    // A dotted name would warn as a pod's host name, so the hashed form has no dots.
    let hash = hash::hex(format!("{resource}/{part}").as_bytes(), 10);
    let prefix: String = plain.replace('.', "-").chars().take(NAME_LENGTH - hash.len() - 1).collect();
    format!("{}-{hash}", prefix.trim_end_matches('-'))
}

/// The owner reference that every object of the resource in its namespace carries.
pub fn owner_reference(resource: &Resource) -> Value {
    json!({
        "apiVersion": format!("{}/{}", names::GROUP, names::VERSION),
        "kind": "IngressDaemonSet",
        "name": resource.name,
        "uid": resource.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

/// Labels that tell whose a Deployment or pod is, and for which node.
fn identity(resource: &Resource, name: &str, node: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        (names::NODE_LABEL.to_owned(), name.to_owned()),
        (names::RESOURCE_LABEL.to_owned(), resource.uid8().to_owned()),
        (names::NODE_HASH_LABEL.to_owned(), hash::node_hash(node)),
    ])
}

/// A JSON Patch, without its tests, that puts back how we know a Deployment of ours.
pub fn identity_patch(resource: &Resource, name: &str, node: &str) -> Value {
    let mut patch = JsonPatch::default();
    for (key, value) in identity(resource, name, node) {
        patch = patch.add(&patch::label(&key), value);
    }
    patch.add(&patch::annotation(names::NODE_NAME_ANNOTATION), node).into_value()
}

/// Labels of the Deployment, without its token.
pub fn labels(resource: &Resource, name: &str, node: &str) -> BTreeMap<String, String> {
    let mut labels = resource.spec.selector.as_ref().map(|selector| selector.match_labels.clone()).unwrap_or_default();
    labels.extend(identity(resource, name, node));
    // What is longer is in the annotation.
    if node.len() <= LABEL_LENGTH {
        labels.insert(names::FOR_NODE_LABEL.to_owned(), node.to_owned());
    }
    labels
}

/// Whether a Deployment that is to be created has the template that is wanted. One around pods that have lost theirs has the template
/// of those, which somebody may have edited.
pub fn is_wanted(body: &Value) -> bool {
    let token = body["metadata"]["labels"][names::TOKEN_LABEL].as_str().and_then(|token| token.parse::<Token>().ok());
    token.is_some_and(|token| token.phase == Phase::New)
}

/// The Deployment of a node.
pub fn deployment(
    resource: &Resource,
    settings: &ResolvedSpec,
    name: &str,
    node: &str,
    token: &Token,
    template: &Value,
    replicas: i32,
) -> Value {
    let mut labels = labels(resource, name, node);
    labels.insert(names::TOKEN_LABEL.to_owned(), token.to_string());
    let mut spec = json!({
        "replicas": replicas,
        "revisionHistoryLimit": 0,
        "minReadySeconds": resource.spec.min_ready_seconds,
        "strategy": strategy(settings),
        "selector": {"matchLabels": {names::NODE_LABEL: name}},
        "template": template,
    });
    if let Some(seconds) = progress_deadline(resource.spec.min_ready_seconds) {
        spec["progressDeadlineSeconds"] = seconds.into();
    }
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "namespace": resource.namespace,
            "labels": labels,
            "annotations": {names::NODE_NAME_ANNOTATION: node},
            "ownerReferences": [owner_reference(resource)],
        },
        "spec": spec,
    })
}

/// The API server refuses a Deployment whose progress deadline (600 s by default) is not above minReadySeconds.
pub fn progress_deadline(min_ready_seconds: i32) -> Option<i32> {
    (min_ready_seconds >= 600).then(|| min_ready_seconds.saturating_add(600))
}

/// `spec.strategy` of a node's Deployment.
pub fn strategy(settings: &ResolvedSpec) -> Value {
    json!({
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": settings.max_unavailable_pods.to_json(), "maxSurge": settings.max_surged_pods.to_json()},
    })
}

/// The user's template with what the operator adds: labels, tolerations, the pin to the node.
pub fn template(resource: &Resource, settings: &ResolvedSpec, name: &str, node: &str) -> Value {
    let mut template = Value::clone(&settings.template);
    let metadata = child(&mut template, "metadata");
    let labels = child(metadata, "labels");
    for (key, value) in identity(resource, name, node) {
        labels[key] = value.into();
    }
    labels[names::REVISION_LABEL] = settings.revision.as_str().into();
    labels[names::RENDERED_BY_LABEL] = rendered_by(settings).into();
    let spec = child(&mut template, "spec");
    let tolerations = added_tolerations(settings).into_iter().filter_map(|toleration| serde_json::to_value(toleration).ok());
    match spec.get_mut("tolerations").and_then(Value::as_array_mut) {
        Some(existing) => existing.extend(tolerations),
        None => spec["tolerations"] = tolerations.collect(),
    }
    if settings.pod_update != PodUpdate::Recreate {
        list_conditions(spec, &[names::IN_PLACE_GATE.to_owned()]);
    }
    list_conditions(spec, &settings.gate_conditions);
    if settings.placement == Placement::NodeName {
        spec["nodeName"] = node.into();
    } else {
        pin_by_affinity(spec, node);
    }
    template
}

/// Lists conditions as readiness gates, those that are not listed yet.
fn list_conditions(spec: &mut Value, conditions: &[String]) {
    for type_ in conditions {
        let gate = json!({"conditionType": type_});
        match spec.get_mut("readinessGates").and_then(Value::as_array_mut) {
            Some(listed) if listed.iter().any(|listed| listed["conditionType"] == type_.as_str()) => {}
            Some(listed) => listed.push(gate),
            None => spec["readinessGates"] = json!([gate]),
        }
    }
}

/// What distinguishes the operator's additions; the template that carries another value was rendered otherwise.
pub fn rendered_by(settings: &ResolvedSpec) -> String {
    let mut additions = format!("{RENDERING} {:?} {:?}", settings.placement, settings.pod.host_network);
    for (key, effect) in &settings.gate_taints {
        additions.extend([" ", key, ":", effect]);
    }
    if settings.pod_update != PodUpdate::Recreate {
        additions.push_str(" gate");
    }
    for type_ in &settings.gate_conditions {
        additions.extend([" gate ", type_]);
    }
    hash::hex(additions.as_bytes(), 10)
}

/// Terms are alternatives, so each of the user's gets the pin.
fn pin_by_affinity(spec: &mut Value, node: &str) {
    let pin = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    let required = child(child(child(spec, "affinity"), "nodeAffinity"), "requiredDuringSchedulingIgnoredDuringExecution");
    match required.get_mut("nodeSelectorTerms").and_then(Value::as_array_mut) {
        Some(terms) if !terms.is_empty() => {
            for term in terms {
                match term.get_mut("matchFields").and_then(Value::as_array_mut) {
                    Some(fields) => fields.push(pin.clone()),
                    None => term["matchFields"] = json!([pin]),
                }
            }
        }
        _ => required["nodeSelectorTerms"] = json!([{"matchFields": [pin]}]),
    }
}

/// The object below `key`, made where it is missing or null.
fn child<'a>(value: &'a mut Value, key: &str) -> &'a mut Value {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let slot = &mut value[key];
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    slot
}

/// What stands for a Deployment's name, its node and the node's hash in a template that is rendered for all nodes at once.
const OWN: [&str; 3] = ["\0name", "\0node", "\0hash"];

/// What Deployments should carry, rendered once for all nodes: rendering it for each of thousands is most of what a decision
/// takes.
pub struct Rendered<'a> {
    snapshot: &'a Snapshot,
    settings: &'a ResolvedSpec,
    rendered_by: String,
    template: OnceCell<Value>,
}

impl<'a> Rendered<'a> {
    /// Nothing yet: it is rendered when the first Deployment is compared with it.
    pub fn new(snapshot: &'a Snapshot, settings: &'a ResolvedSpec) -> Self {
        Self { snapshot, settings, rendered_by: rendered_by(settings), template: OnceCell::new() }
    }

    fn for_all(&self) -> &Value {
        self.template.get_or_init(|| {
            let [name, node, hash] = OWN;
            let mut template = template(&self.snapshot.resource, self.settings, name, node);
            template["metadata"]["labels"][names::NODE_HASH_LABEL] = hash.into();
            template
        })
    }

    /// The pod template of a Deployment at the wanted revision is not what was rendered.
    pub fn has_drifted(&self, node: &str, deployment: &DeploymentFacts) -> bool {
        if self.snapshot.written_generations.get(&deployment.uid) == Some(&deployment.generation) {
            return false;
        }
        if deployment.spec.get("paused").and_then(|paused| paused.as_bool()).unwrap_or(false) {
            return true;
        }
        if deployment.revision() != self.settings.revision {
            return false;
        }
        self.differs(node, deployment) && deployment.labels.get(names::ACCEPTED_LABEL) != Some(&stored_hash(deployment))
    }

    /// The stored template lacks something that we render.
    fn differs(&self, node: &str, deployment: &DeploymentFacts) -> bool {
        let (spec, stored) = (&deployment.spec, deployment.spec.held("template"));
        if deployment.template_label(names::RENDERED_BY_LABEL) == Some(self.rendered_by.as_str()) {
            let hash = hash::node_hash(node);
            let own = Some([deployment.name.as_str(), node, hash.as_str()]);
            return !Compared { spec: Some(spec), own }.contains(stored, self.for_all());
        }
        let mut wanted = Value::clone(&self.settings.template);
        if let Some(spec) = wanted.get_mut("spec").and_then(Value::as_object_mut) {
            spec.remove("tolerations");
            spec.remove("affinity");
            spec.remove("readinessGates");
        }
        !Compared { spec: Some(spec), own: None }.contains(stored, &wanted)
    }
}

/// The hash of a template that the API server stores otherwise than we wrote it, while nobody else has changed it since.
pub fn rewritten(snapshot: &Snapshot, settings: &ResolvedSpec, node: &str, deployment: &DeploymentFacts) -> Option<String> {
    let ours =
        snapshot.written_generations.get(&deployment.uid) == Some(&deployment.generation) && deployment.revision() == settings.revision;
    (ours && Rendered::new(snapshot, settings).differs(node, deployment)).then(|| stored_hash(deployment))
}

fn stored_hash(deployment: &DeploymentFacts) -> String {
    hash::revision(&deployment.spec.get("template").unwrap_or_default())
}

/// Everything that `wanted` says is in `stored`; what the API server added is not looked at.
pub fn contains(stored: &Value, wanted: &Value) -> bool {
    Compared { spec: None, own: None }.contains(stored, wanted)
}

/// What texts stand for on both sides.
#[derive(Clone, Copy)]
struct Compared<'a> {
    /// Holds what is stored.
    spec: Option<&'a SharedSpec>,
    /// What [`OWN`] stands for in what is wanted.
    own: Option<[&'a str; 3]>,
}

impl Compared<'_> {
    fn contains(self, stored: &Value, wanted: &Value) -> bool {
        match (stored, wanted) {
            (Value::Object(stored), Value::Object(wanted)) => {
                wanted.iter().all(|(key, value)| stored.get(key).map_or_else(|| is_empty(value), |stored| self.contains(stored, value)))
            }
            (Value::Array(stored), Value::Array(wanted)) => {
                stored.len() == wanted.len() && stored.iter().zip(wanted).all(|(stored, wanted)| self.contains(stored, wanted))
            }
            (stored, wanted) => {
                let meant = stored.as_str().and_then(|text| self.spec?.own_text(text)).map(Value::from);
                let own = wanted.as_str().and_then(|text| Some(self.own?[OWN.iter().position(|own| *own == text)?])).map(Value::from);
                is_same(meant.as_ref().unwrap_or(stored), own.as_ref().unwrap_or(wanted))
            }
        }
    }
}

fn is_same(stored: &Value, wanted: &Value) -> bool {
    stored == wanted || is_empty(stored) && is_empty(wanted) || same_quantity(stored, wanted)
}

/// Left out when the API server writes the object.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.values().all(is_empty),
    }
}

/// The API server rewrites quantities: `1000m` becomes `1`, the number 1 the string `1`.
fn same_quantity(stored: &Value, wanted: &Value) -> bool {
    let number = |value: &Value| match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => quantity(text),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    number(stored).zip(number(wanted)).is_some_and(|(stored, wanted)| (stored - wanted).abs() <= f64::EPSILON * stored.abs())
}

fn quantity(text: &str) -> Option<f64> {
    const SUFFIXES: [(&str, f64); 16] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
        ("", 1.0),
    ];
    if !text.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '+' | '-' | '.')) {
        return None;
    }
    SUFFIXES.iter().find_map(|(suffix, factor)| text.strip_suffix(suffix)?.parse::<f64>().ok().map(|number| number * factor))
}
