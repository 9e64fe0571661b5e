//! The commands of docs/operations.md, as they are written there.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use crds::names;
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, ResourceExt, api::ListParams};

use crate::{
    auditor::{Expectations, Kind},
    bed::{Bed, operator},
    cluster::{
        guide::Guide,
        product::{self, deployment_mark, four_nodes, rolling_update},
    },
    eventually::eventually,
    load::{LoadOptions, Traffic},
    scenario::Scenario,
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
const MINUTE: Duration = Duration::from_mins(1);

/// From looking to uninstalling, on a resource that serves.
pub const COMMANDS: Scenario = Scenario {
    name: "commands_of_the_operations_guide_work_as_documented",
    options: four_nodes,
    expected: || Expectations::budget(2),
    body: |bed| Box::pin(commands(bed)),
};

async fn commands(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(2, deployment_mark()), &NODES).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let pods = Api::<Pod>::namespaced(bed.client.clone(), operator::NAMESPACE);
    let listed = pods.list(&ListParams::default()).await?.items;
    let operator = listed.iter().filter_map(|pod| pod.metadata.name.as_deref()).find(|name| name.starts_with(operator::NAME));
    let operator = operator.context("the operator has no pod")?;
    let health = format!("{}:{}", bed.address("n4")?, product::HEALTH_PORT);
    let filled = |command: String| {
        let values = [
            ("ADDRESS:PORT", &*health),
            ("app=edge", "app=nginx"),
            ("NAMESPACE/NAME", "default/edge"),
            ("NODE", "n4"),
            ("NAME", "edge"),
            ("POD", operator),
            ("NUMBER", "1"),
        ];
        values.into_iter().fold(command, |command, (name, value)| command.replace(name, value))
    };
    let run = async |heading: &str| -> Result<String> {
        let told = Guide::in_file(bed, "docs/operations.md", Some(heading), &NODES)?.run_all_as(filled).await;
        told.with_context(|| format!("the commands below `{heading}`"))
    };

    product::roll_to(bed, "2").await?;
    product::status_says(bed, "a node is detached", product::SAID, |status| status.nodes.detached > 0).await?;
    let told = run("List the nodes that are out").await?;
    let mut listed = told.lines().filter_map(|line| line.split_once(' ').filter(|(node, _)| NODES.contains(node)));
    ensure!(listed.any(|(_, said)| !said.starts_with("Waiting ")), "{told}");
    let told = run("Find out why a rollout waits").await?;
    ensure!(NODES.iter().any(|node| told.contains(&format!("{node} Waiting since 20"))), "{told}");
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    let told = run("Find missing permissions").await?;
    ensure!(!told.contains("may not"), "{told}");
    run("Check the health port").await?;
    bed.say("all that one looks at is there");

    // It stops, goes on, turns back and turns forth again.
    let from = bed.recorder.history().await?.len();
    run("Pause, resume and roll back").await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    let said = bed.recorder.history().await?;
    let said: Vec<_> = said.iter().skip(from).filter(|seen| seen.kind == Kind::IngressDaemonSet).collect();
    ensure!(said.iter().any(|seen| seen.object["spec"]["paused"] == true), "it was not paused");
    ensure!(said.iter().any(|seen| seen.object["spec"]["rollbackTo"]["revision"] == 1), "it was not turned back");
    ensure!(
        said.last().is_some_and(|seen| seen.object["spec"]["paused"] == false && seen.object["spec"]["rollbackTo"].is_null()),
        "{:?}",
        said.last()
    );
    run("Set the budget, or leave a node out").await?;
    let nodes = bed.recorder.history().await?;
    let skipped = nodes.iter().skip(from).filter(|seen| seen.kind == Kind::Node && seen.object["metadata"]["name"] == "n4");
    let skips = skipped.map(|seen| seen.object["metadata"]["annotations"][names::SKIP_ANNOTATION].as_str().unwrap_or_default());
    let skips: Vec<_> = skips.collect();
    ensure!(skips.contains(&"default/edge") && skips.last() == Some(&""), "{skips:?}");
    Guide::in_file(bed, "docs/rollouts.md", Some("Watch a rollout"), &NODES)?.run_all_as(filled).await?;
    stops_and_goes_on(bed, filled).await?;
    product::roll_to(bed, "3").await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    traffic.all_served(bed).await?;
    bed.say("it stopped, turned back, left a node out and went on as it was told, and no request was lost");

    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let told = run("Move the traffic away").await?;
    ensure!(told.contains("condition met"), "{told}");
    traffic.all_served(bed).await?;
    bed.say("a node lost its pods, and no request was lost");

    run("Uninstall").await?;
    // The API server serves a kind a moment longer than its definition stands, so the definitions are what is asked for.
    let kinds = Api::<CustomResourceDefinition>::all(bed.client.clone()).list(&ListParams::default()).await?.items;
    let kinds: Vec<_> = kinds.iter().filter(|kind| kind.spec.group == names::GROUP).map(ResourceExt::name_any).collect();
    ensure!(kinds.is_empty(), "the API server still knows {kinds:?}");
    let nodes = Api::<Node>::all(bed.client.clone()).list(&ListParams::default()).await?.items;
    let left: Vec<_> = nodes.iter().flat_map(|node| node.labels().keys().chain(node.annotations().keys())).collect();
    let ours = left.iter().filter(|key| key.starts_with(names::GROUP) && **key != names::SKIP_ANNOTATION);
    ensure!(ours.clone().next().is_none(), "left on Nodes: {:?}", ours.collect::<Vec<_>>());
    Ok(())
}

/// The commands that stop the operator and pause all resources, and then the same that undo it.
async fn stops_and_goes_on(bed: &Bed, filled: impl Fn(String) -> String) -> Result<()> {
    let stop = Guide::in_file(bed, "docs/operations.md", Some("Stop everything"), &NODES)?;
    let paused = async || product::api(bed).get(product::NAME).await.map(|resource| resource.spec.paused);
    stop.run_all_as(filled).await?;
    ensure!(paused().await?, "it is not paused");
    let pods = Api::<Pod>::namespaced(bed.client.clone(), operator::NAMESPACE);
    eventually(MINUTE, "the operator has stopped", async || {
        let left = pods.list(&ListParams::default()).await?.items;
        let left = left.iter().map(ResourceExt::name_any).find(|name| name.starts_with(operator::NAME));
        ensure!(left.is_none(), "{left:?} runs on");
        Ok(())
    })
    .await?;
    // As the section says how to go on.
    stop.run_all_as(|command| command.replace("--replicas=0", "--replicas=2").replace("\"paused\":true", "\"paused\":false")).await?;
    ensure!(!paused().await?, "it is still paused");
    Ok(())
}
