//! What a node needs that takes no grant: its label, its Deployment, changes that disrupt nobody, the breaker.

use crate::{
    breaker,
    decide::Pass,
    deployment_writes,
    node::ManagedNode,
    node_writes,
    plan::{Action, NodeProgress, Write},
    readiness,
    reason::Reason,
    render,
    snapshot::DeploymentFacts,
    spec::ResolvedSpec,
};
use crds::{
    ledger::GrantReason,
    status::NodePhase,
    token::{Phase, Token},
};
use serde_json::Value;

/// How many ids a pass takes from the ledger for Deployments to be made, and half of how many of them it makes: thousands of nodes
/// that join together get theirs in several passes, or the plan of one would hold the whole of each.
const AT_ONCE: usize = 256;

impl Pass<'_> {
    /// What a node needs that takes no grant: label, Deployment, direct changes, breaker.
    pub(crate) fn supply(&mut self, case: &ManagedNode<'_>) {
        for name in breaker::leftovers(case.pods, self.snapshot.now) {
            self.plan.actions.push(Action::DeletePod { name: name.to_owned(), uid: None, resource_version: None });
        }
        // A kubelet is spared whatever the spec says, also while its node waits to be left.
        let refused = self.snapshot.refusals.contains_key(case.name);
        let tripped = case.deployment.filter(|_| !refused).is_some_and(|deployment| self.trip_breaker(case, deployment));
        if tripped || !case.chosen && !case.orphaned {
            return;
        }
        if let Some(message) = self.snapshot.refusals.get(case.name) {
            // It would be refused again; it is tried again after a while, or when the spec changes.
            self.plan.recheck(self.snapshot.now.saturating_add(5));
            return self.set(case.name, NodePhase::Blocked, Reason::Refused(message.clone()));
        }
        let Some(deployment) = case.deployment else {
            // Pods on a node that leaves would only be moved again.
            return match case.is_draining() && !case.orphaned {
                true if case.grant.is_some() || case.served() => self.hold_drained(case),
                // It takes no place that others could wait for.
                true => self.set(case.name, NodePhase::Draining, Reason::Draining),
                false => self.create(case),
            };
        };
        if let Some(open) = breaker::open(deployment, self.snapshot.now) {
            self.plan.recheck(open.until);
        }
        let Some(settings) = case.settings else { return };
        if !self.label_member(case, settings) {
            return;
        }
        if case.grant.is_none() || case.phase() == Some(Phase::New) {
            if let Some(patch) = deployment_writes::direct(self.snapshot, settings, case, deployment) {
                self.patch_directly(case, deployment, patch, Write::Direct);
                return;
            }
            self.first_close(case, deployment, settings);
        } else if case.is_updated()
            && let Some(patch) = deployment_writes::patience(self.snapshot, deployment)
        {
            self.patch_directly(case, deployment, patch, Write::Direct);
        }
    }

    fn patch_directly(&mut self, case: &ManagedNode<'_>, deployment: &DeploymentFacts, patch: Value, write: Write) {
        // One write per Deployment and pass: the second would test a token that the first may have changed.
        let written = |action: &Action| matches!(action, Action::PatchDeployment { node, .. } | Action::DeleteDeployment { node, .. } if node == case.name);
        if !self.plan.actions.iter().any(written) {
            if case.phase() == Some(Phase::New) || deployment.replicas() == 0 {
                self.plan.node_states.entry(case.name.to_owned()).or_insert(NodeProgress {
                    phase: NodePhase::Joining,
                    reason: Reason::Writing,
                    suspect: None,
                });
            }
            self.plan.actions.push(Action::PatchDeployment { node: case.name.to_owned(), name: deployment.name.clone(), patch, write });
        }
    }

    /// A new Deployment that is complete begins to serve, after the Node's label says so.
    fn first_close(&mut self, case: &ManagedNode<'_>, deployment: &DeploymentFacts, settings: &ResolvedSpec) {
        let Some(token) = case.token.as_ref().filter(|token| token.phase == Phase::New && case.grant.is_none()) else { return };
        let wanted = settings.pods_per_node;
        if wanted == 0 || !readiness::is_complete(deployment, case.pods, &settings.revision, wanted) {
            let reason = match breaker::reason(deployment, case.pods, self.snapshot.now) {
                Some(rejected) => rejected,
                None if case.pods.is_empty() && deployment.refusal.is_some() => {
                    Reason::PodsRefused(deployment.refusal.clone().unwrap_or_default())
                }
                None => Reason::Joining { trouble: readiness::trouble(case.pods) },
            };
            if wanted > 0 || !case.settled {
                self.set(case.name, NodePhase::Joining, reason);
            }
        } else if case.member == Some("serving") {
            let patch = deployment_writes::first_close(self.snapshot, settings, case, deployment, token.id);
            self.patch_directly(case, deployment, patch, Write::FirstClose);
        } else {
            self.set_member(case, "serving");
        }
    }

    /// Puts the member label on; `false` while it is not there. A machine that has taken the name of another has served once it is attached
    /// with pods that are ready, and that are none which the other has left.
    fn label_member(&mut self, case: &ManagedNode<'_>, settings: &ResolvedSpec) -> bool {
        let left = case.joins && !case.is_at(&settings.revision);
        let attached = case.phase() == Some(Phase::Closed) && case.grant.is_none();
        let ready = case.is_ready() && (settings.is_without_pods() || !case.is_empty());
        match case.member {
            Some("serving") => return true,
            _ if attached && ready && !left => self.set_member(case, "serving"),
            Some("joining") => return true,
            _ => self.set_member(case, "joining"),
        }
        false
    }

    fn set_member(&mut self, case: &ManagedNode<'_>, value: &str) {
        let Some(node) = case.node else { return };
        let patch = node_writes::member(node, self.snapshot.resource.uid8(), Some(value));
        self.plan.node_states.entry(case.name.to_owned()).or_insert(NodeProgress {
            phase: NodePhase::Joining,
            reason: Reason::Writing,
            suspect: None,
        });
        self.plan.actions.push(Action::PatchNode { node: case.name.to_owned(), patch, write: Write::Member, live_absent: None });
    }

    /// Opens the breaker, or asks for no more than the node still has while it is open; `true` when it did.
    fn trip_breaker(&mut self, case: &ManagedNode<'_>, deployment: &DeploymentFacts) -> bool {
        if let Some((open, kept)) = breaker::kept_of_fewer(deployment, case.pods, case.is_lost(), self.snapshot.now) {
            let patch = deployment_writes::open_breaker(deployment, open, kept);
            self.patch_directly(case, deployment, patch, Write::Breaker);
            return true;
        }
        let Some(opened) = breaker::opens(deployment, case.pods, self.snapshot.now) else { return false };
        self.plan.recheck(opened.until);
        // A node that serves, or that tries again to have all its pods, keeps those that are ready: the breaker stops the flood, not the service.
        let grows = case.grant.is_some_and(|grant| grant.kind == GrantReason::Grow);
        let expendable = case.is_updated() && !grows || case.phase() == Some(Phase::New);
        let ready = case.pods.iter().filter(|pod| pod.ready && !pod.terminating).count();
        let replicas = if expendable { 0 } else { i32::try_from(ready).unwrap_or(i32::MAX).min(deployment.replicas()) };
        let patch = deployment_writes::open_breaker(deployment, opened, replicas);
        self.patch_directly(case, deployment, patch, Write::Breaker);
        true
    }

    /// Pods that stay have a Deployment, which somebody took our labels from.
    fn reclaim(&mut self, case: &ManagedNode<'_>, name: String) {
        self.plan.recheck(self.snapshot.now.saturating_add(5));
        self.set(case.name, NodePhase::Blocked, Reason::Relabelled(name.clone()));
        let identity = render::identity_patch(&self.snapshot.resource, &name, case.name);
        self.plan.actions.push(Action::Reclaim { node: case.name.to_owned(), name, identity });
    }

    /// Creates the node's Deployment: new, or around pods that have lost theirs.
    fn create(&mut self, case: &ManagedNode<'_>) {
        let snapshot = self.snapshot;
        let name = self.deployment_name(case.name);
        if snapshot.foreign_names.contains(&name) {
            // A stranger's object is not watched: look again whether it is still there.
            self.plan.recheck(snapshot.now.saturating_add(5));
            return self.set(case.name, NodePhase::Blocked, Reason::NameConflict(name));
        }
        if case.chosen && case.member.is_none() {
            self.set_member(case, "joining");
        }
        let left = case.pods.iter().filter(|pod| !pod.ended).count();
        let Some(settings) = case.settings else { return self.set(case.name, NodePhase::Blocked, Reason::InvalidSpec) };
        let (phase, template, replicas) = match snapshot.orphans.get(case.name) {
            Some(template) => (Phase::Closed, template.clone(), i32::try_from(left).unwrap_or(i32::MAX)),
            None if case.pods.iter().any(|pod| !pod.ended && !pod.terminating) => return self.reclaim(case, name),
            None if left > 0 => return self.set(case.name, NodePhase::Blocked, Reason::PodsTerminating),
            None => (Phase::New, render::template(&snapshot.resource, settings, &name, case.name), settings.pods_per_node),
        };
        if !self.plan.node_states.contains_key(case.name) {
            self.set(case.name, NodePhase::Joining, Reason::Writing);
        }
        let Some(id) = self.reserved.next() else {
            let known = self.snapshot.reserved.len();
            self.unserved += u64::from(known < 2 * AT_ONCE && self.unserved < AT_ONCE as u64);
            return;
        };
        let token = Token { uid8: snapshot.resource.uid8().to_owned(), id, phase, since: snapshot.now, keep_annotation: false };
        let body = render::deployment(&snapshot.resource, settings, &name, case.name, &token, &template, replicas);
        self.plan.actions.push(Action::CreateDeployment { node: case.name.to_owned(), id, name, body: Box::new(body) });
    }
}
