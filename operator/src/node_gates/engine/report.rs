//! What the loop says of gates: status, metrics, the words of those that have no status, and finalizers.

use super::{Engine, Finalizers, RefusedPatch, Writing};
use crate::{
    metrics::node_gates::{Blocked, Nodes},
    node_gates::{
        act,
        events::{About, Told},
    },
};
use crds::{NodeReadinessGate, NodeReadinessGateStatus, names};
use futures::FutureExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Api, Client, ResourceExt as _};
use planner::{
    gates_shared::{Key, conditions::repeats_ready},
    node_gates::{
        Gate, World,
        decide::GateView,
        legacy,
        record::annotation_key,
        status::{Circumstances, Deletion, RefusedWrites, status, unseen},
    },
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// How each gate sees each node: by node, then by UID.
type Views = BTreeMap<String, BTreeMap<String, GateView>>;

/// A merge patch of a gate.
pub(super) struct GatePatch {
    uid: String,
    name: String,
    body: Value,
    /// The status that it leaves; `None` where it is about finalizers.
    status: Option<NodeReadinessGateStatus>,
    /// What somebody should look at once it is written.
    troubles: Vec<Told>,
}

/// One after the other, and whether each was done.
async fn write_all(client: Client, writes: Vec<GatePatch>) -> Vec<(GatePatch, bool)> {
    let api: Api<NodeReadinessGate> = Api::all(client);
    let mut ended = Vec::new();
    for write in writes {
        let result = act::merge(&api, &write.name, write.status.is_some(), &write.body).await;
        if let Err(error) = &result {
            tracing::warn!(gate = write.name, %error, "status or finalizers not written; trying again");
        }
        ended.push((write, result.is_ok()));
    }
    ended
}

impl Engine {
    /// A gate that may write to nodes must be able to clean up; one that only ever ran dry need not.
    pub(super) async fn keep_finalizers(&mut self) {
        let api: Api<NodeReadinessGate> = Api::all(self.client.clone());
        self.finalizers = Finalizers::Kept;
        let before = std::mem::take(&mut self.unfinalized);
        for gate in self.known.objects.values() {
            let mut finalizers = gate.metadata.finalizers.clone().unwrap_or_default();
            let ours = finalizers.iter().any(|name| name == names::FINALIZER);
            if ours || gate.spec.dry_run || gate.metadata.deletion_timestamp.is_some() {
                continue;
            }
            finalizers.push(names::FINALIZER.to_owned());
            let body = act::finalizers(&finalizers, gate.metadata.resource_version.as_deref());
            if let Err(error) = act::merge(&api, &gate.name_any(), false, &body).await {
                tracing::warn!(gate = gate.name_any(), %error, "finalizer not set; trying again");
                self.finalizers = Finalizers::Failed;
                self.unfinalized.extend(gate.uid());
            }
        }
        if !before.is_subset(&self.unfinalized) {
            self.state.gates();
        }
    }

    /// Status of gates that changed, metrics, and finalizers of gates that have left every node. The loop does not wait for what
    /// is to be written; until that has ended, nothing else is said.
    pub(super) fn report(&mut self, writing: &Writing) {
        if !writing.is_empty() || !std::mem::take(&mut self.status_due) || !self.listed {
            return;
        }
        let seen = self.circumstances();
        let now = chrono::Utc::now().timestamp();
        self.said.retain(|uid, _| seen.iter().any(|(gate, _)| gate.uid == *uid));
        let names: BTreeSet<_> = seen.iter().map(|(gate, _)| gate.name.clone()).collect();
        for name in &names {
            self.metrics.begin(name);
        }
        for gone in self.shown.difference(&names) {
            self.metrics.forget(gone);
        }
        self.shown = names;
        let statuses: Vec<_> = seen
            .iter()
            .map(|(gate, circumstances)| {
                let object = self.object(gate).cloned();
                let before = self.status_before(gate, object.as_ref());
                let views = self.views.iter().filter_map(|(node, views)| Some((node.as_str(), views.get(&gate.uid)?)));
                let status = status(gate, &before.conditions, views, circumstances, now);
                (gate, object, before, status)
            })
            .collect();
        // Of gates that are gone nothing is shown.
        let nodes = statuses.iter().zip(&seen).flat_map(|((gate, .., status), (_, of))| self.nodes(gate, status, of)).collect();
        self.metrics.nodes.replace(&nodes);
        self.metrics.blocked.replace(&statuses.iter().flat_map(|(gate, .., status)| blocked(gate, status)).collect());
        let mut implied = BTreeMap::new();
        let mut writes = Vec::new();
        for (gate, object, before, status) in statuses {
            match (object, gate.implied_by()) {
                (Some(object), _) if gate.deleting => {
                    let done = self.let_go(&object, &gate.uid);
                    writes.extend(done.or_else(|| self.status_write(gate, &object, &before, status)));
                }
                (Some(object), _) => {
                    writes.extend(self.status_write(gate, &object, &before, status));
                }
                (None, Some(resource)) => drop(implied.insert(resource, status)),
                (None, None) => self.say(gate, &status),
            }
        }
        for (namespace, name) in self.state.say(implied) {
            self.observer.requeue().mark(namespace, name);
        }
        if !writes.is_empty() {
            writing.push(write_all(self.client.clone(), writes).boxed());
        }
    }

    /// What was written is known; what was not is due again.
    pub(super) fn written(&mut self, writes: Vec<(GatePatch, bool)>) {
        for (write, is_done) in writes {
            if !is_done {
                self.status_due = true;
                continue;
            }
            write.troubles.into_iter().for_each(|trouble| self.let_know(trouble));
            if let Some(status) = write.status {
                self.reported.insert(write.uid, status);
            }
        }
    }

    /// The gates, and the state of each besides how it sees nodes.
    fn circumstances(&self) -> Vec<(Arc<Gate>, Circumstances)> {
        let world = self.state.world();
        let of = |gate: &Arc<Gate>| Circumstances {
            unsatisfiable: self.unsatisfiable.get(&gate.uid).cloned(),
            unseen: unseen(&world, gate),
            overlaps: overlaps(&world, &self.views, &gate.uid),
            refused: self.refused_of(&gate.uid),
            in_force: self.in_force.get(&gate.uid).and_then(|said| said.in_force.clone()),
            admission: self.admission.condition(gate, !self.unsatisfiable.contains_key(&gate.uid), self.object(gate).is_some()),
            taints: world.taints.get(&gate.uid).cloned().unwrap_or_default(),
            deletion: self.object(gate).filter(|object| object.metadata.deletion_timestamp.is_some()).map(|_| self.deletion(&gate.uid)),
        };
        // What was not judged yet has nothing to say, and what it said of its being in force is still to be read.
        world.gates.values().filter(|gate| self.in_force.contains_key(&gate.uid)).map(|gate| (Arc::clone(gate), of(gate))).collect()
    }

    /// Nodes that carry something of the gate; those that are being deleted take it with them.
    fn carrying(&self, uid: &str) -> usize {
        let key = annotation_key(uid);
        self.observer.nodes().values().filter(|node| !node.deleting && node.annotations.contains_key(&key)).count()
    }

    /// What the deletion of a gate waits for.
    fn deletion(&self, uid: &str) -> Deletion {
        let nodes = self.carrying(uid);
        Deletion { nodes: u32::try_from(nodes).unwrap_or(u32::MAX), admission: self.admission.lingers(uid) }
    }

    /// Nodes that could not be written to although the gate asks for it.
    fn refused_of(&self, uid: &str) -> Option<RefusedWrites> {
        let due = |node: &str| self.views.get(node).and_then(|views| views.get(uid)).is_some_and(|view| view.due);
        let mut refused = self.failures.iter().filter(|(node, _)| due(node)).filter_map(|(node, failure)| Some((node, failure.told()?)));
        let (node, RefusedPatch { forbidden, message }) = refused.next()?;
        let nodes = u32::try_from(refused.count()).unwrap_or(u32::MAX).saturating_add(1);
        Some(RefusedWrites { nodes, node: node.clone(), forbidden: *forbidden, message: message.clone() })
    }

    /// What was said of a gate last: a condition keeps its time while it says the same.
    pub(super) fn status_before(&self, gate: &Gate, object: Option<&NodeReadinessGate>) -> NodeReadinessGateStatus {
        let of_resource = |(namespace, name): Key| {
            let stored = || self.observer.resource(&namespace, &name)?.status.as_ref()?.node_readiness.clone();
            self.state.status(&namespace, &name).or_else(stored)
        };
        match object {
            Some(object) => object.status.clone(),
            None => gate.implied_by().and_then(of_resource),
        }
        .unwrap_or_default()
    }

    /// Its nodes by state.
    fn nodes(&self, gate: &Gate, status: &NodeReadinessGateStatus, circumstances: &Circumstances) -> [(Nodes, i64); 7] {
        let count = |test: fn(&GateView) -> bool| {
            let views = self.views.values().filter_map(|views| views.get(&gate.uid));
            u32::try_from(views.filter(|view| test(view)).count()).unwrap_or(u32::MAX)
        };
        [
            ("matched", status.nodes.matched),
            ("held", status.nodes.held),
            ("released", status.nodes.released),
            ("stuck", status.nodes.stuck),
            ("budget_blocked", count(|view| view.no_room)),
            ("spared", count(|view| view.spared)),
            ("refused", circumstances.refused.as_ref().map_or(0, |refused| refused.nodes)),
        ]
        .map(|(state, count)| (Nodes { gate: gate.name.clone(), state }, i64::from(count)))
    }

    /// The status of a gate, where it says something else than before.
    fn status_write(
        &mut self,
        gate: &Gate,
        object: &NodeReadinessGate,
        before: &NodeReadinessGateStatus,
        status: NodeReadinessGateStatus,
    ) -> Option<GatePatch> {
        // What was written may not have come back through the watch yet; when it has, what others write is seen.
        if self.reported.get(&gate.uid).is_some_and(|last| last == before) {
            self.reported.remove(&gate.uid);
        }
        let said = self.reported.get(&gate.uid).unwrap_or(before);
        if *said == status {
            return None;
        }
        let news = news(Some(&said.conditions), &status.conditions);
        let troubles = news.into_iter().filter(|condition| is_trouble(condition)).map(|condition| Told::Condition {
            about: About::Gate(Box::new(object.clone())),
            is_trouble: true,
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        });
        let troubles = troubles.collect();
        let body = json!({"status": replaced(before, &status)});
        Some(GatePatch { uid: gate.uid.clone(), name: gate.name.clone(), body, status: Some(status), troubles })
    }

    /// A gate from the command line has no status: what its conditions would say is logged when it changes, and told on the
    /// `ConfigMap` where there is one.
    fn say(&mut self, gate: &Gate, status: &NodeReadinessGateStatus) {
        let before = self.said.insert(gate.uid.clone(), status.conditions.clone());
        let config_map = self.state.compat().config_map_object.filter(|_| gate.uid == legacy::UID);
        for condition in news(before.as_deref(), &status.conditions) {
            let (is_trouble, reason, message) = (is_trouble(condition), condition.reason.clone(), condition.message.clone());
            let Condition { type_, status, .. } = condition;
            if is_trouble {
                tracing::warn!(gate = gate.name, condition = type_, status, reason, "{message}");
            } else {
                tracing::info!(gate = gate.name, condition = type_, status, reason, "{message}");
            }
            if let Some(config_map) = config_map.clone() {
                self.let_know(Told::Condition { about: About::ConfigMap(config_map), is_trouble, reason, message });
            }
        }
    }

    /// The finalizer goes when no node carries anything of the gate any more.
    fn let_go(&mut self, object: &NodeReadinessGate, uid: &str) -> Option<GatePatch> {
        // Nodes that were tainted at their creation and not seen before are in the sweep that began with the deletion.
        if !self.swept.is_empty() || self.carrying(uid) > 0 {
            self.status_due = true;
            return None;
        }
        let finalizers: Vec<_> = object.finalizers().iter().filter(|name| *name != names::FINALIZER).cloned().collect();
        let body = act::finalizers(&finalizers, object.metadata.resource_version.as_deref());
        let is_ours = finalizers.len() < object.finalizers().len();
        is_ours.then(|| GatePatch { uid: uid.to_owned(), name: object.name_any(), body, status: None, troubles: Vec::new() })
    }
}

/// Conditions that say something else than before; at first those that say that something is wrong, or that nodes are held.
fn news<'c>(before: Option<&[Condition]>, now: &'c [Condition]) -> Vec<&'c Condition> {
    let is_new = |condition: &&Condition| match before {
        Some(before) => {
            !before.iter().any(|old| (&old.type_, &old.status, &old.reason) == (&condition.type_, &condition.status, &condition.reason))
        }
        None => is_trouble(condition) || condition.reason == "NodesHeld",
    };
    now.iter().filter(|condition| !repeats_ready(condition)).filter(is_new).collect()
}

/// Somebody should look at it.
fn is_trouble(condition: &Condition) -> bool {
    match condition.type_.as_str() {
        "Ready" | "Satisfiable" => condition.status == "False" && condition.reason != "Deleting",
        "BudgetExhausted" | "TolerationMissing" => condition.status == "True",
        _ => false,
    }
}

/// Its nodes by the requirement that holds them.
fn blocked(gate: &Gate, status: &NodeReadinessGateStatus) -> Vec<(Blocked, i64)> {
    let labels = |requirement: &String| Blocked { gate: gate.name.clone(), requirement: requirement.clone() };
    status.blocked.iter().map(|blocked| (labels(&blocked.requirement), i64::from(blocked.nodes))).collect()
}

/// Names of other gates with the same taint on a node of this one.
fn overlaps(world: &World, views: &Views, uid: &str) -> BTreeSet<String> {
    let Some(gate) = world.gates.get(uid) else { return BTreeSet::new() };
    let rivals: Vec<_> = world
        .gates
        .iter()
        .filter(|(other, found)| *other != uid && found.has_taint(&gate.spec.taint.key, gate.spec.taint.effect.as_str()))
        .collect();
    if rivals.is_empty() {
        return BTreeSet::new();
    }
    let shared = |other: &str| views.values().any(|views| views.contains_key(uid) && views.contains_key(other));
    rivals.into_iter().filter(|(other, _)| shared(other)).map(|(_, gate)| gate.name.clone()).collect()
}

/// The body of a merge patch that leaves exactly `after`: what became empty is not serialised, and would stay.
fn replaced(before: &NodeReadinessGateStatus, after: &NodeReadinessGateStatus) -> serde_json::Value {
    let mut body = serde_json::to_value(after).unwrap_or_default(); // plain data: always serialisable
    if after.blocked.is_empty() && !before.blocked.is_empty() {
        body["blocked"] = json!(null);
    }
    if after.in_force.is_none() && before.in_force.is_some() {
        body["inForce"] = json!(null);
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gates(taints: &[(&str, &str, &str)]) -> World {
        let gate = |(uid, key, effect): &(&str, &str, &str)| {
            let spec = json!({"allNodes": true, "taint": {"key": key, "effect": effect}, "requirements": []});
            let gate = Gate {
                name: format!("gate-{uid}"),
                uid: (*uid).to_owned(),
                generation: 1,
                created: 0,
                edited: None,
                deleting: false,
                spec: serde_json::from_value(spec).unwrap(),
                completion_annotation: None,
            };
            ((*uid).to_owned(), Arc::new(gate))
        };
        World { gates: taints.iter().map(gate).collect(), ..World::default() }
    }

    fn views(nodes: &[(&str, &[&str])]) -> Views {
        let of = |uids: &[&str]| uids.iter().map(|uid| ((*uid).to_owned(), GateView::default())).collect();
        nodes.iter().map(|(node, uids)| ((*node).to_owned(), of(uids))).collect()
    }

    #[test]
    fn gates_overlap_only_with_the_same_taint_on_one_node() {
        const KEY: (&str, &str) = ("k", "NoSchedule");
        let both = gates(&[("a", KEY.0, KEY.1), ("b", KEY.0, KEY.1)]);
        for (case, world, nodes, found) in [
            ("the same node", &both, &[("n1", &["a", "b"][..])][..], true),
            ("a subset of the other's", &both, &[("n1", &["a"][..]), ("n2", &["a", "b"])], true),
            ("different nodes", &both, &[("n1", &["a"][..]), ("n2", &["b"])], false),
            ("no node", &both, &[], false),
            ("another effect", &gates(&[("a", "k", "NoSchedule"), ("b", "k", "NoExecute")]), &[("n1", &["a", "b"][..])], false),
            ("another key", &gates(&[("a", "k", "NoSchedule"), ("b", "l", "NoSchedule")]), &[("n1", &["a", "b"][..])], false),
            ("itself", &gates(&[("a", KEY.0, KEY.1)]), &[("n1", &["a"][..])], false),
        ] {
            let expected: BTreeSet<_> = found.then(|| "gate-b".to_owned()).into_iter().collect();
            assert_eq!(overlaps(world, &views(nodes), "a"), expected, "{case}");
        }
    }

    #[test]
    fn an_emptied_list_is_removed_from_the_status() {
        let blocked =
            NodeReadinessGateStatus { blocked: vec![crds::node_readiness_gate::BlockedRequirement::default()], ..Default::default() };
        assert_eq!(replaced(&blocked, &NodeReadinessGateStatus::default())["blocked"], serde_json::Value::Null);
        let body = replaced(&NodeReadinessGateStatus::default(), &NodeReadinessGateStatus::default());
        assert!(body.get("blocked").is_none());
    }

    #[test]
    fn a_changed_condition_is_news_and_initial_calm_is_not() {
        let condition = |type_: &str, status: &str, reason: &str| -> Condition {
            let at = "2026-01-01T00:00:00Z";
            serde_json::from_value(json!({"type": type_, "status": status, "reason": reason, "message": "", "lastTransitionTime": at}))
                .unwrap()
        };
        let calm = [condition("Ready", "True", "NoNodeHeld"), condition("Satisfiable", "True", "Satisfiable")];
        let shut = [condition("Ready", "True", "NodesHeld"), condition("Satisfiable", "False", "NotTolerated")];
        let refused = [condition("Ready", "False", "PatchForbidden"), condition("Stalled", "True", "PatchForbidden")];
        let reasons = |before, now| news(before, now).into_iter().map(|condition| condition.reason.clone()).collect::<Vec<_>>();
        assert_eq!(reasons(None, &calm), Vec::<String>::new());
        assert_eq!(reasons(None, &shut), ["NodesHeld", "NotTolerated"]);
        assert_eq!(reasons(Some(&calm), &shut), ["NodesHeld", "NotTolerated"]);
        assert_eq!(
            (reasons(None, &refused), reasons(Some(&calm), &refused)),
            (vec!["PatchForbidden".to_owned()], vec!["PatchForbidden".to_owned()])
        );
        assert_eq!(reasons(Some(&shut), &shut), Vec::<String>::new());
        assert_eq!(reasons(Some(&shut), &calm), ["NoNodeHeld", "Satisfiable"]);
    }
}
