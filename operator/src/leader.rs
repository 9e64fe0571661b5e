//! One replica acts; the others keep their view warm.

use crate::args::Run;
use k8s_controller::LeaderElection;
use kube::Client;
use std::{future::Future, time::Duration};
use tokio_util::sync::CancellationToken;

/// How acting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Asked to stop; the lease was released.
    Stopped,
    /// The lease went to another replica, or could not be renewed: nothing may be written any more.
    LeaseLost,
}

/// Runs `work` while this replica holds the lease, until `stop`.
pub async fn act_while_leading(client: Client, run: &Run, stop: CancellationToken, work: impl Future<Output = ()>) -> Outcome {
    if run.no_leader_election {
        tokio::select! {
            () = stop.cancelled() => {}
            () = work => {}
        }
        return Outcome::Stopped;
    }
    let duration = Duration::from_secs(run.lease_duration_seconds);
    let election = LeaderElection::new(client, &run.lease_namespace, &run.lease_name, &run.identity)
        .with_lease_duration(duration)
        .with_renew_deadline(duration * 2 / 3)
        .with_retry_period(Duration::from_millis(run.lease_retry_milliseconds));
    let outcome = tokio::select! {
        () = stop.cancelled() => Outcome::Stopped,
        ended = election.with_lease(work) => if ended.is_some() { Outcome::Stopped } else { Outcome::LeaseLost },
    };
    if outcome == Outcome::Stopped {
        election.release().await;
    }
    outcome
}
