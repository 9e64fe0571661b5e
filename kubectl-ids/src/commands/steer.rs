//! `pause` and `resume`, and how the resource is written.

use anyhow::Result;
use crds::IngressDaemonSet;
use kube::{
    ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{plan::MANAGER, say_if_operator_is_down, title};
use crate::{
    arguments::One,
    cluster::Cluster,
    failure::{Request, explain, listed},
    output::print,
};

/// Sets or clears `spec.paused`.
pub async fn pause(cluster: &Cluster, one: &One, paused: bool) -> Result<()> {
    let before = cluster.find(one.name.as_deref()).await?;
    let word = if paused { "paused" } else { "resumed" };
    if before.spec.paused == paused {
        return print(&format!("{} {}\n", title(&before), if paused { "was paused already" } else { "was not paused" }));
    }
    let after = patch(cluster, &before, &json!({ "spec": { "paused": paused } })).await?;
    let under_way = under_way(&after);
    let rest = match (paused, under_way.is_empty()) {
        (true, true) => ": no new node starts".to_owned(),
        (true, false) => format!(": no new node starts; {} under way and will finish", listed(&under_way)),
        (false, _) => String::new(),
    };
    print(&format!("{} {word}{rest}\n", title(&after)))?;
    say_if_operator_is_down(cluster, &after).await;
    Ok(())
}

/// Nodes that have a grant.
fn under_way(resource: &IngressDaemonSet) -> Vec<String> {
    resource.ledger().iter().flat_map(|ledger| ledger.grants.keys().cloned()).collect()
}

/// A merge patch of the resource.
pub async fn patch(cluster: &Cluster, resource: &IngressDaemonSet, change: &Value) -> Result<IngressDaemonSet> {
    let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
    let patched = cluster.resources().patch(&resource.name_any(), &params, &Patch::Merge(change)).await;
    patched.map_err(|error| explain(error, Request::ours("patch", &cluster.namespace)))
}
