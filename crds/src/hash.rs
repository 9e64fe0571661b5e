//! Hashes that become names and label values: stable across versions of the product, so none of them may ever change.

use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;

/// Revision of a pod template: the first 10 hexadecimal digits of the SHA-256 of its canonical JSON (keys sorted, no
/// white space), over what the API server stores and without anything that the operator adds.
pub fn revision(template: &Value) -> String {
    let mut canonical = String::new();
    write_canonical(template, &mut canonical);
    hex(canonical.as_bytes(), 10)
}

/// Label value for a node name, which may be longer than a label value: 16 hexadecimal digits of its SHA-256.
pub fn node_hash(node_name: &str) -> String {
    hex(node_name.as_bytes(), 16)
}

/// The first `digits` hexadecimal digits of the SHA-256 of `bytes`.
pub fn hex(bytes: &[u8], digits: usize) -> String {
    let mut text = String::with_capacity(digits + 1);
    for byte in Sha256::digest(bytes).into_iter().take(digits.div_ceil(2)) {
        let _ = write!(text, "{byte:02x}"); // writing to a String does not fail
    }
    text.truncate(digits);
    text
}

/// `serde_json` keeps keys sorted only as long as no crate of the graph turns on `preserve_order`: sort here. All of it goes into one
/// buffer: every plan hashes a template.
fn write_canonical(value: &Value, text: &mut String) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            text.push('{');
            for (index, (key, value)) in entries.into_iter().enumerate() {
                let comma = if index == 0 { "" } else { "," };
                let _ = write!(text, "{comma}{}:", Value::from(key.as_str()));
                write_canonical(value, text);
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                text.push_str(if index == 0 { "" } else { "," });
                write_canonical(item, text);
            }
            text.push(']');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            let _ = write!(text, "{value}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_revision_does_not_depend_on_the_order_of_keys() {
        assert_eq!(revision(&json!({"a": 1, "b": {"c": [1, 2], "d": null}})), revision(&json!({"b": {"d": null, "c": [1, 2]}, "a": 1})));
    }

    #[test]
    fn hashes_never_change_between_releases() {
        assert_eq!(revision(&json!({"spec": {"containers": [{"name": "a", "image": "b:1"}]}})), "45cf7efe84");
        let each_kind = json!({"z": [null, true, 1, -2.5, "\"\n", [], {}], "a": {"c": [[1], {"y": 2, "x": 3}], "b": ""}});
        assert_eq!(revision(&each_kind), "13c74b873c");
        assert_eq!(node_hash("node-1.example.com"), "052246cf9108813b");
    }
}
