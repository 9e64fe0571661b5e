//! What `docs/virtual-kubelet.md` says of tests and flags is so, and the library's own documentation shows all of it in use.

#[path = "documentation/surface.rs"]
mod surface;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use surface::{Use, examples, public_items, uses};

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in a workspace")
}

fn document() -> String {
    std::fs::read_to_string(repository().join("docs/virtual-kubelet.md")).expect("the document")
}

/// All Rust files below a directory.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("readable").path()) {
        if entry.is_dir() {
            files.extend(sources(&entry));
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            files.push(entry);
        }
    }
    files
}

/// What stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn every_test_that_the_tables_name_is_there() {
    let directories = ["virtual-kubelet/src", "virtual-kubelet/tests", "e2e/src/scenarios", "fuzz/tests"];
    let text: String = directories
        .iter()
        .flat_map(|directory| sources(&repository().join(directory)))
        .map(|file| std::fs::read_to_string(file).expect("readable"))
        .collect();
    let document = document();
    let (_, tables) = document.split_once("## Tests").expect("the section of tests");
    let mut seen = 0;
    for row in tables.lines().filter(|line| line.starts_with("| ")) {
        let ours = row.trim_matches('|').split_once('|').expect("two columns").1;
        for name in quoted(ours) {
            let is_file = Path::new(name).extension().is_some_and(|extension| extension == "rs");
            if is_file {
                let is_there = ["virtual-kubelet/src", "virtual-kubelet"].iter().any(|base| repository().join(base).join(name).is_file());
                assert!(is_there, "{name} in: {row}");
            } else if name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_') {
                assert!(text.contains(&format!("fn {name}")) || text.contains(&format!("\"{name}\"")), "{name} in: {row}");
                seen += 1;
            }
        }
    }
    assert!(seen > 80, "only {seen} names were found: the tables have another form");
}

#[test]
fn the_table_of_flags_is_what_the_binary_takes() {
    let help = std::process::Command::new(env!("CARGO_BIN_EXE_virtual-kubelet")).args(["run", "--help"]).output().expect("the binary runs");
    let help = String::from_utf8(help.stdout).expect("text");
    let word = |text: &str| text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).next().unwrap_or_default().to_owned();
    let flags = help.lines().filter_map(|line| line.trim_start().split_once("--").filter(|(before, _)| before.len() <= 4));
    let taken: BTreeSet<String> = flags.map(|(_, flag)| format!("--{}", word(flag))).filter(|flag| flag != "--help").collect();
    let variables: BTreeSet<String> =
        help.split("[env: ").skip(1).filter_map(|rest| rest.split_once('=')).map(|(name, _)| name.to_owned()).collect();
    let document = document();
    let (_, table) = document.split_once("| flag | variable |").expect("the table of flags");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with("| "));
    let cells: Vec<Vec<&str>> = rows.map(|row| row.split('|').map(str::trim).collect()).collect();
    let column = |index: usize| cells.iter().flat_map(|row| quoted(row[index])).map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(column(1), taken);
    assert_eq!(column(2), variables);
}

/// What the examples do is the compiler's to judge (`cargo test --doc`); this is that nothing is left out. Fields and variants
/// are not asked for.
#[test]
fn every_public_item_appears_in_an_example() {
    let items = public_items(&repository().join("virtual-kubelet/src"));
    assert!(items.len() > 150, "only {} items were found: the source has another form", items.len());
    let missing: Vec<&str> = items.iter().filter(|item| !item.is_shown()).map(|item| item.path.as_str()).collect();
    assert!(missing.is_empty(), "{} of {} items are in no example:\n{}", missing.len(), items.len(), missing.join("\n"));
}

/// A crate whose program speaks another version of the Kubernetes API could not use the library otherwise: neither the library itself nor
/// what it depends on may turn a version on.
#[test]
fn the_library_alone_chooses_no_version_of_the_kubernetes_api() {
    let versions = |more: &[&str]| {
        let mut cargo = std::process::Command::new(env!("CARGO"));
        cargo.args(["tree", "--offline", "--locked", "--package=virtual-kubelet", "--edges=normal,build"]);
        cargo.args(["--prefix=none", "--format={p} {f}"]).args(more);
        let output = cargo.current_dir(repository()).output().expect("cargo runs");
        assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
        let tree = String::from_utf8(output.stdout).expect("text");
        let line = tree.lines().find(|line| line.starts_with("k8s-openapi ")).expect("the library depends on k8s-openapi").to_owned();
        let features = line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).map(str::to_owned);
        features.filter(|feature| feature.starts_with("v1_")).collect::<Vec<_>>()
    };
    assert_eq!(versions(&["--no-default-features"]), [""; 0]);
    assert_eq!(versions(&[]), ["v1_36"], "the binary's");
}

#[test]
fn imports_comments_hidden_lines_and_ignored_examples_show_nothing() {
    let shown = "```\nuse a::{\n    Imported,\n};\nuse a::Imported;\n// Commented\n# let hidden = Hidden;\nSeen::new();\n```";
    let docs = format!("{shown}\nText\n```ignore\nIgnored\n```");
    let seen = |name: &str| examples(&docs).iter().any(|example| uses(example, name, &Use::Word));
    assert!(seen("Seen"));
    for name in ["Imported", "Commented", "Hidden", "Ignored", "Text", "See"] {
        assert!(!seen(name), "{name}");
    }
}

#[test]
fn methods_functions_and_associated_items_are_told_apart() {
    let of_queue = Use::Associated { of: "Queue".into() };
    assert!(uses("queue.add(1)", "add", &Use::Method) && !uses("add(1)", "add", &Use::Method));
    assert!(uses("add(1)", "add", &Use::Function) && !uses("queue.add(1)", "add", &Use::Function));
    assert!(uses("fn add(&self) {}", "add", &Use::Method) && !uses("fn add() {}", "add", &Use::Function));
    assert!(uses("Queue::new()", "new", &of_queue) && uses("Queue::<u8>::new()", "new", &of_queue));
    assert!(!uses("Stack::new()", "new", &of_queue) && !uses("MyQueue::new()", "new", &of_queue) && !uses("queue.new()", "new", &of_queue));
}
