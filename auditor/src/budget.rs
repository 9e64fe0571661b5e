//! P1 and P2: how many nodes are out of service by the operator. Whether there was room for each as it was begun: [`super::slots`].

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use crds::names;
use planner::spec::Count;
use serde_json::Value;

use super::{
    Audit, Kind, Property,
    cluster_state::{Place, holds, is_at_work, is_detached, is_lost, node_of, place_of, token},
    observation::{ObjectExt, Observation},
};

/// Whether a node serves, for one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ServiceState {
    /// The operator holds it out.
    held: bool,
    /// It should serve and has too few ready pods, since the operator changed them.
    short: bool,
}

/// Nodes that are out, by resource, and since when.
#[derive(Debug, Default)]
pub(super) struct BudgetMemory {
    /// Nodes whose pods the operator has changed and not seen complete since: what is unready there is its doing.
    changed: BTreeSet<Place>,
    /// Nodes that do not serve, by resource.
    standing: BTreeMap<String, BTreeMap<String, ServiceState>>,
    out: BTreeMap<String, BTreeMap<String, DateTime<Utc>>>,
    /// What each resource allows itself.
    told: BTreeMap<String, usize>,
    /// What it is held to in each domain.
    domains: BTreeMap<(String, String), usize>,
}

/// Resources with these places, and the one that was observed.
pub(super) fn resources_at(places: &BTreeSet<Place>, observation: &Observation) -> BTreeSet<String> {
    let mut resources: BTreeSet<String> = places.iter().map(|(of, _)| of.clone()).collect();
    if observation.kind == Kind::IngressDaemonSet {
        resources.insert(names::uid8(observation.object.uid()).to_owned());
    }
    resources
}

impl Audit<'_> {
    /// Nodes of a resource that the operator holds out of service.
    pub(super) fn held_out(&self, of: &str) -> BTreeSet<String> {
        self.standing(of, |node| node.held)
    }

    /// Counts after every change, at the places that it may have changed.
    pub(super) fn judge_budget(&mut self, resources: &BTreeSet<String>, at: DateTime<Utc>) {
        for name in resources {
            let out = self.standing(name, |_| true);
            let told = self.told_budget(name, out.len());
            let domains = self.domains(name, &out);
            let known = self.budget.out.entry(name.clone()).or_default();
            if out.len() == known.len() && out.iter().all(|node| known.contains_key(node)) {
                continue;
            }
            let mut longest = self.verdict.longest_out;
            known.retain(|node, since| {
                let stays = out.contains(node);
                if !stays {
                    longest = longest.max((at - *since).to_std().unwrap_or_default());
                }
                stays
            });
            for node in &out {
                known.entry(node.clone()).or_insert(at);
            }
            self.verdict.longest_out = longest;
            self.verdict.most_out = self.verdict.most_out.max(out.len());
            let budget = self.expected.budget.min(told);
            if out.len() > budget {
                let what = format!("{} nodes of {name} are out of service, the budget is {budget}: {out:?}", out.len());
                self.report(Property::Budget, what);
            }
            self.judge_domains(name, domains);
        }
    }

    /// The budget by the resource's own words, as far as they are numbers. A smaller one binds what is granted from then on:
    /// what had been granted before it goes on, and counts as allowed until it has ended.
    fn told_budget(&mut self, uid8: &str, out: usize) -> usize {
        let Some(owner) = self.cluster.resource(uid8) else { return usize::MAX };
        let Some(Count::Number(now)) = self.terms(uid8).and_then(|terms| terms.budget) else { return usize::MAX };
        let now = usize::try_from(now).unwrap_or(0);
        let granted = owner["status"]["rollout"]["grants"].as_object().map_or(0, serde_json::Map::len);
        // An audit that begins half-way has not seen what was allowed when that was granted.
        let first = if self.expected.from_afar { now.max(granted) } else { now };
        let before = self.budget.told.get(uid8).copied().unwrap_or(first);
        let allowed = still_allowed(now, before, granted.max(out));
        self.budget.told.insert(uid8.to_owned(), allowed);
        allowed
    }

    /// Nodes that are out in each domain, and how many may be: as with the budget of all nodes, a domain that has shrunk binds
    /// what is granted from then on.
    fn domains(&mut self, of: &str, out: &BTreeSet<String>) -> Vec<(String, Vec<String>, usize)> {
        let Some((label, share)) = self.expected.domain.clone() else { return Vec::new() };
        let mut nodes: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for node in out {
            let domain = self.cluster.node(node).and_then(|object| object.label(&label)).unwrap_or_default();
            nodes.entry(domain.to_owned()).or_default().push(node.clone());
        }
        let mut granted: BTreeMap<&str, usize> = BTreeMap::new();
        let grants = self.cluster.resource(of).and_then(|owner| owner["status"]["rollout"]["grants"].as_object());
        for (_, grant) in grants.into_iter().flatten() {
            *granted.entry(grant["domain"].as_str().unwrap_or_default()).or_default() += 1;
        }
        let mut found = Vec::new();
        for (domain, size) in self.domain_sizes(of, &label) {
            let (now, here) = (share.of(size), nodes.remove(&domain).unwrap_or_default());
            let begun = here.len().max(granted.get(domain.as_str()).copied().unwrap_or(0));
            let before = self.budget.domains.entry((of.to_owned(), domain.clone())).or_insert(now);
            *before = still_allowed(now, *before, begun);
            found.push((format!("{label}={domain}"), here, *before));
        }
        // Nodes on which only the mark is left are of no size that is known.
        found.extend(nodes.into_iter().map(|(domain, here)| (format!("{label}={domain}"), here, share.of(0))));
        found
    }

    fn judge_domains(&mut self, resource: &str, domains: Vec<(String, Vec<String>, usize)>) {
        for (domain, nodes, budget) in domains.into_iter().filter(|(_, nodes, budget)| nodes.len() > *budget) {
            let what = format!("in domain {domain}, nodes of {resource} out of service are {nodes:?}, the budget is {budget}");
            self.report(Property::DomainBudget, what);
        }
    }

    /// How many nodes of the resource each domain has. Of nodes that have joined and have no Deployment yet only the number is
    /// known: each domain may have all of them.
    pub(super) fn domain_sizes(&self, of: &str, label: &str) -> BTreeMap<String, usize> {
        let mut sizes: BTreeMap<String, usize> = BTreeMap::new();
        for deployment in self.cluster.members_of(of) {
            let Some(node) = self.cluster.node(node_of(deployment)) else { continue };
            *sizes.entry(node.label(label).unwrap_or_default().to_owned()).or_default() += 1;
        }
        let desired = self.cluster.resource(of).and_then(|owner| owner["status"]["nodes"]["desired"].as_u64());
        let known: usize = sizes.values().sum();
        let joining = desired.and_then(|desired| usize::try_from(desired).ok()).unwrap_or(0).saturating_sub(known);
        for size in sizes.values_mut() {
            *size += joining;
        }
        sizes
    }

    /// Looks again at these places.
    pub(super) fn note_standing(&mut self, places: &BTreeSet<Place>) {
        for place in places {
            self.note_changed(place);
            let (standing, nodes) = (self.standing_of(place), self.budget.standing.entry(place.0.clone()).or_default());
            if standing == ServiceState::default() {
                nodes.remove(&place.1);
            } else {
                nodes.insert(place.1.clone(), standing);
            }
        }
    }

    /// The end of something was missed: looks at every place again.
    pub(super) fn note_every_standing(&mut self) {
        let known = self.budget.standing.iter().flat_map(|(of, nodes)| nodes.keys().map(|node| (of.clone(), node.clone())));
        let places = self.cluster.members().map(place_of).chain(known).collect();
        self.note_standing(&places);
    }

    /// Whether its pods are the operator's business. One that was complete is not any more, whatever becomes of it; nor one whose
    /// Node is lost, whose place a person has freed, or where somebody has his hands.
    fn note_changed(&mut self, place: &Place) {
        let (of, name) = place;
        let mut members = self.cluster.members_at(place);
        let gone = self.is_touched(name) || self.cluster.node(name).is_none_or(is_lost);
        let changes = !gone && members.any(|deployment| token(deployment).is_some_and(|token| is_at_work(token.phase)));
        if changes {
            self.budget.changed.insert((of.clone(), name.clone()));
            return;
        }
        let complete = |deployment: &Value| {
            let released = token(deployment).is_some_and(|token| self.cluster.is_released(deployment, token.id));
            released || self.was_complete(deployment)
        };
        if gone || self.cluster.members_at(place).all(complete) {
            self.budget.changed.remove(place);
        }
    }

    fn standing_of(&self, place: &Place) -> ServiceState {
        let (of, name) = place;
        let Some(node) = self.cluster.node(name).filter(|node| !taken_away(node)) else { return ServiceState::default() };
        let claimed = self.cluster.members_at(place).any(|deployment| token(deployment).is_some_and(|token| holds(token.phase)));
        let wanted = node.label(&names::member_label(of)) == Some("serving") && self.budget.changed.contains(place);
        ServiceState {
            held: claimed || is_detached(node, of),
            short: wanted && self.cluster.members_at(place).any(|deployment| !self.cluster.all_ready(deployment)),
        }
    }

    /// Nodes of a resource that do not serve, and of which this holds. None of one that is deleted: it takes its nodes out all at once, and
    /// nobody wants them to serve any more.
    fn standing(&self, of: &str, holds: impl Fn(&ServiceState) -> bool) -> BTreeSet<String> {
        if self.deleted_resources.contains_key(of) || self.cluster.is_being_deleted(of) {
            return BTreeSet::new();
        }
        let nodes = self.budget.standing.get(of).into_iter().flatten();
        nodes.filter(|(_, standing)| holds(standing)).map(|(node, _)| node.clone()).collect()
    }
}

/// Somebody else is about to take the machine away; that is not the operator's doing.
pub(super) fn taken_away(node: &Value) -> bool {
    let tainted = node["spec"]["taints"]
        .as_array()
        .is_some_and(|taints| taints.iter().any(|taint| names::DEPARTURE_TAINTS.contains(&taint["key"].as_str().unwrap_or_default())));
    tainted || node.being_deleted()
}

/// A smaller budget binds what is begun from then on: what had been begun within the one `before` counts as allowed until it has ended.
pub(super) fn still_allowed(now: usize, before: usize, begun: usize) -> usize {
    now.max(before.min(begun))
}
