//! Answers about pods that are created.

use super::NO_REVIEW;
use crate::{
    metrics::pod_gates::PodGateMetrics,
    pod_gates, trim,
    watch::{SMALL_PAGE, WATCH_SECONDS},
};
use axum::{body::Bytes, extract::State, response::IntoResponse};
use crds::{PodReadinessGate, pod_readiness_gate::GateSource};
use futures::StreamExt as _;
use kube::{
    Api, Client, ResourceExt as _,
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, Store},
        watcher,
    },
};
use planner::pod_gates::{
    Gate, World,
    review::{is_for_webhook, review},
};
use std::sync::Arc;

/// Where the API server finds the webhook for pods.
pub const POD_PATH: &str = "/mutate-pod";

type GuardedGate = DeserializeGuard<PodReadinessGate>;

/// What answers about pods rest on: gates as every replica reads them, whether it leads or not; one that cannot be decoded is left out.
#[derive(Clone)]
pub struct PodAnswers {
    gates: Store<GuardedGate>,
    metrics: PodGateMetrics,
}

impl PodAnswers {
    /// With the task that follows the gates, which never ends.
    pub fn new(client: Client, metrics: PodGateMetrics) -> (Self, impl Future<Output = ()>) {
        let (gates, writer) = reflector::store();
        let config = watcher::Config::default().timeout(WATCH_SECONDS).page_size(SMALL_PAGE);
        let changes = watcher::watcher(Api::<GuardedGate>::all(client), config).default_backoff().modify(lean);
        let follow = reflector::reflector(writer, changes).for_each(async |event| {
            if let Err(error) = event {
                tracing::debug!(%error, "watch of PodReadinessGates for the webhook failed; trying again");
            }
        });
        (Self { gates, metrics }, follow)
    }

    /// Gates of a namespace that the webhook acts for: of those alone that the operator keeps.
    fn gates(&self, namespace: &str) -> Vec<Arc<Gate>> {
        let objects = self.gates.state();
        let readable = objects.iter().filter_map(|object| object.0.as_ref().ok());
        let of_namespace = readable.filter(|gate| gate.namespace().as_deref() == Some(namespace)).map(pod_gates::gate).map(Arc::new);
        let mut world = World::default();
        world.take_gates(of_namespace.map(|gate| (gate.key(), gate)).collect());
        world.gates.into_values().filter(|gate| is_for_webhook(gate)).collect()
    }
}

/// Keeps of a gate what answers read, however long the rest is.
fn lean(gate: &mut GuardedGate) {
    let Ok(gate) = &mut gate.0 else { return };
    gate.metadata.managed_fields = None;
    gate.metadata.annotations = None;
    gate.metadata.labels = None;
    gate.status = None;
    gate.spec.source = GateSource::default();
    if !gate.spec.injects() {
        gate.spec.selector = None;
    }
}

/// The answer to a request for [`POD_PATH`].
pub async fn answer(State(answers): State<PodAnswers>, body: Bytes) -> impl IntoResponse {
    if !trim::is_light(&body) {
        return Err(NO_REVIEW);
    }
    match review(&body, |namespace| answers.gates(namespace)) {
        Some((review, answered)) => {
            answers.metrics.webhook_answered(answered);
            Ok(axum::Json(review))
        }
        None => Err(NO_REVIEW),
    }
}
