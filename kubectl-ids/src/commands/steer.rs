//! `pause`, `resume` and `restart`, and how the resource is written.

use anyhow::Result;
use chrono::{SecondsFormat, Utc};
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
    failure::{RuleRequest, explain, listed},
    output::print,
};

/// Sets or clears `spec.paused`.
pub async fn pause(cluster: &Cluster, one: &One, paused: bool) -> Result<()> {
    let before = cluster.find(one.name.as_deref()).await?;
    let word = if paused { "paused" } else { "resumed" };
    if before.spec.paused == paused {
        return print(&format!("{} {}\n", title(&before), if paused { "is already paused" } else { "is not paused" }));
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

/// Annotation of a pod template by which `kubectl rollout restart` makes a new revision of it; its value is the time.
const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";

/// Replaces every pod by one of the same template.
pub async fn restart(cluster: &Cluster, one: &One) -> Result<()> {
    let before = cluster.find(one.name.as_deref()).await?;
    let now = Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true);
    let template = json!({ "metadata": { "annotations": { RESTARTED_AT: now } } });
    let after = patch(cluster, &before, &json!({ "spec": { "template": template } })).await?;
    let spec = &after.spec;
    let but = if spec.rollback_to.is_some() {
        "; rollbackTo pins an earlier revision: no pod restarts until `kubectl ids undo --clear`"
    } else if spec.paused {
        "; the resource is paused: no pod restarts until `kubectl ids resume`"
    } else {
        " and rolls it out within the budget: see `kubectl ids status -w`"
    };
    print(&format!("{} has a new revision of the same template{but}\n", title(&after)))?;
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
    patched.map_err(|error| explain(error, RuleRequest::ours("patch", &cluster.namespace)))
}
