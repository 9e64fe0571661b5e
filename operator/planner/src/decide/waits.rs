//! What a grant waits for: its marks to work, its pods, the soak.

use super::Pass;
use crate::{
    facts::readiness,
    node::{ManagedNode, breaker, clocks, replicas},
    protocol::{
        step::Step,
        timing::{self, Marked, TAINT_WITHIN},
    },
    reason::{self, NodeObject, Reason},
    rollout::periods,
    snapshot::REFUSED_AGAIN,
    spec::ResolvedSpec,
};
use crds::{
    holders::EntryPhase,
    ledger::{Grant, GrantReason, Suspect, WaitFor},
    status::NodePhase,
    token::Phase,
};

/// What keeps pods from being ready. Beneath a pause the Deployment says the former revision still, of which a pod that ended means
/// nothing.
pub(super) fn trouble(managed: &ManagedNode<'_>, grant: &Grant) -> Option<(String, String)> {
    let deployment = managed.deployment?;
    let revision = if managed.is_in_place() { grant.revision.as_str() } else { deployment.revision() };
    readiness::trouble(managed.pods, revision, deployment.refusal.is_some())
}

impl Pass<'_> {
    /// A gate that taints nodes before they are updated, while it has not done so: until then nothing on the node is changed, so
    /// that the grace period is counted from a time at which no new workload comes.
    pub(super) fn untainted(&self, managed: &ManagedNode<'_>, grant: &Grant, next: Step) -> Option<Reason> {
        let begins = matches!(next, Step::Claim | Step::Detach | Step::Pause | Step::Update);
        let updates =
            managed.chosen && matches!(grant.kind, GrantReason::Update | GrantReason::Repair | GrantReason::Shrink | GrantReason::Grow);
        let left = TAINT_WITHIN.saturating_sub(clocks::waited(grant, WaitFor::Taint, grant.granted_at));
        let node = managed.node.filter(|node| begins && updates && !node.deleting && left > 0)?;
        let until = self.snapshot.now.saturating_add(left);
        let gate = self.snapshot.gates.tainting.iter().find(|gate| {
            let is_tainted = || node.taints.iter().any(|taint| gate.has_taint(&taint.key, &taint.effect));
            gate.selects(node) && !is_tainted() && !replicas::would_evict(managed, &gate.spec.taint)
        })?;
        let taint = format!("{}:{}", gate.spec.taint.key, gate.spec.taint.effect.as_str());
        Some(Reason::WaitingForTaint { gate: gate.name.clone(), taint, until })
    }

    /// Why this object of the node is not written now: it would be refused again. It is tried again after a while, or when the spec
    /// changes.
    pub(super) fn refused(&mut self, managed: &ManagedNode<'_>, object: NodeObject) -> Option<Reason> {
        let message = self.snapshot.refusal(managed.name, object)?.clone();
        self.plan.recheck(self.snapshot.now.saturating_add(REFUSED_AGAIN));
        Some(Reason::Refused { object, message })
    }

    /// Until when a grant waits for its marks to work.
    pub(super) fn grace(&self, managed: &ManagedNode<'_>) -> Option<Reason> {
        let grant = managed.grant?;
        let token = managed.token.as_ref().filter(|token| token.id == grant.id && token.phase == Phase::Claimed);
        let entry = managed.entry.as_ref().filter(|entry| entry.id == grant.id && entry.phase == EntryPhase::Detached);
        if token.is_none() && entry.is_none() || grant.kind == GrantReason::Abort || managed.is_updated() {
            return None;
        }
        let now = self.snapshot.now;
        let token = token.map(|token| clocks::waited(grant, WaitFor::DeploymentMark, token.since));
        let entry = entry.map(|entry| (entry, clocks::waited(grant, WaitFor::NodeMark, entry.time)));
        let Some(settings) = self.settings else {
            return timing::default_grace(now, token.into_iter().chain(entry.map(|(_, waited)| waited)).min()?);
        };
        let reason = timing::grace(settings, &Marked { now, token, entry, node: managed.node })?;
        // Deletion is bounded: it never waits for a detacher for ever.
        (!(self.snapshot.resource.deleting && reason == Reason::DetachTimeout)).then_some(reason)
    }

    /// Until when a node that is attached again is left alone.
    pub(super) fn soak(&self, managed: &ManagedNode<'_>, grant: &Grant) -> Option<Reason> {
        let settings = self.settings?;
        let closed = managed.token.as_ref().filter(|token| token.id == grant.id && token.phase == Phase::Closed)?;
        let entry = managed.entry.as_ref().filter(|entry| entry.id == grant.id && entry.phase == EntryPhase::Attached);
        let key = entry.map(|entry| entry.key.as_str()).unwrap_or_default();
        let alone = managed
            .holders
            .as_ref()
            .is_ok_and(|holders| !holders.values().any(|other| other.phase == EntryPhase::Detached && other.key == key))
            && managed.node.is_some_and(|node| node.mark(key).is_none());
        timing::soak(settings, self.snapshot.now, clocks::waited(grant, WaitFor::Attached, closed.since), entry, alone, managed.node)
    }

    /// Nodes that serve with fewer pods than are wanted, or with none, because their kubelet refused the others.
    pub(super) fn hold_rejected(&mut self, managed_nodes: &[ManagedNode<'_>]) {
        let now = self.snapshot.now;
        for managed in managed_nodes
            .iter()
            .filter(|managed| managed.chosen && managed.grant.is_none() && !(managed.is_lost() && managed.is_unavailable()))
        {
            let Some(deployment) = managed.deployment.filter(|_| !self.plan.node_states.contains_key(managed.name)) else { continue };
            let wanted = self.settings.map(|settings| settings.pods_per_node).or(self.snapshot.resource.last_replicas());
            let fewer = wanted.is_none_or(|wanted| deployment.replicas() < wanted);
            if let Some(reason) = breaker::reason(deployment, managed.pods, now).filter(|_| fewer) {
                self.set(managed.name, if managed.is_unavailable() { NodePhase::Unavailable } else { NodePhase::Blocked }, reason);
            }
        }
    }

    /// A node that is taken out because it is about to be taken away.
    pub(crate) fn hold_drained(&mut self, managed: &ManagedNode<'_>) {
        if !managed.is_draining() {
            // It is not taken away after all, and nothing says what it is to run.
            return self.set(managed.name, NodePhase::Blocked, Reason::InvalidSpec);
        }
        // Pods of a node that is lost are not seen to end.
        let done = managed.is_lost() || managed.pods.iter().all(|pod| pod.ended);
        let reason = if done { Reason::Drained(managed.departure().map(str::to_owned)) } else { Reason::Draining };
        self.set(managed.name, NodePhase::Draining, reason);
    }

    /// Why a grant waits for its pods.
    pub(super) fn incomplete(&self, managed: &ManagedNode<'_>, grant: &Grant) -> Reason {
        let Some(deployment) = managed.deployment else { return Reason::Granted };
        if let Some(reason) = breaker::reason(deployment, managed.pods, self.snapshot.now) {
            return reason;
        }
        if self.settings.is_none() && deployment.replicas() == 0 && grant.kind != GrantReason::Remove {
            return Reason::InvalidSpec;
        }
        let wanted = match grant.kind {
            GrantReason::Remove => 0,
            _ => self.settings.map_or(deployment.replicas(), |settings| settings.pods_per_node),
        };
        if let Some(refusal) = managed.refusal() {
            return refusal;
        }
        let trouble = trouble(managed, grant);
        if deployment.status.available >= wanted && trouble.is_none() {
            return Reason::PodsTerminating;
        }
        Reason::PodsNotReady { ready: deployment.status.ready, wanted, trouble }
    }

    /// A node without a grant; that its revision has failed there comes first.
    pub(super) fn hold_attached(&mut self, managed: &ManagedNode<'_>, settings: &ResolvedSpec, phase: NodePhase, now: Reason) {
        let failed = self.failure(managed).filter(|failure| managed.is_at(&settings.revision) && failure.reason != reason::RELEASED);
        match failed.map(|failure| failure.reason.clone()) {
            Some(noted) => self.set(managed.name, NodePhase::Failed, Reason::failed(&noted, now)),
            None => self.set(managed.name, phase, now),
        }
    }

    /// The node broke after its update, and has not served long enough since.
    pub(super) fn suspicion(&self, managed: &ManagedNode<'_>, settings: &ResolvedSpec) -> Option<Reason> {
        let suspect = self.plan.sights.suspect(managed.name)?;
        let seconds = periods::good_after(&suspect, settings);
        let Suspect { falls, outages, last, since, unbroken, .. } = suspect;
        let left = seconds.saturating_sub(unbroken).max(0);
        // While it does not serve the time would move with every pass.
        let until = self.plan.sights.serves(managed.name).then(|| self.snapshot.now.saturating_add(left));
        Some(Reason::Suspect { falls, outages, last, since, seconds, until })
    }
}
