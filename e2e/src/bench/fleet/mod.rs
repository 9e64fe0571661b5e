//! A fleet of thousands of nodes in one process, beside two yardsticks of the same run: the limit, which makes the fewest writes that any
//! node agent could, and KWOK.
//!
//! Sizes and runs come from variables `BED_BENCH_…`, a table and figures go out. Nothing here is a test of what a node does: that is in
//! `scenarios/fleet/`.

mod agent;
mod driver;
mod exposition;
pub(super) mod figures;
pub mod limit;
pub(super) mod objects;
mod observer;
pub(super) mod raw;
mod run;
pub(super) mod server;
mod settings;
mod table;

use std::{collections::BTreeMap, path::Path, time::Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use self::{
    figures::{Contender, Phase, Size, What},
    run::{Outcome, Steps},
    settings::Settings,
    table::Table,
};
use super::benchmark::{Benchmark, Body, Report};
use crate::host::{namespaces, network};

/// All goals of the fleet.
///
/// Each run has a control plane of its own, all with the same flags. The largest fleet does everything; the others are there
/// for how long their nodes take.
///
/// What is counted how:
/// - A phase's time ends when a watch sees its last node or pod done; CPU and requests a second later, and those of nodes not
///   before all have leases.
/// - Requests of the agent are those of its user, who nobody else is, by the API server's own count, without renewals of
///   leases: those come with time, and have a row of their own. A renewal that is under way when a phase begins or ends may count on
///   either side, which is some dozens at 5,000 nodes. The table by kind below has everybody's, without the
///   driver's, which counts them itself; the controller manager is in it, with one patch of each node (taints).
/// - KWOK does not make nodes: the driver makes them for it. The time counts, since its users wait for that, too; neither the
///   CPU nor the requests for it do.
/// - The limit renews leases like a kubelet. It does not rest and stands no API server that stands still.
/// - The API server stands still under the largest fleet of ours in each run, else in the last one alone, and under KWOK's largest
///   in the last run for the shortest time.
///
/// The whole is three runs of everything; `e2e/README.md` says how long that takes.
/// `BED_BENCH_NODES=200 BED_BENCH_PODS=1000 BED_BENCH_RUNS=1` is a quick look.
pub const FLEET: Benchmark = Benchmark { name: "fleet", body: Body::Alone(|| Box::pin(measure())) };

async fn measure() -> Result<Report> {
    let begun = Instant::now();
    let say = |line: &str| println!("{:6.1}s {line}", begun.elapsed().as_secs_f32());
    let settings = Settings::read(|name| std::env::var(name).ok())?;
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    say(&format!("{cores} cores, which API server, etcd, controllers, driver and agent share"));
    if cfg!(debug_assertions) {
        say("this bed is no release build: the driver and the limit are slower than they could be");
    }
    let mut contenders = Vec::new();
    for contender in settings.contenders.clone() {
        match agent::missing(contender) {
            None => contenders.push(contender),
            Some(why) if contender == Contender::Ours => bail!("{why}"),
            Some(why) => say(&format!("{} is not measured: {why}", contender.name())),
        }
    }
    network::create().await.context("making the network")?;
    let state = Path::new(namespaces::STATE);
    let (mut tables, mut kinds, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    for (number, size) in settings.sizes.iter().enumerate() {
        let full = number + 1 == settings.sizes.len();
        let mut table = Table { size: *size, runs: BTreeMap::new() };
        for run in 1..=settings.runs {
            // In turns, so that a machine that becomes slower does so for all of them.
            for &contender in &contenders {
                let name = format!("{}, {} nodes, run {run} of {}", contender.name(), size.nodes, settings.runs);
                say(&name);
                let steps = steps(&settings, contender, full, run);
                let say_of_run = |line: &str| say(&format!("  {line}"));
                let Outcome { figures, requests, failure } = run::run(contender, *size, steps, state, &say_of_run).await?;
                table.runs.entry(contender).or_default().push(figures);
                if run == settings.runs {
                    kinds.extend(requests.iter().map(|(phase, requests)| by_kind(contender, *phase, *size, requests)));
                }
                if let Some(failure) = failure {
                    say(&format!("  FAILED: {failure}"));
                    failures.push(format!("{name}: it failed"));
                }
            }
        }
        tables.push(table);
    }
    print_all(&tables, &kinds);
    let mut broken = table::broken(&tables);
    // A yardstick that cannot do it is a figure, too.
    broken.extend(failures.into_iter().filter(|name| name.starts_with(Contender::Ours.name())));
    let json = json!({ "seconds": begun.elapsed().as_secs(), "tables": tables.iter().map(Table::json).collect::<Vec<_>>() });
    Ok(Report { json, broken })
}

fn steps(settings: &Settings, contender: Contender, full: bool, run: usize) -> Steps {
    let last = run == settings.runs;
    let ours = contender == Contender::Ours;
    let stalls = match contender {
        Contender::Ours if full || last => settings.stalls.clone(),
        // Once tells whether KWOK stands it.
        Contender::Kwok if full && last => settings.stalls.iter().min().copied().into_iter().collect(),
        _ => Vec::new(),
    };
    Steps {
        pods: full,
        rest: (full && contender != Contender::Limit).then_some(settings.rest),
        stalls,
        memory: full && ours && run + settings.memory_runs > settings.runs,
    }
}

/// Kinds of requests that make up at least a hundredth.
fn by_kind(contender: Contender, phase: Phase, size: Size, requests: &exposition::Requests) -> String {
    let kinds = requests.by_count();
    let all: f64 = kinds.iter().map(|(_, count)| count).sum();
    let most: Vec<_> = kinds.iter().filter(|(_, count)| *count >= all / 100.0).map(|(kind, count)| format!("{kind} {count:.0}")).collect();
    format!("{:<6} {:<24} {}", contender.name(), What::Time(phase).title(size).trim_end_matches(", s"), most.join(", "))
}

fn print_all(tables: &[Table], kinds: &[String]) {
    for table in tables {
        print!("{}", table.text());
    }
    println!("\nrequests by kind in the last run, of everybody but the driver:");
    for line in kinds {
        println!("{line}");
    }
    println!("\nkwok: its nodes were made by the driver; the time of that is in its figures, CPU and requests are not.");
    println!("{}", table::verdict(tables));
}
