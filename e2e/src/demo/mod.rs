//! `make demo`: the product at work under load, and the same load over a plain `DaemonSet`.
//! What a scenario also needs is in `cluster/`.
//! It reads the history and the load balancer of its bed, and prints. With `--keep`, ports of 127.0.0.1 lead to the bed.

mod commentary;
pub(crate) mod control;
pub mod front;
mod table;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::{
    auditor::Expectations,
    bed::{Bed, Options},
    cluster::{joining, product},
    host::{images, network},
    load::{Traffic, outage::Outages},
    scenario::{self, dump},
};

use commentary::Commentary;
use table::{Column, load, print_table, thousands};

/// Its name among scenarios, and that of its dump.
pub const NAME: &str = "demo";
/// Requests that the product's part is to serve without a failure.
const REQUESTS: u64 = 1_000_000;
/// Nodes that may be out at once.
const BUDGET: u32 = 1;
const NODES: u8 = 4;
/// How long one rollout over four nodes may take.
const ROLLOUT: Duration = Duration::from_mins(3);
/// The demo gives up after so many rollouts, however slow the machine.
const MOST_ROLLOUTS: u32 = 30;

/// Ports outside that lead inside.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    /// To the API server.
    pub api: u16,
    /// To `HAProxy`.
    pub web: u16,
}

/// Runs the demo inside the namespaces; with `keep`, leaves everything running for people outside. It has printed why it failed.
pub async fn run(keep: Option<Ports>) -> Result<()> {
    let started = Instant::now();
    let outcome = run_in_bed(keep).await;
    if let Err(error) = &outcome {
        scenario::tell_failure(NAME, started, error);
    }
    outcome
}

async fn run_in_bed(keep: Option<Ports>) -> Result<()> {
    let mut bed = Bed::start(Options::with_nodes(NODES).with_infra()).await.context("starting the bed")?;
    let outcome = show(&mut bed, keep).await;
    if outcome.is_err() {
        dump::tell(&bed, NAME).await;
    }
    outcome
}

async fn show(bed: &mut Bed, keep: Option<Ports>) -> Result<()> {
    if let Some(ports) = keep {
        open_front(bed, ports)?;
    }
    let ours = product_part(bed).await?;
    product_is_gone(bed).await?;
    let violations = judge(bed).await?;
    let plain = control::run(bed, &node_names()).await?;
    bed.say("that was all; the two side by side:\n");
    print_table(&[&ours, &plain]);
    for violation in &violations {
        println!("auditor: {violation}");
    }
    ensure!(violations.is_empty(), "the auditor found {} violations", violations.len());
    ensure!(ours.worst.most <= usize::try_from(BUDGET)?, "{} nodes were out of service at once", ours.worst.most);
    ensure!(ours.outcome.failed() == 0, "{} requests failed", ours.outcome.failed());
    let requests = ours.outcome.clients.requests;
    ensure!(
        requests >= REQUESTS,
        "{} rollouts made {requests} requests, not {REQUESTS}: the machine has too much else to do",
        ours.rollouts
    );
    if let Some(ports) = keep {
        stay(bed, ports).await?;
    }
    Ok(())
}

fn node_names() -> Vec<String> {
    (1..=NODES).map(|index| format!("n{index}")).collect()
}

fn resource(version: u32) -> serde_json::Value {
    product::resource(&version.to_string(), &product::rolling_update(BUDGET, product::deployment_mark()))
}

/// Rolls out new templates under load until there were enough requests.
async fn product_part(bed: &mut Bed) -> Result<Column> {
    let names = node_names();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    bed.say("installing the CRDs and the operator from deploy/");
    product::serve(bed, product::rolling_update(BUDGET, product::deployment_mark()), &names).await?;
    bed.say(&format!("two nginx on each of {NODES} nodes in 2 zones serve behind HAProxy; load begins"));
    let commentary = Commentary::start(bed);
    let outages = Outages::start(&bed.haproxy);
    let traffic = Traffic::start(&bed.haproxy, &load()).await?;
    let mut rollouts = 0;
    while rollouts == 0 || (traffic.requests().await? < REQUESTS && rollouts < MOST_ROLLOUTS) {
        rollouts += 1;
        bed.say(&format!("rollout {rollouts}: the template changes; at most {BUDGET} node may be out at a time"));
        product::roll_to(bed, &(rollouts + 1).to_string()).await?;
        product::is_complete(bed, names.len(), ROLLOUT).await?;
        bed.say(&format!("rollout {rollouts} is complete; {} requests so far", thousands(traffic.requests().await?)));
    }
    joining::a_node_joins(bed, &names).await?;
    let outcome = traffic.figures().await?;
    let worst = outages.stop().await?;
    drop(commentary);
    bed.say(&format!("{} requests, {} failed", thousands(outcome.clients.requests), outcome.failed()));
    let within = worst.most <= usize::try_from(BUDGET)?;
    let kept = format!("{} ({} of {BUDGET} at once)", if within { "yes" } else { "NO" }, worst.most);
    Ok(Column { name: "IngressDaemonSet", rollouts, outcome, worst, kept })
}

async fn product_is_gone(bed: &mut Bed) -> Result<()> {
    bed.say("now the same with a plain DaemonSet: the IngressDaemonSet is deleted, and the node that joined goes");
    bed.kubectl(&["delete", "ingressdaemonset", product::NAME, "--timeout=120s"]).await?;
    bed.node(joining::JOINS)?.remove().await
}

async fn judge(bed: &Bed) -> Result<Vec<crate::auditor::Violation>> {
    let verdict = bed.recorder.judge(&Expectations::budget(usize::try_from(BUDGET)?)).await?;
    let (changes, answers) = (verdict.observations, verdict.answers);
    bed.say(&format!(
        "the auditor judged {changes} changes and {answers} answers of health checkers: {} violations",
        verdict.violations.len()
    ));
    Ok(verdict.violations)
}

/// Where people outside find the kubeconfig.
pub fn kubeconfig_path() -> std::path::PathBuf {
    images::repository().join("target/bed/kubeconfig")
}

fn open_front(bed: &Bed, ports: Ports) -> Result<()> {
    front::serve()?;
    let config = bed.control_plane.admin_kubeconfig_for(&format!("https://127.0.0.1:{}", ports.api))?;
    crate::host::certificates::write_private(&kubeconfig_path(), &serde_json::to_string_pretty(&config)?)?;
    bed.say(&format!("look in from another terminal: KUBECONFIG={} kubectl get nodes", kubeconfig_path().display()));
    Ok(())
}

/// Puts the product back and waits for the user to end it.
async fn stay(bed: &Bed, ports: Ports) -> Result<()> {
    let names = node_names();
    for (name, _) in bed.nodes().iter().filter(|(name, _)| names.contains(name)) {
        bed.haproxy.check_on(name, product::HEALTH_PORT).await?;
    }
    bed.apply(&[resource(1)]).await?;
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    bed.haproxy.serves(Duration::from_mins(1), &names).await?;
    println!("everything stays up until Ctrl-C:");
    println!("  HAProxy      http://127.0.0.1:{}/        (inside: http://{}/)", ports.web, network::BED);
    println!("  API server   https://127.0.0.1:{}/", ports.api);
    println!("  kubeconfig   {}", kubeconfig_path().display());
    println!("  kubectl      {} kubectl", images::repository().join("target/bed/control-plane").display());
    println!("  to roll out  kubectl edit ingressdaemonset {}", product::NAME);
    std::future::pending().await
}
