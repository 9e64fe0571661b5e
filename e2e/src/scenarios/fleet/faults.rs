//! Every fault as it is seen through the API; histories and their seeds.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use virtual_kubelet::fleet::{FleetConfig, NodeFault};

use super::session::{
    MINUTE, Running, SECOND, annotate, client, condition, delete, fleet, is_gone, is_true, make, node_is, nodes, pods, runs, shows,
};
use crate::{
    auditor::Kind,
    bed::{Bed, control_plane},
    eventually::{eventually, throughout},
};

pub async fn run(bed: &mut Bed) -> Result<()> {
    let client = client(bed, &control_plane::server()).await?;
    let config = FleetConfig { lease_duration: SECOND * 8, ..fleet(20, "sim-", "")? };
    let running = Running::start(client.clone(), config).await?;
    bed.say("20 nodes are registered");
    let (bed, running) = (&*bed, &running);
    let ((), (), (), (), (), (), (), (), ()) = tokio::try_join!(
        image_pull_error(bed),
        crash_loop(bed),
        never_ready(bed),
        slow_stop(bed),
        image_change(bed),
        kubelet_restart(bed, running),
        lost(bed, running),
        late_lease(bed, running),
        wrong_annotation(bed),
    )?;
    watch_dropped(bed, running).await.context("a dropped watch")?;
    let first = history(bed, client.clone(), "one-", 5).await.context("the first history")?;
    let again = history(bed, client, "two-", 5).await.context("its repetition")?;
    ensure!(first == again, "the same seed gave two histories:\n{first:#?}\n{again:#?}");
    bed.say("a seed repeats a history");
    Ok(())
}

/// The state of the container `main`, and its reason.
fn main_state(status: &Value) -> (String, String) {
    let containers = status["containerStatuses"].as_array().map(Vec::as_slice).unwrap_or_default();
    let main = containers.iter().find(|container| container["name"] == "main").unwrap_or(&Value::Null);
    let state = main["state"].as_object().and_then(|state| state.iter().next());
    state.map(|(state, detail)| (state.clone(), detail["reason"].as_str().unwrap_or_default().to_owned())).unwrap_or_default()
}

async fn image_pull_error(bed: &Bed) -> Result<()> {
    make(bed, "unpulled", "sim-0", &[("fault", "image-pull-error")]).await?;
    for reason in ["ErrImagePull", "ImagePullBackOff"] {
        shows(bed, "unpulled", MINUTE, reason, |status| status["phase"] == "Pending" && main_state(status).1 == reason).await?;
    }
    annotate(pods(bed), "unpulled", "fault", Value::Null).await?;
    runs(bed, "unpulled").await?;
    bed.say("an image that cannot be pulled is tried again until it can");
    Ok(())
}

async fn crash_loop(bed: &Bed) -> Result<()> {
    make(bed, "crashing", "sim-1", &[("fault", "crash-loop")]).await?;
    let pod = shows(bed, "crashing", MINUTE, "backs off", |status| main_state(status).1 == "CrashLoopBackOff").await?;
    let container = json!(pod.status)["containerStatuses"][0].clone();
    ensure!(container["lastState"]["terminated"]["exitCode"] == 1 && container["restartCount"] == 1, "{container}");
    let message = container["state"]["waiting"]["message"].as_str().unwrap_or_default().to_owned();
    ensure!(message.starts_with("back-off 10s restarting failed container=main pod=crashing_default("), "{message}");
    shows(bed, "crashing", MINUTE, "is restarted", |status| status["containerStatuses"][0]["restartCount"].as_i64() >= Some(2)).await?;
    bed.say("a crash loop backs off, counts its restarts and says why");
    Ok(())
}

async fn never_ready(bed: &Bed) -> Result<()> {
    make(bed, "unready", "sim-2", &[("fault", "never-ready")]).await?;
    let unready = |status: &Value| status["phase"] == "Running" && condition(status, "Ready")["reason"] == "ContainersNotReady";
    shows(bed, "unready", MINUTE, "runs and is not ready", unready).await?;
    throughout(SECOND * 4, "it stays so", async || {
        let status = json!(pods(bed).get("unready").await?.status);
        ensure!(unready(&status), "{status}");
        Ok(())
    })
    .await?;
    annotate(pods(bed), "unready", "fault", Value::Null).await?;
    runs(bed, "unready").await?;
    bed.say("a pod that is never ready becomes so when the fault is taken away");
    Ok(())
}

async fn slow_stop(bed: &Bed) -> Result<()> {
    make(bed, "slow", "sim-3", &[("fault", "slow-stop")]).await?;
    let pod = runs(bed, "slow").await?;
    let begun = Instant::now();
    delete(bed, "slow", Some(6)).await?;
    is_gone(bed, &pod, MINUTE).await?;
    let took = begun.elapsed();
    // Before the 30 s of its spec are over, on a machine that others keep busy.
    ensure!((SECOND * 5..SECOND * 25).contains(&took), "it took {took:?} to end");
    bed.say("a slow stop takes the whole grace period, and no more");
    Ok(())
}

async fn image_change(bed: &Bed) -> Result<()> {
    make(bed, "changed", "sim-4", &[("pull", "6s"), ("stop", "1s")]).await?;
    let before = json!(runs(bed, "changed").await?.status);
    let patch = json!({ "spec": { "containers": [{ "name": "main", "image": "main:2" }] } });
    pods(bed).patch("changed", &PatchParams::default(), &Patch::Strategic(patch)).await.context("changing the image")?;
    let ended = |status: &Value| main_state(status).0 == "terminated" && status["containerStatuses"][0]["image"] == "main:1";
    shows(bed, "changed", MINUTE, "ends its container before the image is fetched", ended).await?;
    let after = shows(bed, "changed", MINUTE, "runs the other image", |status| {
        status["containerStatuses"][0]["image"] == "main:2" && is_true(status, "Ready")
    });
    let pod = after.await?;
    let after = json!(pod.status);
    let (main, other) = (&after["containerStatuses"][0], &after["containerStatuses"][1]);
    ensure!(main["restartCount"] == 1 && main["imageID"] != before["containerStatuses"][0]["imageID"], "{main}");
    ensure!(main["containerID"] != before["containerStatuses"][0]["containerID"], "{main}");
    ensure!(*other == before["containerStatuses"][1] && after["podIP"] == before["podIP"], "{after}");
    ensure!(after["observedGeneration"] == json!(pod.metadata.generation), "{after}");
    bed.say("another image restarts its container alone");
    Ok(())
}

async fn kubelet_restart(bed: &Bed, running: &Running) -> Result<()> {
    for (name, node) in [("by-mark", "sim-5"), ("by-call", "sim-6")] {
        make(bed, name, node, &[]).await?;
        runs(bed, name).await?;
    }
    annotate(nodes(bed), "sim-5", "kubelet-restart", json!("once")).await?;
    running.handle.inject("sim-6", NodeFault::KubeletRestart)?;
    // Both at a time: it lasts 10 s.
    let unready = async |name: &str| {
        shows(bed, name, MINUTE, "is not ready", |status| !is_true(status, "Ready") && !is_true(status, "ContainersReady")).await
    };
    tokio::try_join!(unready("by-mark"), unready("by-call"))?;
    for name in ["by-mark", "by-call"] {
        let status = json!(runs(bed, name).await?.status);
        ensure!(status["containerStatuses"][0]["restartCount"] == 0, "{status}");
    }
    bed.say("a kubelet that starts again makes its pods unready for a while and restarts nothing");
    Ok(())
}

async fn lost(bed: &Bed, running: &Running) -> Result<()> {
    make(bed, "lonely", "sim-7", &[]).await?;
    runs(bed, "lonely").await?;
    running.handle.inject("sim-7", NodeFault::Lost)?;
    node_is(bed, "sim-7", "Unknown", MINUTE * 2).await?;
    shows(bed, "lonely", MINUTE, "is called not ready", |status| !is_true(status, "Ready")).await?;
    running.handle.inject("sim-7", NodeFault::Found)?;
    node_is(bed, "sim-7", "True", MINUTE).await?;
    runs(bed, "lonely").await?;
    bed.say("a lost node is called so, and it and its pods are Ready again when it is back");
    Ok(())
}

async fn late_lease(bed: &Bed, running: &Running) -> Result<()> {
    annotate(nodes(bed), "sim-8", "late-lease", json!("20s")).await?;
    running.handle.inject("sim-9", NodeFault::LateLease(SECOND * 20))?;
    for node in ["sim-8", "sim-9"] {
        node_is(bed, node, "Unknown", MINUTE * 3).await?;
    }
    annotate(nodes(bed), "sim-8", "late-lease", Value::Null).await?;
    running.handle.inject("sim-9", NodeFault::Found)?;
    for node in ["sim-8", "sim-9"] {
        node_is(bed, node, "True", MINUTE * 2).await?;
    }
    bed.say("a node with a late lease is called lost until it renews in time");
    Ok(())
}

async fn wrong_annotation(bed: &Bed) -> Result<()> {
    make(bed, "wrong", "sim-10", &[("ready", "soon")]).await?;
    let pod = shows(bed, "wrong", MINUTE, "says what is wrong", |status| main_state(status).1 == "CreateContainerConfigError").await?;
    ensure!(json!(pod.status).to_string().contains("uniform MIN MAX"), "{:?}", pod.status);
    annotate(pods(bed), "wrong", "ready", json!("1s")).await?;
    runs(bed, "wrong").await.map(drop)
}

async fn watch_dropped(bed: &Bed, running: &Running) -> Result<()> {
    running.handle.drop_watches(SECOND * 20);
    // It ends them a moment later.
    tokio::time::sleep(SECOND).await;
    make(bed, "unseen", "sim-11", &[]).await?;
    throughout(SECOND * 3, "nobody sees the pod", async || {
        let status = json!(pods(bed).get("unseen").await?.status);
        ensure!(status["phase"] == "Pending", "{status}");
        Ok(())
    })
    .await?;
    runs(bed, "unseen").await?;
    bed.say("what happened while the watch was dropped is noticed afterwards");
    Ok(())
}

/// The steps of a pod: what is seen of its container, and which run of it that is.
type Steps = Vec<(String, Value)>;

/// What five pods do under a fleet of its own with this seed.
async fn history(bed: &Bed, client: kube::Client, prefix: &str, seed: u64) -> Result<Vec<Steps>> {
    // Steps so far apart that each is written before the next comes, and nodes that are never called late.
    let rule = "pods:\n- {pull: uniform 3s 9s, ready: uniform 3s 6s, run: uniform 9s 15s, exitCode: 3}\n";
    let running = Running::start(client, FleetConfig { seed, lease_duration: SECOND * 8, ..fleet(5, prefix, rule)? }).await?;
    let since = bed.recorder.history().await?.len();
    let names: Vec<String> = (0..5).map(|index| format!("seeded-{index}")).collect();
    for (index, name) in names.iter().enumerate() {
        make(bed, name, &format!("{prefix}{index}"), &[]).await?;
    }
    for name in &names {
        shows(bed, name, MINUTE * 3, "has crashed twice", |status| {
            let restarts = status["containerStatuses"][0]["restartCount"].as_i64();
            restarts > Some(1) || restarts == Some(1) && main_state(status).0 == "waiting"
        })
        .await?;
    }
    let history = bed.recorder.history().await?;
    let steps = names.iter().map(|name| {
        let mut steps = Steps::new();
        let of_pod = history[since..].iter().filter(|seen| seen.kind == Kind::Pod && seen.object["metadata"]["name"] == **name);
        for seen in of_pod {
            let container = &seen.object["status"]["containerStatuses"][0];
            let (state, reason) = main_state(&seen.object["status"]);
            if state.is_empty() {
                continue;
            }
            let step = format!(
                "{} {state} {reason} ready={} restarts={}",
                seen.object["status"]["phase"], container["ready"], container["restartCount"]
            );
            if steps.last().is_none_or(|(last, _)| *last != step) {
                steps.push((step, container["containerID"].clone()));
            }
            // What comes after this is cut off at another place each time.
            if container["restartCount"] == 1 && state == "waiting" {
                break;
            }
        }
        steps
    });
    let steps: Vec<Steps> = steps.collect();
    for name in &names {
        let pod = pods(bed).get(name).await?;
        delete(bed, name, Some(1)).await?;
        is_gone(bed, &pod, MINUTE).await?;
    }
    eventually(MINUTE, "the fleet has forgotten its pods", async || {
        ensure!(running.metric("virtual_kubelet_pods_known", "") == 0, "it has not");
        Ok(())
    })
    .await?;
    running.stop().await?;
    Ok(steps)
}
