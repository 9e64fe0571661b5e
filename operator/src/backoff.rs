//! Pauses after failures in a row.

use backon::{BackoffBuilder as _, ExponentialBuilder};
use std::time::Duration;

/// The pause after one more failure than `failures`: the first, doubled for each of them up to the longest.
pub fn pause((first, longest): (Duration, Duration), failures: u32) -> Duration {
    nth(ExponentialBuilder::default(), (first, longest), failures)
}

/// The same, and up to twice as long by chance, so that what fails together is not tried again together.
pub fn pause_with_jitter(bounds: (Duration, Duration), failures: u32) -> Duration {
    nth(ExponentialBuilder::default().with_jitter(), bounds, failures)
}

fn nth(pauses: ExponentialBuilder, (first, longest): (Duration, Duration), failures: u32) -> Duration {
    let mut pauses = pauses.with_min_delay(first).with_max_delay(longest.max(first)).without_max_times().build();
    pauses.nth(usize::try_from(failures.min(16)).unwrap_or(16)).unwrap_or(longest)
}
