//! Benchmarks: figures beside their goals, and beside a yardstick of the same run, because absolute figures differ from
//! machine to machine. A new one is written in its file and listed in [`ALL`].
//! No scenario uses a benchmark.
//! Its settings are in variables `BED_BENCH_…`. It prints a table, and appends a line of JSON to a file in `target/bench`.

mod benchmark;
pub mod fleet;
pub mod gates;
mod health_checker;
mod in_place;
mod rollouts;
mod scale;

use std::{fs, io::Write as _};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{bed::Bed, host::images};

pub use benchmark::{Benchmark, Body, Figure, Goal, Report};
use benchmark::{print, report};

/// Every benchmark.
pub const ALL: &[Benchmark] =
    &[health_checker::HEALTH_CHECKER, rollouts::ROLLOUTS, in_place::IN_PLACE, scale::SCALE, gates::GATES, fleet::FLEET];

/// Runs the benchmark `name` in this process, which must be inside the namespaces.
pub async fn run(name: &str) -> Result<()> {
    let Some(benchmark) = ALL.iter().find(|benchmark| benchmark.name == name) else {
        bail!("there is no benchmark `{name}`: {:?}", ALL.iter().map(|benchmark| benchmark.name).collect::<Vec<_>>());
    };
    let Report { mut json, broken } = match benchmark.body {
        Body::InBed { options, measure } => {
            let mut bed = Bed::start(options()).await.context("starting the bed")?;
            let figures = measure(&mut bed).await?;
            print(name, &figures);
            report(&figures)
        }
        Body::Alone(measure) => measure().await?,
    };
    json["time"] = jiff::Timestamp::now().to_string().into();
    append(name, &json)?;
    anyhow::ensure!(broken.is_empty(), "no machine is an excuse for {broken:?}");
    Ok(())
}

/// One line of JSON per run, so that runs can be compared.
fn append(name: &str, line: &Value) -> Result<()> {
    let path = images::repository().join("target/bench").join(format!("{name}.json"));
    fs::create_dir_all(path.parent().unwrap_or(&path))?;
    let mut file = fs::File::options().create(true).append(true).open(&path).with_context(|| format!("opening {}", path.display()))?;
    writeln!(file, "{line}").with_context(|| format!("writing {}", path.display()))
}
