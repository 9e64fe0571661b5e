//! The limit: the fewest writes that any node agent could make. One create per node and per lease, one status patch and one
//! delete per pod, and the renewals that keep nodes Ready, as often as a kubelet makes them. Without those a fleet would not
//! last a minute, and they are half of what the API server does in the meantime.
//!
//! It knows one kind of pod and forgives no failure: it is a yardstick, no node agent.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use kube::Client;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep_until},
};

use super::{
    objects,
    raw::{self, Change, Thin},
};
use crate::bed::control_plane;

/// Requests under way at once, for nodes and for pods each.
const PARALLEL: usize = 64;
/// The same for renewals: many more, so that a busy API server gives them the larger part of its time. With 32, a fleet of 5,000 on a
/// machine that was also compiling lost 262 nodes while pods were made.
const RENEWALS: usize = 256;
/// How often a kubelet renews: a quarter of the lease's duration.
const RENEW: Duration = Duration::from_secs(10);

/// Arguments of the hidden command that is this process.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Kubeconfig of the API server.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Number of nodes.
    #[arg(long)]
    nodes: usize,
}

/// Runs until it is ended.
pub async fn run(arguments: Arguments) -> Result<()> {
    let text = std::fs::read_to_string(&arguments.kubeconfig).context("reading the kubeconfig")?;
    let client = control_plane::client(&serde_json::from_str(&text)?).await?;
    let (creating, renewing) = (Arc::new(Semaphore::new(PARALLEL)), Arc::new(Semaphore::new(RENEWALS)));
    for index in 0..arguments.nodes {
        let (client, creating, renewing) = (client.clone(), Arc::clone(&creating), Arc::clone(&renewing));
        tokio::spawn(async move {
            if let Err(error) = node(&client, index, &creating, &renewing).await {
                eprintln!("node {index}: {error:#}");
            }
        });
    }
    pods(client).await;
    Ok(())
}

/// A node from its creation on.
async fn node(client: &Client, index: usize, creating: &Semaphore, renewing: &Semaphore) -> Result<()> {
    let name = objects::node_name(index);
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let permit = creating.acquire().await?;
    let node: Thin = serde_json::from_str(&json(client, "POST", "/api/v1/nodes", objects::node(index, true)).await?)?;
    let uid = node.metadata.uid;
    // Behind the nodes that wait: a node is Ready without a lease, for as long as the grace period is.
    drop(permit);
    let permit = creating.acquire().await?;
    let mut lease: Thin = serde_json::from_str(&json(client, "POST", leases, objects::lease(&name, &uid, "")).await?)?;
    drop(permit);
    // Nodes that were made together do not renew together.
    let mut due = Instant::now() + RENEW.mul_f64(fastrand::f64());
    let path = format!("{leases}/{name}");
    loop {
        sleep_until(due).await;
        due = (due + RENEW).max(Instant::now());
        let _permit = renewing.acquire().await?;
        let renewed = json(client, "PUT", &path, objects::lease(&name, &uid, &lease.metadata.resource_version)).await;
        match renewed {
            Ok(text) => lease = serde_json::from_str(&text)?,
            // What became of the last one is not known, so neither is the version.
            Err(error) => {
                eprintln!("lease of {name}: {error}");
                let request = http::Request::get(&path).body(Vec::new())?;
                lease = client.request(request).await.unwrap_or(lease);
            }
        }
    }
}

/// All pods: each is Running as soon as it is there, and gone as soon as it is deleted.
async fn pods(client: Client) {
    let (parallel, addresses) = (Arc::new(Semaphore::new(PARALLEL)), Arc::new(AtomicU32::new(0)));
    let answer = |pod: Thin| {
        let deleted = pod.metadata.deletion_timestamp.is_some();
        // A grace period of nothing is this agent's own, and an event on the way to the pod's end.
        let done = if deleted { pod.metadata.deletion_grace_period_seconds == Some(0) } else { pod.status.phase != "Pending" };
        if done {
            return;
        }
        let (client, parallel, addresses) = (client.clone(), Arc::clone(&parallel), Arc::clone(&addresses));
        tokio::spawn(async move {
            let Ok(_permit) = parallel.acquire().await else { return };
            let uri = format!("/api/v1/namespaces/default/pods/{}", pod.metadata.name);
            let sent = if deleted {
                json(&client, "DELETE", &uri, objects::end(&pod.metadata.uid)).await
            } else {
                let patch = objects::running(addresses.fetch_add(1, Ordering::Relaxed));
                raw::send(&client, "PATCH", &format!("{uri}/status"), "application/merge-patch+json", patch).await
            };
            if let Err(error) = sent {
                eprintln!("{uri}: {error}");
            }
        });
    };
    raw::follow(client.clone(), "/api/v1/pods", "fieldSelector=spec.nodeName!%3D", |change| match change {
        Change::All(pods) => pods.into_iter().for_each(&answer),
        Change::Is(pod) => answer(pod),
        Change::Gone(_) => {}
    })
    .await;
}

async fn json(client: &Client, method: &str, path: &str, body: String) -> kube::Result<String> {
    raw::send(client, method, path, "application/json", body).await
}
