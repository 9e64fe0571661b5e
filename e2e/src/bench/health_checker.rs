//! The goals of the health checker: reaction, latency, throughput, memory, start and hand-over.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use crds::names::TOKEN_LABEL;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api,
    api::{Patch, PatchParams, WatchEvent, WatchParams},
};
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::{process::Command, task::JoinSet, time};

use super::benchmark::{Benchmark, Body, Figure, Goal};
use crate::{
    bed::{Bed, Options, health_check::Client},
    cluster::{
        operator_process::OperatorProcess,
        product::{self, HEALTH_PORT, deployment_mark, rolling_update},
    },
    eventually::eventually,
    host::{images, namespaces, network, process::Process, process_figures::ProcessFigures},
    load::{Load, LoadOptions, checks::Checks},
};

/// All goals of the health checker.
pub const HEALTH_CHECKER: Benchmark = Benchmark {
    name: "health-checker",
    body: Body::InBed { options: || Options::with_nodes(1).with_infra(), measure: |bed| Box::pin(measure(bed)) },
};

const NODE: &str = "n1";
const TOKENS: u64 = 200;
const STARTS: usize = 20;
const HAND_OVERS: usize = 60;
/// The API server's, as pods reach it; each watch is a connection.
const API_SERVER_PORT: u16 = 443;
/// Ports of the yardstick, and of health checkers that the benchmark starts itself.
const NGINX_PORT: u16 = 10_090;
const OWN_PORT: u16 = 10_091;

async fn measure(bed: &mut Bed) -> Result<Vec<Figure>> {
    product::serve(bed, rolling_update(1, deployment_mark()), &[NODE]).await?;
    // Nobody but the benchmark writes tokens now.
    OperatorProcess::instead_of_pods(bed).await?.kill().await?;
    let node = bed.address(NODE)?;
    let agent = find_agent()?;
    let mut figures = Vec::new();
    figures.push(reaction(bed, node).await?);
    bed.say("measured the reaction to tokens");
    let nginx = start_nginx(bed, node).await?;
    figures.push(latency(node).await?);
    bed.say("measured latency");
    figures.push(throughput(node).await?);
    nginx.kill().await?;
    bed.say("measured throughput");
    let figure = |what, value, unit, most| Figure { what, value, unit, goal: Goal::AtMost(most), yardstick: None };
    figures.push(figure("resident memory after that", agent.figures.resident_mib()?, "MiB", 12.0));
    figures.push(figure("connections to the API server", agent.figures.connections_to(API_SERVER_PORT)?.into(), "", 3.0));
    figures.push(figure("start -> first 200, longest of 20", starts(bed, &agent, node).await?, "s", 1.0));
    bed.say("measured starts");
    figures.push(figure("checks lost in 60 hand-overs under load", hand_overs(bed, &agent, node).await?, "", 0.0));
    Ok(figures)
}

/// From the write of a token to the first 503, beside the event of a plain watch.
async fn reaction(bed: &Bed, node: Ipv4Addr) -> Result<Figure> {
    let api = Api::<Deployment>::namespaced(bed.client.clone(), "default");
    let name = format!("{}-{NODE}", product::NAME);
    let (mut answers, mut events) = (Vec::new(), Vec::new());
    let mut client = Client::new((node, HEALTH_PORT).into(), true);
    for id in 1..=TOKENS {
        let deployment = api.get(&name).await?;
        let version = deployment.metadata.resource_version.context("no resourceVersion")?;
        let old = deployment.metadata.labels.context("no labels")?.get(TOKEN_LABEL).cloned().context("no token")?;
        let uid8 = old.split('.').next().unwrap_or_default();
        let write = async |phase| {
            let patch = json!({ "metadata": { "labels": { TOKEN_LABEL: format!("{uid8}.{id}.{phase}.0") } } });
            api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await
        };
        let params = WatchParams::default().fields(&format!("metadata.name={name}"));
        let mut watch = api.watch(&params, &version).await?.boxed();
        let begun = Instant::now();
        let claimed = format!("{uid8}.{id}.Claimed.0");
        let heard = async {
            while let Some(event) = watch.try_next().await? {
                let WatchEvent::Modified(deployment) = event else { continue };
                if deployment.metadata.labels.is_some_and(|labels| labels.get(TOKEN_LABEL) == Some(&claimed)) {
                    return Ok(begun.elapsed());
                }
            }
            anyhow::bail!("the watch ended")
        };
        let answered = async {
            while client.check().await?.starts_with("HTTP/1.1 200 ") {
                ensure!(begun.elapsed() < Duration::from_secs(5), "no 503 within 5 s");
            }
            Ok(begun.elapsed())
        };
        let (written, heard, answered) = tokio::join!(async { write("Claimed").await.map(|_| begun.elapsed()) }, heard, answered);
        // Both may come before the answer to the write.
        let written = written?;
        events.push(heard?.saturating_sub(written));
        answers.push(answered?.saturating_sub(written));
        write("Closed").await?;
        eventually(Duration::from_secs(5), "the node is back", async || {
            let answer = client.check().await?;
            ensure!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            Ok(())
        })
        .await?;
    }
    Ok(Figure {
        what: "token written -> first 503, p99 of 200",
        value: millis(&mut answers, 99),
        unit: "ms",
        goal: Goal::AtMost(50.0),
        yardstick: Some(("token written -> event of a watch", millis(&mut events, 99))),
    })
}

async fn latency(node: Ipv4Addr) -> Result<Figure> {
    Ok(Figure {
        what: "answer under 1,000 requests/s, p99",
        value: paced((node, HEALTH_PORT).into()).await?,
        unit: "ms",
        goal: Goal::AtMost(1.0),
        yardstick: Some(("nginx, `return 200`", paced((node, NGINX_PORT).into()).await?)),
    })
}

/// Ten connections with a request every 10 ms each, for ten seconds.
async fn paced(address: SocketAddr) -> Result<f64> {
    let mut clients = JoinSet::new();
    for _ in 0..10 {
        clients.spawn(async move {
            let mut client = Client::new(address, true);
            let mut ticks = time::interval(Duration::from_millis(10));
            ticks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
            let mut times = Vec::new();
            for _ in 0..1000 {
                ticks.tick().await;
                let asked = Instant::now();
                client.check().await?;
                times.push(asked.elapsed());
            }
            anyhow::Ok(times)
        });
    }
    let mut times: Vec<_> = clients.join_all().await.into_iter().collect::<Result<Vec<_>>>()?.concat();
    Ok(millis(&mut times, 99))
}

async fn throughput(node: Ipv4Addr) -> Result<Figure> {
    let per_second = async |port: u16| {
        let options =
            LoadOptions { connections: 32, at_most: Duration::from_secs(8), url: format!("http://{node}:{port}/"), ..LoadOptions::full() };
        let summary = Load::start(&options)?.finish().await?;
        ensure!(summary.failed() == 0, "{summary:?}");
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        Ok(summary.requests as f64 / summary.seconds)
    };
    Ok(Figure {
        what: "requests/s of its one thread",
        value: per_second(HEALTH_PORT).await?,
        unit: "/s",
        goal: Goal::AtLeast(50_000.0),
        yardstick: Some(("nginx, one worker, `return 200`", per_second(NGINX_PORT).await?)),
    })
}

/// The longest time from the start of a process to its first 200.
async fn starts(bed: &Bed, agent: &Agent, node: Ipv4Addr) -> Result<f64> {
    let mut times = Vec::new();
    for number in 0..STARTS {
        let begun = Instant::now();
        let process = agent.start_another(bed, &format!("start-{number}"))?;
        while !Client::new((node, OWN_PORT).into(), false).check().await.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 ")) {
            ensure!(begun.elapsed() < Duration::from_secs(30), "no answer within 30 s: {}", process.tail());
            time::sleep(Duration::from_millis(1)).await;
        }
        times.push(begun.elapsed());
        process.kill().await?;
    }
    Ok(millis(&mut times, 100) / 1000.0)
}

async fn hand_overs(bed: &Bed, agent: &Agent, node: Ipv4Addr) -> Result<f64> {
    let mut old = agent.start_another(bed, "first")?;
    agent.is_ready(bed, "first").await?;
    let checks = Checks::start(vec![(node, OWN_PORT).into()]);
    for number in 0..HAND_OVERS {
        let name = format!("successor-{number}");
        let new = agent.start_another(bed, &name)?;
        agent.is_ready(bed, &name).await?;
        old.signal(Signal::SIGTERM)?;
        old = new;
    }
    let (asked, wrong) = checks.stop().await;
    bed.say(&format!("{HAND_OVERS} hand-overs: {asked} checks, lost: {wrong:?}"));
    old.kill().await?;
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    Ok(wrong.values().sum::<u64>() as f64)
}

/// nginx on the node, one worker.
async fn start_nginx(bed: &Bed, node: Ipv4Addr) -> Result<Process> {
    let directory = bed.state().join("nginx-yardstick");
    std::fs::create_dir_all(&directory)?;
    let configuration = format!(
        "worker_processes 1; daemon off; pid {0}/pid; error_log stderr;\n\
         events {{ worker_connections 1024; }}\n\
         http {{ access_log off; keepalive_requests 100000000; default_type application/json;\n\
         client_body_temp_path {0}/b; proxy_temp_path {0}/p; fastcgi_temp_path {0}/f; uwsgi_temp_path {0}/u; scgi_temp_path {0}/s;\n\
         server {{ listen {NGINX_PORT}; return 200 '{{\"service\":\"{1}\"}}'; }} }}\n",
        directory.display(),
        "x".repeat(250),
    );
    let path = directory.join("nginx.conf");
    std::fs::write(&path, configuration)?;
    let mut command = on_node();
    command.arg(namespaces::find_program("nginx").context("nginx is not installed")?).arg("-c").arg(&path);
    let process = Process::start("nginx-yardstick", &bed.state().join("logs"), command)?;
    eventually(Duration::from_secs(10), "nginx answers", async || Client::new((node, NGINX_PORT).into(), false).check().await.map(drop))
        .await?;
    Ok(process)
}

fn on_node() -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", network::namespace_file(NODE)));
    command
}

/// The health checker that the `DaemonSet` runs.
struct Agent {
    figures: ProcessFigures,
    arguments: Vec<String>,
}

fn find_agent() -> Result<Agent> {
    for entry in std::fs::read_dir("/proc")? {
        let process = entry?.path();
        let Ok(words) = std::fs::read_to_string(process.join("cmdline")) else { continue };
        let words: Vec<_> = words.split_terminator('\0').map(str::to_owned).collect();
        if let [program, run, arguments @ ..] = words.as_slice()
            && program == "/health-checker"
            && run == "run"
        {
            return Ok(Agent { figures: ProcessFigures::at(process), arguments: arguments.to_vec() });
        }
    }
    anyhow::bail!("no health checker runs")
}

impl Agent {
    /// Another one on the same node, on a port of its own, as admin.
    fn start_another(&self, bed: &Bed, name: &str) -> Result<Process> {
        let mut command = on_node();
        command.arg(images::workspace_binary("health-checker")?).arg("run");
        let replaced = ["--port=", "--ready-socket=", "--termination-log="];
        command.args(self.arguments.iter().filter(|argument| !replaced.iter().any(|prefix| argument.starts_with(prefix))));
        command.arg(format!("--port={OWN_PORT}")).arg(format!("--ready-socket={}", socket(bed, name).display()));
        let key = bed.state().join("hand-over-key");
        std::fs::write(&key, "sixteen bytes, or more")?;
        command.env("HAND_OVER_KEY", key).env("KUBECONFIG", bed.control_plane.admin_kubeconfig()).env("NODE_NAME", NODE);
        Process::start(&format!("health-checker-{name}"), &bed.state().join("logs"), command)
    }

    async fn is_ready(&self, bed: &Bed, name: &str) -> Result<()> {
        let program = images::workspace_binary("health-checker")?;
        eventually(Duration::from_secs(30), &format!("health checker {name} is ready"), async || {
            let socket = format!("--ready-socket={}", socket(bed, name).display());
            crate::host::process::run(&program, ["check", &socket]).await.map(drop)
        })
        .await
    }
}

fn socket(bed: &Bed, name: &str) -> PathBuf {
    bed.state().join(format!("{name}.sock"))
}

/// A percentile, in milliseconds.
fn millis(times: &mut [Duration], percent: usize) -> f64 {
    times.sort();
    let index = (times.len() * percent / 100).min(times.len().saturating_sub(1));
    times.get(index).copied().unwrap_or_default().as_secs_f64() * 1000.0
}
