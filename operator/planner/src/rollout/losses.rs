//! Machines that are lost: whether the revision is why.
//!
//! A machine is *lost* when its Node is not Ready, starts anew, or goes. Its loss is judged once those of other machines around the same
//! time are known, its *company*: what has lost them has lost this one, too. One that somebody announced is no news.

use crate::{
    memory::{Boot, Loss, Losses, Sight, Sights},
    node::ManagedNode,
    objects::revisions::Targets,
    reason::LOST,
    rollout::periods::{FORGOTTEN_AFTER, Periods},
    snapshot::Snapshot,
};
use crds::ledger::Ledger;
use std::collections::{BTreeMap, BTreeSet};

/// Seconds after which a loss is judged: until then the other machines of an outage, whose Nodes turn not Ready within seconds, are known.
pub(super) const JUDGED_AFTER: i64 = 30;
/// Seconds that lie between losses at most which have a common cause.
const TOGETHER: i64 = 120;
/// The same where none of the nodes that are lost is without the revision.
const AT_ONCE: i64 = 10;
/// Losses of a node, within [`FORGOTTEN_AFTER`], up to which it is a witness for others: one outage is chance, and so may be a second one.
const BY_CHANCE: usize = 2;

/// Its machine is about to be taken away, or a person has put it out of use: that it goes is no news.
pub(super) fn is_announced(managed: &ManagedNode<'_>) -> bool {
    managed.node.is_some_and(|node| node.unschedulable) || managed.is_draining()
}

/// Losses that are none of the revision: what happened around the same time was none either.
pub(super) struct Company<'l> {
    lost: &'l BTreeMap<String, Losses>,
    /// Nodes that may be under way at the same time.
    slots: usize,
}

impl<'l> Company<'l> {
    /// `slots`: nodes that may be under way at the same time.
    pub(super) fn of(
        lost: &'l BTreeMap<String, Losses>,
        boots: &BTreeMap<String, Boot>,
        slots: usize,
        managed_nodes: &[ManagedNode<'_>],
    ) -> Self {
        let long_lost = |losses: &Losses| losses.down && losses.all.iter().all(|loss| loss.since > JUDGED_AFTER + TOGETHER);
        let in_use = |managed: &&ManagedNode<'_>| boots.get(managed.name).is_some_and(|boot| boot.in_use);
        let alive = managed_nodes.iter().filter(in_use).filter(|managed| !lost.get(managed.name).is_some_and(long_lost)).count();
        // One that dies alone has no company, however large the budget is.
        Self { lost, slots: slots.min(alive.saturating_sub(1)).max(1) }
    }

    /// Nothing but the revision explains that this node was lost so many seconds ago.
    pub(super) fn is_none(&self, node: &str, since: i64) -> bool {
        let others = || self.lost.iter().filter(|(other, _)| *other != node).map(|(_, losses)| &losses.all);
        let within = |loss: &Loss, most: i64| loss.since.saturating_sub(since).abs() <= most;
        // More at once than the revision could have reached at once.
        let at_once = others().filter(|losses| losses.iter().any(|loss| loss.in_use && within(loss, AT_ONCE))).count() >= self.slots;
        !at_once && !others().flatten().any(|loss| loss.is_witness && within(loss, TOGETHER))
    }
}

impl Sights {
    /// UIDs of Nodes that have gone: those that were lost with the revision, with their names, and those that say nothing of it. `tells`: the
    /// loss of a node says something; it was lost now, or so many seconds before the last look.
    pub(super) fn that_went(
        &self,
        snapshot: &Snapshot,
        targets: &Targets,
        ledger: &Ledger,
        tells: impl Fn(&str, Option<i64>) -> bool,
    ) -> (BTreeMap<String, String>, BTreeSet<String>) {
        let (mut gone, mut excused) = (BTreeMap::new(), BTreeSet::new());
        let went = self.nodes.iter().filter(|(node, sight)| snapshot.nodes.get(*node).is_none_or(|there| there.uid != sight.node_uid));
        // What nobody saw run the revision says nothing of it: the Node went before its pods changed, or while no operator looked.
        let reached: BTreeMap<_, _> = targets.rollout_state(ledger).into_iter().flat_map(|rollout| &rollout.reached).collect();
        for (node, uid) in &reached {
            let ran = |sight: &Sight| sight.node_uid == **uid && sight.revision == targets.effective.revision;
            let there = snapshot.nodes.get(*node).is_some_and(|node| node.uid == **uid);
            if self.revision == targets.effective.revision && self.gone.contains_key(*uid) && !there {
                // Not in the ledger yet.
                gone.insert((*uid).clone(), (*node).clone());
            } else if !self.nodes.get(*node).is_some_and(ran) {
                excused.insert((*uid).clone());
            }
        }
        for (node, sight) in went {
            if sight.announced || sight.excused || !tells(node, sight.loss.map(|(since, _)| since)) {
                excused.insert(sight.node_uid.clone());
            } else if sight.revision == targets.effective.revision
                && (sight.is_recent(Periods::of(&targets.effective)) || reached.get(node) == Some(&&sight.node_uid))
            {
                gone.insert(sight.node_uid.clone(), node.clone());
            }
        }
        (gone, excused)
    }

    /// Nodes that are lost, or were lately, `passed` seconds after the last look.
    pub(super) fn lost_lately(&self, passed: i64, snapshot: &Snapshot, managed_nodes: &[ManagedNode<'_>]) -> BTreeMap<String, Losses> {
        let down: BTreeSet<_> = managed_nodes.iter().filter(|managed| managed.is_lost()).map(|managed| managed.name).collect();
        // Until their images have changed their Deployments say the former revision.
        let in_place: BTreeSet<_> = managed_nodes.iter().filter(|managed| managed.is_in_place()).map(|managed| managed.name).collect();
        let boot = |node: &str| snapshot.nodes.get(node).map(|node| &node.boot_id);
        let anew = self.boots.iter().filter(|(node, before)| boot(node) != Some(&before.id));
        let anew: BTreeSet<_> = anew.map(|(node, _)| node.as_str()).collect();
        let names: BTreeSet<_> = self.lost.keys().map(String::as_str).chain(down.iter().copied()).chain(anew.iter().copied()).collect();
        let losses = |node: &str| {
            let known = self.lost.get(node).cloned().unwrap_or_default();
            let is_down = down.contains(node);
            let mut all: Vec<_> = known.all.into_iter().map(|loss| Loss { since: loss.since.saturating_add(passed), ..loss }).collect();
            if !known.down && (is_down || anew.contains(node)) {
                let in_use = self.boots.get(node).is_some_and(|boot| boot.in_use);
                let is_witness = in_use && all.len() < BY_CHANCE && !self.nodes.contains_key(node) && !in_place.contains(node);
                // Since when what is down at the first look has been so nobody knows: it is not dead yet.
                all.push(Loss { since: 0, in_use, is_witness });
            }
            let last = all.len().saturating_sub(1);
            let all = all.into_iter().enumerate();
            let all = all.filter(|(index, loss)| loss.since <= FORGOTTEN_AFTER || is_down && *index == last);
            Losses { all: all.map(|(_, loss)| loss).collect(), down: is_down }
        };
        names.into_iter().map(|node| (node.to_owned(), losses(node))).filter(|(_, losses)| !losses.all.is_empty()).collect()
    }

    /// It is down for so long that it will not break any more, and says nothing of the revision.
    pub(super) fn is_dead(&self, managed: &ManagedNode<'_>) -> bool {
        let last = self.lost.get(managed.name).and_then(|losses| losses.all.last());
        managed.is_lost() && last.is_some_and(|loss| loss.since >= FORGOTTEN_AFTER)
    }

    /// UIDs and names of Nodes that were lost after their update to this revision, which is not forgotten yet.
    pub fn lost<'s>(&'s self, revision: &'s str) -> impl Iterator<Item = (&'s String, &'s String)> {
        let back = self.nodes.iter().filter(move |(_, sight)| sight.losses > 0 && sight.revision == revision);
        let gone = self.gone.iter().filter(move |_| self.revision == revision);
        back.map(|(node, sight)| (&sight.node_uid, node)).chain(gone)
    }

    /// The Node went at this look, and the revision is not why.
    pub(crate) fn excuses(&self, node_uid: &str) -> bool {
        self.excused.contains(node_uid)
    }
}

impl Sight {
    /// It was attached so shortly ago that the loss of its machine speaks against the revision, or the last loss is not forgotten yet.
    pub(super) fn is_recent(&self, clocks: Periods) -> bool {
        clocks.suspects() && self.attached && (self.served <= clocks.forgotten_after || self.outages > 0)
    }

    /// Judges the loss of its machine, once those are known that were lost with it.
    pub(super) fn judge_loss(&mut self, node: &str, company: &Company<'_>) {
        let Some((since, times)) = self.loss.filter(|(since, _)| *since >= JUDGED_AFTER) else { return };
        self.loss = None;
        if company.is_none(node, since) {
            self.losses = self.losses.saturating_add(times);
            self.last = LOST;
            return;
        }
        self.excused = self.lost;
        self.outages = self.outages.saturating_add(times);
    }
}
