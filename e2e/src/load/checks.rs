//! Health checks as load balancers make them, without pause: each node on connections made for one check, and on
//! connections that are kept as long as the node keeps them.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::bed::health_check::Client;

/// Time between two checks of one client.
const EVERY: Duration = Duration::from_millis(5);
/// As long as the bed's load balancer waits.
const PATIENCE: Duration = Duration::from_secs(1);
/// Checks that each client makes in a second at least. It could make 200; at 10 an answer takes a tenth of what a check may take.
const LEAST_PER_SECOND: u64 = 10;

/// Checks under way.
#[must_use = "checks are judged"]
pub struct Checks {
    started: Instant,
    asked: Arc<AtomicU64>,
    stop: CancellationToken,
    clients: JoinSet<Vec<String>>,
}

impl Checks {
    /// Starts two clients of each kind for each address.
    pub fn start(addresses: Vec<SocketAddr>) -> Self {
        let (asked, stop, mut clients) = (Arc::<AtomicU64>::default(), CancellationToken::new(), JoinSet::new());
        for address in addresses {
            for keeps in [false, false, true, true] {
                clients.spawn(check_on(address, keeps, asked.clone(), stop.clone()));
            }
        }
        Self { started: Instant::now(), asked, stop, clients }
    }

    /// Checks made so far.
    pub fn asked(&self) -> u64 {
        self.asked.load(Relaxed)
    }

    /// Ends them: how many were made. Fails when one was not answered 200, or when there were fewer than that much time makes.
    pub async fn all_answered(self) -> Result<u64> {
        let least = u64::try_from(self.started.elapsed().as_millis())? * u64::try_from(self.clients.len())? * LEAST_PER_SECOND / 1000;
        let (asked, wrong) = self.stop().await;
        ensure!(wrong.is_empty(), "{} of {asked} checks failed: {wrong:?}", wrong.values().sum::<u64>());
        ensure!(asked >= least, "only {asked} checks were made, not {least}");
        Ok(asked)
    }

    /// Ends them: how many were made, and what was wrong, how often, with those that were not answered 200.
    pub async fn stop(self) -> (u64, BTreeMap<String, u64>) {
        self.stop.cancel();
        let mut wrong = BTreeMap::new();
        for what in self.clients.join_all().await.concat() {
            *wrong.entry(what).or_default() += 1;
        }
        (self.asked.load(Relaxed), wrong)
    }
}

async fn check_on(address: SocketAddr, keeps: bool, asked: Arc<AtomicU64>, stop: CancellationToken) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut client = Client::new(address, keeps);
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !stop.is_cancelled() {
        ticks.tick().await;
        match timeout(PATIENCE, client.check()).await {
            Ok(Ok(answer)) if answer.starts_with("HTTP/1.1 200 ") => {}
            Ok(Ok(answer)) => wrong.push(format!("{address}: {answer}")),
            Ok(Err(error)) => wrong.push(format!("{address}: {error}")),
            Err(_) => wrong.push(format!("{address}: no answer within {PATIENCE:?}")),
        }
        asked.fetch_add(1, Relaxed);
    }
    wrong
}
