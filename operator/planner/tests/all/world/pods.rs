//! Pods and `ReplicaSets`: what a kubelet and their controllers do with them, and the writes of updates in place.

use super::{
    api::{patched, text},
    cluster::{BAD_IMAGE, Cluster, START, node_of, revision, strings},
};
use crds::{in_place::PodRecord, names};
use planner::{
    facts::{ContainerFacts, InPlacePod, PodFacts, ReplicaSetFacts},
    objects::in_place::gates,
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a condition of its own")]
pub struct Pod {
    pub name: String,
    pub uid: String,
    pub node: String,
    /// UID of the Deployment; none once that was deleted and left it behind.
    pub owner: Option<String>,
    /// UID of the `ReplicaSet`.
    pub set: String,
    /// What it is made of now.
    pub template: Arc<Value>,
    pub created: i64,
    pub restarts: i32,
    pub ready_at: i64,
    pub ready: bool,
    pub was_ready: bool,
    pub ends_at: Option<i64>,
    /// When its kubelet refused it.
    pub rejected_at: Option<i64>,
    /// Its kubelet did not refuse it, but evicted it then.
    pub evicted: bool,
    /// Why it is not ready, in its kubelet's word.
    pub trouble: Option<&'static str>,
    /// It waits for a condition of somebody else.
    pub unmet: bool,
    /// Whether it has the gate of updates in place.
    gated: bool,
    /// The condition of that gate.
    gate: Option<bool>,
    /// Its container is ready.
    up: bool,
    /// What an update in place left on it.
    record: Option<String>,
    version: u64,
    generation: i64,
    observed: i64,
    /// Which run of its container this is, what it was begun with, and when.
    run: u64,
    runs: Value,
    started_at: i64,
}

impl Pod {
    pub fn revision(&self) -> &str {
        revision(&self.template)
    }

    /// Its `ReplicaSet` counts it.
    pub fn is_active(&self) -> bool {
        self.ends_at.is_none() && self.rejected_at.is_none()
    }

    /// Which run of its container this is.
    pub fn runs(&self) -> u64 {
        self.run
    }

    /// What it is made of has this image.
    pub fn has_image(&self, image: &str) -> bool {
        self.image() == image
    }

    fn image(&self) -> &Value {
        &self.template["spec"]["containers"][0]["image"]
    }

    /// One second of its kubelet.
    pub fn live(&mut self, now: i64, node_is_ready: bool, version: &mut u64) {
        if self.rejected_at.is_some() {
            return;
        }
        if self.observed < self.generation {
            self.observed = self.generation;
            self.bump(version);
            if self.runs != *self.image() {
                self.begin(now);
            }
        }
        let up = now >= self.ready_at && self.ends_at.is_none() && node_is_ready;
        let ready = up && (self.gate == Some(true) || !self.gated);
        if (self.up, self.ready) != (up, ready) {
            self.bump(version);
        }
        (self.up, self.ready) = (up, ready);
        self.was_ready |= ready;
    }

    /// A container of it ends, and another begins at once: with the image that its kubelet knows.
    pub fn crash(&mut self) {
        self.run += 1;
        self.restarts += 1;
    }

    /// Its kubelet evicts it; it holds nothing any more.
    pub fn evict(&mut self, now: i64) {
        if self.is_active() {
            (self.rejected_at, self.evicted, self.ready, self.up) = (Some(now), true, false, false);
        }
    }

    /// Another run of its container.
    fn begin(&mut self, now: i64) {
        self.run += 1;
        self.restarts += 1;
        self.runs = self.image().clone();
        self.started_at = now;
        (self.up, self.was_ready) = (false, false);
        self.ready_at = comes_up(&self.template, now);
    }

    fn bump(&mut self, version: &mut u64) {
        *version += 1;
        self.version = *version;
    }
}

/// How pods of a revision behave: good for so many seconds, bad for so many, again and again.
#[derive(Clone, Copy, Debug)]
pub struct Flaps {
    pub good: i64,
    pub bad: i64,
    /// A container ends each time; else its probe fails.
    pub crashes: bool,
}

impl Flaps {
    /// One second of a pod.
    pub fn live(self, pod: &mut Pod, now: i64) {
        if pod.is_active() && now >= pod.ready_at.saturating_add(self.good) {
            pod.ready_at = now + self.bad;
            if self.crashes {
                pod.crash();
            }
        }
    }
}

/// What a revision does to the nodes that it runs on, again and again.
#[derive(Clone, Copy, Debug)]
pub enum Breaks {
    Pods(Flaps),
    /// A pod of it that has been ready for so many seconds kills the machine, which is down for so many.
    Machine {
        good: i64,
        down: i64,
    },
}

/// When a container that is begun now is ready.
fn comes_up(template: &Value, now: i64) -> i64 {
    if template["spec"]["containers"][0]["image"] == BAD_IMAGE { i64::MAX } else { now + START }
}

#[derive(Clone, Debug)]
pub struct ReplicaSet {
    pub uid: String,
    /// UID of the Deployment; empty once that was deleted and left it behind.
    pub owner: String,
    pub node: String,
    pub template: Arc<Value>,
    token: Option<String>,
    pub replicas: usize,
    /// How often its template was changed.
    pub changes: u64,
}

impl Cluster {
    /// The oldest `ReplicaSet` of a Deployment that has its template; made where there is none.
    pub fn own_set(&mut self, deployment: &Value) -> Option<ReplicaSet> {
        let (uid, template) = (text(deployment, "/metadata/uid"), &deployment["spec"]["template"]);
        if let Some(known) = self.sets.iter().find(|set| set.owner == uid && *set.template == *template) {
            return Some(known.clone());
        }
        if deployment["spec"]["paused"] == true {
            return None;
        }
        let set = ReplicaSet {
            uid: self.uid(),
            owner: uid.to_owned(),
            node: node_of(deployment).to_owned(),
            template: Arc::new(template.clone()),
            token: None,
            replicas: 0,
            changes: 0,
        };
        self.sets.push(set.clone());
        self.sets_version += 1;
        Some(set)
    }

    /// Its index.
    pub fn make_pod(&mut self, deployment: &str, set: &ReplicaSet) -> usize {
        let (uid, now) = (self.uid(), self.now);
        self.version += 1;
        let template = Arc::clone(&set.template);
        *self.made.entry(set.node.clone()).or_default() += 1;
        self.pods.push(Pod {
            name: format!("{deployment}-{}", self.uids),
            uid,
            node: set.node.clone(),
            owner: Some(set.owner.clone()),
            set: set.uid.clone(),
            created: now,
            restarts: 0,
            ready_at: comes_up(&template, now),
            ready: false,
            was_ready: false,
            ends_at: None,
            rejected_at: self.refusing.contains(&set.node).then_some(now),
            evicted: false,
            trouble: None,
            unmet: false,
            gated: gates(&template),
            gate: None,
            up: false,
            record: None,
            version: self.version,
            generation: 1,
            observed: 1,
            run: 1,
            runs: template["spec"]["containers"][0]["image"].clone(),
            started_at: now,
            template,
        });
        self.pods.len() - 1
    }

    /// While a Deployment is paused only its `ReplicaSets` act: each has as many pods as it wants. `all`: indices of its pods.
    pub fn keep_replicas(&mut self, deployment: &str, uid: &str, wanted: usize, all: &mut Vec<usize>) {
        let surge = self.deployments[deployment]["spec"]["strategy"]["rollingUpdate"]["maxSurge"].as_u64().unwrap_or(0);
        let mut allowed = if wanted == 0 { 0 } else { wanted + usize::try_from(surge).unwrap() };
        let mine: Vec<_> = self.sets.iter().filter(|set| set.owner == uid && set.replicas > 0).cloned().collect();
        for set in &mine {
            let live: Vec<_> = all.iter().copied().filter(|&i| self.pods[i].set == set.uid && self.pods[i].is_active()).collect();
            // A paused Deployment is scaled all the same.
            let wanted = if mine.len() == 1 { wanted } else { set.replicas.min(allowed) };
            allowed = allowed.saturating_sub(wanted);
            for &i in live.iter().skip(wanted) {
                self.pods[i].ends_at = Some(self.now + super::cluster::END);
            }
            for _ in live.len()..wanted {
                all.push(self.make_pod(deployment, set));
            }
            self.want(&set.uid, wanted);
        }
    }

    pub fn want(&mut self, set: &str, replicas: usize) {
        if let Some(set) = self.sets.iter_mut().find(|known| known.uid == set && known.replicas != replicas) {
            set.replicas = replicas;
            self.sets_version += 1;
        }
    }

    /// Former `ReplicaSets` without pods are not kept. `all`: indices of the Deployment's pods.
    pub fn clean_up(&mut self, uid: &str, current: Option<&str>, all: &[usize]) {
        let before = self.sets.len();
        let pods = || all.iter().map(|&i| &self.pods[i]);
        let used = |set: &ReplicaSet| set.replicas > 0 || pods().any(|pod| pod.set == set.uid && pod.ends_at.is_none());
        self.sets.retain(|set| set.owner != uid || current == Some(&*set.uid) || used(set));
        self.sets_version += u64::from(self.sets.len() < before);
    }

    /// A `ReplicaSet` of before, without pods, that a node's Deployment still has.
    pub fn leave_set(&mut self, node: &str, template: Arc<Value>) {
        let owner = self.sets.iter().find(|set| set.node == node).unwrap().owner.clone();
        let set = ReplicaSet { uid: self.uid(), owner, node: node.to_owned(), template, token: None, replicas: 0, changes: 0 };
        // The oldest.
        self.sets.insert(0, set);
        self.sets_version += 1;
    }

    /// The `ReplicaSet` of this name as it is after a patch of ours; nothing when that is refused.
    pub fn patch_set(&mut self, name: &str, patch: &Value) -> Option<(ReplicaSet, ReplicaSet)> {
        let set = self.sets.iter_mut().find(|set| set.uid == name)?;
        let mut labels = json!({});
        if let Some(token) = &set.token {
            labels[names::IN_PLACE_TOKEN] = token.as_str().into();
        }
        let object = json!({"metadata": {"uid": set.uid, "labels": labels}, "spec": {"template": *set.template}});
        let after = patched(&object, patch).ok()?;
        let before = set.clone();
        set.token = after["metadata"]["labels"][names::IN_PLACE_TOKEN].as_str().map(str::to_owned);
        if after["spec"]["template"] != *set.template {
            set.template = Arc::new(after["spec"]["template"].clone());
            set.changes += 1;
        }
        self.sets_version += 1;
        Some((before, set.clone()))
    }

    /// The pod of this name as it was before a patch of ours; nothing when that is refused.
    pub fn patch_pod(&mut self, name: &str, patch: &Value) -> Option<Pod> {
        let version = &mut self.version;
        let pod = self.pods.iter_mut().find(|pod| pod.name == name)?;
        let mut object = json!({
            "metadata": {"uid": pod.uid, "labels": pod.template["metadata"]["labels"]},
            "spec": {"containers": pod.template["spec"]["containers"]},
        });
        let annotations = annotations(pod);
        if !annotations.is_empty() {
            object["metadata"]["annotations"] = json!(annotations);
        }
        let after = patched(&object, patch).ok()?;
        let before = pod.clone();
        let mut annotations = strings(&after["metadata"]["annotations"]);
        pod.record = annotations.remove(names::IN_PLACE_TOKEN);
        let mut template = Value::clone(&pod.template);
        template["metadata"]["labels"] = after["metadata"]["labels"].clone();
        template["spec"]["containers"] = after["spec"]["containers"].clone();
        match template["metadata"].as_object_mut() {
            Some(metadata) if annotations.is_empty() => drop(metadata.remove("annotations")),
            _ => template["metadata"]["annotations"] = json!(annotations),
        }
        pod.template = Arc::new(template);
        pod.generation += i64::from(pod.image() != before.image());
        pod.bump(version);
        Some(before)
    }

    /// The condition of a pod's gate; false when it is another pod by now.
    pub fn patch_pod_status(&mut self, name: &str, patch: &Value) -> bool {
        let (uid, seen) = (text(patch, "/metadata/uid"), text(patch, "/metadata/resourceVersion"));
        let version = &mut self.version;
        let Some(pod) = self.pods.iter_mut().find(|pod| pod.name == name && pod.uid == uid && pod.version.to_string() == seen) else {
            return false;
        };
        assert_eq!(patch["status"]["conditions"].as_array().map(Vec::len), Some(1), "{patch}");
        assert_eq!(patch["status"]["conditions"][0]["type"], names::IN_PLACE_GATE, "{patch}");
        pod.gate = Some(patch["status"]["conditions"][0]["status"] == "True");
        pod.bump(version);
        true
    }

    pub fn delete_pod(&mut self, name: &str, uid: Option<&str>, version: Option<&str>) -> bool {
        let before = self.pods.len();
        let meant = |pod: &Pod| {
            let same = uid.is_none_or(|uid| uid == pod.uid) && version.is_none_or(|version| version == pod.version.to_string());
            pod.name == name && same
        };
        self.pods.retain(|pod| !meant(pod));
        self.pods.len() < before
    }

    /// What an operator sees of `ReplicaSets`, by node.
    pub fn set_facts(&self) -> BTreeMap<String, Vec<ReplicaSetFacts>> {
        let mut facts: BTreeMap<String, Vec<ReplicaSetFacts>> = BTreeMap::new();
        for set in self.sets.iter().filter(|set| gates(&set.template)) {
            facts.entry(set.node.clone()).or_default().push(ReplicaSetFacts {
                name: set.uid.clone(),
                uid: set.uid.clone(),
                owner: set.owner.clone(),
                hash: set.uid.clone(),
                token: set.token.clone(),
                replicas: i32::try_from(set.replicas).unwrap(),
                spec: json!({"template": *set.template}).into(),
            });
        }
        facts
    }
}

fn annotations(pod: &Pod) -> BTreeMap<String, String> {
    let mut annotations = strings(&pod.template["metadata"]["annotations"]);
    annotations.extend(pod.record.clone().map(|record| (names::IN_PLACE_TOKEN.to_owned(), record)));
    annotations
}

fn gated(pod: &Pod) -> InPlacePod {
    let image = |image: &Value| image.as_str().unwrap_or_default().to_owned();
    let container = ContainerFacts {
        name: text(&pod.template, "/spec/containers/0/name").into(),
        image: image(pod.image()),
        shown: image(&pod.runs),
        image_id: image(&pod.runs),
        id: format!("run-{}-{}", pod.uid, pod.run),
        started_at: pod.started_at,
        running: true,
        ready: pod.up,
        restarts: pod.restarts,
    };
    InPlacePod {
        uid: pod.uid.clone(),
        resource_version: pod.version.to_string(),
        generation: pod.generation,
        observed_generation: pod.observed,
        hash: pod.set.clone(),
        gate: pod.gate,
        containers: vec![container],
        termination_grace: 30,
        labels: strings(&pod.template["metadata"]["labels"]).into(),
        annotations: annotations(pod).into(),
        record: PodRecord::parse(pod.record.as_deref()),
    }
}

fn unmet(pod: &Pod) -> planner::facts::Unmet {
    let conditions = vec!["example.com/lb".to_owned()];
    planner::facts::Unmet { uid: pod.uid.clone(), resource_version: pod.version.to_string(), conditions }
}

pub fn pod_facts(pod: &Pod) -> PodFacts {
    let record = PodRecord::parse(pod.record.as_deref());
    let before = record.as_ref().and_then(|record| record.before.values().next());
    PodFacts {
        name: pod.name.clone(),
        revision: pod.revision().to_owned(),
        ready: pod.ready,
        terminating: pod.ends_at.is_some(),
        ended: pod.rejected_at.is_some(),
        rejected_at: pod.rejected_at.filter(|_| !pod.evicted),
        evicted: pod.evicted,
        trouble: pod
            .rejected_at
            .filter(|_| !pod.evicted)
            .map(|_| ("OutOfcpu", "Node didn't have enough resource: cpu"))
            .or(pod.trouble.filter(|_| !pod.ready).map(|reason| (reason, "")))
            .map(|(reason, message)| (reason.to_owned(), message.to_owned())),
        created: pod.created,
        restarts: before.map_or(pod.restarts, |before| (pod.restarts - before.restarts - 1).max(0)),
        // Another number for every run, and no larger one.
        runs: u64::MAX - pod.run,
        unmet: pod.unmet.then(|| Box::new(unmet(pod))),
        gated: pod.gated.then(|| Box::new(gated(pod))),
        ..PodFacts::default()
    }
}
