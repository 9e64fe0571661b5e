//! How long, and how many at once, nodes are out in the eyes of the load balancer.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::haproxy::HaProxy;

/// How often `HAProxy` is asked; it checks nodes every 200 ms itself.
const INTERVAL: Duration = Duration::from_millis(50);

/// The worst that was seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Worst {
    pub(super) longest: Duration,
    pub(super) most: usize,
}

/// Looks until it is stopped.
pub(super) struct Outages {
    task: JoinHandle<Worst>,
    stop: CancellationToken,
}

impl Outages {
    pub(super) fn start(haproxy: &HaProxy) -> Self {
        let stop = CancellationToken::new();
        Self { task: tokio::spawn(watch(haproxy.clone(), stop.clone())), stop }
    }

    pub(super) async fn stop(self) -> Worst {
        self.stop.cancel();
        self.task.await.unwrap_or_default()
    }
}

async fn watch(haproxy: HaProxy, stop: CancellationToken) -> Worst {
    let mut worst = Worst::default();
    let mut out: BTreeMap<String, Instant> = BTreeMap::new();
    while !stop.is_cancelled() {
        if let Ok(counters) = haproxy.counters().await {
            let now = Instant::now();
            for (name, server) in counters.servers {
                if server.takes_traffic() {
                    out.remove(&name);
                } else {
                    let since = *out.entry(name).or_insert(now);
                    worst.longest = worst.longest.max(now - since);
                }
            }
            worst.most = worst.most.max(out.len());
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
    worst
}
