//! One API call per decision about a node.

use crate::{
    metrics::node_gates::{GateMetrics, Refused},
    watch::Partial,
    write::{self, Error},
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use planner::node_gates::{Gate, in_force::NOT_READY};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// What became of a patch.
#[derive(Debug)]
pub enum PatchOutcome {
    /// It took effect: this is the Node now.
    Done(Box<Node>),
    /// Something else was there than the decision was based on, or the API server objects to the patch: this is the Node now, and
    /// what was answered.
    Stale(Box<Node>, String),
    /// There is no such Node any more.
    Gone,
    /// A right is missing.
    Forbidden(String),
    /// Try again later, and not before this time, where the API server asks for that.
    Failed(String, Option<Duration>),
}

/// Under this name `managedFields` say what gates wrote.
const FIELD_MANAGER: &str = "ingress-daemonset-operator/gates";

/// How gates write.
pub fn params() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

/// How long the API server asks to be left alone: a second at least where it is asked too much, which it says in a header that the
/// client does not show.
fn retry_after(error: &kube::Error) -> Option<Duration> {
    let kube::Error::Api(status) = error else { return None };
    let asked = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    let seconds = if status.code == 429 { asked.max(1) } else { asked };
    (seconds > 0).then(|| Duration::from_secs(seconds.into()))
}

/// Patches a Node; where a test in the patch fails, reads the Node.
pub async fn patch(client: &Client, metrics: &GateMetrics, name: &str, operations: &Value) -> PatchOutcome {
    let api: Api<Partial<Node>> = Api::all(client.clone());
    let began = Instant::now();
    let patch = match write::json_patch(operations) {
        Ok(patch) => patch,
        Err(error) => return PatchOutcome::Failed(error.to_string(), None),
    };
    metrics.patches.inc();
    let refused = |reason| {
        metrics.refused.get_or_create(&Refused { reason }).inc();
    };
    let result = api.patch(name, &params(), &patch).await;
    metrics.patch_seconds.observe(began.elapsed().as_secs_f64());
    let after = result.as_ref().err().and_then(retry_after);
    match result.map_err(write::classify) {
        Ok(node) => PatchOutcome::Done(Box::new(node.0)),
        Err(error @ (Error::Conflict | Error::Invalid(_))) => {
            // A taint that somebody else added meanwhile is refused as a duplicate: with what is there, it is decided anew.
            refused("test");
            match api.get_opt(name).await {
                Ok(Some(node)) => PatchOutcome::Stale(Box::new(node.0), error.to_string()),
                Ok(None) => PatchOutcome::Gone,
                Err(error) => PatchOutcome::Failed(error.to_string(), retry_after(&error)),
            }
        }
        Err(Error::Forbidden(message)) => {
            refused("forbidden");
            PatchOutcome::Forbidden(message)
        }
        Err(error) => {
            refused("other");
            PatchOutcome::Failed(error.to_string(), after)
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
        tolerations.into_iter().flatten().any(|toleration| planner::facts::scheduling::tolerates(toleration, &taint))
    };
    Some(pods.iter().filter(|pod| is_workload(pod) && !bears(pod)).count())
}

/// Nothing runs on the node but system pods and those that belong to it; `None` when that cannot be seen.
pub async fn is_idle(client: &Client, node: &str) -> Option<bool> {
    Some(!pods_on(client, node).await?.iter().any(keeps_busy))
}

/// It is more than a system pod, and does not belong to the node.
fn keeps_busy(pod: &Pod) -> bool {
    is_workload(pod) && !matches!(pod.metadata.namespace.as_deref(), Some("kube-system" | "kube-public"))
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
    let (params, patch) = (params(), Patch::Merge(body));
    if status { api.patch_status(name, &params, &patch).await } else { api.patch(name, &params, &patch).await }
}

/// The body that sets finalizers, with the version that they were read with.
pub fn finalizers(names: &[String], version: Option<&str>) -> Value {
    json!({"metadata": {"finalizers": names, "resourceVersion": version}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overloaded_api_servers_are_spared_a_second_or_as_stated() {
        let error = |code: u16, seconds: Option<u32>| {
            let details = seconds.map(|seconds| json!({"retryAfterSeconds": seconds}));
            let status = json!({"status": "Failure", "message": "m", "reason": "r", "code": code, "details": details});
            kube::Error::Api(serde_json::from_value(status).unwrap())
        };
        for (code, said, waits) in
            [(429, None, Some(1)), (429, Some(0), Some(1)), (429, Some(7), Some(7)), (500, Some(2), Some(2)), (500, None, None)]
        {
            assert_eq!(retry_after(&error(code, said)), waits.map(Duration::from_secs), "{code} {said:?}");
        }
    }

    #[test]
    fn system_daemon_set_and_finished_pods_leave_a_node_idle() {
        for (namespace, owner, phase, busy) in [
            ("kube-system", "ReplicaSet", "Running", false),
            ("kube-public", "ReplicaSet", "Running", false),
            ("default", "ReplicaSet", "Running", true),
            ("default", "DaemonSet", "Running", false),
            ("default", "Job", "Succeeded", false),
        ] {
            let owner = json!([{"apiVersion": "v1", "kind": owner, "name": "o", "uid": "u"}]);
            let pod = json!({"metadata": {"namespace": namespace, "ownerReferences": owner}, "status": {"phase": phase}});
            assert_eq!(keeps_busy(&serde_json::from_value(pod.clone()).unwrap()), busy, "{pod}");
        }
    }
}
