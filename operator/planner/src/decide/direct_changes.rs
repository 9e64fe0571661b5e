//! What a node needs that takes no grant: its label, its Deployment, changes that disrupt nobody, the breaker.

use crate::{
    decide::Pass,
    facts::{DeploymentFacts, readiness},
    node::{ManagedNode, breaker},
    objects::{deployment_writes, node_writes, render},
    plan::{Action, NodeProgress, Write},
    reason::{NodeObject, Reason},
    spec::ResolvedSpec,
};
use crds::{
    ledger::GrantReason,
    status::NodePhase,
    token::{Phase, Token},
};
use serde_json::Value;

/// How many ids a pass takes from the ledger for Deployments to be made, and half of how many of them it makes. Thousands of nodes
/// that join together get theirs in several passes, or the plan of one would hold the whole of each.
const AT_ONCE: usize = 256;

impl Pass<'_> {
    /// What a node needs that takes no grant: label, Deployment, direct changes, breaker.
    pub(crate) fn change_directly(&mut self, managed: &ManagedNode<'_>) {
        for name in breaker::leftovers(managed.pods, self.snapshot.now) {
            self.plan.actions.push(Action::DeletePod { name: name.to_owned(), uid: None, resource_version: None });
        }
        // A kubelet is spared whatever the spec says, also while its node waits to be left.
        let refused = self.snapshot.refusal(managed.name, NodeObject::Deployment).is_some();
        let tripped = managed.deployment.filter(|_| !refused).is_some_and(|deployment| self.trip_breaker(managed, deployment));
        if tripped || !managed.chosen && !managed.orphaned {
            return;
        }
        if let Some(reason) = self.refused(managed, NodeObject::Deployment) {
            return self.set(managed.name, NodePhase::Blocked, reason);
        }
        let Some(deployment) = managed.deployment else {
            // Pods on a node that leaves would only be moved again.
            return match managed.is_draining() && !managed.orphaned {
                true if managed.grant.is_some() || managed.served() => self.hold_drained(managed),
                // It uses no slot that others could wait for.
                true => self.set(managed.name, NodePhase::Draining, Reason::Draining),
                false => self.create(managed),
            };
        };
        if let Some(open) = breaker::open(deployment, self.snapshot.now) {
            self.plan.recheck(open.until);
        }
        let Some(settings) = managed.settings else { return };
        if !self.label_member(managed, settings) {
            return;
        }
        if managed.grant.is_none() || managed.phase() == Some(Phase::New) {
            if let Some(patch) = deployment_writes::direct(self.snapshot, settings, managed, deployment) {
                self.patch_directly(managed, deployment, patch, Write::Direct);
                return;
            }
            self.first_close(managed, deployment, settings);
        } else if managed.is_updated()
            && let Some(patch) = deployment_writes::patience(self.snapshot, deployment)
        {
            self.patch_directly(managed, deployment, patch, Write::Direct);
        }
    }

    fn patch_directly(&mut self, managed: &ManagedNode<'_>, deployment: &DeploymentFacts, patch: Value, write: Write) {
        // One write per Deployment and pass: the second would test a token that the first may have changed.
        let written = |action: &Action| matches!(action, Action::PatchDeployment { node, .. } | Action::DeleteDeployment { node, .. } if node == managed.name);
        if !self.plan.actions.iter().any(written) {
            if managed.phase() == Some(Phase::New) || deployment.replicas() == 0 {
                self.plan.node_states.entry(managed.name.to_owned()).or_insert(NodeProgress {
                    phase: NodePhase::Joining,
                    reason: Reason::Writing,
                    suspect: None,
                });
            }
            self.plan.actions.push(Action::PatchDeployment { node: managed.name.to_owned(), name: deployment.name.clone(), patch, write });
        }
    }

    /// A new Deployment that is complete begins to serve, after the Node's label says so.
    fn first_close(&mut self, managed: &ManagedNode<'_>, deployment: &DeploymentFacts, settings: &ResolvedSpec) {
        let Some(token) = managed.token.as_ref().filter(|token| token.phase == Phase::New && managed.grant.is_none()) else { return };
        let wanted = settings.pods_per_node;
        if wanted == 0 || !readiness::is_complete(deployment, managed.pods, &settings.revision, wanted) {
            let rejected = breaker::reason(deployment, managed.pods, self.snapshot.now);
            let reason = rejected.or_else(|| managed.refusal()).unwrap_or_else(|| Reason::Joining { trouble: managed.trouble() });
            if wanted > 0 || !managed.settled {
                self.set(managed.name, NodePhase::Joining, reason);
            }
        } else if managed.member == Some("serving") {
            let patch = deployment_writes::first_close(self.snapshot, managed, deployment, token.id);
            self.patch_directly(managed, deployment, patch, Write::FirstClose);
        } else {
            self.set_member(managed, "serving");
        }
    }

    /// Puts the member label on; `false` while it is not there. A machine that has taken the name of another has served once it is attached
    /// with pods that are ready, and that are none which the other has left.
    fn label_member(&mut self, managed: &ManagedNode<'_>, settings: &ResolvedSpec) -> bool {
        let left = managed.joins && !managed.is_at(&settings.revision);
        let attached = managed.phase() == Some(Phase::Closed) && managed.grant.is_none();
        let ready = managed.is_ready() && (settings.is_without_pods() || !managed.is_empty());
        match managed.member {
            Some("serving") => return true,
            _ if attached && ready && !left => self.set_member(managed, "serving"),
            Some("joining") => return true,
            _ => self.set_member(managed, "joining"),
        }
        false
    }

    fn set_member(&mut self, managed: &ManagedNode<'_>, value: &str) {
        let Some(node) = managed.node else { return };
        if let Some(reason) = self.refused(managed, NodeObject::Node) {
            let held = NodeProgress { phase: NodePhase::Blocked, reason, suspect: None };
            self.plan.node_states.entry(managed.name.to_owned()).or_insert(held);
            return;
        }
        let patch = node_writes::member(node, self.snapshot.resource.uid8(), Some(value));
        self.plan.node_states.entry(managed.name.to_owned()).or_insert(NodeProgress {
            phase: NodePhase::Joining,
            reason: Reason::Writing,
            suspect: None,
        });
        self.plan.actions.push(Action::PatchNode { node: managed.name.to_owned(), patch, write: Write::Member, live_absent: None });
    }

    /// Opens the breaker, or asks for no more than the node still has while it is open; `true` when it did.
    fn trip_breaker(&mut self, managed: &ManagedNode<'_>, deployment: &DeploymentFacts) -> bool {
        if let Some((open, kept)) = breaker::kept_of_fewer(deployment, managed.pods, managed.is_lost(), self.snapshot.now) {
            let patch = deployment_writes::open_breaker(deployment, open, kept);
            self.patch_directly(managed, deployment, patch, Write::Breaker);
            return true;
        }
        let Some(opened) = breaker::opens(deployment, managed.pods, self.snapshot.now) else { return false };
        self.plan.recheck(opened.until);
        // A node that serves, or that tries again to have all its pods, keeps those that are ready: the breaker stops the flood, not the
        // service.
        let grows = managed.grant.is_some_and(|grant| grant.kind == GrantReason::Grow);
        let expendable = managed.is_updated() && !grows || managed.phase() == Some(Phase::New);
        let ready = managed.pods.iter().filter(|pod| pod.ready && !pod.terminating).count();
        let replicas = if expendable { 0 } else { i32::try_from(ready).unwrap_or(i32::MAX).min(deployment.replicas()) };
        let patch = deployment_writes::open_breaker(deployment, opened, replicas);
        self.patch_directly(managed, deployment, patch, Write::Breaker);
        true
    }

    /// Pods that stay have a Deployment, which somebody took our labels from.
    fn reclaim(&mut self, managed: &ManagedNode<'_>, name: String) {
        self.plan.recheck(self.snapshot.now.saturating_add(5));
        self.set(managed.name, NodePhase::Blocked, Reason::Relabelled(name.clone()));
        let identity = render::identity_patch(&self.snapshot.resource, &name, managed.name);
        self.plan.actions.push(Action::Reclaim { node: managed.name.to_owned(), name, identity });
    }

    /// Creates the node's Deployment: new, or around pods that have lost theirs.
    fn create(&mut self, managed: &ManagedNode<'_>) {
        let snapshot = self.snapshot;
        let name = self.deployment_name(managed.name);
        if snapshot.foreign_names.contains(&name) {
            // A stranger's object is not watched: look again whether it is still there.
            self.plan.recheck(snapshot.now.saturating_add(5));
            return self.set(managed.name, NodePhase::Blocked, Reason::NameConflict(name));
        }
        if managed.chosen && managed.member.is_none() {
            self.set_member(managed, "joining");
            if self.refused(managed, NodeObject::Node).is_some() {
                return;
            }
        }
        let left = managed.pods.iter().filter(|pod| !pod.ended).count();
        let Some(settings) = managed.settings else { return self.set(managed.name, NodePhase::Blocked, Reason::InvalidSpec) };
        let (phase, template, replicas) = match snapshot.orphans.get(managed.name) {
            Some(orphan) => (Phase::Closed, orphan.get("template").unwrap_or_default(), i32::try_from(left).unwrap_or(i32::MAX)),
            None if managed.pods.iter().any(|pod| !pod.ended && !pod.terminating) => return self.reclaim(managed, name),
            None if left > 0 => return self.set(managed.name, NodePhase::Blocked, Reason::PodsTerminating),
            None => (Phase::New, render::template(&snapshot.resource, settings, &name, managed.name), settings.pods_per_node),
        };
        if !self.plan.node_states.contains_key(managed.name) {
            self.set(managed.name, NodePhase::Joining, Reason::Writing);
        }
        let Some(id) = self.reserved.next() else {
            let known = self.snapshot.reserved.len();
            self.unserved += u64::from(known < 2 * AT_ONCE && self.unserved < AT_ONCE as u64);
            return;
        };
        let token = Token { uid8: snapshot.resource.uid8().to_owned(), id, phase, since: snapshot.now, keep_annotation: false };
        let body = render::deployment(&snapshot.resource, settings, &name, managed.name, &token, &template, replicas);
        self.plan.actions.push(Action::CreateDeployment { node: managed.name.to_owned(), id, name, body: Box::new(body) });
    }
}
