//! Plays node-detacher, or a cloud's controller: drains a node in `HAProxy` when the Node asks for it, and says when it did.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use chrono::{SecondsFormat, TimeDelta, Utc};
use crds::names;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::bed::haproxy::HaProxy;

/// The Node annotation that asks for detachment; its presence counts, not its value.
pub const DETACHED_KEY: &str = "node-detacher.variant.run/detached";
/// The Node annotation that says since when it is detached (RFC 3339).
pub const TIMESTAMP_KEY: &str = "node-detacher.variant.run/detachment-timestamp";

/// How often unfinished work is tried again.
const TICK: Duration = Duration::from_millis(100);

/// How well the detacher does its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Drains, then writes the time.
    Good,
    /// Does nothing.
    Silent,
    /// As [`Variant::Good`], so much later.
    Slow(Duration),
    /// Drains nothing and writes a time from before the request.
    StaleTimestamp,
    /// Drains nothing and writes the present time.
    FalseSuccess,
    /// Drains a Node that has the label by which cloud controllers leave it out of load balancers, and says nothing.
    Cloud,
}

/// A running detacher. Dropping it stops it.
#[derive(Debug)]
pub struct Detacher {
    task: JoinHandle<()>,
}

impl Drop for Detacher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Detacher {
    /// Starts to watch Nodes.
    pub fn start(client: &Client, haproxy: &HaProxy, variant: Variant) -> Self {
        Self::start_for(client, haproxy, variant, None)
    }

    /// Starts one that looks after this node alone.
    pub fn start_on(client: &Client, haproxy: &HaProxy, variant: Variant, node: &str) -> Self {
        Self::start_for(client, haproxy, variant, Some(node.to_owned()))
    }

    fn start_for(client: &Client, haproxy: &HaProxy, variant: Variant, only: Option<String>) -> Self {
        let nodes = Api::all(client.clone());
        let work = Work { nodes, haproxy: haproxy.clone(), variant, only, requests: BTreeMap::new(), done: BTreeMap::new() };
        Self { task: tokio::spawn(work.run()) }
    }
}

struct Work {
    nodes: Api<Node>,
    haproxy: HaProxy,
    variant: Variant,
    /// The only node that it looks after; none when it looks after all.
    only: Option<String>,
    /// Nodes that ask to be detached, and since when.
    requests: BTreeMap<String, Instant>,
    /// What was last done for a node: detached or attached.
    done: BTreeMap<String, bool>,
}

impl Work {
    async fn run(mut self) {
        let mut stream = std::pin::pin!(watcher(self.nodes.clone(), watcher::Config::default()).default_backoff().touched_objects());
        loop {
            match tokio::time::timeout(TICK, stream.next()).await {
                Ok(Some(Ok(node))) => self.note(&node),
                Ok(Some(Err(error))) => tracing::debug!("detacher: {error}"),
                Ok(None) => return,
                Err(_) => {}
            }
            for (node, detached) in self.pending() {
                match self.act(&node, detached).await {
                    Ok(()) => {
                        self.done.insert(node, detached);
                    }
                    Err(error) => tracing::debug!("detacher: node {node}: {error:#}"),
                }
            }
        }
    }

    fn note(&mut self, node: &Node) {
        let name = node.name_any();
        if self.only.as_ref().is_some_and(|only| *only != name) {
            return;
        }
        let asks = match self.variant {
            Variant::Cloud => node.labels().contains_key(names::EXCLUDE_FROM_LOAD_BALANCERS_LABEL),
            _ => node.annotations().contains_key(DETACHED_KEY),
        };
        if asks {
            self.requests.entry(name).or_insert_with(Instant::now);
        } else {
            self.requests.remove(&name);
        }
    }

    fn pending(&self) -> Vec<(String, bool)> {
        let delay = match self.variant {
            Variant::Silent => return Vec::new(),
            Variant::Slow(delay) => delay,
            _ => Duration::ZERO,
        };
        let is_done = |name: &str| self.done.get(name).copied().unwrap_or(false);
        let detach = self.requests.iter().filter(|(name, since)| since.elapsed() >= delay && !is_done(name));
        let attach = self.done.iter().filter(|(name, detached)| **detached && !self.requests.contains_key(*name));
        detach.map(|(name, _)| (name.clone(), true)).chain(attach.map(|(name, _)| (name.clone(), false))).collect()
    }

    async fn act(&self, node: &str, detach: bool) -> Result<()> {
        let drains = matches!(self.variant, Variant::Good | Variant::Slow(_) | Variant::Cloud);
        if !detach {
            if drains {
                self.haproxy.undrain(node).await?;
            }
            return self.write_timestamp(node, Value::Null).await;
        }
        if drains {
            self.haproxy.drain(node).await?;
        }
        let age = if self.variant == Variant::StaleTimestamp { TimeDelta::hours(1) } else { TimeDelta::zero() };
        let time = (Utc::now() - age).to_rfc3339_opts(SecondsFormat::Secs, true);
        self.write_timestamp(node, time.into()).await
    }

    async fn write_timestamp(&self, node: &str, value: Value) -> Result<()> {
        if self.variant == Variant::Cloud {
            return Ok(());
        }
        let patch = json!({ "metadata": { "annotations": { TIMESTAMP_KEY: value } } });
        let result = self.nodes.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await;
        match result {
            // The machine is gone, and its annotations with it.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(drop).context("writing the timestamp"),
        }
    }
}
