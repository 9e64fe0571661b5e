//! The alert rules, and the guides, name metrics and label values that the operator has.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap()
}

/// All of the operator's code, files and folders of tests left out.
fn sources(directory: &Path, into: &mut String) {
    for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        let name = entry.file_name().unwrap().to_string_lossy().into_owned();
        if entry.is_dir() && name != "tests" {
            sources(&entry, into);
        } else if entry.extension().is_some_and(|extension| extension == "rs") && !name.ends_with("tests.rs") {
            into.push_str(&fs::read_to_string(entry).unwrap());
        }
    }
}

fn operator() -> String {
    let mut all = String::new();
    for directory in ["operator/src", "operator/planner/src"] {
        sources(&repository().join(directory), &mut all);
    }
    all
}

fn is_of_a_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

/// Words that begin with the prefix of the operator's metrics.
fn metrics(text: &str) -> BTreeSet<&str> {
    text.split(|character| !is_of_a_name(character)).filter(|word| word.starts_with("ids_")).collect()
}

/// A metric is registered under its name without the prefix and without what its type appends, and its help follows.
fn is_registered(metric: &str, source: &str) -> bool {
    let name = metric.strip_prefix("ids_").unwrap_or(metric);
    let appended = ["", "_total", "_bucket", "_sum", "_count"];
    appended.iter().filter_map(|end| name.strip_suffix(end)).any(|name| source.contains(&format!("\"{name}\",")))
}

fn expressions(rules: &str) -> Vec<&str> {
    rules.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).collect()
}

#[test]
fn alerts_and_guides_name_only_metrics_of_the_operator() {
    let source = operator();
    for path in ["deploy/optional/alerts.rules.yaml", "docs/operations.md", "docs/node-readiness.md", "docs/pod-readiness.md", "README.md"]
    {
        let text = text(path);
        let unknown: Vec<_> = metrics(&text).into_iter().filter(|metric| !is_registered(metric, &source)).collect();
        assert!(unknown.is_empty(), "{path} names {unknown:?}");
    }
    assert!(!is_registered("ids_gate_nodes_of_nobody", &source));
}

#[test]
fn alert_expressions_use_only_label_values_of_the_operator() {
    let (source, rules) = (operator(), text("deploy/optional/alerts.rules.yaml"));
    let expressions = expressions(&rules);
    assert_eq!(expressions.len(), rules.matches("- alert: ").count());
    for expression in expressions {
        assert!(!metrics(expression).is_empty(), "{expression}");
        assert_eq!(expression.matches('(').count(), expression.matches(')').count(), "{expression}");
        // Label values, or several in a pattern, are the only quoted words of an expression.
        for value in expression.split('"').skip(1).step_by(2).flat_map(|values| values.split('|')) {
            assert!(source.contains(&format!("\"{value}\"")), "no label has the value {value}: {expression}");
        }
    }
}

#[test]
fn an_alert_links_to_its_own_section_if_one_exists() {
    let (rules, guide) = (text("deploy/optional/alerts.rules.yaml"), text("docs/operations.md"));
    let sections: BTreeSet<_> = guide.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let mut own = 0;
    for rule in rules.split("- alert: ").skip(1) {
        let name = rule.lines().next().unwrap().trim();
        let section = format!("runbook_url: docs/operations.md#{}", name.to_lowercase());
        assert_eq!(sections.contains(name), rule.contains(&section), "{name}");
        own += usize::from(sections.contains(name));
    }
    assert!(own >= 8, "{own}");
}
