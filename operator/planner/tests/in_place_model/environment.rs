//! What happens around an operator: controllers and kubelets by themselves, and disturbances.

use super::{Broken, Left, PODS, Pod, ReplicaSet, Search, State};
use crds::token::Phase;

impl Search {
    /// What happens by itself.
    pub(super) fn natural<const K: usize>(&self, state: &State<K>) -> Vec<(&'static str, State<K>, Broken)> {
        let mut next = Vec::new();
        let deployment = state.truth.deployment;
        let view = (deployment.generation, deployment.paused, deployment.revision);
        if state.controller != view {
            next.push(("the Deployment's controller looks", State { controller: view, ..*state }, None));
        }
        if let Some((after, broken)) = self.deployment_controller(state) {
            next.push(("the Deployment's controller acts", after, broken));
        }
        for i in 0..2 {
            let Some(set) = state.truth.sets[i] else { continue };
            if set.known != set.revision {
                let mut after = *state;
                after.truth.sets[i] = Some(ReplicaSet { known: set.revision, ..set });
                next.push(("a ReplicaSet's controller looks", after, None));
            }
            if self.scale(state) == Some(set.uid)
                && state.truth.live().count() < state.pods
                && let Some(free) = state.truth.pods.iter().position(Option::is_none)
            {
                let mut after = *state;
                after.uids += 1;
                after.truth.pods[free] = Some(Pod { uid: after.uids, set: set.uid, image: set.known, token: 0, gate: None, runs: None });
                next.push(("a ReplicaSet's controller makes a pod", after, None));
            }
        }
        for i in 0..PODS {
            if let Some(pod) = state.truth.pods[i].filter(|pod| pod.runs != Some(pod.image)) {
                let mut after = *state;
                // The container that ran ends first.
                after.truth.pods[i] = Some(Pod { runs: if pod.runs.is_some() { None } else { Some(pod.image) }, ..pod });
                next.push(("a kubelet", after, None));
            }
        }
        next
    }

    /// The `ReplicaSet` that is to have the pods: the one that its Deployment last chose.
    fn scale<const K: usize>(&self, state: &State<K>) -> Option<u8> {
        let (_, paused, revision) = state.controller;
        let newest = state.truth.sets.iter().flatten().max_by_key(|set| set.uid);
        let chosen = if paused { None } else { state.truth.set_of(revision).map(|set| set.uid) };
        let with_pods = state.truth.live().next().map(|pod| pod.set);
        chosen.or(with_pods).or(newest.map(|set| set.uid))
    }

    fn deployment_controller<const K: usize>(&self, state: &State<K>) -> Option<(State<K>, Broken)> {
        let (generation, paused, revision) = state.controller;
        let mut after = *state;
        let mut broken = None;
        let now = &mut after.truth;
        if !paused && now.set_of(revision).is_none() {
            if !after.excused {
                broken = Some("P15: a ReplicaSet is made while pods change in place");
            }
            after.uids += 1;
            let free = now.sets.iter_mut().find(|set| set.is_none())?;
            *free = Some(ReplicaSet { uid: after.uids, revision, token: 0, known: revision });
        }
        if !paused && let Some(current) = now.set_of(revision) {
            for pod in now.pods.iter_mut().filter(|pod| pod.is_some_and(|pod| pod.set != current.uid)) {
                *pod = None;
                if !after.excused {
                    broken = broken.or(Some("P15: pods are re-created"));
                }
                if now.deployment.phase == Phase::Closed {
                    broken = broken.or(Some("P3: pods are re-created on a node that serves"));
                }
            }
        }
        // Former ones without pods go; those that may still be the Deployment's own stay.
        let pods = now.pods;
        let used = |set: &ReplicaSet| pods.iter().flatten().any(|pod| pod.set == set.uid);
        let keeps = if paused { None } else { now.set_of(revision).map(|set| set.uid) };
        let alone = now.sets.iter().flatten().count() == 1;
        for set in &mut now.sets {
            if set.is_some_and(|set| !used(&set) && keeps != Some(set.uid) && !alone && (!paused || set.revision != revision)) {
                *set = None;
            }
        }
        now.deployment.observed = now.deployment.observed.max(generation);
        (after != *state).then_some((after, broken))
    }

    pub(super) fn disturbances<const K: usize>(state: &State<K>) -> Vec<(&'static str, State<K>)> {
        let mut next = Vec::new();
        let left = state.left;
        if left.changes > 0 {
            for wanted in (0..3).filter(|wanted| *wanted != state.truth.wanted) {
                let mut after = State { left: Left { changes: left.changes - 1, ..left }, ..*state };
                after.truth.wanted = wanted;
                next.push(("the template changes", after));
            }
        }
        if left.deaths > 0 {
            for i in (0..PODS).filter(|i| state.truth.pods[*i].is_some()) {
                let mut after = State { left: Left { deaths: left.deaths - 1, ..left }, ..*state };
                after.truth.pods[i] = None;
                next.push(("a pod dies", after));
            }
        }
        if left.unpauses > 0 && state.truth.deployment.paused {
            let mut after = State { left: Left { unpauses: left.unpauses - 1, ..left }, excused: true, ..*state };
            after.truth.deployment.paused = false;
            after.truth.deployment.generation += 1;
            next.push(("somebody ends the pause", after));
        }
        if left.recreates > 0 && state.in_place {
            next.push(("podUpdate is Recreate", State { left: Left { recreates: left.recreates - 1, ..left }, in_place: false, ..*state }));
        }
        next
    }
}
