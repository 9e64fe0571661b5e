//! A node joins under load: it stays tainted until its replicas serve, and workloads land on it only then.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{
    auditor::{Kind, Observation},
    bed::{Bed, node::NodeSpec},
    cluster::product,
    eventually::eventually,
};

/// The node that joins.
pub const JOINS: &str = "n5";
const KEY: &str = "readiness.k8s.io/edge";
/// From the Node to what serves and runs on it: as long as the first nodes are given.
const JOINED: Duration = Duration::from_mins(3);
/// Until a gate protects new nodes.
const PROTECTED: &str = "--timeout=180s";

/// What was seen of it, each as the resourceVersion of the change and the time.
#[derive(Debug)]
struct Seen<'a> {
    /// The Node's versions.
    node: Vec<&'a Observation>,
    history: &'a [Observation],
}

/// Lets a node join beside those that serve, and checks by what the API server recorded that it went as it should.
pub async fn a_node_joins(bed: &mut Bed, serving: &[&str]) -> Result<()> {
    product::change(bed, json!({ "nodeReadinessTaint": { "key": KEY, "effect": "NoSchedule" } })).await?;
    bed.apply(&[workload()]).await?;
    // Which of the nodes that come are held before anything can land is said by the status of the gate, not by the answer to the write.
    let active = r#"--for=jsonpath={.status.nodeReadiness.conditions[?(@.type=="AdmissionActive")].status}=True"#;
    bed.kubectl(&["wait", active, &format!("ingressdaemonset/{}", product::NAME), PROTECTED]).await?;
    bed.say(&format!("a workload waits for a node; {JOINS} joins, and keeps the taint {KEY} until both of its nginx serve"));
    let from = bed.recorder.history().await?.len();
    bed.add_node(NodeSpec::new(JOINS).label("ingress", "true").label("joined", "yes").registering()).await?;
    let serving: Vec<_> = serving.iter().copied().chain([JOINS]).collect();
    bed.haproxy.serves(JOINED, &serving).await?;
    product::is_complete(bed, serving.len(), JOINED).await?;
    eventually(JOINED, "the workload has landed", async || {
        let phase = bed.kubectl(&["get", "pods", "-l", "app=workload", "-o", "jsonpath={.items[*].status.phase}"]).await?;
        ensure!(phase == "Running", "{phase}");
        Ok(())
    })
    .await?;
    let history = bed.recorder.history().await?;
    let line = judge(&history[from..])?;
    bed.say(&line);
    bed.kubectl(&["delete", "deployment", "workload"]).await.map(drop)
}

/// Something that runs wherever there is room for it.
fn workload() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "workload", "namespace": "default" },
        "spec": {
            "replicas": 1, "selector": { "matchLabels": { "app": "workload" } },
            "template": {
                "metadata": { "labels": { "app": "workload" } },
                "spec": {
                    "nodeSelector": { "joined": "yes" }, "terminationGracePeriodSeconds": 0,
                    "containers": [{ "name": "workload", "image": "busybox:1.36", "args": ["-c", "exec sleep 3600"] }],
                },
            },
        },
    })
}

fn is_tainted(node: &Value) -> bool {
    node["spec"]["taints"].as_array().is_some_and(|taints| taints.iter().any(|taint| taint["key"] == KEY))
}

/// Tainted from its first version on, so that nothing could land before, released after the replicas were ready, and the workload bound
/// after that.
fn judge(history: &[Observation]) -> Result<String> {
    let node = history.iter().filter(|seen| seen.kind == Kind::Node && seen.object["metadata"]["name"] == JOINS).collect();
    let seen = Seen { node, history };
    let came = seen.node.first().context("the Node was not seen")?;
    ensure!(is_tainted(&came.object), "it came without the taint at {}, with {}", came.revision, came.object["spec"]["taints"]);
    let released = seen.node.iter().find(|node| !is_tainted(&node.object)).context("it was never released")?;
    let last = seen.node.last().context("the Node was not seen")?;
    ensure!(!is_tainted(&last.object), "it was released at {} and has the taint again at {}", released.revision, last.revision);
    let ready = seen.ready_before(released.revision);
    ensure!(ready == 2, "{ready} of 2 replicas were ready when it was released");
    let bound = seen
        .pods(|pod| pod["metadata"]["labels"]["app"] == "workload" && pod["spec"]["nodeName"] == JOINS)
        .next()
        .context("nothing landed")?;
    ensure!(bound.revision > released.revision, "the workload landed at {}, before the release at {}", bound.revision, released.revision);
    let after = |what: &Observation| (what.at - came.at).as_seconds_f32();
    Ok(format!(
        "{JOINS}: tainted as it came, released after {:.1} s with both nginx ready, the workload landed after {:.1} s",
        after(released),
        after(bound)
    ))
}

impl<'a> Seen<'a> {
    fn pods(&self, test: impl Fn(&Value) -> bool) -> impl Iterator<Item = &'a Observation> {
        self.history.iter().filter(move |seen| seen.kind == Kind::Pod && test(&seen.object))
    }

    /// Replicas on the node that had become ready before this version.
    fn ready_before(&self, revision: u64) -> usize {
        let is_ready = |pod: &Value| {
            let conditions = pod["status"]["conditions"].as_array();
            conditions
                .is_some_and(|conditions| conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True"))
        };
        let ours = self.pods(|pod| pod["metadata"]["labels"]["app"] == "nginx" && pod["spec"]["nodeName"] == JOINS && is_ready(pod));
        let names: std::collections::BTreeSet<_> =
            ours.filter(|pod| pod.revision < revision).map(|pod| pod.object["metadata"]["name"].to_string()).collect();
        names.len()
    }
}
