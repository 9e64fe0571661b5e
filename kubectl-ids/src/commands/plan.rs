//! `plan`: a dry run against the live cluster.

use std::{io::Read as _, process::ExitCode};

use anyhow::{Context as _, Result, ensure};
use crds::{IngressDaemonSet, names};
use kube::{
    ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::Value;

use super::{say_if_operator_is_down, title};
use crate::{
    arguments::PlanOptions,
    cluster::Cluster,
    failure::{RuleRequest, explain, is_missing, unknown_kind},
    forecast::{file, forecast, pace::Pace},
    output::{Style, print, remark, remarks},
};

/// Field manager of what is only tried, and of what the plugin writes. Flux takes over what managers wrote whose names begin with
/// kubectl, and removes what is not in Git: a pause would end with Flux's next look.
pub const MANAGER: &str = "ids-plugin";

/// Says what would happen. `namespace`: that of the command line.
pub async fn plan(cluster: &Cluster, namespace: Option<&str>, options: &PlanOptions, style: Style) -> Result<ExitCode> {
    let (cluster, resource) = match &options.filename {
        None => (cluster.clone(), cluster.find(options.name.as_deref()).await?),
        Some(path) => {
            let text = if path.as_os_str() == "-" {
                let mut text = String::new();
                std::io::stdin().read_to_string(&mut text).context("reading standard input")?;
                text
            } else {
                std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?
            };
            try_file(cluster, namespace, &file::read(&text, options.name.as_deref())?).await?
        }
    };
    say_if_operator_is_down(&cluster, &resource).await;
    if let Some(why) = why_held(&resource) {
        remark(&why);
    }
    let (view, missing) = cluster.observe(Some(&resource)).await?;
    remarks(&missing);
    let mut snapshot = view.snapshot(&resource)?;
    try_template(&cluster, &mut snapshot).await;
    let measured = view.timing.get(snapshot.resource.uid8()).cloned().unwrap_or_default();
    let pace = Pace::of(options.pod_seconds, &measured);
    // The simulation takes its time, the client is not needed meanwhile.
    let forecast = tokio::task::spawn_blocking(move || forecast(snapshot, pace)).await?;
    print(&format!("Plan for {} in namespace {}; nothing was changed\n{}", title(&resource), cluster.namespace, forecast.render(style)))?;
    if !forecast.invalid.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    if !forecast.turns.is_empty() {
        print(&format!("Assumed    {}; nothing goes wrong\n", pace.describe()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Why the operator begins none of the updates of a plan, if it cannot list gates: the simulation knows those that the user may list.
fn why_held(resource: &IngressDaemonSet) -> Option<String> {
    let mut conditions = resource.status.iter().flat_map(|status| &status.conditions);
    let valid = conditions.find(|condition| condition.type_ == "Valid" && condition.status == "False")?;
    (valid.reason == "GatesUnreadable").then(|| format!("the operator does not begin this plan yet: {}", valid.message))
}

/// The resource as it would be stored: the API server itself fills in and checks.
async fn try_file(cluster: &Cluster, namespace: Option<&str>, file: &Value) -> Result<(Cluster, IngressDaemonSet)> {
    let mut cluster = cluster.clone();
    if let Some(namespace) = file::namespace(file, namespace)? {
        cluster.namespace = namespace.to_owned();
    }
    let name = file["metadata"]["name"].as_str().unwrap_or_default();
    let resource = untyped(&cluster);
    let namespace = cluster.namespace.as_str();
    let stored = match resource.get(name).await {
        Ok(stored) => Some(stored),
        Err(error) if is_missing(&error) => None,
        Err(error) => return Err(explain(error, RuleRequest::ours("get", namespace))),
    };
    let tried = if let Some(stored) = stored {
        let patch = file::applied(&serde_json::to_value(stored)?, file);
        let params = PatchParams { dry_run: true, field_manager: Some(MANAGER.into()), ..PatchParams::default() };
        resource.patch(name, &params, &Patch::Merge(patch)).await.map_err(|error| explain(error, RuleRequest::ours("patch", namespace)))?
    } else {
        remark(&format!("there is no IngressDaemonSet {name} in namespace {namespace} yet: this is the plan for a new one"));
        let object = serde_json::from_value(file.clone()).context("reading the file")?;
        let params = PostParams { dry_run: true, field_manager: Some(MANAGER.into()) };
        match resource.create(&params, &object).await {
            Err(error) if is_missing(&error) => return Err(unknown_kind()),
            other => other.map_err(|error| explain(error, RuleRequest::ours("create", namespace)))?,
        }
    };
    let mut tried: IngressDaemonSet = serde_json::from_value(serde_json::to_value(tried)?).context("reading the API server's answer")?;
    ensure!(tried.name_any() == name, "the API server answered for {} instead of {name}", tried.name_any());
    tried.metadata.namespace.get_or_insert_with(|| namespace.to_owned());
    Ok((cluster, tried))
}

/// The resources without their type: what the file says and this plugin does not know is for the API server to judge.
fn untyped(cluster: &Cluster) -> kube::Api<kube::api::DynamicObject> {
    let kind = kube::api::GroupVersionKind::gvk(names::GROUP, names::VERSION, "IngressDaemonSet");
    let resource = kube::api::ApiResource::from_gvk_with_plural(&kind, "ingressdaemonsets");
    kube::Api::namespaced_with(cluster.client.clone(), &cluster.namespace, &resource)
}

/// Asks the API server for the pod template as the operator does, who does not begin with one that would be refused.
async fn try_template(cluster: &Cluster, snapshot: &mut planner::Snapshot) {
    let mut memory = operator::rollout::Memory::of(&snapshot.resource.uid);
    operator::rollout::try_template(&cluster.client, &mut memory, snapshot).await;
    let forbidden = snapshot.template_refusal.as_ref().filter(|said| said.contains("cannot patch resource \"deployments\""));
    if forbidden.is_some() {
        snapshot.template_refusal = None;
        remark("you may not patch deployments: the API server did not check the pod template");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::edge;
    use serde_json::json;

    #[test]
    fn flux_does_not_take_the_plugin_for_kubectl() {
        assert!(!MANAGER.starts_with("kubectl"), "{MANAGER}");
    }

    #[test]
    fn a_plan_says_that_the_operator_cannot_list_gates() {
        let template = json!({ "spec": { "containers": [{ "name": "nginx", "image": "nginx:1.29" }] } });
        let spec = json!({ "nodeSelector": { "role": "edge" }, "template": template });
        let mut snapshot = planner::Snapshot::of(edge(serde_json::from_value(spec).unwrap()), 1_767_225_600);
        let said = |snapshot: &planner::Snapshot| {
            let mut resource = IngressDaemonSet::new("edge", snapshot.resource.spec.clone());
            resource.status = Some(planner::decide(snapshot).status);
            why_held(&resource)
        };
        assert_eq!(said(&snapshot), None);
        snapshot.gates.unreadable = Some("NodeReadinessGates (forbidden)".into());
        let remark = said(&snapshot).unwrap_or_default();
        assert!(remark.contains("until it can read NodeReadinessGates (forbidden)"), "{remark}");
    }
}
