//! Runs of `bed`, what they say of a scenario, and how that is told.

use std::{
    fmt::Write as _,
    fs::File,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Command, ExitCode, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

pub(super) use crate::demo::NAME as DEMO;
use crate::{
    host::images,
    scenario::{FAILED, PASSED, chance, dump},
};

/// What became of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Verdict {
    pub(super) name: String,
    /// The group, or in a soak which repetition it was.
    pub(super) part: String,
    pub(super) seconds: f32,
    /// What was wrong with it.
    pub(super) failure: Option<String>,
    /// What its bed had besides the environment of this program, such as another control plane.
    #[serde(default)]
    pub(super) environment: Environment,
}

/// Variables and their values.
pub(super) type Environment = Vec<(String, String)>;

impl Verdict {
    /// A bed that printed this verdict last has ended: badly after a good verdict is a failure, too. Whether it is one only now.
    pub(super) fn ends(&mut self, end: ExitStatus) -> bool {
        let only_now = self.failure.is_none() && !end.success();
        if only_now {
            self.failure = Some(format!("it had passed, and then its bed ended with {end}"));
        }
        only_now
    }
}

/// Runs `bed` with these arguments, and with an environment besides its own; each line that it prints goes to `line` and to the log of this
/// name. Returns how it ended.
pub(super) fn run(log: &str, arguments: &[&str], environment: &[(String, String)], mut line: impl FnMut(&str)) -> Result<ExitStatus> {
    let path = log_of(log);
    let directory = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory).with_context(|| format!("creating {}", directory.display()))?;
    let append = arguments.last().is_some_and(|first| *first != "0");
    let mut file = File::options()
        .create(true)
        .write(true)
        .append(append)
        .truncate(!append)
        .open(&path)
        .with_context(|| format!("opening {}", path.display()))?;
    let program = std::env::current_exe().context("finding this program's own path")?;
    let errors = file.try_clone().context("sharing the log")?;
    let mut child = Command::new(program)
        .args(arguments)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()
        .context("starting a bed")?;
    let output = child.stdout.take().context("a bed without output")?;
    for printed in BufReader::new(output).lines() {
        let printed = printed.context("reading what a bed prints")?;
        writeln!(file, "{printed}").with_context(|| format!("writing {}", path.display()))?;
        line(&printed);
    }
    child.wait().context("waiting for a bed")
}

/// Runs `bed` for the scenario (or demo) of this name alone. Without a verdict of its own, the bed's end is one.
/// With an environment of its own, its dump has the name of its log.
pub(super) fn run_one(log: &str, name: &str, part: &str, environment: &[(&str, String)]) -> Result<Verdict> {
    let environment: Environment = environment.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let dump = (!environment.is_empty()).then(|| (dump::NAME.to_owned(), log.to_owned()));
    let all: Environment = environment.iter().cloned().chain(dump).collect();
    let started = Instant::now();
    let arguments: &[&str] = if name == DEMO { &[DEMO] } else { &["scenario", name] };
    let (mut verdict, mut last) = (None, String::new());
    let end = run(log, arguments, &all, |line| {
        verdict = read_verdict(line, part).or(verdict.take());
        line.clone_into(&mut last);
    })?;
    let seconds = started.elapsed().as_secs_f32();
    let failure = (!end.success()).then(|| format!("{end}; its last line: {last}"));
    let none = Verdict { name: name.to_owned(), part: part.to_owned(), seconds, failure, environment: Vec::new() };
    let mut verdict = Verdict { environment, ..verdict.unwrap_or(none) };
    verdict.ends(end);
    Ok(verdict)
}

/// Where the output of a group, or of a scenario of a soak, is.
fn log_of(name: &str) -> PathBuf {
    images::repository().join("target/bed/logs").join(format!("{name}.log"))
}

/// `passed in 12.3 s: name`, `FAILED after 12.3 s: name: why`.
pub(super) fn read_verdict(line: &str, part: &str) -> Option<Verdict> {
    let (rest, failed) = match line.strip_prefix(PASSED) {
        Some(rest) => (rest, false),
        None => (line.strip_prefix(FAILED)?, true),
    };
    let (seconds, rest) = rest.split_once(" s: ")?;
    let (name, why) = if failed { rest.split_once(": ")? } else { (rest, "") };
    let failure = failed.then(|| why.to_owned());
    Some(Verdict { name: name.to_owned(), part: part.to_owned(), seconds: seconds.parse().ok()?, failure, environment: Vec::new() })
}

/// Prints a verdict as soon as it is there; of a failure all that one needs next.
pub(super) fn say(verdict: &Verdict, log: &str) {
    // Nobody may be reading any more.
    let _ = std::io::stdout().write_all(told(verdict, log, |dump| dump::is_of_the_last(verdict.seconds + 1.0, dump)).as_bytes());
}

fn told(verdict: &Verdict, log: &str, is_its_own: impl Fn(&Path) -> bool) -> String {
    let Verdict { name, part, seconds, failure, environment } = verdict;
    let Some(why) = failure else { return format!("passed  {seconds:6.1} s  {part}: {name}\n") };
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("bed"));
    let dump = dump::directory_of(if environment.is_empty() { name } else { log });
    let dump = if is_its_own(&dump) { shown(&dump) } else { "none was written".to_owned() };
    let (program, log) = (shown(&program), shown(&log_of(log)));
    let alone = if name == DEMO { DEMO.to_owned() } else { format!("scenario {name}") };
    // A failure is repeated with what it drew.
    let seed = chance::in_message(why).map(|seed| format!("{seed} ")).unwrap_or_default();
    let with = environment.iter().map(|(name, value)| format!("{name}={} ", quoted(value))).collect::<Vec<_>>().concat();
    format!(
        "FAILED  {seconds:6.1} s  {part}: {name}\n        why     {why}\n        alone   {seed}{with}{program} {alone}\n        \
         dump    {dump}\n        log     {log}\n"
    )
}

/// As a shell reads it as one word. No value has a quotation mark.
fn quoted(value: &str) -> String {
    if value.contains(' ') { format!("'{value}'") } else { value.to_owned() }
}

/// A path below the repository as one types it there.
pub(super) fn shown(path: &Path) -> String {
    path.strip_prefix(images::repository()).unwrap_or(path).display().to_string()
}

/// The table, the slowest first, and the last line.
pub(super) fn conclude(verdicts: &[Verdict], took: Duration) -> ExitCode {
    print!("{}", table(verdicts));
    let failed = verdicts.iter().filter(|verdict| verdict.failure.is_some()).count();
    let total: f32 = verdicts.iter().map(|verdict| verdict.seconds).sum();
    println!("{} scenarios, {total:.0} s of them in {:.0} s", verdicts.len(), took.as_secs_f32());
    println!("{} passed, {failed} failed", verdicts.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn table(verdicts: &[Verdict]) -> String {
    let mut sorted: Vec<_> = verdicts.iter().collect();
    sorted.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    let mut text = String::from("\nseconds  verdict  scenario\n");
    for Verdict { name, part, seconds, failure, .. } in sorted {
        let word = if failure.is_some() { "FAILED" } else { "passed" };
        let _ = writeln!(text, "{seconds:7.1}  {word:7}  {part}: {name}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn a_verdict_is_read_as_it_is_printed() {
        let passed = read_verdict("passed in 12.3 s: a_name", "traffic").unwrap();
        assert_eq!((passed.name.as_str(), passed.seconds, passed.failure), ("a_name", 12.3, None));
        let failed = read_verdict("FAILED after 4.0 s: a_name: not within 60 s: n1: gone", "traffic").unwrap();
        assert_eq!((failed.name.as_str(), failed.failure.as_deref()), ("a_name", Some("not within 60 s: n1: gone")));
        assert_eq!(read_verdict("  4.0s passed in a wink", "traffic"), None);
    }

    #[test]
    fn a_bad_exit_fails_only_a_good_verdict() {
        let ends = |printed: &str, status| {
            let mut verdict = read_verdict(printed, "traffic").unwrap();
            (verdict.ends(ExitStatus::from_raw(status)), verdict.failure)
        };
        assert_eq!(ends("passed in 12.3 s: a_name", 0), (false, None));
        let (only_now, failure) = ends("passed in 12.3 s: a_name", 9);
        assert!(only_now && failure.unwrap().contains("signal: 9"));
        assert_eq!(ends("FAILED after 4.0 s: a_name: why", 1 << 8), (false, Some("why".to_owned())));
    }

    #[test]
    fn a_table_has_every_verdict_and_the_slowest_first() {
        let verdict = |name: &str, seconds, failure: Option<&str>| Verdict {
            name: name.to_owned(),
            part: "part".to_owned(),
            seconds,
            failure: failure.map(str::to_owned),
            environment: Vec::new(),
        };
        let table = table(&[verdict("quick", 1.0, None), verdict("slow", 100.5, Some("why"))]);
        assert_eq!(table, "\nseconds  verdict  scenario\n  100.5  FAILED   part: slow\n    1.0  passed   part: quick\n");
    }

    #[test]
    fn a_failure_is_repeated_in_its_own_environment() {
        let mut verdict = read_verdict("FAILED after 4.0 s: a_name: why", "1.34.4").unwrap();
        let alone = told(&verdict, "log", |_| true);
        assert!(alone.contains("bed/dumps/a_name\n") && !alone.contains('='), "{alone}");
        let undumped = told(&verdict, "log", |_| false);
        assert!(undumped.contains("  dump    none was written\n"), "{undumped}");
        verdict.environment = vec![("ONE".to_owned(), "1".to_owned()), ("FLAGS".to_owned(), "--a=b --c".to_owned())];
        let with = told(&verdict, "1.34.4-a_name", |_| true);
        assert!(with.contains("  alone   ONE=1 FLAGS='--a=b --c' "), "{with}");
        let drawn = read_verdict("FAILED after 4.0 s: a_name: why (drawn by BED_SEED=7)", "api").unwrap();
        let drawn = told(&drawn, "log", |_| true);
        assert!(drawn.contains("  alone   BED_SEED=7 "), "{drawn}");
        assert!(with.contains(" scenario a_name\n") && with.contains("bed/dumps/1.34.4-a_name\n"), "{with}");
    }
}
