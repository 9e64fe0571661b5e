//! Who gets the next grant.

use crate::{
    node::ManagedNode,
    objects::{
        in_place, node_writes,
        pre_pull::{self, Pull},
        revisions::{RevisionOrigin, Targets},
    },
    plan::Action,
    protocol::target::Stops,
    reason::{NodeObject, Reason},
    rollout::{
        mark_conflicts::MarkConflicts,
        rollout_state::Halt,
        slots::{SlotPool, Wants},
    },
    snapshot::Snapshot,
    spec::ResolvedSpec,
};
use crds::{
    UnixSeconds,
    ingress_daemon_set::PodUpdate,
    ledger::{Grant, GrantReason, Marks, RolloutState},
};
use std::collections::BTreeMap;

/// The outcome: grants without ids, and why the others wait.
#[derive(Debug, Default)]
pub struct GrantPlan {
    /// Nodes that get a grant, in order.
    pub admitted: Vec<(String, Grant)>,
    /// Nodes that need one and wait.
    pub waiting: BTreeMap<String, Reason>,
    /// Pods that pull images for nodes that come next.
    pub pulls: Vec<Action>,
}

/// What holds back whole kinds of work.
#[derive(Debug, Default)]
pub struct Blockers {
    /// In the words of the protocol.
    pub stops: Stops,
    /// When the next window opens.
    pub opens: Option<UnixSeconds>,
    /// Failures that halt the rollout.
    pub halt: Option<Halt>,
}

impl Blockers {
    /// Why nothing of this kind is begun on the node, when it is not.
    fn reason(&self, managed: &ManagedNode<'_>, kind: GrantReason) -> Option<Reason> {
        let stops = managed.stops(self.stops);
        if !stops.stops(kind) {
            // A detacher that is silent would not answer for a removal either.
            return (stops.halted && kind == GrantReason::Remove).then_some(Reason::Halted);
        }
        if stops.paused {
            return Some(Reason::Paused);
        }
        if stops.halted {
            return Some(Reason::Halted);
        }
        if let Some(halt) = self.halt.as_ref().filter(|_| stops.failed) {
            return Some(halt.reason());
        }
        Some(Reason::OutsideWindow { opens: self.opens })
    }
}

/// What decides which nodes get a grant, besides what they need and the free slots.
#[derive(Clone, Copy, Debug)]
pub struct GrantRules<'a> {
    /// Snapshot that the decision is made on.
    pub snapshot: &'a Snapshot,
    /// The spec with the template of the rollout.
    pub settings: &'a ResolvedSpec,
    /// All templates that are wanted somewhere, when the spec is valid.
    pub targets: Option<&'a Targets>,
    /// Other resources that take nodes out.
    pub mark_conflicts: &'a MarkConflicts<'a>,
    /// What holds back whole kinds of work.
    pub blockers: &'a Blockers,
    /// State of the rollout, if the ledger has one.
    pub rollout: Option<&'a RolloutState>,
}

impl GrantRules<'_> {
    /// Decides over all nodes that have no grant, and takes their slots.
    pub fn admit(&self, managed_nodes: &[ManagedNode<'_>], slots: &mut SlotPool<'_>) -> GrantPlan {
        let (snapshot, settings) = (self.snapshot, self.settings);
        let mut grant_plan = GrantPlan::default();
        let mut candidates = candidates(self, managed_nodes, slots);
        // What leaves by itself is counted before anything is begun beside it.
        candidates.sort_by_key(|(_, kind)| *kind != GrantReason::Drain);
        for (managed, kind) in candidates {
            let wants = Wants { grows: kind == GrantReason::Grow, ..slots.wants(managed) };
            let marks = if matches!(kind, GrantReason::Remove | GrantReason::Drain) {
                managed.removal_marks(settings)
            } else {
                settings.update_marks()
            };
            let free = kind == GrantReason::Drain || kind == GrantReason::Remove && (snapshot.resource.deleting || !managed.serves());
            let mut reason = None;
            if !free {
                reason = self.reason(managed, kind, &marks);
            }
            if !free && reason.is_none() {
                // Its domain has the turn even while its images are pulled. Whoever takes the machine away waits for nobody.
                let lacks = slots.lacks(wants).filter(|reason| !(managed.is_draining() && matches!(reason, Reason::MinAvailable { .. })));
                // Images come before a slot is free: what waits for its turn gets them meanwhile.
                reason = self.pulling(managed, kind, slots, &mut grant_plan).or(lacks).or_else(|| self.not_in_place(managed, kind));
            }
            if let Some(reason) = reason {
                grant_plan.waiting.insert(managed.name.to_owned(), reason);
                continue;
            }
            // What leaves by itself takes a slot all the same: nothing else may be begun in it.
            if !free || kind == GrantReason::Drain {
                slots.take(wants);
            }
            grant_plan.admitted.push((managed.name.to_owned(), grant(snapshot, settings, managed, kind, marks, wants)));
        }
        grant_plan
    }

    /// The images come first, on as many nodes at once as may be under way, and as many again.
    fn pulling(&self, managed: &ManagedNode<'_>, kind: GrantReason, slots: &SlotPool<'_>, grant_plan: &mut GrantPlan) -> Option<Reason> {
        let goes_back = self.targets.is_some_and(|targets| targets.origin != RevisionOrigin::Spec);
        let reason = match (pre_pull::pull(self.snapshot, managed, kind), self.snapshot.refusal(managed.name, NodeObject::PullPod)) {
            (Pull::Done, _) => return None,
            // The way back is not to wait for what nobody allows.
            (Pull::GivenUp(_), _) | (Pull::ToBegin, Some(_)) if goes_back => return None,
            (Pull::UnderWay(trouble) | Pull::GivenUp(trouble), _) => Reason::PrePulling(trouble),
            (Pull::ToBegin, Some(message)) => Reason::PodsRefused(message.clone()),
            (Pull::ToBegin, None) => {
                let under_way =
                    self.snapshot.pulls.values().flatten().filter(|pull| !pull.pulled && !pull.given_up && !pull.terminating).count();
                if let Some(settings) = managed.settings.filter(|_| under_way + grant_plan.pulls.len() < 2 * slots.budget.max(1)) {
                    grant_plan.pulls.push(pre_pull::begin(self.snapshot, managed, settings));
                }
                Reason::PrePulling(None)
            }
        };
        Some(reason)
    }

    /// Nothing begins that would need other pods, where that is what was asked for. A node without pods gets some, and a pause is ended, in
    /// any case.
    fn not_in_place(&self, managed: &ManagedNode<'_>, kind: GrantReason) -> Option<Reason> {
        let only = managed.settings.is_some_and(|settings| settings.pod_update == PodUpdate::InPlaceOnly);
        let is_free = managed.is_empty() || managed.deployment.is_some_and(in_place::is_paused);
        if kind != GrantReason::Update || !only || is_free {
            return None;
        }
        in_place::way(managed, self.targets?).err().map(Reason::NotInPlace)
    }

    /// Why the node must wait even if a slot is free.
    fn reason(&self, managed: &ManagedNode<'_>, kind: GrantReason, marks: &Marks) -> Option<Reason> {
        if let Some(reason) = self.blockers.reason(managed, kind) {
            return Some(reason);
        }
        // Who joins is updated to nothing new.
        if kind == GrantReason::Update && !managed.joins {
            if let Some(reason) = &managed.held_back {
                return Some(reason.clone());
            }
            if let Some(failure) = self.rollout.and_then(|rollout| rollout.failed.get(managed.name)) {
                return Some(Reason::FailedBefore(failure.reason.clone()));
            }
        }
        if kind != GrantReason::Remove && managed.is_skipped() {
            return Some(Reason::Skipped);
        }
        if matches!(kind, GrantReason::Update | GrantReason::Repair) && !managed.node.is_some_and(|node| node.ready) {
            return Some(Reason::NodeNotReady);
        }
        if marks.node.is_some()
            && let Err(error) = &managed.holders
        {
            return Some(Reason::HoldersUnreadable(error.clone()));
        }
        let is_full = |holders| node_writes::is_full(holders, self.snapshot.resource.uid8());
        if marks.node.is_some() && kind != GrantReason::Remove && managed.holders.as_ref().is_ok_and(is_full) {
            return Some(Reason::HoldersFull);
        }
        self.mark_conflicts.on(managed, marks).map(Reason::DetachAnnotationConflict)
    }
}

/// Unavailable nodes first, then those that run what nobody wants any more, cordoned last, domains in turns, then by a hash: the order of
/// the input never matters. With one domain at a time domains come first. What leaves by itself comes before all of them: see `admit`.
fn candidates<'a, 'b>(
    rules: &GrantRules<'_>,
    managed_nodes: &'b [ManagedNode<'a>],
    slots: &SlotPool<'_>,
) -> Vec<(&'b ManagedNode<'a>, GrantReason)> {
    let (snapshot, settings) = (rules.snapshot, rules.settings);
    let current = rules.targets.map_or("", |targets| targets.current.as_str());
    let abandoned = |managed: &ManagedNode<'_>| !current.is_empty() && !managed.is_at(&settings.revision) && !managed.is_at(current);
    let urgency =
        |managed: &ManagedNode<'_>| (!managed.is_unavailable(), !abandoned(managed), managed.node.is_some_and(|node| node.unschedulable));
    let mut candidates: Vec<_> = managed_nodes
        .iter()
        .filter(|managed| managed.grant.is_none())
        .filter_map(|managed| managed.need(snapshot.now).map(|kind| (managed, kind)))
        .collect();
    candidates.sort_by_cached_key(|(managed, _)| (urgency(managed), managed.order_hash(&settings.revision), managed.name));
    let Some(topology) = &settings.topology else { return candidates };
    if topology.one_at_a_time {
        candidates.sort_by_cached_key(|(managed, _)| slots.rank(managed.domain(topology)));
        return candidates;
    }
    // Among nodes of the same urgency the domain comes first in which the fewest were begun.
    let mut seen: BTreeMap<((bool, bool, bool), &str), usize> = BTreeMap::new();
    let mut turns: Vec<_> = candidates
        .into_iter()
        .map(|(managed, kind)| {
            let urgency = urgency(managed);
            let domain = managed.domain(topology);
            let turn = seen.entry((urgency, domain)).or_insert_with(|| slots.turns(domain));
            *turn += 1;
            (urgency, *turn, managed, kind)
        })
        .collect();
    turns.sort_by_key(|(urgency, turn, ..)| (*urgency, *turn));
    turns.into_iter().map(|(_, _, managed, kind)| (managed, kind)).collect()
}

fn grant(
    snapshot: &Snapshot,
    settings: &ResolvedSpec,
    managed: &ManagedNode<'_>,
    kind: GrantReason,
    marks: Marks,
    wants: Wants<'_>,
) -> Grant {
    Grant {
        id: 0,
        node_uid: managed.node.map(|node| node.uid.clone()).unwrap_or_default(),
        kind,
        revision: match kind {
            GrantReason::Remove | GrantReason::Drain => String::new(),
            _ => managed.settings.unwrap_or(settings).revision.clone(),
        },
        marks,
        domain: settings.topology.as_ref().map(|topology| managed.domain(topology).to_owned()),
        granted_at: snapshot.now,
        // Not where it is out because of the revision that is to prove itself.
        out_before: kind == GrantReason::Update && wants.is_out() && !managed.is_at(&settings.revision),
        ..Grant::default()
    }
}
