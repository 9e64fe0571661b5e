//! The rollout engine at the size of a large cluster: one operator, simulated nodes of one process, the real control plane.
//!
//! Sizes come from variables `BED_BENCH_…`, figures go out. What a rollout does is tested in `scenarios/`.

pub(super) mod audit;
pub(super) mod cluster;
mod findings;
mod full;
mod large;
mod resource;
mod rollouts;
mod settings;

use std::{path::Path, time::Instant};

use anyhow::{Context, Result};

use self::{
    findings::{Findings, Say},
    settings::Settings,
};
use super::benchmark::{Benchmark, Body, Report, print, report};
use crate::host::{namespaces, network};

/// Rollouts of a thousand nodes, and an operator that looks after five thousand.
///
/// What is measured how:
/// - Health ports are left out: the nodes have no machines that could answer there, and an operator that cannot reach a port
///   holds nothing back for it. Graces and soak are what they are without a load balancer's timing, 10 s each.
/// - The time per node is measured in the same rollout: its first nodes are updated one at a time, and the mean from grant to
///   next grant is taken. It holds what grace, pods, soak and an idle control plane take, so what the ratio shows is how well
///   many nodes at once are kept going. Beside it is the least that grace, pods and soak add up to.
/// - Writes are counted in the API server's audit log: every create, update, patch and delete of the operator's user, refused
///   ones too, without events and without the lease that it leads by. They are of the part of the rollout with the whole budget.
/// - A node joins when a watch shows its Node, its Deployment is made when a watch shows that. Nodes join evenly, at a rate.
/// - A restarted operator has decided when its first grant is in the ledger, for a template that changed while none ran;
///   the time counts from the start of its process. It has its name in the lease again, as a container has that is restarted.
/// - The limits of the controller manager's and the scheduler's clients are lifted, as clusters of this size have it.
pub const SCALE: Benchmark = Benchmark { name: "scale", body: Body::Alone(|| Box::pin(measure())) };

async fn measure() -> Result<Report> {
    let begun = Instant::now();
    let say = |line: &str| println!("{:6.1}s {line}", begun.elapsed().as_secs_f32());
    let settings = Settings::read(|name| std::env::var(name).ok())?;
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    say(&format!("{cores} cores, which API server, etcd, controllers, nodes and operator share"));
    network::create().await.context("making the network")?;
    let state = Path::new(namespaces::STATE);
    let mut findings = Findings::default();
    let outcome = steps(&settings, state, &say, &mut findings).await;
    print("scale", &findings.figures);
    outcome?;
    let mut report = report(&findings.figures);
    report.json["details"] = serde_json::to_value(&findings.details)?;
    report.json["nodes"] = serde_json::json!([settings.rollout_nodes, settings.large_nodes]);
    report.json["seconds"] = begun.elapsed().as_secs().into();
    Ok(report)
}

async fn steps(settings: &Settings, state: &Path, say: Say<'_>, findings: &mut Findings) -> Result<()> {
    if settings.rollouts {
        rollouts::run(settings, state, say, findings).await.context("the rollouts")?;
    }
    if settings.large {
        large::run(settings, state, say, findings).await.context("the large fleet")?;
    }
    if settings.full {
        full::run(settings, state, say, findings).await.context("nodes of full size")?;
    }
    Ok(())
}
