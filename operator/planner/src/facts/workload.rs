//! What is read of Deployments, `ReplicaSets`, `DaemonSets` and recorded revisions.

use super::{label_map::LabelMap, shared_spec::SharedSpec};
use crds::token::{ParseTokenError, Token};
use serde_json::Value;
use std::sync::Arc;

/// What is read of a per-node Deployment.
#[derive(Clone, Debug, PartialEq)]
pub struct DeploymentFacts {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// `resourceVersion`.
    pub resource_version: String,
    /// Generation.
    pub generation: i64,
    /// Labels.
    pub labels: LabelMap,
    /// Annotations.
    pub annotations: LabelMap,
    /// `spec` as stored, API defaults included.
    pub spec: SharedSpec,
    /// `status`.
    pub status: DeploymentCounts,
    /// Message of the condition `ReplicaFailure` when it is True: the API refused pods.
    pub refusal: Option<String>,
    /// Is being deleted.
    pub deleting: bool,
}

/// Counters of a Deployment's status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeploymentCounts {
    /// observedGeneration.
    pub observed_generation: i64,
    /// replicas.
    pub replicas: i32,
    /// updatedReplicas.
    pub updated: i32,
    /// readyReplicas.
    pub ready: i32,
    /// availableReplicas.
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
        self.template_label(crds::names::REVISION_LABEL).unwrap_or_default()
    }
}

/// What is read of a `ReplicaSet` whose pods have the gate.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaSetFacts {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// UID of its Deployment.
    pub owner: String,
    /// The label `pod-template-hash`.
    pub hash: String,
    /// Label by which updates in place are fenced.
    pub token: Option<String>,
    /// Pods that it wants, or has.
    pub replicas: i32,
    /// Holds `template`, without the label above.
    pub spec: SharedSpec,
}

impl ReplicaSetFacts {
    /// Its pod template, as its Deployment's is.
    pub fn template(&self) -> Value {
        self.spec.get("template").unwrap_or_default()
    }
}

/// What is read of a health-checker `DaemonSet`.
#[derive(Clone, Debug, PartialEq)]
pub struct DaemonSetFacts {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Port that it serves.
    pub port: u16,
    /// `metadata.labels`, and `spec` as stored.
    pub spec: Arc<Value>,
    /// All its pods are of the newest generation and ready.
    pub settled: bool,
    /// Nodes it should run on.
    pub desired: i32,
    /// Nodes on which it is ready.
    pub ready: i32,
    /// Has our resource as its controller.
    pub owned: bool,
}

/// A recorded revision of the template: a `ControllerRevision` of ours.
#[derive(Clone, Debug, PartialEq)]
pub struct RevisionFacts {
    /// Object name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Its number: the newest has the highest.
    pub number: i64,
    /// Hash of the template, see [`crds::hash::revision`].
    pub revision: String,
    /// The template as it was in the spec.
    pub template: Arc<Value>,
}
