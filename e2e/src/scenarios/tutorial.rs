//! The tutorial: its commands in their order, as they are written there, from `helm install` to a broken image that is taken back.

use anyhow::{Context as _, Result, ensure};

use crate::{
    auditor::Expectations,
    bed::{Bed, Options, node::NodeSpec, owner_references_are_known},
    cluster::{guide::Guide, product},
    host::{images, network},
    load::{LoadOptions, Traffic},
    scenario::Scenario,
};

/// As few as the tutorial asks for: each is updated in its turn, and proved for a minute.
const NODES: [&str; 2] = ["n1", "n2"];

/// Somebody who has read README and follows the tutorial.
pub const TUTORIAL: Scenario = Scenario {
    name: "who_follows_the_tutorial_installs_serves_updates_and_takes_a_broken_image_back_without_a_lost_request",
    options: || Options { nodes: NODES.map(NodeSpec::new).to_vec(), ..Options::default() },
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(tutorial(bed)),
};

async fn tutorial(bed: &mut Bed) -> Result<()> {
    let section = |heading: &str| Guide::in_file(bed, "docs/tutorial.md", Some(heading), &NODES);
    let install = section("Install")?;
    let readme = Guide::in_file(bed, "README.md", Some("Install"), &NODES)?.commands();
    ensure!(install.commands().starts_with(&readme), "README installs it in another way than the tutorial: {readme:?}");
    let told = install.run_all_as(|command| command.replace("REGISTRY/", images::PUSHED)).await?;
    owner_references_are_known(&bed.control_plane, bed.state()).await?;
    // What Helm prints says how to go on.
    let next: Vec<_> = told.lines().filter_map(|line| line.strip_prefix("  ")).filter(|line| line.starts_with("kubectl")).collect();
    ensure!(next.len() == 3, "Helm said {told}");
    for command in next {
        install.shell(&command.replace("NODE...", &NODES.join(" ")).replace(" --watch", "")).await?;
    }
    bed.say("the operator runs");

    let example = Guide::in_file(bed, "README.md", Some("First example"), &NODES)?;
    example.write_example("edge.yaml", str::to_owned)?;
    example.run_all_as(|command| command.replace("n1 n2 n3 n4", &NODES.join(" "))).await?;
    let told = section("Serve port 80")?.run_all_as(|command| command.replace("NODE", NODES[0])).await?;
    for word in ["condition met", "hello", "200", "Serving"] {
        ensure!(told.contains(word), "no {word} in {told}");
    }
    bed.haproxy.serves(product::SAID, &NODES).await?;
    bed.say("two nodes serve");

    let balancer = section("Set up the load balancer")?;
    let defaults = "defaults\n    mode http\n    timeout connect 1s\n    timeout client 30s\n    timeout server 30s\n";
    balancer.write("haproxy.cfg", &format!("{defaults}{}", balancer.block("text")?))?;
    balancer.shell("haproxy -c -f haproxy.cfg").await?;

    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let update = section("Update the image")?;
    let [asks, change, shows] = <[String; 3]>::try_from(update.commands()).ok().context("three commands are known")?;
    // Those that never end are stopped; the loop runs for about as long as one node is out, and a second one waits for the proof.
    let stopped = |command: &str, seconds: u32| format!("timeout {seconds} bash -c '{command}' || [ $? = 124 ]");
    let asks = stopped(&asks.replace("LOAD-BALANCER", &network::BED.to_string()), 60);
    let shows = stopped(shows.split_once(" #").context("the other way to watch is behind it")?.0, 5);
    let (lost, told) = tokio::try_join!(update.shell(&asks), async {
        update.shell(&change).await?;
        update.shell(&shows).await
    })?;
    ensure!(lost.is_empty(), "requests were lost: {lost}");
    ensure!(told.contains("Detaching") || told.contains("Updating"), "no node is shown: {told}");
    update.shell(&stopped(update.says("kubectl get ids edge -w")?, 5)).await?;
    update.shell(update.says("kubectl ids status edge --until-complete")?).await?;
    let made = product::api(bed).get(product::NAME).await?;
    ensure!(made.spec.template["spec"]["containers"][0]["image"] == images::NEWER_README_NGINX, "the image was not changed");
    ensure!(product::has_ended(&made, NODES.len()), "the command ended before the rollout");
    bed.say("the other image runs");

    let broken = section("Take a broken image back")?;
    let [change, why, undo, wait] = <[String; 4]>::try_from(broken.commands()).ok().context("four commands are known")?;
    broken.shell(&change).await?;
    let status = product::status_says(bed, "a node names the image", product::SAID, |status| {
        status.node_states.iter().any(|state| state.reason == "ImagePull")
    })
    .await?;
    let node = status.node_states.iter().find(|state| state.reason == "ImagePull").context("no node")?;
    let told = broken.shell(&why.replace("NODE", &node.name)).await?;
    ensure!(told.contains("ImagePull") && told.contains("nginx:does-not-exist"), "{told}");
    for command in [undo, wait] {
        broken.shell(&command).await?;
    }
    let pinned = product::api(bed).get(product::NAME).await?;
    ensure!(pinned.spec.rollback_to.is_some() && pinned.status.as_ref().is_some_and(|status| status.nodes.available == 2), "{pinned:?}");
    let runs = ["get", "deployments", "-o", "jsonpath={.items[*].spec.template.spec.containers[*].image}"];
    ensure!(bed.kubectl(&runs).await? == [images::NEWER_README_NGINX; 2].join(" "), "the broken image is still there");
    bed.haproxy.serves(product::SAID, &NODES).await?;
    broken.shell("sed -i 's/nginx:does-not-exist/nginx:1.30/' edge.yaml && kubectl apply -f edge.yaml").await?;
    broken.shell(broken.says("kubectl ids undo edge --clear")?).await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    ensure!(product::api(bed).get(product::NAME).await?.spec.rollback_to.is_none(), "the pin is still there");
    bed.say("the broken image was taken back");
    traffic.all_served(bed).await
}
