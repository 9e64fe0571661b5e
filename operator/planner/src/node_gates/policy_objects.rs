//! Tainting nodes as they are created: what the API server is told to do by itself, as CEL.
//!
//! A `MutatingAdmissionPolicy` for each gate puts its taint on the nodes that the gate selects. The expressions say what
//! [`NodeReadinessGateSpec::selects`] says; a property test compares them. Nothing depends on parameters that may be
//! missing, so a policy can only fail by an error of its own, and then the node is created without the taint.

use super::{
    record::{Cause, Record, RecordOrigin, RecordState, annotation_key},
    world::Gate,
};
use crate::{
    gates_shared::{
        Key,
        policy_objects::{AdmissionPolicy, ServedWebhook, append, quote, selector},
    },
    patch,
};
use crds::{
    UnixSeconds, hash, names,
    node_readiness_gate::{GateTaint, Inject, NodeReadinessGateSpec, OnCreate},
};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// How much of a gate's name is in the name of its policy: with prefix, number and hash it stays below 63 characters.
const NAME: usize = 32;
/// What there is to taint nodes with as they are created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offers {
    /// The API server has `MutatingAdmissionPolicies`.
    pub policies: bool,
    /// The operator serves a webhook.
    pub webhook: bool,
}

/// How nodes of a gate are tainted as they are created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Means {
    /// By a policy inside the API server.
    Policy,
    /// The operator's webhook taints the node at its creation.
    Webhook,
    /// When the operator sees the node, and why.
    Reactive(&'static str),
}

/// How nodes of the gate are tainted as they are created. `enforced`: the gate could open.
pub fn means(gate: &Gate, enforced: bool, offers: Offers) -> Means {
    let wanted = gate.spec.admission.as_ref().map_or(OnCreate::Auto, |admission| admission.on_create);
    if gate.deleting {
        return Means::Reactive("the gate is being deleted");
    }
    if gate.spec.dry_run {
        return Means::Reactive("spec.dryRun is true: the gate taints no node");
    }
    if !enforced {
        return Means::Reactive("the gate could not open, so it taints no node");
    }
    match (wanted, offers) {
        (OnCreate::Auto | OnCreate::Policy, Offers { policies: true, .. }) => Means::Policy,
        (OnCreate::Auto | OnCreate::Webhook, Offers { webhook: true, .. }) => Means::Webhook,
        (OnCreate::None, _) => Means::Reactive("admission.onCreate is None: the operator taints a node a moment after its creation"),
        (OnCreate::Auto, _) => Means::Reactive(
            "the API server has no MutatingAdmissionPolicies (admissionregistration.k8s.io/v1, Kubernetes 1.36), or the operator may not list or use them, and it serves no webhook. The operator taints a node a moment after its creation. Start the operator with --webhook-service to close the gap",
        ),
        (OnCreate::Policy, _) => Means::Reactive(
            "the API server has no MutatingAdmissionPolicies (admissionregistration.k8s.io/v1, Kubernetes 1.36), or the operator may not list or use them: the operator taints a node a moment after its creation; set admission.onCreate to Auto to allow the operator's webhook, too",
        ),
        (OnCreate::Webhook, _) => Means::Reactive(
            "the operator serves no webhook: it taints a node a moment after its creation; start the operator with --webhook-service",
        ),
    }
}

/// Policies that a gate needs, where there are policies. `owned`: the gate is an object of its own that can own them; those of
/// others must be deleted when their gate goes.
pub fn policies(gate: &Gate, enforced: bool, offers: Offers, owned: bool) -> Vec<AdmissionPolicy> {
    let mut policies = Vec::new();
    if means(gate, enforced, offers) == Means::Policy {
        policies.extend(node_policy(gate, owned));
    }
    // A gate that could not open for want of a toleration opens by these.
    if offers.policies && !gate.deleting && !gate.spec.dry_run {
        policies.extend(injected(gate).iter().enumerate().map(|(number, key)| toleration_policy(gate, number, key, owned)));
    }
    policies
}

/// Taints the nodes that the gate selects; nothing for a gate that selects none.
pub fn node_policy(gate: &Gate, owned: bool) -> Option<AdmissionPolicy> {
    let selected = selected(&gate.spec)?;
    let taint = &gate.spec.taint;
    let value = map(&[("key", &taint.key), ("effect", taint.effect.as_str())], taint.value.as_deref());
    let spec = json!({
        "matchConstraints": {"resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nodes"], "scope": "Cluster"},
        ]},
        "matchConditions": [
            {"name": "selected", "expression": selected},
            {"name": "not-tainted", "expression": not_tainted(taint)},
        ],
        "mutations": [
            {"patchType": "JSONPatch", "jsonPatch": {"expression": append("object.spec", "taints", "/spec", &value)}},
            {"patchType": "JSONPatch", "jsonPatch": {"expression": annotate(&annotation_key(&gate.uid), &record(gate, 0).text())}},
        ],
    });
    Some(rendered(gate, "", owned, spec))
}

/// What a gate records of a node that is tainted as it is created. Time 0 stands for the creation of the Node, which CEL cannot
/// tell; that a node has no boot ID yet makes it no other one later.
pub fn record(gate: &Gate, time: UnixSeconds) -> Record {
    Record {
        gate: gate.name.clone(),
        key: gate.spec.taint.key.clone(),
        effect: gate.spec.taint.effect.as_str().to_owned(),
        state: RecordState::Held,
        origin: RecordOrigin::Applied,
        cause: Cause::Fresh,
        boot: String::new(),
        machine: String::new(),
        generation: gate.generation,
        time,
        late: false,
    }
}

/// `DaemonSets` whose pods get a toleration.
pub fn injected(gate: &Gate) -> BTreeSet<Key> {
    let wanted = gate.spec.tolerations.as_ref().is_some_and(|tolerations| tolerations.inject == Inject::Referenced);
    if wanted { gate.daemon_sets().collect() } else { BTreeSet::new() }
}

/// Gives the template of a `DaemonSet` the toleration, whenever it is written. Not its pods: where the template does not bear
/// a taint, the `DaemonSet` controller makes no pod for the node in the first place.
fn toleration_policy(gate: &Gate, number: usize, (namespace, name): &Key, owned: bool) -> AdmissionPolicy {
    let taint = &gate.spec.taint;
    let (key, effect) = (quote(&taint.key), quote(taint.effect.as_str()));
    let pod = "object.spec.template.spec";
    let bears = format!(
        "{pod}.tolerations.exists(t, has(t.key) && t.key == {key} && has(t.operator) && t.operator == 'Exists' && (!has(t.effect) || t.effect == {effect}))"
    );
    let entries = [("key", taint.key.as_str()), ("operator", "Exists"), ("effect", taint.effect.as_str())];
    let value = map(&entries, None);
    let spec = json!({
        "matchConstraints": {"resourceRules": [
            {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["daemonsets"], "scope": "Namespaced"},
        ]},
        "matchConditions": [
            {"name": "referenced", "expression": format!("request.namespace == {} && object.metadata.name == {}", quote(namespace), quote(name))},
            {"name": "not-tolerating", "expression": format!("!(has({pod}.tolerations) && {bears})")},
        ],
        "mutations": [{
            "patchType": "JSONPatch",
            "jsonPatch": {"expression": append(pod, "tolerations", "/spec/template/spec", &value)},
        }],
    });
    rendered(gate, &format!("-t{number}"), owned, spec)
}

fn rendered(gate: &Gate, suffix: &str, owned: bool, spec: Value) -> AdmissionPolicy {
    let mut metadata = json!({"name": format!("{}{suffix}", policy_name(gate)), "labels": {names::GATE_LABEL: gate.uid}});
    if owned {
        let api = format!("{}/{}", names::GROUP, names::VERSION);
        metadata["ownerReferences"] =
            json!([{"apiVersion": api, "kind": "NodeReadinessGate", "name": gate.name, "uid": gate.uid, "controller": true}]);
    }
    AdmissionPolicy::new(&metadata, spec, None)
}

/// Name of a gate's policy: what people know it by, and a hash of its UID, so that a gate made anew has another.
pub fn policy_name(gate: &Gate) -> String {
    let known: String =
        gate.name.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' }).collect();
    let known: String = known.trim_matches('-').chars().take(NAME).collect();
    format!("readiness-gate-{}-{}", known.trim_end_matches('-'), hash::hex(gate.uid.as_bytes(), 10))
}

/// Sets an annotation, on an object that may have none.
fn annotate(key: &str, text: &str) -> String {
    let annotations = "object.metadata.annotations";
    let path = quote(&patch::annotation(key));
    let (key, text) = (quote(key), quote(text));
    format!(
        "has({annotations}) && size({annotations}) > 0 \
         ? [JSONPatch{{op: 'add', path: {path}, value: {text}}}] \
         : [JSONPatch{{op: 'add', path: '/metadata/annotations', value: {{{key}: {text}}}}}]"
    )
}

/// A map of these, and of `value` where there is one. Not an `Object`: a list of such panics in the API server (1.36.3), and the
/// request fails in spite of the failure policy.
fn map(entries: &[(&str, &str)], value: Option<&str>) -> String {
    let value = value.filter(|value| !value.is_empty()).map(|value| ("value", value));
    let entries: Vec<_> = entries.iter().copied().chain(value).map(|(key, text)| format!("{}: {}", quote(key), quote(text))).collect();
    format!("{{{}}}", entries.join(", "))
}

/// Name of the entry for nodes in the `MutatingWebhookConfiguration`.
pub const WEBHOOK: &str = "nodes.ingressdaemonsets.mumoshu.github.io";

/// The entry for nodes, which tells the API server for which nodes it asks, as [`asked`]. A node that cannot be tainted now is tainted
/// when it is seen; one that cannot be created is lost.
pub fn webhook(served: &ServedWebhook<'_>, asked: &str) -> Value {
    let mut entry = served.entry(WEBHOOK, "nodes", "Cluster");
    entry["matchConditions"] = json!([{"name": "selected-and-not-tainted", "expression": asked}]);
    entry
}

/// For which new nodes a webhook is asked for one gate: those that it selects and that miss its taint; nothing for a gate that
/// selects no node.
pub fn clause(gate: &Gate) -> Option<String> {
    Some(format!("({}) && {}", selected(&gate.spec)?, not_tainted(&gate.spec.taint)))
}

/// For which new nodes a webhook is asked, as one expression of these clauses; nothing where there are none.
pub fn asked(clauses: &[String]) -> Option<String> {
    (!clauses.is_empty()).then(|| clauses.join(" || "))
}

/// Whether a node is selected, as CEL; nothing for a gate that selects no node.
pub fn selected(spec: &NodeReadinessGateSpec) -> Option<String> {
    if spec.all_nodes {
        return Some("true".into());
    }
    spec.node_selector.as_ref().filter(|selector| !selector.is_empty()).map(selector)
}

/// Whether a node does not have the taint yet, as CEL.
pub fn not_tainted(taint: &GateTaint) -> String {
    let (key, effect) = (quote(&taint.key), quote(taint.effect.as_str()));
    format!("!(has(object.spec.taints) && object.spec.taints.exists(t, t.key == {key} && t.effect == {effect}))")
}
