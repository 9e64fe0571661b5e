//! Waiting for a fact, with a deadline.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

/// How often [`eventually`] looks at first, and [`throughout`] always.
const INTERVAL: Duration = Duration::from_millis(50);
/// How often [`eventually`] looks at what takes long: its looks are a part of what keeps the API server busy.
const LONG_INTERVAL: Duration = Duration::from_millis(150);

/// Repeats `attempt` until it succeeds, at most for `deadline`. The error says what was waited for and why the last
/// attempt was not it; an attempt that hangs counts as one that failed.
pub async fn eventually<T>(deadline: Duration, what: &str, mut attempt: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let started = Instant::now();
    let mut last = anyhow!("nothing was seen");
    loop {
        let left = deadline.saturating_sub(started.elapsed());
        match tokio::time::timeout(left, attempt()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => last = error,
            Err(_) => {}
        }
        if started.elapsed() >= deadline {
            return Err(last.context(format!("not within {} s: {what}", deadline.as_secs_f32())));
        }
        tokio::time::sleep((started.elapsed() / 20).clamp(INTERVAL, LONG_INTERVAL)).await;
    }
}

/// Repeats `check` for the whole of `period` and fails as soon as it does.
pub async fn throughout(period: Duration, what: &str, mut check: impl AsyncFnMut() -> Result<()>) -> Result<()> {
    let started = Instant::now();
    while started.elapsed() < period {
        check().await.map_err(|error| error.context(format!("did not hold for {} s: {what}", period.as_secs_f32())))?;
        tokio::time::sleep(INTERVAL).await;
    }
    Ok(())
}
