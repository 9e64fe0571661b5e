//! What must hold in every state of the cluster, checked on the cluster itself and never on what an operator believes.

use super::{
    api::text,
    cluster::{BAD_IMAGE, Cluster, UID8, is_marked, node_of},
    pods::{Pod, ReplicaSet},
    wish::{GRACE, KEYS, STAMP, STAMP_GRACE, ZONE, Zones},
};
use crds::{
    IngressDaemonSetStatus,
    holders::{self, Entry, EntryPhase},
    ledger::{Grant, GrantReason, Ledger, Marks},
    names,
    token::{Phase, Token},
};
use rollout_windows::Windows;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, Default)]
pub struct Audit {
    pub violations: Vec<String>,
    /// The detacher's timestamp is expected before any pod changes.
    pub expects_stamp: bool,
    /// The operator may not write the mark to Nodes: health checks take them out instead.
    pub forbids_node_marks: bool,
    /// Every grant there ever was.
    pub grants: BTreeMap<u64, (String, Grant)>,
    created: BTreeSet<u64>,
    effects: BTreeSet<(String, u64, u8)>,
    last: BTreeMap<String, (u64, u8)>,
    served: BTreeSet<String>,
    claimed_since: BTreeMap<String, i64>,
    asked_since: BTreeMap<(String, &'static str), (i64, i64)>,
    allowance: usize,
    /// Nodes whose pods somebody else disturbs: completeness may be stale there.
    pub disturbed: BTreeSet<String>,
    /// Nodes with a Deployment that a person has edited since it was last closed: it is not the operator's alone.
    edited: BTreeSet<String>,
    /// UIDs of Deployments whose token a person took away.
    robbed: BTreeSet<String>,
    /// Nodes that were drained, above any budget, and are not back yet.
    drained: BTreeSet<String>,
    /// The use of zones that was last seen, and the nodes that were under way when it became that: they are not taken back.
    zones: Option<Zones>,
    begun_before: BTreeSet<String>,
    /// Deployments that a rollout gave an image that never comes up, by UID, with their nodes.
    stuck: BTreeMap<String, String>,
    /// The rollout that is being proved, by its revision and beginning, and the nodes that were given it, with the UID of their Node.
    proving: Option<(String, i64)>,
    given: BTreeMap<String, String>,
    /// How many states were looked at.
    pub states: u64,
    /// What came about at all, so that nobody takes silence for a promise kept.
    pub seen: BTreeSet<&'static str>,
}

pub fn token(deployment: &Value) -> Option<Token> {
    deployment["metadata"]["labels"][names::TOKEN_LABEL].as_str()?.parse().ok()
}

pub fn entry(node: &Value) -> Option<Entry> {
    holders::parse(node["metadata"]["annotations"][names::HOLDERS_ANNOTATION].as_str()).ok()?.remove(UID8)
}

fn is_free(grant: &Grant) -> bool {
    grant.kind == GrantReason::Remove && grant.marks == Marks::default()
}

impl Audit {
    fn fail(&mut self, cluster: &Cluster, what: impl std::fmt::Display) {
        self.violations.push(format!("at {}: {what}", cluster.now - 1_000_000));
    }

    /// Somebody tampered with the object, or restored it from a backup: its ids start over.
    pub fn forget(&mut self, uid: &str) {
        self.last.remove(uid);
        self.effects.retain(|(other, ..)| other != uid);
    }

    /// Nobody has taken its token away yet.
    pub fn may_lose_its_token(&self, deployment: &Value) -> bool {
        token(deployment).is_some() && !self.robbed.contains(text(deployment, "/metadata/uid"))
    }

    /// A person edited the Deployment.
    pub fn edited(&mut self, before: &Value, after: &Value) {
        let uid = text(after, "/metadata/uid");
        if before != after {
            self.edited.insert(node_of(after).to_owned());
        }
        if token(before) != token(after) {
            self.robbed.insert(uid.to_owned());
            self.forget(uid);
        }
        if after["spec"]["template"]["spec"]["containers"][0]["image"] != BAD_IMAGE {
            self.stuck.remove(uid);
        }
    }

    /// The properties that speak of a state.
    pub fn state(&mut self, cluster: &Cluster) {
        self.states += 1;
        self.remember_marks(cluster);
        // Where there are two, the first is meant.
        let on: BTreeMap<&str, &Value> = cluster.deployments.values().rev().map(|deployment| (node_of(deployment), deployment)).collect();
        let is_out = |name: &String, node: &Value| self.is_out(on.get(name.as_str()).copied(), node);
        let mut out: Vec<_> = cluster.nodes.iter().filter(|(name, node)| is_out(name, node)).map(|(name, _)| name.clone()).collect();
        let sound = cluster.ledger().filter(|ledger| ledger.rebuilding.is_none());
        self.drained.retain(|name| sound.is_none_or(|ledger| ledger.grants.contains_key(name)) || out.contains(name));
        out.retain(|name| !self.drained.contains(name));
        let counts = |(name, grant): &(&String, &Grant)| !is_free(grant) && !self.drained.contains(*name);
        let counted = sound.map(|ledger| ledger.grants.iter().filter(counts).count());
        let settled = counted.is_some_and(|grants| grants <= cluster.budget());
        self.allowance = if settled { cluster.budget() } else { self.allowance.max(cluster.budget()) };
        let deleting = cluster.resource.as_ref().is_none_or(|resource| resource.deleting);
        if !deleting && out.len() > self.allowance {
            self.fail(cluster, format!("P1: {out:?} are out of service by the operator, the budget is {}", self.allowance));
        }
        self.no_more_failed_than_the_budget(cluster);
        let zone = |name: &String| text(&cluster.nodes[name], &format!("/metadata/labels/{}", ZONE.replace('/', "~1"))).to_owned();
        let mut zones: BTreeMap<String, usize> = BTreeMap::new();
        for name in &out {
            *zones.entry(zone(name)).or_default() += 1;
        }
        let granted = |name: &String| sound.is_none_or(|ledger| ledger.grants.contains_key(name));
        if self.zones.replace(cluster.wish.zones).is_some_and(|before| before != cluster.wish.zones) {
            self.begun_before = cluster.nodes.keys().cloned().collect();
        }
        self.begun_before.retain(|name| out.contains(name) || granted(name));
        let mut begun = out.iter().filter(|name| !self.begun_before.contains(*name));
        let fits = match cluster.wish.zones {
            Zones::Ignored => true,
            Zones::OneEach => begun.all(|name| zones[&zone(name)] <= 1),
            Zones::OneAtATime => begun.next().is_none() || zones.len() <= 1,
        };
        if !deleting && !fits {
            self.fail(cluster, format!("P2: {out:?} are out of service, with {:?}", cluster.wish.zones));
        }
    }

    /// P9: a revision that does not come up reaches no more nodes than the budget.
    fn no_more_failed_than_the_budget(&mut self, cluster: &Cluster) {
        let there = |uid: &String| cluster.deployments.values().any(|deployment| text(deployment, "/metadata/uid") == uid);
        self.stuck.retain(|uid, _| there(uid));
        let chosen = |name: &&String| cluster.nodes.get(*name).is_some_and(|node| cluster.is_chosen(node));
        let nodes: Vec<_> = self.stuck.values().filter(chosen).filter(|name| !self.drained.contains(*name)).cloned().collect();
        if nodes.len() > self.allowance {
            self.fail(cluster, format!("P9: {nodes:?} run a revision that fails, the budget is {}", self.allowance));
        }
    }

    /// Held out of service by the operator, on a node that has served.
    fn is_out(&self, deployment: Option<&Value>, node: &Value) -> bool {
        let free = |id: u64| self.grants.get(&id).is_some_and(|(_, grant)| is_free(grant));
        let detached = entry(node).is_some_and(|entry| entry.phase == EntryPhase::Detached && !free(entry.id));
        let holding = deployment.is_some_and(|deployment| {
            self.served.contains(text(deployment, "/metadata/uid"))
                && token(deployment).is_some_and(|token| !matches!(token.phase, Phase::New | Phase::Closed) && !free(token.id))
        });
        detached || holding
    }

    fn remember_marks(&mut self, cluster: &Cluster) {
        for deployment in cluster.deployments.values() {
            let uid = text(deployment, "/metadata/uid").to_owned();
            let phase = token(deployment).map(|token| token.phase);
            if phase == Some(Phase::Closed) {
                self.served.insert(uid.clone());
            }
            if matches!(phase, Some(Phase::Claimed | Phase::InPlace | Phase::Updating)) {
                self.claimed_since.entry(uid).or_insert(cluster.passed);
            } else {
                self.claimed_since.remove(&uid);
            }
        }
        let mut asked = BTreeSet::new();
        for node in cluster.nodes.values() {
            let uid = || text(node, "/metadata/uid").to_owned();
            asked.extend(KEYS.into_iter().filter(|key| is_marked(node, key)).map(|key| (uid(), key)));
        }
        self.asked_since.retain(|mark, _| asked.contains(mark));
        for mark in asked {
            self.asked_since.entry(mark).or_insert((cluster.passed, cluster.now));
        }
    }

    pub fn creation(&mut self, cluster: &Cluster, id: u64, deployment: &Value) {
        if !self.created.insert(id) || self.grants.contains_key(&id) {
            self.fail(cluster, format!("P6: id {id} is used twice"));
        }
        self.effect(cluster, deployment, token(deployment).map(|token| (token.id, token.phase as u8)));
    }

    pub fn deployment_write(&mut self, cluster: &Cluster, before: &Value, after: &Value) {
        let (old, new) = (token(before), token(after));
        if before["metadata"]["labels"][names::TOKEN_LABEL] != after["metadata"]["labels"][names::TOKEN_LABEL] {
            self.effect(cluster, after, new.as_ref().map(|token| (token.id, token.phase as u8)));
        }
        let template = before["spec"]["template"] != after["spec"]["template"];
        let replicas = before["spec"]["replicas"] != after["spec"]["replicas"] && before["spec"]["replicas"] != 0;
        let served = self.served.contains(text(before, "/metadata/uid"));
        if served && (template || replicas) {
            self.pods_change(cluster, before, old.as_ref(), new.as_ref());
        }
        let uid = text(after, "/metadata/uid");
        let bad = |deployment: &Value| deployment["spec"]["template"]["spec"]["containers"][0]["image"] == BAD_IMAGE;
        if after["spec"]["paused"] == true {
            // Its pods are not of its template.
        } else if !bad(after) {
            self.stuck.remove(uid);
        } else if served && template && after["spec"]["replicas"] != 0 {
            self.stuck.insert(uid.to_owned(), node_of(after).to_owned());
        }
        let closes =
            new.as_ref().filter(|token| token.phase == Phase::Closed && old.as_ref().is_some_and(|old| old.phase != Phase::Closed));
        if let Some(token) = closes {
            let released = self.is_released(token.id);
            if released || after["spec"]["replicas"] == 0 {
                self.stuck.remove(uid);
            }
            // It tests the generation: what a person changed since is refused, and what is closed is as the operator saw it.
            self.is_attached(cluster, after, token.id, true);
            if self.edited.remove(node_of(after)) {
                self.seen.insert("mended");
            }
        }
    }

    /// The breaker only takes pods away that are not ready: it changes nothing but their number, without a step.
    pub fn breaker_write(&mut self, cluster: &Cluster, before: &Value, after: &Value) {
        self.seen.insert("refused");
        let spec = |deployment: &Value| {
            let mut spec = deployment["spec"].clone();
            spec["replicas"] = Value::Null;
            spec
        };
        let more = after["spec"]["replicas"].as_i64() > before["spec"]["replicas"].as_i64();
        if more || spec(before) != spec(after) || token(before) != token(after) {
            self.fail(cluster, format!("P4: the breaker changes more of {} than its pods' number", node_of(after)));
        }
    }

    /// A person has ordered that the node be attached as it is.
    fn is_released(&self, id: u64) -> bool {
        self.grants.get(&id).is_some_and(|(_, grant)| grant.released)
    }

    /// P5: what the grant of this id attaches again is complete, where nobody else has changed it, and is not about to be taken away.
    fn is_attached(&mut self, cluster: &Cluster, deployment: &Value, id: u64, alone: bool) {
        if self.grants.get(&id).is_some_and(|(_, grant)| grant.kind == GrantReason::Drain) {
            self.fail(cluster, format!("P5: {} is attached while it is drained", node_of(deployment)));
        }
        if alone && !self.is_released(id) {
            self.is_complete(cluster, deployment);
        }
    }

    pub fn node_write(&mut self, cluster: &Cluster, before: &Value, after: &Value) {
        let (old, new) = (entry(before), entry(after));
        if old != new && new.is_some() {
            self.effect(cluster, after, new.as_ref().map(|entry| (entry.id, entry.phase as u8)));
        }
        let held = old.filter(|old| old.phase == EntryPhase::Detached && new.as_ref().is_none_or(|new| new.phase == EntryPhase::Attached));
        let name = text(before, "/metadata/name");
        if let Some((held, deployment)) = held.zip(cluster.deployment_on(name)) {
            // A write to a Node tests nothing of the Deployment, which somebody may have edited just before.
            self.is_attached(cluster, deployment, new.map_or(held.id, |new| new.id), !self.edited.contains(name));
        }
    }

    /// P6 and P7: a pair of id and phase takes effect once per object, ids and phases only grow.
    fn effect(&mut self, cluster: &Cluster, object: &Value, next: Option<(u64, u8)>) {
        let uid = text(object, "/metadata/uid").to_owned();
        let name = text(object, "/metadata/name");
        let Some((id, phase)) = next else { return self.fail(cluster, format!("P7: {name} lost its token")) };
        if !self.effects.insert((uid.clone(), id, phase)) {
            self.fail(cluster, format!("P6: ({id}, {phase}) took effect twice on {name}"));
        }
        if let Some(last) = self.last.insert(uid, (id, phase)).filter(|last| *last >= (id, phase)) {
            self.fail(cluster, format!("P7: {name} went from {last:?} to ({id}, {phase})"));
        }
    }

    fn took_effect(&self, id: u64, phases: &[Phase]) -> bool {
        self.effects.iter().any(|(_, other, phase)| *other == id && phases.iter().any(|wanted| *wanted as u8 == *phase))
    }

    /// P4: marks and grace before any pod of a node that serves changes.
    fn pods_change(&mut self, cluster: &Cluster, deployment: &Value, old: Option<&Token>, new: Option<&Token>) {
        let (name, uid) = (node_of(deployment), text(deployment, "/metadata/uid"));
        let Some(new) = new.filter(|new| old != Some(new) && matches!(new.phase, Phase::Updating | Phase::Degrading)) else {
            return self.fail(cluster, format!("P4: pods of {name} change without a step"));
        };
        let Some((node, grant)) = self.grants.get(&new.id).cloned() else {
            return self.fail(cluster, format!("P4: pods of {name} change without a grant"));
        };
        if node != name {
            self.fail(cluster, format!("P4: pods of {name} change under the grant of {node}"));
        }
        self.grace_is_over(cluster, (name, uid), new.id, &grant);
    }

    fn grace_is_over(&mut self, cluster: &Cluster, (name, uid): (&str, &str), id: u64, grant: &Grant) {
        let claimed = self.claimed_since.get(uid).is_some_and(|since| since + GRACE <= cluster.passed);
        if (grant.marks.deployment || self.forbids_node_marks) && !claimed {
            self.fail(cluster, format!("P4: pods of {name} change before the grace of its Deployment is over"));
        }
        let Some(mark) = grant.marks.node.as_ref().filter(|_| !self.forbids_node_marks) else { return };
        let Some(live) = cluster.nodes.get(name).filter(|live| text(live, "/metadata/uid") == grant.node_uid) else { return };
        let key = KEYS.into_iter().find(|key| *key == mark.key).expect("one of the keys");
        let since = self.asked_since.get(&(grant.node_uid.clone(), key)).copied();
        // A later grant may have taken the mark over: it cannot take it off before it has written the Deployment.
        let held = entry(live).is_some_and(|entry| entry.id >= id && entry.phase == EntryPhase::Detached);
        if !held || since.is_none_or(|(passed, _)| passed + GRACE > cluster.passed) {
            self.fail(cluster, format!("P4: pods of {name} change before the grace of its Node is over"));
        }
        let stamp = live["metadata"]["annotations"][STAMP].as_str().and_then(|text| chrono::DateTime::parse_from_rfc3339(text).ok());
        let answered = stamp.is_some_and(|stamp| {
            since.is_some_and(|(_, asked)| stamp.timestamp() >= asked) && stamp.timestamp() + STAMP_GRACE <= cluster.now
        });
        if self.expects_stamp && !answered {
            self.fail(cluster, format!("P4: pods of {name} change before the detacher answered"));
        }
    }

    /// P4 and P15: the template of a `ReplicaSet` changes only under a pause, for the node's grant, and after the grace of its marks.
    pub fn set_write(&mut self, cluster: &Cluster, before: &ReplicaSet, after: &ReplicaSet) {
        if before.template == after.template {
            return;
        }
        self.changes_in_place(cluster, &after.node);
        let bad = after.template["spec"]["containers"][0]["image"] == BAD_IMAGE;
        if bad && self.served.contains(&after.owner) {
            self.stuck.insert(after.owner.clone(), after.node.clone());
        } else {
            self.stuck.remove(&after.owner);
        }
    }

    /// The same for a pod.
    pub fn pod_write(&mut self, cluster: &Cluster, before: &Pod) {
        let after = cluster.pods.iter().find(|pod| pod.uid == before.uid);
        // A late write may still reach a pod of an update that was given up, which is about to go.
        let deployment = cluster.deployment_on(&before.node);
        let goes = deployment.is_some_and(|deployment| {
            let phase = token(deployment).map(|token| token.phase);
            matches!(phase, Some(Phase::Updating | Phase::Degrading)) && *before.template != deployment["spec"]["template"]
        });
        if !goes && after.is_some_and(|after| after.template != before.template) {
            self.changes_in_place(cluster, &before.node);
        }
    }

    fn changes_in_place(&mut self, cluster: &Cluster, node: &str) {
        self.seen.insert("changed in place");
        let Some(deployment) = cluster.deployment_on(node) else {
            return self.fail(cluster, format!("P15: pods of {node} change in place without a Deployment"));
        };
        if self.edited.contains(node) {
            // The pause, or the token, was taken away beneath the operator.
            return;
        }
        let paused = deployment["spec"]["paused"] == true;
        let Some(token) = token(deployment).filter(|token| paused && token.phase == Phase::InPlace) else {
            return self.fail(cluster, format!("P15: pods of {node} change in place without a pause"));
        };
        match self.grants.get(&token.id).cloned() {
            Some((granted, grant)) if granted == node => {
                self.grace_is_over(cluster, (node, text(deployment, "/metadata/uid")), token.id, &grant);
            }
            other => self.fail(cluster, format!("P4: pods of {node} change in place under {other:?}")),
        }
    }

    /// P15: a Deployment goes on after an update in place with a `ReplicaSet` of its template, and all its pods are of that.
    pub fn resumed(&mut self, cluster: &Cluster, deployment: &Value) {
        self.seen.insert("updated in place");
        let (uid, node) = (text(deployment, "/metadata/uid"), node_of(deployment));
        let set = cluster.sets.iter().find(|set| set.owner == uid && *set.template == deployment["spec"]["template"]);
        if set.is_none() {
            self.fail(cluster, format!("P15: {node} goes on without a ReplicaSet of its template"));
        }
    }

    /// P5: attached only when exactly the wanted pods are there and all of them came up.
    fn is_complete(&mut self, cluster: &Cluster, deployment: &Value) {
        let node = node_of(deployment);
        let pods: Vec<_> = cluster.pods.iter().filter(|pod| pod.node == node && pod.rejected_at.is_none()).collect();
        let wanted = deployment["spec"]["replicas"].as_u64().unwrap_or(1);
        let exact = pods.len() as u64 == wanted
            && pods.iter().all(|pod| *pod.template == deployment["spec"]["template"] && pod.was_ready && pod.ends_at.is_none());
        if !exact && !self.disturbed.contains(node) {
            let pods: Vec<_> = pods.iter().map(|pod| (&pod.name, pod.revision(), pod.was_ready, pod.ends_at)).collect();
            self.fail(cluster, format!("P5: {node} is attached with {pods:?}, {wanted} wanted"));
        }
    }

    /// P7 for the ledger, P8, and that an id stands for one grant.
    /// What is written rests on what was read, of which `broken` are nodes that had lost pods.
    pub fn status_write(&mut self, cluster: &Cluster, before: Option<&Ledger>, after: &Ledger, broken: &BTreeSet<String>) {
        let none = BTreeMap::new();
        let earlier = before.map_or(&none, |ledger| &ledger.grants);
        let rebuilt = before.is_some_and(|before| before.rebuilding.is_some());
        if before.is_some_and(|before| after.next_id < before.next_id) {
            self.fail(cluster, "P7: the next id went back");
        }
        self.notice(after);
        self.reaches_no_more_than_the_budget(cluster, before, after, broken);
        if !rebuilt {
            self.begins_within_the_budget(cluster, earlier, after);
        }
        for (node, grant) in &after.grants {
            // What it has waited is no part of the permission.
            let permission = |grant: &Grant| Grant { waited: Vec::new(), ..grant.clone() };
            if earlier.get(node).is_some_and(|earlier| permission(earlier) == permission(grant)) {
                continue;
            }
            if self.created.contains(&grant.id) || self.grants.insert(grant.id, (node.clone(), grant.clone())).is_some() {
                self.fail(cluster, format!("P6: id {} is used twice", grant.id));
            }
            if grant.kind == GrantReason::Drain {
                self.drained.insert(node.clone());
            }
            // The write that ends the rollback by a person's order may begin the revision.
            let failed = before.filter(|_| after.rolled_back.is_some()).and_then(|before| before.rolled_back.as_ref());
            let failed = failed.map(|rolled_back| rolled_back.from.as_str());
            let newest = cluster.resource.as_ref().map(|resource| crds::hash::revision(&resource.spec.template));
            if grant.kind == GrantReason::Update
                && failed == Some(grant.revision.as_str())
                && newest.as_deref() == failed
                && cluster.wish.rollback_to.is_none()
            {
                self.fail(cluster, format!("P9: {node} is to get a revision that failed and was rolled back"));
            }
            // What has changed its pods goes on, also when the Deployment was closed after the operator looked at it.
            let updating =
                earlier.get(node).is_some_and(|grant| self.took_effect(grant.id, &[Phase::InPlace, Phase::Updating, Phase::Degrading]));
            if let Some(why) = shut(cluster, before, after, grant).filter(|_| !updating && !rebuilt) {
                self.fail(cluster, format!("P8: {node} starts {:?} while {why}, before {:?}", grant.kind, earlier.get(node)));
            }
        }
    }

    /// Whoever waits for the resource learns one thing: it is ready, it will be, or somebody must act.
    pub fn conditions_write(&mut self, cluster: &Cluster, status: &IngressDaemonSetStatus) {
        let is_true = |type_: &&str| status.conditions.iter().any(|condition| condition.type_ == *type_ && condition.status == "True");
        let said: Vec<_> = ["Ready", "Reconciling", "Stalled"].into_iter().filter(is_true).collect();
        let nodes = &status.nodes;
        if said.len() != 1 {
            self.fail(cluster, format!("True of Ready, Reconciling and Stalled: {said:?}"));
        } else if said == ["Ready"] {
            let reason = status.conditions.iter().find(|condition| condition.type_ == "Ready").map_or("", |condition| &condition.reason);
            let holds = match reason {
                "ScaledToZero" => status.replicas == 0,
                "Partition" | "OnDelete" | "Skipped" => nodes.available >= nodes.desired,
                _ => nodes.available >= nodes.desired && nodes.updated >= nodes.desired,
            };
            if !holds {
                self.fail(cluster, format!("Ready, {reason}, with {nodes:?}"));
            }
        }
    }

    /// P16: a revision that is not proved is given to no more nodes than the budget, but those that are out of service anyway.
    fn reaches_no_more_than_the_budget(&mut self, cluster: &Cluster, before: Option<&Ledger>, after: &Ledger, broken: &BTreeSet<String>) {
        let earlier = before.map(|before| &before.grants);
        let earlier = |node: &String| earlier.and_then(|grants| grants.get(node));
        let Some(rollout) = &after.rollout_state else { return };
        let current =
            cluster.resource.as_ref().and_then(|resource| resource.status.as_ref()).map(|status| status.revisions.current.clone());
        let proves = cluster.wish.rollout["provenAfterSeconds"].as_i64().is_some_and(|seconds| seconds > 0);
        let of = (rollout.revision.clone(), rollout.since);
        if !proves || rollout.proved || current.is_none_or(|current| current == rollout.revision) || after.rebuilding.is_some() {
            self.proving = None;
            return;
        }
        if self.proving.as_ref() != Some(&of) {
            (self.proving, self.given) = (Some(of), BTreeMap::new());
        }
        self.seen.insert("proving");
        let there = |node: &String, uid: &String| {
            cluster.nodes.get(node).is_some_and(|live| text(live, "/metadata/uid") == uid && cluster.is_chosen(live))
        };
        self.given.retain(|node, uid| there(node, uid));
        let is_update = |grant: &Grant| grant.kind == GrantReason::Update && grant.revision == rollout.revision;
        for (node, grant) in after.grants.iter().filter(|(node, grant)| is_update(grant) && there(node, &grant.node_uid)) {
            let begun = earlier(node).is_none_or(|earlier| !is_update(earlier)) && !self.given.contains_key(node);
            // What broke with another revision has a place already, and makes way first.
            let suspect = after.suspects.get(node).is_some_and(|suspect| suspect.revision != rollout.revision);
            let live = &cluster.nodes[node];
            let pods = || cluster.pods.iter().filter(|pod| pod.node == *node);
            let is_up = || pods().all(|pod| pod.ready && pod.ends_at.is_none()) && !self.is_out(cluster.deployment_on(node), live);
            // What a grant for something else than an update has taken out is not out anyway. One for another revision had its place.
            let held = earlier(node).is_some_and(|earlier| earlier.kind == GrantReason::Update) || suspect;
            let serves = earlier(node).is_some() || is_up();
            let others = self.given.len();
            self.given.insert(node.clone(), grant.node_uid.clone());
            if begun && serves && !held && !broken.contains(node) && live["status"]["ready"] == true && others >= cluster.budget() {
                self.fail(cluster, format!("P16: {node} is given a revision that is not proved, beside {:?}", self.given));
            }
        }
    }

    /// P1 beside what takes no leave: nothing is begun while drains have used the budget up.
    fn begins_within_the_budget(&mut self, cluster: &Cluster, earlier: &BTreeMap<String, Grant>, after: &Ledger) {
        let deleting = cluster.resource.as_ref().is_none_or(|resource| resource.deleting);
        // The write that gives a place back may give it to the next node.
        let held = earlier.iter().filter(|(node, grant)| !is_free(grant) && after.grants.contains_key(*node)).count();
        let begun = |(node, grant): &(&String, &Grant)| {
            !is_free(grant) && grant.kind != GrantReason::Drain && earlier.get(*node).is_none_or(is_free)
        };
        let begun: Vec<_> = after.grants.iter().filter(begun).map(|(node, _)| node).collect();
        if !deleting && !begun.is_empty() && held + begun.len() > cluster.budget() {
            self.fail(cluster, format!("P1: {begun:?} are begun beside {held} under way, the budget is {}", cluster.budget()));
        }
    }

    fn notice(&mut self, ledger: &Ledger) {
        let grants = || ledger.grants.values();
        let rollout = ledger.rollout_state.as_ref();
        let noted = [
            ("drained", grants().any(|grant| grant.kind == GrantReason::Drain)),
            ("released", grants().any(|grant| grant.released)),
            ("failed", rollout.is_some_and(|rollout| !rollout.failed.is_empty())),
            ("stepped", rollout.is_some_and(|rollout| rollout.steps_done > 0)),
            ("rolled back", ledger.rolled_back.is_some()),
            ("rebuilt", ledger.rebuilding.is_some()),
            ("suspect", !ledger.suspects.is_empty()),
            ("fell", ledger.suspects.values().any(|suspect| suspect.falls > 0)),
            ("lost", rollout.is_some_and(|rollout| !rollout.lost.is_empty())),
        ];
        self.seen.extend(noted.into_iter().filter(|(_, now)| *now).map(|(what, _)| what));
    }
}

/// Why nothing of the grant's kind may begin, by what the write is based on and says itself.
fn shut(cluster: &Cluster, before: Option<&Ledger>, after: &Ledger, grant: &Grant) -> Option<&'static str> {
    if matches!(grant.kind, GrantReason::Remove | GrantReason::Drain | GrantReason::Abort) {
        return None;
    }
    if cluster.wish.paused {
        return Some("paused");
    }
    let spec = &cluster.resource.as_ref().filter(|_| grant.kind == GrantReason::Update)?.spec;
    let rolling = spec.update_strategy.as_ref().and_then(|strategy| strategy.rolling_update.clone()).unwrap_or_default();
    let now = chrono::DateTime::from_timestamp(cluster.now, 0)?;
    if Windows::parse(&rolling.windows).is_ok_and(|windows| !windows.at(now).open) {
        return Some("no window is open");
    }
    let most = rolling.max_failed_nodes.map_or(1, |most| most.max(1) as usize);
    let halts = |ledger: &Ledger| {
        let rollout = ledger.rollout_state.as_ref().filter(|rollout| rollout.revision == grant.revision);
        let counted: Vec<_> = rollout
            .into_iter()
            .flat_map(|rollout| rollout.failed.values())
            .filter(|failure| !matches!(&*failure.reason, "Released" | "OutBefore"))
            .collect();
        counted.len() >= most || counted.iter().any(|failure| failure.reason == "Restarts")
    };
    (before.is_some_and(halts) && halts(after)).then_some("the revision has failed")
}
