//! Chance that can be drawn again.

use anyhow::{Context as _, Result};

use crate::bed::Bed;

/// The variable that says the seed.
const SEED: &str = "BED_SEED";

/// The seed of what a scenario draws: that of `BED_SEED`, or a new one. It is printed.
pub fn seed(bed: &Bed) -> Result<u64> {
    let seed = match std::env::var(SEED) {
        Ok(given) => given.parse().with_context(|| format!("{SEED} is {given}"))?,
        Err(_) => fastrand::u64(..),
    };
    bed.say(&format!("drawn by {SEED}={seed}"));
    Ok(seed)
}
