//! The resource that is rolled out, and the `DaemonSet` beside it.

use std::str::FromStr;

use serde_json::{Value, json};

use crate::cluster::product::NAME;

/// Label of the nodes.
pub const NODE_LABEL: (&str, &str) = ("ingress", "true");
/// Pods of each node.
pub const PODS_PER_NODE: usize = 2;
/// Share of the nodes that may be out at once.
pub const BUDGET: &str = "5%";
/// Seconds that pods take to be ready, and to stop: enough to matter, and the same for every pod.
pub const READY_SECONDS: u32 = 5;
/// See [`READY_SECONDS`].
pub const STOP_SECONDS: u32 = 2;
/// The product's default of grace and soak in seconds, without a load balancer's timing.
pub const DEFAULT_GRACE: u32 = 10;

/// How many of `nodes` the budget lets be out at once.
pub fn budget_of(nodes: usize) -> usize {
    (nodes / 20).max(1)
}

/// How pods behave, for the fleet.
pub fn stages() -> String {
    format!("pods:\n- ready: {READY_SECONDS}s\n  stop: {STOP_SECONDS}s\n")
}

/// How nodes are taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    /// The Deployment.
    Deployment,
    /// The Node.
    Node,
    /// Both.
    Both,
}

impl FromStr for Marks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "deployment" => Ok(Self::Deployment),
            "node" => Ok(Self::Node),
            "both" => Ok(Self::Both),
            _ => Err("there are deployment, node and both".to_owned()),
        }
    }
}

impl Marks {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Deployment => "Deployment mark",
            Self::Node => "Node mark",
            Self::Both => "both marks",
        }
    }
}

/// The update strategy; as a merge patch it takes away what it does not have.
pub fn strategy(marks: Marks, budget: &Value, grace: Option<u32>) -> Value {
    let deployment = (marks != Marks::Node).then(|| json!({ "gracePeriodSeconds": grace }));
    let node = (marks != Marks::Deployment)
        .then(|| json!({ "key": "node-detacher.variant.run/detached", "value": "true", "gracePeriodSeconds": grace }));
    json!({ "type": "RollingUpdate", "rollingUpdate": {
        "maxUnavailableNodes": budget,
        "annotateDeploymentToDetach": deployment,
        "annotateNodeToDetach": node,
        "attachSoakSeconds": grace,
        "provenAfterSeconds": 1,
    } })
}

/// The resource.
pub fn ingress_daemon_set(version: u32, grace: Option<u32>) -> Value {
    json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet",
        "metadata": { "name": NAME, "namespace": "default" },
        "spec": {
            "podsPerNode": PODS_PER_NODE,
            "nodeSelector": { (NODE_LABEL.0): NODE_LABEL.1 },
            "updateStrategy": without_nulls(strategy(Marks::Deployment, &BUDGET.into(), grace)),
            "template": template(version),
        },
    })
}

/// A pod template with what a template usually has; `version` makes it a revision of its own.
pub fn template(version: u32) -> Value {
    let probe = json!({ "httpGet": { "path": "/healthz", "port": 10254 }, "periodSeconds": 5, "failureThreshold": 3 });
    json!({
        "metadata": { "labels": { "app": "edge" }, "annotations": { "prometheus.io/scrape": "true", "prometheus.io/port": "10254" } },
        "spec": {
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 30,
            "containers": [{
                "name": "controller", "image": "registry.example.com/edge/controller:1",
                "args": ["--http-port=8080", "--https-port=8443", "--election-id=edge", "--watch-ingress-without-class=true"],
                "env": [
                    { "name": "VERSION", "value": version.to_string() },
                    { "name": "POD_NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
                    { "name": "POD_NAMESPACE", "valueFrom": { "fieldRef": { "fieldPath": "metadata.namespace" } } },
                ],
                "ports": [{ "name": "http", "containerPort": 8080 }, { "name": "https", "containerPort": 8443 }],
                "resources": { "requests": { "cpu": "100m", "memory": "90Mi" } },
                "livenessProbe": probe, "readinessProbe": probe,
            }],
        },
    })
}

/// The built-in one: a pod on each node, for it knows no more of them; without grace and soak, which it has not either.
pub fn daemon_set(version: u32) -> Value {
    let mut template = template(version);
    template["metadata"]["labels"] = json!({ "app": "plain" });
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": { "name": "plain", "namespace": "default" },
        "spec": {
            "selector": { "matchLabels": { "app": "plain" } },
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": BUDGET } },
            "template": template,
        },
    })
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            fields.into_iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| (key, without_nulls(value))).collect()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_a_twentieth_and_at_least_one() {
        assert_eq!((budget_of(1000), budget_of(999), budget_of(10)), (50, 49, 1));
    }

    #[test]
    fn what_marks_do_not_use_the_patch_takes_away() {
        let rolling = |marks| strategy(marks, &1.into(), None)["rollingUpdate"].clone();
        assert!(rolling(Marks::Node)["annotateDeploymentToDetach"].is_null() && rolling(Marks::Node)["annotateNodeToDetach"].is_object());
        assert!(rolling(Marks::Deployment)["annotateNodeToDetach"].is_null());
        assert!(without_nulls(rolling(Marks::Deployment)).get("annotateNodeToDetach").is_none());
    }
}
