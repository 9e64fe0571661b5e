//! The scenarios of `make test`, in groups that share beds, several at once.

use std::{process::ExitCode, time::Instant};

use anyhow::Result;
use parking_lot::Mutex;

use super::{
    several,
    verdict::{Verdict, conclude, read_verdict, run, say},
};
use crate::{scenario::Group, scenarios};

/// Runs the groups that `make test` consists of, `beds` at once.
pub fn test(beds: usize) -> Result<ExitCode> {
    let started = Instant::now();
    let verdicts: Mutex<Vec<Verdict>> = Mutex::default();
    several(beds, scenarios::GROUPS, |group| {
        let of_group = run_group(group)?;
        verdicts.lock().extend(of_group);
        Ok(())
    })?;
    Ok(conclude(&verdicts.into_inner(), started.elapsed()))
}

/// Every scenario of the group, each once. The one after a failure begins with another bed.
fn run_group(group: &Group) -> Result<Vec<Verdict>> {
    let mut verdicts: Vec<Verdict> = Vec::new();
    while let Some(scenario) = group.scenarios.get(verdicts.len()) {
        let first = verdicts.len().to_string();
        let end = run(group.name, &["group", group.name, "--first", &first], &[], |line| {
            if let Some(verdict) = read_verdict(line, group.name) {
                say(&verdict, group.name);
                verdicts.push(verdict);
            }
        })?;
        let told = verdicts.last().is_some_and(|last| last.failure.is_some()) || verdicts.len() == group.scenarios.len();
        if told {
            if let Some(last) = verdicts.last_mut()
                && last.ends(end)
            {
                say(last, group.name);
            }
        } else {
            // It crashed in the scenario after the last verdict.
            let name = group.scenarios.get(verdicts.len()).unwrap_or(scenario).name.to_owned();
            let verdict = Verdict {
                name,
                part: group.name.to_owned(),
                seconds: 0.0,
                failure: Some(format!("it ended without a verdict ({end})")),
                environment: Vec::new(),
            };
            say(&verdict, group.name);
            verdicts.push(verdict);
        }
    }
    Ok(verdicts)
}
