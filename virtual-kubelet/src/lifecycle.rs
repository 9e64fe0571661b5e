//! How far a controller is: not yet ready, ready, or done.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::watch;

/// What a controller tells of itself. Futures taken from it outlive the controller.
#[derive(Debug)]
pub(crate) struct Lifecycle<E> {
    ready: watch::Sender<bool>,
    done: watch::Sender<Option<Result<(), Arc<E>>>>,
}

impl<E> Default for Lifecycle<E> {
    fn default() -> Self {
        Self { ready: watch::Sender::new(false), done: watch::Sender::new(None) }
    }
}

impl<E: Send + Sync + 'static> Lifecycle<E> {
    pub(crate) fn set_ready(&self) {
        self.ready.send_replace(true);
    }

    pub(crate) fn set_done(&self, result: Result<(), Arc<E>>) {
        self.done.send_replace(Some(result));
    }

    /// Ends once the controller is ready; never when it ended before that.
    pub(crate) fn ready(&self) -> impl Future<Output = ()> + Send + 'static + use<E> {
        let mut ready = self.ready.subscribe();
        async move {
            if ready.wait_for(|ready| *ready).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Ends with the controller; one that was dropped has ended without an error.
    pub(crate) fn done(&self) -> impl Future<Output = Result<(), Arc<E>>> + Send + 'static + use<E> {
        let mut done = self.done.subscribe();
        async move {
            let result = done.wait_for(Option::is_some).await.map(|result| result.clone());
            result.ok().flatten().unwrap_or(Ok(()))
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn late_callers_also_learn_of_readiness_and_the_end() {
        let lifecycle = Lifecycle::<String>::default();
        assert_eq!(lifecycle.ready().now_or_never(), None);
        lifecycle.set_ready();
        lifecycle.ready().await;
        let early = lifecycle.done();
        lifecycle.set_done(Err(Arc::new("why".into())));
        assert_eq!(early.await.unwrap_err().as_str(), "why");
        assert_eq!(lifecycle.done().await.unwrap_err().as_str(), "why");
    }

    #[tokio::test]
    async fn a_controller_that_ended_unready_never_becomes_ready() {
        let lifecycle = Lifecycle::<String>::default();
        let (ready, done) = (lifecycle.ready(), lifecycle.done());
        drop(lifecycle);
        assert_eq!(ready.now_or_never(), None);
        assert_eq!(done.now_or_never(), Some(Ok(())));
    }
}
