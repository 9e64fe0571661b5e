//! How much of the objects of resources is held, whoever makes or changes them.

use planner::facts::{SPEC_BYTES, SPEC_MAPPINGS};
use serde_json::Value;
use std::collections::BTreeMap;

/// How many times a resource's spec a part of one of its objects may be: the API server adds defaults to each container.
const WITH_DEFAULTS: usize = 4;
/// Labels, or annotations, that are held of an object of a resource, in bytes; each takes more than its text.
const TEXTS: usize = 2 * SPEC_BYTES;
const EACH_TEXT: usize = 64;
/// Bytes that a value takes beside its text, and a mapping beside its fields: it has room for eleven.
const EACH_VALUE: usize = 40;
const EACH_MAPPING: usize = 640;
/// Bytes of what stays of an object for which there is no room.
pub(super) const SMALL: usize = 4 << 10;

/// Fields of a spec that somebody can make large.
pub(super) const PARTS: [&str; 4] = ["template", "selector", "strategy", "updateStrategy"];

/// Length of a value as JSON, in bytes.
pub(super) fn json_size(value: &impl serde::Serialize) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.saturating_add(bytes.len());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // What cannot be written as JSON was not read from it either.
    serde_json::to_writer(&mut count, value).map_or(usize::MAX, |()| count.0)
}

/// Number of mappings in a value.
pub(super) fn mappings(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(mappings).sum(),
        Value::Object(fields) => 1 + fields.values().map(mappings).sum::<usize>(),
        _ => 0,
    }
}

/// A part of an object of a resource; nothing of one that is larger than any that the operator writes. Whoever made it so has made something
/// else of the object, and that is known of it.
pub(super) fn part(value: Value) -> Value {
    let fits = mappings(&value) <= WITH_DEFAULTS * SPEC_MAPPINGS && json_size(&value) <= WITH_DEFAULTS * SPEC_BYTES;
    if fits { value } else { Value::Null }
}

/// A spec without what somebody has made large of it. Which revision it is, and whose pods it takes, stays if that is small.
pub(super) fn without_large_parts(mut spec: Value) -> Value {
    let is_small = |value: &Value| value_bytes(value) <= SMALL;
    for field in PARTS {
        let Some(value) = spec.get_mut(field).filter(|value| !is_small(value)) else { continue };
        let labels = value.pointer_mut("/metadata/labels").map(Value::take).filter(is_small);
        *value = labels.map_or(Value::Null, |labels| serde_json::json!({ "metadata": { "labels": labels } }));
    }
    spec
}

/// Bytes that a value takes, more or less.
pub(super) fn value_bytes(value: &Value) -> usize {
    let within = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(value_bytes).sum(),
        Value::Object(fields) => EACH_MAPPING + fields.iter().map(|(key, value)| EACH_TEXT + key.len() + value_bytes(value)).sum::<usize>(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    EACH_VALUE + within
}

/// As many of these labels or annotations as take no more bytes than this, the operator's own first.
pub(super) fn ours_first(texts: impl IntoIterator<Item = (String, String)>, mut left: usize) -> BTreeMap<String, String> {
    let is_ours = |(key, _): &(String, String)| key.starts_with("ingressdaemonsets.mumoshu.") || key.starts_with("ingress-daemon");
    let (ours, others): (Vec<_>, Vec<_>) = texts.into_iter().partition(is_ours);
    let fits = |(key, value): &(String, String)| {
        let rest = left.checked_sub(text_bytes(key, value));
        left = rest.unwrap_or(left);
        rest.is_some()
    };
    ours.into_iter().chain(others).filter(fits).collect()
}

/// Bytes that a label or annotation takes.
pub(super) fn text_bytes(key: &str, value: &str) -> usize {
    EACH_TEXT + key.len() + value.len()
}

/// Labels or annotations of such an object: as many as take no more than the longest spec, the operator's own first.
pub fn texts(texts: Option<BTreeMap<String, String>>) -> BTreeMap<String, String> {
    let cost = |(key, value): (&String, &String)| text_bytes(key, value);
    let texts = texts.unwrap_or_default();
    if texts.iter().map(cost).sum::<usize>() <= TEXTS {
        return texts;
    }
    ours_first(texts, TEXTS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::names;
    use serde_json::json;

    #[test]
    fn a_part_larger_than_the_operators_largest_is_not_held() {
        let of = |length: usize, count: usize| json!({ "a": "x".repeat(length), "b": vec![json!({}); count] });
        // The largest template, to each of whose mappings the API server has added two.
        for fits in [of(SPEC_BYTES, 3 * SPEC_MAPPINGS), json!(null)] {
            assert_eq!(part(fits.clone()), fits);
        }
        for large in [of(WITH_DEFAULTS * SPEC_BYTES, 0), of(0, WITH_DEFAULTS * SPEC_MAPPINGS)] {
            assert_eq!(part(large), Value::Null);
        }
    }

    #[test]
    fn of_labels_without_end_the_operators_own_are_held_first() {
        let few = BTreeMap::from([("a".to_owned(), "x".repeat(SPEC_BYTES)), ("b".to_owned(), String::new())]);
        assert_eq!(texts(Some(few.clone())), few);
        let mut many: BTreeMap<_, _> = (0..10_000).map(|number| (format!("a{number}"), "x".to_owned())).collect();
        many.insert(names::TOKEN_LABEL.into(), "t".into());
        many.insert(names::NODE_LABEL.into(), "n".into());
        many.insert("z".into(), "x".repeat(TEXTS));
        let held = texts(Some(many));
        assert_eq!((held.get(names::TOKEN_LABEL), held.get(names::NODE_LABEL)), (Some(&"t".to_owned()), Some(&"n".to_owned())));
        assert!(!held.contains_key("z") && held.len() > 1000 && held.len() < 2000, "{}", held.len());
        assert!(texts(None).is_empty());
    }
}
