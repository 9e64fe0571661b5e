//! Probes: thresholds, and the single attempt.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Which probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    /// Holds the other two back until it succeeds.
    Startup,
    /// Decides whether the container is ready.
    Readiness,
    /// Decides whether the container is restarted.
    Liveness,
}

/// The numbers of a probe, with the API's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeTiming {
    /// Before the first attempt, from the start of the container.
    pub initial_delay: Duration,
    /// Between attempts.
    pub period: Duration,
    /// For one attempt.
    pub timeout: Duration,
    /// Successes in a row that count.
    pub successes: u32,
    /// Failures in a row that count.
    pub failures: u32,
}

impl ProbeTiming {
    /// The numbers of `probe`.
    pub fn of(probe: &Probe) -> Self {
        let seconds =
            |value: Option<i32>, default: u64| Duration::from_secs(value.and_then(|value| u64::try_from(value).ok()).unwrap_or(default));
        let count = |value: Option<i32>, default: u32| value.and_then(|value| u32::try_from(value).ok()).unwrap_or(default).max(1);
        Self {
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10).max(Duration::from_secs(1)),
            timeout: seconds(probe.timeout_seconds, 1).max(Duration::from_secs(1)),
            successes: count(probe.success_threshold, 1),
            failures: count(probe.failure_threshold, 3),
        }
    }
}

/// Counts attempts in a row.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProbeRun {
    last: Option<bool>,
    length: u32,
}

impl ProbeRun {
    /// Takes one attempt in; the verdict, once enough attempts in a row agree.
    pub fn observe(&mut self, success: bool, timing: &ProbeTiming) -> Option<bool> {
        self.length = if self.last == Some(success) { self.length.saturating_add(1) } else { 1 };
        self.last = Some(success);
        let needed = if success { timing.successes } else { timing.failures };
        (self.length >= needed).then_some(success)
    }
}

/// Number of a port given by number or by the name it has in the container.
pub fn port(container: &Container, port: &IntOrString) -> Option<u16> {
    match port {
        IntOrString::Int(number) => u16::try_from(*number).ok(),
        IntOrString::String(name) => {
            let named = container.ports.iter().flatten().find(|port| port.name.as_deref() == Some(name));
            named.map_or_else(|| name.parse().ok(), |port| u16::try_from(port.container_port).ok())
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ContainerPort;

    use super::*;

    fn verdicts(probe: &Probe, attempts: &[bool]) -> Vec<Option<bool>> {
        let (timing, mut run) = (ProbeTiming::of(probe), ProbeRun::default());
        attempts.iter().map(|success| run.observe(*success, &timing)).collect()
    }

    #[test]
    fn a_probe_defaults_to_one_success_and_three_failures() {
        let attempts = [true, false, false, true, false, false, false, false];
        let expected = [Some(true), None, None, Some(true), None, None, Some(false), Some(false)];
        assert_eq!(verdicts(&Probe::default(), &attempts), expected);
    }

    #[test]
    fn a_failure_starts_the_count_of_successes_over() {
        let probe = Probe { success_threshold: Some(2), ..Probe::default() };
        assert_eq!(verdicts(&probe, &[true, false, true, true]), [None, None, None, Some(true)]);
    }

    #[test]
    fn unset_numbers_are_the_defaults_of_the_api() {
        let timing = ProbeTiming::of(&Probe::default());
        assert_eq!((timing.period.as_secs(), timing.timeout.as_secs(), timing.initial_delay.as_secs()), (10, 1, 0));
    }

    #[test]
    fn a_probe_port_is_found_by_number_or_name() {
        let named = ContainerPort { name: Some("http".into()), container_port: 8080, ..ContainerPort::default() };
        let container = Container { ports: Some(vec![named]), ..Container::default() };
        assert_eq!(port(&container, &IntOrString::Int(80)), Some(80));
        assert_eq!(port(&container, &IntOrString::String("http".into())), Some(8080));
        assert_eq!(port(&container, &IntOrString::String("81".into())), Some(81));
        assert_eq!(port(&container, &IntOrString::String("none".into())), None);
    }
}
