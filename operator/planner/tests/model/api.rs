//! The API server: what a write tests, what it changes, and what must hold when it takes effect.

use crate::{
    mutation::Mutation,
    operator::{Intent, Rules},
    state::{Age, Column, Deployment, Entry, Grant, Health, Id, Member, Order, Owner, Site, Stamp, State},
};
use crds::{holders::EntryPhase, ingress_daemon_set::OnDetachTimeout, ledger::GrantReason, token::Phase};
use planner::protocol::step::Step;

/// A broken promise.
pub type Violation = &'static str;

/// A write that took effect, and what it broke; `None` when the API server refused it.
pub type Written<const N: usize, const K: usize> = Option<(State<N, K>, Option<Violation>)>;

impl Rules {
    /// Writes to the ledger, with the resource's version that operator `k` read.
    pub fn write_ledger<const N: usize, const K: usize>(
        &self,
        state: &State<N, K>,
        k: usize,
        change: impl FnOnce(&mut State<N, K>),
    ) -> Written<N, K> {
        let same = |column: &Column<K>| (column.truth.grant, column.truth.failed) == (column.seen[k].grant, column.seen[k].failed);
        let current = state.truth == state.seen[k] && state.columns.iter().all(same);
        let mut after = *state;
        if !current {
            if !self.breaks(Mutation::LedgerWithoutVersion) {
                return None;
            }
            (after.truth.next, after.truth.rebuilding) = (state.seen[k].next, state.seen[k].rebuilding);
            for column in &mut after.columns {
                (column.truth.grant, column.truth.failed) = (column.seen[k].grant, column.seen[k].failed);
            }
        }
        change(&mut after);
        if after.truth.next > self.ids.saturating_add(1) {
            return None;
        }
        let mut broken = None;
        for (column, now) in state.columns.iter().zip(&after.columns) {
            let (before, Some(now)) = (column.truth.grant, now.truth.grant) else { continue };
            if before == Some(now) {
                continue;
            }
            if now.id <= state.largest {
                broken = Some("P6: an id is used twice");
            }
            let named = before.is_some_and(|before| before.freed || column.truth.node.is_some_and(|node| node.to_free == before.id));
            if now.freed && !named {
                broken = broken.or(Some("P5: a slot is freed that nobody named"));
            }
            if before.is_none() && now.kind == GrantReason::Update && column.truth.failed.is_some() && state.truth.rebuilding == 0 {
                broken = broken.or(Some("P8: a node starts again on the revision that failed there"));
            }
            let begun = before.is_some_and(|before| has_begun(&column.truth, before.id));
            if !begun && state.truth.rebuilding == 0 {
                broken = broken.or(shut(&state.truth, now.kind));
            }
        }
        let ids = after.columns.iter().filter_map(|column| column.truth.grant).map(|grant| grant.id).max().unwrap_or(0);
        after.largest = after.largest.max(ids);
        Some((after, broken))
    }

    /// The next id, which the ledger counts.
    pub fn take_id<const N: usize, const K: usize>(&self, after: &mut State<N, K>) -> Id {
        let id = after.truth.next;
        after.truth.next += 1;
        id
    }

    pub fn carry_out<const N: usize, const K: usize>(&self, state: &State<N, K>, k: usize, i: usize, intent: Intent) -> Written<N, K> {
        let seen = state.columns[i].seen[k];
        match intent {
            Intent::Admit(grant) => {
                let (after, broken) = self.write_ledger(state, k, |after| {
                    let id = self.take_id(after);
                    after.columns[i].truth.grant = Some(Grant { id, ..grant });
                })?;
                let held = state.columns.iter().filter_map(|column| column.truth.grant).filter(|held| !held.is_free()).count();
                let above = !grant.is_free() && grant.kind != GrantReason::Drain && held >= state.truth.budget.into();
                let above = above.then_some("P1: a node is begun though the budget is used up");
                let skipped =
                    grant.kind != GrantReason::Drain && grant.kind != GrantReason::Remove && seen.node.is_some_and(|node| node.skipped);
                let above = above.or(skipped.then_some("P8: a node starts though it is to be skipped"));
                let broken = broken.or(above).or_else(|| self.out_of_turn(state, k, i, &grant));
                Some((after, broken.or_else(|| taken_while_others_are_down(state, k, i, &grant))))
            }
            Intent::Retarget(grant) | Intent::Retry(grant) => {
                let (after, broken) = self.write_ledger(state, k, |after| {
                    let id = if self.breaks(Mutation::RetargetKeepsId) { grant.id } else { self.take_id(after) };
                    let site = &mut after.columns[i].truth;
                    site.grant = Some(Grant { id, ..grant });
                    if grant.freed {
                        site.failed = Some(seen.node.is_some_and(|node| node.retried));
                    } else if matches!(intent, Intent::Retry(_)) {
                        site.failed = None;
                    }
                })?;
                let begun = has_begun(&state.columns[i].truth, grant.id);
                Some((after, broken.or_else(|| self.out_of_turn(state, k, i, &grant).filter(|_| !begun))))
            }
            Intent::Forgive => self.write_ledger(state, k, |after| after.columns[i].truth.failed = None),
            Intent::PassStep => {
                let (after, broken) = self.write_ledger(state, k, |after| after.truth.stepped = true)?;
                let newest = |site: &Site| site.deployment.is_some_and(|found| found.revision == state.truth.revision);
                let serve = |site: &Site| newest(site) && site.grant.is_none() && site.phase() == Some(Phase::Closed);
                let serving = state.columns.iter().filter(|column| serve(&column.truth)).count();
                let early = self.step.is_some_and(|step| serving < step.into());
                Some((after, broken.or(early.then_some("P8: a step is over before its nodes serve"))))
            }
            Intent::Create(phase) => self.create(state, k, i, phase),
            Intent::Label(member) => self.label(state, i, &seen, member),
            Intent::FirstClose => self.patch_deployment(state, i, &seen, !self.breaks(Mutation::FirstCloseUntested), |deployment| {
                (deployment.phase, deployment.served, deployment.age) = (Phase::Closed, true, Age::Fresh);
            }),
            Intent::Direct => {
                let resource = state.seen[k];
                let before = state.columns[i].truth.deployment?;
                let (after, broken) = self.patch_deployment(state, i, &seen, true, |deployment| {
                    if deployment.phase == Phase::New {
                        (deployment.revision, deployment.drifted, deployment.placement) = (resource.revision, false, resource.placement);
                    }
                    deployment.replicas = resource.replicas;
                    deployment.observed = false;
                })?;
                let serves = before.served && before.replicas > 0;
                Some((after, broken.or(serves.then_some("P4: pods change without a grant"))))
            }
            Intent::Step(step, grant) => {
                let (after, broken) = self.carry_out_step(state, k, i, &seen, step, &grant)?;
                let returns = grant.kind == GrantReason::Drain && matches!(step, Step::Unmark | Step::Close);
                let broken = broken.or(returns.then_some("P5: a node is attached while it is drained"));
                let begins = matches!(step, Step::Claim | Step::Detach | Step::Update);
                let ledger = state.truth.next > 0 && state.truth.rebuilding == 0;
                let released = begins && ledger && state.columns[i].truth.grant.is_none();
                Some((after, broken.or(released.then_some("P1: a node is taken out without a grant"))))
            }
        }
    }

    fn carry_out_step<const N: usize, const K: usize>(
        &self,
        state: &State<N, K>,
        k: usize,
        i: usize,
        seen: &Site,
        step: Step,
        grant: &Grant,
    ) -> Written<N, K> {
        match step {
            Step::Claim => self.patch_deployment(state, i, seen, false, |deployment| {
                let held = matches!(deployment.phase, Phase::Claimed | Phase::Updating);
                deployment.age = if held { deployment.age } else { Age::Fresh };
                (deployment.id, deployment.phase) = (grant.id, Phase::Claimed);
            }),
            Step::Update => self.update(state, k, i, seen, grant),
            Step::Close => self.patch_deployment(state, i, seen, true, |deployment| {
                (deployment.id, deployment.phase, deployment.age, deployment.served) = (grant.id, Phase::Closed, Age::Fresh, true);
            }),
            Step::DeleteDeployment => {
                let mut after = *state;
                let site = &mut after.columns[i].truth;
                let believed = seen.deployment.filter(|deployment| !deployment.superseded);
                if site.deployment.is_none() || site.deployment != believed {
                    return None;
                }
                delete_deployment(site, false);
                Some((after, None))
            }
            Step::Detach => self.detach(state, i, seen, grant),
            Step::Unmark => self.unmark(state, i, seen, Entry { id: grant.id, phase: EntryPhase::Attached, key: 0, age: Age::Fresh }),
            Step::RemoveEntry => {
                let mut after = self.node_as_seen(state, i, seen)?;
                after.columns[i].truth.node.as_mut()?.entry = None;
                Some((after, None))
            }
            Step::RemoveMember => {
                let site = &state.columns[i].truth;
                if site.node != seen.node || site.deployment.is_some() {
                    return None;
                }
                let mut after = *state;
                after.columns[i].truth.node.as_mut()?.member = Member::Absent;
                Some((after, None))
            }
            Step::Release { live } => {
                if live && state.columns[i].truth.deployment.is_some() {
                    return None;
                }
                self.write_ledger(state, k, |after| {
                    let site = &mut after.columns[i].truth;
                    site.grant = None;
                    // What a person had to free is not begun again by itself.
                    site.failed = site.failed.filter(|_| grant.freed);
                })
            }
            _ => None,
        }
    }

    /// A patch that tests UID and token, and perhaps the generation.
    fn patch_deployment<const N: usize, const K: usize>(
        &self,
        state: &State<N, K>,
        i: usize,
        seen: &Site,
        generation: bool,
        change: impl FnOnce(&mut Deployment),
    ) -> Written<N, K> {
        let before = state.columns[i].truth.deployment?;
        let believed = seen.deployment?;
        let token = match self.mutation {
            Some(Mutation::TokenNotTested) => true,
            Some(Mutation::PhaseNotTested) => before.id == believed.id,
            _ => (before.id, before.phase) == (believed.id, believed.phase),
        };
        let spec = |deployment: &Deployment| (deployment.revision, deployment.replicas, deployment.drifted, deployment.placement);
        if before.uid != believed.uid || !token || generation && believed.superseded {
            return None;
        }
        let mut after = *state;
        let deployment = after.columns[i].truth.deployment.as_mut()?;
        change(deployment);
        let now = *deployment;
        if spec(&now) != spec(&before) {
            after.raise_generation(i);
        }
        after.largest = after.largest.max(now.id);
        let (old, new) = ((before.id, before.phase), (now.id, now.phase));
        let mut broken = (new < old)
            .then_some("P7: a token went back")
            .or((new == old && now != before && !unfenced(&before, &now)).then_some("P6: a step took effect twice"));
        let incomplete = !completed(&after.columns[i].truth) && !is_freed(&after.columns[i].truth, now.id);
        if now.phase == Phase::Closed && before.phase != Phase::Closed && incomplete {
            broken = broken.or(Some("P5: a node is attached before its pods are complete"));
        }
        Some((after, broken))
    }

    fn update<const N: usize, const K: usize>(&self, state: &State<N, K>, k: usize, i: usize, seen: &Site, grant: &Grant) -> Written<N, K> {
        let (resource, believed) = (state.seen[k], seen.deployment?);
        let holding = matches!(believed.phase, Phase::Claimed | Phase::Updating);
        let marked = grant.deployment_mark || grant.key > 0 || holding || seen.detached();
        let written = self.patch_deployment(state, i, seen, false, |deployment| {
            let old = *deployment;
            (deployment.id, deployment.age) = (grant.id, Age::Fresh);
            deployment.phase = if marked { Phase::Updating } else { Phase::Degrading };
            match grant.kind {
                GrantReason::Abort => return,
                GrantReason::Remove | GrantReason::Drain => deployment.replicas = 0,
                GrantReason::Repair if !believed.drifted && !self.breaks(Mutation::PlacementIsDrift) => {
                    deployment.replicas = resource.replicas;
                }
                GrantReason::Update | GrantReason::Repair => {
                    (deployment.revision, deployment.drifted, deployment.replicas) = (grant.revision, false, resource.replicas);
                    deployment.placement = resource.placement;
                }
                GrantReason::Shrink | GrantReason::Grow => deployment.replicas = resource.replicas,
            }
            if (old.revision, old.replicas, old.drifted) != (deployment.revision, deployment.replicas, deployment.drifted) {
                deployment.observed = false;
            }
        });
        let (after, broken) = written?;
        let (old, new) = (state.columns[i].truth.deployment?, after.columns[i].truth.deployment?);
        let changes = (old.revision, old.replicas, old.drifted) != (new.revision, new.replicas, new.drifted);
        let moved = old.placement != new.placement && grant.kind == GrantReason::Repair && !old.drifted;
        let moved = moved.then_some("P4: pods change for another placement alone");
        let early = (old.served && changes).then(|| self.unready_for_update(&state.columns[i].truth, grant)).flatten();
        Some((after, broken.or(moved).or(early)))
    }

    /// P4: what a change of pods finds missing.
    fn unready_for_update(&self, site: &Site, grant: &Grant) -> Option<Violation> {
        let deployment = site.deployment?;
        if grant.kind == GrantReason::Drain && !grant.deployment_mark && grant.key == 0 {
            return Some("P4: a node is drained that nothing has taken out of service");
        }
        if grant.deployment_mark && !(deployment.id == grant.id && deployment.phase == Phase::Claimed && deployment.age >= Age::Graced) {
            return Some("P4: pods change before the grace of the Deployment's mark is over");
        }
        let node = site.node.filter(|node| grant.key > 0 && node.uid == grant.node_uid)?;
        // A later grant may have taken the mark over.
        let held = node.entry.is_some_and(|entry| {
            entry.id >= grant.id && entry.phase == EntryPhase::Detached && entry.key == grant.key && entry.age >= Age::Graced
        });
        let answered = match self.detacher {
            None => true,
            Some(OnDetachTimeout::Proceed) => node.stamp == Stamp::Current || node.entry.is_some_and(|entry| entry.age == Age::Late),
            Some(OnDetachTimeout::Halt | OnDetachTimeout::Abort) => node.stamp == Stamp::Current,
        };
        (!(held && answered)).then_some("P4: pods change before the node is detached")
    }

    /// The Node as an operator saw it, as far as a patch of its entry tests that.
    fn node_as_seen<const N: usize, const K: usize>(&self, state: &State<N, K>, i: usize, seen: &Site) -> Option<State<N, K>> {
        let (node, believed) = (state.columns[i].truth.node?, seen.node?);
        let mark = |entry: Option<Entry>| entry.map(|entry| (entry.id, entry.phase, entry.key));
        let same = match self.mutation {
            Some(Mutation::EntryNotTested) => true,
            _ => mark(node.entry) == mark(believed.entry),
        };
        (node.uid == believed.uid && same).then_some(*state)
    }

    fn detach<const N: usize, const K: usize>(&self, state: &State<N, K>, i: usize, seen: &Site, grant: &Grant) -> Written<N, K> {
        let mut after = self.node_as_seen(state, i, seen)?;
        let node = after.columns[i].truth.node.as_mut()?;
        let earlier = seen.entry().filter(|entry| entry.phase == EntryPhase::Detached);
        let key = if grant.key > 0 { grant.key } else { earlier?.key };
        let age = earlier.filter(|entry| entry.key == key).map_or(Age::Fresh, |entry| entry.age);
        let carried = earlier.is_some_and(|entry| entry.key == key);
        if !carried && node.stamp == Stamp::Current {
            node.stamp = Stamp::Old;
        }
        let before = node.entry;
        node.entry = Some(Entry { id: grant.id, phase: EntryPhase::Detached, key, age });
        after.largest = after.largest.max(grant.id);
        Some((after, went_back(before, (grant.id, EntryPhase::Detached))))
    }

    fn unmark<const N: usize, const K: usize>(&self, state: &State<N, K>, i: usize, seen: &Site, entry: Entry) -> Written<N, K> {
        let mut after = self.node_as_seen(state, i, seen)?;
        let site = &mut after.columns[i].truth;
        let node = site.node.as_mut()?;
        let before = node.entry;
        node.entry = Some(Entry { key: before.map_or(0, |before| before.key), ..entry });
        let released = before.is_some_and(|before| before.phase == EntryPhase::Detached);
        let incomplete = released && site.deployment.is_some() && !completed(site) && !is_freed(site, entry.id);
        let broken = went_back(before, (entry.id, entry.phase));
        after.largest = after.largest.max(entry.id);
        Some((after, broken.or(incomplete.then_some("P5: a node is attached before its pods are complete"))))
    }

    fn create<const N: usize, const K: usize>(&self, state: &State<N, K>, k: usize, i: usize, phase: Phase) -> Written<N, K> {
        if state.memory[k].reserved == 0 {
            let (mut after, broken) = self.write_ledger(state, k, |after| {
                after.memory[k].reserved = self.take_id(after);
            })?;
            let id = after.memory[k].reserved;
            let broken = broken.or((id <= after.largest).then_some("P6: an id is used twice"));
            after.largest = after.largest.max(id);
            return Some((after, broken));
        }
        let mut after = *state;
        let mut id = std::mem::take(&mut after.memory[k].reserved);
        if self.breaks(Mutation::CreatedWithOldId) {
            id = 1;
        }
        let seen = state.columns[i].seen[k].pods;
        let resource = state.seen[k];
        let site = &mut after.columns[i].truth;
        if site.deployment.is_none() {
            let around = seen.owner == Owner::Orphan;
            site.deployment = Some(Deployment {
                uid: id,
                id,
                phase,
                age: Age::Fresh,
                revision: if around { seen.revision } else { resource.revision },
                replicas: if around { seen.count } else { resource.replicas },
                drifted: around && seen.drifted,
                placement: resource.placement,
                observed: false,
                counted: false,
                served: phase != Phase::New || self.breaks(Mutation::NewAroundOldPods) && around,
                superseded: false,
            });
        }
        Some((after, None))
    }

    fn label<const N: usize, const K: usize>(&self, state: &State<N, K>, i: usize, seen: &Site, member: Member) -> Written<N, K> {
        let mut after = *state;
        let (node, believed) = (after.columns[i].truth.node.as_mut()?, seen.node?);
        if node.uid != believed.uid || node.member != believed.member {
            return None;
        }
        node.member = member;
        Some((after, None))
    }

    /// P8: an update to the newest revision is begun on a node that is to keep what it runs. How far a canary has come is what the
    /// operator sees of the nodes, and no more.
    fn out_of_turn<const N: usize, const K: usize>(&self, state: &State<N, K>, k: usize, i: usize, grant: &Grant) -> Option<Violation> {
        let newest = state.truth.revision;
        let granted = |grant: Option<Grant>| grant.is_some_and(|grant| grant.kind == GrantReason::Update && grant.revision == newest);
        let runs = |site: &Site| granted(site.grant) || site.deployment.is_some_and(|deployment| deployment.revision == newest);
        let site = &state.columns[i].truth;
        if !granted(Some(*grant)) || runs(site) || runs(&state.columns[i].seen[k]) {
            return None;
        }
        if self.on_delete && ![site.pods, state.columns[i].seen[k].pods].iter().any(|pods| pods.order == Order::Given) {
            return Some("P8: a node starts whose pods nobody deleted");
        }
        let running = state.columns.iter().filter(|column| runs(&column.seen[k])).count();
        let full = self.step.is_some_and(|step| !state.truth.stepped && running >= step.into());
        full.then_some("P8: a node starts beyond the step of the canary")
    }

    /// A fence on an object that holds nothing.
    pub fn fence<const N: usize, const K: usize>(&self, state: &State<N, K>, k: usize, i: usize, on_node: bool) -> Written<N, K> {
        let fence = state.seen[k].rebuilding;
        let seen = state.columns[i].seen[k];
        if on_node {
            return self.unmark(state, i, &seen, Entry { id: fence, phase: EntryPhase::Attached, key: 0, age: Age::Fresh });
        }
        self.patch_deployment(state, i, &seen, false, |deployment| deployment.id = fence)
    }
}

/// The pods of the node were changed under the grant of this id, or its Deployment is another since.
fn has_begun(site: &Site, id: Id) -> bool {
    let phases = [Phase::Degrading, Phase::Updating, Phase::Closed];
    site.deployment.is_none_or(|deployment| deployment.id > id || deployment.id == id && phases.contains(&deployment.phase))
}

/// P8: why nothing of this kind may begin.
fn shut(resource: &crate::state::Resource, kind: GrantReason) -> Option<Violation> {
    match kind {
        GrantReason::Remove | GrantReason::Drain | GrantReason::Abort => None,
        _ if resource.paused => Some("P8: a node starts while paused"),
        GrantReason::Update if resource.closed => Some("P8: a node starts outside the windows"),
        GrantReason::Update if resource.failed => Some("P8: a node starts on a revision that failed"),
        GrantReason::Update | GrantReason::Repair | GrantReason::Shrink | GrantReason::Grow => None,
    }
}

/// Deletes a Deployment; its pods go with it, or are left.
pub fn delete_deployment(site: &mut Site, orphan: bool) {
    site.deployment = None;
    if site.pods.count > 0 {
        site.pods.owner = if orphan { Owner::Orphan } else { Owner::Ending };
    }
}

/// A person has ordered that the node be attached as it is.
fn is_freed(site: &Site, id: Id) -> bool {
    site.grant.is_some_and(|grant| grant.freed && grant.id >= id)
}

/// Pods are those that the Deployment wants, and each was ready.
fn completed(site: &Site) -> bool {
    site.is_exact() && site.pods.health != Health::Starting
}

/// P3: an operator that sees everything takes an available node though the budget is used up by those that are down.
fn taken_while_others_are_down<const N: usize, const K: usize>(
    state: &State<N, K>,
    k: usize,
    i: usize,
    grant: &Grant,
) -> Option<Violation> {
    let sees_all = state.columns.iter().all(|column| column.truth == column.seen[k]);
    let down = |site: &Site| site.grant.is_none() && site.chosen() && site.served() && site.pods.health == Health::Lost;
    let settled = state.columns[i].truth.deployment.is_some_and(|deployment| deployment.observed && deployment.counted);
    if !sees_all || grant.is_free() || grant.kind == GrantReason::Drain || !settled || down(&state.columns[i].truth) {
        return None;
    }
    let others =
        state.columns.iter().filter(|column| column.truth.grant.is_some_and(|grant| !grant.is_free()) || down(&column.truth)).count();
    (others >= state.truth.budget.into()).then_some("P3: an available node is taken while the budget is used up")
}

/// A change that needs no new token: what does not serve.
fn unfenced(before: &Deployment, now: &Deployment) -> bool {
    before.phase == Phase::New || before.replicas == 0 && now.revision == before.revision
}

fn went_back(before: Option<Entry>, now: (Id, EntryPhase)) -> Option<Violation> {
    let before = before.map(|entry| (entry.id, entry.phase))?;
    if now < before {
        return Some("P7: an entry went back");
    }
    (now == before).then_some("P6: a step took effect twice")
}
