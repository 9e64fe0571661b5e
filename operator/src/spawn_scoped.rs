//! Work on whichever thread is free, instead of that of its caller.

use tokio_util::task::AbortOnDropHandle;

/// Runs `work` as a task of its own, which is stopped when this is dropped. A panic of the work goes on here.
pub async fn spawn_scoped<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    match AbortOnDropHandle::new(tokio::spawn(work)).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends: nobody waits any more.
            Err(_) => std::future::pending().await,
        },
    }
}
