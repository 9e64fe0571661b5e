//! JSON Patches: each first tests what the decision was based on.

use serde_json::{Value, json};

/// A JSON Patch under construction; operations are applied in order, all or none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JsonPatch(Vec<Value>);

impl JsonPatch {
    /// A patch that fails when the object is another one of the same name.
    pub fn of(uid: &str) -> Self {
        Self::default().test("/metadata/uid", uid)
    }

    /// Fails the patch unless the value is this. A missing member of an existing object equals null.
    #[must_use]
    pub fn test(self, path: &str, value: impl Into<Value>) -> Self {
        self.push(json!({"op": "test", "path": path, "value": value.into()}))
    }

    /// Adds or replaces a member.
    #[must_use]
    pub fn add(self, path: &str, value: impl Into<Value>) -> Self {
        self.push(json!({"op": "add", "path": path, "value": value.into()}))
    }

    /// Removes a member, which must exist.
    #[must_use]
    pub fn remove(self, path: &str) -> Self {
        self.push(json!({"op": "remove", "path": path}))
    }

    /// Changes nothing and tests nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// These operations, and then those of `other`.
    #[must_use]
    pub fn then(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    fn push(mut self, operation: Value) -> Self {
        self.0.push(operation);
        self
    }

    /// The JSON Patch as an array of operations.
    pub fn into_value(self) -> Value {
        Value::Array(self.0)
    }
}

/// JSON pointer to a label of an object.
pub fn label(key: &str) -> String {
    format!("/metadata/labels/{}", escape(key))
}

/// JSON pointer to an annotation of an object.
pub fn annotation(key: &str) -> String {
    format!("/metadata/annotations/{}", escape(key))
}

/// Path of what marks a Node: an annotation, or a label.
pub fn mark(key: &str) -> String {
    key.strip_prefix(crds::names::LABEL_MARK).map_or_else(|| annotation(key), label)
}

/// Escapes a key for a JSON pointer (RFC 6901, section 3).
fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}
