//! How many more nodes may be disrupted: in the fleet, in each topology domain, and above the nodes that must stay available.

use crate::{
    node::{ManagedNode, clocks},
    protocol::target::has_slot,
    reason::Reason,
    rollout::proof::{Proof, Standing, noise},
    spec::{Count, ResolvedSpec, Topology},
};
use crds::ledger::{Grant, GrantReason};
use std::collections::{BTreeMap, BTreeSet};

/// What is taken, what is out of service without a grant, and what bounds both.
#[derive(Clone, Debug, Default)]
pub struct SlotPool<'a> {
    /// The fleet's budget in nodes.
    pub budget: usize,
    used: UsedSlots,
    available: usize,
    /// Available nodes that are suspect.
    suspects: usize,
    minimum: usize,
    /// The minimum is a share, and all chosen nodes serve: those that leave are not needed for it.
    complete: bool,
    proof: Proof<'a>,
    proven_after: i64,
    topology: Option<&'a Topology>,
    domains: BTreeMap<String, Domain>,
    /// With one domain at a time: the one whose turn it is, once that is known.
    turn: Option<String>,
    /// Domains in which nodes are under way, other than those that are taken away anyway.
    begun: BTreeSet<String>,
}

/// Nodes that keep their slots after their update until more is known of what they run.
#[derive(Clone, Copy, Debug, Default)]
struct KeptSlots {
    unproved: usize,
    suspect: usize,
    fell_again: usize,
    /// Nodes that run the wanted revision.
    running: usize,
}

impl KeptSlots {
    fn count(&mut self, standing: Standing) -> Option<&mut usize> {
        match standing {
            Standing::Plain => None,
            Standing::Unproved => Some(&mut self.unproved),
            Standing::Suspect => Some(&mut self.suspect),
            Standing::FellAgain => Some(&mut self.fell_again),
        }
    }

    fn add(&mut self, standing: Standing) {
        if let Some(count) = self.count(standing) {
            *count += 1;
        }
    }

    fn remove(&mut self, standing: Standing) {
        if let Some(count) = self.count(standing) {
            *count = count.saturating_sub(1);
        }
    }

    /// Why others wait for them; nothing where there are none.
    fn reason(&self, budget: usize, seconds: i64) -> Option<Reason> {
        let (unproved, suspects) = (self.unproved, self.suspect + self.fell_again);
        (unproved + suspects > 0).then_some(Reason::Proving { unproved, suspects, budget, seconds })
    }

    /// Slots that they keep: suspects that may be chance keep none.
    fn slots(&self) -> usize {
        self.unproved + self.fell_again + self.suspect.saturating_sub(noise(self.running))
    }
}

/// What uses slots up, in the fleet or in a domain.
#[derive(Clone, Debug, Default)]
struct UsedSlots {
    grants: usize,
    unavailable: usize,
    kept: KeptSlots,
}

impl UsedSlots {
    /// A node without a grant.
    fn add(&mut self, down: bool, standing: Standing) {
        self.unavailable += usize::from(down);
        self.kept.add(standing);
    }

    fn take(&mut self, wants: &Wants<'_>) {
        self.grants += 1;
        self.unavailable -= usize::from(wants.down);
        self.kept.remove(wants.standing);
    }

    /// Why there is no free slot, or nothing. `used_up`: the budget alone is why.
    fn lacks(&self, wants: &Wants<'_>, budget: usize, proven_after: i64, used_up: impl Fn(usize, usize) -> Reason) -> Option<Reason> {
        let Self { grants, unavailable, kept } = self;
        if !has_slot(wants.down, *grants, *unavailable, budget) {
            return Some(used_up(*grants, *unavailable));
        }
        let kept = Some(kept).filter(|_| wants.counts_others());
        let taken = unavailable + kept.map_or(0, KeptSlots::slots);
        if has_slot(wants.is_out(), *grants, taken, budget) {
            return None;
        }
        Some(kept.and_then(|kept| kept.reason(budget, proven_after)).unwrap_or_else(|| used_up(*grants, *unavailable)))
    }
}

#[derive(Clone, Debug, Default)]
struct Domain {
    nodes: usize,
    used: UsedSlots,
    /// Chosen nodes that run the wanted revision.
    updated: usize,
    /// These, and those that a grant is about.
    begun: usize,
}

/// A node, as far as the budget is concerned.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an observation of its own")]
pub struct Wants<'c> {
    /// The node's domain; empty if the spec has no domains.
    pub domain: &'c str,
    /// It is unavailable already: its disruption takes nothing away.
    pub down: bool,
    /// It may serve all the same: its Deployment's controller has not seen the latest change, or not said what became of it.
    pub lags: bool,
    /// The node is available now.
    pub available: bool,
    /// The node is available, and broke after its update.
    pub suspect: bool,
    /// It only adds pods. Doubts do not hold that up: no pod is taken away, and overload, which ends pods, may need more of them.
    pub grows: bool,
    /// The resource no longer chooses the node.
    pub leaves: bool,
    /// Standing of the node in the proof of its revision.
    pub standing: Standing,
    /// It broke after its update, or its revision is not proved; also while it is down.
    pub doubtful: bool,
}

impl Wants<'_> {
    /// The node certainly does not serve.
    pub fn is_out(&self) -> bool {
        self.down && !self.lags
    }

    /// It takes pods away, and is not itself in doubt: nodes that keep their slots count before it.
    fn counts_others(&self) -> bool {
        !self.doubtful && !self.is_out() && !self.grows
    }
}

impl<'a> SlotPool<'a> {
    /// What the grants that were read leave.
    pub fn of(settings: &'a ResolvedSpec, proof: Proof<'a>, managed_nodes: &[ManagedNode<'_>]) -> Self {
        let chosen = managed_nodes.iter().filter(|managed| managed.chosen).count();
        let leaving = managed_nodes.iter().filter(|managed| leaves(managed)).count();
        let mut slots = Self {
            budget: settings.budget.of(chosen),
            minimum: settings.min_available.at_least_of(chosen + leaving),
            topology: settings.topology.as_ref(),
            proven_after: settings.rollout.proven_after,
            proof,
            ..Self::default()
        };
        slots.used.kept.running = slots.proof.running;
        let serves = |managed: &&ManagedNode<'_>| !managed.holds_slot() && state(managed).1 && !slots.proof.is_suspect(managed.name);
        let all_serve = chosen > 0 && managed_nodes.iter().filter(|managed| managed.chosen).filter(serves).count() == chosen;
        slots.complete = matches!(settings.min_available, Count::Percent(_)) && all_serve;
        for managed in managed_nodes {
            let holds = managed.holds_slot();
            let (down, available) = state(managed);
            let standing = slots.standing(managed);
            if !holds {
                slots.used.add(down, standing);
            }
            slots.used.grants += usize::from(holds);
            slots.available += usize::from(!holds && available);
            slots.suspects += usize::from(!holds && available && slots.proof.is_suspect(managed.name));
            let Some(topology) = slots.topology else { continue };
            let here = slots.domains.entry(managed.domain(topology).to_owned()).or_default();
            here.nodes += usize::from(managed.chosen);
            if !holds {
                here.used.add(down, standing);
            }
            let updated = managed.is_at(&settings.revision);
            here.updated += usize::from(managed.chosen && updated);
            here.used.kept.running = here.updated;
            here.begun += usize::from(managed.chosen && (updated || holds));
            // A node whose label has changed since uses a slot in both domains.
            for domain in managed.grant.filter(|_| holds).map(|grant| domains(grant, managed, topology)).into_iter().flatten() {
                if managed.grant.is_some_and(|grant| grant.kind != GrantReason::Drain) {
                    slots.begun.insert(domain.clone());
                }
                slots.domains.entry(domain).or_default().used.grants += 1;
            }
        }
        if slots.topology.is_some_and(|topology| topology.one_at_a_time) {
            slots.turn = slots.begun.first().cloned();
        }
        slots
    }

    /// Only the fleet's grants count, and nothing new fits: the spec is not valid.
    pub fn closed(managed_nodes: &[ManagedNode<'_>]) -> Self {
        let grants = managed_nodes.iter().filter(|managed| managed.holds_slot()).count();
        Self { used: UsedSlots { grants, ..UsedSlots::default() }, ..Self::default() }
    }

    /// Order among domains: with one at a time those that were begun come first, then by name.
    pub fn rank(&self, domain: &str) -> (bool, String) {
        let begun = self.domains.get(domain).is_some_and(|found| found.begun > 0 && found.updated < found.nodes);
        (!begun, domain.to_owned())
    }

    /// How many nodes of the domain had their turn.
    pub fn turns(&self, domain: &str) -> usize {
        self.domains.get(domain).map_or(0, |found| found.begun)
    }

    /// Why there is no free slot, or nothing. With one domain at a time the first that asks has the turn, also when it must wait.
    pub fn lacks(&mut self, wants: Wants<'_>) -> Option<Reason> {
        if let Some(topology) = self.topology.filter(|topology| topology.one_at_a_time) {
            let turn = self.turn.get_or_insert_with(|| wants.domain.to_owned());
            if self.begun.is_empty() && wants.down {
                // Nodes that are down elsewhere may be what the others wait for: while nothing is under way, they come first.
                wants.domain.clone_into(turn);
            }
            // Nodes that come back from a drain may be under way in several: nothing is begun until they are through.
            let other = if turn == wants.domain { self.begun.iter().find(|begun| *begun != wants.domain) } else { Some(&*turn) };
            if let Some(other) = other {
                return Some(Reason::OtherDomain(format!("{}={other}", topology.key)));
            }
        }
        let budget = self.budget;
        let fleet =
            self.used.lacks(&wants, budget, self.proven_after, |grants, unavailable| Reason::Budget { grants, unavailable, budget });
        if fleet.is_some() {
            return fleet;
        }
        if let Some((topology, budget)) = self.topology.and_then(|topology| topology.budget.map(|budget| (topology, budget))) {
            let here = self.domains.get(wants.domain).cloned().unwrap_or_default();
            let budget = budget.of(here.nodes);
            let domain = here.used.lacks(&wants, budget, self.proven_after, |grants, unavailable| {
                let domain = format!("{}={}", topology.key, wants.domain);
                Reason::DomainBudget { domain, grants, unavailable, budget }
            });
            if domain.is_some() {
                return domain;
            }
        }
        // Those that may break at any moment are not relied upon.
        let suspects = if wants.counts_others() { self.suspects } else { 0 };
        let available = self.available.saturating_sub(suspects);
        let needed = wants.available && !(wants.leaves && self.complete);
        (needed && available <= self.minimum).then_some(Reason::MinAvailable { available, minimum: self.minimum })
    }

    /// Takes a slot for the node.
    pub fn take(&mut self, wants: Wants<'_>) {
        self.used.take(&wants);
        self.available -= usize::from(wants.available);
        self.suspects -= usize::from(wants.suspect);
        self.complete &= wants.leaves;
        if self.topology.is_some() {
            self.begun.insert(wants.domain.to_owned());
            self.domains.entry(wants.domain.to_owned()).or_default().used.take(&wants);
        }
    }

    /// Gives the slot of a grant back: the grant goes in the same write in which the next one comes. While its revision is not proved, the
    /// node keeps the slot.
    pub fn give_back(&mut self, managed: &ManagedNode<'_>) {
        let Some(grant) = managed.grant.filter(|_| managed.holds_slot()) else { return };
        let (down, available) = state(managed);
        self.used.grants -= 1;
        self.available += usize::from(available);
        self.suspects += usize::from(available && self.proof.is_suspect(managed.name));
        let standing = self.standing(managed);
        self.used.add(down, standing);
        let Some(topology) = self.topology else { return };
        let here = self.domains.entry(managed.domain(topology).to_owned()).or_default();
        here.used.add(down, standing);
        for domain in domains(grant, managed, topology) {
            self.domains.entry(domain).or_default().used.grants -= 1;
        }
    }

    /// The node, as far as slots are concerned.
    pub fn wants<'c>(&self, managed: &'c ManagedNode<'_>) -> Wants<'c> {
        let (down, available) = state(managed);
        let domain = self.topology.map_or("", |topology| managed.domain(topology));
        let lags = clocks::is_behind(managed);
        let (standing, doubtful) = (self.standing(managed), self.proof.standing(managed.name) != Standing::Plain);
        let suspect = available && self.proof.is_suspect(managed.name);
        Wants { domain, down, lags, available, suspect, grows: false, leaves: !managed.chosen, standing, doubtful }
    }

    /// Where a node stands: what is out now is counted as that alone.
    fn standing(&self, managed: &ManagedNode<'_>) -> Standing {
        if state(managed).0 { Standing::Plain } else { self.proof.standing(managed.name) }
    }
}

/// The node is chosen no more and has not been taken out yet: until it is, it may be one of those that have to serve.
fn leaves(managed: &ManagedNode<'_>) -> bool {
    !managed.chosen && !managed.resource.deleting && managed.serves() && !managed.is_empty()
}

/// Whether the node counts as unavailable, and whether it has served and does. One that leaves is missed by nobody once it is out.
fn state(managed: &ManagedNode<'_>) -> (bool, bool) {
    if !managed.chosen {
        return (false, leaves(managed) && !managed.is_unavailable());
    }
    let unavailable = managed.is_unavailable();
    let ignored = managed.settings.is_some_and(|settings| settings.ignores_not_ready) && !managed.node.is_some_and(|node| node.ready);
    (unavailable && !ignored, !unavailable && managed.served())
}

/// Domains in which a grant uses a slot: where it was given, and where the node is now.
fn domains(grant: &Grant, managed: &ManagedNode<'_>, topology: &Topology) -> BTreeSet<String> {
    let now = managed.node.map(|_| managed.domain(topology).to_owned());
    let domains: BTreeSet<_> = grant.domain.clone().into_iter().chain(now).collect();
    if domains.is_empty() { BTreeSet::from([String::new()]) } else { domains }
}
