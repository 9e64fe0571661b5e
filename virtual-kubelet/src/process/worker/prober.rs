//! Repeats a container's probes and reports their verdicts.

use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use super::Report;
use crate::process::attempt::Target;
use crate::process::probe::{ProbeKind, ProbeRun, ProbeTiming};

/// What a program needs between its start and the earliest useful probe.
const FIRST_PROBE_AFTER: Duration = Duration::from_millis(200);

/// Starts the probes of a run of this age; they end when `ended` is cancelled. Where the startup probe has
/// succeeded already, it is not repeated.
pub(super) fn start(
    target: &Target,
    age: Duration,
    index: usize,
    attempt: u64,
    startup: &watch::Sender<bool>,
    ended: &CancellationToken,
    reports: &mpsc::UnboundedSender<Report>,
) {
    let container = &target.container;
    for (kind, probe) in [
        (ProbeKind::Startup, &container.startup_probe),
        (ProbeKind::Readiness, &container.readiness_probe),
        (ProbeKind::Liveness, &container.liveness_probe),
    ] {
        let Some(probe) = probe.clone() else { continue };
        if kind == ProbeKind::Startup && *startup.borrow() {
            continue;
        }
        let (target, startup, ended, reports) = (target.clone(), startup.subscribe(), ended.clone(), reports.clone());
        tokio::spawn(async move {
            let report = |success: bool, message: String| {
                let _ = reports.send(Report::Probed { index, attempt, kind, success, message });
            };
            tokio::select! {
                () = ended.cancelled() => {}
                () = repeat(&target, &probe, age, kind, startup, report) => {}
            }
        });
    }
}

async fn repeat(
    target: &Target,
    probe: &Probe,
    age: Duration,
    kind: ProbeKind,
    mut startup: watch::Receiver<bool>,
    report: impl Fn(bool, String),
) {
    let timing = ProbeTiming::of(probe);
    let earliest = Instant::now() + (timing.initial_delay + FIRST_PROBE_AFTER).saturating_sub(age);
    if kind != ProbeKind::Startup && startup.wait_for(|done| *done).await.is_err() {
        return;
    }
    let mut ticks = interval_at(earliest.max(Instant::now()), timing.period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut run = ProbeRun::default();
    loop {
        ticks.tick().await;
        let outcome = target.probe(probe, timing.timeout).await;
        if let Err(error) = &outcome {
            tracing::debug!(container = target.container.name, ?kind, error, "a probe failed");
        }
        if let Some(verdict) = run.observe(outcome.is_ok(), &timing) {
            report(verdict, outcome.err().unwrap_or_default());
            if kind == ProbeKind::Startup || (kind == ProbeKind::Liveness && !verdict) {
                return;
            }
        }
    }
}
