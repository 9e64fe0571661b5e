//! The file of `plan -f`, and what `kubectl apply` would make of it.

use anyhow::{Result, bail, ensure};
use crds::names;
use serde_json::{Map, Value};

/// Where `kubectl apply` keeps what was applied last.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The resource that a file describes; with `name` the one of that name.
pub fn read(text: &str, name: Option<&str>) -> Result<Value> {
    let documents: Vec<Value> = match serde_json::from_str(text) {
        Ok(json) => vec![json],
        Err(_) => serde_saphyr::from_multiple(text).map_err(|error| anyhow::anyhow!("the file is neither YAML nor JSON: {error}"))?,
    };
    let items = documents.into_iter().flat_map(|document| match document.get("items").and_then(Value::as_array) {
        Some(items) => items.clone(),
        None => vec![document],
    });
    let group = format!("{}/", names::GROUP);
    let is_ours = |object: &Value| {
        object["kind"] == "IngressDaemonSet" && object["apiVersion"].as_str().is_some_and(|version| version.starts_with(&group))
    };
    let name_of = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let mut found: Vec<Value> = items.filter(is_ours).collect();
    ensure!(!found.is_empty(), "the file has no IngressDaemonSet of {}/{}", names::GROUP, names::VERSION);
    if let Some(name) = name {
        let listed: Vec<_> = found.iter().map(name_of).collect();
        found.retain(|object| name_of(object) == name);
        ensure!(!found.is_empty(), "the file has no IngressDaemonSet {name}; it has {}", listed.join(", "));
    }
    if found.len() > 1 {
        let listed: Vec<_> = found.iter().map(name_of).collect();
        bail!("the file has several IngressDaemonSets: name one of {}", listed.join(", "));
    }
    let object = found.remove(0);
    ensure!(!name_of(&object).is_empty(), "the IngressDaemonSet in the file has no metadata.name");
    Ok(object)
}

/// The namespace that the resource of a file is for, where the file or the command line names one.
pub fn namespace<'a>(file: &'a Value, given: Option<&'a str>) -> Result<Option<&'a str>> {
    let named = file["metadata"]["namespace"].as_str();
    if let (Some(named), Some(given)) = (named, given) {
        ensure!(
            named == given,
            "the namespace from the provided object \"{named}\" does not match the namespace \"{given}\". You must pass '--namespace={named}' to perform this operation."
        );
    }
    Ok(named.or(given))
}

/// The merge patch that `kubectl apply` sends for a custom resource: what the file says, and nulls for what was applied last and
/// is not in the file any more. What others have set besides, such as `paused`, stays.
pub fn applied(stored: &Value, file: &Value) -> Value {
    let last = stored["metadata"]["annotations"][LAST_APPLIED].as_str().and_then(|text| serde_json::from_str(text).ok());
    let last: Value = last.unwrap_or(Value::Null);
    let mut patch = Map::new();
    patch.insert("spec".into(), three_way(&last["spec"], &file["spec"]));
    Value::Object(patch)
}

fn three_way(last: &Value, file: &Value) -> Value {
    let (Some(wanted), last) = (file.as_object(), last.as_object()) else { return file.clone() };
    let mut patch: Map<_, _> =
        last.into_iter().flatten().filter(|(key, _)| !wanted.contains_key(*key)).map(|(key, _)| (key.clone(), Value::Null)).collect();
    for (key, value) in wanted {
        let before = last.and_then(|last| last.get(key)).unwrap_or(&Value::Null);
        patch.insert(key.clone(), three_way(before, value));
    }
    Value::Object(patch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const FILE: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\napiVersion: ingressdaemonsets.mumoshu.github.io/v1alpha1\nkind: IngressDaemonSet\nmetadata: {name: edge}\nspec: {podsPerNode: 2}\n";

    #[test]
    fn the_resource_is_found_among_other_documents() {
        assert_eq!(read(FILE, None).unwrap()["spec"]["podsPerNode"], 2);
        assert_eq!(
            read(&json!({ "kind": "List", "items": [read(FILE, None).unwrap()] }).to_string(), Some("edge")).unwrap()["metadata"]["name"],
            "edge"
        );
    }

    #[test]
    fn a_file_without_it_or_with_several_says_so() {
        assert!(
            read("kind: ConfigMap", None)
                .unwrap_err()
                .to_string()
                .contains("no IngressDaemonSet of ingressdaemonsets.mumoshu.github.io/v1alpha1")
        );
        assert!(read(FILE, Some("dns")).unwrap_err().to_string().ends_with("it has edge"));
        let two = format!("{FILE}---\n{}", FILE.replace("edge", "dns"));
        assert!(read(&two, None).unwrap_err().to_string().ends_with("name one of edge, dns"));
        assert!(read("a: [", None).is_err());
    }

    #[test]
    fn a_namespace_that_contradicts_the_file_is_refused() {
        let (without, with) = (json!({"metadata": {"name": "edge"}}), json!({"metadata": {"name": "edge", "namespace": "a"}}));
        assert_eq!(namespace(&without, None).unwrap(), None);
        assert_eq!(namespace(&without, Some("b")).unwrap(), Some("b"));
        for given in [None, Some("a")] {
            assert_eq!(namespace(&with, given).unwrap(), Some("a"));
        }
        let refused = namespace(&with, Some("b")).map_err(|error| error.to_string());
        let said = "the namespace from the provided object \"a\" does not match the namespace \"b\". \
            You must pass '--namespace=a' to perform this operation.";
        assert_eq!(refused, Err(said.to_owned()));
    }

    #[test]
    fn fields_dropped_from_files_are_removed_and_foreign_ones_stay() {
        let last = json!({ "spec": { "minReadySeconds": 5, "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "a": 1 } } } });
        let stored = json!({
            "metadata": { "annotations": { LAST_APPLIED: last.to_string() } },
            "spec": { "minReadySeconds": 5, "paused": true },
        });
        let file = json!({ "spec": { "podsPerNode": 2, "updateStrategy": { "rollingUpdate": { "b": 2 } } } });
        assert_eq!(
            applied(&stored, &file),
            json!({ "spec": { "podsPerNode": 2, "minReadySeconds": null, "updateStrategy": { "type": null, "rollingUpdate": { "a": null, "b": 2 } } } })
        );
    }
}
