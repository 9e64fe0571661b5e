//! Scenarios on machines with real kubelets: those that are about them, and those of virtual kubelets that must hold there, too.

use std::{process::ExitCode, time::Instant};

use anyhow::{Result, ensure};

use super::{
    soak::choose,
    verdict::{DEMO, Verdict, conclude, run_one, say},
};
use crate::{bed::machine, scenarios};

/// Of virtual kubelets.
const ALSO: [&str; 14] = [
    "the_first_example_of_the_readme_serves_through_a_rollout",
    "three_rollouts_in_a_row_lose_no_request",
    "images_change_in_place_under_load_without_new_pods",
    "an_operator_killed_ten_times_replaces_no_pod_twice",
    "sixty_hand_overs_of_health_checkers_lose_no_check",
    "a_terminating_replica_answers_503_and_a_cordon_changes_nothing",
    "a_missing_image_stays_within_budget_and_its_correction_completes",
    "pods_that_a_kubelet_refuses_are_not_made_without_end",
    "a_revision_that_crashes_after_two_seconds_reaches_one_node",
    "a_power_cut_after_the_first_attach_condemns_nothing",
    "machines_that_replace_failed_ones_get_the_former_revision",
    "a_joining_node_stays_tainted_until_its_replicas_serve",
    "admission_policies_taint_exactly_the_selected_nodes_at_creation",
    "pod_conditions_follow_nodes_services_objects_servers_and_load_balancers",
];
const PART: &str = "kubelets";

/// Runs all, or those that have `only` in their name. Where it cannot, it names each as not run: that is a failure, but `if_possible`.
pub fn kubelets(only: Option<&str>, if_possible: bool) -> Result<ExitCode> {
    let own = scenarios::ALL.iter().filter(|scenario| (scenario.options)().kubelets).map(|scenario| scenario.name);
    let chosen = choose(&own.chain(ALSO).chain([DEMO]).collect::<Vec<_>>(), only);
    ensure!(!chosen.is_empty(), "no scenario of this run has `{}` in its name", only.unwrap_or_default());
    if let Some(missing) = machine::missing() {
        for name in &chosen {
            println!("not run           {PART}: {name}");
        }
        println!("\n0 passed, 0 failed, {} not run: machines with real kubelets need {missing}", chosen.len());
        return Ok(if if_possible { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let started = Instant::now();
    let verdicts = chosen.into_iter().map(one).collect::<Result<Vec<_>>>()?;
    Ok(conclude(&verdicts, started.elapsed()))
}

fn one(name: &str) -> Result<Verdict> {
    let log = format!("{PART}-{name}");
    let verdict = run_one(&log, name, PART, &[(machine::ON_MACHINES, "1".to_owned())])?;
    say(&verdict, &log);
    Ok(verdict)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_that_of_a_scenario_on_virtual_kubelets() {
        for name in ALSO {
            assert!(scenarios::names().contains(&name), "{name}");
        }
    }
}
