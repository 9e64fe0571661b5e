//! The first example of README, as it stands.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::{
    auditor::Expectations,
    bed::{Bed, Options, node::NodeSpec},
    cluster::{guide::Guide, product},
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

async fn serves_through_a_rollout(bed: &mut Bed) -> Result<()> {
    bed.install().await?;
    let guide = Guide::in_file(bed, "README.md", Some("First example"), &NODES)?;
    guide.write_example("edge.yaml", str::to_owned)?;
    guide.run_all().await?;
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
