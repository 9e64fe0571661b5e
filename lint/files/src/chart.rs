//! `deploy/chart`, as far as that needs no Helm; `.ci/chart` checks the rest.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use crate::repository;
use anyhow::{Context, Result};
use serde_json::Value;

fn text(file: &str) -> Result<String> {
    let path = repository().join(file);
    fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}

fn yaml(file: &str) -> Result<Value> {
    serde_saphyr::from_str(&text(file)?).with_context(|| format!("reading {file}"))
}

/// The manifests of a folder, by name.
fn manifests(folder: &str) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(repository().join(folder)).with_context(|| format!("reading {folder}"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "yaml") {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let manifest = text(&format!("{folder}/{name}"))?;
            found.insert(name, manifest);
        }
    }
    Ok(found)
}

/// Names of values, as deep as the table goes: what is below is the user's.
fn names(at: &str, value: &Value, told: &BTreeSet<String>, found: &mut BTreeSet<String>) {
    match value.as_object() {
        Some(children) if !children.is_empty() && !told.contains(at) => {
            let dot = if at.is_empty() { "" } else { "." };
            for (name, child) in children {
                names(&format!("{at}{dot}{name}"), child, told, found);
            }
        }
        _ => {
            found.insert(at.to_owned());
        }
    }
}

#[test]
fn the_chart_installs_the_same_definitions_as_the_manifests() {
    let same = manifests("deploy/chart/files/crds").unwrap() == manifests("crds/manifests").unwrap();
    assert!(same, "run `make generate`: deploy/chart/files/crds is not what crds/manifests says");
}

#[test]
fn the_chart_has_the_same_alerts_as_the_prometheus_file() {
    let same = text("deploy/chart/files/alerts.rules.yaml").unwrap() == text("deploy/optional/alerts.rules.yaml").unwrap();
    assert!(same, "change deploy/chart/files/alerts.rules.yaml, then run `make manifests`");
}

#[test]
fn the_charts_table_names_exactly_its_values() {
    let readme = text("deploy/chart/README.md").unwrap();
    let told: BTreeSet<String> = readme.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned())).collect();
    let mut found = BTreeSet::new();
    names("", &yaml("deploy/chart/values.yaml").unwrap(), &told, &mut found);
    assert_eq!(told, found);
}

#[test]
fn the_chart_has_the_version_of_the_programs() {
    let chart = yaml("deploy/chart/Chart.yaml").unwrap();
    assert_eq!([chart["version"].as_str(), chart["appVersion"].as_str()], [Some(env!("CARGO_PKG_VERSION")); 2]);
}

#[test]
fn kustomize_installs_every_manifest_that_kubectl_applies() {
    for (folder, more) in [("crds/manifests", None), ("deploy", Some("../crds/manifests"))] {
        let files = manifests(folder).unwrap();
        let wanted: BTreeSet<&str> = files.keys().map(String::as_str).chain(more).collect();
        let kustomization = yaml(&format!("{folder}/Kustomization")).unwrap();
        let listed: BTreeSet<&str> = kustomization["resources"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert_eq!(listed, wanted, "{folder}");
    }
}
