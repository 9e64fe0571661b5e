//! What the API server asks a webhook about an object, and the form of the answer.

use k8s_openapi::ByteString;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Review {
    #[serde(default)]
    request: Option<Request>,
}

/// The request of an `AdmissionReview`.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Request {
    uid: String,
    operation: String,
    kind: ReviewKind,
    /// Namespace of the object; empty for a kind without namespaces. The object itself need not name it yet.
    pub namespace: String,
    /// The object, as it would be stored.
    pub object: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewKind {
    group: String,
    kind: String,
}

impl Request {
    /// The request of the `AdmissionReview` in `body`, an empty one where it has none; nothing when the body is no review.
    pub fn read(body: &[u8]) -> Option<Self> {
        let review: Review = serde_json::from_slice(body).ok()?;
        Some(review.request.unwrap_or_default())
    }

    /// An object of this kind of the core group is created.
    pub fn creates(&self, kind: &str) -> bool {
        self.operation == "CREATE" && self.kind.kind == kind && self.kind.group.is_empty()
    }

    /// The `AdmissionReview` that allows the object, changed by these operations of a JSON Patch.
    pub fn allowed(&self, operations: Vec<Value>) -> Value {
        let mut response = json!({"uid": self.uid, "allowed": true});
        if !operations.is_empty() {
            response["patchType"] = "JSONPatch".into();
            response["patch"] = json!(ByteString(Value::from(operations).to_string().into_bytes()));
        }
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
    }
}
