//! The pods that `kubectl` is asked about.

use serde_json::{Value, json};

use crate::cluster::workload;

pub fn pod(name: &str, script: &str, more: &Value) -> Value {
    let mut container = json!({ "name": "main", "image": "busybox:1.36", "command": ["/bin/sh", "-c", script] });
    let mut spec =
        json!({ "nodeName": "n1", "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false, "restartPolicy": "Never" });
    for (key, value) in more.as_object().into_iter().flatten() {
        let of_pod = matches!(key.as_str(), "volumes" | "restartPolicy" | "terminationGracePeriodSeconds" | "nodeName" | "containers");
        (if of_pod { &mut spec } else { &mut container })[key] = value.clone();
    }
    spec["containers"] = json!([container]);
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "default" }, "spec": spec })
}

pub fn pods() -> Vec<Value> {
    // Far enough apart: output and errors come in two pipes, and a supervisor that waits for a processor reads both at once.
    let web = "for n in one two three; do echo $n; done; sleep 2; echo oops >&2; sleep 2; echo five; touch /data/up; exec sleep 100000";
    let more = json!({
        "env": [{ "name": "GREETING", "value": "hello" }],
        "workingDir": "/usr",
        "readinessProbe": { "exec": { "command": ["test", "-e", "/data/up"] }, "periodSeconds": 1 },
        "volumeMounts": [{ "name": "data", "mountPath": "/data" }, { "name": "greeting", "mountPath": "/etc/greeting" }],
        "volumes": [{ "name": "data", "emptyDir": {} }, { "name": "greeting", "configMap": { "name": "greeting" } }],
    });
    vec![
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "greeting", "namespace": "default" },
            "data": { "text": "from a file\n" },
        }),
        pod("web", web, &more),
        pod(
            "counter",
            "wait() { while [ ! -e /data/$1 ]; do sleep 0.1; done; }
            echo old; wait heard; echo heard; wait followed; for n in 1 2 3; do echo $n; sleep 0.2; done",
            &json!({
                "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
                "volumes": [{ "name": "data", "emptyDir": {} }],
            }),
        ),
        pod("crash", "echo before the crash; exit 3", &json!({ "restartPolicy": "Always" })),
        pod("waiting", "true", &json!({ "envFrom": [{ "configMapRef": { "name": "missing" } }] })),
        pod("reader", "read line; echo got $line; read line; echo and $line", &json!({ "stdin": true, "stdinOnce": true })),
        pod("stubborn", "trap '' TERM; while true; do sleep 0.1; done", &json!({ "terminationGracePeriodSeconds": 600 })),
        // What is asked of a node is not about those of another one.
        pod("elsewhere", "exec sleep 100000", &json!({ "nodeName": "n2" })),
        workload::config_map("default"),
        {
            let mut spec = workload::pod_spec();
            spec["nodeName"] = "n1".into();
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "nginx", "namespace": "default" }, "spec": spec })
        },
    ]
}
