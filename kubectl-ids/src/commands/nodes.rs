//! `skip`, `retry`, `release`: what a person says of one node, or of all that failed.

use std::{
    collections::BTreeSet,
    io::{BufRead as _, IsTerminal as _, Write as _},
};

use anyhow::{Result, bail, ensure};
use chrono::{SecondsFormat, Utc};
use crds::{
    ledger::{GrantReason, Ledger, RolledBack},
    names,
};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use planner::patch::{JsonPatch, annotation};
use serde_json::{Value, json};

use super::{plan::MANAGER, say_if_operator_is_down, steer::patch, title};
use crate::{
    arguments::{OnNode, ReleaseOptions, RetryOptions},
    cluster::Cluster,
    failure::{RuleRequest, explain, is_missing},
    output::{print, span},
};

/// Attempts to write over what somebody else writes at the same time.
const ATTEMPTS: usize = 5;

/// Puts the resource on, or takes it off, a Node's list of those that leave it alone.
pub async fn skip(cluster: &Cluster, on: &OnNode, skip: bool) -> Result<()> {
    let resource = cluster.find(on.name.as_deref()).await?;
    let key = format!("{}/{}", cluster.namespace, resource.name_any());
    let listed = |old: Option<&str>| {
        let mut list: BTreeSet<String> =
            old.unwrap_or_default().split(',').map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned).collect();
        let changed = if skip { list.insert(key.clone()) } else { list.remove(&key) };
        changed.then(|| list.into_iter().collect::<Vec<_>>().join(","))
    };
    let changed = annotate(cluster, &on.node, names::SKIP_ANNOTATION, listed).await?;
    let (node, title) = (&on.node, title(&resource));
    let said = match (skip, changed) {
        (true, true) => format!("{title} skips node {node} until `kubectl ids skip {node} --undo`"),
        (true, false) => format!("{title} already skips node {node}"),
        (false, true) => format!("{title} updates node {node} again"),
        (false, false) => format!("{title} did not skip node {node}"),
    };
    print(&format!("{said}\n"))?;
    say_if_operator_is_down(cluster, &resource).await;
    Ok(())
}

/// Asks for another try on a node on which the revision failed, or on all of them.
pub async fn retry(cluster: &Cluster, options: &RetryOptions) -> Result<()> {
    let Some(node) = &options.node else {
        return retry_all(cluster, options.all.as_deref().filter(|name| !name.is_empty())).await;
    };
    let resource = cluster.find(options.name.as_deref()).await?;
    let rollout = resource.ledger().and_then(|ledger| ledger.rollout_state.as_ref());
    let Some((rollout, failure)) = rollout.and_then(|rollout| Some((rollout, rollout.failed.get(node)?))) else {
        bail!("{}", nothing_to_retry(node, &resource.name_any(), resource.ledger()));
    };
    annotate(cluster, node, names::RETRY_ANNOTATION, |_| Some(now())).await?;
    print(&format!(
        "{} retries revision {} on node {node}; the revision failed there: {}\n",
        title(&resource),
        rollout.revision,
        failure.reason
    ))?;
    say_if_operator_is_down(cluster, &resource).await;
    Ok(())
}

/// Why there is nothing to retry on a node. What was rolled back failed on nodes that run another revision by now, and a suspect has not
/// failed.
fn nothing_to_retry(node: &str, resource: &str, ledger: Option<&Ledger>) -> String {
    if ledger.is_some_and(|ledger| suspects(ledger).any(|suspect| suspect == node)) {
        return format!(
            "nothing failed on node {node}: it is suspect. To end the suspicion of all nodes that serve, and to let pass all that failed, run `kubectl ids retry --all {resource}`"
        );
    }
    match ledger.and_then(|ledger| ledger.rolled_back.as_ref()) {
        Some(RolledBack { from, to, reason, .. }) => format!(
            "revision {from} {reason}, and revision {to} runs instead: to try it again, on all nodes, run `kubectl ids retry --all {resource}`"
        ),
        None => format!("nothing failed on node {node}, so there is nothing to retry: see `kubectl ids why {node}`"),
    }
}

async fn retry_all(cluster: &Cluster, name: Option<&str>) -> Result<()> {
    let resource = cluster.find(name).await?;
    let failed = resource.ledger().map(failures).unwrap_or_default();
    if failed.is_empty() {
        bail!("nothing of {} failed, and no node is suspect, so there is nothing to retry: see `kubectl ids status`", title(&resource));
    }
    let change = json!({ "metadata": { "annotations": { names::RETRY_ANNOTATION: now() } } });
    let after = patch(cluster, &resource, &change).await?;
    print(&format!("{} accepts all failures and retries: {}\n", title(&after), failed.join(", ")))?;
    say_if_operator_is_down(cluster, &after).await;
    Ok(())
}

/// Nodes that are suspect now.
fn suspects(ledger: &Ledger) -> impl Iterator<Item = &str> {
    ledger.suspects.iter().filter(|(_, suspect)| suspect.since != 0).map(|(node, _)| node.as_str())
}

/// What failed, and where, and who is suspect.
fn failures(ledger: &Ledger) -> Vec<String> {
    let rolled_back = ledger.rolled_back.iter().map(|rolled_back| format!("revision {} {}", rolled_back.from, rolled_back.reason));
    let rollout = || ledger.rollout_state.iter();
    let here = rollout().flat_map(|rollout| &rollout.failed).map(|(node, failure)| format!("node {node} ({})", failure.reason));
    let gone =
        rollout().flat_map(planner::rollout::rollout_state::gone).map(|gone| format!("deleted node {} ({})", gone.node, gone.reason));
    let lost =
        rollout().flat_map(|rollout| rollout.lost.iter().map(|uid| (uid, rollout.lost_nodes.get(uid)))).map(|(uid, name)| match name {
            Some(name) => format!("lost machine {name}"),
            None => format!("lost machine with the UID {uid}"),
        });
    let suspect = suspects(ledger).map(|node| format!("suspect node {node}"));
    rolled_back.chain(here).chain(gone).chain(lost).chain(suspect).collect()
}

fn now() -> String {
    Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Ends a stuck grant after a person has confirmed the order.
pub async fn release(cluster: &Cluster, options: &ReleaseOptions) -> Result<()> {
    let node = &options.on.node;
    let resource = cluster.find(options.on.name.as_deref()).await?;
    let Some(grant) = resource.ledger().and_then(|ledger| ledger.grants.get(node)) else {
        bail!("{} has no grant for node {node}, so there is nothing to release: see `kubectl ids why {node}`", title(&resource));
    };
    if let Some(instead) = instead_of_release(node, grant.kind) {
        bail!("{instead}");
    }
    let since = span(Utc::now().timestamp().saturating_sub(grant.granted_at));
    let risk = format!(
        "this abandons {:?} (id {}, granted {since} ago) of node {node}, attaches the node whatever runs on it, and ends its grant. If the node does not serve, it uses a slot as an unavailable node",
        grant.kind, grant.id
    );
    if !options.yes && !confirmed(&risk)? {
        bail!("you did not confirm: nothing changed");
    }
    let order = format!("{}/{}:{}", cluster.namespace, resource.name_any(), grant.id);
    annotate(cluster, node, names::RELEASE_ANNOTATION, |_| Some(order.clone())).await?;
    print(&format!(
        "{} releases node {node} and retries it only after you change the template or run `kubectl ids retry {node}`\n",
        title(&resource)
    ))?;
    say_if_operator_is_down(cluster, &resource).await;
    Ok(())
}

/// Why the operator would not release a slot of this kind, and what to do instead. None if it would.
fn instead_of_release(node: &str, kind: GrantReason) -> Option<String> {
    match kind {
        GrantReason::Remove => Some(format!(
            "cannot release node {node}: the operator removes its pods, and frees its slot once they are gone. If the machine is gone, delete the Node \
             (`kubectl delete node {node}`) or force-delete its pods. If the node waits for the detacher, repair the detacher or set \
             onDetachTimeout to Proceed. See `kubectl ids why {node}`"
        )),
        GrantReason::Drain => Some(format!(
            "cannot release node {node}: the Node is about to leave, and its slot is free once the Node is gone. Delete the Node \
             (`kubectl delete node {node}`), or remove its taint to keep it. See `kubectl ids why {node}`"
        )),
        GrantReason::Update | GrantReason::Repair | GrantReason::Shrink | GrantReason::Grow | GrantReason::Abort => None,
    }
}

/// Asks on the terminal.
fn confirmed(risk: &str) -> Result<bool> {
    ensure!(std::io::stdin().is_terminal(), "{risk}: pass --yes to continue");
    eprint!("{risk}.\nContinue? [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Writes an annotation of a Node by what it is now, an empty one away; `false` where `edit` finds nothing to change.
async fn annotate(cluster: &Cluster, name: &str, key: &str, edit: impl Fn(Option<&str>) -> Option<String>) -> Result<bool> {
    let nodes = Api::<Node>::all(cluster.client.clone());
    for _ in 0..ATTEMPTS {
        let node = match nodes.get(name).await {
            Err(error) if is_missing(&error) => bail!("there is no node {name}: see `kubectl get nodes`"),
            other => other.map_err(|error| explain(error, RuleRequest::nodes("get")))?,
        };
        let old = node.annotations().get(key).map(String::as_str);
        let Some(new) = edit(old) else { return Ok(false) };
        let at = annotation(key);
        let mut patch = JsonPatch::of(node.metadata.uid.as_deref().unwrap_or_default());
        if node.annotations().is_empty() {
            patch = patch.test("/metadata/annotations", Value::Null).add("/metadata/annotations", json!({}));
        } else {
            patch = patch.test(&at, old.map_or(Value::Null, Into::into));
        }
        patch = if new.is_empty() { patch.remove(&at) } else { patch.add(&at, new) };
        let patch: json_patch::Patch = serde_json::from_value(patch.into_value())?;
        let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
        match nodes.patch(name, &params, &Patch::Json::<()>(patch)).await {
            Ok(_) => return Ok(true),
            // Somebody has changed it meanwhile: read it again.
            Err(kube::Error::Api(status)) if matches!(status.code, 409 | 422) => {}
            Err(error) => return Err(explain(error, RuleRequest::nodes("patch"))),
        }
    }
    bail!("annotation {key} of node {name} keeps changing: try again")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::ledger::Suspect;

    #[test]
    fn a_refused_release_of_a_leaving_node_names_remedies() {
        let removed = instead_of_release("n1", GrantReason::Remove).unwrap_or_default();
        for remedy in ["kubectl delete node n1", "force-delete its pods", "onDetachTimeout to Proceed"] {
            assert!(removed.contains(remedy), "{removed}");
        }
        let drained = instead_of_release("n1", GrantReason::Drain).unwrap_or_default();
        for remedy in ["kubectl delete node n1", "remove its taint"] {
            assert!(drained.contains(remedy), "{drained}");
        }
    }

    #[test]
    fn after_a_rollback_retrying_one_node_suggests_retrying_all() {
        let rolled_back = RolledBack { from: "b".into(), to: "a".into(), at: 0, reason: "failed on 1 of at most 1 nodes".into() };
        let ledger = Ledger { rolled_back: Some(rolled_back), ..Ledger::default() };
        let said = nothing_to_retry("n1", "edge", Some(&ledger));
        assert!(said.contains("revision b failed on 1") && said.contains("`kubectl ids retry --all edge`"), "{said}");
        for ledger in [None, Some(&Ledger::default())] {
            assert!(nothing_to_retry("n1", "edge", ledger).starts_with("nothing failed on node n1"));
        }
    }

    #[test]
    fn a_current_suspect_is_retried_only_by_retry_all() {
        let of = |since: i64| Suspect { since, ..Suspect::default() };
        let suspects = [("n1".to_owned(), of(1_767_225_600)), ("n2".to_owned(), of(0))];
        let ledger = Ledger { suspects: suspects.into(), ..Ledger::default() };
        assert_eq!(failures(&ledger), ["suspect node n1"]);
        assert!(nothing_to_retry("n1", "edge", Some(&ledger)).contains("`kubectl ids retry --all edge`"));
        assert!(nothing_to_retry("n2", "edge", Some(&ledger)).starts_with("nothing failed on node n2, so there is nothing"));
    }

    #[test]
    fn everything_else_is_released() {
        for kind in [GrantReason::Update, GrantReason::Repair, GrantReason::Shrink, GrantReason::Grow, GrantReason::Abort] {
            assert_eq!(instead_of_release("n1", kind), None, "{kind:?}");
        }
    }
}
