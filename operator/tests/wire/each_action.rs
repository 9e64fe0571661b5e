//! Every action has a test that carries it out.

use planner::Action;
use std::cell::RefCell;

thread_local! {
    /// Actions that this thread has carried out, a thread being a test.
    static CARRIED_OUT: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

/// Remembers that the action was carried out.
pub fn note(action: &Action) {
    CARRIED_OUT.with_borrow_mut(|all| all.push(name(action)));
}

/// Names the test of each action. The `match` has no other arm: an action that is not in the list does not compile.
macro_rules! tests_of {
    ($($action:ident: $($test:ident)::+,)*) => {
        fn name(action: &Action) -> &'static str {
            match action {
                $(Action::$action { .. } => stringify!($action),)*
            }
        }

        const TESTS: &[(&str, fn())] = &[$((stringify!($action), crate::$($test)::+),)*];
    };
}

tests_of! {
    WriteStatus: the_ledger_is_written_with_the_version_that_was_read_and_its_ids_are_reserved_afterwards,
    SetFinalizers: finalizers_are_replaced_with_the_version_that_was_read,
    CreateDeployment: an_object_of_somebody_else_is_never_adopted,
    PatchDeployment: a_patch_of_a_deployment_is_sent_as_decided_and_its_version_is_waited_for,
    RecordRevision: revisions::a_revision_is_recorded_and_waited_for,
    RenumberRevision: revisions::a_revision_gets_its_number_where_it_is_the_one_that_was_seen,
    DeleteDeployment: a_deployment_is_deleted_only_as_it_was_seen,
    PatchNode: a_member_label_goes_only_when_the_deployment_is_gone,
    Reclaim: a_deployment_of_ours_gets_its_labels_back,
    Apply: supporting_objects_are_applied_under_a_field_manager_of_their_own,
    Delete: supporting::a_supporting_object_is_deleted_where_its_kind_lives_and_only_that_one,
    DeletePod: pods::a_pod_is_deleted_only_as_it_was_seen,
    CreatePod: pods::a_pod_that_pulls_images_is_made_once_and_waited_for,
    PatchReplicaSet: pods::a_replica_set_is_patched_as_decided_and_its_version_is_waited_for,
    PatchPod: pods::a_pod_is_patched_as_decided_and_its_version_is_waited_for,
    PatchPodStatus: pods::a_gate_of_a_pod_is_set_in_its_status_by_the_key_of_the_condition,
}

#[test]
fn every_action_is_carried_out_by_the_test_that_is_named_for_it() {
    for (action, test) in TESTS {
        CARRIED_OUT.take();
        test();
        let carried_out = CARRIED_OUT.take();
        assert!(carried_out.contains(action), "the test of {action} carries out {carried_out:?}");
    }
}
