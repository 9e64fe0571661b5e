//! The health checker, as the load balancer sees it.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use crds::names;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::{
    auditor::{Expectations, Kind, Observation},
    bed::{Bed, Options, control_plane::Timing},
    cluster::{
        operator_process::OperatorProcess,
        product::{self, HEALTH_PORT, deployment_mark, four_nodes, rolling_update},
        workload,
    },
    eventually::{eventually, throughout},
    load::{LoadOptions, Traffic},
    scenario::Scenario,
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

/// Answers follow the token at once, and stay right while the API server stands still.
pub const ANSWERS: Scenario = Scenario {
    name: "health_answers_follow_tokens_and_survive_an_api_outage",
    // Kubernetes' own default: a node whose lease could not be renewed for 20 s is not lost.
    options: || Options { timing: Timing { node_grace_seconds: 50, ..Timing::default() }, ..four_nodes() },
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(answers(bed)),
};

/// One question, as a load balancer asks it.
pub(super) async fn ask(bed: &Bed, node: &str) -> Result<(u16, String)> {
    let address = bed.address(node)?;
    let mut stream = TcpStream::connect((address, HEALTH_PORT)).await?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).with_context(|| format!("not HTTP: {answer}"))?;
    Ok((code, answer.split("\r\n\r\n").nth(1).unwrap_or_default().to_owned()))
}

async fn answers(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    // Nobody but the scenario writes tokens now.
    let mut operator = OperatorProcess::instead_of_pods(bed).await?;
    operator.kill().await?;
    product::hands_on(bed, &["n1"]).await?;
    reaction_times(bed).await?;
    product::hands_off(bed, &["n1"]).await?;
    still_api_server(bed).await
}

/// A check of the load balancer waits so long: one that begins when the token is written ends with 503.
const AT_ONCE: Duration = Duration::from_secs(1);

/// From the answer to the write of a token to the first 503.
async fn reaction_times(bed: &Bed) -> Result<()> {
    let api = Api::<Deployment>::namespaced(bed.client.clone(), "default");
    let token = |phase: &str, id: u64, old: &str| format!("{}.{id}.{phase}.0", old.split('.').next().unwrap_or_default());
    let mut times = Vec::new();
    for id in 1..=20_u64 {
        let deployment = api.get("edge-n1").await?;
        let old = deployment.metadata.labels.context("no labels")?.get(names::TOKEN_LABEL).cloned().context("no token")?;
        let write = async |phase| {
            let patch = json!({ "metadata": { "labels": { names::TOKEN_LABEL: token(phase, id, &old) } } });
            api.patch("edge-n1", &PatchParams::default(), &Patch::Merge(patch)).await
        };
        write("Claimed").await?;
        let written = Instant::now();
        let refuses = async {
            while ask(bed, "n1").await?.0 != 503 {}
            anyhow::Ok(())
        };
        timeout(AT_ONCE, refuses).await.with_context(|| format!("no 503 within {AT_ONCE:?}"))??;
        times.push(written.elapsed());
        write("Closed").await?;
        eventually(Duration::from_secs(5), "n1 answers 200 again", async || {
            let (code, body) = ask(bed, "n1").await?;
            ensure!(code == 200, "{body}");
            Ok(())
        })
        .await?;
    }
    times.sort();
    let at = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or_default().as_secs_f64() * 1000.0;
    bed.say(&format!("token written -> first 503, 20 times: median {:.1} ms, p95 {:.1} ms, longest {:.1} ms", at(50), at(95), at(99)));
    Ok(())
}

async fn still_api_server(bed: &Bed) -> Result<()> {
    // The load balancer has n1 back only after two good checks.
    bed.haproxy.serves(AT_ONCE * 30, &NODES).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let watch = bed.haproxy.watch().await?;
    bed.control_plane.signal("kube-apiserver", Signal::SIGSTOP)?;
    let held = throughout(Duration::from_secs(20), "every node answers 200 while the API server stands still", async || {
        for node in NODES {
            let (code, body) = ask(bed, node).await?;
            ensure!(code == 200, "{node} answers {code}: {body}");
        }
        Ok(())
    })
    .await;
    bed.control_plane.signal("kube-apiserver", Signal::SIGCONT)?;
    held?;
    throughout(Duration::from_secs(5), "nothing flaps when it goes on", async || {
        for node in NODES {
            let (code, body) = ask(bed, node).await?;
            ensure!(code == 200, "{node} answers {code}: {body}");
        }
        Ok(())
    })
    .await?;
    bed.say("the API server was stopped for 20 s");
    watch.exactly(&NODES).await?;
    traffic.all_served(bed).await
}

/// Something on a health port of a node says 200 whatever the token says.
pub const CONTRADICTED: Scenario = Scenario {
    name: "no_pod_is_touched_while_the_health_port_answers_200",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(contradicted(bed)),
};

const LIAR: &str = "liar";
const LIAR_PORT: u16 = 10081;

async fn contradicted(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &["n1", "n2", "n3", "n4"]).await?;
    let mut configuration = workload::config_map("default");
    let listens =
        configuration["data"]["nginx.conf"].as_str().unwrap_or_default().replace("listen 80 reuseport", &format!("listen {LIAR_PORT}"));
    configuration["metadata"]["name"] = LIAR.into();
    configuration["data"]["nginx.conf"] = listens.into();
    let mut liar = workload::deployment("default", "n1", 1);
    let pod = &mut liar["spec"]["template"]["spec"];
    pod["volumes"][0]["configMap"]["name"] = LIAR.into();
    pod["containers"][0]["readinessProbe"]["httpGet"]["port"] = LIAR_PORT.into();
    bed.apply(&[configuration, liar]).await?;
    bed.deployment_available("default", "nginx-n1").await?;
    let from = bed.recorder.history().await?.len();
    product::change(bed, json!({ "healthCheckNodePorts": [product::HEALTH_PORT, LIAR_PORT] })).await?;
    product::roll_to(bed, "2").await?;
    let contradicts = |status: &crds::IngressDaemonSetStatus| {
        let state = status.node_states.iter().find(|state| state.name == "n1");
        state.is_some_and(|state| state.reason == "HealthPortContradicts" && state.message.contains("port 10081"))
    };
    product::status_says(bed, "n1 is held with the port that contradicts", product::ROLLED_OUT, contradicts).await?;
    // Longer than the grace period.
    product::status_stays(bed, "n1 is held", Duration::from_secs(5), contradicts).await?;
    untouched(bed, from).await?;
    bed.say("n1 is held, its template and its pods as they were");
    bed.kubectl(&["delete", "deployment", "nginx-n1"]).await?;
    product::is_complete(bed, 4, product::ROLLED_OUT).await
}

/// Neither the template of n1 nor a pod of it has changed since so many observations.
async fn untouched(bed: &Bed, from: usize) -> Result<()> {
    let history = bed.recorder.history().await?;
    let is_ours = |seen: &&Observation| match seen.kind {
        Kind::Deployment => seen.object["metadata"]["name"] == "edge-n1",
        Kind::Pod => seen.object["metadata"]["labels"][names::NODE_LABEL] == "edge-n1",
        _ => false,
    };
    let (before, since) = history.split_at(from);
    let known: BTreeMap<_, _> = before.iter().filter(is_ours).map(|seen| (seen.object["metadata"]["uid"].to_string(), seen)).collect();
    ensure!(known.len() == 3, "of n1 {} objects were known, not a Deployment and two pods", known.len());
    for seen in since.iter().filter(is_ours) {
        let meta = &seen.object["metadata"];
        let old = known.get(&meta["uid"].to_string()).with_context(|| format!("{} is new", meta["name"]))?;
        ensure!(!seen.deleted && meta["deletionTimestamp"].is_null(), "{} goes", meta["name"]);
        let what = if seen.kind == Kind::Pod { "/status/containerStatuses" } else { "/spec/template" };
        ensure!(seen.object.pointer(what) == old.object.pointer(what), "{} of {} was changed: {}", what, meta["name"], seen.object);
    }
    Ok(())
}
