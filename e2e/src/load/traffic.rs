//! Load through the load balancer, judged by both of its ends.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::{
    bed::{
        Bed,
        haproxy::{Counters, HaProxy, PATIENCE},
    },
    eventually::eventually,
};

use super::wrk::{Load, LoadOptions, Summary};

/// Requests in a second at least, on average. The default load could make 1,000; at 100 each of its 32 connections waits a third of a
/// second for an answer. That is a hundred times what we see on two cores that three other beds and a compiler use as well.
const LEAST_PER_SECOND: u64 = 100;

/// Load that is running, with `HAProxy`'s counters from before it. Load that is dropped, and not ended by one of its methods, fails the
/// scenario at its end.
#[derive(Debug)]
#[must_use = "load is judged"]
pub struct Traffic {
    load: Option<Load>,
    haproxy: HaProxy,
    before: Counters,
}

/// What became of the requests.
#[derive(Clone, Debug)]
#[must_use = "load is judged"]
pub struct Outcome {
    /// What the clients saw.
    pub clients: Summary,
    /// Failures that `HAProxy` counted meanwhile.
    pub at_load_balancer: u64,
    /// How long it ran.
    pub lasted: Duration,
}

impl Outcome {
    /// Failed requests: what either end saw, whichever is more.
    pub fn failed(&self) -> u64 {
        self.clients.failed().max(self.at_load_balancer)
    }

    /// Fails when more requests than these did, or when there were fewer than so much time makes.
    fn expect(&self, allowed: u64) -> Result<()> {
        ensure!(self.failed() <= allowed, "{} of {} requests failed: {self:?}", self.failed(), self.clients.requests);
        let least = u64::try_from(self.lasted.as_millis())? * LEAST_PER_SECOND / 1000;
        ensure!(self.clients.requests >= least, "only {} requests were made, not {least}: {self:?}", self.clients.requests);
        Ok(())
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        if self.load.is_some() {
            self.haproxy.loses_load();
        }
    }
}

impl Traffic {
    /// Starts the load.
    pub async fn start(haproxy: &HaProxy, options: &LoadOptions) -> Result<Self> {
        let before = haproxy.counters().await?;
        Ok(Self { load: Some(Load::start(options)?), haproxy: haproxy.clone(), before })
    }

    /// Requests so far.
    pub async fn requests(&self) -> Result<u64> {
        Ok(self.haproxy.counters().await?.requests.saturating_sub(self.before.requests))
    }

    /// Waits until there were `requests`, at most for `deadline`.
    pub async fn reaches(&self, requests: u64, deadline: Duration) -> Result<()> {
        eventually(deadline, &format!("{requests} requests are made"), async || {
            let now = self.requests().await?;
            ensure!(now >= requests, "there were {now}");
            Ok(())
        })
        .await
    }

    /// Ends the load, of which no request may have failed.
    pub async fn all_served(self, bed: &Bed) -> Result<()> {
        self.loses_at_most(0, bed).await
    }

    /// Ends the load, of which so many requests may have failed. Who calls it says why, and why not more.
    pub async fn loses_at_most(self, allowed: u64, bed: &Bed) -> Result<()> {
        let outcome = self.figures().await?;
        let lasted = outcome.lasted.as_secs_f32();
        bed.say(&format!("{} requests in {lasted:.1} s, {} failed", outcome.clients.requests, outcome.failed()));
        outcome.expect(allowed)
    }

    /// Ends the load and counts, for those to whom failures are a figure that they report.
    pub async fn figures(mut self) -> Result<Outcome> {
        // wrk does not count requests that it waits for when it ends. What was asked until now is answered when this is over, or has
        // failed.
        tokio::time::sleep(PATIENCE).await;
        let load = self.load.take().context("the load has ended")?;
        let lasted = load.elapsed();
        let clients = load.stop().await?;
        let after = self.haproxy.counters().await?;
        Ok(Outcome { clients, at_load_balancer: after.failures_since(&self.before), lasted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(requests: u64, bad_statuses: u64, at_load_balancer: u64) -> Outcome {
        let clients = Summary { requests, bad_statuses, ..Summary::default() };
        Outcome { clients, at_load_balancer, lasted: Duration::from_secs(10) }
    }

    #[test]
    fn failed_or_too_few_requests_fail_the_load() {
        assert!(outcome(1000, 0, 0).expect(0).is_ok());
        assert!(outcome(999, 0, 0).expect(0).is_err());
        assert!(outcome(1000, 1, 0).expect(0).is_err());
        assert!(outcome(1000, 0, 1).expect(0).is_err());
    }

    #[test]
    fn a_gap_that_is_allowed_is_bounded() {
        assert!(outcome(1000, 3, 2).expect(3).is_ok());
        assert!(outcome(1000, 4, 2).expect(3).is_err());
    }
}
