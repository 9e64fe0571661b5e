//! What was seen: the input of decisions about nodes.

use crate::{
    facts::{NodeFacts, label_map::LabelMap},
    gates_shared::{Key, ReplicaHealth, Source},
    spec::node_rights::NodeRights,
};
use crds::{
    UnixSeconds,
    label_selector::LabelSelector,
    node_readiness_gate::{GateTaint, NodeReadinessGateSpec, Requirement},
};
use k8s_openapi::api::core::v1::{PodSpec, Toleration};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// What the UID of a gate begins with that stands for the field `nodeReadinessTaint` of an `IngressDaemonSet`.
pub const IMPLIED: &str = "ids-";

/// Everything that decisions about nodes read, but the Nodes themselves.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// Some objects that gates may come from cannot be read: a record whose gate is not there may still have one.
    pub incomplete: bool,
    /// All gates, by UID.
    pub gates: BTreeMap<String, Arc<Gate>>,
    /// Taints that each gate has or had, by its UID, the newest last. Of gates that are gone, too, as long as a Node has a record of them.
    pub taints: BTreeMap<String, Vec<GateTaint>>,
    /// What `nodeReadinessTaint` may be, where what a gone resource had is not known any more.
    pub rights: NodeRights,
    /// Since when each gate is in force, by its UID; one that is not here: since it was made.
    pub in_force: BTreeMap<String, UnixSeconds>,
    /// Pods, by where they are looked for.
    pub pods: BTreeMap<PodSource, Source<Pods>>,
    /// `DaemonSets` that requirements name; `None` where there is none of the name.
    pub daemon_sets: BTreeMap<Key, Source<Option<DaemonSet>>>,
    /// CSI drivers that are registered, by node.
    pub csi_drivers: Source<BTreeMap<String, BTreeSet<String>>>,
    /// Replicas of every `IngressDaemonSet` that a requirement names, by node.
    pub replicas: BTreeMap<Key, Arc<BTreeMap<String, ReplicaHealth>>>,
    /// `IngressDaemonSets` that a requirement names and that do not exist.
    pub absent: BTreeSet<Key>,
    /// `IngressDaemonSets` that a requirement names and whose spec is not valid.
    pub invalid: BTreeSet<Key>,
    /// Tolerations in the template of every `IngressDaemonSet` that a requirement names, without those that the operator adds.
    pub tolerations: BTreeMap<Key, Vec<Toleration>>,
}

/// A gate, from whatever it was made.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    /// Name of the gate in messages.
    pub name: String,
    /// What names its records: the UID of the object that it is from, with a prefix where that is no `NodeReadinessGate`.
    pub uid: String,
    /// `metadata.generation`, which counts changes of the spec.
    pub generation: i64,
    /// When the object was made; since when it is in force, see [`super::in_force`].
    pub created: UnixSeconds,
    /// When somebody last wrote more than its status; none where this is not told.
    pub edited: Option<UnixSeconds>,
    /// The object has a deletion timestamp.
    pub deleting: bool,
    /// Spec of the gate.
    pub spec: NodeReadinessGateSpec,
    /// Annotation that a node gets, with the unix time, when it is released: nodes that have it count as released.
    pub completion_annotation: Option<String>,
}

/// Where pods are looked for. No namespace: everywhere.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodSource {
    /// Namespace of the pods; empty for all.
    pub namespace: String,
    /// Label selector of the pods.
    pub selector: LabelSelector,
}

impl std::fmt::Display for PodSource {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.namespace.as_str() {
            "" => write!(formatter, "pods {} in any namespace", self.selector),
            namespace => write!(formatter, "pods {} in namespace {namespace}", self.selector),
        }
    }
}

/// Stands for the node of pods that wait for one, whether they can get one or not.
pub const NOWHERE: &str = "";

/// Pods, by node and name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pods {
    /// By node or [`NOWHERE`], then by namespace and name.
    pub on: BTreeMap<String, BTreeMap<Key, Pod>>,
}

impl Pods {
    /// Nodes whose pods are not the same: also those of a pod that was deleted in a gap of the watch.
    pub fn differing(&self, now: &Self) -> BTreeSet<String> {
        let all = self.on.keys().chain(now.on.keys());
        all.filter(|node| self.on.get(*node) != now.on.get(*node)).cloned().collect()
    }
}

/// What is read of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field or condition of the object")]
pub struct Pod {
    /// The condition Ready is True.
    pub ready: bool,
    /// No container that has a status is unready.
    pub containers_ready: bool,
    /// The pod has a deletion timestamp.
    pub terminating: bool,
    /// The phase is Failed or Succeeded.
    pub ended: bool,
    /// When it last became ready, or a container of it last started, whichever is later.
    pub fresh_since: UnixSeconds,
    /// Value of the label `controller-revision-hash`.
    pub revision: String,
    /// UID of the controller that owns the pod.
    pub controller: String,
    /// Annotations that requirements name.
    pub annotations: LabelMap,
    /// Tolerations of the pod.
    pub tolerations: Arc<Vec<Toleration>>,
}

/// What is read of a `DaemonSet`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DaemonSet {
    /// UID of the `DaemonSet`.
    pub uid: String,
    /// Label selector of its pods.
    pub selector: LabelSelector,
    /// Where its pods are to run, and what taints they bear.
    pub pod: PodSpec,
    /// Label `controller-revision-hash` of its newest pods, where it is known.
    pub revision: Option<String>,
}

/// First characters of an ID that tell it from others.
pub fn short(id: &str) -> String {
    id.chars().take(8).collect()
}

impl Gate {
    /// The gate selects the node.
    pub fn selects(&self, node: &NodeFacts) -> bool {
        self.spec.selects(|key| node.labels.get(key).map(String::as_str))
    }

    /// The gate's taint has this key and effect.
    pub fn has_taint(&self, key: &str, effect: &str) -> bool {
        self.spec.taint.key == key && self.spec.taint.effect.as_str() == effect
    }

    /// Where it looks for pods by labels.
    pub fn pod_sources(&self) -> impl Iterator<Item = PodSource> {
        self.spec.requirements.iter().filter_map(pod_source)
    }

    /// `DaemonSets` that the gate's requirements name.
    pub fn daemon_sets(&self) -> impl Iterator<Item = Key> {
        self.spec.requirements.iter().filter_map(|requirement| {
            requirement.daemon_set.as_ref().map(|daemon_set| (daemon_set.namespace.clone(), daemon_set.name.clone()))
        })
    }

    /// The `IngressDaemonSet` whose field `nodeReadinessTaint` it stands for.
    pub fn implied_by(&self) -> Option<Key> {
        let (namespace, name) = self.uid.strip_prefix(IMPLIED).and(self.name.split_once('/'))?;
        Some((namespace.to_owned(), name.to_owned()))
    }

    /// `IngressDaemonSets` that the gate's requirements name.
    pub fn ingress_daemon_sets(&self) -> impl Iterator<Item = Key> {
        self.spec.requirements.iter().filter_map(|requirement| {
            requirement.ingress_daemon_set.as_ref().map(|resource| (resource.namespace.clone(), resource.name.clone()))
        })
    }
}

/// Where a requirement looks for pods by labels.
pub fn pod_source(requirement: &Requirement) -> Option<PodSource> {
    let pods = requirement.pods.as_ref()?;
    Some(PodSource { namespace: pods.namespace.clone(), selector: pods.selector.clone() })
}

impl World {
    /// Where pods are to be looked for, those of `DaemonSets` included.
    pub fn wanted_pods(&self) -> BTreeSet<PodSource> {
        let mut wanted: BTreeSet<_> = self.gates.values().flat_map(|gate| gate.pod_sources().collect::<Vec<_>>()).collect();
        for (key, source) in &self.daemon_sets {
            if let Some(Some(daemon_set)) = &source.found {
                wanted.insert(daemon_set_pods(key, daemon_set));
            }
        }
        wanted
    }

    /// Which `DaemonSets` are to be watched.
    pub fn wanted_daemon_sets(&self) -> BTreeSet<Key> {
        self.gates.values().flat_map(|gate| gate.daemon_sets().collect::<Vec<_>>()).collect()
    }

    /// Which `IngressDaemonSets` are to tell of their replicas.
    pub fn wanted_replicas(&self) -> BTreeSet<Key> {
        self.gates.values().flat_map(|gate| gate.ingress_daemon_sets().collect::<Vec<_>>()).collect()
    }

    /// Whether registered CSI drivers are to be watched.
    pub fn wants_csi_drivers(&self) -> bool {
        self.gates.values().any(|gate| gate.spec.requirements.iter().any(|requirement| requirement.csi_driver.is_some()))
    }
}

/// Namespace and labels by which to find a `DaemonSet`'s pods.
pub fn daemon_set_pods(key: &Key, daemon_set: &DaemonSet) -> PodSource {
    PodSource { namespace: key.0.clone(), selector: daemon_set.selector.clone() }
}
