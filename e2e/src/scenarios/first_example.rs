//! The first example of README, as it stands, and those of the guide to rollouts.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use chrono::DateTime;
use crds::{IngressDaemonSet, status::NodePhase};
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

/// Its commands and its file make two pods on each node serve port 80.
pub const SERVES_PORT_80: Scenario = Scenario {
    name: "the_first_example_of_the_readme_serves_port_80",
    options: unlabelled_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(async { serves(bed).await.map(|_| ()) }),
};

/// It also serves through an update of their image.
pub const SERVES_THROUGH_A_ROLLOUT: Scenario = Scenario {
    name: "the_first_example_of_the_readme_serves_through_a_rollout",
    options: unlabelled_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(serves_through_a_rollout(bed)),
};

/// It with what the tutorial changes in it where another program holds port 80, and for a load balancer of AWS.
pub const EDITED: Scenario = Scenario {
    name: "changes_of_the_tutorial_for_k3s_and_aws_work",
    options: || Options { nodes: vec![NodeSpec::new(NODES[0])], ..Options::default() }.with_infra(),
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(edited(bed)),
};

/// Each example of the guides, where no node has its label.
pub const OF_THE_GUIDE: Scenario = Scenario {
    name: "every_example_of_the_guide_is_valid_as_it_stands",
    options: || Options::default().with_infra(),
    expected: Expectations::default,
    body: |bed| Box::pin(of_the_guide(bed)),
};

/// The commands of README label them.
fn unlabelled_nodes() -> Options {
    Options { nodes: NODES.map(NodeSpec::new).to_vec(), ..Options::default() }.with_infra()
}

async fn of_the_guide(bed: &mut Bed) -> Result<()> {
    bed.install().await?;
    let mut examples = Vec::new();
    for page in ["docs/rollouts.md", "docs/failures.md", "docs/migration.md"] {
        examples.extend(Guide::in_file(bed, page, None, &[])?.objects()?);
    }
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

async fn edited(bed: &mut Bed) -> Result<()> {
    bed.install().await?;
    let node = NODES[0];
    let readme = Guide::in_file(bed, "README.md", Some("First example"), &[node])?;
    let aws = Guide::in_file(bed, "docs/tutorial.md", Some("Set up the load balancer"), &[node])?;
    let (preset, marks) = (aws.says("loadBalancer: {preset: AwsNlbLbc}")?, aws.says("annotateDeploymentToDetach: {}")?);
    let removed = aws.says("attachSoakSeconds")?;
    readme.write_example("edge.yaml", |text| {
        let kept: Vec<_> = text.lines().filter(|line| !line.contains(removed)).collect();
        let marked = kept.join("\n").replace("annotateDeploymentToDetach: {gracePeriodSeconds: 15}", marks);
        marked.replacen("\nspec:\n", &format!("\nspec:\n  {preset}\n"), 1)
    })?;
    let port = Guide::in_file(bed, "docs/tutorial.md", Some("Prepare"), &[node])?;
    let listen = port.says("listen 80")?;
    readme.run_all_as(|command| command.replace("n1 n2 n3 n4", node).replace(listen, "listen 8080")).await?;
    product::is_complete(bed, 1, product::ROLLED_OUT).await?;
    let made = product::api(bed).get(product::NAME).await?;
    let rolling = made.spec.update_strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref()).context("no rolling update")?;
    ensure!(made.spec.load_balancer.is_some() && rolling.attach_soak_seconds.is_none(), "the edit is not in it: {:?}", made.spec);
    readme.shell(&format!("curl -fsS http://{node}:8080/")).await?;
    bed.say("it serves port 8080");

    readme.shell("sed -i 's/nginx:1.29/nginx:1.30/' edge.yaml && kubectl apply -f edge.yaml").await?;
    product::status_says(bed, "the node is out", product::SAID, |status| {
        status.node_states.iter().any(|state| state.phase == NodePhase::Detaching)
    })
    .await?;
    let told = readme.shell(&format!("curl -fsS http://{node}:8080/")).await?;
    ensure!(told == "hello\n", "{node} answers {told} while the load balancer may still send requests");
    product::is_complete(bed, 1, product::ROLLED_OUT).await?;
    let status = product::api(bed).get(product::NAME).await?.status.context("no status")?;
    let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready").context("no condition")?;
    let [detaching, detached, attaching] = phases_began(bed, [NodePhase::Detaching, NodePhase::Detached, NodePhase::Attaching]).await?;
    let (out, back) = (detached - detaching, ready.last_transition_time.0.as_second() - attaching);
    aws.says("(grace 80 s, soak 70 s)")?;
    ensure!(out >= 80 && back >= 70, "the load balancer had {out} s to take {node} out, and {back} s to take it back");
    bed.say(&format!("the load balancer had {out} s to take the node out, and {back} s to take it back"));
    Ok(())
}

/// When the node was in these phases first, in seconds of the Unix epoch, by the history.
async fn phases_began<const N: usize>(bed: &Bed, phases: [NodePhase; N]) -> Result<[i64; N]> {
    let history = bed.recorder.history().await?;
    let mut began = [0; N];
    for (phase, at) in phases.iter().zip(&mut began) {
        let mut states = history.iter().filter_map(|seen| seen.object["status"]["nodeStates"].as_array()).flatten();
        let state = states.find(|state| state["phase"] == phase.to_string()).with_context(|| format!("the node never was {phase}"))?;
        let since = state["since"].as_str().context("since when")?;
        *at = DateTime::parse_from_rfc3339(since).with_context(|| format!("since {since}"))?.timestamp();
    }
    Ok(began)
}

async fn serves(bed: &mut Bed) -> Result<Guide> {
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
    Ok(guide)
}

async fn serves_through_a_rollout(bed: &mut Bed) -> Result<()> {
    let guide = serves(bed).await?;
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
