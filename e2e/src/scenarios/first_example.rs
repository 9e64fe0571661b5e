//! The first example of README, as it stands, and those of the guide to rollouts.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::IngressDaemonSet;
use kube::{Api, ResourceExt as _, api::DeleteParams};

use crate::{
    auditor::Expectations,
    bed::{Bed, Options, node::NodeSpec},
    cluster::{guide::Guide, product},
    eventually::eventually,
    host::images,
    load::{LoadOptions, Traffic},
    scenario::Scenario,
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
const SERVES: Duration = Duration::from_mins(3);

/// Its commands and its file make two pods on each node serve port 80, through an update of their image, too.
pub const SERVES_THROUGH_A_ROLLOUT: Scenario = Scenario {
    name: "the_first_example_of_the_readme_serves_port_80_through_a_rollout",
    options: || Options { nodes: NODES.map(NodeSpec::new).to_vec(), ..Options::default() }.with_infra(),
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(serves_through_a_rollout(bed)),
};

/// Each example of the guide, where no node has its label.
pub const OF_THE_GUIDE: Scenario = Scenario {
    name: "the_api_server_and_the_operator_take_every_example_of_the_guide_as_it_stands",
    options: || Options::default().with_infra(),
    expected: Expectations::default,
    body: |bed| Box::pin(of_the_guide(bed)),
};

async fn of_the_guide(bed: &mut Bed) -> Result<()> {
    bed.install().await?;
    let examples = Guide::in_file(bed, "docs/rollouts.md", None, &[])?.objects()?;
    for example in &examples {
        let resource: IngressDaemonSet = serde_json::from_value(example.clone()).context("an example of another kind")?;
        let (name, namespace) = (resource.name_any(), resource.namespace().unwrap_or_else(|| "default".to_owned()));
        bed.apply(std::slice::from_ref(example)).await.with_context(|| example.to_string())?;
        let api = Api::<IngressDaemonSet>::namespaced(bed.client.clone(), &namespace);
        eventually(product::SAID, &format!("the operator takes {example}"), async || {
            let made = api.get(&name).await?;
            let status = made.status.context("no status yet")?;
            let valid = status.conditions.iter().find(|condition| condition.type_ == "Valid").context("no condition yet")?;
            // What was made a moment ago has no earlier revision.
            let goes_back = made.spec.rollback_to.is_some() && valid.reason == "RevisionNotFound";
            ensure!(valid.status == "True" || goes_back, "{valid:?}");
            ensure!(valid.observed_generation == made.metadata.generation, "it is of an earlier spec: {valid:?}");
            Ok(())
        })
        .await?;
        // Another example asks for the same port.
        api.delete(&name, &DeleteParams::default()).await.context("deleting it")?;
        eventually(product::SAID, "it is gone", async || {
            ensure!(api.get_opt(&name).await?.is_none(), "it is still there");
            Ok(())
        })
        .await?;
    }
    bed.say(&format!("{} examples are valid as they stand", examples.len()));
    Ok(())
}

async fn serves_through_a_rollout(bed: &mut Bed) -> Result<()> {
    bed.install().await?;
    let guide = Guide::in_file(bed, "README.md", Some("First example"), &NODES)?;
    guide.write_example("edge.yaml", str::to_owned)?;
    let told = guide.run_all().await?;
    let readme = std::fs::read_to_string(images::repository().join("README.md")).context("reading README")?;
    let shown = readme.split_once("$ kubectl get ids\n").and_then(|(_, after)| after.lines().next()).context("README shows no table")?;
    let columns = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    ensure!(told.lines().any(|line| columns(line) == columns(shown)), "README shows {shown} of {told}");
    let fields = guide.shell(guide.says("kubectl explain ids.spec")?).await?;
    ensure!(fields.contains("podsPerNode"), "{fields}");
    bed.haproxy.serves(SERVES, &NODES).await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    for node in NODES {
        let pods =
            bed.kubectl(&["get", "pods", "-l", "app=edge", "--field-selector", &format!("spec.nodeName={node}"), "-o", "name"]).await?;
        ensure!(pods.lines().count() == 2, "{node} runs {pods}");
        guide.shell(&format!("curl http://{node}:80/")).await?;
    }
    bed.say("two pods on each of four nodes serve port 80");

    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    guide.write_example("edge.yaml", |text| text.replace(images::README_NGINX, images::NEWER_README_NGINX))?;
    guide.shell("kubectl apply -f edge.yaml").await?;
    let made = product::api(bed).get(product::NAME).await?;
    ensure!(made.spec.template["spec"]["containers"][0]["image"] == images::NEWER_README_NGINX, "the image was not changed");
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    guide.shell("kubectl wait ids/edge --for=condition=Ready --timeout=10s").await.context("it is complete")?;
    traffic.all_served(bed).await?;
    bed.say("the other image runs, and no request was lost");
    Ok(())
}
