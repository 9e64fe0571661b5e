//! What a fleet tells Prometheus. Labels are from fixed lists, never names or error texts.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::limiter::Limiter;

/// From a millisecond to longer than a lease lasts.
const BUCKETS: [f64; 15] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RequestLabels {
    pub verb: &'static str,
    pub resource: &'static str,
    /// HTTP status; 0 when there was no answer.
    pub code: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabels {
    of: &'static str,
}

#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    lease_lateness: Histogram,
    lease_creation_lateness: Histogram,
    event_to_patch: Histogram,
    requests: Family<RequestLabels, Counter>,
    retries: Counter,
    limits: Family<LimitLabels, Gauge>,
    limiters: [(&'static str, Arc<Limiter>); 2],
    /// Nodes that are there, with their leases.
    pub nodes: Gauge,
    /// Pods that are known, whatever they do.
    pub pods: Gauge,
}

impl Metrics {
    pub fn new(leases: &Arc<Limiter>, writes: &Arc<Limiter>) -> Self {
        let mut registry = Registry::with_prefix("virtual_kubelet");
        let lease_lateness = Histogram::new(BUCKETS);
        let lease_creation_lateness = Histogram::new(BUCKETS);
        let event_to_patch = Histogram::new(BUCKETS);
        let (requests, retries, limits) = (Family::default(), Counter::default(), Family::default());
        let (nodes, pods) = (Gauge::default(), Gauge::default());
        registry.register("lease_lateness_seconds", "Delay of a lease renewal after its planned time", lease_lateness.clone());
        registry.register(
            "lease_creation_lateness_seconds",
            "Time from the creation of a Node until it has a lease of this process",
            lease_creation_lateness.clone(),
        );
        registry.register(
            "pod_event_to_patch_seconds",
            "Time from the event or planned time that changed a pod's status until the patch is sent",
            event_to_patch.clone(),
        );
        registry.register("requests", "Requests, by verb, resource and code; code 0: no answer", Family::clone(&requests));
        registry.register("retries", "Retries of failed requests", retries.clone());
        registry.register("in_flight_limit", "Current limit of concurrent requests", Family::clone(&limits));
        registry.register("nodes_registered", "Registered nodes, with leases", nodes.clone());
        registry.register("pods_known", "Pods on nodes of the fleet", pods.clone());
        let limiters = [("leases", leases.clone()), ("nodes_and_pods", writes.clone())];
        Self { registry, lease_lateness, lease_creation_lateness, event_to_patch, requests, retries, limits, limiters, nodes, pods }
    }

    pub fn renewed(&self, late: Duration) {
        self.lease_lateness.observe(late.as_secs_f64());
    }

    pub fn lease_made(&self, late: Duration) {
        self.lease_creation_lateness.observe(late.as_secs_f64());
    }

    pub fn patching(&self, after: Duration) {
        self.event_to_patch.observe(after.as_secs_f64());
    }

    pub fn answered(&self, labels: &RequestLabels) {
        self.requests.get_or_create(labels).inc();
    }

    pub fn retries(&self) {
        self.retries.inc();
    }

    /// The text that Prometheus scrapes.
    pub fn scrape(&self) -> String {
        for (of, limiter) in &self.limiters {
            self.limits.get_or_create(&LimitLabels { of }).set(i64::try_from(limiter.limit()).unwrap_or(i64::MAX));
        }
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}
