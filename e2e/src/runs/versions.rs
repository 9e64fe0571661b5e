//! The same scenarios on each version of Kubernetes that its project supports, and on one before.

use std::{fmt::Write as _, fs, process::ExitCode, time::Instant};

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
    (DEFAULT, Policies::Stable),
    ("1.37.2", Policies::Stable),
];
/// The version in `e2e/control-plane/go.mod`.
const DEFAULT: &str = "1.36.3";

/// A column of the table, and the scenario that it is about.
struct Column {
    heading: &'static str,
    scenario: &'static str,
    /// Where there are none, what the product does instead.
    without_policies: Option<&'static str>,
}

const COLUMNS: [Column; 7] = [
    Column { heading: "rollouts under load", scenario: "three_rollouts_in_a_row_lose_no_request", without_policies: None },
    Column {
        heading: "new nodes tainted by policy",
        scenario: "a_policy_taints_exactly_the_selected_nodes_in_the_answer_to_their_creation_and_goes_with_its_gate",
        without_policies: Some("by webhook"),
    },
    Column {
        heading: "new nodes tainted by webhook",
        scenario: "the_webhook_taints_new_nodes_and_while_it_is_down_they_register_all_the_same_and_are_tainted_a_moment_later",
        without_policies: None,
    },
    Column {
        heading: "pods get readiness gates",
        scenario: "the_pod_and_label_of_the_readiness_gate_demo_work_unchanged_and_pods_are_held_injected_and_reset_as_the_guide_says",
        without_policies: Some("by their template"),
    },
    Column {
        heading: "updates in place",
        scenario: "images_change_in_place_under_load_and_no_pod_or_replica_set_is_made",
        without_policies: None,
    },
    Column { heading: "kubectl ids", scenario: "the_plugin_shows_and_steers_a_rollout", without_policies: None },
    Column { heading: "bad input", scenario: "a_bad_edit_is_named_and_the_last_good_state_keeps_running", without_policies: None },
];

const HEAD: &str = "<!-- Written by `make versions`. Do not edit. -->
# Versions of Kubernetes

Kubernetes supports its newest three or four minor versions. The tests run these scenarios on each of them, and on one before.

";

/// Runs all, or those of one version; only a run of all writes the table.
pub fn versions(only: Option<&str>) -> Result<ExitCode> {
    let chosen: Vec<_> = VERSIONS.into_iter().filter(|(version, _)| only.is_none_or(|only| *version == only)).collect();
    ensure!(!chosen.is_empty(), "{} is none of the versions {}", only.unwrap_or_default(), VERSIONS.map(|(version, _)| version).join(", "));
    let started = Instant::now();
    let (mut verdicts, mut rows) = (Vec::new(), String::new());
    for (version, policies) in chosen {
        let _ = write!(rows, "| {version} |");
        for column in &COLUMNS {
            let cell = match column.without_policies {
                Some(instead) if policies == Policies::None => instead,
                _ => {
                    let verdict = one(version, policies, column.scenario)?;
                    say(&verdict, &log(version, column.scenario));
                    let word = if verdict.failure.is_some() { "**failed**" } else { "passed" };
                    verdicts.push(verdict);
                    word
                }
            };
            let _ = write!(rows, " {cell} |");
        }
        rows.push('\n');
    }
    if only.is_none() {
        let headings = COLUMNS.map(|column| column.heading).join(" | ");
        let scenarios = COLUMNS.map(|column| format!("- {}: `{}`\n", column.heading, column.scenario)).concat();
        let text = format!(
            "{HEAD}| version | {headings} |\n|{}\n{rows}\n{scenarios}\n\
             Policies are `MutatingAdmissionPolicies`: 1.34 and 1.35 have them as `v1beta1`, if you switch them on as the tests do\n\
             (`{BETA}`).\n",
            "---|".repeat(COLUMNS.len() + 1),
        );
        let path = images::repository().join("docs/kubernetes-versions.md");
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(conclude(&verdicts, started.elapsed()))
}

fn log(version: &str, scenario: &str) -> String {
    format!("{version}-{scenario}")
}

fn one(version: &str, policies: Policies, scenario: &str) -> Result<Verdict> {
    let mut environment = Vec::new();
    if version != DEFAULT {
        environment.push((BINARY, format!("target/bed/control-plane-{version}")));
    }
    if policies == Policies::Beta {
        environment.push((API_SERVER_FLAGS, BETA.to_owned()));
    }
    run_one(&log(version, scenario), scenario, version, &["scenario", scenario], &environment)
}

#[cfg(test)]
mod tests {
    use super::*;

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
