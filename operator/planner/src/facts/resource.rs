//! An `IngressDaemonSet` as it is held in memory.

use crds::{
    IngressDaemonSet, UnixSeconds,
    ingress_daemon_set::IngressDaemonSetSpec,
    ledger::{Ledger, RolloutState},
    names,
    status::IngressDaemonSetStatus,
};
use std::sync::Arc;

/// An `IngressDaemonSet`, as far as decisions read it.
#[derive(Clone, Debug)]
pub struct Resource {
    /// Name of the `IngressDaemonSet`.
    pub name: String,
    /// Namespace of the `IngressDaemonSet`.
    pub namespace: String,
    /// UID of the `IngressDaemonSet`.
    pub uid: String,
    /// `resourceVersion` that the status is written with.
    pub resource_version: String,
    /// `metadata.generation`, which counts changes of the spec.
    pub generation: i64,
    /// Creation.
    pub created: UnixSeconds,
    /// The object has a deletion timestamp.
    pub deleting: bool,
    /// Carries our finalizer, or the original's.
    pub finalizers: Vec<String>,
    /// Its annotation `…/retry`; empty when there is none.
    pub retry: String,
    /// The spec; only a few fields if `withheld` is set.
    pub spec: IngressDaemonSetSpec,
    /// Why the spec is not there, but for a few fields.
    pub withheld: Option<Withheld>,
    /// The status, absent when never written or wiped.
    pub status: Option<IngressDaemonSetStatus>,
}

/// Resources of a namespace that are looked after: those that run something, then the oldest.
pub const RESOURCES_PER_NAMESPACE: usize = 100;

/// Bytes of a spec as JSON, at most.
pub const SPEC_BYTES: usize = 64 * 1024;

/// Mappings in a template, at most.
pub const SPEC_MAPPINGS: usize = 1000;

/// Reason of conditions of resources beyond [`RESOURCES_PER_NAMESPACE`].
pub const TOO_MANY_RESOURCES: &str = "TooManyResources";

/// Why the spec of a resource is not held: whoever may make resources could fill the operator's memory with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withheld {
    /// It is longer than [`SPEC_BYTES`], or its template has more than [`SPEC_MAPPINGS`] mappings.
    TooLarge {
        /// Length of the spec as JSON, in bytes.
        bytes: usize,
        /// Number of mappings in the template.
        mappings: usize,
    },
    /// The namespace already has [`RESOURCES_PER_NAMESPACE`] resources that come first.
    TooMany,
}

impl Resource {
    /// One that was just made at this time, seconds since 1970, and that no operator has seen yet.
    pub fn created(key: (&str, &str), uid: &str, spec: IngressDaemonSetSpec, at: UnixSeconds) -> Self {
        Self {
            name: key.1.to_owned(),
            namespace: key.0.to_owned(),
            uid: uid.to_owned(),
            resource_version: "1".to_owned(),
            generation: 1,
            created: at,
            deleting: false,
            finalizers: Vec::new(),
            retry: String::new(),
            spec,
            withheld: None,
            status: None,
        }
    }

    /// Key of the resource: `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// What has this key, `namespace/name`, for those who may read this resource: they may read nothing of other namespaces.
    pub fn name_for_its_readers(&self, kind: &str, key: &str) -> String {
        let is_near = key.split_once('/').is_some_and(|(namespace, _)| namespace == self.namespace);
        if is_near { format!("{kind} {key}") } else { format!("a {kind} of another namespace") }
    }

    /// Whether it has our finalizer.
    pub fn has_finalizer(&self) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == names::FINALIZER)
    }

    /// The grant ledger; absent when never written or wiped.
    pub fn ledger(&self) -> Option<&Ledger> {
        self.status.as_ref()?.rollout.as_ref()
    }

    /// Pods of a node by the last spec that was valid, where the status still says so.
    pub fn last_replicas(&self) -> Option<i32> {
        self.status.as_ref().filter(|status| !status.revisions.effective.is_empty()).map(|status| status.replicas)
    }

    /// A person lets pass all that failed.
    pub fn is_retried(&self, rollout: &RolloutState) -> bool {
        !self.retry.is_empty() && self.retry != rollout.retry
    }

    /// The first 8 characters of the UID.
    pub fn uid8(&self) -> &str {
        crds::names::uid8(&self.uid)
    }
}

/// What must be known of another resource.
#[derive(Clone, Debug)]
pub struct OtherResource {
    /// Key of the resource: `namespace/name`.
    pub key: String,
    /// UID of the resource.
    pub uid: String,
    /// Creation.
    pub created: UnixSeconds,
    /// The resource as stored in the API.
    pub resource: Arc<IngressDaemonSet>,
    /// Its spec was found to be valid when the operator last looked. One that was edited since is that until it is looked at again:
    /// meanwhile nobody takes what it uses.
    pub accepted: bool,
}
