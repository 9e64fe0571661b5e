//! One replica acts; the others keep their view warm.

use crate::args::Run;
use anyhow::{Context as _, ensure};
use crds::UnixSeconds;
use k8s_controller::LeaderElection;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use std::{future::Future, time::Duration};
use tokio_util::sync::CancellationToken;

/// How acting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeadershipEnd {
    /// Asked to stop; the lease was released.
    Stopped,
    /// The lease went to another replica, or could not be renewed: nothing may be written any more.
    LeaseLost,
}

/// How long the lease is waited for and renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimes {
    /// How long another replica must see the lease unrenewed before it takes it.
    pub duration: Duration,
    /// How long a replica that cannot renew goes on: two thirds of `duration`, as client-go's defaults.
    pub renew_deadline: Duration,
    /// Between two looks at the lease of another replica.
    pub retry: Duration,
    /// Between two renewals: a quarter of `renew_deadline`, 2 s at most as client-go's default, and not more often than others look.
    pub renewal: Duration,
}

/// Renewals that are seldom enough to be no load (client-go's `RetryPeriod`).
const RENEWAL: Duration = Duration::from_secs(2);

impl LeaseTimes {
    /// Times with which another replica leads at most the time asked for after the last sign of life.
    ///
    /// It sees the last renewal, and that nothing followed it, only when it looks: up to one and a half retry periods late
    /// each (that is the jitter of [`LeaderElection`]). So the lease itself is that much shorter.
    ///
    /// # Errors
    /// If the looks leave less than half of the time for the lease.
    pub fn of(run: &Run) -> anyhow::Result<Self> {
        let (asked, retry) = (Duration::from_secs(run.lease_duration_seconds), Duration::from_millis(run.lease_retry_milliseconds));
        let looks = 3 * retry;
        ensure!(
            2 * looks <= asked,
            "--lease-duration-seconds={} is too short for --lease-retry-milliseconds={}: it must be at least six times as long",
            run.lease_duration_seconds,
            run.lease_retry_milliseconds
        );
        let duration = asked.saturating_sub(looks);
        let renew_deadline = duration * 2 / 3;
        Ok(Self { duration, renew_deadline, retry, renewal: RENEWAL.min(renew_deadline / 4).max(retry) })
    }
}

/// Runs `work` while this replica holds the lease, until `stop`.
pub async fn act_while_leading(
    client: Client,
    run: &Run,
    times: LeaseTimes,
    stop: CancellationToken,
    work: impl Future<Output = ()>,
) -> LeadershipEnd {
    if run.no_leader_election {
        tokio::select! {
            () = stop.cancelled() => {}
            () = work => {}
        }
        return LeadershipEnd::Stopped;
    }
    let election = LeaderElection::new(client, &run.lease_namespace, &run.lease_name, &run.identity)
        .with_lease_duration(times.duration)
        .with_renew_deadline(times.renew_deadline)
        .with_retry_period(times.renewal);
    let lead = async {
        take(election.clone().with_retry_period(times.retry)).await;
        election.with_lease(work).await
    };
    let outcome = tokio::select! {
        () = stop.cancelled() => LeadershipEnd::Stopped,
        ended = lead => if ended.is_some() { LeadershipEnd::Stopped } else { LeadershipEnd::LeaseLost },
    };
    if outcome == LeadershipEnd::Stopped {
        // A renewal that was under way when the order came may arrive between the look at the lease and its release, which is
        // refused then; the second look finds that.
        election.release().await;
        election.release().await;
    }
    outcome
}

/// Waits until this replica holds the lease, and leaves it with it: whoever waits looks more often than the holder renews.
async fn take(election: LeaderElection) {
    let taken = CancellationToken::new();
    let until_lost = election.with_lease(async {
        taken.cancel();
        std::future::pending::<()>().await;
    });
    tokio::select! {
        _ = until_lost => {}
        () = taken.cancelled() => {}
    }
}

/// The replica that holds the lease, and has renewed it in time.
pub async fn holder(client: &Client, namespace: &str, name: &str) -> anyhow::Result<Option<String>> {
    let api: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let lease = api.get_opt(name).await.context("reading the operator's lease")?;
    Ok(lease.and_then(|lease| held_by(lease, chrono::Utc::now().timestamp())))
}

fn held_by(lease: Lease, now: UnixSeconds) -> Option<String> {
    let spec = lease.spec?;
    let until = spec.renew_time?.0.as_second().saturating_add(i64::from(spec.lease_duration_seconds?));
    spec.holder_identity.filter(|holder| !holder.is_empty() && until >= now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Arguments, Command};
    use clap::Parser as _;
    use serde_json::{Value, json};
    use std::sync::{Arc, Mutex};

    fn run(arguments: &[&str]) -> Run {
        let line = ["operator", "run"].iter().chain(arguments);
        match Arguments::parse_from(line).command {
            Command::Run(run) => *run,
            Command::CleanupNodes(_) | Command::Remaining(_) | Command::Crd => unreachable!("not asked for"),
        }
    }

    fn times(arguments: &[&str]) -> anyhow::Result<LeaseTimes> {
        LeaseTimes::of(&run(arguments))
    }

    /// An API server that has one Lease, which nobody holds at first.
    fn serve(lease: &Arc<Mutex<Value>>) -> Client {
        let lease = Arc::clone(lease);
        crate::tests::api_server(move |_, _, written| {
            let mut lease = lease.lock().unwrap();
            if !written.is_null() {
                *lease = written;
            }
            Some((200, lease.clone()))
        })
    }

    fn unheld() -> Arc<Mutex<Value>> {
        Arc::new(Mutex::new(json!({"metadata": {"name": "operator", "resourceVersion": "1"}, "spec": {}})))
    }

    fn holder(lease: &Mutex<Value>) -> Option<String> {
        lease.lock().unwrap()["spec"]["holderIdentity"].as_str().map(str::to_owned)
    }

    #[test]
    fn lease_and_retries_together_last_as_long_as_configured() -> anyhow::Result<()> {
        for (arguments, milliseconds, deadline, renewal) in [
            (&[][..], 13_500, 9_000, 2_000),
            (&["--lease-duration-seconds=6"], 4_500, 3_000, 750),
            (&["--lease-duration-seconds=3"], 1_500, 1_000, 500),
            (&["--lease-duration-seconds=6", "--lease-retry-milliseconds=900"], 3_300, 2_200, 900),
        ] {
            let times = times(arguments)?;
            assert_eq!(times.renewal, Duration::from_millis(renewal), "{arguments:?}");
            assert_eq!(times.duration, Duration::from_millis(milliseconds), "{arguments:?}");
            assert_eq!(times.renew_deadline, Duration::from_millis(deadline), "{arguments:?}");
            assert!(times.renewal < times.renew_deadline, "{arguments:?}");
        }
        Ok(())
    }

    #[test]
    fn a_lease_shorter_than_six_retries_is_refused() {
        let error = times(&["--lease-duration-seconds=3", "--lease-retry-milliseconds=900"]).expect_err("too short").to_string();
        assert!(error.contains("--lease-duration-seconds=3") && error.contains("--lease-retry-milliseconds=900"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_asked_to_stop_releases_its_lease() -> anyhow::Result<()> {
        let (lease, run, stop) = (unheld(), run(&["--identity=a"]), CancellationToken::new());
        let work = async {
            assert_eq!(holder(&lease).as_deref(), Some("a"));
            stop.cancel();
            std::future::pending::<()>().await;
        };
        assert_eq!(act_while_leading(serve(&lease), &run, LeaseTimes::of(&run)?, stop.clone(), work).await, LeadershipEnd::Stopped);
        assert_eq!(holder(&lease), None);
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_stops_acting_when_another_takes_its_lease() -> anyhow::Result<()> {
        let (lease, run) = (unheld(), run(&["--identity=a"]));
        let work = async {
            lease.lock().unwrap()["spec"]["holderIdentity"] = "b".into();
            std::future::pending::<()>().await;
        };
        let outcome = act_while_leading(serve(&lease), &run, LeaseTimes::of(&run)?, CancellationToken::new(), work).await;
        assert_eq!(outcome, LeadershipEnd::LeaseLost);
        assert_eq!(holder(&lease).as_deref(), Some("b"));
        Ok(())
    }

    fn lease(holder: &str, renewed: &str) -> Lease {
        let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 13, "renewTime": renewed});
        serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap()
    }

    #[test]
    fn a_lease_is_held_until_it_expires_or_is_released() {
        let renewed = "2026-01-01T00:00:00.000000Z";
        let at = 1_767_225_600;
        assert_eq!(held_by(lease("operator-1", renewed), at + 13), Some("operator-1".into()));
        assert_eq!(held_by(lease("operator-1", renewed), at + 14), None);
        assert_eq!(held_by(lease("", renewed), at), None);
        assert_eq!(held_by(Lease::default(), at), None);
    }
}
