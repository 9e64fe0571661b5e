//! `kubectl ids`, the real program, against the real control plane.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::{Output, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use crds::{IngressDaemonSetStatus, names};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

use crate::{
    auditor::Expectations,
    bed::Bed,
    cluster::{
        product::{self, deployment_mark, four_nodes, rolling_update},
        workload,
    },
    eventually::eventually,
    host::{images, terminal::Terminal},
    scenario::Scenario,
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
const MINUTE: Duration = Duration::from_mins(1);

/// What each command prints, does and ends with.
pub const STEERS: Scenario = Scenario {
    name: "the_plugin_shows_and_steers_a_rollout",
    options: four_nodes,
    expected: || Expectations::budget(2),
    body: |bed| Box::pin(steers(bed)),
};

async fn steers(bed: &mut Bed) -> Result<()> {
    let ids = Plugin::of(bed)?;
    ids.fails(&["status"], "this cluster does not know IngressDaemonSets").await?;
    product::serve(bed, rolling_update(2, deployment_mark()), &NODES).await?;
    says_what_is_wrong(bed, &ids).await?;
    let audit = ids.start(&["audit", "edge"])?;
    plans(bed, &ids).await?;
    completes(&ids).await?;
    ids.prints(&["skip", "n4"], &["ingressdaemonset/edge skips node n4 until"]).await?;
    ids.prints(&["pause"], &["ingressdaemonset/edge paused: no new node starts"]).await?;
    product::roll_to(bed, "2").await?;
    eventually(MINUTE, "the plugin says that nodes wait because of the pause", async || {
        ids.prints(&["why", "n1"], &["n1 of default/edge  Waiting", "Paused: spec.paused is true", "Deployment  edge-n1: revision"])
            .await
            .map(drop)
    })
    .await?;
    eventually(MINUTE, "the plugin shows that it is paused", async || {
        ids.prints(&["status", "edge"], &["Updated    [--------------------] 0 of 4 nodes", "Paused=True"]).await.map(drop)
    })
    .await?;
    let mut terminal = Terminal::start(ids.command(&["status", "-w"]), 100, 30)?;
    terminal.expect("Paused").await?;
    ids.prints(&["resume"], &["ingressdaemonset/edge resumed"]).await?;
    terminal.expect("Detaching").await?;
    bed.say("a table on a terminal shows a node that is detached");
    product::status_says(bed, "all but n4 are updated", product::SAID, |status| status.nodes.updated == 3 && status.nodes.available == 4)
        .await?;
    eventually(MINUTE, "the plugin says that n4 is skipped", async || {
        ids.prints(&["why", "n4"], &["Waiting", "Skipped: skipped: annotation"]).await.map(drop)
    })
    .await?;
    ids.prints(&["skip", "n4", "--undo"], &["ingressdaemonset/edge updates node n4 again"]).await?;
    let followed = ids.prints(&["status", "--until-complete", "--timeout", "300s"], &["edge  Complete: 4 of 4 nodes updated"]).await?;
    ensure!(!followed.contains('\x1b'), "control characters in a pipe: {followed:?}");
    drop(terminal);
    let json: Value = serde_json::from_str(&ids.prints(&["status", "-o", "json"], &[]).await?)?;
    ensure!(json["complete"] == true && json["counts"]["updated"] == 4, "{json}");
    let output = interrupted(audit).await?;
    ensure!(output.status.success(), "the audit of a good rollout: {}", shown(&output));
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(said.contains(": 0 violations") && !said.contains(" and 0 answers"), "{}", shown(&output));
    bed.say("the plugin's audit found nothing in the rollout");
    undoes(bed, &ids).await?;
    promotes_and_retries(bed, &ids).await?;
    ids.prints(&["restart"], &["has a new revision of the same template and rolls it out"]).await?;
    ids.prints(&["status", "--until-complete", "--timeout", "300s"], &["Complete: 4 of 4"]).await?;
    finds_what_was_done_by_hand(bed, &ids).await?;
    misses_the_operator(bed, &ids).await
}

/// What is shown may be old when nobody is there to write it.
async fn misses_the_operator(bed: &Bed, ids: &Plugin) -> Result<()> {
    bed.kubectl(&["scale", "deployment", "-n", "ingress-daemonset-system", "ingress-daemonset-operator", "--replicas=0"]).await?;
    eventually(MINUTE * 3, "the plugin misses the operator", async || {
        let output = ids.run(&["status"]).await?;
        ensure!(output.status.success() && shown(&output).contains("note: the operator does not run"), "{}", shown(&output));
        Ok(())
    })
    .await
}

/// Out of a template that does not come up: a stuck slot is freed, and an earlier revision runs.
async fn undoes(bed: &Bed, ids: &Plugin) -> Result<()> {
    ids.fails(&["promote"], "has no steps").await?;
    ids.fails(&["retry", "n1"], "nothing failed on node n1").await?;
    ids.fails(&["retry", "--all"], "nothing of ingressdaemonset/edge failed").await?;
    ids.fails(&["release", "n1"], "ingressdaemonset/edge has no grant for node n1").await?;
    ids.fails(&["undo", "--to-revision", "9"], "has no revision 9 (recorded: 1, 2)").await?;
    product::roll_to_missing_image(bed).await?;
    let stuck = |status: &IngressDaemonSetStatus| status.node_states.iter().filter(|state| state.reason == "ImagePull").count() == 2;
    let status = product::status_says(bed, "two nodes lack the image", product::SAID, stuck).await?;
    let node = &status.node_states.iter().find(|state| state.reason == "ImagePull").context("no such node")?.name;
    eventually(MINUTE, "the plugin says what the node lacks", async || {
        ids.prints(&["why", node], &["ImagePull", "Grant", "Update to revision"]).await.map(drop)
    })
    .await?;
    ids.prints(&["pause"], &["will finish"]).await?;
    ids.fails(&["release", node], "pass --yes to continue").await?;
    ids.prints(&["release", node, "--yes"], &[format!("ingressdaemonset/edge releases node {node}").as_str()]).await?;
    product::status_says(bed, "its slot is free", product::SAID, |status| {
        status.rollout.as_ref().is_some_and(|ledger| ledger.grants.len() == 1 && !ledger.grants.contains_key(node))
    })
    .await?;
    ids.prints(&["undo"], &["returns within the budget to revision 2 (", "the resource is paused"]).await?;
    ids.prints(&["resume"], &["resumed"]).await?;
    ids.prints(&["status", "--until-complete", "--timeout", "300s"], &["Complete: 4 of 4"]).await?;
    ids.prints(&["history"], &["pinned by rollbackTo", "spec.template", "nginx:does-not-exist"]).await?;
    product::roll_to(bed, "2").await?;
    ids.prints(&["undo", "--clear"], &["runs the revision of spec.template again"]).await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.say("a stuck node was released, and a former revision ran");
    Ok(())
}

/// A step that pauses goes on, and a node on which the revision has failed is tried again.
async fn promotes_and_retries(bed: &Bed, ids: &Plugin) -> Result<()> {
    let course = |steps: Value| product::change(bed, json!({ "updateStrategy": rolling_update(1, steps) }));
    course(json!({ "steps": [{ "nodes": 1, "pause": true }] })).await?;
    product::roll_to(bed, "3").await?;
    let waits = |status: &IngressDaemonSetStatus| {
        status.nodes.updated == 1 && status.node_states.iter().any(|state| state.reason == "AwaitingPromotion")
    };
    product::status_says(bed, "the first step waits for a person", product::SAID, waits).await?;
    ids.fails(&["promote", "--step", "2"], "step 2 is not a remaining step: choose one from 1 to 1").await?;
    ids.prints(&["promote"], &["continues after step 1 of 1 (now in step 1, its nodes have served for"]).await?;
    ids.prints(&["status", "--until-complete", "--timeout", "300s"], &["Complete: 4 of 4"]).await?;
    ids.fails(&["promote"], "all 1 steps of revision").await?;
    bed.say("a step that paused went on");

    course(json!({ "steps": null, "nodeDeadlineSeconds": 4 })).await?;
    product::roll_to_missing_image(bed).await?;
    let status = product::status_says(bed, "a node has failed", product::SAID, |status| status.nodes.failed == 1).await?;
    let grants = |status: &IngressDaemonSetStatus| status.rollout.clone().map(|ledger| ledger.grants).unwrap_or_default();
    let (node, mut before) = grants(&status).pop_first().context("its place was freed")?;
    let one = format!("on node {node}; the revision failed there: ImagePull");
    let all = format!("retries: node {node} (ImagePull)");
    for (arguments, said) in [
        (["retry", node.as_str()], [one.as_str(), "ingressdaemonset/edge retries revision"]),
        (["retry", "--all"], [all.as_str(), "accepts all failures"]),
    ] {
        ids.prints(&arguments, &said).await?;
        let status = product::status_says(bed, "it is tried again", product::SAID, |status| {
            status.nodes.failed == 0 && grants(status).get(&node).is_some_and(|again| again.id > before.id)
        })
        .await?;
        before = grants(&status).remove(&node).context("its place was freed")?;
        product::status_says(bed, "it fails again", product::SAID, |status| status.nodes.failed == 1).await?;
    }
    course(json!({ "nodeDeadlineSeconds": null })).await?;
    product::roll_to(bed, "4").await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.say("a node that had failed was tried again");
    Ok(())
}

/// Failures say what to do.
async fn says_what_is_wrong(bed: &Bed, ids: &Plugin) -> Result<()> {
    let stranger = bed.control_plane.kubeconfig_of("stranger")?;
    let right = "you may not list ingressdaemonsets in namespace default: ask for a Role with the rule";
    ids.fails(&["status", "-n", "default", "--kubeconfig", &stranger.to_string_lossy()], right).await?;
    ids.fails(&["status", "egde"], "there is no IngressDaemonSet egde in namespace default; there is edge").await?;
    ids.fails(&["status", "-n", "kube-system"], "there is default/edge: use -n default").await?;
    ids.fails(&["status", "--context", "nowhere"], "the kubeconfig has no context nowhere").await?;
    ids.fails(&["why", "n9"], "there is no node n9").await?;
    ids.fails(&["skip", "n9"], "there is no node n9").await?;
    ids.prints(&["why", "infra1"], &["NotChosen", "the Node lacks the label ingress=true"]).await?;
    ids.prints(&["why", "n1"], &["Idle", "UpToDate: runs the newest revision; 2 of 2 pods ready"]).await.map(drop)
}

/// The dry run changes nothing, and a bad file is refused.
async fn plans(bed: &Bed, ids: &Plugin) -> Result<()> {
    let before = product::api(bed).get(product::NAME).await?.metadata.generation;
    let file = |text: String| -> Result<String> {
        let path = bed.state().join("plan.json");
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(path.to_string_lossy().into_owned())
    };
    let resource = |version| product::resource(version, &rolling_update(2, deployment_mark()));
    let same = file(resource("1").to_string())?;
    ids.prints(&["plan", "-f", &same], &["nothing was changed", "Nothing to do: every node matches the spec."]).await?;
    let next = file(resource("2").to_string())?;
    let plan = ids.prints(&["plan", "-f", &next], &["4 to disrupt, at most 2 at once", "WAVE", "in 2 waves"]).await?;
    let rows: Vec<Vec<&str>> = plan.lines().map(|line| line.split_whitespace().collect()).collect();
    let updates = rows.iter().filter(|row| row.get(2) == Some(&"Update"));
    let waves: Vec<_> = updates.filter_map(|row| row.first().copied()).collect();
    ensure!(waves == ["1", "1", "2", "2"], "waves are {waves:?} in\n{plan}");
    let mut bad = resource("2");
    bad["spec"]["podsPerNode"] = (-1).into();
    ids.fails(&["plan", "-f", &file(bad.to_string())?], "spec.podsPerNode").await?;
    let mut bad = resource("2");
    bad["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = "Sometimes".into();
    let output = ids.run(&["plan", "-f", &file(bad.to_string())?]).await?;
    ensure!(output.status.code() == Some(1) && shown(&output).contains("Sometimes"), "{}", shown(&output));
    let after = product::api(bed).get(product::NAME).await?.metadata.generation;
    ensure!(before == after, "a plan changed the resource");
    bed.say("plans were made, and nothing was changed");
    Ok(())
}

/// As `kubectl ids`, and with the words that `kubectl` is given by the plugin's completion.
async fn completes(ids: &Plugin) -> Result<()> {
    let output = ids.kubectl(&["ids", "status", "edge"]).await?;
    ensure!(output.status.success() && shown(&output).contains("default/edge"), "kubectl ids: {}", shown(&output));
    for (words, wanted) in [(&["why", "n"][..], "n3"), (&["st"][..], "status"), (&["pause", ""][..], "edge")] {
        let line: Vec<_> = ["__complete", "ids"].iter().chain(words).copied().collect();
        let output = ids.kubectl(&line).await?;
        let found = String::from_utf8_lossy(&output.stdout).lines().any(|line| line.split('\t').next() == Some(wanted));
        ensure!(found, "kubectl {line:?}: {}", shown(&output));
    }
    Ok(())
}

/// Pods that are changed past the operator are a violation, and the exit code says so.
async fn finds_what_was_done_by_hand(bed: &Bed, ids: &Plugin) -> Result<()> {
    let mut audit = ids.start(&["audit"])?;
    // It says so once it watches.
    let stdout = audit.stdout.take().context("no output")?;
    let mut lines = BufReader::new(stdout).lines();
    let first = lines.next_line().await?.unwrap_or_default();
    ensure!(first.starts_with("judging edge in namespace default"), "{first}");
    // That is for the auditor of this bed; the plugin's excuses nobody.
    product::hands_on(bed, &["n1"]).await?;
    bed.kubectl(&["set", "env", "deployment/edge-n1", "VERSION=tampered"]).await?;
    let violation = next_violation(&mut lines, &mut audit).await?;
    ensure!(violation.contains("P3 edge  NoBypass") && violation.contains("the pod template changed on node n1"), "{violation}");
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.apply(&false_health_checker(bed).await?).await?;
    let violation = next_violation(&mut lines, &mut audit).await?;
    let said = "port 10082 of node n1 answers 503 (Updating, age of its view: 1 s), but that was at no moment so";
    ensure!(violation.contains("P10 edge  HealthVerdict") && violation.contains(said), "{violation}");
    bed.kubectl(&["delete", "pod", LIAR]).await?;
    product::hands_off(bed, &["n1"]).await?;
    let output = interrupted(audit).await?;
    let last = lines.next_line().await?.unwrap_or_default();
    ensure!(last.contains("answers of health checkers in") && last.ends_with(": 2 violations"), "{last}");
    ensure!(output.status.code() == Some(1), "the audit ended with {:?}", output.status.code());
    bed.say("the plugin's audit found what was done by hand");
    Ok(())
}

/// What the audit prints next; the error has all that it has said, and what it says at its end.
async fn next_violation(lines: &mut Lines<BufReader<ChildStdout>>, audit: &mut Child) -> Result<String> {
    if let Ok(line) = tokio::time::timeout(MINUTE, lines.next_line()).await {
        return Ok(line?.unwrap_or_default());
    }
    interrupt(audit)?;
    let (mut remarks, mut rest) = (String::new(), String::new());
    if let Some(mut stderr) = audit.stderr.take() {
        stderr.read_to_string(&mut remarks).await?;
    }
    while let Some(line) = lines.next_line().await? {
        rest = rest + &line + "\n";
    }
    bail!("the audit says nothing, and then:\n{rest}{remarks}")
}

const LIAR: &str = "liar";
const LIAR_PORT: u16 = 10082;

/// What the audit takes for a health checker on n1 that says, on a port of its own, that n1 is updated.
async fn false_health_checker(bed: &Bed) -> Result<[Value; 2]> {
    let uid = product::api(bed).get(product::NAME).await?.metadata.uid.unwrap_or_default();
    let body = json!({
        "service": { "namespace": "default", "name": product::NAME }, "node": "n1", "viewAgeSeconds": 1,
        "desired": 2, "localEndpoints": 1, "serviceProxyHealthy": false, "reason": "Updating",
    });
    let mut configuration = workload::config_map("default");
    let text = configuration["data"]["nginx.conf"].as_str().unwrap_or_default();
    let text = text
        .replace("listen 80 reuseport", &format!("listen {LIAR_PORT}"))
        .replace("return 200 \"ok\\n\"", &format!("return 503 '{body}'"));
    configuration["metadata"]["name"] = LIAR.into();
    configuration["data"]["nginx.conf"] = text.into();
    let mut spec = workload::pod_spec();
    spec["nodeName"] = "n1".into();
    spec["volumes"][0]["configMap"]["name"] = LIAR.into();
    let mut nginx = spec["containers"][0].take();
    nginx["readinessProbe"] = Value::Null;
    let arguments = ["-c", "sleep 3600", &format!("--port={LIAR_PORT}")];
    spec["containers"] = json!([{ "name": "port", "image": "busybox:1.36", "args": arguments }, nginx]);
    let labels = json!({ names::HEALTH_CHECKER_LABEL: LIAR, names::RESOURCE_LABEL: names::uid8(&uid) });
    let pod =
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": LIAR, "namespace": "default", "labels": labels }, "spec": spec });
    Ok([configuration, pod])
}

/// Ctrl-C, and what it printed.
async fn interrupted(child: Child) -> Result<Output> {
    interrupt(&child)?;
    tokio::time::timeout(MINUTE, child.wait_with_output()).await.context("it does not end")?.context("waiting for it")
}

fn interrupt(child: &Child) -> Result<()> {
    let id = child.id().context("it has ended by itself")?;
    kill(Pid::from_raw(i32::try_from(id)?), Signal::SIGINT).context("interrupting it")
}

fn shown(output: &Output) -> String {
    format!("{}\n{}{}", output.status, String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The program, as a user has installed it.
struct Plugin {
    program: PathBuf,
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    path: String,
}

impl Plugin {
    fn of(bed: &Bed) -> Result<Self> {
        let program = images::workspace_binary("kubectl-ids")?;
        let directory = bed.state().join("plugins");
        std::fs::create_dir_all(&directory).context("a directory for plugins")?;
        let completion = directory.join("kubectl_complete-ids");
        std::fs::write(&completion, "#!/bin/sh\nexec kubectl-ids __complete \"$@\"\n").context("writing the completion")?;
        std::fs::set_permissions(&completion, std::fs::Permissions::from_mode(0o755)).context("making it executable")?;
        std::os::unix::fs::symlink(&program, directory.join("kubectl-ids")).context("installing the plugin")?;
        let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap_or_default());
        let (kubectl, kubeconfig) = (bed.control_plane.program().to_owned(), bed.control_plane.admin_kubeconfig().to_owned());
        Ok(Self { program, kubectl, kubeconfig, path })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).env("KUBECONFIG", &self.kubeconfig).env("TERM", "xterm").kill_on_drop(true);
        command
    }

    async fn run(&self, arguments: &[&str]) -> Result<Output> {
        self.command(arguments).stdin(Stdio::null()).output().await.with_context(|| format!("running kubectl-ids {arguments:?}"))
    }

    fn start(&self, arguments: &[&str]) -> Result<Child> {
        let mut command = self.command(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().with_context(|| format!("starting kubectl-ids {arguments:?}"))
    }

    /// It succeeds, and its output has all these parts.
    async fn prints(&self, arguments: &[&str], parts: &[&str]) -> Result<String> {
        let output = self.run(arguments).await?;
        ensure!(output.status.success(), "kubectl-ids {arguments:?}: {}", shown(&output));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        for part in parts {
            ensure!(text.contains(part), "kubectl-ids {arguments:?} does not say {part:?}: {}", shown(&output));
        }
        Ok(text)
    }

    /// It fails, and says this.
    async fn fails(&self, arguments: &[&str], message: &str) -> Result<()> {
        let output = self.run(arguments).await?;
        let told = String::from_utf8_lossy(&output.stderr).contains(message);
        ensure!(output.status.code() == Some(1) && told, "kubectl-ids {arguments:?} does not fail with {message:?}: {}", shown(&output));
        Ok(())
    }

    /// `kubectl`, which finds the plugin.
    async fn kubectl(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(&self.kubectl);
        command.arg("kubectl").args(arguments).env("KUBECONFIG", &self.kubeconfig).env("PATH", &self.path);
        command.stdin(Stdio::null()).kill_on_drop(true).output().await.with_context(|| format!("running kubectl {arguments:?}"))
    }
}
