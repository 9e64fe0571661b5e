//! The frame of scenarios: each runs in a bed of its own and fails with everything that is needed to see why.

use std::{pin::Pin, time::Instant};

use anyhow::{Context, Result, bail};

use crate::{
    bed::{Bed, Options},
    scenarios,
};

/// A scenario's body.
pub type Body = for<'a> fn(&'a mut Bed) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// One end-to-end test.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The fact that it establishes, as an identifier. Its test has the same name.
    pub name: &'static str,
    /// The bed that it needs.
    pub options: fn() -> Options,
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
    (scenario.body)(&mut bed).await?;
    bed.check()
}
