//! The frame of a scenario: its type, its run in a bed, and the verdict.
//! What a scenario does is in `scenarios/`; how many run, and where, is in `runs/`.
//! It reads the history, the logs and the audit log of the bed. It prints one line with the verdict, notes the rights that the scenario
//! used, and writes a dump of a bed in which the scenario failed.

pub mod chance;
pub mod dump;
pub mod panics;

use std::{
    pin::Pin,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use crate::{
    auditor::{AuditReport, Expectations},
    bed::{
        Bed, Options,
        rights::{self, Requests},
    },
};

/// Those in which machines die, or pods crash late, take six minutes by the clocks of kubelets and control plane. One that waits for what
/// does not come has to fail in time for the others.
pub const LONGEST: Duration = Duration::from_mins(8);

/// How the line with a good verdict begins; the seconds that it took follow.
pub const PASSED: &str = "passed in ";
/// How the line with a bad one does; the seconds follow, then the name and what was wrong.
pub const FAILED: &str = "FAILED after ";

/// A scenario's body.
pub type Body = for<'a> fn(&'a mut Bed) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// One end-to-end test.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The fact that it establishes, as an identifier.
    pub name: &'static str,
    /// The bed that it needs.
    pub options: fn() -> Options,
    /// What the auditor holds the operator to.
    pub expected: fn() -> Expectations,
    /// What it does.
    pub body: Body,
}

/// Scenarios that share a control plane and an operator, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// What they have in common, in a word.
    pub name: &'static str,
    /// In the order in which they run. One that leaves the bed in a state that [`Bed::clear`] cannot mend comes last.
    pub scenarios: &'static [Scenario],
}

/// Makes what the scenario `name` needs beside the workspace, outside of the namespaces and before its time begins.
pub fn prepare(name: &str, make: impl FnOnce(&str) -> Result<()>) -> Result<()> {
    let started = Instant::now();
    make(name).or_else(|error| tell(name, started, Err(error)))
}

/// Runs a scenario in this process, which must be inside the namespaces.
pub async fn run(scenario: &Scenario) -> Result<()> {
    run_as(scenario, Sharing::Alone).await
}

async fn run_as(scenario: &Scenario, sharing: Sharing) -> Result<()> {
    let started = Instant::now();
    let outcome = async {
        let mut bed = Bed::start((scenario.options)()).await.context("starting the bed")?;
        run_in(&mut bed, scenario, sharing).await
    };
    tell(scenario.name, started, outcome.await)
}

/// Runs the scenarios of a group from number `first` (from 0) on, in one bed, up to the first that fails: what comes after it needs
/// another bed.
pub async fn run_group(group: &Group, first: usize) -> Result<()> {
    if let [scenario] = group.scenarios {
        // It may see the cluster without the product.
        return run_as(scenario, Sharing::Only).await;
    }
    let mut shared = None;
    for scenario in group.scenarios.iter().skip(first) {
        let started = Instant::now();
        println!("-- {}", scenario.name);
        let outcome = async {
            let options = (scenario.options)();
            let bed = if let Some(bed) = &mut shared {
                bed
            } else {
                let Options { timing, critical_needs_quota, .. } = options.clone();
                let empty = Options { timing, critical_needs_quota, ..Options::default() }.with_infra();
                let bed = shared.insert(Bed::start(empty).await.context("starting the bed")?);
                begun(bed.share().await.context("installing the product for the group"), bed, scenario).await?;
                bed
            };
            let began = bed.begin(options).await.context("making nodes and load balancer");
            begun(began, bed, scenario).await?;
            run_in(bed, scenario, Sharing::Group).await
        };
        tell(scenario.name, started, outcome.await)?;
    }
    Ok(())
}

/// Leaves a dump if a scenario could not begin.
async fn begun(outcome: Result<()>, bed: &Bed, scenario: &Scenario) -> Result<()> {
    if outcome.is_err() {
        dump::tell(bed, scenario.name).await;
    }
    outcome
}

/// Prints the verdict, on a line that begins with [`PASSED`] or [`FAILED`].
fn tell(name: &str, started: Instant, outcome: Result<()>) -> Result<()> {
    match &outcome {
        Ok(()) => println!("{PASSED}{:.1} s: {name}", started.elapsed().as_secs_f32()),
        Err(error) => tell_failure(name, started, error),
    }
    outcome
}

/// Prints why it failed, on a line that begins with [`FAILED`].
pub fn tell_failure(name: &str, started: Instant, error: &anyhow::Error) {
    // One line, whatever the last error printed.
    let why = format!("{error:#}").replace('\n', " | ");
    println!("{FAILED}{:.1} s: {name}: {why}{}", started.elapsed().as_secs_f32(), chance::told());
}

/// Whether the bed is used again after the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// It is not, and it may be of no use any more.
    Alone,
    /// It is not: the scenario is the only one of its group. What it leaves of the product is looked for.
    Only,
    Group,
}

async fn run_in(bed: &mut Bed, scenario: &Scenario, sharing: Sharing) -> Result<()> {
    let violation = bed.recorder.first_violation((scenario.expected)());
    let outcome = tokio::select! {
        outcome = (scenario.body)(bed) => outcome,
        // All is as it was when it happened, for the dump.
        violation = violation => Err(anyhow::anyhow!("the auditor found this meanwhile: {violation}")),
        () = tokio::time::sleep(LONGEST) => Err(anyhow::anyhow!("it was not over after {} minutes", LONGEST.as_secs() / 60)),
    };
    let mut outcome = outcome.and_then(|()| bed.check());
    // A scenario that failed may have left no API to read.
    if outcome.is_ok() {
        outcome = bed.recorder.history().await.and_then(|history| panics::in_history(&history));
    }
    if let Err(panicked) = panics::in_logs(bed.state()) {
        outcome = Err(match outcome {
            Ok(()) => panicked,
            Err(error) => error.context(format!("{panicked:#}")),
        });
    }
    match requests(bed) {
        Ok(requests) => {
            // Of a scenario that had the bed to itself, and came to its end, it is known what it used. One that is for virtual kubelets
            // shows on machines what the operator uses, and not what virtual kubelets do.
            let on_its_own_nodes = bed.has_kubelets() == (scenario.options)().kubelets;
            if sharing != Sharing::Group && on_its_own_nodes && outcome.is_ok() {
                outcome = requests.note_down(scenario.name);
            }
            if !(scenario.options)().takes_rights_away {
                outcome = outcome.and(requests.expect_none_forbidden());
            }
        }
        Err(error) => outcome = outcome.and(Err(error)),
    }
    match judge(bed, scenario).await {
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
    if outcome.is_ok() {
        outcome = match sharing {
            Sharing::Alone => Ok(()),
            Sharing::Only => bed.delete_resources().await.context("deleting the resources of the only scenario"),
            Sharing::Group => bed.clear().await.context("clearing the bed for the next scenario"),
        };
        // Clearing up needs rights, too, and may be what an operator does not survive.
        if sharing != Sharing::Alone {
            outcome = outcome.and_then(|()| panics::in_logs(bed.state()));
            if !(scenario.options)().takes_rights_away {
                outcome = outcome.and_then(|()| requests(bed)?.expect_none_forbidden());
            }
        }
    }
    if outcome.is_err() {
        dump::tell(bed, scenario.name).await;
    }
    outcome
}

fn requests(bed: &Bed) -> Result<Requests> {
    let mut requests = rights::read(bed.state())?;
    if bed.has_kubelets() {
        requests.forget_nodes();
    }
    Ok(requests)
}

async fn judge(bed: &Bed, scenario: &Scenario) -> Result<AuditReport> {
    let started = Instant::now();
    let verdict = bed.recorder.judge(&(scenario.expected)()).await?;
    let (changes, answers, seconds) = (verdict.observations, verdict.answers, started.elapsed().as_secs_f32());
    bed.say(&format!(
        "the auditor judged {changes} changes and {answers} answers of health checkers in {seconds:.1} s: {} violations",
        verdict.violations.len()
    ));
    Ok(verdict)
}
