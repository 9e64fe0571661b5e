//! The page that says which test shows what names tests that there are.

use std::{collections::BTreeSet, fs, path::Path};

fn page() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/node-readiness-tests.md")).unwrap()
}

/// Names of functions of the operator, which unit tests are.
fn known() -> BTreeSet<String> {
    let name = |line: &str| Some(line.trim_start().split_once("fn ")?.1.split_once('(')?.0.to_owned());
    crate::rust_files("operator").iter().flat_map(|text| text.lines().filter_map(name)).collect()
}

#[test]
fn every_test_that_the_page_names_is_there() {
    let (page, known) = (page(), known());
    let is_path = |text: &&str| {
        text.contains("::") && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_:".contains(&byte))
    };
    let named: Vec<_> = page.split('`').filter(is_path).collect();
    assert!(named.len() > 90, "{} are named", named.len());
    let last = |path: &str| path.rsplit("::").next().unwrap_or_default().to_owned();
    // Some of them name the module that holds the tests.
    let missing: Vec<_> = named.iter().filter(|path| last(path).len() > 12 && !known.contains(&last(path))).collect();
    assert!(missing.is_empty(), "{missing:#?}");
    // Those that one looks for in a file of this directory.
    let is_elsewhere = |path: &&&str| {
        let Some((file, test)) = path.strip_prefix("gates::").and_then(|path| path.split_once("::")) else { return false };
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/all/gates/{file}.rs"));
        !fs::read_to_string(file).is_ok_and(|text| text.contains(&format!("fn {test}(")))
    };
    let elsewhere: Vec<_> = named.iter().filter(is_elsewhere).collect();
    assert!(elsewhere.is_empty(), "in another file: {elsewhere:#?}");
}

#[test]
fn every_scenario_that_the_page_names_is_there() {
    let (page, known) = (page(), known());
    let scenarios = crate::scenario_names();
    let is_sentence =
        |text: &&str| text.matches('_').count() >= 4 && text.chars().all(|char| char.is_ascii_lowercase() || "_…".contains(char));
    let named: Vec<_> = page.split('`').filter(is_sentence).collect();
    assert!(named.len() > 5, "{named:?}");
    let is_there = |name: &str| match name.strip_suffix('…') {
        Some(beginning) => scenarios.iter().filter(|scenario| scenario.starts_with(beginning)).count() == 1,
        None => scenarios.contains(name) || known.contains(name),
    };
    let missing: Vec<_> = named.into_iter().filter(|name| !is_there(name)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn every_point_of_the_acceptance_list_has_a_row() {
    let page = page();
    let first = page.lines().filter_map(|line| line.strip_prefix("| T")?.split('|').next());
    let numbers: BTreeSet<u8> =
        first.flat_map(|cell| cell.split(',').map(|point| point.trim().trim_start_matches('T').parse().unwrap())).collect();
    assert!(numbers.into_iter().eq(1..=33));
}
