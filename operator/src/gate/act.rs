//! One API call per decision about a node.

use super::metrics::{GateMetrics, Refused};
use crate::act::{self, Error};
use k8s_controller::events::{Event, EventRecorder, EventType};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use planner::gate::{
    Gate,
    decide::{Happened, Transition},
};
use serde_json::{Value, json};
use std::{sync::Mutex, time::Instant};

/// Events a second, and at once, on Nodes: a thousand nodes that are released together need no thousand events.
const EVENTS: (f64, f64) = (10.0, 50.0);

/// Taint of a node whose kubelet has not said yet that it is ready.
const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// What became of a patch.
#[derive(Debug)]
pub enum Outcome {
    /// It took effect: this is the Node now.
    Done(Box<Node>),
    /// Something else was there than the decision was based on: this is the Node now.
    Stale(Box<Node>),
    /// There is no such Node any more.
    Gone,
    /// A right is missing.
    Forbidden(String),
    /// Try again later.
    Failed(String),
}

/// Patches a Node; where a test in the patch fails, reads what is there.
pub async fn patch(client: &Client, metrics: &GateMetrics, name: &str, operations: &Value) -> Outcome {
    let api: Api<Node> = Api::all(client.clone());
    let began = Instant::now();
    let patch = match act::json_patch(operations) {
        Ok(patch) => patch,
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    metrics.patches.inc();
    let refused = |reason| {
        metrics.refused.get_or_create(&Refused { reason }).inc();
    };
    let result = api.patch(name, &PatchParams::default(), &patch).await.map_err(act::classify);
    metrics.patch_seconds.observe(began.elapsed().as_secs_f64());
    match result {
        Ok(node) => Outcome::Done(Box::new(node)),
        Err(Error::Conflict | Error::Invalid(_)) => {
            // A taint that somebody else added meanwhile is refused as a duplicate: with what is there, it is decided anew.
            refused("test");
            match api.get_opt(name).await {
                Ok(Some(node)) => Outcome::Stale(Box::new(node)),
                Ok(None) => Outcome::Gone,
                Err(error) => Outcome::Failed(error.to_string()),
            }
        }
        Err(Error::Forbidden(message)) => {
            refused("forbidden");
            Outcome::Forbidden(message)
        }
        Err(error) => {
            refused("other");
            Outcome::Failed(error.to_string())
        }
    }
}

/// Pods on a node that do not bear the taint and are not their node's own: what came before the taint did. `None` when that
/// cannot be seen.
pub async fn strangers(client: &Client, gate: &Gate, node: &Node) -> Option<usize> {
    let taints = || node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    if taints().any(|taint| taint.key == NOT_READY && taint.effect == "NoSchedule") {
        // The API server gives it to each new Node: nothing has been able to come yet.
        return Some(0);
    }
    let pods = pods_on(client, node.metadata.name.as_deref().unwrap_or_default()).await?;
    let taint = k8s_openapi::api::core::v1::Taint {
        key: gate.spec.taint.key.clone(),
        effect: gate.spec.taint.effect.as_str().to_owned(),
        value: gate.spec.taint.value.clone(),
        time_added: None,
    };
    let bears = |pod: &Pod| {
        let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_ref());
        tolerations.into_iter().flatten().any(|toleration| planner::eligibility::tolerates(toleration, &taint))
    };
    Some(pods.iter().filter(|pod| is_workload(pod) && !bears(pod)).count())
}

/// Nothing runs on the node but system pods and those that belong to it; `None` when that cannot be seen.
pub async fn is_idle(client: &Client, node: &str) -> Option<bool> {
    let system = |pod: &Pod| matches!(pod.metadata.namespace.as_deref(), Some("kube-system" | "kube-public"));
    Some(pods_on(client, node).await?.iter().all(|pod| system(pod) || !is_workload(pod)))
}

/// Neither finished, nor of a `DaemonSet`, nor the node's own.
fn is_workload(pod: &Pod) -> bool {
    let ended = matches!(pod.status.as_ref().and_then(|status| status.phase.as_deref()), Some("Failed" | "Succeeded"));
    let of_node = pod.metadata.owner_references.iter().flatten().any(|owner| matches!(owner.kind.as_str(), "DaemonSet" | "Node"));
    !ended && !of_node
}

async fn pods_on(client: &Client, node: &str) -> Option<Vec<Pod>> {
    let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
    match Api::<Pod>::all(client.clone()).list(&params).await {
        Ok(pods) => Some(pods.items),
        Err(error) => {
            tracing::warn!(node, %error, "the pods of the node cannot be listed");
            None
        }
    }
}

/// Writes part of an object of a gate by a merge patch.
pub async fn merge<K>(api: &Api<K>, name: &str, status: bool, body: &Value) -> kube::Result<K>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let (params, patch) = (PatchParams::default(), Patch::Merge(body));
    if status { api.patch_status(name, &params, &patch).await } else { api.patch(name, &params, &patch).await }
}

/// The body that sets finalizers, with the version that they were read with.
pub fn finalizers(names: &[String], version: Option<&str>) -> Value {
    json!({"metadata": {"finalizers": names, "resourceVersion": version}})
}

/// Tells of what came about on Nodes, not too often.
#[derive(Debug)]
pub struct Teller {
    recorder: EventRecorder,
    /// Events that may be written now, and when that was counted.
    left: Mutex<(f64, Instant)>,
}

impl Teller {
    /// Through this recorder.
    pub fn new(recorder: EventRecorder) -> Self {
        Self { recorder, left: Mutex::new((EVENTS.1, Instant::now())) }
    }

    fn may_tell(&self) -> bool {
        let mut left = self.left.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = Instant::now();
        let tokens = now.duration_since(left.1).as_secs_f64().mul_add(EVENTS.0, left.0).min(EVENTS.1);
        let may = tokens >= 1.0;
        *left = (if may { tokens - 1.0 } else { tokens }, now);
        may
    }

    /// An event on a Node, for each thing that came about.
    pub async fn tell(&self, metrics: &GateMetrics, node: &Node, gate: &Gate, transition: &Transition) {
        let taint = format!("{}:{}", gate.spec.taint.key, gate.spec.taint.effect.as_str());
        let name = &gate.name;
        let (type_, reason, words) = match transition.happened {
            Happened::Added { .. } if transition.regression => {
                (EventType::Warning, "TaintAdded", format!("gate {name}: not ready any more, {taint} added"))
            }
            Happened::Added { .. } => (EventType::Normal, "TaintAdded", format!("gate {name}: {taint} added until the node is ready")),
            Happened::Adopted => {
                (EventType::Normal, "TaintAdopted", format!("gate {name}: {taint} was there and stays until the node is ready"))
            }
            Happened::PutBack => {
                (EventType::Warning, "TaintAdded", format!("gate {name}: {taint} was taken away by somebody else and is back"))
            }
            Happened::Removed => (EventType::Normal, "TaintRemoved", format!("gate {name}: ready, {taint} removed")),
            Happened::TimedOut => {
                (EventType::Warning, "ReleaseTimedOut", format!("gate {name}: held for too long, {taint} removed as release.timeout says"))
            }
        };
        tracing::info!(node = node.metadata.name, gate = name, reason, "{words}");
        if !self.may_tell() {
            metrics.events_dropped.inc();
            return;
        }
        let event = Event { type_, reason: reason.into(), action: "Gate".into(), note: Some(words), related: None };
        if let Err(error) = self.recorder.publish(node, &event).await {
            tracing::warn!(%error, reason, "event not published");
        }
    }
}
