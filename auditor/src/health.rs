//! P10: what a health checker answers follows from what it knows, and it never begins to serve on what is out of date.
//!
//! An answer says why, what it rests on, and how old the oldest part of the checker's view is. The word must follow from the rest.
//! Within that time there must have been a moment at which what it says of the Deployment was so, one for the pods and one for
//! the Node: its watches may be apart.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use chrono::{DateTime, TimeDelta, Utc};
use crds::{names, token::Phase};
use serde_json::Value;

use super::{
    Audit, Kind, Property,
    cluster_state::{Place, has_ended, is_binding_of, is_ready, replicas, token},
    observation::{ObjectExt, Observation},
};

/// A checker that does not serve begins to only on a view that is not older, in seconds; figure of the health checker.
const CONFIRM_AFTER: u64 = 10;
/// By how much the age in an answer may be too small, in seconds: it is cut to whole seconds, and written once a second.
const AGE_LAGS: u64 = 2;
/// By how much our watches may be behind the checker's, and it behind its own clock, on a busy machine.
const TOLERANCE: TimeDelta = TimeDelta::seconds(5);
/// What was longer ago is forgotten. A view that is older than this says nothing that could be judged.
const HORIZON: TimeDelta = TimeDelta::minutes(15);

/// What a health checker answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// When.
    pub at: DateTime<Utc>,
    /// On which port.
    pub port: u16,
    /// Namespace and name of the resource that it is for.
    pub resource: (String, String),
    /// Name of the Node that it is on.
    pub node: String,
    /// 200, else 503.
    pub serving: bool,
    /// Its word for why.
    pub reason: String,
    /// Phase of the token, where it knows one.
    pub phase: Option<Phase>,
    /// Replicas wanted, as it knows.
    pub desired: u64,
    /// Pods that it counts as ready.
    pub ready: u64,
    /// Age of the oldest part of its view in seconds; none before it knows anything.
    pub age: Option<u64>,
}

impl Answer {
    /// Reads the status and body of an answer; none where nothing answers that is a health checker.
    pub fn read(at: DateTime<Utc>, port: u16, status: u16, body: &str) -> Option<Self> {
        let body: Value = serde_json::from_str(body).ok()?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        // That the body says the same as the status is for the checker's own tests.
        body["serviceProxyHealthy"].as_bool()?;
        Some(Self {
            at,
            port,
            resource: (text(&body["service"]["namespace"])?, text(&body["service"]["name"])?),
            node: text(&body["node"])?,
            serving: status == 200,
            reason: text(&body["reason"])?,
            phase: body["phase"].as_str().and_then(Phase::from_word),
            desired: body["desired"].as_u64()?,
            ready: body["localEndpoints"].as_u64()?,
            age: body["viewAgeSeconds"].as_u64(),
        })
    }
}

/// What a checker goes by, as the API has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Facts {
    /// There is no Deployment that stays.
    missing: bool,
    /// What Deployments say against serving.
    against: BTreeSet<&'static str>,
    desired: u64,
    ready: u64,
    /// Not ready by what the node controller says alone: a node that serves goes on as long as its own probes pass.
    disowned: u64,
    node_goes: bool,
    /// It goes, and health checkers have the right to see that. Where it is taken from them, they are replaced before.
    seen_to_go: bool,
}

impl Default for Facts {
    /// Where nobody has seen anything.
    fn default() -> Self {
        Self { missing: true, against: BTreeSet::new(), desired: 0, ready: 0, disowned: 0, node_goes: false, seen_to_go: false }
    }
}

/// What was so at each place since when, and what was heard.
#[derive(Debug, Default)]
pub(super) struct HealthMemory {
    facts: BTreeMap<Place, VecDeque<(DateTime<Utc>, Facts)>>,
    /// All resources that ever had a namespace and name.
    resources: BTreeMap<(String, String), BTreeSet<String>>,
    /// Ready pods that a resource ever called enough; none are all. A checker learns of another number when it starts anew.
    enough: BTreeMap<String, BTreeSet<Option<u64>>>,
    /// What was before this is not known.
    known_since: Option<DateTime<Utc>>,
    /// Something was missed, and nothing seen since.
    blind: bool,
    pending: VecDeque<Answer>,
    /// The last answer of each node and port, and whether it was reported.
    last: BTreeMap<(String, u16), (Answer, bool)>,
}

impl Audit<'_> {
    /// An answer of a health checker; it is judged when all is known that it can rest on.
    pub fn hear(&mut self, answer: Answer) {
        self.health.pending.push_back(answer);
    }

    /// It is so late: nothing that happened [`TOLERANCE`] ago is still to be seen.
    pub fn judge_answers(&mut self, now: DateTime<Utc>) {
        while let Some(answer) = self.health.pending.pop_front_if(|answer| answer.at + TOLERANCE < now) {
            self.judge_answer(answer);
        }
    }

    /// Those that are left, at the end.
    pub(super) fn judge_late_answers(&mut self) {
        self.judge_answers(DateTime::<Utc>::MAX_UTC);
    }

    fn judge_answer(&mut self, answer: Answer) {
        self.verdict.answers += 1;
        let key = (answer.node.clone(), answer.port);
        let before = self.health.last.get(&key);
        let what = self.contradiction(&answer, before.map(|(before, _)| before));
        let known = before.is_some_and(|(before, reported)| *reported && before.reason == answer.reason);
        let reported = what.is_some();
        if let Some(what) = what.filter(|_| !known) {
            let Answer { port, node, serving, reason, .. } = &answer;
            let (code, age) = (if *serving { 200 } else { 503 }, answer.age.map_or("no".to_owned(), |age| format!("{age} s")));
            let what = format!("port {port} of node {node} answers {code} ({reason}, age of its view: {age}), but {what}");
            self.report(Property::HealthVerdict, what);
        }
        self.health.last.insert(key, (answer, reported));
    }

    /// Why it cannot be.
    fn contradiction(&self, answer: &Answer, before: Option<&Answer>) -> Option<String> {
        if answer.serving != (answer.reason == "Serving") {
            return Some("that word belongs to the other code".to_owned());
        }
        let Some(age) = answer.age else {
            return (answer.reason != "NotSynced").then(|| "it has listed nothing yet".to_owned());
        };
        if let Some(phase) = answer.phase.filter(|_| !follows(answer)) {
            return Some(format!("it knows the token phase {phase:?}, {} of {} pods ready", answer.ready, answer.desired));
        }
        let begins = before.filter(|before| answer.serving && !before.serving);
        if let Some(before) = begins {
            // It may have begun right after the answer before this one.
            let since = (answer.at - before.at).num_seconds().unsigned_abs();
            if age > CONFIRM_AFTER + AGE_LAGS + since {
                return Some(format!("{since} s ago it was 503 ({})", before.reason));
            }
        }
        let from = answer.at - TimeDelta::seconds(i64::try_from(age + AGE_LAGS).unwrap_or(i64::MAX / 1_000_000)) - TOLERANCE;
        if self.health.blind || self.health.known_since.is_some_and(|since| from < since) || answer.at - from > HORIZON {
            return None;
        }
        // A resource that was made again has the name of the one before, whose checker may still answer.
        let resources = self.health.resources.get(&answer.resource)?;
        let mut found = None;
        for of in resources {
            let facts = self.facts_during(&(of.clone(), answer.node.clone()), from, answer.at + TOLERANCE);
            let enough = self.health.enough.get(of);
            let enough = |desired: u64| enough.into_iter().flatten().map(move |number| number.unwrap_or(desired));
            found = Some(if answer.serving {
                no_serving(&facts, &enough, begins.is_some())
            } else {
                no_holding(answer, age, &facts, &enough)
            }?);
        }
        found
    }

    fn facts_during(&self, place: &Place, from: DateTime<Utc>, to: DateTime<Utc>) -> Vec<Facts> {
        let Some(facts) = self.health.facts.get(place) else { return vec![Facts::default()] };
        let ends = facts.iter().skip(1).map(|(since, _)| Some(*since)).chain([None]);
        let within = facts.iter().zip(ends).filter(|((since, _), end)| *since <= to && end.is_none_or(|end| end >= from));
        let mut found: Vec<_> = within.map(|((_, facts), _)| facts.clone()).collect();
        if facts.front().is_some_and(|(since, _)| *since > from) {
            found.push(Facts::default());
        }
        found
    }

    /// Remembers what checkers go by at these places, after an observation was applied.
    pub(super) fn note_facts(&mut self, places: &BTreeSet<Place>, observation: &Observation) {
        if std::mem::take(&mut self.health.blind) {
            self.health.known_since = Some(observation.at);
        }
        if observation.kind == Kind::IngressDaemonSet {
            self.note_policy(&observation.object);
        }
        for place in places {
            let now = self.facts_at(place);
            let known = self.health.facts.entry(place.clone()).or_default();
            if known.back().is_some_and(|(_, last)| *last == now) {
                continue;
            }
            known.push_back((observation.at, now));
            while known.get(1).is_some_and(|(since, _)| observation.at - *since > HORIZON) {
                known.pop_front();
            }
        }
    }

    /// What was before `observation` is not known.
    pub(super) fn note_half_way(&mut self, observation: &Observation) {
        self.health.known_since = self.health.known_since.max(Some(observation.at));
    }

    /// The end of something was missed.
    pub(super) fn forget_facts(&mut self) {
        self.health.blind = true;
        let known: Vec<_> = self.health.facts.keys().cloned().collect();
        for place in known {
            let now = self.facts_at(&place);
            if let Some((_, last)) = self.health.facts.get_mut(&place).and_then(|facts| facts.back_mut()) {
                *last = now;
            }
        }
    }

    fn note_policy(&mut self, resource: &Value) {
        let of = names::uid8(resource.uid()).to_owned();
        let name = (resource["metadata"]["namespace"].as_str().unwrap_or_default().to_owned(), resource.name().to_owned());
        let policy = &resource["spec"]["healthChecker"]["readyPolicy"];
        let enough = policy["minReady"].as_u64().filter(|_| policy["type"] == "AtLeast");
        self.health.enough.entry(of.clone()).or_default().insert(enough);
        self.health.resources.entry(name).or_default().insert(of);
    }

    fn facts_at(&self, place: &Place) -> Facts {
        let node = self.cluster.node(&place.1);
        let taints = node.and_then(|node| node["spec"]["taints"].as_array()).into_iter().flatten();
        let to_go = taints.into_iter().any(|taint| taint["key"].as_str().is_some_and(names::is_departure));
        let node_goes = to_go || node.is_some_and(ObjectExt::being_deleted);
        let seen_to_go = node_goes && self.cluster.of(Kind::ClusterRoleBinding).any(|binding| is_binding_of(binding, &place.0));
        let mut facts = Facts { node_goes, seen_to_go, ..Facts::default() };
        for deployment in self.cluster.members_at(place).filter(|deployment| !deployment.being_deleted()) {
            facts.missing = false;
            facts.desired += replicas(deployment);
            let taken_out = || deployment.annotation(names::TO_BE_UPDATED_ANNOTATION).map(|_| "TakenOutByHand");
            facts.against.extend(token(deployment).and_then(|token| against(token.phase)).or_else(taken_out));
            for pod in self.cluster.pods_of(deployment).filter(|pod| !pod.being_deleted() && !has_ended(pod)) {
                if is_ready(pod) {
                    facts.ready += 1;
                } else if is_disowned(pod) {
                    facts.disowned += 1;
                }
            }
        }
        facts
    }
}

/// The word is the one that the phase asks for, which only what is worse than any phase may replace.
fn follows(answer: &Answer) -> bool {
    let told = answer.phase.and_then(against);
    match answer.reason.as_str() {
        "NotSynced" | "DeploymentMissing" | "NodeBeingDeleted" => true,
        word @ ("NeverComplete" | "DetachRequested" | "Updating") => told == Some(word),
        "NoReplicasWanted" => told.is_none() && answer.desired == 0,
        "Serving" => told.is_none() && answer.desired > 0 && answer.ready > 0,
        _ => told.is_none(),
    }
}

/// What a phase says against serving.
fn against(phase: Phase) -> Option<&'static str> {
    match phase {
        Phase::New => Some("NeverComplete"),
        Phase::Claimed => Some("DetachRequested"),
        Phase::InPlace | Phase::Updating => Some("Updating"),
        Phase::Degrading | Phase::Closed => None,
    }
}

/// Not ready although the kubelet last said that it is.
fn is_disowned(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let is_true = |kind: &Value| conditions.into_iter().flatten().any(|one| one["type"] == *kind && one["status"] == "True");
    let mut gates = pod["spec"]["readinessGates"].as_array().into_iter().flatten();
    is_true(&"ContainersReady".into()) && gates.all(|gate| is_true(&gate["conditionType"]))
}

/// What at no moment let the node serve.
fn no_serving<I: Iterator<Item = u64>>(facts: &[Facts], enough: &impl Fn(u64) -> I, begins: bool) -> Option<String> {
    if !facts.iter().any(|facts| !facts.missing && facts.against.is_empty() && facts.desired > 0) {
        let against: BTreeSet<_> = facts.iter().flat_map(|facts| &facts.against).copied().collect();
        let against = Vec::from_iter(against).join(", ");
        return Some(if against.is_empty() {
            "no Deployment there wanted pods".to_owned()
        } else {
            format!("its Deployment said {against}")
        });
    }
    let wanted = facts.iter().filter(|facts| facts.desired > 0).flat_map(|facts| enough(facts.desired)).min().unwrap_or(1);
    let most = facts.iter().map(|facts| facts.ready + if begins { 0 } else { facts.disowned }).max().unwrap_or(0);
    if most < wanted {
        return Some(format!("at most {most} pods were ready, {wanted} are enough"));
    }
    facts.iter().all(|facts| facts.seen_to_go).then(|| "its Node was about to go".to_owned())
}

/// What a node that does not serve gives as the reason, and was so at no moment.
fn no_holding<I: Iterator<Item = u64>>(answer: &Answer, age: u64, facts: &[Facts], enough: &impl Fn(u64) -> I) -> Option<String> {
    let so = match answer.reason.as_str() {
        "DeploymentMissing" => facts.iter().any(|facts| facts.missing),
        "NodeBeingDeleted" => facts.iter().any(|facts| facts.node_goes),
        "NoReplicasWanted" => facts.iter().any(|facts| facts.desired == 0),
        "PodsNotReady" => {
            let least = facts.iter().map(|facts| facts.ready).min().unwrap_or(0);
            facts.iter().flat_map(|facts| enough(facts.desired)).any(|wanted| least < wanted)
        }
        "NeverComplete" | "DetachRequested" | "Updating" | "TakenOutByHand" => {
            facts.iter().any(|facts| facts.against.contains(answer.reason.as_str()))
        }
        "StaleView" => age + 1 >= CONFIRM_AFTER,
        // What the checker has seen itself, or a word of another release.
        _ => true,
    };
    (!so).then(|| "that was at no moment so".to_owned())
}
