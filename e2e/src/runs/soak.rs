//! Every scenario and the demo, each in its own bed. Undisturbed, one at a time, it takes hours: what was stopped goes on where it was.

use std::{
    fs,
    io::Write as _,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{
    compiler::Compiler,
    several,
    verdict::{DEMO, Verdict, conclude, run_one, say, shown},
};
use crate::{bed::rights, host::images, scenario::dump, scenarios};

/// Programs whose change makes verdicts worth nothing; so does that of the control plane, of [`INSTALLED`], and of the guides, whose commands
/// scenarios run.
const PROGRAMS: [&str; 5] = ["bed", "ingress-daemonset-operator", "health-checker", "virtual-kubelet", "kubectl-ids"];

/// Directories of manifests that scenarios install.
const INSTALLED: [&str; 2] = ["deploy", "crds/manifests"];

/// What a soak consists of. A state of another one is not gone on with.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Plan {
    /// Digest of the programs, of what is installed, and of the guides.
    programs: String,
    only: Option<String>,
    repeat: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct State {
    plan: Plan,
    verdicts: Vec<Verdict>,
    /// How long it has run, in all its parts.
    took: Duration,
}

/// Runs the scenario `only`, or all that have it in their name (the demo is called `demo`), `repeat` times, in so many beds at once.
///
/// The demo is always alone: it counts what a machine serves. Scenarios that compare how long something takes are always alone, too.
/// Every second repetition of the demo runs beside a compiler on both cores: that is how it is first met.
pub fn soak(only: Option<&str>, repeat: u32, beds: usize) -> Result<ExitCode> {
    let names: Vec<_> = scenarios::names().into_iter().chain([DEMO]).collect();
    let chosen = choose(&names, only);
    ensure!(!chosen.is_empty(), "no scenario has `{}` in its name; `bed list` lists them", only.unwrap_or_default());
    let repeat = repeat.max(1);
    let path = images::repository().join("target/bed").join(state_file(only));
    let plan = Plan { programs: programs()?, only: only.map(str::to_owned), repeat };
    let state = match fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<State>(&bytes).ok()) {
        Some(state) if state.plan == plan => state,
        _ => State { plan, verdicts: Vec::new(), took: Duration::ZERO },
    };
    if state.verdicts.is_empty() && only.is_none() {
        // What former runs used says nothing of this one.
        rights::forget()?;
    }
    if !state.verdicts.is_empty() {
        println!("going on after {} that were run; remove {} to begin anew", state.verdicts.len(), shown(&path));
    }
    let (started, before) = (Instant::now(), state.took);
    let (alone, others): (Vec<_>, Vec<_>) = (1..=repeat)
        .flat_map(|number| chosen.iter().map(move |name| (number, *name)))
        .filter(|(number, name)| !state.verdicts.iter().any(|verdict| verdict.name == *name && verdict.part == part(*number, repeat, name)))
        .partition(|(_, name)| *name == DEMO || scenarios::compares_times(name));
    let state = Mutex::new(state);
    let run = |(number, name)| {
        let verdict = one(number, repeat, name)?;
        say(&verdict, name);
        let mut state = state.lock();
        state.verdicts.push(verdict);
        state.took = before + started.elapsed();
        write(&path, &state)
    };
    several(beds, others, run)?;
    several(1, alone, run)?;
    let mut state = state.into_inner();
    if only.is_none() && state.verdicts.iter().any(|verdict| verdict.failure.is_some()) {
        println!("not run  rights: a scenario that failed has not shown which rights it uses");
    } else if only.is_none() {
        // All scenarios together show which rights are used.
        let failure = rights::check(&scenarios::names()).err().map(|error| format!("{error:#}"));
        if let Some(failure) = &failure {
            println!("FAILED  rights: {failure}\n        alone   target/debug/bed rights");
        }
        let (name, part) = ("rights".to_owned(), "all".to_owned());
        state.verdicts.push(Verdict { name, part, seconds: 0.0, failure, environment: Vec::new() });
    }
    let code = conclude(&state.verdicts, state.took);
    // It has come to its end: the next one begins anew.
    fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
    Ok(code)
}

/// All, or the one of this name, or those that have it in theirs.
pub(super) fn choose<'a>(names: &[&'a str], only: Option<&str>) -> Vec<&'a str> {
    let Some(only) = only else { return names.to_vec() };
    let exactly: Vec<_> = names.iter().copied().filter(|name| *name == only).collect();
    if exactly.is_empty() { names.iter().copied().filter(|name| name.contains(only)).collect() } else { exactly }
}

/// A soak of some scenarios leaves one of all as it was stopped. `only` is a part of a scenario's name.
fn state_file(only: Option<&str>) -> String {
    only.map_or_else(|| "soak.json".to_owned(), |only| format!("soak-{only}.json"))
}

fn beside_a_compiler(number: u32, name: &str) -> bool {
    name == DEMO && number.is_multiple_of(2)
}

fn part(number: u32, of: u32, name: &str) -> String {
    match of {
        1 => "alone".to_owned(),
        _ if beside_a_compiler(number, name) => format!("{number} of {of}, beside a compiler"),
        _ => format!("{number} of {of}"),
    }
}

fn one(number: u32, of: u32, name: &str) -> Result<Verdict> {
    let beside = beside_a_compiler(number, name).then(Compiler::start).transpose()?;
    let mut verdict = run_one(name, name, &part(number, of, name), &[])?;
    let disturbed = beside.map_or(Ok(()), Compiler::stop);
    if let (None, Err(error)) = (&verdict.failure, disturbed) {
        verdict.failure = Some(format!("it passed, but not beside a compiler: {error:#}"));
    }
    Ok(verdict)
}

fn write(path: &PathBuf, state: &State) -> Result<()> {
    // A state that is half written would be lost.
    let new = path.with_extension("new");
    let mut file = fs::File::create(&new).with_context(|| format!("creating {}", new.display()))?;
    file.write_all(&serde_json::to_vec(state)?)?;
    fs::rename(&new, path).with_context(|| format!("writing {}", path.display()))
}

fn programs() -> Result<String> {
    let repository = images::repository();
    let mut paths = PROGRAMS.iter().map(|name| images::workspace_binary(name)).collect::<Result<Vec<_>>>()?;
    paths.push(repository.join("target/bed/control-plane"));
    for directory in INSTALLED {
        let mut manifests = dump::files(&repository.join(directory), &["yaml"])?;
        manifests.sort();
        paths.extend(manifests);
    }
    paths.push(repository.join("README.md"));
    let mut guides = dump::files(&repository.join("docs"), &["md"])?;
    guides.sort();
    paths.extend(guides);
    let mut digest = Sha256::new();
    for path in paths {
        digest.update(fs::read(&path).with_context(|| format!("reading {}", path.display()))?);
    }
    Ok(format!("{:x}", digest.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_every_second_demo_runs_beside_a_compiler() {
        assert_eq!(part(1, 1, DEMO), "alone");
        assert_eq!([part(1, 3, DEMO), part(2, 3, DEMO)], ["1 of 3", "2 of 3, beside a compiler"]);
        assert_eq!(part(2, 3, "an_operator_dies"), "2 of 3");
    }

    #[test]
    fn a_partial_soak_leaves_the_full_soaks_state_alone() {
        assert_eq!([state_file(None), state_file(Some(DEMO))], ["soak.json", "soak-demo.json"]);
    }

    #[test]
    fn a_whole_name_chooses_one_and_a_part_all_matches() {
        let names = ["the_demo_of_others", "an_operator_dies", DEMO];
        assert_eq!(choose(&names, None), names);
        assert_eq!(choose(&names, Some(DEMO)), [DEMO]);
        assert_eq!(choose(&names, Some("the_demo")), ["the_demo_of_others"]);
        assert_eq!(choose(&names, Some("dies")), ["an_operator_dies"]);
        assert!(choose(&names, Some("nobody")).is_empty());
    }
}
