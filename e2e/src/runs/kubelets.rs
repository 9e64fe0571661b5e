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
    "the_first_example_of_the_readme_serves_port_80_through_a_rollout",
    "three_rollouts_in_a_row_lose_no_request",
    "images_change_in_place_under_load_and_no_pod_or_replica_set_is_made",
    "an_operator_killed_ten_times_in_a_rollout_replaces_no_pod_twice",
    "sixty_hand_overs_of_health_checkers_lose_no_check",
    "a_node_answers_503_as_soon_as_one_of_its_replicas_terminates_and_a_cordon_alone_takes_nothing_out",
    "a_missing_image_stops_within_the_budget_and_the_corrected_template_goes_through",
    "pods_that_a_kubelet_refuses_are_not_made_without_end",
    "a_revision_that_crashes_two_seconds_after_each_start_reaches_one_node_and_is_rolled_back",
    "a_power_cut_just_after_the_first_node_got_a_sound_revision_holds_the_others_back_and_condemns_nothing",
    "a_machine_that_replaces_one_on_which_a_revision_failed_gets_the_former_one_and_no_other_node_gets_the_bad_one",
    "a_node_that_joins_under_load_stays_tainted_until_its_replicas_serve_and_workloads_land_only_then",
    "a_policy_taints_exactly_the_selected_nodes_in_the_answer_to_their_creation_and_goes_with_its_gate",
    "conditions_of_a_pod_follow_its_node_services_objects_servers_and_the_load_balancer",
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
