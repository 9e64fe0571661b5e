//! A `ConfigMap` of critical pods, as istio-cni-taint reads it, as a gate.
//!
//! Each value under `data` is a YAML list of `{name, namespace, selector}`. The comma in a selector is no AND of labels: each part is
//! a requirement of its own, with a ready pod of its own.

use super::world::Gate;
use crds::{
    Duration, UnixSeconds,
    label_selector::{LabelOperator, LabelRequirement, LabelSelector},
    node_readiness_gate::{
        ConditionRequirement, ConditionStatus, Effect, ExistingNodes, GateTaint, Mode, NodeReadinessGateSpec, PodsRequirement, Requirement,
        Retaint, RetaintBudget,
    },
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Key of the taint; it has no value, and the effect `NoSchedule`.
pub const TAINT: &str = "NodeReadiness";
/// Names that are looked for where only the namespace is given, the first that there is: the original's default, that of its chart, and
/// that of the example in its guide.
pub const NAMES: [&str; 3] = ["node.readiness", "istio-cni-taint-configmap", "istio-cni-taint"];
/// Where they are looked for by default.
pub const NAMESPACE: &str = "kube-system";
/// What names the records of this gate on Nodes: the same for every `ConfigMap`, so that another one takes over what the first one left.
pub const UID: &str = "legacy-configmap";

/// One entry of a list; what else it has is ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CriticalPod {
    name: String,
    namespace: String,
    selector: String,
}

/// What the `ConfigMap` asks for, in the order of its keys; or all that is wrong with it, in one sentence each.
pub fn requirements<'a>(data: impl IntoIterator<Item = (&'a String, &'a String)>) -> Result<Vec<Requirement>, String> {
    let (mut found, mut wrong) = (Vec::new(), Vec::new());
    for (key, text) in data {
        // No text at all is an empty list.
        match serde_saphyr::from_str::<Option<Vec<CriticalPod>>>(text) {
            Ok(entries) => {
                for (place, entry) in (1..).zip(entries.into_iter().flatten()) {
                    match settings(&entry) {
                        Ok(settings) => found.extend(settings),
                        Err(error) => wrong.push(format!("key {key}, entry {place}: {error}")),
                    }
                }
            }
            Err(error) => {
                let error = error.to_string();
                wrong.push(format!(
                    "key {key} is not a list of {{name, namespace, selector}}: {}",
                    error.lines().next().unwrap_or_default()
                ));
            }
        }
    }
    if wrong.is_empty() { Ok(with_own_names(found)) } else { Err(wrong.join("; ")) }
}

fn settings(entry: &CriticalPod) -> Result<Vec<Requirement>, String> {
    if entry.namespace.trim().is_empty() {
        return Err("namespace is missing: name one; everyone who may create pods in it can release nodes".into());
    }
    let pods = |selector| PodsRequirement {
        namespace: entry.namespace.trim().to_owned(),
        selector,
        min_ready: None,
        ready_annotation: None,
        annotation_only: false,
    };
    let name = if entry.name.is_empty() { "pods" } else { entry.name.as_str() };
    let requirement = |selector| Requirement { name: name.to_owned(), pods: Some(pods(selector)), ..Requirement::default() };
    entry.selector.split(',').map(|part| selector(part.trim(), &entry.selector).map(requirement)).collect()
}

/// Names are asked for to be unique by whoever counts what is not met.
fn with_own_names(mut requirements: Vec<Requirement>) -> Vec<Requirement> {
    let mut taken = BTreeSet::new();
    for requirement in &mut requirements {
        let mut name = requirement.name.clone();
        for number in 2.. {
            if taken.insert(name.clone()) {
                break;
            }
            name = format!("{}-{number}", requirement.name);
        }
        requirement.name = name;
    }
    requirements
}

/// One part of a selector, which stands by itself.
fn selector(part: &str, whole: &str) -> Result<LabelSelector, String> {
    if part.is_empty() {
        return Err(format!("a part of `{whole}` names no label: name one, or every pod of the namespace would count"));
    }
    if part.matches('(').count() != part.matches(')').count() {
        return Err(format!(
            "`{part}` is not a label selector: write one value, or use a NodeReadinessGate with matchExpressions; each comma in `{whole}` begins a new requirement"
        ));
    }
    let (key, operator, values) = comparison(part).ok_or_else(|| format!("`{part}` is not a label selector"))?;
    if !is_label_key(&key) {
        return Err(format!("`{part}`: `{key}` is not a label key"));
    }
    if let Some(value) = values.iter().find(|value| !is_label_value(value)) {
        return Err(format!("`{part}`: `{value}` is not a label value"));
    }
    Ok(match (operator, values.as_slice()) {
        (LabelOperator::In, [value]) => LabelSelector { match_labels: BTreeMap::from([(key, value.clone())]), ..LabelSelector::default() },
        _ => LabelSelector { match_expressions: vec![LabelRequirement { key, operator, values }], ..LabelSelector::default() },
    })
}

/// Key, operator and values, as Kubernetes reads them in a selector.
fn comparison(part: &str) -> Option<(String, LabelOperator, Vec<String>)> {
    let of = |key: &str, operator, value: &str| Some((key.trim().to_owned(), operator, vec![value.trim().to_owned()]));
    if let Some((key, value)) = part.split_once("!=") {
        return of(key, LabelOperator::NotIn, value);
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return of(key, LabelOperator::In, value);
    }
    if let Some(list) = part.strip_suffix(')') {
        let (head, value) = list.split_once('(')?;
        return match head.split_whitespace().collect::<Vec<_>>().as_slice() {
            [key, "in"] => of(key, LabelOperator::In, value),
            [key, "notin"] => of(key, LabelOperator::NotIn, value),
            _ => None,
        };
    }
    match part.strip_prefix('!') {
        Some(key) => Some((key.trim().to_owned(), LabelOperator::DoesNotExist, Vec::new())),
        None => Some((part.to_owned(), LabelOperator::Exists, Vec::new())),
    }
}

/// Up to 63 letters, digits, `-`, `_` and `.`, the first and the last of them a letter or digit.
fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric();
    let ends = text.bytes().next().is_some_and(plain) && text.bytes().last().is_some_and(plain);
    text.len() <= 63 && ends && text.bytes().all(|byte| plain(byte) || b"-_.".contains(&byte))
}

fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_name(text)
}

fn is_label_key(text: &str) -> bool {
    let is_domain = |prefix: &str| {
        let part =
            |part: &str| is_name(part) && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        prefix.len() <= 253 && prefix.split('.').all(part)
    };
    text.split_once('/').map_or_else(|| is_name(text), |(prefix, name)| is_domain(prefix) && is_name(name))
}

/// Taint that the original puts on nodes.
pub fn taint() -> GateTaint {
    GateTaint { key: TAINT.to_owned(), value: None, effect: Effect::NoSchedule }
}

/// The gate: every node, for ever, at once. `since`: unix seconds, when this process first read it.
///
/// As with the original a node must be Ready as well, and one that is not gets the taint at once, whatever number of them: there is
/// neither a pause (`failingFor: 0s`) nor a budget.
pub fn gate(namespace: &str, name: &str, since: UnixSeconds, requirements: Vec<Requirement>) -> Gate {
    let ready = ConditionRequirement { type_: "Ready".into(), status: ConditionStatus::True, default_: None, max_age: None };
    let mut all = vec![Requirement { name: "node-ready".into(), condition: Some(ready), ..Requirement::default() }];
    all.extend(requirements);
    let at_once = Retaint {
        failing_for: Some(Duration::from("0s")),
        budget: Some(RetaintBudget { max_nodes: Some(IntOrString::Int(i32::MAX)), per_minute: Some(u32::MAX) }),
    };
    Gate {
        name: format!("configmap/{namespace}/{name}"),
        uid: UID.to_owned(),
        generation: 0,
        created: since,
        edited: None,
        deleting: false,
        spec: NodeReadinessGateSpec {
            mode: Mode::Continuous,
            existing_nodes: Some(ExistingNodes::Gate),
            retaint: Some(at_once),
            ..NodeReadinessGateSpec::new(taint(), with_own_names(all))
        },
        completion_annotation: None,
    }
}
