//! Of all fleets whose nodes have the same names one acts at a time: that which holds the fleet's lease.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use tokio::time::{Instant, sleep};

use crate::api_call::{ApiCallError, within};

/// How long a fleet that is gone keeps others waiting.
const LASTS: Duration = Duration::from_secs(15);
const RENEW_EVERY: Duration = Duration::from_secs(5);
/// Time between two looks of a fleet that waits.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Longest time for giving the lease back.
const RELEASE_WITHIN: Duration = Duration::from_secs(2);

pub(super) struct Hold {
    api: Api<Lease>,
    name: String,
    /// Another one in each process.
    holder: String,
    /// False where the right to the lease is missing.
    is_kept: bool,
}

/// The lease of somebody else: its version, and when it was first seen.
type Seen = Option<(String, Instant)>;

fn holder_of(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

/// Whether `holder` may take the lease: clocks may differ, so what counts is how long it was seen unchanged here.
fn may_take(lease: &Lease, holder: &str, seen: &mut Seen, now: Instant) -> bool {
    if holder_of(lease).is_none_or(|other| other == holder) {
        return true;
    }
    let version = lease.resource_version().unwrap_or_default();
    let lasts = lease.spec.as_ref().and_then(|spec| u64::try_from(spec.lease_duration_seconds?).ok()).map_or(LASTS, Duration::from_secs);
    match seen {
        Some((before, since)) if *before == version => now.duration_since(*since) >= lasts,
        _ => {
            *seen = Some((version, now));
            false
        }
    }
}

impl Hold {
    /// For the fleet whose nodes' names begin so. No node has the lease's name, which ends with no number.
    pub fn new(client: Client, prefix: &str) -> Self {
        let holder = format!("fleet-{}-{:016x}", std::process::id(), fastrand::u64(..));
        Self { api: Api::namespaced(client, "kube-node-lease"), name: format!("{prefix}fleet"), holder, is_kept: true }
    }

    /// Ends once the lease is held, or cannot be for lack of rights, which is told.
    pub async fn acquire(&mut self) {
        let mut seen = None;
        let mut told: Option<String> = None;
        loop {
            match self.take(|lease, holder| may_take(lease, holder, &mut seen, Instant::now())).await {
                Ok(None) => return,
                Ok(Some(other)) if told.as_ref() != Some(&other) => {
                    tracing::warn!(lease = self.name, holder = other, "another fleet has nodes of these names; waiting until it ends");
                    told = Some(other);
                }
                Ok(Some(_)) => {}
                Err(ApiCallError::Forbidden(error)) => {
                    tracing::warn!(
                        lease = self.name,
                        error,
                        "no right to the fleet's lease; a second fleet with the same node names would go unnoticed"
                    );
                    self.is_kept = false;
                    return;
                }
                Err(error) => tracing::warn!(lease = self.name, %error, "taking the fleet's lease failed, retrying"),
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Renews the lease until somebody else has it: who that is. While the API server does not answer nobody can take it.
    pub async fn keep(&self) -> String {
        if !self.is_kept {
            std::future::pending::<()>().await;
        }
        loop {
            sleep(RENEW_EVERY).await;
            match self.take(|lease, holder| holder_of(lease).is_none_or(|other| other == holder)).await {
                Ok(None) => {}
                Ok(Some(other)) => return other,
                Err(error) => tracing::warn!(lease = self.name, %error, "renewing the fleet's lease failed"),
            }
        }
    }

    /// Gives the lease back, so that the next fleet need not wait.
    pub async fn release(&self) {
        let given_back = async {
            let Some(mut lease) = within(self.api.get_opt(&self.name)).await? else { return Ok(()) };
            if holder_of(&lease) == Some(&self.holder) {
                lease.spec.get_or_insert_default().holder_identity = Some(String::new());
                within(self.api.replace(&self.name, &PostParams::default(), &lease)).await?;
            }
            Ok::<_, ApiCallError>(())
        };
        if self.is_kept && !matches!(tokio::time::timeout(RELEASE_WITHIN, given_back).await, Ok(Ok(()))) {
            tracing::warn!(lease = self.name, "cannot release the fleet's lease; another fleet waits {} s", LASTS.as_secs());
        }
    }

    /// Writes the lease if it `may` be; else who has it.
    async fn take(&self, may: impl FnOnce(&Lease, &str) -> bool) -> Result<Option<String>, ApiCallError> {
        let found = within(self.api.get_opt(&self.name)).await?;
        let spec = LeaseSpec {
            holder_identity: Some(self.holder.clone()),
            lease_duration_seconds: i32::try_from(LASTS.as_secs()).ok(),
            renew_time: Some(MicroTime(Timestamp::now())),
            ..LeaseSpec::default()
        };
        let parameters = PostParams::default();
        match found {
            None => {
                let mut lease = Lease { spec: Some(spec), ..Lease::default() };
                lease.metadata.name = Some(self.name.clone());
                within(self.api.create(&parameters, &lease)).await?;
            }
            Some(lease) if !may(&lease, &self.holder) => return Ok(Some(holder_of(&lease).unwrap_or_default().to_owned())),
            Some(lease) => {
                // With the version that was read: of two that take it at the same time one gets a conflict.
                within(self.api.replace(&self.name, &parameters, &Lease { spec: Some(spec), ..lease })).await?;
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
#[path = "hold_tests.rs"]
mod tests;
