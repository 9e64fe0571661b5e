//! Giving pods the readiness gate as they are created: what the API server is told to do by itself, as CEL, or to ask the operator's
//! webhook about.

use super::world::Gate;
use crate::gates_shared::policy_objects::{AdmissionPolicy, ServedWebhook, append, quote, selector};
use crds::{hash, names, pod_readiness_gate::InjectOnCreate};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// How much of a gate's name is in the name of its policy: with prefix and hash it stays below 63 characters.
const NAME: usize = 32;
/// Label of each Namespace with its name, which the API server sets.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";
/// Name of the entry for pods in the `MutatingWebhookConfiguration`.
pub const WEBHOOK: &str = "pods.ingressdaemonsets.mumoshu.github.io";
/// Longest expression about the pods of one namespace, in bytes: a namespace with more is asked about as a whole, so that no namespace
/// takes the room of others.
const OF_NAMESPACE: usize = 8_000;
/// Longest expression about all namespaces, in bytes. An API server takes 100,000 characters, and refuses the configuration with more.
const OF_ALL: usize = 90_000;

/// Between alternatives, in CEL.
const OR: &str = " || ";

/// What there is to give pods the readiness gate as they are created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offers<'a> {
    /// The API server has `MutatingAdmissionPolicies`.
    pub policies: bool,
    /// Namespace of an operator that serves a webhook.
    pub webhook: Option<&'a str>,
}

/// How pods get the readiness gate as they are created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Means {
    /// By a policy inside the API server.
    Policy,
    /// By the operator's webhook.
    Webhook,
    /// They do not get it: a word for the reason, and a sentence.
    Missing(&'static str, &'static str),
}

/// How pods of a gate that asks for it get the readiness gate.
pub fn means(gate: &Gate, offers: Offers<'_>) -> Means {
    match (gate.on_create(), offers) {
        (InjectOnCreate::Auto | InjectOnCreate::Policy, Offers { policies: true, .. }) => Means::Policy,
        // The operator's own pods must start without it.
        (InjectOnCreate::Auto | InjectOnCreate::Webhook, Offers { webhook: Some(own), .. }) if own == gate.namespace => Means::Missing(
            "OperatorNamespace",
            "the API server does not ask the operator's webhook about pods of the operator's own namespace: add the readiness gate to the templates of pods",
        ),
        (InjectOnCreate::Auto | InjectOnCreate::Webhook, Offers { webhook: Some(_), .. }) => Means::Webhook,
        (InjectOnCreate::Webhook, _) => Means::Missing(
            "NoWebhook",
            "the operator serves no webhook: start it with --webhook-service, or add the readiness gate to the templates of pods",
        ),
        (InjectOnCreate::Policy, _) => Means::Missing(
            "NoPolicies",
            "the API server has no MutatingAdmissionPolicies (Kubernetes has them from 1.36 on, and from 1.34 on if switched on), or the operator may not use them. Set admission.onCreate to Auto to allow the operator's webhook, too, or add the readiness gate to the templates of pods",
        ),
        (InjectOnCreate::Auto | InjectOnCreate::None, _) => Means::Missing(
            "NoPolicies",
            "the API server has no MutatingAdmissionPolicies (Kubernetes has them from 1.36 on, and from 1.34 on if switched on), or the operator may not use them. It serves no webhook. Start the operator with --webhook-service, or add the readiness gate to the templates of pods",
        ),
    }
}

/// The policy of a gate; nothing where it asks for none, or selects by no label.
pub fn policy(gate: &Gate) -> Option<AdmissionPolicy> {
    let [selected, not_listed] = conditions(gate)?;
    let value = format!("{{'conditionType': {}}}", quote(&gate.spec.condition_type));
    let spec = json!({
        "matchConstraints": {"resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"], "scope": "Namespaced"},
        ]},
        "matchConditions": [{"name": "selected", "expression": selected}, {"name": "not-listed", "expression": not_listed}],
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": append("object.spec", "readinessGates", "/spec", &value)}}],
    });
    let metadata = json!({"name": policy_name(gate), "labels": {names::POD_GATE_LABEL: gate.uid}});
    // The gate has a say in its own namespace only, and there only if whoever owns the namespace agreed.
    let namespaces = json!({"matchLabels": {NAMESPACE_NAME: gate.namespace, names::INJECT_LABEL: names::INJECT_LABEL_VALUE}});
    Some(AdmissionPolicy::new(&metadata, spec, Some(json!({"namespaceSelector": namespaces}))))
}

/// Which new pods of its namespace are given the readiness gate, as CEL: those that the gate selects, and of them those that do not list
/// its condition. Nothing where it asks for none, or selects by no label.
fn conditions(gate: &Gate) -> Option<[String; 2]> {
    if !gate.injects() {
        return None;
    }
    let (listed, type_) = ("object.spec.readinessGates", quote(&gate.spec.condition_type));
    let not_listed = format!("!(has({listed}) && {listed}.exists(gate, gate.conditionType == {type_}))");
    Some([selector(gate.spec.selector.as_ref()?), not_listed])
}

/// For which new pods a webhook is asked for one gate: for exactly those that the gate's policy would change.
pub fn clause(gate: &Gate) -> Option<String> {
    let [selected, not_listed] = conditions(gate)?;
    Some(format!("{} && ({selected}) && {not_listed}", of_namespace(&gate.namespace)))
}

fn of_namespace(name: &str) -> String {
    format!("request.namespace == {}", quote(name))
}

/// The entry for pods, by which the API server asks for pods of these gates; nothing where none of them needs it. Namespaces have to
/// agree, as for policies.
pub fn webhook<'a>(served: &ServedWebhook<'_>, gates: impl Iterator<Item = &'a Gate>) -> Option<Value> {
    let mut clauses: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for gate in gates {
        if let Some(clause) = clause(gate) {
            clauses.entry(&gate.namespace).or_default().push(clause);
        }
    }
    if clauses.is_empty() {
        return None;
    }
    let names: Vec<_> = clauses.keys().copied().collect();
    let mut entry = served.entry(WEBHOOK, "pods", "Namespaced");
    entry["namespaceSelector"] = json!({
        "matchLabels": {names::INJECT_LABEL: names::INJECT_LABEL_VALUE},
        "matchExpressions": [{"key": NAMESPACE_NAME, "operator": "In", "values": names}],
    });
    if let Some(expression) = asked(&clauses) {
        entry["matchConditions"] = json!([{"name": "selected-and-not-listed", "expression": expression}]);
    }
    Some(entry)
}

/// For which new pods a webhook is asked, as one expression. What would be too long asks for more pods than needed, which the webhook
/// leaves as they are; nothing where it asks for all pods of these namespaces.
fn asked(clauses: &BTreeMap<&str, Vec<String>>) -> Option<String> {
    let namespaces = clauses.iter().map(|(name, clauses)| {
        let (exact, whole) = (clauses.join(OR), of_namespace(name));
        if exact.len() <= OF_NAMESPACE { (exact, whole) } else { (whole.clone(), whole) }
    });
    let mut namespaces: Vec<_> = namespaces.collect();
    let mut length = namespaces.iter().map(|(said, _)| said.len() + OR.len()).sum::<usize>();
    // The longest give way first.
    let mut longest: Vec<_> = (0..namespaces.len()).collect();
    longest.sort_by_key(|place| std::cmp::Reverse(namespaces[*place].0.len()));
    for place in longest {
        if length <= OF_ALL {
            break;
        }
        let (said, whole) = &mut namespaces[place];
        length -= said.len().saturating_sub(whole.len());
        said.clone_from(whole);
    }
    let all = namespaces.into_iter().map(|(said, _)| said).collect::<Vec<_>>().join(OR);
    (all.len() <= OF_ALL).then_some(all)
}

/// Name of a gate's policy: what people know it by, and a hash of its UID, so that a gate made anew has another.
fn policy_name(gate: &Gate) -> String {
    let known: String =
        format!("{}-{}", gate.namespace, gate.name).chars().map(|letter| if letter == '.' { '-' } else { letter }).take(NAME).collect();
    format!("pod-gate-{}-{}", known.trim_end_matches('-'), hash::hex(gate.uid.as_bytes(), 10))
}
