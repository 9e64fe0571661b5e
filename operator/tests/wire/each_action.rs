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
    WriteStatus: a_ledger_write_tests_its_version_and_then_reserves_ids,
    SetFinalizers: finalizers_are_replaced_with_the_version_that_was_read,
    CreateDeployment: an_object_of_somebody_else_is_never_adopted,
    PatchDeployment: a_deployment_is_patched_as_decided_and_waited_for,
    RecordRevision: revisions::a_revision_is_recorded_and_waited_for,
    RenumberRevision: revisions::a_revision_is_renumbered_only_as_it_was_seen,
    DeleteDeployment: a_deployment_is_deleted_only_as_it_was_seen,
    PatchNode: a_member_label_goes_only_when_the_deployment_is_gone,
    Reclaim: a_deployment_of_ours_gets_its_labels_back,
    Apply: supporting_objects_are_applied_under_their_own_field_manager,
    Delete: supporting::a_supporting_object_that_was_seen_is_deleted_by_uid,
    DeletePod: pods::a_pod_is_deleted_only_as_it_was_seen,
    CreatePod: pods::a_pull_pod_is_created_once_and_waited_for,
    PatchReplicaSet: pods::a_replica_set_is_patched_as_decided_and_waited_for,
    PatchPod: pods::a_pod_is_patched_as_decided_and_waited_for,
    PatchPodStatus: pods::a_pods_gate_is_patched_by_its_condition_type,
}

#[test]
fn every_action_is_carried_out_by_its_test() {
    for (action, test) in TESTS {
        CARRIED_OUT.take();
        test();
        let carried_out = CARRIED_OUT.take();
        assert!(carried_out.contains(action), "the test of {action} carries out {carried_out:?}");
    }
}
