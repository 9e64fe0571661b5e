//! The `CustomResourceDefinition` as it is installed.

use crate::ingress_daemon_set::IngressDaemonSet;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::CustomResourceExt as _;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// The `CustomResourceDefinition` of `IngressDaemonSet`.
pub fn ingress_daemon_set() -> Value {
    let mut crd = serde_json::to_value(IngressDaemonSet::crd()).unwrap_or_default(); // plain data: always serialisable
    if let Some(versions) = crd.pointer_mut("/spec/versions").and_then(Value::as_array_mut) {
        for version in versions {
            if let Some(schema) = version.pointer_mut("/schema/openAPIV3Schema") {
                hide_rust_formats(schema);
                // The optional fields of Rust become `nullable`; the API server then keeps `null` as a value of its own.
                if let Some(spec) = schema.pointer_mut("/properties/spec/properties/template") {
                    strip_descriptions(spec);
                }
            }
        }
    }
    crd
}

/// Schema of the pod template: structural, with labels and annotations kept.
pub fn pod_template_schema(generator: &mut SchemaGenerator) -> Schema {
    // Its own generator with inlined subschemas: references would not be structural.
    let mut inline = generator.settings().clone();
    inline.inline_subschemas = true;
    let mut schema = inline.into_generator().into_root_schema_for::<PodTemplateSpec>().to_value();
    if let Some(object) = schema.as_object_mut() {
        object.remove("$schema");
        object.remove("title");
    }
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        let strings = json!({"type": "object", "additionalProperties": {"type": "string"}});
        properties.insert(
            "metadata".into(),
            json!({"type": "object", "properties": {"name": {"type": "string"}, "labels": strings, "annotations": strings}}),
        );
    }
    schema.try_into().unwrap_or_default()
}

/// A number of things, or a percentage of them.
pub fn count_or_percent_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "minimum": 0,
        "maximum": 10000,
        "maxLength": 4,
        "pattern": "^(100|[1-9]?[0-9])%$"
    })
}

/// An annotation key: an optional DNS prefix and a slash, then at most 63 characters.
pub fn qualified_name_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 317,
        "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
    })
}

/// With descriptions the whole pod template takes the CRD past 256 KiB, which client-side `kubectl apply` refuses.
fn strip_descriptions(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            // A *property* called description is an object; the keyword is a string.
            if map.get("description").is_some_and(Value::is_string) {
                map.remove("description");
            }
            map.values_mut().for_each(strip_descriptions);
        }
        Value::Array(items) => items.iter_mut().for_each(strip_descriptions),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// `schemars` names Rust's widths (`uint32`), which the API server does not know and warns about.
fn hide_rust_formats(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if map.get("format").and_then(Value::as_str).is_some_and(|format| format.starts_with("uint")) {
                map.remove("format");
            }
            map.values_mut().for_each(hide_rust_formats);
        }
        Value::Array(items) => items.iter_mut().for_each(hide_rust_formats),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
