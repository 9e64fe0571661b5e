//! P11: pods are not made without end.
//!
//! Nobody but the API server's patience bounds a `ReplicaSet` whose pods a kubelet refuses, or a controller that changes its mind
//! with every look. So it counts the pods that are made for one resource on one node, whoever makes them.

use std::collections::{BTreeMap, VecDeque};

use chrono::{DateTime, TimeDelta, Utc};
use crds::names;
use serde_json::Value;

use super::{
    Audit, Property, STALE,
    cluster_state::{has_ended, is_member, node_of, replicas},
    observation::{ObjectExt, Observation},
    slots::Recent,
};

/// So long a creation counts.
const WINDOW: TimeDelta = TimeDelta::seconds(60);
/// Pods within the window for each replica that a node has, or had within it.
///
/// The breaker stops a node at three refusals within a minute, for a minute at least. Until the `ReplicaSet` hears of it, it goes
/// on: the scenario of pods that a kubelet refuses lets it make 40 of one replica on a busy machine. Updates are far below:
/// they make each replica once, after a grace, and so many do not fit into a minute. A loop is far above: a `ReplicaSet`
/// makes several pods a second.
const FOR_EACH_REPLICA: usize = 50;

/// What was made where, and what went that somebody else took away.
#[derive(Debug, Default)]
pub(super) struct FloodMemory {
    places: BTreeMap<(String, String), PlaceCounts>,
}

#[derive(Debug, Default)]
struct PlaceCounts {
    made: VecDeque<DateTime<Utc>>,
    taken: VecDeque<DateTime<Utc>>,
    replicas: Recent,
}

impl PlaceCounts {
    fn forget(&mut self, now: DateTime<Utc>) {
        for times in [&mut self.made, &mut self.taken] {
            times.retain(|time| now - *time < WINDOW);
        }
    }
}

impl Audit<'_> {
    /// Counts a pod, and judges how many there were.
    pub(super) fn judge_creation(&mut self, before: Option<&Value>, observation: &Observation) {
        let Some(place) = self.count_pod(before, observation) else { return };
        let counted = self.flood.places.entry(place.clone()).or_default();
        let (made, most) = (counted.made.len(), FOR_EACH_REPLICA.saturating_mul(counted.replicas.greatest().max(1)) + counted.taken.len());
        if made > most {
            counted.made.clear();
            let (of, name) = place;
            self.report(
                Property::BoundedCreation,
                format!("{made} pods of {name} of {of} were made within a minute, at most {most} may be"),
            );
        }
    }

    /// Returns the place of a pod that is new.
    pub(super) fn count_pod(&mut self, before: Option<&Value>, observation: &Observation) -> Option<(String, String)> {
        let pod = &observation.object;
        let of = pod.label(names::RESOURCE_LABEL)?.to_owned();
        let pulls = || pod.label(names::PRE_PULL_LABEL).and(pod["spec"]["nodeName"].as_str()).map(|node| format!("images on {node}"));
        let name = pod.label(names::NODE_LABEL).map(str::to_owned).or_else(pulls)?;
        let deployment = self.cluster.deployment_of(pod).filter(|deployment| is_member(deployment));
        if deployment.is_some_and(|deployment| self.is_touched(node_of(deployment))) {
            return None;
        }
        let wanted = deployment.map_or(0, |deployment| usize::try_from(replicas(deployment)).unwrap_or(usize::MAX));
        let taken = deployment.is_some_and(|deployment| self.is_taken_away(deployment, before, observation));
        let place = self.flood.places.entry((of.clone(), name.clone())).or_default();
        place.replicas.see(wanted, observation.at, STALE);
        if taken {
            place.taken.push_back(observation.at);
        }
        if before.is_some() || observation.deleted {
            return None;
        }
        let created = pod["metadata"]["creationTimestamp"].as_str().and_then(|text| DateTime::parse_from_rfc3339(text).ok());
        let created = created.map_or(observation.at, |created| created.to_utc());
        place.made.push_back(created);
        place.forget(created);
        Some((of, name))
    }

    /// A pod begins to go that its Deployment has no reason to replace: it makes another one for that.
    fn is_taken_away(&self, deployment: &Value, before: Option<&Value>, observation: &Observation) -> bool {
        let pod = &observation.object;
        let begins = (pod.being_deleted() || observation.deleted) && before.is_some_and(|before| !before.being_deleted());
        let wanted = deployment["spec"]["template"]["metadata"]["labels"][names::REVISION_LABEL].as_str();
        let live = |pod: &&Value| !pod.being_deleted() && !has_ended(pod);
        begins
            && !before.is_some_and(has_ended)
            && pod.label(names::REVISION_LABEL) == wanted
            && self.cluster.pods_of(deployment).filter(live).count() as u64 <= replicas(deployment)
    }
}
