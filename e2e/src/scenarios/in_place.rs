//! Images that change in place: the pods stay, and no `ReplicaSet` is made.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use crds::{names, status::NodePhase};
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::Pod,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    bed::Bed,
    cluster::{
        detacher::{Detacher, Variant},
        operator_process::OperatorProcess,
        product,
    },
    eventually::eventually,
    faults::{Fault, Reached, Request},
    host::images,
    load::{LoadOptions, Traffic},
    scenario::Scenario,
    scenarios::{
        crashes::{self, Mode, expected, load_balancer, two_nodes, while_crashing},
        fleet,
        two_operators::{slow_view, slow_writes},
    },
};

const NODES: usize = 2;
const MINUTE: Duration = Duration::from_mins(1);
/// An image that no node has.
const MISSING: &str = "nginx:does-not-exist";

/// A strategy with updates in place.
fn in_place(mode: &Mode) -> Value {
    let mut strategy = mode.strategy.clone();
    strategy["rollingUpdate"]["podUpdate"] = "InPlaceIfPossible".into();
    strategy
}

/// Rolls out another image, and nothing else.
async fn roll_to(bed: &Bed, image: &str) -> Result<()> {
    let mut template = product::template("1");
    template["spec"]["containers"][0]["image"] = image.into();
    product::change(bed, json!({ "template": template })).await
}

/// What is to stay of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stays {
    ip: Option<String>,
    node: Option<String>,
    volumes: Vec<String>,
    restarts: i32,
}

/// Pods of the resource that are not going, by UID.
async fn pods(bed: &Bed) -> Result<BTreeMap<String, Stays>> {
    let api: Api<Pod> = Api::namespaced(bed.client.clone(), "default");
    let pods = api.list(&ListParams::default().labels(names::REVISION_LABEL)).await?;
    let live = pods.items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    let stays = |pod: Pod| {
        let (spec, status) = (pod.spec.unwrap_or_default(), pod.status.unwrap_or_default());
        let restarts = status.container_statuses.iter().flatten().map(|container| container.restart_count).sum();
        let volumes = spec.volumes.into_iter().flatten().map(|volume| volume.name).collect();
        Some((pod.metadata.uid?, Stays { ip: status.pod_ip, node: spec.node_name, volumes, restarts }))
    };
    Ok(live.filter_map(stays).collect())
}

/// UIDs of the `ReplicaSets` of the resource.
async fn replica_sets(bed: &Bed) -> Result<BTreeSet<String>> {
    let api: Api<ReplicaSet> = Api::namespaced(bed.client.clone(), "default");
    let sets = api.list(&ListParams::default().labels(names::REVISION_LABEL)).await?;
    Ok(sets.items.into_iter().filter_map(|set| set.metadata.uid).collect())
}

/// Pods and `ReplicaSets` at one moment.
struct Before {
    pods: BTreeMap<String, Stays>,
    replica_sets: BTreeSet<String>,
    history: usize,
}

impl Before {
    async fn of(bed: &Bed) -> Result<Self> {
        // A former one goes by itself a moment after the rollout has ended. An update to what it has would take it up again.
        eventually(MINUTE, "each Deployment has one ReplicaSet", async || {
            let sets = replica_sets(bed).await?;
            ensure!(sets.len() == NODES, "there are {}", sets.len());
            Ok(())
        })
        .await?;
        Ok(Self { pods: pods(bed).await?, replica_sets: replica_sets(bed).await?, history: bed.recorder.history().await?.len() })
    }

    /// The same pods, each of whose containers was started again so often, and no `ReplicaSet` but those, at any time since.
    async fn stays(&self, bed: &Bed, restarts: i32) -> Result<()> {
        let after = pods(bed).await?;
        let wanted: BTreeMap<_, _> =
            self.pods.iter().map(|(uid, pod)| (uid.clone(), Stays { restarts: pod.restarts + restarts, ..pod.clone() })).collect();
        ensure!(after == wanted, "pods were {wanted:?} and are {after:?}");
        ensure!(replica_sets(bed).await? == self.replica_sets, "there is another ReplicaSet");
        let history = bed.recorder.history().await?;
        let seen = history.get(self.history..).unwrap_or_default().iter().filter(|seen| {
            seen.kind == crate::auditor::Kind::ReplicaSet && !seen.object["metadata"]["labels"][names::REVISION_LABEL].is_null()
        });
        let others: BTreeSet<_> =
            seen.filter_map(|seen| seen.object["metadata"]["uid"].as_str()).filter(|uid| !self.replica_sets.contains(*uid)).collect();
        ensure!(others.is_empty(), "ReplicaSets {others:?} were there meanwhile");
        Ok(())
    }
}

/// Both modes, with the load balancer's clients watching.
pub const UNDER_LOAD: Scenario = Scenario {
    name: "images_change_in_place_under_load_without_new_pods",
    options: two_nodes,
    expected,
    body: |bed| Box::pin(under_load(bed)),
};

async fn under_load(bed: &mut Bed) -> Result<()> {
    product::serve(bed, in_place(&Mode::both()), &["n1", "n2"]).await?;
    product::change(bed, json!({ "loadBalancer": load_balancer() })).await?;
    let _detacher = Detacher::start(&bed.client, &bed.haproxy, Variant::Good);
    for (mode, image) in [(Mode::both(), images::NEWER_NGINX), (Mode::degrade(), images::NGINX)] {
        let mut strategy = in_place(&mode);
        strategy["rollingUpdate"]["prePull"] = true.into();
        product::change(bed, json!({ "updateStrategy": strategy })).await?;
        product::is_complete(bed, NODES, product::ROLLED_OUT).await?;
        let before = Before::of(bed).await?;
        let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
        roll_to(bed, image).await?;
        product::is_complete(bed, NODES, product::ROLLED_OUT).await?;
        bed.say(&format!("{}: the images were changed", mode.name));
        traffic.all_served(bed).await?;
        before.stays(bed, 1).await?;
    }
    Ok(())
}

/// Each mishap on the way: the update completes, or fails with a reason and goes back in place.
pub const MISHAPS: Scenario = Scenario {
    name: "hindered_updates_in_place_complete_or_fail_with_a_reason",
    options: two_nodes,
    expected,
    body: |bed| Box::pin(mishaps(bed)),
};

async fn mishaps(bed: &mut Bed) -> Result<()> {
    product::serve(bed, in_place(&crashes::Mode::token()), &["n1", "n2"]).await?;
    product::change(bed, json!({ "loadBalancer": load_balancer() })).await?;
    missing_image(bed).await?;
    two_tags(bed).await?;
    dying_pod(bed).await?;
    unpaused(bed).await?;
    former_replica_sets(bed).await?;
    only_in_place(bed).await?;
    fleet::in_place::run(bed).await
}

/// What the pods of the resource say of their images: the wanted name, the shown one, and its ID.
async fn shown_images(bed: &Bed) -> Result<BTreeSet<(String, String, String)>> {
    let api: Api<Pod> = Api::namespaced(bed.client.clone(), "default");
    let pods = api.list(&ListParams::default().labels(names::REVISION_LABEL)).await?;
    let shown = |pod: Pod| {
        let wanted = pod.spec?.containers.into_iter().next()?.image?;
        let shown = pod.status?.container_statuses?.into_iter().next()?;
        Some((wanted, shown.image, shown.image_id))
    };
    Ok(pods.items.into_iter().filter_map(shown).collect())
}

/// Another tag of the same image: neither the image ID nor the name that is shown changes, and the update completes all the same.
async fn two_tags(bed: &mut Bed) -> Result<()> {
    let (before, shown) = (Before::of(bed).await?, shown_images(bed).await?);
    roll_to(bed, images::SAME_NGINX).await?;
    product::is_complete(bed, NODES, product::ROLLED_OUT).await?;
    before.stays(bed, 1).await?;
    let only = |all: &BTreeSet<(String, String, String)>| all.iter().next().filter(|_| all.len() == 1).cloned().context("images differ");
    let (was, is) = (only(&shown)?, only(&shown_images(bed).await?)?);
    ensure!(is == (images::SAME_NGINX.to_owned(), was.1.clone(), was.2.clone()), "images were {was:?} and are {is:?}");
    bed.say("another tag of the same image came in place");
    Ok(())
}

/// Waits until an update is stuck, with pods that lack their image beside a former `ReplicaSet`.
async fn is_stuck(bed: &Bed, before: &Before) -> Result<()> {
    product::status_says(bed, "an image is missed under way", product::SAID, |status| {
        status.node_states.iter().any(|state| state.reason == "ImagePull")
    })
    .await?;
    let sets = replica_sets(bed).await?;
    ensure!(sets.len() == before.replica_sets.len() + 1 && sets.is_superset(&before.replica_sets), "{sets:?}");
    Ok(())
}

/// The former `ReplicaSet` is the only one again.
async fn only_the_former(bed: &Bed, before: &Before) -> Result<()> {
    product::is_complete(bed, NODES, product::ROLLED_OUT).await?;
    eventually(MINUTE, "the other ReplicaSet goes", async || {
        let sets = replica_sets(bed).await?;
        ensure!(sets == before.replica_sets, "{sets:?}");
        Ok(())
    })
    .await
}

/// Back to a revision that a former `ReplicaSet` still has: its Deployment takes that one up again, and nothing is stuck.
async fn former_replica_sets(bed: &mut Bed) -> Result<()> {
    let before = Before::of(bed).await?;
    let mut template = product::template("2");
    template["spec"]["containers"][0]["image"] = MISSING.into();
    product::change(bed, json!({ "template": template })).await?;
    is_stuck(bed, &before).await?;
    roll_to(bed, images::NEWER_NGINX).await?;
    only_the_former(bed, &before).await?;
    bed.say("a re-creation was taken back by the ReplicaSet of before");

    // Only the image differs now, but a former ReplicaSet has it already, with pods of its own.
    let degrade = |unavailable: u8, surged: u8| {
        let mut strategy = in_place(&Mode::degrade());
        strategy["rollingUpdate"]["maxUnavailablePodsPerNode"] = unavailable.into();
        strategy["rollingUpdate"]["maxSurgedPodsPerNode"] = surged.into();
        json!({ "updateStrategy": strategy })
    };
    product::change(bed, degrade(0, 1)).await?;
    product::is_complete(bed, NODES, product::ROLLED_OUT).await?;
    let before = Before::of(bed).await?;
    roll_to(bed, MISSING).await?;
    is_stuck(bed, &before).await?;
    let mut back = degrade(1, 0);
    let mut template = product::template("1");
    template["spec"]["containers"][0]["image"] = images::NEWER_NGINX.into();
    back["template"] = template;
    product::change(bed, back).await?;
    only_the_former(bed, &before).await?;
    let after = pods(bed).await?;
    ensure!(after == before.pods, "pods were {:?} and are {after:?}", before.pods);
    bed.say("an image was taken back by the ReplicaSet of before, whose pods had served all the time");
    product::change(bed, json!({ "updateStrategy": in_place(&Mode::token()) })).await?;
    product::is_complete(bed, NODES, product::ROLLED_OUT).await
}

/// What would need other pods waits, until it may have them.
async fn only_in_place(bed: &mut Bed) -> Result<()> {
    let before = Before::of(bed).await?;
    product::change(bed, json!({ "updateStrategy": { "rollingUpdate": { "podUpdate": "InPlaceOnly" } } })).await?;
    product::roll_to(bed, "2").await?;
    let held = product::status_says(bed, "no node is begun", product::SAID, |status| {
        status.node_states.iter().filter(|state| state.reason == "NotInPlace").count() == NODES
    })
    .await?;
    ensure!(held.nodes.available == 2 && held.rollout.is_some_and(|ledger| ledger.grants.is_empty()), "{:?}", held.nodes);
    before.stays(bed, 0).await?;
    product::change(bed, json!({ "updateStrategy": { "rollingUpdate": { "podUpdate": "InPlaceIfPossible" } } })).await?;
    product::is_complete(bed, NODES, product::ROLLED_OUT).await?;
    let after = pods(bed).await?;
    ensure!(after.keys().all(|uid| !before.pods.contains_key(uid)), "pods stayed that had to be made anew");
    Ok(())
}

/// An image that cannot be pulled: the former one is still there, and comes back in place.
async fn missing_image(bed: &mut Bed) -> Result<()> {
    let before = Before::of(bed).await?;
    product::change(bed, json!({ "updateStrategy": { "rollingUpdate": { "prePull": true } } })).await?;
    roll_to(bed, MISSING).await?;
    let held = product::status_says(bed, "the image is missed before a node is taken out", product::SAID, |status| {
        status.node_states.iter().any(|state| state.phase == NodePhase::Waiting && state.reason == "ImagePull")
    })
    .await?;
    ensure!(held.nodes.available == 2 && held.rollout.is_some_and(|ledger| ledger.grants.is_empty()), "{:?}", held.nodes);
    before.stays(bed, 0).await?;
    // The way back has this deadline, too: several times what a container takes to start.
    let more = json!({ "nodeDeadlineSeconds": 20, "autoRollback": true, "prePull": false });
    product::change(bed, json!({ "updateStrategy": { "rollingUpdate": more } })).await?;
    let failed = product::status_says(bed, "the revision failed and is rolled back", product::ROLLED_OUT, |status| {
        product::has_condition(status, "RolledBack", "True", "RevisionFailed")
    })
    .await?;
    bed.say(&format!("{:?}", failed.rollout.and_then(|ledger| ledger.rolled_back).map(|back| back.reason)));
    product::status_says(bed, "the former image serves everywhere", product::ROLLED_OUT, |status| {
        status.nodes.available == 2 && status.nodes.detached == 0 && status.rollout.as_ref().is_some_and(|ledger| ledger.grants.is_empty())
    })
    .await?;
    let after = pods(bed).await?;
    ensure!(after.keys().eq(before.pods.keys()), "pods were made anew: {after:?}");
    ensure!(replica_sets(bed).await? == before.replica_sets, "a ReplicaSet was made");
    let more = json!({ "nodeDeadlineSeconds": null, "autoRollback": false });
    product::change(bed, json!({ "updateStrategy": { "rollingUpdate": more } })).await?;
    roll_to(bed, images::NGINX).await?;
    product::is_complete(bed, NODES, product::ROLLED_OUT).await
}

/// The Deployment of a node that is paused for an update in place.
async fn paused(bed: &Bed) -> Result<String> {
    let api: Api<Deployment> = Api::namespaced(bed.client.clone(), "default");
    eventually(MINUTE, "a Deployment is paused", async || {
        let all = api.list(&ListParams::default().labels(names::RESOURCE_LABEL)).await?;
        let found = all.items.into_iter().find(|found| found.spec.as_ref().is_some_and(|spec| spec.paused == Some(true)));
        found.and_then(|found| found.metadata.name).context("none is")
    })
    .await
}

/// A pod that goes half-way comes back with the new image, made by the same `ReplicaSet`.
async fn dying_pod(bed: &mut Bed) -> Result<()> {
    let before = Before::of(bed).await?;
    roll_to(bed, images::NEWER_NGINX).await?;
    let name = paused(bed).await?;
    let api: Api<Pod> = Api::namespaced(bed.client.clone(), "default");
    let one = api.list(&ListParams::default().labels(&format!("{}={name}", names::NODE_LABEL))).await?.items;
    let one = one.into_iter().find_map(|pod| pod.metadata.name).context("no pod")?;
    api.delete(&one, &DeleteParams::default().grace_period(0)).await?;
    product::is_complete(bed, NODES, product::ROLLED_OUT).await?;
    let after = pods(bed).await?;
    let new = after.keys().filter(|uid| !before.pods.contains_key(*uid)).count();
    ensure!(new == 1 && after.len() == before.pods.len(), "{new} pods were made");
    ensure!(replica_sets(bed).await? == before.replica_sets, "a ReplicaSet was made");
    bed.say("a pod that died came back with the new image");
    Ok(())
}

/// Somebody ends the pause: the pods are re-created under the same grant.
async fn unpaused(bed: &mut Bed) -> Result<()> {
    roll_to(bed, images::NGINX).await?;
    let name = paused(bed).await?;
    let api: Api<Deployment> = Api::namespaced(bed.client.clone(), "default");
    let node = api.get(&name).await?.annotations().get(names::NODE_NAME_ANNOTATION).cloned().context("it has no node")?;
    // The Deployment controller makes a ReplicaSet now, by this person's hand.
    product::hands_on(bed, &[&node]).await?;
    api.patch(&name, &PatchParams::default(), &Patch::Merge(json!({ "spec": { "paused": false } }))).await?;
    product::is_complete(bed, NODES, product::ROLLED_OUT).await?;
    product::hands_off(bed, &[&node]).await?;
    // A former ReplicaSet of the wanted template has gone, and the next update is in place again.
    let before = Before::of(bed).await?;
    roll_to(bed, images::NEWER_NGINX).await?;
    product::is_complete(bed, NODES, product::ROLLED_OUT).await?;
    before.stays(bed, 1).await
}

/// Every write of an update in place is a moment at which the operator dies; then two operators act at once.
pub const CRASHES: Scenario = Scenario {
    name: "updates_in_place_make_no_pod_when_operators_are_killed",
    options: two_nodes,
    expected,
    body: |bed| Box::pin(crashing(bed)),
};

fn touches(request: &Request) -> bool {
    request.is_step() || request.is_write() && ["/replicasets/", "/pods/"].iter().any(|part| request.path.contains(part))
}

async fn crashing(bed: &mut Bed) -> Result<()> {
    let (mut proxy, mut operator) = crashes::serve(bed, &["--no-leader-election"]).await?;
    // Pods without the gate are made anew once.
    product::change(bed, json!({ "updateStrategy": in_place(&Mode::token()) })).await?;
    product::roll_to(bed, "1b").await?;
    product::is_complete(bed, NODES, product::ROLLED_OUT).await?;
    product::roll_to(bed, "1").await?;
    product::is_complete(bed, NODES, product::ROLLED_OUT).await?;
    let mut image = [images::NEWER_NGINX, images::NGINX].into_iter().cycle();
    let mut restarts = 0;
    for mode in [Mode::token(), Mode::degrade()] {
        product::change(bed, json!({ "updateStrategy": in_place(&mode) })).await?;
        product::is_complete(bed, NODES, product::ROLLED_OUT).await?;
        let before = Before::of(bed).await?;
        proxy.inject(|request| if touches(request) { Fault::Crash(Reached::ApiServer) } else { Fault::None });
        roll_to(bed, image.next().unwrap_or(images::NGINX)).await?;
        restarts += while_crashing(&mut proxy, &mut operator, product::is_complete(bed, NODES, MINUTE * 5)).await?;
        before.stays(bed, 1).await?;
    }
    bed.say(&format!("{restarts} restarts"));
    ensure!(restarts >= 30, "only {restarts} writes were followed by a crash");
    let second = crate::faults::FaultProxy::start(bed).await?;
    let mut rival = OperatorProcess::start_behind(bed, "rival", &second, &["--no-leader-election"]).await?;
    proxy.inject(slow_writes);
    second.inject(slow_view);
    let before = Before::of(bed).await?;
    roll_to(bed, image.next().unwrap_or(images::NGINX)).await?;
    product::is_complete(bed, NODES, product::ROLLED_OUT).await?;
    before.stays(bed, 1).await?;
    for exchange in proxy.log().iter().chain(&second.log()).filter(|exchange| exchange.request.path.ends_with("/status")) {
        let request = &exchange.request;
        let body: Value = serde_json::from_slice(&request.body)?;
        let conditions = body["status"]["conditions"].as_array().filter(|_| request.path.contains("/pods/")).into_iter().flatten();
        let types: BTreeSet<_> = conditions.filter_map(|condition| condition["type"].as_str()).collect();
        ensure!(types.iter().all(|kind| *kind == names::IN_PLACE_GATE), "{types:?} were written to a pod");
    }
    operator.check()?;
    rival.check()
}
