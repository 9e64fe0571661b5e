//! Clocks that count *watched* seconds: those for which this process looked. What passes while no operator is there counts for nothing,
//! and no step of a clock shortens or lengthens anything. The ledger keeps what was counted, so that short lives of operators add up.

use crate::{
    facts::readiness::{has_ready_pods, is_ready},
    memory::{Clock, Clocks, RolloutClocks},
    node::ManagedNode,
    protocol::timing::{TAINT_WITHIN, after},
    snapshot::Snapshot,
    spec::{DEFAULT_GRACE, ResolvedSpec},
};
use crds::{
    UnixSeconds,
    holders::EntryPhase,
    ledger::{Grant, Ledger, RolloutState, Wait, WaitFor},
    token::{Phase, Token},
};
use std::collections::BTreeSet;

/// The most seconds that lie between two looks for them to be counted.
pub const LONGEST_LOOK: i64 = 30;
/// Seconds after which to look again while a clock runs.
const LOOK_EVERY: i64 = 10;
/// Seconds by which the ledger may be behind what was counted, while nothing else is to be written.
const BEHIND: i64 = 60;
/// The same for a process that may be one of many that live shortly: one that has not looked for [`YOUNG`] seconds.
const BEHIND_YOUNG: i64 = 5;
/// Age up to which a process may be short-lived, in seconds.
const YOUNG: i64 = 300;

/// Longer than this nothing waits: what is counted beyond would be news for nobody.
fn longest(settings: Option<&ResolvedSpec>, what: WaitFor) -> i64 {
    let Some(settings) = settings else { return after(DEFAULT_GRACE) };
    match what {
        WaitFor::Taint => TAINT_WITHIN,
        WaitFor::DeploymentMark => after(settings.deployment_grace),
        WaitFor::NodeMark => after(settings.node_grace).max(settings.detach_timeout),
        WaitFor::Pods => settings.rollout.node_deadline,
        WaitFor::Attached => after(settings.attach_soak).max(settings.detach_timeout),
    }
}

impl RolloutClocks {
    fn is_of(&self, rollout: &RolloutState) -> bool {
        (&self.revision, self.since, self.steps_done) == (&rollout.revision, rollout.since, rollout.steps_done)
    }
}

/// Seconds since the last look that count.
pub(crate) fn watched(snapshot: &Snapshot) -> i64 {
    snapshot.watched.clamp(0, LONGEST_LOOK)
}

/// What a grant waits for, with the time that is stored with it.
fn waits<'s>(snapshot: &'s Snapshot, node: &str, grant: &Grant) -> impl Iterator<Item = (WaitFor, UnixSeconds)> + use<'s> {
    let uid8 = snapshot.resource.uid8();
    let token = snapshot.deployments.get(node).and_then(|deployment| deployment.readable_token());
    let ours = token.as_ref().filter(|token| token.id == grant.id);
    let in_one_of = |phases: &[Phase], token: Option<&Token>| token.filter(|token| phases.contains(&token.phase)).map(|token| token.since);
    let marked =
        in_one_of(&[Phase::Claimed, Phase::InPlace, Phase::Updating], token.as_ref()).map(|since| (WaitFor::DeploymentMark, since));
    let known = |since: &UnixSeconds| grant.waited.iter().any(|wait| (wait.what, wait.since) == (WaitFor::Pods, *since));
    // A node that tries again to have all its pods is on its way back to this clock.
    let kept = || in_one_of(&[Phase::Claimed, Phase::Updating, Phase::Degrading], token.as_ref()).filter(known);
    let pods = in_one_of(&[Phase::InPlace, Phase::Updating, Phase::Degrading], ours).or_else(kept).map(|since| (WaitFor::Pods, since));
    let attached = in_one_of(&[Phase::Closed], ours).map(|since| (WaitFor::Attached, since));
    let holders = snapshot.nodes.get(node).and_then(|node| node.holders().ok()).unwrap_or_default();
    let entry = holders.get(uid8).filter(|entry| entry.phase == EntryPhase::Detached);
    let entry = entry.map(|entry| (WaitFor::NodeMark, entry.time));
    let taint = (WaitFor::Taint, grant.granted_at);
    [Some(taint), marked, entry, pods, attached].into_iter().flatten()
}

/// The seconds that a grant has waited for something, as far as it is known.
pub(crate) fn waited(grant: &Grant, what: WaitFor, since: UnixSeconds) -> i64 {
    grant.waited.iter().find(|wait| (wait.what, wait.since) == (what, since)).map_or(0, |wait| wait.seconds.max(0))
}

/// What a node's deadline does not count: time in which nobody lets the node go on, or nobody says whether it does.
pub(crate) fn stands_still(snapshot: &Snapshot, managed: &ManagedNode<'_>) -> bool {
    let ours = |key: &str| managed.grant.is_some_and(|grant| grant.marks.deployment_keys.iter().any(|mark| mark == key));
    snapshot.resource.spec.paused
        || !managed.node.is_some_and(|node| node.ready)
        || managed.is_skipped()
        || managed.taken_out().is_some_and(|key| !ours(key))
        || is_behind(managed)
}

/// The Deployment's controller has not seen what was written, or what has become of it.
pub(crate) fn is_behind(managed: &ManagedNode<'_>) -> bool {
    managed.deployment.is_some_and(|deployment| {
        let unseen = deployment.status.observed_generation < deployment.generation;
        unseen || has_ready_pods(deployment, managed.pods) && !is_ready(deployment, managed.pods)
    })
}

impl Clocks {
    /// The ledger as it was read, with all seconds up to now.
    pub(crate) fn look(&self, snapshot: &Snapshot, settings: Option<&ResolvedSpec>) -> (Self, Ledger) {
        let watched = watched(snapshot);
        let on = |clock: Clock, most: i64| clock.seconds.saturating_add(if clock.runs { watched } else { 0 }).min(most.max(clock.seconds));
        let mut ledger = snapshot.resource.ledger().cloned().unwrap_or_default();
        let mut next = Self { age: self.age.saturating_add(watched), ..Self::default() };
        for (node, grant) in &mut ledger.grants {
            let waited = waits(snapshot, node, grant).map(|(what, since)| {
                let key = (node.clone(), what, since);
                let stored = waited(grant, what, since);
                // A mark that was written in an earlier second is seen in this one at the latest: what is cut off of both adds up to
                // less than the second by which every period is longer.
                let first = i64::from(since < snapshot.now && what != WaitFor::Pods);
                let most = longest(settings, what);
                let known = self.waits.get(&key).copied();
                let seconds = known.map_or(first, |clock| on(clock, most)).max(stored);
                next.waits.insert(key, Clock { seconds, runs: what != WaitFor::Pods && seconds < most });
                Wait { what, since, seconds }
            });
            grant.waited = waited.collect();
        }
        if let Some(rollout) = ledger.rollout_state.as_mut().filter(|rollout| self.rollout_state.is_of(rollout)) {
            let most = settings.map_or(0, |settings| after(settings.rollout.progress_deadline));
            rollout.idle = on(Clock { seconds: self.rollout_state.idle, runs: self.rollout_state.runs }, most);
            rollout.proving = on(Clock { seconds: self.rollout_state.proving, runs: self.rollout_state.proves }, most);
            rollout.spent = self.rollout_state.spent.saturating_add(rollout.idle - self.rollout_state.idle);
            let step = settings.and_then(|settings| settings.rollout.steps.get(rollout.steps_done as usize));
            let most = step.map_or(0, |step| step.soak);
            rollout.soaked = self.rollout_state.soaked.map(|seconds| on(Clock { seconds, runs: true }, most));
        }
        (next, ledger)
    }

    /// The clocks of these nodes' deadlines run until the next look.
    pub(crate) fn run(&mut self, nodes: &BTreeSet<&str>, settings: &ResolvedSpec) {
        for ((node, what, _), clock) in &mut self.waits {
            clock.runs |= *what == WaitFor::Pods && clock.seconds < longest(Some(settings), *what) && nodes.contains(node.as_str());
        }
    }

    /// Those of the rollout, as far as it has come; `runs` and `proves`: until the next look, too.
    pub(crate) fn note(&mut self, rollout: &RolloutState, runs: bool, proves: bool, settings: &ResolvedSpec) {
        let &RolloutState { since, steps_done, idle, spent, proving, soaked, .. } = rollout;
        let step = settings.rollout.steps.get(steps_done as usize);
        let soaks = soaked.zip(step).is_some_and(|(soaked, step)| soaked < step.soak);
        let revision = rollout.revision.clone();
        self.rollout_state = RolloutClocks { revision, since, steps_done, idle, spent, proving, soaked, runs, proves, soaks };
    }

    /// A node is under way that nobody holds up, or waits for the proof, and nothing is shut.
    pub(crate) fn is_running(&self) -> bool {
        self.rollout_state.runs || self.rollout_state.proves
    }

    /// A clock runs, so that another look is needed soon.
    pub(crate) fn again(&self) -> Option<i64> {
        let counts = self.is_running() || self.rollout_state.soaks || self.waits.values().any(|clock| clock.runs);
        counts.then_some(self.look_every())
    }

    /// Seconds after which to look again while something is counted: a process that lives shortly has to look and to write before it ends.
    pub(crate) fn look_every(&self) -> i64 {
        if self.age < YOUNG { BEHIND_YOUNG } else { LOOK_EVERY }
    }

    /// The ledger is so far behind that it is to be written, although nothing but seconds has changed.
    pub(crate) fn is_far_ahead(&self, before: &Ledger, now: &Ledger) -> bool {
        now.ahead_of(before) >= if self.age < YOUNG { BEHIND_YOUNG } else { BEHIND }
    }
}
