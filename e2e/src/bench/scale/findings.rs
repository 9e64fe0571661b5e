//! What is found out, and said, on the way.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::bench::benchmark::{Figure, Goal};

/// What has been found out so far, so that a failure loses nothing of it.
#[derive(Debug, Default)]
pub struct Findings {
    pub figures: Vec<Figure>,
    /// What has no goal, for the line of JSON.
    pub details: BTreeMap<&'static str, Value>,
}

impl Findings {
    pub fn add(&mut self, what: &'static str, value: f64, unit: &'static str, goal: Goal, yardstick: Option<(&'static str, f64)>) {
        self.figures.push(Figure { what, value, unit, goal, yardstick });
    }
}

/// Says a line of progress.
pub type Say<'a> = &'a dyn Fn(&str);

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
pub fn precise(count: usize) -> f64 {
    count as f64
}
