//! The lease of one node of a fleet. Nobody watches leases: the version of our own last write is at hand, so that a renewal is
//! one request, and what else happened to the lease is noticed by the answer.

use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use tokio::time::Instant;

use super::limiter::Slot;
use super::requests::{Call, Failure, Requests, Written, bytes};
use crate::node::ForeignHolder;

const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
/// Requests of one attempt: each answer may send it another way, and under a storm of conflicts it would go round.
const MOST_REQUESTS: usize = 4;

/// What is known of a lease.
#[derive(Clone, Debug, Default)]
pub(super) enum Known {
    /// Nothing: it is read first.
    #[default]
    Unknown,
    /// It is not there.
    Missing,
    /// It is there, in this version.
    Version(Box<str>),
}

#[derive(Debug, Default)]
pub(super) struct LeaseRecord {
    pub known: Known,
    /// Labels and annotations of others, which a renewal must not take away.
    others: Option<Box<ObjectMeta>>,
    /// Version of a lease of somebody else, and when it was first seen.
    foreign: Option<(Box<str>, Instant)>,
}

/// How an attempt ended.
#[derive(Debug)]
pub(super) enum Renewal {
    /// It is renewed.
    Done,
    /// Somebody else holds it, and may for now.
    Foreign,
    /// It is to be tried again.
    Failed(Failure),
}

/// Whose lease it is.
#[derive(Debug)]
pub(super) struct Holder {
    pub node: String,
    pub node_uid: String,
    pub duration: Duration,
    pub policy: ForeignHolder,
}

impl LeaseRecord {
    /// Renews the lease, or creates it, with as few requests as can be.
    pub async fn renew(&mut self, requests: &Requests, slot: &Slot, holder: &Holder) -> Renewal {
        let path = format!("{PATH}/{}", holder.node);
        let call = |method: Method, path: &str, body: Vec<u8>| Call {
            whole: method == Method::GET,
            method,
            resource: "leases",
            path: path.to_owned(),
            node: holder.node.clone(),
            body,
        };
        let mut last = None;
        for _ in 0..MOST_REQUESTS {
            let (written, next) = match &self.known {
                Known::Unknown => match requests.call::<Lease>(slot, call(Method::GET, &path, Vec::new())).await {
                    Ok(lease) if !self.may_take(&lease, holder) => return Renewal::Foreign,
                    Ok(lease) => {
                        self.note(lease);
                        continue;
                    }
                    Err(failure) => (Err(failure), Known::Missing),
                },
                Known::Missing => {
                    let body = self.lease(None, holder, Timestamp::now());
                    (requests.call::<Written>(slot, call(Method::POST, PATH, bytes(&body))).await, Known::Unknown)
                }
                Known::Version(version) => {
                    let body = self.lease(Some(version), holder, Timestamp::now());
                    let result = requests.call::<Written>(slot, call(Method::PUT, &path, bytes(&body))).await;
                    let gone = matches!(&result, Err(failure) if failure.code == Some(404));
                    (result, if gone { Known::Missing } else { Known::Unknown })
                }
            };
            match written {
                Ok(written) => {
                    self.known = Known::Version(written.metadata.resource_version.into());
                    self.foreign = None;
                    return Renewal::Done;
                }
                Err(failure) => {
                    // Anything else says nothing about the lease.
                    let telling = match self.known {
                        Known::Missing => failure.code == Some(409),
                        Known::Unknown => failure.code == Some(404),
                        Known::Version(_) => matches!(failure.code, Some(404 | 409)),
                    };
                    if !telling {
                        return Renewal::Failed(failure);
                    }
                    if matches!(next, Known::Missing) {
                        self.others = None;
                    }
                    self.known = next;
                    last = Some(failure);
                }
            }
        }
        let none = Failure { code: None, retry_after: None, message: "the lease changes faster than it can be read".into() };
        Renewal::Failed(last.unwrap_or(none))
    }

    /// Whether a lease that was read may be written.
    fn may_take(&mut self, lease: &Lease, holder: &Holder) -> bool {
        let spec = lease.spec.as_ref();
        let other = spec.and_then(|spec| spec.holder_identity.as_deref()).filter(|other| !other.is_empty() && *other != holder.node);
        let Some(other) = other else { return true };
        if holder.policy == ForeignHolder::TakeOver {
            tracing::warn!(node = holder.node, holder = other, "taking over the lease from another holder");
            return true;
        }
        let lasts = spec.and_then(|spec| u64::try_from(spec.lease_duration_seconds?).ok()).map_or(holder.duration, Duration::from_secs);
        let version: Box<str> = lease.metadata.resource_version.as_deref().unwrap_or_default().into();
        match &self.foreign {
            // Clocks may differ: what counts is how long it was seen unchanged here.
            Some((seen, since)) if *seen == version => since.elapsed() >= lasts,
            _ => {
                tracing::warn!(node = holder.node, holder = other, "somebody else holds the node's lease");
                self.foreign = Some((version, Instant::now()));
                false
            }
        }
    }

    fn note(&mut self, lease: Lease) {
        let metadata = lease.metadata;
        self.known = Known::Version(metadata.resource_version.unwrap_or_default().into());
        let of_others = metadata.labels.is_some() || metadata.annotations.is_some();
        let others = ObjectMeta { labels: metadata.labels, annotations: metadata.annotations, ..ObjectMeta::default() };
        self.others = of_others.then(|| Box::new(others));
    }

    fn lease(&self, version: Option<&str>, holder: &Holder, now: Timestamp) -> Lease {
        let owner = OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: holder.node.clone(),
            uid: holder.node_uid.clone(),
            ..OwnerReference::default()
        };
        Lease {
            metadata: ObjectMeta {
                name: Some(holder.node.clone()),
                namespace: Some("kube-node-lease".into()),
                resource_version: version.map(str::to_owned),
                owner_references: Some(vec![owner]),
                ..self.others.as_deref().cloned().unwrap_or_default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.node.clone()),
                lease_duration_seconds: i32::try_from(holder.duration.as_secs()).ok(),
                renew_time: Some(MicroTime(now)),
                ..LeaseSpec::default()
            }),
        }
    }
}

#[cfg(test)]
#[path = "leases_tests.rs"]
mod tests;
