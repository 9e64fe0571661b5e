//! Which pod.

use std::fmt;

use k8s_openapi::api::core::v1::Pod;

/// A pod: a re-created pod of the same name is another one.
///
/// ```
/// use k8s_openapi::api::core::v1::Pod;
/// use virtual_kubelet::pod::PodId;
///
/// let mut pod = Pod::default();
/// pod.metadata.name = Some("a".into());
/// pod.metadata.uid = Some("0a1b2c3d".into());
/// let first = PodId::of(&pod);
/// pod.metadata.uid = Some("4e5f6071".into());
/// assert_ne!(PodId::of(&pod), first);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodId {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
}

impl PodId {
    /// The identity of a pod that came from the API server.
    pub fn of(pod: &Pod) -> Self {
        Self {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
        }
    }
}

impl fmt::Display for PodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}({})", self.namespace, self.name, self.uid)
    }
}
