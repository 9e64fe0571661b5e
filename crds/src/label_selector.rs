//! Label selector with bounds, so that its validation rules stay cheap for the API server.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Label selector: an object must meet all entries. Empty: every object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelector {
    /// Labels that an object must have, with their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::schema::labels_schema")]
    pub match_labels: BTreeMap<String, String>,
    /// Further requirements of labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub match_expressions: Vec<LabelRequirement>,
}

/// Requirement of one label.
#[derive(kube::KubeSchema, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)")
    .message("operators In and NotIn need values; Exists and DoesNotExist must have none"))]
pub struct LabelRequirement {
    /// Key of the label.
    #[schemars(schema_with = "crate::schema::label_key_schema")]
    pub key: String,
    /// Operator of the comparison.
    pub operator: LabelOperator,
    /// Values to compare with, for In and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 63)))]
    pub values: Vec<String>,
}

/// Operator of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum LabelOperator {
    /// The object has the label with one of the values.
    In,
    /// The label has none of the values, or the object does not have the label.
    NotIn,
    /// The object has the label.
    Exists,
    /// The object does not have the label.
    DoesNotExist,
}

impl LabelSelector {
    /// The selector has no requirements, so it selects every object.
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }

    /// Keys of the labels that it asks for.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.match_labels.keys().chain(self.match_expressions.iter().map(|requirement| &requirement.key)).map(String::as_str)
    }

    /// Whether labels, asked one by one, are those of an object that is meant.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.match_labels.iter().all(|(key, value)| label(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| requirement.matches(label(&requirement.key)))
    }
}

impl LabelRequirement {
    fn matches(&self, label: Option<&str>) -> bool {
        let listed = |label: &str| self.values.iter().any(|value| value == label);
        match self.operator {
            LabelOperator::In => label.is_some_and(listed),
            LabelOperator::NotIn => !label.is_some_and(listed),
            LabelOperator::Exists => label.is_some(),
            LabelOperator::DoesNotExist => label.is_none(),
        }
    }
}

/// The selector as `labelSelector` of a list or watch.
impl std::fmt::Display for LabelSelector {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let labels = self.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
        let expressions = self.match_expressions.iter().map(|requirement| {
            let (key, values) = (&requirement.key, requirement.values.join(","));
            match requirement.operator {
                LabelOperator::In => format!("{key} in ({values})"),
                LabelOperator::NotIn => format!("{key} notin ({values})"),
                LabelOperator::Exists => key.clone(),
                LabelOperator::DoesNotExist => format!("!{key}"),
            }
        });
        formatter.write_str(&labels.chain(expressions).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(yaml: &str) -> LabelSelector {
        serde_saphyr::from_str(yaml).unwrap()
    }

    fn matches(selector: &LabelSelector, labels: &[(&str, &str)]) -> bool {
        selector.matches(|key| labels.iter().find(|(known, _)| *known == key).map(|(_, value)| *value))
    }

    #[test]
    fn a_selector_means_what_it_means_to_the_api_server() {
        let edge = selector("{matchLabels: {role: edge}, matchExpressions: [{key: zone, operator: NotIn, values: [a, b]}]}");
        assert!(matches(&edge, &[("role", "edge")]), "NotIn matches an object without the label");
        assert!(matches(&edge, &[("role", "edge"), ("zone", "c")]));
        assert!(!matches(&edge, &[("role", "edge"), ("zone", "a")]));
        assert!(!matches(&edge, &[("zone", "c")]));
        let keys = selector("{matchExpressions: [{key: gpu, operator: Exists}, {key: old, operator: DoesNotExist}]}");
        assert!(matches(&keys, &[("gpu", "")]));
        assert!(!matches(&keys, &[("gpu", ""), ("old", "")]));
        assert!(!matches(&keys, &[]));
        assert!(LabelSelector::default().is_empty() && matches(&LabelSelector::default(), &[]));
    }

    #[test]
    fn a_selector_is_written_as_lists_ask_for_it() {
        let all = selector(
            "{matchLabels: {a: b}, matchExpressions: [{key: c, operator: In, values: [d, e]}, {key: f, operator: NotIn, values: [g]}, \
             {key: h, operator: Exists}, {key: i, operator: DoesNotExist}]}",
        );
        assert_eq!(all.to_string(), "a=b,c in (d,e),f notin (g),h,!i");
        assert_eq!(LabelSelector::default().to_string(), "");
    }
}
