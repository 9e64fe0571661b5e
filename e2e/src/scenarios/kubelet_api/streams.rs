//! Logs, commands, files and ports of containers.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt as _, stream::FuturesUnordered};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::session::{PATIENCE, POD, Said, Session, Started, code};
use crate::{cluster::workload, eventually::eventually, host::terminal::Terminal};

/// Where `kubectl port-forward` listens.
pub const LOCAL_PORT: u16 = 18080;

pub async fn logs(session: &mut Session<'_>) -> Result<()> {
    session.run(&["logs", "web"]).await?;
    session.run(&["logs", "web", "-c", "main", "--tail=2"]).await?;
    session.run(&["logs", "web", "--tail=1", "--timestamps"]).await?;
    session.run(&["logs", "web", "--since=1h", "--limit-bytes=7"]).await?;
    session.run(&["logs", "web", "--since-time=2999-01-01T00:00:00Z"]).await?;
    session.run(&["logs", "web", "--tail=-5"]).await?;
    follow(session).await?;
    session.pod_is("crash", "was restarted", |status| status["containerStatuses"][0]["restartCount"].as_i64() >= Some(1)).await?;
    session.run(&["logs", "crash", "--previous"]).await?;
    session.run(&["logs", "web", "--previous"]).await?;
    session
        .pod_is("waiting", "waits", |status| status["containerStatuses"][0]["state"]["waiting"]["reason"] == "CreateContainerConfigError")
        .await?;
    session.run(&["logs", "waiting"]).await
}

/// The first line is older than is asked for; the others come while the client listens.
async fn follow(session: &mut Session<'_>) -> Result<()> {
    const SINCE: &str = "--since=20s";
    let touch = async |file: &str| session.quiet(&["exec", "counter", "--", "touch", file], "").await;
    eventually(POD, "the first line is old", async || {
        ensure!(session.quiet(&["logs", "counter", SINCE], "").await?.stdout.is_empty(), "it is not");
        Ok(())
    })
    .await?;
    let words = ["logs", "counter", "-f", "--tail=10", SINCE, "--timestamps"];
    let mut following = session.start(&words)?;
    touch("/data/heard").await?;
    let heard = following.line().await?;
    touch("/data/followed").await?;
    let (rest, code) = following.end().await?;
    session.note(&words, "", &Said { code, stdout: format!("{heard}\n{rest}"), stderr: String::new() });
    Ok(())
}

pub async fn exec(session: &mut Session<'_>) -> Result<()> {
    session.run(&["exec", "web", "--", "sh", "-c", "echo $GREETING; pwd; cat /etc/greeting/text"]).await?;
    session.run_with(&["exec", "-i", "web", "--", "cat"], "one line\nand another\n").await?;
    session.run(&["exec", "web", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]).await?;
    session.run(&["exec", "web", "--", "sh", "-c", "kill -9 $$"]).await?;
    session.run(&["exec", "web", "--", "/no/such/program"]).await?;
    session.run(&["exec", "crash", "-c", "nothing", "--", "true"]).await?;
    let mut terminal = session.terminal(&["exec", "-it", "web", "--", "sh"])?;
    eventually_typed(&mut terminal, "stty size", "40 100").await?;
    terminal.line("tty | cut -c1-8").await?;
    terminal.expect("/dev/pts").await?;
    terminal.resize(120, 50)?;
    eventually_typed(&mut terminal, "stty size", "50 120").await?;
    terminal.line("exit 3").await?;
    let (status, rest) = terminal.end().await?;
    // The shell's last prompt may stand before it.
    let rest = rest.find("command terminated").and_then(|at| rest.get(at..)).unwrap_or_default().trim().to_owned();
    let said = Said { code: code(status), stdout: "40 100\n/dev/pts\n50 120\n".into(), stderr: rest };
    session.note(&["exec", "-it", "web", "--", "sh"], "stty size; tty\nstty size\nexit 3\n", &said);
    Ok(())
}

/// Types a line until the answer is there: nobody tells when a change has arrived.
async fn eventually_typed(terminal: &mut Terminal, line: &str, answer: &str) -> Result<()> {
    for _ in 0..120 {
        terminal.line(&format!("{line}; echo s''een")).await?;
        if timeout(Duration::from_millis(500), terminal.expect(answer)).await.is_ok_and(|found| found.is_ok()) {
            return Ok(());
        }
    }
    bail!("{line:?} never answered {answer:?}")
}

pub async fn attach(session: &mut Session<'_>) -> Result<()> {
    session.run_with(&["attach", "-i", "reader"], "hello\nworld\n").await?;
    session.pod_is("reader", "has ended", |status| status["phase"] == "Succeeded").await?;
    session.run(&["logs", "reader"]).await?;
    session.run(&["attach", "reader"]).await
}

pub async fn run(session: &mut Session<'_>) -> Result<()> {
    let words = ["run", "shell", "--rm", "-it", "--restart=Never", "--image=busybox:1.36", "--grace-period=1", "--command", "--"];
    let words: Vec<&str> = words
        .into_iter()
        .chain(["/bin/sh", "-c", r#"until stty size | grep -x "40 100"; do sleep 0.1; done; read x; echo got $x; exit 4"#])
        .collect();
    let mut terminal = session.terminal(&words)?;
    terminal.expect("If you don't see a command prompt").await?;
    // The size goes a way of its own, beside what is typed.
    terminal.expect("40 100").await?;
    terminal.line("yes").await?;
    terminal.expect("got yes").await?;
    let (status, rest) = terminal.end().await?;
    let rest = rest.lines().map(str::trim).filter(|line| line.contains("shell")).collect::<Vec<_>>().join("\n");
    session.note(&words, "yes\n", &Said { code: code(status), stdout: "40 100\ngot yes\n".into(), stderr: rest });
    session.run(&["get", "pod", "shell"]).await
}

pub async fn copy(session: &mut Session<'_>) -> Result<()> {
    let directory = session.bed.state().join("copy");
    std::fs::create_dir_all(&directory)?;
    let text: String = (0..400_000).flat_map(|line| ["line ".to_owned(), line.to_string(), "\n".to_owned()]).collect();
    let (there, back) = (directory.join("there"), directory.join("back"));
    std::fs::write(&there, &text)?;
    let name = |path: &Path| path.to_string_lossy().into_owned();
    session.run(&["cp", &name(&there), "web:/data/there"]).await?;
    session.run(&["cp", "web:/data/there", &name(&back)]).await?;
    ensure!(std::fs::read_to_string(&back)? == text, "what came back is not what was sent");
    session.run(&["exec", "web", "--", "sh", "-c", "wc -c < /data/there"]).await?;
    // The other way round kubectl may end before it hears how tar did.
    session.run(&["cp", &name(&directory.join("none")), "web:/data/none"]).await
}

/// Starts `kubectl port-forward` and waits until it listens, as its first line says.
pub async fn start_forward(session: &Session<'_>, target: &str, port: u16) -> Result<(Started, String)> {
    let ports = format!("{port}:{}", workload::PORT);
    let mut forward = session.start(&["port-forward", target, &ports, "--address=127.0.0.1"])?;
    let first_line = forward.line().await?;
    Ok((forward, first_line))
}

pub async fn fetch(mut stream: TcpStream) -> Result<String> {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

pub async fn port_forward(session: &mut Session<'_>) -> Result<()> {
    let (forward, first_line) = start_forward(session, "pod/nginx", LOCAL_PORT).await?;
    // All are open before the first asks.
    let mut streams = Vec::new();
    for _ in 0..100 {
        streams.push(TcpStream::connect(("127.0.0.1", LOCAL_PORT)).await?);
    }
    let mut asked: FuturesUnordered<_> = streams
        .into_iter()
        .map(async |stream| -> Result<bool> {
            let answer = fetch(stream).await?;
            Ok(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("ok\n"))
        })
        .collect();
    let mut served = 0;
    while let Some(answer) = timeout(PATIENCE, asked.next()).await.context("port-forward hangs")? {
        served += u32::from(answer?);
    }
    kill(Pid::from_raw(i32::try_from(forward.child.id().context("port-forward has ended")?)?), Signal::SIGINT)?;
    let (handled, code) = forward.end().await?;
    let handled = handled.lines().filter(|line| line.starts_with("Handling connection")).count();
    let said = Said { code, stdout: format!("{first_line}\n({handled} lines about connections)\n"), stderr: String::new() };
    session.note(&["port-forward", "pod/nginx", &format!("{LOCAL_PORT}:{}", workload::PORT)], "", &said);
    session.remark(&format!("{served} of 100 connections at once were served"));
    session.run(&["port-forward", "pod/waiting", "18081:80"]).await
}
