//! Any JSON as a resource: what decodes is resolved and decided about.

use crate::{json, snapshot};
use arbitrary::{Result, Unstructured};
use crds::{IngressDaemonSet, IngressDaemonSetSpec};
use planner::{decide, rollout::template_check::template_check, spec::resolve};
use serde_json::{Value, json};

/// Whatever decodes is resolved, tried and decided about.
pub fn run(data: &[u8]) {
    if let Ok(resource) = serde_json::from_slice::<IngressDaemonSet>(data) {
        judge(resource.spec);
    }
    // Bytes that run out are no finding.
    let _ = changed(&mut Unstructured::new(data));
}

fn changed(u: &mut Unstructured<'_>) -> Result<()> {
    let mut document = many_fields();
    json::change(u, &mut document)?;
    if let Ok(spec) = serde_json::from_value::<IngressDaemonSetSpec>(document) {
        judge(spec);
    }
    Ok(())
}

fn judge(spec: IngressDaemonSetSpec) {
    if let Err(problems) = resolve(&spec) {
        assert!(!problems.is_empty() && problems.iter().all(|problem| !problem.message.is_empty()), "invalid without a reason");
    }
    let mut snapshot = snapshot::under_way(0);
    snapshot.resource.spec = spec;
    let _ = template_check(&snapshot);
    assert_eq!(decide(&snapshot), decide(&snapshot));
}

/// A spec with fields of every form: numbers, shares, durations, lists, maps. Bytes change some of them.
fn many_fields() -> Value {
    json!({
        "podsPerNode": 2, "replicas": 2, "nodeSelector": {"pool": "edge"}, "selector": {"matchLabels": {"app": "web"}}, "placement": "Auto",
        "healthCheckNodePorts": [10080, 10081], "healthCheckNodePort": 10080, "minReadySeconds": 5, "paused": false,
        "healthChecker": {
            "image": "checker:1", "imagePullPolicy": "Always", "serviceAccountName": "checker", "bindAddress": "::",
            "resources": {"limits": {"memory": "64Mi"}}, "readyPolicy": {"type": "AtLeast", "minReady": 1},
        },
        "loadBalancer": {
            "preset": "HAProxy", "interval": "2s", "timeout": "1s", "unhealthyThreshold": 3, "healthyThreshold": 2, "propagation": "10s",
        },
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {
            "maxUnavailableNodes": "25%", "maxDegradedNodes": 1, "maxUnavailablePodsPerNode": "50%", "maxUnavailablePodsPerNodes": "50%",
            "maxUnavaiablePodsPerNode": "50%", "maxSurgedPodsPerNode": 1,
            "annotateDeploymentToDetach": {"key": "example.com/a", "value": "v", "gracePeriodSeconds": 3},
            "annotateNodeToDetach": {"key": "example.com/b", "value": "v", "gracePeriodSeconds": 3},
            "labelNodeToDetach": {"key": "example.com/d", "value": "v", "gracePeriodSeconds": 3},
            "waitForDetachmentByAnnotatedTimestamp": {"key": "example.com/c", "format": "RFC3339", "gracePeriodSeconds": 3},
            "windows": [
                {"schedule": "0 2 * * MON-FRI", "duration": "3h", "timeZone": "Europe/Berlin"},
                {"schedule": "@monthly", "duration": "1h30m", "timeZone": "UTC", "deny": true},
            ],
            "detachTimeoutSeconds": 60, "onDetachTimeout": "Abort", "attachSoakSeconds": 3,
        }},
        "template": {
            "metadata": {"labels": {"app": "web"}, "annotations": {"note": "x"}},
            "spec": {
                "hostNetwork": true, "nodeSelector": {"pool": "edge"},
                "tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"}],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{
                    "matchExpressions": [{"key": "pool", "operator": "In", "values": ["edge"]}, {"key": "cpus", "operator": "Gt", "values": ["1"]}],
                    "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}],
                }]}}},
                "containers": [{"name": "web", "image": "web:1", "ports": [{"containerPort": 80, "hostPort": 80}], "resources": {"limits": {"cpu": "100m"}}}],
                "initContainers": [{"name": "init", "image": "init:1"}],
            },
        },
    })
}
