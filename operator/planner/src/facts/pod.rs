//! What is read of pods.

use super::label_map::LabelMap;
use crds::{UnixSeconds, in_place::PodRecord};
use std::sync::Arc;

/// What is read of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field or condition of the object")]
pub struct PodFacts {
    /// Name of the pod.
    pub name: String,
    /// Hash of the template that the pod runs, from its revision label.
    pub revision: String,
    /// The condition Ready is True.
    pub ready: bool,
    /// The pod has a deletion timestamp.
    pub terminating: bool,
    /// Phase Failed or Succeeded: holds nothing any more.
    pub ended: bool,
    /// When it last became ready, or a container of it last started, whichever is later.
    pub fresh_since: UnixSeconds,
    /// Creation of the pod.
    pub created: UnixSeconds,
    /// How often its containers were started again.
    pub restarts: i32,
    /// Stands for the runs of all its containers: another number once one of them was started again.
    pub runs: u64,
    /// The kubelet evicted the pod.
    pub evicted: bool,
    /// Seconds since 1970 when it was created, if the kubelet refused it at admission, which it does at once.
    pub rejected_at: Option<UnixSeconds>,
    /// What an update in place reads, where the pod has the gate for it.
    pub gated: Option<Box<InPlacePod>>,
    /// Conditions that it lists as readiness gates and that are not True, where there are any.
    pub unmet: Option<Box<Unmet>>,
    /// Facts of a pod that only pulls images.
    pub pull: Option<Box<PullFacts>>,
    /// Why it does not run: reason and message of a waiting container, of scheduling, or of the refusal.
    pub trouble: Option<(String, String)>,
    /// It is a health checker that ended because its port belongs to somebody else: what it said, with its node.
    pub port_conflict: Option<String>,
}

/// What is read of a pod that pulls images before a node's update.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PullFacts {
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// Name of the node to which the pod pulls images.
    pub node: String,
    /// Revision whose images the pod pulls.
    pub revision: String,
    /// Creation of the pod.
    pub created: UnixSeconds,
    /// All images are on the node.
    pub pulled: bool,
    /// The pod has ended and will pull no more: its kubelet refused or evicted it.
    pub given_up: bool,
    /// The pod has a deletion timestamp.
    pub terminating: bool,
    /// Why an image is not on the node: reason and message.
    pub trouble: Option<(String, String)>,
}

/// What is read of a pod that can be updated in place: one that has the gate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InPlacePod {
    /// UID of the pod.
    pub uid: String,
    /// `resourceVersion` at which the pod was read.
    pub resource_version: String,
    /// Generation; 0 where the API server counts none for pods.
    pub generation: i64,
    /// The generation that the kubelet has seen; 0 where it does not say.
    pub observed_generation: i64,
    /// Which `ReplicaSet` made it: the label `pod-template-hash`.
    pub hash: String,
    /// The condition of the gate; absent when there is none.
    pub gate: Option<bool>,
    /// The containers, in the order of the spec.
    pub containers: Vec<ContainerFacts>,
    /// `terminationGracePeriodSeconds` of the pod.
    pub termination_grace: i64,
    /// Labels of the pod.
    pub labels: LabelMap,
    /// Annotations of the pod.
    pub annotations: LabelMap,
    /// What the last update in place left on it.
    pub record: Option<PodRecord>,
}

/// Conditions that keep a pod from being ready, but for that of updates in place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unmet {
    /// UID of the pod.
    pub uid: String,
    /// `resourceVersion` at which the pod was read.
    pub resource_version: String,
    /// Types of the conditions that are not True.
    pub conditions: Vec<String>,
}

/// What is read of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerFacts {
    /// Name of the container.
    pub name: String,
    /// Image in the pod's spec.
    pub image: String,
    /// Image that its status shows.
    pub shown: String,
    /// Image ID in the pod's status.
    pub image_id: String,
    /// Container ID of the current run; empty before the first run.
    pub id: String,
    /// When its run began, seconds since 1970 by the node's clock; 0 when none does.
    pub started_at: UnixSeconds,
    /// It runs, and its startup probe has succeeded.
    pub running: bool,
    /// The kubelet reports the container as ready.
    pub ready: bool,
    /// Restart count.
    pub restarts: i32,
}

/// This time, or that of the newest of the pods: a clock that was set back makes no pod one that came later.
pub fn not_before<'p>(now: UnixSeconds, pods: impl IntoIterator<Item = &'p Arc<PodFacts>>) -> UnixSeconds {
    pods.into_iter().map(|pod| pod.created).fold(now, i64::max)
}
