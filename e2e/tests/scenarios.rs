//! One test per scenario. Each runs `bed scenario <name>`: a bed of its own, in a process of its own.

use std::{
    collections::BTreeSet,
    io::Write as _,
    process::{Command, Stdio},
    sync::{PoisonError, RwLock},
    time::{SystemTime, UNIX_EPOCH},
};

/// Scenarios that measure times, load the machine fully or have hundreds of nodes have it to themselves: they would starve the
/// probes of others' pods. The others wait more than they work and share it, as many as there are threads.
static MACHINE: RwLock<()> = RwLock::new(());

/// Runs a scenario; the error is its last line.
fn run(name: &str) -> Result<(), String> {
    let output = Command::new(env!("CARGO_BIN_EXE_bed"))
        .args(["scenario", name])
        .stdin(Stdio::null())
        .output()
        .expect("the binary was built with this test");
    let printed = String::from_utf8_lossy(&output.stdout);
    let verdict = printed.lines().rev().find(|line| line.starts_with("passed in") || line.starts_with("FAILED after")).unwrap_or_default();
    // Past the capture of output: how long each took, and why it failed, is to be read while the others run.
    let _ = writeln!(std::io::stderr(), "{verdict}");
    println!("{printed}{}", String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(()) } else { Err(verdict.to_owned()) }
}

/// CI ends after 90 minutes, and says nothing of what it has found when it is not done by then: `.ci/run` sets the time from which no
/// further scenario begins, in Unix seconds, and `.ci/test` names those that did not run. Nobody else sets it.
fn is_too_late() -> bool {
    let until = std::env::var("SCENARIOS_BEGIN_UNTIL").ok().and_then(|seconds| seconds.parse().ok());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    until.is_some_and(|until: u64| now > until)
}

fn alone(name: &str) {
    let _machine = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
    let verdict = run(name);
    assert!(verdict.is_ok(), "scenario {name}: {verdict:?}");
}

/// Three control planes on two cores may starve each other beyond a deadline. Of a scenario that missed one among others, and of nothing
/// else, a run of its own decides; `.ci/test` names it at its end, because one that needs that is to be mended.
fn sharing(name: &str) {
    let among_others = {
        let _machine = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
        if is_too_late() {
            let _ = writeln!(std::io::stderr(), "NOT RUN: {name}");
            return;
        }
        run(name)
    };
    let Err(verdict) = among_others else { return };
    let late = ["not within", "was not over after"].iter().any(|words| verdict.contains(words)) && !verdict.contains("the auditor found");
    assert!(late, "scenario {name}: {verdict}");
    alone(name);
    let _ = writeln!(std::io::stderr(), "PASSED ONLY ALONE: {name}");
}

macro_rules! scenarios {
    (alone { $($alone:ident),+ $(,)? } sharing { $($sharing:ident),+ $(,)? }) => {
        // The modules are names to choose or to leave them out by; tests run in the order of their paths, one group after the other.
        mod scenario {
            mod alone {
                $(#[test] fn $alone() {
                    super::super::alone(stringify!($alone));
                })+
            }
            mod sharing {
                $(#[test] fn $sharing() {
                    super::super::sharing(stringify!($sharing));
                })+
            }
        }

        #[test]
        fn every_scenario_is_a_test() {
            let listed: BTreeSet<_> = e2e::scenarios::ALL.iter().map(|scenario| scenario.name).collect();
            assert_eq!(listed, BTreeSet::from([$(stringify!($alone),)+ $(stringify!($sharing)),+]));
            assert_eq!(listed.len(), e2e::scenarios::ALL.len());
        }
    };
}

scenarios! {
    alone {
        three_rollouts_in_a_row_lose_no_request,
        a_leader_that_ends_hands_over_at_once,
        a_fleet_of_which_every_tenth_node_refuses_pods_is_not_flooded,
        health_answers_follow_the_token_at_once_and_stay_right_without_an_api_server,
        sixty_hand_overs_of_health_checkers_lose_no_check,
        a_rollout_goes_on_by_itself_after_etcd_was_killed_and_its_history_compacted,
        a_leader_hands_over_within_a_second_and_is_replaced_within_its_lease,
        a_fleet_loses_no_deletion_and_no_lease_and_repairs_what_others_change,
        a_thousand_simulated_nodes_outlive_an_api_server_that_stands_still,
    }
    sharing {
        a_label_takes_nodes_out_of_a_clouds_load_balancer_and_no_request_is_lost,
        a_plain_deployment_serves_through_haproxy,
        zones_keep_their_budgets_or_come_one_by_one_and_what_must_stay_available_or_is_skipped_stays,
        a_canary_soaks_waits_for_promotion_and_windows_and_partitions_hold_nodes_back,
        a_budget_in_percent_is_rounded_down_and_a_canary_of_labelled_nodes_halts_when_containers_restart_too_often,
        a_canary_that_serves_no_more_after_it_was_attached_is_named_then_fails_and_the_former_revision_comes_back,
        a_revision_that_fails_is_rolled_back_by_itself_and_any_former_one_by_its_number,
        a_node_that_an_autoscaler_takes_is_detached_first_and_on_delete_updates_only_what_somebody_deleted,
        a_node_that_joins_under_load_stays_tainted_until_its_replicas_serve_and_workloads_land_only_then,
        nodes_join_leave_and_come_back_while_serving,
        nodes_join_leave_and_come_back_during_a_rollout,
        another_choice_of_nodes_takes_those_that_leave_off_within_the_budget_and_those_that_come_get_the_newest_revision,
        a_node_that_is_deleted_is_detached_before_its_pods_go_also_while_paused_and_nothing_of_ours_keeps_it,
        a_rollout_that_does_not_get_on_says_so_but_not_for_a_pause_and_a_grace_period_that_is_too_short_holds_nothing,
        a_window_that_closes_lets_the_node_under_way_finish_starts_no_other_stops_the_clocks_and_opens_again,
        former_revisions_go_beyond_the_limit_and_those_that_a_node_runs_or_a_person_pinned_stay,
        the_template_changes_half_way_to_a_third_version_and_back,
        degrade_mode_updates_within_its_budget_and_scale_works,
        a_missing_image_stops_within_the_budget_and_the_corrected_template_goes_through,
        an_operator_killed_ten_times_in_a_rollout_replaces_no_pod_twice,
        images_change_in_place_under_load_and_no_pod_or_replica_set_is_made,
        deleting_the_resource_under_load_detaches_first_and_leaves_nothing,
        what_a_resource_leaves_that_goes_without_an_operator_is_cleaned_up_by_a_command,
        no_pod_is_touched_on_a_node_whose_health_port_still_answers_200,
        a_key_that_two_resources_share_is_on_the_node_exactly_while_one_of_them_holds_it,
        a_detacher_that_is_silent_slow_stale_or_lies_is_handled_as_the_policy_says,
        a_rollout_goes_on_by_itself_after_the_api_server_stood_still_for_20_and_60_seconds,
        a_rollout_goes_on_by_itself_after_a_node_lost_its_agent_or_its_network,
        an_operator_killed_after_every_single_write_repeats_none_in_any_mode,
        an_operator_killed_before_every_write_makes_it_the_next_time,
        an_operator_killed_after_every_write_makes_and_removes_everything_once,
        an_operator_that_is_down_for_a_minute_in_a_rollout_makes_nothing_worse,
        every_request_of_the_operator_may_fail_once_in_every_way,
        writes_that_fail_twice_take_effect_once_in_every_mode,
        an_operator_whose_watches_hang_or_that_reaches_nothing_goes_on_by_itself,
        two_operators_that_act_at_once_keep_the_budget_and_finish,
        a_leader_that_stopped_before_a_write_does_no_harm_when_it_goes_on,
        an_operator_killed_after_every_write_takes_a_canary_through_zones_and_a_bad_one_back,
        two_operators_that_act_at_once_take_a_canary_through_zones_and_a_bad_one_back,
        a_daemon_set_migrates_as_the_guide_says,
        what_the_original_made_is_orphaned_and_migrates_as_the_guide_says,
        virtual_kubelet_outlives_conflicts_gaps_of_the_watch_and_a_stopped_api_server,
        an_update_in_place_that_meets_with_a_mishap_completes_or_fails_with_a_reason_and_goes_back_in_place,
        an_operator_killed_after_every_write_of_an_update_in_place_or_beside_another_makes_no_pod,
        the_pod_and_label_of_the_readiness_gate_demo_work_unchanged_and_pods_are_held_injected_and_reset_as_the_guide_says,
        conditions_of_a_pod_follow_its_node_services_objects_servers_and_the_load_balancer,
        no_taint_of_others_is_lost_while_three_writers_add_remove_and_reorder_taints_on_200_gated_nodes_for_a_minute,
        the_plugin_shows_and_steers_a_rollout,
        the_config_map_of_istio_cni_taint_works_unchanged_and_as_it_changes,
        a_new_node_waits_for_its_startup_pod_as_with_nodetaintshandler,
        a_failed_node_halts_the_rollout_is_tried_again_when_asked_and_its_slot_is_freed_by_a_person_alone,
        marks_keys_budget_mode_and_pause_change_half_way,
        drift_is_repaired_within_the_budget,
        a_template_that_the_api_rewrites_is_no_drift_and_taken_labels_come_back,
        a_kubelet_restart_replaces_no_more_nodes_than_the_budget,
        a_silent_detacher_halts_aborts_or_is_passed_over_as_told,
        pods_that_a_kubelet_refuses_are_not_made_without_end,
        a_bad_edit_is_named_and_the_last_good_state_keeps_running,
        two_updates_within_min_ready_seconds_never_take_more_nodes_than_the_budget,
        three_bad_updates_in_a_row_leave_all_nodes_but_the_budget_serving,
        a_node_answers_503_as_soon_as_one_of_its_replicas_terminates_and_a_cordon_alone_takes_nothing_out,
        a_node_that_is_not_ready_keeps_its_place_then_counts_or_is_ignored_as_told_and_the_rollout_says_so,
        after_a_failed_update_and_its_correction_no_mark_of_ours_is_left,
        a_leader_that_takes_over_with_an_old_list_makes_nothing_twice,
        every_bad_edit_is_explained_and_changes_nothing_that_runs,
        the_example_of_the_original_is_accepted_unchanged_and_runs_without_its_ports,
        an_object_of_somebody_else_is_never_adopted,
        owner_references_that_block_deletion_need_the_right_to_set_finalizers,
        a_health_port_that_somebody_else_has_is_a_condition_and_an_event,
        deployments_deleted_edited_scaled_or_turned_back_in_any_phase_do_not_stop_a_rollout,
        marks_removed_or_forged_by_hand_in_any_phase_do_not_stop_a_rollout,
        a_wiped_status_or_another_mode_key_or_budget_in_any_phase_does_not_stop_a_rollout,
        a_virtual_kubelet_killed_outright_adopts_its_pods,
        virtual_kubelet_keeps_what_the_original_promises,
        kubectl_speaks_to_a_virtual_node_as_to_any_other,
        clients_that_vanish_leave_no_task_descriptor_or_process_of_a_stuck_exec_or_follow,
        one_pass_asks_for_replicas_daemon_sets_and_csi_drivers_as_the_operator_does_that_stays,
        a_gate_holds_new_nodes_releases_them_in_one_write_and_leaves_nothing_of_its_own_and_everything_of_others,
        gates_that_share_a_taint_never_flap_it_and_gates_that_run_dry_or_could_never_open_write_nothing,
        simulated_faults_look_like_those_of_a_kubelet_and_a_seed_repeats_a_history,
        a_policy_taints_exactly_the_selected_nodes_in_the_answer_to_their_creation_and_goes_with_its_gate,
        the_webhook_taints_new_nodes_and_while_it_is_down_they_register_all_the_same_and_are_tainted_a_moment_later,
    }
}
