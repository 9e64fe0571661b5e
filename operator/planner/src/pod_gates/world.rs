//! What was seen: the input of decisions about pods.

use crate::{
    facts::label_map::LabelMap,
    gates_shared::{Key, ReplicaHealth, Source},
};
use crds::{
    PodReadinessGateSpec, UnixSeconds,
    label_selector::LabelSelector,
    names,
    pod_readiness_gate::{HttpSource, InjectOnCreate, ManualSource},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// How often an HTTP server is asked by default, in milliseconds.
const PERIOD: u64 = 10_000;
/// How long its answer may take by default, in milliseconds: as long as a kubelet waits for a probe.
const TIMEOUT: u64 = 1_000;

/// Gates of one namespace that are kept, the oldest: each costs watches, memory and time, of which other namespaces need a share, too. Ten
/// are many for what gates are meant for.
pub const GATES_PER_NAMESPACE: usize = 100;

/// Everything that decisions about pods read, but the Nodes.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// The gates that are kept, by namespace and name.
    pub gates: BTreeMap<Key, Arc<Gate>>,
    /// Gates of which there are too many in their namespace: nothing is done for them.
    pub surplus: BTreeMap<Key, Arc<Gate>>,
    /// Pods of namespaces with gates, by namespace and name.
    pub pods: BTreeMap<Key, Pod>,
    /// Whether pods can be seen, by namespace.
    pub pod_sources: BTreeMap<String, Source<()>>,
    /// Number of ready endpoints of each Service.
    pub services: BTreeMap<Key, Source<usize>>,
    /// Conditions of objects; `None` where there is no such object.
    pub objects: BTreeMap<ObjectKey, Source<Option<Conditions>>>,
    /// `IngressDaemonSets`; `None` where there is none of the name.
    pub attachments: BTreeMap<Key, Source<Option<Attachment>>>,
    /// What HTTP servers answered last: a status.
    pub answers: BTreeMap<Target, Source<u16>>,
}

/// A gate, as decisions see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    /// Namespace of the gate.
    pub namespace: String,
    /// Name of the gate.
    pub name: String,
    /// UID of the gate.
    pub uid: String,
    /// `metadata.generation`, which counts changes of the spec.
    pub generation: i64,
    /// Creation.
    pub created: UnixSeconds,
    /// It is being deleted: it decides nothing any more.
    pub deleting: bool,
    /// Spec of the gate.
    pub spec: PodReadinessGateSpec,
}

/// What is read of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pod {
    /// UID of the pod.
    pub uid: String,
    /// `resourceVersion`, as a number.
    pub version: u64,
    /// `metadata.generation`; none where the API server does not count.
    pub generation: Option<i64>,
    /// Labels of the pod that gates read.
    pub labels: LabelMap,
    /// Annotations of the pod that gates read.
    pub annotations: LabelMap,
    /// Name of its node; empty while the pod is not scheduled.
    pub node: String,
    /// IP address of the pod; empty while it has none.
    pub address: String,
    /// The phase is Failed or Succeeded.
    pub ended: bool,
    /// How often its containers were started anew, all together, native sidecars left out.
    pub restarts: u32,
    /// The same of its native sidecars, where it has some.
    pub sidecar_restarts: Option<u32>,
    /// Conditions that it lists as readiness gates.
    pub gates: Vec<String>,
    /// Those of them that are there, in their order; more than one of a type where somebody appended blindly.
    pub conditions: Vec<PodCondition>,
    /// The API server keeps `observedGeneration` in conditions.
    pub keeps_generation: bool,
}

/// Keys of labels and annotations of pods that gates read. Of others nothing is kept: whoever makes pods makes them large.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadOfPods {
    /// Keys of annotations.
    pub annotations: BTreeSet<String>,
    /// Keys of labels.
    pub labels: BTreeSet<String>,
}

impl ReadOfPods {
    /// Whoever reads the other has read all of this, too.
    pub fn is_in(&self, other: &Self) -> bool {
        self.annotations.is_subset(&other.annotations) && self.labels.is_subset(&other.labels)
    }
}

/// A condition of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodCondition {
    /// Type of the condition.
    pub type_: String,
    /// Status: True, False or Unknown.
    pub status: String,
    /// Machine-readable reason.
    pub reason: String,
    /// Human-readable message.
    pub message: String,
    /// When it last changed, as the API has it.
    pub transition: Option<String>,
    /// Generation of the pod that it speaks of.
    pub observed_generation: Option<i64>,
}

/// Conditions of an object, by type.
pub type Conditions = BTreeMap<String, String>;

/// Key of an object whose condition a gate reads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// The namespace of the gate that follows it.
    pub asked_by: String,
    /// `apiVersion` of the object.
    pub api_version: String,
    /// Kind of the object.
    pub kind: String,
    /// Namespace of the object; empty if its kind has none.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
}

/// An `IngressDaemonSet` and its nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attachment {
    /// First 8 characters of its UID, which its pods have as a label.
    pub uid8: String,
    /// Its spec is not valid: whether it is to use nodes of which nothing is said is not known.
    pub invalid: bool,
    /// Health of its replicas, by node.
    pub nodes: Arc<BTreeMap<String, ReplicaHealth>>,
}

/// What is asked by HTTP, and how.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// The namespace of the gate that asks.
    pub namespace: String,
    /// Complete URL to ask.
    pub url: String,
    /// Time between two requests, in milliseconds.
    pub period: u64,
    /// How long an answer may take, in milliseconds.
    pub timeout: u64,
}

impl Target {
    /// What a gate of a namespace asks for a pod; nothing while the pod that is to be asked has no address.
    pub fn of(namespace: &str, source: &HttpSource, pod: &Pod) -> Option<Self> {
        let url = match (&source.url, source.port) {
            (Some(url), _) => url.clone(),
            (None, Some(port)) if !pod.address.is_empty() => {
                let path = source.path.as_deref().unwrap_or("/");
                let brackets = if pod.address.contains(':') { ("[", "]") } else { ("", "") };
                format!("http://{}{}{}:{port}{path}", brackets.0, pod.address, brackets.1)
            }
            _ => return None,
        };
        let span = |given: &Option<crds::Duration>, otherwise: u64| {
            given.as_ref().and_then(crds::Duration::milliseconds).and_then(|span| u64::try_from(span).ok()).unwrap_or(otherwise)
        };
        Some(Self {
            namespace: namespace.to_owned(),
            url,
            period: span(&source.period, PERIOD).max(1_000),
            timeout: span(&source.timeout, TIMEOUT).clamp(100, 30_000),
        })
    }
}

impl Gate {
    /// Key of the gate: namespace and name.
    pub fn key(&self) -> Key {
        (self.namespace.clone(), self.name.clone())
    }

    /// By which way it asks that selected pods list its condition.
    pub fn on_create(&self) -> InjectOnCreate {
        self.spec.admission.as_ref().map_or(InjectOnCreate::None, |admission| admission.on_create)
    }

    /// It asks that selected pods list its condition. One without labels to select by would be for every pod.
    pub fn injects(&self) -> bool {
        !self.deleting && self.spec.injects() && self.spec.selector.as_ref().is_some_and(|selector| !selector.is_empty())
    }

    /// Whether the pod, of the gate's namespace, is meant.
    pub fn selects(&self, pod: &Pod) -> bool {
        self.spec.selects(|key| pod.labels.get(key).map(String::as_str))
    }

    /// The annotation of its pods that it follows.
    pub fn annotation(&self) -> Option<&str> {
        let source = &self.spec.source;
        source.annotation.as_ref().map(|annotation| annotation.key.as_str()).or_else(|| source.manual.as_ref().map(ManualSource::key))
    }

    /// Labels of its pods that it reads.
    fn labels(&self) -> impl Iterator<Item = &str> {
        let source = &self.spec.source;
        let of_source = source.label.as_ref().map(|label| label.key.as_str());
        let of_resource = source.ingress_daemon_set.as_ref().map(|_| names::RESOURCE_LABEL);
        self.spec.selector.iter().flat_map(LabelSelector::keys).chain(of_source).chain(of_resource)
    }

    /// The Service that it follows.
    pub fn service(&self) -> Option<Key> {
        self.spec.source.service.as_ref().map(|service| (self.namespace.clone(), service.name.clone()))
    }

    /// The `IngressDaemonSet` that it follows.
    pub fn ingress_daemon_set(&self) -> Option<Key> {
        self.spec.source.ingress_daemon_set.as_ref().map(|resource| (self.namespace.clone(), resource.name.clone()))
    }

    /// The object that it follows.
    pub fn object(&self) -> Option<ObjectKey> {
        let object = self.spec.source.object_condition.as_ref()?;
        Some(ObjectKey {
            asked_by: self.namespace.clone(),
            api_version: object.api_version.clone(),
            kind: object.kind.clone(),
            namespace: object.namespace.clone().unwrap_or_else(|| self.namespace.clone()),
            name: object.name.clone(),
        })
    }

    /// The gate's source is about the pod's node.
    pub fn follows_nodes(&self) -> bool {
        let source = &self.spec.source;
        source.node_condition.is_some() || source.node_taint.is_some() || source.ingress_daemon_set.is_some()
    }

    /// Of two gates that keep one condition of one pod, the older has its way, then the first by name.
    fn precedence(&self) -> (i64, &str) {
        (self.created, &self.name)
    }
}

impl World {
    /// Takes all gates in that there are; returns the namespaces in which one came, went or changed.
    pub fn take_gates(&mut self, all: BTreeMap<Key, Arc<Gate>>) -> BTreeSet<String> {
        let mut gates = BTreeMap::new();
        let mut surplus = BTreeMap::new();
        let mut of_namespaces: BTreeMap<String, Vec<Arc<Gate>>> = BTreeMap::new();
        for gate in all.into_values() {
            of_namespaces.entry(gate.namespace.clone()).or_default().push(gate);
        }
        for mut of_namespace in of_namespaces.into_values() {
            of_namespace.sort_by(|one, other| one.precedence().cmp(&other.precedence()));
            for (index, gate) in of_namespace.into_iter().enumerate() {
                let place = if index < GATES_PER_NAMESPACE { &mut gates } else { &mut surplus };
                place.insert(gate.key(), gate);
            }
        }
        let differs = |key: &&Key| self.gates.get(*key) != gates.get(*key) || self.surplus.get(*key) != surplus.get(*key);
        let keys = self.gates.keys().chain(gates.keys()).chain(self.surplus.keys()).chain(surplus.keys());
        let changed = keys.filter(differs).map(|key| key.0.clone()).collect();
        (self.gates, self.surplus) = (gates, surplus);
        changed
    }

    /// Takes those out again of which nothing but the name is known; and says which they are.
    pub fn without(&mut self, unknown: &BTreeSet<Key>) -> BTreeSet<Key> {
        let lacking: BTreeSet<_> = self.gates.keys().filter(|key| unknown.contains(*key)).cloned().collect();
        self.gates.retain(|key, _| !lacking.contains(key));
        lacking
    }

    /// Gates that select a pod, the first of each condition before others of it.
    pub fn gates_of(&self, key: &Key, pod: &Pod) -> Vec<&Arc<Gate>> {
        let of_namespace =
            self.gates.range((key.0.clone(), String::new())..).map(|(_, gate)| gate).take_while(|gate| gate.namespace == key.0);
        let mut gates: Vec<_> = of_namespace.filter(|gate| !gate.deleting && gate.selects(pod)).collect();
        gates.sort_by(|one, other| (&one.spec.condition_type, one.precedence()).cmp(&(&other.spec.condition_type, other.precedence())));
        gates
    }

    /// Namespaces in which pods are to be watched: one watch each, however many labels gates ask for.
    pub fn wanted_pods(&self) -> BTreeSet<String> {
        self.alive().map(|gate| gate.namespace.clone()).collect()
    }

    /// What gates of a namespace read of its pods.
    pub fn read_of_pods(&self, namespace: &str) -> ReadOfPods {
        let ours = || self.alive().filter(|gate| gate.namespace == namespace);
        let annotations = ours().filter_map(Gate::annotation).map(str::to_owned).collect();
        let labels = ours().flat_map(Gate::labels).map(str::to_owned).collect();
        ReadOfPods { annotations, labels }
    }

    /// Which Services are to be watched.
    pub fn wanted_services(&self) -> BTreeSet<Key> {
        self.alive().filter_map(Gate::service).collect()
    }

    /// Which objects are to be watched.
    pub fn wanted_objects(&self) -> BTreeSet<ObjectKey> {
        self.alive().filter_map(Gate::object).collect()
    }

    /// Which `IngressDaemonSets` are to tell of their nodes.
    pub fn wanted_attachments(&self) -> BTreeSet<Key> {
        self.alive().filter_map(Gate::ingress_daemon_set).collect()
    }

    /// Requests by HTTP: for pods that list the condition.
    pub fn wanted_answers(&self) -> BTreeSet<Target> {
        let asking = self.alive().filter_map(|gate| Some((gate, gate.spec.source.http.as_ref()?)));
        let mut wanted = BTreeSet::new();
        for (gate, source) in asking {
            let pods = self.pods_of(gate).map(|(_, pod)| pod);
            wanted.extend(
                pods.filter(|pod| !pod.ended && pod.gates.contains(&gate.spec.condition_type))
                    .filter_map(|pod| Target::of(&gate.namespace, source, pod)),
            );
        }
        wanted
    }

    /// Pods that a gate selects.
    pub fn pods_of<'a>(&'a self, gate: &'a Gate) -> impl Iterator<Item = (&'a Key, &'a Pod)> {
        let first = (gate.namespace.clone(), String::new());
        self.pods.range(first..).take_while(|(key, _)| key.0 == gate.namespace).filter(|(_, pod)| gate.selects(pod))
    }

    fn alive(&self) -> impl Iterator<Item = &Gate> {
        self.gates.values().map(AsRef::as_ref).filter(|gate| !gate.deleting)
    }
}
