//! A right that no request shows: it is asked for inside the API server, when an owner reference blocks deletion.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{
    auditor::Expectations,
    bed::{Bed, Options},
    eventually::eventually,
    rights::{OPERATOR, ROLE},
    scenario::Scenario,
    scenarios::workload,
};

/// The right is taken away.
pub const NEEDS_FINALIZERS: Scenario = Scenario {
    name: "owner_references_that_block_deletion_need_the_right_to_set_finalizers",
    options: || Options::default().with_infra(),
    expected: || Expectations::budget(0),
    body: |bed| Box::pin(needs_finalizers(bed)),
};

async fn needs_finalizers(bed: &mut Bed) -> Result<()> {
    bed.install().await?;
    let mut deployment = workload::deployment("default", "n1", 0);
    deployment["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet", "name": "edge", "uid": "0a1b2c3d",
        "controller": true, "blockOwnerDeletion": true,
    }]);
    let file = bed.state().join("owned.json");
    tokio::fs::write(&file, deployment.to_string()).await.with_context(|| format!("writing {}", file.display()))?;
    let file = file.to_string_lossy().into_owned();
    let as_operator = format!("--as={OPERATOR}");
    let create = ["create", "--dry-run=server", &as_operator, "-f", &file];
    bed.kubectl(&create).await.context("with every right that deploy/ grants")?;
    let role: Value = serde_json::from_str(&bed.kubectl(&["get", "clusterrole", ROLE, "-o", "json"]).await?)?;
    let mut rules = role["rules"].as_array().cloned().context("a role has rules")?;
    let before = rules.len();
    rules.retain(|rule| rule["resources"] != json!(["ingressdaemonsets/finalizers"]));
    ensure!(rules.len() + 1 == before, "one rule is about finalizers: {role}");
    let patch = json!({ "rules": rules }).to_string();
    bed.kubectl(&["patch", "clusterrole", ROLE, "--type=merge", "-p", &patch]).await?;
    eventually(Duration::from_mins(1), "the Deployment is refused", async || match bed.kubectl(&create).await {
        Ok(_) => anyhow::bail!("it is accepted"),
        Err(error) => {
            ensure!(error.to_string().contains("cannot set blockOwnerDeletion"), "{error:#}");
            Ok(())
        }
    })
    .await
}
