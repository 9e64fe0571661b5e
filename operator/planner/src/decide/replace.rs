//! Pods that stay: their gates, and the moves of an update in place.

use super::{Pass, waits::trouble};
use crate::{
    facts::{DeploymentFacts, InPlacePod},
    node::ManagedNode,
    objects::{
        in_place::{self, Progress, moves::Move, writes},
        ownerless,
        revisions::Targets,
    },
    patch::JsonPatch,
    plan::Action,
    reason::{NodeObject, Reason, RecreateReason},
};
use crds::{
    ingress_daemon_set::PodUpdate,
    ledger::{Grant, GrantReason},
    status::NodePhase,
};
use serde_json::Value;

impl<'a> Pass<'a> {
    pub(super) fn progress(&self, managed: &ManagedNode<'a>, grant: &Grant) -> Option<Progress<'a>> {
        in_place::progress(self.snapshot, managed, grant, self.valid_targets())
    }

    pub(super) fn valid_targets(&self) -> Option<&'a Targets> {
        self.targets.as_ref().ok()
    }

    /// Its update cannot be made in place, and is not to be made otherwise.
    pub(super) fn is_refused_in_place(&self, managed: &ManagedNode<'a>, grant: &Grant) -> bool {
        let only = managed.settings.is_some_and(|settings| settings.pod_update == PodUpdate::InPlaceOnly);
        // A way back has changed no pods. Where there are none, none would be made anew.
        only && (!managed.is_updated() || grant.kind == GrantReason::Abort)
            && !managed.is_empty()
            && !managed.deployment.is_some_and(in_place::is_paused)
            && self.valid_targets().is_some_and(|targets| in_place::way(managed, targets).is_err())
    }

    /// Why an update that should have come about in place does not.
    pub(super) fn recreates(&self, managed: &ManagedNode<'a>, grant: &Grant, progress: Option<&Progress<'a>>) -> Option<RecreateReason> {
        let asked = managed.settings.is_some_and(|settings| settings.pod_update != PodUpdate::Recreate);
        let before = || in_place::way(managed, self.valid_targets()?).err();
        match progress {
            _ if grant.kind != GrantReason::Update || !asked => None,
            Some(progress) => Some(progress.why.unwrap_or(RecreateReason::ReplicaSets)),
            None => before(),
        }
    }

    /// Carries the update in place of one node on.
    pub(super) fn replace(&mut self, managed: &ManagedNode<'a>, grant: &Grant, progress: &Progress<'a>) {
        if let Some(reason) = self.refused(managed, NodeObject::Pods) {
            return self.set(managed.name, NodePhase::Blocked, reason);
        }
        for next in &progress.moves {
            let action = self.action(managed, grant, progress, *next);
            self.plan.actions.extend(action);
        }
        let settle = progress.pods.iter().filter_map(|(_, gated)| in_place::completion::settles_at(gated));
        for due in settle.chain([progress.drained_at]).filter(|due| *due > self.snapshot.now) {
            self.plan.recheck(due);
        }
        let updated = progress.pods.iter().filter(|(pod, _)| pod.revision == grant.revision && pod.ready).count();
        let reason = match trouble(managed, grant) {
            _ if managed.is_lost() => Reason::NodeNotReady,
            trouble => Reason::UpdatingInPlace { updated, of: progress.pods.len(), trouble, why: progress.why },
        };
        let (phase, reason) = match self.failure(managed) {
            Some(failure) => (NodePhase::Failed, Reason::failed(&failure.reason, reason)),
            None => (NodePhase::UpdatingInPlace, reason),
        };
        self.set(managed.name, phase, reason);
    }

    fn action(&self, managed: &ManagedNode<'a>, grant: &Grant, progress: &Progress<'a>, next: Move) -> Option<Action> {
        let node = managed.name.to_owned();
        let before = managed.deployment?.spec.get("template")?;
        match next {
            Move::Claim { rewrite } => {
                let set = progress.replica_set?;
                let target = progress.target.as_ref().filter(|_| rewrite);
                let patch = writes::claim(&self.snapshot.resource, set, grant.id, target)?;
                Some(Action::PatchReplicaSet { node, name: set.name.clone(), patch })
            }
            Move::Change(place) => {
                let (pod, gated) = progress.pods.get(place)?;
                let patch = writes::change(gated, grant.id, progress.target.as_ref()?, &before, self.snapshot.now)?;
                Some(Action::PatchPod { node, name: pod.name.clone(), patch })
            }
            Move::Shut(place) | Move::Open(place) => {
                let (pod, gated) = progress.pods.get(place)?;
                Some(self.gate(managed, &pod.name, gated, matches!(next, Move::Open(_))))
            }
            Move::AwaitPause | Move::AwaitPod(_) | Move::Finish { .. } => None,
        }
    }

    fn gate(&self, managed: &ManagedNode<'_>, name: &str, gated: &InPlacePod, open: bool) -> Action {
        let patch = writes::gate(gated, open, self.snapshot.now);
        Action::PatchPodStatus { node: managed.name.to_owned(), name: name.to_owned(), patch }
    }

    /// Pods that nothing keeps from being ready.
    pub(super) fn in_place_condition(&mut self, managed: &ManagedNode<'_>) {
        for (pod, gated) in in_place::to_open(managed) {
            if let Some(reason) = self.refused(managed, NodeObject::Pods) {
                return self.set(managed.name, NodePhase::Blocked, reason);
            }
            let action = self.gate(managed, &pod.name, gated, true);
            self.plan.actions.push(action);
        }
    }

    /// Pods that wait for what no gate sets any more.
    pub(super) fn release_ownerless(&mut self, managed: &ManagedNode<'_>) {
        for (pod, patch) in ownerless::patches(self.snapshot, managed, self.valid_targets()) {
            if let Some(reason) = self.refused(managed, NodeObject::Pods) {
                return self.set(managed.name, NodePhase::Blocked, reason);
            }
            let (node, name) = (managed.name.to_owned(), pod.name.clone());
            self.plan.actions.push(Action::PatchPodStatus { node, name, patch });
        }
    }

    /// Pods of a former template that nothing else would replace.
    pub(super) fn delete_stragglers(&mut self, managed: &ManagedNode<'_>) {
        for pod in in_place::stragglers(managed) {
            // It may have changed in place since it was seen, and serve by now.
            let Some(gated) = &pod.gated else { continue };
            let (uid, resource_version) = (Some(gated.uid.clone()), Some(gated.resource_version.clone()));
            self.plan.actions.push(Action::DeletePod { name: pod.name.clone(), uid, resource_version });
        }
    }

    /// The patch that ends the pause when nothing has to be re-created.
    pub(super) fn unpause(
        &self,
        managed: &ManagedNode<'_>,
        grant: &Grant,
        deployment: &DeploymentFacts,
        progress: &Progress<'_>,
    ) -> Option<Value> {
        if progress.moves != [(Move::Finish { in_place: true })] {
            return None;
        }
        let change = in_place::change::between(&deployment.spec.get("template")?, progress.target.as_ref()?)?;
        let write = |patch: JsonPatch| change.write(patch, "/spec/template");
        Some(crate::objects::deployment_writes::unpause(self.snapshot, managed, deployment, grant, write))
    }
}
