//! What `kubectl` asks of a node's own API, through the real API server: its words and exit codes are compared with a kept
//! transcript, `e2e/fixtures/kubectl-transcript.txt`.
//! What a node writes to the API server is in `node_library/`.

mod node;
mod session;
mod streams;
mod vanished;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::{
    auditor::Expectations,
    bed::{Bed, Options, node::NodeSpec},
    cluster::workload,
    eventually::eventually,
    scenario::Scenario,
};
use session::{POD, Session, compare};

/// Every command of the list, on one node; another one requests its serving certificate.
pub const KUBECTL: Scenario = Scenario {
    name: "kubectl_speaks_to_a_virtual_node_as_to_any_other",
    options: two_nodes,
    expected: Expectations::default,
    body: |bed| Box::pin(kubectl_speaks_to_a_virtual_node_as_to_any_other(bed)),
};

fn two_nodes() -> Options {
    Options { nodes: ["n1", "n2"].map(NodeSpec::new).into(), ..Options::default() }
}

/// Clients that vanish in the middle.
pub const VANISHED: Scenario = Scenario {
    name: "clients_that_vanish_leave_no_task_descriptor_or_process_of_a_stuck_exec_or_follow",
    options: two_nodes,
    expected: Expectations::default,
    body: |bed| Box::pin(vanished::clients_that_vanish_leave_no_task_descriptor_or_process(bed)),
};

fn pod(name: &str, script: &str, more: &Value) -> Value {
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

fn pods() -> Vec<Value> {
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

async fn kubectl_speaks_to_a_virtual_node_as_to_any_other(bed: &mut Bed) -> Result<()> {
    bed.apply(&pods()).await?;
    let mut session = Session { bed, text: String::new(), spdy: false };
    let outcome = everything(&mut session).await;
    let text = session.text;
    if outcome.is_err() {
        println!("{text}");
    }
    outcome?;
    compare(&text)?;
    certificate(bed).await
}

async fn everything(session: &mut Session<'_>) -> Result<()> {
    let bed = session.bed;
    for name in ["web", "counter", "reader", "stubborn", "nginx", "elsewhere"] {
        session.ready(name).await?;
    }
    bed.say("logs");
    streams::logs(session).await?;
    bed.say("exec");
    streams::exec(session).await?;
    bed.say("attach and run");
    streams::attach(session).await?;
    streams::run(session).await?;
    bed.say("cp");
    streams::copy(session).await?;
    bed.say("port-forward");
    streams::port_forward(session).await?;
    node::transports(session).await?;
    bed.say("the same over SPDY alone");
    session.remark("from here on over SPDY alone");
    session.spdy = true;
    streams::exec(session).await?;
    streams::copy(session).await?;
    streams::port_forward(session).await?;
    session.spdy = false;
    session.remark("from here on over WebSockets again");
    bed.say("figures");
    node::figures(session).await?;
    node::strangers(session).await?;
    bed.say("delete and drain");
    node::delete(session).await?;
    node::drain(session).await
}

/// A node that is given no certificate requests one, says so, and serves once it is approved.
async fn certificate(bed: &mut Bed) -> Result<()> {
    bed.add_node(NodeSpec::new("n3").requests_certificate()).await?;
    bed.apply(&[pod("other", "echo here I am; exec sleep 100000", &json!({ "nodeName": "n3" }))]).await?;
    let session = Session { bed, text: String::new(), spdy: false };
    session.ready("other").await?;
    eventually(POD, "the agent says that its certificate waits to be approved", async || {
        let agent = std::fs::read_to_string(bed.state().join("logs/node-n3.log"))?;
        ensure!(agent.contains("waits to be approved"), "it does not");
        Ok(())
    })
    .await?;
    eventually(POD, "node n3 has no certificate to serve with", async || {
        let said = session.quiet(&["logs", "other"], "").await?;
        ensure!(said.code == 1 && said.stderr.contains("tls"), "logs without a certificate: {} {} {}", said.code, said.stdout, said.stderr);
        Ok(())
    })
    .await?;
    let requests = session.quiet(&["get", "csr", "-o", "name"], "").await?.stdout;
    for request in requests.lines() {
        bed.kubectl(&["certificate", "approve", request]).await?;
    }
    eventually(POD, "node n3 serves with the certificate that was approved", async || {
        let said = session.quiet(&["logs", "other"], "").await?;
        ensure!(said.code == 0 && said.stdout == "here I am\n", "{} {}", said.stdout, said.stderr);
        Ok(())
    })
    .await
}
