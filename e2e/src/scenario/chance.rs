//! Chance that can be drawn again.

use anyhow::{Context as _, Result};
use parking_lot::Mutex;

use crate::bed::Bed;

/// The variable that says the seed.
const SEED: &str = "BED_SEED";
/// What the scenario under way was drawn by.
static DRAWN: Mutex<Option<u64>> = Mutex::new(None);

/// The seed of what a scenario draws: that of `BED_SEED`, or a new one. It is printed.
pub fn seed(bed: &Bed) -> Result<u64> {
    let seed = match std::env::var(SEED) {
        Ok(given) => given.parse().with_context(|| format!("{SEED} is {given}"))?,
        Err(_) => fastrand::u64(..),
    };
    bed.say(&format!("drawn by {SEED}={seed}"));
    *DRAWN.lock() = Some(seed);
    Ok(seed)
}

/// What a scenario that ends says of its seed, if it has drawn anything.
pub fn told() -> String {
    let drawn = DRAWN.lock().take();
    drawn.map(|seed| format!(" (drawn by {SEED}={seed})")).unwrap_or_default()
}

/// The same, read from a failure: the variable and its value.
pub fn in_message(why: &str) -> Option<&str> {
    let (_, from) = why.split_once("(drawn by ")?;
    from.split_once(')').map(|(variable, _)| variable)
}
