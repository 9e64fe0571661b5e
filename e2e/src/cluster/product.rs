//! The product in a bed: installing it, its resource, and waiting for what its status says.

use std::{fmt::Debug, time::Duration};

use anyhow::{Context, Result, ensure};
use crds::IngressDaemonSet;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    auditor::{Kind, TOUCH_ANNOTATION, TOUCHED, UNTOUCHED},
    bed::{Bed, Options},
    cluster::{
        detacher::{DETACHED_KEY, TIMESTAMP_KEY},
        workload,
    },
    eventually::{eventually, throughout},
    host::images,
};

/// Name of the resource in every scenario.
pub const NAME: &str = "edge";
/// Its health port.
pub const HEALTH_PORT: u16 = 10080;
/// Grace of each mark in seconds: `HAProxy` looks every 200 ms and needs two bad answers.
pub const GRACE: u32 = 2;
/// A grace that the auditor can judge: a second of it may be that of the clock that writes the mark.
pub const JUDGED_GRACE: u32 = 3;

/// Until a rollout over a bed's nodes has ended. It takes 15 to 40 s alone on two cores, three times as long beside three other beds and a
/// compiler; one that hangs ends nothing later.
pub const ROLLED_OUT: Duration = Duration::from_mins(4);
/// Until status says what a step of a rollout comes to: at most two nodes are updated before it, each in some 5 s, or 15 s beside others.
pub const SAID: Duration = Duration::from_mins(2);

/// Four nodes behind the load balancer, and one for the operator.
pub fn four_nodes() -> Options {
    Options::with_nodes(4).with_infra()
}

/// A rolling update with these fields beside the budget.
pub fn rolling_update(budget: u32, more: Value) -> Value {
    // HAProxy needs two good answers, 200 ms apart.
    // What a scenario is about seldom breaks within the minute after which a revision counts as good.
    let mut rolling = json!({ "maxUnavailableNodes": budget, "attachSoakSeconds": 1, "provenAfterSeconds": PROVEN });
    merge(&mut rolling, more);
    json!({ "type": "RollingUpdate", "rollingUpdate": rolling })
}

/// Seconds for which a revision must serve.
pub const PROVEN: u32 = 1;

/// The mark on the Deployment.
pub fn deployment_mark() -> Value {
    json!({ "annotateDeploymentToDetach": { "gracePeriodSeconds": GRACE }, "annotateNodeToDetach": null, "waitForDetachmentByAnnotatedTimestamp": null })
}

/// The mark on the Node, with the detacher's timestamp.
pub fn node_mark() -> Value {
    json!({
        "annotateDeploymentToDetach": null,
        "annotateNodeToDetach": { "key": DETACHED_KEY, "value": "true", "gracePeriodSeconds": 1 },
        "waitForDetachmentByAnnotatedTimestamp": { "key": TIMESTAMP_KEY, "format": "RFC3339", "gracePeriodSeconds": GRACE },
    })
}

/// Both marks.
pub fn both_marks() -> Value {
    let mut both = node_mark();
    both["annotateDeploymentToDetach"] = deployment_mark()["annotateDeploymentToDetach"].clone();
    both
}

/// Two nginx on every node labelled `ingress=true`; `version` is an environment variable, so that each is a revision.
pub fn resource(version: &str, update_strategy: &Value) -> Value {
    let mut update_strategy = update_strategy.clone();
    if let Some(rolling) = update_strategy["rollingUpdate"].as_object_mut() {
        rolling.entry("provenAfterSeconds").or_insert_with(|| PROVEN.into());
        rolling.retain(|_, value| !value.is_null());
    }
    json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1",
        "kind": "IngressDaemonSet",
        "metadata": { "name": NAME, "namespace": "default" },
        "spec": {
            "podsPerNode": 2,
            "nodeSelector": { "ingress": "true" },
            "healthCheckNodePorts": [HEALTH_PORT],
            "updateStrategy": update_strategy,
            "template": template(version),
        },
    })
}

/// The pod template of a version.
pub fn template(version: &str) -> Value {
    let mut pod = workload::pod_spec();
    pod["containers"][0]["env"] = json!([{ "name": "VERSION", "value": version }]);
    json!({ "metadata": { "labels": { "app": "nginx" } }, "spec": pod })
}

/// Installs the product and the resource, and waits until all of `nodes` serve through the load balancer.
pub async fn serve(bed: &Bed, update_strategy: Value, nodes: &[&str]) -> Result<()> {
    serve_resource(bed, resource("1", &update_strategy), nodes).await
}

/// The same for a resource that differs in more than its strategy.
pub async fn serve_resource(bed: &Bed, resource: Value, nodes: &[&str]) -> Result<()> {
    bed.install().await?;
    bed.say("the operator runs");
    serve_installed(bed, resource, nodes).await
}

/// The same of a product that is installed, whatever runs as its operator.
pub async fn serve_installed(bed: &Bed, resource: Value, nodes: &[&str]) -> Result<()> {
    bed.apply(&[workload::config_map("default"), resource]).await?;
    bed.haproxy.serves(Duration::from_mins(3), nodes).await?;
    is_complete(bed, nodes.len(), ROLLED_OUT).await?;
    bed.say(&format!("{} nodes serve", nodes.len()));
    Ok(())
}

/// The API of the resource.
pub fn api(bed: &Bed) -> Api<IngressDaemonSet> {
    Api::namespaced(bed.client.clone(), "default")
}

/// Changes the resource's spec; `null` removes a field.
pub async fn change(bed: &Bed, spec: Value) -> Result<()> {
    change_named(bed, NAME, spec).await
}

/// The same for a resource with another name.
pub async fn change_named(bed: &Bed, name: &str, spec: Value) -> Result<()> {
    let patch = Patch::Merge(json!({ "spec": spec }));
    api(bed).patch(name, &PatchParams::default(), &patch).await.with_context(|| format!("changing {name}")).map(drop)
}

/// Rolls out another version.
pub async fn roll_to(bed: &Bed, version: &str) -> Result<()> {
    change(bed, json!({ "template": template(version) })).await
}

/// Rolls out an image that does not exist.
pub async fn roll_to_missing_image(bed: &Bed) -> Result<()> {
    let mut template = template("broken");
    template["spec"]["containers"][0]["image"] = "nginx:does-not-exist".into();
    change(bed, json!({ "template": template })).await
}

/// Waits until the status speaks of the newest spec, all of `nodes` are updated and available, and nothing is under way.
pub async fn is_complete(bed: &Bed, nodes: usize, deadline: Duration) -> Result<()> {
    is_complete_named(bed, NAME, nodes, deadline).await
}

/// The same for a resource with another name.
pub async fn is_complete_named(bed: &Bed, name: &str, nodes: usize, deadline: Duration) -> Result<()> {
    eventually(deadline, &format!("{name} is complete on {nodes} nodes"), async || {
        let resource = api(bed).get(name).await?;
        ensure!(has_ended(&resource, nodes), "{}", summary(&resource.status.unwrap_or_default()));
        Ok(())
    })
    .await
}

/// The status speaks of the newest spec, all of `nodes` are updated and available, their revision is proved, and nothing is under way.
pub fn has_ended(resource: &IngressDaemonSet, nodes: usize) -> bool {
    let Some(status) = &resource.status else { return false };
    let counts = &status.nodes;
    let newest = status.observed_generation == resource.metadata.generation;
    let proved = nodes == 0 || status.revisions.current == status.revisions.effective;
    let idle = status.rollout.as_ref().is_some_and(|ledger| ledger.grants.is_empty() && ledger.rebuilding.is_none());
    newest
        && proved
        && idle
        && [counts.desired, counts.current, counts.updated, counts.available].iter().all(|count| usize::try_from(*count) == Ok(nodes))
}

/// Tells the auditor that the scenario has its own hands on these nodes from now on. Right before it changes or deletes objects
/// there that only the operator changes.
pub async fn hands_on(bed: &Bed, nodes: &[&str]) -> Result<()> {
    touch(bed, nodes, TOUCHED).await
}

/// The same, that it has not any more: what comes now is for the operator to mend.
pub async fn hands_off(bed: &Bed, nodes: &[&str]) -> Result<()> {
    touch(bed, nodes, UNTOUCHED).await
}

async fn touch(bed: &Bed, nodes: &[&str], says: &str) -> Result<()> {
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { TOUCH_ANNOTATION: says } } }));
    for node in nodes {
        let told = Api::<Node>::all(bed.client.clone()).patch(node, &PatchParams::default(), &patch).await;
        told.with_context(|| format!("saying whose hands are on {node}"))?;
    }
    Ok(())
}

/// The status in a line, for messages.
pub fn summary(status: &crds::IngressDaemonSetStatus) -> String {
    let nodes: Vec<_> =
        status.node_states.iter().map(|state| format!("{} {} {}: {}", state.name, state.phase, state.reason, state.message)).collect();
    let grants: Vec<_> = status
        .rollout
        .iter()
        .flat_map(|ledger| &ledger.grants)
        .map(|(node, grant)| format!("{node} {:?} {}", grant.kind, grant.id))
        .collect();
    format!("generation {:?}, {:?}, grants {grants:?}, {nodes:?}", status.observed_generation, status.nodes)
}

/// Waits until the status fulfils `test`.
pub async fn status_says(
    bed: &Bed,
    what: &str,
    deadline: Duration,
    test: impl FnMut(&crds::IngressDaemonSetStatus) -> bool,
) -> Result<crds::IngressDaemonSetStatus> {
    status_of_says(bed, NAME, what, deadline, test).await
}

/// The same for a resource with another name.
pub async fn status_of_says(
    bed: &Bed,
    name: &str,
    what: &str,
    deadline: Duration,
    mut test: impl FnMut(&crds::IngressDaemonSetStatus) -> bool,
) -> Result<crds::IngressDaemonSetStatus> {
    eventually(deadline, &format!("{name}: {what}"), async || {
        let status = api(bed).get(name).await?.status.context("no status")?;
        ensure!(test(&status), "{} {:?}", summary(&status), status.conditions);
        Ok(status)
    })
    .await
}

/// The status fulfils `test` for the whole of `period`, by the history: also between two looks.
pub async fn status_stays(bed: &Bed, what: &str, period: Duration, test: impl Fn(&crds::IngressDaemonSetStatus) -> bool) -> Result<()> {
    status_of_stays(bed, NAME, what, period, test).await
}

/// The same for a resource with another name.
pub async fn status_of_stays(
    bed: &Bed,
    name: &str,
    what: &str,
    period: Duration,
    test: impl Fn(&crds::IngressDaemonSetStatus) -> bool,
) -> Result<()> {
    stays(bed, (Kind::IngressDaemonSet, &api(bed)), what, period, |resource: &IngressDaemonSet| {
        let status = resource.status.as_ref().context("no status")?;
        ensure!(resource.name_any() != name || test(status), "{name}: {} {:?}", summary(status), status.conditions);
        Ok(())
    })
    .await
}

/// All objects of a kind fulfil `test` for the whole of `period`, by the history: also between two looks.
pub async fn stays<K: Clone + Debug + DeserializeOwned>(
    bed: &Bed,
    (kind, api): (Kind, &Api<K>),
    what: &str,
    period: Duration,
    test: impl Fn(&K) -> Result<()>,
) -> Result<()> {
    let from = bed.recorder.history().await?.len();
    throughout(period, what, async || api.list(&ListParams::default()).await?.items.iter().try_for_each(&test)).await?;
    stayed(bed, from, kind, what, test).await
}

/// All objects of a kind fulfilled `test` from an entry of the history on.
pub async fn stayed<K: DeserializeOwned>(bed: &Bed, from: usize, kind: Kind, what: &str, test: impl Fn(&K) -> Result<()>) -> Result<()> {
    for seen in bed.recorder.history().await?.iter().skip(from).filter(|seen| seen.kind == kind && !seen.deleted) {
        let object = serde_json::from_value(seen.object.clone()).context("reading a former object")?;
        test(&object).with_context(|| format!("it was otherwise for a moment: {what}"))?;
    }
    Ok(())
}

/// No failure was noted and no way back was taken, from an entry of the history on.
pub async fn nothing_failed(bed: &Bed, from: usize) -> Result<()> {
    for seen in bed.recorder.history().await?.iter().skip(from).filter(|seen| seen.kind == Kind::IngressDaemonSet) {
        let rollout = &seen.object["status"]["rollout"];
        ensure!(rollout["rolledBack"].is_null() && rollout["course"]["failed"].is_null(), "a good revision was condemned: {rollout}");
    }
    Ok(())
}

/// Status of a condition: whether it has this status and reason.
pub fn has_condition(status: &crds::IngressDaemonSetStatus, type_: &str, value: &str, reason: &str) -> bool {
    status.conditions.iter().any(|condition| condition.type_ == type_ && condition.status == value && condition.reason == reason)
}

fn merge(into: &mut Value, more: Value) {
    if let (Some(into), Value::Object(more)) = (into.as_object_mut(), more) {
        into.extend(more);
    }
}

/// The tag under which a second nginx is known, for templates that change the image.
pub const NEWER_IMAGE: &str = images::NEWER_NGINX;
