//! The installed manifest equals the types.

use serde_json::Value;
use std::{env, fs, path::Path};

#[test]
fn the_manifests_are_what_the_types_say() {
    for (name, generated) in crds::manifest::generated().unwrap() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests").join(name);
        if env::var_os("GENERATE").is_some() {
            fs::write(&path, &generated).unwrap();
        }
        assert!(
            fs::read_to_string(&path).unwrap_or_default() == generated,
            "run `make generate`: {} is not what the types say",
            path.display()
        );
    }
}

/// `kubectl explain` shows what is written at a field, not what is written at its type.
#[test]
fn an_optional_field_has_its_own_description() {
    let files = crds::manifest::generated().unwrap();
    for (file, text) in [
        ("nodereadinessgates.yaml", "Grandfather: they count as released."),
        ("nodereadinessgates.yaml", "Default: Unknown."),
        ("podreadinessgates.yaml", "Effect of the taint. Default: any."),
    ] {
        let (_, manifest) = files.iter().find(|(name, _)| *name == file).unwrap();
        assert!(manifest.contains(text), "{file} has no `{text}`");
    }
}

/// A gate would remove them, or put them on again, against whoever manages them.
#[test]
fn no_gate_may_have_the_taint_of_a_departure() {
    let files = crds::manifest::generated().unwrap();
    let (_, manifest) = files.iter().find(|(name, _)| *name == "nodereadinessgates.yaml").unwrap();
    let lists: Vec<_> =
        manifest.split("![").skip(1).filter_map(|rest| rest.split_once("].exists(owned, self.startsWith(owned))")).collect();
    assert!(!lists.is_empty(), "no rule names them");
    for (list, _) in lists {
        let owned: Vec<_> = list.split(',').map(|one| one.trim().trim_matches('\'')).collect();
        let others = ["node-role.kubernetes.io/x", "node.cloudprovider.kubernetes.io/x", "karpenter.sh/x"];
        for key in crds::names::DEPARTURE_TAINTS.into_iter().chain(others).chain([crds::names::HOLDERS_ANNOTATION]) {
            assert!(owned.iter().any(|begins| key.starts_with(begins)), "{key} is in none of {owned:?}");
        }
    }
}

#[test]
fn the_manifest_fits_the_client_side_apply_annotation() {
    let json = serde_json::to_string(&crds::manifest::ingress_daemon_set()).unwrap();
    assert!(json.len() < 256 * 1024, "{} bytes", json.len());
}

/// Kubernetes 1.33 takes a text that may also be a number to be as long as a request, once for each entry of a list, and refuses rules
/// that would cost too much then.
#[test]
fn no_rule_reads_texts_of_unknown_length_in_a_list() {
    fn look(schema: &Value, place: &str, in_list: bool, found: &mut Vec<String>) {
        let is_unbounded = schema["x-kubernetes-int-or-string"] == true && schema.get("x-kubernetes-validations").is_some();
        found.extend((is_unbounded && in_list).then(|| place.to_owned()));
        for (key, child) in schema.as_object().into_iter().flatten() {
            look(child, &format!("{place}.{key}"), in_list || ["items", "additionalProperties"].contains(&key.as_str()), found);
        }
        for (at, child) in schema.as_array().into_iter().flatten().enumerate() {
            look(child, &format!("{place}[{at}]"), in_list, found);
        }
    }
    let mut found = Vec::new();
    for (name, manifest) in crds::manifest::generated().unwrap() {
        let definition: Value = serde_saphyr::from_str(&manifest).unwrap();
        let versions = definition["spec"]["versions"].as_array().unwrap();
        for version in versions {
            look(&version["schema"], name, false, &mut found);
        }
    }
    assert_eq!(found, [""; 0], "a pattern, a minimum and a maximum cost nothing");
}

#[test]
fn an_unobserved_resource_says_so_in_its_status() {
    for (name, manifest) in crds::manifest::generated().unwrap() {
        let definition: Value = serde_saphyr::from_str(&manifest).unwrap();
        for version in definition["spec"]["versions"].as_array().unwrap() {
            let status = &version["schema"]["openAPIV3Schema"]["properties"]["status"]["default"];
            assert_eq!(*status, serde_json::json!({ "observedGeneration": -1 }), "{name}");
        }
    }
}
