//! Ten million requests through `HAProxy` over rollout after rollout, with the operator killed at random; and the same load
//! over one rollout of a plain `DaemonSet`.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use tokio::time::sleep;

use crate::{
    auditor::Expectations,
    bed::Bed,
    cluster::{
        operator_process::OperatorProcess,
        product::{self, deployment_mark, four_nodes, rolling_update},
    },
    demo::control,
    load::{LoadOptions, Traffic, outage::Outages},
};

use super::benchmark::{Benchmark, Body, Figure, Goal};

/// Loses nothing, whatever becomes of the operator.
pub const ROLLOUTS: Benchmark =
    Benchmark { name: "rollouts", body: Body::InBed { options: four_nodes, measure: |bed| Box::pin(rollouts(bed)) } };

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
/// Longest life of the operator in milliseconds; it is killed at a random moment within.
const LIFE: std::ops::Range<u64> = 200..4000;
/// One rollout, with an operator that dies all the time.
const ROLLOUT: Duration = Duration::from_mins(5);

/// Requests that are to be served; fewer with `BED_REQUESTS`, for a quick look.
fn requests() -> u64 {
    std::env::var("BED_REQUESTS").ok().and_then(|requests| requests.parse().ok()).unwrap_or(10_000_000)
}

async fn rollouts(bed: &mut Bed) -> Result<Vec<Figure>> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    let mut operator = OperatorProcess::instead_of_pods(bed).await?;
    let mut random = fastrand::Rng::with_seed(20_261_121);
    let outages = Outages::start(&bed.haproxy);
    let options = LoadOptions { at_most: Duration::from_hours(1), ..LoadOptions::full() };
    let traffic = Traffic::start(&bed.haproxy, &options).await?;
    let started = Instant::now();
    let (mut rollouts, mut kills) = (0_u32, 0_u32);
    while traffic.requests().await? < requests() && started.elapsed() < options.at_most {
        rollouts += 1;
        product::roll_to(bed, &(rollouts + 1).to_string()).await?;
        let mut complete = pin!(product::is_complete(bed, NODES.len(), ROLLOUT));
        loop {
            let life = Duration::from_millis(random.u64(LIFE));
            tokio::select! {
                done = &mut complete => break done?,
                () = sleep(life) => {
                    operator.kill().await?;
                    operator.run()?;
                    kills += 1;
                }
            }
        }
        bed.say(&format!("rollout {rollouts} complete, the operator killed {kills} times, {} requests", traffic.requests().await?));
    }
    let outcome = traffic.figures().await?;
    let seconds = started.elapsed().as_secs_f64();
    let worst = outages.stop().await?;
    let verdict = bed.recorder.judge(&Expectations::budget(1)).await?;
    for violation in &verdict.violations {
        println!("auditor: {violation}");
    }
    operator.kill().await?;
    let (plain, plain_requests) = plain_daemon_set(bed).await?;
    let of_a_million = |failed: u64, requests: u64| precise(failed) * 1e6 / precise(requests.max(1));
    let failed = of_a_million(outcome.failed(), outcome.clients.requests);
    Ok(vec![
        figure("requests", precise(outcome.clients.requests), "", Goal::AtLeast(1e7), None),
        figure("requests/s", precise(outcome.clients.requests) / seconds, "", Goal::AtLeast(1.0), None),
        figure("failed requests", precise(outcome.failed()), "", Goal::AtMost(0.0), Some(("plain DaemonSet", precise(plain)))),
        figure("failed of a million", failed, "", Goal::AtMost(0.0), Some(("plain DaemonSet", of_a_million(plain, plain_requests)))),
        figure("rollouts of four nodes", rollouts.into(), "", Goal::AtLeast(2.0), Some(("plain DaemonSet", 1.0))),
        figure("operator killed", kills.into(), "times", Goal::AtLeast(10.0), None),
        figure("nodes out at once", f64::from(u32::try_from(worst.most).unwrap_or(u32::MAX)), "", Goal::AtMost(1.0), None),
        figure("longest time a node was out", worst.longest.as_secs_f64(), "s", Goal::AtMost(60.0), None),
        figure(
            "violations found by the auditor",
            f64::from(u32::try_from(verdict.violations.len()).unwrap_or(u32::MAX)),
            "",
            Goal::AtMost(0.0),
            None,
        ),
    ])
}

/// Failed requests, and all, of one rollout.
async fn plain_daemon_set(bed: &Bed) -> Result<(u64, u64)> {
    bed.kubectl(&["delete", "ingressdaemonset", product::NAME, "--wait=false"]).await?;
    let mut operator = OperatorProcess::start(bed, "last").await?;
    bed.kubectl(&["wait", "--for=delete", &format!("ingressdaemonset/{}", product::NAME), "--timeout=120s"]).await?;
    operator.kill().await?;
    let column = control::run(bed, &NODES.map(str::to_owned)).await.context("the plain DaemonSet")?;
    Ok((column.outcome.failed(), column.outcome.clients.requests))
}

fn figure(what: &'static str, value: f64, unit: &'static str, goal: Goal, yardstick: Option<(&'static str, f64)>) -> Figure {
    Figure { what, value, unit, goal, yardstick }
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn precise(count: u64) -> f64 {
    count as f64
}
