//! Policies of the API server that gates stand behind, and the webhook in their place: what those for nodes and those for pods share.

use crds::label_selector::{LabelOperator, LabelRequirement, LabelSelector};
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Labels of an object in CEL.
const LABELS: &str = "object.metadata.labels";
/// API of policies and webhooks.
pub const API: &str = "admissionregistration.k8s.io/v1";

/// A policy with its binding, both of the same name.
#[derive(Clone, Debug, PartialEq)]
pub struct AdmissionPolicy {
    /// Name of both objects.
    pub name: String,
    /// Manifest of the `MutatingAdmissionPolicy`.
    pub policy: Value,
    /// Manifest of the `MutatingAdmissionPolicyBinding`.
    pub binding: Value,
}

impl AdmissionPolicy {
    /// With the name in `metadata`, bound to what `matched` says. The object is created without what the policy would add where that fails.
    pub fn new(metadata: &Value, mut spec: Value, matched: Option<Value>) -> Self {
        spec["failurePolicy"] = "Ignore".into();
        // Others may replace the whole list; what is there already is left alone.
        spec["reinvocationPolicy"] = "IfNeeded".into();
        let name = metadata["name"].as_str().unwrap_or_default().to_owned();
        let object = |kind: &str, spec: &Value| json!({"apiVersion": API, "kind": kind, "metadata": metadata, "spec": spec});
        let mut binding = json!({"policyName": name});
        if let Some(matched) = matched {
            binding["matchResources"] = matched;
        }
        Self { policy: object("MutatingAdmissionPolicy", &spec), binding: object("MutatingAdmissionPolicyBinding", &binding), name }
    }
}

/// Name of the `MutatingWebhookConfiguration`. Each kind of gates has an entry of its own in it.
pub const WEBHOOKS: &str = "ingress-daemonset-operator";

/// What an API server is told of the webhook behind a Service.
#[derive(Clone, Copy, Debug)]
pub struct ServedWebhook<'a> {
    /// Namespace of the Service.
    pub namespace: &'a str,
    /// Its name.
    pub service: &'a str,
    /// Where the webhook is below it.
    pub path: &'a str,
    /// Authorities that the API server is to trust, in PEM.
    pub trusted: &'a str,
}

impl ServedWebhook<'_> {
    /// The entry of this name, for the creation of objects of the core group. Where the webhook does not answer in time, the object is
    /// created without what it would add, as with a policy that fails.
    pub fn entry(&self, name: &str, resource: &str, scope: &str) -> Value {
        json!({
            "name": name,
            "admissionReviewVersions": ["v1"],
            "clientConfig": {
                "service": {"namespace": self.namespace, "name": self.service, "path": self.path, "port": 443},
                "caBundle": ByteString(self.trusted.as_bytes().to_vec()),
            },
            "failurePolicy": "Ignore",
            "timeoutSeconds": 2,
            "sideEffects": "None",
            "reinvocationPolicy": "IfNeeded",
            "matchPolicy": "Equivalent",
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource], "scope": scope}],
        })
    }
}

/// The configuration with one entry, for a server-side apply: the entries of others stay.
pub fn configuration(entry: &Value) -> Value {
    json!({"apiVersion": API, "kind": "MutatingWebhookConfiguration", "metadata": {"name": WEBHOOKS}, "webhooks": [entry]})
}

/// Adds an element to a list that may not be there: the list is part of what `parent` is, and at `path` below it. An empty list
/// is not stored, so it counts as none.
pub fn append(parent: &str, list: &str, path: &str, value: &str) -> String {
    format!(
        "has({parent}.{list}) && size({parent}.{list}) > 0 \
         ? [JSONPatch{{op: 'add', path: '{path}/{list}/-', value: {value}}}] \
         : [JSONPatch{{op: 'add', path: '{path}/{list}', value: [{value}]}}]"
    )
}

/// A selector as CEL about `object`.
pub fn selector(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().map(|(key, value)| {
        let key = quote(key);
        format!("({} && {LABELS}[{key}] == {})", exists(&key), quote(value))
    });
    labels.chain(selector.match_expressions.iter().map(requirement)).collect::<Vec<_>>().join(" && ")
}

fn requirement(requirement: &LabelRequirement) -> String {
    let key = quote(&requirement.key);
    let listed = || {
        let values: Vec<_> = requirement.values.iter().map(|value| quote(value)).collect();
        format!("({} && {LABELS}[{key}] in [{}])", exists(&key), values.join(", "))
    };
    match requirement.operator {
        LabelOperator::In if requirement.values.is_empty() => "false".into(),
        LabelOperator::NotIn if requirement.values.is_empty() => "true".into(),
        LabelOperator::In => listed(),
        LabelOperator::NotIn => format!("!{}", listed()),
        LabelOperator::Exists => format!("({})", exists(&key)),
        LabelOperator::DoesNotExist => format!("!({})", exists(&key)),
    }
}

/// An object without labels has no map of them.
fn exists(quoted_key: &str) -> String {
    format!("has({LABELS}) && {quoted_key} in {LABELS}")
}

/// A text as a literal of CEL; what is not plain is escaped, so that no text ends the literal.
pub fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('\'');
    for letter in text.chars() {
        match letter {
            '\'' | '\\' => quoted.extend(['\\', letter]),
            ' '..='~' => quoted.push(letter),
            _ if u32::from(letter) <= 0xffff => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(letter)); // writing to a String does not fail
            }
            _ => {
                let _ = write!(quoted, "\\U{:08x}", u32::from(letter));
            }
        }
    }
    quoted.push('\'');
    quoted
}
