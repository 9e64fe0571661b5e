//! How the rollout stands in a pass: windows, failures, deadlines.

use super::Pass;
use crate::{
    facts::DeploymentFacts,
    memory::Sights,
    node::{ManagedNode, clocks},
    objects::revisions::RevisionOrigin,
    plan::NodeProgress,
    reason::{self, Reason, failure_word},
    rollout::{proof::RevisionFailure, rollout_state},
    spec::{ResolvedSpec, pods_per_node},
    status::blocked::is_under_way,
};
use crds::{
    ledger::{Failure, Grant, GrantReason, RolloutState},
    status::NodePhase,
};
use rollout_windows::Windows;
use std::collections::BTreeSet;

impl Pass<'_> {
    pub(super) fn look_at_windows(&mut self) {
        let Ok(targets) = self.targets else { return };
        let Some(opening) = targets.opening else { return };
        self.blockers.stops.closed = !opening.open;
        self.blockers.opens = opening.changes_at.filter(|_| !opening.open).map(|at| at.timestamp());
        let sure_for = self.snapshot.now.saturating_add(Windows::SURE_FOR.num_seconds());
        let again = opening.changes_at.map_or(sure_for, |at| at.timestamp());
        self.plan.recheck(again.max(self.snapshot.now.saturating_add(1)));
    }

    /// How the rollout stands: which nodes failed, whether that halts it, and which ones a person wants to be tried again.
    pub(super) fn judge(&mut self, managed_nodes: &[ManagedNode<'_>]) -> BTreeSet<String> {
        let Ok(targets) = self.targets else {
            // Who makes the spec invalid for a moment lets nothing pass.
            self.plan.sights = self.snapshot.sights.clone();
            return BTreeSet::new();
        };
        let mut sights = self.snapshot.sights.look(self.snapshot, targets, &self.ledger, managed_nodes);
        // What was rolled back is tried again, and nothing else runs instead any more.
        let failed_before = self.ledger.rolled_back.as_ref().is_some_and(|rolled_back| rolled_back.from == targets.newest);
        let tried_again = failed_before && targets.origin == RevisionOrigin::Spec;
        let everywhere =
            tried_again || targets.rollout_state(&self.ledger).is_some_and(|rollout| self.snapshot.resource.is_retried(rollout));
        // Before anything is concluded from what was seen.
        if everywhere {
            for managed in managed_nodes {
                sights.forgive(managed.name);
            }
        }
        let (mut rollout, retried) = rollout_state::observe(self.snapshot, targets, &self.ledger, &sights, managed_nodes);
        for node in &retried {
            sights.forgive(node);
        }
        let now = self.snapshot.now;
        let running = managed_nodes
            .iter()
            .filter(|managed| managed.is_updated() && !sights.is_excused() && !clocks::stands_still(self.snapshot, managed));
        self.plan.clocks.run(&running.map(|managed| managed.name).collect(), &targets.effective);
        for managed in managed_nodes {
            let Some(grant) = managed.grant.filter(|grant| !matches!(grant.kind, GrantReason::Remove | GrantReason::Drain)) else {
                continue;
            };
            let Some(left) = rollout_state::until_deadline(&targets.effective, managed, grant) else { continue };
            let current = grant.revision == targets.effective.revision && !managed.is_complete(grant) && !managed.joins;
            if !current || retried.contains(managed.name) {
                continue;
            }
            if left > 0 {
                self.plan.recheck(now.saturating_add(left));
            } else if !rollout.failed.contains_key(managed.name) {
                let word = if grant.out_before { reason::OUT_BEFORE } else { failure_word(self.incomplete(managed, grant).word()) };
                let failure = rollout_state::failure(self.snapshot, managed, word);
                rollout_state::note(&mut rollout, managed, failure);
            }
        }
        if targets.is_not_current() {
            self.judge_attached(&targets.effective, managed_nodes, &sights, &mut rollout);
        }
        rollout.proved = sights.proof(targets, &rollout, managed_nodes).proved && !sights.overflows();
        (rollout.proof, rollout.runs) = sights.recorded_proof(&targets.effective);
        self.ledger.suspects = sights.record();
        if let Some(again) = sights.again(&targets.effective, self.plan.clocks.look_every()) {
            self.plan.recheck(now.saturating_add(again));
        }
        self.plan.sights = sights;
        self.blockers.halt = rollout_state::halt(&targets.effective, &rollout, managed_nodes);
        self.blockers.stops.failed = self.blockers.halt.is_some();
        self.ledger.rolled_back = self.ledger.rolled_back.take().filter(|rolled_back| !everywhere && rolled_back.from == targets.newest);
        if let Some(halt) = &self.blockers.halt
            && let Some(rolled_back) = rollout_state::roll_back(self.snapshot, targets, &self.ledger, halt)
        {
            self.ledger.rolled_back = Some(rolled_back);
        }
        self.ledger.rollout_state = Some(rollout);
        retried
    }

    /// The revision has failed on nodes, too, that came through and fell again and again, or were out for as long as they may be under way.
    fn judge_attached(&self, settings: &ResolvedSpec, managed_nodes: &[ManagedNode<'_>], sights: &Sights, rollout: &mut RolloutState) {
        for managed in managed_nodes.iter().filter(|managed| managed.chosen && managed.is_at(&settings.revision)) {
            let Some(verdict) = sights.failure(settings, managed.name).filter(|_| !rollout.failed.contains_key(managed.name)) else {
                continue;
            };
            let word = match verdict {
                RevisionFailure::Fell(word) => word,
                RevisionFailure::Out => failure_word(self.incomplete(managed, &Grant::default()).word()),
            };
            let failure = rollout_state::failure(self.snapshot, managed, word);
            rollout_state::note(rollout, managed, failure);
        }
    }

    /// The clock of the progress deadline runs while a node is under way that nobody and nothing else holds up, or while nodes wait for the
    /// proof, and nothing is shut. What else blocks a rollout is said as what it is.
    pub(super) fn keep_time(&mut self) {
        // Before anything has ever run everywhere, nodes that join are the rollout.
        let first = self.valid_targets().is_some_and(|targets| targets.current.is_empty());
        let joining = first && self.plan.node_states.values().any(|state| state.phase == NodePhase::Joining);
        let open = !self.blockers.stops.paused && !self.blockers.stops.closed;
        let running = open && is_under_way(&self.plan, &self.ledger) || joining && !self.blockers.stops.paused;
        let waits = |state: &NodeProgress| matches!(state.reason, Reason::Proving { .. });
        let proving = open && !running && self.blockers.halt.is_none() && self.plan.node_states.values().any(waits);
        let now = self.snapshot.now;
        let Some((rollout, settings)) = self.ledger.rollout_state.as_mut().zip(self.settings) else { return };
        let since = rollout.idle.saturating_add(rollout.proving);
        let left = settings.rollout.progress_deadline.saturating_add(1).saturating_sub(since);
        if running {
            rollout.progressed_at = now.saturating_sub(since);
        }
        if running || proving {
            self.plan.recheck(now.saturating_add(left.max(1)));
        }
        self.plan.clocks.note(rollout, running, proving, settings);
        if let Some(again) = self.plan.clocks.again() {
            self.plan.recheck(now.saturating_add(again));
        }
    }

    /// The wanted revision failed on the node; while the spec is not valid none is wanted.
    pub(super) fn failure(&self, managed: &ManagedNode<'_>) -> Option<&Failure> {
        self.settings?;
        self.ledger.rollout_state.as_ref()?.failed.get(managed.name)
    }

    pub(super) fn note_failure(&mut self, managed: &ManagedNode<'_>, failure: Failure) {
        if let Some(rollout) = self.ledger.rollout_state.as_mut() {
            rollout_state::note(rollout, managed, failure);
        }
    }

    /// Nodes that were not done yet when the spec ceased to be valid.
    pub(super) fn hold_for_spec(&mut self, managed_nodes: &[ManagedNode<'_>]) {
        self.hold_rejected(managed_nodes);
        let resource = &self.snapshot.resource;
        let wanted = pods_per_node(&resource.spec).ok();
        let last = resource.status.as_ref().map_or("", |status| status.revisions.effective.as_str());
        for managed in
            managed_nodes.iter().filter(|managed| managed.chosen && !self.plan.node_states.contains_key(managed.name)).collect::<Vec<_>>()
        {
            let scaled = managed.deployment.map(DeploymentFacts::replicas) == wanted;
            let as_wanted = managed.is_at(last) && scaled && managed.settled;
            if !as_wanted {
                self.set(managed.name, NodePhase::Blocked, Reason::InvalidSpec);
            }
        }
    }
}
