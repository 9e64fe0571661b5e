//! The node's Lease in `kube-node-lease`.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use tokio::time::Instant;

use crate::api_call::{ApiCallError, within};

/// Duration of a lease when none is asked for: a kubelet's.
pub const DEFAULT_LEASE_DURATION: Duration = Duration::from_secs(40);
/// Part of a lease's duration after which it is renewed, so that three renewals may fail.
pub const DEFAULT_RENEW_INTERVAL_FRACTION: f64 = 0.25;

/// More than one option configures the lease.
///
/// ```no_run
/// use std::time::Duration;
///
/// use virtual_kubelet::node::{ErrConflictingLeaseControllerConfiguration, NodeController, NodeControllerError, NodeProvider};
/// use virtual_kubelet::node::{with_node_enable_lease_v1, with_node_enable_lease_v1_with_renew_interval};
/// # use k8s_openapi::api::core::v1::Node;
///
/// # fn example<P: NodeProvider>(client: kube::Client, provider: std::sync::Arc<P>, node: Node) {
/// let options = [
///     with_node_enable_lease_v1(Duration::from_secs(40)),
///     with_node_enable_lease_v1_with_renew_interval(Duration::from_secs(40), Duration::from_secs(5)),
/// ];
/// let refused = NodeController::new(client, provider, node, options).err();
/// assert!(matches!(refused, Some(NodeControllerError::ConflictingLease(ErrConflictingLeaseControllerConfiguration))));
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Multiple, conflicting lease configurations have been put into place")]
pub struct ErrConflictingLeaseControllerConfiguration;

/// What is done about a lease that somebody else holds. It is reported in any case.
///
/// ```
/// use virtual_kubelet::node::{ForeignHolder, with_node_lease_foreign_holder};
///
/// // Two programs of which one shall stand by until the other is gone.
/// let option = with_node_lease_foreign_holder(ForeignHolder::Wait);
/// assert_eq!(ForeignHolder::default(), ForeignHolder::TakeOver);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForeignHolder {
    /// It is taken over at once: the node's name is ours. A kubelet does the same.
    #[default]
    TakeOver,
    /// It is taken over when its holder has not renewed it for its duration.
    Wait,
}

/// Keeps one lease, with the last answer of the server at hand so that a renewal is one request.
pub(super) struct LeaseKeeper {
    pub api: Api<Lease>,
    pub node_name: String,
    pub duration: Duration,
    pub foreign_holder: ForeignHolder,
    pub last: Option<Lease>,
    /// Version of a lease of somebody else, and when it was first seen.
    pub foreign: Option<(String, Instant)>,
}

impl LeaseKeeper {
    /// Renews or creates the lease for the node with `node_uid`; false when somebody else has it.
    pub async fn renew(&mut self, node_uid: &str) -> Result<bool, ApiCallError> {
        let known = match self.last.take() {
            Some(lease) => Some(lease),
            None => within(self.api.get_opt(&self.node_name)).await?,
        };
        let parameters = PostParams::default();
        let written = if let Some(lease) = known {
            if let Some(holder) = foreign_holder(&lease, &self.node_name) {
                if !self.may_take_over(&lease) {
                    tracing::warn!(holder, "somebody else holds the node's lease");
                    return Ok(false);
                }
                tracing::warn!(holder, "taking over the lease from another holder");
            }
            let renewed = renewed(lease, &self.node_name, node_uid, self.duration, Timestamp::now());
            within(self.api.replace(&self.node_name, &parameters, &renewed)).await?
        } else {
            let new = renewed(Lease::default(), &self.node_name, node_uid, self.duration, Timestamp::now());
            within(self.api.create(&parameters, &new)).await?
        };
        self.foreign = None;
        self.last = Some(written);
        Ok(true)
    }

    /// Whether a lease that somebody else holds may be taken over: clocks may differ, so what counts is how long it was
    /// seen unchanged here.
    fn may_take_over(&mut self, lease: &Lease) -> bool {
        if self.foreign_holder == ForeignHolder::TakeOver {
            return true;
        }
        let version = lease.resource_version().unwrap_or_default();
        let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).and_then(|seconds| u64::try_from(seconds).ok());
        let lasts = seconds.map_or(self.duration, Duration::from_secs);
        match &self.foreign {
            Some((seen, since)) if *seen == version => since.elapsed() >= lasts,
            _ => {
                self.foreign = Some((version, Instant::now()));
                false
            }
        }
    }
}

fn foreign_holder<'a>(lease: &'a Lease, node_name: &str) -> Option<&'a str> {
    lease.spec.as_ref()?.holder_identity.as_deref().filter(|holder| !holder.is_empty() && *holder != node_name)
}

/// Everything of the lease is set, so that a duration, a holder or an owner of an earlier life does not stay.
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
    fn a_renewed_lease_is_owned_by_the_present_uid() {
        let first = renewed(Lease::default(), "n1", "uid-1", DEFAULT_LEASE_DURATION, Timestamp::UNIX_EPOCH);
        let again = renewed(first, "n1", "uid-2", DEFAULT_LEASE_DURATION, Timestamp::UNIX_EPOCH);
        let owners = again.metadata.owner_references.unwrap();
        assert_eq!(owners.len(), 1);
        assert_eq!(owners[0].uid, "uid-2");
        assert_eq!(again.spec.unwrap().lease_duration_seconds, Some(40));
    }

    #[test]
    fn a_renewal_corrects_holder_and_duration_of_an_earlier_life() {
        let spec = LeaseSpec { holder_identity: Some("kwok".into()), lease_duration_seconds: Some(7), ..LeaseSpec::default() };
        let lease = Lease { spec: Some(spec), ..Lease::default() };
        assert_eq!(foreign_holder(&lease, "n1"), Some("kwok"));
        let spec = renewed(lease, "n1", "uid", DEFAULT_LEASE_DURATION, Timestamp::UNIX_EPOCH).spec.unwrap();
        assert_eq!((spec.holder_identity.as_deref(), spec.lease_duration_seconds), (Some("n1"), Some(40)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_awaited_foreign_lease_is_taken_over_only_after_expiry() {
        let (service, _server) = tower_test::mock::pair::<http::Request<kube::client::Body>, http::Response<kube::client::Body>>();
        let api = Api::namespaced(kube::Client::new(service, "default"), "kube-node-lease");
        let mut keeper = LeaseKeeper {
            api,
            node_name: "n1".into(),
            duration: DEFAULT_LEASE_DURATION,
            foreign_holder: ForeignHolder::Wait,
            last: None,
            foreign: None,
        };
        let lease = |version: &str| Lease {
            metadata: ObjectMeta { resource_version: Some(version.into()), ..ObjectMeta::default() },
            spec: Some(LeaseSpec { lease_duration_seconds: Some(20), ..LeaseSpec::default() }),
        };
        assert!(!keeper.may_take_over(&lease("1")));
        tokio::time::advance(Duration::from_secs(19)).await;
        assert!(!keeper.may_take_over(&lease("1")));
        assert!(!keeper.may_take_over(&lease("2")));
        tokio::time::advance(Duration::from_secs(20)).await;
        assert!(keeper.may_take_over(&lease("2")));
    }
}
