//! The cluster: objects, Deployment controller, kubelets, detacher. Time passes only when it is told to.

use super::{
    api::{self, text},
    pods::{Breaks, Pod, ReplicaSet},
    wish::{KEYS, POOL, STAMP, Wish, ZONE},
};
use crds::{ledger::Ledger, names};
use planner::{
    facts::{DaemonSetFacts, DeploymentCounts, DeploymentFacts, NodeFacts, Resource, RevisionFacts},
    plan::Supporting,
    snapshot::PortAnswer,
    spec::Count,
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

pub const UID: &str = "0a1b2c3d-0000-4000-8000-000000000000";
pub const UID8: &str = "0a1b2c3d";
/// Pods of this image never become ready.
pub const BAD_IMAGE: &str = "app:99";
/// Where the health checker of a node answers.
pub const HEALTH_PORT: u16 = 10080;
/// Seconds from a pod's creation to its readiness.
pub const START: i64 = 3;
/// Seconds from a pod's deletion to its end.
pub const END: i64 = 2;

pub fn revision(template: &Value) -> &str {
    template["metadata"]["labels"][names::REVISION_LABEL].as_str().unwrap_or_default()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detacher {
    Good,
    Silent,
    /// Its timestamp of long ago never goes away.
    Stale,
}

#[derive(Clone, Debug)]
pub struct Cluster {
    /// By a clock that people set.
    pub now: i64,
    /// Seconds that have passed.
    pub passed: i64,
    pub version: u64,
    pub uids: u64,
    pub wish: Wish,
    /// None once the last finalizer is gone.
    pub resource: Option<Arc<Resource>>,
    pub nodes: BTreeMap<String, Value>,
    /// By name.
    pub deployments: BTreeMap<String, Value>,
    pub pods: Vec<Pod>,
    /// From the oldest.
    pub sets: Vec<ReplicaSet>,
    /// Grows with every change of them.
    pub sets_version: u64,
    /// Former ones are not cleaned up: their controller lags.
    pub keeps_sets: bool,
    /// Templates of `ReplicaSets` without a Deployment, by node.
    pub orphans: BTreeMap<String, Value>,
    pub daemon_sets: Vec<DaemonSetFacts>,
    pub supporting: BTreeSet<Supporting>,
    /// `ControllerRevisions`.
    pub revisions: Arc<Vec<RevisionFacts>>,
    pub detacher: Detacher,
    /// Nodes whose health checker hangs, and what it says for ever.
    pub hanging: BTreeMap<String, PortAnswer>,
    /// Nodes whose health port does not answer the operator.
    pub silent: BTreeSet<String>,
    /// Nodes whose kubelet refuses every pod.
    pub refusing: BTreeSet<String>,
    /// What this image does.
    pub breaks: Option<(String, Breaks)>,
    /// When machines are back that died for so long that their Nodes turned not Ready, by a clock that nobody sets.
    pub back: BTreeMap<String, i64>,
    /// How many pods were made, by node.
    pub made: BTreeMap<String, usize>,
    /// Nodes that the detacher has answered for, and the key it was asked by.
    pub answered: BTreeMap<String, &'static str>,
    /// What the controller of each Deployment, by name, found when it last acted.
    handled: BTreeMap<String, u64>,
}

/// What the controller of a Deployment finds besides it.
#[derive(Default)]
struct Found {
    /// Indices of its pods.
    pods: Vec<usize>,
    /// Of all that the controller goes by: with another something has changed.
    digest: u64,
}

fn digest(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

impl Cluster {
    pub fn new(wish: Wish, nodes: usize) -> Self {
        let resource = Resource::created(("default", "edge"), UID, wish.spec(), 1_000_000);
        let mut cluster = Self {
            now: 1_000_000,
            passed: 0,
            version: 1,
            uids: 0,
            wish,
            resource: Some(Arc::new(resource)),
            nodes: BTreeMap::new(),
            deployments: BTreeMap::new(),
            pods: Vec::new(),
            sets: Vec::new(),
            sets_version: 0,
            keeps_sets: false,
            orphans: BTreeMap::new(),
            daemon_sets: Vec::new(),
            supporting: BTreeSet::new(),
            revisions: Arc::default(),
            detacher: Detacher::Good,
            hanging: BTreeMap::new(),
            silent: BTreeSet::new(),
            refusing: BTreeSet::new(),
            breaks: None,
            back: BTreeMap::new(),
            made: BTreeMap::new(),
            answered: BTreeMap::new(),
            handled: BTreeMap::new(),
        };
        for index in 0..nodes {
            cluster.join(&format!("n{index}"));
        }
        cluster
    }

    pub fn uid(&mut self) -> String {
        self.uids += 1;
        format!("uid-{}", self.uids)
    }

    pub fn join(&mut self, name: &str) {
        let uid = self.uid();
        self.version += 1;
        // Nodes of even and odd numbers are in different zones.
        let zone = if name.ends_with(['0', '2', '4', '6', '8']) { "even" } else { "odd" };
        let pool = if name.ends_with(['0', '1', '4', '5', '8', '9']) { POOL.1 } else { "b" };
        let labels = json!({"ingress": "true", (ZONE): zone, (POOL.0): pool});
        let node = json!({
            "metadata": {"name": name, "uid": uid, "resourceVersion": self.version.to_string(), "labels": labels},
            "spec": {"unschedulable": false},
            "status": {"ready": true},
        });
        self.nodes.insert(name.to_owned(), node);
    }

    /// A Node goes, with its machine.
    pub fn leave(&mut self, name: &str) {
        self.version += 1;
        self.nodes.remove(name);
        self.pods.retain(|pod| pod.node != name);
    }

    /// Changes a Node as its kubelet or a person does.
    pub fn edit_node(&mut self, name: &str, edit: impl FnOnce(&mut Value)) {
        if let Some(before) = self.nodes.get(name).cloned() {
            let mut after = before.clone();
            edit(&mut after);
            let after = api::store(&before, after, &mut self.version);
            self.nodes.insert(name.to_owned(), after);
        }
    }

    /// A kubelet ends a pod and refuses every other, or no longer.
    pub fn refuse(&mut self, node: &str, refuses: bool) {
        if !refuses {
            self.refusing.remove(node);
            return;
        }
        self.refusing.insert(node.to_owned());
        if let Some(pod) = self.pods.iter_mut().find(|pod| pod.node == node && pod.is_active()) {
            pod.ends_at = Some(self.now + 1);
        }
    }

    /// Changes a Deployment as a person does.
    pub fn edit_deployment(&mut self, name: &str, edit: impl FnOnce(&mut Value)) {
        if let Some(before) = self.deployments.get(name).cloned() {
            let mut after = before.clone();
            edit(&mut after);
            let after = api::store_deployment(&before, after, &mut self.version);
            self.deployments.insert(name.to_owned(), after);
        }
    }

    pub fn edit_resource(&mut self, edit: impl FnOnce(&mut Resource)) {
        if let Some(resource) = &mut self.resource {
            self.version += 1;
            let resource = Arc::make_mut(resource);
            edit(resource);
            resource.resource_version = self.version.to_string();
        }
    }

    pub fn edit_wish(&mut self, edit: impl FnOnce(&mut Wish)) {
        edit(&mut self.wish);
        let spec = self.wish.spec();
        self.edit_resource(|resource| {
            if resource.spec != spec {
                resource.spec = spec;
                resource.generation += 1;
            }
        });
    }

    /// A machine dies; it is back after so many seconds, with the pods that it had.
    pub fn machine_dies(&mut self, node: &str, seconds: i64) {
        let boot = self.uid();
        let back = self.now + seconds;
        self.edit_node(node, |node| {
            node["status"]["bootID"] = boot.into();
            // Sooner than its Node is found to be not Ready.
            node["status"]["ready"] = (seconds < 40).into();
        });
        for pod in self.pods.iter_mut().filter(|pod| pod.node == node && pod.ends_at.is_none()) {
            pod.crash();
            pod.ready_at = pod.ready_at.max(back);
        }
    }

    /// The same, and its Node is Ready again then.
    pub fn machine_restarts(&mut self, node: &str, seconds: i64) {
        self.machine_dies(node, seconds);
        self.back.insert(node.to_owned(), self.passed + seconds);
    }

    fn start_machines(&mut self) {
        let passed = self.passed;
        let back: Vec<_> = self.back.extract_if(.., |_, at| *at <= passed).collect();
        for (node, _) in back {
            self.edit_node(&node, |node| node["status"]["ready"] = true.into());
        }
    }

    /// Its revision kills those machines on which it has been ready for long enough.
    fn kill_machines(&mut self) {
        let Some((image, Breaks::Machine { good, down })) = self.breaks.clone() else { return };
        let kills = |pod: &&Pod| pod.has_image(&image) && pod.ready && self.now >= pod.ready_at.saturating_add(good);
        let nodes: BTreeSet<_> = self.pods.iter().filter(kills).map(|pod| pod.node.clone()).collect();
        for node in nodes {
            self.machine_restarts(&node, down);
            // Containers begin when the kubelet is there again.
            for pod in self.pods.iter_mut().filter(|pod| pod.node == node && pod.ends_at.is_none()) {
                pod.ready_at = pod.ready_at.saturating_add(START);
            }
        }
    }

    /// What the resource's annotation `…/retry` says.
    pub fn retry(&mut self, value: &str) {
        self.edit_resource(|resource| value.clone_into(&mut resource.retry));
    }

    pub fn ledger(&self) -> Option<&Ledger> {
        self.resource.as_ref()?.ledger()
    }

    pub fn budget(&self) -> usize {
        Count::Number(self.wish.budget).of(0)
    }

    /// The node is one of those that the resource is for.
    pub fn is_chosen(&self, node: &Value) -> bool {
        self.wish.chooses(&node["metadata"]["labels"])
    }

    pub fn deployment_on(&self, node: &str) -> Option<&Value> {
        self.deployments.values().find(|deployment| node_of(deployment) == node)
    }

    /// What the health checker of a node says now; nothing where nobody hears it, or the machine is down.
    pub fn health_port(&self, node: &str) -> Option<PortAnswer> {
        let there = self.nodes.get(node).is_some_and(|node| node["status"]["ready"] == true);
        if !there || self.silent.contains(node) {
            return None;
        }
        if let Some(answer) = self.hanging.get(node) {
            return Some(*answer);
        }
        let phase = self.deployment_on(node).and_then(super::audit::token).map(|token| token.phase);
        Some(PortAnswer { port: HEALTH_PORT, healthy: phase == Some(crds::token::Phase::Closed), phase })
    }

    /// Somebody deletes a Deployment; with `orphan` its pods stay, without an owner.
    pub fn delete_deployment(&mut self, name: &str, orphan: bool) {
        let Some(deployment) = self.deployments.remove(name) else { return };
        self.version += 1;
        let (uid, node) = (text(&deployment, "/metadata/uid"), node_of(&deployment));
        if orphan && self.pods.iter().any(|pod| pod.owner.as_deref() == Some(uid) && pod.is_active()) {
            self.orphans.insert(node.to_owned(), deployment["spec"]["template"].clone());
        }
        let now = self.now;
        self.sets.iter_mut().filter(|set| set.owner == uid).for_each(|set| set.owner.clear());
        self.sets_version += 1;
        for pod in self.pods.iter_mut().filter(|pod| pod.owner.as_deref() == Some(uid)) {
            pod.owner = None;
            if !orphan {
                pod.ends_at.get_or_insert(now + END);
            }
        }
    }

    /// Somebody sets the clock; scheduled events come as soon as before.
    pub fn set_clock(&mut self, by: i64) {
        self.now += by;
        for pod in &mut self.pods {
            for at in pod.ends_at.iter_mut().chain([&mut pod.ready_at]).filter(|at| **at < i64::MAX) {
                *at += by;
            }
        }
    }

    /// One second: kubelets, detacher, and the Deployment controller where `synced` says so.
    pub fn tick(&mut self, mut synced: impl FnMut(usize) -> bool) {
        self.now += 1;
        self.passed += 1;
        self.start_machines();
        self.kill_machines();
        self.run_kubelets();
        self.run_detacher();
        let mut found = self.found();
        let names: Vec<_> = self.deployments.keys().cloned().collect();
        for (index, name) in names.iter().enumerate() {
            if synced(index) {
                let mut found = found.remove(text(&self.deployments[name], "/metadata/uid")).unwrap_or_default();
                // In a large fleet most have nothing to do.
                let digest = digest((text(&self.deployments[name], "/metadata/resourceVersion"), self.keeps_sets, found.digest));
                if self.handled.insert(name.clone(), digest) != Some(digest) || self.is_unsteady(name) {
                    self.run_deployment_controller(name, &mut found.pods);
                }
            }
        }
    }

    /// What controllers find, by the UID of the Deployment.
    fn found(&self) -> HashMap<String, Found> {
        let mut all: HashMap<String, Found> = HashMap::new();
        for (index, pod) in self.pods.iter().enumerate() {
            let Some(owner) = &pod.owner else { continue };
            let found = match all.get_mut(owner) {
                Some(found) => found,
                None => all.entry(owner.clone()).or_default(),
            };
            found.pods.push(index);
            found.digest = found.digest.wrapping_add(digest((&pod.uid, &pod.set, pod.ready, pod.ends_at, pod.rejected_at)));
        }
        for set in self.sets.iter().filter(|set| !set.owner.is_empty()) {
            let found = all.entry(set.owner.clone()).or_default();
            found.digest = found.digest.wrapping_add(digest((&set.uid, set.replicas, set.changes)));
        }
        all
    }

    /// What its controller does does not depend on what it finds of it alone: time makes pods available, and others' pods are adopted.
    fn is_unsteady(&self, name: &str) -> bool {
        let deployment = &self.deployments[name];
        deployment["spec"]["minReadySeconds"].as_i64().unwrap_or(0) > 0 || self.orphans.contains_key(node_of(deployment))
    }

    fn run_kubelets(&mut self) {
        let now = self.now;
        let nodes: BTreeMap<&str, bool> = self.nodes.iter().map(|(name, node)| (name.as_str(), node["status"]["ready"] == true)).collect();
        for pod in &mut self.pods {
            let ready = nodes.get(pod.node.as_str());
            if ready.is_none() {
                pod.ends_at.get_or_insert(now + END);
            }
            if let Some((image, Breaks::Pods(flaps))) = &self.breaks
                && pod.has_image(image)
            {
                flaps.live(pod, now);
            }
            pod.live(now, ready == Some(&true), &mut self.version);
        }
        self.pods.retain(|pod| pod.ends_at.is_none_or(|at| at > now));
        let pods = &self.pods;
        self.orphans.retain(|node, _| pods.iter().any(|pod| pod.node == *node && pod.owner.is_none() && pod.is_active()));
        let before = self.sets.len();
        self.sets.retain(|set| !set.owner.is_empty() || pods.iter().any(|pod| pod.set == set.uid && pod.ends_at.is_none()));
        self.sets_version += u64::from(self.sets.len() < before);
    }

    fn run_detacher(&mut self) {
        if self.detacher == Detacher::Silent {
            return;
        }
        let now = self.now;
        let names: Vec<_> = self.nodes.keys().cloned().collect();
        for name in names {
            let asked = KEYS.into_iter().find(|key| is_marked(&self.nodes[&name], key));
            if let Some(key) = asked
                && self.answered.insert(name.clone(), key) != asked
            {
                let at = if self.detacher == Detacher::Stale { 1 } else { now };
                let time = chrono::DateTime::from_timestamp(at, 0).unwrap().to_rfc3339();
                self.edit_node(&name, |node| node["metadata"]["annotations"][STAMP] = time.into());
            } else if asked.is_none() && self.detacher == Detacher::Good && self.answered.remove(&name).is_some() {
                self.edit_node(&name, |node| {
                    if let Some(annotations) = node["metadata"]["annotations"].as_object_mut() {
                        annotations.remove(STAMP);
                    }
                });
            }
        }
    }

    /// `mine`: indices of its pods.
    fn run_deployment_controller(&mut self, name: &str, mine: &mut Vec<usize>) {
        let deployment = self.deployments[name].clone();
        let uid = text(&deployment, "/metadata/uid").to_owned();
        let node = node_of(&deployment).to_owned();
        let wanted = usize::try_from(deployment["spec"]["replicas"].as_i64().unwrap_or(1)).unwrap();
        // Adopted by its labels, whatever its template is.
        if self.orphans.remove(&node).is_some() {
            self.adopt(&node, &uid);
            *mine = (0..self.pods.len()).filter(|&i| self.pods[i].owner.as_deref() == Some(&*uid)).collect();
        }
        let current = self.own_set(&deployment);
        if deployment["spec"]["paused"] == true {
            self.keep_replicas(name, &uid, wanted, mine);
        } else if let Some(current) = &current {
            self.roll(name, &deployment["spec"]["strategy"]["rollingUpdate"], (current, wanted), mine);
        }
        let current = current.map(|set| set.uid);
        self.write_status(name, current.as_deref(), mine);
        let status = &self.deployments[name]["status"];
        let complete = [&status["updated"], &status["ready"], &status["replicas"]].iter().all(|count| **count == wanted);
        if !self.keeps_sets && (complete || deployment["spec"]["paused"] == true) {
            self.clean_up(&uid, current.as_deref(), mine);
        }
    }

    fn adopt(&mut self, node: &str, uid: &str) {
        let mut all = BTreeSet::new();
        for set in self.sets.iter_mut().filter(|set| set.node == node && set.owner.is_empty()) {
            uid.clone_into(&mut set.owner);
            all.insert(set.uid.clone());
        }
        self.sets_version += 1;
        let pods = self.pods.iter_mut().filter(|pod| all.contains(&pod.set) && pod.owner.is_none() && pod.ends_at.is_none());
        pods.for_each(|pod| pod.owner = Some(uid.to_owned()));
    }

    /// Pods of former `ReplicaSets` go, and those of the current one come.
    fn roll(&mut self, name: &str, rolling: &Value, (current, wanted): (&ReplicaSet, usize), all: &mut Vec<usize>) {
        let count = |key: &str| rolling[key].as_i64().map_or(wanted, |number| usize::try_from(number).unwrap());
        let (unavailable, surge) = (count("maxUnavailable"), count("maxSurge"));
        let (now, mut end) = (self.now, Vec::new());
        let live = |pods: &[Pod]| -> Vec<usize> { all.iter().copied().filter(|&i| pods[i].is_active()).collect() };
        let mine = live(&self.pods);
        let (new, old): (Vec<usize>, Vec<usize>) = mine.iter().partition(|&&i| self.pods[i].set == current.uid);
        let ready = mine.iter().filter(|&&i| self.pods[i].ready).count();
        // Old pods that are not ready may always go; ready ones while enough remain.
        let mut spare = ready.saturating_sub(wanted.saturating_sub(unavailable));
        for &i in &old {
            if !self.pods[i].ready || spare > 0 {
                spare -= usize::from(self.pods[i].ready);
                end.push(i);
            }
        }
        end.extend(new.iter().skip(wanted));
        for i in end {
            self.pods[i].ends_at = Some(now + END);
        }
        let total = live(&self.pods).len();
        for _ in 0..wanted.saturating_sub(new.len()).min((wanted + surge).saturating_sub(total)) {
            all.push(self.make_pod(name, current));
        }
        let sets: Vec<_> = self.sets.iter().filter(|set| set.owner == current.owner).map(|set| set.uid.clone()).collect();
        for set in sets {
            let left = all.iter().map(|&i| &self.pods[i]).filter(|pod| pod.set == set && pod.is_active()).count();
            self.want(&set, left);
        }
    }

    fn write_status(&mut self, name: &str, current: Option<&str>, mine: &[usize]) {
        let mine: Vec<_> = mine.iter().map(|&i| &self.pods[i]).filter(|pod| pod.rejected_at.is_none()).collect();
        let live: Vec<_> = mine.iter().filter(|pod| pod.ends_at.is_none()).collect();
        let ready = live.iter().filter(|pod| pod.ready).count();
        let before = &self.deployments[name];
        let min_ready = before["spec"]["minReadySeconds"].as_i64().unwrap_or(0);
        let old_enough = |pod: &Pod| pod.ready && self.now >= pod.ready_at.saturating_add(min_ready);
        let status = json!({
            "observedGeneration": api::generation(before),
            "replicas": live.len(),
            "updated": live.iter().filter(|pod| Some(&*pod.set) == current).count(),
            "ready": ready,
            "available": live.iter().filter(|pod| old_enough(pod)).count(),
            "terminating": mine.len() - live.len(),
        });
        if before["status"] == status {
            return;
        }
        let mut after = before.clone();
        after["status"] = status;
        let after = api::store(before, after, &mut self.version);
        self.deployments.insert(name.to_owned(), after);
    }
}

pub fn node_of(deployment: &Value) -> &str {
    deployment["metadata"]["annotations"][names::NODE_NAME_ANNOTATION].as_str().unwrap_or_default()
}

/// Asks the detacher, by an annotation or a label.
pub fn is_marked(node: &Value, key: &str) -> bool {
    let metadata = &node["metadata"];
    key.strip_prefix(names::LABEL_MARK).map_or_else(|| metadata["annotations"].get(key), |label| metadata["labels"].get(label)).is_some()
}

pub fn strings(value: &Value) -> BTreeMap<String, String> {
    value.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
}

pub fn node_facts(node: &Value) -> NodeFacts {
    NodeFacts {
        uid: text(node, "/metadata/uid").into(),
        resource_version: text(node, "/metadata/resourceVersion").into(),
        labels: strings(&node["metadata"]["labels"]).into(),
        annotations: strings(&node["metadata"]["annotations"]).into(),
        has_annotations: node["metadata"]["annotations"].is_object(),
        taints: node["spec"].get("taints").map(|taints| serde_json::from_value(taints.clone()).unwrap()).unwrap_or_default(),
        unschedulable: node["spec"]["unschedulable"] == true,
        boot_id: node["status"]["bootID"].as_str().unwrap_or_default().to_owned(),
        ready: node["status"]["ready"] == true,
        deleting: node["metadata"]["deletionTimestamp"].is_string(),
        address: Some("192.0.2.1".into()),
        ..NodeFacts::default()
    }
}

pub fn deployment_facts(deployment: &Value) -> DeploymentFacts {
    let status = |key: &str| i32::try_from(deployment["status"][key].as_i64().unwrap_or(0)).unwrap();
    DeploymentFacts {
        name: text(deployment, "/metadata/name").into(),
        uid: text(deployment, "/metadata/uid").into(),
        resource_version: text(deployment, "/metadata/resourceVersion").into(),
        generation: api::generation(deployment),
        labels: strings(&deployment["metadata"]["labels"]).into(),
        annotations: strings(&deployment["metadata"]["annotations"]).into(),
        spec: deployment["spec"].clone().into(),
        status: DeploymentCounts {
            observed_generation: deployment["status"]["observedGeneration"].as_i64().unwrap_or(0),
            replicas: status("replicas"),
            updated: status("updated"),
            ready: status("ready"),
            available: status("available"),
            terminating: status("terminating"),
        },
        refusal: None,
        deleting: false,
    }
}
