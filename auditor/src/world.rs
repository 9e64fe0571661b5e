//! The state of the cluster at one point of the history.

use std::collections::{BTreeMap, BTreeSet};

use crds::{
    holders::{EntryPhase, Holders},
    names,
    token::{Phase, Token},
};
use serde_json::Value;

use super::observation::{Kind, Object, Observation};

/// All objects as they were after the observations applied so far.
#[derive(Debug, Default)]
pub(crate) struct World {
    objects: BTreeMap<(Kind, String), Value>,
}

impl World {
    pub(crate) fn apply(&mut self, observation: &Observation) {
        let key = (observation.kind, observation.object.uid().to_owned());
        if observation.deleted {
            self.objects.remove(&key);
        } else {
            self.objects.insert(key, observation.object.clone());
        }
    }

    pub(crate) fn retain(&mut self, kind: Kind, listed: &BTreeSet<String>) {
        self.objects.retain(|(other, uid), _| *other != kind || listed.contains(uid));
    }

    pub(crate) fn get(&self, kind: Kind, uid: &str) -> Option<&Value> {
        self.objects.get(&(kind, uid.to_owned()))
    }

    pub(crate) fn of(&self, kind: Kind) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |((other, _), _)| *other == kind).map(|(_, object)| object)
    }

    pub(crate) fn node(&self, name: &str) -> Option<&Value> {
        self.of(Kind::Node).find(|node| node.name() == name)
    }

    /// Per-node Deployments of the operator, of all resources.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Value> {
        self.of(Kind::Deployment).filter(|deployment| is_member(deployment))
    }

    /// The resource of which this is the beginning of the UID.
    pub(crate) fn resource(&self, uid8: &str) -> Option<&Value> {
        self.of(Kind::IngressDaemonSet).find(|resource| names::uid8(resource.uid()) == uid8)
    }

    /// Whether the grant `id` of a Deployment's node marks the Deployment, and the Node; none when no ledger has it.
    pub(crate) fn marks_of(&self, deployment: &Value, id: u64) -> Option<(bool, bool)> {
        let owner = self.resource(resource(deployment))?;
        let grant = &owner["status"]["rollout"]["grants"][node_of(deployment)];
        let marks = &grant["marks"];
        (grant["id"].as_u64() == Some(id)).then(|| (marks["deployment"] == true, marks["node"].is_object()))
    }

    /// A person has ordered the slot of this grant to be freed.
    pub(crate) fn is_released(&self, deployment: &Value, id: u64) -> bool {
        let Some(owner) = self.resource(resource(deployment)) else { return false };
        let grant = &owner["status"]["rollout"]["grants"][node_of(deployment)];
        grant["id"].as_u64() == Some(id) && grant["released"] == true
    }

    /// Somebody has deleted the resource, and the operator is clearing up.
    pub(crate) fn is_being_deleted(&self, resource: &str) -> bool {
        self.resource(resource).is_some_and(Object::being_deleted)
    }

    /// The Deployment that a pod belongs to.
    pub(crate) fn deployment_of(&self, pod: &Value) -> Option<&Value> {
        let replica_set = self.get(Kind::ReplicaSet, pod.controller_uid()?)?;
        self.get(Kind::Deployment, replica_set.controller_uid()?)
    }

    pub(crate) fn pods_of(&self, deployment: &Value) -> impl Iterator<Item = &Value> {
        let uid = deployment.uid().to_owned();
        self.of(Kind::Pod).filter(move |pod| self.deployment_of(pod).is_some_and(|owner| owner.uid() == uid))
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

/// First 8 characters of the UID of the resource of a per-node Deployment.
pub(crate) fn resource(deployment: &Value) -> &str {
    deployment.label(names::RESOURCE_LABEL).unwrap_or_default()
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
