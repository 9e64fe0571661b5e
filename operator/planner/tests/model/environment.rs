//! What happens besides: time, controllers, kubelets, detacher; and people and accidents, a few times each.

use crate::{
    api::delete_deployment,
    operator::Rules,
    state::{Age, DEGRADE, Health, Marks, Member, Node, Order, Owner, Resource, Site, Stamp, State},
};
use crds::{holders::EntryPhase, ledger::GrantReason, token::Phase};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Tick,
    Controller(usize),
    Pods(usize),
    Ready(usize),
    Detacher(usize),
    Template,
    Marks(Marks),
    Key,
    Budget,
    Pause,
    Scale,
    Delete(usize, bool),
    Recreate(usize),
    Leave(usize),
    Edit(usize),
    Outage(usize),
    Wipe,
    /// Somebody announces that the node is taken away, or changes their mind.
    Drain(usize),
    /// A window closes or opens.
    Window,
    /// The revision fails on too many nodes, or somebody asks to try again.
    Failure,
    /// What failed is rolled back: in a halted rollout another revision becomes the wanted one.
    Rollback,
    /// A person wants the node left alone, or no longer.
    Skip(usize),
    /// The node's deadline is over, and the ledger says so.
    NodeFailure(usize),
    /// A person asks to try the node again.
    Retry(usize),
    /// A person frees the slot of the node's grant.
    Release(usize),
    /// A person deletes the node's pods.
    DeletePods(usize),
    Placement,
    /// A person lets the rollout go on beyond its first step.
    Promote,
}

/// What goes on by itself on one node, in a fair world again and again.
pub fn natural(i: usize) -> [Event; 4] {
    [Event::Controller(i), Event::Pods(i), Event::Ready(i), Event::Detacher(i)]
}

/// What people and accidents may do, while they may.
pub fn disturbances<const N: usize, const K: usize>(state: &State<N, K>) -> impl Iterator<Item = Event> {
    let (left, truth) = (state.left, state.truth);
    let others = [DEGRADE, Marks { deployment: true, key: 0 }, Marks { deployment: false, key: 1 }, Marks { deployment: true, key: 1 }];
    let once = [
        (left.templates, Event::Template),
        (left.budgets, Event::Budget),
        (left.pauses, Event::Pause),
        (left.scalings, Event::Scale),
        (left.wipes, Event::Wipe),
        (left.keys.min(truth.marks.key), Event::Key),
        (left.closings, Event::Window),
        (left.failures, Event::Failure),
        (left.rollbacks.min(truth.failed.into()), Event::Rollback),
        (left.placements, Event::Placement),
        (left.promotions, Event::Promote),
    ];
    let per_node = (0..N).flat_map(move |i| {
        [
            (left.deletions, Event::Delete(i, false)),
            (left.deletions, Event::Delete(i, true)),
            (left.recreations, Event::Recreate(i)),
            (left.leaves, Event::Leave(i)),
            (left.edits, Event::Edit(i)),
            (left.outages, Event::Outage(i)),
            (left.drains, Event::Drain(i)),
            (left.skips, Event::Skip(i)),
            (left.node_failures, Event::NodeFailure(i)),
            (left.retries, Event::Retry(i)),
            (left.releases, Event::Release(i)),
            (left.pod_deletions, Event::DeletePods(i)),
        ]
    });
    let marks = others.into_iter().filter(move |marks| *marks != truth.marks).map(move |marks| (left.marks, Event::Marks(marks)));
    once.into_iter().chain(per_node).chain(marks).filter(|(left, _)| *left > 0).map(|(_, event)| event)
}

impl Rules {
    /// The state after an event; `None` when it changes nothing.
    pub fn happen<const N: usize, const K: usize>(&self, state: &State<N, K>, event: Event) -> Option<State<N, K>> {
        let mut after = *state;
        let (left, truth) = (&mut after.left, &mut after.truth);
        match event {
            Event::Tick => return self.tick(state),
            Event::Controller(i) => run_controller(&mut after.columns[i].truth)?,
            Event::Pods(i) => run_kubelet(&mut after.columns[i].truth, self.on_delete)?,
            Event::Ready(i) => {
                let pods = &mut after.columns[i].truth.pods;
                pods.health = (pods.health != Health::Ready && pods.owner == Owner::Deployment).then_some(Health::Ready)?;
            }
            Event::Detacher(i) => {
                let node = after.columns[i].truth.node.as_mut().filter(|_| self.detacher.is_some())?;
                let asked = node.entry.is_some_and(|entry| entry.phase == EntryPhase::Detached);
                let stamp = if asked { Stamp::Current } else { Stamp::Absent };
                node.stamp = (node.stamp != stamp).then_some(stamp)?;
            }
            Event::Template => {
                left.templates -= 1;
                *truth = Resource { revision: 1 - truth.revision, failed: false, promoted: false, stepped: false, ..*truth };
                for site in after.columns.iter_mut().map(|column| &mut column.truth) {
                    (site.failed, site.pods.order) = (None, Order::None);
                }
            }
            Event::Window => (left.closings, truth.closed) = (left.closings - 1, !truth.closed),
            Event::Failure => (left.failures, truth.failed) = (left.failures - 1, !truth.failed),
            Event::Rollback => {
                (left.rollbacks, truth.revision, truth.failed) = (left.rollbacks - 1, 1 - truth.revision, false);
                after.columns.iter_mut().for_each(|column| column.truth.failed = None);
            }
            Event::Drain(i) => {
                left.drains -= 1;
                let node = after.columns[i].truth.node.as_mut()?;
                node.draining = !node.draining;
            }
            Event::Marks(marks) => (left.marks, truth.marks) = (left.marks - 1, marks),
            Event::Key => (left.keys, truth.marks.key) = (left.keys - 1, 3 - truth.marks.key),
            Event::Budget => (left.budgets, truth.budget) = (left.budgets - 1, 3 - truth.budget),
            Event::Pause => (left.pauses, truth.paused) = (left.pauses - 1, !truth.paused),
            Event::Scale => (left.scalings, truth.replicas) = (left.scalings - 1, 3 - truth.replicas),
            Event::Wipe => {
                left.wipes -= 1;
                (truth.next, truth.rebuilding) = (0, 0);
                after.columns.iter_mut().for_each(|column| column.truth.grant = None);
                // The processes notice before they use an id that they took from it.
                after.memory.iter_mut().for_each(|memory| memory.reserved = 0);
            }
            Event::Delete(i, orphan) => {
                left.deletions -= 1;
                let site = &mut after.columns[i].truth;
                site.deployment?;
                delete_deployment(site, orphan);
            }
            Event::Recreate(i) => {
                left.recreations -= 1;
                let node = after.columns[i].truth.node.as_mut()?;
                *node = Node {
                    uid: node.uid + 1,
                    draining: false,
                    skipped: false,
                    retried: false,
                    to_free: 0,
                    member: Member::Absent,
                    entry: None,
                    stamp: Stamp::Absent,
                    ..*node
                };
            }
            Event::Leave(i) => {
                left.leaves -= 1;
                let node = after.columns[i].truth.node.as_mut()?;
                node.chosen = !node.chosen;
            }
            Event::Edit(i) => {
                left.edits -= 1;
                let deployment = after.columns[i].truth.deployment.as_mut().filter(|deployment| !deployment.drifted)?;
                (deployment.drifted, deployment.observed) = (true, false);
                after.raise_generation(i);
            }
            Event::Outage(i) => {
                left.outages -= 1;
                let pods = &mut after.columns[i].truth.pods;
                pods.health = (pods.health == Health::Ready && pods.count > 0).then_some(Health::Lost)?;
            }
            Event::Placement => (left.placements, truth.placement) = (left.placements - 1, 1 - truth.placement),
            Event::Promote => (left.promotions, truth.promoted) = (left.promotions - 1, true),
            Event::Skip(_) | Event::NodeFailure(_) | Event::Retry(_) | Event::Release(_) | Event::DeletePods(_) => {
                return guide(after, event);
            }
        }
        Some(after)
    }

    /// Time passes: every mark grows older, wherever it is remembered.
    fn tick<const N: usize, const K: usize>(&self, state: &State<N, K>) -> Option<State<N, K>> {
        let oldest = if self.detacher.is_some() { Age::Late } else { Age::Graced };
        let mut after = *state;
        for column in &mut after.columns {
            for site in std::iter::once(&mut column.truth).chain(&mut column.seen) {
                if let Some(deployment) = &mut site.deployment
                    && matches!(deployment.phase, Phase::Claimed | Phase::Updating)
                {
                    deployment.age = Age::Graced;
                }
                if let Some(entry) = site.node.as_mut().and_then(|node| node.entry.as_mut())
                    && entry.phase == EntryPhase::Detached
                {
                    entry.age = if entry.age == Age::Fresh { Age::Graced } else { oldest };
                }
            }
        }
        (after != *state).then_some(after)
    }
}

/// The Deployment's controller: adopts, counts, and says which spec it saw.
fn run_controller(site: &mut Site) -> Option<()> {
    let before = *site;
    site.deployment?;
    if site.pods.owner == Owner::Orphan {
        site.pods.owner = Owner::Deployment;
    }
    let counted = site.is_exact() && site.pods.health == Health::Ready;
    let deployment = site.deployment.as_mut()?;
    (deployment.observed, deployment.counted) = (true, counted);
    (*site != before).then_some(())
}

/// What people do to single nodes to guide a rollout.
fn guide<const N: usize, const K: usize>(mut after: State<N, K>, event: Event) -> Option<State<N, K>> {
    let left = &mut after.left;
    match event {
        Event::Skip(i) => {
            left.skips -= 1;
            let node = after.columns[i].truth.node.as_mut()?;
            node.skipped = !node.skipped;
        }
        Event::NodeFailure(i) => {
            left.node_failures -= 1;
            let site = &mut after.columns[i].truth;
            let late = site.is_updated() && site.grant.is_some_and(|grant| grant.kind == GrantReason::Update && !grant.freed);
            let node = site.node.filter(|_| late && site.failed.is_none() && !(site.is_exact() && site.pods.health == Health::Ready))?;
            site.failed = Some(node.retried);
        }
        Event::Retry(i) => {
            left.retries -= 1;
            let node = after.columns[i].truth.node.as_mut().filter(|node| !node.retried)?;
            node.retried = true;
        }
        Event::Release(i) => {
            left.releases -= 1;
            let site = &mut after.columns[i].truth;
            let id = site.grant?.id;
            site.node.as_mut()?.to_free = id;
        }
        Event::DeletePods(i) => {
            left.pod_deletions -= 1;
            let site = &mut after.columns[i].truth;
            let deployment = site.deployment.filter(|_| site.is_exact() && site.pods.count > 0)?;
            let order = if deployment.revision == after.truth.revision { Order::None } else { Order::Given };
            // Others come by themselves, of what the Deployment says.
            (site.pods.health, site.pods.order) = (Health::Lost, order);
        }
        _ => return None,
    }
    Some(after)
}

/// Pods come and go.
fn run_kubelet(site: &mut Site, on_delete: bool) -> Option<()> {
    let before = site.pods;
    if site.pods.owner == Owner::Ending {
        site.pods = crate::state::NO_PODS;
        return Some(());
    }
    let deployment = site.deployment.filter(|_| site.pods.owner == Owner::Deployment)?;
    if site.is_exact() {
        return None;
    }
    let grown = before.count > 0 && before.revision == deployment.revision && before.drifted == deployment.drifted;
    site.pods = crate::state::Pods {
        revision: deployment.revision,
        drifted: deployment.drifted,
        count: deployment.replicas,
        health: if deployment.replicas == 0 || grown && before.count > deployment.replicas { before.health } else { Health::Starting },
        owner: Owner::Deployment,
        order: if on_delete { Order::Own } else { Order::None },
    };
    if deployment.replicas == 0 {
        site.pods = crate::state::NO_PODS;
    }
    Some(())
}
