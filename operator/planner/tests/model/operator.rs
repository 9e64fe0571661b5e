//! What an operator would do next, by the planner's own functions, from what it has seen.

use crate::{
    mutation::Mutation,
    state::{Age, Deployment, Entry, Grant, Health, Id, Marks, Member, Node, Order, Owner, Resource, Site, Stamp, TOKEN},
};
use crds::{holders::EntryPhase, ingress_daemon_set::OnDetachTimeout, ledger::GrantReason, token::Phase};
use planner::protocol::{
    step::{EntryView, GrantView, NodeView, Step, StepView, TokenView, step},
    target::{self, Fit, FitView, NeedView, Stops},
};
use std::sync::atomic::{AtomicU32, Ordering};

/// What topology domains are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domains {
    /// There is one.
    Ignored,
    /// Each has a budget of one node.
    Budgets,
    /// One is finished before the next.
    InTurn,
}

/// What a configuration fixes for all its states.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// A detacher's timestamp is waited for, and this is done when it does not come.
    pub detacher: Option<OnDetachTimeout>,
    /// No id above this one is given out.
    pub ids: Id,
    /// Former revisions are recorded: a node that has to wait is wanted as it is.
    pub history: bool,
    pub domains: Domains,
    /// Nodes are updated when somebody deletes their pods.
    pub on_delete: bool,
    /// So many nodes are updated before somebody promotes the rollout.
    pub step: Option<u8>,
    pub mutation: Option<Mutation>,
}

/// One operator's eyes.
#[derive(Clone, Copy)]
pub struct Eyes<'a, const N: usize> {
    pub rules: &'a Rules,
    pub resource: &'a Resource,
    pub sites: [&'a Site; N],
}

/// Moves for one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// A step of the grant.
    Step(Step, Grant),
    /// Another grant in its slot; the id is set by the writer.
    Retarget(Grant),
    /// The same on a person's order to try again: the failure is forgotten.
    Retry(Grant),
    /// The failure alone is.
    Forgive,
    /// The first step of the canary is done.
    PassStep,
    /// A grant; the id is set by the writer.
    Admit(Grant),
    /// A Deployment is missing: New, or around pods that were left.
    Create(Phase),
    /// Member label.
    Label(Member),
    FirstClose,
    /// Template or replicas of what does not serve.
    Direct,
}

impl Site {
    pub fn phase(&self) -> Option<Phase> {
        self.deployment.map(|deployment| deployment.phase)
    }

    pub fn chosen(&self) -> bool {
        self.node.is_some_and(|node| node.chosen)
    }

    pub fn entry(&self) -> Option<Entry> {
        self.node.and_then(|node| node.entry)
    }

    pub fn detached(&self) -> bool {
        self.entry().is_some_and(|entry| entry.phase == EntryPhase::Detached)
    }

    pub fn member(&self) -> Member {
        self.node.map_or(Member::Absent, |node| node.member)
    }

    pub fn served(&self) -> bool {
        self.member() == Member::Serving || self.phase().is_some_and(|phase| phase != Phase::New)
    }

    pub fn draining(&self) -> bool {
        self.node.is_some_and(|node| node.draining)
    }

    pub fn domain(&self) -> u8 {
        self.node.map_or(0, |node| node.domain)
    }

    pub fn has_anything(&self) -> bool {
        self.deployment.is_some()
            || self.pods.owner == Owner::Orphan
            || self.grant.is_some()
            || self.member() != Member::Absent
            || self.entry().is_some()
    }

    /// The pods are those that the Deployment wants.
    pub fn is_exact(&self) -> bool {
        self.deployment.is_some_and(|deployment| {
            let pods = self.pods;
            let same = pods.count == 0 || pods.revision == deployment.revision && pods.drifted == deployment.drifted;
            pods.count == deployment.replicas && same && (pods.count == 0 || pods.owner == Owner::Deployment)
        })
    }

    /// Its pods are those it wants, and ready; and its controller says so.
    pub fn settled(&self, rules: &Rules) -> bool {
        self.deployment.is_some_and(|deployment| {
            let observed = deployment.observed || rules.breaks(Mutation::GenerationNotObserved);
            observed && deployment.counted && self.is_exact() && self.pods.health == Health::Ready
        })
    }

    pub fn is_updated(&self) -> bool {
        self.grant
            .zip(self.deployment)
            .is_some_and(|(grant, deployment)| deployment.id == grant.id && matches!(deployment.phase, Phase::Updating | Phase::Degrading))
    }

    fn node_uid(&self) -> u8 {
        self.node.map_or(0, |node| node.uid)
    }
}

impl Rules {
    pub fn breaks(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }
}

impl Resource {
    /// Marks that take a node out altogether.
    fn detach_marks(&self) -> Marks {
        if self.marks.deployment || self.marks.key > 0 { self.marks } else { TOKEN }
    }
}

/// The steps of [`STEPS`] that were decided for grants of each kind, a bit each, in all searches without a mutation.
static COVERED: [AtomicU32; KINDS.len()] = [const { AtomicU32::new(0) }; KINDS.len()];

/// What a grant may be for.
pub const KINDS: [GrantReason; 7] = [
    GrantReason::Update,
    GrantReason::Repair,
    GrantReason::Shrink,
    GrantReason::Grow,
    GrantReason::Remove,
    GrantReason::Drain,
    GrantReason::Abort,
];

/// What may be decided for it.
pub const STEPS: [Step; 15] = [
    Step::Claim,
    Step::Detach,
    Step::Update,
    Step::Unmark,
    Step::Close,
    Step::DeleteDeployment,
    Step::RemoveEntry,
    Step::RemoveMember,
    Step::Release { live: false },
    Step::Release { live: true },
    Step::Retarget,
    Step::AwaitDeployment,
    Step::AwaitGrace,
    Step::AwaitComplete,
    Step::AwaitSoak,
];

fn cover(kind: GrantReason, step: Step) {
    let (Some(kind), Some(step)) = (KINDS.iter().position(|known| *known == kind), STEPS.iter().position(|known| *known == step)) else {
        panic!("{kind:?} {step:?} is not in the list");
    };
    let bit = 1 << step;
    if COVERED[kind].load(Ordering::Relaxed) & bit == 0 {
        COVERED[kind].fetch_or(bit, Ordering::Relaxed);
    }
}

/// Steps that were decided for grants of this kind.
pub fn covered(kind: usize) -> Vec<Step> {
    let bits = COVERED[kind].load(Ordering::Relaxed);
    STEPS.iter().enumerate().filter(|(place, _)| bits & (1 << place) != 0).map(|(_, step)| *step).collect()
}

const NO_MARKS: Marks = Marks { deployment: false, key: 0 };

fn carries(grant: &Grant, wanted: Marks) -> bool {
    (grant.deployment_mark || !wanted.deployment) && (wanted.key == 0 || grant.key == wanted.key)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Grace {
    Over,
    Waiting,
    TimedOut,
}

impl<const N: usize> Eyes<'_, N> {
    /// The largest id on any object.
    pub fn largest(&self) -> Id {
        let ids = self
            .sites
            .iter()
            .flat_map(|site| [site.deployment.map_or(0, |deployment| deployment.id), site.entry().map_or(0, |entry| entry.id)]);
        ids.max().unwrap_or(0)
    }

    /// The ledger can be used, or is being rebuilt already.
    pub fn is_sound(&self) -> bool {
        let granted = self.sites.iter().filter_map(|site| site.grant).map(|grant| grant.id).max().unwrap_or(0);
        self.resource.next > 0 && (self.resource.rebuilding > 0 || self.resource.next > self.largest().max(granted))
    }

    /// What is done about a node, while the ledger is sound. At most one step of a grant, and one thing beside it.
    pub fn intents(&self, i: usize) -> impl Iterator<Item = Intent> {
        let site = self.sites[i];
        let retried = site.failed == Some(false) && site.node.is_some_and(|node| node.retried);
        let begins =
            |grant: &Grant| site.is_updated() || !self.gates().stops(grant.kind) || self.rules.breaks(Mutation::RetriedBehindGates);
        let again = site.grant.filter(|grant| retried && site.phase() != Some(Phase::Closed) && begins(grant));
        let granted = match site.grant {
            Some(_) if again.is_some() => again.map(|grant| Intent::Retry(self.again(site, &grant))),
            Some(grant) => self.advance(site, &grant),
            None => self.admit(site),
        };
        let forgiven = (retried && again.is_none()).then_some(Intent::Forgive);
        granted.into_iter().chain(forgiven).chain(self.change_directly(site))
    }

    /// A canary goes on when it was promoted and all nodes of its step serve.
    pub fn passes_step(&self) -> bool {
        let resource = self.resource;
        let serves = |site: &&&Site| {
            let current = site.deployment.is_some_and(|deployment| deployment.revision == resource.revision);
            site.chosen() && current && site.grant.is_none() && site.served() && !self.unavailable(site)
        };
        let serving = self.sites.iter().filter(serves).count();
        let proven = |step: u8| serving >= step.into() || self.rules.breaks(Mutation::StepPassedEarly);
        self.rules.step.is_some_and(|step| resource.promoted && !resource.stepped && proven(step))
    }

    /// Runs the newest revision, or is about to.
    fn runs(&self, site: &Site) -> bool {
        site.deployment.is_some_and(|deployment| deployment.revision == self.resource.revision) || self.is_under_way(site)
    }

    /// Its update to the newest revision is under way.
    fn is_under_way(&self, site: &Site) -> bool {
        site.grant.is_some_and(|grant| grant.kind == GrantReason::Update && grant.revision == self.resource.revision)
    }

    /// It keeps what it runs, whatever is open: somebody has to delete its pods, or to promote the rollout.
    fn is_out_of_turn(&self, site: &Site) -> bool {
        if self.runs(site) {
            return false;
        }
        let ordered = match site.pods.order {
            Order::Given => true,
            Order::Own => self.rules.breaks(Mutation::OwnPodsTakenForOrders),
            Order::None => self.rules.breaks(Mutation::OrderNotAwaited),
        };
        let step = self.rules.step.filter(|_| !self.resource.stepped && !self.rules.breaks(Mutation::StepIgnored));
        let full = |step: u8| self.sites.iter().filter(|site| site.chosen() && self.runs(site)).count() >= step.into();
        self.rules.on_delete && !ordered || step.is_some_and(full)
    }

    /// The revision that the node is to run: the one that it runs, while it has to wait and that one is known.
    fn wanted(&self, site: &Site) -> u8 {
        let (gates, newest) = (self.gates(), self.resource.revision);
        let kept = site.deployment.filter(|deployment| deployment.phase != Phase::New && !self.is_under_way(site));
        let held = || gates.closed || gates.failed || self.is_out_of_turn(site);
        kept.filter(|_| self.rules.history && held()).map_or(newest, |deployment| deployment.revision)
    }

    fn need(&self, site: &Site) -> Option<GrantReason> {
        let replicas = site.deployment.map_or(0, |deployment| deployment.replicas);
        target::need(&NeedView {
            chosen: site.chosen(),
            draining: site.draining(),
            has_anything: site.has_anything(),
            phase: site.phase(),
            readable: true,
            granted: site.grant.is_some(),
            detached: site.detached(),
            current: site.deployment.is_some_and(|deployment| deployment.revision == self.wanted(site)),
            drifted: site.deployment.is_some_and(|deployment| self.drifted(&deployment)),
            broken: false,
            replicas: replicas.cmp(&self.resource.replicas),
            empty: replicas == 0,
        })
    }

    fn drifted(&self, deployment: &Deployment) -> bool {
        deployment.drifted || self.rules.breaks(Mutation::PlacementIsDrift) && deployment.placement != self.resource.placement
    }

    fn unavailable(&self, site: &Site) -> bool {
        let holding = site.phase() != Some(Phase::Closed) || site.detached();
        site.served() && (!site.settled(self.rules) || site.deployment.is_some_and(|deployment| deployment.replicas == 0) || holding)
    }

    fn removal_marks(&self, site: &Site) -> Marks {
        let unmarked = self.rules.breaks(Mutation::DrainUnmarked) && site.draining();
        if site.served() && site.node.is_some() && !unmarked { self.resource.detach_marks() } else { NO_MARKS }
    }

    fn gates(&self) -> Stops {
        let timed_out = |site: &Site| site.grant.is_some_and(|grant| self.grace(site, &grant) == Grace::TimedOut);
        let paused = self.resource.paused && !self.rules.breaks(Mutation::PauseIgnored);
        Stops {
            paused,
            halted: self.rules.detacher == Some(OnDetachTimeout::Halt) && self.sites.iter().any(|site| timed_out(site)),
            closed: self.resource.closed && !self.rules.breaks(Mutation::WindowIgnored),
            failed: self.resource.failed && !self.rules.breaks(Mutation::FailureIgnored),
        }
    }

    fn grace(&self, site: &Site, grant: &Grant) -> Grace {
        let token = site.deployment.filter(|deployment| deployment.id == grant.id && deployment.phase == Phase::Claimed);
        let entry = site.entry().filter(|entry| entry.id == grant.id && entry.phase == EntryPhase::Detached);
        if token.is_none() && entry.is_none() || grant.kind == GrantReason::Abort || site.is_updated() {
            return Grace::Over;
        }
        let over = |age: Option<Age>| age.is_none_or(|age| age >= Age::Graced);
        let plain = over(token.map(|token| token.age)) && over(entry.map(|entry| entry.age));
        let plain = if plain || self.rules.breaks(Mutation::GraceSkipped) { Grace::Over } else { Grace::Waiting };
        let (Some(entry), Some(policy)) = (entry, self.rules.detacher) else { return plain };
        match site.node.map(|node| node.stamp) {
            Some(Stamp::Current) => plain,
            Some(Stamp::Old) if self.rules.breaks(Mutation::OldTimestampCounts) => plain,
            _ if entry.age < Age::Late => Grace::Waiting,
            _ if policy == OnDetachTimeout::Proceed => plain,
            _ => Grace::TimedOut,
        }
    }

    fn replace(&self, site: &Site, grant: &Grant, kind: GrantReason, revision: u8, wanted: Marks) -> Grant {
        let kept = if self.rules.breaks(Mutation::RetargetDropsMarks) {
            NO_MARKS
        } else {
            Marks { deployment: grant.deployment_mark, key: grant.key }
        };
        Grant {
            id: grant.id,
            kind,
            revision,
            deployment_mark: kept.deployment || wanted.deployment,
            key: if wanted.key > 0 { wanted.key } else { kept.key },
            node_uid: site.node_uid(),
            refused: None,
            above: grant.above || kind == GrantReason::Drain,
            freed: false,
        }
    }

    fn turn_back(&self, site: &Site, grant: &Grant) -> Grant {
        self.replace(site, grant, GrantReason::Abort, site.deployment.map_or(0, |deployment| deployment.revision), NO_MARKS)
    }

    fn gave_up(&self, site: &Site, grant: &Grant) -> bool {
        let policy = self.rules.detacher == Some(OnDetachTimeout::Abort);
        policy && grant.refused == Some(self.wanted(site)) && self.resource.marks.key == grant.key
    }

    fn fit(&self, site: &Site, grant: &Grant) -> Result<(), Grant> {
        if grant.freed {
            return Ok(());
        }
        let (for_update, for_removal) = (self.resource.marks, self.removal_marks(site));
        let unknown = self.is_out_of_turn(site) && !self.rules.breaks(Mutation::TurnIgnoredOnceGranted);
        let closed = self.gates().closed && !self.rules.breaks(Mutation::WindowIgnoredOnceGranted);
        let gates = Stops { closed: closed || unknown, ..self.gates() };
        let outcome = target::fit(&FitView {
            chosen: site.chosen(),
            kind: grant.kind,
            current: grant.revision == self.wanted(site),
            marked: carries(grant, for_update),
            marked_for_removal: carries(grant, for_removal),
            detaches: for_update != NO_MARKS,
            phase: site.phase(),
            updated: site.is_updated(),
            empty: site.deployment.is_some_and(|deployment| deployment.replicas == 0),
            in_place: false,
            need: self.need(site),
            given_up: self.gave_up(site, grant),
            stops: gates,
        });
        match outcome {
            Fit::Fits => Ok(()),
            Fit::Take(kind @ (GrantReason::Remove | GrantReason::Drain)) => Err(self.replace(site, grant, kind, 0, for_removal)),
            Fit::Take(kind) => Err(self.replace(site, grant, kind, self.wanted(site), for_update)),
            Fit::TurnBack => Err(self.turn_back(site, grant)),
        }
    }

    fn renew(&self, site: &Site, grant: &Grant) -> Grant {
        if self.gates().stops(grant.kind) && !site.is_updated() {
            return Grant { refused: grant.refused, freed: grant.freed, ..self.turn_back(site, grant) };
        }
        Grant { node_uid: site.node_uid(), ..*grant }
    }

    /// A person asks to try the node again.
    fn again(&self, site: &Site, grant: &Grant) -> Grant {
        match self.need(site) {
            None => self.turn_back(site, grant),
            Some(_) => Grant { refused: None, node_uid: site.node_uid(), ..*grant },
        }
    }

    /// A person has named the grant, to have its slot back.
    fn is_to_be_freed(&self, site: &Site, grant: &Grant) -> bool {
        let named = site.node.map_or(0, |node| node.to_free);
        let meant = named == grant.id || named > 0 && self.rules.breaks(Mutation::FreedIdIgnored);
        meant && !grant.freed && !matches!(grant.kind, GrantReason::Remove | GrantReason::Drain)
    }

    fn is_complete(&self, site: &Site, grant: &Grant) -> bool {
        let Some(deployment) = site.deployment else { return false };
        let settled = site.settled(self.rules);
        match grant.kind {
            GrantReason::Remove => deployment.replicas == 0 && settled,
            GrantReason::Drain => self.rules.breaks(Mutation::DrainClosed) && deployment.replicas == 0 && settled,
            GrantReason::Abort => settled,
            _ if grant.revision == self.wanted(site) => {
                deployment.revision == grant.revision && deployment.replicas == self.resource.replicas && settled
            }
            _ => deployment.revision == grant.revision && settled,
        }
    }

    fn advance(&self, site: &Site, grant: &Grant) -> Option<Intent> {
        if self.is_to_be_freed(site, grant) {
            return Some(match self.rules.mutation {
                Some(Mutation::FreedWithoutId) => Intent::Step(Step::Release { live: false }, *grant),
                _ => Intent::Retarget(Grant { freed: true, ..self.turn_back(site, grant) }),
            });
        }
        let grace = self.grace(site, grant);
        let timed_out = grace == Grace::TimedOut && !matches!(grant.kind, GrantReason::Abort | GrantReason::Remove | GrantReason::Drain);
        if timed_out && self.rules.detacher == Some(OnDetachTimeout::Abort) {
            let back = self.turn_back(site, grant);
            return Some(Intent::Retarget(Grant { refused: Some(self.wanted(site)), ..back }));
        }
        let rolled_back = site.is_updated() && grant.kind == GrantReason::Update && grant.revision != self.resource.revision;
        if rolled_back && self.rules.breaks(Mutation::RollbackGivesSlotUp) {
            return Some(Intent::Step(Step::Release { live: false }, *grant));
        }
        let fit = self.fit(site, grant);
        let view = self.step_view(site, grant, fit.is_ok(), grace == Grace::Over);
        let next = self.rules.bend(&view, step(&self.rules.blind(view)));
        if self.rules.mutation.is_none() {
            cover(grant.kind, next);
        }
        match next {
            Step::Release { .. } if grant.refused.is_some() && self.gave_up(site, grant) && self.stays(site) => None,
            Step::Retarget => Some(Intent::Retarget(fit.err().unwrap_or_else(|| self.renew(site, grant)))),
            Step::AwaitDeployment | Step::AwaitGrace | Step::AwaitComplete | Step::AwaitSoak => None,
            next => Some(Intent::Step(next, *grant)),
        }
    }

    /// It needs something, and does not leave.
    fn stays(&self, site: &Site) -> bool {
        self.need(site).is_some_and(|kind| !matches!(kind, GrantReason::Remove | GrantReason::Drain))
    }

    fn step_view(&self, site: &Site, grant: &Grant, wanted: bool, graced: bool) -> StepView {
        StepView {
            grant: GrantView { id: grant.id.into(), kind: grant.kind, deployment_mark: grant.deployment_mark, node_mark: grant.key > 0 },
            token: site.deployment.map(|deployment| TokenView { id: deployment.id.into(), phase: deployment.phase }),
            entry: site.entry().map(|entry| EntryView {
                id: entry.id.into(),
                phase: entry.phase,
                other_key: grant.key > 0 && entry.key != grant.key,
            }),
            node: match site.node {
                None => NodeView::Absent,
                Some(Node { uid, .. }) if uid == grant.node_uid || self.rules.breaks(Mutation::NodeUidIgnored) => NodeView::Same,
                Some(_) => NodeView::Replaced,
            },
            wanted,
            complete: grant.freed || self.is_complete(site, grant),
            graced,
            pauses: false,
            replaced: false,
            soaked: true,
            pods_left: site.pods.count > 0,
            member: site.member() != Member::Absent,
        }
    }

    /// A grant for a node that has none.
    fn admit(&self, site: &Site) -> Option<Intent> {
        let kind = self.need(site)?;
        let gates = self.gates();
        let marks = if matches!(kind, GrantReason::Remove | GrantReason::Drain) { self.removal_marks(site) } else { self.resource.marks };
        let free = kind == GrantReason::Drain || kind == GrantReason::Remove && marks == NO_MARKS;
        if !free && (gates.stops(kind) || gates.halted || self.is_held(site, kind) || !self.has_room(site)) {
            return None;
        }
        Some(Intent::Admit(Grant {
            id: 0,
            kind,
            revision: if matches!(kind, GrantReason::Remove | GrantReason::Drain) { 0 } else { self.wanted(site) },
            deployment_mark: marks.deployment,
            key: marks.key,
            node_uid: site.node_uid(),
            refused: None,
            above: kind == GrantReason::Drain,
            freed: false,
        }))
    }

    /// The node itself is held back.
    fn is_held(&self, site: &Site, kind: GrantReason) -> bool {
        let failed = site.failed.is_some() && !self.rules.breaks(Mutation::FailedBeforeIgnored);
        let skipped = site.node.is_some_and(|node| node.skipped) && !self.rules.breaks(Mutation::SkipIgnored);
        kind == GrantReason::Update && (failed || self.is_out_of_turn(site)) || kind != GrantReason::Remove && skipped
    }

    /// The budgets of the fleet and of the node's domain have a slot.
    fn has_room(&self, site: &Site) -> bool {
        let down = |site: &Site| site.chosen() && self.unavailable(site);
        let slot = |site: &Site| site.grant.is_some_and(|grant| !grant.is_free());
        let counted =
            |site: &Site| slot(site) && !(self.rules.breaks(Mutation::DrainsNotCounted) && site.grant.is_some_and(|grant| grant.above));
        let has_slot = |among: &dyn Fn(&Site) -> bool, budget: u8| {
            let among = || self.sites.iter().filter(|site| among(site));
            let unavailable = match self.rules.mutation {
                Some(Mutation::UnavailableNotCounted) => 0,
                _ => among().filter(|site| !slot(site) && down(site)).count(),
            };
            target::has_slot(down(site), among().filter(|site| counted(site)).count(), unavailable, budget.into())
        };
        if self.rules.breaks(Mutation::UnavailableBypass) && down(site) {
            return true;
        }
        // Nodes that are drained are taken away anyway.
        let begun = |other: &&&Site| slot(other) && other.grant.is_some_and(|grant| grant.kind != GrantReason::Drain);
        let elsewhere = self.sites.iter().filter(begun).any(|other| other.domain() != site.domain());
        if self.rules.domains == Domains::InTurn && elsewhere && !self.rules.breaks(Mutation::DomainsTogether) {
            return false;
        }
        let in_domains = self.rules.domains == Domains::Budgets && !self.rules.breaks(Mutation::DomainBudgetIgnored);
        has_slot(&|_| true, self.resource.budget) && (!in_domains || has_slot(&|other| other.domain() == site.domain(), 1))
    }

    /// What takes no grant.
    fn change_directly(&self, site: &Site) -> Option<Intent> {
        if !site.chosen() && site.pods.owner != Owner::Orphan {
            return None;
        }
        let Some(deployment) = site.deployment else { return self.create(site) };
        let member = if deployment.phase == Phase::New { Member::Joining } else { Member::Serving };
        if site.node.is_some() && site.member() != Member::Serving && site.member() != member {
            return Some(Intent::Label(member));
        }
        if site.grant.is_some() && deployment.phase != Phase::New {
            return None;
        }
        let new = deployment.phase == Phase::New;
        let behind = deployment.revision != self.wanted(site) || deployment.drifted;
        let scale = site.grant.is_none() && deployment.replicas != self.resource.replicas;
        if new && (behind || scale) || scale && deployment.replicas == 0 && !behind {
            return Some(Intent::Direct);
        }
        let ready = new && site.grant.is_none() && site.settled(self.rules) && site.chosen();
        match site.member() {
            _ if !ready => None,
            Member::Serving => Some(Intent::FirstClose),
            _ => Some(Intent::Label(Member::Serving)),
        }
    }

    fn create(&self, site: &Site) -> Option<Intent> {
        if site.chosen() && site.member() == Member::Absent {
            return Some(Intent::Label(Member::Joining));
        }
        match site.pods.owner {
            Owner::Orphan if self.rules.breaks(Mutation::NewAroundOldPods) => Some(Intent::Create(Phase::New)),
            Owner::Orphan => Some(Intent::Create(Phase::Closed)),
            // Their Deployment is there and does not show yet.
            Owner::Deployment | Owner::Ending if site.pods.count > 0 || site.draining() => None,
            Owner::Deployment | Owner::Ending => Some(Intent::Create(Phase::New)),
        }
    }

    /// Which fences a rebuilding still needs on this node: Deployment, Node.
    pub fn fences(&self, i: usize) -> (bool, bool) {
        let (site, fence) = (self.sites[i], self.resource.rebuilding);
        let token =
            site.deployment.is_some_and(|deployment| matches!(deployment.phase, Phase::New | Phase::Closed) && deployment.id < fence);
        let marked = site.entry().is_some() || self.resource.marks.key > 0 && site.chosen();
        let entry = site.node.is_some() && marked && !site.detached() && site.entry().is_none_or(|entry| entry.id < fence);
        (token && !self.rules.breaks(Mutation::DeploymentsNotFenced), entry && !self.rules.breaks(Mutation::NodesNotFenced))
    }

    /// The grant that a node which holds gets in the rebuilt ledger; the id is set by the writer.
    pub fn rebuilt(&self, i: usize) -> Option<Grant> {
        let site = self.sites[i];
        let holding = matches!(site.phase(), Some(Phase::Claimed | Phase::Updating | Phase::Degrading));
        if !holding && !site.detached() {
            return None;
        }
        let kind = self.need(site).unwrap_or(GrantReason::Repair);
        let entry = site.entry().filter(|entry| entry.phase == EntryPhase::Detached);
        Some(Grant {
            id: 0,
            kind,
            revision: if matches!(kind, GrantReason::Remove | GrantReason::Drain) { 0 } else { self.wanted(site) },
            deployment_mark: self.resource.marks.deployment || matches!(site.phase(), Some(Phase::Claimed | Phase::Updating)),
            key: entry.map_or(self.resource.marks.key, |entry| entry.key),
            node_uid: site.node_uid(),
            refused: None,
            above: kind == GrantReason::Drain,
            freed: false,
        })
    }
}
