//! Modules use lower layers only.

use crate::source::{Edge, ROOT, Source, example};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

#[test]
fn modules_use_lower_layers_only() {
    let layers: BTreeMap<String, Vec<String>> = serde_saphyr::from_str(include_str!("../layers.yaml")).unwrap();
    let manifest = std::fs::read_to_string(Path::new(ROOT).join("Cargo.toml")).unwrap();
    let members = manifest.lines().find_map(|line| line.strip_prefix("members = ")).unwrap();
    let members: BTreeSet<_> = members.split('"').skip(1).step_by(2).collect();
    let listed: BTreeSet<_> = layers.keys().map(String::as_str).collect();
    assert_eq!(listed, members, "lint/structure/layers.yaml lists the members of the workspace");
    let faults = layers.iter().flat_map(|(folder, layers)| faults(&Source::read(&Path::new(ROOT).join(folder)), layers));
    let faults: Vec<_> = faults.collect();
    assert!(
        faults.is_empty(),
        "{}\n\nMove what both modules need into the lower one, or into a module below both. If a whole module stands on the wrong \
         layer, move its name in lint/structure/layers.yaml.",
        faults.join("\n")
    );
}

/// What of a crate is not as its layers say.
fn faults(source: &Source, layers: &[String]) -> Vec<String> {
    let ranks = layers.iter().enumerate().flat_map(|(rank, layer)| layer.split_whitespace().map(move |module| (module, rank)));
    let ranks: Vec<_> = ranks.collect();
    let rank = |module: &str| ranks.iter().find(|(name, _)| *name == module).map(|(_, rank)| *rank);
    let root: BTreeSet<_> = source.modules.keys().filter(|id| id.len() == 1).map(|id| id[0].as_str()).collect();
    let listed = |module: &str| ranks.iter().filter(|(name, _)| *name == module).count();
    let miscounted = root.iter().filter(|module| listed(module) != 1);
    let mut faults: Vec<_> =
        miscounted.map(|module| format!("{}: layers.yaml lists {module} {} times", source.name, listed(module))).collect();
    let unknown = ranks.iter().filter(|(module, _)| !root.contains(module));
    faults.extend(unknown.map(|(module, _)| format!("{}: there is no module {module}", source.name)));
    let edges = source.edges();
    let upward = edges.iter().filter(|edge| edge.folder.is_empty() && rank(&edge.to) >= rank(&edge.from));
    faults.extend(upward.map(|edge| format!("{}, which is not on a lower layer", edge.place)));
    faults.extend(circles(&edges));
    faults
}

/// The first use of each two modules in one folder that lead from the second back to the first.
fn circles(edges: &[Edge]) -> Vec<String> {
    let mut used: BTreeMap<_, BTreeMap<&str, &Edge>> = BTreeMap::new();
    for edge in edges {
        used.entry((&edge.folder, edge.from.as_str())).or_default().entry(&edge.to).or_insert(edge);
    }
    let leads_back = |edge: &&&Edge| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![edge.to.as_str()]);
        while let Some(module) = open.pop() {
            if seen.insert(module) {
                open.extend(used.get(&(&edge.folder, module)).into_iter().flat_map(BTreeMap::keys));
            }
        }
        seen.contains(edge.from.as_str())
    };
    used.values().flat_map(BTreeMap::values).filter(leads_back).map(|edge| format!("{}, in a circle", edge.place)).collect()
}

#[test]
fn an_upward_use_is_found_however_it_is_written() {
    for (name, upward, path) in [
        ("nested", "use std::fmt;\nuse crate::{low::Low, high::{\n    Other, self as top}};", "crate::high::Other"),
        ("inline", "\nfn f(a: &[u8]) { g(|| super::high::g::<u8>(a)) }", "super::high::g"),
        ("type", "\nstruct A { b: Vec<Option<crate::high::B>> }", "crate::high::B"),
        ("attribute", "\n#[serde(default = \"crate::high::b\")] struct A;", "crate::high::b"),
        ("root", "\nuse crate::Reexported as A;", "crate::Reexported"),
        ("macro", "\nfn f() { vec![crate::high::B] }", "crate::high::B"),
    ] {
        let root = "mod low;\npub mod high;\npub use high::B as Reexported;";
        let source = example(name, &[("lib.rs", root), ("low.rs", upward), ("high.rs", "")]);
        let faults = faults(&source, &["low".to_owned(), "high".to_owned()]);
        assert!(faults[0].contains("low.rs:2 uses") || faults[0].contains("low.rs:3 uses"), "{faults:?}");
        assert!(faults[0].ends_with(&format!("uses {path}, which is not on a lower layer")), "{faults:?}");
    }
}

#[test]
fn a_circle_in_a_folder_is_found() {
    let inner = ("high/mod.rs", "mod a;\nmod b;\npub use a::A;");
    let files = [inner, ("high/a.rs", "use super::b::c::B;"), ("high/b.rs", "mod c;"), ("high/b/c.rs", "use crate::high::A;")];
    let found = faults(&example("circle", &[&[("lib.rs", "mod high;")], &files[..]].concat()), &["high".to_owned()]);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].ends_with("high/a.rs:1 uses super::b::c::B, in a circle"), "{found:?}");
    assert!(found[1].ends_with("high/b/c.rs:1 uses crate::high::A, in a circle"), "{found:?}");
}

#[test]
fn tests_and_parents_may_use_what_they_want() {
    let low = "#[cfg(test)]\nmod tests { use crate::high::A; }\n#[cfg(test)]\nmod more;\nmod inner { use super::super::low::B; }";
    let files = [("lib.rs", "mod low;\nmod high;\nuse low::B;"), ("low.rs", low), ("low/more.rs", "use crate::high::A;")];
    let main = ("main.rs", "mod args;\nuse example_crate::high::A;\nuse args::B;");
    let source = example("allowed", &[&files[..], &[("high.rs", "use crate::B;"), main, ("args.rs", "")]].concat());
    assert_eq!(faults(&source, &["low args".to_owned(), "high".to_owned(), "main".to_owned()]), [""; 0]);
}

#[test]
fn the_list_has_each_module_once() {
    let source = example("listed", &[("lib.rs", "mod low;\nmod high;"), ("low.rs", ""), ("high.rs", "")]);
    let found = faults(&source, &["low gone".to_owned(), "low".to_owned()]);
    assert_eq!(
        found,
        [
            "example_crate: layers.yaml lists high 0 times",
            "example_crate: layers.yaml lists low 2 times",
            "example_crate: there is no module gone"
        ]
    );
}
