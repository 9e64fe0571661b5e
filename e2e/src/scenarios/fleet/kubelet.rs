//! `kubectl logs` and `exec` of simulated pods, through the real API server, and two processes that claim one fleet.

use std::{net::IpAddr, path::PathBuf, process::Stdio, time::Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::process::Command;

use super::session::{MINUTE, delete, make, nodes, runs};
use crate::{
    bed::{Bed, control_plane},
    eventually::eventually,
    host::{certificates::Identity, images, network, process::Process},
};

/// Ports of the kubelet API of either process.
const PORTS: [u16; 2] = [10250, 10251];

/// With what a fleet is started.
struct Files {
    kubeconfig: PathBuf,
    serving: Identity,
}

impl Files {
    /// With the rights of `deploy/virtual-kubelet/fleet.yaml`, and a certificate that the API server trusts.
    async fn write(bed: &Bed) -> Result<Self> {
        bed.apply_path("deploy/virtual-kubelet/fleet.yaml").await.context("the rights of a fleet")?;
        let token = bed.kubectl(&["create", "token", "fleet", "--namespace", "virtual-kubelet"]).await?;
        let mut kubeconfig = bed.control_plane.admin_kubeconfig_for(&control_plane::server())?;
        kubeconfig["users"][0]["user"] = json!({ "token": token.trim() });
        let path = bed.state().join("fleet.kubeconfig");
        std::fs::write(&path, kubeconfig.to_string()).context("writing a kubeconfig")?;
        let serving = bed.control_plane.node_serving("fleet", IpAddr::V4(network::BED))?;
        Ok(Self { kubeconfig: path, serving })
    }

    fn start(&self, bed: &Bed, port: u16) -> Result<Process> {
        let mut command = Command::new(images::workspace_binary("virtual-kubelet")?);
        command.args(["fleet", "--simulate", "3", "--name-prefix", "told-", "--kubelet-address", &network::BED.to_string()]);
        command.args(["--kubelet-port", &port.to_string(), "--kubeconfig"]).arg(&self.kubeconfig);
        command.arg("--client-ca-file").arg(bed.control_plane.authority());
        command.arg("--tls-cert-file").arg(&self.serving.certificate).arg("--tls-private-key-file").arg(&self.serving.key);
        Process::start(&format!("fleet-{port}"), &bed.state().join("logs"), command)
    }
}

struct Said {
    worked: bool,
    stdout: String,
    stderr: String,
}

async fn kubectl(bed: &Bed, words: &[&str]) -> Result<Said> {
    let mut command = bed.control_plane.kubectl_command();
    command.args(words).stdin(Stdio::null());
    let output = tokio::time::timeout(MINUTE, command.output()).await.with_context(|| format!("kubectl {words:?} does not end"))??;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(Said { worked: output.status.success(), stdout: text(output.stdout), stderr: text(output.stderr) })
}

async fn fails_with(bed: &Bed, words: &[&str], why: &str) -> Result<()> {
    let said = kubectl(bed, words).await?;
    ensure!(
        !said.worked && said.stderr.contains(why),
        "kubectl {words:?}, which should fail with `{why}`: {} {}",
        said.stdout,
        said.stderr
    );
    Ok(())
}

/// What the stages of a pod of which nothing is asked leave in its log.
const BEGINS: &str = "pulling image main:1\nthe image is present\nstarted, run 1\nready\n";

async fn logs_and_commands(bed: &Bed) -> Result<()> {
    let said = kubectl(bed, &["logs", "silent", "-c", "main"]).await?;
    ensure!(said.worked && said.stdout == BEGINS, "{} {}", said.stdout, said.stderr);
    let said = kubectl(bed, &["logs", "silent", "-c", "other", "--tail=1", "--timestamps"]).await?;
    ensure!(said.stdout.ends_with("Z ready\n") && said.stdout.lines().count() == 1, "{} {}", said.stdout, said.stderr);
    fails_with(bed, &["logs", "silent", "-c", "main", "--previous"], "previous terminated container \"main\"").await?;
    fails_with(bed, &["exec", "silent", "-c", "main", "--", "ls"], "sim.virtual-kubelet.io/exec=TEXT").await?;
    fails_with(bed, &["attach", "silent", "-c", "main"], "kubectl logs --follow").await?;
    let said = kubectl(bed, &["exec", "answers", "-c", "main", "--", "ls"]).await?;
    ensure!(said.worked && said.stdout == "hello", "exec: {} {}", said.stdout, said.stderr);
    bed.say("logs tell the stages of simulated pods, and commands are answered by their annotation or refused with words");
    Ok(())
}

/// A log that is followed ends with its pod.
async fn followed(bed: &Bed) -> Result<()> {
    let follow = kubectl(bed, &["logs", "answers", "-c", "main", "--follow"]);
    let end = async {
        eventually(MINUTE, "the API server asks the fleet for the log", async || {
            let metrics = bed.kubectl(&["get", "--raw", "/metrics"]).await?;
            let under_way = metrics.lines().any(|line| line.starts_with("apiserver_longrunning_requests{") && line.contains("\"log\""));
            ensure!(under_way, "it does not");
            Ok(())
        })
        .await?;
        delete(bed, "answers", None).await
    };
    let (said, ended) = tokio::join!(follow, end);
    ended?;
    let said = said?;
    let log = format!("{BEGINS}stopping\nended with code 0\n");
    ensure!(said.worked && said.stdout == log, "{} {}", said.stdout, said.stderr);
    bed.say("a log that is followed ends when its pod does");
    Ok(())
}

/// Who asks the fleet itself, past the API server.
async fn strangers(bed: &Bed) -> Result<()> {
    let (server, authority) = (format!("--server=https://{}:{}", network::BED, PORTS[0]), bed.control_plane.authority());
    let authority = format!("--certificate-authority={}", authority.display());
    let token = bed.kubectl(&["create", "token", "default"]).await?;
    for (token, why) in [("unknown", "You must be logged in to the server"), (token.trim(), "Forbidden")] {
        let token = format!("--token={token}");
        let path = "/containerLogs/default/silent/main";
        fails_with(bed, &["--kubeconfig=/dev/null", &server, &authority, &token, "get", "--raw", path], why).await?;
    }
    bed.say("the fleet answers the API server and no stranger");
    Ok(())
}

async fn port_of(bed: &Bed, node: &str) -> Result<Option<i32>> {
    let status = nodes(bed).get(node).await?.status.context("no status")?;
    Ok(status.daemon_endpoints.and_then(|endpoints| endpoints.kubelet_endpoint).map(|endpoint| endpoint.port))
}

async fn holder(bed: &Bed) -> Result<String> {
    let lease = Api::<Lease>::namespaced(bed.client.clone(), "kube-node-lease").get("told-fleet").await?;
    lease.spec.and_then(|spec| spec.holder_identity).context("nobody has the fleet's lease")
}

pub async fn run(bed: &Bed) -> Result<()> {
    let files = Files::write(bed).await?;
    let mut first = files.start(bed, PORTS[0])?;
    eventually(MINUTE * 2, "the fleet has registered", async || {
        ensure!(first.tail().contains("all 3 nodes are registered"), "it has not: {}", first.tail());
        Ok(())
    })
    .await?;
    make(bed, "silent", "told-0", &[]).await?;
    make(bed, "answers", "told-2", &[("exec", "hello")]).await?;
    for name in ["silent", "answers"] {
        runs(bed, name).await?;
    }
    logs_and_commands(bed).await?;
    followed(bed).await?;
    strangers(bed).await?;
    // A second process with nodes of the same names.
    let acting = holder(bed).await?;
    let mut second = files.start(bed, PORTS[1])?;
    eventually(MINUTE, "the second process waits", async || {
        ensure!(second.tail().contains("waiting until it ends"), "it does not: {}", second.tail());
        Ok(())
    })
    .await?;
    for index in 0..3 {
        ensure!(port_of(bed, &format!("told-{index}")).await? == Some(PORTS[0].into()), "the process that waits has written Nodes");
    }
    ensure!(holder(bed).await? == acting, "the process that waits has taken the lease");
    first.check()?;
    let died = Instant::now();
    first.signal(Signal::SIGKILL)?;
    eventually(MINUTE * 2, "the second process answers for the pods of the first", async || {
        let said = kubectl(bed, &["logs", "silent", "-c", "main"]).await?;
        ensure!(said.worked && said.stdout == "started, run 1\n", "{} {}", said.stdout, said.stderr);
        ensure!(port_of(bed, "told-0").await? == Some(PORTS[1].into()), "the Node tells another port");
        Ok(())
    })
    .await?;
    ensure!(holder(bed).await? != acting, "the lease is that of the process that was killed");
    bed.say(&format!(
        "the process that waited acts {:.0} s after the other was killed, and answers for its pods",
        died.elapsed().as_secs_f64()
    ));
    second.check()?;
    second.signal(Signal::SIGTERM)?;
    eventually(MINUTE, "the second process ends", async || {
        ensure!(second.tail().contains("stay in the API"), "it does not: {}", second.tail());
        Ok(())
    })
    .await
}
