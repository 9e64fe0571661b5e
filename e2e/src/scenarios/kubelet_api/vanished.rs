//! Clients that vanish in the middle.

use std::{process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, process::Child};

use super::{
    pods::pods,
    session::{POD, Session, Started},
    streams::{LOCAL_PORT, fetch, start_forward},
};
use crate::{bed::Bed, eventually::eventually};

/// Files, sockets and the like that a process has open.
fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// How many processes have these words.
fn processes(words: &str) -> usize {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).replace('\0', " ").trim() == words).count()
}

pub async fn clients_that_vanish_leave_no_task_descriptor_or_process(bed: &mut Bed) -> Result<()> {
    const STUCK: &str = "sleep 314159";
    bed.apply(&pods()).await?;
    let session = Session { bed, text: String::new(), spdy: false };
    // All of them: each pod that started later would keep descriptors that are not those of clients.
    for name in ["web", "counter", "reader", "stubborn", "nginx"] {
        session.ready(name).await?;
    }
    let agent = bed.nodes().get("n1").context("no node n1")?.agent_pid()?;
    // What the first request makes is kept: connections to the API server that ask whether it may.
    session.quiet(&["exec", "web", "--", "true"], "").await?;
    session.quiet(&["logs", "web"], "").await?;
    let before = descriptors(agent);
    let mut clients: Vec<Child> = Vec::new();
    for words in [
        &["exec", "web", "--", "sleep", "314159"][..],
        &["exec", "-i", "web", "--", "sleep", "314159"],
        &["logs", "-f", "web"],
        &["attach", "web"],
    ] {
        for _ in 0..5 {
            let mut command = bed.control_plane.kubectl_command();
            command.args(words).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = command.spawn()?;
            // Input that nobody reads.
            if let Some(mut stdin) = child.stdin.take() {
                tokio::spawn(async move {
                    let _ = stdin.write_all(&vec![b'x'; 1 << 20]).await;
                    std::future::pending::<()>().await;
                });
            }
            clients.push(child);
        }
    }
    for port in [LOCAL_PORT, LOCAL_PORT + 1] {
        let (forward, _) = start_forward(&session, "pod/nginx", port).await?;
        let Started { child, mut lines } = forward;
        clients.push(child);
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        fetch(TcpStream::connect(("127.0.0.1", port)).await?).await?;
    }
    eventually(POD, "ten commands run, and logs are followed", async || {
        ensure!(processes(STUCK) == 10, "{} commands run", processes(STUCK));
        ensure!(descriptors(agent) >= before + 20, "the agent has {} descriptors, {before} before", descriptors(agent));
        Ok(())
    })
    .await?;
    bed.say(&format!("{before} descriptors before, {} with clients", descriptors(agent)));
    for client in &clients {
        let pid = client.id().context("a client has ended by itself")?;
        kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL)?;
    }
    eventually(Duration::from_mins(4), "nothing is left of them", async || {
        ensure!(processes(STUCK) == 0, "{} commands still run", processes(STUCK));
        ensure!(descriptors(agent) <= before + 2, "the agent has {} descriptors, {before} before", descriptors(agent));
        Ok(())
    })
    .await?;
    bed.say(&format!("{} descriptors afterwards", descriptors(agent)));
    ensure!(session.quiet(&["exec", "web", "--", "echo", "alive"], "").await?.stdout == "alive\n", "the node does not serve any more");
    Ok(())
}
