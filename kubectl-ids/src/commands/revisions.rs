//! `history`, `undo`, `promote`: revisions of the template.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use chrono::Utc;
use crds::{IngressDaemonSet, names};
use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment};
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::{Value, json};

use super::{say_if_operator_is_down, steer::patch, title};
use crate::{
    arguments::{One, PromoteOptions, UndoOptions},
    cluster::Cluster,
    failure::{RuleRequest, explain},
    history::{Revision, newest_before, render},
    output::{Style, print, span},
};

/// Prints the recorded revisions.
pub async fn history(cluster: &Cluster, one: &One, style: Style) -> Result<()> {
    let resource = cluster.find(one.name.as_deref()).await?;
    let revisions = recorded(cluster, &resource).await?;
    ensure!(
        !revisions.is_empty(),
        "{} has no recorded revision yet: the operator records the first when it processes the resource",
        title(&resource)
    );
    print(&render(&resource, &revisions, &nodes_by_revision(cluster, &resource).await, style, Utc::now().timestamp()))
}

/// The revisions of a resource, oldest first.
async fn recorded(cluster: &Cluster, resource: &IngressDaemonSet) -> Result<Vec<Revision>> {
    let uid = resource.metadata.uid.clone().unwrap_or_default();
    let api = Api::<ControllerRevision>::namespaced(cluster.client.clone(), &cluster.namespace);
    let ours = ListParams::default().labels(&format!("{}={}", names::RESOURCE_LABEL, names::uid8(&uid)));
    let request = RuleRequest::of("list", "apps", "controllerrevisions", Some(&cluster.namespace));
    let listed = api.list(&ours).await.map_err(|error| explain(error, request))?;
    let owned = |found: &ControllerRevision| found.owner_references().iter().any(|owner| owner.uid == uid);
    let mut revisions: Vec<_> = listed.items.iter().filter(|found| owned(found)).map(Revision::of).collect();
    revisions.sort_by_key(|revision| revision.number);
    Ok(revisions)
}

/// How many nodes run each revision; nothing where the Deployments may not be read.
async fn nodes_by_revision(cluster: &Cluster, resource: &IngressDaemonSet) -> BTreeMap<String, usize> {
    let uid = resource.metadata.uid.clone().unwrap_or_default();
    let api = Api::<Deployment>::namespaced(cluster.client.clone(), &cluster.namespace);
    let ours = ListParams::default().labels(&format!("{}={}", names::RESOURCE_LABEL, names::uid8(&uid)));
    let mut nodes = BTreeMap::new();
    for deployment in api.list(&ours).await.map(|list| list.items).unwrap_or_default() {
        let labels = deployment.spec.and_then(|spec| spec.template.metadata).and_then(|metadata| metadata.labels).unwrap_or_default();
        if let Some(revision) = labels.get(names::REVISION_LABEL) {
            *nodes.entry(revision.clone()).or_default() += 1;
        }
    }
    nodes
}

/// Pins a former revision, or with `--clear` no more.
pub async fn undo(cluster: &Cluster, options: &UndoOptions) -> Result<()> {
    let resource = cluster.find(options.one.name.as_deref()).await?;
    if options.clear {
        if resource.spec.rollback_to.is_none() {
            return print(&format!("{} was not pinned to a revision\n", title(&resource)));
        }
        let after = patch(cluster, &resource, &json!({ "spec": { "rollbackTo": Value::Null } })).await?;
        print(&format!("{} runs the revision of spec.template again\n", title(&after)))?;
        say_if_operator_is_down(cluster, &after).await;
        return Ok(());
    }
    let revisions = recorded(cluster, &resource).await?;
    let spec = crds::hash::revision(&resource.spec.template);
    let target = match options.to_revision {
        Some(number) => revisions.iter().find(|revision| revision.number == number),
        None => newest_before(&revisions, &resource),
    };
    let Some(target) = target else {
        let known = revisions.iter().map(|revision| revision.number.to_string()).collect::<Vec<_>>().join(", ");
        bail!(
            "{} has no {} (recorded: {known}): see `kubectl ids history`",
            title(&resource),
            match options.to_revision {
                Some(number) => format!("revision {number}"),
                None => "earlier revision".to_owned(),
            }
        );
    };
    let change = json!({ "spec": { "rollbackTo": { "revision": target.number } } });
    let change = if target.revision == spec { json!({ "spec": { "rollbackTo": Value::Null } }) } else { change };
    let after = patch(cluster, &resource, &change).await?;
    let until = if target.revision == spec {
        "the revision of spec.template".to_owned()
    } else {
        format!("revision {} ({}) until `kubectl ids undo --clear`; spec.template does not change", target.number, target.revision)
    };
    print(&format!("{} returns within the budget to {until}\n", title(&after)))?;
    if resource.spec.paused {
        print("the resource is paused: no new node starts until `kubectl ids resume`\n")?;
    }
    say_if_operator_is_down(cluster, &after).await;
    Ok(())
}

/// Lets a paused step go on.
pub async fn promote(cluster: &Cluster, options: &PromoteOptions) -> Result<()> {
    let resource = cluster.find(options.one.name.as_deref()).await?;
    let rolling = resource.spec.update_strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref());
    let steps = rolling.map_or(0, |rolling| rolling.steps.len());
    ensure!(steps > 0, "{} has no steps (spec.updateStrategy.rollingUpdate.steps): there is nothing to promote", title(&resource));
    let rollout = resource.ledger().and_then(|ledger| ledger.rollout_state.as_ref());
    let newest = crds::hash::revision(&resource.spec.template);
    let Some(rollout) = rollout.filter(|rollout| rollout.revision == newest) else {
        bail!("no rollout of revision {newest} is under way: see `kubectl ids status`");
    };
    let done = usize::try_from(rollout.steps_done).unwrap_or(0);
    ensure!(done < steps, "all {steps} steps of revision {newest} are done: there is nothing to promote");
    let step = match (options.all, options.step) {
        (true, _) => steps,
        (false, Some(step)) => usize::try_from(step).unwrap_or(usize::MAX),
        (false, None) => done + 1,
    };
    ensure!((done + 1..=steps).contains(&step), "step {step} is not a remaining step: choose one from {} to {steps}", done + 1);
    let after = patch(cluster, &resource, &json!({ "spec": { "promote": { "revision": newest, "step": step } } })).await?;
    let soaking = rollout.soaked.map(|seconds| format!(", its nodes have served for {}", span(seconds)));
    let state = soaking.unwrap_or_else(|| ", not all of its nodes serve yet".into());
    print(&format!("{}: revision {newest} continues after step {step} of {steps} (now in step {}{state})\n", title(&after), done + 1))?;
    say_if_operator_is_down(cluster, &after).await;
    Ok(())
}
