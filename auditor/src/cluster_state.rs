//! The state of the cluster at one point of the history.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    ops::Bound,
};

use crds::{
    holders::{EntryPhase, Holders},
    ledger::{GrantReason, Marks},
    names,
    token::{Phase, Token},
};
use serde_json::Value;

use super::observation::{Kind, ObjectExt, Observation};

/// A resource, by the first 8 characters of its UID, and a node.
pub(crate) type Place = (String, String);

/// Which objects carry a mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MarkedObjects {
    pub(crate) deployment: bool,
    pub(crate) node: bool,
}

impl MarkedObjects {
    pub(crate) fn of(marks: &Marks) -> Self {
        Self { deployment: marks.deployment, node: marks.node.is_some() }
    }

    /// What either asks for.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { deployment: self.deployment || other.deployment, node: self.node || other.node }
    }

    pub(crate) fn is_none(self) -> bool {
        !self.deployment && !self.node
    }
}

/// All objects as they were after the observations applied so far. What is looked for after every change has an index.
#[derive(Debug, Default)]
pub(crate) struct ClusterState {
    objects: BTreeMap<Kind, BTreeMap<String, Value>>,
    /// UIDs of Nodes by name.
    nodes: BTreeMap<String, String>,
    /// UIDs of per-node Deployments by resource and node. Of a resource that had some, the key stays.
    members: BTreeMap<String, BTreeMap<String, BTreeSet<String>>>,
    /// UIDs of what a `Deployment` or a `ReplicaSet` controls.
    controlled: BTreeMap<String, BTreeSet<String>>,
}

impl ClusterState {
    pub(crate) fn apply(&mut self, observation: &Observation) {
        let (kind, uid) = (observation.kind, observation.object.uid());
        self.forget(kind, uid);
        if !observation.deleted {
            self.index(kind, uid, &observation.object);
            self.objects.entry(kind).or_default().insert(uid.to_owned(), observation.object.clone());
        }
    }

    fn index(&mut self, kind: Kind, uid: &str, object: &Value) {
        match kind {
            Kind::Node => drop(self.nodes.insert(object.name().to_owned(), uid.to_owned())),
            Kind::Deployment if is_member(object) => {
                let (of, node) = place_of(object);
                self.members.entry(of).or_default().entry(node).or_default().insert(uid.to_owned());
            }
            Kind::ReplicaSet | Kind::Pod => {
                let Some(owner) = object.controller_uid() else { return };
                self.controlled.entry(owner.to_owned()).or_default().insert(uid.to_owned());
            }
            _ => {}
        }
    }

    fn forget(&mut self, kind: Kind, uid: &str) {
        let Some(object) = self.objects.get_mut(&kind).and_then(|objects| objects.remove(uid)) else { return };
        match kind {
            // It may be registered again already, with another UID.
            Kind::Node if self.nodes.get(object.name()).is_some_and(|present| present == uid) => drop(self.nodes.remove(object.name())),
            Kind::Deployment if is_member(&object) => {
                let (of, node) = place_of(&object);
                remove(self.members.entry(of).or_default(), node, uid);
            }
            Kind::ReplicaSet | Kind::Pod => {
                let Some(owner) = object.controller_uid() else { return };
                remove(&mut self.controlled, owner.to_owned(), uid);
            }
            _ => {}
        }
    }

    pub(crate) fn retain(&mut self, kind: Kind, listed: &BTreeSet<String>) {
        let gone: Vec<_> = self.of_kind(kind).map(|(uid, _)| uid).filter(|uid| !listed.contains(*uid)).cloned().collect();
        for uid in gone {
            self.forget(kind, &uid);
        }
    }

    pub(crate) fn get(&self, kind: Kind, uid: &str) -> Option<&Value> {
        self.objects.get(&kind)?.get(uid)
    }

    pub(crate) fn of(&self, kind: Kind) -> impl Iterator<Item = &Value> {
        self.of_kind(kind).map(|(_, object)| object)
    }

    fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (&String, &Value)> {
        self.objects.get(&kind).into_iter().flatten()
    }

    pub(crate) fn node(&self, name: &str) -> Option<&Value> {
        self.get(Kind::Node, self.nodes.get(name)?)
    }

    /// Per-node Deployments of the operator, of all resources.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Value> {
        self.deployments(self.members.values().flat_map(BTreeMap::values).flatten())
    }

    /// Those of one resource.
    pub(crate) fn members_of(&self, resource: &str) -> impl Iterator<Item = &Value> {
        self.deployments(self.members.get(resource).into_iter().flat_map(BTreeMap::values).flatten())
    }

    /// Those of one resource on one node: more than one only by mistake.
    pub(crate) fn members_at(&self, (of, node): &Place) -> impl Iterator<Item = &Value> {
        self.deployments(self.members.get(of).and_then(|nodes| nodes.get(node)).into_iter().flatten())
    }

    fn deployments<'a>(&'a self, uids: impl Iterator<Item = &'a String>) -> impl Iterator<Item = &'a Value> {
        uids.filter_map(|uid| self.get(Kind::Deployment, uid))
    }

    /// Whose state an observation may have changed, after it was applied.
    pub(crate) fn places(&self, before: Option<&Value>, observation: &Observation) -> BTreeSet<Place> {
        let object = &observation.object;
        let both = || before.into_iter().chain([object]);
        let of_member = |deployment: Option<&Value>| deployment.filter(|one| is_member(one)).map(place_of);
        match observation.kind {
            Kind::Deployment => both().filter_map(|one| of_member(Some(one))).collect(),
            Kind::Node => self.members.keys().map(|of| (of.clone(), object.name().to_owned())).collect(),
            Kind::Pod => both().filter_map(|one| of_member(self.deployment_of(one))).collect(),
            Kind::ReplicaSet => both().filter_map(|one| of_member(self.get(Kind::Deployment, one.controller_uid()?))).collect(),
            Kind::IngressDaemonSet if before.is_none_or(|before| before["spec"] != object["spec"]) => {
                self.members_of(names::uid8(object.uid())).map(place_of).collect()
            }
            Kind::IngressDaemonSet | Kind::ClusterRoleBinding => BTreeSet::new(),
        }
    }

    /// The resource of which this is the beginning of the UID.
    pub(crate) fn resource(&self, uid8: &str) -> Option<&Value> {
        let from = self.objects.get(&Kind::IngressDaemonSet)?.range::<str, _>((Bound::Included(uid8), Bound::Unbounded));
        from.map(|(_, resource)| resource).next().filter(|resource| names::uid8(resource.uid()) == uid8)
    }

    /// The grant `id` of a Deployment's node; none when no ledger has it.
    pub(crate) fn grant_of(&self, deployment: &Value, id: u64) -> Option<&Value> {
        let owner = self.resource(resource(deployment))?;
        let grant = &owner["status"]["rollout"]["grants"][node_of(deployment)];
        (grant["id"].as_u64() == Some(id)).then_some(grant)
    }

    /// Which objects that grant marks.
    pub(crate) fn marks_of(&self, deployment: &Value, id: u64) -> Option<MarkedObjects> {
        let marks = &self.grant_of(deployment, id)?["marks"];
        Some(MarkedObjects { deployment: marks["deployment"] == true, node: marks["node"].is_object() })
    }

    /// What it was given for.
    pub(crate) fn kind_of(&self, deployment: &Value, id: u64) -> Option<GrantReason> {
        serde_json::from_value(self.grant_of(deployment, id)?["kind"].clone()).ok()
    }

    /// A person has ordered the slot of this grant to be freed.
    pub(crate) fn is_released(&self, deployment: &Value, id: u64) -> bool {
        self.grant_of(deployment, id).is_some_and(|grant| grant["released"] == true)
    }

    /// Somebody has deleted the resource, and the operator is clearing up.
    pub(crate) fn is_being_deleted(&self, resource: &str) -> bool {
        self.resource(resource).is_some_and(ObjectExt::being_deleted)
    }

    /// The Deployment that a pod belongs to.
    pub(crate) fn deployment_of(&self, pod: &Value) -> Option<&Value> {
        let replica_set = self.get(Kind::ReplicaSet, pod.controller_uid()?)?;
        self.get(Kind::Deployment, replica_set.controller_uid()?)
    }

    pub(crate) fn pods_of(&self, deployment: &Value) -> impl Iterator<Item = &Value> {
        let replica_sets = self.controlled.get(deployment.uid()).into_iter().flatten();
        let pods = replica_sets.filter_map(|uid| self.controlled.get(uid)).flatten();
        pods.filter_map(|uid| self.get(Kind::Pod, uid))
    }

    /// As many pods as wanted are ready and stay.
    pub(crate) fn all_ready(&self, deployment: &Value) -> bool {
        let ready = self.pods_of(deployment).filter(|pod| is_ready(pod) && !pod.being_deleted()).count();
        u64::try_from(ready).unwrap_or(u64::MAX) >= replicas(deployment)
    }
}

/// A per-node Deployment of the operator.
pub(crate) fn is_member(deployment: &Value) -> bool {
    deployment.label(names::RESOURCE_LABEL).is_some() && deployment.annotation(names::NODE_NAME_ANNOTATION).is_some()
}

/// A `ClusterRoleBinding` of the account of a resource's health checkers.
pub(crate) fn is_binding_of(binding: &Value, uid8: &str) -> bool {
    binding.label(names::RESOURCE_LABEL) == Some(uid8) || binding.name().contains(uid8)
}

/// First 8 characters of the UID of the resource of a per-node Deployment.
pub(crate) fn resource(deployment: &Value) -> &str {
    deployment.label(names::RESOURCE_LABEL).unwrap_or_default()
}

/// Where a per-node Deployment belongs.
pub(crate) fn place_of(deployment: &Value) -> Place {
    (resource(deployment).to_owned(), node_of(deployment).to_owned())
}

/// Takes `uid` out of a set, and the set out where nothing is left.
fn remove(sets: &mut BTreeMap<String, BTreeSet<String>>, key: String, uid: &str) {
    if let Entry::Occupied(mut set) = sets.entry(key) {
        set.get_mut().remove(uid);
        if set.get().is_empty() {
            set.remove();
        }
    }
}

/// The node of a per-node Deployment.
pub(crate) fn node_of(deployment: &Value) -> &str {
    deployment.annotation(names::NODE_NAME_ANNOTATION).unwrap_or_default()
}

pub(crate) fn token(deployment: &Value) -> Option<Token> {
    deployment.label(names::TOKEN_LABEL)?.parse().ok()
}

/// The health check fails because of the token, or pods change.
pub(crate) fn holds(phase: Phase) -> bool {
    matches!(phase, Phase::Claimed | Phase::InPlace | Phase::Degrading | Phase::Updating)
}

/// Pods change.
pub(crate) fn is_at_work(phase: Phase) -> bool {
    matches!(phase, Phase::InPlace | Phase::Degrading | Phase::Updating)
}

/// The revision that a per-node Deployment says.
pub(crate) fn revision(deployment: &Value) -> &str {
    deployment["spec"]["template"]["metadata"]["labels"][names::REVISION_LABEL].as_str().unwrap_or_default()
}

pub(crate) fn replicas(deployment: &Value) -> u64 {
    deployment["spec"]["replicas"].as_u64().unwrap_or(1)
}

pub(crate) fn holders(node: &Value) -> Holders {
    crds::holders::parse(node.annotation(names::HOLDERS_ANNOTATION)).unwrap_or_default()
}

pub(crate) fn is_detached(node: &Value, resource: &str) -> bool {
    holders(node).get(resource).is_some_and(|entry| entry.phase == EntryPhase::Detached)
}

pub(crate) fn is_ready(pod: &Value) -> bool {
    pod["status"]["conditions"]
        .as_array()
        .is_some_and(|conditions| conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
}

/// Nobody hears of its kubelet any more: what becomes of its pods is not the operator's doing.
pub(crate) fn is_lost(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    conditions.is_some_and(|conditions| conditions.iter().any(|c| c["type"] == "Ready" && c["status"] != "True"))
}

/// A pod that does not run and will not.
pub(crate) fn has_ended(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded"))
}

/// Updated, ready and available are as many as wanted, nothing terminates, and all this is said of the present spec.
pub(crate) fn is_complete(deployment: &Value) -> bool {
    let status = &deployment["status"];
    let wanted = replicas(deployment);
    let counts = |field: &str| status[field].as_u64().unwrap_or(0) == wanted;
    status["observedGeneration"].as_u64() >= deployment["metadata"]["generation"].as_u64()
        && ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"].iter().all(|field| counts(field))
        && status["terminatingReplicas"].as_u64().unwrap_or(0) == 0
}
