//! The simulated cluster: an API server that takes every write, and kubelets and detachers that do at once, or after the usual
//! time, what they should.
//!
//! A snapshot and actions of the planner come in, the next snapshot goes out. Nothing here decides, fails, or asks the real cluster.

mod in_place;

use std::{collections::BTreeMap, sync::Arc};

use crds::{UnixSeconds, hash, token::Phase};
use planner::{
    Action, Plan, Snapshot,
    facts::{DeploymentCounts, DeploymentFacts, NodeFacts, PodFacts, RevisionFacts, label_map::LabelMap},
    plan::Supporting,
    spec::{ResolvedSpec, Timestamp, resolve},
};
use serde_json::{Map, Value, json};

/// Seconds that a detacher takes.
const DETACHER: i64 = 2;

/// Everything, at one moment.
pub struct SimulatedCluster {
    /// What the planner sees.
    pub snapshot: Snapshot,
    pod_seconds: i64,
    min_ready_seconds: i64,
    timestamp: Option<(Timestamp, String)>,
    /// When the pods of a node will be ready.
    ready_at: BTreeMap<String, i64>,
    /// When the images that a node pulls will be there.
    pulled_at: BTreeMap<String, i64>,
    /// When a node's detacher will have answered, and with what.
    answers: BTreeMap<String, (i64, bool)>,
    made: u64,
}

impl SimulatedCluster {
    /// As it is now. Pods that somebody makes, ends or starts already are on their way.
    pub fn new(mut snapshot: Snapshot, pod_seconds: i64) -> Self {
        // Their taints come within moments.
        snapshot.gates.tainting.clear();
        let settings = resolve(&snapshot.resource.spec).ok();
        let timestamp = settings.as_ref().and_then(asked_by);
        let min_ready_seconds = i64::from(snapshot.resource.spec.min_ready_seconds);
        let (ready_at, pulled_at, answers) = Default::default();
        let mut cluster = Self { snapshot, pod_seconds, min_ready_seconds, timestamp, ready_at, pulled_at, answers, made: 0 };
        let names: Vec<_> = cluster.snapshot.deployments.keys().cloned().collect();
        for node in names {
            cluster.go_on(&node);
            cluster.go_on_pulling(&node);
        }
        cluster
    }

    /// What is under way in the cluster itself when the simulation begins.
    fn go_on(&mut self, node: &str) {
        let Some(deployment) = self.snapshot.deployments.get(node) else { return };
        if deployment.readable_token().is_some_and(|token| token.phase == Phase::InPlace) {
            return self.go_on_in_place(node);
        }
        let wanted = usize::try_from(deployment.replicas()).unwrap_or(0);
        let pods = self.snapshot.pods_on(node);
        let exact = pods.len() == wanted && pods.iter().all(|pod| !pod.terminating && !pod.ended && pod.revision == deployment.revision());
        // A pod in trouble, or one that was ready and is not, does not mend itself.
        let starting = pods.iter().any(|pod| !pod.ready && pod.trouble.is_none());
        if !exact || starting && self.is_young(node) {
            self.replace_pods(node);
        }
    }

    /// The node's present phase began lately: its pods are being started, not broken.
    fn is_young(&self, node: &str) -> bool {
        let token = self.snapshot.deployments.get(node).and_then(|deployment| deployment.readable_token());
        token.is_some_and(|token| token.phase != Phase::Closed)
    }

    /// Carries out an action; `true` when it changed something.
    pub fn act(&mut self, action: &Action) -> bool {
        match action {
            Action::WriteStatus { status, reserve, .. } => {
                self.snapshot.reserved.extend(reserve);
                let changed = self.snapshot.resource.status.as_ref() != Some(&**status);
                self.snapshot.resource.status = Some((**status).clone());
                let rebuilding = status.rollout.as_ref().and_then(|ledger| ledger.rebuilding);
                self.snapshot.listed_since_rebuild = rebuilding.is_some();
                changed
            }
            Action::SetFinalizers(finalizers) => {
                self.snapshot.resource.finalizers.clone_from(finalizers);
                true
            }
            Action::CreateDeployment { node, id, name, body } => {
                self.snapshot.reserved.retain(|reserved| reserved != id);
                self.create(node, name, body);
                true
            }
            Action::PatchDeployment { node, patch, .. } => self.patch_deployment(node, patch),
            Action::DeleteDeployment { node, .. } => {
                self.ready_at.remove(node);
                self.snapshot.pods.remove(node);
                self.snapshot.deployments.remove(node).is_some()
            }
            Action::PatchNode { node, patch, .. } => self.patch_node(node, patch),
            Action::RecordRevision { name, body } => {
                self.record(name, body);
                true
            }
            Action::RenumberRevision { name, patch } => self.renumber(name, patch),
            Action::Delete { object: Supporting::ControllerRevision(name), .. } => {
                let before = self.snapshot.history.len();
                self.snapshot.history.retain(|known| known.name != *name);
                self.snapshot.history.len() < before
            }
            Action::DeletePod { name, .. } => self.delete_pod(name),
            Action::CreatePod { node, name, body } => self.begin_pull(node, name, body),
            Action::PatchReplicaSet { node, name, patch } => self.patch_replica_set(node, name, patch),
            Action::PatchPod { node, name, patch } => self.patch_pod(node, name, patch),
            Action::PatchPodStatus { node, name, patch } => self.patch_pod_status(node, name, patch),
            Action::Reclaim { .. } | Action::Apply { .. } | Action::Delete { .. } => false,
        }
    }

    fn record(&mut self, name: &str, body: &Value) {
        let template = body["data"]["spec"]["template"].clone();
        self.snapshot.history.push(RevisionFacts {
            name: name.to_owned(),
            uid: format!("planned-{name}"),
            number: body["revision"].as_i64().unwrap_or(0),
            revision: hash::revision(&template),
            template: Arc::new(template),
        });
    }

    fn renumber(&mut self, name: &str, patch: &Value) -> bool {
        let Some(known) = self.snapshot.history.iter_mut().find(|known| known.name == name) else { return false };
        let number = patched(json!({ "revision": known.number }), patch).and_then(|after| after["revision"].as_i64());
        let before = known.number;
        known.number = number.unwrap_or(before);
        known.number != before
    }

    fn create(&mut self, node: &str, name: &str, body: &Value) {
        self.made += 1;
        let facts = DeploymentFacts {
            name: name.to_owned(),
            uid: format!("planned-{}", self.made),
            resource_version: "1".into(),
            generation: 1,
            labels: strings(&body["metadata"]["labels"]).into(),
            annotations: strings(&body["metadata"]["annotations"]).into(),
            spec: body["spec"].clone().into(),
            status: DeploymentCounts::default(),
            refusal: None,
            deleting: false,
        };
        self.snapshot.written_generations.insert(facts.uid.clone(), 1);
        self.snapshot.deployments.insert(node.to_owned(), Arc::new(facts));
        self.snapshot.orphans.remove(node);
        self.replace_pods(node);
    }

    fn patch_deployment(&mut self, node: &str, patch: &Value) -> bool {
        let Some(before) = self.snapshot.deployments.get(node) else { return false };
        let spec = before.spec.to_value();
        let object = json!({
            "metadata": { "uid": before.uid, "labels": object(&before.labels), "annotations": object(&before.annotations) },
            "spec": spec,
        });
        let Some(after) = patched(object, patch) else { return false };
        let mut facts = (**before).clone();
        facts.labels = strings(&after["metadata"]["labels"]).into();
        facts.annotations = strings(&after["metadata"]["annotations"]).into();
        // Equal specs may be held in different ways.
        if after["spec"] != spec {
            facts.spec = after["spec"].clone().into();
        }
        if facts == **before {
            return false;
        }
        let same_pods = pods_of(&spec) == pods_of(&after["spec"]);
        facts.generation += 1;
        facts.status.observed_generation = facts.generation;
        self.snapshot.written_generations.insert(facts.uid.clone(), facts.generation);
        self.snapshot.deployments.insert(node.to_owned(), Arc::new(facts));
        if !same_pods && !self.has_pods_of(node, &after["spec"]) {
            self.replace_pods(node);
        }
        true
    }

    fn patch_node(&mut self, name: &str, patch: &Value) -> bool {
        let Some(before) = self.snapshot.nodes.get(name) else { return false };
        let mut metadata = json!({ "uid": before.uid, "resourceVersion": before.resource_version, "labels": object(&before.labels) });
        if before.has_annotations {
            metadata["annotations"] = object(&before.annotations);
        }
        let Some(after) = patched(json!({ "metadata": metadata }), patch) else { return false };
        let facts = NodeFacts {
            labels: strings(&after["metadata"]["labels"]).into(),
            annotations: strings(&after["metadata"]["annotations"]).into(),
            has_annotations: after["metadata"]["annotations"].is_object(),
            ..(**before).clone()
        };
        if facts == **before {
            return false;
        }
        Arc::make_mut(&mut self.snapshot.nodes).insert(name.to_owned(), Arc::new(facts));
        self.ask_detacher(name);
        true
    }

    /// The detacher answers, or takes its answer back, in a moment.
    fn ask_detacher(&mut self, name: &str) {
        let (Some((_, key)), Some(node)) = (&self.timestamp, self.snapshot.nodes.get(name)) else { return };
        let asked = node.mark(key).is_some();
        if self.answers.get(name).is_none_or(|(_, earlier)| *earlier != asked) {
            self.answers.insert(name.to_owned(), (self.snapshot.now + DETACHER, asked));
        }
    }

    /// The pods of a node begin to be those that its Deployment wants.
    fn replace_pods(&mut self, node: &str) {
        let Some(deployment) = self.snapshot.deployments.get(node).cloned() else { return };
        let wanted = deployment.replicas();
        let pod = |index| PodFacts {
            name: format!("{}-{index}", deployment.name),
            revision: deployment.revision().to_owned(),
            created: self.snapshot.now,
            ..PodFacts::default()
        };
        let pods: Vec<_> = (0..wanted).map(pod).map(Arc::new).collect();
        let rounds = rounds(&deployment);
        self.snapshot.pods.insert(node.to_owned(), pods);
        self.make_replica_set(node, &deployment);
        let begun = if wanted == 0 { 0 } else { self.pod_seconds.saturating_mul(rounds) };
        self.ready_at.insert(node.to_owned(), self.snapshot.now.saturating_add(begun));
        self.write_status(node);
    }

    fn write_status(&mut self, node: &str) {
        let now = self.snapshot.now;
        let up = self.snapshot.nodes.get(node).is_some_and(|node| node.ready);
        let ready_at = self.ready_at.get(node).copied();
        let Some(deployment) = self.snapshot.deployments.get_mut(node) else { return };
        let (wanted, ready_at) = (deployment.replicas(), ready_at.unwrap_or(i64::MAX));
        let (ready, available) = (up && now >= ready_at, up && now >= ready_at.saturating_add(self.min_ready_seconds));
        for pod in pods_on(&mut self.snapshot.pods, node) {
            pod.ready = ready;
            for container in pod.gated.iter_mut().flat_map(|gated| &mut gated.containers) {
                (container.running, container.ready) = (ready, ready);
            }
            in_place::look(pod);
        }
        let serving = self.snapshot.pods.get(node).map_or(0, |pods| pods.iter().filter(|pod| pod.ready).count());
        let serving = i32::try_from(serving).unwrap_or(i32::MAX);
        let deployment = Arc::make_mut(deployment);
        deployment.status = DeploymentCounts {
            observed_generation: deployment.generation,
            replicas: wanted,
            updated: wanted,
            ready: serving,
            available: if available { serving } else { 0 },
            terminating: 0,
        };
        deployment.refusal = None;
    }

    /// What was seen is remembered for the next decision.
    pub fn looked(&mut self, plan: &Plan) {
        self.snapshot.clocks = plan.clocks.clone();
        self.snapshot.sights = plan.sights.clone();
        self.snapshot.watched = 0;
    }

    /// When something happens next by itself; never now or before.
    pub fn next_event(&self) -> Option<UnixSeconds> {
        let now = self.snapshot.now;
        let ready = self.ready_at.values().flat_map(|at| [*at, at.saturating_add(self.min_ready_seconds)]);
        let answers = self.answers.values().map(|(at, _)| *at);
        let pulled = self.pulled_at.values().copied();
        ready.chain(answers).chain(pulled).filter(|at| *at > now).min()
    }

    /// Time passes.
    pub fn advance(&mut self, to: i64) {
        self.snapshot.watched += to - self.snapshot.now;
        self.snapshot.now = to;
        self.pulls_end(to);
        let due: Vec<_> = self.ready_at.iter().filter(|(_, at)| **at <= to).map(|(node, _)| node.clone()).collect();
        for node in due {
            self.write_status(&node);
            if self.ready_at.get(&node).is_some_and(|at| at.saturating_add(self.min_ready_seconds) <= to) {
                self.ready_at.remove(&node);
            }
        }
        let Some((timestamp, _)) = self.timestamp.clone() else { return };
        let due: Vec<_> = self.answers.iter().filter(|(_, (at, _))| *at == to).map(|(node, (_, asked))| (node.clone(), *asked)).collect();
        for (name, asked) in due {
            let Some(node) = Arc::make_mut(&mut self.snapshot.nodes).get_mut(&name) else { continue };
            let node = Arc::make_mut(node);
            if asked {
                let time = chrono::DateTime::from_timestamp(to, 0).unwrap_or_default().to_rfc3339();
                node.annotations.insert(timestamp.key.clone(), time);
            } else {
                node.annotations.remove(&timestamp.key);
            }
        }
    }
}

/// The detacher's timestamp, and the key by which it is asked.
fn asked_by(settings: &ResolvedSpec) -> Option<(Timestamp, String)> {
    Some((settings.timestamp.clone()?, settings.node_mark.as_ref()?.key.clone()))
}

/// In how many rounds the pods of a node are replaced: all at once when it is detached.
fn rounds(deployment: &DeploymentFacts) -> i64 {
    let wanted = i64::from(deployment.replicas());
    let count = |key: &str| {
        let strategy = deployment.spec.get("strategy");
        let value = strategy.as_ref().and_then(|strategy| strategy.pointer(&format!("/rollingUpdate/{key}")));
        match value {
            Some(Value::Number(number)) => number.as_i64().unwrap_or(0),
            Some(Value::String(percent)) => percent.trim_end_matches('%').parse::<i64>().unwrap_or(0).saturating_mul(wanted) / 100,
            _ => 0,
        }
    };
    let at_once = (count("maxUnavailable") + count("maxSurge")).max(1);
    (wanted + at_once - 1) / at_once
}

/// The pods on a node, to be changed.
fn pods_on<'p>(pods: &'p mut BTreeMap<String, Vec<Arc<PodFacts>>>, node: &str) -> impl Iterator<Item = &'p mut PodFacts> + use<'p> {
    pods.get_mut(node).into_iter().flatten().map(Arc::make_mut)
}

/// What of a Deployment's spec its pods depend on.
fn pods_of(spec: &Value) -> (Option<&Value>, Option<&Value>) {
    (spec.get("template"), spec.get("replicas"))
}

/// The object after a patch; tests were made with what the planner saw, which is what there is.
fn patched(mut object: Value, patch: &Value) -> Option<Value> {
    let operations = patch.as_array()?.iter().filter(|operation| operation["op"] != "test").cloned();
    let patch: json_patch::Patch = serde_json::from_value(Value::Array(operations.collect())).ok()?;
    json_patch::patch(&mut object, &patch).ok()?;
    Some(object)
}

fn object(texts: &LabelMap) -> Value {
    texts.entries().map(|(key, value)| (key.to_owned(), Value::from(value))).collect::<Map<_, _>>().into()
}

fn strings(value: &Value) -> BTreeMap<String, String> {
    let nothing = Map::new();
    let members = value.as_object().unwrap_or(&nothing).iter();
    members.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
}
