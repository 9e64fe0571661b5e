//! What a plain user's bed needs: its user namespace has one user id, so every pod runs as that one.
//!
//! The product's manifests stay as they are; the API server changes pods as they are created.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
};
use serde_json::{Value, json};

use crate::eventually::eventually;

/// How long the API server may take to notice a new policy.
const ACTIVE: Duration = Duration::from_secs(15);
const NAME: &str = "bed-single-user";
/// The only user id, as seen inside.
const USER: i64 = 0;

/// Installs the policy where it is needed, and waits until it works.
pub async fn allow(client: &Client) -> Result<()> {
    let map = std::fs::read_to_string("/proc/self/uid_map").context("reading the user ids of the namespace")?;
    let ids: u64 = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok()).sum();
    if ids > 1 {
        return Ok(());
    }
    create(
        client,
        "MutatingAdmissionPolicy",
        "mutatingadmissionpolicies",
        json!({
            "failurePolicy": "Fail",
            "reinvocationPolicy": "IfNeeded",
            "matchConstraints": { "resourceRules": [
                { "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"] },
            ] },
            "mutations": [
                { "patchType": "ApplyConfiguration", "applyConfiguration": { "expression": containers("containers") } },
                { "patchType": "ApplyConfiguration", "applyConfiguration": { "expression": containers("initContainers") } },
            ],
        }),
    )
    .await?;
    create(client, "MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings", json!({ "policyName": NAME })).await?;
    let pods = Api::<Pod>::namespaced(client.clone(), "default");
    let probe: Pod = serde_json::from_value(json!({
        "metadata": { "name": NAME },
        "spec": { "containers": [{ "name": "c", "image": "i", "securityContext": { "runAsUser": 65532, "runAsNonRoot": true } }] },
    }))?;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    eventually(ACTIVE, "pods run as the one user that a plain user's bed has", async || {
        let spec = pods.create(&dry_run, &probe).await?.spec.unwrap_or_default();
        let context = spec.containers.into_iter().next().and_then(|container| container.security_context).unwrap_or_default();
        ensure!(context.run_as_user == Some(USER), "they run as {:?}", context.run_as_user);
        Ok(())
    })
    .await
}

/// Gives each container of the list the one user id.
fn containers(list: &str) -> String {
    format!(
        "Object{{spec: Object.spec{{{list}: (has(object.spec.{list}) ? object.spec.{list} : []).map(c, \
         Object.spec.{list}{{name: c.name, securityContext: Object.spec.{list}.securityContext{{\
         runAsUser: {USER}, runAsNonRoot: false}}}})}}}}"
    )
}

async fn create(client: &Client, kind: &str, plural: &str, spec: Value) -> Result<()> {
    let of = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
    let resource = ApiResource::from_gvk_with_plural(&of, plural);
    let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
    let object = DynamicObject::new(NAME, &resource).data(json!({ "spec": spec }));
    api.create(&PostParams::default(), &object).await.map(drop).with_context(|| format!("creating a {kind}"))
}
