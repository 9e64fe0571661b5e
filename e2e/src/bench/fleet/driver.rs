//! Who makes and deletes pods, and for KWOK also nodes: the users of the fleet, the same for all contenders.

use std::{ops::Range, time::Duration};

use anyhow::{Context, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::Client;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use super::{exposition::Requests, objects, raw};

/// Requests under way at once.
const PARALLEL: usize = 64;
const PODS: &str = "/api/v1/namespaces/default/pods";

/// The driver, which counts what it asks for.
pub struct Driver {
    client: Client,
    requests: Mutex<Requests>,
}

impl Driver {
    /// A driver that has asked for nothing yet.
    pub fn new(client: Client) -> Self {
        Self { client, requests: Mutex::default() }
    }

    /// What it has asked for so far.
    pub fn requests(&self) -> Requests {
        self.requests.lock().clone()
    }

    /// Makes nodes that somebody else is to look after.
    pub async fn create_nodes(&self, count: usize) -> Result<()> {
        let requests = (0..count).map(|index| self.send("POST", "nodes", "/api/v1/nodes".to_owned(), move || objects::node(index, false)));
        stream::iter(requests).buffer_unordered(PARALLEL).try_collect().await
    }

    /// Makes pods, spread over the nodes; as fast as possible, or so many a second.
    pub async fn create_pods(&self, pods: Range<usize>, nodes: usize, per_second: Option<f64>) -> Result<()> {
        let begun = Instant::now();
        let requests = pods.clone().map(|index| async move {
            if let Some(per_second) = per_second {
                let number = u32::try_from(index - pods.start).unwrap_or(u32::MAX);
                sleep_until(begun + Duration::from_secs_f64(f64::from(number) / per_second)).await;
            }
            self.send("POST", "pods", PODS.to_owned(), move || objects::pod(index, nodes)).await
        });
        stream::iter(requests).buffer_unordered(PARALLEL).try_collect().await
    }

    /// Deletes pods as a user does, with their grace period: it is the node agent that lets them go.
    pub async fn delete_pods(&self, pods: Range<usize>) -> Result<()> {
        let requests = pods.map(|index| self.send("DELETE", "pods", format!("{PODS}/{}", objects::pod_name(index)), String::new));
        stream::iter(requests).buffer_unordered(PARALLEL).try_collect().await
    }

    async fn send(&self, method: &str, resource: &str, path: String, body: impl FnOnce() -> String) -> Result<()> {
        self.requests.lock().add(&format!("{method} {resource}"), 1.0);
        raw::send(&self.client, method, &path, "application/json", body()).await.with_context(|| format!("{method} {path}"))?;
        Ok(())
    }
}
