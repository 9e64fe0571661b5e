//! Labels and annotations that the API server would not take, or that are the operator's own.

use super::SpecProblem;
use crds::{IngressDaemonSetSpec, holders::VALUE_CHARACTERS, ingress_daemon_set::RolloutStep, names};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Longest name within a key, and longest value, of a label.
const NAME: usize = 63;
/// Longest domain before the slash of a key.
const DOMAIN: usize = 253;

/// What is wrong with the labels and annotations of a spec.
pub(super) fn check(spec: &IngressDaemonSetSpec, template: &PodTemplateSpec) -> Vec<SpecProblem> {
    let metadata = template.metadata.as_ref();
    let nothing = BTreeMap::new();
    let labels = metadata.and_then(|metadata| metadata.labels.as_ref()).unwrap_or(&nothing);
    let annotations = metadata.and_then(|metadata| metadata.annotations.as_ref()).unwrap_or(&nothing);
    let selector = spec.selector.as_ref().map_or(&nothing, |selector| &selector.match_labels);
    let mut found = Vec::new();
    for (place, map, reason) in [
        ("nodeSelector", &spec.node_selector, "InvalidSpec"),
        ("selector.matchLabels", selector, "InvalidSpec"),
        ("template.metadata.labels", labels, "InvalidTemplate"),
    ] {
        found.extend(
            map.iter()
                .flat_map(|(key, value)| [bad_key(place, key), bad_value(place, key, value)])
                .flatten()
                .map(|message| SpecProblem { reason, message }),
        );
    }
    let place = "template.metadata.annotations";
    found
        .extend(annotations.keys().filter_map(|key| bad_key(place, key)).map(|message| SpecProblem { reason: "InvalidTemplate", message }));
    for (place, map) in [("template.metadata.labels", labels), (place, annotations), ("selector.matchLabels", selector)] {
        let on_deployments = place == "selector.matchLabels";
        let reserved = map.keys().filter(|key| is_ours(key) || on_deployments && *key == names::FOR_NODE_LABEL);
        let reserved = reserved.map(|key| format!("{place}: `{key}` is reserved for the operator: remove it"));
        found.extend(reserved.map(|message| SpecProblem { reason: "ReservedKey", message }));
    }
    found.extend(marks_by_what_it_chooses_by(spec));
    found.extend(marks_with_a_long_value(spec));
    found
}

/// Resources that were made before the definition had this bound.
fn marks_with_a_long_value(spec: &IngressDaemonSetSpec) -> Option<SpecProblem> {
    let mark = spec.update_strategy.as_ref()?.rolling_update.as_ref()?.node_mark()?;
    let message = || format!("annotateNodeToDetach.value has more than {VALUE_CHARACTERS} characters: shorten it");
    (mark.value.chars().count() > VALUE_CHARACTERS).then(|| SpecProblem { reason: "InvalidSpec", message: message() })
}

/// A label that takes a node out must not decide on what is done with the node: with the mark it would be another one. Only the template of
/// the spec is asked: a former one must not stand in the way of a rollback.
fn marks_by_what_it_chooses_by(spec: &IngressDaemonSetSpec) -> Option<SpecProblem> {
    let rolling = spec.update_strategy.as_ref()?.rolling_update.as_ref()?;
    let mark = rolling.node_mark()?;
    let key = mark.key.strip_prefix(names::LABEL_MARK)?;
    let template = PodTemplateSpec::deserialize(&spec.template).ok()?;
    let pod = template.spec.as_ref();
    let of_template = pod.and_then(|pod| pod.node_selector.as_ref()).is_some_and(|selector| selector.contains_key(key));
    let affinity = pod.and_then(|pod| pod.affinity.as_ref()?.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    let mut terms = required.into_iter().flat_map(|required| &required.node_selector_terms);
    let of_affinity = terms.any(|term| term.match_expressions.iter().flatten().any(|expression| expression.key == key));
    let of_step = |step: &RolloutStep| step.node_selector.as_ref().is_some_and(|selector| selector.contains_key(key));
    let field = match () {
        () if spec.node_selector.contains_key(key) => "nodeSelector",
        () if of_template => "template.spec.nodeSelector",
        () if of_affinity => "template.spec.affinity",
        () if rolling.topology.as_ref().is_some_and(|topology| topology.key == key) => "topology.key",
        () if rolling.steps.iter().any(of_step) => "steps",
        () => return None,
    };
    let message = format!(
        "labelNodeToDetach.key is `{key}`, which {field} asks for: choose another key, or choose nodes another way; the label would change what {field} says of the node"
    );
    Some(SpecProblem { reason: "InvalidSpec", message })
}

fn is_ours(key: &str) -> bool {
    key == names::NODE_LABEL
        || key == names::HEALTH_CHECKER_LABEL
        || key.strip_prefix(names::GROUP).is_some_and(|rest| rest.starts_with('/'))
}

fn bad_key(place: &str, key: &str) -> Option<String> {
    let valid = match key.split_once('/') {
        None => is_name(key),
        Some((domain, name)) => is_domain(domain) && is_name(name),
    };
    (!valid).then(|| {
        format!("{place}: `{}` is not a key such as app or example.com/app: use at most 63 letters, digits, '-', '_' and '.', after an optional domain and slash", shown(key))
    })
}

fn bad_value(place: &str, key: &str, value: &str) -> Option<String> {
    let valid = value.is_empty() || is_name(value);
    (!valid).then(|| {
        format!(
            "{place}: the value `{}` of `{}` is not a label value: use at most 63 letters, digits, '-', '_' and '.', and begin and end with a letter or digit",
            shown(value),
            shown(key)
        )
    })
}

/// Letters, digits, and in between `-`, `_` and `.`.
fn is_name(text: &str) -> bool {
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= NAME && ends(bytes.first()) && ends(bytes.last()) && bytes.iter().all(inner)
}

fn is_domain(text: &str) -> bool {
    let part = |part: &str| is_name(part) && part.bytes().all(|byte| byte == b'-' || byte.is_ascii_lowercase() || byte.is_ascii_digit());
    text.len() <= DOMAIN && text.split('.').all(part)
}

/// For a message: short, and without characters that could deceive a terminal.
fn shown(text: &str) -> String {
    let short: String = text.chars().take(NAME).flat_map(char::escape_debug).collect();
    if text.chars().count() > NAME { format!("{short}…") } else { short }
}
