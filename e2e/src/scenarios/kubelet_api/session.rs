//! `kubectl` and the transcript of what it said.

use std::{os::unix::process::ExitStatusExt as _, process::Stdio, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use crate::{
    bed::Bed,
    eventually::eventually,
    host::{images, terminal::Terminal},
};

/// The kept transcript.
const TRANSCRIPT: &str = "e2e/fixtures/kubectl-transcript.txt";
/// Where the transcript is written anew instead of compared, if set.
const GENERATE: &str = "GENERATE";
/// How long a command may take.
pub const PATIENCE: Duration = Duration::from_mins(2);
/// How long a pod may take to get into a state.
pub const POD: Duration = Duration::from_mins(3);

/// Commands and what came of them.
pub struct Session<'a> {
    pub bed: &'a Bed,
    pub text: String,
    /// `kubectl` speaks SPDY alone, as older versions do.
    pub spdy: bool,
}

/// Makes `kubectl` speak SPDY alone.
const SPDY: [(&str, &str); 2] = [("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false"), ("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false")];

/// What a command said.
pub struct Said {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// A command that goes on.
pub struct Started {
    pub child: Child,
    pub lines: Lines<BufReader<ChildStdout>>,
}

impl Started {
    /// The next line of its output.
    pub async fn line(&mut self) -> Result<String> {
        timeout(PATIENCE, self.lines.next_line()).await.context("kubectl is silent")??.context("kubectl ended")
    }

    /// What it still says, and its exit code.
    pub async fn end(mut self) -> Result<(String, i32)> {
        let rest = async {
            let mut rest = String::new();
            while let Some(line) = self.lines.next_line().await? {
                rest.push_str(&line);
                rest.push('\n');
            }
            anyhow::Ok((rest, code(self.child.wait().await?)))
        };
        timeout(PATIENCE, rest).await.context("kubectl does not end")?
    }
}

pub fn code(status: std::process::ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

impl Session<'_> {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.bed.control_plane.kubectl_command();
        command.args(words).envs(SPDY.into_iter().filter(|_| self.spdy));
        command
    }

    /// Runs `kubectl` with these words and this input.
    pub async fn quiet(&self, words: &[&str], input: &str) -> Result<Said> {
        let mut command = self.command(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
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

    /// Starts `kubectl` with these words, without input; its output is read line by line.
    pub fn start(&self, words: &[&str]) -> Result<Started> {
        let mut command = self.command(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        Ok(Started { child, lines })
    }

    /// The same, into the transcript.
    pub async fn run(&mut self, words: &[&str]) -> Result<()> {
        self.run_with(words, "").await
    }

    pub async fn run_with(&mut self, words: &[&str], input: &str) -> Result<()> {
        let said = self.quiet(words, input).await?;
        self.note(words, input, &said);
        Ok(())
    }

    pub fn note(&mut self, words: &[&str], input: &str, said: &Said) {
        let quoted = |word: &&str| if word.contains([' ', ';', '$', '|']) { format!("'{word}'") } else { (*word).to_owned() };
        self.lines("$ kubectl ", &words.iter().map(quoted).collect::<Vec<_>>().join(" "));
        self.lines("< ", input);
        self.lines("> ", &said.stdout);
        self.lines("! ", &said.stderr);
        self.lines("", &format!("[{}]\n\n", said.code));
    }

    pub fn remark(&mut self, text: &str) {
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
    pub fn terminal(&self, words: &[&str]) -> Result<Terminal> {
        Terminal::start(self.command(words), 100, 40)
    }

    pub async fn pod_is(&self, name: &str, what: &str, fact: impl Fn(&Value) -> bool) -> Result<()> {
        eventually(POD, &format!("pod {name} {what}"), async || {
            let pod: Value = serde_json::from_str(&self.bed.kubectl(&["get", "pod", name, "-o", "json"]).await?)?;
            ensure!(fact(&pod["status"]), "its status is {}", pod["status"]);
            Ok(())
        })
        .await
    }

    pub async fn ready(&self, name: &str) -> Result<()> {
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

pub fn compare(text: &str) -> Result<()> {
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
