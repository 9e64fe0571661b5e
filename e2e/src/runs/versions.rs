//! The same scenarios on each version of Kubernetes that its project supports, and on one before.

use std::{
    fmt::Write as _,
    fs,
    process::{Command, ExitCode},
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};

use super::verdict::{Verdict, conclude, run_one, say};
use crate::{
    bed::control_plane::{API_SERVER_FLAGS, BINARY},
    host::images,
};

/// Which `MutatingAdmissionPolicies` an API server has.
#[derive(Clone, Copy, PartialEq)]
enum Policies {
    None,
    /// Switched on by flags.
    Beta,
    Stable,
}

/// What switches [`Policies::Beta`] on.
const BETA: &str = "--feature-gates=MutatingAdmissionPolicy=true --runtime-config=admissionregistration.k8s.io/v1beta1=true";

/// Each with a file of its own in `e2e/control-plane/versions`, but for the one that the beds of all other runs have.
const VERSIONS: [(&str, Policies); 5] = [
    ("1.33.13", Policies::None),
    ("1.34.4", Policies::Beta),
    ("1.35.4", Policies::Beta),
    ("1.36.3", Policies::Stable),
    (DEFAULT, Policies::Stable),
];
/// The version in `e2e/control-plane/go.mod`.
const DEFAULT: &str = "1.37.2";

/// A column of the table, and the scenario that it is about.
struct Column {
    heading: &'static str,
    scenario: &'static str,
    needs: Needs,
}

#[derive(Clone, Copy, PartialEq)]
enum Needs {
    /// An API server as it comes.
    Nothing,
    /// Policies, switched on where they are a beta API.
    Policies,
    /// Policies that were switched on: where they are there anyway, another column has shown the same.
    PoliciesSwitchedOn,
}

impl Column {
    /// What the cell says where the scenario does not run.
    fn instead(&self, policies: Policies) -> Option<&'static str> {
        match (self.needs, policies) {
            (Needs::Policies | Needs::PoliciesSwitchedOn, Policies::None) => Some("by webhook"),
            (Needs::PoliciesSwitchedOn, Policies::Stable) => Some("same as *pods*"),
            _ => None,
        }
    }
}

const COLUMNS: [Column; 8] = [
    Column { heading: "rollouts", scenario: "three_rollouts_in_a_row_lose_no_request", needs: Needs::Nothing },
    Column {
        heading: "nodes (policy)",
        scenario: "admission_policies_taint_exactly_the_selected_nodes_at_creation",
        needs: Needs::Policies,
    },
    Column {
        heading: "nodes (webhook)",
        scenario: "the_webhook_taints_new_nodes_and_never_blocks_their_registration",
        needs: Needs::Nothing,
    },
    Column { heading: "pods", scenario: PODS, needs: Needs::Nothing },
    Column { heading: "pods (policy)", scenario: PODS, needs: Needs::PoliciesSwitchedOn },
    Column { heading: "in place", scenario: "images_change_in_place_under_load_without_new_pods", needs: Needs::Nothing },
    Column { heading: "plugin", scenario: "the_plugin_shows_and_steers_a_rollout", needs: Needs::Nothing },
    Column { heading: "bad input", scenario: "a_bad_edit_is_named_and_the_former_state_stays", needs: Needs::Nothing },
];

const PODS: &str = "the_readiness_gate_demo_works_unchanged_and_pods_are_held";

const HEAD: &str = "<!-- Written by `make versions`. Do not edit. -->
# Versions of Kubernetes

This operator supports the versions below: those that Kubernetes supports, its newest three or four minor ones, and one
before. The tests run the same scenarios on each. *Nodes* are new nodes that a gate taints, and *pods* are new pods that
get the conditions of a gate. The scenario of pods takes what the product chooses, a policy if the API server has them,
and then the webhook. *Run* is the commit that was tested, and the day: `+` if files differed from it.

";
const DOCUMENT: &str = "docs/kubernetes-versions.md";
/// Has the table in short.
const README: &str = "README.md";
const PASSED: &str = "passed";
const FAILED: &str = "**failed**";

/// Runs the scenarios on all versions, or on one, and writes their rows of the table; the rows of others stay.
pub fn versions(only: Option<&str>) -> Result<ExitCode> {
    let chosen: Vec<_> = VERSIONS.into_iter().filter(|(version, _)| only.is_none_or(|only| *version == only)).collect();
    ensure!(!chosen.is_empty(), "{} is none of the versions {}", only.unwrap_or_default(), VERSIONS.map(|(version, _)| version).join(", "));
    let started = Instant::now();
    let path = images::repository().join(DOCUMENT);
    let tested = format!("{}, {}", commit()?, chrono::Utc::now().format("%Y-%m-%d"));
    let former = fs::read_to_string(&path).unwrap_or_default();
    let (mut verdicts, mut rows) = (Vec::new(), Vec::new());
    for (version, policies) in chosen {
        let mut row = row_of(version);
        for column in &COLUMNS {
            let cell = if let Some(instead) = column.instead(policies) {
                instead
            } else {
                let verdict = one(version, policies, column)?;
                say(&verdict, &log(version, column));
                let word = if verdict.failure.is_some() { FAILED } else { PASSED };
                verdicts.push(verdict);
                word
            };
            let _ = write!(row, " {cell} |");
        }
        let _ = write!(row, " {tested} |");
        rows.push(row);
    }
    let document = document(&former, &rows);
    fs::write(&path, &document).with_context(|| format!("writing {}", path.display()))?;
    let readme = images::repository().join(README);
    let text = fs::read_to_string(&readme).with_context(|| format!("reading {}", readme.display()))?;
    fs::write(&readme, with_summary(&text, &summary(&document))?).with_context(|| format!("writing {}", readme.display()))?;
    Ok(conclude(&verdicts, started.elapsed()))
}

/// The commit whose programs are tested, and whether the tree differs from it; in the tables it always does.
fn commit() -> Result<String> {
    let git = |arguments: &[&str]| Command::new("git").args(arguments).current_dir(images::repository()).output().context("running git");
    let hash = git(&["rev-parse", "--short", "HEAD"])?;
    ensure!(hash.status.success(), "git rev-parse: {}", String::from_utf8_lossy(&hash.stderr));
    let [table, summary] = [DOCUMENT, README].map(|file| format!(":!{file}"));
    let differs = !git(&["status", "--porcelain", "--", ".", &table, &summary])?.stdout.is_empty();
    Ok(format!("{}{}", String::from_utf8_lossy(&hash.stdout).trim(), if differs { "+" } else { "" }))
}

/// How the row of a version begins.
fn row_of(version: &str) -> String {
    format!("| {version} |")
}

/// The document with these rows, and of other versions those of the former document.
fn document(former: &str, rows: &[String]) -> String {
    let row = |version: &str| {
        let begins = row_of(version);
        let new = rows.iter().map(String::as_str).find(|row| row.starts_with(&begins));
        // One of a table with other columns says nothing.
        let cells = |line: &str| line.matches('|').count() == COLUMNS.len() + 3;
        let old = || former.lines().find(|line| line.starts_with(&begins) && cells(line));
        new.or_else(old).map(|row| format!("{row}\n"))
    };
    let rows: String = VERSIONS.iter().filter_map(|(version, _)| row(version)).collect();
    let headings = COLUMNS.map(|column| column.heading).join(" | ");
    let scenarios = COLUMNS.map(|column| format!("{}: {}\n", column.heading, column.scenario)).concat();
    format!(
        "{HEAD}| version | {headings} | run |\n|{}\n{rows}\nPolicies are `MutatingAdmissionPolicies`. 1.34 and 1.35 have them as `v1beta1`, \
         if you switch them on. Only the\ncolumns *nodes (policy)* and *pods (policy)* have these flags of the API server there:\n\n```text\n{BETA}\n```\n\n\
         The scenarios, by column:\n\n```text\n{scenarios}```\n",
        "---|".repeat(COLUMNS.len() + 2),
    )
}

/// How the short table of README begins.
const SUMMARY: &str = "| Kubernetes |";

/// The table in short: of each version how many scenarios passed, and what the product taints new nodes by.
fn summary(document: &str) -> String {
    let mut lines =
        [SUMMARY.to_owned(), "|---|".to_owned(), "| scenarios that passed |".to_owned(), "| new nodes are tainted by |".to_owned()];
    for (version, policies) in VERSIONS {
        let row = document.lines().find(|line| line.starts_with(&row_of(version))).unwrap_or_default();
        let count = |word: &str| row.split('|').filter(|cell| cell.trim() == word).count();
        let passed = count(PASSED);
        let way = match policies {
            Policies::None => "webhook",
            Policies::Beta => "webhook, or policy (beta)",
            Policies::Stable => "policy",
        };
        let cells = [format!(" {version} |"), "---|".to_owned(), format!(" {passed} of {} |", passed + count(FAILED)), format!(" {way} |")];
        for (line, cell) in lines.iter_mut().zip(cells) {
            line.push_str(&cell);
        }
    }
    lines.join("\n")
}

/// The text with this table instead of the one that it has.
fn with_summary(text: &str, summary: &str) -> Result<String> {
    let (before, after) = text.split_once(SUMMARY).with_context(|| format!("{README} has no table that begins with `{SUMMARY}`"))?;
    let (_, after) = after.split_once("\n\n").with_context(|| format!("nothing follows the table of {README}"))?;
    Ok(format!("{before}{summary}\n\n{after}"))
}

fn log(version: &str, column: &Column) -> String {
    format!("{version}-{}", column.heading.replace(' ', "-").replace(['(', ')'], ""))
}

fn one(version: &str, policies: Policies, column: &Column) -> Result<Verdict> {
    let mut environment = Vec::new();
    if version != DEFAULT {
        environment.push((BINARY, format!("target/bed/control-plane-{version}")));
    }
    if policies == Policies::Beta && column.needs != Needs::Nothing {
        environment.push((API_SERVER_FLAGS, BETA.to_owned()));
    }
    run_one(&log(version, column), column.scenario, version, &environment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_one_version_leaves_other_rows_alone() {
        let row =
            |version: &str, word: &str| format!("{}{} abc, 2026-01-31 |", row_of(version), format!(" {word} |").repeat(COLUMNS.len()));
        let all: Vec<_> = VERSIONS.iter().rev().map(|(version, _)| row(version, "passed")).collect();
        let former = document("", &all);
        let again = document(&former, &[row("1.34.4", "**failed**")]);
        assert_eq!(again, former.replace(&row("1.34.4", "passed"), &row("1.34.4", "**failed**")));
        let found: Vec<_> = again.lines().filter(|line| line.starts_with("| 1.")).map(|line| line.split(' ').nth(1).unwrap()).collect();
        assert_eq!(found, VERSIONS.map(|(version, _)| version));
        assert_eq!(document("", &all[..1]).lines().filter(|line| line.starts_with("| 1.")).count(), 1);
    }

    #[test]
    fn readme_counts_what_passed_and_what_failed_of_each_version() {
        let row = |cells: &str| format!("{}{cells} abc, 2026-01-31 |", row_of("1.34.4"));
        let document = document("", &[row(" passed | **failed** | by webhook | passed |")]);
        let text = with_summary(&format!("before\n\n{SUMMARY} old |\n| old |\n\nafter\n"), &summary(&document)).unwrap();
        assert!(text.starts_with("before\n\n| Kubernetes | 1.33.13 | 1.34.4 |") && text.ends_with(" |\n\nafter\n"), "{text}");
        assert!(text.contains("| scenarios that passed | 0 of 0 | 2 of 3 |") && !text.contains("old"), "{text}");
        assert!(with_summary("no table", "").is_err());
    }

    #[test]
    fn the_table_in_readme_is_that_of_the_document() {
        let read = |file: &str| fs::read_to_string(images::repository().join(file)).unwrap();
        assert!(read(README).contains(&summary(&read(DOCUMENT))), "{}", summary(&read(DOCUMENT)));
    }

    #[test]
    fn every_column_names_a_scenario_and_every_version_a_file() {
        let names = crate::scenarios::names();
        for column in &COLUMNS {
            assert!(names.contains(&column.scenario), "{}", column.scenario);
        }
        let modules = images::repository().join("e2e/control-plane");
        for (version, _) in VERSIONS {
            let file = if version == DEFAULT { modules.join("go.mod") } else { modules.join(format!("versions/{version}.mod")) };
            let text = fs::read_to_string(&file).unwrap();
            assert!(text.contains(&format!("\tk8s.io/kubernetes v{version}\n")), "{}", file.display());
        }
    }
}
