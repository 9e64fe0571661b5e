//! What a new worker takes over from the worker of an agent that died; no I/O.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, PodStatus};

use crate::process::process_note::ProcessNote;
use crate::process::slot::Slot;
use crate::process::status::{State, Termination};

/// Exit code of a process that was killed.
const KILLED: i32 = 137;

fn termination(end: &ContainerStateTerminated, now: Timestamp) -> Termination {
    Termination {
        exit_code: end.exit_code,
        reason: end.reason.clone().unwrap_or_default(),
        message: end.message.clone(),
        started_at: end.started_at.as_ref().map(|time| time.0),
        finished_at: end.finished_at.as_ref().map_or(now, |time| time.0),
        container_id: end.container_id.clone(),
    }
}

/// Puts a container into the state that the pod's status shows, except that a run which was alive has
/// been killed meanwhile.
pub(super) fn restore(slot: &mut Slot, status: Option<&PodStatus>, note: Option<&ProcessNote>, now: Timestamp) {
    let statuses = status.into_iter().flat_map(|status| [&status.container_statuses, &status.init_container_statuses]);
    let shown: Option<&ContainerStatus> = statuses.flatten().flatten().find(|shown| shown.name == slot.record.name);
    let Some(restarts) = note.map(|note| note.restart_count).max(shown.map(|shown| shown.restart_count)) else { return };
    let Some(id) = shown.and_then(|shown| shown.container_id.clone()).or_else(|| note.map(|note| format!("process://{}", note.pid))) else {
        return;
    };
    (slot.record.restart_count, slot.next_count) = (restarts, restarts);
    slot.record.id = Some(id.clone());
    let last = shown.and_then(|shown| shown.last_state.as_ref()?.terminated.as_ref());
    slot.record.last = last.map(|end| termination(end, now));
    let state = shown.and_then(|shown| shown.state.as_ref());
    if state.is_some_and(|state| state.waiting.is_some()) {
        slot.follows = slot.record.last.as_ref().map(|end| end.finished_at);
        return;
    }
    // A run that the status does not know yet is newer than any end it shows.
    let known = shown.filter(|shown| shown.restart_count == restarts).and(state);
    let end = match known.and_then(|state| state.terminated.as_ref()) {
        Some(end) => termination(end, now),
        None => Termination {
            exit_code: KILLED,
            reason: "Error".into(),
            message: Some("ended because its node agent was restarted".into()),
            started_at: known.and_then(|state| state.running.as_ref()?.started_at.as_ref()).map(|time| time.0),
            finished_at: now,
            container_id: Some(id),
        },
    };
    slot.follows = Some(end.finished_at);
    slot.record.state = State::Terminated(end);
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Container, ContainerState, ContainerStateRunning};

    use super::*;
    use crate::process::status::Role;

    fn restored(state: ContainerState, restart_count: i32, note: Option<i32>) -> Slot {
        let shown = ContainerStatus {
            name: "c".into(),
            container_id: Some("process://u/c/0".into()),
            restart_count,
            state: Some(state),
            ..ContainerStatus::default()
        };
        let status = PodStatus { container_statuses: Some(vec![shown]), ..PodStatus::default() };
        let note = note.map(|restart_count| ProcessNote { pid: 1, start_ticks: 1, restart_count });
        let mut slot = Slot::new(Container { name: "c".into(), ..Container::default() }, Role::Main, false);
        restore(&mut slot, Some(&status), note.as_ref(), Timestamp::UNIX_EPOCH);
        slot
    }

    #[test]
    fn a_run_that_was_alive_counts_as_killed_and_is_followed_by_another() {
        let running = ContainerState { running: Some(ContainerStateRunning::default()), ..ContainerState::default() };
        let slot = restored(running, 3, Some(3));
        assert!(matches!(&slot.record.state, State::Terminated(end) if end.exit_code == KILLED));
        assert_eq!((slot.record.restart_count, slot.follows), (3, Some(Timestamp::UNIX_EPOCH)));
    }

    #[test]
    fn a_run_that_ended_by_itself_keeps_its_exit_code() {
        let end = ContainerStateTerminated { exit_code: 0, reason: Some("Completed".into()), ..ContainerStateTerminated::default() };
        let slot = restored(ContainerState { terminated: Some(end), ..ContainerState::default() }, 0, Some(0));
        assert!(matches!(&slot.record.state, State::Terminated(end) if end.exit_code == 0));
    }

    #[test]
    fn a_run_newer_than_the_status_counts() {
        let end = ContainerStateTerminated { exit_code: 0, ..ContainerStateTerminated::default() };
        let slot = restored(ContainerState { terminated: Some(end), ..ContainerState::default() }, 1, Some(2));
        assert!(matches!(&slot.record.state, State::Terminated(end) if end.exit_code == KILLED));
        assert_eq!(slot.record.restart_count, 2);
    }

    #[test]
    fn a_container_never_started_begins_afresh() {
        let mut slot = Slot::new(Container { name: "c".into(), ..Container::default() }, Role::Main, false);
        restore(&mut slot, Some(&PodStatus::default()), None, Timestamp::UNIX_EPOCH);
        assert_eq!((slot.record.restart_count, slot.follows), (0, None));
    }
}
