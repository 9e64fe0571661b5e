//! Metrics in the Prometheus text format. Labels are words of enums, never names.

use crate::{answer::Answer, connections::Table};
use hyper::StatusCode;
use parking_lot::Mutex;
use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

type Labels = [(&'static str, &'static str); 1];
type Seconds = Gauge<f64, AtomicU64>;

/// Requests on the health port, by code.
#[derive(Clone, Debug)]
pub struct Requests {
    serving: Counter,
    failing: Counter,
    refused: Counter,
}

impl Requests {
    /// One answer was given.
    pub fn count(&self, code: StatusCode) {
        let counter = match code {
            StatusCode::OK => &self.serving,
            StatusCode::SERVICE_UNAVAILABLE => &self.failing,
            _ => &self.refused,
        };
        counter.inc();
    }
}

/// Hand-overs of the port, by what this process did.
#[derive(Clone, Debug)]
pub struct HandOvers {
    /// It took the port from another process.
    pub taken: Counter,
    /// It gave the port away.
    pub given: Counter,
    /// It went on after the one that it gave the port to had ended.
    pub back: Counter,
}

/// Every metric.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    /// Counted by the health port.
    pub requests: Requests,
    /// Counted by the health port.
    pub handovers: HandOvers,
    serving: Gauge,
    reason: Family<Labels, Gauge>,
    ready: Gauge,
    age: Family<Labels, Seconds>,
    synced: Family<Labels, Gauge>,
    open: Gauge,
    closed: Family<Labels, Gauge>,
}

impl Metrics {
    /// All zero.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("ids_health_checker");
        let by_code = Family::<Labels, Counter>::default();
        let counter = |code| by_code.get_or_create(&[("code", code)]).clone();
        let requests = Requests { serving: counter("200"), failing: counter("503"), refused: counter("405") };
        let by_act = Family::<Labels, Counter>::default();
        let counter = |act| by_act.get_or_create(&[("act", act)]).clone();
        let handovers = HandOvers { taken: counter("taken"), given: counter("given"), back: counter("back") };
        let (serving, ready, open) = (Gauge::default(), Gauge::default(), Gauge::default());
        let (reason, synced, closed) = (Family::default(), Family::default(), Family::default());
        let age = Family::<Labels, Seconds>::default();
        registry.register("requests", "Answers on the health port, by status code", by_code);
        registry.register("handovers", "Hand-overs of the port between processes, by act of this process", by_act);
        registry.register("serving", "1 if the answer is 200, else 0", serving.clone());
        registry.register("reason", "1 for the reason of the current answer", Family::clone(&reason));
        registry.register("ready_pods", "Pods of the node that count as ready", ready.clone());
        registry.register("view_age_seconds", "Seconds since the last data from the API server, by watch", age.clone());
        registry.register("synced", "1 if the watch has completed its first list, else 0", Family::clone(&synced));
        registry.register("connections", "Open connections on the health port", open.clone());
        registry.register(
            "connections_closed",
            "Connections that this process has closed since its start, by cause",
            Family::clone(&closed),
        );
        Self { registry: Mutex::new(registry), requests, handovers, serving, reason, ready, age, synced, open, closed }
    }

    /// The text of a scrape.
    pub fn scrape(&self, answer: &Answer, health_port: &Table) -> String {
        let registry = self.registry.lock();
        self.serving.set(i64::from(answer.verdict.serving()));
        self.reason.clear();
        self.reason.get_or_create(&[("reason", answer.verdict.reason.as_str())]).set(1);
        self.ready.set(answer.verdict.ready.into());
        for (watch, age) in &answer.ages {
            let label = [("watch", watch.as_str())];
            self.synced.get_or_create(&label).set(i64::from(age.is_some()));
            if let Some(age) = age {
                self.age.get_or_create(&label).set(age.as_secs_f64());
            }
        }
        self.open.set(i64::try_from(health_port.len()).unwrap_or(i64::MAX));
        for (cause, count) in [("timeout", &health_port.timed_out), ("displaced", &health_port.displaced)] {
            self.closed.get_or_create(&[("cause", cause)]).set(i64::try_from(count.load(Relaxed)).unwrap_or(i64::MAX));
        }
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = encode(&mut text, &registry);
        text
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
