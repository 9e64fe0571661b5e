//! What happens to nodes while a revision proves itself, and is not its doing, or is. Scenarios: one power cut, machines that are
//! replaced, a backend that all need, a disk that is full, and a person who thinks better of it.

use std::{collections::BTreeMap, convert::Infallible, time::Duration};

use anyhow::{Context, Result, ensure};
use crds::{IngressDaemonSetStatus, ledger::RolloutState, names};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    auditor::{Expectations, Kind},
    bed::{Bed, haproxy::Server},
    cluster::product::{self, four_nodes, has_condition},
    eventually::eventually,
    load::{LoadOptions, Traffic},
    scenario::{LONGEST, Scenario},
    scenarios::{
        canaries::held,
        changes::UNANNOUNCED,
        outages::CUT_OFF,
        proof::{self, Bounds, DEFAULTS, FAILS, ONE_NODE, crashes_after, fails, is_ready, reached, serve},
    },
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
const MINUTE: Duration = Duration::from_mins(1);

fn rollout_state(status: &IngressDaemonSetStatus) -> Option<&RolloutState> {
    status.rollout.as_ref()?.rollout_state.as_ref()
}

/// The first node that has the newest revision and is attached again, and that revision.
pub(super) async fn first_attached(bed: &Bed) -> Result<(String, String)> {
    let status = product::status_says(bed, "one node has the newest revision, and is attached", product::SAID, |status| {
        let idle = status.rollout.as_ref().is_some_and(|ledger| ledger.grants.is_empty());
        status.revisions.update != status.revisions.current && status.nodes.updated == 1 && idle
    })
    .await?;
    let node = rollout_state(&status).and_then(|rollout| rollout.reached.keys().next().cloned()).context("no node was reached")?;
    Ok((node, status.revisions.update))
}

/// Seconds. The control plane takes up to 30 s here to call a Node lost.
const PROVEN_AFTER: u64 = 40;

/// The machine of the first node loses power just after it got a sound revision: the other nodes wait, and nothing is condemned.
pub const POWER_CUT: Scenario = Scenario {
    name: "a_power_cut_after_the_first_attach_condemns_nothing",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(power_cut(bed)),
};

async fn power_cut(bed: &mut Bed) -> Result<()> {
    serve(bed, product::template("1"), json!({ "provenAfterSeconds": PROVEN_AFTER, "autoRollback": true })).await?;
    let from = bed.recorder.history().await?.len();
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let watch = bed.haproxy.watch().await?;
    product::roll_to(bed, "2").await?;
    let (node, update) = first_attached(bed).await?;
    // When it is back the revision would have been proved, but for the machine.
    proof::dies(bed, &node, Duration::from_secs(PROVEN_AFTER), from, &update).await?;
    let back = Instant::now();
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.say(&format!("the rollout was complete {:.1} s after the machine was back", back.elapsed().as_secs_f32()));
    watch.at_least(3).await?;
    product::nothing_failed(bed, from).await?;
    traffic.loses_at_most(CUT_OFF, bed).await
}

/// Machines that replace failed ones get the former revision, and the bad one reaches no further node: at once, and then twice, each time after
/// the predecessor has been forgotten.
pub const REPLACED: Scenario = Scenario {
    name: "machines_that_replace_failed_ones_get_the_former_revision",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(replaced(bed)),
};

async fn replaced(bed: &mut Bed) -> Result<()> {
    serve(bed, product::template("1"), json!({ "provenAfterSeconds": DEFAULTS })).await?;
    let from = bed.recorder.history().await?.len();
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let watch = bed.haproxy.watch().await?;
    let (node, bad) = fails_and_halts(bed).await?;
    // Between two crashes nobody misses it.
    let others: Vec<_> = NODES.into_iter().filter(|other| *other != node).collect();
    bed.haproxy.serves(MINUTE, &others).await?;
    let deployments = Api::<Deployment>::namespaced(bed.client.clone(), "default");
    let name = format!("{}-{node}", product::NAME);
    let uid = bed.node(&node)?.re_register().await?;
    bed.say(&format!("{node} is another Node, {uid}"));
    serves_on_halted(bed).await?;
    for _ in 0..2 {
        bed.node(&node)?.remove().await?;
        // The pods of a Node that is gone stay until the control plane takes them away, for 40 s and more.
        eventually(MINUTE * 4, "the node that is gone is forgotten", async || {
            ensure!(deployments.get_opt(&name).await?.is_none(), "its Deployment is still there");
            Ok(())
        })
        .await?;
        bed.say(&format!("{node} is gone"));
        bed.node(&node)?.replace().await?;
        serves_on_halted(bed).await?;
    }
    let given = given(bed, from, &bad).await?;
    ensure!(given == [name.as_str()], "the revision was given to {given:?}");
    let corrected = Instant::now();
    product::roll_to(bed, "1").await?;
    product::is_complete(bed, NODES.len(), product::SAID).await?;
    bed.say(&format!("complete {:.1} s after the template was corrected", corrected.elapsed().as_secs_f32()));
    watch.at_least(3).await?;
    // The second machine and the third served when they were taken away.
    traffic.loses_at_most(2 * CUT_OFF, bed).await
}

/// A revision fails on a node, and its rollout halts: the node, and the revision.
async fn fails_and_halts(bed: &Bed) -> Result<(String, String)> {
    product::change(bed, json!({ "template": crashes_after(2)? })).await?;
    let failed = product::status_says(bed, "it has failed on a node, and the rollout halts", FAILS, |status| {
        status.nodes.failed == 1 && has_condition(status, "Stalled", "True", "MaxFailedNodes")
    })
    .await?;
    let node = rollout_state(&failed).and_then(|rollout| rollout.failed.keys().next().cloned()).context("nothing says where it failed")?;
    bed.say(&format!("it has failed on {node}, and the rollout is halted"));
    Ok((node, failed.revisions.update))
}

/// How long nothing happens for it to count as a halt.
const STANDS: Duration = Duration::from_secs(10);

/// All nodes serve, one of which is new, and the rollout stays halted.
async fn serves_on_halted(bed: &Bed) -> Result<()> {
    let halted = |status: &IngressDaemonSetStatus| {
        status.nodes.available == 4 && status.nodes.updated == 0 && has_condition(status, "Stalled", "True", "MaxFailedNodes")
    };
    product::status_says(bed, "all serve with the former revision, and the rollout is halted", product::SAID, halted).await?;
    product::status_stays(bed, "the rollout is halted", STANDS, halted).await?;
    bed.haproxy.serves(MINUTE, &NODES).await?;
    bed.say("all four nodes serve with the former revision, and the rollout is halted");
    Ok(())
}

/// Deployments that were given a revision, in that order, each as often as it was.
async fn given(bed: &Bed, from: usize, revision: &str) -> Result<Vec<String>> {
    let (mut given, mut has) = (Vec::new(), BTreeMap::new());
    for seen in bed.recorder.history().await?.iter().skip(from).filter(|seen| seen.kind == Kind::Deployment) {
        let meta = &seen.object["metadata"];
        let runs = seen.object["spec"]["template"]["metadata"]["labels"][names::REVISION_LABEL] == revision;
        let before = has.insert(meta["uid"].as_str().context("no UID")?.to_owned(), runs);
        if runs && before != Some(true) {
            given.push(meta["name"].as_str().context("no name")?.to_owned());
        }
    }
    Ok(given)
}

/// So long the backend is away, in seconds: longer than a node may be out of service.
const OUTAGE: u64 = 40;
/// Seconds that a node may be out of service, and for which a revision must serve.
const MOST: u64 = 30;

/// Requests in a second at most: each of 32 connections waits 30 ms between an answer and its next request.
const PER_SECOND: u64 = 32 * 1000 / 30;
/// How late the scenario may see that no node serves any more.
const LOOK: Duration = Duration::from_secs(1);

/// A backend is away from all nodes while a revision proves itself: pods of both revisions are unready.
pub const BACKEND: Scenario = Scenario {
    name: "a_backend_outage_during_proof_condemns_no_revision",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(backend(bed)),
};

async fn backend(bed: &mut Bed) -> Result<()> {
    // Containers see the file system of the bed.
    let away = bed.state().join("backend-is-away");
    let template = |version: &str| -> Result<Value> {
        let mut template = product::template(version);
        let is_there = format!("[ ! -e {} ]", away.display());
        template["spec"]["containers"].as_array_mut().context("no containers")?.push(json!({
            "name": "asks-backend", "image": "busybox:1.36", "command": ["/bin/sh", "-c", "sleep 3600"],
            "readinessProbe": {
                "exec": { "command": ["/bin/sh", "-c", is_there] }, "periodSeconds": 1, "failureThreshold": 3, "timeoutSeconds": 5,
            },
        }));
        Ok(template)
    };
    let more = json!({ "provenAfterSeconds": MOST, "nodeDeadlineSeconds": MOST, "autoRollback": true });
    serve(bed, template("1")?, more).await?;
    let from = bed.recorder.history().await?.len();
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let watch = bed.haproxy.watch().await?;
    product::change(bed, json!({ "template": template("2")? })).await?;
    let (node, update) = first_attached(bed).await?;
    // In the middle of the proof: time itself is what the scenario is about.
    tokio::time::sleep(Duration::from_secs(MOST / 2)).await;
    watch.at_least(3).await?;
    traffic.all_served(bed).await?;

    // No node serves while it is away, and nobody could do anything about it.
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    tokio::fs::write(&away, "").await.context("taking the backend away")?;
    bed.haproxy.serves(MINUTE, &[]).await?;
    bed.say(&format!("the backend is away, {node} being the first with the new revision: no node serves"));
    let nobody = Instant::now();
    // Time itself is what the scenario is about.
    tokio::time::sleep(Duration::from_secs(OUTAGE)).await;
    let meanwhile = reached(bed, from, &update).await?;
    bed.say(&format!("{meanwhile:?} have the new revision"));
    // Beside the first one that is out of service anyway gets it, and keeps its place, for it cannot be ready.
    ensure!((1..=2).contains(&meanwhile.len()), "the revision reached {meanwhile:?} while nobody could say what it is worth");
    tokio::fs::remove_file(&away).await.context("bringing the backend back")?;
    eventually(product::SAID, "a node serves again", async || {
        let servers = bed.haproxy.counters().await?.servers;
        ensure!(servers.values().any(Server::takes_traffic), "none does");
        Ok(())
    })
    .await?;
    // Whoever asks in vain gets an answer at once.
    let in_vain = u64::try_from((nobody.elapsed() + LOOK).as_millis())? * PER_SECOND / 1000;
    bed.haproxy.serves(product::SAID, &NODES).await?;
    bed.say("the backend is back");
    traffic.loses_at_most(in_vain, bed).await?;

    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let watch = bed.haproxy.watch().await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    watch.at_least(3).await?;
    product::nothing_failed(bed, from).await?;
    traffic.all_served(bed).await
}

/// Three times both pods of the node end at once. Until the load balancer lets go of it what it is asked fails.
const EVICTED: Bounds = Bounds { lost: 3 * UNANNOUNCED, ..ONE_NODE };
/// Label of pods that fill the disk of their node.
const FILLS_DISK: &str = "fills-disk";
/// So long after they were ready.
const FULL_AFTER: Duration = Duration::from_secs(5);

/// Pods fill the disk of their node, its kubelet evicts them, and the revision is rolled back.
pub const DISK: Scenario = Scenario {
    name: "a_revision_that_fills_the_disk_reaches_one_node",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| {
        Box::pin(async move {
            let mut template = product::template("2");
            template["metadata"]["labels"][FILLS_DISK] = "true".into();
            tokio::select! {
                outcome = fails(bed, DEFAULTS, template, "Evicted", EVICTED) => outcome,
                // It ends with an error, or not at all.
                error = evicts(bed) => error.map(|never| match never {}),
            }
        })
    },
};

/// Ends pods that fill the disk, again and again, by the status that a kubelet gives what it evicts. The agent of the node then ends their
/// containers, and leaves that status as it is.
async fn evicts(bed: &Bed) -> Result<Infallible> {
    let pods = Api::<Pod>::namespaced(bed.client.clone(), "default");
    let filling = ListParams::default().labels(FILLS_DISK);
    let full = async || -> Result<Vec<Pod>> {
        let all = pods.list(&filling).await?.items.into_iter();
        Ok(all.filter(|pod| is_ready(pod) && pod.metadata.deletion_timestamp.is_none()).collect())
    };
    let lacks = |type_: &str| json!({ "type": type_, "status": "False", "reason": "PodFailed" });
    let status = json!({
        "phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage.",
        "conditions": [
            { "type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet" }, lacks("Ready"), lacks("ContainersReady"),
        ],
    });
    loop {
        // The scenario is over before.
        eventually(LONGEST, "a pod that fills the disk is ready", async || {
            ensure!(!full().await?.is_empty(), "none is");
            Ok(())
        })
        .await?;
        // It takes a while to fill a disk.
        tokio::time::sleep(FULL_AFTER).await;
        for pod in full().await? {
            let patch = Patch::Strategic(json!({ "status": status }));
            match pods.patch_status(&pod.name_any(), &PatchParams::default(), &patch).await {
                Ok(_) => bed.say(&format!("{} is evicted", pod.name_any())),
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error).context("evicting a pod"),
            }
        }
    }
}

/// Seconds; a rollback that waited for the proof would not be over in time.
const LONG: u32 = 600;

/// A person sets the template back.
pub const BACK: Scenario = Scenario {
    name: "a_rollback_during_proof_begins_at_once_without_failed_requests",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(back(bed)),
};

async fn back(bed: &mut Bed) -> Result<()> {
    serve(bed, product::template("1"), json!({ "provenAfterSeconds": LONG })).await?;
    let first = product::api(bed).get(product::NAME).await?.status.context("no status")?.revisions.current;
    let from = bed.recorder.history().await?.len();
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let watch = bed.haproxy.watch().await?;
    product::roll_to(bed, "2").await?;
    let (node, update) = first_attached(bed).await?;
    product::status_says(bed, "the others wait for the proof", product::SAID, |status| held(status, "Proving").len() == 3).await?;
    product::roll_to(bed, "1").await?;
    let changed = Instant::now();
    product::status_says(bed, "the way back begins", product::SAID, |status| {
        let mut grants = status.rollout.iter().flat_map(|ledger| &ledger.grants);
        grants.any(|(granted, grant)| *granted == node && grant.revision == first)
    })
    .await?;
    let began = changed.elapsed();
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    let (began, over) = (began.as_secs_f32(), changed.elapsed().as_secs_f32());
    bed.say(&format!("the way back began after {began:.1} s and was complete after {over:.1} s; the proof takes {LONG} s"));
    let reached = reached(bed, from, &update).await?;
    ensure!(reached.len() == 1, "the revision reached {reached:?}");
    proof::was_never_current(bed, from, &update).await?;
    watch.at_least(3).await?;
    traffic.all_served(bed).await
}

/// The machine dies each time it gets the revision, where nodes that are not Ready are ignored. The revision is rolled back.
pub const IGNORED: Scenario = Scenario {
    name: "a_revision_that_kills_ignored_machines_reaches_no_other_node",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(proof::machine_dies(bed, "Ignore")),
};
