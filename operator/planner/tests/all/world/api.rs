//! Objects as an API server keeps them: JSON Patch, UIDs, resource versions, generations.

use serde_json::{Value, json};

/// Applies a JSON Patch, all or nothing; the error names the operation that failed.
pub fn patched(object: &Value, patch: &Value) -> Result<Value, String> {
    let mut after = object.clone();
    for operation in patch.as_array().expect("a patch is a list") {
        if operation["op"] == "test" {
            test(&after, operation)?;
        } else {
            let one: json_patch::Patch = serde_json::from_value(json!([operation])).expect("a JSON Patch operation");
            json_patch::patch(&mut after, &one).map_err(|error| format!("{operation}: {error}"))?;
        }
    }
    Ok(after)
}

/// The API server takes a missing member for null, which the `json-patch` crate does not; its parent must exist.
fn test(object: &Value, operation: &Value) -> Result<(), String> {
    let path = operation["path"].as_str().expect("a path");
    let (parent, key) = path.rsplit_once('/').expect("a path begins with a slash");
    let parent = object.pointer(parent).ok_or_else(|| format!("{path}: no parent"))?;
    let actual = parent.get(key.replace("~1", "/").replace("~0", "~")).unwrap_or(&Value::Null);
    if *actual == operation["value"] { Ok(()) } else { Err(format!("{path} is {actual}, not {}", operation["value"])) }
}

/// Stores `after` over `before` as a write to a Deployment does: spec and annotations raise the generation, labels do
/// not, and a write without a change keeps the version.
pub fn store_deployment(before: &Value, mut after: Value, version: &mut u64) -> Value {
    add_defaults(&mut after);
    if after["spec"] != before["spec"] || after["metadata"]["annotations"] != before["metadata"]["annotations"] {
        after["metadata"]["generation"] = (generation(before) + 1).into();
    }
    store(before, after, version)
}

/// A new version, when anything changed.
pub fn store(before: &Value, mut after: Value, version: &mut u64) -> Value {
    if after != *before {
        *version += 1;
        after["metadata"]["resourceVersion"] = version.to_string().into();
    }
    after
}

pub fn generation(object: &Value) -> i64 {
    object["metadata"]["generation"].as_i64().unwrap_or(0)
}

/// What the API server fills in; drift must not be seen in it.
pub fn add_defaults(deployment: &mut Value) {
    let default = |value: &mut Value, key: &str, fallback: Value| {
        if value[key].is_null() {
            value[key] = fallback;
        }
    };
    let spec = &mut deployment["spec"];
    default(spec, "replicas", 1.into());
    default(spec, "progressDeadlineSeconds", 600.into());
    let pod = &mut spec["template"]["spec"];
    default(pod, "restartPolicy", "Always".into());
    default(pod, "terminationGracePeriodSeconds", 30.into());
    default(pod, "securityContext", json!({}));
    for container in pod["containers"].as_array_mut().into_iter().flatten() {
        default(container, "imagePullPolicy", "IfNotPresent".into());
        // The canonical form of a quantity.
        if container["resources"]["requests"]["cpu"] == "1000m" {
            container["resources"]["requests"]["cpu"] = "1".into();
        }
    }
}

pub fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    if path.contains('~') {
        return object.pointer(path).and_then(Value::as_str).unwrap_or_default();
    }
    // `Value::pointer` copies each part of the path.
    let part = |value: &'a Value, key: &str| match value {
        Value::Array(list) => list.get(key.parse::<usize>().ok()?),
        value => value.get(key),
    };
    path.split('/').skip(1).try_fold(object, part).and_then(Value::as_str).unwrap_or_default()
}
