//! Programs that the bed runs: daemons with a log file each, and short commands.

use std::{
    ffi::OsStr,
    fs::File,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::process::{Child, Command};

/// A daemon of the bed. It ends with the bed; dropping this value does not end it.
#[derive(Debug)]
pub struct Process {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Process {
    /// Starts `command`; what it prints is appended to `<logs>/<name>.log`.
    pub fn start(name: &str, logs: &Path, mut command: Command) -> Result<Self> {
        std::fs::create_dir_all(logs).with_context(|| format!("creating {}", logs.display()))?;
        let log = logs.join(format!("{name}.log"));
        let output = File::options().create(true).append(true).open(&log).with_context(|| format!("opening {}", log.display()))?;
        let errors = output.try_clone().context("sharing the log file")?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("starting {name} ({})", command.as_std().get_program().display()))?;
        Ok(Self { name: name.to_owned(), log, child })
    }

    /// The name it was started under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("looking after {}", self.name))
    }

    /// Fails, with the end of its log, when the process has ended.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.ended()? {
            bail!("{} ended ({status}); the end of its log:\n{}", self.name, self.tail());
        }
        Ok(())
    }

    /// Its process id, while it runs.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Sends a signal, for example `SIGHUP`.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let id = self.child.id().with_context(|| format!("{} has ended already", self.name))?;
        let pid = Pid::from_raw(i32::try_from(id).context("a process id out of range")?);
        kill(pid, signal).with_context(|| format!("sending {signal} to {}", self.name))
    }

    /// Kills it (`SIGKILL`) and waits until it is gone. Its own children live on.
    pub async fn kill(mut self) -> Result<()> {
        self.end().await
    }

    /// As [`Process::kill`], of one that has its successor in the same place.
    pub async fn end(&mut self) -> Result<()> {
        self.child.kill().await.with_context(|| format!("killing {}", self.name))
    }

    /// The last lines of its log.
    pub fn tail(&self) -> String {
        tail(&self.log, 15)
    }
}

/// The last `lines` of a file, or why it cannot be read.
pub fn tail(path: &Path, lines: usize) -> String {
    match std::fs::read(path) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let all: Vec<_> = text.lines().collect();
            all[all.len().saturating_sub(lines)..].join("\n")
        }
        Err(error) => format!("({}: {error})", path.display()),
    }
}

/// Runs a command to its end and returns what it printed. Fails, with its error output, when it does.
pub async fn run<A: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: impl IntoIterator<Item = A>) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let shown = format!("{:?}", command.as_std());
    let output = command.output().await.with_context(|| format!("running {shown}"))?;
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let failed = || format!("{}{told}", String::from_utf8_lossy(&output.stderr)).trim().to_owned();
    ensure!(output.status.success(), "{shown} failed ({}): {}", output.status, failed());
    Ok(told)
}
