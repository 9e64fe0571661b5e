//! That the bed itself works: what is ready is served.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;

use crate::{
    bed::{Bed, Options},
    eventually::{eventually, throughout},
    haproxy::Check,
    load::LoadOptions,
    scenario::Scenario,
    scenarios::workload,
    traffic::Traffic,
};

/// Two pods on each of two nodes, without the operator.
pub const A_PLAIN_DEPLOYMENT: Scenario = Scenario {
    name: "a_plain_deployment_serves_through_haproxy",
    options: || Options::with_nodes(2).with_check(Check::on_port(workload::PORT)),
    body: |bed| Box::pin(a_plain_deployment_serves_through_haproxy(bed)),
};

async fn a_plain_deployment_serves_through_haproxy(bed: &mut Bed) -> Result<()> {
    let names = ["n1", "n2"];
    let mut objects = vec![workload::config_map("default")];
    objects.extend(names.iter().map(|node| workload::deployment("default", node, 2)));
    bed.apply(&objects).await?;
    let deployments = Api::<Deployment>::namespaced(bed.client.clone(), "default");
    for node in names {
        let name = format!("nginx-{node}");
        eventually(Duration::from_secs(30), &format!("both pods of {name} are ready"), async || {
            let status = deployments.get(&name).await?.status.unwrap_or_default();
            ensure!(status.ready_replicas == Some(2), "{} are ready", status.ready_replicas.unwrap_or(0));
            Ok(())
        })
        .await?;
    }
    bed.haproxy.serves(Duration::from_secs(10), &names).await?;
    bed.say("both nodes serve; load for 5 s");
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    throughout(Duration::from_secs(5), "the bed is whole", async || bed.check()).await?;
    let outcome = traffic.stop().await?;
    bed.say(&format!("{} requests, {} failed", outcome.clients.requests, outcome.failed()));
    outcome.expect_all_served(1000)
}
