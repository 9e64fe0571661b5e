//! Trying a template on the API server without changing anything.

use super::Memory;
use crate::{
    rights::is_of_a_right,
    write::{Error, TIMEOUT, classify, json_patch, object},
};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, PatchParams, PostParams},
};
use planner::{
    Snapshot,
    rollout::template_check::{TemplateCheck, template_check},
};

/// Attempts that are waited for.
const MOST_ATTEMPTS: u32 = 5;

/// Tries the template once for each generation of the resource, and again after a while when it was refused; what the
/// API server said goes into the snapshot. `false` while it has said nothing: decide later, lest a node is taken out for a
/// template that is refused then. After some attempts that is risked.
pub async fn try_template(client: &Client, memory: &mut Memory, snapshot: &mut Snapshot) -> bool {
    let generation = snapshot.resource.generation;
    if memory.tried == Some(generation) || snapshot.template_refusal.is_some() {
        return true;
    }
    let outcome = match template_check(snapshot) {
        None => Ok(()),
        Some(check) => tokio::time::timeout(TIMEOUT, call(client, &snapshot.resource.namespace, check))
            .await
            .unwrap_or_else(|_| Err(Error::Transient("no answer in time".into()))),
    };
    let unanswered = std::mem::take(&mut memory.untried);
    match outcome {
        Ok(()) => {
            memory.tried = Some(generation);
            memory.accept_template();
        }
        Err(Error::Invalid(message) | Error::Forbidden(message)) => {
            memory.refuse_template(&message, generation);
            snapshot.template_refusal = Some(message);
        }
        // A write that is refused later is held at its node.
        Err(error) => {
            tracing::info!(%error, "the template could not be tried");
            memory.untried = unanswered.saturating_add(1);
            return memory.untried > MOST_ATTEMPTS;
        }
    }
    true
}

async fn call(client: &Client, namespace: &str, check: TemplateCheck) -> Result<(), Error> {
    let kind = ApiResource::erase::<Deployment>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
    let result = match check {
        TemplateCheck::Patch { name, patch } => {
            let params = PatchParams { dry_run: true, ..PatchParams::default() };
            match api.patch(&name, &params, &json_patch(&patch)?).await.map(drop).map_err(classify) {
                // That the operator may not patch says nothing about the template; a webhook's refusal does.
                Err(Error::Forbidden(message)) if is_of_a_right(&message) => Err(Error::Transient(message)),
                other => other,
            }
        }
        TemplateCheck::Create(body) => {
            let created = api.create(&PostParams { dry_run: true, ..PostParams::default() }, &object(&body)?).await.map(drop);
            match created.map_err(classify) {
                // The name is taken, or a quota counts Deployments: that says nothing about the template.
                Err(Error::Conflict | Error::Forbidden(_)) => Ok(()),
                other => other,
            }
        }
    };
    match result {
        // A webhook with side effects cannot be asked.
        Err(Error::Invalid(message)) if message.contains("does not support dry run") => Ok(()),
        other => other,
    }
}
