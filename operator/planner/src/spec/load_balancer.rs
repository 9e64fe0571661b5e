//! How long a load balancer takes to stop sending to a node, and to begin again.

use crate::spec::{DEFAULT_GRACE, SpecProblem, milliseconds};
use crds::{
    Duration,
    ingress_daemon_set::{LoadBalancer, LoadBalancerPreset, RollingUpdate},
};
use serde::Deserialize;
use std::{collections::BTreeMap, sync::LazyLock};

/// What is known of a load balancer.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Preset {
    /// From one check to the next.
    pub interval: Duration,
    /// Time that a check may take.
    pub timeout: Duration,
    /// Failed checks until the node is out.
    pub unhealthy_threshold: u32,
    /// Checks that succeed until it is back.
    pub healthy_threshold: u32,
    /// Time until the whole load balancer follows.
    pub propagation: Duration,
    /// Documents that state the figures.
    pub sources: Vec<String>,
}

/// The data, by the names of the presets; `Custom` has none.
const DATA: &str = include_str!("../../load-balancers.yaml");

/// What is known of each load balancer. That the data can be read and names all presets is for the tests: a preset without
/// figures is treated as `Custom`.
pub static PRESETS: LazyLock<BTreeMap<LoadBalancerPreset, Preset>> = LazyLock::new(|| serde_saphyr::from_str(DATA).unwrap_or_default());

/// The figures of a load balancer, times in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    interval: i64,
    timeout: i64,
    unhealthy_threshold: u32,
    healthy_threshold: u32,
    propagation: i64,
}

impl Timing {
    /// The preset's figures, with those that are given in their place.
    pub fn of(balancer: &LoadBalancer) -> Result<Self, SpecProblem> {
        let preset = PRESETS.get(&balancer.preset);
        if preset.is_none() {
            is_complete(balancer)?;
        }
        let time = |name, given: &Option<Duration>, known: fn(&Preset) -> &Duration| {
            given.as_ref().or(preset.map(known)).map_or(Ok(0), |time| milliseconds(name, time))
        };
        let count = |given: Option<u32>, known: fn(&Preset) -> u32| given.or(preset.map(known)).unwrap_or(1);
        Ok(Self {
            interval: time("loadBalancer.interval", &balancer.interval, |preset| &preset.interval)?,
            timeout: time("loadBalancer.timeout", &balancer.timeout, |preset| &preset.timeout)?,
            unhealthy_threshold: count(balancer.unhealthy_threshold, |preset| preset.unhealthy_threshold),
            healthy_threshold: count(balancer.healthy_threshold, |preset| preset.healthy_threshold),
            propagation: time("loadBalancer.propagation", &balancer.propagation, |preset| &preset.propagation)?,
        })
    }

    /// Seconds, rounded up, until no new connection comes after the health check began to fail:
    /// interval × unhealthyThreshold + timeout + propagation.
    pub fn detach_time(self) -> i64 {
        let checks = self.interval.saturating_mul(self.unhealthy_threshold.into());
        seconds(checks.saturating_add(self.timeout).saturating_add(self.propagation))
    }

    /// Seconds, rounded up, until the node is back after its health check began to succeed:
    /// interval × healthyThreshold + propagation.
    pub fn attach_time(self) -> i64 {
        seconds(self.interval.saturating_mul(self.healthy_threshold.into()).saturating_add(self.propagation))
    }

    /// Says so when all grace periods together are over before the load balancer stops sending. They run side by side, so the
    /// longest counts; one that is not given is as long as the load balancer needs.
    pub fn outlasts_grace(self, rolling: &RollingUpdate) -> Option<SpecProblem> {
        let default = self.detach_time();
        let given = |grace: Option<u32>, default: i64| grace.map_or(default, i64::from);
        let deployment = rolling.annotate_deployment_to_detach.as_ref();
        let node = rolling.annotate_node_to_detach.as_ref();
        let label = rolling.label_node_to_detach.as_ref();
        let timestamp = rolling.wait_for_detachment_by_annotated_timestamp.as_ref();
        let graces = [
            deployment.map(|mark| ("annotateDeploymentToDetach", given(mark.grace_period_seconds, default))),
            node.map(|mark| ("annotateNodeToDetach", given(mark.grace_period_seconds, default))),
            label.map(|mark| ("labelNodeToDetach", i64::from(mark.grace_period_seconds))),
            timestamp.map(|wait| ("waitForDetachmentByAnnotatedTimestamp", given(wait.grace_period_seconds, DEFAULT_GRACE))),
        ];
        // Of several that are equally long the first is named.
        let (field, grace) = graces.into_iter().flatten().rev().max_by_key(|(_, grace)| *grace)?;
        let message = || {
            format!(
                "{field}.gracePeriodSeconds is {grace}, but the load balancer may send requests to a node for {default} s ({} failed checks, one every {}, timeout {}, propagation {}): set it to {default} or more, remove it, or correct loadBalancer",
                self.unhealthy_threshold,
                written(self.interval),
                written(self.timeout),
                written(self.propagation),
            )
        };
        (grace < default).then(|| SpecProblem { reason: "GracePeriodTooShort", message: message() })
    }
}

/// Without a preset these have no default.
fn is_complete(balancer: &LoadBalancer) -> Result<(), SpecProblem> {
    let needed = [
        ("interval", balancer.interval.is_some()),
        ("unhealthyThreshold", balancer.unhealthy_threshold.is_some()),
        ("healthyThreshold", balancer.healthy_threshold.is_some()),
    ];
    let missing: Vec<_> = needed.into_iter().filter(|(_, given)| !given).map(|(name, _)| name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!(
        "loadBalancer: preset Custom has no default timings: set {}, or name the preset of your load balancer",
        missing.join(" and ")
    );
    Err(SpecProblem { reason: "InvalidSpec", message })
}

fn seconds(milliseconds: i64) -> i64 {
    milliseconds.saturating_add(999) / 1000
}

fn written(milliseconds: i64) -> String {
    if milliseconds % 1000 == 0 { format!("{}s", milliseconds / 1000) } else { format!("{milliseconds}ms") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of(balancer: Value) -> Result<Timing, String> {
        Timing::of(&serde_json::from_value(balancer).unwrap()).map_err(|invalid| invalid.message)
    }

    fn times(balancer: Value) -> (i64, i64) {
        let timing = of(balancer).unwrap();
        (timing.detach_time(), timing.attach_time())
    }

    fn warning(balancer: Value, rolling: Value) -> Option<String> {
        let warning = of(balancer).unwrap().outlasts_grace(&serde_json::from_value(rolling).unwrap())?;
        assert_eq!(warning.reason, "GracePeriodTooShort");
        Some(warning.message)
    }

    #[test]
    fn every_figure_of_a_preset_says_where_it_comes_from() {
        let known: BTreeMap<LoadBalancerPreset, Preset> = serde_saphyr::from_str(DATA).unwrap();
        assert!(!known.is_empty());
        for (name, preset) in known {
            for figure in ["interval", "timeout", "threshold", "propagation"] {
                let about = |source: &String| source.split(':').next().is_some_and(|figures| figures.contains(figure));
                assert!(preset.sources.iter().any(about), "{name:?} does not say who says {figure}");
            }
        }
    }

    #[test]
    fn every_preset_has_the_times_of_its_figures() {
        for (preset, wanted) in
            [("AwsNlb", (140, 190)), ("AwsNlbLbc", (80, 70)), ("GcpPassthrough", (25, 8)), ("Azure", (30, 30)), ("HAProxy", (8, 4))]
        {
            assert_eq!(times(json!({"preset": preset})), wanted, "{preset}");
        }
    }

    #[test]
    fn a_given_figure_replaces_the_presets_and_others_stay() {
        assert_eq!(times(json!({"preset": "AwsNlb", "interval": "5s"})), (65, 65));
        assert_eq!(times(json!({"preset": "AwsNlb", "interval": "5s", "unhealthyThreshold": 2, "timeout": "6s"})), (56, 65));
        assert_eq!(
            times(json!({"preset": "HAProxy", "healthyThreshold": 5, "propagation": "1500ms"})),
            (10, 12),
            "9.5 s and 11.5 s, rounded up"
        );
        assert_eq!(times(json!({"preset": "GcpPassthrough", "timeout": "0s"})), (24, 8));
    }

    #[test]
    fn without_a_preset_all_that_is_missing_is_named() {
        assert_eq!(times(json!({"interval": "2s", "unhealthyThreshold": 3, "healthyThreshold": 2})), (6, 4));
        for (balancer, missing) in [
            (json!({}), "set interval and unhealthyThreshold and healthyThreshold, or name"),
            (json!({"preset": "Custom", "unhealthyThreshold": 3}), "set interval and healthyThreshold, or name"),
            (json!({"interval": "2s", "healthyThreshold": 3, "timeout": "1s"}), "set unhealthyThreshold, or name"),
        ] {
            let said = of(balancer.clone()).unwrap_err();
            assert!(said.starts_with("loadBalancer: preset Custom has no default timings") && said.contains(missing), "{balancer}: {said}");
        }
        let said = of(json!({"preset": "HAProxy", "timeout": "-1s"})).unwrap_err();
        assert!(said.starts_with("loadBalancer.timeout: `-1s` is not a duration"), "{said}");
    }

    #[test]
    fn too_short_a_grace_period_is_named_with_a_remedy() {
        let haproxy = || json!({"preset": "HAProxy"});
        let short = warning(haproxy(), json!({"annotateDeploymentToDetach": {"gracePeriodSeconds": 7}}));
        assert_eq!(
            short.as_deref(),
            Some(
                "annotateDeploymentToDetach.gracePeriodSeconds is 7, but the load balancer may send requests to a node for 8 s (3 failed checks, one every 2s, timeout 2s, propagation 0s): set it to 8 or more, remove it, or correct loadBalancer"
            )
        );
        let node = warning(haproxy(), json!({"annotateNodeToDetach": {"key": "a/b", "gracePeriodSeconds": 0}}));
        assert!(node.is_some_and(|said| said.starts_with("annotateNodeToDetach.gracePeriodSeconds is 0")));
        for enough in [
            json!({}),
            json!({"annotateDeploymentToDetach": {}}),
            json!({"annotateDeploymentToDetach": {"gracePeriodSeconds": 8}}),
            json!({"annotateDeploymentToDetach": {"gracePeriodSeconds": 8}, "annotateNodeToDetach": {"key": "a/b", "gracePeriodSeconds": 1}}),
            json!({"annotateDeploymentToDetach": {"gracePeriodSeconds": 1}, "annotateNodeToDetach": {"key": "a/b"}}),
            json!({"annotateNodeToDetach": {"key": "a/b", "gracePeriodSeconds": 1}, "waitForDetachmentByAnnotatedTimestamp": {"key": "a/c"}}),
        ] {
            assert_eq!(warning(haproxy(), enough.clone()), None, "{enough}");
        }
    }

    #[test]
    fn of_two_short_grace_periods_the_longer_is_named() {
        let both = json!({"annotateDeploymentToDetach": {"gracePeriodSeconds": 1}, "annotateNodeToDetach": {"key": "a/b", "gracePeriodSeconds": 3}});
        assert!(
            warning(json!({"preset": "AwsNlb"}), both).is_some_and(|said| said.starts_with("annotateNodeToDetach.gracePeriodSeconds is 3"))
        );
        let same = json!({"annotateDeploymentToDetach": {"gracePeriodSeconds": 1}, "annotateNodeToDetach": {"key": "a/b", "gracePeriodSeconds": 1}});
        assert!(warning(json!({"preset": "AwsNlb"}), same).is_some_and(|said| said.starts_with("annotateDeploymentToDetach")));
    }
}
