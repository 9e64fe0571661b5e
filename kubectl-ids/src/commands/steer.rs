//! What changes something.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use crds::{IngressDaemonSet, names};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use planner::patch::{JsonPatch, annotation};
use serde_json::{Value, json};

use super::{plan::MANAGER, say_if_operator_is_down, title};
use crate::{
    arguments::{OnNode, One},
    cluster::Cluster,
    failure::{Request, explain, is_missing, listed},
    output::print,
};

/// Attempts to write over what somebody else writes at the same time.
const ATTEMPTS: usize = 5;

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
    resource.status.iter().filter_map(|status| status.rollout.as_ref()).flat_map(|ledger| ledger.grants.keys().cloned()).collect()
}

/// A merge patch of the resource.
async fn patch(cluster: &Cluster, resource: &IngressDaemonSet, change: &Value) -> Result<IngressDaemonSet> {
    let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
    let patched = cluster.resources().patch(&resource.name_any(), &params, &Patch::Merge(change)).await;
    patched.map_err(|error| explain(error, Request::ours("patch", &cluster.namespace)))
}

/// Puts the resource on, or takes it off, a Node's list of those that leave it alone.
pub async fn skip(cluster: &Cluster, on: &OnNode, skip: bool) -> Result<()> {
    let resource = cluster.find(on.name.as_deref()).await?;
    let key = format!("{}/{}", cluster.namespace, resource.name_any());
    let changed =
        edit_list(cluster, &on.node, names::SKIP_ANNOTATION, |keys| if skip { keys.insert(key.clone()) } else { keys.remove(&key) })
            .await?;
    let (node, title) = (&on.node, title(&resource));
    let said = match (skip, changed) {
        (true, true) => format!("node {node} is left as it is by {title}, until `kubectl ids skip {node} --undo`"),
        (true, false) => format!("node {node} was left out by {title} already"),
        (false, true) => format!("node {node} is updated by {title} again"),
        (false, false) => format!("node {node} was not left out by {title}"),
    };
    print(&format!("{said}\n"))?;
    say_if_operator_is_down(cluster, &resource).await;
    Ok(())
}

/// Changes the comma-separated list in an annotation of a Node; `false` when that changes nothing.
async fn edit_list(cluster: &Cluster, name: &str, key: &str, edit: impl Fn(&mut BTreeSet<String>) -> bool) -> Result<bool> {
    let nodes = Api::<Node>::all(cluster.client.clone());
    for _ in 0..ATTEMPTS {
        let node = match nodes.get(name).await {
            Err(error) if is_missing(&error) => bail!("there is no node {name}: `kubectl get nodes` lists them"),
            other => other.map_err(|error| explain(error, Request::nodes("get")))?,
        };
        let annotations = node.metadata.annotations.clone().unwrap_or_default();
        let old = annotations.get(key);
        let mut list: BTreeSet<String> =
            old.into_iter().flat_map(|old| old.split(',')).map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned).collect();
        if !edit(&mut list) {
            return Ok(false);
        }
        let at = annotation(key);
        let mut patch = JsonPatch::of(node.metadata.uid.as_deref().unwrap_or_default());
        if annotations.is_empty() {
            patch = patch.test("/metadata/annotations", Value::Null).add("/metadata/annotations", json!({}));
        } else {
            patch = patch.test(&at, old.map_or(Value::Null, |old| old.as_str().into()));
        }
        patch = if list.is_empty() { patch.remove(&at) } else { patch.add(&at, list.into_iter().collect::<Vec<_>>().join(",")) };
        let patch: json_patch::Patch = serde_json::from_value(patch.into_value())?;
        let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
        match nodes.patch(name, &params, &Patch::Json::<()>(patch)).await {
            Ok(_) => return Ok(true),
            // Somebody has changed the list meanwhile: read it again.
            Err(kube::Error::Api(status)) if matches!(status.code, 409 | 422) => {}
            Err(error) => return Err(explain(error, Request::nodes("patch"))),
        }
    }
    bail!("annotation {key} of node {name} changes all the time: try again")
}
