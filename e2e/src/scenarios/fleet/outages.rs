//! A thousand nodes while the API server stands still.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{
    Api, ResourceExt,
    api::{ListParams, ObjectList, WatchEvent, WatchParams},
};
use nix::sys::signal::Signal;
use serde_json::json;

use super::session::{MINUTE, Running, SECOND, client, condition, fleet, is_true, make, nodes, pods};
use crate::{
    auditor::Kind,
    bed::{Bed, control_plane},
    eventually::{eventually, throughout},
};

const NODES: u32 = 1_000;
const PODS: u32 = 100;
/// Leases whose renewals were so far apart are told apart; a renewal is up to 4 % of 10 s off its time.
const APART_MILLIS: u64 = 1_500;
/// Requests under way together are answered in any order.
const IN_ORDER: f64 = 0.9;

pub async fn run(bed: &mut Bed) -> Result<()> {
    let begun = Instant::now();
    let running = Running::start(client(bed, &control_plane::server()).await?, fleet(NODES, "sim-", "")?).await?;
    bed.say(&format!("{NODES} nodes are registered after {:.1} s", begun.elapsed().as_secs_f32()));
    all_ready(bed).await?;
    // A Node is Ready from its first moment on, and has its lease a moment later.
    eventually(MINUTE, "all nodes have leases", async || {
        let held = of_nodes(bed).await?.items.iter().filter(|lease| renewed_at(lease).is_some()).count();
        ensure!(held == NODES as usize, "{held} have");
        Ok(())
    })
    .await?;
    for index in 0..PODS {
        make(bed, &format!("steady-{index}"), &format!("sim-{}", index * 7), &[]).await?;
    }
    pods_ready(bed, PODS).await?;
    for seconds in [20, 60] {
        stopped(bed, &running, seconds).await.with_context(|| format!("an API server that stands still for {seconds} s"))?;
    }
    running.stop().await
}

fn is_ready(node: &Node) -> bool {
    is_true(&json!(node.status), "Ready")
}

async fn all_ready(bed: &Bed) -> Result<()> {
    eventually(MINUTE * 3, "all nodes are Ready", async || {
        let list = nodes(bed).list(&ListParams::default()).await?;
        let ready = list.items.iter().filter(|node| is_ready(node)).count();
        ensure!(ready == NODES as usize, "{ready} are");
        Ok(())
    })
    .await
}

async fn pods_ready(bed: &Bed, wanted: u32) -> Result<()> {
    eventually(MINUTE * 3, "all pods are Ready", async || {
        let list = pods(bed).list(&ListParams::default()).await?;
        let ready = list.items.iter().filter(|pod| is_true(&json!(pod.status), "Ready")).count();
        ensure!(ready == wanted as usize && list.items.len() == ready, "{ready} of {} are", list.items.len());
        Ok(())
    })
    .await
}

/// Leases that were made together, or renewed together after an outage, have one age: only the next renewal of each is at its own place
/// in the interval, and tells which is older.
async fn each_at_its_own_time(bed: &Bed) -> Result<()> {
    let begun = k8s_openapi::jiff::Timestamp::now().as_millisecond();
    eventually(MINUTE, "each lease is renewed at its own time", async || {
        let list = of_nodes(bed).await?;
        let renewed = list.items.iter().filter(|lease| renewed_at(lease).is_some_and(|at| at > begun)).count();
        ensure!(renewed == NODES as usize, "{renewed} are");
        Ok(())
    })
    .await
}

fn leases(bed: &Bed) -> Api<Lease> {
    Api::namespaced(bed.client.clone(), "kube-node-lease")
}

/// The leases of nodes. The fleet has one of its own beside them, by which no other fleet runs the same nodes.
async fn of_nodes(bed: &Bed) -> Result<ObjectList<Lease>> {
    let mut list = leases(bed).list(&ListParams::default()).await?;
    list.items.retain(|lease| lease.owner_references().iter().any(|owner| owner.kind == "Node"));
    Ok(list)
}

/// In milliseconds.
fn renewed_at(lease: &Lease) -> Option<i64> {
    let at = lease.spec.as_ref()?.renew_time.as_ref()?.0;
    Some(at.as_millisecond())
}

async fn stopped(bed: &Bed, running: &Running, seconds: u32) -> Result<()> {
    each_at_its_own_time(bed).await?;
    let seen = bed.recorder.history().await?.len();
    let uids: BTreeSet<_> = pods(bed).list(&ListParams::default()).await?.items.iter().filter_map(ResourceExt::uid).collect();
    let made = running.metric("virtual_kubelet_requests_total", "verb=\"create\"");
    // Their status changes while nobody can be told.
    let during = (0..10).map(|index| format!("during-{seconds}-{index}"));
    let during: Vec<String> = during.collect();
    for (index, name) in during.iter().enumerate() {
        make(bed, name, &format!("sim-{index}"), &[("ready", "8s")]).await?;
    }
    let list = of_nodes(bed).await?;
    let before: BTreeMap<_, _> = list.items.iter().filter_map(|lease| Some((lease.name_any(), renewed_at(lease)?))).collect();
    ensure!(before.len() == NODES as usize, "{} leases", before.len());
    bed.say(&format!("the API server stands still for {seconds} s"));
    bed.control_plane.signal("kube-apiserver", Signal::SIGSTOP)?;
    let stood = throughout(SECOND * seconds, "the fleet runs on", async || {
        ensure!(!running.task.is_finished(), "it ended");
        Ok(())
    })
    .await;
    bed.control_plane.signal("kube-apiserver", Signal::SIGCONT)?;
    stood?;
    let back = Instant::now();
    let order = renewals(bed, &before, list.metadata.resource_version.as_deref().unwrap_or_default()).await?;
    bed.say(&format!("all leases are renewed {:.1} s after it", back.elapsed().as_secs_f32()));
    let order: Vec<i64> = order.iter().map(|name| before[name]).collect();
    let (mut told_apart, mut in_order) = (0_u32, 0_u32);
    for (index, earlier) in order.iter().enumerate() {
        for later in &order[index + 1..] {
            if later.abs_diff(*earlier) > APART_MILLIS {
                told_apart += 1;
                in_order += u32::from(later > earlier);
            }
        }
    }
    ensure!(told_apart > NODES * NODES / 8, "only {told_apart} pairs of leases can be told apart");
    let share = f64::from(in_order) / f64::from(told_apart);
    bed.say(&format!("of leases that can be told apart {:.1} % were renewed in the order of their age", share * 100.0));
    ensure!(share >= IN_ORDER, "the storm is not ordered");
    all_ready(bed).await?;
    pods_ready(bed, u32::try_from(uids.len() + during.len())?).await?;
    bed.say(&format!("nodes and pods are Ready {:.1} s after it", back.elapsed().as_secs_f32()));
    // The node controller may call one lost a moment after the API server answers again: it has not seen the lease then that was
    // renewed meanwhile.
    eventually(MINUTE * 3, "they stay so", async || {
        throughout(SECOND * 6, "all nodes are Ready", async || {
            let list = nodes(bed).list(&ListParams::default()).await?;
            let unready: Vec<_> = list.items.iter().filter(|node| !is_ready(node)).map(ResourceExt::name_any).collect();
            ensure!(unready.is_empty(), "{unready:?} are not");
            Ok(())
        })
        .await
    })
    .await?;
    let now: BTreeSet<_> = pods(bed).list(&ListParams::default()).await?.items.iter().filter_map(ResourceExt::uid).collect();
    ensure!(now.is_superset(&uids), "pods are gone");
    let creations = running.metric("virtual_kubelet_requests_total", "verb=\"create\"");
    ensure!(creations == made, "Nodes or leases were made anew");
    let history = bed.recorder.history().await?;
    let mut losses = BTreeMap::<String, (bool, u32)>::new();
    for node in history[seen..].iter().filter(|seen| seen.kind == Kind::Node) {
        let is_lost = condition(&node.object["status"], "Ready")["status"] != "True";
        let (known, times) = losses.entry(node.object["metadata"]["name"].to_string()).or_default();
        let was_lost = std::mem::replace(known, is_lost);
        *times += u32::from(is_lost && !was_lost);
    }
    losses.retain(|_, (_, times)| *times > 0);
    bed.say(&format!("{} nodes were called lost meanwhile", losses.len()));
    ensure!(seconds > 20 || losses.is_empty(), "{losses:?} were not Ready");
    ensure!(losses.values().all(|(_, times)| *times == 1), "nodes were called lost again and again: {losses:?}");
    Ok(())
}

/// The nodes in the order in which their leases were renewed first, from `version` on; the renewals that were on their way
/// when the API server stopped are left out.
async fn renewals(bed: &Bed, before: &BTreeMap<String, i64>, version: &str) -> Result<Vec<String>> {
    let resumed = k8s_openapi::jiff::Timestamp::now().as_millisecond() - 1_000;
    let mut order = Vec::new();
    let mut seen = BTreeSet::new();
    let all = async {
        let leases = leases(bed);
        let mut events = leases.watch(&WatchParams::default().timeout(280), version).await?.boxed();
        while let Some(event) = events.next().await {
            let (WatchEvent::Added(lease) | WatchEvent::Modified(lease)) = event? else { continue };
            let name = lease.name_any();
            let on_its_way = renewed_at(&lease).is_some_and(|at| at < resumed);
            if before.contains_key(&name) && seen.insert(name.clone()) && !on_its_way {
                order.push(name);
            }
            if seen.len() == before.len() {
                break;
            }
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(MINUTE * 3, all).await.context("not all leases are renewed")??;
    Ok(order)
}
