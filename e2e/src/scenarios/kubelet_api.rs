//! What `kubectl` asks of a node's own API, through the real API server: its words and exit codes are compared with a kept
//! transcript.

use std::{collections::BTreeSet, os::unix::process::ExitStatusExt as _, path::Path, process::Stdio, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt as _, stream::FuturesUnordered};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    process::Child,
    time::timeout,
};

use crate::{
    auditor::Expectations,
    bed::{Bed, Options},
    eventually::eventually,
    images,
    node::NodeSpec,
    scenario::Scenario,
    scenarios::workload,
    terminal::Terminal,
};

/// Every command of the list, on one node; another one requests its serving certificate.
pub const KUBECTL: Scenario = Scenario {
    name: "kubectl_speaks_to_a_virtual_node_as_to_any_other",
    options: || Options { nodes: vec![NodeSpec::new("n1")], ..Options::default() },
    expected: || Expectations { unjudged: true, ..Expectations::default() },
    body: |bed| Box::pin(kubectl_speaks_to_a_virtual_node_as_to_any_other(bed)),
};

/// Clients that vanish in the middle.
pub const VANISHED: Scenario = Scenario {
    name: "clients_that_vanish_leave_no_task_descriptor_or_process_of_a_stuck_exec_or_follow",
    options: || Options { nodes: vec![NodeSpec::new("n1")], ..Options::default() },
    expected: || Expectations { unjudged: true, ..Expectations::default() },
    body: |bed| Box::pin(clients_that_vanish_leave_no_task_descriptor_or_process(bed)),
};

/// The kept transcript.
const TRANSCRIPT: &str = "e2e/fixtures/kubectl-transcript.txt";
/// Where the transcript is written anew instead of compared, if set.
const GENERATE: &str = "GENERATE";
/// How long a command may take.
const PATIENCE: Duration = Duration::from_mins(1);
/// How long a pod may take to get into a state.
const POD: Duration = Duration::from_secs(40);
/// Where `kubectl port-forward` listens.
const LOCAL_PORT: u16 = 18080;

/// Commands and what came of them.
struct Session<'a> {
    bed: &'a Bed,
    text: String,
    /// `kubectl` speaks SPDY alone, as older versions do.
    spdy: bool,
}

/// Makes `kubectl` speak SPDY alone.
const SPDY: [(&str, &str); 2] = [("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false"), ("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false")];

/// What a command said.
struct Said {
    code: i32,
    stdout: String,
    stderr: String,
}

fn code(status: std::process::ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

impl Session<'_> {
    /// Runs `kubectl` with these words and this input.
    async fn quiet(&self, words: &[&str], input: &str) -> Result<Said> {
        let mut command = self.bed.control_plane.kubectl_command();
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.envs(SPDY.into_iter().filter(|_| self.spdy));
        let mut child = command.spawn()?;
        let mut stdin = child.stdin.take().context("no standard input")?;
        let feed = async {
            // A command that does not read its input is fine.
            let _ = stdin.write_all(input.as_bytes()).await;
            drop(stdin);
        };
        let run = async { tokio::join!(feed, child.wait_with_output()).1 };
        let output = timeout(PATIENCE, run).await.map_err(|_| anyhow::anyhow!("kubectl {words:?} does not end"))??;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Said { code: code(output.status), stdout: text(output.stdout), stderr: text(output.stderr) })
    }

    /// The same, into the transcript.
    async fn run(&mut self, words: &[&str]) -> Result<()> {
        self.run_with(words, "").await
    }

    async fn run_with(&mut self, words: &[&str], input: &str) -> Result<()> {
        let said = self.quiet(words, input).await?;
        self.note(words, input, &said);
        Ok(())
    }

    fn note(&mut self, words: &[&str], input: &str, said: &Said) {
        let quoted = |word: &&str| if word.contains([' ', ';', '$', '|']) { format!("'{word}'") } else { (*word).to_owned() };
        self.lines("$ kubectl ", &words.iter().map(quoted).collect::<Vec<_>>().join(" "));
        self.lines("< ", input);
        self.lines("> ", &said.stdout);
        self.lines("! ", &said.stderr);
        self.lines("", &format!("[{}]\n\n", said.code));
    }

    fn remark(&mut self, text: &str) {
        self.lines("# ", text);
        self.text.push('\n');
    }

    fn lines(&mut self, sign: &str, text: &str) {
        for line in text.lines() {
            let line = [sign, &normal(line.trim_end())].concat();
            self.text.push_str(line.trim_end());
            self.text.push('\n');
        }
    }

    /// Starts a command on a terminal of 100 columns and 40 rows.
    fn terminal(&self, words: &[&str]) -> Result<Terminal> {
        let mut command = self.bed.control_plane.kubectl_command();
        command.args(words).envs(SPDY.into_iter().filter(|_| self.spdy));
        Terminal::start(command, 100, 40)
    }

    async fn pod_is(&self, name: &str, what: &str, fact: impl Fn(&Value) -> bool) -> Result<()> {
        eventually(POD, &format!("pod {name} {what}"), async || {
            let pod: Value = serde_json::from_str(&self.bed.kubectl(&["get", "pod", name, "-o", "json"]).await?)?;
            ensure!(fact(&pod["status"]), "its status is {}", pod["status"]);
            Ok(())
        })
        .await
    }

    async fn ready(&self, name: &str) -> Result<()> {
        self.pod_is(name, "is ready", |status| {
            let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
            conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
        })
        .await
    }
}

/// Replaces what differs from run to run.
fn normal(line: &str) -> String {
    let words = line.split(' ').map(|word| {
        let bare = word.trim_matches(|sign: char| !sign.is_alphanumeric());
        let is_time = bare.len() > 19 && bare.parse::<jiff::Timestamp>().is_ok();
        if is_time { word.replace(bare, "<time>") } else { word.to_owned() }
    });
    words.collect::<Vec<_>>().join(" ")
}

fn pod(name: &str, script: &str, more: &Value) -> Value {
    let mut container = json!({ "name": "main", "image": "busybox:1.36", "command": ["/bin/sh", "-c", script] });
    let mut spec =
        json!({ "nodeName": "n1", "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false, "restartPolicy": "Never" });
    for (key, value) in more.as_object().into_iter().flatten() {
        let of_pod = matches!(key.as_str(), "volumes" | "restartPolicy" | "terminationGracePeriodSeconds" | "nodeName" | "containers");
        (if of_pod { &mut spec } else { &mut container })[key] = value.clone();
    }
    spec["containers"] = json!([container]);
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "default" }, "spec": spec })
}

fn pods() -> Vec<Value> {
    let web = "for n in one two three; do echo $n; done; sleep 0.3; echo oops >&2; sleep 0.3; echo five; touch /data/up; exec sleep 100000";
    let more = json!({
        "env": [{ "name": "GREETING", "value": "hello" }],
        "workingDir": "/usr",
        "readinessProbe": { "exec": { "command": ["test", "-e", "/data/up"] }, "periodSeconds": 1 },
        "volumeMounts": [{ "name": "data", "mountPath": "/data" }, { "name": "greeting", "mountPath": "/etc/greeting" }],
        "volumes": [{ "name": "data", "emptyDir": {} }, { "name": "greeting", "configMap": { "name": "greeting" } }],
    });
    vec![
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "greeting", "namespace": "default" },
            "data": { "text": "from a file\n" },
        }),
        pod("web", web, &more),
        pod(
            "counter",
            "while [ ! -e /data/go ]; do sleep 0.1; done; for n in 1 2 3; do echo $n; sleep 0.2; done",
            &json!({
                "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
                "volumes": [{ "name": "data", "emptyDir": {} }],
            }),
        ),
        pod("crash", "echo before the crash; exit 3", &json!({ "restartPolicy": "Always" })),
        pod("waiting", "true", &json!({ "envFrom": [{ "configMapRef": { "name": "missing" } }] })),
        pod("reader", "read line; echo got $line; read line; echo and $line", &json!({ "stdin": true, "stdinOnce": true })),
        pod("stubborn", "trap '' TERM; while true; do sleep 0.1; done", &json!({ "terminationGracePeriodSeconds": 600 })),
        workload::config_map("default"),
        {
            let mut spec = workload::pod_spec();
            spec["nodeName"] = "n1".into();
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "nginx", "namespace": "default" }, "spec": spec })
        },
    ]
}

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
    for name in ["web", "counter", "reader", "stubborn", "nginx"] {
        session.ready(name).await?;
    }
    bed.say("logs");
    logs(session).await?;
    bed.say("exec");
    exec(session).await?;
    bed.say("attach and run");
    attach(session).await?;
    run(session).await?;
    bed.say("cp");
    copy(session).await?;
    bed.say("port-forward");
    port_forward(session).await?;
    transports(session).await?;
    bed.say("the same over SPDY alone");
    session.remark("from here on over SPDY alone");
    session.spdy = true;
    exec(session).await?;
    copy(session).await?;
    port_forward(session).await?;
    session.spdy = false;
    session.remark("from here on over WebSockets again");
    bed.say("figures");
    figures(session).await?;
    strangers(session).await?;
    bed.say("delete and drain");
    delete(session).await?;
    drain(session).await
}

async fn logs(session: &mut Session<'_>) -> Result<()> {
    session.run(&["logs", "web"]).await?;
    session.run(&["logs", "web", "-c", "main", "--tail=2"]).await?;
    session.run(&["logs", "web", "--tail=1", "--timestamps"]).await?;
    session.run(&["logs", "web", "--since=1h", "--limit-bytes=7"]).await?;
    session.run(&["logs", "web", "--since-time=2999-01-01T00:00:00Z"]).await?;
    session.run(&["logs", "web", "--tail=-5"]).await?;
    let words = ["logs", "counter", "-f", "--tail=10"];
    let (said, _) = tokio::try_join!(session.quiet(&words, ""), session.quiet(&["exec", "counter", "--", "touch", "/data/go"], ""))?;
    session.note(&words, "", &said);
    session.pod_is("crash", "was restarted", |status| status["containerStatuses"][0]["restartCount"].as_i64() >= Some(1)).await?;
    session.run(&["logs", "crash", "--previous"]).await?;
    session.run(&["logs", "web", "--previous"]).await?;
    session
        .pod_is("waiting", "waits", |status| status["containerStatuses"][0]["state"]["waiting"]["reason"] == "CreateContainerConfigError")
        .await?;
    session.run(&["logs", "waiting"]).await
}

async fn exec(session: &mut Session<'_>) -> Result<()> {
    session.run(&["exec", "web", "--", "sh", "-c", "echo $GREETING; pwd; cat /etc/greeting/text"]).await?;
    session.run_with(&["exec", "-i", "web", "--", "cat"], "one line\nand another\n").await?;
    session.run(&["exec", "web", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]).await?;
    session.run(&["exec", "web", "--", "sh", "-c", "kill -9 $$"]).await?;
    session.run(&["exec", "web", "--", "/no/such/program"]).await?;
    session.run(&["exec", "crash", "-c", "nothing", "--", "true"]).await?;
    let mut terminal = session.terminal(&["exec", "-it", "web", "--", "sh"])?;
    terminal.line("stty size; tty | cut -c1-8").await?;
    terminal.expect("40 100").await?;
    terminal.expect("/dev/pts").await?;
    terminal.resize(120, 50)?;
    eventually_typed(&mut terminal, "stty size", "50 120").await?;
    terminal.line("exit 3").await?;
    let (status, rest) = terminal.end().await?;
    let rest = rest.lines().filter(|line| line.contains("terminated")).map(str::trim).collect::<Vec<_>>().join("\n");
    let said = Said { code: code(status), stdout: "40 100\n/dev/pts\n50 120\n".into(), stderr: rest };
    session.note(&["exec", "-it", "web", "--", "sh"], "stty size; tty\nstty size\nexit 3\n", &said);
    Ok(())
}

/// Types a line until the answer is there: nobody tells when a change has arrived.
async fn eventually_typed(terminal: &mut Terminal, line: &str, answer: &str) -> Result<()> {
    for _ in 0..20 {
        terminal.line(&format!("{line}; echo s''een")).await?;
        if timeout(Duration::from_millis(500), terminal.expect(answer)).await.is_ok_and(|found| found.is_ok()) {
            return Ok(());
        }
    }
    bail!("{line:?} never answered {answer:?}")
}

async fn attach(session: &mut Session<'_>) -> Result<()> {
    session.run_with(&["attach", "-i", "reader"], "hello\nworld\n").await?;
    session.pod_is("reader", "has ended", |status| status["phase"] == "Succeeded").await?;
    session.run(&["logs", "reader"]).await?;
    session.run(&["attach", "reader"]).await
}

async fn run(session: &mut Session<'_>) -> Result<()> {
    let words = ["run", "shell", "--rm", "-it", "--restart=Never", "--image=busybox:1.36", "--grace-period=1", "--command", "--"];
    let words: Vec<&str> = words.into_iter().chain(["/bin/sh", "-c", "read x; stty size; echo got $x; exit 4"]).collect();
    let mut terminal = session.terminal(&words)?;
    terminal.expect("If you don't see a command prompt").await?;
    terminal.line("yes").await?;
    terminal.expect("40 100").await?;
    terminal.expect("got yes").await?;
    let (status, rest) = terminal.end().await?;
    let rest = rest.lines().map(str::trim).filter(|line| line.contains("shell")).collect::<Vec<_>>().join("\n");
    session.note(&words, "yes\n", &Said { code: code(status), stdout: "40 100\ngot yes\n".into(), stderr: rest });
    session.run(&["get", "pod", "shell"]).await
}

async fn copy(session: &mut Session<'_>) -> Result<()> {
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
    // kubectl does not wait for the words of a tar that failed.
    let words = ["cp", "web:/data/none", &name(&back)];
    let said = session.quiet(&words, "").await?;
    session.note(&words, "", &Said { stdout: String::new(), stderr: String::new(), ..said });
    Ok(())
}

struct Forward {
    child: Child,
    first_line: String,
}

async fn start_forward(session: &Session<'_>, target: &str, port: u16) -> Result<Forward> {
    let mut command = session.bed.control_plane.kubectl_command();
    command.envs(SPDY.into_iter().filter(|_| session.spdy));
    let ports = format!("{port}:{}", workload::PORT);
    command.args(["port-forward", target, &ports, "--address=127.0.0.1"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
    let first_line = timeout(PATIENCE, lines.next_line()).await??.context("kubectl port-forward ended")?;
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    Ok(Forward { child, first_line })
}

async fn fetch(mut stream: TcpStream) -> Result<String> {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

async fn port_forward(session: &mut Session<'_>) -> Result<()> {
    let mut forward = start_forward(session, "pod/nginx", LOCAL_PORT).await?;
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
    forward.child.kill().await?;
    let said = Said { code: 137, stdout: format!("{}\n", forward.first_line), stderr: String::new() };
    session.note(&["port-forward", "pod/nginx", &format!("{LOCAL_PORT}:{}", workload::PORT)], "", &said);
    session.remark(&format!("{served} of 100 connections at once were served"));
    session.run(&["port-forward", "pod/waiting", "18081:80"]).await
}

async fn figures(session: &mut Session<'_>) -> Result<()> {
    let words = ["get", "--raw", "/api/v1/nodes/n1/proxy/stats/summary"];
    let said = session.quiet(&words, "").await?;
    let summary: Value = serde_json::from_str(&said.stdout).context("reading the summary")?;
    let empty = Vec::new();
    let pods = summary["pods"].as_array().unwrap_or(&empty);
    let mut lines: Vec<String> = vec![format!("node {}", summary["node"]["nodeName"].as_str().unwrap_or_default())];
    let mut names: Vec<String> = pods
        .iter()
        .filter(|pod| pod["containers"].as_array().is_some_and(|containers| !containers.is_empty()))
        .filter(|pod| pod["podRef"]["name"] != "crash")
        .map(|pod| {
            let measured = pod["containers"][0]["memory"]["workingSetBytes"].as_u64() > Some(0);
            format!(
                "pod {} with {} container, memory measured: {measured}",
                pod["podRef"]["name"],
                pod["containers"].as_array().map_or(0, Vec::len)
            )
        })
        .collect();
    names.sort();
    lines.extend(names);
    session.note(&words, "", &Said { code: said.code, stdout: lines.join("\n"), stderr: said.stderr });
    let words = ["get", "--raw", "/api/v1/nodes/n1/proxy/metrics/resource"];
    let said = session.quiet(&words, "").await?;
    let lines = said.stdout.lines().filter(|line| line.contains("\"web\"") || line.starts_with("# TYPE"));
    let lines: Vec<&str> =
        lines.map(|line| if line.starts_with('#') { line } else { line.rsplitn(3, ' ').last().unwrap_or_default() }).collect();
    session.note(&words, "", &Said { code: said.code, stdout: lines.join("\n"), stderr: said.stderr });
    let words = ["get", "--raw", "/api/v1/nodes/n1/proxy/pods"];
    let said = session.quiet(&words, "").await?;
    let list: Value = serde_json::from_str(&said.stdout).context("reading the pods")?;
    let names: BTreeSet<&str> =
        list["items"].as_array().unwrap_or(&empty).iter().filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
    let names = names.into_iter().collect::<Vec<_>>().join("\n");
    session.note(&words, "", &Said { code: said.code, stdout: names, stderr: said.stderr });
    session.run(&["get", "--raw", "/api/v1/nodes/n1/proxy/nothing"]).await
}

/// What the API server did with requests to upgrade: hand them on, or translate them to SPDY.
async fn transports(session: &mut Session<'_>) -> Result<()> {
    let metrics = session.quiet(&["get", "--raw", "/metrics"], "").await?.stdout;
    let counted = metrics.lines().filter(|line| line.contains("websocket_streaming_requests_total{"));
    let counted: Vec<&str> = counted.filter_map(|line| line.split(['{', '}']).nth(1)).collect();
    ensure!(!counted.is_empty(), "the API server counts no WebSockets");
    session.remark(&format!("the API server has seen WebSockets: {}", counted.join("; ")));
    Ok(())
}

/// Those who are not the API server ask the node itself.
async fn strangers(session: &mut Session<'_>) -> Result<()> {
    let address = session.bed.nodes().get("n1").context("no node n1")?.address();
    let (server, authority) = (format!("--server=https://{address}:10250"), session.bed.control_plane.authority());
    let authority = format!("--certificate-authority={}", authority.display());
    let token = session.quiet(&["create", "token", "default"], "").await?.stdout;
    for (who, token) in [("nobody", "unknown"), ("the service account default/default", token.trim())] {
        let said = session
            .quiet(&["--kubeconfig=/dev/null", &server, &authority, &format!("--token={token}"), "get", "--raw", "/pods"], "")
            .await?;
        session.remark(&format!("{who} asks the node for its pods"));
        session.note(&["get", "--raw", "/pods"], "", &said);
    }
    Ok(())
}

async fn delete(session: &mut Session<'_>) -> Result<()> {
    let began = std::time::Instant::now();
    session.run(&["delete", "pod", "stubborn", "--grace-period=1"]).await?;
    ensure!(began.elapsed() < Duration::from_secs(20), "a grace period of 1 s took {:?}", began.elapsed());
    session.run(&["get", "pod", "stubborn"]).await
}

async fn drain(session: &mut Session<'_>) -> Result<()> {
    let words = ["drain", "n1", "--force", "--delete-emptydir-data", "--grace-period=1", "--timeout=60s"];
    let mut said = session.quiet(&words, "").await?;
    // In whatever order they went.
    let sorted = |text: &str| {
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        lines.join("\n")
    };
    let warned = said.stderr.lines().map(|line| {
        let (head, names) = line.split_once(": default/").unwrap_or((line, ""));
        let mut names: Vec<&str> = names.split(", ").map(|name| name.trim_start_matches("default/")).collect();
        names.sort_unstable();
        format!("{head}: {}", names.join(", "))
    });
    said.stderr = sorted(&warned.collect::<Vec<_>>().join("\n"));
    said.stdout = sorted(&said.stdout);
    session.note(&words, "", &said);
    session.run(&["get", "pods"]).await?;
    session.run(&["uncordon", "n1"]).await
}

fn compare(text: &str) -> Result<()> {
    let path = images::repository().join(TRANSCRIPT);
    if std::env::var_os(GENERATE).is_some() {
        return std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()));
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    if kept == text {
        return Ok(());
    }
    let differs =
        kept.lines().zip(text.lines()).position(|(kept, new)| kept != new).unwrap_or(kept.lines().count().min(text.lines().count()));
    let around = |text: &str| text.lines().skip(differs.saturating_sub(4)).take(9).collect::<Vec<_>>().join("\n");
    bail!(
        "the transcript is not {TRANSCRIPT} ({GENERATE}=1 writes it anew); from line {}:\n{}\ninstead of\n{}",
        differs + 1,
        around(text),
        around(&kept)
    )
}

/// A node that is given no certificate requests one, says so, and serves once it is approved.
async fn certificate(bed: &mut Bed) -> Result<()> {
    bed.add_node(NodeSpec::new("n2").requests_certificate()).await?;
    bed.apply(&[pod("other", "echo here I am; exec sleep 100000", &json!({ "nodeName": "n2" }))]).await?;
    let session = Session { bed, text: String::new(), spdy: false };
    session.ready("other").await?;
    let said = session.quiet(&["logs", "other"], "").await?;
    ensure!(said.code == 1 && said.stderr.contains("tls"), "logs without a certificate: {} {} {}", said.code, said.stdout, said.stderr);
    let agent = std::fs::read_to_string(bed.state().join("logs/node-n2.log"))?;
    ensure!(agent.contains("waits to be approved"), "the agent does not say that its certificate waits to be approved");
    let requests = session.quiet(&["get", "csr", "-o", "name"], "").await?.stdout;
    for request in requests.lines() {
        bed.kubectl(&["certificate", "approve", request]).await?;
    }
    eventually(POD, "node n2 serves with the certificate that was approved", async || {
        let said = session.quiet(&["logs", "other"], "").await?;
        ensure!(said.code == 0 && said.stdout == "here I am\n", "{} {}", said.stdout, said.stderr);
        Ok(())
    })
    .await
}

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

async fn clients_that_vanish_leave_no_task_descriptor_or_process(bed: &mut Bed) -> Result<()> {
    const STUCK: &str = "sleep 314159";
    bed.apply(&pods()).await?;
    let session = Session { bed, text: String::new(), spdy: false };
    session.ready("web").await?;
    session.ready("nginx").await?;
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
        clients.push(start_forward(&session, "pod/nginx", port).await?.child);
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
    eventually(Duration::from_secs(90), "nothing is left of them", async || {
        ensure!(processes(STUCK) == 0, "{} commands still run", processes(STUCK));
        ensure!(descriptors(agent) <= before + 2, "the agent has {} descriptors, {before} before", descriptors(agent));
        Ok(())
    })
    .await?;
    bed.say(&format!("{} descriptors afterwards", descriptors(agent)));
    ensure!(session.quiet(&["exec", "web", "--", "echo", "alive"], "").await?.stdout == "alive\n", "the node does not serve any more");
    Ok(())
}
