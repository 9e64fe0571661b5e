//! What happens to nodes and pods while the API server answers 409, forgets, or does not answer.

use std::{sync::Arc, time::Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, ResourceExt, api::ListParams};
use nix::sys::signal::Signal;
use virtual_kubelet::{
    errdefs::ProviderError,
    node::{NaiveNodeProvider, NodeController, NodeControllerError, with_node_enable_lease_v1},
    pod::PodController,
};

use super::{
    nodes::{behind, wanted},
    provider::Provider,
    session::{MINUTE, Running, SECOND, delete, is_gone, is_ready, make, phase, pods, runs},
};
use crate::{
    auditor::Kind,
    bed::Bed,
    eventually::{eventually, throughout},
    faults::{Fault, FaultProxy, Request},
};

const NODE: &str = "lib-outage";

pub async fn run(bed: &mut Bed) -> Result<()> {
    let mut proxy = FaultProxy::start(bed).await?;
    let client = behind(bed, &proxy).await?;
    let provider = Arc::new(Provider::default());
    let running = start(&client, &provider).await?;
    conflicts(bed, &proxy, &provider).await.context("conflicts")?;
    silent_watch(bed, &proxy, &provider).await.context("a watch that fell silent")?;
    gap(bed, &mut proxy, &provider).await.context("a gap of the watch")?;
    compacted(bed, &mut proxy, &provider).await.context("a compacted history")?;
    gone(bed, &mut proxy, &provider).await.context("410 Gone")?;
    for seconds in [20, 60] {
        stopped(bed, &provider, seconds).await.with_context(|| format!("an API server that stands still for {seconds} s"))?;
    }
    let (nodes, pods) = running;
    pods.stop().await?;
    nodes.stop().await
}

type Both = (Running<NodeControllerError>, Running<ProviderError>);

/// Node and pods of one program, set up as the documentation says.
async fn start(client: &Client, provider: &Arc<Provider>) -> Result<Both> {
    let options = [with_node_enable_lease_v1(SECOND * 40)];
    let nodes = NodeController::new(client.clone(), Arc::new(NaiveNodeProvider::default()), wanted(NODE), options)?;
    let pods = PodController::new(nodes.pods(provider.clone()))?;
    let (nodes_ready, pods_ready, cancel) = (nodes.ready(), pods.ready(), tokio_util::sync::CancellationToken::new());
    let both = (Running::new(nodes.run(cancel.clone()), cancel.clone()), Running::new(pods.run(10, cancel.clone()), cancel));
    tokio::time::timeout(MINUTE, async { tokio::join!(nodes_ready, pods_ready) }).await.context("not ready")?;
    Ok(both)
}

/// Every write is answered 409 for five seconds, twenty pods at a time.
async fn conflicts(bed: &Bed, proxy: &FaultProxy, provider: &Provider) -> Result<()> {
    let names: Vec<_> = (0..20).map(|index| format!("storm-{index}")).collect();
    let before = proxy.log().len();
    proxy.inject(|request| if request.is_write() { Fault::Answer(409) } else { Fault::None });
    for name in &names {
        make(bed, name, NODE).await?;
    }
    let met = |after: usize, name: &str| {
        let of = |request: &Request| request.path.split('/').any(|part| part == name);
        proxy.log()[after..].iter().filter(|exchange| exchange.fault == Fault::Answer(409) && of(&exchange.request)).count()
    };
    eventually(MINUTE, "each pod has met conflicts", async || {
        ensure!(names.iter().all(|name| met(before, name) > 0), "one has met none");
        Ok(())
    })
    .await?;
    proxy.pass();
    for name in &names {
        runs(bed, name).await?;
        ensure!(provider.calls("create", name) == 1, "{name} was created {} times", provider.calls("create", name));
    }
    // And when they end.
    proxy.inject(|request| if request.is_write() { Fault::Answer(409) } else { Fault::None });
    let list = pods(bed).list(&ListParams::default()).await?.items;
    let ending = proxy.log().len();
    for pod in &list {
        delete(bed, pod, None).await?;
    }
    eventually(MINUTE, "each pod has met conflicts", async || {
        ensure!(names.iter().all(|name| met(ending, name) > 0), "one has met none");
        Ok(())
    })
    .await?;
    // Last of all a conflict of the final deletion alone: it is this very pod still.
    let deletions = proxy.log().len();
    proxy.inject(|request| if request.method == "DELETE" && request.is_first() { Fault::Answer(409) } else { Fault::None });
    for pod in &list {
        is_gone(bed, pod, MINUTE * 2).await?;
    }
    proxy.pass();
    ensure!(names.iter().all(|name| met(deletions, name) > 0), "a deletion met no conflict");
    let total: usize = names.iter().map(|name| met(before, name)).sum();
    bed.say(&format!("{total} answers 409: every pod ran once, and left"));
    Ok(())
}

/// The connection stays open and delivers nothing; the API server closes a watch after some minutes only.
async fn silent_watch(bed: &Bed, proxy: &FaultProxy, provider: &Provider) -> Result<()> {
    make(bed, "unheard", NODE).await?;
    let pod = runs(bed, "unheard").await?;
    proxy.silence_watches();
    // Whoever reaches nothing for a while does not trust old connections afterwards.
    proxy.inject(|_| Fault::Answer(503));
    delete(bed, &pod, Some(0)).await?;
    let before = proxy.log().len();
    eventually(MINUTE, "the agent has noticed", async || {
        let refused =
            |exchange: &&crate::faults::Exchange| exchange.fault == Fault::Answer(503) && exchange.request.path.contains("/leases/");
        ensure!(proxy.log()[before..].iter().filter(refused).count() >= 1, "no renewal was refused");
        Ok(())
    })
    .await?;
    proxy.pass();
    ended(provider, "unheard").await?;
    bed.say("a pod that was deleted while the watch was silent has ended");
    Ok(())
}

async fn ended(provider: &Provider, name: &str) -> Result<()> {
    eventually(MINUTE * 2, &format!("the provider has ended {name}"), async || {
        ensure!(provider.calls("delete", name) >= 1 && provider.pod(name).is_none(), "it has not");
        Ok(())
    })
    .await
}

/// Pods are deleted and made while nothing is reached.
async fn gap(bed: &Bed, proxy: &mut FaultProxy, provider: &Provider) -> Result<()> {
    for name in ["missed", "reused"] {
        make(bed, name, NODE).await?;
    }
    let (missed, reused) = (runs(bed, "missed").await?, runs(bed, "reused").await?);
    proxy.stop();
    for pod in [&missed, &reused] {
        delete(bed, pod, Some(0)).await?;
    }
    make(bed, "reused", NODE).await?;
    proxy.resume().await?;
    ended(provider, "missed").await?;
    eventually(MINUTE * 2, "the second pod of the name runs", async || {
        let pod = pods(bed).get("reused").await?;
        ensure!(phase(&pod) == Some("Running") && provider.calls("create", "reused") == 2, "{:?}", phase(&pod));
        ensure!(pod.uid() != reused.uid() && provider.pod("reused").and_then(|pod| pod.uid()) == pod.uid(), "it is the first one");
        Ok(())
    })
    .await?;
    bed.say("deletions in a gap of the watch are noticed, and a name that was used again is another pod");
    let reused = pods(bed).get("reused").await?;
    delete(bed, &reused, None).await?;
    is_gone(bed, &reused, MINUTE).await
}

/// What happened cannot be watched any more: 410 Gone, from the API server itself.
async fn compacted(bed: &mut Bed, proxy: &mut FaultProxy, provider: &Provider) -> Result<()> {
    for name in ["compacted", "surviving"] {
        make(bed, name, NODE).await?;
    }
    let compacted = runs(bed, "compacted").await?;
    let surviving = runs(bed, "surviving").await?;
    let seen = pods(bed).list(&ListParams::default()).await?.metadata.resource_version.context("a list without a version")?;
    proxy.stop();
    delete(bed, &compacted, Some(0)).await?;
    make(bed, "after", NODE).await?;
    let list = pods(bed).list(&ListParams::default()).await?;
    let newest: u64 = list.metadata.resource_version.context("a list without a version")?.parse()?;
    bed.recorder.history().await?;
    let killed = bed.control_plane.kill("kube-apiserver").await?;
    bed.control_plane.compact(newest).await?;
    bed.control_plane.start_again(killed)?;
    eventually(MINUTE * 3, "the API server is back", async || pods(bed).list(&ListParams::default()).await.map(drop).context("listing"))
        .await?;
    let path = format!("/api/v1/pods?watch=true&timeoutSeconds=5&resourceVersion={seen}");
    // An API server that has just started answers 429 until it has read all pods.
    eventually(MINUTE, "a watch that goes on from before is answered 410", async || {
        let answer = bed.client.request_text(http::Request::get(&path).body(Vec::new())?).await;
        let refused = match &answer {
            Ok(events) => events.contains("\"code\":410"),
            Err(error) => matches!(error, kube::Error::Api(status) if status.code == 410),
        };
        ensure!(refused, "{answer:?}");
        Ok(())
    })
    .await?;
    let before = proxy.log().len();
    proxy.resume().await?;
    ended(provider, "compacted").await?;
    runs(bed, "after").await?;
    let log = proxy.log();
    let is_list = |exchange: &&crate::faults::Exchange| {
        exchange.request.method == http::Method::GET && !exchange.request.watch && exchange.request.path.ends_with("/pods")
    };
    ensure!(log[before..].iter().filter(is_list).count() >= 1, "the pods were not listed anew");
    ensure!(provider.calls("create", "surviving") == 1 && provider.calls("delete", "surviving") == 0, "a pod that stayed was touched");
    bed.say("after a compaction the pods are listed anew: the deleted one has ended, the others are untouched");
    let after = pods(bed).get("after").await?;
    for pod in [&surviving, &after] {
        delete(bed, pod, None).await?;
        is_gone(bed, pod, MINUTE).await?;
    }
    Ok(())
}

/// The same as a status: no watch is taken up where the last one ended.
async fn gone(bed: &Bed, proxy: &mut FaultProxy, provider: &Provider) -> Result<()> {
    make(bed, "expired", NODE).await?;
    let expired = runs(bed, "expired").await?;
    let before = proxy.log().len();
    proxy.inject(|request| if request.watch && request.path.ends_with("/pods") { Fault::Answer(410) } else { Fault::None });
    proxy.stop();
    delete(bed, &expired, Some(0)).await?;
    proxy.resume().await?;
    eventually(MINUTE * 2, "a watch of the pods is answered 410", async || {
        ensure!(proxy.log()[before..].iter().any(|exchange| exchange.fault == Fault::Answer(410)), "none is");
        Ok(())
    })
    .await?;
    proxy.pass();
    ended(provider, "expired").await?;
    make(bed, "renewed", NODE).await?;
    let renewed = runs(bed, "renewed").await?;
    bed.say("after 410 Gone the pods are listed and watched anew");
    delete(bed, &renewed, None).await?;
    is_gone(bed, &renewed, MINUTE).await
}

fn is_node_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

async fn stopped(bed: &Bed, provider: &Provider, seconds: u64) -> Result<()> {
    let name = format!("through-{seconds}");
    make(bed, &name, NODE).await?;
    let pod = runs(bed, &name).await?;
    let seen = bed.recorder.history().await?.len();
    // A pod that has left the API is forgotten a moment later.
    eventually(MINUTE, "all earlier pods are forgotten", async || {
        ensure!(provider.names() == [name.as_str()], "{:?}", provider.names());
        Ok(())
    })
    .await?;
    let calls = provider.number_of_calls();
    bed.say(&format!("the API server stands still for {seconds} s"));
    bed.control_plane.signal("kube-apiserver", Signal::SIGSTOP)?;
    let held = throughout(SECOND * u32::try_from(seconds)?, "the provider is left alone", async || {
        ensure!(provider.number_of_calls() == calls, "it was asked something");
        Ok(())
    })
    .await;
    bed.control_plane.signal("kube-apiserver", Signal::SIGCONT)?;
    held?;
    let nodes = Api::<Node>::all(bed.client.clone());
    let back = Instant::now();
    // What is called lost is put right. The node controller may call it so a moment after the API server answers again: it has
    // not seen the lease then that was renewed meanwhile.
    let steady = SECOND * 15;
    eventually(MINUTE * 4, "node and pod are ready", async || {
        throughout(steady, "they are", async || {
            ensure!(is_node_ready(&nodes.get(NODE).await?), "the node is not");
            let now = pods(bed).get(&name).await?;
            ensure!(is_ready(&now) && now.uid() == pod.uid() && now.metadata.deletion_timestamp.is_none(), "{:?}", now.status);
            Ok(())
        })
        .await
    })
    .await?;
    bed.say(&format!("node and pod are ready {:.1} s later", back.elapsed().saturating_sub(steady).as_secs_f32()));
    ensure!(provider.number_of_calls() == calls, "the provider was asked something");
    let history = bed.recorder.history().await?;
    let unready = history[seen..].iter().filter(|seen| {
        let ready = || seen.object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == "Ready");
        seen.kind == Kind::Node && seen.object["metadata"]["name"] == NODE && ready().is_some_and(|ready| ready["status"] != "True")
    });
    let unready = unready.count();
    ensure!(seconds > 20 || unready == 0, "the node was not Ready in {unready} observations");
    // New work gets through.
    let fresh = format!("fresh-{seconds}");
    make(bed, &fresh, NODE).await?;
    runs(bed, &fresh).await?;
    for name in [name, fresh] {
        let pod = pods(bed).get(&name).await?;
        delete(bed, &pod, None).await?;
        is_gone(bed, &pod, MINUTE).await?;
    }
    Ok(())
}
