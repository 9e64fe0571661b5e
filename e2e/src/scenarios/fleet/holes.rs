//! Names that come again, deletions that nobody saw, changes by others, conflicts: through a proxy that lets requests fail.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use virtual_kubelet::fleet::FleetConfig;

use super::session::{
    MINUTE, Running, SECOND, client, client_of, delete, fleet, is_gone, is_true, make, node_is, nodes, pods, runs, shows,
};
use crate::{
    bed::Bed,
    eventually::eventually,
    faults::{Fault, FaultProxy, Request},
};

pub async fn run(bed: &mut Bed) -> Result<()> {
    bed.apply_path("deploy/virtual-kubelet/fleet.yaml").await.context("the rights of a fleet")?;
    let mut proxy = FaultProxy::start(bed).await?;
    let running = Running::start(client(bed, &proxy.server()).await?, fleet(20, "sim-", "")?).await?;
    fewest_requests(bed, &running).await.context("the number of requests")?;
    fast_final_delete(bed).await.context("the last deletion")?;
    repaired(bed).await.context("foreign changes")?;
    others_survive(bed).await.context("what is of others")?;
    gap(bed, &mut proxy, &running).await.context("a gap of the watch")?;
    gone(bed, &mut proxy, &running).await.context("410 Gone")?;
    conflicts(bed, &proxy, &running).await.context("conflicts")?;
    slowed_down(bed, &proxy, &running).await.context("429")?;
    foreign_holder(bed).await.context("a foreign holder")?;
    deleted_node(bed).await.context("a deleted Node")?;
    restarted(bed, &proxy, running).await.context("a restart")?;
    impersonated(bed, &proxy).await.context("impersonation")?;
    as_service_account(bed, &proxy).await.context("the rights that are documented")
}

async fn known_pods(running: &Running, wanted: u64) -> Result<()> {
    eventually(MINUTE * 2, &format!("the fleet knows {wanted} pods"), async || {
        let known = running.metric("virtual_kubelet_pods_known", "");
        ensure!(known == wanted, "it knows {known}");
        Ok(())
    })
    .await
}

async fn fewest_requests(bed: &Bed, running: &Running) -> Result<()> {
    let names: Vec<String> = (0..40).map(|index| format!("few-{index}")).collect();
    for (index, name) in names.iter().enumerate() {
        make(bed, name, &format!("sim-{}", index % 20), &[]).await?;
    }
    for name in &names {
        let pod = runs(bed, name).await?;
        delete(bed, name, None).await?;
        is_gone(bed, &pod, MINUTE).await?;
    }
    let of =
        |verb: &str, resource: &str| running.metric("virtual_kubelet_requests_total", &format!("verb=\"{verb}\",resource=\"{resource}\""));
    let made = [
        of("create", "nodes"),
        of("create", "leases"),
        of("patch", "pods"),
        of("delete", "pods"),
        running.metric("virtual_kubelet_requests_total", "verb=\"get\""),
    ];
    ensure!(made[0] == 20 && made[1] == 20 && made[2] <= 42 && made[3] <= 42 && made[4] == 0, "{}", running.handle.scrape());
    known_pods(running, 0).await?;
    bed.say("one request makes a node, one a lease, one runs a pod, one removes it");
    Ok(())
}

async fn fast_final_delete(bed: &Bed) -> Result<()> {
    make(bed, "quick", "sim-0", &[]).await?;
    let pod = runs(bed, "quick").await?;
    let begun = Instant::now();
    delete(bed, "quick", None).await?;
    is_gone(bed, &pod, SECOND * 25).await?;
    bed.say(&format!("a deleted pod with a grace of 30 s is gone after {:.1} s", begun.elapsed().as_secs_f32()));
    Ok(())
}

async fn repaired(bed: &Bed) -> Result<()> {
    make(bed, "repaired", "sim-1", &[]).await?;
    runs(bed, "repaired").await?;
    for _ in 0..3 {
        let status = json!({ "status": {
            "conditions": [{ "type": "Ready", "status": "False" }, { "type": "example.com/theirs", "status": "True" }],
        } });
        pods(bed).patch_status("repaired", &PatchParams::default(), &Patch::Strategic(status)).await?;
        let both = |status: &serde_json::Value| is_true(status, "Ready") && is_true(status, "example.com/theirs");
        shows(bed, "repaired", MINUTE, "is ready again and keeps what is of others", both).await?;
    }
    let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown" }] } });
    nodes(bed).patch_status("sim-1", &PatchParams::default(), &Patch::Strategic(ready)).await?;
    node_is(bed, "sim-1", "True", MINUTE).await?;
    bed.say("what others change of ours is put right");
    delete(bed, "repaired", None).await
}

async fn others_survive(bed: &Bed) -> Result<()> {
    let theirs = json!({
        "metadata": { "labels": { "theirs": "1" }, "annotations": { "theirs": "1" } },
        "spec": { "taints": [{ "key": "theirs", "effect": "NoSchedule" }] },
    });
    nodes(bed).patch("sim-2", &PatchParams::default(), &Patch::Strategic(theirs)).await?;
    let status = json!({
        "metadata": { "labels": { "kubernetes.io/os": "plan9" } },
        "status": { "conditions": [{ "type": "Theirs", "status": "True" }] },
    });
    nodes(bed).patch_status("sim-2", &PatchParams::default(), &Patch::Strategic(status)).await?;
    eventually(MINUTE, "our label is back", async || {
        let node = nodes(bed).get("sim-2").await?;
        ensure!(node.labels().get("kubernetes.io/os").map(String::as_str) == Some("linux"), "{:?}", node.labels());
        ensure!(node.labels().contains_key("theirs") && node.annotations().contains_key("theirs"), "{:?}", node.metadata);
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        ensure!(taints.iter().any(|taint| taint.key == "theirs"), "{taints:?}");
        ensure!(is_true(&json!(node.status), "Theirs"), "{:?}", node.status);
        Ok(())
    })
    .await?;
    bed.say("labels, annotations, taints and conditions of others stay");
    Ok(())
}

/// Pods are deleted and made while nothing is reached.
async fn gap(bed: &Bed, proxy: &mut FaultProxy, running: &Running) -> Result<()> {
    for name in ["missed", "reused"] {
        make(bed, name, "sim-3", &[]).await?;
        runs(bed, name).await?;
    }
    let reused = pods(bed).get("reused").await?;
    proxy.stop();
    for name in ["missed", "reused"] {
        delete(bed, name, Some(0)).await?;
    }
    make(bed, "reused", "sim-4", &[]).await?;
    proxy.resume().await?;
    let again = runs(bed, "reused").await?;
    ensure!(again.uid() != reused.uid(), "it is the first one");
    known_pods(running, 1).await?;
    bed.say("deletions in a gap of the watch are noticed, and a name that was used again is another pod");
    delete(bed, "reused", None).await?;
    is_gone(bed, &again, MINUTE).await
}

/// No watch is taken up where the last one ended: only a list shows what was deleted.
async fn gone(bed: &Bed, proxy: &mut FaultProxy, running: &Running) -> Result<()> {
    for name in ["expired", "surviving"] {
        make(bed, name, "sim-5", &[]).await?;
        runs(bed, name).await?;
    }
    let surviving = pods(bed).get("surviving").await?;
    let before = proxy.log().len();
    proxy.inject(|request| if request.watch && request.path.ends_with("/pods") { Fault::Answer(410) } else { Fault::None });
    proxy.stop();
    delete(bed, "expired", Some(0)).await?;
    proxy.resume().await?;
    let lists = || {
        let log = proxy.log();
        let of_pods = log[before..].iter().filter(|exchange| !exchange.request.watch && exchange.request.path == "/api/v1/pods");
        of_pods.count()
    };
    eventually(MINUTE * 2, "the pods are listed anew", async || {
        ensure!(lists() > 0, "they are not");
        Ok(())
    })
    .await?;
    proxy.pass();
    known_pods(running, 1).await?;
    make(bed, "renewed", "sim-5", &[]).await?;
    runs(bed, "renewed").await?;
    let now = pods(bed).get("surviving").await?;
    ensure!(json!(now.status) == json!(surviving.status), "a pod that stayed was touched: {:?}", now.status);
    bed.say("after 410 Gone the pods are listed and watched anew, and those that stayed are left alone");
    for name in ["surviving", "renewed"] {
        let pod = pods(bed).get(name).await?;
        delete(bed, name, None).await?;
        is_gone(bed, &pod, MINUTE).await?;
    }
    Ok(())
}

/// Twenty pods start and end through conflicts.
async fn conflicts(bed: &Bed, proxy: &FaultProxy, running: &Running) -> Result<()> {
    proxy.inject(|request| if request.is_write() && request.attempt <= 3 { Fault::Answer(409) } else { Fault::None });
    let names: Vec<String> = (0..20).map(|index| format!("contested-{index}")).collect();
    for (index, name) in names.iter().enumerate() {
        make(bed, name, &format!("sim-{index}"), &[]).await?;
    }
    for name in &names {
        runs(bed, name).await?;
        delete(bed, name, None).await?;
    }
    for name in &names {
        eventually(MINUTE, &format!("pod {name} is gone"), async || {
            ensure!(pods(bed).get_opt(name).await?.is_none(), "it is there");
            Ok(())
        })
        .await?;
    }
    proxy.pass();
    known_pods(running, 0).await?;
    bed.say("pods start and end through a storm of conflicts");
    Ok(())
}

/// The API server asks to be left in peace.
async fn slowed_down(bed: &Bed, proxy: &FaultProxy, running: &Running) -> Result<()> {
    let limit = || running.metric("virtual_kubelet_in_flight_limit", "nodes_and_pods");
    let before = limit();
    proxy.inject(|request| if request.is_write() && request.attempt <= 1 { Fault::Answer(429) } else { Fault::None });
    let names: Vec<String> = (0..20).map(|index| format!("refused-{index}")).collect();
    for (index, name) in names.iter().enumerate() {
        make(bed, name, &format!("sim-{index}"), &[]).await?;
    }
    eventually(MINUTE, "fewer requests are under way at once", async || {
        ensure!(limit() < before, "{} after {before}", limit());
        Ok(())
    })
    .await?;
    for name in &names {
        runs(bed, name).await?;
    }
    let limited = limit();
    let many = at_once(bed, proxy).await?;
    // An answer adds a tenth of a request, and there are a hundred.
    ensure!((2..=limited + 11).contains(&many), "{many} requests at once, with a limit of {limited}");
    bed.say(&format!("an API server that asks for it gets fewer requests at once ({many} instead of {before}), and all pods run"));
    for name in &names {
        delete(bed, name, None).await?;
    }
    known_pods(running, 0).await
}

/// How many writes about pods are under way at once when each takes longer than it takes to make the pods.
async fn at_once(bed: &Bed, proxy: &FaultProxy) -> Result<u64> {
    const TAKES: Duration = Duration::from_secs(4);
    let is_ours = |request: &Request| request.is_write() && request.path.ends_with("/status") && request.path.contains("/pods/many-");
    proxy.inject(move |request| if is_ours(request) { Fault::Delay(TAKES) } else { Fault::None });
    let names: Vec<String> = (0..100).map(|index| format!("many-{index}")).collect();
    for (index, name) in names.iter().enumerate() {
        make(bed, name, &format!("sim-{}", index % 20), &[]).await?;
    }
    for name in &names {
        runs(bed, name).await?;
    }
    proxy.pass();
    let came: Vec<_> = proxy.log().iter().filter(|exchange| is_ours(&exchange.request)).map(|exchange| exchange.at).collect();
    for name in &names {
        delete(bed, name, None).await?;
    }
    // Each was under way for so long at least.
    let under_way = |at: &Instant| came.iter().filter(|other| *other <= at && at.duration_since(**other) < TAKES).count();
    Ok(u64::try_from(came.iter().map(under_way).max().unwrap_or_default())?)
}

fn leases(bed: &Bed) -> Api<Lease> {
    Api::namespaced(bed.client.clone(), "kube-node-lease")
}

async fn foreign_holder(bed: &Bed) -> Result<()> {
    let theirs =
        json!({ "metadata": { "annotations": { "theirs": "1" } }, "spec": { "holderIdentity": "kwok", "leaseDurationSeconds": 7 } });
    leases(bed).patch("sim-6", &PatchParams::default(), &Patch::Merge(theirs)).await?;
    eventually(MINUTE * 2, "the lease is ours again", async || {
        let lease = leases(bed).get("sim-6").await?;
        let spec = lease.spec.clone().unwrap_or_default();
        ensure!(spec.holder_identity.as_deref() == Some("sim-6") && spec.lease_duration_seconds == Some(40), "{spec:?}");
        ensure!(lease.annotations().contains_key("theirs"), "an annotation of others is gone");
        Ok(())
    })
    .await?;
    bed.say("a lease of a foreign holder is taken over");
    Ok(())
}

async fn deleted_node(bed: &Bed) -> Result<()> {
    let before = nodes(bed).get("sim-7").await?.uid();
    nodes(bed).delete("sim-7", &DeleteParams::default()).await?;
    eventually(MINUTE * 2, "Node and lease are back", async || {
        let node = nodes(bed).get("sim-7").await?;
        ensure!(node.uid() != before, "it is the old one");
        let lease = leases(bed).get("sim-7").await?;
        ensure!(lease.owner_references().first().map(|owner| owner.uid.clone()) == node.uid(), "{:?}", lease.metadata);
        Ok(())
    })
    .await?;
    node_is(bed, "sim-7", "True", MINUTE).await?;
    bed.say("a deleted Node comes back, its lease with it");
    Ok(())
}

/// The next process finds Nodes and pods as they are and writes nothing about them.
async fn restarted(bed: &Bed, proxy: &FaultProxy, running: Running) -> Result<()> {
    make(bed, "adopted", "sim-8", &[]).await?;
    runs(bed, "adopted").await?;
    let before = pods(bed).get("adopted").await?;
    running.stop().await?;
    let running = Running::start(client(bed, &proxy.server()).await?, fleet(20, "sim-", "")?).await?;
    known_pods(&running, 1).await?;
    make(bed, "next", "sim-8", &[]).await?;
    runs(bed, "next").await?;
    let after = pods(bed).get("adopted").await?;
    ensure!(after.resource_version() == before.resource_version(), "the pod was written: {:?}", after.status);
    ensure!(running.metric("virtual_kubelet_requests_total", "verb=\"create\"") == 0, "{}", running.handle.scrape());
    bed.say("another process adopts Nodes, leases and pods and writes none of them anew");
    for name in ["adopted", "next"] {
        delete(bed, name, None).await?;
    }
    known_pods(&running, 0).await?;
    running.stop().await
}

/// Who writes as a node may write of that node, and not of another one.
async fn own_status_alone(bed: &Bed) -> Result<()> {
    let mut kubeconfig = bed.control_plane.admin_kubeconfig_for(&crate::bed::control_plane::server())?;
    kubeconfig["users"][0]["user"]["as"] = "system:node:imp-0".into();
    kubeconfig["users"][0]["user"]["as-groups"] = json!(["system:nodes"]);
    let as_node: Api<Node> = Api::all(client_of(&kubeconfig).await?);
    let status = json!({ "status": { "conditions": [{ "type": "Theirs", "status": "True" }] } });
    as_node.patch_status("imp-0", &PatchParams::default(), &Patch::Strategic(status.clone())).await.context("its own status")?;
    let refused = as_node.patch_status("imp-1", &PatchParams::default(), &Patch::Strategic(status)).await;
    ensure!(matches!(&refused, Err(kube::Error::Api(why)) if why.code == 403), "the status of another node: {refused:?}");
    let node = nodes(bed).get("imp-1").await?;
    ensure!(!is_true(&json!(node.status), "Theirs"), "it was written: {:?}", node.status);
    Ok(())
}

/// With what `deploy/virtual-kubelet/fleet.yaml` grants its `ServiceAccount`, as itself and as its nodes.
async fn as_service_account(bed: &Bed, proxy: &FaultProxy) -> Result<()> {
    let token = bed.control_plane.kubectl(&["create", "token", "fleet", "--namespace", "virtual-kubelet"]).await?;
    let mut kubeconfig = bed.control_plane.admin_kubeconfig_for(&proxy.server())?;
    kubeconfig["users"][0]["user"] = json!({ "token": token.trim() });
    for (prefix, impersonate) in [("sa-", false), ("sa-imp-", true)] {
        let config = FleetConfig { impersonate, ..fleet(3, prefix, "")? };
        let running = Running::start(client_of(&kubeconfig).await?, config).await?;
        let (node, name) = (format!("{prefix}1"), format!("{prefix}pod"));
        make(bed, &name, &node, &[]).await?;
        let pod = runs(bed, &name).await?;
        // A lost Node and a status of others take the rights that nothing above has asked for.
        let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown" }] } });
        nodes(bed).patch_status(&node, &PatchParams::default(), &Patch::Strategic(ready)).await?;
        node_is(bed, &node, "True", MINUTE).await?;
        delete(bed, &name, None).await?;
        is_gone(bed, &pod, MINUTE).await?;
        let refused = running.metric("virtual_kubelet_requests_total", "code=\"403\"");
        // The node authorizer learns of a pod a moment after its node may have.
        ensure!(impersonate || refused == 0, "{refused} requests were refused: {}", running.handle.scrape());
        running.stop().await?;
    }
    bed.say("the rights of deploy/virtual-kubelet/fleet.yaml are enough, with and without impersonation");
    Ok(())
}

/// With the rights of nodes, and no others.
async fn impersonated(bed: &Bed, proxy: &FaultProxy) -> Result<()> {
    let config = FleetConfig { impersonate: true, ..fleet(3, "imp-", "")? };
    let running = Running::start(client(bed, &proxy.server()).await?, config).await?;
    make(bed, "impersonated", "imp-1", &[]).await?;
    let pod = runs(bed, "impersonated").await?;
    let writers = pod.managed_fields().iter().filter(|entry| entry.subresource.as_deref() == Some("status")).count();
    ensure!(writers > 0, "nobody wrote a status");
    delete(bed, "impersonated", None).await?;
    is_gone(bed, &pod, MINUTE).await?;
    own_status_alone(bed).await?;
    running.stop().await?;
    // What an admin may and a node may not is refused.
    let mut config = FleetConfig { impersonate: true, ..fleet(1, "refused-", "")? };
    config.labels.insert("node-restriction.kubernetes.io/zone".into(), "inner".into());
    let refused = virtual_kubelet::fleet::Fleet::new(client(bed, &proxy.server()).await?, config)?;
    let (handle, cancel) = (refused.handle(), tokio_util::sync::CancellationToken::new());
    let task = tokio::spawn(refused.run(cancel.clone()));
    eventually(MINUTE * 2, "the Node is refused", async || {
        ensure!(handle.scrape().contains("code=\"403\""), "it is not");
        Ok(())
    })
    .await?;
    cancel.cancel();
    task.await.context("the fleet crashed")??;
    bed.say("a fleet runs with the rights of its nodes, and has no others");
    Ok(())
}
