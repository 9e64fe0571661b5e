//! What the auditor saw, in the order in which it happened.

use chrono::{DateTime, Utc};
use kube::api::DynamicObject;
use serde_json::Value;

/// Kinds that are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The resource itself.
    IngressDaemonSet,
    /// Per-node Deployments, and any other.
    Deployment,
    /// What connects pods to Deployments.
    ReplicaSet,
    /// Pods.
    Pod,
    /// Nodes.
    Node,
    /// The operator's bindings for its health checkers.
    ClusterRoleBinding,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::IngressDaemonSet, Self::Deployment, Self::ReplicaSet, Self::Pod, Self::Node, Self::ClusterRoleBinding];

    /// The API's name of the kind.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::IngressDaemonSet => "IngressDaemonSet",
            Self::Deployment => "Deployment",
            Self::ReplicaSet => "ReplicaSet",
            Self::Pod => "Pod",
            Self::Node => "Node",
            Self::ClusterRoleBinding => "ClusterRoleBinding",
        }
    }
}

/// One change of one object.
#[derive(Clone, Debug)]
pub struct Observation {
    /// The resourceVersion that the change made: one etcd, so one order over all kinds.
    pub revision: u64,
    /// When it was seen.
    pub at: DateTime<Utc>,
    /// The object's kind.
    pub kind: Kind,
    /// The object is gone; `object` is its last state.
    pub deleted: bool,
    /// The object after the change.
    pub object: Value,
}

impl Observation {
    /// What a watch delivered, seen now.
    pub fn of(kind: Kind, deleted: bool, mut object: DynamicObject) -> Self {
        object.metadata.managed_fields = None;
        let revision = revision_of(object.metadata.resource_version.as_deref());
        // What came as JSON can be written as JSON.
        Self { revision, at: Utc::now(), kind, deleted, object: serde_json::to_value(object).unwrap_or_default() }
    }
}

/// A resourceVersion as a number: one etcd counts the changes of all kinds.
pub fn revision_of(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Shorthand to read the parts of objects that every kind has.
pub(crate) trait ObjectExt {
    fn name(&self) -> &str;
    fn uid(&self) -> &str;
    fn label(&self, key: &str) -> Option<&str>;
    fn annotation(&self, key: &str) -> Option<&str>;
    fn being_deleted(&self) -> bool;
    fn controller_uid(&self) -> Option<&str>;
}

impl ObjectExt for Value {
    fn name(&self) -> &str {
        self["metadata"]["name"].as_str().unwrap_or_default()
    }

    fn uid(&self) -> &str {
        self["metadata"]["uid"].as_str().unwrap_or_default()
    }

    fn label(&self, key: &str) -> Option<&str> {
        self["metadata"]["labels"][key].as_str()
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self["metadata"]["annotations"][key].as_str()
    }

    fn being_deleted(&self) -> bool {
        !self["metadata"]["deletionTimestamp"].is_null()
    }

    fn controller_uid(&self) -> Option<&str> {
        self["metadata"]["ownerReferences"]
            .as_array()?
            .iter()
            .find(|owner| owner["controller"].as_bool() == Some(true))
            .and_then(|owner| owner["uid"].as_str())
    }
}
