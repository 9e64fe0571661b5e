//! Canaries, windows, partitions, failures and the ways back, nodes that are taken away.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use crds::{
    IngressDaemonSetStatus,
    ledger::GrantReason,
    names,
    status::{NodePhase, UNOBSERVED},
};
use k8s_openapi::api::{apps::v1::ControllerRevision, core::v1::Pod, events::v1::Event};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};

use crate::{
    auditor::{Expectations, Kind},
    bed::Bed,
    cluster::product::{self, deployment_mark, four_nodes, has_condition, rolling_update},
    eventually::eventually,
    load::{LoadOptions, Traffic},
    scenario::Scenario,
    scenarios::budgets::ledgers,
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
const MINUTE: Duration = Duration::from_mins(1);
/// How long something must not happen.
const WHILE: Duration = Duration::from_secs(4);

/// Nodes that wait for this reason.
pub(super) fn held(status: &IngressDaemonSetStatus, reason: &str) -> BTreeSet<String> {
    status.node_states.iter().filter(|node| node.reason == reason).map(|node| node.name.clone()).collect()
}

async fn strategy(bed: &Bed, budget: u32, more: Value) -> Result<()> {
    product::change(bed, json!({ "updateStrategy": rolling_update(budget, more) })).await
}

/// As many nodes are updated, and that does not change by itself.
async fn stays(bed: &Bed, updated: u32, reason: &str) -> Result<IngressDaemonSetStatus> {
    let status = product::status_says(bed, &format!("{updated} updated, the others wait: {reason}"), product::SAID, |status| {
        status.nodes.updated == updated
            && !held(status, reason).is_empty()
            && status.rollout.as_ref().is_some_and(|ledger| ledger.grants.is_empty())
    })
    .await?;
    product::status_stays(bed, &format!("{updated} nodes are updated"), WHILE, |status| status.nodes.updated == updated).await?;
    Ok(status)
}

/// Templates that are recorded, by the number of their revision.
pub(super) async fn recorded(bed: &Bed) -> Result<BTreeMap<i64, Value>> {
    let known = Api::<ControllerRevision>::namespaced(bed.client.clone(), "default").list(&ListParams::default()).await?.items;
    let owned = |known: &ControllerRevision| known.metadata.owner_references.iter().flatten().any(|owner| owner.kind == "IngressDaemonSet");
    let template = |known: ControllerRevision| (known.revision, known.data.map_or(Value::Null, |data| data.0["spec"]["template"].clone()));
    Ok(known.into_iter().filter(owned).map(template).collect())
}

/// A canary soaks and waits for its promotion; a closed window and a partition hold nodes back. Under load.
pub const CANARY: Scenario = Scenario {
    name: "canaries_promotion_windows_and_partitions_hold_nodes_back",
    options: four_nodes,
    expected: || Expectations::budget(2),
    body: |bed| Box::pin(canary(bed)),
};

async fn canary(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(2, deployment_mark()), &NODES).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;

    strategy(bed, 2, json!({ "steps": [{ "nodes": 1, "soak": "5s" }, { "nodes": "50%", "pause": true }] })).await?;
    product::roll_to(bed, "2").await?;
    let soaking = product::status_says(bed, "one node soaks", product::SAID, |status| !held(status, "CanarySoaking").is_empty()).await?;
    ensure!(soaking.nodes.updated == 1, "{}", product::summary(&soaking));
    let waiting = stays(bed, 2, "AwaitingPromotion").await?;
    ensure!(has_condition(&waiting, "Progressing", "False", "AwaitingPromotion"), "{:?}", waiting.conditions);
    ensure!(waiting.blocked.as_ref().is_some_and(|blocked| blocked.reason == "AwaitingPromotion"), "{:?}", waiting.blocked);
    product::change(bed, json!({ "promote": { "revision": waiting.revisions.update, "step": 2 } })).await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.say("one node, a soak, half of the nodes, a person's word, all");

    // It opens for a minute on the next leap day.
    let rarely = json!([{ "schedule": "0 0 29 2 *", "duration": "1m", "timeZone": "Europe/Berlin" }]);
    strategy(bed, 2, json!({ "steps": null, "windows": rarely })).await?;
    product::roll_to(bed, "3").await?;
    let closed = stays(bed, 0, "OutsideWindow").await?;
    ensure!(
        closed.node_states.iter().all(|node| node.message.contains("opens at") || node.message.contains("no window opens")),
        "{:?}",
        closed.node_states
    );
    strategy(bed, 2, json!({ "windows": null, "partition": 3 })).await?;
    let kept = stays(bed, 1, "Partition").await?;
    ensure!(held(&kept, "Partition").len() == 3, "{:?}", kept.node_states);
    strategy(bed, 2, json!({ "partition": null })).await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.say("a window and a partition hold nodes back and say so");

    traffic.all_served(bed).await
}

/// A budget in percent, and a canary by label of which containers restart, under load.
pub const RESTARTS: Scenario = Scenario {
    name: "a_canary_halts_when_containers_restart_too_often",
    options: four_nodes,
    expected: || Expectations::budget(2),
    body: |bed| Box::pin(restarts(bed)),
};

const CANARIES: [&str; 3] = ["n2", "n3", "n4"];
/// Restarts that are allowed.
const MAX_RESTARTS: u32 = 1;

/// A container beside nginx ends when it finds this file, and is restarted.
const END: &str = "/cache/end";

async fn restarts(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    for node in CANARIES {
        bed.kubectl(&["label", "node", node, "canary=yes"]).await?;
    }
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let from = bed.recorder.history().await?.len();
    let steps = |soak: &str| json!([{ "nodeSelector": { "canary": "yes" }, "soak": soak, "maxRestarts": MAX_RESTARTS }]);
    // 2.8 of four nodes.
    strategy(bed, 1, json!({ "maxUnavailableNodes": "70%", "steps": steps("1h") })).await?;
    let mut template = product::template("2");
    template["spec"]["containers"].as_array_mut().context("no containers")?.push(json!({
        "name": "beside", "image": "busybox:1.36",
        "command": ["/bin/sh", "-c", format!("until [ -e {END} ]; do sleep 0.1; done; rm {END}; exit 1")],
        "volumeMounts": [{ "name": "cache", "mountPath": "/cache" }],
    }));
    product::change(bed, json!({ "template": template })).await?;
    let soaks = |status: &IngressDaemonSetStatus| {
        status.nodes.updated == 3 && status.nodes.failed == 0 && held(status, "CanarySoaking") == BTreeSet::from(["n1".to_owned()])
    };
    product::status_says(bed, "the labelled nodes soak", product::SAID, soaks).await?;
    let seen = ledgers(bed, from).await?;
    ensure!(seen.iter().map(BTreeSet::len).max() == Some(2), "70 % of four nodes are two: {seen:?}");
    ensure!(seen.iter().flatten().all(|node| CANARIES.contains(&node.as_str())), "the labelled nodes come first: {seen:?}");
    bed.say("three labelled nodes, two at a time");

    restart(bed, "n2").await?;
    product::status_says(bed, "one restart is allowed", product::SAID, soaks).await?;
    product::status_stays(bed, "one restart is allowed", WHILE, |status| {
        status.nodes.failed == 0 && !has_condition(status, "Progressing", "False", "MaxFailedNodes")
    })
    .await?;
    restart(bed, "n3").await?;
    let halted = product::status_says(bed, "two are too many", product::SAID, |status| {
        has_condition(status, "Progressing", "False", "MaxFailedNodes")
            && has_condition(status, "Stalled", "True", "MaxFailedNodes")
            && status.nodes.failed == 1
            && status.nodes.available == 4
    })
    .await?;
    let blocked = halted.blocked.as_ref().context("nothing blocks it")?;
    ensure!(blocked.reason == "MaxFailedNodes" && blocked.message.contains("(Restarts)"), "{blocked:?}");
    strategy(bed, 1, json!({ "maxUnavailableNodes": "10%", "steps": steps("0s") })).await?;
    let halted = stays(bed, 3, "MaxFailedNodes").await?;
    let mut failed = halted.rollout.iter().filter_map(|ledger| ledger.rollout_state.as_ref()).flat_map(|rollout| rollout.failed.keys());
    let failed = failed.next().context("no node failed")?;
    bed.say(&format!("containers restarted twice: {failed} failed, and the rollout halted"));

    bed.kubectl(&["annotate", "node", failed, &format!("{}=seen", names::RETRY_ANNOTATION)]).await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.say("after a person had looked at it, it went on with the one node that 10 % are at least");

    let former = product::api(bed).get(product::NAME).await?.status.context("no status")?.revisions.current;
    strategy(bed, 1, json!({ "maxUnavailableNodes": "70%", "steps": steps("1h"), "autoRollback": true })).await?;
    product::change(bed, json!({ "template": { "metadata": { "annotations": { "of": "3" } } } })).await?;
    product::status_says(bed, "the labelled nodes soak", product::SAID, soaks).await?;
    restart(bed, "n2").await?;
    restart(bed, "n3").await?;
    product::status_says(bed, "two are too many", product::SAID, |status| {
        has_condition(status, "RolledBack", "True", "RevisionFailed")
            && status.revisions.effective == former
            && status.revisions.update != former
    })
    .await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.say("with autoRollback the former revision came back");
    traffic.all_served(bed).await
}

/// The container beside nginx ends in one pod of the node.
async fn restart(bed: &Bed, node: &str) -> Result<()> {
    let pods = Api::<Pod>::namespaced(bed.client.clone(), "default");
    let here = ListParams::default().labels("app=nginx").fields(&format!("spec.nodeName={node}"));
    let name = pods.list(&here).await?.items.pop().and_then(|pod| pod.metadata.name).context("no pod is on the node")?;
    // Not in the container that ends when it finds the file: what runs there ends with it.
    bed.kubectl(&["exec", &name, "-c", "nginx", "--", "touch", END]).await?;
    eventually(MINUTE, &format!("a container on {node} was restarted"), async || {
        let containers = pods.get(&name).await?.status.and_then(|status| status.container_statuses).unwrap_or_default();
        let again = containers.iter().any(|container| container.restart_count == 1 && container.ready);
        ensure!(again, "{containers:?}");
        Ok(())
    })
    .await
}

/// A revision that fails goes back by itself; `kubectl ids rollback` brings any former one back by its number. Under load.
pub const ROLLED_BACK: Scenario = Scenario {
    name: "failed_revisions_roll_back_automatically_and_former_ones_by_number",
    options: four_nodes,
    expected: || Expectations::budget(2),
    body: |bed| Box::pin(rolled_back(bed)),
};

async fn rolled_back(bed: &mut Bed) -> Result<()> {
    let automatic = json!({ "nodeDeadlineSeconds": 6, "autoRollback": true });
    let from = bed.recorder.history().await?.len();
    product::serve(bed, rolling_update(2, deployment_mark()), &NODES).await?;
    let first = product::api(bed).get(product::NAME).await?.status.context("no status")?.revisions.current;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;

    strategy(bed, 2, automatic).await?;
    product::roll_to_missing_image(bed).await?;
    product::status_says(bed, "the revision fails and another runs in its place", product::SAID, |status| {
        has_condition(status, "RolledBack", "True", "RevisionFailed")
            && status.revisions.effective == first
            && status.revisions.update != first
    })
    .await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    product::status_stays(bed, "the failed revision is not tried again", WHILE, |status| {
        status.rollout.as_ref().is_some_and(|ledger| ledger.grants.is_empty()) && status.nodes.available == 4
    })
    .await?;
    let events = Api::<Event>::namespaced(bed.client.clone(), "default");
    for reason in ["NodeFailed", "RolledBack"] {
        eventually(MINUTE, &format!("event {reason}"), async || {
            let events = events.list(&ListParams::default()).await?.items;
            ensure!(events.iter().any(|event| event.reason.as_deref() == Some(reason)), "none of {} events", events.len());
            Ok(())
        })
        .await?;
    }
    bed.say("an image that does not exist was rolled back within the budget, and not tried again");

    product::roll_to(bed, "2").await?;
    product::status_says(bed, "the corrected template is tried", product::SAID, |status| {
        status.revisions.effective == status.revisions.update
    })
    .await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    product::change(bed, json!({ "rollbackTo": { "revision": 1 } })).await?;
    product::status_says(bed, "the first revision is pinned", product::SAID, |status| status.revisions.effective == first).await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    product::change(bed, json!({ "rollbackTo": { "revision": 77 } })).await?;
    product::status_says(bed, "a revision that there is not is refused", product::SAID, |status| {
        has_condition(status, "Valid", "False", "RevisionNotFound")
    })
    .await?;
    product::change(bed, json!({ "rollbackTo": null })).await?;
    product::status_says(bed, "the template runs again", product::SAID, |status| status.revisions.effective == status.revisions.update)
        .await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    let numbers: Vec<i64> = recorded(bed).await?.into_keys().collect();
    ensure!(numbers == [1, 2, 3], "{numbers:?}");
    bed.say("a former revision ran while it was pinned");
    traffic.all_served(bed).await?;

    let said = kstatus(bed, from).await?;
    ensure!(said.len() == 4, "kstatus said {said:?} alone");
    bed.say("kstatus reads Ready, Reconciling and Stalled as they are meant");
    Ok(())
}

/// What kstatus said, once of each kind of status there was: it must be what the one condition says that is True.
async fn kstatus(bed: &Bed, from: usize) -> Result<BTreeSet<&'static str>> {
    let (mut asked, mut said) = (BTreeSet::new(), BTreeSet::new());
    for seen in bed.recorder.history().await?.iter().skip(from).filter(|seen| seen.kind == Kind::IngressDaemonSet) {
        let (object, status) = (&seen.object, &seen.object["status"]);
        let is_observed = status["observedGeneration"] == object["metadata"]["generation"];
        if status["observedGeneration"] == UNOBSERVED {
            let answer = bed.control_plane.kstatus(object).await?;
            ensure!(answer.starts_with("InProgress: "), "{answer} of {object}");
            said.insert("Unobserved");
            continue;
        }
        let conditions = status["conditions"].as_array().context("the status has no conditions")?;
        let is_true = |condition: &&Value| condition["status"] == "True";
        let words = conditions.iter().filter(is_true).filter_map(|condition| match condition["type"].as_str()? {
            "Ready" => Some("Current"),
            "Reconciling" => Some("InProgress"),
            "Stalled" => Some("Failed"),
            _ => None,
        });
        let words: Vec<_> = words.collect();
        ensure!(words.len() == 1, "{words:?} of {status}");
        let word = if is_observed { words[0] } else { "InProgress" };
        let progressing = conditions.iter().find(|condition| condition["type"] == "Progressing").context("no condition Progressing")?;
        if asked.insert((word, is_observed, progressing["reason"].to_string())) {
            let answer = bed.control_plane.kstatus(object).await?;
            ensure!(answer.starts_with(&format!("{word}: ")), "{answer} of {status}");
            said.insert(word);
        }
    }
    Ok(said)
}

/// Its pods serve no more after their node was attached: the status names the node, the revision fails and the former one comes back.
pub const FALLEN: Scenario = Scenario {
    name: "a_canary_that_fails_after_its_attach_is_rolled_back",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(fallen(bed)),
};

async fn fallen(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    let first = product::api(bed).get(product::NAME).await?.status.context("no status")?.revisions.current;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    strategy(bed, 1, json!({ "nodeDeadlineSeconds": 20, "autoRollback": true, "steps": [{ "nodes": 1, "soak": "1h" }] })).await?;
    let mut template = product::template("2");
    template["spec"]["containers"].as_array_mut().context("no containers")?.push(json!({
        "name": "beside", "image": "busybox:1.36", "command": ["/bin/sh", "-c", "sleep 3600"],
        "readinessProbe": { "exec": { "command": ["/bin/sh", "-c", format!("! [ -e {END} ]")] }, "periodSeconds": 1 },
        "volumeMounts": [{ "name": "cache", "mountPath": "/cache" }],
    }));
    product::change(bed, json!({ "template": template })).await?;
    let soaks = |status: &IngressDaemonSetStatus| held(status, "CanarySoaking").len() == 3 && status.nodes.available == 4;
    let status = product::status_says(bed, "the canary serves and soaks", product::SAID, soaks).await?;
    let others = held(&status, "CanarySoaking");
    let canary = NODES.into_iter().find(|node| !others.contains(*node)).context("every node waits")?;

    let pods = Api::<Pod>::namespaced(bed.client.clone(), "default");
    for pod in pods.list(&ListParams::default().labels("app=nginx").fields(&format!("spec.nodeName={canary}"))).await? {
        let name = pod.metadata.name.unwrap_or_default();
        bed.kubectl(&["exec", &name, "-c", "beside", "--", "touch", END]).await?;
    }
    product::status_says(bed, "the canary is named", product::SAID, |status| {
        let named =
            status.blocked.as_ref().is_some_and(|blocked| blocked.reason == "PodsNotReady" && blocked.object == format!("Node/{canary}"));
        named && held(status, "CanaryUpdating") == others
    })
    .await?;
    bed.say(&format!("the canary {canary} serves no more, and blocked names it"));
    let failed = product::status_says(bed, "it has failed, and the former revision comes back", product::SAID, |status| {
        has_condition(status, "RolledBack", "True", "RevisionFailed") && status.revisions.effective == first
    })
    .await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    ensure!(failed.revisions.update != first, "{}", product::summary(&failed));
    bed.say("the former revision came back");
    traffic.all_served(bed).await
}

/// A node with an autoscaler's taint is detached before its pods go. `OnDelete` updates only where somebody deleted pods.
pub const DRAINED: Scenario = Scenario {
    name: "autoscalers_drain_detached_nodes_and_on_delete_waits_for_deletions",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(drained(bed)),
};

async fn drained(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    let pods = Api::<Pod>::namespaced(bed.client.clone(), "default");
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let [autoscaler, karpenter, out_of_service, gke, ..] = names::DEPARTURE_TAINTS;
    for taint in [autoscaler, karpenter, out_of_service, gke] {
        bed.kubectl(&["taint", "node", "n4", &format!("{taint}=now:NoSchedule")]).await?;
        product::status_says(bed, "the node is drained", product::SAID, |status| {
            status.rollout.as_ref().is_some_and(|ledger| ledger.grants.get("n4").is_some_and(|grant| grant.kind == GrantReason::Drain))
                && held(status, "Draining").contains("n4")
        })
        .await?;
        eventually(MINUTE, "no pod of ours is left on it", async || {
            let left = pods.list(&ListParams::default().labels("app=nginx").fields("spec.nodeName=n4")).await?.items;
            ensure!(left.is_empty(), "{} are", left.len());
            Ok(())
        })
        .await?;
        product::roll_to(bed, taint).await?;
        let status = product::status_says(bed, "nothing else is begun meanwhile, and it says why", product::SAID, |status| {
            held(status, "Budget").len() == 3
                && status.blocked.as_ref().is_some_and(|blocked| blocked.reason == "Draining" && blocked.message.contains(taint))
        })
        .await?;
        ensure!(status.nodes.updated == 0, "{}", product::summary(&status));
        bed.kubectl(&["taint", "node", "n4", &format!("{taint}-")]).await?;
        product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    }
    bed.say("a node that was to be taken away was detached first, and came back when it was not");

    let mut on_delete = rolling_update(1, json!({}));
    on_delete["type"] = "OnDelete".into();
    product::change(bed, json!({ "updateStrategy": on_delete })).await?;
    product::roll_to(bed, "on-delete").await?;
    let waiting = stays(bed, 0, "OnDelete").await?;
    ensure!(held(&waiting, "OnDelete").len() == 4, "{}", product::summary(&waiting));
    traffic.all_served(bed).await?;
    let one =
        pods.list(&ListParams::default().labels("app=nginx").fields("spec.nodeName=n2")).await?.items.pop().context("no pod on n2")?;
    pods.delete(one.metadata.name.as_deref().unwrap_or_default(), &DeleteParams::default()).await?;
    let status = stays(bed, 1, "OnDelete").await?;
    ensure!(!held(&status, "OnDelete").contains("n2"), "{}", product::summary(&status));
    product::change(bed, json!({ "updateStrategy": rolling_update(1, json!({})) })).await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.say("a node was updated when one of its pods was deleted, and no other");
    Ok(())
}

/// Failed nodes halt the rollout, are tried again when asked, and keep their slot until a person frees it.
pub const FAILED_NODES: Scenario = Scenario {
    name: "a_failed_node_halts_the_rollout_until_you_free_it",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(failed_nodes(bed)),
};

async fn failed_nodes(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    strategy(bed, 1, json!({ "nodeDeadlineSeconds": 5 })).await?;
    product::roll_to_missing_image(bed).await?;
    let failed = product::status_says(bed, "a node fails and the rollout halts", product::SAID, |status| {
        status.nodes.failed == 1
            && has_condition(status, "Progressing", "False", "MaxFailedNodes")
            && has_condition(status, "Stalled", "True", "MaxFailedNodes")
            && status.node_states.iter().any(|node| node.phase == NodePhase::Failed && node.reason == "ImagePull")
    })
    .await?;
    ensure!(failed.blocked.as_ref().is_some_and(|blocked| blocked.reason == "MaxFailedNodes"), "{:?}", failed.blocked);
    let grants = |status: &IngressDaemonSetStatus| status.rollout.clone().map(|ledger| ledger.grants).unwrap_or_default();
    let (node, grant) = grants(&failed).pop_first().context("the slot was freed")?;
    bed.say(&format!("{node} failed and keeps its slot"));

    bed.kubectl(&["annotate", "node", &node, &format!("{}=once", names::RETRY_ANNOTATION)]).await?;
    product::status_says(bed, "it is tried again", product::SAID, |status| {
        status.nodes.failed == 0 && grants(status).get(&node).is_some_and(|again| again.id > grant.id)
    })
    .await?;
    let again = product::status_says(bed, "it fails again", product::SAID, |status| status.nodes.failed == 1).await?;
    let id = grants(&again)[&node].id;

    let order = format!("{}=default/{}:{id}", names::RELEASE_ANNOTATION, product::NAME);
    bed.kubectl(&["annotate", "node", &node, &order]).await?;
    let freed = product::status_says(bed, "the slot is free", product::SAID, |status| grants(status).is_empty()).await?;
    ensure!(freed.nodes.failed == 1, "{}", product::summary(&freed));
    product::roll_to(bed, "3").await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.say("its slot was freed when a person said so, and the corrected template went through");
    Ok(())
}
