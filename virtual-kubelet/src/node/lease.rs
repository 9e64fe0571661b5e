//! The node's Lease in `kube-node-lease`.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::api::{Api, PostParams};

use crate::api_call::{ApiCallError, within};

/// Duration of a lease when none is asked for.
pub const DEFAULT_LEASE_DURATION: Duration = Duration::from_secs(40);

/// The lease was configured twice, or with a duration from which no renewal interval follows.
#[derive(Debug, thiserror::Error)]
#[error("conflicting lease controller configuration: {0}")]
pub struct ErrConflictingLeaseControllerConfiguration(pub String);

/// How the lease is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseOptions {
    /// How long a renewal lasts.
    pub duration: Duration,
}

impl Default for LeaseOptions {
    fn default() -> Self {
        Self { duration: DEFAULT_LEASE_DURATION }
    }
}

/// A quarter of the duration, so that three renewals may fail.
pub fn renew_interval(duration: Duration) -> Duration {
    duration / 4
}

/// Keeps one lease, with the last answer of the server at hand so that a renewal is one request.
pub(super) struct LeaseKeeper {
    pub api: Api<Lease>,
    pub node_name: String,
    pub duration: Duration,
    pub last: Option<Lease>,
}

impl LeaseKeeper {
    /// Renews or creates the lease for the node with `node_uid`.
    pub async fn renew(&mut self, node_uid: &str) -> Result<(), ApiCallError> {
        let known = match self.last.take() {
            Some(lease) => Some(lease),
            None => within(self.api.get_opt(&self.node_name)).await?,
        };
        let parameters = PostParams::default();
        let written = if let Some(lease) = known {
            if let Some(holder) = foreign_holder(&lease, &self.node_name) {
                tracing::warn!(holder, "taking the lease over from a foreign holder");
            }
            let renewed = renewed(lease, &self.node_name, node_uid, self.duration, Timestamp::now());
            within(self.api.replace(&self.node_name, &parameters, &renewed)).await?
        } else {
            let new = renewed(Lease::default(), &self.node_name, node_uid, self.duration, Timestamp::now());
            within(self.api.create(&parameters, &new)).await?
        };
        self.last = Some(written);
        Ok(())
    }
}

fn foreign_holder<'a>(lease: &'a Lease, node_name: &str) -> Option<&'a str> {
    lease.spec.as_ref()?.holder_identity.as_deref().filter(|holder| *holder != node_name)
}

fn renewed(lease: Lease, node_name: &str, node_uid: &str, duration: Duration, now: Timestamp) -> Lease {
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node_name.into(),
        uid: node_uid.into(),
        ..OwnerReference::default()
    };
    Lease {
        metadata: ObjectMeta { name: Some(node_name.into()), owner_references: Some(vec![owner]), ..lease.metadata },
        spec: Some(LeaseSpec {
            holder_identity: Some(node_name.into()),
            lease_duration_seconds: i32::try_from(duration.as_secs()).ok(),
            renew_time: Some(MicroTime(now)),
            ..lease.spec.unwrap_or_default()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_of_forty_seconds_is_renewed_every_ten() {
        assert_eq!(renew_interval(DEFAULT_LEASE_DURATION), Duration::from_secs(10));
    }

    #[test]
    fn a_renewed_lease_belongs_to_the_node_of_the_present_uid() {
        let first = renewed(Lease::default(), "n1", "uid-1", DEFAULT_LEASE_DURATION, Timestamp::UNIX_EPOCH);
        let again = renewed(first, "n1", "uid-2", DEFAULT_LEASE_DURATION, Timestamp::UNIX_EPOCH);
        let owners = again.metadata.owner_references.unwrap();
        assert_eq!(owners.len(), 1);
        assert_eq!(owners[0].uid, "uid-2");
        assert_eq!(again.spec.unwrap().lease_duration_seconds, Some(40));
    }
}
