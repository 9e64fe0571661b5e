//! Load from wrk, and what it counted.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::process::{Child, Command};

use crate::{
    bed::haproxy::PATIENCE,
    host::{namespaces, network},
};

/// How much load, and for how long at most.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Threads of wrk.
    pub threads: u32,
    /// Connections, all kept alive.
    pub connections: u32,
    /// When the load ends by itself, also when nobody stops it.
    pub at_most: Duration,
    /// How long each connection waits between an answer and its next request.
    pub pause: Duration,
    /// What is asked for.
    pub url: String,
}

impl Default for LoadOptions {
    /// Some 1,000 requests per second: enough to notice a gap of a millisecond, and a small part of what a core can do.
    fn default() -> Self {
        Self {
            threads: 1,
            connections: 32,
            at_most: Duration::from_mins(10),
            pause: Duration::from_millis(30),
            url: format!("http://{}/", network::BED),
        }
    }
}

impl LoadOptions {
    /// As many requests as the machine can do.
    pub fn full() -> Self {
        Self { pause: Duration::ZERO, ..Self::default() }
    }
}

/// Load that is running.
#[derive(Debug)]
pub struct Load {
    child: Child,
    started: Instant,
}

/// What wrk counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Answers received.
    pub requests: u64,
    /// Seconds it ran.
    pub seconds: f64,
    /// Connections refused.
    pub connect_errors: u64,
    /// Connections that broke while reading the answer.
    pub read_errors: u64,
    /// Connections that broke while writing the request.
    pub write_errors: u64,
    /// Requests that took longer than [`PATIENCE`].
    pub timeouts: u64,
    /// Answers with a status other than 2xx and 3xx.
    pub bad_statuses: u64,
}

impl Load {
    /// Starts wrk.
    pub fn start(options: &LoadOptions) -> Result<Self> {
        let wrk: PathBuf = namespaces::find_program("wrk").context("wrk is not installed; `make deps` installs it")?;
        let mut command = Command::new(wrk);
        if !options.pause.is_zero() {
            let milliseconds = options.pause.as_millis();
            let script = Path::new(namespaces::STATE).join(format!("pause-{milliseconds}ms.lua"));
            std::fs::write(&script, format!("function delay() return {milliseconds} end\n"))
                .with_context(|| format!("writing {}", script.display()))?;
            command.arg("-s").arg(script);
        }
        let child = command
            .arg(format!("-t{}", options.threads))
            .arg(format!("-c{}", options.connections))
            .arg(format!("--timeout={}s", PATIENCE.as_secs()))
            .arg(format!("-d{}s", options.at_most.as_secs().max(1)))
            .arg(&options.url)
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("starting wrk")?;
        Ok(Self { child, started: Instant::now() })
    }

    /// How long it has been running.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Stops it, as Ctrl-C does, and returns what it counted. Fails when it had ended already: then it was no load until now.
    pub async fn stop(mut self) -> Result<Summary> {
        if let Some(status) = self.child.try_wait().context("looking after wrk")? {
            let summary = self.finish().await?;
            bail!("wrk ended by itself ({status}): {summary:?}");
        }
        let id = self.child.id().context("wrk has no process id")?;
        let pid = Pid::from_raw(i32::try_from(id).context("a process id out of range")?);
        kill(pid, Signal::SIGINT).context("stopping wrk")?;
        self.finish().await
    }

    /// Waits for its own end and returns what it counted.
    pub async fn finish(self) -> Result<Summary> {
        let output = self.child.wait_with_output().await.context("waiting for wrk")?;
        let text = String::from_utf8_lossy(&output.stdout);
        match Summary::parse(&text) {
            Some(summary) => Ok(summary),
            None => bail!("wrk printed no summary ({}): {text}{}", output.status, String::from_utf8_lossy(&output.stderr)),
        }
    }
}

impl Summary {
    /// Reads what wrk prints at its end.
    pub fn parse(text: &str) -> Option<Self> {
        let mut summary = None;
        for line in text.lines().map(str::trim) {
            let words: Vec<_> = line.split([' ', ',']).filter(|word| !word.is_empty()).collect();
            match (words.as_slice(), &mut summary) {
                ([requests, "requests", "in", time, ..], _) => {
                    summary = Some(Self { requests: requests.parse().ok()?, seconds: seconds(time)?, ..Self::default() });
                }
                (["Socket", "errors:", "connect", connect, "read", read, "write", write, "timeout", timeout], Some(summary)) => {
                    summary.connect_errors = connect.parse().ok()?;
                    summary.read_errors = read.parse().ok()?;
                    summary.write_errors = write.parse().ok()?;
                    summary.timeouts = timeout.parse().ok()?;
                }
                (["Non-2xx", "or", "3xx", "responses:", bad], Some(summary)) => summary.bad_statuses = bad.parse().ok()?,
                // Errors in other words than these would pass for none.
                (["Socket" | "Non-2xx", ..], _) => return None,
                _ => {}
            }
        }
        summary
    }

    /// Requests that got no answer, a late one or a bad one.
    pub fn failed(&self) -> u64 {
        self.connect_errors + self.read_errors + self.write_errors + self.timeouts + self.bad_statuses
    }
}

/// `850.12ms`, `10.03s`, `1.50m`, `1.00h`.
fn seconds(time: &str) -> Option<f64> {
    for (unit, factor) in [("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)] {
        if let Some(number) = time.strip_suffix(unit).and_then(|number| number.parse::<f64>().ok()) {
            return Some(number * factor);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clean_summary_of_wrk_has_no_failures() {
        let text = "Running 5s test @ http://198.18.0.1/\n  1 threads and 8 connections\n  Thread Stats   Avg\n  \
                    185012 requests in 5.10s, 29.11MB read\nRequests/sec:  36277.01\nTransfer/sec:      5.71MB\n";
        let summary = Summary::parse(text).unwrap();
        assert_eq!((summary.requests, summary.failed()), (185_012, 0));
        assert!((summary.seconds - 5.1).abs() < 1e-9);
    }

    #[test]
    fn every_error_that_wrk_prints_counts_as_a_failure() {
        let text = "  900 requests in 1.50m, 1.11MB read\n  Socket errors: connect 1, read 2, write 3, timeout 4\n  \
                    Non-2xx or 3xx responses: 5\n";
        let summary = Summary::parse(text).unwrap();
        assert_eq!(summary.failed(), 15);
        assert!((summary.seconds - 90.0).abs() < 1e-9);
    }

    #[test]
    fn output_without_a_summary_is_not_a_summary() {
        assert_eq!(Summary::parse("unable to connect to 198.18.0.1:http Connection refused\n"), None);
    }

    #[test]
    fn errors_in_other_words_are_not_taken_for_none() {
        let text = "  900 requests in 1.50m, 1.11MB read\n  Socket errors: connect 1, read 2, write 3, timeout 4, reset 5\n";
        assert_eq!(Summary::parse(text), None);
    }
}
