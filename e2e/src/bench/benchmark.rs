//! What a benchmark is, and what remains of it.

use std::pin::Pin;

use anyhow::Result;
use serde_json::{Value, json};

use crate::bed::{Bed, Options};

type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + 'a>>;

/// A benchmark's body.
#[derive(Clone, Copy, Debug)]
pub enum Body {
    /// In a bed of its own.
    InBed {
        /// The bed that it needs.
        options: fn() -> Options,
        /// What it does.
        measure: for<'a> fn(&'a mut Bed) -> Pending<'a, Vec<Figure>>,
    },
    /// In the namespaces alone: it starts the control planes that it needs, and prints its tables itself.
    Alone(fn() -> Pending<'static, Report>),
}

/// One benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Benchmark {
    /// Its name, also of the file with its figures.
    pub name: &'static str,
    /// What it does, and where.
    pub body: Body,
}

/// What remains of a benchmark.
#[derive(Clone, Debug)]
pub struct Report {
    /// All figures.
    pub json: Value,
    /// What was promised of any machine, and does not hold.
    pub broken: Vec<String>,
}

/// What a figure ought to be.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// This or less.
    AtMost(f64),
    /// This or more.
    AtLeast(f64),
    /// It is only to be known.
    None,
}

/// One row of the table.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What was measured.
    pub what: &'static str,
    /// The figure.
    pub value: f64,
    /// Its unit, empty for a count.
    pub unit: &'static str,
    /// What it ought to be.
    pub goal: Goal,
    /// The same, measured on something else in the same run.
    pub yardstick: Option<(&'static str, f64)>,
}

impl Figure {
    fn is_met(&self) -> bool {
        match self.goal {
            Goal::AtMost(most) => self.value <= most,
            Goal::AtLeast(least) => self.value >= least,
            Goal::None => true,
        }
    }

    /// The goal is that there is none: no figure of speed.
    fn is_a_promise(&self) -> bool {
        matches!(self.goal, Goal::AtMost(most) if most <= 0.0)
    }

    fn row(&self) -> String {
        let goal = match self.goal {
            Goal::AtMost(most) => format!("≤ {most}"),
            Goal::AtLeast(least) => format!("≥ {least}"),
            Goal::None => String::new(),
        };
        let yardstick = self.yardstick.map(|(what, value)| format!("{what}: {value:.2}")).unwrap_or_default();
        let met = if self.is_met() { "" } else { "MISSED" };
        format!("{:<52} {:>12.2} {:<5} {:<10} {:<7} {yardstick}", self.what, self.value, self.unit, goal, met)
    }
}

/// Prints figures as a table.
pub(super) fn print(name: &str, figures: &[Figure]) {
    println!("\n{:<52} {:>12} {:<5} {:<10} {:<7} yardstick", name, "figure", "", "goal", "");
    for figure in figures {
        println!("{}", figure.row());
    }
}

/// What remains of figures.
pub(super) fn report(figures: &[Figure]) -> Report {
    let broken = figures.iter().filter(|figure| figure.is_a_promise() && !figure.is_met()).map(|figure| figure.what.to_owned()).collect();
    let figures: Vec<_> = figures
        .iter()
        .map(|figure| {
            let yardstick = figure.yardstick.map(|(what, value)| json!({ "what": what, "value": value }));
            json!({ "what": figure.what, "value": figure.value, "unit": figure.unit, "met": figure.is_met(), "yardstick": yardstick })
        })
        .collect();
    Report { json: json!({ "figures": figures }), broken }
}
