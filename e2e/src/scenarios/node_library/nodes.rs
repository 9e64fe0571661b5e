//! What the node controller of the original promises, and what it does wrong.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, NodeCondition, NodeSpec, Taint},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use virtual_kubelet::{
    errdefs::ProviderError,
    node::{
        APPLIED_KEYS_ANNOTATION, MachineFacts, NaiveNodeProvider, NodeController, NodeControllerError, NodeControllerOpt, NodeProvider,
        NodeStatusSink, new_node, with_node_enable_lease_v1, with_node_enable_lease_v1_with_renew_interval, with_node_ping_interval,
        with_node_reconcile_spec, with_node_status_update_error_handler, with_node_status_update_interval,
    },
};

use super::session::{MINUTE, Running, SECOND, SOON};
use crate::{
    bed::{Bed, control_plane},
    eventually::{eventually, throughout},
    faults::{Fault, FaultProxy},
};

pub async fn run(bed: &Bed) -> Result<()> {
    with_lease(bed).await.context("with a lease")?;
    bed.say("with a lease: holder, owner and times are right, an update arrives, the end is clean");
    without_lease(bed).await.context("without a lease")?;
    bed.say("without a lease the status is written at each ping, and there is no lease");
    what_is_of_others_survives(bed).await.context("annotations and conditions of others")?;
    bed.say("annotations and conditions of others survive, dropped ones of ours do not");
    a_deleted_node_comes_back(bed).await.context("a Node that is deleted")?;
    bed.say("a deleted Node comes back, its lease with it");
    Box::pin(error_handler(bed)).await.context("the error handler")?;
    bed.say("the error handler is asked, and a write is repeated once");
    Box::pin(pings(bed)).await.context("pings")?;
    bed.say("a provider that does not answer keeps status and lease back");
    foreign_lease(bed).await.context("a lease of somebody else")?;
    bed.say("a lease of a foreign holder is taken over and corrected");
    one_request_per_heartbeat(bed).await.context("requests")?;
    bed.say("a heartbeat is one request, and says nothing of metadata");
    spec_is_reconciled(bed).await.context("the spec")?;
    bed.say("taints of ours come back, those of others stay");
    Ok(())
}

/// A node of this name as it is wanted.
pub fn wanted(name: &str) -> Node {
    let facts = MachineFacts {
        name: name.to_owned(),
        internal_ip: "198.18.0.200".to_owned(),
        cpu: "8".to_owned(),
        memory: "16Gi".to_owned(),
        pods: "110".to_owned(),
        ..MachineFacts::default()
    };
    new_node(&facts, k8s_openapi::jiff::Timestamp::now())
}

/// A controller of `node` that is ready.
async fn start<P: NodeProvider>(
    client: &Client,
    provider: &Arc<P>,
    node: Node,
    options: impl IntoIterator<Item = NodeControllerOpt>,
) -> Result<Running<NodeControllerError>> {
    let controller = NodeController::new(client.clone(), provider.clone(), node, options)?;
    let (ready, cancel) = (controller.ready(), tokio_util::sync::CancellationToken::new());
    let running = Running::new(controller.run(cancel.clone()), cancel);
    tokio::time::timeout(MINUTE, ready).await.context("the controller does not become ready")?;
    Ok(running)
}

fn nodes(bed: &Bed) -> Api<Node> {
    Api::all(bed.client.clone())
}

fn leases(bed: &Bed) -> Api<Lease> {
    Api::namespaced(bed.client.clone(), "kube-node-lease")
}

fn condition<'a>(node: &'a Node, type_: &str) -> Option<&'a NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == type_)
}

async fn remove(bed: &Bed, name: &str) -> Result<()> {
    nodes(bed).delete(name, &DeleteParams::default()).await.map(drop).context("deleting the Node")
}

/// A lease of 4 s, renewed every second.
fn short_lease() -> NodeControllerOpt {
    with_node_enable_lease_v1(SECOND * 4)
}

async fn with_lease(bed: &Bed) -> Result<()> {
    let provider = Arc::new(NaiveNodeProvider::default());
    let running = start(&bed.client, &provider, wanted("lib-lease"), [short_lease()]).await?;
    let uid = nodes(bed).get("lib-lease").await?.uid();
    let mut last = None;
    for _ in 0..3 {
        last = Some(
            eventually(MINUTE, "the lease is renewed", async || {
                let lease = leases(bed).get("lib-lease").await?;
                let spec = lease.spec.clone().context("no spec")?;
                ensure!(spec.renew_time > last, "renewTime {:?} after {last:?}", spec.renew_time);
                ensure!(spec.holder_identity.as_deref() == Some("lib-lease") && spec.lease_duration_seconds == Some(4), "{spec:?}");
                let [owner] = lease.owner_references() else { anyhow::bail!("owners {:?}", lease.owner_references()) };
                ensure!(Some(&owner.uid) == uid.as_ref() && owner.name == "lib-lease" && owner.kind == "Node", "{owner:?}");
                spec.renew_time.context("no renewTime")
            })
            .await?,
        );
    }
    // An update that the provider makes at some time.
    let mut node = wanted("lib-lease");
    let status = node.status.get_or_insert_default();
    status.phase = Some("Running".into());
    let new = NodeCondition { type_: "New".into(), status: "True".into(), ..NodeCondition::default() };
    status.conditions.get_or_insert_default().push(new);
    provider.update_status(node).await;
    eventually(SOON, "the update arrives", async || {
        let node = nodes(bed).get("lib-lease").await?;
        ensure!(condition(&node, "New").is_some_and(|condition| condition.status == "True"), "{:?}", node.status);
        ensure!(node.status.and_then(|status| status.phase).as_deref() == Some("Running"), "the phase is another one");
        Ok(())
    })
    .await?;
    running.stop().await?;
    remove(bed, "lib-lease").await
}

async fn without_lease(bed: &Bed) -> Result<()> {
    let options = [with_node_ping_interval(SECOND), with_node_status_update_interval(MINUTE * 60)];
    let running = start(&bed.client, &Arc::new(NaiveNodeProvider::default()), wanted("lib-bare"), options).await?;
    let mut last = None;
    for _ in 0..3 {
        last = Some(
            eventually(MINUTE, "the status is written again", async || {
                let node = nodes(bed).get("lib-bare").await?;
                let ready = condition(&node, "Ready").context("not Ready")?;
                ensure!(ready.last_heartbeat_time > last, "{:?} after {last:?}", ready.last_heartbeat_time);
                ready.last_heartbeat_time.clone().context("no time")
            })
            .await?,
        );
    }
    ensure!(leases(bed).get_opt("lib-bare").await?.is_none(), "there is a lease");
    running.stop().await?;
    remove(bed, "lib-bare").await
}

async fn what_is_of_others_survives(bed: &Bed) -> Result<()> {
    let mut before = wanted("lib-others");
    before.metadata.annotations = Some([("before".to_owned(), "1".to_owned())].into());
    nodes(bed).create(&PostParams::default(), &before).await.context("making the Node before its agent")?;
    let mut ours = wanted("lib-others");
    ours.metadata.annotations = Some([("ours".to_owned(), "1".to_owned())].into());
    let mut with_condition = ours.clone();
    let condition_of = |type_: &str| NodeCondition { type_: type_.into(), status: "True".into(), ..NodeCondition::default() };
    with_condition.status.get_or_insert_default().conditions.get_or_insert_default().push(condition_of("Dropped"));
    let provider = Arc::new(NaiveNodeProvider::default());
    let running = start(&bed.client, &provider, with_condition, [short_lease()]).await?;
    let theirs = json!({
        "metadata": { "annotations": { "theirs": "1" }, "labels": { "theirs": "1" } },
        "status": { "conditions": [{ "type": "Theirs", "status": "True" }] },
    });
    nodes(bed).patch_status("lib-others", &PatchParams::default(), &Patch::Strategic(&theirs)).await?;
    let mut changed = ours;
    changed.metadata.annotations = Some([("new".to_owned(), "1".to_owned())].into());
    changed.status.get_or_insert_default().conditions.get_or_insert_default().push(condition_of("New"));
    provider.update_status(changed).await;
    eventually(SOON, "the Node has what it should have and nothing else", async || {
        let node = nodes(bed).get("lib-others").await?;
        let annotations = node.annotations();
        let (has, lacks) = (["before", "theirs", "new"], ["ours"]);
        ensure!(has.iter().all(|key| annotations.contains_key(*key)), "{annotations:?}");
        ensure!(lacks.iter().all(|key| !annotations.contains_key(*key)), "{annotations:?}");
        ensure!(node.labels().contains_key("theirs"), "{:?}", node.labels());
        ensure!(["Theirs", "New", "Ready"].iter().all(|type_| condition(&node, type_).is_some()), "{:?}", node.status);
        ensure!(condition(&node, "Dropped").is_none(), "a condition that is not wanted any more is there");
        Ok(())
    })
    .await?;
    // What somebody else makes of ours is put right.
    let foreign = json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown", "reason": "Foreign" }] } });
    nodes(bed).patch_status("lib-others", &PatchParams::default(), &Patch::Strategic(&foreign)).await?;
    eventually(SOON, "Ready is put right", async || {
        let node = nodes(bed).get("lib-others").await?;
        ensure!(condition(&node, "Ready").is_some_and(|ready| ready.status == "True"), "{:?}", condition(&node, "Ready"));
        Ok(())
    })
    .await?;
    running.stop().await?;
    remove(bed, "lib-others").await
}

async fn a_deleted_node_comes_back(bed: &Bed) -> Result<()> {
    let provider = Arc::new(NaiveNodeProvider::default());
    let running = start(&bed.client, &provider, wanted("lib-deleted"), [with_node_enable_lease_v1(SECOND * 200)]).await?;
    let old = nodes(bed).get("lib-deleted").await?.uid();
    let lease_owner = async || {
        let lease = leases(bed).get("lib-deleted").await?;
        lease.owner_references().first().map(|owner| owner.uid.clone()).context("the lease has no owner")
    };
    eventually(MINUTE, "the lease is there", lease_owner).await?;
    remove(bed, "lib-deleted").await?;
    // Not at the next heartbeat, nor at the next renewal, which is 50 s after the first.
    eventually(SOON, "the Node and its lease are there again", async || {
        let new = nodes(bed).get("lib-deleted").await?.uid();
        ensure!(new != old, "it has the old UID");
        ensure!(Some(lease_owner().await?) == new, "the lease belongs to the old one");
        Ok(())
    })
    .await?;
    running.stop().await?;
    remove(bed, "lib-deleted").await
}

/// A client that reaches the API server through `proxy` only.
pub async fn behind(bed: &Bed, proxy: &FaultProxy) -> Result<Client> {
    let _ = bed;
    control_plane::client_without_retry(&bed.control_plane.admin_kubeconfig_for(&proxy.server())?).await
}

async fn error_handler(bed: &Bed) -> Result<()> {
    let proxy = FaultProxy::start(bed).await?;
    let client = behind(bed, &proxy).await?;
    // The handler repairs: the write is tried once more.
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let handler = with_node_status_update_error_handler(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok(()))
    });
    let provider = Arc::new(NaiveNodeProvider::default());
    // A heartbeat says all that differs, the update that failed included: there is none here.
    let options = [handler, with_node_ping_interval(Duration::from_hours(1))];
    let running = start(&client, &provider, wanted("lib-handler"), options).await?;
    let writes = |proxy: &FaultProxy| {
        let log = proxy.log();
        log.iter().filter(|exchange| exchange.request.path.ends_with("/lib-handler/status") && exchange.request.says("told")).count()
    };
    proxy.inject(|request| {
        let is_update = request.path.ends_with("/lib-handler/status") && request.says("told");
        if is_update && request.is_first() { Fault::Answer(500) } else { Fault::None }
    });
    let mut update = wanted("lib-handler");
    update.metadata.annotations = Some([("told".to_owned(), "1".to_owned())].into());
    provider.update_status(update).await;
    eventually(SOON, "the update arrives", async || {
        ensure!(nodes(bed).get("lib-handler").await?.annotations().contains_key("told"), "it did not");
        Ok(())
    })
    .await?;
    ensure!(asked.load(Ordering::Relaxed) == 1, "the handler was asked {} times", asked.load(Ordering::Relaxed));
    ensure!(writes(&proxy) == 2, "there were {} writes", writes(&proxy));
    proxy.pass();
    running.stop().await?;
    remove(bed, "lib-handler").await?;

    // While the handler says no, a Node that was deleted stays so.
    let (wanted_back, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (allowed, counted) = (wanted_back.clone(), asked.clone());
    let handler = with_node_status_update_error_handler(move |error| {
        counted.fetch_add(1, Ordering::Relaxed);
        std::future::ready(if allowed.load(Ordering::Relaxed) { Ok(()) } else { Err(error) })
    });
    let every = with_node_ping_interval(SECOND);
    let running = start(&client, &Arc::new(NaiveNodeProvider::default()), wanted("lib-handler"), [handler, every]).await?;
    nodes(bed).delete("lib-handler", &DeleteParams::default()).await?;
    eventually(SOON, "the handler is asked about the deletion", async || {
        ensure!(asked.load(Ordering::Relaxed) >= 1, "it is not");
        Ok(())
    })
    .await?;
    throughout(SECOND * 2, "the Node stays deleted", async || {
        ensure!(nodes(bed).get_opt("lib-handler").await?.is_none(), "it is back");
        Ok(())
    })
    .await?;
    nodes(bed).create(&PostParams::default(), &wanted("lib-handler")).await?;
    eventually(SOON, "the Node that somebody made is ours", async || {
        ensure!(nodes(bed).get("lib-handler").await?.annotations().contains_key(APPLIED_KEYS_ANNOTATION), "it is not");
        Ok(())
    })
    .await?;
    // Not before that: the controller would make it by itself when it hears of the deletion late.
    wanted_back.store(true, Ordering::Relaxed);
    nodes(bed).delete("lib-handler", &DeleteParams::default()).await?;
    eventually(SOON, "it comes back when the handler agrees", async || nodes(bed).get("lib-handler").await.map(drop).context("gone"))
        .await?;
    running.stop().await?;
    remove(bed, "lib-handler").await?;

    // The handler ends the program with its Node.
    let cancel = tokio_util::sync::CancellationToken::new();
    let told = cancel.clone();
    let handler = with_node_status_update_error_handler(move |error| {
        told.cancel();
        std::future::ready(Err(error))
    });
    let provider = Arc::new(NaiveNodeProvider::default());
    let controller = NodeController::new(client, provider.clone(), wanted("lib-handler"), [handler])?;
    let ready = controller.ready();
    let running = Running::new(controller.run(cancel.clone()), cancel);
    ready.await;
    nodes(bed).delete("lib-handler", &DeleteParams::default()).await?;
    running.ends().await.context("the controller did not end cleanly")?;
    ensure!(nodes(bed).get_opt("lib-handler").await?.is_none(), "the Node came back");
    Ok(())
}

/// Answers as it is told.
#[derive(Default)]
struct Answering {
    fails: AtomicBool,
}

impl NodeProvider for Answering {
    async fn ping(&self) -> Result<(), ProviderError> {
        if self.fails.load(Ordering::Relaxed) { Err(ProviderError::not_found("the machine")) } else { Ok(()) }
    }

    fn notify_node_status(&self, _: NodeStatusSink) {}
}

async fn pings(bed: &Bed) -> Result<()> {
    let provider = Arc::new(Answering::default());
    provider.fails.store(true, Ordering::Relaxed);
    let controller = NodeController::new(bed.client.clone(), provider.clone(), wanted("lib-ping"), [])?;
    let (done, cancel) = (controller.done(), tokio_util::sync::CancellationToken::new());
    let result = Box::pin(controller.run(cancel)).await;
    ensure!(matches!(result.as_ref().map_err(|error| &**error), Err(NodeControllerError::Ping(_))), "{result:?}");
    ensure!(done.await.is_err(), "`done` tells of no error");
    ensure!(nodes(bed).get_opt("lib-ping").await?.is_none(), "the Node was made");

    provider.fails.store(false, Ordering::Relaxed);
    let options = [with_node_ping_interval(Duration::from_millis(200)), short_lease()];
    let running = start(&bed.client, &provider, wanted("lib-ping"), options).await?;
    let renewed = async || {
        let lease = leases(bed).get("lib-ping").await?;
        lease.spec.and_then(|spec| spec.renew_time).context("not renewed")
    };
    eventually(MINUTE, "the lease is there", renewed).await?;
    provider.fails.store(true, Ordering::Relaxed);
    let mut last = renewed().await?;
    eventually(MINUTE, "the lease is not renewed for two seconds", async || {
        last = renewed().await?;
        throughout(SECOND * 2, "it stays", async || {
            ensure!(renewed().await? == last, "it was renewed");
            Ok(())
        })
        .await
    })
    .await?;
    provider.fails.store(false, Ordering::Relaxed);
    eventually(MINUTE, "the lease is renewed again", async || {
        ensure!(renewed().await? > last, "it is not");
        Ok(())
    })
    .await?;
    running.stop().await?;
    remove(bed, "lib-ping").await
}

async fn foreign_lease(bed: &Bed) -> Result<()> {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "lib-foreign", "namespace": "kube-node-lease" },
        "spec": { "holderIdentity": "somebody-else", "leaseDurationSeconds": 7, "renewTime": "2020-01-01T00:00:00.000000Z" },
    });
    bed.apply(&[lease]).await?;
    let provider = Arc::new(NaiveNodeProvider::default());
    let options = [with_node_enable_lease_v1_with_renew_interval(SECOND * 40, SECOND)];
    let running = start(&bed.client, &provider, wanted("lib-foreign"), options).await?;
    let uid = nodes(bed).get("lib-foreign").await?.uid();
    eventually(SOON, "the lease is ours", async || {
        let lease = leases(bed).get("lib-foreign").await?;
        let spec = lease.spec.clone().unwrap_or_default();
        ensure!(spec.holder_identity.as_deref() == Some("lib-foreign") && spec.lease_duration_seconds == Some(40), "{spec:?}");
        ensure!(lease.owner_references().iter().map(|owner| &owner.uid).eq(uid.as_ref()), "{:?}", lease.owner_references());
        Ok(())
    })
    .await?;
    running.stop().await?;
    remove(bed, "lib-foreign").await
}

async fn one_request_per_heartbeat(bed: &Bed) -> Result<()> {
    let proxy = FaultProxy::start(bed).await?;
    let client = behind(bed, &proxy).await?;
    let options = [short_lease(), with_node_status_update_interval(SECOND)];
    let running = start(&client, &Arc::new(NaiveNodeProvider::default()), wanted("lib-requests"), options).await?;
    let of_node = |proxy: &FaultProxy| {
        let is_of_node = |path: &str| path.contains("/nodes/lib-requests");
        proxy.log().into_iter().map(|exchange| exchange.request).filter(|request| is_of_node(&request.path)).collect::<Vec<_>>()
    };
    eventually(MINUTE * 2, "the status was written five times", async || {
        ensure!(of_node(&proxy).len() >= 5, "{} times", of_node(&proxy).len());
        Ok(())
    })
    .await?;
    for request in of_node(&proxy) {
        ensure!(request.method == http::Method::PATCH && request.path.ends_with("/status"), "{} {}", request.method, request.path);
        let body: Value = serde_json::from_slice(&request.body)?;
        let metadata = body["metadata"].as_object().context("no metadata")?;
        ensure!(metadata.keys().eq(["uid"]), "a heartbeat writes {metadata:?}");
    }
    let of_lease = proxy.log().into_iter().filter(|exchange| exchange.request.path.ends_with("/leases/lib-requests")).collect::<Vec<_>>();
    let reads = of_lease.iter().filter(|exchange| exchange.request.method == http::Method::GET).count();
    ensure!(reads == 1, "the lease was read {reads} times in {} requests", of_lease.len());
    // Renewals come about a second apart, with a little jitter, and the first two do not come together.
    let renewals: Vec<_> = of_lease.iter().filter(|exchange| exchange.request.method == http::Method::PUT).map(|e| e.at).collect();
    let mut apart: Vec<_> = renewals.windows(2).map(|pair| pair[1] - pair[0]).collect();
    apart.sort_unstable();
    ensure!(apart.first().is_none_or(|least| *least > Duration::from_millis(900)), "two renewals are {:?} apart", apart.first());
    // One may come late on a machine that others keep busy.
    let median = apart.get(apart.len() / 2);
    ensure!(median.is_none_or(|median| *median < SECOND * 3), "renewals are {apart:?} apart");
    let node = nodes(bed).get("lib-requests").await?;
    ensure!(
        node.annotations().keys().filter(|key| key.starts_with("virtual-kubelet.io/")).eq([APPLIED_KEYS_ANNOTATION]),
        "{:?}",
        node.annotations()
    );
    running.stop().await?;
    remove(bed, "lib-requests").await
}

async fn spec_is_reconciled(bed: &Bed) -> Result<()> {
    nodes(bed).create(&PostParams::default(), &wanted("lib-spec")).await.context("making the Node before its agent")?;
    let taint = |key: &str| Taint { key: key.into(), effect: "NoSchedule".into(), ..Taint::default() };
    let spec = NodeSpec { taints: Some(vec![taint("ours")]), provider_id: Some("vk://lib-spec".into()), ..NodeSpec::default() };
    let ours = Node { spec: Some(spec), ..wanted("lib-spec") };
    let options = [with_node_enable_lease_v1(Duration::ZERO), with_node_reconcile_spec()];
    let running = start(&bed.client, &Arc::new(NaiveNodeProvider::default()), ours, options).await?;
    let node = eventually(SOON, "the Node has our taint", async || {
        let node = nodes(bed).get("lib-spec").await?;
        ensure!(taints(&node).contains(&"ours".to_owned()), "{:?}", taints(&node));
        Ok(node)
    })
    .await?;
    ensure!(node.spec.and_then(|spec| spec.provider_id).as_deref() == Some("vk://lib-spec"), "it has no provider id");
    nodes(bed).patch("lib-spec", &PatchParams::default(), &Patch::Merge(json!({ "spec": { "taints": [taint("theirs")] } }))).await?;
    eventually(SOON, "the Node has both taints", async || {
        let node = nodes(bed).get("lib-spec").await?;
        ensure!(["ours", "theirs"].iter().all(|key| taints(&node).contains(&(*key).to_owned())), "{:?}", taints(&node));
        Ok(())
    })
    .await?;
    running.stop().await?;
    remove(bed, "lib-spec").await
}

fn taints(node: &Node) -> Vec<String> {
    node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()).map(|taint| taint.key.clone()).collect()
}
