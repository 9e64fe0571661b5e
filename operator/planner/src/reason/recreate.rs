//! Why pods are re-created although the spec asks for updates in place.

use std::fmt;

/// Why pods have to be re-created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecreateReason {
    /// The spec asks to re-create pods: `podUpdate` is Recreate.
    NotAsked,
    /// The former template is not known any more.
    FormerUnknown,
    /// The pods were made without what an update in place needs, or by another version of the operator.
    OtherRendering,
    /// Somebody changed the Deployment.
    Drifted,
    /// More than images, labels and annotations differs.
    MoreThanImages,
    /// The image of an init container differs: it would not run again.
    InitImage,
    /// Somebody asks for a restart.
    RestartedAt,
    /// An environment variable is made from a label or annotation that changes: it would keep its value.
    Environment,
    /// The default of `imagePullPolicy` follows the image's tag, and a pod cannot change it.
    PullPolicy,
    /// `maxUnavailablePodsPerNode` is 0, and a pod that is updated in place is down meanwhile.
    NoPodMayBeDown,
    /// The pods of the node are not those of one `ReplicaSet` that its Deployment calls its own.
    ReplicaSets,
    /// Pods lack the readiness gate.
    PodsWithoutGate,
}

impl fmt::Display for RecreateReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAsked => "podUpdate is Recreate",
            Self::FormerUnknown => "the template of the current pods is no longer recorded",
            Self::OtherRendering => {
                "podUpdate was set, or the operator was upgraded, after the creation of the pods: the operator must re-create them once"
            }
            Self::Drifted => "somebody changed the node's Deployment",
            Self::MoreThanImages => "the template changes more than container images, labels and annotations",
            Self::InitImage => "the image of an init container changes, and init containers run only in new pods",
            Self::RestartedAt => "annotation kubectl.kubernetes.io/restartedAt asks for new pods",
            Self::Environment => "an environment variable reads a label or annotation that changes",
            Self::PullPolicy => "imagePullPolicy is not set, and its default changes with the image's tag",
            Self::NoPodMayBeDown => "maxUnavailablePodsPerNode is 0, and a pod is unavailable during its update in place",
            Self::ReplicaSets => {
                "not all pods of the node belong to the current ReplicaSet of its Deployment, or an old ReplicaSet has the wanted template"
            }
            Self::PodsWithoutGate => "pods of the node lack the readiness gate for updates in place",
        })
    }
}
