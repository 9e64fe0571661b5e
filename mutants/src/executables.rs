//! Test executables: built once, run once for each fault.

use crate::{list::Scope, packages::Packages};
use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead as _, BufReader},
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    time::{Duration, Instant},
};

/// What ends a process that somebody kills: by itself it fails with a code, or aborts.
const SIGKILL: i32 = 9;
/// What random tests draw by, as in `.cargo/config.toml`: cargo, which would set it, does not start them.
const SEED: &str = "20261121";

/// Test executables by package and target.
#[derive(Debug)]
pub struct Executables {
    tree: PathBuf,
    all: BTreeMap<(String, String), PathBuf>,
}

/// How tests ended.
#[derive(Debug)]
pub enum End {
    /// All passed, so many.
    Passed(usize),
    /// The first that failed, or why the process ended.
    Failed(String),
    /// They did not end in time.
    Endless,
}

impl Executables {
    /// Builds these test targets, of these packages, in the copy.
    pub fn build(tree: &Path, build: &Path, packages: &BTreeSet<&str>, targets: &BTreeSet<&str>) -> Result<Self> {
        let mut cargo = Command::new("cargo");
        cargo.args(["test", "--no-run", "--locked", "--message-format=json"]).current_dir(tree);
        cargo.args(packages.iter().flat_map(|package| ["-p", package]));
        for target in targets {
            match *target {
                "lib" => cargo.arg("--lib"),
                target => cargo.args(["--test", target]),
            };
        }
        // Generated code has parentheses and branches that nobody would write.
        cargo.env("RUSTFLAGS", "--cap-lints warn").env("CARGO_TARGET_DIR", build);
        let mut child = cargo.stdout(Stdio::piped()).spawn().context("cargo test")?;
        let lines = BufReader::new(child.stdout.take().context("no output of cargo")?).lines();
        let mut all = BTreeMap::new();
        for line in lines {
            let message: Value = serde_json::from_str(&line?).unwrap_or_default();
            if message["message"]["level"] == "error" {
                eprintln!("{}", message["message"]["rendered"].as_str().unwrap_or_default());
            }
            let (target, executable) = (&message["target"], message["executable"].as_str());
            let Some(executable) = executable.filter(|_| message["profile"]["test"] == true) else { continue };
            // path+file:///…/operator/planner#0.1.0, or …/operator#planner@0.1.0 where the folder has another name.
            let id = message["package_id"].as_str().unwrap_or_default();
            let (folder, version) = id.rsplit_once('#').unwrap_or_default();
            let package = version.split_once('@').map_or_else(|| folder.rsplit('/').next().unwrap_or_default(), |(name, _)| name);
            let is_library = target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "lib"));
            let target = if is_library { "lib" } else { target["name"].as_str().unwrap_or_default() };
            all.insert((package.to_owned(), target.to_owned()), PathBuf::from(executable));
        }
        if !child.wait()?.success() {
            bail!("the tests cannot be built: lines are those of {}", tree.display());
        }
        Ok(Self { tree: tree.to_owned(), all })
    }

    /// Runs the tests of a scope, or one of them, until the first that fails.
    pub fn run(
        &self,
        packages: &Packages,
        scope: &Scope,
        fault: Option<&str>,
        one: Option<&str>,
        limit: Duration,
    ) -> Result<(End, String)> {
        let found = self.all.get(&(scope.package.clone(), scope.target.clone()));
        let executable = found.with_context(|| format!("{} has no test target {}", scope.package, scope.target))?;
        let folder = self.tree.join(packages.folder(&scope.package).context("no such package")?);
        let mut command = Command::new(executable);
        command
            .current_dir(&folder)
            .env("CARGO_MANIFEST_DIR", &folder)
            .env("INSTA_UPDATE", "no")
            .env("PROPTEST_RNG_SEED", SEED)
            .envs(&scope.env);
        match one {
            Some(test) => command.args(["--exact", test]),
            None => command.args(&scope.filter).args(scope.skip.iter().flat_map(|skip| ["--skip", skip])),
        };
        if let Some(fault) = fault {
            command.env("FAULT", fault);
        }
        // A group of its own: tests have children, which end with it.
        let mut child = command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let ended = follow(&mut child, limit);
        kill(&mut child)?;
        ended
    }
}

fn follow(child: &mut Child, limit: Duration) -> Result<(End, String)> {
    let lines = BufReader::new(child.stdout.take().context("no output of the tests")?).lines();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let until = Instant::now() + limit;
    let (mut output, mut passed) = (String::new(), 0);
    loop {
        match receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                let name = |end: &str| line.strip_prefix("test ").and_then(|line| line.strip_suffix(end)).map(str::to_owned);
                if let Some(test) = name(" ... FAILED") {
                    return Ok((End::Failed(test), output));
                }
                passed += usize::from(name(" ... ok").is_some());
                output.push_str(&line);
                output.push('\n');
            }
            Err(RecvTimeoutError::Timeout) => return Ok((End::Endless, output)),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let status = child.wait()?;
    if status.signal() == Some(SIGKILL) {
        bail!("somebody has killed the tests, or the memory did not suffice: run it again");
    }
    let end = if status.success() { End::Passed(passed) } else { End::Failed(format!("the whole process: {status}")) };
    Ok((end, output))
}

/// The process and all that it has begun.
fn kill(child: &mut Child) -> Result<()> {
    let group = format!("-{}", child.id());
    // None may be left, and then there is nobody to be told.
    Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status().map_err(|error| anyhow!("kill: {error}"))?;
    child.wait()?;
    Ok(())
}
