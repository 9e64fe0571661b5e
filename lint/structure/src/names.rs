//! A name has one definition.

use crate::source::{PRODUCT, ROOT, Source, example};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

#[test]
fn a_name_has_one_definition() {
    let listed: BTreeMap<String, BTreeMap<String, String>> = serde_saphyr::from_str(include_str!("../names.yaml")).unwrap();
    let listed = listed.into_values().flatten().map(|(name, _)| name).collect();
    let sources: Vec<_> = PRODUCT.iter().map(|folder| Source::read(&Path::new(ROOT).join(folder))).collect();
    let faults = faults(&sources, &listed);
    assert!(
        faults.is_empty(),
        "{}\n\nGive one of them another name. If all mean the same, list the name in lint/structure/names.yaml with the reason.",
        faults.join("\n")
    );
}

/// Names with two definitions that are not listed, and those that are listed and have one.
fn faults(sources: &[Source], listed: &BTreeSet<String>) -> Vec<String> {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (id, module) in sources.iter().flat_map(|source| &source.modules) {
        for (name, line) in &module.types {
            places.entry(name).or_default().push(module.place(*line));
        }
        if let Some(name) = id.last().filter(|name| *name != "main") {
            places.entry(name).or_default().push(module.place(1));
        }
    }
    places.retain(|_, places| places.len() > 1);
    let unlisted = places.iter().filter(|(name, _)| !listed.contains(**name));
    let mut faults: Vec<_> = unlisted.map(|(name, places)| format!("{name} is defined in {}", places.join(", "))).collect();
    let single = listed.iter().filter(|name| !places.contains_key(name.as_str()));
    faults.extend(single.map(|name| format!("{name} is listed in names.yaml and defined at most once")));
    faults
}

#[test]
fn a_second_definition_is_found() {
    let lib = "mod a;\nmod b;\npub struct A;\n#[cfg(test)]\nmod tests { struct B; }";
    let a = "type A<T> = Vec<T>;\nstruct B;\nimpl Iterator for B { type Item = u8; }\nimpl Iterator for C { type Item = u8; }";
    let source = example("names", &[("lib.rs", lib), ("a.rs", a), ("b/mod.rs", "mod a;\nenum C {}"), ("b/a.rs", "trait C {}")]);
    let found = faults(&[source], &BTreeSet::from(["B".to_owned(), "C".to_owned()]));
    let expected = [("A is defined in", "a.rs:1"), ("a is defined in", "a.rs:1"), ("B is listed", "at most once")];
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (found, (start, end)) in found.iter().zip(expected) {
        assert!(found.starts_with(start) && found.ends_with(end), "{found}");
    }
}
