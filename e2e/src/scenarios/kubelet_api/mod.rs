//! What `kubectl` asks of a node's own API, through the real API server: its words and exit codes are compared with a kept
//! transcript, `e2e/fixtures/kubectl-transcript.txt`.
//! What a node writes to the API server is in `node_library/`.

mod node;
mod pods;
mod session;
mod streams;
mod vanished;

use anyhow::{Result, ensure};
use serde_json::json;

use crate::{
    auditor::Expectations,
    bed::{Bed, Options, node::NodeSpec},
    eventually::eventually,
    scenario::Scenario,
};
use pods::{pod, pods};
use session::{POD, Session, compare};

/// Every command of the list, on one node; another one requests its serving certificate.
pub const KUBECTL: Scenario = Scenario {
    name: "kubectl_speaks_to_a_virtual_node_as_to_any_other",
    options: two_nodes,
    expected: Expectations::default,
    body: |bed| Box::pin(kubectl_speaks_to_a_virtual_node_as_to_any_other(bed)),
};

fn two_nodes() -> Options {
    Options { nodes: ["n1", "n2"].map(NodeSpec::new).into(), ..Options::default() }
}

/// Clients of exec and of followed logs vanish in the middle, also where the process is stuck.
pub const VANISHED: Scenario = Scenario {
    name: "clients_that_vanish_leave_no_task_descriptor_or_process",
    options: two_nodes,
    expected: Expectations::default,
    body: |bed| Box::pin(vanished::clients_that_vanish_leave_no_task_descriptor_or_process(bed)),
};

async fn kubectl_speaks_to_a_virtual_node_as_to_any_other(bed: &mut Bed) -> Result<()> {
    bed.apply(&pods()).await?;
    let mut session = Session { bed, text: String::new(), spdy: false };
    let outcome = everything(&mut session).await;
    let text = session.text;
    if outcome.is_err() {
        println!("{text}");
    }
    outcome?;
    compare(&text)?;
    certificate(bed).await
}

async fn everything(session: &mut Session<'_>) -> Result<()> {
    let bed = session.bed;
    for name in ["web", "counter", "reader", "stubborn", "nginx", "elsewhere"] {
        session.ready(name).await?;
    }
    bed.say("logs");
    streams::logs(session).await?;
    bed.say("exec");
    streams::exec(session).await?;
    bed.say("attach and run");
    streams::attach(session).await?;
    streams::run(session).await?;
    bed.say("cp");
    streams::copy(session).await?;
    bed.say("port-forward");
    streams::port_forward(session).await?;
    node::transports(session).await?;
    bed.say("the same over SPDY alone");
    session.remark("from here on over SPDY alone");
    session.spdy = true;
    streams::exec(session).await?;
    streams::copy(session).await?;
    streams::port_forward(session).await?;
    session.spdy = false;
    session.remark("from here on over WebSockets again");
    bed.say("figures");
    node::figures(session).await?;
    node::strangers(session).await?;
    bed.say("delete and drain");
    node::delete(session).await?;
    node::drain(session).await
}

/// A node that is given no certificate requests one, says so, and serves once it is approved.
async fn certificate(bed: &mut Bed) -> Result<()> {
    bed.add_node(NodeSpec::new("n3").requests_certificate()).await?;
    bed.apply(&[pod("other", "echo here I am; exec sleep 100000", &json!({ "nodeName": "n3" }))]).await?;
    let session = Session { bed, text: String::new(), spdy: false };
    session.ready("other").await?;
    eventually(POD, "the agent says that its certificate waits to be approved", async || {
        let agent = std::fs::read_to_string(bed.state().join("logs/node-n3.log"))?;
        ensure!(agent.contains("waits for approval"), "it does not");
        Ok(())
    })
    .await?;
    eventually(POD, "node n3 has no certificate to serve with", async || {
        let said = session.quiet(&["logs", "other"], "").await?;
        ensure!(said.code == 1 && said.stderr.contains("tls"), "logs without a certificate: {} {} {}", said.code, said.stdout, said.stderr);
        Ok(())
    })
    .await?;
    let requests = session.quiet(&["get", "csr", "-o", "name"], "").await?.stdout;
    for request in requests.lines() {
        bed.kubectl(&["certificate", "approve", request]).await?;
    }
    eventually(POD, "node n3 serves with the certificate that was approved", async || {
        let said = session.quiet(&["logs", "other"], "").await?;
        ensure!(said.code == 0 && said.stdout == "here I am\n", "{} {}", said.stdout, said.stderr);
        Ok(())
    })
    .await
}
