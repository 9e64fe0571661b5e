//! The frame of scenarios: each runs in a bed of its own and fails with everything that is needed to see why.

use std::{
    pin::Pin,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{
    auditor::{Expectations, Verdict},
    bed::{Bed, Options},
    dump, rights, scenarios,
};

/// No scenario takes half as long on two busy cores. One that waits for what does not come has to fail in time for the others.
const LONGEST: Duration = Duration::from_mins(8);

/// A scenario's body.
pub type Body = for<'a> fn(&'a mut Bed) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// One end-to-end test.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The fact that it establishes, as an identifier. Its test has the same name.
    pub name: &'static str,
    /// The bed that it needs.
    pub options: fn() -> Options,
    /// What the auditor holds the operator to.
    pub expected: fn() -> Expectations,
    /// What it does.
    pub body: Body,
}

/// Runs the scenario `name` in this process, which must be inside the namespaces.
pub async fn run(name: &str) -> Result<()> {
    let Some(scenario) = scenarios::ALL.iter().find(|scenario| scenario.name == name) else {
        bail!("there is no scenario `{name}`; `bed list` lists them");
    };
    let started = Instant::now();
    let outcome = run_in_own_bed(scenario).await;
    let seconds = started.elapsed().as_secs_f32();
    match &outcome {
        Ok(()) => println!("passed in {seconds:.1} s: {name}"),
        Err(error) => println!("FAILED after {seconds:.1} s: {name}: {error:#}"),
    }
    outcome
}

async fn run_in_own_bed(scenario: &Scenario) -> Result<()> {
    let mut bed = Bed::start((scenario.options)()).await.context("starting the bed")?;
    let violation = bed.recorder.first_violation((scenario.expected)());
    let outcome = tokio::select! {
        outcome = (scenario.body)(&mut bed) => outcome,
        // All is as it was when it happened, for the dump.
        violation = violation => Err(anyhow::anyhow!("the auditor found this meanwhile: {violation}")),
        () = tokio::time::sleep(LONGEST) => Err(anyhow::anyhow!("it was not over after {} minutes", LONGEST.as_secs() / 60)),
    };
    let mut outcome = outcome.and_then(|()| bed.check());
    if let Err(error) = rights::judge(bed.state(), scenario.name) {
        println!("rights: {error:#}");
        outcome = outcome.and(Err(error));
    }
    match judge(&bed, scenario).await {
        Ok(verdict) if verdict.violations.is_empty() => {}
        Ok(verdict) => {
            for violation in &verdict.violations {
                println!("auditor: {violation}");
            }
            let found = format!("the auditor found {} violations, see above", verdict.violations.len());
            outcome = match outcome {
                Ok(()) => Err(anyhow::anyhow!(found)),
                Err(error) => Err(error.context(found)),
            };
        }
        // A scenario that failed may have left no API to read.
        Err(error) => outcome = outcome.and(Err(error)),
    }
    if outcome.is_err() {
        match dump::write(&bed, scenario.name).await {
            Ok(path) => println!("objects, history and logs are in {}", path.display()),
            Err(error) => println!("writing the dump failed as well: {error:#}"),
        }
    }
    outcome
}

async fn judge(bed: &Bed, scenario: &Scenario) -> Result<Verdict> {
    let started = Instant::now();
    let verdict = bed.recorder.judge(&(scenario.expected)()).await?;
    let (changes, answers, seconds) = (verdict.observations, verdict.answers, started.elapsed().as_secs_f32());
    bed.say(&format!(
        "the auditor judged {changes} changes and {answers} answers of health checkers in {seconds:.1} s: {} violations",
        verdict.violations.len()
    ));
    Ok(verdict)
}
