//! How long, and how many at once, nodes are out.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use chrono::{DateTime, Utc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    auditor::{Kind, Observation},
    bed::haproxy::HaProxy,
};

/// How often `HAProxy` is asked; it checks nodes every 200 ms itself.
const INTERVAL: Duration = Duration::from_millis(50);
/// Longest time without an answer of `HAProxy`: as long as a client waits. What was out for longer may have been missed.
const UNSEEN: Duration = Duration::from_secs(2);

/// The worst that was seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Worst {
    pub(crate) longest: Duration,
    pub(crate) most: usize,
}

/// Looks through the eyes of the load balancer until it is stopped.
pub(crate) struct Outages {
    task: JoinHandle<Result<Worst>>,
    stop: CancellationToken,
}

impl Outages {
    pub(crate) fn start(haproxy: &HaProxy) -> Self {
        let stop = CancellationToken::new();
        Self { task: tokio::spawn(watch(haproxy.clone(), stop.clone())), stop }
    }

    /// Stops looking. Fails if it could not look all the time.
    pub(crate) async fn stop(self) -> Result<Worst> {
        self.stop.cancel();
        self.task.await.context("looking which nodes are out")?
    }
}

/// The worst by the pods labelled `app=<app>`, for what never tells the load balancer: a node is out while it has no
/// ready pod that stays.
pub(crate) fn by_pods(history: &[Observation], app: &str, since: DateTime<Utc>) -> Worst {
    let mut worst = Worst::default();
    let mut ready: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut out: BTreeMap<String, DateTime<Utc>> = BTreeMap::new();
    for observation in history.iter().filter(|observation| observation.kind == Kind::Pod) {
        let pod = &observation.object;
        let (Some(node), Some(uid)) = (pod["spec"]["nodeName"].as_str(), pod["metadata"]["uid"].as_str()) else { continue };
        if pod["metadata"]["labels"]["app"] != app {
            continue;
        }
        let conditions = pod["status"]["conditions"].as_array();
        let is_ready = conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"));
        let of_node = ready.entry(node.to_owned()).or_default();
        if is_ready && !observation.deleted && pod["metadata"]["deletionTimestamp"].is_null() {
            of_node.insert(uid.to_owned());
        } else {
            of_node.remove(uid);
        }
        if !of_node.is_empty() {
            if let Some(began) = out.remove(node) {
                worst.longest = worst.longest.max((observation.at - began).to_std().unwrap_or_default());
            }
        } else if observation.at >= since {
            out.entry(node.to_owned()).or_insert(observation.at);
            worst.most = worst.most.max(out.len());
        }
    }
    worst
}

async fn watch(haproxy: HaProxy, stop: CancellationToken) -> Result<Worst> {
    let mut worst = Worst::default();
    let mut seen = Instant::now();
    let mut out: BTreeMap<String, Instant> = BTreeMap::new();
    while !stop.is_cancelled() {
        let answer = tokio::time::timeout(UNSEEN, haproxy.counters()).await;
        let now = Instant::now();
        ensure!(now - seen <= UNSEEN, "HAProxy did not say for {:?} which nodes are out", now - seen);
        if let Ok(Ok(counters)) = answer {
            seen = now;
            for (name, server) in counters.servers {
                if server.takes_traffic() {
                    out.remove(&name);
                } else {
                    let since = *out.entry(name).or_insert(now);
                    worst.longest = worst.longest.max(now - since);
                }
            }
            worst.most = worst.most.max(out.len());
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
    Ok(worst)
}
