//! What is read of Deployments, `ReplicaSets`, `DaemonSets` and recorded revisions.

use super::{label_map::LabelMap, shared_spec::SharedSpec};
use crds::token::{ParseTokenError, Token};
use serde_json::Value;
use std::sync::Arc;

/// What is read of a per-node Deployment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeploymentFacts {
    /// Name of the Deployment.
    pub name: String,
    /// UID of the Deployment.
    pub uid: String,
    /// `resourceVersion` at which the Deployment was read.
    pub resource_version: String,
    /// `metadata.generation`, which counts changes of the spec.
    pub generation: i64,
    /// Labels of the Deployment.
    pub labels: LabelMap,
    /// Annotations of the Deployment.
    pub annotations: LabelMap,
    /// `spec` as stored, API defaults included.
    pub spec: SharedSpec,
    /// Counters of the status.
    pub status: DeploymentCounts,
    /// Message of the condition `ReplicaFailure` when it is True: the API refused pods.
    pub refusal: Option<String>,
    /// The Deployment has a deletion timestamp.
    pub deleting: bool,
}

/// Counters of a Deployment's status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeploymentCounts {
    /// `observedGeneration`: the newest generation that the controller has processed.
    pub observed_generation: i64,
    /// `replicas`: pods that exist and are not terminating.
    pub replicas: i32,
    /// `updatedReplicas`: pods of the current template.
    pub updated: i32,
    /// `readyReplicas`: pods that are ready.
    pub ready: i32,
    /// `availableReplicas`: pods that have been ready for `minReadySeconds`.
    pub available: i32,
    /// terminatingReplicas; 0 where the API server does not report it, the pods tell then.
    pub terminating: i32,
}

impl DeploymentFacts {
    /// The token; `None` when there is none.
    pub fn token(&self) -> Option<Result<Token, ParseTokenError>> {
        self.labels.get(crds::names::TOKEN_LABEL).map(|text| text.parse())
    }

    /// The token when it is readable.
    pub fn readable_token(&self) -> Option<Token> {
        self.token().and_then(Result::ok)
    }

    /// `spec.replicas`; the API server's default is 1.
    pub fn replicas(&self) -> i32 {
        self.spec.number("replicas").and_then(|n| i32::try_from(n).ok()).unwrap_or(1)
    }

    /// A label of the pod template.
    pub fn template_label(&self, key: &str) -> Option<&str> {
        self.spec.template_label(key)
    }

    /// The revision that the pod template carries.
    pub fn revision(&self) -> &str {
        self.spec.revision().unwrap_or_default()
    }
}

/// What is read of a `ReplicaSet` whose pods have the gate.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaSetFacts {
    /// Name of the `ReplicaSet`.
    pub name: String,
    /// UID of the `ReplicaSet`.
    pub uid: String,
    /// UID of the Deployment that owns the `ReplicaSet`.
    pub owner: String,
    /// Value of the label `pod-template-hash`.
    pub hash: String,
    /// Label by which updates in place are fenced.
    pub token: Option<String>,
    /// Pods that it wants, or has.
    pub replicas: i32,
    /// Holds `template`, without the label above.
    pub spec: SharedSpec,
}

impl ReplicaSetFacts {
    /// The pod template, in the form of the Deployment's.
    pub fn template(&self) -> Value {
        self.spec.get("template").unwrap_or_default()
    }
}

/// What is read of a health-checker `DaemonSet`.
#[derive(Clone, Debug, PartialEq)]
pub struct DaemonSetFacts {
    /// Name of the `DaemonSet`.
    pub name: String,
    /// UID of the `DaemonSet`.
    pub uid: String,
    /// Health port on which its pods answer.
    pub port: u16,
    /// `metadata.labels`, and `spec` as stored.
    pub spec: Arc<Value>,
    /// Its controller has seen the newest generation.
    pub observed: bool,
    /// Nodes it should run on.
    pub desired: i32,
    /// Nodes whose pod is of the newest template.
    pub updated: i32,
    /// Nodes on which it is ready.
    pub ready: i32,
    /// Has our resource as its controller.
    pub owned: bool,
}

impl DaemonSetFacts {
    /// All its pods are of the newest template and ready, but for those on `lost` nodes, whose kubelets can start none. Where all nodes
    /// are lost, it says nothing about any.
    pub fn is_settled(&self, lost: i32) -> bool {
        let wanted = self.desired.saturating_sub(lost);
        let is_seen = wanted > 0 || self.desired == 0;
        self.observed && is_seen && self.updated >= wanted && self.ready >= wanted
    }
}

/// A recorded revision of the template: a `ControllerRevision` of ours.
#[derive(Clone, Debug, PartialEq)]
pub struct RevisionFacts {
    /// Name of the `ControllerRevision`.
    pub name: String,
    /// UID of the `ControllerRevision`.
    pub uid: String,
    /// Number of the revision: the newest has the highest.
    pub number: i64,
    /// Hash of the template, see [`crds::hash::revision`].
    pub revision: String,
    /// The template as it was in the spec.
    pub template: Arc<Value>,
}
