//! P1 and P2 where a node is begun: whether its domain, and the nodes that must stay available, left a slot for it.
//!
//! As with P8, a grant is judged by the spec and the ledger that its write went over. Nodes and pods the operator may have seen
//! as they were some time ago ([`super::Expectations::lag`]): what has changed since then counts in its favour.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use crds::{names, token::Phase};
use serde_json::{Map, Value};

use super::{
    Audit, Kind, Property, Share,
    budget::still_allowed,
    cluster_state::{Place, has_ended, is_complete, is_detached, is_ready, node_of, replicas, resource, token},
    observation::{ObjectExt, Observation},
};

/// A number, and what it was of late.
#[derive(Debug, Default)]
pub(super) struct Recent {
    now: usize,
    /// Former numbers, and when each was last so.
    former: BTreeMap<usize, DateTime<Utc>>,
}

impl Recent {
    /// Takes the present number in.
    pub(super) fn see(&mut self, number: usize, at: DateTime<Utc>, lag: TimeDelta) {
        if number != self.now {
            self.former.insert(self.now, at);
            self.now = number;
        }
        self.former.retain(|_, last| at - *last < lag);
    }

    /// The greatest that the operator may still have seen.
    pub(super) fn greatest(&self) -> usize {
        self.former.last_key_value().map_or(0, |(number, _)| *number).max(self.now)
    }
}

/// A node in the eyes of anybody who reads the same objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Availability {
    /// It serves, or does not, by whom nobody knows: each may be right.
    #[default]
    Unclear,
    /// At rest, with exactly the pods that it should have.
    Up,
    /// It should serve, its Node is well, and too few of its pods are ready.
    Down,
}

#[derive(Debug, Default)]
struct Health {
    state: Availability,
    since: DateTime<Utc>,
    /// It was up once.
    was_up: bool,
    /// When it was last seen otherwise after that.
    shaken: Option<DateTime<Utc>>,
    /// It counts among the nodes that have served.
    serves: bool,
    /// When it ceased to.
    ceased: Option<DateTime<Utc>>,
}

/// By resource and node, since when they are as they are, and what domains hold.
#[derive(Debug, Default)]
pub(super) struct SlotMemory {
    nodes: BTreeMap<(String, String), Health>,
    /// Nodes of each resource, label and domain.
    sizes: BTreeMap<(String, String, String), Recent>,
    /// Nodes that the domain may have out of service, as with the budget of all nodes.
    allowed: BTreeMap<(String, String, String), usize>,
    /// The domain in which a node was when it was taken out.
    placed: BTreeMap<String, BTreeMap<String, String>>,
    /// Nodes that were drained, above any budget, and are not back yet.
    drained: BTreeMap<String, BTreeSet<String>>,
    /// What was before is not known.
    half_way: bool,
}

/// What the resource says of domains.
struct DomainRule<'a> {
    label: &'a str,
    budget: Option<Share>,
    one_at_a_time: bool,
}

fn topology(owner: &Value) -> Option<DomainRule<'_>> {
    let told = &owner["spec"]["updateStrategy"]["rollingUpdate"]["topology"];
    let budget = share(&told["maxUnavailableNodes"]).filter(|share| !matches!(share, Share::Nodes(0) | Share::Percent(0)));
    Some(DomainRule { label: told["key"].as_str()?, budget, one_at_a_time: told["oneDomainAtATime"] == true })
}

/// A number or a percentage, as the API writes them.
fn share(told: &Value) -> Option<Share> {
    let number = || Some(Share::Nodes(usize::try_from(told.as_u64()?).ok()?));
    let percent = || Some(Share::Percent(told.as_str()?.strip_suffix('%')?.parse().ok()?));
    number().or_else(percent)
}

/// How many nodes the resource chooses, by what its status says.
fn desired(owner: &Value) -> usize {
    owner["status"]["nodes"]["desired"].as_u64().and_then(|desired| usize::try_from(desired).ok()).unwrap_or(0)
}

/// Takes no slot: the removal of a node that does not serve.
fn is_free(grant: &Value) -> bool {
    grant["kind"] == "Remove" && grant["marks"]["deployment"] != true && !grant["marks"]["node"].is_object()
}

fn is_drain(grant: &Value) -> bool {
    grant["kind"] == "Drain"
}

/// One write of the ledger in which nodes are begun.
struct LedgerWrite<'a> {
    of: &'a str,
    before: &'a Value,
    after: &'a Value,
    old: &'a Map<String, Value>,
    new: &'a Map<String, Value>,
    at: DateTime<Utc>,
}

impl LedgerWrite<'_> {
    /// Nodes that had no grant before, and asked for a place.
    fn begun(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.new.iter().filter(|(node, grant)| !self.old.contains_key(*node) && !is_free(grant) && !is_drain(grant))
    }

    /// These, and those that had a slot before and keep it.
    fn places(&self) -> impl Iterator<Item = (&String, &Value)> {
        let kept = self.new.iter().filter(|(node, _)| self.old.get(*node).is_some_and(|grant| !is_free(grant)));
        kept.chain(self.begun())
    }
}

impl Audit<'_> {
    /// Looks for nodes that were begun where there was no room for them.
    pub(super) fn judge_slots(&mut self, before: Option<&Value>, observation: &Observation) {
        let Some(before) = before.filter(|before| !before.being_deleted()) else { return };
        let rollout = &before["status"]["rollout"];
        // What a ledger has that was rebuilt had been begun before.
        if !rollout.is_object() || !rollout["rebuilding"].is_null() {
            return;
        }
        let (none, after) = (Map::new(), &observation.object);
        let Some(new) = after["status"]["rollout"]["grants"].as_object() else { return };
        let of = names::uid8(after.uid());
        let write = LedgerWrite { of, before, after, old: rollout["grants"].as_object().unwrap_or(&none), new, at: observation.at };
        let mut found = Vec::new();
        for (node, _) in write.begun() {
            found.extend(self.lacks_place(&write, node).map(|why| (Property::Budget, node, why)));
            found.extend(self.lacks_minimum(&write, node).map(|why| (Property::Budget, node, why)));
            found.extend(self.lacks_domain(&write, node).map(|why| (Property::DomainBudget, node, why)));
        }
        for (property, node, why) in found {
            self.report(property, format!("node {node} of {} was begun {why}", after.name()));
        }
    }

    /// The budget is used up: by nodes under way, and by those that are unready for whatever reason.
    fn lacks_place(&self, write: &LedgerWrite<'_>, node: &str) -> Option<String> {
        let budget = self.budget_of(write.of, write.before, write.after)?;
        let places: Vec<_> = write.places().map(|(node, _)| node.as_str()).collect();
        // A node that is down, or suspect, takes the place that it has already; but there is none beside as many grants.
        let down = if self.is_surely(Availability::Up, write, node) { self.down_in(write, |_| true) } else { Vec::new() };
        (places.len() + down.len() > budget).then(|| format!("beside {places:?} under way and {down:?} unready, the budget is {budget}"))
    }

    /// Nodes that may be under way, by the spec that a write went over.
    pub(super) fn budget_of(&self, of: &str, before: &Value, after: &Value) -> Option<usize> {
        Some(self.terms(of)?.budget?.of(desired(before).max(desired(after))))
    }

    /// Too few nodes are left that can be available.
    fn lacks_minimum(&self, write: &LedgerWrite<'_>, node: &str) -> Option<String> {
        // A node that is down takes nothing away, nor does one that has gone.
        let leaves = |grant: &Value| grant["kind"] == "Remove";
        let there = self.cluster.node(node).is_some_and(|live| write.new[node]["nodeUID"] == live.uid());
        if !self.is_surely(Availability::Up, write, node) || leaves(&write.new[node]) && !there {
            return None;
        }
        let chosen = desired(write.before).min(desired(write.after));
        // Nodes that leave in this very write have served up to now.
        let leaving = if leaves(&write.new[node]) { write.begun().filter(|(_, grant)| leaves(grant)).count() } else { 0 };
        let minimum = match share(&write.before["spec"]["updateStrategy"]["rollingUpdate"]["minAvailableNodes"])? {
            Share::Nodes(nodes) => nodes,
            Share::Percent(percent) => ((chosen + leaving) * percent).div_ceil(100),
        };
        let held: BTreeSet<&str> = write.places().map(|(node, _)| node.as_str()).collect();
        let may_serve = |health: &Health| health.serves || health.ceased.is_some_and(|ceased| write.at - ceased < self.expected.lag());
        let here = self.slots.nodes.iter().filter(|((of, _), health)| of == write.of && may_serve(health));
        let serving =
            here.filter(|((_, node), _)| !held.contains(node.as_str()) && !self.is_surely(Availability::Down, write, node)).count();
        // Of chosen nodes whose Deployments were not seen yet nothing is known.
        let known = self.cluster.members_of(write.of).filter(|member| !write.new.get(node_of(member)).is_some_and(leaves));
        let unknown = desired(write.after).saturating_sub(known.count());
        let left = serving + unknown;
        (left < minimum).then(|| format!("and leaves at most {left} nodes available, minAvailableNodes is {minimum}"))
    }

    /// Its domain is full, or not the one whose turn it is.
    fn lacks_domain(&self, write: &LedgerWrite<'_>, node: &str) -> Option<String> {
        let DomainRule { label, budget, one_at_a_time } = topology(write.before)?;
        let domain = write.new[node]["domain"].as_str()?;
        // Nodes that are drained, or come back from that, may be under way anywhere.
        let asked = |other: &String| !write.old.get(other).is_some_and(is_drain);
        let elsewhere = write.places().filter(|(other, grant)| !is_drain(grant) && asked(other));
        let other = elsewhere.filter_map(|(_, grant)| grant["domain"].as_str()).find(|other| *other != domain);
        if let Some(other) = other.filter(|_| one_at_a_time) {
            return Some(format!("in domain {label}={domain} while {label}={other} is under way, with oneDomainAtATime"));
        }
        let places: Vec<_> = write.places().filter(|(_, grant)| grant["domain"] == domain).map(|(node, _)| node.as_str()).collect();
        let recent = self.slots.sizes.get(&(write.of.to_owned(), label.to_owned(), domain.to_owned())).map_or(0, Recent::greatest);
        let size = recent.max(self.domain_sizes(write.of, label).get(domain).copied().unwrap_or(0));
        // The write itself may say that nodes have joined.
        let budget = budget?.of(size + desired(write.after).saturating_sub(desired(write.before)));
        let down = if self.is_surely(Availability::Up, write, node) {
            self.down_in(write, |node| node.label(label).unwrap_or_default() == domain)
        } else {
            Vec::new()
        };
        (places.len() + down.len() > budget)
            .then(|| format!("in domain {label}={domain} beside {places:?} under way and {down:?} unready, its budget is {budget}"))
    }

    /// Nodes among these without a place that are chosen for certain and have been down for long.
    fn down_in(&self, write: &LedgerWrite<'_>, among: impl Fn(&Value) -> bool) -> Vec<&str> {
        let here = self.slots.nodes.keys().filter(|(of, _)| of == write.of).map(|(_, node)| node.as_str());
        let down = here.filter(|name| {
            let node = self.cluster.node(name);
            let free = !write.new.contains_key(*name) && !write.old.contains_key(*name);
            free && node.is_some_and(|node| among(node) && is_chosen(write.before, node)) && self.is_surely(Availability::Down, write, name)
        });
        down.collect()
    }

    /// The operator must have seen it so, however old its view was.
    fn is_surely(&self, state: Availability, write: &LedgerWrite<'_>, node: &str) -> bool {
        self.has_been(state, (write.of, node), write.at)
    }

    /// The operator must have seen the node up, at rest with exactly its pods.
    pub(super) fn is_surely_up(&self, of: &str, node: &str, at: DateTime<Utc>) -> bool {
        self.has_been(Availability::Up, (of, node), at)
    }

    fn has_been(&self, state: Availability, (of, node): (&str, &str), at: DateTime<Utc>) -> bool {
        let Some(health) = self.slots.nodes.get(&(of.to_owned(), node.to_owned())) else { return false };
        let since = if state == Availability::Up { health.shaken } else { Some(health.since) };
        health.state == state && since.is_none_or(|since| at - since >= self.expected.lag())
    }

    /// P2 whatever the ledger says: nodes that are held out of service in each domain, by the resource's own words.
    ///
    /// A topology that is new, a budget or a domain that has shrunk bind what is begun from then on. A node counts where it was
    /// when it was taken out, as long as its label and its grant say so too.
    pub(super) fn judge_told_domains(&mut self, of: &str, held: &BTreeSet<String>, at: DateTime<Utc>) {
        let owner = self.cluster.resource(of).filter(|owner| !owner.being_deleted()).cloned();
        let told = owner.as_ref().and_then(|owner| topology(owner).map(|topology| (owner, topology)));
        let label = told.as_ref().map(|(_, topology)| topology.label);
        let known = |key: &(String, String, String)| key.0 != of || Some(key.1.as_str()) == label;
        self.slots.sizes.retain(|key, _| known(key));
        self.slots.allowed.retain(|key, _| known(key));
        let Some((owner, DomainRule { label, budget, .. })) = told else {
            self.slots.placed.remove(of);
            return;
        };
        let none = Map::new();
        let grants = owner["status"]["rollout"]["grants"].as_object().unwrap_or(&none);
        let mut domains = self.domain_sizes(of, label);
        for (_, _, empty) in self.slots.sizes.keys().filter(|key| key.0 == of) {
            domains.entry(empty.clone()).or_default();
        }
        let domain_of = |node: &str| self.cluster.node(node).and_then(|object| object.label(label)).unwrap_or_default().to_owned();
        let labels: BTreeMap<String, String> = held.iter().map(|node| (node.clone(), domain_of(node))).collect();
        let touched: BTreeSet<_> = held.iter().filter(|node| self.is_touched(node)).cloned().collect();
        let drained = self.slots.drained.entry(of.to_owned()).or_default();
        drained.retain(|node| grants.contains_key(node));
        drained.extend(grants.iter().filter(|(_, grant)| is_drain(grant)).map(|(node, _)| node.clone()));
        let placed = self.slots.placed.entry(of.to_owned()).or_default();
        let more = held.iter().any(|node| !placed.contains_key(node));
        placed.retain(|node, _| held.contains(node));
        let mut here: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (node, now) in labels {
            let first = placed.entry(node.clone()).or_insert_with(|| now.clone());
            let grant = grants.get(&node);
            let agreed = *first == now && grant.is_none_or(|grant| grant["domain"] == now.as_str() && !is_free(grant));
            if agreed && !drained.contains(&node) && !touched.contains(&node) {
                domains.entry(now.clone()).or_default();
                here.entry(now).or_default().push(node);
            }
        }
        let mut found = Vec::new();
        for (domain, size) in domains {
            let key = (of.to_owned(), label.to_owned(), domain.clone());
            let recent = self.slots.sizes.entry(key.clone()).or_default();
            recent.see(size, at, self.expected.lag());
            let Some(now) = budget.map(|budget| budget.of(recent.greatest())) else {
                self.slots.allowed.remove(&key);
                continue;
            };
            let held = here.remove(&domain).unwrap_or_default();
            let granted = grants.values().filter(|grant| grant["domain"] == domain.as_str()).count();
            let begun = held.len().max(granted);
            let allowed = self.slots.allowed.entry(key).or_insert(usize::MAX);
            *allowed = still_allowed(now, *allowed, begun);
            if more && held.len() > *allowed {
                let allowed = *allowed;
                found.push(format!("in domain {label}={domain}, nodes of {of} held out of service are {held:?}, its budget is {allowed}"));
            }
        }
        for what in found {
            self.report(Property::DomainBudget, what);
        }
    }

    /// Some of what is judged was there before.
    pub(super) fn note_beginning(&mut self) {
        self.slots.half_way = true;
    }

    /// Remembers how the nodes are at the places that an observation may have changed, after it was applied.
    pub(super) fn note_health(&mut self, places: &BTreeSet<Place>, before: Option<&Value>, observation: &Observation) {
        let is_node = observation.kind == Kind::Node;
        let moved = is_node && before.is_some_and(|before| before["metadata"]["labels"] != observation.object["metadata"]["labels"]);
        // A Node alone makes no place.
        for place in places.iter().filter(|place| !is_node || self.slots.nodes.contains_key(*place)).cloned().collect::<Vec<_>>() {
            if moved {
                self.slots.nodes.entry(place.clone()).and_modify(|health| health.since = observation.at);
            }
            let deployment = self.cluster.members_at(&place).next();
            let state = deployment.map_or(Availability::Unclear, |deployment| self.state_of(deployment));
            let serves = deployment.is_some_and(|deployment| self.has_served(deployment));
            let half_way = self.slots.half_way;
            let health = self.slots.nodes.entry(place).or_insert_with(|| Health { since: observation.at, ..Health::default() });
            if (half_way || health.was_up) && (state != Availability::Up || health.state != Availability::Up) {
                health.shaken = Some(observation.at);
            }
            if state != health.state {
                (health.state, health.since) = (state, observation.at);
            }
            health.was_up |= state == Availability::Up;
            if health.serves && !serves {
                health.ceased = Some(observation.at);
            }
            health.serves = serves;
        }
    }

    /// What has become of the nodes meanwhile is not known.
    pub(super) fn forget_health(&mut self) {
        self.slots.half_way = true;
        self.slots.nodes.values_mut().for_each(|health| health.state = Availability::Unclear);
    }

    fn has_served(&self, deployment: &Value) -> bool {
        let label = names::member_label(resource(deployment));
        let serving = || self.cluster.node(node_of(deployment)).and_then(|node| node.label(&label)) == Some("serving");
        token(deployment).is_none_or(|token| token.phase != Phase::New) || serving()
    }

    fn state_of(&self, deployment: &Value) -> Availability {
        let of = resource(deployment);
        let (Some(node), Some(owner)) = (self.cluster.node(node_of(deployment)), self.cluster.resource(of)) else {
            return Availability::Unclear;
        };
        let wanted = replicas(deployment);
        if !self.has_served(deployment) || wanted == 0 || node.being_deleted() || !is_ready(node) {
            return Availability::Unclear;
        }
        let pods: Vec<_> = self.cluster.pods_of(deployment).filter(|pod| !has_ended(pod)).collect();
        let serving = |pod: &&&Value| is_ready(pod) && !pod.being_deleted();
        if (pods.iter().filter(serving).count() as u64) < wanted {
            return if is_chosen(owner, node) { Availability::Down } else { Availability::Unclear };
        }
        let rolling = &owner["spec"]["updateStrategy"]["rollingUpdate"];
        let key = rolling["annotateNodeToDetach"]["key"].as_str();
        let label = rolling["labelNodeToDetach"]
            .as_object()
            .map(|label| label.get("key").and_then(Value::as_str).unwrap_or(names::EXCLUDE_FROM_LOAD_BALANCERS_LABEL));
        let taken_out = deployment.annotation(names::TO_BE_UPDATED_ANNOTATION).is_some()
            || key.is_some_and(|key| node.annotation(key).is_some())
            || label.is_some_and(|key| node.label(key).is_some())
            || is_detached(node, of);
        let closed = token(deployment).is_some_and(|token| token.phase == Phase::Closed);
        let revision = deployment["spec"]["template"]["metadata"]["labels"][names::REVISION_LABEL].as_str();
        let exact = pods.len() as u64 == wanted && pods.iter().all(|pod| serving(&pod) && pod.label(names::REVISION_LABEL) == revision);
        if exact && closed && is_complete(deployment) && !taken_out { Availability::Up } else { Availability::Unclear }
    }
}

/// The resource wants this node whatever else may be: of a template that is not the spec's, an affinity or taints nothing is said.
fn is_chosen(owner: &Value, node: &Value) -> bool {
    node["spec"]["taints"].as_array().is_none_or(Vec::is_empty) && is_selected(owner, node)
}

/// The same, taints aside.
pub(super) fn is_selected(owner: &Value, node: &Value) -> bool {
    let spec = &owner["spec"];
    let pod = &spec["template"]["spec"];
    let affinity = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let plain = spec["rollbackTo"].is_null() && owner["status"]["rollout"]["rolledBack"].is_null() && affinity.is_null();
    let mut labels = [&spec["nodeSelector"], &pod["nodeSelector"]].into_iter().filter_map(Value::as_object).flatten();
    plain && labels.all(|(key, value)| node.label(key) == value.as_str())
}
