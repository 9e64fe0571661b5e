//! The limit: a client that patches, and nothing else.

use std::{collections::BTreeSet, path::PathBuf};

use anyhow::{Context, Result};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event},
    },
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::objects::{KEY, has_taint, is_warm};
use crate::bed::control_plane;

/// Requests under way at once: as many as the operator makes.
const PARALLEL: usize = 64;
/// It says so when it sees what happens from now on.
pub const WATCHES: &str = "watching";

/// Arguments of the hidden command that is this process.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Kubeconfig of the API server, with the identity to use.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Prefix of its nodes' names.
    #[arg(long)]
    set: String,
}

/// Runs until it is ended.
pub async fn run(arguments: Arguments) -> Result<()> {
    let text = std::fs::read_to_string(&arguments.kubeconfig).context("reading the kubeconfig")?;
    let client = control_plane::client_without_retry(&serde_json::from_str(&text)?).await?;
    let api = Api::<Node>::all(client);
    let done = Mutex::new(BTreeSet::new());
    let events =
        watcher::watcher(api.clone(), watcher::Config::default()).default_backoff().filter_map(async |event| match event.ok()? {
            Event::InitDone => {
                println!("{WATCHES}");
                None
            }
            Event::InitApply(node) | Event::Apply(node) => node.name_any().starts_with(&arguments.set).then_some(node),
            Event::Init | Event::Delete(_) => None,
        });
    events
        .for_each_concurrent(PARALLEL, |node| {
            let name = node.name_any();
            let step = match (has_taint(&node), is_warm(&node)) {
                (false, false) => Some(false),
                (true, true) => Some(true),
                (true, false) | (false, true) => None,
            };
            let step = step.filter(|step| done.lock().insert((name.clone(), *step)));
            let api = &api;
            async move {
                if let Some(release) = step {
                    patch(api, &name, node, release).await;
                }
            }
        })
        .await;
    Ok(())
}

/// Others add and remove taints of the node, too.
async fn patch(api: &Api<Node>, name: &str, mut node: Node, release: bool) {
    for _ in 0..5 {
        let Ok(patch) = serde_json::from_value(bare_patch(&node, release)) else { return };
        if api.patch(name, &PatchParams::default(), &Patch::<()>::Json(patch)).await.is_ok() {
            return;
        }
        let Ok(now) = api.get(name).await else { continue };
        node = now;
    }
    println!("{name} was given up");
}

/// The least that adds or removes the taint.
fn bare_patch(node: &Node, release: bool) -> Value {
    let taints: Vec<_> = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()).collect();
    let taint = json!({ "key": KEY, "effect": "NoSchedule" });
    if release {
        let at = taints.iter().position(|taint| taint.key == KEY).unwrap_or(0);
        let path = format!("/spec/taints/{at}");
        json!([{ "op": "test", "path": format!("{path}/key"), "value": KEY }, { "op": "remove", "path": path }])
    } else if taints.is_empty() {
        json!([{ "op": "add", "path": "/spec/taints", "value": [taint] }])
    } else {
        json!([{ "op": "add", "path": "/spec/taints/-", "value": taint }])
    }
}
