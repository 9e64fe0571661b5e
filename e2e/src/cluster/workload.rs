//! The workload of the scenarios: unmodified nginx on port 80 of the host, several on one node by `reuseport`.

use serde_json::{Value, json};

use crate::host::images;

/// What nginx listens on, on every node.
pub const PORT: u16 = 80;

/// The `ConfigMap` that [`pod_spec`] mounts. nginx puts all its files into an emptyDir, so that two share nothing but
/// the port.
pub fn config_map(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "nginx", "namespace": namespace },
        "data": { "nginx.conf": configuration() },
    })
}

/// Failed probes in a row, a second each, after which a pod counts as not ready: more than a shared machine stands still for.
const FAILURES: u8 = 4;

/// A pod of nginx. It declares no ports: with `hostNetwork` that would reserve them, and a second pod would not fit.
pub fn pod_spec() -> Value {
    json!({
        "hostNetwork": true,
        "terminationGracePeriodSeconds": 10,
        "automountServiceAccountToken": false,
        "containers": [{
            "name": "nginx",
            "image": images::NGINX,
            "args": ["-c", "/etc/bed-nginx/nginx.conf", "-p", "/cache/", "-e", "stderr"],
            "volumeMounts": [
                { "name": "configuration", "mountPath": "/etc/bed-nginx" },
                { "name": "cache", "mountPath": "/cache" },
            ],
            "readinessProbe": { "httpGet": { "path": "/", "port": PORT }, "periodSeconds": 1, "failureThreshold": FAILURES },
        }],
        "volumes": [
            { "name": "configuration", "configMap": { "name": "nginx" } },
            { "name": "cache", "emptyDir": {} },
        ],
    })
}

/// A Deployment of `replicas` pods of nginx, all on `node`.
pub fn deployment(namespace: &str, node: &str, replicas: u8) -> Value {
    let name = format!("nginx-{node}");
    let mut pod = pod_spec();
    pod["nodeName"] = node.into();
    // Node agents ask for Secrets as well, even for one that nobody has made.
    pod["containers"][0]["envFrom"] = json!([{ "secretRef": { "name": "settings", "optional": true } }]);
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": name } },
            "template": { "metadata": { "labels": { "app": name } }, "spec": pod },
        },
    })
}

fn configuration() -> String {
    let temporary =
        ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|kind| format!("  {kind}_temp_path /cache/{kind};\n")).concat();
    format!(
        "user root;\ndaemon off;\nworker_processes 1;\npid /cache/nginx.pid;\nerror_log stderr warn;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n{temporary}  access_log off;\n  keepalive_requests 1000000000;\n  \
         server {{\n    listen {PORT} reuseport;\n    location / {{ return 200 \"ok\\n\"; }}\n  }}\n}}\n"
    )
}
