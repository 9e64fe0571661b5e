//! Incidents of other projects, set up as they happened there: the table in `docs/failures.md` names a scenario for each.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use crds::{
    IngressDaemonSetStatus,
    holders::EntryPhase,
    names,
    status::NodePhase,
    token::{Phase, Token},
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Node, Pod},
};
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::{Value, json};
use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::{
    budgets::ledgers,
    canaries::held,
    health::ask,
    outages::{is_lost, roll_slowly_to, shows},
};
use crate::{
    auditor::{Expectations, Kind, Observation},
    bed::{Bed, Options},
    cluster::{
        detacher::{DETACHED_KEY, Detacher, TIMESTAMP_KEY, Variant},
        product::{self, both_marks, deployment_mark, has_condition, rolling_update},
    },
    eventually::{eventually, throughout},
    load::{LoadOptions, Traffic},
    scenario::Scenario,
};

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const MINUTE: Duration = Duration::from_mins(1);
/// How long something must not happen.
const WHILE: Duration = Duration::from_secs(4);

fn three_nodes() -> Options {
    Options::with_nodes(3).with_infra()
}

/// Nodes that have a slot.
fn under_way(status: &IngressDaemonSetStatus) -> BTreeSet<String> {
    status.rollout.iter().flat_map(|ledger| ledger.grants.keys().cloned()).collect()
}

/// The status says so all the while.
async fn stays(bed: &Bed, what: &str, test: impl Fn(&IngressDaemonSetStatus) -> bool) -> Result<()> {
    product::status_says(bed, what, product::SAID, &test).await?;
    product::status_stays(bed, what, WHILE, test).await
}

/// Until this has come about, all nodes but the budget of one get requests.
async fn others_serve_until<T>(bed: &Bed, done: impl Future<Output = Result<T>>) -> Result<T> {
    let watch = bed.haproxy.watch().await?;
    let done = done.await?;
    watch.at_least(NODES.len() - 1).await?;
    Ok(done)
}

/// kruise #1323: pods that are ready for less than `minReadySeconds` were free to be replaced.
pub const TWO_UPDATES: Scenario = Scenario {
    name: "two_updates_within_min_ready_seconds_keep_the_budget",
    options: three_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(two_updates(bed)),
};

async fn two_updates(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    // Longer than the pods have been ready, so that none of them counts as available any more.
    product::change(bed, json!({ "minReadySeconds": 300 })).await?;
    eventually(MINUTE, "every pod is ready and none is available", async || {
        let young = young(bed, "1").await?;
        ensure!(young.len() == NODES.len(), "only on {young:?}");
        Ok(())
    })
    .await?;
    let bed = &*bed;
    others_serve_until(bed, async {
        product::roll_to(bed, "2").await?;
        let first = one_is_young(bed, "2").await?;
        product::roll_to(bed, "3").await?;
        let second = one_is_young(bed, "3").await?;
        ensure!(first == second, "{second} was begun before {first} was finished");
        let one = BTreeSet::from([first]);
        stays(bed, "no other node is begun", |status| under_way(status) == one && held(status, "Budget").len() == NODES.len() - 1).await?;
        bed.say("two updates, and the same node is under way");
        product::change(bed, json!({ "minReadySeconds": 2 })).await?;
        product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await
    })
    .await
}

/// Nodes whose pods are all of this version and ready, and by their Deployment's words none is available.
async fn young(bed: &Bed, version: &str) -> Result<BTreeSet<String>> {
    let list = Api::<Deployment>::namespaced(bed.client.clone(), "default").list(&ListParams::default()).await?;
    let is_young = |deployment: &&Deployment| {
        let status = deployment.status.clone().unwrap_or_default();
        let spec = serde_json::to_value(&deployment.spec).unwrap_or_default();
        let counts = (status.updated_replicas, status.ready_replicas, status.available_replicas.unwrap_or(0));
        spec["template"]["spec"]["containers"][0]["env"][0]["value"] == version
            && status.observed_generation == deployment.metadata.generation
            && counts == (Some(2), Some(2), 0)
    };
    Ok(list
        .items
        .iter()
        .filter(is_young)
        .filter_map(|deployment| deployment.annotations().get(names::NODE_NAME_ANNOTATION).cloned())
        .collect())
}

async fn one_is_young(bed: &Bed, version: &str) -> Result<String> {
    eventually(MINUTE, &format!("the pods of a node run version {version} and are not available yet"), async || {
        let young = young(bed, version).await?;
        ensure!(young.len() == 1, "on {young:?}");
        young.first().cloned().context("on none")
    })
    .await
}

/// kubernetes #123232: each bad update took more of the nodes that still served.
pub const BAD_UPDATES: Scenario = Scenario {
    name: "three_bad_updates_in_a_row_keep_the_budget",
    options: three_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(bad_updates(bed)),
};

/// What is wrong with a pod, and the word for it.
type Mistake = (&'static str, fn(&mut Value));

const MISTAKES: [Mistake; 3] = [
    ("ImagePull", |pod| pod["containers"][0]["image"] = "nginx:does-not-exist".into()),
    ("CrashLoop", |pod| pod["containers"][0]["args"] = json!(["-c", "/does-not-exist"])),
    ("ContainerConfig", |pod| pod["containers"][0]["envFrom"] = json!([{ "configMapRef": { "name": "does-not-exist" } }])),
];

async fn bad_updates(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    // More failures are allowed than there are nodes: it is the budget, all of which the failed node holds, that halts the rollout.
    let lenient = json!({ "nodeDeadlineSeconds": 5, "maxFailedNodes": NODES.len() + 1 });
    product::change(bed, json!({ "updateStrategy": rolling_update(1, lenient) })).await?;
    let bed = &*bed;
    let mut bad = BTreeSet::new();
    others_serve_until(bed, async {
        for (reason, mistake) in MISTAKES {
            let mut template = product::template(reason);
            mistake(&mut template["spec"]);
            product::change(bed, json!({ "template": template })).await?;
            product::status_says(bed, &format!("a node failed with {reason}"), product::SAID, |status| {
                status.node_states.iter().any(|state| state.phase == NodePhase::Failed && state.reason == reason)
            })
            .await?;
            // While a container that crashes is tried again, nothing is wrong with its pod but that it is not ready.
            stays(bed, "the others wait for the node that failed", |status| {
                let failed = status.node_states.iter().any(|state| state.phase == NodePhase::Failed);
                failed && under_way(status).len() == 1 && held(status, "MaxFailedNodes").len() == NODES.len() - 1
            })
            .await?;
            bad.insert(product::api(bed).get(product::NAME).await?.status.context("no status")?.revisions.update);
        }
        bed.say("three bad updates in a row");
        let strict = json!({ "nodeDeadlineSeconds": null, "maxFailedNodes": null });
        product::change(bed, json!({ "updateStrategy": rolling_update(1, strict), "template": product::template("2") })).await?;
        product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await
    })
    .await?;
    let history = bed.recorder.history().await?;
    let of_bad = history.iter().map(|seen| (seen.kind, &seen.object)).filter(|(kind, object)| {
        *kind == Kind::Pod && object["metadata"]["labels"][names::REVISION_LABEL].as_str().is_some_and(|revision| bad.contains(revision))
    });
    let hit: BTreeSet<_> = of_bad.filter_map(|(_, pod)| pod["metadata"]["labels"][names::NODE_LABEL].as_str()).collect();
    ensure!(bad.len() == MISTAKES.len() && hit.len() == 1, "pods of {} bad revisions were made on {hit:?}", bad.len());
    Ok(())
}

/// deckhouse #5134: the health check said 200 while a pod was ending. A cordon alone takes nothing out; a drain does.
pub const TERMINATING: Scenario = Scenario {
    name: "a_terminating_replica_answers_503_and_a_cordon_changes_nothing",
    options: three_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(terminating(bed)),
};

/// Seconds that a pod goes on serving after it was told to end, and its successor takes at least to be ready: four times
/// [`LET_GO`], since the scenario looks by other programs, on a machine that is shared.
const ENDING: u64 = 12;
/// So long before its pods end the load balancer must have let go of the node at least; that time is looked at.
const LET_GO: Duration = Duration::from_secs(3);

async fn terminating(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    bed.kubectl(&["cordon", "n1"]).await?;
    let untouched =
        |status: &IngressDaemonSetStatus| under_way(status).is_empty() && status.nodes.available == 3 && status.nodes.detached == 0;
    stays(bed, "nothing is done about a cordon", untouched).await?;
    bed.haproxy.serves(MINUTE, &NODES).await?;
    let from = bed.recorder.history().await?.len();
    let mut template = product::template("2");
    template["spec"]["terminationGracePeriodSeconds"] = (2 * ENDING).into();
    let nginx = &mut template["spec"]["containers"][0];
    nginx["lifecycle"] = json!({ "preStop": { "sleep": { "seconds": ENDING } } });
    nginx["readinessProbe"]["initialDelaySeconds"] = ENDING.into();
    product::change(bed, json!({ "template": template })).await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    let mut order: Vec<String> = ledgers(bed, from).await?.into_iter().flatten().collect();
    order.dedup();
    ensure!(order.len() == NODES.len() && order.last().is_some_and(|last| last == "n1"), "the cordoned n1 was not the last of {order:?}");
    bed.say("a cordoned node served on, and was updated last");

    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let going = pods_on(bed, "n2").await?.first().map(ResourceExt::name_any).context("no pod on n2")?;
    bed.kubectl(&["delete", "pod", &going, "--wait=false"]).await?;
    is_out_before_pods_end(bed, "n2", &BTreeSet::from([going])).await?;
    // The load balancer sees a little later than the status that it is back, and is looked at next.
    bed.haproxy.serves(MINUTE, &NODES).await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.say("one of two pods was deleted: 503 while it went on serving");

    let going = pods_on(bed, "n1").await?.iter().map(ResourceExt::name_any).collect();
    let drain = ["drain", "n1", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s"];
    tokio::try_join!(bed.kubectl(&drain), is_out_before_pods_end(bed, "n1", &going))?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.haproxy.serves(MINUTE, &NODES).await?;
    bed.say("drained: 503 while its pods went on serving, then they were made again");
    traffic.all_served(bed).await?;
    bed.kubectl(&["uncordon", "n1"]).await.map(drop)
}

async fn pods_on(bed: &Bed, node: &str) -> Result<Vec<Pod>> {
    let here = ListParams::default().labels("app=nginx").fields(&format!("spec.nodeName={node}"));
    Ok(Api::namespaced(bed.client.clone(), "default").list(&here).await?.items)
}

/// The node's health port answers 503 and the load balancer lets go of it while these pods are still there, ending and ready.
async fn is_out_before_pods_end(bed: &Bed, node: &str, going: &BTreeSet<String>) -> Result<()> {
    eventually(MINUTE, &format!("{node} answers 503"), async || {
        let (code, body) = ask(bed, node).await?;
        ensure!(code == 503 && body.contains("PodsNotReady"), "{code}: {body}");
        Ok(())
    })
    .await?;
    let others: Vec<_> = NODES.into_iter().filter(|other| *other != node).collect();
    // That this is soon enough is what is looked at next: pods that ended meanwhile fail it.
    bed.haproxy.serves(MINUTE, &others).await?;
    // A drain tells one pod after the other to end.
    eventually(MINUTE, &format!("all pods of {node} are told to end"), async || {
        let told = pods_on(bed, node).await?.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()).count();
        ensure!(told == going.len(), "{told} of {going:?} are");
        Ok(())
    })
    .await?;
    throughout(LET_GO, "503 while pods end that are ready", async || {
        let (code, body) = ask(bed, node).await?;
        ensure!(code == 503, "{code}: {body}");
        let ending = |pod: &&Pod| {
            let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            pod.metadata.deletion_timestamp.is_some() && conditions.into_iter().any(|one| one.type_ == "Ready" && one.status == "True")
        };
        let pods = pods_on(bed, node).await?;
        let ready: BTreeSet<_> = pods.iter().filter(ending).map(ResourceExt::name_any).collect();
        ensure!(ready == *going, "{ready:?} of {going:?} are ending and ready");
        Ok(())
    })
    .await
}

/// kured #955: a machine died with its lock. kubernetes #117204: one that is not Ready used the budget up, and nothing said so.
pub const DEAD_NODE: Scenario = Scenario {
    name: "a_dead_node_keeps_its_place_counts_or_is_ignored",
    options: three_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(dead_node(bed)),
};

async fn dead_node(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    let (watch, traffic) = (bed.haproxy.watch().await?, Traffic::start(&bed.haproxy, &LoadOptions::default()).await?);
    roll_slowly_to(bed, "2").await?;
    let node = shows(bed, Phase::Updating).await?;
    bed.node(&node)?.cut().await?;
    bed.say(&format!("{node} dies in the middle of its update"));
    is_lost(bed, &node).await?;
    let one = BTreeSet::from([node.clone()]);
    let says_so = |status: &IngressDaemonSetStatus, blocked: &str, object: &str| {
        let named = held(status, "NodeNotReady") == one && has_condition(status, "Degraded", "True", "NodeNotReady");
        named && status.blocked.as_ref().is_some_and(|found| found.reason == blocked && found.object == object)
    };
    let (of_node, of_resource) = (format!("Node/{node}"), format!("IngressDaemonSet/{}", product::NAME));
    let keeps = |status: &IngressDaemonSetStatus| under_way(status) == one && says_so(status, "NodeNotReady", &of_node);
    stays(bed, "it keeps its place", keeps).await?;
    product::change(bed, json!({ "updateStrategy": rolling_update(1, json!({ "notReadyNodes": "Ignore" })) })).await?;
    stays(bed, "it keeps its place when nodes that are not Ready are ignored", keeps).await?;

    product::change(bed, json!({ "updateStrategy": rolling_update(1, json!({ "notReadyNodes": "CountAgainst" })) })).await?;
    let status = product::status_says(bed, "its place is taken", product::SAID, keeps).await?;
    let id = status.rollout.context("no ledger")?.grants[&node].id;
    let order = format!("{}=default/{}:{id}", names::RELEASE_ANNOTATION, product::NAME);
    bed.kubectl(&["annotate", "node", &node, &order]).await?;
    stays(bed, "a person freed its place, and it counts against the budget", |status| {
        under_way(status).is_empty() && held(status, "Budget").len() == NODES.len() - 1 && says_so(status, "Budget", &of_resource)
    })
    .await?;
    bed.say("its place was kept until a person freed it; then it counted as unavailable");
    product::change(bed, json!({ "updateStrategy": rolling_update(1, json!({ "notReadyNodes": "Ignore" })) })).await?;
    product::status_says(bed, "the others are updated", product::SAID, |status| {
        status.nodes.available == 2 && under_way(status).is_empty() && says_so(status, "NodeNotReady", &of_node)
    })
    .await?;
    let others: Vec<_> = NODES.into_iter().filter(|other| *other != node).collect();
    bed.haproxy.serves(MINUTE, &others).await?;
    // The dead one, and one that is updated.
    watch.at_least(1).await?;
    bed.say("ignored, it held nobody up");
    bed.node(&node)?.heal().await?;
    bed.kubectl(&["annotate", "node", &node, &format!("{}=it-is-back", names::RETRY_ANNOTATION)]).await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.haproxy.serves(MINUTE, &NODES).await?;
    traffic.all_served(bed).await
}

/// bottlerocket-update-operator #691: after an update that failed, nodes stayed as they were marked for it.
pub const NO_MARK: Scenario = Scenario {
    name: "no_mark_is_left_after_a_failed_and_corrected_update",
    options: three_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(no_mark(bed)),
};

/// Of somebody else, on Nodes and Deployments.
const FOREIGN: &str = "example.com/kept";

async fn no_mark(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, both_marks()), &NODES).await?;
    let _detacher = Detacher::start(&bed.client, &bed.haproxy, Variant::Good);
    bed.kubectl(&["annotate", "nodes", "--all", &format!("{FOREIGN}=yes")]).await?;
    bed.kubectl(&["annotate", "deployments", "--all", &format!("{FOREIGN}=yes")]).await?;
    bed.kubectl(&["cordon", "n2"]).await?;
    for (version, rolls_back) in [("3", false), ("4", true)] {
        let impatient = json!({ "nodeDeadlineSeconds": 5, "autoRollback": rolls_back });
        product::change(bed, json!({ "updateStrategy": rolling_update(1, impatient) })).await?;
        // What is said from here on is of the next failure.
        bed.recorder.history().await?;
        let live = bed.recorder.live();
        product::roll_to_missing_image(bed).await?;
        let node = fails_with_marks(bed, live).await?;
        if rolls_back {
            product::status_says(bed, "it is rolled back", product::SAID, |status| {
                has_condition(status, "RolledBack", "True", "RevisionFailed")
            })
            .await?;
        } else {
            let patient = json!({ "nodeDeadlineSeconds": null });
            product::change(bed, json!({ "updateStrategy": rolling_update(1, patient), "template": product::template(version) })).await?;
        }
        product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
        no_mark_of_ours_and_all_of_others(bed).await?;
        bed.haproxy.serves(MINUTE, &NODES).await?;
        bed.say(&format!("the update failed on {node}; corrected (rolled back: {rolls_back}), no mark is left"));
    }
    Ok(())
}

/// The node that failed, which has every mark at that time: by the history, since a way back begins at once.
async fn fails_with_marks(bed: &Bed, mut live: Receiver<Arc<Observation>>) -> Result<String> {
    let failed = async {
        loop {
            let seen = match live.recv().await {
                Ok(seen) => seen,
                Err(RecvError::Lagged(_)) => continue,
                Err(RecvError::Closed) => bail!("the recorder has ended"),
            };
            if seen.kind == Kind::IngressDaemonSet && seen.object["status"]["nodes"]["failed"] == 1 {
                return Ok(seen);
            }
        }
    };
    let failed = tokio::time::timeout(MINUTE * 3, failed).await.context("no node fails")??;
    let grants = failed.object["status"]["rollout"]["grants"].as_object();
    let node = grants.and_then(|grants| grants.keys().next().cloned()).context("no node is under way")?;
    let history = bed.recorder.history().await?;
    let then = |kind, name: &str| {
        let earlier = history.iter().filter(|seen| seen.revision <= failed.revision);
        let mut of_it = earlier.filter(|seen| seen.kind == kind && seen.object["metadata"]["name"] == name);
        of_it.next_back().map(|seen| seen.object.clone()).with_context(|| format!("{name} was not seen"))
    };
    let deployment: Deployment = serde_json::from_value(then(Kind::Deployment, &format!("{}-{node}", product::NAME))?)?;
    let object: Node = serde_json::from_value(then(Kind::Node, &node)?)?;
    let marks = marks_of(&deployment, &object)?;
    ensure!(marks.len() == 5, "{node} has {marks:?}");
    Ok(node)
}

async fn no_mark_of_ours_and_all_of_others(bed: &Bed) -> Result<()> {
    for node in NODES {
        let object = Api::<Node>::all(bed.client.clone()).get(node).await?;
        let deployment = deployment_of(bed, node).await?;
        let marks = marks_of(&deployment, &object)?;
        ensure!(marks.is_empty(), "{node} has {marks:?}");
        ensure!(object.annotations().contains_key(FOREIGN), "an annotation of somebody else has gone from Node {node}");
        let cordoned = object.spec.and_then(|spec| spec.unschedulable).unwrap_or(false);
        ensure!(cordoned == (node == "n2"), "{node} is cordoned: {cordoned}");
        ensure!(deployment.annotations().contains_key(FOREIGN), "an annotation of somebody else has gone from the Deployment of {node}");
    }
    Ok(())
}

/// What takes the node out of service: annotations, an entry of the Node that says detached, a token that says so. The entry
/// itself stays, as the token does: what it says is attached.
fn marks_of(deployment: &Deployment, object: &Node) -> Result<Vec<String>> {
    let token: Token = deployment.labels().get(names::TOKEN_LABEL).context("no token")?.parse()?;
    let holders = crds::holders::parse(object.annotations().get(names::HOLDERS_ANNOTATION).map(String::as_str))?;
    let keys = [(names::TO_BE_UPDATED_ANNOTATION, deployment.annotations())]
        .into_iter()
        .chain([DETACHED_KEY, TIMESTAMP_KEY].map(|key| (key, object.annotations())));
    let keys = keys.filter(|(key, annotations)| annotations.contains_key(*key)).map(|(key, _)| key.to_owned());
    let entries = holders.into_values().filter(|entry| entry.phase == EntryPhase::Detached).map(|entry| format!("{entry:?}"));
    let tokens = (token.phase != Phase::Closed).then(|| token.to_string());
    Ok(keys.chain(entries).chain(tokens).collect())
}

async fn deployment_of(bed: &Bed, node: &str) -> Result<Deployment> {
    let api = Api::<Deployment>::namespaced(bed.client.clone(), "default");
    api.get(&format!("{}-{node}", product::NAME)).await.context("reading a node's Deployment")
}
