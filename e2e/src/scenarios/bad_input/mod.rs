//! Every kind of mistake that people make in a resource, as data: what they are told, and that nothing changes.
//! A mistake is an entry of `edits.yaml`, never code.
//! `docs/errors.md` is generated from the same entries.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use anyhow::{Context, Result, ensure};
use crds::IngressDaemonSet;
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::Pod,
};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    auditor::Expectations,
    bed::{Bed, Options},
    cluster::product::{self, deployment_mark, rolling_update},
    eventually::eventually,
    scenario::Scenario,
};

/// The edits, as data.
const EDITS: &str = include_str!("edits.yaml");
const MINUTE: Duration = Duration::from_mins(1);
const NODES: [&str; 2] = ["n1", "n2"];

/// One edit and what its author is told.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// What is wrong, in a few words.
    pub name: String,
    /// Fields below `spec` by their path and what they become; null removes them.
    pub edit: BTreeMap<String, Value>,
    /// What `kubectl apply` says, when the API server refuses it.
    #[serde(default)]
    pub kubectl: Option<String>,
    /// Reason of the condition `Valid`, when only the operator can tell.
    #[serde(default)]
    pub reason: Option<String>,
    /// Its message.
    #[serde(default)]
    pub message: Option<String>,
}

/// All edits.
pub fn edits() -> Result<Vec<Edit>> {
    serde_saphyr::from_str(EDITS).context("reading the table of edits")
}

/// Bad edits while two nodes serve.
pub const BAD_INPUT: Scenario = Scenario {
    name: "every_bad_edit_is_explained_and_changes_nothing_that_runs",
    options: || Options::with_nodes(2).with_infra(),
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(bad_input(bed)),
};

async fn bad_input(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    let good = good();
    repair(bed, &good).await?;
    let before = running(bed).await?;
    let edits = edits()?;
    ensure!(edits.len() >= 60, "the table has {} edits", edits.len());
    let (by_operator, by_api): (Vec<&Edit>, Vec<&Edit>) = edits.iter().partition(|edit| edit.reason.is_some());
    // Side by side: what the API server refuses leaves no trace, and the operator's answers take a second each.
    let told_by_api = async {
        let mut wrong = String::new();
        for edit in by_api {
            note(&mut wrong, edit, &refused_by_the_api(bed, &good, edit).await?)?;
        }
        anyhow::Ok(wrong)
    };
    let told_by_operator = async {
        let mut wrong = String::new();
        for edit in by_operator {
            note(&mut wrong, edit, &refused_by_the_operator(bed, &good, edit).await?)?;
            let now = running(bed).await?;
            ensure!(now == before, "`{}` changed what runs: {before:?} became {now:?}", edit.name);
        }
        Ok(wrong)
    };
    let (by_api, by_operator) = tokio::try_join!(told_by_api, told_by_operator)?;
    let wrong = by_api + &by_operator;
    let after = running(bed).await?;
    ensure!(after == before, "an edit changed what runs: {before:?} became {after:?}");
    // A machine that several beds share stands still for a moment now and then.
    bed.haproxy.serves(Duration::from_secs(10), &NODES).await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.say(&format!("{} edits were refused", edits.len()));
    ensure!(wrong.is_empty(), "messages are not those of the table:{wrong}");
    another_port_comes_and_goes(bed).await
}

/// After all of it, a good edit is carried out.
async fn another_port_comes_and_goes(bed: &Bed) -> Result<()> {
    let checkers = Api::<DaemonSet>::namespaced(bed.client.clone(), "default");
    for ports in [vec![product::HEALTH_PORT, product::HEALTH_PORT + 1], vec![product::HEALTH_PORT]] {
        product::change(bed, json!({ "healthCheckNodePorts": ports })).await?;
        eventually(MINUTE, &format!("health checkers serve {ports:?}"), async || {
            let found = checkers.list(&ListParams::default()).await?.items;
            let ready = |set: &DaemonSet| set.status.as_ref().is_some_and(|status| usize::try_from(status.number_ready) == Ok(NODES.len()));
            ensure!(found.len() == ports.len() && found.iter().all(ready), "there are {}", found.len());
            Ok(())
        })
        .await?;
    }
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await
}

/// Writes down what differs from the table, so that one run shows all of it.
fn note(wrong: &mut String, edit: &Edit, told: &str) -> Result<()> {
    let expected = expected(edit);
    if told != expected {
        write!(wrong, "\n{}\n  expected: {expected}\n  told:     {told}", edit.name)?;
    }
    Ok(())
}

fn good() -> Value {
    let mut good = product::resource("1", &rolling_update(1, deployment_mark()));
    // Server-side apply takes null for a value.
    good["spec"]["updateStrategy"]["rollingUpdate"]
        .as_object_mut()
        .into_iter()
        .for_each(|fields| fields.retain(|_, value| !value.is_null()));
    good
}

fn expected(edit: &Edit) -> String {
    match (&edit.reason, &edit.message, &edit.kubectl) {
        (Some(reason), Some(message), None) => format!("{reason}: {message}"),
        (None, None, Some(kubectl)) => kubectl.clone(),
        _ => "either kubectl, or reason and message".to_owned(),
    }
}

/// As a person would, with one object in a file.
async fn apply(bed: &Bed, object: &Value, edit: &Edit) -> Result<String> {
    let file: String = edit.name.chars().map(|letter| if letter.is_alphanumeric() { letter } else { '-' }).collect();
    let path = bed.state().join(format!("{file}.json"));
    tokio::fs::write(&path, serde_json::to_vec(object)?).await.with_context(|| format!("writing {}", path.display()))?;
    bed.kubectl(&["apply", "--server-side", "--force-conflicts", "--field-manager=bed", "-f", &path.to_string_lossy()]).await
}

/// What `kubectl apply` answers.
async fn refused_by_the_api(bed: &Bed, good: &Value, edit: &Edit) -> Result<String> {
    match apply(bed, &edited(good, edit), edit).await {
        Ok(_) => {
            repair(bed, good).await?;
            Ok("(accepted)".to_owned())
        }
        Err(error) => {
            let error = error.to_string();
            let said = error.split_once("): ").map_or(error.as_str(), |(_, said)| said);
            Ok(said.to_owned())
        }
    }
}

/// What the condition says.
async fn refused_by_the_operator(bed: &Bed, good: &Value, edit: &Edit) -> Result<String> {
    if let Err(error) = apply(bed, &edited(good, edit), edit).await {
        return Ok(format!("(refused) {error}"));
    }
    let told = valid(bed, "False").await;
    repair(bed, good).await?;
    Ok(told.unwrap_or_else(|error| format!("(not refused) {error:#}")))
}

/// Puts the good spec back and waits until the operator says that it is.
async fn repair(bed: &Bed, good: &Value) -> Result<()> {
    let apply = PatchParams::apply("bed").force();
    product::api(bed).patch(product::NAME, &apply, &Patch::Apply(good)).await.context("repairing the resource")?;
    valid(bed, "True").await.map(drop)
}

/// Reason and message of the condition `Valid` once it speaks of the newest spec.
async fn valid(bed: &Bed, wanted: &str) -> Result<String> {
    eventually(MINUTE, &format!("Valid is {wanted}"), async || {
        let resource: IngressDaemonSet = product::api(bed).get(product::NAME).await?;
        let conditions = resource.status.map(|status| status.conditions).unwrap_or_default();
        let condition = conditions.into_iter().find(|condition| condition.type_ == "Valid").context("there is no condition Valid")?;
        ensure!(condition.observed_generation == resource.metadata.generation, "it speaks of an earlier spec");
        ensure!(condition.status == wanted, "it is {}: {}", condition.status, condition.message);
        Ok(format!("{}: {}", condition.reason, condition.message))
    })
    .await
}

fn edited(good: &Value, edit: &Edit) -> Value {
    let mut resource = good.clone();
    for (path, value) in &edit.edit {
        set(&mut resource["spec"], path, value);
    }
    resource
}

/// Sets or removes what `path` leads to.
fn set(object: &mut Value, path: &str, value: &Value) {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    if let (Value::Array(items), Ok(index)) = (&mut *object, first.parse::<usize>()) {
        if let (Some(item), Some(rest)) = (items.get_mut(index), rest) {
            set(item, rest, value);
        }
        return;
    }
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    match (rest, object.as_object_mut()) {
        (Some(rest), Some(fields)) => set(fields.entry(first).or_insert_with(|| json!({})), rest, value),
        (None, Some(fields)) if value.is_null() => drop(fields.remove(first)),
        (None, Some(fields)) => drop(fields.insert(first.to_owned(), value.clone())),
        (_, None) => {}
    }
}

/// Everything that runs: Deployments with all that is written into them but their status, which others keep; pods with their UID.
async fn running(bed: &Bed) -> Result<BTreeMap<String, String>> {
    let all = ListParams::default();
    let deployments = Api::<Deployment>::namespaced(bed.client.clone(), "default").list(&all).await?;
    let pods = Api::<Pod>::namespaced(bed.client.clone(), "default").list(&all).await?;
    let written = |deployment: Deployment| {
        let meta = &deployment.metadata;
        (deployment.name_any(), format!("{:?} {:?} {:?} {:?}", deployment.uid(), meta.generation, meta.labels, meta.annotations))
    };
    let uid = |pod: Pod| (pod.name_any(), pod.uid().unwrap_or_default());
    Ok(deployments.items.into_iter().map(written).chain(pods.items.into_iter().map(uid)).collect())
}
