//! Load through the load balancer, judged by both of its ends.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::{
    eventually::eventually,
    haproxy::{Counters, HaProxy},
    load::{Load, LoadOptions, Summary},
};

/// Load that is running, with `HAProxy`'s counters from before it.
#[derive(Debug)]
pub struct Traffic {
    load: Load,
    haproxy: HaProxy,
    before: Counters,
}

/// What became of the requests.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What the clients saw.
    pub clients: Summary,
    /// Failures that `HAProxy` counted meanwhile.
    pub at_load_balancer: u64,
}

impl Outcome {
    /// Failed requests: what either end saw, whichever is more.
    pub fn failed(&self) -> u64 {
        self.clients.failed().max(self.at_load_balancer)
    }

    /// Fails when a request did, or when there were fewer than `requests`.
    pub fn expect_all_served(&self, requests: u64) -> Result<()> {
        ensure!(self.failed() == 0, "{} of {} requests failed: {self:?}", self.failed(), self.clients.requests);
        ensure!(self.clients.requests >= requests, "only {} requests were made, not {requests}", self.clients.requests);
        Ok(())
    }
}

impl Traffic {
    /// Starts the load.
    pub async fn start(haproxy: &HaProxy, options: &LoadOptions) -> Result<Self> {
        let before = haproxy.counters().await?;
        Ok(Self { load: Load::start(options)?, haproxy: haproxy.clone(), before })
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

    /// Stops the load and counts.
    pub async fn stop(self) -> Result<Outcome> {
        let clients = self.load.stop().await?;
        let after = self.haproxy.counters().await?;
        Ok(Outcome { clients, at_load_balancer: after.failures_since(&self.before) })
    }
}
