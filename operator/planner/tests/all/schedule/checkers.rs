//! P10 in random schedules: a health checker on every node, the real one's view and verdict, with watches that fall silent.

use super::{NODES, name};
use crate::world::{
    World,
    audit::token,
    cluster::{Cluster, node_of},
    pods,
};
use crds::{names, token::Phase};
use health_checker::{
    verdict::verdict,
    view::{ObjectChange, PodFacts, ReadyPolicy, Update, View, Watch},
    watched_objects::{Deployment, Node, Watched},
};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// A checker that does not serve begins to on a view of no more seconds than this; figure of the health checker.
const CONFIRM_AFTER: u64 = 10;

/// What one node's checker knows and last answered.
struct Checker {
    node: String,
    view: View,
    /// When each watch was last heard.
    heard: [Option<i64>; 3],
    /// What the API said then.
    truth: Truth,
}

/// What is so, read from the objects themselves and not as the checker reads them.
#[derive(Clone, Debug, Default)]
struct Truth {
    /// There is a Deployment that wants pods, and nothing in it speaks against serving: no update is scheduled or under way.
    offered: bool,
    wanted: usize,
    ready: usize,
    leaves: bool,
}

/// A checker on each node.
pub struct Checkers {
    all: Vec<Checker>,
    /// Checkers count from it; nothing depends on when it was.
    epoch: Instant,
}

impl Checkers {
    /// They know nothing yet.
    pub fn new() -> Self {
        Self { all: (0..NODES).map(|node| Checker::new(&name(node))).collect(), epoch: Instant::now() }
    }

    /// What a checker would say on a node that has just heard of everything.
    pub fn would_serve(world: &World, node: &str) -> bool {
        let (mut checker, now) = (Checker::new(node), Instant::now());
        for watch in Watch::ALL {
            checker.hear(&world.cluster, watch, now);
        }
        verdict(&checker.view, now).serving()
    }

    /// A checker hears of its watches, each where the bit says so, and answers; what is wrong with that, and what came about.
    pub fn ask(&mut self, world: &World, node: u8, hears: u8, seen: &mut BTreeSet<&'static str>) -> Option<String> {
        let now = world.cluster.passed;
        let at = self.epoch + Duration::from_secs(now.unsigned_abs());
        let checker = &mut self.all[usize::from(node)];
        for (index, watch) in Watch::ALL.into_iter().enumerate() {
            if hears >> index & 1 == 1 {
                checker.hear(&world.cluster, watch, at);
                checker.heard[index] = Some(now);
            }
        }
        let (answer, before) = (verdict(&checker.view, at), checker.view.serving);
        let serves = answer.serving();
        checker.view.serving = serves;
        // None is the least: a watch that was never heard.
        let oldest = checker.heard.into_iter().min().flatten();
        let is_fresh = oldest.is_some_and(|heard| now.abs_diff(heard) <= CONFIRM_AFTER);
        let right = oldest.is_some() && checker.truth.serves();
        let wanted = right && (before || is_fresh);
        seen.insert(match (before, serves) {
            (false, true) => "began to serve",
            (true, false) => "ceased to serve",
            (false, false) if right => "waited for news",
            (false, false) => "kept out",
            (true, true) if !is_fresh => "served through silence",
            (true, true) => "served on",
        });
        (serves != wanted).then(|| {
            let (node, truth) = (&checker.node, &checker.truth);
            format!("P10: {node} answers {answer:?} of {truth:?}, which it heard of at {:?}; it is {now}", checker.heard)
        })
    }

    /// What chosen nodes do not serve, by checkers that have just heard of everything.
    pub fn kept_out(&mut self, world: &World) -> Vec<String> {
        let chosen = (0..NODES).filter(|node| world.cluster.nodes.get(&name(*node)).is_some_and(|node| world.cluster.is_chosen(node)));
        let mut found = Vec::new();
        for node in chosen.filter(|_| world.cluster.wish.pods > 0) {
            found.extend(self.ask(world, node, u8::MAX, &mut BTreeSet::new()));
            let serving = self.all[usize::from(node)].view.serving;
            found.extend((!serving).then(|| format!("P10: {} is kept out though nothing is under way", name(node))));
        }
        found
    }
}

impl Checker {
    fn new(node: &str) -> Self {
        Self { node: node.to_owned(), view: View::new(ReadyPolicy::All), heard: [None; 3], truth: Truth::default() }
    }

    fn hear(&mut self, cluster: &Cluster, watch: Watch, at: Instant) {
        let own = cluster.deployments.values().filter(|deployment| node_of(deployment) == self.node);
        let pods = cluster.pods.iter().filter(|pod| pod.node == self.node);
        match watch {
            Watch::Deployments => {
                self.truth.offers(own.clone());
                self.view.apply(Update::Deployments(kept::<Deployment>(own)), at);
            }
            Watch::Pods => {
                self.truth.ready = pods.clone().filter(|pod| pod.ready && pod.ends_at.is_none() && pod.rejected_at.is_none()).count();
                let pod = |pod: &pods::Pod| {
                    let kept = PodFacts {
                        uid: pod.uid.clone(),
                        ready: pod.ready && pod.rejected_at.is_none(),
                        disowned: false,
                        terminating: pod.ends_at.is_some(),
                        revision: Some(pod.revision().to_owned()),
                        probes: Vec::new(),
                    };
                    (pod.name.clone(), kept)
                };
                self.view.apply(Update::Pods(ObjectChange::Replaced(pods.map(pod).collect())), at);
            }
            Watch::Node => {
                let node = cluster.nodes.get(&self.node);
                self.truth.leaves = node.is_some_and(|node| {
                    let taints = node["spec"]["taints"].as_array().into_iter().flatten();
                    let announced = |taint: &Value| taint["key"].as_str().is_some_and(names::is_departure);
                    node["metadata"]["deletionTimestamp"].is_string() || taints.into_iter().any(announced)
                });
                self.view.apply(Update::Node(kept::<Node>(node.into_iter())), at);
            }
        }
    }
}

/// What a checker keeps of objects, as it decodes them.
fn kept<'a, W: Watched>(objects: impl Iterator<Item = &'a Value>) -> ObjectChange<W::Kept> {
    let decoded = objects.map(|object| serde_json::from_value::<W>(object.clone()).expect("it is decoded"));
    ObjectChange::Replaced(decoded.map(|object| (object.metadata().name.clone(), object.keep())).collect())
}

impl Truth {
    fn offers<'a>(&mut self, deployments: impl Iterator<Item = &'a Value>) {
        (self.offered, self.wanted) = (false, 0);
        for deployment in deployments {
            let by_hand = deployment["metadata"]["annotations"][names::TO_BE_UPDATED_ANNOTATION].is_string();
            let scheduled = match token(deployment).map(|token| token.phase) {
                Some(Phase::New | Phase::Claimed | Phase::InPlace | Phase::Updating) => true,
                Some(Phase::Degrading | Phase::Closed) | None => by_hand,
            };
            self.wanted = deployment["spec"]["replicas"].as_u64().and_then(|replicas| usize::try_from(replicas).ok()).unwrap_or(1);
            self.offered = !scheduled && self.wanted > 0;
        }
    }

    fn serves(&self) -> bool {
        self.offered && self.ready >= self.wanted && !self.leaves
    }
}
