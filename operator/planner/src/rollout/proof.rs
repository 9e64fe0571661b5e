//! When a node that was updated counts as good, and when its revision does: not at the first good moment, but after it has served for a
//! while without a break.
//!
//! A pod *falls* when a container of it restarts, or when it is not ready for more than ten seconds, or when its kubelet evicts it. A node
//! is *suspect* that broke after it was attached with a revision that not all nodes have run: it keeps its slot of the budget until it has
//! served long enough. A revision is *proved* once what runs it has served so. All clocks count *watched* seconds: those for which this
//! process looked, so that neither an absence of the operator nor a step of the clock changes a verdict. Machines that are lost are in
//! `losses`.

use crate::{
    facts::{PodFacts, readiness::has_ready_pods},
    memory::{Boot, PodSight, Sight, Sights},
    node::{ManagedNode, clocks},
    objects::revisions::Targets,
    reason::{EVICTED, FALLS, FALLS_AFTER, LOST, RESTARTED, UNREADY, is_crash},
    rollout::{
        losses::{Company, JUDGED_AFTER, is_announced},
        periods::Periods,
    },
    snapshot::Snapshot,
    spec::ResolvedSpec,
};
use crds::{
    UnixSeconds,
    ledger::{Grant, GrantReason, Ledger, RolloutState, Suspect},
    token::Phase,
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

/// The longest list of suspects in the ledger.
const LISTED: usize = 100;
/// Of so many nodes that run the revision one may be suspect at any time by chance.
const NOISE: usize = 100;

/// Where a node stands, as far as its revision is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// Neither the node nor its revision is in doubt.
    #[default]
    Plain,
    /// The node runs a revision that is not proved.
    Unproved,
    /// The node broke after it was attached.
    Suspect,
    /// The node fell at least twice after it was attached.
    FellAgain,
}

/// How the proof of the revision stands.
#[derive(Clone, Debug, Default)]
pub struct Proof<'a> {
    standings: BTreeMap<&'a str, Standing>,
    /// Those that broke, whether or not their revision is proved.
    suspects: BTreeSet<&'a str>,
    /// Nodes that run the revision.
    pub running: usize,
    /// The revision needs no proof, or has it.
    pub proved: bool,
}

/// How many of these nodes may be suspect by chance.
pub fn noise(running: usize) -> usize {
    running / NOISE
}

/// The update of the node is over, and nothing takes it out again.
fn is_attached(managed: &ManagedNode<'_>) -> bool {
    let at_work = managed.grant.is_some_and(|grant| managed.token.as_ref().is_none_or(|token| token.id != grant.id));
    managed.phase() == Some(Phase::Closed) && !managed.holds_node() && !at_work
}

/// The grant by which the node gets the revision, as long as it is not attached with it.
fn update_under_way<'a>(managed: &ManagedNode<'a>, settings: &ResolvedSpec) -> Option<&'a Grant> {
    let update = managed.grant.filter(|grant| grant.kind == GrantReason::Update && grant.revision == settings.revision);
    update.filter(|_| !is_attached(managed))
}

/// The pods that its Deployment wants run, and are ready.
fn is_whole(managed: &ManagedNode<'_>) -> bool {
    managed.deployment.is_some_and(|deployment| has_ready_pods(deployment, managed.pods)) && !managed.is_lost()
}

/// A person or a detacher has taken it out, or is about to take it away.
fn is_out_of_use(managed: &ManagedNode<'_>) -> bool {
    managed.is_draining() || managed.is_skipped() || managed.taken_out().is_some()
}

/// Stands for the runs of all containers of these pods.
fn runs_of<'p>(pods: impl Iterator<Item = &'p Arc<PodFacts>>) -> u64 {
    let mut runs: Vec<_> = pods.filter(|pod| !pod.ended && pod.runs != 0).map(|pod| (pod.name.as_str(), pod.runs)).collect();
    runs.sort_unstable();
    let mut hasher = DefaultHasher::new();
    runs.hash(&mut hasher);
    hasher.finish()
}

/// As the ledger says it: clients read no whole numbers of this size.
fn written(runs: u64) -> String {
    format!("{runs:016x}")
}

/// It has begun to serve, and belongs to the resource.
fn has_joined(managed: &ManagedNode<'_>) -> bool {
    managed.chosen && !managed.joins && managed.phase().is_some_and(|phase| phase != Phase::New)
}

/// It runs what another machine of its name has left, and keeps the slot of that.
fn has_what_was_left(managed: &ManagedNode<'_>, settings: &ResolvedSpec) -> bool {
    managed.chosen && managed.joins && managed.is_at(&settings.revision)
}

/// It runs the wanted revision; a node that joins proves and condemns nothing.
fn runs(managed: &ManagedNode<'_>, settings: &ResolvedSpec) -> bool {
    has_joined(managed) && managed.is_at(&settings.revision)
}

/// Half of the nodes that run other revisions, and two at least, are out of service: whatever ails them ails those that were updated, too.
fn is_common_trouble(settings: &ResolvedSpec, managed_nodes: &[ManagedNode<'_>]) -> bool {
    let others =
        managed_nodes.iter().filter(|managed| has_joined(managed) && !managed.is_at(&settings.revision) && managed.grant.is_none());
    // What is out for a reason of its own says nothing of the others.
    let others = others.filter(|managed| !managed.is_lost() && !is_out_of_use(managed));
    let (out, all) = others.fold((0_usize, 0_usize), |(out, all), managed| (out + usize::from(managed.is_unavailable()), all + 1));
    out >= 2 && 2 * out >= all
}

impl Sights {
    /// What is seen now, after `snapshot.watched` seconds.
    #[must_use]
    pub fn look(&self, snapshot: &Snapshot, targets: &Targets, ledger: &Ledger, managed_nodes: &[ManagedNode<'_>]) -> Self {
        let clocks = Periods::of(&targets.effective);
        let watched = clocks::watched(snapshot);
        // Evidence grows old while nobody looks, too.
        let passed = snapshot.watched.max(0);
        let common_trouble = is_common_trouble(&targets.effective, managed_nodes);
        let boots: BTreeMap<_, _> = managed_nodes
            .iter()
            .filter(|_| targets.is_not_current())
            .filter_map(|managed| {
                let boot = Boot { id: managed.node?.boot_id.clone(), in_use: has_joined(managed) && !is_announced(managed) };
                Some((managed.name.to_owned(), boot))
            })
            .collect();
        let lost = self.lost_lately(passed, snapshot, managed_nodes);
        let mut nodes = BTreeMap::new();
        for managed in managed_nodes.iter().filter(|managed| has_joined(managed)) {
            let Some((node, deployment)) = managed.node.zip(managed.deployment) else { continue };
            // What every node has run needs no proof.
            if deployment.revision() == targets.current && !targets.current.is_empty() {
                continue;
            }
            let known = self.nodes.get(managed.name).filter(|sight| sight.node_uid == node.uid && sight.revision == deployment.revision());
            let recorded =
                || ledger.suspects.get(managed.name).filter(|known| known.node_uid == node.uid && known.revision == deployment.revision());
            let fresh = known.is_none();
            let mut sight = known.map_or_else(|| Sight::recorded(snapshot.now, managed, recorded()), |known| known.older_by(passed));
            sight.look(managed, watched, fresh, common_trouble, clocks);
            sight.counted = !common_trouble && !clocks::stands_still(snapshot, managed);
            sight.since = if sight.suspect { if sight.since == 0 { snapshot.now } else { sight.since } } else { 0 };
            nodes.insert(managed.name.to_owned(), sight);
        }
        let slots = targets.effective.budget.of(managed_nodes.iter().filter(|managed| managed.chosen).count());
        let company = Company::of(&lost, &boots, slots, managed_nodes);
        for (node, sight) in &mut nodes {
            sight.judge_loss(node, &company);
        }
        let (gone, excused) = self.that_went(snapshot, targets, ledger, |node, since| {
            !common_trouble && company.is_none(node, since.map_or(0, |since| since.saturating_add(passed)))
        });
        let running = managed_nodes.iter().filter(|managed| targets.is_not_current() && runs(managed, &targets.effective));
        let runs = runs_of(running.flat_map(|managed| managed.pods));
        let revision = targets.effective.revision.clone();
        let mut next = Self { nodes, revision, common_trouble, lost, boots, gone, excused, runs, ..Self::default() };
        let counted =
            || targets.rollout_state(ledger).filter(|rollout| rollout.runs == written(next.runs)).map_or(0, |rollout| rollout.proof);
        let before = if self.revision == next.revision { self.proof } else { counted() };
        let since = if self.revision == next.revision && self.proving { watched } else { 0 };
        next.proving = next.goes_on(targets, ledger, managed_nodes);
        next.proof = if next.proving { before.saturating_add(since) } else { 0 };
        next
    }

    /// Something that runs the revision serves, no update of it is under way, and no more nodes than by chance are out or suspect. Nodes
    /// that were out when their turn came do not stand in its way: in a large fleet some pod breaks every few seconds. Nodes on which
    /// it has failed do not either, as long as they are bad: how many of them may be is what `maxFailedNodes` says.
    fn goes_on(&self, targets: &Targets, ledger: &Ledger, managed_nodes: &[ManagedNode<'_>]) -> bool {
        let settings = &targets.effective;
        let rollout = targets.rollout_state(ledger);
        let failed = |managed: &ManagedNode<'_>| rollout.is_some_and(|rollout| rollout.failed.contains_key(managed.name));
        let was_out = |managed: &ManagedNode<'_>| update_under_way(managed, settings).is_some_and(|grant| grant.out_before);
        let (mut serving, mut bad, mut running) = (0_usize, 0_usize, 0_usize);
        let counts =
            |managed: &&ManagedNode<'_>| runs(managed, settings) && !was_out(managed) && !is_out_of_use(managed) && !self.is_dead(managed);
        for managed in managed_nodes.iter().filter(counts) {
            let suspect = self.nodes.get(managed.name).is_some_and(|sight| sight.suspect || sight.broken);
            let is_bad = suspect || managed.is_unavailable();
            if is_bad && failed(managed) {
                continue;
            }
            running += 1;
            if is_bad {
                bad += 1;
            } else if is_attached(managed) && !managed.is_empty() {
                serving += 1;
            }
        }
        let waited_for = managed_nodes.iter().filter(|managed| !failed(managed) && !was_out(managed) && !self.is_dead(managed));
        let mut under_way = waited_for.filter_map(|managed| update_under_way(managed, settings));
        serving > 0 && bad <= noise(running) && under_way.next().is_none()
    }

    /// How the proof stands for these nodes.
    pub fn proof<'c>(&self, targets: &Targets, rollout: &RolloutState, managed_nodes: &[ManagedNode<'c>]) -> Proof<'c> {
        let settings = &targets.effective;
        let clocks = Periods::of(settings);
        let proved = !targets.is_not_current() || rollout.proved || self.proof >= clocks.proven_after;
        let has_it = |managed: &ManagedNode<'_>| runs(managed, settings) || has_what_was_left(managed, settings);
        let standing = |managed: &ManagedNode<'_>| match self.nodes.get(managed.name) {
            // Without pods nothing can break, and nothing is to wait for what could not end.
            _ if settings.is_without_pods() => Standing::Plain,
            // What a watch that lags shows of the node may be of long ago; the ledger is not.
            _ if !proved && (has_it(managed) || rollout.reached.contains_key(managed.name)) => Standing::Unproved,
            Some(_) if self.is_dead(managed) => Standing::Plain,
            Some(sight) if sight.suspect && sight.falls() > 1 => Standing::FellAgain,
            Some(sight) if sight.suspect => Standing::Suspect,
            Some(_) | None => Standing::Plain,
        };
        let standings = managed_nodes
            .iter()
            .map(|managed| (managed.name, standing(managed)))
            .filter(|(_, standing)| *standing != Standing::Plain)
            .collect();
        let is_suspect =
            |managed: &ManagedNode<'_>| self.suspect(managed.name).is_some() && !self.is_dead(managed) && !settings.is_without_pods();
        let suspects = managed_nodes.iter().filter(|managed| is_suspect(managed)).map(|managed| managed.name).collect();
        Proof { standings, suspects, running: managed_nodes.iter().filter(|managed| runs(managed, settings)).count(), proved }
    }

    /// Why the revision has failed on a node, when it fell too often or was out for too long in all.
    pub fn failure(&self, settings: &ResolvedSpec, node: &str) -> Option<RevisionFailure> {
        let sight = self.nodes.get(node)?;
        let most = settings.rollout.max_flaps;
        if most > 0 && sight.falls() >= most {
            return Some(RevisionFailure::Fell(sight.last));
        }
        // One outage is chance, and so may be a second one. If it goes on so, the revision may be why.
        if most > 0 && sight.outages >= most {
            return Some(RevisionFailure::Fell(LOST));
        }
        (sight.attached && sight.out >= settings.rollout.node_deadline).then_some(RevisionFailure::Out)
    }

    /// What failed on a node is not forgiven yet: it has not served long enough since.
    pub fn condemns(&self, settings: &ResolvedSpec, node: &str) -> bool {
        let clocks = Periods::of(settings);
        self.nodes.get(node).is_some_and(|sight| sight.broken || sight.has_history() || sight.unbroken < clocks.proven_after)
    }

    /// A person lets pass what was seen of a node.
    pub fn forgive(&mut self, node: &str) {
        if let Some(sight) = self.nodes.get_mut(node) {
            sight.forget();
            (sight.suspect, sight.unbroken) = (sight.broken, 0);
        }
    }

    /// What is known of a node that is suspect.
    pub fn suspect(&self, node: &str) -> Option<Suspect> {
        self.nodes.get(node).filter(|sight| sight.suspect).map(Sight::record)
    }

    /// It serves now, so that time speaks for it.
    pub fn serves(&self, node: &str) -> bool {
        self.nodes.get(node).is_some_and(|sight| sight.serves)
    }

    /// Names of the nodes that are suspect.
    pub fn suspects(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().filter(|(_, sight)| sight.suspect).map(|(node, _)| node.as_str())
    }

    /// What runs the newest revision has served without a break for long enough, and no node fell twice.
    pub fn may_become_current(&self, settings: &ResolvedSpec) -> bool {
        self.revision == settings.revision && self.proof >= settings.rollout.proven_after && !self.has_fallen()
    }

    /// Some pod fell twice on one of them.
    pub fn has_fallen(&self) -> bool {
        self.nodes.values().any(|sight| sight.suspect && sight.falls() > 1)
    }

    /// A step waits for a health port that is silent; for how long it has been so, in seconds, if it was at the last look, too.
    pub(crate) fn note_silence(&mut self, before: &Self, node: &str, watched: i64) -> i64 {
        let silent = before.silent.get(node).map_or(0, |silent| silent.saturating_add(watched.clamp(0, clocks::LONGEST_LOOK)));
        self.silent.insert(node.to_owned(), silent);
        silent
    }

    /// Nothing falls and nothing fails: nodes that were not updated are out of service as well.
    pub(crate) fn is_excused(&self) -> bool {
        self.common_trouble
    }

    /// The clock of the revision's proof ran at the last look.
    pub fn is_proving(&self) -> bool {
        self.proving
    }

    /// When to look again, in seconds, while a clock runs; `every`: at the latest.
    pub fn again(&self, settings: &ResolvedSpec, every: i64) -> Option<i64> {
        let clocks = Periods::of(settings);
        let proof = (self.proving && clocks.suspects()).then_some((self.proof, clocks.proven_after));
        let of_node = |sight: &Sight| {
            Some(match sight.broken {
                _ if sight.loss.is_some() => (0, JUDGED_AFTER),
                true => (sight.out, clocks.node_deadline),
                false if !sight.serves => return None,
                false if sight.suspect => (sight.unbroken, clocks.good_after(sight.falls(), sight.outages)),
                false if sight.has_history() => (sight.unbroken, clocks.forgotten_after),
                false => return None,
            })
        };
        let running = proof.into_iter().chain(self.nodes.values().filter_map(of_node)).filter(|(seconds, of)| seconds < of);
        running.map(|(seconds, of)| of.saturating_sub(seconds).clamp(1, every)).min()
    }

    /// As the ledger says it.
    pub fn record(&self) -> BTreeMap<String, Suspect> {
        let mut noted: Vec<_> = self.nodes.iter().filter(|(_, sight)| sight.suspect || sight.has_history() || sight.out > 0).collect();
        // Where there are too many, those that are of no consequence now are left out.
        noted.sort_by_key(|(_, sight)| Reverse((sight.suspect, sight.falls(), sight.outages)));
        noted.into_iter().take(LISTED).map(|(node, sight)| (node.clone(), sight.record())).collect()
    }

    /// More nodes are suspect than the ledger has room for.
    pub fn overflows(&self) -> bool {
        self.nodes.values().filter(|sight| sight.suspect).count() > LISTED
    }

    /// Seconds of the proof, as the ledger says them, and what stands for the runs of containers for which they were counted.
    pub fn recorded_proof(&self, settings: &ResolvedSpec) -> (i64, String) {
        let proof = self.proof.min(settings.rollout.proven_after);
        (proof, if proof == 0 { String::new() } else { written(self.runs) })
    }

    /// What fell on the node with this revision is not forgotten yet.
    pub fn remembers(&self, node_uid: &str, revision: &str) -> bool {
        self.nodes.values().any(|sight| sight.node_uid == node_uid && sight.revision == revision && sight.falls() > 0)
    }
}

/// Why a revision has failed on a node after it was attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevisionFailure {
    /// A pod fell too often; what the last fall was.
    Fell(&'static str),
    /// It was out of service for too long in all.
    Out,
}

impl Sight {
    /// A node that this process has not looked at, as the ledger knows it. Its Deployment says when it was attached: a node does not become
    /// young by a new operator, nor does a clock that was set back make it older.
    fn recorded(now: UnixSeconds, managed: &ManagedNode<'_>, known: Option<&Suspect>) -> Self {
        let revision = managed.deployment.map(|deployment| deployment.revision().to_owned()).unwrap_or_default();
        let node_uid = managed.node.map(|node| node.uid.clone()).unwrap_or_default();
        let served = managed.token.as_ref().map_or(0, |token| now.saturating_sub(token.since).max(0));
        let Some(known) = known else { return Self { node_uid, revision, served, ..Self::default() } };
        let last = FALLS.into_iter().find(|word| *word == known.last).unwrap_or_default();
        // What ran anew while nobody watched has broken, for whatever reason.
        let unbroken = if known.runs == written(runs_of(managed.pods.iter())) { known.unbroken.max(0) } else { 0 };
        let (recorded, outages, out, since) = (known.falls, known.outages, known.out.max(0), known.since.max(0));
        Self { node_uid, revision, served, suspect: true, since, recorded, outages, unbroken, out, last, ..Self::default() }
    }

    fn record(&self) -> Suspect {
        Suspect {
            node_uid: self.node_uid.clone(),
            revision: self.revision.clone(),
            falls: self.falls(),
            outages: self.outages,
            last: self.last.to_owned(),
            since: self.since,
            unbroken: self.unbroken,
            runs: written(self.runs),
            out: self.out,
        }
    }

    /// Falls of the pod that fell most often; those of a pod that went are its successor's.
    fn falls(&self) -> u32 {
        let worst = self.pods.iter().map(|pod| pod.falls).chain(self.left.iter().copied()).max().unwrap_or(0);
        self.recorded.saturating_add(worst).saturating_add(self.evictions).saturating_add(self.losses)
    }

    /// It fell, or was lost with others, and has not served long enough since for that to be forgotten.
    fn has_history(&self) -> bool {
        self.falls() > 0 || self.outages > 0
    }

    fn forget(&mut self) {
        (self.recorded, self.evictions, self.losses, self.loss, self.out, self.last) = (0, 0, 0, None, 0, "");
        self.outages = 0;
        self.left.clear();
        self.pods.iter_mut().for_each(|pod| pod.falls = 0);
    }

    /// The same when so many seconds have passed, however many of them count.
    fn older_by(&self, passed: i64) -> Self {
        let loss = self.loss.map(|(since, times)| (since.saturating_add(passed), times));
        Self { served: self.served.saturating_add(passed), loss, ..self.clone() }
    }

    /// `excused`: what breaks now breaks for a reason that is none of the revision.
    fn look(&mut self, managed: &ManagedNode<'_>, watched: i64, fresh: bool, excused: bool, clocks: Periods) {
        let boot_id = managed.node.map(|node| node.boot_id.clone()).unwrap_or_default();
        let rebooted = !fresh && self.boot_id != boot_id;
        let went_on = !fresh && self.attached;
        let (was_broken, was_announced) = (self.broken, self.announced);
        self.boot_id = boot_id;
        self.attached = is_attached(managed);
        self.broken = !is_whole(managed);
        if !self.attached || !(went_on || fresh) {
            self.served = 0;
        }
        self.runs = runs_of(managed.pods.iter());
        self.announced = is_announced(managed);
        if managed.is_lost() || rebooted {
            // Who sees a cordon and a loss at once cannot tell which came first; and a cordon may end with the loss.
            let news = went_on && self.is_recent(clocks) && !excused && !was_announced && !self.announced;
            if news && !self.lost {
                let (since, times) = self.loss.unwrap_or((0, 0));
                self.loss = Some((since, times.saturating_add(1)));
            }
            (self.lost, self.back) = (true, 0);
            // Nobody saw why it was lost: that its Node goes says nothing either.
            self.excused |= fresh && managed.is_lost();
        } else {
            self.back = self.back.saturating_add(watched);
            // Its kubelet begins the containers anew, one after the other, and says so a moment after it is back itself.
            self.lost &= self.broken || self.back < FALLS_AFTER;
            self.excused &= self.lost;
        }
        if went_on && was_broken && self.counted {
            self.out = self.out.saturating_add(watched).min(clocks.node_deadline.max(self.out));
        }
        let judged = went_on && self.attached && clocks.suspects();
        let broke = self.look_at_pods(managed, watched, judged, self.lost || excused);
        // Without pods it does not serve, nor while somebody else keeps it out of service.
        self.serves = self.attached && !self.broken && !managed.is_empty() && managed.taken_out().is_none();
        if !self.attached {
            self.unbroken = 0;
            return;
        }
        if broke || self.broken {
            self.unbroken = 0;
            // What is not whole at the moment of its attach has not broken since.
            self.suspect |= clocks.suspects() && (went_on || fresh || self.suspect);
        } else if went_on && !was_broken {
            self.unbroken = self.unbroken.saturating_add(if self.serves { watched } else { 0 });
        } else if !fresh {
            self.unbroken = 0;
        }
        if !self.broken && self.unbroken >= clocks.forgotten_after {
            self.forget();
            self.suspect = false;
        } else if self.unbroken >= clocks.good_after(self.falls(), self.outages) {
            self.suspect = false;
            if self.falls() == 0 && !self.broken {
                self.out = 0;
            }
        }
    }

    /// Whether a container restarted or a pod went; falls are counted only while the node is `judged`, and not where something else is why.
    fn look_at_pods(&mut self, managed: &ManagedNode<'_>, watched: i64, judged: bool, excused: bool) -> bool {
        let before = std::mem::take(&mut self.pods);
        let mut broke = before.iter().any(|pod| !pod.ended && !managed.pods.iter().any(|now| now.name == pod.name));
        // Of falls at the same look the last by name is named, in whatever order pods are seen.
        let mut pods: Vec<_> = managed.pods.iter().collect();
        pods.sort_by_key(|pod| &pod.name);
        let goes = |name: &String| pods.iter().find(|pod| pod.name == *name).is_none_or(|pod| pod.terminating);
        self.left.extend(before.iter().filter(|pod| pod.falls > 0 && goes(&pod.name)).map(|pod| pod.falls));
        self.left.sort_unstable();
        self.pods.reserve_exact(pods.len());
        for pod in pods {
            let known = before.iter().find(|known| known.name == pod.name);
            let (mut next, fall) = look_at_pod(known, pod, watched, judged && !excused);
            if pod.terminating {
                next.falls = 0;
            } else if known.is_none() {
                next.falls = self.left.pop().unwrap_or(0);
            }
            broke |= known.is_some_and(|known| ran_anew(known, pod)) || next.ended && known.is_none_or(|known| !known.ended);
            // One that was refused at admission has not filled the disk. A kubelet says so only when the containers have ended, and until
            // then that the pod is not ready, or that it restarts: that is the same fall.
            let was_counted = |known: &PodSight| known.fell || known.restarted.is_some_and(|since| since <= FALLS_AFTER);
            if pod.evicted && known.is_some_and(|known| !known.ended && known.served && !was_counted(known)) && judged && !excused {
                self.evictions = self.evictions.saturating_add(1);
                self.last = EVICTED;
            }
            if let Some(word) = fall {
                self.last = word;
            }
            self.pods.push(next);
        }
        broke
    }
}

/// A container of it was started again; one that has not begun to run was not.
fn ran_anew(known: &PodSight, pod: &PodFacts) -> bool {
    known.runs != 0 && pod.runs != 0 && known.runs != pod.runs
}

fn look_at_pod(known: Option<&PodSight>, pod: &PodFacts, watched: i64, judged: bool) -> (PodSight, Option<&'static str>) {
    // What has run once is compared with its next run, however long that takes to begin.
    let runs = if pod.runs == 0 { known.map_or(0, |known| known.runs) } else { pod.runs };
    let mut next = PodSight { name: pod.name.clone(), runs, ready: pod.ready, served: pod.ready, ended: pod.ended, ..PodSight::default() };
    let Some(known) = known else {
        // What has never been ready has not ceased to be.
        next.excused = true;
        return (next, None);
    };
    (next.falls, next.served) = (known.falls, known.served || pod.ready);
    next.restarted = known.restarted.map(|since| since.saturating_add(watched));
    // Who waits for somebody else's condition, or is on its way out, has not fallen.
    let excused = pod.ended || pod.terminating || pod.unmet.is_some() || !judged;
    if !known.ready {
        (next.unready, next.excused, next.fell) = (known.unready.saturating_add(watched), known.excused, known.fell);
    }
    let mut fall = None;
    let mut again = false;
    if ran_anew(known, pod) {
        if judged && !pod.ended && !pod.terminating {
            fall = Some(RESTARTED);
            // A kubelet that waits before it starts a container anew makes of one fall no two, nor does one that starts all containers of a
            // pod anew, one after the other.
            again = next.fell || next.restarted.is_some_and(|since| since <= FALLS_AFTER);
            if !again {
                next.restarted = Some(0);
            }
        }
        (next.excused, next.fell) = (true, false);
    } else if !known.ready && next.unready > FALLS_AFTER && !next.excused {
        if !excused {
            // Its kubelet waits before it starts a container that ended.
            let crashed = pod.trouble.as_ref().is_some_and(|(reason, _)| is_crash(reason));
            fall = Some(if crashed { RESTARTED } else { UNREADY });
            next.fell = true;
        }
        next.excused = true;
    }
    if pod.ready {
        (next.unready, next.excused, next.fell) = (0, false, false);
    }
    next.falls = next.falls.saturating_add(u32::from(fall.is_some() && !again));
    (next, fall)
}

impl Proof<'_> {
    /// The node is suspect: it may break at any moment.
    pub fn is_suspect(&self, node: &str) -> bool {
        self.suspects.contains(node)
    }

    /// Standing of a node; plain if it is not listed.
    pub fn standing(&self, node: &str) -> Standing {
        self.standings.get(node).copied().unwrap_or_default()
    }
}
