//! What this process knows about its node: the decoded objects, and how old that knowledge is.

use crate::probe::ReadinessProbe;
use crds::token::Token;
use std::{
    collections::BTreeMap,
    fmt,
    str::FromStr,
    time::{Duration, Instant},
};

/// A node that does not serve starts to serve only on a view younger than this; an older one is confirmed first.
/// Bookmarks come about once a minute, so an idle watch says nothing about the present.
pub const CONFIRM_AFTER: Duration = Duration::from_secs(10);

/// How many of the node's pods must be ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadyPolicy {
    /// As many as the Deployment wants.
    All,
    /// At least this many, 1 or more.
    AtLeast(u32),
}

/// The text is not a ready policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither `all` nor `at-least=N` with N from 1 to 4294967295")]
pub struct ParseReadyPolicyError(String);

impl FromStr for ReadyPolicy {
    type Err = ParseReadyPolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "all" {
            return Ok(Self::All);
        }
        text.strip_prefix("at-least=")
            .and_then(|number| number.parse().ok())
            .filter(|number| *number >= 1)
            .map(Self::AtLeast)
            .ok_or_else(|| ParseReadyPolicyError(text.to_owned()))
    }
}

impl fmt::Display for ReadyPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::AtLeast(number) => write!(f, "at-least={number}"),
        }
    }
}

/// What is kept of a per-node Deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeploymentFacts {
    /// `spec.replicas`.
    pub desired: u32,
    /// The token, `None` when there is none or it cannot be read.
    pub token: Option<Token>,
    /// Carries the annotation that takes the node out by hand.
    pub to_be_updated: bool,
    /// Has a `deletionTimestamp`.
    pub deleting: bool,
}

/// What is kept of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    /// `metadata.uid`.
    pub uid: String,
    /// Condition `Ready` is `True`, and the pod has not ended.
    pub ready: bool,
    /// Not `Ready`, but by what the kubelet last said it is: the node controller calls every pod of a node unready whose
    /// kubelet it has not heard of, as after an outage of the API server.
    pub disowned: bool,
    /// Has a `deletionTimestamp`.
    pub terminating: bool,
    /// Revision of the user's template that it runs.
    pub revision: Option<String>,
    /// Readiness probes that can be repeated from the node.
    pub probes: Vec<ReadinessProbe>,
}

impl PodFacts {
    /// Counts as a ready replica, as far as the API knows.
    pub fn serves(&self) -> bool {
        self.ready && !self.terminating
    }
}

/// What is kept of the Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// Carries a taint that announces that it is about to be taken away ([`crds::names::DEPARTURE_TAINTS`]).
    pub to_be_deleted: bool,
    /// Has a `deletionTimestamp`.
    pub deleting: bool,
}

/// One of the watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Watch {
    /// The node's Deployment.
    Deployments,
    /// The node's pods.
    Pods,
    /// The Node itself.
    Node,
}

impl Watch {
    /// Every watch.
    pub const ALL: [Self; 3] = [Self::Deployments, Self::Pods, Self::Node];
    /// Those that need no right beyond the namespace. That the Node is about to go is then known by the token alone.
    pub const WITHOUT_NODE: &'static [Self] = &[Self::Deployments, Self::Pods];

    /// The word in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deployments => "deployments",
            Self::Pods => "pods",
            Self::Node => "node",
        }
    }
}

/// News of one watch.
#[derive(Clone, Debug)]
pub enum ObjectChange<T> {
    /// A complete list, by name.
    Replaced(Vec<(String, T)>),
    /// Created or modified.
    Applied(String, T),
    /// Deleted.
    Deleted(String),
    /// A bookmark: nothing changed until now.
    Unchanged,
}

/// News of any watch.
#[derive(Clone, Debug)]
pub enum Update {
    /// From the watch of Deployments.
    Deployments(ObjectChange<DeploymentFacts>),
    /// From the watch of pods.
    Pods(ObjectChange<PodFacts>),
    /// From the watch of the Node.
    Node(ObjectChange<NodeFacts>),
}

/// News of a watch, or of a probe from here.
#[derive(Clone, Debug)]
pub enum News {
    /// A watch said something, true at least until `at`.
    Watch {
        /// What.
        update: Update,
        /// Until when it is certainly true.
        at: Instant,
    },
    /// The readiness probe of a pod fails when repeated from here.
    FailsHere {
        /// The pod.
        uid: String,
        /// When that was established.
        at: Instant,
    },
    /// A probe of a pod passed when it was repeated from here.
    PassesHere {
        /// UID of the pod.
        uid: String,
        /// Which of its probes.
        probe: usize,
        /// When it passed.
        at: Instant,
    },
}

/// One watch's objects by name, and when the API server last spoke about them.
#[derive(Clone, Debug)]
pub struct Shelf<T> {
    /// The objects, by name.
    pub objects: BTreeMap<String, T>,
    /// When the last list was asked for, or the last event or bookmark came; `None` before the first list.
    pub seen: Option<Instant>,
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), seen: None }
    }
}

impl<T> Shelf<T> {
    fn apply(&mut self, change: ObjectChange<T>, at: Instant) {
        match change {
            ObjectChange::Replaced(objects) => self.objects = objects.into_iter().collect(),
            ObjectChange::Applied(name, object) => drop(self.objects.insert(name, object)),
            ObjectChange::Deleted(name) => drop(self.objects.remove(&name)),
            ObjectChange::Unchanged => {}
        }
        self.seen = Some(self.seen.map_or(at, |seen| seen.max(at)));
    }
}

/// Everything a verdict depends on, except the time.
#[derive(Clone, Debug)]
pub struct View {
    /// How many pods must be ready.
    pub policy: ReadyPolicy,
    /// The watches that there are.
    pub watches: &'static [Watch],
    /// The node's Deployments; more than one only by mistake.
    pub deployments: Shelf<DeploymentFacts>,
    /// The node's pods.
    pub pods: Shelf<PodFacts>,
    /// The Node; empty when it is missing or not watched.
    pub node: Shelf<NodeFacts>,
    /// Pods, by UID, whose readiness probe failed when repeated from here, and when that was established.
    pub failed_here: BTreeMap<String, Instant>,
    /// Probes, by UID of the pod and number, that passed when repeated from here, and when the last time was.
    pub passed_here: BTreeMap<(String, usize), Instant>,
    /// The last verdict published was 200.
    pub serving: bool,
    /// Silence of the API server after which probes are repeated from here.
    pub probe_after: Duration,
}

/// [`View::probe_after`] unless something else is asked for.
pub const PROBE_AFTER: Duration = Duration::from_secs(10);
/// How often it is looked which probes are to be repeated.
pub const PROBE_TICK: Duration = Duration::from_secs(1);

impl View {
    /// Knows nothing.
    pub fn new(policy: ReadyPolicy) -> Self {
        Self {
            policy,
            watches: &Watch::ALL,
            deployments: Shelf::default(),
            pods: Shelf::default(),
            node: Shelf::default(),
            failed_here: BTreeMap::new(),
            passed_here: BTreeMap::new(),
            serving: false,
            probe_after: PROBE_AFTER,
        }
    }

    /// Takes in what a watch said; `at` is the latest moment for which the news is certainly true.
    pub fn apply(&mut self, update: Update, at: Instant) {
        match update {
            Update::Deployments(change) => self.deployments.apply(change, at),
            Update::Node(change) => self.node.apply(change, at),
            Update::Pods(change) => {
                self.pods.apply(change, at);
                let (seen, objects) = (self.pods.seen, &self.pods.objects);
                self.failed_here
                    .retain(|uid, failed_at| seen.is_none_or(|seen| *failed_at > seen) && objects.values().any(|pod| pod.uid == *uid));
                self.passed_here.retain(|(uid, _), _| objects.values().any(|pod| pod.uid == *uid));
            }
        }
    }

    /// When the watch last heard from the API server.
    pub fn seen(&self, watch: Watch) -> Option<Instant> {
        match watch {
            Watch::Deployments => self.deployments.seen,
            Watch::Pods => self.pods.seen,
            Watch::Node => self.node.seen,
        }
    }

    /// Age of what one watch knows; `None` before its first list.
    pub fn age_of(&self, watch: Watch, now: Instant) -> Option<Duration> {
        self.seen(watch).map(|seen| now.saturating_duration_since(seen))
    }

    /// What this watch knows is too old to begin to serve on.
    pub fn is_to_be_confirmed(&self, watch: Watch, now: Instant) -> bool {
        self.age_of(watch, now).is_none_or(|age| age > CONFIRM_AFTER)
    }

    /// Age of the oldest part; `None` until all watches have listed once.
    pub fn age(&self, now: Instant) -> Option<Duration> {
        self.watches.iter().map(|watch| self.age_of(*watch, now)).try_fold(Duration::ZERO, |oldest, age| Some(oldest.max(age?)))
    }

    /// Counts as a ready replica here. That a kubelet is not heard of far away is no reason to take out a node that serves,
    /// let alone all of them at once, while its pods are seen to pass their probes from here. Without that proof the node
    /// controller is believed.
    pub fn counts(&self, pod: &PodFacts, now: Instant) -> bool {
        pod.serves() || self.serving && pod.disowned && !pod.terminating && self.passes_here(pod, now)
    }

    /// Each of its probes has passed from here not longer ago than a kubelet would take to call it unready, or than it takes to repeat it:
    /// while there is news of all nobody does.
    fn passes_here(&self, pod: &PodFacts, now: Instant) -> bool {
        let passed = |(index, probe): (usize, &ReadinessProbe)| {
            let patience = probe.period.saturating_mul(probe.failure_threshold.saturating_add(1)).saturating_add(probe.timeout);
            let repeated = self.probe_after.saturating_add(probe.period).saturating_add(probe.timeout).saturating_add(PROBE_TICK);
            let patience = patience.max(repeated);
            self.passed_here.get(&(pod.uid.clone(), index)).is_some_and(|at| now.saturating_duration_since(*at) < patience)
        };
        !pod.probes.is_empty() && pod.probes.iter().enumerate().all(passed)
    }

    /// The probe of this pod fails from here, and the API has said nothing about pods since.
    pub fn fails_here(&self, pod: &PodFacts) -> bool {
        self.failed_here.get(&pod.uid).is_some_and(|failed_at| self.pods.seen.is_none_or(|seen| *failed_at > seen))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ready_policy_reads_back_and_zero_is_refused() {
        for text in ["all", "at-least=1", "at-least=7"] {
            assert_eq!(text.parse::<ReadyPolicy>().map(|policy| policy.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "All", "at-least=0", "at-least=", "at-least=-1", "at-least=4294967296"] {
            assert!(text.parse::<ReadyPolicy>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_age_is_that_of_the_quietest_watch() {
        let start = Instant::now();
        let mut view = View::new(ReadyPolicy::All);
        view.apply(Update::Deployments(ObjectChange::Replaced(vec![])), start);
        view.apply(Update::Pods(ObjectChange::Replaced(vec![])), start + Duration::from_secs(5));
        assert_eq!(view.age(start + Duration::from_secs(9)), None);
        view.apply(Update::Node(ObjectChange::Replaced(vec![])), start + Duration::from_secs(6));
        assert_eq!(view.age(start + Duration::from_secs(9)), Some(Duration::from_secs(9)));
        view.apply(Update::Deployments(ObjectChange::Unchanged), start + Duration::from_secs(8));
        assert_eq!(view.age(start + Duration::from_secs(9)), Some(Duration::from_secs(4)));
    }

    #[test]
    fn news_that_arrives_late_makes_a_watch_no_older() {
        let start = Instant::now();
        let mut view = View::new(ReadyPolicy::All);
        view.apply(Update::Node(ObjectChange::Replaced(vec![])), start + Duration::from_secs(6));
        view.apply(Update::Node(ObjectChange::Unchanged), start + Duration::from_secs(3));
        assert_eq!(view.age_of(Watch::Node, start + Duration::from_secs(9)), Some(Duration::from_secs(3)));
    }

    #[test]
    fn a_local_failure_counts_only_after_the_latest_news() {
        let start = Instant::now();
        let pod = PodFacts { uid: "a".into(), ready: true, disowned: false, terminating: false, revision: None, probes: Vec::new() };
        let mut view = View::new(ReadyPolicy::All);
        view.apply(Update::Pods(ObjectChange::Replaced(vec![("a".into(), pod.clone())])), start + Duration::from_secs(5));
        for (failed_at, counts) in [(4, false), (5, false), (6, true)] {
            view.failed_here.insert("a".into(), start + Duration::from_secs(failed_at));
            assert_eq!(view.fails_here(&pod), counts, "at {failed_at} s");
        }
    }

    #[test]
    fn a_watch_unlisted_or_too_old_needs_confirming() {
        let start = Instant::now();
        let mut view = View::new(ReadyPolicy::All);
        assert!(view.is_to_be_confirmed(Watch::Node, start));
        view.apply(Update::Node(ObjectChange::Replaced(vec![])), start);
        assert!(!view.is_to_be_confirmed(Watch::Node, start + CONFIRM_AFTER));
        assert!(view.is_to_be_confirmed(Watch::Node, start + CONFIRM_AFTER + Duration::from_secs(1)));
    }
}
