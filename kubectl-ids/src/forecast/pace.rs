//! How long pods take to be ready.

use std::collections::BTreeMap;

use crds::names;
use k8s_openapi::api::core::v1::Pod;

/// Seconds to readiness where no pod tells.
const UNKNOWN: i64 = 10;

/// How long the simulated cluster takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Seconds from the making of a pod to its readiness.
    pub pod_seconds: i64,
    /// Where that number comes from.
    pub source: PaceSource,
}

/// Where a number comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaceSource {
    /// The user said so.
    Given,
    /// The median of so many pods.
    Measured(usize),
    /// Nothing is known.
    Assumed,
}

impl Pace {
    /// What the user says, else the median of what pods took, else a guess.
    pub fn of(given: Option<u32>, measured: &[i64]) -> Self {
        if let Some(seconds) = given {
            return Self { pod_seconds: seconds.into(), source: PaceSource::Given };
        }
        let mut sorted = measured.to_vec();
        sorted.sort_unstable();
        match sorted.get(sorted.len() / 2) {
            Some(median) => Self { pod_seconds: *median, source: PaceSource::Measured(sorted.len()) },
            None => Self { pod_seconds: UNKNOWN, source: PaceSource::Assumed },
        }
    }

    /// The number with its source.
    pub fn describe(self) -> String {
        let seconds = self.pod_seconds;
        match self.source {
            PaceSource::Given => format!("pods are ready {seconds} s after creation (--pod-seconds)"),
            PaceSource::Measured(pods) => format!("pods are ready {seconds} s after creation (median of {pods} current pods)"),
            PaceSource::Assumed => format!("pods are ready {seconds} s after creation (a guess: set --pod-seconds)"),
        }
    }
}

/// Seconds that ready pods took, by the first 8 characters of their resource's UID. A pod whose container was started again, or that
/// was unready in between, says nothing: its condition is of later.
pub fn start_times(pods: &[Pod]) -> BTreeMap<String, Vec<i64>> {
    let mut times: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for pod in pods {
        if let Some((uid8, seconds)) = start_time(pod) {
            times.entry(uid8).or_default().push(seconds);
        }
    }
    times
}

fn start_time(pod: &Pod) -> Option<(String, i64)> {
    let uid8 = pod.metadata.labels.as_ref()?.get(names::RESOURCE_LABEL)?.clone();
    pod.metadata.labels.as_ref()?.get(names::REVISION_LABEL)?;
    let status = pod.status.as_ref()?;
    let restarts: i32 = status.container_statuses.iter().flatten().map(|container| container.restart_count).sum();
    let ready = status.conditions.iter().flatten().find(|condition| condition.type_ == "Ready" && condition.status == "True")?;
    let seconds = ready.last_transition_time.as_ref()?.0.as_second() - pod.metadata.creation_timestamp.as_ref()?.0.as_second();
    // The times are whole seconds; a pod takes at least one.
    (restarts == 0 && (0..3600).contains(&seconds)).then_some((uid8, seconds.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_given_pace_precedes_a_measured_or_assumed_one() {
        assert_eq!(Pace::of(Some(7), &[1]).pod_seconds, 7);
        assert_eq!(Pace::of(None, &[90, 3, 4]), Pace { pod_seconds: 4, source: PaceSource::Measured(3) });
        assert_eq!(Pace::of(None, &[]).source, PaceSource::Assumed);
    }

    #[test]
    fn only_pods_ready_since_their_first_start_are_measured() {
        let pod = |restarts: i32, ready: &str, at: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": {
                    "labels": { names::RESOURCE_LABEL: "0a1b2c3d", names::REVISION_LABEL: "a" },
                    "creationTimestamp": "2026-01-01T00:00:00Z",
                },
                "status": {
                    "containerStatuses": [{ "name": "nginx", "image": "nginx", "imageID": "", "ready": true, "restartCount": restarts }],
                    "conditions": [{ "type": "Ready", "status": ready, "lastTransitionTime": at }],
                },
            }))
            .unwrap()
        };
        let pods = [
            pod(0, "True", "2026-01-01T00:00:07Z"),
            pod(0, "True", "2026-01-01T00:00:00Z"),
            pod(1, "True", "2026-01-01T00:00:20Z"),
            pod(0, "False", "2026-01-01T00:00:30Z"),
            pod(0, "True", "2026-01-02T00:00:00Z"),
        ];
        assert_eq!(start_times(&pods), BTreeMap::from([("0a1b2c3d".to_owned(), vec![7, 1])]));
    }
}
