//! What the pods of a process-backed node live through.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};

use crate::{
    auditor::{Expectations, Kind},
    bed::{Bed, Options},
    eventually::{eventually, throughout},
    scenario::Scenario,
};

const MINUTE: Duration = Duration::from_mins(1);
/// What the pods are called; the number is the exit code that each has in the end.
const PODS: [i32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
/// Those that end while there is no agent.
const BETWEEN: [i32; 3] = [0, 1, 2];

/// The agent is killed while eight pods run, and adopts them when it starts again.
pub const ADOPTED: Scenario = Scenario {
    name: "a_virtual_kubelet_killed_outright_adopts_its_pods",
    options: || Options::with_nodes(1),
    expected: || Expectations::budget(0),
    body: |bed| Box::pin(adopted(bed)),
};

fn name(code: i32) -> String {
    format!("eight-{code}")
}

/// Counts until it is told to end, and then has its exit code.
fn pod(bed: &Bed, code: i32) -> Value {
    let told = bed.state().join(format!("told-{code}"));
    // The last line comes later: output and errors are two pipes, and a supervisor that waits for a processor reads both at once.
    let script = format!(
        "i=0; until [ -e {} ]; do i=$((i+1)); echo tick $i; sleep 0.05; done; sleep 2; echo over $i >&2; exit {code}",
        told.display()
    );
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name(code), "namespace": "default" },
        "spec": {
            "nodeName": "n1", "restartPolicy": "Never", "terminationGracePeriodSeconds": 5,
            "containers": [{
                "name": "c", "image": "busybox:1.36", "args": ["-c", script],
                "readinessProbe": { "exec": { "command": ["true"] }, "periodSeconds": 1, "timeoutSeconds": 20 },
            }],
        },
    })
}

fn api(bed: &Bed) -> Api<Pod> {
    Api::namespaced(bed.client.clone(), "default")
}

async fn all(bed: &Bed) -> Result<Vec<Pod>> {
    Ok(api(bed).list(&ListParams::default()).await?.items)
}

fn container(pod: &Pod) -> Result<&ContainerStatus> {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.and_then(|statuses| statuses.first()).with_context(|| format!("{} has no container", pod.name_any()))
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn log_of(bed: &Bed, pod: &Pod) -> Result<PathBuf> {
    let node = bed.nodes().get("n1").context("no node n1")?;
    let directory = format!("pods/default_{}_{}/c/0.log", pod.name_any(), pod.uid().context("no UID")?);
    Ok(node.root().join(directory))
}

/// The texts of a pod's log.
async fn log(bed: &Bed, pod: &Pod) -> Result<Vec<String>> {
    let path = log_of(bed, pod)?;
    let text = tokio::fs::read_to_string(&path).await.with_context(|| format!("reading {}", path.display()))?;
    Ok(text.lines().filter_map(|line| line.splitn(4, ' ').nth(3).map(str::to_owned)).collect())
}

async fn tell(bed: &Bed, code: i32) -> Result<()> {
    Ok(tokio::fs::write(bed.state().join(format!("told-{code}")), "").await?)
}

/// Supervisors of containers that live in this bed.
fn supervisors() -> Result<usize> {
    let mut found = 0;
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        found += usize::from(words.split(|byte| *byte == 0).any(|word| word == b"container-shim"));
    }
    Ok(found)
}

async fn adopted(bed: &mut Bed) -> Result<()> {
    // Of the operator's pods, in a bed that is shared.
    let others = supervisors()?;
    let pods: Vec<Value> = PODS.iter().map(|code| pod(bed, *code)).collect();
    bed.apply(&pods).await?;
    let before = eventually(MINUTE * 3, "eight pods are ready", async || {
        let pods = all(bed).await?;
        let ready = pods.iter().filter(|pod| is_ready(pod)).count();
        ensure!(ready == PODS.len(), "{ready} are");
        Ok(pods)
    })
    .await?;
    let killed_at = bed.recorder.history().await?.iter().map(|seen| seen.revision).max().unwrap_or_default();
    bed.node("n1")?.stop_agent().await?;
    bed.say("eight pods run; their agent is killed");
    for code in BETWEEN {
        tell(bed, code).await?;
    }
    for pod in &before {
        let between = BETWEEN.iter().any(|code| name(*code) == pod.name_any());
        let lines = log(bed, pod).await?.len();
        let what = format!("{} {}", pod.name_any(), if between { "ends" } else { "goes on" });
        eventually(MINUTE * 3, &what, async || {
            let log = log(bed, pod).await?;
            let over = log.last().is_some_and(|line| line.starts_with("over"));
            ensure!(if between { over } else { !over && log.len() > lines + 10 }, "{:?}", log.last());
            Ok(())
        })
        .await?;
    }
    let started = jiff_now();
    bed.node("n1")?.start_agent()?;
    eventually(MINUTE * 3, "the ends in between are reported", async || {
        for pod in all(bed).await? {
            let Some(code) = BETWEEN.iter().find(|code| name(**code) == pod.name_any()) else { continue };
            let end = container(&pod)?.state.as_ref().and_then(|state| state.terminated.clone()).context("it has not ended")?;
            ensure!(end.exit_code == *code, "{} ended with {}", pod.name_any(), end.exit_code);
            let finished = serde_json::to_string(&end.finished_at)?;
            ensure!(finished.trim_matches('"') <= started.as_str(), "it ended at {finished}, before the agent started at {started}");
        }
        Ok(())
    })
    .await?;
    bed.say("the agent is back and has reported three ends");
    throughout(Duration::from_secs(3), "the other five are what they were", async || {
        for pod in all(bed).await? {
            if BETWEEN.iter().any(|code| name(*code) == pod.name_any()) {
                continue;
            }
            let old = before.iter().find(|old| old.uid() == pod.uid()).context("another pod")?;
            let (old, new) = (container(old)?, container(&pod)?);
            ensure!(new.container_id == old.container_id && new.state == old.state && new.restart_count == 0, "{new:?} was {old:?}");
            ensure!(is_ready(&pod), "{} is not ready", pod.name_any());
        }
        Ok(())
    })
    .await?;
    for code in PODS {
        tell(bed, code).await?;
    }
    let after = eventually(MINUTE * 3, "all have ended with their own exit codes", async || {
        let pods = all(bed).await?;
        for code in PODS {
            let pod = pods.iter().find(|pod| pod.name_any() == name(code)).context("it is gone")?;
            let end = container(pod)?.state.as_ref().and_then(|state| state.terminated.clone());
            ensure!(end.as_ref().is_some_and(|end| end.exit_code == code), "{} has {end:?}", pod.name_any());
            let wanted = if code == 0 { "Succeeded" } else { "Failed" };
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
            ensure!(phase.as_deref() == Some(wanted), "{} is {phase:?}", pod.name_any());
        }
        Ok(pods)
    })
    .await?;
    for pod in &after {
        let log = log(bed, pod).await?;
        let ticks = log.len() - 1;
        let mut wanted: Vec<String> = (1..=ticks).map(|tick| format!("tick {tick}")).collect();
        wanted.push(format!("over {ticks}"));
        ensure!(log == wanted, "the log of {} has a gap: {log:?}", pod.name_any());
    }
    bed.say("every line is in the logs, once and in order");
    never_unready(bed, killed_at).await?;
    let parameters = DeleteParams::default();
    for code in PODS {
        api(bed).delete(&name(code), &parameters).await?;
    }
    eventually(MINUTE * 3, "nothing is left", async || {
        ensure!(all(bed).await?.is_empty() && supervisors()? == others, "{} supervisors, of others {others}", supervisors()?);
        Ok(())
    })
    .await
}

/// Now, as the API writes times, to the second.
fn jiff_now() -> String {
    chrono::Utc::now().format("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// No pod that runs was shown unready after the agent was killed.
async fn never_unready(bed: &Bed, since: u64) -> Result<()> {
    for seen in bed.recorder.history().await?.iter().filter(|seen| seen.kind == Kind::Pod && seen.revision > since && !seen.deleted) {
        let status = &seen.object["status"];
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let unready = conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "False");
        ensure!(!unready || status["phase"] != "Running", "at {} it was unready: {status}", seen.revision);
    }
    Ok(())
}
