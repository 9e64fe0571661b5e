//! Revisions that break by themselves, again and again, and what the world itself knows of them: UIDs that were ever given one, and when it
//! last broke, by a clock that nobody sets. Nothing that the product believes of its proof is asked.

use super::{BREAKS, Event, NODES};
use crate::world::{
    audit::{entry, token},
    cluster::{Cluster, node_of, revision},
    pods::{Breaks, Flaps, Pod},
};
use crds::{
    holders::EntryPhase,
    ledger::{GrantReason, RolloutState},
    token::Phase,
};
use proptest::{prelude::*, sample::select};
use std::collections::{BTreeMap, BTreeSet};

/// How pods of the revision behave. Without a probe a pod that crashes is ready again at once. Short times without readiness, which are no
/// falls, come soon enough for their sum to be a failure.
pub fn flaps(good: std::ops::Range<i64>) -> impl Strategy<Value = Flaps> {
    let bad = prop_oneof![1 => Just(0), 3 => 1..40i64];
    let crashes = (good.clone(), bad).prop_map(|(good, bad)| Flaps { good, bad, crashes: true });
    let fails = (good, 11..40i64).prop_map(|(good, bad)| Flaps { good, bad, crashes: false });
    let short = (1..15i64, 4..11i64).prop_map(|(good, bad)| Flaps { good, bad, crashes: false });
    prop_oneof![3 => crashes, 3 => fails, 1 => short]
}

/// What the revision does: most break their pods, some the machine, for so short that nobody finds its Node not Ready, or for longer.
pub fn breaks(good: std::ops::Range<i64>) -> impl Strategy<Value = Breaks> {
    let machine = (good.clone(), prop_oneof![5..40i64, 40..120i64]).prop_map(|(good, down)| Breaks::Machine { good, down });
    prop_oneof![4 => flaps(good).prop_map(Breaks::Pods), 1 => machine]
}

/// What befalls a fleet that gets such a revision. Its one operator is away, starts anew and loses writes, but never sees the past. Clocks
/// are set, nodes join, one is replaced, and there is noise.
pub fn breaking() -> impl Strategy<Value = Vec<Event>> {
    let who = false;
    let at_work = prop_oneof![
        6 => (5..40u8).prop_map(move |seconds| vec![Event::Calm(who, seconds)]),
        4 => (1..6u8, any::<u8>()).prop_map(|(seconds, synced)| vec![Event::Seconds(seconds, synced)]),
        6 => Just(vec![Event::CatchUpAndAct(who)]),
        3 => any::<u16>().prop_map(move |arrives| vec![Event::CatchUp(who), Event::Act { who, arrives }]),
        2 => Just(vec![Event::Crash { who, behind: 0 }]),
        1 => (20..120u8).prop_map(|seconds| vec![Event::Seconds(seconds, u8::MAX)]),
    ];
    let befalls = prop_oneof![
        2 => select(vec![-3600, -5, 5, 3600]).prop_map(|by| vec![Event::Clock(by)]),
        1 => any::<bool>().prop_map(|paused| vec![Event::Pause(paused)]),
        1 => (0..NODES).prop_map(|node| vec![Event::DeletePod(node)]),
        1 => (0..NODES).prop_map(|node| vec![Event::Restart(node)]),
        2 => (0..NODES, 1..20i64).prop_map(|(node, seconds)| vec![Event::Fall(node, seconds)]),
        1 => (0..NODES).prop_map(|node| vec![Event::Evict(node)]),
        1 => (0..NODES).prop_map(|node| vec![Event::Cordon(node, true), Event::Dies(node, 10), Event::Cordon(node, false)]),
        1 => Just(vec![Event::Join]),
    ];
    let event = prop_oneof![8 => at_work, 1 => befalls];
    (prop::collection::vec(event, 5..30), prop::option::weighted(0.4, (0..NODES, any::<prop::sample::Index>()))).prop_map(
        |(events, replaced)| {
            let mut events = events.concat();
            if let Some((node, at)) = replaced {
                events.insert(at.index(events.len() + 1), Event::Recreate(node));
            }
            events
        },
    )
}

/// Seconds that a node takes at most to get rid of what was left on it.
const LEFT: i64 = 60;

/// What the world knows of a revision that breaks.
#[derive(Clone, Debug)]
pub struct Record {
    revision: String,
    /// Seconds for which it has to serve.
    proven_after: i64,
    /// Nodes that it may reach before it is proved.
    most: usize,
    /// UIDs of Nodes that were given it while they served, or that run it though nobody gave it to them.
    pub reached: BTreeSet<String>,
    /// UIDs of Nodes that were given it while they were out of service.
    out: BTreeSet<String>,
    /// UIDs of Nodes that served at the last look.
    serving: BTreeSet<String>,
    /// Nodes whose machine was replaced.
    pub replaced: usize,
    /// UIDs of Nodes that are there from the beginning, or have served with another revision.
    settled: BTreeSet<String>,
    /// Seconds for which others ran what the machine left whose name they have, while an operator could work.
    left: BTreeMap<String, i64>,
    /// When an operator looked last.
    looked: i64,
    /// Since when all that runs it has served at each look; none while something does not.
    good_since: Option<i64>,
    /// The runs of containers at the last look, by pod.
    runs: BTreeMap<String, u64>,
    /// It was proved by what was seen at looks.
    pub proved: bool,
    pub current: bool,
    /// When it was rolled back.
    pub rolled_back: Option<i64>,
}

fn uid(node: &serde_json::Value) -> String {
    node["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

impl Record {
    pub fn new(cluster: &Cluster, proven_after: i64, breaks: Breaks) -> Self {
        Self {
            revision: cluster.wish.revision_of(BREAKS),
            proven_after,
            // A machine that is lost may be anybody's fault: a second one tells.
            most: cluster.budget() + usize::from(matches!(breaks, Breaks::Machine { .. })),
            reached: BTreeSet::new(),
            out: BTreeSet::new(),
            serving: cluster.nodes.values().map(uid).collect(),
            replaced: 0,
            settled: cluster.nodes.values().map(uid).collect(),
            left: BTreeMap::new(),
            looked: cluster.passed,
            good_since: None,
            runs: BTreeMap::new(),
            proved: false,
            current: false,
            rolled_back: None,
        }
    }

    /// An operator looks at this.
    pub fn look(&mut self, cluster: &Cluster) {
        let mut runs = BTreeMap::new();
        let (mut good, mut running) = (true, 0);
        self.serving.clear();
        for deployment in cluster.deployments.values() {
            let Some(node) = cluster.nodes.get(node_of(deployment)) else { continue };
            let pods: Vec<&Pod> = cluster.pods.iter().filter(|pod| pod.node == node_of(deployment) && pod.rejected_at.is_none()).collect();
            let out = entry(node).is_some_and(|entry| entry.phase == EntryPhase::Detached);
            let closed = token(deployment).is_some_and(|token| token.phase == Phase::Closed) && !out;
            let whole = usize::try_from(cluster.wish.pods) == Ok(pods.len()) && pods.iter().all(|pod| pod.ready && pod.ends_at.is_none());
            if closed && whole && node["status"]["ready"] == true {
                self.serving.insert(uid(node));
            }
            let runs_it = revision(&deployment["spec"]["template"]) == self.revision;
            // Its pods may be those of before, and ready, a moment after its template was changed.
            if closed && !runs_it && self.serving.contains(&uid(node)) && pods.iter().all(|pod| pod.revision() != self.revision) {
                self.settled.insert(uid(node));
            }
            if runs_it && node["status"]["ready"] == true && !cluster.wish.paused && !self.settled.contains(&uid(node)) {
                // Who is away does nothing about it.
                *self.left.entry(uid(node)).or_default() += (cluster.passed - self.looked).min(1);
            }
            if runs_it && closed {
                running += 1;
                good &= whole;
                runs.extend(pods.iter().map(|pod| (pod.uid.clone(), pod.runs())));
            }
        }
        let ran_anew = self.runs.iter().any(|(pod, before)| runs.get(pod).is_some_and(|run| run != before));
        self.runs = runs;
        let passed = cluster.passed;
        self.looked = passed;
        self.good_since = if good && running > 0 { Some(self.good_since.filter(|_| !ran_anew).unwrap_or(passed)) } else { None };
        self.proved |= self.good_since.is_some_and(|since| passed - since >= self.proven_after);
    }

    /// What an operator has done, who looked just before.
    pub fn judge(&mut self, cluster: &Cluster) -> Vec<String> {
        let mut wrong = Vec::new();
        self.note_reached(cluster);
        let most = self.most + self.replaced;
        if !self.proved && self.reached.len() > most {
            wrong.push(format!("P16: it is not proved, and has reached {:?}, of {most} that it may", self.reached));
        }
        wrong.extend(self.joins_with_it(cluster));
        let Some(status) = cluster.resource.as_ref().and_then(|resource| resource.status.as_ref()) else { return wrong };
        let complete =
            status.conditions.iter().any(|condition| condition.reason == "Complete") && status.revisions.effective == self.revision;
        let current = status.revisions.current == self.revision;
        let unbroken = self.good_since.map_or(0, |since| cluster.passed - since);
        if (current || complete) && !self.current && unbroken < self.proven_after {
            wrong.push(format!("P17: current: {current}, complete: {complete}, {unbroken} s after it broke"));
        }
        self.current |= current;
        let Some(ledger) = cluster.ledger() else { return wrong };
        // Neither a detacher that is silent nor a node that was out before says anything of the revision.
        let condemns = |rollout: &RolloutState| {
            rollout.failed.values().any(|failure| !["DetachTimeout", "OutBefore"].contains(&failure.reason.as_str()))
        };
        let failed = ledger.rollout_state.as_ref().filter(|rollout| rollout.revision == self.revision).is_some_and(condemns);
        if ledger.rolled_back.is_some() {
            self.rolled_back.get_or_insert(cluster.passed);
        } else if failed && cluster.wish.rollout["autoRollback"] == true && !current && cluster.wish.image == BREAKS {
            wrong.push(format!("P22: it has failed, and is not rolled back: {:?}", ledger.rollout_state));
        }
        wrong
    }

    /// P20: a Node that has not served yet is given the revision, or keeps what another of its name has left.
    fn joins_with_it(&self, cluster: &Cluster) -> Option<String> {
        let there = |found: &&String| cluster.nodes.values().any(|node| uid(node) == **found);
        let kept = self.left.iter().filter(|(_, seconds)| **seconds > LEFT).map(|(node, _)| node).find(there);
        let granted = cluster.ledger().into_iter().flat_map(|ledger| ledger.grants.values());
        let given =
            granted.filter(|grant| grant.kind == GrantReason::Update && grant.revision == self.revision).map(|grant| &grant.node_uid);
        let given = given.filter(there).find(|node| !self.settled.contains(*node));
        (!self.proved && self.rolled_back.is_none() && (kept.is_some() || given.is_some()))
            .then(|| format!("P20: it is not proved; among nodes that join {given:?} is given it, {kept:?} has kept it for {LEFT} s"))
    }

    fn note_reached(&mut self, cluster: &Cluster) {
        let granted = cluster.ledger().into_iter().flat_map(|ledger| ledger.grants.values());
        for grant in granted.filter(|grant| grant.kind == GrantReason::Update && grant.revision == self.revision) {
            let known = self.reached.contains(&grant.node_uid) || self.out.contains(&grant.node_uid);
            if !known {
                let to = if self.serving.contains(&grant.node_uid) { &mut self.reached } else { &mut self.out };
                to.insert(grant.node_uid.clone());
            }
        }
        // A pod that was evicted, or refused, runs no more; its object lies there for long.
        for pod in cluster.pods.iter().filter(|pod| pod.revision() == self.revision && pod.rejected_at.is_none()) {
            let Some(node) = cluster.nodes.get(&pod.node) else { continue };
            // What another machine of this name has left is judged for itself.
            if !self.out.contains(&uid(node)) && self.settled.contains(&uid(node)) {
                self.reached.insert(uid(node));
            }
        }
    }

    /// Nodes that have it to get rid of: they were given it, or have the name of a machine that has left it there.
    pub fn with_it(&self) -> usize {
        self.reached.len() + self.out.len() + self.left.len()
    }
}
