//! Promises that speak of a plan and of what it was based on: no operator keeps to what it has not seen.

use super::DEPARTURES;
use crate::world::cluster::HEALTH_PORT;
use crds::{
    holders::EntryPhase,
    ingress_daemon_set::{RolloutStep, UpdateStrategyType},
    ledger::{Grant, GrantReason, Marks},
    names,
    token::Phase,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use planner::{
    Action, Plan, Reason, Snapshot,
    facts::{DeploymentFacts, NodeFacts, readiness},
    plan::Write,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// What the plan does against a promise.
pub fn broken(snapshot: &Snapshot, plan: &Plan) -> Vec<String> {
    let resource = &snapshot.resource;
    if !resource.has_finalizer() {
        return Vec::new();
    }
    let seen = Seen { snapshot, plan, selectors: selectors(snapshot, plan) };
    let begun = seen.begun();
    let all = [seen.held_without_a_reason(), seen.begun_above_the_budget(&begun), seen.begun_though_skipped(&begun)];
    let rollout = [seen.too_few_are_left(&begun), seen.passes_a_step_unproven(), seen.is_through_too_early()];
    let unheard = [seen.touches_pods_unheard(), seen.frees_a_place_unheard()];
    let proof = [seen.joins_with_what_is_not_released(), seen.rolls_back_later()];
    all.into_iter().chain(rollout).chain(unheard).chain(proof).flatten().collect()
}

/// P13: the same is decided when everything comes in another order.
pub fn depends_on_order(snapshot: &Snapshot, plan: &Plan) -> Option<String> {
    let mut turned = snapshot.clone();
    turned.pods.values_mut().for_each(|pods| pods.reverse());
    turned.replica_sets.values_mut().for_each(|sets| sets.reverse());
    turned.answers.values_mut().for_each(|answers| answers.reverse());
    turned.daemon_sets.reverse();
    turned.history.reverse();
    let other = planner::decide(&turned);
    (other != *plan).then(|| format!("P13: another order of the input, another plan: {plan:?}, {other:?}"))
}

struct Seen<'a> {
    snapshot: &'a Snapshot,
    plan: &'a Plan,
    selectors: [BTreeMap<String, String>; 2],
}

/// Of the spec, and of the template that nodes are to run.
fn selectors(snapshot: &Snapshot, plan: &Plan) -> [BTreeMap<String, String>; 2] {
    let effective = snapshot.history.iter().find(|known| known.revision == plan.status.revisions.effective);
    let template = effective.map_or(&snapshot.resource.spec.template, |known| &*known.template);
    let of_template = &template["spec"]["nodeSelector"];
    let of_template = of_template.as_object().into_iter().flatten();
    let of_template = of_template.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()));
    [snapshot.resource.spec.node_selector.clone(), of_template.collect()]
}

/// Takes no slot.
fn is_free(grant: &Grant) -> bool {
    grant.kind == GrantReason::Drain || grant.kind == GrantReason::Remove && grant.marks == Marks::default()
}

/// Its machine is about to go.
fn is_taken_away(node: &NodeFacts) -> bool {
    node.deleting || node.taints.iter().any(|taint| DEPARTURES.iter().any(|(key, _)| taint.key == *key))
}

impl Seen<'_> {
    fn is_chosen(&self, node: &NodeFacts) -> bool {
        self.selectors.iter().flatten().all(|(key, value)| node.labels.get(key) == Some(value))
    }

    fn chosen(&self) -> impl Iterator<Item = (&String, &NodeFacts)> {
        self.snapshot.nodes.iter().map(|(name, node)| (name, &**node)).filter(move |(_, node)| self.is_chosen(node))
    }

    fn is_invalid(&self) -> bool {
        self.plan.status.conditions.iter().any(|condition| condition.type_ == "Valid" && condition.status == "False")
    }

    /// Nodes for which the plan takes a slot; none while a ledger is rebuilt, which finds them begun.
    fn begun(&self) -> Vec<&String> {
        let before = self.snapshot.resource.ledger().filter(|ledger| ledger.rebuilding.is_none());
        let Some((before, after)) = before.zip(self.plan.status.rollout.as_ref()) else { return Vec::new() };
        let begun = after.grants.iter().filter(|(node, grant)| !is_free(grant) && !before.grants.contains_key(*node));
        begun.map(|(node, _)| node).collect()
    }

    /// P14: a node that is not done, and of which the plan does not say why.
    fn held_without_a_reason(&self) -> Option<String> {
        let (snapshot, plan) = (self.snapshot, self.plan);
        let invalid = self.is_invalid();
        let revision = &plan.status.revisions.effective;
        let ledger = snapshot.resource.ledger();
        let silent = self.chosen().find(|(name, _)| {
            let done = snapshot.deployments.get(*name).is_some_and(|deployment| {
                let wanted = deployment.revision() == revision && deployment.replicas() == snapshot.resource.spec.pods_per_node;
                wanted && readiness::is_settled(deployment, snapshot.pods_on(name))
            });
            let granted = ledger.is_some_and(|ledger| ledger.grants.contains_key(*name));
            let left_alone = invalid && !snapshot.deployments.contains_key(*name);
            !(left_alone || done && !granted || plan.node_states.contains_key(*name) || granted && self.releases(name))
        });
        silent.map(|(name, node)| format!("P14: {name} is held without a reason: {node:?}, {:?}", snapshot.deployments.get(name)))
    }

    /// The plan takes the node's grant away: it is done.
    fn releases(&self, node: &str) -> bool {
        self.plan.status.rollout.as_ref().is_some_and(|ledger| !ledger.grants.contains_key(node))
    }

    /// P1 for a budget that is a share of the nodes which are eligible now.
    fn begun_above_the_budget(&self, begun: &[&String]) -> Option<String> {
        let resource = &self.snapshot.resource;
        let rolling = resource.spec.update_strategy.as_ref()?.rolling_update.as_ref()?;
        let IntOrString::String(percent) = rolling.max_unavailable_nodes.as_ref().or(rolling.max_degraded_nodes.as_ref())? else {
            return None;
        };
        let percent: usize = percent.strip_suffix('%')?.parse().ok()?;
        let (eligible, under_way) = (self.chosen().count(), self.held());
        let budget = (eligible * percent / 100).max(1);
        let above = !resource.deleting && !begun.is_empty() && under_way > budget;
        above.then(|| format!("P1: {begun:?} are begun, {under_way} are under way, of {eligible} nodes {percent} % may be"))
    }

    fn held(&self) -> usize {
        self.plan.status.rollout.iter().flat_map(|ledger| ledger.grants.values()).filter(|grant| !is_free(grant)).count()
    }

    /// P8 for a node that a person wants left alone.
    fn begun_though_skipped(&self, begun: &[&String]) -> Option<String> {
        let key = self.snapshot.resource.key();
        let skipped = |node: &NodeFacts| node.annotations.get(names::SKIP_ANNOTATION).is_some_and(|listed| listed.contains(&key));
        let (name, _) = self.chosen().find(|(name, node)| begun.contains(name) && skipped(node))?;
        Some(format!("P8: {name} is begun though it is to be skipped"))
    }

    /// P21: nodes that must stay available do, those that leave and serve among them; what takes machines away does not wait.
    fn too_few_are_left(&self, begun: &[&String]) -> Option<String> {
        let resource = &self.snapshot.resource;
        let rolling = resource.spec.update_strategy.as_ref()?.rolling_update.as_ref()?;
        let minimum =
            self.minimum(rolling.min_available_nodes.as_ref()?).filter(|_| resource.spec.pods_per_node > 0 && !resource.deleting)?;
        let after = self.plan.status.rollout.as_ref()?;
        let serving = |name: &String, deployment: &DeploymentFacts| {
            let token = deployment.readable_token();
            deployment.replicas() > 0
                && token.is_none_or(|token| token.phase == Phase::Closed)
                && readiness::is_ready(deployment, self.snapshot.pods_on(name))
        };
        let detached = |node: &NodeFacts| node.holders().is_ok_and(|all| all.values().any(|entry| entry.phase == EntryPhase::Detached));
        let serve = self.snapshot.nodes.iter().filter(|(name, node)| {
            !detached(node) && self.snapshot.deployments.get(*name).is_some_and(|deployment| serving(name, deployment))
        });
        // The write that gives a place back may give it to the next node.
        let (left, granted): (Vec<_>, Vec<_>) = serve
            .map(|(name, _)| name)
            .partition(|name| after.grants.get(*name).is_none_or(|grant| grant.kind != GrantReason::Drain && is_free(grant)));
        // What may break at any moment is not relied upon, unless it is what makes way.
        let suspects: BTreeSet<_> = self.plan.sights.suspects().collect();
        // A share needs nobody who leaves once all serve that are to stay.
        let is_share = matches!(rolling.min_available_nodes, Some(IntOrString::String(_)));
        let all_serve = is_share && self.chosen().all(|(name, _)| left.contains(&name) && !suspects.contains(name.as_str()));
        let is_missed = |name: &String| !all_serve || self.chosen().any(|(chosen, _)| chosen == name);
        let stays = |name: &&String| begun.contains(name) && !is_taken_away(&self.snapshot.nodes[*name]) && is_missed(name);
        let taken: Vec<_> = granted.into_iter().filter(stays).collect();
        let relied = taken.iter().any(|name| !suspects.contains(name.as_str()));
        let left = left.iter().filter(|name| !(relied && suspects.contains(name.as_str()))).count();
        (!taken.is_empty() && left < minimum).then(|| format!("P21: {begun:?} are begun, {left} nodes stay available, {minimum} must"))
    }

    /// Of a share, nodes that leave count until they have no pods.
    fn minimum(&self, wanted: &IntOrString) -> Option<usize> {
        let percent: usize = match wanted {
            IntOrString::Int(minimum) => return usize::try_from(*minimum).ok(),
            IntOrString::String(percent) => percent.strip_suffix('%')?.parse().ok()?,
        };
        let leaves = |(name, deployment): &(&String, &Arc<DeploymentFacts>)| {
            let token = deployment.readable_token();
            let served = token.is_none_or(|token| token.phase != Phase::New);
            let there = self.snapshot.nodes.get(*name).is_some_and(|node| !self.is_chosen(node));
            there && served && deployment.replicas() > 0
        };
        let of = self.chosen().count() + self.snapshot.deployments.iter().filter(leaves).count();
        Some((of * percent).div_ceil(100))
    }

    /// The grant was read, and its health port, which the load balancer asks, has not answered.
    fn is_unheard(&self, node: &str, grant: &Grant, phase: Phase) -> bool {
        if !self.snapshot.resource.spec.health_check_node_ports.contains(&HEALTH_PORT.into()) {
            return false;
        }
        let token = self.snapshot.deployments.get(node).and_then(|deployment| deployment.readable_token());
        let marked = token.is_some_and(|token| token.id == grant.id && token.phase == phase);
        let heard = self.snapshot.answers.get(node).is_some_and(|answers| answers.iter().any(|answer| answer.port == HEALTH_PORT));
        let sound = self.plan.status.rollout.as_ref().is_some_and(|ledger| ledger.rebuilding.is_none());
        marked && !heard && sound && !grant.released && !self.snapshot.resource.deleting && !self.is_invalid()
    }

    fn grants(&self) -> impl Iterator<Item = (&String, &Grant)> {
        self.snapshot.resource.ledger().into_iter().flat_map(|ledger| &ledger.grants)
    }

    /// P10 for the operator: pods change under the Deployment's mark when the health port says that the node is out, and on a Node that is
    /// Ready; what leaves waits a minute at most.
    fn touches_pods_unheard(&self) -> Option<String> {
        let updates = |node: &str| {
            let writes = |action: &Action| matches!(action, Action::PatchDeployment { node: of, write: Write::Update | Write::Recreate(_) | Write::Pause, .. } if of == node);
            self.plan.actions.iter().any(writes)
        };
        let stays =
            |grant: &Grant| matches!(grant.kind, GrantReason::Update | GrantReason::Repair | GrantReason::Shrink | GrantReason::Grow);
        let mut touched = self.grants().filter(|(node, grant)| stays(grant) && updates(node));
        let is_lost = |node: &String| self.snapshot.nodes.get(node).is_some_and(|node| !node.ready);
        let (node, _) = touched.find(|(node, grant)| is_lost(node) || self.is_unheard(node, grant, Phase::Claimed))?;
        Some(format!("P10: pods of {node} change though nobody knows what its load balancer is told"))
    }

    /// The same for a place: the next node goes out when this one is known to be back.
    fn frees_a_place_unheard(&self) -> Option<String> {
        let stays = |node: &String| self.chosen().any(|(name, facts)| name == node && facts.ready && !is_taken_away(facts));
        let (node, _) =
            self.grants().find(|(node, grant)| stays(node) && self.releases(node) && self.is_unheard(node, grant, Phase::Closed))?;
        Some(format!("P10: the place of {node} is free though nobody knows what its load balancer is told"))
    }

    /// P20: a node that joins gets a revision that is released and proved, where there is one.
    fn joins_with_what_is_not_released(&self) -> Option<String> {
        let resource = &self.snapshot.resource;
        let (before, after) = (resource.status.as_ref()?, &self.plan.status);
        let (current, effective) = (&before.revisions.current, &after.revisions.effective);
        let proved = after.rollout.as_ref()?.rollout_state.as_ref().is_none_or(|rollout| rollout.proved);
        let released = proved && !resource.spec.paused || *effective != after.revisions.update || resource.spec.rollback_to.is_some();
        let known = self.snapshot.history.iter().any(|known| known.revision == *current);
        let creates = |action: &Action| match action {
            Action::CreateDeployment { node, body, .. } => {
                (body["spec"]["template"]["metadata"]["labels"][names::REVISION_LABEL] == effective.as_str()).then(|| node.clone())
            }
            _ => None,
        };
        // Whose Deployment somebody deleted in the middle of its update, or after it, does not join.
        let reached = resource.ledger().and_then(|ledger| ledger.rollout_state.as_ref()).map(|rollout| &rollout.reached);
        let uid = |node: &String| self.snapshot.nodes.get(node).map(|node| &node.uid);
        let has_it = |node: &String| reached.and_then(|reached| reached.get(node)).is_some_and(|known| Some(known) == uid(node));
        let has_place =
            |node: &String| has_it(node) || self.grants().any(|(name, grant)| name == node && grant.kind == GrantReason::Update);
        let joins = self.plan.actions.iter().filter_map(creates).find(|node| !has_place(node));
        let node = joins.filter(|_| !released && known && current != effective)?;
        Some(format!("P20: {node} joins with {effective}, which is not released; all nodes ran {current}"))
    }

    /// P22: the way back is not proved, and what broke makes way first.
    fn rolls_back_later(&self) -> Option<String> {
        let after = &self.plan.status;
        let back = after.revisions.effective != after.revisions.update;
        let suspect = |node: &String| {
            let suspect = after.rollout.as_ref().and_then(|ledger| ledger.suspects.get(node));
            suspect.is_some_and(|suspect| suspect.revision != after.revisions.effective) && self.plan.sights.suspect(node).is_some()
        };
        let waits = |node: &String, reason: &Reason| matches!(reason, Reason::Proving { unproved, .. } if *unproved > 0 || suspect(node));
        let (node, state) = self.plan.node_states.iter().find(|(node, state)| back && waits(node, &state.reason))?;
        Some(format!("P22: {node} waits for a proof on the way back: {:?}", state.reason))
    }

    /// It is attached and runs this revision: all its pods are ready.
    fn runs(&self, revision: &str, name: &str) -> bool {
        self.snapshot.deployments.get(name).is_some_and(|deployment| {
            let token = deployment.readable_token();
            let closed = token.is_none_or(|token| token.phase == Phase::Closed);
            deployment.revision() == revision && closed && readiness::is_ready(deployment, self.snapshot.pods_on(name))
        })
    }

    fn steps(&self) -> &[RolloutStep] {
        let strategy =
            self.snapshot.resource.spec.update_strategy.as_ref().filter(|strategy| strategy.type_ != UpdateStrategyType::OnDelete);
        strategy.and_then(|strategy| strategy.rolling_update.as_ref()).map_or(&[], |rolling| &rolling.steps)
    }

    /// A step of a canary is passed when as many nodes as it asks for serve with the revision, a partition notwithstanding.
    fn passes_a_step_unproven(&self) -> Option<String> {
        let rollout = self.plan.status.rollout.as_ref()?.rollout_state.as_ref()?;
        let before = self.snapshot.resource.ledger().and_then(|ledger| ledger.rollout_state.as_ref());
        let done = before.filter(|before| before.revision == rollout.revision).map_or(0, |before| before.steps_done);
        let step = self.steps().get(done as usize).filter(|_| rollout.steps_done > done)?;
        let chosen = self.chosen().count();
        let wanted = match step.nodes.as_ref()? {
            IntOrString::Int(nodes) => usize::try_from(*nodes).ok()?.min(chosen),
            IntOrString::String(percent) => chosen * percent.strip_suffix('%')?.parse::<usize>().ok()? / 100,
        };
        let granted = |name: &String| self.snapshot.resource.ledger().is_some_and(|ledger| ledger.grants.contains_key(name));
        let serve = self.chosen().filter(|(name, _)| self.runs(&rollout.revision, name) && !granted(name)).count();
        // A person may pass over a step of which no node has ever served.
        let promote = self.snapshot.resource.spec.promote.as_ref();
        let passed_over = serve == 0 && promote.is_some_and(|promote| promote.revision == rollout.revision && promote.step > done);
        (serve < wanted.max(1) && !passed_over)
            .then(|| format!("P8: step {} is passed by {serve} nodes, it asks for {wanted} of {chosen}", done + 1))
    }

    /// A revision has become the one that all nodes ran: they serve with it, and nothing is under way or to be proved.
    fn is_through_too_early(&self) -> Option<String> {
        let (before, after) = (self.snapshot.resource.status.as_ref(), &self.plan.status);
        let before = before.map_or("", |before| before.revisions.current.as_str());
        let ledger = after.rollout.as_ref().filter(|_| after.revisions.current != before)?;
        let current = &after.revisions.current;
        // The write that says so may take the last grant away.
        let under_way = |(name, _): &(&String, &NodeFacts)| ledger.grants.get(*name).is_some_and(|grant| grant.kind == GrantReason::Update);
        let (run, missing): (Vec<_>, Vec<_>) = self.chosen().partition(|(name, _)| self.runs(current, name));
        // One that a person leaves out, or that is down, may be missing, within the budget.
        let key = self.snapshot.resource.key();
        let skipped = |node: &NodeFacts| node.annotations.get(names::SKIP_ANNOTATION).is_some_and(|listed| listed.contains(&key));
        let excused = |node: &NodeFacts| missing.len() <= self.plan.gauges.budget && (!node.ready || skipped(node));
        let early = run.iter().chain(&missing).find(|node| under_way(node) || !self.runs(current, node.0) && !excused(node.1));
        let nobody = run.is_empty();
        let of_the_spec = after.revisions.effective == after.revisions.update && self.snapshot.resource.spec.rollback_to.is_none();
        let done = ledger.rollout_state.as_ref().map_or(0, |rollout| rollout.steps_done as usize);
        let stepping = !before.is_empty() && of_the_spec && done < self.steps().len();
        (early.is_some() || nobody || stepping)
            .then(|| format!("P8: {current} is said to have run on all nodes, {done} steps done, {early:?}"))
    }
}
