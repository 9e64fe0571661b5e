//! The tutorial: its commands in their order, as they are written there, from `helm install` to a broken image that is taken back.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

use crate::{
    auditor::Expectations,
    bed::{Bed, Options, node::NodeSpec, owner_references_are_known},
    cluster::{guide::Guide, product},
    eventually::eventually,
    host::{images, namespaces::find_program, network, process::Process},
    load::{LoadOptions, Traffic},
    scenario::Scenario,
};

/// As few as the tutorial asks for: each is updated in its turn, and proved for a minute.
const NODES: [&str; 2] = ["n1", "n2"];

/// Somebody who has read README and follows the tutorial.
pub const TUTORIAL: Scenario = Scenario {
    name: "every_command_of_the_tutorial_works_without_a_lost_request",
    options: || Options { nodes: NODES.map(NodeSpec::new).to_vec(), ..Options::default() },
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(tutorial(bed)),
};

/// A command that never ends, for as long as its end is waited for.
fn stopped(command: &str, seconds: u32) -> String {
    format!("timeout {seconds} bash -c '{command}' || [ $? = 124 ]")
}

/// The load balancer as the tutorial configures it, beside that of the bed.
struct LoadBalancer {
    process: Process,
    log: PathBuf,
}

impl LoadBalancer {
    /// It listens on all addresses of the machine; the other one has its own.
    const ADDRESS: &str = "127.0.0.1";

    /// Starts it, with the addresses of nodes that the tutorial has, and waits until it serves.
    async fn start(bed: &Bed) -> Result<Self> {
        let guide = Guide::in_file(bed, "docs/tutorial.md", Some("Set up the load balancer"), &NODES)?;
        let block = guide.block("text")?;
        let servers: Vec<_> = block.lines().filter_map(|line| line.trim().strip_prefix("server ")?.split_once(' ')).collect();
        ensure!(servers.iter().map(|(name, _)| *name).eq(NODES), "it has other servers: {servers:?}");
        for (name, address) in servers {
            let other = address.strip_suffix(":80").context("a server at port 80")?.parse().context("its address")?;
            let node = bed.nodes().get(name).context("no such node")?;
            network::lend_address(name, node.address(), other).await?;
        }
        let defaults = "defaults\n    mode http\n    timeout connect 1s\n    timeout client 30s\n    timeout server 30s\n";
        guide.write("haproxy.cfg", &format!("{defaults}{block}"))?;
        guide.shell("haproxy -c -f haproxy.cfg").await?;
        let mut command = Command::new(find_program("haproxy").context("no haproxy")?);
        command.arg("-db").arg("-f").arg(guide.path("haproxy.cfg"));
        let logs = bed.state().join("logs");
        let process = Process::start("tutorial-haproxy", &logs, command)?;
        eventually(product::SAID, "the load balancer of the tutorial serves", async || {
            let told = guide.shell(&format!("curl -fsS http://{}/", Self::ADDRESS)).await?;
            ensure!(told == "hello\n", "it answers {told}");
            Ok(())
        })
        .await?;
        Ok(Self { process, log: logs.join("tutorial-haproxy.log") })
    }

    /// It still runs, and has sent no requests to each node for a while.
    fn has_followed(&mut self) -> Result<()> {
        self.process.check()?;
        let told = std::fs::read_to_string(&self.log).context("reading its log")?;
        for node in NODES {
            for state in ["DOWN", "UP"] {
                ensure!(told.contains(&format!("Server edge/{node} is {state}")), "{node} was not {state}: {told}");
            }
        }
        Ok(())
    }
}

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
        let command = command.replace("NODE...", &NODES.join(" "));
        install.shell(&if command.ends_with(" --watch") { stopped(&command, 5) } else { command }).await?;
    }
    bed.say("the operator runs");

    let example = Guide::in_file(bed, "README.md", Some("First example"), &NODES)?;
    example.write_example("edge.yaml", str::to_owned)?;
    let serve = section("Serve port 80")?;
    let (ipv4, ipv6) = (serve.says("listen 80 reuseport;")?, serve.says("listen [::]:80 reuseport;")?);
    let both = format!("{ipv4} {ipv6}");
    example.run_all_as(|command| command.replace("n1 n2 n3 n4", &NODES.join(" ")).replace(ipv4, &both)).await?;
    let address = bed.address(NODES[0])?.to_string();
    let told = serve.run_all_as(|command| command.replace("ADDRESS", &address)).await?;
    for word in ["condition met", "hello", "200", "Serving"] {
        ensure!(told.contains(word), "no {word} in {told}");
    }
    for node in NODES {
        let told = serve.shell(&format!("ip netns exec {node} curl -fsS http://[::1]:80/")).await?;
        ensure!(told == "hello\n", "{node} answers by IPv6: {told}");
    }
    bed.haproxy.serves(product::SAID, &NODES).await?;
    bed.say("two nodes serve, by IPv6 as well");

    let mut balancer = LoadBalancer::start(bed).await?;

    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let update = section("Update the image")?;
    let [asks, change, shows] = <[String; 3]>::try_from(update.commands()).ok().context("three commands are known")?;
    // The loop runs for about as long as one node is out, and a second one waits for the proof.
    let asks = stopped(&asks.replace("LOAD-BALANCER", LoadBalancer::ADDRESS), 60);
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
    balancer.has_followed()?;
    bed.say("the other image runs, and the load balancer of the tutorial took each node out for that");

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
