//! What the environment asks for.

use std::{str::FromStr, time::Duration};

use anyhow::{Context, Result, ensure};

use super::figures::{Contender, Size};

/// How much is measured.
#[derive(Clone, Debug)]
pub struct Settings {
    /// From the smallest fleet to the largest, which does everything.
    pub sizes: Vec<Size>,
    /// Runs of each.
    pub runs: usize,
    /// How long rest is.
    pub rest: Duration,
    /// How long the API server stands still, one time after the other.
    pub stalls: Vec<Duration>,
    /// Runs that have a memory step.
    pub memory_runs: usize,
    /// Who takes part.
    pub contenders: Vec<Contender>,
}

impl Settings {
    /// Reads
    /// - `BED_BENCH_NODES`: sizes, with commas between them (`1000,5000`),
    /// - `BED_BENCH_PODS`: pods (`10000`),
    /// - `BED_BENCH_RUNS`: runs of each (`3`),
    /// - `BED_BENCH_EVENTS`: pod events a second (`1000`),
    /// - `BED_BENCH_REST`: seconds of rest (`60`),
    /// - `BED_BENCH_STALLS`: seconds for which the API server stands still, with commas between them, empty for none (`20,60`),
    /// - `BED_BENCH_MEMORY_PODS`: pods of the memory step, `0` for none (`50000`),
    /// - `BED_BENCH_MEMORY_RUNS`: runs that have one (as many as there are runs),
    /// - `BED_BENCH_ONLY`: who takes part (`ours,limit,kwok`).
    pub fn read(environment: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let text = |name: &str, default: &str| environment(name).unwrap_or_else(|| default.to_owned());
        let number = |name: &str, default: &str| parse::<usize>(name, &text(name, default));
        let (pods, memory_pods) = (number("BED_BENCH_PODS", "10000")?, number("BED_BENCH_MEMORY_PODS", "50000")?);
        let events = parse("BED_BENCH_EVENTS", &text("BED_BENCH_EVENTS", "1000"))?;
        let nodes = text("BED_BENCH_NODES", "1000,5000");
        let mut sizes: Vec<_> = nodes.split(',').map(|nodes| parse::<usize>("BED_BENCH_NODES", nodes)).collect::<Result<_>>()?;
        sizes.sort_unstable();
        ensure!(sizes.iter().all(|nodes| *nodes > 0) && pods > 0 && events > 0, "a fleet has nodes, pods and events");
        let runs = number("BED_BENCH_RUNS", "3")?.max(1);
        let stalls = text("BED_BENCH_STALLS", "20,60");
        let stalls = stalls.split(',').filter(|seconds| !seconds.trim().is_empty());
        let stalls = stalls.map(|seconds| parse("BED_BENCH_STALLS", seconds).map(Duration::from_secs)).collect::<Result<Vec<_>>>()?;
        let memory_runs = if memory_pods > 0 { number("BED_BENCH_MEMORY_RUNS", &runs.to_string())? } else { 0 };
        let only = text("BED_BENCH_ONLY", "ours,limit,kwok");
        let contenders = Contender::ALL.into_iter().filter(|contender| only.split(',').any(|name| name.trim() == contender.name()));
        let contenders: Vec<_> = contenders.collect();
        ensure!(contenders.len() == only.split(',').count(), "BED_BENCH_ONLY={only}: there are ours, limit and kwok");
        Ok(Self {
            sizes: sizes.into_iter().map(|nodes| Size { nodes, pods, memory_pods, events }).collect(),
            runs,
            rest: Duration::from_secs(parse("BED_BENCH_REST", &text("BED_BENCH_REST", "60"))?),
            stalls,
            memory_runs,
            contenders,
        })
    }
}

fn parse<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(name: &str, text: &str) -> Result<T> {
    text.trim().parse().with_context(|| format!("{name}={text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_default_everything_of_the_design_is_measured_three_times() {
        let settings = Settings::read(|_| None).unwrap();
        assert_eq!(settings.sizes.iter().map(|size| size.nodes).collect::<Vec<_>>(), [1000, 5000]);
        assert_eq!((settings.runs, settings.contenders.len(), settings.memory_runs), (3, 3, 3));
        assert_eq!(settings.stalls, [20, 60].map(Duration::from_secs));
    }

    #[test]
    fn what_takes_long_can_be_left_out() {
        let settings = Settings::read(|name| match name {
            "BED_BENCH_STALLS" => Some(String::new()),
            "BED_BENCH_MEMORY_PODS" => Some("0".to_owned()),
            _ => None,
        });
        let settings = settings.unwrap();
        assert_eq!((settings.stalls.len(), settings.memory_runs), (0, 0));
    }

    #[test]
    fn the_largest_fleet_comes_last() {
        let settings = Settings::read(|name| (name == "BED_BENCH_NODES").then(|| "300, 20".to_owned())).unwrap();
        assert_eq!(settings.sizes.iter().map(|size| size.nodes).collect::<Vec<_>>(), [20, 300]);
    }

    #[test]
    fn who_is_not_known_is_said() {
        assert!(Settings::read(|name| (name == "BED_BENCH_ONLY").then(|| "limit,kwak".to_owned())).is_err());
    }
}
