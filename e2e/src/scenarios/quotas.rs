//! Clusters that admit pods of Kubernetes' own priority classes only where a quota allows them, such as those of GKE.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::{
    auditor::Expectations,
    bed::{Bed, Options, operator::NAMESPACE, owner_references_are_known},
    cluster::{
        guide::Guide,
        product::{self, deployment_mark, four_nodes, rolling_update},
    },
    eventually::eventually,
    load::{LoadOptions, Traffic},
    scenario::Scenario,
    scenarios::chart,
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

/// With the chart, as the guide says.
pub const CRITICAL_PODS_OF_HELM: Scenario = Scenario {
    name: "the_chart_makes_the_quota_that_critical_pods_need",
    options: || Options { critical_needs_quota: true, ..four_nodes() },
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(critical_pods_of_helm(bed)),
};

/// With the quotas of the guide; then health checkers without a priority class, which need none.
pub const CRITICAL_PODS: Scenario = Scenario {
    name: "the_quota_of_the_guide_admits_critical_pods",
    options: || Options { critical_needs_quota: true, ..four_nodes() },
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(critical_pods(bed)),
};

async fn critical_pods_of_helm(bed: &mut Bed) -> Result<()> {
    let guide = Guide::in_file(bed, "docs/install.md", Some("GKE"), &NODES)?;
    let [with_helm, _quotas] = <[String; 2]>::try_from(guide.commands()).ok().context("two commands are known")?;
    let values = chart::values().map(|value| format!("'{value}'")).join(" ");
    let what = format!("ingress-daemonset deploy/chart --namespace {NAMESPACE} --create-namespace --wait --timeout=3m {values}");
    guide.shell(&with_helm.replace('…', &what)).await?;
    owner_references_are_known(&bed.control_plane, bed.state()).await?;
    product::serve_installed(bed, product::resource("1", &rolling_update(1, deployment_mark())), &NODES).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    product::roll_to(bed, "2").await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.say("with the quotas of the chart it serves");
    traffic.all_served(bed).await
}

async fn critical_pods(bed: &mut Bed) -> Result<()> {
    let refused = bed.kubectl(&["run", "critical", "--image=busybox:1.36", "--overrides", &critical()]).await;
    let refused = refused.err().context("this cluster needs no quota")?;
    ensure!(format!("{refused:#}").contains("insufficient quota to match these scopes"), "{refused:#}");
    let guide = Guide::in_file(bed, "docs/install.md", Some("GKE"), &NODES)?;
    let [_with_helm, quotas] = <[String; 2]>::try_from(guide.commands()).ok().context("two commands are known")?;
    guide.shell(&quotas).await?;
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;

    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    product::roll_to(bed, "2").await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.say("with the quotas of the guide it serves");
    bed.kubectl(&["delete", "resourcequota", "system-node-critical-pods"]).await?;
    product::change(bed, json!({ "healthChecker": { "priorityClassName": "" } })).await?;
    product::roll_to(bed, "3").await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    let classes = "jsonpath={range .items[*]}{.metadata.name}={.spec.priorityClassName} {end}";
    eventually(product::ROLLED_OUT, "no health checker has a class", async || {
        let checkers = bed.kubectl(&["get", "pods", "-l", crds::names::HEALTH_CHECKER_LABEL, "-o", classes]).await?;
        ensure!(checkers.split_whitespace().count() == NODES.len() && !checkers.contains("critical"), "{checkers}");
        Ok(())
    })
    .await?;
    bed.say("without a class, health checkers need no quota");
    traffic.all_served(bed).await
}

fn critical() -> String {
    json!({ "apiVersion": "v1", "spec": { "priorityClassName": "system-node-critical" } }).to_string()
}
