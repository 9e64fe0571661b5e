//! Whether the provider answers.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tracing::{Instrument as _, info_span};

use super::provider::NodeProvider;

/// Asks one provider, one question at a time: a ping that got stuck is waited for again, not asked once more.
pub(super) struct Pinger<P> {
    provider: Arc<P>,
    timeout: Duration,
    running: Option<JoinHandle<Result<(), String>>>,
}

impl<P> Drop for Pinger<P> {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.abort();
        }
    }
}

impl<P: NodeProvider> Pinger<P> {
    pub fn new(provider: Arc<P>, timeout: Duration) -> Self {
        Self { provider, timeout, running: None }
    }

    /// The answer, or why there is none in time.
    pub async fn ping(&mut self) -> Result<(), String> {
        let running = self.running.get_or_insert_with(|| {
            let provider = self.provider.clone();
            let span = info_span!("provider_call", call = "ping", otel.name = "ping");
            tokio::spawn(async move { provider.ping().await.map_err(|error| error.to_string()) }.instrument(span))
        });
        let Ok(answer) = timeout(self.timeout, running).await else {
            return Err(format!("deadline exceeded: no answer within {:?}", self.timeout));
        };
        self.running = None;
        answer.unwrap_or_else(|error| Err(format!("the ping failed: {error}")))
    }

    /// Asks at each interval, and tells whenever the answer is another one; the first is a whole interval away.
    pub async fn keep_asking(mut self, every: Duration, healthy: watch::Sender<bool>) {
        let mut ticks = interval_at(Instant::now() + every, every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let answer = self.ping().await;
            if let Err(error) = &answer {
                tracing::warn!(error, "the node's provider does not answer, holding back status and lease");
            }
            healthy.send_if_modified(|healthy| std::mem::replace(healthy, answer.is_ok()) != answer.is_ok());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::provider::NodeStatusSink;
    use super::*;
    use crate::errdefs::ProviderError;

    /// Answers after `delay`, and counts.
    struct Slow {
        delay: Duration,
        asked: AtomicUsize,
        in_flight: AtomicUsize,
        most_in_flight: AtomicUsize,
    }

    impl Slow {
        fn new(delay: Duration) -> Arc<Self> {
            let zero = || AtomicUsize::new(0);
            Arc::new(Self { delay, asked: zero(), in_flight: zero(), most_in_flight: zero() })
        }
    }

    impl NodeProvider for Slow {
        async fn ping(&self) -> Result<(), ProviderError> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let now = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
            self.most_in_flight.fetch_max(now, Ordering::Relaxed);
            tokio::time::sleep(self.delay).await;
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
            Ok(())
        }

        fn notify_node_status(&self, _: NodeStatusSink) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_stuck_ping_times_out_without_starting_another() {
        let provider = Slow::new(Duration::from_hours(1));
        let mut pinger = Pinger::new(provider.clone(), Duration::from_millis(10));
        let started = Instant::now();
        let error = pinger.ping().await.unwrap_err();
        assert!(error.starts_with("deadline exceeded"), "{error}");
        assert_eq!(started.elapsed(), Duration::from_millis(10));
        let asking = pinger.keep_asking(Duration::from_millis(10), watch::Sender::new(false));
        let _ = timeout(Duration::from_secs(1), asking).await;
        assert_eq!((provider.asked.load(Ordering::Relaxed), provider.most_in_flight.load(Ordering::Relaxed)), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_ping_answer_still_counts_but_only_once() {
        let provider = Slow::new(Duration::from_secs(3));
        let mut pinger = Pinger::new(provider.clone(), Duration::from_secs(2));
        assert!(pinger.ping().await.is_err());
        assert!(pinger.ping().await.is_ok());
        assert!(pinger.ping().await.is_err());
        assert_eq!(provider.asked.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn the_second_ping_comes_one_interval_after_the_first() {
        let provider = Slow::new(Duration::ZERO);
        let mut pinger = Pinger::new(provider.clone(), Duration::from_secs(1));
        assert!(pinger.ping().await.is_ok());
        let asking = pinger.keep_asking(Duration::from_secs(10), watch::Sender::new(true));
        let _ = timeout(Duration::from_secs(25), asking).await;
        assert_eq!(provider.asked.load(Ordering::Relaxed), 3);
    }
}
