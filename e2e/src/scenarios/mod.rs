//! All scenarios, by theme. A new one is written in its file, listed here and in `tests/scenarios.rs`.

pub mod product;
mod rollout;
mod serving;
pub mod workload;

use crate::scenario::Scenario;

/// Every scenario.
pub const ALL: &[Scenario] = &[serving::A_PLAIN_DEPLOYMENT, rollout::THREE_ROLLOUTS];
