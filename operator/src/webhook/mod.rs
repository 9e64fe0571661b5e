//! The webhook that taints nodes and gives pods readiness gates as they are created, for API servers without `MutatingAdmissionPolicies`.
//!
//! Every replica serves; the leader keeps certificates in a Secret, which all read. Gates come from their objects, and from
//! [`gates_shared`](crate::gates_shared). A Node whose creation cannot be answered gets its taint when it is seen: nothing here writes to
//! Nodes. A pod that cannot be answered is created without the readiness gate, and stays so.

mod certificate_secret;
mod certificates;
mod pods;
mod serve;

pub use certificate_secret::Secrets;
pub use certificates::Certificates;
pub use pods::{POD_PATH, PodAnswers};
pub use serve::{Serving, serve, tls};

use crate::{
    gates_shared::{GateState, definitions},
    metrics::GateMetrics,
    trim,
    watch::{Observer, PAGE, WATCH_SECONDS},
};
use axum::{Router, body::Bytes, extract::State, http::StatusCode, response::IntoResponse, routing::post};
use crds::{NodeReadinessGate, NodeReadinessGateStatus};
use futures::StreamExt as _;
use kube::{
    Api, Client,
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, Store},
        watcher,
    },
};
use planner::node_gates::{
    Gate,
    review::{is_for_webhook, review},
};
use std::sync::Arc;

/// Where the API server finds the webhook for Nodes.
pub const PATH: &str = "/mutate-node";

/// Gates as every replica reads them, whether it leads or not; one that cannot be decoded is left out.
type Gates = Store<DeserializeGuard<NodeReadinessGate>>;

/// What answers about Nodes rest on.
#[derive(Clone)]
pub struct Answers {
    gates: Gates,
    observer: Arc<Observer>,
    state: Arc<GateState>,
    metrics: GateMetrics,
}

impl Answers {
    /// With the task that follows the gates, which never ends.
    pub fn new(client: Client, observer: Arc<Observer>, state: Arc<GateState>, metrics: GateMetrics) -> (Self, impl Future<Output = ()>) {
        let (gates, writer) = reflector::store();
        let config = watcher::Config::default().timeout(WATCH_SECONDS).page_size(PAGE);
        let changes = watcher::watcher(Api::<DeserializeGuard<NodeReadinessGate>>::all(client), config).default_backoff();
        let follow = reflector::reflector(writer, changes).for_each(async |event| {
            if let Err(error) = event {
                tracing::debug!(%error, "watch of NodeReadinessGates for the webhook failed; trying again");
            }
        });
        (Self { gates, observer, state, metrics }, follow)
    }

    /// Gates that the webhook acts for. Those that could not open say so themselves.
    fn gates(&self) -> Vec<Gate> {
        let objects = self.gates.state();
        let readable = objects.iter().filter_map(|object| object.0.as_ref().ok()).filter(|gate| !is_shut(gate.status.as_ref()));
        let resources = self.observer.resources();
        let (resources, compat) = (resources.iter().map(AsRef::as_ref), self.state.compat());
        let mut gates: Vec<_> = definitions::all(readable, resources, &compat, self.observer.node_rights()).into_values().collect();
        let is_open = |gate: &Gate| {
            let resource = gate.implied_by().and_then(|(namespace, name)| self.observer.resource(&namespace, &name));
            !is_shut(resource.as_ref().and_then(|resource| resource.status.as_ref()?.node_readiness.as_ref()))
        };
        gates.retain(|gate| is_for_webhook(gate) && is_open(gate));
        gates
    }
}

/// It could never open, as its status says.
fn is_shut(status: Option<&NodeReadinessGateStatus>) -> bool {
    let mut conditions = status.into_iter().flat_map(|status| &status.conditions);
    conditions.any(|condition| condition.type_ == "Satisfiable" && condition.status == "False")
}

/// Answers of [`PATH`] and [`POD_PATH`].
pub fn router(answers: Answers, pods: PodAnswers) -> Router {
    Router::new().route(PATH, post(answer)).with_state(answers).route(POD_PATH, post(pods::answer)).with_state(pods)
}

async fn answer(State(answers): State<Answers>, body: Bytes) -> impl IntoResponse {
    if !trim::is_light(&body) {
        return Err(NO_REVIEW);
    }
    let now = chrono::Utc::now().timestamp();
    match review(&body, answers.gates().iter(), now) {
        Some((review, answered)) => {
            answers.metrics.webhook_answered(answered);
            Ok(axum::Json(review))
        }
        None => Err(NO_REVIEW),
    }
}

/// The answer to what is no review.
const NO_REVIEW: (StatusCode, &str) = (StatusCode::BAD_REQUEST, "the body is no AdmissionReview\n");
