//! What the pod controller of the original promises, and what it does wrong.

use std::{sync::Arc, time::Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::{
    api::core::v1::{Event, Pod},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use virtual_kubelet::{
    errdefs::ProviderError,
    node::{NaiveNodeProvider, NodeController, NodeControllerError, with_node_enable_lease_v1},
    pod::{
        Events, PodController, PodControllerConfig, PodLifecycleHandler, PodNotifier, Polling, environment::NodeFacts,
        filter_pods_for_node_name,
    },
    queue::{Retry, RetryPolicy},
};

use super::{
    nodes,
    provider::{Creation, Deletion, Provider},
    session::{MINUTE, Running, SECOND, SOON, delete, is_gone, is_ready, make, make_as, phase, pod, pods, runs},
};
use crate::{
    bed::Bed,
    eventually::{eventually, throughout},
};

const NODE: &str = "lib-pods";

pub async fn run(bed: &Bed) -> Result<()> {
    let _node = register(&bed.client, NODE).await?;
    for polling in [false, true] {
        let kind = if polling { "a provider that is asked" } else { "a provider that tells" };
        lifecycle(bed, polling).await.with_context(|| format!("pods of {kind}"))?;
        bed.say(&format!("{kind}: pods start, change, end, are re-created and cleaned up as promised"));
    }
    what_ended_is_left_alone(bed).await.context("pods that have ended")?;
    dangling(bed).await.context("dangling pods")?;
    bed.say("what ended is left alone, what dangles is cleaned up");
    Box::pin(status_is_kept(bed)).await.context("statuses")?;
    bed.say("what others make of a status is put right, what is theirs stays, what ended stays as it is");
    Box::pin(environment(bed)).await.context("environments")?;
    bed.say("environments are resolved, what is missing is told, and starts the pod when it comes");
    providers_errors(bed).await.context("errors of the provider")?;
    bed.say("errors of the provider are shown and tried again, refusals are not");
    for polling in [false, true] {
        only_ours(bed, polling).await.context("the event filter")?;
    }
    bed.say("pods that the filter is not for are left alone");
    workers_and_end(bed).await.context("start and end")
}

/// Registers a node whose pods the admission of the API server takes.
pub async fn register(client: &Client, name: &str) -> Result<Running<NodeControllerError>> {
    let provider = Arc::new(NaiveNodeProvider::default());
    let controller = NodeController::new(client.clone(), provider, nodes::wanted(name), [with_node_enable_lease_v1(SECOND * 40)])?;
    let (ready, cancel) = (controller.ready(), CancellationToken::new());
    let running = Running::new(controller.run(cancel.clone()), cancel);
    tokio::time::timeout(MINUTE, ready).await.context("the node does not become ready")?;
    Ok(running)
}

/// A pod controller that is ready.
pub async fn start<P: PodLifecycleHandler + PodNotifier>(
    client: &Client,
    node: &str,
    provider: Arc<P>,
    change: impl FnOnce(&mut PodControllerConfig<P>),
) -> Result<Running<ProviderError>> {
    let mut config = PodControllerConfig::new(client.clone(), node, provider);
    config.events = Events::start(client.clone(), node.to_owned());
    config.node_facts = NodeFacts::of(&nodes::wanted(node));
    change(&mut config);
    let controller = PodController::new(config)?;
    let (ready, cancel) = (controller.ready(), CancellationToken::new());
    let running = Running::new(controller.run(10, cancel.clone()), cancel);
    tokio::time::timeout(MINUTE, ready).await.context("the controller does not become ready")?;
    Ok(running)
}

async fn plain(bed: &Bed, provider: &Arc<Provider>) -> Result<Running<ProviderError>> {
    start(&bed.client, NODE, provider.clone(), |_| {}).await
}

/// Events about the pod of this name.
async fn reasons(bed: &Bed, name: &str) -> Result<Vec<String>> {
    let events = Api::<Event>::namespaced(bed.client.clone(), "default");
    let list = events.list(&ListParams::default().fields(&format!("involvedObject.name={name}"))).await?;
    Ok(list.items.into_iter().filter_map(|event| event.reason).collect())
}

async fn has_event(bed: &Bed, name: &str, reason: &str) -> Result<()> {
    eventually(MINUTE, &format!("pod {name} has an event {reason}"), async || {
        let seen = reasons(bed, name).await?;
        ensure!(seen.iter().any(|one| one == reason), "{seen:?}");
        Ok(())
    })
    .await
}

async fn lifecycle(bed: &Bed, polling: bool) -> Result<()> {
    let provider = Arc::new(Provider::default());
    let running = if polling {
        start(&bed.client, NODE, Arc::new(Polling::every(SECOND / 2, provider.clone())), |_| {}).await?
    } else {
        plain(bed, &provider).await?
    };
    start_and_delete(bed, &provider).await.context("start and deletion")?;
    update(bed, &provider).await.context("update")?;
    deletion_errors(bed, &provider).await.context("deletion with errors")?;
    re_creation(bed, &provider).await.context("a name used again")?;
    running.stop().await
}

/// Graceful: within seconds, although the grace is 30 s. And by force.
async fn start_and_delete(bed: &Bed, provider: &Provider) -> Result<()> {
    make(bed, "graceful", NODE).await?;
    let graceful = runs(bed, "graceful").await?;
    ensure!(graceful.status.as_ref().is_some_and(|status| status.pod_ip.is_some()), "it has no address");
    ensure!(provider.calls("create", "graceful") >= 1, "it was not given to the provider");
    has_event(bed, "graceful", "ProviderCreateSuccess").await?;
    provider.on_deletion(Deletion::Waits);
    let asked = provider.calls("delete", "graceful");
    delete(bed, &graceful, None).await?;
    eventually(SOON, "the provider is told", async || {
        ensure!(provider.calls("delete", "graceful") == asked + 1, "{}", provider.calls("delete", "graceful"));
        Ok(())
    })
    .await?;
    let deleted = pods(bed).get("graceful").await?;
    ensure!(deleted.metadata.deletion_grace_period_seconds == Some(30), "{:?}", deleted.metadata);
    // It leaves when its containers have ended, and not before.
    throughout(SECOND, "it stays while it runs", async || pods(bed).get("graceful").await.map(drop).context("gone")).await?;
    provider.end("graceful");
    is_gone(bed, &graceful, SOON).await?;
    let gone = Instant::now();
    provider.on_deletion(Deletion::Ends);
    is_forgotten(provider, "graceful").await?;
    let forgotten = provider.forgotten_at("graceful").context("it was lost")?.saturating_duration_since(gone);
    // At once, on a machine that others keep busy; no timer is as short as this.
    ensure!(forgotten < SECOND * 4, "the provider had it for {forgotten:?} after it had left the API");
    has_event(bed, "graceful", "ProviderDeleteSuccess").await?;

    make(bed, "forced", NODE).await?;
    let forced = runs(bed, "forced").await?;
    delete(bed, &forced, Some(0)).await?;
    is_gone(bed, &forced, SOON).await?;
    is_forgotten(provider, "forced").await
}

async fn is_forgotten(provider: &Provider, name: &str) -> Result<()> {
    eventually(MINUTE, &format!("the provider has forgotten {name}"), async || {
        ensure!(provider.pod(name).is_none(), "it has not");
        Ok(())
    })
    .await
}

async fn update(bed: &Bed, provider: &Provider) -> Result<()> {
    make(bed, "updated", NODE).await?;
    let pod = runs(bed, "updated").await?;
    // A change of status is none of the provider's business.
    let before = provider.number_of_calls();
    let condition = json!({ "status": { "conditions": [{ "type": "Theirs", "status": "True" }] } });
    pods(bed).patch_status("updated", &PatchParams::default(), &Patch::Strategic(condition)).await?;
    throughout(SECOND, "the provider is not asked", async || {
        ensure!(provider.number_of_calls() == before, "it was");
        Ok(())
    })
    .await?;
    let label = json!({ "metadata": { "labels": { "changed": "yes" } } });
    pods(bed).patch("updated", &PatchParams::default(), &Patch::Merge(label)).await?;
    eventually(SOON, "the provider has the label", async || {
        let pod = provider.pod("updated").context("no pod")?;
        ensure!(pod.labels().contains_key("changed") && provider.calls("update", "updated") >= 1, "{:?}", pod.labels());
        Ok(())
    })
    .await?;
    ensure!(provider.calls("create", "updated") == 1, "it was given anew");
    // One that the provider does not know any more is given to it again.
    provider.does_not_know_the_change_of("updated");
    let label = json!({ "metadata": { "labels": { "changed": "again" } } });
    pods(bed).patch("updated", &PatchParams::default(), &Patch::Merge(label)).await?;
    eventually(SOON, "it is given again", async || {
        let pod = provider.pod("updated").context("no pod")?;
        ensure!(provider.calls("create", "updated") == 2, "it is not");
        ensure!(pod.labels().get("changed").map(String::as_str) == Some("again"), "{:?}", pod.labels());
        Ok(())
    })
    .await?;
    delete(bed, &pod, Some(1)).await?;
    is_gone(bed, &pod, SOON).await
}

async fn deletion_errors(bed: &Bed, provider: &Provider) -> Result<()> {
    make(bed, "unknown", NODE).await?;
    let unknown = runs(bed, "unknown").await?;
    provider.on_deletion(Deletion::NotFound);
    delete(bed, &unknown, None).await?;
    is_gone(bed, &unknown, SOON).await.context("although the provider does not know it")?;

    make(bed, "stubborn", NODE).await?;
    let stubborn = runs(bed, "stubborn").await?;
    provider.on_deletion(Deletion::Fails);
    delete(bed, &stubborn, None).await?;
    eventually(MINUTE, "the provider is asked twice", async || {
        ensure!(provider.calls("delete", "stubborn") >= 2, "{}", provider.calls("delete", "stubborn"));
        Ok(())
    })
    .await?;
    let there = pods(bed).get("stubborn").await.context("it left the API while the provider runs it")?;
    ensure!(there.metadata.deletion_timestamp.is_some(), "it is not being deleted");
    has_event(bed, "stubborn", "ProviderDeleteFailed").await?;
    provider.on_deletion(Deletion::Ends);
    is_gone(bed, &stubborn, MINUTE * 2).await
}

/// As a `StatefulSet` does: the next pod of the name is another one.
async fn re_creation(bed: &Bed, provider: &Provider) -> Result<()> {
    make(bed, "again", NODE).await?;
    let first = runs(bed, "again").await?;
    provider.on_deletion(Deletion::Waits);
    delete(bed, &first, Some(0)).await?;
    let second = eventually(SOON, "the name is free", async || make(bed, "again", NODE).await).await?;
    eventually(SOON, "the second one is given to the provider", async || {
        ensure!(provider.calls("create", "again") == 2, "{} creations", provider.calls("create", "again"));
        Ok(())
    })
    .await?;
    ensure!(provider.calls("update", "again") == 0, "it was taken for a change of the first");
    // The first one ends late: the second one is not touched by that.
    provider.on_deletion(Deletion::Ends);
    let second = {
        runs(bed, "again").await?;
        second
    };
    throughout(SECOND * 2, "the second one stays", async || {
        let now = pods(bed).get("again").await?;
        ensure!(now.uid() == second.uid() && now.metadata.deletion_timestamp.is_none(), "{:?}", now.metadata);
        Ok(())
    })
    .await?;
    delete(bed, &second, None).await?;
    is_gone(bed, &second, SOON).await
}

async fn what_ended_is_left_alone(bed: &Bed) -> Result<()> {
    for (name, end) in [("failed", "Failed"), ("succeeded", "Succeeded")] {
        make(bed, name, NODE).await?;
        let status = json!({ "status": { "phase": end } });
        pods(bed).patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await?;
    }
    let versions = async || -> Result<Vec<_>> {
        let (failed, succeeded) = (pods(bed).get("failed").await?, pods(bed).get("succeeded").await?);
        Ok(vec![failed.resource_version(), succeeded.resource_version()])
    };
    let before = versions().await?;
    let provider = Arc::new(Provider::default());
    let running = plain(bed, &provider).await?;
    throughout(SECOND * 2, "they stay as they are", async || {
        ensure!(versions().await? == before && provider.number_of_calls() == 0, "{} calls", provider.number_of_calls());
        Ok(())
    })
    .await?;
    for name in ["failed", "succeeded"] {
        let pod = pods(bed).get(name).await?;
        delete(bed, &pod, None).await?;
        is_gone(bed, &pod, SOON).await?;
    }
    running.stop().await
}

async fn dangling(bed: &Bed) -> Result<()> {
    // The provider has a pod that the API does not know (any more), and the API one that the provider does not know.
    let stale: Pod = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "stale", "namespace": "default", "uid": "00000000-0000-0000-0000-000000000001" },
        "spec": { "nodeName": NODE, "containers": [] },
    }))?;
    let provider = Arc::new(Provider::default());
    provider.has_had(stale);
    make(bed, "leaving", NODE).await?;
    let leaving = pods(bed).get("leaving").await?;
    delete(bed, &leaving, None).await?;
    ensure!(pods(bed).get_opt("leaving").await?.is_some(), "it left by itself");
    let running = plain(bed, &provider).await?;
    is_forgotten(&provider, "stale").await?;
    ensure!(provider.calls("delete", "stale") == 1, "it was ended {} times", provider.calls("delete", "stale"));
    is_gone(bed, &leaving, SOON).await?;
    ensure!(provider.calls("create", "leaving") == 0, "a pod that is being deleted was started");
    running.stop().await
}

async fn status_is_kept(bed: &Bed) -> Result<()> {
    let provider = Arc::new(Provider::default());
    let running = plain(bed, &provider).await?;
    make(bed, "kept", NODE).await?;
    let kept = runs(bed, "kept").await?;
    // The node controller makes pods of a late node unready; nobody tells the provider.
    let foreign = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }, { "type": "Gate", "status": "True" }] } });
    pods(bed).patch_status("kept", &PatchParams::default(), &Patch::Strategic(foreign)).await?;
    eventually(SOON, "it is ready again", async || {
        let pod = pods(bed).get("kept").await?;
        ensure!(is_ready(&pod), "it is not");
        let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
        ensure!(conditions.iter().any(|condition| condition.type_ == "Gate" && condition.status == "True"), "{conditions:?}");
        Ok(())
    })
    .await?;
    // The provider's own annotation goes with the status; others stay.
    provider.tell("kept", |pod| pod.metadata.annotations = Some([("provider".to_owned(), "1".to_owned())].into()));
    eventually(SOON, "it has the provider's annotation", async || {
        let pod = pods(bed).get("kept").await?;
        ensure!(pod.annotations().contains_key("provider"), "{:?}", pod.annotations());
        Ok(())
    })
    .await?;
    // The provider ends it by itself.
    provider.on_deletion(Deletion::Ends);
    provider.tell("kept", |pod| {
        pod.metadata.deletion_timestamp = Some(Time(k8s_openapi::jiff::Timestamp::now()));
        pod.metadata.deletion_grace_period_seconds = Some(5);
    });
    is_gone(bed, &kept, SOON).await.context("ended by the provider")?;

    // Once it has ended, nothing changes it any more.
    make(bed, "over", NODE).await?;
    let over = runs(bed, "over").await?;
    let failed = json!({ "status": { "phase": "Failed", "reason": "Theirs" } });
    pods(bed).patch_status("over", &PatchParams::default(), &Patch::Merge(failed)).await?;
    eventually(SOON, "the provider ends it", async || {
        ensure!(provider.calls("delete", "over") >= 1, "it was not told");
        Ok(())
    })
    .await?;
    throughout(SECOND * 2, "the status stays", async || {
        let pod = pods(bed).get("over").await?;
        ensure!(phase(&pod) == Some("Failed") && pod.status.and_then(|status| status.reason).as_deref() == Some("Theirs"), "changed");
        Ok(())
    })
    .await?;
    delete(bed, &over, None).await?;
    is_gone(bed, &over, SOON).await?;
    running.stop().await
}

/// A pod with one variable from a key, and one from a whole object.
fn with_environment(name: &str, env: &Value, env_from: &Value) -> Value {
    let mut object = pod(name, NODE);
    object["spec"]["containers"][0]["env"] = env.clone();
    object["spec"]["containers"][0]["envFrom"] = env_from.clone();
    object
}

fn variables(pod: &Pod) -> Vec<(String, Option<String>)> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers
        .flat_map(|container| container.env.iter().flatten())
        .map(|variable| (variable.name.clone(), variable.value.clone()))
        .collect()
}

async fn environment(bed: &Bed) -> Result<()> {
    let provider = Arc::new(Provider::default());
    let running = start(&bed.client, NODE, provider.clone(), |config| {
        config.sync_pods_from_kubernetes = RetryPolicy::fixed(SECOND / 2);
    })
    .await?;
    for (index, (kind, field)) in [("Secret", "secret"), ("ConfigMap", "configMap")].into_iter().enumerate() {
        let from = |name: &str, optional: bool| json!([{ format!("{field}Ref"): { "name": name, "optional": optional } }]);
        let (optional, mandatory, object) = (format!("optional-{index}"), format!("mandatory-{index}"), format!("late-{index}"));
        make_as(bed, with_environment(&optional, &json!([]), &from(&object, true))).await?;
        let running = runs(bed, &optional).await?;
        has_event(bed, &optional, &format!("Optional{kind}NotFound")).await?;
        let key = json!([{ "name": "KEY", "valueFrom": { format!("{field}KeyRef"): { "name": object, "key": "k" } } }]);
        let waiting = make_as(bed, with_environment(&mandatory, &key, &json!([]))).await?;
        has_event(bed, &mandatory, &format!("Mandatory{kind}NotFound")).await?;
        ensure!(provider.calls("create", &mandatory) == 0, "it reached the provider");
        let mut late = json!({ "apiVersion": "v1", "kind": kind, "metadata": { "name": object, "namespace": "default" } });
        late[if kind == "Secret" { "stringData" } else { "data" }] = json!({ "k": "value" });
        bed.apply(&[late]).await?;
        runs(bed, &mandatory).await.context("what it needs is there now")?;
        let given = provider.pod(&mandatory).context("no pod")?;
        ensure!(variables(&given).contains(&("KEY".to_owned(), Some("value".to_owned()))), "{:?}", variables(&given));
        for pod in [running, waiting] {
            delete(bed, &pod, None).await?;
            is_gone(bed, &pod, SOON).await?;
        }
    }
    let field = |path: &str| json!({ "fieldRef": { "fieldPath": path } });
    let env = json!([
        { "name": "IP", "valueFrom": field("status.podIP") },
        { "name": "UID", "valueFrom": field("metadata.uid") },
        { "name": "URL", "value": "http://$(IP):$(KUBERNETES_SERVICE_PORT)/$$(IP)" },
    ]);
    let object = with_environment("composed", &env, &json!([]));
    make_as(bed, object.clone()).await?;
    let composed = runs(bed, "composed").await?;
    let given = variables(&*provider.pod("composed").context("no pod")?);
    for (name, value) in [("IP", "198.18.0.200"), ("UID", &*composed.uid().unwrap_or_default()), ("URL", "http://198.18.0.200:443/$(IP)")] {
        ensure!(given.contains(&(name.to_owned(), Some(value.to_owned()))), "{name} in {given:?}");
    }
    // Resolving it again in another order or with other values is no change of the pod.
    ensure!(provider.calls("update", "composed") == 0, "it was taken for changed");
    running.stop().await?;

    // A provider that resolves by itself gets what the user wrote.
    let provider = Arc::new(Provider::default());
    let running = start(&bed.client, NODE, provider.clone(), |config| config.skip_downward_api_resolution = true).await?;
    eventually(SOON, "the pod is given", async || {
        let given = provider.pod("composed").context("no pod")?;
        ensure!(given.spec == composed.spec, "{:?}", given.spec);
        Ok(())
    })
    .await?;
    delete(bed, &composed, None).await?;
    is_gone(bed, &composed, SOON).await?;
    running.stop().await
}

async fn providers_errors(bed: &Bed) -> Result<()> {
    let provider = Arc::new(Provider::default());
    let running = start(&bed.client, NODE, provider.clone(), |config| {
        // The original gives a pod up for ever after 20 tries.
        config.sync_pods_from_kubernetes = RetryPolicy::new(|attempt| Retry::After(SECOND / if attempt.tries < 30 { 50 } else { 2 }));
    })
    .await?;
    provider.on_creation(Creation::Fails);
    make(bed, "unlucky", NODE).await?;
    eventually(MINUTE, "more than 20 tries", async || {
        ensure!(provider.calls("create", "unlucky") > 25, "{}", provider.calls("create", "unlucky"));
        Ok(())
    })
    .await?;
    let unlucky = pods(bed).get("unlucky").await?;
    let shown = unlucky.status.clone().unwrap_or_default();
    ensure!(phase(&unlucky) == Some("Pending") && shown.reason.as_deref() == Some("ProviderFailed"), "{shown:?}");
    ensure!(shown.message.as_deref() == Some("no room at the moment"), "{:?}", shown.message);
    has_event(bed, "unlucky", "ProviderCreateFailed").await?;
    provider.on_creation(Creation::Runs);
    let unlucky = runs(bed, "unlucky").await?;
    ensure!(unlucky.status.as_ref().is_some_and(|status| status.reason.is_none()), "the reason is still there");

    provider.on_creation(Creation::Panics);
    make(bed, "startled", NODE).await?;
    eventually(SOON, "it is tried again after a panic", async || {
        ensure!(provider.calls("create", "startled") > 1, "it is not");
        Ok(())
    })
    .await?;
    provider.on_creation(Creation::Runs);
    runs(bed, "startled").await.context("after the provider's panics")?;

    provider.on_creation(Creation::Refuses);
    make(bed, "refused", NODE).await?;
    eventually(SOON, "the refusal is shown", async || {
        let status = pods(bed).get("refused").await?.status.unwrap_or_default();
        ensure!(status.reason.as_deref() == Some("ProviderFailed") && status.phase.as_deref() == Some("Pending"), "{status:?}");
        Ok(())
    })
    .await?;
    throughout(SECOND * 2, "it is not given again", async || {
        ensure!(provider.calls("create", "refused") == 1, "{} times", provider.calls("create", "refused"));
        Ok(())
    })
    .await?;
    let mut never = pod("never", NODE);
    never["spec"]["restartPolicy"] = "Never".into();
    make_as(bed, never).await?;
    eventually(SOON, "a pod that is never restarted has failed", async || {
        ensure!(phase(&pods(bed).get("never").await?) == Some("Failed"), "it has not");
        Ok(())
    })
    .await?;
    provider.on_creation(Creation::Runs);
    let label = json!({ "metadata": { "labels": { "changed": "yes" } } });
    pods(bed).patch("refused", &PatchParams::default(), &Patch::Merge(label)).await?;
    runs(bed, "refused").await.context("it was changed")?;
    for name in ["unlucky", "startled", "refused", "never"] {
        let pod = pods(bed).get(name).await?;
        delete(bed, &pod, None).await?;
        is_gone(bed, &pod, SOON).await?;
    }
    running.stop().await
}

/// A watch of all pods, and a filter: for additions, changes, deletions, and for what the provider has.
async fn only_ours(bed: &Bed, polling: bool) -> Result<()> {
    let _other = register(&bed.client, "lib-other").await?;
    let provider = Arc::new(Provider::default());
    let not_ours: Pod = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "somebodys", "namespace": "default", "uid": "00000000-0000-0000-0000-000000000002" },
        "spec": { "nodeName": "lib-other", "containers": [] },
    }))?;
    provider.has_had(not_ours);
    let running = if polling {
        start(&bed.client, NODE, Arc::new(Polling::every(SECOND / 2, provider.clone())), of_all_pods_ours).await?
    } else {
        start(&bed.client, NODE, provider.clone(), of_all_pods_ours).await?
    };
    let foreign = make(bed, "foreign", "lib-other").await?;
    make(bed, "ours", NODE).await?;
    let ours = runs(bed, "ours").await?;
    let label = json!({ "metadata": { "labels": { "changed": "yes" } } });
    for name in ["foreign", "ours"] {
        pods(bed).patch(name, &PatchParams::default(), &Patch::Merge(&label)).await?;
    }
    eventually(SOON, "our pod's change is told", async || {
        ensure!(provider.calls("update", "ours") == 1, "{}", provider.calls("update", "ours"));
        Ok(())
    })
    .await?;
    delete(bed, &foreign, Some(0)).await?;
    delete(bed, &ours, None).await?;
    is_gone(bed, &ours, SOON).await?;
    is_forgotten(&provider, "ours").await?;
    for call in ["create", "update", "delete", "forget"] {
        ensure!(provider.calls(call, "foreign") == 0 && provider.calls(call, "somebodys") == 0, "{call} of a pod that is not ours");
    }
    running.stop().await
}

fn of_all_pods_ours<P>(config: &mut PodControllerConfig<P>) {
    config.pod_watch = kube::runtime::watcher::Config::default();
    config.pod_event_filter = filter_pods_for_node_name(NODE);
}

async fn workers_and_end(bed: &Bed) -> Result<()> {
    let provider = Arc::new(Provider::default());
    let config = || {
        let mut config = PodControllerConfig::new(bed.client.clone(), NODE, provider.clone());
        config.node_facts = NodeFacts::of(&nodes::wanted(NODE));
        config
    };
    let controller = PodController::new(config())?;
    let done = controller.done();
    let error = controller.run(0, CancellationToken::new()).await.err().context("it runs without workers")?;
    ensure!(error.is_invalid_input() && done.await.is_err(), "{error:?}");
    let nameless = PodController::new(PodControllerConfig::new(bed.client.clone(), "", provider.clone()));
    ensure!(nameless.err().is_some_and(|error| error.is_invalid_input()), "a node without a name is accepted");
    // Pods stay when it ends.
    let running = plain(bed, &provider).await?;
    make(bed, "staying", NODE).await?;
    runs(bed, "staying").await?;
    running.stop().await?;
    ensure!(provider.pod("staying").is_some() && provider.calls("delete", "staying") == 0, "it was ended");
    // A later controller finds it, and gives it to nobody again.
    let running = plain(bed, &provider).await?;
    let staying = runs(bed, "staying").await?;
    delete(bed, &staying, None).await?;
    is_gone(bed, &staying, SOON).await?;
    ensure!(provider.calls("create", "staying") == 1, "it was created {} times", provider.calls("create", "staying"));
    running.stop().await
}
