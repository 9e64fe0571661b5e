//! What is measured, what it ought to be, and how several runs are compared. No input or output.

use std::{collections::BTreeMap, time::Duration};

/// Who was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contender {
    /// `virtual-kubelet fleet`.
    Ours,
    /// The fewest writes any node agent could make.
    Limit,
    /// KWOK 0.8.
    Kwok,
}

impl Contender {
    /// All of them, in the order of the columns.
    pub const ALL: [Self; 3] = [Self::Ours, Self::Limit, Self::Kwok];

    /// As `BED_BENCH_ONLY` and the tables name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Limit => "limit",
            Self::Kwok => "kwok",
        }
    }
}

/// A part of the work that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// From the start of the process until all nodes are Ready.
    Nodes,
    /// From the first pod's creation until all run.
    Running,
    /// From the first pod's deletion until all are gone.
    Deleted,
}

/// What is measured, in the order of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// Wall time of a phase, in seconds.
    Time(Phase),
    /// CPU seconds of the agent in a phase.
    Cpu(Phase),
    /// CPU seconds of API server and etcd in a phase.
    ServerCpu(Phase),
    /// Requests of the agent in a phase, renewals of leases not among them.
    Requests(Phase),
    /// Resident memory with all nodes and pods.
    Resident,
    /// The same with the pods of the memory step.
    ResidentFull,
    /// CPU of the agent at rest, in cores.
    RestCpu,
    /// CPU of API server and etcd at rest, in cores.
    RestServerCpu,
    /// Renewals a second at rest.
    Renewals,
    /// How much older than a renewal interval leases are, in seconds, sampled through the API.
    LeaseAge,
    /// Lateness of leases by the agent's own metrics.
    LeaseLateness,
    /// From the moment a Node is there until it has a lease, by the agent's own metrics.
    LeaseCreation,
    /// Nodes that were Ready and became `NotReady` before the stand-still.
    NotReady,
    /// The same from when the API server stood still for so many seconds until all leases are renewed and looked at.
    LostInStall(u64),
    /// Nodes that are `NotReady` then.
    NotReadyAfterStall(u64),
    /// From the end of such a stand-still until all leases are renewed, in seconds, as a list every other second shows it.
    CaughtUp(u64),
    /// Pod events that there were in a second, in the step that asks for a rate.
    Events,
    /// From the creation of a pod, as a watch saw it, until that watch saw it Running.
    SeenRunning,
    /// From a pod's event until its patch is sent, by the agent's own metrics, in milliseconds.
    EventToPatch,
    /// Connections to the API server.
    Connections,
}

/// What a figure ought to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// This or less.
    AtMost(f64),
    /// This many times the yardstick's median, or less.
    Times(f64, Contender),
}

/// A stand-still of so many seconds costs no node: the last renewals are from an interval of 10 s before it, the grace period is 50 s.
const GRACE_COVERS: u64 = 30;

/// How much was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Nodes.
    pub nodes: usize,
    /// Pods, of which none on all but the largest fleet.
    pub pods: usize,
    /// Pods of the memory step.
    pub memory_pods: usize,
    /// Pod events a second.
    pub events: u32,
}

impl What {
    /// What the row says.
    pub fn title(self, size: Size) -> String {
        let Size { nodes, pods, memory_pods, events } = size;
        let phase = |phase| match phase {
            Phase::Nodes => format!("{nodes} nodes to Ready"),
            Phase::Running => format!("{pods} pods to Running"),
            Phase::Deleted => format!("{pods} pods deleted"),
        };
        match self {
            Self::Time(of) => format!("{}, s", phase(of)),
            Self::Cpu(of) => format!("{}: own CPU s", phase(of)),
            Self::ServerCpu(of) => format!("{}: API server + etcd CPU s", phase(of)),
            Self::Requests(of) => format!("{}: requests", phase(of)),
            Self::Resident => format!("resident, {nodes} nodes {pods} pods, MiB"),
            Self::ResidentFull => format!("resident, {nodes} nodes {memory_pods} pods, MiB"),
            Self::RestCpu => "own CPU at rest, cores".to_owned(),
            Self::RestServerCpu => "API server + etcd at rest, cores".to_owned(),
            Self::Renewals => "lease renewals at rest, /s".to_owned(),
            Self::LeaseAge => "lease older than its interval, p99, s".to_owned(),
            Self::LeaseLateness => "lease lateness by own metrics, p99, s".to_owned(),
            Self::LeaseCreation => "lease made after its Node by own metrics, p99, s".to_owned(),
            Self::NotReady => "nodes NotReady in the run".to_owned(),
            Self::LostInStall(seconds) => format!("nodes called NotReady, stand-still of {seconds} s"),
            Self::NotReadyAfterStall(seconds) => format!("nodes NotReady after a stand-still of {seconds} s"),
            Self::CaughtUp(seconds) => format!("leases renewed after stand-still of {seconds} s, s"),
            Self::Events => format!("pod events, {events}/s asked for, /s"),
            Self::SeenRunning => "pod seen -> seen Running meanwhile, p99, ms".to_owned(),
            Self::EventToPatch => "pod event -> patch meanwhile, p99, ms".to_owned(),
            Self::Connections => "open connections, most".to_owned(),
        }
    }

    /// The goals of the design.
    pub fn goals(self) -> &'static [Goal] {
        match self {
            Self::Time(_) => &[Goal::Times(1.15, Contender::Limit), Goal::Times(0.7, Contender::Kwok)],
            Self::Cpu(_) => &[Goal::Times(0.25, Contender::Kwok)],
            Self::Requests(_) => &[Goal::Times(1.05, Contender::Limit)],
            Self::ResidentFull => &[Goal::AtMost(150.0)],
            Self::RestCpu => &[Goal::AtMost(0.1), Goal::Times(0.3, Contender::Kwok)],
            Self::LeaseLateness => &[Goal::AtMost(2.0)],
            Self::NotReady | Self::NotReadyAfterStall(_) => &[Goal::AtMost(0.0)],
            // In a longer one all leases run out: the node controller, which comes back with the API server, calls nodes lost.
            Self::LostInStall(seconds) if seconds <= GRACE_COVERS => &[Goal::AtMost(0.0)],
            Self::EventToPatch => &[Goal::AtMost(50.0)],
            Self::Connections => &[Goal::AtMost(130.0)],
            Self::ServerCpu(_)
            | Self::Resident
            | Self::RestServerCpu
            | Self::Renewals
            | Self::LeaseAge
            | Self::LeaseCreation
            | Self::LostInStall(_)
            | Self::CaughtUp(_)
            | Self::Events
            | Self::SeenRunning => &[],
        }
    }
}

/// The figures of one run of one contender.
pub type Run = BTreeMap<What, f64>;

/// Several runs of the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The least.
    pub least: f64,
    /// The middle one; between two, the mean of both.
    pub median: f64,
    /// The most.
    pub most: f64,
}

impl Spread {
    /// None of nothing.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (first, last) = (*values.first()?, *values.last()?);
        let (below, above) = (values.get((values.len() - 1) / 2)?, values.get(values.len() / 2)?);
        Some(Self { least: first, median: f64::midpoint(*below, *above), most: last })
    }
}

/// A percentile of durations, in milliseconds; None of nothing.
pub fn percentile_millis(mut times: Vec<Duration>, percent: usize) -> Option<f64> {
    times.sort();
    let index = (times.len() * percent / 100).min(times.len().checked_sub(1)?);
    times.get(index).map(|time| time.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_three_runs_is_the_middle_one() {
        assert_eq!(Spread::of(vec![3.0, 1.0, 2.5]), Some(Spread { least: 1.0, median: 2.5, most: 3.0 }));
    }

    #[test]
    fn the_median_of_two_runs_lies_between_them() {
        assert_eq!(Spread::of(vec![3.0, 1.0]), Some(Spread { least: 1.0, median: 2.0, most: 3.0 }));
    }

    #[test]
    fn an_empty_series_has_no_spread_and_no_percentile() {
        assert_eq!(Spread::of(Vec::new()), None);
        assert_eq!(percentile_millis(Vec::new(), 99), None);
    }

    #[test]
    fn the_99th_percentile_of_a_hundred_is_the_longest() {
        let times = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile_millis(times, 99), Some(100.0));
    }
}
