//! What one process remembers of a resource between two passes. Losing it costs time, never safety.

use crate::{
    backoff,
    watch::{Kind, Observer},
};
use crds::{UnixSeconds, status::NodePhase};
use planner::{
    Snapshot,
    memory::{Clocks, Sights},
    plan::Supporting,
    reason::NodeObject,
    snapshot::CheckersRefusal,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// How long a written object is waited for before the watch is believed anyway: the object may have been deleted during
/// a gap of the watch, and then it never shows.
const EXPECTED_WITHIN: Duration = Duration::from_secs(10);
/// How often supporting objects that nobody watches are written again.
const ASSERT_EVERY: Duration = Duration::from_mins(10);
/// How often one that is not to be there is deleted again: a former operator or a backup may have made it anew.
const DELETE_EVERY: Duration = Duration::from_hours(1);

/// How long a write is left alone that was refused for being based on the past, while nothing new of its object is seen:
/// made again at once it would be refused again, however often something else wakes us.
const STALE_FOR: Duration = Duration::from_secs(1);

/// First and longest time before something that was refused is tried again; doubled in between.
const RETRY_REFUSED: (Duration, Duration) = (Duration::from_secs(10), Duration::from_mins(10));

/// A write that the API server refused, and would refuse again.
#[derive(Debug)]
struct Refusal {
    message: String,
    /// Generation of the resource that asked for it.
    generation: i64,
    times: u32,
    until: Instant,
}

impl Refusal {
    /// One more, after a longer pause each time.
    fn after(before: Option<Self>, message: &str, generation: i64) -> Self {
        let times = before.map_or(0, |refusal| refusal.times);
        let until = Instant::now() + backoff::pause(RETRY_REFUSED, times);
        Self { message: message.to_owned(), generation, times: times.saturating_add(1), until }
    }

    /// The write is not to be tried again yet.
    fn is_active(&self, generation: i64) -> bool {
        self.generation == generation && self.until > Instant::now()
    }
}

/// What was asked about the `ServiceAccount` that a resource names for its health checkers.
#[derive(Debug)]
pub struct NamedAccount {
    /// Its name.
    pub name: String,
    /// Rights that it lacks, in words such as `list nodes`.
    pub lacks: Vec<String>,
    /// Until when that is believed.
    pub ask_again: Instant,
}

/// What one process remembers of a resource.
#[derive(Debug, Default)]
pub struct Memory {
    /// UID of the resource that this speaks of.
    pub uid: String,
    /// Ids taken from the ledger and not used.
    pub reserved: Vec<u64>,
    /// What was counted of what the rollout waits for.
    pub clocks: Clocks,
    /// What was seen of nodes whose revision is not proved.
    pub sights: Sights,
    /// When the resource was last looked at, and what time it was by the clock that people set.
    looked_at: Option<(Instant, i64)>,
    /// The rebuilding id for which Deployments and Nodes were listed consistently.
    pub listed_for: Option<u64>,
    /// Names that belong to somebody else.
    pub foreign_names: BTreeSet<String>,
    /// The generation whose template the API server would take.
    pub tried: Option<i64>,
    /// Attempts in a row to try it that the API server did not answer.
    pub untried: u32,
    /// The account that the resource names for its health checkers.
    pub account: Option<NamedAccount>,
    /// What the API server refuses, by object and node.
    refusals: BTreeMap<(NodeObject, String), Refusal>,
    /// That the API server refuses the template.
    template_refusal: Option<Refusal>,
    /// What the API server refuses of what health checkers need, by the object's key.
    checkers_refusals: BTreeMap<String, Refusal>,
    /// Generations that our last full writes gave Deployments.
    pub written_generations: BTreeMap<String, i64>,
    /// When the status was last written.
    pub status_written: Option<Instant>,
    /// The write that the last pass had no time to begin, in a few words.
    pub next: Option<String>,
    /// Phases that nodes are in, for the metric.
    pub phases: BTreeMap<String, (NodePhase, Instant)>,
    /// What writes were based on that were refused for it, by object.
    stale: BTreeMap<String, (String, Instant)>,
    /// Until when supporting objects need no further write.
    asserted: BTreeMap<String, Instant>,
    began: Option<Instant>,
    expected: BTreeMap<Kind, (u64, Instant)>,
}

impl Memory {
    /// Nothing is remembered of this resource.
    pub fn of(uid: &str) -> Self {
        Self { uid: uid.to_owned(), began: Some(Instant::now()), ..Self::default() }
    }

    /// Whole seconds since the last look. They are those of `now`, so that what is left of a period and when it ends agree; where
    /// somebody has set that clock, they are those of one that nobody sets.
    pub fn watched(&mut self, now: UnixSeconds, at: Instant) -> i64 {
        let (before, then) = self.looked_at.replace((at, now)).unwrap_or((at, now));
        let passed = at.saturating_duration_since(before);
        let seconds = now.saturating_sub(then);
        let agree = u64::try_from(seconds).is_ok_and(|seconds| Duration::from_secs(seconds).abs_diff(passed) <= Duration::from_secs(1));
        if agree { seconds } else { i64::try_from(passed.as_secs()).unwrap_or(i64::MAX) }
    }

    /// Forgets what was written to Deployments that are no more. Own writes were seen before.
    pub fn forget_deployments(&mut self, uids: &BTreeSet<&str>) {
        self.written_generations.retain(|uid, _| uids.contains(uid.as_str()));
    }

    /// Forgets refusals that were about nodes which are no more: a quota that refuses for long would add each node that joins meanwhile.
    pub fn forget_refusals(&mut self, is_there: impl Fn(&str) -> bool) {
        self.refusals.retain(|(_, node), _| is_there(node));
    }

    /// Puts what is remembered into a snapshot.
    pub fn complete(&self, snapshot: &mut Snapshot) {
        let rebuilding = snapshot.resource.ledger().and_then(|ledger| ledger.rebuilding);
        snapshot.listed_since_rebuild = rebuilding.is_some() && self.listed_for == rebuilding;
        snapshot.foreign_names.extend(self.foreign_names.iter().cloned());
        snapshot.reserved.clone_from(&self.reserved);
        snapshot.asserted = self.asserted();
        snapshot.known_for = self.began.map_or(0, |began| i64::try_from(began.elapsed().as_secs()).unwrap_or(i64::MAX));
        snapshot.refusals = self.active_refusals(snapshot.resource.generation);
        snapshot.template_refusal = self.template_refusal(snapshot.resource.generation).map(str::to_owned);
        snapshot.checkers_refusals = self.checkers_refusals(snapshot.resource.generation);
        snapshot.written_generations.clone_from(&self.written_generations);
    }

    /// The API server refused a write of this object for a node; `true` when that is news.
    pub fn refuse(&mut self, node: &str, object: NodeObject, message: &str, generation: i64) -> bool {
        self.refusals.retain(|_, refusal| refusal.generation == generation);
        let written = (object, node.to_owned());
        let before = self.refusals.remove(&written);
        let news = before.as_ref().is_none_or(|refusal| refusal.message != message);
        self.refusals.insert(written, Refusal::after(before, message, generation));
        news
    }

    /// The API server refused an object that health checkers need; `true` when that is news.
    pub fn refuse_checkers(&mut self, object: &Supporting, message: &str, generation: i64) -> bool {
        self.checkers_refusals.retain(|_, refusal| refusal.generation == generation);
        let before = self.checkers_refusals.remove(&object.key());
        let news = before.as_ref().is_none_or(|refusal| refusal.message != message);
        self.checkers_refusals.insert(object.key(), Refusal::after(before, message, generation));
        news
    }

    /// The API server took such an object.
    pub fn accept_checkers(&mut self, object: &Supporting) {
        self.checkers_refusals.remove(&object.key());
    }

    /// Those that it refuses to this generation.
    fn checkers_refusals(&self, generation: i64) -> BTreeMap<String, CheckersRefusal> {
        let refused = self.checkers_refusals.iter().filter(|(_, refusal)| refusal.generation == generation);
        let refusal = |(object, refusal): (&String, &Refusal)| {
            let waits = refusal.until.saturating_duration_since(Instant::now()).as_millis().div_ceil(1000);
            let message = format!("{object}: {}", refusal.message);
            (object.clone(), CheckersRefusal { message, waits: i64::try_from(waits).unwrap_or(i64::MAX) })
        };
        refused.map(refusal).collect()
    }

    /// The API server refused the template as such.
    pub fn refuse_template(&mut self, message: &str, generation: i64) {
        let before = self.template_refusal.take().filter(|refusal| refusal.generation == generation);
        self.template_refusal = Some(Refusal::after(before, message, generation));
    }

    /// The API server would take the template.
    pub fn accept_template(&mut self) {
        self.template_refusal = None;
    }

    /// Why the template is not to be tried now.
    pub fn template_refusal(&self, generation: i64) -> Option<&str> {
        self.template_refusal.as_ref().filter(|refusal| refusal.is_active(generation)).map(|refusal| &*refusal.message)
    }

    /// A write of this object for a node was taken.
    pub fn accept(&mut self, node: &str, object: NodeObject) {
        self.refusals.remove(&(object, node.to_owned()));
    }

    /// What is not to be tried now, by object and node.
    pub fn active_refusals(&self, generation: i64) -> BTreeMap<NodeObject, BTreeMap<String, String>> {
        let mut active: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        for ((object, node), refusal) in self.refusals.iter().filter(|(_, refusal)| refusal.is_active(generation)) {
            active.entry(*object).or_default().insert(node.clone(), refusal.message.clone());
        }
        active
    }

    /// A write to this object was refused because something that it was based on is of the past.
    pub fn note_stale(&mut self, object: String, basis: String) {
        self.stale.retain(|_, (_, at)| at.elapsed() < STALE_FOR);
        self.stale.insert(object, (basis, Instant::now()));
    }

    /// No write was refused so lately.
    pub fn nothing_is_stale(&self) -> bool {
        self.stale.values().all(|(_, at)| at.elapsed() >= STALE_FOR)
    }

    /// How long a write to this object with this basis is to be left alone, when it would only be refused again.
    pub fn stale_for(&self, object: &str, basis: &str) -> Option<Duration> {
        let (refused, at) = self.stale.get(object)?;
        STALE_FOR.checked_sub(at.elapsed()).filter(|_| refused == basis)
    }

    /// A write gave an object this resourceVersion.
    pub fn expect(&mut self, kind: Kind, version: u64) {
        let expected = self.expected.entry(kind).or_insert((version, Instant::now()));
        *expected = (expected.0.max(version), Instant::now());
    }

    /// The watches have shown all our writes.
    pub fn is_caught_up(&mut self, observer: &Observer) -> bool {
        self.expected.retain(|kind, (version, at)| observer.seen(*kind) < *version && at.elapsed() < EXPECTED_WITHIN);
        self.expected.is_empty()
    }

    /// A supporting object was written.
    pub fn assert(&mut self, assertion: String) {
        self.asserted.insert(assertion, Instant::now() + ASSERT_EVERY);
    }

    /// A supporting object was deleted.
    pub fn assert_deleted(&mut self, assertion: String) {
        self.asserted.insert(assertion, Instant::now() + DELETE_EVERY);
    }

    /// Supporting objects written or deleted lately.
    pub fn asserted(&self) -> BTreeSet<String> {
        let now = Instant::now();
        self.asserted.iter().filter(|(_, until)| now < **until).map(|(assertion, _)| assertion.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjusting_the_wall_clock_adds_no_watched_seconds() {
        let begin = Instant::now();
        // What both clocks say since the look before, in seconds, and what was watched.
        let steps = [(0, 0, 0), (10, 10, 10), (10, 9, 9), (5, 3605, 5), (5, -3595, 5), (7, 7, 7), (0, 60, 0)];
        let (mut memory, mut passed, mut now) = (Memory::default(), 0, 1_000_000);
        for (seconds, by_clock, watched) in steps {
            (passed, now) = (passed + seconds, now + by_clock);
            assert_eq!(memory.watched(now, begin + Duration::from_secs(passed)), watched, "{seconds} s, {by_clock} s by the clock");
        }
    }

    #[test]
    fn writes_repeat_after_ten_minutes_and_deletions_after_an_hour() {
        let mut memory = Memory::default();
        memory.assert("written".into());
        memory.assert_deleted("deleted".into());
        assert_eq!(memory.asserted().iter().collect::<Vec<_>>(), ["deleted", "written"]);
        let mut pass = |time| {
            memory.asserted.values_mut().for_each(|until| *until = until.checked_sub(time).unwrap());
            Vec::from_iter(memory.asserted())
        };
        assert_eq!(pass(ASSERT_EVERY), ["deleted"]);
        assert_eq!(pass(DELETE_EVERY), [""; 0]);
    }

    #[test]
    fn of_deployments_that_are_no_more_nothing_is_remembered() {
        let written_generations = ["a", "b", "c"].map(|uid| (uid.to_owned(), 1)).into();
        let mut memory = Memory { written_generations, ..Memory::default() };
        memory.forget_deployments(&["b"].into());
        assert!(memory.written_generations.keys().eq(["b"]));
    }

    #[test]
    fn refusals_are_remembered_only_while_their_node_exists() {
        let mut memory = Memory::default();
        for node in ["gone", "here"] {
            memory.refuse(node, NodeObject::Deployment, "exceeded quota", 1);
        }
        memory.forget_refusals(|node| node == "here");
        assert!(memory.refusals.keys().eq([&(NodeObject::Deployment, "here".to_owned())]));
    }

    #[test]
    fn an_unseen_write_is_awaited_only_for_a_limited_time() {
        let (mut memory, observer) = (Memory::default(), Observer::default());
        memory.expect(Kind::Pods, 9);
        assert!(!memory.is_caught_up(&observer));
        let written = Instant::now().checked_sub(EXPECTED_WITHIN).unwrap();
        memory.expected.insert(Kind::Pods, (9, written));
        assert!(memory.is_caught_up(&observer));
    }
}
