//! What the environment asks for.

use std::{str::FromStr, time::Duration};

use anyhow::{Context, Result, ensure};

use super::resource::Marks;

/// Nodes that are updated one at a time, for the time per node.
pub const ONE_BY_ONE: usize = 3;

/// How much is measured.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Nodes that are updated.
    pub rollout_nodes: usize,
    /// Nodes of the fleet that is only looked after.
    pub large_nodes: usize,
    /// Which marks rollouts use, one after the other.
    pub marks: Vec<Marks>,
    /// Seconds of grace, and of soak; the product's default when absent.
    pub grace: Option<u32>,
    /// Nodes that join a second.
    pub join_rate: f64,
    /// How long rest is.
    pub rest: Duration,
    /// Whether rollouts are measured.
    pub rollouts: bool,
    /// Whether the large fleet is.
    pub large: bool,
    /// Whether the large fleet is with Nodes as large as real ones.
    pub full: bool,
}

impl Settings {
    /// Reads
    /// - `BED_BENCH_NODES`: nodes that are updated, and those of the large fleet, with a comma between them (`1000,5000`),
    /// - `BED_BENCH_MARKS`: marks of rollouts (`deployment,node,both`),
    /// - `BED_BENCH_GRACE`: seconds of grace and of soak, for a quick look (the product's default, 10),
    /// - `BED_BENCH_JOIN`: nodes that join a second (`50`),
    /// - `BED_BENCH_REST`: seconds of rest (`300`, in which every kubelet says once how its node is),
    /// - `BED_BENCH_ONLY`: `rollouts`, `large`, `full` or some of them (`rollouts,large,full`).
    pub fn read(environment: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let text = |name: &str, default: &str| environment(name).unwrap_or_else(|| default.to_owned());
        let nodes = text("BED_BENCH_NODES", "1000,5000");
        let mut sizes: Vec<usize> = nodes.split(',').map(|nodes| parse("BED_BENCH_NODES", nodes)).collect::<Result<_>>()?;
        sizes.sort_unstable();
        let (Some(rollout_nodes), Some(large_nodes)) = (sizes.first().copied(), sizes.last().copied()) else {
            anyhow::bail!("BED_BENCH_NODES={nodes}: no size");
        };
        ensure!(rollout_nodes > 2 * ONE_BY_ONE, "BED_BENCH_NODES={nodes}: too few nodes for a rollout");
        let marks = text("BED_BENCH_MARKS", "deployment,node,both");
        let only = text("BED_BENCH_ONLY", "rollouts,large,full");
        let parts: Vec<_> = only.split(',').map(str::trim).collect();
        ensure!(
            parts.iter().all(|part| ["rollouts", "large", "full"].contains(part)),
            "BED_BENCH_ONLY={only}: there are rollouts, large and full"
        );
        let join_rate = parse("BED_BENCH_JOIN", &text("BED_BENCH_JOIN", "50"))?;
        ensure!(join_rate > 0.0, "BED_BENCH_JOIN={join_rate}: some nodes must join");
        Ok(Self {
            rollout_nodes,
            large_nodes,
            marks: marks.split(',').map(|marks| parse("BED_BENCH_MARKS", marks)).collect::<Result<_>>()?,
            grace: environment("BED_BENCH_GRACE").map(|grace| parse("BED_BENCH_GRACE", &grace)).transpose()?,
            join_rate,
            rest: Duration::from_secs(parse("BED_BENCH_REST", &text("BED_BENCH_REST", "300"))?),
            rollouts: parts.contains(&"rollouts"),
            large: parts.contains(&"large"),
            full: parts.contains(&"full"),
        })
    }
}

fn parse<T: FromStr<Err: std::fmt::Display>>(name: &str, text: &str) -> Result<T> {
    text.trim().parse().map_err(|error| anyhow::anyhow!("{name}={text}: {error}")).context("reading the environment")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sizes_and_all_marks_are_run_by_default() {
        let settings = Settings::read(|_| None).unwrap();
        assert_eq!((settings.rollout_nodes, settings.large_nodes), (1000, 5000));
        assert_eq!(settings.marks, [Marks::Deployment, Marks::Node, Marks::Both]);
        assert!(settings.rollouts && settings.large && settings.full && settings.grace.is_none());
    }

    #[test]
    fn one_size_is_both_sizes() {
        let settings = Settings::read(|name| (name == "BED_BENCH_NODES").then(|| "100".to_owned())).unwrap();
        assert_eq!((settings.rollout_nodes, settings.large_nodes), (100, 100));
    }

    #[test]
    fn what_is_not_known_is_said() {
        let read = |wrong: &'static str, value: &'static str| Settings::read(move |name| (name == wrong).then(|| value.to_owned()));
        assert!(read("BED_BENCH_MARKS", "deployment,nodes").is_err());
        assert!(read("BED_BENCH_ONLY", "rollout").is_err());
        assert!(read("BED_BENCH_NODES", "3").is_err());
    }
}
